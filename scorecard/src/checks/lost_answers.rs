//! The operator creates an object, and does not get the answer. It must not create another one.
//!
//! It would have found kubernetes/kubernetes#104699: a create with a `generateName` was tried again.

use listwatch_apiserver::Fault;

use super::failure;
use crate::{
    fault_choice::FaultChoice,
    reference::{Reference, Trigger},
    report::{Outcome, Verdict},
    settings::CannotJudge,
};

pub(super) const NAME: &str = "lost-answers";

/// Most creates whose answers are lost, without `--all`.
const CREATES_MAX: usize = 12;

pub(crate) async fn check(reference: &Reference<'_>) -> Result<Verdict, CannotJudge> {
    let choice =
        FaultChoice::of(reference.scorecard, NAME, CREATES_MAX, creates(reference), |trigger| &trigger.name);
    if choice.tried.is_empty() {
        return Ok(Verdict::new(Outcome::Skip, "the operator creates nothing"));
    }
    let (mut late, mut lost) = (None, 0);
    for trigger in &choice.tried {
        let mut lab = reference.with_fault(trigger, Fault::LoseAnswer).await?;
        let after = format!("the answer to {} was lost", trigger.name);
        let verdict = reference.judge_counts(&mut lab, &after).await?;
        lost += usize::from(!lab.has_faults());
        lab.end().await;
        if let Some(failure) = failure(verdict.at(&trigger.name), &mut late) {
            return Ok(failure);
        }
    }
    if lost == 0 {
        return Ok(Verdict::new(Outcome::Skip, "none of the creates of the runs without a fault came again"));
    }
    let pass = || Verdict::pass(format!("the answers to {} were lost", choice.text("creates")));
    Ok(choice.complete(late.unwrap_or_else(pass)))
}

/// The faults that `--only` can name.
pub(super) fn faults(reference: &Reference<'_>) -> Vec<String> {
    creates(reference).into_iter().map(|trigger| trigger.name.clone()).collect()
}

fn creates<'r>(reference: &'r Reference<'_>) -> Vec<&'r Trigger> {
    reference.triggers.iter().filter(|trigger| trigger.is_create()).collect()
}
