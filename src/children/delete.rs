//! Deletes the children that an owner no longer has.

use serde::Serialize;

use super::{Children, Ownership, Stage};
use crate::{
    client::Error,
    resource::{Key, ObjectMeta, Resource},
};

impl<K: Resource + Serialize> Children<K> {
    /// Deletes a child that the owner's spec no longer has. After a change of the spec, asks the API server, too: the watch may miss
    /// the child, because it has a label selector.
    ///
    /// A conflict means that the child has changed and may be orphaned. The next attempt reads the child again.
    pub(super) async fn discard<O: Resource>(&self, owner: &O, key: &Key, stage: Stage) -> Result<(), Error> {
        let is_changed = matches!(stage, Stage::New | Stage::Changed) && owner.metadata().generation > 1;
        self.last_writes.forget(owner, key);
        if let Some(child) = self.watch.find(key) {
            return self.delete_owned(owner, child.metadata()).await;
        }
        if !is_changed {
            return Ok(());
        }
        match self.cluster.get_live::<K>(key).await {
            Ok(child) => self.delete_owned(owner, child.metadata()).await,
            Err(error) if error.is_not_found() => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn delete_owned<O: Resource>(&self, owner: &O, child: &ObjectMeta) -> Result<(), Error> {
        match self.ownership(owner, child) {
            Ownership::Ours if !child.is_terminating() => self.cluster.delete_by::<K>(child).await,
            Ownership::Ours | Ownership::Namesake | Ownership::Foreign => Ok(()),
        }
    }
}
