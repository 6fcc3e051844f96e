//! The gates between the queue and the operator. Most keys stop at one of them:
//!
//! ```text
//!   leads       not this process: the key is left to the leader                    Controller::run
//!   ours        not in the shard, or not served by the operator: left alone        Controller::due
//!   content     not kept: read from the API server, and asked again                Controller::due
//!   finalizer   being deleted: cleaned up if it has ours, else left alone          Controller::due
//!   paused      reported, and else left alone until it is deleted                  Controller::due
//!   watches     not synced: held until they are; failing: reported                 Controller::readiness
//!   named       the watches that the object names, likewise                        Controller::readiness
//! ```
//!
//! The order matters. A standby opens the watches that it will need as a leader, and does no more. No watch is opened and no request sent
//! for an object that is not ours. Only the content says whether the operator serves an object and whether it is paused, and the kept
//! metadata of an object that is too large may lack the finalizers. A pause must not block a deletion, so the finalizer comes first. The
//! watches that an object names come last, because the gates before say whether they matter: a deleted object waits for none of them, as a
//! forbidden one would block the deletion for ever.

use std::{sync::Arc, time::Duration};

use super::{Controller, Next, Operator, ReconcileError, Shared, finalizers::finalizer_index};
use crate::{
    children::WATCH_FAILED,
    cluster::Readiness,
    locked,
    queue::Urgency,
    resource::{
        Key, Scope,
        conditions::Verdict,
        list::{Found, Partial, PartialCause},
    },
};

/// How often to check whether the watches of an object have synced.
pub(super) const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// Whether the Stores of a watch have every object that matters for a key.
pub(super) type Awaited = dyn Fn(&Key) -> Readiness + Send + Sync;

/// What an object needs.
pub(super) enum Due<K> {
    /// Nothing: there is none, it is not ours, or only the finalizers of others keep it.
    Nothing,
    /// Its content from the API server: the Store has the metadata alone.
    Read(Arc<Partial>),
    /// A report that it does not decode.
    Unreadable(Arc<Partial>),
    /// A call of [`Operator::deleting`].
    CleanUp(Arc<K>),
    /// A report that it is paused.
    Pause(Arc<K>),
    /// A call of [`Operator::reconcile`].
    Reconcile(Arc<K>),
}

impl<O: Operator> Controller<O> {
    /// Whether this process reconciles an object, as far as its content is known.
    pub(super) fn is_ours(&self, found: &Found<O::Kind>) -> bool {
        self.shared.cluster.shard.has(&found.metadata().uid)
            && found.readable().is_none_or(|object| self.operator.serves(object))
    }

    /// What an object needs, whether its watches have synced or not.
    pub(super) fn due(&self, found: Option<&Found<O::Kind>>) -> Due<O::Kind> {
        let Some(found) = found.filter(|found| self.is_ours(found)) else { return Due::Nothing };
        let metadata = found.metadata();
        match found {
            Found::Partial(partial) if is_read::<O>(partial) => Due::Read(Arc::clone(partial)),
            // Another finalizer keeps the object. A child that is created now would only delay its deletion.
            Found::Readable(_) | Found::Partial(_)
                if metadata.is_terminating() && finalizer_index::<O>(metadata).is_none() =>
            {
                Due::Nothing
            }
            Found::Partial(partial) => Due::Unreadable(Arc::clone(partial)),
            Found::Readable(object) if metadata.is_terminating() => Due::CleanUp(Arc::clone(object)),
            Found::Readable(object) if metadata.is_paused::<O::Kind>() => Due::Pause(Arc::clone(object)),
            Found::Readable(object) => Due::Reconcile(Arc::clone(object)),
        }
    }

    /// Whether the watches that matter for the key have synced. If not, holds the key until they have.
    pub(super) fn readiness(&self, key: &Key, found: Option<&Found<O::Kind>>) -> Readiness {
        // Hold the key first: if a watch syncs during the check, that releases the key.
        locked(&self.shared.held).insert(key.clone());
        let readiness = self.readiness_of(key, found);
        if let Readiness::Ready = readiness {
            locked(&self.shared.held).remove(key);
        }
        readiness
    }

    /// Whether the watches that matter for the key have synced, with those that its object names, which are opened.
    pub(super) fn readiness_of(&self, key: &Key, found: Option<&Found<O::Kind>>) -> Readiness {
        let all = self.awaited.iter().map(|awaited| awaited(key));
        let readiness = all.max().unwrap_or(Readiness::Ready);
        let due = self.due(found);
        let object = match &due {
            Due::Pause(object) | Due::Reconcile(object) => Some(&**object),
            Due::Nothing | Due::CleanUp(_) => None,
            // It keeps those that it named before.
            Due::Read(_) | Due::Unreadable(_) => return readiness,
        };
        self.named.iter().fold(readiness, |readiness, named| readiness.max(named(key, object)))
    }

    /// The task of one worker: reports that an object cannot be reconciled, because a watch that it needs is failing.
    pub(super) async fn unwatched(
        self: Arc<Self>,
        key: Key,
        problem: String,
    ) -> Result<Next, ReconcileError> {
        match self.due(self.shared.objects.find(&key).as_ref()) {
            Due::CleanUp(object) | Due::Pause(object) | Due::Reconcile(object) => {
                self.shared.try_to_report(&object, Verdict::no(WATCH_FAILED, problem)).await;
            }
            Due::Nothing | Due::Read(_) | Due::Unreadable(_) => {}
        }
        // Not an error: the backoff after an error may last longer than the sync.
        Ok(Next::After(LOOK_AGAIN))
    }
}

/// Whether an object whose content is not kept is read: one that is too large only for its cleanup, which also needs its finalizers.
fn is_read<O: Operator>(partial: &Partial) -> bool {
    match partial.cause {
        PartialCause::NoRoom(_) => true,
        PartialCause::TooLarge => partial.metadata.is_terminating() && O::FINALIZER.is_some(),
        PartialCause::Undecodable | PartialCause::Unwanted => false,
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
