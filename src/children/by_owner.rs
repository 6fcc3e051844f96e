//! Deletes the children of a deleted owner: the garbage collector may be slow or absent.

use std::{pin::Pin, sync::Arc};

use super::write::LastWrites;
use crate::{
    client::Error,
    cluster::{Cluster, Watch},
    resource::{Resource, Uid},
};

/// The children of one kind, by their owner.
pub(super) struct ByOwner<K> {
    pub(super) cluster: Cluster,
    pub(super) watch: Watch<K>,
    pub(super) last_writes: Arc<LastWrites>,
}

/// The children of an owner, of a kind that the caller does not know.
pub(crate) trait OfOwner: Send + Sync {
    /// Deletes the children of an owner that this process has kept. One that has lost its ownerReference is orphaned, and stays.
    fn delete_all<'a>(&'a self, owner: &'a Uid) -> Deleting<'a>;
}

type Deleting<'a> = Pin<Box<dyn Future<Output = Result<(), Error>> + Send + 'a>>;

impl<K: Resource> OfOwner for ByOwner<K> {
    fn delete_all<'a>(&'a self, uid: &'a Uid) -> Deleting<'a> {
        Box::pin(async move {
            let mut deleted = Ok(());
            for key in self.last_writes.children_of(uid) {
                if let Some(child) = self.watch.find(&key)
                    && child.metadata().controller().is_some_and(|owner| owner.uid == *uid)
                    && !child.metadata().is_terminating()
                    && let Err(error) = self.cluster.delete_by::<K>(child.metadata()).await
                {
                    // A failure to delete one child does not keep the others.
                    deleted = deleted.and(Err(error));
                    continue;
                }
                self.last_writes.forget(uid, &key);
            }
            deleted
        })
    }
}
