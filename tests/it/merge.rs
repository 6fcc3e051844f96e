//! Compares the merge rules that our kinds declare with the OpenAPI document of the API server.

use listwatch::{
    client::{Client, Request},
    operators::database::types::{CronJob, Job, PodDisruptionBudget, StatefulSet},
    resource::{
        Resource,
        diff::{self, Merge, MergeRule},
        kinds::{ConfigMap, Deployment, Namespace, Secret, Service},
    },
};
use serde_json::Value;

use crate::fixture::{Kind, on};

/// The OpenAPI document of the group and version of a kind.
async fn document<K: Resource>(client: &Client) -> Value {
    let api = K::collection_path(None);
    let (group_version, _) = api.rsplit_once('/').unwrap();
    let answer = client.send(Request::get(format!("/openapi/v3{group_version}"))).await.unwrap();
    serde_json::from_slice(&answer.body).unwrap()
}

/// What contradicts a rule for a kind.
fn check<K: Resource>(document: &Value, (path, merge): &MergeRule) -> Result<(), String> {
    let schemas = document["components"]["schemas"].as_object().unwrap();
    let name = |name: &str| name.rsplit(['.', '/']).next().unwrap().to_owned();
    let (_, root) = schemas.iter().find(|(schema, _)| name(schema) == K::KIND).unwrap();
    let resolve = |schema: &Value| {
        let reference = schema["$ref"].as_str().or_else(|| schema["allOf"][0]["$ref"].as_str());
        let definition = reference.map(|reference| &schemas[reference.rsplit('/').next().unwrap()]);
        let mut schema = schema.clone();
        for (key, value) in definition.into_iter().flat_map(|definition| definition.as_object().unwrap()) {
            schema[key] = value.clone();
        }
        schema
    };
    let (mut parent, mut schema) = (Value::Null, resolve(root));
    for field in path.split('/').skip(1) {
        let child = match field {
            "*" => &schema["items"],
            _ => match &schema["properties"][field] {
                Value::Null => &schema["additionalProperties"],
                field => field,
            },
        };
        if child.is_null() {
            return Err(format!("{path}: there is no {field}"));
        }
        (parent, schema) = (schema.clone(), resolve(child));
    }
    let is_shared_map = |schema: &Value| {
        schema["additionalProperties"].is_object() && schema["x-kubernetes-map-type"] != "atomic"
    };
    let are_keys = |ours: &[&str]| {
        let keys = schema["x-kubernetes-list-map-keys"].as_array();
        keys.is_some_and(|keys| keys.iter().all(|key| ours.iter().any(|one| key == one)))
    };
    let is_true = match merge {
        Merge::Shared => is_shared_map(&schema),
        Merge::Owned => is_shared_map(&parent),
        Merge::SharedBy(keys) => schema["x-kubernetes-list-type"] == "map" && are_keys(keys),
        Merge::SharedSet => schema["x-kubernetes-list-type"] == "set",
        Merge::OneOf(fields) => fields.iter().all(|field| schema["properties"][field].is_object()),
        Merge::Whole => schema["type"] == "object",
        Merge::NotOurs => true,
    };
    if is_true { Ok(()) } else { Err(format!("{path} is not {merge:?}: {schema}")) }
}

async fn check_all<K: Resource>(client: &Client) {
    let document = document::<K>(client).await;
    for rule in diff::rules::<K>() {
        check::<K>(&document, rule).unwrap_or_else(|problem| panic!("{}: {problem}", K::KIND));
    }
}

#[tokio::test]
async fn each_merge_rule_of_a_kind_agrees_with_the_document_of_the_server() {
    on(&[Kind::Embedded, Kind::Real], async |fixture| {
        let client = &fixture.client;
        check_all::<ConfigMap>(client).await;
        check_all::<Deployment>(client).await;
        check_all::<Namespace>(client).await;
        check_all::<Secret>(client).await;
        check_all::<Service>(client).await;
        check_all::<StatefulSet>(client).await;
        check_all::<CronJob>(client).await;
        check_all::<Job>(client).await;
        check_all::<PodDisruptionBudget>(client).await;
        let document = document::<Service>(client).await;
        // No kind of ours shares a set, but that of a user may.
        check::<Service>(&document, &("/metadata/finalizers", Merge::SharedSet)).unwrap();
        for rule in [
            // It is atomic.
            ("/spec/externalIPs", Merge::SharedSet),
            // Its keys are port and protocol.
            ("/spec/ports", Merge::SharedBy(&["name"])),
            ("/spec/externalIPs", Merge::SharedBy(&["ip"])),
            ("/spec/selector", Merge::Shared),
            ("/spec/selectors", Merge::Shared),
            ("/spec/ports/*", Merge::OneOf(&["port", "socket"])),
        ] {
            assert!(check::<Service>(&document, &rule).is_err(), "{rule:?}");
        }
    })
    .await;
}
