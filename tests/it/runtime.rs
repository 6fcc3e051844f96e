//! Tests the runtime with operators that are none of ours.

use std::{collections::BTreeSet, marker::PhantomData};

use listwatch::{
    cluster::{EventType, Events},
    controller::{Controller, Next, Operator, Reconcile, ReconcileError},
    resource::{
        Resource,
        kinds::{Deployment, Service},
    },
    runtime::Runtime,
};
use listwatch_control_plane::eventually;
use listwatch_operators::mywebserver::MyWebserver;
use serde_json::json;
use tokio::sync::{oneshot, watch};

use crate::{
    client,
    fixture::{Kind, on},
    manifests,
};

/// Records its calls, and Events if it has a recorder.
struct Notes<K> {
    name: &'static str,
    events: Option<Events>,
    seen: Seen,
    kind: PhantomData<fn() -> K>,
}

impl<K: Resource> Operator for Notes<K> {
    type Kind = K;

    async fn reconcile(&self, object: Reconcile<K>) -> Result<Next, ReconcileError> {
        if let Some(events) = &self.events {
            events.record(&**object.object(), EventType::Normal, "Seen", K::KIND.to_owned());
        }
        let call = format!("{} {}", self.name, object.key());
        self.seen.send_modify(|seen| {
            seen.insert(call);
        });
        Ok(Next::OnChange)
    }
}

type Seen = watch::Sender<BTreeSet<String>>;

fn add<K: Resource>(runtime: Runtime, name: &'static str, seen: &Seen) -> Runtime {
    let seen = seen.clone();
    runtime.controller(name, move |setup| {
        let objects = setup.cluster.watch::<K>(setup.scopes(""));
        let operator = Notes { name, events: Some(setup.events), seen, kind: PhantomData };
        Controller::new(&setup.cluster, &objects, operator)
    })
}

#[tokio::test]
async fn two_controllers_share_a_watch_and_write_their_events_before_they_stop() {
    on(&[Kind::InProcess, Kind::RealHttp1], async |fixture| {
        let template = json!({"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [{"name": "a", "image": "a"}]}});
        let spec = json!({"replicas": 0, "selector": {"matchLabels": {"app": "a"}}, "template": template});
        let deployment = |name: &str| json!({"metadata": {"name": name}, "spec": spec});
        fixture.create_service("web").await;
        fixture.create("deployments", &deployment("web")).await;
        let (seen, mut all) = watch::channel(BTreeSet::new());
        let (stop, stopped) = oneshot::channel::<()>();
        let namespace = &fixture.namespace;
        let runtime = Runtime::new(fixture.operators_client(&fixture.url())).lists(fixture.lists);
        let runtime = runtime.namespaces(vec![namespace.clone()]).unwrap();
        let runtime = add::<Service>(runtime, "example.com/first", &seen);
        let runtime = add::<Service>(runtime, "example.com/second", &seen);
        let runtime = add::<Deployment>(runtime, "example.com/third", &seen);
        let running = tokio::spawn(runtime.run_until(async { drop(stopped.await) }));
        let names = ["example.com/first", "example.com/second", "example.com/third"];
        let mut expected = BTreeSet::new();
        // The second ones come after the lists, by the watches.
        for object in ["web", "late"] {
            if object == "late" {
                fixture.create_service("late").await;
                fixture.create("deployments", &deployment("late")).await;
            }
            expected.extend(names.map(|name| format!("{name} {namespace}/{object}")));
            all.wait_for(|all| *all == expected).await.unwrap();
        }
        let reporters = async || {
            let events = fixture.get("events").await;
            let reporters = events["items"].as_array().unwrap().iter();
            let reporters = reporters.map(|event| event["reportingController"].as_str().unwrap().to_owned());
            // kube-apiserver may report that it has repaired the address of a Service.
            reporters.filter(|name| name.starts_with("example.com/")).collect::<BTreeSet<_>>()
        };
        let expected = names.map(str::to_owned).into();
        if !fixture.is_embedded() {
            // A stopping runtime has two seconds for its last Events, which may be too few on a busy machine.
            eventually("the Events", async || (reporters().await == expected).then_some(())).await;
        }
        stop.send(()).unwrap();
        running.await.unwrap().unwrap();
        assert_eq!(reporters().await, expected);

        let mut watches = eventually("two watches", async || {
            let mut paths: Vec<_> = fixture.records().await.into_iter().map(|record| record.path).collect();
            paths.retain(|path| path.contains("watch=1"));
            (paths.len() >= 2).then_some(paths)
        })
        .await;
        watches.iter_mut().for_each(|path| path.truncate(path.find('?').unwrap()));
        watches.sort();
        assert_eq!(watches, [fixture.path("services"), fixture.path("deployments")]);
    })
    .await;
}

#[tokio::test]
async fn probes_that_cannot_listen_end_the_runtime_with_the_address() {
    let (_server, user) = client::server().await;
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let error = Runtime::new(user.client.clone()).probes(address).run_until(std::future::pending()).await;
    let error = error.unwrap_err().to_string();
    assert!(error.starts_with(&format!("probes: cannot listen on {address}: ")), "{error}");
}

#[tokio::test]
async fn an_operator_without_events_runs_until_the_stop() {
    let (_server, user) = client::server().await;
    let (seen, mut all) = watch::channel(BTreeSet::new());
    let (stop, stopped) = oneshot::channel::<()>();
    let runtime = Runtime::new(user.client.clone()).controller("example.com/silent", |setup| {
        let services = setup.cluster.watch::<Service>(setup.scopes(""));
        let operator = Notes { name: "silent", events: None, seen, kind: PhantomData };
        Controller::new(&setup.cluster, &services, operator)
    });
    let running = tokio::spawn(runtime.run_until(async { drop(stopped.await) }));
    user.create_service("web").await;
    all.wait_for(|all| all.contains("silent default/web")).await.unwrap();
    stop.send(()).unwrap();
    running.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_operator_without_its_crd_waits_and_stops_no_other() {
    let (_server, user) = client::server().await;
    user.create_service("web").await;
    let (seen, mut all) = watch::channel(BTreeSet::new());
    let runtime = add::<MyWebserver>(Runtime::new(user.client.clone()), "example.com/webs", &seen);
    let runtime = add::<Service>(runtime, "example.com/services", &seen);
    let running = tokio::spawn(runtime.run_until(std::future::pending()));
    all.wait_for(|all| all.contains("example.com/services default/web")).await.unwrap();
    user.install(&manifests::crd()).await;
    user.create_web("late", json!({"image": "nginx"})).await;
    all.wait_for(|all| all.contains("example.com/webs default/late")).await.unwrap();
    assert!(!running.is_finished());
    running.abort();
}
