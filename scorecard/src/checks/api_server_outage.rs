//! All connections are closed, and each request gets a 503, until the operator has seen some. Later the children are deleted.
//!
//! It finds an operator that gives up, and one that takes an error for an empty list.

use listwatch_apiserver::Fault;

use super::{
    super::{
        reference::Reference,
        report::{Outcome, Verdict},
        settings::CannotJudge,
    },
    no_children,
};

/// Requests that must fail before the outage ends.
const FAILURES: usize = 5;

pub(in super::super) async fn check(reference: &Reference<'_>) -> Result<Verdict, CannotJudge> {
    let children = reference.repaired().await?;
    if children.is_empty() {
        return Ok(no_children());
    }
    let mut lab = reference.settled().await?;
    let body = "the server is down for a test\n".to_owned();
    lab.server.fault(Fault::Answer { status: 503, body, retry_after_secs: None }.by(&lab.user()));
    lab.server.fault(Fault::Restart);
    lab.until_refused(503, FAILURES).await;
    lab.server.end_faults();
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
