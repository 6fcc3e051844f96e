//! The previous version of the operator has served the samples. The judged one takes over: after the previous one has stopped, and as in a rolling update,
//! while it still runs. The children must stay, what is right must not be written, and the state must be the one that the judged operator alone gets to.
//!
//! It finds a new version that renames a child and leaves the old one, and two versions that fight as long as both run.

use super::{quiet, worst};
use crate::{
    lab::ChildKey,
    process::Program,
    reference::Reference,
    report::{Outcome, Verdict},
    settings::CannotJudge,
    trial,
};

pub(crate) const NAME: &str = "upgrade";

/// Kinds whose spec is immutable: a changed one must be a new object.
const IMMUTABLE: [&str; 2] = ["Pod", "Job"];

/// When the judged operator starts.
#[derive(Clone, Copy)]
enum Start {
    AfterPrevious,
    BesidePrevious,
}

pub(crate) async fn check(reference: &Reference<'_>) -> Result<Verdict, CannotJudge> {
    if reference.scorecard.previous.is_empty() {
        return Ok(Verdict::new(Outcome::Skip, "no --previous is given"));
    }
    let (starts, what): (&[Start], &str) = match reference.jobs {
        1 => (
            &[Start::AfterPrevious],
            "it takes over; not tried beside the previous version: one runs at a time",
        ),
        _ => (
            &[Start::AfterPrevious, Start::BesidePrevious],
            "it takes over, also beside the previous version",
        ),
    };
    let worst = worst(reference, starts.iter().map(|start| run(reference, *start))).await?;
    Ok(worst.filter(|worst| worst.result != Outcome::Pass).unwrap_or_else(|| Verdict::pass(what)))
}

async fn run(reference: &Reference<'_>, start: Start) -> Result<Verdict, CannotJudge> {
    let previous = reference.previous().await?;
    let (mut own, version) = (previous.children(), previous.server.version());
    own.retain(|child| !IMMUTABLE.contains(&&*child.kind));
    let (mut lab, after) = match start {
        Start::AfterPrevious => {
            (reference.after_previous(Program::Judged).await?, "after the previous version has stopped")
        }
        Start::BesidePrevious => {
            let mut lab = reference.after_previous(Program::Previous).await?;
            lab.connected().await?;
            // A fight may begin before the judged operator has done what it does at its start.
            let known = lab.noise.clone();
            lab.programs.push(Program::Judged);
            lab.start()?;
            lab.connected().await?;
            if let Some(fight) = quiet::writes(&mut lab, &known).await? {
                return Ok(Verdict::fail(format!("while the previous version still runs: {fight}")));
            }
            lab.kill_program(Program::Previous).await;
            (lab, "beside the previous version, which then stopped")
        }
    };
    lab.connected().await?;
    let mask = trial::mask(reference, &lab);
    let verdict = lab.judge(&reference.state, &mask, after).await?;
    for child in &own {
        let now = lab.uid_of(&ChildKey::of(child));
        if now.is_some_and(|now| child.object["metadata"]["uid"] != now) {
            let name = format!("{}/{}", child.resource, child.key);
            return Ok(Verdict::fail(format!("{after}: {name} was deleted and created again")));
        }
    }
    let mut writes = lab.work_since(version);
    writes.retain(|write| write.user == lab.user());
    let needless = writes.iter().find_map(|write| reference.state.needless_change(write, &mask));
    lab.end().await;
    Ok(match needless {
        Some(field) if verdict.result == Outcome::Pass => {
            Verdict::fail(format!("{after}: {field} was written, although it was right"))
        }
        _ => verdict,
    })
}
