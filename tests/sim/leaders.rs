//! Simulates two operators: each is killed, asked to stop, or cut off, at random, and they are started with or without shards. Only the
//! holder of the Leases writes, and only before its deadline; and in the end every object is as desired.

use std::{
    collections::HashMap,
    io,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, AtomicUsize, Ordering},
    },
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use fastrand::Rng;
use http::{Method, Request};
use http_body_util::{BodyExt, Full};
use listwatch::{
    advanced::{InProcess, InProcessAnswer},
    client::{Client, Config},
    leader::LeaderElection,
    runtime::Runtime,
    shard::Shard,
};
use listwatch_apiserver::{Fault, Options};
use listwatch_operators::mywebserver;
use serde_json::{Value, json};
use tokio::{
    sync::{Notify, mpsc, watch},
    task::JoinSet,
    time::{Instant, sleep},
};

use crate::{
    network::{Network, StreamBody},
    scenario::{self, NAMES, Operator, TOKEN},
    seeds,
};

const STEPS: std::ops::Range<u32> = 20..60;
const PAUSE_MS: u64 = 10_000;
/// Longest time until a process that has ended is started again.
const AWAY_MAX: Duration = Duration::from_secs(20);
/// How soon after the last fault all objects must be as desired: a request without an answer takes half a minute, the longest backoff
/// a minute, and a Lease 15 s.
const SETTLED_WITHIN: Duration = Duration::from_secs(300);
/// How long nothing may be written after that.
const QUIET: Duration = Duration::from_secs(120);
/// One in so many of the seeds. Each has a thousand renewals.
const SEEDS_STEP: usize = 10;

const WEBS: &str = "/apis/k8sobjects.gsa.com/v2/namespaces/default/mywebservers";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";

/// What the server has seen of all processes.
#[derive(Default)]
struct Seen {
    /// By name, the process that wrote a Lease last, and how many shards it has; `None`: it was given back.
    holders: HashMap<String, Option<(usize, u32)>>,
    /// When a process sent its last write of a Lease.
    renewed: HashMap<(String, usize), Instant>,
    /// How often another process has taken a Lease, or all of another number of shards the common one.
    changes: usize,
    writes: usize,
    problems: Vec<String>,
}

/// The connection of one process.
struct Link {
    network: Arc<Network>,
    seen: Arc<Mutex<Seen>>,
    process: usize,
    shard: Shard,
    is_open: watch::Receiver<bool>,
}

/// The Lease without shards.
const COMMON: &str = "simulated.example.com";

impl Link {
    /// The Lease of the shard.
    fn own(&self) -> String {
        match self.shard.is_whole() {
            true => COMMON.to_owned(),
            false => format!("{COMMON}-{}-of-{}", self.shard.index(), self.shard.count()),
        }
    }

    /// Waits until the connection is open. A process that is dropped meanwhile has sent nothing.
    async fn carry(&self) {
        sleep(Duration::from_micros(fastrand::u64(200..8_000))).await;
        let _ = self.is_open.clone().wait_for(|is_open| *is_open).await;
    }

    fn check(&self, sent: Instant, what: &str) {
        let seen = &mut *self.seen.lock().unwrap();
        seen.writes += 1;
        let is_late = |lease: &str| {
            let renewed = seen.renewed.get(&(lease.to_owned(), self.process));
            renewed.is_none_or(|renewed| sent - *renewed >= LeaderElection::default().renew_deadline)
        };
        let holder = |lease: &str| seen.holders.get(lease).copied().flatten();
        let own = self.own();
        let problem = if holder(&own).is_none_or(|(process, _)| process != self.process) {
            Some("without the Lease of its shard")
        } else if holder(COMMON).is_none_or(|(_, count)| count != self.shard.count()) {
            Some("beside another number of shards")
        } else {
            (is_late(&own) || is_late(COMMON)).then_some("after its deadline")
        };
        seen.problems
            .extend(problem.map(|problem| format!("process {} wrote {problem}: {what}", self.process)));
    }
}

impl InProcess for Link {
    fn answer(
        &self,
        request: Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = io::Result<InProcessAnswer>> + Send + '_>> {
        Box::pin(async move {
            let sent = Instant::now();
            self.carry().await;
            let what = format!("{} {}", request.method(), request.uri());
            let is_write = request.method() != Method::GET && !what.contains("/events");
            let is_lease = what.contains("/leases");
            if is_write && !is_lease {
                self.check(sent, &what);
            }
            let body = String::from_utf8_lossy(request.body()).into_owned();
            let answer = self.network.server.answer(request.map(Full::new)).await;
            let answer = answer.map_err(|_| io::Error::from(io::ErrorKind::ConnectionReset))?;
            if is_write && is_lease && answer.status().is_success() {
                let seen = &mut *self.seen.lock().unwrap();
                let body: Value = serde_json::from_str(&body).unwrap();
                let name = match body["metadata"]["name"].as_str() {
                    Some(created) => created,
                    None => what.split(['/', '?']).find(|part| part.starts_with(COMMON)).unwrap(),
                };
                let is_given_back = body["spec"]["holderIdentity"] == "";
                let holder = (!is_given_back).then_some((self.process, self.shard.count()));
                let before = seen.holders.insert(name.to_owned(), holder).flatten();
                let is_same = |before: (usize, u32)| match name == COMMON {
                    true => before.1 == self.shard.count() && (before.1 > 1 || before.0 == self.process),
                    false => before.0 == self.process,
                };
                seen.changes += usize::from(!is_given_back && !before.is_some_and(is_same));
                seen.renewed.insert((name.to_owned(), self.process), sent);
            }
            self.carry().await;
            let (parts, mut body) = answer.into_parts();
            let (sender, receiver) = mpsc::channel(16);
            let mut is_open = self.is_open.clone();
            tokio::spawn(async move {
                while let Some(frame) =
                    tokio::select! { frame = body.frame() => frame, () = sender.closed() => None }
                {
                    let frame = frame.map(|frame| frame.into_data().unwrap_or_default());
                    let _ = is_open.wait_for(|is_open| *is_open).await;
                    if sender.send(frame.map_err(|_| io::ErrorKind::ConnectionReset.into())).await.is_err() {
                        return;
                    }
                }
            });
            Ok(http::Response::from_parts(parts, StreamBody(receiver).boxed_unsync()))
        })
    }

    fn now(&self) -> SystemTime {
        self.network.server.now()
    }
}

/// One of the two operators, a process after the other.
struct Instance {
    is_open: watch::Sender<bool>,
    killed: Arc<Notify>,
    stopped: Arc<Notify>,
}

impl Instance {
    fn start(
        network: &Arc<Network>,
        seen: &Arc<Mutex<Seen>>,
        processes: &Arc<AtomicUsize>,
        index: u32,
        shards: &Arc<AtomicU32>,
        tasks: &mut JoinSet<()>,
    ) -> Instance {
        let (is_open, opened) = watch::channel(true);
        let instance = Instance { is_open, killed: Arc::default(), stopped: Arc::default() };
        let (killed, stopped) = (Arc::clone(&instance.killed), Arc::clone(&instance.stopped));
        let (network, seen, processes) = (Arc::clone(network), Arc::clone(seen), Arc::clone(processes));
        let shards = Arc::clone(shards);
        tasks.spawn(async move {
            loop {
                let process = processes.fetch_add(1, Ordering::Relaxed);
                let (network, seen, is_open) = (Arc::clone(&network), Arc::clone(&seen), opened.clone());
                let count = shards.load(Ordering::Relaxed);
                let shard: Shard = format!("{}/{count}", index % count).parse().unwrap();
                let link = Arc::new(Link { network, seen, process, shard, is_open });
                let client = Client::new(Config::in_process(link, TOKEN).unwrap()).unwrap();
                let runtime =
                    Runtime::new(client).leader_election(LeaderElection::default()).unwrap().shard(shard);
                let runtime = runtime.controller("example.com/simulated", mywebserver::controller);
                tokio::select! {
                    biased;
                    () = killed.notified() => {}
                    ended = runtime.run_until(stopped.notified()) => ended.unwrap(),
                }
                sleep(AWAY_MAX.mul_f64(fastrand::f64())).await;
            }
        });
        instance
    }
}

async fn user(network: &Network, method: Method, path: &str, body: &Value) {
    let content_type = match method {
        Method::PATCH => "application/merge-patch+json",
        _ => "application/json",
    };
    network.send(network.server.token(), method, path, content_type, body).await;
}

async fn act(network: &Network, random: &mut Rng) {
    let name = random.choice(NAMES).unwrap();
    let (web, deployment) = (format!("{WEBS}/{name}"), format!("{DEPLOYMENTS}/mws-{name}"));
    let spec = json!({"image": random.choice(["nginx", "httpd"]).unwrap(), "replicas": random.u8(..4)});
    match random.u8(..8) {
        0..3 => {
            let object = json!({"apiVersion": "k8sobjects.gsa.com/v2", "kind": "MyWebserver",
                "metadata": {"name": name}, "spec": spec});
            user(network, Method::POST, WEBS, &object).await;
        }
        3..5 => user(network, Method::PATCH, &web, &json!({ "spec": spec })).await,
        5 => user(network, Method::PATCH, &deployment, &json!({"spec": {"replicas": 7}})).await,
        6 => user(network, Method::DELETE, &deployment, &json!({})).await,
        _ => user(network, Method::DELETE, &web, &json!({})).await,
    }
}

fn trouble(network: &Network, instance: &Instance, random: &mut Rng) {
    let server = &network.server;
    match random.u8(..9) {
        draw @ 0..4 => {
            instance.is_open.send_replace(draw < 2);
        }
        4 => instance.killed.notify_one(),
        5 => instance.stopped.notify_one(),
        6 => server.fault(Fault::LoseAnswer.on("PATCH", "/leases/").times(random.u64(1..8))),
        7 => server.fault(Fault::Delay(Duration::from_secs(random.u64(1..12))).on("PATCH", "/").times(4)),
        _ => server.fault(random.choice([Fault::CutWatches, Fault::ExpireHistory, Fault::Restart]).unwrap()),
    }
}

/// The objects that are not as desired.
async fn not_as_desired(network: &Network) -> Vec<String> {
    let mut wrong = Vec::new();
    for name in NAMES {
        let web = network.get(&format!("{WEBS}/{name}")).await;
        let deployment = network.get(&format!("{DEPLOYMENTS}/mws-{name}")).await;
        let is_right = match (&web, &deployment) {
            (None, None) => true,
            (Some(web), Some(deployment)) => {
                let spec = &deployment["spec"];
                spec["template"]["spec"]["containers"][0]["image"] == web["spec"]["image"]
                    && spec["replicas"] == web["spec"]["replicas"]
                    && web["status"]["observedGeneration"] == web["metadata"]["generation"]
            }
            (None, Some(_)) | (Some(_), None) => false,
        };
        if !is_right {
            wrong.push(format!("{name}: {web:?} has {deployment:?}"));
        }
    }
    wrong
}

/// Returns how often another process has taken the Lease, how many writes there were, and the problems.
async fn run(mut random: Rng) -> (usize, usize, Vec<String>) {
    let options = Options { heartbeat: Duration::from_secs(100), ..Options::default() };
    let network = Network::new(scenario::server(&options), random.fork());
    scenario::install(&network, &Operator::Mywebserver.definition()).await;
    let (seen, processes, mut tasks) = (Arc::default(), Arc::default(), JoinSet::new());
    let shards = Arc::new(AtomicU32::new(random.u32(1..3)));
    let mut start = |index| Instance::start(&network, &seen, &processes, index, &shards, &mut tasks);
    let instances = [start(0), start(1)];
    for _ in 0..random.u32(STEPS) {
        sleep(Duration::from_millis(random.u64(..PAUSE_MS))).await;
        match random.u8(..30) {
            // For those that are started from now on.
            0 => shards.store(random.u32(1..3), Ordering::Relaxed),
            1..11 => trouble(&network, random.choice(&instances).unwrap(), &mut random),
            _ => act(&network, &mut random).await,
        }
    }
    network.server.end_faults();
    for instance in &instances {
        instance.is_open.send_replace(true);
        // Both have the same number of shards then.
        instance.killed.notify_one();
    }
    sleep(SETTLED_WITHIN).await;
    let mut problems = not_as_desired(&network).await;
    let writes = seen.lock().unwrap().writes;
    sleep(QUIET).await;
    tasks.shutdown().await;
    let seen = &mut *seen.lock().unwrap();
    if seen.writes > writes {
        problems.push(format!("{} writes without a change", seen.writes - writes));
    }
    problems.append(&mut seen.problems);
    (seen.changes, seen.writes, problems)
}

#[test]
fn after_random_faults_of_two_operators_one_has_written_at_a_time() {
    let (mut changes, mut writes, mut count) = (0, 0, 0);
    for seed in seeds().step_by(SEEDS_STEP) {
        // Seeds everything random in this thread, as for the other scenarios.
        fastrand::seed(seed);
        let (changed, written, problems) = scenario::runtime().block_on(run(Rng::with_seed(seed)));
        assert!(problems.is_empty(), "LISTWATCH_SEEDS={seed}..{}: {problems:#?}", seed + 1);
        (changes, writes, count) = (changes + changed, writes + written, count + 1);
    }
    let is_busy = changes > 2 * count && writes > 10 * count;
    assert!(is_busy || count < 5, "{count} seeds: {changes} leaders, {writes} writes");
}
