//! Deletes the children that an owner no longer has, and those of a deleted owner.

use serde::Serialize;

use super::{Owned, Ownership, Stage};
use crate::{
    client::Error,
    resource::{Key, ObjectMeta, Resource},
};

impl<K: Resource + Serialize> Owned<K> {
    /// Deletes a child that the owner's spec no longer has. After a change of the spec, asks the API server, too: the watch may miss
    /// the child, because it has a label selector.
    pub async fn discard<O: Resource>(&self, owner: &O, key: &Key, stage: Stage) -> Result<(), Error> {
        let is_changed = matches!(stage, Stage::New | Stage::Changed) && owner.metadata().generation > 1;
        if !is_changed || self.watch.find(key).is_some() {
            return self.delete(owner, key).await;
        }
        match self.cluster.get_live::<K>(key).await {
            Ok(child) => self.delete_owned(owner, child.metadata()).await,
            Err(error) if error.is_not_found() => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Deletes the child of a deleted owner, if it still has the ownerReference: the garbage collector may be slow or absent.
    /// An orphaned child has no ownerReference and stays.
    ///
    /// A conflict means that the child has changed and may be orphaned. The next attempt reads the child again.
    pub async fn delete<O: Resource>(&self, owner: &O, key: &Key) -> Result<(), Error> {
        self.mutations.forget(owner, key);
        let Some(child) = self.watch.find(key) else { return Ok(()) };
        self.delete_owned(owner, child.metadata()).await
    }

    async fn delete_owned<O: Resource>(&self, owner: &O, child: &ObjectMeta) -> Result<(), Error> {
        match self.ownership(owner, child) {
            Ownership::Ours if !child.is_terminating() => self.cluster.delete_by::<K>(child).await,
            Ownership::Ours | Ownership::Namesake | Ownership::Foreign => Ok(()),
        }
    }
}
