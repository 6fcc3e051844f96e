//! An API server in this process: the Kubernetes API, without a cluster behind it.
//!
//! ```text
//! $ listwatch apiserver &
//! $ curl --cacert ca.crt -H "Authorization: Bearer $TOKEN" \
//!     'https://127.0.0.1:6443/apis/apps/v1/namespaces/default/deployments?watch=1&resourceVersion=42'
//! {"type":"MODIFIED","object":{"apiVersion":"apps/v1","kind":"Deployment","metadata":{…,"resourceVersion":"43"},…}}
//! ```
//!
//! The server is for tests of operators and other clients, for `listwatch demo` and for `listwatch apiserver`. It
//! answers the requests that it supports as kube-apiserver 1.36 does, so kubectl works with it. It rejects all other
//! requests. Objects are kept in memory only.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> std::io::Result<()> {
//! use listwatch_apiserver::{ApiServer, Fault, Options};
//!
//! let server = ApiServer::start(Options::default()).await?;
//! println!("{}", server.kubeconfig());
//! server.fault(Fault::CutWatches);
//! # Ok(()) }
//! ```
//!
//! Not supported: answers in protobuf, and these subresources: attach, portforward, proxy, ephemeralcontainers.
//!
//! The modules, from the connection down. Each module uses only the modules below it:
//!
//! ```text
//! resource        what the server serves and stores, for programs that look at it without requests
//! http/           server (TLS, connections), router (path and method to handler), admitted, handlers, reviews, containers
//!                 (logs, commands), metrics, options, response, websocket
//! controllers/    garbage collector, namespaces, rollout (Deployments), replica_set (and ReplicationControllers), stateful_set,
//!                 daemon_set, volume (claims and volumes), account_secret (tokens), endpoints, job (Jobs, CronJobs), disruption, quota, role (aggregation), a
//!                 simulated kubelet
//! verbs/          read (get, list), watch, write (create, update, apply), patch, delete, bind, scale;
//!                 served_kinds (the kinds of CRDs), table (the output of `kubectl get`)
//! admission/      what may change or refuse a write: plugins of kube-apiserver, among them limit_ranges, quotas and
//!                 pod_security; policies, webhooks and the calls of them
//! conversions     calls of the conversion webhooks of CRDs
//! webhook_client/ the HTTPS client for webhooks; trust (their certificates)
//! discovery       /api, /apis, /openapi/v3, /version
//! state           the state that connections and controllers share
//! records         what clients asked for and changed, as lines of JSON
//! tokens          tokens of ServiceAccounts, signed
//! exec            the rules for pods/exec
//! faults          faults on demand: 429, 410, cut watches, …
//! authorization/  the rules of a user, applied to a request; bindings (the rules of Roles)
//! request         path, query, Accept header and body of a request
//! storage         objects, versions, the history that watches read
//! apply/          json_patch; server-side apply: managed_fields, field_set (sets of fields), typed_value (merges by schema)
//! kinds/          the table of kinds: built_in, its defaults, printer_columns, stored_columns and validation, by_schema;
//!                 field_checks, events, limits, pods, stateful_sets, jobs, autoscalers, scale_of, roles, webhook_configurations,
//!                 admission_policies, cluster_ip, metadata, conditions, status_errors; crd, conversion, custom_resources,
//!                 json_path (of printer columns)
//! field_selector  field selectors
//! schema/         CRDs: structural schemas, defaults and pruning, re2 (patterns), cel, cel_types, cel_library (the functions of
//!                 Kubernetes), cel_authorizer, go_url, expressions (of admission), formats, field_errors (errors with
//!                 paths); built-in types: openapi (definitions), decode (type errors), encode (omits empty fields), protobuf
//! names           random letters, and the causes of a Status; the rules of names and labels are in formats
//! status          the errors of requests, as objects of kind Status
//! json            JSON with the order of fields and the escapes of kube-apiserver
//! clock           the timestamps in objects
//! ```

mod resource;
mod http;
mod controllers;
mod verbs;
mod admission;
mod conversions;
mod webhook_client;
mod discovery;
mod state;
mod records;
mod tokens;
mod exec;
mod faults;
mod authorization;
mod request;
mod storage;
mod apply;
mod kinds;
mod field_selector;
mod schema;
mod names;
mod status;
mod json;
mod clock;
#[cfg(test)]
mod tests;

use std::{
    collections::HashMap,
    fmt,
    fs::{DirBuilder, File},
    io::{self, Write},
    path::Path,
    sync::{Arc, Mutex, atomic::AtomicU64},
    time::{Duration, SystemTime},
};

use base64::{
    Engine,
    prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD},
};
use bytes::Bytes;
use hyper::body::Body;
use tokio::net::TcpListener;

#[doc(hidden)]
pub use crate::http::server::Identity;
use crate::{
    authorization::ADMIN,
    clock::Clock,
    faults::Faults,
    http::server::{self, Tasks},
    records::Latest,
    state::Server,
    storage::{Storage, lock},
};
pub use crate::{
    authorization::Rule,
    controllers::NODE,
    exec::ExecRule,
    faults::{Cut, Fault, HeldRequest, MEDDLED, MEDDLER, Planned, help as fault_help},
    http::LOG_TARGET,
    kinds::{help as kinds_help, json_path::JsonPath},
    records::{EventRecord, RequestRecord, WriteRecord, changed_paths, differences, field_managers},
    resource::Resource,
    state::REQUESTS_MAX,
    storage::Checkpoint,
};

/// The options of a server.
#[derive(Clone, Debug)]
pub struct Options {
    /// Port on 127.0.0.1; 0 for any free port.
    pub port: u16,
    /// How many past changes each collection keeps; fewer if their objects exceed 256 MiB. A watch that resumes from
    /// an older version gets a 410.
    pub history: usize,
    /// Whether users need Roles and bindings, as with kube-apiserver's `--authorization-mode=RBAC`. If not, a user without
    /// [rules](ApiServer::set_rules) has full access. The administrator always has it.
    pub rbac: bool,
    /// The port on 127.0.0.1 at which webhooks with `clientConfig.service` are called, such as a webhook of the operator under test. Their
    /// certificate is for the name of the Service, `NAME.NAMESPACE.svc`. Without a port, such a call fails as for a Service without
    /// endpoints.
    pub webhook_port: Option<u16>,
    /// How many of the latest events of watches are recorded: [`ApiServer::events`].
    pub events: usize,
    /// Whether the controllers run: for garbage collection, namespaces, workloads and Pods.
    pub controllers: bool,
    /// Whether the ServiceAccount of a new Pod must exist, and its token is mounted: the admission plugin ServiceAccount. It
    /// needs the controllers, which create the ServiceAccounts `default`.
    pub service_account_admission: bool,
    /// What commands in the containers of Pods print. Others are refused.
    pub exec: Vec<ExecRule>,
    /// How long the simulated kubelet takes to make a Pod ready.
    pub pod_start: Duration,
    /// How often the simulated kubelet renews its Lease. These writes raise the resourceVersion of an idle server.
    pub heartbeat: Duration,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            port: 0,
            history: 10_000,
            rbac: false,
            webhook_port: None,
            events: 0,
            controllers: true,
            service_account_admission: true,
            exec: Vec::new(),
            pod_start: Duration::ZERO,
            heartbeat: controllers::HEARTBEAT,
        }
    }
}

/// A running API server. Dropping it stops it.
pub struct ApiServer {
    server: Arc<Server>,
    tasks: Tasks,
    ca_pem: String,
    token: String,
}

impl ApiServer {
    /// Binds 127.0.0.1 and serves in tasks of the current runtime.
    ///
    /// # Errors
    ///
    /// If the port cannot be bound, or the server certificate cannot be created.
    pub async fn start(options: Options) -> io::Result<ApiServer> {
        let listener = TcpListener::bind(("127.0.0.1", options.port)).await?;
        let port = listener.local_addr()?.port();
        let identity = Identity::new(&["h2", "http/1.1"]).map_err(io::Error::other)?;
        let server = ApiServer::new(&options, Clock::new(SystemTime::now()), identity.ca_pem, port);
        let accept =
            server::accept(listener, identity.acceptor, Arc::clone(&server.server), server.tasks.clone());
        server.tasks.spawn(accept);
        Ok(server)
    }

    /// Starts a server without a port, for simulations: send requests with [`ApiServer::answer`]. The server's clock
    /// starts at `now` and advances with tokio's clock. Must be called in a tokio runtime.
    #[must_use]
    pub fn in_process(options: &Options, now: SystemTime) -> ApiServer {
        ApiServer::new(options, Clock::new(now), String::new(), 0)
    }

    fn new(options: &Options, clock: Clock, ca_pem: String, port: u16) -> ApiServer {
        let token = random_token();
        let mut storage = Storage::new(clock, options.history, options.controllers);
        storage.has_service_accounts = options.controllers && options.service_account_admission;
        controllers::bootstrap(&mut storage, &ca_pem, options.controllers);
        let backup = Mutex::new(storage.checkpoint());
        let server = Arc::new(Server {
            storage: Mutex::new(storage),
            tokens: Mutex::new(HashMap::from([(token.clone(), ADMIN.to_owned())])),
            key: Arc::default(),
            port,
            rules: Mutex::default(),
            rbac: options.rbac,
            request_ids: AtomicU64::default(),
            requests: Mutex::new(Latest::new(REQUESTS_MAX)),
            events: (options.events > 0).then(|| Mutex::new(Latest::new(options.events))),
            counts: Mutex::default(),
            faults: Faults::default(),
            backup,
            restarts: tokio::sync::watch::Sender::default(),
            webhook_port: options.webhook_port,
            exec: options.exec.clone(),
            pod_start: options.pod_start,
            heartbeat: options.heartbeat,
        });
        let tasks = Tasks::default();
        if options.controllers {
            tasks.spawn(controllers::run(Arc::clone(&server), ca_pem.clone()));
        }
        ApiServer { server, tasks, ca_pem, token }
    }

    /// Answers one request, as if it came on its own connection.
    ///
    /// # Errors
    ///
    /// If a [`Fault`] breaks the connection.
    pub async fn answer<B>(
        &self,
        request: ::http::Request<B>,
    ) -> Result<::http::Response<impl Body<Data = Bytes, Error = Cut> + use<B>>, Cut>
    where
        B: Body<Data = Bytes> + Unpin,
    {
        server::serve(Arc::clone(&self.server), request, 0, Arc::default()).await
    }

    /// The time on the server's clock.
    #[must_use]
    pub fn now(&self) -> SystemTime {
        self.server.storage().clock.now()
    }

    /// `https://127.0.0.1:PORT`
    #[must_use]
    pub fn url(&self) -> String {
        self.server.url()
    }

    /// The certificate of the certificate authority, in PEM.
    #[must_use]
    pub fn ca_pem(&self) -> &str {
        &self.ca_pem
    }

    /// The administrator's token. New at each start.
    #[must_use]
    pub fn token(&self) -> &str {
        &self.token
    }

    /// Adds a random token for a user.
    #[must_use]
    pub fn new_token(&self, user: &str) -> String {
        let token = random_token();
        self.add_token(&token, user);
        token
    }

    /// Adds a token that the caller chose.
    pub fn add_token(&self, token: &str, user: &str) {
        lock(&self.server.tokens).insert(token.to_owned(), user.to_owned());
    }

    /// Limits a user to these rules, and to its Roles: with no rules here, to what bindings of the user or of its groups
    /// grant. A ServiceAccount is the user `system:serviceaccount:NAMESPACE:NAME`. Open watches stay open, as with
    /// kube-apiserver.
    pub fn set_rules(&self, user: &str, rules: Vec<Rule>) {
        lock(&self.server.rules).insert(user.to_owned(), rules);
    }

    /// Revokes a token of the administrator, [`ApiServer::new_token`] or [`ApiServer::add_token`]. Open watches stay open, as with kube-apiserver.
    pub fn revoke_token(&self, token: &str) {
        lock(&self.server.tokens).remove(token);
    }

    /// Writes `token`, `ca.crt` and `namespace`, as in the directory `/var/run/secrets/kubernetes.io/serviceaccount` of
    /// a Pod. Only the owner can read them; on Windows, the access list of the directory above decides.
    ///
    /// # Errors
    ///
    /// If the files cannot be written.
    pub fn write_service_account(&self, dir: &Path) -> io::Result<()> {
        create_private_dir(dir)?;
        for (name, text) in [("token", self.token()), ("ca.crt", self.ca_pem()), ("namespace", "default")] {
            write_private(&dir.join(name), text)?;
        }
        Ok(())
    }

    /// The text of a kubeconfig, for any client.
    #[must_use]
    pub fn kubeconfig(&self) -> String {
        self.kubeconfig_with(ADMIN, &self.token)
    }

    /// The text of a kubeconfig with a new token for a user, so that its requests can be recognized.
    #[must_use]
    pub fn kubeconfig_of(&self, user: &str) -> String {
        self.kubeconfig_with(user, &self.new_token(user))
    }

    fn kubeconfig_with(&self, user: &str, token: &str) -> String {
        kubeconfig(&self.url(), &self.ca_pem, "default", user, token)
    }

    /// The records of the latest 100,000 answered requests, oldest first. A watch is recorded when it opens.
    #[must_use]
    pub fn requests(&self) -> Vec<RequestRecord> {
        self.requests_since(0).0
    }

    /// The latest events that watches have sent, and the ends of watches, oldest first: [`Options::events`].
    #[must_use]
    pub fn events(&self) -> Vec<EventRecord> {
        self.events_since(0).0
    }

    /// The records after a mark, and the mark after them, to read on. The first mark is 0.
    #[must_use]
    pub fn requests_since(&self, mark: u64) -> (Vec<RequestRecord>, u64) {
        lock(&self.server.requests).since(mark)
    }

    /// As [`ApiServer::requests_since`].
    #[must_use]
    pub fn events_since(&self, mark: u64) -> (Vec<EventRecord>, u64) {
        self.server.events.as_ref().map_or((Vec::new(), 0), |events| lock(events).since(mark))
    }

    /// How many records [`ApiServer::requests`] has.
    #[must_use]
    pub fn request_count(&self) -> usize {
        lock(&self.server.requests).len()
    }

    /// Drops the records of the requests so far.
    pub fn forget_requests(&self) {
        lock(&self.server.requests).clear();
    }

    /// The resourceVersion of the latest write.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.server.storage().revision()
    }

    /// The writes after a version that changed an object, oldest first: by clients, and by the server's controllers. Each
    /// collection keeps the number of changes in [`Options::history`].
    #[must_use]
    pub fn writes_since(&self, version: u64) -> Vec<WriteRecord> {
        self.server.writes_since(version)
    }

    /// All objects now, with their uids and versions.
    #[must_use]
    pub fn checkpoint(&self) -> Checkpoint {
        self.server.storage().checkpoint()
    }

    /// All objects at an earlier version. `None` if the [history](Options::history) begins later.
    #[must_use]
    pub fn checkpoint_at(&self, version: u64) -> Option<Checkpoint> {
        self.server.storage().checkpoint_at(version)
    }

    /// Returns to a checkpoint, of this server or another one: to its objects, their uids and versions, and the kinds of its CRDs. All
    /// connections are closed. Tokens of ServiceAccounts from another server are no longer valid.
    pub fn restore(&self, checkpoint: &Checkpoint) {
        self.server.restore(checkpoint);
    }

    /// Adds a fault. It takes effect at once, or on the requests that match it.
    pub fn fault(&self, fault: impl Into<Planned>) {
        self.server.fault(fault.into());
    }

    /// Whether a fault is still to come.
    #[must_use]
    pub fn is_fault_planned(&self) -> bool {
        self.server.faults.is_planned()
    }

    /// The faults that are still to come, one a line, as `kubectl get --raw /listwatch/faults` prints them.
    #[must_use]
    pub fn planned_faults(&self) -> String {
        self.server.faults.list()
    }

    /// Whether a fault holds a request.
    #[must_use]
    pub fn is_holding(&self) -> bool {
        self.server.faults.is_holding()
    }

    /// Waits until a fault holds a request. Returns the held requests, oldest first: `POST /api/v1/namespaces`.
    pub async fn held(&self) -> Vec<String> {
        self.server.faults.held(|requests| requests > 0).await
    }

    /// Waits until no request is held: all are released, or their clients have disconnected.
    pub async fn no_longer_held(&self) {
        self.server.faults.held(|requests| requests == 0).await;
    }

    /// The requests that faults hold now, oldest first.
    #[must_use]
    pub fn held_requests(&self) -> Vec<HeldRequest> {
        self.server.faults.held_requests()
    }

    /// Releases the requests that faults hold now.
    pub fn release_held(&self) {
        self.server.faults.release();
    }

    /// Releases a held request. Returns whether it is held.
    pub fn release(&self, id: u64) -> bool {
        self.server.faults.release_one(id, Ok(()))
    }

    /// Refuses a held request with a status such as 409 or 500. If only its answer is held, it is released. Returns whether it is held.
    pub fn refuse(&self, id: u64, status: u16) -> bool {
        self.server.faults.release_one(id, Err(status))
    }

    /// Ends all faults. Stalled watches resume, and held requests go on.
    pub fn end_faults(&self) {
        self.server.faults.end();
    }

    /// Ends a fault, by its text: the watches that it stalls resume, and the requests that it holds go on. Returns whether it was planned.
    pub fn end_fault(&self, text: &str) -> bool {
        self.server.faults.end_one(text)
    }

    /// Closes all connections and stops the server.
    pub async fn stop(&self) {
        self.tasks.stop().await;
    }
}

/// The text of a kubeconfig, for any client.
#[doc(hidden)]
#[must_use]
pub fn kubeconfig(url: &str, ca_pem: &str, namespace: &str, user: &str, token: &str) -> String {
    let ca = BASE64_STANDARD.encode(ca_pem);
    // In quotes, with the escapes of JSON, which YAML has as well.
    let [namespace, user] = [namespace, user].map(serde_json::Value::from);
    format!(
        "apiVersion: v1\n\
         kind: Config\n\
         current-context: listwatch\n\
         contexts:\n\
         - name: listwatch\n  \
           context: {{cluster: listwatch, user: {user}, namespace: {namespace}}}\n\
         clusters:\n\
         - name: listwatch\n  \
           cluster: {{server: \"{url}\", certificate-authority-data: {ca}}}\n\
         users:\n\
         - name: {user}\n  \
           user: {{token: \"{token}\"}}\n"
    )
}

/// Random bytes in a token: 256 bits cannot be guessed.
const TOKEN_BYTES: usize = 32;

/// A token that nobody can guess, for a URL or a header.
///
/// # Panics
///
/// If the operating system has no randomness.
#[must_use]
pub fn random_token() -> String {
    // A token can give full access, so its bytes come from a cryptographic random generator. `fastrand` is not secure:
    // clients see the uids that it generates, and can compute its next output from them.
    let mut bytes = [0; TOKEN_BYTES];
    let random = rustls::crypto::ring::default_provider().secure_random;
    random.fill(&mut bytes).expect("the operating system has randomness");
    BASE64_URL_SAFE_NO_PAD.encode(bytes)
}

/// Omits tokens and objects, because Debug output ends up in logs.
impl fmt::Debug for ApiServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiServer").field("port", &self.server.port).finish_non_exhaustive()
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        self.tasks.abort();
    }
}

/// Creates a directory for its owner alone. An existing one keeps its mode. Windows has no modes.
fn create_private_dir(dir: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.recursive(true).create(dir)
}

/// Writes a file that only its owner can read. Windows has no modes.
fn write_private(path: &Path, text: &str) -> io::Result<()> {
    let mut options = File::options();
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.write(true).create(true).truncate(true).open(path)?;
    // An existing file has kept its mode.
    #[cfg(unix)]
    file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
    file.write_all(text.as_bytes())
}
