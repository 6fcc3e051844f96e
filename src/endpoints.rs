//! The HTTP endpoints of the process: probes, metrics and debugging, each at an address of its own.
//!
//! ```text
//! :8081            /livez /readyz             endpoints/probes.rs
//! :8080            /metrics                   endpoints/scrape.rs, with TLS and permissions on request
//! 127.0.0.1:8082   /debug/state /debug/log    endpoints/debug.rs
//! ```
//!
//! Each connection has one request. If there are too many at one address, the oldest one ends, so that slow clients keep no other away.

mod access;
mod certificate;
mod debug;
mod probes;
mod scrape;

use std::{
    collections::VecDeque,
    convert::Infallible,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use http_body_util::Full;
use hyper::{
    Request, Response, StatusCode, body::Incoming, header, server::conn::http1, service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    task::{AbortHandle, JoinSet},
    time::{sleep, timeout},
};
use tracing::{debug, error, info};

use crate::{client::Client, cluster::Cluster};
use access::Access;
pub(crate) use certificate::Certificate;
#[cfg(feature = "webhook")]
pub(crate) use certificate::acceptor as acceptor_of;

/// Connections at a time to one address. The kubelet uses one or two, Prometheus one.
const CONNECTIONS_MAX: usize = 32;
/// How long a client may take over the TLS handshake, the head of its request, and the body.
const HEAD_LIMIT: Duration = Duration::from_secs(5);
/// How long a connection may take as a whole. Prometheus gives up after 10 s.
const CONNECTION_LIMIT: Duration = Duration::from_secs(30);

const TEXT: &str = "text/plain; charset=utf-8";

/// How to serve the metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum MetricsSecurity {
    /// Over plain HTTP, to everybody.
    #[default]
    Plain,
    /// Over TLS, to clients that may `get` the nonResourceURL `/metrics`: a TokenReview and a SubjectAccessReview ask the API server.
    Tls {
        /// A directory with `tls.crt` and `tls.key`, which are read again when they change. `None`: the process makes a certificate that
        /// nobody can verify.
        certificate: Option<PathBuf>,
    },
}

/// One address, and what it serves.
pub(crate) struct Endpoint {
    what: EndpointKind,
    listener: TcpListener,
}

enum EndpointKind {
    Probes,
    Metrics(Option<Box<(Certificate, Access)>>),
    Debug,
}

type HttpAnswer = Response<Full<Bytes>>;

impl Endpoint {
    pub(crate) async fn probes(address: SocketAddr) -> io::Result<Endpoint> {
        listen(address, "answering /livez and /readyz", EndpointKind::Probes).await
    }

    pub(crate) async fn metrics(
        address: SocketAddr,
        security: &MetricsSecurity,
        client: &Client,
    ) -> io::Result<Endpoint> {
        let secure = match security {
            MetricsSecurity::Plain => None,
            MetricsSecurity::Tls { certificate } => {
                Some(Box::new((Certificate::new(certificate.as_deref())?, Access::new(client.clone()))))
            }
        };
        listen(address, "answering /metrics", EndpointKind::Metrics(secure)).await
    }

    pub(crate) async fn debug(address: SocketAddr) -> io::Result<Endpoint> {
        listen(address, "answering /debug/state and /debug/log", EndpointKind::Debug).await
    }

    /// Answers. Runs until dropped.
    pub(crate) async fn serve(self, cluster: Cluster) -> Infallible {
        let Endpoint { what, listener } = self;
        let what = Arc::new(what);
        let mut connections = Connections::new(CONNECTIONS_MAX);
        loop {
            let stream = connections.accept(&listener).await;
            let (what, cluster) = (Arc::clone(&what), cluster.clone());
            connections.spawn(async move {
                let ended = timeout(CONNECTION_LIMIT, what.connection(stream, &cluster)).await;
                ended.unwrap_or_else(|_| Err("it took too long".into()))
            });
        }
    }
}

/// The connections to one address.
pub(crate) struct Connections {
    tasks: JoinSet<()>,
    oldest: VecDeque<AbortHandle>,
    max: usize,
}

impl Connections {
    pub(crate) fn new(max: usize) -> Connections {
        Connections { tasks: JoinSet::new(), oldest: VecDeque::new(), max }
    }

    /// The next connection. If there are too many, the oldest one ends.
    pub(crate) async fn accept(&mut self, listener: &TcpListener) -> TcpStream {
        loop {
            tokio::select! {
                Some(ended) = self.tasks.join_next() => {
                    self.oldest.retain(|connection| !connection.is_finished());
                    if let Err(join) = ended && join.is_panic() {
                        error!(%join, "an endpoint panicked");
                    }
                }
                accepted = listener.accept() => {
                    if self.oldest.len() >= self.max && let Some(oldest) = self.oldest.pop_front() {
                        oldest.abort();
                    }
                    match accepted {
                        Ok((stream, _)) => return stream,
                        // Usually no file descriptor is free. One may be free after a connection has ended.
                        Err(_) => sleep(Duration::from_millis(100)).await,
                    }
                }
            }
        }
    }

    pub(crate) fn spawn(&mut self, connection: impl Future<Output = Result<(), String>> + Send + 'static) {
        let task = self.tasks.spawn(async {
            if let Err(error) = connection.await {
                debug!(error, "connection ended");
            }
        });
        self.oldest.push_back(task);
    }

    /// Waits until all have ended.
    #[cfg(feature = "webhook")]
    pub(crate) async fn ended(mut self) {
        while self.tasks.join_next().await.is_some() {}
    }
}

async fn listen(address: SocketAddr, answering: &str, what: EndpointKind) -> io::Result<Endpoint> {
    Ok(Endpoint { what, listener: listen_at(address, answering).await? })
}

/// Listens, and logs the address: with port 0 the user does not know it.
pub(crate) async fn listen_at(address: SocketAddr, answering: &str) -> io::Result<TcpListener> {
    let listener = match TcpListener::bind(address).await {
        // A machine without IPv6.
        Err(_) if address.ip() == IpAddr::from(Ipv6Addr::UNSPECIFIED) => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())).await
        }
        result => result,
    }?;
    info!(address = %listener.local_addr()?, "{answering}");
    Ok(listener)
}

impl EndpointKind {
    async fn connection(&self, stream: TcpStream, cluster: &Cluster) -> Result<(), String> {
        match self {
            EndpointKind::Metrics(Some(secure)) => {
                let handshake = timeout(HEAD_LIMIT, secure.0.acceptor().accept(stream)).await;
                let handshake = handshake.map_err(|_| "no TLS handshake in time")?;
                self.http(handshake.map_err(|error| error.to_string())?, cluster).await
            }
            EndpointKind::Probes | EndpointKind::Metrics(None) | EndpointKind::Debug => {
                self.http(stream, cluster).await
            }
        }
    }

    async fn http(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin,
        cluster: &Cluster,
    ) -> Result<(), String> {
        let service = service_fn(async |request| Ok::<_, Infallible>(self.answer(request, cluster).await));
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_LIMIT)
            .keep_alive(false)
            .serve_connection(TokioIo::new(stream), service)
            .await
            .map_err(|error| error.to_string())
    }

    async fn answer(&self, request: Request<Incoming>, cluster: &Cluster) -> HttpAnswer {
        match self {
            EndpointKind::Probes => probes::answer(&request, cluster),
            EndpointKind::Metrics(secure) => {
                if let Some(secure) = secure
                    && scrape::serves(&request)
                    && let Err(refusal) = secure.1.check(&request).await
                {
                    return refusal;
                }
                scrape::answer(&request, cluster)
            }
            EndpointKind::Debug => debug::answer(request, cluster).await,
        }
    }
}

fn answer(status: StatusCode, media_type: &'static str, body: impl Into<Bytes>) -> HttpAnswer {
    let mut answer = Response::new(Full::new(body.into()));
    *answer.status_mut() = status;
    answer.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(media_type));
    answer
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::io::AsyncReadExt;

    use super::*;

    /// Webhooks stopped accepting at their limit, until one of the clients went away.
    #[tokio::test]
    async fn if_there_are_too_many_connections_the_oldest_one_ends() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let mut connections = Connections::new(2);
        let mut clients = Vec::new();
        for _ in 0..3 {
            clients.push(TcpStream::connect(address).await.expect("a connection"));
            let stream = connections.accept(&listener).await;
            connections.spawn(async move {
                let _stream = stream;
                pending().await
            });
        }
        assert_eq!(clients[0].read(&mut [0]).await.expect("an end"), 0);
        assert_eq!(connections.oldest.len(), 2);
    }
}
