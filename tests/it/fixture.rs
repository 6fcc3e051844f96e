//! Fixtures: a server, an operator, and a transcript of the operator's writes. Most tests run with four fixtures.
//!
//! ```text
//!   test ─ UserClient ─► API server ◄─ operator (the binary)
//!                       └─► transcript: PATCH deployments/mws-web 200
//! ```
//!
//! The server is the embedded one or, with `KUBEBUILDER_ASSETS`, a real one; the operator lists in pages or streams. Each
//! fixture has a namespace of its own, in which its operator has the permissions of `manifests/` and no others: on a real server
//! it is a ServiceAccount of that namespace.

use std::{
    any::type_name_of_val,
    cell::{Cell, RefCell},
    collections::HashSet,
    fs, io,
    ops::Deref,
    pin::Pin,
    rc::Rc,
    sync::Arc,
    thread,
    time::SystemTime,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use listwatch::{
    advanced::{InProcess, InProcessAnswer},
    client::{Client, Config},
    watch::Lists,
};
use listwatch_apiserver::{ApiServer, Options, Rule};
use listwatch_control_plane::{
    ADMIN_TOKEN, ControlPlane, Http, STARTED, eventually, has_assets, has_one_list, has_only_real, saw,
    unique,
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    runtime,
    sync::OnceCell,
    task::{JoinSet, LocalSet},
};

use crate::{
    client::{UserClient, admin, patient},
    manifests,
    operator::Operator,
};

/// The name of the operator's ServiceAccount.
pub const ACCOUNT: &str = "mywebserver-operator";
/// A MyWebserver in every fixture; see [`Fixture::settle`].
const BARRIER: &str = "barrier";

/// The server of a fixture, and what is installed there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The embedded server, without a garbage collector.
    Embedded,
    /// As `Embedded`, without a connection and on a paused clock: no time passes while all wait. For operators in this process.
    InProcess,
    /// The embedded server, with its controllers.
    EmbeddedWithControllers,
    /// A real server that all tests share.
    Real,
    /// Another real server that all tests share. It speaks HTTP/1.1 only.
    RealHttp1,
    /// The embedded server, with nothing installed. The script installs the CRD, and creates the namespace.
    EmbeddedBare,
    /// A real server for this test only, with nothing installed and without a garbage collector.
    RealBare,
    /// As `RealBare`, for scripts that hold only with paged lists.
    RealPaged,
    /// A real server for this test only, as before 1.32: lists are paged, and no snapshot outlives etcd's history.
    RealBefore132,
}

impl Kind {
    fn is_real(self) -> bool {
        match self {
            Kind::Embedded | Kind::InProcess | Kind::EmbeddedBare | Kind::EmbeddedWithControllers => false,
            Kind::Real | Kind::RealHttp1 | Kind::RealBare | Kind::RealPaged | Kind::RealBefore132 => true,
        }
    }
}

pub enum Server {
    Embedded(Arc<ApiServer>),
    Shared(&'static ControlPlane),
    Own(Rc<ControlPlane>),
}

/// One server, and one operator in one namespace.
pub struct Fixture {
    // The first field, so that the operator ends while its log and its server still exist.
    operator: RefCell<Option<Rc<Operator>>>,
    pub server: Server,
    /// With [`Kind::InProcess`].
    link: Option<Arc<Link>>,
    pub user: UserClient,
    /// The URL of the proxy through which the operator reaches the server, if any.
    pub proxy_url: RefCell<Option<String>>,
    /// The directory of the service account, with its `token`.
    pub dir: TempDir,
    pub name: String,
    pub lists: Lists,
    /// The user name of the operator in the server's log.
    operator_user: RefCell<String>,
    records: RefCell<Records>,
    /// How often the barrier was used.
    barrier: Cell<u16>,
    /// Set by a script that provokes a 403.
    pub may_be_forbidden: Cell<bool>,
}

/// The requests of the operator.
#[derive(Default)]
struct Records {
    /// How much of the server's log has been read.
    read: u64,
    /// The requests without an answer in the log of a real server, by their audit ID. Without watches.
    unanswered: HashSet<String>,
    all: Vec<Record>,
    /// How many requests the transcripts have shown.
    shown: usize,
}

/// One request of the operator, and its answer.
#[derive(Clone, Debug)]
pub struct Record {
    pub method: String,
    /// The path with its query.
    pub path: String,
    pub status: u64,
}

impl Deref for Fixture {
    type Target = UserClient;
    fn deref(&self) -> &UserClient {
        &self.user
    }
}

/// Runs a script on both servers and with both ways to list, with an operator that has settled.
pub async fn on_each(script: impl AsyncFn(&Fixture) + Copy + Send + 'static) {
    on(&[Kind::Embedded, Kind::Real], async move |fixture: &Fixture| {
        fixture.start_operator(&[]).await;
        script(fixture).await;
    })
    .await;
}

/// Runs a script on these kinds of server and with both ways to list, without an operator.
pub async fn on(kinds: &[Kind], script: impl AsyncFn(&Fixture) + Copy + Send + 'static) {
    let mut fixtures = JoinSet::new();
    let local = LocalSet::new();
    for &kind in kinds {
        let is_left_out = if kind.is_real() { !has_assets() } else { has_only_real() };
        if is_left_out {
            continue;
        }
        for lists in ways_to_list(kind, type_name_of_val(&script)) {
            if kind == Kind::InProcess {
                fixtures.spawn_blocking(move || on_paused_clock(run(kind, lists, script)));
            } else {
                fixtures.spawn_local_on(run(kind, lists, script), &local);
            }
        }
    }
    let failed = local
        .run_until(async {
            let mut failed = 0;
            while let Some(ended) = fixtures.join_next().await {
                failed += usize::from(ended.is_err());
            }
            failed
        })
        .await;
    assert_eq!(failed, 0, "fixtures whose script failed; see above");
}

/// With `LISTWATCH_ONE_LIST`, the name of a script says which of the two it has on a real server.
fn ways_to_list(kind: Kind, script: &str) -> Vec<Lists> {
    let both = vec![Lists::Paged, Lists::Streaming];
    match kind {
        Kind::RealPaged | Kind::RealBefore132 => vec![Lists::Paged],
        Kind::Real | Kind::RealHttp1 | Kind::RealBare if has_one_list() => {
            let is_even = script.bytes().map(u32::from).sum::<u32>() % 2 == 0;
            vec![if is_even { Lists::Paged } else { Lists::Streaming }]
        }
        Kind::Embedded | Kind::InProcess | Kind::EmbeddedBare | Kind::EmbeddedWithControllers => both,
        Kind::Real | Kind::RealHttp1 | Kind::RealBare => both,
    }
}

async fn run(kind: Kind, lists: Lists, script: impl AsyncFn(&Fixture)) {
    let fixture = Fixture::start(kind, lists).await;
    script(&fixture).await;
    fixture.assert_clean();
}

/// Runs a script in this thread, on a clock of its own that jumps to the next timer when all wait.
pub fn on_paused_clock<T>(script: impl Future<Output = T>) -> T {
    let mut builder = runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().start_paused(true).build().unwrap();
    LocalSet::new().block_on(&runtime, script)
}

/// Brings requests to an embedded server without a connection.
pub struct Link(pub Arc<ApiServer>);

impl Link {
    pub fn config(self: &Arc<Self>, token: &str) -> Config {
        let server: Arc<dyn InProcess> = Arc::clone(self) as _;
        Config::in_process(server, token).unwrap()
    }

    fn client(self: &Arc<Self>, token: &str) -> Client {
        Client::new(self.config(token)).unwrap()
    }
}

impl InProcess for Link {
    fn answer(
        &self,
        request: http::Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = io::Result<InProcessAnswer>> + Send + '_>> {
        Box::pin(async move {
            let answer = self.0.answer(request.map(Full::new)).await.map_err(io::Error::other)?;
            Ok(answer.map(|body| body.map_err(Into::into).boxed_unsync()))
        })
    }

    fn now(&self) -> SystemTime {
        self.0.now()
    }
}

/// The real control plane that all tests share, except those that harm it.
pub async fn shared_control_plane() -> &'static ControlPlane {
    static SHARED: OnceCell<ControlPlane> = OnceCell::const_new();
    SHARED
        .get_or_init(async || {
            let control_plane = installed_control_plane(Http::Any).await;
            control_plane.start_controller_manager();
            control_plane
        })
        .await
}

/// Another real control plane that all tests share. It speaks HTTP/1.1 only, and has no garbage collector.
async fn shared_http1_control_plane() -> &'static ControlPlane {
    static SHARED: OnceCell<ControlPlane> = OnceCell::const_new();
    SHARED.get_or_init(async || installed_control_plane(Http::One).await).await
}

/// Starts a real control plane with the CRD and the permissions of the operator, without a garbage collector.
pub async fn installed_control_plane(http: Http) -> ControlPlane {
    let control_plane = ControlPlane::start(http).await;
    let admin = UserClient::new(admin_of(&control_plane));
    admin.install(&manifests::crd()).await;
    admin.install(&manifests::cluster_role()).await;
    control_plane
}

/// A client of a real control plane, with a token with full access.
pub fn admin_of(control_plane: &ControlPlane) -> Client {
    patient(&control_plane.url(), &control_plane.ca_pem(), ADMIN_TOKEN)
}

/// The text of a kubeconfig of a real control plane, with a token with full access.
pub fn kubeconfig_of(control_plane: &ControlPlane) -> String {
    let (url, ca) = (control_plane.url(), BASE64_STANDARD.encode(control_plane.ca_pem()));
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "here",
        "clusters": [{"name": "here", "cluster": {"server": url, "certificate-authority-data": ca}}],
        "users": [{"name": "admin", "user": {"token": ADMIN_TOKEN}}],
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "admin"}}],
    });
    config.to_string()
}

impl Fixture {
    async fn start(kind: Kind, lists: Lists) -> Fixture {
        let server = match kind {
            Kind::Embedded | Kind::EmbeddedBare | Kind::EmbeddedWithControllers => {
                let controllers = kind == Kind::EmbeddedWithControllers;
                let server = ApiServer::start(Options { controllers, ..Options::default() }).await.unwrap();
                Server::Embedded(Arc::new(server))
            }
            Kind::InProcess => {
                let options = Options { controllers: false, ..Options::default() };
                Server::Embedded(Arc::new(ApiServer::in_process(&options, SystemTime::now())))
            }
            Kind::Real => Server::Shared(shared_control_plane().await),
            Kind::RealHttp1 => Server::Shared(shared_http1_control_plane().await),
            Kind::RealBare | Kind::RealPaged => Server::Own(Rc::new(ControlPlane::start(Http::Any).await)),
            Kind::RealBefore132 => Server::Own(Rc::new(ControlPlane::start(Http::AnyBefore132).await)),
        };
        let link = match &server {
            Server::Embedded(server) if kind == Kind::InProcess => Some(Arc::new(Link(Arc::clone(server)))),
            Server::Embedded(_) | Server::Shared(_) | Server::Own(_) => None,
        };
        let fixture = Fixture::new(server, link, lists);
        match kind {
            Kind::Embedded | Kind::InProcess | Kind::EmbeddedWithControllers => {
                fixture.install(&manifests::crd()).await;
                fixture.create_namespace().await;
            }
            Kind::Real | Kind::RealHttp1 | Kind::RealBefore132 => fixture.create_namespace().await,
            Kind::EmbeddedBare | Kind::RealBare | Kind::RealPaged => {}
        }
        fixture
    }

    /// A fixture for each way to list, on this control plane, where the CRD is installed.
    pub async fn paged_and_streaming(control_plane: &Rc<ControlPlane>) -> [Fixture; 2] {
        let fixtures = [Lists::Paged, Lists::Streaming]
            .map(|lists| Fixture::new(Server::Own(Rc::clone(control_plane)), None, lists));
        for fixture in &fixtures {
            fixture.create_namespace().await;
        }
        fixtures
    }

    fn new(server: Server, link: Option<Arc<Link>>, lists: Lists) -> Fixture {
        let (name, client) = match &server {
            Server::Embedded(server) => {
                let in_process = link.as_ref().map(|link| link.client(server.token()));
                ("embedded", in_process.unwrap_or_else(|| admin(server)))
            }
            Server::Shared(control_plane) => (control_plane.name(), admin_of(control_plane)),
            Server::Own(control_plane) => ("real, own", admin_of(control_plane)),
        };
        let namespace = format!("t-{}", unique());
        Fixture {
            name: format!("{name}, {lists:?}, namespace {namespace}"),
            user: UserClient { client, namespace },
            server,
            link,
            proxy_url: RefCell::default(),
            dir: TempDir::new().unwrap(),
            operator: RefCell::default(),
            lists,
            operator_user: RefCell::default(),
            records: RefCell::default(),
            barrier: Cell::new(1000),
            may_be_forbidden: Cell::new(false),
        }
    }

    /// Creates the namespace, and the operator's ServiceAccount with the permissions of the ClusterRole.
    pub async fn create_namespace(&self) {
        let namespace = &self.namespace;
        self.install(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}))
            .await;
        fs::write(self.dir.path().join("namespace"), namespace).unwrap();
        if !self.is_embedded() {
            self.create("serviceaccounts", &json!({"metadata": {"name": ACCOUNT}})).await;
        }
        self.allow().await;
        self.new_token().await;
    }

    /// Binds the operator's account to its ClusterRole, in this namespace.
    pub async fn allow(&self) {
        if let Server::Embedded(_) = &self.server {
            return self.limit(&manifests::cluster_role()["rules"]);
        }
        let binding = json!({
            "metadata": {"name": ACCOUNT},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": ACCOUNT},
            "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": self.namespace}],
        });
        self.create("rolebindings", &binding).await;
    }

    /// Limits the operator to these rules, in its namespace.
    fn limit(&self, rules: &Value) {
        let Server::Embedded(server) = &self.server else { panic!("a real server keeps Roles") };
        let mut rules: Vec<Rule> = serde_json::from_value(rules.clone()).unwrap();
        rules.iter_mut().for_each(|rule| rule.namespace = Some(self.namespace.clone()));
        server.set_rules(ACCOUNT, rules);
    }

    /// Takes away the permissions that [`Fixture::allow`] gave.
    pub async fn forbid(&self) {
        if let Server::Embedded(_) = &self.server {
            return self.limit(&json!([]));
        }
        self.delete(&format!("rolebindings/{ACCOUNT}")).await;
    }

    /// Replaces the permissions of the operator with these rules.
    pub async fn allow_only(&self, rules: &Value) {
        if let Server::Embedded(_) = &self.server {
            return self.limit(rules);
        }
        self.create("roles", &json!({"metadata": {"name": "limited"}, "rules": rules})).await;
        let binding = json!({
            "metadata": {"name": "limited"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "limited"},
            "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": self.namespace}],
        });
        self.create("rolebindings", &binding).await;
        self.delete(&format!("rolebindings/{ACCOUNT}")).await;
    }

    /// Also gives the operator these permissions in all namespaces.
    pub async fn allow_everywhere(&self, rules: &Value) {
        if let Server::Embedded(server) = &self.server {
            return server.set_rules(ACCOUNT, serde_json::from_value(rules.clone()).unwrap());
        }
        let (namespace, metadata) = (&self.namespace, json!({"name": self.namespace}));
        self.install(&json!({"kind": "ClusterRole", "metadata": metadata, "rules": rules})).await;
        let binding = json!({
            "kind": "ClusterRoleBinding", "metadata": metadata,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": namespace},
            "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": namespace}],
        });
        self.install(&binding).await;
    }

    /// Gives the operator the permissions of `manifests/`, without this verb on this resource.
    pub async fn allow_all_but(&self, verb: &str, resource: &str) {
        let mut rules = manifests::cluster_role()["rules"].take();
        for rule in rules.as_array_mut().unwrap() {
            if rule["resources"] == json!([resource]) {
                rule["verbs"].as_array_mut().unwrap().retain(|allowed| allowed != verb);
            }
        }
        rules.as_array_mut().unwrap().retain(|rule| rule["verbs"] != json!([]));
        self.allow_only(&rules).await;
    }

    /// Writes a new token, bound to a new Secret, to the service account's directory, and returns it.
    pub async fn new_token(&self) -> Token {
        let secret = format!("token-{}", unique());
        let (token, ca) = match &self.server {
            Server::Embedded(server) => {
                server.add_token(&secret, ACCOUNT);
                *self.operator_user.borrow_mut() = ACCOUNT.to_owned();
                (secret.clone(), server.ca_pem().to_owned())
            }
            Server::Shared(_) | Server::Own(_) => {
                let control_plane = self.control_plane();
                self.create("secrets", &json!({"metadata": {"name": secret}})).await;
                let request = json!({"spec": {
                    "audiences": ["https://kubernetes.default.svc"], "expirationSeconds": 3600,
                    "boundObjectRef": {"apiVersion": "v1", "kind": "Secret", "name": secret},
                }});
                let path = format!("serviceaccounts/{ACCOUNT}/token");
                let answer = self.create(&path, &request).await;
                *self.operator_user.borrow_mut() =
                    format!("system:serviceaccount:{}:{ACCOUNT}", self.namespace);
                (answer["status"]["token"].as_str().unwrap().to_owned(), control_plane.ca_pem())
            }
        };
        fs::write(self.dir.path().join("token"), &token).unwrap();
        fs::write(self.dir.path().join("ca.crt"), ca).unwrap();
        Token { token, secret }
    }

    /// Revokes a token, and waits until the server refuses it.
    pub async fn revoke(&self, token: &Token) {
        if let Server::Embedded(server) = &self.server {
            server.revoke_token(&token.token);
        } else {
            self.delete(&format!("secrets/{}", token.secret)).await;
        }
        let client = patient(&self.url(), &self.ca_pem(), &token.token);
        let path = self.path("mywebservers");
        eventually("the old token to be refused", async || {
            let error = UserClient::new(client.clone()).raw(&path).await.err()?;
            (error.code() == Some(401)).then_some(())
        })
        .await;
    }

    pub fn url(&self) -> String {
        match &self.server {
            Server::Embedded(server) => server.url(),
            Server::Shared(_) | Server::Own(_) => self.control_plane().url(),
        }
    }

    /// A token with full access.
    pub fn admin_token(&self) -> &str {
        match &self.server {
            Server::Embedded(server) => server.token(),
            Server::Shared(_) | Server::Own(_) => ADMIN_TOKEN,
        }
    }

    pub fn ca_pem(&self) -> String {
        match &self.server {
            Server::Embedded(server) => server.ca_pem().to_owned(),
            Server::Shared(_) | Server::Own(_) => self.control_plane().ca_pem(),
        }
    }

    /// The real control plane. Panics on the embedded server.
    pub fn control_plane(&self) -> &ControlPlane {
        match &self.server {
            Server::Embedded(_) => panic!("the embedded server has no control plane"),
            Server::Shared(control_plane) => control_plane,
            Server::Own(control_plane) => control_plane,
        }
    }

    pub fn is_embedded(&self) -> bool {
        matches!(self.server, Server::Embedded(_))
    }

    pub fn embedded(&self) -> &ApiServer {
        let Server::Embedded(server) = &self.server else { panic!("a real server") };
        server
    }

    /// Starts an operator in this namespace, and waits until it has settled.
    pub async fn start_operator(&self, args: &[&str]) {
        self.spawn_operator(args);
        self.until_settled().await;
    }

    /// Waits until an operator that has just started has settled.
    pub async fn until_settled(&self) {
        if self.find(&format!("mywebservers/{BARRIER}")).await.is_none() {
            self.create_web(BARRIER, json!({"image": "nginx"})).await;
        }
        self.until_barrier_patched("mywebservers/barrier/status", 0).await;
        self.settle().await;
        self.transcript().await;
    }

    /// Starts an operator in this namespace.
    pub fn spawn_operator(&self, args: &[&str]) {
        let mut all = vec!["--namespace", &self.namespace];
        // One key at a time, in order: the last change is handled when all others are.
        if !args.contains(&"--max-concurrent-reconciles") {
            all.extend(["--max-concurrent-reconciles", "1"]);
        }
        if self.lists == Lists::Streaming {
            all.push("--streaming-lists");
        }
        all.extend(args);
        let address = self.proxy_url.borrow().clone().unwrap_or_else(|| self.url());
        let operator = Operator::start(&address, self.dir.path(), &all);
        *self.operator.borrow_mut() = Some(Rc::new(operator));
    }

    /// The running operator.
    pub fn operator(&self) -> Rc<Operator> {
        Rc::clone(self.operator.borrow().as_ref().expect("an operator"))
    }

    /// Asks the operator to stop, and waits until it has.
    pub async fn stop_operator(&self) {
        let operator = self.operator.borrow_mut().take().expect("an operator");
        operator.signal("TERM");
        let status = operator.ended().await;
        assert_eq!(status.code(), Some(0), "{status}");
    }

    /// Creates a MyWebserver, waits until the operator has settled, and drops the transcript.
    pub async fn create_settled_web(&self, name: &str, spec: Value) -> Value {
        let web = self.create_web(name, spec).await;
        self.settle().await;
        self.transcript().await;
        web
    }

    /// Waits until the operator has handled all changes made before this call.
    ///
    /// The barrier is a MyWebserver. Its spec is changed, then each of its children; when the operator has answered each
    /// change with a patch, it has read all earlier events of its three watches. The children come last, because a change
    /// of a child waits in the queue behind earlier changes and behind all new intents.
    pub async fn settle(&self) {
        let number = self.barrier.get() + 1;
        self.barrier.set(number);
        let parts = ["services/mws-barrier", "mywebservers/barrier/status"];
        let patched = parts.map(|part| self.barrier_patches(part));
        self.patch("mywebservers/barrier", json!({"spec": {"port": number}})).await;
        for (part, patched) in parts.into_iter().zip(patched) {
            self.until_barrier_patched(part, patched).await;
        }
        for child in ["deployments/mws-barrier", "services/mws-barrier"] {
            let patched = self.barrier_patches(child);
            let drift = json!({"metadata": {"labels": {"app.kubernetes.io/component": "barrier"}}});
            self.patch(child, drift).await;
            self.until_barrier_patched(child, patched).await;
        }
    }

    async fn until_barrier_patched(&self, what: &str, before: usize) {
        let patched = async || {
            let patches = self.barrier_patches(what);
            let records = self.records.borrow();
            let last: Vec<_> = records.all.iter().rev().take(8).map(|record| self.line(record)).collect();
            saw("the operator's last requests, the newest first", last.join(", "));
            (patches > before).then_some(())
        };
        eventually(&format!("the operator to patch {what}"), patched).await;
    }

    /// How often the operator has patched the barrier or a child of it, according to the server's log.
    fn barrier_patches(&self, what: &str) -> usize {
        self.read();
        let records = self.records.borrow();
        let expected = format!("PATCH {what} 200");
        records.all.iter().filter(|record| self.line(record) == expected).count()
    }

    /// Waits until a freshly started operator has reconciled a MyWebserver. Objects of its first list come after later
    /// changes in the queue, so [`Fixture::settle`] does not wait for them.
    pub async fn until_reconciled(&self, web: &str) {
        let key = format!("\"{}/{web}\"", self.namespace);
        self.operator().until_logged(&["\"reconciling\"", &key]).await;
    }

    /// Reads the server's log of requests, from where the last call ended.
    fn read(&self) {
        let mut records = self.records.borrow_mut();
        let user = &*self.operator_user.borrow();
        match &self.server {
            Server::Embedded(server) => {
                let ours = server.requests().into_iter().filter(|request| request.user == *user);
                let record = |request: listwatch_apiserver::RequestRecord| Record {
                    path: format!("{}?{}", request.path, request.query),
                    method: request.method,
                    status: request.status.into(),
                };
                records.all = ours.map(record).collect();
            }
            Server::Shared(_) | Server::Own(_) => {
                for event in self.control_plane().audit(&mut records.read, user) {
                    let text = |field: &str| event[field].as_str().unwrap_or_default();
                    let id = text("auditID").to_owned();
                    match (text("stage"), text("verb")) {
                        (STARTED, _) => records.unanswered.clear(),
                        ("RequestReceived", "watch") => {}
                        ("RequestReceived", _) => drop(records.unanswered.insert(id)),
                        (_, verb) => {
                            records.unanswered.remove(&id);
                            let method = match verb {
                                "create" => "POST",
                                "update" => "PUT",
                                "patch" => "PATCH",
                                "delete" | "deletecollection" => "DELETE",
                                _ => "GET",
                            };
                            records.all.push(Record {
                                method: method.to_owned(),
                                path: text("requestURI").to_owned(),
                                status: event["responseStatus"]["code"].as_u64().unwrap(),
                            });
                        }
                    }
                }
            }
        }
    }

    /// Reads the server's log until each request in it so far has its answer. The effect of a write can be seen before the server logs
    /// the answer: a transcript without that write would have it one step later.
    async fn read_answered(&self) {
        self.read();
        let sent = self.records.borrow().unanswered.clone();
        eventually("the answers to the requests of the operator", async || {
            self.read();
            self.records.borrow().unanswered.is_disjoint(&sent).then_some(())
        })
        .await;
    }

    /// A client with the operator's token, for this fixture's server or a proxy in front of it.
    pub fn operators_client(&self, url: &str) -> Client {
        let token = fs::read_to_string(self.dir.path().join("token")).unwrap();
        if let Some(link) = &self.link {
            return link.client(&token);
        }
        Client::new(Config::new(url, self.ca_pem().as_bytes(), &token).unwrap()).unwrap()
    }

    /// The user name of the operator in the server's log.
    pub fn operator_user(&self) -> String {
        self.operator_user.borrow().clone()
    }

    /// All requests of the operator.
    pub async fn records(&self) -> Vec<Record> {
        self.read_answered().await;
        self.records.borrow().all.clone()
    }

    /// `PATCH deployments/mws-web 200`
    fn line(&self, record: &Record) -> String {
        let path = record.path.split('?').next().unwrap();
        let inside = format!("/namespaces/{}/", self.namespace);
        let what = path.split_once(&inside).map_or(path, |(_, what)| what);
        let dry_run = if record.path.contains("dryRun=All") { "?dryRun=All" } else { "" };
        format!("{} {what}{dry_run} {}", record.method, record.status)
    }

    /// The writes of the operator since the last transcript, without Events and without the barrier.
    pub async fn transcript(&self) -> Vec<String> {
        self.read_answered().await;
        let lines = self.written();
        let mut records = self.records.borrow_mut();
        records.shown = records.all.len();
        lines
    }

    /// The same, and the next transcript has them again.
    pub fn written(&self) -> Vec<String> {
        self.read();
        let records = self.records.borrow();
        let new = records.all[records.shown..].iter().filter(|record| record.method != "GET");
        let lines = new.map(|record| self.line(record));
        let mut lines: Vec<_> =
            lines.filter(|line| !line.contains(" events") && !line.contains(BARRIER)).collect();
        children_in_order(&mut lines);
        lines
    }

    /// Waits until the operator has settled, and compares its transcript with `expected`, line by line.
    #[track_caller]
    pub fn wrote(&self, expected: &str) -> impl Future<Output = ()> {
        let caller = std::panic::Location::caller();
        async move {
            self.settle().await;
            let lines = expected.lines().map(str::trim).filter(|line| !line.is_empty());
            let mut expected: Vec<_> = lines.map(str::to_owned).collect();
            children_in_order(&mut expected);
            assert_eq!(self.transcript().await, expected, "{caller}");
        }
    }

    /// Checks that the operator did not panic, and met no 403 that the script did not provoke.
    pub fn assert_clean(&self) {
        if let Some(operator) = &*self.operator.borrow() {
            assert!(!operator.log().contains("panicked"), "the operator panicked");
        }
        if !self.may_be_forbidden.get() {
            self.read();
            let records = self.records.borrow();
            let forbidden: Vec<_> = records.all.iter().filter(|record| record.status == 403).collect();
            assert!(forbidden.is_empty(), "manifests/ do not allow these requests: {forbidden:?}");
        }
    }
}

/// The operator writes both children of an object at the same time. Puts the Deployment first, whichever was logged first.
fn children_in_order(lines: &mut [String]) {
    let mut next = 1;
    while next < lines.len() {
        let is_swapped = lines[next - 1].contains(" services") && lines[next].contains(" deployments");
        if is_swapped {
            lines.swap(next - 1, next);
        }
        next += if is_swapped { 2 } else { 1 };
    }
}

/// A token of the operator, and the Secret to which it is bound.
pub struct Token {
    pub token: String,
    secret: String,
}

impl Drop for Fixture {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("--- failed with this fixture: {}", self.name);
            self.read();
            for record in &self.records.borrow().all {
                eprintln!("{}", self.line(record));
            }
        }
    }
}
