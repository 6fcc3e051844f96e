//! Giving way to another writer, who undoes what we write: a HorizontalPodAutoscaler on the Deployment, say. The two of us
//! must not write without end, and the longer it lasts, the less it helps to try again.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use tokio::time::Instant;

use crate::locked;

/// So many times the same correction, each soon after the one before, is a fight.
const ROUNDS: u32 = 5;
/// How long the first truce of a fight lasts, and how soon a correction must follow another one to be a round. Each further
/// round means a truce of twice the time.
const TRUCE_FIRST: Duration = Duration::from_secs(120);
/// How long a field that is ours stays as somebody else wants it, at most, when they have stopped.
const TRUCE_MAX: Duration = Duration::from_secs(3600);

/// The fights that are on. What is corrected is known by a text that names owner, generation, child and fields.
#[derive(Default)]
pub(super) struct Truces {
    fights: Mutex<HashMap<String, Fight>>,
}

struct Fight {
    rounds: u32,
    last: Instant,
}

impl Fight {
    /// How long after the last correction the next one is made.
    fn truce(&self) -> Duration {
        match self.rounds.checked_sub(ROUNDS) {
            None => Duration::ZERO,
            Some(doublings) => TRUCE_FIRST.saturating_mul(1 << doublings.min(16)).min(TRUCE_MAX),
        }
    }

    /// Whether the last correction held for so long that the next one has nothing to do with it.
    fn is_over(&self) -> bool {
        self.last.elapsed() >= (self.truce() * 2).max(TRUCE_FIRST)
    }
}

impl Truces {
    /// Whether to give way for now, because somebody keeps undoing this correction.
    pub(super) fn is_on(&self, correction: &str) -> bool {
        self.lock().get(correction).is_some_and(|fight| fight.last.elapsed() < fight.truce())
    }

    /// It was made once more.
    pub(super) fn corrected(&self, correction: String) {
        let mut fights = self.lock();
        let fight = fights.entry(correction).or_insert(Fight { rounds: 0, last: Instant::now() });
        fight.rounds = fight.rounds.saturating_add(1);
        fight.last = Instant::now();
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
