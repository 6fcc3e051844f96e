//! Lists in the Store: marks the objects of a list, then sweeps away the objects that the list did not have.

use std::cmp::Ordering;

use smol_str::SmolStr;

use super::{Change, Contents, DeletionSource, Found, Item, Kept, Store};
use crate::{
    locked,
    resource::{Resource, compare_versions},
};

impl<K: Resource> Store<K> {
    /// A list begins or is started again. The objects of an unfinished list are kept.
    pub fn list_begins(&self) {
        let mut contents = locked(&self.contents);
        contents.round = contents.round.wrapping_add(1);
        contents.went_back = false;
        // A list has no DELETED events. After a restored backup it may even have the object again.
        contents.removed.clear();
    }

    /// A page of a list, or one object of a streaming list. Goes into the Store at once: there is no second copy of the list.
    pub fn listed(&self, version: &str, items: impl IntoIterator<Item = Found<K>>) {
        self.listed_of(version, items.into_iter().map(|found| (found, 0)));
    }

    /// The same, with the bytes of each object.
    pub(crate) fn listed_of(&self, version: &str, items: impl IntoIterator<Item = (Found<K>, usize)>) {
        let changes = {
            let mut contents = locked(&self.contents);
            contents.went_back |= compare_versions(version, &contents.version) == Some(Ordering::Less);
            let round = contents.round;
            let put = |(found, bytes)| contents.put(&self.kept, found, bytes, round, true);
            items.into_iter().flat_map(put).collect::<Vec<_>>()
        };
        self.notify(changes);
    }

    /// The list is complete, as of `version`: objects that it did not have were deleted.
    pub fn list_ends(&self, version: &SmolStr) {
        let changes = {
            let mut contents = locked(&self.contents);
            let mut changes = contents.sweep(&self.kept, version);
            contents.version = version.clone();
            contents.went_back = false;
            if !std::mem::replace(&mut contents.synced, true) {
                changes.push(Change::Synced);
            }
            changes
        };
        self.notify(changes);
    }
}

impl<K: Resource> Contents<K> {
    /// Removes the objects that the list did not have, except those that were written after it.
    fn sweep(&mut self, kept: &Kept<K>, version: &str) -> Vec<Change<K>> {
        let (round, went_back) = (self.round, self.went_back);
        let was_written_since = |item: &Item<K>| {
            compare_versions(&item.found.metadata().resource_version, version) == Some(Ordering::Greater)
        };
        let gone: Vec<_> = self
            .objects
            .extract_if(.., |_, item| item.round != round && (went_back || !was_written_since(item)))
            .collect();
        gone.into_iter()
            .map(|(key, item)| {
                kept.give_back(key.namespace.as_ref(), item.bytes);
                Change::Deleted { last: item.found, source: DeletionSource::Inferred }
            })
            .collect()
    }
}
