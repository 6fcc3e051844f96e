//! A new MyWebserver becomes a Deployment, a Service and a status, and that is all that is written.

use serde_json::json;

use crate::world::{Kind, on, on_each};

const NEW: &str = "POST deployments 201
                   POST services 201
                   PATCH mywebservers/web/status 200";

#[tokio::test]
async fn a_new_object_costs_three_writes_and_a_converged_one_none() {
    on_each(async |world| {
        world.create_web("web", json!({"image": "nginx", "port": 8080, "replicas": 3})).await;
        world.wrote(NEW).await;
        let deployment = world.get("deployments/mws-web").await;
        assert_eq!(deployment["spec"]["replicas"], 3);
        assert_eq!(deployment["spec"]["template"]["spec"]["containers"][0]["image"], "nginx");
        let service = world.get("services/mws-web").await;
        assert_eq!(service["spec"]["ports"][0]["port"], 8080);
        world.wrote("").await;
    })
    .await;
}

/// As they are by default: in parallel, each key in one pair of hands.
#[tokio::test]
async fn a_burst_of_objects_costs_three_writes_each() {
    const WEBS: usize = 60;
    on(&[Kind::Embedded, Kind::Real], async |world| {
        world.start_operator(&["--max-concurrent-reconciles", "8"]).await;
        for number in 0..WEBS {
            world.create_web(&format!("web-{number}"), json!({"image": "nginx"})).await;
        }
        for number in 0..WEBS {
            world
                .until(&format!("mywebservers/web-{number}"), |web| web["status"]["observedGeneration"] == 1)
                .await;
        }
        world.settle().await;
        let written = world.transcript();
        let count = |what: &str| written.iter().filter(|line| line.contains(what)).count();
        assert_eq!(count("POST deployments 201"), WEBS);
        assert_eq!(count("POST services 201"), WEBS);
        assert_eq!(count("/status 200"), WEBS);
        assert_eq!(written.len(), 3 * WEBS, "{written:?}");
    })
    .await;
}

/// The first status comes with the look after the one that creates the children. If their loss put it off again, it would
/// never come while somebody deletes each new child.
#[tokio::test]
async fn the_first_status_comes_although_the_children_are_deleted() {
    on(&[Kind::Embedded, Kind::Real], async |world| {
        world.start_operator(&[]).await;
        world.create_web("web", json!({"image": "nginx"})).await;
        let deleting = async {
            loop {
                for child in ["deployments/mws-web", "services/mws-web"] {
                    if world.find(child).await.is_some() {
                        world.delete(child).await;
                    }
                }
            }
        };
        let reported = world.until("mywebservers/web", |web| web["status"]["observedGeneration"] == 1);
        tokio::select! {
            () = deleting => {}
            _ = reported => {}
        }
        let written = world.transcript();
        let before = written.iter().take_while(|line| !line.contains("/status "));
        let created = before.filter(|line| *line == "POST deployments 201").count();
        assert!((1..=2).contains(&created), "{written:?}");
    })
    .await;
}

/// With somebody who rolls out Deployments: the way to Ready, as a user waits for it.
#[tokio::test]
async fn a_web_becomes_ready() {
    on(&[Kind::EmbeddedWithControllers], async |world| {
        world.spawn_operator(&[]);
        world.create_web("web", json!({"image": "nginx", "replicas": 2})).await;
        let said = world.until_condition("web", "Ready", "True", "AllReplicasReady").await;
        assert_eq!(said["message"], "2 of 2 replicas are available");
        let web = world.get("mywebservers/web").await;
        assert_eq!(web["status"]["observedGeneration"], web["metadata"]["generation"]);
        assert_eq!(web["status"]["readyReplicas"], 2);
    })
    .await;
}
