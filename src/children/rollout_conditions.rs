//! Computes the conditions `Ready`, `Available`, `Progressing` and `Stalled` of an object whose Pods a workload runs: a Deployment,
//! StatefulSet, DaemonSet or Job. They come from the status of the workload, and from the reason why its Pods do not run
//! (`ImagePullBackOff`), which `pods.rs` finds. Nothing in this file does I/O.
//!
//! Of a Deployment, `Available` and `Progressing` repeat its own conditions; the other workloads only count their Pods. `Ready` and
//! `Stalled` are for generic tools: see
//! [kstatus](https://github.com/kubernetes-sigs/cli-utils/blob/master/pkg/kstatus/README.md).

use smol_str::{SmolStr, format_smolstr};

use super::{
    Child,
    pods::Trouble,
    refusal::{CHANGED_BY_ADMISSION, remedy},
    status::ObservedState,
};
use crate::{
    next::Next,
    resource::{
        LabelSelector, Resource,
        conditions::Verdict,
        kinds::{Container, DaemonSet, Deployment, Job, PodTemplate, StatefulSet, WorkloadCondition},
    },
};

/// A kind that creates Pods from a template, and reports how many of them run.
pub trait Workload: Resource {
    /// What its controller reports.
    fn rollout(&self) -> Rollout<'_>;
}

/// What the controller of a workload reports of its Pods.
pub struct Rollout<'a> {
    kind: &'static str,
    name: &'a str,
    /// Of the workload. A new generation is a new rollout.
    pub(super) generation: i64,
    /// Selects its Pods.
    pub(super) selector: &'a LabelSelector,
    /// The containers of the template.
    pub(super) containers: &'a [Container],
    /// The number of Pods in the spec, if it has one: the one that we wrote, or that admission set.
    pub(super) asked: Option<i32>,
    /// The number of Pods that there should be.
    wanted: i32,
    /// Whether the counts are for our last write, and not for an older generation.
    is_observed: bool,
    /// Pods of this template and of older ones.
    replicas: i32,
    updated: i32,
    available: i32,
    is_paused: bool,
    /// Of a Deployment, or `Complete` and `Failed` of a Job.
    conditions: &'a [WorkloadCondition],
}

impl Workload for Deployment {
    fn rollout(&self) -> Rollout<'_> {
        let (spec, status) = (&self.spec, &self.status);
        Rollout {
            asked: spec.replicas,
            wanted: spec.replicas.unwrap_or(1),
            is_observed: status.observed_generation >= self.metadata.generation,
            replicas: status.replicas,
            updated: status.updated_replicas,
            available: status.available_replicas,
            is_paused: spec.paused,
            conditions: &status.conditions,
            ..Rollout::of(self, &spec.selector, &spec.template)
        }
    }
}

impl Workload for StatefulSet {
    fn rollout(&self) -> Rollout<'_> {
        let (spec, status) = (&self.spec, &self.status);
        Rollout {
            asked: spec.replicas,
            wanted: spec.replicas.unwrap_or(1),
            is_observed: status.observed_generation >= self.metadata.generation,
            replicas: status.replicas,
            updated: status.updated_replicas,
            available: status.available_replicas,
            ..Rollout::of(self, &spec.selector, &spec.template)
        }
    }
}

impl Workload for DaemonSet {
    fn rollout(&self) -> Rollout<'_> {
        let (spec, status) = (&self.spec, &self.status);
        Rollout {
            wanted: status.desired_number_scheduled,
            is_observed: status.observed_generation >= self.metadata.generation,
            replicas: status.current_number_scheduled,
            updated: status.updated_number_scheduled,
            available: status.number_available,
            ..Rollout::of(self, &spec.selector, &spec.template)
        }
    }
}

/// A Pod of a Job is available when it has succeeded.
impl Workload for Job {
    fn rollout(&self) -> Rollout<'_> {
        let (spec, status) = (&self.spec, &self.status);
        let wanted = spec.completions.or(spec.parallelism).unwrap_or(1);
        Rollout {
            wanted,
            replicas: wanted,
            updated: wanted,
            available: if self.is_complete() { wanted } else { status.succeeded.min(wanted - 1).max(0) },
            is_paused: spec.suspend == Some(true),
            conditions: &status.conditions,
            ..Rollout::of(self, &spec.selector, &spec.template)
        }
    }
}

impl<'a> Rollout<'a> {
    /// Of a workload that has no Pods, and reports no conditions.
    fn of<W: Workload>(
        workload: &'a W,
        selector: &'a LabelSelector,
        template: &'a PodTemplate,
    ) -> Rollout<'a> {
        Rollout {
            kind: W::KIND,
            name: &workload.metadata().name,
            generation: workload.metadata().generation,
            selector,
            containers: &template.spec.containers,
            asked: None,
            wanted: 0,
            is_observed: true,
            replicas: 0,
            updated: 0,
            available: 0,
            is_paused: false,
            conditions: &[],
        }
    }
}

/// The conditions, if all children are as desired. `desired`: the number of Pods that the operator wants, if it wants one.
pub fn state<W: Workload>(
    workload: &Child<W>,
    desired: Option<i32>,
    pods: Option<&Trouble>,
    next: Next,
) -> ObservedState {
    let live = workload.live().map(|live| live.rollout());
    let kept = live.as_ref().filter(|_| workload.kept().is_some());
    let missing = || {
        let reason = if W::KIND == Deployment::KIND { "DeploymentMissing" } else { "WorkloadMissing" };
        Verdict::no(reason, format_smolstr!("there is no {} of ours", W::KIND))
    };
    let ready = match kept {
        Some(rollout) => rollout.ready(desired, pods),
        None => Verdict::no("RolloutInProgress", format_smolstr!("the {} is being replaced", W::KIND)),
    };
    let available = live.as_ref().map_or_else(missing, Rollout::is_available);
    let progressing = live.as_ref().map_or_else(missing, Rollout::progressing);
    ObservedState {
        ready,
        others: vec![("Available", available), ("Progressing", progressing)],
        stalled: kept.and_then(|rollout| rollout.stalled(desired, pods)),
        next,
    }
}

impl Rollout<'_> {
    /// The condition `Ready`, if all children are as desired.
    fn ready(&self, desired: Option<i32>, pods: Option<&Trouble>) -> Verdict {
        let wanted = self.wanted;
        // Pods of the previous template, or too many. The Deployment controller removes unavailable Pods first, so the
        // remaining ones count as available.
        let old = self.replicas.saturating_sub(self.updated.min(wanted));
        let up_to_date = self.available.saturating_sub(old).min(wanted).max(0);
        let is_complete = self.is_complete();
        if let Some(fewer) = self.fewer_than(desired).filter(|_| is_complete) {
            return Verdict::no(CHANGED_BY_ADMISSION, fewer);
        }
        if is_complete && wanted == 0 {
            return Verdict::yes("ScaledToZero", "no replicas are wanted");
        }
        if is_complete && self.kind == Job::KIND {
            return Verdict::yes("Complete", format_smolstr!("{wanted} of {wanted} Pods have succeeded"));
        }
        if is_complete {
            return Verdict::yes(
                "AllReplicasReady",
                format_smolstr!("{wanted} of {wanted} replicas are available"),
            );
        }
        if let Some(failure) = self.cannot_create().filter(|_| !self.is_held_back()) {
            return Verdict::no(
                failure.reason.clone(),
                format!("{}{}", failure.message, remedy(&failure.message)),
            );
        }
        if !self.is_observed {
            return Verdict::no("RolloutInProgress", self.not_observed());
        }
        let mut message = match self.kind {
            Job::KIND => format!("{up_to_date} of {wanted} Pods have succeeded"),
            _ => format!("{up_to_date} of {wanted} replicas are updated and available"),
        };
        if old > 0 {
            message += &format!("; {old} old replicas remain");
        }
        if let Some(pods) = pods.filter(|_| !self.is_held_back()) {
            return Verdict::no(pods.reason.clone(), format_smolstr!("{message}: {}", pods.message));
        }
        if self.is_paused {
            message += &format!("; {}", self.paused());
        }
        let reason = match self.failure() {
            _ if self.is_held_back() => self.reason_of_pause().into(),
            Some(failure) => failure.reason.clone(),
            None if self.is_paused => self.reason_of_pause().into(),
            None => "RolloutInProgress".into(),
        };
        Verdict::no(reason, message)
    }

    /// Whether all desired Pods have the latest template and are available, and the workload has no other Pods.
    fn is_complete(&self) -> bool {
        let Rollout { wanted, replicas, updated, available, .. } = self;
        self.is_observed && updated == wanted && replicas == wanted && available == wanted
    }

    /// Whether the rollout waits for Pods of the latest template, and such Pods exist. With the strategy `Recreate`, it may also wait
    /// for the end of the earlier Pods, which the Deployment no longer counts.
    pub fn waits_for_pods(&self) -> bool {
        self.is_observed
            && !self.is_complete()
            && !self.is_held_back()
            // It creates no more Pods.
            && !(self.kind == Job::KIND && (self.is_paused || self.failure().is_some()))
            && self.cannot_create().is_none()
            && (self.updated > 0 || self.replicas == 0)
    }

    /// Why the Deployment cannot create its Pods or their ReplicaSet: a quota, for example, or an admission policy.
    fn cannot_create(&self) -> Option<&WorkloadCondition> {
        self.conditions.iter().find(|condition| match &*condition.r#type {
            "ReplicaFailure" => condition.status == "True" && self.is_observed,
            // With this reason, the Deployment controller does not update observedGeneration.
            "Progressing" => condition.reason == "ReplicaSetCreateError",
            _ => false,
        })
    }

    /// Whether Pods of an older template stay because the Deployment is paused. A paused Deployment can still be scaled.
    fn is_held_back(&self) -> bool {
        self.is_paused && self.is_observed && self.updated < self.replicas
    }

    fn reason_of_pause(&self) -> &'static str {
        if self.kind == Job::KIND { "JobSuspended" } else { "DeploymentPaused" }
    }

    fn paused(&self) -> SmolStr {
        match self.kind {
            Deployment::KIND => {
                let name = self.name;
                format_smolstr!("the Deployment is paused: kubectl rollout resume deployment/{name}")
            }
            kind => format_smolstr!("the {kind} is suspended"),
        }
    }

    /// The message until the controller has observed the latest generation.
    fn not_observed(&self) -> SmolStr {
        format_smolstr!("the {} controller has not observed the latest generation yet", self.kind)
    }

    /// The message if admission gives the workload fewer replicas than desired. If admission changes other fields, we
    /// cannot know whether the Pods still serve as well.
    fn fewer_than(&self, desired: Option<i32>) -> Option<SmolStr> {
        let (kind, has) = (self.kind, self.wanted);
        let desired = desired.filter(|desired| has < *desired)?;
        Some(format_smolstr!(
            "{desired} replicas are wanted, but an admission webhook or policy changes the {kind}'s replicas to {has}"
        ))
    }

    /// The condition `Available`: of a Deployment, its own.
    fn is_available(&self) -> Verdict {
        let too_few = || Verdict::no("MinimumReplicasUnavailable", "too few replicas accept connections");
        match self.reported("Available") {
            Some(condition) if condition.status == "True" => {
                Verdict::yes(condition.reason.clone(), condition.message.clone())
            }
            Some(_) => too_few(),
            None if self.kind == Deployment::KIND || self.available < self.wanted => too_few(),
            None => {
                let (available, wanted) = (self.available, self.wanted);
                let message = format_smolstr!("{available} of {wanted} replicas are available");
                Verdict::yes("MinimumReplicasAvailable", message)
            }
        }
    }

    /// The condition `Progressing`: of a Deployment, its own.
    fn progressing(&self) -> Verdict {
        let reported = self.reported("Progressing");
        // The Deployment controller replaces an old ReplicaSetCreateError as soon as it has created a ReplicaSet.
        let has_failed = reported.is_some_and(|condition| {
            condition.status == "False" && (self.is_observed || condition.reason == "ReplicaSetCreateError")
        });
        if self.is_paused && !has_failed {
            return Verdict::unknown(self.reason_of_pause(), self.paused());
        }
        if self.kind != Deployment::KIND {
            return match self.failure() {
                Some(failure) => Verdict::no(failure.reason.clone(), failure.message.clone()),
                None if self.is_complete() => Verdict::yes("RolloutComplete", "all replicas are as desired"),
                None => Verdict::yes("RolloutInProgress", "some replicas are not as desired yet"),
            };
        }
        if !self.is_observed && !has_failed {
            return Verdict::yes("ReplicaSetUpdated", self.not_observed());
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
    fn stalled(&self, desired: Option<i32>, pods: Option<&Trouble>) -> Option<Verdict> {
        if self.is_held_back() {
            return Some(Verdict::yes(self.reason_of_pause(), self.paused()));
        }
        if let Some(fewer) = self.fewer_than(desired) {
            return Some(Verdict::yes(CHANGED_BY_ADMISSION, fewer));
        }
        if let Some(pods) = pods.filter(|pods| pods.is_final()) {
            return Some(Verdict::yes(pods.reason.clone(), pods.message.as_str()));
        }
        self.failure().map(|failure| Verdict::yes(failure.reason.clone(), failure.message.clone()))
    }

    /// Why the rollout has ended without success: a deadline, or too many failures of a Job.
    fn failure(&self) -> Option<&WorkloadCondition> {
        if self.kind == Job::KIND {
            return self.reported("Failed").filter(|condition| condition.status == "True");
        }
        let condition = self.reported("Progressing").filter(|_| self.is_observed)?;
        Some(condition).filter(|condition| condition.reason == "ProgressDeadlineExceeded")
    }

    fn reported(&self, name: &str) -> Option<&WorkloadCondition> {
        self.conditions.iter().find(|condition| condition.r#type == name)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;

    /// The conditions, one per line: `Ready=False RolloutInProgress: 1 of 2 …`.
    fn conditions<W: Workload>(spec: Value, status: Value) -> Vec<String> {
        let metadata = json!({"name": "db", "resourceVersion": "1", "generation": 2});
        let workload =
            serde_json::from_value::<W>(json!({"metadata": metadata, "spec": spec, "status": status}));
        let workload = Child::Kept(Arc::new(workload.expect("a workload")));
        let ObservedState { ready, others, stalled, .. } = state(&workload, None, None, Next::OnChange);
        let all =
            [("Ready", ready)].into_iter().chain(others).chain(stalled.map(|stalled| ("Stalled", stalled)));
        let text = |(name, verdict): (&str, Verdict)| {
            let one = verdict.condition(name, 1, &[], "2026-11-21T12:00:00Z");
            format!("{name}={} {}: {}", one.status, one.reason, one.message)
        };
        all.map(text).collect()
    }

    #[test]
    fn a_stateful_set_is_ready_when_all_its_pods_have_the_template_and_are_available() {
        let of = |replicas: i32, updated: i32, observed: i32| {
            let status = json!({
                "observedGeneration": observed, "replicas": replicas, "updatedReplicas": updated, "availableReplicas": replicas,
            });
            conditions::<StatefulSet>(json!({"replicas": 2}), status)
        };
        assert_eq!(
            of(2, 2, 2),
            [
                "Ready=True AllReplicasReady: 2 of 2 replicas are available",
                "Available=True MinimumReplicasAvailable: 2 of 2 replicas are available",
                "Progressing=True RolloutComplete: all replicas are as desired",
            ]
        );
        assert_eq!(
            of(2, 1, 2)[0],
            "Ready=False RolloutInProgress: 1 of 2 replicas are updated and available; 1 old replicas remain"
        );
        assert_eq!(
            of(2, 2, 1)[0],
            "Ready=False RolloutInProgress: the StatefulSet controller has not observed the latest generation yet"
        );
        assert_eq!(
            of(1, 1, 2)[1],
            "Available=False MinimumReplicasUnavailable: too few replicas accept connections"
        );
    }

    #[test]
    fn a_daemon_set_is_ready_when_each_node_has_its_pod() {
        let of = |available: i32| {
            let status = json!({
                "observedGeneration": 2, "desiredNumberScheduled": 3, "currentNumberScheduled": 3,
                "updatedNumberScheduled": 3, "numberAvailable": available,
            });
            conditions::<DaemonSet>(json!({}), status).remove(0)
        };
        assert_eq!(of(3), "Ready=True AllReplicasReady: 3 of 3 replicas are available");
        assert_eq!(of(2), "Ready=False RolloutInProgress: 2 of 3 replicas are updated and available");
    }

    #[test]
    fn a_job_is_ready_when_it_is_complete_and_stalled_when_it_has_failed() {
        let of = |status: Value| conditions::<Job>(json!({"completions": 2}), status);
        let ended = |name: &str| {
            let condition = json!({"type": name, "status": "True", "reason": "BackoffLimitExceeded", "message": "too often"});
            of(json!({"succeeded": 2, "conditions": [condition]}))
        };
        assert_eq!(ended("Complete")[0], "Ready=True Complete: 2 of 2 Pods have succeeded");
        assert_eq!(
            of(json!({"succeeded": 1, "active": 1}))[0],
            "Ready=False RolloutInProgress: 1 of 2 Pods have succeeded"
        );
        let failed = ended("Failed");
        assert_eq!(failed[0], "Ready=False BackoffLimitExceeded: 1 of 2 Pods have succeeded");
        assert_eq!(failed[3], "Stalled=True BackoffLimitExceeded: too often");
    }
}
