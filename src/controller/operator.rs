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
/// removing (`FinalizerRemoved`). An error of `reconcile` that is not one of a request is the reason `OperatorFailed`.
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
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use listwatch::{cluster::Cluster, controller::{Cleanup, Next, Operator, Reconcile, ReconcileError}};
    /// # use listwatch::resource::{Key, MANAGED_BY, Meta, kinds::{ConfigMap, Namespace}};
    /// # struct Teams { cluster: Cluster }
    /// impl Operator for Teams {
    ///     type Kind = Namespace;
    ///     const FINALIZER: Option<&'static str> = Some("example.com/team");
    ///
    ///     // The garbage collector does not delete a ConfigMap in another namespace than its owner.
    ///     async fn deleting(&self, team: Reconcile<Namespace>) -> Result<Cleanup, ReconcileError> {
    ///         let key = Key::namespaced("teams", &team.metadata.name);
    ///         match self.cluster.get_live::<Meta<ConfigMap>>(&key).await {
    ///             Ok(live) if live.metadata.labels.get(MANAGED_BY) == Some("teams") => {
    ///                 self.cluster.delete(&*live).await?;
    ///                 Ok(Cleanup::Pending(Next::After(Duration::from_secs(1))))
    ///             }
    ///             // Somebody else's.
    ///             Ok(_) => Ok(Cleanup::Done),
    ///             Err(error) if error.is_not_found() => Ok(Cleanup::Done),
    ///             Err(error) => Err(error.into()),
    ///         }
    ///     }
    /// #   async fn reconcile(&self, _: Reconcile<Namespace>) -> Result<Next, ReconcileError> { Ok(Next::OnChange) }
    /// }
    /// ```
    fn deleting(
        &self,
        object: Reconcile<Self::Kind>,
    ) -> impl Future<Output = Result<Cleanup, ReconcileError>> + Send {
        drop(object);
        let nothing: NothingToDelete = future::ready(Ok(Cleanup::Done));
        nothing
    }

    /// Called after an object was deleted, and its children if they could be, to forget what the operator knows of it; again until it
    /// and the deletion of the children succeed. `last` is its last known state; not called if that could not be decoded. If no
    /// DELETED event proves the deletion, a live GET has confirmed it. A deletion while this process is stopped, or while
    /// another process leads or none does, goes unnoticed: if that matters, use an ownerReference or a [`Operator::FINALIZER`].
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
    /// Not yet: [`Operator::deleting`] is called again at [`Next`]. With [`Next::OnChange`], a watch of the operator must show the
    /// change.
    Pending(Next),
}
