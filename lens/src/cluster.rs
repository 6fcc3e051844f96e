//! A proxy on loopback between an operator and a cluster. It passes on each request with the credentials of its own kubeconfig, and records what passes.
//!
//! ```text
//! operator ── TLS, HTTP/1.1, a token of this run ──► 127.0.0.1:PORT ── the credentials of the kubeconfig ──► cluster
//!          ◄─────────── the answer, as it comes ──────── recorder ◄──────────────────────────────────────────
//! ```
//!
//! TLS, because client-go sends no token without it. In a request, two things change besides the credentials: `Accept` names JSON where it named a
//! binary form of it, and `Accept-Encoding` is gone, so that the answer can be read on its way. Only the body of a request has a limit; an answer has
//! none, of bytes or of time. It is read from the cluster as fast as the operator reads it.

use std::{
    convert::Infallible,
    fmt, io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::stream;
use http::{
    HeaderMap, HeaderName, HeaderValue, Response, StatusCode,
    header::{
        ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, HOST, TE,
        TRAILER, TRANSFER_ENCODING, UPGRADE,
    },
    request::Parts,
};
use http_body_util::{BodyExt, Full, Limited, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    body::{Frame, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use listwatch::client::{Body, Client, Error, Head, Request};
use listwatch_apiserver::{Identity, kubeconfig, random_token};
use serde_json::json;
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::timeout,
};

use super::{
    connections,
    recording::{Exchange, Recorder, Recording},
};

/// Connections at a time; further ones wait. Each watch has one. Of 1024 file descriptors, the default, the rest is for other uses.
const CONNECTIONS_MAX: usize = 500;

/// How long a client may take over the handshake of TLS.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);

/// How long a client may keep a connection without a request: as kube-apiserver.
const HEAD_MAX: Duration = Duration::from_secs(90);

/// Largest body of a request. kube-apiserver takes 3 MiB.
const REQUEST_BYTES_MAX: usize = 16 * 1024 * 1024;

/// The name of the user in the kubeconfig of the proxy.
const USER: &str = "lens";

/// Headers that are about one connection, or that the proxy sets itself.
const OWN_HEADERS: [HeaderName; 11] = [
    ACCEPT_ENCODING,
    AUTHORIZATION,
    CONNECTION,
    CONTENT_LENGTH,
    EXPECT,
    HOST,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
    HeaderName::from_static("keep-alive"),
];

/// The binary forms of objects that clients ask for, besides JSON.
const BINARY: [&str; 2] = ["application/vnd.kubernetes.protobuf", "application/cbor"];

type AnswerBody = UnsyncBoxBody<Bytes, Error>;

/// A proxy that runs. Dropping it closes all connections.
pub struct Proxy {
    shared: Arc<Shared>,
    _connections: JoinSet<()>,
}

/// What the connections share.
struct Shared {
    client: Client,
    address: SocketAddr,
    token: String,
    identity: Identity,
    recorder: Arc<Recorder>,
    /// How many connections there were.
    connections: AtomicU64,
}

impl Proxy {
    /// Starts a proxy for the server and the user of a client, on a free port of 127.0.0.1.
    ///
    /// # Errors
    ///
    /// If there is no port.
    pub async fn start(client: Client) -> io::Result<Proxy> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let identity = Identity::new(&["http/1.1"]).map_err(io::Error::other)?;
        let (address, recorder) = (listener.local_addr()?, Arc::new(Recorder::new(client.user())));
        let (token, connections) = (random_token(), AtomicU64::default());
        let shared = Arc::new(Shared { client, address, token, identity, recorder, connections });
        let (served, mut connections) = (Arc::clone(&shared), JoinSet::new());
        connections.spawn(async move {
            let serve = |stream| connection(stream, Arc::clone(&served));
            match connections::accept(&listener, &mut JoinSet::new(), CONNECTIONS_MAX, serve).await {}
        });
        Ok(Proxy { shared, _connections: connections })
    }

    /// The text of a kubeconfig, for the operator. It has a token that only this proxy takes.
    #[must_use]
    pub fn kubeconfig(&self) -> String {
        let Shared { client, address, token, identity, .. } = &*self.shared;
        kubeconfig(&format!("https://{address}"), &identity.ca_pem, client.namespace(), USER, token)
    }

    pub(crate) fn recorder(&self) -> Arc<Recorder> {
        Arc::clone(&self.shared.recorder)
    }

    /// What was recorded so far.
    #[must_use]
    pub fn recording(&self) -> Recording {
        let mut recording = self.shared.recorder.recording();
        recording.set_new(true);
        recording
    }
}

/// Omits the token.
impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxy").field("address", &self.shared.address).finish_non_exhaustive()
    }
}

async fn connection(stream: TcpStream, shared: Arc<Shared>) {
    // Events are small and should be sent at once.
    let _ = stream.set_nodelay(true);
    let Ok(Ok(stream)) = timeout(HANDSHAKE_MAX, shared.identity.acceptor.accept(stream)).await else {
        return;
    };
    let number = shared.connections.fetch_add(1, Ordering::Relaxed) + 1;
    let service = service_fn(async |request| Ok::<_, Infallible>(shared.answer(request, number).await));
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_MAX);
    // An error is of a connection that broke. The client knows.
    let _ = http.serve_connection(TokioIo::new(stream), service).await;
}

impl Shared {
    async fn answer(&self, request: http::Request<Incoming>, connection: u64) -> Response<AnswerBody> {
        let (head, body) = request.into_parts();
        if let Some(refusal) = self.refusal(&head) {
            return refusal;
        }
        let Ok(body) = Limited::new(body, REQUEST_BYTES_MAX).collect().await else {
            let why =
                format!("the body of the request broke off, or has more than {REQUEST_BYTES_MAX} bytes");
            return refused(StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge", &why);
        };
        let mut exchange = self.recorder.received(&head, connection);
        match self.client.forward(forwarded(&head, body.to_bytes())).await {
            Ok((answer, body)) => {
                exchange.answered(answer.status, &answer.headers);
                passed_on(answer, streamed(body, exchange))
            }
            Err(error) => {
                let why = format!("listwatch lens got no answer from the cluster: {error}");
                let refusal = refused(StatusCode::BAD_GATEWAY, "", &why);
                exchange.answered(refusal.status().as_u16(), refusal.headers());
                refusal
            }
        }
    }

    /// Why a request is not passed on.
    fn refusal(&self, head: &Parts) -> Option<Response<AnswerBody>> {
        let is = |name, value: &str| head.headers.get(name).is_some_and(|header| header == value);
        // A page in a browser could reach this address under a name of its own.
        if !is(HOST, &self.address.to_string()) {
            return Some(refused(
                StatusCode::FORBIDDEN,
                "Forbidden",
                "this host is not the one in the kubeconfig of listwatch lens",
            ));
        }
        if !is(AUTHORIZATION, &format!("Bearer {}", self.token)) {
            return Some(refused(StatusCode::UNAUTHORIZED, "Unauthorized", "Unauthorized"));
        }
        head.headers.contains_key(UPGRADE).then(|| {
            let why = "listwatch lens does not pass on exec, attach and port-forward: use kubectl with the kubeconfig of the cluster";
            refused(StatusCode::NOT_IMPLEMENTED, "", why)
        })
    }
}

/// A request for the cluster.
fn forwarded(head: &Parts, body: Bytes) -> Request {
    let mut headers = head.headers.clone();
    for name in OWN_HEADERS {
        headers.remove(name);
    }
    if let Some(accept) = json_accepted(&headers) {
        headers.insert(ACCEPT, accept);
    }
    let target = head.uri.path_and_query().map_or_else(|| "/".to_owned(), ToString::to_string);
    Request { method: head.method.clone(), headers, body, ..Request::get(target) }
}

/// `Accept`, with JSON in place of the binary forms.
fn json_accepted(headers: &HeaderMap) -> Option<HeaderValue> {
    let json = |part: &str| {
        let (media_type, parameters) = part.split_at(part.find(';').unwrap_or(part.len()));
        let media_type = media_type.trim();
        let is_binary = BINARY.contains(&media_type);
        format!("{}{parameters}", if is_binary { "application/json" } else { media_type })
    };
    let accept = headers.get_all(ACCEPT).iter().filter_map(|accept| accept.to_str().ok());
    let accept: Vec<String> = accept.flat_map(|accept| accept.split(',')).map(json).collect();
    HeaderValue::from_str(&accept.join(", ")).ok().filter(|accept| !accept.is_empty())
}

/// An answer of the cluster.
fn passed_on(head: Head, body: AnswerBody) -> Response<AnswerBody> {
    let mut answer = Response::new(body);
    *answer.status_mut() = StatusCode::from_u16(head.status).unwrap_or(StatusCode::BAD_GATEWAY);
    *answer.headers_mut() = head.headers;
    // hyper frames the body anew. The length stays.
    for name in OWN_HEADERS.into_iter().filter(|name| name != CONTENT_LENGTH) {
        answer.headers_mut().remove(name);
    }
    answer
}

/// The body of an answer, as it comes. It is recorded on its way.
fn streamed(body: Body, exchange: Exchange) -> AnswerBody {
    let frames = stream::try_unfold((body, exchange), |(mut body, mut exchange)| async move {
        match body.chunk().await? {
            Some(piece) => {
                exchange.read(&piece);
                Ok(Some((Frame::data(piece), (body, exchange))))
            }
            None => {
                exchange.ended();
                Ok(None)
            }
        }
    });
    StreamBody::new(frames).boxed_unsync()
}

/// An answer of the proxy itself, in the form of one of an API server.
fn refused(code: StatusCode, reason: &str, message: &str) -> Response<AnswerBody> {
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message,
        "reason": reason, "code": code.as_u16()});
    let body = Full::new(Bytes::from(status.to_string())).map_err(|never| match never {});
    let mut answer = Response::new(body.boxed_unsync());
    *answer.status_mut() = code;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_replaces_the_binary_forms_alone() {
        let partial = ";as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
        for (accept, expected) in [
            ("application/vnd.kubernetes.protobuf", "application/json"),
            ("application/vnd.kubernetes.protobuf, application/json", "application/json, application/json"),
            (&format!("application/vnd.kubernetes.protobuf{partial}"), &format!("application/json{partial}")),
            ("application/cbor-seq, */*", "application/cbor-seq, */*"),
            (
                "application/com.github.proto-openapi.spec.v2@v1.0+protobuf",
                "application/com.github.proto-openapi.spec.v2@v1.0+protobuf",
            ),
        ] {
            let headers = HeaderMap::from_iter([(ACCEPT, HeaderValue::from_str(accept).expect("a header"))]);
            assert_eq!(json_accepted(&headers).expect("a header"), expected);
        }
        assert_eq!(json_accepted(&HeaderMap::new()), None);
    }
}
