//! Benchmarks the embedded API server: its start, writes, lists and watches, and its memory.
//!
//! `cargo bench --bench apiserver`. The server has a thread of its own, as in `listwatch apiserver`. The clients share
//! another thread, and use TLS. Each number is from one run of the described work, as in a test suite or a demo.

use std::{
    fs,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use listwatch_apiserver::{ApiServer, Options};
use reqwest::{Certificate, Response, header};
use serde_json::Value;
use tokio::{runtime, task::JoinSet};

/// The MODIFIED event of a Deployment, as kube-apiserver 1.36 wrote it.
const EVENT: &str = include_str!("../../tests/it/data/deployment_event.json");
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
const OBJECTS: usize = 10_000;
/// Watches of one client: an HTTP/2 connection has at most 100 streams.
const WATCHES_PER_CLIENT: usize = 50;
/// Writes that are under way at the same time.
const WRITERS: usize = 8;

/// A client with a connection of its own.
struct Client {
    http: reqwest::Client,
    url: String,
}

impl Client {
    fn new(url: &str, ca_pem: &str, token: &str) -> Client {
        let authorization = format!("Bearer {token}").parse().expect("a token");
        let headers = header::HeaderMap::from_iter([(header::AUTHORIZATION, authorization)]);
        let ca = Certificate::from_pem(ca_pem.as_bytes()).expect("a certificate");
        let http = reqwest::Client::builder().tls_certs_only([ca]).default_headers(headers).build();
        Client { http: http.expect("a client"), url: url.to_owned() }
    }

    async fn get(&self, path: &str) -> Response {
        let answer = self.http.get(format!("{}{path}", self.url)).send().await.expect("an answer");
        answer.error_for_status().expect("200 OK")
    }
}

fn main() {
    rustls::crypto::ring::default_provider().install_default().expect("no other provider");
    let runtime = runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let mut starts = vec![start_to_ready().await];
        println!("memory after the first start, with a client {:.1} MB", rss() as f64 / 1e6);
        for _ in 1..21 {
            starts.push(start_to_ready().await);
        }
        starts.sort();
        println!("start to ready, handshake included          {:.1} ms (median of 21)", ms(starts[10]));
        objects().await;
        for (watchers, events) in [(0, 2000), (100, 2000), (200, 1000)] {
            watches(watchers, events).await;
        }
    });
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// A server on a thread of its own, which ends when the sender is dropped.
fn serve() -> (Vec<Client>, mpsc::Sender<()>) {
    let (stop, stopped) = mpsc::channel::<()>();
    let (started, address) = mpsc::channel();
    thread::spawn(move || {
        let runtime = runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let options = Options { controllers: false, ..Options::default() };
            let server = ApiServer::start(options).await.expect("a free port");
            let ca = server.ca_pem().to_owned();
            started.send((server.url(), ca, server.token().to_owned())).expect("a receiver");
            let _ = tokio::task::spawn_blocking(move || stopped.recv()).await;
        });
    });
    let (url, ca, token) = address.recv().expect("a server");
    ((0..4).map(|_| Client::new(&url, &ca, &token)).collect(), stop)
}

async fn start_to_ready() -> Duration {
    let begun = Instant::now();
    let (clients, _stop) = serve();
    clients[0].get("/readyz").await;
    begun.elapsed()
}

async fn objects() {
    let (clients, _stop) = serve();
    let (before, begun) = (rss(), Instant::now());
    create(&clients[0], OBJECTS).await;
    let time = begun.elapsed();
    println!("{OBJECTS} Deployments are created                   {:.0}/s", rate(OBJECTS, time));
    println!("each of them holds                          {} bytes of RSS", (rss() - before) / OBJECTS);
    let mut times = Vec::new();
    let mut length = 0;
    for _ in 0..5 {
        let begun = Instant::now();
        let mut list = clients[1].get(DEPLOYMENTS).await;
        length = 0;
        while let Some(chunk) = list.chunk().await.expect("more data") {
            length += chunk.len();
        }
        times.push(begun.elapsed());
    }
    times.sort();
    println!("all of them are listed, {length} bytes        {:.0} ms (median of 5)", ms(times[2]));
}

async fn watches(watchers: usize, events: usize) {
    let (clients, _stop) = serve();
    let mut watches = JoinSet::new();
    for number in 0..watchers {
        let watch = clients[number / WATCHES_PER_CLIENT].get(&format!("{DEPLOYMENTS}?watch=1")).await;
        watches.spawn(read(watch, events));
    }
    let begun = Instant::now();
    create(&clients[0], events).await;
    let written = begun.elapsed();
    watches.join_all().await;
    let received = begun.elapsed();
    println!(
        "{events} writes, {WRITERS} at a time, {watchers} watchers        {:.0}/s",
        rate(events, written)
    );
    if watchers > 0 {
        println!(
            "  until the last watcher has the last event {:.2} s, {:.0} events/s",
            received.as_secs_f64(),
            rate(events * watchers, received)
        );
    }
}

/// Reads a watch until this many events have arrived.
async fn read(mut watch: Response, events: usize) {
    let mut count = 0;
    while count < events {
        let chunk = watch.chunk().await.expect("a stream").expect("more data");
        count += memchr::memchr_iter(b'\n', &chunk).count();
    }
}

/// Creates typical Deployments of operators, with all fields that kube-apiserver stores.
async fn create(client: &Client, count: usize) {
    let event: Value = serde_json::from_str(EVENT).expect("an event");
    let mut object = event["object"].clone();
    for field in ["resourceVersion", "uid", "namespace"] {
        object["metadata"].as_object_mut().expect("metadata").remove(field);
    }
    let mut writes = JoinSet::new();
    for number in 0..count {
        if writes.len() == WRITERS {
            writes.join_next().await.expect("some").expect("no panic");
        }
        object["metadata"]["name"] = format!("web-{number}").into();
        let request = client.http.post(format!("{}{DEPLOYMENTS}", client.url));
        let request = request.header(header::CONTENT_TYPE, "application/json").body(object.to_string());
        writes.spawn(async move {
            let answer = request.send().await.expect("an answer").error_for_status().expect("201 Created");
            // An answer that is dropped unread resets its stream, and a client ends a connection with many of these.
            answer.bytes().await.expect("the object");
        });
    }
    writes.join_all().await;
}

fn rate(count: usize, time: Duration) -> f64 {
    count as f64 / time.as_secs_f64()
}

/// The resident memory of this process, in bytes.
fn rss() -> usize {
    let statm = fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages: usize = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("a number");
    pages * 4096
}
