//! The back-off of corrections that another writer keeps reverting, for example a HorizontalPodAutoscaler of the Deployment, and of
//! writes by an operator whose own desired state differs each time. Without it, they would write without end. Each pause is longer than
//! the one before.

use std::{collections::HashMap, sync::Mutex, time::Duration};

use tokio::time::Instant;

use crate::locked;

/// When equal writes pause.
#[derive(Clone, Copy)]
pub(crate) struct Limit {
    /// The number of equal writes, each soon after the one before, without a pause between them.
    free: u32,
    /// The first pause; each further one is twice as long. Also the time within which a write must follow another one to
    /// count as its repetition.
    pause_first: Duration,
    /// The longest pause.
    pause_max: Duration,
}

/// For corrections. After the other writer has stopped, our correction follows within the longest pause.
pub(crate) const CORRECTIONS: Limit =
    Limit { free: 5, pause_first: Duration::from_secs(120), pause_max: Duration::from_secs(3600) };
/// For writes of a new desired state, which follow from changes elsewhere: only a loop makes so many so fast.
pub(crate) const CHANGES: Limit =
    Limit { free: 20, pause_first: Duration::from_secs(1), pause_max: Duration::from_secs(10) };

/// The latest writes, by a text with owner, generation, child and fields.
#[derive(Default)]
pub(crate) struct CorrectionBackoff {
    writes: Mutex<HashMap<String, Repeated>>,
}

/// A write.
struct Repeated {
    limit: Limit,
    times: u32,
    last: Instant,
}

impl Repeated {
    /// The time from the last write to the next one.
    fn pause(&self) -> Duration {
        let limit = self.limit;
        match self.times.checked_sub(limit.free) {
            None => Duration::ZERO,
            Some(doublings) => limit.pause_first.saturating_mul(1 << doublings.min(16)).min(limit.pause_max),
        }
    }

    /// Whether the last write has held for so long that the next one counts as the first.
    fn is_over(&self, now: Instant) -> bool {
        now - self.last >= (self.pause() * 2).max(self.limit.pause_first)
    }
}

impl CorrectionBackoff {
    /// Whether this write must wait, because it has been repeated too often.
    pub(crate) fn must_wait(&self, write: &str) -> bool {
        let repeated = locked(&self.writes);
        repeated.get(write).is_some_and(|repeated| repeated.last.elapsed() < repeated.pause())
    }

    /// Counts a write.
    pub(crate) fn count(&self, write: String, limit: Limit) {
        let (now, mut writes) = (Instant::now(), locked(&self.writes));
        writes.retain(|_, repeated| !repeated.is_over(now));
        let times = writes.get(&write).map_or(0, |repeated| repeated.times);
        writes.insert(write, Repeated { limit, times: times.saturating_add(1), last: now });
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const CORRECTION: &str = "u1 at generation 1: Deployment mws-web at /spec/replicas";

    fn repeat(backoff: &CorrectionBackoff) {
        for _ in 0..CORRECTIONS.free {
            assert!(!backoff.must_wait(CORRECTION));
            backoff.count(CORRECTION.to_owned(), CORRECTIONS);
        }
        assert!(backoff.must_wait(CORRECTION));
    }

    #[tokio::test(start_paused = true)]
    async fn only_the_same_correction_again_and_again_must_wait() {
        let backoff = CorrectionBackoff::default();
        repeat(&backoff);
        assert!(!backoff.must_wait("u1 at generation 2: Deployment mws-web at /spec/replicas"));
        advance(CORRECTIONS.pause_first).await;
        assert!(!backoff.must_wait(CORRECTION));
    }

    /// Every two minutes the replicas went up and down, for as long as an autoscaler wanted others than we.
    #[tokio::test(start_paused = true)]
    async fn each_pause_is_twice_as_long_up_to_an_hour() {
        let backoff = CorrectionBackoff::default();
        repeat(&backoff);
        for minutes in [2, 4, 8, 16, 32, 60, 60, 60] {
            // The key is looked at again within a minute.
            advance(Duration::from_secs(minutes * 60 - 1)).await;
            assert!(backoff.must_wait(CORRECTION), "{minutes}");
            advance(Duration::from_secs(60)).await;
            assert!(!backoff.must_wait(CORRECTION), "{minutes}");
            backoff.count(CORRECTION.to_owned(), CORRECTIONS);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_correction_that_holds_ends_the_backoff() {
        let backoff = CorrectionBackoff::default();
        repeat(&backoff);
        advance(CORRECTIONS.pause_first * 2).await;
        repeat(&backoff);
        advance(CORRECTIONS.pause_max * 2).await;
        backoff.count("another".to_owned(), CORRECTIONS);
        assert_eq!(locked(&backoff.writes).len(), 1, "what is over takes no memory after the next write");
    }
}
