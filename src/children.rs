//! Keeps the objects that ours own as they are wanted.
//!
//! ```text
//!   there is none              POST
//!   it is ours and differs     PATCH: what differs, in one JSON patch, if it still has the version that was compared
//!   it was a predecessor's     DELETE, and POST when it has gone
//!   it is somebody else's      nothing
//! ```
//!
//! An object is ours if its controller ownerReference has our object's uid. Somebody who keeps undoing what we write is
//! given way to for a while, so that the two of us do not write without end. What admission makes of our writes is left as
//! it is, and told.

mod admission;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use serde::Serialize;
use serde_json::{Value, json};
use tokio::time::Instant;
use tracing::info;

use crate::{
    client::Error,
    cluster::{Cluster, Watch},
    resource::{Key, Meta, Resource, StatusCause, diff},
};
use admission::{Mutation, Mutations};

/// The same correction so many times without a pause is a fight: another controller changes or deletes what we want. It
/// is given up until the pause is over, so that the two of them do not write without end.
const FIGHT_ROUNDS: u32 = 5;
/// How long after the last correction the next one is tried.
const FIGHT_PAUSE: Duration = Duration::from_secs(120);

/// The objects of one kind that ours own.
pub struct Owned<K> {
    cluster: Cluster,
    watch: Watch<K>,
    /// Which of them somebody else keeps changing.
    fights: Fights,
    /// Which of them admission changes as we write them.
    mutations: Mutations,
}

/// Why a child differs from what is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intent {
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
        let (fights, mutations) = (Fights::default(), Mutations::default());
        Owned { cluster: cluster.clone(), watch: watch.clone(), fights, mutations }
    }

    /// An object as the watch shows it, whoever owns it.
    pub fn get(&self, key: &Key) -> Option<Arc<K>> {
        self.watch.get(key)
    }

    /// What admission has changed in our last write to the owner's child: `Deployment mws-web at /spec/replicas: 3 became 1`.
    pub fn mutations<O: Resource>(&self, owner: &O, name: &str) -> Vec<String> {
        let fields = self.mutations.of(owner).into_iter();
        fields.map(|field| format!("{} {name} at {field}", K::KIND)).collect()
    }

    /// Makes one child what it should be, with one write at most; none where it is.
    pub async fn keep<O: Resource>(
        &self,
        owner: &O,
        desired: &K,
        intent: Intent,
    ) -> (Child<K>, Option<Change>) {
        let key = desired.key();
        match self.watch.get(&key) {
            Some(live) => self.mend(owner, desired, live, intent).await,
            None => self.make(owner, desired, intent).await,
        }
    }

    async fn make<O: Resource>(&self, owner: &O, desired: &K, intent: Intent) -> (Child<K>, Option<Change>) {
        let child = format!("{} {}", K::KIND, desired.metadata().name);
        let correction = correction(owner, &child);
        if intent == Intent::Known && self.fights.is_on(&correction) {
            let error = Error::new("keep", child, "somebody else keeps deleting it; backing off");
            return Child::failed(error, None);
        }
        let error = match self.cluster.create(desired).await {
            Ok(created) => {
                let change = if intent == Intent::Known {
                    info!(key = %owner.key(), child, "made anew");
                    self.fights.corrected(correction);
                    Change::Restored(child)
                } else {
                    Change::Created(child)
                };
                return match self.compare(owner, desired, &created) {
                    Ok(_) => (Child::Kept(created), Some(change)),
                    Err(error) => (Child::Failed { error, live: Some(created) }, Some(change)),
                };
            }
            Err(error) => error,
        };
        if !error.is_already_exists() {
            return Child::failed(error, None);
        }
        // Somebody else's, or ours without our label, which our watch does not show.
        match self.cluster.get_live::<K>(&desired.key()).await {
            Ok(live) => self.mend(owner, desired, live, intent).await,
            Err(error) => Child::failed(error, None),
        }
    }

    async fn mend<O: Resource>(
        &self,
        owner: &O,
        desired: &K,
        live: Arc<K>,
        intent: Intent,
    ) -> (Child<K>, Option<Change>) {
        match live.metadata().controller() {
            Some(by) if by.uid == owner.metadata().uid => {}
            // A predecessor's, of our name: it goes as its owner has gone.
            Some(by) if by.is_a::<O>() && by.name == owner.metadata().name => {
                return self.replace(live).await;
            }
            Some(_) | None => return (Child::NotOurs(not_ours::<O, K>(&live)), None),
        }
        if live.metadata().is_terminating() {
            return (Child::Awaited(live), None);
        }
        let operations = diff::between(&*live, desired);
        let mut differences = self.mutations.unknown(owner, Mutation::all(&*live, &operations));
        if differences.is_empty() {
            return (Child::Kept(live), None);
        }
        if differences.iter().any(|difference| difference.path.starts_with(IMMUTABLE)) {
            return self.replace(live).await;
        }
        let mut change = describe(&*live, differences.iter().map(|difference| &*difference.path));
        let correction = correction(owner, &change);
        if intent == Intent::Known && self.fights.is_on(&correction) {
            let error = Error::new("keep", change, "somebody else keeps changing it back; backing off");
            return Child::failed(error, Some(live));
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
            Intent::New => (Child::Kept(patched), Some(Change::Updated(change))),
            Intent::Known => {
                info!(key = %owner.key(), change, "drift corrected");
                self.fights.corrected(correction);
                (Child::Kept(patched), Some(Change::Restored(change)))
            }
        }
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
        let Some(child) = self.watch.get(key) else { return Ok(()) };
        let is_owned = child.metadata().controller().is_some_and(|by| by.uid == owner.metadata().uid);
        if !is_owned || child.metadata().is_terminating() {
            return Ok(());
        }
        self.cluster.delete(&*child).await
    }
}

/// What the API server lets nobody change: the selector of a workload, `matchLabels` and `matchExpressions`.
const IMMUTABLE: &str = "/spec/selector/match";

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
pub async fn is_wanted<O: Resource>(cluster: &Cluster, owner: &O) -> Result<bool, Error> {
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

/// How often the same correction was made lately.
#[derive(Default)]
struct Fights {
    rounds: Mutex<HashMap<String, (u32, Instant)>>,
}

impl Fights {
    /// Whether the correction was made so often that somebody must be undoing it.
    fn is_on(&self, correction: &str) -> bool {
        self.rounds().get(correction).is_some_and(|(count, _)| *count >= FIGHT_ROUNDS)
    }

    fn corrected(&self, correction: String) {
        let mut rounds = self.rounds();
        let (count, last) = rounds.entry(correction).or_insert((0, Instant::now()));
        *count += 1;
        *last = Instant::now();
    }

    /// Those of which the last correction is not long ago.
    fn rounds(&self) -> MutexGuard<'_, HashMap<String, (u32, Instant)>> {
        let mut rounds = self.rounds.lock().unwrap_or_else(PoisonError::into_inner);
        rounds.retain(|_, (_, last)| last.elapsed() < FIGHT_PAUSE);
        rounds
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_fight_is_the_same_correction_again_and_again_until_a_pause() {
        let fights = Fights::default();
        let correction = "default/web: Service mws-web at /spec/ports";
        for _ in 0..FIGHT_ROUNDS {
            assert!(!fights.is_on(correction));
            fights.corrected(correction.to_owned());
        }
        assert!(fights.is_on(correction));
        assert!(!fights.is_on("default/web: Service mws-web at /spec/type"));
        tokio::time::advance(FIGHT_PAUSE).await;
        assert!(!fights.is_on(correction));
    }
}
