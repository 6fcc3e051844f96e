//! Traces reach a collector, and the API server gets their context. This program is the operator, the API server and the collector,
//! without a harness: the variables `OTEL_…` belong to a process, so the operator is a second process of this program.

#![allow(clippy::unwrap_used, reason = "a failed unwrap names its line")]

use std::{
    collections::BTreeMap,
    convert::Infallible,
    env,
    process::ExitCode,
    sync::{Arc, Mutex},
    time::SystemTime,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use listwatch::{
    cluster::Cluster,
    controller::{Next, Operator, Reconcile, ReconcileError},
    resource::{
        Key,
        kinds::{ConfigMap, Secret},
    },
    runtime::{self, Runtime},
    traces,
};
use listwatch_apiserver::{ApiServer, Options};
use tokio::{net::TcpListener, process::Command, sync::Notify};

const SECRET: &str = "/api/v1/namespaces/default/secrets/ink";

/// Reads a Secret that does not exist.
struct Cards {
    cluster: Cluster,
}

impl Operator for Cards {
    type Kind = ConfigMap;

    async fn reconcile(&self, _: Reconcile<ConfigMap>) -> Result<Next, ReconcileError> {
        let cluster = self.cluster.clone();
        let read = async move { cluster.get_live::<Secret>(&Key::namespaced("default", "ink")).await };
        tokio::spawn(traces::part(read)).await??;
        Ok(Next::OnChange)
    }
}

fn cards(runtime: Runtime) -> Runtime {
    runtime.controller("example.com/cards", |setup| {
        let cluster = setup.cluster.clone();
        setup.kind_without_status::<ConfigMap>("cards").run_by(Cards { cluster })
    })
}

/// The API server, and the collector at `/v1/traces`.
struct Servers {
    kubernetes: ApiServer,
    /// The path and the `traceparent` of each request to the API server.
    parents: Mutex<Vec<(String, Option<String>)>>,
    has_read: Notify,
    spans: Mutex<Vec<Span>>,
}

/// A span of the protocol: <https://github.com/open-telemetry/opentelemetry-proto/blob/main/opentelemetry/proto/trace/v1/trace.proto>.
#[derive(Debug)]
struct Span {
    service: String,
    trace: String,
    id: String,
    parent: String,
    name: String,
    attributes: BTreeMap<String, String>,
    error: String,
}

type Answer = Response<UnsyncBoxBody<Bytes, Box<dyn std::error::Error + Send + Sync>>>;

impl Servers {
    async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Result<Answer, Infallible> {
        let (mut head, body) = request.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        if head.uri.path() == "/v1/traces" {
            assert_eq!(head.headers["content-type"], "application/x-protobuf");
            self.spans.lock().unwrap().extend(spans(&body));
            return Ok(Response::new(Full::default().map_err(Into::into).boxed_unsync()));
        }
        let parent = head.headers.get("traceparent").map(|parent| parent.to_str().unwrap().to_owned());
        self.parents.lock().unwrap().push((head.uri.path().to_owned(), parent));
        // A client sends no token without TLS.
        head.headers.insert("authorization", format!("Bearer {}", self.kubernetes.token()).parse().unwrap());
        let is_read = head.uri.path() == SECRET;
        let answer = self.kubernetes.answer(Request::from_parts(head, Full::new(body))).await.unwrap();
        if is_read {
            self.has_read.notify_one();
        }
        Ok(answer.map(|body| body.map_err(Into::into).boxed_unsync()))
    }

    async fn serve(self: Arc<Self>, listener: TcpListener) {
        loop {
            let (connection, _) = listener.accept().await.unwrap();
            let servers = Arc::clone(&self);
            let answer = service_fn(move |request| Arc::clone(&servers).answer(request));
            let serving = http1::Builder::new().serve_connection(TokioIo::new(connection), answer);
            // The operator drops its watches.
            tokio::spawn(async { drop(serving.await) });
        }
    }
}

fn spans(request: &[u8]) -> Vec<Span> {
    let mut spans = Vec::new();
    for resource_spans in messages(request, 1) {
        let service = messages(resource_spans, 1).flat_map(attributes).collect::<BTreeMap<_, _>>();
        let scopes = messages(resource_spans, 2);
        spans.extend(scopes.flat_map(|scope| messages(scope, 2)).map(|span| Span {
            service: service["service.name"].clone(),
            trace: hex(span, 1),
            id: hex(span, 2),
            parent: hex(span, 4),
            name: text(span, 5),
            attributes: messages(span, 9).flat_map(attribute).collect(),
            error: messages(span, 15).map(|status| text(status, 2)).collect(),
        }));
    }
    spans
}

fn attributes(resource: &[u8]) -> impl Iterator<Item = (String, String)> {
    messages(resource, 1).flat_map(attribute)
}

/// Only with a value that is text.
fn attribute(pair: &[u8]) -> Option<(String, String)> {
    let value = messages(pair, 2).next().map(|value| text(value, 1))?;
    Some((text(pair, 1), value))
}

fn text(message: &[u8], field: u64) -> String {
    messages(message, field).map(String::from_utf8_lossy).collect()
}

fn hex(message: &[u8], field: u64) -> String {
    messages(message, field).flatten().map(|byte| format!("{byte:02x}")).collect()
}

/// The values of a length-delimited field, such as a message: <https://protobuf.dev/programming-guides/encoding/>.
fn messages(mut message: &[u8], field: u64) -> impl Iterator<Item = &[u8]> {
    let mut values = Vec::new();
    while !message.is_empty() {
        let tag = varint(&mut message);
        let len = match tag & 7 {
            0 => {
                varint(&mut message);
                continue;
            }
            1 => 8,
            2 => usize::try_from(varint(&mut message)).unwrap(),
            5 => 4,
            other => panic!("wire type {other}"),
        };
        let (value, rest) = message.split_at(len);
        message = rest;
        if tag == field << 3 | 2 {
            values.push(value);
        }
    }
    values.into_iter()
}

fn varint(message: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..).step_by(7) {
        let (byte, rest) = message.split_first().unwrap();
        *message = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            break;
        }
    }
    value
}

fn main() {
    if env::var_os("OTEL_SERVICE_NAME").is_some() {
        assert_eq!(runtime::main("cards", cards), ExitCode::SUCCESS);
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(a_reconcile_and_its_requests_are_one_trace());
}

async fn a_reconcile_and_its_requests_are_one_trace() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let servers = Arc::new(Servers {
        kubernetes: ApiServer::in_process(&Options::default(), SystemTime::now()),
        parents: Mutex::default(),
        has_read: Notify::new(),
        spans: Mutex::default(),
    });
    tokio::spawn(Arc::clone(&servers).serve(listener));

    let dir = tempfile::tempdir().unwrap();
    let kubeconfig = dir.path().join("kubeconfig");
    let text = format!(
        "clusters: [{{name: a, cluster: {{server: '{url}'}}}}]\ncontexts: [{{name: a, context: {{cluster: a}}}}]\ncurrent-context: a\n"
    );
    std::fs::write(&kubeconfig, text).unwrap();
    let mut operator = Command::new(env::current_exe().unwrap())
        .env("KUBECONFIG", kubeconfig)
        .env("WATCH_NAMESPACE", "default")
        .env("OTEL_SERVICE_NAME", "cards")
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", &url)
        // The exit sends what no timer has sent.
        .env("OTEL_BSP_SCHEDULE_DELAY", "3600000")
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    servers.has_read.notified().await;
    let pid = operator.id().unwrap().to_string();
    assert!(Command::new("kill").arg(pid).status().await.unwrap().success());
    assert!(operator.wait().await.unwrap().success());

    let spans = servers.spans.lock().unwrap();
    assert!(spans.iter().all(|span| span.service == "cards"), "{spans:?}");
    let mut is_first = true;
    for (path, parent) in &*servers.parents.lock().unwrap() {
        // Watches, and the requests of the start.
        if path != SECRET {
            assert_eq!(*parent, None, "{path}");
            continue;
        }
        let is_sent = |span: &&Span| Some(format!("00-{}-{}-01", span.trace, span.id)) == *parent;
        let request = spans.iter().find(is_sent).unwrap();
        assert_eq!((&*request.name, &request.attributes["url.full"]), ("GET", &format!("{url}{SECRET}")));
        let reconcile = spans.iter().find(|span| span.id == request.parent).unwrap();
        assert_eq!((&*reconcile.name, &*reconcile.parent), ("reconcile ConfigMap", ""));
        assert_eq!(reconcile.trace, request.trace);
        let object = ["k8s.object.kind", "k8s.namespace.name", "k8s.object.name"];
        let names = object.map(|name| &*reconcile.attributes[name]);
        assert_eq!(names, ["ConfigMap", "default", "kube-root-ca.crt"]);
        // The signal can end the reconcile of a retry before its answer.
        assert!(!is_first || reconcile.error.contains("404 NotFound"), "{reconcile:?}");
        is_first = false;
    }
}
