//! Which keys need work.
//!
//! ```text
//!            add ┌─────────┐ take ┌─────────┐ done
//!   nothing ────►│ waiting │─────►│ in hand │─────► nothing, or later, or waiting again
//!                └─────────┘      └─────────┘
//! ```
//!
//! - Once: however often a key is added, it waits in one place.
//! - Never in two hands: what is added while in hand waits until `done`.
//! - In order: first in, first out; changes go before the backlog of a start.
//! - A key that failed waits longer each time. Only a new intent ([`Urgency::Intent`]) cuts that short: an event must
//!   not, or a worker that writes on each failure would wake itself without end.
//! - What is due now is handed out now; no timer stands in its way.
//! - It is as long as there are objects, at most.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};

use crate::{backoff::Backoff, resource::Key};

/// Between attempts at one key. The first is short, for conflicts that the next event resolves; the cap is what people
/// wait at most after they have removed the cause.
const BACKOFF: Backoff = Backoff { first: Duration::from_millis(200), cap: Duration::from_secs(60) };

/// Keys that need work.
#[derive(Debug, Default)]
pub struct Queue {
    inner: Mutex<Inner>,
    wake: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    /// Every key that is not at rest.
    entries: HashMap<Key, Entry>,
    changes: VecDeque<Key>,
    backlog: VecDeque<Key>,
    later: BTreeSet<(Instant, Key)>,
    random: fastrand::Rng,
}

#[derive(Debug)]
struct Entry {
    place: Place,
    /// In a row.
    failures: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// In `changes` or `backlog`.
    Waiting,
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
        let is_ready = self.lock().add(key, urgency);
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
                let mut inner = self.lock();
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
        let pause = self.lock().done(key, outcome, Instant::now());
        self.wake.notify_one();
        pause
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Returns whether a key came to wait for a worker.
    fn add(&mut self, key: &Key, urgency: Urgency) -> bool {
        let Some(entry) = self.entries.get_mut(key) else {
            self.entries.insert(key.clone(), Entry { place: Place::Waiting, failures: 0 });
            self.line(urgency).push_back(key.clone());
            return true;
        };
        match entry.place {
            Place::Waiting => return false,
            Place::BackingOff(_) if urgency < Urgency::Intent => return false,
            Place::InHand => {
                entry.place = Place::InHandAndAgain(urgency);
                return false;
            }
            Place::InHandAndAgain(known) => {
                entry.place = Place::InHandAndAgain(known.max(urgency));
                return false;
            }
            Place::Later(due) | Place::BackingOff(due) => {
                *entry = Entry { place: Place::Waiting, failures: 0 };
                self.later.remove(&(due, key.clone()));
            }
        }
        self.line(urgency).push_back(key.clone());
        true
    }

    fn line(&mut self, urgency: Urgency) -> &mut VecDeque<Key> {
        match urgency {
            Urgency::Backlog => &mut self.backlog,
            Urgency::Change | Urgency::Intent => &mut self.changes,
        }
    }

    fn take(&mut self, now: Instant) -> Option<Key> {
        while self.later.first().is_some_and(|(due, _)| *due <= now) {
            let (_, key) = self.later.pop_first()?;
            if let Some(entry) = self.entries.get_mut(&key) {
                entry.place = Place::Waiting;
            }
            self.changes.push_back(key);
        }
        let key = self.changes.pop_front().or_else(|| self.backlog.pop_front())?;
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.place = Place::InHand;
        }
        Some(key)
    }

    fn done(&mut self, key: &Key, outcome: Outcome, now: Instant) -> Option<Duration> {
        let entry = self.entries.get_mut(key)?;
        let again = match entry.place {
            Place::InHandAndAgain(urgency) => Some(urgency),
            Place::InHand | Place::Waiting | Place::Later(_) | Place::BackingOff(_) => None,
        };
        let (pause, place) = match (outcome, again) {
            (_, Some(Urgency::Intent)) | (Outcome::Done | Outcome::Again(_), Some(_)) => {
                *entry = Entry { place: Place::Waiting, failures: 0 };
                self.changes.push_back(key.clone());
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
}
