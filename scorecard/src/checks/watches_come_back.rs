//! The watches end in each of the ways that a server has: cleanly, in the middle of a line, with a 410. Later a child is deleted.
//!
//! It finds an operator that is deaf until its restart.

use listwatch_apiserver::Fault;

use super::{failure, no_children, with_children};
use crate::{reference::Reference, report::Verdict, settings::CannotJudge};

pub(crate) async fn check(reference: &Reference<'_>) -> Result<Verdict, CannotJudge> {
    let Some((mut lab, children)) = with_children(reference).await? else { return Ok(no_children()) };
    let mut late = None;
    for (fault, how) in [
        (Fault::EndWatches, "ended"),
        (Fault::CutWatches, "were cut"),
        (Fault::ExpireWatches, "got a 410 Expired"),
        (Fault::GoneWatches, "got a 410 Gone"),
    ] {
        lab.server.fault(fault);
        lab.settle().await?;
        lab.delete_children(children).await;
        let verdict = reference.judge(&mut lab, &format!("children deleted after the watches {how}")).await?;
        if let Some(failure) = failure(verdict, &mut late) {
            return Ok(failure);
        }
    }
    reference.give_back(lab).await;
    Ok(late.unwrap_or_else(|| Verdict::pass("the watches come back")))
}
