//! Benchmarks one watch event on its way from the line to the worker: decode, store, queue.
//!
//! `cargo bench --bench event`. The event is for a rolled-out Deployment, as kube-apiserver 1.36 wrote it.

use std::{hint::black_box, sync::Arc};

use criterion::{BatchSize, Criterion, Throughput};
use listwatch::{
    advanced::{Queue, Urgency},
    next::Next,
    resource::{
        Key,
        kinds::Deployment,
        list::{Found, List},
    },
    store::Store,
    watch::decode::WatchEvent,
};
use serde_json::Value;

const EVENT: &[u8] = include_bytes!("../tests/it/data/deployment_event.json");
/// Objects in the list: the number of Deployments in the largest measured clusters.
const LISTED: usize = 10_000;
/// Objects in the Store and keys in the Queue.
const KNOWN: usize = 1000;

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    decode_event(&mut criterion);
    decode_list(&mut criterion);
    put(&mut criterion);
    queue(&mut criterion);
    criterion.final_summary();
}

fn decode_event(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("decode");
    group.throughput(Throughput::Bytes(EVENT.len() as u64));
    group.bench_function("event", |bencher| {
        bencher.iter(|| WatchEvent::<Deployment>::from_json(black_box(EVENT)).expect("an event"));
    });
    group.finish();
}

fn decode_list(criterion: &mut Criterion) {
    let list = list();
    let mut group = criterion.benchmark_group("decode");
    group.throughput(Throughput::Elements(LISTED as u64)).sample_size(10);
    group.bench_function("list of 10000", |bencher| {
        bencher.iter_with_large_drop(|| List::<Deployment>::from_json(black_box(&list)).expect("a list"));
    });
    group.finish();
}

/// Stores a newer version of an existing object, among a thousand objects.
fn put(criterion: &mut Criterion) {
    let store = Store::<Deployment>::default();
    let objects: Vec<Deployment> = (0..KNOWN).map(deployment).collect();
    for object in &objects {
        store.applied(Found::Readable(Arc::new(object.clone())));
    }
    let mut version = 1_000_000;
    criterion.bench_function("store put", |bencher| {
        let newer = || {
            version += 1;
            let mut object = objects[version % KNOWN].clone();
            object.metadata.resource_version = version.to_string().into();
            Found::Readable(Arc::new(object))
        };
        bencher.iter_batched(newer, |object| store.applied(object), BatchSize::SmallInput);
    });
}

/// Adds every key, then takes each and marks it done.
fn queue(criterion: &mut Criterion) {
    let keys: Vec<Key> = (0..KNOWN).map(|number| deployment(number).metadata.key()).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let queue = Queue::new(fastrand::Rng::with_seed(1));
    let mut group = criterion.benchmark_group("queue");
    group.throughput(Throughput::Elements(KNOWN as u64));
    group.bench_function("add, take, done, of 1000", |bencher| {
        bencher.to_async(&runtime).iter(|| async {
            for key in &keys {
                queue.add(key, Urgency::Change);
            }
            for _ in &keys {
                let key = queue.take().await;
                queue.done(&key, Ok(Next::OnChange));
            }
        });
    });
    group.finish();
}

fn deployment(number: usize) -> Deployment {
    let event: Value = serde_json::from_slice(EVENT).expect("an event");
    let mut object: Deployment = serde_json::from_value(event["object"].clone()).expect("a Deployment");
    object.metadata.name = format!("mws-web-{number}").into();
    object
}

fn list() -> Vec<u8> {
    let event = String::from_utf8_lossy(EVENT);
    let object = event.trim_end().strip_prefix(r#"{"type":"MODIFIED","object":"#).expect("the event's type");
    let object = object.strip_suffix('}').expect("the event's end");
    let items: Vec<String> =
        (0..LISTED).map(|number| object.replacen("mws-web", &format!("mws-web-{number}"), 1)).collect();
    let metadata = r#"{"resourceVersion":"20000"}"#;
    format!(
        r#"{{"kind":"DeploymentList","apiVersion":"apps/v1","metadata":{metadata},"items":[{}]}}"#,
        items.join(",")
    )
    .into_bytes()
}
