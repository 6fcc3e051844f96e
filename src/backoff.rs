//! Exponential backoff with jitter: how long to wait after the n-th failure in a row. The limits are where it is used: in
//! `queue.rs` for keys, in `watch.rs` for watches. A request that is sent again has pauses of its own: `client/retry.rs`.
//!
//! The pause doubles up to a cap, and is drawn between half of that and all of it. So a thousand clients that failed at the
//! same time do not come back at the same time, even if the server sent all of them the same `Retry-After`.

use std::time::Duration;

/// The limits of a backoff.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    /// The longest pause after the first failure.
    pub first: Duration,
    /// The longest pause.
    pub cap: Duration,
}

impl Backoff {
    /// The pause after so many failures in a row, which comes after the time that the server asked for.
    #[must_use]
    pub fn pause(&self, failures: u32, asked: Duration, random: &mut fastrand::Rng) -> Duration {
        asked.saturating_add(self.longest(failures).mul_f64(0.5 + random.f64() / 2.0))
    }

    /// The longest pause after so many failures in a row. The shortest one is half of it.
    pub fn longest(&self, failures: u32) -> Duration {
        let doublings = failures.saturating_sub(1).min(20);
        self.first.saturating_mul(1 << doublings).min(self.cap)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_cap_and_never_fall_below_half() {
        let backoff = Backoff { first: Duration::from_secs(1), cap: Duration::from_secs(30) };
        let mut random = fastrand::Rng::with_seed(7);
        for (failures, longest) in [(1, 1), (2, 2), (3, 4), (5, 16), (6, 30), (100, 30), (u32::MAX, 30)] {
            for _ in 0..100 {
                let pause = backoff.pause(failures, Duration::ZERO, &mut random).as_secs_f64();
                assert!(
                    (f64::from(longest) / 2.0..=f64::from(longest)).contains(&pause),
                    "{failures}: {pause}"
                );
            }
        }
    }

    /// All of them waited for exactly as long as the server had asked.
    #[test]
    fn a_crowd_spreads_out_and_none_is_early() {
        let backoff = Backoff { first: Duration::from_secs(1), cap: Duration::from_secs(30) };
        for asked in [Duration::ZERO, Duration::from_secs(7)] {
            let pause = |seed| backoff.pause(1, asked, &mut fastrand::Rng::with_seed(seed));
            let pauses: std::collections::BTreeSet<_> = (0..50).map(pause).collect();
            assert_eq!(pauses.len(), 50);
            assert!(pauses.first().is_some_and(|first| *first >= asked));
            let spread = pauses.last().zip(pauses.first()).map(|(last, first)| *last - *first);
            assert!(spread.is_some_and(|spread| spread >= Duration::from_millis(300)), "{spread:?}");
        }
    }
}
