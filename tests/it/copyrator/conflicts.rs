//! Copies whose names are taken: by other objects, and by older rules.

use super::*;

/// Such a rule may exist: it may be in a namespace that this operator does not watch.
#[tokio::test]
async fn a_copy_of_a_rule_that_the_operator_cannot_see_is_left_alone() {
    on_both(async |fixture| {
        let _operator = fixture.start_copying(json!({})).await;
        fixture.until_ready("main-rule", "Synced").await;
        let rule = format!("{}/other-rule", fixture.namespace("b"));
        let marks = json!({"flant.com/rule": rule, "flant.com/rule-uid": "other"});
        let copies = fixture.in_namespace("a");
        copies
            .patch("configmaps/settings", json!({"metadata": {"annotations": marks}, "data": {"a": "2"}}))
            .await;
        let status = fixture.until_ready("main-rule", "CopiesFailed").await;
        assert_eq!(status["failures"][0]["reason"], "OlderWins", "{status}");
        let copy = copies.get("configmaps/settings").await;
        assert_eq!(
            (&copy["data"]["a"], &copy["metadata"]["annotations"]["flant.com/rule"]),
            (&json!("2"), &json!(rule))
        );
    })
    .await;
}

/// The younger rule is not deleted or changed, and neither is the older one, so only the deletion of the copies says it.
#[tokio::test]
async fn a_rule_that_waits_for_an_older_one_goes_on_when_that_needs_the_place_no_more() {
    on_both(async |fixture| {
        let _operator = fixture.start_copying(json!({})).await;
        fixture.until_ready("main-rule", "Synced").await;
        fixture.create_rule("younger", json!({})).await;
        fixture.until_ready("younger", "CopiesFailed").await;
        // A third rule, which waits for no place.
        fixture.create_rule("third", json!({"selector": {"only": "this"}})).await;
        fixture.until_ready("third", "NoSources").await;
        fixture
            .send(
                Method::PATCH,
                &fixture.rule_path("main-rule"),
                &json!({"selector": {"copyrator": "other"}}),
            )
            .await;
        fixture.until_ready("younger", "Synced").await;
        fixture.until_settings_in(&["a", "b"]).await;
    })
    .await;
}

#[tokio::test]
async fn an_object_that_is_no_copy_stays_unless_the_policy_allows_more() {
    on_both(async |fixture| {
        let _operator = fixture.start();
        let data = |value: &str| json!({"metadata": {"name": "settings"}, "data": {"a": value}});
        fixture.in_namespace("a").create("configmaps", &data("theirs")).await;
        fixture.in_namespace("b").create("configmaps", &data("1")).await;
        fixture.create_source("settings", json!({"a": "1"})).await;
        fixture.create_rule("main-rule", json!({})).await;
        let status = fixture.until_ready("main-rule", "CopiesFailed").await;
        assert_eq!((&status["copies"], &status["failed"]), (&json!(0), &json!(2)));
        let failures: Vec<_> =
            status["failures"].as_array().unwrap().iter().map(|failure| &failure["reason"]).collect();
        assert_eq!(failures, ["NameConflict", "NameConflict"]);
        let note = "an object that is not a copy has this name: delete it, exclude its namespace, or set conflictPolicy";
        let note = format!("{}/settings: NameConflict: {note}", fixture.namespace("a"));
        fixture.until_event("Warning", "CopyFailed", &note).await;

        // An equal object is adopted. A deleted rule deletes only what it has adopted.
        let path = fixture.rule_path("main-rule");
        fixture.send(Method::PATCH, &path, &json!({"conflictPolicy": "Adopt"})).await;
        eventually("the equal object to be adopted", async || {
            (fixture.until_ready("main-rule", "CopiesFailed").await["copies"] == 1).then_some(())
        })
        .await;
        fixture.until_settings_in(&["b"]).await;
        fixture.send(Method::PATCH, &path, &json!({"conflictPolicy": "Overwrite"})).await;
        fixture.until_settings_in(&["a", "b"]).await;
        fixture.until_ready("main-rule", "Synced").await;
    })
    .await;
}

/// A rule took over the start script of a Database in another namespace, where a Pod that started then ran it. The script was deleted
/// with the rule.
#[tokio::test]
async fn an_object_that_a_controller_or_another_program_keeps_is_never_taken_over() {
    on_both(async |fixture| {
        let there = fixture.in_namespace("a");
        let owner = there.create("configmaps", &json!({"metadata": {"name": "db"}})).await;
        let owners = json!([{
            "apiVersion": "v1", "kind": "ConfigMap", "name": "db", "uid": owner["metadata"]["uid"], "controller": true,
        }]);
        let named = |name: &str, more: Value| {
            let mut metadata = json!({"name": name});
            metadata.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            metadata
        };
        let owned = |name: &str| named(name, json!({ "ownerReferences": owners }));
        let managed = named("password", json!({"labels": {"app.kubernetes.io/managed-by": "database-operator"}}));
        let source = |name: &str| named(name, json!({"labels": {"copyrator": "true"}}));
        let _operator = fixture.start();
        for (resource, theirs, data) in [
            ("configmaps", owned("scripts"), "theirs"),
            ("configmaps", owned("equal"), "MQ=="),
            ("secrets", managed, "dGhlaXJz"),
        ] {
            let name = theirs["name"].as_str().unwrap();
            fixture.user.create(resource, &json!({"metadata": source(name), "data": {"a": "MQ=="}})).await;
            there.create(resource, &json!({"metadata": theirs, "data": {"a": data}})).await;
        }
        fixture.user.create("configmaps", &json!({"metadata": source("adopted"), "data": {"a": "MQ=="}})).await;
        fixture.create_rule("main-rule", json!({"conflictPolicy": "Overwrite"})).await;
        fixture.create_rule("of-secrets", json!({"ruleType": "secret", "conflictPolicy": "Overwrite"})).await;
        there.until("configmaps/adopted", |copy| copy["data"]["a"] == "MQ==").await;
        // A copy that gets a controller is a copy no more.
        let adopted = json!({"metadata": {"ownerReferences": owners}, "data": {"a": "theirs"}});
        there.patch("configmaps/adopted", adopted).await;
        let all = async || {
            let mut all = Vec::new();
            for path in ["configmaps/scripts", "configmaps/equal", "configmaps/adopted", "secrets/password"] {
                all.push(there.get(path).await);
            }
            all
        };
        let before = all().await;
        for policy in ["Overwrite", "Adopt", "Skip"] {
            for (rule, copies, keepers) in [
                ("main-rule", 3, &["belongs to ConfigMap db"; 3][..]),
                ("of-secrets", 1, &["has the label app.kubernetes.io/managed-by: database-operator"]),
            ] {
                let path = fixture.rule_path(rule);
                fixture.send(Method::PATCH, &path, &json!({ "conflictPolicy": policy })).await;
                let failed = |status: &Value| status["failed"] == keepers.len() && status["copies"] == copies;
                let status = eventually("the conflicts", async || {
                    Some(fixture.until_ready(rule, "CopiesFailed").await).filter(failed)
                })
                .await;
                for (failure, keeper) in status["failures"].as_array().unwrap().iter().zip(keepers) {
                    let message = failure["message"].as_str().unwrap();
                    let text = format!("an object that {keeper} has this name, so it stays");
                    assert!(failure["reason"] == "NameConflict" && message.starts_with(&text), "{failure}");
                }
            }
        }
        for rule in ["main-rule", "of-secrets"] {
            fixture.delete_rule(rule).await;
            fixture.until_deleted(rule).await;
        }
        assert_eq!(all().await, before);
    })
    .await;
}

/// Two rules turned each other's source into a copy. Then neither had a source, and each deleted its copies: all objects were gone.
#[tokio::test]
async fn the_source_of_another_rule_is_never_overwritten() {
    on_both(async |fixture| {
        let source_namespaces = vec![format!("{}-?", fixture.prefix).parse().unwrap()];
        let source = |value: &str| json!({"metadata": {"name": "settings", "labels": {"copyrator": "true"}}, "data": {"a": value}});
        fixture.user.create("configmaps", &source("1")).await;
        fixture.in_namespace("a").create("configmaps", &source("2")).await;
        for (rule, namespace) in [("first", "src"), ("second", "a")] {
            let namespace = fixture.namespace(namespace);
            fixture.create_rule(rule, json!({"namespace": namespace, "conflictPolicy": "Overwrite"})).await;
        }
        let _operator = fixture.start_with(Settings { source_namespaces, ..Settings::default() });
        for (rule, other, place) in [("first", "second", "a"), ("second", "first", "src")] {
            let status = fixture.until_ready(rule, "CopiesFailed").await;
            let failures = status["failures"].as_array().unwrap();
            let at_source = failures.iter().find(|failure| failure["namespace"] == fixture.namespace(place));
            let message = at_source.unwrap()["message"].as_str().unwrap();
            assert_eq!(at_source.unwrap()["reason"], "NameConflict");
            assert!(message.contains(&format!("{}/{other} copies the object", fixture.user.namespace)), "{message}");
        }
        for (place, value) in [("src", "1"), ("a", "2")] {
            assert_eq!(fixture.in_namespace(place).get("configmaps/settings").await["data"]["a"], value);
        }
    })
    .await;
}

/// Each attempt to create the copy counted against the quota of the namespace, until its users could create nothing.
#[tokio::test]
async fn a_name_that_is_taken_costs_no_quota() {
    on_both(async |fixture| {
        let _operator = fixture.start();
        let theirs = json!({"metadata": {"name": "settings"}, "data": {"a": "theirs"}});
        fixture.in_namespace("a").create("configmaps", &theirs).await;
        fixture.create_source("settings", json!({"a": "1"})).await;
        fixture.create_rule("main-rule", json!({})).await;
        let path = fixture.rule_path("main-rule");
        for _ in 0..3 {
            let status = fixture.until_ready("main-rule", "CopiesFailed").await;
            assert_eq!(status["failures"][0]["reason"], "NameConflict");
            let include = json!([format!("{}-*", fixture.prefix), format!("none-{}", unique())]);
            fixture.send(Method::PATCH, &path, &json!({"targetNamespaces": {"include": include}})).await;
        }
        // A copy that lost its label is not created, either.
        fixture.until_ready("main-rule", "CopiesFailed").await;
        let unlabelled = json!({"metadata": {"labels": {"flant.com/copy": null}}});
        fixture.in_namespace("b").patch("configmaps/settings", unlabelled).await;
        fixture.until_settings_in(&["b"]).await;
        let is_create = |write: &String| write.starts_with("POST") && write.contains("configmaps");
        let created: Vec<_> = fixture.writes().into_iter().filter(is_create).collect();
        assert_eq!(created, ["POST a/configmaps", "POST b/configmaps"]);

        fixture.in_namespace("a").delete("configmaps/settings").await;
        fixture
            .send(
                Method::PATCH,
                &path,
                &json!({"targetNamespaces": {"include": [format!("{}-*", fixture.prefix)]}}),
            )
            .await;
        fixture.until_settings_in(&["a", "b"]).await;
    })
    .await;
}

/// A rule that leaves its copies behind changes none of them, so the younger rule waited for ever.
#[tokio::test]
async fn of_two_rules_for_one_copy_the_older_wins_until_it_is_deleted() {
    on_both(async |fixture| {
        let _operator = fixture.start();
        fixture.create_source("settings", json!({"a": "1"})).await;
        for policy in ["Delete", "Retain"] {
            fixture.create_rule("a-first", json!({"deletionPolicy": policy})).await;
            fixture.until_ready("a-first", "Synced").await;
            fixture.create_rule("b-second", json!({})).await;
            let status = fixture.until_ready("b-second", "CopiesFailed").await;
            assert_eq!(status["failures"][0]["reason"], "OlderWins");
            let older = format!("the CopyratorRule {}/a-first has its copy there", fixture.user.namespace);
            let note = format!(
                "{}/settings: OlderWins: {older}, and gives it up only to an older rule of its namespace",
                fixture.namespace("a")
            );
            fixture.until_event("Warning", "CopyFailed", &note).await;
            let copied =
                fixture.writes().into_iter().filter(|write| write.contains("configmaps")).collect::<Vec<_>>();
            assert_eq!(copied, ["POST a/configmaps", "POST b/configmaps"]);
            fixture.delete_rule("a-first").await;
            fixture.until_ready("b-second", "Synced").await;
            fixture.until_settings_in(&["a", "b"]).await;
            fixture.delete_rule("b-second").await;
            fixture.until_settings_in(&[]).await;
            drop(fixture.writes());
        }
    })
    .await;
}

#[tokio::test]
async fn an_immutable_copy_is_replaced() {
    on_both(async |fixture| {
        let operator = fixture.start();
        fixture.create_rule("main-rule", json!({})).await;
        let source = |value: &str, immutable: Value| {
            let metadata = json!({"name": "settings", "labels": {"copyrator": "true"}});
            json!({"metadata": metadata, "data": {"a": value}, "binaryData": {"b": "AAE="}, "immutable": immutable})
        };
        fixture.user.create("configmaps", &source("1", json!(true))).await;
        fixture.until_settings_in(&["a", "b"]).await;
        let copy = fixture.in_namespace("a").get("configmaps/settings").await;
        assert_eq!((&copy["immutable"], &copy["binaryData"]), (&json!(true), &json!({"b": "AAE="})));
        fixture.user.delete("configmaps/settings").await;
        fixture.user.create("configmaps", &source("2", json!(true))).await;
        fixture.until_copied("settings", json!({"a": "2"}), &["a", "b"]).await;
        fixture.until_ready("main-rule", "Synced").await;

        // Only `immutable` has changed while no operator ran.
        drop(operator);
        fixture.user.delete("configmaps/settings").await;
        fixture.user.create("configmaps", &source("2", json!(null))).await;
        // A planned DELETE leaves the name taken, so the POST after it is tried with another one.
        let plan = fixture.plan().await;
        assert_eq!((plan.exit_code(), &plan.problems[..]), (1, &[][..]), "{plan}");
        let again = plan.to_string().matches("/settings (planned, deleted and created again)\n").count();
        assert_eq!(again, 2, "{plan}");
        drop(fixture.writes());
        let _operator = fixture.start();
        let is_mutable = |copy: &Value| copy["immutable"].is_null();
        fixture.in_namespace("a").until("configmaps/settings", is_mutable).await;
        fixture.in_namespace("b").until("configmaps/settings", is_mutable).await;
        let mut writes = fixture.writes();
        writes.retain(|write| write.contains("configmaps"));
        let replaced = ["DELETE a/configmaps/settings", "DELETE b/configmaps/settings"];
        assert_eq!(writes, [replaced, ["POST a/configmaps", "POST b/configmaps"]].concat());
    })
    .await;
}
