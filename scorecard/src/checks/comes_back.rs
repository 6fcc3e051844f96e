//! A user makes a mistake that the schema allows, such as an image that does not exist, and takes it back. The operator must get to the
//! state before.
//!
//! It would have found pingcap/tidb-operator#4946: an affinity that cannot be met, reverted, and still stuck.

use super::{fails_without_fault, failure};
use crate::{
    fault_choice::FaultChoice,
    lab::Lab,
    reference::Reference,
    report::{Outcome, Verdict},
    settings::CannotJudge,
    spec_changes::Intent,
    trial::{self, Trial},
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
    let changes = trial::trials(reference, &lab, Intent::Change).await;
    let (mask, mut late, mut count) = (trial::mask(reference, &lab), None, 0);
    let back = async |lab: &mut Lab<'_>, trial: &Trial<'_>| {
        trial.apply(lab).await;
        lab.settle().await?;
        if !trial.revert(lab).await? {
            return Ok(trial::stays());
        }
        lab.judge(&reference.state, &mask, &format!("{} and back", trial.what())).await
    };
    for trial in &choice.tried {
        let verdict = back(&mut lab, trial).await?;
        if verdict.result == Outcome::Skip {
            return Ok(verdict);
        }
        count += 1;
        let Some(failure) = failure(verdict.at(&trial.name), &mut late) else { continue };
        let is_same = |change: &&Trial<'_>| {
            std::ptr::eq(change.sample, trial.sample) && change.change.path == trial.change.path
        };
        let Some(change) = changes.iter().find(is_same) else { return Ok(failure) };
        if !fails_without_fault(reference, &mut lab, async |lab| back(lab, change).await).await? {
            return Ok(failure);
        }
        count -= 1;
        lab = reference.settled().await?;
    }
    reference.give_back(lab).await;
    if count == 0 {
        let why = "a right value of the same field does not come back either: see applies-spec-changes";
        return Ok(Verdict::new(Outcome::Skip, why));
    }
    let pass = || Verdict::pass(format!("{}, and back", choice.text("mistakes")));
    Ok(choice.complete(late.unwrap_or_else(pass)))
}
