//! The end of a rule, of its namespace, of its CRD, and of a copy.

use super::*;

#[tokio::test]
async fn a_deleted_rule_takes_its_copies_along_or_leaves_them() {
    on_both(async |fixture| {
        let source_namespaces = vec![fixture.namespace("a").parse().unwrap()];
        let _operator = fixture.start_with(Settings { source_namespaces, ..Settings::default() });
        for policy in ["Delete", "Retain"] {
            let name = policy.to_lowercase();
            let metadata = json!({"name": name, "labels": {"only": name, "team": "web"}});
            fixture.user.create("configmaps", &json!({"metadata": metadata, "data": {"a": "1"}})).await;
            let fields =
                json!({"deletionPolicy": policy, "selector": {"only": name}, "copyLabels": ["team"]});
            fixture.create_rule(&name, fields).await;
            fixture.until_ready(&name, "Synced").await;
            let rule = fixture.user.get(&format!("copyrators/{name}")).await;
            assert_eq!(rule["metadata"]["finalizers"], json!(["flant.com/copies"]));
            fixture.delete_rule(&name).await;
            fixture.until_deleted(&name).await;
        }
        fixture.until_copied("delete", json!({}), &[]).await;
        fixture.until_copied("retain", json!({"a": "1"}), &["a", "b"]).await;

        // A new rule for the same source takes over what the other one left behind. That is not a source, whatever its labels are.
        let elsewhere = json!({"namespace": fixture.namespace("a"), "selector": {"team": "web"}});
        fixture.create_rule("elsewhere", elsewhere).await;
        fixture.until_ready("elsewhere", "NoSources").await;
        fixture.create_rule("again", json!({"selector": {"only": "retain"}})).await;
        let status = fixture.until_ready("again", "Synced").await;
        assert_eq!(status["copies"], 2);
        let copy = fixture.in_namespace("a").get("configmaps/retain").await;
        assert!(
            copy["metadata"]["annotations"]["flant.com/rule"].as_str().unwrap().ends_with("/again"),
            "{copy}"
        );
    })
    .await;
}

/// The namespace controller may delete the sources before the rule. Then the rule had no source, and deleted its copies. Only on the real
/// server: there, no namespace controller runs, and the test decides on the order.
#[tokio::test]
async fn a_rule_that_is_deleted_with_its_namespace_leaves_its_copies_if_it_says_so() {
    if !has_assets() {
        return;
    }
    let fixture = CopyratorFixture::real().await;
    let _operator = fixture.start_copying(json!({"deletionPolicy": "Retain"})).await;
    fixture.until_ready("main-rule", "Synced").await;
    fixture.delete_namespace("src").await;
    fixture.until_ready("main-rule", "NamespaceTerminating").await;
    fixture.user.delete("configmaps/settings").await;
    fixture.delete_rule("main-rule").await;
    fixture.until_deleted("main-rule").await;
    fixture.until_settings_in(&["a", "b"]).await;
}

#[tokio::test]
async fn a_deleted_rule_waits_until_its_copies_can_be_deleted() {
    on_both(async |fixture| {
        let _operator = fixture.start_copying(json!({})).await;
        fixture.until_ready("main-rule", "Synced").await;
        let mut fewer = rules();
        for rule in fewer.as_array_mut().unwrap() {
            rule["verbs"].as_array_mut().unwrap().retain(|verb| verb != "delete");
        }
        fixture.allow(&fewer).await;
        let account = UserClient { client: fixture.client.clone(), ..fixture.user.clone() };
        eventually("the permission to be gone", async || {
            let absent = account.path("configmaps/absent");
            let answer = account.send(Method::DELETE, &absent, "", &json!(null)).await;
            answer.err().filter(Error::is_forbidden)
        })
        .await;
        fixture.delete_rule("main-rule").await;
        fixture.until_ready("main-rule", "CopiesFailed").await;
        fixture.until_settings_in(&["a", "b"]).await;
        fixture.allow(&rules()).await;
        fixture.until_deleted("main-rule").await;
        fixture.until_settings_in(&[]).await;
    })
    .await;
}

/// The schema cannot refuse each selector that the operator cannot read.
#[tokio::test]
async fn the_copies_of_an_invalid_rule_stay_if_it_is_deleted_and_an_event_says_so() {
    on_both(async |fixture| {
        let _operator = fixture.start_copying(json!({})).await;
        fixture.until_settings_in(&["a", "b"]).await;
        fixture.until_ready("main-rule", "Synced").await;
        let path = fixture.rule_path("main-rule");
        fixture.send(Method::PATCH, &path, &json!({"selector": {"no label": "x"}})).await;
        fixture.until_ready("main-rule", "InvalidSpec").await;
        // A rule without copies leaves none.
        fixture.create_rule("empty", json!({"selector": {"no label": "x"}})).await;
        fixture.until_ready("empty", "InvalidSpec").await;
        fixture.delete_rule("empty").await;
        fixture.until_deleted("empty").await;
        let uid = fixture.uid("main-rule").await;
        fixture.delete_rule("main-rule").await;
        fixture.until_left(&fixture.user, &uid, 2, "the fields of the deleted rule are invalid").await;
        let events = fixture.user.get("events").await.to_string();
        assert_eq!(events.matches("\"CopiesLeft\"").count(), 1, "{events}");
        fixture.until_settings_in(&["a", "b"]).await;
    })
    .await;
}

/// A finalizer that nobody handles, here the rules', keeps a deleted copy.
#[tokio::test]
async fn a_deleted_copy_that_its_finalizers_keep_is_reported_and_comes_back_after_them() {
    on_both(async |fixture| {
        let _operator = fixture.start_copying(json!({})).await;
        fixture.until_ready("main-rule", "Synced").await;
        let a = fixture.in_namespace("a");
        a.patch("configmaps/settings", json!({"metadata": {"finalizers": ["flant.com/copies"]}})).await;
        a.delete("configmaps/settings").await;
        let status = fixture.until_ready("main-rule", "CopiesFailed").await;
        let failures = status["failures"].as_array().unwrap();
        assert_eq!((failures.len(), &failures[0]["reason"]), (1, &json!("Terminating")), "{status}");
        let message = failures[0]["message"].as_str().unwrap();
        assert!(message.contains("finalizers: flant.com/copies; if nobody handles them"), "{message}");
        fixture.create_source("other", json!({"b": "2"})).await;
        fixture.until_copied("other", json!({"b": "2"}), &["a", "b"]).await;
        a.patch("configmaps/settings", json!({"metadata": {"finalizers": null}})).await;
        fixture.until_ready("main-rule", "Synced").await;
        fixture.until_settings_in(&["a", "b"]).await;
    })
    .await;
}

#[tokio::test]
async fn rules_are_deleted_with_their_crd_and_their_copies_with_them() {
    let script = async |fixture: &CopyratorFixture| {
        let _operator = fixture.start_copying(json!({})).await;
        fixture.until_ready("main-rule", "Synced").await;
        let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/copyrators.flant.com";
        fixture.send(Method::DELETE, path, &json!(null)).await;
        fixture.until_settings_in(&[]).await;
        eventually("the CRD to be deleted", async || {
            fixture.user.raw(path).await.err().filter(|error| error.is_not_found())
        })
        .await;
    };
    script(&CopyratorFixture::embedded().await).await;
    if has_assets() {
        let control_plane = installed_control_plane(Http::Any).await;
        script(&CopyratorFixture::on(&control_plane).await).await;
    }
}
