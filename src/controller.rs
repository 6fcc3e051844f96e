//! Connects watches, queue and workers with one [`Operator`].
//!
//! ```text
//!   Change in a Store ─► key of the object or its owner ─► Queue ─► worker ─► Operator::reconcile / deleting ─► writes
//!                                                            ▲                        │
//!                                                            └ after a time or failure ┘
//! ```
//!
//! Reconciling is level-triggered: the queue carries keys and no events, and a worker reads the present object from the
//! Store. So ten events may cause one reconcile, and a missed event does no harm, except for a deletion while the process is
//! stopped: see [`Operator::deleted`].
//!
//! A [`Builder`] opens the watches, and connects them with the queue. With the operator, it becomes a [`Controller`]. Between the queue and
//! the operator are the gates of `controller/gates.rs`: they say what an object needs, if anything.

mod builder;
mod deletions;
mod each;
mod finalizers;
mod gates;
mod operator;
mod plan;
#[cfg(all(test, feature = "testing"))]
mod tests;
mod workers;

use std::{
    collections::{BTreeMap, BTreeSet},
    pin::{Pin, pin},
    sync::{Arc, Mutex, Once},
    time::Duration,
};

use smol_str::SmolStr;
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};
use tracing::{debug, info, warn};

use crate::{
    causes,
    children::{OPERATOR_FAILED, OfOwner, PAUSED, Refusal, Reporter, Stage, Statuses},
    client::Leadership,
    cluster::{Cluster, Readiness, Watch},
    correction_backoff::CorrectionBackoff,
    metrics::{self, Observed, QueueLoad, QueuedKey},
    queue::{Queue, Urgency},
    resource::{
        Key, ObjectMeta, Resource, Scope,
        conditions::Verdict,
        list::{Found, Partial, PartialCause},
        paused,
    },
    store::{Change, Listening},
    traces,
};
pub use builder::Builder;
use deletions::Tombstones;
pub use each::Named;
use each::NamedBy;
use gates::{Awaited, Due, LOOK_AGAIN};
pub use operator::{Cleanup, Operator};
use workers::Workers;

pub use crate::{
    children::Reconcile,
    next::{Next, ReconcileError},
};

/// The target of the lines in the log, also of those that the files of this chapter write.
const LOG: &str = module_path!();
/// Default number of keys that are reconciled at a time.
pub const WORKERS: usize = 8;
/// Longest time for one reconcile: several requests, each with its retries. By default, the deadline of a request is 30 s.
const RECONCILE_LIMIT: Duration = Duration::from_secs(120);
/// How long a stopping controller waits for running reconciles. The kubelet kills a Pod 30 s after SIGTERM.
const STOP_LIMIT: Duration = Duration::from_secs(25);

/// Runs an [`Operator`]. [`Builder::run_by`] makes it.
pub struct Controller<O: Operator> {
    shared: Arc<Shared<O::Kind>>,
    operator: O,
    /// The children, to delete them after their owner.
    children: Vec<Arc<dyn OfOwner>>,
    _listening: Vec<Listening>,
    /// For each watch: whether its Stores have every object that matters for a key.
    awaited: Vec<Box<Awaited>>,
    /// The watches that objects name.
    named: Vec<Box<NamedBy<O::Kind>>>,
    workers: usize,
    leadership: Leadership,
    /// Pauses before our finalizer is added again to an object from which another client keeps removing it, or removed again.
    corrections: CorrectionBackoff,
    /// Held while a worker has an object that is too large to be kept: its content may take megabytes.
    large: tokio::sync::Mutex<()>,
}

/// What the listeners of the watches share with the workers. The [`Builder`] makes it before the operator exists, which has the children
/// that the Builder watches.
struct Shared<K> {
    cluster: Cluster,
    objects: Watch<K>,
    reporter: Arc<Reporter>,
    /// `None`: the kind has no status.
    statuses: Option<Statuses<K>>,
    /// Makes sure that the overview is logged only once.
    synced: Once,
    queue: Queue,
    /// Deleted objects, until the cleanup after them has succeeded.
    tombstones: Tombstones<K>,
    /// Keys whose watches have not all synced. Sorted, to find the keys of one namespace.
    held: Mutex<BTreeSet<Key>>,
}

impl<O: Operator> Controller<O> {
    /// A controller of the objects in a watch, with no children and no status: see [`Builder`] for more. It starts with
    /// [`Controller::run`].
    pub fn new(cluster: &Cluster, objects: &Watch<O::Kind>, operator: O) -> Controller<O> {
        Builder::new(cluster, objects).run_by(operator)
    }

    /// Sets how many keys are reconciled at a time; at least one.
    #[must_use]
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = workers.max(1);
        self
    }

    /// Reconciles only while this leadership is held. The [`Cluster`] must have the same leadership ([`Cluster::led_by`]). When it ends,
    /// the running reconciles are dropped; when it begins, all objects are reconciled, as after a start, those that have failed before at
    /// the end of their pauses.
    #[must_use]
    pub(crate) fn led_by(mut self, leadership: Leadership) -> Self {
        self.leadership = leadership;
        self
    }

    /// Reconciles until `stop` completes. Then takes no more keys, and waits at most 25 s for the running workers. When
    /// dropped, stops at once.
    pub async fn run(self, stop: impl Future<Output = ()> + Send) {
        let controller = Arc::new(self);
        let Controller { shared, leadership, .. } = &*controller;
        // The watch may have synced before this controller listened.
        shared.report_synced();
        let mut stop = pin!(stop);
        let mut working = JoinSet::new();
        let metrics = shared.cluster.metrics().controller(O::Kind::KIND);
        metrics.workers.set(metrics::count(controller.workers));
        let mut workers = Workers::new(O::Kind::KIND, metrics);
        let mut leads = false;
        loop {
            if leads != leadership.is_held() {
                leads = !leads;
                workers.forget_problems();
                match leads {
                    true => {
                        shared.objects.keys().iter().for_each(|key| shared.queue.add(key, Urgency::Backlog))
                    }
                    false => working.abort_all(),
                }
            }
            tokio::select! {
                // First stop, then the leadership, then handle ended workers, then take a key: the order must be the
                // same in each run of the simulation (`tests/sim`).
                biased;
                () = &mut stop => break,
                () = leadership.changes(leads) => {}
                Some(ended) = working.join_next_with_id() => workers.finished(ended, &shared.queue),
                key = shared.queue.take(), if !leads => {
                    // Their watches are open before this process leads.
                    drop(controller.readiness_of(&key, shared.objects.find(&key).as_ref()));
                    shared.leave(&key);
                }
                key = shared.queue.take(), if leads && working.len() < controller.workers => {
                    let controller = Arc::clone(&controller);
                    let found = shared.objects.find(&key);
                    let version = version_of(found.as_ref());
                    let task = match controller.readiness(&key, found.as_ref()) {
                        Readiness::Ready => {
                            // Boxed: tokio moves the future of a task ten times, and this one has kilobytes.
                            let work = Box::pin(controller.work(key.clone(), version));
                            let work = traces::reconcile(O::Kind::KIND, &key, work);
                            working.spawn(causes::reconcile(shared.queue.causes(&key), work))
                        }
                        Readiness::Failing(problem) => working.spawn(controller.unwatched(key.clone(), problem)),
                        Readiness::Waiting => {
                            shared.queue.put_back(&key, Ok(Next::After(LOOK_AGAIN)));
                            continue;
                        }
                    };
                    workers.started(task.id(), key);
                }
            }
        }
        controller.end(workers, working, leads).await;
    }

    /// Waits for the reconciles that run, while this process leads.
    async fn end(
        &self,
        mut workers: Workers,
        mut working: JoinSet<Result<Next, ReconcileError>>,
        mut leads: bool,
    ) {
        info!(kind = O::Kind::KIND, running = working.len(), "stopping");
        let mut limit = pin!(sleep(STOP_LIMIT));
        while !working.is_empty() {
            tokio::select! {
                Some(ended) = working.join_next_with_id() => workers.finished(ended, &self.shared.queue),
                () = self.leadership.changes(true), if leads => {
                    leads = false;
                    working.abort_all();
                }
                () = &mut limit => {
                    let limit_secs = STOP_LIMIT.as_secs();
                    warn!(kind = O::Kind::KIND, limit_secs, "stopped before all reconciles were done");
                    break;
                }
            }
        }
    }
}

/// A reconcile of any operator.
type Reconciling<'a> = Pin<Box<dyn Future<Output = Result<Next, ReconcileError>> + Send + 'a>>;

fn version_of<K: Resource>(found: Option<&Found<K>>) -> Option<SmolStr> {
    found.map(|found| found.metadata().resource_version.clone())
}

impl<O: Operator> Controller<O> {
    /// The task of one worker: reconciles one key.
    async fn work(self: Arc<Self>, key: Key, version: Option<SmolStr>) -> Result<Next, ReconcileError> {
        timeout(RECONCILE_LIMIT, self.reconcile(&key, version)).await.unwrap_or_else(|_| {
            self.shared.cluster.metrics().timed_out(O::Kind::KIND);
            Err(format!("the reconcile timed out after {} s", RECONCILE_LIMIT.as_secs()).into())
        })
    }

    /// Cleans up if the key has a tombstone, and does what is [due](Controller::due) if an object has the key now. `version` is the
    /// resourceVersion of the object when its watches were checked.
    async fn reconcile(&self, key: &Key, version: Option<SmolStr>) -> Result<Next, ReconcileError> {
        // If this fails, the new object with that name is still reconciled, so that its status shows problems.
        let deleted = self.reconcile_deleted(key).await;
        let found = self.shared.objects.find(key);
        if version_of(found.as_ref()) != version {
            // The object has changed since that check, and may need other watches now.
            return deleted.map(|()| Next::After(Duration::ZERO));
        }
        let mut due = self.due(found.as_ref());
        let mut _permit = None;
        if let Due::Read(partial) = &due {
            if partial.cause == PartialCause::TooLarge {
                // The other workers do not wait for it.
                let Ok(permit) = self.large.try_lock() else {
                    return deleted.map(|()| Next::After(LOOK_AGAIN));
                };
                _permit = Some(permit);
            }
            let live = match self.shared.cluster.get_live(key).await {
                Err(error) if error.is_not_found() => return deleted.map(|()| Next::OnChange),
                // It does not decode, either.
                Err(error) if error.code().is_none() && Refusal::of(&error).is_some() => {
                    Found::Partial(Arc::new(Partial {
                        cause: PartialCause::Undecodable,
                        ..Partial::clone(partial)
                    }))
                }
                live => Found::Readable(live?),
            };
            if version_of(Some(&live)) != version {
                return deleted.map(|()| Next::After(LOOK_AGAIN));
            }
            due = self.due(Some(&live));
        }
        let next = self.reconcile_due(key, due).await;
        next.and_then(|next| deleted.map(|()| next))
    }

    /// Does what an object needs. Boxed as its own type, so that the binary has the code of an operator once, not once for each caller.
    fn reconcile_due<'a>(&'a self, key: &'a Key, due: Due<O::Kind>) -> Reconciling<'a> {
        Box::pin(async move {
            match due {
                Due::Nothing => {}
                Due::CleanUp(object) => return self.clean_up(object).await,
                Due::Reconcile(object) => return self.apply(object).await,
                Due::Pause(object) => {
                    let message = format!(
                        "the annotation {} pauses it: nobody looks at its children",
                        paused::<O::Kind>()
                    );
                    self.shared.report(&object, Verdict::unknown(PAUSED, message)).await?;
                }
                // A plan reads no content that is not kept.
                Due::Unreadable(partial) | Due::Read(partial) => {
                    warn!(kind = O::Kind::KIND, %key, error = partial.message, "is unreadable; its children stay as they are");
                    if let Some(statuses) = &self.shared.statuses {
                        (statuses.unreadable)(&self.shared.reporter, &partial).await?;
                    }
                }
            }
            Ok(Next::OnChange)
        })
    }

    /// Calls [`Operator::reconcile`]. If the finalizer is missing or no longer needed, only adds or removes it: the answer to that
    /// patch changes the Store, and the next reconcile calls `reconcile`.
    async fn apply(&self, object: Arc<O::Kind>) -> Result<Next, ReconcileError> {
        if let Some(next) = self.keep_finalizer(&object).await?
            && !self.shared.cluster.client.only_plans()
        {
            return Ok(next);
        }
        let (key, version) = (object.key(), &object.metadata().resource_version);
        debug!(kind = O::Kind::KIND, %key, %version, "reconciling");
        let reconcile = self.shared.reconcile_of(&object);
        let result = match self.operator.reconcile(reconcile.share()).await {
            Ok(next) => reconcile.unreported().map(|at_latest| next.or_sooner(at_latest)),
            Err(error) => error.early_end(),
        };
        if let Err(error) = &result
            && error.client().is_none()
        {
            // Not one of a request: a retry usually solves that, and `finish` has reported it otherwise.
            self.shared.try_to_report(&object, Verdict::no(OPERATOR_FAILED, error.to_string())).await;
        }
        result
    }
}

impl<K: Resource> Observed for Shared<K> {
    fn kind(&self) -> &'static str {
        K::KIND
    }

    fn load(&self) -> QueueLoad {
        self.queue.load()
    }

    fn queued(&self) -> Vec<QueuedKey> {
        self.queue.keys()
    }

    fn conditions(&self) -> BTreeMap<[SmolStr; 3], i64> {
        self.statuses.as_ref().map(|statuses| statuses.count_conditions(&self.objects)).unwrap_or_default()
    }
}

impl<K: Resource> Shared<K> {
    /// A reconcile of an object.
    fn reconcile_of(&self, object: &Arc<K>) -> Reconcile<K> {
        // Without a status, nothing says that it is new.
        let stage = self.statuses.as_ref().map_or(Stage::Settled, |statuses| (statuses.stage)(object));
        Reconcile::new(&self.reporter, object, stage)
    }

    /// Leaves a key to the process that leads. So what a standby holds does not grow with the objects that come and go.
    fn leave(&self, key: &Key) {
        for last in self.tombstones.take(key) {
            self.reporter.forget(&last.metadata().uid);
        }
        self.queue.put_back(key, Ok(Next::OnChange));
    }

    /// Logs the overview once, when the Stores of the operator's own kind have synced.
    fn report_synced(&self) {
        if let Some(statuses) = &self.statuses
            && self.objects.is_synced()
        {
            self.synced.call_once(|| statuses.overview(&self.objects));
        }
    }

    /// Reports why an object is not reconciled.
    async fn report(&self, object: &Arc<K>, ready: Verdict) -> Result<(), ReconcileError> {
        match &self.statuses {
            Some(statuses) => (statuses.unreconciled)(self.reconcile_of(object), ready).await,
            None => Ok(()),
        }
    }

    /// The same, if the API server accepts the report soon.
    async fn try_to_report(&self, object: &Arc<K>, ready: Verdict) {
        let reason = ready.reason.clone();
        let reported = self.report(object, ready);
        if let Ok(Ok(())) = timeout(RECONCILE_LIMIT, reported).await {
            return;
        }
        debug!(kind = K::KIND, key = %object.key(), %reason, "cannot report why the object is not reconciled");
    }

    /// Adds the key of a changed object to the queue. Objects of the first list have [`Urgency::Backlog`]; later creations,
    /// deletions and new generations [`Urgency::Intent`].
    fn object_changed(&self, scope: &Scope, change: &Change<K>) {
        match change {
            Change::Applied { before, after } => {
                if before.is_none() {
                    self.cluster.created_by_another(after.metadata());
                }
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
                if self.cluster.shard.has(&last.metadata().uid) {
                    self.tombstones.add(key.clone(), last, *source);
                }
                self.queue.add(&key, Urgency::Intent);
            }
            Change::Synced => self.release(scope),
            Change::Forbidden => {}
        }
    }

    /// Adds the keys of an object of another kind, as it was before a change and as it is after it, to the queue.
    fn other_changed<C: Resource, I: IntoIterator<Item = Key>>(
        &self,
        scope: &Scope,
        change: &Change<C>,
        keys_of: &impl Fn(&Found<C>) -> I,
    ) {
        let seen = match change {
            Change::Applied { before, after } => [before.as_ref(), Some(after)],
            Change::Deleted { last, .. } => [Some(last), None],
            Change::Synced => return self.release(scope),
            // Reconciles go on with the objects that the Store has.
            Change::Forbidden => return,
        };
        for key in seen.into_iter().flatten().flat_map(keys_of) {
            self.queue.add(&key, Urgency::Change);
        }
    }

    /// The key of our object that controls a child.
    fn owner_of(&self, child: &ObjectMeta) -> Option<Key> {
        let owner = child.controller().filter(|owner| owner.is_a::<K>())?;
        // The owner is in the namespace of the child, or has none.
        let cluster = Key::cluster(&owner.name);
        let has_none = self.objects.find(&cluster).is_some();
        let namespace = child.namespace.clone().filter(|_| !has_none);
        Some(Key { namespace, ..cluster })
    }
}
