//! Compares the merge rules that our kinds declare with the OpenAPI document of the API server, and removes each field of the
//! children: the patch restores it.

use listwatch::{
    client::{Client, Request},
    resource::{
        Resource,
        diff::{self, Merge},
        kinds::*,
    },
};
use listwatch_operators::{database, memcached, mywebserver};
use serde::Serialize;
use serde_json::{Value, json};

use crate::fixture::{Kind, Server, on};

/// The OpenAPI document of the group and version of a kind.
async fn document<K: Resource>(client: &Client) -> Value {
    let api = K::collection_path(None);
    let (group_version, _) = api.rsplit_once('/').unwrap();
    let answer = client.send(Request::get(format!("/openapi/v3{group_version}"))).await.unwrap();
    serde_json::from_slice(&answer.body).unwrap()
}

/// What contradicts a rule for a kind.
fn check<K: Resource>(document: &Value, path: &str, merge: Merge) -> Result<(), String> {
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
            "*" if schema["items"].is_null() => &schema["additionalProperties"],
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
    let are_keys = |ours: &[&str]| {
        let keys = schema["x-kubernetes-list-map-keys"].as_array();
        keys.is_some_and(|keys| keys.iter().all(|key| ours.iter().any(|one| key == one)))
    };
    let is_true = match merge {
        Merge::SharedBy(keys) => schema["x-kubernetes-list-type"] == "map" && are_keys(keys),
        Merge::Owned | Merge::Whole | Merge::Rules(_) => true,
        Merge::NotOurs => true,
        Merge::Quantity => {
            let reference = schema["$ref"].as_str().or_else(|| schema["allOf"][0]["$ref"].as_str());
            reference.is_some_and(|reference| reference.ends_with("Quantity"))
        }
        Merge::Defaulted => {
            let field = path.rsplit('/').next().unwrap();
            !parent["required"].as_array().is_some_and(|all| all.iter().any(|one| one == field))
        }
    };
    if is_true { Ok(()) } else { Err(format!("{path} is not {merge:?}: {schema}")) }
}

async fn check_all<K: Resource>(client: &Client) {
    let document = document::<K>(client).await;
    for (path, merge) in diff::rules::<K>() {
        check::<K>(&document, &path, merge).unwrap_or_else(|problem| panic!("{}: {problem}", K::KIND));
    }
}

#[tokio::test]
async fn each_merge_rule_of_a_kind_agrees_with_the_document_of_the_server() {
    on(&[Kind::Embedded, Kind::Real], async |fixture| {
        let client = &fixture.client;
        check_all::<ConfigMap>(client).await;
        check_all::<CronJob>(client).await;
        check_all::<DaemonSet>(client).await;
        check_all::<Deployment>(client).await;
        check_all::<Ingress>(client).await;
        check_all::<Job>(client).await;
        check_all::<Namespace>(client).await;
        check_all::<PersistentVolumeClaim>(client).await;
        check_all::<Pod>(client).await;
        check_all::<PodDisruptionBudget>(client).await;
        check_all::<Secret>(client).await;
        check_all::<Service>(client).await;
        check_all::<ServiceAccount>(client).await;
        check_all::<StatefulSet>(client).await;
        // The embedded server does not have these.
        if !matches!(fixture.server, Server::Embedded(_)) {
            check_all::<HorizontalPodAutoscaler>(client).await;
            check_all::<NetworkPolicy>(client).await;
            check_all::<Role>(client).await;
            check_all::<RoleBinding>(client).await;
        }
        let document = document::<Service>(client).await;
        for (path, merge) in [
            // Its keys are port and protocol.
            ("/spec/ports", Merge::SharedBy(&["name"])),
            ("/spec/externalIPs", Merge::SharedBy(&["ip"])),
            ("/spec/selectors", Merge::Whole),
            ("/spec/ports/*/port", Merge::Defaulted),
            ("/spec/clusterIP", Merge::Quantity),
        ] {
            assert!(check::<Service>(&document, path, merge).is_err(), "{path}");
        }
    })
    .await;
}

/// The JSON pointers of the fields and items of an object.
fn pointers(value: &Value, path: &str, all: &mut Vec<String>) {
    let parts: Vec<(String, &Value)> = match value {
        Value::Object(fields) => {
            fields.iter().map(|(field, value)| (field.replace('~', "~0").replace('/', "~1"), value)).collect()
        }
        Value::Array(items) => items.iter().enumerate().map(|(at, item)| (at.to_string(), item)).collect(),
        _ => return,
    };
    for (part, value) in parts {
        all.push(format!("{path}/{part}"));
        pointers(value, &format!("{path}/{part}"), all);
    }
}

/// Applies a JSON patch as kube-apiserver does, which lets `replace` add a field that is missing.
fn apply(object: &mut Value, mut operations: Vec<Value>) -> Result<(), String> {
    for operation in operations.iter_mut().filter(|operation| operation["op"] == "replace") {
        if object.pointer(operation["path"].as_str().unwrap()).is_none() {
            operation["op"] = "add".into();
        }
    }
    let patch: json_patch::Patch = serde_json::from_value(operations.into()).unwrap();
    json_patch::patch(object, &patch).map_err(|error| error.to_string())
}

/// The ends of the paths that each object has, because the API server requires or sets them.
const ALWAYS: [&str; 7] = [
    "/jobTemplate",
    "/jobTemplate/spec",
    "/template",
    "/template/metadata",
    "/template/spec",
    "/template/spec/containers",
    "/template/spec/securityContext",
];

/// The fields of a child that its patch does not restore once another client has removed them.
fn check_restored<K: Resource + Serialize>(desired: &K, owning: &[&'static str], problems: &mut Vec<String>) {
    let mut removed = Vec::new();
    let mut whole = serde_json::to_value(desired).unwrap();
    pointers(&whole, "", &mut removed);
    // As the API server returns it.
    whole["metadata"]["resourceVersion"] = "1".into();
    assert_eq!(diff::between(&serde_json::from_value::<K>(whole.clone()).unwrap(), desired, owning), []);
    removed
        .retain(|path| ["/spec/", "/data", "/metadata/labels"].iter().any(|start| path.starts_with(start)));
    removed.retain(|path| !path.ends_with("/name") && !ALWAYS.iter().any(|end| path.ends_with(end)));
    for path in removed {
        let mut live = whole.clone();
        apply(&mut live, vec![json!({"op": "remove", "path": path})]).unwrap();
        // A field that the type requires, the API server requires or sets.
        let Ok(found) = serde_json::from_value::<K>(live.clone()) else { continue };
        if found.is_immutable(&format!("{path}/")) {
            continue;
        }
        if let Err(error) = apply(&mut live, diff::operations(&diff::between(&found, desired, owning))) {
            problems.push(format!("{} without {path}: {error}", K::KIND));
            continue;
        }
        let rest = diff::between(&serde_json::from_value::<K>(live).unwrap(), desired, owning);
        if !rest.is_empty() {
            problems.push(format!("{} without {path}: not restored: {rest:?}", K::KIND));
        }
    }
}

/// A client gave the container of a Database another securityContext, without `capabilities`. The patch added a field to
/// `capabilities`, so the API server refused it for ever, and with it each later change.
#[test]
fn each_field_of_a_child_is_restored_after_its_removal() {
    let object = |spec: Value| json!({"metadata": {"name": "a", "namespace": "n", "uid": "u", "resourceVersion": "1"}, "spec": spec});
    let mut problems = Vec::new();
    let web = serde_json::from_value(object(json!({"image": "nginx"}))).unwrap();
    let web = mywebserver::desired(&web);
    check_restored(&web.deployment, &[], &mut problems);
    check_restored(&web.service, CLUSTER_IP_ONLY, &mut problems);
    let cache = serde_json::from_value(object(json!({"size": 1}))).unwrap();
    let cache = memcached::desired(&cache, "memcached");
    check_restored(&cache.deployment, memcached::OWNED, &mut problems);
    check_restored(&cache.service, &[], &mut problems);
    let spec =
        json!({"size": 2, "version": "15", "backup": {"schedule": "0 3 * * *"}, "tls": {"secretName": "t"}});
    let database = serde_json::from_value(object(spec)).unwrap();
    let database = database::desired(&database, "postgres", &[]);
    check_restored(&database.set, database::SET_OWNED, &mut problems);
    check_restored(&database.primary, CLUSTER_IP_ONLY, &mut problems);
    check_restored(&database.instances, CLUSTER_IP_ONLY, &mut problems);
    check_restored(&database.scripts, &[], &mut problems);
    check_restored(&database.budget, &[], &mut problems);
    check_restored(&database.backup.unwrap(), database::CRON_JOB_OWNED, &mut problems);
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}
