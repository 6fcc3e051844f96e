//! What becomes of one child in one reconcile. [`Keep::outcome`] begins, and one of these steps follows, usually with one write or none:
//!
//! ```text
//!   missing             POST, after a GET of the child and of the owner unless the owner is new
//!   unread              GET of a child of which the Store has the metadata alone
//!   present             by its owner:
//!     correct           PATCH with the differences, if the child still has the compared resourceVersion
//!       replace         if an immutable field differs: dry run of a POST; if it helps, DELETE, and POST after the DELETED event
//!     replace_namesakes the owner was deleted and created again: GET of the owner, DELETE of the old one's child, and POST after that
//!     adopt             no write, until an annotation asks for it (`children/adopt.rs`)
//!   discard             DELETE of a child that the owner no longer has
//! ```
//!
//! If the API server refuses a write, that write alone waits (`children/refused_writes.rs`).

#[cfg(test)]
mod tests;

use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;
use tracing::info;

use super::{
    Children, LOG, adopt,
    outcome::{Child, Outcome, Stage, Step},
    reset::reset,
    write::{self, LastWrite, Write},
};
use crate::{
    client::Error,
    cluster::Cluster,
    correction_backoff::{CHANGES, CORRECTIONS, Limit},
    resource::{
        Key, Meta, ObjectMeta, Resource,
        diff::{self, Difference},
        list::{Found, Partial, PartialCause},
        owned_fields,
    },
};

/// One child, as its owner wants it.
pub(super) struct Keep<'a, O, K> {
    pub(super) children: &'a Children<K>,
    pub(super) owner: &'a O,
    pub(super) desired: &'a K,
    pub(super) key: Key,
    /// The hash of `desired`, by which it is known again.
    pub(super) hash: u64,
    /// The last write of the child, before this one.
    pub(super) last: LastWrite,
    pub(super) stage: Stage,
}

/// To whom an object with the name of a child belongs.
enum Ownership {
    Ours,
    /// An owner with the name of our owner, but another uid.
    Namesake,
    /// Another owner, or none.
    Foreign,
}

impl Ownership {
    /// By the controller ownerReference.
    fn of<O: Resource>(live: &ObjectMeta, owner: &O) -> Ownership {
        match live.controller() {
            Some(by) if by.uid == owner.metadata().uid => Ownership::Ours,
            Some(by) if by.is_a::<O>() && by.name == owner.metadata().name => Ownership::Namesake,
            Some(_) | None => Ownership::Foreign,
        }
    }
}

/// A write that need not wait, because it was not repeated too often.
struct Turn {
    id: String,
    limit: Limit,
    /// Whether another client has changed or deleted the child since this process saw it as desired.
    is_drift: bool,
}

impl<O: Resource, K: Resource + Serialize> Keep<'_, O, K> {
    pub(super) async fn outcome(self) -> Outcome<K> {
        let found = match self.children.watch.find(&self.key) {
            Some(Found::Readable(live)) => self.present(live).await,
            Some(Found::Partial(partial)) => self.unread(&partial).await,
            None => match self.children.watch.lacks(self.desired.metadata()) {
                None => self.missing().await,
                Some(lack) => Err(Error::new("keep", self.key.to_string(), lack)),
            },
        };
        let last_writes = &self.children.last_writes;
        if let Ok((Child::Kept(live), _)) = &found {
            last_writes.kept(self.owner, self.hash, &**live);
        }
        let mutations = last_writes.mutations(self.owner, &self.key).into_iter();
        let mutations = mutations.map(|field| format!("{} at {field}", self.name())).collect();
        Outcome { mutations, ..found.into() }
    }

    /// Creates a child that the Store does not have.
    pub(super) async fn missing(&self) -> Step<K> {
        let Children { cluster, refused, .. } = self.children;
        let name = self.name();
        let owner = self.owner.metadata();
        let create = || refused.unless_refused(owner, &self.key, &name, self.create());
        if self.stage == Stage::New {
            match create().await {
                Err(error) if error.is_already_exists() => {}
                created => return created,
            }
        }
        if let Some(error) = refused.pending(&owner.uid, &write::id(owner, &self.key, &name)) {
            return Err(error);
        }
        // The watch may miss an object of that name: it has a label selector. So a GET comes first, because a create counts
        // against a ResourceQuota even if it fails. The owner may be gone; then the garbage collector would delete each
        // new child, and we would create it again.
        match tokio::join!(cluster.get_live::<K>(&self.key), is_wanted(cluster, self.owner)) {
            (_, Ok(false)) => Ok((Child::OwnerGone, None)),
            (Ok(live), Ok(true)) => self.present(live).await,
            (Err(error), Ok(true)) if error.is_not_found() => create().await,
            (_, Err(error)) | (Err(error), _) => Err(error),
        }
    }

    pub(super) async fn create(&self) -> Step<K> {
        let child = self.name();
        let turn = self.turn(&child, || "another client keeps deleting it; backing off".to_owned())?;
        let created = self.children.cluster.create_for(self.owner.metadata(), self.desired).await?;
        let Some(created) = created else { return Ok((Child::OwnerGone, None)) };
        let write = if turn.is_drift {
            info!(target: LOG, key = %self.owner.key(), child, "created again");
            Write::Restored(child)
        } else {
            Write::Created(child)
        };
        self.children.corrections.count(turn.id, turn.limit);
        let child = match self.learn(&created) {
            Ok(_) => Child::Kept(created),
            Err(error) => Child::Failed { error, live: Some(created) },
        };
        Ok((child, Some(write)))
    }

    /// Reads a child, unless it belongs to another owner.
    async fn unread(&self, Partial { metadata, cause, .. }: &Partial) -> Step<K> {
        let cluster = &self.children.cluster;
        let _one_at_a_time = match cause {
            PartialCause::TooLarge => Some(cluster.large_child().await),
            PartialCause::Undecodable | PartialCause::NoRoom(_) | PartialCause::Unwanted => None,
        };
        match Ownership::of(metadata, self.owner) {
            Ownership::Namesake => self.replace_namesakes(metadata).await,
            Ownership::Foreign if metadata.controller().is_some() => {
                Ok((Child::NotOurs(self.belongs(metadata)), None))
            }
            // It may be adopted.
            Ownership::Ours | Ownership::Foreign => match cluster.get_live::<K>(&self.key).await {
                Ok(live) => self.present(live).await,
                Err(error) if error.is_not_found() => self.missing().await,
                Err(error) => Err(error),
            },
        }
    }

    async fn present(&self, live: Arc<K>) -> Step<K> {
        match Ownership::of(live.metadata(), self.owner) {
            Ownership::Ours => self.correct(live).await,
            Ownership::Namesake => self.replace_namesakes(live.metadata()).await,
            Ownership::Foreign => self.adopt(live).await,
        }
    }

    pub(super) async fn correct(&self, live: Arc<K>) -> Step<K> {
        if live.metadata().is_terminating() {
            return Ok((Child::Awaited(Some(live)), None));
        }
        if self.last.has(self.hash, &*live) {
            return Ok((Child::Kept(live), None));
        }
        let differences = self.differences(&live);
        if differences.is_empty() {
            self.children.last_writes.learn(self.owner, &self.key, Vec::new());
            return Ok((Child::Kept(live), None));
        }
        let change = self.change(&differences);
        let (owner, patching) = (self.owner.metadata(), self.patch(&live, differences));
        let patched = self.children.refused.unless_refused(owner, &self.key, &change, patching).await;
        patched.or_else(|error| Ok((Child::Failed { error, live: Some(live) }, None)))
    }

    /// Patches what differs, unless admission alone has made it differ, and compares the answer.
    async fn patch(&self, live: &Arc<K>, mut all: Vec<Difference>) -> Step<K> {
        let Children { cluster, last_writes, .. } = self.children;
        let is_immutable = |difference: &Difference| live.is_immutable(&difference.path);
        let mut differences = last_writes.not_by_admission(self.owner, &self.key, all.clone());
        if differences.iter().any(is_immutable) {
            // Admission may have changed the field when the child was created, for an earlier generation or before a restart. A dry run
            // shows the differences that a new child would have.
            let mutated = self.learn(&cluster.client.create_dry_run(self.desired).await?)?;
            differences.retain(|difference| !mutated.contains(difference));
            if differences.iter().any(is_immutable) {
                return self.replace(live.metadata(), Some(live)).await;
            }
        }
        if differences.is_empty() {
            return Ok((Child::Kept(Arc::clone(live)), None));
        }
        let change = self.change(&differences);
        let turn = self.turn(&change, || changed_back::<O, K>(&differences))?;
        all.retain(|difference| !is_immutable(difference));
        let (patched, mut change) = self.send(live, diff::operations(&all), change).await?;
        let mutated = match self.learn(&patched) {
            Ok(mutated) => mutated,
            Err(error) => return Ok((Child::Failed { error, live: Some(patched) }, None)),
        };
        if !mutated.is_empty() {
            differences.retain(|difference| mutated.iter().all(|mutation| mutation.path != difference.path));
            if differences.is_empty() {
                return Ok((Child::Kept(patched), None));
            }
            change = self.change(&differences);
        }
        let key = self.owner.key();
        let write = if turn.is_drift {
            info!(target: LOG, %key, change, "drift corrected");
            Write::Restored(change)
        } else {
            info!(target: LOG, %key, change, "child updated");
            Write::Updated(change)
        };
        self.children.corrections.count(turn.id, turn.limit);
        Ok((Child::Kept(patched), Some(write)))
    }

    /// Sends the operations, or resets a field of another writer because of which they are refused. Returns the change that was made.
    async fn send(
        &self,
        live: &K,
        operations: Vec<Value>,
        change: String,
    ) -> Result<(Arc<K>, String), Error> {
        let cluster = &self.children.cluster;
        match cluster.patch(live, operations.clone()).await {
            Ok(patched) => Ok((patched, change)),
            Err(error) => {
                let reset = reset(&error, &operations, self.desired).ok_or(error)?;
                let change = write::change::<K>(&self.key, reset.iter().map(write::path));
                Ok((cluster.patch(live, reset).await?, change))
            }
        }
    }

    /// Deletes a child that no patch can correct. `ours`: the child; `None` if its owner was deleted and created again.
    async fn replace(&self, live: &ObjectMeta, ours: Option<&Arc<K>>) -> Step<K> {
        if !live.is_terminating() {
            self.children.cluster.delete_by::<K>(live).await?;
        }
        Ok((Child::Awaited(ours.cloned()), None))
    }

    /// Deletes the child of an owner with the name of ours. Only one of the two owners can exist: usually ours, but after a restored backup
    /// it may be the other.
    async fn replace_namesakes(&self, live: &ObjectMeta) -> Step<K> {
        let replaced = async {
            match is_wanted(&self.children.cluster, self.owner).await? {
                true => self.replace(live, None).await,
                false => Ok((Child::OwnerGone, None)),
            }
        };
        self.children.refused.unless_refused(self.owner.metadata(), &self.key, "replace", replaced).await
    }

    /// Adopts an object that has the annotation, and then corrects it. Not if the owner no longer exists on the API server, or is
    /// being deleted: the garbage collector would delete the child.
    async fn adopt(&self, live: Arc<K>) -> Step<K> {
        let immutable = |difference: &Difference| live.is_immutable(&difference.path);
        // A child with another immutable field would be deleted.
        if !adopt::is_like::<K>(self.desired, &live) || self.differences(&live).iter().any(immutable) {
            return Ok((Child::NotOurs(self.belongs(live.metadata())), None));
        }
        let adopted = async {
            let cluster = &self.children.cluster;
            // No Store of children has the content of an object without a controller: this one has just been read.
            if !adopt::is_asked::<O>(live.metadata()) {
                return Ok((Child::NotOurs(adopt::hint::<O, K>(live.metadata())), None));
            }
            if !is_wanted(cluster, self.owner).await? {
                return Ok((Child::OwnerGone, None));
            }
            let adopted = cluster.patch(&*live, adopt::operations(self.owner, live.metadata())).await?;
            let change = write::change::<K>(&self.key, ["/metadata/ownerReferences"]);
            info!(target: LOG, key = %self.owner.key(), change, "child adopted");
            let (child, write) = self.correct(adopted).await?;
            Ok((child, write.or(Some(Write::Updated(change)))))
        };
        self.children.refused.unless_refused(self.owner.metadata(), &self.key, "adopt", adopted).await
    }

    /// Fails while a write must wait because it has been repeated too often. `undone`: what another client does then.
    fn turn(&self, change: &str, undone: impl FnOnce() -> String) -> Result<Turn, Error> {
        let is_drift = self.last.desired == Some(self.hash);
        let (limit, what) = if is_drift { (CORRECTIONS, change) } else { (CHANGES, "") };
        let id = write::id(self.owner.metadata(), &self.key, what);
        if !self.children.corrections.must_wait(&id) {
            return Ok(Turn { id, limit, is_drift });
        }
        let again = "the operator has changed it many times within seconds: `desired` may differ at each call; backing off";
        let cause = if is_drift { undone() } else { again.to_owned() };
        Err(Error::new("keep", change.to_owned(), cause))
    }

    /// What differs in a child.
    fn differences(&self, live: &K) -> Vec<Difference> {
        let note = owned_fields::<O>();
        let noted = [live, self.desired].map(|child| child.metadata().annotations.get(&note));
        let noted = noted.into_iter().flatten().flat_map(str::split_whitespace);
        let note = format!("/metadata/annotations/{}", note.replace('/', "~1"));
        let owning: Vec<&str> = noted.chain(self.children.owning.iter().copied()).chain([&*note]).collect();
        let mut differences = diff::between(live, self.desired, &owning);
        if let Some(label) = &self.children.new_in_selector {
            differences.retain(|difference| difference.op != "add" || difference.path != *label);
        }
        differences
    }

    /// The fields in which the answer to a write or a dry run differs from what was sent, because admission changes them.
    /// Remembers them. Fails if the operator would no longer find the child.
    fn learn(&self, answer: &K) -> Result<Vec<Difference>, Error> {
        let mutated = self.differences(answer);
        // Without our labels or ownerReference we would not find the child, and create it again and again.
        if let Some(Difference { path, .. }) = mutated.iter().find(|one| one.path.starts_with("/metadata/")) {
            let cause = format!("something in the API server undoes our change of {path:?}");
            return Err(Error::new("write", format!("{}/{}", K::PLURAL, self.key), cause));
        }
        for mutation in &mutated {
            let child = self.name();
            info!(target: LOG, key = %self.owner.key(), child, %mutation, "admission changes this field; left as it is");
        }
        self.children.last_writes.learn(self.owner, &self.key, mutated.clone());
        Ok(mutated)
    }

    /// `Deployment mws-web`
    fn name(&self) -> String {
        write::name::<K>(&self.key)
    }

    fn change(&self, differences: &[Difference]) -> String {
        write::change::<K>(&self.key, differences.iter().map(|difference| &*difference.path))
    }

    /// The message for the author of an object whose child's name is taken.
    fn belongs(&self, live: &ObjectMeta) -> String {
        let owner = match live.controller() {
            Some(owner) => format!("belongs to {} {}", owner.kind, owner.name),
            None => format!("does not belong to this {}", O::KIND),
        };
        format!("{} exists and {owner}; delete or rename one of the two", self.name())
    }
}

/// Asks the API server whether the object with this uid still exists, and whether its deletion has begun without our knowledge: an
/// operator may create children in its cleanup.
pub(super) async fn is_wanted<O: Resource>(cluster: &Cluster, owner: &O) -> Result<bool, Error> {
    if cluster.is_ending(owner.metadata()) {
        return Ok(false);
    }
    match cluster.get_live::<Meta<O>>(&owner.key()).await {
        Ok(live) => Ok(live.metadata.uid == owner.metadata().uid
            && (owner.metadata().is_terminating() || !live.metadata.is_terminating())),
        Err(error) if error.is_not_found() => Ok(false),
        Err(error) => Err(error),
    }
}

/// Another client keeps reverting a correction.
fn changed_back<O: Resource, K: Resource>(differences: &[Difference]) -> String {
    let mut cause = "another client keeps changing it back; backing off".to_owned();
    if differences.iter().any(|difference| difference.path == "/spec/replicas") {
        let (owner, child) = (O::KIND, K::KIND);
        cause += &format!(
            ". If a HorizontalPodAutoscaler targets the {child}, delete it, or have it target the {owner}, if that \
             kind has the subresource scale"
        );
    }
    cause
}

/// Deletes a child that the owner's spec no longer has. After a change of the spec, asks the API server: the watch may miss
/// the child, because it has a label selector.
///
/// A conflict means that the child has changed and may be orphaned. The next attempt reads the child again.
pub(super) async fn discard<O: Resource, K: Resource>(
    children: &Children<K>,
    owner: &O,
    key: &Key,
    stage: Stage,
) -> Result<(), Error> {
    let Children { cluster, watch, last_writes, .. } = children;
    last_writes.forget(owner, key);
    let is_changed = matches!(stage, Stage::New | Stage::Changed) && owner.metadata().generation > 1;
    let metadata = match watch.find(key) {
        Some(child) => child.metadata().clone(),
        None if !is_changed => return Ok(()),
        None => match cluster.get_live::<K>(key).await {
            Ok(child) => child.metadata().clone(),
            Err(error) if error.is_not_found() => return Ok(()),
            Err(error) => return Err(error),
        },
    };
    match Ownership::of(&metadata, owner) {
        Ownership::Ours if !metadata.is_terminating() => cluster.delete_by::<K>(&metadata).await,
        Ownership::Ours | Ownership::Namesake | Ownership::Foreign => Ok(()),
    }
}
