//! The children of each owner, by its uid, to delete them after their owner: the garbage collector may be slow or absent.

use std::{
    collections::BTreeSet,
    pin::Pin,
    sync::{Arc, Mutex},
};

use super::write::LastWrites;
use crate::{
    client::Error,
    cluster::{Cluster, Watch},
    locked,
    resource::{Key, ObjectMeta, Resource, Uid, list::Found},
    store::{Change, Listening},
};

/// The children of one kind, by their owner.
pub(super) struct ByOwner<K> {
    cluster: Cluster,
    watch: Watch<K>,
    last_writes: Arc<LastWrites>,
    keys: Arc<Mutex<Keys>>,
    _listening: Listening,
}

/// The keys of the children, each after the uid of its owner. Usually, an owner has one of each kind, but anybody may create more.
type Keys = BTreeSet<(Uid, Key)>;

/// The children of an owner, of a kind that the caller does not know.
pub(crate) trait OfOwner: Send + Sync {
    /// Deletes the children of an owner. One that has lost its ownerReference is orphaned, and stays.
    fn delete_all<'a>(&'a self, owner: &'a Uid) -> Deleting<'a>;
}

type Deleting<'a> = Pin<Box<dyn Future<Output = Result<(), Error>> + Send + 'a>>;

/// The uid of the owner, if there is one.
fn owner(child: &ObjectMeta) -> Option<Uid> {
    child.controller().map(|owner| owner.uid.clone())
}

impl<K: Resource> ByOwner<K> {
    pub(super) fn new(cluster: &Cluster, watch: &Watch<K>, last_writes: &Arc<LastWrites>) -> ByOwner<K> {
        let keys = Arc::<Mutex<Keys>>::default();
        // Two changes may be reported out of order, so the present object replaces the earlier one, whatever the change was.
        let update = {
            let (watch, keys) = (watch.clone(), Arc::clone(&keys));
            move |key: &Key, earlier: Option<&ObjectMeta>| {
                let mut keys = locked(&keys);
                if let Some(earlier) = earlier.and_then(owner) {
                    keys.remove(&(earlier, key.clone()));
                }
                let present = watch.find(key);
                if let Some(present) = present.and_then(|present| owner(present.metadata())) {
                    keys.insert((present, key.clone()));
                }
            }
        };
        let listening = watch.listen({
            let update = update.clone();
            move |_, change| match change {
                Change::Applied { before, after } => {
                    update(&after.metadata().key(), before.as_ref().map(Found::metadata));
                }
                Change::Deleted { last, .. } => update(&last.metadata().key(), Some(last.metadata())),
                Change::Synced | Change::Forbidden => {}
            }
        });
        watch.keys().iter().for_each(|key| update(key, None));
        let (cluster, watch, last_writes) = (cluster.clone(), watch.clone(), Arc::clone(last_writes));
        ByOwner { cluster, watch, last_writes, keys, _listening: listening }
    }
}

impl<K: Resource> OfOwner for ByOwner<K> {
    fn delete_all<'a>(&'a self, uid: &'a Uid) -> Deleting<'a> {
        Box::pin(async move {
            self.last_writes.forget_all(uid);
            let first = (uid.clone(), Key::cluster(""));
            let keys: Vec<_> =
                locked(&self.keys).range(first..).take_while(|(owner, _)| owner == uid).cloned().collect();
            let mut deleted = Ok(());
            for (_, key) in keys {
                let Some(child) = self.watch.find(&key) else { continue };
                let child = child.metadata();
                // A failure to delete one child does not keep the others.
                if owner(child).as_ref() == Some(uid) && !child.is_terminating() {
                    let this = self.cluster.delete_by::<K>(child).await;
                    deleted = deleted.and(this);
                }
            }
            deleted
        })
    }
}
