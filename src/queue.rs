//! Which keys need work.
//!
//! ```text
//!            add ┌─────────┐ take ┌─────────┐ done
//!   nothing ────►│ waiting │─────►│ in hand │─────► nothing, or later, or waiting again
//!                └─────────┘      └─────────┘
//! ```
//!
//! - Once: however often a key is added, it waits in one place, that of its highest [`Urgency`].
//! - Never in two hands: what is added while in hand waits until `done`.
//! - In order: by urgency, then first in, first out. After [`INTENTS_IN_A_ROW_MAX`] intents something else has its turn.
//! - A key that failed waits longer each time. Only a new intent ([`Urgency::Intent`]) cuts that short: an event must
//!   not, or a worker that writes on each failure would wake itself without end.
//! - What is due now is handed out now; no timer stands in its way.
//! - It is as long as there are objects, at most.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    sync::Mutex,
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};

use crate::{backoff::Backoff, locked, resource::Key};

/// Between attempts at one key. The first is short, for conflicts that the next event resolves; the cap is what people
/// wait at most after they have removed the cause.
const BACKOFF: Backoff = Backoff { first: Duration::from_millis(200), cap: Duration::from_secs(60) };

/// Intents handed out in a row while a change or the backlog waits. Intents go first because their authors are waiting;
/// without a limit, a stream of new objects would leave drift unrepaired. With 16, the rest has one turn in 17.
const INTENTS_IN_A_ROW_MAX: u32 = 16;

/// Keys that need work.
#[derive(Debug, Default)]
pub struct Queue {
    inner: Mutex<Inner>,
    wake: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    /// Every key that is not at rest. No hash table: it would keep the size that it had at the start, when all keys wait.
    entries: BTreeMap<Key, Entry>,
    /// The keys that wait for a worker, in order.
    waiting: BTreeMap<Turn, Key>,
    later: BTreeSet<(Instant, Key)>,
    /// Turns given so far.
    turns: u64,
    /// Intents taken since the last key that was none.
    intents_in_a_row: u32,
    random: fastrand::Rng,
}

/// A place in the line: the most urgent keys first, and among those the one that came first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Turn {
    urgency: Reverse<Urgency>,
    number: u64,
}

#[derive(Debug)]
struct Entry {
    place: Place,
    /// In a row.
    failures: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// In `waiting`.
    Waiting(Turn),
    /// In `later`, to be looked at again.
    Later(Instant),
    /// In `later`, because it failed.
    BackingOff(Instant),
    /// With a worker.
    InHand,
    /// With a worker, and changed since.
    InHandAndAgain(Urgency),
}

/// Why a key needs work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    /// It was there when we started.
    Backlog,
    /// Something about it changed.
    Change,
    /// Somebody wants something else of it: a new generation, or another object of that name.
    Intent,
}

/// What came of a key's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing left to do until something changes.
    Done,
    /// Look at it again after this time, or when something changes.
    Again(Duration),
    /// Try again, later each time, and not before the time that the server asked for.
    Failed {
        /// Zero where nothing was asked for.
        at_least: Duration,
    },
}

impl Queue {
    /// A queue whose pauses are drawn from `random`.
    #[must_use]
    pub fn new(random: fastrand::Rng) -> Queue {
        Queue { inner: Mutex::new(Inner { random, ..Inner::default() }), wake: Notify::new() }
    }

    /// The key needs work.
    pub fn add(&self, key: &Key, urgency: Urgency) {
        let is_ready = locked(&self.inner).add(key, urgency);
        if is_ready {
            self.wake.notify_one();
        }
    }

    /// The next key, once there is one. It is in the caller's hands until [`Queue::done`].
    ///
    /// For one caller at a time; dropping the future loses nothing.
    pub async fn take(&self) -> Key {
        loop {
            let next_due = {
                let mut inner = locked(&self.inner);
                if let Some(key) = inner.take(Instant::now()) {
                    return key;
                }
                inner.later.first().map(|(due, _)| *due)
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

    /// The work on a key that was taken has ended. Returns the pause, where it failed.
    pub fn done(&self, key: &Key, outcome: Outcome) -> Option<Duration> {
        let pause = locked(&self.inner).done(key, outcome, Instant::now());
        self.wake.notify_one();
        pause
    }
}

impl Inner {
    /// Returns whether a key came to wait for a worker, or moved up.
    fn add(&mut self, key: &Key, urgency: Urgency) -> bool {
        if let Some(entry) = self.entries.get_mut(key) {
            match entry.place {
                Place::Waiting(turn) if turn.urgency.0 >= urgency => return false,
                Place::BackingOff(_) if urgency < Urgency::Intent => return false,
                Place::InHand => {
                    entry.place = Place::InHandAndAgain(urgency);
                    return false;
                }
                Place::InHandAndAgain(known) => {
                    entry.place = Place::InHandAndAgain(known.max(urgency));
                    return false;
                }
                Place::Waiting(turn) => drop(self.waiting.remove(&turn)),
                Place::Later(due) | Place::BackingOff(due) => {
                    self.later.remove(&(due, key.clone()));
                }
            }
        }
        self.wait(key.clone(), urgency, 0);
        true
    }

    /// To the end of the line.
    fn wait(&mut self, key: Key, urgency: Urgency, failures: u32) {
        self.turns += 1;
        let turn = Turn { urgency: Reverse(urgency), number: self.turns };
        self.entries.insert(key.clone(), Entry { place: Place::Waiting(turn), failures });
        self.waiting.insert(turn, key);
    }

    fn take(&mut self, now: Instant) -> Option<Key> {
        while self.later.first().is_some_and(|(due, _)| *due <= now) {
            let (_, key) = self.later.pop_first()?;
            let failures = self.entries.get(&key).map_or(0, |entry| entry.failures);
            self.wait(key, Urgency::Change, failures);
        }
        let turn = self.next_turn()?;
        let key = self.waiting.remove(&turn)?;
        self.intents_in_a_row = match turn.urgency.0 {
            Urgency::Intent => self.intents_in_a_row.saturating_add(1),
            Urgency::Backlog | Urgency::Change => 0,
        };
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.place = Place::InHand;
        }
        Some(key)
    }

    /// The first in the line; after many intents in a row, the first that is none.
    fn next_turn(&self) -> Option<Turn> {
        let first = *self.waiting.first_key_value()?.0;
        if self.intents_in_a_row < INTENTS_IN_A_ROW_MAX {
            return Some(first);
        }
        let no_intent = Turn { urgency: Reverse(Urgency::Change), number: 0 };
        let other = self.waiting.range(no_intent..).next();
        Some(other.map_or(first, |(turn, _)| *turn))
    }

    fn done(&mut self, key: &Key, outcome: Outcome, now: Instant) -> Option<Duration> {
        let entry = self.entries.get_mut(key)?;
        let again = match entry.place {
            Place::InHandAndAgain(urgency) => Some(urgency),
            Place::InHand | Place::Waiting(_) | Place::Later(_) | Place::BackingOff(_) => None,
        };
        let (pause, place) = match (outcome, again) {
            (_, Some(urgency @ Urgency::Intent)) | (Outcome::Done | Outcome::Again(_), Some(urgency)) => {
                self.wait(key.clone(), urgency, 0);
                return None;
            }
            (Outcome::Done, None) => {
                self.entries.remove(key);
                return None;
            }
            (Outcome::Again(after), None) => {
                entry.failures = 0;
                (None, Place::Later(now + after))
            }
            (Outcome::Failed { at_least }, _) => {
                entry.failures = entry.failures.saturating_add(1);
                let pause = BACKOFF.pause(entry.failures, at_least, &mut self.random);
                (Some(pause), Place::BackingOff(now + pause))
            }
        };
        entry.place = place;
        if let Place::Later(due) | Place::BackingOff(due) = place {
            self.later.insert((due, key.clone()));
        }
        pause
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(name: &str) -> Key {
        Key::namespaced("default", name)
    }

    fn queue() -> Queue {
        Queue::new(fastrand::Rng::with_seed(1))
    }

    /// What can be taken without waiting.
    async fn take_now(queue: &Queue) -> Option<String> {
        tokio::select! {
            biased;
            key = queue.take() => Some(key.name.to_string()),
            () = std::future::ready(()) => None,
        }
    }

    const FAILED: Outcome = Outcome::Failed { at_least: Duration::ZERO };

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
    async fn a_key_is_never_in_two_hands_and_no_change_is_lost() {
        let queue = queue();
        queue.add(&key("a"), Urgency::Change);
        assert_eq!(take_now(&queue).await.as_deref(), Some("a"));
        queue.add(&key("a"), Urgency::Change);
        queue.add(&key("a"), Urgency::Change);
        assert_eq!(take_now(&queue).await, None);
        queue.done(&key("a"), Outcome::Done);
        assert_eq!(take_now(&queue).await.as_deref(), Some("a"));
        queue.done(&key("a"), Outcome::Done);
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
        assert!(pauses[11] >= Duration::from_secs(30) && pauses[11] <= Duration::from_secs(60), "{pauses:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_event_while_failing_in_hand_does_not_shorten_the_pause_either() {
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
        queue.add(&key("a"), Urgency::Intent);
        assert_eq!(queue.done(&key("a"), FAILED), None);
        assert_eq!(take_now(&queue).await.as_deref(), Some("a"));
    }

    #[tokio::test(start_paused = true)]
    async fn what_the_server_asked_for_is_waited() {
        let queue = queue();
        queue.add(&key("a"), Urgency::Change);
        assert_eq!(take_now(&queue).await.as_deref(), Some("a"));
        let pause = queue.done(&key("a"), Outcome::Failed { at_least: Duration::from_secs(7) });
        assert!(pause.is_some_and(|pause| pause >= Duration::from_secs(7)), "{pause:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_second_look_comes_later_or_with_the_next_change() {
        let queue = queue();
        queue.add(&key("a"), Urgency::Change);
        assert_eq!(take_now(&queue).await.as_deref(), Some("a"));
        queue.done(&key("a"), Outcome::Again(Duration::from_secs(30)));
        assert_eq!(take_now(&queue).await, None);
        let start = Instant::now();
        assert_eq!(queue.take().await, key("a"));
        assert_eq!(start.elapsed().as_secs(), 30);
        queue.done(&key("a"), Outcome::Again(Duration::from_secs(30)));
        queue.add(&key("a"), Urgency::Change);
        assert_eq!(take_now(&queue).await.as_deref(), Some("a"));
        queue.done(&key("a"), Outcome::Done);
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
        /// Against the plainest queue there is: a list that is searched.
        #[test]
        fn whatever_happens_keys_come_in_order_and_none_is_lost(steps in proptest::collection::vec(step(), 0..300)) {
            let now = Instant::now();
            let mut queue = Inner::default();
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
                        queue.done(&key(&number.to_string()), Outcome::Done, now);
                        if let Some(urgency) = again {
                            add(&mut waiting, number, urgency);
                        }
                    }
                    Step::Done(_) => {}
                }
            }
            prop_assert!(queue.entries.is_empty() && queue.waiting.is_empty() && queue.later.is_empty());
        }
    }
}
