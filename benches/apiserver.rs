//! What the embedded API server costs: to start, to write, to list, to watch, to hold.
//!
//! `cargo bench --bench apiserver`. The server has a thread of its own, as `listwatch apiserver` has; the clients, over TLS,
//! share another. Each number is one run of what is described, as a test suite or a demo would meet it.

use std::{
    fs,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use http::Method;
use listwatch::{
    apiserver::{ApiServer, Options},
    client::{Body, Client, Config, Request},
    watch::decode::Lines,
};
use serde_json::Value;
use tokio::{runtime, task::JoinSet};

/// The MODIFIED event of a Deployment, as kube-apiserver 1.36 wrote it.
const EVENT: &str = include_str!("../tests/it/data/deployment_event.json");
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
const OBJECTS: usize = 10_000;
/// Watches that one client opens: an HTTP/2 connection has at most 100.
const WATCHES_PER_CLIENT: usize = 50;
/// Writes that are under way at a time.
const WRITERS: usize = 8;

fn main() {
    let runtime = runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let mut starts: Vec<Duration> = Vec::new();
        for _ in 0..21 {
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
            started.send((server.url(), ca, server.token().to_owned())).expect("somebody waits");
            let _ = tokio::task::spawn_blocking(move || stopped.recv()).await;
        });
    });
    let (url, ca, token) = address.recv().expect("a server");
    let client = || Client::new(Config::new(&url, ca.as_bytes(), &token).expect("a CA")).expect("a client");
    ((0..4).map(|_| client()).collect(), stop)
}

async fn start_to_ready() -> Duration {
    let begun = Instant::now();
    let (clients, _stop) = serve();
    clients[0].send(Request::get("/readyz")).await.expect("ready");
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
        let mut body = clients[1].stream(Request::get(DEPLOYMENTS)).await.expect("a list").1;
        length = 0;
        while let Some(chunk) = body.chunk().await.expect("more of it") {
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
        let request = Request::get(format!("{DEPLOYMENTS}?watch=1"));
        let body = clients[number / WATCHES_PER_CLIENT].stream(request).await.expect("a watch").1;
        watches.spawn(read(body, events));
    }
    let begun = Instant::now();
    create(&clients[0], events).await;
    let written = begun.elapsed();
    watches.join_all().await;
    let told = begun.elapsed();
    println!(
        "{events} writes, {WRITERS} at a time, {watchers} watchers        {:.0}/s",
        rate(events, written)
    );
    if watchers > 0 {
        println!(
            "  until the last watcher has the last event {:.2} s, {:.0} events/s",
            told.as_secs_f64(),
            rate(events * watchers, told)
        );
    }
}

/// Until a watch has told so many events.
async fn read(mut body: Body, events: usize) {
    let (mut lines, mut count) = (Lines::default(), 0);
    while count < events {
        let chunk = body.chunk().await.expect("a stream").expect("more of it");
        lines.push(&chunk);
        while lines.next_line().expect("short enough").is_some() {
            count += 1;
        }
    }
}

/// Deployments as operators have them, with all that kube-apiserver keeps of one.
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
        let (client, body) = (client.clone(), object.to_string().into_bytes());
        writes.spawn(async move {
            let request = Request::get(DEPLOYMENTS).sends(Method::POST, "application/json", body);
            client.send(request).await.expect("created");
        });
    }
    writes.join_all().await;
}

fn rate(count: usize, time: Duration) -> f64 {
    count as f64 / time.as_secs_f64()
}

/// Bytes of memory that this process has.
fn rss() -> usize {
    let statm = fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages: usize = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("a number");
    pages * 4096
}
