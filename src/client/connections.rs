//! The connections to one API server: one for calls, and one for every 90 streams, or fewer if the server takes fewer.
//!
//! ```text
//! connection 1, calls                         connection 2, streams
//! :method PATCH :path /apis/apps/v1/…         :method GET :path /apis/apps/v1/deployments?watch=1&…
//!         ◄ 200 {…}                                   ◄ 200 {"type":"ADDED",…}\n{"type":…
//! ```
//!
//! A write never waits behind a watch, because each [`Connection`] is a reqwest client of its own, which with HTTP/2 is one
//! TCP connection.
//!
//! Measured on kube-apiserver 1.36: with the default windows of the libraries, three watches that nobody reads stop every
//! other answer on their connection; with the windows below, fifty do not.
//!
//! When a certificate file has changed, new connections replace the old ones. Open streams keep theirs until they end.

use std::{
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use reqwest::{Proxy, RequestBuilder, Response, redirect::Policy};
use tokio::time::Instant;
use tracing::{debug, warn};

use super::{
    InProcess,
    auth::{Credential, FILE_AGE_MAX},
    config::Config,
    error::Cause,
    no_answer::{Where, broken},
    tls::Certificates,
};
use crate::locked;

/// Streams on one connection. The API server takes 100; any further request would wait until one of them ends. If the server
/// takes fewer, see [`Connection::stream_was_late`].
const STREAMS_MAX: usize = 90;

/// Idle time after which a connection may be closed: the API server closes one after 90 s.
const IDLE_MAX: Duration = Duration::from_secs(60);

/// How long the pool of reqwest keeps a connection without new requests. For calls, as long as the API server does. For
/// streams, until it closes: a watch outlives every such time, and once the pool has dropped the connection, the next
/// watch would open another one. PING detects a dead connection.
const CALLS_IDLE_MAX: Option<Duration> = Some(Duration::from_secs(90));
const STREAMS_IDLE_MAX: Option<Duration> = None;

/// HTTP/2 window of a stream: the bytes that the server may send before we read them. An unread watch takes these from
/// the window of its connection, and no more.
const STREAM_WINDOW_BYTES: u32 = 256 * 1024;

/// HTTP/2 window of a connection. Larger than the windows of all its streams together (100 × 256 KiB), so that unread
/// streams leave room for the others.
const CONNECTION_WINDOW_BYTES: u32 = 32 * 1024 * 1024;

/// Time without traffic after which a PING is sent, and the time that the server has to answer it. client-go's values: a
/// dead connection is noticed within 45 s.
const KEEP_ALIVE: Duration = Duration::from_secs(30);
const KEEP_ALIVE_ANSWER: Duration = Duration::from_secs(15);

/// Longest wait for TCP and TLS. Twice the time in which TCP repeats a lost SYN three times, and half of the default
/// deadline of a request.
const CONNECT_WAIT: Duration = Duration::from_secs(15);

/// The connections to one API server.
pub(super) struct Connections {
    current: Mutex<Current>,
}

/// Connections made with the same certificates.
struct Current {
    certificates: Certificates,
    calls: Arc<Connection>,
    /// Never empty.
    streams: Vec<Arc<Connection>>,
    /// When the certificates were last compared with the files. `None`: they are compared before the next request.
    checked: Option<Instant>,
}

/// One reqwest client: with HTTP/2, one TCP connection. Every open stream holds an [`Arc`] of its connection, so that the
/// strong count is the number of streams.
pub(super) struct Connection {
    pub(super) http: reqwest::Client,
    in_process: Option<Arc<dyn InProcess>>,
    /// At most [`STREAMS_MAX`].
    streams_max: AtomicUsize,
    /// For errors.
    at: Where,
    /// When it last brought an answer. `None`: not yet, or it broke since.
    worked: Mutex<Option<Instant>>,
    /// Locked by the request that opens the connection. The others wait for the lock, and share a failure.
    opening: tokio::sync::Mutex<Option<(Instant, Cause)>>,
}

impl Connections {
    /// Reads certificates, and does not connect.
    pub(super) fn new(config: &Config) -> Result<Connections, String> {
        let current = Current::new(config, Certificates::read(&config.tls)?)?;
        Ok(Connections { current: Mutex::new(current) })
    }

    /// The connection for calls.
    pub(super) fn for_call(&self, config: &Config, credential: &Credential) -> Arc<Connection> {
        Arc::clone(&self.current(config, credential).calls)
    }

    /// A connection with room for one more stream.
    pub(super) fn for_stream(
        &self,
        config: &Config,
        credential: &Credential,
    ) -> Result<Arc<Connection>, String> {
        self.current(config, credential).for_stream(config)
    }

    /// How many connections work.
    pub(super) fn open(&self) -> usize {
        let current = locked(&self.current);
        let all = current.streams.iter().chain([&current.calls]);
        all.filter(|connection| connection.is_open() || connection.streams() > 0).count()
    }

    /// A connection broke. The reason may be a changed certificate, so the files are compared before the next request.
    pub(super) fn doubt_certificates(&self) {
        locked(&self.current).checked = None;
    }

    /// The connections in use; new ones where a certificate has changed.
    fn current(&self, config: &Config, credential: &Credential) -> MutexGuard<'_, Current> {
        let mut current = locked(&self.current);
        let issued = credential.identity.as_deref();
        let same_identity = issued.is_none() || issued == current.certificates.identity.as_deref();
        if same_identity && current.checked.is_some_and(|at| at.elapsed() < FILE_AGE_MAX) {
            return current;
        }
        let new = Certificates::read(&config.tls).and_then(|mut certificates| {
            if let Some(identity) = issued {
                certificates.identity = Some(identity.to_vec());
            }
            if certificates == current.certificates {
                return Ok(None);
            }
            Current::new(config, certificates).map(Some)
        });
        match new {
            Ok(Some(new)) => *current = new,
            Ok(None) => {}
            Err(error) => warn!(error, "certificates not read, the last ones are kept"),
        }
        current.checked = Some(Instant::now());
        current
    }
}

impl Current {
    fn new(config: &Config, certificates: Certificates) -> Result<Current, String> {
        let calls = Arc::new(Connection::new(config, &certificates, CALLS_IDLE_MAX)?);
        let streams = vec![Arc::new(Connection::new(config, &certificates, STREAMS_IDLE_MAX)?)];
        Ok(Current { certificates, calls, streams, checked: Some(Instant::now()) })
    }

    /// The first connection with room. Drops connections without streams, but for the first.
    fn for_stream(&mut self, config: &Config) -> Result<Arc<Connection>, String> {
        if let Some(connection) = self.streams.iter().find(|connection| connection.has_room()) {
            let connection = Arc::clone(connection);
            let mut first = true;
            self.streams.retain(|connection| std::mem::take(&mut first) || connection.streams() > 0);
            return Ok(connection);
        }
        let connection = Arc::new(Connection::new(config, &self.certificates, STREAMS_IDLE_MAX)?);
        self.streams.push(Arc::clone(&connection));
        Ok(connection)
    }
}

impl Connection {
    fn new(
        config: &Config,
        certificates: &Certificates,
        idle_max: Option<Duration>,
    ) -> Result<Connection, String> {
        Ok(Connection {
            http: reqwest_client(config, certificates, idle_max)?,
            in_process: config.in_process.clone(),
            streams_max: AtomicUsize::new(STREAMS_MAX),
            at: Where::of(config),
            worked: Mutex::new(None),
            opening: tokio::sync::Mutex::new(None),
        })
    }

    pub(super) async fn send(&self, request: RequestBuilder) -> Result<Response, Cause> {
        if let Some(server) = &self.in_process {
            return super::in_process::send(&**server, request).await.inspect_err(|_| self.broke());
        }
        request.send().await.map_err(|error| self.failed(&error))
    }

    /// The streams that hold this connection. [`Current::streams`] also holds it.
    pub(super) fn streams(self: &Arc<Connection>) -> usize {
        Arc::strong_count(self) - 1
    }

    fn has_room(self: &Arc<Connection>) -> bool {
        let streams = self.streams();
        if streams == 0 {
            // The next TCP connection may be to another server.
            self.streams_max.store(STREAMS_MAX, Ordering::Relaxed);
        }
        streams < self.streams_max.load(Ordering::Relaxed)
    }

    /// A stream on this connection was not answered in time. If there are other streams, this is as many as the server takes:
    /// `--http2-max-streams-per-connection` of kube-apiserver, or the limit of a proxy. HTTP/2 keeps further requests waiting
    /// without an error, and reqwest does not show the limit of the server. If the server was only slow, the next stream opens
    /// one connection more than needed.
    pub(super) fn stream_was_late(self: &Arc<Connection>) {
        let others = self.streams().saturating_sub(1);
        if others > 0 {
            self.streams_max.fetch_min(others, Ordering::Relaxed);
        }
    }

    /// Makes sure that there is a connection: many requests at once would each open one.
    pub(super) async fn open(&self, probe: RequestBuilder) -> Result<(), Cause> {
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
        // Any answer proves that there is a connection, even a 401.
        match self.send(probe).await {
            Ok(_) => {
                debug!(server = self.at.address, elapsed = ?asked.elapsed(), "connected");
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

    pub(super) fn is_open(&self) -> bool {
        locked(&self.worked).is_some_and(|when| when.elapsed() < IDLE_MAX)
    }

    pub(super) fn works(&self) {
        *locked(&self.worked) = Some(Instant::now());
    }

    fn broke(&self) {
        *locked(&self.worked) = None;
    }

    pub(super) fn failed(&self, error: &reqwest::Error) -> Cause {
        self.broke();
        broken(error, &self.at)
    }
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
    // HTTP/1.1 has no PING. There, the kernel gives up on a peer that acknowledges nothing. A proxy may acknowledge for a
    // dead server; the watch detects that by its own timeout, see [`Liveness::NotPinged`](super::Liveness::NotPinged).
    #[cfg(target_os = "linux")]
    {
        builder = builder.tcp_user_timeout(KEEP_ALIVE + KEEP_ALIVE_ANSWER);
    }
    builder = match &config.proxy {
        Some(proxy) => {
            let proxy = Proxy::all(proxy.clone()).map_err(|_| "proxy-url: not usable".to_owned())?;
            builder.proxy(proxy)
        }
        None if config.ignores_proxy_variables() => builder.no_proxy(),
        None => builder,
    };
    certificates.configure(config, builder)?.build().map_err(|error| {
        let cause = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
        format!("certificates of {}: {cause}", config.origin)
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rcgen::{CertifiedKey, generate_simple_self_signed};

    use super::{
        super::{Options, config::Env, tls::install_crypto},
        *,
    };

    #[tokio::test]
    async fn the_ninety_first_stream_gets_another_connection_and_gives_it_back() {
        install_crypto();
        let config = Config::new("http://127.0.0.1:1", b"", "").expect("a config");
        let mut current = Current::new(&config, Certificates::default()).expect("connections");
        let mut connection = || {
            let connection = current.for_stream(&config).expect("a connection");
            (connection, current.streams.len())
        };
        let first: Vec<_> = (0..STREAMS_MAX).map(|_| connection().0).collect();
        assert!(first.iter().all(|connection| Arc::ptr_eq(connection, &first[0])));
        let (other, _) = connection();
        assert!(!Arc::ptr_eq(&other, &first[0]));
        drop(first);
        let (one, connections) = connection();
        assert_eq!(connections, 2, "a stream is open on the other");
        drop((one, other));
        assert_eq!(connection().1, 1);
    }

    #[tokio::test]
    async fn a_late_stream_limits_its_connection_to_the_others_until_these_have_ended() {
        install_crypto();
        let config = Config::new("http://127.0.0.1:1", b"", "").expect("a config");
        let mut current = Current::new(&config, Certificates::default()).expect("connections");
        let mut connection = || current.for_stream(&config).expect("a connection");
        let first = connection();
        first.stream_was_late();
        let late = connection();
        assert!(Arc::ptr_eq(&first, &late), "a stream that is late alone limits nothing");
        late.stream_was_late();
        drop(late);
        let other = connection();
        assert!(!Arc::ptr_eq(&first, &other));
        drop(first);
        let (first, second) = (connection(), connection());
        assert!(Arc::ptr_eq(&first, &second) && !Arc::ptr_eq(&first, &other));
    }

    #[test]
    fn a_new_certificate_of_a_plugin_makes_new_connections() {
        install_crypto();
        let issue = || generate_simple_self_signed(["any".to_owned()]).expect("a certificate");
        let credential = || {
            let CertifiedKey { cert, signing_key } = issue();
            let pem = cert.pem() + &signing_key.serialize_pem();
            Credential { identity: Some(pem.into_bytes().into()), ..Credential::default() }
        };
        let config = Config::new("https://h", issue().cert.pem().as_bytes(), "").expect("a config");
        let connections = Connections::new(&config).expect("connections");
        let (one, other) = (credential(), credential());
        let before = connections.for_call(&config, &one);
        assert!(Arc::ptr_eq(&before, &connections.for_call(&config, &one)));
        assert!(!Arc::ptr_eq(&before, &connections.for_call(&config, &other)));
    }

    #[test]
    fn certificate_files_are_compared_again_after_a_minute() {
        install_crypto();
        let dir = tempfile::tempdir().expect("a directory");
        let (kubeconfig, authority) = (dir.path().join("kubeconfig"), dir.path().join("ca.crt"));
        let text = "current-context: c\ncontexts: [{name: c, context: {cluster: k, user: u}}]\n\
            clusters: [{name: k, cluster: {server: 'https://h', certificate-authority: ca.crt}}]\n\
            users: [{name: u, user: {client-certificate: u.crt, client-key: u.key}}]\n";
        fs::write(&kubeconfig, text).expect("a file");
        let user = generate_simple_self_signed(["u".to_owned()]).expect("a certificate");
        fs::write(dir.path().join("u.crt"), user.cert.pem()).expect("a file");
        fs::write(dir.path().join("u.key"), user.signing_key.serialize_pem()).expect("a file");
        let replace_authority = || {
            let authority_of = generate_simple_self_signed(["any".to_owned()]).expect("a certificate");
            fs::write(&authority, authority_of.cert.pem()).expect("a file");
        };
        replace_authority();
        let options = Options { kubeconfig: Some(kubeconfig), ..Options::default() };
        let config = Config::load(&options, &Env::default()).expect("a config");
        let connections = Connections::new(&config).expect("connections");
        let for_call = |age: Duration| {
            locked(&connections.current).checked = Instant::now().checked_sub(age);
            connections.for_call(&config, &Credential::default())
        };
        let before = for_call(Duration::ZERO);
        replace_authority();
        assert!(Arc::ptr_eq(&before, &for_call(Duration::ZERO)));
        assert!(!Arc::ptr_eq(&before, &for_call(FILE_AGE_MAX)));
    }
}
