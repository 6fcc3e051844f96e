//! The workqueue: the keys that must be reconciled, and how long a key waits after a failed reconcile.
//!
//! ```text
//!        add ┌─────────┐ take ┌────────────┐ done
//!      ─────►│ waiting │─────►│ processing │─────► removed, or later, or waiting again
//!            └─────────┘      └────────────┘
//! ```
//!
//! - A key waits only once, however often it is added, with its highest [`Urgency`].
//! - Only one worker processes a key at a time. If the key is added meanwhile, it waits again after `done`.
//! - The order is by urgency, then first in, first out. After [`INTENTS_IN_A_ROW_MAX`] intents, another key is next.
//! - A key that failed waits longer each time. Only a new intent ([`Urgency::Intent`]) ends the wait early. Other events do
//!   not: a worker that writes something and then fails would cause its own next attempt, without end.
//! - A key whose pause is over waits for a worker like any other, with [`Urgency::Change`].

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    mem,
    sync::Mutex,
    time::Duration,
};

use http::HeaderValue;
use tokio::{sync::Notify, time::Instant};

use crate::{
    backoff::Backoff,
    causes::Causes,
    locked,
    metrics::{QueueLoad, QueueMetrics, QueuedKey},
    next::Next,
    resource::Key,
};

/// The pause between two attempts at one key. The first pause is short, for conflicts that the next event resolves. The cap is the longest
/// time until a retry after somebody has removed the cause of a failure: 30 s, as for watches.
const BACKOFF: Backoff = Backoff { first: Duration::from_millis(200), cap: Duration::from_secs(30) };
/// With more keys in `later` than 1,200, the cap is this for each, up to [`CAP_MAX`]. So 2,400 keys that fail together, as while a webhook
/// is down, cause no more attempts than 1,200: fifty a second.
const CAP_EACH: Duration = Duration::from_millis(25);
const CAP_MAX: Duration = Duration::from_secs(60);

/// The longest pause that an operator can ask for. A time that is too far away does not fit into an `Instant`.
const PAUSE_MAX: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// Intents handed out in a row while other keys wait. Intents go first because a user waits for them. Without a limit,
/// drift would stay uncorrected while users keep creating objects. With 16, one key in 17 is not an intent.
const INTENTS_IN_A_ROW_MAX: u32 = 16;

/// A rate-limiting workqueue of keys.
#[derive(Debug, Default)]
pub struct Queue {
    state: Mutex<QueueState>,
    wake: Notify,
}

#[derive(Debug, Default)]
struct QueueState {
    /// Every key in the queue. A BTreeMap frees memory when it shrinks; a hash table would keep the size of the start, when all
    /// keys wait.
    queued: BTreeMap<Key, Queued>,
    /// The keys that wait for a worker, in order.
    waiting: BTreeMap<Position, Key>,
    later: BTreeSet<(Instant, Key)>,
    /// The number of the last position.
    positions: u64,
    /// Intents taken since the last key of another urgency.
    intents_in_a_row: u32,
    random: fastrand::Rng,
    metrics: QueueMetrics,
}

/// A position among the waiting keys: by urgency, then by the order of [`Queue::add`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Position {
    urgency: Reverse<Urgency>,
    number: u64,
}

#[derive(Debug)]
struct Queued {
    state: KeyState,
    since: Instant,
    /// Failures in a row.
    failures: u32,
    /// The last failure.
    problem: String,
    /// What has added it since a worker last got it.
    causes: Causes,
    /// What had added it before the worker got it that has it now.
    causes_of_work: Causes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeyState {
    /// In `waiting`.
    Waiting(Position),
    /// In `later`, after a success.
    Later(Instant),
    /// In `later`, after a failure.
    BackingOff(Instant),
    /// With a worker.
    Processing,
    /// With a worker, and added again since then.
    ProcessingAndDirty(Urgency, Instant),
}

/// Why a key must be reconciled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    /// The object existed when the controller started, or it waited for a watch to sync.
    Backlog,
    /// The object's status or metadata, or a child of it, changed.
    Change,
    /// A user changed the spec (a new generation), or created or deleted the object.
    Intent,
}

impl Queue {
    /// An empty queue, with `random` for the jitter of its pauses.
    #[must_use]
    pub fn new(random: fastrand::Rng) -> Queue {
        Queue { state: Mutex::new(QueueState { random, ..QueueState::default() }), wake: Notify::new() }
    }

    /// Counts here from now on.
    pub(crate) fn measured_by(self, metrics: QueueMetrics) -> Queue {
        locked(&self.state).metrics = metrics;
        self
    }

    /// How much there is to do.
    pub(crate) fn load(&self) -> QueueLoad {
        let state = locked(&self.state);
        let is_processing = |queued: &&Queued| {
            matches!(queued.state, KeyState::Processing | KeyState::ProcessingAndDirty(..))
        };
        let processing = state.queued.values().filter(is_processing).map(|queued| queued.since.elapsed());
        QueueLoad { waiting: state.waiting.len(), processing: processing.collect() }
    }

    /// Each key in the queue.
    pub(crate) fn keys(&self) -> Vec<QueuedKey> {
        let now = Instant::now();
        let state = locked(&self.state);
        state.queued.iter().map(|(key, queued)| queued.look(key, now)).collect()
    }

    /// Why the last attempt at a key failed.
    pub(crate) fn explain(&self, key: &Key, problem: &str) {
        if let Some(queued) = locked(&self.state).queued.get_mut(key) {
            problem.clone_into(&mut queued.problem);
        }
    }

    /// Adds a key, or raises the urgency of one that waits.
    pub fn add(&self, key: &Key, urgency: Urgency) {
        let is_ready = {
            let mut state = locked(&self.state);
            let is_ready = state.add(key, urgency);
            if let Some(queued) = state.queued.get_mut(key) {
                queued.causes.add(if urgency == Urgency::Backlog { "start" } else { "call" });
            }
            is_ready
        };
        if is_ready {
            self.wake.notify_one();
        }
    }

    /// What had added the key that a worker has now, as its reconcile names it.
    pub(crate) fn causes(&self, key: &Key) -> Option<HeaderValue> {
        locked(&self.state).queued.get(key)?.causes_of_work.header()
    }

    /// Waits for the next key. The caller processes it until [`Queue::done`].
    ///
    /// For one caller at a time. Cancel safe.
    pub async fn take(&self) -> Key {
        loop {
            let next_due = {
                let mut state = locked(&self.state);
                if let Some(key) = state.take(Instant::now()) {
                    return key;
                }
                state.later.first().map(|(due, _)| *due)
            };
            match next_due {
                None => self.wake.notified().await,
                Some(due) => tokio::select! {
                    biased;
                    () = self.wake.notified() => {}
                    () = tokio::time::sleep_until(due) => {}
                },
            }
        }
    }

    /// Ends the processing of a key. `again`: when it waits again, if it is not added before; after a failure, the shortest pause, to
    /// which a backoff is added. Returns the pause.
    pub fn done(&self, key: &Key, again: Result<Next, Duration>) -> Option<Duration> {
        let now = Instant::now();
        let mut state = locked(&self.state);
        state.measure(key, again, now);
        let pause = state.done(key, again, now);
        drop(state);
        self.wake.notify_one();
        pause
    }

    /// [`Queue::done`] for a key that nobody has worked on: it is not measured.
    pub(crate) fn put_back(&self, key: &Key, again: Result<Next, Duration>) {
        let mut state = locked(&self.state);
        if let Some(queued) = state.queued.get_mut(key) {
            queued.causes.put_back(&mut queued.causes_of_work);
        }
        state.done(key, again, Instant::now());
        drop(state);
        self.wake.notify_one();
    }
}

impl Queued {
    fn look(&self, key: &Key, now: Instant) -> QueuedKey {
        let (state, due) = match self.state {
            KeyState::Waiting(_) => ("waiting", None),
            KeyState::Later(due) => ("later", Some(due)),
            KeyState::BackingOff(due) => ("backing off", Some(due)),
            KeyState::Processing | KeyState::ProcessingAndDirty(..) => ("processing", None),
        };
        QueuedKey {
            key: key.clone(),
            state,
            since: now.duration_since(self.since),
            due: due.map(|due| due.duration_since(now)),
            failures: self.failures,
            problem: self.problem.clone(),
        }
    }
}

impl QueueState {
    /// Returns whether the key now waits, or waits with a higher urgency.
    fn add(&mut self, key: &Key, urgency: Urgency) -> bool {
        let mut since = None;
        if let Some(queued) = self.queued.get_mut(key) {
            match queued.state {
                KeyState::Waiting(position) if position.urgency.0 >= urgency => return false,
                KeyState::BackingOff(_) if urgency < Urgency::Intent => return false,
                KeyState::Processing => {
                    queued.state = KeyState::ProcessingAndDirty(urgency, Instant::now());
                    self.metrics.adds.inc();
                    return false;
                }
                KeyState::ProcessingAndDirty(known, since) => {
                    queued.state = KeyState::ProcessingAndDirty(known.max(urgency), since);
                    return false;
                }
                KeyState::Waiting(position) => {
                    since = Some(queued.since);
                    self.waiting.remove(&position);
                }
                KeyState::Later(due) | KeyState::BackingOff(due) => {
                    self.later.remove(&(due, key.clone()));
                }
            }
        }
        if since.is_none() {
            self.metrics.adds.inc();
        }
        self.wait(key.clone(), urgency, since.unwrap_or_else(Instant::now), (0, String::new()));
        true
    }

    /// Puts a key after all others of its urgency.
    fn wait(&mut self, key: Key, urgency: Urgency, since: Instant, (failures, problem): (u32, String)) {
        self.positions += 1;
        let position = Position { urgency: Reverse(urgency), number: self.positions };
        let state = KeyState::Waiting(position);
        let causes =
            self.queued.get_mut(&key).map(|queued| mem::take(&mut queued.causes)).unwrap_or_default();
        let queued = Queued { state, since, failures, problem, causes, causes_of_work: Causes::default() };
        self.queued.insert(key.clone(), queued);
        self.waiting.insert(position, key);
    }

    fn take(&mut self, now: Instant) -> Option<Key> {
        while self.later.first().is_some_and(|(due, _)| *due <= now) {
            let (_, key) = self.later.pop_first()?;
            let failed = self.queued.get_mut(&key);
            let failed = failed.map(|queued| (queued.failures, mem::take(&mut queued.problem)));
            self.metrics.adds.inc();
            let failed = failed.unwrap_or_default();
            let has_failed = failed.0 > 0;
            self.wait(key.clone(), Urgency::Change, now, failed);
            if let Some(queued) = self.queued.get_mut(&key) {
                queued.causes.add_end_of_pause(has_failed);
            }
        }
        let first = *self.waiting.first_key_value()?.0;
        let position = if self.intents_in_a_row < INTENTS_IN_A_ROW_MAX {
            first
        } else {
            let no_intent = Position { urgency: Reverse(Urgency::Change), number: 0 };
            self.waiting.range(no_intent..).next().map_or(first, |(position, _)| *position)
        };
        let key = self.waiting.remove(&position)?;
        self.intents_in_a_row = match position.urgency.0 {
            Urgency::Intent => self.intents_in_a_row.saturating_add(1),
            Urgency::Backlog | Urgency::Change => 0,
        };
        if let Some(queued) = self.queued.get_mut(&key) {
            queued.state = KeyState::Processing;
            queued.causes_of_work = mem::take(&mut queued.causes);
            let waited = now.duration_since(mem::replace(&mut queued.since, now));
            self.metrics.waits.observe(waited.as_secs_f64());
        }
        Some(key)
    }

    /// Counts the end of the processing of a key.
    fn measure(&self, key: &Key, again: Result<Next, Duration>, now: Instant) {
        let Some(queued) = self.queued.get(key) else { return };
        self.metrics.works.observe(now.duration_since(queued.since).as_secs_f64());
        if again != Ok(Next::OnChange) {
            self.metrics.retries.inc();
        }
    }

    fn done(&mut self, key: &Key, again: Result<Next, Duration>, now: Instant) -> Option<Duration> {
        let queued = self.queued.get_mut(key)?;
        let added = match queued.state {
            KeyState::ProcessingAndDirty(urgency, since) => Some((urgency, since)),
            KeyState::Processing | KeyState::Waiting(_) | KeyState::Later(_) | KeyState::BackingOff(_) => {
                None
            }
        };
        let pause = match (again, added) {
            (_, Some((urgency @ Urgency::Intent, since))) | (Ok(_), Some((urgency, since))) => {
                self.wait(key.clone(), urgency, since, (0, String::new()));
                return None;
            }
            (Ok(Next::OnChange), None) => {
                self.queued.remove(key);
                return None;
            }
            (Ok(Next::After(pause)), None) => {
                let pause = pause.min(PAUSE_MAX);
                let state = KeyState::Later(now + pause);
                (queued.state, queued.since, queued.failures) = (state, now, 0);
                queued.problem.clear();
                pause
            }
            (Err(at_least), _) => {
                queued.failures = queued.failures.saturating_add(1);
                let crowd = CAP_EACH.saturating_mul(u32::try_from(self.later.len()).unwrap_or(u32::MAX));
                let backoff = Backoff { cap: crowd.clamp(BACKOFF.cap, CAP_MAX), ..BACKOFF };
                let pause = backoff.pause(queued.failures, at_least.min(PAUSE_MAX), &mut self.random);
                (queued.state, queued.since) = (KeyState::BackingOff(now + pause), now);
                pause
            }
        };
        self.later.insert((now + pause, key.clone()));
        Some(pause)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::metrics::{Metrics, TextFormat};

    fn key(name: &str) -> Key {
        Key::namespaced("default", name)
    }

    fn queue() -> Queue {
        Queue::new(fastrand::Rng::with_seed(1))
    }

    /// The next key, if one is ready now.
    async fn take_now(queue: &Queue) -> Option<String> {
        tokio::select! {
            biased;
            key = queue.take() => Some(key.name.to_string()),
            () = std::future::ready(()) => None,
        }
    }

    const FAILED: Result<Next, Duration> = Err(Duration::ZERO);
    const DONE: Result<Next, Duration> = Ok(Next::OnChange);

    #[tokio::test(start_paused = true)]
    async fn keys_come_once_in_order_and_changes_before_the_backlog() {
        let queue = queue();
        for name in ["a", "b"] {
            queue.add(&key(name), Urgency::Backlog);
        }
        for name in ["c", "d", "c", "a"] {
            queue.add(&key(name), Urgency::Change);
        }
        for name in ["c", "d", "a", "b"] {
            assert_eq!(take_now(&queue).await.as_deref(), Some(name));
        }
        assert_eq!(take_now(&queue).await, None);
    }

    /// The key kept its place behind all others of a start, however many those were.
    #[tokio::test(start_paused = true)]
    async fn a_change_lifts_a_key_out_of_the_backlog() {
        let queue = queue();
        for name in ["a", "b", "c", "d"] {
            queue.add(&key(name), Urgency::Backlog);
        }
        queue.add(&key("e"), Urgency::Change);
        queue.add(&key("d"), Urgency::Change);
        queue.add(&key("c"), Urgency::Intent);
        queue.add(&key("c"), Urgency::Change);
        for name in ["c", "e", "d", "a", "b"] {
            assert_eq!(take_now(&queue).await.as_deref(), Some(name));
        }
        assert_eq!(take_now(&queue).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn each_key_shows_its_state_since_when_and_why() {
        let metrics = Metrics::default();
        let queue = queue().measured_by(metrics.queue("Note"));
        for name in ["a", "b", "c", "d"] {
            queue.add(&key(name), Urgency::Change);
        }
        for _ in 0..3 {
            take_now(&queue).await;
        }
        tokio::time::advance(Duration::from_secs(5)).await;
        queue.add(&key("d"), Urgency::Intent);
        queue.done(&key("a"), FAILED);
        queue.explain(&key("a"), "no disk");
        queue.done(&key("b"), Ok(Next::After(Duration::from_secs(60))));
        tokio::time::advance(Duration::from_millis(1)).await;
        let shown = queue.keys().into_iter().map(|queued| {
            let QueuedKey { key, state, since, due, failures, problem, .. } = queued;
            (key.name.to_string(), state, since.as_secs(), due.is_some(), failures, problem)
        });
        let row = |name: &str, state, since, due, failures, problem: &str| {
            (name.to_owned(), state, since, due, failures, problem.to_owned())
        };
        let expected = [
            row("a", "backing off", 0, true, 1, "no disk"),
            row("b", "later", 0, true, 0, ""),
            row("c", "processing", 5, false, 0, ""),
            row("d", "waiting", 5, false, 0, ""),
        ];
        assert_eq!(shown.collect::<Vec<_>>(), expected);
        let QueueMetrics { adds, retries, .. } = metrics.queue("Note");
        assert_eq!((adds.get(), retries.get()), (4, 2));
        let QueueLoad { waiting, processing } = queue.load();
        assert_eq!((waiting, processing.len()), (1, 1));
        let text = metrics.text(TextFormat::Prometheus, Vec::new(), 0).expect("text");
        let worked = "workqueue_work_duration_seconds_sum{name=\"note\",controller=\"note\"} 10.0\n";
        assert!(text.contains(worked), "{text}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_intent_goes_before_changes_and_stays_one_whatever_comes_later() {
        let queue = queue();
        queue.add(&key("a"), Urgency::Intent);
        assert_eq!(take_now(&queue).await.as_deref(), Some("a"));
        queue.add(&key("a"), Urgency::Intent);
        queue.add(&key("a"), Urgency::Change);
        queue.add(&key("b"), Urgency::Change);
        assert_eq!(queue.done(&key("a"), FAILED), None, "the intent waits for no pause");
        assert_eq!(take_now(&queue).await.as_deref(), Some("a"));
        assert_eq!(take_now(&queue).await.as_deref(), Some("b"));
    }

    #[tokio::test(start_paused = true)]
    async fn intents_without_end_leave_turns_to_the_rest() {
        let queue = queue();
        queue.add(&key("start"), Urgency::Backlog);
        queue.add(&key("drift"), Urgency::Change);
        let mut taken = Vec::new();
        for number in 0..3 * INTENTS_IN_A_ROW_MAX {
            queue.add(&key(&format!("new-{number}")), Urgency::Intent);
            queue.add(&key(&format!("more-{number}")), Urgency::Intent);
            taken.extend(take_now(&queue).await);
        }
        let most = INTENTS_IN_A_ROW_MAX as usize;
        let place = |name| taken.iter().position(|taken| taken == name);
        assert_eq!((place("drift"), place("start")), (Some(most), Some(2 * most + 1)));
    }

    #[tokio::test(start_paused = true)]
    async fn one_worker_at_a_time_has_a_key_and_no_change_is_lost() {
        let queue = queue();
        queue.add(&key("a"), Urgency::Change);
        assert_eq!(take_now(&queue).await.as_deref(), Some("a"));
        queue.add(&key("a"), Urgency::Change);
        queue.add(&key("a"), Urgency::Change);
        assert_eq!(take_now(&queue).await, None);
        queue.done(&key("a"), DONE);
        assert_eq!(take_now(&queue).await.as_deref(), Some("a"));
        queue.done(&key("a"), DONE);
        assert_eq!(take_now(&queue).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn failures_wait_longer_each_time_and_events_do_not_shorten_that() {
        let queue = queue();
        queue.add(&key("a"), Urgency::Change);
        let mut pauses = Vec::new();
        for _ in 0..12 {
            assert_eq!(queue.take().await, key("a"));
            let pause = queue.done(&key("a"), FAILED).expect("a pause");
            queue.add(&key("a"), Urgency::Change);
            assert_eq!(take_now(&queue).await, None);
            pauses.push(pause);
        }
        assert!(pauses[0] <= Duration::from_millis(200), "{pauses:?}");
        let capped = |pause: Duration, cap| {
            assert!(pause >= Duration::from_secs(cap) / 2 && pause <= Duration::from_secs(cap), "{pause:?}");
        };
        capped(pauses[11], 30);

        for number in 0..2_400 {
            let other = key(&format!("other-{number}"));
            queue.add(&other, Urgency::Intent);
            assert_eq!(queue.take().await, other);
            queue.done(&other, Ok(Next::After(PAUSE_MAX)));
        }
        assert_eq!(queue.take().await, key("a"));
        capped(queue.done(&key("a"), FAILED).expect("a pause"), 60);
    }

    #[tokio::test(start_paused = true)]
    async fn an_event_during_a_reconcile_that_fails_does_not_shorten_the_pause_either() {
        let queue = queue();
        queue.add(&key("a"), Urgency::Change);
        assert_eq!(take_now(&queue).await.as_deref(), Some("a"));
        queue.add(&key("a"), Urgency::Change);
        assert!(queue.done(&key("a"), FAILED).is_some());
        assert_eq!(take_now(&queue).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_intent_is_tried_at_once() {
        let queue = queue();
        queue.add(&key("a"), Urgency::Change);
        assert_eq!(take_now(&queue).await.as_deref(), Some("a"));
        queue.done(&key("a"), FAILED);
        queue.add(&key("a"), Urgency::Intent);
        assert_eq!(take_now(&queue).await.as_deref(), Some("a"));
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(take_now(&queue).await, None, "the intent has ended the pause");
        queue.add(&key("a"), Urgency::Intent);
        assert_eq!(queue.done(&key("a"), FAILED), None);
        assert_eq!(take_now(&queue).await.as_deref(), Some("a"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_that_the_server_asked_for_is_kept() {
        let queue = queue();
        queue.add(&key("a"), Urgency::Change);
        assert_eq!(take_now(&queue).await.as_deref(), Some("a"));
        let pause = queue.done(&key("a"), Err(Duration::from_secs(7)));
        assert!(pause.is_some_and(|pause| pause >= Duration::from_secs(7)), "{pause:?}");
    }

    /// It may come from the `Retry-After` of another server. It was a panic that ended the controller.
    #[tokio::test(start_paused = true)]
    async fn an_endless_pause_lasts_a_week() {
        let queue = queue();
        for endless in [Ok(Next::After(Duration::MAX)), Err(Duration::MAX)] {
            queue.add(&key("a"), Urgency::Change);
            assert_eq!(take_now(&queue).await.as_deref(), Some("a"));
            queue.done(&key("a"), endless);
            let start = Instant::now();
            assert_eq!(queue.take().await, key("a"));
            assert_eq!(start.elapsed().as_secs(), PAUSE_MAX.as_secs());
            queue.done(&key("a"), DONE);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_second_look_comes_later_or_with_the_next_change() {
        let queue = queue();
        queue.add(&key("a"), Urgency::Change);
        assert_eq!(take_now(&queue).await.as_deref(), Some("a"));
        queue.done(&key("a"), Ok(Next::After(Duration::from_secs(30))));
        assert_eq!(take_now(&queue).await, None);
        let start = Instant::now();
        assert_eq!(queue.take().await, key("a"));
        assert_eq!(start.elapsed().as_secs(), 30);
        queue.done(&key("a"), Ok(Next::After(Duration::from_secs(30))));
        queue.add(&key("a"), Urgency::Change);
        assert_eq!(take_now(&queue).await.as_deref(), Some("a"));
        queue.done(&key("a"), DONE);
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(take_now(&queue).await, None);
    }

    const URGENCIES: [Urgency; 3] = [Urgency::Backlog, Urgency::Change, Urgency::Intent];

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Add(usize, Urgency),
        Take,
        Done(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0..40_usize, proptest::sample::select(&URGENCIES[..]))
                .prop_map(|(key, urgency)| Step::Add(key, urgency)),
            Just(Step::Take),
            (0..8_usize).prop_map(Step::Done),
        ]
    }

    proptest! {
        /// Compares the queue with a simple model: a list that is searched.
        #[test]
        fn whatever_happens_keys_come_in_order_and_none_is_lost(steps in proptest::collection::vec(step(), 0..300)) {
            let now = Instant::now();
            let mut queue = QueueState::default();
            let mut waiting: Vec<(usize, Urgency)> = Vec::new();
            let mut in_hand: Vec<(usize, Option<Urgency>)> = Vec::new();
            let mut in_a_row = 0;
            let add = |waiting: &mut Vec<(usize, Urgency)>, key, urgency| {
                let known = waiting.iter().find(|(waits, _)| *waits == key).map(|(_, known)| *known);
                if known < Some(urgency) {
                    waiting.retain(|(waits, _)| *waits != key);
                    waiting.push((key, urgency));
                }
            };
            let drain = std::iter::repeat_n([Step::Take, Step::Done(0)], 120).flatten();
            for step in steps.into_iter().chain(drain) {
                match step {
                    Step::Add(number, urgency) => {
                        queue.add(&key(&number.to_string()), urgency);
                        match in_hand.iter_mut().find(|(held, _)| *held == number) {
                            Some((_, again)) => *again = (*again).max(Some(urgency)),
                            None => add(&mut waiting, number, urgency),
                        }
                    }
                    Step::Take => {
                        let is_due = |urgency| in_a_row < INTENTS_IN_A_ROW_MAX || urgency < Urgency::Intent;
                        let best = waiting.iter().map(|(_, urgency)| *urgency).filter(|urgency| is_due(*urgency)).max();
                        let best = best.or((!waiting.is_empty()).then_some(Urgency::Intent));
                        let next = waiting.iter().position(|(_, urgency)| Some(*urgency) == best);
                        let expected = next.map(|next| waiting.remove(next).0);
                        prop_assert_eq!(queue.take(now), expected.map(|number| key(&number.to_string())));
                        in_hand.extend(expected.map(|number| (number, None)));
                        match best {
                            Some(Urgency::Intent) => in_a_row += 1,
                            Some(Urgency::Backlog | Urgency::Change) => in_a_row = 0,
                            None => {}
                        }
                    }
                    Step::Done(index) if index < in_hand.len() => {
                        let (number, again) = in_hand.remove(index);
                        queue.done(&key(&number.to_string()), DONE, now);
                        if let Some(urgency) = again {
                            add(&mut waiting, number, urgency);
                        }
                    }
                    Step::Done(_) => {}
                }
            }
            prop_assert!(queue.queued.is_empty() && queue.waiting.is_empty() && queue.later.is_empty());
        }
    }
}
