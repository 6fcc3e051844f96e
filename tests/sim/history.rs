//! One history: what people do, what goes wrong, and when. All of it follows from one seed.

use std::{
    sync::{Arc, Mutex, MutexGuard, atomic::AtomicBool},
    time::{Duration, SystemTime},
};

use fastrand::Rng;
use http::Method;
use listwatch::{
    apiserver::{ApiServer, Fault, Options},
    client::{Client, Config},
    cluster::Cluster,
    operators::mywebserver,
    watch::Lists,
};
use serde_json::{Value, json};
use tokio::{
    runtime::Runtime,
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

use crate::{
    expect::{self, Stuck},
    network::{self, ClockIs, Meddler, Network, Weather, When},
};

/// Deeds and faults of a history.
const STEPS: std::ops::Range<u32> = 10..40;
/// The longest time between two of them.
const PAUSE_MS: u64 = 20_000;
/// How long an operator is away that was killed.
const AWAY_MAX: Duration = Duration::from_secs(60);
/// How soon an operator is gone that was asked to stop, whatever it has in hand. Kubernetes kills it after 30 s.
const STOPPED_WITHIN: Duration = Duration::from_secs(26);
/// How soon after the last fault everything is as it should be. The longest backoff is a minute, and a request that
/// nobody answers is given up after half a minute.
const SETTLED_WITHIN: Duration = Duration::from_secs(300);
/// The longest truce after a fight, beside that: each is twice as long as the one before, so none is longer than two
/// minutes and all the time of the fight, and that is no longer than the history.
const TRUCE: Duration = Duration::from_millis(120_000 + STEPS.end as u64 * PAUSE_MS);
/// How often a user tries again what went wrong, at most, and how long they wait for an answer.
const USER_RETRIES_MAX: u32 = 3;
const USER_WAITS: Duration = Duration::from_secs(30);
/// The deadline of a rollout that cannot go on, `progressDeadlineSeconds`, and time to report that it has passed.
const STUCK_AFTER: Duration = Duration::from_secs(660);
/// How long nothing more may be written after that: every watch ends and goes on once, at least.
const QUIET: Duration = Duration::from_secs(900);
/// Requests in a minute, at most, whatever goes wrong: a dozen deeds with up to ten requests each, and the recovery from
/// a fault or two. Of the first 1,000 seeds the busiest came to 144; one that wrote without end had come to 586.
const REQUESTS_PER_MINUTE_MAX: usize = 200;
/// Requests in a minute when nothing happens: a name that is taken is tried again every 45 s, with two requests; and
/// three watches end every few minutes.
const QUIET_REQUESTS_PER_MINUTE_MAX: usize = 24;

/// Before a restore: until every watch is open, whatever it had to back off; and then as long until each has had a bookmark.
const CALM: Duration = Duration::from_secs(65);
/// Until every watch has asked whether the server has come as far as it had, and was told no, which takes it 3 s.
const CALM_AFTER_RESTORE: Duration = Duration::from_secs(6);
/// Holds back a deletion until somebody takes it off.
const FINALIZER: &str = "example.com/hold";

const NAMES: [&str; 3] = ["a", "b", "c"];
const NAMESPACES: [&str; 2] = ["default", "shop"];
const TOKEN: &str = "the operator's";

/// What a history came to.
pub struct Outcome {
    pub problems: Vec<String>,
    pub transcript: Vec<String>,
    pub busiest_minute: usize,
}

/// Runs the history of a seed, in a runtime of its own.
pub fn run(seed: u64) -> Outcome {
    // Uids, names of Pods, pauses: everything random in this thread, on both sides.
    fastrand::seed(seed);
    runtime().block_on(History::run(Rng::with_seed(seed)))
}

/// One thread, and a clock that jumps to the next timer when there is nothing else to do.
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
    post(network, "/api/v1/namespaces", &json!({"metadata": {"name": "shop"}})).await;
}

pub async fn post(network: &Network, path: &str, object: &Value) -> u16 {
    network.ask(network.server.token(), Method::POST, path, "application/json", object).await.0
}

struct History {
    random: Rng,
    network: Arc<Network>,
    lists: Lists,
    workers: usize,
    /// Whether the CRD lets specs in that do not decode.
    is_loose: bool,
    /// The version at the last backup.
    backup: u64,
}

/// Runs an operator, and a new one after each that is killed. Runs until dropped.
pub async fn keep(
    network: Arc<Network>,
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
        let (events, write_events) = mywebserver::events(client, "simulated".to_owned());
        let controller = mywebserver::controller(&cluster, &[], events).workers(workers);
        let asked = Arc::new(Mutex::new(None));
        let stop = {
            let (network, asked) = (Arc::clone(&network), Arc::clone(&asked));
            async move {
                network.stopped.notified().await;
                *lock(&asked) = Some(Instant::now());
            }
        };
        *lock(&current) = Some(cluster);
        network.say("operator", "starts");
        tokio::select! {
            biased;
            () = network.killed.notified() => {}
            () = controller.run(stop) => {}
            () = write_events => {}
        }
        *lock(&current) = None;
        network.say("operator", "is dead");
        if let Some(asked) = *lock(&asked)
            && asked.elapsed() > STOPPED_WITHIN
        {
            network.violation(format!("{:?} until it stopped", asked.elapsed()));
        }
        sleep(AWAY_MAX.mul_f64(random.f64())).await;
    }
}

#[derive(Clone, Copy, Debug)]
enum Deed {
    Create,
    Change,
    Spoil,
    Delete,
    EditChild,
    DisownChild,
    UnlabelChild,
    DeleteChild,
    Squat,
    Evict,
    EmptyNamespace,
    Hold,
    LetGo,
    Scale,
}

/// And how often each is drawn, beside the others.
const DEEDS: [(Deed, usize); 14] = [
    (Deed::Create, 4),
    (Deed::Change, 4),
    (Deed::Spoil, 1),
    (Deed::Delete, 2),
    (Deed::EditChild, 3),
    (Deed::DisownChild, 1),
    (Deed::UnlabelChild, 1),
    (Deed::DeleteChild, 2),
    (Deed::Squat, 1),
    (Deed::Evict, 1),
    (Deed::EmptyNamespace, 1),
    (Deed::Hold, 2),
    (Deed::LetGo, 2),
    (Deed::Scale, 1),
];

#[derive(Clone, Copy, Debug)]
enum Trouble {
    Server,
    Writes,
    Meddle,
    LeaveAlone,
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

/// And how often each is drawn, beside the others.
const TROUBLES: [(Trouble, usize); 17] = [
    (Trouble::Server, 6),
    (Trouble::Writes, 3),
    (Trouble::EndFaults, 3),
    (Trouble::Restart, 1),
    (Trouble::Cut, 1),
    (Trouble::Meddle, 2),
    (Trouble::LeaveAlone, 1),
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

impl History {
    async fn run(mut random: Rng) -> Outcome {
        let pod_start = Duration::from_secs(random.u64(..20));
        // A tenth of the real ones, which would be a third of the work.
        let heartbeat = Duration::from_secs(100);
        let options = Options { pod_start, heartbeat, ..Options::default() };
        let history = History {
            network: Network::new(server(&options), random.fork()),
            lists: if random.bool() { Lists::Paged } else { Lists::Streaming },
            workers: random.usize(1..4),
            is_loose: random.bool(),
            backup: 0,
            random,
        };
        history.live().await
    }

    async fn live(mut self) -> Outcome {
        let began = Instant::now();
        self.install().await;
        self.back_up().await;
        let current = Arc::default();
        let (lists, workers) = (self.lists, self.workers);
        let keep = keep(Arc::clone(&self.network), lists, workers, self.random.fork(), Arc::clone(&current));
        let mut tasks = JoinSet::new();
        tasks.spawn(keep);
        for _ in 0..self.random.u32(STEPS) {
            sleep(Duration::from_millis(self.pause())).await;
            if self.random.u32(..3) > 0 { self.deed().await } else { self.trouble().await }
        }
        let network = Arc::clone(&self.network);
        self.calm("the faults stop");
        self.let_all_go().await;
        sleep(AWAY_MAX).await;
        let busiest_minute = network.busiest_minute(began);
        sleep(SETTLED_WITHIN).await;
        if network.has_fought() {
            sleep(TRUCE).await;
        }
        let cluster: Cluster = lock(&current).clone().expect("an operator that is back");
        let mut problems = expect::problems(&network, &cluster, Stuck::MayBeUnknown).await;
        if busiest_minute > REQUESTS_PER_MINUTE_MAX {
            problems.push(format!("{busiest_minute} requests in a minute"));
        }

        sleep(STUCK_AFTER).await;
        let (writes, quiet_since) = (network.writes(), Instant::now());
        network.say("history", "quiet begins");
        sleep(QUIET).await;
        let written = network.writes() - writes;
        if written > 0 {
            problems.push(format!("{written} writes where nothing happened"));
        }
        problems.extend(expect::problems(&network, &cluster, Stuck::IsKnown).await);
        let busiest_quiet_minute = network.busiest_minute(quiet_since);
        if busiest_quiet_minute > QUIET_REQUESTS_PER_MINUTE_MAX {
            problems.push(format!("{busiest_quiet_minute} requests in a minute where nothing happened"));
        }
        Outcome { problems, transcript: network.transcript(), busiest_minute }
    }

    /// Nothing goes wrong from now on.
    fn calm(&self, why: &str) {
        self.network.say("history", why);
        self.network.server.end_faults();
        self.network.plan_kill(None);
        self.network.set_weather(Weather::Fair);
        self.network.set_meddler(Meddler::Nobody);
        self.network.set_lags(false);
        // What admission has changed is written again by the next operator.
        if self.network.has_admission_changed() {
            self.network
                .say("history", "the operator is asked to stop, because admission has changed its writes");
            self.network.stopped.notify_waiters();
        }
    }

    /// Gives the operator something to do that nobody answers, so that it has that in hand.
    async fn keep_busy(&mut self) {
        self.network.server.fault(Fault::Silence.on("PATCH", "/mws-").times(8));
        let spec = json!({"port": self.random.u16(90..)});
        for name in NAMES {
            let web = format!("/apis/k8sobjects.gsa.com/v2/namespaces/default/mywebservers/{name}");
            self.patch(&web, &json!({"spec": spec})).await;
        }
        sleep(Duration::from_secs(1)).await;
    }

    /// Takes off what holds back deletions.
    async fn let_all_go(&self) {
        for collection in [expect::WEBS, expect::DEPLOYMENTS, expect::SERVICES] {
            let (root, plural) = collection.rsplit_once('/').unwrap();
            for object in expect::list(&self.network, collection).await {
                let text = |field: &str| object["metadata"][field].as_str().unwrap();
                self.let_go(&format!("{root}/namespaces/{}/{plural}/{}", text("namespace"), text("name")))
                    .await;
            }
        }
    }

    /// Puts our finalizer on.
    async fn hold(&self, path: &str) {
        let Some(object) = self.network.get(path).await else { return };
        let mut finalizers = object["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
        finalizers.push(FINALIZER.into());
        self.patch(path, &json!({"metadata": {"finalizers": finalizers}})).await;
    }

    /// Takes off our finalizer, and nobody else's.
    async fn let_go(&self, path: &str) {
        let Some(object) = self.network.get(path).await else { return };
        let Some(finalizers) = object["metadata"]["finalizers"].as_array() else { return };
        let left: Vec<_> = finalizers.iter().filter(|finalizer| **finalizer != FINALIZER).collect();
        self.patch(path, &json!({"metadata": {"finalizers": left}})).await;
    }

    async fn back_up(&mut self) {
        self.network.server.fault(Fault::Backup);
        self.backup = self.version().await;
    }

    /// A server that has overtaken what the operator had heard, before that asks, uses the same versions for something
    /// else, and nothing can tell: a limit that has its name, and that ends with the operator.
    async fn restore(&self) {
        self.calm("calm, for a restore");
        self.network.cut();
        sleep(CALM).await;
        let heard = self.version().await;
        sleep(CALM).await;
        self.network.say("trouble", &format!("back to {}, after {heard} was heard", self.backup));
        self.network.cut();
        self.network.server.fault(Fault::Restore);
        sleep(CALM_AFTER_RESTORE).await;
        if self.version().await >= heard {
            self.network.say("trouble", "overtaken");
            self.network.killed.notify_one();
        }
    }

    /// The latest version of anything.
    async fn version(&self) -> u64 {
        let list = self.network.get("/api/v1/namespaces").await.unwrap();
        list["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
    }

    /// Many short pauses, and some long ones.
    fn pause(&mut self) -> u64 {
        let longest = self.random.choice([10, 200, 2_000, PAUSE_MS]).unwrap();
        self.random.u64(..longest)
    }

    fn one_of<T: Copy>(&mut self, weighted: &[(T, usize)]) -> T {
        let each = weighted.iter().flat_map(|(one, weight)| std::iter::repeat_n(*one, *weight));
        self.random.choice(each.collect::<Vec<_>>()).unwrap()
    }

    async fn install(&self) {
        let mut crd = crate::crd();
        if self.is_loose {
            for version in crd["spec"]["versions"].as_array_mut().unwrap() {
                version["schema"]["openAPIV3Schema"]["properties"]["spec"] =
                    json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
            }
        }
        install(&self.network, &crd).await;
    }

    async fn post(&self, path: &str, object: &Value) -> u16 {
        self.user(Method::POST, path, "application/json", object).await
    }

    async fn patch(&self, path: &str, patch: &Value) -> u16 {
        self.user(Method::PATCH, path, "application/merge-patch+json", patch).await
    }

    async fn delete(&self, path: &str, propagation: &str) -> u16 {
        let options = json!({"propagationPolicy": propagation});
        self.user(Method::DELETE, path, "application/json", &options).await
    }

    /// As with kubectl in a script: what went wrong is done again, or given up.
    async fn user(&self, method: Method, path: &str, content_type: &str, body: &Value) -> u16 {
        let network = &self.network;
        let mut retries = fastrand::u32(..=USER_RETRIES_MAX);
        loop {
            let ask = network.ask(network.server.token(), method.clone(), path, content_type, body);
            let status = timeout(USER_WAITS, ask).await.map_or(0, |(status, _)| status);
            network.say("user", &format!("{method} {path} {body} -> {status}"));
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
        let mut spec = json!({"image": random.choice(["nginx", "nginx", "httpd", "httpd", "caddy", "caddy", "does-not-exist"]).unwrap()});
        if random.bool() {
            spec["port"] = random.u16(80..84).into();
        }
        if random.bool() {
            spec["replicas"] = random.u16(..4).into();
        }
        spec
    }

    async fn deed(&mut self) {
        let deed = self.one_of(&DEEDS);
        let at = At::draw(&mut self.random);
        match deed {
            Deed::Create => {
                let version = at.version;
                let web = json!({"apiVersion": format!("k8sobjects.gsa.com/{version}"), "kind": "MyWebserver",
                    "metadata": {"name": at.name}, "spec": self.spec()});
                self.post(&at.webs, &web).await;
            }
            Deed::Change => {
                let spec = self.spec();
                self.patch(&at.web, &json!({"spec": spec})).await;
            }
            Deed::Spoil => {
                self.patch(&at.web, &json!({"spec": {"port": "eighty"}})).await;
            }
            Deed::Delete => {
                let policies = ["Background", "Background", "Foreground", "Orphan"];
                let policy = self.random.choice(policies).unwrap();
                self.delete(&at.web, policy).await;
            }
            Deed::EditChild => {
                let edit = self.random.choice(at.edits()).unwrap();
                self.patch(&at.child, &edit).await;
            }
            Deed::DisownChild => {
                self.patch(&at.child, &json!({"metadata": {"ownerReferences": null}})).await;
            }
            Deed::UnlabelChild => {
                let label = json!({"app.kubernetes.io/managed-by": null});
                self.patch(&at.child, &json!({"metadata": {"labels": label}})).await;
            }
            Deed::DeleteChild => {
                let policy = self.random.choice(["Background", "Foreground", "Orphan"]).unwrap();
                self.delete(&at.child, policy).await;
            }
            Deed::Squat => {
                self.post(&at.children, &at.squatter()).await;
            }
            // Whatever is not ours goes.
            Deed::Evict => {
                if let Some(object) = self.network.get(&at.child).await
                    && expect::controller(&object).is_none()
                {
                    self.delete(&at.child, "Background").await;
                }
            }
            Deed::Hold => {
                let path = if self.random.bool() { &at.web } else { &at.child };
                self.hold(path).await;
            }
            Deed::LetGo => {
                self.let_go(&at.web).await;
                self.let_go(&at.child).await;
            }
            Deed::Scale => {
                let replicas = self.random.u16(..4);
                self.patch(&format!("{}/scale", at.web), &json!({"spec": {"replicas": replicas}})).await;
            }
            Deed::EmptyNamespace => {
                if self.delete("/api/v1/namespaces/shop", "Background").await >= 300 {
                    self.post("/api/v1/namespaces", &json!({"metadata": {"name": "shop"}})).await;
                }
            }
        }
    }

    async fn trouble(&mut self) {
        let trouble = self.one_of(&TROUBLES);
        let network = Arc::clone(&self.network);
        network.say("trouble", &format!("{trouble:?}"));
        match trouble {
            Trouble::Server => self.fault_of_the_server(),
            Trouble::Writes => self.fault_of_writes(),
            Trouble::Meddle => {
                let meddlers = [Meddler::Admission, Meddler::Controller];
                network.set_meddler(self.random.choice(meddlers).unwrap());
            }
            Trouble::LeaveAlone => network.set_meddler(Meddler::Nobody),
            Trouble::Lag => network.set_lags(true),
            Trouble::CatchUp => network.set_lags(false),
            Trouble::Clock => {
                let by = Duration::from_secs(self.random.choice([2, 90, 86_400]).unwrap());
                let clocks = [ClockIs::Right, ClockIs::Slow(by), ClockIs::Fast(by)];
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
            Trouble::Restore => self.restore().await,
        }
    }

    fn fault_of_the_server(&mut self) {
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
        self.network.say("trouble", &format!("{fault:?}"));
        self.network.server.fault(fault);
    }

    /// A number of writes, everybody's, goes wrong.
    fn fault_of_writes(&mut self) {
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
        self.network.say("trouble", &format!("{times} times at {method}: {fault:?}"));
        self.network.server.fault(fault.on(method, "/namespaces/").times(times));
    }
}

/// Whom a deed is about.
struct At {
    name: &'static str,
    version: &'static str,
    /// Whether the child is a Deployment, or else a Service.
    is_deployment: bool,
    webs: String,
    web: String,
    children: String,
    child: String,
}

impl At {
    fn draw(random: &mut Rng) -> At {
        let name = random.choice(NAMES).unwrap();
        let namespace = if random.u32(..4) > 0 { NAMESPACES[0] } else { NAMESPACES[1] };
        let version = random.choice(["v1", "v2", "v2"]).unwrap();
        let webs = format!("/apis/k8sobjects.gsa.com/{version}/namespaces/{namespace}/mywebservers");
        let web = format!("{webs}/{name}");
        let is_deployment = random.bool();
        let children = match is_deployment {
            true => format!("/apis/apps/v1/namespaces/{namespace}/deployments"),
            false => format!("/api/v1/namespaces/{namespace}/services"),
        };
        let child = format!("{children}/mws-{name}");
        At { name, version, is_deployment, webs, web, children, child }
    }

    /// What people do to a child that is not theirs to change.
    fn edits(&self) -> [Value; 3] {
        let label = json!({"metadata": {"labels": {"app.kubernetes.io/component": "edited"}}});
        let containers = json!([{"name": "web", "image": "other"}]);
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

    /// An object that has the child's name, and is somebody else's.
    fn squatter(&self) -> Value {
        let labels = json!({"app": "somebody-elses"});
        let pod =
            json!({"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
        let spec = match self.is_deployment {
            true => json!({"selector": {"matchLabels": labels}, "template": pod}),
            false => json!({"ports": [{"port": 1}]}),
        };
        json!({"metadata": {"name": format!("mws-{}", self.name), "labels": labels}, "spec": spec})
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap()
}
