//! Finds the objects of a watch by something else than their key: by owner, label or annotation, without a scan.

use std::{
    collections::{BTreeSet, HashMap},
    hash::Hash,
    sync::{Arc, Mutex},
};

use super::Watch;
use crate::{
    locked,
    resource::{Key, Resource, Uid},
    store::{Change, Listening},
};

/// The objects of a [`Watch`] by what a function finds in them. As current as the Stores of the watch.
pub struct Index<K, T> {
    watch: Watch<K>,
    entries: Arc<Mutex<Entries<T>>>,
    _listening: Listening,
}

struct Entries<T> {
    keys: HashMap<T, BTreeSet<Key>>,
    /// By what each object is found now.
    found_by: HashMap<Key, Vec<T>>,
}

impl<T: Clone + Eq + Hash> Entries<T> {
    /// Replaces the entries of one object.
    fn set(&mut self, key: &Key, found_by: Vec<T>) {
        for gone in self.found_by.remove(key).unwrap_or_default() {
            if let Some(keys) = self.keys.get_mut(&gone) {
                keys.remove(key);
                if keys.is_empty() {
                    self.keys.remove(&gone);
                }
            }
        }
        if found_by.is_empty() {
            return;
        }
        for entry in &found_by {
            self.keys.entry(entry.clone()).or_default().insert(key.clone());
        }
        self.found_by.insert(key.clone(), found_by);
    }
}

impl<K: Resource> Watch<K> {
    /// An index of the objects by what `found_by` returns for each. Unreadable objects are in no index.
    pub fn index<T: Clone + Eq + Hash + Send + 'static, I: IntoIterator<Item = T>>(
        &self,
        found_by: impl Fn(&K) -> I + Send + Sync + 'static,
    ) -> Index<K, T> {
        let entries = Arc::new(Mutex::new(Entries { keys: HashMap::new(), found_by: HashMap::new() }));
        // Reads the present object, whatever the change was: two changes may be reported out of order.
        let update = {
            let (watch, entries) = (self.clone(), Arc::clone(&entries));
            Arc::new(move |key: &Key| {
                let mut entries = locked(&entries);
                let found_by = watch.get(key).map(|object| found_by(&object).into_iter().collect());
                entries.set(key, found_by.unwrap_or_default());
            })
        };
        let listening = self.listen({
            let update = Arc::clone(&update);
            move |_, change| match change {
                Change::Applied { after: object, .. } | Change::Deleted { last: object, .. } => {
                    update(&object.metadata().key());
                }
                Change::Synced => {}
            }
        });
        self.keys().iter().for_each(|key| update(key));
        Index { watch: self.clone(), entries, _listening: listening }
    }

    /// An index of the objects by the uid of their controller.
    pub fn index_by_controller(&self) -> Index<K, Uid> {
        self.index(|object| object.metadata().controller().map(|owner| owner.uid.clone()))
    }

    /// All readable objects.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<K>> {
        self.keys().iter().filter_map(|key| self.get(key)).collect()
    }
}

impl<K: Resource, T: Clone + Eq + Hash> Index<K, T> {
    /// The objects with this entry, in the order of their keys.
    pub fn get(&self, entry: &T) -> Vec<Arc<K>> {
        let keys = locked(&self.entries).keys.get(entry).cloned().unwrap_or_default();
        keys.iter().filter_map(|key| self.watch.get(key)).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        client::{Client, Config},
        cluster::Cluster,
        resource::{Scope, kinds::Service, list::Found},
        watch::Lists,
    };

    fn service(version: &str, color: &str, owner: &str) -> Found<Service> {
        let owner = json!({"apiVersion": "v1", "kind": "Web", "name": "w", "uid": owner, "controller": true});
        let metadata = json!({
            "name": "a", "namespace": "n", "uid": "u", "resourceVersion": version,
            "labels": {"color": color}, "ownerReferences": [owner],
        });
        Found::Readable(Arc::new(serde_json::from_value(json!({"metadata": metadata})).expect("a Service")))
    }

    #[tokio::test]
    async fn an_index_follows_each_change_and_keeps_nothing_of_what_is_gone() {
        let config = Config::new("http://127.0.0.1:1", b"", "").expect("a config");
        let cluster = Cluster::new(Client::new(config).expect("a client"), Lists::Paged);
        let watch = cluster.watch::<Service>([Scope::default()]);
        let store = &watch.streams[""][0].store;
        store.list_begins();
        store.listed("1", [service("1", "red", "o1")]);
        store.list_ends(&"1".into());

        // The object was there before the index.
        let by_color = watch.index(|service| service.metadata.labels.get("color").map(ToOwned::to_owned));
        let by_controller = watch.index_by_controller();
        let found = |color: &str| by_color.get(&color.to_owned()).len();
        assert_eq!((found("red"), found("blue")), (1, 0));
        assert_eq!(by_controller.get(&"o1".into()).len(), 1);

        store.applied(service("2", "blue", "o2"));
        assert_eq!((found("red"), found("blue")), (0, 1));
        assert_eq!(by_controller.get(&"o1".into()).len(), 0);
        assert_eq!(by_controller.get(&"o2".into()).len(), 1);

        store.deleted(service("3", "blue", "o2"));
        assert_eq!((found("red"), found("blue")), (0, 0));
        let entries = locked(&by_color.entries);
        assert!(entries.keys.is_empty() && entries.found_by.is_empty());
    }
}
