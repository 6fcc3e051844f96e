//! Tests the operator of Database, on both servers and with the permissions of its ClusterRole. No StatefulSet controller runs, so
//! each write of the operator is known. `tests/e2e/database` has the real PostgreSQL.

use std::time::{Duration, SystemTime};

use base64::{Engine, prelude::BASE64_STANDARD};
use listwatch::{
    client::{Part, Patch},
    operators::BuiltIn,
    resource::{Key, Meta, kinds::Secret},
    watch::Lists,
};
use listwatch_apiserver::Fault;
use listwatch_control_plane::{eventually, saw};
use serde_json::{Value, json};

use crate::{
    client::condition,
    fixture::{Fixture, Kind, Record},
    in_process::{self, Running},
    manifests,
};

fn start(fixture: &Fixture) -> Running {
    Running::start(fixture, BuiltIn::Database)
}

async fn on_both(script: impl AsyncFn(&Fixture) + Copy + Send + 'static) {
    on_each_of(&[Kind::InProcess, Kind::RealHttp1], script).await;
}

async fn on_each_of(kinds: &[Kind], script: impl AsyncFn(&Fixture) + Copy + Send + 'static) {
    in_process::on(BuiltIn::Database, kinds, script).await;
}

fn database(spec: Value) -> Value {
    json!({"apiVersion": "app.example.com/v1", "kind": "Database", "metadata": {"name": "db"}, "spec": spec})
}

/// Waits until the operator has written these lines, in any order, and checks that it has written nothing else. Nothing shows that
/// it will write no more, so the next call has what came too much.
pub async fn wrote(fixture: &Fixture, expected: &[&str]) {
    eventually(&format!("{expected:?}"), async || (fixture.written().len() >= expected.len()).then_some(()))
        .await;
    let (mut written, mut expected) = (fixture.transcript().await, expected.to_vec());
    written.sort();
    expected.sort_unstable();
    assert_eq!(written, expected);
}

const STATUS: &str = "PATCH databases/db/status 200";
/// Adds or removes the finalizer.
const FINALIZER: &str = "PATCH databases/db 200";
const CREATED: [&str; 8] = [
    "POST secrets 201",
    "POST secrets 201",
    "POST configmaps 201",
    "POST services 201",
    "POST services 201",
    "POST poddisruptionbudgets 201",
    "POST statefulsets 201",
    STATUS,
];

/// What the StatefulSet controller would write: all instances are ready.
async fn roll_out(fixture: &Fixture) {
    let set = fixture.get("statefulsets/db").await;
    let size = &set["spec"]["replicas"];
    let status = json!({
        "observedGeneration": set["metadata"]["generation"], "replicas": size, "readyReplicas": size, "updatedReplicas": size,
    });
    fixture.patch("statefulsets/db/status", json!({ "status": status })).await;
}

fn is_ready(database: &Value) -> bool {
    condition(database, "Ready").is_some_and(|ready| ready["reason"] == "AllInstancesReady")
}

/// Waits until the Database `db` is stalled for this reason, with these words in the message.
async fn until_stalled(fixture: &Fixture, reason: &str, words: &str) {
    let is_stalled = |database: &Value| {
        condition(database, "Stalled").is_some_and(|stalled| {
            stalled["reason"] == reason && stalled["message"].as_str().unwrap().contains(words)
        })
    };
    fixture.until("databases/db", is_stalled).await;
}

/// The claim that the StatefulSet controller would create.
async fn create_claim(fixture: &Fixture, name: &str) {
    let labels = json!({
        "app.kubernetes.io/name": "postgresql", "app.kubernetes.io/instance": "db",
        "app.kubernetes.io/managed-by": "database-operator",
    });
    let spec = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
    let claim = json!({"metadata": {"name": name, "labels": labels}, "spec": spec});
    fixture.create("persistentvolumeclaims", &claim).await;
}

/// With this, Argo CD leaves the object alone: it has no owner, and the label by which Argo CD finds its own objects.
fn not_pruned() -> Value {
    json!({"argocd.argoproj.io/sync-options": "Prune=false,Delete=false"})
}

#[tokio::test]
async fn a_backup_gets_a_cron_job_and_a_claim_that_stays() {
    on_both(async |fixture| {
        let _running = start(fixture);
        let backup = json!({"schedule": "0 3 * * *", "keep": 2});
        let spec = json!({"size": 1, "version": "15", "backup": backup});
        fixture.create("databases", &database(spec)).await;
        let with_backup = [FINALIZER, "POST persistentvolumeclaims 201", "POST cronjobs 201"];
        wrote(fixture, &[&CREATED[..], &with_backup].concat()).await;
        let claim = fixture.get("persistentvolumeclaims/db-backups").await;
        assert_eq!(claim["metadata"]["annotations"], not_pruned());
        let cron_job = fixture.get("cronjobs/db-backup").await;
        let env = &cron_job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"][0]["env"];
        assert_eq!(env[1], json!({"name": "KEEP", "value": "2"}));
        let reason =
            |database: &Value| condition(database, "BackupSucceeded").map(|line| line["reason"].clone());
        assert_eq!(reason(&fixture.get("databases/db").await), Some(json!("NoBackupYet")));

        // What the CronJob controller would write.
        let report = async |status: Value, expected: &str| {
            fixture.patch("cronjobs/db-backup/status", json!({ "status": status })).await;
            wrote(fixture, &[STATUS]).await;
            assert_eq!(reason(&fixture.get("databases/db").await), Some(json!(expected)));
        };
        let now = SystemTime::now();
        let hours_ago = |hours: u64| {
            humantime::format_rfc3339_seconds(now - Duration::from_secs(hours * 60 * 60)).to_string()
        };
        let active = json!([{"kind": "Job", "name": "db-backup-1"}]);
        report(json!({"lastScheduleTime": hours_ago(47), "active": active}), "BackupRunning").await;
        report(json!({"lastSuccessfulTime": hours_ago(46), "active": []}), "BackupSucceeded").await;
        assert_eq!(fixture.get("databases/db").await["status"]["lastBackup"], hours_ago(46));
        report(json!({"lastScheduleTime": hours_ago(23)}), "BackupFailed").await;

        // The condition stayed True for ever.
        let (begun, done) = (hours_ago(50), hours_ago(49));
        report(json!({"lastScheduleTime": begun, "lastSuccessfulTime": done}), "BackupsOverdue").await;
        for (suspend, expected) in [(true, "BackupsSuspended"), (false, "BackupsOverdue")] {
            fixture.patch("cronjobs/db-backup", json!({"spec": {"suspend": suspend}})).await;
            wrote(fixture, &[STATUS]).await;
            let reported = fixture.get("databases/db").await;
            assert_eq!(reason(&reported), Some(json!(expected)));
            assert_eq!(condition(&reported, "BackupSucceeded").unwrap()["status"], "False");
        }

        // Without backups, the claim stays with all of them. The CronJob is deleted once, and may end later.
        let finalizers = |all: Value| json!({"metadata": {"finalizers": all}});
        fixture.patch("cronjobs/db-backup", finalizers(json!(["example.com/wait"]))).await;
        fixture.patch("databases/db", json!({"spec": {"backup": null}})).await;
        wrote(fixture, &[FINALIZER, "DELETE cronjobs/db-backup 200", STATUS]).await;
        fixture.patch("databases/db", json!({"spec": {"size": 2}})).await;
        wrote(fixture, &["PATCH configmaps/db-scripts 200", "PATCH statefulsets/db 200", STATUS]).await;
        fixture.patch("cronjobs/db-backup", finalizers(json!(null))).await;
        assert_eq!(reason(&fixture.get("databases/db").await), None);
        fixture.get("persistentvolumeclaims/db-backups").await;
        let backup = json!({"backup": {"schedule": "every night"}});
        fixture.patch("databases/db", json!({ "spec": backup })).await;
        until_stalled(fixture, "InvalidSpec", "").await;
    })
    .await;
}

/// A user could set it in the CronJob alone, and lost it if the CronJob was created again.
#[tokio::test]
async fn the_time_zone_of_the_backups_is_that_of_the_spec_or_else_that_of_a_user() {
    on_both(async |fixture| {
        let _running = start(fixture);
        let backup = json!({"schedule": "0 3 * * *"});
        let spec = json!({"size": 1, "version": "15", "backup": backup, "storageClassName": "fast"});
        fixture.create("databases", &database(spec)).await;
        fixture.until("databases/db", |database| condition(database, "Ready").is_some()).await;
        let claim = fixture.get("persistentvolumeclaims/db-backups").await;
        assert_eq!(claim["spec"]["storageClassName"], "fast");
        let set = fixture.get("statefulsets/db").await;
        assert_eq!(set["spec"]["volumeClaimTemplates"][0]["spec"]["storageClassName"], "fast");

        let cron_job = "cronjobs/db-backup";
        let edit = async |zone: Value| fixture.patch(cron_job, json!({"spec": {"timeZone": zone}})).await;
        let set = async |zone: Value| {
            fixture.patch("databases/db", json!({"spec": {"backup": {"timeZone": zone}}})).await;
        };
        let zone = async || fixture.get(cron_job).await["spec"]["timeZone"].take();
        edit(json!("Europe/Berlin")).await;
        fixture.transcript().await;
        fixture.patch("databases/db", json!({"spec": {"backup": {"keep": 2}}})).await;
        wrote(fixture, &["PATCH cronjobs/db-backup 200", STATUS]).await;
        assert_eq!(zone().await, "Europe/Berlin");
        set(json!("Asia/Tokyo")).await;
        wrote(fixture, &["PATCH cronjobs/db-backup 200", STATUS]).await;
        edit(json!("Europe/Berlin")).await;
        wrote(fixture, &["PATCH cronjobs/db-backup 200"]).await;
        assert_eq!(zone().await, "Asia/Tokyo");
        set(Value::Null).await;
        wrote(fixture, &["PATCH cronjobs/db-backup 200", STATUS]).await;
        assert_eq!(zone().await, Value::Null);
        set(json!("no zone")).await;
        until_stalled(fixture, "InvalidSpec", "no zone").await;
    })
    .await;
}

/// A Job that restores a backup could never run on tainted nodes: its template is immutable, and nobody could edit it.
#[tokio::test]
async fn a_restore_gets_the_toleration_that_it_lacked_and_a_wrong_label_is_a_condition() {
    on_both(async |fixture| {
        let _running = start(fixture);
        let spec = json!({"size": 1, "version": "15", "restoreFrom": {"database": "old"}});
        fixture.create("databases", &database(spec)).await;
        let uid = fixture.until("jobs/db-restore", |_| true).await["metadata"]["uid"].take();
        let tolerations = json!([{"key": "dedicated", "operator": "Exists"}]);
        fixture.patch("databases/db", json!({"spec": {"tolerations": tolerations}})).await;
        let tolerates = |job: &Value| job["spec"]["template"]["spec"]["tolerations"] == tolerations;
        let job = fixture.until("jobs/db-restore", tolerates).await;
        assert_ne!(job["metadata"]["uid"], uid);

        fixture.patch("databases/db", json!({"spec": {"podLabels": {"team": "not a value"}}})).await;
        until_stalled(fixture, "InvalidSpec", "not a value").await;
    })
    .await;
}

/// Each correction was refused, and the CronJob stayed as somebody had edited it.
#[tokio::test]
async fn a_template_of_backups_in_which_our_container_is_invalid_is_reset() {
    on_both(async |fixture| {
        let _running = start(fixture);
        let spec = json!({"size": 1, "version": "15", "backup": {"schedule": "0 3 * * *"}});
        fixture.create("databases", &database(spec)).await;
        let with_backup = [FINALIZER, "POST persistentvolumeclaims 201", "POST cronjobs 201"];
        wrote(fixture, &[&CREATED[..], &with_backup].concat()).await;
        let template = "/spec/jobTemplate/spec/template";
        let wanted = fixture.get("cronjobs/db-backup").await.pointer(template).cloned();
        let moved = json!([
            {"op": "replace", "path": format!("{template}/spec/containers/0/name"), "value": "main"},
            {"op": "add", "path": format!("{template}/spec/initContainers"), "value": [{"name": "postgres", "image": "setup"}]},
        ]);
        fixture.edit("cronjobs/db-backup", moved).await;
        wrote(fixture, &["PATCH cronjobs/db-backup 422", "PATCH cronjobs/db-backup 200"]).await;
        assert_eq!(fixture.get("cronjobs/db-backup").await.pointer(template).cloned(), wanted);
    })
    .await;
}

/// Such a CronJob once stayed, and went on.
#[tokio::test]
async fn without_backups_a_cron_job_that_lost_its_label_is_deleted() {
    on_both(async |fixture| {
        // The claim of the backups alone is not the data of an earlier Database.
        create_claim(fixture, "db-backups").await;
        let running = start(fixture);
        let spec = json!({"size": 1, "version": "15", "backup": {"schedule": "0 3 * * *"}});
        fixture.create("databases", &database(spec)).await;
        wrote(fixture, &[&CREATED[..], &[FINALIZER, "POST cronjobs 201"]].concat()).await;
        drop(running);
        let unlabelled = json!({"metadata": {"labels": {"app.kubernetes.io/managed-by": null}}});
        fixture.patch("cronjobs/db-backup", unlabelled).await;
        fixture.patch("databases/db", json!({"spec": {"backup": null}})).await;
        if fixture.is_embedded() {
            let unavailable = Fault::Answer { status: 503, body: "{}".to_owned(), retry_after_secs: None };
            fixture.embedded().fault(unavailable.on("GET", "/cronjobs/db-backup").times(1));
        }
        let _running = start(fixture);
        wrote(fixture, &[FINALIZER, "DELETE cronjobs/db-backup 200", STATUS]).await;
    })
    .await;
}

const RESTORING: [&str; 9] = [
    "POST secrets 201",
    "POST secrets 201",
    "POST configmaps 201",
    "POST services 201",
    "POST services 201",
    "POST poddisruptionbudgets 201",
    "POST persistentvolumeclaims 201",
    "POST jobs 201",
    STATUS,
];

/// What the Job controller would write at the end.
async fn end(fixture: &Fixture, job: &str, how: &str) {
    let now = humantime::format_rfc3339_seconds(std::time::SystemTime::now()).to_string();
    let condition =
        |name: &str| json!({"type": name, "status": "True", "lastProbeTime": now, "lastTransitionTime": now});
    let mut status = json!({"startTime": now, "uncountedTerminatedPods": {}});
    if how == "Complete" {
        status["succeeded"] = json!(1);
        status["completionTime"] = json!(now);
        status["conditions"] = json!([condition("SuccessCriteriaMet"), condition(how)]);
    } else {
        status["failed"] = json!(1);
        status["conditions"] = json!([condition("FailureTarget"), condition(how)]);
    }
    fixture.patch(&format!("jobs/{job}/status"), json!({ "status": status })).await;
}

#[tokio::test]
async fn a_new_database_is_restored_before_it_gets_an_instance() {
    on_both(async |fixture| {
        let running = start(fixture);
        let from = json!({"database": "old", "dump": "20261123T030000Z.dump"});
        let spec = json!({"size": 2, "version": "15.4", "restoreFrom": from});
        fixture.create("databases", &database(spec)).await;
        wrote(fixture, &RESTORING).await;
        let reported = fixture.get("databases/db").await;
        let ready = condition(&reported, "Ready").unwrap();
        assert_eq!(ready["reason"], "Restoring");
        assert!(ready["message"].as_str().unwrap().contains("old-backups"), "{ready}");
        let job = fixture.get("jobs/db-restore").await;
        let pod = &job["spec"]["template"]["spec"];
        let volume = |name: &str| {
            let mut volumes = pod["volumes"].as_array().unwrap().iter();
            volumes.find(|one| one["name"] == name).unwrap()["persistentVolumeClaim"]["claimName"].clone()
        };
        assert_eq!([volume("data"), volume("backups")], ["data-db-0", "old-backups"]);
        let env = pod["containers"][0]["env"].as_array().unwrap();
        assert!(env.contains(&json!({"name": "DUMP", "value": "20261123T030000Z.dump"})), "{env:?}");
        let claim = fixture.get("persistentvolumeclaims/data-db-0").await;
        assert_eq!(claim["spec"]["resources"]["requests"]["storage"], "1Gi");

        // Why its Pod does not run.
        let container = json!({"name": "restore", "image": "postgres"});
        let labels = &job["spec"]["template"]["metadata"]["labels"];
        let metadata = json!({"name": "db-restore-1", "labels": labels});
        fixture.create("pods", &json!({"metadata": metadata, "spec": {"containers": [container]}})).await;
        let unschedulable = json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable"});
        fixture.patch("pods/db-restore-1/status", json!({"status": {"conditions": [unschedulable]}})).await;
        let is_reported =
            |database: &Value| condition(database, "Ready").unwrap()["reason"] == "Unschedulable";
        fixture.until("databases/db", is_reported).await;
        fixture.delete_with("pods/db-restore-1", json!({"gracePeriodSeconds": 0})).await;
        fixture
            .until("databases/db", |database| condition(database, "Ready").unwrap()["reason"] == "Restoring")
            .await;
        wrote(fixture, &[STATUS, STATUS]).await;

        // A version that can be pulled after all.
        fixture.patch("databases/db", json!({"spec": {"version": "15.5"}})).await;
        let dry_run = "POST jobs?dryRun=All 201";
        wrote(fixture, &[dry_run, "DELETE jobs/db-restore 200", STATUS, "POST jobs 201", STATUS]).await;
        drop(running);
        end(fixture, "db-restore", "Complete").await;
        let running = start(fixture);
        wrote(fixture, &["POST statefulsets 201", STATUS]).await;
        roll_out(fixture).await;
        wrote(fixture, &[STATUS]).await;
        let reported = fixture.get("databases/db").await;
        assert_eq!(condition(&reported, "Ready").unwrap()["reason"], "AllInstancesReady");

        // The Job is of no use any more.
        fixture.delete("jobs/db-restore").await;
        fixture.patch("databases/db", json!({"spec": {"size": 1}})).await;
        wrote(fixture, &["PATCH configmaps/db-scripts 200", "PATCH statefulsets/db 200", STATUS]).await;
        drop(running);
    })
    .await;
}

/// What the operator must never change or delete, by what its metadata and data are.
async fn data(fixture: &Fixture) -> Vec<Value> {
    let mut all = Vec::new();
    for resource in ["secrets", "persistentvolumeclaims"] {
        let list = fixture.get(resource).await;
        let is_ours = |object: &&Value| object["metadata"]["labels"]["app.kubernetes.io/instance"] == "db";
        let uid = |object: &Value| json!([object["metadata"]["uid"], object["data"]]);
        all.extend(list["items"].as_array().unwrap().iter().filter(is_ours).map(uid));
    }
    all
}

async fn image(fixture: &Fixture) -> Value {
    fixture.get("statefulsets/db").await["spec"]["template"]["spec"]["containers"][0]["image"].clone()
}

#[tokio::test]
async fn a_database_gets_its_children_once_and_they_stay_as_wanted() {
    on_both(async |fixture| {
        let running = start(fixture);
        fixture.create("databases", &database(json!({"size": 2, "version": "15.4"}))).await;
        wrote(fixture, &CREATED).await;
        let reported = fixture.get("databases/db").await;
        assert_eq!(condition(&reported, "Ready").unwrap()["reason"], "RolloutInProgress");
        assert_eq!(condition(&reported, "Available").unwrap()["reason"], "PrimaryNotReady");
        let note = "created Service db, Service db-ro, ConfigMap db-scripts, PodDisruptionBudget db, Secret db, \
                    Secret db-replication, StatefulSet db";
        let is_noted = |events: &Value| events["items"].as_array().unwrap().iter().any(|one| one["note"] == note);
        fixture.until("events", is_noted).await;
        assert_eq!(image(fixture).await, "postgres:15.4");
        let secret = fixture.get("secrets/db").await;
        assert_eq!(secret["type"], "kubernetes.io/basic-auth");
        let keys: Vec<_> = secret["data"].as_object().unwrap().keys().collect();
        assert_eq!(keys, ["password", "uri", "username"]);
        let replication = fixture.get("secrets/db-replication").await;
        assert_ne!(secret["data"]["password"], replication["data"]["password"]);
        let set = fixture.get("statefulsets/db").await;
        for stays in [&secret, &replication, &set["spec"]["volumeClaimTemplates"][0]] {
            assert_eq!(stays["metadata"]["annotations"], not_pruned());
        }

        roll_out(fixture).await;
        wrote(fixture, &[STATUS]).await;
        let reported = fixture.get("databases/db").await;
        assert_eq!(condition(&reported, "Ready").unwrap()["reason"], "AllInstancesReady");
        assert_eq!(reported["status"]["version"], "15.4");
        assert_eq!(reported["status"]["primary"], "db-0");
        assert_eq!(reported["status"]["readyInstances"], 2);

        // A new size changes a file, and no Pod.
        fixture.patch("databases/db", json!({"spec": {"size": 3}})).await;
        wrote(fixture, &["PATCH configmaps/db-scripts 200", "PATCH statefulsets/db 200", STATUS]).await;
        assert_eq!(fixture.get("configmaps/db-scripts").await["data"]["size"], "3");
        roll_out(fixture).await;
        wrote(fixture, &[STATUS]).await;

        // A new minor version.
        fixture.patch("databases/db", json!({"spec": {"version": "15.12"}})).await;
        wrote(fixture, &["PATCH statefulsets/db 200", STATUS]).await;
        assert_eq!(image(fixture).await, "postgres:15.12");
        assert_eq!(fixture.get("databases/db").await["status"]["version"], "15.4");
        roll_out(fixture).await;
        wrote(fixture, &[STATUS]).await;
        assert_eq!(fixture.get("databases/db").await["status"]["version"], "15.12");

        // Of a CronJob that is in no watch, the operator asks after a change of the spec alone.
        let is_question = |record: &Record| record.method == "GET" && record.path.contains("/cronjobs/db-backup?");
        let questions = fixture.records().await.into_iter().filter(is_question).count();
        assert!(!fixture.is_embedded() || questions == 2, "{questions}");

        // Drift. Fields of other writers stay.
        let resources = json!([{"name": "postgres", "resources": {"limits": {"memory": "2Gi"}}}]);
        let template = json!({"spec": {"containers": resources}});
        let policy = json!({"whenDeleted": "Delete", "whenScaled": "Delete"});
        let edited = json!({"spec": {"template": template, "persistentVolumeClaimRetentionPolicy": policy}});
        let path = fixture.path("statefulsets/db");
        let strategic = "application/strategic-merge-patch+json";
        fixture.send(http::Method::PATCH, &path, strategic, &edited).await.unwrap();
        // While the claims would be deleted with the StatefulSet, the Database has its finalizer.
        wrote(fixture, &[FINALIZER, "PATCH statefulsets/db 200", FINALIZER, STATUS]).await;
        roll_out(fixture).await;
        wrote(fixture, &[STATUS]).await;
        let set = fixture.get("statefulsets/db").await;
        assert_eq!(set["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["memory"], "2Gi");
        assert_eq!(set["spec"]["persistentVolumeClaimRetentionPolicy"]["whenDeleted"], "Retain");

        // Our fields are gone, or have another form. The patch was refused for ever.
        let wanted = set["spec"]["template"]["spec"]["containers"][0].clone();
        let path = |field: &str| format!("/spec/template/spec/containers/0/{field}");
        let edited = json!([
            {"op": "replace", "path": path("securityContext"), "value": {"privileged": true}},
            {"op": "replace", "path": path("lifecycle/preStop"), "value": {"sleep": {"seconds": 1}}},
            {"op": "remove", "path": path("command")},
            {"op": "remove", "path": path("env")},
        ]);
        fixture.edit("statefulsets/db", edited).await;
        wrote(fixture, &["PATCH statefulsets/db 200", STATUS]).await;
        let container =
            fixture.get("statefulsets/db").await["spec"]["template"]["spec"]["containers"][0].clone();
        assert_eq!(container, wanted);

        // A name would mean the first container with a port of that name, such as a sidecar's.
        assert_eq!(fixture.get("services/db").await["spec"]["ports"][0]["targetPort"], 5432);
        fixture.delete("services/db-ro").await;
        wrote(fixture, &["POST services 201"]).await;

        // The StatefulSet of an earlier version of the operator, whose template of claims has no annotation.
        drop(running);
        let mut earlier = fixture.get("statefulsets/db").await;
        fixture.delete("statefulsets/db").await;
        earlier["metadata"]["resourceVersion"].take();
        earlier["spec"]["volumeClaimTemplates"][0]["metadata"]["annotations"].take();
        fixture.create("statefulsets", &earlier).await;
        let _running = start(fixture);
        fixture.patch("databases/db", json!({"spec": {"size": 2}})).await;
        wrote(fixture, &["PATCH configmaps/db-scripts 200", "PATCH statefulsets/db 200", STATUS]).await;
    })
    .await;
}

/// The schema refuses what it can. A downgrade is one from the version that runs: what was never reached can be taken back.
#[tokio::test]
async fn the_schema_refuses_wrong_sizes_versions_and_less_storage() {
    on_both(async |fixture| {
        let path = fixture.path("databases");
        for (spec, field) in [
            (json!({"size": 0, "version": "15"}), "spec.size"),
            (json!({"size": 11, "version": "15"}), "spec.size"),
            (json!({"size": 1}), "spec.version"),
            (json!({"size": 1, "version": "latest"}), "spec.version"),
            (json!({"size": 1, "version": "15.x"}), "spec.version"),
            (json!({"size": 1, "version": "15.04"}), "spec.version"),
            (json!({"size": 1, "version": "9.6"}), "spec.version"),
            (json!({"size": 1, "version": "15", "storage": "1G"}), "spec.storage"),
            (json!({"size": 1, "version": "15", "storage": "0Gi"}), "spec.storage"),
            (json!({"size": 1, "version": "15", "deletionPolicy": "Keep"}), "spec.deletionPolicy"),
            (json!({"size": 1, "version": "15", "maxLagSeconds": 9}), "spec.maxLagSeconds"),
            (json!({"size": 1, "version": "15", "tls": {"secretName": "-"}}), "spec.tls.secretName"),
            (json!({"size": 1, "version": "15", "restoreFrom": {}}), "spec.restoreFrom.database"),
            (
                json!({"size": 1, "version": "15", "backup": {"schedule": "TZ=Europe/Berlin 0 3 * * *"}}),
                "set spec.backup.timeZone",
            ),
            (
                json!({"size": 1, "version": "15", "restoreFrom": {"database": "db", "dump": "../a.dump"}}),
                "spec.restoreFrom.dump",
            ),
        ] {
            let error = fixture.try_create(&path, &database(spec)).await.unwrap_err();
            assert_eq!(error.code(), Some(422), "{error}");
            assert!(error.to_string().contains(field), "{error}");
        }
        let mut confusing = database(json!({"size": 1, "version": "15"}));
        confusing["metadata"]["name"] = json!("db-replication");
        let error = fixture.try_create(&path, &confusing).await.unwrap_err();
        assert!(error.to_string().contains("another name"), "{error}");
        fixture.create("databases", &database(json!({"size": 1, "version": "15.9", "storage": "9Gi"}))).await;
        let update = async |spec: Value| {
            let (path, patch) = (fixture.path("databases/db"), json!({ "spec": spec }));
            fixture.send(http::Method::PATCH, &path, "application/merge-patch+json", &patch).await
        };
        update(json!({"storage": "10Gi"})).await.unwrap();
        let error = update(json!({"storage": "9Gi"})).await.unwrap_err();
        assert!(error.to_string().contains("storage can only grow"), "{error}");

        let error = update(json!({"storageClassName": "fast"})).await.unwrap_err();
        assert!(error.to_string().contains("storageClassName is for a new Database"), "{error}");

        let message = "restoreFrom is for a new Database";
        let error = update(json!({"restoreFrom": {"database": "old"}})).await.unwrap_err();
        assert!(error.to_string().contains(message), "{error}");
        let mut restored = database(json!({"size": 1, "version": "15", "restoreFrom": {"database": "old"}}));
        restored["metadata"]["name"] = json!("restored");
        fixture.create("databases", &restored).await;
        for from in [Value::Null, json!({"database": "other"}), json!({"dump": "a.dump"})] {
            let (path, patch) = (fixture.path("databases/restored"), json!({"spec": {"restoreFrom": from}}));
            let patched =
                fixture.send(http::Method::PATCH, &path, "application/merge-patch+json", &patch).await;
            let error = patched.unwrap_err();
            assert!(error.to_string().contains(message), "{error}");
        }

        for version in ["15.8", "15.9"] {
            update(json!({"version": version})).await.unwrap();
        }
        fixture.patch("databases/db/status", json!({"status": {"version": "15.9"}})).await;
        for newer in ["15.9", "15.10", "15", "15.9", "16.0", "16.10"] {
            update(json!({"version": newer})).await.unwrap();
        }
        fixture.patch("databases/db/status", json!({"status": {"version": "16.10"}})).await;
        for older in ["15.11", "16.9", "15"] {
            let error = update(json!({"version": older})).await.unwrap_err();
            assert!(error.to_string().contains("older than status.version"), "{older}: {error}");
        }
    })
    .await;
}

#[tokio::test]
async fn another_major_version_is_refused_and_the_running_one_stays() {
    on_both(async |fixture| {
        let running = start(fixture);
        // Until a version runs, the claims may have the data of another one.
        fixture.create("databases", &database(json!({"size": 1, "version": "16"}))).await;
        wrote(fixture, &CREATED).await;
        fixture.patch("databases/db", json!({"spec": {"version": "15.4"}})).await;
        wrote(fixture, &["PATCH statefulsets/db 200", STATUS]).await;
        assert_eq!(image(fixture).await, "postgres:15.4");
        roll_out(fixture).await;
        wrote(fixture, &[STATUS]).await;
        // The image that another writer sets is not the version of the data.
        for edited in ["postgres:16.1", "postgres@sha256:00", "postgres:15.5"] {
            let containers =
                json!([{"op": "replace", "path": "/spec/template/spec/containers/0/image", "value": edited}]);
            let path = fixture.path("statefulsets/db");
            fixture
                .send(http::Method::PATCH, &path, "application/json-patch+json", &containers)
                .await
                .unwrap();
            wrote(fixture, &["PATCH statefulsets/db 200", STATUS]).await;
            assert_eq!(image(fixture).await, "postgres:15.4");
            roll_out(fixture).await;
            wrote(fixture, &[STATUS]).await;
        }
        fixture.patch("databases/db", json!({"spec": {"version": "16.1", "size": 2}})).await;
        wrote(fixture, &["PATCH configmaps/db-scripts 200", "PATCH statefulsets/db 200", STATUS]).await;
        let reported = fixture.get("databases/db").await;
        let stalled = condition(&reported, "Stalled").unwrap();
        assert_eq!(stalled["reason"], "UnsupportedVersion");
        assert!(stalled["message"].as_str().unwrap().contains("restoreFrom"), "{stalled}");
        assert_eq!(condition(&reported, "Ready").unwrap()["reason"], "UnsupportedVersion");
        assert_eq!(image(fixture).await, "postgres:15.4");
        // Not even if the StatefulSet is gone.
        roll_out(fixture).await;
        wrote(fixture, &[STATUS]).await;
        drop(running);
        fixture.delete("statefulsets/db").await;
        let _running = start(fixture);
        fixture.until("statefulsets/db", |set| set["spec"]["replicas"] == 2).await;
        assert_eq!(image(fixture).await, "postgres:15.4");
        fixture.patch("databases/db", json!({"spec": {"version": "15.5"}})).await;
        fixture.until("databases/db", |database| condition(database, "Stalled").is_none()).await;
        assert_eq!(image(fixture).await, "postgres:15.5");
    })
    .await;
}

/// The schema once refused each status after that, because its version was newer than that of the spec.
#[tokio::test]
async fn an_older_major_version_before_the_first_status_is_a_condition() {
    on_both(async |fixture| {
        let running = start(fixture);
        fixture.create("databases", &database(json!({"size": 1, "version": "16.0"}))).await;
        wrote(fixture, &CREATED).await;
        drop(running);
        roll_out(fixture).await;
        fixture.patch("databases/db", json!({"spec": {"version": "15.4"}})).await;
        let _running = start(fixture);
        wrote(fixture, &[STATUS]).await;
        let reported = fixture.get("databases/db").await;
        assert_eq!(condition(&reported, "Stalled").unwrap()["reason"], "UnsupportedVersion");
        assert_eq!(reported["status"]["version"], "16.0");
        assert_eq!(image(fixture).await, "postgres:16.0");
    })
    .await;
}

/// For each point at which a kill can interrupt the writes of a new object: the next start writes the rest, and no second password.
#[tokio::test]
async fn an_operator_that_was_killed_between_two_writes_writes_the_rest() {
    on_both(async |fixture| {
        let running = start(fixture);
        let created = fixture.create("databases", &database(json!({"size": 1, "version": "15"}))).await;
        wrote(fixture, &CREATED).await;
        drop(running);
        let before = data(fixture).await;
        let children = [
            "configmaps/db-scripts",
            "poddisruptionbudgets/db",
            "services/db",
            "services/db-ro",
            "statefulsets/db",
        ];
        for missing in 0..1 << children.len() {
            let mut rest = vec![STATUS.to_owned()];
            for (index, child) in children.into_iter().enumerate() {
                if missing & (1 << index) != 0 {
                    fixture.delete(child).await;
                    rest.push(format!("POST {} 201", child.split_once('/').unwrap().0));
                }
            }
            fixture.patch("databases/db/status", json!({"status": null})).await;
            let running = start(fixture);
            wrote(fixture, &rest.iter().map(String::as_str).collect::<Vec<_>>()).await;
            drop(running);
        }
        assert_eq!(data(fixture).await, before);

        // Killed before the second Secret: the first one stays.
        fixture.delete("secrets/db-replication").await;
        fixture.patch("databases/db/status", json!({"status": null})).await;
        let running = start(fixture);
        wrote(fixture, &["POST secrets 201", STATUS]).await;
        drop(running);
        assert!(data(fixture).await.contains(&before[0]));

        // Nothing is left to write but the answer to a change that comes after the start.
        let running = start(fixture);
        fixture.patch("databases/db", json!({"spec": {"version": "15.1"}})).await;
        wrote(fixture, &["PATCH statefulsets/db 200", STATUS]).await;
        drop(running);
        for (resource, number) in [("statefulsets", 1), ("services", 2), ("configmaps", 1), ("secrets", 0)] {
            let list = fixture.get(resource).await;
            let is_owned =
                |child: &&Value| child["metadata"]["ownerReferences"][0]["uid"] == created["metadata"]["uid"];
            let owned = list["items"].as_array().unwrap().iter().filter(is_owned).count();
            assert_eq!(owned, number, "{resource}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_secret_of_a_user_is_used_and_stays_as_it_is() {
    on_both(async |fixture| {
        let owner =
            json!({"apiVersion": "app.example.com/v1", "kind": "Database", "name": "db", "uid": "earlier"});
        let labels = json!({"app.kubernetes.io/instance": "db"});
        let secret = json!({
            "metadata": {"name": "db", "labels": labels, "ownerReferences": [owner]}, "type": "kubernetes.io/basic-auth",
            "stringData": {"username": "owner", "password": "chosen"},
        });
        fixture.create("secrets", &secret).await;
        let before = fixture.get("secrets/db").await;
        let _running = start(fixture);
        let spec = json!({"size": 1, "version": "15", "deletionPolicy": "Delete"});
        fixture.create("databases", &database(spec)).await;
        wrote(fixture, &[&[FINALIZER], &CREATED[1..]].concat()).await;
        assert_eq!(fixture.get("secrets/db").await, before);
        fixture.delete("databases/db").await;
        fixture.until_gone("databases/db").await;
        assert_eq!(fixture.get("secrets/db").await, before);
    })
    .await;
}

/// A copy of a claim or Secret, made from its YAML, has its labels. Such a claim counted as the data of an earlier Database, grew, and was
/// deleted with the Database; such a Secret, too.
#[tokio::test]
async fn a_copy_with_the_labels_of_a_claim_or_secret_stays_as_it_is() {
    const CLAIMS: [&str; 5] = ["data-db-0-safe", "data-db-01", "data-db-10", "data-db-20261127", "safe"];
    on_both(async |fixture| {
        for claim in CLAIMS {
            create_claim(fixture, claim).await;
            let bound = json!({"status": {"phase": "Bound"}});
            fixture.patch(&format!("persistentvolumeclaims/{claim}/status"), bound).await;
        }
        let labels = json!({
            "app.kubernetes.io/instance": "other", "app.kubernetes.io/managed-by": "database-operator",
        });
        let secret =
            json!({"metadata": {"name": "db", "labels": labels}, "stringData": {"password": "chosen"}});
        fixture.create("secrets", &secret).await;
        let all = async || {
            let mut all = vec![fixture.get("secrets/db").await];
            for claim in CLAIMS {
                all.push(fixture.get(&format!("persistentvolumeclaims/{claim}")).await);
            }
            all
        };
        let before = all().await;
        let _running = start(fixture);
        let spec = json!({"size": 1, "version": "15", "storage": "2Gi", "deletionPolicy": "Delete"});
        fixture.create("databases", &database(spec)).await;
        fixture.until("statefulsets/db", |_| true).await;
        roll_out(fixture).await;
        fixture.until("databases/db", is_ready).await;
        fixture.delete("databases/db").await;
        fixture.until_gone("databases/db").await;
        assert_eq!(all().await, before);
    })
    .await;
}

#[tokio::test]
async fn tls_refuses_other_connections_and_a_missing_certificate_is_a_condition() {
    on_both(async |fixture| {
        let running = start(fixture);
        let spec = json!({"size": 1, "version": "15", "tls": {"secretName": "certificate"}});
        fixture.create("databases", &database(spec)).await;
        wrote(fixture, &CREATED).await;
        let reported = fixture.get("databases/db").await;
        let ready = condition(&reported, "Ready").unwrap();
        assert_eq!(ready["reason"], "SecretNotFound");
        assert!(ready["message"].as_str().unwrap().contains("no Secret certificate: create it"), "{ready}");

        let files = fixture.get("configmaps/db-scripts").await["data"].take();
        let remote = files["pg_hba.conf"].as_str().unwrap().lines().filter(|line| line.starts_with("host"));
        let remote: Vec<_> = remote.collect();
        assert!(remote.iter().all(|line| line.starts_with("hostssl ")), "{remote:?}");
        assert!(remote.iter().any(|line| line.contains("10.0.0.0/8")), "{remote:?}");
        let uri = fixture.get("secrets/db").await["data"]["uri"].take();
        let uri = BASE64_STANDARD.decode(uri.as_str().unwrap()).unwrap();
        assert!(uri.ends_with(b"/app?sslmode=require"));

        let secret =
            json!({"metadata": {"name": "certificate"}, "stringData": {"tls.crt": "", "tls.key": ""}});
        fixture.create("secrets", &secret).await;
        roll_out(fixture).await;
        // The operator may have looked for the Secret before the rollout, and reported that.
        fixture.until("databases/db", is_ready).await;
        fixture.transcript().await;

        // When all instances are ready, the operator no longer looks for it.
        drop(running);
        let seen = fixture.records().await.len();
        let _running = start(fixture);
        fixture.patch("databases/db", json!({"spec": {"deletionPolicy": "Delete"}})).await;
        wrote(fixture, &[FINALIZER, STATUS]).await;
        let is_look = |record: &Record| record.path.contains("/secrets/certificate?");
        assert!(!fixture.records().await[seen..].iter().any(is_look));

        for tls in [json!(null), json!({"secretName": "another"})] {
            let (path, patch) = (fixture.path("databases/db"), json!({"spec": {"tls": tls}}));
            let error =
                fixture.send(http::Method::PATCH, &path, "application/merge-patch+json", &patch).await;
            assert!(error.unwrap_err().to_string().contains("tls cannot be changed"));
        }
    })
    .await;
}

/// Each Database had the finalizer. `kubectl delete -k manifests/database` deletes the operator first, and then waited for ever.
#[tokio::test]
async fn a_database_has_the_finalizer_while_something_is_to_be_done_at_its_end() {
    on_both(async |fixture| {
        let running = start(fixture);
        fixture.create("databases", &database(json!({"size": 1, "version": "15"}))).await;
        wrote(fixture, &CREATED).await;
        let patched = async |spec: Value, written: &[&str], finalizers: Value| {
            fixture.patch("databases/db", json!({ "spec": spec })).await;
            wrote(fixture, &[&[FINALIZER, STATUS], written].concat()).await;
            let database = fixture.get("databases/db").await;
            assert_eq!(database["metadata"]["finalizers"], finalizers, "{spec}");
        };
        let ours = || json!(["app.example.com/database"]);
        patched(json!({"deletionPolicy": "Delete"}), &[], ours()).await;
        patched(json!({"deletionPolicy": "Retain"}), &[], Value::Null).await;
        let (backup, written) =
            (json!({"schedule": "0 3 * * *"}), ["POST persistentvolumeclaims 201", "POST cronjobs 201"]);
        patched(json!({ "backup": backup }), &written, ours()).await;
        patched(json!({"backup": null}), &["DELETE cronjobs/db-backup 200"], Value::Null).await;
        drop(running);

        // A Database of an earlier version of the operator.
        let both = json!(["example.com/wait", "app.example.com/database"]);
        fixture.patch("databases/db", json!({"metadata": {"finalizers": both}})).await;
        let running = start(fixture);
        wrote(fixture, &[FINALIZER]).await;
        let database = fixture.get("databases/db").await;
        assert_eq!(database["metadata"]["finalizers"], json!(["example.com/wait"]));
        drop(running);
        fixture.patch("databases/db", json!({"metadata": {"finalizers": null}})).await;

        // While the claims would be deleted with the StatefulSet.
        create_claim(fixture, "data-db-0").await;
        let set = fixture.get("statefulsets/db").await;
        let owner = json!([{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db", "uid": set["metadata"]["uid"]}]);
        let owned_by = |owners: Value| json!({"metadata": {"ownerReferences": owners}});
        fixture.patch("persistentvolumeclaims/data-db-0", owned_by(owner)).await;
        let policy = json!({"persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Delete"}});
        fixture.patch("statefulsets/db", json!({ "spec": policy })).await;
        let running = start(fixture);
        wrote(fixture, &[FINALIZER, "PATCH statefulsets/db 200"]).await;
        assert_eq!(fixture.get("databases/db").await["metadata"]["finalizers"], ours());
        fixture.patch("persistentvolumeclaims/data-db-0", owned_by(json!(null))).await;
        wrote(fixture, &[FINALIZER]).await;
        drop(running);

        // No operator runs.
        fixture.delete("databases/db").await;
        fixture.until_gone("databases/db").await;
    })
    .await;
}

/// What has data. One claim is that of an instance that was scaled away.
const DATA: [&str; 5] = [
    "secrets/db",
    "secrets/db-replication",
    "persistentvolumeclaims/data-db-0",
    "persistentvolumeclaims/data-db-7",
    "persistentvolumeclaims/db-backups",
];

/// The kinds of the owners of each.
async fn owners(fixture: &Fixture) -> Vec<Vec<Value>> {
    let mut all = Vec::new();
    for object in DATA {
        let owners = fixture.get(object).await["metadata"]["ownerReferences"].take();
        let owners = owners.as_array().cloned().unwrap_or_default();
        let blocks = |owner: &Value| owner["controller"] == true || owner["blockOwnerDeletion"] == true;
        assert!(!owners.iter().any(blocks), "{object}: {owners:?}");
        all.push(owners.into_iter().map(|mut owner| owner["kind"].take()).collect());
    }
    all
}

const NOT_OWNED: [&[&str]; 5] = [&["Node"], &[], &[], &[], &[]];
const OWNED: [&[&str]; 5] = [&["Node", "Database"], &["Database"], &["Database"], &["Database"], &[]];

/// Creates a Database with backups, and what its StatefulSet and the user would create.
async fn with_data(fixture: &Fixture, policy: &str) -> Running {
    let running = start(fixture);
    let backup = json!({"schedule": "0 3 * * *"});
    let spec = json!({"size": 1, "version": "15", "deletionPolicy": policy, "backup": backup});
    fixture.create("databases", &database(spec)).await;
    fixture.until("databases/db", |database| condition(database, "Ready").is_some()).await;
    for claim in ["data-db-0", "data-db-7"] {
        if fixture.find(&format!("persistentvolumeclaims/{claim}")).await.is_none() {
            create_claim(fixture, claim).await;
        }
    }
    let node = json!([{"apiVersion": "v1", "kind": "Node", "name": "db", "uid": "u"}]);
    fixture.patch("secrets/db", json!({"metadata": {"ownerReferences": node}})).await;
    roll_out(fixture).await;
    fixture.until("databases/db", is_ready).await;
    fixture.transcript().await;
    running
}

/// [`with_data`], and deleted: its last backup runs.
async fn deleted(fixture: &Fixture, policy: &str) -> Running {
    let running = with_data(fixture, policy).await;
    fixture.delete("databases/db").await;
    wrote(fixture, &["POST jobs 201", STATUS]).await;
    running
}

/// Only the policy at the very end counts. The garbage collector deletes what is owned.
#[tokio::test]
async fn data_gets_an_owner_only_at_the_end_and_only_if_the_deletion_policy_says_so() {
    let not_retained =
        || json!({"spec": {"persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Delete"}}});
    let is_retained = |written: Vec<String>| written.iter().any(|line| line == "PATCH statefulsets/db 200");
    on_both(async move |fixture| {
        for (policy, last, expected) in
            [("Delete", "Retain", NOT_OWNED), ("Retain", "Delete", OWNED), ("Delete", "Delete", OWNED)]
        {
            let running = with_data(fixture, policy).await;
            assert_eq!(owners(fixture).await, NOT_OWNED, "while it lives");
            drop(running);
            fixture.patch("statefulsets/db", not_retained()).await;
            fixture.delete("databases/db").await;
            let spec = json!({"deletionPolicy": last, "backup": null});
            fixture.patch("databases/db", json!({ "spec": spec })).await;
            let _running = start(fixture);
            fixture.until_gone("databases/db").await;
            fixture.until_gone("statefulsets/db").await;
            assert_eq!(owners(fixture).await, expected, "{policy}, then {last}");
            assert_eq!(
                is_retained(fixture.transcript().await),
                last == "Retain",
                "only then do the claims stay"
            );
            // Nothing collects garbage here: the next Database takes the data over, and it has one owner less. The ownerReference
            // of an earlier Database once stayed, and the garbage collector deleted the data of its successor.
        }

        // With `kubectl delete --cascade=orphan`, the Pods go on with their data.
        let running = with_data(fixture, "Delete").await;
        fixture.patch("databases/db", json!({"spec": {"backup": null}})).await;
        wrote(fixture, &["DELETE cronjobs/db-backup 200", STATUS]).await;
        drop(running);
        fixture.patch("statefulsets/db", not_retained()).await;
        let (path, orphan) = (fixture.path("databases/db"), json!({"propagationPolicy": "Orphan"}));
        fixture.send(http::Method::DELETE, &path, "application/json", &orphan).await.unwrap();
        let _running = start(fixture);
        let is_released = |database: &Value| database["metadata"]["finalizers"] == json!(["orphan"]);
        fixture.until("databases/db", is_released).await;
        assert_eq!(owners(fixture).await, NOT_OWNED);
        assert!(!is_retained(fixture.transcript().await), "it is the user's from now on");
    })
    .await;
}

#[tokio::test]
async fn a_deleted_database_waits_for_a_last_backup() {
    on_both(async |fixture| {
        let running = deleted(fixture, "Delete").await;
        let reason = |database: &Value, name: &str| condition(database, name).unwrap()["reason"].clone();
        let reported = fixture.get("databases/db").await;
        assert_eq!(reason(&reported, "Ready"), "LastBackupRunning");
        assert_eq!(reason(&reported, "BackupSucceeded"), "LastBackupRunning");
        let (job, cron_job) =
            (fixture.get("jobs/db-last-backup").await, fixture.get("cronjobs/db-backup").await);
        assert_eq!(
            job["spec"]["template"]["spec"],
            cron_job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
        );

        // One that fails, while no operator runs.
        drop(running);
        end(fixture, "db-last-backup", "Failed").await;
        let running = start(fixture);
        wrote(fixture, &[STATUS]).await;
        let reported = fixture.get("databases/db").await;
        let stalled = condition(&reported, "Stalled").unwrap();
        assert_eq!(stalled["reason"], "LastBackupFailed");
        assert_eq!(reason(&reported, "BackupSucceeded"), "LastBackupFailed");
        assert!(stalled["message"].as_str().unwrap().contains("Delete this Job to try again"), "{stalled}");
        assert_eq!(owners(fixture).await, NOT_OWNED);

        // The user lets it try again.
        fixture.delete_with("jobs/db-last-backup", json!({"propagationPolicy": "Background"})).await;
        wrote(fixture, &["POST jobs 201", STATUS]).await;
        drop(running);
        let _running = start(fixture);
        end(fixture, "db-last-backup", "Complete").await;
        fixture.until_gone("databases/db").await;
        fixture.until_gone("jobs/db-last-backup").await;
        assert_eq!(owners(fixture).await, OWNED);
    })
    .await;
}

/// As with the admission plugin OwnerReferencesPermissionEnforcement. The Database waited for ever, and only the log said why.
#[tokio::test]
async fn data_that_cannot_get_an_owner_is_a_condition() {
    on_each_of(&[Kind::InProcess], async |fixture| {
        let _running = with_data(fixture, "Delete").await;
        fixture.patch("databases/db", json!({"spec": {"backup": null}})).await;
        wrote(fixture, &["DELETE cronjobs/db-backup 200", STATUS]).await;
        fixture.may_be_forbidden.set(true);
        fixture.embedded().fault(Fault::Forbidden(Vec::new()).on("PATCH", "/persistentvolumeclaims"));
        fixture.delete("databases/db").await;
        let says = |text: &Value| {
            let text = text.as_str().unwrap_or_default();
            text.contains("/data-db-0: 403") && text.contains("a new owner needs the verb delete: grant")
        };
        let is_reported = |database: &Value| {
            condition(database, "Stalled")
                .is_some_and(|stalled| stalled["reason"] == "Forbidden" && says(&stalled["message"]))
        };
        fixture.until("databases/db", is_reported).await;
        let is_noted =
            |events: &Value| events["items"].as_array().unwrap().iter().any(|one| says(&one["note"]));
        fixture.until("events", is_noted).await;
        fixture.embedded().end_faults();
        fixture.until_gone("databases/db").await;
        assert_eq!(owners(fixture).await, OWNED);
    })
    .await;
}

/// Replaces the permissions of the operator, and waits until they are in force.
async fn allow_patches_of_secrets(fixture: &Fixture, are_allowed: bool) {
    let mut rules = in_process::rules(BuiltIn::Database);
    let of_secrets =
        rules.as_array_mut().unwrap().iter_mut().find(|rule| rule["resources"] == json!(["secrets"]));
    if !are_allowed {
        of_secrets.unwrap()["verbs"].as_array_mut().unwrap().retain(|verb| verb != "patch");
    }
    if fixture.is_embedded() {
        return fixture.allow_only(&rules).await;
    }
    fixture.patch("roles/limited", json!({ "rules": rules })).await;
    let client = fixture.operators_client(&fixture.url());
    let (key, unchanged) = (Key::namespaced(&fixture.namespace, "db"), Patch::Merge(json!({})));
    eventually("the new permissions", async || {
        let is_allowed = client.patch::<Meta<Secret>>(&key, Part::Object, &unchanged).await.is_ok();
        (is_allowed == are_allowed).then_some(())
    })
    .await;
}

/// The claims had an owner before the Secrets were refused. A user who then removed the finalizer, as the documentation says, lost the
/// data.
#[tokio::test]
async fn while_a_secret_cannot_get_an_owner_no_claim_has_one() {
    on_both(async |fixture| {
        let running = with_data(fixture, "Delete").await;
        fixture.patch("databases/db", json!({"spec": {"backup": null}})).await;
        wrote(fixture, &["DELETE cronjobs/db-backup 200", STATUS]).await;
        fixture.may_be_forbidden.set(true);
        allow_patches_of_secrets(fixture, false).await;
        fixture.delete("databases/db").await;
        until_stalled(fixture, "Forbidden", "patch secrets/").await;
        assert_eq!(owners(fixture).await, NOT_OWNED);
        drop(running);

        // An operator that was killed in between leaves an owner. The next one takes it back.
        let database = fixture.get("databases/db").await;
        let owner = json!({
            "apiVersion": database["apiVersion"], "kind": "Database", "name": "db", "uid": database["metadata"]["uid"],
            "controller": false, "blockOwnerDeletion": false,
        });
        let owned = json!({"metadata": {"ownerReferences": [owner]}});
        fixture.patch("persistentvolumeclaims/data-db-0", owned).await;
        let running = start(fixture);
        let has_no_owner = |claim: &Value| claim["metadata"]["ownerReferences"].is_null();
        fixture.until("persistentvolumeclaims/data-db-0", has_no_owner).await;

        // The way out.
        fixture.patch("databases/db", json!({"metadata": {"finalizers": null}})).await;
        fixture.until_gone("databases/db").await;
        assert_eq!(owners(fixture).await, NOT_OWNED);

        // With the permission, the policy counts again.
        allow_patches_of_secrets(fixture, true).await;
        fixture.until_gone("statefulsets/db").await;
        drop(running);
    })
    .await;
}

/// Admission may refuse a write after it has allowed its dry run.
#[tokio::test]
async fn a_later_refusal_takes_the_owners_back() {
    on_each_of(&[Kind::InProcess], async |fixture| {
        let _running = with_data(fixture, "Delete").await;
        fixture.patch("databases/db", json!({"spec": {"backup": null}})).await;
        wrote(fixture, &["DELETE cronjobs/db-backup 200", STATUS]).await;
        // The first fault that applies counts: dry runs are not denied.
        fixture.embedded().fault(Fault::Delay(Duration::ZERO).on("PATCH", "dryRun=All"));
        let deny = Fault::Deny { webhook: "freeze".to_owned(), message: "not now".to_owned(), code: 403 };
        fixture.may_be_forbidden.set(true);
        fixture.embedded().fault(deny.on("PATCH", "/persistentvolumeclaims/data-db-7"));
        fixture.delete("databases/db").await;
        let is_denied = |database: &Value| {
            condition(database, "Stalled").is_some_and(|stalled| stalled["reason"] == "AdmissionDenied")
        };
        fixture.until("databases/db", is_denied).await;
        eventually("the data to have no owner", async || (owners(fixture).await == NOT_OWNED).then_some(()))
            .await;
        let written = fixture.transcript().await;
        assert!(written.contains(&"PATCH persistentvolumeclaims/data-db-0 200".to_owned()), "{written:?}");
        fixture.embedded().end_faults();
        fixture.until_gone("databases/db").await;
        assert_eq!(owners(fixture).await, OWNED);
    })
    .await;
}

/// A user or a policy had set `whenDeleted: Delete` while the last backup ran. The claims were deleted with the StatefulSet.
#[tokio::test]
async fn a_database_with_the_policy_retain_ends_only_when_its_stateful_set_retains_the_claims() {
    on_both(async |fixture| {
        drop(deleted(fixture, "Retain").await);
        let policy = json!({"persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Delete"}});
        fixture.patch("statefulsets/db", json!({ "spec": policy })).await;
        // As the StatefulSet controller would write it.
        let uid = fixture.get("statefulsets/db").await["metadata"]["uid"].take();
        let owner = json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db", "uid": uid});
        let owned_by = |owners: Value| json!({"metadata": {"ownerReferences": owners}});
        fixture.patch("persistentvolumeclaims/data-db-0", owned_by(json!([owner]))).await;
        end(fixture, "db-last-backup", "Complete").await;
        let _running = start(fixture);
        wrote(fixture, &["PATCH statefulsets/db 200", STATUS]).await;
        let reported = fixture.get("databases/db").await;
        assert_eq!(condition(&reported, "Stalled").unwrap()["reason"], "ClaimsNotRetained");
        assert!(condition(&reported, "BackupSucceeded").is_none(), "that is not why it waits");
        let set = fixture.get("statefulsets/db").await;
        assert_eq!(set["spec"]["persistentVolumeClaimRetentionPolicy"]["whenDeleted"], "Retain");
        // The StatefulSet controller removes itself only from the claims of Pods that exist. That of an instance that was scaled away kept
        // it as the owner, and the Database waited for ever.
        let observed =
            json!({"status": {"observedGeneration": set["metadata"]["generation"], "replicas": 1}});
        fixture.patch("statefulsets/db/status", observed).await;
        fixture.until_gone("databases/db").await;
        assert_eq!(owners(fixture).await, NOT_OWNED);
    })
    .await;
}

/// A copy of a claim, made from its YAML, is not data of the Database. It has the labels and the owner, and goes with the StatefulSet.
#[tokio::test]
async fn a_claim_of_a_user_that_the_stateful_set_owns_is_named_before_it_is_deleted() {
    on_both(async |fixture| {
        drop(deleted(fixture, "Retain").await);
        let set = fixture.get("statefulsets/db").await;
        let mut copy = fixture.get("persistentvolumeclaims/data-db-0").await;
        let owner = json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db", "uid": set["metadata"]["uid"]});
        copy["metadata"] = json!({"name": "data-db-0-safe", "labels": copy["metadata"]["labels"], "ownerReferences": [owner]});
        fixture.user.create("persistentvolumeclaims", &copy).await;
        end(fixture, "db-last-backup", "Complete").await;
        let _running = start(fixture);
        let is_named = |database: &Value| {
            condition(database, "Stalled").is_some_and(|one| {
                one["reason"] == "ClaimsNotRetained" && one["message"].as_str().unwrap().contains("data-db-0-safe")
            })
        };
        fixture.until("databases/db", is_named).await;
        let free = json!({"metadata": {"ownerReferences": null}});
        fixture.patch("persistentvolumeclaims/data-db-0-safe", free).await;
        fixture.until_gone("databases/db").await;
    })
    .await;
}

/// Only the log said why the Database did not end.
#[tokio::test]
async fn a_stateful_set_that_may_not_be_made_to_retain_the_claims_is_a_condition() {
    on_each_of(&[Kind::InProcess], async |fixture| {
        drop(deleted(fixture, "Retain").await);
        let policy = json!({"persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Delete"}});
        fixture.patch("statefulsets/db", json!({ "spec": policy })).await;
        end(fixture, "db-last-backup", "Complete").await;
        fixture.may_be_forbidden.set(true);
        fixture.embedded().fault(Fault::Forbidden(Vec::new()).on("PATCH", "/statefulsets/db"));
        let _running = start(fixture);
        let is_reported = |database: &Value| {
            let stalled = condition(database, "Stalled");
            stalled.is_some_and(|one| {
                one["reason"] == "ClaimsNotRetained" && one["message"].as_str().unwrap().contains("403")
            })
        };
        fixture.until("databases/db", is_reported).await;
        fixture.embedded().end_faults();
        fixture.until_gone("databases/db").await;
        assert_eq!(owners(fixture).await, NOT_OWNED);
    })
    .await;
}

/// The garbage collector takes the owner of the Job away if a user deletes with `--cascade=orphan` while the last backup runs. The
/// Database then waited until somebody deleted the Job.
#[tokio::test]
async fn a_last_backup_that_lost_its_owner_still_counts() {
    on_both(async |fixture| {
        drop(deleted(fixture, "Retain").await);
        fixture.patch("jobs/db-last-backup", json!({"metadata": {"ownerReferences": null}})).await;
        end(fixture, "db-last-backup", "Complete").await;
        let _running = start(fixture);
        fixture.until_gone("databases/db").await;
        assert_eq!(owners(fixture).await, NOT_OWNED);
    })
    .await;
}

#[tokio::test]
async fn a_last_backup_that_is_refused_at_first_is_made_later_with_its_claim() {
    on_each_of(&[Kind::InProcess], async |fixture| {
        drop(with_data(fixture, "Delete").await);
        delete_claim(fixture, "db-backups").await;
        fixture.delete("databases/db").await;
        fixture.may_be_forbidden.set(true);
        fixture.embedded().fault(Fault::Quota("few".to_owned()).on("POST", "/jobs").times(1));
        let _running = start(fixture);
        let refused = ["POST persistentvolumeclaims 201", "POST jobs 403", STATUS];
        wrote(fixture, &[&refused[..], &["POST jobs 201", STATUS]].concat()).await;
    })
    .await;
}

/// It has no label of the operator, which then reads it.
#[tokio::test]
async fn the_job_of_a_user_is_not_the_last_backup() {
    on_both(async |fixture| {
        drop(with_data(fixture, "Delete").await);
        fixture.delete("databases/db").await;
        let container = json!({"name": "c", "image": "postgres"});
        let template = json!({"spec": {"containers": [container], "restartPolicy": "Never"}});
        let job = json!({"metadata": {"name": "db-last-backup"}, "spec": {"template": template}});
        fixture.create("jobs", &job).await;
        end(fixture, "db-last-backup", "Complete").await;
        let _running = start(fixture);
        let problem = "the Job db-last-backup exists, and is not of this Database: delete it";
        let is_reported = |database: &Value| {
            condition(database, "Stalled").is_some_and(|stalled| stalled["message"] == problem)
        };
        fixture.until("databases/db", is_reported).await;
        let is_noted =
            |events: &Value| events["items"].as_array().unwrap().iter().any(|one| one["note"] == problem);
        fixture.until("events", is_noted).await;
        assert_eq!(owners(fixture).await, NOT_OWNED);

        // Looked at again, it is no news.
        fixture.patch("databases/db", json!({"spec": {"size": 2}})).await;
        let is_seen =
            |database: &Value| database["status"]["observedGeneration"] == database["metadata"]["generation"];
        fixture.until("databases/db", is_seen).await;
        fixture.patch("databases/db", json!({"spec": {"backup": null}})).await;
        fixture.until_gone("databases/db").await;
        let events = fixture.get("events").await;
        let noted = events["items"].as_array().unwrap().iter().filter(|one| one["note"] == problem);
        assert_eq!(noted.map(|one| &one["series"]).collect::<Vec<_>>(), [&Value::Null]);
    })
    .await;
}

/// If no last backup can be made, the data stays, whatever the deletion policy is.
#[tokio::test]
async fn without_its_last_backup_a_database_ends_only_if_none_can_be_made() {
    on_both(async |fixture| {
        // A user decides.
        let running = deleted(fixture, "Delete").await;
        end(fixture, "db-last-backup", "Failed").await;
        wrote(fixture, &[STATUS]).await;
        fixture.patch("databases/db", json!({"spec": {"backup": null}})).await;
        fixture.until_gone("databases/db").await;
        fixture.until_gone("statefulsets/db").await;
        fixture.until_gone("jobs/db-last-backup").await;
        assert_eq!(owners(fixture).await, OWNED);
        drop(running);

        // In the foreground, the garbage collector deletes the Pods before the Database.
        let running = with_data(fixture, "Delete").await;
        assert_eq!(owners(fixture).await[2], Vec::<Value>::new());
        let path = fixture.path("databases/db");
        let foreground = json!({"propagationPolicy": "Foreground"});
        fixture.send(http::Method::DELETE, &path, "application/json", &foreground).await.unwrap();
        let is_released =
            |database: &Value| database["metadata"]["finalizers"] == json!(["foregroundDeletion"]);
        fixture.until("databases/db", is_released).await;
        assert_eq!(owners(fixture).await[1..4], NOT_OWNED[1..4]);
        // What the garbage collector would do.
        fixture.patch("databases/db", json!({"metadata": {"finalizers": null}})).await;
        fixture.until_gone("statefulsets/db").await;
        drop(running);

        // In a namespace that is being deleted, nothing can be created.
        let _running = with_data(fixture, "Delete").await;
        fixture.may_be_forbidden.set(true);
        let namespace = format!("/api/v1/namespaces/{}", fixture.namespace);
        fixture.send(http::Method::DELETE, &namespace, "application/json", &json!({})).await.unwrap();
        if fixture.find("databases/db").await.is_some() {
            fixture.delete("databases/db").await;
        }
        fixture.until_gone("databases/db").await;
    })
    .await;
}

/// The Pod of the primary, which accepts connections.
async fn create_primary(fixture: &Fixture) {
    let labels = json!({
        "app.kubernetes.io/name": "postgresql", "app.kubernetes.io/instance": "db",
        "app.kubernetes.io/managed-by": "database-operator",
    });
    let spec = json!({"containers": [{"name": "postgres", "image": "postgres"}]});
    let set = fixture.get("statefulsets/db").await;
    let owner = json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db", "uid": set["metadata"]["uid"], "controller": true,
    });
    let metadata = json!({"name": "db-0", "labels": labels, "ownerReferences": [owner]});
    fixture.create("pods", &json!({"metadata": metadata, "spec": spec})).await;
    let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    fixture.patch("pods/db-0/status", ready).await;
}

/// Deletes a claim, for whose Pods its finalizer waits otherwise.
async fn delete_claim(fixture: &Fixture, name: &str) {
    let claim = format!("persistentvolumeclaims/{name}");
    fixture.delete(&claim).await;
    if fixture.find(&claim).await.is_some() {
        fixture.patch(&claim, json!({"metadata": {"finalizers": null}})).await;
    }
}

#[tokio::test]
async fn a_primary_whose_data_is_lost_does_not_begin_anew() {
    on_both(async |fixture| {
        let running = start(fixture);
        let is_lost = |database: &Value| {
            condition(database, "Stalled").is_some_and(|stalled| stalled["reason"] == "DataLost")
        };
        // Of an earlier Database, the claim of a replica is left.
        create_claim(fixture, "data-db-1").await;
        let spec = json!({
            "size": 2, "version": "15", "backup": {"schedule": "0 3 * * *"}, "deletionPolicy": "Delete",
        });
        fixture.create("databases", &database(spec.clone())).await;
        fixture.until("databases/db", is_lost).await;
        assert!(fixture.find("statefulsets/db").await.is_none());
        create_claim(fixture, "data-db-0").await;
        fixture.until("databases/db", |database| !is_lost(database)).await;
        fixture.until("statefulsets/db", |_| true).await;

        // What the scripts read, as soon as there can be rows.
        let scripts = fixture.get("configmaps/db-scripts").await;
        assert!(scripts["data"]["had-data"].is_null(), "{scripts}");
        create_primary(fixture).await;
        fixture.until("configmaps/db-scripts", |scripts| scripts["data"]["had-data"] == "").await;
        let claim = fixture.get("persistentvolumeclaims/data-db-0").await;
        let uid = &claim["metadata"]["uid"];
        fixture.until("databases/db", |database| database["status"]["primaryClaim"] == *uid).await;
        let note = "changed ConfigMap db-scripts at /data/had-data";
        let is_update = |event: &Value| event["note"] == note && event["reason"] == "Updated";
        let is_updated = |events: &Value| events["items"].as_array().unwrap().iter().any(is_update);
        fixture.until("events", is_updated).await;

        // The primary is away, and its volume is deleted.
        fixture.delete_with("pods/db-0", json!({"gracePeriodSeconds": 0})).await;
        let has = |phase: &str| json!({"status": {"phase": phase}});
        fixture.patch("persistentvolumeclaims/data-db-0/status", has("Lost")).await;
        fixture.until("databases/db", is_lost).await;
        fixture.patch("persistentvolumeclaims/data-db-0/status", has("Bound")).await;
        fixture.until("databases/db", |database| !is_lost(database)).await;

        // Its claim is replaced, and the operator does not know yet that its Pod is gone.
        create_primary(fixture).await;
        let created = |object: &Value| object["metadata"]["creationTimestamp"].as_str().unwrap().to_owned();
        let pod = fixture.get("pods/db-0").await;
        eventually("a claim that is newer than the Pod", async || {
            delete_claim(fixture, "data-db-0").await;
            create_claim(fixture, "data-db-0").await;
            let claim = fixture.get("persistentvolumeclaims/data-db-0").await;
            (created(&claim) > created(&pod)).then_some(())
        })
        .await;
        // The operator sees the claim: it removes this owner.
        let owner =
            json!({"apiVersion": "app.example.com/v1", "kind": "Database", "name": "db", "uid": "earlier"});
        let owned = json!({"metadata": {"ownerReferences": [owner]}});
        fixture.patch("persistentvolumeclaims/data-db-0", owned).await;
        let has_no_owner = |claim: &Value| claim["metadata"]["ownerReferences"].is_null();
        fixture.until("persistentvolumeclaims/data-db-0", has_no_owner).await;
        fixture.patch("databases/db", json!({"spec": {"size": 1}})).await;
        fixture.until("databases/db", |database| database["status"]["observedGeneration"] == 2).await;
        drop(running);
        fixture.delete_with("pods/db-0", json!({"gracePeriodSeconds": 0})).await;
        let _running = start(fixture);
        let reported = fixture.until("databases/db", is_lost).await;
        assert_eq!(condition(&reported, "Ready").unwrap()["reason"], "DataLost");
        let scripts = fixture.get("configmaps/db-scripts").await;
        assert_eq!(scripts["data"]["had-data"], "");

        // There is nothing of which a last backup could be made, and the data of the replica is the last.
        fixture.delete("databases/db").await;
        fixture.until_gone("configmaps/db-scripts").await;
        assert!(fixture.find("jobs/db-last-backup").await.is_none());
        let replica = fixture.get("persistentvolumeclaims/data-db-1").await;
        assert!(replica["metadata"]["ownerReferences"].is_null(), "{replica}");

        // A new Database of that name begins anew.
        fixture.create("databases", &database(spec)).await;
        fixture.until("statefulsets/db", |_| true).await;
        let reported = fixture.until("databases/db", |database| condition(database, "Ready").is_some()).await;
        assert!(!is_lost(&reported), "{reported}");
        assert!(fixture.get("configmaps/db-scripts").await["data"]["had-data"].is_null());

        // A user replaces the claim of the primary, with its data.
        for _ in 0..2 {
            create_primary(fixture).await;
            let uid = fixture.get("persistentvolumeclaims/data-db-0").await["metadata"]["uid"].take();
            fixture.until("databases/db", |database| database["status"]["primaryClaim"] == uid).await;
            fixture.delete_with("pods/db-0", json!({"gracePeriodSeconds": 0})).await;
            delete_claim(fixture, "data-db-0").await;
            create_claim(fixture, "data-db-0").await;
        }
    })
    .await;
}

/// The claim of a user has no label of the operator, which then reads it.
#[tokio::test]
async fn a_claim_of_a_user_that_cannot_be_read_at_first_is_not_lost() {
    on_each_of(&[Kind::InProcess], async |fixture| {
        create_claim(fixture, "data-db-1").await;
        create_claim(fixture, "data-db-0").await;
        let unlabelled = json!({"metadata": {"labels": null}});
        fixture.patch("persistentvolumeclaims/data-db-0", unlabelled).await;
        let unavailable = Fault::Answer { status: 503, body: "{}".to_owned(), retry_after_secs: None };
        fixture.embedded().fault(unavailable.on("GET", "/persistentvolumeclaims/data-db-0").times(1));
        fixture.create("databases", &database(json!({"size": 2, "version": "15"}))).await;
        let _running = start(fixture);
        wrote(fixture, &CREATED).await;
    })
    .await;
}

/// Whatever happens to the Database and its children: claims and Secrets are those of the beginning.
#[tokio::test]
async fn nothing_that_holds_data_is_ever_deleted() {
    on_both(async |fixture| {
        let spec = json!({"size": 3, "version": "15.4"});
        fixture.create("databases", &database(spec.clone())).await;
        let mut running = start(fixture);
        wrote(fixture, &CREATED).await;
        for index in 0..3 {
            create_claim(fixture, &format!("data-db-{index}")).await;
        }
        let before = data(fixture).await;
        assert_eq!(before.len(), 5);
        let is_whole = async |fixture: &Fixture| {
            fixture
                .until("databases/db", |database| {
                    database["status"]["observedGeneration"] == database["metadata"]["generation"]
                })
                .await;
            fixture.until("statefulsets/db", |set| set["metadata"]["deletionTimestamp"].is_null()).await;
            assert_eq!(data(fixture).await, before);
        };
        for _ in 0..2 {
            drop(running);
            running = start(fixture);
            for change in [
                json!({"size": 1}),
                json!({"version": "16.0"}),
                json!({"version": "15.5"}),
                json!({"size": 3}),
            ] {
                fixture.patch("databases/db", json!({ "spec": change })).await;
                is_whole(fixture).await;
            }
            // The StatefulSet is deleted, or loses its label.
            fixture.delete("statefulsets/db").await;
            is_whole(fixture).await;
            let unlabelled = json!({"metadata": {"labels": {"app.kubernetes.io/managed-by": null}}});
            fixture.patch("statefulsets/db", unlabelled).await;
            fixture
                .until("statefulsets/db", |set| {
                    set["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "database-operator"
                })
                .await;
            is_whole(fixture).await;
            // The Database of the same name takes them over.
            fixture.delete("databases/db").await;
            fixture.until_gone("databases/db").await;
            fixture.until_gone("statefulsets/db").await;
            fixture.create("databases", &database(spec.clone())).await;
            is_whole(fixture).await;
        }
        drop(running);
        let deleted = fixture.records().await.into_iter().filter(|record| record.method == "DELETE");
        for record in deleted {
            assert!(
                !record.path.contains("/secrets") && !record.path.contains("/persistentvolumeclaims"),
                "{record:?}"
            );
        }
    })
    .await;
}

/// A Pod of the Database, whose spec is that of the StatefulSet without its volumes.
async fn create_pod(fixture: &Fixture, name: &str) {
    let template = fixture.get("statefulsets/db").await["spec"]["template"].take();
    let container = json!({"name": "postgres", "image": template["spec"]["containers"][0]["image"]});
    let metadata = json!({"name": name, "labels": template["metadata"]["labels"]});
    let pod = json!({"metadata": metadata, "spec": {"containers": [container]}});
    fixture.create("pods", &pod).await;
}

#[tokio::test]
async fn an_instance_that_cannot_start_is_a_condition_with_its_own_message() {
    on_both(async |fixture| {
        let _running = start(fixture);
        fixture.create("databases", &database(json!({"size": 1, "version": "15"}))).await;
        wrote(fixture, &CREATED).await;
        create_pod(fixture, "db-0").await;
        let reports = async |status: Value, reason: &str, message: &str| {
            fixture.patch("pods/db-0/status", json!({ "status": status })).await;
            let is_reported = |database: &Value| {
                let ready = condition(database, "Ready").unwrap();
                ready["reason"] == reason && ready["message"].as_str().unwrap().contains(message)
            };
            fixture.until("databases/db", is_reported).await;
        };
        // In the words of the scheduler.
        let unbound = "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims.";
        let scheduled =
            json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": unbound});
        reports(json!({"conditions": [scheduled]}), "Unschedulable", unbound).await;
        // In the words of the script that starts PostgreSQL.
        for message in [
            "The volume of the data is full. Raise spec.storage.",
            "The primary no longer has the WAL that this instance needs. It clones the primary.",
            "The Secret for app has no key password. Add it, and delete this Pod.",
        ] {
            let ended = json!({"terminated": {"exitCode": 1, "reason": "Error", "message": message}});
            let container = json!({
                "name": "postgres", "image": "postgres:15", "imageID": "", "ready": false, "restartCount": 3,
                "state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": ended,
            });
            let scheduled = json!({"type": "PodScheduled", "status": "True"});
            let status = json!({"conditions": [scheduled], "containerStatuses": [container]});
            reports(status, "CrashLoopBackOff", message).await;
        }
        // Of another owner, and so it is not the primary.
        let ready = json!({"type": "Ready", "status": "True"});
        reports(json!({"conditions": [ready], "containerStatuses": null}), "RolloutInProgress", "0 of 1")
            .await;
        let reported = fixture.get("databases/db").await;
        assert_eq!(condition(&reported, "Available").unwrap()["reason"], "PrimaryNotReady");
    })
    .await;
}

/// The reason was that of the replica, which only waits for the primary. Nothing said that a corrected template does not reach the primary.
#[tokio::test]
async fn the_trouble_of_the_primary_comes_before_that_of_the_replicas_which_wait_for_it() {
    on_both(async |fixture| {
        let _running = start(fixture);
        fixture.create("databases", &database(json!({"size": 2, "version": "15"}))).await;
        wrote(fixture, &CREATED).await;
        let unschedulable =
            json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no room"});
        let crashed = json!({
            "name": "postgres", "image": "", "imageID": "", "ready": false, "restartCount": 3,
            "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "no primary"}},
        });
        for (name, revision, status) in [
            ("db-0", "earlier", json!({"conditions": [unschedulable]})),
            ("db-1", "latest", json!({"containerStatuses": [crashed]})),
        ] {
            create_pod(fixture, name).await;
            let labels = json!({"controller-revision-hash": revision});
            fixture.patch(&format!("pods/{name}"), json!({"metadata": {"labels": labels}})).await;
            fixture.patch(&format!("pods/{name}/status"), json!({ "status": status })).await;
        }
        let generation = fixture.get("statefulsets/db").await["metadata"]["generation"].take();
        let status = json!({"observedGeneration": generation, "replicas": 2, "updateRevision": "latest"});
        fixture.patch("statefulsets/db/status", json!({ "status": status })).await;
        let reports = async |reason: &str, message: &str| {
            let is_reported = |database: &Value| {
                let ready = condition(database, "Ready").unwrap();
                ready["reason"] == reason && ready["message"] == message
            };
            fixture.until("databases/db", is_reported).await;
        };
        let kept = "db-0 keeps its earlier template until kubectl delete pod db-0";
        let pending = "no node for a Pod: no room";
        reports("Unschedulable", &format!("0 of 2 instances are ready; {kept}: {pending}")).await;
        // A single instance, too, where the feature MaxUnavailableStatefulSet is on, or the strategy is OnDelete.
        fixture.patch("databases/db", json!({"spec": {"size": 1}})).await;
        reports("Unschedulable", &format!("0 of 1 instances are ready; {kept}: {pending}")).await;
        fixture.patch("databases/db", json!({"spec": {"size": 2}})).await;
        reports("Unschedulable", &format!("0 of 2 instances are ready; {kept}: {pending}")).await;
        let labels = json!({"controller-revision-hash": "latest"});
        fixture.patch("pods/db-0", json!({"metadata": {"labels": labels}})).await;
        reports("Unschedulable", &format!("0 of 2 instances are ready: {pending}")).await;
        // A primary that is ready blocks no replica, whatever its template is.
        let labels = json!({"controller-revision-hash": "earlier"});
        fixture.patch("pods/db-0", json!({"metadata": {"labels": labels}})).await;
        let ready = json!({"type": "Ready", "status": "True"});
        fixture.patch("pods/db-0/status", json!({"status": {"conditions": [ready]}})).await;
        reports("CrashLoopBackOff", "0 of 2 instances are ready: container postgres: no primary").await;
    })
    .await;
}

/// With the feature MaxUnavailableStatefulSet, the StatefulSet controller replaces no instance while another one is not ready, even if that
/// one has the earlier template. The reason was `RolloutInProgress` for ever.
#[tokio::test]
async fn an_instance_that_keeps_an_earlier_template_is_a_condition_with_a_way_out() {
    on_both(async |fixture| {
        let _running = start(fixture);
        fixture.create("databases", &database(json!({"size": 2, "version": "15"}))).await;
        wrote(fixture, &CREATED).await;
        let image = json!([{"op": "replace", "path": "/spec/containers/0/image", "value": "postgres:15.99"}]);
        for (name, revision) in [("db-0", "latest"), ("db-1", "earlier")] {
            create_pod(fixture, name).await;
            let labels = json!({"controller-revision-hash": revision});
            fixture.patch(&format!("pods/{name}"), json!({"metadata": {"labels": labels}})).await;
        }
        fixture.edit("pods/db-1", image).await;
        let ready = json!({"type": "Ready", "status": "True"});
        fixture.patch("pods/db-0/status", json!({"status": {"conditions": [ready]}})).await;
        let waiting = async |reason: &str, message: &str| {
            let container = json!({
                "name": "postgres", "image": "", "imageID": "", "ready": false, "restartCount": 0,
                "state": {"waiting": {"reason": reason, "message": message}},
            });
            let status = json!({ "status": {"containerStatuses": [container]} });
            fixture.patch("pods/db-1/status", status).await;
        };
        let generation = fixture.get("statefulsets/db").await["metadata"]["generation"].take();
        let status = json!({
            "observedGeneration": generation, "replicas": 2, "readyReplicas": 1, "updatedReplicas": 1,
            "updateRevision": "latest",
        });
        let reports = async |reason: &str, message: &str| {
            let is_reported = |database: &Value| {
                let ready = condition(database, "Ready").unwrap();
                ready["reason"] == reason && ready["message"] == message
            };
            fixture.until("databases/db", is_reported).await;
        };
        let kept = "db-1 keeps its earlier template until kubectl delete pod db-1";
        waiting("ImagePullBackOff", "not found").await;
        fixture.patch("statefulsets/db/status", json!({ "status": status })).await;
        let message = format!("1 of 2 instances are ready; {kept}: container postgres: not found");
        reports("ImagePullBackOff", &message).await;
        // No status says why this container does not start.
        waiting("ContainerCreating", "").await;
        reports("PodOutdated", &format!("1 of 2 instances are ready: {kept}")).await;
    })
    .await;
}

/// The node is lost, and five minutes later its Pods are deleted. The reason was `RolloutInProgress` from then on.
#[tokio::test]
async fn an_instance_that_does_not_end_is_a_condition_with_its_node() {
    on_both(async |fixture| {
        let _running = start(fixture);
        fixture.create("databases", &database(json!({"size": 1, "version": "15"}))).await;
        wrote(fixture, &CREATED).await;
        let container = json!({"name": "postgres", "image": "postgres:15"});
        let labels = fixture.get("statefulsets/db").await["spec"]["template"]["metadata"]["labels"].take();
        let spec = json!({"nodeName": "node-a", "containers": [container]});
        let pod = json!({"metadata": {"name": "db-0", "labels": labels}, "spec": spec});
        fixture.create("pods", &pod).await;
        // What the node controller writes: the rest of the condition is that of the kubelet, before.
        let unready = json!({"type": "Ready", "status": "False"});
        fixture.patch("pods/db-0/status", json!({"status": {"conditions": [unready]}})).await;
        fixture.delete_with("pods/db-0", json!({"gracePeriodSeconds": 1})).await;
        let is_reported = |database: &Value| {
            let ready = condition(database, "Ready").unwrap();
            let message = ready["message"].as_str().unwrap();
            ready["reason"] == "NodeNotReady"
                && message.contains("Pod db-0 has not ended on node node-a")
                && message.contains("kubectl delete node node-a")
        };
        fixture.until("databases/db", is_reported).await;
        fixture.delete_with("pods/db-0", json!({"gracePeriodSeconds": 0})).await;
        let is_over =
            |database: &Value| condition(database, "Ready").unwrap()["reason"] == "RolloutInProgress";
        fixture.until("databases/db", is_over).await;
    })
    .await;
}

/// The StatefulSet controller writes only an Event. The reason was `RolloutInProgress` for ever.
#[tokio::test]
async fn pods_that_cannot_be_created_are_a_condition() {
    on_both(async |fixture| {
        let _running = start(fixture);
        fixture.create("databases", &database(json!({"size": 2, "version": "15"}))).await;
        wrote(fixture, &CREATED).await;
        create_pod(fixture, "db-0").await;
        let has = |reason: &'static str, message: &'static str| {
            move |database: &Value| {
                let ready = condition(database, "Ready").unwrap();
                ready["reason"] == reason && ready["message"].as_str().unwrap().contains(message)
            }
        };
        let generation = fixture.get("statefulsets/db").await["metadata"]["generation"].take();
        let status = json!({"observedGeneration": generation, "replicas": 1});
        fixture.patch("statefulsets/db/status", json!({ "status": status })).await;
        let message = "only 1 of 2 Pods exist; the Events of kubectl describe statefulset db say why";
        fixture.until("databases/db", has("PodsNotCreated", message)).await;
        fixture.patch("statefulsets/db/status", json!({"status": {"replicas": 2}})).await;
        fixture.until("databases/db", has("RolloutInProgress", "0 of 2")).await;
    })
    .await;
}

/// Whether the password is still right, only PostgreSQL knows: its scripts read the Secret. Here it stays as the user wants it.
#[tokio::test]
async fn a_secret_that_a_user_changes_stays_and_one_that_is_deleted_comes_back() {
    on_both(async |fixture| {
        let _running = start(fixture);
        fixture.create("databases", &database(json!({"size": 1, "version": "15"}))).await;
        wrote(fixture, &CREATED).await;
        fixture.patch("secrets/db", json!({"data": {"password": "Y2hvc2Vu", "uri": null}})).await;
        fixture.patch("databases/db", json!({"spec": {"size": 2}})).await;
        wrote(fixture, &["PATCH configmaps/db-scripts 200", "PATCH statefulsets/db 200", STATUS]).await;
        let keys = fixture.get("secrets/db").await["data"].take();
        assert_eq!(keys, json!({"password": "Y2hvc2Vu", "username": "YXBw"}));
        let seen = fixture.records().await.len();
        fixture.delete("secrets/db").await;
        wrote(fixture, &["POST secrets 201"]).await;
        // Not if its Database is deleted, which a late watch does not show.
        let is_question = |record: &Record| record.method == "GET" && record.path.contains("/databases/db?");
        assert!(!fixture.is_embedded() || fixture.records().await[seen..].iter().any(is_question));
        let new = fixture.get("secrets/db").await["data"].take();
        assert_ne!(new["password"], "Y2hvc2Vu");
        assert!(new["uri"].is_string());
    })
    .await;
}

/// Starts an operator and kills it after its next write, again and again, until the end. Each may have sent more writes at that time.
async fn killed_after_each_write(fixture: &Fixture, is_done: impl AsyncFn() -> bool) {
    let writes = || fixture.written().iter().filter(|line| !line.contains("?dryRun=All")).count();
    let mut seen = writes();
    loop {
        let running = start(fixture);
        let is_over = eventually("a write, or the end", async || {
            let is_over = is_done().await;
            (is_over || writes() > seen).then_some(is_over)
        })
        .await;
        drop(running);
        seen = writes();
        if is_over {
            return;
        }
    }
}

/// Checks that the operator has created no more than this. Of a creation whose client was killed, the audit log may have no success.
async fn assert_created_once(fixture: &Fixture, wanted: &[&str]) {
    let mut wanted = wanted.to_vec();
    for write in fixture.transcript().await {
        if let Some(kind) = write.strip_prefix("POST ").and_then(|post| post.strip_suffix(" 201")) {
            let place = wanted.iter().position(|one| *one == kind);
            wanted.swap_remove(place.unwrap_or_else(|| panic!("{kind} was created twice")));
        }
    }
}

/// Checks that nothing is left to write: an operator that starts writes only the answer to a change of the deletion policy, and the rest of
/// the status stays.
async fn assert_converged(fixture: &Fixture) {
    fixture.transcript().await;
    let before = fixture.get("databases/db").await;
    let policy = if before["spec"]["deletionPolicy"] == "Delete" { "Retain" } else { "Delete" };
    for policy in [json!(policy), before["spec"]["deletionPolicy"].clone()] {
        let running = start(fixture);
        fixture.patch("databases/db", json!({"spec": {"deletionPolicy": policy}})).await;
        wrote(fixture, &[STATUS]).await;
        drop(running);
    }
    let status = |mut database: Value| {
        let mut status = database["status"].take();
        status["observedGeneration"].take();
        for condition in status["conditions"].as_array_mut().unwrap() {
            condition["observedGeneration"].take();
        }
        status
    };
    assert_eq!(status(fixture.get("databases/db").await), status(before));
}

/// Also for CronJobs, claims, the last backup, and the owners of the data.
#[tokio::test]
async fn a_restart_between_any_two_writes_changes_nothing() {
    on_both(async |fixture| {
        let backup = json!({"schedule": "0 3 * * *"});
        let spec = json!({"size": 1, "version": "15.4", "deletionPolicy": "Delete", "backup": backup});
        fixture.create("databases", &database(spec)).await;
        let is_observed = async || {
            let database = fixture.get("databases/db").await;
            database["status"]["observedGeneration"] == database["metadata"]["generation"]
        };
        killed_after_each_write(fixture, &is_observed).await;
        for claim in ["data-db-0", "data-db-7"] {
            create_claim(fixture, claim).await;
        }
        let before = data(fixture).await;
        assert_eq!(before.len(), 5);
        let backup = json!({"schedule": "0 4 * * *"});
        let spec = json!({"size": 2, "version": "15.5", "backup": backup});
        fixture.patch("databases/db", json!({ "spec": spec })).await;
        killed_after_each_write(fixture, &is_observed).await;
        fixture.patch("databases/db", json!({"spec": {"backup": null}})).await;
        killed_after_each_write(fixture, &is_observed).await;
        assert!(fixture.find("cronjobs/db-backup").await.is_none());
        fixture.patch("databases/db", json!({ "spec": {"backup": backup}})).await;
        killed_after_each_write(fixture, &is_observed).await;

        // The CronJob twice, as wanted, and each other child once.
        let wanted = ["configmaps", "cronjobs", "cronjobs", "persistentvolumeclaims", "poddisruptionbudgets"];
        let others = ["secrets", "secrets", "services", "services", "statefulsets"];
        assert_created_once(fixture, &[wanted, others].concat()).await;
        roll_out(fixture).await;
        let running = start(fixture);
        wrote(fixture, &[STATUS]).await;
        drop(running);
        assert_converged(fixture).await;

        fixture.delete("databases/db").await;
        killed_after_each_write(fixture, async || fixture.find("jobs/db-last-backup").await.is_some()).await;
        assert_eq!(owners(fixture).await, [&[] as &[&str]; 5]);
        end(fixture, "db-last-backup", "Complete").await;
        killed_after_each_write(fixture, async || fixture.find("databases/db").await.is_none()).await;
        assert_eq!(data(fixture).await, before);
        assert_eq!(owners(fixture).await, [&["Database"] as &[&str], OWNED[1], OWNED[2], OWNED[3], OWNED[4]]);
        assert_created_once(fixture, &["jobs"]).await;
    })
    .await;
}

/// Also for a restore, TLS, and what waits for each.
#[tokio::test]
async fn a_restart_between_any_two_writes_of_a_restore_changes_nothing() {
    on_both(async |fixture| {
        let certificate = json!({"metadata": {"name": "certificate"}, "stringData": {"tls.crt": "", "tls.key": ""}});
        fixture.create("secrets", &certificate).await;
        let spec = json!({
            "size": 2, "version": "15.4", "backup": {"schedule": "0 3 * * *"}, "tls": {"secretName": "certificate"},
            "restoreFrom": {"database": "old"},
        });
        let created = fixture.create("databases", &database(spec)).await;
        let killed_until = async |reason: &str| {
            let is_reported = async || {
                let database = fixture.get("databases/db").await;
                let ready = condition(&database, "Ready");
                database["status"]["observedGeneration"] == database["metadata"]["generation"]
                    && ready.is_some_and(|ready| ready["reason"] == reason)
            };
            killed_after_each_write(fixture, is_reported).await;
        };
        killed_until("Restoring").await;
        let claims = ["persistentvolumeclaims", "persistentvolumeclaims"];
        let others = ["configmaps", "cronjobs", "jobs", "poddisruptionbudgets", "secrets", "secrets", "services", "services"];
        assert_created_once(fixture, &[&claims[..], &others].concat()).await;
        assert_converged(fixture).await;
        let before = data(fixture).await;
        assert_eq!(before.len(), 4);

        end(fixture, "db-restore", "Complete").await;
        killed_until("RolloutInProgress").await;
        assert_created_once(fixture, &["statefulsets"]).await;
        assert_converged(fixture).await;
        roll_out(fixture).await;
        killed_until("AllInstancesReady").await;
        let changed = json!({"size": 1, "version": "15.5", "backup": {"schedule": "0 4 * * *"}});
        fixture.patch("databases/db", json!({ "spec": changed })).await;
        killed_until("RolloutInProgress").await;
        roll_out(fixture).await;
        killed_until("AllInstancesReady").await;
        assert_created_once(fixture, &["cronjobs"]).await;
        assert_converged(fixture).await;
        assert_eq!(data(fixture).await, before);
        assert_eq!(fixture.get("databases/db").await["status"]["version"], "15.5");
        for resource in ["configmaps", "cronjobs", "jobs", "poddisruptionbudgets", "services", "statefulsets"] {
            let list = fixture.get(resource).await;
            let is_ours =
                |child: &&Value| child["metadata"]["labels"]["app.kubernetes.io/instance"] == "db";
            for child in list["items"].as_array().unwrap().iter().filter(is_ours) {
                assert_eq!(child["metadata"]["ownerReferences"][0]["uid"], created["metadata"]["uid"], "{child}");
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_claim_that_cannot_grow_is_a_condition() {
    on_both(async |fixture| {
        let _running = start(fixture);
        fixture.create("databases", &database(json!({"size": 1, "version": "15"}))).await;
        wrote(fixture, &CREATED).await;
        create_claim(fixture, "data-db-0").await;
        let limit = async || {
            let scripts = fixture.get("configmaps/db-scripts").await;
            let settings = scripts["data"]["postgresql.conf"].as_str().unwrap().to_owned();
            settings.lines().find_map(|line| Some(line.strip_prefix("max_slot_wal_keep_size = ")?.to_owned()))
        };
        // A replica that is away filled the volume of the primary.
        assert_eq!(limit().await.as_deref(), Some("341MB"));
        // A claim that is not bound cannot grow.
        fixture.patch("databases/db", json!({"spec": {"storage": "2Gi"}})).await;
        wrote(fixture, &["PATCH configmaps/db-scripts 200", STATUS]).await;
        assert_eq!(limit().await.as_deref(), Some("682MB"));
        if fixture.is_embedded() {
            let bound = json!({"status": {"phase": "Bound"}});
            fixture.patch("persistentvolumeclaims/data-db-0/status", bound).await;
            wrote(fixture, &["PATCH persistentvolumeclaims/data-db-0 200"]).await;
            return;
        }
        // No StorageClass allows it here.
        fixture.may_be_forbidden.set(true);
        let bound = json!({"status": {"phase": "Bound"}});
        fixture.patch("persistentvolumeclaims/data-db-0/status", bound).await;
        let refused = |database: &Value| {
            condition(database, "Stalled").is_some_and(|stalled| stalled["reason"] == "Forbidden")
        };
        let database = fixture.until("databases/db", refused).await;
        let ready = condition(&database, "Ready").unwrap();
        assert!(ready["message"].as_str().unwrap().contains("data-db-0"), "{ready}");
    })
    .await;
}

#[tokio::test]
async fn the_manifests_allow_exactly_the_requests_of_the_operator() {
    on_each_of(&[Kind::RealHttp1], async |fixture| {
        if fixture.lists == Lists::Streaming {
            return;
        }
        fixture.may_be_forbidden.set(true);
        let running = start(fixture);
        let backup = json!({"schedule": "0 3 * * *"});
        let from = json!({"database": "old"});
        let spec = json!({
            "size": 1, "version": "15", "deletionPolicy": "Delete", "backup": backup, "restoreFrom": from,
        });
        fixture.create("databases", &database(spec)).await;
        let with_backup = [FINALIZER, "POST persistentvolumeclaims 201", "POST cronjobs 201"];
        wrote(fixture, &[&RESTORING[..], &with_backup].concat()).await;
        let unlabelled = json!({"metadata": {"labels": {"app.kubernetes.io/managed-by": null}}});
        fixture.patch("jobs/db-restore", unlabelled).await;
        let has_label = |job: &Value| !job["metadata"]["labels"]["app.kubernetes.io/managed-by"].is_null();
        fixture.until("jobs/db-restore", has_label).await;
        end(fixture, "db-restore", "Complete").await;
        fixture.until("statefulsets/db", |_| true).await;
        fixture.patch("databases/db", json!({"spec": {"size": 2}})).await;
        fixture.until("statefulsets/db", |set| set["spec"]["replicas"] == 2).await;
        fixture.patch("services/db", json!({"spec": {"type": "NodePort"}})).await;
        fixture.until("services/db", |service| service["spec"]["type"] == "ClusterIP").await;
        let has_labels = |child: &Value| {
            child["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "database-operator"
        };
        for child in [
            "statefulsets/db",
            "cronjobs/db-backup",
            "poddisruptionbudgets/db",
            "services/db-ro",
            "configmaps/db-scripts",
        ] {
            let unlabelled = json!({"metadata": {"labels": {"app.kubernetes.io/managed-by": null}}});
            fixture.patch(child, unlabelled).await;
            fixture.until(child, has_labels).await;
        }
        fixture.delete("databases/db").await;
        fixture.until("jobs/db-last-backup", |_| true).await;
        end(fixture, "db-last-backup", "Complete").await;
        for child in [
            "databases/db",
            "statefulsets/db",
            "poddisruptionbudgets/db",
            "cronjobs/db-backup",
            "jobs/db-restore",
            "services/db",
            "services/db-ro",
            "configmaps/db-scripts",
        ] {
            fixture.until_gone(child).await;
        }
        drop(running);
        let mut allowed = manifests::allowed(&manifests::read("database/operator/role.yaml")[0]);
        // Never requested, but checked by an admission plugin: see the file.
        assert!(allowed.remove("update databases/finalizers.app.example.com"));
        // Only for a repeated Event.
        assert!(allowed.remove("patch events.events.k8s.io"));
        eventually("the audit log to have the allowed requests, and no others", async || {
            let mut used = manifests::used(fixture.control_plane(), &fixture.operator_user());
            used.remove("patch events.events.k8s.io");
            saw("used", format!("{used:?}"));
            (used == allowed).then_some(())
        })
        .await;
    })
    .await;
}
