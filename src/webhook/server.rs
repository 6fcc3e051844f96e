//! The HTTPS server of the webhooks. Each replica of the operator serves, also one that does not lead.
//!
//! The API server sends one review in each request, and keeps its connections. When the process ends, each answer closes its connection, so
//! that the next review goes to another replica.

use std::{
    convert::Infallible,
    io,
    net::SocketAddr,
    pin::pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::{
    Method, Request, Response, StatusCode, body::Incoming, header, server::conn::http1, service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::value::RawValue;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Notify, Semaphore},
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_rustls::TlsAcceptor;
use tracing::error;

use super::{Answers, metrics::WebhookMetrics};
use crate::{
    endpoints::{Certificate, Connections, listen_at},
    locked,
    resource::from_json,
    shutdown::Stop,
};

/// Connections at a time. An API server opens one for each review that it sends at the same time, and keeps 25 of them.
const CONNECTIONS_MAX: usize = 1_000;
/// How long a client may take over the TLS handshake.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);
/// How long a connection may wait for the next request: longer than the 90 s after which an API server closes it. If the operator closed it
/// at the moment at which a review is sent, the review would fail.
const IDLE_LIMIT: Duration = Duration::from_secs(120);
/// Largest review: the API server accepts objects of 3 MiB, and a review has the new and the old object.
const REVIEW_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Of all reviews that are read at a time, in KiB. The others wait.
const REVIEWS_KIB_MAX: u32 = 16 * 1024;
/// How long a client may take to send a review, whose bytes are reserved meanwhile.
const READ_LIMIT: Duration = Duration::from_secs(5);
/// How long a review may take if the API server does not say it.
const REVIEW_LIMIT: Duration = Duration::from_secs(10);
/// How long to go on after the request to stop: in this time, the Service no longer names the Pod, and the API servers know it.
const DRAIN: Duration = Duration::from_secs(5);

/// Where the certificate is from.
pub(super) enum Source {
    /// A directory with `tls.crt` and `tls.key`.
    Files(Arc<Certificate>),
    /// The Secret.
    Secret(Arc<Mutex<Option<TlsAcceptor>>>),
}

/// A server that listens.
pub(super) struct Server {
    listener: TcpListener,
    answering: Arc<Answering>,
    source: Source,
}

struct Answering {
    answers: Arc<Answers>,
    room: Arc<Semaphore>,
    metrics: WebhookMetrics,
    is_stopping: AtomicBool,
}

impl Server {
    pub(super) async fn listen(
        address: SocketAddr,
        answers: Arc<Answers>,
        source: Source,
        metrics: WebhookMetrics,
    ) -> io::Result<Server> {
        let listener = listen_at(address, "answering webhooks").await?;
        let room = Arc::new(Semaphore::new(REVIEWS_KIB_MAX as usize));
        let answering = Answering { answers, room, metrics, is_stopping: AtomicBool::new(false) };
        Ok(Server { listener, answering: Arc::new(answering), source })
    }

    #[cfg(feature = "testing")]
    pub(super) fn address(&self) -> SocketAddr {
        self.listener.local_addr().expect("a listener has an address")
    }

    /// Answers until the request to stop, and some seconds longer.
    pub(super) async fn serve(self, stop: Stop) {
        let Server { listener, answering, source } = self;
        let end = Arc::new(Notify::new());
        let mut connections = Connections::new(CONNECTIONS_MAX);
        let mut stopped = pin!(async {
            stop.requested().await;
            answering.is_stopping.store(true, Ordering::Relaxed);
            sleep(DRAIN).await;
        });
        loop {
            tokio::select! {
                () = &mut stopped => break,
                // Before the first certificate, nobody can be answered.
                stream = connections.accept(&listener) => if let Some(acceptor) = source.acceptor() {
                    connections.spawn(connection(stream, acceptor, Arc::clone(&answering), Arc::clone(&end)));
                }
            }
        }
        end.notify_waiters();
        drop(timeout(REVIEW_LIMIT, connections.ended()).await);
    }
}

impl Source {
    fn acceptor(&self) -> Option<TlsAcceptor> {
        match self {
            Source::Files(certificate) => Some(certificate.acceptor()),
            Source::Secret(acceptor) => locked(acceptor).clone(),
        }
    }
}

async fn connection(
    stream: TcpStream,
    acceptor: TlsAcceptor,
    answering: Arc<Answering>,
    end: Arc<Notify>,
) -> Result<(), String> {
    let handshake = timeout(HANDSHAKE_LIMIT, acceptor.accept(stream)).await;
    let stream = handshake.map_err(|_| "no TLS handshake in time")?.map_err(|error| error.to_string())?;
    let service = service_fn(async |request| Ok::<_, Infallible>(answering.answer(request).await));
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE_LIMIT)
        .serve_connection(TokioIo::new(stream), service);
    let mut serving = pin!(serving);
    tokio::select! {
        ended = &mut serving => return ended.map_err(|error| error.to_string()),
        () = end.notified() => {}
    }
    serving.as_mut().graceful_shutdown();
    serving.await.map_err(|error| error.to_string())
}

impl Answering {
    async fn answer(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let path = request.uri().path().to_owned();
        let (status, body) = if self.answers.has(&path) {
            let counted = self.metrics.begin(&path);
            let (status, body) = self.review(request, &path).await;
            counted.end(status);
            // The API server reads why a conversion failed only if the answer is a 200.
            (if status == StatusCode::UNPROCESSABLE_ENTITY { StatusCode::OK } else { status }, body)
        } else {
            (StatusCode::NOT_FOUND, format!("no webhook at {path}\n").into())
        };
        let mut answer = Response::new(Full::new(body));
        *answer.status_mut() = status;
        let media_type = if status.is_success() { "application/json" } else { "text/plain; charset=utf-8" };
        answer.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(media_type));
        if self.is_stopping.load(Ordering::Relaxed) {
            answer.headers_mut().insert(header::CONNECTION, header::HeaderValue::from_static("close"));
        }
        answer
    }

    /// A conversion that failed is a 422.
    async fn review(&self, request: Request<Incoming>, path: &str) -> (StatusCode, Bytes) {
        let text = |status: StatusCode, text: String| (status, Bytes::from(text + "\n"));
        if request.method() != Method::POST {
            return text(StatusCode::METHOD_NOT_ALLOWED, "POST a review".to_owned());
        }
        let limit = limit_of(request.uri().query().unwrap_or_default());
        let answers = Arc::clone(&self.answers);
        let room = Arc::clone(&self.room);
        let (path, of_path) = (path.to_owned(), path.to_owned());
        // In a task of its own, so that a panic ends nothing else. Dropped: ended.
        let mut task = JoinSet::new();
        task.spawn(async move {
            let length = request
                .headers()
                .get(header::CONTENT_LENGTH)
                .and_then(|value| value.to_str().ok()?.parse().ok());
            let length = length.unwrap_or(REVIEW_BYTES_MAX).min(REVIEW_BYTES_MAX);
            let kib = u32::try_from(length / 1024 + 1).unwrap_or(REVIEWS_KIB_MAX).min(REVIEWS_KIB_MAX);
            let _room = room.acquire_many(kib).await;
            let body = Limited::new(request.into_body(), REVIEW_BYTES_MAX).collect();
            match timeout(READ_LIMIT, body).await {
                Ok(Ok(body)) => answers.answer(&path, &body.to_bytes()).await,
                Ok(Err(error)) => {
                    Err(format!("read the review, of at most {REVIEW_BYTES_MAX} bytes: {error}"))
                }
                Err(_) => Err(format!("the review did not come within {READ_LIMIT:?}")),
            }
        });
        match timeout(limit, task.join_next()).await {
            Ok(Some(Ok(Ok(answer)))) => {
                let has_failed = answer["response"]["result"]["status"] == "Failure";
                let status = if has_failed { StatusCode::UNPROCESSABLE_ENTITY } else { StatusCode::OK };
                (status, answer.to_string().into())
            }
            Ok(Some(Ok(Err(problem)))) => text(StatusCode::BAD_REQUEST, problem),
            Ok(Some(Err(join))) => {
                self.metrics.panicked();
                error!(webhook = of_path, %join, "a webhook panicked");
                text(StatusCode::INTERNAL_SERVER_ERROR, "the webhook panicked; its log says why".to_owned())
            }
            Ok(None) | Err(_) => {
                text(StatusCode::GATEWAY_TIMEOUT, format!("the webhook took longer than {limit:?}"))
            }
        }
    }
}

/// How long the API server waits: `timeout=5s`.
fn limit_of(query: &str) -> Duration {
    let limit = query.split('&').find_map(|pair| pair.strip_prefix("timeout="));
    limit
        .and_then(|limit| humantime::parse_duration(limit).ok())
        .map_or(REVIEW_LIMIT, |limit| limit.min(Duration::from_secs(30)))
}

/// The `request` of a review.
pub(super) fn read<R: DeserializeOwned>(body: &[u8], api_version: &str, kind: &str) -> Result<R, String> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Body {
        #[serde(default)]
        api_version: String,
        #[serde(default)]
        kind: String,
        #[serde(default)]
        request: Option<Box<RawValue>>,
    }
    let body: Body = from_json(body).map_err(|error| format!("the body is not a review in JSON: {error}"))?;
    if (&*body.api_version, &*body.kind) != (api_version, kind) {
        return Err(format!(
            "expected kind {kind} of {api_version}, not {:?} of {:?}",
            body.kind, body.api_version
        ));
    }
    let request = body.request.ok_or_else(|| format!("the {kind} has no request"))?;
    from_json(request.get().as_bytes()).map_err(|error| format!("the request of the {kind}: {error}"))
}
