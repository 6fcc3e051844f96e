//! Checks the promises about a MyWebserver and its children, when the operator has nothing left to do. Nothing in this
//! file does I/O.

use std::collections::{BTreeMap, BTreeSet};

use listwatch::operators::mywebserver::{MyWebserver, desired};
use serde::Deserialize;
use serde_json::{Value, json};

use super::CHILDREN;
use crate::client::condition;

/// The desired children of a MyWebserver: the fields that we own, and their values.
pub fn wanted(web: &Value) -> [Value; 2] {
    let children = desired(&MyWebserver::deserialize(web).unwrap());
    [json!(children.deployment), json!(children.service)]
}

/// Whether an object's controller is this MyWebserver.
pub fn is_ours(web: &Value, child: &Value) -> bool {
    let mut owners = child["metadata"]["ownerReferences"].as_array().into_iter().flatten();
    owners.any(|owner| owner["controller"] == true && owner["uid"] == web["metadata"]["uid"])
}

/// An object without the versions and times of the server, and without its status.
pub fn without_counters(object: &Value) -> Value {
    let mut object = object.clone();
    object.as_object_mut().unwrap().retain(|field, _| ["metadata", "spec"].contains(&field.as_str()));
    let metadata = object["metadata"].as_object_mut().unwrap();
    metadata.retain(|field, _| !["resourceVersion", "generation", "managedFields"].contains(&field.as_str()));
    object
}

/// The fields of a child that we own according to README.md. A unit test checks that README.md is right.
fn ours(kind: &str) -> impl Iterator<Item = &'static str> {
    let readme = include_str!("../../../README.md");
    let (_, list) = readme.split_once("\n```\nDeployment\n").unwrap();
    let (deployment, rest) = list.split_once("Service\n").unwrap();
    let (service, _) = rest.split_once("```").unwrap();
    if kind == "Deployment" { deployment } else { service }.lines().map(str::trim)
}

/// A MyWebserver, its children as the last edit left them, and as they are now.
pub struct Kept<'a> {
    pub web: &'a Value,
    pub edited: &'a [Value; 2],
    pub live: [Option<&'a Value>; 2],
    /// Whether the server refused the first patch of the Deployment, because a field of another writer made one of ours
    /// invalid. Then the whole Pod template is reset, as README.md says.
    pub is_template_reset: bool,
}

impl Kept<'_> {
    /// One line for each promise that is broken.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let wanted = wanted(self.web);
        let mut all_ours = true;
        for (index, [kind, ..]) in CHILDREN.into_iter().enumerate() {
            let (edited, Some(live)) = (&self.edited[index], self.live[index]) else {
                problems.push(format!("the {kind} does not exist"));
                continue;
            };
            let is_ours = is_ours(self.web, live);
            all_ours &= is_ours;
            if is_ours {
                for path in ours(kind) {
                    let [wanted, got] = [&wanted[index], live].map(|object| self.field(object, path));
                    if wanted != got {
                        problems.push(format!("{kind} {path}: wanted {wanted}, got {got}"));
                    }
                }
            }
            if edited["metadata"]["uid"] == live["metadata"]["uid"] {
                self.compare(kind, edited, live, is_ours, &mut problems);
            } else if !edited.is_null() {
                problems.push(format!("the {kind} was deleted and created again"));
            }
        }
        if let ([Some(deployment), Some(service)], true) = (self.live, all_ours)
            && let Err(text) = check_service_port(self.web, deployment, service)
        {
            problems.push(text);
        }
        self.status(all_ours, &mut problems);
        problems
    }

    /// The fields that we do not own have the values of the last edit.
    fn compare(&self, kind: &str, edited: &Value, live: &Value, is_ours: bool, problems: &mut Vec<String>) {
        let [before, after] = [edited, live].map(|object| self.leaves(&without_counters(object)));
        let paths: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
        // If the whole parent was missing (our container, or its probe), it is restored with its defaults.
        let is_restored = |path: &str| {
            let ends = path.match_indices('.').map(|(end, _)| &path[..=end]);
            let mut missing = ends.filter(|parent| !before.keys().any(|path| path.starts_with(parent)));
            missing.any(|parent| ours(kind).any(|ours| ours.starts_with(parent)))
        };
        for path in paths {
            let [was, is] = [&before, &after].map(|leaves| leaves.get(path).unwrap_or(&Value::Null));
            let is_of_ours = is_ours && (ours(kind).any(|ours| is_in(path, ours)) || is_restored(path));
            let follows = kind == "Service" && follows_type(path, edited);
            let is_reset = self.is_template_reset && path.starts_with("spec.template.");
            if was != is && !is_of_ours && !follows && !is_reset {
                problems.push(format!("{kind} {path}: is not ours, was {was}, is {is}"));
            }
        }
    }

    fn status(&self, all_ours: bool, problems: &mut Vec<String>) {
        let status = &self.web["status"];
        let is_rolled_out = self.live[0].is_some_and(|deployment| {
            deployment["status"]["observedGeneration"] == deployment["metadata"]["generation"]
        });
        if status["observedGeneration"] != self.web["metadata"]["generation"] {
            problems.push(format!("status.observedGeneration is {}", status["observedGeneration"]));
        }
        let [ready, stalled, mutated] =
            ["Ready", "Stalled", "Mutated"].map(|name| condition(self.web, name).unwrap_or(&Value::Null));
        let conditions = format!("Ready is {ready}, Stalled is {stalled}, Mutated is {mutated}");
        if !all_ours {
            if ready["status"] != "False"
                || stalled["status"] != "True"
                || stalled["reason"] != "NameConflict"
            {
                problems.push(format!("a child has another owner, and {conditions}"));
            }
        } else if !stalled.is_null() || !mutated.is_null() || is_rolled_out && ready["status"] != "True" {
            problems.push(format!("all children are ours, and {conditions}"));
        }
    }

    /// A field by its path, as written in README.md.
    fn field<'v>(&self, object: &'v Value, path: &str) -> &'v Value {
        let mut value = object;
        let mut rest = path;
        while !rest.is_empty() {
            if let Some(inner) = rest.strip_prefix('[') {
                let (key, after) = inner.split_once(']').unwrap();
                value = match value {
                    Value::Array(items) => {
                        let is_it = |item: &&Value| self.key(item) == key;
                        items.iter().find(is_it).unwrap_or(&Value::Null)
                    }
                    value => &value[key],
                };
                rest = after;
            } else {
                let field = rest.trim_start_matches('.');
                let (field, after) = field.split_at(field.find(['.', '[']).unwrap_or(field.len()));
                value = &value[field];
                rest = after;
            }
        }
        value
    }

    /// The key of a list item.
    fn key<'v>(&self, item: &'v Value) -> &'v str {
        if item["controller"] == true && item["uid"] == self.web["metadata"]["uid"] {
            return "ours";
        }
        item["uid"].as_str().or(item["name"].as_str()).unwrap()
    }

    /// The leaves of an object by their paths: `spec.template.spec.containers[web].image`.
    fn leaves(&self, object: &Value) -> BTreeMap<String, Value> {
        let mut all = BTreeMap::new();
        self.collect(object, "", &mut all);
        all
    }

    fn collect(&self, value: &Value, path: &str, all: &mut BTreeMap<String, Value>) {
        match value {
            Value::Object(fields) => {
                for (name, value) in fields {
                    let path = match path {
                        "" => name.clone(),
                        path if path.ends_with("labels") || path.ends_with("annotations") => {
                            format!("{path}[{name}]")
                        }
                        path => format!("{path}.{name}"),
                    };
                    self.collect(value, &path, all);
                }
            }
            Value::Array(items) if path.ends_with(".containers") || path.ends_with(".ownerReferences") => {
                for item in items {
                    self.collect(item, &format!("{path}[{}]", self.key(item)), all);
                }
            }
            Value::Null => {}
            Value::Array(_) | Value::String(_) | Value::Number(_) | Value::Bool(_) => {
                all.insert(path.to_owned(), value.clone());
            }
        }
    }
}

/// Whether a path is that of a field that we own, or lies inside one.
fn is_in(path: &str, ours: &str) -> bool {
    path.strip_prefix(ours).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

/// Fields of a Service that the server sets and removes with the type.
fn follows_type(path: &str, edited: &Value) -> bool {
    const FIELDS: &str = "allocateLoadBalancerNodePorts clusterIP clusterIPs externalTrafficPolicy \
        healthCheckNodePort internalTrafficPolicy ipFamilies ipFamilyPolicy loadBalancerClass";
    let field = path.strip_prefix("spec.").unwrap_or_default();
    edited["spec"]["type"] != "ClusterIP" && FIELDS.split(' ').any(|name| name == field)
}

/// Whether the Service selects the Pods, and its port is that of our container. The EndpointSlice controller does not
/// run in the tests, because no Pods exist there. This is a model of its `labels.Set.AsSelector`, and of `FindPort` in
/// k8s.io/endpointslice, which takes the first container with a port of that name. All containers of a Pod share its
/// ports.
fn check_service_port(web: &Value, deployment: &Value, service: &Value) -> Result<(), String> {
    let template = &deployment["spec"]["template"];
    let labels = &template["metadata"]["labels"];
    let selector = service["spec"]["selector"].as_object();
    if selector.is_none_or(|selector| selector.iter().any(|(name, value)| labels[name] != *value)) {
        return Err(format!("the Service selects {}, the Pods have {labels}", service["spec"]["selector"]));
    }
    let port = &service["spec"]["ports"][0];
    let target = &port["targetPort"];
    let mut found = None;
    for list in ["containers", "initContainers"] {
        for container in template["spec"][list].as_array().into_iter().flatten() {
            let is_there = |one: &&Value| {
                (one["name"] == *target || one["containerPort"] == *target)
                    && one["protocol"] == port["protocol"]
            };
            let ports = container["ports"].as_array().into_iter().flatten();
            let is_pod_wide = list == "containers" || container["restartPolicy"] == "Always";
            if is_pod_wide && found.is_none() {
                found = ports.into_iter().find(is_there).map(|port| (container, port));
            }
        }
    }
    match found {
        Some((_, port)) if port["containerPort"] == web["spec"]["port"] => Ok(()),
        Some((container, port)) => {
            Err(format!("the Service leads to {} of container {}", port["containerPort"], container["name"]))
        }
        None => Err(format!("the Service leads to {target}, which no container has")),
    }
}
