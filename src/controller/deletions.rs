//! Deletions: each leaves a tombstone until [`Operator::deleted`] has succeeded.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use tracing::debug;

use super::{Operator, ReconcileError, Shared};
use crate::{
    client::Error,
    cluster::Cluster,
    locked,
    resource::{Key, Meta, Resource},
    store::DeletionSource,
};

/// The deleted objects.
pub(super) struct Tombstones<K>(Mutex<HashMap<Key, Tombstone<K>>>);

/// A deleted object. A missed DELETED event leaves one too, like client-go's `DeletedFinalStateUnknown`.
struct Tombstone<K> {
    last: Arc<K>,
    source: DeletionSource,
}

impl<K> Default for Tombstones<K> {
    fn default() -> Tombstones<K> {
        Tombstones(Mutex::default())
    }
}

impl<K> Tombstones<K> {
    pub(super) fn add(&self, key: Key, last: &Arc<K>, source: DeletionSource) {
        locked(&self.0).insert(key, Tombstone { last: Arc::clone(last), source });
    }

    fn get(&self, key: &Key) -> Option<(Arc<K>, DeletionSource)> {
        locked(&self.0).get(key).map(|tombstone| (Arc::clone(&tombstone.last), tombstone.source))
    }

    /// Removes the tombstone, unless another object of that name has been deleted since.
    fn remove(&self, key: &Key, last: &Arc<K>) {
        let mut tombstones = locked(&self.0);
        if tombstones.get(key).is_some_and(|tombstone| Arc::ptr_eq(&tombstone.last, last)) {
            tombstones.remove(key);
        }
    }
}

impl<O: Operator> Shared<O> {
    /// Calls [`Operator::deleted`], if an object with this key was deleted.
    pub(super) async fn reconcile_deleted(&self, key: &Key) -> Result<(), ReconcileError> {
        let Some((last, source)) = self.tombstones.get(key) else { return Ok(()) };
        // With a label selector, DELETED can also mean that the object no longer matches it.
        let is_certain = source == DeletionSource::Event && !self.objects.is_filtered();
        if self.operator.serves(&last) && (is_certain || is_deleted(&self.cluster, &*last).await?) {
            debug!(target: "listwatch::controller", kind = O::Kind::KIND, %key, "deleted");
            self.operator.deleted(Arc::clone(&last)).await?;
        }
        self.tombstones.remove(key, &last);
        Ok(())
    }
}

/// Asks the API server whether the object was deleted. A list without it is not proof: the list may come from another server
/// or selector. Nor is a 404 for the whole kind: a server that has just started may not serve it yet.
async fn is_deleted<K: Resource>(cluster: &Cluster, last: &K) -> Result<bool, Error> {
    match cluster.get_live::<Meta<K>>(&last.key()).await {
        Ok(live) => Ok(live.metadata.uid != last.metadata().uid),
        Err(error) if error.is_not_found() => Ok(true),
        Err(error) => Err(error),
    }
}
