//! Ties watches, queue and workers to one [`Operator`].
//!
//! ```text
//!   Change in a Store ─► whose key is it? ─► Queue ─► worker ─► Operator::applied / deleted ─► writes
//!                                              ▲                        │
//!                                              └── later, again, failed ┘
//! ```
//!
//! The event wakes, the state decides: the queue carries keys, and a worker looks into the Store for what is there now.
//! So ten events are one reconcile, and a lost event is none that matters.

use std::{
    collections::{BTreeSet, HashMap},
    pin::pin,
    sync::{Arc, Mutex, Once},
    time::Duration,
};

use tokio::{
    task::{self, JoinSet},
    time::timeout,
};
use tracing::{debug, error, info, warn};

use crate::{
    client::Error,
    cluster::{Cluster, Watch},
    locked,
    queue::{Outcome, Queue, Urgency},
    resource::{Key, Meta, Resource, Scope, list::Broken},
    store::{Change, Found, Sighting},
};

/// Keys that are worked on at a time, unless told otherwise.
pub const WORKERS: usize = 8;
/// One reconcile may take this long: several requests, each with its own shorter deadline and its retries.
const RECONCILE_LIMIT: Duration = Duration::from_secs(120);
/// How long to wait, when stopping, for what is in hand. Kubernetes kills a Pod 30 s after it asked it to stop.
const STOP_LIMIT: Duration = Duration::from_secs(25);

/// Makes the cluster look as objects of one kind ask for.
///
/// Implementations write plain `async fn`. Each method may be called again at any time, with nothing to do, and may be
/// stopped at any `.await`.
pub trait Operator: Send + Sync + 'static {
    /// What it acts on.
    type Kind: Resource;

    /// ADDED, MODIFIED, or looked at again: it exists and is wanted. Never called with a deletionTimestamp.
    fn applied(&self, object: Arc<Self::Kind>) -> impl Future<Output = Result<Next, Error>> + Send;

    /// DELETED: gone, as last known. A deletion that was only inferred was confirmed by a live GET.
    fn deleted(&self, last: Arc<Self::Kind>) -> impl Future<Output = Result<(), Error>> + Send {
        let _ = last;
        async { Ok(()) }
    }

    /// All objects are known, for the first time: the place to log how they are.
    fn synced(&self, objects: &Watch<Self::Kind>) {
        let _ = objects;
    }

    /// It exists, but does not decode: the place to tell its author so.
    fn unreadable(&self, object: Arc<Broken>) -> impl Future<Output = Result<(), Error>> + Send {
        let _ = object;
        async { Ok(()) }
    }
}

/// When to look at an object that is as it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// When it, or something it owns, changes.
    OnChange,
    /// After this time too.
    After(Duration),
}

/// An [`Operator`] at work.
pub struct Controller<O: Operator> {
    cluster: Cluster,
    operator: Arc<O>,
    desk: Arc<Desk<O::Kind>>,
    /// Whether a watch knows all there is where a key is.
    synced: Vec<Box<IsSynced>>,
    workers: usize,
}

type IsSynced = dyn Fn(&Key) -> bool + Send + Sync;

/// Where changes are brought to, and workers take from.
struct Desk<K> {
    objects: Watch<K>,
    queue: Queue,
    /// Objects that are gone, until the operator has been told.
    gone: Mutex<HashMap<Key, Gone<K>>>,
    /// Keys that need work where not everything is known yet, in order.
    held: Mutex<BTreeSet<Key>>,
}

/// What the workers are at.
#[derive(Default)]
struct InHand {
    keys: HashMap<task::Id, Key>,
    /// What failed last about a key, so that the log says it once and not at each attempt.
    problems: HashMap<Key, String>,
}

struct Gone<K> {
    last: Arc<K>,
    sighting: Sighting,
}

impl<O: Operator> Controller<O> {
    /// A controller of the objects in a watch. Nothing is done before [`Controller::run`].
    pub fn new(cluster: &Cluster, objects: &Watch<O::Kind>, operator: O) -> Controller<O> {
        let desk = Arc::new(Desk {
            objects: objects.clone(),
            queue: Queue::new(fastrand::Rng::new()),
            gone: Mutex::default(),
            held: Mutex::default(),
        });
        let operator = Arc::new(operator);
        // Weak, here and below: what listens must not keep alive what it listens to.
        let (listener, listening_operator) = (Arc::downgrade(&desk), Arc::downgrade(&operator));
        let synced = Arc::new(Once::new());
        objects.listen(move |scope, change| {
            let Some(desk) = listener.upgrade() else { return };
            desk.object_changed(scope, change);
            if matches!(change, Change::Synced)
                && desk.objects.is_synced()
                && let Some(operator) = listening_operator.upgrade()
            {
                synced.call_once(|| operator.synced(&desk.objects));
            }
        });
        let controller =
            Controller { cluster: cluster.clone(), operator, desk, synced: Vec::new(), workers: WORKERS };
        controller.awaits(objects)
    }

    /// Works on so many keys at a time; at least on one.
    #[must_use]
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = workers.max(1);
        self
    }

    /// Looks at the objects that `wakes` names whenever something else changes. `wakes` sees it both before and after a
    /// change, so that a lost label or owner wakes too.
    #[must_use]
    pub fn also<K: Resource, I: IntoIterator<Item = Key>>(
        self,
        watch: &Watch<K>,
        wakes: impl Fn(&K) -> I + Send + Sync + 'static,
    ) -> Self {
        let (listener, wakes) = (Arc::downgrade(&self.desk), Arc::new(wakes));
        watch.listen(move |scope, change| {
            let Some(desk) = listener.upgrade() else { return };
            let seen = match change {
                Change::Applied { before, after } => [before.as_ref(), Some(after)],
                Change::Deleted { last, .. } => [Some(last), None],
                Change::Synced => {
                    desk.release(scope);
                    [None, None]
                }
            };
            for object in seen.into_iter().flatten().filter_map(Found::readable) {
                for key in wakes(object) {
                    desk.queue.add(&key, Urgency::Change);
                }
            }
        });
        self.awaits(watch)
    }

    /// [`Controller::also`] for what our objects own as its controller.
    #[must_use]
    pub fn owns<K: Resource>(self, watch: &Watch<K>) -> Self {
        self.also(watch, |child| {
            let owner = child.metadata().controller().filter(|owner| owner.is_a::<O::Kind>());
            owner.map(|owner| Key { namespace: child.metadata().namespace.clone(), name: owner.name.clone() })
        })
    }

    /// Nothing is done about a key before this watch knows all there is in its namespace.
    fn awaits<K: Resource>(mut self, watch: &Watch<K>) -> Self {
        let watch = watch.clone();
        self.synced.push(Box::new(move |key| watch.is_synced_for(key)));
        self
    }

    /// Works until `stop`; then takes no more and awaits what runs, at most 25 s. Dropped: stops at once.
    pub async fn run(self, stop: impl Future<Output = ()> + Send) {
        for key in self.desk.objects.keys() {
            self.desk.queue.add(&key, Urgency::Backlog);
        }
        let mut stop = pin!(stop);
        let mut working = JoinSet::new();
        let mut in_hand = InHand::default();
        loop {
            tokio::select! {
                // Stop before more work, and put back what is done before taking more: so one order of events is one history.
                biased;
                () = &mut stop => break,
                Some(ended) = working.join_next_with_id() => self.put_back(ended, &mut in_hand),
                key = self.desk.queue.take(), if working.len() < self.workers => {
                    if self.is_ready(&key) {
                        let work = work(Arc::clone(&self.desk), self.cluster.clone(), Arc::clone(&self.operator), key.clone());
                        in_hand.keys.insert(working.spawn(work).id(), key);
                    }
                }
            }
        }
        info!(kind = O::Kind::KIND, in_hand = working.len(), "stopping");
        let all = async {
            while let Some(ended) = working.join_next_with_id().await {
                self.put_back(ended, &mut in_hand);
            }
        };
        if timeout(STOP_LIMIT, all).await.is_err() {
            warn!(
                kind = O::Kind::KIND,
                limit_secs = STOP_LIMIT.as_secs(),
                "stopped before all work in hand was done"
            );
        }
    }

    /// Whether all is known that there is in the key's namespace. If not, the key is held until it is.
    fn is_ready(&self, key: &Key) -> bool {
        // Held first and asked then, so that a sync in between finds it.
        locked(&self.desk.held).insert(key.clone());
        let is_ready = self.synced.iter().all(|is_synced| is_synced(key));
        if is_ready {
            locked(&self.desk.held).remove(key);
        } else {
            self.desk.queue.done(key, Outcome::Done);
        }
        is_ready
    }

    /// The work on a key has ended: it decides when there is more.
    fn put_back(&self, ended: Ended, in_hand: &mut InHand) {
        let (id, result) = match ended {
            Ok((id, result)) => (id, result),
            // A panic is that key's failure, and nobody else's.
            Err(join) => {
                let id = join.id();
                error!(kind = O::Kind::KIND, key = in_hand.keys.get(&id).map(tracing::field::display), %join, "reconcile panicked");
                (id, Err(Error::new("reconcile", O::Kind::KIND, "it panicked")))
            }
        };
        let Some(key) = in_hand.keys.remove(&id) else { return };
        let outcome = match &result {
            Ok(Next::OnChange) => Outcome::Done,
            Ok(Next::After(time)) => Outcome::Again(*time),
            Err(error) => Outcome::Failed { at_least: error.retry_after().unwrap_or_default() },
        };
        let pause = self.desk.queue.done(&key, outcome);
        let Err(error) = result else {
            in_hand.problems.remove(&key);
            return;
        };
        let (kind, retry_ms) =
            (O::Kind::KIND, pause.map(|pause| u64::try_from(pause.as_millis()).unwrap_or(u64::MAX)));
        let problem = error.to_string();
        if error.is_conflict() || error.is_not_found() {
            // Somebody else wrote or deleted in the meantime.
            debug!(kind, %key, retry_ms, problem, "read again and decide again");
        } else if in_hand.problems.get(&key) == Some(&problem) {
            debug!(kind, %key, retry_ms, problem, "reconcile failed again");
        } else {
            warn!(kind, %key, retry_ms, problem, "reconcile failed; trying again");
            in_hand.problems.insert(key, problem);
        }
    }
}

type Ended = Result<(task::Id, Result<Next, Error>), task::JoinError>;

/// What one worker does with one key.
async fn work<O: Operator>(
    desk: Arc<Desk<O::Kind>>,
    cluster: Cluster,
    operator: Arc<O>,
    key: Key,
) -> Result<Next, Error> {
    match timeout(RECONCILE_LIMIT, reconcile(&desk, &cluster, &*operator, &key)).await {
        Ok(result) => result,
        Err(_) => {
            let limit = format!("not done after {} s", RECONCILE_LIMIT.as_secs());
            Err(Error::new("reconcile", format!("{}/{key}", O::Kind::PLURAL), limit))
        }
    }
}

/// Compares what is with what was known, and calls the operator accordingly.
async fn reconcile<O: Operator>(
    desk: &Desk<O::Kind>,
    cluster: &Cluster,
    operator: &O,
    key: &Key,
) -> Result<Next, Error> {
    // Where this fails, an object that has the name now is looked at all the same, so that it says what is wrong.
    let deleted = reconcile_gone(desk, cluster, operator, key).await;
    let next = match desk.objects.find(key) {
        // It goes as soon as its children and finalizers are done: whatever we made now, it would have to wait for.
        Some(found) if found.metadata().is_terminating() => Ok(Next::OnChange),
        Some(Found::Readable(object)) => {
            debug!(kind = O::Kind::KIND, %key, version = %object.metadata().resource_version, "applied");
            operator.applied(object).await
        }
        Some(Found::Broken(broken)) => {
            warn!(kind = O::Kind::KIND, %key, broken.error, "not readable; its children stay as they are");
            operator.unreadable(broken).await.map(|()| Next::OnChange)
        }
        None => Ok(Next::OnChange),
    };
    next.and_then(|next| deleted.map(|()| next))
}

async fn reconcile_gone<O: Operator>(
    desk: &Desk<O::Kind>,
    cluster: &Cluster,
    operator: &O,
    key: &Key,
) -> Result<(), Error> {
    let Some((last, sighting)) = desk.gone(key) else { return Ok(()) };
    // Where a selector filters, DELETED only says that the object left the selection.
    let is_certain = sighting == Sighting::Event && !desk.objects.is_filtered();
    if is_certain || is_gone(cluster, &*last).await? {
        debug!(kind = O::Kind::KIND, %key, "deleted");
        operator.deleted(Arc::clone(&last)).await?;
    }
    desk.forget(key, &last);
    Ok(())
}

/// A list that did not have an object is not proof: it may have been another server's, or another selector's. Nor is a
/// kind that is not served: a server that has just started may not serve it yet.
async fn is_gone<K: Resource>(cluster: &Cluster, last: &K) -> Result<bool, Error> {
    match cluster.get_live::<Meta<K>>(&last.key()).await {
        Ok(live) => Ok(live.metadata.uid != last.metadata().uid),
        Err(error) if error.is_not_found() => Ok(true),
        Err(error) => Err(error),
    }
}

impl<K: Resource> Desk<K> {
    fn object_changed(&self, scope: &Scope, change: &Change<K>) {
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
            Change::Deleted { last, sighting } => {
                let key = last.metadata().key();
                if let Some(last) = last.readable() {
                    locked(&self.gone)
                        .insert(key.clone(), Gone { last: Arc::clone(last), sighting: *sighting });
                }
                self.queue.add(&key, Urgency::Intent);
            }
            Change::Synced => self.release(scope),
        }
    }

    /// A watch of this scope has synced: what was held there may be ready. Elsewhere nothing has changed; with thousands of
    /// scopes, asking everywhere at each sync would take minutes.
    fn release(&self, scope: &Scope) {
        let released: Vec<Key> = match &scope.namespace {
            None => std::mem::take(&mut *locked(&self.held)).into_iter().collect(),
            Some(namespace) => {
                let after = format!("{namespace}\0");
                let inside = Key::namespaced(namespace, "")..Key::namespaced(&after, "");
                locked(&self.held).extract_if(inside, |_| true).collect()
            }
        };
        for key in released {
            self.queue.add(&key, Urgency::Backlog);
        }
    }

    fn gone(&self, key: &Key) -> Option<(Arc<K>, Sighting)> {
        locked(&self.gone).get(key).map(|gone| (Arc::clone(&gone.last), gone.sighting))
    }

    /// The operator has been told, unless yet another object of that name has gone since.
    fn forget(&self, key: &Key, last: &Arc<K>) {
        let mut gone = locked(&self.gone);
        if gone.get(key).is_some_and(|known| Arc::ptr_eq(&known.last, last)) {
            gone.remove(key);
        }
    }
}
