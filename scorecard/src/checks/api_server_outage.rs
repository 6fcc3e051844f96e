//! All connections are closed, and each request gets a 503, until the operator has seen some. Later the children are deleted.
//!
//! It finds an operator that gives up, one that takes an error for an empty list, and one that tries again without a pause that grows.

use std::{collections::BTreeSet, time::Duration};

use listwatch_apiserver::Fault;
use tokio::time::Instant;

use super::{no_children, with_children};
use crate::{
    lab::Lab,
    reference::Reference,
    report::{Outcome, Verdict},
    settings::CannotJudge,
};

/// The shortest outage. A client that tries again after 20 ms, and doubles its pause, sends eight requests.
const OUTAGE: Duration = Duration::from_secs(3);

/// Requests that must fail before the outage ends.
const FAILURES: usize = 5;

pub(crate) async fn check(reference: &Reference<'_>) -> Result<Verdict, CannotJudge> {
    let Some((mut lab, children)) = with_children(reference).await? else { return Ok(no_children()) };
    let body = "the server is down for a test\n".to_owned();
    lab.server.fault(Fault::Answer { status: 503, body, retry_after_secs: None }.by(&lab.user()));
    lab.server.fault(Fault::Restart);
    let (since, started) = (lab.server.request_count(), Instant::now());
    lab.wait(OUTAGE).await;
    let hot_retry = lab.hot_retry(503, since, started);
    lab.until_refused(503, FAILURES.saturating_sub(lab.server.request_count() - since)).await;
    lab.server.end_faults();
    if let Some(hot_retry) = hot_retry {
        return Ok(Verdict::fail(format!("in an outage: {hot_retry}")));
    }
    // A deletion before this is a matter of missed-events.
    lab.lasting(|lab| unanswered(lab, since)).await?;
    lab.settle().await?;
    lab.delete_children(children).await;
    let verdict = reference.judge(&mut lab, "children deleted after an outage").await?;
    if verdict.result != Outcome::Pass {
        return Ok(verdict);
    }
    if let Some(incident) = lab.incidents().first() {
        return Ok(Verdict::new(
            Outcome::Warn,
            format!("in an outage: {incident}; started again, it settled"),
        ));
    }
    reference.give_back(lab).await;
    Ok(Verdict::pass("it goes on after an outage"))
}

/// The paths that the operator has read, since so many requests, with no other answer than a 503.
fn unanswered(lab: &Lab<'_>, since: usize) -> Vec<String> {
    let (mut refused, mut answered) = (BTreeSet::new(), BTreeSet::new());
    for request in lab.requests_since(since).filter(|request| request.method == "GET") {
        if request.status == 503 { &mut refused } else { &mut answered }.insert(request.path);
    }
    refused.difference(&answered).cloned().collect()
}
