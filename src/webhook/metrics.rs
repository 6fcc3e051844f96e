//! What the webhooks count, by the names of controller-runtime. docs/metrics.md has the list.

use std::{sync::Arc, time::Instant};

use hyper::StatusCode;
use prometheus_client::metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram};

use crate::metrics::{Metrics, RECONCILE_BUCKETS};

type Labels<const N: usize> = [(&'static str, String); N];

pub(super) struct WebhookMetrics {
    requests: Family<Labels<2>, Counter>,
    latency: Family<Labels<1>, Histogram, fn() -> Histogram>,
    in_flight: Family<Labels<1>, Gauge>,
    panics: Counter,
}

/// A review that is being answered.
pub(super) struct Counted<'a> {
    metrics: &'a WebhookMetrics,
    path: &'a str,
    begin: Instant,
    in_flight: Gauge,
    status: StatusCode,
}

impl WebhookMetrics {
    pub(super) fn new(metrics: &Arc<Metrics>) -> WebhookMetrics {
        let new = WebhookMetrics {
            requests: Family::default(),
            latency: Family::new_with_constructor(|| Histogram::new(RECONCILE_BUCKETS)),
            in_flight: Family::default(),
            panics: Counter::default(),
        };
        let of = |name: &str| format!("controller_runtime_webhook_{name}");
        metrics.register(&of("requests"), "Reviews, by the status of the answer", new.requests.clone());
        metrics.register(&of("latency_seconds"), "Times of the reviews", new.latency.clone());
        metrics.register(&of("requests_in_flight"), "Reviews that are being answered", new.in_flight.clone());
        metrics.register(&of("panics"), "Reviews that panicked", new.panics.clone());
        new
    }

    pub(super) fn begin<'a>(&'a self, path: &'a str) -> Counted<'a> {
        let in_flight = self.in_flight.get_or_create_owned(&[("webhook", path.to_owned())]);
        in_flight.inc();
        Counted { metrics: self, path, begin: Instant::now(), in_flight, status: StatusCode::GATEWAY_TIMEOUT }
    }

    pub(super) fn panicked(&self) {
        self.panics.inc();
    }
}

/// When the certificate ends, in seconds since 1970.
pub(super) fn expires(metrics: &Metrics) -> Gauge {
    let expires = Gauge::default();
    let help = "When the certificate of the webhooks ends, in seconds since 1970";
    metrics.register("listwatch_webhook_certificate_expiry_timestamp_seconds", help, expires.clone());
    expires
}

impl Counted<'_> {
    pub(super) fn end(mut self, status: StatusCode) {
        self.status = status;
    }
}

/// Also if the API server does not wait for the answer any more.
impl Drop for Counted<'_> {
    fn drop(&mut self) {
        let path = || ("webhook", self.path.to_owned());
        let code = ("code", self.status.as_u16().to_string());
        self.metrics.requests.get_or_create(&[path(), code]).inc();
        self.metrics.latency.get_or_create(&[path()]).observe(self.begin.elapsed().as_secs_f64());
        self.in_flight.dec();
    }
}
