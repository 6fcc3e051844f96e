//! Tests webhooks of the library: validation, defaults, conversion and their certificates, with an operator in this process.

use std::{env, fs, net::SocketAddr, path::Path};

use base64::{Engine, engine::general_purpose::STANDARD};
use http::Method;
use listwatch::{
    client::Request,
    cluster::{Cluster, Watch},
    controller::{Next, Operator, Reconcile, ReconcileError},
    leader::LeaderElection,
    manifests::{Installation, documents},
    resource::{ObjectMeta, Scope, kinds::ConfigMap},
    runtime::{MetricsSecurity, Runtime},
    webhook::{Decision, Operation, Review, Validator, Webhooks},
};
use listwatch_control_plane::{LENS_TOKEN, PATIENCE, eventually, free_port};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedKey, IsCa, KeyPair, date_time_ymd,
    generate_simple_self_signed,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::{
    sync::{mpsc, oneshot},
    task::{JoinHandle, JoinSet},
    time::timeout,
};

use crate::{
    client::patient,
    fixture::{Fixture, Kind, Server, on},
    metrics,
};

const CRD: &str = "\
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: sites.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {kind: Site, listKind: SiteList, plural: sites, singular: site}
  versions:
  - name: v1
    served: true
    storage: false
    schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {
      address: {type: string}}}}}}
  - name: v2
    served: true
    storage: true
    subresources: {status: {}}
    schema: {openAPIV3Schema: {type: object, properties: {
      status: {type: object, properties: {ready: {type: boolean}}},
      spec: {type: object, properties: {
        host: {type: string}, port: {type: integer}, aliases: {type: array, items: {type: string}}, unknown: {type: string}}}}}}
";

mod v1 {
    use super::*;

    #[derive(Serialize, Deserialize)]
    pub struct Site {
        pub metadata: ObjectMeta,
        pub spec: SiteSpec,
    }

    #[derive(Serialize, Deserialize)]
    pub struct SiteSpec {
        /// `host:port`
        pub address: String,
    }

    listwatch::kind!(Site, "example.com", "v1", "sites");

    impl From<super::Site> for Site {
        fn from(site: super::Site) -> Site {
            let super::Site { metadata, spec: super::SiteSpec { host, port, .. } } = site;
            Site { metadata, spec: SiteSpec { address: format!("{host}:{port}") } }
        }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Site {
    metadata: ObjectMeta,
    spec: SiteSpec,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct SiteSpec {
    host: String,
    #[serde(default)]
    port: u16,
    #[serde(default)]
    aliases: Vec<String>,
}

listwatch::kind!(Site, "example.com", "v2", "sites");

impl From<v1::Site> for Site {
    fn from(site: v1::Site) -> Site {
        let v1::Site { metadata, spec: v1::SiteSpec { address } } = site;
        let (host, port) = address.rsplit_once(':').unwrap_or((&address, ""));
        let spec = SiteSpec { host: host.to_owned(), port: port.parse().unwrap_or(80), aliases: Vec::new() };
        Site { metadata, spec }
    }
}

struct Hosts;

impl Validator for Hosts {
    type Kind = Site;

    async fn validate(&self, review: &Review<Site>) -> Decision {
        let SiteSpec { host, aliases, .. } = &review.object.spec;
        assert!(host != "panic.example.com");
        if host == "slow.example.com" {
            std::future::pending::<()>().await;
        }
        let mut decision = Decision::allowed();
        if !host.contains('.') {
            decision = decision.invalid("spec.host", host, "must have a domain");
        }
        if aliases.contains(host) {
            decision = decision.duplicate("spec.aliases[0]", host);
        }
        if let Some(old) = &review.old
            && old.spec.host != *host
        {
            decision = decision.warning(format!("the host was {}", old.spec.host));
        }
        if review.is_dry_run {
            decision = decision.warning("a dry run");
        }
        assert_eq!(review.old.is_some(), review.operation == Operation::Update);
        assert!(!review.user.username.is_empty());
        decision.audit_annotation("host", host)
    }
}

fn webhooks() -> Webhooks {
    Webhooks::new("example.com/sites-webhook")
        .validates(|_| Hosts)
        .defaults(|site: &mut Site| {
            site.spec.host = site.spec.host.to_lowercase();
            if site.spec.port == 0 {
                site.spec.port = 443;
            }
        })
        .converts::<v1::Site, Site>()
        .timeout_seconds(30)
}

/// An operator with webhooks. Dropped: ended.
struct Serving {
    stop: oneshot::Sender<()>,
    running: JoinHandle<()>,
    metrics: SocketAddr,
}

impl Serving {
    fn start(fixture: &Fixture, at: impl FnOnce(Runtime) -> Runtime) -> Serving {
        let (stop, stopped) = oneshot::channel::<()>();
        let metrics = free_address();
        let runtime = at(Runtime::new(fixture.client.clone()).webhooks(webhooks()));
        let runtime = runtime.metrics(metrics, MetricsSecurity::Plain);
        let run = async move {
            runtime.run_until(async { drop(stopped.await) }).await.unwrap();
        };
        Serving { stop, running: tokio::spawn(run), metrics }
    }

    fn start_at(fixture: &Fixture, address: SocketAddr) -> Serving {
        Serving::start(fixture, |runtime| runtime.webhook_bind_address(address, None))
    }

    async fn metrics(&self) -> String {
        reqwest::get(format!("http://{}/metrics", self.metrics)).await.unwrap().text().await.unwrap()
    }

    async fn end(self) {
        drop(self.stop);
        self.running.await.unwrap();
    }
}

fn definition() -> Value {
    listwatch_yaml::documents(CRD).next().unwrap().unwrap()
}

fn installation() -> Installation {
    Installation {
        name: "site-operator".to_owned(),
        namespace: "default".to_owned(),
        image: String::new(),
        replicas: 1,
        args: Vec::new(),
        variables: Vec::new(),
        definitions: vec![definition()],
        roles_of_users: Vec::new(),
        permissions: Runtime::offline().unwrap().webhooks(webhooks()).permissions().unwrap(),
        has_service_monitor: false,
        has_network_policy: true,
        webhooks: Some(webhooks().installation()),
    }
}

/// All that `manifests` prints but the operator, in its order, each object with the path of its collection.
fn installed() -> impl Iterator<Item = (String, Value)> {
    objects_of(&installation())
}

fn objects_of(installation: &Installation) -> impl Iterator<Item = (String, Value)> + use<> {
    installation.objects().into_iter().filter_map(|object| {
        let kind = object["kind"].as_str().unwrap();
        let collection = match kind {
            "CustomResourceDefinition" => DEFINITIONS.to_owned(),
            "ValidatingWebhookConfiguration" | "MutatingWebhookConfiguration" => {
                format!("/apis/admissionregistration.k8s.io/v1/{}s", kind.to_lowercase())
            }
            "Service" => "/api/v1/namespaces/default/services".to_owned(),
            _ => return None,
        };
        Some((collection, object))
    })
}

/// Applies what is [`installed`]. `call` may change each clientConfig.
async fn install(fixture: &Fixture, call: impl Fn(&mut Value)) {
    apply_all(fixture, installed(), call).await;
}

async fn apply_all(
    fixture: &Fixture,
    objects: impl Iterator<Item = (String, Value)>,
    call: impl Fn(&mut Value),
) {
    for (collection, mut object) in objects {
        if object["kind"] == "CustomResourceDefinition" {
            call(&mut object["spec"]["conversion"]["webhook"]["clientConfig"]);
        }
        for hook in object.get_mut("webhooks").and_then(Value::as_array_mut).into_iter().flatten() {
            call(&mut hook["clientConfig"]);
        }
        apply(fixture, &collection, &object).await;
    }
}

async fn apply(fixture: &Fixture, collection: &str, object: &Value) {
    let name = object["metadata"]["name"].as_str().unwrap();
    let path = format!("{collection}/{name}?fieldManager=test&force=true");
    fixture.send(Method::PATCH, &path, "application/apply-patch+yaml", object).await.unwrap();
}

/// Lets the API server call an address instead of the Service.
fn at(address: SocketAddr) -> impl Fn(&mut Value) {
    move |call| {
        let path = call["service"]["path"].as_str().unwrap().to_owned();
        *call = json!({"url": format!("https://{address}{path}")});
    }
}

fn free_address() -> SocketAddr {
    ([127, 0, 0, 1], free_port()).into()
}

async fn send(
    fixture: &Fixture,
    method: Method,
    version: &str,
    name: &str,
    body: Value,
) -> Result<Value, String> {
    let name = if name.is_empty() { String::new() } else { format!("/{name}") };
    let path = format!("/apis/example.com/{version}/namespaces/{}/sites{name}", fixture.namespace);
    let media_type =
        if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
    fixture.send(method, &path, media_type, &body).await.map_err(|error| error.to_string())
}

async fn create(fixture: &Fixture, name: &str, spec: Value) -> Result<Value, String> {
    let site =
        json!({"apiVersion": "example.com/v2", "kind": "Site", "metadata": {"name": name}, "spec": spec});
    send(fixture, Method::POST, "v2", "", site).await
}

/// Waits until the API server calls the webhooks.
async fn until_called(fixture: &Fixture) {
    eventually("a site to be created", async || {
        let created = create(fixture, "ready", json!({"host": "ready.example.com"})).await;
        (created.is_ok() || created.is_err_and(|error| error.contains("already exists"))).then_some(())
    })
    .await;
}

async fn with_operator(fixture: &Fixture) -> (Serving, SocketAddr) {
    let address = free_address();
    fixture.create_namespace().await;
    install(fixture, at(address)).await;
    let serving = Serving::start_at(fixture, address);
    until_called(fixture).await;
    (serving, address)
}

async fn get(fixture: &Fixture, path: &str) -> Value {
    serde_json::from_str(&fixture.raw(path).await.unwrap()).unwrap()
}

async fn until_not_found(fixture: &Fixture, path: &str) {
    eventually(&format!("no {path}"), async || {
        fixture.raw(path).await.is_err_and(|error| error.code() == Some(404)).then_some(())
    })
    .await;
}

const CONFIGURATION: &str =
    "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/sites-webhook";
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const DEFINITION: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/sites.example.com";
const SECRET: &str = "/api/v1/namespaces/default/secrets/sites-webhook";
const JSON_PATCH: &str = "application/json-patch+json";
const SERVERS: &[Kind] = &[Kind::EmbeddedBare, Kind::RealPaged];

#[tokio::test]
async fn objects_are_denied_changed_and_converted() {
    on(SERVERS, async |fixture| {
        let (serving, _) = with_operator(fixture).await;
        let spec = json!({"host": "local", "aliases": ["local"]});
        let error = create(fixture, "web", spec).await.unwrap_err();
        let expected = "422 Invalid: admission webhook \"validate.sites.example.com\" denied the request: \
                        Site.example.com \"web\" is invalid: [spec.host: Invalid value: \"local\": must have a domain, \
                        spec.aliases[0]: Duplicate value: \"local\"]";
        assert!(error.contains(expected), "{error}");

        let web = create(fixture, "web", json!({"host": "WEB.example.com", "aliases": ["www"], "unknown": "kept"})).await;
        let expected = json!({"host": "web.example.com", "port": 443, "aliases": ["www"], "unknown": "kept"});
        assert_eq!(web.unwrap()["spec"], expected);

        let old = send(fixture, Method::GET, "v1", "web", json!(null)).await.unwrap();
        assert_eq!(old["spec"], json!({"address": "web.example.com:443"}));
        let edit = json!({"spec": {"address": "web.example.com:8443"}});
        let edited = send(fixture, Method::PATCH, "v1", "web", edit).await.unwrap();
        assert_eq!(edited["apiVersion"], "example.com/v1");
        let new = send(fixture, Method::GET, "v2", "web", json!(null)).await.unwrap();
        let expected = json!({"host": "web.example.com", "port": 8443, "aliases": ["www"], "unknown": "kept"});
        assert_eq!((&new["spec"], &new["metadata"]["annotations"]), (&expected, &json!(null)));

        let client = match &fixture.server {
            Server::Embedded(_) => fixture.client.clone(),
            // Whose requests are audited.
            Server::Shared(server) => patient(&server.url(), &server.ca_pem(), LENS_TOKEN),
            Server::Own(server) => patient(&server.url(), &server.ca_pem(), LENS_TOKEN),
        };
        let path = format!("/apis/example.com/v2/namespaces/{}/sites/web?dryRun=All", fixture.namespace);
        let edit = json!({"spec": {"host": "new.example.com"}}).to_string().into_bytes();
        let edit = Request::get(path).sends(Method::PATCH, "application/merge-patch+json", edit);
        let answer = client.send(edit).await.unwrap();
        let warnings: Vec<_> = answer.headers.get_all("warning").iter().map(|warning| warning.to_str().unwrap()).collect();
        assert_eq!(warnings, ["299 - \"the host was web.example.com\"", "299 - \"a dry run\""]);
        let web = send(fixture, Method::GET, "v2", "web", json!(null)).await.unwrap();
        assert_eq!(web["spec"]["host"], "web.example.com");
        if !fixture.is_embedded() {
            let audited = r#""validate.sites.example.com/host":"new.example.com""#;
            eventually("the annotation", async || fixture.control_plane().audit_log().contains(audited).then_some(())).await;
        }

        let fails = async |host: &str, expected: &str| {
            let error = create(fixture, "odd", json!({"host": host})).await.unwrap_err();
            assert!(error.contains("failed calling webhook") && error.contains(expected), "{error}");
        };
        fails("panic.example.com", "the webhook panicked; its log says why").await;
        // The API server then waits for a second, and until it knows, for 30 s.
        let edit = json!([{"op": "replace", "path": "/webhooks/0/timeoutSeconds", "value": 1}]);
        fixture.send(Method::PATCH, CONFIGURATION, JSON_PATCH, &edit).await.unwrap();
        // Whoever gives up first, the API server or the webhook.
        fails("slow.example.com", "failed to call webhook").await;
        let path = r#"webhook="/validate-example-com-v2-site""#;
        let text = eventually("the slow review to end", async || {
            let ended = format!("controller_runtime_webhook_requests_in_flight{{{path}}} 0\n");
            Some(serving.metrics().await).filter(|text| text.contains(&ended))
        })
        .await;
        let value = |name: &str, labels: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(&format!("controller_runtime_webhook_{name}{labels} ")));
            line.unwrap_or_else(|| panic!("no {name}{labels} in {text}")).parse::<f64>().unwrap()
        };
        let of_code = |code: u16| value("requests_total", &format!("{{{path},code=\"{code}\"}}"));
        assert_eq!((value("panics_total", ""), of_code(500), of_code(504)), (1.0, 1.0, 1.0));
        let of_path = format!("{{{path}}}");
        assert_eq!(value("latency_seconds_count", &of_path), of_code(200) + 2.0);
        // It waited for the slow one until the API server gave up.
        assert!(value("latency_seconds_sum", &of_path) > 0.9, "{text}");
        let (exported, mut documented) = (metrics::exported(&text), metrics::documented());
        documented.retain(|name, _| name.contains("webhook"));
        assert!(documented.len() > 4 && documented.iter().all(|(name, row)| exported.get(name) == Some(row)), "{documented:#?}");
        serving.end().await;
    })
    .await;
}

#[tokio::test]
async fn an_operator_that_is_down_blocks_no_deletion_no_status_and_not_itself() {
    on(SERVERS, async |fixture| {
        let (serving, _) = with_operator(fixture).await;
        create(fixture, "web", json!({"host": "web.example.com"})).await.unwrap();
        let edit = json!({"metadata": {"finalizers": ["example.com/cleanup"]}});
        send(fixture, Method::PATCH, "v2", "ready", edit).await.unwrap();
        // A cleanup may depend on the spec.
        send(fixture, Method::DELETE, "v2", "ready", json!(null)).await.unwrap();
        let error = send(fixture, Method::PATCH, "v2", "ready", json!({"spec": {"host": "local"}}))
            .await
            .unwrap_err();
        assert!(error.contains("must have a domain"), "{error}");
        serving.end().await;

        let (namespace, operator) = (&*fixture.namespace, "system:serviceaccount:default:site-operator");
        let site = json!({"apiVersion": "example.com/v2", "kind": "Site", "metadata": {"generateName": "site-"}, "spec": {}});
        let (label, status) = (json!({"metadata": {"labels": {"a": "b"}}}), json!({"status": {"ready": true}}));
        let unlock = json!({"metadata": {"finalizers": null}});
        for (is_called, method, namespace, name, user, body) in [
            (true, Method::POST, namespace, "", "", &site),
            (true, Method::PATCH, namespace, "/web", "", &label),
            (false, Method::PATCH, namespace, "/web/status", "", &status),
            (false, Method::PATCH, namespace, "/web", operator, &label),
            (false, Method::POST, namespace, "", operator, &site),
            (false, Method::POST, "default", "", "", &site),
            (false, Method::POST, "kube-system", "", "", &site),
            (false, Method::DELETE, namespace, "/web", "", &json!(null)),
            (false, Method::PATCH, namespace, "/ready", "", &unlock),
        ] {
            let media_type = if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
            let path = format!("/apis/example.com/v2/namespaces/{namespace}/sites{name}");
            let mut request = Request::get(path).sends(method, media_type, body.to_string().into_bytes());
            if !user.is_empty() {
                request.headers.insert("impersonate-user", user.parse().unwrap());
                request.headers.insert("impersonate-group", "system:masters".parse().unwrap());
            }
            let what = format!("{request:?} by {user:?}");
            let refused = fixture.client.send(request).await.err().map(|error| error.to_string());
            let is_refused = refused.as_ref().is_some_and(|error| error.contains("connection refused"));
            assert_eq!((refused.is_some(), is_refused), (is_called, is_called), "{what}: {refused:?}");
        }
        for name in ["web", "ready"] {
            let gone = send(fixture, Method::GET, "v2", name, json!(null)).await.unwrap_err();
            assert!(gone.contains("404"), "{gone}");
        }

        // As by `manifests | kubectl delete -f -`, which waits for nothing before the last one.
        for (collection, object) in installed() {
            let path = format!("{collection}/{}", object["metadata"]["name"].as_str().unwrap());
            fixture.send(Method::DELETE, &path, "application/json", &json!(null)).await.unwrap();
        }
        until_not_found(fixture, DEFINITION).await;
    })
    .await;
}

/// A policy for a kind of Kubernetes.
struct Maps;

impl Validator for Maps {
    type Kind = ConfigMap;

    async fn validate(&self, review: &Review<ConfigMap>) -> Decision {
        let is_secret = review.object.data.contains_key("password");
        if is_secret {
            Decision::allowed().forbidden("data.password", "belongs into a Secret")
        } else {
            Decision::allowed()
        }
    }
}

#[tokio::test]
async fn a_kind_of_kubernetes_is_judged() {
    on(SERVERS, async |fixture| {
        fixture.create_namespace().await;
        let policy = || Webhooks::new("example.com/sites-webhook").validates(|_| Maps);
        let installation = Installation {
            definitions: Vec::new(),
            webhooks: Some(policy().installation()),
            ..installation()
        };
        let address = free_address();
        apply_all(fixture, objects_of(&installation), at(address)).await;
        let serving =
            Serving::start(fixture, |runtime| runtime.webhooks(policy()).webhook_bind_address(address, None));
        let maps = format!("/api/v1/namespaces/{}/configmaps", fixture.namespace);
        let create = async |key: &str| {
            let map = json!({"metadata": {"name": key}, "data": {key: "a"}});
            let created = fixture.send(Method::POST, &maps, "application/json", &map).await;
            created.map_err(|error| error.to_string())
        };
        eventually("a ConfigMap", async || create("color").await.ok()).await;
        let error = create("password").await.unwrap_err();
        assert!(error.contains("data.password: Forbidden: belongs into a Secret"), "{error}");
        serving.end().await;
    })
    .await;
}

/// `UPDATE_EXPECT=1` writes the file.
#[test]
fn the_installation_of_webhooks_equals_its_file() {
    let objects = installation().objects();
    let is_of_webhooks = |object: &&Value| {
        let kind = object["kind"].as_str().unwrap();
        kind.ends_with("WebhookConfiguration") || ["Service", "NetworkPolicy"].contains(&kind)
    };
    let those: Vec<Value> = objects.iter().filter(is_of_webhooks).cloned().collect();
    let file = Path::new(crate::ROOT).join("tests/it/data/webhooks.yaml");
    if env::var_os("UPDATE_EXPECT").is_some() {
        return fs::write(file, documents(&those)).unwrap();
    }
    assert!(
        fs::read_to_string(file).unwrap() == documents(&those),
        "UPDATE_EXPECT=1 cargo test --test it webhooks"
    );
}

/// It is the way out when the operator does not answer, so the operator does not create it again.
#[tokio::test]
async fn an_event_says_that_somebody_has_deleted_a_configuration() {
    on(SERVERS, async |fixture| {
        let (serving, address) = with_operator(fixture).await;
        fixture.send(Method::DELETE, CONFIGURATION, "application/json", &json!(null)).await.unwrap();
        eventually("an Event", async || {
            let events = fixture.raw("/apis/events.k8s.io/v1/namespaces/default/events").await.unwrap();
            let expected =
                "apply the manifests again; missing: ValidatingWebhookConfiguration sites-webhook\"";
            (events.contains("WebhooksNotCalled") && events.contains(expected)).then_some(())
        })
        .await;
        let local = json!({"host": "local"});
        eventually("a site", async || create(fixture, "local", local.clone()).await.ok()).await;
        install(fixture, at(address)).await;
        eventually("a denial", async || {
            let denied = create(fixture, "other", local.clone()).await.err()?;
            denied.contains("must have a domain").then_some(())
        })
        .await;
        serving.end().await;
    })
    .await;
}

#[tokio::test]
async fn a_standby_answers_and_a_pod_is_ready_with_a_certificate_that_a_ca_bundle_trusts() {
    on(SERVERS, async |fixture| {
        fixture.create_namespace().await;
        let (address, probes) = (free_address(), free_address());
        let start = || Serving::start(fixture, |runtime| {
            let runtime = runtime.webhook_bind_address(address, None).probes(probes);
            runtime.leader_election(LeaderElection::default()).unwrap()
        });
        let until_ready = async |code: u16, expected: &str| {
            eventually(expected, async || {
                let answer = reqwest::get(format!("http://{probes}/readyz")).await.ok()?;
                let status = answer.status().as_u16();
                (status == code && answer.text().await.ok()?.contains(expected)).then_some(())
            })
            .await;
        };
        let serving = start();
        until_ready(503, "[-] webhooks: there is no certificate yet").await;
        install(fixture, at(address)).await;
        until_ready(200, "ready").await;
        serving.end().await;

        for (collection, object) in installed().filter(|(_, object)| object["kind"] != "Service") {
            let path = format!("{collection}/{}", object["metadata"]["name"].as_str().unwrap());
            let pointer = if object["webhooks"].is_array() { "/webhooks/0" } else { "/spec/conversion/webhook" };
            let edit = json!([{"op": "remove", "path": format!("{pointer}/clientConfig/caBundle")}]);
            fixture.send(Method::PATCH, &path, JSON_PATCH, &edit).await.unwrap();
        }
        let lease = "/apis/coordination.k8s.io/v1/namespaces/default/leases/sites-webhook.example.com";
        let spec = json!({"holderIdentity": "other", "leaseDurationSeconds": 3600, "renewTime": "2026-11-30T13:16:15.000000Z"});
        fixture.send(Method::PATCH, lease, "application/merge-patch+json", &json!({"spec": spec})).await.unwrap();
        let serving = start();
        until_ready(503, "[-] webhooks: no caBundle has the authority of the certificate").await;
        let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
            "uid": "u", "operation": "CREATE", "userInfo": {"username": "jane"},
            "resource": {"group": "example.com", "version": "v2", "resource": "sites"},
            "object": {"metadata": {}, "spec": {"host": "local"}},
        }});
        let http = reqwest::Client::builder().tls_danger_accept_invalid_certs(true).build().unwrap();
        let url = format!("https://{address}/validate-example-com-v2-site");
        let answer = http.post(url).body(review.to_string()).send().await.unwrap();
        assert!(answer.text().await.unwrap().contains("must have a domain"));
        fixture.send(Method::DELETE, lease, "application/json", &json!(null)).await.unwrap();
        until_ready(200, "ready").await;
        serving.end().await;
    })
    .await;
}

#[derive(Clone, Serialize, Deserialize)]
struct Page {
    metadata: ObjectMeta,
}

listwatch::kind!(Page, "example.com", "v1", "pages");

/// Reads pages.
struct Pages(Watch<Page>);

impl Validator for Pages {
    type Kind = Site;

    async fn validate(&self, _: &Review<Site>) -> Decision {
        assert_eq!(self.0.keys(), []);
        Decision::allowed().invalid("spec.host", "a.b", "no page")
    }
}

/// One kind that it could not list made each replica unready, and nobody could write or convert a site. And before its first list, a validator
/// allowed what it did not find.
#[tokio::test]
async fn a_kind_that_cannot_be_listed_keeps_nobody_waiting_but_a_validator_that_reads_it() {
    on(SERVERS, async |fixture| {
        let (address, probes) = (free_address(), free_address());
        fixture.create_namespace().await;
        install(fixture, at(address)).await;
        let readyz = async || reqwest::get(format!("http://{probes}/readyz")).await.unwrap().text().await.unwrap();
        let (sender, mut reconciled) = mpsc::unbounded_channel();
        let serving = Serving::start(fixture, |runtime| {
            runtime.webhook_bind_address(address, None).probes(probes).controller("example.com/sites", |setup| {
                let mut sites = setup.kind_without_status::<Site>("site-operator");
                drop(sites.children::<Page>());
                sites.run_by(Sites(sender))
            })
        });
        until_called(fixture).await;
        eventually("a site as v1", async || send(fixture, Method::GET, "v1", "ready", json!(null)).await.ok()).await;
        let text = eventually("a watch that fails", async || Some(readyz().await).filter(|text| text.contains("[-] watch pages"))).await;
        assert!(text.contains("install the CustomResourceDefinition pages.example.com") && text.ends_with("\nready\n"), "{text}");
        assert!(reconciled.try_recv().is_err());
        serving.end().await;

        let serving = Serving::start(fixture, |runtime| {
            let pages = |cluster: &Cluster| Pages(cluster.watch([Scope::default()]));
            let webhooks = Webhooks::new("example.com/sites-webhook").validates(pages).converts::<v1::Site, Site>();
            runtime.webhook_bind_address(address, None).probes(probes).webhooks(webhooks)
        });
        eventually("a site as v1", async || send(fixture, Method::GET, "v1", "ready", json!(null)).await.ok()).await;
        eventually("a certificate", async || readyz().await.ends_with("\nready\n").then_some(())).await;
        let http = reqwest::Client::builder().tls_danger_accept_invalid_certs(true).build().unwrap();
        let sites = json!({"group": "example.com", "version": "v2", "resource": "sites"});
        let request = json!({"uid": "u", "operation": "CREATE", "userInfo": {"username": "jane"}, "resource": sites, "object": {"metadata": {}, "spec": {"host": "a.b"}}});
        let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request});
        let reviewed = async |limit: &str| {
            let url = format!("https://{address}/validate-example-com-v2-site?timeout={limit}");
            let answer = http.post(url).body(review.to_string()).send().await.unwrap();
            (answer.status().as_u16(), answer.text().await.unwrap())
        };
        assert_eq!(reviewed("100ms").await.0, 504);
        let mut pages = definition();
        pages["metadata"]["name"] = "pages.example.com".into();
        pages["spec"]["names"] = json!({"kind": "Page", "listKind": "PageList", "plural": "pages", "singular": "page"});
        pages["spec"]["versions"].as_array_mut().unwrap().truncate(1);
        pages["spec"]["versions"][0]["storage"] = true.into();
        apply(fixture, DEFINITIONS, &pages).await;
        eventually("a denial", async || reviewed("30s").await.1.contains("no page").then_some(())).await;
        serving.end().await;
    })
    .await;
}

/// As cert-manager writes them.
#[tokio::test]
async fn a_certificate_in_files_is_read_again() {
    on(&[Kind::EmbeddedBare], async |fixture| {
        let (address, dir) = (free_address(), tempfile::tempdir().unwrap());
        let write = || {
            let CertifiedKey { cert, signing_key } =
                generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
            fs::write(dir.path().join("tls.key"), signing_key.serialize_pem()).unwrap();
            fs::write(dir.path().join("tls.crt"), cert.pem()).unwrap();
            cert.pem()
        };
        let is_served = async |pem: String| {
            let authority = reqwest::Certificate::from_pem(pem.as_bytes()).unwrap();
            eventually("the certificate", async || {
                let http = reqwest::Client::builder()
                    .tls_certs_only([authority.clone()])
                    .no_proxy()
                    .build()
                    .unwrap();
                http.get(format!("https://{address}/")).send().await.ok()
            })
            .await;
        };
        let before = write();
        let files = Some(dir.path().to_owned());
        let serving = Serving::start(fixture, |runtime| runtime.webhook_bind_address(address, files));
        is_served(before).await;
        // Of rcgen, at the start of the year 4096.
        let ends = "listwatch_webhook_certificate_expiry_timestamp_seconds 67090118400\n";
        eventually("its end", async || serving.metrics().await.contains(ends).then_some(())).await;
        is_served(write()).await;
        serving.end().await;
    })
    .await;
}

#[tokio::test]
async fn the_api_server_calls_the_url_of_an_operator_outside_of_the_cluster() {
    on(SERVERS, async |fixture| {
        fixture.create_namespace().await;
        install(fixture, |_| ()).await;
        let url = format!("https://localhost:{}", free_port());
        let serving = Serving::start(fixture, |runtime| runtime.webhook_url(&url).unwrap());
        until_called(fixture).await;
        eventually("a site as v1", async || send(fixture, Method::GET, "v1", "ready", json!(null)).await.ok()).await;
        let call = async || get(fixture, CONFIGURATION).await["webhooks"][0]["clientConfig"].take();
        let called = call().await;
        assert_eq!(called["url"], format!("{url}/validate-example-com-v2-site"));
        // Somebody installs it again.
        let service = json!({"service": {"namespace": "default", "name": "sites-webhook", "path": "/validate-example-com-v2-site"}});
        let edit = json!([{"op": "replace", "path": "/webhooks/0/clientConfig", "value": service}]);
        fixture.send(Method::PATCH, CONFIGURATION, JSON_PATCH, &edit).await.unwrap();
        eventually("the URL", async || (call().await == called).then_some(())).await;
        serving.end().await;
    })
    .await;
}

#[tokio::test]
async fn certificates_that_somebody_breaks_are_repaired() {
    on(SERVERS, async |fixture| {
        let (serving, address) = with_operator(fixture).await;
        let bundle =
            async || get(fixture, CONFIGURATION).await["webhooks"][0]["clientConfig"]["caBundle"].take();

        let before = bundle().await;
        let edit = json!([{"op": "replace", "path": "/webhooks/0/clientConfig/caBundle", "value": ""}]);
        fixture.send(Method::PATCH, CONFIGURATION, JSON_PATCH, &edit).await.unwrap();
        eventually("the caBundle", async || (bundle().await == before).then_some(())).await;
        let edit = json!([{"op": "remove", "path": "/spec/conversion/webhook/clientConfig/caBundle"}]);
        fixture.send(Method::PATCH, DEFINITION, JSON_PATCH, &edit).await.unwrap();
        eventually("the caBundle", async || {
            let definition = get(fixture, DEFINITION).await;
            (definition["spec"]["conversion"]["webhook"]["clientConfig"]["caBundle"] == before).then_some(())
        })
        .await;
        // An apply of all keeps them.
        let before = bundle().await;
        install(fixture, at(address)).await;
        assert_eq!(bundle().await, before);

        let authority = |ends: i32| {
            let mut params = CertificateParams::new(Vec::new()).unwrap();
            params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
            params.not_after = date_time_ymd(ends, 1, 1);
            let key = KeyPair::generate().unwrap();
            let pem = params.self_signed(&key).unwrap().pem();
            json!({"data": {"ca.crt": STANDARD.encode(pem), "ca.key": STANDARD.encode(key.serialize_pem())}})
        };
        let (expired, foreign) = (authority(2020), authority(2100));
        let text = json!({"data": {"ca.crt": "eA==", "tls.crt": "eA=="}});
        for edit in [json!(null), json!({"data": null}), text, expired, foreign] {
            let before = bundle().await;
            let (method, media_type) = match &edit {
                Value::Null => (Method::DELETE, "application/json"),
                _ => (Method::PATCH, "application/merge-patch+json"),
            };
            fixture.send(method, SECRET, media_type, &edit).await.unwrap();
            eventually("another caBundle", async || (bundle().await != before).then_some(())).await;
            let name = format!("site-{}", listwatch_control_plane::unique());
            eventually("a site", async || create(fixture, &name, json!({"host": "a.b"})).await.ok()).await;
        }
        // The leader gives way to another replica, at the same address.
        let before = bundle().await;
        serving.end().await;
        let serving = Serving::start_at(fixture, address);
        until_called(fixture).await;
        assert_eq!(bundle().await, before);
        serving.end().await;
    })
    .await;
}

#[tokio::test]
async fn two_replicas_that_start_at_the_same_time_serve_one_certificate() {
    on(SERVERS, async |fixture| {
        fixture.create_namespace().await;
        let addresses = [free_address(), free_address()];
        install(fixture, at(addresses[0])).await;
        // Without leader election, so that both make one.
        let replicas = addresses.map(|address| Serving::start_at(fixture, address));
        until_called(fixture).await;
        eventually("one certificate", async || {
            let secret = get(fixture, SECRET).await;
            let authority = STANDARD.decode(secret["data"]["ca.crt"].as_str()?).unwrap();
            let authority = reqwest::Certificate::from_pem(&authority).unwrap();
            let http = reqwest::Client::builder().tls_certs_only([authority]).no_proxy().build().unwrap();
            for address in addresses {
                let answer = http.get(format!("https://{address}/")).send().await.ok()?;
                assert_eq!(answer.status().as_u16(), 404);
            }
            let call = get(fixture, CONFIGURATION).await["webhooks"][0]["clientConfig"].take();
            (call["caBundle"] == secret["data"]["ca.crt"]).then_some(())
        })
        .await;
        for replica in replicas {
            replica.end().await;
        }
    })
    .await;
}

/// The embedded API server keeps nothing when it ends.
#[tokio::test]
async fn an_authority_changes_also_if_the_api_server_restarts_meanwhile() {
    on(&[Kind::RealPaged], async |fixture| {
        let (serving, _) = with_operator(fixture).await;
        let certificate = async || get(fixture, SECRET).await["data"]["tls.crt"].take();
        let before = certificate().await;
        // Without its key, an authority signs nothing more, and the next one comes to it.
        let edit = json!({"data": {"ca.key": null}});
        fixture.send(Method::PATCH, SECRET, "application/merge-patch+json", &edit).await.unwrap();
        eventually("two authorities in the caBundle", async || {
            let call = get(fixture, CONFIGURATION).await["webhooks"][0]["clientConfig"].take();
            let bundle = STANDARD.decode(call["caBundle"].as_str()?).unwrap();
            (String::from_utf8(bundle).unwrap().matches("BEGIN").count() == 2).then_some(())
        })
        .await;
        fixture.control_plane().kill_apiserver();
        fixture.control_plane().start_apiserver().await;
        // With the old certificate, and a minute later with the new one.
        for _ in 0..2 {
            eventually("a site", async || {
                let name = format!("site-{}", listwatch_control_plane::unique());
                let Err(error) = create(fixture, &name, json!({"host": "a.b"})).await else {
                    return Some(());
                };
                assert!(!error.contains("failed calling webhook"), "{error}");
                None
            })
            .await;
            eventually("another certificate", async || (certificate().await != before).then_some(())).await;
        }
        serving.end().await;
    })
    .await;
}

/// Sends each object that is reconciled.
struct Sites(mpsc::UnboundedSender<Site>);

impl Operator for Sites {
    type Kind = Site;

    async fn reconcile(&self, site: Reconcile<Site>) -> Result<Next, ReconcileError> {
        self.0.send(site.clone()).unwrap();
        Ok(Next::OnChange)
    }
}

/// The first list of the operator needs its own webhook.
#[tokio::test]
async fn objects_that_were_stored_in_an_older_version_are_converted_for_the_operator() {
    on(SERVERS, async |fixture| {
        fixture.create_namespace().await;
        let mut before = definition();
        before["spec"]["versions"].as_array_mut().unwrap().truncate(1);
        before["spec"]["versions"][0]["storage"] = true.into();
        apply(fixture, DEFINITIONS, &before).await;
        let old = json!({"apiVersion": "example.com/v1", "kind": "Site", "metadata": {"name": "old"}, "spec": {"address": "a.b:80"}});
        eventually("a site", async || send(fixture, Method::POST, "v1", "", old.clone()).await.ok()).await;

        let address = free_address();
        install(fixture, at(address)).await;
        let (sender, mut reconciled) = mpsc::unbounded_channel();
        let serving = Serving::start(fixture, |runtime| {
            runtime.webhook_bind_address(address, None).controller("example.com/sites", |setup| {
                setup.kind_without_status::<Site>("site-operator").run_by(Sites(sender))
            })
        });
        let site = timeout(PATIENCE, reconciled.recv()).await.unwrap().unwrap();
        assert_eq!((&*site.spec.host, site.spec.port), ("a.b", 80));
        serving.end().await;

        // It has not been written since, so nobody can read it any more: the way out is in docs/webhooks.md.
        fixture.send(Method::DELETE, DEFINITION, "application/json", &json!(null)).await.unwrap();
        if !fixture.is_embedded() {
            eventually("a deletion that waits", async || fixture.raw(DEFINITION).await.unwrap().contains("InstanceDeletionFailed").then_some(())).await;
            let edit = json!({"spec": {"conversion": {"strategy": "None", "webhook": null}}});
            fixture.send(Method::PATCH, DEFINITION, "application/merge-patch+json", &edit).await.unwrap();
        }
        until_not_found(fixture, DEFINITION).await;
    })
    .await;
}

#[tokio::test]
async fn a_request_that_is_not_a_review_gets_a_clear_answer_and_harms_no_other() {
    on(SERVERS, async |fixture| {
        let (serving, address) = with_operator(fixture).await;
        let http = reqwest::Client::builder().tls_danger_accept_invalid_certs(true).build().unwrap();
        let post = async |path: &str, body: String| loop {
            let answer =
                http.post(format!("https://{address}{path}")).body(body.clone()).send().await.unwrap();
            let (status, text) = (answer.status().as_u16(), answer.text().await.unwrap());
            // A busy machine may need longer for some megabytes.
            if !text.contains("the review did not come within") {
                return (status, text);
            }
        };
        let review = |api_version: &str, kind: &str, request: Value| {
            json!({"apiVersion": api_version, "kind": kind, "request": request}).to_string()
        };
        let admission = |request: Value| review("admission.k8s.io/v1", "AdmissionReview", request);
        let validate = "/validate-example-com-v2-site";
        let sites = json!({"group": "example.com", "version": "v2", "resource": "sites"});
        let pods = json!({"group": "", "version": "v1", "resource": "pods"});
        let of_pods = json!({"uid": "u", "operation": "CREATE", "resource": pods, "object": {"metadata": {}, "spec": {}}});
        let slow = json!({"uid": "u", "operation": "CREATE", "resource": sites, "object": {"metadata": {}, "spec": {"host": "slow.example.com"}}});
        for (path, body, code, expected) in [
            ("/", String::new(), 404, "no webhook at /"),
            (validate, String::new(), 400, "the body is not a review in JSON: EOF while parsing"),
            (validate, "[".repeat(10_000), 400, "the body is not a review in JSON: invalid type"),
            (validate, review("admission.k8s.io/v1beta1", "AdmissionReview", json!({})), 400, "not \"AdmissionReview\" of \"admission.k8s.io/v1beta1\""),
            (validate, review("v1", "Pod", json!(null)), 400, "expected kind AdmissionReview of admission.k8s.io/v1"),
            (validate, admission(json!(null)), 400, "the AdmissionReview has no request"),
            (validate, admission(json!({"uid": "u"})), 400, "the request of the AdmissionReview: missing field `operation`"),
            (validate, admission(json!({"uid": "u", "operation": "CREATE", "resource": sites})), 400, "missing field `object`"),
            (validate, admission(of_pods), 400, "the AdmissionReview is about pods v1, and this path about sites.example.com v2"),
            (&format!("{validate}?timeout=10ms"), admission(slow), 504, "the webhook took longer than 10ms"),
            (validate, "x".repeat(9 * 1024 * 1024), 400, "read the review, of at most 8388608 bytes"),
            ("/convert", admission(json!({})), 400, "expected kind ConversionReview of apiextensions.k8s.io/v1"),
        ] {
            let (status, text) = post(path, body).await;
            assert_eq!(status, code, "{text}");
            assert!(text.contains(expected), "{text}");
        }
        let convert = |desired: &str, object: Value| {
            let request = json!({"uid": "u", "desiredAPIVersion": desired, "objects": [object]});
            post("/convert", review("apiextensions.k8s.io/v1", "ConversionReview", request))
        };
        let site = |version: &str, spec: Value| json!({"apiVersion": version, "kind": "Site", "metadata": {"name": "a"}, "spec": spec});
        for (desired, object, expected) in [
            ("example.com/v2", json!({"apiVersion": "example.com/v1", "kind": "Page"}), "\"Page\" of example.com/v1 is not converted here"),
            ("v2", site("v1", json!({})), "cannot convert v1 to v2"),
            ("example.com/v2", site("example.com/v3", json!({})), "Site has no version v3, only v1, v2"),
            ("example.com/v2", site("example.com/v1", json!({"address": 1})), "Site a of example.com/v1: invalid type"),
        ] {
            let (status, text) = convert(desired, object).await;
            let review: Value = serde_json::from_str(&text).unwrap();
            let result = &review["response"]["result"];
            assert_eq!((status, &result["status"]), (200, &json!("Failure")), "{text}");
            assert!(result["message"].as_str().unwrap().contains(expected), "{text}");
        }
        let failed = r#"controller_runtime_webhook_requests_total{webhook="/convert",code="422"} 4"#;
        assert!(serving.metrics().await.contains(failed));
        // An object that the operator cannot read is denied.
        let request = json!({"uid": "u", "operation": "CREATE", "resource": sites, "object": {"metadata": {}, "spec": {"host": 1}}});
        let (_, text) = post(validate, admission(request)).await;
        assert!(text.contains("the operator cannot read the object: invalid type: integer `1`"), "{text}");
        let large = json!({"metadata": {}, "spec": {"host": "a.b", "unknown": "x".repeat(3 * 1024 * 1024)}});
        let request = json!({"uid": "u", "operation": "CREATE", "resource": sites, "userInfo": {"username": "jane"}, "object": large});
        let (_, text) = post(validate, admission(request)).await;
        assert!(text.contains(r#""allowed":true"#), "{text}");
        // Configurations that somebody else writes may ask about it.
        let deleted = |host: &str| json!({"metadata": {"deletionTimestamp": "2026-11-30T13:16:15Z"}, "spec": {"host": host}});
        for (before, is_allowed) in [("local", true), ("a.b", false)] {
            let user = json!({"username": "jane"});
            let request = json!({"uid": "u", "operation": "UPDATE", "resource": sites, "userInfo": user, "object": deleted("local"), "oldObject": deleted(before)});
            let (_, text) = post(validate, admission(request)).await;
            assert_eq!(serde_json::from_str::<Value>(&text).unwrap()["response"]["allowed"], is_allowed, "{text}");
        }

        let mut creating = JoinSet::new();
        for number in 0..500 {
            let user = fixture.user.clone();
            creating.spawn(async move {
                let path = format!("/apis/example.com/v2/namespaces/{}/sites", user.namespace);
                let metadata = json!({"name": format!("many-{number}")});
                let site = json!({"apiVersion": "example.com/v2", "kind": "Site", "metadata": metadata, "spec": {"host": "a.b"}});
                user.try_create(&path, &site).await.map(drop)
            });
        }
        for created in creating.join_all().await {
            created.unwrap();
        }
        serving.end().await;
    })
    .await;
}
