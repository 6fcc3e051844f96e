//! Writes of the operator once get a 500. It must be tried again, without an event that asks for it.
//!
//! Of a child, the write is refused when it has been deleted or changed: no other write follows, whose event would wake the operator. Other
//! writes, such as of the status, are refused in a run of their own; at last, those of the deletion.
//!
//! It finds an operator that logs an error, and waits for the next event.

use http::Method;
use listwatch_apiserver::{Fault, Planned};
use serde_json::json;

use super::{conflicts, fails_without_fault, repairs_drift};
use crate::{
    fault_choice::FaultChoice,
    lab::{ChildKey, Lab},
    reference::Reference,
    report::{Outcome, Verdict},
    settings::CannotJudge,
};

const NAME: &str = "refused-writes";

/// Most runs with a refused write without `--all`. Each costs a start.
const RUNS_MAX: usize = 12;

pub(crate) async fn check(reference: &Reference<'_>) -> Result<Verdict, CannotJudge> {
    let (mut lab, children) = reference.settled_with_repaired().await?;
    let mut refused = Vec::new();
    if let Some(failure) = repairs(reference, &mut lab, children, &mut refused).await? {
        return Ok(failure);
    }
    if let Some(failure) = deletion(&mut lab, &mut refused).await? {
        return Ok(failure);
    }
    lab.end().await;
    let others = reference.triggers.iter().filter(|trigger| !refused.contains(&trigger.name));
    let choice = FaultChoice::of(reference.scorecard, NAME, RUNS_MAX, others.collect(), |other| &other.name);
    for trigger in &choice.tried {
        let mut lab = reference.with_fault(trigger, internal_error()).await?;
        let failure = judged(reference, &mut lab, &trigger.name, 0, &mut refused).await?;
        lab.end().await;
        if let Some(failure) = failure {
            return Ok(failure);
        }
    }
    if refused.is_empty() {
        return Ok(Verdict::new(Outcome::Skip, "none of the writes of the runs without a fault came again"));
    }
    Ok(choice.complete(Verdict::pass(format!("{} refused writes were tried again", refused.len()))))
}

/// Refuses the repairs of the children that the operator repairs.
async fn repairs<'a>(
    reference: &Reference<'a>,
    lab: &mut Lab<'a>,
    children: &[ChildKey],
    refused: &mut Vec<String>,
) -> Result<Option<Verdict>, CannotJudge> {
    for child in children {
        let name = format!("create/{}/{}#1", child.resource, child.key);
        let Some(create) = reference.triggers.iter().find(|trigger| trigger.name == name) else { continue };
        let before = count(lab);
        refuse(lab, &create.method, &create.path);
        lab.delete_children(std::slice::from_ref(child)).await;
        if let Some(failure) = judged(reference, lab, &name, before, refused).await? {
            return Ok(Some(failure));
        }
    }
    for child in repairs_drift::children(reference, lab) {
        let Some((_, patch)) = repairs_drift::drift(&child) else { continue };
        let path = lab.path_of_object(&child.resource, &child.key);
        let before = count(lab);
        ["PUT", "PATCH"].iter().for_each(|method| refuse(lab, method, &path));
        lab.request(Method::PATCH, &path, patch.clone()).await;
        let (name, so_far) = (format!("update/{}/{}", child.resource, child.key), refused.len());
        if let Some(failure) = judged(reference, lab, &name, before, refused).await? {
            let change = async |lab: &mut Lab<'_>| {
                lab.request(Method::PATCH, &path, patch.clone()).await;
                reference.judge(lab, &name).await
            };
            if !fails_without_fault(reference, lab, change).await? {
                return Ok(Some(failure));
            }
            refused.pop();
            *lab = reference.settled().await?;
            continue;
        }
        if refused.len() == so_far {
            // Nobody repairs it.
            lab.request(Method::PATCH, &path, conflicts::content(&child.object)).await;
        }
    }
    Ok(None)
}

/// Deletes the samples. The first POST, PUT, PATCH and DELETE that the operator then sends are refused.
async fn deletion(lab: &mut Lab<'_>, refused: &mut Vec<String>) -> Result<Option<Verdict>, CannotJudge> {
    ["POST", "PUT", "PATCH", "DELETE"].iter().for_each(|method| refuse(lab, method, ""));
    let before = count(lab);
    lab.delete_samples("Background").await;
    lab.settle().await?;
    let left = lab.lasting(|lab| lab.remaining()).await?;
    let is_refused = count(lab) > before;
    lab.server.end_faults();
    // Without a refused write, it is a matter of deletes-cleanly.
    if !is_refused {
        return Ok(None);
    }
    refused.push("deletion".to_owned());
    Ok((!left.is_empty()).then(|| {
        Verdict::fail(format!("a write of the deletion got a 500: still there: {}", left.join(", ")))
    }))
}

/// Waits until the state is as before, and notes whether more writes than before were refused.
async fn judged(
    reference: &Reference<'_>,
    lab: &mut Lab<'_>,
    name: &str,
    before: usize,
    refused: &mut Vec<String>,
) -> Result<Option<Verdict>, CannotJudge> {
    let after = format!("{name} got a 500");
    let verdict = reference.judge(lab, &after).await?;
    lab.server.end_faults();
    if count(lab) == before {
        // Nobody sends it here: see repairs-drift.
        return Ok(None);
    }
    refused.push(name.to_owned());
    Ok((verdict.result == Outcome::Fail).then_some(verdict))
}

fn refuse(lab: &Lab<'_>, method: &str, path: &str) {
    lab.server.fault(Planned::from(internal_error()).on(method, path).by(&lab.user()).times(1));
}

/// How many writes were refused.
fn count(lab: &Lab<'_>) -> usize {
    lab.server.requests().iter().filter(|request| request.status == 500).count()
}

fn internal_error() -> Fault {
    let body = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "refused for a test",
        "reason": "InternalError", "code": 500});
    Fault::Answer { status: 500, body: body.to_string(), retry_after_secs: None }
}
