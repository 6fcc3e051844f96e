//! Scenarios of Databases: the actions of users, what must be there after them, and the data that must never be lost.

use std::collections::BTreeMap;

use listwatch::{cluster::Cluster, resource::kinds::StatefulSet};
use listwatch_operators::database::Database;
use serde_json::{Value, json};

use crate::{
    expect::{
        child_problem, condition, controller, field_differences, list, name, ready_problems, scope,
        store_differences,
    },
    network::Network,
    scenario::{NAMES, NAMESPACES, Scenario},
};

const DATABASES: &str = "/apis/app.example.com/v1/databases";
const SETS: &str = "/apis/apps/v1/statefulsets";
const CONFIG_MAPS: &str = "/api/v1/configmaps";
const CLAIMS: &str = "/api/v1/persistentvolumeclaims";
const JOBS: &str = "/apis/batch/v1/jobs";
const SECRETS: &str = "/api/v1/secrets";
/// What the operator creates and may delete.
const CHILDREN: [&str; 5] = [
    SETS,
    "/api/v1/services",
    CONFIG_MAPS,
    "/apis/policy/v1/poddisruptionbudgets",
    "/apis/batch/v1/cronjobs",
];
const OURS: &str = "app.kubernetes.io/managed-by=database-operator";
/// Nobody deletes the namespace [`NAMESPACES`]\[0\]. Of the Databases in it, only this one may have `deletionPolicy: Delete`.
const DELETABLE: &str = "c";
/// No such time comes during a scenario.
const NEVER: &str = "0 0 29 2 *";

#[derive(Clone, Copy, Debug)]
enum Action {
    Create,
    Change,
    MakeInvalid,
    Delete,
    EditChild,
    DisownChild,
    UnlabelChild,
    DeleteChild,
    TakeName,
    FreeName,
    BindClaim,
    EmptyNamespace,
    AddFinalizer,
    RemoveFinalizer,
}

/// Each kind with its weight in the random choice.
const ACTIONS: [(Action, usize); 14] = [
    (Action::Create, 5),
    (Action::Change, 6),
    (Action::MakeInvalid, 1),
    (Action::Delete, 2),
    (Action::EditChild, 3),
    (Action::DisownChild, 1),
    (Action::UnlabelChild, 1),
    (Action::DeleteChild, 2),
    (Action::TakeName, 1),
    (Action::FreeName, 1),
    (Action::BindClaim, 2),
    (Action::EmptyNamespace, 1),
    (Action::AddFinalizer, 2),
    (Action::RemoveFinalizer, 2),
];

/// The collections of Databases and of what the operator creates.
pub fn collections() -> Vec<&'static str> {
    [&[DATABASES][..], &CHILDREN, &[CLAIMS, SECRETS]].concat()
}

/// The path of an object, or of its collection if the name is empty.
fn path(collection: &str, namespace: &str, name: &str) -> String {
    let (root, plural) = collection.rsplit_once('/').unwrap();
    format!("{root}/namespaces/{namespace}/{plural}/{name}").trim_end_matches('/').to_owned()
}

/// The names of the children in a collection.
fn names(collection: &str, database: &str) -> Vec<String> {
    let suffixes: &[&str] = match collection.rsplit_once('/').unwrap().1 {
        "services" => &["", "-ro"],
        "configmaps" => &["-scripts"],
        "cronjobs" => &["-backup"],
        _ => &[""],
    };
    suffixes.iter().map(|suffix| format!("{database}{suffix}")).collect()
}

impl Scenario {
    pub async fn act_on_databases(&mut self) {
        let action = self.one_of(&ACTIONS);
        let random = &mut self.random;
        let name = random.choice(NAMES).unwrap();
        let namespace = if random.u32(..4) > 0 { NAMESPACES[0] } else { NAMESPACES[1] };
        let mut spec = json!({"size": random.u16(1..4), "version": random.choice(["15.1", "15.2", "15.2", "16.0"]).unwrap()});
        if random.bool() {
            spec["storage"] = random.choice(["1Gi", "2Gi", "3Gi"]).unwrap().into();
        }
        if random.bool() {
            let schedule = if random.u32(..6) == 0 { "every night" } else { NEVER };
            spec["backup"] = json!({"schedule": schedule, "keep": random.u16(1..4)});
        }
        if name == DELETABLE {
            spec["deletionPolicy"] = random.choice(["Delete", "Delete", "Retain"]).unwrap().into();
        }
        let collection = random.choice(CHILDREN).unwrap();
        let child_name = random.choice(names(collection, name)).unwrap();
        let database = path(DATABASES, namespace, name);
        let child = path(collection, namespace, &child_name);
        match action {
            Action::Create => {
                let object = json!({"apiVersion": "app.example.com/v1", "kind": "Database",
                    "metadata": {"name": name}, "spec": spec});
                self.post(&path(DATABASES, namespace, ""), &object).await;
            }
            Action::Change => {
                let fields = ["size", "version", "storage", "backup", "deletionPolicy"];
                let field = self.random.choice(fields).unwrap();
                self.patch(&database, &json!({"spec": {field: spec[field]}})).await;
            }
            Action::MakeInvalid => drop(self.patch(&database, &json!({"spec": {"size": "eighty"}})).await),
            Action::Delete => {
                let policy = self.random.choice(["Background", "Background", "Foreground", "Orphan"]);
                self.delete(&database, policy.unwrap()).await;
            }
            Action::EditChild => drop(self.patch(&child, &edit(collection)).await),
            Action::DisownChild => {
                self.patch(&child, &json!({"metadata": {"ownerReferences": null}})).await;
            }
            Action::UnlabelChild => {
                let label = json!({"app.kubernetes.io/managed-by": null});
                self.patch(&child, &json!({"metadata": {"labels": label}})).await;
            }
            Action::DeleteChild => {
                let policy = self.random.choice(["Background", "Foreground", "Orphan"]).unwrap();
                self.delete(&child, policy).await;
            }
            Action::TakeName => {
                let mut object = foreign_object(collection);
                object["metadata"] = json!({"name": child_name, "labels": {"app": "foreign"}});
                self.post(&path(collection, namespace, ""), &object).await;
            }
            Action::FreeName => {
                if self.network.get(&child).await.is_some_and(|object| controller(&object).is_none()) {
                    self.delete(&child, "Background").await;
                }
            }
            Action::BindClaim => {
                let claim = path(CLAIMS, namespace, &format!("data-{name}-{}", self.random.u16(..3)));
                self.patch(&format!("{claim}/status"), &json!({"status": {"phase": "Bound"}})).await;
            }
            Action::EmptyNamespace => {
                if self.delete("/api/v1/namespaces/shop", "Background").await >= 300 {
                    self.post("/api/v1/namespaces", &json!({"metadata": {"name": "shop"}})).await;
                }
            }
            Action::AddFinalizer => {
                let path = if self.random.bool() { &database } else { &child };
                self.add_finalizer(path).await;
            }
            Action::RemoveFinalizer => {
                self.remove_finalizer(&database).await;
                self.remove_finalizer(&child).await;
            }
        }
    }

    /// Checks that each claim and each Secret that was ever there still is, with the same password, unless a user may have deleted it.
    pub async fn check_data(&mut self) {
        let mut present = BTreeMap::new();
        for object in data(&self.network).await {
            let instance = &object["metadata"]["labels"]["app.kubernetes.io/instance"];
            if object["metadata"]["namespace"] == NAMESPACES[0] && instance != DELETABLE {
                let identity = json!([object["metadata"]["uid"], object["data"]]);
                present.insert(name(&object), identity);
            }
        }
        for (object, identity) in &self.data {
            if present.get(object) != Some(identity) {
                self.network.violation(format!("{object} was lost or changed"));
            }
        }
        self.data = present;
    }
}

/// The claims and Secrets of all Databases.
async fn data(network: &Network) -> Vec<Value> {
    let (label, value) = OURS.split_once('=').unwrap();
    let (claims, secrets) = (list(network, CLAIMS).await, list(network, SECRETS).await);
    let is_ours = |object: &Value| object["metadata"]["labels"][label] == value;
    let kinds = [("PersistentVolumeClaim", claims), ("Secret", secrets)];
    let with_kind = kinds.into_iter().flat_map(|(kind, all)| {
        all.into_iter().map(move |mut object| {
            object["kind"] = kind.into();
            object
        })
    });
    with_kind.filter(is_ours).collect()
}

/// An edit of fields that the operator owns.
fn edit(collection: &str) -> Value {
    match collection.rsplit_once('/').unwrap().1 {
        "statefulsets" => json!({"spec": {"replicas": 7}}),
        "services" => json!({"spec": {"selector": {"app.kubernetes.io/instance": "edited"}}}),
        "configmaps" => json!({"data": {"size": "edited"}}),
        "cronjobs" => json!({"spec": {"schedule": "1 1 29 2 *"}}),
        _ => json!({"spec": {"maxUnavailable": 7}}),
    }
}

/// An object of another owner, without its name.
fn foreign_object(collection: &str) -> Value {
    let labels = json!({"app": "foreign"});
    let pod = json!({"metadata": {"labels": labels},
        "spec": {"containers": [{"name": "c", "image": "i"}], "restartPolicy": "Always"}});
    match collection.rsplit_once('/').unwrap().1 {
        "statefulsets" => {
            // Without a Pod: orphaned, it would keep the name of one of ours, until a user deletes it.
            json!({"spec": {"replicas": 0, "selector": {"matchLabels": labels}, "serviceName": "foreign",
                "template": pod}})
        }
        "services" => json!({"spec": {"ports": [{"port": 1}]}}),
        "configmaps" => json!({}),
        "cronjobs" => {
            let mut pod = pod;
            pod["spec"]["restartPolicy"] = "Never".into();
            json!({"spec": {"schedule": NEVER, "jobTemplate": {"spec": {"template": pod}}}})
        }
        _ => json!({"spec": {"selector": {"matchLabels": labels}}}),
    }
}

/// `15` in `15.1`.
fn major(version: &str) -> &str {
    version.split_once('.').map_or(version, |(major, _)| major)
}

/// All differences from the expected state.
pub async fn problems(databases: &[Value], network: &Network, cluster: &Cluster) -> Vec<String> {
    let mut problems = Vec::new();
    let mut children = Vec::new();
    for collection in CHILDREN {
        children.extend(list(network, collection).await.into_iter().map(|child| (collection, child)));
    }
    let data = data(network).await;
    for database in databases {
        problems.extend(database_problems(database, &children, &data));
    }
    for child in children.iter().map(|(_, child)| child).chain(&list(network, JOBS).await) {
        problems.extend(child_problem(child, databases));
    }
    let is_owner =
        |owner: &Value| databases.iter().any(|database| database["metadata"]["uid"] == owner["uid"]);
    for object in &data {
        let mut owners = object["metadata"]["ownerReferences"].as_array().into_iter().flatten();
        // A Pod that was orphaned may hold a claim back.
        if !owners.all(is_owner) && object["metadata"]["deletionTimestamp"].is_null() {
            problems.push(format!("the owner of {} does not exist", name(object)));
        }
    }
    let sets: Vec<Value> =
        children.into_iter().filter(|(collection, _)| *collection == SETS).map(|(_, set)| set).collect();
    problems.extend(store_differences(&cluster.watch_reconciled::<Database>(scope("")), "", databases));
    problems.extend(store_differences(
        &cluster.watch_children::<Database, StatefulSet>(scope(OURS)),
        OURS,
        &sets,
    ));
    problems
}

/// The problems of one Database, its children, its data and its status.
fn database_problems(database: &Value, children: &[(&str, Value)], data: &[Value]) -> Vec<String> {
    let (metadata, spec) = (&database["metadata"], &database["spec"]);
    let of = metadata["name"].as_str().unwrap();
    // Whether its data may be deleted, nobody can read either: it stays until a user corrects it.
    let Some(size) = spec["size"].as_i64() else {
        return ready_problems(database, &["InvalidSpec"]);
    };
    if !metadata["deletionTimestamp"].is_null() {
        return vec![format!("{} still exists", name(database))];
    }
    if condition(database, "Ready")["reason"] == "DataLost" && is_lost(database, data) {
        return ready_problems(database, &["DataLost"]);
    }
    let is_wanted = |collection: &&str| !collection.ends_with("/cronjobs") || !spec["backup"].is_null();
    let is_refused = spec["backup"]["schedule"] == "every night";
    let version = spec["version"].as_str().unwrap();
    let find = |collection: &str, child_name: &str| {
        let is_it = |(of, child): &&(&str, Value)| {
            *of == collection
                && child["metadata"]["name"] == child_name
                && child["metadata"]["namespace"] == metadata["namespace"]
        };
        children.iter().find(is_it).map(|(_, child)| child)
    };
    let is_ours = |child: &Value| controller(child).is_some_and(|owner| owner["uid"] == metadata["uid"]);
    let scripts = find(CONFIG_MAPS, &format!("{of}-scripts"));
    let are_scripts_taken = scripts.is_some_and(|scripts| !is_ours(scripts));
    let mut problems = Vec::new();
    let (mut is_taken, mut running) = (false, version.to_owned());
    for collection in CHILDREN.into_iter().filter(is_wanted) {
        for child_name in names(collection, of) {
            let Some(child) = find(collection, &child_name) else {
                let is_backup = collection.ends_with("/cronjobs");
                let waits = are_scripts_taken && (is_backup || collection == SETS);
                if !(waits || is_refused && is_backup) {
                    problems.push(format!("{} has no {child_name} in {collection}", name(database)));
                }
                continue;
            };
            if !is_ours(child) {
                is_taken = true;
                continue;
            }
            if collection == SETS {
                let image = &child["spec"]["template"]["spec"]["containers"][0]["image"];
                running = image.as_str().unwrap().trim_start_matches("postgres:").to_owned();
            }
            problems.extend(child_differences(collection, child, database, is_refused));
        }
    }
    if !database["spec"]["backup"].is_null() || children.is_empty() {
        // The CronJob is checked above.
    } else if children.iter().any(|(collection, child)| collection.ends_with("/cronjobs") && is_ours(child)) {
        problems.push(format!("{} has a CronJob without backups", name(database)));
    }
    let is_supported = major(&running) == major(version);
    if is_supported && running != version {
        problems.push(format!("{} runs {running}", name(database)));
    }
    let mut reasons = Vec::new();
    reasons.extend(is_taken.then_some("NameConflict"));
    reasons.extend(is_refused.then_some("InvalidSpec"));
    reasons.extend((!is_supported).then_some("UnsupportedVersion"));
    problems.extend(ready_problems(database, &reasons));
    if is_taken {
        return problems;
    }
    let status = [
        ("/status/version", json!(running)),
        ("/status/readyInstances", json!(size)),
        ("/status/primary", json!(format!("{of}-0"))),
    ];
    let status: Vec<_> = status.iter().map(|(pointer, value)| (*pointer, value)).collect();
    problems.extend(field_differences(database, &status));
    problems.extend(data_problems(database, size, data));
    problems
}

/// Whether the primary's claim with the data is gone, of this Database or of an earlier one.
fn is_lost(database: &Value, data: &[Value]) -> bool {
    let metadata = &database["metadata"];
    let prefix = format!("data-{}-", metadata["name"].as_str().unwrap());
    let of_database = |claim: &&Value| claim["metadata"]["namespace"] == metadata["namespace"];
    let mut claims = data.iter().filter(of_database).map(|claim| &claim["metadata"]);
    let primary = claims.clone().find(|claim| claim["name"] == format!("{prefix}0"));
    match database["status"]["primaryClaim"].as_str().unwrap_or_default() {
        "" => primary.is_none() && claims.any(|claim| claim["name"].as_str().unwrap().starts_with(&prefix)),
        known => primary.is_none_or(|claim| claim["uid"] != known),
    }
}

fn child_differences(collection: &str, child: &Value, database: &Value, is_refused: bool) -> Vec<String> {
    let spec = &database["spec"];
    let mut should = vec![("/metadata/labels/app.kubernetes.io~1managed-by", json!("database-operator"))];
    match collection.rsplit_once('/').unwrap().1 {
        "statefulsets" => should.push(("/spec/replicas", spec["size"].clone())),
        "services" => {
            let instance = "/spec/selector/app.kubernetes.io~1instance";
            should.push((instance, database["metadata"]["name"].clone()));
        }
        "configmaps" => should.push(("/data/size", json!(spec["size"].to_string()))),
        // One with an earlier schedule stays.
        "cronjobs" if is_refused => should.clear(),
        "cronjobs" => should.push(("/spec/schedule", spec["backup"]["schedule"].clone())),
        _ => should.push(("/spec/maxUnavailable", json!(1))),
    }
    let should: Vec<_> = should.iter().map(|(pointer, value)| (*pointer, value)).collect();
    field_differences(child, &should)
}

/// Whether all claims and Secrets are there, as large as wanted, and have no owner.
fn data_problems(database: &Value, size: i64, data: &[Value]) -> Vec<String> {
    let (metadata, spec) = (&database["metadata"], &database["spec"]);
    let of = metadata["name"].as_str().unwrap();
    let mut wanted = vec![of.to_owned(), format!("{of}-replication")];
    wanted.extend((0..size).map(|index| format!("data-{of}-{index}")));
    wanted.extend((!spec["backup"].is_null()).then(|| format!("{of}-backups")));
    let ours: Vec<&Value> = data
        .iter()
        .filter(|object| {
            object["metadata"]["namespace"] == metadata["namespace"]
                && object["metadata"]["labels"]["app.kubernetes.io/instance"] == *of
        })
        .collect();
    let is_there = |wanted: &&String| ours.iter().any(|object| object["metadata"]["name"] == **wanted);
    let missing = wanted.iter().filter(|wanted| !is_there(wanted));
    let mut problems: Vec<_> =
        missing.map(|missing| format!("{} has no {missing}", name(database))).collect();
    let gib =
        |storage: &Value| storage.as_str().unwrap_or("1Gi").trim_end_matches("Gi").parse::<u32>().unwrap();
    for object in ours {
        if object["metadata"]["ownerReferences"].as_array().is_some_and(|owners| !owners.is_empty()) {
            problems.push(format!("{} has an owner", name(object)));
        }
        let storage = &object["spec"]["resources"]["requests"]["storage"];
        if object["status"]["phase"] == "Bound" && gib(storage) < gib(&spec["storage"]) {
            problems.push(format!("{} has only {storage}", name(object)));
        }
    }
    problems
}
