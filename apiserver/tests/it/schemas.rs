//! Compares `src/schema/openapi.json`, the schemas of built-in kinds, with the OpenAPI document of kube-apiserver.

use std::collections::BTreeMap;

use expect_test::expect_file;
use serde_json::{Map, Value, json};

use crate::fixture::{Kind, on};

/// The OpenAPI documents, each with the definitions of the kinds that the embedded server has.
const ROOTS: [(&str, &[&str]); 8] = [
    (
        "api/v1",
        &[
            "core.v1.Namespace",
            "core.v1.ConfigMap",
            "core.v1.Secret",
            "core.v1.Service",
            "core.v1.ServiceAccount",
            "core.v1.PersistentVolumeClaim",
            "core.v1.Pod",
            "core.v1.Node",
            "core.v1.Event",
            "core.v1.Endpoints",
            "core.v1.PersistentVolume",
            "core.v1.ReplicationController",
            "meta.v1.DeleteOptions",
        ],
    ),
    (
        "apis/apps/v1",
        &[
            "apps.v1.Deployment",
            "apps.v1.ReplicaSet",
            "apps.v1.StatefulSet",
            "apps.v1.ControllerRevision",
            "apps.v1.DaemonSet",
            "autoscaling.v1.Scale",
        ],
    ),
    ("apis/batch/v1", &["batch.v1.Job", "batch.v1.CronJob"]),
    ("apis/policy/v1", &["policy.v1.PodDisruptionBudget"]),
    ("apis/coordination.k8s.io/v1", &["coordination.v1.Lease"]),
    ("apis/networking.k8s.io/v1", &["networking.v1.Ingress"]),
    ("apis/events.k8s.io/v1", &["events.v1.Event"]),
    ("apis/apiextensions.k8s.io/v1", &["apiextensions.v1.CustomResourceDefinition"]),
];

/// The definitions of one document, and those already taken from all documents.
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
                // The fieldsV1 of managedFields, and the data of a ControllerRevision.
                "FieldsV1" | "RawExtension" => {
                    json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
                }
                // Any JSON.
                "JSON" => json!({"x-kubernetes-preserve-unknown-fields": true}),
                // A schema or another type: a union in Go that OpenAPI cannot express.
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

    /// A schema without descriptions. Only the fields that Go always encodes keep their defaults, the zero values of their types:
    /// structs that are no pointers, and required fields.
    fn plain(&mut self, schema: &Value) -> Value {
        let mut plain = Map::new();
        for (keyword, value) in schema.as_object().unwrap() {
            let value = match (keyword.as_str(), value) {
                ("description" | "x-kubernetes-unions" | "x-kubernetes-group-version-kind", _) => continue,
                ("default", _) => continue,
                ("allOf", Value::Array(schemas)) => {
                    plain.extend(self.plain(&schemas[0]).as_object().unwrap().clone());
                    continue;
                }
                ("$ref", Value::String(path)) => {
                    let name = self.take(path.rsplit('/').next().unwrap());
                    format!("#/components/schemas/{name}").into()
                }
                ("properties", Value::Object(properties)) => {
                    let required = schema["required"].as_array();
                    let mut property = |(name, schema): (&String, &Value)| {
                        let mut plain = self.plain(schema);
                        let is_required = required.is_some_and(|all| all.iter().any(|one| one == name));
                        if let Some(default) = schema.get("default")
                            && (is_required || *default == json!({}))
                        {
                            plain["default"] = default.clone();
                        }
                        (name.clone(), plain)
                    };
                    properties.iter().map(&mut property).collect()
                }
                ("items" | "additionalProperties", Value::Object(_)) => self.plain(value),
                _ => value.clone(),
            };
            plain.insert(keyword.clone(), value);
        }
        plain.into()
    }
}

/// For a new version of Kubernetes, `UPDATE_EXPECT=1` writes the file.
#[tokio::test]
async fn the_schemas_of_built_in_kinds_equal_those_of_kube_apiserver() {
    on(&[Kind::Real], async |fixture| {
        let mut taken = BTreeMap::new();
        for (path, roots) in ROOTS {
            let document = fixture.raw(&format!("/openapi/v3/{path}")).await.body;
            let document = document["components"]["schemas"].as_object().unwrap();
            let mut schemas = Schemas { document, taken: &mut taken };
            for root in roots {
                let full_name = document.keys().find(|name| name.ends_with(&format!(".{root}")));
                schemas.take(full_name.unwrap());
            }
        }
        let lines: Vec<String> =
            taken.iter().map(|(name, schema)| format!("{}: {schema}", json!(name))).collect();
        expect_file!["../../src/schema/openapi.json"].assert_eq(&format!("{{\n{}\n}}\n", lines.join(",\n")));
    })
    .await;
}
