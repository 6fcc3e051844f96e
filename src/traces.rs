//! Traces by OpenTelemetry: a span for each reconcile, with a span for each of its requests. See `docs/traces.md`.
//!
//! ```text
//! reconcile Page           k8s.namespace.name=default  k8s.object.name=about
//! ├─ GET                   url.full=https://…/api/v1/namespaces/default/configmaps/about
//! └─ PATCH                 url.full=https://…/apis/example.com/v1/namespaces/default/pages/about/status?…
//! ```
//!
//! Names of attributes follow the semantic conventions: <https://opentelemetry.io/docs/specs/semconv/http/http-spans/>.
//! A request outside of a reconcile, such as a list or watch of the cache, has no span. A build without the feature `otel` has
//! `not_traced.rs` in place of this module.

use std::{env, fmt::Display, path::Path, time::Duration};

use http::{HeaderMap, Method};
use opentelemetry::{
    Context, KeyValue, global,
    propagation::TextMapPropagator,
    trace::{FutureExt, SpanKind, Status, TraceContextExt, Tracer},
};
use opentelemetry_http::HeaderInjector;
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig};
use opentelemetry_sdk::{Resource, propagation::TraceContextPropagator, trace::SdkTracerProvider};
use tracing::warn;
use url::Url;

use crate::resource::Key;

/// The instrumentation scope of our spans.
const SCOPE: &str = "listwatch";

/// How long the exit waits for the last spans. Together with the time of a graceful stop (`runtime.rs`), less than the 30 s after which the
/// kubelet kills a Pod.
const LAST_SPANS_LIMIT: Duration = Duration::from_millis(500);

/// Without one of these variables, no traces are sent. The default of OpenTelemetry, port 4318 of this host, is a Pod without a collector.
const ENDPOINTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"];

/// Sends spans until it is dropped, and then the last ones.
pub(crate) struct Traces(Option<SdkTracerProvider>);

impl Traces {
    /// Starts to send spans as the variables `OTEL_…` say:
    /// <https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/>. A client of the API server exists
    /// already, so that TLS has its cryptography.
    pub(crate) fn start() -> Result<Traces, String> {
        let variable = |name: &str| env::var(name).unwrap_or_default();
        let is_off = variable("OTEL_SDK_DISABLED").eq_ignore_ascii_case("true")
            || variable("OTEL_TRACES_EXPORTER") == "none";
        if is_off || ENDPOINTS.iter().all(|name| variable(name).is_empty()) {
            return Ok(Traces(None));
        }
        let exporter = SpanExporter::builder().with_http().with_protocol(Protocol::HttpBinary);
        let exporter = exporter.build().map_err(|error| format!("OpenTelemetry: {error}"))?;
        let provider = SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource());
        let provider = provider.build();
        global::set_tracer_provider(provider.clone());
        Ok(Traces(Some(provider)))
    }
}

impl Drop for Traces {
    fn drop(&mut self) {
        let Some(provider) = self.0.take() else { return };
        if let Err(error) = provider.shutdown_with_timeout(LAST_SPANS_LIMIT) {
            warn!(%error, "the last spans were not sent");
        }
    }
}

/// The attributes of this process. Without a name in the variables, the service is named after its program.
fn resource() -> Resource {
    let resource = Resource::builder().build();
    let name = resource.get(&"service.name".into()).map(|name| name.to_string());
    if name.is_some_and(|name| !name.starts_with("unknown_service")) {
        return resource;
    }
    let program = env::args().next().unwrap_or_default();
    let program = Path::new(&program).file_stem().unwrap_or_default().to_string_lossy().into_owned();
    Resource::builder().with_service_name(program).build()
}

/// The reconcile of an object of this kind, in a span of its own, which begins now and ends with it.
pub(crate) fn reconcile<F, T, E>(
    kind: &'static str,
    key: &Key,
    work: F,
) -> impl Future<Output = Result<T, E>> + use<F, T, E>
where
    F: Future<Output = Result<T, E>>,
    E: Display,
{
    let named =
        [KeyValue::new("k8s.object.kind", kind), KeyValue::new("k8s.object.name", key.name.to_string())];
    let namespace = key.namespace.iter().map(|name| KeyValue::new("k8s.namespace.name", name.to_string()));
    let tracer = global::tracer(SCOPE);
    let span = tracer.span_builder(format!("reconcile {kind}")).with_attributes(namespace.chain(named));
    let context = Context::new();
    let context = context.with_span(span.start_with_context(&tracer, &context));
    async move {
        let result = work.with_context(context.clone()).await;
        if let Err(error) = &result {
            context.span().set_status(Status::error(error.to_string()));
        }
        context.span().end();
        result
    }
}

/// A task of its own that is part of the present reconcile: its requests are in the trace of it. For `spawn` within
/// [`Operator::reconcile`](crate::controller::Operator::reconcile).
pub fn part<F: Future>(task: F) -> impl Future<Output = F::Output> {
    task.with_current_context()
}

/// The span of one attempt at a request, up to the end of its answer.
pub(crate) struct RequestSpan(Option<Context>);

impl RequestSpan {
    pub(crate) fn begin(method: &Method, url: impl FnOnce() -> Url) -> RequestSpan {
        let around = Context::current();
        let parent = around.span().span_context().clone();
        // Outside of a reconcile, or of a trace that is sent, there is no span. `traceparent` still says that the trace is not sent.
        if !parent.is_sampled() {
            return RequestSpan(Some(around.with_remote_span_context(parent)));
        }
        let url = url();
        let attributes = [
            KeyValue::new("http.request.method", method.to_string()),
            KeyValue::new("server.address", url.host_str().unwrap_or_default().to_owned()),
            KeyValue::new("server.port", i64::from(url.port_or_known_default().unwrap_or_default())),
            KeyValue::new("url.full", url.to_string()),
        ];
        let tracer = global::tracer(SCOPE);
        let span = tracer.span_builder(method.to_string()).with_kind(SpanKind::Client);
        let span = span.with_attributes(attributes).start_with_context(&tracer, &around);
        RequestSpan(Some(around.with_span(span)))
    }

    /// `traceparent`, and `tracestate` if there is one: <https://www.w3.org/TR/trace-context/>.
    pub(crate) fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        if let Some(context) = &self.0 {
            TraceContextPropagator::new().inject_context(context, &mut HeaderInjector(&mut headers));
        }
        headers
    }

    /// The head of the answer has come.
    pub(crate) fn answered(&self, status: u16) {
        let Some(context) = &self.0 else { return };
        context.span().set_attribute(KeyValue::new("http.response.status_code", i64::from(status)));
        if status >= 400 {
            self.failed(status.to_string());
        }
    }

    /// There was no answer, or not all of it.
    pub(crate) fn lost(&self) {
        self.failed("connection".to_owned());
    }

    /// The client did not wait for the end of the answer.
    pub(crate) fn dropped(&self) {
        self.failed("dropped".to_owned());
    }

    pub(crate) fn end(&mut self) {
        if let Some(context) = self.0.take() {
            context.span().end();
        }
    }

    fn failed(&self, error_type: String) {
        let Some(context) = &self.0 else { return };
        context.span().set_attribute(KeyValue::new("error.type", error_type));
        context.span().set_status(Status::error(""));
    }
}
