//! Counts the allocations while one watch event is decoded, which are most of the cost of a busy watch, and the bytes of a copy
//! and of a request.

use listwatch::{
    client::{Client, Config},
    resource::{
        Key,
        kinds::{ConfigMap, Deployment, Service},
        list::Found,
    },
    store::Store,
    watch::decode::WatchEvent,
};
use listwatch_operators::{copyrator::copy::Copied, mywebserver::MyWebserver};

/// The event of a rolled-out Deployment of ours, as kube-apiserver 1.36.3 sent it, including managedFields.
const EVENT: &[u8] = include_bytes!("data/deployment_event.json");

/// One is the Arc in which the Store has the object. If there are fewer, write the new number here. If there are more, find out why first.
#[test]
fn one_deployment_event_takes_48_allocations() {
    let mut event = None;
    let used = allocation_counter::measure(|| event = Some(WatchEvent::<Deployment>::from_json(EVENT)));
    let Some(Ok(WatchEvent::Modified(decoded))) = event else { panic!("not read: {event:?}") };
    assert_eq!(decoded.metadata().name, "mws-web");
    assert_eq!(used.count_total, 48);
}

/// The memory of the objects of a MyWebserver whose rollout has just begun, as kube-apiserver 1.36.3 sends them. If it is less, write the
/// new number here.
#[test]
fn a_mywebserver_takes_5474_bytes_with_its_children() {
    let (event, web) = (str::from_utf8(EVENT).unwrap(), include_str!("data/mywebserver.json"));
    let service = include_str!("data/service.json");
    let mut all = None;
    let used = allocation_counter::measure(|| {
        let deployment = WatchEvent::<Deployment>::from_json(event.as_bytes()).unwrap();
        all = Some((
            deployment,
            Found::<Service>::from_json(service).unwrap(),
            Found::<MyWebserver>::from_json(web).unwrap(),
        ));
    });
    let (WatchEvent::Modified(Found::Readable(_)), Found::Readable(_), Found::Readable(_)) = all.unwrap()
    else {
        panic!("not read");
    };
    assert_eq!(used.bytes_current, 5474);
}

/// The memory of a copy of ten sources in the Store of copyrator. If it is less, write the new number here.
#[test]
fn a_copy_takes_393_bytes() {
    let line = |number: usize| {
        let (namespace, name) = (format!("team-{}", number / 10), format!("source-{}", number % 10));
        let digest = format!("{:032x}", number % 10);
        Found::<Copied<ConfigMap>>::from_json(&format!(
            r#"{{"metadata":{{"name":"{name}","namespace":"{namespace}","uid":"00e4f4f5-13c0-44c5-98d6-{number:012x}",
            "resourceVersion":"{number}00","creationTimestamp":"2026-11-22T06:39:00Z","labels":{{"flant.com/copy":"true"}},
            "annotations":{{"flant.com/rule":"default/main-rule","flant.com/rule-uid":"00e4f4f5-13c0-44c5-98d6-3aca49e4a0b4",
            "flant.com/source":"default/{name}","flant.com/place":"{namespace}/{name}","flant.com/content":"{digest}"}}}}}}"#
        ))
        .unwrap()
    };
    let store = Store::default();
    let used = allocation_counter::measure(|| {
        store.list_begins();
        store.listed("100", (0..10_000).map(line));
        store.list_ends(&"100".into());
    });
    assert_eq!(used.bytes_current / 10_000, 393);
}

/// A reconcile contains a future for each request that it may send, and tokio moves it several times.
#[test]
fn the_future_of_a_request_takes_less_than_two_kilobytes() {
    let authority = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap().cert.pem();
    let config = Config::new("https://localhost", authority.as_bytes(), "token").unwrap();
    let (client, key) = (Client::new(config).unwrap(), Key::namespaced("default", "web"));
    let bytes = size_of_val(&client.get::<Deployment>(&key));
    assert!(bytes < 2000, "{bytes}");
}
