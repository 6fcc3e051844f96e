//! The watches of the children are silent, and their connections stay open, as behind a load balancer that has forgotten them. Children are
//! deleted. A client that trusts the silence learns of it only when its watch ends, so the check waits for long, and at most warns.

use listwatch_apiserver::Fault;

use super::{by_kind, no_children, with_children};
use crate::{
    reference::Reference,
    report::{Outcome, Verdict},
    settings::CannotJudge,
};

/// How often it waits for as long as a difference may last otherwise.
const WAITS: u32 = 4;

pub(crate) async fn check(reference: &Reference<'_>) -> Result<Verdict, CannotJudge> {
    let Some((mut lab, children)) = with_children(reference).await? else { return Ok(no_children()) };
    for path in by_kind(children).keys() {
        lab.server.fault(Fault::StallWatches.on("", path).by(&lab.user()));
    }
    lab.delete_children(children).await;
    let mut missing = Vec::new();
    for _ in 0..WAITS {
        missing = lab.lasting(|lab| lab.missing(children)).await?;
        if missing.is_empty() {
            break;
        }
    }
    lab.end().await;
    let Some(first) = missing.first() else {
        return Ok(Verdict::pass("children were created again while their watches were silent"));
    };
    let secs = (reference.scorecard.patience * WAITS).as_secs();
    let reason = format!(
        "{}/{} was not created again within {secs} s, while its watch was silent",
        first.resource, first.key
    );
    Ok(Verdict::new(Outcome::Warn, reason))
}
