//! The children of a Database that can be created again. Nothing in this file does I/O.

use std::collections::BTreeMap;

use listwatch::resource::{INSTANCE, LabelSelector, Labels, ObjectMeta, kinds::*};
use smol_str::{SmolStr, format_smolstr};

use super::{
    CONTAINER, Database, DatabaseSpec, MANAGED_BY, OPERATOR, PORT, scripts,
    types::{BackupSpec, RestoreSpec, TlsSpec},
};

/// The user `postgres` of the official image.
const USER: i64 = 999;
/// How long PostgreSQL may take to shut down: as long as its checkpoint, and as the replicas take to receive the last WAL.
const SHUTDOWN_SECS: i64 = 120;
/// The memory that parallel queries share, at most. That of a container runtime is 64 MiB, too little for large hash joins.
const SHARED_MEMORY: &str = "256Mi";
/// The mode of passwords and keys: PostgreSQL refuses a key that all users can read.
const SECRET_MODE: i32 = 0o400;
/// The mode of scripts and settings: the default.
const SCRIPTS_MODE: i32 = 0o644;
/// Longest backup: a `pg_dump` that hangs would keep all later ones from starting. In this time, it writes a terabyte at 25 MB/s.
const BACKUP_SECS_MAX: i64 = 12 * 60 * 60;

/// Argo CD takes an object without an owner for one of its application `db`, if the object has `app.kubernetes.io/instance: db`, and
/// deletes it, because it is in no manifest: <https://argo-cd.readthedocs.io/en/stable/user-guide/sync-options/>.
pub(super) const NOT_PRUNED: (&str, &str) = ("argocd.argoproj.io/sync-options", "Prune=false,Delete=false");

/// The path of the template of Pods in a StatefulSet or a Job, and in a CronJob.
const TEMPLATE: &str = "/spec/template";
const CRON_JOB_TEMPLATE: &str = "/spec/jobTemplate/spec/template";

/// The fields of the StatefulSet that must be absent. The primary has the number 0, so the numbers begin there.
pub const SET_OWNED: &[&str] = &["/spec/ordinals", "/spec/template/spec/containers/*/args"];
/// The fields of the CronJob that must be absent: a backup serves nobody.
pub const CRON_JOB_OWNED: &[&str] = &[
    "/spec/jobTemplate/spec/template/spec/containers/*/args",
    "/spec/jobTemplate/spec/template/spec/containers/*/lifecycle",
    "/spec/jobTemplate/spec/template/spec/containers/*/ports",
    "/spec/jobTemplate/spec/template/spec/containers/*/readinessProbe",
];
/// The same of the Jobs, which wait for a backup as long as it takes.
pub const JOB_OWNED: &[&str] = &[
    "/spec/activeDeadlineSeconds",
    "/spec/template/spec/containers/*/args",
    "/spec/template/spec/containers/*/lifecycle",
    "/spec/template/spec/containers/*/ports",
    "/spec/template/spec/containers/*/readinessProbe",
];

/// The desired children of a Database, but for its Secrets.
#[derive(Clone, Debug, PartialEq)]
pub struct DatabaseChildren {
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
    /// Writes the data of a new primary, before the StatefulSet is created.
    pub restore: Option<Job>,
}

/// The labels of the children and of the Pods. All of them are in the selectors: a Helm chart of PostgreSQL also sets `name` and
/// `instance`.
pub(super) fn labels(database: &Database) -> Labels {
    labels_of(database, "postgresql")
}

/// The `app.kubernetes.io/name` of the backups.
pub(super) const BACKUP: &str = "postgresql-backup";

/// The labels of the backups, whose Pods no Service selects.
pub(super) fn backup_labels(database: &Database) -> Labels {
    labels_of(database, BACKUP)
}

/// The labels with this value of `name`, of which each Job has its own: no Service selects its Pods.
fn labels_of(database: &Database, name: &str) -> Labels {
    let instance = &*database.metadata.name;
    [("app.kubernetes.io/name", name), (INSTANCE, instance), (MANAGED_BY, OPERATOR)].into_iter().collect()
}

/// The volume of a claim.
pub(super) fn volume(spec: &DatabaseSpec) -> PersistentVolumeClaimSpec {
    let requests = BTreeMap::from([("storage".into(), spec.storage.as_str().into())]);
    PersistentVolumeClaimSpec {
        access_modes: vec!["ReadWriteOnce".into()],
        storage_class_name: spec.storage_class_name.clone(),
        resources: ResourceRequirements { requests, ..ResourceRequirements::default() },
        ..PersistentVolumeClaimSpec::default()
    }
}

/// Computes the desired children of a Database. `pods`: the addresses from which PostgreSQL accepts connections.
#[must_use]
pub fn desired(database: &Database, image: &str, pods: &[String]) -> DatabaseChildren {
    let DatabaseSpec { size, tls, .. } = &database.spec;
    let (name, labels) = (&database.metadata.name, labels(database));
    let child = |name: &str| ObjectMeta::of_child(database, name, labels.clone());
    let first = format_smolstr!("{name}-0");
    let of_primary = [("statefulset.kubernetes.io/pod-name", &*first)];
    let mut set = StatefulSet { metadata: child(name), ..StatefulSet::default() };
    set.spec = StatefulSetSpec {
        replicas: Some(*size),
        selector: LabelSelector { match_labels: labels.clone(), ..LabelSelector::default() },
        service_name: name.clone(),
        pod_management_policy: "Parallel".into(),
        persistent_volume_claim_retention_policy: Some(ClaimRetention {
            when_deleted: "Retain".into(),
            when_scaled: "Retain".into(),
            ..ClaimRetention::default()
        }),
        template: PodTemplate::new(labels.clone(), with_tls(pod(name, image), tls.as_ref())),
        volume_claim_templates: vec![ClaimTemplate {
            metadata: TemplateMeta {
                name: "data".into(),
                labels: labels.clone(),
                annotations: [NOT_PRUNED].into_iter().collect(),
                ..TemplateMeta::default()
            },
            spec: volume(&database.spec),
            ..ClaimTemplate::default()
        }],
        ..StatefulSetSpec::default()
    };
    set_pods(database, &mut set.metadata, TEMPLATE, &mut set.spec.template);
    DatabaseChildren {
        set,
        primary: Service { metadata: child(name), spec: service(labels.iter().chain(of_primary).collect()) },
        instances: Service { metadata: child(&format!("{name}-ro")), spec: service(labels.clone()) },
        scripts: ConfigMap {
            metadata: child(&format!("{name}-scripts")),
            data: scripts::files(database, pods),
            ..ConfigMap::default()
        },
        budget: PodDisruptionBudget {
            metadata: child(name),
            spec: PodDisruptionBudgetSpec {
                max_unavailable: Some(1.into()),
                selector: LabelSelector { match_labels: labels.clone(), ..LabelSelector::default() },
                ..PodDisruptionBudgetSpec::default()
            },
        },
        backup: database.spec.backup.as_ref().map(|backup| cron_job(database, image, backup)),
        restore: database.spec.restore_from.as_ref().map(|restore| restore_job(database, image, restore)),
    }
}

/// The CronJob of the backups.
fn cron_job(database: &Database, image: &str, backup: &BackupSpec) -> CronJob {
    let (name, DatabaseSpec { tls, .. }) = (&database.metadata.name, &database.spec);
    let mut metadata = ObjectMeta::of_child(database, &format!("{name}-backup"), labels(database));
    let pod = with_tls(backup_pod(name, image, backup.keep), tls.as_ref());
    let mut template = PodTemplate::new(backup_labels(database), pod);
    set_pods(database, &mut metadata, CRON_JOB_TEMPLATE, &mut template);
    if !backup.time_zone.is_empty() {
        metadata.also_owning::<Database>(["/spec/timeZone".to_owned()]);
    }
    let job = JobSpec {
        // The default.
        backoff_limit: Some(6),
        active_deadline_seconds: Some(BACKUP_SECS_MAX),
        template,
        ..JobSpec::default()
    };
    CronJob {
        metadata,
        spec: CronJobSpec {
            schedule: backup.schedule.as_str().into(),
            time_zone: backup.time_zone.clone(),
            concurrency_policy: "Forbid".into(),
            job_template: JobTemplate { spec: job, ..JobTemplate::default() },
            ..CronJobSpec::default()
        },
        ..CronJob::default()
    }
}

/// The Job that restores a backup.
fn restore_job(database: &Database, image: &str, restore: &RestoreSpec) -> Job {
    let (name, labels) = (&database.metadata.name, labels_of(database, "postgresql-restore"));
    let mut metadata = ObjectMeta::of_child(database, &format!("{name}-restore"), labels.clone());
    let mut template = PodTemplate::new(labels, restore_pod(name, image, restore));
    set_pods(database, &mut metadata, TEMPLATE, &mut template);
    // No limit: a backup that is missing may still come.
    let spec = JobSpec { backoff_limit: Some(i32::MAX), template, ..JobSpec::default() };
    Job { metadata, spec, ..Job::default() }
}

/// Sets the fields of the spec that all Pods get. `child`: the metadata of the object with the template.
fn set_pods(database: &Database, child: &mut ObjectMeta, path: &str, template: &mut PodTemplate) {
    let DatabaseSpec { pods, pod_labels, pod_annotations, .. } = &database.spec;
    pods.apply::<Database>(child, path, template);
    let TemplateMeta { labels, annotations, .. } = &mut template.metadata;
    let theirs: Vec<_> = pod_labels.iter().filter(|(label, _)| labels.get(label).is_none()).collect();
    let keys = theirs.iter().map(|(label, _)| ("labels", *label));
    let keys = keys.chain(pod_annotations.iter().map(|(annotation, _)| ("annotations", annotation)));
    child.also_owning::<Database>(
        keys.map(|(map, key)| format!("{path}/metadata/{map}/{}", key.replace('/', "~1"))),
    );
    *labels = labels.iter().chain(theirs).collect();
    *annotations = pod_annotations.clone();
}

fn service(selector: Labels) -> ServiceSpec {
    let port = ServicePort {
        name: CONTAINER.into(),
        port: PORT,
        // Not a name: that would mean the first container with a port of this name, such as a sidecar's.
        target_port: Some(PORT.into()),
        protocol: "TCP".into(),
        ..ServicePort::default()
    };
    ServiceSpec { r#type: "ClusterIP".into(), selector, ports: vec![port], ..ServiceSpec::default() }
}

fn script(file: &str) -> Vec<SmolStr> {
    vec!["sh".into(), format_smolstr!("/scripts/{file}")]
}

fn variable(name: &str, value: &str) -> EnvVar {
    EnvVar { name: name.into(), value: value.into(), ..EnvVar::default() }
}

fn mounted(name: &str, path: &str) -> VolumeMount {
    VolumeMount { name: name.into(), mount_path: path.into(), ..VolumeMount::default() }
}

fn read_only(name: &str, path: &str) -> VolumeMount {
    VolumeMount { read_only: true, ..mounted(name, path) }
}

fn empty(name: &str, empty_dir: EmptyDirVolumeSource) -> Volume {
    Volume { name: name.into(), empty_dir: Some(Box::new(empty_dir)), ..Volume::default() }
}

fn of_secret(volume: &str, secret_name: SmolStr) -> Volume {
    let default_mode = Some(SECRET_MODE);
    let secret =
        Some(Box::new(SecretVolumeSource { secret_name, default_mode, ..SecretVolumeSource::default() }));
    Volume { name: volume.into(), secret, ..Volume::default() }
}

fn of_scripts(name: &str) -> Volume {
    let config_map = Some(Box::new(ConfigMapVolumeSource {
        name: format_smolstr!("{name}-scripts"),
        default_mode: Some(SCRIPTS_MODE),
        ..ConfigMapVolumeSource::default()
    }));
    Volume { name: "scripts".into(), config_map, ..Volume::default() }
}

fn of_claim(volume: &str, claim_name: SmolStr) -> Volume {
    let claim = ClaimVolumeSource { claim_name, ..ClaimVolumeSource::default() };
    Volume { name: volume.into(), persistent_volume_claim: Some(Box::new(claim)), ..Volume::default() }
}

/// How long a client of libpq waits for the other end, whose node may be gone. By default, that is two hours.
const PATIENCE: &str =
    "connect_timeout=10 keepalives_idle=10 keepalives_interval=10 keepalives_count=3 tcp_user_timeout=30000";

/// The Pod of each instance of the Database `name`.
fn pod(name: &str, image: &str) -> PodSpec {
    // The number at the end of the Pod's name.
    let field_ref = Some(ObjectFieldSelector {
        api_version: "v1".into(),
        field_path: "metadata.labels['apps.kubernetes.io/pod-index']".into(),
        ..ObjectFieldSelector::default()
    });
    let source = EnvVarSource { field_ref, ..EnvVarSource::default() };
    let index = EnvVar { value_from: Some(Box::new(source)), ..variable("INSTANCE", "") };
    let primary = format!("host={name} user=replication passfile=/run/postgresql/passfile {PATIENCE}");
    let exec = |file: &str| Some(ExecAction { command: script(file), ..ExecAction::default() });
    let stop = LifecycleHandler { exec: exec("stop"), ..LifecycleHandler::default() };
    let container = Container {
        env: vec![index, variable("SLOT", "replica_$(INSTANCE)"), variable("PRIMARY", &primary)]
            .into_iter()
            .chain(superuser())
            .collect(),
        ports: vec![ContainerPort {
            name: CONTAINER.into(),
            container_port: PORT,
            protocol: "TCP".into(),
            ..ContainerPort::default()
        }],
        readiness_probe: Some(Box::new(Probe {
            exec: exec("ready"),
            period_seconds: Some(5),
            timeout_seconds: Some(5),
            ..Probe::default()
        })),
        lifecycle: Some(Box::new(Lifecycle { pre_stop: Some(stop), ..Lifecycle::default() })),
        volume_mounts: instance_mounts(),
        ..container(image, "start")
    };
    PodSpec {
        termination_grace_period_seconds: Some(SHUTDOWN_SECS),
        ..restricted(container, instance_volumes(name), "Always")
    }
}

/// The variables for programs that connect from within the Pod.
fn superuser() -> [EnvVar; 3] {
    [
        variable("PGDATA", "/data/pgdata"),
        variable("PGHOST", "/run/postgresql"),
        variable("PGUSER", "postgres"),
    ]
}

fn instance_mounts() -> Vec<VolumeMount> {
    vec![
        mounted("data", "/data"),
        mounted("run", "/run/postgresql"),
        mounted("shm", "/dev/shm"),
        read_only("scripts", "/scripts"),
        read_only("app", "/secrets/app"),
        read_only("replication", "/secrets/replication"),
    ]
}

/// The volumes of an instance, except for the claim's.
fn instance_volumes(name: &str) -> Vec<Volume> {
    let shared_memory = EmptyDirVolumeSource {
        medium: "Memory".into(),
        size_limit: SHARED_MEMORY.into(),
        ..EmptyDirVolumeSource::default()
    };
    let mut volumes =
        vec![empty("run", EmptyDirVolumeSource::default()), empty("shm", shared_memory), of_scripts(name)];
    volumes.extend(secrets(name));
    volumes
}

/// The volumes with the passwords of the roles.
fn secrets(name: &str) -> [Volume; 2] {
    [of_secret("app", name.into()), of_secret("replication", format_smolstr!("{name}-replication"))]
}

/// The Pod that writes the data of the primary: it starts like the primary, and ends where that would serve.
fn restore_pod(name: &str, image: &str, restore: &RestoreSpec) -> PodSpec {
    let dump = restore.dump.as_deref().unwrap_or("newest");
    let mut container = Container {
        env: [variable("INSTANCE", "0"), variable("DUMP", dump)].into_iter().chain(superuser()).collect(),
        volume_mounts: instance_mounts(),
        ..container(image, "start")
    };
    container.volume_mounts.push(read_only("backups", "/backups"));
    let mut volumes = instance_volumes(name);
    volumes.push(of_claim("data", format_smolstr!("data-{name}-0")));
    volumes.push(of_claim("backups", format_smolstr!("{}-backups", restore.database)));
    restricted(container, volumes, "OnFailure")
}

/// The Pod of a backup of the Database `name`.
fn backup_pod(name: &str, image: &str, keep: i32) -> PodSpec {
    let container = Container {
        env: vec![
            variable("DATABASE", name),
            variable("KEEP", &keep.to_string()),
            variable("PATIENCE", PATIENCE),
        ],
        volume_mounts: vec![
            mounted("backups", "/backups"),
            read_only("scripts", "/scripts"),
            read_only("app", "/secrets/app"),
            read_only("replication", "/secrets/replication"),
        ],
        ..container(image, "backup")
    };
    let mut volumes = vec![of_claim("backups", format_smolstr!("{name}-backups")), of_scripts(name)];
    volumes.extend(secrets(name));
    restricted(container, volumes, "Never")
}

/// A Pod with the certificate in `/secrets/tls`. Connections to the primary check the issuer of its certificate, not the name: with
/// `scram-sha-256`, the server proves that it knows the password, over the connection that has this certificate (channel binding).
fn with_tls(mut pod: PodSpec, tls: Option<&TlsSpec>) -> PodSpec {
    let Some(TlsSpec { secret_name }) = tls else { return pod };
    pod.volumes.push(of_secret("tls", secret_name.into()));
    for container in &mut pod.containers {
        container.volume_mounts.push(read_only("tls", "/secrets/tls"));
        container.env.push(variable("PGSSLMODE", "verify-ca"));
        container.env.push(variable("PGSSLROOTCERT", "/secrets/tls/ca.crt"));
    }
    pod
}

/// A container that runs a script, with the privileges that the Pod Security Standard "restricted" allows.
fn container(image: &str, file: &str) -> Container {
    Container {
        name: CONTAINER.into(),
        image: image.into(),
        command: script(file),
        security_context: Some(Box::new(SecurityContext {
            allow_privilege_escalation: Some(false),
            capabilities: Some(Capabilities { drop: vec!["ALL".into()], ..Capabilities::default() }),
            read_only_root_filesystem: Some(true),
            ..SecurityContext::default()
        })),
        ..Container::default()
    }
}

/// A Pod with the privileges that the Pod Security Standard "restricted" allows.
fn restricted(container: Container, volumes: Vec<Volume>, restart_policy: &str) -> PodSpec {
    PodSpec {
        containers: vec![container],
        volumes,
        automount_service_account_token: Some(false),
        security_context: Some(Box::new(PodSecurityContext {
            run_as_non_root: Some(true),
            run_as_user: Some(USER),
            run_as_group: Some(USER),
            fs_group: Some(USER),
            seccomp_profile: Some(SeccompProfile {
                r#type: "RuntimeDefault".into(),
                ..SeccompProfile::default()
            }),
            ..PodSecurityContext::default()
        })),
        // The default.
        termination_grace_period_seconds: Some(30),
        restart_policy: restart_policy.into(),
        ..PodSpec::default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use listwatch::resource::diff;

    /// Each of these edits stayed: for example, the primary was away, because the first Pod was `db-1`, or it began with an empty
    /// directory of its volume.
    #[test]
    fn an_edit_of_any_part_of_an_owned_list_or_volume_is_corrected() {
        let database = json!({
            "metadata": {"name": "db", "resourceVersion": "7"}, "spec": {"size": 1, "version": "15"},
        });
        let desired = desired(&serde_json::from_value(database).expect("a Database"), "postgres:15", &[]).set;
        let edits = [
            ("/spec/ordinals", json!({"start": 1})),
            ("/spec/template/spec/containers/0/volumeMounts/0/subPath", json!("other")),
            ("/spec/template/spec/volumes/2/configMap/items", json!([{"key": "ready", "path": "ready"}])),
            ("/spec/template/spec/volumes/2/configMap/defaultMode", json!(0)),
            ("/spec/template/spec/volumes/3/secret/optional", json!(true)),
        ];
        let stays = edits.into_iter().filter(|(path, value)| {
            let mut edited = json!(desired);
            edited["metadata"]["resourceVersion"] = "7".into();
            let edit = serde_json::from_value::<json_patch::Patch>(
                json!([{"op": "add", "path": path, "value": value}]),
            );
            json_patch::patch(&mut edited, &edit.expect("a patch")).expect("a field");
            let edited: StatefulSet = serde_json::from_value(edited).expect("a StatefulSet");
            diff::between(&edited, &desired, SET_OWNED).is_empty()
        });
        assert_eq!(stays.collect::<Vec<_>>(), []);
    }

    #[test]
    fn each_pod_can_read_its_inputs_and_write_its_data() {
        let database = json!({
            "metadata": {"name": "db", "namespace": "shop", "uid": "u1", "resourceVersion": "7"},
            "spec": {
                "size": 1, "version": "15", "backup": {"schedule": "0 3 * * *"}, "restoreFrom": {"database": "old"},
            },
        });
        let database = serde_json::from_value(database).expect("a Database");
        let DatabaseChildren { set, backup, restore, .. } = desired(&database, "postgres:15", &[]);
        let (backup, restore) = (backup.expect("a backup"), restore.expect("a restore"));
        let instance = "data run shm scripts:ro app:ro replication:ro";
        for (template, expected) in [
            (&set.spec.template, instance.to_owned()),
            (&restore.spec.template, format!("{instance} backups:ro")),
            (&backup.spec.job_template.spec.template, "backups scripts:ro app:ro replication:ro".to_owned()),
        ] {
            let mounts = template.spec.containers[0].volume_mounts.iter();
            let mounts =
                mounts.map(|mount| format!("{}{}", mount.name, if mount.read_only { ":ro" } else { "" }));
            assert_eq!(mounts.collect::<Vec<_>>().join(" "), expected);
        }
        let instance = &set.spec.template.spec.containers[0];
        assert_eq!(instance.ports[0].container_port, 5432);
        let probe = instance.readiness_probe.as_ref().and_then(|probe| probe.exec.as_ref());
        assert_eq!(probe.map(|exec| &exec.command[1]), Some(&"/scripts/ready".into()));
    }
}
