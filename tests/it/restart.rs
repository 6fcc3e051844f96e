//! Tests restarts of the operator and the API server, and new tokens: nothing is lost, and nothing is written twice.

use listwatch_control_plane::eventually;
use serde_json::json;

use crate::{
    fixture::{Kind, on, on_each},
    manifests,
    refused::with_crd,
};

#[tokio::test]
async fn a_restart_of_the_operator_writes_nothing() {
    on_each(async |fixture| {
        for number in 0..20 {
            fixture.create_web(&format!("web-{number}"), json!({"image": "nginx", "replicas": number})).await;
        }
        fixture.settle().await;
        assert_eq!(fixture.transcript().await.len(), 60);
        fixture.stop_operator().await;
        fixture.spawn_operator(&[]);
        for number in 0..20 {
            fixture.until_reconciled(&format!("web-{number}")).await;
        }
        fixture.wrote("").await;
    })
    .await;
}

/// The first status is written by the reconcile after the one that creates the children. The stop may come between
/// both.
#[tokio::test]
async fn a_status_that_is_missing_at_the_start_is_written() {
    on_each(async |fixture| {
        fixture.create_settled_web("web", json!({"image": "nginx"})).await;
        fixture.stop_operator().await;
        fixture.patch("mywebservers/web/status", json!({"status": null})).await;
        fixture.transcript().await;
        fixture.spawn_operator(&[]);
        fixture.until("mywebservers/web", |web| web["status"]["observedGeneration"] == 1).await;
        fixture.wrote("PATCH mywebservers/web/status 200").await;
    })
    .await;
}

#[tokio::test]
async fn changes_made_while_the_operator_was_stopped_are_reconciled() {
    on_each(async |fixture| {
        for name in ["broken", "changed", "deleted"] {
            fixture.create_web(name, json!({"image": "nginx"})).await;
        }
        fixture.settle().await;
        fixture.stop_operator().await;
        fixture.transcript().await;

        fixture.patch("deployments/mws-broken", json!({"spec": {"replicas": 9}})).await;
        fixture.patch("mywebservers/changed", json!({"spec": {"port": 8080}})).await;
        fixture.delete("services/mws-deleted").await;
        fixture.create_web("new", json!({"image": "nginx"})).await;
        fixture.spawn_operator(&[]);
        for name in ["broken", "changed", "deleted", "new"] {
            fixture.until_reconciled(name).await;
        }
        fixture.settle().await;

        let mut written = fixture.transcript().await;
        written.sort();
        let expected = [
            "PATCH deployments/mws-broken 200",
            "PATCH deployments/mws-changed 200",
            "PATCH mywebservers/changed/status 200",
            "PATCH mywebservers/new/status 200",
            "PATCH services/mws-changed 200",
            "POST deployments 201",
            "POST services 201",
            "POST services 201",
        ];
        assert_eq!(written, expected);
    })
    .await;
}

#[tokio::test]
async fn a_token_that_is_refused_is_read_again() {
    on(&[Kind::Embedded, Kind::Real], async |fixture| {
        let old = fixture.new_token().await;
        fixture.start_operator(&[]).await;
        fixture.revoke(&old).await;
        fixture.create_web("web", json!({"image": "nginx"})).await;
        fixture.operator().until_logged(&["reconcile failed", "401 Unauthorized"]).await;
        assert!(!fixture.operator().log().contains(&old.token), "a token in the log");

        let new = fixture.new_token().await;
        fixture.until("mywebservers/web", |web| web["status"]["observedGeneration"] == 1).await;
        fixture.settle().await;
        let mut written = fixture.transcript().await;
        // The new token may have come between the two children.
        written.sort();
        let expected = ["PATCH mywebservers/web/status 200", "POST deployments 201", "POST services 201"];
        assert_eq!(written, expected);
        assert!(!fixture.operator().log().contains(&new.token), "a token in the log");
    })
    .await;
}

#[tokio::test]
async fn a_killed_api_server_causes_no_lost_and_no_repeated_write() {
    const WEBS: usize = 40;
    on(&[Kind::RealBare], async |fixture| {
        with_crd(fixture, &manifests::crd()).await;
        fixture.start_operator(&["--max-concurrent-reconciles", "8"]).await;
        for number in 0..WEBS {
            fixture.create_web(&format!("web-{number}"), json!({"image": "nginx"})).await;
        }
        // An API server that has just started has not yet read its RBAC rules.
        fixture.may_be_forbidden.set(true);
        fixture.control_plane().kill_apiserver();
        fixture.control_plane().start_apiserver().await;

        eventually("all webs to have a status", async || {
            let webs = fixture.get("mywebservers").await;
            let webs = webs["items"].as_array().unwrap();
            let reported = webs.iter().filter(|web| web["status"]["observedGeneration"] != -1);
            (reported.count() == WEBS + 1).then_some(())
        })
        .await;
        for number in 0..WEBS {
            let deployment = fixture.get(&format!("deployments/mws-web-{number}")).await;
            assert_eq!(deployment["metadata"]["generation"], 1, "written twice");
            fixture.get(&format!("services/mws-web-{number}")).await;
        }
        // A write whose answer was lost is found, and not repeated.
        let written = fixture.transcript().await;
        assert!(
            written
                .iter()
                .all(|line| !line.starts_with("PATCH deployments") && !line.starts_with("PATCH services")),
            "{written:?}"
        );
        fixture.wrote("").await;
    })
    .await;
}
