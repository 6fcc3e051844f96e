//! Tests the log: at info the results of reconciling objects, at debug each request and each event.

use std::{fs, process::Stdio};

use listwatch::{
    client::{Request, WatchFrom, WatchMode},
    resource::{Scope, kinds::Service},
    watch::Lists,
};
use listwatch_apiserver::Fault;
use listwatch_control_plane::eventually;
use serde::Deserialize;
use serde_json::json;

use crate::{
    apiserver::{Running, client},
    fixture::{Server, on_each},
    operator::listwatch,
};

/// The message of a condition had the name of the message of the line, and hid it in most log systems. Two fields of the same
/// name are an error here.
#[derive(Deserialize)]
struct Line {
    #[serde(rename = "message")]
    _message: String,
}

#[tokio::test]
async fn the_log_names_stalled_created_deleted_and_initially_unready_objects() {
    on_each(async |fixture| {
        fixture.create_service("mws-web").await;
        fixture.create_web("web", json!({"image": "nginx"})).await;
        fixture.create_web("idle", json!({"image": "nginx", "replicas": 0})).await;
        fixture.until("deployments/mws-idle", |_| true).await;
        // No other client reads Deployments here.
        fixture.patch("deployments/mws-idle/status", json!({"status": {"observedGeneration": 1}})).await;
        fixture.until_condition("idle", "Ready", "True", "ScaledToZero").await;
        let logged = async |texts: &[&str]| fixture.operator().until_logged(texts).await;
        logged(&["INFO", "\"created\"", "/web\"", "\"children\":\"Deployment mws-web\""]).await;
        logged(&["WARN", "\"stalled: ", "/web\"", "NameConflict", "Service mws-web exists"]).await;
        for line in fixture.operator().log().lines() {
            assert_eq!(
                serde_json::from_str(line).map(|Line { .. }| ()).map_err(|error| error.to_string()),
                Ok(()),
                "{line}"
            );
        }
        fixture.settle().await;
        fixture.stop_operator().await;

        fixture.spawn_operator(&[]);
        let web = format!("{}/web NameConflict", fixture.namespace);
        logged(&["INFO", "\"MyWebservers at the start\"", "\"objects\":3,\"not_ready\":2", &web]).await;
        fixture.until_reconciled("web").await;
        fixture.delete("mywebservers/web").await;
        logged(&["INFO", "\"deleted\"", "/web\""]).await;
        let stalled = fixture.operator().log().matches("\"stalled: ").count();
        assert_eq!(stalled, 0, "the reason is not new");
    })
    .await;
}

/// The log did not distinguish lists, checks and watches: all were `GET /api/v1/services`.
#[tokio::test]
async fn at_debug_each_request_has_its_query_and_each_event_its_type_name_and_version() {
    on_each(async |fixture| {
        fixture.create_settled_web("web", json!({"image": "nginx"})).await;
        let version = fixture.get("services/mws-web").await["metadata"]["resourceVersion"].take();
        let services = format!("\"path\":\"/api/v1/namespaces/{}/services", fixture.namespace);
        let labels = "labelSelector=app.kubernetes.io%2Fmanaged-by%3Dmywebserver-operator";
        let (list, watch) = match fixture.lists {
            Lists::Paged => (format!("?{labels}&limit=100\""), "&resourceVersion="),
            Lists::Streaming => {
                ("&sendInitialEvents=true&".to_owned(), "&resourceVersionMatch=NotOlderThan&")
            }
        };
        let logged = async |texts: &[&str]| fixture.operator().until_logged(texts).await;
        logged(&["\"answered\"", &services, &list, "\"code\":200"]).await;
        logged(&[
            "\"answered\"",
            &services,
            "?watch=1&allowWatchBookmarks=true&timeoutSeconds=",
            watch,
            labels,
        ])
        .await;
        let key = format!("\"key\":\"{}/mws-web\"", fixture.namespace);
        logged(&[
            "\"event\"",
            "\"resource\":\"services\",\"type\":\"ADDED\"",
            &key,
            version.as_str().unwrap(),
        ])
        .await;
        if let Server::Embedded(server) = &fixture.server {
            server.fault(Fault::CutWatches.on("", "/services"));
            logged(&["\"answered\"", &services, "?limit=1\""]).await;
        }
        let token = fs::read_to_string(fixture.dir.path().join("token")).unwrap();
        assert!(!fixture.operator().log().contains(&token), "the log shows the token");
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
        ["\"stream ended\"", path],
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
