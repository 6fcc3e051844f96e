//! The types of Database: its spec and status, its CustomResourceDefinition, and the fields of its children that are not in
//! [`kinds`](crate::resource::kinds).

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use smallvec::SmallVec;
use smol_str::SmolStr;

use crate::{
    operators::crd_schema::{self, column, wide},
    resource::{
        Annotations, Condition, LabelSelector, Labels, ObjectMeta, Resource,
        diff::{Merge, MergeRule},
        kinds::{Capabilities, ContainerPort, PodMeta, Port, Present, SeccompProfile},
        without_annotations,
    },
};

/// Most instances of one Database: the settings allow as many replicas to clone the primary at the same time.
pub(super) const SIZE_MAX: i32 = 10;

/// The custom resource.
#[derive(Clone, Debug, Deserialize)]
pub struct Database {
    /// Name, labels, owners, versions.
    #[serde(deserialize_with = "without_annotations")]
    pub metadata: ObjectMeta,
    /// The desired database.
    pub spec: DatabaseSpec,
    /// The status that this operator has written.
    #[serde(default)]
    pub status: DatabaseStatus,
}

crate::kind!(Database, "app.example.com", "v1", "databases", {
    const INSTALL: &'static str = "listwatch crd database | kubectl apply -f -";
});

/// The desired database.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DatabaseSpec {
    /// Number of instances, 1 to 10. The first is the primary; the others are replicas, which can only be read.
    #[schemars(range(min = 1, max = SIZE_MAX))]
    pub size: i32,
    /// Version of PostgreSQL: the tag of the image. A major version (15 to 18), with or without a minor version. The minor
    /// version can be raised; for another major version, create another Database.
    #[schemars(regex(pattern = r"^1[5-8](\.(0|[1-9][0-9]?))?$"), length(max = 5))]
    pub version: String,
    /// Size of the claim of each instance, in Gi. Default 1Gi. It can only grow, and only if the StorageClass allows that.
    #[serde(default = "DatabaseSpec::default_storage")]
    #[schemars(regex(pattern = "^[1-9][0-9]{0,4}Gi$"), length(max = 7))]
    pub storage: String,
    /// A replica that has been further behind the primary for this time gets no connections. 10 to 3600 seconds, default 60.
    #[serde(default = "DatabaseSpec::default_max_lag_seconds")]
    #[schemars(range(min = 10, max = 3600))]
    pub max_lag_seconds: i32,
    /// Regular dumps of the database app, in a claim of their own. Default: none.
    #[serde(default)]
    pub backup: Option<BackupSpec>,
    /// Encrypts all connections; others are refused. Default: none. It cannot be changed.
    #[serde(default)]
    pub tls: Option<TlsSpec>,
    /// The backup from which a new Database starts, instead of an empty one. Immutable, and without effect on a claim that has data.
    #[serde(default)]
    pub restore_from: Option<RestoreSpec>,
    /// What happens to claims and passwords if the Database is deleted. Default Retain: they stay, and a new Database of
    /// this name takes them over. Delete: they are deleted, but never the claim of the backups.
    #[serde(default)]
    pub deletion_policy: DatabaseDeletionPolicy,
}

/// The certificate of the instances.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TlsSpec {
    /// Name of a Secret with tls.crt, tls.key and ca.crt, as cert-manager writes it. If it changes, the instances load it again.
    #[schemars(regex(pattern = "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"), length(max = 253))]
    pub secret_name: String,
}

/// Regular dumps.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
pub struct BackupSpec {
    /// When, in the form of a CronJob and in the time zone of the cluster's controllers, usually UTC: 0 3 * * *
    #[schemars(length(min = 1, max = 100))]
    pub schedule: String,
    /// How many dumps to keep, 1 to 100. Default 7.
    #[serde(default = "BackupSpec::default_keep")]
    #[schemars(range(min = 1, max = 100))]
    pub keep: i32,
}

impl BackupSpec {
    fn default_keep() -> i32 {
        7
    }
}

/// A dump in the claim of a Database's backups.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
pub struct RestoreSpec {
    /// Name of the Database whose backups are used. It may be deleted already: its claim with the backups stays.
    #[schemars(regex(pattern = "^[a-z]([-a-z0-9]*[a-z0-9])?$"), length(max = 45))]
    pub database: String,
    /// Name of the file: 20261123T030000Z.dump. Default: the newest one.
    #[serde(default)]
    #[schemars(regex(pattern = r"^[-_A-Za-z0-9]+\.dump$"), length(max = 100))]
    pub dump: Option<String>,
}

/// What happens to claims and passwords if the Database is deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DatabaseDeletionPolicy {
    /// They stay.
    #[default]
    Retain,
    /// They are deleted.
    Delete,
}

impl DatabaseSpec {
    fn default_storage() -> String {
        "1Gi".to_owned()
    }

    fn default_max_lag_seconds() -> i32 {
        60
    }
}

/// The observed state of the database.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DatabaseStatus {
    /// The latest metadata.generation that the operator has observed. -1: none yet.
    pub observed_generation: i64,
    /// Name of the Pod of the primary.
    #[schemars(with = "String")]
    pub primary: SmolStr,
    /// The uid of the claim that has the data of the primary. Empty: there are no data yet.
    #[schemars(with = "String")]
    pub primary_claim: SmolStr,
    /// Number of instances that are ready.
    pub ready_instances: i32,
    /// The version that all instances run.
    #[schemars(with = "String", length(max = 5))]
    pub version: SmolStr,
    /// When the last successful backup ended.
    #[schemars(with = "String")]
    pub last_backup: SmolStr,
    /// Ready: all instances are ready and have the latest spec. Available: the primary accepts connections. Progressing: a
    /// rollout is in progress or complete. Stalled: the spec cannot be carried out until a user acts. BackupSucceeded: the
    /// last backup succeeded. Mutated: an admission webhook or policy changes fields that the operator writes.
    #[schemars(schema_with = "crd_schema::conditions")]
    pub conditions: Vec<Condition>,
}

impl Default for DatabaseStatus {
    fn default() -> DatabaseStatus {
        DatabaseStatus {
            observed_generation: -1,
            primary: SmolStr::default(),
            primary_claim: SmolStr::default(),
            ready_instances: 0,
            version: SmolStr::default(),
            last_backup: SmolStr::default(),
            conditions: Vec::new(),
        }
    }
}

crate::reported!(Database, DatabaseStatus);

/// `apps/v1` StatefulSet: Pods with stable names, each with a claim of its own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StatefulSet {
    /// Name, labels, owners, versions.
    #[serde(deserialize_with = "without_annotations")]
    pub metadata: ObjectMeta,
    /// The desired state.
    pub spec: StatefulSetSpec,
    /// The state that the StatefulSet controller reports.
    #[serde(default, skip_serializing)]
    pub status: StatefulSetStatus,
}

crate::kind!(StatefulSet, "apps", "v1", "statefulsets", {
    const MERGE: &'static [MergeRule] = &[
        ("/spec/template/metadata/labels", Merge::Shared),
        ("/spec/template/spec/containers", Merge::SharedBy(&["name"])),
        ("/spec/template/spec/containers/*/lifecycle/preStop", Merge::Whole),
        ("/spec/template/spec/volumes", Merge::SharedBy(&["name"])),
        ("/spec/template/spec/volumes/*", Merge::Whole),
        // The API server lets nobody change them. The claims grow one by one.
        ("/spec/volumeClaimTemplates", Merge::NotOurs),
    ];

    fn is_immutable(&self, path: &str) -> bool {
        path.starts_with("/spec/selector/")
            || path == "/spec/serviceName"
            || path == "/spec/podManagementPolicy"
    }
});

/// The desired state of a [`StatefulSet`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StatefulSetSpec {
    /// The number of Pods.
    pub replicas: i32,
    /// Selects its Pods. Immutable.
    pub selector: LabelSelector,
    /// The Service after which the Pods are named. Immutable.
    #[serde(default)]
    pub service_name: SmolStr,
    /// The number of the first Pod. Must be absent: the primary is number 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ordinals: Option<Present>,
    /// `Parallel`: Pods are created and deleted without a wait for each other. A new template still reaches one after the other.
    /// Immutable.
    pub pod_management_policy: SmolStr,
    /// Whether claims are deleted.
    pub persistent_volume_claim_retention_policy: ClaimRetention,
    /// The template of each Pod.
    pub template: InstanceTemplate,
    /// The claims of each Pod.
    #[serde(default)]
    pub volume_claim_templates: SmallVec<[ClaimTemplate; 1]>,
}

/// Whether the StatefulSet controller deletes claims.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClaimRetention {
    /// When the StatefulSet is deleted: `Retain`.
    pub when_deleted: SmolStr,
    /// When their Pod is scaled away: `Retain`.
    pub when_scaled: SmolStr,
}

/// A claim of each Pod.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClaimTemplate {
    /// Name and labels.
    pub metadata: ClaimMeta,
    /// The desired volume.
    pub spec: ClaimSpec,
}

/// Metadata of a [`ClaimTemplate`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClaimMeta {
    /// The claim of the Pod `db-0` is called `data-db-0`.
    pub name: SmolStr,
    /// The labels of the claims.
    #[serde(default)]
    pub labels: Labels,
    /// The annotations of the claims.
    #[serde(default, skip_deserializing)]
    pub annotations: Annotations,
}

/// The desired volume of a claim.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClaimSpec {
    /// `ReadWriteOnce`
    pub access_modes: SmallVec<[SmolStr; 1]>,
    /// Its size.
    pub resources: ClaimResources,
}

/// The template from which the Pods are created.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InstanceTemplate {
    /// The labels of the Pods.
    pub metadata: PodMeta,
    /// The `spec` of the Pods.
    pub spec: InstanceSpec,
}

/// The `spec` of an instance's Pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct InstanceSpec {
    /// The containers, each with a unique name.
    pub containers: SmallVec<[Instance; 1]>,
    /// The volumes, but for that of the claim.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<Volume>,
    /// Whether the Pod gets credentials for the API server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub automount_service_account_token: Option<bool>,
    /// Security settings for all containers.
    pub security_context: InstanceSecurity,
    /// How long a shutdown may take.
    pub termination_grace_period_seconds: i64,
    /// When the kubelet starts an ended container again: `Always`, or `Never` for a backup.
    pub restart_policy: SmolStr,
}

/// Security settings for all containers of a Pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct InstanceSecurity {
    /// Whether the kubelet refuses to run a container as root.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_as_non_root: Option<bool>,
    /// The user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_as_user: Option<i64>,
    /// The group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_as_group: Option<i64>,
    /// The group that can write the volumes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fs_group: Option<i64>,
    /// The system calls that are allowed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seccomp_profile: Option<SeccompProfile>,
}

/// The fields of the container that we own.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Instance {
    /// Unique in the Pod.
    pub name: SmolStr,
    /// The image to run.
    pub image: SmolStr,
    /// The program and its arguments.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub command: Box<[SmolStr]>,
    /// More arguments.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub args: Option<Present>,
    /// Environment variables.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<EnvVar>,
    /// The port on which PostgreSQL listens.
    #[serde(skip_serializing_if = "SmallVec::is_empty")]
    pub ports: SmallVec<[ContainerPort; 1]>,
    /// Decides when the instance gets connections.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub readiness_probe: Option<ExecProbe>,
    /// The command to run before the container is stopped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lifecycle: Option<Lifecycle>,
    /// The paths of the volumes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub volume_mounts: Vec<VolumeMount>,
    /// The privileges of the container.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub security_context: Option<ContainerSecurity>,
}

/// An environment variable, with its value or the field of the Pod that has its value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EnvVar {
    /// Its name.
    pub name: SmolStr,
    /// Its value. May contain `$(NAME)` of an earlier variable.
    #[serde(default, skip_serializing_if = "SmolStr::is_empty")]
    pub value: SmolStr,
    /// The source of its value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value_from: Option<EnvSource>,
}

/// The source of the value of an environment variable.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EnvSource {
    /// In a field of the Pod.
    pub field_ref: Option<FieldRef>,
    /// All other sources.
    #[serde(flatten)]
    pub others: BTreeMap<SmolStr, Present>,
}

/// A field of the Pod.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FieldRef {
    /// `v1`, the default.
    pub api_version: SmolStr,
    /// `metadata.name`
    pub field_path: SmolStr,
}

/// A probe that runs a command. Its thresholds belong to other writers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ExecProbe {
    /// The command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exec: Option<Exec>,
    /// Time between two probes.
    pub period_seconds: i32,
    /// Time limit of a probe.
    pub timeout_seconds: i32,
    /// Sends a gRPC health check. A probe has one of these four handlers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grpc: Option<Present>,
    /// Sends an HTTP request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http_get: Option<Present>,
    /// Opens a connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tcp_socket: Option<Present>,
}

/// A command that the kubelet runs in the container.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Exec {
    /// Program and arguments.
    pub command: Box<[SmolStr]>,
}

/// Commands of the kubelet at the start and the end of a container.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Lifecycle {
    /// Before it is stopped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pre_stop: Option<Hook>,
}

/// A command that the kubelet runs at one point in the life of a container.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Hook {
    /// The command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exec: Option<Exec>,
    /// All other actions.
    #[serde(flatten)]
    pub others: BTreeMap<SmolStr, Present>,
}

/// The path of a volume in the container.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeMount {
    /// The name of the volume.
    pub name: SmolStr,
    /// Its directory.
    pub mount_path: SmolStr,
    /// Whether the container cannot write it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub read_only: bool,
    /// All other fields.
    #[serde(flatten)]
    pub others: BTreeMap<SmolStr, Present>,
}

/// The privileges of the container: those that the Pod Security Standard "restricted" allows, and no write to its image.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerSecurity {
    /// Whether a process can gain more rights than its parent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_privilege_escalation: Option<bool>,
    /// The capabilities of root.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capabilities: Option<Capabilities>,
    /// Whether the files of the image are read-only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_only_root_filesystem: Option<bool>,
    /// All other fields.
    #[serde(flatten)]
    pub others: BTreeMap<SmolStr, Present>,
}

/// A volume of a Pod, from one of these sources.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Volume {
    /// Unique in the Pod.
    pub name: SmolStr,
    /// The keys of a ConfigMap.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config_map: Option<ConfigMapSource>,
    /// The keys of a Secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<SecretSource>,
    /// A claim.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub persistent_volume_claim: Option<ClaimSource>,
    /// A directory that is deleted with the Pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub empty_dir: Option<EmptyDir>,
    /// All other sources.
    #[serde(flatten)]
    pub others: BTreeMap<SmolStr, Present>,
}

/// The keys of a ConfigMap as files.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConfigMapSource {
    /// Its name.
    pub name: SmolStr,
    /// The mode of the files.
    pub default_mode: Option<i32>,
    /// All other fields.
    #[serde(flatten)]
    pub others: BTreeMap<SmolStr, Present>,
}

/// The keys of a Secret as files.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SecretSource {
    /// Its name.
    pub secret_name: SmolStr,
    /// The mode of the files. The kubelet lets the group of the Pod read them, too.
    pub default_mode: Option<i32>,
    /// All other fields.
    #[serde(flatten)]
    pub others: BTreeMap<SmolStr, Present>,
}

/// A volume that is claimed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClaimSource {
    /// The name of the claim.
    pub claim_name: SmolStr,
    /// All other fields.
    #[serde(flatten)]
    pub others: BTreeMap<SmolStr, Present>,
}

/// A directory that is deleted with the Pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EmptyDir {
    /// `Memory`, or empty for the disk of the node.
    #[serde(skip_serializing_if = "SmolStr::is_empty")]
    pub medium: SmolStr,
    /// Most data in it.
    #[serde(skip_serializing_if = "SmolStr::is_empty")]
    pub size_limit: SmolStr,
}

/// The state that the StatefulSet controller reports.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StatefulSetStatus {
    /// The `metadata.generation` that this status describes.
    pub observed_generation: i64,
    /// Pods that exist.
    pub replicas: i32,
    /// Pods that pass their readiness probe.
    pub ready_replicas: i32,
    /// Pods of the present template.
    pub updated_replicas: i32,
    /// The label `controller-revision-hash` of these Pods.
    pub update_revision: SmolStr,
}

/// `policy/v1` PodDisruptionBudget: how many Pods may be evicted at a time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PodDisruptionBudget {
    /// Name, labels, owners, versions.
    #[serde(deserialize_with = "without_annotations")]
    pub metadata: ObjectMeta,
    /// The desired state.
    pub spec: BudgetSpec,
}

crate::kind!(PodDisruptionBudget, "policy", "v1", "poddisruptionbudgets");

/// The desired state of a [`PodDisruptionBudget`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BudgetSpec {
    /// The number of Pods that may be away.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_unavailable: Option<Port>,
    /// Selects the Pods.
    #[serde(default, skip_serializing_if = "LabelSelector::is_empty")]
    pub selector: LabelSelector,
    /// Must be absent beside `maxUnavailable`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_available: Option<Present>,
}

/// `batch/v1` CronJob: runs a Pod at certain times.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CronJob {
    /// Name, labels, owners, versions.
    #[serde(deserialize_with = "without_annotations")]
    pub metadata: ObjectMeta,
    /// The desired state.
    pub spec: CronJobSpec,
    /// The state that the CronJob controller reports.
    #[serde(default, skip_serializing)]
    pub status: CronJobStatus,
}

crate::kind!(CronJob, "batch", "v1", "cronjobs", {
    const MERGE: &'static [MergeRule] = &[
        ("/spec/jobTemplate/spec/template/metadata/labels", Merge::Shared),
        ("/spec/jobTemplate/spec/template/spec/containers", Merge::SharedBy(&["name"])),
        // A backup has neither. Without its command, each would be invalid.
        ("/spec/jobTemplate/spec/template/spec/containers/*/readinessProbe", Merge::Whole),
        ("/spec/jobTemplate/spec/template/spec/containers/*/lifecycle", Merge::Whole),
        ("/spec/jobTemplate/spec/template/spec/volumes", Merge::SharedBy(&["name"])),
        ("/spec/jobTemplate/spec/template/spec/volumes/*", Merge::Whole),
    ];
});

/// The desired state of a [`CronJob`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CronJobSpec {
    /// When, as in a crontab.
    pub schedule: SmolStr,
    /// Whether no more Jobs begin. Belongs to other writers.
    #[serde(default, skip_serializing)]
    pub suspend: bool,
    /// `Forbid`: not while an earlier one still runs.
    #[serde(default)]
    pub concurrency_policy: SmolStr,
    /// The template of each Job.
    pub job_template: JobTemplate,
}

/// The template of each Job of a [`CronJob`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobTemplate {
    /// The desired state of the Job.
    pub spec: JobSpec,
}

/// The desired state of a [`Job`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobSpec {
    /// How often its Pod may fail.
    #[serde(default)]
    pub backoff_limit: i32,
    /// How long its Pods may run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub active_deadline_seconds: Option<i64>,
    /// The template of its Pods.
    pub template: InstanceTemplate,
}

/// The state that the CronJob controller reports. The times are texts in UTC, which can be compared.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CronJobStatus {
    /// The running Jobs.
    pub active: Vec<Present>,
    /// When the last Job was created.
    pub last_schedule_time: SmolStr,
    /// When the last successful Job ended.
    pub last_successful_time: SmolStr,
}

/// `batch/v1` Job: runs a Pod until it succeeds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// Name, labels, owners, versions.
    #[serde(deserialize_with = "without_annotations")]
    pub metadata: ObjectMeta,
    /// The desired state.
    pub spec: JobSpec,
    /// The state that the Job controller reports.
    #[serde(default, skip_serializing)]
    pub status: JobStatus,
}

crate::kind!(Job, "batch", "v1", "jobs", {
    const MERGE: &'static [MergeRule] = &[
        ("/spec/template/metadata/labels", Merge::Shared),
        ("/spec/template/spec/containers", Merge::SharedBy(&["name"])),
        ("/spec/template/spec/volumes", Merge::SharedBy(&["name"])),
        ("/spec/template/spec/volumes/*", Merge::Whole),
    ];

    fn is_immutable(&self, path: &str) -> bool {
        path.starts_with("/spec/template/")
    }
});

/// The state that the Job controller reports.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct JobStatus {
    /// `Complete` or `Failed`, at the end.
    pub conditions: SmallVec<[JobCondition; 2]>,
}

/// A condition of a [`Job`].
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct JobCondition {
    /// Its name.
    pub r#type: SmolStr,
    /// `True`, `False` or `Unknown`.
    pub status: SmolStr,
}

impl Job {
    /// Whether its Pod has succeeded.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.has("Complete")
    }

    /// Whether its Pod has failed too often.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.has("Failed")
    }

    fn has(&self, name: &str) -> bool {
        self.status.conditions.iter().any(|one| one.r#type == name && one.status == "True")
    }
}

/// `v1` PersistentVolumeClaim: the volume of one instance, which the StatefulSet controller creates, or that of the backups.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PersistentVolumeClaim {
    /// Name, labels, owners, versions.
    #[serde(deserialize_with = "without_annotations")]
    pub metadata: ObjectMeta,
    /// The desired volume.
    pub spec: ClaimSpec,
    /// The state that the volume controller reports.
    #[serde(default, skip_serializing)]
    pub status: ClaimStatus,
}

crate::kind!(PersistentVolumeClaim, "", "v1", "persistentvolumeclaims");

/// The state of a claim.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ClaimStatus {
    /// `Pending`, `Bound` or `Lost`.
    pub phase: SmolStr,
}

/// The size of a volume.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClaimResources {
    /// At least.
    pub requests: StorageRequest,
}

/// An amount of storage.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StorageRequest {
    /// `1Gi`
    pub storage: SmolStr,
}

/// The whole definition.
#[must_use]
pub fn definition() -> Value {
    // The name of a Service, which begins with a letter. A CronJob has a name of at most 52 characters, which ends in -backup.
    let metadata = json!({
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 45, "pattern": "^[a-z]([-a-z0-9]*[a-z0-9])?$"}},
    });
    let mut spec = crd_schema::schema_of::<DatabaseSpec>();
    // All are whole numbers of Gi: of two texts, the longer is the larger number.
    spec["properties"]["storage"]["x-kubernetes-validations"] = json!([{
        "rule": "size(self) > size(oldSelf) || size(self) == size(oldSelf) && self >= oldSelf",
        "message": "storage can only grow: a volume cannot be made smaller",
    }]);
    // The API server would advise to set `timeZone`, which a CronJob has, and a Database has not.
    spec["properties"]["backup"]["properties"]["schedule"]["x-kubernetes-validations"] = json!([{
        "rule": "!self.contains('TZ')",
        "message": "schedule cannot have a time zone: set spec.timeZone of the CronJob of the backups, which the operator leaves as it is",
    }]);
    spec["x-kubernetes-validations"] = json!([{
        "rule": "has(self.tls) == has(oldSelf.tls) && (!has(self.tls) || self.tls.secretName == oldSelf.tls.secretName)",
        "message": "tls cannot be changed: with deletionPolicy Retain, delete the Database and create it again; its data stays",
    }, {
        "rule": "has(self.restoreFrom) == has(oldSelf.restoreFrom) \
            && (!has(self.restoreFrom) || self.restoreFrom == oldSelf.restoreFrom)",
        "message": "restoreFrom is for a new Database, and cannot be set, changed or removed later",
    }]);
    let mut schema = crd_schema::object(
        "A PostgreSQL database: a StatefulSet with a primary and its replicas, two Services and a Secret.",
        &metadata,
        &spec,
        &crd_schema::status_of::<DatabaseStatus>(),
    );
    schema["x-kubernetes-validations"] = json!([
        {
            "rule": NO_DOWNGRADE,
            "message": "spec.version is older than status.version, and PostgreSQL cannot go back",
        },
        {
            "rule": "!self.metadata.name.endsWith('-replication')",
            "message": "a Secret with this name would be that of the replicas of another Database: choose another name",
        },
    ]);
    let columns = [
        column("Size", "integer", ".spec.size"),
        column("Instances", "integer", ".status.readyInstances"),
        column("Version", "string", ".status.version"),
        wide("Primary", "string", ".status.primary"),
    ];
    let version = crd_schema::version::<Database>(Database::VERSION, &schema, &columns);
    crd_schema::definition::<Database>("database", &["db"], &[version])
}

/// A new version is not older than the running one. A tag without a minor version may be any of them. With one more digit, a minor
/// version is newer. A version that was written before the first status may be older: then each status can still be written.
const NO_DOWNGRADE: &str = "self.spec.version == oldSelf.spec.version || !has(self.status) || !has(self.status.version) || \
    (['15', '16', '17', '18'].exists(major, self.spec.version.startsWith(major) && self.status.version.startsWith(major)) \
    ? size(self.spec.version) == 2 || size(self.spec.version) > size(self.status.version) \
    || size(self.spec.version) == size(self.status.version) && self.spec.version >= self.status.version \
    : self.spec.version > self.status.version)";
