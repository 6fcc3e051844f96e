//! Custom resources: one Kind for each version of a CRD, with its printer columns and its storage version.
//!
//! ```yaml
//! additionalPrinterColumns: [{name: Ready, type: string, jsonPath: '.status.conditions[?(@.type=="Ready")].status'}]
//! subresources: {status: {}, scale: {specReplicasPath: .spec.replicas, statusReplicasPath: .status.replicas}}
//! ```
//!
//! Defaults and validation of the CRD itself are in `crd.rs`.

use std::{collections::BTreeMap, sync::Arc};

use listwatch_formats::time::parse_time;
use serde_json::Value;

use crate::{
    clock::Clock,
    json::json,
    kinds::{
        Kind, ScalePaths, Source,
        conversion::Conversion,
        crd::versions,
        field_checks::{each, text},
        group_version,
        json_path::JsonPath,
        version_priority,
    },
    schema::Schema,
    status::StatusError,
};

/// The part of a Kind that only custom resources have.
#[derive(Debug)]
pub(crate) struct Custom {
    /// Name of the CRD.
    pub(crate) definition: String,
    pub(crate) schema: Arc<Schema>,
    /// By apiVersion: of all versions of the CRD, also those that are not served.
    pub(crate) schemas: Arc<BTreeMap<String, Arc<Schema>>>,
    pub(crate) storage_api_version: String,
    /// The webhook that converts between the versions.
    pub(crate) conversion: Option<Arc<Conversion>>,
    pub(crate) columns: Vec<Column>,
    /// The `deprecationWarning`, sent as a Warning header.
    pub(crate) deprecation: Option<String>,
}

/// One entry of `additionalPrinterColumns`.
#[derive(Clone, Debug)]
pub(crate) struct Column {
    pub(crate) name: String,
    pub(crate) kind: String,
    pub(crate) format: String,
    pub(crate) description: String,
    pub(crate) priority: i64,
    path: JsonPath,
}

impl Custom {
    pub(crate) fn cells(&self, object: &Value, clock: &Clock) -> Vec<Value> {
        // A bookmark has no name.
        let mut cells = vec![object["metadata"]["name"].as_str().unwrap_or_default().into()];
        for column in &self.columns {
            let value = column.path.first(object);
            cells.push(value.map_or(Value::Null, |value| cell(&column.kind, value, clock)));
        }
        cells
    }

    /// Converts an object to the storage version. Its defaults are those that kube-apiserver sets when it reads the object.
    pub(crate) fn to_storage(&self, object: &mut Value) -> Result<(), StatusError> {
        self.convert(object, &self.storage_api_version)?;
        self.refresh(object);
        Ok(())
    }

    /// Converts an object to a version, whose defaults are not set: only a request in that version sets them.
    pub(crate) fn convert(&self, object: &mut Value, api_version: &str) -> Result<(), StatusError> {
        if object["apiVersion"] == api_version {
            return Ok(());
        }
        self.convert_whole(object, api_version)?;
        if let Some(schema) = self.schemas.get(api_version) {
            schema.prune(object);
            schema.drop_nulls(object);
        }
        Ok(())
    }

    /// Converts an object to another version, with the fields that are not in its schema.
    pub(crate) fn convert_whole(&self, object: &mut Value, api_version: &str) -> Result<(), StatusError> {
        match &self.conversion {
            Some(conversion) => *object = conversion.convert(object, api_version)?,
            None => object["apiVersion"] = api_version.into(),
        }
        Ok(())
    }

    /// Prunes a stored object and sets its defaults, as kube-apiserver does with each object that it reads from etcd. The
    /// object stays in the version in which it was written last.
    pub(crate) fn refresh(&self, object: &mut Value) {
        if let Some(schema) = self.schemas.get(text(&object["apiVersion"])) {
            schema.prune(object);
            schema.drop_nulls(object);
        }
        self.set_defaults(object);
    }

    /// Sets the defaults of the object's own version.
    pub(crate) fn set_defaults(&self, object: &mut Value) {
        if let Some(schema) = self.schemas.get(text(&object["apiVersion"])) {
            schema.set_defaults(object);
        }
    }
}

/// A value in the type of its column, or null. kubectl prints it unchanged.
fn cell(kind: &str, value: &Value, clock: &Clock) -> Value {
    match (kind, value) {
        ("string", Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_)) => {
            json(value).into()
        }
        ("integer", Value::Number(number)) if number.is_f64() => {
            number.as_f64().map(|number| number.trunc() as i64).into()
        }
        ("string", Value::String(_))
        | ("number" | "integer", Value::Number(_))
        | ("boolean", Value::Bool(_)) => value.clone(),
        ("string", Value::Null) => "<no value>".into(),
        ("date", Value::String(text)) if matches!(text.as_str(), "" | "null") => "<unknown>".into(),
        ("date", Value::String(text)) if parse_time(text).is_err() => "<invalid>".into(),
        ("date", Value::String(_)) => clock.age(value).into(),
        _ => Value::Null,
    }
}

/// Converts `.spec.replicas` to the JSON pointer `/spec/replicas`.
fn pointer(path: &Value) -> String {
    text(path).replace('.', "/")
}

/// The kinds of a valid CRD, one for each served version.
pub(crate) fn kinds(crd: &Value) -> Vec<Kind> {
    let (spec, names) = (&crd["spec"], &crd["spec"]["names"]);
    let list = |value: &Value| -> Vec<String> { each(value).map(|value| text(value).to_owned()).collect() };
    let Some(storage) = versions(crd).find(|version| version["storage"] == true) else { return Vec::new() };
    let api_version = |version: &Value| group_version(text(&spec["group"]), text(&version["name"]));
    let compiled = |version: &Value| {
        let schema = Schema::compile(&version["schema"]["openAPIV3Schema"]).ok()?;
        Some((api_version(version), Arc::new(schema)))
    };
    let schemas: Arc<BTreeMap<_, _>> = Arc::new(versions(crd).filter_map(compiled).collect());
    let conversion = Conversion::of(crd);
    let mut kinds = Vec::new();
    for version in versions(crd).filter(|version| version["served"] == true) {
        let Some(schema) = schemas.get(&api_version(version)) else { continue };
        let scale = &version["subresources"]["scale"];
        let selectable = each(&version["selectableFields"]);
        let custom = Custom {
            definition: text(&crd["metadata"]["name"]).to_owned(),
            schema: Arc::clone(schema),
            schemas: Arc::clone(&schemas),
            storage_api_version: api_version(storage),
            conversion: conversion.clone(),
            columns: columns(version),
            deprecation: deprecation(spec, version),
        };
        kinds.push(Kind {
            group: text(&spec["group"]).to_owned(),
            version: text(&version["name"]).to_owned(),
            plural: text(&names["plural"]).to_owned(),
            singular: text(&names["singular"]).to_owned(),
            kind: text(&names["kind"]).to_owned(),
            list_kind: text(&names["listKind"]).to_owned(),
            short_names: list(&names["shortNames"]),
            categories: list(&names["categories"]),
            namespaced: spec["scope"] == "Namespaced",
            has_status: version["subresources"]["status"].is_object(),
            scale: scale.is_object().then(|| ScalePaths {
                spec: pointer(&scale["specReplicasPath"]),
                status: pointer(&scale["statusReplicasPath"]),
                selector: scale["labelSelectorPath"]
                    .is_string()
                    .then(|| pointer(&scale["labelSelectorPath"])),
            }),
            fields: selectable
                .map(|field| text(&field["jsonPath"]).trim_start_matches('.').to_owned())
                .collect(),
            source: Source::Custom(Box::new(custom)),
        });
    }
    kinds
}

fn deprecation(spec: &Value, version: &Value) -> Option<String> {
    if version["deprecated"] != true {
        return None;
    }
    if let Some(text) = version["deprecationWarning"].as_str() {
        return Some(text.to_owned());
    }
    let named = |version: &Value| {
        format!("{}/{} {}", text(&spec["group"]), text(&version["name"]), text(&spec["names"]["kind"]))
    };
    let priority = |version: &Value| version_priority(text(&version["name"]));
    let versions = each(&spec["versions"]);
    let instead = versions
        .filter(|other| {
            other["served"] == true && other["deprecated"] != true && priority(other) > priority(version)
        })
        .max_by_key(|other| priority(other));
    let instead = instead.map(|other| format!("; use {}", named(other))).unwrap_or_default();
    Some(format!("{} is deprecated{instead}", named(version)))
}

fn columns(version: &Value) -> Vec<Column> {
    let mut columns = Vec::new();
    for column in each(&version["additionalPrinterColumns"]) {
        let path = text(&column["jsonPath"]);
        // As in kube-apiserver, the columns end at a path that cannot be parsed.
        let Some(parsed) = JsonPath::parse(path) else { return columns };
        let description = match column["description"].as_str() {
            Some(description) => description.to_owned(),
            None => format!("Custom resource definition column (in JSONPath format): {path}"),
        };
        columns.push(Column {
            name: text(&column["name"]).to_owned(),
            kind: text(&column["type"]).to_owned(),
            format: text(&column["format"]).to_owned(),
            description,
            priority: column["priority"].as_i64().unwrap_or(0),
            path: parsed,
        });
    }
    if columns.is_empty()
        && let Some(path) = JsonPath::parse(".metadata.creationTimestamp")
    {
        columns.push(Column {
            name: "Age".to_owned(),
            kind: "date".to_owned(),
            format: String::new(),
            description:
                "CreationTimestamp is a timestamp representing the server time when this object was created."
                    .to_owned(),
            priority: 0,
            path,
        });
    }
    columns
}
