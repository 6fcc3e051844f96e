//! Fields of the custom resource are changed, as its CRD suggests, and changed back. The operator must get to the state that it gets to
//! when the object is created with the new spec.
//!
//! It would have found OT-CONTAINER-KIT/redis-operator#290: a change of `resources` is ignored.

use super::failure;
use crate::{
    fault_choice::FaultChoice,
    lab::Lab,
    reference::Reference,
    report::{Outcome, Verdict},
    settings::CannotJudge,
    snapshot::Mask,
    spec_changes::Intent,
    trial::{self, FromNothing, Trial},
};

pub(super) const NAME: &str = "applies-spec-changes";

/// Most changes without `--all`.
const CHANGES_MAX: usize = 6;

pub(crate) async fn check(reference: &Reference<'_>) -> Result<Verdict, CannotJudge> {
    let mut lab = reference.settled().await?;
    let trials = trial::trials(reference, &lab, Intent::Change).await;
    let mut choice = FaultChoice::of(reference.scorecard, NAME, CHANGES_MAX, trials, |trial| &trial.name);
    if choice.tried.is_empty() {
        return Ok(Verdict::new(Outcome::Skip, "the server accepts no change of the samples"));
    }
    let mask = trial::mask(reference, &lab);
    let (mut trials, mut expected, mut staying) = (Vec::new(), Vec::new(), Vec::new());
    for trial in std::mem::take(&mut choice.tried) {
        let found = trial.create_anew(&mut lab).await?;
        if matches!(found, FromNothing::Stays) {
            return Ok(trial::stays());
        }
        if trial::remove(&mut lab).await? {
            trials.push(trial);
            expected.push(found);
            continue;
        }
        // What stays would be in the way of the next change.
        staying.push(trial.change.path);
        lab.end().await;
        lab = reference.settled().await?;
    }
    choice.tried = trials;
    let trials = &choice.tried;
    if trials.is_empty() {
        return Ok(trial::stays());
    }
    let samples: Vec<_> = lab.custom_samples().cloned().collect();
    trial::replace(&mut lab, &samples).await?;
    lab.settle().await?;
    let differences = |lab: &Lab| reference.state.differences(&lab.snapshot(), &mask);
    if !lab.lasting(differences).await?.is_empty() {
        return Ok(Verdict::new(
            Outcome::Skip,
            "created again, the samples get to another state: see recreated",
        ));
    }
    let (mut late, mut without_effect) = (None, Vec::new());
    for (trial, expected) in trials.iter().zip(&expected) {
        if !has_effect(reference, &lab, expected, trial) {
            without_effect.push(trial.change.path.clone());
        }
        let verdict = judge(reference, &mut lab, trial, expected, &mask).await?;
        if let Some(failure) = failure(verdict.at(&trial.name), &mut late) {
            return Ok(failure);
        }
    }
    lab.end().await;
    let mut reason = format!("{}, and back", choice.text("changes"));
    // It may be one outside of the API server.
    add(&mut reason, "no effect was seen of", without_effect);
    add(&mut reason, "objects stay when the samples are deleted after a change of", staying);
    Ok(choice.complete(late.unwrap_or_else(|| Verdict::pass(reason))))
}

/// Names the fields of which a pass says something else, each once.
fn add(reason: &mut String, what: &str, mut paths: Vec<String>) {
    paths.sort_unstable();
    paths.dedup();
    if !paths.is_empty() {
        *reason = format!("{reason}; {what} {}", paths.join(", "));
    }
}

/// Whether anything but the custom resource differs.
fn has_effect(reference: &Reference<'_>, lab: &Lab<'_>, expected: &FromNothing, trial: &Trial<'_>) -> bool {
    let FromNothing::State(state) = expected else { return true };
    let (mut mask, name) = (reference.mask.clone(), lab.name_of_sample(trial.sample));
    mask.collections.extend(name.split('/').next().map(str::to_owned));
    !reference.state.differences(state, &mask).is_empty()
}

async fn judge(
    reference: &Reference<'_>,
    lab: &mut Lab<'_>,
    trial: &Trial<'_>,
    expected: &FromNothing,
    mask: &Mask,
) -> Result<Verdict, CannotJudge> {
    trial.apply(lab).await;
    let mut warning = None;
    if let FromNothing::State(state) = expected {
        let verdict = lab.judge(state, mask, &trial.what()).await?;
        if let Some(failure) = failure(verdict, &mut warning) {
            let changed = lab.snapshot();
            let is_late = state.differences(&changed, mask).is_empty();
            if is_late {
                return Ok(failure);
            }
            // The expected state may have been seen too early.
            let again = trial.create_anew(lab).await?;
            if !matches!(again, FromNothing::State(again) if again.differences(&changed, mask).is_empty()) {
                return Ok(failure);
            }
        }
    }
    if !trial.revert(lab).await? {
        return Ok(trial::stays());
    }
    let back = lab.judge(&reference.state, mask, &format!("{} and back", trial.what())).await?;
    Ok(warning.filter(|_| back.result == Outcome::Pass).unwrap_or(back))
}
