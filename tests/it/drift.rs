//! Tests drift: the operator restores its fields at once, with one write, and leaves all other fields unchanged.

use serde_json::{Value, json};

use crate::fixture::{Kind, on, on_each};

const DEPLOYMENT: &str = "deployments/mws-web";
const SERVICE: &str = "services/mws-web";

/// One way to break a child, as a JSON patch, and the write that repairs it.
struct Drift {
    child: &'static str,
    operations: Value,
    restored_by: String,
}

fn drift(child: &'static str, operation: Value) -> Drift {
    drifts(child, json!([operation]))
}

fn drifts(child: &'static str, operations: Value) -> Drift {
    Drift { child, operations, restored_by: format!("PATCH {child} 200") }
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

/// An object without the versions and times of the server.
fn without_counters(mut object: Value) -> Value {
    let metadata = object["metadata"].as_object_mut().unwrap();
    for field in ["resourceVersion", "generation", "managedFields"] {
        metadata.remove(field);
    }
    object
}

#[tokio::test]
async fn a_changed_field_of_ours_is_restored_with_one_write() {
    on_each(async |fixture| {
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
            // The watch reports the child as deleted; a GET finds it.
            drift(DEPLOYMENT, remove(managed_by)),
            drift(DEPLOYMENT, replace(managed_by, json!("Helm"))),
            drift(SERVICE, remove(managed_by)),
            drift(SERVICE, replace(managed_by, json!("Helm"))),
        ];
        for (number, Drift { child, operations, restored_by }) in drifts.into_iter().enumerate() {
            // Each has its own MyWebserver: many corrections of one object would have to wait.
            let web = format!("web-{number}");
            let [child, restored_by] =
                [child, &restored_by].map(|text| text.replace("mws-web", &format!("mws-{web}")));
            fixture.create_settled_web(&web, json!({"image": "nginx", "port": 80, "replicas": 2})).await;
            let before = without_counters(fixture.get(&child).await);
            let broken = without_counters(fixture.edit(&child, operations.clone()).await);
            assert_ne!(before, broken, "{operations} changes nothing");
            fixture.settle().await;
            assert_eq!(fixture.transcript().await.join("\n"), restored_by, "after {operations}");
            assert_eq!(without_counters(fixture.get(&child).await), before, "after {operations}");
        }
    })
    .await;
}

/// Another controller sets another value. The operator restores its own, but both must not overload the API server.
#[tokio::test]
async fn a_client_that_keeps_reverting_a_field_is_reported_and_the_operator_backs_off() {
    on_each(async |fixture| {
        fixture.create_settled_web("web", json!({"image": "nginx", "replicas": 2})).await;
        for _ in 0..5 {
            fixture.patch(DEPLOYMENT, json!({"spec": {"replicas": 9}})).await;
            fixture.until(DEPLOYMENT, |deployment| deployment["spec"]["replicas"] == 2).await;
        }
        fixture.settle().await;
        fixture.transcript().await;
        fixture.patch(DEPLOYMENT, json!({"spec": {"replicas": 9}})).await;
        fixture.operator().until_logged(&["WARN", "/web", "another client keeps changing it back"]).await;
        fixture
            .until("mywebservers/web", |web| {
                web.to_string().contains("another client keeps changing it back")
            })
            .await;
        let message = fixture.until_condition("web", "Ready", "False", "ReconcileFailed").await;
        let advice = "If a HorizontalPodAutoscaler targets the Deployment, delete it, or have it target the MyWebserver, if that kind has the subresource scale";
        assert!(message.contains(advice), "{message}");
        // It is reported that the field is changed back, and the corrections pause.
        fixture.wrote("PATCH mywebservers/web/status 200").await;
        assert_eq!(fixture.get(DEPLOYMENT).await["spec"]["replicas"], 9);
    })
    .await;
}

#[tokio::test]
async fn a_client_that_keeps_deleting_a_child_is_reported_and_the_operator_backs_off() {
    on_each(async |fixture| {
        fixture.create_settled_web("web", json!({"image": "nginx"})).await;
        for _ in 0..5 {
            let before = fixture.get(SERVICE).await["metadata"]["uid"].clone();
            fixture.delete(SERVICE).await;
            fixture.until(SERVICE, |service| service["metadata"]["uid"] != before).await;
        }
        fixture.delete(SERVICE).await;
        fixture.operator().until_logged(&["WARN", "/web", "another client keeps deleting it"]).await;
        fixture
            .until("mywebservers/web", |web| web.to_string().contains("another client keeps deleting it"))
            .await;
        // A change of the MyWebserver does not wait.
        fixture.patch("mywebservers/web", json!({"spec": {"port": 81}})).await;
        fixture.until(SERVICE, |service| service["spec"]["ports"][0]["port"] == 81).await;
    })
    .await;
}

/// The Service also loses its selector, ports and address: all our fields are missing at once.
#[tokio::test]
async fn a_service_changed_to_external_name_gets_its_ports_back() {
    on_each(async |fixture| {
        fixture.create_settled_web("web", json!({"image": "nginx"})).await;
        let before = fixture.get(SERVICE).await["spec"].clone();
        let nothing = Value::Null;
        let alias = json!({
            "type": "ExternalName", "externalName": "example.com",
            "ports": nothing, "selector": nothing, "clusterIP": nothing, "clusterIPs": nothing,
        });
        fixture.patch(SERVICE, json!({"spec": alias})).await;
        fixture.wrote("PATCH services/mws-web 200").await;
        let after = fixture.get(SERVICE).await["spec"].clone();
        for field in ["type", "selector", "ports"] {
            assert_eq!(after[field], before[field]);
        }
    })
    .await;
}

/// A user moved our container to the init containers, and put another in its place. Our patch then added a second
/// container of the same name, so the server refused every patch.
#[tokio::test]
async fn a_template_in_which_our_container_is_invalid_is_reset() {
    on_each(async |fixture| {
        fixture.create_settled_web("web", json!({"image": "nginx"})).await;
        let template = fixture.get(DEPLOYMENT).await["spec"]["template"].clone();
        let path = "/spec/template/spec";
        let moved = json!([
            replace(&format!("{path}/containers/0/name"), json!("main")),
            add(&format!("{path}/initContainers"), json!([{"name": "web", "image": "setup"}])),
        ]);
        fixture.edit(DEPLOYMENT, moved).await;
        fixture.wrote("PATCH deployments/mws-web 422\nPATCH deployments/mws-web 200").await;
        assert_eq!(fixture.get(DEPLOYMENT).await["spec"]["template"], template);
    })
    .await;
}

/// The same for changes that only a real server checks.
#[tokio::test]
async fn a_template_for_windows_or_without_seccomp_is_reset() {
    on(&[Kind::Real], async |fixture| {
        fixture.start_operator(&[]).await;
        fixture.create_settled_web("web", json!({"image": "nginx"})).await;
        let before = fixture.get(DEPLOYMENT).await["spec"]["template"].clone();
        let path = "/spec/template/spec";
        let insecure = [
            remove(&format!("{path}/securityContext/seccompProfile")),
            remove(&format!("{path}/containers/0/securityContext")),
        ];
        let unconfined = json!({"seccomp.security.alpha.kubernetes.io/pod": "unconfined"});
        for change in [
            add(&format!("{path}/os"), json!({"name": "windows"})),
            add("/spec/template/metadata/annotations", unconfined),
        ] {
            let [a, b] = insecure.clone();
            fixture.edit(DEPLOYMENT, json!([a, b, change])).await;
            fixture.wrote("PATCH deployments/mws-web 422\nPATCH deployments/mws-web 200").await;
            assert_eq!(fixture.get(DEPLOYMENT).await["spec"]["template"], before);
        }
    })
    .await;
}

/// A selector is immutable, so the Deployment must be replaced. While the old one could not be deleted, the status
/// reported that there was no Deployment.
#[tokio::test]
async fn a_deployment_with_another_selector_is_replaced() {
    on_each(async |fixture| {
        fixture.may_be_forbidden.set(true);
        let web = fixture.create_settled_web("web", json!({"image": "nginx"})).await;
        let mut changed = fixture.get(DEPLOYMENT).await;
        changed["metadata"] = json!({
            "name": "mws-web", "labels": changed["metadata"]["labels"],
            "ownerReferences": changed["metadata"]["ownerReferences"],
        });
        changed["spec"]["selector"]["matchLabels"]["track"] = "x".into();
        changed["spec"]["template"]["metadata"]["labels"]["track"] = "x".into();
        fixture.stop_operator().await;
        fixture.delete(DEPLOYMENT).await;
        fixture.create("deployments", &changed).await;
        fixture.transcript().await;
        fixture.allow_all_but("delete", "deployments").await;
        fixture.start_operator(&[]).await;
        fixture.until_condition("web", "Stalled", "True", "Forbidden").await;
        fixture.until_condition("web", "Available", "False", "MinimumReplicasUnavailable").await;
        fixture.allow().await;
        let is_ours = |deployment: &Value| deployment["spec"]["selector"]["matchLabels"]["track"].is_null();
        let created = fixture.until(DEPLOYMENT, is_ours).await;
        assert_eq!(created["metadata"]["ownerReferences"][0]["uid"], web["metadata"]["uid"]);
    })
    .await;
}

#[tokio::test]
async fn a_deleted_child_is_created_again() {
    on_each(async |fixture| {
        fixture.create_settled_web("web", json!({"image": "nginx"})).await;
        for (child, write) in [(DEPLOYMENT, "POST deployments 201"), (SERVICE, "POST services 201")] {
            let before = fixture.get(child).await["metadata"]["uid"].clone();
            fixture.delete(child).await;
            fixture.wrote(write).await;
            assert_ne!(fixture.get(child).await["metadata"]["uid"], before);
        }
    })
    .await;
}

#[tokio::test]
async fn fields_of_other_managers_stay() {
    on_each(async |fixture| {
        fixture.create_settled_web("web", json!({"image": "nginx"})).await;
        let metadata = json!({"annotations": {"note": "mine"}, "labels": {"team": "a"}});
        fixture.patch(DEPLOYMENT, json!({"metadata": {"annotations": {"service.beta.kubernetes.io/load-balancer-source-ranges": "10.0.0.0/8"}}})).await;
        fixture.patch(DEPLOYMENT, json!({"metadata": metadata, "spec": {"progressDeadlineSeconds": 77, "minReadySeconds": 3}})).await;
        fixture.patch(SERVICE, json!({"metadata": metadata, "spec": {"sessionAffinity": "ClientIP"}})).await;
        let sidecar = json!({"name": "sidecar", "image": "envoy", "ports": [{"name": "http", "containerPort": 15001}]});
        // In front, as an injector may put it, so that our container is not the first one.
        fixture.edit(DEPLOYMENT, json!([add("/spec/template/spec/containers/0", sidecar)])).await;
        fixture.edit(DEPLOYMENT, json!([add("/spec/template/spec/containers/1/env", json!([{"name": "A", "value": "b"}]))])).await;
        let template = json!({"metadata": {"labels": {"team": "a"}}, "spec": {"securityContext": {"fsGroup": 1000}}});
        fixture.patch(DEPLOYMENT, json!({"spec": {"template": template}})).await;
        let probe = "/spec/template/spec/containers/1/readinessProbe";
        fixture.edit(DEPLOYMENT, json!([replace(&format!("{probe}/periodSeconds"), json!(3))])).await;
        fixture.wrote("").await;

        // They also stay when one of our fields is restored.
        let drift =
            [replace("/spec/replicas", json!(9)), replace("/spec/template/spec/containers/1/image", json!("evil")), remove(&format!("{probe}/tcpSocket")), add(&format!("{probe}/httpGet"), json!({"port": 80}))];
        fixture.edit(DEPLOYMENT, json!(drift)).await;
        fixture.wrote("PATCH deployments/mws-web 200").await;
        let deployment = fixture.get(DEPLOYMENT).await;
        let containers = &deployment["spec"]["template"]["spec"]["containers"];
        assert_eq!(containers[0]["name"], "sidecar");
        assert_eq!(containers[1]["image"], "nginx");
        // The name of a port refers to the first container with such a port.
        let service = fixture.get(SERVICE).await;
        for port in [&service["spec"]["ports"][0]["targetPort"], &containers[1]["readinessProbe"]["tcpSocket"]["port"]] {
            let has_port = |container: &&Value| container["ports"].as_array().is_some_and(|all| all.iter().any(|one| one["name"] == *port));
            assert_eq!(containers.as_array().unwrap().iter().find(has_port).unwrap()["name"], containers[1]["name"]);
        }
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
