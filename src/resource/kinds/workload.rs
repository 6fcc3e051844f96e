//! The kinds that create Pods: Deployment, StatefulSet, DaemonSet, Job and CronJob.

use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use super::{
    Json, PersistentVolumeClaimSpec, PodTemplate, TemplateMeta, WorkloadCondition, kinds, parts,
    pod::POD_TEMPLATE, statuses,
};
use crate::resource::{
    LabelSelector, ObjectMeta,
    diff::{Merge, MergeRule},
};

/// The merge rules of a kind with a selector and a Pod template.
const WORKLOAD: &[MergeRule] =
    &[("/spec/selector", Merge::Whole), ("/spec/template", Merge::Rules(POD_TEMPLATE))];

kinds! {
    /// `apps/v1` Deployment: keeps a number of Pods of one template running.
    /// See <https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/deployment-v1/>.
    Deployment {
        /// The desired state.
        spec: DeploymentSpec,
        ;
        /// The state that the Deployment controller reports.
        status: DeploymentStatus,
    }

    /// `apps/v1` StatefulSet: Pods with stable names, each with claims of its own.
    /// See <https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/stateful-set-v1/>.
    StatefulSet {
        /// The desired state.
        spec: StatefulSetSpec,
        ;
        /// The state that the StatefulSet controller reports.
        status: StatefulSetStatus,
    }

    /// `apps/v1` DaemonSet: one Pod on each node.
    /// See <https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/daemon-set-v1/>.
    DaemonSet {
        /// The desired state.
        spec: DaemonSetSpec,
        ;
        /// The state that the DaemonSet controller reports.
        status: DaemonSetStatus,
    }

    /// `batch/v1` Job: runs Pods until they succeed.
    /// See <https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/job-v1/>.
    Job {
        /// The desired state.
        spec: JobSpec,
        ;
        /// The state that the Job controller reports.
        status: JobStatus,
    }

    /// `batch/v1` CronJob: creates Jobs at certain times.
    /// See <https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/cron-job-v1/>.
    CronJob {
        /// The desired state.
        spec: CronJobSpec,
        ;
        /// The state that the CronJob controller reports.
        status: CronJobStatus,
    }
}

crate::kind!(Deployment, "apps", "v1", "deployments", {
    const MERGE: &'static [MergeRule] = WORKLOAD;

    fn is_immutable(&self, path: &str) -> bool {
        path.starts_with("/spec/selector/")
    }
});

crate::kind!(StatefulSet, "apps", "v1", "statefulsets", {
    const MERGE: &'static [MergeRule] = &[
        ("/spec/selector", Merge::Whole),
        ("/spec/template", Merge::Rules(POD_TEMPLATE)),
        // The API server lets nobody change them. The claims grow one by one.
        ("/spec/volumeClaimTemplates", Merge::NotOurs),
    ];

    fn is_immutable(&self, path: &str) -> bool {
        path.starts_with("/spec/selector/")
            || path == "/spec/serviceName"
            || path == "/spec/podManagementPolicy"
    }
});

crate::kind!(DaemonSet, "apps", "v1", "daemonsets", {
    const MERGE: &'static [MergeRule] = WORKLOAD;

    fn is_immutable(&self, path: &str) -> bool {
        path.starts_with("/spec/selector/")
    }
});

crate::kind!(Job, "batch", "v1", "jobs", {
    const MERGE: &'static [MergeRule] = WORKLOAD;

    fn is_immutable(&self, path: &str) -> bool {
        ["/spec/template/", "/spec/selector", "/spec/completionMode", "/spec/completions"]
            .iter()
            .any(|start| path.starts_with(start))
    }
});

crate::kind!(CronJob, "batch", "v1", "cronjobs", {
    const MERGE: &'static [MergeRule] = &[("/spec/jobTemplate/spec/template", Merge::Rules(POD_TEMPLATE))];
});

parts! {
    /// The desired state of a [`Deployment`].
    DeploymentSpec {
        /// The number of Pods. `None`: an autoscaler's, or one.
        replicas: Option<i32>,
        /// Selects its Pods. Immutable.
        selector: LabelSelector,
        /// The template of each Pod.
        template: PodTemplate,
        /// How a new template reaches the Pods.
        strategy: Option<Json>,
        /// How long a Pod must be ready before it counts as available.
        min_ready_seconds: i32,
        /// How many earlier templates are kept.
        revision_history_limit: Option<i32>,
        /// How long a rollout may make no progress.
        progress_deadline_seconds: Option<i32>,
        /// Whether its rollouts are paused.
        paused: bool,
    }

    /// The desired state of a [`StatefulSet`].
    StatefulSetSpec {
        /// The number of Pods. `None`: an autoscaler's, or one.
        replicas: Option<i32>,
        /// Selects its Pods. Immutable.
        selector: LabelSelector,
        /// The Service after which the Pods are named. Immutable.
        service_name: SmolStr,
        /// The template of each Pod.
        template: PodTemplate,
        /// The claims of each Pod. Immutable.
        volume_claim_templates: Vec<ClaimTemplate>,
        /// `OrderedReady`, or `Parallel`: Pods are created and deleted without a wait for each other. A new template still reaches
        /// one after the other. Immutable.
        pod_management_policy: SmolStr,
        /// How a new template reaches the Pods.
        update_strategy: Option<Json>,
        /// Whether claims are deleted.
        persistent_volume_claim_retention_policy: Option<ClaimRetention>,
        /// The number of the first Pod: `{"start": 1}`.
        ordinals: Option<Json>,
        /// How long a Pod must be ready before it counts as available.
        min_ready_seconds: i32,
        /// How many earlier templates are kept.
        revision_history_limit: Option<i32>,
    }

    /// A claim of each Pod of a [`StatefulSet`].
    ClaimTemplate {
        /// The claim of the Pod `db-0` is called `data-db-0` if this name is `data`.
        metadata: TemplateMeta,
        /// The desired volume.
        spec: PersistentVolumeClaimSpec,
    }

    /// Whether the StatefulSet controller deletes claims.
    ClaimRetention {
        /// When the StatefulSet is deleted: `Retain` or `Delete`.
        when_deleted: SmolStr,
        /// When their Pod is scaled away: `Retain` or `Delete`.
        when_scaled: SmolStr,
    }

    /// The desired state of a [`DaemonSet`].
    DaemonSetSpec {
        /// Selects its Pods. Immutable.
        selector: LabelSelector,
        /// The template of each Pod.
        template: PodTemplate,
        /// How a new template reaches the Pods.
        update_strategy: Option<Json>,
        /// How long a Pod must be ready before it counts as available.
        min_ready_seconds: i32,
        /// How many earlier templates are kept.
        revision_history_limit: Option<i32>,
    }

    /// The desired state of a [`Job`].
    JobSpec {
        /// The template of its Pods. Immutable.
        template: PodTemplate,
        /// How many Pods must succeed.
        completions: Option<i32>,
        /// How many Pods run at a time.
        parallelism: Option<i32>,
        /// `NonIndexed` or `Indexed`. Immutable.
        completion_mode: SmolStr,
        /// How often its Pods may fail.
        backoff_limit: Option<i32>,
        /// How long its Pods may run.
        active_deadline_seconds: Option<i64>,
        /// How long it stays after its end.
        ttl_seconds_after_finished: Option<i32>,
        /// Selects its Pods. The API server sets it.
        selector: LabelSelector,
        /// Whether it runs no Pods for now.
        suspend: Option<bool>,
        /// When a failed Pod is replaced.
        pod_replacement_policy: SmolStr,
        /// Whether `selector` is its author's.
        manual_selector: bool,
    }

    /// The desired state of a [`CronJob`].
    CronJobSpec {
        /// When, as in a crontab.
        schedule: SmolStr,
        /// The time zone of `schedule`: `Etc/UTC`.
        time_zone: SmolStr,
        /// `Allow`, `Forbid`: not while an earlier one still runs, or `Replace`.
        concurrency_policy: SmolStr,
        /// The template of each Job.
        job_template: JobTemplate,
        /// Whether no more Jobs begin.
        suspend: Option<bool>,
        /// How late a Job may begin.
        starting_deadline_seconds: Option<i64>,
        /// How many successful Jobs are kept.
        successful_jobs_history_limit: Option<i32>,
        /// How many failed Jobs are kept.
        failed_jobs_history_limit: Option<i32>,
    }

    /// The template of each Job of a [`CronJob`].
    JobTemplate {
        /// The labels and annotations of the Jobs.
        metadata: TemplateMeta,
        /// The desired state of the Jobs.
        spec: JobSpec,
    }
}

statuses! {
    /// The state that the Deployment controller reports.
    DeploymentStatus {
        /// The `metadata.generation` that this status describes.
        observed_generation: i64,
        /// Pods that exist, old and new.
        replicas: i32,
        /// Pods of the present template.
        updated_replicas: i32,
        /// Pods that pass their readiness probe.
        ready_replicas: i32,
        /// Pods ready for `minReadySeconds`.
        available_replicas: i32,
        /// `Available`, `Progressing`, `ReplicaFailure`.
        conditions: Vec<WorkloadCondition>,
    }

    /// The state that the StatefulSet controller reports.
    StatefulSetStatus {
        /// The `metadata.generation` that this status describes.
        observed_generation: i64,
        /// Pods that exist.
        replicas: i32,
        /// Pods that pass their readiness probe.
        ready_replicas: i32,
        /// Pods of the present template.
        updated_replicas: i32,
        /// Pods ready for `minReadySeconds`.
        available_replicas: i32,
        /// The label `controller-revision-hash` of the Pods with the present template.
        update_revision: SmolStr,
    }

    /// The state that the DaemonSet controller reports.
    DaemonSetStatus {
        /// The `metadata.generation` that this status describes.
        observed_generation: i64,
        /// Nodes that should run a Pod.
        desired_number_scheduled: i32,
        /// Nodes that run one and should.
        current_number_scheduled: i32,
        /// Nodes with a Pod of the present template.
        updated_number_scheduled: i32,
        /// Nodes with a Pod that passes its readiness probe.
        number_ready: i32,
        /// Nodes with a Pod that has been ready for `minReadySeconds`.
        number_available: i32,
    }

    /// The state that the Job controller reports.
    JobStatus {
        /// Pods that run.
        active: i32,
        /// Pods that have succeeded.
        succeeded: i32,
        /// Pods that have failed.
        failed: i32,
        /// `Complete` or `Failed`, at the end.
        conditions: Vec<WorkloadCondition>,
    }

    /// The state that the CronJob controller reports. The times are texts in UTC, which can be compared.
    CronJobStatus {
        /// The running Jobs.
        active: Vec<Json>,
        /// When the last Job was created.
        last_schedule_time: SmolStr,
        /// When the last successful Job ended.
        last_successful_time: SmolStr,
    }
}

impl Job {
    /// Whether its Pods have succeeded.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.condition("Complete").is_some()
    }

    /// Whether its Pods have failed too often.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.condition("Failed").is_some()
    }

    /// The condition of this name, if it is true.
    #[must_use]
    pub fn condition(&self, name: &str) -> Option<&WorkloadCondition> {
        self.status.conditions.iter().find(|one| one.r#type == name && one.status == "True")
    }
}
