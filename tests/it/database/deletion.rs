//! The end of a Database: the last backup, and what becomes of its data.

use super::*;

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

/// The Job ran what another owner had written into a ConfigMap of this name, with the passwords at hand.
#[tokio::test]
async fn a_last_backup_waits_while_its_scripts_are_those_of_another_owner() {
    on_both(async |fixture| {
        drop(with_data(fixture, "Retain").await);
        fixture.delete("configmaps/db-scripts").await;
        let theirs = json!({"metadata": {"name": "db-scripts"}, "data": {"backup": "theirs"}});
        fixture.create("configmaps", &theirs).await;
        fixture.delete("databases/db").await;
        let _running = start(fixture);
        until_stalled(fixture, "LastBackupFailed", "ConfigMap db-scripts exists").await;
        assert_eq!(fixture.find("jobs/db-last-backup").await, None);
        fixture.delete("configmaps/db-scripts").await;
        fixture.patch("databases/db", json!({"metadata": {"annotations": {"note": "now"}}})).await;
        fixture.until("jobs/db-last-backup", |_| true).await;
        fixture.get("configmaps/db-scripts").await;
    })
    .await;
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

/// The garbage collector takes the owner of the scripts away. The last backup then waited for them for ever.
#[tokio::test]
async fn a_last_backup_uses_scripts_that_lost_their_owner() {
    on_both(async |fixture| {
        drop(with_data(fixture, "Retain").await);
        fixture.patch("configmaps/db-scripts", json!({"metadata": {"ownerReferences": null}})).await;
        fixture.delete("databases/db").await;
        let _running = start(fixture);
        fixture.until("jobs/db-last-backup", |_| true).await;
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

        // Found again, it is not news.
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
