//! Connections: TLS with our own certificate authority, HTTP/1.1 or HTTP/2 (negotiated by ALPN), and the tasks that
//! serve the requests.

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
use http::{HeaderName, Method, Response, StatusCode, header};
use http_body_util::BodyExt;
use hyper::{body::Body, rt::Executor, service::service_fn, upgrade::OnUpgrade};
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

use crate::{
    authorization::Verb,
    faults::{self, Cut, Fault},
    http::{
        LOG_TARGET, handlers, metrics,
        response::{Answer, AnswerBody, OpenStream},
        router, websocket,
    },
    records::RequestRecord,
    request::{Query, Request},
    state::Server,
    status::StatusError,
    storage::lock,
};

/// Largest body of a request: `MaxRequestBodyBytes` of kube-apiserver.
const BODY_BYTES_MAX: usize = 3 * 1024 * 1024;

/// How much of a too large body is read and dropped. In HTTP/2, an unread body is a stream error for the client, which
/// then never sees our 413.
const BODY_BYTES_DROPPED_MAX: usize = 64 * 1024 * 1024;

/// Longest TLS handshake: the limit of Go's own HTTP transport.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);

/// How long an HTTP/1.1 connection waits for the next request head. hyper includes the idle time between two requests,
/// so this is the `IdleTimeout` of kube-apiserver.
const HEAD_MAX: Duration = Duration::from_secs(90);

/// Most open connections; further clients wait. Of 1024 file descriptors, the default, the rest is for other uses.
const CONNECTIONS_MAX: usize = 1000;

/// How long a connection may be idle: no new request and no open watch. It is the `IdleTimeout` of kube-apiserver, as
/// for HTTP/1.1. It also closes the connections of clients that do not read their answers.
const IDLE_MAX: Duration = HEAD_MAX;

/// Streams per HTTP/2 connection, and the window of each: as in the SETTINGS of kube-apiserver 1.36.
const HTTP2_STREAMS_MAX: u32 = 100;
const HTTP2_WINDOW_BYTES: u32 = 256 * 1024;

/// A new certificate authority, and the certificate of a server on loopback.
pub struct Identity {
    /// The certificate authority, for clients.
    pub ca_pem: String,
    /// Speaks TLS with the certificate.
    pub acceptor: TlsAcceptor,
}

impl Identity {
    /// For a server of these protocols, such as `http/1.1`.
    ///
    /// # Errors
    ///
    /// If the certificates cannot be made.
    pub fn new(protocols: &[&str]) -> Result<Identity, String> {
        let text = |error: &dyn Display| error.to_string();
        let mut params = CertificateParams::new(Vec::new()).map_err(|error| text(&error))?;
        params.distinguished_name.push(DnType::CommonName, "listwatch embedded CA");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        // An elliptic-curve key (P-256) is fast to generate; RSA would take longer than the rest of the start.
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
        config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        Ok(Identity { ca_pem: ca.pem(), acceptor: TlsAcceptor::from(Arc::new(config)) })
    }
}

/// All tasks of a server, so that they end with the server. hyper spawns the HTTP/2 streams here as well.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tasks(Arc<Mutex<JoinSet<()>>>);

impl Tasks {
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = lock(&self.0);
        while let Some(ended) = tasks.try_join_next() {
            if let Err(error) = ended {
                tracing::error!(%error, "a task of the API server died");
            }
        }
        tasks.spawn(task);
    }

    pub(crate) fn abort(&self) {
        lock(&self.0).abort_all();
    }

    /// Aborts all tasks, and waits until they have ended and their sockets are closed.
    pub(crate) async fn stop(&self) {
        let mut tasks = std::mem::take(&mut *lock(&self.0));
        tasks.shutdown().await;
    }
}

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Tasks {
    fn execute(&self, task: F) {
        self.spawn(task);
    }
}

/// Accepts connections. Runs until aborted.
pub(crate) async fn accept(listener: TcpListener, acceptor: TlsAcceptor, server: Arc<Server>, tasks: Tasks) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    for number in 1.. {
        let place = Arc::clone(&places).acquire_owned().await.expect("nobody closes it");
        match listener.accept().await {
            Ok((stream, _)) => {
                let connection =
                    connection(number, stream, acceptor.clone(), Arc::clone(&server), tasks.clone());
                tasks.spawn(async move {
                    connection.await;
                    drop(place);
                });
            }
            Err(error) => {
                // Usually no file descriptor is free. A connection may close meanwhile.
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn connection(
    number: u64,
    stream: TcpStream,
    acceptor: TlsAcceptor,
    server: Arc<Server>,
    tasks: Tasks,
) {
    // Events are small and should be sent at once.
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
    // ALPN has negotiated the protocol. Detecting it from the first bytes would wait without a limit.
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
    // Each request in progress and each open watch holds one more reference.
    let busy = Arc::new(());
    let count = Arc::new(AtomicU64::new(0));
    let is_admins = Arc::new(AtomicBool::new(false));
    // The stream of a connection that becomes a WebSocket.
    let upgraded = Arc::new(Mutex::new(None));
    let service = {
        let (busy, count, is_admins) = (Arc::clone(&busy), Arc::clone(&count), Arc::clone(&is_admins));
        let upgraded = Arc::clone(&upgraded);
        service_fn(move |request: http::Request<_>| {
            count.fetch_add(1, Ordering::Relaxed);
            is_admins.store(request.uri().path() == faults::PATH, Ordering::Relaxed);
            let upgrade = request.extensions().get::<OnUpgrade>().cloned();
            let served = serve(Arc::clone(&server), request, number, Arc::clone(&busy));
            let upgraded = Arc::clone(&upgraded);
            async move {
                let mut response = served.await?;
                if let (StatusCode::SWITCHING_PROTOCOLS, Some(upgrade)) = (response.status(), upgrade)
                    && let AnswerBody::Stream(stream) =
                        std::mem::replace(response.body_mut(), AnswerBody::Whole(None))
                {
                    *lock(&upgraded) = Some((upgrade, stream));
                }
                Ok::<_, Cut>(response)
            }
        })
    };
    let mut connection = pin!(builder.serve_connection_with_upgrades(TokioIo::new(stream), service));
    tokio::select! {
        served = &mut connection => {
            if let Err(error) = served {
                tracing::debug!(%error, "connection ended");
            }
        }
        _ = restarts.changed() => {
            // If this connection asked for the restart, it still sends the answer.
            if is_admins.load(Ordering::Relaxed) {
                connection.as_mut().graceful_shutdown();
                let _ = tokio::time::timeout(GOODBYE_MAX, connection).await;
            }
            return;
        }
        () = idle(&busy, &count) => return tracing::debug!("connection was idle"),
    }
    // hyper is done with a connection that has become a WebSocket.
    let Some((upgrade, stream)) = lock(&upgraded).take() else { return };
    tokio::select! {
        () = websocket::serve(upgrade, stream) => {}
        _ = restarts.changed() => {}
    }
}

/// How long the answer to a restart request may take to be sent.
const GOODBYE_MAX: Duration = Duration::from_secs(1);

/// Waits until a connection was idle for [`IDLE_MAX`]. Notices it after at most twice that time.
async fn idle(busy: &Arc<()>, count: &AtomicU64) {
    let mut before = count.load(Ordering::Relaxed);
    loop {
        tokio::time::sleep(IDLE_MAX).await;
        let now = count.load(Ordering::Relaxed);
        // One reference is ours, one the service's.
        if now == before && Arc::strong_count(busy) <= 2 {
            return;
        }
        before = now;
    }
}

/// Answers one request. An error breaks the HTTP/2 stream, or the HTTP/1.1 connection.
pub(crate) async fn serve<B>(
    server: Arc<Server>,
    request: http::Request<B>,
    connection: u64,
    busy: Arc<()>,
) -> Result<Response<AnswerBody>, Cut>
where
    B: Body<Data = Bytes> + Unpin,
{
    let started = Instant::now();
    let (parts, body) = request.into_parts();
    let version = parts.version;
    let mut request = head(parts);
    request.id = server.request_ids.fetch_add(1, Ordering::Relaxed) + 1;
    let received = server.storage().clock.now();
    let (user, identified) = server.user(&server.storage(), &request);
    request.user.clone_from(&user);
    let fault = match request.path.as_str() {
        path if path.starts_with(handlers::OWN_PATHS) => None,
        _ => server.faults.of_request(&request, user.as_deref()),
    };
    if let Some(Fault::StaleLists(version)) = fault {
        request.query.stale = Some(version);
    }
    if fault == Some(Fault::Silence) {
        tracing::debug!(target: LOG_TARGET, method = %request.method, path = request.target, "not answered, as a fault demands");
        // The body is not read either, so a large upload stalls.
        return std::future::pending().await;
    }
    let unread = match read(body).await {
        Ok(read) => {
            request.body = read;
            None
        }
        Err(error) => Some(error),
    };
    if let Some(Fault::Delay(delay)) = fault {
        tokio::time::sleep(delay).await;
    }
    let held = match fault {
        Some(Fault::Hold) => server.faults.hold(&request).await,
        _ => Ok(()),
    };
    if fault == Some(Fault::Meddle) {
        let version = server.storage().revision();
        router::answer(&server, &faults::meddling(&request, version)).await;
    }
    let user_name = user.as_deref();
    let error =
        identified.and_then(|()| server.check(&server.storage(), &request, user_name, Verb::OfMethod)).err();
    let error = error.or_else(|| fault.as_ref()?.forbids(&request, user_name, Verb::OfMethod)).or(unread);
    let error = error.or(held.err());
    let answer = answer(&server, &request, fault.as_ref(), user_name, error).await;
    if fault == Some(Fault::HoldAnswer) {
        // It has had its effect.
        let _ = server.faults.hold(&request).await;
    }
    let (method, path, user_agent) = (&request.method, &request.target, request.user_agent());
    let (status, elapsed) = (answer.status, started.elapsed());
    tracing::debug!(target: LOG_TARGET, %method, path, status, user_agent, ?elapsed, "answered");
    metrics::count(&server, &request, status);
    let (now, revision) = {
        let storage = server.storage();
        (storage.clock.now(), storage.revision())
    };
    // Other entries are the client's own affair, and may be long.
    let mut baggage = request.header(HeaderName::from_static("baggage")).split(',');
    let causes = baggage.find(|entry| entry.trim().starts_with("reconcile.causes="));
    server.record(RequestRecord {
        id: request.id,
        connection,
        method: request.method.to_string(),
        path: request.path.clone(),
        name: if request.method == Method::POST { request.name_in_body() } else { String::new() },
        query: request.target.split_once('?').map_or("", |(_, query)| query).to_owned(),
        user_agent: request.user_agent().to_owned(),
        baggage: causes.unwrap_or_default().trim().to_owned(),
        user: user.unwrap_or_default(),
        status: answer.status,
        received,
        time: now,
        version: revision,
        list_version: answer.list_version().to_owned(),
    });
    if fault == Some(Fault::LoseAnswer) {
        return Err(Cut);
    }
    let mut response = written(&request, version, answer);
    if let Some(Fault::SlowLists(pause)) = fault {
        response = response.map(|body| body.paused(pause));
    }
    if let AnswerBody::Stream(stream) = response.body_mut() {
        let user_agent = request.user_agent().to_owned();
        stream.open = Some(OpenStream { path: request.target, user_agent, started, _busy: busy });
    }
    Ok(response)
}

/// A request without its body.
fn head(parts: http::request::Parts) -> Request {
    Request {
        id: 0,
        can_upgrade: parts.extensions.get::<OnUpgrade>().is_some(),
        method: parts.method,
        path: parts.uri.path().to_owned(),
        target: parts.uri.path_and_query().map(ToString::to_string).unwrap_or_default(),
        query: Query::parse(parts.uri.query().unwrap_or_default()),
        headers: parts.headers,
        body: Bytes::new(),
        user: None,
    }
}

/// The answer: a planned fault, an error, or the result of the request.
async fn answer(
    server: &Arc<Server>,
    request: &Request,
    fault: Option<&Fault>,
    user: Option<&str>,
    error: Option<StatusError>,
) -> Answer {
    match (fault, user, error) {
        (Some(Fault::Answer { status, body, retry_after_secs }), _, _) => {
            Answer::planned(*status, body.clone(), *retry_after_secs)
        }
        (_, _, Some(error)) => Answer::refused(error),
        (_, Some(user), None) if request.path.starts_with(handlers::OWN_PATHS) => {
            handlers::own(server, request, user).await
        }
        (Some(Fault::Deny { webhook, message, code }), _, _) => {
            Answer::refused(faults::denied(webhook, message, *code))
        }
        (Some(Fault::Quota(quota)), _, _) => Answer::refused(faults::exceeds_quota(request, quota)),
        (_, _, None) => router::answer(server, request).await,
    }
}

fn written(request: &Request, version: http::Version, answer: Answer) -> Response<AnswerBody> {
    let pretty = request.wants_pretty() || (answer.status >= 400 && !request.takes_plain_json());
    let unauthorized = answer.status == 401;
    let mut response = answer.into_response(pretty);
    // Go's server closes the connection after a 401; in HTTP/2 by GOAWAY.
    if unauthorized && version < http::Version::HTTP_2 {
        response.headers_mut().insert(header::CONNECTION, header::HeaderValue::from_static("close"));
    }
    if request.method == Method::HEAD {
        *response.body_mut() = AnswerBody::Whole(None);
    }
    response
}

/// Reads the whole body of a request.
async fn read(mut body: impl Body<Data = Bytes> + Unpin) -> Result<Bytes, StatusError> {
    let (mut bytes, mut read_bytes) = (BytesMut::new(), 0);
    while let Some(frame) = body.frame().await {
        // An interrupted body is not a shorter object. kube-apiserver answers with an error of no reason.
        let frame = frame.map_err(|_| StatusError::internal("unexpected EOF"))?;
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
        return Err(StatusError::too_large(BODY_BYTES_MAX));
    }
    Ok(bytes.freeze())
}
