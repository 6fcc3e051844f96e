//! What the operator may do, for whom, and what becomes of rules without it.

use super::*;

/// The operator as a process, with all that it can write about its requests.
#[tokio::test]
async fn the_data_of_a_secret_is_in_no_log_event_status_or_recording() {
    on_both_with_connections(async |fixture| {
        let (secret, shown) = ("aHVudGVyMg==", ["aHVudGVyMg", "hunter2"]);
        let metadata = json!({
            "name": "password", "labels": {"copyrator": "true"},
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "hunter2"},
        });
        let source = json!({"metadata": metadata, "data": {"password": secret}});
        fixture.user.create("secrets", &source).await;
        // Another object has the name of a copy, and a copy that is edited is read.
        let theirs = json!({"metadata": {"name": "password"}, "data": {"password": secret}});
        fixture.in_namespace("a").create("secrets", &theirs).await;
        fixture.create_rule("main-rule", json!({"ruleType": "secret"})).await;
        let once =
            json!({"metadata": {"name": "once", "labels": {"once": ""}}, "data": {"password": secret}});
        fixture.user.create("secrets", &once).await;
        let once = json!({"ruleType": "secret", "syncPolicy": "Once", "selector": {"once": ""}});
        fixture.create_rule("once", once).await;
        let files = TempDir::new().unwrap();
        let (record, curl) = (files.path().join("record"), files.path().join("curl"));
        let (_dir, operator) = fixture.run(&[
            "--copyrator-secrets",
            "--rule-name=*",
            "--log-level",
            "trace",
            "-n",
            &fixture.user.namespace,
            "--record",
            record.to_str().unwrap(),
            "--curl",
            curl.to_str().unwrap(),
        ]);
        fixture.until_ready("main-rule", "CopiesFailed").await;
        let copy = fixture.in_namespace("b");
        copy.until("secrets/password", |copy| copy["data"]["password"] == secret).await;
        copy.patch("secrets/password", json!({"data": {"password": "aHVudGVyMw=="}})).await;
        copy.until("secrets/password", |copy| copy["data"]["password"] == secret).await;
        fixture.user.patch("secrets/password", json!({"immutable": true})).await;
        copy.until("secrets/password", |copy| copy["immutable"] == true).await;
        let events = fixture.user.until("events", |events| events["items"] != json!([])).await;
        let rule = fixture.user.raw(&fixture.rule_path("main-rule")).await.unwrap();
        fixture.until_ready("once", "Synced").await;
        let once = fixture.user.raw(&fixture.rule_path("once")).await.unwrap();
        let copied = copy.get("secrets/once").await;
        let digest = copied["metadata"]["annotations"]["flant.com/content"].as_str().unwrap();
        assert!(once.contains("/once@") && !once.contains(digest), "{once}");
        let read = |path: &Path| fs::read_to_string(path).unwrap();
        let texts = [operator.log(), events.to_string(), rule, read(&record), read(&curl)];
        for (text, hint) in texts.iter().zip(["copyrator", "Event", "CopyratorRule", "password", "password"])
        {
            assert!(text.contains(hint), "{hint}: {text}");
            assert!(!shown.iter().any(|shown| text.contains(shown)), "{text}");
        }
    })
    .await;
}

/// Also if the missing permission is for a kind that the rule does not name.
#[tokio::test]
async fn a_rule_that_waits_for_a_watch_that_is_forbidden_says_so_and_goes_on_after_that() {
    on_both(async |fixture| {
        fixture.forbid_secrets().await;
        let _operator = fixture.start_copying(json!({})).await;
        let status = fixture.until_ready("main-rule", "WatchFailed").await;
        let ready = status["conditions"][0]["message"].as_str().unwrap();
        assert!(ready.contains("grant the verbs list and watch on the resource secrets"), "{ready}");
        assert_eq!(status["conditions"].as_array().unwrap().len(), 1, "{status}");
        fixture.allow(&rules()).await;
        fixture.until_settings_in(&["a", "b"]).await;
        fixture.until_ready("main-rule", "Synced").await;
    })
    .await;
}

/// The API server lets an open watch go on, and refuses the next one. The rule went on to report that all copies were up to date.
#[tokio::test]
async fn a_rule_whose_permission_is_withdrawn_says_so_and_goes_on_when_it_is_back() {
    on_both_with_connections(async |fixture| {
        let proxy = Proxy::start(&fixture.url).await;
        let config = Config::new(&proxy.url(), fixture.ca_pem.as_bytes(), &fixture.token).unwrap();
        let client = Client::new(config).unwrap();
        let _operator = fixture.start_on(&client, Settings { secrets: true, ..Settings::default() }, WORKERS);
        fixture.create_rule("main-rule", json!({"ruleType": "secret"})).await;
        fixture.create_rule("other-rule", json!({})).await;
        fixture.until_ready("main-rule", "NoSources").await;
        fixture.until_ready("other-rule", "NoSources").await;
        fixture.forbid_secrets().await;
        proxy.cut();
        let status = fixture.until_ready("main-rule", "WatchFailed").await;
        let ready = status["conditions"][0]["message"].as_str().unwrap();
        for part in ["403 Forbidden", "secrets", "grant the verbs list and watch on the resource secrets"] {
            assert!(ready.contains(part), "{ready}");
        }
        // A rule without Secrets goes on.
        fixture.create_source("settings", json!({"a": "1"})).await;
        fixture.until_settings_in(&["a", "b"]).await;
        let metadata = json!({"name": "password", "labels": {"copyrator": "true"}});
        fixture.user.create("secrets", &json!({"metadata": metadata, "data": {"a": "MQ=="}})).await;
        fixture.allow(&rules()).await;
        fixture.in_namespace("a").until("secrets/password", |copy| copy["data"]["a"] == "MQ==").await;
        fixture.until_ready("main-rule", "Synced").await;
    })
    .await;
}

#[tokio::test]
async fn secrets_are_copied_only_if_that_is_enabled() {
    on_both(async |fixture| {
        let operator = fixture.start_with(Settings::default());
        fixture.create_rule("main-rule", json!({"ruleType": "secret"})).await;
        fixture.until_ready("main-rule", "SecretsNotEnabled").await;
        fixture.create_rule("empty", json!({"ruleType": "secret"})).await;
        fixture.until_ready("empty", "SecretsNotEnabled").await;
        fixture.delete_rule("empty").await;
        fixture.until_deleted("empty").await;
        drop(operator);
        let secret = |name: &str, kind: &str, data: Value| {
            let metadata =
                json!({"name": name, "labels": {"copyrator": if name == "late" { "late" } else { "true" }}});
            json!({"metadata": metadata, "type": kind, "data": data})
        };
        let registry = json!({".dockerconfigjson": "eyJhdXRocyI6e319"});
        fixture
            .user
            .create("secrets", &secret("registry", "kubernetes.io/dockerconfigjson", registry.clone()))
            .await;
        fixture.user.create("secrets", &secret("release", "helm.sh/release.v1", json!({}))).await;
        fixture
            .user
            .create("secrets", &secret("bootstrap", "bootstrap.kubernetes.io/token", json!({})))
            .await;
        let requests = fixture.wire.0.lock().unwrap().clone();
        assert!(!requests.iter().any(|(_, request)| request.contains("/secrets")), "{requests:?}");

        let operator = fixture.start();
        let status = fixture.until_ready("main-rule", "Synced").await;
        assert_eq!((&status["sources"], &status["copies"]), (&json!(1), &json!(2)));
        let copy = fixture.in_namespace("a").get("secrets/registry").await;
        assert_eq!((&copy["type"], &copy["data"]), (&json!("kubernetes.io/dockerconfigjson"), &registry));
        assert!(fixture.in_namespace("a").find("secrets/release").await.is_none());
        assert!(fixture.in_namespace("a").find("secrets/bootstrap").await.is_none());

        fixture.user.create("secrets", &secret("late", "Opaque", json!({}))).await;
        fixture.create_rule("late", json!({"ruleType": "secret", "selector": {"copyrator": "late"}})).await;
        fixture.until_ready("late", "Synced").await;

        // An operator that may not delete Secrets says that they stay.
        drop(operator);
        let _operator = fixture.start_with(Settings::default());
        fixture.delete_rule("late").await;
        let status = fixture.until_ready("late", "SecretsNotEnabled").await;
        let message = condition(&json!({ "status": status }), "Ready").unwrap()["message"].clone();
        assert!(message.as_str().unwrap().contains("cannot delete the copied Secrets"), "{message}");
        assert_eq!(condition(&json!({ "status": status }), "Stalled").unwrap()["status"], "True");
        fixture.send(Method::PATCH, &fixture.rule_path("late"), &json!({"deletionPolicy": "Retain"})).await;
        fixture.until_deleted("late").await;
        fixture.in_namespace("a").get("secrets/late").await;
        fixture.until_ready("main-rule", "SecretsNotEnabled").await;
        let path = fixture.rule_path("main-rule");
        fixture.send(Method::PATCH, &path, &json!({"ruleType": "configmap"})).await;
        fixture.until_ready("main-rule", "NoSources").await;
        let uid = fixture.uid("main-rule").await;
        fixture.until_left(&fixture.user, &uid, 2, "the operator may not delete Secrets").await;
        fixture.in_namespace("a").get("secrets/registry").await;
    })
    .await;
}

/// The rule waited for the flag, and its namespace with it for ever. The API server accepts no Event in such a namespace.
#[tokio::test]
async fn a_rule_for_secrets_that_are_no_longer_enabled_holds_up_its_namespace_no_longer_than_others() {
    on_both(async |fixture| {
        let operator = fixture.start();
        let metadata = json!({"name": "password", "labels": {"copyrator": "true"}});
        fixture.user.create("secrets", &json!({"metadata": metadata, "data": {"a": "MQ=="}})).await;
        fixture.create_rule("main-rule", json!({"ruleType": "secret"})).await;
        fixture.until_ready("main-rule", "Synced").await;
        let uid = fixture.uid("main-rule").await;
        drop(operator);
        let _operator = fixture.start_with(Settings::default());
        fixture.until_ready("main-rule", "SecretsNotEnabled").await;
        fixture.delete_namespace("src").await;
        // Where a namespace controller runs, it is the first to do so, or the second.
        let path = fixture.rule_path("main-rule");
        drop(fixture.user.send(Method::DELETE, &path, "", &json!(null)).await);
        fixture.until_deleted("main-rule").await;
        let events = UserClient { namespace: "default".to_owned(), ..fixture.user.clone() };
        fixture.until_left(&events, &uid, 2, "the operator may not delete Secrets").await;
        fixture.in_namespace("a").get("secrets/password").await;
    })
    .await;
}

#[tokio::test]
async fn objects_of_another_namespace_need_a_permission() {
    on_both(async |fixture| {
        let operator = fixture.start();
        fixture.create_rule("main-rule", json!({"namespaces": [fixture.namespace("a"), fixture.namespace("b")]})).await;
        fixture.until_ready("main-rule", "SourceNamespaceNotAllowed").await;
        drop(operator);
        let source_namespaces = vec![format!("{}-?", fixture.prefix).parse().unwrap()];
        let _operator = fixture.start_with(Settings { source_namespaces, ..Settings::default() });
        let source = |value: &str| json!({"metadata": {"name": "settings", "labels": {"copyrator": "true"}}, "data": {"a": value}});
        fixture.in_namespace("a").create("configmaps", &source("1")).await;
        fixture.until_settings_in(&["src", "b"]).await;
        fixture.in_namespace("a").delete("configmaps/settings").await;
        fixture.until_settings_in(&[]).await;
    })
    .await;
}

#[tokio::test]
async fn a_rule_of_another_name_is_left_alone() {
    on_both(async |fixture| {
        fixture.create_source("settings", json!({"a": "1"})).await;
        fixture.create_rule("other-rule", json!({})).await;
        fixture.create_rule("main-rule", json!({"selector": {"only": "this"}})).await;
        let _operator =
            fixture.start_with(Settings { rule_name: Some("main-rule".to_owned()), ..Settings::default() });
        fixture.until_ready("main-rule", "NoSources").await;
        let other = fixture.user.raw(&fixture.rule_path("other-rule")).await.unwrap();
        let other: Value = serde_json::from_str(&other).unwrap();
        assert_eq!(other["metadata"]["finalizers"], json!(null));
        assert_eq!(other["status"]["observedGeneration"], -1);
        let writes = fixture.writes();
        assert!(writes.iter().all(|write| write.contains("main-rule")), "{writes:?}");
    })
    .await;
}

/// As the article's operator, which has `main-rule` in `default` as its defaults. On a real server of its own, because it also
/// serves the rules of other tests.
#[tokio::test]
async fn an_operator_that_runs_alone_serves_the_main_rule_unless_it_is_told_to_serve_others() {
    let script = async |fixture: &CopyratorFixture| {
        let own = &*fixture.user.namespace;
        for namespace in ["default", own] {
            for name in ["main-rule", "other-rule", "third-rule"] {
                let path = format!("{RULES}/{namespace}/copyrators");
                let rule = fixture.rule(name, json!({"selector": {"only": fixture.prefix}}));
                fixture.user.try_create(&path, &rule).await.unwrap();
            }
        }
        // All that were ever served.
        let served = async || -> BTreeSet<String> {
            let rules = fixture.user.raw("/apis/flant.com/v1/copyrators").await.unwrap();
            let rules: Value = serde_json::from_str(&rules).unwrap();
            let rules = rules["items"].as_array().unwrap().iter();
            let served = rules.filter(|rule| !rule["metadata"]["finalizers"].is_null());
            let text = |value: &Value| value.as_str().unwrap().to_owned();
            served
                .map(|rule| [&rule["metadata"]["namespace"], &rule["metadata"]["name"]].map(text).join("/"))
                .collect()
        };
        let key = |namespace: &str, name: &str| format!("{namespace}/{name}-rule");
        let none: &[(&str, &str)] = &[];
        let mut expected = BTreeSet::new();
        for (args, variables, rule) in [
            (&[][..], none, key("default", "main")),
            (&[], &[("NAMESPACE", own)], key(own, "main")),
            (&[], &[("RULE_NAME", "other-rule")], key("default", "other")),
            (&["--rule-name", "third-rule", "-n", own], &[("NAMESPACE", "default")], key(own, "third")),
            // A named rule is in one namespace, also beside other operators.
            (&["memcached", "--rule-name", "third-rule"], none, key("default", "third")),
        ] {
            let (dir, operator) = fixture.run_with(args, variables);
            let (namespace, name) = rule.split_once('/').unwrap();
            operator.until_logged(&["serving one CopyratorRule", name, namespace]).await;
            // The log said `all`, although it served one rule.
            let watched = if args.contains(&"memcached") { "all" } else { namespace };
            operator.until_logged(&["\"started\"", &format!("\"namespaces\":\"{watched}\"")]).await;
            expected.insert(rule.clone());
            eventually(&format!("{expected:?} to be served"), async || {
                (served().await == expected).then_some(())
            })
            .await;
            drop((operator, dir));
        }
        expected.insert(key(own, "other"));
        // Beside other operators, without a name: the rules of all namespaces.
        let (dir, operator) = fixture.run(&["memcached"]);
        eventually("all rules to be served", async || (served().await == expected).then_some(())).await;
        drop((operator, dir));
        let path = format!("{RULES}/{own}/copyrators");
        fixture.user.try_create(&path, &fixture.rule("fourth-rule", json!({}))).await.unwrap();
        expected.insert(key(own, "fourth"));
        let _operator = fixture.run(&["--rule-name", "*"]);
        eventually("the new rule to be served", async || (served().await == expected).then_some(())).await;
    };
    script(&CopyratorFixture::embedded().await).await;
    if has_assets() {
        let control_plane = installed_control_plane(Http::Any).await;
        script(&CopyratorFixture::on(&control_plane).await).await;
    }
}

/// Everything that the operator does, with the permissions of the manifests: they must allow exactly the requests in the
/// audit log.
#[tokio::test]
async fn the_manifests_allow_exactly_the_requests_of_the_operator() {
    if !has_assets() {
        return;
    }
    let fixture = CopyratorFixture::real().await;
    let account = fixture.prefix.clone();
    let control_plane = shared_control_plane().await;
    let operator = fixture.start();
    for (kind, resource) in [("configmap", "configmaps"), ("secret", "secrets")] {
        // Another object has the name of a copy, and must be read.
        fixture.in_namespace("a").create(resource, &json!({"metadata": {"name": "x"}})).await;
        let source =
            json!({"metadata": {"name": "x", "labels": {"copyrator": "true"}}, "data": {"a": "YQ=="}});
        fixture.user.create(resource, &source).await;
        fixture.create_rule(&account, json!({"ruleType": kind})).await;
        fixture.until_ready(&account, "CopiesFailed").await;
        fixture
            .send(Method::PATCH, &fixture.rule_path(&account), &json!({"conflictPolicy": "Overwrite"}))
            .await;
        fixture.until_ready(&account, "Synced").await;
        fixture.delete_rule(&account).await;
        fixture.in_namespace("b").until_gone(&format!("{resource}/x")).await;
        eventually("the rule to be deleted", async || {
            fixture.user.raw(&fixture.rule_path(&account)).await.err()
        })
        .await;
    }
    // The audit log has a watch only after its end.
    drop(operator);
    let mut allowed = manifests::allowed(&json!({"rules": rules()}));
    // Only after a conflict, and for a repeated Event.
    let rare = ["get copyrators.flant.com", "patch events.events.k8s.io"].map(str::to_owned);
    rare.iter().for_each(|request| assert!(allowed.remove(request), "{request}"));
    let user = format!("system:serviceaccount:{}:{account}", fixture.user.namespace);
    eventually("the audit log to have the allowed requests, and no others", async || {
        let mut used = manifests::used(control_plane, &user);
        used.retain(|request| !rare.contains(request));
        saw("used", format!("{used:?}"));
        (used == allowed).then_some(())
    })
    .await;
}
