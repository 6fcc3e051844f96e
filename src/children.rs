//! Creates, corrects and deletes the children of an object, unless they belong to another owner (NameConflict).
//!
//! ```text
//!   the child is missing                      POST, after a GET of the child and of the owner unless the owner is new
//!   the child differs from the desired one    PATCH with the differences, if the child still has the compared resourceVersion
//!   the child differs in an immutable field   dry run of a POST; if it helps, DELETE, and POST after the DELETED event
//!   the owner was deleted and created again   GET of the owner, DELETE of the old one's child, and POST after the DELETED event
//!   the object belongs to another owner       no write
//!   the object has lost its owner             no write, until an annotation asks for its adoption (`children/adopt.rs`)
//! ```
//!
//! [`Reconcile`] is one reconcile of one object: it keeps children, notes the outcomes, and turns them into conditions and Events
//! (`children/report.rs`). [`refusal`] has the reasons of refused writes, [`rollout_conditions`] and [`pods`] say why a workload is not
//! ready. [`once`] is for objects that outlive their owner, [`by_owner`] deletes the children of a deleted owner.
//!
//! A child is an object whose controller ownerReference has the uid of the owner. If another writer keeps reverting a correction,
//! the corrections pause for a while (`correction_backoff.rs`). If an admission webhook or policy changes a field in our writes, the
//! field keeps that value, and [`Outcome::mutations`] names it ([`admission`]).

mod admission;
mod adopt;
mod by_owner;
mod create;
mod delete;
mod from_yaml;
mod once;
pub(crate) mod outcome;
pub(crate) mod pods;
pub(crate) mod refusal;
mod refused_writes;
mod reconcile;
mod report;
pub(crate) mod reported;
mod reporter;
pub(crate) mod rollout_conditions;
mod reset;
mod statuses;

use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;
use tracing::info;

use crate::{
    client::Error,
    cluster::{Cluster, Watch},
    correction_backoff::{CHANGES, CORRECTIONS, CorrectionBackoff},
    resource::{
        Key, ObjectMeta, OwnerReference, Resource, diff,
        list::{Broken, BrokenCause, Found},
        owned_fields,
    },
};
use admission::{Difference, LastWrites};
use by_owner::ByOwner;
pub(crate) use by_owner::OfOwner;
use create::is_wanted;
pub use from_yaml::{InvalidManifest, from_yaml};
pub use outcome::{Child, Outcome, Stage, UNSEEN_RECHECK, Write};
pub use pods::{PodsOf, Trouble};
pub use reconcile::Reconcile;
pub use refusal::Refusal;
use refused_writes::RefusedWrites;
pub use reported::{Conditions, ObservedState, Reported};
pub(crate) use reporter::Reporter;
use reset::reset;
pub use rollout_conditions::{Rollout, Workload};
pub(crate) use statuses::{
    FINALIZER_REMOVED, OPERATOR_FAILED, PAUSED, Statuses, WATCH_FAILED, WithStatus, WithoutStatus,
};

/// The target of the lines in the log, also of those that the files of this chapter write.
const LOG: &str = module_path!();

/// The children of one kind, of all objects of an operator.
pub struct Children<K> {
    cluster: Cluster,
    watch: Watch<K>,
    /// The corrections that another writer keeps reverting.
    corrections: CorrectionBackoff,
    /// The writes that the API server has refused.
    refused: Arc<RefusedWrites>,
    /// The writes of children whose desired state has changed again.
    changes: CorrectionBackoff,
    last_writes: Arc<LastWrites>,
    /// The children of each owner.
    by_owner: Arc<ByOwner<K>>,
    /// The path of a label in the selector of new children, which that of a live child may lack.
    new_in_selector: Option<String>,
    /// The paths of the fields that are removed from a child if the desired one does not have them.
    owning: Vec<&'static str>,
}

/// To whom an object with the name of a child belongs.
enum Ownership {
    Ours,
    /// An owner with the name of our owner, but another uid.
    Namesake,
    /// Another owner, or none.
    Foreign,
}

impl<K: Resource + Serialize> Children<K> {
    /// Manages the children in a watch.
    pub fn new(cluster: &Cluster, watch: &Watch<K>) -> Children<K> {
        let last_writes = Arc::<LastWrites>::default();
        Children {
            cluster: cluster.clone(),
            watch: watch.clone(),
            corrections: CorrectionBackoff::new(CORRECTIONS),
            refused: Arc::default(),
            changes: CorrectionBackoff::new(CHANGES),
            by_owner: Arc::new(ByOwner::new(cluster, watch, &last_writes)),
            last_writes,
            new_in_selector: None,
            owning: Vec::new(),
        }
    }

    /// A live Deployment or StatefulSet may lack this label in its selector: an earlier version of the operator has created it. The
    /// selector is immutable, so the child would have to be deleted to get the label.
    #[must_use]
    pub fn selector_may_lack(self, label: &str) -> Children<K> {
        let path = format!("/spec/selector/matchLabels/{}", label.replace('/', "~1"));
        Children { new_in_selector: Some(path), ..self }
    }

    /// The fields at these paths are ours, too: if the desired child does not have them, they are removed from the live one. Declare so
    /// each field that the desired child has only sometimes. A path is a JSON pointer, with `*` for each item of a list that the desired
    /// child has: `/spec/template/spec/containers/*/args`. For a field that other writers may set until `desired` does, see
    /// [`ObjectMeta::also_owning`].
    #[must_use]
    pub fn owning(mut self, owning: &[&'static str]) -> Children<K> {
        self.owning.extend(owning);
        self
    }

    /// Brings one child to its desired state, usually with one write, and without a write if there is no difference. If
    /// the API server refuses that write because of a field of another writer, a second one resets that field.
    ///
    /// [`Reconcile::keep`] calls it, with the stage of the owner, and notes the outcome.
    pub async fn keep<O: Resource>(&self, owner: &O, desired: &K, stage: Stage) -> Outcome<K> {
        let (child, write) = match self.watch.find(&desired.key()) {
            Some(Found::Readable(live)) => self.update(owner, desired, live).await,
            Some(Found::Broken(broken)) => self.read(owner, desired, &broken, stage).await,
            None => match self.watch.lacks(desired.metadata()) {
                None => self.add(owner, desired, stage).await,
                Some(lack) => Child::failed(Error::new("keep", desired.key().to_string(), lack), None),
            },
        };
        if let Child::Kept(_) = child {
            self.last_writes.kept(owner, desired);
        }
        Outcome { child, write, mutations: self.mutations(owner, &desired.key()) }
    }

    /// The reporter says when the refused writes of these children are tried again.
    pub(crate) fn reported_by(self, reporter: &Reporter) -> Children<K> {
        Children { refused: Arc::clone(&reporter.refused), ..self }
    }

    /// These children, for the deletion of their owner.
    pub(crate) fn of_owner(&self) -> Arc<dyn OfOwner> {
        Arc::clone(&self.by_owner) as _
    }

    /// A child, if it exists and is readable. It may have another owner.
    #[must_use]
    pub fn get(&self, key: &Key) -> Option<Arc<K>> {
        self.watch.get(key)
    }

    /// A child, or its metadata, if the rest is unreadable or not kept. It may have another owner.
    #[must_use]
    pub fn find(&self, key: &Key) -> Option<Found<K>> {
        self.watch.find(key)
    }

    async fn update<O: Resource>(&self, owner: &O, desired: &K, live: Arc<K>) -> (Child<K>, Option<Write>) {
        match self.ownership(owner, live.metadata()) {
            Ownership::Ours => self.correct(owner, desired, live).await,
            Ownership::Namesake => self.replace_namesakes(owner, live.metadata()).await,
            Ownership::Foreign => {
                let write = correction(owner, &live.key(), "adopt");
                if let Some(waits) = self.refused.waits(owner, &write, None) {
                    return waits;
                }
                let adopted = self.adopt(owner, desired, live).await;
                self.refused.ended(owner, write, adopted)
            }
        }
    }

    /// Updates a child of which the Store has the metadata alone. Reads it, unless it belongs to another owner.
    async fn read<O: Resource>(
        &self,
        owner: &O,
        desired: &K,
        Broken { metadata, cause, .. }: &Broken,
        stage: Stage,
    ) -> (Child<K>, Option<Write>) {
        let _one_at_a_time = match cause {
            BrokenCause::TooLarge => Some(self.cluster.large_child().await),
            BrokenCause::Undecodable | BrokenCause::NoRoom(_) | BrokenCause::Unwanted => None,
        };
        match self.ownership(owner, metadata) {
            Ownership::Namesake => self.replace_namesakes(owner, metadata).await,
            Ownership::Foreign if metadata.controller().is_some() => {
                (Child::NotOurs(self.belongs::<O>(metadata)), None)
            }
            // It may be adopted.
            Ownership::Ours | Ownership::Foreign => match self.cluster.get_live::<K>(&desired.key()).await {
                Ok(live) => self.update(owner, desired, live).await,
                Err(error) if error.is_not_found() => self.add(owner, desired, stage).await,
                Err(error) => Child::failed(error, None),
            },
        }
    }

    /// Deletes the child of an owner with the name of ours.
    async fn replace_namesakes<O: Resource>(
        &self,
        owner: &O,
        live: &ObjectMeta,
    ) -> (Child<K>, Option<Write>) {
        // Only one of the two owners can exist: usually ours, but after a restored backup it may be the other.
        let write = correction(owner, &live.key(), "replace");
        if let Some(waits) = self.refused.waits(owner, &write, None) {
            return waits;
        }
        let replaced = match is_wanted(&self.cluster, owner).await {
            Ok(true) => self.replace(live, None).await,
            Ok(false) => (Child::OwnerGone, None),
            Err(error) => Child::failed(error, None),
        };
        self.refused.ended(owner, write, replaced)
    }

    fn ownership<O: Resource>(&self, owner: &O, live: &ObjectMeta) -> Ownership {
        let is_namesake = |by: &OwnerReference| by.is_a::<O>() && by.name == owner.metadata().name;
        match live.controller() {
            Some(by) if by.uid == owner.metadata().uid => Ownership::Ours,
            Some(by) if is_namesake(by) => Ownership::Namesake,
            Some(_) | None => Ownership::Foreign,
        }
    }

    /// Corrects a child.
    async fn correct<O: Resource>(&self, owner: &O, desired: &K, live: Arc<K>) -> (Child<K>, Option<Write>) {
        if live.metadata().is_terminating() {
            return (Child::Awaited(Some(live)), None);
        }
        let operations = self.differences::<O>(&live, desired);
        if operations.is_empty() {
            return self.correct_by(owner, desired, live, operations).await;
        }
        let write = correction(owner, &live.key(), &describe(&*live, operations.iter().map(path)));
        if let Some(waits) = self.refused.waits(owner, &write, Some(&live)) {
            return waits;
        }
        let corrected = self.correct_by(owner, desired, live, operations).await;
        self.refused.ended(owner, write, corrected)
    }

    /// Corrects a child, in three steps: finds what differs, patches it unless another client keeps undoing the same correction, and
    /// compares the answer.
    async fn correct_by<O: Resource>(
        &self,
        owner: &O,
        desired: &K,
        live: Arc<K>,
        operations: Vec<Value>,
    ) -> (Child<K>, Option<Write>) {
        let mut differences = match self.ours(owner, desired, &live, &operations).await {
            Ok(differences) => differences,
            Err(error) => return Child::failed(error, Some(live)),
        };
        if differences.is_empty() {
            return (Child::Kept(live), None);
        }
        if differences.iter().any(|difference| live.is_immutable(&difference.path)) {
            return self.replace(live.metadata(), Some(Arc::clone(&live))).await;
        }
        let change = describe_all(&*live, &differences);
        let is_drift = self.last_writes.had(owner, desired);
        let (backoff, write) = self.backoff(is_drift, owner, desired, &change);
        if backoff.must_wait(&write) {
            let error =
                if is_drift { changed_back::<O, K>(change, &differences) } else { changed_again(change) };
            return Child::failed(error, Some(live));
        }
        let (patched, mut change) = match self.patch(desired, &live, operations, change).await {
            Ok(patched) => patched,
            Err(error) => return Child::failed(error, Some(live)),
        };
        let mutated = match self.compare(owner, desired, &patched) {
            Ok(mutated) => mutated,
            Err(error) => return Child::failed(error, Some(patched)),
        };
        if !mutated.is_empty() {
            differences.retain(|difference| mutated.iter().all(|mutation| mutation.path != difference.path));
            if differences.is_empty() {
                return (Child::Kept(patched), None);
            }
            change = describe_all(&*patched, &differences);
        }
        backoff.count(write);
        let write = if is_drift {
            info!(key = %owner.key(), change, "drift corrected");
            Write::Restored(change)
        } else {
            info!(key = %owner.key(), change, "child updated");
            Write::Updated(change)
        };
        (Child::Kept(patched), Some(write))
    }

    /// The differences of a child that are not made by admission.
    async fn ours<O: Resource>(
        &self,
        owner: &O,
        desired: &K,
        live: &K,
        operations: &[Value],
    ) -> Result<Vec<Difference>, Error> {
        let differences =
            self.last_writes.not_by_admission(owner, &live.key(), Difference::all(live, operations));
        if differences.iter().any(|difference| live.is_immutable(&difference.path)) {
            return self.unlike_a_new_child(owner, desired, differences).await;
        }
        Ok(differences)
    }

    /// Sends the operations, or resets a field of another writer because of which they are refused. Returns the change that was made.
    async fn patch(
        &self,
        desired: &K,
        live: &K,
        mut operations: Vec<Value>,
        change: String,
    ) -> Result<(Arc<K>, String), Error> {
        operations.retain(|operation| !live.is_immutable(path(operation)));
        match self.cluster.patch(live, operations.clone()).await {
            Ok(patched) => Ok((patched, change)),
            Err(error) => match reset(&error, &operations, desired) {
                Some(reset) => {
                    let change = describe(live, reset.iter().map(path));
                    Ok((self.cluster.patch(live, reset).await?, change))
                }
                None => Err(error),
            },
        }
    }

    /// The back-off for a write of a child, and the text that identifies the write there.
    fn backoff<O: Resource>(
        &self,
        is_drift: bool,
        owner: &O,
        desired: &K,
        change: &str,
    ) -> (&CorrectionBackoff, String) {
        let (backoff, change) = if is_drift { (&self.corrections, change) } else { (&self.changes, "") };
        (backoff, correction(owner, &desired.key(), change))
    }

    /// The operations that make a child as desired.
    fn differences<O: Resource>(&self, live: &K, desired: &K) -> Vec<Value> {
        let note = owned_fields::<O>();
        let noted = [live, desired].map(|child| child.metadata().annotations.get(&note).unwrap_or_default());
        let note = format!("/metadata/annotations/{}", note.replace('/', "~1"));
        let noted = noted.into_iter().flat_map(str::split_whitespace).chain([&*note]);
        let owning: Vec<&str> = self.owning.iter().copied().chain(noted).collect();
        let mut operations = diff::between(live, desired, &owning);
        if let Some(label) = &self.new_in_selector {
            operations.retain(|operation| operation["op"] != "add" || path(operation) != label);
        }
        operations
    }

    /// Deletes a child that no patch can correct. `ours`: the child; `None` if its owner was deleted and created again.
    async fn replace(&self, live: &ObjectMeta, ours: Option<Arc<K>>) -> (Child<K>, Option<Write>) {
        if live.is_terminating() {
            return (Child::Awaited(ours), None);
        }
        match self.cluster.delete_by::<K>(live).await {
            Ok(()) => (Child::Awaited(ours), None),
            Err(error) => Child::failed(error, ours),
        }
    }

    /// The message for the author of an object whose child's name is taken.
    fn not_ours<O: Resource>(&self, desired: &K, live: &K) -> String {
        let metadata = live.metadata();
        if self.is_adoptable::<O>(desired, live) {
            let namespace = metadata.namespace.as_ref().map(|name| format!("-n {name} ")).unwrap_or_default();
            let (kind, name, owner) = (K::KIND, &metadata.name, O::KIND);
            return format!(
                "{kind} {name} exists and has the labels of this {owner}, but no owner, as after the restore of a backup; \
                 adopt it: kubectl {namespace}annotate {}/{name} {}=true; or delete it",
                K::PLURAL,
                adopt::annotation::<O>()
            );
        }
        self.belongs::<O>(metadata)
    }

    /// The same for an object that cannot be adopted.
    fn belongs<O: Resource>(&self, metadata: &ObjectMeta) -> String {
        let owner = match metadata.controller() {
            Some(owner) => format!("belongs to {} {}", owner.kind, owner.name),
            None => format!("does not belong to this {}", O::KIND),
        };
        format!("{} {} exists and {owner}; delete or rename one of the two", K::KIND, metadata.name)
    }
}

fn path(operation: &Value) -> &str {
    operation["path"].as_str().unwrap_or_default()
}

/// `Deployment mws-web at /spec/replicas`
fn describe<'a, K: Resource>(live: &K, paths: impl Iterator<Item = &'a str>) -> String {
    format!("{} {} at {}", K::KIND, live.metadata().name, paths.collect::<Vec<_>>().join(" "))
}

fn describe_all<K: Resource>(live: &K, differences: &[Difference]) -> String {
    describe(live, differences.iter().map(|difference| &*difference.path))
}

/// Another client keeps reverting a correction.
fn changed_back<O: Resource, K: Resource>(change: String, differences: &[Difference]) -> Error {
    let mut cause = "another client keeps changing it back; backing off".to_owned();
    if differences.iter().any(|difference| difference.path == "/spec/replicas") {
        let (owner, child) = (O::KIND, K::KIND);
        cause += &format!(
            ". If a HorizontalPodAutoscaler targets the {child}, delete it, or have it target the {owner}, if that \
             kind has the subresource scale"
        );
    }
    Error::new("keep", change, cause)
}

/// The desired state keeps changing.
fn changed_again(change: String) -> Error {
    let cause = "the operator has changed it many times within seconds: `desired` may differ at each call; backing off";
    Error::new("keep", change, cause)
}

/// The text that identifies a write of a child. It has the generation, so that a new spec is never delayed.
fn correction<O: Resource>(owner: &O, child: &Key, change: &str) -> String {
    let metadata = owner.metadata();
    format!("{} at generation {}: {child}: {change}", metadata.uid, metadata.generation)
}

#[cfg(test)]
mod tests {
    use listwatch_apiserver::{ApiServer, Fault, Options};
    use serde_json::json;

    use super::*;
    use crate::{
        client::{Client, Config, DeleteOptions, Request},
        cluster::Events,
        resource::{
            ObjectMeta, Scope, Uid,
            kinds::{Deployment, Service},
        },
        watch::Lists,
    };

    #[derive(serde::Serialize, serde::Deserialize)]
    struct Note {
        metadata: ObjectMeta,
        status: Conditions,
    }

    crate::kind!(Note, "example.com", "v1", "notes");
    crate::reported!(Note, Conditions);

    async fn server() -> (ApiServer, Client, Cluster) {
        let server = ApiServer::start(Options { controllers: false, ..Options::default() }).await;
        let server = server.expect("a server");
        let config = Config::new(&server.url(), server.ca_pem().as_bytes(), server.token());
        let client = Client::new(config.expect("a config")).expect("a client");
        let cluster = Cluster::new(client.clone(), Lists::Paged);
        (server, client, cluster)
    }

    /// From now on, every answer of the server is this.
    fn answers(server: &ApiServer, status: u16, body: &impl Serialize) {
        let body = serde_json::to_string(body).expect("JSON");
        server.end_faults();
        server.fault(Fault::Answer { status, body, retry_after_secs: None });
    }

    /// The owner of children, which does not exist on the server.
    fn owner() -> Service {
        let metadata = ObjectMeta { uid: "u1".into(), generation: 1, ..ObjectMeta::default() };
        Service { metadata, ..Service::default() }
    }

    #[tokio::test]
    async fn an_owner_is_wanted_while_it_exists_and_is_not_being_deleted() {
        let (server, client, cluster) = server().await;
        let owner = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "finalizers": ["example.com/wait"]},
            "spec": {"ports": [{"port": 80}]},
        });
        let services = "/api/v1/namespaces/default/services";
        let send = async |method: http::Method, path: &str, body: Vec<u8>| {
            client.send(Request::get(path).sends(method, "application/json", body)).await.expect("an answer")
        };
        let answer = send(http::Method::POST, services, owner.to_string().into_bytes()).await;
        let owner: Service = serde_json::from_slice(&answer.body).expect("a Service");
        let wanted = async |owner: &Service| is_wanted(&cluster, owner).await.map_err(|error| error.code());
        assert_eq!(wanted(&owner).await, Ok(true));
        let uid = Uid::from("another");
        let metadata = ObjectMeta { uid, ..owner.metadata.clone() };
        let predecessor = Service { metadata, ..owner.clone() };
        assert_eq!(wanted(&predecessor).await, Ok(false));
        let metadata = ObjectMeta { name: "absent".into(), ..owner.metadata.clone() };
        assert_eq!(wanted(&Service { metadata, ..owner.clone() }).await, Ok(false));

        // If the GET of the child fails, the child is not created: a create counts against a quota even if it fails.
        let fails = || Fault::Answer { status: 500, body: "{}".to_owned(), retry_after_secs: None };
        server.fault(fails().on("GET", "/services/mws-web"));
        let metadata = ObjectMeta { name: "mws-web".into(), ..owner.metadata.clone() };
        let child = Service { metadata, ..owner.clone() };
        let owned = Children::new(&cluster, &cluster.watch::<Service>([Scope::default()]));
        let added = owned.add(&owner, &child, Stage::Settled).await;
        assert!(matches!(&added, (Child::Failed { error, .. }, None) if error.code() == Some(500)));
        assert_eq!(server.requests().iter().filter(|request| request.method == "POST").count(), 1);

        send(http::Method::DELETE, &format!("{services}/web"), Vec::new()).await;
        assert_eq!(wanted(&owner).await, Ok(false));
        server.fault(fails().on("GET", "/services/web"));
        assert_eq!(wanted(&owner).await, Err(Some(500)));
    }

    /// The API server answers as if a policy changed one field of each Service.
    #[tokio::test]
    async fn a_field_that_admission_changes_is_named_and_is_no_drift() {
        let (server, _, cluster) = server().await;
        let desired = json!({
            "metadata": {"name": "mws-web", "namespace": "default", "resourceVersion": "1", "labels": {"app": "web"}},
            "spec": {"type": "ClusterIP"},
        });
        let changes = |field: &str, value: Value| {
            let mut answer = desired.clone();
            *answer.pointer_mut(field).expect("a field") = value;
            answers(&server, 200, &answer);
        };
        let desired: Service = serde_json::from_value(desired.clone()).expect("a Service");
        let owner = owner();
        let start = || Children::new(&cluster, &cluster.watch::<Service>([Scope::default()]));
        let named = [r#"Service mws-web at /spec/type: "ClusterIP" became "NodePort""#];

        changes("/spec/type", json!("NodePort"));
        let owned = start();
        let (created, _) = owned.create(&owner, &desired).await;
        let Child::Kept(live) = created else { panic!("{created:?}") };
        assert_eq!(owned.mutations(&owner, &desired.key()), named);

        // After a restart, one write shows that the difference is not drift.
        let owned = start();
        let corrected = owned.correct(&owner, &desired, live).await;
        assert!(matches!(corrected, (Child::Kept(_), None)), "{corrected:?}");
        assert_eq!(owned.mutations(&owner, &desired.key()), named);

        // Without its label, the child would be in no watch.
        changes("/metadata/labels/app", json!("other"));
        let (created, _) = owned.create(&owner, &desired).await;
        assert!(
            matches!(&created, Child::Failed { error, .. } if error.to_string().contains("undoes our change"))
        );
    }

    /// A Deployment whose selector a policy had changed was deleted at each start, and after each change of the spec.
    #[tokio::test]
    async fn a_child_is_not_replaced_if_admission_would_change_a_new_one_in_the_same_way() {
        let (server, _, cluster) = server().await;
        let deployment = |labels: Value| {
            let metadata = json!({"name": "mws-web", "namespace": "default", "resourceVersion": ""});
            let containers = json!([{"name": "web", "image": "nginx"}]);
            let template = json!({"metadata": {"labels": labels}, "spec": {"containers": containers}});
            json!({"metadata": metadata, "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}})
        };
        let read =
            |deployment: Value| serde_json::from_value::<Deployment>(deployment).expect("a Deployment");
        let changed = deployment(json!({"app": "web", "team": "a"}));
        let (desired, live) = (read(deployment(json!({"app": "web"}))), Arc::new(read(changed.clone())));
        let owner = owner();
        let owned = Children::new(&cluster, &cluster.watch::<Deployment>([Scope::default()]));
        let correct = async || owned.correct(&owner, &desired, Arc::clone(&live)).await;
        let answers = |status, body: &Value| answers(&server, status, body);
        let writes = || server.requests().iter().filter(|request| request.method != "GET").count();

        answers(500, &json!({}));
        assert!(matches!(correct().await, (Child::Failed { .. }, None)), "nothing is known about a new one");
        answers(200, &changed);
        let kept = correct().await;
        assert!(matches!(kept, (Child::Kept(_), None)), "{kept:?}");
        let before = writes();
        assert!(matches!(correct().await, (Child::Kept(_), None)));
        assert_eq!(writes(), before, "asked once");
        assert!(server.requests().iter().all(|request| request.method != "DELETE"));

        let owned = Children::new(&cluster, &cluster.watch::<Deployment>([Scope::default()]));
        answers(200, &deployment(json!({"app": "web"})));
        let replaced = owned.correct(&owner, &desired, live).await;
        assert!(
            matches!(replaced, (Child::Awaited(Some(_)), None)),
            "a new one would have the selector: {replaced:?}"
        );
    }

    /// The first creation counted as a correction.
    #[tokio::test]
    async fn only_a_child_that_was_deleted_by_another_client_is_created_again() {
        let (_server, client, cluster) = server().await;
        let service = |name: &str| {
            let metadata = json!({"name": name, "namespace": "default", "resourceVersion": ""});
            let ports = json!([{"port": 80, "targetPort": 80, "protocol": "TCP"}]);
            let service = json!({"metadata": metadata, "spec": {"type": "ClusterIP", "ports": ports}});
            serde_json::from_value::<Service>(service).expect("a Service")
        };
        let (owner, child) = (service("web"), service("mws-web"));
        let owned = Children::new(&cluster, &cluster.watch::<Service>([Scope::default()]));
        let mut writes = Vec::new();
        let error = loop {
            let (made, write) = owned.create(&owner, &child).await;
            writes.extend(write);
            match made {
                Child::Kept(live) => {
                    owned.last_writes.kept(&owner, &child);
                    client.delete::<Service>(&live.key(), &DeleteOptions::default()).await.expect("deleted");
                }
                Child::Failed { error, .. } => break error.to_string(),
                made => panic!("{made:?}"),
            }
        };
        let (name, times) = ("Service mws-web".to_owned(), 5);
        let restored = std::iter::repeat_n(Write::Restored(name.clone()), times);
        assert_eq!(writes, [Write::Created(name)].into_iter().chain(restored).collect::<Vec<_>>());
        assert_eq!(error, "keep Service mws-web: another client keeps deleting it; backing off");
    }

    /// What admission changes in one was forgotten at a write of the other, and the pause of one paused the other.
    #[tokio::test]
    async fn children_of_one_name_in_two_namespaces_are_kept_apart() {
        let (server, _, cluster) = server().await;
        let service = |namespace: &str, kind: &str| {
            let metadata = json!({"name": "mws-web", "namespace": namespace, "resourceVersion": "1"});
            serde_json::from_value::<Service>(json!({"metadata": metadata, "spec": {"type": kind}}))
                .expect("a Service")
        };
        let answers = |service: &Service| answers(&server, 200, service);
        let (one, other) = (service("default", "ClusterIP"), service("kube-public", "ClusterIP"));
        let owner = owner();
        let owned = Children::new(&cluster, &cluster.watch::<Service>([Scope::default()]));
        let create = async |child| match owned.create(&owner, child).await.0 {
            Child::Kept(live) => {
                owned.last_writes.kept(&owner, child);
                Some(live)
            }
            Child::Awaited(_) | Child::NotOurs(_) | Child::Failed { .. } | Child::OwnerGone => None,
        };

        answers(&service("default", "NodePort"));
        let changed = create(&one).await.expect("a Service");
        answers(&other);
        create(&other).await.expect("a Service");
        let requests = server.requests().len();
        let kept = owned.correct(&owner, &one, changed).await;
        assert!(matches!(kept, (Child::Kept(_), None)), "{kept:?}");
        let writes =
            server.requests().iter().skip(requests).filter(|request| request.method != "GET").count();
        assert_eq!(writes, 0, "admission changed it, and would again");

        while create(&other).await.is_some() {}
        answers(&one);
        create(&one).await.expect("only the other is paused");
    }

    /// When many Deployments were deleted, each new one waited for the statuses of the objects before.
    #[tokio::test]
    async fn after_a_child_is_created_or_restored_the_status_waits_once_for_other_objects() {
        let (_server, client, cluster) = server().await;
        let events = Events::new(client, "example.com/notes", String::new()).0;
        let reporter = Arc::new(Reporter::new(&cluster, Some(events)));
        let note = Arc::new(Note { metadata: ObjectMeta::default(), status: Conditions::default() });
        let waits = async |stage, child, write| {
            let outcome: Outcome<Service> = Outcome { child, write, mutations: Vec::new() };
            let reconcile = Reconcile::new(&reporter, &note, stage);
            reconcile.noting(std::future::ready(outcome)).await;
            reconcile.check().is_err()
        };
        let kept = || Child::Kept(Arc::new(Service::default()));
        let restored = || Some(Write::Restored("Service web".to_owned()));
        for stage in [Stage::New, Stage::Settled] {
            assert!(waits(stage, kept(), restored()).await, "{stage:?}");
            assert!(!waits(stage, kept(), restored()).await, "{stage:?}: if it is created again and again");
            assert!(!waits(Stage::Settled, kept(), None).await);
            assert!(
                !waits(stage, Child::NotOurs("exists".to_owned()), restored()).await,
                "{stage:?}: trouble is reported"
            );
        }
        assert!(!waits(Stage::Changed, kept(), restored()).await, "a user waits for observedGeneration");
    }
}
