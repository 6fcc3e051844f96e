//! The files with the certificate of the webhooks are replaced while the operator runs, as cert-manager does, by a certificate of a new authority.
//! The operator must serve it.
//!
//! It finds an operator that reads the files once: when its certificate ends, nobody can write its objects until its restart.

use std::time::Duration;

use super::no_webhooks;
use crate::{
    reference::Reference,
    report::{Outcome, Verdict},
    settings::CannotJudge,
};

/// How long the operator may take: controller-runtime also looks at its files each ten seconds.
const RELOAD_MAX: Duration = Duration::from_secs(15);

/// How often to look.
const LOOK: Duration = Duration::from_millis(500);

pub(crate) async fn check(reference: &Reference<'_>) -> Result<Verdict, CannotJudge> {
    if reference.scorecard.webhooks.is_empty() {
        return Ok(no_webhooks());
    }
    let mut lab = reference.settled().await?;
    let identity = lab.trust_new_authority().await?;
    if lab.failed_call().await.is_none() {
        lab.end().await;
        return Ok(Verdict::new(Outcome::Skip, "no write of a sample calls a webhook"));
    }
    lab.replace_certificate(&identity)?;
    let (limit, mut waited) = (RELOAD_MAX.max(reference.scorecard.patience), Duration::ZERO);
    while let Some(why) = lab.failed_call().await {
        if waited > limit {
            let secs = limit.as_secs();
            return Ok(Verdict::fail(format!("its certificate was replaced, and {secs} s later: {why}")));
        }
        waited += LOOK;
        lab.wait(LOOK).await;
    }
    lab.end().await;
    Ok(Verdict::pass("it serves a new certificate without a restart"))
}
