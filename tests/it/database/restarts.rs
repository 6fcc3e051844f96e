//! The operator ends after each of its writes.

use super::*;

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
