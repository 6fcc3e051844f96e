//! A name that somebody else has: theirs is never touched, and we say what is in the way.

use serde_json::{Value, json};

use crate::world::{Server, World, on_each};

fn foreign(child: &str) -> Value {
    match child {
        "deployments/mws-web" => json!({
            "metadata": {"name": "mws-web"},
            "spec": {
                "replicas": 9, "selector": {"matchLabels": {"app": "theirs"}},
                "template": {
                    "metadata": {"labels": {"app": "theirs"}},
                    "spec": {"containers": [{"name": "web", "image": "theirs"}]},
                },
            },
        }),
        _ => {
            json!({"metadata": {"name": "mws-web"}, "spec": {"selector": {"app": "theirs"}, "ports": [{"port": 7}]}})
        }
    }
}

async fn in_the_way(world: &World, child: &str, object: &Value) -> Value {
    let resource = child.split('/').next().unwrap();
    let theirs = world.create(resource, object).await;
    world.create_web("web", json!({"image": "nginx"})).await;
    let said = world.until_condition("web", "Stalled", "True", "NameConflict").await;
    assert!(said["message"].as_str().unwrap().contains("mws-web exists"), "{said}");
    world.until_condition("web", "Ready", "False", "NameConflict").await;
    // Somebody touches our object, twice: we look again, and still keep our hands off theirs.
    for note in ["a", "b"] {
        world.patch("mywebservers/web", json!({"metadata": {"annotations": {"note": note}}})).await;
        world.settle().await;
    }
    assert_eq!(world.get(child).await, theirs);
    theirs
}

fn sorted(mut lines: Vec<String>) -> Vec<String> {
    lines.sort();
    lines
}

/// A create counts against a quota as soon as it is admitted, also where the name is taken then: each look at the conflict
/// took one of the namespace's Services away from everybody, until the quota was full.
#[tokio::test]
async fn a_name_that_is_taken_costs_no_quota() {
    on_each(async |world| {
        let is_real = !matches!(world.server, Server::Embedded(_));
        world.create("services", &foreign("services/mws-web")).await;
        let used = |quota: &Value, services: &str| quota["status"]["used"]["count/services"] == services;
        if is_real {
            let quota = json!({"metadata": {"name": "eight"}, "spec": {"hard": {"count/services": "8"}}});
            world.create("resourcequotas", &quota).await;
            // Theirs and the barrier's.
            world.until("resourcequotas/eight", |quota| used(quota, "2")).await;
        }
        world.create_web("web", json!({"image": "nginx"})).await;
        for port in 81..87 {
            world.until_condition("web", "Stalled", "True", "NameConflict").await;
            let generation = world.patch("mywebservers/web", json!({"spec": {"port": port}})).await["metadata"]
                ["generation"]
                .clone();
            let is_seen = |web: &Value| web["status"]["observedGeneration"] == generation;
            world.until("mywebservers/web", is_seen).await;
        }
        let written = world.transcript();
        let tried = written.iter().filter(|line| *line == "POST services 409").count();
        assert_eq!(tried, 1, "{written:?}");
        if is_real {
            let quota = world.get("resourcequotas/eight").await;
            assert!(used(&quota, "2") || used(&quota, "3"), "{quota}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_foreign_deployment_is_never_touched_and_we_recover_when_it_is_gone() {
    on_each(async |world| {
        in_the_way(world, "deployments/mws-web", &foreign("deployments/mws-web")).await;
        let written = world.transcript();
        let (statuses, others): (Vec<_>, Vec<_>) =
            written.into_iter().partition(|line| line.contains("web/status"));
        assert!(!statuses.is_empty());
        assert_eq!(sorted(others), ["POST deployments 409", "POST services 201"]);

        // No watch of ours shows it: this waits for the next look, which is promised within a minute.
        world.delete("deployments/mws-web").await;
        world.until("deployments/mws-web", |ours| ours["spec"]["replicas"] == 1).await;
        world
            .until("mywebservers/web", |web| {
                crate::hands::condition(web, "Stalled").is_none_or(|c| c["status"] == "False")
            })
            .await;
    })
    .await;
}

/// Held by a finalizer, and without our label: no watch of ours shows it, nor that it goes.
#[tokio::test]
async fn a_child_of_ours_that_goes_unseen_is_made_anew_within_a_minute() {
    on_each(async |world| {
        world.create_web("web", json!({"image": "nginx"})).await;
        world.settle().await;
        world.patch("deployments/mws-web", json!({"metadata": {"finalizers": ["example.com/wait"]}})).await;
        world.delete("deployments/mws-web").await;
        world.settle().await;
        let unlabelled = json!({"metadata": {"labels": {"app.kubernetes.io/managed-by": null}}});
        let before = world.patch("deployments/mws-web", unlabelled).await["metadata"]["uid"].clone();
        world.settle().await;
        world.patch("deployments/mws-web", json!({"metadata": {"finalizers": null}})).await;
        world.until("deployments/mws-web", |child| child["metadata"]["uid"] != before).await;
    })
    .await;
}

#[tokio::test]
async fn a_foreign_service_is_never_touched_even_if_it_bears_our_labels() {
    on_each(async |world| {
        let mut service = foreign("services/mws-web");
        service["metadata"]["labels"] = json!({"app.kubernetes.io/managed-by": "mywebserver-operator"});
        in_the_way(world, "services/mws-web", &service).await;
        world.delete("services/mws-web").await;
        // A touch of ours is a reason to look.
        world.patch("mywebservers/web", json!({"metadata": {"annotations": {"note": "c"}}})).await;
        world.until("services/mws-web", |ours| ours["spec"]["ports"][0]["port"] == 80).await;
        world.until_condition("web", "Ready", "False", "RolloutInProgress").await;
    })
    .await;
}

#[tokio::test]
async fn a_child_of_another_web_is_not_taken_over() {
    on_each(async |world| {
        let other = world.create_web("other", json!({"image": "nginx"})).await;
        world.settle().await;
        let mut theirs = foreign("deployments/mws-web");
        theirs["metadata"]["ownerReferences"] = json!([{
            "apiVersion": "k8sobjects.gsa.com/v2", "kind": "MyWebserver", "name": "other",
            "uid": other["metadata"]["uid"], "controller": true,
        }]);
        in_the_way(world, "deployments/mws-web", &theirs).await;
    })
    .await;
}

/// As when our child was deleted, and somebody was faster than we are.
#[tokio::test]
async fn a_foreign_object_that_comes_between_two_children_of_ours_is_left_alone_until_it_goes() {
    on_each(async |world| {
        world.create_web("web", json!({"image": "nginx"})).await;
        world.settle().await;
        for child in ["deployments/mws-web", "services/mws-web"] {
            let resource = child.split('/').next().unwrap();
            world.operator().signal("STOP");
            world.transcript();
            world.delete(child).await;
            world.until_gone(child).await;
            let theirs = world.create(resource, &foreign(child)).await;
            world.operator().signal("CONT");
            world.until_condition("web", "Stalled", "True", "NameConflict").await;
            world.settle().await;
            assert_eq!(world.get(child).await, theirs);
            let written = world.transcript();
            assert!(written.iter().all(|line| line == "PATCH mywebservers/web/status 200"), "{written:?}");

            world.delete(child).await;
            // A touch of ours is a reason to look.
            world.patch("mywebservers/web", json!({"metadata": {"annotations": {"gone": resource}}})).await;
            world.until_condition("web", "Ready", "False", "RolloutInProgress").await;
            assert_eq!(world.get(child).await["metadata"]["ownerReferences"][0]["name"], "web");
        }
    })
    .await;
}

/// Whoever takes the reference away says that the child is not ours any more. It is not taken back, nor made twice, nor
/// deleted with its former owner; and it is ours again when the reference is there again.
#[tokio::test]
async fn a_child_without_our_owner_reference_is_let_go_and_with_it_is_ours_again() {
    on_each(async |world| {
        world.create_web("web", json!({"image": "nginx"})).await;
        world.settle().await;
        world.transcript();
        for (child, restored) in [
            ("deployments/mws-web", "restored Deployment mws-web"),
            ("services/mws-web", "restored Service mws-web"),
        ] {
            let owners = world.get(child).await["metadata"]["ownerReferences"].clone();
            let mut without = world.patch(child, json!({"metadata": {"ownerReferences": null}})).await;
            world.until_condition("web", "Stalled", "True", "NameConflict").await;
            world.wrote("PATCH mywebservers/web/status 200").await;
            assert_eq!(world.get(child).await, without);

            without = world.patch(child, json!({"metadata": {"ownerReferences": owners}})).await;
            world.until_condition("web", "Ready", "False", "RolloutInProgress").await;
            world.wrote("PATCH mywebservers/web/status 200").await;
            assert_eq!(world.get(child).await, without);

            world.delete(child).await;
            world.until("events", |events| events.to_string().contains(restored)).await;
            world.settle().await;
            world.transcript();
        }
        world.patch("services/mws-web", json!({"metadata": {"ownerReferences": null}})).await;
        world.until_condition("web", "Stalled", "True", "NameConflict").await;
        world.delete("mywebservers/web").await;
        world.until_gone("deployments/mws-web").await;
        world.settle().await;
        world.get("services/mws-web").await;
    })
    .await;
}
