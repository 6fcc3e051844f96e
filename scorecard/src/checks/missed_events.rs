//! Children are deleted while the watch of their kind is stalled; then the watch ends with a 410. Nobody sees the deletion as an event: it
//! shows only in the next list.
//!
//! It would have found instaclustr/cassandra-operator#398: a missed `deletionTimestamp`, so a claim stayed for ever.

use listwatch_apiserver::Fault;

use super::{by_kind, failure, no_children, with_children};
use crate::{reference::Reference, report::Verdict, settings::CannotJudge};

pub(crate) async fn check(reference: &Reference<'_>) -> Result<Verdict, CannotJudge> {
    let Some((mut lab, children)) = with_children(reference).await? else { return Ok(no_children()) };
    let (kinds, mut late) = (by_kind(children), None);
    for (path, children) in &kinds {
        lab.server.fault(Fault::StallWatches.on("", path));
        lab.delete_children(children).await;
        lab.server.fault(Fault::ExpireWatches.on("", path));
        lab.settle().await?;
        lab.server.end_faults();
        let after =
            format!("{}/{} was deleted, and its watch got a 410", children[0].resource, children[0].key);
        if let Some(failure) = failure(reference.judge(&mut lab, &after).await?, &mut late) {
            return Ok(failure);
        }
    }
    reference.give_back(lab).await;
    Ok(late.unwrap_or_else(|| Verdict::pass(format!("{} kinds", kinds.len()))))
}
