//! A namespace with the custom resources is deleted. It must go away, and the operator may not try for long to create objects in it.
//!
//! It would have found Kuadrant/mcp-gateway#1512: the clean-up creates a Secret, which is refused, so the finalizer stays.

use listwatch_apiserver::RequestRecord;

use crate::{
    reference::Reference,
    report::{Outcome, Verdict},
    settings::CannotJudge,
};

/// Refused creates of one kind: some were under way, some came before the event of the deletion.
const REFUSED_MAX: usize = 20;

pub(crate) async fn check(reference: &Reference<'_>) -> Result<Verdict, CannotJudge> {
    let mut lab = reference.settled().await?;
    if !lab.create_copies().await? {
        reference.give_back(lab).await;
        return Ok(Verdict::new(Outcome::Skip, "there can be no copy in another namespace"));
    }
    lab.settle().await?;
    let before = lab.server.request_count();
    lab.delete_second_namespace().await;
    lab.settle().await?;
    let left = lab.lasting(|lab| lab.left_in_second_namespace()).await?;
    if !left.is_empty() {
        return Ok(Verdict::fail(format!(
            "the namespace does not go away: still there: {}",
            left.join(", ")
        )));
    }
    let is_refused = |request: &RequestRecord| request.method == "POST" && request.status == 403;
    let refused = lab.requests_since(before).filter(is_refused).count();
    if refused > REFUSED_MAX {
        return Ok(Verdict::fail(format!(
            "{refused} creates were refused, because the namespace was being deleted"
        )));
    }
    let verdict = reference.judge(&mut lab, "another namespace was deleted").await?;
    reference.give_back(lab).await;
    Ok(verdict)
}
