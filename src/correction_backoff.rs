//! The back-off of corrections that another writer keeps reverting, for example a HorizontalPodAutoscaler of the Deployment.
//! Without it, both would write without end. Each pause is longer than the one before.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use tokio::time::Instant;

use crate::locked;

/// The number of equal corrections, each soon after the one before, without a pause between them.
const FREE: u32 = 5;
/// The first pause; each further one is twice as long. Also the time within which a correction must follow another one to
/// count as its repetition.
const PAUSE_FIRST: Duration = Duration::from_secs(120);
/// The longest pause: after the other writer has stopped, our correction follows within this time.
const PAUSE_MAX: Duration = Duration::from_secs(3600);

/// The latest corrections, by a text with owner, generation, child and fields of the correction.
#[derive(Default)]
pub(crate) struct CorrectionBackoff {
    corrections: Mutex<HashMap<String, Repeated>>,
}

/// A correction.
struct Repeated {
    times: u32,
    last: Instant,
}

impl Repeated {
    /// The time from the last correction to the next one.
    fn pause(&self) -> Duration {
        match self.times.checked_sub(FREE) {
            None => Duration::ZERO,
            Some(doublings) => PAUSE_FIRST.saturating_mul(1 << doublings.min(16)).min(PAUSE_MAX),
        }
    }

    /// Whether the last correction was not reverted for so long that the next one counts as the first.
    fn is_over(&self) -> bool {
        self.last.elapsed() >= (self.pause() * 2).max(PAUSE_FIRST)
    }
}

impl CorrectionBackoff {
    /// Whether this correction must wait, because another writer keeps reverting it.
    pub(crate) fn must_wait(&self, correction: &str) -> bool {
        self.lock().get(correction).is_some_and(|repeated| repeated.last.elapsed() < repeated.pause())
    }

    /// Counts a correction.
    pub(crate) fn corrected(&self, correction: String) {
        self.count(correction, 1);
    }

    /// Counts the creation of a child that may have been refused before: then the first one corrects nothing.
    pub(crate) fn created(&self, correction: String) {
        self.count(correction, 0);
    }

    fn count(&self, correction: String, first: u32) {
        let last = Instant::now();
        self.lock()
            .entry(correction)
            .and_modify(|repeated| *repeated = Repeated { times: repeated.times.saturating_add(1), last })
            .or_insert(Repeated { times: first, last });
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Repeated>> {
        let mut corrections = locked(&self.corrections);
        corrections.retain(|_, repeated| !repeated.is_over());
        corrections
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const CORRECTION: &str = "u1 at generation 1: Deployment mws-web at /spec/replicas";

    fn repeat(backoff: &CorrectionBackoff) {
        for _ in 0..FREE {
            assert!(!backoff.must_wait(CORRECTION));
            backoff.corrected(CORRECTION.to_owned());
        }
        assert!(backoff.must_wait(CORRECTION));
    }

    #[tokio::test(start_paused = true)]
    async fn only_the_same_correction_again_and_again_must_wait() {
        let backoff = CorrectionBackoff::default();
        repeat(&backoff);
        assert!(!backoff.must_wait("u1 at generation 2: Deployment mws-web at /spec/replicas"));
        advance(PAUSE_FIRST).await;
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
            backoff.corrected(CORRECTION.to_owned());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_correction_that_holds_ends_the_backoff() {
        let backoff = CorrectionBackoff::default();
        repeat(&backoff);
        advance(PAUSE_FIRST * 2).await;
        repeat(&backoff);
        assert_eq!(backoff.lock().len(), 1);
        advance(PAUSE_MAX * 2).await;
        assert_eq!(backoff.lock().len(), 0, "what is over takes no memory");
    }
}
