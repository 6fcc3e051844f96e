//! The cache: all objects of one watch, by key, and the resourceVersion from which the watch resumes. Lists, watch events and our
//! own writes change it. It also has the objects that cannot be decoded.
//!
//! ```text
//!   list page ──┐
//!   watch event ┼─► Store ─► Change ─► listeners
//!   our writes ─┘
//! ```
//!
//! The answer to a write of this process may be newer than the last event of the watch. Both go into the Store, and the
//! newer version wins ([`compare_versions`]). So a reader never finds an object that is older than the last write of
//! this process. There are two exceptions: the server was restored from a backup, or its versions cannot be compared.
//!
//! The Store also has the resourceVersion from which the watch resumes. Nothing in this file does I/O.

mod kept;

use std::{
    any::Any,
    cmp::Ordering,
    collections::{BTreeMap, HashSet},
    mem,
    sync::{Arc, Mutex, Weak},
};

use smol_str::SmolStr;

use crate::{
    causes, locked,
    resource::{
        Key, ObjectMeta, Resource, Uid, compare_versions,
        list::{Found, Partial, PartialCause},
    },
};
pub use kept::{Budget, KEPT_MIB, Kept, Portion};

/// The objects of one kind and scope.
pub struct Store<K> {
    pub(crate) kept: Kept<K>,
    contents: Mutex<Contents<K>>,
    listeners: Mutex<Vec<Weak<Listener<K>>>>,
}

type Listener<K> = dyn Fn(&Change<K>) + Send + Sync;

/// Keeps a listener of one or several Stores registered until this is dropped.
#[must_use = "a listener is called until this is dropped"]
pub struct Listening(Vec<Box<dyn Any + Send + Sync>>);

impl FromIterator<Listening> for Listening {
    fn from_iter<I: IntoIterator<Item = Listening>>(all: I) -> Listening {
        Listening(all.into_iter().flat_map(|listening| listening.0).collect())
    }
}

struct Contents<K> {
    objects: BTreeMap<Key, Item<K>>,
    /// The resourceVersion of the last list, event or BOOKMARK. Empty before the first list.
    version: SmolStr,
    /// Counts the lists. A new one begins a new round.
    round: u32,
    /// The present list is older than the Store: the server was restored from a backup.
    went_back: bool,
    synced: bool,
    /// The objects that we deleted, and whose DELETED event has not come yet. Older events and answers must not bring them back.
    /// Cleared when a list begins.
    removed: HashSet<Uid>,
}

struct Item<K> {
    found: Found<K>,
    /// The bytes that it takes of the budget.
    bytes: u32,
    /// The round in which a list or an event last had the object. An object that is known only from the answer to a write gets the
    /// round before, so that the end of the present list removes it, unless its version is newer than the list.
    round: u32,
    /// Whether the scope is known to select this version. If not, the answer to a write or a GET has shown it, and a DELETED
    /// event may follow.
    is_selected: bool,
}

/// A change of the Store, for its listeners.
#[derive(Debug)]
pub enum Change<K> {
    /// An object was added or changed.
    Applied {
        /// Its state before. `None`: it is new in the Store.
        before: Option<Found<K>>,
        /// Its state now.
        after: Found<K>,
    },
    /// An object was deleted.
    Deleted {
        /// Its last known state.
        last: Found<K>,
        /// How the deletion was noticed.
        source: DeletionSource,
    },
    /// The first list is complete: the Store has every object.
    Synced,
    /// The API server forbids the watch (403): the Store may miss changes from now on.
    Forbidden,
}

impl<K> Clone for Change<K> {
    fn clone(&self) -> Change<K> {
        match self {
            Change::Applied { before, after } => {
                Change::Applied { before: before.clone(), after: after.clone() }
            }
            Change::Deleted { last, source } => Change::Deleted { last: last.clone(), source: *source },
            Change::Synced => Change::Synced,
            Change::Forbidden => Change::Forbidden,
        }
    }
}

/// How a deletion was noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeletionSource {
    /// A DELETED event, or the answer to our DELETE.
    Event,
    /// The object is missing from a list, or another object has its name. The DELETED event was missed.
    Inferred,
}

/// Keeps all objects, with all their fields.
impl<K: Resource> Default for Store<K> {
    fn default() -> Store<K> {
        Store::keeping(Kept::everything())
    }
}

impl<K: Resource> Store<K> {
    /// Keeps what `kept` says.
    #[must_use]
    pub fn keeping(kept: Kept<K>) -> Store<K> {
        let contents = Contents {
            objects: BTreeMap::new(),
            version: SmolStr::default(),
            round: 0,
            went_back: false,
            synced: false,
            removed: HashSet::new(),
        };
        Store { kept, contents: Mutex::new(contents), listeners: Mutex::default() }
    }

    /// The object with this key. `None`: it is not in the Store. Before the first list is complete, it may still exist on the
    /// server.
    pub fn find(&self, key: &Key) -> Option<Found<K>> {
        locked(&self.contents).objects.get(key).map(|item| item.found.clone())
    }

    /// All keys, sorted by namespace, then by name.
    pub fn keys(&self) -> Vec<Key> {
        locked(&self.contents).objects.keys().cloned().collect()
    }

    /// The number of objects.
    pub fn len(&self) -> usize {
        locked(&self.contents).objects.len()
    }

    /// Whether the Store has no objects.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the first list is complete.
    pub fn is_synced(&self) -> bool {
        locked(&self.contents).synced
    }

    /// The resourceVersion up to which the Store has every change. The watch resumes from it. Empty before the first
    /// list.
    pub fn version(&self) -> SmolStr {
        locked(&self.contents).version.clone()
    }

    /// Calls `listener` at every change from now on, until the result is dropped. The listener blocks the watch or write that
    /// caused the change, so it must be quick.
    pub fn listen(&self, listener: impl Fn(&Change<K>) + Send + Sync + 'static) -> Listening {
        let listener: Arc<Listener<K>> = Arc::new(listener);
        locked(&self.listeners).push(Arc::downgrade(&listener));
        Listening(vec![Box::new(listener)])
    }

    /// An ADDED or MODIFIED event.
    pub fn applied(&self, after: Found<K>) {
        self.applied_of(after, 0);
    }

    /// The same, of an object of this many bytes.
    pub(crate) fn applied_of(&self, after: Found<K>, bytes: usize) {
        let changes = {
            let mut contents = locked(&self.contents);
            contents.version = after.metadata().resource_version.clone();
            let round = contents.round;
            contents.put(&self.kept, after, bytes, round, true)
        };
        self.notify(changes);
    }

    /// A DELETED event.
    pub fn deleted(&self, last: Found<K>) {
        let change = {
            let mut contents = locked(&self.contents);
            contents.version = last.metadata().resource_version.clone();
            contents.removed.remove(&last.metadata().uid);
            contents.remove(&self.kept, last)
        };
        self.notify(change);
    }

    /// A BOOKMARK event: the watch has sent every change up to this version.
    pub fn bookmark(&self, version: &SmolStr) {
        locked(&self.contents).version = version.clone();
    }

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
            if !mem::replace(&mut contents.synced, true) {
                changes.push(Change::Synced);
            }
            changes
        };
        self.notify(changes);
    }

    /// The API server forbids the watch.
    pub(crate) fn forbidden(&self) {
        self.notify([Change::Forbidden]);
    }

    /// The object in the answer to a write of ours, or to a GET that reads from the API server itself. The watch may send the
    /// event of that version later. `is_selected`: whether the scope of this Store is known to select the object.
    pub fn wrote(&self, object: &Arc<K>, is_selected: bool) {
        let metadata = object.metadata();
        let changes = {
            let mut contents = locked(&self.contents);
            // An object that is not in the Store may have been deleted since the answer. It is added only if its version is
            // newer than the version of the watch: then a DELETED event would still come.
            let is_ahead =
                compare_versions(&metadata.resource_version, &contents.version) == Some(Ordering::Greater);
            if (is_ahead && is_selected) || contents.objects.contains_key(&metadata.key()) {
                // The object does not count as listed. If it was deleted before the version of the present list, no DELETED
                // event will come, so the end of that list must remove it.
                let unlisted = contents.round.wrapping_sub(1);
                let (found, bytes) = contents.as_kept_before(object);
                contents.put(&self.kept, found, bytes, unlisted, is_selected)
            } else {
                Vec::new()
            }
        };
        self.notify(changes);
    }

    /// The answer to our DELETE: the object is gone, and no finalizer keeps it.
    pub fn removed(&self, gone: &ObjectMeta) {
        let change = {
            let mut contents = locked(&self.contents);
            let is_it =
                contents.objects.get(&gone.key()).is_some_and(|item| item.found.metadata().uid == gone.uid);
            let item = if is_it { contents.objects.remove(&gone.key()) } else { None };
            if let Some(item) = &item {
                self.kept.give_back(gone.namespace.as_ref(), item.bytes);
                contents.removed.insert(gone.uid.clone());
            }
            item.map(|item| Change::Deleted { last: item.found, source: DeletionSource::Event })
        };
        self.notify(change);
    }

    fn notify(&self, changes: impl IntoIterator<Item = Change<K>>) {
        for change in changes {
            // No lock while listeners run: they may add listeners.
            let listeners: Vec<_> = {
                let mut listeners = locked(&self.listeners);
                listeners.retain(|listener| listener.strong_count() > 0);
                listeners.iter().filter_map(Weak::upgrade).collect()
            };
            let call = || listeners.iter().for_each(|listener| listener(&change));
            match &change {
                Change::Applied { after, .. } => {
                    causes::event::<K>(after.metadata(), &after.metadata().resource_version, call);
                }
                Change::Deleted { last, .. } => causes::event::<K>(last.metadata(), "deleted", call),
                Change::Synced | Change::Forbidden => call(),
            }
        }
    }
}

impl<K> Drop for Store<K> {
    fn drop(&mut self) {
        for (key, item) in &locked(&self.contents).objects {
            self.kept.give_back(key.namespace.as_ref(), item.bytes);
        }
    }
}

impl<K: Resource> Contents<K> {
    /// The object of an answer, and its bytes: as many as before, until a list or a watch shows how many it has now, and whether it is
    /// still too large.
    fn as_kept_before(&self, object: &Arc<K>) -> (Found<K>, usize) {
        let Some(item) = self.objects.get(&object.key()) else {
            return (Found::Readable(Arc::clone(object)), 0);
        };
        let mut bytes = item.bytes as usize;
        if let Found::Partial(partial) = &item.found {
            match partial.cause {
                PartialCause::TooLarge => {
                    let partial = Partial { metadata: object.metadata().clone(), ..Partial::clone(partial) };
                    return (Found::Partial(Arc::new(partial)), 0);
                }
                PartialCause::NoRoom(had) => bytes = had,
                PartialCause::Undecodable | PartialCause::Unwanted => {}
            }
        }
        (Found::Readable(Arc::clone(object)), bytes)
    }

    /// Keeps the newer of two versions. If they cannot be compared, the one that arrives later wins. In a list after a restored
    /// backup, the listed one wins. The same version again changes nothing, except for whether its content is kept. Nor does an object that
    /// we deleted change anything, nor one of another shard, except that an earlier object of its name is gone.
    fn put(
        &mut self,
        kept: &Kept<K>,
        after: Found<K>,
        bytes: usize,
        round: u32,
        is_selected: bool,
    ) -> Vec<Change<K>> {
        if self.removed.contains(&after.metadata().uid) {
            return Vec::new();
        }
        let key = after.metadata().key();
        let Some(item) = self.objects.get_mut(&key) else {
            let Some((after, bytes)) = kept.limit(after, bytes) else { return Vec::new() };
            self.objects.insert(key, Item { found: after.clone(), bytes, round, is_selected });
            return vec![Change::Applied { before: None, after }];
        };
        if round == self.round {
            item.round = round;
        }
        let (had, has) = (item.found.metadata(), after.metadata());
        let order = compare_versions(&has.resource_version, &had.resource_version);
        let is_known = had.resource_version == has.resource_version && had.uid == has.uid;
        if order == Some(Ordering::Less) && !self.went_back {
            return Vec::new();
        }
        let is_another = had.uid != has.uid;
        // Before the new version takes its own.
        kept.give_back(key.namespace.as_ref(), mem::take(&mut item.bytes));
        let Some((after, bytes)) = kept.limit(after, bytes) else {
            // One of another shard has its name now.
            let last = self.objects.remove(&key).map(|item| item.found);
            return last
                .map(|last| Change::Deleted { last, source: DeletionSource::Inferred })
                .into_iter()
                .collect();
        };
        item.bytes = bytes;
        if is_known && item.found.readable().is_some() == after.readable().is_some() {
            return Vec::new();
        }
        item.is_selected = is_selected;
        let before = mem::replace(&mut item.found, after.clone());
        if is_another {
            // The object was deleted and created again, and the DELETED event was missed.
            let deleted = Change::Deleted { last: before, source: DeletionSource::Inferred };
            return vec![deleted, Change::Applied { before: None, after }];
        }
        vec![Change::Applied { before: Some(before), after }]
    }

    fn remove(&mut self, kept: &Kept<K>, last: Found<K>) -> Option<Change<K>> {
        let gone = last.metadata();
        let key = gone.key();
        let item = self.objects.get(&key)?;
        let has = item.found.metadata();
        let is_ahead =
            compare_versions(&has.resource_version, &gone.resource_version) == Some(Ordering::Greater);
        // A newer version that the scope does not select is also removed: no later DELETED event would remove it.
        if is_ahead && item.is_selected {
            // Either a label no longer matched the selector, and a later write of ours restored it. Or the event is about an
            // earlier object of that name.
            let is_another = has.uid != gone.uid;
            return is_another.then_some(Change::Deleted { last, source: DeletionSource::Event });
        }
        // Use the last state in the Store: it may be readable when the object of the event is not.
        let Item { found: last, bytes, .. } = self.objects.remove(&key)?;
        kept.give_back(key.namespace.as_ref(), bytes);
        Some(Change::Deleted { last, source: DeletionSource::Event })
    }

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        resource::{Uid, kinds::Service},
        shard::Shard,
    };

    fn object(uid: &str, version: &str) -> Service {
        let mut object = Service::default();
        object.metadata.name = "web".into();
        object.metadata.uid = uid.into();
        object.metadata.resource_version = version.into();
        object
    }

    fn listed(version: &str, items: &[(&str, &str)]) -> (Store<Service>, Arc<Mutex<Vec<String>>>, Listening) {
        let store = Store::default();
        let heard = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&heard);
        let listening = store.listen(move |change: &Change<Service>| {
            let of = |found: &Found<Service>| {
                format!("{}@{}", found.metadata().uid, found.metadata().resource_version)
            };
            log.lock().expect("lock").push(match change {
                Change::Applied { after, .. } => format!("+{}", of(after)),
                Change::Deleted { last, source } => format!("-{} {source:?}", of(last)),
                Change::Synced | Change::Forbidden => return,
            });
        });
        list(&store, version, items);
        heard.lock().expect("lock").clear();
        (store, heard, listening)
    }

    fn list(store: &Store<Service>, version: &str, items: &[(&str, &str)]) {
        store.list_begins();
        store.listed(
            version,
            items.iter().map(|(uid, version)| Found::Readable(Arc::new(object(uid, version)))),
        );
        store.list_ends(&version.into());
    }

    fn what(store: &Store<Service>) -> Option<String> {
        let found = store.find(&Key { namespace: None, name: "web".into() })?;
        Some(format!("{}@{}", found.metadata().uid, found.metadata().resource_version))
    }

    fn heard(heard: &Mutex<Vec<String>>) -> Vec<String> {
        std::mem::take(&mut *heard.lock().expect("lock"))
    }

    #[test]
    fn our_own_write_is_known_before_its_event_and_the_event_is_no_change() {
        let (store, log, _listening) = listed("100", &[]);
        store.wrote(&Arc::new(object("a", "105")), true);
        assert_eq!(what(&store).as_deref(), Some("a@105"));
        store.applied(Found::Readable(Arc::new(object("a", "105"))));
        assert_eq!(heard(&log), ["+a@105"]);
    }

    /// Each answer had its content, which stayed until the watch sent the event.
    #[test]
    fn the_answer_to_a_write_brings_no_content_of_an_object_that_is_too_large() {
        let store = Store::keeping(Kept::reconciled(&Budget::of_process(KEPT_MIB), Shard::default()));
        let large = |version: &str| {
            let (metadata, cause) = (object("a", version).metadata, PartialCause::TooLarge);
            Found::Partial(Arc::new(Partial { metadata, message: "too large".to_owned(), cause }))
        };
        store.list_begins();
        store.listed("100", [large("90")]);
        store.list_ends(&"100".into());
        let is_kept = || store.find(&object("a", "1").key()).is_some_and(|found| found.readable().is_some());
        store.wrote(&Arc::new(object("a", "105")), true);
        assert_eq!((what(&store).as_deref(), is_kept()), (Some("a@105"), false));
        store.applied(large("105"));
        assert!(!is_kept());
        store.wrote(&Arc::new(object("a", "107")), true);
        // Somebody had made it smaller.
        store.applied(Found::Readable(Arc::new(object("a", "107"))));
        assert_eq!((what(&store).as_deref(), is_kept()), (Some("a@107"), true));
    }

    /// A list showed another object of its name, and so it stayed for ever.
    #[test]
    fn an_object_whose_name_another_shard_has_is_gone() {
        let shard: Shard = "0/2".parse().expect("a shard");
        let store = Store::keeping(Kept::reconciled(&Budget::of_process(KEPT_MIB), shard));
        let uid = |is_ours| {
            let mut uids = (0..).map(|number: u32| number.to_string());
            uids.find(|uid| shard.has(&Uid::from(&**uid)) == is_ours).expect("a uid")
        };
        list(&store, "100", &[(&uid(true), "90")]);
        assert!(what(&store).is_some());
        list(&store, "110", &[(&uid(false), "105")]);
        assert_eq!(what(&store), None);
    }

    #[test]
    fn an_event_older_than_our_own_write_does_not_undo_it() {
        let (store, log, _listening) = listed("100", &[("a", "90")]);
        store.wrote(&Arc::new(object("a", "105")), true);
        store.applied(Found::Readable(Arc::new(object("a", "103"))));
        assert_eq!(what(&store).as_deref(), Some("a@105"));
        assert_eq!(heard(&log), ["+a@105"]);
    }

    #[test]
    fn a_late_write_answer_does_not_restore_a_deleted_object() {
        let (store, log, _listening) = listed("100", &[]);
        store.applied(Found::Readable(Arc::new(object("a", "105"))));
        store.deleted(Found::Readable(Arc::new(object("a", "106"))));
        store.wrote(&Arc::new(object("a", "105")), true);
        assert_eq!(what(&store), None);
        assert_eq!(heard(&log), ["+a@105", "-a@105 Event"]);
    }

    #[test]
    fn deleting_the_old_object_leaves_the_new_one_of_its_name() {
        let (store, log, _listening) = listed("100", &[("a", "90")]);
        store.deleted(Found::Readable(Arc::new(object("a", "101"))));
        store.wrote(&Arc::new(object("b", "103")), true);
        store.deleted(Found::Readable(Arc::new(object("a", "101"))));
        assert_eq!(what(&store).as_deref(), Some("b@103"));
        assert_eq!(heard(&log), ["-a@90 Event", "+b@103", "-a@101 Event"]);
    }

    #[test]
    fn an_object_relabelled_by_our_write_survives_its_old_deleted_event() {
        let (store, log, _listening) = listed("100", &[("a", "90")]);
        store.wrote(&Arc::new(object("a", "106")), true);
        store.deleted(Found::Readable(Arc::new(object("a", "104"))));
        assert_eq!(what(&store).as_deref(), Some("a@106"));
        assert_eq!(heard(&log), ["+a@106"]);
    }

    /// No later event would come for such an object: it stayed in the Store until the next list, which may be months away.
    #[test]
    fn an_object_that_a_read_shows_without_its_label_leaves_with_its_old_deleted_event() {
        for uid in ["a", "b"] {
            let (store, log, _listening) = listed("100", &[("a", "90")]);
            store.wrote(&Arc::new(object(uid, "105")), false);
            assert_eq!(what(&store), Some(format!("{uid}@105")));
            store.deleted(Found::Readable(Arc::new(object("a", "104"))));
            assert_eq!(what(&store), None);
            assert_eq!(heard(&log).last(), Some(&format!("-{uid}@105 Event")));
        }
    }

    #[test]
    fn a_list_that_is_older_than_our_own_write_does_not_sweep_it_away() {
        let (store, log, _listening) = listed("100", &[]);
        store.wrote(&Arc::new(object("a", "105")), true);
        list(&store, "102", &[]);
        assert_eq!(what(&store).as_deref(), Some("a@105"));
        list(&store, "106", &[]);
        assert_eq!(what(&store), None);
        assert_eq!(heard(&log), ["+a@105", "-a@105 Inferred"]);
    }

    /// The list after a restored backup overwrites newer versions. Once it is complete, the newer version wins again.
    /// Before the fix, older versions won until the next list, so a late answer to a write replaced later changes of
    /// other clients.
    #[test]
    fn once_a_list_that_went_back_is_complete_the_newer_version_wins_again() {
        let (store, _, _listening) = listed("100", &[("a", "90")]);
        list(&store, "50", &[("a", "40")]);
        assert_eq!(what(&store).as_deref(), Some("a@40"));
        store.applied(Found::Readable(Arc::new(object("a", "53"))));
        store.wrote(&Arc::new(object("a", "52")), true);
        assert_eq!(what(&store).as_deref(), Some("a@53"));
    }

    #[test]
    fn a_write_that_is_answered_while_a_list_comes_in_leaves_no_phantom() {
        for known in [&[][..], &[("a", "90")]] {
            let (store, _, _listening) = listed("93", known);
            store.list_begins();
            store.wrote(&Arc::new(object("a", "95")), true);
            // The object was deleted at 97: this list does not have it, and a watch from 100 sends no DELETED event.
            store.listed("100", []);
            store.list_ends(&"100".into());
            assert_eq!(what(&store), None);
        }
    }

    #[test]
    fn our_delete_removes_only_the_object_with_that_uid() {
        let (store, log, _listening) = listed("100", &[("a", "90")]);
        store.removed(&object("b", "95").metadata);
        assert_eq!(what(&store).as_deref(), Some("a@90"));
        store.removed(&object("a", "90").metadata);
        assert_eq!(what(&store), None);
        store.wrote(&Arc::new(object("c", "103")), true);
        store.deleted(Found::Readable(Arc::new(object("a", "101"))));
        assert_eq!(what(&store).as_deref(), Some("c@103"));
        assert_eq!(heard(&log), ["-a@90 Event", "+c@103", "-a@101 Event"]);
    }

    /// The watch may still send a change from before our DELETE. That change brought the object back until its DELETED event.
    #[test]
    fn nothing_that_arrives_late_brings_back_an_object_that_we_deleted() {
        let (store, log, _listening) = listed("100", &[("a", "90")]);
        store.removed(&object("a", "90").metadata);
        store.applied(Found::Readable(Arc::new(object("a", "101"))));
        store.wrote(&Arc::new(object("a", "102")), true);
        assert_eq!(what(&store), None);
        store.deleted(Found::Readable(Arc::new(object("a", "103"))));
        assert_eq!(heard(&log), ["-a@90 Event"]);
        assert!(locked(&store.contents).removed.is_empty());
    }

    #[test]
    fn a_list_has_an_object_again_that_we_deleted_after_a_backup() {
        let (store, _, _listening) = listed("100", &[("a", "90")]);
        store.removed(&object("a", "90").metadata);
        list(&store, "95", &[("a", "90")]);
        store.applied(Found::Readable(Arc::new(object("a", "96"))));
        assert_eq!(what(&store).as_deref(), Some("a@96"));
    }

    /// Its DELETED event came before the answer to our DELETE, so no other one will come.
    #[test]
    fn an_object_that_is_gone_when_our_delete_is_answered_is_not_remembered() {
        let (store, _, _listening) = listed("100", &[("a", "90")]);
        store.deleted(Found::Readable(Arc::new(object("a", "101"))));
        store.removed(&object("a", "90").metadata);
        assert!(locked(&store.contents).removed.is_empty());
    }

    #[test]
    fn writes_before_the_first_list_are_not_stored() {
        let store = Store::default();
        store.wrote(&Arc::new(object("a", "105")), true);
        assert_eq!(what(&store), None);
        assert!(store.is_empty() && store.keys().is_empty() && !store.is_synced());
        list(&store, "106", &[("a", "105")]);
        assert!(!store.is_empty() && store.is_synced());
        assert_eq!((store.len(), store.keys()), (1, vec![Key::cluster("web")]));
    }

    #[test]
    fn a_write_older_than_a_bookmark_does_not_bring_back_a_deleted_object() {
        let (store, _, _listening) = listed("100", &[]);
        store.bookmark(&"110".into());
        store.wrote(&Arc::new(object("a", "105")), true);
        assert_eq!(what(&store), None);
    }

    /// Such listeners come and go with the watches of single objects.
    #[test]
    fn a_dropped_listener_is_forgotten_at_the_next_change() {
        let (store, _, listening) = listed("100", &[]);
        drop(listening);
        store.forbidden();
        assert!(locked(&store.listeners).is_empty());
    }

    #[test]
    fn an_object_that_does_not_decode_is_there_and_becomes_readable_again() {
        let (store, _, _listening) = listed("100", &[("a", "90")]);
        let metadata = ObjectMeta { resource_version: "101".into(), ..object("a", "101").metadata };
        store.applied(Found::Partial(Arc::new(Partial {
            metadata,
            message: "odd".into(),
            cause: PartialCause::Undecodable,
        })));
        let found = store.find(&Key { namespace: None, name: "web".into() }).expect("it is there");
        assert!(found.readable().is_none());
        store.applied(Found::Readable(Arc::new(object("a", "102"))));
        assert_eq!(what(&store).as_deref(), Some("a@102"));
        let found = store.find(&Key::cluster("web")).expect("it is there");
        assert!(found.readable().is_some());
    }
}
