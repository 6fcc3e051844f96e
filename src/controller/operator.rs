//! The trait [`Operator`]: what an author writes for one kind, and when the controller calls it.

use std::{future, sync::Arc};

use super::{Next, Reconcile, ReconcileError, builder::NothingToDelete};
use crate::resource::Resource;

/// Makes the cluster match the specs of the objects of one kind.
///
/// Implementations write plain `async fn`. Each `async` method may be called again at any time, even without a change,
/// and may be stopped at any `.await`.
///
/// The controller does the rest: it deletes the children of a deleted object, and reports in the status an object that does not
/// decode (`InvalidSpec`), whose watches are forbidden or fail for a minute (`WatchFailed`), or whose finalizer another client keeps
/// removing (`FinalizerRemoved`).
/// An object with the annotation `GROUP/paused: "true"`, with the group of its kind, is left alone until it is deleted (`Paused`).
pub trait Operator: Send + Sync + 'static {
    /// The kind of the objects.
    type Kind: Resource;
    /// The finalizer that keeps a deleted object until [`Operator::deleting`] is done. An operator needs one for what
    /// the garbage collector cannot delete, because it is outside the cluster or in another namespace. It is added
    /// before the first `reconcile`. Its name has a domain: `example.com/cleanup`.
    const FINALIZER: Option<&'static str> = None;

    /// Whether an object needs the finalizer now. It is added when this becomes true, and removed when this becomes false, each time before
    /// the next `reconcile`. Without it, the object can also be deleted while no operator runs.
    fn needs_finalizer(&self, object: &Self::Kind) -> bool {
        let _ = object;
        true
    }

    /// Whether this process reconciles an object. Otherwise the object is left as it is: it gets no finalizer, and none of
    /// `reconcile`, `deleting` and `deleted` is called for it.
    fn serves(&self, object: &Self::Kind) -> bool {
        let _ = object;
        true
    }

    /// Reconciles an object that exists, after an ADDED or MODIFIED event or at any later time: keeps its children, and ends with
    /// [`Reconcile::finish`] if the kind has a status. Never called for an object with a deletionTimestamp.
    fn reconcile(
        &self,
        object: Reconcile<Self::Kind>,
    ) -> impl Future<Output = Result<Next, ReconcileError>> + Send;

    /// Cleans up after an object with a deletionTimestamp and our [`Operator::FINALIZER`]. Called until it returns
    /// [`Cleanup::Done`]; then the finalizer is removed, and the API server deletes the object unless it has other finalizers.
    fn deleting(
        &self,
        object: Reconcile<Self::Kind>,
    ) -> impl Future<Output = Result<Cleanup, ReconcileError>> + Send {
        drop(object);
        let nothing: NothingToDelete = future::ready(Ok(Cleanup::Done));
        nothing
    }

    /// Called after an object and its children were deleted, to forget what the operator knows of it. `last` is its last known state;
    /// not called if that could not be decoded. If no
    /// DELETED event proves the deletion, a live GET has confirmed it. A deletion while this process is stopped goes
    /// unnoticed: if that matters, use an ownerReference or a [`Operator::FINALIZER`].
    fn deleted(&self, last: Arc<Self::Kind>) -> impl Future<Output = Result<(), ReconcileError>> + Send {
        let _ = last;
        async { Ok(()) }
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

impl Cleanup {
    /// The same, at this time at the latest if it is not complete.
    pub(super) fn or_sooner(self, other: Next) -> Cleanup {
        match self {
            Cleanup::Done => Cleanup::Done,
            Cleanup::Pending(next) => Cleanup::Pending(next.or_sooner(other)),
        }
    }
}
