//! What holds for every operator: one that panics or hangs over one object still serves the others.

use std::{collections::HashMap, sync::Arc, time::Duration};

use listwatch::{
    apiserver::{ApiServer, Fault, Options, Planned, RequestRecord},
    client::{Client, Config, Error},
    cluster::Cluster,
    controller::{Controller, Next, Operator},
    resource::{Key, Scope, kinds::Service},
    watch::Lists,
};
use serde_json::json;
use tokio::sync::watch;

use crate::{
    hands::{Hands, eventually},
    world::{Kind, on},
};

/// Does what an object's name says, and counts how often.
struct Clumsy {
    calls: watch::Sender<HashMap<String, u32>>,
}

impl Clumsy {
    fn count(&self, call: String) {
        self.calls.send_modify(|calls| *calls.entry(call).or_default() += 1);
    }
}

impl Operator for Clumsy {
    type Kind = Service;

    async fn applied(&self, object: Arc<Service>) -> Result<Next, Error> {
        let name = object.metadata.name.to_string();
        self.count(name.clone());
        match &*name {
            "panics" => panic!("as asked"),
            "hangs" => std::future::pending().await,
            "fails" => Err(Error::new("try", "fails", "as asked")),
            "later" => Ok(Next::After(Duration::from_secs(30))),
            _ => Ok(Next::OnChange),
        }
    }

    async fn deleted(&self, last: Arc<Service>) -> Result<(), Error> {
        self.count(format!("deleted {}", last.metadata.name));
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn an_object_over_which_the_operator_panics_hangs_or_fails_holds_up_no_other() {
    let server = ApiServer::start(Options { controllers: false, ..Options::default() }).await.unwrap();
    let client = || {
        Client::new(Config::new(&server.url(), server.ca_pem().as_bytes(), server.token()).unwrap()).unwrap()
    };
    let hands = Hands::new(client());
    for name in ["panics", "hangs", "fails", "later", "fine"] {
        let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": {"ports": [{"port": 1}]}});
        hands.create("services", &service).await;
    }
    let (calls, mut seen) = watch::channel(HashMap::new());
    let cluster = Cluster::new(client(), Lists::Paged);
    let services =
        cluster.watch::<Service>([Scope { namespace: Some("default".into()), ..Scope::default() }]);
    let operator = Clumsy { calls };
    // Two workers, of which one hangs.
    let controller = Controller::new(&cluster, &services, operator).workers(2);
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(controller.run(async { drop(stopped.await) }));

    // All but the one that is fine come again: after a backoff, after the limit of one reconcile, or as they said.
    let again = |calls: &HashMap<String, u32>| {
        ["panics", "hangs", "fails", "later"]
            .iter()
            .all(|name| calls.get(*name).is_some_and(|count| *count >= 2))
    };
    seen.wait_for(again).await.unwrap();
    assert_eq!(seen.borrow()["fine"], 1);

    hands.delete("services/fine").await;
    seen.wait_for(|calls| calls.contains_key("deleted fine")).await.unwrap();

    // What hangs is given up in time for Kubernetes, which waits 30 s.
    stop.send(()).unwrap();
    let asked = tokio::time::Instant::now();
    running.await.unwrap();
    assert!(asked.elapsed() <= Duration::from_secs(26), "{:?}", asked.elapsed());
}

/// Both wait when it is asked: the watch before it lists again, and the object before it is tried again.
#[tokio::test(start_paused = true)]
async fn who_waits_out_a_backoff_stops_at_once() {
    let server = ApiServer::start(Options { controllers: false, ..Options::default() }).await.unwrap();
    let client =
        Client::new(Config::new(&server.url(), server.ca_pem().as_bytes(), server.token()).unwrap()).unwrap();
    let service = json!({"metadata": {"name": "fails"}, "spec": {"ports": [{"port": 1}]}});
    Hands::new(client.clone()).create("services", &service).await;
    let cluster = Cluster::new(client, Lists::Paged);
    let services = cluster.watch::<Service>([Scope::default()]);
    let (calls, mut seen) = watch::channel(HashMap::new());
    let controller = Controller::new(&cluster, &services, Clumsy { calls });
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(controller.run(async { drop(stopped.await) }));
    seen.wait_for(|calls| calls.get("fails").is_some_and(|count| *count > 8)).await.unwrap();
    server.fault("internal-error,path=/services".parse::<Planned>().unwrap());
    server.fault(Fault::Restart);
    let refused = |records: Vec<RequestRecord>| records.iter().filter(|record| record.status == 500).count();
    eventually("six refusals", async || (refused(server.requests()) >= 6).then_some(())).await;

    stop.send(()).unwrap();
    let asked = tokio::time::Instant::now();
    running.await.unwrap();
    assert!(asked.elapsed() < Duration::from_secs(1), "{:?}", asked.elapsed());
}

/// A server ends a watch that is not read. Here it would have to keep 10 MB for whoever waits for the one worker.
#[tokio::test]
async fn while_the_operator_hangs_over_an_object_its_watch_is_read_on() {
    const TEXT_BYTES: usize = 200_000;
    on(&[Kind::Embedded, Kind::Real], async |world| {
        let rule = json!({"apiGroups": [""], "resources": ["services"], "verbs": ["list", "watch"]});
        world.may_be_forbidden.set(true);
        world.allow_only(&json!([rule])).await;
        let cluster = Cluster::new(world.operators_client(&world.url()), world.lists);
        let scope = Scope { namespace: Some(world.namespace.clone()), ..Scope::default() };
        let services = cluster.watch::<Service>([scope]);
        let (calls, mut seen) = watch::channel(HashMap::new());
        let controller = Controller::new(&cluster, &services, Clumsy { calls }).workers(1);
        let running = tokio::spawn(controller.run(std::future::pending()));
        let service = |name: &str| json!({"metadata": {"name": name}, "spec": {"ports": [{"port": 1}]}});
        world.create("services", &service("hangs")).await;
        seen.wait_for(|calls| calls.contains_key("hangs")).await.unwrap();

        world.create("services", &service("fine")).await;
        let key = Key::namespaced(&world.namespace, "fine");
        let mut version = String::new();
        for time in 0..50 {
            let annotations = json!({"time": time.to_string(), "text": "x".repeat(TEXT_BYTES)});
            let changed =
                world.patch("services/fine", json!({"metadata": {"annotations": annotations}})).await;
            version = changed["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
        }
        let read = || (services.get(&key)?.metadata.resource_version == version).then_some(());
        eventually("the last change", async || read()).await;
        assert_eq!(seen.borrow().keys().collect::<Vec<_>>(), ["hangs"]);
        running.abort();
    })
    .await;
}
