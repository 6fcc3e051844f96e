//! What the process counts, for Prometheus: `/metrics`. docs/metrics.md has the whole list.
//!
//! ```text
//! # HELP workqueue_depth Keys that wait for a worker.
//! # TYPE workqueue_depth gauge
//! workqueue_depth{name="mywebserver",controller="mywebserver"} 0
//! ```
//!
//! - A [`Client`](crate::client::Client) has the [`Metrics`], so that each part of the process that has a client can count. The
//!   metrics of controllers, workqueues, requests and leaders have the names of controller-runtime and client-go, which existing dashboards
//!   know.
//! - Gauges are computed at each scrape, from the state of the process.
//! - Each label has few values: no name of an object or of a namespace, and no text of an error.
//!
//! See <https://prometheus.io/docs/instrumenting/exposition_formats/>.

mod process;

use std::{
    cmp::Reverse,
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, Weak, atomic::AtomicU64},
    time::Duration,
};

use prometheus_client::{
    encoding::{prometheus_text, text},
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::{Metric, Registry},
};

use smol_str::SmolStr;

use crate::{locked, resource::Key};

/// The format of [`Metrics::text`].
#[derive(Clone, Copy)]
pub(crate) enum TextFormat {
    /// Version 0.0.4 of the text format of Prometheus, which every scraper reads.
    Prometheus,
    /// <https://prometheus.io/docs/specs/om/open_metrics_spec/>
    OpenMetrics,
}

/// Buckets of the time of a reconcile, in seconds. As controller-runtime's.
pub(crate) const RECONCILE_BUCKETS: [f64; 40] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.25,
    1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 15.0, 20.0, 25.0, 30.0, 40.0,
    50.0, 60.0,
];
/// Most reasons of one kind with series of their own, for `Ready` and for all other conditions: the most frequent ones. A status can have
/// any reason that a writer chooses.
const REASONS_MAX: usize = 50;

type LabelPairs<const N: usize> = [(&'static str, String); N];
type Counters<const N: usize> = Family<LabelPairs<N>, Counter>;
type Gauges<const N: usize> = Family<LabelPairs<N>, Gauge>;
type Seconds = Family<LabelPairs<1>, Gauge<f64, AtomicU64>>;
type Histograms<const N: usize> = Family<LabelPairs<N>, Histogram, fn() -> Histogram>;

/// The counts of one process.
pub struct Metrics {
    registry: Mutex<Registry>,
    /// The controllers, while they exist.
    observed: Mutex<Vec<Weak<dyn Observed>>>,
    requests: Counters<3>,
    writes: Counters<3>,
    lists: Counters<2>,
    watch_ends: Counters<2>,
    lines: Counters<1>,
    line_bytes: Counters<1>,
    watches: Gauges<2>,
    silence: Seconds,
    stored: Gauges<1>,
    connections: Gauge,
    objects: Gauges<3>,
    conditions: Gauges<4>,
    leaders: Gauges<1>,
    reconciles: Counters<2>,
    failures: Counters<1>,
    terminal_failures: Counters<1>,
    panics: Counters<1>,
    timeouts: Counters<1>,
    times: Histograms<1>,
    active: Gauges<1>,
    workers: Gauges<1>,
    depth: Gauges<2>,
    adds: Counters<2>,
    retries: Counters<2>,
    waits: Histograms<2>,
    works: Histograms<2>,
    unfinished: Family<LabelPairs<2>, Gauge<f64, AtomicU64>>,
    longest: Family<LabelPairs<2>, Gauge<f64, AtomicU64>>,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

/// The counts of one controller.
#[derive(Debug)]
pub(crate) struct ControllerMetrics {
    pub(crate) succeeded: Counter,
    pub(crate) requeued: Counter,
    pub(crate) requeued_after: Counter,
    pub(crate) failed: Counter,
    pub(crate) errors: Counter,
    pub(crate) terminal_errors: Counter,
    pub(crate) panics: Counter,
    pub(crate) time: Histogram,
    pub(crate) workers: Gauge,
}

/// The counts of one workqueue. Nobody reads the counts of the default.
#[derive(Debug)]
pub(crate) struct QueueMetrics {
    pub(crate) adds: Counter,
    pub(crate) retries: Counter,
    /// How long keys waited.
    pub(crate) waits: Histogram,
    /// How long keys were processed.
    pub(crate) works: Histogram,
}

/// The counts of the watches of one resource.
#[derive(Debug)]
pub(crate) struct WatchMetrics {
    metrics: Arc<Metrics>,
    resource: String,
    lines: Counter,
    line_bytes: Counter,
}

impl Default for QueueMetrics {
    fn default() -> QueueMetrics {
        QueueMetrics {
            adds: Counter::default(),
            retries: Counter::default(),
            waits: queue_buckets(),
            works: queue_buckets(),
        }
    }
}

impl Default for Metrics {
    fn default() -> Metrics {
        let mut registry = Registry::default();
        process::register(&mut registry);
        let r = &mut registry;
        let build: Gauges<1> = add(r, "listwatch_build_info", "1, by the version of listwatch");
        build.get_or_create(&[("version", env!("CARGO_PKG_VERSION").to_owned())]).set(1);
        Metrics {
            requests: add(
                r,
                "rest_client_requests",
                "Requests to the API server, by the status of the answer",
            ),
            writes: add(
                r,
                "listwatch_writes",
                "Writes, without Events and dry runs, by the status of the answer",
            ),
            lists: add(
                r,
                "listwatch_lists",
                "Complete lists of a collection, by why they began: Start, or the end of the request before",
            ),
            watch_ends: add(r, "listwatch_watch_ends", "Ends of the requests of watches, by reason"),
            lines: add(r, "listwatch_watch_lines", "Lines of watches"),
            line_bytes: add(r, "listwatch_watch_line_bytes", "Bytes of the lines of watches"),
            watches: add(r, "listwatch_watches", "Watches by state: synced, listing, failing or stuck"),
            silence: add(
                r,
                "listwatch_watch_silence_seconds",
                "Time since the last bytes of a watch or list, of the quietest watch of a resource",
            ),
            stored: add(r, "listwatch_store_objects", "Objects in the Stores of the watches"),
            connections: add(r, "listwatch_connections", "HTTP/2 connections to the API server in use"),
            objects: add(
                r,
                "listwatch_objects",
                "Objects by the status and the reason of their condition Ready",
            ),
            conditions: add(
                r,
                "listwatch_conditions",
                "Objects by the status and the reason of each other condition",
            ),
            leaders: add(r, "leader_election_master_status", "1 while this process holds the Lease, else 0"),
            reconciles: add(r, "controller_runtime_reconcile", "Reconciles, by result"),
            failures: add(r, "controller_runtime_reconcile_errors", "Reconciles that failed"),
            terminal_failures: add(
                r,
                "controller_runtime_terminal_reconcile_errors",
                "Reconciles that failed and are not tried again before a change",
            ),
            panics: add(r, "controller_runtime_reconcile_panics", "Reconciles that panicked"),
            timeouts: add(r, "controller_runtime_reconcile_timeouts", "Reconciles that took too long"),
            times: add_histograms(
                r,
                "controller_runtime_reconcile_time_seconds",
                "Times of the reconciles",
                || Histogram::new(RECONCILE_BUCKETS),
            ),
            active: add(r, "controller_runtime_active_workers", "Keys that are being reconciled"),
            workers: add(
                r,
                "controller_runtime_max_concurrent_reconciles",
                "Most keys that are reconciled at a time",
            ),
            depth: add(r, "workqueue_depth", "Keys that wait for a worker"),
            adds: add(r, "workqueue_adds", "Keys that began to wait for a worker"),
            retries: add(
                r,
                "workqueue_retries",
                "Keys that wait for a time: after a failure, or because an operator asks for it",
            ),
            waits: add_histograms(
                r,
                "workqueue_queue_duration_seconds",
                "How long keys waited for a worker",
                queue_buckets,
            ),
            works: add_histograms(
                r,
                "workqueue_work_duration_seconds",
                "How long workers had a key",
                queue_buckets,
            ),
            unfinished: add(
                r,
                "workqueue_unfinished_work_seconds",
                "Sum of the times of the reconciles that run",
            ),
            longest: add(
                r,
                "workqueue_longest_running_processor_seconds",
                "Time of the longest reconcile that runs",
            ),
            observed: Mutex::default(),
            registry: Mutex::new(registry),
        }
    }
}

fn queue_buckets() -> Histogram {
    Histogram::new(exponential_buckets(1e-8, 10.0, 12))
}

fn add<M: Metric + Clone + Default>(registry: &mut Registry, name: &str, help: &str) -> M {
    let metric = M::default();
    registry.register(name, help, metric.clone());
    metric
}

fn add_histograms<const N: usize>(
    registry: &mut Registry,
    name: &str,
    help: &str,
    new: fn() -> Histogram,
) -> Histograms<N> {
    let metric = Family::new_with_constructor(new);
    registry.register(name, help, metric.clone());
    metric
}

impl Metrics {
    /// Adds a metric of an operator, such as a [`Counter`]. To a counter's name, the text adds `_total`.
    pub fn register(&self, name: &str, help: &str, metric: impl Metric) {
        locked(&self.registry).register(name, help, metric);
    }

    /// Counts a request when it ends, also if nobody waits for its answer any more.
    pub(crate) fn request<'a>(&'a self, method: &'a http::Method, host: &'a str) -> CountedRequest<'a> {
        CountedRequest { metrics: self, method, host, code: None }
    }

    /// An answer to a write, or none.
    pub(crate) fn wrote(&self, verb: &str, resource: &str, answer: Option<u16>) {
        let labels = [("verb", verb.to_owned()), ("resource", resource.to_owned()), ("code", code(answer))];
        self.writes.get_or_create(&labels).inc();
    }

    /// Of the watches of a resource, such as `deployments.apps`.
    pub(crate) fn watch(self: &Arc<Metrics>, resource: String) -> WatchMetrics {
        let labels = [("resource", resource.clone())];
        // Zero from the start on: `increase` in a query needs it.
        for counters in [&self.watch_ends, &self.lists] {
            drop(counters.get_or_create(&[("resource", resource.clone()), ("reason", "Expired".to_owned())]));
        }
        WatchMetrics {
            metrics: Arc::clone(self),
            lines: self.lines.get_or_create_owned(&labels),
            line_bytes: self.line_bytes.get_or_create_owned(&labels),
            resource,
        }
    }

    /// Of the controller of a kind.
    pub(crate) fn controller(&self, kind: &str) -> ControllerMetrics {
        let controller = controller_labels(kind);
        let [name] = controller.clone();
        // Zero from the start on.
        drop(self.timeouts.get_or_create(&controller));
        let by_result = |result: &str| {
            self.reconciles.get_or_create_owned(&[name.clone(), ("result", result.to_owned())])
        };
        ControllerMetrics {
            succeeded: by_result("success"),
            requeued: by_result("requeue"),
            requeued_after: by_result("requeue_after"),
            failed: by_result("error"),
            errors: self.failures.get_or_create_owned(&controller),
            terminal_errors: self.terminal_failures.get_or_create_owned(&controller),
            panics: self.panics.get_or_create_owned(&controller),
            time: self.times.get_or_create_owned(&controller),
            workers: self.workers.get_or_create_owned(&controller),
        }
    }

    /// A reconcile of an object of this kind took too long.
    pub(crate) fn timed_out(&self, kind: &str) {
        self.timeouts.get_or_create(&controller_labels(kind)).inc();
    }

    /// Of the workqueue of a kind.
    pub(crate) fn queue(&self, kind: &str) -> QueueMetrics {
        let labels = queue_labels(kind);
        QueueMetrics {
            adds: self.adds.get_or_create_owned(&labels),
            retries: self.retries.get_or_create_owned(&labels),
            waits: self.waits.get_or_create_owned(&labels),
            works: self.works.get_or_create_owned(&labels),
        }
    }

    /// 1 while this process holds the Lease of this name.
    pub(crate) fn leader(&self, lease: &str) -> Gauge {
        self.leaders.get_or_create_owned(&[("name", lease.to_owned())])
    }

    /// Looks at a controller at each scrape, while it exists.
    pub(crate) fn observe<T: Observed + 'static>(&self, controller: &Arc<T>) {
        let controller: Weak<T> = Arc::downgrade(controller);
        locked(&self.observed).push(controller);
    }

    /// The controllers.
    pub(crate) fn observed(&self) -> Vec<Arc<dyn Observed>> {
        let mut observed = locked(&self.observed);
        observed.retain(|controller| controller.strong_count() > 0);
        observed.iter().filter_map(Weak::upgrade).collect()
    }

    /// All metrics as text, after a look at the state of the process.
    pub(crate) fn text(
        &self,
        format: TextFormat,
        watches: Vec<WatchState>,
        connections: usize,
    ) -> Result<String, fmt::Error> {
        // Two scrapes at a time would clear what the other has found.
        let registry = locked(&self.registry);
        self.connections.set(count(connections));
        self.look_at_watches(watches);
        self.look_at_controllers();
        let mut text = String::new();
        match format {
            TextFormat::Prometheus => prometheus_text::encode(&mut text, &registry)?,
            TextFormat::OpenMetrics => text::encode(&mut text, &registry)?,
        }
        Ok(text)
    }

    fn look_at_watches(&self, watches: Vec<WatchState>) {
        self.watches.clear();
        self.silence.clear();
        self.stored.clear();
        for WatchState { resource, state, objects, silence } in watches {
            let labels = [("resource", resource)];
            let [resource] = labels.clone();
            self.watches.get_or_create(&[resource, ("state", state.to_owned())]).inc();
            self.stored.get_or_create(&labels).inc_by(count(objects));
            let longest = self.silence.get_or_create(&labels);
            longest.set(longest.get().max(silence.as_secs_f64()));
        }
    }

    fn look_at_controllers(&self) {
        self.objects.clear();
        self.conditions.clear();
        for gauges in [&self.unfinished, &self.longest] {
            gauges.clear();
        }
        self.depth.clear();
        self.active.clear();
        for controller in self.observed() {
            let kind = controller.kind();
            self.look_at_objects(kind, controller.conditions());
            let QueueLoad { waiting, processing } = controller.load();
            let labels = queue_labels(kind);
            self.depth.get_or_create(&labels).inc_by(count(waiting));
            self.active.get_or_create(&controller_labels(kind)).inc_by(count(processing.len()));
            self.unfinished.get_or_create(&labels).inc_by(processing.iter().map(Duration::as_secs_f64).sum());
            let longest = processing.into_iter().max().unwrap_or_default().as_secs_f64();
            let known = self.longest.get_or_create(&labels);
            known.set(known.get().max(longest));
        }
    }

    fn look_at_objects(&self, kind: &str, conditions: BTreeMap<[SmolStr; 3], i64>) {
        let mut all: Vec<_> = conditions.into_iter().collect();
        all.sort_by_key(|(_, objects)| Reverse(*objects));
        let (ready, others): (Vec<_>, Vec<_>) = all.into_iter().partition(|([name, ..], _)| name == "Ready");
        for all in [ready, others] {
            for (number, ([name, status, reason], objects)) in all.into_iter().enumerate() {
                let is_ready = name == "Ready";
                let [name, reason] =
                    if number < REASONS_MAX { [name, reason] } else { ["Other".into(), "Other".into()] };
                let status = if ["True", "False"].contains(&&*status) { status } else { "Unknown".into() };
                let [kind, name, status, reason] =
                    [&SmolStr::new(kind), &name, &status, &reason].map(SmolStr::to_string);
                if is_ready {
                    let labels = [("kind", kind), ("ready", status), ("reason", reason)];
                    self.objects.get_or_create(&labels).inc_by(objects);
                } else {
                    let labels =
                        [("kind", kind), ("condition", name), ("status", status), ("reason", reason)];
                    self.conditions.get_or_create(&labels).inc_by(objects);
                }
            }
        }
    }
}

impl TextFormat {
    /// For the header `Accept` of a scraper. Prometheus asks for OpenMetrics first.
    pub(crate) fn for_accept(accept: Option<&http::HeaderValue>) -> TextFormat {
        let accept = accept.and_then(|accept| accept.to_str().ok()).unwrap_or_default();
        match accept.contains("application/openmetrics-text") {
            true => TextFormat::OpenMetrics,
            false => TextFormat::Prometheus,
        }
    }

    pub(crate) fn media_type(self) -> &'static str {
        match self {
            TextFormat::Prometheus => prometheus_text::CONTENT_TYPE,
            TextFormat::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// A request that has begun. Dropped: counted.
pub(crate) struct CountedRequest<'a> {
    metrics: &'a Metrics,
    method: &'a http::Method,
    host: &'a str,
    /// The status of the answer. `None`: no answer has come.
    pub(crate) code: Option<u16>,
}

impl Drop for CountedRequest<'_> {
    fn drop(&mut self) {
        let labels =
            [("code", code(self.code)), ("method", self.method.to_string()), ("host", self.host.to_owned())];
        self.metrics.requests.get_or_create(&labels).inc();
    }
}

/// As client-go, if there was no answer.
fn code(code: Option<u16>) -> String {
    code.map_or("<error>".to_owned(), |code| code.to_string())
}

impl WatchMetrics {
    pub(crate) fn line(&self, bytes: usize) {
        self.lines.inc();
        self.line_bytes.inc_by(bytes as u64);
    }

    /// A list is complete, which began because of this.
    pub(crate) fn listed(&self, reason: &str) {
        self.count(&self.metrics.lists, reason);
    }

    /// A request has ended.
    pub(crate) fn ended(&self, reason: &str) {
        self.count(&self.metrics.watch_ends, reason);
    }

    fn count(&self, counters: &Counters<2>, reason: &str) {
        let labels = [("resource", self.resource.clone()), ("reason", reason.to_owned())];
        counters.get_or_create(&labels).inc();
    }
}

fn controller_labels(kind: &str) -> LabelPairs<1> {
    [("controller", kind.to_lowercase())]
}

/// client-go's label, and controller-runtime's.
fn queue_labels(kind: &str) -> LabelPairs<2> {
    let name = kind.to_lowercase();
    [("name", name.clone()), ("controller", name)]
}

/// As the value of a gauge.
pub(crate) fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// A controller, as a scrape and `/debug/state` look at it.
pub(crate) trait Observed: Send + Sync {
    /// The kind of its objects.
    fn kind(&self) -> &'static str;
    /// The load of its workqueue.
    fn load(&self) -> QueueLoad;
    /// The keys in its workqueue.
    fn queued(&self) -> Vec<QueuedKey>;
    /// The number of its objects by the name, the status and the reason of each condition.
    fn conditions(&self) -> BTreeMap<[SmolStr; 3], i64>;
}

/// The load of a workqueue.
pub(crate) struct QueueLoad {
    /// The number of keys that wait for a worker.
    pub(crate) waiting: usize,
    /// For each key with a worker: since when.
    pub(crate) processing: Vec<Duration>,
}

/// A key in a workqueue.
pub(crate) struct QueuedKey {
    pub(crate) key: Key,
    /// `waiting`, `processing`, `later` or `backing off`.
    pub(crate) state: &'static str,
    /// The time in this state.
    pub(crate) since: Duration,
    /// The time until it waits for a worker.
    pub(crate) due: Option<Duration>,
    /// Failures in a row.
    pub(crate) failures: u32,
    /// The last failure.
    pub(crate) problem: String,
}

/// An open watch.
pub(crate) struct WatchState {
    /// `deployments.apps`
    pub(crate) resource: String,
    /// `synced`, `listing`, `failing` or `stuck`.
    pub(crate) state: &'static str,
    /// The number of objects in its Store.
    pub(crate) objects: usize,
    /// The time since the last line or page.
    pub(crate) silence: Duration,
}
