//! Others write labels and annotations of the custom resources and of the children, as users, `kubectl` and other operators do. They must
//! stay.
//!
//! It would have found kubevirt/kubevirt#6966: an update that drops what it does not know.

use http::Method;
use serde_json::{Value, json};

use super::super::{reference::Reference, report::Verdict, settings::CannotJudge};

const KEY: &str = "scorecard.listwatch/other";

pub(in super::super) async fn check(reference: &Reference<'_>) -> Result<Verdict, CannotJudge> {
    let mut lab = reference.settled().await?;
    let mut paths = lab.sample_paths();
    for child in lab.children() {
        paths.push(lab.path_of_object(&child.resource, &child.key));
    }
    let patch = |value: Value| json!({"metadata": {"labels": {KEY: value}, "annotations": {KEY: value}}});
    for path in &paths {
        lab.request(Method::PATCH, path, patch("1".into())).await;
    }
    lab.settle_fully().await?;
    lab.poke().await;
    lab.settle_fully().await?;
    let mut lost = Vec::new();
    for path in &paths {
        let (_, object) = lab.request(Method::GET, path, Value::Null).await;
        for field in ["labels", "annotations"] {
            if object["metadata"][field][KEY] != "1" {
                lost.push(format!("{field} of {path}"));
            }
        }
    }
    if let Some(first) = lost.first() {
        return Ok(Verdict::fail(format!(
            "written by another client, and lost: {first}, {} in all",
            lost.len()
        )));
    }
    for path in &paths {
        lab.request(Method::PATCH, path, patch(Value::Null)).await;
    }
    let verdict = reference.judge(&mut lab, "labels and annotations written by another client").await?;
    reference.give_back(lab).await;
    Ok(verdict)
}
