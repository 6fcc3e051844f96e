//! The operator is killed after each of its writes, before it gets the answer, and started again. It must get to the same state, and must
//! not create or delete anything a second time.
//!
//! It would have found rabbitmq/cluster-operator#782: died after it had deleted the StatefulSet, and never resized the claims.

use super::{
    super::{
        reference::{Reference, Trigger},
        report::{Outcome, Verdict},
        settings::{CannotJudge, Extent},
    },
    failure,
};

pub(super) const NAME: &str = "crash-between-writes";

/// Most crashes, unless [`Extent::Faults`] asks for all. Of more, the seed chooses.
const CRASHES_MAX: usize = 12;

pub(in super::super) async fn check(reference: &Reference<'_>) -> Result<Verdict, CannotJudge> {
    let mut triggers = reference.triggers.clone();
    if let Some(only) = reference.scorecard.trigger_of(NAME) {
        triggers.retain(|trigger| trigger.name == only);
        if triggers.is_empty() {
            return Ok(Verdict::new(Outcome::Skip, format!("the operator makes no such write: {only}")));
        }
    }
    let all = triggers.len();
    let mut random = fastrand::Rng::with_seed(reference.scorecard.seed);
    while triggers.len() > CRASHES_MAX && reference.scorecard.extent != Extent::Faults {
        triggers.remove(random.usize(..triggers.len()));
    }
    let (mut crashes, mut late) = (0, None);
    for trigger in &triggers {
        let Some(mut verdict) = crash(reference, trigger).await? else { continue };
        crashes += 1;
        // What shows only once may have another cause.
        if verdict.result == Outcome::Fail
            && crash(reference, trigger).await?.is_none_or(|again| again.result == Outcome::Pass)
        {
            verdict.result = Outcome::Warn;
            verdict.reason.push_str(" (in one of two runs)");
        }
        if let Some(failure) = failure(verdict, &mut late) {
            return Ok(failure);
        }
    }
    if crashes == 0 {
        return Ok(Verdict::new(Outcome::Skip, "none of the writes of the runs without a fault came again"));
    }
    Ok(late.unwrap_or_else(|| Verdict::pass(format!("{crashes} crashes, after {all} different writes"))))
}

/// `None`: the write did not come in this run.
async fn crash(reference: &Reference<'_>, trigger: &Trigger) -> Result<Option<Verdict>, CannotJudge> {
    let Some(mut lab) = reference.held_at(trigger).await? else { return Ok(None) };
    lab.kill().await;
    lab.server.end_faults();
    lab.start()?;
    lab.connected().await?;
    let after = format!("killed after {}", trigger.name);
    let mut verdict = reference.judge_counts(&mut lab, &after).await?;
    lab.end().await;
    verdict.trigger = Some(trigger.name.clone());
    Ok(Some(verdict))
}
