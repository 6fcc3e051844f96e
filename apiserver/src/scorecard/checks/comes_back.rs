//! A user makes a mistake that the schema allows, such as an image that does not exist, and takes it back. The operator must get to the
//! state before.
//!
//! It would have found pingcap/tidb-operator#4946: an affinity that cannot be met, reverted, and still stuck.

use super::super::{
    lab::Repaired,
    reference::Reference,
    report::{Outcome, Verdict},
    settings::CannotJudge,
    spec_changes::Intent,
    trial,
};

pub(super) const NAME: &str = "comes-back";

/// Most mistakes.
const MISTAKES_MAX: usize = 6;

pub(in super::super) async fn check(reference: &Reference<'_>) -> Result<Verdict, CannotJudge> {
    let mut lab = reference.settled().await?;
    let mut trials = trial::trials(reference, &lab, Intent::Mistake).await;
    if let Some(only) = reference.scorecard.trigger_of(NAME) {
        trials.retain(|trial| trial.name == only);
    }
    trials.truncate(MISTAKES_MAX);
    if trials.is_empty() {
        return Ok(Verdict::new(Outcome::Skip, "the CRD has no field with a mistake that is known"));
    }
    let (mask, mut late) = (trial::mask(reference, &lab), None);
    for trial in &trials {
        trial.apply(&lab).await;
        lab.settle().await?;
        trial.revert(&lab).await;
        let after = format!("{} and back", trial.what());
        let (result, evidence) = match lab.becomes(&reference.state, &mask).await? {
            Repaired::Yes => continue,
            Repaired::AfterPoke(evidence) => (Outcome::Warn, evidence),
            Repaired::No(evidence) => (Outcome::Fail, evidence),
        };
        let trigger = Some(trial.name.clone());
        let verdict = Verdict { trigger, ..Verdict::differs(result, &after, evidence) };
        if verdict.result == Outcome::Fail {
            return Ok(verdict);
        }
        late = Some(verdict);
    }
    reference.give_back(lab).await;
    Ok(late.unwrap_or_else(|| Verdict::pass(format!("{} mistakes, and back", trials.len()))))
}
