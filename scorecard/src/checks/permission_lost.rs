//! For a while, the operator may not list and watch a kind of its children, nor read or write them. Later these are deleted.
//!
//! It would have found fabric8io/kubernetes-client#4527: an informer that stops for ever after a 403.

use listwatch_apiserver::Fault;

use super::{by_kind, failure, no_children, with_children};
use crate::{reference::Reference, report::Verdict, settings::CannotJudge};

/// Requests that must be refused before the permission comes back.
const REFUSALS: usize = 2;

pub(crate) async fn check(reference: &Reference<'_>) -> Result<Verdict, CannotJudge> {
    let Some((mut lab, children)) = with_children(reference).await? else { return Ok(no_children()) };
    let (kinds, mut late) = (by_kind(children), None);
    for (path, children) in &kinds {
        let plural = path.trim_end_matches('?');
        lab.server.fault(Fault::Forbidden(Vec::new()).on("", plural).by(&lab.user()));
        // Open watches stay open.
        lab.server.fault(Fault::ExpireWatches.on("", path));
        lab.until_refused(403, REFUSALS).await;
        lab.server.end_faults();
        lab.settle().await?;
        lab.delete_children(children).await;
        let after =
            format!("{}/{} deleted after its kind was forbidden", children[0].resource, children[0].key);
        if let Some(failure) = failure(reference.judge(&mut lab, &after).await?, &mut late) {
            return Ok(failure);
        }
    }
    reference.give_back(lab).await;
    Ok(late.unwrap_or_else(|| Verdict::pass(format!("{} kinds were forbidden", kinds.len()))))
}
