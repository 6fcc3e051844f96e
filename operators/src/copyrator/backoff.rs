//! The pauses between attempts at one copy, longer each time: after a failure, and after a correction, so that the operator and another
//! writer of the copy slow down. A change of the rule or of the copied object ends them.
//!
//! ```text
//!   refused, or the name is taken    1 s … 1 min; with more than 600 of those that last, ten a second
//!   changed or deleted by others     1 s … 1 min; from the third time on, a failure: Disputed
//! ```

use std::{
    collections::{HashMap, HashSet},
    sync::Mutex,
    time::Duration,
};

use listwatch::{
    backoff::Backoff,
    children::Refusal,
    resource::{Key, Uid},
};
use smol_str::SmolStr;
use tokio::time::Instant;

use super::{
    copy::Copyable,
    locked,
    outcome::{DISPUTED, Pause, disputed},
    plan::CopyStep,
    types::{CopyFailure, CopyratorRule},
};

/// Between attempts at one copy, as long as not too many have [lasting failures](CopyBackoff::is_lasting).
const BACKOFF: Backoff = Backoff { first: Duration::from_secs(1), cap: Duration::from_secs(60) };
/// From one attempt at a copy with a lasting failure to the next, on average: client-go's workqueues try again as often, ten times a
/// second. So 600 such copies are tried once a minute, and 10,000 in 17 minutes.
pub(super) const LASTING_EACH: Duration = Duration::from_millis(100);
/// The reasons of failures of the API server or of a webhook, which end without a change of a rule, a copy or a namespace.
const PASSING: [&str; 3] =
    [Refusal::AdmissionUnavailable.reason(), Refusal::InternalError.reason(), Refusal::Other.reason()];
/// So many corrections of a copy, each soon after the one before, are a dispute with another client. A user who edits a copy by
/// mistake does it once or twice.
const DISPUTED_AFTER: u32 = 3;
/// How long the number of attempts is remembered after the end of a pause.
const PAUSE_REMEMBERED: Duration = Duration::from_secs(120);

/// The uid of a rule, and one of its copies.
pub(super) type Place = (Uid, Key);

/// The copies that have failed or been corrected lately.
#[derive(Default)]
pub(super) struct CopyBackoffs(Mutex<HashMap<Place, CopyBackoff>>);

struct CopyBackoff {
    tries: u32,
    /// The number of corrections among them.
    corrections: u32,
    until: Instant,
    failure: Option<CopyFailure>,
    /// The copy was deleted. If it is still wanted, not by us. It may also have lost its label.
    is_lost: bool,
    /// The generation of the rule and the digest of the copy: after a change of either, there is no pause.
    wanted: (i64, SmolStr),
}

/// Why the next attempt at a copy comes after a pause.
pub(super) enum Setback {
    Failed(CopyFailure),
    /// Another client had changed or deleted the copy, and this attempt has corrected it.
    Corrected,
    /// The copy has changed since it was read.
    Outdated,
    /// The namespace is being deleted, or the copy was.
    Gone,
}

impl CopyBackoffs {
    /// Notes that a copy was deleted. It is restored at once, and pauses if it is deleted again soon.
    pub(super) fn lost(&self, place: Place) {
        let mut backoffs = locked(&self.0);
        let backoff = backoffs.entry(place).or_insert_with(CopyBackoff::new);
        backoff.failure.take_if(|failure| failure.reason != DISPUTED);
        backoff.is_lost = true;
    }

    /// The deleted copies of a rule.
    pub(super) fn all_lost(&self, rule: &Uid) -> HashSet<Key> {
        let now = Instant::now();
        let mut backoffs = locked(&self.0);
        backoffs.retain(|_, backoff| now < backoff.until + PAUSE_REMEMBERED);
        let lost = backoffs.iter().filter(|((uid, _), backoff)| uid == rule && backoff.is_lost);
        lost.map(|((_, key), _)| key.clone()).collect()
    }

    pub(super) fn is_lost(&self, place: &Place) -> bool {
        locked(&self.0).get(place).is_some_and(|backoff| backoff.is_lost)
    }

    /// Whether the last attempt at a copy did not succeed, or the copy was lost: an object that is in no watch may have its name.
    pub(super) fn has(&self, place: &Place) -> bool {
        locked(&self.0).contains_key(place)
    }

    /// Forgets a copy that is as it should be, or not wanted. If it is wanted again, it is a new one.
    pub(super) fn forget(&self, place: &Place) {
        locked(&self.0).remove(place);
    }

    /// A copy was found as it should be. A dispute about it may go on.
    pub(super) fn kept(&self, place: &Place) {
        let mut backoffs = locked(&self.0);
        match backoffs.get_mut(place) {
            Some(backoff) if backoff.is_dispute() => backoff.failure = None,
            Some(_) | None => drop(backoffs.remove(place)),
        }
    }

    /// The pause for whose end a step must wait.
    pub(super) fn pause<K: Copyable>(&self, rule: &CopyratorRule, step: &CopyStep<K>) -> Option<Pause> {
        let backoffs = locked(&self.0);
        if backoffs.is_empty() {
            return None;
        }
        let CopyBackoff { until, failure, wanted, .. } =
            backoffs.get(&(rule.metadata.uid.clone(), step.key()))?;
        let is_over = Instant::now() >= *until || *wanted != (rule.metadata.generation, step.digest());
        (!is_over).then(|| (failure.clone(), *until))
    }

    /// When to try again what fails now and lasts: the same time for all steps of a pass, so that a later pass tries them together.
    pub(super) fn try_lasting(&self) -> Instant {
        let lasting = locked(&self.0).values().filter(|backoff| backoff.is_lasting()).count();
        Instant::now() + LASTING_EACH * u32::try_from(lasting).unwrap_or(u32::MAX)
    }

    /// Begins the pause of a copy.
    pub(super) fn begin(
        &self,
        place: Place,
        wanted: (i64, SmolStr),
        setback: Setback,
        try_lasting: Instant,
    ) -> Pause {
        let key = place.1.clone();
        let mut backoffs = locked(&self.0);
        let backoff = backoffs.entry(place).or_insert_with(CopyBackoff::new);
        backoff.tries += 1;
        backoff.failure = match setback {
            Setback::Failed(failure) => Some(failure),
            Setback::Corrected | Setback::Outdated => {
                backoff.corrections += 1;
                backoff.is_dispute().then(|| disputed(&key))
            }
            Setback::Gone => None,
        };
        backoff.until =
            Instant::now() + BACKOFF.pause(backoff.tries, Duration::ZERO, &mut fastrand::Rng::new());
        if backoff.is_lasting() {
            backoff.until = backoff.until.max(try_lasting);
        }
        (backoff.is_lost, backoff.wanted) = (false, wanted);
        (backoff.failure.clone(), backoff.until)
    }
}

impl CopyBackoff {
    fn new() -> CopyBackoff {
        let (until, failure, wanted) = (Instant::now(), None, (0, SmolStr::default()));
        CopyBackoff { tries: 0, corrections: 0, until, failure, is_lost: false, wanted }
    }

    fn is_dispute(&self) -> bool {
        self.corrections >= DISPUTED_AFTER
    }

    /// Whether the last attempt failed for a reason that probably lasts until a user acts.
    fn is_lasting(&self) -> bool {
        self.failure.as_ref().is_some_and(|failure| !PASSING.contains(&&*failure.reason))
    }
}
