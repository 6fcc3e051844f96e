//! First, the samples are created while no Pod fits on the node. A custom resource that owns a Deployment, StatefulSet, ReplicaSet or Pod may not
//! say `Ready` or `Available` then. An operator whose status does not say so without the fault is not asked.
//!
//! Fields of the custom resource are changed, as its CRD suggests. The status may not say `Ready` for the new generation before the children have
//! changed, nor be of a generation that does not exist yet, or of an older one than before. `lastTransitionTime` is the time at which the
//! status of a condition changed. What a status does not have is not judged.
//!
//! At last, a field is changed that the operator cannot see, as its watch is stalled, and its children are deleted. It may not say that it has
//! observed this generation, unless the children follow from it.
//!
//! It would have found cloudnative-pg/cloudnative-pg#11390: ready for a generation that was not reconciled yet.

use http::Method;
use listwatch_apiserver::{Fault, NODE, WriteRecord};
use serde_json::{Value, json};

use crate::{
    fault_choice::FaultChoice,
    lab::{ChildKey, Dependent, Lab, name_of},
    reference::Reference,
    report::{Outcome, Verdict},
    settings::CannotJudge,
    spec_changes::Intent,
    trial,
};

pub(super) const NAME: &str = "honest-status";

/// Most changes without `--all`.
const CHANGES_MAX: usize = 3;

pub(crate) async fn check(reference: &Reference<'_>) -> Result<Verdict, CannotJudge> {
    if let Some(problem) = ready_without_pods(reference).await? {
        return Ok(Verdict::fail(problem));
    }
    let (mut lab, children) = reference.settled_with_repaired().await?;
    let trials = trial::trials(reference, &lab, Intent::Change).await;
    let choice = FaultChoice::of(reference.scorecard, NAME, CHANGES_MAX, trials, |trial| &trial.name);
    if choice.tried.is_empty() {
        return Ok(Verdict::new(Outcome::Skip, "the server accepts no change of the samples"));
    }
    let names: Vec<String> = lab.custom_samples().map(|sample| lab.name_of_sample(sample)).collect();
    let mask = trial::mask(reference, &lab);
    let (mut too_early, mut effective) = (Vec::new(), None);
    for trial in &choice.tried {
        let name = lab.name_of_sample(trial.sample);
        for is_back in [false, true] {
            let version = lab.server.version();
            if !is_back {
                trial.apply(&lab).await;
            } else if !trial.revert(&mut lab).await? {
                return Ok(trial::stays());
            }
            lab.until_work_since(version).await;
            lab.settle().await?;
            let writes = lab.work_since(version);
            let changed = reference.state.differences(&lab.snapshot(), &mask);
            if !is_back && changed.iter().any(|one| !lab.is_of_sample(&one.object)) {
                effective = effective.or(Some(trial));
            }
            let child = child_after_ready(&writes, &name, &names);
            too_early.extend(child.map(|child| format!("{name} is Ready before {child}: {}", trial.what())));
        }
    }
    let mut writes = lab.work_since(lab.version);
    writes.retain(|write| names.contains(&name_of(write)));
    if let Some(problem) = writes.iter().find_map(wrong_generation) {
        return Ok(Verdict::fail(problem));
    }
    match &too_early[..] {
        [] => {}
        // It may be late, and not because of this change.
        [once] => return Ok(Verdict::new(Outcome::Warn, format!("{once} (once)"))),
        [first, ..] => return Ok(Verdict::fail(first)),
    }
    if let Some(problem) = writes.iter().find_map(moved_time) {
        return Ok(Verdict::new(Outcome::Warn, problem));
    }
    if let Some(trial) = effective
        && let Some(problem) = claims_unseen(reference, &mut lab, trial, children).await?
    {
        return Ok(Verdict::fail(problem));
    }
    let statuses: Vec<&Value> =
        writes.iter().filter_map(|write| Some(&write.after.as_ref()?["status"])).collect();
    let has_conditions = statuses.iter().any(|status| conditions(status).next().is_some());
    reference.give_back(lab).await;
    if !has_conditions && statuses.iter().all(|status| status["observedGeneration"].is_null()) {
        return Ok(Verdict::new(Outcome::Skip, "no status has conditions, or an observedGeneration"));
    }
    let changes = choice.text("changes of the spec");
    Ok(choice.complete(Verdict::pass(format!("{} statuses, with {changes}", statuses.len()))))
}

/// Makes a change that the operator does not see, and wakes it. Returns a status of this generation beside children of the one before.
async fn claims_unseen(
    reference: &Reference<'_>,
    lab: &mut Lab<'_>,
    trial: &trial::Trial<'_>,
    children: &[ChildKey],
) -> Result<Option<String>, CannotJudge> {
    let (name, path) = (lab.name_of_sample(trial.sample), lab.path_of_sample(trial.sample));
    for path in lab.sample_watch_paths() {
        lab.server.fault(Fault::StallWatches.on("", &path).by(&lab.user()));
    }
    let version = lab.server.version();
    trial.apply(lab).await;
    lab.delete_children(children).await;
    lab.until_work_since(version).await;
    lab.settle().await?;
    let (_, object) = lab.request(Method::GET, &path, Value::Null).await;
    let mask = trial::mask(reference, lab);
    let mut stale = reference.state.differences(&lab.snapshot(), &mask);
    stale.retain(|difference| !lab.is_of_sample(&difference.object));
    lab.server.end_faults();
    trial.revert(lab).await?;
    lab.settle().await?;
    let (generation, status) = (&object["metadata"]["generation"], &object["status"]);
    let mut observed = conditions(status).chain([status]).map(|one| &one["observedGeneration"]);
    let is_claimed = stale.is_empty() && observed.any(|observed| observed == generation);
    Ok(is_claimed.then(|| {
        format!(
            "{name} has the observedGeneration {generation}, but its children are of the one before: {}",
            trial.what()
        )
    }))
}

/// Creates the samples while no Pod fits on the node. Returns a custom resource that says that it is ready nevertheless.
async fn ready_without_pods(reference: &Reference<'_>) -> Result<Option<String>, CannotJudge> {
    let lab = reference.settled().await?;
    let is_usual = !ready(&lab, |_| true).is_empty();
    reference.give_back(lab).await;
    if !is_usual {
        return Ok(None);
    }
    let mut lab = reference.lab().await?;
    let taint = json!({"key": "scorecard.listwatch/full", "effect": "NoSchedule"});
    let node = lab.path_of_object("nodes", NODE);
    lab.request(Method::PATCH, &node, json!({"spec": {"taints": [taint]}})).await;
    lab.settle_with_samples().await?;
    let ready = lab.lasting(|lab| ready(lab, has_no_ready_replica)).await?;
    lab.end().await;
    Ok(ready.into_iter().next())
}

/// The custom resources that say `Ready` or `Available`, and own workloads, for all of which `are` holds.
fn ready(lab: &Lab<'_>, are: fn(&Value) -> bool) -> Vec<String> {
    let (writes, children) = (lab.work_since(lab.version), lab.children());
    let mut ready = Vec::new();
    for name in lab.custom_samples().map(|sample| lab.name_of_sample(sample)) {
        let newest = writes.iter().rev().find(|write| name_of(write) == name);
        let Some(object) = newest.and_then(|write| write.after.as_ref()) else { continue };
        let is_ready = |one: &&Value| {
            ["Ready", "Available"].iter().any(|name| one["type"] == *name) && one["status"] == "True"
        };
        let Some(condition) = conditions(&object["status"]).find(is_ready) else { continue };
        let own = children.iter().filter(|child| is_workload(child) && is_owner(object, &child.object));
        let own: Vec<&Dependent> = own.collect();
        if let Some(first) = own.first()
            && own.iter().all(|child| are(&child.object))
        {
            let of_type = condition["type"].as_str().unwrap_or_default();
            let child = format!("{}/{}", first.resource, first.key);
            ready.push(format!(
                "{name} is {of_type}, but its Pods are pending: no replica of {child} is ready"
            ));
        }
    }
    ready
}

fn is_owner(object: &Value, child: &Value) -> bool {
    let mut owners = child["metadata"]["ownerReferences"].as_array().into_iter().flatten();
    owners.any(|owner| owner["uid"] == object["metadata"]["uid"])
}

/// Not a DaemonSet: it has no Pods where none fit.
fn is_workload(child: &Dependent) -> bool {
    ["Deployment", "StatefulSet", "ReplicaSet", "Pod"].contains(&&*child.kind)
        && child.object["spec"]["replicas"] != 0
}

/// Whether a workload, or a Pod, waits.
fn has_no_ready_replica(workload: &Value) -> bool {
    let status = &workload["status"];
    status["readyReplicas"].as_u64().unwrap_or_default() == 0 && status["phase"] != "Running"
}

fn conditions(status: &Value) -> impl Iterator<Item = &Value> {
    status["conditions"].as_array().into_iter().flatten()
}

/// The first child that was changed, if the custom resource was ready for its new generation before.
fn child_after_ready(writes: &[WriteRecord], sample: &str, samples: &[String]) -> Option<String> {
    let is_ready = |write: &WriteRecord| {
        let Some(object) = write.after.as_ref().filter(|_| name_of(write) == sample) else { return false };
        let (status, generation) = (&object["status"], &object["metadata"]["generation"]);
        let mut ready = conditions(status).filter(|one| one["type"] == "Ready" && one["status"] == "True");
        ready.any(|condition| {
            let of_condition = Some(&condition["observedGeneration"]).filter(|of| !of.is_null());
            of_condition.unwrap_or(&status["observedGeneration"]) == generation
        })
    };
    let children = writes.iter().position(|write| !samples.contains(&name_of(write)))?;
    let is_too_early = writes[..children].iter().any(is_ready);
    is_too_early.then(|| name_of(&writes[children]))
}

/// An `observedGeneration` that the object does not have yet, or that is smaller than before.
fn wrong_generation(write: &WriteRecord) -> Option<String> {
    let after = write.after.as_ref()?;
    let (name, status) = (name_of(write), &after["status"]);
    let generation = after["metadata"]["generation"].as_u64()?;
    let observed = |status: &Value| status["observedGeneration"].as_u64();
    let of_conditions = conditions(status).filter_map(observed);
    if let Some(future) = of_conditions.chain(observed(status)).find(|observed| *observed > generation) {
        return Some(format!(
            "{name} has the observedGeneration {future}, but only the generation {generation}"
        ));
    }
    let (before, now) = (observed(&write.before.as_ref()?["status"])?, observed(status)?);
    (now < before).then(|| format!("{name} .status.observedGeneration falls from {before} to {now}"))
}

/// A condition whose `lastTransitionTime` changes, although its status stays.
fn moved_time(write: &WriteRecord) -> Option<String> {
    let (before, after) = (write.before.as_ref()?, write.after.as_ref()?);
    let is_moved = |condition: &&Value| {
        let same = |field: &str, other: &Value| condition[field] == other[field];
        let mut before = conditions(&before["status"]);
        before.any(|other| same("type", other) && same("status", other) && !same("lastTransitionTime", other))
    };
    let condition = conditions(&after["status"]).find(is_moved)?;
    let (name, of_type) = (name_of(write), condition["type"].as_str().unwrap_or_default());
    Some(format!(
        "{name} .status.conditions[{of_type}].lastTransitionTime changes, although the status stays {}",
        condition["status"]
    ))
}
