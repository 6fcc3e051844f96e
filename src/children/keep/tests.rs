use listwatch_apiserver::{ApiServer, Fault, Options};
use serde_json::json;

use super::*;
use crate::{
    client::{Client, Config, Request},
    resource::{
        Scope, Uid,
        kinds::{Deployment, Service},
    },
    watch::Lists,
};

async fn server() -> (ApiServer, Client, Cluster) {
    let server = ApiServer::start(Options { controllers: false, ..Options::default() }).await;
    let server = server.expect("a server");
    let config = Config::new(&server.url(), server.ca_pem().as_bytes(), server.token());
    let client = Client::new(config.expect("a config")).expect("a client");
    let cluster = Cluster::new(client.clone(), Lists::Paged);
    (server, client, cluster)
}

/// From now on, every answer of the server is this.
fn answers(server: &ApiServer, status: u16, body: &impl Serialize) {
    let body = serde_json::to_string(body).expect("JSON");
    server.end_faults();
    server.fault(Fault::Answer { status, body, retry_after_secs: None });
}

/// The owner of children, which does not exist on the server.
fn owner() -> Service {
    let metadata = ObjectMeta { uid: "u1".into(), generation: 1, ..ObjectMeta::default() };
    Service { metadata, ..Service::default() }
}

#[tokio::test]
async fn an_owner_is_wanted_while_it_exists_and_is_not_being_deleted() {
    let (server, client, cluster) = server().await;
    let owner = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "finalizers": ["example.com/wait"]},
        "spec": {"ports": [{"port": 80}]},
    });
    let services = "/api/v1/namespaces/default/services";
    let send = async |method: http::Method, path: &str, body: Vec<u8>| {
        client.send(Request::get(path).sends(method, "application/json", body)).await.expect("an answer")
    };
    let answer = send(http::Method::POST, services, owner.to_string().into_bytes()).await;
    let owner: Service = serde_json::from_slice(&answer.body).expect("a Service");
    let wanted = async |owner: &Service| is_wanted(&cluster, owner).await.map_err(|error| error.code());
    assert_eq!(wanted(&owner).await, Ok(true));
    let uid = Uid::from("another");
    let metadata = ObjectMeta { uid, ..owner.metadata.clone() };
    let predecessor = Service { metadata, ..owner.clone() };
    assert_eq!(wanted(&predecessor).await, Ok(false));
    let metadata = ObjectMeta { name: "absent".into(), ..owner.metadata.clone() };
    assert_eq!(wanted(&Service { metadata, ..owner.clone() }).await, Ok(false));

    // If the GET of the child fails, the child is not created: a create counts against a quota even if it fails.
    let fails = || Fault::Answer { status: 500, body: "{}".to_owned(), retry_after_secs: None };
    server.fault(fails().on("GET", "/services/mws-web"));
    let metadata = ObjectMeta { name: "mws-web".into(), ..owner.metadata.clone() };
    let child = Service { metadata, ..owner.clone() };
    let owned = Children::new(&cluster, &cluster.watch::<Service>([Scope::default()]));
    let added = owned.to_keep(&owner, &child, Stage::Settled).missing().await;
    assert_eq!(added.err().and_then(|error| error.code()), Some(500));
    assert_eq!(server.requests().iter().filter(|request| request.method == "POST").count(), 1);

    send(http::Method::DELETE, &format!("{services}/web"), Vec::new()).await;
    assert_eq!(wanted(&owner).await, Ok(false));
    server.fault(fails().on("GET", "/services/web"));
    assert_eq!(wanted(&owner).await, Err(Some(500)));
}

/// The API server answers as if a policy changed one field of each Service.
#[tokio::test]
async fn a_field_that_admission_changes_is_named_and_is_no_drift() {
    let (server, _, cluster) = server().await;
    let desired = json!({
        "metadata": {"name": "mws-web", "namespace": "default", "resourceVersion": "1", "labels": {"app": "web"}},
        "spec": {"type": "ClusterIP"},
    });
    let changes = |field: &str, value: Value| {
        let mut answer = desired.clone();
        *answer.pointer_mut(field).expect("a field") = value;
        answers(&server, 200, &answer);
    };
    let desired: Service = serde_json::from_value(desired.clone()).expect("a Service");
    let owner = owner();
    let start = || Children::new(&cluster, &cluster.watch::<Service>([Scope::default()]));
    let named = [r#"/spec/type: "ClusterIP" became "NodePort""#];

    changes("/spec/type", json!("NodePort"));
    let owned = start();
    let created = owned.to_keep(&owner, &desired, Stage::Settled).create().await;
    let Ok((Child::Kept(live), _)) = created else { panic!("{created:?}") };
    assert_eq!(owned.last_writes.mutations(&owner, &desired.key()), named);

    // After a restart, one write shows that the difference is not drift.
    let owned = start();
    let corrected = owned.to_keep(&owner, &desired, Stage::Settled).correct(live).await;
    assert!(matches!(corrected, Ok((Child::Kept(_), None))), "{corrected:?}");
    assert_eq!(owned.last_writes.mutations(&owner, &desired.key()), named);

    // Without its label, the child would be in no watch.
    changes("/metadata/labels/app", json!("other"));
    let failed = owned.to_keep(&owner, &desired, Stage::Settled).create().await;
    let Ok((Child::Failed { error, live: Some(_) }, write)) = failed else { panic!("{failed:?}") };
    assert!(error.to_string().contains("undoes our change"), "{error}");
    // It was created all the same.
    assert_eq!(write, Some(Write::Created("Service mws-web".to_owned())));
}

/// A Deployment whose selector a policy had changed was deleted at each start, and after each change of the spec.
#[tokio::test]
async fn a_child_is_not_replaced_if_admission_would_change_a_new_one_in_the_same_way() {
    let (server, _, cluster) = server().await;
    let deployment = |labels: Value| {
        let metadata = json!({"name": "mws-web", "namespace": "default", "resourceVersion": ""});
        let containers = json!([{"name": "web", "image": "nginx"}]);
        let template = json!({"metadata": {"labels": labels}, "spec": {"containers": containers}});
        json!({"metadata": metadata, "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}})
    };
    let read = |deployment: Value| serde_json::from_value::<Deployment>(deployment).expect("a Deployment");
    let changed = deployment(json!({"app": "web", "team": "a"}));
    let (desired, live) = (read(deployment(json!({"app": "web"}))), Arc::new(read(changed.clone())));
    let owner = owner();
    let owned = Children::new(&cluster, &cluster.watch::<Deployment>([Scope::default()]));
    let correct = async || {
        let keep = owned.to_keep(&owner, &desired, Stage::Settled);
        keep.correct(Arc::clone(&live)).await
    };
    let answers = |status, body: &Value| answers(&server, status, body);
    let writes = || server.requests().iter().filter(|request| request.method != "GET").count();

    answers(500, &json!({}));
    let failed = correct().await;
    assert!(
        matches!(failed, Ok((Child::Failed { .. }, None))),
        "nothing is known about a new one: {failed:?}"
    );
    answers(200, &changed);
    let kept = correct().await;
    assert!(matches!(kept, Ok((Child::Kept(_), None))), "{kept:?}");
    let before = writes();
    assert!(matches!(correct().await, Ok((Child::Kept(_), None))));
    assert_eq!(writes(), before, "asked once");
    assert!(server.requests().iter().all(|request| request.method != "DELETE"));

    let owned = Children::new(&cluster, &cluster.watch::<Deployment>([Scope::default()]));
    answers(200, &deployment(json!({"app": "web"})));
    let replaced = owned.to_keep(&owner, &desired, Stage::Settled).correct(live).await;
    assert!(
        matches!(replaced, Ok((Child::Awaited(Some(_)), None))),
        "a new one would have the selector: {replaced:?}"
    );
}

/// What admission changes in one was forgotten at a write of the other, and the pause of one paused the other.
#[tokio::test]
async fn children_of_one_name_in_two_namespaces_are_kept_apart() {
    let (server, _, cluster) = server().await;
    let service = |namespace: &str, kind: &str| {
        let metadata = json!({"name": "mws-web", "namespace": namespace, "resourceVersion": "1"});
        serde_json::from_value::<Service>(json!({"metadata": metadata, "spec": {"type": kind}}))
            .expect("a Service")
    };
    let answers = |service: &Service| answers(&server, 200, service);
    let (one, other) = (service("default", "ClusterIP"), service("kube-public", "ClusterIP"));
    let owner = owner();
    let owned = Children::new(&cluster, &cluster.watch::<Service>([Scope::default()]));
    let create = async |child| {
        let keep = owned.to_keep(&owner, child, Stage::Settled);
        let created = keep.create().await.ok()?.0;
        let created = created.kept()?;
        owned.last_writes.kept(&owner, keep.hash, &**created);
        Some(Arc::clone(created))
    };

    answers(&service("default", "NodePort"));
    let changed = create(&one).await.expect("a Service");
    answers(&other);
    create(&other).await.expect("a Service");
    let requests = server.requests().len();
    let kept = owned.to_keep(&owner, &one, Stage::Settled).correct(changed).await;
    assert!(matches!(kept, Ok((Child::Kept(_), None))), "{kept:?}");
    let writes = server.requests().iter().skip(requests).filter(|request| request.method != "GET").count();
    assert_eq!(writes, 0, "admission changed it, and would again");

    while create(&other).await.is_some() {}
    answers(&one);
    create(&one).await.expect("only the other is paused");
}
