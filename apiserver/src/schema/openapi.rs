//! The OpenAPI definitions of built-in types, from kube-apiserver, without descriptions and most defaults.
//!
//! ```json
//! "ContainerPort": {"properties": {"containerPort": {"format": "int32", "type": "integer"}, …}, "type": "object"}
//! ```
//!
//! The definitions are in `openapi.json`, one per line. The test `tests/it/schemas.rs` takes them from the OpenAPI
//! document of kube-apiserver.

use std::{
    collections::HashMap,
    sync::{LazyLock, OnceLock},
};

use serde_json::{Map, Value};

/// The definition of `metadata`, the same in all kinds.
pub(crate) const OBJECT_META: &str = "ObjectMeta";

/// A definition is parsed when it is first needed: most programs need a few of them.
struct Definition {
    json: &'static str,
    parsed: OnceLock<Value>,
}

static DEFINITIONS: LazyLock<HashMap<&str, Definition>> = LazyLock::new(|| {
    let lines = include_str!("openapi.json").lines();
    let named = lines.filter_map(|line| line.strip_prefix('"')?.trim_end_matches(',').split_once("\": "));
    named.map(|(name, json)| (name, Definition { json, parsed: OnceLock::new() })).collect()
});

/// The prefix of each `$ref`.
const DEFINITIONS_AT: &str = "#/components/schemas/";

/// Adds the definitions that schemas refer to, for `/openapi/v3`.
pub(crate) fn add_definitions(schemas: &mut Map<String, Value>) {
    let mut names = Vec::new();
    schemas.values().for_each(|schema| references(schema, &mut names));
    while let Some(name) = names.pop() {
        if !schemas.contains_key(&name) {
            references(definition(&name), &mut names);
            schemas.insert(name.clone(), definition(&name).clone());
        }
    }
}

/// The names of the definitions in a schema.
fn references(schema: &Value, names: &mut Vec<String>) {
    names.extend(referred(schema).map(str::to_owned));
    match schema {
        Value::Object(map) => map.values().for_each(|schema| references(schema, names)),
        Value::Array(list) => list.iter().for_each(|schema| references(schema, names)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// The name of the definition of a kind. Of two kinds with the same name, one has a longer name: `events.v1.Event`.
pub(crate) fn name_of(group: &str, version: &str, kind: &str) -> &'static str {
    let group = group.split('.').next().unwrap_or_default();
    let long = format!("{group}.{version}.{kind}");
    let entry = DEFINITIONS.get_key_value(long.as_str()).or_else(|| DEFINITIONS.get_key_value(kind));
    entry.map_or("", |(name, _)| name)
}

/// The definition of a type: `PodSpec`.
pub(crate) fn definition(name: &str) -> &'static Value {
    let Some(Definition { json, parsed }) = DEFINITIONS.get(name) else { return &Value::Null };
    parsed.get_or_init(|| serde_json::from_str(json).expect("a test writes it"))
}

/// The definition that a `$ref` names. Schemas of CRDs may not contain a `$ref`.
pub(crate) fn referred(schema: &Value) -> Option<&str> {
    schema["$ref"].as_str()?.strip_prefix(DEFINITIONS_AT)
}

/// A schema, or the definition that it refers to, directly or through other definitions.
pub(crate) fn resolved(schema: &Value) -> &Value {
    referred(schema).map_or(schema, |name| resolved(definition(name)))
}

/// Whether Go decodes the type with its own UnmarshalJSON, which does not report unknown fields. These types are a
/// schema or, instead, a boolean or a list.
pub(crate) fn decodes_itself(schema: &Value) -> bool {
    referred(schema).is_some_and(|name| name.starts_with("JSONSchemaPropsOr"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reference_leads_somewhere() {
        let mut names = Vec::new();
        for name in DEFINITIONS.keys() {
            references(definition(name), &mut names);
        }
        assert!(names.iter().all(|name| definition(name).is_object()));
        assert!(DEFINITIONS.len() > 400);
    }
}
