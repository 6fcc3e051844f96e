//! The objects that a custom resource needs, such as a Secret that it names, are changed, deleted and created again, and created after it. The operator
//! must get to the state that it gets to when all are there from the beginning.
//!
//! It finds an operator that reads such an object once, or that does not watch its kind.

use http::Method;
use serde_json::{Value, json};

use super::failure;
use crate::{
    reference::Reference,
    report::{Outcome, Verdict},
    settings::CannotJudge,
    snapshot::Snapshot,
    trial,
};

/// "other" in base64: valid in a ConfigMap and in a Secret.
const CHANGED: &str = "b3RoZXI=";

pub(crate) async fn check(reference: &Reference<'_>) -> Result<Verdict, CannotJudge> {
    let lab = reference.settled().await?;
    // The namespace of a sample is not an input.
    let inputs: Vec<&Value> = lab.other_samples().filter(|input| input["kind"] != "Namespace").collect();
    reference.give_back(lab).await;
    if inputs.is_empty() {
        return Ok(Verdict::new(Outcome::Skip, "the samples have only custom resources"));
    }
    let mut warning = None;
    for input in &inputs {
        let verdicts = [
            changed(reference, input).await?,
            created_again(reference, input).await?,
            Some(created_late(reference, input).await?),
        ];
        for verdict in verdicts.into_iter().flatten() {
            if let Some(failure) = failure(verdict, &mut warning) {
                return Ok(failure);
            }
        }
    }
    Ok(warning.unwrap_or_else(|| {
        Verdict::pass(format!("{} objects changed, deleted, and created late", inputs.len()))
    }))
}

/// Changes a value, and changes it back. `None`: it has no values, is immutable, or the operator refuses the value.
async fn changed(reference: &Reference<'_>, input: &Value) -> Result<Option<Verdict>, CannotJudge> {
    let lab = reference.settled().await?;
    let path = lab.path_of_sample(input);
    let (_, stored) = lab.request(Method::GET, &path, Value::Null).await;
    let Some((key, before)) = stored["data"].as_object().and_then(|data| data.iter().next()) else {
        reference.give_back(lab).await;
        return Ok(None);
    };
    let patch = |value: &Value| json!({"data": {key.as_str(): value}});
    let dry_run = format!("{path}?dryRun=All");
    let (status, _) = lab.request(Method::PATCH, &dry_run, patch(&CHANGED.into())).await;
    reference.give_back(lab).await;
    if status != 200 {
        return Ok(None);
    }
    let mut other = input.clone();
    other.as_object_mut().map(|fields| fields.remove("stringData"));
    other["data"] = stored["data"].clone();
    other["data"][key.as_str()] = CHANGED.into();
    let Some(expected) = from_the_beginning(reference, input, &other).await? else { return Ok(None) };
    let mut lab = reference.settled().await?;
    let mask = trial::mask(reference, &lab);
    let what = format!("{} .data.{key} changed", lab.name_of_sample(input));
    lab.request(Method::PATCH, &path, patch(&CHANGED.into())).await;
    let mut verdict = lab.judge(&expected, &mask, &what).await?;
    lab.request(Method::PATCH, &path, patch(before)).await;
    if verdict.result == Outcome::Pass {
        verdict = lab.judge(&reference.state, &mask, &format!("{what} and back")).await?;
    }
    reference.give_back(lab).await;
    Ok(Some(verdict))
}

/// The state that the operator gets to with another input. `None`: it refuses this one.
async fn from_the_beginning(
    reference: &Reference<'_>,
    input: &Value,
    other: &Value,
) -> Result<Option<Snapshot>, CannotJudge> {
    let mut lab = reference.lab().await?;
    lab.connected().await?;
    lab.create_samples_as(|sample| Some(if sample == input { other.clone() } else { sample.clone() }))
        .await?;
    lab.until_work_since(lab.version).await;
    lab.settle().await?;
    let (state, is_refused) = (lab.snapshot(), trial::refusal(&lab, lab.version).is_some());
    lab.end().await;
    Ok((!is_refused).then_some(state))
}

/// `None`: it is in use, and does not go.
async fn created_again(reference: &Reference<'_>, input: &Value) -> Result<Option<Verdict>, CannotJudge> {
    let mut lab = reference.settled().await?;
    lab.request(Method::DELETE, &lab.path_of_sample(input), Value::Null).await;
    lab.settle().await?;
    if !lab.lasting(|lab| lab.stored(input).into_iter().collect()).await?.is_empty() {
        lab.end().await;
        return Ok(None);
    }
    lab.create(input, "--sample").await?;
    let what = format!("{} deleted and created again", lab.name_of_sample(input));
    let verdict = lab.judge(&reference.state, &trial::mask(reference, &lab), &what).await?;
    reference.give_back(lab).await;
    Ok(Some(verdict))
}

async fn created_late(reference: &Reference<'_>, input: &Value) -> Result<Verdict, CannotJudge> {
    let mut lab = reference.lab().await?;
    lab.connected().await?;
    lab.create_samples_as(|sample| (sample != input).then(|| sample.clone())).await?;
    lab.settle().await?;
    lab.create(input, "--sample").await?;
    let what = format!("{} created after the rest", lab.name_of_sample(input));
    let verdict = lab.judge(&reference.state, &trial::mask(reference, &lab), &what).await?;
    lab.end().await;
    Ok(verdict)
}
