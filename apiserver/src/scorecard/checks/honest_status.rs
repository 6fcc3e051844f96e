//! Fields of the custom resource are changed, as its CRD suggests. The status may not say `Ready` for the new generation before the children have
//! changed, nor be of a generation that does not exist yet, or of an older one than before. `lastTransitionTime` is the time at which the
//! status of a condition changed. What a status does not have is not judged.
//!
//! It would have found cloudnative-pg/cloudnative-pg#11390: ready for a generation that was not reconciled yet.

use serde_json::Value;

use super::super::{
    reference::Reference,
    report::{Outcome, Verdict},
    settings::CannotJudge,
    spec_changes::Intent,
    trial,
};
use crate::WriteRecord;

/// Most changes.
const CHANGES_MAX: usize = 3;

pub(in super::super) async fn check(reference: &Reference<'_>) -> Result<Verdict, CannotJudge> {
    let mut lab = reference.settled().await?;
    let mut trials = trial::trials(reference, &lab, Intent::Change).await;
    trials.truncate(CHANGES_MAX);
    if trials.is_empty() {
        return Ok(Verdict::new(Outcome::Skip, "the server accepts no change of the samples"));
    }
    let names: Vec<String> = lab.custom_samples().map(|sample| lab.name_of_sample(sample)).collect();
    let mut too_early = Vec::new();
    for trial in &trials {
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
            let child = child_after_ready(&lab.work_since(version), &name, &names);
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
    let statuses: Vec<&Value> =
        writes.iter().filter_map(|write| Some(&write.after.as_ref()?["status"])).collect();
    let has_conditions = statuses.iter().any(|status| conditions(status).next().is_some());
    reference.give_back(lab).await;
    if !has_conditions && statuses.iter().all(|status| status["observedGeneration"].is_null()) {
        return Ok(Verdict::new(Outcome::Skip, "no status has conditions, or an observedGeneration"));
    }
    Ok(Verdict::pass(format!("{} statuses, with {} changes of the spec", statuses.len(), trials.len())))
}

/// `pages.example.com/default/a`
fn name_of(write: &WriteRecord) -> String {
    format!("{}/{}", write.resource, write.object)
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
