//! What we know: every object that a watch has told of, by key.
//!
//! ```text
//!   list page ──┐
//!   watch event ┼─► Store ─► Change ─► whoever listens
//!   our writes ─┘
//! ```
//!
//! A watch tells the past in order; the answers to our own writes run ahead of it. Both go in here, and the newer wins
//! ([`compare_versions`]), so what a reader finds is never older than what this process has written itself.
//! Nothing in this file does I/O.

use std::{
    cmp::Ordering,
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use smol_str::SmolStr;

use crate::{
    locked,
    resource::{
        Key, ObjectMeta, Resource, compare_versions,
        list::{Broken, Decoded},
    },
};

/// The objects of one kind and scope.
pub struct Store<K> {
    inner: Mutex<Inner<K>>,
    listeners: Mutex<Vec<Arc<Listener<K>>>>,
}

type Listener<K> = dyn Fn(&Change<K>) + Send + Sync;

struct Inner<K> {
    objects: BTreeMap<Key, Entry<K>>,
    /// How far the stream has come. Empty before the first list.
    version: SmolStr,
    /// Number of the list that is coming in, or came in last.
    round: u32,
    /// The list that is coming in is older than what we have: the server was restored from a backup.
    went_back: bool,
    synced: bool,
}

struct Entry<K> {
    found: Found<K>,
    /// The last list that had the object in it.
    round: u32,
}

/// What is known of one object.
#[derive(Debug)]
pub enum Found<K> {
    /// It exists.
    Readable(Arc<K>),
    /// It exists, but does not decode.
    Broken(Arc<Broken>),
}

impl<K> Clone for Found<K> {
    fn clone(&self) -> Found<K> {
        match self {
            Found::Readable(object) => Found::Readable(Arc::clone(object)),
            Found::Broken(broken) => Found::Broken(Arc::clone(broken)),
        }
    }
}

impl<K: Resource> Found<K> {
    /// The metadata, which is readable either way.
    pub fn metadata(&self) -> &ObjectMeta {
        match self {
            Found::Readable(object) => object.metadata(),
            Found::Broken(broken) => &broken.metadata,
        }
    }

    /// The object, where it is readable.
    pub fn readable(&self) -> Option<&Arc<K>> {
        match self {
            Found::Readable(object) => Some(object),
            Found::Broken(_) => None,
        }
    }
}

impl<K> From<Decoded<K>> for Found<K> {
    fn from(decoded: Decoded<K>) -> Found<K> {
        match decoded {
            Decoded::Readable(object) => Found::Readable(Arc::new(object)),
            Decoded::Broken(broken) => Found::Broken(Arc::new(broken)),
        }
    }
}

/// What has become different.
#[derive(Debug)]
pub enum Change<K> {
    /// The object is there, or is different from before.
    Applied {
        /// As it was; `None` where it is new to us.
        before: Option<Found<K>>,
        /// As it is.
        after: Found<K>,
    },
    /// The object is no longer there.
    Deleted {
        /// As it was.
        last: Found<K>,
        /// How we know.
        sighting: Sighting,
    },
    /// The first list is complete: all that exists is known.
    Synced,
}

/// How a deletion came to be known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sighting {
    /// The server said DELETED, or that it has done so at our request.
    Event,
    /// A list no longer had it.
    Inferred,
}

impl<K: Resource> Default for Store<K> {
    fn default() -> Store<K> {
        let inner = Inner {
            objects: BTreeMap::new(),
            version: SmolStr::default(),
            round: 0,
            went_back: false,
            synced: false,
        };
        Store { inner: Mutex::new(inner), listeners: Mutex::default() }
    }
}

impl<K: Resource> Store<K> {
    /// What is known of an object. `None`: it does not exist, or the first list is not complete yet.
    pub fn find(&self, key: &Key) -> Option<Found<K>> {
        locked(&self.inner).objects.get(key).map(|entry| entry.found.clone())
    }

    /// All keys, in order.
    pub fn keys(&self) -> Vec<Key> {
        locked(&self.inner).objects.keys().cloned().collect()
    }

    /// How many objects.
    pub fn len(&self) -> usize {
        locked(&self.inner).objects.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the first list was complete.
    pub fn is_synced(&self) -> bool {
        locked(&self.inner).synced
    }

    /// Calls `listener` at every change from now on, for as long as the Store lives. It is called by whoever makes the
    /// change, so it must be quick.
    pub fn listen(&self, listener: impl Fn(&Change<K>) + Send + Sync + 'static) {
        locked(&self.listeners).push(Arc::new(listener));
    }

    /// ADDED or MODIFIED.
    pub fn applied(&self, object: Decoded<K>) {
        let found = Found::from(object);
        let changes = {
            let mut inner = locked(&self.inner);
            inner.version = found.metadata().resource_version.clone();
            let round = inner.round;
            inner.put(found, round)
        };
        self.tell(changes);
    }

    /// DELETED.
    pub fn deleted(&self, object: Decoded<K>) {
        let last = Found::from(object);
        let change = {
            let mut inner = locked(&self.inner);
            inner.version = last.metadata().resource_version.clone();
            inner.remove(last)
        };
        self.tell(change);
    }

    /// BOOKMARK: nothing happened up to this version.
    pub fn bookmark(&self, version: &SmolStr) {
        locked(&self.inner).version = version.clone();
    }

    /// A list begins, or begins anew. What an unfinished one has brought is kept.
    pub fn list_begins(&self) {
        let mut inner = locked(&self.inner);
        inner.round = inner.round.wrapping_add(1);
        inner.went_back = false;
    }

    /// Some of the listed objects. They are in the Store at once; no second copy of the list exists.
    pub fn listed(&self, version: &str, items: impl IntoIterator<Item = Decoded<K>>) {
        let changes = {
            let mut inner = locked(&self.inner);
            inner.went_back |= compare_versions(version, &inner.version) == Some(Ordering::Less);
            let round = inner.round;
            items.into_iter().flat_map(|item| inner.put(item.into(), round)).collect::<Vec<_>>()
        };
        self.tell(changes);
    }

    /// The list is complete, as of `version`: what it did not have is gone.
    pub fn list_ends(&self, version: &SmolStr) {
        let changes = {
            let mut inner = locked(&self.inner);
            let mut changes = inner.sweep(version);
            inner.version = version.clone();
            inner.went_back = false;
            if !std::mem::replace(&mut inner.synced, true) {
                changes.push(Change::Synced);
            }
            changes
        };
        self.tell(changes);
    }

    /// The answer to a write of our own, which the watch will tell of later.
    pub fn wrote(&self, object: &Arc<K>) {
        let metadata = object.metadata();
        let changes = {
            let mut inner = locked(&self.inner);
            // An object that we do not have may have been deleted since: believed only while the stream is behind it.
            let is_ahead =
                compare_versions(&metadata.resource_version, &inner.version) == Some(Ordering::Greater);
            if is_ahead || inner.objects.contains_key(&metadata.key()) {
                // It was in no list: one that is coming in may lack it because it is gone again.
                let unlisted = inner.round.wrapping_sub(1);
                inner.put(Found::Readable(Arc::clone(object)), unlisted)
            } else {
                Vec::new()
            }
        };
        self.tell(changes);
    }

    /// We have deleted this object, and nothing holds it up.
    pub fn removed(&self, gone: &ObjectMeta) {
        let change = {
            let mut inner = locked(&self.inner);
            let is_it =
                inner.objects.get(&gone.key()).is_some_and(|entry| entry.found.metadata().uid == gone.uid);
            let entry = if is_it { inner.objects.remove(&gone.key()) } else { None };
            entry.map(|entry| Change::Deleted { last: entry.found, sighting: Sighting::Event })
        };
        self.tell(change);
    }

    fn tell(&self, changes: impl IntoIterator<Item = Change<K>>) {
        let listeners = locked(&self.listeners).clone();
        for change in changes {
            for listener in &listeners {
                listener(&change);
            }
        }
    }
}

impl<K: Resource> Inner<K> {
    /// Keeps what is newer than what we have. The same version again is no change.
    fn put(&mut self, after: Found<K>, round: u32) -> Vec<Change<K>> {
        let Some(entry) = self.objects.get_mut(&after.metadata().key()) else {
            let key = after.metadata().key();
            self.objects.insert(key, Entry { found: after.clone(), round });
            return vec![Change::Applied { before: None, after }];
        };
        if round == self.round {
            entry.round = round;
        }
        let (had, has) = (entry.found.metadata(), after.metadata());
        let order = compare_versions(&has.resource_version, &had.resource_version);
        let is_known = had.resource_version == has.resource_version && had.uid == has.uid;
        if is_known || (order == Some(Ordering::Less) && !self.went_back) {
            return Vec::new();
        }
        let is_another = had.uid != has.uid;
        let before = std::mem::replace(&mut entry.found, after.clone());
        if is_another {
            // Deleted and created anew while we were not looking.
            let deleted = Change::Deleted { last: before, sighting: Sighting::Inferred };
            return vec![deleted, Change::Applied { before: None, after }];
        }
        vec![Change::Applied { before: Some(before), after }]
    }

    fn remove(&mut self, last: Found<K>) -> Option<Change<K>> {
        let gone = last.metadata();
        let key = gone.key();
        let entry = self.objects.get(&key)?;
        let has = entry.found.metadata();
        let is_ahead =
            compare_versions(&has.resource_version, &gone.resource_version) == Some(Ordering::Greater);
        if is_ahead && has.uid == gone.uid {
            // It left the selector, and a write of ours has brought it back since.
            return None;
        }
        if is_ahead {
            // An earlier object of that name: ours is another one, and stays.
            return Some(Change::Deleted { last, sighting: Sighting::Event });
        }
        // What we had is believed rather than what the event holds: it is readable where the event may not be.
        let last = self.objects.remove(&key)?.found;
        Some(Change::Deleted { last, sighting: Sighting::Event })
    }

    fn sweep(&mut self, version: &str) -> Vec<Change<K>> {
        let (round, went_back) = (self.round, self.went_back);
        let was_written_since = |entry: &Entry<K>| {
            compare_versions(&entry.found.metadata().resource_version, version) == Some(Ordering::Greater)
        };
        self.objects
            .extract_if(.., |_, entry| entry.round != round && (went_back || !was_written_since(entry)))
            .map(|(_, entry)| Change::Deleted { last: entry.found, sighting: Sighting::Inferred })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::kinds::Service;

    fn object(uid: &str, version: &str) -> Service {
        let mut object = Service::default();
        object.metadata.name = "web".into();
        object.metadata.uid = uid.into();
        object.metadata.resource_version = version.into();
        object
    }

    fn listed(version: &str, items: &[(&str, &str)]) -> (Store<Service>, Arc<Mutex<Vec<String>>>) {
        let store = Store::default();
        let heard = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&heard);
        store.listen(move |change: &Change<Service>| {
            let of = |found: &Found<Service>| {
                format!("{}@{}", found.metadata().uid, found.metadata().resource_version)
            };
            log.lock().expect("lock").push(match change {
                Change::Applied { after, .. } => format!("+{}", of(after)),
                Change::Deleted { last, sighting } => format!("-{} {sighting:?}", of(last)),
                Change::Synced => return,
            });
        });
        list(&store, version, items);
        heard.lock().expect("lock").clear();
        (store, heard)
    }

    fn list(store: &Store<Service>, version: &str, items: &[(&str, &str)]) {
        store.list_begins();
        store.listed(version, items.iter().map(|(uid, version)| Decoded::Readable(object(uid, version))));
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
    fn our_own_write_is_known_before_the_watch_tells_of_it_and_its_echo_is_no_change() {
        let (store, log) = listed("100", &[]);
        store.wrote(&Arc::new(object("a", "105")));
        assert_eq!(what(&store).as_deref(), Some("a@105"));
        store.applied(Decoded::Readable(object("a", "105")));
        assert_eq!(heard(&log), ["+a@105"]);
    }

    #[test]
    fn an_event_older_than_our_own_write_does_not_undo_it() {
        let (store, log) = listed("100", &[("a", "90")]);
        store.wrote(&Arc::new(object("a", "105")));
        store.applied(Decoded::Readable(object("a", "103")));
        assert_eq!(what(&store).as_deref(), Some("a@105"));
        assert_eq!(heard(&log), ["+a@105"]);
    }

    #[test]
    fn the_answer_to_a_write_does_not_bring_back_what_was_deleted_since() {
        let (store, log) = listed("100", &[]);
        store.applied(Decoded::Readable(object("a", "105")));
        store.deleted(Decoded::Readable(object("a", "106")));
        store.wrote(&Arc::new(object("a", "105")));
        assert_eq!(what(&store), None);
        assert_eq!(heard(&log), ["+a@105", "-a@105 Event"]);
    }

    #[test]
    fn deleting_the_old_object_leaves_the_new_one_of_its_name() {
        let (store, log) = listed("100", &[("a", "90")]);
        store.deleted(Decoded::Readable(object("a", "101")));
        store.wrote(&Arc::new(object("b", "103")));
        store.deleted(Decoded::Readable(object("a", "101")));
        assert_eq!(what(&store).as_deref(), Some("b@103"));
        assert_eq!(heard(&log), ["-a@90 Event", "+b@103", "-a@101 Event"]);
    }

    #[test]
    fn what_left_the_selector_and_was_brought_back_by_us_stays() {
        let (store, log) = listed("100", &[("a", "90")]);
        store.wrote(&Arc::new(object("a", "106")));
        store.deleted(Decoded::Readable(object("a", "104")));
        assert_eq!(what(&store).as_deref(), Some("a@106"));
        assert_eq!(heard(&log), ["+a@106"]);
    }

    #[test]
    fn a_list_that_is_older_than_our_own_write_does_not_sweep_it_away() {
        let (store, log) = listed("100", &[]);
        store.wrote(&Arc::new(object("a", "105")));
        list(&store, "102", &[]);
        assert_eq!(what(&store).as_deref(), Some("a@105"));
        list(&store, "106", &[]);
        assert_eq!(what(&store), None);
        assert_eq!(heard(&log), ["+a@105", "-a@105 Inferred"]);
    }

    /// The list after a restored backup overwrites newer versions. Once it is complete, the newer version wins again. That was
    /// so only after the next list, so a late answer to a write undid what others had written since.
    #[test]
    fn once_a_list_that_went_back_is_complete_the_newer_version_wins_again() {
        let (store, _) = listed("100", &[("a", "90")]);
        list(&store, "50", &[("a", "40")]);
        assert_eq!(what(&store).as_deref(), Some("a@40"));
        store.applied(Decoded::Readable(object("a", "53")));
        store.wrote(&Arc::new(object("a", "52")));
        assert_eq!(what(&store).as_deref(), Some("a@53"));
    }

    #[test]
    fn a_write_that_is_answered_while_a_list_comes_in_leaves_no_phantom() {
        for known in [&[][..], &[("a", "90")]] {
            let (store, _) = listed("93", known);
            store.list_begins();
            store.wrote(&Arc::new(object("a", "95")));
            // It was deleted at 97: this list does not have it, and the watch from 100 will not tell.
            store.listed("100", []);
            store.list_ends(&"100".into());
            assert_eq!(what(&store), None);
        }
    }

    #[test]
    fn what_we_deleted_is_gone_at_once_but_not_another_one_of_its_name() {
        let (store, log) = listed("100", &[("a", "90")]);
        store.removed(&object("b", "95").metadata);
        assert_eq!(what(&store).as_deref(), Some("a@90"));
        store.removed(&object("a", "90").metadata);
        assert_eq!(what(&store), None);
        store.wrote(&Arc::new(object("c", "103")));
        store.deleted(Decoded::Readable(object("a", "101")));
        assert_eq!(what(&store).as_deref(), Some("c@103"));
        assert_eq!(heard(&log), ["-a@90 Event", "+c@103", "-a@101 Event"]);
    }

    #[test]
    fn nothing_is_believed_before_the_first_list() {
        let store = Store::default();
        store.wrote(&Arc::new(object("a", "105")));
        assert_eq!(what(&store), None);
        assert!(store.is_empty() && store.keys().is_empty() && !store.is_synced());
        list(&store, "106", &[("a", "105")]);
        assert!(!store.is_empty() && store.is_synced());
        assert_eq!((store.len(), store.keys()), (1, vec![Key::cluster("web")]));
    }

    #[test]
    fn a_bookmark_tells_that_what_we_wrote_before_it_is_gone() {
        let (store, _) = listed("100", &[]);
        store.bookmark(&"110".into());
        store.wrote(&Arc::new(object("a", "105")));
        assert_eq!(what(&store), None);
    }

    #[test]
    fn a_broken_object_is_there_and_becomes_readable_again() {
        let (store, _) = listed("100", &[("a", "90")]);
        let metadata = ObjectMeta { resource_version: "101".into(), ..object("a", "101").metadata };
        store.applied(Decoded::Broken(Broken { metadata, error: "odd".into() }));
        let found = store.find(&Key { namespace: None, name: "web".into() }).expect("it is there");
        assert!(found.readable().is_none());
        store.applied(Decoded::Readable(object("a", "102")));
        assert_eq!(what(&store).as_deref(), Some("a@102"));
        let found = store.find(&Key::cluster("web")).expect("it is there");
        assert!(found.readable().is_some());
    }
}
