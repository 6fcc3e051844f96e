//! [`Readiness`]: whether the Stores have every object that an operator needs, or why not.

use std::sync::Arc;

use super::{Watch, streams::Stream};
use crate::resource::{Key, Resource};

/// Whether Stores have every object.
#[derive(Debug)]
pub(crate) enum Readiness {
    /// They have synced.
    Ready,
    /// Some of them have not.
    Waiting,
    /// A watch of a Store that has not synced is forbidden, or has failed for a minute, for this reason.
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

fn readiness<'a, K: Resource>(streams: impl Iterator<Item = &'a Arc<Stream<K>>>) -> Readiness {
    let of = |stream: &Arc<Stream<K>>| {
        if stream.store.is_synced() {
            return Readiness::Ready;
        }
        stream.health.lasting_problem().map_or(Readiness::Waiting, Readiness::Failing)
    };
    streams.map(of).fold(Readiness::Ready, Readiness::and)
}
