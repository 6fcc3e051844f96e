//! A mutating webhook of somebody else changes all that the operator creates and updates: its children get a label and an annotation, and the
//! templates of Deployments an annotation, as from Kyverno or an injector of sidecars. The operator must be quiet, and create nothing twice.
//!
//! It finds an operator that repeats a write until the answer is what it has sent.

use http::Method;
use serde_json::{Value, json};

use super::quiet;
use crate::{
    lab::{Lab, webhooks::message},
    process::USER,
    reference::Reference,
    report::{Outcome, Verdict},
    settings::CannotJudge,
};

/// The label, and the annotation.
const KEY: &str = "scorecard.listwatch/mutated";

/// The names of the policies, of all children and of templates. They have the effect of a webhook, and need no process.
const POLICIES: [&str; 2] = ["scorecard-mutates", "scorecard-mutates-templates"];

const API: &str = "/apis/admissionregistration.k8s.io/v1";

pub(crate) async fn check(reference: &Reference<'_>) -> Result<Verdict, CannotJudge> {
    let mut lab = reference.lab().await?;
    lab.connected().await?;
    let known = lab.noise.clone();
    mutate_writes(&lab).await?;
    lab.create_samples().await?;
    lab.until_work_since(lab.version).await;
    lab.settle().await?;
    let is_mutated = |object: &Value| object["metadata"]["labels"][KEY] == "1";
    if !lab.children().iter().any(|child| is_mutated(&child.object)) {
        return Ok(Verdict::new(Outcome::Skip, "the operator created nothing that a webhook could change"));
    }
    let after = "a webhook adds a label to its children";
    if let Some(unrest) = quiet::unrest(&mut lab, &known).await? {
        return Ok(Verdict::fail(format!("{after}: {unrest}")));
    }
    for name in POLICIES {
        lab.request(Method::DELETE, &format!("{API}/mutatingadmissionpolicybindings/{name}"), Value::Null)
            .await;
    }
    for child in lab.children() {
        let mut patch = json!({"metadata": {"labels": {KEY: null}, "annotations": {KEY: null}}});
        if child.kind == "Deployment" {
            patch["spec"]["template"]["metadata"]["annotations"] = json!({KEY: null});
        }
        let path = lab.path_of_object(&child.resource, &child.key);
        lab.request(Method::PATCH, &path, patch).await;
    }
    let verdict = reference.judge_counts(&mut lab, after).await?;
    lab.end().await;
    Ok(verdict)
}

/// Creates a policy for the children. Labels of a custom resource may rightly go to its children.
async fn mutate_writes(lab: &Lab<'_>) -> Result<(), CannotJudge> {
    let groups: Vec<&str> =
        lab.custom_samples().filter_map(|sample| sample["apiVersion"].as_str()?.split('/').next()).collect();
    let of_operator =
        format!("request.userInfo.username.startsWith('{USER}') && !(request.resource.group in {groups:?})");
    let added = format!("{{'{KEY}': '1'}}");
    let whole = format!("Object{{metadata: Object.metadata{{labels: {added}, annotations: {added}}}}}");
    let metadata = format!("Object.spec.template.metadata{{annotations: {added}}}");
    let template =
        format!("Object{{spec: Object.spec{{template: Object.spec.template{{metadata: {metadata}}}}}}}");
    let kinds = [("*", "*", whole), ("apps", "deployments", template)];
    for (name, (group, resource, expression)) in POLICIES.into_iter().zip(kinds) {
        let rule = json!({"apiGroups": [group], "apiVersions": ["*"], "resources": [resource], "operations": ["CREATE", "UPDATE"]});
        let spec = json!({"matchConstraints": {"resourceRules": [rule]}, "reinvocationPolicy": "Never",
            "matchConditions": [{"name": "of-operator", "expression": of_operator}],
            "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}}]});
        for (plural, spec) in [
            ("mutatingadmissionpolicies", spec),
            ("mutatingadmissionpolicybindings", json!({"policyName": name})),
        ] {
            let object = json!({"metadata": {"name": name}, "spec": spec});
            let (status, answer) = lab.request(Method::POST, &format!("{API}/{plural}"), object).await;
            if status != 201 {
                return Err(CannotJudge(format!("{plural}/{name}: {}", message(&answer))));
            }
        }
    }
    Ok(())
}
