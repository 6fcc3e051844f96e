//! Tests name conflicts: the operator never changes another owner's object, and reports the conflict in the status.

use listwatch_control_plane::{eventually, unique};
use serde_json::{Value, json};

use crate::fixture::{Fixture, on_each};

fn foreign(child: &str) -> Value {
    match child {
        "deployments/mws-web" => json!({
            "metadata": {"name": "mws-web"},
            "spec": {
                "replicas": 9, "selector": {"matchLabels": {"app": "foreign"}},
                "template": {
                    "metadata": {"labels": {"app": "foreign"}},
                    "spec": {"containers": [{"name": "web", "image": "foreign"}]},
                },
            },
        }),
        _ => {
            json!({"metadata": {"name": "mws-web"}, "spec": {"selector": {"app": "foreign"}, "ports": [{"port": 7}]}})
        }
    }
}

async fn check_conflict_with(fixture: &Fixture, child: &str, object: &Value) {
    let resource = child.split('/').next().unwrap();
    let foreign = fixture.create(resource, object).await;
    fixture.create_web("web", json!({"image": "nginx"})).await;
    let message = fixture.until_condition("web", "Stalled", "True", "NameConflict").await;
    assert!(message.contains("mws-web exists"), "{message}");
    fixture.until_condition("web", "Ready", "False", "NameConflict").await;
    // A user changes our object twice: the operator reconciles again, and still does not change the other object.
    for note in ["a", "b"] {
        fixture.patch("mywebservers/web", json!({"metadata": {"annotations": {"note": note}}})).await;
        fixture.settle().await;
    }
    assert_eq!(fixture.get(child).await, foreign);
}

fn sorted(mut lines: Vec<String>) -> Vec<String> {
    lines.sort();
    lines
}

/// A create counts against a quota as soon as it is admitted, even if it then fails because the name is taken. Each
/// reconcile of the conflict used up one Service of the namespace's quota, until the quota was full.
#[tokio::test]
async fn a_name_that_is_taken_costs_no_quota() {
    on_each(async |fixture| {
        let is_real = !fixture.is_embedded();
        fixture.create("services", &foreign("services/mws-web")).await;
        let used = |quota: &Value, services: &str| quota["status"]["used"]["count/services"] == services;
        if is_real {
            let quota = json!({"metadata": {"name": "eight"}, "spec": {"hard": {"count/services": "8"}}});
            fixture.create("resourcequotas", &quota).await;
            // The other owner's Service, and the barrier's. The controller counts the objects in its cache, which may
            // lag behind, and counts again when the quota changes.
            eventually("the quota to count two Services", async || {
                let changed = json!({"spec": {"hard": {"count/secrets": unique().to_string()}}});
                used(&fixture.patch("resourcequotas/eight", changed).await, "2").then_some(())
            })
            .await;
        }
        fixture.create_web("web", json!({"image": "nginx"})).await;
        for port in 81..87 {
            fixture.until_condition("web", "Stalled", "True", "NameConflict").await;
            let generation = fixture.patch("mywebservers/web", json!({"spec": {"port": port}})).await["metadata"]
                ["generation"]
                .clone();
            let is_observed = |web: &Value| web["status"]["observedGeneration"] == generation;
            fixture.until("mywebservers/web", is_observed).await;
        }
        let written = fixture.transcript().await;
        let attempts = written.iter().filter(|line| *line == "POST services 409").count();
        assert_eq!(attempts, 1, "{written:?}");
        if is_real {
            let quota = fixture.get("resourcequotas/eight").await;
            assert!(used(&quota, "2") || used(&quota, "3"), "{quota}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_foreign_deployment_is_never_changed_and_its_deletion_is_noticed() {
    on_each(async |fixture| {
        check_conflict_with(fixture, "deployments/mws-web", &foreign("deployments/mws-web")).await;
        let written = fixture.transcript().await;
        let (statuses, children): (Vec<_>, Vec<_>) =
            written.into_iter().partition(|line| line.contains("web/status"));
        assert!(!statuses.is_empty());
        assert_eq!(sorted(children), ["POST deployments 409", "POST services 201"]);

        // Our watches do not show this change: the next reconcile finds it, within a minute as promised.
        fixture.delete("deployments/mws-web").await;
        fixture.until("deployments/mws-web", |child| child["spec"]["replicas"] == 1).await;
        fixture
            .until("mywebservers/web", |web| {
                crate::client::condition(web, "Stalled").is_none_or(|stalled| stalled["status"] == "False")
            })
            .await;
    })
    .await;
}

/// The child has a finalizer and lacks our label: our watches show neither the child nor its deletion.
#[tokio::test]
async fn a_child_whose_deletion_was_not_watched_is_created_again_within_a_minute() {
    on_each(async |fixture| {
        fixture.create_web("web", json!({"image": "nginx"})).await;
        fixture.settle().await;
        fixture.patch("deployments/mws-web", json!({"metadata": {"finalizers": ["example.com/wait"]}})).await;
        fixture.delete("deployments/mws-web").await;
        fixture.settle().await;
        let unlabelled = json!({"metadata": {"labels": {"app.kubernetes.io/managed-by": null}}});
        let before = fixture.patch("deployments/mws-web", unlabelled).await["metadata"]["uid"].clone();
        fixture.settle().await;
        // A create that fails counts against a quota.
        let refused =
            fixture.transcript().await.into_iter().find(|line| line.starts_with("POST deployments 4"));
        assert_eq!(refused, None);
        fixture.patch("deployments/mws-web", json!({"metadata": {"finalizers": null}})).await;
        fixture.until("deployments/mws-web", |child| child["metadata"]["uid"] != before).await;
    })
    .await;
}

#[tokio::test]
async fn a_foreign_service_with_our_labels_is_never_changed() {
    on_each(async |fixture| {
        let mut service = foreign("services/mws-web");
        service["metadata"]["labels"] = json!({"app.kubernetes.io/managed-by": "mywebserver-operator"});
        check_conflict_with(fixture, "services/mws-web", &service).await;
        fixture.delete("services/mws-web").await;
        // A change of the owner triggers a reconcile.
        fixture.patch("mywebservers/web", json!({"metadata": {"annotations": {"note": "c"}}})).await;
        fixture.until("services/mws-web", |child| child["spec"]["ports"][0]["port"] == 80).await;
        fixture.until_condition("web", "Ready", "False", "RolloutInProgress").await;
    })
    .await;
}

#[tokio::test]
async fn a_child_of_another_web_is_not_taken_over() {
    on_each(async |fixture| {
        let other = fixture.create_settled_web("other", json!({"image": "nginx"})).await;
        let mut foreign = foreign("deployments/mws-web");
        foreign["metadata"]["ownerReferences"] = json!([{
            "apiVersion": "k8sobjects.gsa.com/v2", "kind": "MyWebserver", "name": "other",
            "uid": other["metadata"]["uid"], "controller": true,
        }]);
        check_conflict_with(fixture, "deployments/mws-web", &foreign).await;
    })
    .await;
}

/// Our child was deleted, and another client created its own object of that name before we did.
#[tokio::test]
async fn a_foreign_object_that_replaces_a_child_stays_until_its_deletion() {
    on_each(async |fixture| {
        fixture.create_settled_web("web", json!({"image": "nginx"})).await;
        for child in ["deployments/mws-web", "services/mws-web"] {
            let resource = child.split('/').next().unwrap();
            fixture.operator().signal("STOP");
            fixture.transcript().await;
            fixture.delete(child).await;
            fixture.until_gone(child).await;
            let foreign = fixture.create(resource, &foreign(child)).await;
            fixture.operator().signal("CONT");
            fixture.until_condition("web", "Stalled", "True", "NameConflict").await;
            fixture.settle().await;
            assert_eq!(fixture.get(child).await, foreign);
            let written = fixture.transcript().await;
            assert!(written.iter().all(|line| line == "PATCH mywebservers/web/status 200"), "{written:?}");

            fixture.delete(child).await;
            // A change of the owner triggers a reconcile.
            fixture.patch("mywebservers/web", json!({"metadata": {"annotations": {"gone": resource}}})).await;
            fixture.until_condition("web", "Ready", "False", "RolloutInProgress").await;
            assert_eq!(fixture.get(child).await["metadata"]["ownerReferences"][0]["name"], "web");
        }
    })
    .await;
}

/// A user who removes the ownerReference releases the child. The operator does not adopt the child, create a second
/// one, or delete the child with its former owner. When the reference is restored, the child is ours again.
#[tokio::test]
async fn a_child_is_released_with_its_owner_reference_and_owned_again_with_it() {
    on_each(async |fixture| {
        fixture.create_settled_web("web", json!({"image": "nginx"})).await;
        for (child, restored) in [
            ("deployments/mws-web", "restored Deployment mws-web"),
            ("services/mws-web", "restored Service mws-web"),
        ] {
            let owners = fixture.get(child).await["metadata"]["ownerReferences"].clone();
            let mut without = fixture.patch(child, json!({"metadata": {"ownerReferences": null}})).await;
            fixture.until_condition("web", "Stalled", "True", "NameConflict").await;
            fixture.wrote("PATCH mywebservers/web/status 200").await;
            assert_eq!(fixture.get(child).await, without);

            without = fixture.patch(child, json!({"metadata": {"ownerReferences": owners}})).await;
            fixture.until_condition("web", "Ready", "False", "RolloutInProgress").await;
            fixture.wrote("PATCH mywebservers/web/status 200").await;
            assert_eq!(fixture.get(child).await, without);

            fixture.delete(child).await;
            fixture.until("events", |events| events.to_string().contains(restored)).await;
            fixture.settle().await;
            fixture.transcript().await;
        }
        fixture.patch("services/mws-web", json!({"metadata": {"ownerReferences": null}})).await;
        fixture.until_condition("web", "Stalled", "True", "NameConflict").await;
        fixture.delete("mywebservers/web").await;
        fixture.until_gone("deployments/mws-web").await;
        fixture.settle().await;
        fixture.get("services/mws-web").await;
    })
    .await;
}
