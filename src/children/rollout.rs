//! Computes the conditions `Ready`, `Available`, `Progressing` and `Stalled` of an object whose Pods a Deployment runs. They come
//! from the status of the Deployment, and from the reason why its Pods do not run (`ImagePullBackOff`), which `pods.rs` finds.
//! Nothing in this file does I/O.
//!
//! `Available` and `Progressing` repeat the conditions of the Deployment. `Ready` and `Stalled` are for generic tools: see
//! [kstatus](https://github.com/kubernetes-sigs/cli-utils/blob/master/pkg/kstatus/README.md).

use smol_str::{SmolStr, format_smolstr};

use super::{
    Child,
    pods::Trouble,
    refusal::remedy,
    report::{CHANGED_BY_ADMISSION, ObservedState},
};
use crate::{
    next::Next,
    resource::{
        conditions::Verdict,
        kinds::{Deployment, DeploymentCondition},
    },
};

/// The message until the Deployment controller has observed the latest generation: the status describes an older one.
const NOT_OBSERVED: &str = "the Deployment controller has not observed the latest generation yet";

/// The conditions, if all children are as desired.
pub(crate) fn state<C>(
    deployment: &Child<Deployment<C>>,
    desired_replicas: i32,
    pods: Option<&Trouble>,
    next: Next,
) -> ObservedState {
    let live = deployment.live();
    ObservedState {
        ready: ready(deployment, desired_replicas, pods),
        others: vec![("Available", available(live)), ("Progressing", progressing(live))],
        stalled: stalled(deployment, desired_replicas, pods),
        next,
    }
}

/// The condition `Ready`, if all children are as desired.
fn ready<C>(deployment: &Child<Deployment<C>>, desired_replicas: i32, pods: Option<&Trouble>) -> Verdict {
    let Child::Kept(deployment) = deployment else {
        return Verdict::no("RolloutInProgress", "the Deployment is being replaced");
    };
    // The number of replicas that we wrote, or that admission set.
    let (wanted, rollout) = (deployment.spec.replicas, &deployment.status);
    // Pods of the previous template, or too many. The Deployment controller removes unavailable Pods first, so the
    // remaining ones count as available.
    let old = rollout.replicas.saturating_sub(rollout.updated_replicas.min(wanted));
    let up_to_date = rollout.available_replicas.saturating_sub(old).min(wanted).max(0);
    let is_complete = is_complete(deployment);
    if let Some(fewer) = fewer_than_desired(deployment, desired_replicas).filter(|_| is_complete) {
        return Verdict::no(CHANGED_BY_ADMISSION, fewer);
    }
    if is_complete && wanted == 0 {
        return Verdict::yes("ScaledToZero", "no replicas are wanted");
    }
    if is_complete {
        return Verdict::yes(
            "AllReplicasReady",
            format_smolstr!("{wanted} of {wanted} replicas are available"),
        );
    }
    if let Some(failure) = cannot_create(deployment).filter(|_| !is_held_back(deployment)) {
        return Verdict::no(
            failure.reason.clone(),
            format!("{}{}", failure.message, remedy(&failure.message)),
        );
    }
    if !is_observed(deployment) {
        return Verdict::no("RolloutInProgress", NOT_OBSERVED);
    }
    let mut message = format!("{up_to_date} of {wanted} replicas are updated and available");
    if old > 0 {
        message += &format!("; {old} old replicas remain");
    }
    if let Some(pods) = pods.filter(|_| !is_held_back(deployment)) {
        return Verdict::no(pods.reason.clone(), format_smolstr!("{message}: {}", pods.message));
    }
    if deployment.spec.paused {
        message += &format!("; {}", paused(deployment));
    }
    let reason = match deadline_exceeded(deployment) {
        _ if is_held_back(deployment) => "DeploymentPaused",
        Some(_) => "ProgressDeadlineExceeded",
        None if deployment.spec.paused => "DeploymentPaused",
        None => "RolloutInProgress",
    };
    Verdict::no(reason, message)
}

/// Whether all desired Pods have the latest template and are available, and the Deployment has no other Pods.
fn is_complete<C>(deployment: &Deployment<C>) -> bool {
    let (wanted, rollout) = (deployment.spec.replicas, &deployment.status);
    is_observed(deployment)
        && rollout.updated_replicas == wanted
        && rollout.replicas == wanted
        && rollout.available_replicas == wanted
}

/// Whether the rollout waits for Pods of the latest template, and such Pods exist. With the strategy `Recreate`, it may also wait for the
/// end of the earlier Pods, which the Deployment no longer counts.
pub(crate) fn waits_for_pods<C>(deployment: &Deployment<C>) -> bool {
    is_observed(deployment)
        && !is_complete(deployment)
        && !is_held_back(deployment)
        && cannot_create(deployment).is_none()
        && (deployment.status.updated_replicas > 0 || deployment.status.replicas == 0)
}

/// Why the Deployment cannot create its Pods or their ReplicaSet: a quota, for example, or an admission policy.
fn cannot_create<C>(deployment: &Deployment<C>) -> Option<&DeploymentCondition> {
    deployment.status.conditions.iter().find(|condition| match &*condition.r#type {
        "ReplicaFailure" => condition.status == "True" && is_observed(deployment),
        // With this reason, the Deployment controller does not update observedGeneration.
        "Progressing" => condition.reason == "ReplicaSetCreateError",
        _ => false,
    })
}

/// Whether Pods of an older template stay because the Deployment is paused. A paused Deployment can still be scaled.
fn is_held_back<C>(deployment: &Deployment<C>) -> bool {
    deployment.spec.paused
        && is_observed(deployment)
        && deployment.status.updated_replicas < deployment.status.replicas
}

fn paused<C>(deployment: &Deployment<C>) -> SmolStr {
    let name = &deployment.metadata.name;
    format_smolstr!("the Deployment is paused: kubectl rollout resume deployment/{name}")
}

/// The message if admission gives the Deployment fewer replicas than desired. If admission changes other fields, we
/// cannot know whether the Pods still serve as well.
fn fewer_than_desired<C>(deployment: &Deployment<C>, desired: i32) -> Option<SmolStr> {
    let has = deployment.spec.replicas;
    (has < desired).then(|| {
        format_smolstr!(
            "{desired} replicas are wanted, but an admission webhook or policy changes the Deployment's replicas to {has}"
        )
    })
}

/// The condition `Available`, as the Deployment has it.
fn available<C>(deployment: Option<&Deployment<C>>) -> Verdict {
    let Some(deployment) = deployment else {
        return Verdict::no("DeploymentMissing", "there is no Deployment of ours");
    };
    match reported(deployment, "Available") {
        Some(condition) if condition.status == "True" => {
            Verdict::yes(condition.reason.clone(), condition.message.clone())
        }
        Some(_) | None => Verdict::no("MinimumReplicasUnavailable", "too few replicas accept connections"),
    }
}

/// The condition `Progressing`, as the Deployment has it.
fn progressing<C>(deployment: Option<&Deployment<C>>) -> Verdict {
    let Some(deployment) = deployment else {
        return Verdict::no("DeploymentMissing", "there is no Deployment of ours");
    };
    let reported = reported(deployment, "Progressing");
    // The Deployment controller replaces an old ReplicaSetCreateError as soon as it has created a ReplicaSet.
    let has_failed = reported.is_some_and(|condition| {
        condition.status == "False"
            && (is_observed(deployment) || condition.reason == "ReplicaSetCreateError")
    });
    if deployment.spec.paused && !has_failed {
        return Verdict::unknown("DeploymentPaused", paused(deployment));
    }
    if !is_observed(deployment) && !has_failed {
        return Verdict::yes("ReplicaSetUpdated", NOT_OBSERVED);
    }
    match reported {
        Some(condition) => {
            let verdict = match &*condition.status {
                "True" => Verdict::yes,
                "False" => Verdict::no,
                _ => Verdict::unknown,
            };
            verdict(condition.reason.clone(), condition.message.clone())
        }
        // `HasProgressDeadline` in k8s.io/kubernetes/pkg/controller/deployment/util.
        None => Verdict::unknown(
            "ProgressNotReported",
            "the Deployment does not report its progress, as where progressDeadlineSeconds is 2147483647",
        ),
    }
}

/// The condition `Stalled`, if the rollout cannot proceed until a user acts.
fn stalled<C>(
    deployment: &Child<Deployment<C>>,
    desired_replicas: i32,
    pods: Option<&Trouble>,
) -> Option<Verdict> {
    let Child::Kept(deployment) = deployment else { return None };
    if is_held_back(deployment) {
        return Some(Verdict::yes("DeploymentPaused", paused(deployment)));
    }
    if let Some(fewer) = fewer_than_desired(deployment, desired_replicas) {
        return Some(Verdict::yes(CHANGED_BY_ADMISSION, fewer));
    }
    if let Some(pods) = pods.filter(|pods| pods.is_final()) {
        return Some(Verdict::yes(pods.reason.clone(), pods.message.as_str()));
    }
    deadline_exceeded(deployment)
        .map(|condition| Verdict::yes("ProgressDeadlineExceeded", condition.message.clone()))
}

fn deadline_exceeded<C>(deployment: &Deployment<C>) -> Option<&DeploymentCondition> {
    let condition = reported(deployment, "Progressing").filter(|_| is_observed(deployment))?;
    Some(condition).filter(|condition| condition.reason == "ProgressDeadlineExceeded")
}

/// Whether the Deployment controller has observed our last write. Until then, the status describes an older generation.
fn is_observed<C>(deployment: &Deployment<C>) -> bool {
    deployment.status.observed_generation >= deployment.metadata.generation
}

fn reported<'a, C>(deployment: &'a Deployment<C>, name: &str) -> Option<&'a DeploymentCondition> {
    deployment.status.conditions.iter().find(|condition| condition.r#type == name)
}
