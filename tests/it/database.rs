//! Tests the operator of Database, on both servers and with the permissions of its ClusterRole. No StatefulSet controller runs, so
//! each write of the operator is known. `tests/e2e/database` has the real PostgreSQL.

mod backups;
mod data;
mod deletion;
mod instances;
mod restarts;

use std::time::{Duration, SystemTime};

use base64::{Engine, prelude::BASE64_STANDARD};
use listwatch::{
    client::{Part, Patch},
    resource::{Key, Meta, kinds::Secret},
    watch::Lists,
};
use listwatch_apiserver::Fault;
use listwatch_control_plane::{eventually, saw};
use listwatch_operators::BuiltIn;
use serde_json::{Value, json};

use crate::{
    client::condition,
    fixture::{Fixture, Kind, Record},
    in_process::{self, Running},
    manifests,
    operator::Operator,
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

/// The Pod of the primary, which accepts connections with this version of PostgreSQL.
async fn create_primary(fixture: &Fixture, version: &str) {
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
    let image = format!("docker.io/library/postgres:{version}");
    let container =
        json!({"name": "postgres", "image": image, "imageID": "", "ready": true, "restartCount": 0});
    let ready = json!({"type": "Ready", "status": "True"});
    let status = json!({"conditions": [ready], "containerStatuses": [container]});
    fixture.patch("pods/db-0/status", json!({ "status": status })).await;
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

/// `kubectl scale db/db --replicas=3` found no such subresource.
#[tokio::test]
async fn the_subresource_scale_has_the_instances() {
    on_both(async |fixture| {
        let _running = start(fixture);
        fixture.create("databases", &database(json!({"size": 1, "version": "15"}))).await;
        wrote(fixture, &CREATED).await;
        fixture.patch("databases/db/scale", json!({"spec": {"replicas": 3}})).await;
        wrote(fixture, &["PATCH configmaps/db-scripts 200", "PATCH statefulsets/db 200", STATUS]).await;
        assert_eq!(fixture.get("statefulsets/db").await["spec"]["replicas"], 3);
        roll_out(fixture).await;
        fixture.until("databases/db", is_ready).await;
        let scale = fixture.get("databases/db/scale").await;
        assert_eq!((&scale["spec"]["replicas"], &scale["status"]), (&json!(3), &json!({"replicas": 3})));
        let (path, none) = (fixture.path("databases/db/scale"), json!({"spec": {"replicas": 0}}));
        let refused = fixture.send(http::Method::PATCH, &path, "application/merge-patch+json", &none).await;
        assert_eq!(refused.unwrap_err().code(), Some(422));
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

/// The schema once refused each status after that, because its version was newer than the spec's.
#[tokio::test]
async fn an_older_major_version_before_the_first_status_is_a_condition() {
    on_both(async |fixture| {
        let running = start(fixture);
        fixture.create("databases", &database(json!({"size": 1, "version": "16.0"}))).await;
        wrote(fixture, &CREATED).await;
        drop(running);
        roll_out(fixture).await;
        create_primary(fixture, "16.0").await;
        fixture.patch("databases/db", json!({"spec": {"version": "15.4"}})).await;
        let _running = start(fixture);
        wrote(fixture, &["PATCH configmaps/db-scripts 200", STATUS]).await;
        let reported = fixture.get("databases/db").await;
        assert_eq!(condition(&reported, "Stalled").unwrap()["reason"], "UnsupportedVersion");
        assert_eq!(reported["status"]["version"], "16.0");
        assert_eq!(image(fixture).await, "postgres:16.0");
    })
    .await;
}

/// The operator believed the status: it rolled out an image that cannot read the data, and told the user to set that version.
#[tokio::test]
async fn the_version_of_the_data_is_what_runs_whatever_the_status_says() {
    on_both(async |fixture| {
        let _running = start(fixture);
        fixture.create("databases", &database(json!({"size": 1, "version": "15.4"}))).await;
        wrote(fixture, &CREATED).await;
        let forge = async |version: &str| {
            fixture.patch("databases/db/status", json!({"status": {"version": version}})).await;
            wrote(fixture, &[STATUS]).await;
            assert_eq!(image(fixture).await, "postgres:15.4", "{version}");
            fixture.get("databases/db").await
        };
        // No instance is ready, but the image is the spec's. The schema would take 18 for the version that runs.
        let reported = forge("18").await;
        assert_eq!(reported["status"]["version"], "");
        assert!(condition(&reported, "Stalled").is_none());
        roll_out(fixture).await;
        create_primary(fixture, "15.4").await;
        let is_up = |database: &Value| {
            is_ready(database) && condition(database, "Available").unwrap()["status"] == "True"
        };
        fixture.until("databases/db", is_up).await;
        fixture.transcript().await;
        for version in ["18", "16", "15.1", ""] {
            assert_eq!(forge(version).await["status"]["version"], "15.4", "{version}");
        }

        // Neither does it follow a spec and an image that agree with a forged status.
        fixture.patch("databases/db", json!({"spec": {"version": "16.1"}})).await;
        wrote(fixture, &[STATUS]).await;
        let reported = forge("16").await;
        assert_eq!(condition(&reported, "Stalled").unwrap()["reason"], "UnsupportedVersion");
        assert_eq!(reported["status"]["version"], "15.4");
        let edited = json!([
            {"op": "replace", "path": "/spec/template/spec/containers/0/image", "value": "postgres:16.1"},
        ]);
        fixture.edit("statefulsets/db", edited).await;
        wrote(fixture, &["PATCH statefulsets/db 200", STATUS]).await;
        assert_eq!(image(fixture).await, "postgres:15.4");
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

/// A copy of a claim or Secret, made from its YAML, has its labels. Both counted as the data of an earlier Database, and were deleted
/// with the Database; the claim also grew.
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

/// What has data. One claim belongs to an instance that was scaled away.
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

/// Deletes a claim, for whose Pods its finalizer waits otherwise.
async fn delete_claim(fixture: &Fixture, name: &str) {
    let claim = format!("persistentvolumeclaims/{name}");
    fixture.delete(&claim).await;
    if fixture.find(&claim).await.is_some() {
        fixture.patch(&claim, json!({"metadata": {"finalizers": null}})).await;
    }
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
        let mut allowed = manifests::allowed(&manifests::role("database"));
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
