//! Objects that the webhooks refuse today were created before there were webhooks: variants of the samples. Somebody deletes them, and removes
//! the finalizer that holds them. The webhooks must accept this, and the objects must go away.
//!
//! It finds a webhook that judges the spec of an object that is being deleted, so the object stays for ever.

use http::Method;
use serde_json::{Value, json};

use super::no_webhooks;
use crate::{
    lab::{
        Lab,
        webhooks::{DENIED, message},
    },
    reference::Reference,
    report::{Outcome, Verdict},
    settings::CannotJudge,
    spec_changes, trial,
};

/// A finalizer that only this check removes.
const FINALIZER: &str = "scorecard.listwatch/hold";

/// Most objects of a kind.
const OBJECTS_MAX: usize = 3;

pub(crate) async fn check(reference: &Reference<'_>) -> Result<Verdict, CannotJudge> {
    if reference.scorecard.webhooks.is_empty() {
        return Ok(no_webhooks());
    }
    let mut lab = reference.settled().await?;
    let mut refused = Vec::new();
    for sample in trial::first_samples(&lab) {
        refused.extend(refused_by_webhooks(reference, &lab, sample).await);
    }
    lab.call_no_webhooks().await;
    let mut old = Vec::new();
    for (what, object) in refused {
        if lab.create(&object, &what).await.is_ok() {
            lab.request(Method::DELETE, &lab.path_of_sample(&object), Value::Null).await;
            old.push((what, object));
        }
    }
    lab.call_webhooks().await;
    if old.is_empty() {
        reference.give_back(lab).await;
        return Ok(Verdict::new(Outcome::Skip, "the webhooks refuse no change of a sample"));
    }
    // The operator may have a finalizer as well.
    lab.settle().await?;
    for (what, object) in &old {
        let finalizers = lab.stored(object).map(|stored| stored["metadata"]["finalizers"].clone());
        let mut finalizers = finalizers.and_then(|all| all.as_array().cloned()).unwrap_or_default();
        finalizers.retain(|finalizer| finalizer != FINALIZER);
        let patch = json!({"metadata": {"finalizers": finalizers}});
        let (status, answer) = lab.request(Method::PATCH, &lab.path_of_sample(object), patch).await;
        if status != 200 {
            return Ok(Verdict::fail(format!(
                "deleted {what}: no finalizer can be removed: {}",
                message(&answer)
            )));
        }
    }
    let is_left = |lab: &Lab<'_>| {
        let left = old.iter().filter(|(_, object)| lab.stored(object).is_some());
        left.map(|(what, _)| what.clone()).collect::<Vec<_>>()
    };
    if let Some(what) = lab.lasting(is_left).await?.first() {
        return Ok(Verdict::fail(format!("deleted {what}: it does not go away")));
    }
    lab.end().await;
    Ok(Verdict::pass(format!("{} objects that are refused today go away", old.len())))
}

/// Variants of a sample that the webhooks refuse, with [`FINALIZER`]: `Page with .spec.size 0`.
async fn refused_by_webhooks(
    reference: &Reference<'_>,
    lab: &Lab<'_>,
    sample: &Value,
) -> Vec<(String, Value)> {
    let kind = sample["kind"].as_str().unwrap_or_default();
    let schema = trial::schema(reference.scorecard, sample);
    let mut refused = Vec::new();
    for change in spec_changes::changes(&schema, sample) {
        let mut object = change.applied(sample);
        object["metadata"]["name"] = format!("scorecard-old-{}", refused.len()).into();
        object["metadata"]["finalizers"] = json!([FINALIZER]);
        let is_refused = lab.dry_run(&object).await.is_err_and(|why| why.contains(DENIED));
        if is_refused && refused.len() < OBJECTS_MAX {
            refused.push((format!("{kind} with {} {}", change.path, change.to), object));
        }
    }
    refused
}
