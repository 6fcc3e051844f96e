//! Deletions: each leaves a tombstone until its children are deleted, and [`Operator::deleted`] has succeeded.

use std::{collections::HashMap, sync::Mutex};

use tracing::info;

use super::{Controller, LOG, Operator, ReconcileError};
use crate::{
    client::Error,
    cluster::Cluster,
    locked,
    resource::{Key, Meta, ObjectMeta, Resource, list::Found},
    store::DeletionSource,
};

/// The deleted objects, by key, the oldest first.
pub(super) struct Tombstones<K>(Mutex<HashMap<Key, Vec<Tombstone<K>>>>);

/// A deleted object, or its metadata. A missed DELETED event also leaves one, like client-go's `DeletedFinalStateUnknown`.
type Tombstone<K> = (Found<K>, DeletionSource);

impl<K> Default for Tombstones<K> {
    fn default() -> Tombstones<K> {
        Tombstones(Mutex::default())
    }
}

impl<K> Tombstones<K> {
    pub(super) fn add(&self, key: Key, last: &Found<K>, source: DeletionSource) {
        locked(&self.0).entry(key).or_default().push((last.clone(), source));
    }

    /// Forgets the deleted objects with this key, and returns them.
    pub(super) fn take(&self, key: &Key) -> Vec<Found<K>> {
        let tombstones = locked(&self.0).remove(key).unwrap_or_default();
        tombstones.into_iter().map(|(last, _)| last).collect()
    }

    fn get(&self, key: &Key) -> Option<(Found<K>, DeletionSource)> {
        locked(&self.0).get(key)?.first().cloned()
    }

    fn remove_oldest(&self, key: &Key) {
        let mut all = locked(&self.0);
        let Some(tombstones) = all.get_mut(key) else { return };
        tombstones.remove(0);
        if tombstones.is_empty() {
            all.remove(key);
        }
    }
}

impl<O: Operator> Controller<O> {
    /// Cleans up after each deleted object with this key.
    pub(super) async fn reconcile_deleted(&self, key: &Key) -> Result<(), ReconcileError> {
        let shared = &*self.shared;
        while let Some((last, source)) = shared.tombstones.get(key) {
            // With a label selector, DELETED can also mean that the object no longer matches it.
            let is_certain = source == DeletionSource::Event && !shared.objects.is_filtered();
            if self.is_ours(&last)
                && (is_certain || is_deleted::<O::Kind>(&shared.cluster, last.metadata()).await?)
            {
                info!(target: LOG, kind = O::Kind::KIND, %key, "deleted");
                self.clean_up_after(last).await?;
            }
            shared.tombstones.remove_oldest(key);
        }
        Ok(())
    }

    /// Deletes the children of a deleted object, and calls [`Operator::deleted`] if its content is known.
    pub(super) async fn clean_up_after(&self, last: Found<O::Kind>) -> Result<(), ReconcileError> {
        let owner = &last.metadata().uid;
        self.shared.reporter.forget(owner);
        let mut deleted = Ok(());
        for children in &self.children {
            // A failure to delete some of them does not keep the others.
            let others = children.delete_all(owner).await;
            deleted = deleted.and(others);
        }
        match last {
            Found::Readable(last) => self.operator.deleted(last).await.and(Ok(deleted?)),
            Found::Partial(_) => Ok(deleted?),
        }
    }
}

/// Asks the API server whether the object was deleted. A list without it is not proof: the list may come from another server
/// or selector. Nor is a 404 for the whole kind: a server that has just started may not serve it yet.
async fn is_deleted<K: Resource>(cluster: &Cluster, last: &ObjectMeta) -> Result<bool, Error> {
    match cluster.get_live::<Meta<K>>(&last.key()).await {
        Ok(live) => Ok(live.metadata.uid != last.uid),
        Err(error) if error.is_not_found() => Ok(true),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::resource::kinds::ConfigMap;

    /// A failed cleanup was forgotten when the next object of that name was deleted.
    #[test]
    fn each_object_of_a_name_leaves_a_tombstone_of_its_own() {
        let (tombstones, key) = (Tombstones::default(), Key::cluster("a"));
        let [first, second] = ["1", "2"].map(|uid| {
            let metadata = ObjectMeta { uid: uid.into(), ..ObjectMeta::default() };
            Found::Readable(Arc::new(Meta::<ConfigMap>::from(metadata)))
        });
        for last in [&first, &second] {
            tombstones.add(key.clone(), last, DeletionSource::Event);
        }
        for last in [first, second] {
            let (oldest, _) = tombstones.get(&key).expect("a tombstone");
            assert_eq!(oldest.metadata().uid, last.metadata().uid);
            tombstones.remove_oldest(&key);
        }
        assert!(locked(&tombstones.0).is_empty());
    }
}
