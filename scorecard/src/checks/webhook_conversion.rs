//! Each sample is written in each version that its CRD serves, with a label, as it is and with each field changed, and then in each other
//! version with a new annotation alone: the server converts the stored object there and back. Nothing may be lost.
//!
//! It finds a field that another version does not have, and that no annotation keeps, and labels that a conversion drops.

use http::Method;
use listwatch_apiserver::{Fault, differences};
use serde_json::{Value, json};

use super::no_webhooks;
use crate::{
    lab::{Lab, webhooks::message},
    reference::Reference,
    report::{Outcome, Verdict},
    settings::CannotJudge,
    snapshot::POKE,
    spec_changes::{self, Intent, SpecChange},
    trial,
};

pub(crate) async fn check(reference: &Reference<'_>) -> Result<Verdict, CannotJudge> {
    if reference.scorecard.webhooks.is_empty() {
        return Ok(no_webhooks());
    }
    let lab = reference.settled().await?;
    // What is lost is not what somebody else has changed.
    lab.call_no_webhooks().await;
    let (webhook, message) = ("deny.example.com".to_owned(), "refused for a test".to_owned());
    let deny = Fault::Deny { webhook, message, code: 403 };
    for (sample, method) in
        lab.custom_samples().flat_map(|sample| ["PUT", "PATCH"].map(|method| (sample, method)))
    {
        for version in lab.converted_versions(sample) {
            lab.server.fault(deny.clone().on(method, &lab.path_of_sample(&version)).by(&lab.user()));
        }
    }
    let mut count = 0;
    for sample in lab.custom_samples() {
        let versions = lab.converted_versions(sample);
        for (of, by) in versions.iter().flat_map(|of| versions.iter().map(move |by| (of, by))) {
            if of != by {
                match written_by(reference, &lab, of, by).await {
                    Ok(written) => count += written,
                    Err(lost) => return Ok(Verdict::fail(lost)),
                }
            }
        }
    }
    lab.end().await;
    Ok(match count {
        0 => Verdict::new(Outcome::Skip, "no CRD of a sample has a conversion webhook and two versions"),
        _ => Verdict::pass(format!("{count} conversions there and back lose nothing")),
    })
}

/// Writes a sample in one version, as it is and with each field changed, and each time by another version. How often, or what is lost.
async fn written_by(
    reference: &Reference<'_>,
    lab: &Lab<'_>,
    of: &Value,
    by: &Value,
) -> Result<usize, String> {
    let (path, other) = (lab.path_of_sample(of), lab.path_of_sample(by));
    let label = json!({"metadata": {"labels": {POKE: "kept"}}});
    let current = send(lab, Method::PATCH, &path, label).await?;
    let schema = trial::schema(reference.scorecard, of);
    let mut changes = spec_changes::changes(&schema, &current);
    changes.retain(|change| change.intent == Intent::Change);
    let mut count = 0;
    for change in [None].into_iter().chain(changes.iter().map(Some)) {
        if let Some(change) = change {
            // The schema need not have all rules.
            let Ok(_) = send(lab, Method::PATCH, &path, change.patch()).await else { continue };
        }
        let before = send(lab, Method::GET, &path, Value::Null).await?;
        let poke = json!({"metadata": {"annotations": {POKE: lab.server.version().to_string()}}});
        send(lab, Method::PATCH, &other, poke).await?;
        let after = send(lab, Method::GET, &path, Value::Null).await?;
        if let Some(field) = lost(change, &before, &after) {
            let what =
                change.map(|SpecChange { path, to, .. }| format!(" with {path} {to}")).unwrap_or_default();
            return Err(format!(
                "{path}{what}, written in {}: {field} does not come back",
                by["apiVersion"].as_str().unwrap_or_default()
            ));
        }
        count += 1;
        if let Some(change) = change {
            // The server may refuse it, as of storage that only grows.
            let _ = send(lab, Method::PATCH, &path, change.patch_back()).await;
        }
    }
    Ok(count)
}

/// The field that two conversions have lost or changed, or that the write itself has lost.
fn lost(change: Option<&SpecChange>, before: &Value, after: &Value) -> Option<String> {
    if let Some(SpecChange { path, to, .. }) =
        change.filter(|change| !change.to.is_object() && !change.to.is_array())
    {
        let stored = before.pointer(&path.replace('.', "/"));
        if stored.unwrap_or(&Value::Null) != to {
            return Some(path.clone());
        }
    }
    let mut fields = Vec::new();
    differences(before, after, "", &mut fields);
    let may_change = |field: &str| {
        field.starts_with(".metadata") && !field.starts_with(".metadata.labels")
            || field.starts_with(".status")
    };
    fields.into_iter().find(|field| !may_change(field))
}

/// The object in an answer, or why there is none.
async fn send(lab: &Lab<'_>, method: Method, path: &str, body: Value) -> Result<Value, String> {
    let (status, answer) = lab.request(method, path, body).await;
    if status == 200 { Ok(answer) } else { Err(format!("{path}: {}", message(&answer))) }
}
