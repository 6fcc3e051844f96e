//! What etcd and the watch cache are to the real one: objects, one counter of versions, and the last changes of
//! each collection.
//!
//! One counter for everything, as in etcd: each write takes the next number, and that is the `resourceVersion` of the
//! object. A deletion takes one too. Nothing here knows about HTTP, and nothing waits.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    fmt,
    sync::{Arc, OnceLock},
};

use serde_json::Value;
use tokio::sync::{broadcast, watch};

use super::{clock::Clock, encode, kinds::Kinds};

/// Where an object is: its collection (`deployments.apps`) and its key there (`default/web`, or `node-1`).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Place {
    pub(super) collection: String,
    pub(super) key: String,
}

impl Place {
    pub(super) fn new(collection: impl Into<String>, namespace: Option<&str>, name: &str) -> Place {
        let key = match namespace {
            Some(namespace) => format!("{namespace}/{name}"),
            None => name.to_owned(),
        };
        Place { collection: collection.into(), key }
    }

    pub(super) fn namespace(&self) -> Option<&str> {
        self.key.split_once('/').map(|(namespace, _)| namespace)
    }

    pub(super) fn name(&self) -> &str {
        self.key.rsplit('/').next().unwrap_or_default()
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.collection, self.key)
    }
}

/// Most bytes of objects that the changes of one collection keep. With 10,000 changes of objects of a few kB, as
/// operators have them, the count comes first; with objects of etcd's 1.5 MiB this, before the memory is gone. The text of
/// what was told to watches comes on top: as much again, or six times as much where all of it is `<`.
pub(super) const HISTORY_BYTES_MAX: usize = 256 * 1024 * 1024;

/// What a map has beside its entries: the nodes of a BTreeMap have room for eleven, and are as large with one.
const NODE_BYTES: usize = 640;
const NODE_ENTRIES: usize = 6;

/// One write: what was there, what is there now.
#[derive(Clone)]
pub(super) struct Change {
    pub(super) revision: u64,
    pub(super) key: String,
    pub(super) before: Option<Arc<Value>>,
    pub(super) after: Option<Arc<Value>>,
    /// About as many as `after` has as JSON; what was before was counted in the change that made it.
    bytes: usize,
    /// `after` as JSON, made for the first watch that tells it: a hundred watches say the same.
    json: Arc<OnceLock<String>>,
}

impl Change {
    pub(super) fn json(&self, after: &Value) -> &str {
        self.json.get_or_init(|| encode::json(after))
    }
}

/// The objects of one resource, in the order of their keys, and their last changes.
pub(super) struct Collection {
    pub(super) objects: BTreeMap<String, Arc<Value>>,
    changes: VecDeque<Change>,
    /// The bytes of all `changes`.
    bytes: usize,
    /// The oldest version from which all later changes are still known.
    pub(super) floor: u64,
    /// The newest change that is forgotten.
    forgotten: u64,
    /// Wakes watches in the order in which they wait, where tokio's `watch` would draw lots: a simulation must replay.
    changed: broadcast::Sender<()>,
}

impl Collection {
    fn new(floor: u64) -> Collection {
        Collection {
            objects: BTreeMap::new(),
            changes: VecDeque::new(),
            bytes: 0,
            floor,
            forgotten: floor,
            changed: broadcast::Sender::new(1),
        }
    }

    /// The changes after `revision`, oldest first. `None` if some of them are forgotten.
    pub(super) fn since(&self, revision: u64) -> Option<impl Iterator<Item = &Change>> {
        if revision < self.floor { None } else { self.after(revision) }
    }

    /// The same for a watch that was open all the time: in a quiet collection it has missed nothing, whatever the floor.
    pub(super) fn after(&self, revision: u64) -> Option<impl Iterator<Item = &Change>> {
        if revision < self.forgotten {
            return None;
        }
        let first = self.changes.partition_point(|change| change.revision <= revision);
        Some(self.changes.range(first..))
    }

    /// The objects as they were at `revision`: today's, with the later changes undone.
    pub(super) fn at(&self, revision: u64) -> Option<BTreeMap<String, Arc<Value>>> {
        let later: Vec<&Change> = self.since(revision)?.collect();
        let mut objects = self.objects.clone();
        for change in later.into_iter().rev() {
            match &change.before {
                Some(before) => objects.insert(change.key.clone(), Arc::clone(before)),
                None => objects.remove(&change.key),
            };
        }
        Some(objects)
    }

    pub(super) fn subscribe(&self) -> broadcast::Receiver<()> {
        self.changed.subscribe()
    }

    /// Note a change, and forget the oldest beyond so many, or so many bytes. The newest stays, or nobody would see it.
    fn remember(&mut self, change: Change, count_max: usize) {
        self.bytes += change.bytes;
        self.changes.push_back(change);
        while self.changes.len() > count_max || (self.bytes > HISTORY_BYTES_MAX && self.changes.len() > 1) {
            let Some(forgotten) = self.changes.pop_front() else { break };
            self.bytes -= forgotten.bytes;
            (self.floor, self.forgotten) = (forgotten.revision, forgotten.revision);
        }
        self.wake();
    }

    /// Forget all changes: only who is up to date can go on from here.
    fn forget(&mut self, revision: u64) {
        if let Some(newest) = self.changes.back() {
            self.forgotten = newest.revision;
        }
        self.changes.clear();
        self.bytes = 0;
        self.floor = revision;
        self.wake();
    }

    fn wake(&self) {
        // Where nobody watches, nobody is woken.
        let _ = self.changed.send(());
    }
}

/// Everything that is stored, and the kinds that say how. Objects may be Secrets, so nothing that holds them has Debug.
pub(super) struct Storage {
    pub(super) kinds: Kinds,
    pub(super) clock: Clock,
    revision: u64,
    /// How many changes each collection remembers.
    history: usize,
    /// In order, as are the watches that they wake.
    collections: BTreeMap<String, Collection>,
    /// By the uid of an owner, what names it in its ownerReferences.
    dependents: HashMap<String, BTreeSet<Place>>,
    /// The changes that the controllers have not seen yet. `None`: nobody controls.
    journal: Option<Vec<(String, Change)>>,
    written: watch::Sender<u64>,
}

impl Storage {
    pub(super) fn new(clock: Clock, history: usize, controllers: bool) -> Storage {
        let kinds = Kinds::new();
        // etcd starts at 1 as well.
        let revision = 1;
        let collections = kinds.collections().into_keys().map(|name| (name, Collection::new(revision)));
        Storage {
            collections: collections.collect(),
            kinds,
            clock,
            revision,
            history,
            dependents: HashMap::new(),
            journal: controllers.then(Vec::new),
            written: watch::Sender::new(revision),
        }
    }

    pub(super) fn revision(&self) -> u64 {
        self.revision
    }

    /// Whoever waits for a version waits here.
    pub(super) fn written(&self) -> watch::Receiver<u64> {
        self.written.subscribe()
    }

    pub(super) fn collection(&self, name: &str) -> Option<&Collection> {
        self.collections.get(name)
    }

    /// Make room for the objects of a new CRD.
    pub(super) fn add_collection(&mut self, name: &str) {
        let revision = self.revision;
        self.collections.entry(name.to_owned()).or_insert_with(|| Collection::new(revision));
    }

    /// Nobody serves this collection any more. Its last changes stay until the open watches have told them.
    pub(super) fn close_collection(&mut self, name: &str) {
        if let Some(collection) = self.collections.get(name) {
            collection.wake();
        }
    }

    pub(super) fn get(&self, place: &Place) -> Option<&Arc<Value>> {
        self.collections.get(&place.collection)?.objects.get(&place.key)
    }

    /// Store an object as the next version, and answer it with that version in it.
    pub(super) fn put(&mut self, place: &Place, mut object: Value) -> Arc<Value> {
        object["metadata"]["resourceVersion"] = (self.revision + 1).to_string().into();
        let object = Arc::new(object);
        self.commit(place, Some(Arc::clone(&object)));
        object
    }

    /// Take an object away.
    pub(super) fn remove(&mut self, place: &Place) {
        self.commit(place, None);
    }

    /// The only place where anything changes.
    fn commit(&mut self, place: &Place, after: Option<Arc<Value>>) {
        self.revision += 1;
        let revision = self.revision;
        let collection =
            self.collections.entry(place.collection.clone()).or_insert_with(|| Collection::new(revision - 1));
        let before = match &after {
            Some(after) => collection.objects.insert(place.key.clone(), Arc::clone(after)),
            None => collection.objects.remove(&place.key),
        };
        let bytes = after.as_deref().map_or(0, memory);
        let change = Change { revision, key: place.key.clone(), before, after, bytes, json: Arc::default() };
        for owner in owners(change.before.as_deref()) {
            if let Some(places) = self.dependents.get_mut(owner) {
                places.remove(place);
                if places.is_empty() {
                    self.dependents.remove(owner);
                }
            }
        }
        for owner in owners(change.after.as_deref()) {
            self.dependents.entry(owner.to_owned()).or_default().insert(place.clone());
        }
        if let Some(journal) = &mut self.journal {
            journal.push((place.collection.clone(), change.clone()));
        }
        collection.remember(change, self.history);
        self.written.send_replace(revision);
    }

    /// Change objects in place, without a new version: what a changed schema does to what is read.
    pub(super) fn rewrite(&mut self, collection: &str, change: impl Fn(&mut Value)) {
        let Some(collection) = self.collections.get_mut(collection) else { return };
        for object in collection.objects.values_mut() {
            change(Arc::make_mut(object));
        }
    }

    /// What names an owner in its ownerReferences.
    pub(super) fn dependents(&self, uid: &str) -> Vec<Place> {
        self.dependents.get(uid).into_iter().flatten().cloned().collect()
    }

    /// The changes since the last call, for the controllers.
    pub(super) fn take_journal(&mut self) -> Vec<(String, Change)> {
        self.journal.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// As after a restart: what is stored stays, what happened before is forgotten.
    pub(super) fn forget_history(&mut self) {
        for collection in self.collections.values_mut() {
            collection.forget(self.revision);
        }
    }

    /// The same for one collection, whose CRD changed: its watch cache is made anew, and its watches end.
    pub(super) fn forget_history_of(&mut self, collection: &str) {
        if let Some(collection) = self.collections.get_mut(collection) {
            collection.forget(self.revision);
            collection.forgotten = self.revision;
        }
    }
}

/// Everything that is stored, at one version.
pub(super) struct Backup {
    kinds: Kinds,
    revision: u64,
    objects: Vec<(Place, Arc<Value>)>,
}

impl Storage {
    pub(super) fn backup(&self) -> Backup {
        let mut objects = Vec::new();
        for (name, collection) in &self.collections {
            for (key, object) in &collection.objects {
                objects.push((Place { collection: name.clone(), key: key.clone() }, Arc::clone(object)));
            }
        }
        Backup { kinds: self.kinds.clone(), revision: self.revision, objects }
    }

    /// As etcd does: the counter of versions goes back too. What happened is to be forgotten then.
    pub(super) fn restore(&mut self, backup: &Backup) {
        self.kinds = backup.kinds.clone();
        self.dependents.clear();
        for collection in self.collections.values_mut() {
            collection.objects.clear();
        }
        for (place, object) in &backup.objects {
            // One commit an object, so that the controllers look at all of them.
            self.revision = backup.revision - 1;
            self.commit(place, Some(Arc::clone(object)));
        }
        self.revision = backup.revision;
        for collection in self.collections.values_mut() {
            collection.forget(self.revision);
            collection.forgotten = self.revision;
        }
        self.written.send_replace(self.revision);
    }
}

/// About how many bytes a value takes in memory.
fn memory(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        Value::String(text) => text.len(),
        Value::Array(list) => list.iter().map(|one| size_of::<Value>() + memory(one)).sum(),
        Value::Object(map) => {
            let entries = map.iter().map(|(key, value)| key.len() + memory(value)).sum::<usize>();
            entries + map.len().div_ceil(NODE_ENTRIES) * NODE_BYTES
        }
    }
}

/// About how many bytes a value has as JSON.
pub(super) fn size(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 8,
        Value::String(text) => text.len() + 2,
        Value::Array(list) => list.iter().map(|one| size(one) + 1).sum::<usize>() + 2,
        Value::Object(map) => map.iter().map(|(key, value)| key.len() + size(value) + 4).sum::<usize>() + 2,
    }
}

fn owners(object: Option<&Value>) -> impl Iterator<Item = &str> {
    let references = object.and_then(|object| object["metadata"]["ownerReferences"].as_array());
    references.into_iter().flatten().filter_map(|reference| reference["uid"].as_str())
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use serde_json::json;

    use super::*;

    fn versions(collection: &Collection, since: u64) -> Option<Vec<u64>> {
        collection.since(since).map(|changes| changes.map(|change| change.revision).collect())
    }

    #[tokio::test]
    async fn the_past_can_be_listed_until_it_is_forgotten() {
        let mut storage = Storage::new(Clock::new(SystemTime::now()), 3, false);
        let place = Place::new("configmaps", Some("default"), "a");
        for value in ["one", "two", "three", "four"] {
            storage.put(&place, json!({"data": {"value": value}}));
        }
        storage.remove(&place);
        let collection = storage.collection("configmaps").expect("built in");
        assert_eq!(versions(collection, 2), None);
        assert_eq!(versions(collection, 3), Some(vec![4, 5, 6]));
        assert_eq!(versions(collection, 9), Some(vec![]));
        let then = collection.at(4).expect("remembered");
        assert_eq!(then["default/a"]["data"]["value"], "three");
        assert!(collection.at(6).expect("now").is_empty());
        assert!(collection.at(2).is_none());
    }

    #[tokio::test]
    async fn of_large_objects_fewer_changes_are_remembered() {
        let mut storage = Storage::new(Clock::new(SystemTime::now()), 10_000, false);
        let place = Place::new("configmaps", Some("default"), "a");
        let value = "x".repeat(HISTORY_BYTES_MAX / 4);
        for _ in 0..9 {
            storage.put(&place, json!({"data": {"value": value}}));
        }
        let collection = storage.collection("configmaps").expect("built in");
        assert_eq!(versions(collection, 7), Some(vec![8, 9, 10]));
        assert_eq!(versions(collection, 6), None);
    }
}
