//! All that the operator creates for one of the custom resources is refused. Meanwhile a child of another one is deleted, and must come back.
//!
//! What is refused may be tried again only with pauses that grow.
//!
//! It would have found kairos-io/kairos#4835: one object blocks the operator for all.

use std::time::Duration;

use listwatch_apiserver::Fault;
use tokio::time::Instant;

use super::{no_children, with_children};
use crate::{
    lab::SECOND,
    reference::Reference,
    report::{Outcome, Verdict},
    settings::CannotJudge,
};

/// How long the retries are counted. A queue that begins with 5 ms, and doubles its pause, sends ten requests.
const RETRIES: Duration = Duration::from_secs(3);

pub(crate) async fn check(reference: &Reference<'_>) -> Result<Verdict, CannotJudge> {
    let Some((mut lab, children)) = with_children(reference).await? else { return Ok(no_children()) };
    let (webhook, message) = ("deny.example.com".to_owned(), "refused for a test".to_owned());
    let deny = Fault::Deny { webhook, message, code: 403 };
    lab.server.fault(deny.clone().on("POST", &format!("/namespaces/{SECOND}/")).by(&lab.user()));
    let applied = reference.triggers.iter().filter(|trigger| trigger.is_create() && trigger.method != "POST");
    for trigger in applied {
        let path = format!("/namespaces/{SECOND}/{}/", trigger.plural());
        lab.server.fault(deny.clone().on(&trigger.method, &path).by(&lab.user()));
    }
    if !lab.create_copies().await? {
        reference.give_back(lab).await;
        return Ok(Verdict::new(Outcome::Skip, "there can be no copy in another namespace"));
    }
    let (since, started) = (lab.server.request_count(), Instant::now());
    lab.wait(RETRIES).await;
    if let Some(hot_retry) = lab.hot_retry(403, since, started) {
        return Ok(Verdict::fail(hot_retry));
    }
    lab.settle().await?;
    lab.delete_children(children).await;
    lab.settle().await?;
    let missing = lab.lasting(|lab| lab.missing(children)).await?;
    if let Some(first) = missing.first() {
        return Ok(Verdict::fail(format!(
            "{}/{} was not created again beside an object whose children are refused",
            first.resource, first.key
        )));
    }
    lab.server.end_faults();
    lab.delete_copies().await?;
    let verdict = reference.judge(&mut lab, "the bad object was deleted").await?;
    reference.give_back(lab).await;
    Ok(verdict)
}
