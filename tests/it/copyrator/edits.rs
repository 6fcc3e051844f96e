//! Somebody else edits or deletes copies.

use super::*;

#[tokio::test]
async fn edited_and_deleted_copies_come_back() {
    on_both(async |fixture| {
        let _operator = fixture.start_copying(json!({})).await;
        fixture.until_settings_in(&["a", "b"]).await;
        let team = fixture.in_namespace("a");
        team.patch("configmaps/settings", json!({"data": {"a": "2", "b": "3"}})).await;
        fixture.until_settings_in(&["a", "b"]).await;
        let restored = |name: &str| format!("restored {}/settings", fixture.namespace(name));
        fixture.until_event("Normal", "DriftCorrected", &restored("a")).await;
        fixture.in_namespace("b").delete("configmaps/settings").await;
        fixture.until_settings_in(&["a", "b"]).await;
        fixture.until_event("Normal", "DriftCorrected", &restored("b")).await;
        // What others add to the metadata stays, and a lost mark comes back.
        let metadata =
            json!({"labels": {"theirs": "x", "flant.com/copy": null}, "annotations": {"note": "x"}});
        fixture.in_namespace("b").patch("configmaps/settings", json!({"metadata": metadata})).await;
        fixture.until_settings_in(&["a", "b"]).await;
        let copy = fixture.in_namespace("b").get("configmaps/settings").await;
        assert_eq!(copy["metadata"]["labels"]["theirs"], "x");
        assert_eq!(copy["metadata"]["annotations"]["note"], "x");

        // A copy that the operator itself has deleted is not restored when it is wanted again, but created.
        let exclude = |names: &[String]| json!({"targetNamespaces": {"exclude": names}});
        let rule = fixture.rule_path("main-rule");
        fixture.create_namespace("c", json!({})).await;
        let created = format!("created {}/settings", fixture.namespace("c"));
        for _ in 0..2 {
            fixture.until_settings_in(&["a", "b", "c"]).await;
            fixture.until_ready("main-rule", "Synced").await;
            fixture.send(Method::PATCH, &rule, &exclude(&[fixture.namespace("c")])).await;
            fixture.until_settings_in(&["a", "b"]).await;
            fixture.until_ready("main-rule", "Synced").await;
            fixture.send(Method::PATCH, &rule, &exclude(&[])).await;
        }
        fixture.until_settings_in(&["a", "b", "c"]).await;
        fixture.until_event("Normal", "Created", &created).await;
        let events = fixture.user.get("events").await.to_string();
        let restored = format!("restored {}/settings", fixture.namespace("c"));
        assert!(!events.contains(&restored) && !events.contains("\"Updated\""), "{events}");
    })
    .await;
}

/// The rule said that all copies were up to date while the correction of a copy that was edited again waited, up to a minute.
#[tokio::test]
async fn a_rule_is_not_ready_while_another_client_keeps_editing_or_deleting_a_copy() {
    on_both(async |fixture| {
        let _operator = fixture.start_copying(json!({})).await;
        fixture.until_ready("main-rule", "Synced").await;
        let (edited, deleted) = (fixture.in_namespace("a"), fixture.in_namespace("b"));
        let reported = eventually("the disputes to be reported", async || {
            let edit = json!({"data": {"a": unique().to_string()}});
            edited.patch("configmaps/settings", edit).await;
            let path = deleted.path("configmaps/settings");
            drop(deleted.send(Method::DELETE, &path, "", &json!(null)).await);
            let rule = fixture.user.get("copyrators/main-rule").await;
            (rule["status"]["failed"] == 2).then_some(rule)
        })
        .await;
        let (ready, failures) = (condition(&reported, "Ready").unwrap(), &reported["status"]["failures"]);
        assert_eq!((&ready["status"], &ready["reason"]), (&json!("False"), &json!("CopiesFailed")));
        assert!(ready["message"].as_str().unwrap().starts_with("0 of 2 copies are up to date"), "{ready}");
        assert_eq!([&failures[0]["reason"], &failures[1]["reason"]], ["Disputed"; 2]);
        fixture.until_ready("main-rule", "Synced").await;
        fixture.until_settings_in(&["a", "b"]).await;
    })
    .await;
}

/// The rule went on to say that all copies were up to date while nobody kept them.
#[tokio::test]
async fn a_rule_is_not_ready_while_another_client_keeps_removing_its_finalizer() {
    on_both(async |fixture| {
        let _operator = fixture.start_copying(json!({})).await;
        fixture.until_ready("main-rule", "Synced").await;
        eventually("the removals to be reported", async || {
            let removal = json!({"metadata": {"finalizers": null}});
            let rule = fixture.user.patch("copyrators/main-rule", removal).await;
            let ready = condition(&rule, "Ready")?;
            (ready["status"] == "False" && ready["reason"] == "FinalizerRemoved").then_some(())
        })
        .await;
    })
    .await;
}

#[tokio::test]
async fn with_the_sync_policy_once_edited_copies_stay_and_deleted_ones_stay_away_until_the_source_changes() {
    on_both(async |fixture| {
        let operator = fixture.start_copying(json!({"syncPolicy": "Once"})).await;
        fixture.until_ready("main-rule", "Synced").await;
        let (edited, deleted) = (fixture.in_namespace("a"), fixture.in_namespace("b"));
        let mine = json!({"a": "mine"});
        let stay = async |barrier: &str| {
            fixture.create_source(barrier, mine.clone()).await;
            fixture.until_copied(barrier, mine.clone(), &["a", "b", "new"]).await;
            assert_eq!(edited.get("configmaps/settings").await["data"], mine);
            assert!(deleted.find("configmaps/settings").await.is_none());
            assert_eq!(
                fixture.in_namespace("new").get("configmaps/settings").await["data"],
                json!({"a": "1"})
            );
        };
        edited.patch("configmaps/settings", json!({"data": mine})).await;
        deleted.delete("configmaps/settings").await;
        fixture.create_namespace("new", json!({})).await;
        stay("running").await;
        // Also while not all copies are there.
        deleted.create("configmaps", &json!({"metadata": {"name": "taken"}})).await;
        fixture.create_source("taken", mine.clone()).await;
        fixture.until_ready("main-rule", "CopiesFailed").await;
        stay("failing").await;
        drop(operator);
        let _operator = fixture.start();
        stay("restarted").await;
        fixture.user.patch("configmaps/settings", json!({"data": {"a": "2"}})).await;
        fixture.until_copied("settings", json!({"a": "2"}), &["a", "b", "new"]).await;
    })
    .await;
}

/// An edited copy stays if its digest is the source's, whichever rule made the copy. The new rule, and the restored label, took the
/// edit away.
#[tokio::test]
async fn with_the_sync_policy_once_an_edited_copy_survives_a_new_rule_and_the_loss_of_its_label() {
    on_both(async |fixture| {
        let once = json!({"syncPolicy": "Once", "deletionPolicy": "Retain", "copyLabels": ["team"]});
        let metadata = json!({"name": "settings", "labels": {"copyrator": "true", "team": "web"}});
        fixture.user.create("configmaps", &json!({"metadata": metadata, "data": {"a": "1"}})).await;
        let _operator = fixture.start();
        fixture.create_rule("main-rule", once.clone()).await;
        fixture.until_ready("main-rule", "Synced").await;
        let (mine, edited) = (json!({"a": "mine"}), fixture.in_namespace("a"));
        let edit = json!({"metadata": {"labels": {"team": "db"}}, "data": mine});
        edited.patch("configmaps/settings", edit).await;
        fixture.delete_rule("main-rule").await;
        fixture.until_deleted("main-rule").await;
        // While one copy fails, the rule does not know that the others were there before.
        fixture.in_namespace("b").create("configmaps", &json!({"metadata": {"name": "taken"}})).await;
        fixture.create_source("taken", json!({})).await;
        fixture.create_rule("main-rule", once).await;
        let uid = fixture.uid("main-rule").await;
        let is_taken_over =
            |copy: &Value| copy["metadata"]["annotations"]["flant.com/rule-uid"].as_str() == Some(&uid);
        for (namespace, data, team) in [("a", &mine, "db"), ("b", &json!({"a": "1"}), "web")] {
            let copy = fixture.in_namespace(namespace).until("configmaps/settings", is_taken_over).await;
            assert_eq!((&copy["data"], &copy["metadata"]["labels"]["team"]), (data, &json!(team)));
        }
        assert_eq!(fixture.until_ready("main-rule", "CopiesFailed").await["copies"], 3);

        let unlabelled = json!({"metadata": {"labels": {"flant.com/copy": null}}});
        edited.patch("configmaps/settings", unlabelled).await;
        let is_labelled = |copy: &Value| copy["metadata"]["labels"]["flant.com/copy"] == "true";
        assert_eq!(edited.until("configmaps/settings", is_labelled).await["data"], mine);

        // The operator knows that it has not seen the content of its source in this copy.
        fixture.send(Method::PATCH, &fixture.rule_path("main-rule"), &json!({"syncPolicy": "Always"})).await;
        fixture.until_settings_in(&["a", "b"]).await;
    })
    .await;
}
