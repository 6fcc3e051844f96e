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

use std::{
    collections::HashSet,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, Once, PoisonError},
    time::{Duration, SystemTime},
};

use bytes::{Bytes, BytesMut};
use http::Method;
use reqwest::{
    Certificate, Identity, Proxy, Response,
    dns::{Addrs, Name, Resolve, Resolving},
    header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, USER_AGENT, WARNING},
    redirect::Policy,
};
use tokio::{
    net::lookup_host,
    time::{Instant, sleep, timeout},
};
use tracing::{debug, warn};
use url::{Host, Url};

use super::{
    Answer, Head, Request,
    auth::{Credential, Credentials, FILE_AGE_MAX},
    config::{Config, Tls},
    error::{Cause, Where, broken, refusal},
};

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

/// Largest version that is read: it has a dozen short texts.
pub(super) const VERSION_BYTES_MAX: usize = 64 * 1024;

/// Largest single object that is read, as a line of a watch: etcd refuses objects above 1.5 MiB, and JSON escapes can make
/// that six times as long.
pub(super) const OBJECT_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Largest page of a list that is read, and largest answer to a request of unknown kind. Our pages have 100 objects, mostly
/// of a few KB; half of the memory that our Pod may take is enough for 100 of 300 KB.
pub(super) const PAGE_BYTES_MAX: usize = 32 * 1024 * 1024;

/// Largest list that is read where the caller asked for all of it on one page, and so has the memory for it: 100,000
/// objects of 2.5 KB.
pub(super) const LIST_BYTES_MAX: usize = 256 * 1024 * 1024;

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
    /// For errors.
    at: Where,
    credentials: Credentials,
    connections: Mutex<Checked>,
    warned: Mutex<HashSet<String>>,
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
        let way = config.proxy.as_ref().map(through).unwrap_or_default();
        let at = Where { address: format!("{address}{way} ({})", config.origin), trust };
        let certificates = Certificates::read(&config.tls).map_err(Cause::Other)?;
        let connections = Arc::new(Connections::new(&config, certificates).map_err(Cause::Other)?);
        Ok(Transport {
            config,
            at,
            credentials: Credentials::new(login),
            connections: Mutex::new(Checked { connections, at: Some(Instant::now()) }),
            warned: Mutex::new(HashSet::new()),
        })
    }

    pub(super) fn config(&self) -> &Config {
        &self.config
    }

    /// Sends a request and reads the whole answer, of at most `bytes_max`. Repeats it where that is safe.
    pub(super) async fn call(&self, request: &Request, bytes_max: usize) -> Result<Answer, Cause> {
        let deadline = self.config.request_timeout;
        let mut renewed = false;
        let mut repeats = 0;
        loop {
            let credential = self.credentials.current().await.map_err(Cause::Other)?;
            let attempt = timeout(deadline, self.answer(request, bytes_max, &credential));
            let cause = match attempt.await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(cause)) => cause,
                Err(_) => self.late(),
            };
            if !renewed && self.renews(&credential, &cause).await? {
                renewed = true;
                continue;
            }
            let Some(pause) = pause(&request.method, &cause, repeats) else { return Err(cause) };
            debug!(method = %request.method, path = request.path, %cause, ?pause, "sent again");
            sleep(pause).await;
            repeats += 1;
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
                Err(_) => self.late(),
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
                Err(Cause::Unreadable(format!("{} answered with more than {bytes_max} bytes", request.path)))
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
            let probe = self.build(lane, &Request::get("/version"), credential)?;
            lane.open(probe, &self.at).await.inspect_err(|_| self.doubt_certificates())?;
        }
        let started = Instant::now();
        let sent = self.build(lane, request, credential)?.send().await;
        let response = sent.map_err(|error| {
            self.doubt_certificates();
            lane.failed(&error, &self.at)
        })?;
        lane.works();
        let (code, elapsed) = (response.status(), started.elapsed());
        debug!(method = %request.method, path = request.path, code = code.as_u16(), ?elapsed, "answered");
        self.log_warnings(response.headers());
        if code.is_success() { Ok(response) } else { Err(self.refused(response).await) }
    }

    async fn refused(&self, mut response: Response) -> Cause {
        let (code, headers) = (response.status(), response.headers().clone());
        // What can be read of it is enough: the code has said no.
        let body = read(&mut response, REFUSAL_BYTES_MAX).await.ok().flatten().unwrap_or_default();
        let mut cause = refusal(code, &headers, &body, SystemTime::now());
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

    fn late(&self) -> Cause {
        let deadline = humantime::format_duration(self.config.request_timeout);
        Cause::Late(format!("{}: no answer within {deadline}", self.at.address))
    }

    /// A connection can have broken because somebody has changed the certificates.
    fn doubt_certificates(&self) {
        lock(&self.connections).at = None;
    }

    fn build(
        &self,
        lane: &Lane,
        request: &Request,
        credential: &Credential,
    ) -> Result<reqwest::RequestBuilder, Cause> {
        let mut builder = lane
            .http
            .request(request.method.clone(), self.url(request)?)
            .headers(self.config.impersonate.clone())
            .header(USER_AGENT, AGENT)
            .header(ACCEPT, request.accept.as_ref());
        if let Some(authorization) = &credential.authorization {
            builder = builder.header(AUTHORIZATION, authorization);
        }
        if !request.body.is_empty() {
            builder = builder.header(CONTENT_TYPE, request.content_type.as_ref()).body(request.body.clone());
        }
        Ok(builder)
    }

    fn url(&self, request: &Request) -> Result<Url, Cause> {
        let mut url = self.config.server.clone();
        if let Some(name) = &self.config.tls.server_name {
            // reqwest verifies the URL's host, and sends it as SNI; [`ServerAddress`] leads the name to the server. An IP
            // address it would not lead there, as reqwest resolves none; the kubeconfig's reader refuses such a name.
            url.set_host(Some(name))
                .map_err(|_| Cause::Other(format!("tls-server-name {name}: not a host name")))?;
        }
        let text = format!("{}{}", url.as_str().trim_end_matches('/'), request.path);
        let mut url =
            Url::parse(&text).map_err(|error| Cause::Other(format!("{}: {error}", request.path)))?;
        if !request.query.is_empty() {
            url.query_pairs_mut().extend_pairs(&request.query);
        }
        Ok(url)
    }

    /// The connections to use; new ones where a certificate has changed.
    fn connections(&self, credential: &Credential) -> Arc<Connections> {
        let mut checked = lock(&self.connections);
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

    /// Deprecated APIs, unknown fields: each is said once.
    fn log_warnings(&self, headers: &HeaderMap) {
        for value in headers.get_all(WARNING) {
            let Ok(value) = value.to_str() else { continue };
            let text = warning_text(value);
            let mut warned = lock(&self.warned);
            if warned.contains(&text) {
                continue;
            }
            if warned.len() == WARNINGS_MAX {
                warned.clear();
            }
            warn!(warning = text, "the API server warns");
            warned.insert(text);
        }
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
        let calls = Arc::new(Lane::new(config, &certificates)?);
        let streams = Mutex::new(vec![Arc::new(Lane::new(config, &certificates)?)]);
        Ok(Connections { certificates, calls, streams })
    }

    /// A lane with room for one more stream. Lanes that have become empty go, but for the first.
    fn streams_lane(&self, config: &Config) -> Result<Arc<Lane>, String> {
        let mut lanes = lock(&self.streams);
        if let Some(lane) = lanes.iter().find(|lane| lane.streams() < STREAMS_MAX) {
            let lane = Arc::clone(lane);
            let mut first = true;
            lanes.retain(|lane| std::mem::take(&mut first) || lane.streams() > 0);
            return Ok(lane);
        }
        let lane = Arc::new(Lane::new(config, &self.certificates)?);
        lanes.push(Arc::clone(&lane));
        Ok(lane)
    }
}

impl Lane {
    fn new(config: &Config, certificates: &Certificates) -> Result<Lane, String> {
        let http = reqwest_client(config, certificates)?;
        Ok(Lane { http, worked: Mutex::new(None), opening: tokio::sync::Mutex::new(None) })
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
        match probe.send().await {
            Ok(_) => {
                self.works();
                Ok(())
            }
            Err(error) => {
                // Nothing of the request itself has been sent.
                let cause = match broken(&error, at) {
                    Cause::Lost(text) => Cause::Unreachable(text),
                    cause => cause,
                };
                *failed = Some((Instant::now(), cause.clone()));
                Err(cause)
            }
        }
    }

    fn is_open(&self) -> bool {
        lock(&self.worked).is_some_and(|when| when.elapsed() < IDLE_MAX)
    }

    fn works(&self) {
        *lock(&self.worked) = Some(Instant::now());
    }

    fn broke(&self) {
        *lock(&self.worked) = None;
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

fn reqwest_client(config: &Config, certificates: &Certificates) -> Result<reqwest::Client, String> {
    let mut builder = reqwest::Client::builder()
        .http2_initial_stream_window_size(STREAM_WINDOW_BYTES)
        .http2_initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .http2_keep_alive_interval(KEEP_ALIVE)
        .http2_keep_alive_timeout(KEEP_ALIVE_ANSWER)
        .http2_keep_alive_while_idle(true)
        .tcp_keepalive(KEEP_ALIVE)
        .tcp_keepalive_interval(KEEP_ALIVE_ANSWER)
        .connect_timeout(CONNECT_WAIT)
        .redirect(Policy::none());
    // HTTP/1.1 has no ping: here it is the kernel that gives up on a peer which acknowledges nothing.
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

/// rustls needs to be told once per process who does its arithmetic.
fn install_crypto() {
    static ONCE: Once = Once::new();
    // An error says that somebody has told it already, which is as good.
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

/// No code panics while it holds one of our locks, and what they guard is whole at all times.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use tokio::{
        io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
        net::TcpListener,
        task::JoinSet,
    };

    use super::{
        super::{Body, Client, Config, Error},
        *,
    };

    /// Closes the connection instead of an answer.
    const HANG_UP: &str = "";
    const FINE: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";
    const BUSY: &str = "HTTP/1.1 429 Too Many Requests\r\nRetry-After: 0\r\nContent-Length: 5\r\n\r\nlater";

    /// A server that gives these answers, in this order, and writes down what it was asked. It always has a /version.
    struct Script {
        answers: Mutex<VecDeque<&'static str>>,
        asked: Mutex<Vec<String>>,
    }

    impl Script {
        fn new(answers: &[&'static str]) -> Arc<Script> {
            Arc::new(Script {
                answers: Mutex::new(answers.iter().copied().collect()),
                asked: Mutex::default(),
            })
        }

        /// Method and path of the requests so far.
        fn asked(&self) -> Vec<String> {
            let line =
                |head: &String| head.lines().next().unwrap_or_default().trim_end_matches(" HTTP/1.1").into();
            lock(&self.asked).iter().map(line).collect()
        }

        /// What the requests so far had in a header.
        #[cfg(feature = "apiserver")]
        fn header(&self, name: &str) -> Vec<String> {
            let value =
                |head: &String| head.lines().find_map(|line| line.strip_prefix(name).map(ToOwned::to_owned));
            lock(&self.asked).iter().filter_map(value).collect()
        }

        async fn serve(self: Arc<Script>, mut peer: impl AsyncRead + AsyncWrite + Unpin) {
            let mut read = Vec::new();
            while peer.read_buf(&mut read).await.is_ok_and(|count| count > 0) {
                let text = String::from_utf8_lossy(&read).to_lowercase();
                let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
                let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
                if body.len() < length.map_or(0, |length| length.parse().unwrap_or_default()) {
                    continue;
                }
                let head = String::from_utf8_lossy(&read[..head.len()]).into_owned();
                read.clear();
                let answer = if head.starts_with("GET /version ") {
                    FINE
                } else {
                    lock(&self.asked).push(head);
                    lock(&self.answers).pop_front().unwrap_or(HANG_UP)
                };
                let sent = peer.write_all(answer.as_bytes()).await;
                if sent.is_err() || !answer.contains("Length: ") {
                    return;
                }
            }
        }
    }

    /// A client of a server with these answers, on plain HTTP. The server ends with the set.
    async fn client(answers: &[&'static str]) -> (Client, Arc<Script>, JoinSet<()>) {
        let script = Script::new(answers);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let mut server = JoinSet::new();
        let scripted = Arc::clone(&script);
        server.spawn(async move {
            let mut peers = JoinSet::new();
            while let Ok((peer, _)) = listener.accept().await {
                peers.spawn(Arc::clone(&scripted).serve(peer));
            }
        });
        let config = Config::new(&format!("http://{address}"), b"", "").expect("a config");
        (Client::new(config).expect("a client"), script, server)
    }

    fn request(method: Method) -> Request {
        Request { method, ..Request::get("/x") }
    }

    #[tokio::test]
    async fn a_get_is_sent_again_when_the_connection_broke_and_a_write_is_not() {
        let (client, script, _server) = client(&[HANG_UP, FINE, HANG_UP]).await;
        assert_eq!(client.send(request(Method::GET)).await.expect("an answer").status, 200);
        assert_eq!(script.asked(), ["GET /x", "GET /x"]);
        let error = client.send(request(Method::PATCH)).await.expect_err("no answer");
        assert!(error.is_interrupted() && !error.is_connection(), "{error}");
        assert_eq!(script.asked().len(), 3);
    }

    #[tokio::test]
    async fn a_server_that_says_when_is_asked_again_with_any_verb_but_not_for_ever() {
        let (client, script, _server) = client(&[BUSY, BUSY, FINE, BUSY, BUSY, BUSY, BUSY, FINE]).await;
        assert_eq!(client.send(request(Method::POST)).await.expect("an answer").status, 200);
        assert_eq!(script.asked().len(), 3);
        let error = client.send(request(Method::DELETE)).await.expect_err("still busy");
        assert_eq!(error.to_string(), "delete /x: 429 Too Many Requests: later");
        assert_eq!(script.asked().len(), 3 + 1 + REPEATS_MAX as usize);
    }

    /// A minute was waited for, three times over, before the caller heard of it.
    #[tokio::test]
    async fn a_server_that_asks_for_a_long_wait_is_the_callers() {
        let away = "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 6\r\nContent-Length: 0\r\n\r\n";
        let (client, script, _server) = client(&[away, FINE]).await;
        let error = client.send(request(Method::GET)).await.expect_err("away");
        assert_eq!(error.retry_after(), Some(Duration::from_secs(6)));
        assert_eq!(script.asked().len(), 1);
    }

    #[tokio::test]
    async fn without_retry_after_no_answer_is_asked_for_again() {
        let down = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n";
        let (client, script, _server) = client(&[down, FINE]).await;
        let error = client.send(request(Method::GET)).await.expect_err("down");
        assert_eq!(error.to_string(), "get /x: 503 Service Unavailable");
        assert_eq!(script.asked().len(), 1);
    }

    #[tokio::test]
    async fn an_answer_has_a_deadline_and_an_open_stream_has_none() {
        let open = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{";
        let never = "HTTP/1.1 200 OK\r\nX-Length: 2\r\n";
        let (client, script, _server) = client(&[never, open]).await;
        let deadline = Duration::from_millis(50);
        let mut config = Config::new(client.server(), b"", "").expect("a config");
        config.request_timeout = deadline;
        let client = Client::new(config).expect("a client");
        let error = client.send(request(Method::GET)).await.expect_err("no answer");
        let line = format!("get /x: {} (given address): no answer within 50ms", client.server());
        assert_eq!(error.to_string(), line);
        assert!(error.is_interrupted());
        assert_eq!(script.asked().len(), 1);

        let (_, mut body) = client.stream(Request::get("/x")).await.expect("a stream");
        assert_eq!(body.chunk().await.expect("a chunk").as_deref(), Some(b"{".as_slice()));
        timeout(2 * deadline, body.chunk()).await.expect_err("a quiet stream");
    }

    /// There was one limit for all, four times what the Pod may take.
    #[tokio::test]
    async fn an_answer_larger_than_its_limit_is_not_read() {
        let (client, _script, _server) = client(&[FINE, FINE]).await;
        let error = async |max| client.transport.call(&request(Method::GET), max).await.err();
        assert_eq!(
            error(1).await.map(|cause| cause.to_string()),
            Some("/x answered with more than 1 bytes".to_owned())
        );
        assert!(error(2).await.is_none());
    }

    #[tokio::test]
    async fn a_stream_tells_an_end_from_a_cut() {
        let whole = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n{}\n\r\n0\r\n\r\n";
        let cut = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n{}\n\r\n9\r\n{\"ty";
        let (client, _script, _server) = client(&[whole, cut, BUSY]).await;

        let read = async |mut body: Body| -> Result<Vec<u8>, Error> {
            let mut all = Vec::new();
            while let Some(chunk) = body.chunk().await? {
                all.extend_from_slice(&chunk);
            }
            Ok(all)
        };
        let (head, body) = client.stream(Request::get("/x")).await.expect("a stream");
        assert_eq!(head.status, 200);
        assert_eq!(read(body).await.expect("an end"), b"{}\n");
        let (_, body) = client.stream(Request::get("/x")).await.expect("a stream");
        assert!(read(body).await.expect_err("a cut").is_interrupted());
        let error = client.stream(Request::get("/x")).await.expect_err("busy");
        assert_eq!((error.code(), error.retry_after()), (Some(429), Some(Duration::ZERO)));
    }

    #[tokio::test]
    async fn a_path_before_every_other_and_a_query_are_kept() {
        let (client, script, _server) = client(&[FINE, FINE]).await;
        let config = Config::new(&format!("{}/k8s/clusters/c/", client.server()), b"", "").expect("a config");
        let query = vec![("labelSelector", "a in (b,c)".to_owned())];
        let request = Request { query, ..Request::get("/api/v1/pods?limit=1") };
        let under = Client::new(config).expect("a client");
        under.send(request).await.expect("an answer");
        assert_eq!(
            script.asked(),
            [
                "GET /k8s/clusters/c/version",
                "GET /k8s/clusters/c/api/v1/pods?limit=1&labelSelector=a+in+%28b%2Cc%29"
            ]
        );
    }

    #[tokio::test]
    async fn where_nobody_listens_is_never_reached() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        drop(listener);
        let config = Config::new(&format!("http://{address}"), b"", "").expect("a config");
        let error = Client::new(config).expect("a client").version().await.expect_err("nobody");
        assert!(error.is_connection());
        let line =
            format!("http://{address} (given address): connection refused: does an API server run there?");
        assert_eq!(error.to_string(), format!("get /version: {line}"));
    }

    /// The API server was blamed for a proxy that does not run.
    #[tokio::test]
    async fn a_proxy_is_named_without_its_password() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        drop(listener);
        let mut config = Config::new("http://h", b"", "").expect("a config");
        config.proxy = Some(Url::parse(&format!("http://me:s3cret@{address}")).expect("a URL"));
        let error = Client::new(config).expect("a client").version().await.expect_err("nobody");
        let start = format!("get /version: http://h through the proxy {address} (given address): ");
        assert!(error.to_string().starts_with(&start), "{error}");
        assert!(!error.to_string().contains("s3cret"), "{error}");
        assert_eq!(through(&Url::parse("socks5://p").expect("a URL")), " through the proxy p:1080");
    }

    #[tokio::test]
    async fn the_ninety_first_stream_gets_another_connection_and_gives_it_back() {
        install_crypto();
        let config = Config::new("http://127.0.0.1:1", b"", "").expect("a config");
        let connections =
            Connections::new(&config, Certificates { authority: None, identity: None }).expect("connections");
        let lane = || connections.streams_lane(&config).expect("a lane");
        let first: Vec<_> = (0..STREAMS_MAX).map(|_| lane()).collect();
        assert!(first.iter().all(|lane| Arc::ptr_eq(lane, &first[0])));
        let other = lane();
        assert!(!Arc::ptr_eq(&other, &first[0]));
        drop((first, other));
        let _one = lane();
        assert_eq!(lock(&connections.streams).len(), 1);
    }

    #[test]
    fn warnings_are_unquoted() {
        assert_eq!(warning_text(r#"299 - "unknown field \"spec.x\"""#), r#"unknown field "spec.x""#);
        assert_eq!(warning_text("odd"), "odd");
    }

    /// These need a certificate, which the embedded API server's libraries make.
    #[cfg(feature = "apiserver")]
    mod tls {
        use std::{fs, path::Path};

        use rcgen::{CertifiedKey, generate_simple_self_signed};
        use tokio_rustls::TlsAcceptor;

        use super::{super::super::Options, *};

        const REFUSED: &str = "HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n";

        /// A server on TLS, and a directory with its kubeconfig, `ca.crt` and `token`.
        async fn server(dir: &Path, answers: &[&'static str]) -> (Arc<Script>, JoinSet<()>) {
            install_crypto();
            let script = Script::new(answers);
            let CertifiedKey { cert, signing_key } =
                generate_simple_self_signed(["kubernetes.default".to_owned()]).expect("a certificate");
            let key = signing_key.serialize_der().try_into().expect("a key");
            let tls = rustls::ServerConfig::builder()
                .with_no_client_auth()
                .with_single_cert(vec![cert.der().clone()], key)
                .expect("a certificate and its key");
            let acceptor = TlsAcceptor::from(Arc::new(tls));
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
            let address = listener.local_addr().expect("an address");
            let text = format!(
                "current-context: c\ncontexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n\
                 clusters: [{{name: k, cluster: {{server: 'https://{address}', certificate-authority: ca.crt, \
                 tls-server-name: kubernetes.default}}}}]\nusers: [{{name: u, user: {{tokenFile: token}}}}]\n"
            );
            fs::write(dir.join("kubeconfig"), text).expect("a file");
            fs::write(dir.join("ca.crt"), cert.pem()).expect("a file");
            fs::write(dir.join("token"), "one").expect("a file");
            let mut tasks = JoinSet::new();
            let scripted = Arc::clone(&script);
            tasks.spawn(async move {
                let mut peers = JoinSet::new();
                while let Ok((peer, _)) = listener.accept().await {
                    let (acceptor, script) = (acceptor.clone(), Arc::clone(&scripted));
                    peers.spawn(async move {
                        if let Ok(peer) = acceptor.accept(peer).await {
                            script.serve(peer).await;
                        }
                    });
                }
            });
            (script, tasks)
        }

        fn connect(dir: &Path) -> Client {
            let options = Options { kubeconfig: Some(dir.join("kubeconfig")), ..Options::default() };
            let config = Config::load(&options, &super::super::super::Env::default()).expect("a config");
            Client::new(config).expect("a client")
        }

        #[tokio::test]
        async fn a_401_reads_the_token_again_and_repeats_the_request_once() {
            let dir = tempfile::tempdir().expect("a directory");
            let (script, _server) = server(dir.path(), &[FINE, REFUSED, FINE, REFUSED, REFUSED, FINE]).await;
            let client = connect(dir.path());
            client.send(request(Method::GET)).await.expect("an answer");
            fs::write(dir.path().join("token"), "two\n").expect("a file");
            client.send(request(Method::DELETE)).await.expect("an answer");
            assert_eq!(script.asked(), ["GET /x", "DELETE /x", "DELETE /x"]);
            assert_eq!(script.header("authorization: "), ["Bearer one", "Bearer one", "Bearer two"]);

            let error = client.send(request(Method::GET)).await.expect_err("refused");
            assert!(error.is_unauthorized());
            let line = error.to_string();
            assert!(line.contains("does not accept user u of context c") && !line.contains("two"), "{line}");
            assert_eq!(script.asked().len(), 5);
        }

        #[tokio::test]
        async fn plain_http_to_a_tls_server_is_told_how_to_go_on() {
            let dir = tempfile::tempdir().expect("a directory");
            let (_script, _server) = server(dir.path(), &[]).await;
            let address = connect(dir.path()).server().replace("https://", "http://");
            let client = Client::new(Config::new(&address, b"", "").expect("a config")).expect("a client");
            let line = client.version().await.expect_err("no HTTP").to_string();
            let cause = "the server does not speak plain HTTP: should its address be https:// ?";
            assert_eq!(line, format!("get /version: {address} (given address): {cause}"));
        }

        #[tokio::test]
        async fn a_replaced_authority_is_believed_at_the_next_attempt() {
            let dir = tempfile::tempdir().expect("a directory");
            let (_script, _server) = server(dir.path(), &[FINE, FINE]).await;
            let right = fs::read(dir.path().join("ca.crt")).expect("a file");
            let other = generate_simple_self_signed(["other".to_owned()]).expect("a certificate");
            fs::write(dir.path().join("ca.crt"), other.cert.pem()).expect("a file");
            let client = connect(dir.path());
            let error = client.send(request(Method::PATCH)).await.expect_err("a stranger");
            assert!(error.is_connection());
            let line = error.to_string();
            assert!(
                line.contains("certificate signed by an unknown authority: is clusters[k].cluster"),
                "{line}"
            );

            // Half written: the last good one is kept, and the error stays the same.
            fs::write(dir.path().join("ca.crt"), "-----BEGIN").expect("a file");
            assert!(client.send(request(Method::PATCH)).await.expect_err("a stranger").is_connection());
            fs::write(dir.path().join("ca.crt"), right).expect("a file");
            client.send(request(Method::PATCH)).await.expect("an answer");
        }
    }
}
