//! The forms of an answer: the object itself, a table for `kubectl get`, or its metadata alone.
//!
//! ```json
//! {"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": {"resourceVersion": "67"},
//!  "columnDefinitions": [{"name": "Name", "type": "string", "format": "name", "description": "…", "priority": 0}],
//!  "rows": [{"cells": ["web"], "object": {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": {…}}}]}
//! ```

use std::borrow::Cow;

use serde_json::{Value, json};

use super::{
    clock::Clock,
    kinds::{Kind, Rules},
    read::{self, Page},
    refusal::Refusal,
    request::{Accept, Query},
};

/// `includeObject`: what a table row carries beside its cells.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Include {
    None,
    Metadata,
    Object,
}

impl Include {
    pub(super) fn parse(query: &Query) -> Result<Include, Refusal> {
        match query.text("includeObject") {
            "" | "Metadata" => Ok(Include::Metadata),
            "None" => Ok(Include::None),
            "Object" => Ok(Include::Object),
            other => Err(Refusal::bad_request(format!(
                "Unable to convert to Table as requested: includeObject: Invalid value: {other:?}: must be \
                'Metadata', 'Object', 'None', or empty"
            ))),
        }
    }
}

/// How to write down the objects of a kind.
#[derive(Clone, Copy, Debug)]
pub(super) struct Form {
    pub(super) accept: Accept,
    pub(super) include: Include,
    pub(super) clock: Clock,
}

impl Form {
    /// A single object, already in its version.
    pub(super) fn object<'a>(&self, kind: &Kind, object: Cow<'a, Value>) -> Result<Cow<'a, Value>, Refusal> {
        match self.accept {
            Accept::MetadataList => Err(Refusal::internal("content is not a list")),
            Accept::Json | Accept::Yaml | Accept::Metadata | Accept::Table => {
                Ok(self.event(kind, object, Columns::Named))
            }
        }
    }

    /// A page of a list.
    pub(super) fn list(&self, kind: &Kind, page: &Page) -> Result<Value, Refusal> {
        let views = || -> Vec<Cow<'_, Value>> { page.items.iter().map(|item| kind.view(item)).collect() };
        match self.accept {
            Accept::Json | Accept::Yaml => Ok(read::body(kind, page)),
            Accept::Table => Ok(self.table(kind, typed_metadata(kind, page), &views(), Columns::Named)),
            Accept::MetadataList => {
                let items: Vec<Value> = views().iter().map(|object| metadata_only(object)).collect();
                Ok(json!({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1",
                    "metadata": typed_metadata(kind, page), "items": items}))
            }
            Accept::Metadata => {
                let text = format!(
                    "you requested PartialObjectMetadata, but the requested object is a list ({})",
                    kind.list_kind
                );
                Err(Refusal::not_acceptable(&text))
            }
        }
    }

    /// The object of a watch event. Only the first table of a stream names its columns.
    pub(super) fn event<'a>(&self, kind: &Kind, object: Cow<'a, Value>, named: Columns) -> Cow<'a, Value> {
        match self.accept {
            Accept::Table => {
                let version = json!({"resourceVersion": object["metadata"]["resourceVersion"]});
                Cow::Owned(self.table(kind, version, &[object], named))
            }
            Accept::Metadata | Accept::MetadataList => Cow::Owned(metadata_only(&object)),
            Accept::Json | Accept::Yaml => object,
        }
    }

    /// A bookmark has a version and nothing else; as a table it has one row of empty cells.
    pub(super) fn bookmark(
        &self,
        kind: &Kind,
        revision: u64,
        initial_events_end: bool,
        named: Columns,
    ) -> Value {
        let mut metadata = json!({"resourceVersion": revision.to_string()});
        if initial_events_end {
            metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        let object = json!({"apiVersion": kind.api_version(), "kind": kind.kind, "metadata": metadata});
        if self.accept != Accept::Table {
            return self.event(kind, Cow::Owned(object), named).into_owned();
        }
        let cells = kind.cells(&object, &self.clock);
        json!({"kind": "Table", "apiVersion": "meta.k8s.io/v1",
            "metadata": {"resourceVersion": revision.to_string()},
            "columnDefinitions": named.columns(kind),
            "rows": [{"cells": cells, "object": metadata_only(&object)}]})
    }

    fn table(&self, kind: &Kind, metadata: Value, objects: &[Cow<'_, Value>], named: Columns) -> Value {
        let mut rows = Vec::with_capacity(objects.len());
        for object in objects {
            let carried = match self.include {
                Include::None => Value::Null,
                Include::Metadata => metadata_only(object),
                Include::Object => Value::clone(object),
            };
            rows.push(json!({"cells": kind.cells(object, &self.clock), "object": carried}));
        }
        json!({"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata,
            "columnDefinitions": named.columns(kind), "rows": rows})
    }
}

/// Tables and lists of metadata are Go structs: an empty `continue` is left out.
fn typed_metadata(kind: &Kind, page: &Page) -> Value {
    let mut metadata = read::metadata(kind, page);
    if page.token.is_empty()
        && let Some(metadata) = metadata.as_object_mut()
    {
        metadata.remove("continue");
    }
    metadata
}

/// Whether a table says what its columns are: the first of a stream does, the others need not.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Columns {
    Named,
    Known,
}

impl Columns {
    fn columns(self, kind: &Kind) -> Value {
        match self {
            Columns::Named => columns(kind).into(),
            Columns::Known => Value::Null,
        }
    }
}

fn metadata_only(object: &Value) -> Value {
    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object["metadata"]})
}

/// What the column `Name` says of itself, from the documentation of ObjectMeta.
const NAME_DESCRIPTION: &str = "Name must be unique within a namespace. Is required when creating resources, although \
    some resources may allow a client to request the generation of an appropriate name automatically. Name is \
    primarily intended for creation idempotence and configuration definition. Cannot be updated. More info: \
    https://kubernetes.io/docs/concepts/overview/working-with-objects/names#names";

fn columns(kind: &Kind) -> Vec<Value> {
    let name = json!({"name": "Name", "type": "string", "format": "name", "priority": 0,
        "description": NAME_DESCRIPTION});
    let mut columns = Vec::new();
    match &kind.rules {
        Rules::BuiltIn(entry) => {
            columns.extend(entry.columns.iter().map(|(name, kind, priority)| {
                let format = if *name == "Name" { "name" } else { "" };
                json!({"name": name, "type": kind, "format": format, "description": "", "priority": priority})
            }));
        }
        Rules::Custom(custom) => {
            columns.extend(custom.columns.iter().map(|column| {
                json!({"name": column.name, "type": column.kind, "format": column.format,
                    "description": column.description, "priority": column.priority})
            }));
        }
    }
    // Events are the one kind whose name is not the first thing to know.
    if kind.built_in() != "Event" {
        columns.insert(0, name);
    }
    columns
}
