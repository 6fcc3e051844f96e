//! The types of Database: its spec and status, and its CustomResourceDefinition.

use listwatch::{
    crd::{self, column, wide},
    resource::{Annotations, Condition, Labels, ObjectMeta, only_paused},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use smol_str::SmolStr;

use crate::pod_settings::{self, PodSettings};

/// Most instances of one Database: the settings allow as many replicas to clone the primary at the same time.
pub(super) const SIZE_MAX: i32 = 10;

/// The custom resource.
#[derive(Clone, Debug, Deserialize)]
pub struct Database {
    /// Name, labels, owners, versions.
    #[serde(deserialize_with = "only_paused::<_, Database>")]
    pub metadata: ObjectMeta,
    /// The desired database.
    pub spec: DatabaseSpec,
    /// The status that this operator has written.
    #[serde(default)]
    pub status: DatabaseStatus,
}

listwatch::kind!(Database, "app.example.com", "v1", "databases", {
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
    /// StorageClass of the claims. Default: the default one of the cluster. Immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", regex(pattern = "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"), length(max = 253))]
    pub storage_class_name: Option<SmolStr>,
    /// Labels of the Pods, also of those of the Jobs, beside the labels of the operator.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    #[schemars(schema_with = "pod_settings::labels")]
    pub pod_labels: Labels,
    /// Annotations of the Pods, also of those of the Jobs.
    #[serde(default, skip_serializing_if = "Annotations::is_empty")]
    #[schemars(schema_with = "pod_settings::annotations")]
    pub pod_annotations: Annotations,
    /// Where the Pods run, also the Jobs' Pods, and what they may use.
    #[serde(flatten)]
    pub pods: PodSettings,
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
#[serde(rename_all = "camelCase")]
pub struct BackupSpec {
    /// When, in the form of a CronJob: 0 3 * * *
    #[schemars(length(min = 1, max = 100))]
    pub schedule: String,
    /// The time zone of the schedule: Europe/Berlin. Default: that of the cluster's controllers, usually UTC.
    #[serde(default, skip_serializing_if = "SmolStr::is_empty")]
    #[schemars(with = "String", length(min = 1, max = 100))]
    pub time_zone: SmolStr,
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

/// A whole number of Gi. The API server writes `2048Gi` as `2Ti`.
pub(super) fn gib(quantity: &str) -> Option<u64> {
    let gib = listwatch_formats::quantity::quantity(&quantity.into())? / f64::from(1 << 30);
    (gib >= 0.0 && gib.fract() == 0.0).then_some(gib as u64)
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
    /// The size of its dump in bytes. 0: not known.
    pub last_backup_bytes: i64,
    /// Ready: all instances are ready and have the latest spec. Available: the primary accepts connections. Progressing: a
    /// rollout is in progress or complete. Stalled: the spec cannot be carried out until a user acts. BackupSucceeded: the
    /// last backup succeeded. Mutated: an admission webhook or policy changes fields that the operator writes.
    #[schemars(schema_with = "crd::conditions")]
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
            last_backup_bytes: 0,
            conditions: Vec::new(),
        }
    }
}

listwatch::reported!(Database, DatabaseStatus);

/// The whole definition.
#[must_use]
pub fn definition() -> Value {
    // The name of a Service, which begins with a letter. A CronJob has a name of at most 52 characters, which ends in -backup.
    let metadata = json!({
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 45, "pattern": "^[a-z]([-a-z0-9]*[a-z0-9])?$"}},
    });
    let rules = |schema: &mut Value| {
        schema["properties"]["metadata"] = metadata;
        let spec = &mut schema["properties"]["spec"];
        // All are whole numbers of Gi: of two texts, the longer is the larger number.
        spec["properties"]["storage"]["x-kubernetes-validations"] = json!([{
            "rule": "size(self) > size(oldSelf) || size(self) == size(oldSelf) && self >= oldSelf",
            "message": "storage can only grow: a volume cannot be made smaller",
        }]);
        // The API server would advise to set `timeZone`, and not say where.
        spec["properties"]["backup"]["properties"]["schedule"]["x-kubernetes-validations"] = json!([{
            "rule": "!self.contains('TZ')",
            "message": "schedule cannot have a time zone: set spec.backup.timeZone",
        }]);
        spec["x-kubernetes-validations"] = json!([{
            "rule": "has(self.tls) == has(oldSelf.tls) && (!has(self.tls) || self.tls.secretName == oldSelf.tls.secretName)",
            "message": "tls cannot be changed: with deletionPolicy Retain, delete the Database and create it again; its data stays",
        }, {
            "rule": "has(self.storageClassName) == has(oldSelf.storageClassName) \
                && (!has(self.storageClassName) || self.storageClassName == oldSelf.storageClassName)",
            "message": "storageClassName is for a new Database, and cannot be set, changed or removed later: a claim keeps its StorageClass",
        }, {
            "rule": "has(self.restoreFrom) == has(oldSelf.restoreFrom) \
                && (!has(self.restoreFrom) || self.restoreFrom == oldSelf.restoreFrom)",
            "message": "restoreFrom is for a new Database, and cannot be set, changed or removed later",
        }]);
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
    };
    let description =
        "A PostgreSQL database: a StatefulSet with a primary and its replicas, two Services and a Secret.";
    let mut definition = crd::of::<Database, DatabaseSpec>("database", description)
        .schema(rules)
        .status::<DatabaseStatus>()
        .short_names(&["db"])
        .columns([
            column("Size", "integer", ".spec.size"),
            column("Instances", "integer", ".status.readyInstances"),
            column("Version", "string", ".status.version"),
            wide("Primary", "string", ".status.primary"),
        ])
        .value();
    // Without a labelSelectorPath, no autoscaler accepts it: each new instance clones the primary, which does not relieve a busy one.
    definition["spec"]["versions"][0]["subresources"]["scale"] =
        json!({"specReplicasPath": ".spec.size", "statusReplicasPath": ".status.readyInstances"});
    definition
}

/// A new version is not older than the running one. A tag without a minor version may be any of them. With one more digit, a minor
/// version is newer. A version that was written before the first status may be older: then each status can still be written.
const NO_DOWNGRADE: &str = "self.spec.version == oldSelf.spec.version || !has(self.status) || !has(self.status.version) || \
    (['15', '16', '17', '18'].exists(major, self.spec.version.startsWith(major) && self.status.version.startsWith(major)) \
    ? size(self.spec.version) == 2 || size(self.spec.version) > size(self.status.version) \
    || size(self.spec.version) == size(self.status.version) && self.spec.version >= self.status.version \
    : self.spec.version > self.status.version)";
