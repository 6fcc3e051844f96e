//! Waits for watches: a key is reconciled only after the watches that matter for it have synced. Until then, it is held.

use std::{sync::Arc, time::Duration};

use tokio::time::timeout;
use tracing::debug;

use super::{Controller, LOG, Next, Operator, RECONCILE_LIMIT, ReconcileError, Shared};
use crate::{
    cluster::{Readiness, Watch},
    locked,
    queue::Urgency,
    resource::{Key, Resource, Scope, list::Found},
    store::Change,
};

/// The reason for an operator while a watch fails.
const WATCH_FAILED: &str = "WatchFailed";

/// How often to check whether the watches of an object have synced.
pub(super) const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// Whether the Stores of a watch have every object that matters for a key.
pub(super) type Awaited = dyn Fn(&Key) -> Readiness + Send + Sync;

impl<O: Operator> Controller<O> {
    /// Reconciles a key only after this watch has synced for the namespace of the key.
    pub(super) fn awaits<K: Resource>(mut self, watch: &Watch<K>) -> Self {
        let watch = watch.clone();
        self.awaited.push(Box::new(move |key| watch.readiness_for(key)));
        self
    }

    /// Reconciles a key only after this watch has synced in every namespace, except those in which it stays forbidden.
    pub(crate) fn awaits_everywhere<K: Resource>(mut self, watch: &Watch<K>) -> Self {
        let awaited = watch.clone();
        self.awaited.push(Box::new(move |_| awaited.readiness_where_allowed()));
        self.wakes_when_listed(watch)
    }

    /// Once this watch has synced or fails in every namespace, reconciles every object again after each sync and each 403 of it.
    pub(crate) fn wakes_when_listed<K: Resource>(mut self, watch: &Watch<K>) -> Self {
        let (shared, listened) = (Arc::clone(&self.shared), watch.clone());
        self.listening.push(watch.listen(move |_, change| {
            if matches!(change, Change::Synced | Change::Forbidden) && listened.is_synced_or_failing() {
                shared.release(&Scope::default());
                shared.objects.keys().iter().for_each(|key| shared.queue.add(key, Urgency::Backlog));
            }
        }));
        self
    }

    /// Whether the watches that matter for the key have synced. If not, holds the key until they have.
    pub(super) fn readiness(&self, key: &Key) -> Readiness {
        // Hold the key first: if a watch syncs during the check, that releases the key.
        locked(&self.shared.held).insert(key.clone());
        let all = self.awaited.iter().map(|awaited| awaited(key));
        let readiness = all.fold(Readiness::Ready, Readiness::and);
        if let Readiness::Ready = readiness {
            locked(&self.shared.held).remove(key);
        }
        readiness
    }
}

impl<O: Operator> Shared<O> {
    /// A watch of this scope has synced: adds the held keys of the scope to the queue. The other held keys stay: with
    /// thousands of scopes, adding all held keys at each sync would take minutes.
    pub(super) fn release(&self, scope: &Scope) {
        let released: Vec<Key> = match &scope.namespace {
            None => std::mem::take(&mut *locked(&self.held)).into_iter().collect(),
            Some(namespace) => {
                let after = format!("{namespace}\0");
                let inside = Key::namespaced(namespace, "")..Key::namespaced(&after, "");
                locked(&self.held).extract_if(inside, |_| true).collect()
            }
        };
        for key in released {
            self.queue.add(&key, Urgency::Backlog);
        }
    }
}

/// The task of one worker: tells the operator that an object cannot be reconciled, because a watch that it needs is
/// failing.
pub(super) async fn unwatched<O: Operator>(
    shared: Arc<Shared<O>>,
    key: Key,
    problem: String,
) -> Result<Next, ReconcileError> {
    if let Some(Found::Readable(object)) = shared.objects.find(&key)
        && shared.operator.serves(&object)
    {
        let reported = shared.operator.unreconciled(object, WATCH_FAILED, problem);
        let reported = timeout(RECONCILE_LIMIT, reported).await;
        if !matches!(reported, Ok(Ok(()))) {
            debug!(target: LOG, kind = O::Kind::KIND, %key, ?reported, "cannot report the failing watch");
        }
    }
    // Not an error: the backoff after an error may last longer than the sync.
    Ok(Next::After(LOOK_AGAIN))
}
