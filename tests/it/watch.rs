//! Tests watches that end, are cut, expire or arrive in small pieces: each change is still handled, and only once. Malformed
//! watches are in `malformed_responses.rs`.

use std::time::Duration;

use listwatch::{
    client::{Client, Config},
    cluster::Cluster,
    resource::{Key, Scope, kinds::Service},
    watch::Lists,
};
use listwatch_apiserver::{Fault, RequestRecord};
use listwatch_control_plane::{eventually, minor_version, within};
use serde_json::{Value, json};

use crate::{
    client::{self, UserClient},
    fixture::{Kind, Server, on},
    manifests,
    proxy::Proxy,
};

#[tokio::test]
async fn after_any_end_of_a_watch_the_next_change_is_handled_once() {
    on(&[Kind::Embedded], async |fixture| {
        fixture.start_operator(&[]).await;
        fixture.create_settled_web("web", json!({"image": "nginx", "replicas": 2})).await;
        let server = fixture.embedded();
        // In turn, because the operator backs off from a client that keeps deleting the same child.
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
            // The test's own connection may also have been closed, and the client does not repeat a write.
            eventually("our connection to work again", async || fixture.raw("/version").await.ok()).await;
            let resource = children.next().unwrap();
            let child = format!("{resource}/mws-web");
            let before = fixture.get(&child).await["metadata"]["uid"].clone();
            fixture.delete(&child).await;
            fixture.until(&child, |new| new["metadata"]["uid"] != before).await;
            fixture.settle().await;
            assert_eq!(fixture.transcript().await, [format!("POST {resource} 201")], "{what}");
        }
        assert!(fixture.operator().probe("/livez").await.starts_with("HTTP/1.1 200"));
    })
    .await;
}

/// If an object is missing from a list, the operator does not trust the list at once: it GETs the object first.
#[tokio::test]
async fn a_deletion_that_no_watch_reported_is_found_by_the_next_list() {
    on(&[Kind::Embedded], async |fixture| {
        fixture.start_operator(&[]).await;
        fixture.create_settled_web("web", json!({"image": "nginx"})).await;
        let server = fixture.embedded();
        server.fault(Fault::StallWatches);
        fixture.delete("mywebservers/web").await;
        server.fault(Fault::ExpireHistory);
        server.end_faults();
        server.fault(Fault::Restart);
        fixture.until_gone("deployments/mws-web").await;
        fixture.until_gone("services/mws-web").await;
        fixture.wrote("DELETE deployments/mws-web 200\nDELETE services/mws-web 200").await;
        let records = fixture.records().await;
        let is_live = |record: &&crate::fixture::Record| {
            record.method == "GET" && record.path.contains("mywebservers/web")
        };
        assert_eq!(records.iter().find(is_live).map(|record| record.status), Some(404), "of {records:#?}");
    })
    .await;
}

/// No DELETED event is sent, and no list contained the object: only a GET shows that it is missing.
#[tokio::test]
async fn the_deletion_of_an_object_known_only_from_a_get_is_noticed() {
    let (server, user) = client::server().await;
    let cluster = Cluster::new(user.client.clone(), Lists::Paged);
    let services = cluster.watch::<Service>([Scope::default()]);
    let key = Key::namespaced("default", "short-lived");
    eventually("the first list", async || services.is_synced_for(&key).then_some(())).await;

    server.fault(Fault::StallWatches);
    user.create_service("short-lived").await;
    cluster.get_live::<Service>(&key).await.unwrap();
    assert!(services.get(&key).is_some());

    user.delete("services/short-lived").await;
    server.fault(Fault::ExpireHistory);
    server.end_faults();
    server.fault(Fault::Restart);
    eventually("its deletion to be noticed", async || services.get(&key).is_none().then_some(())).await;
}

/// A stream may end just before the end of a line. The partial line looks like an event, but the server will send that
/// event again, or a later state of the object.
#[tokio::test]
async fn a_line_without_its_newline_is_no_event() {
    let (server, user) = client::server().await;
    let service = user.create_service("web").await;
    let body = json!({"type": "DELETED", "object": service}).to_string();
    let fault = Fault::Answer { status: 200, body, retry_after_secs: None };
    server.fault(fault.on("GET", "/services?watch=1").times(1));
    let cluster = Cluster::new(user.client, Lists::Paged);
    let services = cluster.watch::<Service>([Scope::default()]);
    let key = Key::namespaced("default", "web");
    eventually("the first list", async || services.is_synced_for(&key).then_some(())).await;
    let is_watch = |record: &&RequestRecord| record.query.contains("watch=1");
    let watches = || server.requests().iter().filter(is_watch).count();
    eventually("the second watch", async || (watches() == 2).then_some(())).await;
    assert!(services.get(&key).is_some());
}

#[tokio::test(start_paused = true)]
async fn watches_of_one_scope_share_one_request_until_the_last_is_dropped() {
    let (server, UserClient { client, .. }) = client::server().await;
    let cluster = Cluster::new(client.clone(), Lists::Paged);
    let is_watch = |record: &&RequestRecord| record.query.contains("watch=1");
    let watches = || server.requests().iter().filter(is_watch).count();
    let labelled = |labels: &str| Scope { labels: labels.to_owned(), ..Scope::default() };
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

/// PINGs keep a connection with open watches alive. The connection pool forgot a connection after 90 s without a
/// request, and opened the next watch on a new one.
#[tokio::test(start_paused = true)]
async fn watches_and_calls_use_one_connection_each_for_hours() {
    let (server, _) = client::server().await;
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
        // The clock goes on while an answer is under way. On a busy machine, a PING may so be late, and its connection is replaced. The
        // watches on it end within ten minutes.
        let what = format!("two connections in minute {minute}");
        within(Duration::from_secs(900), &what, async || (proxy.open() <= 2).then_some(())).await;
    }
    let watches = server.requests().iter().filter(|record| record.query.contains("watch=1")).count();
    assert!(watches >= 4 * 12, "{watches} watches: each is opened again every 5 to 10 minutes");
}

/// The history of a built-in kind begins with the server's first version, and a custom kind's with its CRD. After
/// a restart of the server, every history begins again. Version 0 is not a version: it requests any state.
#[tokio::test]
async fn a_watch_gets_all_events_of_the_history_and_410_before_it() {
    on(&[Kind::EmbeddedBare, Kind::RealPaged], async |fixture| {
        let first = async |path: &str, version: &str| {
            let path = format!("{path}?watch=1&resourceVersion={version}&timeoutSeconds=1");
            let text = fixture.raw(&path).await.unwrap();
            let line = text.lines().next().unwrap_or("null");
            let event: Value = serde_json::from_str(line).unwrap();
            (event["type"].clone(), event["object"]["code"].clone())
        };
        let (namespaces, webs) = ("/api/v1/namespaces", "/apis/k8sobjects.gsa.com/v2/mywebservers");
        let (added, expired) = ((json!("ADDED"), json!(null)), (json!("ERROR"), json!(410)));
        fixture.install(&manifests::crd()).await;
        // That of kube-apiserver 1.33 begins after its own first writes.
        if fixture.is_embedded() || minor_version() >= 36 {
            assert_eq!(first(namespaces, "1").await, added, "{}", fixture.name);
        }
        assert_eq!(first(webs, "1").await, expired, "{}", fixture.name);

        match &fixture.server {
            Server::Embedded(server) => server.fault(Fault::Restart),
            Server::Shared(_) | Server::Own(_) => {
                fixture.control_plane().kill_apiserver();
                fixture.control_plane().start_apiserver().await;
            }
        }
        // The test's own connection ended with the old server.
        eventually("an answer", async || fixture.raw(webs).await.ok()).await;
        assert_eq!(first(namespaces, "1").await, expired, "{}", fixture.name);
        assert_eq!(first(webs, "1").await, expired, "{}", fixture.name);
        assert_eq!(first(namespaces, "0").await, added, "{}", fixture.name);
        assert_eq!(first(webs, "0").await, (json!(null), json!(null)), "{}", fixture.name);
    })
    .await;
}
