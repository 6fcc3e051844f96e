//! Backups while a Database exists, and a new one that is restored from a backup.

use super::*;

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

/// It was accepted, and the conditions said "the schedule has not begun yet" for ever.
#[tokio::test]
async fn a_schedule_that_never_comes_is_a_condition() {
    on_both(async |fixture| {
        let _running = start(fixture);
        let backup = json!({"schedule": "0 0 31 2 *"});
        fixture.create("databases", &database(json!({"size": 1, "version": "15", "backup": backup}))).await;
        until_stalled(fixture, "InvalidSpec", "no day fits spec.backup.schedule 0 0 31 2 *").await;
        let reported = fixture.get("databases/db").await;
        for name in ["Ready", "BackupSucceeded"] {
            let condition = condition(&reported, name).unwrap();
            assert_eq!(
                (&condition["status"], &condition["reason"]),
                (&json!("False"), &json!("InvalidSpec"))
            );
        }
        // Its other children are kept.
        fixture.until("statefulsets/db", |_| true).await;
        fixture.patch("databases/db", json!({"spec": {"backup": {"schedule": "0 0 29 2 *"}}})).await;
        let is_mended = |database: &Value| {
            condition(database, "Stalled").is_none()
                && condition(database, "BackupSucceeded").unwrap()["reason"] == "NoBackupYet"
        };
        fixture.until("databases/db", is_mended).await;
    })
    .await;
}

/// A refused deletion of the CronJob ended each reconcile before its report, and put off what else was to be repaired.
#[tokio::test]
async fn a_cron_job_that_cannot_be_deleted_is_a_condition_and_delays_nothing_else() {
    on_each_of(&[Kind::InProcess], async |fixture| {
        let _running = start(fixture);
        let backup = json!({"schedule": "0 3 * * *"});
        fixture.create("databases", &database(json!({"size": 1, "version": "15", "backup": backup}))).await;
        let with_backup = [FINALIZER, "POST persistentvolumeclaims 201", "POST cronjobs 201"];
        wrote(fixture, &[&CREATED[..], &with_backup].concat()).await;
        fixture.may_be_forbidden.set(true);
        let refused = Fault::Answer { status: 403, body: "{}".to_owned(), retry_after_secs: Some(60) };
        fixture.embedded().fault(refused.on("DELETE", "/cronjobs/db-backup"));
        fixture.patch("databases/db", json!({"spec": {"backup": null}})).await;
        until_stalled(fixture, "Forbidden", "db-backup").await;
        fixture.transcript().await;
        fixture.delete("services/db").await;
        wrote(fixture, &["POST services 201"]).await;
    })
    .await;
}

/// Backups were in no metric, so that no alert could tell that they failed.
#[tokio::test]
async fn the_metrics_have_the_time_of_the_last_backup_and_whether_it_succeeded() {
    on_each_of(&[Kind::Embedded, Kind::RealHttp1], async |fixture| {
        let args = ["--namespace", &fixture.namespace];
        let operator = Operator::run(&["database"], &fixture.url(), fixture.dir.path(), &args, &[]);
        let metrics = format!("http://{}/metrics", operator.address("/metrics").await);
        let until_exported = async |expected: &[String]| {
            eventually(&format!("{expected:?}"), async || {
                let text = reqwest::get(&metrics).await.unwrap().text().await.unwrap();
                saw("the metrics", &text);
                expected.iter().all(|line| text.lines().any(|one| one == line)).then_some(())
            })
            .await;
        };
        let backup = json!({"schedule": "0 3 * * *"});
        fixture
            .create("databases", &database(json!({"size": 1, "version": "15", "backup": backup})))
            .await;
        fixture.until("cronjobs/db-backup", |_| true).await;
        let seconds = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
        let time = |ago: u64| {
            let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds - ago);
            humantime::format_rfc3339_seconds(time).to_string()
        };
        let gauge = |name: &str, value: u64| {
            let namespace = &fixture.namespace;
            format!("listwatch_database_last_backup_{name}{{namespace=\"{namespace}\",name=\"db\"}} {value}")
        };
        let last = gauge("timestamp_seconds", seconds - 60);
        for (begun, status, reason) in [(120, "True", "BackupSucceeded"), (30, "False", "BackupFailed")] {
            let report = json!({"lastScheduleTime": time(begun), "lastSuccessfulTime": time(60)});
            fixture.patch("cronjobs/db-backup/status", json!({ "status": report })).await;
            let condition = format!(
                "listwatch_conditions{{kind=\"Database\",condition=\"BackupSucceeded\",status=\"{status}\",reason=\"{reason}\"}} 1"
            );
            until_exported(&[last.clone(), condition]).await;
        }
        // What the kubelet would write. The Pod of a backup that failed says nothing of its size.
        for (name, code, ended, message) in
            [("first", 0, 50, "1000"), ("last", 0, 40, "1200\n"), ("failed", 1, 30, "7")]
        {
            let labels = json!({"app.kubernetes.io/name": "postgresql-backup", "app.kubernetes.io/instance": "db",
                "app.kubernetes.io/managed-by": "database-operator"});
            let container = json!({"name": "postgres", "image": "postgres:15"});
            let pod = json!({"metadata": {"name": name, "labels": labels}, "spec": {"containers": [container], "nodeName": "none"}});
            fixture.create("pods", &pod).await;
            let terminated = json!({"exitCode": code, "message": message, "finishedAt": time(ended), "reason": "Completed"});
            let container = json!({"name": "postgres", "image": "postgres:15", "imageID": "", "ready": false, "restartCount": 0,
                "state": {"terminated": terminated}});
            fixture.patch(&format!("pods/{name}/status"), json!({"status": {"containerStatuses": [container]}})).await;
        }
        until_exported(&[gauge("size_bytes", 1200)]).await;
        // Without backups, nothing is measured, and no alert waits for one.
        fixture.patch("databases/db", json!({"spec": {"backup": null}})).await;
        eventually("no time of a backup", async || {
            let text = reqwest::get(&metrics).await.unwrap().text().await.unwrap();
            (!text.contains("last_backup_timestamp_seconds{") && !text.contains("BackupSucceeded")).then_some(())
        })
        .await;
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
