//! Finds the objects of a watch by something else than their key: by owner, label or annotation, without a scan.

use std::{
    cmp::Ordering,
    collections::{BTreeSet, HashMap},
    hash::Hash,
    sync::{Arc, Mutex},
};

use super::Watch;
use crate::{
    locked,
    resource::{Key, Resource, list::Found},
    store::{Change, Listening},
};

/// The objects of a [`Watch`] by what a function finds in them. As current as the Stores of the watch.
pub struct Index<K, T> {
    watch: Watch<K>,
    entries: Arc<Mutex<Entries<K, T>>>,
    _listening: Listening,
}

type Entries<K, T> = HashMap<T, BTreeSet<ByKey<K>>>;

/// An object in the order of keys. Takes 8 bytes, where a [`Key`] of its own takes 48.
struct ByKey<K>(Arc<K>);

impl<K: Resource> Ord for ByKey<K> {
    fn cmp(&self, other: &ByKey<K>) -> Ordering {
        let (one, other) = (self.0.metadata(), other.0.metadata());
        one.namespace.cmp(&other.namespace).then_with(|| one.name.cmp(&other.name))
    }
}

impl<K: Resource> PartialOrd for ByKey<K> {
    fn partial_cmp(&self, other: &ByKey<K>) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<K: Resource> PartialEq for ByKey<K> {
    fn eq(&self, other: &ByKey<K>) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<K: Resource> Eq for ByKey<K> {}

impl<K: Resource> Watch<K> {
    /// An index of the objects by what `found_by` returns for each: always the same for the same object. Unreadable objects are
    /// in no index.
    pub fn index<T: Eq + Hash + Send + 'static, I: IntoIterator<Item = T>>(
        &self,
        found_by: impl Fn(&K) -> I + Send + Sync + 'static,
    ) -> Index<K, T> {
        let entries = Arc::<Mutex<Entries<K, T>>>::default();
        // Puts the present object in place of an earlier one, whatever the change was: two changes may be reported out of order.
        // Each object that was put here is the earlier one of a later change.
        let update = {
            let (watch, entries) = (self.clone(), Arc::clone(&entries));
            Arc::new(move |key: &Key, earlier: Option<&Arc<K>>| {
                let mut entries = locked(&entries);
                if let Some(gone) = earlier {
                    for entry in found_by(gone) {
                        let Some(objects) = entries.get_mut(&entry) else { continue };
                        objects.remove(&ByKey(Arc::clone(gone)));
                        if objects.is_empty() {
                            entries.remove(&entry);
                        }
                    }
                }
                let Some(object) = watch.get(key) else { return };
                for entry in found_by(&object) {
                    entries.entry(entry).or_default().replace(ByKey(Arc::clone(&object)));
                }
            })
        };
        let listening = self.listen({
            let update = Arc::clone(&update);
            move |_, change| match change {
                Change::Applied { before, after } => {
                    update(&after.metadata().key(), before.as_ref().and_then(Found::readable));
                }
                Change::Deleted { last, .. } => update(&last.metadata().key(), last.readable()),
                Change::Synced | Change::Forbidden => {}
            }
        });
        self.keys().iter().for_each(|key| update(key, None));
        Index { watch: self.clone(), entries, _listening: listening }
    }

    /// All readable objects.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<K>> {
        self.keys().iter().filter_map(|key| self.get(key)).collect()
    }

    /// All objects, also those that are unreadable, or whose content is not kept.
    #[must_use]
    pub fn all_found(&self) -> Vec<Found<K>> {
        self.keys().iter().filter_map(|key| self.find(key)).collect()
    }
}

impl<K: Resource, T: Eq + Hash> Index<K, T> {
    /// The objects with this entry, in the order of their keys.
    pub fn get(&self, entry: &T) -> Vec<Arc<K>> {
        let objects: Vec<Arc<K>> = match locked(&self.entries).get(entry) {
            Some(objects) => objects.iter().map(|object| Arc::clone(&object.0)).collect(),
            None => Vec::new(),
        };
        // The Store may be ahead of us.
        objects.iter().filter_map(|object| self.watch.get(&object.key())).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        client::{Client, Config},
        cluster::Cluster,
        resource::{Scope, kinds::Service},
        watch::Lists,
    };

    fn service(version: &str, color: &str) -> Found<Service> {
        let metadata = json!({
            "name": "a", "namespace": "n", "uid": "u", "resourceVersion": version, "labels": {"color": color},
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
        store.listed("1", [service("1", "red")]);
        store.list_ends(&"1".into());

        // The object was there before the index.
        let by_color = watch.index(|service| service.metadata.labels.get("color").map(ToOwned::to_owned));
        let found = |color: &str| by_color.get(&color.to_owned()).len();
        assert_eq!((found("red"), found("blue")), (1, 0));

        store.applied(service("2", "blue"));
        assert_eq!((found("red"), found("blue")), (0, 1));

        store.deleted(service("3", "blue"));
        assert_eq!((found("red"), found("blue")), (0, 0));
        assert!(locked(&by_color.entries).is_empty());
    }
}
