//! Compares `src/schema/openapi.json`, the schemas of built-in kinds, with the OpenAPI document of kube-apiserver.

use std::collections::BTreeMap;

use expect_test::expect_file;
use listwatch_control_plane::eventually;
use serde_json::{Map, Value, json};

use crate::fixture::{Kind, on};

/// The OpenAPI documents. Of two definitions with the same name, the one of the first document has the short name.
const DOCUMENTS: [&str; 22] = [
    "api/v1",
    "apis/apps/v1",
    "apis/batch/v1",
    "apis/policy/v1",
    "apis/coordination.k8s.io/v1",
    "apis/networking.k8s.io/v1",
    "apis/events.k8s.io/v1",
    "apis/apiextensions.k8s.io/v1",
    "apis/admissionregistration.k8s.io/v1",
    "apis/apiregistration.k8s.io/v1",
    "apis/authentication.k8s.io/v1",
    "apis/authorization.k8s.io/v1",
    "apis/autoscaling/v2",
    "apis/autoscaling/v1",
    "apis/certificates.k8s.io/v1",
    "apis/discovery.k8s.io/v1",
    "apis/flowcontrol.apiserver.k8s.io/v1",
    "apis/node.k8s.io/v1",
    "apis/rbac.authorization.k8s.io/v1",
    "apis/resource.k8s.io/v1",
    "apis/scheduling.k8s.io/v1",
    "apis/storage.k8s.io/v1",
];

/// The definitions of one document, and those already taken from all documents.
struct Schemas<'a> {
    document: &'a Map<String, Value>,
    taken: &'a mut BTreeMap<String, Value>,
    /// The full name of each definition with a short name.
    short: &'a mut BTreeMap<String, String>,
}

impl Schemas<'_> {
    /// The definitions of kinds, without lists and the types of `metadata` and errors.
    fn kinds(&self) -> Vec<String> {
        let is_kind = |(full_name, schema): &(&String, &Value)| {
            let of_kind = schema["x-kubernetes-group-version-kind"].as_array().into_iter().flatten();
            let mut names = of_kind.map(|gvk| gvk["kind"].as_str().unwrap());
            let is_meta = full_name.contains(".meta.v1.") && !full_name.ends_with(".DeleteOptions");
            !is_meta && names.any(|kind| full_name.ends_with(&format!(".{kind}")) && !kind.ends_with("List"))
        };
        self.document.iter().filter(is_kind).map(|(full_name, _)| full_name.clone()).collect()
    }

    fn take(&mut self, full_name: &str) -> String {
        let last = full_name.rsplit('.').next().unwrap();
        let first = self.short.entry(last.to_owned()).or_insert_with(|| full_name.to_owned());
        // Two kinds are called Event, each with its own series.
        let name = match first == full_name {
            true => last.to_owned(),
            false => full_name
                .rsplitn(4, '.')
                .take(3)
                .collect::<Vec<_>>()
                .into_iter()
                .rev()
                .collect::<Vec<_>>()
                .join("."),
        };
        if !self.taken.contains_key(&name) {
            self.taken.insert(name.clone(), Value::Null);
            let schema = match last {
                // The fieldsV1 of managedFields, and the data of a ControllerRevision.
                "FieldsV1" | "RawExtension" => {
                    json!({"type": "object", "x-kubernetes-map-type": "atomic", "x-kubernetes-preserve-unknown-fields": true})
                }
                // Any JSON.
                "JSON" => {
                    json!({"x-kubernetes-map-type": "atomic", "x-kubernetes-preserve-unknown-fields": true})
                }
                // A schema or another type: a union in Go that OpenAPI cannot express.
                last if last.starts_with("JSONSchemaPropsOr") => {
                    self.take(full_name.split_once("Or").unwrap().0);
                    json!({"$ref": "#/components/schemas/JSONSchemaProps"})
                }
                // `kubectl explain` shows it below each custom resource.
                "ObjectMeta" => {
                    let (full, mut schema) =
                        (&self.document[full_name], self.plain(&self.document[full_name].clone()));
                    for (name, property) in schema["properties"].as_object_mut().unwrap() {
                        property["description"] = full["properties"][name]["description"].clone();
                    }
                    schema["description"] = full["description"].clone();
                    schema
                }
                _ => self.plain(&self.document[full_name].clone()),
            };
            self.taken.insert(name.clone(), schema);
        }
        name
    }

    /// A schema without descriptions. Only the fields that Go always encodes keep their defaults, the zero values of their types:
    /// structs that are not pointers, and required fields.
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
        let (mut taken, mut short) = (BTreeMap::new(), BTreeMap::new());
        for path in DOCUMENTS {
            let document = fixture.raw(&format!("/openapi/v3/{path}")).await.body;
            let document = document["components"]["schemas"].as_object().unwrap();
            let mut schemas = Schemas { document, taken: &mut taken, short: &mut short };
            for kind in schemas.kinds() {
                schemas.take(&kind);
            }
        }
        let lines: Vec<String> =
            taken.iter().map(|(name, schema)| format!("{}: {schema}", json!(name))).collect();
        expect_file!["../../src/schema/openapi.json"].assert_eq(&format!("{{\n{}\n}}\n", lines.join(",\n")));
    })
    .await;
}

/// Once, kubectl refused unknown fields of a custom resource without a schema.
#[tokio::test]
async fn the_openapi_v2_of_a_crd_has_only_what_kubectl_knows() {
    on(&[Kind::Real, Kind::Embedded], async |fixture| {
        let version = |name: &str, schema: Value| {
            json!({"name": name, "served": true, "storage": name == "v1", "schema": {"openAPIV3Schema": schema}})
        };
        let integer = json!({"type": "integer", "nullable": true});
        let free = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "description": "What is wanted.",
            "required": ["a", "free"], "oneOf": [{"required": ["a"]}, {"required": ["b"]}], "properties": {"a": integer, "b": integer,
            "free": free, "frees": {"type": "array", "items": free}, "map": {"type": "object", "additionalProperties": integer}}}}});
        fixture.install(&json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": "opens.openapi.io"}, "spec": {"group": "openapi.io", "scope": "Namespaced",
            "names": {"plural": "opens", "kind": "Open"}, "versions": [version("v1", free.clone()), version("v2", schema)]}}))
            .await;
        let definition = async |version: &str| {
            let document = fixture.raw("/openapi/v2").await.body;
            let mut definition = document["definitions"][format!("io.openapi.{version}.Open")].clone();
            for field in ["apiVersion", "kind", "metadata"] {
                definition["properties"].as_object_mut()?.remove(field);
            }
            Some(definition)
        };
        let gvk = |version: &str| json!([{"group": "openapi.io", "version": version, "kind": "Open"}]);
        let free = json!({"x-kubernetes-preserve-unknown-fields": true});
        let shown = eventually("v2 in OpenAPI", async || definition("v2").await).await;
        assert_eq!(shown, json!({"type": "object", "x-kubernetes-group-version-kind": gvk("v2"),
            "properties": {"spec": {"type": "object", "description": "What is wanted.", "required": ["free"], "properties": {
                "a": {}, "b": {}, "free": free, "frees": {"type": "array", "items": free},
                "map": {"type": "object", "additionalProperties": {}}}}}}));
        eventually("v1 in OpenAPI", async || {
            let document = fixture.raw("/openapi/v2").await.body;
            let bare = json!({"type": "object", "x-kubernetes-group-version-kind": gvk("v1")});
            (document["definitions"]["io.openapi.v1.Open"] == bare).then_some(())
        })
        .await;
    })
    .await;
}
