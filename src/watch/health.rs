//! How a watch is doing, for `/livez`, `/readyz` and the log.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;
use tracing::{info, warn};

/// How late a watch may be before it counts as stuck: a machine under load is slow, not dead.
const GRACE: Duration = Duration::from_secs(30);

/// What one watch says of itself while it runs.
#[derive(Debug)]
pub struct Health {
    /// What is watched, for people: `deployments in all namespaces, labels app=web`.
    what: String,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// When the watch will have done something again, be it to give up waiting. `None`: when other lists are read.
    due: Option<Instant>,
    problem: Option<String>,
    is_synced: bool,
    has_ended: bool,
}

/// Says that a watch has ended, however it did.
#[must_use]
pub(crate) struct Ended<'a>(&'a Health);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.lock().has_ended = true;
    }
}

impl Health {
    /// Of a watch that is about to begin.
    #[must_use]
    pub fn new(what: String) -> Health {
        Health {
            what,
            state: Mutex::new(State {
                due: Some(Instant::now() + GRACE),
                problem: None,
                is_synced: false,
                has_ended: false,
            }),
        }
    }

    /// What is watched.
    #[must_use]
    pub fn what(&self) -> &str {
        &self.what
    }

    /// The watch will do something within this time.
    pub(super) fn within(&self, time: Duration) {
        self.lock().due = Some(Instant::now() + time);
    }

    /// The watch will list after others have, however long they take.
    pub(super) fn after_others(&self) {
        self.lock().due = None;
    }

    /// Data has come, or could have.
    pub(super) fn well(&self) {
        if self.lock().problem.take().is_some() {
            info!(watch = self.what, "watching again");
        }
    }

    /// Nothing comes. Logged once for each problem, not for each attempt.
    pub(super) fn ill(&self, problem: String) {
        let is_new = self.lock().problem.as_ref() != Some(&problem);
        if is_new {
            warn!(watch = self.what, problem, "cannot watch; trying again");
            self.lock().problem = Some(problem);
        }
    }

    /// All that exists is known.
    pub(crate) fn synced(&self) {
        self.lock().is_synced = true;
    }

    /// Whether all that exists is known.
    #[must_use]
    pub fn is_synced(&self) -> bool {
        self.lock().is_synced
    }

    /// Why nothing comes, if so.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        self.lock().problem.clone()
    }

    pub(crate) fn ended_when_dropped(&self) -> Ended<'_> {
        Ended(self)
    }

    /// The watch did not do what it should have done by now, not even give up; or it has ended.
    #[must_use]
    pub fn is_stuck(&self) -> bool {
        let state = self.lock();
        state.has_ended || state.due.is_some_and(|due| Instant::now() > due + GRACE)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
