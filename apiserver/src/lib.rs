//! An API server in this process: what a cluster looks like through its API, without the cluster.
//!
//! ```text
//! $ listwatch apiserver &
//! $ curl --cacert ca.crt -H "Authorization: Bearer $TOKEN" \
//!     'https://127.0.0.1:6443/apis/apps/v1/namespaces/default/deployments?watch=1&resourceVersion=42'
//! {"type":"MODIFIED","object":{"apiVersion":"apps/v1","kind":"Deployment","metadata":{…,"resourceVersion":"43"},…}}
//! ```
//!
//! It exists for `listwatch demo` and `listwatch apiserver`, the examples and the tests, and answers as kube-apiserver
//! 1.36 would: kubectl can use it. What it cannot do it refuses, with a Status that says so. Nothing is kept when it stops.
//!
//! It does not: keep Roles (rules are given to a user by [`ApiServer::limit`]), call webhooks, or speak protobuf.
//!
//! The way of a request through the footnotes:
//!
//! ```text
//! connection ─► answer ─┬─► read, watch ────────────────────────► storage ◄─ controllers
//!    serve.rs    │      └─► patch ─► write, delete ─► schema, builtin ─┘
//!                └─► request (path, query, Accept)      refusal, form: what goes back
//! ```

mod addresses;
mod answer;
mod apply;
mod builtin;
mod clock;
mod controllers;
mod cost;
mod crd;
mod custom;
mod delete;
mod discovery;
mod encode;
mod faults;
mod form;
mod kinds;
mod metadata;
mod owned;
mod patch;
mod permissions;
mod pods;
mod read;
mod refusal;
mod request;
mod rules;
mod scale;
mod schema;
mod selector;
mod serve;
mod shape;
mod storage;
mod structural;
#[cfg(test)]
mod tests;
mod told;
mod types;
mod validate;
mod watch;
mod write;

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    fs::{DirBuilder, File, Permissions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt},
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

use base64::{
    Engine,
    prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD},
};
use bytes::Bytes;
use hyper::body::Body;
use tokio::net::TcpListener;

use clock::Clock;
use faults::Faults;
pub use faults::{Cut, Fault, Planned, names as fault_names};
pub use permissions::Rule;
use refusal::Refusal;
use serve::{Identity, Tasks};
use storage::{Backup, Storage};

/// What can be chosen about a server.
#[derive(Clone, Debug)]
pub struct Options {
    /// Port on 127.0.0.1. 0: any that is free.
    pub port: u16,
    /// How many past changes each resource remembers. Who resumes from before them is answered with 410.
    pub history: usize,
    /// Whether somebody collects garbage, rolls out Deployments and runs Pods.
    pub controllers: bool,
    /// How long the simulated kubelet takes until a Pod is ready.
    pub pod_start: Duration,
    /// How often the simulated kubelet renews its Lease. It is what moves the versions while nothing else happens.
    pub heartbeat: Duration,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            port: 0,
            history: 10_000,
            controllers: true,
            pod_start: Duration::ZERO,
            heartbeat: controllers::HEARTBEAT,
        }
    }
}

/// One request that was answered, as an audit log has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestRecord {
    /// `GET`, `POST`, …
    pub method: String,
    /// `/api/v1/namespaces`
    pub path: String,
    /// What stands behind the `?`, as it was sent.
    pub query: String,
    /// The client's `User-Agent`.
    pub user_agent: String,
    /// Whose token it was. Empty for one that nobody knows.
    pub user: String,
    /// The HTTP status of the answer.
    pub status: u16,
}

/// Most records kept; then the oldest go. A test that counts writes makes some thousands.
const REQUESTS_MAX: usize = 100_000;

/// Whose token [`ApiServer::token`] is.
const ADMIN: &str = "admin";

/// A running API server. Dropping it stops it.
pub struct ApiServer {
    server: Arc<Server>,
    tasks: Tasks,
    port: u16,
    ca_pem: String,
    token: String,
}

/// What all connections share. It has no Debug, as it is full of tokens and Secrets.
struct Server {
    storage: Mutex<Storage>,
    /// User by token.
    tokens: Mutex<HashMap<String, String>>,
    /// By user. Who is not in here may do everything.
    rules: Mutex<HashMap<String, Vec<Rule>>>,
    requests: Mutex<VecDeque<RequestRecord>>,
    faults: Faults,
    /// What [`Fault::Restore`] brings back.
    backup: Mutex<Backup>,
    restarts: tokio::sync::watch::Sender<u64>,
    pod_start: Duration,
    heartbeat: Duration,
}

/// A lock is held while one request is answered or one controller looks at one object, never across an await. If that
/// panics, the state is still the best that there is.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Server {
    fn storage(&self) -> MutexGuard<'_, Storage> {
        lock(&self.storage)
    }

    fn user(&self, token: &str) -> Option<String> {
        lock(&self.tokens).get(token).cloned()
    }

    /// 401 is a wrong token; who sends none is somebody, and allowed next to nothing, which is 403.
    fn refuses(&self, request: &request::Request, user: Option<&str>) -> Result<(), Refusal> {
        if user.is_none() && request.bearer_token().is_some() {
            return Err(Refusal::unauthorized());
        }
        let rules = lock(&self.rules);
        permissions::check(request, user, user.and_then(|user| rules.get(user)).map(Vec::as_slice))
    }

    fn record(&self, record: RequestRecord) {
        let mut requests = lock(&self.requests);
        if requests.len() == REQUESTS_MAX {
            requests.pop_front();
        }
        requests.push_back(record);
    }

    fn fault(&self, planned: Planned) {
        if !planned.is_for_server() {
            return self.faults.plan(planned);
        }
        let mut storage = self.storage();
        if planned.fault == Fault::Backup {
            *lock(&self.backup) = storage.backup();
            return;
        }
        if planned.fault == Fault::Restore {
            storage.restore(&lock(&self.backup));
        }
        storage.forget_history();
        if planned.fault != Fault::ExpireHistory {
            self.restarts.send_modify(|count| *count += 1);
        }
    }
}

impl ApiServer {
    /// Bind 127.0.0.1 and serve in tasks of the current runtime.
    ///
    /// # Errors
    ///
    /// When the port cannot be bound.
    pub async fn start(options: Options) -> io::Result<ApiServer> {
        let listener = TcpListener::bind(("127.0.0.1", options.port)).await?;
        let port = listener.local_addr()?.port();
        let identity = Identity::new().map_err(io::Error::other)?;
        let mut server = ApiServer::new(&options, Clock::new(SystemTime::now()), identity.ca_pem);
        server.port = port;
        let accept =
            serve::accept(listener, identity.acceptor, Arc::clone(&server.server), server.tasks.clone());
        server.tasks.spawn(accept);
        Ok(server)
    }

    /// Nobody listens: who wants an answer calls [`ApiServer::answer`]. For simulations, whose clock is tokio's and
    /// begins at `now`. Must be called in a runtime.
    #[must_use]
    pub fn in_process(options: &Options, now: SystemTime) -> ApiServer {
        ApiServer::new(options, Clock::new(now), String::new())
    }

    fn new(options: &Options, clock: Clock, ca_pem: String) -> ApiServer {
        let token = random_token();
        let mut storage = Storage::new(clock, options.history, options.controllers);
        controllers::bootstrap(&mut storage, &ca_pem);
        let backup = Mutex::new(storage.backup());
        let server = Arc::new(Server {
            storage: Mutex::new(storage),
            tokens: Mutex::new(HashMap::from([(token.clone(), ADMIN.to_owned())])),
            rules: Mutex::default(),
            requests: Mutex::default(),
            faults: Faults::default(),
            backup,
            restarts: tokio::sync::watch::Sender::default(),
            pod_start: options.pod_start,
            heartbeat: options.heartbeat,
        });
        let tasks = Tasks::default();
        if options.controllers {
            tasks.spawn(controllers::run(Arc::clone(&server), ca_pem.clone()));
        }
        ApiServer { server, tasks, port: 0, ca_pem, token }
    }

    /// Answers one request, as on a connection of its own; an error is that this breaks.
    ///
    /// # Errors
    ///
    /// Where a [`Fault`] says so.
    pub async fn answer<B>(
        &self,
        request: http::Request<B>,
    ) -> Result<http::Response<impl Body<Data = Bytes, Error = Cut> + use<B>>, Cut>
    where
        B: Body<Data = Bytes> + Unpin,
    {
        serve::serve(Arc::clone(&self.server), request, Arc::default()).await
    }

    /// The time of day in here.
    #[must_use]
    pub fn now(&self) -> SystemTime {
        self.server.storage().clock.now()
    }

    /// `https://127.0.0.1:PORT`
    #[must_use]
    pub fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }

    /// The certificate authority that signed the server's certificate.
    #[must_use]
    pub fn ca_pem(&self) -> &str {
        &self.ca_pem
    }

    /// The token of an administrator, random per start.
    #[must_use]
    pub fn token(&self) -> &str {
        &self.token
    }

    /// A new token that is accepted from now on, random as the administrator's.
    #[must_use]
    pub fn new_token(&self, user: &str) -> String {
        let token = random_token();
        self.add_token(&token, user);
        token
    }

    /// Accept another token, that somebody else made.
    pub fn add_token(&self, token: &str, user: &str) {
        lock(&self.server.tokens).insert(token.to_owned(), user.to_owned());
    }

    /// From now on a user may do what these rules say, and no more. Open watches go on, as with the real one.
    pub fn limit(&self, user: &str, rules: Vec<Rule>) {
        lock(&self.server.rules).insert(user.to_owned(), rules);
    }

    /// Accept a token no longer. Open watches go on, as with the real one.
    pub fn revoke_token(&self, token: &str) {
        lock(&self.server.tokens).remove(token);
    }

    /// Write `token`, `ca.crt` and `namespace`, as a Pod finds them in `/var/run/secrets/kubernetes.io/serviceaccount`.
    /// Only the owner can read them.
    ///
    /// # Errors
    ///
    /// When the files cannot be written.
    pub fn write_service_account(&self, dir: &Path) -> io::Result<()> {
        // Who lives in a directory that was there before is not ours to decide.
        DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        for (name, text) in [("token", self.token()), ("ca.crt", self.ca_pem()), ("namespace", "default")] {
            let path = dir.join(name);
            let mut file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&path)?;
            // A file that was there before kept its mode.
            file.set_permissions(Permissions::from_mode(0o600))?;
            file.write_all(text.as_bytes())?;
        }
        Ok(())
    }

    /// A kubeconfig, for kubectl and for us.
    #[must_use]
    pub fn kubeconfig(&self) -> String {
        let (url, ca, token) = (self.url(), BASE64_STANDARD.encode(&self.ca_pem), &self.token);
        format!(
            "apiVersion: v1\n\
             kind: Config\n\
             current-context: listwatch\n\
             contexts:\n\
             - name: listwatch\n  \
               context: {{cluster: listwatch, user: admin, namespace: default}}\n\
             clusters:\n\
             - name: listwatch\n  \
               cluster: {{server: \"{url}\", certificate-authority-data: {ca}}}\n\
             users:\n\
             - name: admin\n  \
               user: {{token: \"{token}\"}}\n"
        )
    }

    /// The requests answered so far, oldest first. A watch is there as soon as it is open.
    #[must_use]
    pub fn requests(&self) -> Vec<RequestRecord> {
        lock(&self.server.requests).iter().cloned().collect()
    }

    /// Drop the records of the requests so far.
    pub fn forget_requests(&self) {
        *lock(&self.server.requests) = VecDeque::new();
    }

    /// Let something go wrong: now, or when what it is for comes.
    pub fn fault(&self, fault: impl Into<Planned>) {
        self.server.fault(fault.into());
    }

    /// From now on nothing goes wrong any more. Stalled watches go on.
    pub fn end_faults(&self) {
        self.server.faults.end();
    }

    /// Close all connections and be gone.
    pub async fn stop(self) {
        self.tasks.stop().await;
    }
}

/// Bytes of randomness in a token: no one guesses 256 bits.
const TOKEN_BYTES: usize = 32;

/// Who has a token may do everything, so it comes from the randomness that keys are made of. That of [`fastrand`] can
/// be computed from what it made before, and uids are shown to everybody.
fn random_token() -> String {
    let mut bytes = [0; TOKEN_BYTES];
    let random = rustls::crypto::ring::default_provider().secure_random;
    random.fill(&mut bytes).expect("randomness, as the server's own key was made of it");
    BASE64_URL_SAFE_NO_PAD.encode(bytes)
}

/// Neither the token nor what is stored: a Debug ends in a log.
impl fmt::Debug for ApiServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiServer").field("port", &self.port).finish_non_exhaustive()
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        self.tasks.abort();
    }
}
