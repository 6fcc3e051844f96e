//! A user does not wait: three fields are changed in a row, a field is changed and changed back in the middle of the operator's work, or changed, such as
//! scaled up, before the custom resource is deleted. The operator must get to the state of the last spec. A sequence that fails is shortened as long as it
//! fails.
//!
//! The idea comes from Acto (SOSP 2023), which goes from state to state: <https://github.com/xlab-uiuc/acto>.

use http::Method;
use serde_json::Value;

use super::worst;
use crate::{
    fault_choice::FaultChoice,
    lab::Lab,
    reference::Reference,
    report::{Outcome, Verdict},
    settings::CannotJudge,
    spec_changes::Intent,
    trial::{self, FromNothing, Trial},
};

pub(super) const NAME: &str = "changes-in-a-row";

/// Most sequences without `--all`.
const SEQUENCES_MAX: usize = 4;

/// Changes in a row.
const CHANGES: usize = 3;

#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// The changes stay.
    Stay,
    /// They are taken back in the middle of the work.
    Back,
    /// The custom resources are deleted in the middle of the work.
    Deletion,
}

#[derive(Clone)]
struct Sequence<'r, 'a> {
    changes: Vec<&'r Trial<'a>>,
    end: End,
}

impl<'r, 'a> Sequence<'r, 'a> {
    /// `.spec.text#1+.spec.image#1`
    fn name(&self) -> String {
        let mut names: Vec<&str> = self.changes.iter().map(|change| &*change.name).collect();
        match self.end {
            End::Stay => {}
            End::Back => names.push("back"),
            End::Deletion => names.push("deletion"),
        }
        names.join("+")
    }

    fn what(&self) -> String {
        let mut steps: Vec<String> = self.changes.iter().map(|change| change.what()).collect();
        match self.end {
            End::Stay => {}
            End::Back => steps.push("at once back".to_owned()),
            End::Deletion => steps.push("at once deleted".to_owned()),
        }
        steps.join(", then ")
    }

    /// The sequences with one change less. A single change is for `applies-spec-changes`.
    fn shorter(&self) -> Vec<Sequence<'r, 'a>> {
        let count = if self.changes.len() > 2 { self.changes.len() } else { 0 };
        let without = |index: usize| {
            let mut shorter = self.clone();
            shorter.changes.remove(index);
            shorter
        };
        (0..count).map(without).collect()
    }
}

pub(crate) async fn check(reference: &Reference<'_>) -> Result<Verdict, CannotJudge> {
    let lab = reference.settled().await?;
    let trials = trial::trials(reference, &lab, Intent::Change).await;
    reference.give_back(lab).await;
    let all = all(reference, &trials);
    let all = all.into_iter().map(|sequence| (sequence.name(), sequence)).collect();
    let choice = FaultChoice::of(reference.scorecard, NAME, SEQUENCES_MAX, all, |(name, _)| name);
    let runs = choice.tried.iter().map(|(_, sequence)| shortened(reference, sequence));
    let nothing = || Verdict::new(Outcome::Skip, "the server accepts no change of the samples");
    let worst = worst(reference, runs).await?.unwrap_or_else(nothing);
    let pass = || Verdict::pass(format!("{} without a wait", choice.text("sequences of changes")));
    Ok(choice.complete(if worst.result == Outcome::Pass { pass() } else { worst }))
}

/// The faults that `--only` can name.
pub(super) async fn faults(reference: &Reference<'_>) -> Result<Vec<String>, CannotJudge> {
    let lab = reference.settled().await?;
    let trials = trial::trials(reference, &lab, Intent::Change).await;
    reference.give_back(lab).await;
    Ok(all(reference, &trials).iter().map(Sequence::name).collect())
}

/// All changes in an order that the seed chooses, three in a row, and each of them with its end in the middle of the work. With `--only`, which may name a
/// sequence that was shortened, also the shorter ones.
fn all<'r, 'a>(reference: &Reference<'_>, trials: &'r [Trial<'a>]) -> Vec<Sequence<'r, 'a>> {
    let mut shuffled: Vec<&Trial<'a>> = trials.iter().collect();
    fastrand::Rng::with_seed(reference.scorecard.seed).shuffle(&mut shuffled);
    let mut all = Vec::new();
    for changes in shuffled.chunks(CHANGES).filter(|changes| changes.len() > 1) {
        let sequence = Sequence { changes: changes.to_vec(), end: End::Stay };
        if !reference.scorecard.named_faults(NAME).is_empty() {
            all.extend(sequence.shorter());
        }
        all.push(sequence);
    }
    for end in [End::Back, End::Deletion] {
        all.extend(shuffled.iter().map(|change| Sequence { changes: vec![*change], end }));
    }
    all
}

/// The verdict of the shortest part of a sequence that fails.
async fn shortened(reference: &Reference<'_>, sequence: &Sequence<'_, '_>) -> Result<Verdict, CannotJudge> {
    let mut shortest = sequence.clone();
    let mut verdict = run(reference, sequence, Wait::AtOnce).await?;
    if verdict.result != Outcome::Fail {
        return Ok(verdict);
    }
    for shorter in sequence.shorter() {
        let of_shorter = run(reference, &shorter, Wait::AtOnce).await?;
        if of_shorter.result == Outcome::Fail {
            (shortest, verdict) = (shorter, of_shorter);
            break;
        }
    }
    if run(reference, &shortest, Wait::Settled).await?.result == Outcome::Fail {
        let why = "fails with a wait as well: see applies-spec-changes and deletes-cleanly";
        return Ok(Verdict::new(Outcome::Skip, format!("{} {why}", shortest.name())));
    }
    // On a busy machine, what was expected may have been looked at too early.
    if run(reference, &shortest, Wait::AtOnce).await?.result != Outcome::Fail {
        let reason = format!("{} (in one of two runs)", verdict.reason);
        return Ok(Verdict { result: Outcome::Warn, reason, ..verdict });
    }
    Ok(verdict)
}

/// What comes before the next step.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wait {
    /// Nothing, or before the end, the first write of the operator.
    AtOnce,
    /// The operator settles.
    Settled,
}

async fn run(
    reference: &Reference<'_>,
    sequence: &Sequence<'_, '_>,
    wait: Wait,
) -> Result<Verdict, CannotJudge> {
    // Not beside the judged run: the operator may be one that cannot run twice.
    let expected = match sequence.end {
        End::Stay => Some(from_nothing(reference, &sequence.changes).await?),
        End::Back | End::Deletion => None,
    };
    let mut lab = reference.settled().await?;
    let (before, mask) = (lab.server.version(), trial::mask(reference, &lab));
    for change in &sequence.changes {
        change.apply(&lab).await;
        if wait == Wait::Settled {
            lab.settle().await?;
        }
    }
    if sequence.end != End::Stay {
        lab.within_fault(|| !lab.work_since(before).is_empty()).await;
    }
    let verdict = match sequence.end {
        End::Stay => {
            let verdict = match &expected {
                Some(FromNothing::State(state)) => lab.judge(state, &mask, &sequence.what()).await?,
                Some(FromNothing::Refused | FromNothing::Stays) | None => {
                    Verdict::new(Outcome::Skip, "the operator refuses these changes")
                }
            };
            match trial::refusal(&lab, before) {
                Some(_) => Verdict::new(Outcome::Skip, "the operator refuses these changes"),
                None => verdict,
            }
        }
        End::Back => {
            for change in sequence.changes.iter().rev() {
                if !change.revert(&mut lab).await? {
                    return Ok(trial::stays());
                }
            }
            lab.judge(&reference.state, &mask, &sequence.what()).await?
        }
        End::Deletion => {
            lab.delete_samples("Background").await;
            lab.settle().await?;
            match &lab.lasting(|lab| lab.remaining()).await?[..] {
                [] => Verdict::pass(sequence.what()),
                left => Verdict::fail(format!("{}: still there: {}", sequence.what(), left.join(", "))),
            }
        }
    };
    lab.end().await;
    Ok(verdict.at(&sequence.name()))
}

/// The custom resources as they are now, to be created elsewhere.
async fn specs(lab: &Lab<'_>) -> Vec<Value> {
    let mut specs = Vec::new();
    for sample in lab.custom_samples() {
        let (_, mut now) = lab.request(Method::GET, &lab.path_of_sample(sample), Value::Null).await;
        now["metadata"] = sample["metadata"].clone();
        if let Some(fields) = now.as_object_mut() {
            fields.remove("status");
        }
        specs.push(now);
    }
    specs
}

/// What the operator makes of custom resources that have these changes from the beginning.
async fn from_nothing(reference: &Reference<'_>, changes: &[&Trial<'_>]) -> Result<FromNothing, CannotJudge> {
    let mut lab = reference.settled().await?;
    for change in changes {
        change.apply(&lab).await;
    }
    let specs = specs(&lab).await;
    lab.settle().await?;
    let found = trial::from_nothing(&mut lab, &specs).await?;
    lab.end().await;
    Ok(found)
}
