//! Representations of an answer: the object, a Table for `kubectl get`, or PartialObjectMetadata.
//!
//! ```json
//! {"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": {"resourceVersion": "67"},
//!  "columnDefinitions": [{"name": "Name", "type": "string", "format": "name", "description": "…", "priority": 0}],
//!  "rows": [{"cells": ["web"], "object": {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": {…}}}]}
//! ```

use std::borrow::Cow;

use serde_json::{Value, json};

use crate::{
    clock::Clock,
    kinds::{Kind, Source},
    request::{Accept, Meta, Query},
    status::StatusError,
    verbs::read::{self, Page},
};

/// `includeObject`: how much of the object a table row contains.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Include {
    None,
    Metadata,
    Object,
}

impl Include {
    pub(crate) fn parse(query: &Query) -> Result<Include, StatusError> {
        match query.text("includeObject") {
            "" | "Metadata" => Ok(Include::Metadata),
            "None" => Ok(Include::None),
            "Object" => Ok(Include::Object),
            other => Err(StatusError::bad_request(format!(
                "Unable to convert to Table as requested: includeObject: Invalid value: {other:?}: must be \
                'Metadata', 'Object', 'None', or empty"
            ))),
        }
    }
}

/// The representation that a client has requested.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Representation {
    pub(crate) accept: Accept,
    pub(crate) include: Include,
    pub(crate) clock: Clock,
}

impl Representation {
    /// A single object, which is already in the requested version.
    pub(crate) fn object<'a>(
        &self,
        kind: &Kind,
        object: Cow<'a, Value>,
    ) -> Result<Cow<'a, Value>, StatusError> {
        match self.accept {
            Accept::MetadataList(_) => Err(StatusError::internal("content is not a list")),
            Accept::Json | Accept::Yaml | Accept::Metadata(_) | Accept::Table(_) => {
                Ok(self.event(kind, object, Columns::Named))
            }
        }
    }

    /// A page of a list.
    pub(crate) fn list(&self, kind: &Kind, page: &Page) -> Result<Value, StatusError> {
        match self.accept {
            Accept::Json | Accept::Yaml => read::body(kind, page),
            Accept::Table(meta) => Ok(self.table(
                kind,
                meta,
                typed_metadata(kind, page),
                &read::views(kind, page)?,
                Columns::Named,
            )),
            Accept::MetadataList(meta) => {
                let items: Vec<Value> =
                    read::views(kind, page)?.iter().map(|object| metadata_only(object, meta)).collect();
                Ok(json!({"kind": "PartialObjectMetadataList", "apiVersion": meta,
                    "metadata": typed_metadata(kind, page), "items": items}))
            }
            Accept::Metadata(_) => {
                let text = format!(
                    "you requested PartialObjectMetadata, but the requested object is a list ({})",
                    kind.list_kind
                );
                Err(StatusError::not_acceptable(&text))
            }
        }
    }

    /// The object of a watch event. Only the first table of a stream has column definitions.
    pub(crate) fn event<'a>(&self, kind: &Kind, object: Cow<'a, Value>, named: Columns) -> Cow<'a, Value> {
        match self.accept {
            Accept::Table(meta) => {
                let version = json!({"resourceVersion": object["metadata"]["resourceVersion"]});
                Cow::Owned(self.table(kind, meta, version, &[object], named))
            }
            Accept::Metadata(meta) | Accept::MetadataList(meta) => Cow::Owned(metadata_only(&object, meta)),
            Accept::Json | Accept::Yaml => object,
        }
    }

    /// The object of a bookmark: only a version. As a table, it has one row of empty cells.
    pub(crate) fn bookmark(
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
        let Accept::Table(meta) = self.accept else {
            return self.event(kind, Cow::Owned(object), named).into_owned();
        };
        let cells = kind.cells(&object, &self.clock);
        json!({"kind": "Table", "apiVersion": meta,
            "metadata": {"resourceVersion": revision.to_string()},
            "columnDefinitions": named.columns(kind),
            "rows": [{"cells": cells, "object": metadata_only(&object, meta)}]})
    }

    fn table(
        &self,
        kind: &Kind,
        meta: Meta,
        metadata: Value,
        objects: &[Cow<'_, Value>],
        named: Columns,
    ) -> Value {
        let mut rows = Vec::with_capacity(objects.len());
        for object in objects {
            let carried = match self.include {
                Include::None => Value::Null,
                Include::Metadata => metadata_only(object, meta),
                Include::Object => Value::clone(object),
            };
            let mut row = json!({"cells": kind.cells(object, &self.clock), "object": carried});
            if kind.built_in() == "Pod"
                && let Some(completed) = completed(&object["status"]["phase"])
            {
                row["conditions"] = json!([completed]);
            }
            rows.push(row);
        }
        json!({"kind": "Table", "apiVersion": meta, "metadata": metadata,
            "columnDefinitions": named.columns(kind), "rows": rows})
    }
}

/// The condition of the row of a Pod that has ended.
fn completed(phase: &Value) -> Option<Value> {
    let (reason, message) = match phase.as_str() {
        Some("Succeeded") => ("Succeeded", "The pod has completed successfully."),
        Some("Failed") => ("Failed", "The pod failed."),
        _ => return None,
    };
    Some(json!({"type": "Completed", "status": "True", "reason": reason, "message": message}))
}

/// The list metadata of tables and PartialObjectMetadataLists. As Go structs, they omit an empty `continue`.
fn typed_metadata(kind: &Kind, page: &Page) -> Value {
    let mut metadata = read::metadata(kind, page);
    if page.token.is_empty()
        && let Some(metadata) = metadata.as_object_mut()
    {
        metadata.remove("continue");
    }
    metadata
}

/// Whether a table contains its column definitions. In a stream, only the first table does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Columns {
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

fn metadata_only(object: &Value, meta: Meta) -> Value {
    json!({"kind": "PartialObjectMetadata", "apiVersion": meta, "metadata": object["metadata"]})
}

/// The description of the column `Name`, from the documentation of ObjectMeta.
const NAME_DESCRIPTION: &str = "Name must be unique within a namespace. Is required when creating resources, although \
    some resources may allow a client to request the generation of an appropriate name automatically. Name is \
    primarily intended for creation idempotence and configuration definition. Cannot be updated. More info: \
    https://kubernetes.io/docs/concepts/overview/working-with-objects/names#names";

fn columns(kind: &Kind) -> Vec<Value> {
    let name = json!({"name": "Name", "type": "string", "format": "name", "priority": 0,
        "description": NAME_DESCRIPTION});
    let mut columns = Vec::new();
    match &kind.source {
        Source::BuiltIn(entry) => {
            columns.extend(entry.columns.definitions.iter().map(|(name, kind, priority)| {
                let format = if *name == "Name" { "name" } else { "" };
                json!({"name": name, "type": kind, "format": format, "description": "", "priority": priority})
            }));
        }
        Source::Custom(custom) => {
            columns.extend(custom.columns.iter().map(|column| {
                json!({"name": column.name, "type": column.kind, "format": column.format,
                    "description": column.description, "priority": column.priority})
            }));
        }
    }
    // The name is the first column, except in tables of Events.
    if kind.built_in() != "Event" {
        columns.insert(0, name);
    }
    columns
}
