//! Writes values as kube-apiserver does: in objects of built-in kinds, and in ObjectMeta of all kinds.
//!
//! ```text
//! {"priority": 0, "hostname": "", "nodeSelector": {}, "resources": {"limits": {"cpu": "1000m"}}}  is stored as
//! {"priority": 0, "resources": {"limits": {"cpu": "1"}}}
//! ```
//!
//! A field with the zero value of its type is omitted (`omitempty`), unless it is a pointer: `priority` is an `*int32`. OpenAPI
//! does not show pointers. `go_pointer_fields.txt` lists them, from `types.go` of k8s.io/api and k8s.io/apimachinery 0.36.
//!
//! A struct that is not a pointer, such as the `metadata` of a pod template, is never omitted: OpenAPI has a default for it. The same
//! holds for most required fields.

use std::{
    collections::{HashMap, HashSet},
    sync::LazyLock,
};

use chrono::DateTime;
use listwatch_formats::quantity::canonical;
use serde_json::{Map, Value};

use crate::{
    json::make_whole,
    schema::openapi::{definition, referred, resolved},
};

/// The format of a metav1.Time.
pub(crate) const TIME: &str = "%Y-%m-%dT%H:%M:%SZ";
/// The format of a metav1.MicroTime.
pub(crate) const MICRO_TIME: &str = "%Y-%m-%dT%H:%M:%S%.6fZ";

/// For each definition, the scalar fields that are encoded even with the zero value of their type.
static POINTERS: LazyLock<HashMap<&str, HashSet<&str>>> = LazyLock::new(|| {
    let lines = include_str!("go_pointer_fields.txt").lines().filter_map(|line| line.split_once(": "));
    lines.map(|(definition, fields)| (definition, fields.split(' ').collect())).collect()
});

/// Changes a value as if Go had decoded and encoded it: removes fields that are null, zero, or an empty list or map,
/// replaces null in a list or a map with the zero value of its type, and writes quantities, times and whole floats in their canonical form.
pub(crate) fn normalize(value: &mut Value, name: &str) {
    normalize_fields(value, name, definition(name));
}

/// `name` is the definition of the schema, or empty for the schema of a field.
fn normalize_fields(value: &mut Value, name: &str, schema: &Value) {
    let rewritten = match referred(schema) {
        Some("Quantity") => canonical(value),
        Some("Time") => utc(value, TIME),
        Some("MicroTime") => utc(value, MICRO_TIME),
        Some("JSON") => return make_whole(value),
        Some(name) => return normalize(value, name),
        None => None,
    };
    if let Some(text) = rewritten {
        *value = text.into();
    }
    match value {
        Value::Object(map) => {
            for (field, default) in always_encoded(schema) {
                if map.get(field).is_none_or(Value::is_null) {
                    map.insert(field.clone(), default.clone());
                }
            }
            for (field, value) in map.iter_mut() {
                if let Some(schema) = schema["properties"].get(field) {
                    normalize_fields(value, "", schema);
                } else {
                    normalize_item(value, &schema["additionalProperties"]);
                }
            }
            let required = schema["required"].as_array();
            let is_required = |field: &str| required.is_some_and(|all| all.iter().any(|one| one == field));
            let is_pointer = |field: &str| POINTERS.get(name).is_some_and(|all| all.contains(field));
            map.retain(|field, value| match schema["properties"].get(field) {
                Some(_) if value.is_null() => false,
                Some(schema) => is_required(field) || is_pointer(field) || !is_empty(value, resolved(schema)),
                None => true,
            });
        }
        Value::Array(items) => items.iter_mut().for_each(|item| normalize_item(item, &schema["items"])),
        Value::Number(_) if schema["type"] == "number" => make_whole(value),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// The fields that Go encodes always, each with the zero value of its type.
fn always_encoded(schema: &Value) -> impl Iterator<Item = (&String, &Value)> {
    let properties = schema["properties"].as_object().into_iter().flatten();
    properties.filter_map(|(field, schema)| Some((field, schema.get("default")?)))
}

/// A new struct of a definition, as Go encodes it: `{"metadata": {}, "spec": {"containers": null}}`. A required field without a
/// default is a pointer, a list or a map, so it is null.
pub(crate) fn new_struct(name: &str) -> Value {
    let schema = definition(name);
    let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let mut fields: Map<String, Value> = required.map(|field| (field.to_owned(), Value::Null)).collect();
    for (field, default) in always_encoded(schema) {
        let of_struct = referred(&schema["properties"][field]).filter(|_| default.is_object());
        fields.insert(field.clone(), of_struct.map_or_else(|| default.clone(), new_struct));
    }
    Value::Object(fields)
}

/// A time in UTC: `2024-01-01T00:00:00Z` for `2024-01-01T01:00:00.5+01:00`.
fn utc(value: &Value, format: &str) -> Option<String> {
    let time = DateTime::parse_from_rfc3339(value.as_str()?).ok()?;
    Some(time.to_utc().format(format).to_string())
}

fn normalize_item(value: &mut Value, schema: &Value) {
    if value.is_null() {
        *value = zero(schema);
    }
    normalize_fields(value, "", schema);
}

/// Whether `omitempty` omits the value. All fields have `omitempty`, except the required ones.
fn is_empty(value: &Value, schema: &Value) -> bool {
    match value {
        Value::Array(items) => items.is_empty() && schema["type"] == "array",
        Value::Object(map) => map.is_empty() && schema.get("additionalProperties").is_some(),
        Value::Bool(is) => !is && schema["type"] == "boolean",
        Value::Number(number) => number.as_f64() == Some(0.0) && schema["type"] == "integer",
        Value::String(text) => text.is_empty() && schema["type"] == "string",
        Value::Null => false,
    }
}

fn zero(schema: &Value) -> Value {
    match (referred(schema), resolved(schema)["type"].as_str()) {
        (Some("Quantity"), _) => "0".into(),
        (_, Some("object")) => Value::Object(Map::new()),
        (_, Some("string")) => "".into(),
        (_, Some("integer")) => 0.into(),
        (_, _) => Value::Null,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_null_is_no_field_or_the_zero_of_an_item() {
        let mut pod = json!({
            "metadata": {"labels": {"a": null}, "annotations": {}, "finalizers": [null]},
            "spec": {
                "containers": [{"name": "c", "ports": null, "args": [null, "b"], "env": [null, {"name": "A", "value": null}],
                    "resources": {"limits": {"cpu": null}}}],
                "initContainers": [], "nodeSelector": {}, "volumes": [{"name": "v", "emptyDir": {}}],
                "securityContext": {"supplementalGroups": [null]}, "nobodyKnows": null,
            },
        });
        normalize(&mut pod, "Pod");
        let wanted = json!({
            "metadata": {"labels": {"a": ""}, "finalizers": [""]},
            "spec": {
                "containers": [{"name": "c", "args": ["", "b"], "env": [{"name": ""}, {"name": "A"}],
                    "resources": {"limits": {"cpu": "0"}}}],
                "volumes": [{"name": "v", "emptyDir": {}}],
                "securityContext": {"supplementalGroups": [0]}, "nobodyKnows": null,
            },
            "status": {},
        });
        assert_eq!(pod, wanted);
        // A required field is encoded even if it is empty, and a struct even if it is missing.
        let mut pod = json!({"spec": {"containers": []}});
        normalize(&mut pod, "Pod");
        assert_eq!(pod, json!({"metadata": {}, "spec": {"containers": []}, "status": {}}));
    }

    #[test]
    fn a_new_struct_has_what_go_always_encodes() {
        let template = json!({"metadata": {}, "spec": {"containers": null}});
        let wanted = json!({"metadata": {}, "status": {}, "spec": {
            "schedule": "", "jobTemplate": {"metadata": {}, "spec": {"template": template}}}});
        assert_eq!(new_struct("CronJob"), wanted);
    }

    #[test]
    fn a_zero_is_left_out_unless_the_field_is_a_pointer() {
        let mut spec = json!({"hostIPC": false, "hostname": "", "hostUsers": false, "priority": 0,
            "containers": [{"name": "", "tty": false, "image": "i"}]});
        normalize(&mut spec, "PodSpec");
        let container = json!({"name": "", "image": "i", "resources": {}});
        let wanted = json!({"hostUsers": false, "priority": 0, "containers": [container]});
        assert_eq!(spec, wanted);
        for (definition, fields) in &*POINTERS {
            for field in fields {
                assert!(
                    !super::definition(definition)["properties"][field].is_null(),
                    "{definition}.{field}"
                );
            }
        }
    }
}
