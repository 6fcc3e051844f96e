//! CustomResourceDefinitions, made from the Rust types that read the objects.
//!
//! So a field's description, limits and default are written once, beside the field. The result is a structural
//! schema, without `$ref`: see
//! <https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#specifying-a-structural-schema>.

use std::mem;

use listwatch_yaml::write;
use schemars::{JsonSchema, Schema, SchemaGenerator, generate::SchemaSettings, json_schema};
use serde_json::{Value, json};

use crate::resource::{
    Resource,
    conditions::{MESSAGE_LENGTH_MAX, REASON_LENGTH_MAX},
};

/// The definition of a kind, with the type of its `spec`. The methods of [`Crd`] add the rest:
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
/// let definition = crd::of::<Page, PageSpec>("page", "A text in a ConfigMap.")
///     .status::<Conditions>()
///     .short_names(&["pg"])
///     .columns([crd::column("URL", "string", ".spec.url")]);
/// assert!(definition.yaml().contains("description: Where the text is."));
/// # #[cfg(feature = "testing")]
/// listwatch::testing::crd_fits::<Page>(&definition.yaml());
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
/// let definition = crd::of::<Page, PageSpec>("page", "A text in a ConfigMap.").status::<Conditions>();
/// let definition = definition.older_version("v1", |_schema| {});
/// # #[cfg(feature = "testing")]
/// listwatch::testing::crd_fits::<Page>(&definition.yaml());
/// ```
#[must_use]
pub fn of<K: Resource, Spec: JsonSchema>(singular: &str, description: &str) -> Crd {
    let schema = json!({
        "type": "object",
        "description": description,
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": schema_of::<Spec>(),
        },
    });
    let names = json!({
        "kind": K::KIND,
        "listKind": format!("{}List", K::KIND),
        "plural": K::PLURAL,
        "singular": singular,
    });
    let version =
        json!({"name": K::VERSION, "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}});
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{}.{}", K::PLURAL, K::GROUP)},
        "spec": {"group": K::GROUP, "scope": "Namespaced", "names": names, "versions": [version]},
    });
    Crd { definition, columns: Vec::new() }
}

/// A CustomResourceDefinition: of a kind with namespaces and without a status, until a method says otherwise.
#[derive(Clone, Debug)]
pub struct Crd {
    definition: Value,
    /// Of all versions.
    columns: Vec<Value>,
}

impl Crd {
    /// The objects have a status with conditions, as a subresource. Its default says that the operator has not observed the object yet.
    /// `kubectl get` shows the condition `Ready`.
    #[must_use]
    pub fn status<Status: JsonSchema>(mut self) -> Crd {
        self.version()["subresources"]["status"] = json!({});
        let mut status = schema_of::<Status>();
        status["default"] = json!({"observedGeneration": -1});
        self.schema(|schema| schema["properties"]["status"] = status)
    }

    /// The objects are in no namespace.
    #[must_use]
    pub fn cluster_scoped(mut self) -> Crd {
        self.definition["spec"]["scope"] = json!("Cluster");
        self
    }

    /// Other names for kubectl.
    #[must_use]
    pub fn short_names(mut self, names: &[&str]) -> Crd {
        self.definition["spec"]["names"]["shortNames"] = json!(names);
        self
    }

    /// The columns of `kubectl get`, by [`column()`] and [`wide`]. They stand between the columns that each kind has.
    #[must_use]
    pub fn columns(mut self, columns: impl IntoIterator<Item = Value>) -> Crd {
        self.columns = columns.into_iter().collect();
        self
    }

    /// The subresource `scale`, for `kubectl scale` and autoscalers. `replicas` is the path of the desired number of Pods.
    #[must_use]
    pub fn scale(mut self, replicas: &str) -> Crd {
        self.version()["subresources"]["scale"] = json!({
            "specReplicasPath": replicas,
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector",
        });
        self
    }

    /// Changes the schema of a whole object, for what no type says: a rule over several fields, or the names that `metadata` accepts.
    #[must_use]
    pub fn schema(mut self, change: impl FnOnce(&mut Value)) -> Crd {
        change(&mut self.version()["schema"]["openAPIV3Schema"]);
        self
    }

    /// Also serves an older version, with the schema that there is now, and this change of it.
    #[must_use]
    pub fn older_version(mut self, name: &str, change: impl FnOnce(&mut Value)) -> Crd {
        let mut older = self.version().clone();
        (older["name"], older["storage"]) = (json!(name), json!(false));
        change(&mut older["schema"]["openAPIV3Schema"]);
        self.versions().insert(0, older);
        self
    }

    /// The definition as JSON.
    #[must_use]
    pub fn value(mut self) -> Value {
        let condition = |field: &str| format!(".status.conditions[?(@.type==\"Ready\")].{field}");
        let mut columns = mem::take(&mut self.columns);
        if self.version()["subresources"]["status"].is_object() {
            columns.insert(0, column("Ready", "string", &condition("status")));
            columns.push(wide("Reason", "string", &condition("reason")));
            columns.push(wide("Message", "string", &condition("message")));
        }
        columns.push(column("Age", "date", ".metadata.creationTimestamp"));
        for version in self.versions() {
            version["additionalPrinterColumns"] = json!(columns);
        }
        self.definition
    }

    /// The definition as YAML, for [`Runtime::definitions`](crate::runtime::Runtime::definitions).
    #[must_use]
    pub fn yaml(&self) -> String {
        write(&self.clone().value())
    }

    fn versions(&mut self) -> &mut Vec<Value> {
        self.definition["spec"]["versions"].as_array_mut().expect("a list since `of`")
    }

    /// The stored version, which is the newest.
    fn version(&mut self) -> &mut Value {
        self.versions().last_mut().expect("one since `of`")
    }
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
