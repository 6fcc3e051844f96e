//! The storage, in place of etcd and the watch cache: objects, the revision counter, and the latest changes. A watch from a
//! version that is older than these changes gets 410. So does a list at a version from more than some minutes ago.
//!
//! As in etcd, all collections share one counter. Each write increments it, deletions included. The new revision is the
//! `resourceVersion` of the written object. Nothing in this file handles HTTP or awaits.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    fmt,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::{Duration, SystemTime},
};

use serde_json::{Value, json};
use tokio::sync::{broadcast, watch};

use crate::{
    clock::Clock,
    json,
    kinds::{Kinds, crd::is_established, custom_resources, field_checks::text, metadata},
    status::StatusError,
};

/// The place of an object: its collection (`deployments.apps`) and its key there (`default/web`, or `node-1`).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Place {
    pub(crate) collection: String,
    pub(crate) key: String,
}

impl Place {
    pub(crate) fn new(collection: impl Into<String>, namespace: Option<&str>, name: &str) -> Place {
        let key = match namespace {
            Some(namespace) => format!("{namespace}/{name}"),
            None => name.to_owned(),
        };
        Place { collection: collection.into(), key }
    }

    pub(crate) fn namespace(&self) -> Option<&str> {
        self.key.split_once('/').map(|(namespace, _)| namespace)
    }

    pub(crate) fn name(&self) -> &str {
        self.key.rsplit('/').next().unwrap_or_default()
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.collection, self.key)
    }
}

/// Maximum size of the objects in the history of one collection. Large objects reach this limit first (etcd accepts up to
/// 1.5 MiB each), small ones the limit of 10,000 changes. Their JSON, which is kept for watches, is not counted. It is one to six
/// times as large, because `<` is written `\u003c`.
pub(crate) const HISTORY_BYTES_MAX: usize = 256 * 1024 * 1024;

/// How often kube-apiserver compacts etcd: `--etcd-compaction-interval`.
const COMPACTION_INTERVAL: Duration = Duration::from_secs(300);

/// The collection of the CRDs.
const DEFINITIONS: &str = "customresourcedefinitions.apiextensions.k8s.io";

/// The size of a BTreeMap node, which has room for eleven entries.
const NODE_BYTES: usize = 640;
/// The usual number of entries in a node.
const NODE_ENTRIES: usize = 6;

/// One write: the object before and after it.
#[derive(Clone)]
pub(crate) struct Change {
    pub(crate) revision: u64,
    pub(crate) time: SystemTime,
    pub(crate) key: String,
    pub(crate) before: Option<Arc<Value>>,
    pub(crate) after: Option<Arc<Value>>,
    /// The request that made it. `None`: a controller.
    pub(crate) by: Option<Arc<Writer>>,
    /// The approximate memory of `after`. `before` is not counted: it is the `after` of an earlier change.
    bytes: usize,
    /// `after` as JSON, encoded when the first watch sends it, and shared by all watches.
    json: Arc<OnceLock<String>>,
}

/// A request that writes, and its user.
#[derive(Debug)]
pub(crate) struct Writer {
    pub(crate) user: String,
    pub(crate) method: String,
    pub(crate) path: String,
    /// The id of the request.
    pub(crate) request: u64,
}

impl Change {
    pub(crate) fn json(&self, after: &Value) -> &str {
        self.json.get_or_init(|| json::json(after))
    }
}

/// The objects of one resource, sorted by key, and the history of their changes.
pub(crate) struct Collection {
    pub(crate) objects: BTreeMap<String, Arc<Value>>,
    changes: VecDeque<Change>,
    /// The bytes of all `changes`.
    bytes: usize,
    /// The oldest revision at which a watch or a list may start. An older one gets a 410.
    pub(crate) floor: u64,
    /// The changes up to this revision were dropped. An open watch that has not read them all ends.
    forgotten: u64,
    /// The newest change that was dropped; 0 for none.
    pub(crate) lost: u64,
    /// Wakes watches in the order in which they wait, so that simulations are repeatable: `tokio::sync::watch` wakes its
    /// receivers in random order.
    changed: broadcast::Sender<()>,
}

impl Collection {
    /// The objects in a namespace, whose keys begin with its name.
    pub(crate) fn in_namespace<'a>(
        &'a self,
        namespace: &str,
    ) -> impl Iterator<Item = (&'a String, &'a Arc<Value>)> + use<'a> {
        let prefix = format!("{namespace}/");
        self.objects.range(prefix.clone()..).take_while(move |(key, _)| key.starts_with(&prefix))
    }

    fn new(floor: u64) -> Collection {
        Collection {
            objects: BTreeMap::new(),
            changes: VecDeque::new(),
            bytes: 0,
            floor,
            forgotten: floor,
            lost: 0,
            changed: broadcast::Sender::new(1),
        }
    }

    /// The changes after `revision`, oldest first. `None` if the history begins later.
    pub(crate) fn since(&self, revision: u64) -> Option<impl Iterator<Item = &Change>> {
        if revision < self.floor { None } else { self.after(revision) }
    }

    /// As [`Collection::since`], for an open watch, which needs only the changes that it has not read.
    pub(crate) fn after(&self, revision: u64) -> Option<impl Iterator<Item = &Change>> {
        if revision < self.forgotten {
            return None;
        }
        let first = self.changes.partition_point(|change| change.revision <= revision);
        Some(self.changes.range(first..))
    }

    /// The objects at `revision`: the current ones, with later changes undone. `None` if the history begins later.
    pub(crate) fn at(&self, revision: u64) -> Option<BTreeMap<String, Arc<Value>>> {
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

    pub(crate) fn subscribe(&self) -> broadcast::Receiver<()> {
        self.changed.subscribe()
    }

    /// Adds a change, and drops the oldest changes beyond the limits. The newest change stays even if it exceeds
    /// [`HISTORY_BYTES_MAX`], because open watches have not sent it yet.
    fn remember(&mut self, change: Change, count_max: usize) {
        self.bytes += change.bytes;
        self.changes.push_back(change);
        while self.changes.len() > count_max || (self.bytes > HISTORY_BYTES_MAX && self.changes.len() > 1) {
            let Some(forgotten) = self.changes.pop_front() else { break };
            self.bytes -= forgotten.bytes;
            (self.floor, self.forgotten) = (forgotten.revision, forgotten.revision);
            self.lost = forgotten.revision;
        }
        self.wake();
    }

    /// Drops all changes. A watch continues only if it has already read all of them.
    fn forget(&mut self, revision: u64) {
        if let Some(newest) = self.changes.back() {
            self.forgotten = newest.revision;
            self.lost = newest.revision;
        }
        self.changes.clear();
        self.bytes = 0;
        self.floor = revision;
        self.wake();
    }

    fn wake(&self) {
        // An error means that there are no watches.
        let _ = self.changed.send(());
    }
}

/// A compaction drops the versions from before the last one, so that lists show the latest five to ten minutes.
struct Compaction {
    time: SystemTime,
    /// The revision at this time.
    revision: u64,
    /// The oldest revision that was not dropped.
    kept: u64,
}

impl Compaction {
    fn new(time: SystemTime, revision: u64) -> Compaction {
        Compaction { time, revision, kept: revision }
    }
}

/// All objects, and their kinds. It has no Debug, because objects may be Secrets.
pub(crate) struct Storage {
    pub(crate) kinds: Kinds,
    pub(crate) clock: Clock,
    revision: u64,
    /// How many changes each collection keeps.
    history: usize,
    /// The last one before the latest write.
    compaction: Compaction,
    /// Sorted, so that watches wake in a repeatable order.
    collections: BTreeMap<String, Collection>,
    /// Dependents by the uid of their owner, from ownerReferences.
    dependents: HashMap<String, BTreeSet<Place>>,
    /// The changes that the controllers have not read yet. `None` without controllers.
    journal: Option<Vec<(String, Change)>>,
    written: watch::Sender<u64>,
    /// The request that writes now.
    pub(crate) writer: Option<Arc<Writer>>,
    /// Whether new Pods need a ServiceAccount.
    pub(crate) has_service_accounts: bool,
}

impl Storage {
    pub(crate) fn new(clock: Clock, history: usize, controllers: bool) -> Storage {
        let kinds = Kinds::new();
        // etcd starts at 1 as well.
        let revision = 1;
        let collections = kinds.collections().into_keys().map(|name| (name, Collection::new(revision)));
        Storage {
            collections: collections.collect(),
            compaction: Compaction::new(clock.now(), revision),
            kinds,
            clock,
            revision,
            history,
            dependents: HashMap::new(),
            journal: controllers.then(Vec::new),
            written: watch::Sender::new(revision),
            writer: None,
            has_service_accounts: false,
        }
    }

    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    /// The oldest revision at which objects can be listed. A watch can start at an older one, because kube-apiserver has the changes in
    /// its watch cache.
    pub(crate) fn compacted(&self) -> u64 {
        match self.due_compactions() {
            0 => self.compaction.kept,
            1 => self.compaction.revision,
            _ => self.revision,
        }
    }

    fn due_compactions(&self) -> u32 {
        let passed = self.clock.now().duration_since(self.compaction.time).unwrap_or_default();
        u32::try_from(passed.as_secs() / COMPACTION_INTERVAL.as_secs()).unwrap_or(u32::MAX)
    }

    /// A receiver that is notified after each write.
    pub(crate) fn written(&self) -> watch::Receiver<u64> {
        self.written.subscribe()
    }

    /// All collections with their names.
    pub(crate) fn collections(&self) -> impl Iterator<Item = (&String, &Collection)> {
        self.collections.iter()
    }

    pub(crate) fn collection(&self, name: &str) -> Option<&Collection> {
        self.collections.get(name)
    }

    /// The places of the objects of a collection in one namespace.
    pub(crate) fn places_in(&self, collection: &str, namespace: &str) -> Vec<Place> {
        let all = self.collections.get(collection).into_iter().flat_map(|all| all.in_namespace(namespace));
        all.map(|(key, _)| Place { collection: collection.to_owned(), key: key.clone() }).collect()
    }

    /// The places of all objects in a collection.
    pub(crate) fn places(&self, collection: &str) -> Vec<Place> {
        let objects = self.collections.get(collection).map(|collection| collection.objects.keys());
        let place = |key: &String| Place { collection: collection.to_owned(), key: key.clone() };
        objects.into_iter().flatten().map(place).collect()
    }

    /// Adds a collection for a new CRD.
    pub(crate) fn add_collection(&mut self, name: &str) {
        let revision = self.revision;
        self.collections.entry(name.to_owned()).or_insert_with(|| Collection::new(revision));
    }

    /// Wakes the watches of a deleted CRD. The collection stays, so that open watches can still send its last changes.
    pub(crate) fn wake_watches(&mut self, name: &str) {
        if let Some(collection) = self.collections.get(name) {
            collection.wake();
        }
    }

    pub(crate) fn get(&self, place: &Place) -> Option<&Arc<Value>> {
        self.collections.get(&place.collection)?.objects.get(&place.key)
    }

    /// Stores an object with the next revision as its `resourceVersion`, and returns it.
    pub(crate) fn put(&mut self, place: &Place, mut object: Value) -> Arc<Value> {
        object["metadata"]["resourceVersion"] = (self.revision + 1).to_string().into();
        let object = Arc::new(object);
        self.commit(place, Some(Arc::clone(&object)));
        object
    }

    /// Deletes an object.
    pub(crate) fn remove(&mut self, place: &Place) {
        self.commit(place, None);
    }

    /// Every write with a new revision goes through this function.
    fn commit(&mut self, place: &Place, after: Option<Arc<Value>>) {
        let due = self.due_compactions();
        if due > 0 {
            let time = self.compaction.time + COMPACTION_INTERVAL * due;
            self.compaction = Compaction { time, revision: self.revision, kept: self.compacted() };
        }
        self.revision += 1;
        let revision = self.revision;
        let collection =
            self.collections.entry(place.collection.clone()).or_insert_with(|| Collection::new(revision - 1));
        let before = match &after {
            Some(after) => collection.objects.insert(place.key.clone(), Arc::clone(after)),
            None => collection.objects.remove(&place.key),
        };
        let bytes = after.as_deref().map_or(0, memory);
        let (key, by) = (place.key.clone(), self.writer.clone());
        let time = self.clock.now();
        let change = Change { revision, time, key, before, after, by, bytes, json: Arc::default() };
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

    /// Changes stored objects after a change of their CRD, without a new revision. kube-apiserver does not change them: it
    /// applies the new CRD at each read.
    pub(crate) fn rewrite(&mut self, collection: &str, change: impl Fn(&mut Value)) {
        let Some(collection) = self.collections.get_mut(collection) else { return };
        for object in collection.objects.values_mut() {
            change(Arc::make_mut(object));
        }
    }

    /// The objects with an ownerReference to this uid.
    pub(crate) fn dependents(&self, uid: &str) -> Vec<Place> {
        self.dependents.get(uid).into_iter().flatten().cloned().collect()
    }

    /// The changes since the last call, for the controllers.
    pub(crate) fn take_journal(&mut self) -> Vec<(String, Change)> {
        self.journal.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Drops the history and keeps the objects, as a restart does.
    pub(crate) fn forget_history(&mut self) {
        for collection in self.collections.values_mut() {
            collection.forget(self.revision);
        }
    }

    /// Drops the history of one collection and ends its watches: when a CRD changes, kube-apiserver recreates the watch
    /// cache.
    pub(crate) fn forget_history_of(&mut self, collection: &str) {
        if let Some(collection) = self.collections.get_mut(collection) {
            collection.forget(self.revision);
            collection.forgotten = self.revision;
        }
    }
}

/// All objects at one version, with their uids and versions, for a server that starts from them. It has no Debug, because objects may be
/// Secrets.
#[derive(Clone)]
pub struct Checkpoint {
    revision: u64,
    objects: Vec<(Place, Arc<Value>)>,
}

impl Checkpoint {
    fn new<'a>(
        revision: u64,
        all: impl Iterator<Item = (&'a String, BTreeMap<String, Arc<Value>>)>,
    ) -> Checkpoint {
        let objects = all.flat_map(|(collection, objects)| {
            let place = |key| Place { collection: collection.clone(), key };
            objects.into_iter().map(move |(key, object)| (place(key), object))
        });
        Checkpoint { revision, objects: objects.collect() }
    }

    /// The resourceVersion of its latest write.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.revision
    }

    /// The objects, each after the name of its resource (`deployments.apps`) and its key (`default/web`).
    pub fn objects(&self) -> impl Iterator<Item = (&str, &str, &Arc<Value>)> {
        self.objects.iter().map(|(place, object)| (&*place.collection, &*place.key, object))
    }

    /// The checkpoint for a file. Secrets and their values are in it.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let mut objects: BTreeMap<&str, Vec<&Value>> = BTreeMap::new();
        for (place, object) in &self.objects {
            objects.entry(&place.collection).or_default().push(object);
        }
        json!({"resourceVersion": self.revision, "objects": objects})
    }

    /// What [`Checkpoint::to_json`] has returned.
    ///
    /// # Errors
    ///
    /// If it is something else, or an object is invalid.
    pub fn from_json(mut json: Value) -> Result<Checkpoint, String> {
        let wrong = |what: &str| format!("is not a checkpoint: {what}");
        let revision = json["resourceVersion"].as_u64().ok_or_else(|| wrong("no resourceVersion"))?;
        let Value::Object(collections) = json["objects"].take() else { return Err(wrong("no objects")) };
        let (mut kinds, mut not_served) = (Kinds::new(), BTreeSet::new());
        for crd in collections.get(DEFINITIONS).and_then(Value::as_array).into_iter().flatten() {
            check(&kinds, DEFINITIONS, crd, revision).map_err(|why| wrong(&why))?;
            let (group, plural) = (text(&crd["spec"]["group"]), text(&crd["spec"]["names"]["plural"]));
            let versions = if is_established(crd) { custom_resources::kinds(crd) } else { Vec::new() };
            if versions.is_empty() {
                not_served.insert(text(&crd["metadata"]["name"]).to_owned());
            }
            kinds.replace_custom(group, plural, versions);
        }
        let (mut objects, mut places) = (Vec::new(), BTreeSet::new());
        for (collection, all) in collections {
            let Value::Array(all) = all else { return Err(wrong(&format!("{collection} is not a list"))) };
            for object in all {
                let place = if not_served.contains(&collection) {
                    place_in(&collection, &object)
                } else {
                    check(&kinds, &collection, &object, revision)
                };
                let place = place.map_err(|why| wrong(&why))?;
                if !places.insert(place.clone()) {
                    return Err(wrong(&format!("{place} is there twice")));
                }
                objects.push((place, Arc::new(object)));
            }
        }
        Ok(Checkpoint { revision, objects })
    }
}

fn place_in(collection: &str, object: &Value) -> Result<Place, String> {
    let metadata = &object["metadata"];
    let name = metadata["name"].as_str().ok_or_else(|| format!("{collection} without a name"))?;
    Ok(Place::new(collection, metadata["namespace"].as_str(), name))
}

/// Checks an object of a checkpoint as an update that changes nothing: controllers rely on valid objects.
fn check(kinds: &Kinds, collection: &str, object: &Value, revision: u64) -> Result<Place, String> {
    let (metadata, place) = (&object["metadata"], place_in(collection, object)?);
    let wrong = |why: &str| Err(format!("{place}: {why}"));
    let kind = kinds.by_kind(text(&object["apiVersion"]), text(&object["kind"]));
    let Some(kind) = kind.filter(|kind| kind.stored_in() == collection) else {
        return wrong("its apiVersion and kind are not of this resource");
    };
    if kind.namespaced != place.namespace().is_some() {
        return wrong(if kind.namespaced { "has no namespace" } else { "has a namespace" });
    }
    if text(&metadata["uid"]).is_empty() {
        return wrong("has no uid");
    }
    let version = text(&metadata["resourceVersion"]).parse();
    if !version.is_ok_and(|version: u64| (1..=revision).contains(&version)) {
        return wrong(&format!("its resourceVersion is not a number from 1 to {revision}"));
    }
    if let Err(why) = kind.check_types(object) {
        return wrong(&why);
    }
    let mut causes = metadata::errors(kind, object);
    kind.validate(object, Some(object), &mut causes);
    if !causes.is_empty() {
        return wrong(StatusError::invalid(kind, place.name(), causes).message());
    }
    Ok(place)
}

impl Storage {
    pub(crate) fn checkpoint(&self) -> Checkpoint {
        let all = self.collections.iter().map(|(name, collection)| (name, collection.objects.clone()));
        Checkpoint::new(self.revision, all)
    }

    /// The objects at an earlier version. `None` if the history of a collection begins later.
    pub(crate) fn checkpoint_at(&self, revision: u64) -> Option<Checkpoint> {
        let mut all = Vec::new();
        for (name, collection) in &self.collections {
            all.push((name, collection.at(revision)?));
        }
        Some(Checkpoint::new(revision, all.into_iter()))
    }

    /// Restores a checkpoint and drops the history. As in etcd, the revision counter also goes back.
    pub(crate) fn restore(&mut self, checkpoint: &Checkpoint) {
        for crd in self.definitions() {
            self.kinds.replace_custom(
                text(&crd["spec"]["group"]),
                text(&crd["spec"]["names"]["plural"]),
                Vec::new(),
            );
        }
        self.dependents.clear();
        for collection in self.collections.values_mut() {
            collection.objects.clear();
        }
        for (place, object) in &checkpoint.objects {
            // A commit for each object, so that the controllers see all of them, each at the revision of the checkpoint.
            self.revision = checkpoint.revision - 1;
            self.commit(place, Some(Arc::clone(object)));
        }
        self.revision = checkpoint.revision;
        self.compaction = Compaction::new(self.clock.now(), self.revision);
        for crd in self.definitions().into_iter().filter(|crd| is_established(crd)) {
            self.add_collection(text(&crd["metadata"]["name"]));
            let (group, plural) = (text(&crd["spec"]["group"]), text(&crd["spec"]["names"]["plural"]));
            self.kinds.replace_custom(group, plural, custom_resources::kinds(&crd));
        }
        for collection in self.collections.values_mut() {
            collection.forget(self.revision);
            collection.forgotten = self.revision;
            collection.lost = self.revision;
        }
        self.written.send_replace(self.revision);
    }

    /// The CRDs.
    fn definitions(&self) -> Vec<Arc<Value>> {
        let definitions = self.collections.get(DEFINITIONS);
        definitions.into_iter().flat_map(|all| all.objects.values().cloned()).collect()
    }
}

/// The approximate memory of a value, in bytes.
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

fn owners(object: Option<&Value>) -> impl Iterator<Item = &str> {
    let references = object.and_then(|object| object["metadata"]["ownerReferences"].as_array());
    references.into_iter().flatten().filter_map(|reference| reference["uid"].as_str())
}

/// Locks a mutex, even if a task panicked while it held the lock: there is no other copy of the state. A lock is held
/// while one request is answered or one object is reconciled, never across an await.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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
    async fn old_versions_can_be_listed_while_the_history_has_them() {
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

    #[tokio::test(start_paused = true)]
    async fn a_version_can_be_listed_for_five_to_ten_minutes() {
        let mut storage = Storage::new(Clock::new(SystemTime::now()), 10, false);
        let place = Place::new("configmaps", Some("default"), "a");
        let mut compacted = Vec::new();
        for _ in 0..5 {
            storage.put(&place, json!({}));
            tokio::time::advance(Duration::from_secs(299)).await;
            compacted.push((storage.revision(), storage.compacted()));
        }
        assert_eq!(compacted, [(2, 1), (3, 1), (4, 3), (5, 4), (6, 5)]);
        tokio::time::advance(Duration::from_secs(600)).await;
        assert_eq!(storage.compacted(), 6);
    }

    #[tokio::test]
    async fn fewer_changes_of_large_objects_are_kept() {
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
