//! A field of each child is changed; just before the operator's updates that repair it, somebody else writes an annotation of the same object, so
//! an update with the old resourceVersion gets a 409, three times in a row. The annotation must stay.
//!
//! It would have found percona/percona-server-mongodb-operator#2169: an update with the old body lost the annotation of a restart.

use http::Method;
use listwatch_apiserver::{Fault, MEDDLED, MEDDLER, WriteRecord};
use serde_json::{Value, json};

use super::{fails_without_fault, failure, repairs_drift};
use crate::{
    lab::Lab,
    reference::Reference,
    report::{Outcome, Verdict},
    settings::CannotJudge,
};

/// Updates in a row that come too late.
const CONFLICTS: u64 = 3;

pub(crate) async fn check(reference: &Reference<'_>) -> Result<Verdict, CannotJudge> {
    let mut lab = reference.settled().await?;
    let (mut late, mut count) = (None, 0);
    for child in repairs_drift::children(reference, &lab) {
        let Some((field, patch)) = repairs_drift::drift(&child) else { continue };
        let path = lab.path_of_object(&child.resource, &child.key);
        let version = lab.server.version();
        lab.server.fault(Fault::Meddle.on("", &path).by(&lab.user()).times(CONFLICTS));
        lab.request(Method::PATCH, &path, patch.clone()).await;
        // The fault also matches names that only begin so.
        let is_it = |write: &WriteRecord| {
            write.user == MEDDLER && (&write.resource, &write.object) == (&child.resource, &child.key)
        };
        let has_meddled = || lab.server.writes_since(version).iter().any(is_it);
        if !lab.within_fault(has_meddled).await {
            // Nobody repairs it: see repairs-drift.
            lab.server.end_faults();
            lab.request(Method::PATCH, &path, content(&child.object)).await;
            continue;
        }
        count += 1;
        lab.settle_fully().await?;
        lab.server.end_faults();
        let (_, object) = lab.request(Method::GET, &path, Value::Null).await;
        if object["metadata"]["annotations"][MEDDLED].is_null() {
            return Ok(Verdict::fail(format!(
                "{}/{} {field} repaired: the annotation of another writer, which came just before, is lost",
                child.resource, child.key
            )));
        }
        let removed = json!({"metadata": {"annotations": {MEDDLED: null}}});
        lab.request(Method::PATCH, &path, removed).await;
        let after = format!("{}/{} {field} repaired beside another writer", child.resource, child.key);
        if let Some(failure) = failure(reference.judge(&mut lab, &after).await?, &mut late) {
            let change = async |lab: &mut Lab<'_>| {
                lab.request(Method::PATCH, &path, patch.clone()).await;
                reference.judge(lab, &after).await
            };
            if !fails_without_fault(reference, &mut lab, change).await? {
                return Ok(failure);
            }
            count -= 1;
            lab = reference.settled().await?;
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
pub(super) fn content(object: &Value) -> Value {
    let fields = ["data", "spec"].into_iter().filter(|field| !object[*field].is_null());
    fields.map(|field| (field.to_owned(), object[field].clone())).collect()
}
