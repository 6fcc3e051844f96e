//! Tests changes of a MyWebserver: the operator writes each consequence once, and nothing else.

use http::Method;
use serde_json::json;

use crate::fixture::{Fixture, on_each};

async fn with_web(fixture: &Fixture) {
    fixture.create_settled_web("web", json!({"image": "nginx:1", "port": 80, "replicas": 2})).await;
}

#[tokio::test]
async fn a_change_costs_one_write_for_each_affected_child_and_one_for_the_status() {
    on_each(async |fixture| {
        with_web(fixture).await;
        for (spec, expected) in [
            (json!({"image": "nginx:2"}), "PATCH deployments/mws-web 200"),
            (json!({"replicas": 5}), "PATCH deployments/mws-web 200"),
            (json!({"replicas": 0}), "PATCH deployments/mws-web 200"),
            (json!({"port": 8080}), "PATCH deployments/mws-web 200\nPATCH services/mws-web 200"),
            (
                json!({"image": "nginx:3", "port": 81, "replicas": 1}),
                "PATCH deployments/mws-web 200\nPATCH services/mws-web 200",
            ),
        ] {
            let web = fixture.patch("mywebservers/web", json!({"spec": spec})).await;
            fixture.wrote(&format!("{expected}\nPATCH mywebservers/web/status 200")).await;

            let (spec, deployment) = (&web["spec"], fixture.get("deployments/mws-web").await);
            let container = &deployment["spec"]["template"]["spec"]["containers"][0];
            assert_eq!(deployment["spec"]["replicas"], spec["replicas"]);
            assert_eq!(container["image"], spec["image"]);
            assert_eq!(container["ports"][0]["containerPort"], spec["port"]);
            assert_eq!(fixture.get("services/mws-web").await["spec"]["ports"][0]["port"], spec["port"]);
            let status = fixture.get("mywebservers/web").await["status"].clone();
            assert_eq!(status["observedGeneration"], web["metadata"]["generation"]);
        }
    })
    .await;
}

#[tokio::test]
async fn labels_and_annotations_of_a_web_cause_no_write() {
    on_each(async |fixture| {
        with_web(fixture).await;
        fixture
            .patch(
                "mywebservers/web",
                json!({"metadata": {"labels": {"team": "a"}, "annotations": {"note": "b"}}}),
            )
            .await;
        fixture.wrote("").await;
    })
    .await;
}

#[tokio::test]
async fn the_scale_subresource_scales() {
    on_each(async |fixture| {
        with_web(fixture).await;
        fixture.patch("mywebservers/web/scale", json!({"spec": {"replicas": 4}})).await;
        fixture.wrote("PATCH deployments/mws-web 200\nPATCH mywebservers/web/status 200").await;
        assert_eq!(fixture.get("deployments/mws-web").await["spec"]["replicas"], 4);

        // An autoscaler reads the number of Pods and their selector.
        fixture.patch("deployments/mws-web/status", json!({"status": {"replicas": 3}})).await;
        fixture.wrote("PATCH mywebservers/web/status 200").await;
        let scale = fixture.get("mywebservers/web/scale").await;
        assert_eq!((&scale["spec"]["replicas"], &scale["status"]["replicas"]), (&json!(4), &json!(3)));
        let selector = "app.kubernetes.io/instance=web,app.kubernetes.io/managed-by=mywebserver-operator,app.kubernetes.io/name=mywebserver";
        assert_eq!(scale["status"]["selector"], selector);
    })
    .await;
}

#[tokio::test]
async fn the_status_follows_the_deployment_until_all_replicas_are_ready() {
    on_each(async |fixture| {
        with_web(fixture).await;
        let generation = fixture.get("deployments/mws-web").await["metadata"]["generation"].clone();
        let mut rollout = json!({
            "observedGeneration": generation, "replicas": 2, "updatedReplicas": 2, "readyReplicas": 1, "availableReplicas": 1,
        });
        fixture.patch("deployments/mws-web/status", json!({"status": rollout})).await;
        fixture.wrote("PATCH mywebservers/web/status 200").await;
        let message = fixture.until_condition("web", "Ready", "False", "RolloutInProgress").await;
        assert_eq!(message, "1 of 2 replicas are updated and available");

        rollout["readyReplicas"] = json!(2);
        rollout["availableReplicas"] = json!(2);
        fixture.patch("deployments/mws-web/status", json!({"status": rollout})).await;
        fixture.wrote("PATCH mywebservers/web/status 200").await;
        fixture.until_condition("web", "Ready", "True", "AllReplicasReady").await;
    })
    .await;
}

/// Every write of our status was refused with 422. The conditions of a Deployment are not validated; those in our
/// schema are.
#[tokio::test]
async fn a_deployment_condition_that_our_schema_rejects_does_not_block_the_status() {
    on_each(async |fixture| {
        with_web(fixture).await;
        let generation = fixture.get("deployments/mws-web").await["metadata"]["generation"].clone();
        let status = json!({
            "observedGeneration": generation, "replicas": 2, "updatedReplicas": 2, "readyReplicas": 2, "availableReplicas": 2,
            "conditions": [
                {"type": "Available", "status": "True", "reason": ""},
                {"type": "Progressing", "status": "odd", "reason": "two words", "message": "ü".repeat(40_000)},
            ],
        });
        fixture.patch("deployments/mws-web/status", json!({ "status": status })).await;
        fixture.wrote("PATCH mywebservers/web/status 200").await;
        fixture.until_condition("web", "Ready", "True", "AllReplicasReady").await;
        fixture.until_condition("web", "Available", "True", "Unspecified").await;
        let message = fixture.until_condition("web", "Progressing", "Unknown", "Unspecified").await;
        assert_eq!(message.chars().count(), 32_768);
        fixture.wrote("").await;
    })
    .await;
}

#[tokio::test]
async fn a_paused_deployment_is_reported_and_its_new_image_waits() {
    on_each(async |fixture| {
        with_web(fixture).await;
        fixture.patch("deployments/mws-web", json!({"spec": {"paused": true}})).await;
        fixture.patch("mywebservers/web", json!({"spec": {"image": "nginx:2"}})).await;
        fixture.settle().await;
        let deployment = fixture.get("deployments/mws-web").await;
        assert_eq!(deployment["spec"]["paused"], true, "it is the user's");
        // As the Deployment controller writes it.
        let status = json!({
            "observedGeneration": deployment["metadata"]["generation"], "replicas": 2, "readyReplicas": 2, "availableReplicas": 2,
            "conditions": [
                {"type": "Available", "status": "True", "reason": "MinimumReplicasAvailable"},
                {"type": "Progressing", "status": "Unknown", "reason": "DeploymentPaused", "message": "Deployment is paused"},
            ],
        });
        fixture.patch("deployments/mws-web/status", json!({ "status": status })).await;
        fixture.until_condition("web", "Stalled", "True", "DeploymentPaused").await;
        fixture.until_condition("web", "Progressing", "Unknown", "DeploymentPaused").await;
        let message = fixture.until_condition("web", "Ready", "False", "DeploymentPaused").await;
        assert_eq!(message,
            "0 of 2 replicas are updated and available; 2 old replicas remain; \
             the Deployment is paused: kubectl rollout resume deployment/mws-web"
        );
    })
    .await;
}

/// A v1 client reads an object, changes its image, and writes the whole object back.
#[tokio::test]
async fn a_put_through_v1_loses_nothing() {
    on_each(async |fixture| {
        let v1 = fixture.path("mywebservers").replace("/v2/", "/v1/");
        let web = json!({
            "apiVersion": "k8sobjects.gsa.com/v1", "kind": "MyWebserver",
            "metadata": {"name": "web"}, "spec": {"image": "nginx:1", "port": 80},
        });
        fixture.try_create(&v1, &web).await.unwrap();
        fixture.wrote("POST deployments 201\nPOST services 201\nPATCH mywebservers/web/status 200").await;
        assert_eq!(fixture.get("deployments/mws-web").await["spec"]["replicas"], 1);

        fixture.patch("mywebservers/web", json!({"spec": {"replicas": 3}})).await;
        fixture.wrote("PATCH deployments/mws-web 200\nPATCH mywebservers/web/status 200").await;

        let path = format!("{v1}/web");
        let mut web: serde_json::Value = serde_json::from_str(&fixture.raw(&path).await.unwrap()).unwrap();
        assert_eq!(web["apiVersion"], "k8sobjects.gsa.com/v1");
        web["spec"]["image"] = json!("nginx:2");
        fixture.send(Method::PUT, &path, "application/json", &web).await.unwrap();
        fixture.wrote("PATCH deployments/mws-web 200\nPATCH mywebservers/web/status 200").await;
        let deployment = fixture.get("deployments/mws-web").await;
        assert_eq!(deployment["spec"]["replicas"], 3);
        assert_eq!(deployment["spec"]["template"]["spec"]["containers"][0]["image"], "nginx:2");
    })
    .await;
}

/// Two teams, one of which still uses v1. Each writes its own fields, and neither undoes the other's change.
#[tokio::test]
async fn v1_and_v2_written_in_turn_are_one_object() {
    on_each(async |fixture| {
        with_web(fixture).await;
        let v2 = fixture.path("mywebservers/web");
        let v1 = v2.replace("/v2/", "/v1/");
        for (path, spec, what) in [
            (&v1, json!({"image": "nginx:2"}), "PATCH deployments/mws-web 200"),
            (&v2, json!({"replicas": 3}), "PATCH deployments/mws-web 200"),
            (&v1, json!({"port": 81}), "PATCH deployments/mws-web 200\nPATCH services/mws-web 200"),
            (&v2, json!({"image": "nginx:3"}), "PATCH deployments/mws-web 200"),
            // The same spec in the other version changes nothing.
            (&v1, json!({"image": "nginx:3"}), ""),
        ] {
            fixture
                .send(Method::PATCH, path, "application/merge-patch+json", &json!({"spec": spec}))
                .await
                .unwrap();
            let status = if what.is_empty() { "" } else { "PATCH mywebservers/web/status 200" };
            fixture.wrote(&format!("{what}\n{status}")).await;
        }
        let deployment = fixture.get("deployments/mws-web").await;
        let container = &deployment["spec"]["template"]["spec"]["containers"][0];
        assert_eq!(deployment["spec"]["replicas"], 3);
        assert_eq!(container["image"], "nginx:3");
        assert_eq!(container["ports"][0]["containerPort"], 81);
        assert_eq!(fixture.get("services/mws-web").await["spec"]["ports"][0]["port"], 81);
    })
    .await;
}
