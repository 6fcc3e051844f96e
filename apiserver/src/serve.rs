//! Connections: TLS with a certificate of our own making, HTTP/1.1 or HTTP/2 as the client likes (ALPN), and the
//! tasks that serve them.

use std::{
    fmt::Display,
    pin::pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use http::{Method, Response, header};
use http_body_util::BodyExt;
use hyper::{body::Body, rt::Executor, service::service_fn};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::conn::auto,
};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls::{ServerConfig, pki_types::PrivateKeyDer};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::JoinSet,
    time::Instant,
};
use tokio_rustls::TlsAcceptor;

use super::{
    Fault, RequestRecord, Server,
    answer::{self, Answer},
    encode::AnswerBody,
    faults::{self, Cut},
    lock,
    refusal::Refusal,
    request::{Query, Request},
};

/// Largest body of a request: `MaxRequestBodyBytes` of the real one.
const BODY_BYTES_MAX: usize = 3 * 1024 * 1024;

/// How much of a body that is too large is read all the same, and dropped. Over HTTP/2 a body that nobody reads is a
/// stream error for its sender, who then never sees our 413.
const BODY_BYTES_DROPPED_MAX: usize = 64 * 1024 * 1024;

/// How long a client may take for the TLS handshake: the limit of Go's own HTTP transport.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);

/// How long an HTTP/1.1 connection waits for the next request head. hyper counts the time between two requests as
/// well, in which a client rightly keeps the connection: so it is the `IdleTimeout` of kube-apiserver.
const HEAD_MAX: Duration = Duration::from_secs(90);

/// Most connections at a time; who comes then waits. Of 1024 file descriptors, which a process has by default, the rest
/// is for other things.
const CONNECTIONS_MAX: usize = 1000;

/// How long a connection may have neither a new request nor an open watch: `IdleTimeout` of kube-apiserver, as for
/// HTTP/1.1. It also rids us of clients that do not read the answers they asked for.
const IDLE_MAX: Duration = HEAD_MAX;

/// Streams on one HTTP/2 connection, and the window of each: what kube-apiserver 1.36 sends in its SETTINGS.
const HTTP2_STREAMS_MAX: u32 = 100;
const HTTP2_WINDOW_BYTES: u32 = 256 * 1024;

/// Our certificate authority, and what it signed for us.
pub(super) struct Identity {
    pub(super) ca_pem: String,
    pub(super) acceptor: TlsAcceptor,
}

impl Identity {
    /// Elliptic keys (P-256) are made in no time; RSA would take longer than everything else at start.
    pub(super) fn new() -> Result<Identity, String> {
        let text = |error: &dyn Display| error.to_string();
        let mut params = CertificateParams::new(Vec::new()).map_err(|error| text(&error))?;
        params.distinguished_name.push(DnType::CommonName, "listwatch embedded CA");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let ca_key = KeyPair::generate().map_err(|error| text(&error))?;
        let ca = params.self_signed(&ca_key).map_err(|error| text(&error))?;
        let issuer = Issuer::new(params, ca_key);

        let names = vec!["127.0.0.1".to_owned(), "localhost".to_owned(), "kubernetes.default.svc".to_owned()];
        let mut params = CertificateParams::new(names).map_err(|error| text(&error))?;
        params.distinguished_name.push(DnType::CommonName, "kube-apiserver");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate().map_err(|error| text(&error))?;
        let certificate = params.signed_by(&key, &issuer).map_err(|error| text(&error))?;

        let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| text(&error))?
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone(), ca.der().clone()], key)
            .map_err(|error| text(&error))?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Identity { ca_pem: ca.pem(), acceptor: TlsAcceptor::from(Arc::new(config)) })
    }
}

/// All tasks of a server, so that all of them end with it. hyper spawns the streams of HTTP/2 in here as well.
#[derive(Clone, Debug, Default)]
pub(super) struct Tasks(Arc<Mutex<JoinSet<()>>>);

impl Tasks {
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = lock(&self.0);
        while let Some(ended) = tasks.try_join_next() {
            if let Err(error) = ended {
                tracing::error!(%error, "a task of the API server died");
            }
        }
        tasks.spawn(task);
    }

    pub(super) fn abort(&self) {
        lock(&self.0).abort_all();
    }

    /// Abort, and wait until all are gone and their sockets closed.
    pub(super) async fn stop(&self) {
        let mut tasks = std::mem::take(&mut *lock(&self.0));
        tasks.shutdown().await;
    }
}

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Tasks {
    fn execute(&self, task: F) {
        self.spawn(task);
    }
}

/// Take connections. Runs until aborted.
pub(super) async fn accept(listener: TcpListener, acceptor: TlsAcceptor, server: Arc<Server>, tasks: Tasks) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let place = Arc::clone(&places).acquire_owned().await.expect("nobody closes it");
        match listener.accept().await {
            Ok((stream, _)) => {
                let connection = connection(stream, acceptor.clone(), Arc::clone(&server), tasks.clone());
                tasks.spawn(async move {
                    connection.await;
                    drop(place);
                });
            }
            Err(error) => {
                // Out of file descriptors, most likely: others may close theirs meanwhile.
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn connection(stream: TcpStream, acceptor: TlsAcceptor, server: Arc<Server>, tasks: Tasks) {
    // Events are small and should leave at once.
    let _ = stream.set_nodelay(true);
    let mut restarts = server.restarts.subscribe();
    let stream = match tokio::time::timeout(HANDSHAKE_MAX, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            tracing::debug!(%error, "TLS handshake failed");
            return;
        }
        Err(_) => {
            tracing::debug!("TLS handshake took too long");
            return;
        }
    };
    let mut builder = auto::Builder::new(tasks);
    // What the handshake agreed on is not guessed again from the first bytes, for which nothing would limit the wait.
    builder = match stream.get_ref().1.alpn_protocol() {
        Some(b"h2") => builder.http2_only(),
        Some(_) | None => builder.http1_only(),
    };
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEAD_MAX).title_case_headers(true);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(HTTP2_STREAMS_MAX)
        .initial_stream_window_size(HTTP2_WINDOW_BYTES)
        .max_send_buf_size(HTTP2_WINDOW_BYTES as usize);
    // One more for each request that is being answered and each open watch.
    let busy = Arc::new(());
    let count = Arc::new(AtomicU64::new(0));
    let is_admins = Arc::new(AtomicBool::new(false));
    let service = {
        let (busy, count, is_admins) = (Arc::clone(&busy), Arc::clone(&count), Arc::clone(&is_admins));
        service_fn(move |request: http::Request<_>| {
            count.fetch_add(1, Ordering::Relaxed);
            is_admins.store(request.uri().path() == faults::PATH, Ordering::Relaxed);
            serve(Arc::clone(&server), request, Arc::clone(&busy))
        })
    };
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    tokio::select! {
        served = &mut connection => {
            if let Err(error) = served {
                tracing::debug!(%error, "connection ended");
            }
        }
        _ = restarts.changed() => {
            // Who asked for it is told that it is done.
            if is_admins.load(Ordering::Relaxed) {
                connection.as_mut().graceful_shutdown();
                let _ = tokio::time::timeout(GOODBYE_MAX, connection).await;
            }
        }
        () = idle(&busy, &count) => tracing::debug!("connection was idle"),
    }
}

/// For the answer to who asked for a restart.
const GOODBYE_MAX: Duration = Duration::from_secs(1);

/// Waits until a connection was idle for [`IDLE_MAX`], which is noticed within twice that.
async fn idle(busy: &Arc<()>, count: &AtomicU64) {
    let mut before = count.load(Ordering::Relaxed);
    loop {
        tokio::time::sleep(IDLE_MAX).await;
        let now = count.load(Ordering::Relaxed);
        // We have one, and the service has one.
        if now == before && Arc::strong_count(busy) <= 2 {
            return;
        }
        before = now;
    }
}

/// Answers one request. An error breaks the stream, or an HTTP/1.1 connection.
pub(super) async fn serve<B>(
    server: Arc<Server>,
    request: http::Request<B>,
    busy: Arc<()>,
) -> Result<Response<AnswerBody>, Cut>
where
    B: Body<Data = Bytes> + Unpin,
{
    let started = Instant::now();
    let (version, path) = (request.version(), request.uri().path());
    let target = request.uri().path_and_query().map(ToString::to_string).unwrap_or_default();
    let fault = if path == faults::PATH { None } else { server.faults.of_request(request.method(), &target) };
    if fault == Some(Fault::Silence) {
        tracing::debug!(method = %request.method(), target, "not answered, as a fault demands");
        // Nobody reads the body either, so a large one comes to a halt.
        return std::future::pending().await;
    }
    let (request, unread) = taken(request, target).await;
    let user = request.bearer_token().and_then(|token| server.user(token));
    if let Some(Fault::Delay(delay)) = fault {
        tokio::time::sleep(delay).await;
    }
    let refusal = server.refuses(&request, user.as_deref()).err().or(unread);
    let answer = answer(&server, &request, fault.as_ref(), user.as_deref(), refusal).await;
    let (method, path, user_agent) = (&request.method, &request.target, request.user_agent());
    let (status, elapsed) = (answer.status(), started.elapsed());
    tracing::debug!(%method, path, status, user_agent, ?elapsed, "answered");
    server.record(RequestRecord {
        method: request.method.to_string(),
        path: request.path.clone(),
        query: request.target.split_once('?').map_or("", |(_, query)| query).to_owned(),
        user_agent: request.user_agent().to_owned(),
        user: user.unwrap_or_default(),
        status: answer.status(),
    });
    if fault == Some(Fault::LoseAnswer) {
        return Err(Cut);
    }
    let mut response = written(&request, version, answer);
    if let AnswerBody::Stream(stream) = response.body_mut() {
        let user_agent = request.user_agent().to_owned();
        stream.open = Some(OpenWatch { path: request.target, user_agent, started, _busy: busy });
    }
    Ok(response)
}

/// A watch that was answered and has not ended. Its end has a line in the log, as its beginning has.
pub(super) struct OpenWatch {
    path: String,
    user_agent: String,
    started: Instant,
    /// While somebody has it, the connection is not idle.
    _busy: Arc<()>,
}

impl Drop for OpenWatch {
    fn drop(&mut self) {
        let OpenWatch { path, user_agent, started, .. } = self;
        tracing::debug!(path, user_agent, elapsed = ?started.elapsed(), "watch ended");
    }
}

/// A request with its body, and why there is none if there is none.
async fn taken<B>(request: http::Request<B>, target: String) -> (Request, Option<Refusal>)
where
    B: Body<Data = Bytes> + Unpin,
{
    let (parts, body) = request.into_parts();
    let (body, unread) = match read(body).await {
        Ok(body) => (body, None),
        Err(refusal) => (Bytes::new(), Some(refusal)),
    };
    let request = Request {
        method: parts.method,
        path: parts.uri.path().to_owned(),
        target,
        query: Query::parse(parts.uri.query().unwrap_or_default()),
        headers: parts.headers,
        body,
    };
    (request, unread)
}

/// What a request is answered, by a fault, a refusal, or as it is meant.
async fn answer(
    server: &Arc<Server>,
    request: &Request,
    fault: Option<&Fault>,
    user: Option<&str>,
    refusal: Option<Refusal>,
) -> Answer {
    match (fault, user, refusal) {
        (Some(Fault::Answer { status, body, retry_after_secs }), _, _) => {
            Answer::planned(*status, body.clone(), *retry_after_secs)
        }
        (_, _, Some(refusal)) => Answer::refused(refusal),
        (_, Some(user), None) if request.path == faults::PATH => answer::faults(server, request, user),
        (Some(Fault::Deny { webhook, message, code }), _, _) => {
            Answer::refused(faults::denied(webhook, message, *code))
        }
        (Some(Fault::Quota(quota)), _, _) => Answer::refused(faults::exceeds_quota(request, quota)),
        (_, _, None) => answer::answer(server, request).await,
    }
}

fn written(request: &Request, version: http::Version, answer: Answer) -> Response<AnswerBody> {
    let pretty = request.wants_pretty() || (answer.status() >= 400 && !request.takes_plain_json());
    let unauthorized = answer.status() == 401;
    let mut response = answer.into_response(pretty);
    // Go's server ends the connection of whom it does not know, HTTP/2 by GOAWAY.
    if unauthorized && version < http::Version::HTTP_2 {
        response.headers_mut().insert(header::CONNECTION, header::HeaderValue::from_static("close"));
    }
    if request.method == Method::HEAD {
        *response.body_mut() = AnswerBody::Whole(None);
    }
    response
}

/// The whole body of a request, or why there is none.
async fn read(mut body: impl Body<Data = Bytes> + Unpin) -> Result<Bytes, Refusal> {
    let (mut bytes, mut read_bytes) = (BytesMut::new(), 0);
    while let Some(frame) = body.frame().await {
        // A body that was cut is no smaller object: the real one calls it an error of its own, of no reason.
        let frame = frame.map_err(|_| Refusal::internal("unexpected EOF"))?;
        let Ok(data) = frame.into_data() else { continue };
        read_bytes += data.len();
        if read_bytes > BODY_BYTES_DROPPED_MAX {
            break;
        }
        if read_bytes <= BODY_BYTES_MAX {
            bytes.extend_from_slice(&data);
        }
    }
    if read_bytes > BODY_BYTES_MAX {
        return Err(Refusal::too_large(BODY_BYTES_MAX));
    }
    Ok(bytes.freeze())
}
