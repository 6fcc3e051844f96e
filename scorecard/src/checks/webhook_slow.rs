//! Each answer to the operator takes a fifth of the shortest `timeoutSeconds` of its webhooks. They must still answer in time, whatever they
//! read from the API server for it.
//!
//! It finds a webhook that sends a request for each object of a list: it fails when the API server is busy.

use listwatch_apiserver::Fault;

use super::no_webhooks;
use crate::{
    lab::webhooks,
    reference::Reference,
    report::{Outcome, Verdict},
    settings::CannotJudge,
};

/// Requests that a webhook may send one after the other, and a bit.
const SHARE: u32 = 5;

pub(crate) async fn check(reference: &Reference<'_>) -> Result<Verdict, CannotJudge> {
    if reference.scorecard.webhooks.is_empty() {
        return Ok(no_webhooks());
    }
    let mut lab = reference.settled().await?;
    if !lab.calls_any().await? {
        lab.end().await;
        return Ok(Verdict::new(Outcome::Skip, "no write of a sample calls a webhook"));
    }
    let delay = webhooks::timeout(reference.scorecard) / SHARE;
    lab.server.fault(Fault::Delay(delay).by(&lab.user()));
    if let Some(why) = lab.failed_call().await {
        let millis = delay.as_millis();
        return Ok(Verdict::fail(format!("while each answer to it takes {millis} ms: {why}")));
    }
    lab.end().await;
    Ok(Verdict::pass("its webhooks answer in time while the API server is slow"))
}
