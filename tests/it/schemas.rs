//! What the embedded server knows about the fields of built-in kinds: it is what the real one says.

use std::collections::BTreeMap;

use expect_test::expect_file;
use serde_json::{Map, Value, json};

use crate::world::{Kind, on};

/// Where the kinds are that the embedded server has, and what the definition of each is called there.
const ROOTS: [(&str, &[&str]); 5] = [
    (
        "api/v1",
        &[
            "core.v1.Namespace",
            "core.v1.ConfigMap",
            "core.v1.Secret",
            "core.v1.Service",
            "core.v1.ServiceAccount",
            "core.v1.Pod",
            "core.v1.Node",
            "core.v1.Event",
            "meta.v1.DeleteOptions",
        ],
    ),
    ("apis/apps/v1", &["apps.v1.Deployment", "apps.v1.ReplicaSet", "autoscaling.v1.Scale"]),
    ("apis/coordination.k8s.io/v1", &["coordination.v1.Lease"]),
    ("apis/events.k8s.io/v1", &["events.v1.Event"]),
    ("apis/apiextensions.k8s.io/v1", &["apiextensions.v1.CustomResourceDefinition"]),
];

/// The definitions of one document, and those that were taken from it.
struct Schemas<'a> {
    document: &'a Map<String, Value>,
    taken: &'a mut BTreeMap<String, Value>,
}

impl Schemas<'_> {
    fn take(&mut self, full_name: &str) -> String {
        let last = full_name.rsplit('.').next().unwrap();
        // Two kinds are called Event, each with its own series.
        let name = if full_name.contains(".events.") { format!("events.v1.{last}") } else { last.to_owned() };
        if !self.taken.contains_key(&name) {
            self.taken.insert(name.clone(), Value::Null);
            let schema = match last {
                // What managedFields hold.
                "FieldsV1" => json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}),
                // Anything.
                "JSON" => json!({"x-kubernetes-preserve-unknown-fields": true}),
                // A schema, or something else that Go's code knows and OpenAPI does not.
                last if last.starts_with("JSONSchemaPropsOr") => {
                    self.take(full_name.split_once("Or").unwrap().0);
                    json!({"$ref": "#/components/schemas/JSONSchemaProps"})
                }
                _ => self.plain(&self.document[full_name].clone()),
            };
            self.taken.insert(name.clone(), schema);
        }
        name
    }

    /// Without what is for people, and without defaults: most of those in there are Go's zeros.
    fn plain(&mut self, schema: &Value) -> Value {
        let mut plain = Map::new();
        for (word, value) in schema.as_object().unwrap() {
            let value = match (word.as_str(), value) {
                (
                    "description" | "default" | "x-kubernetes-unions" | "x-kubernetes-group-version-kind",
                    _,
                ) => continue,
                ("allOf", Value::Array(one)) => {
                    plain.extend(self.plain(&one[0]).as_object().unwrap().clone());
                    continue;
                }
                ("$ref", Value::String(to)) => {
                    let name = self.take(to.rsplit('/').next().unwrap());
                    format!("#/components/schemas/{name}").into()
                }
                ("properties", Value::Object(properties)) => {
                    properties.iter().map(|(name, schema)| (name.clone(), self.plain(schema))).collect()
                }
                ("items" | "additionalProperties", Value::Object(_)) => self.plain(value),
                _ => value.clone(),
            };
            plain.insert(word.clone(), value);
        }
        plain.into()
    }
}

/// `UPDATE_EXPECT=1` writes the file, for the next version of Kubernetes.
#[tokio::test]
async fn the_schemas_of_the_built_in_kinds_are_those_of_the_real_server() {
    on(&[Kind::RealPaged], async |world| {
        let mut taken = BTreeMap::new();
        for (path, roots) in ROOTS {
            let text = world.raw(&format!("/openapi/v3/{path}")).await.unwrap();
            let document: Value = serde_json::from_str(&text).unwrap();
            let document = document["components"]["schemas"].as_object().unwrap();
            let mut schemas = Schemas { document, taken: &mut taken };
            for root in roots {
                let full_name = document.keys().find(|name| name.ends_with(&format!(".{root}")));
                schemas.take(full_name.unwrap());
            }
        }
        let lines: Vec<String> =
            taken.iter().map(|(name, schema)| format!("{}: {schema}", json!(name))).collect();
        expect_file!["../../apiserver/src/schemas.json"]
            .assert_eq(&format!("{{\n{}\n}}\n", lines.join(",\n")));
    })
    .await;
}
