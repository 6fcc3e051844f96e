//! The one file that connects: requests out, answers or streams in.
//!
//! ```text
//! connection 1, calls                         connection 2, streams
//! :method PATCH :path /apis/apps/v1/…         :method GET :path /apis/apps/v1/deployments?watch=1&…
//!         ◄ 200 {…}                                   ◄ 200 {"type":"ADDED",…}\n{"type":…
//! ```
//!
//! Two reqwest clients made from one configuration, hence two HTTP/2 connections, so that no write ever waits behind a
//! watch. Measured on kube-apiserver 1.36: with the libraries' defaults, three watches that nobody reads stop every other
//! answer on their connection; with the window sizes below, fifty do not.

#[cfg(test)]
mod tests;

use std::{
    collections::HashSet,
    net::SocketAddr,
    sync::{
        Arc, Mutex, Once,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use http::{Method, Version};
use reqwest::{
    Certificate, Identity, Proxy, Response,
    dns::{Addrs, Name, Resolve, Resolving},
    header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, USER_AGENT, WARNING},
    redirect::Policy,
};
use tokio::{
    net::lookup_host,
    sync::Semaphore,
    sync::watch,
    time::{Instant, sleep, timeout},
};
use tracing::{debug, warn};
use url::{Host, Url};

use super::{
    Answer, Head, Liveness, Request,
    auth::{Credential, Credentials, FILE_AGE_MAX},
    config::{Config, Tls},
    error::{Cause, Where, broken, refusal},
};
use crate::locked;

/// What a stream may be sent before we read it. An unread watch then takes this from its connection's window, no more.
const STREAM_WINDOW_BYTES: u32 = 256 * 1024;

/// What a connection may be sent before we read it: more than all the streams that it can hold (100 × 256 KiB), so that
/// unread ones leave room for the others.
const CONNECTION_WINDOW_BYTES: u32 = 32 * 1024 * 1024;

/// Silence after which a connection is asked whether it is alive, and how long it has to answer. client-go's values: a dead
/// one is noticed within 45 s.
const KEEP_ALIVE: Duration = Duration::from_secs(30);
const KEEP_ALIVE_ANSWER: Duration = Duration::from_secs(15);

/// Longest wait for TCP and TLS. Twice the longest that TCP takes to repeat a lost SYN three times, and half of what a
/// request has.
const CONNECT_WAIT: Duration = Duration::from_secs(15);

/// Streams on one connection. The API server takes 100, and the request after those waits for ever.
const STREAMS_MAX: usize = 90;

/// Idle time after which a connection may be gone: the API server closes one after 90 s.
const IDLE_MAX: Duration = Duration::from_secs(60);

/// How long the pool keeps a connection without a request. Of calls: as long as the API server does. Of streams: until it
/// closes. Its watches outlive every such time, and PING tells when it is dead; a connection that the pool has forgotten
/// stays open for its watches, and the next watch opens another.
const CALLS_IDLE_MAX: Option<Duration> = Some(Duration::from_secs(90));
const STREAMS_IDLE_MAX: Option<Duration> = None;

/// Largest version that is read: it has a dozen short texts.
pub(super) const VERSION_BYTES_MAX: usize = 64 * 1024;

/// Largest single object that is read, as a line of a watch: etcd refuses objects above 1.5 MiB, and JSON escapes can make
/// that six times as long.
pub(super) const OBJECT_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Largest page of a list that is read. A page of 100 Deployments has some 0.5 MB. Where one is larger than this, the
/// watch asks for fewer objects on a page, down to one.
pub(super) const PAGE_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Largest page with a single object: the largest object, and what is around it, mainly the continue token.
pub(super) const PAGE_OF_ONE_BYTES_MAX: usize = OBJECT_BYTES_MAX + 64 * 1024;

/// Largest list that is read in one piece, largest answer to a request of unknown kind, and what all lists that are read
/// at the same time may have together. Half of the memory limit in `manifests/operator/deployment.yaml`, 64 MiB; a start
/// with 1,000 objects peaks at 11 MB, 0.5 MB for each page included, which leaves 20 MB for objects and lines of watches.
pub(super) const LISTS_BYTES_MAX: usize = 32 * 1024 * 1024;

/// Largest answer that is read to [`Client::latest_version`](super::Client::latest_version): the metadata of one object,
/// as a rule 1 to 5 kB, but annotations alone may have 256 KiB. Where it has more, the watch asks for a list instead.
pub(super) const CHECK_BYTES_MAX: usize = 512 * 1024;

/// Such requests at a time: 8 MiB, and a part of the hundred requests that a connection takes.
const CHECKS_MAX: usize = 16;

/// Largest refusal that is read. A 422 can quote an object, which etcd limits to 1.5 MiB.
const REFUSAL_BYTES_MAX: usize = 4 * 1024 * 1024;

/// How often a request is sent again, because the server says when, or because a GET got no answer.
const REPEATS_MAX: u32 = 3;

/// Longest `Retry-After` that is waited for here. The API server mostly asks for 1 s; who is asked for more has a backoff
/// and something to log, and we have neither.
const RETRY_AFTER_HERE_MAX: Duration = Duration::from_secs(5);

/// First pause before a GET is repeated; each is twice the one before. A restarting API server is away for longer, and its
/// callers have a backoff of their own: this is for a connection that broke.
const REPEAT_PAUSE: Duration = Duration::from_millis(100);

/// Different `Warning` texts that are remembered as logged. Enough for every deprecated field that one program uses.
const WARNINGS_MAX: usize = 256;

/// The user agent: by this, administrators find us in the audit log.
const AGENT: &str = concat!("listwatch/", env!("CARGO_PKG_VERSION"));

/// Sends requests to one API server.
pub(super) struct Transport {
    config: Config,
    /// The URL to which paths are appended.
    base: Url,
    /// For errors.
    at: Where,
    credentials: Credentials,
    connections: Mutex<Checked>,
    warned: Mutex<HashSet<String>>,
    /// How many calls wait for their answers.
    calls: watch::Sender<usize>,
    /// Whether the last answer came over HTTP/2.
    speaks_http2: AtomicBool,
    /// One permit for each byte of a list that may be read.
    pub(super) lists: Semaphore,
    /// One permit for each check.
    pub(super) checks: Semaphore,
}

/// The connections, and when their certificates were last compared with the files. `None`: they are to be.
struct Checked {
    connections: Arc<Connections>,
    at: Option<Instant>,
}

/// Connections made with the same certificates.
struct Connections {
    certificates: Certificates,
    calls: Arc<Lane>,
    /// Never empty.
    streams: Mutex<Vec<Arc<Lane>>>,
}

/// What the certificate files held. A change of them makes new [`Connections`].
#[derive(Clone, PartialEq)]
struct Certificates {
    authority: Option<Vec<u8>>,
    identity: Option<Vec<u8>>,
}

/// One reqwest client: with HTTP/2, one connection. A stream holds its lane, so the strong count says how many there are.
struct Lane {
    http: reqwest::Client,
    #[cfg(feature = "apiserver")]
    in_process: Option<Arc<dyn super::InProcess>>,
    /// When it last brought an answer. `None`: not yet, or it broke since.
    worked: Mutex<Option<Instant>>,
    /// Held by who opens the connection; the others wait, and share a failure.
    opening: tokio::sync::Mutex<Option<(Instant, Cause)>>,
}

/// The body of a stream, as it comes.
pub(super) struct Chunks {
    response: Response,
    lane: Arc<Lane>,
    at: Where,
}

impl Transport {
    /// Reads certificates, and does not connect.
    pub(super) fn new(mut config: Config) -> Result<Transport, Cause> {
        install_crypto();
        let login = std::mem::replace(&mut config.login, super::auth::Login::Nothing);
        let address = config.server.as_str().trim_end_matches('/');
        let trust = match &config.tls.authority {
            Some(pem) => pem.field.clone(),
            None => "what this machine trusts".to_owned(),
        };
        let mut base = config.server.clone();
        if let Some(name) = &config.tls.server_name {
            // reqwest verifies the URL's host, and sends it as SNI; [`ServerAddress`] leads the name to the server. An IP
            // address it would not lead there, as reqwest resolves none; the kubeconfig's reader refuses such a name.
            base.set_host(Some(name))
                .map_err(|_| Cause::Other(format!("tls-server-name {name}: not a host name")))?;
        }
        let way = config.proxy.as_ref().map(through).unwrap_or_default();
        let at = Where { address: format!("{address}{way} ({})", config.origin), trust };
        let certificates = Certificates::read(&config.tls).map_err(Cause::Other)?;
        let connections = Arc::new(Connections::new(&config, certificates).map_err(Cause::Other)?);
        Ok(Transport {
            config,
            base,
            at,
            credentials: Credentials::new(login),
            connections: Mutex::new(Checked { connections, at: Some(Instant::now()) }),
            warned: Mutex::new(HashSet::new()),
            calls: watch::Sender::new(0),
            speaks_http2: AtomicBool::new(false),
            lists: Semaphore::new(LISTS_BYTES_MAX),
            checks: Semaphore::new(CHECKS_MAX),
        })
    }

    /// How a dead connection shows, as far as is known: before the first answer nobody asks it.
    pub(super) fn liveness(&self) -> Liveness {
        if self.speaks_http2.load(Ordering::Relaxed) { Liveness::Asked } else { Liveness::Unasked }
    }

    /// Whether no call waits for its answer.
    pub(super) fn is_idle(&self) -> bool {
        *self.calls.borrow() == 0
    }

    /// Waits until no call waits for its answer.
    pub(super) async fn idle(&self) {
        // An error says that there is no sender, and we have it.
        let _ = self.calls.subscribe().wait_for(|calls| *calls == 0).await;
    }

    pub(super) fn config(&self) -> &Config {
        &self.config
    }

    /// Sends a request and reads the whole answer, of at most `bytes_max`. Repeats it where that is safe and within its
    /// deadline, or whoever waits would hear of no trouble meanwhile.
    pub(super) async fn call(&self, request: &Request, bytes_max: usize) -> Result<Answer, Cause> {
        let begun = Instant::now();
        let mut repeats = 0;
        loop {
            let left = self.config.request_timeout.saturating_sub(begun.elapsed());
            let cause = match self.call_once(request, bytes_max, left).await {
                Ok(answer) => return Ok(answer),
                Err(cause) => cause,
            };
            let Some(pause) = pause(&request.method, &cause, repeats) else { return Err(cause) };
            if begun.elapsed() + pause >= self.config.request_timeout {
                return Err(cause);
            }
            debug!(method = %request.method, path = request.target(), %cause, ?pause, "sending again");
            sleep(pause).await;
            repeats += 1;
        }
    }

    /// The same, but repeats nothing but a 401: for those who have a backoff of their own.
    pub(super) async fn call_once(
        &self,
        request: &Request,
        bytes_max: usize,
        deadline: Duration,
    ) -> Result<Answer, Cause> {
        let _waiting = Waiting::new(&self.calls);
        let mut renewed = false;
        loop {
            let credential = self.credentials.current().await.map_err(Cause::Other)?;
            let cause = match timeout(deadline, self.answer(request, bytes_max, &credential)).await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(cause)) => cause,
                Err(_) => self.late(request),
            };
            if renewed || !self.renews(&credential, &cause).await? {
                return Err(cause);
            }
            renewed = true;
        }
    }

    /// Opens a stream: returns with the head of the answer. Repeats nothing but a 401: who watches knows better.
    pub(super) async fn open(&self, request: &Request) -> Result<(Head, Chunks), Cause> {
        let deadline = self.config.request_timeout;
        let mut renewed = false;
        loop {
            let credential = self.credentials.current().await.map_err(Cause::Other)?;
            let lane = self.connections(&credential).streams_lane(&self.config).map_err(Cause::Other)?;
            let attempt = timeout(deadline, self.exchange(&lane, request, &credential));
            let cause = match attempt.await {
                Ok(Ok(response)) => {
                    let head = Head::of(&response);
                    return Ok((head, Chunks { response, lane, at: self.at.clone() }));
                }
                Ok(Err(cause)) => cause,
                Err(_) => self.late(request),
            };
            if renewed || !self.renews(&credential, &cause).await? {
                return Err(cause);
            }
            renewed = true;
        }
    }

    /// After a 401: reads the credential again. Whether it makes sense to send the request once more.
    async fn renews(&self, refused: &Credential, cause: &Cause) -> Result<bool, Cause> {
        if cause.status().is_none_or(|status| status.code != 401) {
            return Ok(false);
        }
        let renewed = self.credentials.renew(refused).await.map_err(Cause::Other)?;
        Ok(renewed.is_some())
    }

    async fn answer(
        &self,
        request: &Request,
        bytes_max: usize,
        credential: &Credential,
    ) -> Result<Answer, Cause> {
        let lane = Arc::clone(&self.connections(credential).calls);
        let mut response = self.exchange(&lane, request, credential).await?;
        let Head { status, headers } = Head::of(&response);
        let body = read(&mut response, bytes_max).await.map_err(|error| lane.failed(&error, &self.at))?;
        match body {
            Some(body) => Ok(Answer { status, headers, body }),
            None => {
                Err(Cause::TooLarge(format!("{} answered with more than {bytes_max} bytes", request.path)))
            }
        }
    }

    /// One request, up to the head of an answer that says yes.
    async fn exchange(
        &self,
        lane: &Lane,
        request: &Request,
        credential: &Credential,
    ) -> Result<Response, Cause> {
        if !lane.is_open() {
            let probe = self.build(lane, &Request::get("/version"), credential);
            lane.open(probe, &self.at).await.inspect_err(|_| self.doubt_certificates())?;
        }
        let started = Instant::now();
        let sent = lane.send(self.build(lane, request, credential), &self.at).await;
        let response = sent.inspect_err(|cause| {
            debug!(method = %request.method, path = request.target(), %cause, "no answer");
            self.doubt_certificates();
        })?;
        lane.works();
        self.speaks_http2.store(response.version() == Version::HTTP_2, Ordering::Relaxed);
        let (code, elapsed) = (response.status(), started.elapsed());
        debug!(method = %request.method, path = request.target(), code = code.as_u16(), ?elapsed, "answered");
        // Deprecated APIs, unknown fields: each is said once.
        for warning in self.new_warnings(response.headers()) {
            warn!(warning, "the API server warns");
        }
        if code.is_success() { Ok(response) } else { Err(self.refused(response).await) }
    }

    async fn refused(&self, mut response: Response) -> Cause {
        let (code, headers) = (response.status(), response.headers().clone());
        // What can be read of it is enough: the code has said no.
        let body = read(&mut response, REFUSAL_BYTES_MAX).await.ok().flatten().unwrap_or_default();
        let mut cause = refusal(code, &headers, &body, self.config.now());
        if let Cause::Refused { status, .. } = &mut cause
            && status.code == 401
            && matches!(status.message.as_str(), "" | "Unauthorized")
        {
            // The server says no more than that, on purpose; we can say whom and where.
            let (address, user) = (&self.at.address, &self.config.user);
            status.message = format!(
                "{address} does not accept {user}: are the credentials expired, or another cluster's?"
            );
        }
        cause
    }

    fn late(&self, request: &Request) -> Cause {
        debug!(method = %request.method, path = request.target(), "no answer in time");
        let deadline = humantime::format_duration(self.config.request_timeout);
        Cause::Late(format!("{}: no answer within {deadline}", self.at.address))
    }

    /// A connection can have broken because somebody has changed the certificates.
    fn doubt_certificates(&self) {
        locked(&self.connections).at = None;
    }

    fn build(&self, lane: &Lane, request: &Request, credential: &Credential) -> reqwest::RequestBuilder {
        let mut builder = lane
            .http
            .request(request.method.clone(), self.url(request))
            .headers(self.config.impersonate.clone())
            .header(USER_AGENT, AGENT)
            .header(ACCEPT, request.accept.as_ref());
        if let Some(authorization) = &credential.authorization {
            builder = builder.header(AUTHORIZATION, authorization);
        }
        if !request.body.is_empty() {
            builder = builder.header(CONTENT_TYPE, request.content_type.as_ref()).body(request.body.clone());
        }
        builder
    }

    /// Sets the path in the parsed URL of the server: to parse the host too costs three times as much.
    fn url(&self, request: &Request) -> Url {
        let mut url = self.base.clone();
        let target = request.target();
        let (path, query) = match target.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (&*target, None),
        };
        url.set_path(&format!("{}{path}", self.base.path().trim_end_matches('/')));
        url.set_query(query);
        url
    }

    /// The connections to use; new ones where a certificate has changed.
    fn connections(&self, credential: &Credential) -> Arc<Connections> {
        let mut checked = locked(&self.connections);
        let old = &checked.connections;
        let issued = credential.identity.as_deref();
        let same_identity = issued.is_none() || issued == old.certificates.identity.as_deref();
        if same_identity && checked.at.is_some_and(|at| at.elapsed() < FILE_AGE_MAX) {
            return Arc::clone(old);
        }
        let new = Certificates::read(&self.config.tls).and_then(|mut certificates| {
            if let Some(identity) = issued {
                certificates.identity = Some(identity.to_vec());
            }
            if certificates == old.certificates {
                return Ok(None);
            }
            Connections::new(&self.config, certificates).map(Some)
        });
        match new {
            Ok(Some(connections)) => checked.connections = Arc::new(connections),
            Ok(None) => {}
            Err(error) => warn!(error, "certificates not read, the last ones are kept"),
        }
        checked.at = Some(Instant::now());
        Arc::clone(&checked.connections)
    }

    /// What the server warns of for the first time.
    fn new_warnings(&self, headers: &HeaderMap) -> Vec<String> {
        let mut warned = locked(&self.warned);
        if warned.len() > WARNINGS_MAX {
            warned.clear();
        }
        let texts = headers.get_all(WARNING).iter().filter_map(|value| value.to_str().ok()).map(warning_text);
        texts.filter(|text| warned.insert(text.clone())).collect()
    }
}

/// A call that waits for its answer, or was given up when this is dropped.
struct Waiting<'a>(&'a watch::Sender<usize>);

impl Waiting<'_> {
    fn new(calls: &watch::Sender<usize>) -> Waiting<'_> {
        calls.send_modify(|calls| *calls += 1);
        Waiting(calls)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|calls| *calls -= 1);
    }
}

impl Certificates {
    fn read(tls: &Tls) -> Result<Certificates, String> {
        let authority = tls.authority.as_ref().map(|pem| pem.read()).transpose()?;
        let identity = match &tls.identity {
            Some((certificate, key)) => {
                let mut pem = certificate.read()?;
                pem.push(b'\n');
                pem.extend(key.read()?);
                Some(pem)
            }
            None => None,
        };
        Ok(Certificates { authority, identity })
    }
}

impl Connections {
    fn new(config: &Config, certificates: Certificates) -> Result<Connections, String> {
        let calls = Arc::new(Lane::new(config, &certificates, CALLS_IDLE_MAX)?);
        let streams = Mutex::new(vec![Arc::new(Lane::new(config, &certificates, STREAMS_IDLE_MAX)?)]);
        Ok(Connections { certificates, calls, streams })
    }

    /// A lane with room for one more stream. Lanes that have become empty go, but for the first.
    fn streams_lane(&self, config: &Config) -> Result<Arc<Lane>, String> {
        let mut lanes = locked(&self.streams);
        if let Some(lane) = lanes.iter().find(|lane| lane.streams() < STREAMS_MAX) {
            let lane = Arc::clone(lane);
            let mut first = true;
            lanes.retain(|lane| std::mem::take(&mut first) || lane.streams() > 0);
            return Ok(lane);
        }
        let lane = Arc::new(Lane::new(config, &self.certificates, STREAMS_IDLE_MAX)?);
        lanes.push(Arc::clone(&lane));
        Ok(lane)
    }
}

impl Lane {
    fn new(config: &Config, certificates: &Certificates, idle_max: Option<Duration>) -> Result<Lane, String> {
        Ok(Lane {
            http: reqwest_client(config, certificates, idle_max)?,
            #[cfg(feature = "apiserver")]
            in_process: config.in_process.clone(),
            worked: Mutex::new(None),
            opening: tokio::sync::Mutex::new(None),
        })
    }

    async fn send(&self, request: reqwest::RequestBuilder, at: &Where) -> Result<Response, Cause> {
        #[cfg(feature = "apiserver")]
        if let Some(server) = &self.in_process {
            return super::in_process::send(&**server, request).await.inspect_err(|_| self.broke());
        }
        request.send().await.map_err(|error| self.failed(&error, at))
    }

    /// Streams that hold this lane; the list of lanes holds it once, too.
    fn streams(self: &Arc<Lane>) -> usize {
        Arc::strong_count(self) - 1
    }

    /// Makes sure that there is a connection: many requests at once without one would each open their own.
    async fn open(&self, probe: reqwest::RequestBuilder, at: &Where) -> Result<(), Cause> {
        if self.is_open() {
            return Ok(());
        }
        let asked = Instant::now();
        let mut failed = self.opening.lock().await;
        if self.is_open() {
            return Ok(());
        }
        if let Some((when, cause)) = &*failed
            && *when > asked
        {
            return Err(cause.clone());
        }
        // Any answer will do, also a 401: there is a connection.
        match self.send(probe, at).await {
            Ok(_) => {
                debug!(server = at.address, elapsed = ?asked.elapsed(), "connected");
                self.works();
                Ok(())
            }
            Err(cause) => {
                // Nothing of the request itself has been sent.
                let cause = match cause {
                    Cause::Lost(text) => Cause::Unreachable(text),
                    cause => cause,
                };
                *failed = Some((Instant::now(), cause.clone()));
                Err(cause)
            }
        }
    }

    fn is_open(&self) -> bool {
        locked(&self.worked).is_some_and(|when| when.elapsed() < IDLE_MAX)
    }

    fn works(&self) {
        *locked(&self.worked) = Some(Instant::now());
    }

    fn broke(&self) {
        *locked(&self.worked) = None;
    }

    fn failed(&self, error: &reqwest::Error, at: &Where) -> Cause {
        self.broke();
        broken(error, at)
    }
}

impl Chunks {
    /// The next piece; `None` where the server ended the stream.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, Cause> {
        self.response.chunk().await.map_err(|error| self.lane.failed(&error, &self.at))
    }
}

impl Head {
    fn of(response: &Response) -> Head {
        Head { status: response.status().as_u16(), headers: response.headers().clone() }
    }
}

/// How long to wait before a request is sent again. `None`: it is not.
fn pause(method: &Method, cause: &Cause, repeats: u32) -> Option<Duration> {
    if repeats == REPEATS_MAX {
        return None;
    }
    match cause {
        // Who asked for a version that is not there yet had better ask for the most recent one.
        Cause::Refused { status, .. } if status.is_too_new() => None,
        // Nothing was done, and the server says when it will do: so any verb may be sent again.
        Cause::Refused { status, retry_after } if status.code == 429 || status.code >= 500 => {
            let wait = retry_after.filter(|wait| *wait <= RETRY_AFTER_HERE_MAX)?;
            Some(wait.mul_f64(1.0 + fastrand::f64() / 4.0))
        }
        // A write may have happened, and would happen twice.
        Cause::Unreachable(_) | Cause::Lost(_) if *method == Method::GET => {
            Some(REPEAT_PAUSE.mul_f64(f64::from(1 << repeats) * (0.5 + fastrand::f64())))
        }
        Cause::Refused { .. }
        | Cause::Unreachable(_)
        | Cause::Lost(_)
        | Cause::Late(_)
        | Cause::Unreadable(_)
        | Cause::TooLarge(_)
        | Cause::Other(_) => None,
    }
}

/// A body of at most `max` bytes; `None` if it is larger. One that comes in one piece, as most do, is not copied.
async fn read(response: &mut Response, max: usize) -> Result<Option<Bytes>, reqwest::Error> {
    let Some(first) = response.chunk().await? else { return Ok(Some(Bytes::new())) };
    let Some(second) = response.chunk().await? else {
        return Ok((first.len() <= max).then_some(first));
    };
    let mut body = BytesMut::from(first);
    let mut next = Some(second);
    while let Some(chunk) = next {
        if body.len() + chunk.len() > max {
            return Ok(None);
        }
        body.extend_from_slice(&chunk);
        next = response.chunk().await?;
    }
    Ok(Some(body.freeze()))
}

fn reqwest_client(
    config: &Config,
    certificates: &Certificates,
    idle_max: Option<Duration>,
) -> Result<reqwest::Client, String> {
    let mut builder = reqwest::Client::builder()
        .http2_initial_stream_window_size(STREAM_WINDOW_BYTES)
        .http2_initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .http2_keep_alive_interval(KEEP_ALIVE)
        .http2_keep_alive_timeout(KEEP_ALIVE_ANSWER)
        .http2_keep_alive_while_idle(true)
        .tcp_keepalive(KEEP_ALIVE)
        .tcp_keepalive_interval(KEEP_ALIVE_ANSWER)
        .connect_timeout(CONNECT_WAIT)
        .pool_idle_timeout(idle_max)
        .redirect(Policy::none());
    // HTTP/1.1 has no ping: here it is the kernel that gives up on a peer which acknowledges nothing. Where a proxy
    // acknowledges for a server that is gone, it is the watch that does, see [`Liveness::Unasked`].
    #[cfg(target_os = "linux")]
    {
        builder = builder.tcp_user_timeout(KEEP_ALIVE + KEEP_ALIVE_ANSWER);
    }
    builder = match &config.proxy {
        Some(proxy) => {
            let proxy = Proxy::all(proxy.clone()).map_err(|_| "proxy-url: not usable".to_owned())?;
            builder.proxy(proxy)
        }
        // As Go, nothing on this machine goes through HTTPS_PROXY; nor can what has a tls-server-name.
        None if is_loopback(&config.server) || config.tls.server_name.is_some() => builder.no_proxy(),
        None => builder,
    };
    if config.tls.server_name.is_some() {
        builder =
            builder.dns_resolver(ServerAddress(Arc::from(config.server.host_str().unwrap_or_default())));
    }
    if config.tls.insecure {
        builder = builder.tls_danger_accept_invalid_certs(true);
    }
    match (&certificates.authority, &config.tls.authority) {
        (Some(pem), Some(source)) => {
            let field = &source.field;
            let roots = Certificate::from_pem_bundle(pem).map_err(|_| format!("{field}: not PEM"))?;
            if roots.is_empty() {
                return Err(format!("{field}: there is no certificate in it"));
            }
            builder = builder.tls_certs_only(roots);
        }
        // Without TLS nobody has to be trusted, and a machine without root certificates will do.
        (None, _) if config.server.scheme() == "http" => builder = builder.tls_certs_only([]),
        (None, _) | (Some(_), None) => {}
    }
    if let Some(pem) = &certificates.identity {
        let field = match &config.tls.identity {
            Some((certificate, _)) => &certificate.field,
            None => "client certificate of the credential plugin",
        };
        // The cause could quote the key.
        let wrong = |_| format!("{field}: not a certificate and its key in PEM");
        builder = builder.identity(Identity::from_pem(pem).map_err(wrong)?);
    }
    builder.build().map_err(|error| {
        let cause = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
        format!("certificates of {}: {cause}", config.origin)
    })
}

/// Chooses ring as the cryptography of rustls, which is done once per process.
fn install_crypto() {
    static ONCE: Once = Once::new();
    // An error says that another crate has chosen before, which is as good.
    ONCE.call_once(|| drop(rustls::crypto::ring::default_provider().install_default()));
}

/// ` through the proxy HOST:PORT`, without the user and password that the URL may have.
fn through(proxy: &Url) -> String {
    let host = proxy.host_str().unwrap_or_default();
    // The URL knows a default for http and https alone; the other schemes are SOCKS.
    let port = proxy.port_or_known_default().unwrap_or(1080);
    format!(" through the proxy {host}:{port}")
}

fn is_loopback(server: &Url) -> bool {
    match server.host() {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}

/// Resolves any name to the address of the server: for tls-server-name, which stands in the URL instead. Is not asked
/// about an IP address, which needs no resolving.
struct ServerAddress(Arc<str>);

impl Resolve for ServerAddress {
    fn resolve(&self, _name: Name) -> Resolving {
        let host = Arc::clone(&self.0);
        Box::pin(async move {
            // An IPv6 address has its brackets from the URL.
            let host = host.trim_start_matches('[').trim_end_matches(']');
            let addresses: Vec<SocketAddr> = lookup_host((host, 0)).await?.collect();
            let addresses: Addrs = Box::new(addresses.into_iter());
            Ok::<Addrs, Box<dyn std::error::Error + Send + Sync>>(addresses)
        })
    }
}

/// `text` out of `299 - "text"`.
fn warning_text(value: &str) -> String {
    match (value.find('"'), value.rfind('"')) {
        (Some(start), Some(end)) if start < end => value[start + 1..end].replace("\\\"", "\""),
        (Some(_) | None, Some(_) | None) => value.to_owned(),
    }
}
