//! The samples are what the server accepts, without unknown fields, and each CRD has one.

use serde_json::Value;

use super::{Finding, text, verdict};
use crate::{
    lab::Lab,
    report::Verdict,
    settings::{CannotJudge, Scorecard},
};

pub(super) async fn check(scorecard: &Scorecard) -> Result<Verdict, CannotJudge> {
    let lab = match Lab::new(scorecard).await {
        Ok(lab) => lab,
        Err(CannotJudge(why)) => return Ok(Verdict::fail(why)),
    };
    let mut findings = Vec::new();
    for sample in &scorecard.samples {
        if let Err(CannotJudge(why)) = lab.create(sample, "--sample").await {
            let object = format!("{} {}", text(&sample["kind"]), text(&sample["metadata"]["name"]));
            findings.push(Finding::fail(&object, "when created", "201 Created", &why.into()));
        }
    }
    lab.end().await;
    for crd in scorecard.crds.iter().filter(|crd| crd["kind"] == "CustomResourceDefinition") {
        let (group, kind) = (text(&crd["spec"]["group"]), &crd["spec"]["names"]["kind"]);
        let is_of = |sample: &Value| {
            sample["kind"] == *kind && text(&sample["apiVersion"]).split('/').next() == Some(group)
        };
        if !scorecard.samples.iter().any(is_of) {
            let object = text(&crd["metadata"]["name"]);
            findings.push(Finding::warn(object, "--sample", "an object of the kind", &Value::Null));
        }
    }
    Ok(verdict(findings, format!("{} samples are accepted", scorecard.samples.len())))
}
