//! CustomResourceDefinitions, made from the Rust types that read the objects.
//!
//! So a field's description, limits and default are written once, beside the field. The result is a structural
//! schema, without `$ref`: see
//! <https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#specifying-a-structural-schema>.

use schemars::{JsonSchema, Schema, SchemaGenerator, generate::SchemaSettings, json_schema};
use serde_json::{Value, json};

use crate::resource::{
    Resource,
    conditions::{MESSAGE_LENGTH_MAX, REASON_LENGTH_MAX},
};

/// The whole definition of a kind that has one version, with the types of its `spec` and its `status`:
///
/// ```
/// # use listwatch::{children::Conditions, crd, resource::ObjectMeta};
/// # #[derive(serde::Serialize, serde::Deserialize)] struct Page { metadata: ObjectMeta, spec: PageSpec }
/// # listwatch::kind!(Page, "example.com", "v1", "pages");
/// #[derive(serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
/// struct PageSpec {
///     /// Where the text is.
///     #[schemars(regex(pattern = "^https?://"))]
///     url: String,
/// }
/// let definition = crd::of::<Page, PageSpec, Conditions>("page", "A text in a ConfigMap.");
/// let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
/// assert_eq!(schema["properties"]["spec"]["properties"]["url"]["description"], "Where the text is.");
/// # #[cfg(feature = "testing")]
/// listwatch::testing::crd_fits::<Page>(&definition.to_string());
/// ```
///
/// A kind that becomes `v2` is still served as `v1`. Between versions the API server only changes `apiVersion`, unless a webhook converts, and
/// drops the fields that a version does not name. So both have the same fields; only defaults, limits and descriptions may differ. The
/// operator reads and stores the version of its type:
///
/// ```
/// # use listwatch::{children::Conditions, crd, resource::ObjectMeta};
/// # #[derive(serde::Serialize, serde::Deserialize)] struct Page { metadata: ObjectMeta, spec: PageSpec }
/// # listwatch::kind!(Page, "example.com", "v2", "pages");
/// # #[derive(serde::Serialize, serde::Deserialize, schemars::JsonSchema)] struct PageSpec { url: String }
/// let mut definition = crd::of::<Page, PageSpec, Conditions>("page", "A text in a ConfigMap.");
/// let versions = definition["spec"]["versions"].as_array_mut().expect("a list");
/// let mut v1 = versions[0].clone();
/// (v1["name"], v1["storage"]) = ("v1".into(), false.into());
/// versions.insert(0, v1);
/// # #[cfg(feature = "testing")]
/// listwatch::testing::crd_fits::<Page>(&definition.to_string());
/// ```
#[must_use]
pub fn of<K: Resource, Spec: JsonSchema, Status: JsonSchema>(singular: &str, description: &str) -> Value {
    let metadata = json!({"type": "object"});
    let schema = object(description, &metadata, &schema_of::<Spec>(), &status_of::<Status>());
    definition::<K>(singular, &[], &[version::<K>(K::VERSION, &schema, &[])])
}

/// The definition of a kind with namespaces.
#[must_use]
pub fn definition<K: Resource>(singular: &str, short_names: &[&str], versions: &[Value]) -> Value {
    let mut names = json!({
        "kind": K::KIND,
        "listKind": format!("{}List", K::KIND),
        "plural": K::PLURAL,
        "singular": singular,
    });
    if !short_names.is_empty() {
        names["shortNames"] = json!(short_names);
    }
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{}.{}", K::PLURAL, K::GROUP)},
        "spec": {"group": K::GROUP, "scope": "Namespaced", "names": names, "versions": versions},
    })
}

/// A served version of a kind, with the subresource `status`. It is stored if it is the version that we read. The columns
/// for `kubectl get` stand between those that each kind has.
#[must_use]
pub fn version<K: Resource>(name: &str, schema: &Value, columns: &[Value]) -> Value {
    let condition = |field: &str| format!(".status.conditions[?(@.type==\"Ready\")].{field}");
    let ready = column("Ready", "string", &condition("status"));
    let reason = wide("Reason", "string", &condition("reason"));
    let message = wide("Message", "string", &condition("message"));
    let age = column("Age", "date", ".metadata.creationTimestamp");
    let columns = [&[ready], columns, &[reason, message, age]].concat();
    json!({
        "name": name,
        "served": true,
        "storage": name == K::VERSION,
        "schema": {"openAPIV3Schema": schema},
        "subresources": {"status": {}},
        "additionalPrinterColumns": columns,
    })
}

/// A column of `kubectl get`.
#[must_use]
pub fn column(name: &str, kind: &str, path: &str) -> Value {
    json!({"name": name, "type": kind, "jsonPath": path})
}

/// A column of `kubectl get -o wide`.
#[must_use]
pub fn wide(name: &str, kind: &str, path: &str) -> Value {
    json!({"name": name, "type": kind, "jsonPath": path, "priority": 1})
}

/// The subresource `scale`, for `kubectl scale` and autoscalers. `replicas` is the path of the desired number of Pods.
#[must_use]
pub fn scale(replicas: &str) -> Value {
    json!({
        "specReplicasPath": replicas,
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    })
}

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
    plain_enums(&mut schema);
    schema
}

/// The schema of a status. Its default says that the operator has not observed the object yet.
#[must_use]
pub fn status_of<T: JsonSchema>() -> Value {
    let mut schema = schema_of::<T>();
    schema["default"] = json!({"observedGeneration": -1});
    schema
}

/// Makes a list of the values of each enum. Where its variants have descriptions, they come as one schema each, and a
/// structural schema allows no descriptions there.
fn plain_enums(schema: &mut Value) {
    let variants = schema["oneOf"].as_array().map(Vec::as_slice).unwrap_or_default();
    let values = variants.iter().map(|one| one.get("const").or_else(|| one["enum"].get(0)).cloned());
    let values: Option<Vec<Value>> = values.collect();
    match schema {
        Value::Object(fields) => {
            if let Some(values) = values.filter(|values| !values.is_empty()) {
                fields.remove("oneOf");
                fields.insert("type".to_owned(), json!("string"));
                fields.insert("enum".to_owned(), json!(values));
            }
            fields.values_mut().for_each(plain_enums);
        }
        Value::Array(items) => items.iter_mut().for_each(plain_enums),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
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
                    "description": "Type of the condition: Ready, Available, Progressing, Stalled, Mutated.",
                    "pattern": "^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$",
                },
                "status": {
                    "type": "string", "enum": ["True", "False", "Unknown"],
                    "description": "Status of the condition.",
                },
                "reason": {
                    "type": "string", "minLength": 1, "maxLength": REASON_LENGTH_MAX,
                    "description": "Machine-readable reason: one CamelCase word.",
                    "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
                },
                "message": {"type": "string", "maxLength": MESSAGE_LENGTH_MAX, "description": "Human-readable details."},
                "lastTransitionTime": {
                    "type": "string", "format": "date-time",
                    "description": "Time of the last change of status.",
                },
                "observedGeneration": {
                    "type": "integer", "format": "int64", "minimum": 0,
                    "description": "The metadata.generation for which the condition was computed.",
                },
            },
        },
    })
}
