//! The trait [`Operator`]: what an author writes for one kind, and when the controller calls it.

use std::{sync::Arc, time::Duration};

use super::ReconcileError;
use crate::{
    cluster::Watch,
    resource::{Resource, list::Broken},
};

/// Makes the cluster match the specs of the objects of one kind.
///
/// Implementations write plain `async fn`. Each `async` method may be called again at any time, even without a change,
/// and may be stopped at any `.await`.
pub trait Operator: Send + Sync + 'static {
    /// The kind of the objects.
    type Kind: Resource;
    /// The finalizer that keeps a deleted object until [`Operator::deleting`] is done. An operator needs one for what
    /// the garbage collector cannot delete, because it is outside the cluster or in another namespace. It is added
    /// before the first `applied`. Its name has a domain: `example.com/cleanup`.
    const FINALIZER: Option<&'static str> = None;

    /// Whether an object needs the finalizer now. It is added when this becomes true, and removed when this becomes false, each time before
    /// the next `applied`. Without it, the object can also be deleted while no operator runs.
    fn needs_finalizer(&self, object: &Self::Kind) -> bool {
        let _ = object;
        true
    }

    /// Whether this process reconciles an object. Otherwise the object is left as it is: it gets no finalizer, and none of
    /// `applied`, `deleting` and `deleted` is called for it.
    fn serves(&self, object: &Self::Kind) -> bool {
        let _ = object;
        true
    }

    /// Reconciles an object that exists, after an ADDED or MODIFIED event or at any later time. Never called for an
    /// object with a deletionTimestamp.
    fn applied(&self, object: Arc<Self::Kind>) -> impl Future<Output = Result<Next, ReconcileError>> + Send;

    /// Cleans up after an object with a deletionTimestamp and our [`Operator::FINALIZER`]. Called until it returns
    /// [`Cleanup::Done`]; then the finalizer is removed, and the API server deletes the object unless it has other finalizers.
    fn deleting(
        &self,
        object: Arc<Self::Kind>,
    ) -> impl Future<Output = Result<Cleanup, ReconcileError>> + Send {
        let _ = object;
        async { Ok(Cleanup::Done) }
    }

    /// Called after an object was deleted. `last` is its last known state; not called if that could not be decoded. If no
    /// DELETED event proves the deletion, a live GET has confirmed it. A deletion while this process is stopped goes
    /// unnoticed: if that matters, use an ownerReference or a [`Operator::FINALIZER`].
    fn deleted(&self, last: Arc<Self::Kind>) -> impl Future<Output = Result<(), ReconcileError>> + Send {
        let _ = last;
        async { Ok(()) }
    }

    /// Called once, when the Stores have every object. An implementation can log an overview.
    fn synced(&self, objects: &Watch<Self::Kind>) {
        let _ = objects;
    }

    /// Called again and again, in place of [`Operator::applied`] or [`Operator::deleting`], while an object is not reconciled. An
    /// implementation can report the reason and the problem in the status. Its own error is only logged, at level debug.
    ///
    /// - `WatchFailed`: the object waits for a watch that fails before its first sync, or the API server forbids a watch of
    ///   [`Controller::watches_each`](super::Controller::watches_each).
    /// - `FinalizerRemoved`: another client keeps removing the [`Operator::FINALIZER`].
    fn unreconciled(
        &self,
        object: Arc<Self::Kind>,
        reason: &'static str,
        problem: String,
    ) -> impl Future<Output = Result<(), ReconcileError>> + Send {
        let _ = (object, reason, problem);
        async { Ok(()) }
    }

    /// Called for an object that exists but cannot be decoded. An implementation can report that in the status. The object
    /// keeps its finalizer.
    fn unreadable(&self, object: Arc<Broken>) -> impl Future<Output = Result<(), ReconcileError>> + Send {
        let _ = object;
        async { Ok(()) }
    }
}

/// When to reconcile an object again after a success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// When its key is added to the queue again, usually because the object or a child of it has changed.
    OnChange,
    /// The same, but after this time at the latest.
    After(Duration),
}

impl Next {
    /// The sooner of two.
    #[must_use]
    pub fn or_sooner(self, other: Next) -> Next {
        match (self, other) {
            (Next::After(one), Next::After(another)) => Next::After(one.min(another)),
            (Next::OnChange, next) | (next, Next::OnChange) => next,
        }
    }
}

/// Whether the cleanup after a deleted object is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cleanup {
    /// Complete: the finalizer is removed.
    Done,
    /// Not yet: [`Operator::deleting`] is called again at [`Next`].
    Pending(Next),
}
