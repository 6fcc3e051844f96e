//! A field of each child is changed; while the operator repairs it, somebody else writes an annotation of the same object. The operator's write
//! waits for that, so an update with the old resourceVersion gets a 409. The annotation must stay.
//!
//! It would have found percona/percona-server-mongodb-operator#2169: an update with the old body lost the annotation of a restart.

use http::Method;
use serde_json::{Value, json};

use super::{
    super::{
        reference::Reference,
        report::{Outcome, Verdict},
        settings::CannotJudge,
    },
    failure, repairs_drift,
};
use crate::Fault;

const ANNOTATION: &str = "scorecard.listwatch/other-writer";

pub(in super::super) async fn check(reference: &Reference<'_>) -> Result<Verdict, CannotJudge> {
    let mut lab = reference.settled().await?;
    let (mut late, mut count) = (None, 0);
    for child in repairs_drift::children(reference, &lab) {
        let Some((field, patch)) = repairs_drift::drift(&child) else { continue };
        let path = lab.path_of_object(&child.resource, &child.key);
        lab.server.fault(Fault::Hold.on("", &path).by(&lab.user()).times(1));
        lab.request(Method::PATCH, &path, patch).await;
        if !lab.is_held().await {
            // Nobody repairs it: see repairs-drift.
            lab.server.end_faults();
            lab.request(Method::PATCH, &path, content(&child.object)).await;
            continue;
        }
        count += 1;
        let annotated = |value: Value| json!({"metadata": {"annotations": {ANNOTATION: value}}});
        lab.request(Method::PATCH, &path, annotated("1".into())).await;
        lab.server.end_faults();
        lab.settle_fully().await?;
        let (_, object) = lab.request(Method::GET, &path, Value::Null).await;
        if object["metadata"]["annotations"][ANNOTATION] != "1" {
            return Ok(Verdict::fail(format!(
                "{}/{} {field} repaired: the annotation of another writer, which came just before, is lost",
                child.resource, child.key
            )));
        }
        lab.request(Method::PATCH, &path, annotated(Value::Null)).await;
        let after = format!("{}/{} {field} repaired beside another writer", child.resource, child.key);
        if let Some(failure) = failure(reference.judge(&mut lab, &after).await?, &mut late) {
            return Ok(failure);
        }
    }
    reference.give_back(lab).await;
    if count == 0 {
        return Ok(Verdict::new(Outcome::Skip, "no changed child is repaired by a write: see repairs-drift"));
    }
    Ok(late
        .unwrap_or_else(|| Verdict::pass(format!("{count} repairs kept the annotation of another writer"))))
}

/// A patch with what [`repairs_drift::drift`] changes.
fn content(object: &Value) -> Value {
    let fields = ["data", "spec"].into_iter().filter(|field| !object[*field].is_null());
    fields.map(|field| (field.to_owned(), object[field].clone())).collect()
}
