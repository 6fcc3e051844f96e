//! `/metrics`, for Prometheus, in the format that the scraper asks for.

use hyper::{Method, Request, StatusCode, header::ACCEPT};

use super::{HttpAnswer, TEXT, answer as with_body};
use crate::{
    cluster::Cluster,
    metrics::{TextFormat, WatchState},
};

/// Whether the answer has metrics.
pub(super) fn serves<B>(request: &Request<B>) -> bool {
    [Method::GET, Method::HEAD].contains(request.method()) && request.uri().path() == "/metrics"
}

pub(super) fn answer<B>(request: &Request<B>, cluster: &Cluster) -> HttpAnswer {
    if !serves(request) {
        return with_body(StatusCode::NOT_FOUND, TEXT, "there is GET /metrics\n");
    }
    let format = TextFormat::for_accept(request.headers().get(ACCEPT));
    match metrics(cluster, format) {
        Ok(text) => with_body(StatusCode::OK, format.media_type(), text),
        Err(error) => with_body(StatusCode::INTERNAL_SERVER_ERROR, TEXT, format!("{error}\n")),
    }
}

fn metrics(cluster: &Cluster, format: TextFormat) -> Result<String, std::fmt::Error> {
    let watches = cluster.watches().into_iter().map(|watch| WatchState {
        state: watch.health.state(),
        silence: watch.health.silence(),
        resource: watch.resource,
        objects: watch.objects,
    });
    cluster.metrics().text(format, watches.collect(), cluster.client.connections())
}
