//! A user makes a mistake that the schema allows, such as an image that does not exist, and takes it back. The operator must get to the
//! state before.
//!
//! It would have found pingcap/tidb-operator#4946: an affinity that cannot be met, reverted, and still stuck.

use super::failure;
use crate::{
    fault_choice::FaultChoice,
    reference::Reference,
    report::{Outcome, Verdict},
    settings::CannotJudge,
    spec_changes::Intent,
    trial,
};

pub(super) const NAME: &str = "comes-back";

/// Most mistakes without `--all`.
const MISTAKES_MAX: usize = 6;

pub(crate) async fn check(reference: &Reference<'_>) -> Result<Verdict, CannotJudge> {
    let mut lab = reference.settled().await?;
    let trials = trial::trials(reference, &lab, Intent::Mistake).await;
    let choice = FaultChoice::of(reference.scorecard, NAME, MISTAKES_MAX, trials, |trial| &trial.name);
    if choice.tried.is_empty() {
        return Ok(Verdict::new(Outcome::Skip, "the CRD has no field with a mistake that is known"));
    }
    let (mask, mut late) = (trial::mask(reference, &lab), None);
    for trial in &choice.tried {
        trial.apply(&lab).await;
        lab.settle().await?;
        if !trial.revert(&mut lab).await? {
            return Ok(trial::stays());
        }
        let after = format!("{} and back", trial.what());
        let verdict = lab.judge(&reference.state, &mask, &after).await?;
        if let Some(failure) = failure(verdict.at(&trial.name), &mut late) {
            return Ok(failure);
        }
    }
    reference.give_back(lab).await;
    let pass = || Verdict::pass(format!("{}, and back", choice.text("mistakes")));
    Ok(choice.complete(late.unwrap_or_else(pass)))
}
