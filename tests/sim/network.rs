//! Simulates the network between operator and API server: latency, broken connections, proxies and missing answers.
//!
//! ```text
//!   operator ─ Link ─► Network ─► ApiServer
//!                        │ connection refused; lost before, or after the server did it; late; 503, 429, HTML;
//!                        │ a stream that goes silent; and the operator is killed before or after its n-th write
//!                        └─► transcript
//! ```
//!
//! A request continues after its sender has given it up, and may still take effect, as on any network.

use std::{
    convert::Infallible,
    fmt::Write,
    io,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use fastrand::Rng;
use http::{Method, Request, Response, Uri, header};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Frame};
use listwatch::advanced::{InProcess, InProcessAnswer};
use listwatch_apiserver::{ApiServer, Fault};
use serde_json::{Value, json};
use tokio::{
    sync::{Notify, broadcast, mpsc, oneshot},
    task::JoinSet,
    time::{Instant, sleep},
};

/// Most chunks of a stream that are under way.
const CHUNKS_MAX: usize = 16;
/// How soon a dead connection is noticed: by HTTP/2 keep-alive, after 30 s and 15 s.
const DEAD_AFTER: Duration = Duration::from_secs(45);
/// Longer than the request timeout of a client.
const VERY_LATE: Duration = Duration::from_secs(40);
/// Later than any answer without a fault.
const LATE: Duration = Duration::from_secs(1);
/// How far an API server may be behind the other servers: it answers from a watch cache that etcd feeds.
const LAG_MAX_MS: u64 = 20_000;
/// The replicas that a [`Meddler`] sets. No MyWebserver asks for so many.
const MEDDLER_REPLICAS: u8 = 7;

/// One API server, and the connections to it.
pub struct Network {
    pub server: ApiServer,
    began: Instant,
    state: Mutex<State>,
    /// A message breaks every connection.
    cuts: broadcast::Sender<()>,
    /// Notified to kill the operator.
    pub killed: Notify,
    /// Notified to stop the operator gracefully.
    pub stopped: Notify,
    tasks: Mutex<JoinSet<()>>,
}

struct State {
    random: Rng,
    weather: Weather,
    kill: Option<Kill>,
    meddler: Meddler,
    /// Admission has changed a write since the last call of [`Network::has_admission_changed`].
    has_admission_changed: bool,
    /// A controller has reverted a write of the operator.
    has_reverted: bool,
    /// See [`Network::may_have_orphans`].
    may_have_orphans: bool,
    /// Lists and watches come from an API server that is behind the server of the writes.
    lags: bool,
    clock: Clock,
    transcript: Vec<String>,
    requests: Vec<Instant>,
    writes: usize,
    violations: Vec<String>,
}

/// How bad the network is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weather {
    /// A few milliseconds each way, and nothing else.
    Fair,
    /// One request in this many fails in some way.
    Foul(u32),
    /// All connections are refused.
    Down,
}

/// A writer that wants other replicas of Deployments than the operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meddler {
    None,
    /// A mutating webhook: the answer already has its replicas.
    Admission,
    /// Another controller, which reverts each change a moment later.
    Controller,
}

/// The operator's clock, compared with the server's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    Exact,
    Slow(Duration),
    Fast(Duration),
}

/// Kills the operator around its n-th write from now.
#[derive(Clone, Copy, Debug)]
pub struct Kill {
    pub writes: u32,
    pub when: When,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    BeforeTheWrite,
    AfterTheWrite,
}

/// What happens to one request.
#[derive(Clone, Debug, PartialEq)]
enum Mishap {
    None,
    Refused,
    LostBefore,
    LostAfter,
    CutAnswer,
    Swallowed,
    /// The server handles the request when its client no longer waits.
    VeryLate,
    Answered(u16, Option<String>, String),
    /// A stream becomes silent, until its connection is found dead.
    Silent,
    /// A list with `NotOlderThan` has exactly the requested version.
    Stale,
}

/// The connection of one operator.
pub struct Link {
    network: Arc<Network>,
    is_alive: Arc<AtomicBool>,
}

impl Network {
    pub fn new(server: ApiServer, random: Rng) -> Arc<Network> {
        Arc::new(Network {
            server,
            began: Instant::now(),
            state: Mutex::new(State {
                random,
                weather: Weather::Fair,
                kill: None,
                meddler: Meddler::None,
                has_admission_changed: false,
                has_reverted: false,
                may_have_orphans: false,
                lags: false,
                clock: Clock::Exact,
                transcript: Vec::new(),
                requests: Vec::new(),
                writes: 0,
                violations: Vec::new(),
            }),
            cuts: broadcast::Sender::new(1),
            killed: Notify::new(),
            stopped: Notify::new(),
            tasks: Mutex::default(),
        })
    }

    /// A connection for an operator. It answers no requests after `is_alive` has become false.
    pub fn link(self: &Arc<Network>, is_alive: &Arc<AtomicBool>) -> Link {
        Link { network: Arc::clone(self), is_alive: Arc::clone(is_alive) }
    }

    pub fn set_weather(&self, weather: Weather) {
        self.state().weather = weather;
        self.record("network", &format!("{weather:?}"));
    }

    pub fn plan_kill(&self, kill: Option<Kill>) {
        self.state().kill = kill;
        self.record("network", &format!("{kill:?}"));
    }

    pub fn set_meddler(&self, meddler: Meddler) {
        self.state().meddler = meddler;
        self.record("network", &format!("meddler: {meddler:?}"));
    }

    /// Whether admission has changed a write since the last call.
    pub fn has_admission_changed(&self) -> bool {
        std::mem::take(&mut self.state().has_admission_changed)
    }

    /// Whether a controller has reverted a write of the operator.
    pub fn has_reverted(&self) -> bool {
        self.state().has_reverted
    }

    /// Whether an object may have been created after the end of its owner: by a request that came late, or on a server that was
    /// restored from a backup without the owner.
    pub fn may_have_orphans(&self) -> bool {
        self.state().may_have_orphans
    }

    /// Restores the last backup of the server.
    pub fn restore(&self) {
        self.state().may_have_orphans = true;
        self.server.fault(Fault::Restore);
    }

    pub fn set_lags(&self, lags: bool) {
        self.state().lags = lags;
        self.record("network", &format!("lags: {lags}"));
    }

    pub fn set_clock(&self, clock: Clock) {
        self.state().clock = clock;
        self.record("network", &format!("the operator's clock is {clock:?}"));
    }

    /// Breaks every connection.
    pub fn cut(&self) {
        let _ = self.cuts.send(());
    }

    pub fn record(&self, actor: &str, text: &str) {
        let at = self.began.elapsed();
        self.state().transcript.push(format!("{:9.3} {actor:>8} {text}", at.as_secs_f64()));
    }

    pub fn transcript(&self) -> Vec<String> {
        self.state().transcript.clone()
    }

    /// The number of the operator's writes that succeeded.
    pub fn writes(&self) -> usize {
        self.state().writes
    }

    pub fn violation(&self, problem: String) {
        self.record("checker", &problem);
        self.state().violations.push(problem);
    }

    pub fn violations(&self) -> Vec<String> {
        self.state().violations.clone()
    }

    /// The largest number of the operator's requests in any minute since that time.
    pub fn busiest_minute(&self, since: Instant) -> usize {
        let state = self.state();
        let requests: Vec<_> = state.requests.iter().filter(|at| **at >= since).collect();
        let (mut first, mut most) = (0, 0);
        for (last, at) in requests.iter().enumerate() {
            while **at - *requests[first] > Duration::from_secs(60) {
                first += 1;
            }
            most = most.max(last - first + 1);
        }
        most
    }

    /// Sends a request of any client to the server, without the simulated network.
    pub async fn send(
        &self,
        token: &str,
        method: Method,
        path: &str,
        content_type: &str,
        body: &Value,
    ) -> (u16, Value) {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::AUTHORIZATION, format!("Bearer {token}"))
            .header(header::CONTENT_TYPE, content_type)
            .body(Full::new(Bytes::from(body)))
            .unwrap();
        // If the server is restarted meanwhile, this connection also breaks.
        let Ok(answer) = self.server.answer(request).await else { return (0, Value::Null) };
        let status = answer.status().as_u16();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        (status, serde_json::from_slice(&body).unwrap_or_default())
    }

    pub async fn get(&self, path: &str) -> Option<Value> {
        let (status, object) = self.send(self.server.token(), Method::GET, path, "", &Value::Null).await;
        (status == 200).then_some(object)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Draws what happens to the next request, and its latency to the server and back.
    fn draw(&self, is_stream: bool) -> (Mishap, Duration, Duration) {
        let state = &mut *self.state();
        let random = &mut state.random;
        let mut way = || Duration::from_micros(random.u64(200..8_000));
        let (there, back) = (way(), way());
        let is_unlucky = match state.weather {
            Weather::Fair => false,
            Weather::Foul(one_in) => random.u32(..one_in) == 0,
            Weather::Down => return (Mishap::Refused, there, back),
        };
        if !is_unlucky {
            return (Mishap::None, there, back);
        }
        let refusal = |code: u16, reason: &str| {
            json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                "message": "by the simulation", "reason": reason, "code": code})
            .to_string()
        };
        let after = |secs: u32| Some(secs.to_string());
        // By the server's clock, which the operator's clock may differ from.
        let date = httpdate::fmt_http_date(self.server.now() + Duration::from_secs(10));
        let html = "<html><body>login page</body></html>".to_owned();
        let mishap = match random.u32(..20) {
            0 => Mishap::Refused,
            1 | 2 => Mishap::LostBefore,
            3 | 4 if !is_stream => Mishap::LostAfter,
            5 if !is_stream => Mishap::CutAnswer,
            6 if !is_stream => Mishap::Swallowed,
            7 | 8 if !is_stream => Mishap::VeryLate,
            9 => Mishap::Answered(429, after(random.u32(1..4)), refusal(429, "TooManyRequests")),
            10 => Mishap::Answered(429, Some(date), refusal(429, "TooManyRequests")),
            11 => Mishap::Answered(500, None, refusal(500, "InternalError")),
            12 => Mishap::Answered(503, after(random.u32(1..30)), refusal(503, "ServiceUnavailable")),
            13 => Mishap::Answered(503, None, html),
            14 => Mishap::Answered(404, None, html),
            15 => Mishap::Answered(401, None, refusal(401, "Unauthorized")),
            16 if !is_stream => Mishap::Answered(409, None, refusal(409, "Conflict")),
            16 => Mishap::Answered(410, None, refusal(410, "Expired")),
            17 if random.bool() => Mishap::Answered(200, None, html),
            17 => Mishap::Answered(200, None, r#"{"metadata":{}}"#.to_owned()),
            18 | 19 if !is_stream => Mishap::Stale,
            _ => Mishap::Silent,
        };
        (mishap, there, back)
    }

    /// Whether the operator dies around this write.
    fn is_killed(&self, when: When) -> bool {
        let mut state = self.state();
        let Some(kill) = &mut state.kill else { return false };
        if when == When::BeforeTheWrite {
            kill.writes = kill.writes.saturating_sub(1);
        }
        let is_now = kill.writes == 0 && kill.when == when;
        if is_now {
            state.kill = None;
        }
        is_now
    }

    /// Carries one request to the server, and its answer back.
    async fn carry(
        self: Arc<Network>,
        request: Request<Bytes>,
        is_alive: Arc<AtomicBool>,
    ) -> io::Result<InProcessAnswer> {
        let target = request.uri().path_and_query().map(ToString::to_string).unwrap_or_default();
        let (path, method) = (request.uri().path().to_owned(), request.method().clone());
        let is_stream = target.contains("watch=1");
        // The repetition of an Event has no version: nobody else writes it.
        let is_write = method != Method::GET && !path.ends_with("/events") && !path.contains("/events/");
        let mut what = format!("{method} {target}");
        // A Secret has a password that no seed determines.
        if !request.body().is_empty() && !path.ends_with("/secrets") {
            let _ = write!(what, " {}", String::from_utf8_lossy(request.body()));
        }
        if is_write && method != Method::POST && !is_versioned(request.body()) {
            self.violation(format!("{what} has no resourceVersion"));
        }
        let sent = Instant::now();
        self.state().requests.push(sent);
        let (mishap, there, back) = self.draw(is_stream);
        sleep(there).await;
        if let Some(answer) = self.without_server(&mishap, &what) {
            return answer;
        }
        if mishap == Mishap::VeryLate {
            sleep(VERY_LATE).await;
        }
        if is_write && is_alive.load(Ordering::Relaxed) && self.is_killed(When::BeforeTheWrite) {
            self.record("operator", &format!("dies before {what}"));
            self.kill(&is_alive).await;
        }
        let before = if is_write { self.get(path.trim_end_matches("/status")).await } else { None };
        let (mut parts, body) = request.into_parts();
        if (mishap == Mishap::Stale || self.lags())
            && let Some(stale) = self.stale(&target).await
        {
            parts.uri = stale;
        }
        let admitted = if is_write { self.admit(&method, &path, &body) } else { None };
        let is_as_sent = admitted.is_none();
        let body = admitted.unwrap_or(body);
        let answer = self.server.answer(Request::from_parts(parts, Full::new(body))).await;
        let answer = answer.map_err(|error| {
            self.record("operator", &format!("{what} -> broken off by the server"));
            io::Error::other(error)
        })?;
        let status = answer.status();
        self.record("operator", &format!("{what} -> {status} {mishap:?}"));
        let is_done = is_write && status.is_success() && !target.contains("dryRun=All");
        if is_done {
            self.state().writes += 1;
            self.state().may_have_orphans |= method == Method::POST && sent.elapsed() > LATE;
            if let Some(problem) = forbidden_write(&method, &path, before.as_ref()) {
                self.violation(format!("{method} {path} {problem}"));
            }
            self.meddle(&method, &path);
        }
        if is_write && is_alive.load(Ordering::Relaxed) && self.is_killed(When::AfterTheWrite) {
            self.record("operator", "dies after this write");
            self.kill(&is_alive).await;
        }
        sleep(back).await;
        let (parts, body) = answer.into_parts();
        let (sender, receiver) = mpsc::channel(CHUNKS_MAX);
        let body = if is_stream {
            let pump = Arc::clone(&self).pump(body, sender, mishap == Mishap::Silent);
            self.spawn(pump);
            StreamBody(receiver)
        } else {
            let mut bytes = body.collect().await.map_err(io::Error::other)?.to_bytes();
            if is_done && method == Method::PATCH && is_as_sent && is_unchanged(before.as_ref(), &bytes) {
                self.violation(format!("{what} changed nothing"));
            }
            let is_cut = mishap == Mishap::CutAnswer;
            if is_cut {
                bytes.truncate(bytes.len() / 2);
            }
            let _ = sender.try_send(Ok(bytes));
            if is_cut {
                let _ = sender.try_send(Err(io::ErrorKind::ConnectionReset.into()));
            }
            StreamBody(receiver)
        };
        match mishap {
            Mishap::LostAfter => Err(io::ErrorKind::ConnectionReset.into()),
            Mishap::Swallowed => std::future::pending().await,
            _ => Ok(Response::from_parts(parts, body.boxed_unsync())),
        }
    }

    /// The result of a request that does not reach the server.
    fn without_server(&self, mishap: &Mishap, what: &str) -> Option<io::Result<InProcessAnswer>> {
        let error = match mishap {
            Mishap::Refused => io::ErrorKind::ConnectionRefused,
            Mishap::LostBefore => io::ErrorKind::ConnectionReset,
            Mishap::Answered(status, retry_after, body) => {
                self.record("operator", &format!("{what} -> {status} of the simulation"));
                let mut answer = Response::builder().status(*status);
                if let Some(when) = retry_after {
                    answer = answer.header(header::RETRY_AFTER, when);
                }
                let body = Full::new(Bytes::from(body.clone())).map_err(|never| match never {});
                return Some(Ok(answer.body(body.boxed_unsync()).unwrap()));
            }
            _ => return None,
        };
        self.record("operator", &format!("{what} -> {mishap:?}"));
        Some(Err(error.into()))
    }

    async fn kill(&self, is_alive: &AtomicBool) -> Infallible {
        is_alive.store(false, Ordering::Relaxed);
        self.killed.notify_one();
        std::future::pending().await
    }

    fn lags(&self) -> bool {
        let mut state = self.state();
        state.lags && state.random.bool()
    }

    /// The operator's write after admission, if admission changes it.
    fn admit(&self, method: &Method, path: &str, body: &[u8]) -> Option<Bytes> {
        let is_change = path.contains("/deployments") && method != Method::DELETE;
        if !is_change || self.state().meddler != Meddler::Admission {
            return None;
        }
        let mut body = serde_json::from_slice(body).ok()?;
        self.state().has_admission_changed = true;
        match &mut body {
            Value::Array(operations) => {
                operations.push(json!({"op": "add", "path": "/spec/replicas", "value": MEDDLER_REPLICAS}));
            }
            object => object["spec"]["replicas"] = MEDDLER_REPLICAS.into(),
        }
        Some(body.to_string().into())
    }

    /// Reverts the operator's change of a Deployment, as another controller.
    fn meddle(self: &Arc<Network>, method: &Method, path: &str) {
        let is_meddled = self.state().meddler == Meddler::Controller && path.contains("/deployments/");
        if !is_meddled || method != Method::PATCH {
            return;
        }
        self.state().has_reverted = true;
        let (network, path) = (Arc::clone(self), path.to_owned());
        self.spawn(async move {
            sleep(network.way()).await;
            let patch = json!({"spec": {"replicas": MEDDLER_REPLICAS}});
            let token = network.server.token();
            let (status, _) =
                network.send(token, Method::PATCH, &path, "application/merge-patch+json", &patch).await;
            network.record("meddler", &format!("{path} -> {status}"));
        });
    }

    /// The latency of a piece of a stream. From a server that lags, it is sometimes as long as the lag.
    fn way(&self) -> Duration {
        let state = &mut *self.state();
        match state.lags && state.random.u8(..4) == 0 {
            true => Duration::from_millis(state.random.u64(..LAG_MAX_MS)),
            false => Duration::from_micros(state.random.u64(200..8_000)),
        }
    }

    /// The request for the oldest list that may answer `target`, if `target` accepts an older list and the server still
    /// has that version.
    async fn stale(&self, target: &str) -> Option<Uri> {
        let exact = target.contains("NotOlderThan").then(|| target.replace("NotOlderThan", "Exact"))?;
        self.get(&exact).await?;
        exact.parse().ok()
    }

    /// Forwards the pieces of a stream, until either end closes.
    async fn pump<B>(
        self: Arc<Network>,
        mut body: B,
        sender: mpsc::Sender<io::Result<Bytes>>,
        is_silent: bool,
    ) where
        B: Body<Data = Bytes> + Unpin,
    {
        let mut cuts = self.cuts.subscribe();
        if is_silent {
            tokio::select! {
                biased;
                () = sender.closed() => return,
                () = sleep(DEAD_AFTER) => {}
            }
            let _ = sender.send(Err(io::ErrorKind::ConnectionReset.into())).await;
            return;
        }
        loop {
            let began = Instant::now();
            let frame = tokio::select! {
                biased;
                () = sender.closed() => return,
                _ = cuts.recv() => Some(Err(io::ErrorKind::ConnectionReset.into())),
                frame = body.frame() => frame.map(|frame| match frame {
                    Ok(frame) => Ok(frame.into_data().unwrap_or_default()),
                    Err(_) => Err(io::ErrorKind::ConnectionReset.into()),
                }),
            };
            let Some(frame) = frame else { return };
            // Pieces that are there at once are under way together: most of them have no latency of their own.
            if began.elapsed() > Duration::ZERO || self.state().random.u8(..16) == 0 {
                sleep(self.way()).await;
            }
            let is_end = frame.is_err();
            if sender.send(frame).await.is_err() || is_end {
                return;
            }
        }
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.tasks.lock().unwrap();
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task);
    }
}

impl Network {
    /// The number of requests under way and open streams.
    pub fn in_flight(&self) -> usize {
        let mut tasks = self.tasks.lock().unwrap();
        while tasks.try_join_next().is_some() {}
        tasks.len()
    }

    /// Drops all records, here and in the server.
    pub fn forget(&self) {
        let mut state = self.state();
        state.transcript = Vec::new();
        state.requests = Vec::new();
        self.server.forget_requests();
    }
}

impl InProcess for Link {
    fn answer(
        &self,
        request: Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = io::Result<InProcessAnswer>> + Send + '_>> {
        Box::pin(async {
            if !self.is_alive.load(Ordering::Relaxed) {
                return std::future::pending().await;
            }
            let mut cuts = self.network.cuts.subscribe();
            let (sender, receiver) = oneshot::channel();
            let carry = Arc::clone(&self.network).carry(request, Arc::clone(&self.is_alive));
            self.network.spawn(async move {
                // The sender of the request may have given up.
                let _ = sender.send(carry.await);
            });
            tokio::select! {
                biased;
                _ = cuts.recv() => Err(io::ErrorKind::ConnectionReset.into()),
                answer = receiver => answer.unwrap_or_else(|_| Err(io::ErrorKind::ConnectionReset.into())),
            }
        })
    }

    fn now(&self) -> SystemTime {
        let now = self.network.server.now();
        match self.network.state().clock {
            Clock::Exact => now,
            Clock::Slow(by) => now - by,
            Clock::Fast(by) => now + by,
        }
    }
}

/// The reason why a write is forbidden: the operator may only create children or copies, change and delete its own, and write
/// status and finalizers.
fn forbidden_write(method: &Method, path: &str, before: Option<&Value>) -> Option<String> {
    let place: Vec<_> = path.split('/').collect();
    match (method.as_str(), place.as_slice()) {
        (
            "POST",
            [
                ..,
                "namespaces",
                _,
                "deployments"
                | "services"
                | "configmaps"
                | "statefulsets"
                | "poddisruptionbudgets"
                | "cronjobs"
                | "jobs"
                | "persistentvolumeclaims"
                | "secrets",
            ],
        )
        | (
            "PATCH",
            [.., "mywebservers" | "memcacheds" | "copyrators" | "databases", _, "status"]
            | [.., "copyrators" | "databases", _],
        ) => None,
        // What a claim or a Secret is patched to, databases.rs checks.
        ("PATCH", [.., "persistentvolumeclaims" | "secrets", _]) => None,
        ("PATCH" | "DELETE", [.., "namespaces", namespace, "configmaps", name])
            if super::expect::child_of(before?).is_none() =>
        {
            let is_copy =
                before?["metadata"]["annotations"]["flant.com/place"] == format!("{namespace}/{name}");
            (!is_copy).then(|| "changed an object that is not a copy".to_owned())
        }
        (
            "PATCH" | "DELETE",
            [
                ..,
                "deployments"
                | "services"
                | "configmaps"
                | "statefulsets"
                | "poddisruptionbudgets"
                | "cronjobs"
                | "jobs",
                _,
            ],
        ) => {
            // The object did not exist, so the server has not done the write.
            let before = before?;
            match super::expect::child_of(before) {
                Some((_, name)) if before["metadata"]["name"] == name => None,
                Some((owner, _)) => Some(format!("changed an object of {}", owner["name"])),
                None => Some("changed an object without an owner of ours".to_owned()),
            }
        }
        _ => Some("is not a write of the operator".to_owned()),
    }
}

/// Whether a patch or a delete has a precondition on the resourceVersion.
fn is_versioned(body: &[u8]) -> bool {
    let Ok(body) = serde_json::from_slice::<Value>(body) else { return false };
    let is_version = |value: &Value| value.as_str().is_some_and(|version| !version.is_empty());
    let in_operation = |operation: &Value| {
        operation["path"] == "/metadata/resourceVersion" && is_version(&operation["value"])
    };
    body.as_array().is_some_and(|operations| operations.iter().any(in_operation))
        || is_version(&body["metadata"]["resourceVersion"])
        || is_version(&body["preconditions"]["resourceVersion"])
}

/// Whether an object still has the same version. So it has after its last finalizer is removed: then it is deleted.
fn is_unchanged(before: Option<&Value>, after: &[u8]) -> bool {
    let Ok(after) = serde_json::from_slice::<Value>(after) else { return false };
    let has_version =
        |before: &Value| before["metadata"]["resourceVersion"] == after["metadata"]["resourceVersion"];
    let is_deleted =
        !after["metadata"]["deletionTimestamp"].is_null() && after["metadata"]["finalizers"].is_null();
    before.is_some_and(has_version) && !is_deleted
}

/// A body that is received piece by piece.
pub struct StreamBody(pub mpsc::Receiver<io::Result<Bytes>>);

impl StreamBody {
    pub fn boxed_unsync(
        self,
    ) -> http_body_util::combinators::UnsyncBoxBody<Bytes, Box<dyn std::error::Error + Send + Sync>> {
        BodyExt::boxed_unsync(self.map_err(Into::into))
    }
}

impl Body for StreamBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        self.get_mut().0.poll_recv(context).map(|chunk| chunk.map(|chunk| chunk.map(Frame::data)))
    }
}
