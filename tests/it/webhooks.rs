//! Tests webhooks of the library: validation, defaults, conversion and their certificates, with an operator in this process.

use std::net::SocketAddr;

use base64::{Engine, engine::general_purpose::STANDARD};
use http::Method;
use listwatch::{
    controller::{Next, Operator, Reconcile, ReconcileError},
    manifests::Installation,
    resource::ObjectMeta,
    runtime::Runtime,
    webhook::{Decision, Operation, Review, Validator, Webhooks},
};
use listwatch_control_plane::{PATIENCE, eventually, free_port};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::{
    sync::{mpsc, oneshot},
    task::{JoinHandle, JoinSet},
    time::timeout,
};

use crate::fixture::{Fixture, Kind, on};

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
    schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {
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
        assert_eq!(review.old.is_some(), review.operation == Operation::Update);
        assert!(!review.user.username.is_empty());
        decision
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
}

impl Serving {
    fn start(fixture: &Fixture, at: impl FnOnce(Runtime) -> Runtime) -> Serving {
        let (stop, stopped) = oneshot::channel::<()>();
        let runtime = at(Runtime::new(fixture.client.clone()).webhooks(webhooks()));
        let run = async move {
            runtime.run_until(async { drop(stopped.await) }).await.unwrap();
        };
        Serving { stop, running: tokio::spawn(run) }
    }

    fn start_at(fixture: &Fixture, address: SocketAddr) -> Serving {
        Serving::start(fixture, |runtime| runtime.webhook_bind_address(address, None))
    }

    async fn end(self) {
        drop(self.stop);
        self.running.await.unwrap();
    }
}

fn definition() -> Value {
    listwatch_yaml::documents(CRD).next().unwrap().unwrap()
}

/// Applies all that `manifests` prints but the operator. `call` may change each clientConfig.
async fn install(fixture: &Fixture, call: impl Fn(&mut Value)) {
    let installation = Installation {
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
        has_network_policy: false,
        webhooks: Some(webhooks().installation()),
    };
    for mut object in installation.objects() {
        let kind = object["kind"].as_str().unwrap().to_owned();
        let path = match &*kind {
            "CustomResourceDefinition" => {
                call(&mut object["spec"]["conversion"]["webhook"]["clientConfig"]);
                DEFINITIONS.to_owned()
            }
            "ValidatingWebhookConfiguration" | "MutatingWebhookConfiguration" => {
                object["webhooks"]
                    .as_array_mut()
                    .unwrap()
                    .iter_mut()
                    .for_each(|hook| call(&mut hook["clientConfig"]));
                format!("/apis/admissionregistration.k8s.io/v1/{}s", kind.to_lowercase())
            }
            "Service" => "/api/v1/namespaces/default/services".to_owned(),
            _ => continue,
        };
        apply(fixture, &path, &object).await;
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
        let expected = json!({"host": "web.example.com", "port": 8443, "aliases": ["www"]});
        assert_eq!((&new["spec"], &new["metadata"]["annotations"]), (&expected, &json!(null)));

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
        serving.end().await;
    })
    .await;
}

#[tokio::test]
async fn an_operator_that_is_down_blocks_no_deletion() {
    on(SERVERS, async |fixture| {
        let (serving, _) = with_operator(fixture).await;
        let edit = json!({"metadata": {"finalizers": ["example.com/cleanup"]}});
        send(fixture, Method::PATCH, "v2", "ready", edit).await.unwrap();
        // A cleanup may depend on the spec.
        send(fixture, Method::DELETE, "v2", "ready", json!(null)).await.unwrap();
        let error = send(fixture, Method::PATCH, "v2", "ready", json!({"spec": {"host": "local"}}))
            .await
            .unwrap_err();
        assert!(error.contains("must have a domain"), "{error}");
        serving.end().await;
        let error = create(fixture, "web", json!({"host": "web.example.com"})).await.unwrap_err();
        assert!(error.contains("connection refused"), "{error}");
        send(fixture, Method::PATCH, "v2", "ready", json!({"metadata": {"finalizers": null}})).await.unwrap();
        let gone = send(fixture, Method::GET, "v2", "ready", json!(null)).await.unwrap_err();
        assert!(gone.contains("404"), "{gone}");
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

        for edit in
            [json!(null), json!({"data": null}), json!({"data": {"ca.crt": "eA==", "tls.crt": "eA=="}})]
        {
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
    })
    .await;
}

#[tokio::test]
async fn a_request_that_is_not_a_review_gets_a_clear_answer_and_harms_no_other() {
    on(SERVERS, async |fixture| {
        let (serving, address) = with_operator(fixture).await;
        let http = reqwest::Client::builder().tls_danger_accept_invalid_certs(true).build().unwrap();
        let post = async |path: &str, body: String| {
            let answer = http.post(format!("https://{address}{path}")).body(body).send().await.unwrap();
            (answer.status().as_u16(), answer.text().await.unwrap())
        };
        let review = |api_version: &str, kind: &str, request: Value| {
            json!({"apiVersion": api_version, "kind": kind, "request": request}).to_string()
        };
        let admission = |request: Value| review("admission.k8s.io/v1", "AdmissionReview", request);
        let validate = "/validate-example-com-v2-site";
        for (path, body, code, expected) in [
            ("/", String::new(), 404, "no webhook at /"),
            (validate, String::new(), 400, "the body is not a review in JSON: EOF while parsing"),
            (validate, "[".repeat(10_000), 400, "the body is not a review in JSON: invalid type"),
            (validate, review("admission.k8s.io/v1beta1", "AdmissionReview", json!({})), 400, "not \"AdmissionReview\" of \"admission.k8s.io/v1beta1\""),
            (validate, review("v1", "Pod", json!(null)), 400, "expected kind AdmissionReview of admission.k8s.io/v1"),
            (validate, admission(json!(null)), 400, "the AdmissionReview has no request"),
            (validate, admission(json!({"uid": "u"})), 400, "the request of the AdmissionReview: missing field `operation`"),
            (validate, admission(json!({"uid": "u", "operation": "CREATE"})), 400, "missing field `object`"),
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
        // An object that the operator cannot read is denied.
        let request = json!({"uid": "u", "operation": "CREATE", "object": {"metadata": {}, "spec": {"host": 1}}});
        let (_, text) = post(validate, admission(request)).await;
        assert!(text.contains("the operator cannot read the object: invalid type: integer `1`"), "{text}");
        let large = json!({"metadata": {}, "spec": {"host": "a.b", "unknown": "x".repeat(3 * 1024 * 1024)}});
        let request = json!({"uid": "u", "operation": "CREATE", "userInfo": {"username": "jane"}, "object": large});
        let (_, text) = post(validate, admission(request)).await;
        assert!(text.contains(r#""allowed":true"#), "{text}");
        // Configurations that somebody else writes may ask about it.
        let deleted = |host: &str| json!({"metadata": {"deletionTimestamp": "2026-11-30T13:16:15Z"}, "spec": {"host": host}});
        for (before, is_allowed) in [("local", true), ("a.b", false)] {
            let user = json!({"username": "jane"});
            let request = json!({"uid": "u", "operation": "UPDATE", "userInfo": user, "object": deleted("local"), "oldObject": deleted(before)});
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
