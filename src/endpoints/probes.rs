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
//! a restart would not help. `/readyz` fails until every watch has synced, and while a watch fails. With webhooks, it only
//! says so, and fails without their certificate alone: the Service names only Pods that are ready.

use hyper::{Method, Request, StatusCode};

use super::{HttpAnswer, TEXT, answer as text_answer};
use crate::cluster::Cluster;

pub(super) fn answer<B>(request: &Request<B>, cluster: &Cluster) -> HttpAnswer {
    let (status, text) = match (request.method(), request.uri().path()) {
        (&Method::GET | &Method::HEAD, "/livez" | "/healthz") => alive(cluster),
        (&Method::GET | &Method::HEAD, "/readyz") => ready(cluster),
        (&Method::GET | &Method::HEAD, _) => {
            (StatusCode::NOT_FOUND, "there is /livez and /readyz\n".to_owned())
        }
        _ => (StatusCode::METHOD_NOT_ALLOWED, "GET /livez or /readyz\n".to_owned()),
    };
    text_answer(status, TEXT, text)
}

fn alive(cluster: &Cluster) -> (StatusCode, String) {
    let watches = cluster.health();
    let stuck: Vec<_> = watches.iter().filter(|watch| watch.is_stuck()).map(|watch| watch.what()).collect();
    match stuck[..] {
        [] => (StatusCode::OK, "ok\n".to_owned()),
        _ => (StatusCode::INTERNAL_SERVER_ERROR, format!("stuck: watch {}\n", stuck.join(", watch "))),
    }
}

fn ready(cluster: &Cluster) -> (StatusCode, String) {
    let (watches, lacks) = (cluster.health(), cluster.lacks());
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
    is_ready = (is_ready || cluster.is_ready_without_watches()) && lacks.is_empty();
    lines.extend(lacks.into_iter().map(|lack| format!("[-] {lack}\n")));
    lines.sort();
    let text = lines.concat();
    match is_ready {
        true => (StatusCode::OK, text + "ready\n"),
        false => (StatusCode::SERVICE_UNAVAILABLE, text + "not ready\n"),
    }
}
