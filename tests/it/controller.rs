//! What holds for every operator: one that panics or hangs over one object still serves the others.

use std::{
    collections::HashMap,
    marker::PhantomData,
    sync::Arc,
    time::{Duration, SystemTime},
};

use listwatch::{
    apiserver::{ApiServer, Fault, Options, Planned, RequestRecord},
    client::{Client, Config, Error},
    cluster::{Cluster, Watch},
    controller::{Controller, Next, Operator},
    resource::{
        Key, Resource, Scope,
        kinds::{Deployment, Service},
    },
    watch::Lists,
};
use serde_json::json;
use tokio::{
    sync::{Semaphore, watch},
    time::Instant,
};

use crate::{
    crowd::Door,
    hands::{Hands, eventually},
    world::{Kind, on},
};

/// Does what an object's name says, and counts how often.
struct Clumsy<K> {
    calls: watch::Sender<HashMap<String, u32>>,
    kind: PhantomData<fn() -> K>,
}

impl<K> Clumsy<K> {
    fn new(calls: watch::Sender<HashMap<String, u32>>) -> Clumsy<K> {
        Clumsy { calls, kind: PhantomData }
    }

    fn count(&self, call: String) {
        self.calls.send_modify(|calls| *calls.entry(call).or_default() += 1);
    }
}

impl<K: Resource> Operator for Clumsy<K> {
    type Kind = K;

    async fn applied(&self, object: Arc<K>) -> Result<Next, Error> {
        let name = object.metadata().name.to_string();
        self.count(name.clone());
        match &*name {
            "panics" => panic!("as asked"),
            "hangs" => std::future::pending().await,
            "fails" => Err(Error::new("try", "fails", "as asked")),
            "later" => Ok(Next::After(Duration::from_secs(30))),
            _ => Ok(Next::OnChange),
        }
    }

    async fn deleted(&self, last: Arc<K>) -> Result<(), Error> {
        self.count(format!("deleted {}", last.metadata().name));
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
    let operator = Clumsy::new(calls);
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

    // An event is believed, and told once.
    hands.delete("services/fine").await;
    seen.wait_for(|calls| calls.contains_key("deleted fine")).await.unwrap();
    let live = |record: &RequestRecord| record.method == "GET" && record.path.ends_with("/services/fine");
    assert!(!server.requests().iter().any(live));
    let fine = json!({"metadata": {"name": "fine"}, "spec": {"ports": [{"port": 1}]}});
    hands.create("services", &fine).await;
    seen.wait_for(|calls| calls["fine"] == 2).await.unwrap();
    assert_eq!(seen.borrow()["deleted fine"], 1);

    // What hangs is given up in time for Kubernetes, which waits 30 s.
    stop.send(()).unwrap();
    let asked = Instant::now();
    running.await.unwrap();
    assert!(asked.elapsed() <= Duration::from_secs(26), "{:?}", asked.elapsed());
}

/// Where a selector filters, DELETED may only say that the object left the selection. Without an answer nothing is known.
#[tokio::test(start_paused = true)]
async fn an_object_that_leaves_the_selection_is_not_taken_for_deleted() {
    let server = ApiServer::start(Options { controllers: false, ..Options::default() }).await.unwrap();
    let client =
        Client::new(Config::new(&server.url(), server.ca_pem().as_bytes(), server.token()).unwrap()).unwrap();
    let hands = Hands::new(client.clone());
    let service =
        json!({"metadata": {"name": "fine", "labels": {"color": "red"}}, "spec": {"ports": [{"port": 1}]}});
    hands.create("services", &service).await;
    let cluster = Cluster::new(client, Lists::Paged);
    let services = cluster.watch::<Service>([Scope { namespace: None, labels: "color=red".to_owned() }]);
    let (calls, mut seen) = watch::channel(HashMap::new());
    let controller = Controller::new(&cluster, &services, Clumsy::new(calls));
    let running = tokio::spawn(controller.run(std::future::pending()));
    seen.wait_for(|calls| calls.contains_key("fine")).await.unwrap();

    let refused = Fault::Answer { status: 403, body: String::new(), retry_after_secs: None };
    server.fault(refused.on("GET", "/services/fine").times(1));
    hands.patch("services/fine", json!({"metadata": {"labels": {"color": "blue"}}})).await;
    eventually("the operator to ask twice", async || {
        let mut asked = server.requests();
        asked.retain(|record| record.method == "GET" && record.path.ends_with("/services/fine"));
        let answers: Vec<_> = asked.iter().map(|record| record.status).collect();
        (answers == [403, 200]).then_some(())
    })
    .await;
    hands.patch("services/fine", json!({"metadata": {"labels": {"color": "red"}}})).await;
    seen.wait_for(|calls| calls["fine"] == 2).await.unwrap();
    assert!(!seen.borrow().contains_key("deleted fine"));
    hands.delete("services/fine").await;
    seen.wait_for(|calls| calls.contains_key("deleted fine")).await.unwrap();
    running.abort();
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
    let controller = Controller::new(&cluster, &services, Clumsy::new(calls));
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(controller.run(async { drop(stopped.await) }));
    seen.wait_for(|calls| calls.get("fails").is_some_and(|count| *count > 8)).await.unwrap();
    server.fault("internal-error,path=/services".parse::<Planned>().unwrap());
    server.fault(Fault::Restart);
    let refused = |records: Vec<RequestRecord>| records.iter().filter(|record| record.status == 500).count();
    eventually("six refusals", async || (refused(server.requests()) >= 6).then_some(())).await;

    stop.send(()).unwrap();
    let asked = Instant::now();
    running.await.unwrap();
    assert!(asked.elapsed() < Duration::from_secs(1), "{:?}", asked.elapsed());
}

/// One that keeps failing waits for up to a minute.
#[tokio::test(start_paused = true)]
async fn a_new_generation_cuts_short_the_pause_after_a_failure_and_no_other_change_does() {
    let options = Options { controllers: false, ..Options::default() };
    let server = ApiServer::in_process(&options, SystemTime::UNIX_EPOCH);
    let token = server.token().to_owned();
    // A clock that jumps would not wait for a socket.
    let client = Door::to(server, "/deployments", Duration::ZERO).client(&token);
    let hands = Hands::new(client.clone());
    let template = json!({
        "metadata": {"labels": {"app": "web"}},
        "spec": {"containers": [{"name": "web", "image": "nginx"}]},
    });
    let spec = json!({"selector": {"matchLabels": {"app": "web"}}, "template": template});
    hands.create("deployments", &json!({"metadata": {"name": "fails"}, "spec": spec})).await;
    let cluster = Cluster::new(client, Lists::Paged);
    let deployments = cluster.watch::<Deployment>([Scope::default()]);
    let (calls, mut seen) = watch::channel(HashMap::new());
    let running =
        tokio::spawn(Controller::new(&cluster, &deployments, Clumsy::new(calls)).run(std::future::pending()));
    let count = |calls: &HashMap<String, u32>| calls.get("fails").copied().unwrap_or_default();
    seen.wait_for(|calls| count(calls) > 8).await.unwrap();

    let before = count(&seen.borrow());
    hands.patch("deployments/fails", json!({"metadata": {"labels": {"theirs": "now"}}})).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(count(&seen.borrow()), before);
    let changed = Instant::now();
    hands.patch("deployments/fails", json!({"spec": {"replicas": 2}})).await;
    seen.wait_for(|calls| count(calls) > before).await.unwrap();
    assert!(changed.elapsed() < Duration::from_secs(1), "{:?}", changed.elapsed());
    running.abort();
}

/// Writes down for which object it is called, and works on it until it is let go on.
struct Slow {
    called: watch::Sender<Vec<String>>,
    may_go_on: Arc<Semaphore>,
}

impl Operator for Slow {
    type Kind = Service;

    async fn applied(&self, object: Arc<Service>) -> Result<Next, Error> {
        self.called.send_modify(|called| called.push(object.metadata.name.to_string()));
        self.may_go_on.acquire().await.unwrap().forget();
        Ok(Next::OnChange)
    }
}

#[tokio::test]
async fn what_was_there_at_the_start_comes_after_changes_and_those_after_new_objects() {
    let server = ApiServer::start(Options { controllers: false, ..Options::default() }).await.unwrap();
    let client =
        Client::new(Config::new(&server.url(), server.ca_pem().as_bytes(), server.token()).unwrap()).unwrap();
    let hands = Hands::new(client.clone());
    let service = |name: &str| json!({"metadata": {"name": name}, "spec": {"ports": [{"port": 1}]}});
    for name in ["a", "b", "c"] {
        hands.create("services", &service(name)).await;
    }
    let cluster = Cluster::new(client, Lists::Paged);
    let services = cluster.watch::<Service>([Scope::default()]);
    let (called, mut seen) = watch::channel(Vec::new());
    let may_go_on = Arc::new(Semaphore::new(0));
    let operator = Slow { called, may_go_on: Arc::clone(&may_go_on) };
    let controller = Controller::new(&cluster, &services, operator).workers(1);
    let running = tokio::spawn(controller.run(std::future::pending()));
    seen.wait_for(|called| *called == ["a"]).await.unwrap();

    hands.patch("services/c", json!({"metadata": {"labels": {"theirs": "now"}}})).await;
    hands.create("services", &service("z")).await;
    let z = Key::namespaced("default", "z");
    eventually("both to be heard of", async || services.get(&z).map(drop)).await;
    may_go_on.add_permits(4);
    seen.wait_for(|called| called.len() == 4).await.unwrap();
    assert_eq!(*seen.borrow(), ["a", "z", "c", "b"]);
    running.abort();
}

/// Records whether the children of an object are known when it is looked at.
struct Careful {
    deployments: Watch<Deployment>,
    knows_children: watch::Sender<Vec<bool>>,
}

impl Operator for Careful {
    type Kind = Service;

    async fn applied(&self, object: Arc<Service>) -> Result<Next, Error> {
        let knows = self.deployments.is_synced_for(&object.key());
        self.knows_children.send_modify(|all| all.push(knows));
        Ok(Next::OnChange)
    }
}

/// Otherwise a start would make each child once more.
#[tokio::test(start_paused = true)]
async fn nothing_is_done_about_an_object_before_the_first_list_of_what_it_owns() {
    let server = ApiServer::start(Options { controllers: false, ..Options::default() }).await.unwrap();
    let client =
        Client::new(Config::new(&server.url(), server.ca_pem().as_bytes(), server.token()).unwrap()).unwrap();
    let service = json!({"metadata": {"name": "web"}, "spec": {"ports": [{"port": 1}]}});
    Hands::new(client.clone()).create("services", &service).await;
    server.fault("internal-error,path=/deployments,times=3".parse::<Planned>().unwrap());
    let cluster = Cluster::new(client, Lists::Paged);
    let services = cluster.watch::<Service>([Scope::default()]);
    let deployments = cluster.watch::<Deployment>([Scope::default()]);
    let (knows_children, mut seen) = watch::channel(Vec::new());
    let operator = Careful { deployments: deployments.clone(), knows_children };
    let controller = Controller::new(&cluster, &services, operator).owns(&deployments);
    let running = tokio::spawn(controller.run(std::future::pending()));
    seen.wait_for(|all| !all.is_empty()).await.unwrap();
    assert_eq!(*seen.borrow(), [true]);
    running.abort();
}

/// What was decided on an old version is not done to what somebody else has made of it since.
#[tokio::test]
async fn every_write_to_an_object_that_has_changed_since_is_refused() {
    on(&[Kind::Embedded, Kind::Real], async |world| {
        let verbs = ["get", "patch", "delete"];
        let rule = json!({"apiGroups": ["apps"], "resources": ["deployments", "deployments/status"], "verbs": verbs});
        world.may_be_forbidden.set(true);
        world.allow_only(&json!([rule])).await;
        let template = json!({
            "metadata": {"labels": {"app": "web"}},
            "spec": {"containers": [{"name": "web", "image": "nginx"}]},
        });
        let spec = json!({"replicas": 0, "selector": {"matchLabels": {"app": "web"}}, "template": template});
        world.create("deployments", &json!({"metadata": {"name": "web"}, "spec": spec})).await;
        let cluster = Cluster::new(world.operators_client(&world.url()), world.lists);
        let key = Key::namespaced(&world.namespace, "web");
        let old = eventually("the right to read it", async || cluster.get_live::<Deployment>(&key).await.ok()).await;
        world.patch("deployments/web", json!({"metadata": {"labels": {"theirs": "now"}}})).await;

        let replicas = json!({"op": "replace", "path": "/spec/replicas", "value": 7});
        let refused = [
            cluster.patch(&*old, vec![replicas]).await.err(),
            cluster.patch_status(&*old, json!({"observedGeneration": 7})).await.err(),
            cluster.delete(&*old).await.err(),
        ];
        for error in refused {
            assert!(error.as_ref().is_some_and(Error::is_conflict), "{error:?}");
        }
        assert_eq!(world.get("deployments/web").await["metadata"]["labels"]["theirs"], "now");
    })
    .await;
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
        let controller = Controller::new(&cluster, &services, Clumsy::new(calls)).workers(1);
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
