//! The custom resources are deleted: when the operator has settled, with `--cascade=foreground`, in the middle of its work, and while it is down,
//! also together with their children. Where the operator writes something for the deletion, it is killed after each of these writes, and started
//! again. The custom resources must go away, and everything that the operator created for them.
//!
//! It would have found zalando/postgres-operator#3162: Secrets that stay for ever.

use listwatch_apiserver::Fault;

use super::worst;
use crate::{
    fault_choice::FaultChoice,
    lab::ChildKey,
    reference::{Deleted, Reference, Trigger},
    report::{Outcome, Verdict},
    settings::CannotJudge,
};

pub(super) const NAME: &str = "deletes-cleanly";

/// Most deletions without `--all`.
const DELETIONS_MAX: usize = 12;

/// When the custom resources are deleted.
enum Moment<'r> {
    /// When the operator has settled, with this `propagationPolicy`.
    Settled(&'static str),
    Down,
    /// While the operator is down, and somebody also deletes the children.
    DownWithChildren,
    /// In the middle of the operator's work, after this write.
    After(&'r Trigger),
    /// When the operator has settled. It is killed when the server has this version, just after a write for the deletion.
    Crash(u64),
}

struct Deletion<'r> {
    /// `crash/update/pages.example.com/default/a#1`
    name: String,
    /// `deleted when settled (Background)`
    what: String,
    moment: Moment<'r>,
}

impl<'r> Deletion<'r> {
    fn new(name: impl Into<String>, what: impl Into<String>, moment: Moment<'r>) -> Deletion<'r> {
        Deletion { name: name.into(), what: what.into(), moment }
    }
}

pub(crate) async fn check(reference: &Reference<'_>) -> Result<Verdict, CannotJudge> {
    let deleted = reference.deleted().await?;
    let all = all(reference, deleted);
    let choice = FaultChoice::of(reference.scorecard, NAME, DELETIONS_MAX, all, |deletion| &deletion.name);
    let runs = choice.tried.iter().map(|deletion| run(reference, deleted, deletion));
    let worst = worst(reference, runs).await?.filter(|worst| worst.result != Outcome::Pass);
    let pass = || Verdict::pass(format!("{}, nothing is left", choice.text("deletions")));
    Ok(choice.complete(worst.unwrap_or_else(pass)))
}

/// The faults that `--only` can name.
pub(super) async fn faults(reference: &Reference<'_>) -> Result<Vec<String>, CannotJudge> {
    let deleted = reference.deleted().await?;
    Ok(all(reference, deleted).into_iter().map(|deletion| deletion.name).collect())
}

fn all<'r>(reference: &'r Reference<'_>, deleted: &Deleted<'_>) -> Vec<Deletion<'r>> {
    let settled = |policy| format!("deleted when settled ({policy})");
    let mut all = vec![
        Deletion::new("background", settled("Background"), Moment::Settled("Background")),
        Deletion::new("foreground", settled("Foreground"), Moment::Settled("Foreground")),
        Deletion::new("down", "deleted while the operator was down", Moment::Down),
        Deletion::new(
            "down-with-children",
            "deleted with its children while the operator was down",
            Moment::DownWithChildren,
        ),
    ];
    let triggers = &reference.triggers;
    let mut middle = vec![0, triggers.len() / 2];
    middle.dedup();
    for trigger in middle.into_iter().filter_map(|index| triggers.get(index)) {
        let what = format!("deleted after {}", trigger.name);
        all.push(Deletion::new(format!("after/{}", trigger.name), what, Moment::After(trigger)));
    }
    for write in &deleted.writes {
        let what = format!("deleted, and killed after {}", write.name);
        all.push(Deletion::new(format!("crash/{}", write.name), what, Moment::Crash(write.version)));
    }
    all
}

async fn run<'a>(
    reference: &Reference<'a>,
    deleted: &Deleted<'a>,
    deletion: &Deletion<'_>,
) -> Result<Verdict, CannotJudge> {
    let mut lab = match deletion.moment {
        Moment::Settled(policy) => {
            let lab = reference.settled().await?;
            lab.delete_samples(policy).await;
            lab
        }
        Moment::Down | Moment::DownWithChildren => {
            let mut lab = reference.settled().await?;
            let children: Vec<ChildKey> = lab.children().iter().map(ChildKey::of).collect();
            lab.kill().await;
            lab.delete_samples("Background").await;
            if matches!(deletion.moment, Moment::DownWithChildren) {
                lab.delete_children(&children).await;
            }
            lab.start()?;
            lab
        }
        Moment::After(trigger) => {
            let Some(lab) = reference.held_at(trigger, Fault::HoldAnswer).await? else {
                return Ok(Verdict::new(Outcome::Skip, "the write did not come"));
            };
            lab.delete_samples("Background").await;
            lab.server.end_faults();
            lab
        }
        Moment::Crash(version) => {
            let lab = reference.at_version_of(&deleted.lab, version).await?;
            // The write may have come before the deletion of the last sample.
            lab.delete_samples("Background").await;
            lab
        }
    };
    lab.connected().await?;
    let left = lab.lasting(|lab| lab.remaining()).await?;
    if !left.is_empty() {
        let why = format!("{}: still there: {}", deletion.what, left.join(", "));
        return Ok(Verdict::fail(why).at(&deletion.name));
    }
    if matches!(deletion.moment, Moment::After(_) | Moment::Crash(_)) {
        lab.end().await;
    } else {
        lab.create_samples_again().await?;
        lab.settle().await?;
        reference.give_back(lab).await;
    }
    Ok(Verdict::pass(&*deletion.what))
}
