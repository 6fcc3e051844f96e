//! A stream that ends, breaks, expires or comes in crumbs: what happens afterwards, or meanwhile, is heard of once.

use std::time::Duration;

use listwatch::{
    apiserver::{ApiServer, Fault, Options, RequestRecord},
    client::{Client, Config},
    cluster::Cluster,
    resource::{Key, Scope, kinds::Service},
    watch::Lists,
};
use serde_json::{Value, json};

use crate::{
    hands::{Hands, eventually},
    manifests,
    proxy::Proxy,
    world::{Kind, Server, on},
};

#[tokio::test]
async fn after_any_end_of_a_watch_the_next_change_is_heard_of_once() {
    on(&[Kind::Embedded], async |world| {
        world.start_operator(&[]).await;
        world.create_web("web", json!({"image": "nginx", "replicas": 2})).await;
        world.settle().await;
        world.transcript();
        let Server::Embedded(server) = &world.server else { unreachable!("asked for above") };
        // In turn, as whoever keeps deleting the same child is given way to.
        let mut children = ["deployments", "services"].into_iter().cycle();
        for faults in [
            vec![Fault::EndWatches],
            vec![Fault::CutWatches],
            vec![Fault::ExpireHistory, Fault::EndWatches],
            vec![Fault::ExpireHistory, Fault::CutWatches],
            vec![Fault::Restart],
            vec![Fault::ChunkBytes(1)],
            vec![Fault::ChunkBytes(1000), Fault::EndWatches],
        ] {
            let what = format!("{faults:?}");
            for fault in faults {
                server.fault(fault);
            }
            // Our own connection may be among those that were closed, and a write is not sent twice.
            eventually("our connection to be well", async || world.raw("/version").await.ok()).await;
            let resource = children.next().unwrap();
            let child = format!("{resource}/mws-web");
            let before = world.get(&child).await["metadata"]["uid"].clone();
            world.delete(&child).await;
            world.until(&child, |new| new["metadata"]["uid"] != before).await;
            world.settle().await;
            assert_eq!(world.transcript(), [format!("POST {resource} 201")], "{what}");
        }
        assert!(world.operator().probe("/livez").await.starts_with("HTTP/1.1 200"));
    })
    .await;
}

/// A list that no longer has an object is not believed at once: the operator asks for the object itself first.
#[tokio::test]
async fn a_deletion_that_no_watch_told_is_found_by_the_next_list() {
    on(&[Kind::Embedded], async |world| {
        world.start_operator(&[]).await;
        world.create_web("web", json!({"image": "nginx"})).await;
        world.settle().await;
        world.transcript();
        let Server::Embedded(server) = &world.server else { unreachable!("asked for above") };
        server.fault(Fault::StallWatches);
        world.delete("mywebservers/web").await;
        server.fault(Fault::ExpireHistory);
        server.end_faults();
        server.fault(Fault::Restart);
        world.until_gone("deployments/mws-web").await;
        world.until_gone("services/mws-web").await;
        world.wrote("DELETE deployments/mws-web 200\nDELETE services/mws-web 200").await;
        let asked = world.records();
        let is_live = |record: &&crate::world::Record| {
            record.method == "GET" && record.path.contains("mywebservers/web")
        };
        assert_eq!(asked.iter().find(is_live).map(|record| record.status), Some(404), "of {asked:#?}");
    })
    .await;
}

/// Its DELETED is never told, and no list had it: without the GET nobody would see that it is missing.
#[tokio::test]
async fn an_object_that_only_a_get_has_shown_is_missed_when_it_is_gone() {
    let server = ApiServer::start(Options { controllers: false, ..Options::default() }).await.unwrap();
    let client =
        Client::new(Config::new(&server.url(), server.ca_pem().as_bytes(), server.token()).unwrap()).unwrap();
    let hands = Hands::new(client.clone());
    let cluster = Cluster::new(client, Lists::Paged);
    let services = cluster.watch::<Service>([Scope::default()]);
    let key = Key::namespaced("default", "short-lived");
    eventually("the first list", async || services.is_synced_for(&key).then_some(())).await;

    server.fault(Fault::StallWatches);
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "short-lived"}, "spec": {"ports": [{"port": 1}]}});
    hands.create("services", &service).await;
    cluster.get_live::<Service>(&key).await.unwrap();
    assert!(services.get(&key).is_some());

    hands.delete("services/short-lived").await;
    server.fault(Fault::ExpireHistory);
    server.end_faults();
    server.fault(Fault::Restart);
    eventually("it to be missed", async || services.get(&key).is_none().then_some(())).await;
}

/// A stream may end just before the end of a line. It looks like an event, but the server will send it again, or what came
/// of it.
#[tokio::test]
async fn a_last_line_without_its_end_is_no_event() {
    let server = ApiServer::start(Options { controllers: false, ..Options::default() }).await.unwrap();
    let client =
        Client::new(Config::new(&server.url(), server.ca_pem().as_bytes(), server.token()).unwrap()).unwrap();
    let hands = Hands::new(client.clone());
    let service = json!({"metadata": {"name": "web"}, "spec": {"ports": [{"port": 1}]}});
    let service = hands.create("services", &service).await;
    let body = json!({"type": "DELETED", "object": service}).to_string();
    let fault = Fault::Answer { status: 200, body, retry_after_secs: None };
    server.fault(fault.on("GET", "/services?watch=1").times(1));
    let cluster = Cluster::new(client, Lists::Paged);
    let services = cluster.watch::<Service>([Scope::default()]);
    let key = Key::namespaced("default", "web");
    eventually("the first list", async || services.is_synced_for(&key).then_some(())).await;
    let is_watch = |record: &&RequestRecord| record.query.contains("watch=1");
    let watches = || server.requests().iter().filter(is_watch).count();
    eventually("the second watch", async || (watches() == 2).then_some(())).await;
    assert!(services.get(&key).is_some());
}

#[tokio::test(start_paused = true)]
async fn watches_of_one_scope_are_one_and_it_ends_with_the_last_of_them() {
    let server = ApiServer::start(Options { controllers: false, ..Options::default() }).await.unwrap();
    let config = Config::new(&server.url(), server.ca_pem().as_bytes(), server.token()).unwrap();
    let client = Client::new(config).unwrap();
    let cluster = Cluster::new(client.clone(), Lists::Paged);
    let is_watch = |record: &&RequestRecord| record.query.contains("watch=1");
    let watches = || server.requests().iter().filter(is_watch).count();
    let labelled = |labels: &str| Scope { namespace: None, labels: labels.to_owned() };
    let shares = [(); 2].map(|()| cluster.watch::<Service>([labelled(""), labelled("app=web")]));
    eventually("the watches", async || (watches() == 2).then_some(())).await;
    assert_eq!(cluster.health().len(), 2);
    drop(shares);
    assert_eq!(cluster.health().len(), 0);
    for _ in 0..20 {
        client.version().await.unwrap();
        tokio::time::sleep(Duration::from_secs(60)).await;
    }
    assert_eq!(watches(), 2);
}

/// PINGs keep a connection with open watches alive. The connection pool forgot one after 90 s without a request, so that
/// the next watch was opened on another.
#[tokio::test(start_paused = true)]
async fn watches_and_calls_have_one_connection_each_also_after_hours() {
    let server = ApiServer::start(Options { controllers: false, ..Options::default() }).await.unwrap();
    let proxy = Proxy::start(&server.url()).await;
    let config = Config::new(&proxy.url(), server.ca_pem().as_bytes(), server.token()).unwrap();
    let client = Client::new(config).unwrap();
    let cluster = Cluster::new(client.clone(), Lists::Paged);
    let in_namespace = |namespace: &str| Scope { namespace: Some(namespace.into()), ..Scope::default() };
    let _watches = cluster.watch::<Service>(["a", "b", "c", "d"].map(in_namespace));
    for minute in 0..120 {
        tokio::time::sleep(Duration::from_secs(60)).await;
        if minute % 5 == 0 {
            client.version().await.unwrap();
        }
        assert!(proxy.open() <= 2, "{} connections in minute {minute}", proxy.open());
    }
    let watches = server.requests().iter().filter(|record| record.query.contains("watch=1")).count();
    assert!(watches >= 4 * 12, "each is opened anew every 5 to 10 minutes, and here {watches} were");
}

/// The history of a built-in kind begins with the server's first version, that of a custom kind with its CRD, and all of it
/// begins anew when the server is started again. Version 0 is no version: it asks for the state, whatever it is.
#[tokio::test]
async fn a_fresh_server_tells_a_watch_all_since_its_history_began_and_answers_410_before_that() {
    on(&[Kind::EmbeddedBare, Kind::RealPaged], async |world| {
        let first = async |path: &str, version: &str| {
            let path = format!("{path}?watch=1&resourceVersion={version}&timeoutSeconds=1");
            let text = world.raw(&path).await.unwrap();
            let line = text.lines().next().unwrap_or("null");
            let event: Value = serde_json::from_str(line).unwrap();
            (event["type"].clone(), event["object"]["code"].clone())
        };
        let (namespaces, webs) = ("/api/v1/namespaces", "/apis/k8sobjects.gsa.com/v2/mywebservers");
        let (added, expired) = ((json!("ADDED"), json!(null)), (json!("ERROR"), json!(410)));
        world.install(&manifests::crd()).await;
        assert_eq!(first(namespaces, "1").await, added, "{}", world.name);
        assert_eq!(first(webs, "1").await, expired, "{}", world.name);

        match &world.server {
            Server::Embedded(server) => server.fault(Fault::Restart),
            Server::Shared(_) | Server::Own(_) => {
                world.plane().kill_apiserver();
                world.plane().start_apiserver().await;
            }
        }
        // Our own connection is gone with the old server.
        eventually("an answer", async || world.raw(webs).await.ok()).await;
        assert_eq!(first(namespaces, "1").await, expired, "{}", world.name);
        assert_eq!(first(webs, "1").await, expired, "{}", world.name);
        assert_eq!(first(namespaces, "0").await, added, "{}", world.name);
        assert_eq!(first(webs, "0").await, (json!(null), json!(null)), "{}", world.name);
    })
    .await;
}
