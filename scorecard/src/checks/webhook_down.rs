//! The operator is down, and its webhooks do not answer. Somebody deletes its children and its custom resources, which must be accepted; when it is
//! started again, they must go away.
//!
//! It finds a webhook for deletions with the `failurePolicy` Fail: a namespace with the object cannot go away either.

use http::Method;
use serde_json::Value;

use super::no_webhooks;
use crate::{lab::webhooks::message, reference::Reference, report::Verdict, settings::CannotJudge};

pub(crate) async fn check(reference: &Reference<'_>) -> Result<Verdict, CannotJudge> {
    if reference.scorecard.webhooks.is_empty() {
        return Ok(no_webhooks());
    }
    let mut lab = reference.settled().await?;
    let children = lab.children();
    let mut paths: Vec<String> =
        children.iter().map(|child| lab.path_of_object(&child.resource, &child.key)).collect();
    paths.extend(lab.sample_paths());
    lab.kill().await;
    lab.call_webhooks().await;
    for path in &paths {
        let dry_run = format!("{path}?dryRun=All");
        let (status, answer) = lab.request(Method::DELETE, &dry_run, Value::Null).await;
        if status != 200 {
            return Ok(Verdict::fail(format!(
                "while it is down, {path} cannot be deleted: {}",
                message(&answer)
            )));
        }
    }
    lab.delete_samples("Background").await;
    lab.start()?;
    lab.connected().await?;
    let left = lab.lasting(|lab| lab.remaining()).await?;
    if let Some(first) = left.first() {
        return Ok(Verdict::fail(format!("deleted while its webhooks were down: still there: {first}")));
    }
    lab.end().await;
    Ok(Verdict::pass("what is deleted while it is down goes away"))
}
