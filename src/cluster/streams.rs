//! The open watches, shared by all callers with the same kind and scope, and whether their Stores have every object.

use std::{
    any::{Any, TypeId},
    collections::{BTreeMap, HashMap},
    sync::{Arc, Weak},
};

use listwatch_formats::selector::Selector;
use smol_str::SmolStr;
use tokio::task::JoinHandle;

use super::{Cluster, Watch};
use crate::{
    client::{Client, qualified},
    locked,
    resource::{Key, Labels, Resource, Scope},
    store::{Kept, Portion, Store},
    watch::{Health, Lists, watch},
};

/// By kind and namespace. The namespace is empty for all namespaces.
pub(super) type OpenStreams = HashMap<(TypeId, String), Vec<OpenStream>>;

/// A stream of any kind that may still be open.
pub(super) struct OpenStream {
    scope: Scope,
    /// [`Kept::name`].
    kept: String,
    stream: Weak<dyn AnyStream>,
}

/// A [`Stream`] of any kind.
trait AnyStream: Any + Send + Sync {
    fn look(&self) -> OpenWatch;
}

/// An open watch, for people and for metrics.
pub(crate) struct OpenWatch {
    /// `deployments.apps`
    pub(crate) resource: String,
    pub(crate) health: Arc<Health>,
    /// The number of objects in its Store.
    pub(crate) objects: usize,
    /// The version from which it would resume.
    pub(crate) version: SmolStr,
}

impl OpenStream {
    /// The stream, if a [`Watch`] still shares it, and if it is one of this kind.
    pub(super) fn stream<K: Resource>(&self) -> Option<Arc<Stream<K>>> {
        let stream: Arc<dyn Any + Send + Sync> = self.stream.upgrade()?;
        stream.downcast().ok()
    }
}

/// Whether Stores have every object. Of several, the last of these in this order counts.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Readiness {
    /// They have synced.
    Ready,
    /// Some of them have not.
    Waiting,
    /// A watch of a Store that has not synced is forbidden, or has failed for a minute, for this reason.
    Failing(String),
}

/// One running watch and its Store. Dropping it ends the watch.
pub(super) struct Stream<K> {
    pub(super) scope: Scope,
    /// `None`: a selector of the scope is invalid, or is for fields.
    selector: Option<Selector>,
    pub(super) store: Arc<Store<K>>,
    pub(super) health: Arc<Health>,
    task: JoinHandle<()>,
}

impl<K> Drop for Stream<K> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Cluster {
    /// Watches a kind in all of the scopes. All callers with the same kind and scope share one stream and one Store. Objects for which
    /// the process has no room count as unreadable: one of more than 256 KiB, and what is above 32 MiB in one namespace, or 64 MiB in all.
    pub fn watch<K: Resource>(&self, scopes: impl IntoIterator<Item = Scope>) -> Watch<K> {
        self.watch_keeping(scopes, &self.kept())
    }

    /// What the Stores of [`Cluster::watch`] keep.
    pub(crate) fn kept<K: Resource>(&self) -> Kept<K> {
        Kept::within(&self.budget, "all", |_| Portion::Whole)
    }

    /// [`Cluster::watch`] for the objects that an operator reconciles, in the shard.
    pub fn watch_reconciled<K: Resource>(&self, scopes: impl IntoIterator<Item = Scope>) -> Watch<K> {
        self.watch_keeping(scopes, &Kept::reconciled(&self.budget, self.shard))
    }

    /// [`Cluster::watch`] for children of objects of kind `O` in the shard, which their controller ownerReference names. Of other objects, the
    /// Store has no content, whatever their labels are. Children for which there is no room are read when they are needed.
    pub fn watch_children<O: Resource, K: Resource>(
        &self,
        scopes: impl IntoIterator<Item = Scope>,
    ) -> Watch<K> {
        self.watch_keeping(scopes, &Kept::children_of::<O>(&self.budget, self.shard))
    }

    /// [`Cluster::watch`], with a limit of its own for what the Stores keep.
    pub fn watch_keeping<K: Resource>(
        &self,
        scopes: impl IntoIterator<Item = Scope>,
        kept: &Kept<K>,
    ) -> Watch<K> {
        let mut open = locked(&self.streams);
        open.retain(|_, streams| {
            streams.retain(|open| open.stream.strong_count() > 0);
            !streams.is_empty()
        });
        let mut streams = BTreeMap::<String, Vec<_>>::new();
        for scope in scopes {
            // An empty namespace is invalid. It does not mean all namespaces.
            let namespace =
                scope.namespace.as_deref().map_or("", |one| if one.is_empty() { "/" } else { one });
            let namespace = namespace.to_owned();
            let open = open.entry((TypeId::of::<K>(), namespace.clone())).or_default();
            let known = open.iter().find(|open| open.scope == scope && open.kept == kept.name());
            let stream = known.and_then(OpenStream::stream).unwrap_or_else(|| {
                let stream = Stream::open(self.client.clone(), scope.clone(), self.lists, kept.clone());
                let stream = Arc::new(stream);
                let any: Weak<dyn AnyStream> = Arc::<Stream<K>>::downgrade(&stream);
                open.push(OpenStream { scope, kept: kept.name().to_owned(), stream: any });
                stream
            });
            streams.entry(namespace).or_default().push(stream);
        }
        Watch { streams: Arc::new(streams) }
    }

    /// The health of each open watch.
    #[must_use]
    pub fn health(&self) -> Vec<Arc<Health>> {
        self.watches().into_iter().map(|open| open.health).collect()
    }

    /// Each open watch.
    pub(crate) fn watches(&self) -> Vec<OpenWatch> {
        let streams = locked(&self.streams);
        streams.values().flatten().filter_map(|open| Some(open.stream.upgrade()?.look())).collect()
    }
}

impl<K: Resource> Watch<K> {
    /// Whether the Stores whose scope includes this key have every object. If no scope includes the key, all Stores count: the children
    /// of an object without a namespace can be in any of them.
    pub(crate) fn readiness_for(&self, key: &Key) -> Readiness {
        let mut streams = self.streams_of(key).peekable();
        if streams.peek().is_none() {
            return readiness(self.streams.values().flatten());
        }
        readiness(streams)
    }

    /// Whether all Stores have every object, and no watch is forbidden now.
    pub(crate) fn readiness(&self) -> Readiness {
        let forbidden = |stream: &Arc<Stream<K>>| stream.health.forbidden().map(Readiness::Failing);
        let forbidden = self.streams.values().flatten().find_map(forbidden);
        forbidden.unwrap_or_else(|| readiness(self.streams.values().flatten()))
    }

    /// Whether each Store has synced, or its watch fails.
    pub(crate) fn is_synced_or_failing(&self) -> bool {
        let mut streams = self.streams.values().flatten();
        streams.all(|stream| stream.store.is_synced() || stream.health.problem().is_some())
    }
}

impl<K: Resource> AnyStream for Stream<K> {
    fn look(&self) -> OpenWatch {
        let Stream { store, health, .. } = self;
        OpenWatch {
            resource: qualified(K::GROUP, K::PLURAL),
            health: Arc::clone(health),
            objects: store.len(),
            version: store.version(),
        }
    }
}

impl<K: Resource> Stream<K> {
    fn open(client: Client, scope: Scope, lists: Lists, kept: Kept<K>) -> Stream<K> {
        let store = Arc::new(Store::keeping(kept));
        let metrics = client.metrics().watch(qualified(K::GROUP, K::PLURAL));
        let health = Arc::new(Health::new(format!("{} in {scope}", K::PLURAL)).measured_by(metrics));
        let task = tokio::spawn({
            let (scope, store, health) = (scope.clone(), Arc::clone(&store), Arc::clone(&health));
            async move {
                // Also after a panic, so that `/livez` fails.
                let _ended = health.ended_when_dropped();
                watch(client, scope, lists, &store, &health).await;
            }
        });
        let selector = Selector::parse(&scope.labels).ok().filter(|_| scope.fields.is_empty());
        Stream { scope, selector, store, health, task }
    }

    /// Whether the scope is known not to select an object with these labels.
    pub(super) fn excludes(&self, labels: &Labels) -> bool {
        self.selector.as_ref().is_some_and(|selector| !selector.selects(|key| labels.get(key)))
    }

    /// Whether the scope is known to select an object with these labels.
    pub(super) fn selects(&self, labels: &Labels) -> bool {
        self.selector.as_ref().is_some_and(|selector| selector.selects(|key| labels.get(key)))
    }
}

fn readiness<'a, K: Resource>(streams: impl Iterator<Item = &'a Arc<Stream<K>>>) -> Readiness {
    let of = |stream: &Arc<Stream<K>>| {
        if stream.store.is_synced() {
            return Readiness::Ready;
        }
        stream.health.lasting_problem().map_or(Readiness::Waiting, Readiness::Failing)
    };
    streams.map(of).max().unwrap_or(Readiness::Ready)
}
