//! Runs one scenario: random user actions and faults at random times, all from one seed.

use std::{
    collections::BTreeMap,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, atomic::AtomicBool},
    time::{Duration, SystemTime},
};

use fastrand::Rng;
use http::Method;
use listwatch::{
    client::{Client, Config},
    cluster::{Cluster, Events},
    runtime::Setup,
    watch::Lists,
};
use listwatch_apiserver::{ApiServer, Fault, Options};
use listwatch_operators::{BuiltIn, copyrator, database, memcached, mywebserver};
use serde_json::{Value, json};
use tokio::{
    runtime::Runtime,
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

use crate::{
    expect::{self, Stuck},
    network::{self, Clock, Meddler, Network, Weather, When},
};

/// User actions and faults of a scenario.
const STEPS: std::ops::Range<u32> = 10..40;
/// The longest pause between two steps.
const PAUSE_MS: u64 = 20_000;
/// Longest time until a killed operator is started again.
const AWAY_MAX: Duration = Duration::from_secs(60);
/// How soon an operator must have stopped after a request to stop, even in the middle of work. Kubernetes kills it
/// after 30 s.
const STOPPED_WITHIN: Duration = Duration::from_secs(26);
/// How soon after the last fault all objects must be as desired. The longest backoff is a minute, and a request without
/// an answer is given up after half a minute.
const SETTLED_WITHIN: Duration = Duration::from_secs(300);
/// The longest pause between corrections, in addition to [`SETTLED_WITHIN`]. Each pause is twice as long as the last one, so
/// none is longer than two minutes plus the time of the corrections, which is at most the scenario's.
const PAUSED: Duration = Duration::from_millis(120_000 + STEPS.end as u64 * PAUSE_MS);
/// Most retries of a user after a failure, and how long a user waits for an answer.
const USER_RETRIES_MAX: u32 = 3;
const USER_WAITS: Duration = Duration::from_secs(30);
/// The deadline of a rollout that cannot complete, `progressDeadlineSeconds`, and the time to report that it has
/// passed.
const STUCK_AFTER: Duration = Duration::from_secs(660);
/// How long nothing may be written after that. Meanwhile every watch ends and resumes at least once.
const QUIET: Duration = Duration::from_secs(900);
/// Most requests in a minute with any faults: a dozen actions with up to ten requests each, and the recovery from a fault
/// or two. Of 1,300 seeds, the busiest had 222 requests: three starts within the minute, each with its corrections of what another client
/// sets again in two objects. A seed that wrote without end had 586.
const REQUESTS_PER_MINUTE_MAX: usize = 300;
/// The same for Databases, with ten watches in place of three or four: after each outage or restart, each of them connects, lists and
/// watches by itself. Of 1,000 seeds, the busiest had 302 requests, of which 185 were to a server that was down.
const DATABASE_REQUESTS_PER_MINUTE_MAX: usize = 350;
/// Most requests in a quiet minute: a name that is taken is tried again every 45 s, with two requests, and three
/// watches end every few minutes.
const QUIET_REQUESTS_PER_MINUTE_MAX: usize = 24;
/// The same for Databases, with ten watches, and five children whose names may be taken: two looks at them with eleven requests each, for
/// three Databases.
const DATABASE_QUIET_REQUESTS_PER_MINUTE_MAX: usize = 3 * 2 * 11 + 10;

/// Waited twice before a restore: until every watch is open again after its backoff, and then until each has received a
/// BOOKMARK.
const CALM: Duration = Duration::from_secs(65);
/// Until every watch has checked whether the server has its version, and has the answer that it does not, after 3 s.
const CALM_AFTER_RESTORE: Duration = Duration::from_secs(6);
/// Holds back a deletion until a user removes this finalizer.
const FINALIZER: &str = "example.com/hold";

pub const NAMES: [&str; 3] = ["a", "b", "c"];
pub const NAMESPACES: [&str; 2] = ["default", "shop"];
pub const TOKEN: &str = "the operator's";

/// The operator of a scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operator {
    Mywebserver,
    Copyrator,
    Memcached,
    Database,
}

impl Operator {
    /// The CustomResourceDefinition of its objects.
    pub fn definition(self) -> Value {
        let operator = match self {
            Operator::Mywebserver => BuiltIn::Mywebserver,
            Operator::Copyrator => BuiltIn::Copyrator,
            Operator::Memcached => BuiltIn::Memcached,
            Operator::Database => BuiltIn::Database,
        };
        operator.definitions().remove(0)
    }
}

/// The outcome of a scenario.
pub struct Outcome {
    pub problems: Vec<String>,
    pub transcript: Vec<String>,
    pub busiest_minute: usize,
}

/// Runs the scenario of a seed, in a runtime of its own.
pub fn run(seed: u64) -> Outcome {
    // Seeds everything random in this thread, in server and operator: uids, names of Pods, pauses.
    fastrand::seed(seed);
    runtime().block_on(Scenario::run(Rng::with_seed(seed)))
}

/// A runtime with one thread, and a paused clock that jumps to the next timer when all tasks wait.
pub fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap()
}

/// A server that always starts at the same time of day.
pub fn server(options: &Options) -> ApiServer {
    let server = ApiServer::in_process(options, SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000));
    server.add_token(TOKEN, "operator");
    server
}

pub async fn install(network: &Network, crd: &Value) {
    let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    assert_eq!(post(network, path, crd).await, 201);
    for name in ["shop", "team"] {
        post(network, "/api/v1/namespaces", &json!({"metadata": {"name": name}})).await;
    }
}

pub async fn post(network: &Network, path: &str, object: &Value) -> u16 {
    network.send(network.server.token(), Method::POST, path, "application/json", object).await.0
}

pub struct Scenario {
    pub random: Rng,
    pub network: Arc<Network>,
    operator: Operator,
    lists: Lists,
    workers: usize,
    /// Whether the CRD allows specs that do not decode.
    is_loose: bool,
    /// The version at the last backup.
    backup: u64,
    /// The claims and Secrets of Databases that must stay, each with its uid and its data.
    pub data: BTreeMap<String, Value>,
}

/// Runs an operator, and starts a new one after each that ends. Runs until dropped.
pub async fn keep(
    network: Arc<Network>,
    operator: Operator,
    lists: Lists,
    workers: usize,
    mut random: Rng,
    current: Arc<Mutex<Option<Cluster>>>,
) {
    loop {
        let is_alive = Arc::new(AtomicBool::new(true));
        let client =
            Client::new(Config::in_process(Arc::new(network.link(&is_alive)), TOKEN).unwrap()).unwrap();
        let cluster = Cluster::new(client.clone(), lists);
        let (events, write_events) = Events::new(client, "simulated", "simulated".to_owned());
        let stop_requested = Arc::new(Mutex::new(None));
        let stop = {
            let (network, stop_requested) = (Arc::clone(&network), Arc::clone(&stop_requested));
            async move {
                network.stopped.notified().await;
                *lock(&stop_requested) = Some(Instant::now());
            }
        };
        let setup = Setup { cluster: cluster.clone(), events, namespaces: Vec::new() };
        let controller: Pin<Box<dyn Future<Output = ()> + Send>> = match operator {
            Operator::Mywebserver => Box::pin(mywebserver::controller(setup).workers(workers).run(stop)),
            Operator::Copyrator => {
                let settings = copyrator::Settings::default();
                Box::pin(copyrator::controller(setup, settings).workers(workers).run(stop))
            }
            Operator::Memcached => {
                Box::pin(memcached::controller(setup, &Default::default()).workers(workers).run(stop))
            }
            Operator::Database => {
                Box::pin(database::controller(setup, &Default::default()).workers(workers).run(stop))
            }
        };
        *lock(&current) = Some(cluster);
        network.record("operator", "starts");
        tokio::select! {
            biased;
            () = network.killed.notified() => {}
            () = controller => {}
            () = write_events => {}
        }
        *lock(&current) = None;
        network.record("operator", "has ended");
        if let Some(requested) = *lock(&stop_requested)
            && requested.elapsed() > STOPPED_WITHIN
        {
            network.violation(format!("stopped only after {:?}", requested.elapsed()));
        }
        sleep(AWAY_MAX.mul_f64(random.f64())).await;
    }
}

#[derive(Clone, Copy, Debug)]
enum Action {
    Create,
    Change,
    MakeInvalid,
    Delete,
    EditChild,
    DisownChild,
    UnlabelChild,
    DeleteChild,
    TakeName,
    FreeName,
    EmptyNamespace,
    AddFinalizer,
    RemoveFinalizer,
    Scale,
}

/// Each kind with its weight in the random choice.
const ACTIONS: [(Action, usize); 14] = [
    (Action::Create, 4),
    (Action::Change, 4),
    (Action::MakeInvalid, 1),
    (Action::Delete, 2),
    (Action::EditChild, 3),
    (Action::DisownChild, 1),
    (Action::UnlabelChild, 1),
    (Action::DeleteChild, 2),
    (Action::TakeName, 1),
    (Action::FreeName, 1),
    (Action::EmptyNamespace, 1),
    (Action::AddFinalizer, 2),
    (Action::RemoveFinalizer, 2),
    (Action::Scale, 1),
];

#[derive(Clone, Copy, Debug)]
enum Trouble {
    Server,
    Writes,
    Meddle,
    StopMeddling,
    Lag,
    CatchUp,
    Clock,
    EndFaults,
    Restart,
    Cut,
    Fair,
    Foul,
    Down,
    Kill,
    Stop,
    Backup,
    Restore,
}

/// Each kind with its weight in the random choice.
const TROUBLES: [(Trouble, usize); 17] = [
    (Trouble::Server, 6),
    (Trouble::Writes, 3),
    (Trouble::EndFaults, 3),
    (Trouble::Restart, 1),
    (Trouble::Cut, 1),
    (Trouble::Meddle, 2),
    (Trouble::StopMeddling, 1),
    (Trouble::Lag, 2),
    (Trouble::CatchUp, 1),
    (Trouble::Clock, 1),
    (Trouble::Fair, 2),
    (Trouble::Foul, 3),
    (Trouble::Down, 1),
    (Trouble::Kill, 3),
    (Trouble::Stop, 1),
    (Trouble::Backup, 2),
    (Trouble::Restore, 2),
];

impl Scenario {
    async fn run(mut random: Rng) -> Outcome {
        let pod_start = Duration::from_secs(random.u64(..20));
        // A tenth of the real heartbeats. All of them would be a third of the work.
        let heartbeat = Duration::from_secs(100);
        let options = Options { pod_start, heartbeat, ..Options::default() };
        let operators = [
            Operator::Mywebserver,
            Operator::Mywebserver,
            Operator::Copyrator,
            Operator::Memcached,
            Operator::Database,
        ];
        let scenario = Scenario {
            operator: random.choice(operators).unwrap(),
            network: Network::new(server(&options), random.fork()),
            lists: if random.bool() { Lists::Paged } else { Lists::Streaming },
            workers: random.usize(1..4),
            is_loose: random.bool(),
            backup: 0,
            data: BTreeMap::new(),
            random,
        };
        scenario.live().await
    }

    async fn live(mut self) -> Outcome {
        let began = Instant::now();
        self.install().await;
        self.back_up().await;
        let current = Arc::default();
        let (operator, lists, workers) = (self.operator, self.lists, self.workers);
        let (network, random) = (Arc::clone(&self.network), self.random.fork());
        network.record("scenario", &format!("{operator:?}"));
        let keep = keep(network, operator, lists, workers, random, Arc::clone(&current));
        let mut tasks = JoinSet::new();
        tasks.spawn(keep);
        for _ in 0..self.random.u32(STEPS) {
            sleep(Duration::from_millis(self.pause())).await;
            if self.random.u32(..3) == 0 {
                self.trouble().await;
            } else if operator == Operator::Copyrator {
                self.act_on_copies().await;
            } else if operator == Operator::Database {
                self.act_on_databases().await;
                self.check_data().await;
            } else {
                self.act().await;
            }
        }
        let network = Arc::clone(&self.network);
        self.end_faults("the faults stop");
        self.remove_all_finalizers().await;
        sleep(AWAY_MAX).await;
        let busiest_minute = network.busiest_minute(began);
        sleep(SETTLED_WITHIN).await;
        if network.has_reverted() {
            sleep(PAUSED).await;
        }
        let cluster: Cluster = lock(&current).clone().expect("an operator that runs again");
        self.check_data().await;
        let mut problems = expect::problems(operator, &network, &cluster, Stuck::MayBeUnknown).await;
        let (requests_max, quiet_requests_max) = match operator {
            Operator::Database => (DATABASE_REQUESTS_PER_MINUTE_MAX, DATABASE_QUIET_REQUESTS_PER_MINUTE_MAX),
            Operator::Mywebserver | Operator::Copyrator | Operator::Memcached => {
                (REQUESTS_PER_MINUTE_MAX, QUIET_REQUESTS_PER_MINUTE_MAX)
            }
        };
        if busiest_minute > requests_max {
            problems.push(format!("{busiest_minute} requests in a minute"));
        }

        sleep(STUCK_AFTER).await;
        let (writes, quiet_since) = (network.writes(), Instant::now());
        network.record("scenario", "quiet begins");
        sleep(QUIET).await;
        let written = network.writes() - writes;
        if written > 0 {
            problems.push(format!("{written} writes without a change"));
        }
        self.check_data().await;
        problems.extend(expect::problems(operator, &network, &cluster, Stuck::IsKnown).await);
        let busiest_quiet_minute = network.busiest_minute(quiet_since);
        if busiest_quiet_minute > quiet_requests_max {
            problems.push(format!("{busiest_quiet_minute} requests in a quiet minute"));
        }
        Outcome { problems, transcript: network.transcript(), busiest_minute }
    }

    /// Ends all faults.
    fn end_faults(&self, reason: &str) {
        self.network.record("scenario", reason);
        self.network.server.end_faults();
        self.network.plan_kill(None);
        self.network.set_weather(Weather::Fair);
        self.network.set_meddler(Meddler::None);
        self.network.set_lags(false);
        // Only the next operator writes again what admission has changed.
        if self.network.has_admission_changed() {
            self.network.record(
                "scenario",
                "the operator is asked to stop, because admission has changed its writes",
            );
            self.network.stopped.notify_waiters();
        }
    }

    /// Keeps the operator busy: the server does not answer its writes.
    async fn keep_busy(&mut self) {
        self.network.server.fault(Fault::Silence.on("PATCH", "/mws-").times(8));
        let spec = json!({"port": self.random.u16(90..)});
        for name in NAMES {
            let web = format!("/apis/k8sobjects.gsa.com/v2/namespaces/default/mywebservers/{name}");
            self.patch(&web, &json!({"spec": spec})).await;
        }
        sleep(Duration::from_secs(1)).await;
    }

    /// Removes our finalizer from all objects.
    async fn remove_all_finalizers(&self) {
        for collection in expect::collections(self.operator) {
            let (root, plural) = collection.rsplit_once('/').unwrap();
            for object in expect::list(&self.network, collection).await {
                let text = |field: &str| object["metadata"][field].as_str().unwrap();
                self.remove_finalizer(&format!(
                    "{root}/namespaces/{}/{plural}/{}",
                    text("namespace"),
                    text("name")
                ))
                .await;
            }
        }
    }

    /// Adds our finalizer.
    pub async fn add_finalizer(&self, path: &str) {
        let Some(object) = self.network.get(path).await else { return };
        let mut finalizers = object["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
        finalizers.push(FINALIZER.into());
        self.patch(path, &json!({"metadata": {"finalizers": finalizers}})).await;
    }

    /// Removes our finalizer, and keeps all others.
    pub async fn remove_finalizer(&self, path: &str) {
        let Some(object) = self.network.get(path).await else { return };
        let Some(finalizers) = object["metadata"]["finalizers"].as_array() else { return };
        let left: Vec<_> = finalizers.iter().filter(|finalizer| **finalizer != FINALIZER).collect();
        self.patch(path, &json!({"metadata": {"finalizers": left}})).await;
    }

    async fn back_up(&mut self) {
        self.network.server.fault(Fault::Backup);
        self.backup = self.version().await;
    }

    /// Restores the last backup. If the restored server passes the operator's last known version before the operator
    /// checks, it has used the same versions for different objects, and no client can detect this. docs/reliability.md
    /// names this limit. A restart of the operator solves it, so this kills the operator.
    async fn restore(&self) {
        self.end_faults("no faults before a restore");
        self.network.cut();
        sleep(CALM).await;
        let watched = self.version().await;
        sleep(CALM).await;
        self.network.record(
            "trouble",
            &format!("restore of version {}; the watches have version {watched}", self.backup),
        );
        self.network.cut();
        self.network.restore();
        sleep(CALM_AFTER_RESTORE).await;
        if self.version().await >= watched {
            self.network.record("trouble", "the server has passed the last version of the watches");
            self.network.killed.notify_one();
        }
    }

    /// The latest version of the server.
    async fn version(&self) -> u64 {
        let list = self.network.get("/api/v1/namespaces").await.unwrap();
        list["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
    }

    /// Draws a pause, more often a short one than a long one.
    fn pause(&mut self) -> u64 {
        let longest = self.random.choice([10, 200, 2_000, PAUSE_MS]).unwrap();
        self.random.u64(..longest)
    }

    pub fn one_of<T: Copy>(&mut self, weighted: &[(T, usize)]) -> T {
        let each = weighted.iter().flat_map(|(one, weight)| std::iter::repeat_n(*one, *weight));
        self.random.choice(each.collect::<Vec<_>>()).unwrap()
    }

    async fn install(&self) {
        let mut crd = self.operator.definition();
        if self.is_loose && self.operator != Operator::Copyrator {
            for version in crd["spec"]["versions"].as_array_mut().unwrap() {
                let schema = &mut version["schema"]["openAPIV3Schema"];
                schema["properties"]["spec"] =
                    json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
                // A rule cannot name a field that the schema does not have.
                schema.as_object_mut().unwrap().remove("x-kubernetes-validations");
            }
        }
        install(&self.network, &crd).await;
    }

    pub async fn post(&self, path: &str, object: &Value) -> u16 {
        self.user(Method::POST, path, "application/json", object).await
    }

    pub async fn patch(&self, path: &str, patch: &Value) -> u16 {
        self.user(Method::PATCH, path, "application/merge-patch+json", patch).await
    }

    pub async fn delete(&self, path: &str, propagation: &str) -> u16 {
        let options = json!({"propagationPolicy": propagation});
        self.user(Method::DELETE, path, "application/json", &options).await
    }

    /// Sends a request of a user. As with kubectl in a script, a failed request is repeated, or given up.
    async fn user(&self, method: Method, path: &str, content_type: &str, body: &Value) -> u16 {
        let network = &self.network;
        let mut retries = fastrand::u32(..=USER_RETRIES_MAX);
        loop {
            let request = network.send(network.server.token(), method.clone(), path, content_type, body);
            let status = timeout(USER_WAITS, request).await.map_or(0, |(status, _)| status);
            network.record("user", &format!("{method} {path} {body} -> {status}"));
            let may_pass = matches!(status, 0 | 429 | 500..);
            if !may_pass || retries == 0 {
                return status;
            }
            retries -= 1;
            sleep(Duration::from_secs(1)).await;
        }
    }

    fn spec(&mut self) -> Value {
        let random = &mut self.random;
        if self.operator == Operator::Memcached {
            return json!({"size": random.u16(..4), "memoryMb": random.choice([16, 64, 1024]).unwrap()});
        }
        let mut spec = json!({"image": random.choice(["nginx", "nginx", "httpd", "httpd", "caddy", "caddy", "does-not-exist"]).unwrap()});
        if random.bool() {
            spec["port"] = random.u16(80..84).into();
        }
        if random.bool() {
            spec["replicas"] = random.u16(..4).into();
        }
        spec
    }

    async fn act(&mut self) {
        let action = self.one_of(&ACTIONS);
        let at = At::draw(&mut self.random, self.operator);
        match action {
            Action::Create => {
                let object = json!({"apiVersion": at.api_version, "kind": at.kind,
                    "metadata": {"name": at.name}, "spec": self.spec()});
                self.post(&at.webs, &object).await;
            }
            Action::Change => {
                let spec = self.spec();
                self.patch(&at.web, &json!({"spec": spec})).await;
            }
            Action::MakeInvalid => {
                self.patch(&at.web, &json!({"spec": {"port": "eighty", "size": "eighty"}})).await;
            }
            Action::Delete => {
                let policies = ["Background", "Background", "Foreground", "Orphan"];
                let policy = self.random.choice(policies).unwrap();
                self.delete(&at.web, policy).await;
            }
            Action::EditChild => {
                let edit = self.random.choice(at.edits()).unwrap();
                self.patch(&at.child, &edit).await;
            }
            Action::DisownChild => {
                self.patch(&at.child, &json!({"metadata": {"ownerReferences": null}})).await;
            }
            Action::UnlabelChild => {
                let label = json!({"app.kubernetes.io/managed-by": null});
                self.patch(&at.child, &json!({"metadata": {"labels": label}})).await;
            }
            Action::DeleteChild => {
                let policy = self.random.choice(["Background", "Foreground", "Orphan"]).unwrap();
                self.delete(&at.child, policy).await;
            }
            Action::TakeName => {
                self.post(&at.children, &at.foreign_object()).await;
            }
            // Deletes an object that has the name of a child, and no controller.
            Action::FreeName => {
                if let Some(object) = self.network.get(&at.child).await
                    && expect::controller(&object).is_none()
                {
                    self.delete(&at.child, "Background").await;
                }
            }
            Action::AddFinalizer => {
                let path = if self.random.bool() { &at.web } else { &at.child };
                self.add_finalizer(path).await;
            }
            Action::RemoveFinalizer => {
                self.remove_finalizer(&at.web).await;
                self.remove_finalizer(&at.child).await;
            }
            Action::Scale => {
                let replicas = self.random.u16(..4);
                self.patch(&format!("{}/scale", at.web), &json!({"spec": {"replicas": replicas}})).await;
            }
            Action::EmptyNamespace => {
                if self.delete("/api/v1/namespaces/shop", "Background").await >= 300 {
                    self.post("/api/v1/namespaces", &json!({"metadata": {"name": "shop"}})).await;
                }
            }
        }
    }

    async fn trouble(&mut self) {
        let trouble = self.one_of(&TROUBLES);
        let network = Arc::clone(&self.network);
        network.record("trouble", &format!("{trouble:?}"));
        match trouble {
            Trouble::Server => self.inject_server_fault(),
            Trouble::Writes => self.inject_write_fault(),
            Trouble::Meddle => {
                let meddlers = [Meddler::Admission, Meddler::Controller];
                network.set_meddler(self.random.choice(meddlers).unwrap());
            }
            Trouble::StopMeddling => network.set_meddler(Meddler::None),
            Trouble::Lag => network.set_lags(true),
            Trouble::CatchUp => network.set_lags(false),
            Trouble::Clock => {
                let by = Duration::from_secs(self.random.choice([2, 90, 86_400]).unwrap());
                let clocks = [Clock::Exact, Clock::Slow(by), Clock::Fast(by)];
                network.set_clock(self.random.choice(clocks).unwrap());
            }
            Trouble::EndFaults => network.server.end_faults(),
            Trouble::Restart => {
                network.cut();
                network.server.fault(Fault::Restart);
            }
            Trouble::Cut => network.cut(),
            Trouble::Fair => network.set_weather(Weather::Fair),
            Trouble::Foul => network.set_weather(Weather::Foul(self.random.u32(2..12))),
            Trouble::Down => network.set_weather(Weather::Down),
            Trouble::Kill => {
                let when = if self.random.bool() { When::BeforeTheWrite } else { When::AfterTheWrite };
                network.plan_kill(Some(network::Kill { writes: self.random.u32(1..6), when }));
            }
            Trouble::Stop => {
                if self.random.bool() {
                    self.keep_busy().await;
                }
                network.stopped.notify_waiters();
            }
            Trouble::Backup => self.back_up().await,
            Trouble::Restore => {
                self.restore().await;
                self.data.clear();
            }
        }
    }

    fn inject_server_fault(&mut self) {
        let faults = [
            Fault::EndWatches,
            Fault::CutWatches,
            Fault::ExpireWatches,
            Fault::GoneWatches,
            Fault::StallWatches,
            Fault::DropSlowWatches,
            Fault::NoBookmarks,
            Fault::NoStreamingLists,
            Fault::IgnoreStreamingLists,
            Fault::ChunkBytes(self.random.usize(1..64)),
            Fault::ExpireHistory,
        ];
        let fault = self.random.choice(faults).unwrap();
        self.network.record("trouble", &format!("{fault:?}"));
        self.network.server.fault(fault);
    }

    /// Makes a number of writes fail, of any client.
    fn inject_write_fault(&mut self) {
        let answer = |status, retry_after_secs| {
            let body = String::new();
            Fault::Answer { status, body, retry_after_secs }
        };
        let code = self.random.choice([403, 409, 429, 500, 503]).unwrap();
        let faults = [
            answer(500, None),
            answer(503, Some(self.random.u64(1..20))),
            answer(429, Some(1)),
            Fault::Delay(Duration::from_secs(self.random.u64(1..60))),
            Fault::Silence,
            Fault::LoseAnswer,
            Fault::Deny { webhook: "simulated".to_owned(), message: "no".to_owned(), code },
            Fault::Quota("simulated".to_owned()),
        ];
        let fault = self.random.choice(faults).unwrap();
        let method = self.random.choice(["POST", "PATCH", "DELETE"]).unwrap();
        let times = self.random.u64(1..8);
        self.network.record("trouble", &format!("{times} times at {method}: {fault:?}"));
        self.network.server.fault(fault.on(method, "/namespaces/").times(times));
    }
}

/// The object of an action: a MyWebserver or a Memcached.
struct At {
    name: &'static str,
    api_version: String,
    kind: &'static str,
    /// Whether the child is a Deployment. Otherwise it is a Service.
    is_deployment: bool,
    webs: String,
    web: String,
    children: String,
    child: String,
}

impl At {
    fn draw(random: &mut Rng, operator: Operator) -> At {
        let name = random.choice(NAMES).unwrap();
        let namespace = if random.u32(..4) > 0 { NAMESPACES[0] } else { NAMESPACES[1] };
        let version = random.choice(["v1", "v2", "v2"]).unwrap();
        let (api_version, kind, plural, child) = match operator {
            Operator::Memcached => {
                ("cache.example.com/v1alpha1".to_owned(), "Memcached", "memcacheds", name.to_owned())
            }
            Operator::Mywebserver | Operator::Copyrator | Operator::Database => (
                format!("k8sobjects.gsa.com/{version}"),
                "MyWebserver",
                "mywebservers",
                format!("mws-{name}"),
            ),
        };
        let webs = format!("/apis/{api_version}/namespaces/{namespace}/{plural}");
        let web = format!("{webs}/{name}");
        let is_deployment = random.bool();
        let children = match is_deployment {
            true => format!("/apis/apps/v1/namespaces/{namespace}/deployments"),
            false => format!("/api/v1/namespaces/{namespace}/services"),
        };
        let child = format!("{children}/{child}");
        At { name, api_version, kind, is_deployment, webs, web, children, child }
    }

    /// Edits of fields of a child that the operator owns.
    fn edits(&self) -> [Value; 3] {
        let label = json!({"metadata": {"labels": {"app.kubernetes.io/name": "edited"}}});
        let container = if self.kind == "Memcached" { "memcached" } else { "web" };
        let containers = json!([{"name": container, "image": "other"}]);
        match self.is_deployment {
            true => [
                json!({"spec": {"replicas": 7}}),
                json!({"spec": {"template": {"spec": {"containers": containers}}}}),
                label,
            ],
            false => [
                json!({"spec": {"ports": [{"name": "other", "port": 9999, "protocol": "TCP"}]}}),
                json!({"spec": {"selector": {"app.kubernetes.io/instance": "edited"}}}),
                label,
            ],
        }
    }

    /// An object of another owner with the name of the child.
    fn foreign_object(&self) -> Value {
        let labels = json!({"app": "foreign"});
        let pod =
            json!({"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
        let spec = match self.is_deployment {
            true => json!({"selector": {"matchLabels": labels}, "template": pod}),
            false => json!({"ports": [{"port": 1}]}),
        };
        json!({"metadata": {"name": self.child.rsplit('/').next(), "labels": labels}, "spec": spec})
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap()
}
