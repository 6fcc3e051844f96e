//! What the log shows: at info what becomes of objects, at debug each request and each event.

use std::{fs, process::Stdio};

use listwatch::{
    apiserver::Fault,
    client::{Request, WatchFrom, WatchMode},
    resource::{Scope, kinds::Service},
    watch::Lists,
};
use serde_json::json;

use crate::{
    apiserver::{Running, client},
    hands::eventually,
    operator::listwatch,
    world::{Server, on_each},
};

#[tokio::test]
async fn the_log_names_what_is_stalled_created_and_deleted_and_what_is_not_ready_at_the_start() {
    on_each(async |world| {
        let foreign = json!({"metadata": {"name": "mws-web"}, "spec": {"ports": [{"port": 7}]}});
        world.create("services", &foreign).await;
        world.create_web("web", json!({"image": "nginx"})).await;
        let logged = async |texts: &[&str]| world.operator().until_logged(texts).await;
        logged(&["INFO", "\"created\"", "/web\"", "\"children\":\"Deployment mws-web\""]).await;
        logged(&["WARN", "\"stalled: ", "/web\"", "NameConflict", "Service mws-web exists"]).await;
        world.settle().await;
        world.stop_operator().await;

        world.spawn_operator(&[]);
        let web = format!("{}/web NameConflict", world.namespace);
        logged(&["INFO", "\"MyWebservers at the start\"", "\"objects\":2,\"not_ready\":2", &web]).await;
        world.until_looked_at("web").await;
        world.delete("mywebservers/web").await;
        logged(&["INFO", "\"deleted\"", "/web\""]).await;
        let stalled = world.operator().log().matches("\"stalled: ").count();
        assert_eq!(stalled, 0, "the reason is not new");
    })
    .await;
}

/// Lists, checks and watches were all `GET /api/v1/services`.
#[tokio::test]
async fn at_debug_each_request_has_its_query_and_each_event_its_type_name_and_version() {
    on_each(async |world| {
        world.create_web("web", json!({"image": "nginx"})).await;
        world.settle().await;
        let version = world.get("services/mws-web").await["metadata"]["resourceVersion"].take();
        let services = format!("\"path\":\"/api/v1/namespaces/{}/services", world.namespace);
        let labels = "labelSelector=app.kubernetes.io%2Fmanaged-by%3Dmywebserver-operator";
        let (list, watch) = match world.lists {
            Lists::Paged => (format!("?{labels}&limit=100\""), "&resourceVersion="),
            Lists::Streaming => {
                ("&sendInitialEvents=true&".to_owned(), "&resourceVersionMatch=NotOlderThan&")
            }
        };
        let logged = async |texts: &[&str]| world.operator().until_logged(texts).await;
        logged(&["\"answered\"", &services, &list, "\"code\":200"]).await;
        logged(&[
            "\"answered\"",
            &services,
            "?watch=1&allowWatchBookmarks=true&timeoutSeconds=",
            watch,
            labels,
        ])
        .await;
        let key = format!("\"key\":\"{}/mws-web\"", world.namespace);
        logged(&[
            "\"event\"",
            "\"resource\":\"services\",\"type\":\"ADDED\"",
            &key,
            version.as_str().unwrap(),
        ])
        .await;
        if let Server::Embedded(server) = &world.server {
            server.fault(Fault::CutWatches.on("", "/services"));
            logged(&["\"answered\"", &services, "?limit=1\""]).await;
        }
        let token = fs::read_to_string(world.dir.path().join("token")).unwrap();
        assert!(!world.operator().log().contains(&token), "the log shows the token");
    })
    .await;
}

#[tokio::test]
async fn with_v_the_api_server_logs_each_request_and_the_end_of_each_watch() {
    let dir = tempfile::tempdir().unwrap();
    let (kubeconfig, log) = (dir.path().join("kubeconfig"), dir.path().join("log"));
    let mut command = listwatch();
    command.args(["apiserver", "-v", "--log-format", "json", "--kubeconfig-out"]).arg(&kubeconfig);
    command.stderr(Stdio::from(fs::File::create(&log).unwrap()));
    let _server = Running::start(&mut command);
    let client = client(&kubeconfig);
    client.send(Request::get("/api/v1/pods?limit=7")).await.unwrap();
    client.send(Request::get("/api/v1/pods/nope")).await.unwrap_err();
    let from = WatchFrom { version: "", timeout_secs: 60, mode: WatchMode::Changes };
    let watch = client.watch::<Service>(&Scope::default(), &from).await.unwrap();
    drop(watch);
    let path = "\"path\":\"/api/v1/services?watch=1&allowWatchBookmarks=true&timeoutSeconds=60\"";
    for texts in [
        ["\"answered\"", "\"method\":\"GET\",\"path\":\"/api/v1/pods?limit=7\",\"status\":200"],
        ["\"answered\"", "\"method\":\"GET\",\"path\":\"/api/v1/pods/nope\",\"status\":404"],
        ["\"answered\"", path],
        ["\"watch ended\"", path],
    ] {
        let line = eventually("a line of the log", async || {
            let log = fs::read_to_string(&log).unwrap();
            log.lines().find(|line| texts.iter().all(|text| line.contains(text))).map(str::to_owned)
        })
        .await;
        assert!(line.contains("\"user_agent\":\"listwatch/"), "{line}");
        assert!(line.contains("\"elapsed\":\""), "{line}");
    }
}
