//! What follows the end of a worker: when its key is reconciled again (`queue.rs` has the pauses), and what the log says.

use std::{collections::HashMap, time::Duration};

use tokio::{task, time::Instant};
use tracing::{debug, error, warn};

use super::{LOG, Next, ReconcileError};
use crate::{metrics::ControllerMetrics, queue::Queue, resource::Key};

/// The keys that workers have, and the last problem of each key.
pub(super) struct Workers {
    /// The kind of the objects, for the log.
    kind: &'static str,
    metrics: ControllerMetrics,
    keys: HashMap<task::Id, (Key, Instant)>,
    /// By key, so that a problem is a warning only once.
    problems: HashMap<Key, Problem>,
}

/// An error of a key.
struct Problem {
    text: String,
    /// Whether it was logged as a warning.
    is_warned: bool,
}

/// The end of a worker.
pub(super) type Finished = Result<(task::Id, Result<Next, ReconcileError>), task::JoinError>;

impl ControllerMetrics {
    /// A reconcile has ended after this time.
    fn ended(&self, time: Duration, result: &Result<Next, ReconcileError>) {
        self.time.observe(time.as_secs_f64());
        match result {
            Ok(Next::OnChange) => self.succeeded.inc(),
            Ok(Next::After(Duration::ZERO)) => self.requeued.inc(),
            Ok(Next::After(_)) => self.requeued_after.inc(),
            Err(error) => {
                self.errors.inc();
                if error.retry() == Ok(Next::OnChange) {
                    self.terminal_errors.inc();
                }
                self.failed.inc()
            }
        };
    }
}

impl Workers {
    /// No workers yet, for a kind of objects.
    pub(super) fn new(kind: &'static str, metrics: ControllerMetrics) -> Workers {
        Workers { kind, metrics, keys: HashMap::new(), problems: HashMap::new() }
    }

    /// A worker has the key now.
    pub(super) fn started(&mut self, id: task::Id, key: Key) {
        self.keys.insert(id, (key, Instant::now()));
    }

    /// A term of the leadership has begun or ended. Each one warns of a problem again, and the objects of old problems may be gone.
    pub(super) fn forget_problems(&mut self) {
        self.problems.clear();
    }

    /// A worker has ended: decides when its key is reconciled again, and logs an error.
    pub(super) fn finished(&mut self, ended: Finished, queue: &Queue) {
        let kind = self.kind;
        let (id, result) = match ended {
            Ok((id, result)) => (id, result),
            // The leadership ended. If it begins again before the next leader takes over, what was dropped is done now.
            Err(join) if join.is_cancelled() => {
                if let Some((key, _)) = self.keys.remove(&join.id()) {
                    queue.put_back(&key, Ok(Next::After(Duration::ZERO)));
                }
                return;
            }
            // A panic counts as a failure of this key alone.
            Err(join) => {
                let id = join.id();
                let key = self.keys.get(&id).map(|(key, _)| tracing::field::display(key));
                error!(target: LOG, kind, key, %join, "reconcile panicked");
                self.metrics.panics.inc();
                (id, Err("the reconcile panicked".into()))
            }
        };
        let Some((key, started)) = self.keys.remove(&id) else { return };
        self.metrics.ended(started.elapsed(), &result);
        let pause = queue.done(&key, result.as_ref().map_or_else(ReconcileError::retry, |next| Ok(*next)));
        let Err(error) = result else {
            self.problems.remove(&key);
            return;
        };
        let retry_ms = pause.map(|pause| u64::try_from(pause.as_millis()).unwrap_or(u64::MAX));
        let problem = error.to_string();
        queue.explain(&key, &problem);
        let is_warned = match self.problems.get(&key).filter(|known| known.text == problem) {
            Some(Problem { is_warned: true, .. }) => {
                debug!(target: LOG, kind, %key, retry_ms, problem, "reconcile failed again");
                true
            }
            None if error.is_outdated() => {
                debug!(target: LOG, kind, %key, retry_ms, problem, "the object or a child was changed or deleted meanwhile; reconciling again");
                false
            }
            None | Some(Problem { is_warned: false, .. }) => {
                let message = match error.retry() {
                    Ok(Next::OnChange) => "reconcile failed; waiting for a change",
                    Ok(Next::After(_)) | Err(_) => "reconcile failed; trying again",
                };
                warn!(target: LOG, kind, %key, retry_ms, problem, "{message}");
                true
            }
        };
        self.problems.insert(key, Problem { text: problem, is_warned });
    }
}
