//! The operator of `Database`: each one gets PostgreSQL, with a primary and its replicas.
//!
//! ```yaml
//! apiVersion: app.example.com/v1     # becomes   StatefulSet db: Pod db-0 is the primary, db-1 streams from it; claims data-db-0 and data-db-1
//! kind: Database                     #           Services    db (the primary) and db-ro (every instance that is ready)
//! metadata: {name: db}               #           Secrets     db (username, password, uri) and db-replication
//! spec: {size: 2, version: "15.4"}   #           ConfigMap   db-scripts: what runs in the Pods
//! ```
//!
//! The operator never connects to PostgreSQL: what an instance has to do, its [`scripts`] do. It cannot delete data, either: it has no
//! permission to delete a claim or a Secret. These have no owner, so they stay when the Database is deleted, and a new
//! Database of that name finds them. With `deletionPolicy: Delete`, they have an ownerReference, and the garbage collector
//! deletes them. `docs/database.md` describes the operation, and the limits.

mod scripts;
pub mod types;

use std::{collections::BTreeMap, sync::Arc};

use base64::{
    Engine,
    prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD},
};
use ring::rand::{SecureRandom, SystemRandom};
use serde_json::{Value, json};
use smallvec::smallvec;
use smol_str::{SmolStr, ToSmolStr, format_smolstr};
use tracing::info;

use crate::{
    children::{Child, Outcome, Owned, PodsOf, Reporter, Stage, State, Trouble, once},
    cluster::{Cluster, Index, Watch},
    controller::{Controller, Next, Operator, ReconcileError},
    operators::memcached::types::Pod,
    resource::{
        Key, LabelSelector, Labels, Meta, ObjectMeta, OwnerReference, Resource, conditions::Verdict,
        kinds::*, list::Broken,
    },
    runtime::Setup,
};
use types::{
    BudgetSpec, Capabilities, ClaimMeta, ClaimResources, ClaimRetention, ClaimSource, ClaimSpec, ClaimStatus,
    ClaimTemplate, ConfigMapSource, ContainerSecurity, CronJob, CronJobSpec, CronJobStatus, DeletionPolicy,
    EmptyDir, EnvSource, EnvVar, Exec, ExecProbe, FieldRef, Hook, Instance, InstanceSecurity, InstanceSpec,
    JobSpec, JobTemplate, Lifecycle, PersistentVolumeClaim, PodDisruptionBudget, PodTemplate, SecretSource,
    StatefulSet, StatefulSetSpec, StatefulSetStatus, StorageRequest, Volume, VolumeMount,
};
pub use types::{Database, DatabaseSpec, DatabaseStatus};

/// The name of the operator in labels and Events.
const OPERATOR: &str = "database-operator";
/// The `reportingController` of its Events.
pub const CONTROLLER: &str = "app.example.com/database-operator";
/// Selects what this operator created, and the Pods and claims of its StatefulSets.
const MADE_BY_US: &str = "app.kubernetes.io/managed-by=database-operator";
/// The label with the name of the operator.
const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// The label with the name of the Database.
const INSTANCE: &str = "app.kubernetes.io/instance";
/// The container in which PostgreSQL runs, its port, and the port of the Services.
const CONTAINER: &str = "postgres";
/// The port of PostgreSQL.
const PORT: i32 = 5432;
/// The user `postgres` of the official image.
const USER: i64 = 999;
/// How long PostgreSQL may take to shut down: as long as its checkpoint, and as the replicas take to receive the last WAL.
const SHUTDOWN_SECS: i64 = 120;

/// The flags of the Database operator.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "cli", derive(clap::Args))]
pub struct DatabaseFlags {
    /// Database: the image of the Pods, without its tag, which is the version of PostgreSQL
    #[cfg_attr(
        feature = "cli",
        arg(long, value_name = "REPOSITORY", env = "DATABASE_IMAGE", default_value = "postgres")
    )]
    pub database_image: String,
}

impl Default for DatabaseFlags {
    fn default() -> DatabaseFlags {
        DatabaseFlags { database_image: "postgres".to_owned() }
    }
}

/// Creates and corrects the children of each Database.
pub struct Databases {
    cluster: Cluster,
    sets: Owned<StatefulSet>,
    live_sets: Watch<StatefulSet>,
    services: Owned<Service>,
    config_maps: Owned<ConfigMap>,
    budgets: Owned<PodDisruptionBudget>,
    cron_jobs: Owned<CronJob>,
    /// Of the Secrets, only the metadata: the operator reads no password.
    secrets: Watch<Meta<Secret>>,
    /// The claims, by their Database.
    claims: Index<PersistentVolumeClaim, Key>,
    pods: Watch<Pod>,
    reporter: Reporter,
    image: SmolStr,
}

/// The controller of the Database operator.
#[must_use]
pub fn controller(setup: &Setup, flags: &DatabaseFlags) -> Controller<Databases> {
    let cluster = &setup.cluster;
    let databases = cluster.watch::<Database>(setup.scopes(""));
    let sets = cluster.watch::<StatefulSet>(setup.scopes(MADE_BY_US));
    let services = cluster.watch::<Service>(setup.scopes(MADE_BY_US));
    let config_maps = cluster.watch::<ConfigMap>(setup.scopes(MADE_BY_US));
    let budgets = cluster.watch::<PodDisruptionBudget>(setup.scopes(MADE_BY_US));
    let cron_jobs = cluster.watch::<CronJob>(setup.scopes(MADE_BY_US));
    let secrets = cluster.watch::<Meta<Secret>>(setup.scopes(MADE_BY_US));
    let claims = cluster.watch::<PersistentVolumeClaim>(setup.scopes(MADE_BY_US));
    let pods = cluster.watch::<Pod>(setup.scopes(MADE_BY_US));
    let operator = Databases {
        cluster: cluster.clone(),
        sets: Owned::new(cluster, &sets),
        live_sets: sets.clone(),
        services: Owned::new(cluster, &services),
        config_maps: Owned::new(cluster, &config_maps),
        budgets: Owned::new(cluster, &budgets),
        cron_jobs: Owned::new(cluster, &cron_jobs),
        secrets: secrets.clone(),
        claims: claims.index(database_of),
        pods: pods.clone(),
        reporter: Reporter::new(cluster, setup.events.clone()),
        image: flags.database_image.as_str().into(),
    };
    Controller::new(cluster, &databases, operator)
        .owns(&sets)
        .owns(&services)
        .owns(&config_maps)
        .owns(&budgets)
        .owns(&cron_jobs)
        .also(&secrets, database_of)
        .also(&claims, database_of)
        .also(&pods, database_of)
}

/// The Database of an object that has no owner, or another one, by its labels.
fn database_of<K: Resource>(object: &K) -> Option<Key> {
    let name = object.metadata().labels.get(INSTANCE)?;
    Some(Key { namespace: object.metadata().namespace.clone(), name: name.into() })
}

/// The desired children of a Database, but for its Secrets.
#[derive(Clone, Debug, PartialEq)]
pub struct Children {
    /// Runs the Pods.
    pub set: StatefulSet,
    /// The address of the primary.
    pub primary: Service,
    /// The address of all instances.
    pub instances: Service,
    /// The files of the Pods.
    pub scripts: ConfigMap,
    /// Lets a node be drained, one instance at a time.
    pub budget: PodDisruptionBudget,
    /// Writes the backups.
    pub backup: Option<CronJob>,
}

/// The labels by which the Pods of a Database are selected.
fn selector(database: &Database) -> Labels {
    [("app.kubernetes.io/name", "postgresql"), (INSTANCE, &*database.metadata.name)].into_iter().collect()
}

fn labels(database: &Database) -> Labels {
    selector(database).iter().chain([(MANAGED_BY, OPERATOR)]).collect()
}

/// The labels of the backups' Pods, which no Service selects.
fn backup_labels(database: &Database) -> Labels {
    let name = &*database.metadata.name;
    [("app.kubernetes.io/name", "postgresql-backup"), (INSTANCE, name), (MANAGED_BY, OPERATOR)]
        .into_iter()
        .collect()
}

/// The volume of a claim.
fn volume(storage: &str) -> ClaimSpec {
    ClaimSpec {
        access_modes: smallvec!["ReadWriteOnce".into()],
        resources: ClaimResources { requests: StorageRequest { storage: storage.into() } },
    }
}

/// Computes the desired children of a Database, from the object and the image alone.
#[must_use]
pub fn desired(database: &Database, image: &str) -> Children {
    let DatabaseSpec { size, storage, .. } = &database.spec;
    let (name, labels) = (&database.metadata.name, labels(database));
    let child = |name: &str| ObjectMeta::of_child(database, name, labels.clone());
    let first = format_smolstr!("{name}-0");
    let of_primary = [("statefulset.kubernetes.io/pod-name", &*first)];
    let set = StatefulSetSpec {
        replicas: *size,
        selector: LabelSelector { match_labels: selector(database), ..LabelSelector::default() },
        service_name: name.clone(),
        pod_management_policy: "Parallel".into(),
        persistent_volume_claim_retention_policy: ClaimRetention {
            when_deleted: "Retain".into(),
            when_scaled: "Retain".into(),
        },
        template: PodTemplate { metadata: PodMeta { labels: labels.clone() }, spec: pod(name, image) },
        volume_claim_templates: smallvec![ClaimTemplate {
            metadata: ClaimMeta { name: "data".into(), labels: labels.clone() },
            spec: volume(storage),
        }],
    };
    Children {
        set: StatefulSet { metadata: child(name), spec: set, status: StatefulSetStatus::default() },
        primary: Service {
            metadata: child(name),
            spec: service(selector(database).iter().chain(of_primary).collect()),
        },
        instances: Service { metadata: child(&format!("{name}-ro")), spec: service(selector(database)) },
        scripts: ConfigMap {
            metadata: child(&format!("{name}-scripts")),
            data: scripts::files(&database.spec),
            ..ConfigMap::default()
        },
        budget: PodDisruptionBudget {
            metadata: child(name),
            spec: BudgetSpec {
                max_unavailable: Some(Port::Number(1)),
                selector: LabelSelector { match_labels: selector(database), ..LabelSelector::default() },
                min_available: None,
            },
        },
        backup: database.spec.backup.as_ref().map(|backup| CronJob {
            metadata: child(&format!("{name}-backup")),
            spec: CronJobSpec {
                schedule: backup.schedule.as_str().into(),
                concurrency_policy: "Forbid".into(),
                job_template: JobTemplate {
                    spec: JobSpec {
                        template: PodTemplate {
                            metadata: PodMeta { labels: backup_labels(database) },
                            spec: backup_pod(name, image),
                        },
                    },
                },
            },
            status: CronJobStatus::default(),
        }),
    }
}

fn service(selector: Labels) -> ServiceSpec {
    let port = ServicePort {
        name: CONTAINER.into(),
        port: PORT,
        target_port: Port::Name(CONTAINER.into()),
        protocol: "TCP".into(),
        node_port: 0,
        app_protocol: SmolStr::default(),
    };
    ServiceSpec {
        r#type: "ClusterIP".into(),
        selector,
        ports: smallvec![port],
        load_balancer_source_ranges: None,
    }
}

fn script(file: &str) -> Box<[SmolStr]> {
    ["sh".into(), format_smolstr!("/scripts/{file}")].into()
}

fn variable(name: &str, value: &str) -> EnvVar {
    EnvVar { name: name.into(), value: value.into(), value_from: None }
}

fn mounted(name: &str, path: &str) -> VolumeMount {
    VolumeMount { name: name.into(), mount_path: path.into(), read_only: false }
}

fn read_only(name: &str, path: &str) -> VolumeMount {
    VolumeMount { read_only: true, ..mounted(name, path) }
}

/// A volume without its source.
fn unsourced(name: &str) -> Volume {
    Volume {
        name: name.into(),
        config_map: None,
        secret: None,
        persistent_volume_claim: None,
        empty_dir: None,
    }
}

fn of_secret(volume: &str, secret: SmolStr) -> Volume {
    Volume { secret: Some(SecretSource { secret_name: secret }), ..unsourced(volume) }
}

fn of_scripts(name: &str) -> Volume {
    let config_map = Some(ConfigMapSource { name: format_smolstr!("{name}-scripts") });
    Volume { config_map, ..unsourced("scripts") }
}

/// The Pod of each instance of the Database `name`.
fn pod(name: &str, image: &str) -> InstanceSpec {
    // The number at the end of the Pod's name.
    let field_ref = Some(FieldRef { field_path: "metadata.labels['apps.kubernetes.io/pod-index']".into() });
    let index = EnvVar { value_from: Some(EnvSource { field_ref }), ..variable("INSTANCE", "") };
    let primary = format!("host={name} user=replication passfile=/run/postgresql/passfile");
    let container = Instance {
        env: vec![
            index,
            variable("SLOT", "replica_$(INSTANCE)"),
            variable("PRIMARY", &primary),
            variable("PGDATA", "/data/pgdata"),
            variable("PGHOST", "/run/postgresql"),
            variable("PGUSER", "postgres"),
        ],
        ports: smallvec![ContainerPort {
            name: CONTAINER.into(),
            container_port: PORT,
            protocol: "TCP".into(),
            ..ContainerPort::default()
        }],
        readiness_probe: Some(ExecProbe {
            exec: Some(Exec { command: script("ready") }),
            period_seconds: 5,
            timeout_seconds: 5,
        }),
        lifecycle: Some(Lifecycle { pre_stop: Hook { exec: Exec { command: script("stop") } } }),
        volume_mounts: vec![
            mounted("data", "/data"),
            mounted("run", "/run/postgresql"),
            read_only("scripts", "/scripts"),
            read_only("app", "/secrets/app"),
            read_only("replication", "/secrets/replication"),
        ],
        ..container(image, "start")
    };
    let volumes = vec![
        Volume { empty_dir: Some(EmptyDir {}), ..unsourced("run") },
        of_scripts(name),
        of_secret("app", name.into()),
        of_secret("replication", format_smolstr!("{name}-replication")),
    ];
    InstanceSpec {
        termination_grace_period_seconds: SHUTDOWN_SECS,
        ..restricted(container, volumes, "Always")
    }
}

/// The Pod of a backup of the Database `name`.
fn backup_pod(name: &str, image: &str) -> InstanceSpec {
    let container = Instance {
        env: vec![variable("DATABASE", name)],
        volume_mounts: vec![
            mounted("backups", "/backups"),
            read_only("scripts", "/scripts"),
            read_only("app", "/secrets/app"),
        ],
        ..container(image, "backup")
    };
    let claim = Some(ClaimSource { claim_name: format_smolstr!("{name}-backups") });
    let backups = Volume { persistent_volume_claim: claim, ..unsourced("backups") };
    restricted(container, vec![backups, of_scripts(name), of_secret("app", name.into())], "Never")
}

/// A container that runs a script, with the privileges that the Pod Security Standard "restricted" allows.
fn container(image: &str, file: &str) -> Instance {
    Instance {
        name: CONTAINER.into(),
        image: image.into(),
        command: script(file),
        security_context: ContainerSecurity {
            allow_privilege_escalation: Some(false),
            capabilities: Capabilities { drop: ["ALL".into()].into(), add: None },
            read_only_root_filesystem: Some(true),
            others: BTreeMap::new(),
        },
        ..Instance::default()
    }
}

/// A Pod with the privileges that the Pod Security Standard "restricted" allows.
fn restricted(container: Instance, volumes: Vec<Volume>, restart_policy: &str) -> InstanceSpec {
    InstanceSpec {
        containers: smallvec![container],
        volumes,
        automount_service_account_token: Some(false),
        security_context: InstanceSecurity {
            run_as_non_root: Some(true),
            run_as_user: Some(USER),
            run_as_group: Some(USER),
            fs_group: Some(USER),
            seccomp_profile: Some(SeccompProfile {
                r#type: "RuntimeDefault".into(),
                localhost_profile: None,
            }),
        },
        // The default.
        termination_grace_period_seconds: 30,
        restart_policy: restart_policy.into(),
    }
}

/// The Secret of a role, with a new random password. That of applications has an address, too.
fn secret(database: &Database, name: &str, role: &str) -> Secret {
    let mut random = [0; 24];
    SystemRandom::new().fill(&mut random).expect("the system has random numbers");
    let password = BASE64_URL_SAFE_NO_PAD.encode(random);
    let mut data = vec![("username", role.to_owned()), ("password", password.clone())];
    if role == "app" {
        let host = &database.metadata.name;
        let namespace = database.metadata.namespace.as_deref().unwrap_or_default();
        data.push(("uri", format!("postgresql://app:{password}@{host}.{namespace}.svc:{PORT}/app")));
    }
    let base64 = |(key, value): (&str, String)| (key.to_owned(), BASE64_STANDARD.encode(value));
    let metadata = ObjectMeta {
        owner_references: deletion_owner(database).into_iter().collect(),
        ..ObjectMeta::of_child(database, name, labels(database))
    };
    Secret {
        metadata,
        r#type: "kubernetes.io/basic-auth".into(),
        data: data.into_iter().map(base64).collect(),
        immutable: false,
    }
}

/// The owner of claims and Secrets. The garbage collector deletes them after it.
fn deletion_owner(database: &Database) -> Option<OwnerReference> {
    let owner = || OwnerReference {
        controller: false,
        block_owner_deletion: false,
        ..OwnerReference::controlled_by(database)
    };
    match database.spec.deletion_policy {
        DeletionPolicy::Retain => None,
        DeletionPolicy::Delete => Some(owner()),
    }
}

/// The operation that makes a claim or a Secret owned, or not owned, as the deletion policy wants.
fn change_of_owner(database: &Database, metadata: &ObjectMeta) -> Option<Value> {
    let mut owners: Vec<OwnerReference> = metadata.owner_references.to_vec();
    owners.retain(|owner| owner.uid != database.metadata.uid);
    owners.extend(deletion_owner(database));
    let is_changed = owners != *metadata.owner_references;
    is_changed.then(|| json!({"op": "add", "path": "/metadata/ownerReferences", "value": owners}))
}

/// The operation that lets a claim grow.
fn growth(database: &Database, claim: &PersistentVolumeClaim) -> Option<Value> {
    let storage = &database.spec.storage;
    let grows = gib(storage)? > gib(&claim.spec.resources.requests.storage)?;
    // The API server refuses it before that.
    let is_bound = claim.status.phase == "Bound";
    (grows && is_bound)
        .then(|| json!({"op": "replace", "path": "/spec/resources/requests/storage", "value": storage}))
}

/// A whole number of Gi. The API server writes `2048Gi` as `2Ti`.
fn gib(quantity: &str) -> Option<u64> {
    let (number, factor) = match quantity.strip_suffix("Ti") {
        Some(number) => (number, 1024),
        None => (quantity.strip_suffix("Gi")?, 1),
    };
    number.parse::<u64>().ok()?.checked_mul(factor)
}

/// `15` in `15.4`.
fn major(version: &str) -> &str {
    version.split('.').next().unwrap_or_default()
}

/// The version in the image of the Pods: `15.4` in `postgres:15.4`.
fn version_of(set: &StatefulSet) -> Option<&str> {
    let container = set.spec.template.spec.containers.iter().find(|container| container.name == CONTAINER)?;
    container.image.rsplit_once(':').map(|(_, version)| version)
}

/// The children that write backups.
struct Backup {
    claim: Outcome<Meta<PersistentVolumeClaim>>,
    cron_job: Outcome<CronJob>,
}

/// The condition `BackupSucceeded`.
fn backup_succeeded(status: &CronJobStatus) -> Verdict {
    let CronJobStatus { active, last_schedule_time: begun, last_successful_time: done } = status;
    if !done.is_empty() && done >= begun {
        return Verdict::yes("BackupSucceeded", format_smolstr!("the last backup succeeded at {done}"));
    }
    if begun.is_empty() {
        return Verdict::unknown("NoBackupYet", "the schedule has not begun yet");
    }
    if !active.is_empty() {
        return Verdict::unknown("BackupRunning", format_smolstr!("a backup runs since {begun}"));
    }
    let last = if done.is_empty() { "none has succeeded" } else { "an earlier one succeeded" };
    Verdict::no(
        "BackupFailed",
        format_smolstr!("the backup of {begun} failed; {last}: see the log of its Job"),
    )
}

impl Databases {
    /// The version to run, and why it is not that of the spec, if so: the data of one major version cannot be read by another.
    fn version(&self, database: &Database) -> (SmolStr, Option<Verdict>) {
        let wanted = &database.spec.version;
        let live = self.live_sets.get(&database.key());
        let running = live.as_deref().and_then(version_of).unwrap_or(&database.status.version);
        if running.is_empty() || major(running) == major(wanted) {
            return (wanted.into(), None);
        }
        let message = format_smolstr!(
            "version {running} runs, and its data cannot be read by {wanted}: set spec.version back to {running}; \
             for {wanted}, create another Database, and copy the data with pg_dump and psql"
        );
        (running.into(), Some(Verdict::yes("UnsupportedVersion", message)))
    }

    /// Makes the claims as large as the Database wants them, and owned as its deletion policy says.
    async fn keep_claims(&self, database: &Database) -> Vec<Outcome<PersistentVolumeClaim>> {
        let mut outcomes = Vec::new();
        for claim in self.claims.get(&database.key()) {
            let changes = [growth(database, &claim), change_of_owner(database, &claim.metadata)];
            outcomes.push(once::patched(&self.cluster, claim, changes.into_iter().flatten().collect()).await);
        }
        outcomes
    }

    /// Creates the claim of the backups, if there is none.
    async fn keep_backups(
        &self,
        database: &Database,
        stage: Stage,
    ) -> Option<Outcome<Meta<PersistentVolumeClaim>>> {
        let key = Key { name: format_smolstr!("{}-backups", database.metadata.name), ..database.key() };
        let claims = self.claims.get(&database.key());
        let seen = claims.iter().find(|claim| claim.metadata.name == key.name);
        let seen = seen.map(|claim| Arc::new(Meta::of(&**claim)));
        let create = || PersistentVolumeClaim {
            metadata: ObjectMeta {
                owner_references: deletion_owner(database).into_iter().collect(),
                ..ObjectMeta::of_child(database, &key.name, backup_labels(database))
            },
            spec: volume(&database.spec.storage),
            status: ClaimStatus::default(),
        };
        once::created(&self.cluster, seen, database, &key, stage, create).await
    }

    /// Keeps the CronJob of the backups, and their claim, if there are to be backups; otherwise deletes the CronJob.
    async fn keep_backup(
        &self,
        database: &Database,
        desired: Option<&CronJob>,
        stage: Stage,
    ) -> Result<Option<Backup>, ReconcileError> {
        let Some(desired) = desired else {
            let key = Key { name: format_smolstr!("{}-backup", database.metadata.name), ..database.key() };
            return Ok(self.cron_jobs.delete(database, &key).await.map(|()| None)?);
        };
        let kept =
            tokio::join!(self.keep_backups(database, stage), self.cron_jobs.keep(database, desired, stage));
        let (Some(claim), Some(cron_job)) = kept else { return Ok(None) };
        Ok(Some(Backup { claim, cron_job }))
    }

    /// Creates a Secret, if there is none, and makes it owned as the deletion policy says. `None`: the Database is deleted.
    async fn keep_secret(
        &self,
        database: &Database,
        name: &str,
        role: &str,
        stage: Stage,
    ) -> Option<Outcome<Meta<Secret>>> {
        let key = Key { name: name.into(), ..database.key() };
        let create = || secret(database, name, role);
        let outcome =
            once::created(&self.cluster, self.secrets.get(&key), database, &key, stage, create).await?;
        match outcome.child {
            // One of a user has no label of ours, and stays as it is.
            Child::Kept(live) if live.metadata.labels.get(MANAGED_BY) == Some(OPERATOR) => {
                let change = change_of_owner(database, &live.metadata);
                let patched = once::patched(&self.cluster, live, change.into_iter().collect()).await;
                Some(Outcome { write: outcome.write.or(patched.write), ..patched })
            }
            _ => Some(outcome),
        }
    }

    /// The conditions of a Database whose children are all as desired.
    fn state(&self, database: &Database, set: &Child<StatefulSet>, pods: Option<Trouble>) -> State {
        let size = database.spec.size;
        let name = &database.metadata.name;
        let primary = self.pods.get(&Key { name: format_smolstr!("{name}-0"), ..database.key() });
        let is_available = primary.is_some_and(|pod| pod.is_ready());
        let available = if is_available {
            Verdict::yes("PrimaryReady", format_smolstr!("{name}-0 accepts connections"))
        } else {
            Verdict::no("PrimaryNotReady", format_smolstr!("{name}-0 does not accept connections"))
        };
        let ready = set.live().map_or(0, |set| set.status.ready_replicas);
        let count = format_smolstr!("{ready} of {size} instances are ready");
        let is_complete = set.live().is_some_and(|set| is_complete(set, size));
        let (ready, progressing) = match pods {
            _ if is_complete => (
                Verdict::yes("AllInstancesReady", count),
                Verdict::yes("RolloutComplete", "all instances run the latest spec"),
            ),
            Some(Trouble { reason, message, .. }) => {
                let message = format_smolstr!("{count}: {message}");
                (Verdict::no(reason.clone(), message.clone()), Verdict::no(reason, message))
            }
            None => {
                (Verdict::no("RolloutInProgress", count.clone()), Verdict::yes("RolloutInProgress", count))
            }
        };
        State {
            ready,
            others: vec![("Available", available), ("Progressing", progressing)],
            stalled: None,
            next: Next::OnChange,
        }
    }
}

/// Whether all instances have the latest template and are ready, and there are no others.
fn is_complete(set: &StatefulSet, size: i32) -> bool {
    let StatefulSetStatus { observed_generation, replicas, ready_replicas, updated_replicas } = &set.status;
    *observed_generation >= set.metadata.generation
        && [replicas, ready_replicas, updated_replicas].into_iter().all(|count| *count == size)
}

impl Operator for Databases {
    type Kind = Database;

    async fn applied(&self, database: Arc<Database>) -> Result<Next, ReconcileError> {
        let (database, stage) = (&*database, Stage::of(&*database));
        let (version, unsupported) = self.version(database);
        let children = desired(database, &format!("{}:{version}", self.image));
        let name = &database.metadata.name;
        let replication = format!("{name}-replication");
        let kept = tokio::join!(
            self.keep_secret(database, name, "app", stage),
            self.keep_secret(database, &replication, "replication", stage),
            self.config_maps.keep(database, &children.scripts, stage),
            self.budgets.keep(database, &children.budget, stage),
            self.services.keep(database, &children.primary, stage),
            self.services.keep(database, &children.instances, stage),
            self.sets.keep(database, &children.set, stage),
            self.keep_claims(database),
            self.keep_backup(database, children.backup.as_ref(), stage),
        );
        let (
            Some(app),
            Some(replication),
            Some(scripts),
            Some(budget),
            Some(primary),
            Some(instances),
            Some(set),
            claims,
            backup,
        ) = kept
        else {
            return Ok(Next::OnChange);
        };
        let report = self.reporter.of(database).with(&set).with(&primary).with(&instances).with(&scripts);
        let report = report.with(&budget).with(&app).with(&replication);
        let report = claims.iter().fold(report, |report, claim| report.with(claim));
        let backup = backup?;
        let report = match &backup {
            Some(backup) => report.with(&backup.claim).with(&backup.cron_job),
            None => report,
        };
        if let Some(result) = report.begin(stage) {
            return result;
        }
        let waiting = match &set.child {
            Child::Kept(live) if !is_complete(live, database.spec.size) => Some(PodsOf {
                generation: live.metadata.generation,
                selector: &live.spec.selector.match_labels,
                containers: &live.spec.template.spec.containers,
            }),
            _ => None,
        };
        let (trouble, next) = report.look(waiting).await;
        let mut state = self.state(database, &set.child, trouble);
        let backups = backup.as_ref().and_then(|backup| Some(&backup.cron_job.child.live()?.status));
        state.others.extend(backups.map(|status| ("BackupSucceeded", backup_succeeded(status))));
        let last_backup = backups.map_or(&database.status.last_backup, |status| &status.last_successful_time);
        let live = set.child.live();
        let status = DatabaseStatus {
            primary: format_smolstr!("{name}-0"),
            ready_instances: live.map_or(0, |set| set.status.ready_replicas),
            version: live
                .filter(|set| is_complete(set, database.spec.size))
                .and_then(version_of)
                .unwrap_or(&database.status.version)
                .to_smolstr(),
            last_backup: last_backup.clone(),
            ..DatabaseStatus::default()
        };
        let state = match unsupported {
            Some(stalled) => State {
                ready: Verdict::no(stalled.reason.clone(), stalled.message.clone()),
                stalled: Some(stalled),
                ..state
            },
            None => state,
        };
        report.write(status, State { next, ..state }).await
    }

    /// Deletes the children that can be created again, because the garbage collector may be slow or absent.
    async fn deleted(&self, last: Arc<Database>) -> Result<(), ReconcileError> {
        info!(key = %last.key(), "deleted");
        self.reporter.forget(&last.metadata.uid);
        let named =
            |suffix: &str| Key { name: format_smolstr!("{}{suffix}", last.metadata.name), ..last.key() };
        let deleted = [
            self.sets.delete(&*last, &last.key()).await,
            self.services.delete(&*last, &last.key()).await,
            self.services.delete(&*last, &named("-ro")).await,
            self.config_maps.delete(&*last, &named("-scripts")).await,
            self.budgets.delete(&*last, &last.key()).await,
            self.cron_jobs.delete(&*last, &named("-backup")).await,
        ];
        Ok(deleted.into_iter().collect::<Result<(), _>>()?)
    }

    fn synced(&self, databases: &Watch<Database>) {
        self.reporter.overview(databases);
    }

    async fn unreadable(&self, broken: Arc<Broken>) -> Result<(), ReconcileError> {
        Ok(self.reporter.unreadable::<Database>(&broken).await?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn database(spec: Value) -> Database {
        let metadata = json!({"name": "db", "namespace": "shop", "uid": "u1", "resourceVersion": "7"});
        serde_json::from_value(json!({"metadata": metadata, "spec": spec})).expect("a Database")
    }

    #[test]
    fn a_claim_grows_if_it_is_bound_and_smaller() {
        let grows = |storage: &str, present: &str, phase: &str| {
            let claim = json!({
                "metadata": {"name": "data-db-0", "resourceVersion": "7"},
                "spec": {"resources": {"requests": {"storage": present}}},
                "status": {"phase": phase},
            });
            let claim = serde_json::from_value(claim).expect("a claim");
            growth(&database(json!({"size": 1, "version": "15", "storage": storage})), &claim).is_some()
        };
        assert!(grows("2Gi", "1Gi", "Bound"));
        assert!(grows("10Gi", "9Gi", "Bound"));
        assert!(!grows("2Gi", "1Gi", "Pending"));
        assert!(!grows("2048Gi", "2Ti", "Bound"));
        assert!(!grows("1Gi", "2Gi", "Bound"));
        assert!(!grows("2Gi", "1500M", "Bound"), "a size that this operator never writes");
    }

    #[test]
    fn each_secret_has_a_password_of_its_own_and_that_of_applications_an_address() {
        let database = database(json!({"size": 1, "version": "15"}));
        let decoded = |secret: &Secret, key: &str| {
            let bytes = BASE64_STANDARD.decode(secret.data.get(key)?).expect("base64");
            Some(String::from_utf8(bytes).expect("text"))
        };
        let (app, replication) =
            (secret(&database, "db", "app"), secret(&database, "db-replication", "replication"));
        let password = decoded(&app, "password").expect("a password");
        assert_eq!(password.len(), 32);
        assert_eq!(decoded(&app, "uri"), Some(format!("postgresql://app:{password}@db.shop.svc:5432/app")));
        assert_ne!(decoded(&replication, "password"), Some(password));
        assert_eq!(decoded(&replication, "uri"), None);
    }
}
