//! Whatever of ours is changed is restored, at once and with one write; whatever is not ours is left alone.

use serde_json::{Value, json};

use crate::world::{Kind, on, on_each};

const DEPLOYMENT: &str = "deployments/mws-web";
const SERVICE: &str = "services/mws-web";

/// One way to break a child, as a JSON patch, and what mends it.
struct Drift {
    child: &'static str,
    operations: Value,
    mended_by: String,
}

fn drift(child: &'static str, operation: Value) -> Drift {
    drifts(child, json!([operation]))
}

fn drifts(child: &'static str, operations: Value) -> Drift {
    Drift { child, operations, mended_by: format!("PATCH {child} 200") }
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
        let managed_by = "/metadata/labels/app.kubernetes.io~1managed-by";
        let container = "/spec/template/spec/containers/0";
        let other_port = json!({"name": "other", "port": 9090, "protocol": "TCP"});
        let security = format!("{container}/securityContext");
        let probe = format!("{container}/readinessProbe");
        let seccomp = "/spec/template/spec/securityContext/seccompProfile";
        let balanced = |more: Value| {
            let mut operations = json!([replace("/spec/type", json!("LoadBalancer")), more]);
            operations.as_array_mut().unwrap().retain(|operation| !operation.is_null());
            drifts(SERVICE, operations)
        };
        let of_selector = |keys: &[&str]| {
            keys.iter().map(|key| add(&format!("/spec/selector/{key}"), json!("x"))).collect()
        };
        let annotations = |key: &str| add("/metadata/annotations", json!({key: "10.0.0.0/8"}));
        let drifts = [
            drift(DEPLOYMENT, replace("/spec/replicas", json!(7))),
            drift(DEPLOYMENT, replace(&format!("{container}/image"), json!("evil"))),
            drift(DEPLOYMENT, replace(&format!("{container}/ports/0/containerPort"), json!(81))),
            drift(
                DEPLOYMENT,
                add(&format!("{container}/ports/-"), json!({"containerPort": 9090, "protocol": "UDP"})),
            ),
            drift(DEPLOYMENT, remove(&format!("{container}/ports"))),
            drift(DEPLOYMENT, remove(&probe)),
            drift(DEPLOYMENT, add(&format!("{probe}/tcpSocket/host"), json!("example.com"))),
            drifts(
                DEPLOYMENT,
                json!([
                    remove(&format!("{probe}/tcpSocket")),
                    add(&format!("{probe}/httpGet"), json!({"port": 80}))
                ]),
            ),
            drifts(
                DEPLOYMENT,
                json!([
                    remove(&format!("{probe}/tcpSocket")),
                    add(&format!("{probe}/exec"), json!({"command": ["true"]})),
                ]),
            ),
            drift(DEPLOYMENT, remove(&security)),
            drift(DEPLOYMENT, replace(&security, json!({"privileged": true}))),
            drift(DEPLOYMENT, replace(&security, json!({"capabilities": {"add": ["CAP_SYS_ADMIN"]}}))),
            drift(DEPLOYMENT, add(&format!("{security}/seccompProfile"), json!({"type": "Unconfined"}))),
            drift(DEPLOYMENT, remove(seccomp)),
            drift(DEPLOYMENT, replace(seccomp, json!({"type": "Localhost", "localhostProfile": "p.json"}))),
            drift(DEPLOYMENT, replace("/spec/template/spec/automountServiceAccountToken", json!(true))),
            drift(DEPLOYMENT, remove("/spec/template/metadata/labels/app.kubernetes.io~1component")),
            drift(DEPLOYMENT, replace("/metadata/labels/app.kubernetes.io~1component", json!("x"))),
            drift(DEPLOYMENT, remove("/metadata/labels/app.kubernetes.io~1name")),
            drift(SERVICE, replace("/spec/ports/0/port", json!(81))),
            drift(SERVICE, replace("/spec/ports/0/targetPort", json!(81))),
            drift(SERVICE, replace("/spec/ports/0/protocol", json!("UDP"))),
            drift(SERVICE, replace("/spec/ports/0/name", json!("web"))),
            drift(SERVICE, add("/spec/ports/-", other_port.clone())),
            drift(SERVICE, replace("/spec/type", json!("NodePort"))),
            balanced(Value::Null),
            balanced(add("/spec/loadBalancerSourceRanges", json!(["10.0.0.0/8"]))),
            balanced(annotations("service.beta.kubernetes.io/load-balancer-source-ranges")),
            balanced(add("/spec/loadBalancerClass", json!("example.com/lb"))),
            balanced(add("/spec/allocateLoadBalancerNodePorts", json!(false))),
            balanced(add("/spec/externalTrafficPolicy", json!("Local"))),
            drift(SERVICE, replace("/spec/selector/app.kubernetes.io~1instance", json!("other"))),
            drift(SERVICE, add("/spec/selector/track", json!("x"))),
            // Names that mean something elsewhere: the server's fields of metadata, and a Deployment's selector.
            drifts(
                SERVICE,
                of_selector(&["uid", "resourceVersion", "generation", "deletionTimestamp", "finalizers"]),
            ),
            drifts(SERVICE, of_selector(&["matchLabels", "matchExpressions"])),
            drift(SERVICE, remove("/spec/selector")),
            drift(SERVICE, remove("/metadata/labels/app.kubernetes.io~1component")),
            // It is gone for the watch, and found by asking for it.
            drift(DEPLOYMENT, remove(managed_by)),
            drift(DEPLOYMENT, replace(managed_by, json!("Helm"))),
            drift(SERVICE, remove(managed_by)),
            drift(SERVICE, replace(managed_by, json!("Helm"))),
        ];
        for (number, Drift { child, operations, mended_by }) in drifts.into_iter().enumerate() {
            // Each has its own web: too many corrections of one are taken for a fight.
            let web = format!("web-{number}");
            let [child, mended_by] =
                [child, &mended_by].map(|text| text.replace("mws-web", &format!("mws-{web}")));
            world.create_web(&web, json!({"image": "nginx", "port": 80, "replicas": 2})).await;
            world.settle().await;
            world.transcript();
            let before = without_counters(world.get(&child).await);
            let broken = without_counters(world.edit(&child, operations.clone()).await);
            assert_ne!(before, broken, "{operations} breaks nothing");
            world.settle().await;
            assert_eq!(world.transcript().join("\n"), mended_by, "after {operations}");
            assert_eq!(without_counters(world.get(&child).await), before, "after {operations}");
        }
    })
    .await;
}

/// Another controller wants what we do not. We do not give in, but the two of us shall not heat the API server.
#[tokio::test]
async fn somebody_who_keeps_changing_it_back_is_told_of_and_backed_off_from() {
    on_each(async |world| {
        world.create_web("web", json!({"image": "nginx", "replicas": 2})).await;
        world.settle().await;
        for _ in 0..5 {
            world.patch(DEPLOYMENT, json!({"spec": {"replicas": 9}})).await;
            world.until(DEPLOYMENT, |deployment| deployment["spec"]["replicas"] == 2).await;
        }
        world.transcript();
        world.patch(DEPLOYMENT, json!({"spec": {"replicas": 9}})).await;
        world.operator().until_logged(&["WARN", "/web", "somebody else keeps changing it back"]).await;
        world
            .until("mywebservers/web", |web| web.to_string().contains("somebody else keeps changing it back"))
            .await;
        let said = world.until_condition("web", "Ready", "False", "ReconcileFailed").await;
        let advice = "If a HorizontalPodAutoscaler targets the Deployment, have it target the MyWebserver";
        assert!(said["message"].as_str().unwrap().contains(advice), "{said}");
        // Said, and not fought on.
        world.wrote("PATCH mywebservers/web/status 200").await;
        assert_eq!(world.get(DEPLOYMENT).await["spec"]["replicas"], 9);
    })
    .await;
}

#[tokio::test]
async fn somebody_who_keeps_deleting_a_child_is_told_of_and_backed_off_from() {
    on_each(async |world| {
        world.create_web("web", json!({"image": "nginx"})).await;
        world.settle().await;
        for _ in 0..5 {
            let before = world.get(SERVICE).await["metadata"]["uid"].clone();
            world.delete(SERVICE).await;
            world.until(SERVICE, |service| service["metadata"]["uid"] != before).await;
        }
        world.delete(SERVICE).await;
        world.operator().until_logged(&["WARN", "/web", "somebody else keeps deleting it"]).await;
        world
            .until("mywebservers/web", |web| web.to_string().contains("somebody else keeps deleting it"))
            .await;
        // Who asks for something else is not made to wait.
        world.patch("mywebservers/web", json!({"spec": {"port": 81}})).await;
        world.until(SERVICE, |service| service["spec"]["ports"][0]["port"] == 81).await;
    })
    .await;
}

/// With it go the selector, the ports and the address: everything of ours is missing at once.
#[tokio::test]
async fn a_service_that_was_made_an_alias_gets_its_ports_back() {
    on_each(async |world| {
        world.create_web("web", json!({"image": "nginx"})).await;
        world.settle().await;
        world.transcript();
        let before = world.get(SERVICE).await["spec"].clone();
        let nothing = Value::Null;
        let alias = json!({
            "type": "ExternalName", "externalName": "example.com",
            "ports": nothing, "selector": nothing, "clusterIP": nothing, "clusterIPs": nothing,
        });
        world.patch(SERVICE, json!({"spec": alias})).await;
        world.wrote("PATCH services/mws-web 200").await;
        let after = world.get(SERVICE).await["spec"].clone();
        for field in ["type", "selector", "ports"] {
            assert_eq!(after[field], before[field]);
        }
    })
    .await;
}

/// Somebody moved our container to the init containers, and put another in its place. Ours was then a second one of its
/// name, so that every patch was refused, for ever.
#[tokio::test]
async fn a_template_in_which_ours_is_invalid_is_reset() {
    on_each(async |world| {
        world.create_web("web", json!({"image": "nginx"})).await;
        world.settle().await;
        world.transcript();
        let template = world.get(DEPLOYMENT).await["spec"]["template"].clone();
        let path = "/spec/template/spec";
        let moved = json!([
            replace(&format!("{path}/containers/0/name"), json!("main")),
            add(&format!("{path}/initContainers"), json!([{"name": "web", "image": "setup"}])),
        ]);
        world.edit(DEPLOYMENT, moved).await;
        world.wrote("PATCH deployments/mws-web 422\nPATCH deployments/mws-web 200").await;
        assert_eq!(world.get(DEPLOYMENT).await["spec"]["template"], template);
    })
    .await;
}

/// The same, with what only a real server looks at.
#[tokio::test]
async fn a_template_of_another_system_is_reset() {
    on(&[Kind::Real], async |world| {
        world.start_operator(&[]).await;
        world.create_web("web", json!({"image": "nginx"})).await;
        world.settle().await;
        world.transcript();
        let before = world.get(DEPLOYMENT).await["spec"]["template"].clone();
        let path = "/spec/template/spec";
        let insecure = [
            remove(&format!("{path}/securityContext/seccompProfile")),
            remove(&format!("{path}/containers/0/securityContext")),
        ];
        let unconfined = json!({"seccomp.security.alpha.kubernetes.io/pod": "unconfined"});
        for with in [
            add(&format!("{path}/os"), json!({"name": "windows"})),
            add("/spec/template/metadata/annotations", unconfined),
        ] {
            let [a, b] = insecure.clone();
            world.edit(DEPLOYMENT, json!([a, b, with])).await;
            world.wrote("PATCH deployments/mws-web 422\nPATCH deployments/mws-web 200").await;
            assert_eq!(world.get(DEPLOYMENT).await["spec"]["template"], before);
        }
    })
    .await;
}

/// A selector cannot be changed: all that is left is another Deployment. While the old one could not be deleted, the status said
/// that there was none.
#[tokio::test]
async fn a_deployment_with_another_selector_is_replaced() {
    on_each(async |world| {
        world.may_be_forbidden.set(true);
        let web = world.create_web("web", json!({"image": "nginx"})).await;
        world.settle().await;
        let mut other = world.get(DEPLOYMENT).await;
        other["metadata"] = json!({
            "name": "mws-web", "labels": other["metadata"]["labels"],
            "ownerReferences": other["metadata"]["ownerReferences"],
        });
        other["spec"]["selector"]["matchLabels"]["track"] = "x".into();
        other["spec"]["template"]["metadata"]["labels"]["track"] = "x".into();
        world.stop_operator().await;
        world.delete(DEPLOYMENT).await;
        world.create("deployments", &other).await;
        world.transcript();
        world.allow_all_but("delete", "deployments").await;
        world.start_operator(&[]).await;
        world.until_condition("web", "Stalled", "True", "Forbidden").await;
        world.until_condition("web", "Available", "False", "MinimumReplicasUnavailable").await;
        world.allow().await;
        let is_ours = |deployment: &Value| deployment["spec"]["selector"]["matchLabels"]["track"].is_null();
        let made = world.until(DEPLOYMENT, is_ours).await;
        assert_eq!(made["metadata"]["ownerReferences"][0]["uid"], web["metadata"]["uid"]);
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
        world.patch(DEPLOYMENT, json!({"metadata": {"annotations": {"service.beta.kubernetes.io/load-balancer-source-ranges": "10.0.0.0/8"}}})).await;
        world.patch(DEPLOYMENT, json!({"metadata": metadata, "spec": {"progressDeadlineSeconds": 77, "minReadySeconds": 3}})).await;
        world.patch(SERVICE, json!({"metadata": metadata, "spec": {"sessionAffinity": "ClientIP"}})).await;
        let sidecar = json!({"name": "sidecar", "image": "envoy", "ports": [{"containerPort": 15001, "protocol": "TCP"}]});
        // In front, as an injector may put it: then ours is not the first container any more.
        world.edit(DEPLOYMENT, json!([add("/spec/template/spec/containers/0", sidecar)])).await;
        world.edit(DEPLOYMENT, json!([add("/spec/template/spec/containers/1/env", json!([{"name": "A", "value": "b"}]))])).await;
        let template = json!({"metadata": {"labels": {"team": "a"}}, "spec": {"securityContext": {"fsGroup": 1000}}});
        world.patch(DEPLOYMENT, json!({"spec": {"template": template}})).await;
        let probe = "/spec/template/spec/containers/1/readinessProbe";
        world.edit(DEPLOYMENT, json!([replace(&format!("{probe}/periodSeconds"), json!(3))])).await;
        world.wrote("").await;

        // And they stay when something of ours is restored.
        let drift =
            [replace("/spec/replicas", json!(9)), replace("/spec/template/spec/containers/1/image", json!("evil")), remove(&format!("{probe}/tcpSocket")), add(&format!("{probe}/httpGet"), json!({"port": 80}))];
        world.edit(DEPLOYMENT, json!(drift)).await;
        world.wrote("PATCH deployments/mws-web 200").await;
        let deployment = world.get(DEPLOYMENT).await;
        let containers = &deployment["spec"]["template"]["spec"]["containers"];
        assert_eq!(containers[0]["name"], "sidecar");
        assert_eq!(containers[1]["image"], "nginx");
        assert_eq!(containers[1]["env"][0]["name"], "A");
        assert_eq!(containers[1]["readinessProbe"]["periodSeconds"], 3);
        assert!(containers[1]["readinessProbe"]["httpGet"].is_null());
        assert_eq!(deployment["spec"]["template"]["spec"]["securityContext"]["fsGroup"], 1000);
        assert_eq!(deployment["spec"]["template"]["metadata"]["labels"]["team"], "a");
        assert_eq!(deployment["spec"]["progressDeadlineSeconds"], 77);
        assert_eq!(deployment["spec"]["replicas"], 1);
        assert_eq!(deployment["metadata"]["annotations"]["note"], "mine");
        assert_eq!(deployment["metadata"]["labels"]["team"], "a");
    })
    .await;
}
