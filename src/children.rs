//! Keeps the objects that ours own as they are wanted.
//!
//! ```text
//!   there is none              POST; a GET before, unless the owner is new
//!   it is ours and differs     PATCH: what differs, in one JSON patch, if it still has the version that was compared
//!   it was a predecessor's     DELETE, and POST when it has gone
//!   it is somebody else's      nothing
//! ```
//!
//! An object is ours if its controller ownerReference has our object's uid. Somebody who keeps undoing what we write is
//! given way to for a while, so that the two of us do not write without end. A field that an admission webhook or policy changes
//! in our writes stays so, and [`Owned::mutations`] names it.

mod admission;
mod truces;

use std::sync::Arc;

use serde::Serialize;
use serde_json::{Value, json};
use tracing::info;

use crate::{
    client::Error,
    cluster::{Cluster, Watch},
    resource::{Key, Meta, Resource, StatusCause, diff},
};
use admission::{Mutation, Mutations};
use truces::Truces;

/// The objects of one kind that ours own.
pub struct Owned<K> {
    cluster: Cluster,
    watch: Watch<K>,
    /// Which of them somebody else keeps changing.
    truces: Truces,
    /// Which of them admission changes as we write them.
    mutations: Mutations,
}

/// How far the owner's spec has been carried out, as its status says. It tells whether a difference is drift.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The owner has no status yet. As a rule its children do not exist.
    New,
    /// The owner's spec has changed since its status was written.
    Changed,
    /// When the status was written, a child could not be: a child that is missing or differs now need not be drift.
    Refused,
    /// The spec was carried out: if a child is missing or differs, somebody else has deleted or changed it.
    Settled,
}

/// What came of keeping one child.
#[derive(Debug)]
pub enum Child<K> {
    /// It is what it should be, but for what admission makes of our writes: see [`Owned::mutations`].
    Kept(Arc<K>),
    /// It is being deleted, and will be made anew. `None`: it is a predecessor's, not ours.
    Awaited(Option<Arc<K>>),
    /// Somebody else's object has its name: what to tell people.
    NotOurs(String),
    /// It could not be made so.
    Failed {
        /// Why.
        error: Error,
        /// As it is, if it is ours at all.
        live: Option<Arc<K>>,
    },
}

/// A write that changed a child, and which: `Deployment mws-web at /spec/replicas`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    /// It did not exist.
    Created(String),
    /// Its owner asked for something else.
    Updated(String),
    /// Somebody else had changed or deleted it.
    Restored(String),
}

impl<K> Child<K> {
    /// Ours, as it is, whether or not it is as it should be.
    pub fn live(&self) -> Option<&K> {
        match self {
            Child::Kept(live) => Some(live),
            Child::Awaited(live) | Child::Failed { live, .. } => live.as_deref(),
            Child::NotOurs(_) => None,
        }
    }

    fn failed(error: Error, live: Option<Arc<K>>) -> (Child<K>, Option<Write>) {
        (Child::Failed { error, live }, None)
    }
}

impl<K: Resource + Serialize> Owned<K> {
    /// The children that a watch shows.
    pub fn new(cluster: &Cluster, watch: &Watch<K>) -> Owned<K> {
        Owned {
            cluster: cluster.clone(),
            watch: watch.clone(),
            truces: Truces::default(),
            mutations: Mutations::default(),
        }
    }

    /// What admission has changed in our last write to the owner's child: `Deployment mws-web at /spec/replicas: 3 became 1`.
    pub fn mutations<O: Resource>(&self, owner: &O, name: &str) -> Vec<String> {
        let fields = self.mutations.of(owner).into_iter();
        fields.map(|field| format!("{} {name} at {field}", K::KIND)).collect()
    }

    /// Makes one child what it should be: no write where it is, as a rule one where it is not, two where the first is refused
    /// and the Pod template is reset. `None`: the API server says that the owner is gone, as the watch will soon.
    pub async fn keep<O: Resource>(
        &self,
        owner: &O,
        desired: &K,
        stage: Stage,
    ) -> Option<(Child<K>, Option<Write>)> {
        match self.watch.get(&desired.key()) {
            Some(live) => self.mend(owner, desired, live, stage).await,
            None => self.make(owner, desired, stage).await,
        }
    }

    async fn make<O: Resource>(
        &self,
        owner: &O,
        desired: &K,
        stage: Stage,
    ) -> Option<(Child<K>, Option<Write>)> {
        if stage == Stage::New {
            let made = self.create(owner, desired, stage).await;
            if !matches!(&made.0, Child::Failed { error, .. } if error.is_already_exists()) {
                return Some(made);
            }
        }
        // What our watch does not show may be there: somebody else's, or ours without our label. The API server is asked,
        // because a create counts against a ResourceQuota even where it fails. Or the owner is gone, and the garbage
        // collector would take each new child, as fast as we can make it.
        let key = desired.key();
        match tokio::join!(self.cluster.get_live::<K>(&key), is_wanted(&self.cluster, owner)) {
            (_, Ok(false)) => None,
            (Ok(live), Ok(true)) => self.mend(owner, desired, live, stage).await,
            (Err(error), Ok(true)) if error.is_not_found() => Some(self.create(owner, desired, stage).await),
            (_, Err(error)) | (Err(error), _) => Some(Child::failed(error, None)),
        }
    }

    async fn create<O: Resource>(&self, owner: &O, desired: &K, stage: Stage) -> (Child<K>, Option<Write>) {
        let child = format!("{} {}", K::KIND, desired.metadata().name);
        let correction = correction(owner, &child);
        if self.truces.is_on(&correction) {
            let error = Error::new("keep", child, "somebody else keeps deleting it; backing off");
            return Child::failed(error, None);
        }
        let created = match self.cluster.create(desired).await {
            Ok(created) => created,
            Err(error) => return Child::failed(error, None),
        };
        self.count(stage, correction);
        let write = match stage {
            Stage::New | Stage::Changed | Stage::Refused => Write::Created(child),
            Stage::Settled => {
                info!(key = %owner.key(), child, "made anew");
                Write::Restored(child)
            }
        };
        match self.compare(owner, desired, &created) {
            Ok(_) => (Child::Kept(created), Some(write)),
            Err(error) => (Child::Failed { error, live: Some(created) }, Some(write)),
        }
    }

    async fn mend<O: Resource>(
        &self,
        owner: &O,
        desired: &K,
        live: Arc<K>,
        stage: Stage,
    ) -> Option<(Child<K>, Option<Write>)> {
        match live.metadata().controller() {
            Some(by) if by.uid == owner.metadata().uid => {
                Some(self.correct(owner, desired, live, stage).await)
            }
            // A predecessor's, of our name: it goes as its owner has gone. Unless our owner is the one that has gone, and a
            // restored backup has brought the other one back.
            Some(by) if by.is_a::<O>() && by.name == owner.metadata().name => {
                match is_wanted(&self.cluster, owner).await {
                    Ok(true) => Some(self.replace(&live, None).await),
                    Ok(false) => None,
                    Err(error) => Some(Child::failed(error, None)),
                }
            }
            Some(_) | None => Some((Child::NotOurs(not_ours::<O, K>(&live)), None)),
        }
    }

    async fn correct<O: Resource>(
        &self,
        owner: &O,
        desired: &K,
        live: Arc<K>,
        stage: Stage,
    ) -> (Child<K>, Option<Write>) {
        if live.metadata().is_terminating() {
            return (Child::Awaited(Some(live)), None);
        }
        let operations = diff::between(&*live, desired);
        let mut differences = self.mutations.unknown(owner, Mutation::all(&*live, &operations));
        if differences.is_empty() {
            return (Child::Kept(live), None);
        }
        let is_immutable = |path: &str| K::IMMUTABLE.is_some_and(|fields| path.starts_with(fields));
        if differences.iter().any(|difference| is_immutable(&difference.path)) {
            return self.replace(&live, Some(Arc::clone(&live))).await;
        }
        let mut change = describe(&*live, differences.iter().map(|difference| &*difference.path));
        let correction = correction(owner, &change);
        if self.truces.is_on(&correction) {
            let mut cause = "somebody else keeps changing it back; backing off".to_owned();
            if differences.iter().any(|difference| difference.path == "/spec/replicas") {
                let (owner, child) = (O::KIND, K::KIND);
                cause += &format!(
                    ". If a HorizontalPodAutoscaler targets the {child}, have it target the {owner}"
                );
            }
            return Child::failed(Error::new("keep", change, cause), Some(live));
        }
        let reset = reset_template(&operations, desired);
        let mut patched = self.cluster.patch(&*live, operations).await;
        if patched.as_ref().is_err_and(is_about_template) {
            change = describe(&*live, reset.iter().map(path));
            patched = self.cluster.patch(&*live, reset).await;
        }
        let patched = match patched {
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
            change = describe(&*patched, differences.iter().map(|difference| &*difference.path));
        }
        self.count(stage, correction);
        let write = match stage {
            Stage::New | Stage::Changed => Write::Updated(change),
            Stage::Refused => {
                info!(key = %owner.key(), change, "changed, while a child was refused");
                Write::Updated(change)
            }
            Stage::Settled => {
                info!(key = %owner.key(), change, "drift corrected");
                Write::Restored(change)
            }
        };
        (Child::Kept(patched), Some(write))
    }

    /// Counts a correction as a round of a fight, if somebody else may have made it necessary.
    fn count(&self, stage: Stage, correction: String) {
        match stage {
            Stage::New | Stage::Changed => {}
            Stage::Refused | Stage::Settled => self.truces.corrected(correction),
        }
    }

    /// Deletes a child that no patch can make what is wanted. `ours`: the child, unless it is a predecessor's.
    async fn replace(&self, live: &K, ours: Option<Arc<K>>) -> (Child<K>, Option<Write>) {
        if live.metadata().is_terminating() {
            return (Child::Awaited(ours), None);
        }
        match self.cluster.delete(live).await {
            Ok(()) => (Child::Awaited(ours), None),
            Err(error) => Child::failed(error, ours),
        }
    }

    /// The fields in which the answer to a write differs from the write. Only admission can have changed them in between.
    fn compare<O: Resource>(&self, owner: &O, desired: &K, answer: &K) -> Result<Vec<Mutation>, Error> {
        let mutated = Mutation::all(answer, &diff::between(answer, desired));
        if let Some(Mutation { path, .. }) = mutated.iter().find(|mutation| mutation.is_of_identity()) {
            let cause = format!("something in the API server undoes our change of {path:?}");
            return Err(Error::new("write", format!("{}/{}", K::PLURAL, desired.key()), cause));
        }
        for mutation in &mutated {
            let child = format!("{} {}", K::KIND, desired.metadata().name);
            info!(key = %owner.key(), child, %mutation, "admission changed what was written; left so");
        }
        self.mutations.learn(owner, mutated.clone());
        Ok(mutated)
    }

    /// Deletes the child of an owner that is gone, where it still refers to that owner. The garbage collector may be slow or
    /// absent; what it was told to orphan no longer has the reference.
    ///
    /// A conflict means that the child has changed since, perhaps was orphaned: it is looked at again when the watch shows it.
    pub async fn delete<O: Resource>(&self, owner: &O, key: &Key) -> Result<(), Error> {
        self.mutations.forget(&owner.metadata().uid);
        let Some(child) = self.watch.get(key) else { return Ok(()) };
        let is_owned = child.metadata().controller().is_some_and(|by| by.uid == owner.metadata().uid);
        if !is_owned || child.metadata().is_terminating() {
            return Ok(());
        }
        self.cluster.delete(&*child).await
    }
}

fn path(operation: &Value) -> &str {
    operation["path"].as_str().unwrap_or_default()
}

/// `Deployment mws-web at /spec/replicas`
fn describe<'a, K: Resource>(live: &K, paths: impl Iterator<Item = &'a str>) -> String {
    format!("{} {} at {}", K::KIND, live.metadata().name, paths.collect::<Vec<_>>().join(" "))
}

/// Whether the API server finds the template for Pods invalid. Our fields of it are valid by themselves, so a field of somebody
/// else does not go with ours: `os: windows`, say, where a seccomp profile is not allowed. A webhook that names a field has
/// another reason, which a reset need not mend.
fn is_about_template(error: &Error) -> bool {
    let is_in_template = |cause: &StatusCause| cause.field.starts_with("spec.template.");
    error.is_invalid()
        && !error.is_denied()
        && error.status().is_some_and(|status| status.details.causes.iter().any(is_in_template))
}

/// The same operations, but the template has our part alone.
fn reset_template<K: Serialize>(operations: &[Value], desired: &K) -> Vec<Value> {
    const TEMPLATE: &str = "/spec/template";
    let template = serde_json::to_value(desired).unwrap_or_default().pointer(TEMPLATE).cloned();
    let others = operations.iter().filter(|operation| !path(operation).starts_with(TEMPLATE)).cloned();
    others.chain([json!({"op": "replace", "path": TEMPLATE, "value": template})]).collect()
}

/// Asks the API server whether this very object still exists and is not being deleted.
async fn is_wanted<O: Resource>(cluster: &Cluster, owner: &O) -> Result<bool, Error> {
    match cluster.get_live::<Meta<O>>(&owner.key()).await {
        Ok(live) => Ok(live.metadata.uid == owner.metadata().uid && !live.metadata.is_terminating()),
        Err(error) if error.is_not_found() => Ok(false),
        Err(error) => Err(error),
    }
}

/// What to tell the author of an object whose child's name is taken.
fn not_ours<O: Resource, K: Resource>(live: &K) -> String {
    let metadata = live.metadata();
    let owner = match metadata.controller() {
        Some(owner) => format!("belongs to {} {}", owner.kind, owner.name),
        None => format!("does not belong to this {}", O::KIND),
    };
    format!("{} {} exists and {owner}; delete or rename one of the two", K::KIND, metadata.name)
}

/// What a fight is about. A spec that was changed is none yet, and its author need not wait for the end of another.
fn correction<O: Resource>(owner: &O, change: &str) -> String {
    let metadata = owner.metadata();
    format!("{} at generation {}: {change}", metadata.uid, metadata.generation)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reset_replaces_the_whole_template_and_nothing_beside_it() {
        let replicas = json!({"op": "replace", "path": "/spec/replicas", "value": 3});
        let os = json!({"op": "remove", "path": "/spec/template/spec/os"});
        let desired = json!({"spec": {"replicas": 3, "template": {"spec": {}}}});
        let template = json!({"op": "replace", "path": "/spec/template", "value": {"spec": {}}});
        assert_eq!(reset_template(&[replicas.clone(), os], &desired), [replicas, template]);
    }

    #[cfg(feature = "apiserver")]
    #[tokio::test]
    async fn an_owner_is_wanted_while_it_exists_and_is_not_being_deleted() {
        use crate::{
            apiserver::{ApiServer, Fault, Options},
            client::{Client, Config, Request},
            resource::{ObjectMeta, Scope, Uid, kinds::Service},
            watch::Lists,
        };
        let server = ApiServer::start(Options { controllers: false, ..Options::default() }).await;
        let server = server.expect("a server");
        let config = Config::new(&server.url(), server.ca_pem().as_bytes(), server.token());
        let client = Client::new(config.expect("a config")).expect("a client");
        let cluster = Cluster::new(client.clone(), Lists::Paged);
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

        // A child that cannot be looked for is not created: that would count against a quota.
        let fails = || Fault::Answer { status: 500, body: "{}".to_owned(), retry_after_secs: None };
        server.fault(fails().on("GET", "/services/mws-web"));
        let metadata = ObjectMeta { name: "mws-web".into(), ..owner.metadata.clone() };
        let child = Service { metadata, ..owner.clone() };
        let owned = Owned::new(&cluster, &cluster.watch::<Service>([Scope::default()]));
        let made = owned.make(&owner, &child, Stage::Settled).await;
        assert!(matches!(&made, Some((Child::Failed { error, .. }, None)) if error.code() == Some(500)));
        assert_eq!(server.requests().iter().filter(|request| request.method == "POST").count(), 1);

        send(http::Method::DELETE, &format!("{services}/web"), Vec::new()).await;
        assert_eq!(wanted(&owner).await, Ok(false));
        server.fault(fails().on("GET", "/services/web"));
        assert_eq!(wanted(&owner).await, Err(Some(500)));
    }
}
