//! The claims: data that is lost, nothing that is deleted, and claims that grow.

use super::*;

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
        create_primary(fixture, "15").await;
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
        create_primary(fixture, "15").await;
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
            create_primary(fixture, "15").await;
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

/// Whatever happens to the Database and its children: claims and Secrets are the same as in the beginning.
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

/// A copy of a ConfigMap had this name before the Database was created. The Pods ran its `start`, with the passwords at hand.
#[tokio::test]
async fn nothing_runs_while_the_scripts_are_those_of_another_owner() {
    on_both(async |fixture| {
        let _running = start(fixture);
        let theirs = json!({"metadata": {"name": "db-scripts"}, "data": {"start": "theirs"}});
        fixture.create("configmaps", &theirs).await;
        let backup = json!({"schedule": "0 3 * * *"});
        for spec in [json!({ "backup": backup }), json!({"restoreFrom": {"database": "earlier"}})] {
            let mut wanted = database(spec);
            wanted["spec"]["size"] = json!(1);
            wanted["spec"]["version"] = json!("15");
            fixture.create("databases", &wanted).await;
            until_stalled(fixture, "NameConflict", "ConfigMap db-scripts exists").await;
            let written = fixture.transcript().await;
            let makes_pods = |line: &String| ["statefulsets", "jobs"].iter().any(|kind| line.contains(kind));
            assert!(!written.iter().any(makes_pods), "{written:?}");
            fixture.delete("databases/db").await;
            fixture.until_gone("databases/db").await;
        }
        let spec = json!({"size": 1, "version": "15", "backup": backup});
        fixture.create("databases", &database(spec)).await;
        until_stalled(fixture, "NameConflict", "ConfigMap db-scripts exists").await;
        fixture.delete("configmaps/db-scripts").await;
        fixture.patch("databases/db", json!({"metadata": {"annotations": {"note": "now"}}})).await;
        for path in ["statefulsets/db", "cronjobs/db-backup"] {
            fixture.until(path, |made| made["metadata"]["ownerReferences"][0]["name"] == "db").await;
        }
    })
    .await;
}

/// While the refused write was tried again, a deleted Service came back after up to a minute.
#[tokio::test]
async fn a_claim_that_cannot_grow_is_a_condition_and_delays_nothing_else() {
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
            fixture.may_be_forbidden.set(true);
            let refused = Fault::Answer { status: 403, body: "{}".to_owned(), retry_after_secs: Some(60) };
            fixture.embedded().fault(refused.on("PATCH", "/persistentvolumeclaims/data-db-0"));
            fixture.patch("databases/db", json!({"spec": {"storage": "3Gi"}})).await;
            let refused = "PATCH persistentvolumeclaims/data-db-0 403";
            wrote(fixture, &["PATCH configmaps/db-scripts 200", refused, STATUS]).await;
            fixture.delete("services/db").await;
            wrote(fixture, &["POST services 201"]).await;
            // A new spec is tried at once.
            fixture.patch("databases/db", json!({"spec": {"storage": "4Gi"}})).await;
            wrote(fixture, &["PATCH configmaps/db-scripts 200", refused, STATUS]).await;
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
        fixture.delete("services/db").await;
        fixture.until("services/db", |_| true).await;
        // The size that a claim cannot have does not keep an owner with which it would be deleted.
        let owner =
            json!({"apiVersion": "app.example.com/v1", "kind": "Database", "name": "db", "uid": "earlier"});
        let owned = json!({"metadata": {"ownerReferences": [owner]}});
        fixture.patch("persistentvolumeclaims/data-db-0", owned).await;
        let has_no_owner = |claim: &Value| claim["metadata"]["ownerReferences"].is_null();
        fixture.until("persistentvolumeclaims/data-db-0", has_no_owner).await;
    })
    .await;
}
