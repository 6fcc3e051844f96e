//! The API server as this process sees it: shared watches, their Stores, and our own writes.
//!
//! ```text
//!   Cluster::watch ──► one stream, one Store per kind and scope, whoever asks
//!   Cluster::create ─► POST ─► the answer goes into every open Store of its kind and selection
//! ```
//!
//! A write's answer is newer than what the watch has told so far. An operator that read only what the watch told would
//! not find the child that it has just created, and would create it again. So operators hold a [`Cluster`], never a
//! [`Client`], and cannot forget to tell their Stores.

mod events;

use std::{
    any::{Any, TypeId},
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, Weak},
    time::SystemTime,
};

use serde::Serialize;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tracing::info;

use crate::{
    client::{Client, DeleteOptions, Error, InTurn, Page, Part, Patch},
    locked,
    resource::{Key, Labels, ObjectMeta, Resource, Scope, list::Decoded},
    store::{Change, Found, Store},
    watch::{self, Health, Lists},
};
pub use events::{EventType, Events};

/// A connection to an API server, and what is known of it. Cheap to clone.
#[derive(Clone)]
pub struct Cluster {
    client: Client,
    lists: Lists,
    streams: Arc<Mutex<OpenStreams>>,
}

/// By kind and namespace, which is empty for all namespaces.
type OpenStreams = HashMap<(TypeId, String), Vec<OpenStream>>;

/// A stream that may still run, whatever its kind.
struct OpenStream {
    labels: String,
    stream: Weak<dyn Any + Send + Sync>,
    health: Arc<Health>,
}

impl OpenStream {
    /// Whether somebody still has a share in it.
    fn is_open(&self) -> bool {
        self.stream.strong_count() > 0
    }
}

/// One running watch and its Store. Ends when dropped.
struct Stream<K> {
    scope: Scope,
    store: Arc<Store<K>>,
    health: Arc<Health>,
    task: JoinHandle<()>,
}

impl<K> Drop for Stream<K> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A share in running watches, one for each scope. The last share dropped ends the watch.
pub struct Watch<K> {
    /// By namespace, which is empty for all namespaces.
    streams: Arc<BTreeMap<String, Vec<Arc<Stream<K>>>>>,
}

impl<K> Clone for Watch<K> {
    fn clone(&self) -> Watch<K> {
        Watch { streams: Arc::clone(&self.streams) }
    }
}

impl Cluster {
    /// Nothing is asked of the API server yet.
    #[must_use]
    pub fn new(client: Client, lists: Lists) -> Cluster {
        Cluster { client, lists, streams: Arc::default() }
    }

    /// Watches a kind in all of the scopes. Same kind and scope: same stream, same Store, whoever asks.
    pub fn watch<K: Resource>(&self, scopes: impl IntoIterator<Item = Scope>) -> Watch<K> {
        let mut open = locked(&self.streams);
        open.retain(|_, streams| {
            streams.retain(OpenStream::is_open);
            !streams.is_empty()
        });
        let mut streams = BTreeMap::<String, Vec<_>>::new();
        for scope in scopes {
            let namespace = scope.namespace.clone().unwrap_or_default();
            let open = open.entry((TypeId::of::<K>(), namespace.clone())).or_default();
            let known = open.iter().find(|open| open.labels == scope.labels);
            let known = known.and_then(|open| open.stream.upgrade()?.downcast::<Stream<K>>().ok());
            let stream = known.unwrap_or_else(|| {
                let stream = Arc::new(Stream::open(self.client.clone(), scope.clone(), self.lists));
                let erased: Arc<dyn Any + Send + Sync> = stream.clone();
                let health = Arc::clone(&stream.health);
                open.push(OpenStream { labels: scope.labels, stream: Arc::downgrade(&erased), health });
                stream
            });
            streams.entry(namespace).or_default().push(stream);
        }
        Watch { streams: Arc::new(streams) }
    }

    /// How each open watch is doing.
    #[must_use]
    pub fn health(&self) -> Vec<Arc<Health>> {
        let streams = locked(&self.streams);
        streams.values().flatten().filter(|open| open.is_open()).map(|open| open.health.clone()).collect()
    }

    /// The time of day, for what is written: timestamps.
    #[must_use]
    pub fn now(&self) -> SystemTime {
        self.client.now()
    }

    /// Asks the API server itself. What it says goes into the Stores, too: of an object that is created and deleted while a
    /// watch is behind, nobody else would tell that it is gone.
    pub async fn get_live<K: Resource>(&self, key: &Key) -> Result<Arc<K>, Error> {
        self.client.get(key).await.map(|object| self.remember(object))
    }

    /// Asks the API server for objects of a selection, `limit` at most, or fewer where so many are too large for one answer.
    /// They go into no Store. Waits for a turn among the lists that are read, which bounds their memory.
    pub async fn list_live<K: Resource>(&self, scope: &Scope, mut limit: u32) -> Result<Vec<K>, Error> {
        loop {
            // Any state is new enough, so the API server answers from its cache. `resourceVersion=0` would say so too, but
            // then no server honours the limit.
            let page = Page { version: Some("1"), limit, ..Page::default() };
            let _turn = self.client.turn(InTurn::List { bytes_max: page.bytes_max() }).await;
            let list = match self.client.list_page::<K>(scope, &page).await {
                Err(error) if error.is_too_large() && limit > 1 => {
                    limit /= 2;
                    continue;
                }
                list => list?,
            };
            let readable = list.items.into_iter().filter_map(|item| match item {
                Decoded::Readable(object) => Some(object),
                Decoded::Broken(_) => None,
            });
            return Ok(readable.collect());
        }
    }

    /// Creates an object. Fails where one of that name exists, whoever made it ([`Error::is_already_exists`]).
    pub async fn create<K: Resource + Serialize>(&self, desired: &K) -> Result<Arc<K>, Error> {
        self.client.create(desired).await.map(|object| self.remember(object))
    }

    /// Changes what [`diff::between`](crate::resource::diff::between) found different from `live`, if `live` is still what the API server has
    /// ([`Error::is_conflict`] otherwise: read again and decide again).
    pub async fn patch<K: Resource>(&self, live: &K, mut operations: Vec<Value>) -> Result<Arc<K>, Error> {
        let version = &live.metadata().resource_version;
        operations.push(json!({"op": "replace", "path": "/metadata/resourceVersion", "value": version}));
        self.patch_part(&live.key(), Part::Object, &Patch::Json(operations)).await
    }

    /// Replaces fields of the status, if `live` is still what the API server has.
    pub async fn patch_status<K: Resource>(&self, live: &K, status: impl Serialize) -> Result<Arc<K>, Error> {
        let version = &live.metadata().resource_version;
        let patch = json!({"metadata": {"resourceVersion": version}, "status": status});
        self.patch_part(&live.key(), Part::Status, &Patch::Merge(patch)).await
    }

    async fn patch_part<K: Resource>(&self, key: &Key, part: Part, patch: &Patch) -> Result<Arc<K>, Error> {
        let answer = self.client.patch(key, part, patch).await;
        if answer.as_ref().is_err_and(Error::is_conflict) {
            // Read again, so that the next decision is made on what there is. The watch may be seconds behind: when a
            // connection breaks, it breaks for the answer to a write too, and then even our own write is news to us.
            drop(self.get_live::<K>(key).await);
        }
        answer.map(|object| self.remember(object))
    }

    /// Deletes exactly this object in exactly this version: not another one of its name, and not one that has changed
    /// hands since. Where it has finalizers, the watch tells when it is gone.
    pub async fn delete<K: Resource>(&self, live: &K) -> Result<(), Error> {
        let metadata = live.metadata();
        let options = DeleteOptions {
            uid: Some(metadata.uid.clone()),
            version: Some(metadata.resource_version.clone()),
            ..DeleteOptions::default()
        };
        match self.client.delete::<K>(&live.key(), &options).await {
            Ok(Some(terminating)) => drop(self.remember(terminating)),
            Ok(None) => self.forget::<K>(metadata),
            // Somebody else was faster, and it may be that no watch tells of it any more.
            Err(error) if error.is_not_found() => self.forget::<K>(metadata),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn forget<K: Resource>(&self, gone: &ObjectMeta) {
        self.streams_of::<K>(&gone.key()).iter().for_each(|stream| stream.store.removed(gone));
    }

    fn remember<K: Resource>(&self, object: K) -> Arc<K> {
        let object = Arc::new(object);
        let key = object.key();
        for stream in self.streams_of::<K>(&key) {
            if stream.store.find(&key).is_some() || selects(&stream.scope, &object.metadata().labels) {
                stream.store.wrote(&object);
            }
        }
        object
    }

    /// The open streams in whose scope this key can be.
    fn streams_of<K: Resource>(&self, key: &Key) -> Vec<Arc<Stream<K>>> {
        let streams = locked(&self.streams);
        let in_namespace =
            |namespace: &str| streams.get(&(TypeId::of::<K>(), namespace.to_owned())).into_iter().flatten();
        let open = namespaces_of(key).flat_map(in_namespace);
        open.filter_map(|open| open.stream.upgrade()?.downcast().ok()).collect()
    }
}

/// The namespaces of the scopes in which a key can be: all, and its own.
fn namespaces_of(key: &Key) -> impl Iterator<Item = &str> {
    std::iter::once("").chain(key.namespace.as_deref())
}

/// Whether an equality selector (`app=web,tier=front`) selects these labels. Of other selectors we do not know.
fn selects(scope: &Scope, labels: &Labels) -> bool {
    scope.labels.split(',').filter(|term| !term.is_empty()).all(|term| match term.split_once('=') {
        Some((key, value)) => labels.get(key) == Some(value),
        None => false,
    })
}

impl<K: Resource> Stream<K> {
    fn open(client: Client, scope: Scope, lists: Lists) -> Stream<K> {
        let store = Arc::new(Store::default());
        let health = Arc::new(Health::new(format!("{} in {scope}", K::PLURAL)));
        store.listen({
            let (store, health) = (Arc::downgrade(&store), Arc::clone(&health));
            move |change| {
                if let (Change::Synced, Some(store)) = (change, store.upgrade()) {
                    health.synced();
                    info!(watch = health.what(), objects = store.len(), "synced");
                }
            }
        });
        let task = tokio::spawn({
            let (scope, store, health) = (scope.clone(), Arc::clone(&store), Arc::clone(&health));
            async move {
                // A panic must not pass for silence.
                let _ended = health.ended_when_dropped();
                watch::watch(client, scope, lists, &store, &health).await;
            }
        });
        Stream { scope, store, health, task }
    }
}

impl<K: Resource> Watch<K> {
    /// An object, if it exists and is readable.
    #[must_use]
    pub fn get(&self, key: &Key) -> Option<Arc<K>> {
        self.find(key).and_then(|found| found.readable().cloned())
    }

    /// All objects that exist and are readable.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<K>> {
        self.keys().iter().filter_map(|key| self.get(key)).collect()
    }

    /// All keys, in order within a scope.
    #[must_use]
    pub fn keys(&self) -> Vec<Key> {
        self.streams.values().flatten().flat_map(|stream| stream.store.keys()).collect()
    }

    /// Whether everything is known that exists where this key is.
    #[must_use]
    pub fn is_synced_for(&self, key: &Key) -> bool {
        self.streams_of(key).all(|stream| stream.store.is_synced())
    }

    /// Whether everything is known that exists.
    pub(crate) fn is_synced(&self) -> bool {
        self.streams.values().flatten().all(|stream| stream.store.is_synced())
    }

    /// Whether a label selector hides some of what exists.
    pub(crate) fn is_filtered(&self) -> bool {
        self.streams.values().flatten().any(|stream| !stream.scope.labels.is_empty())
    }

    pub(crate) fn find(&self, key: &Key) -> Option<Found<K>> {
        self.streams_of(key).find_map(|stream| stream.store.find(key))
    }

    /// The streams in whose scope this key can be.
    fn streams_of(&self, key: &Key) -> impl Iterator<Item = &Arc<Stream<K>>> {
        namespaces_of(key).filter_map(|namespace| self.streams.get(namespace)).flatten()
    }

    /// Calls `listener` at every change, with the scope in which it happened.
    pub(crate) fn listen(&self, listener: impl Fn(&Scope, &Change<K>) + Clone + Send + Sync + 'static) {
        for stream in self.streams.values().flatten() {
            let (listener, scope) = (listener.clone(), stream.scope.clone());
            stream.store.listen(move |change| listener(&scope, change));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{client::Config, resource::kinds::Service};

    #[test]
    fn only_equality_selectors_are_known_to_select() {
        let labels: Labels = serde_json::from_str(r#"{"app":"web","tier":"front"}"#).expect("labels");
        for (selector, expected) in [
            ("", true),
            ("app=web", true),
            ("app=web,tier=front", true),
            ("app=web,tier=back", false),
            ("color=red", false),
            ("app", false),
        ] {
            let scope = Scope { namespace: None, labels: selector.to_owned() };
            assert_eq!(selects(&scope, &labels), expected, "{selector}");
        }
    }

    #[tokio::test]
    async fn several_scopes_are_synced_when_each_of_them_is() {
        let config = Config::new("http://127.0.0.1:1", b"", "").expect("a config");
        let cluster = Cluster::new(Client::new(config).expect("a client"), Lists::Paged);
        let scope = |namespace: &str| Scope { namespace: Some(namespace.to_owned()), ..Scope::default() };
        let watch = cluster.watch::<Service>([scope("a"), scope("b")]);
        let (a, b) = (Key::namespaced("a", "web"), Key::namespaced("b", "web"));
        let streams = |namespace: &str| &watch.streams[namespace][0].store;
        assert!(!watch.is_synced());
        for (namespace, is_synced_for_b, is_synced) in [("a", false, false), ("b", true, true)] {
            streams(namespace).list_begins();
            streams(namespace).list_ends(&"1".into());
            assert!(watch.is_synced_for(&a));
            assert_eq!(watch.is_synced_for(&b), is_synced_for_b);
            assert_eq!(watch.is_synced(), is_synced);
        }
    }

    /// Whether the server speaks HTTP/2 decides for how long; without a list before it, only the version tells.
    #[cfg(feature = "apiserver")]
    #[tokio::test]
    async fn the_first_streaming_list_may_last_as_long_as_every_other_watch() {
        use crate::apiserver::{ApiServer, Options};
        let options = Options { controllers: false, ..Options::default() };
        let server = ApiServer::start(options).await.expect("a server");
        let config = Config::new(&server.url(), server.ca_pem().as_bytes(), server.token());
        let client = Client::new(config.expect("a config")).expect("a client");
        let cluster = Cluster::new(client, Lists::Streaming);
        let watch = cluster.watch::<Service>([Scope::default()]);
        let (sender, mut synced) = tokio::sync::mpsc::unbounded_channel();
        watch.listen(move |_, change| {
            if let Change::Synced = change {
                sender.send(()).expect("a receiver");
            }
        });
        synced.recv().await.expect("a sender");
        let requests = server.requests();
        let list = requests.iter().find(|request| request.query.contains("sendInitialEvents"));
        let query = &list.expect("a streaming list").query;
        let secs = query.split('&').find_map(|part| part.strip_prefix("timeoutSeconds="));
        let secs: u32 = secs.expect("a time").parse().expect("a number");
        assert!(secs >= 300, "{query}");
    }
}
