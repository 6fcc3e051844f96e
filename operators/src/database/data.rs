//! Passwords and claims, which outlive a Database unless its deletion policy says otherwise. Nothing in this file does I/O.

use base64::{
    Engine,
    prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD},
};
use listwatch::resource::{
    INSTANCE, Key, Labels, ObjectMeta, OwnerReference, instance_of,
    kinds::{PersistentVolumeClaim, PersistentVolumeClaimStatus, Pod, Secret},
    without_annotations,
};
use ring::rand::{SecureRandom, SystemRandom};
use serde::Deserialize;
use serde_json::{Value, json};
use smol_str::{SmolStr, format_smolstr};

use super::{
    CONTAINER, Database, MANAGED_BY, OPERATOR, PORT,
    desired::{BACKUP, NOT_PRUNED, labels, volume},
    types::{DatabaseDeletionPolicy, SIZE_MAX, gib},
};

/// The Secret of a role, with a new random password. The applications' Secret also has an address.
pub(super) fn secret(database: &Database, name: &str, role: &str) -> Secret {
    let mut random = [0; 24];
    SystemRandom::new().fill(&mut random).expect("the system has random numbers");
    let password = BASE64_URL_SAFE_NO_PAD.encode(random);
    let mut data = vec![("username", role.to_owned()), ("password", password.clone())];
    if role == "app" {
        let host = &database.metadata.name;
        let namespace = database.metadata.namespace.as_deref().unwrap_or_default();
        let tls = if database.spec.tls.is_some() { "?sslmode=require" } else { "" };
        data.push(("uri", format!("postgresql://app:{password}@{host}.{namespace}.svc:{PORT}/app{tls}")));
    }
    let base64 = |(key, value): (&str, String)| (key.to_owned(), BASE64_STANDARD.encode(value));
    Secret {
        metadata: outliving(database, name, labels(database)),
        r#type: "kubernetes.io/basic-auth".into(),
        data: data.into_iter().map(base64).collect(),
        immutable: false,
    }
}

/// The name of the claim that the StatefulSet controller creates for an instance.
pub(super) fn claim_name(database: &Database, ordinal: i32) -> SmolStr {
    format_smolstr!("data-{}-{ordinal}", database.metadata.name)
}

/// Whether a claim has the data of an instance, perhaps one that was scaled away. The labels do not say so: a copy that is made from the
/// YAML of a claim also has them.
pub(super) fn is_of_instance(database: &Database, claim: &ObjectMeta) -> bool {
    (0..SIZE_MAX).any(|ordinal| claim.name == claim_name(database, ordinal))
}

/// Whether an object with the name of a Secret or Job of this Database also has the labels of the operator. Without them, it is an object
/// of a user.
pub(super) fn has_labels(database: &Database, metadata: &ObjectMeta) -> bool {
    let wanted = [(MANAGED_BY, OPERATOR), (INSTANCE, &*database.metadata.name)];
    wanted.into_iter().all(|(label, value)| metadata.labels.get(label) == Some(value))
}

/// A claim that a StatefulSet does not create.
pub(super) fn claim(database: &Database, name: &str, labels: Labels) -> PersistentVolumeClaim {
    PersistentVolumeClaim {
        metadata: outliving(database, name, labels),
        spec: volume(&database.spec),
        ..PersistentVolumeClaim::default()
    }
}

/// The metadata of an object without an owner.
fn outliving(database: &Database, name: &str, labels: Labels) -> ObjectMeta {
    ObjectMeta {
        owner_references: Box::default(),
        annotations: [NOT_PRUNED].into_iter().collect(),
        ..ObjectMeta::of_child(database, name, labels)
    }
}

/// The operations that make a claim or a Secret owned or not owned. The garbage collector deletes what is owned after its owner. An
/// earlier Database of this name is also such an owner: it would delete what this Database has written since.
pub(super) fn changes_of_owner(
    database: &Database,
    metadata: &ObjectMeta,
    policy: DatabaseDeletionPolicy,
) -> Vec<Value> {
    let wanted = match policy {
        DatabaseDeletionPolicy::Retain => None,
        DatabaseDeletionPolicy::Delete => Some(OwnerReference {
            controller: false,
            block_owner_deletion: false,
            ..OwnerReference::controlled_by(database)
        }),
    };
    let owners = &metadata.owner_references;
    let is_unwanted = |owner: &OwnerReference| {
        owner.is_a::<Database>() && owner.name == database.metadata.name && Some(owner) != wanted.as_ref()
    };
    // One by one, because the references of others may have fields that we would change. The last one first.
    let unwanted = owners.iter().enumerate().rev().filter(|(_, owner)| is_unwanted(owner));
    let remove = |index: usize| json!({"op": "remove", "path": format!("/metadata/ownerReferences/{index}")});
    let mut operations: Vec<Value> = unwanted.map(|(index, _)| remove(index)).collect();
    if let Some(wanted) = &wanted
        && !owners.contains(wanted)
    {
        operations.push(if owners.is_empty() {
            json!({"op": "add", "path": "/metadata/ownerReferences", "value": [wanted]})
        } else {
            json!({"op": "add", "path": "/metadata/ownerReferences/-", "value": wanted})
        });
    }
    operations
}

/// A claim, with only its size: anybody may give our labels to claims with large annotations.
#[derive(Debug, Deserialize)]
pub(super) struct Claim {
    #[serde(deserialize_with = "without_annotations")]
    pub(super) metadata: ObjectMeta,
    spec: ClaimSpec,
    #[serde(default)]
    pub(super) status: PersistentVolumeClaimStatus,
}

#[derive(Debug, Deserialize)]
struct ClaimSpec {
    resources: ClaimResources,
}

#[derive(Debug, Deserialize)]
struct ClaimResources {
    requests: ClaimRequests,
}

#[derive(Debug, Deserialize)]
struct ClaimRequests {
    storage: SmolStr,
}

listwatch::kind!(Claim: PersistentVolumeClaim);

/// The Pod of an instance, with only whether it accepts connections, and what it runs; or that of a backup, with what it has written.
#[derive(Debug, Deserialize)]
pub(super) struct Instance {
    #[serde(deserialize_with = "without_annotations")]
    pub(super) metadata: ObjectMeta,
    #[serde(default)]
    status: InstanceStatus,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct InstanceStatus {
    conditions: Vec<InstanceCondition>,
    container_statuses: Vec<InstanceContainer>,
}

#[derive(Debug, Deserialize)]
struct InstanceCondition {
    r#type: SmolStr,
    status: SmolStr,
}

#[derive(Debug, Deserialize)]
struct InstanceContainer {
    name: SmolStr,
    image: SmolStr,
    #[serde(default)]
    state: ContainerState,
}

#[derive(Debug, Default, Deserialize)]
struct ContainerState {
    terminated: Option<Terminated>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Terminated {
    exit_code: i32,
    #[serde(default)]
    message: SmolStr,
    #[serde(default)]
    finished_at: SmolStr,
}

listwatch::kind!(Instance: Pod);

/// The Database of which a Pod writes a backup.
pub(super) fn backed_up(pod: &Instance) -> Option<Key> {
    instance_of(pod).filter(|_| pod.metadata.labels.get("app.kubernetes.io/name") == Some(BACKUP))
}

impl Instance {
    /// Whether the Pod serves, and is not being deleted.
    pub(super) fn is_ready(&self) -> bool {
        let mut conditions = self.status.conditions.iter();
        !self.metadata.is_terminating()
            && conditions.any(|condition| condition.r#type == "Ready" && condition.status == "True")
    }

    /// The image that runs, as the kubelet reports it. In the spec of a Pod, anybody may set another one. Empty: none.
    pub(super) fn image(&self) -> &str {
        let mut containers = self.status.container_statuses.iter();
        containers.find(|container| container.name == CONTAINER).map_or("", |container| &container.image)
    }

    /// When a backup ended, and the bytes of its dump. `None` if it runs or has failed.
    pub(super) fn dump(&self) -> Option<(&str, i64)> {
        let mut containers = self.status.container_statuses.iter();
        let ended = containers.find(|container| container.name == CONTAINER)?.state.terminated.as_ref()?;
        let bytes = ended.message.trim().parse().ok().filter(|_| ended.exit_code == 0)?;
        Some((&ended.finished_at, bytes))
    }
}

/// The operation that lets a claim grow.
pub(super) fn growth(database: &Database, claim: &Claim) -> Option<Value> {
    let storage = &database.spec.storage;
    let grows = gib(storage)? > gib(&claim.spec.resources.requests.storage)?;
    // The API server refuses it before that.
    let is_bound = claim.status.phase == "Bound";
    (grows && is_bound)
        .then(|| json!({"op": "replace", "path": "/spec/resources/requests/storage", "value": storage}))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn database(spec: Value) -> Database {
        let metadata = json!({"name": "db", "namespace": "shop", "uid": "u1", "resourceVersion": "7"});
        serde_json::from_value(json!({"metadata": metadata, "spec": spec})).expect("a Database")
    }

    /// The whole list was written, so the reference of another owner got `blockOwnerDeletion: false`.
    #[test]
    fn only_references_to_a_database_of_this_name_change() {
        let database = database(json!({"size": 1, "version": "15"}));
        let owner = |kind: &str, uid: &str| {
            let api = if kind == "Database" { "app.example.com/v1" } else { "v1" };
            json!({"apiVersion": api, "kind": kind, "name": "db", "uid": uid})
        };
        let check = |owners: Value, policy: DatabaseDeletionPolicy, expected: Value| {
            let metadata = json!({"name": "db", "resourceVersion": "7", "ownerReferences": owners});
            let metadata = serde_json::from_value(metadata).expect("metadata");
            assert_eq!(Value::from(changes_of_owner(&database, &metadata, policy)), expected);
        };
        let remove = |index| json!({"op": "remove", "path": format!("/metadata/ownerReferences/{index}")});
        let three = json!([owner("Database", "u0"), owner("ConfigMap", "u2"), owner("Database", "u1")]);
        check(three.clone(), DatabaseDeletionPolicy::Retain, json!([remove(2), remove(0)]));
        check(three, DatabaseDeletionPolicy::Delete, json!([remove(0)]));
        check(json!([owner("ConfigMap", "u2")]), DatabaseDeletionPolicy::Retain, json!([]));
        let mut wanted = owner("Database", "u1");
        (wanted["controller"], wanted["blockOwnerDeletion"]) = (false.into(), false.into());
        let path = "/metadata/ownerReferences";
        let first = json!([{"op": "add", "path": path, "value": [wanted]}]);
        check(json!([]), DatabaseDeletionPolicy::Delete, first);
        let another = json!([{"op": "add", "path": format!("{path}/-"), "value": wanted}]);
        check(json!([owner("ConfigMap", "u2")]), DatabaseDeletionPolicy::Delete, another);
    }

    #[test]
    fn a_claim_grows_if_it_is_bound_and_smaller() {
        let grows = |storage: &str, present: &str, phase: &str| {
            let claim = json!({
                "metadata": {"name": "data-db-0", "resourceVersion": "7"},
                "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": present}}},
                "status": {"phase": phase},
            });
            let claim = serde_json::from_value(claim).expect("a claim");
            growth(&database(json!({"size": 1, "version": "15", "storage": storage})), &claim).is_some()
        };
        assert!(grows("2Gi", "1Gi", "Bound"));
        assert!(grows("10Gi", "9Gi", "Bound"));
        assert!(!grows("2Gi", "1Gi", "Pending"));
        assert!(!grows("2048Gi", "2Ti", "Bound"));
        assert!(!grows("1Gi", "2Gi", "Bound"));
        assert!(!grows("2Gi", "1500M", "Bound"), "a size that this operator never writes");
    }

    #[test]
    fn each_secret_has_a_password_of_its_own_and_that_of_applications_an_address() {
        let database = database(json!({"size": 1, "version": "15"}));
        let decoded = |secret: &Secret, key: &str| {
            let bytes = BASE64_STANDARD.decode(secret.data.get(key)?).expect("base64");
            Some(String::from_utf8(bytes).expect("text"))
        };
        let (app, replication) =
            (secret(&database, "db", "app"), secret(&database, "db-replication", "replication"));
        let password = decoded(&app, "password").expect("a password");
        assert_eq!(password.len(), 32);
        assert_eq!(decoded(&app, "uri"), Some(format!("postgresql://app:{password}@db.shop.svc:5432/app")));
        assert_ne!(decoded(&replication, "password"), Some(password));
        assert_eq!(decoded(&replication, "uri"), None);
    }
}
