//! Creates a missing child. Unless its owner is new, first asks the API server whether the owner still exists, and whether another
//! object has the name of the child: that is a NameConflict.

use serde::Serialize;
use tracing::info;

use super::{Child, Children, LOG, Stage, Write, changed_again, correction};
use crate::{
    client::Error,
    cluster::Cluster,
    resource::{Meta, Resource},
};

impl<K: Resource + Serialize> Children<K> {
    pub(super) async fn add<O: Resource>(
        &self,
        owner: &O,
        desired: &K,
        stage: Stage,
    ) -> (Child<K>, Option<Write>) {
        if stage == Stage::New {
            let added = self.create(owner, desired).await;
            if !matches!(&added.0, Child::Failed { error, .. } if error.is_already_exists()) {
                return added;
            }
        }
        let key = desired.key();
        if let Some(waits) = self.refused.waits(owner, &creation(owner, desired), None) {
            return waits;
        }
        // The watch may miss an object of that name: it has a label selector. So a GET comes first, because a create counts
        // against a ResourceQuota even if it fails. The owner may be gone, too; then the garbage collector would delete each
        // new child, and we would create it again.
        match tokio::join!(self.cluster.get_live::<K>(&key), is_wanted(&self.cluster, owner)) {
            (_, Ok(false)) => (Child::OwnerGone, None),
            (Ok(live), Ok(true)) => self.update(owner, desired, live).await,
            (Err(error), Ok(true)) if error.is_not_found() => self.create(owner, desired).await,
            (_, Err(error)) | (Err(error), _) => Child::failed(error, None),
        }
    }

    pub(super) async fn create<O: Resource>(&self, owner: &O, desired: &K) -> (Child<K>, Option<Write>) {
        let creation = creation(owner, desired);
        if let Some(waits) = self.refused.waits(owner, &creation, None) {
            return waits;
        }
        let created = self.create_by(owner, desired).await;
        self.refused.ended(owner, creation, created)
    }

    async fn create_by<O: Resource>(&self, owner: &O, desired: &K) -> (Child<K>, Option<Write>) {
        let child = describe_new(desired);
        let is_drift = self.last_writes.had(owner, desired);
        let (backoff, write) = self.backoff(is_drift, owner, desired, &child);
        if backoff.must_wait(&write) {
            let deleted = |child| Error::new("keep", child, "another client keeps deleting it; backing off");
            let error = if is_drift { deleted(child) } else { changed_again(child) };
            return Child::failed(error, None);
        }
        let created = match self.cluster.create_for(owner.metadata(), desired).await {
            Ok(Some(created)) => created,
            Ok(None) => return (Child::OwnerGone, None),
            Err(error) => return Child::failed(error, None),
        };
        backoff.count(write);
        let write = if is_drift {
            info!(target: LOG, key = %owner.key(), child, "created again");
            Write::Restored(child)
        } else {
            Write::Created(child)
        };
        match self.compare(owner, desired, &created) {
            Ok(_) => (Child::Kept(created), Some(write)),
            Err(error) => (Child::Failed { error, live: Some(created) }, Some(write)),
        }
    }
}

/// `Deployment mws-web`
fn describe_new<K: Resource>(desired: &K) -> String {
    format!("{} {}", K::KIND, desired.metadata().name)
}

/// The text that identifies the creation of a child.
fn creation<O: Resource, K: Resource>(owner: &O, desired: &K) -> String {
    correction(owner, &desired.key(), &describe_new(desired))
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
