//! Shared watches with their Stores, and writes whose answers go into these Stores.
//!
//! ```text
//!   Cluster::watch ──► one watch and one Store for each kind and scope, shared by all callers
//!   Cluster::create ─► POST ─► the answer goes into every Store of this kind that selects the object, or has it
//! ```
//!
//! The answer to a write often comes before its event. An operator that reads only the events would not find
//! the child that it has just created, and would create it again. So operators write through a [`Cluster`], never through
//! a [`Client`].

mod ending;
mod events;
mod index;
mod streams;

use std::{
    any::TypeId,
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::SystemTime,
};

use serde::Serialize;
use serde_json::{Value, json};

use crate::{
    client::{Client, Collection, DeleteOptions, Error, Leadership, Page, Part, Patch, PermitFor},
    locked,
    metrics::Metrics,
    rbac::Permission,
    resource::{
        Key, ObjectMeta, Resource, Scope,
        list::{Found, List},
    },
    shard::Shard,
    store::{Budget, Change, KEPT_MIB, Listening},
    watch::Lists,
};
use ending::EndingNamespaces;
pub use events::{EventType, Events};
pub use index::Index;
pub(crate) use streams::Readiness;
use streams::{OpenStream, OpenStreams, Stream};

/// A client of an API server, with the Stores of its open watches. Cheap to clone.
#[derive(Clone)]
pub struct Cluster {
    /// Its writes do not go into the Stores, unlike those of the Cluster.
    pub(crate) client: Client,
    lists: Lists,
    streams: Arc<Mutex<OpenStreams>>,
    /// Of what all Stores keep.
    budget: Arc<Budget>,
    /// Held while a worker has a child that is too large to be kept: its content may take megabytes.
    large_child: Arc<tokio::sync::Mutex<()>>,
    /// What the controllers have declared.
    permissions: Arc<Mutex<Vec<Permission>>>,
    ending: Arc<EndingNamespaces>,
    /// What the process waits for besides its watches, by who waits.
    lacks: Arc<Mutex<BTreeMap<&'static str, String>>>,
    /// Whether this process is ready while its watches fail.
    is_ready_without_watches: Arc<AtomicBool>,
    /// The objects that controllers reconcile.
    pub(crate) shard: Shard,
}

/// Shared watches of one kind, one for each scope. Dropping the last share of a watch ends it.
pub struct Watch<K> {
    /// By namespace. The namespace is empty for all namespaces.
    streams: Arc<BTreeMap<String, Vec<Arc<Stream<K>>>>>,
}

impl Cluster {
    /// A cluster without watches. Sends no request yet.
    #[must_use]
    pub fn new(client: Client, lists: Lists) -> Cluster {
        let (streams, permissions, ending, lacks, is_ready_without_watches) = Default::default();
        let (budget, shard) = (Budget::of_process(KEPT_MIB), Shard::default());
        Cluster {
            client,
            lists,
            streams,
            budget,
            large_child: Arc::default(),
            permissions,
            ending,
            lacks,
            is_ready_without_watches,
            shard,
        }
    }

    /// A cluster whose Stores keep the content of objects of so many MiB together, in place of [`KEPT_MIB`].
    #[must_use]
    pub(crate) fn keeping(self, kept_mib: u32) -> Cluster {
        Cluster { budget: Budget::of_process(kept_mib), ..self }
    }

    /// Declares what a controller must be allowed to do. Usually, [`Builder::needs`](crate::controller::Builder::needs) does that.
    pub fn declare(&self, permission: Permission) {
        listwatch_install::rbac::add(&mut locked(&self.permissions), permission);
    }

    /// What the controllers have declared, in this order.
    pub(crate) fn permissions(&self) -> Vec<Permission> {
        locked(&self.permissions).clone()
    }

    /// The same watches, for a controller whose permissions are declared otherwise.
    #[cfg(feature = "webhook")]
    pub(crate) fn without_declarations(&self) -> Cluster {
        Cluster { permissions: Arc::default(), ..self.clone() }
    }

    /// The process is not ready while `who` lacks something.
    #[cfg(feature = "webhook")]
    pub(crate) fn waits_for(&self, who: &'static str, lack: Option<&str>) {
        let mut lacks = locked(&self.lacks);
        match lack {
            Some(lack) => drop(lacks.insert(who, lack.to_owned())),
            None => drop(lacks.remove(who)),
        }
    }

    /// This process serves webhooks. Without a ready Pod, nobody could write their kinds, because one permission is missing, and no list of what
    /// they convert would be complete.
    #[cfg(feature = "webhook")]
    pub(crate) fn serves_webhooks(&self) {
        self.is_ready_without_watches.store(true, Ordering::Relaxed);
    }

    /// Whether the process is ready while its watches fail.
    pub(crate) fn is_ready_without_watches(&self) -> bool {
        self.is_ready_without_watches.load(Ordering::Relaxed)
    }

    /// What the process waits for besides its watches.
    pub(crate) fn lacks(&self) -> Vec<String> {
        locked(&self.lacks).iter().map(|(who, lack)| format!("{who}: {lack}")).collect()
    }

    /// The time of the API server: `Date` of an answer. Without one, the time of this process.
    #[cfg(feature = "webhook")]
    pub(crate) async fn server_time(&self) -> Result<SystemTime, Error> {
        let answer = self.client.send(crate::client::Request::get("/version")).await?;
        let date = answer.headers.get(http::header::DATE).and_then(|date| date.to_str().ok());
        Ok(date.and_then(|date| httpdate::parse_http_date(date).ok()).unwrap_or_else(|| self.now()))
    }

    /// The same watches, with writes only while this leadership is held: see [`Client::led_by`].
    #[must_use]
    pub(crate) fn led_by(&self, leadership: Leadership) -> Cluster {
        Cluster { client: self.client.led_by(leadership), ..self.clone() }
    }

    /// A cluster of whose objects the controllers reconcile only those in this shard.
    #[must_use]
    pub(crate) fn of_shard(self, shard: Shard) -> Cluster {
        Cluster { shard, ..self }
    }

    /// [`Client::namespace`].
    pub(crate) fn namespace(&self) -> &str {
        self.client.namespace()
    }

    /// [`Client::metrics`].
    #[must_use]
    pub fn metrics(&self) -> &Arc<Metrics> {
        self.client.metrics()
    }

    /// The time of day, for timestamps in objects.
    #[must_use]
    pub fn now(&self) -> SystemTime {
        self.client.now()
    }

    /// Reads an object from the API server itself, and puts it into the Stores: otherwise they would never have an object that is
    /// created and deleted while a watch is behind.
    pub async fn get_live<K: Resource>(&self, key: &Key) -> Result<Arc<K>, Error> {
        self.client.get(key).await.map(|object| self.remember(object))
    }

    /// Waits until no other worker has a child that is too large to be kept.
    pub(crate) async fn large_child(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.large_child.lock().await
    }

    /// Lists at most `limit` objects of a scope from the API server itself; fewer if so many are too large for one answer.
    /// Lists wait for each other, to limit their memory. The objects go into no Store; those that do not decode are left out.
    pub(crate) async fn list_live<K: Resource>(
        &self,
        scope: &Scope,
        mut limit: u32,
    ) -> Result<Vec<Arc<K>>, Error> {
        let collection = Collection::of::<K>(scope)?;
        loop {
            // With `resourceVersion=1`, any state is new enough, so the API server answers from its cache. With `resourceVersion=0`
            // it would ignore the limit.
            let page = Page { version: Some("1"), limit, ..Page::default() };
            let _permit = self.client.permit(PermitFor::List { bytes_max: page.bytes_max() }).await;
            let page = self.client.list_page(&collection, &page).await;
            match page.and_then(|page| page.read(List::<K>::from_json)) {
                Err(error) if error.is_too_large() && limit > 1 => limit /= 2,
                Err(error) => return Err(error),
                Ok(page) => return Ok(page.items.iter().filter_map(Found::readable).cloned().collect()),
            }
        }
    }

    /// Creates an object. Fails if any object of that name exists ([`Error::is_already_exists`]).
    pub async fn create<K: Resource + Serialize>(&self, desired: &K) -> Result<Arc<K>, Error> {
        self.client.create(desired).await.map(|object| self.remember(object))
    }

    /// [`Cluster::create`] for an owner in the same namespace. `None`: the namespace is being deleted, as an earlier refusal has shown.
    pub(crate) async fn create_for<K: Resource + Serialize>(
        &self,
        owner: &ObjectMeta,
        desired: &K,
    ) -> Result<Option<Arc<K>>, Error> {
        if self.is_ending(owner) {
            return Ok(None);
        }
        let created = self.create(desired).await;
        if let (Some(namespace), Err(error)) = (&owner.namespace, &created)
            && error.is_namespace_terminating()
        {
            self.ending.refused(namespace.clone());
        }
        created.map(Some)
    }

    /// Whether an object is deleted with its namespace soon, as a refused [`Cluster::create_for`] has shown. If it is being deleted itself, its
    /// operator knows that, and may clean up.
    pub(crate) fn is_ending(&self, owner: &ObjectMeta) -> bool {
        let namespace = owner.namespace.as_ref().filter(|_| !owner.is_terminating());
        namespace.is_some_and(|namespace| self.ending.includes(namespace))
    }

    /// Notes that somebody has created this object, so that its namespace is a new one.
    pub(crate) fn created_by_another(&self, object: &ObjectMeta) {
        if let Some(namespace) = &object.namespace {
            self.ending.lives(namespace);
        }
    }

    /// Applies operations, such as those of [`diff::operations`](crate::resource::diff::operations), if `live` is still the present
    /// version. Otherwise fails with [`Error::is_conflict`]: read again and decide again.
    pub async fn patch<K: Resource>(&self, live: &K, operations: Vec<Value>) -> Result<Arc<K>, Error> {
        self.patch_part(&live.key(), Part::Object, &versioned(live, operations)).await
    }

    /// Asks whether the API server would accept [`Cluster::patch`].
    pub async fn patch_dry_run<K: Resource>(&self, live: &K, operations: Vec<Value>) -> Result<(), Error> {
        self.client.patch_dry_run::<K>(&live.key(), &versioned(live, operations)).await
    }

    /// Replaces fields of the status, if `live` is still the present version.
    pub async fn patch_status<K: Resource>(&self, live: &K, status: impl Serialize) -> Result<Arc<K>, Error> {
        let version = &live.metadata().resource_version;
        let patch = json!({"metadata": {"resourceVersion": version}, "status": status});
        self.patch_part(&live.key(), Part::Status, &Patch::Merge(patch)).await
    }

    pub(crate) async fn patch_part<K: Resource>(
        &self,
        key: &Key,
        part: Part,
        patch: &Patch,
    ) -> Result<Arc<K>, Error> {
        let answer = self.client.patch(key, part, patch).await;
        if answer.as_ref().is_err_and(Error::is_conflict) {
            // The watch may be seconds behind, so the present object is read into the Stores for the next attempt. The
            // conflict may even be with a write of ours whose answer was lost with its connection.
            drop(self.get_live::<K>(key).await);
        }
        answer.map(|object| self.remember(object))
    }

    /// Deletes the object only if it still has this uid and resourceVersion: by now it may be another object of its name, or
    /// have another owner. If it has finalizers, the DELETED event follows later. No error if it was deleted before.
    pub async fn delete<K: Resource>(&self, live: &K) -> Result<(), Error> {
        self.delete_by::<K>(live.metadata()).await
    }

    /// [`Cluster::delete`], where only the metadata is known.
    pub(crate) async fn delete_by<K: Resource>(&self, metadata: &ObjectMeta) -> Result<(), Error> {
        let options = DeleteOptions {
            uid: Some(metadata.uid.clone()),
            version: Some(metadata.resource_version.clone()),
        };
        match self.client.delete::<K>(&metadata.key(), &options).await {
            Ok(Some(terminating)) => drop(self.remember(terminating)),
            Ok(None) => self.forget::<K>(metadata),
            // It was deleted already. The watches may have missed that event, or may not send it again.
            Err(error) if error.is_not_found() => self.forget::<K>(metadata),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Removes an object that an answer showed to be deleted, before its DELETED event comes.
    pub(crate) fn forget<K: Resource>(&self, gone: &ObjectMeta) {
        if self.client.only_plans() {
            return;
        }
        self.streams_of::<K>(&gone.key()).iter().for_each(|stream| stream.store.removed(gone));
    }

    fn remember<K: Resource>(&self, object: K) -> Arc<K> {
        let object = Arc::new(object);
        if self.client.only_plans() {
            return object;
        }
        let key = object.key();
        for stream in self.streams_of::<K>(&key) {
            stream.store.wrote(&object, stream.selects(&object.metadata().labels));
        }
        object
    }

    /// The open streams whose scope includes this key.
    fn streams_of<K: Resource>(&self, key: &Key) -> Vec<Arc<Stream<K>>> {
        let streams = locked(&self.streams);
        let in_namespace =
            |namespace: &str| streams.get(&(TypeId::of::<K>(), namespace.to_owned())).into_iter().flatten();
        let open = namespaces_of(key).flat_map(in_namespace);
        open.filter_map(OpenStream::stream).collect()
    }
}

impl<K> Clone for Watch<K> {
    fn clone(&self) -> Watch<K> {
        Watch { streams: Arc::clone(&self.streams) }
    }
}

impl<K: Resource> Watch<K> {
    /// An object, if it exists and is readable.
    #[must_use]
    pub fn get(&self, key: &Key) -> Option<Arc<K>> {
        self.find(key).and_then(|found| found.readable().cloned())
    }

    /// All keys, in order within a scope.
    #[must_use]
    pub fn keys(&self) -> Vec<Key> {
        self.streams.values().flatten().flat_map(|stream| stream.store.keys()).collect()
    }

    /// Whether the Stores whose scope includes this key have synced.
    #[must_use]
    pub fn is_synced_for(&self, key: &Key) -> bool {
        self.streams_of(key).all(|stream| stream.store.is_synced())
    }

    /// Whether all Stores have synced.
    pub(crate) fn is_synced(&self) -> bool {
        self.streams.values().flatten().all(|stream| stream.store.is_synced())
    }

    /// The namespaces of the scopes. Empty: all.
    pub(crate) fn namespaces(&self) -> Vec<String> {
        if self.streams.contains_key("") { Vec::new() } else { self.streams.keys().cloned().collect() }
    }

    /// Whether a scope has a selector.
    pub(crate) fn is_filtered(&self) -> bool {
        self.streams.values().flatten().any(|stream| stream.scope.is_filtered())
    }

    /// An object, if it exists, or its metadata, if the rest is unreadable or not kept.
    #[must_use]
    pub fn find(&self, key: &Key) -> Option<Found<K>> {
        self.streams_of(key).find_map(|stream| stream.store.find(key))
    }

    /// Why no scope would select an object with this metadata, if so: each create would be in vain.
    pub(crate) fn lacks(&self, metadata: &ObjectMeta) -> Option<String> {
        let key = metadata.key();
        let mut streams = self.streams_of(&key).peekable();
        let Some(first) = streams.peek() else {
            return Some("this operator does not watch the namespace of the object".to_owned());
        };
        let labels = &first.scope.labels;
        let lack =
            format!("the operator would not find it again: it lacks the labels of the watch, {labels}");
        streams.all(|stream| stream.excludes(&metadata.labels)).then_some(lack)
    }

    /// The streams whose scope includes this key.
    fn streams_of(&self, key: &Key) -> impl Iterator<Item = &Arc<Stream<K>>> {
        namespaces_of(key).filter_map(|namespace| self.streams.get(namespace)).flatten()
    }

    /// Calls `listener` at every change, with the scope in which it happened, until the result is dropped.
    pub fn listen(&self, listener: impl Fn(&Scope, &Change<K>) + Clone + Send + Sync + 'static) -> Listening {
        let listen = |stream: &Arc<Stream<K>>| {
            let (listener, scope) = (listener.clone(), stream.scope.clone());
            stream.store.listen(move |change| listener(&scope, change))
        };
        self.streams.values().flatten().map(listen).collect()
    }
}

/// The operations, which the API server refuses if `live` is not the present version.
fn versioned<K: Resource>(live: &K, mut operations: Vec<Value>) -> Patch {
    let version = &live.metadata().resource_version;
    operations.push(json!({"op": "replace", "path": "/metadata/resourceVersion", "value": version}));
    Patch::Json(operations)
}

/// The namespaces of the scopes that include a key: all namespaces, and its own.
fn namespaces_of(key: &Key) -> impl Iterator<Item = &str> {
    std::iter::once("").chain(key.namespace.as_deref())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        client::Config,
        resource::{Labels, kinds::Service},
    };

    fn cluster() -> Cluster {
        let config = Config::new("http://127.0.0.1:1", b"", "").expect("a config");
        Cluster::new(Client::new(config).expect("a client"), Lists::Paged)
    }

    #[tokio::test]
    async fn only_selectors_of_objects_are_known_to_select() {
        let labels: Labels = serde_json::from_str(r#"{"app":"web","tier":"front"}"#).expect("labels");
        for (selector, expected) in [
            ("", true),
            ("app=web", true),
            ("app=web,tier=front", true),
            ("app=web,tier=back", false),
            ("color=red", false),
            ("app,tier in (back,front),!color", true),
            ("app,tier notin (back,front)", false),
            ("app>1", false),
        ] {
            let scope = Scope { labels: selector.to_owned(), ..Scope::default() };
            let watch = cluster().watch::<Service>([scope]);
            assert_eq!(watch.streams[""][0].selects(&labels), expected, "{selector}");
        }
    }

    #[tokio::test]
    async fn a_new_object_is_known_where_its_labels_are_selected_and_nowhere_else() {
        let cluster = cluster();
        let watches = ["app=web", "app=db"].map(|labels| {
            let watch = cluster.watch::<Service>([Scope { labels: labels.to_owned(), ..Scope::default() }]);
            let store = &watch.streams[""][0].store;
            store.list_begins();
            store.list_ends(&"1".into());
            watch
        });
        let mut service = Service::default();
        service.metadata.name = "web".into();
        service.metadata.resource_version = "2".into();
        service.metadata.labels = serde_json::from_str(r#"{"app":"web"}"#).expect("labels");
        let key = cluster.remember(service).key();
        assert_eq!(watches.map(|watch| watch.get(&key).is_some()), [true, false]);
    }

    /// One invalid name, which may come from an object of a user, ended the process by `/livez`; an empty one read all namespaces.
    #[tokio::test(start_paused = true)]
    async fn an_invalid_namespace_is_a_watch_of_its_own_that_fails_and_is_not_stuck() {
        let cluster = cluster();
        let scope = |namespace: &str| Scope { namespace: Some(namespace.to_owned()), ..Scope::default() };
        let _all = cluster.watch::<Service>([Scope::default()]);
        let invalid = [cluster.watch::<Service>([scope("")]), cluster.watch::<Service>([scope("..")])];
        tokio::time::sleep(std::time::Duration::from_secs(61)).await;
        assert_eq!(cluster.health().len(), 3);
        for watch in invalid {
            let health = &watch.streams.values().flatten().next().expect("a stream").health;
            assert!(health.problem().is_some_and(|problem| problem.contains("is not a name")));
            assert!(!health.is_stuck());
        }
    }

    #[tokio::test]
    async fn several_scopes_are_synced_when_each_of_them_is() {
        let scope = |namespace: &str| Scope { namespace: Some(namespace.to_owned()), ..Scope::default() };
        let watch = cluster().watch::<Service>([scope("a"), scope("b")]);
        let (a, b) = (Key::namespaced("a", "web"), Key::namespaced("b", "web"));
        let streams = |namespace: &str| &watch.streams[namespace][0].store;
        assert!(!watch.is_synced());
        for (namespace, is_synced_for_b, is_synced) in [("a", false, false), ("b", true, true)] {
            streams(namespace).list_begins();
            streams(namespace).list_ends(&"1".into());
            assert!(watch.is_synced_for(&a));
            assert_eq!(watch.is_synced_for(&b), is_synced_for_b);
            assert_eq!(watch.is_synced(), is_synced);
            // The lists of named namespaces were not awaited for an owner without one.
            let is_ready = matches!(watch.readiness_for(&Key::cluster("owner")), Readiness::Ready);
            assert_eq!(is_ready, is_synced);
        }
    }

    /// The metric had the first list alone, so nobody heard of a collection that is listed again and again.
    #[cfg(feature = "testing")]
    #[tokio::test(start_paused = true)]
    async fn each_complete_list_is_counted_by_why_it_began() {
        use crate::{metrics::TextFormat, testing::TestServer};
        let TestServer { server, client } = TestServer::start(&[]).await;
        let cluster = Cluster::new(client, Lists::Paged);
        let _watch = cluster.watch::<Service>([Scope::default()]);
        server.fault(listwatch_apiserver::Fault::ExpireWatches.times(1).after_lines(0));
        tokio::time::sleep(std::time::Duration::from_secs(60)).await;
        let text = cluster.metrics().text(TextFormat::Prometheus, Vec::new(), 0).expect("text");
        for reason in ["Start", "Expired"] {
            let sample = format!(r#"listwatch_lists_total{{resource="services",reason="{reason}"}} 1"#);
            assert!(text.lines().any(|line| line == sample), "{text}");
        }
    }

    /// `timeoutSeconds` depends on the HTTP version. Before the first list, only the answer to GET /version shows it.
    #[tokio::test]
    async fn the_first_streaming_list_may_last_as_long_as_every_other_watch() {
        use listwatch_apiserver::{ApiServer, Options};
        let options = Options { controllers: false, ..Options::default() };
        let server = ApiServer::start(options).await.expect("a server");
        let config = Config::new(&server.url(), server.ca_pem().as_bytes(), server.token());
        let client = Client::new(config.expect("a config")).expect("a client");
        let cluster = Cluster::new(client, Lists::Streaming);
        let watch = cluster.watch::<Service>([Scope::default()]);
        let (sender, mut synced) = tokio::sync::mpsc::unbounded_channel();
        let _listening = watch.listen(move |_, change| {
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
