//! The endpoints for the probes of the kubelet: `/livez` and `/readyz`.
//!
//! ```text
//! GET /readyz HTTP/1.1
//!
//! HTTP/1.1 503 Service Unavailable
//!
//! [+] watch services in all namespaces: synced
//! [-] watch mywebservers in all namespaces: list mywebservers.k8sobjects.gsa.com …: 403 Forbidden: …
//! not ready
//! ```
//!
//! `/livez` fails if a watch makes no progress within its own limit. It does not fail while the API server is down, because
//! a restart would not help. `/readyz` fails until every watch has synced, and while a watch fails.

use std::{convert::Infallible, net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use http_body_util::Full;
use hyper::{
    Method, Request, Response, StatusCode, body::Incoming, header, server::conn::http1, service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{net::TcpListener, task::JoinSet};
use tracing::debug;

use crate::{cluster::Cluster, watch::Health};

/// Connections at a time. The kubelet uses one or two.
const CONNECTIONS_MAX: usize = 32;
/// How long a client may take over its request's head.
const HEAD_LIMIT: Duration = Duration::from_secs(5);

/// Listens for probes.
pub async fn bind(address: SocketAddr) -> std::io::Result<TcpListener> {
    TcpListener::bind(address).await
}

/// Answers probes. Runs until dropped.
pub async fn serve(listener: TcpListener, cluster: Cluster) -> Infallible {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            Some(_) = connections.join_next() => {}
            accepted = listener.accept(), if connections.len() < CONNECTIONS_MAX => {
                let Ok((stream, peer)) = accepted else {
                    // Usually no file descriptor is free. One may be free after a connection has ended.
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                };
                let cluster = cluster.clone();
                connections.spawn(async move {
                    let service = service_fn(move |request| std::future::ready(Ok::<_, Infallible>(answer(&request, &cluster))));
                    let connection = http1::Builder::new()
                        .timer(TokioTimer::new())
                        .header_read_timeout(HEAD_LIMIT)
                        .serve_connection(TokioIo::new(stream), service);
                    if let Err(error) = connection.await {
                        debug!(%peer, %error, "probe connection ended");
                    }
                });
            }
        }
    }
}

fn answer(request: &Request<Incoming>, cluster: &Cluster) -> Response<Full<Bytes>> {
    let (status, text) = match (request.method(), request.uri().path()) {
        (&Method::GET | &Method::HEAD, "/livez" | "/healthz") => alive(&cluster.health()),
        (&Method::GET | &Method::HEAD, "/readyz") => ready(&cluster.health()),
        (&Method::GET | &Method::HEAD, _) => {
            (StatusCode::NOT_FOUND, "there is /livez and /readyz\n".to_owned())
        }
        _ => (StatusCode::METHOD_NOT_ALLOWED, "GET /livez or /readyz\n".to_owned()),
    };
    let mut response = Response::new(Full::from(text));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, header::HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

fn alive(watches: &[Arc<Health>]) -> (StatusCode, String) {
    let stuck: Vec<_> = watches.iter().filter(|watch| watch.is_stuck()).map(|watch| watch.what()).collect();
    match stuck[..] {
        [] => (StatusCode::OK, "ok\n".to_owned()),
        _ => (StatusCode::INTERNAL_SERVER_ERROR, format!("stuck: watch {}\n", stuck.join(", watch "))),
    }
}

fn ready(watches: &[Arc<Health>]) -> (StatusCode, String) {
    let mut is_ready = !watches.is_empty();
    let mut lines = Vec::with_capacity(watches.len());
    for watch in watches {
        let (sign, state) = match watch.problem() {
            None if watch.is_synced() => ('+', "synced".to_owned()),
            None => ('-', "listing".to_owned()),
            Some(problem) => ('-', problem),
        };
        is_ready &= sign == '+';
        lines.push(format!("[{sign}] watch {}: {state}\n", watch.what()));
    }
    lines.sort();
    let text = lines.concat();
    match is_ready {
        true => (StatusCode::OK, text + "ready\n"),
        false => (StatusCode::SERVICE_UNAVAILABLE, text + "not ready\n"),
    }
}
