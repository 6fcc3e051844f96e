//! A backup of the API server is restored, so the versions go back: a client that resumes its watches waits for versions that are long in coming.
//! Then the children are deleted. An operator that only a restart repairs gets a warning, as most need one.
//!
//! It would have found kubernetes/kubernetes#107457: after a restore, blind for hours.

use listwatch_apiserver::Fault;

use super::{no_children, with_children};
use crate::{
    reference::Reference,
    report::{Outcome, Verdict},
    settings::CannotJudge,
};

/// Changes of each object that the restore takes back: more than follow it.
const CHANGES: usize = 20;

pub(crate) async fn check(reference: &Reference<'_>) -> Result<Verdict, CannotJudge> {
    let Some((mut lab, children)) = with_children(reference).await? else { return Ok(no_children()) };
    lab.server.fault(Fault::Backup);
    for _ in 0..CHANGES {
        lab.poke().await;
        lab.poke_children(children).await;
    }
    lab.settle().await?;
    lab.server.fault(Fault::Restore);
    lab.settle().await?;
    lab.delete_children(children).await;
    let verdict = reference.judge(&mut lab, "children deleted after a backup was restored").await?;
    if verdict.result != Outcome::Fail {
        lab.end().await;
        return Ok(verdict);
    }
    if reference.state.differences(&lab.snapshot(), &reference.mask).is_empty() {
        // Another change has repaired it.
        lab.end().await;
        return Ok(Verdict { result: Outcome::Warn, ..verdict });
    }
    lab.kill().await;
    lab.start()?;
    lab.connected().await?;
    let after = "children deleted after a backup was restored, and a restart";
    let restarted = reference.judge(&mut lab, after).await?;
    if restarted.result == Outcome::Fail {
        return Ok(restarted);
    }
    lab.end().await;
    let reason = format!("{} (repaired by a restart)", verdict.reason);
    Ok(Verdict { result: Outcome::Warn, reason, ..verdict })
}
