//! The desired children of an object, and the promises about them, when the operator has nothing left to do. Nothing in this
//! file does I/O.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use listwatch::resource::kinds::{ConfigMap, Secret};
use listwatch_operators::{
    BuiltIn,
    copyrator::{
        CopyratorRule,
        copy::{Copyable, Original},
    },
    database::{self, Database, DatabaseFlags},
    memcached::{self, Memcached, MemcachedFlags},
    mywebserver::{self, MyWebserver},
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::{Child, Subject};
use crate::client::condition;

/// A kind of children: its name, its version, and its resource.
pub type ChildKind = [&'static str; 3];

const CONFIG_MAP: ChildKind = ["ConfigMap", "v1", "configmaps"];
const CRON_JOB: ChildKind = ["CronJob", "batch/v1", "cronjobs"];
const DEPLOYMENT: ChildKind = ["Deployment", "apps/v1", "deployments"];
const POD_DISRUPTION_BUDGET: ChildKind = ["PodDisruptionBudget", "policy/v1", "poddisruptionbudgets"];
const SECRET: ChildKind = ["Secret", "v1", "secrets"];
const SERVICE: ChildKind = ["Service", "v1", "services"];
const STATEFUL_SET: ChildKind = ["StatefulSet", "apps/v1", "statefulsets"];

/// The desired children of an object: the fields that we own, and their values. First the one that is rolled out.
pub fn wanted(operator: BuiltIn, owner: &Value) -> Vec<(ChildKind, Value)> {
    fn read<T: DeserializeOwned>(owner: &Value) -> T {
        T::deserialize(owner).unwrap()
    }
    match operator {
        BuiltIn::Mywebserver => {
            let children = mywebserver::desired(&read::<MyWebserver>(owner));
            vec![(DEPLOYMENT, json!(children.deployment)), (SERVICE, json!(children.service))]
        }
        BuiltIn::Memcached => {
            let image = MemcachedFlags::default().memcached_image;
            let children = memcached::desired(&read::<Memcached>(owner), &image);
            vec![(DEPLOYMENT, json!(children.deployment)), (SERVICE, json!(children.service))]
        }
        BuiltIn::Database => {
            let database: Database = read(owner);
            let DatabaseFlags { database_image, database_pod_cidrs } = DatabaseFlags::default();
            let image = format!("{database_image}:{}", database.spec.version);
            let children = database::desired(&database, &image, &database_pod_cidrs);
            let backup = children.backup.map(|backup| (CRON_JOB, json!(backup)));
            let name = &database.metadata.name;
            let secrets = [name.to_string(), format!("{name}-replication")].map(|name| {
                let (namespace, labels) = (&database.metadata.namespace, &children.set.metadata.labels);
                (SECRET, json!({"metadata": {"name": name, "namespace": namespace, "labels": labels}}))
            });
            let all = [
                (STATEFUL_SET, json!(children.set)),
                (SERVICE, json!(children.primary)),
                (SERVICE, json!(children.instances)),
                (CONFIG_MAP, json!(children.scripts)),
                (POD_DISRUPTION_BUDGET, json!(children.budget)),
            ];
            all.into_iter().chain(secrets).chain(backup).collect()
        }
        BuiltIn::Copyrator if owner["ruleType"] == "secret" => vec![(SECRET, copy::<Secret>(owner))],
        BuiltIn::Copyrator => vec![(CONFIG_MAP, copy::<ConfigMap>(owner))],
    }
}

/// The object that a rule copies.
pub fn source(rule: &Value) -> (&'static str, Value) {
    let [name, namespace] = ["name", "namespace"].map(|field| &rule["metadata"][field]);
    let metadata = json!({"name": name, "namespace": namespace, "labels": rule["selector"]});
    if rule["ruleType"] == "secret" {
        let data = json!({"password": "YQ=="});
        return ("secrets", json!({"metadata": metadata, "type": "Opaque", "data": data}));
    }
    ("configmaps", json!({"metadata": metadata, "data": {"color": "red"}}))
}

fn copy<K: Copyable>(owner: &Value) -> Value {
    let rule = CopyratorRule::deserialize(owner).unwrap();
    let mut source = source(owner).1;
    source["metadata"]["resourceVersion"] = "1".into();
    let source = Arc::new(K::deserialize(source).unwrap());
    let target = owner["targetNamespaces"]["include"][0].as_str().unwrap();
    json!(Original::new(&rule, &Arc::new(rule.spec.clone().unwrap()), source).copy_for(target))
}

/// An object without the versions and times of the server, and without its status.
pub fn without_counters(object: &Value) -> Value {
    let mut object = object.clone();
    object.as_object_mut().unwrap().retain(|field, _| !["apiVersion", "kind", "status"].contains(&&**field));
    let metadata = object["metadata"].as_object_mut().unwrap();
    metadata.retain(|field, _| !["resourceVersion", "generation", "managedFields"].contains(&field.as_str()));
    object
}

/// The fields of a child that we own according to the page for users. A unit test checks that the page is right.
fn ours(operator: BuiltIn, kind: &str) -> Vec<String> {
    let page = match operator {
        BuiltIn::Copyrator => include_str!("../../../docs/copyrator.md"),
        BuiltIn::Database => include_str!("../../../docs/database.md"),
        BuiltIn::Memcached => include_str!("../../../docs/operator-sdk.md"),
        BuiltIn::Mywebserver => include_str!("../../../docs/mywebserver.md"),
    };
    let (_, section) = page.split_once("## Fields of the operator").unwrap();
    let lines = section.split("```").nth(1).unwrap().lines();
    let lines = lines.skip_while(|line| *line != kind).skip(1).take_while(|line| line.starts_with(' '));
    lines.map(|line| line.trim().to_owned()).collect()
}

/// How the owner of a child is known.
#[derive(PartialEq)]
enum Identity {
    /// By an ownerReference.
    Controller,
    /// By annotations: the owner is in another namespace.
    Marks,
    /// By labels: it outlives its owner, and is not kept as it was created.
    Labels,
}

impl Child {
    fn identity(&self) -> Identity {
        let metadata = &self.wanted["metadata"];
        match (metadata["ownerReferences"].is_array(), metadata["annotations"].is_object()) {
            (true, _) => Identity::Controller,
            (false, true) => Identity::Marks,
            (false, false) => Identity::Labels,
        }
    }

    /// Whether an object with the name of this child belongs to `owner`.
    pub fn is_ours(&self, owner: &Value, live: &Value) -> bool {
        let (wanted, live) = (&self.wanted["metadata"], &live["metadata"]);
        let has_all =
            |field: &str, keys: &[&str]| keys.iter().all(|key| live[field][key] == wanted[field][key]);
        let mut owners = live["ownerReferences"].as_array().into_iter().flatten();
        let controller = owners.find(|by| by["controller"] == true);
        match self.identity() {
            Identity::Controller => {
                controller.is_some_and(|controller| controller["uid"] == owner["metadata"]["uid"])
            }
            // An object with a controller is the controller's.
            Identity::Marks => {
                controller.is_none()
                    && has_all("annotations", &["flant.com/rule", "flant.com/rule-uid", "flant.com/place"])
            }
            Identity::Labels => {
                has_all("labels", &["app.kubernetes.io/instance", "app.kubernetes.io/managed-by"])
            }
        }
    }

    /// Whether the operator must delete this child and create it again, because a field that cannot be changed back was edited.
    fn is_replaced(&self) -> bool {
        let (edited, wanted) = (&self.edited, &self.wanted);
        let has_other_address = |wanted: &Value| wanted.is_string() && edited["spec"]["clusterIP"] != *wanted;
        self.identity() != Identity::Labels && edited["immutable"] == true
            || has_other_address(&wanted["spec"]["clusterIP"])
            || !edited["metadata"]["deletionTimestamp"].is_null()
    }
}

/// An object, its children as the last edit left them, and all as they are now.
pub struct Kept<'a> {
    pub subject: &'a Subject,
    pub owner: &'a Value,
    /// By path.
    pub live: &'a HashMap<String, Value>,
    /// The writes of the operator since the last edits. If the server refused the first patch of a child, because a field of
    /// another writer made one of ours invalid, then the whole Pod template is reset, or the families of a Service, as the pages
    /// for users say.
    pub written: &'a [String],
}

impl Kept<'_> {
    /// One line for each promise that is broken.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let (mut all_ours, mut all_stay) = (true, true);
        for child in &self.subject.children {
            let Some(live) = self.live.get(&child.path) else {
                problems.push(format!("{} does not exist", child.path));
                continue;
            };
            let is_ours = child.is_ours(self.owner, live);
            all_ours &= is_ours || child.identity() == Identity::Labels;
            if !live["metadata"]["deletionTimestamp"].is_null() {
                all_stay = false;
                if !child.is_replaced() {
                    problems.push(format!("{} was deleted", child.path));
                }
                continue;
            }
            if is_ours {
                for path in self.ours(child) {
                    let [wanted, got] = [&child.wanted, live].map(|object| self.field(object, &path));
                    if wanted != got && !(wanted.is_null() && *got == false) {
                        problems.push(format!("{} {path}: wanted {wanted}, got {got}", child.path));
                    }
                }
            }
            if child.edited["metadata"]["uid"] == live["metadata"]["uid"] {
                // A reference to the owner is removed from what outlives it, whatever its labels are.
                let is_ours = is_ours || child.identity() == Identity::Labels;
                self.compare(child, live, is_ours, &mut problems);
            } else if !child.edited.is_null() && !child.is_replaced() {
                problems.push(format!("{} was deleted and created again", child.path));
            }
        }
        if self.subject.operator == BuiltIn::Mywebserver
            && let [Some(deployment), Some(service)] =
                [0, 1].map(|index| self.live.get(&self.subject.children[index].path))
            && all_ours
            && let Err(text) = check_service_port(self.owner, deployment, service)
        {
            problems.push(text);
        }
        self.status(all_ours, all_stay, &mut problems);
        problems
    }

    fn ours(&self, child: &Child) -> Vec<String> {
        match child.identity() {
            // The garbage collector would delete it with its owner.
            Identity::Labels => ["ours", self.owner["metadata"]["uid"].as_str().unwrap()]
                .map(|key| format!("metadata.ownerReferences[{key}]"))
                .into(),
            Identity::Controller | Identity::Marks => ours(self.subject.operator, child.kind[0]),
        }
    }

    /// The fields that we do not own have the values of the last edit.
    fn compare(&self, child: &Child, live: &Value, is_ours: bool, problems: &mut Vec<String>) {
        let [before, after] = [&child.edited, live].map(|object| self.leaves(&without_counters(object)));
        let paths: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
        let ours = self.ours(child);
        // If the whole parent was missing (our container, or its probe), it is restored with its defaults.
        let is_restored = |path: &str| {
            let ends = path.match_indices('.').map(|(end, _)| &path[..=end]);
            let mut missing = ends.filter(|parent| !before.keys().any(|path| path.starts_with(parent)));
            missing.any(|parent| ours.iter().any(|ours| ours.starts_with(parent)))
        };
        let refused = format!("PATCH {} 422", child.line);
        for path in paths {
            let [was, is] = [&before, &after].map(|leaves| leaves.get(path).unwrap_or(&Value::Null));
            let is_of_ours = is_ours && (ours.iter().any(|ours| is_in(path, ours)) || is_restored(path));
            let follows = child.kind == SERVICE && follows_type(path, &child.edited);
            let can_be_reset = ["spec.template.", "spec.jobTemplate.spec.template.", "spec.ipFamil"]
                .iter()
                .any(|start| path.starts_with(start));
            let is_reset = can_be_reset && self.written.contains(&refused);
            if was != is && !is_of_ours && !follows && !is_reset {
                problems.push(format!("{} {path}: is not ours, was {was}, is {is}", child.path));
            }
        }
    }

    fn status(&self, all_ours: bool, all_stay: bool, problems: &mut Vec<String>) {
        let status = &self.owner["status"];
        let is_rolled_out = match self.subject.children[0].kind {
            DEPLOYMENT | STATEFUL_SET => self.live.get(&self.subject.children[0].path).is_some_and(|child| {
                child["status"]["observedGeneration"] == child["metadata"]["generation"]
            }),
            _ => true,
        };
        if status["observedGeneration"] != self.owner["metadata"]["generation"] {
            problems.push(format!("status.observedGeneration is {}", status["observedGeneration"]));
        }
        let [ready, stalled, mutated] =
            ["Ready", "Stalled", "Mutated"].map(|name| condition(self.owner, name).unwrap_or(&Value::Null));
        let conditions = format!("Ready is {ready}, Stalled is {stalled}, Mutated is {mutated}");
        if !all_stay || !all_ours {
            let is_conflict = match self.subject.operator {
                BuiltIn::Copyrator => {
                    // The annotation may name a rule in a namespace that the operator does not see.
                    ["NameConflict", "OlderWins"]
                        .iter()
                        .any(|reason| status["failures"][0]["reason"] == *reason)
                }
                BuiltIn::Database | BuiltIn::Memcached | BuiltIn::Mywebserver => {
                    stalled["status"] == "True" && stalled["reason"] == "NameConflict"
                }
            };
            if ready["status"] != "False" || all_stay && !is_conflict {
                problems.push(format!("a child has another owner, or is being deleted, and {conditions}"));
            }
        } else if !stalled.is_null() || !mutated.is_null() || is_rolled_out && ready["status"] != "True" {
            problems.push(format!("all children are ours, and {conditions}"));
        }
    }

    /// A field by its path, as the pages for users write it.
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
        if item["controller"] == true && item["uid"] == self.owner["metadata"]["uid"] {
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
            Value::Array(items)
                if [".containers", ".ownerReferences", ".volumes"].iter().any(|end| path.ends_with(end)) =>
            {
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

/// Whether a path is a field that we own, or lies inside one.
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

/// Whether the Service selects the Pods, and its port leads to our container. The EndpointSlice controller does not
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
