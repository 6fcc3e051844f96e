//! The process around controllers: connection, probes, Events, signals, and a graceful stop.
//!
//! ```no_run
//! # use listwatch::{controller::*, resource::kinds::Service};
//! # struct Services;
//! # impl Operator for Services {
//! #     type Kind = Service;
//! #     async fn reconcile(&self, _: Reconcile<Service>) -> Result<Next, ReconcileError> { Ok(Next::OnChange) }
//! # }
//! use listwatch::runtime::{Runtime, RuntimeError};
//!
//! fn main() -> Result<(), RuntimeError> {
//! #   #[cfg(feature = "log")]
//!     listwatch::log::start()?;
//!     Runtime::from_env()?
//!         .probes(([0, 0, 0, 0], 8081).into())
//!         .controller("example.com/services", |setup| {
//!             setup.kind_without_status::<Service>("services").run_by(Services)
//!         })
//!         .run()
//! }
//! ```
//!
//! At SIGTERM or SIGINT, the controllers finish the reconciles in hand within 25 s, and the last Events are written within
//! 2 s: together with the two seconds to give a Lease back, less than the 30 s after which the kubelet kills a Pod. A second signal ends the process at once.
//!
//! The log lines go to a subscriber of [`tracing`], such as the one that `listwatch::log::start` sets (feature `log`).

mod commands;
#[cfg(feature = "testing")]
mod dev;
pub(crate) mod variables;
#[cfg_attr(not(feature = "webhook"), path = "runtime/no_webhooks.rs")]
mod webhooks;

use std::{
    collections::BTreeSet,
    env, fmt,
    future::{pending, ready},
    mem,
    net::SocketAddr,
    pin::{Pin, pin},
    sync::Arc,
    time::Duration,
};

use tokio::{task::JoinSet, time::timeout};
use tracing::{info, warn};

#[cfg(feature = "log")]
use crate::log::LogError;
use crate::{
    children::{Reported, Reporter, Statuses},
    client::{Client, Config, Env, Leadership, Options, Request},
    cluster::{Cluster, Events},
    controller::{Builder, Controller, Operator},
    endpoints::Endpoint,
    leader::{self, electors},
    plan::{Objects, Plan, Planning},
    rbac::{self, Permission, Reach, Verb},
    resource::{MANAGED_BY, Resource, Scope, kinds::Namespace},
    shard::Shard,
    shutdown::{self, ShutdownError, Stop},
    store::KEPT_MIB,
    traces::Traces,
    watch::Lists,
};

pub use crate::endpoints::MetricsSecurity;
pub use commands::main;
use variables::{address, checked, names_in};

/// How long to go on writing Events after the controllers have stopped.
const LAST_EVENTS_LIMIT: Duration = Duration::from_secs(2);

/// The variable with the directory of `tls.crt` and `tls.key`.
const WEBHOOK_CERT_DIR: &str = "WEBHOOK_CERT_DIR";

/// A larger number of namespaces is logged as a warning: three watches for each of 100 take four connections.
const NAMESPACES_MANY: usize = 100;

/// Why a [`Runtime`] did not start, or stopped at once.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum RuntimeError {
    /// The environment or the kubeconfig is invalid: the same start would fail again.
    #[error("{0}")]
    Config(String),
    /// One of the endpoints cannot be served.
    #[error("{endpoint}: cannot listen on {address}: {cause}")]
    Listen {
        /// `probes`, `metrics` or `debug`.
        endpoint: &'static str,
        /// Its address.
        address: SocketAddr,
        /// The error of the system.
        cause: std::io::Error,
    },
    /// The process cannot start or listen for signals, or a second signal came.
    #[error(transparent)]
    Shutdown(#[from] ShutdownError),
}

#[cfg(feature = "log")]
impl From<LogError> for RuntimeError {
    fn from(error: LogError) -> RuntimeError {
        RuntimeError::Config(error.to_string())
    }
}

/// Prints the message, for a `main` that returns the error.
impl fmt::Debug for RuntimeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Runs controllers until a signal.
pub struct Runtime {
    client: Client,
    lists: Lists,
    kept_mib: u32,
    namespaces: Vec<String>,
    instance: String,
    workers: Option<usize>,
    probes: Option<SocketAddr>,
    metrics: Option<(SocketAddr, MetricsSecurity)>,
    debug: Option<SocketAddr>,
    leader_election: Option<leader::LeaderElection>,
    /// The YAML of the CustomResourceDefinitions.
    definitions: Vec<String>,
    /// Set by [`Runtime::plan`].
    planning: Option<Arc<Planning>>,
    webhooks: webhooks::OfRuntime,
    shard: Shard,
    controllers: Vec<(&'static str, Start)>,
}

/// Starts a controller, which runs until the request to stop.
type Start = Box<dyn FnOnce(&Runtime, Cluster, Stop) -> Running + Send>;
type Running = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The parts from which a controller is built.
pub struct Setup {
    /// The cluster that all controllers share.
    pub cluster: Cluster,
    /// The recorder of this controller's Events.
    pub events: Events,
    /// The namespaces to watch. Empty: all.
    pub namespaces: Vec<String>,
}

impl Setup {
    /// The scopes of the namespaces to watch, with a label selector. The empty selector selects all objects.
    #[must_use]
    pub fn scopes(&self, labels: &str) -> Vec<Scope> {
        Scope::each(&self.namespaces, labels)
    }

    /// The objects of a kind, with their children and whatever else their operator watches. `operator` is its name in the label
    /// `app.kubernetes.io/managed-by` of the children.
    #[must_use]
    pub fn kind<K: Reported>(&self, operator: &str) -> Builder<K> {
        self.build(operator, Some(Statuses::of_kind()))
    }

    /// [`Setup::kind`], for a kind without conditions in its status, such as a Namespace. Its only Events are the operator's own.
    #[must_use]
    pub fn kind_without_status<K: Resource>(&self, operator: &str) -> Builder<K> {
        self.build(operator, None)
    }

    fn build<K: Resource>(&self, operator: &str, statuses: Option<Statuses<K>>) -> Builder<K> {
        let objects = self.cluster.watch_reconciled::<K>(self.scopes(""));
        let managed = self.scopes(&format!("{MANAGED_BY}={operator}"));
        let reporter = Reporter::new(&self.cluster, Some(self.events.clone()));
        Builder::with(&self.cluster, &objects, managed, reporter, statuses)
    }
}

impl Runtime {
    /// A runtime for all namespaces, without probes and metrics. Its Events name the Pod by `POD_NAME`, or else `HOSTNAME`.
    #[must_use]
    pub fn new(client: Client) -> Runtime {
        let instance = env::var("POD_NAME").or_else(|_| env::var("HOSTNAME"));
        Runtime {
            client,
            lists: Lists::Paged,
            kept_mib: KEPT_MIB,
            namespaces: Vec::new(),
            instance: instance.unwrap_or_else(|_| "listwatch".into()),
            workers: None,
            probes: None,
            metrics: None,
            debug: None,
            leader_election: None,
            definitions: Vec::new(),
            planning: None,
            webhooks: Default::default(),
            shard: Shard::default(),
            controllers: Vec::new(),
        }
    }

    /// A runtime with the service account of the Pod, or else with a kubeconfig. The variable `WATCH_NAMESPACE` has the
    /// namespaces, separated by commas; without it, all are watched. With `LEADER_ELECT=true`, leaders are elected
    /// ([`Runtime::leader_election`]). `SHARD=0/3` is the first shard of three ([`Runtime::shard`]). `METRICS_BIND_ADDRESS=:8080` serves the metrics at this address ([`Runtime::metrics`]),
    /// `HEALTH_PROBE_BIND_ADDRESS=:8081` the probes, and `WEBHOOK_BIND_ADDRESS=:9443` the webhooks, with `tls.crt` and `tls.key` of the
    /// directory `WEBHOOK_CERT_DIR` if it is set. With `WEBHOOK_URL=https://10.0.0.5:9443`, the API server calls them there. Does not connect yet.
    pub fn from_env() -> Result<Runtime, RuntimeError> {
        let client = Config::load(&Options::default(), &Env::from_process()).and_then(Client::new);
        let client = client.map_err(|error| RuntimeError::Config(error.to_string()))?;
        Runtime::new(client).with_variables()
    }

    /// [`Runtime::from_env`], without credentials and without a cluster: for [`Runtime::permissions`].
    pub fn offline() -> Result<Runtime, RuntimeError> {
        let client = Config::new("http://localhost", b"", "").and_then(Client::new);
        let client = client.map_err(|error| RuntimeError::Config(error.to_string()))?;
        let mut runtime = Runtime::new(client).with_variables()?;
        // What it prints is not for this machine.
        runtime.webhooks.read_certificates(None);
        Ok(runtime)
    }

    fn with_variables(self) -> Result<Runtime, RuntimeError> {
        let names = names_in(&env::var("WATCH_NAMESPACE").unwrap_or_default());
        let leader_election = match env::var("LEADER_ELECT").as_deref() {
            Ok("true") => Some(leader::LeaderElection::default()),
            Ok("false" | "") | Err(_) => None,
            Ok(other) => {
                return Err(RuntimeError::Config(format!(
                    "LEADER_ELECT: {other:?} is neither true nor false"
                )));
            }
        };
        let namespaces = checked(names, "WATCH_NAMESPACE")?;
        let shard = env::var("SHARD").ok().filter(|shard| !shard.is_empty()).map(|shard| {
            shard.parse().map_err(|cause| RuntimeError::Config(format!("SHARD: {shard:?} {cause}")))
        });
        let shard = shard.transpose()?.unwrap_or_default();
        let listen = |variable: &str| {
            let text = env::var(variable).unwrap_or_else(|_| "0".to_owned());
            address(&text).map_err(|cause| RuntimeError::Config(format!("{variable}: {text:?} {cause}")))
        };
        let metrics = listen("METRICS_BIND_ADDRESS")?.map(|address| (address, MetricsSecurity::Plain));
        let probes = listen("HEALTH_PROBE_BIND_ADDRESS")?;
        let files = env::var_os(WEBHOOK_CERT_DIR).filter(|directory| !directory.is_empty());
        let url = env::var("WEBHOOK_URL").unwrap_or_default();
        let webhooks = webhooks::OfRuntime::at(listen("WEBHOOK_BIND_ADDRESS")?, files.map(Into::into), &url)?;
        Ok(Runtime { namespaces, leader_election, shard, metrics, probes, webhooks, ..self })
    }

    /// Watches only these namespaces; with none, all. Fails if one of them cannot be the name of a namespace.
    pub fn namespaces(self, names: Vec<String>) -> Result<Runtime, RuntimeError> {
        Ok(Runtime { namespaces: checked(names, "namespaces")?, ..self })
    }

    /// Sets how the watches list their objects.
    #[must_use]
    pub fn lists(self, lists: Lists) -> Runtime {
        Runtime { lists, ..self }
    }

    /// Sets the limit for all objects whose content is kept, in MiB, over all Stores; half of it for each namespace. The memory limit of
    /// the process must be twice as much.
    #[must_use]
    pub fn kept_mib(self, kept_mib: u32) -> Runtime {
        Runtime { kept_mib, ..self }
    }

    /// Sets how many objects of one kind are reconciled at a time.
    #[must_use]
    pub fn workers(self, workers: usize) -> Runtime {
        Runtime { workers: Some(workers), ..self }
    }

    /// Answers `/livez` and `/readyz` at this address.
    #[must_use]
    pub fn probes(self, address: SocketAddr) -> Runtime {
        Runtime { probes: Some(address), ..self }
    }

    /// Serves `/metrics` at this address. [`Client::metrics`] adds an operator's own metrics.
    #[must_use]
    pub fn metrics(self, address: SocketAddr, security: MetricsSecurity) -> Runtime {
        Runtime { metrics: Some((address, security)), ..self }
    }

    /// Serves `/debug/state`, which shows each watch and each key in the queues, and `/debug/log`, which changes the levels of the log, at this
    /// address: one of the loopback interface, because everybody who reaches it may use it.
    #[must_use]
    pub fn debug(self, address: SocketAddr) -> Runtime {
        Runtime { debug: Some(address), ..self }
    }

    /// Runs each controller only while this process holds the Lease of that controller: see [`leader`].
    ///
    /// Fails if the times do not fit together.
    pub fn leader_election(self, settings: leader::LeaderElection) -> Result<Runtime, RuntimeError> {
        settings.check().map_err(|cause| RuntimeError::Config(format!("leader election: {cause}")))?;
        Ok(Runtime { leader_election: Some(settings), ..self })
    }

    /// Reconciles only the objects in this shard; other processes have the other shards. Needs leader election: its
    /// Leases keep apart two processes of one shard, and processes with different numbers of shards. See [`leader`].
    ///
    /// The watches of [`Setup::kind`] then have only the objects of the shard. An operator that must know other objects of its kind,
    /// for example because several of them write to one place, cannot be divided.
    #[must_use]
    pub fn shard(self, shard: Shard) -> Runtime {
        Runtime { shard, ..self }
    }

    /// Adds a controller. `name` is the `reportingController` of its Events, a qualified name such as
    /// `example.com/web-operator`. With leader election, `name` must be unique, because it also names the Lease. Controllers that watch the
    /// same kind in the same scope share the watch.
    #[must_use]
    pub fn controller<O: Operator>(
        mut self,
        name: &'static str,
        build: impl FnOnce(Setup) -> Controller<O> + Send + 'static,
    ) -> Runtime {
        self.add_controller(name, build);
        self
    }

    fn add_controller<O: Operator>(
        &mut self,
        name: &'static str,
        build: impl FnOnce(Setup) -> Controller<O> + Send + 'static,
    ) {
        let start: Start = Box::new(move |runtime, cluster, stop| {
            if runtime.planning.as_ref().is_some_and(|planning| planning.leaves_out::<O::Kind>()) {
                return Box::pin(ready(()));
            }
            let (electors, leadership) = match &runtime.leader_election {
                Some(settings) => electors(&cluster, settings, name, &runtime.instance),
                None => (Vec::new(), Leadership::always()),
            };
            let cluster = cluster.led_by(leadership.clone());
            let client = runtime.client.led_by(leadership.clone());
            let (events, write_events) = Events::new(client, name, runtime.instance.clone());
            // The task that writes Events ends with the last recorder, and the operator may have dropped its own.
            let recorder = events.clone();
            let controller = build(Setup { cluster, events, namespaces: runtime.namespaces.clone() });
            let controller = controller.led_by(leadership);
            let controller = match runtime.workers {
                Some(workers) => controller.workers(workers),
                None => controller,
            };
            if let Some(planning) = runtime.planning.clone() {
                return Box::pin(async move { controller.plan(&planning).await });
            }
            let work = async move {
                let mut write_events = pin!(write_events);
                tokio::select! {
                    () = controller.run(stop.requested()) => {}
                    () = &mut write_events => {}
                }
                drop(recorder);
                // The remaining Events are dropped.
                let _ = timeout(LAST_EVENTS_LIMIT, write_events).await;
            };
            let work: Running = Box::pin(work);
            electors.into_iter().fold(work, |work, elector| Box::pin(elector.during(work)))
        });
        self.controllers.push((name, start));
    }

    /// The CustomResourceDefinitions of the kinds, as YAML or JSON, for the commands of [`main`].
    #[must_use]
    pub fn definitions(mut self, yaml: impl Into<String>) -> Runtime {
        self.definitions.push(yaml.into());
        self
    }

    fn cluster(&self) -> Cluster {
        Cluster::new(self.client.clone(), self.lists).keeping(self.kept_mib)
    }

    /// What the controllers must be allowed to do: what they watch, keep and write, by their [`Builder`]s, and what they declare
    /// themselves ([`Builder::needs`]). [`rbac::roles`] prints it. Sends no request.
    pub fn permissions(mut self) -> Result<Vec<Permission>, RuntimeError> {
        // The watches begin as tasks, which never run.
        let tasks = tokio::runtime::Builder::new_current_thread().build().map_err(ShutdownError::Start)?;
        let cluster = self.cluster().of_shard(self.shard);
        {
            let _entered = tasks.enter();
            let (_stopping, requested) = Stop::channel();
            for (_, start) in mem::take(&mut self.controllers) {
                drop(start(&self, cluster.clone(), requested.clone()));
            }
        }
        // Without waiting, which another runtime around this one would not allow.
        tasks.shutdown_background();
        self.webhooks.permissions().into_iter().for_each(|permission| cluster.declare(permission));
        for name in mem::take(&mut self.namespaces) {
            let reason = "Optional: to warn when the namespace does not exist.";
            cluster.declare(rbac::of::<Namespace>(Reach::Namespace(name), &[Verb::Get], reason));
        }
        if let Some((_, MetricsSecurity::Tls { .. })) = &self.metrics {
            for (group, resource) in
                [("authentication.k8s.io", "tokenreviews"), ("authorization.k8s.io", "subjectaccessreviews")]
            {
                cluster.declare(rbac::of_review(group, resource));
            }
        }
        Ok(cluster.permissions())
    }

    /// What the controllers would write now, for the objects of the cluster or, as if they were applied, for these alone. Writes are sent
    /// as dry runs, so nothing in the cluster is changed; they need the permissions of real ones. No Events, no Leases. An object that is being deleted is
    /// left out: its cleanup may be outside the cluster. [`Operator::reconcile`] is called, and knows by [`Reconcile::only_plans`](crate::children::Reconcile::only_plans).
    pub async fn plan(mut self, objects: Option<Objects>) -> Plan {
        let planning = Arc::new(Planning::new(&self.client, objects));
        self.client = planning.client.clone();
        self.leader_election = None;
        self.planning = Some(Arc::clone(&planning));
        let cluster = self.cluster();
        let (_stopping, requested) = Stop::channel();
        if let Err(error) = self.client.version().await {
            planning.note(error.to_string());
            return planning.ended();
        }
        for (_, start) in mem::take(&mut self.controllers) {
            start(&self, cluster.clone(), requested.clone()).await;
        }
        planning.ended()
    }

    /// Runs the controllers on this thread until SIGTERM or SIGINT. With the feature `otel`, and `OTEL_EXPORTER_OTLP_ENDPOINT`, sends
    /// traces.
    pub fn run(self) -> Result<(), RuntimeError> {
        let _traces = Traces::start().map_err(RuntimeError::Config)?;
        shutdown::run(|stop| self.run_until(stop.requested()))?
    }

    /// Runs the controllers until `stop`. Fails if it cannot listen.
    pub async fn run_until(mut self, stop: impl Future<Output = ()>) -> Result<(), RuntimeError> {
        let cluster = self.cluster().of_shard(self.shard);
        let (stopping, requested) = Stop::channel();
        let webhooks = webhooks::listen(&mut self, &cluster, requested.clone()).await?;
        if let Some(settings) = &self.leader_election {
            let names: BTreeSet<_> =
                self.controllers.iter().map(|(name, _)| settings.name.as_deref().unwrap_or(name)).collect();
            if names.len() < self.controllers.len() {
                let cause = "leader election: two controllers with one Lease: each needs a name of its own";
                return Err(RuntimeError::Config(cause.to_owned()));
            }
        }
        if !self.shard.is_whole() && self.leader_election.is_none() {
            return Err(RuntimeError::Config(format!(
                "shard {}: needs leader election, so that each object has one writer, also when the number of shards changes",
                self.shard
            )));
        }
        let endpoints = listen(self.probes, self.metrics.take(), self.debug, &self.client).await?;
        let mut controllers = JoinSet::new();
        for (_, start) in mem::take(&mut self.controllers) {
            controllers.spawn(start(&self, cluster.clone(), requested.clone()));
        }
        let forward_stop = async {
            stop.await;
            drop(stopping);
        };
        // At the same time: an API server that does not answer must not delay the probes or the stopping.
        let introduce = async {
            greet(&self.client, &self.namespaces).await;
            look_for_namespaces(&self.client, &self.namespaces).await;
        };
        let answer = async {
            let mut serving = JoinSet::new();
            endpoints.into_iter().for_each(|endpoint| drop(serving.spawn(endpoint.serve(cluster.clone()))));
            while serving.join_next().await.is_some() {}
            pending().await
        };
        let beside = async { tokio::join!(forward_stop, introduce, answer).2 };
        let work = async { tokio::join!(controllers.join_all(), webhooks) };
        tokio::select! {
            _ = work => {}
            never = beside => match never {},
        }
        info!("stopped");
        Ok(())
    }
}

/// Listens at each address that was given.
async fn listen(
    probes: Option<SocketAddr>,
    metrics: Option<(SocketAddr, MetricsSecurity)>,
    debug: Option<SocketAddr>,
    client: &Client,
) -> Result<Vec<Endpoint>, RuntimeError> {
    let wrong = |endpoint, address| move |cause| RuntimeError::Listen { endpoint, address, cause };
    let mut all = Vec::new();
    if let Some(address) = probes {
        all.push(Endpoint::probes(address).await.map_err(wrong("probes", address))?);
    }
    if let Some((address, security)) = metrics {
        let endpoint = Endpoint::metrics(address, &security, client).await;
        all.push(endpoint.map_err(wrong("metrics", address))?);
    }
    if let Some(address) = debug {
        all.push(Endpoint::debug(address).await.map_err(wrong("debug", address))?);
    }
    Ok(all)
}

/// Logs the server, the user and the namespaces once.
async fn greet(client: &Client, namespaces: &[String]) {
    if namespaces.len() > NAMESPACES_MANY {
        let count = namespaces.len();
        warn!(
            count,
            "each namespace has watches of its own; watches of all namespaces cost less, and need a ClusterRole"
        );
    }
    let namespaces = if namespaces.is_empty() { "all".to_owned() } else { namespaces.join(",") };
    let (server, user) = (client.server(), client.user());
    let listwatch = env!("CARGO_PKG_VERSION");
    match client.version().await {
        Ok(kubernetes) => info!(listwatch, server, kubernetes, user, namespaces, "started"),
        Err(error) => {
            warn!(listwatch, server, user, namespaces, %error, "started, but the API server cannot be used yet")
        }
    }
}

/// Logs a warning for each namespace that does not exist: its lists are empty, as if it had no objects.
async fn look_for_namespaces(client: &Client, namespaces: &[String]) {
    for name in namespaces {
        match client.send(Request::get(format!("/api/v1/namespaces/{name}"))).await {
            Err(error) if error.is_not_found() => {
                warn!(namespace = name, "there is no such namespace; waiting for it");
            }
            // An operator with permissions in one namespace usually cannot read the Namespace itself.
            Err(error) if error.is_forbidden() => return,
            Ok(_) | Err(_) => {}
        }
    }
}
