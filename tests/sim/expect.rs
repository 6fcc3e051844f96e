//! Checks what must be true after the faults have stopped, without using the operator's own code.

use std::collections::{BTreeMap, BTreeSet};

use listwatch::{
    cluster::{Cluster, Watch},
    operators::mywebserver::MyWebserver,
    resource::{
        Key, Resource, Scope,
        kinds::{Deployment, Service},
    },
};
use serde_json::{Value, json};

use crate::network::Network;

pub const WEBS: &str = "/apis/k8sobjects.gsa.com/v2/mywebservers";
pub const DEPLOYMENTS: &str = "/apis/apps/v1/deployments";
pub const SERVICES: &str = "/api/v1/services";
const MANAGED_BY_US: &str = "app.kubernetes.io/managed-by=mywebserver-operator";

pub fn controller(object: &Value) -> Option<&Value> {
    let owners = object["metadata"]["ownerReferences"].as_array()?;
    owners.iter().find(|owner| owner["controller"] == true)
}

/// Whether a rollout that cannot complete has passed its deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stuck {
    IsKnown,
    MayBeUnknown,
}

/// All differences from the expected state.
pub async fn problems(network: &Network, cluster: &Cluster, stuck: Stuck) -> Vec<String> {
    let mut problems = network.violations();
    let webs = list(network, WEBS).await;
    let deployments = list(network, DEPLOYMENTS).await;
    let services = list(network, SERVICES).await;
    for web in &webs {
        problems.extend(web_problems(web, find(&deployments, web), find(&services, web), stuck));
    }
    for child in deployments.iter().chain(&services) {
        problems.extend(child_problem(child, &webs));
    }

    let everything = |labels: &str| [Scope { namespace: None, labels: labels.to_owned() }];
    problems.extend(store_differences(&cluster.watch::<MyWebserver>(everything("")), &webs));
    let managed_by_us = |objects: Vec<Value>| -> Vec<Value> {
        let label = |object: &Value| {
            object["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "mywebserver-operator"
        };
        objects.into_iter().filter(label).collect()
    };
    problems.extend(store_differences(
        &cluster.watch::<Deployment>(everything(MANAGED_BY_US)),
        &managed_by_us(deployments),
    ));
    problems.extend(store_differences(
        &cluster.watch::<Service>(everything(MANAGED_BY_US)),
        &managed_by_us(services),
    ));
    problems
}

pub async fn list(network: &Network, path: &str) -> Vec<Value> {
    let mut list = network.get(path).await.unwrap_or_else(|| panic!("no list at {path}"));
    serde_json::from_value(list["items"].take()).unwrap()
}

fn find<'a>(children: &'a [Value], web: &Value) -> Option<&'a Value> {
    let name = format!("mws-{}", web["metadata"]["name"].as_str().unwrap());
    children.iter().find(|child| {
        child["metadata"]["name"] == *name && child["metadata"]["namespace"] == web["metadata"]["namespace"]
    })
}

fn name(object: &Value) -> String {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
    format!("{} {}/{}", object["kind"].as_str().unwrap_or_default(), text("namespace"), text("name"))
}

/// The problems of one MyWebserver, its children and its status.
fn web_problems(
    web: &Value,
    deployment: Option<&Value>,
    service: Option<&Value>,
    stuck: Stuck,
) -> Vec<String> {
    if !web["metadata"]["deletionTimestamp"].is_null() {
        return vec![format!("{} still exists", name(web))];
    }
    let spec = &web["spec"];
    let is_number = |value: &Value| value.is_null() || value.is_i64();
    let is_readable = spec["image"].is_string() && is_number(&spec["port"]) && is_number(&spec["replicas"]);
    let is_ours =
        |child: &Value| controller(child).is_some_and(|owner| owner["uid"] == web["metadata"]["uid"]);
    let is_taken = [deployment, service].into_iter().flatten().any(|child| !is_ours(child));
    let (port, replicas) = (spec["port"].as_i64().unwrap_or(80), spec["replicas"].as_i64().unwrap_or(1));

    let is_stalled = condition(web, "Stalled")["status"] == "True";
    // After a complete rollout, even without Pods, scaling has no deadline.
    let has_no_deadline = deployment
        .is_some_and(|deployment| condition(deployment, "Progressing")["reason"] == "NewReplicaSetAvailable");
    let may_go_on = stuck == Stuck::MayBeUnknown || has_no_deadline;
    let (ready, reason, should_stall) = match (is_readable, is_taken, replicas) {
        (false, ..) => ("False", "InvalidSpec", true),
        (_, true, _) => ("False", "NameConflict", true),
        (_, _, 0) => ("True", "ScaledToZero", false),
        _ if spec["image"] != "does-not-exist" => ("True", "AllReplicasReady", false),
        _ if may_go_on && !is_stalled => ("False", "ImagePullBackOff", false),
        _ => ("False", "ImagePullBackOff", true),
    };
    let mut problems =
        field_differences(web, &[("/status/observedGeneration", &web["metadata"]["generation"])]);
    let stalled = if should_stall { json!("True") } else { Value::Null };
    for (kind, field, should) in [
        ("Ready", "status", json!(ready)),
        ("Ready", "reason", json!(reason)),
        ("Stalled", "status", stalled),
    ] {
        let condition = condition(web, kind);
        if condition[field] != should {
            let is = ["status", "reason", "message"].map(|field| condition[field].to_string()).join(" ");
            problems.push(format!("{}: {kind} is {is}, its {field} should be {should}", name(web)));
        }
    }
    if !is_readable {
        return problems;
    }

    let identity = json!({"app.kubernetes.io/name": "mywebserver", "app.kubernetes.io/instance": web["metadata"]["name"]});
    let mut labels = identity.clone();
    labels["app.kubernetes.io/component"] = "webserver".into();
    labels["app.kubernetes.io/managed-by"] = "mywebserver-operator".into();
    let container_ports = json!([{"name": "mywebserver", "containerPort": port, "protocol": "TCP"}]);
    let service_ports =
        json!([{"name": "http", "port": port, "protocol": "TCP", "targetPort": "mywebserver"}]);
    let deployment_should: &[_] = &[
        ("/metadata/labels", &labels),
        ("/spec/replicas", &json!(replicas)),
        ("/spec/selector/matchLabels", &identity),
        ("/spec/template/spec/containers/0/image", &spec["image"]),
        ("/spec/template/spec/containers/0/ports", &container_ports),
    ];
    let service_should: &[_] =
        &[("/metadata/labels", &labels), ("/spec/ports", &service_ports), ("/spec/selector", &identity)];
    for (kind, child, should) in
        [("Deployment", deployment, deployment_should), ("Service", service, service_should)]
    {
        match child {
            None => problems.push(format!("{} has no {kind}", name(web))),
            Some(child) if is_ours(child) => problems.extend(field_differences(child, should)),
            Some(_) => {}
        }
    }
    problems
}

fn condition(object: &Value, kind: &str) -> Value {
    let mut conditions = object["status"]["conditions"].as_array().into_iter().flatten();
    conditions.find(|condition| condition["type"] == kind).cloned().unwrap_or_default()
}

/// The fields of an object that do not have the expected value.
fn field_differences(object: &Value, should: &[(&str, &Value)]) -> Vec<String> {
    let is = |pointer: &str| object.pointer(pointer).unwrap_or(&Value::Null);
    let differs = should.iter().filter(|(pointer, should)| is(pointer) != *should);
    let problems = differs
        .map(|(pointer, should)| format!("{}: {pointer} is {}, not {should}", name(object), is(pointer)));
    problems.collect()
}

/// A child whose owner does not exist, or that should have another name.
fn child_problem(child: &Value, webs: &[Value]) -> Option<String> {
    let owner = controller(child).filter(|owner| owner["kind"] == "MyWebserver")?;
    let found = webs.iter().find(|web| web["metadata"]["uid"] == owner["uid"]);
    let should_be = found.map(|web| format!("mws-{}", web["metadata"]["name"].as_str().unwrap()));
    match should_be {
        Some(should_be) if child["metadata"]["name"] == *should_be => None,
        Some(should_be) => Some(format!("{} should be {should_be}", name(child))),
        None => Some(format!("the owner of {} does not exist", name(child))),
    }
}

/// The differences between a Store and the server.
fn store_differences<K: Resource>(watch: &Watch<K>, objects: &[Value]) -> Option<String> {
    let stored: BTreeMap<Key, String> = objects
        .iter()
        .map(|object| {
            let text = |field: &str| object["metadata"][field].as_str().unwrap();
            let key = Key::namespaced(text("namespace"), text("name"));
            (key, text("resourceVersion").to_owned())
        })
        .collect();
    let version = |key: &Key| match watch.get(key) {
        Some(object) => object.metadata().resource_version.to_string(),
        // Unreadable, so its version is unknown.
        None => stored.get(key).cloned().unwrap_or_default(),
    };
    let known: BTreeMap<Key, String> =
        watch.keys().into_iter().map(|key| (key.clone(), version(&key))).collect();
    let keys: BTreeSet<&Key> = known.keys().chain(stored.keys()).collect();
    let version = |of: &BTreeMap<Key, String>, key: &Key| {
        of.get(key).map_or("nothing".to_owned(), |version| format!("version {version}"))
    };
    let different = keys.into_iter().filter(|key| known.get(key) != stored.get(key));
    let differences: Vec<_> = different
        .map(|key| format!("{key} is {} and on the server {}", version(&known, key), version(&stored, key)))
        .collect();
    (!differences.is_empty()).then(|| format!("in the Store of {}: {}", K::PLURAL, differences.join(", ")))
}
