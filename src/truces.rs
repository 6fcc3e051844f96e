//! Pauses in a fight with another writer that keeps reverting our writes, for example a HorizontalPodAutoscaler of the
//! Deployment. Without them, both would write without end. Each pause, a truce, is longer than the one before.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use tokio::time::Instant;

use crate::locked;

/// The number of equal corrections, each soon after the one before, that make a fight.
const ROUNDS: u32 = 5;
/// The length of the first truce; each further one is twice as long. Also the time within which a correction must follow
/// another one to count as the same fight.
const TRUCE_FIRST: Duration = Duration::from_secs(120);
/// The longest truce: after the other writer has stopped, our correction follows within this time.
const TRUCE_MAX: Duration = Duration::from_secs(3600);

/// The present fights, by a text with owner, generation, child and fields of the correction.
#[derive(Default)]
pub(crate) struct Truces {
    fights: Mutex<HashMap<String, Fight>>,
}

struct Fight {
    rounds: u32,
    last: Instant,
}

impl Fight {
    /// The time from the last correction to the next one.
    fn truce(&self) -> Duration {
        match self.rounds.checked_sub(ROUNDS) {
            None => Duration::ZERO,
            Some(doublings) => TRUCE_FIRST.saturating_mul(1 << doublings.min(16)).min(TRUCE_MAX),
        }
    }

    /// Whether the last correction was not reverted for so long that the fight is over.
    fn is_over(&self) -> bool {
        self.last.elapsed() >= (self.truce() * 2).max(TRUCE_FIRST)
    }
}

impl Truces {
    /// Whether this correction must wait, because another writer keeps reverting it.
    pub(crate) fn is_on(&self, correction: &str) -> bool {
        self.lock().get(correction).is_some_and(|fight| fight.last.elapsed() < fight.truce())
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
        let mut fights = self.lock();
        let fight = fights.entry(correction);
        fight
            .and_modify(|fight| *fight = Fight { rounds: fight.rounds.saturating_add(1), last })
            .or_insert(Fight { rounds: first, last });
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Fight>> {
        let mut fights = locked(&self.fights);
        fights.retain(|_, fight| !fight.is_over());
        fights
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const CORRECTION: &str = "u1 at generation 1: Deployment mws-web at /spec/replicas";

    fn fight(truces: &Truces) {
        for _ in 0..ROUNDS {
            assert!(!truces.is_on(CORRECTION));
            truces.corrected(CORRECTION.to_owned());
        }
        assert!(truces.is_on(CORRECTION));
    }

    #[tokio::test(start_paused = true)]
    async fn a_fight_is_the_same_correction_again_and_again() {
        let truces = Truces::default();
        fight(&truces);
        assert!(!truces.is_on("u1 at generation 2: Deployment mws-web at /spec/replicas"));
        advance(TRUCE_FIRST).await;
        assert!(!truces.is_on(CORRECTION));
    }

    /// Every two minutes the replicas went up and down, for as long as an autoscaler wanted others than we.
    #[tokio::test(start_paused = true)]
    async fn each_truce_of_a_fight_is_twice_as_long_up_to_an_hour() {
        let truces = Truces::default();
        fight(&truces);
        for minutes in [2, 4, 8, 16, 32, 60, 60, 60] {
            // The key is looked at again within a minute.
            advance(Duration::from_secs(minutes * 60 - 1)).await;
            assert!(truces.is_on(CORRECTION), "{minutes}");
            advance(Duration::from_secs(60)).await;
            assert!(!truces.is_on(CORRECTION), "{minutes}");
            truces.corrected(CORRECTION.to_owned());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_correction_that_holds_ends_the_fight() {
        let truces = Truces::default();
        fight(&truces);
        advance(TRUCE_FIRST * 2).await;
        fight(&truces);
        assert_eq!(truces.lock().len(), 1);
        advance(TRUCE_MAX * 2).await;
        assert_eq!(truces.lock().len(), 0, "what is over takes no memory");
    }
}
