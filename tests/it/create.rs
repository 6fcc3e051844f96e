//! Tests that the operator creates a Deployment, a Service and a status for a new MyWebserver, and writes nothing else.

use serde_json::json;

use crate::fixture::{Kind, on, on_each};

const NEW: &str = "POST deployments 201
                   POST services 201
                   PATCH mywebservers/web/status 200";

#[tokio::test]
async fn a_new_object_costs_three_writes_and_a_reconciled_one_none() {
    on_each(async |fixture| {
        fixture.create_web("web", json!({"image": "nginx", "port": 8080, "replicas": 3})).await;
        fixture.wrote(NEW).await;
        let deployment = fixture.get("deployments/mws-web").await;
        assert_eq!(deployment["spec"]["replicas"], 3);
        assert_eq!(deployment["spec"]["template"]["spec"]["containers"][0]["image"], "nginx");
        let service = fixture.get("services/mws-web").await;
        assert_eq!(service["spec"]["ports"][0]["port"], 8080);
        fixture.wrote("").await;
    })
    .await;
}

/// With the default number of workers: in parallel, but each key in only one worker at a time.
#[tokio::test]
async fn a_burst_of_objects_costs_three_writes_each() {
    const WEBS: usize = 60;
    on(&[Kind::Embedded, Kind::Real], async |fixture| {
        fixture.start_operator(&["--max-concurrent-reconciles", "8"]).await;
        for number in 0..WEBS {
            fixture.create_web(&format!("web-{number}"), json!({"image": "nginx"})).await;
        }
        for number in 0..WEBS {
            fixture
                .until(&format!("mywebservers/web-{number}"), |web| web["status"]["observedGeneration"] == 1)
                .await;
        }
        fixture.settle().await;
        let written = fixture.transcript().await;
        let count = |what: &str| written.iter().filter(|line| line.contains(what)).count();
        assert_eq!(count("POST deployments 201"), WEBS);
        assert_eq!(count("POST services 201"), WEBS);
        assert_eq!(count("/status 200"), WEBS);
        assert_eq!(written.len(), 3 * WEBS, "{written:?}");
    })
    .await;
}

/// The first status is written by the reconcile after the one that creates the children. If the loss of a child delayed
/// the status again, it would never be written while a user deletes each new child.
#[tokio::test]
async fn the_first_status_is_written_although_a_user_deletes_each_child() {
    on_each(async |fixture| {
        fixture.create_web("web", json!({"image": "nginx"})).await;
        let deleting = async {
            loop {
                for child in ["deployments/mws-web", "services/mws-web"] {
                    if fixture.find(child).await.is_some() {
                        fixture.delete(child).await;
                    }
                }
            }
        };
        let reported = fixture.until("mywebservers/web", |web| web["status"]["observedGeneration"] == 1);
        tokio::select! {
            () = deleting => {}
            _ = reported => {}
        }
        let written = fixture.transcript().await;
        let before = written.iter().take_while(|line| !line.contains("/status "));
        let created = before.filter(|line| *line == "POST deployments 201").count();
        assert!((1..=2).contains(&created), "{written:?}");
    })
    .await;
}

/// With a Deployment controller: a user waits until the MyWebserver is Ready.
#[tokio::test]
async fn a_web_becomes_ready() {
    on(&[Kind::EmbeddedWithControllers], async |fixture| {
        fixture.spawn_operator(&[]);
        fixture.create_web("web", json!({"image": "nginx", "replicas": 2})).await;
        let message = fixture.until_condition("web", "Ready", "True", "AllReplicasReady").await;
        assert_eq!(message, "2 of 2 replicas are available");
        let web = fixture.get("mywebservers/web").await;
        assert_eq!(web["status"]["observedGeneration"], web["metadata"]["generation"]);
        assert_eq!(web["status"]["readyReplicas"], 2);
    })
    .await;
}
