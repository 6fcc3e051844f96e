//! Others write labels and annotations of the custom resources and of the children, as users, `kubectl` and other operators do. They must
//! stay. So must objects of others whose names begin with those of children, also when the custom resources are deleted.
//!
//! It would have found kubevirt/kubevirt#6966: an update that drops what it does not know.

use http::Method;
use serde_json::{Value, json};

use crate::{
    lab::{Dependent, Lab},
    reference::Reference,
    report::{Outcome, Verdict},
    settings::CannotJudge,
};

const KEY: &str = "scorecard.listwatch/other";

pub(crate) async fn check(reference: &Reference<'_>) -> Result<Verdict, CannotJudge> {
    let mut lab = reference.settled().await?;
    let children = lab.children();
    let neighbours = neighbours(&lab, &children).await;
    let mut paths = lab.sample_paths();
    for child in &children {
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
    if let Some(problem) = touched(&lab, &neighbours).await {
        return Ok(Verdict::fail(problem));
    }
    for (path, _) in &neighbours {
        lab.request(Method::DELETE, path, Value::Null).await;
    }
    let verdict = reference.judge(&mut lab, "labels and annotations written by another client").await?;
    if verdict.result != Outcome::Pass {
        return Ok(verdict);
    }
    let neighbours = self::neighbours(&lab, &children).await;
    lab.delete_samples("Background").await;
    lab.settle_fully().await?;
    if let Some(problem) = touched(&lab, &neighbours).await {
        return Ok(Verdict::fail(format!("when the custom resource was deleted: {problem}")));
    }
    lab.end().await;
    Ok(verdict)
}

async fn neighbours(lab: &Lab<'_>, children: &[Dependent]) -> Vec<(String, Value)> {
    let mut neighbours = Vec::new();
    for child in children {
        neighbours.extend(neighbour(lab, child).await);
    }
    neighbours
}

/// Creates an object beside a child, without its labels and its owner: its path, and what is stored. `None`: objects of its kind have effects.
async fn neighbour(lab: &Lab<'_>, child: &Dependent) -> Option<(String, Value)> {
    let content = match &*child.kind {
        "ConfigMap" | "Secret" => json!({"data": child.object["data"]}),
        "Service" => json!({"spec": {"ports": [{"port": 4321}]}}),
        "ServiceAccount" => json!({}),
        _ => return None,
    };
    let path = lab.path_of_object(&child.resource, &child.key);
    let (collection, name) = path.rsplit_once('/')?;
    let mut object = content;
    object["metadata"] = json!({"name": format!("{name}-scorecard")});
    let (status, created) = lab.request(Method::POST, collection, object).await;
    (status == 201).then(|| (format!("{path}-scorecard"), created))
}

/// The first neighbour that has been deleted or changed.
async fn touched(lab: &Lab<'_>, neighbours: &[(String, Value)]) -> Option<String> {
    for (path, before) in neighbours {
        let (status, now) = lab.request(Method::GET, path, Value::Null).await;
        if status != 200 || !now["metadata"]["deletionTimestamp"].is_null() {
            return Some(format!("{path}, which the operator did not create, was deleted"));
        }
        if now["metadata"]["resourceVersion"] != before["metadata"]["resourceVersion"] {
            return Some(format!("{path}, which the operator did not create, was changed"));
        }
    }
    None
}
