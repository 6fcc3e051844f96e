//! Whatever of ours is changed is restored, at once and with one write; whatever is not ours is left alone.

use serde_json::{Value, json};

use crate::world::on_each;

const DEPLOYMENT: &str = "deployments/mws-web";
const SERVICE: &str = "services/mws-web";
/// A child that lost the label by which we watch is gone for the watch, and found again by trying to create it.
const LOST: [&str; 2] = ["POST {} 409", "PATCH {}/mws-web 200"];

/// One way to break a child, as a JSON patch, and what mends it.
struct Drift {
    child: &'static str,
    operations: Value,
    mended_by: Vec<String>,
}

fn drift(child: &'static str, operation: Value) -> Drift {
    Drift { child, operations: json!([operation]), mended_by: vec![format!("PATCH {child} 200")] }
}

fn lost(child: &'static str, operation: Value) -> Drift {
    let resource = child.split('/').next().unwrap();
    let mended_by = LOST.map(|line| line.replace("{}", resource)).into();
    Drift { child, operations: json!([operation]), mended_by }
}

fn replace(path: &str, value: Value) -> Value {
    json!({"op": "replace", "path": path, "value": value})
}

fn add(path: &str, value: Value) -> Value {
    json!({"op": "add", "path": path, "value": value})
}

fn remove(path: &str) -> Value {
    json!({"op": "remove", "path": path})
}

/// What is ours of an object: all but what the server counts and dates.
fn without_counters(mut object: Value) -> Value {
    let metadata = object["metadata"].as_object_mut().unwrap();
    for field in ["resourceVersion", "generation", "managedFields"] {
        metadata.remove(field);
    }
    object
}

#[tokio::test]
async fn a_changed_field_of_ours_is_restored_with_one_write() {
    on_each(async |world| {
        world.create_web("web", json!({"image": "nginx", "port": 80, "replicas": 2})).await;
        world.settle().await;
        world.transcript();
        let managed_by = "/metadata/labels/app.kubernetes.io~1managed-by";
        let container = "/spec/template/spec/containers/0";
        let other_port = json!({"name": "other", "port": 9090, "protocol": "TCP"});
        for Drift { child, operations, mended_by } in [
            drift(DEPLOYMENT, replace("/spec/replicas", json!(7))),
            drift(DEPLOYMENT, replace(&format!("{container}/image"), json!("evil"))),
            drift(DEPLOYMENT, replace(&format!("{container}/ports/0/containerPort"), json!(81))),
            drift(
                DEPLOYMENT,
                add(&format!("{container}/ports/-"), json!({"containerPort": 9090, "protocol": "UDP"})),
            ),
            drift(DEPLOYMENT, remove(&format!("{container}/ports"))),
            drift(DEPLOYMENT, remove(&format!("{container}/readinessProbe"))),
            drift(DEPLOYMENT, remove(&format!("{container}/securityContext"))),
            drift(DEPLOYMENT, remove("/spec/template/metadata/labels/app.kubernetes.io~1component")),
            drift(DEPLOYMENT, replace("/metadata/labels/app.kubernetes.io~1component", json!("x"))),
            drift(DEPLOYMENT, remove("/metadata/labels/app.kubernetes.io~1name")),
            drift(SERVICE, replace("/spec/ports/0/port", json!(81))),
            drift(SERVICE, replace("/spec/ports/0/targetPort", json!(81))),
            drift(SERVICE, replace("/spec/ports/0/protocol", json!("UDP"))),
            drift(SERVICE, replace("/spec/ports/0/name", json!("web"))),
            drift(SERVICE, add("/spec/ports/-", other_port.clone())),
            drift(SERVICE, replace("/spec/type", json!("NodePort"))),
            drift(SERVICE, replace("/spec/type", json!("LoadBalancer"))),
            drift(SERVICE, replace("/spec/selector/app.kubernetes.io~1instance", json!("other"))),
            drift(SERVICE, remove("/metadata/labels/app.kubernetes.io~1component")),
            lost(DEPLOYMENT, remove(managed_by)),
            lost(DEPLOYMENT, replace(managed_by, json!("Helm"))),
            lost(SERVICE, remove(managed_by)),
            lost(SERVICE, replace(managed_by, json!("Helm"))),
        ] {
            let before = without_counters(world.get(child).await);
            let broken = without_counters(world.edit(child, operations.clone()).await);
            assert_ne!(before, broken, "{operations} breaks nothing");
            world.wrote(&mended_by.join("\n")).await;
            assert_eq!(without_counters(world.get(child).await), before, "after {operations}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_deleted_child_is_made_anew() {
    on_each(async |world| {
        world.create_web("web", json!({"image": "nginx"})).await;
        world.settle().await;
        world.transcript();
        for (child, made) in [(DEPLOYMENT, "POST deployments 201"), (SERVICE, "POST services 201")] {
            let before = world.get(child).await["metadata"]["uid"].clone();
            world.delete(child).await;
            world.wrote(made).await;
            assert_ne!(world.get(child).await["metadata"]["uid"], before);
        }
    })
    .await;
}

#[tokio::test]
async fn fields_of_others_are_left_alone() {
    on_each(async |world| {
        world.create_web("web", json!({"image": "nginx"})).await;
        world.settle().await;
        world.transcript();
        let metadata = json!({"annotations": {"note": "mine"}, "labels": {"team": "a"}});
        world.patch(DEPLOYMENT, json!({"metadata": metadata, "spec": {"progressDeadlineSeconds": 77, "minReadySeconds": 3}})).await;
        world.patch(SERVICE, json!({"metadata": metadata, "spec": {"sessionAffinity": "ClientIP"}})).await;
        let sidecar = json!({"name": "sidecar", "image": "envoy", "ports": [{"containerPort": 15001, "protocol": "TCP"}]});
        // In front, as an injector may put it: then ours is not the first container any more.
        world.edit(DEPLOYMENT, json!([add("/spec/template/spec/containers/0", sidecar)])).await;
        world.edit(DEPLOYMENT, json!([add("/spec/template/spec/containers/1/env", json!([{"name": "A", "value": "b"}]))])).await;
        world.wrote("").await;

        // And they stay when something of ours is restored.
        let drift =
            [replace("/spec/replicas", json!(9)), replace("/spec/template/spec/containers/1/image", json!("evil"))];
        world.edit(DEPLOYMENT, json!(drift)).await;
        world.wrote("PATCH deployments/mws-web 200").await;
        let deployment = world.get(DEPLOYMENT).await;
        let containers = &deployment["spec"]["template"]["spec"]["containers"];
        assert_eq!(containers[0]["name"], "sidecar");
        assert_eq!(containers[1]["image"], "nginx");
        assert_eq!(containers[1]["env"][0]["name"], "A");
        assert_eq!(deployment["spec"]["progressDeadlineSeconds"], 77);
        assert_eq!(deployment["spec"]["replicas"], 1);
        assert_eq!(deployment["metadata"]["annotations"]["note"], "mine");
        assert_eq!(deployment["metadata"]["labels"]["team"], "a");
    })
    .await;
}
