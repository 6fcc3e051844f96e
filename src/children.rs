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
//! given way to for a while, so that the two of us do not write without end. What admission makes of our writes is left as
//! it is, and told.

mod admission;
mod truces;

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use serde::Serialize;
use serde_json::{Value, json};
use tracing::info;

use crate::{
    client::Error,
    cluster::{Cluster, Watch},
    resource::{Key, Meta, Resource, StatusCause, Uid, diff},
};
use admission::{Mutation, Mutations};
use truces::Truces;

/// The objects of one kind that ours own.
pub struct Owned<K> {
    cluster: Cluster,
    watch: Watch<K>,
    /// Which of them somebody else keeps changing.
    truces: Truces,
    /// Owners whose child could not be made: when it is, nobody has deleted it before.
    unmade: Mutex<HashSet<Uid>>,
    /// Which of them admission changes as we write them.
    mutations: Mutations,
}

/// Why a child differs from what is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intent {
    /// Nothing was reported of the owner yet, so that its children do not exist, as a rule.
    First,
    /// The owner asks for something new.
    New,
    /// All that the owner asks for was carried out before, so somebody else changed or deleted the child.
    Known,
}

/// What came of keeping one child.
#[derive(Debug)]
pub enum Child<K> {
    /// It is what it should be, but for what admission makes of our writes: see [`Owned::mutations`].
    Kept(Arc<K>),
    /// It is being deleted, and will be made anew.
    Awaited(Arc<K>),
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
pub enum Change {
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
            Child::Kept(live) | Child::Awaited(live) | Child::Failed { live: Some(live), .. } => Some(live),
            Child::NotOurs(_) | Child::Failed { live: None, .. } => None,
        }
    }

    fn failed(error: Error, live: Option<Arc<K>>) -> (Child<K>, Option<Change>) {
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
            unmade: Mutex::default(),
            mutations: Mutations::default(),
        }
    }

    /// What admission has changed in our last write to the owner's child: `Deployment mws-web at /spec/replicas: 3 became 1`.
    pub fn mutations<O: Resource>(&self, owner: &O, name: &str) -> Vec<String> {
        let fields = self.mutations.of(owner).into_iter();
        fields.map(|field| format!("{} {name} at {field}", K::KIND)).collect()
    }

    /// Makes one child what it should be, with one write at most; none where it is. `None`: the owner is gone, as the API
    /// server says, and its watch will say so too.
    pub async fn keep<O: Resource>(
        &self,
        owner: &O,
        desired: &K,
        intent: Intent,
    ) -> Option<(Child<K>, Option<Change>)> {
        match self.watch.get(&desired.key()) {
            Some(live) => self.mend(owner, desired, live, intent).await,
            None => self.make(owner, desired, intent).await,
        }
    }

    async fn make<O: Resource>(
        &self,
        owner: &O,
        desired: &K,
        intent: Intent,
    ) -> Option<(Child<K>, Option<Change>)> {
        if intent == Intent::First {
            let made = self.create(owner, desired, intent).await;
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
            (Ok(live), Ok(true)) => self.mend(owner, desired, live, intent).await,
            (Err(error), Ok(true)) if error.is_not_found() => Some(self.create(owner, desired, intent).await),
            (_, Err(error)) | (Err(error), _) => Some(Child::failed(error, None)),
        }
    }

    async fn create<O: Resource>(
        &self,
        owner: &O,
        desired: &K,
        intent: Intent,
    ) -> (Child<K>, Option<Change>) {
        let child = format!("{} {}", K::KIND, desired.metadata().name);
        let correction = correction(owner, &child);
        if intent == Intent::Known && self.truces.is_on(&correction) {
            let error = Error::new("keep", child, "somebody else keeps deleting it; backing off");
            return Child::failed(error, None);
        }
        let created = match self.cluster.create(desired).await {
            Ok(created) => created,
            Err(error) => {
                if is_refusal(&error) {
                    self.unmade().insert(owner.metadata().uid.clone());
                }
                return Child::failed(error, None);
            }
        };
        let is_first = self.unmade().remove(&owner.metadata().uid);
        let change = if intent == Intent::Known && !is_first {
            info!(key = %owner.key(), child, "made anew");
            self.truces.corrected(correction);
            Change::Restored(child)
        } else {
            Change::Created(child)
        };
        match self.compare(owner, desired, &created) {
            Ok(_) => (Child::Kept(created), Some(change)),
            Err(error) => (Child::Failed { error, live: Some(created) }, Some(change)),
        }
    }

    async fn mend<O: Resource>(
        &self,
        owner: &O,
        desired: &K,
        live: Arc<K>,
        intent: Intent,
    ) -> Option<(Child<K>, Option<Change>)> {
        match live.metadata().controller() {
            Some(by) if by.uid == owner.metadata().uid => {
                Some(self.correct(owner, desired, live, intent).await)
            }
            // A predecessor's, of our name: it goes as its owner has gone. Unless our owner is the one that has gone, and a
            // restored backup has brought the other one back.
            Some(by) if by.is_a::<O>() && by.name == owner.metadata().name => {
                self.unmade().insert(owner.metadata().uid.clone());
                match is_wanted(&self.cluster, owner).await {
                    Ok(true) => Some(self.replace(live).await),
                    Ok(false) => None,
                    Err(error) => Some(Child::failed(error, None)),
                }
            }
            Some(_) | None => {
                self.unmade().insert(owner.metadata().uid.clone());
                Some((Child::NotOurs(not_ours::<O, K>(&live)), None))
            }
        }
    }

    async fn correct<O: Resource>(
        &self,
        owner: &O,
        desired: &K,
        live: Arc<K>,
        intent: Intent,
    ) -> (Child<K>, Option<Change>) {
        if live.metadata().is_terminating() {
            return (Child::Awaited(live), None);
        }
        let operations = diff::between(&*live, desired);
        let mut differences = self.mutations.unknown(owner, Mutation::all(&*live, &operations));
        if differences.is_empty() {
            return (Child::Kept(live), None);
        }
        let is_immutable = |path: &str| K::IMMUTABLE.is_some_and(|fields| path.starts_with(fields));
        if differences.iter().any(|difference| is_immutable(&difference.path)) {
            return self.replace(live).await;
        }
        let mut change = describe(&*live, differences.iter().map(|difference| &*difference.path));
        let correction = correction(owner, &change);
        if intent == Intent::Known && self.truces.is_on(&correction) {
            let is_scaled = differences.iter().any(|difference| difference.path == "/spec/replicas");
            let cause = match is_scaled {
                true => {
                    format!("somebody else keeps changing it back; backing off. {}", let_target::<O, K>())
                }
                false => "somebody else keeps changing it back; backing off".to_owned(),
            };
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
        match intent {
            Intent::First | Intent::New => (Child::Kept(patched), Some(Change::Updated(change))),
            Intent::Known => {
                info!(key = %owner.key(), change, "drift corrected");
                self.truces.corrected(correction);
                (Child::Kept(patched), Some(Change::Restored(change)))
            }
        }
    }

    fn unmade(&self) -> MutexGuard<'_, HashSet<Uid>> {
        self.unmade.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What cannot be made so is deleted first.
    async fn replace(&self, live: Arc<K>) -> (Child<K>, Option<Change>) {
        if live.metadata().is_terminating() {
            return (Child::Awaited(live), None);
        }
        match self.cluster.delete(&*live).await {
            Ok(()) => (Child::Awaited(live), None),
            Err(error) => Child::failed(error, None),
        }
    }

    /// What the answer to a write has otherwise than we want. There was no time for anybody but admission to change it.
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
        self.unmade().remove(&owner.metadata().uid);
        let Some(child) = self.watch.get(key) else { return Ok(()) };
        let is_owned = child.metadata().controller().is_some_and(|by| by.uid == owner.metadata().uid);
        if !is_owned || child.metadata().is_terminating() {
            return Ok(());
        }
        self.cluster.delete(&*child).await
    }
}

/// Whether the API server will not have a child, rather than being busy.
fn is_refusal(error: &Error) -> bool {
    error.is_denied() || matches!(error.code(), Some(400 | 403 | 405 | 422 | 500))
}

/// Who it may be that scales a child, and what to do about it.
fn let_target<O: Resource, K: Resource>() -> String {
    let (owner, child) = (O::KIND, K::KIND);
    format!("If a HorizontalPodAutoscaler targets the {child}, have it target the {owner}")
}

fn path(operation: &Value) -> &str {
    operation["path"].as_str().unwrap_or_default()
}

/// `Deployment mws-web at /spec/replicas`
fn describe<'a, K: Resource>(live: &K, paths: impl Iterator<Item = &'a str>) -> String {
    format!("{} {} at {}", K::KIND, live.metadata().name, paths.collect::<Vec<_>>().join(" "))
}

/// Whether something in the template for Pods is invalid. Our part of it is valid by itself, so it is somebody else's part
/// that does not go with ours: `os: windows`, say, where a seccomp profile is not allowed.
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
