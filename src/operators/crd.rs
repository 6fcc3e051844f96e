//! CustomResourceDefinitions, made from the Rust types that read the objects.
//!
//! So a field's description, limits and default are written once, beside the field. What comes out is a structural
//! schema, without `$ref`: see
//! <https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#specifying-a-structural-schema>.

use schemars::{JsonSchema, Schema, SchemaGenerator, generate::SchemaSettings, json_schema};
use serde_json::{Value, json};

/// Longest reason and message of a condition, in characters, as in `metav1.Condition`.
pub const REASON_LENGTH_MAX: usize = 1024;
/// See [`REASON_LENGTH_MAX`].
pub const MESSAGE_LENGTH_MAX: usize = 32_768;

/// The schema of a type, as the API server takes it.
#[must_use]
pub fn schema_of<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::openapi3().with(|settings| {
        settings.meta_schema = None;
        settings.inline_subschemas = true;
    });
    let mut schema = SchemaGenerator::new(settings).into_root_schema_for::<T>().to_value();
    if let Some(fields) = schema.as_object_mut() {
        fields.remove("title");
    }
    schema
}

/// The schema of a whole object: `spec` required, `status` not, and names that `metadata` accepts.
#[must_use]
pub fn object(description: &str, metadata: &Value, spec: &Value, status: &Value) -> Value {
    json!({
        "type": "object",
        "description": description,
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": metadata,
            "spec": spec,
            "status": status,
        },
    })
}

/// `status.conditions`, as in `metav1.Condition`.
pub fn conditions(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": {
            "type": "object",
            "required": ["type", "status", "reason", "message", "lastTransitionTime"],
            "properties": {
                "type": {
                    "type": "string", "maxLength": 316,
                    "description": "What is said: Ready, Available, Progressing, Stalled, Mutated.",
                    "pattern": "^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$",
                },
                "status": {
                    "type": "string", "enum": ["True", "False", "Unknown"],
                    "description": "Whether it is so.",
                },
                "reason": {
                    "type": "string", "minLength": 1, "maxLength": REASON_LENGTH_MAX,
                    "description": "Why, for programs: one CamelCase word.",
                    "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
                },
                "message": {"type": "string", "maxLength": MESSAGE_LENGTH_MAX, "description": "Why, for people."},
                "lastTransitionTime": {
                    "type": "string", "format": "date-time",
                    "description": "When status last changed.",
                },
                "observedGeneration": {
                    "type": "integer", "format": "int64", "minimum": 0,
                    "description": "The metadata.generation that this was said of.",
                },
            },
        },
    })
}
