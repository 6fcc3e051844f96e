//! A server, an operator, and what the operator writes: each test runs in four of these worlds.
//!
//! ```text
//!   test ─ Hands ─► API server ◄─ operator (the binary)
//!                       └─► transcript: PATCH deployments/mws-web 200
//! ```
//!
//! The server is our own or, with `KUBEBUILDER_ASSETS`, a real one too; the operator lists in pages, or streams. Each
//! world has a namespace for itself, and its operator may do there what `manifests/` says, and no more: on a real server it is
//! a ServiceAccount of that namespace.

use std::{
    cell::{Cell, RefCell},
    fs,
    io::{self, Write},
    ops::Deref,
    rc::Rc,
    sync::Once,
    thread,
};

use listwatch::{
    apiserver::{ApiServer, Options, Rule},
    client::{Client, Config},
    watch::Lists,
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::{JoinSet, LocalSet};

use crate::{
    hands::{Hands, eventually, saw},
    manifests,
    operator::Operator,
    plane::{self, Http, Plane},
};

/// The name of the operator's ServiceAccount.
pub const ACCOUNT: &str = "mywebserver-operator";
/// A MyWebserver that is in every world; see [`World::settle`].
const BARRIER: &str = "barrier";

/// Which server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Our own, where nobody collects garbage.
    Embedded,
    /// Our own, with its controllers.
    EmbeddedWithControllers,
    /// The real one that all tests share.
    Real,
    /// Another that all tests share, which speaks HTTP/1.1 alone.
    RealHttp1,
    /// Our own, where nothing is installed. The script does it, and makes the namespace.
    EmbeddedBare,
    /// A real one for this test alone, where nothing is installed and nobody collects garbage.
    RealBare,
    /// The same, for what is only so where lists are paged.
    RealPaged,
    /// A real one for this test alone, as before 1.32: lists are paged, and no snapshot outlives etcd's history.
    RealBefore132,
}

impl Kind {
    fn is_real(self) -> bool {
        !matches!(self, Kind::Embedded | Kind::EmbeddedBare | Kind::EmbeddedWithControllers)
    }
}

pub enum Server {
    Embedded(Box<ApiServer>),
    Shared(&'static Plane),
    Own(Rc<Plane>),
}

/// One server, and one operator in one namespace.
pub struct World {
    // First, so that it ends while its log and its server are still there.
    operator: RefCell<Option<Rc<Operator>>>,
    pub server: Server,
    pub hands: Hands,
    /// Where the operator finds the server, if not where it is.
    pub detour: RefCell<Option<String>>,
    /// The service account's, with its `token`.
    pub dir: TempDir,
    pub name: String,
    pub lists: Lists,
    /// Whose requests are the operator's.
    user: RefCell<String>,
    records: RefCell<Records>,
    /// How often the barrier was used.
    barrier: Cell<u16>,
    /// This script is about a 403.
    pub may_be_forbidden: Cell<bool>,
}

/// What the operator has sent.
#[derive(Default)]
struct Records {
    /// How much of the server's log has been read.
    read: u64,
    all: Vec<Record>,
    /// How many of them have been compared.
    told: usize,
}

/// One request of the operator, and its answer.
#[derive(Clone, Debug)]
pub struct Record {
    pub method: String,
    /// With its query.
    pub path: String,
    pub status: u64,
}

impl Deref for World {
    type Target = Hands;
    fn deref(&self) -> &Hands {
        &self.hands
    }
}

/// Runs a script on both servers and in both list modes, with an operator that has settled.
pub async fn on_each(script: impl AsyncFn(&World) + Copy + 'static) {
    on(&[Kind::Embedded, Kind::Real], async move |world: &World| {
        world.start_operator(&[]).await;
        script(world).await;
    })
    .await;
}

/// Runs a script on these kinds of server and in both list modes, without an operator.
pub async fn on(kinds: &[Kind], script: impl AsyncFn(&World) + Copy + 'static) {
    let mut worlds = JoinSet::new();
    let local = LocalSet::new();
    for &kind in kinds {
        if kind.is_real() && !has_real() {
            continue;
        }
        for lists in [Lists::Paged, Lists::Streaming] {
            if matches!(kind, Kind::RealPaged | Kind::RealBefore132) && lists == Lists::Streaming {
                continue;
            }
            let run = async move {
                let world = World::start(kind, lists).await;
                script(&world).await;
                world.ends_well();
            };
            worlds.spawn_local_on(run, &local);
        }
    }
    let failed = local
        .run_until(async {
            let mut failed = 0;
            while let Some(ended) = worlds.join_next().await {
                failed += usize::from(ended.is_err());
            }
            failed
        })
        .await;
    assert_eq!(failed, 0, "worlds in which this failed; see above");
}

/// Whether there is a real server; says so once where there is none.
pub fn has_real() -> bool {
    static SAID: Once = Once::new();
    let has_real = plane::assets().is_some();
    if !has_real {
        // Not with `eprintln`, of which the test harness shows nothing where a test succeeds.
        SAID.call_once(|| {
            let text =
                "KUBEBUILDER_ASSETS is not set: only the embedded API server is tested, and not with kubectl";
            let _ = writeln!(io::stderr(), "{text}");
        });
    }
    has_real
}

impl World {
    async fn start(kind: Kind, lists: Lists) -> World {
        let server = match kind {
            Kind::Embedded | Kind::EmbeddedBare | Kind::EmbeddedWithControllers => {
                let controllers = kind == Kind::EmbeddedWithControllers;
                let server = ApiServer::start(Options { controllers, ..Options::default() }).await.unwrap();
                Server::Embedded(Box::new(server))
            }
            Kind::Real => Server::Shared(Plane::shared().await),
            Kind::RealHttp1 => Server::Shared(Plane::shared_http1().await),
            Kind::RealBare | Kind::RealPaged => Server::Own(Rc::new(Plane::start(Http::Any).await)),
            Kind::RealBefore132 => Server::Own(Rc::new(Plane::start(Http::AnyBefore132).await)),
        };
        let world = World::new(server, lists);
        match kind {
            Kind::Embedded | Kind::EmbeddedWithControllers => {
                world.install(&manifests::crd()).await;
                world.make_namespace().await;
            }
            Kind::Real | Kind::RealHttp1 | Kind::RealBefore132 => world.make_namespace().await,
            Kind::EmbeddedBare | Kind::RealBare | Kind::RealPaged => {}
        }
        world
    }

    /// A world of each list mode in this plane, where the operator is installed.
    pub async fn both_in(plane: &Rc<Plane>) -> [World; 2] {
        let worlds =
            [Lists::Paged, Lists::Streaming].map(|lists| World::new(Server::Own(Rc::clone(plane)), lists));
        for world in &worlds {
            world.make_namespace().await;
        }
        worlds
    }

    fn new(server: Server, lists: Lists) -> World {
        let (name, client) = match &server {
            Server::Embedded(server) => {
                let config = Config::new(&server.url(), server.ca_pem().as_bytes(), server.token()).unwrap();
                ("embedded", Client::new(config).unwrap())
            }
            Server::Shared(plane) => (plane.name(), plane.admin()),
            Server::Own(plane) => ("real, alone", plane.admin()),
        };
        let namespace = format!("t-{}", plane::unique());
        World {
            name: format!("{name}, {lists:?}, namespace {namespace}"),
            hands: Hands { client, namespace },
            server,
            detour: RefCell::default(),
            dir: TempDir::new().unwrap(),
            operator: RefCell::default(),
            lists,
            user: RefCell::default(),
            records: RefCell::default(),
            barrier: Cell::new(1000),
            may_be_forbidden: Cell::new(false),
        }
    }

    /// The namespace, and an account in it that may do there what the ClusterRole says.
    pub async fn make_namespace(&self) {
        let namespace = &self.namespace;
        self.install(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}))
            .await;
        fs::write(self.dir.path().join("namespace"), namespace).unwrap();
        if !matches!(self.server, Server::Embedded(_)) {
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

    /// Lets the operator do in its namespace what these rules of a Role say, and no more.
    fn limit(&self, rules: &Value) {
        let Server::Embedded(server) = &self.server else { panic!("the real one keeps Roles") };
        let mut rules: Vec<Rule> = serde_json::from_value(rules.clone()).unwrap();
        rules.iter_mut().for_each(|rule| rule.namespace = Some(self.namespace.clone()));
        server.limit(ACCOUNT, rules);
    }

    /// Takes all that from the operator which [`World::allow`] gave it.
    pub async fn forbid(&self) {
        if let Server::Embedded(_) = &self.server {
            return self.limit(&json!([]));
        }
        self.delete(&format!("rolebindings/{ACCOUNT}")).await;
    }

    /// Lets the operator do what these rules say, and no more.
    pub async fn allow_only(&self, rules: &Value) {
        if let Server::Embedded(_) = &self.server {
            return self.limit(rules);
        }
        self.create("roles", &json!({"metadata": {"name": "less"}, "rules": rules})).await;
        let binding = json!({
            "metadata": {"name": "less"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "less"},
            "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": self.namespace}],
        });
        self.create("rolebindings", &binding).await;
        self.delete(&format!("rolebindings/{ACCOUNT}")).await;
    }

    /// Lets the operator do what `manifests/` say, without this verb on this resource.
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

    /// Puts a new token where the operator finds it, bound to a Secret of that name, and returns it.
    pub async fn new_token(&self) -> Token {
        let secret = format!("token-{}", plane::unique());
        let (token, ca) = match &self.server {
            Server::Embedded(server) => {
                server.add_token(&secret, ACCOUNT);
                *self.user.borrow_mut() = ACCOUNT.to_owned();
                (secret.clone(), server.ca_pem().to_owned())
            }
            Server::Shared(_) | Server::Own(_) => {
                let plane = self.plane();
                self.create("secrets", &json!({"metadata": {"name": secret}})).await;
                let request = json!({"spec": {
                    "audiences": ["https://kubernetes.default.svc"], "expirationSeconds": 3600,
                    "boundObjectRef": {"apiVersion": "v1", "kind": "Secret", "name": secret},
                }});
                let path = format!("serviceaccounts/{ACCOUNT}/token");
                let answer = self.create(&path, &request).await;
                *self.user.borrow_mut() = format!("system:serviceaccount:{}:{ACCOUNT}", self.namespace);
                (answer["status"]["token"].as_str().unwrap().to_owned(), plane.ca_pem())
            }
        };
        fs::write(self.dir.path().join("token"), &token).unwrap();
        fs::write(self.dir.path().join("ca.crt"), ca).unwrap();
        Token { token, secret }
    }

    /// Waits until the server knows a token no longer.
    pub async fn revoke(&self, token: &Token) {
        if let Server::Embedded(server) = &self.server {
            server.revoke_token(&token.token);
        } else {
            self.delete(&format!("secrets/{}", token.secret)).await;
        }
        let config = Config::new(&self.url(), self.ca_pem().as_bytes(), &token.token).unwrap();
        let client = Client::new(config).unwrap();
        let path = self.path("mywebservers");
        eventually("the old token to be refused", async || {
            let error = Hands::new(client.clone()).raw(&path).await.err()?;
            error.is_unauthorized().then_some(())
        })
        .await;
    }

    pub fn url(&self) -> String {
        match &self.server {
            Server::Embedded(server) => server.url(),
            Server::Shared(_) | Server::Own(_) => self.plane().url(),
        }
    }

    /// Who may do everything.
    pub fn admin_token(&self) -> &str {
        match &self.server {
            Server::Embedded(server) => server.token(),
            Server::Shared(_) | Server::Own(_) => "admin",
        }
    }

    pub fn ca_pem(&self) -> String {
        match &self.server {
            Server::Embedded(server) => server.ca_pem().to_owned(),
            Server::Shared(_) | Server::Own(_) => self.plane().ca_pem(),
        }
    }

    /// The real control plane; panics in a world that has none.
    pub fn plane(&self) -> &Plane {
        match &self.server {
            Server::Embedded(_) => panic!("this world has no real control plane"),
            Server::Shared(plane) => plane,
            Server::Own(plane) => plane,
        }
    }

    /// Starts an operator in this namespace, and waits until it has settled.
    pub async fn start_operator(&self, args: &[&str]) {
        self.spawn_operator(args);
        if self.find(&format!("mywebservers/{BARRIER}")).await.is_none() {
            self.create_web(BARRIER, json!({"image": "nginx"})).await;
        }
        self.until_barrier_patched("mywebservers/barrier/status", 0).await;
        self.settle().await;
        self.transcript();
    }

    /// Starts an operator in this namespace.
    pub fn spawn_operator(&self, args: &[&str]) {
        let mut all = vec!["--namespace", &self.namespace];
        // One key at a time, in order: so that what comes last tells that the rest is done.
        if !args.contains(&"--max-concurrent-reconciles") {
            all.extend(["--max-concurrent-reconciles", "1"]);
        }
        if self.lists == Lists::Streaming {
            all.push("--streaming-lists");
        }
        all.extend(args);
        let address = self.detour.borrow().clone().unwrap_or_else(|| self.url());
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

    /// Waits until the operator has done all that it had to do when this was called.
    ///
    /// The barrier is a MyWebserver. Its spec is changed, then each of its children; when the operator has answered each of
    /// these with a patch, it has heard whatever was said before on each of its three watches. The children come last,
    /// because a change waits until the changes before it and all new intents have been worked on.
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
            let last: Vec<_> = records.all.iter().rev().take(8).map(|record| self.told(record)).collect();
            saw("the operator's last requests, the newest first", last.join(", "));
            (patches > before).then_some(())
        };
        eventually(&format!("the operator to patch {what}"), patched).await;
    }

    /// How often the operator has patched a part of the barrier, as logged.
    fn barrier_patches(&self, what: &str) -> usize {
        self.read();
        let records = self.records.borrow();
        let expected = format!("PATCH {what} 200");
        records.all.iter().filter(|record| self.told(record) == expected).count()
    }

    /// Waits until a freshly started operator has looked at a MyWebserver. What was there at its start comes after what
    /// happens later, so [`World::settle`] says nothing about it.
    pub async fn until_looked_at(&self, web: &str) {
        let key = format!("\"{}/{web}\"", self.namespace);
        self.operator().until_logged(&["\"applied\"", &key]).await;
    }

    /// Reads what the server has logged since the last time.
    fn read(&self) {
        let mut records = self.records.borrow_mut();
        let user = &*self.user.borrow();
        match &self.server {
            Server::Embedded(server) => {
                let ours = server.requests().into_iter().filter(|request| request.user == *user);
                let record = |request: listwatch::apiserver::RequestRecord| Record {
                    path: format!("{}?{}", request.path, request.query),
                    method: request.method,
                    status: request.status.into(),
                };
                records.all = ours.map(record).collect();
            }
            Server::Shared(_) | Server::Own(_) => {
                for event in self.plane().audit(&mut records.read, user) {
                    let method = match event["verb"].as_str().unwrap() {
                        "create" => "POST",
                        "update" => "PUT",
                        "patch" => "PATCH",
                        "delete" | "deletecollection" => "DELETE",
                        _ => "GET",
                    };
                    records.all.push(Record {
                        method: method.to_owned(),
                        path: event["requestURI"].as_str().unwrap().to_owned(),
                        status: event["responseStatus"]["code"].as_u64().unwrap(),
                    });
                }
            }
        }
    }

    /// A client with the operator's token, for what is in front of this world's server.
    pub fn operators_client(&self, url: &str) -> Client {
        let token = fs::read_to_string(self.dir.path().join("token")).unwrap();
        Client::new(Config::new(url, self.ca_pem().as_bytes(), &token).unwrap()).unwrap()
    }

    /// Whose requests are the operator's.
    pub fn user(&self) -> String {
        self.user.borrow().clone()
    }

    /// Everything that the operator has asked for.
    pub fn records(&self) -> Vec<Record> {
        self.read();
        self.records.borrow().all.clone()
    }

    /// `PATCH deployments/mws-web 200`
    fn told(&self, record: &Record) -> String {
        let path = record.path.split('?').next().unwrap();
        let inside = format!("/namespaces/{}/", self.namespace);
        let what = path.split_once(&inside).map_or(path, |(_, what)| what);
        format!("{} {what} {}", record.method, record.status)
    }

    /// What the operator has written since the last time this was asked, Events and the barrier left aside.
    pub fn transcript(&self) -> Vec<String> {
        self.read();
        let mut records = self.records.borrow_mut();
        let new = records.all[records.told..].iter().filter(|record| record.method != "GET");
        let told = new.map(|record| self.told(record));
        let mut told: Vec<_> =
            told.filter(|line| !line.contains(" events") && !line.contains(BARRIER)).collect();
        records.told = records.all.len();
        children_in_order(&mut told);
        told
    }

    /// Waits until the operator has settled, and compares what it has written meanwhile, line by line.
    #[track_caller]
    pub fn wrote(&self, expected: &str) -> impl Future<Output = ()> {
        let caller = std::panic::Location::caller();
        async move {
            self.settle().await;
            let lines = expected.lines().map(str::trim).filter(|line| !line.is_empty());
            let mut expected: Vec<_> = lines.map(str::to_owned).collect();
            children_in_order(&mut expected);
            assert_eq!(self.transcript(), expected, "{caller}");
        }
    }

    /// Nothing went wrong that no script is about.
    pub fn ends_well(&self) {
        if let Some(operator) = &*self.operator.borrow() {
            assert!(!operator.log().contains("panicked"), "the operator panicked");
        }
        if !self.may_be_forbidden.get() {
            let forbidden = self.records().into_iter().filter(|record| record.status == 403);
            let forbidden: Vec<_> = forbidden.collect();
            assert!(forbidden.is_empty(), "manifests/ do not allow what the operator does: {forbidden:?}");
        }
    }
}

/// The two children of an object are written at the same time: puts the Deployment first, whichever was logged first.
fn children_in_order(told: &mut [String]) {
    let mut next = 1;
    while next < told.len() {
        let is_swapped = told[next - 1].contains(" services") && told[next].contains(" deployments");
        if is_swapped {
            told.swap(next - 1, next);
        }
        next += if is_swapped { 2 } else { 1 };
    }
}

/// A token of the operator, and the Secret that it is bound to.
pub struct Token {
    pub token: String,
    secret: String,
}

impl Drop for World {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("--- failed in this world: {}", self.name);
            self.read();
            for record in &self.records.borrow().all {
                eprintln!("{}", self.told(record));
            }
        }
    }
}
