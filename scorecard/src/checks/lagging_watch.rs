//! The watch of one kind of children sends nothing while the operator creates them, and while something else wakes it. It may not see its own
//! writes, and must not do them again.
//!
//! It would have found scylladb/scylla-operator#2492: the created object was not in the cache yet, so a second one was created.

use std::collections::BTreeSet;

use listwatch_apiserver::Fault;

use super::failure;
use crate::{
    fault_choice::FaultChoice,
    reference::{Reference, Trigger},
    report::{Outcome, Verdict},
    settings::CannotJudge,
};

pub(super) const NAME: &str = "lagging-watch";

/// Most kinds without `--all`. Each costs a run.
const KINDS_MAX: usize = 4;

pub(crate) async fn check(reference: &Reference<'_>) -> Result<Verdict, CannotJudge> {
    let choice = FaultChoice::of(reference.scorecard, NAME, KINDS_MAX, faults(reference), |plural| plural);
    if choice.tried.is_empty() {
        return Ok(Verdict::new(Outcome::Skip, "the operator creates nothing"));
    }
    let mut late = None;
    for plural in &choice.tried {
        let mut lab = reference.lab().await?;
        lab.connected().await?;
        lab.server.fault(Fault::StallWatches.on("", &format!("/{plural}?")));
        lab.create_samples().await?;
        lab.settle().await?;
        lab.poke().await;
        lab.settle().await?;
        lab.server.end_faults();
        let after = format!("the watch of {plural} lagged");
        let verdict = reference.judge_counts(&mut lab, &after).await?;
        lab.end().await;
        if let Some(failure) = failure(verdict.at(plural), &mut late) {
            return Ok(failure);
        }
    }
    let pass = || Verdict::pass(format!("{} lagged", choice.text("kinds")));
    Ok(choice.complete(late.unwrap_or_else(pass)))
}

/// The faults that `--only` can name: the kinds of the children.
pub(super) fn faults(reference: &Reference<'_>) -> Vec<String> {
    let creates = reference.triggers.iter().filter(|trigger| trigger.is_create());
    let plurals: BTreeSet<&str> = creates.map(Trigger::plural).collect();
    plurals.into_iter().map(str::to_owned).collect()
}
