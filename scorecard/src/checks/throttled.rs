//! Children are deleted, and each request gets a 429 with `Retry-After: 1`, for a second. The operator must wait as long.

use std::{collections::BTreeMap, time::Duration};

use listwatch_apiserver::Fault;
use tokio::time::Instant;

use super::{no_children, with_children};
use crate::{lab::Lab, reference::Reference, report::Verdict, settings::CannotJudge};

/// Requests of one path within the second. A client sends one, and another before it has read the first answer.
const REQUESTS_MAX: usize = 5;

pub(crate) async fn check(reference: &Reference<'_>) -> Result<Verdict, CannotJudge> {
    let Some((mut lab, children)) = with_children(reference).await? else { return Ok(no_children()) };
    let before = lab.server.request_count();
    let body = "Too many requests, please try again later.\n".to_owned();
    lab.server.fault(Fault::Answer { status: 429, body, retry_after_secs: Some(1) }.by(&lab.user()));
    lab.delete_children(children).await;
    let started = Instant::now();
    lab.wait(Duration::from_secs(1)).await;
    // A busy machine makes it longer.
    let limit = REQUESTS_MAX * (started.elapsed().as_secs() as usize + 1) + children.len();
    let most = refused(&lab, before).into_iter().max_by_key(|(_, count)| *count);
    lab.server.end_faults();
    if let Some((path, count)) = most.filter(|(_, count)| *count > limit) {
        return Ok(Verdict::fail(format!(
            "{count} requests of {path} in a second, in spite of Retry-After: 1"
        )));
    }
    let verdict = reference.judge(&mut lab, "a child was deleted while each request got a 429").await?;
    reference.give_back(lab).await;
    Ok(verdict)
}

fn refused(lab: &Lab<'_>, before: usize) -> BTreeMap<String, usize> {
    let mut refused = BTreeMap::new();
    for request in lab.requests_since(before).filter(|request| request.status == 429) {
        *refused.entry(format!("{} {}", request.method, request.path)).or_default() += 1;
    }
    refused
}
