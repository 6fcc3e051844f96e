//! How long to wait after the n-th failure in a row.
//!
//! The pause doubles up to a cap, and each is drawn between half of it and all of it, so that a thousand clients that
//! failed together do not come back together.

use std::time::Duration;

/// The shape of a backoff.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    /// The longest pause after the first failure.
    pub first: Duration,
    /// The longest pause of all.
    pub cap: Duration,
}

impl Backoff {
    /// The pause after so many failures in a row, 1 being the first.
    #[must_use]
    pub fn pause(&self, failures: u32, random: &mut fastrand::Rng) -> Duration {
        let doublings = failures.saturating_sub(1).min(20);
        let longest = self.first.saturating_mul(1 << doublings).min(self.cap);
        longest.mul_f64(0.5 + random.f64() / 2.0)
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
                let pause = backoff.pause(failures, &mut random).as_secs_f64();
                assert!(
                    (f64::from(longest) / 2.0..=f64::from(longest)).contains(&pause),
                    "{failures}: {pause}"
                );
            }
        }
    }

    #[test]
    fn a_crowd_spreads_out() {
        let backoff = Backoff { first: Duration::from_secs(1), cap: Duration::from_secs(30) };
        let pauses: std::collections::HashSet<_> =
            (0..50).map(|seed| backoff.pause(4, &mut fastrand::Rng::with_seed(seed))).collect();
        assert_eq!(pauses.len(), 50);
    }
}
