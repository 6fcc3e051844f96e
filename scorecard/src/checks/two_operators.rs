//! The operator and the one of `--and` serve the samples together. Once settled, they may not write in turn. Each one is killed at each of its writes
//! and started again, while the other one goes on. The state must be that of a run of both without a crash.
//!
//! It finds two operators that set a field in turn, for ever, and one that misses what the other one has done while it was down.

use listwatch_apiserver::Fault;

use super::{judged_twice, quiet, worst};
use crate::{
    fault_choice::FaultChoice,
    process::Program,
    reference::{Reference, Trigger},
    report::{Outcome, Verdict},
    settings::CannotJudge,
};

pub(crate) const NAME: &str = "two-operators";

/// Most crashes without `--all`.
const CRASHES_MAX: usize = 8;

/// A write at which its operator is killed.
struct Crash<'r> {
    /// `COMMAND was killed after create/services/default/web#1`
    what: String,
    /// `after/create/services/default/web#1`, `and/before/update/services/default/web#1`
    name: String,
    trigger: &'r Trigger,
    /// Of the request, for a crash before the write, or of its answer.
    hold: Fault,
}

impl<'r> Crash<'r> {
    fn new(trigger: &'r Trigger, hold: Fault) -> Crash<'r> {
        let when = if hold == Fault::Hold { "before" } else { "after" };
        let what = format!("{} was killed {when} {}", trigger.program.name(), trigger.name);
        let of = if trigger.program == Program::Other { "and/" } else { "" };
        let name = format!("{of}{when}/{}", trigger.name);
        Crash { what, name, trigger, hold }
    }
}

pub(crate) async fn check(reference: &Reference<'_>) -> Result<Verdict, CannotJudge> {
    if reference.scorecard.and.is_empty() {
        return Ok(Verdict::new(Outcome::Skip, "no --and is given"));
    }
    let both = reference.both().await?;
    if let Some(fight) = fight(reference, both).await? {
        return Ok(Verdict::fail(fight));
    }
    if let Some(problem) = both.problems.iter().find(|problem| !reference.problems.contains(problem)) {
        return Ok(Verdict::fail(format!("both together, without a fault: {problem}")));
    }
    let choice = FaultChoice::of(reference.scorecard, NAME, CRASHES_MAX, crashes(both), |crash| &crash.name);
    let runs = choice.tried.iter().map(|crash| judged_twice(async || run(both, crash).await));
    let worst = worst(both, runs).await?.filter(|worst| worst.result != Outcome::Pass);
    let pass =
        || Verdict::pass(format!("quiet together, and {} beside the other one", choice.text("crashes")));
    Ok(choice.complete(worst.unwrap_or_else(pass)))
}

/// The crashes that `--only` can name.
pub(super) async fn faults(reference: &Reference<'_>) -> Result<Vec<String>, CannotJudge> {
    if reference.scorecard.and.is_empty() {
        return Ok(Vec::new());
    }
    Ok(crashes(reference.both().await?).into_iter().map(|crash| crash.name).collect())
}

/// Before the first write of each operator, and after each of its writes.
fn crashes<'r>(both: &'r Reference<'_>) -> Vec<Crash<'r>> {
    let mut crashes = Vec::new();
    for own in both.triggers.chunk_by(|one, next| one.program == next.program) {
        crashes.push(Crash::new(&own[0], Fault::Hold));
        crashes.extend(own.iter().map(|trigger| Crash::new(trigger, Fault::HoldAnswer)));
    }
    crashes
}

/// What both write in turn when they have settled, or what one of them writes, which it does not alone.
async fn fight(reference: &Reference<'_>, both: &Reference<'_>) -> Result<Option<String>, CannotJudge> {
    let mut lab = both.settled().await?;
    let (settled, known) = (lab.server.version(), reference.loops.iter().cloned().collect());
    let mut writes = quiet::writes(&mut lab, &known).await?;
    if writes.is_none() {
        writes = quiet::poke(&mut lab).await?;
    }
    let field = lab.written_by_two(settled);
    lab.end().await;
    let in_turn = |field| format!("COMMAND and the operator of --and write {field} in turn");
    Ok(field.map(in_turn).or_else(|| writes.map(|writes| format!("both together: {writes}"))))
}

async fn run(both: &Reference<'_>, crash: &Crash<'_>) -> Result<Verdict, CannotJudge> {
    let Some(mut lab) = both.held_at(crash.trigger, crash.hold.clone()).await? else {
        return Ok(Verdict::new(Outcome::Skip, "the writes did not come again"));
    };
    lab.kill_program(crash.trigger.program).await;
    // Not released: it would take effect.
    lab.within_fault(|| !lab.is_holding()).await;
    lab.server.end_faults();
    lab.settle().await?;
    let judged = async {
        lab.start()?;
        lab.connected().await?;
        both.judge(&mut lab, &crash.what).await
    };
    // It may end at its start.
    let judged = judged.await;
    let verdict = judged.unwrap_or_else(|CannotJudge(why)| Verdict::fail(format!("{}: {why}", crash.what)));
    lab.end().await;
    Ok(verdict.at(&crash.name))
}
