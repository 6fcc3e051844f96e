//! [`Watch`]: a handle on shared watches, with the objects in their Stores.

use std::{collections::BTreeMap, sync::Arc};

use super::{namespaces_of, streams::Stream};
use crate::{
    resource::{Key, Resource, Scope, list::Found},
    store::{Change, Listening},
};

/// Shared watches of one kind, one for each scope. Dropping the last share of a watch ends it.
pub struct Watch<K> {
    /// By namespace. The namespace is empty for all namespaces.
    pub(super) streams: Arc<BTreeMap<String, Vec<Arc<Stream<K>>>>>,
}

/// Whether Stores have every object.
#[derive(Debug)]
pub(crate) enum Readiness {
    /// They have synced.
    Ready,
    /// Some of them have not.
    Waiting,
    /// A watch of a Store that has not synced fails, for this reason.
    Failing(String),
}

impl Readiness {
    pub(crate) fn and(self, other: Readiness) -> Readiness {
        match (self, other) {
            (Readiness::Ready, other) => other,
            (Readiness::Failing(problem), _) | (Readiness::Waiting, Readiness::Failing(problem)) => {
                Readiness::Failing(problem)
            }
            (Readiness::Waiting, Readiness::Ready | Readiness::Waiting) => Readiness::Waiting,
        }
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

    /// Whether the Stores whose scope includes this key have every object; all Stores, if none includes it, such as those of the
    /// children of an object without a namespace.
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

    /// Whether the Stores have every object, except those whose watch stays forbidden.
    pub(crate) fn readiness_where_allowed(&self) -> Readiness {
        readiness(self.streams.values().flatten().filter(|stream| !stream.health.stays_forbidden()))
    }

    /// Whether a scope has a label selector.
    pub(crate) fn is_filtered(&self) -> bool {
        self.streams.values().flatten().any(|stream| !stream.scope.labels.is_empty())
    }

    pub(crate) fn find(&self, key: &Key) -> Option<Found<K>> {
        self.streams_of(key).find_map(|stream| stream.store.find(key))
    }

    /// The streams whose scope includes this key.
    fn streams_of(&self, key: &Key) -> impl Iterator<Item = &Arc<Stream<K>>> {
        namespaces_of(key).filter_map(|namespace| self.streams.get(namespace)).flatten()
    }

    /// Calls `listener` at every change, with the scope in which it happened, until the result is dropped.
    pub(crate) fn listen(
        &self,
        listener: impl Fn(&Scope, &Change<K>) + Clone + Send + Sync + 'static,
    ) -> Listening {
        let listen = |stream: &Arc<Stream<K>>| {
            let (listener, scope) = (listener.clone(), stream.scope.clone());
            stream.store.listen(move |change| listener(&scope, change))
        };
        self.streams.values().flatten().map(listen).collect()
    }
}

fn readiness<'a, K: Resource>(streams: impl Iterator<Item = &'a Arc<Stream<K>>>) -> Readiness {
    let of = |stream: &Arc<Stream<K>>| {
        if stream.store.is_synced() {
            return Readiness::Ready;
        }
        stream.health.problem().map_or(Readiness::Waiting, Readiness::Failing)
    };
    streams.map(of).fold(Readiness::Ready, Readiness::and)
}
