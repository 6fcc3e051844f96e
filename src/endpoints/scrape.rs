//! `/metrics`, for Prometheus.

use hyper::{Method, Request, StatusCode};

use super::{HttpAnswer, TEXT, answer as with_body};
use crate::{
    cluster::Cluster,
    metrics::{OPEN_METRICS, WatchState},
};

pub(super) fn answer<B>(request: &Request<B>, cluster: &Cluster) -> HttpAnswer {
    match (request.method(), request.uri().path()) {
        (&Method::GET | &Method::HEAD, "/metrics") => match metrics(cluster) {
            Ok(text) => with_body(StatusCode::OK, OPEN_METRICS, text),
            Err(error) => with_body(StatusCode::INTERNAL_SERVER_ERROR, TEXT, format!("{error}\n")),
        },
        (&Method::GET | &Method::HEAD, _) => with_body(StatusCode::NOT_FOUND, TEXT, "there is /metrics\n"),
        _ => with_body(StatusCode::METHOD_NOT_ALLOWED, TEXT, "GET /metrics\n"),
    }
}

fn metrics(cluster: &Cluster) -> Result<String, std::fmt::Error> {
    let watches = cluster.watches().into_iter().map(|watch| WatchState {
        state: watch.health.state(),
        silence: watch.health.silence(),
        resource: watch.resource,
        objects: watch.objects,
    });
    cluster.metrics().text(watches.collect(), cluster.connections())
}
