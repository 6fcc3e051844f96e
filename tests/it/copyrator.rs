//! Tests the operator of CopyratorRule on both servers: in whatever order things come, the copies end as they should be.
//!
//! The operator runs in the process of the test, and a tap on its connection has a transcript of its writes. On the real server,
//! which all tests share, each test has namespaces of its own, `c7-src`, `c7-a` and so on, and its rules copy to no others. The
//! operator has the permissions of the manifests.

use std::{
    collections::BTreeSet,
    fs,
    future::pending,
    io,
    path::Path,
    pin::Pin,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use http::Method;
use http_body_util::BodyExt;
use listwatch::{
    client::{Client, Config, Error, InProcess, InProcessAnswer, Step, Tap},
    cluster::{Cluster, Events},
    controller::WORKERS,
    operators::copyrator::{self, Settings},
    runtime::Setup,
    watch::Lists,
};
use listwatch_apiserver::{ApiServer, Fault};
use listwatch_control_plane::{ControlPlane, Http, eventually, has_assets, saw, unique};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    task::{JoinSet, spawn_blocking},
    time::Instant,
};

use crate::{
    client::{self, UserClient, condition},
    fixture::{
        Link, admin_of, has_only_real, installed_control_plane, on_paused_clock, shared_control_plane,
    },
    manifests,
    operator::Operator,
    proxy::Proxy,
};

const RULES: &str = "/apis/flant.com/v1/namespaces";
const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";

/// A server with the CRD, and namespaces for one test.
struct CopyratorFixture {
    prefix: String,
    user: UserClient,
    /// The client of the operator.
    client: Client,
    wire: Arc<Wire>,
    /// The embedded server.
    server: Option<Arc<ApiServer>>,
    url: String,
    ca_pem: String,
    /// Of the operator.
    token: String,
}

/// The requests of the operator: time, method, path and query of each, and whether it asks for metadata only.
#[derive(Default)]
struct Wire(Mutex<Vec<(Instant, String)>>);

impl Tap for Wire {
    fn step(&self, _: u64, step: Step<'_>) {
        if let Step::Request(request) = step {
            let metadata =
                if request.accept.contains("as=PartialObjectMetadata") { ", metadata only" } else { "" };
            let query: Vec<_> =
                request.query.iter().map(|(name, value)| format!(", {name}={value}")).collect();
            let line = format!("{request:?}{}{metadata}", query.concat());
            self.0.lock().unwrap().push((Instant::now(), line));
        }
    }
}

/// A running operator. Dropped: stopped at once, as by `kill -9`.
struct Running(#[allow(dead_code, reason = "dropping it ends the tasks")] JoinSet<()>);

/// The permissions of the manifests, with those for Secrets.
fn rules() -> Value {
    let mut rules = manifests::read("copyrator/operator/role.yaml")[0]["rules"].take();
    let patch = manifests::read("copyrator/secrets/role-patch.yaml").remove(0);
    rules.as_array_mut().unwrap().push(patch[0]["value"].clone());
    rules
}

/// Creates a ServiceAccount with a ClusterRole of its own, still without rules. Returns a token.
async fn new_account(user: &UserClient, name: &str) -> String {
    let metadata = json!({"name": name});
    let binding = json!({
        "metadata": metadata,
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": user.namespace}],
    });
    user.try_create(&format!("{RBAC}/clusterroles"), &json!({"metadata": metadata})).await.unwrap();
    user.try_create(&format!("{RBAC}/clusterrolebindings"), &binding).await.unwrap();
    user.create("serviceaccounts", &json!({"metadata": metadata})).await;
    let request =
        json!({"spec": {"audiences": ["https://kubernetes.default.svc"], "expirationSeconds": 3600}});
    let answer = user.create(&format!("serviceaccounts/{name}/token"), &request).await;
    answer["status"]["token"].as_str().unwrap().to_owned()
}

/// Runs a script on both servers: on the embedded one without a connection, and on a paused clock.
async fn on_both(script: impl AsyncFn(&CopyratorFixture) + Copy + Send + 'static) {
    let run = move || on_paused_clock(async { script(&CopyratorFixture::in_process().await).await });
    let embedded = (!has_only_real()).then(|| spawn_blocking(run));
    if has_assets() {
        script(&CopyratorFixture::real().await).await;
    }
    if let Some(embedded) = embedded {
        embedded.await.unwrap();
    }
}

/// The same, and both servers have connections: for scripts with a proxy or with an operator in a process of its own.
async fn on_both_with_connections(script: impl AsyncFn(&CopyratorFixture)) {
    if !has_only_real() {
        script(&CopyratorFixture::embedded().await).await;
    }
    if has_assets() {
        script(&CopyratorFixture::real().await).await;
    }
}

impl CopyratorFixture {
    async fn embedded() -> CopyratorFixture {
        let server = Arc::new(ApiServer::start(listwatch_apiserver::Options::default()).await.unwrap());
        let (url, ca_pem) = (server.url(), server.ca_pem().to_owned());
        let config = |token: &str| Config::new(&url, ca_pem.as_bytes(), token).unwrap();
        CopyratorFixture::new(&url, &ca_pem, client::admin(&server), Some(server), config).await
    }

    async fn in_process() -> CopyratorFixture {
        let options = listwatch_apiserver::Options::default();
        let server = Arc::new(ApiServer::in_process(&options, SystemTime::now()));
        let link = Arc::new(Link(Arc::clone(&server)));
        let admin = Client::new(link.config(server.token())).unwrap();
        CopyratorFixture::new("", "", admin, Some(server), |token| link.config(token)).await
    }

    async fn real() -> CopyratorFixture {
        CopyratorFixture::on(shared_control_plane().await).await
    }

    async fn on(control_plane: &ControlPlane) -> CopyratorFixture {
        let (url, ca_pem) = (control_plane.url(), control_plane.ca_pem());
        let config = |token: &str| Config::new(&url, ca_pem.as_bytes(), token).unwrap();
        CopyratorFixture::new(&url, &ca_pem, admin_of(control_plane), None, config).await
    }

    /// `config`: how the bearer of a token reaches the server.
    async fn new(
        url: &str,
        ca_pem: &str,
        admin: Client,
        server: Option<Arc<ApiServer>>,
        config: impl Fn(&str) -> Config,
    ) -> CopyratorFixture {
        let prefix = format!("c{}", unique());
        let user = UserClient { client: admin, namespace: format!("{prefix}-src") };
        // Another test may have installed it on the shared server.
        let crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        match user.try_create(crds, &copyrator::types::definition()).await {
            Err(error) if error.is_already_exists() => {}
            created => drop(created.unwrap()),
        }
        eventually("the CRD to be served", async || user.raw("/apis/flant.com/v1/copyrators").await.ok())
            .await;
        let namespace = json!({"metadata": {"name": user.namespace}});
        user.try_create("/api/v1/namespaces", &namespace).await.unwrap();
        let token = match &server {
            Some(server) => server.new_token(&prefix),
            None => new_account(&user, &prefix).await,
        };
        let wire = Arc::<Wire>::default();
        let client = Client::new(config(&token).with_tap(wire.clone())).unwrap();
        let (url, ca_pem) = (url.to_owned(), ca_pem.to_owned());
        let fixture = CopyratorFixture { prefix, user, client, wire, server, url, ca_pem, token };
        fixture.allow(&rules()).await;
        for namespace in ["a", "b"] {
            fixture.create_namespace(namespace, json!({})).await;
        }
        fixture
    }

    /// Replaces the permissions of the operator.
    async fn allow(&self, rules: &Value) {
        match &self.server {
            Some(server) => server.set_rules(&self.prefix, serde_json::from_value(rules.clone()).unwrap()),
            None => {
                let path = format!("{RBAC}/clusterroles/{}", self.prefix);
                self.send(Method::PATCH, &path, &json!({"rules": rules})).await;
            }
        }
    }

    /// Takes the permissions for Secrets from the operator, and waits until the server enforces this.
    async fn forbid_secrets(&self) {
        let mut fewer = rules();
        fewer.as_array_mut().unwrap().retain(|rule| rule["resources"] != json!(["secrets"]));
        self.allow(&fewer).await;
        let account = UserClient::new(self.client.clone());
        eventually("the permission to be gone", async || {
            account.raw("/api/v1/secrets").await.err().filter(Error::is_forbidden)
        })
        .await;
    }

    /// Starts the operator as a process, with a directory for its files.
    fn run(&self, args: &[&str]) -> (TempDir, Operator) {
        self.run_with(args, &[])
    }

    /// The same, with these variables.
    fn run_with(&self, args: &[&str], variables: &[(&str, &str)]) -> (TempDir, Operator) {
        let dir = TempDir::new().unwrap();
        for (name, text) in
            [("token", &self.token), ("ca.crt", &self.ca_pem), ("namespace", &self.user.namespace)]
        {
            fs::write(dir.path().join(name), text).unwrap();
        }
        let operator = Operator::run(&["copyrator"], &self.url, dir.path(), args, variables);
        (dir, operator)
    }

    /// Starts an operator for the rules of this test.
    fn start(&self) -> Running {
        self.start_with(Settings { secrets: true, ..Settings::default() })
    }

    fn start_with(&self, settings: Settings) -> Running {
        self.start_on(&self.client, settings, WORKERS)
    }

    fn start_on(&self, client: &Client, settings: Settings, workers: usize) -> Running {
        let cluster = Cluster::new(client.clone(), Lists::Paged);
        let (events, write_events) = Events::new(client.clone(), copyrator::CONTROLLER, "test".into());
        let setup = Setup { cluster, events, namespaces: vec![self.user.namespace.clone()] };
        let controller = copyrator::controller(setup, settings);
        let mut tasks = JoinSet::new();
        tasks.spawn(controller.workers(workers).run(std::future::pending()));
        tasks.spawn(write_events);
        Running(tasks)
    }

    /// Starts an operator, with a rule for `settings`, a ConfigMap with the data `a: "1"`.
    async fn start_copying(&self, fields: Value) -> Running {
        let operator = self.start();
        self.create_rule("main-rule", fields).await;
        self.create_source("settings", json!({"a": "1"})).await;
        operator
    }

    fn namespace(&self, name: &str) -> String {
        format!("{}-{name}", self.prefix)
    }

    async fn create_namespace(&self, name: &str, labels: Value) {
        let name = self.namespace(name);
        let namespace = json!({"metadata": {"name": name, "labels": labels}});
        self.user.try_create("/api/v1/namespaces", &namespace).await.unwrap();
    }

    async fn change_namespace(&self, name: &str, patch: Value) {
        let path = format!("/api/v1/namespaces/{}", self.namespace(name));
        self.send(Method::PATCH, &path, &patch).await;
    }

    async fn delete_namespace(&self, name: &str) {
        let path = format!("/api/v1/namespaces/{}", self.namespace(name));
        self.send(Method::DELETE, &path, &json!(null)).await;
    }

    /// Sends a request with, if it is a PATCH, a merge patch.
    async fn send(&self, method: Method, path: &str, body: &Value) -> Value {
        self.user.send(method, path, "application/merge-patch+json", body).await.unwrap()
    }

    fn in_namespace(&self, name: &str) -> UserClient {
        UserClient { namespace: self.namespace(name), ..self.user.clone() }
    }

    fn rule_path(&self, name: &str) -> String {
        format!("{RULES}/{}/copyrators/{name}", self.user.namespace)
    }

    /// A rule that copies to the namespaces of this test, with more fields.
    fn rule(&self, name: &str, fields: Value) -> Value {
        let mut rule = json!({
            "apiVersion": "flant.com/v1", "kind": "CopyratorRule", "metadata": {"name": name},
            "ruleType": "configmap", "selector": {"copyrator": "true"},
            "targetNamespaces": {"include": [format!("{}-*", self.prefix)]},
        });
        rule.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        rule
    }

    async fn create_rule(&self, name: &str, fields: Value) {
        let path = format!("{RULES}/{}/copyrators", self.user.namespace);
        self.user.try_create(&path, &self.rule(name, fields)).await.unwrap();
    }

    async fn delete_rule(&self, name: &str) {
        self.send(Method::DELETE, &self.rule_path(name), &json!(null)).await;
    }

    async fn until_deleted(&self, name: &str) {
        eventually("the rule to be deleted", async || {
            let error = self.user.raw(&self.rule_path(name)).await.err()?;
            error.is_not_found().then_some(())
        })
        .await;
    }

    async fn create_source(&self, name: &str, data: Value) {
        let source = json!({"metadata": {"name": name, "labels": {"copyrator": "true"}}, "data": data});
        self.user.create("configmaps", &source).await;
    }

    /// Waits until the rule has this reason for `Ready`, at its present generation. Returns its status.
    async fn until_ready(&self, name: &str, reason: &str) -> Value {
        eventually(&format!("{name} to be {reason}"), async || {
            let rule: Value =
                serde_json::from_str(&self.user.raw(&self.rule_path(name)).await.ok()?).unwrap();
            let is_observed = rule["status"]["observedGeneration"] == rule["metadata"]["generation"];
            let is_so = condition(&rule, "Ready")?["reason"] == reason;
            (is_observed && is_so).then(|| rule["status"].clone())
        })
        .await
    }

    /// Waits until these namespaces have a ConfigMap of this name with this data, and the others of this test have none.
    async fn until_copied(&self, name: &str, data: Value, namespaces: &[&str]) {
        let wanted: BTreeSet<_> = namespaces.iter().map(|name| self.namespace(name)).collect();
        eventually(&format!("{name} to be in {wanted:?} with {data}"), async || {
            let list = self.user.raw("/api/v1/configmaps?labelSelector=flant.com/copy").await.ok()?;
            let list: Value = serde_json::from_str(&list).unwrap();
            let copies = list["items"].as_array().unwrap().iter().filter(|copy| {
                let namespace = copy["metadata"]["namespace"].as_str().unwrap();
                copy["metadata"]["name"] == name && namespace.starts_with(&format!("{}-", self.prefix))
            });
            let mut found = BTreeSet::new();
            for copy in copies {
                if copy["data"] != data {
                    return None;
                }
                found.insert(copy["metadata"]["namespace"].as_str().unwrap().to_owned());
            }
            (found == wanted).then_some(())
        })
        .await;
    }

    /// Waits until these namespaces have the copy of [`CopyratorFixture::start_copying`], and the others of this test have none.
    async fn until_settings_in(&self, namespaces: &[&str]) {
        self.until_copied("settings", json!({"a": "1"}), namespaces).await;
    }

    /// Waits until the namespace of the rules has an Event with this type, reason and note.
    async fn until_event(&self, r#type: &str, reason: &str, note: &str) {
        until_event_in(&self.user, r#type, reason, note).await;
    }

    async fn uid(&self, rule: &str) -> String {
        let rule = self.user.get(&format!("copyrators/{rule}")).await;
        rule["metadata"]["uid"].as_str().unwrap().to_owned()
    }

    /// Waits until an Event in a namespace says that so many copies of `main-rule`, which had this uid, stay.
    async fn until_left(&self, events: &UserClient, uid: &str, copies: usize, cause: &str) {
        let rule = format!("{}/main-rule", self.user.namespace);
        let marks =
            format!("they have the label flant.com/copy and the annotation flant.com/rule-uid: {uid}");
        let note = format!("{copies} copies of the CopyratorRule {rule} stay, because {cause}: {marks}");
        until_event_in(events, "Warning", "CopiesLeft", &note).await;
    }

    /// The writes of the operator since the last call, without Events, in the order of their texts.
    fn writes(&self) -> Vec<String> {
        let requests = std::mem::take(&mut *self.wire.0.lock().unwrap());
        let writes = requests
            .into_iter()
            .map(|(_, request)| request)
            .filter(|request| !request.starts_with("GET") && !request.contains("/events"));
        let mut writes: Vec<_> =
            writes.map(|request| request.replace(&format!("{}-", self.prefix), "")).collect();
        writes.iter_mut().for_each(|write| {
            let end = write.find(" (").unwrap_or(write.len());
            write.truncate(end);
            *write = write.replace("/api/v1/namespaces/", "").replace("/apis/flant.com/v1/namespaces/", "");
        });
        writes.sort();
        writes
    }
}

/// Waits until a namespace has an Event with this type, reason and note.
async fn until_event_in(events: &UserClient, r#type: &str, reason: &str, note: &str) {
    let wanted = json!([r#type, reason, note]);
    let is_wanted = |events: &Value| {
        let mut events = events["items"].as_array().unwrap().iter();
        events.any(|event| {
            let note = event["note"].as_str().or(event["message"].as_str());
            json!([event["type"], event["reason"], note]) == wanted
        })
    };
    events.until("events", is_wanted).await;
}

/// The scenario of the article: a rule, a labelled ConfigMap, and then a new namespace.
#[tokio::test]
async fn a_labelled_config_map_is_copied_to_all_namespaces_also_to_new_ones() {
    on_both(async |fixture| {
        let _operator = fixture.start();
        fixture.create_rule("main-rule", json!({})).await;
        fixture.until_ready("main-rule", "NoSources").await;
        fixture.create_source("settings", json!({"color": "red"})).await;
        fixture.until_copied("settings", json!({"color": "red"}), &["a", "b"]).await;
        fixture.create_namespace("new", json!({})).await;
        fixture.until_copied("settings", json!({"color": "red"}), &["a", "b", "new"]).await;
        let status = fixture.until_ready("main-rule", "Synced").await;
        assert_eq!((&status["sources"], &status["failed"]), (&json!(1), &json!(0)));

        // The server selects the sources, and of copies, only the metadata are read.
        let requests = fixture.wire.0.lock().unwrap().clone();
        let lists =
            requests.iter().map(|(_, request)| request).filter(|request| request.contains("/configmaps ("));
        let lists = lists.filter(|request| request.starts_with("GET"));
        let (copies, sources): (Vec<_>, Vec<_>) =
            lists.partition(|request| request.starts_with("GET /api/v1/configmaps"));
        let of_source =
            |request: &&String| request.contains("copyrator") && request.contains("!flant.com/copy");
        assert!(!sources.is_empty() && sources.iter().all(of_source), "{sources:?}");
        let of_copy = |request: &&String| {
            request.contains("labelSelector=flant.com/copy=true") && request.ends_with("metadata only")
        };
        assert!(!copies.is_empty() && copies.iter().all(of_copy), "{copies:?}");

        // A copy is not a source, and has nothing but the content of its source.
        let copy = fixture.in_namespace("a").get("configmaps/settings").await;
        assert_eq!(copy["metadata"]["labels"], json!({"flant.com/copy": "true"}));
        assert_eq!(copy["metadata"]["ownerReferences"], json!(null));
        assert_eq!(copy["metadata"]["finalizers"], json!(null));

        fixture.user.patch("configmaps/settings", json!({"data": {"color": null, "size": "8"}})).await;
        fixture.until_copied("settings", json!({"size": "8"}), &["a", "b", "new"]).await;
        fixture.user.patch("configmaps/settings", json!({"metadata": {"labels": {"copyrator": "no"}}})).await;
        fixture.until_settings_in(&[]).await;
        assert!(fixture.user.find("configmaps/settings").await.is_some(), "the source stays");
    })
    .await;
}

#[tokio::test]
async fn rule_source_and_namespace_may_come_in_any_order() {
    on_both(async |fixture| {
        let _operator = fixture.start();
        for (number, order) in ["rsn", "rns", "srn", "snr", "nrs", "nsr"].iter().enumerate() {
            let (rule, source, namespace) =
                (format!("rule-{number}"), format!("s-{number}"), format!("n{number}"));
            for step in order.chars() {
                match step {
                    'r' => {
                        let include = [fixture.namespace(&namespace)];
                        let fields =
                            json!({"selector": {"only": source}, "targetNamespaces": {"include": include}});
                        fixture.create_rule(&rule, fields).await;
                    }
                    's' => {
                        let labels = json!({"only": source});
                        let object =
                            json!({"metadata": {"name": source, "labels": labels}, "data": {"a": "1"}});
                        fixture.user.create("configmaps", &object).await;
                    }
                    _ => fixture.create_namespace(&namespace, json!({})).await,
                }
            }
            fixture.until_copied(&source, json!({"a": "1"}), &[&namespace]).await;
        }
    })
    .await;
}

#[tokio::test]
async fn copies_follow_the_labels_and_the_end_of_namespaces() {
    on_both(async |fixture| {
        let target = json!({"selector": {"team": "web"}, "include": [format!("{}-*", fixture.prefix)], "exclude": [fixture.namespace("b")]});
        let _operator = fixture.start_copying(json!({"targetNamespaces": target})).await;
        fixture.until_ready("main-rule", "Synced").await;
        let web = json!({"metadata": {"labels": {"team": "web"}}});
        fixture.change_namespace("a", web.clone()).await;
        fixture.change_namespace("b", web).await;
        fixture.create_namespace("gone", json!({"team": "web"})).await;
        fixture.until_settings_in(&["a", "gone"]).await;
        fixture.delete_namespace("gone").await;
        fixture.change_namespace("a", json!({"metadata": {"labels": {"team": "db"}}})).await;
        fixture.until_settings_in(&[]).await;
        let status = fixture.until_ready("main-rule", "Synced").await;
        assert_eq!(status["failed"], 0);
    })
    .await;
}

#[tokio::test]
async fn a_changed_selector_replaces_the_copies() {
    on_both(async |fixture| {
        let _operator = fixture.start_copying(json!({})).await;
        let metadata = json!({"name": "other", "labels": {"tier": "web"}});
        fixture.user.create("configmaps", &json!({"metadata": metadata, "data": {"b": "2"}})).await;
        fixture.until_settings_in(&["a", "b"]).await;
        let web = json!({"key": "tier", "operator": "In", "values": ["web"]});
        let selector = json!({"copyrator": null, "matchExpressions": [web]});
        fixture.send(Method::PATCH, &fixture.rule_path("main-rule"), &json!({"selector": selector})).await;
        fixture.until_copied("other", json!({"b": "2"}), &["a", "b"]).await;
        fixture.until_settings_in(&[]).await;
        fixture.until_ready("main-rule", "Synced").await;
    })
    .await;
}

#[tokio::test]
async fn a_copy_gets_the_named_labels_but_no_mark_of_another_program() {
    on_both(async |fixture| {
        let marks = ["app.kubernetes.io/managed-by", "argocd.argoproj.io/instance", "helm.sh/chart"];
        let mut labels = json!({"copyrator": "true", "team": "web", "other": "x"});
        marks.iter().for_each(|mark| labels[mark] = json!("Helm"));
        let metadata = json!({"name": "settings", "labels": labels});
        fixture.user.create("configmaps", &json!({"metadata": metadata, "data": {"a": "1"}})).await;
        let _operator = fixture.start();
        let named = [&marks[..], &["team", "flant.com/copy"]].concat();
        fixture.create_rule("main-rule", json!({"copyLabels": named})).await;
        fixture.until_settings_in(&["a", "b"]).await;
        let copy = fixture.in_namespace("a").get("configmaps/settings").await;
        assert_eq!(copy["metadata"]["labels"], json!({"flant.com/copy": "true", "team": "web"}));
    })
    .await;
}

/// Argo CD takes a Secret with its label `secret-type` for a cluster or a repository. Without that label, a copy of it was of no use, and
/// nothing said why.
#[tokio::test]
async fn a_copy_gets_the_named_annotations_and_keys_and_loses_what_is_no_longer_named() {
    on_both(async |fixture| {
        let (asked, mark) = ("argocd.argoproj.io/secret-type", "argocd.argoproj.io/tracking-id");
        let annotations = json!({"note": "x", mark: "app", "other": "y"});
        let labels = json!({"copyrator": "true", asked: "cluster"});
        let metadata = json!({"name": "settings", "labels": labels, "annotations": annotations});
        let data = json!({"ca.crt": "ca", "tls.crt": "certificate", "tls.key": "key"});
        fixture.user.create("configmaps", &json!({"metadata": metadata, "data": data})).await;
        let secret = json!({
            "metadata": {"name": "tls", "labels": {"copyrator": "true"}}, "type": "kubernetes.io/tls", "stringData": data,
        });
        fixture.user.create("secrets", &secret).await;
        let _operator = fixture.start_with(Settings { secrets: true, ..Settings::default() });
        let fields = json!({
            "copyLabels": [asked], "copyAnnotations": ["note", mark, "flant.com/rule"],
            "keys": ["ca.crt", "tls.crt", "absent"], "rename": {"ca.crt": "root.crt"},
        });
        fixture.create_rule("main-rule", fields.clone()).await;
        let renamed = json!({"root.crt": "ca", "tls.crt": "certificate"});
        fixture.until_copied("settings", renamed.clone(), &["a", "b"]).await;
        let team = fixture.in_namespace("a");
        let copy = team.get("configmaps/settings").await;
        assert_eq!(copy["metadata"]["labels"], json!({"flant.com/copy": "true", asked: "cluster"}));
        let annotations = &copy["metadata"]["annotations"];
        assert_eq!((&annotations["note"], &annotations[mark], &annotations["other"]), (&json!("x"), &Value::Null, &Value::Null));
        assert!(annotations["flant.com/rule"].as_str().unwrap().ends_with("/main-rule"), "{annotations}");

        // Of a Secret, the type would require the key that is left out.
        let mut of_secrets = fields;
        of_secrets["ruleType"] = "secret".into();
        fixture.create_rule("secrets", of_secrets).await;
        let copy = team.until("secrets/tls", |_| true).await;
        assert_eq!((&copy["type"], copy["data"].as_object().unwrap().len()), (&json!("Opaque"), 2));

        let edit = json!({"metadata": {"annotations": {"note": "edited", "theirs": "z"}}});
        team.patch("configmaps/settings", edit).await;
        team.until("configmaps/settings", |copy| copy["metadata"]["annotations"]["note"] == "x").await;
        let all = json!({"copyLabels": null, "copyAnnotations": null, "keys": null, "rename": null});
        for rule in ["main-rule", "secrets"] {
            fixture.send(Method::PATCH, &fixture.rule_path(rule), &all).await;
        }
        fixture.until_copied("settings", data, &["a", "b"]).await;
        let copy = team.get("configmaps/settings").await;
        assert_eq!(copy["metadata"]["labels"], json!({"flant.com/copy": "true"}));
        let annotations = &copy["metadata"]["annotations"];
        assert_eq!((&annotations["note"], &annotations["theirs"]), (&Value::Null, &json!("z")));
        assert_eq!(annotations["flant.com/annotations"], Value::Null);
        team.until("secrets/tls", |copy| copy["type"] == "kubernetes.io/tls").await;
    })
    .await;
}

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

/// Whether the digest of an edited copy is that of the source decides, and not which rule has made the copy. The new rule, and the
/// restored label, took the edit away.
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

        // A new rule for the same source takes over what the other one left behind. That is no source, whatever its labels are.
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
            let older = format!("the CopyratorRule {}/a-first is older", fixture.user.namespace);
            let note =
                format!("{}/settings: OlderWins: {older} and has its copy there", fixture.namespace("a"));
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

/// The copy for namespace `a` is refused, and that for `b` is created. After `admit`, both are there.
async fn a_refusal_stops_no_other_copy(
    fixture: &CopyratorFixture,
    reason: &str,
    remedy: &str,
    admit: impl AsyncFn(&UserClient),
) {
    let _operator = fixture.start_copying(json!({})).await;
    let status = fixture.until_ready("main-rule", "CopiesFailed").await;
    assert_eq!(status["failures"][0]["reason"], reason, "{status}");
    let message = status["failures"][0]["message"].as_str().unwrap();
    assert!(message.ends_with(remedy), "{message}");
    let note = format!("{}/settings: {reason}: {message}", fixture.namespace("a"));
    fixture.until_event("Warning", "CopyFailed", &note).await;
    fixture.until_settings_in(&["b"]).await;
    match &fixture.server {
        Some(server) => server.end_faults(),
        None => admit(&fixture.in_namespace("a")).await,
    }
    fixture.until_settings_in(&["a", "b"]).await;
    fixture.until_ready("main-rule", "Synced").await;
}

#[tokio::test]
async fn a_full_namespace_stops_no_other_one() {
    on_both(async |fixture| {
        let full = fixture.in_namespace("a");
        if let Some(server) = &fixture.server {
            server.fault(Fault::Quota("full".to_owned()).on("POST", &full.path("configmaps")));
        } else {
            let quota = json!({"metadata": {"name": "full"}, "spec": {"hard": {"count/configmaps": "0"}}});
            full.create("resourcequotas", &quota).await;
            full.until("resourcequotas/full", |quota| quota["status"]["hard"].is_object()).await;
        }
        let admit = async |full: &UserClient| full.delete("resourcequotas/full").await;
        let remedy = "; raise the quota full, or delete objects";
        a_refusal_stops_no_other_copy(fixture, "QuotaExceeded", remedy, admit).await;
    })
    .await;
}

#[tokio::test]
async fn a_policy_that_denies_a_copy_stops_no_other_one() {
    on_both(async |fixture| {
        let admission = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolic";
        let denied = fixture.in_namespace("a");
        if let Some(server) = &fixture.server {
            let (webhook, message) = ("policy".to_owned(), "no copies".to_owned());
            server.fault(Fault::Deny { webhook, message, code: 422 }.on("POST", &denied.path("configmaps")));
        } else {
            let name = &denied.namespace;
            let metadata = json!({"name": name});
            let rule = json!({"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]});
            let spec = json!({"matchConstraints": {"resourceRules": [rule]}, "validations": [{"expression": "false"}]});
            let policy = json!({"metadata": metadata, "spec": spec});
            fixture.user.try_create(&format!("{admission}ies"), &policy).await.unwrap();
            let namespace = json!({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}});
            let spec = json!({"policyName": name, "validationActions": ["Deny"], "matchResources": namespace});
            let binding = json!({"metadata": metadata, "spec": spec});
            fixture.user.try_create(&format!("{admission}ybindings"), &binding).await.unwrap();
            let path = denied.path("configmaps?dryRun=All");
            let probe = json!({"metadata": {"name": "probe"}});
            eventually("the policy to deny", async || denied.try_create(&path, &probe).await.err()).await;
        }
        let admit = async |denied: &UserClient| {
            let path = format!("{admission}ybindings/{}", denied.namespace);
            fixture.send(Method::DELETE, &path, &json!(null)).await;
        };
        let remedy = "; change the policy, or what it denies";
        a_refusal_stops_no_other_copy(fixture, "AdmissionDenied", remedy, admit).await;
    })
    .await;
}

/// A real server answers so only under load.
#[tokio::test]
async fn after_a_429_a_copy_waits_as_long_as_the_server_asks_and_the_others_go_on() {
    let fixture = CopyratorFixture::embedded().await;
    let server = fixture.server.as_ref().unwrap();
    let body = "Too many requests, please try again later.\n".to_owned();
    let busy = Fault::Answer { status: 429, body, retry_after_secs: Some(1) };
    server.fault(busy.on("POST", &fixture.in_namespace("a").path("configmaps")));
    let _operator = fixture.start_copying(json!({})).await;
    fixture.until_settings_in(&["b"]).await;
    server.end_faults();
    fixture.until_settings_in(&["a", "b"]).await;
    let requests = fixture.wire.0.lock().unwrap();
    let sent = |namespace: &str| {
        let path = fixture.in_namespace(namespace).path("configmaps");
        let is_it = |(_, request): &&(Instant, String)| request.starts_with(&format!("POST {path}"));
        requests.iter().filter(is_it).map(|(time, _)| *time).collect::<Vec<_>>()
    };
    let (waiting, other) = (sent("a"), sent("b"));
    assert!(waiting.len() > 1 && other[0] < waiting[1], "{waiting:?} {other:?}");
    let is_patient = |times: &[Instant]| times[1] - times[0] >= Duration::from_secs(1);
    assert!(waiting.windows(2).all(is_patient), "{waiting:?}");
}

/// The creations of ConfigMaps that have no answer yet, and their greatest number.
#[derive(Default)]
struct Creating(Mutex<(BTreeSet<u64>, usize)>);

impl Tap for Creating {
    fn step(&self, exchange: u64, step: Step<'_>) {
        let (open, most) = &mut *self.0.lock().unwrap();
        if let Step::Request(request) = step
            && is_creation(request.method.as_str(), &request.path)
        {
            open.insert(exchange);
        }
        if step.is_last() {
            open.remove(&exchange);
        }
        *most = (*most).max(open.len());
    }
}

fn is_creation(method: &str, path: &str) -> bool {
    method == "POST" && path.ends_with("/configmaps")
}

/// With one worker, so that the second rule comes between two passes over the first one, or after all of them.
#[tokio::test]
async fn eight_copies_are_created_at_a_time_and_another_rule_comes_after_a_thousand() {
    let fixture = CopyratorFixture::embedded().await;
    for namespace in ["c", "d", "e", "f", "other"] {
        fixture.create_namespace(namespace, json!({})).await;
    }
    for number in 0..167 {
        fixture.create_source(&format!("settings-{number}"), json!({})).await;
    }
    let other = fixture.namespace("other");
    let many = json!({"include": [format!("{}-?", fixture.prefix)]});
    fixture.create_rule("a-many", json!({"targetNamespaces": many})).await;
    fixture.create_rule("b-other", json!({"targetNamespaces": {"include": [other]}})).await;
    let server = fixture.server.as_ref().unwrap();
    server.forget_requests();
    let creating = Arc::<Creating>::default();
    let config = Config::new(&fixture.url, fixture.ca_pem.as_bytes(), &fixture.token).unwrap();
    let client = Client::new(config.with_tap(creating.clone())).unwrap();
    let _operator = fixture.start_on(&client, Settings::default(), 1);
    fixture.until_ready("a-many", "Synced").await;
    fixture.until_ready("b-other", "Synced").await;
    assert_eq!(creating.0.lock().unwrap().1, 8);
    let requests = server.requests();
    let created = requests.iter().filter(|request| is_creation(&request.method, &request.path));
    let is_other: Vec<_> = created.map(|request| request.path.contains(&other)).collect();
    let before = is_other.iter().position(|is_other| *is_other).unwrap();
    assert!((1..=1000).contains(&before), "{before} of {}", is_other.len());
    assert_eq!(is_other.len(), 7 * 167);
}

#[tokio::test]
async fn a_source_of_one_mebibyte_is_copied() {
    on_both(async |fixture| {
        let _operator = fixture.start();
        fixture.create_rule("main-rule", json!({})).await;
        // In base64, four characters are three bytes.
        let icon = "AAEC".repeat(1024 * 1024 / 3);
        let metadata = json!({"name": "large", "labels": {"copyrator": "true"}});
        let large = json!({"metadata": metadata, "binaryData": {"i": icon}});
        fixture.user.create("configmaps", &large).await;
        fixture.until_ready("main-rule", "Synced").await;
        for namespace in ["a", "b"] {
            let copy = fixture.in_namespace(namespace).get("configmaps/large").await;
            assert!(copy["binaryData"]["i"] == *icon, "the bytes differ in {namespace}");
        }
    })
    .await;
}

/// A finalizer that nobody handles, here that of rules, keeps a deleted copy.
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

/// Names of rules and ConfigMaps are longer than labels may be.
#[tokio::test]
async fn a_source_and_a_rule_whose_names_are_no_labels_are_served() {
    on_both(async |fixture| {
        let _operator = fixture.start();
        let name = format!("0.{}.z", "a".repeat(249));
        fixture.create_rule(&name, json!({})).await;
        fixture.create_source(&name, json!({"a": "1"})).await;
        fixture.until_copied(&name, json!({"a": "1"}), &["a", "b"]).await;
        fixture.until_ready(&name, "Synced").await;
        fixture.user.until("events", |events| events.to_string().contains("\"reason\":\"Created\"")).await;
        fixture.delete_rule(&name).await;
        fixture.until_copied(&name, json!({}), &[]).await;
    })
    .await;
}

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

/// As the article's operator, which has `main-rule` in `default` as its defaults. On a real server of its own, because it serves
/// the rules of other tests, too.
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
            // Beside other operators, too, a named rule is that of one namespace.
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

/// The way of the operator to the server, which lets only some of its writes pass.
struct Gate {
    http: reqwest::Client,
    url: String,
    writes_max: usize,
    writes: Mutex<Writes>,
}

#[derive(Default)]
struct Writes {
    begun: usize,
    /// With the status code of the answer.
    answered: Vec<String>,
}

impl InProcess for Gate {
    fn answer(
        &self,
        request: http::Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = io::Result<InProcessAnswer>> + Send + '_>> {
        Box::pin(async {
            let (head, body) = request.into_parts();
            let is_write = head.method != Method::GET && !head.uri.path().contains("/events");
            let has_passed = || {
                let begun = &mut self.writes.lock().unwrap().begun;
                *begun += 1;
                *begun <= self.writes_max
            };
            if is_write && !has_passed() {
                pending::<()>().await;
            }
            let url = format!("{}{}", self.url, head.uri.path_and_query().unwrap());
            let request = self.http.request(head.method.clone(), url);
            let answer = request.headers(head.headers).body(body).send().await.map_err(io::Error::other)?;
            if is_write {
                let line = format!("{} {} {}", head.method, head.uri.path(), answer.status().as_u16());
                self.writes.lock().unwrap().answered.push(line);
            }
            Ok(http::Response::from(answer).map(|body| body.map_err(Into::into).boxed_unsync()))
        })
    }

    fn now(&self) -> SystemTime {
        SystemTime::now()
    }
}

impl CopyratorFixture {
    /// Starts an operator and, if only some of its writes pass, kills it after them, again and again until the end. Returns all
    /// writes in the order of their texts.
    async fn written_until(&self, writes_max: usize, is_done: impl AsyncFn() -> bool) -> Vec<String> {
        let (mut written, mut is_over) = (Vec::new(), false);
        let authority = reqwest::Certificate::from_pem(self.ca_pem.as_bytes()).unwrap();
        let http = reqwest::Client::builder().tls_certs_only([authority]).no_proxy().build().unwrap();
        while !is_over {
            let (http, url, writes) = (http.clone(), self.url.clone(), Mutex::default());
            let gate = Arc::new(Gate { http, url, writes_max, writes });
            let client = Client::new(Config::in_process(gate.clone(), &self.token).unwrap()).unwrap();
            let operator = self.start_on(&client, Settings::default(), WORKERS);
            is_over = eventually("as many writes as pass, or the end", async || {
                let is_over = is_done().await;
                let writes = gate.writes.lock().unwrap();
                let is_blocked = writes.begun > writes_max;
                let is_answered = writes.answered.len() == writes.begun.min(writes_max);
                ((is_over || is_blocked) && is_answered).then_some(is_over)
            })
            .await;
            drop(operator);
            written.append(&mut gate.writes.lock().unwrap().answered);
        }
        written.sort();
        written
    }

    /// All that becomes of a rule: it is created, changed, and deleted. Returns the writes of the operator for each.
    async fn written_for_a_rule(&self, writes_max: usize) -> [Vec<String>; 3] {
        let sources = [
            ("one", json!({"copyrator": "true", "tier": "web"})),
            ("two", json!({"copyrator": "true"})),
            ("three", json!({"tier": "web"})),
        ];
        for (name, labels) in &sources {
            let metadata = json!({"name": name, "labels": labels});
            self.user.create("configmaps", &json!({"metadata": metadata, "data": {"a": name}})).await;
        }
        let rule = async || self.user.raw(&self.rule_path("main-rule")).await;
        let is_synced = async || {
            let rule: Value = serde_json::from_str(&rule().await.unwrap()).unwrap();
            let is_observed = rule["status"]["observedGeneration"] == rule["metadata"]["generation"];
            is_observed && condition(&rule, "Ready").is_some_and(|ready| ready["reason"] == "Synced")
        };
        self.create_rule("main-rule", json!({})).await;
        let created = self.written_until(writes_max, is_synced).await;
        self.until_copied("one", json!({"a": "one"}), &["a", "b"]).await;
        self.until_copied("two", json!({"a": "two"}), &["a", "b"]).await;

        // One copy gets another label, one is no longer wanted, and one is new.
        let change = json!({"selector": {"copyrator": null, "tier": "web"}, "copyLabels": ["copyrator"]});
        self.send(Method::PATCH, &self.rule_path("main-rule"), &change).await;
        let changed = self.written_until(writes_max, is_synced).await;
        for (name, namespaces) in [("one", &["a", "b"][..]), ("two", &[]), ("three", &["a", "b"])] {
            self.until_copied(name, json!({"a": name}), namespaces).await;
        }
        let copy = self.in_namespace("b").get("configmaps/one").await;
        assert_eq!(copy["metadata"]["labels"]["copyrator"], "true");

        self.delete_rule("main-rule").await;
        let is_gone = async || rule().await.err().is_some_and(|error| error.is_not_found());
        let deleted = self.written_until(writes_max, is_gone).await;
        for (name, _) in sources {
            self.until_copied(name, json!({}), &[]).await;
            self.user.delete(&format!("configmaps/{name}")).await;
        }
        [created, changed, deleted]
    }
}

/// Whatever the operator has written when it is killed, the next one writes the rest, and nothing twice.
#[tokio::test]
async fn a_restart_between_any_two_writes_changes_nothing() {
    on_both_with_connections(async |fixture| {
        let undisturbed = fixture.written_for_a_rule(usize::MAX).await;
        // The finalizer, four copies, and the status; six copies, and the status; four copies, and the finalizer.
        assert_eq!(undisturbed.each_ref().map(Vec::len), [6, 7, 5], "{undisturbed:#?}");
        assert_eq!(fixture.written_for_a_rule(1).await, undisturbed);
    })
    .await;
}

#[tokio::test]
async fn a_restart_with_complete_copies_writes_nothing() {
    on_both_with_connections(async |fixture| {
        let operator = fixture.start_copying(json!({})).await;
        fixture.until_settings_in(&["a", "b"]).await;
        fixture.until_ready("main-rule", "Synced").await;
        drop((operator, fixture.writes()));
        let _operator = fixture.start();
        fixture.create_source("barrier", json!({})).await;
        fixture.until_copied("barrier", json!(null), &["a", "b"]).await;
        let mut writes = fixture.writes();
        writes.retain(|write| write.contains("configmaps"));
        assert_eq!(writes, ["POST a/configmaps", "POST b/configmaps"]);
    })
    .await;
}

#[tokio::test]
async fn the_schema_refuses_a_rule_that_cannot_work() {
    on_both(async |fixture| {
        let path = format!("{RULES}/{}/copyrators?dryRun=All", fixture.user.namespace);
        for (fields, problem) in [
            (json!({"ruleType": "pod"}), "Unsupported value: \"pod\""),
            (json!({"selector": null}), "selector is empty"),
            (json!({"selector": {}}), "selector is empty"),
            (json!({"namespace": "a", "namespaces": ["b"]}), "namespace and namespaces cannot both be set"),
            (json!({"targetNamespaces": {"include": ["team-["]}}), "should match '^[-a-z0-9*?]+$'"),
            (json!({"namespace": "No"}), "should match"),
        ] {
            let error =
                fixture.user.try_create(&path, &fixture.rule("main-rule", fields.clone())).await.err();
            let error = error.unwrap_or_else(|| panic!("{fields} was accepted"));
            assert!(error.is_invalid() && error.to_string().contains(problem), "{fields}: {error}");
        }
        for fields in [json!({"selector": {}, "allowAll": true}), json!({"selector": null, "allowAll": true})]
        {
            fixture.user.try_create(&path, &fixture.rule("main-rule", fields)).await.unwrap();
        }
        // The schema leaves the labels in the selector open.
        let _operator = fixture.start();
        for (name, selector) in
            [("number", json!({"copyrator": 1})), ("mixed", json!({"matchLabels": {"a": "b"}, "c": "d"}))]
        {
            fixture.create_rule(name, json!({"selector": selector})).await;
            fixture.until_ready(name, "InvalidSpec").await;
        }
    })
    .await;
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
