//! Tests the controller with any operator: if the operator panics or hangs on one object, it still handles the others.

use std::{
    collections::{BTreeMap, HashMap},
    fmt, future,
    marker::PhantomData,
    sync::Arc,
    time::Duration,
};

use http::Method;
use listwatch::{
    children::{Child, Children, Outcome, Stage, Write},
    client::{Client, Error, Request},
    cluster::{Cluster, Watch},
    controller::{Builder, Cleanup, Controller, Next, Operator, Reconcile, ReconcileError},
    resource::{
        Key, Labels, ObjectMeta, Resource, Scope,
        kinds::{
            ConfigMap, Container, ContainerPort, Deployment, DeploymentSpec, Namespace, PodSpec, PodTemplate,
            Secret, Service, ServicePort, ServiceSpec,
        },
    },
    watch::Lists,
};
use listwatch_apiserver::{Fault, Planned, RequestRecord};
use listwatch_control_plane::eventually;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::{
    sync::{Semaphore, watch},
    task::JoinSet,
    time::Instant,
};

use crate::{
    client::{self, UserClient},
    fixture::{Fixture, Kind, on},
    thundering_herd::Gateway,
};

/// Runs an operator on the objects of a scope until the tasks are dropped, and returns what it records.
fn start<O: Operator, T: Default>(
    client: &Client,
    lists: Lists,
    scope: Scope,
    operator: impl FnOnce(watch::Sender<T>) -> O,
) -> (JoinSet<()>, watch::Receiver<T>) {
    let cluster = Cluster::new(client.clone(), lists);
    let (record, seen) = watch::channel(T::default());
    let controller = Controller::new(&cluster, &cluster.watch([scope]), operator(record));
    let mut running = JoinSet::new();
    running.spawn(controller.run(future::pending()));
    (running, seen)
}

/// Acts as the object's name says, and counts its calls.
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

    fn serves(&self, object: &K) -> bool {
        object.metadata().name != "foreign"
    }

    async fn reconcile(&self, object: Reconcile<K>) -> Result<Next, ReconcileError> {
        let name = object.metadata().name.to_string();
        self.count(name.clone());
        match &*name {
            "panics" => panic!("as its name says"),
            "hangs" => future::pending().await,
            "fails" => Err("as its name says".into()),
            "gives-up" => Err(ReconcileError::terminal("as its name says")),
            "later" => Ok(Next::After(Duration::from_secs(30))),
            _ => Ok(Next::OnChange),
        }
    }

    async fn deleted(&self, last: Arc<K>) -> Result<(), ReconcileError> {
        self.count(format!("deleted {}", last.metadata().name));
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn an_object_on_which_the_operator_panics_hangs_or_fails_blocks_no_other() {
    let (server, user) = client::server().await;
    for name in ["panics", "hangs", "fails", "gives-up", "later", "foreign", "fine"] {
        user.create_service(name).await;
    }
    let (calls, mut seen) = watch::channel(HashMap::new());
    let cluster = Cluster::new(user.client.clone(), Lists::Paged);
    let services =
        cluster.watch::<Service>([Scope { namespace: Some("default".into()), ..Scope::default() }]);
    let operator = Clumsy::new(calls);
    // There are two workers, one of which hangs.
    let controller = Controller::new(&cluster, &services, operator).workers(2);
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(controller.run(async { drop(stopped.await) }));

    // Reconciled again: after a backoff, after the time limit of a reconcile, or after the pause that they asked for.
    let are_repeated = |calls: &HashMap<String, u32>| {
        ["panics", "hangs", "fails", "later"]
            .iter()
            .all(|name| calls.get(*name).is_some_and(|count| *count >= 2))
    };
    seen.wait_for(are_repeated).await.unwrap();
    assert_eq!((seen.borrow()["fine"], seen.borrow()["gives-up"]), (1, 1));
    // An object that no retry can mend waits for a change, here of a label.
    user.patch("services/gives-up", json!({"metadata": {"labels": {"edited": "yes"}}})).await;
    seen.wait_for(|calls| calls["gives-up"] == 2).await.unwrap();

    // An event is trusted, and reported once.
    user.delete("services/foreign").await;
    user.delete("services/fine").await;
    seen.wait_for(|calls| calls.contains_key("deleted fine")).await.unwrap();
    let is_live_get =
        |record: &RequestRecord| record.method == "GET" && record.path.ends_with("/services/fine");
    assert!(!server.requests().iter().any(is_live_get));
    // An object that this process does not serve was left alone, also when it was deleted.
    assert!(!seen.borrow().keys().any(|call| call.contains("foreign")), "{:?}", seen.borrow());
    user.create_service("fine").await;
    seen.wait_for(|calls| calls["fine"] == 2).await.unwrap();
    assert_eq!(seen.borrow()["deleted fine"], 1);

    // A reconcile that hangs is given up before Kubernetes kills the process, after 30 s.
    stop.send(()).unwrap();
    let stopped_at = Instant::now();
    running.await.unwrap();
    assert!(stopped_at.elapsed() <= Duration::from_secs(26), "{:?}", stopped_at.elapsed());
}

/// With a selector, DELETED may only mean that the object left the selection. Without an answer to a GET, its state is
/// unknown.
#[tokio::test(start_paused = true)]
async fn an_object_that_leaves_the_selection_is_not_reported_as_deleted() {
    let (server, user) = client::server().await;
    let service =
        json!({"metadata": {"name": "fine", "labels": {"color": "red"}}, "spec": {"ports": [{"port": 1}]}});
    user.create("services", &service).await;
    let scope = Scope { labels: "color=red".to_owned(), ..Scope::default() };
    let (_running, mut seen) = start(&user.client, Lists::Paged, scope, Clumsy::<Service>::new);
    seen.wait_for(|calls| calls.contains_key("fine")).await.unwrap();

    let refused = Fault::Answer { status: 403, body: String::new(), retry_after_secs: None };
    server.fault(refused.on("GET", "/services/fine").times(1));
    user.patch("services/fine", json!({"metadata": {"labels": {"color": "blue"}}})).await;
    eventually("two GETs of the operator", async || {
        let mut gets = server.requests();
        gets.retain(|record| record.method == "GET" && record.path.ends_with("/services/fine"));
        let answers: Vec<_> = gets.iter().map(|record| record.status).collect();
        (answers == [403, 200]).then_some(())
    })
    .await;
    user.patch("services/fine", json!({"metadata": {"labels": {"color": "red"}}})).await;
    seen.wait_for(|calls| calls["fine"] == 2).await.unwrap();
    assert!(!seen.borrow().contains_key("deleted fine"));
    user.delete("services/fine").await;
    seen.wait_for(|calls| calls.contains_key("deleted fine")).await.unwrap();
}

/// Both are waiting at the time of the call: the watch for its next list, and the object for its next attempt.
#[tokio::test(start_paused = true)]
async fn a_stop_ends_every_backoff_at_once() {
    let (server, user) = client::server().await;
    user.create_service("fails").await;
    let cluster = Cluster::new(user.client, Lists::Paged);
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
    let stopped_at = Instant::now();
    running.await.unwrap();
    assert!(stopped_at.elapsed() < Duration::from_secs(1), "{:?}", stopped_at.elapsed());
}

/// An object that keeps failing waits for up to half a minute.
#[tokio::test(start_paused = true)]
async fn only_a_new_generation_ends_the_pause_after_a_failure() {
    // A paused clock would jump ahead instead of waiting for a socket.
    let (_, client) = Gateway::start("/deployments", Duration::ZERO);
    let user = UserClient::new(client.clone());
    let template = json!({
        "metadata": {"labels": {"app": "web"}},
        "spec": {"containers": [{"name": "web", "image": "nginx"}]},
    });
    let spec = json!({"selector": {"matchLabels": {"app": "web"}}, "template": template});
    user.create("deployments", &json!({"metadata": {"name": "fails"}, "spec": spec})).await;
    let (_running, mut seen) = start(&client, Lists::Paged, Scope::default(), Clumsy::<Deployment>::new);
    let count = |calls: &HashMap<String, u32>| calls.get("fails").copied().unwrap_or_default();
    seen.wait_for(|calls| count(calls) > 8).await.unwrap();

    let before = count(&seen.borrow());
    user.patch("deployments/fails", json!({"metadata": {"labels": {"edited": "yes"}}})).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(count(&seen.borrow()), before);
    let changed = Instant::now();
    user.patch("deployments/fails", json!({"spec": {"replicas": 2}})).await;
    seen.wait_for(|calls| count(calls) > before).await.unwrap();
    assert!(changed.elapsed() < Duration::from_secs(1), "{:?}", changed.elapsed());
}

/// Records each object for which it is called, and works on it until the test lets it continue.
struct Slow {
    called: watch::Sender<Vec<String>>,
    permits: Arc<Semaphore>,
}

impl Operator for Slow {
    type Kind = Service;

    async fn reconcile(&self, object: Reconcile<Service>) -> Result<Next, ReconcileError> {
        self.called.send_modify(|called| called.push(object.metadata.name.to_string()));
        self.permits.acquire().await.unwrap().forget();
        Ok(Next::OnChange)
    }
}

#[tokio::test]
async fn new_objects_come_first_then_changes_then_the_objects_of_the_first_list() {
    let (_server, user) = client::server().await;
    for name in ["a", "b", "c"] {
        user.create_service(name).await;
    }
    let cluster = Cluster::new(user.client.clone(), Lists::Paged);
    let services = cluster.watch::<Service>([Scope::default()]);
    let (called, mut seen) = watch::channel(Vec::new());
    let permits = Arc::new(Semaphore::new(0));
    let operator = Slow { called, permits: Arc::clone(&permits) };
    let controller = Controller::new(&cluster, &services, operator).workers(1);
    let running = tokio::spawn(controller.run(future::pending()));
    seen.wait_for(|called| *called == ["a"]).await.unwrap();

    user.patch("services/c", json!({"metadata": {"labels": {"edited": "yes"}}})).await;
    user.create_service("z").await;
    let z = Key::namespaced("default", "z");
    eventually("the last object to be in the Store", async || services.get(&z).map(drop)).await;
    permits.add_permits(5);
    seen.wait_for(|called| called.len() == 5).await.unwrap();
    // The last one is in each cluster.
    assert_eq!(*seen.borrow(), ["a", "z", "c", "b", "kubernetes"]);
    running.abort();
}

/// Records whether the children of an object are known when it is reconciled.
struct Careful {
    deployments: Watch<Deployment>,
    knows_children: watch::Sender<Vec<bool>>,
}

impl Operator for Careful {
    type Kind = Service;

    async fn reconcile(&self, object: Reconcile<Service>) -> Result<Next, ReconcileError> {
        let knows = self.deployments.is_synced_for(&object.key());
        self.knows_children.send_modify(|all| all.push(knows));
        Ok(Next::OnChange)
    }
}

/// Otherwise each child would be created again at every start.
#[tokio::test(start_paused = true)]
async fn no_object_is_reconciled_before_the_first_list_of_its_children() {
    let (server, user) = client::server().await;
    user.create_service("web").await;
    server.fault("internal-error,path=/deployments,times=3".parse::<Planned>().unwrap());
    let cluster = Cluster::new(user.client, Lists::Paged);
    let services = cluster.watch::<Service>([Scope::default()]);
    let deployments = cluster.watch::<Deployment>([Scope::default()]);
    let (knows_children, mut seen) = watch::channel(Vec::new());
    let operator = Careful { deployments: deployments.clone(), knows_children };
    let mut builder = Builder::new(&cluster, &services);
    builder.owns(&deployments);
    let controller = builder.run_by(operator);
    let running = tokio::spawn(controller.run(future::pending()));
    // The second one is the Service kubernetes.
    seen.wait_for(|all| all.len() == 2).await.unwrap();
    assert_eq!(*seen.borrow(), [true, true]);
    running.abort();
}

/// A decision on an old version is not applied to an object that another writer has changed since.
#[tokio::test]
async fn every_write_based_on_an_old_version_is_refused() {
    on(&[Kind::Embedded, Kind::Real], async |fixture| {
        let verbs = ["get", "patch", "delete"];
        let rule = json!({"apiGroups": ["apps"], "resources": ["deployments", "deployments/status"], "verbs": verbs});
        fixture.may_be_forbidden.set(true);
        fixture.allow_only(&json!([rule])).await;
        let template = json!({
            "metadata": {"labels": {"app": "web"}},
            "spec": {"containers": [{"name": "web", "image": "nginx"}]},
        });
        let spec = json!({"replicas": 0, "selector": {"matchLabels": {"app": "web"}}, "template": template});
        fixture.create("deployments", &json!({"metadata": {"name": "web"}, "spec": spec})).await;
        let cluster = Cluster::new(fixture.operators_client(&fixture.url()), fixture.lists);
        let key = Key::namespaced(&fixture.namespace, "web");
        let old = eventually("the permission to read it", async || cluster.get_live::<Deployment>(&key).await.ok()).await;
        fixture.patch("deployments/web", json!({"metadata": {"labels": {"edited": "yes"}}})).await;

        let replicas = json!({"op": "replace", "path": "/spec/replicas", "value": 7});
        let refused = [
            cluster.patch(&*old, vec![replicas]).await.err(),
            cluster.patch_status(&*old, json!({"observedGeneration": 7})).await.err(),
            cluster.delete(&*old).await.err(),
        ];
        for error in refused {
            assert!(error.as_ref().is_some_and(Error::is_conflict), "{error:?}");
        }
        assert_eq!(fixture.get("deployments/web").await["metadata"]["labels"]["edited"], "yes");
    })
    .await;
}

/// A server ends a watch whose client does not read. Here it would have to buffer 10 MB while the client waits for its
/// one worker.
#[tokio::test]
async fn while_the_operator_hangs_on_an_object_the_watch_is_read() {
    // With more annotations, the Store would keep the metadata alone.
    const TEXT_BYTES: usize = 50_000;
    const OTHERS: usize = 200;
    on(&[Kind::Embedded, Kind::Real], async |fixture| {
        let rule = json!({"apiGroups": [""], "resources": ["services"], "verbs": ["list", "watch"]});
        fixture.may_be_forbidden.set(true);
        fixture.allow_only(&json!([rule])).await;
        let cluster = Cluster::new(fixture.operators_client(&fixture.url()), fixture.lists);
        let scope = Scope { namespace: Some(fixture.namespace.clone()), ..Scope::default() };
        let services = cluster.watch::<Service>([scope]);
        let (calls, mut seen) = watch::channel(HashMap::new());
        let controller = Controller::new(&cluster, &services, Clumsy::new(calls)).workers(1);
        let running = tokio::spawn(controller.run(future::pending()));
        fixture.create_service("hangs").await;
        seen.wait_for(|calls| calls.contains_key("hangs")).await.unwrap();

        // At once: after two minutes, the worker would be free again.
        let text = "x".repeat(TEXT_BYTES);
        let spec = json!({"type": "ExternalName", "externalName": "example.com"});
        let mut creates = JoinSet::new();
        for number in 0..OTHERS {
            let metadata = json!({"name": format!("other-{number}"), "annotations": {"text": text}});
            let (user, object) = (UserClient::clone(fixture), json!({"metadata": metadata, "spec": spec}));
            creates.spawn(async move { user.create("services", &object).await });
        }
        creates.join_all().await;
        let read = || (services.keys().len() == OTHERS + 1).then_some(());
        eventually("the last event", async || read()).await;
        assert_eq!(seen.borrow().keys().collect::<Vec<_>>(), ["hangs"]);
        running.abort();
    })
    .await;
}

/// [`start`] in the namespace of the test.
fn start_in<O: Operator, T: Default>(
    fixture: &Fixture,
    operator: impl FnOnce(watch::Sender<T>) -> O,
) -> (JoinSet<()>, watch::Receiver<T>) {
    let scope = Scope { namespace: Some(fixture.namespace.clone()), ..Scope::default() };
    start(&fixture.client, fixture.lists, scope, operator)
}

/// Records its calls. Its cleanup needs two of them.
struct Cleaner<K = Service, const SECOND: bool = false> {
    calls: watch::Sender<Vec<String>>,
    kind: PhantomData<fn() -> K>,
}

impl<K, const SECOND: bool> Cleaner<K, SECOND> {
    fn new(calls: watch::Sender<Vec<String>>) -> Cleaner<K, SECOND> {
        Cleaner { calls, kind: PhantomData }
    }
}

impl<K: Resource, const SECOND: bool> Operator for Cleaner<K, SECOND> {
    type Kind = K;
    const FINALIZER: Option<&'static str> =
        Some(if SECOND { "example.com/second" } else { "example.com/cleaner" });

    async fn reconcile(&self, object: Reconcile<K>) -> Result<Next, ReconcileError> {
        self.calls.send_modify(|calls| calls.push(format!("applied {:?}", object.metadata().finalizers)));
        Ok(Next::OnChange)
    }

    async fn deleting(&self, object: Reconcile<K>) -> Result<Cleanup, ReconcileError> {
        let is_first = !self.calls.borrow().iter().any(|call| call.starts_with("deleting"));
        self.calls.send_modify(|calls| calls.push(format!("deleting {:?}", object.metadata().finalizers)));
        Ok(if is_first { Cleanup::Pending(Next::After(Duration::ZERO)) } else { Cleanup::Done })
    }

    async fn deleted(&self, last: Arc<K>) -> Result<(), ReconcileError> {
        self.calls.send_modify(|calls| calls.push(format!("deleted {}", last.metadata().name)));
        Ok(())
    }
}

#[tokio::test]
async fn the_finalizer_comes_before_the_first_reconcile_and_goes_after_the_cleanup() {
    on(&[Kind::Embedded, Kind::Real], async |fixture| {
        let (_running, mut seen) = start_in(fixture, Cleaner::<Service>::new);

        let theirs = "example.com/theirs";
        let finalizers = |list: &[&str]| json!({"metadata": {"finalizers": list}});
        fixture.create_service("a").await;
        seen.wait_for(|calls| *calls == [r#"applied ["example.com/cleaner"]"#]).await.unwrap();

        // Another client removes ours and adds its own.
        fixture.patch("services/a", finalizers(&[theirs])).await;
        let both = r#"["example.com/theirs", "example.com/cleaner"]"#;
        seen.wait_for(|calls| calls.last() == Some(&format!("applied {both}"))).await.unwrap();
        // The order does not matter.
        fixture.patch("services/a", finalizers(&["example.com/cleaner", theirs])).await;

        fixture.delete("services/a").await;
        let cleaned = async || {
            let finalizers = fixture.get("services/a").await["metadata"]["finalizers"].take();
            (finalizers == json!([theirs])).then_some(())
        };
        eventually("the finalizer to be removed", cleaned).await;
        let deleting = |calls: &[String]| calls.iter().filter(|call| call.starts_with("deleting")).count();
        assert_eq!(deleting(&seen.borrow()), 2);
        assert!(!seen.borrow().iter().any(|call| call.starts_with("deleted")));

        fixture.patch("services/a", finalizers(&[])).await;
        seen.wait_for(|calls| calls.last().is_some_and(|call| call == "deleted a")).await.unwrap();
        assert_eq!(deleting(&seen.borrow()), 2);
    })
    .await;
}

#[tokio::test]
async fn an_object_deleted_while_the_operator_was_stopped_is_cleaned_up() {
    on(&[Kind::Embedded, Kind::Real], async |fixture| {
        let metadata = json!({"name": "a", "finalizers": ["example.com/cleaner"]});
        fixture.create("services", &json!({"metadata": metadata, "spec": {"ports": [{"port": 1}]}})).await;
        fixture.delete("services/a").await;
        let (_running, mut seen) = start_in(fixture, Cleaner::<Service>::new);
        seen.wait_for(|calls| calls.last().is_some_and(|call| call == "deleted a")).await.unwrap();
        assert!(!seen.borrow().iter().any(|call| call.starts_with("applied")));
    })
    .await;
}

#[tokio::test]
async fn two_operators_keep_their_finalizers_on_one_object() {
    on(&[Kind::Embedded, Kind::Real], async |fixture| {
        let (_one, mut seen) = start_in(fixture, Cleaner::<Service>::new);
        let (_other, mut also_seen) = start_in(fixture, Cleaner::<Service, true>::new);
        fixture.create_service("a").await;
        for seen in [&mut seen, &mut also_seen] {
            let has_both = |calls: &Vec<String>| {
                calls.last().is_some_and(|call| call.contains("cleaner") && call.contains("second"))
            };
            seen.wait_for(has_both).await.unwrap();
        }
        // Another client adds a finalizer before them, and changes their order.
        let mut finalizers = fixture.get("services/a").await["metadata"]["finalizers"].take();
        let list = finalizers.as_array_mut().unwrap();
        list.push(json!("example.com/theirs"));
        list.reverse();
        fixture.patch("services/a", json!({"metadata": {"finalizers": finalizers}})).await;
        fixture.delete("services/a").await;
        let is_theirs = |service: &Value| service["metadata"]["finalizers"] == json!(["example.com/theirs"]);
        fixture.until("services/a", is_theirs).await;
        fixture.patch("services/a", json!({"metadata": {"finalizers": null}})).await;
        for seen in [&mut seen, &mut also_seen] {
            seen.wait_for(|calls| calls.last().is_some_and(|call| call == "deleted a")).await.unwrap();
        }
    })
    .await;
}

/// A custom resource whose CRD a test may delete.
#[derive(serde::Deserialize)]
struct Widget {
    metadata: ObjectMeta,
}

listwatch::kind!(Widget, "finalizers.example.com", "v1", "widgets");

#[tokio::test]
async fn objects_are_cleaned_up_before_their_crd_is_gone() {
    on(&[Kind::Embedded, Kind::Real], async |fixture| {
        // The CRD is one for the whole server.
        if fixture.lists == Lists::Streaming {
            return;
        }
        let schema = json!({"openAPIV3Schema": {"type": "object"}});
        let version = json!({"name": "v1", "served": true, "storage": true, "schema": schema});
        let names = json!({"plural": "widgets", "singular": "widget", "kind": "Widget"});
        let spec = json!({"group": "finalizers.example.com", "scope": "Namespaced", "names": names, "versions": [version]});
        let name = "widgets.finalizers.example.com";
        fixture
            .install(&json!({
                "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
                "metadata": {"name": name}, "spec": spec,
            }))
            .await;
        let widget = json!({"apiVersion": "finalizers.example.com/v1", "kind": "Widget", "metadata": {"name": "a"}});
        let collection = Widget::collection_path(Some(&fixture.namespace));
        let create = Request::get(&collection).sends(Method::POST, "application/json", widget.to_string().into());
        eventually("the kind to be served", async || fixture.client.send(create.clone()).await.ok()).await;

        let (_running, mut seen) = start_in(fixture, Cleaner::<Widget>::new);
        seen.wait_for(|calls| !calls.is_empty()).await.unwrap();

        let crd = format!("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}");
        let delete = Request::get(&crd).sends(Method::DELETE, "application/json", Vec::new());
        fixture.client.send(delete).await.unwrap();
        let is_gone = async || {
            let error = fixture.client.send(Request::get(&crd)).await.err()?;
            error.is_not_found().then_some(())
        };
        eventually("the CRD to be gone", is_gone).await;
        let deleting = seen.borrow().iter().filter(|call| call.starts_with("deleting")).count();
        assert_eq!(deleting, 2, "{:?}", seen.borrow());
    })
    .await;
}

/// Otherwise both would write without end.
#[tokio::test(start_paused = true)]
async fn a_client_that_keeps_removing_the_finalizer_is_answered_ever_more_slowly() {
    let (server, user) = client::server().await;
    user.create_service("a").await;
    let (_running, mut seen) = start(&user.client, Lists::Paged, Scope::default(), Cleaner::<Service>::new);
    let began = Instant::now();
    for round in 1..=8 {
        seen.wait_for(|calls| calls.len() >= round).await.unwrap();
        user.patch("services/a", json!({"metadata": {"finalizers": []}})).await;
    }
    // Five at once, then after two minutes and after four.
    assert!(began.elapsed() > Duration::from_secs(6 * 60), "{:?}", began.elapsed());
    // Each of its eight patches is answered once, except perhaps the last.
    let patches = server.requests().iter().filter(|record| record.method == "PATCH").count();
    assert!((15..=16).contains(&patches), "{patches}");
}

/// Records, for each reconcile, the Deployments whose color the label of the object names.
struct Curious {
    cluster: Cluster,
    calls: watch::Sender<Vec<String>>,
}

/// The Deployments that a Service names.
fn named(service: &Service) -> Vec<Scope> {
    let color = service.metadata.labels.get("wants");
    let namespace = service.metadata.namespace.as_ref().map(ToString::to_string);
    let scope = |color| Scope { namespace, labels: format!("color={color}"), ..Scope::default() };
    color.map(scope).into_iter().collect()
}

impl Operator for Curious {
    type Kind = Service;

    fn serves(&self, service: &Service) -> bool {
        service.metadata.name != "foreign"
    }

    async fn reconcile(&self, object: Reconcile<Service>) -> Result<Next, ReconcileError> {
        let deployments = self.cluster.watch::<Deployment>(named(&object));
        let names: Vec<_> = deployments.keys().iter().map(|key| key.name.to_string()).collect();
        self.calls.send_modify(|calls| calls.push(format!("{} {}", object.metadata.name, names.join(","))));
        Ok(Next::OnChange)
    }
}

#[tokio::test]
async fn a_named_scope_is_watched_as_long_as_an_object_names_it() {
    // On servers without a Deployment controller, whose writes would cause more calls.
    on(&[Kind::Embedded, Kind::RealHttp1], async |fixture| {
        let service = |name: &str, color: &str| json!({"metadata": {"name": name, "labels": {"wants": color}}, "spec": {"ports": [{"port": 1}]}});
        let deployment = |name: &str, color: &str| {
            let template = json!({"metadata": {"labels": {"app": name}}, "spec": {"containers": [{"name": "a", "image": "a"}]}});
            let spec = json!({"replicas": 0, "selector": {"matchLabels": {"app": name}}, "template": template});
            json!({"metadata": {"name": name, "labels": {"color": color}}, "spec": spec})
        };
        fixture.create("deployments", &deployment("d1", "red")).await;
        fixture.create("services", &service("foreign", "green")).await;
        fixture.create("services", &service("a", "red")).await;
        let cluster = Cluster::new(fixture.client.clone(), fixture.lists);
        let own = Scope { namespace: Some(fixture.namespace.clone()), ..Scope::default() };
        let services = cluster.watch::<Service>([own]);
        let (calls, mut seen) = watch::channel(Vec::new());
        let operator = Curious { cluster: cluster.clone(), calls };
        let mut builder = Builder::new(&cluster, &services);
        builder.watches_each::<Deployment>(named);
        let controller = builder.run_by(operator);
        let running = tokio::spawn(controller.run(future::pending()));
        let mut until = async |expected: &str| {
            seen.wait_for(|calls| calls.last().is_some_and(|call| call == expected)).await.unwrap();
            seen.borrow().clone()
        };
        // Never before the sync.
        assert_eq!(until("a d1").await, ["a d1"]);
        fixture.create("deployments", &deployment("d2", "red")).await;
        until("a d1,d2").await;
        fixture.create("services", &service("b", "red")).await;
        until("b d1,d2").await;
        let open = || cluster.health().len();
        assert_eq!(open(), 2, "one watch for both, and one of the Services");

        fixture.patch("services/a", json!({"metadata": {"labels": {"wants": "blue"}}})).await;
        until("a ").await;
        assert_eq!(open(), 3);
        fixture.delete("services/b").await;
        eventually("the watch that no object names to end", async || (open() == 2).then_some(())).await;
        fixture.create("deployments", &deployment("d3", "blue")).await;
        until("a d3").await;
        running.abort();
    })
    .await;
}

/// [`Curious`], whose cleanup after an earlier object lasts until the test ends it.
struct Lingering {
    curious: Curious,
    cleanup: Arc<Semaphore>,
}

impl Operator for Lingering {
    type Kind = Service;

    async fn reconcile(&self, object: Reconcile<Service>) -> Result<Next, ReconcileError> {
        self.curious.reconcile(object).await
    }

    async fn deleted(&self, _: Arc<Service>) -> Result<(), ReconcileError> {
        self.curious.calls.send_modify(|calls| calls.push("cleanup".to_owned()));
        self.cleanup.acquire().await.unwrap().forget();
        Ok(())
    }
}

/// The named watches had synced for the object as it was before, so the operator found the Stores of the new ones empty.
#[tokio::test(start_paused = true)]
async fn an_object_that_names_another_scope_during_a_cleanup_waits_for_its_sync() {
    let (_server, user) = client::server().await;
    let template =
        json!({"metadata": {"labels": {"app": "d"}}, "spec": {"containers": [{"name": "a", "image": "a"}]}});
    let spec = json!({"replicas": 0, "selector": {"matchLabels": {"app": "d"}}, "template": template});
    user.create(
        "deployments",
        &json!({"metadata": {"name": "d", "labels": {"color": "blue"}}, "spec": spec}),
    )
    .await;
    let service =
        json!({"metadata": {"name": "a", "labels": {"wants": "red"}}, "spec": {"ports": [{"port": 1}]}});
    user.create("services", &service).await;
    let cluster = Cluster::new(user.client.clone(), Lists::Paged);
    let services = cluster.watch::<Service>([Scope::default()]);
    let (calls, mut seen) = watch::channel(Vec::new());
    let cleanup = Arc::new(Semaphore::new(0));
    let operator =
        Lingering { curious: Curious { cluster: cluster.clone(), calls }, cleanup: Arc::clone(&cleanup) };
    let mut builder = Builder::new(&cluster, &services);
    builder.watches_each::<Deployment>(named);
    let controller = builder.run_by(operator);
    let running = tokio::spawn(controller.run(future::pending()));
    let mut until = async |expected: &[&str]| {
        let calls = seen
            .wait_for(|calls| calls.iter().filter(|call| *call != "kubernetes ").count() >= expected.len());
        let calls = calls.await.unwrap().clone();
        assert_eq!(calls.into_iter().filter(|call| call != "kubernetes ").collect::<Vec<_>>(), expected);
    };
    until(&["a "]).await;
    user.delete("services/a").await;
    user.create("services", &service).await;
    until(&["a ", "cleanup"]).await;
    user.patch("services/a", json!({"metadata": {"labels": {"wants": "blue"}}})).await;
    let is_blue = || {
        services
            .get(&Key::namespaced("default", "a"))
            .is_some_and(|a| a.metadata.labels.get("wants").is_some_and(|color| color == "blue"))
    };
    eventually("the change to be in the Store", async || is_blue().then_some(())).await;
    cleanup.add_permits(1);
    until(&["a ", "cleanup", "a d"]).await;
    running.abort();
}

/// Counts the calls for a Namespace that owns ConfigMaps, or for an object that names a watch.
struct Counting<K> {
    calls: watch::Sender<[usize; 2]>,
    kind: PhantomData<fn() -> K>,
}

impl<K: Resource> Operator for Counting<K> {
    type Kind = K;
    const FINALIZER: Option<&'static str> = Some("example.com/counting");

    async fn reconcile(&self, object: Reconcile<K>) -> Result<Next, ReconcileError> {
        self.calls.send_modify(|calls| calls[0] += usize::from(object.metadata().name == "default"));
        Ok(Next::OnChange)
    }

    async fn deleting(&self, _: Reconcile<K>) -> Result<Cleanup, ReconcileError> {
        self.calls.send_modify(|calls| calls[1] += 1);
        Ok(Cleanup::Done)
    }
}

/// Kubernetes allows a child in a namespace an owner without one. Its changes woke nobody.
#[tokio::test(start_paused = true)]
async fn a_child_of_an_owner_without_a_namespace_and_a_waker_wake_that_owner() {
    let (_server, user) = client::server().await;
    let cluster = Cluster::new(user.client.clone(), Lists::Paged);
    let namespaces = cluster.watch::<Namespace>([Scope::default()]);
    let config_maps = cluster.watch::<ConfigMap>([Scope::default()]);
    let (calls, mut seen) = watch::channel([0; 2]);
    let operator = Counting { calls, kind: PhantomData };
    let mut builder = Builder::new(&cluster, &namespaces);
    builder.owns(&config_maps);
    let wake = builder.waker();
    let controller = builder.run_by(operator);
    let running = tokio::spawn(controller.run(future::pending()));
    seen.wait_for(|calls| calls[0] == 1).await.unwrap();
    let list: Value = serde_json::from_str(&user.raw("/api/v1/namespaces/default").await.unwrap()).unwrap();
    let uid = &list["metadata"]["uid"];
    let owner =
        json!({"apiVersion": "v1", "kind": "Namespace", "name": "default", "uid": uid, "controller": true});
    user.create("configmaps", &json!({"metadata": {"name": "child", "ownerReferences": [owner]}})).await;
    seen.wait_for(|calls| calls[0] == 2).await.unwrap();
    wake(&Key::cluster("default"));
    seen.wait_for(|calls| calls[0] == 3).await.unwrap();
    running.abort();
}

/// While RBAC forbids a watch that an object names, its cleanup waited for ever, and so did the deletion of its namespace.
#[tokio::test(start_paused = true)]
async fn an_object_whose_named_watch_is_forbidden_can_be_deleted() {
    let (server, user) = client::server().await;
    let forbidden =
        json!({"kind": "Status", "code": 403, "reason": "Forbidden", "message": "no"}).to_string();
    server.fault(
        Fault::Answer { status: 403, body: forbidden, retry_after_secs: None }.on("GET", "/deployments"),
    );
    let finalizers = json!(["example.com/counting"]);
    let metadata = json!({"name": "web", "labels": {"wants": "red"}, "finalizers": finalizers});
    user.create("services", &json!({"metadata": metadata, "spec": {"ports": [{"port": 1}]}})).await;
    user.delete("services/web").await;
    let cluster = Cluster::new(user.client.clone(), Lists::Paged);
    let services =
        cluster.watch::<Service>([Scope { namespace: Some("default".into()), ..Scope::default() }]);
    let (calls, mut seen) = watch::channel([0; 2]);
    let operator = Counting { calls, kind: PhantomData };
    let mut builder = Builder::new(&cluster, &services);
    builder.watches_each::<Deployment>(named);
    let controller = builder.run_by(operator);
    let running = tokio::spawn(controller.run(future::pending()));
    seen.wait_for(|calls| calls[1] == 1).await.unwrap();
    running.abort();
}

/// An operator that needs one object by its name watched all objects of the kind.
#[tokio::test]
async fn a_scope_can_be_one_object() {
    on(&[Kind::Embedded, Kind::RealHttp1], async |fixture| {
        for name in ["one", "other"] {
            fixture.create("configmaps", &json!({"metadata": {"name": name}})).await;
        }
        let cluster = Cluster::new(fixture.client.clone(), fixture.lists);
        let key = Key::namespaced(&fixture.namespace, "one");
        let watches = [Scope::one(&key), Scope::one(&Key::namespaced(&fixture.namespace, "later"))]
            .map(|scope| cluster.watch::<ConfigMap>([scope]));
        let keys = || watches.each_ref().map(Watch::keys);
        eventually("the sync", async || watches.iter().all(|watch| watch.is_synced_for(&key)).then_some(()))
            .await;
        assert_eq!(keys(), [vec![key.clone()], vec![]]);
        let metadata = json!({"name": "later", "namespace": fixture.namespace, "resourceVersion": ""});
        let later: ConfigMap = serde_json::from_value(json!({"metadata": metadata})).unwrap();
        let later = cluster.create(&later).await.unwrap().key();
        eventually("the new object", async || (keys()[1] == [later.clone()]).then_some(())).await;
        assert_eq!(keys(), [vec![key.clone()], vec![later.clone()]]);
        assert!(cluster.health()[0].what().contains(", fields metadata.name="));
    })
    .await;
}

/// An operator that has just started keeps a child.
async fn kept<K: Resource + Serialize>(fixture: &Fixture, owner: &ConfigMap, desired: &K) -> Outcome<K> {
    let cluster = Cluster::new(fixture.client.clone(), fixture.lists);
    let children = cluster.watch::<K>([Scope::default()]);
    Children::new(&cluster, &children).keep(owner, desired, Stage::Settled).await
}

/// Keeps a child twice: the first time creates it, and a restart writes nothing. Returns it.
async fn kept_twice<K: Resource + Serialize + fmt::Debug>(
    fixture: &Fixture,
    owner: &ConfigMap,
    desired: &K,
) -> Value {
    let plural = K::PLURAL;
    let created = kept(fixture, owner, desired).await;
    assert!(created.write.is_some() && created.mutations.is_empty(), "{plural}: {created:?}");
    let again = kept(fixture, owner, desired).await;
    assert!(again.write.is_none() && again.mutations.is_empty(), "{plural}: {again:?}");
    fixture.get(&format!("{plural}/{}", desired.metadata().name)).await
}

/// The API server set `TCP`, and the condition `Mutated` said that admission had changed the port. Each start sent a patch.
#[tokio::test]
async fn a_field_that_the_author_leaves_to_the_api_server_is_neither_a_mutation_nor_corrected() {
    on(&[Kind::Embedded, Kind::RealHttp1], async |fixture| {
        let owner = fixture.create("configmaps", &json!({"metadata": {"name": "owner"}})).await;
        let owner: ConfigMap = serde_json::from_value(owner).unwrap();
        let labels: Labels = [("app", "web")].into_iter().collect();
        let metadata = |name: &str| ObjectMeta::of_child(&owner, name, labels.clone());
        let port = ServicePort { port: 80, ..ServicePort::default() };
        let service = |name: &str, r#type: &str| Service {
            metadata: metadata(name),
            spec: ServiceSpec {
                r#type: r#type.into(),
                selector: labels.clone(),
                ports: vec![port.clone()],
                ..ServiceSpec::default()
            },
        };
        let live = kept_twice(fixture, &owner, &service("plain", "")).await["spec"].take();
        let expected = json!([{"port": 80, "protocol": "TCP", "targetPort": 80}]);
        assert_eq!((&live["type"], &live["ports"]), (&json!("ClusterIP"), &expected));
        for r#type in ["NodePort", "LoadBalancer"] {
            let live = kept_twice(fixture, &owner, &service(&r#type.to_lowercase(), r#type)).await;
            assert!(live["spec"]["ports"][0]["nodePort"].is_i64(), "{live}");
        }
        let secret = Secret { metadata: metadata("secret"), ..Secret::default() };
        assert_eq!(kept_twice(fixture, &owner, &secret).await["type"], "Opaque");
        let container_port = ContainerPort { container_port: 80, ..ContainerPort::default() };
        let container = Container {
            name: "web".into(),
            image: "nginx".into(),
            ports: vec![container_port],
            ..Container::default()
        };
        let pod = PodSpec { containers: vec![container], ..PodSpec::default() };
        let spec = DeploymentSpec {
            selector: serde_json::from_value(json!({"matchLabels": {"app": "web"}})).unwrap(),
            template: PodTemplate::new(labels.clone(), pod),
            ..DeploymentSpec::default()
        };
        let deployment = Deployment { metadata: metadata("web"), spec, ..Deployment::default() };
        kept_twice(fixture, &owner, &deployment).await;

        // What the author sets is corrected, and the API server sets the rest anew.
        let mut changed = service("plain", "");
        changed.spec.ports[0].port = 81;
        assert!(kept(fixture, &owner, &changed).await.write.is_some());
        assert_eq!(fixture.get("services/plain").await["spec"]["ports"][0]["targetPort"], 81);
        changed.spec.ports[0].protocol = "UDP".into();
        changed.spec.ports[0].target_port = Some(8080.into());
        assert!(kept(fixture, &owner, &changed).await.write.is_some());
        let expected = json!([{"port": 81, "protocol": "UDP", "targetPort": 8080}]);
        assert_eq!(fixture.get("services/plain").await["spec"]["ports"], expected);
        // Another type is not, because the author leaves it to the API server.
        fixture.patch("services/plain", json!({"spec": {"type": "NodePort"}})).await;
        assert!(kept(fixture, &owner, &changed).await.write.is_none());
        changed.spec.r#type = "ClusterIP".into();
        assert!(kept(fixture, &owner, &changed).await.write.is_some());
        let live = fixture.get("services/plain").await["spec"].take();
        assert_eq!((&live["type"], &live["ports"]), (&json!("ClusterIP"), &expected));
    })
    .await;
}

/// Fourteen roll-outs, each for another checksum of a Secret, were called drift; after five, `Ready` said that another client kept
/// changing the child back, and the next roll-out waited for minutes.
#[tokio::test]
async fn a_change_of_the_desired_state_is_no_drift_and_is_never_taken_for_another_client() {
    on(&[Kind::Embedded, Kind::RealHttp1], async |fixture| {
        let owner = fixture.create("configmaps", &json!({"metadata": {"name": "owner"}})).await;
        let owner: ConfigMap = serde_json::from_value(owner).unwrap();
        let with = |checksum: &str| {
            let metadata = ObjectMeta::of_child(&owner, "child", [("app", "web")].into_iter().collect());
            let data = BTreeMap::from([("checksum".to_owned(), checksum.to_owned())]);
            ConfigMap { metadata, data, ..ConfigMap::default() }
        };
        let cluster = Cluster::new(fixture.client.clone(), fixture.lists);
        let watch = cluster.watch::<ConfigMap>([Scope::default()]);
        let start = || Children::new(&cluster, &watch);
        let write = async |children: &Children<ConfigMap>, checksum: &str| {
            children.keep(&owner, &with(checksum), Stage::Settled).await.write
        };
        let changed = "ConfigMap child at /data/checksum".to_owned();
        let edit = || fixture.patch("configmaps/child", json!({"data": {"checksum": "edited"}}));
        let until_edited = async || {
            let key = with("").key();
            let data = || watch.get(&key).map(|child| child.data.clone());
            eventually("the edit", async || data().filter(|data| data["checksum"] == "edited")).await;
        };

        let children = start();
        assert_eq!(write(&children, "0").await, Some(Write::Created("ConfigMap child".to_owned())));
        for checksum in 1..=14 {
            let updated = write(&children, &checksum.to_string()).await;
            assert_eq!(updated, Some(Write::Updated(changed.clone())), "{checksum}");
        }
        // Back to an earlier state, which this process does not take for the last one.
        assert_eq!(write(&children, "1").await, Some(Write::Updated(changed.clone())));
        assert_eq!(write(&children, "1").await, None);

        edit().await;
        until_edited().await;
        assert_eq!(write(&children, "1").await, Some(Write::Restored(changed.clone())));
        edit().await;
        until_edited().await;
        // After a restart nobody knows who made the difference.
        assert_eq!(write(&start(), "1").await, Some(Write::Updated(changed.clone())));
    })
    .await;
}

/// Without a pause, an operator whose desired state has the time or a random name in it would write without end.
#[tokio::test]
async fn an_operator_that_wants_another_state_at_each_call_is_named_as_the_cause_and_pauses() {
    let (_server, user) = client::server().await;
    let owner = user.create("configmaps", &json!({"metadata": {"name": "owner"}})).await;
    let owner: ConfigMap = serde_json::from_value(owner).unwrap();
    let cluster = Cluster::new(user.client.clone(), Lists::Paged);
    let children = Children::new(&cluster, &cluster.watch::<ConfigMap>([Scope::default()]));
    let mut number = 0;
    let error = loop {
        number += 1;
        let metadata = ObjectMeta::of_child(&owner, "child", [("app", "web")].into_iter().collect());
        let data = BTreeMap::from([("time".to_owned(), number.to_string())]);
        let desired = ConfigMap { metadata, data, ..ConfigMap::default() };
        match children.keep(&owner, &desired, Stage::Settled).await.child {
            Child::Failed { error, .. } => break error.to_string(),
            _ => assert!(number < 1000, "no pause"),
        }
    };
    let expected = "keep ConfigMap child at /data/time: the operator has changed it many times within seconds: \
                    `desired` may differ at each call; backing off";
    assert_eq!(error, expected);
}
