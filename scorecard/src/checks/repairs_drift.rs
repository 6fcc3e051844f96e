//! Each child is deleted, and then changed, by somebody else. The operator must bring it back: at once, and after a restart if it was
//! not running.
//!
//! It would have found scylladb/scylla-operator#418: a deleted StatefulSet stays away.

use http::Method;
use serde_json::{Value, json};

use super::failure;
use crate::{
    lab::{Dependent, Lab},
    reference::{NOT_REPAIRED, Reference},
    report::{Outcome, Verdict},
    settings::{CannotJudge, Scorecard},
};

enum Action {
    Delete,
    Change,
}

pub(crate) async fn check(reference: &Reference<'_>) -> Result<Verdict, CannotJudge> {
    let mut lab = reference.settled().await?;
    let count = children(reference, &lab).len();
    if count == 0 {
        reference.give_back(lab).await;
        return Ok(Verdict::new(Outcome::Skip, "the operator created nothing that could be repaired"));
    }
    let mut late = None;
    for index in 0..count {
        for action in [Action::Delete, Action::Change] {
            let children = children(reference, &lab);
            let Some(child) = children.get(index) else { continue };
            let what = match action {
                Action::Delete => delete(&lab, child).await,
                Action::Change => match change(&lab, child).await {
                    Some(what) => what,
                    None => continue,
                },
            };
            let verdict = reference.judge(&mut lab, &what).await?;
            if let Some(failure) = failure(verdict, &mut late) {
                return Ok(failure);
            }
        }
    }
    lab.kill().await;
    for child in children(reference, &lab) {
        delete(&lab, &child).await;
    }
    lab.start()?;
    lab.connected().await?;
    let verdict = reference.judge(&mut lab, "children deleted while the operator was down").await?;
    if matches!(verdict.result, Outcome::Fail | Outcome::Warn) {
        return Ok(verdict);
    }
    reference.give_back(lab).await;
    Ok(late.unwrap_or_else(|| Verdict::pass(format!("{count} children were repaired"))))
}

/// The children in the same order each time.
pub(super) fn children(reference: &Reference<'_>, lab: &Lab<'_>) -> Vec<Dependent> {
    let mut children = lab.children();
    let Scorecard { keep, ignore, .. } = reference.scorecard;
    children.retain(|Dependent { kind, .. }| {
        !NOT_REPAIRED.contains(&&**kind) && !keep.contains(kind) && !ignore.contains(kind)
    });
    children.sort_by(|one, other| (&one.resource, &one.key).cmp(&(&other.resource, &other.key)));
    children
}

async fn delete(lab: &Lab<'_>, child: &Dependent) -> String {
    let path = lab.path_of_object(&child.resource, &child.key);
    lab.request(Method::DELETE, &path, json!({"propagationPolicy": "Background"})).await;
    format!("{}/{} deleted", child.resource, child.key)
}

async fn change(lab: &Lab<'_>, child: &Dependent) -> Option<String> {
    let (field, patch) = drift(child)?;
    let path = lab.path_of_object(&child.resource, &child.key);
    let (status, _) = lab.request(Method::PATCH, &path, patch).await;
    (status == 200).then(|| format!("{}/{} {field} changed", child.resource, child.key))
}

/// A change of a field that an operator surely sets.
pub(super) fn drift(child: &Dependent) -> Option<(String, Value)> {
    let object = &child.object;
    match &*child.kind {
        "ConfigMap" | "Secret" => {
            let (key, _) = object["data"].as_object()?.iter().next()?;
            // Of a Secret, in base64.
            let value = if child.kind == "Secret" { "ZHJpZnQ=" } else { "drift" };
            Some((format!(".data.{key}"), json!({"data": {key.as_str(): value}})))
        }
        "Service" => {
            let mut ports = object["spec"]["ports"].clone();
            let port = ports[0]["port"].as_u64()?;
            ports[0]["port"] = json!(if port == 65535 { 1 } else { port + 1 });
            Some((".spec.ports[0].port".to_owned(), json!({"spec": {"ports": ports}})))
        }
        "Deployment" | "StatefulSet" => {
            // One less: the claims of one more would stay.
            let replicas = object["spec"]["replicas"].as_u64().filter(|replicas| *replicas > 1)?;
            Some((".spec.replicas".to_owned(), json!({"spec": {"replicas": replicas - 1}})))
        }
        _ => None,
    }
}
