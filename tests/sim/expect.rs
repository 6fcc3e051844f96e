//! Checks what must be true after the faults have stopped, without using the operator's own code.

use std::collections::{BTreeMap, BTreeSet};

use listwatch::{
    cluster::{Cluster, Watch},
    resource::{
        Key, Resource, Scope,
        kinds::{ConfigMap, Deployment, Service},
    },
};
use listwatch_operators::{
    copyrator::{
        CopyratorRule,
        copy::{ALL_COPIES, Copied},
    },
    memcached::Memcached,
    mywebserver::MyWebserver,
};
use serde_json::{Value, json};

use crate::{copies, databases, network::Network, scenario::Operator};

const WEBS: &str = "/apis/k8sobjects.gsa.com/v2/mywebservers";
const CACHES: &str = "/apis/cache.example.com/v1alpha1/memcacheds";
const RULES: &str = "/apis/flant.com/v1/copyrators";
const DEPLOYMENTS: &str = "/apis/apps/v1/deployments";
const SERVICES: &str = "/api/v1/services";
const CONFIG_MAPS: &str = "/api/v1/configmaps";

/// The collections of an operator's objects and of what it creates.
pub fn collections(operator: Operator) -> Vec<&'static str> {
    match operator {
        Operator::Mywebserver => vec![WEBS, DEPLOYMENTS, SERVICES],
        Operator::Memcached => vec![CACHES, DEPLOYMENTS, SERVICES],
        Operator::Copyrator => vec![RULES, CONFIG_MAPS],
        Operator::Database => databases::collections(),
    }
}

pub fn controller(object: &Value) -> Option<&Value> {
    let owners = object["metadata"]["ownerReferences"].as_array()?;
    owners.iter().find(|owner| owner["controller"] == true)
}

/// The owner of a child of ours, and the name that the child should have.
pub fn child_of(child: &Value) -> Option<(&Value, String)> {
    let owner = controller(child)?;
    let name = owner["name"].as_str()?;
    match owner["kind"].as_str()? {
        "MyWebserver" => Some((owner, format!("mws-{name}"))),
        "Memcached" => Some((owner, name.to_owned())),
        // The suffixes of its children: see databases.rs.
        "Database" => {
            let child = child["metadata"]["name"].as_str()?;
            let suffix = child.strip_prefix(name)?;
            let is_known = matches!(suffix, "" | "-ro" | "-scripts" | "-backup" | "-last-backup");
            is_known.then(|| (owner, child.to_owned()))
        }
        _ => None,
    }
}

/// Whether a rollout that cannot complete has passed its deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stuck {
    IsKnown,
    MayBeUnknown,
}

/// All differences from the expected state.
pub async fn problems(operator: Operator, network: &Network, cluster: &Cluster, stuck: Stuck) -> Vec<String> {
    let mut problems = network.violations();
    let objects = list(network, collections(operator)[0]).await;
    if operator == Operator::Copyrator {
        let (config_maps, namespaces) =
            (list(network, CONFIG_MAPS).await, list(network, "/api/v1/namespaces").await);
        problems.extend(copies::problems(&objects, &config_maps, &namespaces, network.may_have_orphans()));
        problems.extend(store_differences(
            &cluster.watch_reconciled::<CopyratorRule>(scope("")),
            "",
            &objects,
        ));
        problems.extend(store_differences(
            &cluster.watch::<Copied<ConfigMap>>(scope(ALL_COPIES)),
            ALL_COPIES,
            &config_maps,
        ));
        return problems;
    }
    if operator == Operator::Database {
        problems.extend(databases::problems(&objects, network, cluster).await);
        return problems;
    }
    let deployments = list(network, DEPLOYMENTS).await;
    let services = list(network, SERVICES).await;
    let pods = list(network, "/api/v1/pods").await;
    for object in &objects {
        let (deployment, service) = (find(&deployments, object), find(&services, object));
        problems.extend(object_problems(object, deployment, service, stuck));
        problems.extend(nodes_problem(object, &pods));
    }
    for child in deployments.iter().chain(&services) {
        problems.extend(child_problem(child, &objects));
    }
    if operator == Operator::Mywebserver {
        let ours = "app.kubernetes.io/managed-by=mywebserver-operator";
        problems.extend(store_differences(&cluster.watch_reconciled::<MyWebserver>(scope("")), "", &objects));
        problems.extend(store_differences(
            &cluster.watch_children::<MyWebserver, Deployment>(scope(ours)),
            ours,
            &deployments,
        ));
        problems.extend(store_differences(
            &cluster.watch_children::<MyWebserver, Service>(scope(ours)),
            ours,
            &services,
        ));
    } else {
        let ours = "app.kubernetes.io/managed-by=memcached-operator";
        problems.extend(store_differences(&cluster.watch_reconciled::<Memcached>(scope("")), "", &objects));
        problems.extend(store_differences(
            &cluster.watch_children::<Memcached, Deployment>(scope(ours)),
            ours,
            &deployments,
        ));
        problems.extend(store_differences(
            &cluster.watch_children::<Memcached, Service>(scope(ours)),
            ours,
            &services,
        ));
    }
    problems
}

pub async fn list(network: &Network, path: &str) -> Vec<Value> {
    let mut list = network.get(path).await.unwrap_or_else(|| panic!("no list at {path}"));
    serde_json::from_value(list["items"].take()).unwrap()
}

fn find<'a>(children: &'a [Value], owner: &Value) -> Option<&'a Value> {
    let prefix = if owner["kind"] == "MyWebserver" { "mws-" } else { "" };
    let name = format!("{prefix}{}", owner["metadata"]["name"].as_str().unwrap());
    children.iter().find(|child| {
        child["metadata"]["name"] == *name && child["metadata"]["namespace"] == owner["metadata"]["namespace"]
    })
}

pub fn name(object: &Value) -> String {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
    format!("{} {}/{}", object["kind"].as_str().unwrap_or_default(), text("namespace"), text("name"))
}

/// The problems of one MyWebserver or Memcached, its children and its status.
fn object_problems(
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
    let is_cache = web["kind"] == "Memcached";
    let is_readable = match is_cache {
        true => spec["size"].is_i64() && is_number(&spec["memoryMb"]),
        false => spec["image"].is_string() && is_number(&spec["port"]) && is_number(&spec["replicas"]),
    };
    let is_ours =
        |child: &Value| controller(child).is_some_and(|owner| owner["uid"] == web["metadata"]["uid"]);
    let is_taken = [deployment, service].into_iter().flatten().any(|child| !is_ours(child));
    let replicas = spec[if is_cache { "size" } else { "replicas" }].as_i64().unwrap_or(1);

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

    let [deployment_should, service_should] =
        if is_cache { children_of_cache(web) } else { children_of_web(web, replicas) };
    for (kind, child, should) in
        [("Deployment", deployment, deployment_should), ("Service", service, service_should)]
    {
        match child {
            None => problems.push(format!("{} has no {kind}", name(web))),
            Some(child) if is_ours(child) => {
                let should: Vec<_> = should.iter().map(|(pointer, value)| (*pointer, value)).collect();
                problems.extend(field_differences(child, &should));
            }
            Some(_) => {}
        }
    }
    problems
}

/// Fields of the Deployment and of the Service of an object.
type Children = [Vec<(&'static str, Value)>; 2];

fn children_of_web(web: &Value, replicas: i64) -> Children {
    let (spec, port) = (&web["spec"], web["spec"]["port"].as_i64().unwrap_or(80));
    let identity = json!({
        "app.kubernetes.io/name": "mywebserver", "app.kubernetes.io/instance": web["metadata"]["name"],
        "app.kubernetes.io/managed-by": "mywebserver-operator",
    });
    let mut labels = identity.clone();
    labels["app.kubernetes.io/component"] = "webserver".into();
    let container_ports = json!([{"name": "mywebserver", "containerPort": port, "protocol": "TCP"}]);
    let service_ports =
        json!([{"name": "http", "port": port, "protocol": "TCP", "targetPort": "mywebserver"}]);
    [
        vec![
            ("/metadata/labels", labels.clone()),
            ("/spec/replicas", json!(replicas)),
            ("/spec/selector/matchLabels", identity.clone()),
            ("/spec/template/spec/containers/0/image", spec["image"].clone()),
            ("/spec/template/spec/containers/0/ports", container_ports),
        ],
        vec![("/metadata/labels", labels), ("/spec/ports", service_ports), ("/spec/selector", identity)],
    ]
}

fn children_of_cache(cache: &Value) -> Children {
    let memory_mb = cache["spec"]["memoryMb"].as_i64().unwrap_or(64);
    let labels = json!({
        "app.kubernetes.io/name": "memcached", "app.kubernetes.io/instance": cache["metadata"]["name"],
        "app.kubernetes.io/managed-by": "memcached-operator",
    });
    let ports = json!([{"name": "memcached", "port": 11211, "protocol": "TCP", "targetPort": 11211}]);
    [
        vec![
            ("/metadata/labels", labels.clone()),
            ("/spec/replicas", cache["spec"]["size"].clone()),
            ("/spec/selector/matchLabels", labels.clone()),
            ("/spec/template/spec/containers/0/image", json!("memcached:1.6")),
            ("/spec/template/spec/containers/0/command", json!(["memcached", "-m", memory_mb.to_string()])),
        ],
        vec![
            ("/metadata/labels", labels.clone()),
            ("/spec/ports", ports),
            ("/spec/selector", labels),
            ("/spec/clusterIP", json!("None")),
        ],
    ]
}

/// Whether the status of a Memcached has exactly the ready Pods.
fn nodes_problem(cache: &Value, pods: &[Value]) -> Vec<String> {
    if cache["kind"] != "Memcached" || condition(cache, "Ready")["status"] != "True" {
        return Vec::new();
    }
    let is_node = |pod: &&Value| {
        let metadata = &pod["metadata"];
        metadata["labels"]["app.kubernetes.io/managed-by"] == "memcached-operator"
            && metadata["labels"]["app.kubernetes.io/instance"] == cache["metadata"]["name"]
            && metadata["namespace"] == cache["metadata"]["namespace"]
            && metadata["deletionTimestamp"].is_null()
            && condition(pod, "Ready")["status"] == "True"
    };
    let nodes: Vec<_> = pods.iter().filter(is_node).map(|pod| &pod["metadata"]["name"]).collect();
    field_differences(cache, &[("/status/nodes", &json!(nodes))])
}

/// Whether `Ready` and `Stalled` have one of these reasons, or none if the object should be ready.
pub fn ready_problems(object: &Value, reasons: &[&str]) -> Vec<String> {
    let mut problems =
        field_differences(object, &[("/status/observedGeneration", &object["metadata"]["generation"])]);
    let (ready, stalled) = (condition(object, "Ready"), condition(object, "Stalled"));
    let is_expected = |condition: &Value| reasons.iter().any(|reason| condition["reason"] == *reason);
    let is_as_expected = match reasons {
        [] => ready["status"] == "True" && stalled.is_null(),
        _ => is_expected(&ready) && is_expected(&stalled),
    };
    if !is_as_expected {
        problems.push(format!("{}: {ready} and {stalled} should have one of {reasons:?}", name(object)));
    }
    problems
}

pub fn condition(object: &Value, kind: &str) -> Value {
    let mut conditions = object["status"]["conditions"].as_array().into_iter().flatten();
    conditions.find(|condition| condition["type"] == kind).cloned().unwrap_or_default()
}

/// The fields of an object that do not have the expected value.
pub fn field_differences(object: &Value, should: &[(&str, &Value)]) -> Vec<String> {
    let is = |pointer: &str| object.pointer(pointer).unwrap_or(&Value::Null);
    let differs = should.iter().filter(|(pointer, should)| is(pointer) != *should);
    let problems = differs
        .map(|(pointer, should)| format!("{}: {pointer} is {}, not {should}", name(object), is(pointer)));
    problems.collect()
}

/// A child whose owner does not exist, or that should have another name.
pub fn child_problem(child: &Value, owners: &[Value]) -> Option<String> {
    let (owner, should_be) = child_of(child)?;
    match owners.iter().any(|found| found["metadata"]["uid"] == owner["uid"]) {
        true if child["metadata"]["name"] == should_be => None,
        true => Some(format!("{} should be {should_be}", name(child))),
        false => Some(format!("the owner of {} does not exist", name(child))),
    }
}

/// The scope of a watch with this label, `key=value`.
pub fn scope(label: &str) -> [Scope; 1] {
    [Scope { labels: label.to_owned(), ..Scope::default() }]
}

/// The differences between the Store of a watch with this label and the server.
pub fn store_differences<K: Resource>(watch: &Watch<K>, label: &str, objects: &[Value]) -> Option<String> {
    let is_selected = |object: &&Value| {
        label.split_once('=').is_none_or(|(key, value)| object["metadata"]["labels"][key] == value)
    };
    let stored: BTreeMap<Key, String> = objects
        .iter()
        .filter(is_selected)
        .map(|object| {
            let text = |field: &str| object["metadata"][field].as_str().unwrap();
            let key = Key::namespaced(text("namespace"), text("name"));
            (key, text("resourceVersion").to_owned())
        })
        .collect();
    let version = |key: &Key| {
        watch.find(key).map_or_else(String::new, |found| found.metadata().resource_version.to_string())
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
