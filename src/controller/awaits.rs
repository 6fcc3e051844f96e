//! Waits for watches: a key is reconciled only after the watches that matter for it have synced. Until then, it is held.

use std::{sync::Arc, time::Duration};

use super::{Builder, Controller, Next, Operator, ReconcileError, Shared};
use crate::{
    children::WATCH_FAILED,
    cluster::{Readiness, Watch},
    locked,
    queue::Urgency,
    resource::{Key, Resource, Scope, conditions::Verdict, list::Found},
    store::Change,
};

/// How often to check whether the watches of an object have synced.
pub(super) const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// Whether the Stores of a watch have every object that matters for a key.
pub(super) type Awaited = dyn Fn(&Key) -> Readiness + Send + Sync;

impl<K: Resource> Builder<K> {
    /// Reconciles a key only after this watch has synced for the namespace of the key.
    pub(super) fn awaits<C: Resource>(&mut self, watch: &Watch<C>) {
        let watch = watch.clone();
        self.awaited.push(Box::new(move |key| watch.readiness_for(key)));
    }

    /// Once this watch has synced or fails in every namespace, reconciles every object again after each sync and each 403 of it.
    pub fn wakes_when_listed<C: Resource>(&mut self, watch: &Watch<C>) {
        let (shared, listened) = (Arc::clone(&self.shared), watch.clone());
        self.listening.push(watch.listen(move |_, change| {
            if matches!(change, Change::Synced | Change::Forbidden) && listened.is_synced_or_failing() {
                shared.release(&Scope::default());
                shared.objects.keys().iter().for_each(|key| shared.queue.add(key, Urgency::Backlog));
            }
        }));
    }
}

impl<O: Operator> Controller<O> {
    /// Whether the watches that matter for the key have synced. If not, holds the key until they have.
    pub(super) fn readiness(&self, key: &Key) -> Readiness {
        let shared = &self.shared;
        // Hold the key first: if a watch syncs during the check, that releases the key.
        locked(&shared.held).insert(key.clone());
        let readiness = self.readiness_of(key, shared.find(key).as_ref());
        if let Readiness::Ready = readiness {
            locked(&shared.held).remove(key);
        }
        readiness
    }

    /// Whether the watches that matter for the key have synced, with those that its object names, which are opened.
    pub(super) fn readiness_of(&self, key: &Key, found: Option<&Found<O::Kind>>) -> Readiness {
        let all = self.awaited.iter().map(|awaited| awaited(key));
        let readiness = all.fold(Readiness::Ready, Readiness::and);
        // An object that is being deleted waits for no watch that it names: a forbidden one would block the deletion for ever.
        let names = |object: &O::Kind| !object.metadata().is_terminating() && self.operator.serves(object);
        let object = match found {
            Some(Found::Readable(object)) => Some(&**object).filter(|object| names(object)),
            // It keeps those that it named before.
            Some(Found::Broken(_)) => return readiness,
            None => None,
        };
        self.named.iter().fold(readiness, |readiness, named| readiness.and(named(key, object)))
    }
}

impl<K> Shared<K> {
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

/// The task of one worker: reports that an object cannot be reconciled, because a watch that it needs is failing.
pub(super) async fn unwatched<O: Operator>(
    controller: Arc<Controller<O>>,
    key: Key,
    problem: String,
) -> Result<Next, ReconcileError> {
    let Controller { shared, operator, .. } = &*controller;
    if let Some(Found::Readable(object)) = shared.find(&key)
        && operator.serves(&object)
    {
        shared.try_to_report(&object, Verdict::no(WATCH_FAILED, problem)).await;
    }
    // Not an error: the backoff after an error may last longer than the sync.
    Ok(Next::After(LOOK_AGAIN))
}
