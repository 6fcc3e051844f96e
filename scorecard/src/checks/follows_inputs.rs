//! The objects that a custom resource needs, such as a Secret that it names, are changed, deleted and created again, and created after it. The operator
//! must get to the state that it gets to when all are there from the beginning.
//!
//! It finds an operator that reads such an object once, or that does not watch its kind.

use http::Method;
use serde_json::{Value, json};

use super::{
    super::{
        lab::Lab,
        reference::Reference,
        report::{Outcome, Verdict},
        settings::CannotJudge,
        snapshot::Mask,
        trial,
    },
    failure,
};

/// "other" in base64: valid in a ConfigMap and in a Secret.
const CHANGED: &str = "b3RoZXI=";

pub(in super::super) async fn check(reference: &Reference<'_>) -> Result<Verdict, CannotJudge> {
    let mut lab = reference.settled().await?;
    // The namespace of a sample is not an input.
    let inputs: Vec<&Value> = lab.other_samples().filter(|input| input["kind"] != "Namespace").collect();
    if inputs.is_empty() {
        reference.give_back(lab).await;
        return Ok(Verdict::new(Outcome::Skip, "the samples have only custom resources"));
    }
    let (mask, mut late) = (trial::mask(reference, &lab), None);
    for input in &inputs {
        let name = lab.name_of_sample(input);
        let verdicts = [
            changed(reference, &mut lab, input, &mask).await?,
            Some(created_again(reference, &mut lab, input, &mask).await?),
            Some(created_late(reference, input, &mask, &format!("{name} created after the rest")).await?),
        ];
        for verdict in verdicts.into_iter().flatten() {
            if let Some(failure) = failure(verdict, &mut late) {
                return Ok(failure);
            }
        }
    }
    reference.give_back(lab).await;
    Ok(late.unwrap_or_else(|| {
        Verdict::pass(format!("{} objects changed, deleted, and created late", inputs.len()))
    }))
}

/// Changes a value, and changes it back. `None`: it has no values.
async fn changed(
    reference: &Reference<'_>,
    lab: &mut Lab<'_>,
    input: &Value,
    mask: &Mask,
) -> Result<Option<Verdict>, CannotJudge> {
    let path = lab.path_of_sample(input);
    let (_, stored) = lab.request(Method::GET, &path, Value::Null).await;
    let Some((key, before)) = stored["data"].as_object().and_then(|data| data.iter().next()) else {
        return Ok(None);
    };
    let patch = |value: &Value| json!({"data": {key.as_str(): value}});
    let mut other = input.clone();
    other.as_object_mut().map(|fields| fields.remove("stringData"));
    other["data"] = stored["data"].clone();
    other["data"][key.as_str()] = CHANGED.into();
    let mut anew = reference.lab().await?;
    anew.connected().await?;
    anew.create_samples_as(|sample| Some(if sample == input { other.clone() } else { sample.clone() }))
        .await?;
    anew.until_work_since(anew.version).await;
    anew.settle().await?;
    let expected = anew.snapshot();
    anew.end().await;
    let what = format!("{} .data.{key} changed", lab.name_of_sample(input));
    let (status, _) = lab.request(Method::PATCH, &path, patch(&CHANGED.into())).await;
    if status != 200 {
        // It is immutable.
        return Ok(None);
    }
    let verdict = lab.judge(&expected, mask, &what).await?;
    lab.request(Method::PATCH, &path, patch(before)).await;
    if verdict.result != Outcome::Pass {
        return Ok(Some(verdict));
    }
    Ok(Some(lab.judge(&reference.state, mask, &format!("{what} and back")).await?))
}

async fn created_again(
    reference: &Reference<'_>,
    lab: &mut Lab<'_>,
    input: &Value,
    mask: &Mask,
) -> Result<Verdict, CannotJudge> {
    lab.request(Method::DELETE, &lab.path_of_sample(input), Value::Null).await;
    lab.settle().await?;
    lab.create(input, "--sample").await?;
    let what = format!("{} deleted and created again", lab.name_of_sample(input));
    lab.judge(&reference.state, mask, &what).await
}

async fn created_late(
    reference: &Reference<'_>,
    input: &Value,
    mask: &Mask,
    what: &str,
) -> Result<Verdict, CannotJudge> {
    let mut lab = reference.lab().await?;
    lab.connected().await?;
    lab.create_samples_as(|sample| (sample != input).then(|| sample.clone())).await?;
    lab.settle().await?;
    lab.create(input, "--sample").await?;
    let verdict = lab.judge(&reference.state, mask, what).await?;
    lab.end().await;
    Ok(verdict)
}
