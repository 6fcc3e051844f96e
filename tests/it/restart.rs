//! The operator, its token or the API server goes and comes back: nothing is lost, and nothing is written twice.

use serde_json::json;

use crate::{
    hands::eventually,
    manifests,
    world::{Kind, on, on_each},
};

#[tokio::test]
async fn a_restart_of_the_operator_writes_nothing() {
    on_each(async |world| {
        for number in 0..20 {
            world.create_web(&format!("web-{number}"), json!({"image": "nginx", "replicas": number})).await;
        }
        world.settle().await;
        assert_eq!(world.transcript().len(), 60);
        world.stop_operator().await;
        world.spawn_operator(&[]);
        for number in 0..20 {
            world.until_looked_at(&format!("web-{number}")).await;
        }
        world.wrote("").await;
    })
    .await;
}

/// The first status is written by the look after the one that creates the children, so a stop may come between the two.
#[tokio::test]
async fn a_status_that_is_missing_at_the_start_is_written() {
    on_each(async |world| {
        world.create_web("web", json!({"image": "nginx"})).await;
        world.settle().await;
        world.stop_operator().await;
        world.patch("mywebservers/web/status", json!({"status": null})).await;
        world.transcript();
        world.spawn_operator(&[]);
        world.until("mywebservers/web", |web| web["status"]["observedGeneration"] == 1).await;
        world.wrote("PATCH mywebservers/web/status 200").await;
    })
    .await;
}

#[tokio::test]
async fn what_happened_while_the_operator_was_away_is_made_up_for() {
    on_each(async |world| {
        for name in ["broken", "changed", "deleted"] {
            world.create_web(name, json!({"image": "nginx"})).await;
        }
        world.settle().await;
        world.stop_operator().await;
        world.transcript();

        world.patch("deployments/mws-broken", json!({"spec": {"replicas": 9}})).await;
        world.patch("mywebservers/changed", json!({"spec": {"port": 8080}})).await;
        world.delete("services/mws-deleted").await;
        world.create_web("new", json!({"image": "nginx"})).await;
        world.spawn_operator(&[]);
        for name in ["broken", "changed", "deleted", "new"] {
            world.until_looked_at(name).await;
        }
        world.settle().await;

        let mut written = world.transcript();
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
    on(&[Kind::Embedded, Kind::Real], async |world| {
        let old = world.new_token().await;
        world.start_operator(&[]).await;
        world.revoke(&old).await;
        world.create_web("web", json!({"image": "nginx"})).await;
        world.operator().until_logged(&["reconcile failed", "401 Unauthorized"]).await;
        assert!(!world.operator().log().contains(&old.token), "a token in the log");

        let new = world.new_token().await;
        world.until("mywebservers/web", |web| web["status"]["observedGeneration"] == 1).await;
        world.settle().await;
        let mut written = world.transcript();
        // The new token may have come between the two children.
        written.sort();
        let once = ["PATCH mywebservers/web/status 200", "POST deployments 201", "POST services 201"];
        assert_eq!(written, once);
        assert!(!world.operator().log().contains(&new.token), "a token in the log");
    })
    .await;
}

#[tokio::test]
async fn an_api_server_that_is_killed_mid_work_loses_nothing() {
    const WEBS: usize = 40;
    on(&[Kind::RealBare], async |world| {
        for object in manifests::rbac() {
            world.install(&object).await;
        }
        world.install(&manifests::crd()).await;
        world.make_namespace().await;
        world.start_operator(&["--max-concurrent-reconciles", "8"]).await;
        for number in 0..WEBS {
            world.create_web(&format!("web-{number}"), json!({"image": "nginx"})).await;
        }
        // One that has just started has not yet read who may do what.
        world.may_be_forbidden.set(true);
        world.plane().kill_apiserver();
        world.plane().start_apiserver().await;

        eventually("all webs to have a status", async || {
            let webs = world.get("mywebservers").await;
            let webs = webs["items"].as_array().unwrap();
            let reported = webs.iter().filter(|web| web["status"]["observedGeneration"] != -1);
            (reported.count() == WEBS + 1).then_some(())
        })
        .await;
        for number in 0..WEBS {
            let deployment = world.get(&format!("deployments/mws-web-{number}")).await;
            assert_eq!(deployment["metadata"]["generation"], 1, "written twice");
            world.get(&format!("services/mws-web-{number}")).await;
        }
        // What was written and not heard of is found, not written again.
        let written = world.transcript();
        assert!(
            written
                .iter()
                .all(|line| !line.starts_with("PATCH deployments") && !line.starts_with("PATCH services")),
            "{written:?}"
        );
        world.wrote("").await;
    })
    .await;
}
