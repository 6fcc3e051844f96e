//! The operator is killed between its writes, and started again. It must get to the same state, and must not create or delete anything a
//! second time.
//!
//! What a killed operator leaves behind is a state of the API server. So a crash is a new server with the state that the first run without a
//! fault had just after a write, or just before it, and an operator that starts there.
//!
//! It would have found rabbitmq/cluster-operator#782: died after it had deleted the StatefulSet, and never resized the claims.

use super::{judged_twice, worst};
use crate::{
    fault_choice::FaultChoice,
    reference::{Reference, Trigger},
    report::{Outcome, Verdict},
    settings::CannotJudge,
};

pub(super) const NAME: &str = "crash-between-writes";

/// Most crashes without `--all`.
const CRASHES_MAX: usize = 15;

/// What the name of a crash before a write begins with.
const BEFORE: &str = "before:";

/// A moment at which the operator is killed.
struct Crash {
    /// `create/services/default/web#1` after this write, `before:create/services/default/web#1` before it.
    name: String,
    /// The version of the last write before it.
    version: u64,
}

impl Crash {
    fn after(trigger: &Trigger) -> Crash {
        Crash { name: trigger.name.clone(), version: trigger.version }
    }

    /// The request does not arrive.
    fn before(trigger: &Trigger) -> Crash {
        Crash { name: format!("{BEFORE}{}", trigger.name), version: trigger.version - 1 }
    }

    /// `killed after create/services/default/web#1`
    fn description(&self) -> String {
        match self.name.strip_prefix(BEFORE) {
            Some(write) => format!("killed before {write}"),
            None => format!("killed after {}", self.name),
        }
    }
}

pub(crate) async fn check(reference: &Reference<'_>) -> Result<Verdict, CannotJudge> {
    let choice =
        FaultChoice::of(reference.scorecard, NAME, CRASHES_MAX, crashes(reference), |crash| &crash.name);
    if choice.tried.is_empty() {
        return Ok(Verdict::new(Outcome::Skip, "the operator makes no write that each run has"));
    }
    let runs = choice.tried.iter().map(|crash| judged_twice(async || run(reference, crash).await));
    let worst = worst(reference, runs).await?.filter(|worst| worst.result != Outcome::Pass);
    let writes = reference.triggers.len();
    let pass = || Verdict::pass(format!("{}, between {writes} different writes", choice.text("crashes")));
    Ok(choice.complete(worst.unwrap_or_else(pass)))
}

/// The crashes that `--only` can name.
pub(super) fn faults(reference: &Reference<'_>) -> Vec<String> {
    all_crashes(reference).map(|crash| crash.name).collect()
}

fn all_crashes(reference: &Reference<'_>) -> impl Iterator<Item = Crash> {
    reference.triggers.iter().flat_map(|trigger| [Crash::after(trigger), Crash::before(trigger)])
}

/// After each write, and before the first, one in the middle, and the last. The state before a write is that after the last one, unless a
/// controller has written between them.
fn crashes(reference: &Reference<'_>) -> Vec<Crash> {
    let all = &reference.triggers;
    if !reference.scorecard.named_faults(NAME).is_empty() {
        return all_crashes(reference).collect();
    }
    let mut before = vec![0, all.len() / 2, all.len().saturating_sub(1)];
    before.dedup();
    let before = before.into_iter().filter_map(|index| all.get(index)).map(Crash::before);
    let mut crashes: Vec<Crash> = all.iter().map(Crash::after).chain(before).collect();
    crashes.sort_by_key(|crash| crash.version);
    crashes.dedup_by_key(|crash| crash.version);
    crashes
}

async fn run(reference: &Reference<'_>, crash: &Crash) -> Result<Verdict, CannotJudge> {
    let mut lab = reference.at(crash.version).await?;
    let judged = async {
        lab.connected().await?;
        reference.judge_counts(&mut lab, &crash.description()).await
    };
    // It may end at each start.
    let judged = judged.await;
    let verdict =
        judged.unwrap_or_else(|CannotJudge(why)| Verdict::fail(format!("{}: {why}", crash.description())));
    lab.end().await;
    Ok(verdict.at(&crash.name))
}
