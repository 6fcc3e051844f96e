//! The custom resources are deleted: when the operator has settled, with `--cascade=foreground`, in the middle of its work, and while it
//! is down. They must go away, and everything that the operator created for them.
//!
//! It would have found zalando/postgres-operator#3162: Secrets that stay for ever.

use super::super::{lab::Lab, reference::Reference, report::Verdict, settings::CannotJudge};

pub(in super::super) async fn check(reference: &Reference<'_>) -> Result<Verdict, CannotJudge> {
    let mut lab = reference.settled().await?;
    let mut count = 0;
    for policy in ["Background", "Foreground"] {
        lab.delete_samples(policy).await;
        if let Some(verdict) = leaks(&mut lab, &format!("deleted when settled ({policy})")).await? {
            return Ok(verdict);
        }
        lab.create_samples_again().await?;
        lab.settle().await?;
        count += 1;
    }
    lab.kill().await;
    lab.delete_samples("Background").await;
    lab.start()?;
    lab.connected().await?;
    if let Some(verdict) = leaks(&mut lab, "deleted while the operator was down").await? {
        return Ok(verdict);
    }
    lab.create_samples_again().await?;
    lab.settle().await?;
    reference.give_back(lab).await;
    let triggers = &reference.triggers;
    let mut middle: Vec<usize> = vec![0, triggers.len() / 2];
    middle.dedup();
    for trigger in middle.into_iter().filter_map(|index| triggers.get(index)) {
        let Some(mut lab) = reference.held_at(trigger).await? else { continue };
        lab.delete_samples("Background").await;
        lab.server.end_faults();
        if let Some(verdict) = leaks(&mut lab, &format!("deleted after {}", trigger.name)).await? {
            return Ok(verdict);
        }
        lab.end().await;
        count += 1;
    }
    Ok(Verdict::pass(format!("{} deletions, nothing is left", count + 1)))
}

async fn leaks(lab: &mut Lab<'_>, when: &str) -> Result<Option<Verdict>, CannotJudge> {
    lab.settle().await?;
    let left = lab.lasting(|lab| lab.remaining()).await?;
    if left.is_empty() {
        return Ok(None);
    }
    Ok(Some(Verdict::fail(format!("{when}: still there: {}", left.join(", ")))))
}
