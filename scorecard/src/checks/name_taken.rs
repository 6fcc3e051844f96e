//! The names of ConfigMaps, Secrets, Services and ServiceAccounts that the operator creates belong to objects of another owner. These may not
//! change.
//!
//! It would have found agentgateway/agentgateway#2249: the ServiceAccount of somebody else was overwritten.

use http::Method;
use serde_json::{Value, json};

use super::super::{
    lab::Lab,
    reference::{Reference, Trigger},
    report::{Outcome, Verdict},
    settings::CannotJudge,
};

pub(in super::super) async fn check(reference: &Reference<'_>) -> Result<Verdict, CannotJudge> {
    let mut lab = reference.lab().await?;
    lab.connected().await?;
    let mut taken = Vec::new();
    for trigger in reference.triggers.iter().filter(|trigger| trigger.is_create()) {
        taken.extend(take(&lab, trigger).await);
    }
    if taken.is_empty() {
        lab.end().await;
        return Ok(Verdict::new(Outcome::Skip, "no name of a simple kind that somebody else can take"));
    }
    lab.create_samples().await?;
    lab.settle_fully().await?;
    for (path, before) in &taken {
        let (_, now) = lab.request(Method::GET, path, Value::Null).await;
        let field = |object: &Value, field: &str| object["metadata"][field].clone();
        if field(&now, "uid") != field(before, "uid") {
            return Ok(Verdict::fail(format!("{path} of another owner was deleted")));
        }
        if field(&now, "resourceVersion") != field(before, "resourceVersion") {
            return Ok(Verdict::fail(format!("{path} of another owner was overwritten")));
        }
    }
    lab.end().await;
    Ok(Verdict::pass(format!("{} objects of another owner were left alone", taken.len())))
}

/// Creates an object under the name of a child, with another owner.
async fn take(lab: &Lab<'_>, trigger: &Trigger) -> Option<(String, Value)> {
    let content = match trigger.plural() {
        "configmaps" => json!({"data": {"of": "another owner"}}),
        "secrets" => json!({"stringData": {"of": "another owner"}}),
        "services" => json!({"spec": {"ports": [{"port": 4321}]}}),
        "serviceaccounts" => json!({}),
        _ => return None,
    };
    let name = trigger.name.split('#').next()?.rsplit('/').next().filter(|name| !name.contains('*'))?;
    let collection = trigger.collection();
    let (namespace, _) = collection.rsplit_once('/')?;
    let owners = format!("{namespace}/configmaps");
    let owner = json!({"metadata": {"name": "scorecard-owner"}});
    lab.request(Method::POST, &owners, owner).await;
    let (_, owner) = lab.request(Method::GET, &format!("{owners}/scorecard-owner"), Value::Null).await;
    let reference = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "scorecard-owner",
        "uid": owner["metadata"]["uid"], "controller": true});
    let mut object = content;
    object["metadata"] = json!({"name": name, "ownerReferences": [reference]});
    let (status, created) = lab.request(Method::POST, collection, object).await;
    (status == 201).then(|| (format!("{collection}/{name}"), created))
}
