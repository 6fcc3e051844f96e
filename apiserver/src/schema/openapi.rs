//! The OpenAPI definitions of built-in types: those of kube-apiserver, without descriptions and most defaults.
//!
//! ```json
//! "ContainerPort": {"properties": {"containerPort": {"format": "int32", "type": "integer"}, …}, "type": "object"}
//! ```
//!
//! The definitions are in `openapi.json`, one per line. The test `tests/it/schemas.rs` takes them from the OpenAPI
//! document of kube-apiserver.

use std::sync::LazyLock;

use serde_json::{Map, Value};

/// The definition of `metadata`, the same in all kinds.
pub(crate) const OBJECT_META: &str = "ObjectMeta";

static DEFINITIONS: LazyLock<Map<String, Value>> = LazyLock::new(|| {
    let json = include_str!("openapi.json");
    serde_json::from_str(json).expect("a test writes it")
});

/// The prefix of each `$ref`.
const DEFINITIONS_AT: &str = "#/components/schemas/";

/// All definitions, for `/openapi/v3`.
pub(crate) fn definitions() -> &'static Map<String, Value> {
    &DEFINITIONS
}

/// The definition of a type: `PodSpec`.
pub(crate) fn definition(name: &str) -> &'static Value {
    DEFINITIONS.get(name).unwrap_or(&Value::Null)
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
        fn check(schema: &Value) {
            if let Some(name) = referred(schema) {
                assert!(definition(name).is_object(), "{name}");
            }
            match schema {
                Value::Object(map) => map.values().for_each(check),
                Value::Array(list) => list.iter().for_each(check),
                Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
            }
        }
        definitions().values().for_each(check);
        assert!(definitions().len() > 200);
    }
}
