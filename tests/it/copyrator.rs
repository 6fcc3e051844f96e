//! Tests the operator of CopyratorRule on both servers: in whatever order things come, the copies end as they should be.
//!
//! The operator runs in the process of the test, and a tap on its connection has a transcript of its writes. On the real server,
//! which all tests share, each test has namespaces of its own, `c7-src`, `c7-a` and so on, and its rules copy to no others. The
//! operator has the permissions of the manifests.

mod conflicts;
mod deletion;
mod edits;
mod permissions;
mod refusals;

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
    advanced::{InProcess, InProcessAnswer, Step, Tap},
    client::{Client, Config, Error},
    cluster::{Cluster, Events},
    controller::WORKERS,
    plan::Plan,
    runtime::{Runtime, Setup},
    watch::Lists,
};
use listwatch_apiserver::{ApiServer, Fault};
use listwatch_control_plane::{ControlPlane, Http, eventually, has_assets, has_only_real, saw, unique};
use listwatch_operators::copyrator::{self, Settings};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    task::{JoinSet, spawn_blocking},
    time::Instant,
};

use crate::{
    client::{self, UserClient, condition},
    fixture::{Link, admin_of, installed_control_plane, on_paused_clock, shared_control_plane},
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

    /// What the operator would write now.
    async fn plan(&self) -> Plan {
        let runtime =
            Runtime::new(self.client.clone()).namespaces(vec![self.user.namespace.clone()]).unwrap();
        let settings = Settings { secrets: true, ..Settings::default() };
        let runtime =
            runtime.controller(copyrator::CONTROLLER, |setup| copyrator::controller(setup, settings));
        runtime.plan(None).await
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
