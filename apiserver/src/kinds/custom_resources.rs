//! Custom resources: one Kind for each version of a CRD, with its printer columns and its storage version.
//!
//! ```yaml
//! additionalPrinterColumns: [{name: Ready, type: string, jsonPath: '.status.conditions[?(@.type=="Ready")].status'}]
//! subresources: {status: {}, scale: {specReplicasPath: .spec.replicas, statusReplicasPath: .status.replicas}}
//! ```
//!
//! Defaults and validation of the CRD itself are in `crd.rs`.

use std::{collections::BTreeMap, sync::Arc};

use serde_json::Value;

use crate::{
    clock::{Clock, human_duration},
    json::json,
    kinds::{
        Kind, ScalePaths, Source,
        conversion::Conversion,
        crd::versions,
        field_checks::{each, text},
        group_version, version_priority,
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
    storage_api_version: String,
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
    path: String,
}

impl Custom {
    pub(crate) fn cells(&self, object: &Value, clock: &Clock) -> Vec<Value> {
        // A bookmark has no name.
        let mut cells = vec![object["metadata"]["name"].as_str().unwrap_or_default().into()];
        for column in &self.columns {
            let value = at_path(object, &column.path).unwrap_or(&Value::Null);
            cells.push(cell(&column.kind, value, clock));
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
        match &self.conversion {
            Some(conversion) => *object = conversion.convert(object, api_version)?,
            None => object["apiVersion"] = api_version.into(),
        }
        if let Some(schema) = self.schemas.get(api_version) {
            schema.prune(object);
            schema.drop_nulls(object);
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
        ("date", Value::String(_)) => match clock.since(value) {
            Some(age) => human_duration(age).into(),
            None => "<invalid>".into(),
        },
        _ => Value::Null,
    }
}

/// The first result of a JSON path: `.status.conditions[?(@.type=="Ready")].status`, `.status.addresses[*].value`,
/// `.spec.ports[0].port`, `.metadata.labels.a\.b`. The dialect is kubectl's, not RFC 9535, which the crates implement: there, a
/// path begins with `$`, and a dot is not escaped. Filters support only equality. A path with `..` has no result here.
pub fn at_path<'a>(object: &'a Value, path: &str) -> Option<&'a Value> {
    let mut value = object;
    let mut rest = path.trim_start_matches('$');
    while !rest.is_empty() {
        if let Some(inside) = rest.strip_prefix('[') {
            let (inside, after) = inside.split_once(']')?;
            rest = after;
            if inside == "*" {
                return value.as_array()?.iter().find_map(|item| at_path(item, rest));
            } else if let Some(filter) = inside.strip_prefix("?(@.").and_then(|text| text.strip_suffix(')')) {
                let (field, wanted) = filter.split_once("==")?;
                let wanted = wanted.trim().trim_matches(['"', '\'']);
                let same = |value: &Value| match value.as_str() {
                    Some(text) => text == wanted,
                    None => value.to_string().as_str() == wanted,
                };
                let mut found = value.as_array()?.iter().filter(|item| same(&item[field.trim()]));
                return found.find_map(|item| at_path(item, rest));
            } else if let Ok(index) = inside.parse::<usize>() {
                value = value.get(index)?;
            } else {
                value = value.get(inside.trim_matches(['"', '\'']))?;
            }
            continue;
        }
        rest = rest.strip_prefix('.').unwrap_or(rest);
        let mut name = String::new();
        let mut end = rest.len();
        let mut escaped = false;
        for (at, c) in rest.char_indices() {
            match c {
                '\\' if !escaped => escaped = true,
                '.' | '[' if !escaped => {
                    end = at;
                    break;
                }
                c => {
                    name.push(c);
                    escaped = false;
                }
            }
        }
        rest = &rest[end..];
        value = value.get(&name)?;
    }
    Some(value)
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
            path: path.to_owned(),
        });
    }
    if columns.is_empty() {
        columns.push(Column {
            name: "Age".to_owned(),
            kind: "date".to_owned(),
            format: String::new(),
            description:
                "CreationTimestamp is a timestamp representing the server time when this object was created."
                    .to_owned(),
            priority: 0,
            path: ".metadata.creationTimestamp".to_owned(),
        });
    }
    columns
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn printer_columns_find_their_value() {
        let object = json!({
            "metadata": {"labels": {"a.b/c": "label"}},
            "spec": {"ports": [{"port": 80}, {"name": "http"}]},
            "status": {"conditions": [{"type": "Stalled", "status": "False"}, {"type": "Ready", "status": "True"}]},
        });
        let at = |path| at_path(&object, path).cloned();
        assert_eq!(at(".spec.ports[0].port"), Some(json!(80)));
        assert_eq!(at(r#".status.conditions[?(@.type=="Ready")].status"#), Some(json!("True")));
        assert_eq!(at(r".metadata.labels.a\.b/c"), Some(json!("label")));
        assert_eq!(at(".spec.ports[*].name"), Some(json!("http")));
        assert_eq!(at(".spec.ports[*]"), Some(json!({"port": 80})));
        assert_eq!(at(".spec.ports[*].host"), None);
        assert_eq!(at(".status.phase"), None);
    }
}
