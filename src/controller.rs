//! Connects watches, queue and workers with one [`Operator`].
//!
//! ```text
//!   Change in a Store ─► key of the object or its owner ─► Queue ─► worker ─► Operator::applied / deleted ─► writes
//!                                                            ▲                        │
//!                                                            └ after a time or failure ┘
//! ```
//!
//! Reconciling is level-triggered: the queue carries keys and no events, and a worker reads the present object from the
//! Store. So ten events may cause one reconcile, and a missed event does no harm, except for a deletion while the process is
//! stopped: see [`Operator::deleted`].

mod awaits;
mod deletions;
mod each;
mod error;
mod finalizers;
mod operator;
mod workers;

use std::{
    collections::BTreeSet,
    future::poll_fn,
    mem,
    pin::pin,
    sync::{Arc, Mutex, Once},
    task::Poll,
    time::Duration,
};

use smol_str::SmolStr;
use tokio::{sync::mpsc, task::JoinSet, time::timeout};
use tracing::{debug, info, warn};

use crate::{
    cluster::{Cluster, Readiness, Watch},
    queue::{Queue, ReconcileResult, Urgency},
    resource::{Key, Resource, Scope, list::Found},
    store::{Change, Listening},
    truces::Truces,
};
use awaits::{Awaited, LOOK_AGAIN, unwatched};
use deletions::Tombstones;
pub use error::ReconcileError;
use finalizers::finalizer_index;
pub use operator::{Cleanup, Next, Operator};
use workers::Workers;

/// The target of the lines in the log, also of those that the files of this chapter write.
const LOG: &str = module_path!();
/// Default number of keys that are reconciled at a time.
pub const WORKERS: usize = 8;
/// Longest time for one reconcile: several requests, each with its retries. By default, the deadline of a request is 30 s.
const RECONCILE_LIMIT: Duration = Duration::from_secs(120);
/// How long a stopping controller waits for running reconciles. The kubelet kills a Pod 30 s after SIGTERM.
const STOP_LIMIT: Duration = Duration::from_secs(25);

/// Runs an [`Operator`].
pub struct Controller<O: Operator> {
    shared: Arc<Shared<O>>,
    listening: Vec<Listening>,
    /// For each watch: whether its Stores have every object that matters for a key.
    awaited: Vec<Box<Awaited>>,
    /// The channels of [`Controller::wakes`].
    wakes: Vec<mpsc::Receiver<Key>>,
    workers: usize,
}

/// State that the listeners of the watches and the workers share.
struct Shared<O: Operator> {
    cluster: Cluster,
    operator: O,
    objects: Watch<O::Kind>,
    /// Makes sure that [`Operator::synced`] is called only once.
    synced: Once,
    queue: Queue,
    /// Deleted objects, until [`Operator::deleted`] has succeeded.
    tombstones: Tombstones<O::Kind>,
    /// Keys whose watches have not all synced. Sorted, to find those of one namespace.
    held: Mutex<BTreeSet<Key>>,
    /// Pauses before our finalizer is added again to an object from which another client keeps removing it, or removed again.
    truces: Truces,
}

impl<O: Operator> Controller<O> {
    /// A controller of the objects in a watch. It starts with [`Controller::run`].
    pub fn new(cluster: &Cluster, objects: &Watch<O::Kind>, operator: O) -> Controller<O> {
        let shared = Arc::new(Shared {
            cluster: cluster.clone(),
            operator,
            objects: objects.clone(),
            synced: Once::new(),
            queue: Queue::new(fastrand::Rng::new()),
            tombstones: Tombstones::default(),
            held: Mutex::default(),
            truces: Truces::default(),
        });
        let listener = Arc::clone(&shared);
        let listening = objects.listen(move |scope, change| {
            listener.object_changed(scope, change);
            if matches!(change, Change::Synced) {
                listener.report_synced();
            }
        });
        let listening = vec![listening];
        Controller { shared, listening, awaited: Vec::new(), wakes: Vec::new(), workers: WORKERS }
            .awaits(objects)
    }

    /// Sets how many keys are reconciled at a time; at least one.
    #[must_use]
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = workers.max(1);
        self
    }

    /// Also reconciles the keys that come through a channel, for changes outside the cluster: a message, a webhook, a user's
    /// request. For changes without a notification, return [`Next::After`].
    #[must_use]
    pub fn wakes(mut self, keys: mpsc::Receiver<Key>) -> Self {
        self.wakes.push(keys);
        self
    }

    /// When an object of another kind changes, also reconciles every key that `keys_of` returns for that object.
    /// `keys_of` is called for the object before and after the change, so that a removed label or ownerReference counts
    /// too.
    #[must_use]
    pub fn watches<K: Resource, I: IntoIterator<Item = Key>>(
        self,
        watch: &Watch<K>,
        keys_of: impl Fn(&K) -> I + Send + Sync + 'static,
    ) -> Self {
        self.listens(watch, keys_of).awaits(watch)
    }

    /// [`Controller::watches`], without a wait for the watch.
    pub(crate) fn listens<K: Resource, I: IntoIterator<Item = Key>>(
        self,
        watch: &Watch<K>,
        keys_of: impl Fn(&K) -> I + Send + Sync + 'static,
    ) -> Self {
        self.hears(watch, move |found| found.readable().map(|object| keys_of(object)).into_iter().flatten())
    }

    /// Reconciles the keys of each object before and after a change, also of one without its content.
    fn hears<K: Resource, I: IntoIterator<Item = Key>>(
        mut self,
        watch: &Watch<K>,
        keys_of: impl Fn(&Found<K>) -> I + Send + Sync + 'static,
    ) -> Self {
        let (shared, keys_of) = (Arc::clone(&self.shared), Arc::new(keys_of));
        let listening = watch.listen(move |scope, change| {
            let seen = match change {
                Change::Applied { before, after } => [before.as_ref(), Some(after)],
                Change::Deleted { last, .. } => [Some(last), None],
                Change::Synced => {
                    shared.release(scope);
                    [None, None]
                }
                // Reconciles go on with the objects that the Store has.
                Change::Forbidden => [None, None],
            };
            for found in seen.into_iter().flatten() {
                for key in keys_of(found) {
                    shared.queue.add(&key, Urgency::Change);
                }
            }
        });
        self.listening.push(listening);
        self
    }

    /// [`Controller::watches`] for children: objects whose controller ownerReference names one of our objects.
    #[must_use]
    pub fn owns<K: Resource>(self, watch: &Watch<K>) -> Self {
        let objects = self.shared.objects.clone();
        self.hears(watch, move |child| {
            let owner = child.metadata().controller().filter(|owner| owner.is_a::<O::Kind>())?;
            // The owner is in the namespace of the child, or has none.
            let cluster = Key::cluster(&owner.name);
            let has_none = objects.find(&cluster).is_some();
            let namespace = child.metadata().namespace.clone().filter(|_| !has_none);
            Some(Key { namespace, ..cluster })
        })
        .awaits(watch)
    }

    /// Reconciles until `stop` completes. Then takes no more keys, and waits at most 25 s for the running workers. When
    /// dropped, stops at once.
    pub async fn run(mut self, stop: impl Future<Output = ()> + Send) {
        // The watch may have synced before this controller listened.
        self.shared.report_synced();
        for key in self.shared.objects.keys() {
            self.shared.queue.add(&key, Urgency::Backlog);
        }
        let mut stop = pin!(stop);
        let mut wakes = mem::take(&mut self.wakes);
        let mut woken = poll_fn(move |context| {
            for keys in &mut wakes {
                if let Poll::Ready(Some(key)) = keys.poll_recv(context) {
                    return Poll::Ready(key);
                }
            }
            Poll::Pending
        });
        let mut working = JoinSet::new();
        let mut workers = Workers::new(O::Kind::KIND);
        loop {
            tokio::select! {
                // First stop, then handle ended workers, then woken keys, then take a key: the order must be the same in each run
                // of the simulation (`tests/sim`).
                biased;
                () = &mut stop => break,
                Some(ended) = working.join_next_with_id() => workers.finished(ended, &self.shared.queue),
                key = &mut woken => {
                    self.shared.queue.add(&key, Urgency::Change);
                }
                key = self.shared.queue.take(), if working.len() < self.workers => {
                    let shared = Arc::clone(&self.shared);
                    let version = version_of(shared.objects.find(&key).as_ref());
                    let task = match self.readiness(&key) {
                        // Boxed: tokio moves the future of a task ten times, and this one has kilobytes.
                        Readiness::Ready => working.spawn(Box::pin(work(shared, key.clone(), version))),
                        Readiness::Failing(problem) => working.spawn(unwatched(shared, key.clone(), problem)),
                        Readiness::Waiting => {
                            self.shared.queue.done(&key, ReconcileResult::Again(LOOK_AGAIN));
                            continue;
                        }
                    };
                    workers.started(task.id(), key);
                }
            }
        }
        info!(kind = O::Kind::KIND, running = working.len(), "stopping");
        let all = async {
            while let Some(ended) = working.join_next_with_id().await {
                workers.finished(ended, &self.shared.queue);
            }
        };
        if timeout(STOP_LIMIT, all).await.is_err() {
            warn!(
                kind = O::Kind::KIND,
                limit_secs = STOP_LIMIT.as_secs(),
                "stopped before all reconciles were done"
            );
        }
    }
}

/// The task of one worker: reconciles one key.
async fn work<O: Operator>(
    shared: Arc<Shared<O>>,
    key: Key,
    version: Option<SmolStr>,
) -> Result<Next, ReconcileError> {
    timeout(RECONCILE_LIMIT, shared.reconcile(&key, version)).await.unwrap_or_else(|_| {
        Err(format!("the reconcile timed out after {} s", RECONCILE_LIMIT.as_secs()).into())
    })
}

fn version_of<K: Resource>(found: Option<&Found<K>>) -> Option<SmolStr> {
    found.map(|found| found.metadata().resource_version.clone())
}

impl<O: Operator> Shared<O> {
    /// Calls [`Operator::deleted`] if the key has a tombstone, and [`Operator::applied`] or [`Operator::deleting`] if an object
    /// has the key now. `version` is the resourceVersion of the object when its watches were checked.
    async fn reconcile(&self, key: &Key, version: Option<SmolStr>) -> Result<Next, ReconcileError> {
        // If this fails, the new object with that name is still reconciled, so that its status shows problems.
        let deleted = self.reconcile_deleted(key).await;
        let found = self.objects.find(key);
        if version_of(found.as_ref()) != version {
            // The object has changed since that check, and may need other watches now.
            return Ok(Next::After(Duration::ZERO));
        }
        let next = match found {
            Some(Found::Readable(object)) if !self.operator.serves(&object) => Ok(Next::OnChange),
            // Another finalizer keeps the object. A child that is created now would only delay its deletion.
            Some(found)
                if found.metadata().is_terminating() && finalizer_index::<O>(found.metadata()).is_none() =>
            {
                Ok(Next::OnChange)
            }
            Some(Found::Readable(object)) if object.metadata().is_terminating() => {
                self.clean_up(object).await
            }
            Some(Found::Readable(object)) => self.apply(object).await,
            Some(Found::Broken(broken)) => {
                warn!(kind = O::Kind::KIND, %key, broken.error, "is unreadable; its children stay as they are");
                self.operator.unreadable(broken).await.map(|()| Next::OnChange)
            }
            None => Ok(Next::OnChange),
        };
        next.and_then(|next| deleted.map(|()| next))
    }

    /// Calls [`Operator::applied`]. If the finalizer is missing or no longer needed, only adds or removes it: the answer to that patch
    /// changes the Store, and the next reconcile calls `applied`.
    async fn apply(&self, object: Arc<O::Kind>) -> Result<Next, ReconcileError> {
        if let Some(next) = self.keep_finalizer(&object).await? {
            return Ok(next);
        }
        let (key, version) = (object.key(), &object.metadata().resource_version);
        debug!(kind = O::Kind::KIND, %key, %version, "reconciling");
        self.operator.applied(object).await
    }

    /// Calls [`Operator::synced`] once, when the Stores of the operator's own kind have synced.
    fn report_synced(&self) {
        if self.objects.is_synced() {
            self.synced.call_once(|| self.operator.synced(&self.objects));
        }
    }

    /// Adds the key of a changed object to the queue. Objects of the first list have [`Urgency::Backlog`]; later creations,
    /// deletions and new generations [`Urgency::Intent`].
    fn object_changed(&self, scope: &Scope, change: &Change<O::Kind>) {
        match change {
            Change::Applied { before, after } => {
                let urgency = match before {
                    None if !self.objects.is_synced_for(&after.metadata().key()) => Urgency::Backlog,
                    Some(before) if before.metadata().generation == after.metadata().generation => {
                        Urgency::Change
                    }
                    None | Some(_) => Urgency::Intent,
                };
                self.queue.add(&after.metadata().key(), urgency);
            }
            Change::Deleted { last, source } => {
                let key = last.metadata().key();
                if let Some(last) = last.readable() {
                    self.tombstones.add(key.clone(), last, *source);
                }
                self.queue.add(&key, Urgency::Intent);
            }
            Change::Synced => self.release(scope),
            Change::Forbidden => {}
        }
    }
}
