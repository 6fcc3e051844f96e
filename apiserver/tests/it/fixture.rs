//! An API server and a namespace for one test.
//!
//! The server is the embedded one or, with `KUBEBUILDER_ASSETS`, a kube-apiserver that all tests share. Both serve
//! MyWebservers, the custom resource of `manifests/mywebserver/crd`.

use std::{io::Write as _, thread};

use listwatch_apiserver::{ApiServer, ExecRule, Options};
use listwatch_control_plane::{
    ADMIN_TOKEN, ControlPlane, Http, eventually, has_assets, has_only_real, saw, unique,
};
use reqwest::{Certificate, Method, header};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{
    sync::OnceCell,
    task::{JoinSet, LocalSet},
};

const JSON: &str = "application/json";
pub const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// The server of a fixture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The embedded server, without its controllers.
    Embedded,
    /// The embedded server, with its controllers.
    EmbeddedWithControllers,
    /// The kube-apiserver that all tests share.
    Real,
}

/// One server, and a namespace of the test.
pub struct Fixture {
    pub kind: Kind,
    pub url: String,
    pub ca_pem: String,
    /// A token with full access.
    pub token: String,
    pub namespace: String,
    http: reqwest::Client,
    _embedded: Option<ApiServer>,
}

/// The answer to a request.
pub struct Answer {
    pub status: u16,
    pub warnings: Vec<String>,
    /// The JSON of the body, or its text.
    pub body: Value,
}

/// A client that trusts this certificate authority.
pub fn http(ca_pem: &str, user_agent: &str) -> reqwest::Client {
    // A second call fails, which does not matter.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let ca = Certificate::from_pem(ca_pem.as_bytes()).unwrap();
    reqwest::Client::builder().tls_certs_only([ca]).user_agent(user_agent).build().unwrap()
}

/// The real control plane that all tests share.
pub async fn control_plane() -> &'static ControlPlane {
    static SHARED: OnceCell<ControlPlane> = OnceCell::const_new();
    SHARED
        .get_or_init(async || {
            let control_plane = ControlPlane::start(Http::Any).await;
            let (url, ca_pem) = (control_plane.url(), control_plane.ca_pem());
            Fixture::new(Kind::Real, url, ca_pem, ADMIN_TOKEN, None).install(&my_webservers()).await;
            control_plane.start_controller_manager();
            control_plane
        })
        .await
}

/// The CustomResourceDefinition of MyWebservers.
pub fn my_webservers() -> Value {
    let text = include_str!("../../../manifests/mywebserver/crd/mywebservers.yaml");
    Value::deserialize(yaml_serde::Deserializer::from_str(text)).unwrap()
}

/// Runs a script on these kinds of server at the same time.
pub async fn on(kinds: &[Kind], script: impl AsyncFn(&Fixture) + Copy + 'static) {
    let kinds: Vec<_> =
        kinds.iter().copied().filter(|kind| *kind == Kind::Real || !has_only_real()).collect();
    on_all(&kinds, script).await;
}

/// The same, on the embedded server in each run.
pub async fn on_all(kinds: &[Kind], script: impl AsyncFn(&Fixture) + Copy + 'static) {
    let (local, mut scripts) = (LocalSet::new(), JoinSet::new());
    for &kind in kinds.iter().filter(|kind| **kind != Kind::Real || has_assets()) {
        scripts.spawn_local_on(async move { script(&Fixture::start(kind).await).await }, &local);
    }
    let mut failed = 0;
    let ended = async {
        while let Some(ended) = scripts.join_next().await {
            failed += usize::from(ended.is_err());
        }
    };
    local.run_until(ended).await;
    assert_eq!(failed, 0, "servers on which the script failed; see above");
}

impl Fixture {
    fn new(kind: Kind, url: String, ca_pem: String, token: &str, embedded: Option<ApiServer>) -> Fixture {
        Fixture {
            kind,
            url,
            http: http(&ca_pem, "tests/v1 (linux)"),
            ca_pem,
            token: token.to_owned(),
            namespace: format!("t-{}", unique()),
            _embedded: embedded,
        }
    }

    pub async fn start(kind: Kind) -> Fixture {
        let fixture = match kind {
            Kind::Real => {
                let control_plane = control_plane().await;
                Fixture::new(kind, control_plane.url(), control_plane.ca_pem(), ADMIN_TOKEN, None)
            }
            Kind::Embedded | Kind::EmbeddedWithControllers => {
                let controllers = kind == Kind::EmbeddedWithControllers;
                let down = ExecRule::new("pg_isready", "down", 2).unwrap();
                let exec = vec!["redis-cli.*=PONG".parse().unwrap(), down];
                let options = Options { controllers, rbac: true, exec, ..Options::default() };
                let server = ApiServer::start(options).await.unwrap();
                let (url, ca_pem, token) =
                    (server.url(), server.ca_pem().to_owned(), server.token().to_owned());
                let fixture = Fixture::new(kind, url, ca_pem, &token, Some(server));
                fixture.install(&my_webservers()).await;
                fixture
            }
        };
        let namespace = json!({"metadata": {"name": fixture.namespace}});
        assert_eq!(fixture.try_create("/api/v1/namespaces", &namespace).await.status, 201);
        fixture
    }

    /// The path of `deployments/web`, `deployments` or `mywebservers/web/status`.
    pub fn path(&self, what: &str) -> String {
        let api = match what.split(['/', '?']).next().unwrap() {
            "deployments" => "apis/apps/v1",
            "mywebservers" => "apis/k8sobjects.gsa.com/v2",
            "events" => "apis/events.k8s.io/v1",
            "services" | "configmaps" | "secrets" => "api/v1",
            unknown => panic!("{unknown}: unknown resource"),
        };
        format!("/{api}/namespaces/{}/{what}", self.namespace)
    }

    /// Sends a request. An error of the connection is an answer with status 0.
    pub async fn send(&self, method: Method, path: &str, content_type: &str, body: Vec<u8>) -> Answer {
        let what = format!("{method} {path}");
        let request = self.http.request(method, format!("{}{path}", self.url)).bearer_auth(&self.token);
        let request = request.header(header::CONTENT_TYPE, content_type).body(body);
        let answer = match request.send().await {
            Ok(answer) => answer,
            Err(error) => return Answer { status: 0, warnings: Vec::new(), body: error.to_string().into() },
        };
        let warnings = answer.headers().get_all(header::WARNING).iter();
        let warnings = warnings.map(|warning| warning.to_str().unwrap().to_owned()).collect();
        let (status, text) = (answer.status().as_u16(), answer.text().await.unwrap());
        saw(&what, format!("{status} {text}"));
        Answer { status, warnings, body: serde_json::from_str(&text).unwrap_or(Value::String(text)) }
    }

    pub fn client(&self) -> &reqwest::Client {
        &self.http
    }

    /// GETs a path.
    pub async fn raw(&self, path: &str) -> Answer {
        self.send(Method::GET, path, JSON, Vec::new()).await
    }

    /// GETs an object. `None` after a 404.
    pub async fn find(&self, what: &str) -> Option<Value> {
        let answer = self.raw(&self.path(what)).await;
        match answer.status {
            200 => Some(answer.body),
            404 => None,
            status => panic!("{what}: {status} {}", answer.body),
        }
    }

    pub async fn get(&self, what: &str) -> Value {
        self.find(what).await.unwrap_or_else(|| panic!("{what} does not exist"))
    }

    /// POSTs an object to a path.
    pub async fn try_create(&self, path: &str, object: &Value) -> Answer {
        self.send(Method::POST, path, JSON, object.to_string().into_bytes()).await
    }

    /// POSTs an object, and returns it in protobuf.
    pub async fn create_in_protobuf(&self, path: &str, object: &Value) -> Vec<u8> {
        let request = self.http.post(format!("{}{path}", self.url)).bearer_auth(&self.token);
        let request = request.header(header::ACCEPT, PROTOBUF);
        let answer =
            request.header(header::CONTENT_TYPE, JSON).body(object.to_string()).send().await.unwrap();
        assert_eq!(answer.status(), 201, "{path}");
        answer.bytes().await.unwrap().to_vec()
    }

    pub async fn create(&self, resource: &str, object: &Value) {
        let answer = self.try_create(&self.path(resource), object).await;
        assert_eq!(answer.status, 201, "{resource}: {}", answer.body);
    }

    pub async fn delete(&self, what: &str) {
        let answer = self.send(Method::DELETE, &self.path(what), JSON, Vec::new()).await;
        assert_eq!(answer.status, 200, "{what}: {}", answer.body);
    }

    /// Creates a CustomResourceDefinition, and waits until all its versions are served.
    pub async fn install(&self, crd: &Value) {
        let crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        let answer = self.try_create(crds, crd).await;
        assert_eq!(answer.status, 201, "{}", answer.body);
        let spec = &crd["spec"];
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        for version in spec["versions"].as_array().unwrap() {
            let (group, plural) = (text(&spec["group"]), text(&spec["names"]["plural"]));
            let path = format!("/apis/{group}/{}/{plural}", text(&version["name"]));
            eventually("the CRD to be served", async || (self.raw(&path).await.status == 200).then_some(()))
                .await;
        }
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        if thread::panicking() {
            let _ =
                writeln!(std::io::stderr(), "--- failed on {:?}, namespace {}", self.kind, self.namespace);
        }
    }
}
