//! CustomResourceDefinitions, with the schemas of Rust types: structural ones, without `$ref`. See
//! <https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#specifying-a-structural-schema>.

use std::mem;

use listwatch_yaml::write;
use schemars::{JsonSchema, SchemaGenerator, generate::SchemaSettings};
use serde_json::{Value, json};

/// A CustomResourceDefinition: of a kind with namespaces and without a status, until a method says otherwise.
#[derive(Clone, Debug)]
pub struct Crd {
    definition: Value,
    /// Of all versions.
    columns: Vec<Value>,
}

impl Crd {
    /// The definition of a kind, with the schema of its `spec`.
    #[must_use]
    pub fn new(
        [group, version, kind, plural]: [&str; 4],
        singular: &str,
        description: &str,
        spec: Value,
    ) -> Crd {
        let schema = json!({
            "type": "object",
            "description": description,
            "required": ["spec"],
            "properties": {
                "apiVersion": {"type": "string"},
                "kind": {"type": "string"},
                "metadata": {"type": "object"},
                "spec": spec,
            },
        });
        let names = json!({
            "kind": kind,
            "listKind": format!("{kind}List"),
            "plural": plural,
            "singular": singular,
        });
        let version =
            json!({"name": version, "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}});
        let definition = json!({
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("{plural}.{group}")},
            "spec": {"group": group, "scope": "Namespaced", "names": names, "versions": [version]},
        });
        Crd { definition, columns: Vec::new() }
    }

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

    /// The definition as YAML, for `Runtime::definitions`.
    #[must_use]
    pub fn yaml(&self) -> String {
        write(&self.clone().value())
    }

    fn versions(&mut self) -> &mut Vec<Value> {
        self.definition["spec"]["versions"].as_array_mut().expect("a list since `new`")
    }

    /// The stored version, which is the newest.
    fn version(&mut self) -> &mut Value {
        self.versions().last_mut().expect("one since `new`")
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
