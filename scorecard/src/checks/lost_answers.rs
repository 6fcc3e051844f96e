//! The operator creates an object, and does not get the answer. It must not create another one.
//!
//! It would have found kubernetes/kubernetes#104699: a create with a `generateName` was tried again.

use listwatch_apiserver::Fault;

use super::{
    super::{
        reference::Reference,
        report::{Outcome, Verdict},
        settings::CannotJudge,
    },
    failure,
};

/// Most creates whose answers are lost.
const CREATES_MAX: usize = 12;

pub(in super::super) async fn check(reference: &Reference<'_>) -> Result<Verdict, CannotJudge> {
    let creates = reference.triggers.iter().filter(|trigger| trigger.is_create());
    let creates: Vec<_> = creates.take(CREATES_MAX).collect();
    if creates.is_empty() {
        return Ok(Verdict::new(Outcome::Skip, "the operator creates nothing"));
    }
    let (mut late, mut lost) = (None, 0);
    for trigger in &creates {
        let mut lab = reference.with_fault(trigger, Fault::LoseAnswer).await?;
        let after = format!("the answer to {} was lost", trigger.name);
        let verdict = reference.judge_counts(&mut lab, &after).await?;
        lost += usize::from(!lab.has_faults());
        lab.end().await;
        if let Some(failure) = failure(verdict, &mut late) {
            return Ok(failure);
        }
    }
    if lost == 0 {
        return Ok(Verdict::new(Outcome::Skip, "none of the creates of the runs without a fault came again"));
    }
    Ok(late.unwrap_or_else(|| Verdict::pass(format!("{lost} lost answers"))))
}
