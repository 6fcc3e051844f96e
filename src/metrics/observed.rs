//! What a scrape and `/debug/state` look up in the running process.

use std::{collections::BTreeMap, time::Duration};

use smol_str::SmolStr;

use crate::resource::Key;

/// A controller.
pub(crate) trait Observed: Send + Sync {
    /// The kind of its objects.
    fn kind(&self) -> &'static str;
    /// The load of its workqueue.
    fn load(&self) -> QueueLoad;
    /// The keys in its workqueue.
    fn queued(&self) -> Vec<QueuedKey>;
    /// The number of its objects by the name, the status and the reason of each condition.
    fn conditions(&self) -> BTreeMap<[SmolStr; 3], i64>;
}

/// The load of a workqueue.
pub(crate) struct QueueLoad {
    /// The number of keys that wait for a worker.
    pub(crate) waiting: usize,
    /// For each key with a worker: since when.
    pub(crate) processing: Vec<Duration>,
}

/// A key in a workqueue.
pub(crate) struct QueuedKey {
    pub(crate) key: Key,
    /// `waiting`, `processing`, `later` or `backing off`.
    pub(crate) state: &'static str,
    /// The time in this state.
    pub(crate) since: Duration,
    /// The time until it waits for a worker.
    pub(crate) due: Option<Duration>,
    /// Failures in a row.
    pub(crate) failures: u32,
    /// The last failure.
    pub(crate) problem: String,
}

/// An open watch.
pub(crate) struct WatchState {
    /// `deployments.apps`
    pub(crate) resource: String,
    /// `synced`, `listing`, `failing` or `stuck`.
    pub(crate) state: &'static str,
    /// The number of objects in its Store.
    pub(crate) objects: usize,
    /// The time since the last line or page.
    pub(crate) silence: Duration,
}
