//! The controllers of Deployments and ReplicaSets: rollout, adoption, scaling and conditions.

use serde_json::{Value, json};
use tokio::time::{Duration, sleep};

use super::{Fixture, deployment};

const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
const WEB: &str = "/apis/apps/v1/namespaces/default/deployments/web";
const PODS: &str = "/api/v1/namespaces/default/pods";

#[tokio::test]
async fn a_deployment_rolls_out_gets_stuck_and_is_collected() {
    let fixture = Fixture::start().await;
    let path = "/apis/apps/v1/namespaces/default/deployments";
    let item = format!("{path}/web");
    fixture.post(path, deployment("nginx:1")).await;
    let complete = |generation: u64| {
        move |_: u16, object: &Value| {
            let status = &object["status"];
            status["observedGeneration"] == generation
                && [&status["updatedReplicas"], &status["replicas"], &status["availableReplicas"]]
                    .iter()
                    .all(|&n| *n == 3)
        }
    };
    fixture.until(&item, complete(1)).await;
    fixture
        .merge(
            &item,
            json!({"spec": {"template": {"spec": {"containers": [{"name": "web", "image": "nginx:2"}]}}}}),
        )
        .await;
    fixture.until(&item, complete(2)).await;
    // Terminating Pods no longer count in the status, and are deleted a little later.
    let only_new = |_: u16, pods: &Value| {
        let pods = pods["items"].as_array().cloned().unwrap_or_default();
        pods.len() == 3 && pods.iter().all(|pod| pod["spec"]["containers"][0]["image"] == "nginx:2")
    };
    fixture.until("/api/v1/namespaces/default/pods", only_new).await;
    fixture
        .merge(&item, json!({"spec": {"template": {"spec": {"containers": [{"name": "web", "image": "does-not-exist"}]}}}}))
        .await;
    let stuck = |_: u16, object: &Value| {
        let status = &object["status"];
        status["observedGeneration"] == 3
            && status["updatedReplicas"] == 1
            && status["availableReplicas"] == 3
    };
    fixture.until(&item, stuck).await;
    fixture.delete(&format!("{item}?propagationPolicy=Foreground")).await;
    fixture.until(&item, |status, _| status == 404).await;
    let (_, pods) = fixture.get("/api/v1/namespaces/default/pods").await;
    assert_eq!(pods["items"], json!([]));
}

/// The orphaned ReplicaSet has the name of the next one, so the new Deployment never got a ReplicaSet.
#[tokio::test]
async fn an_orphaned_replica_set_is_adopted_with_its_pods() {
    let fixture = Fixture::start().await;
    let path = "/apis/apps/v1/namespaces/default/deployments";
    let item = format!("{path}/web");
    let is_complete = |_: u16, object: &Value| object["status"]["availableReplicas"] == 3;
    fixture.post(path, deployment("nginx")).await;
    fixture.until(&item, is_complete).await;
    let uids = |pods: Value| -> Vec<Value> {
        let pods = pods["items"].as_array().cloned().unwrap_or_default();
        pods.iter().map(|pod| pod["metadata"]["uid"].clone()).collect()
    };
    let before = uids(fixture.get("/api/v1/namespaces/default/pods").await.1);
    fixture.delete(&format!("{item}?propagationPolicy=Orphan")).await;
    fixture.until(&item, |status, _| status == 404).await;
    fixture.post(path, deployment("nginx")).await;
    fixture.until(&item, is_complete).await;
    assert_eq!(uids(fixture.get("/api/v1/namespaces/default/pods").await.1), before);
}

#[tokio::test(start_paused = true)]
async fn a_stuck_rollout_exceeds_its_deadline() {
    let fixture = Fixture::start().await;
    let path = "/apis/apps/v1/namespaces/default/deployments";
    fixture.post(path, deployment("does-not-exist")).await;
    sleep(Duration::from_secs(700)).await;
    let (_, object) = fixture.get(&format!("{path}/web")).await;
    let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let reasons: Vec<&Value> = conditions.iter().map(|condition| &condition["reason"]).collect();
    assert_eq!(reasons, ["MinimumReplicasUnavailable", "ProgressDeadlineExceeded"]);
    let (_, events) = fixture.get("/api/v1/namespaces/default/events?fieldSelector=reason%3DFailed").await;
    let text = |event: &Value| format!("{} {}", event["type"], event["message"]);
    let messages: Vec<String> = events["items"].as_array().into_iter().flatten().map(text).collect();
    let pull = r#""Warning" "Failed to pull image \"does-not-exist\""#;
    assert!(messages.iter().any(|line| line.starts_with(pull)), "{messages:?}");
}

fn with(mut deployment: Value, pointer: &str, field: &str, value: Value) -> Value {
    deployment.pointer_mut(pointer).expect("an object")[field] = value;
    deployment
}

/// Whether all three Pods of `web` are available and of its latest generation.
fn is_complete(_: u16, web: &Value) -> bool {
    let status = &web["status"];
    status["observedGeneration"] == web["metadata"]["generation"]
        && ["updatedReplicas", "replicas", "availableReplicas"].iter().all(|count| status[count] == 3)
}

fn conditions(web: &Value) -> Vec<String> {
    let all = web["status"]["conditions"].as_array().into_iter().flatten();
    let text =
        |condition: &Value| format!("{} {} {}", condition["type"], condition["status"], condition["reason"]);
    all.map(|condition| text(condition).replace('"', "")).collect()
}

async fn images(fixture: &Fixture) -> Vec<Value> {
    let (_, pods) = fixture.get(PODS).await;
    let pods = pods["items"].as_array().cloned().unwrap_or_default();
    pods.iter().map(|pod| pod["spec"]["containers"][0]["image"].clone()).collect()
}

fn image(image: &str) -> Value {
    json!({"spec": {"template": {"spec": {"containers": [{"name": "web", "image": image}]}}}})
}

/// The controller was not triggered when the last old Pod was deleted.
#[tokio::test]
async fn a_deployment_that_recreates_has_no_new_pod_before_the_last_old_one_is_gone() {
    let fixture = Fixture::start().await;
    fixture
        .post(DEPLOYMENTS, with(deployment("nginx:1"), "/spec", "strategy", json!({"type": "Recreate"})))
        .await;
    fixture.until(WEB, is_complete).await;
    let mut pods = fixture.watch(&format!("{PODS}?watch=1&resourceVersion=0")).await;
    for _ in 0..3 {
        assert!(pods.next().await.starts_with("ADDED"));
    }
    fixture.merge(WEB, image("nginx:2")).await;
    fixture.until(WEB, is_complete).await;
    assert_eq!(images(&fixture).await, ["nginx:2", "nginx:2", "nginx:2"]);
    let mut gone = 0;
    loop {
        let event = pods.next().await;
        gone += usize::from(event.starts_with("DELETED"));
        if event.starts_with("ADDED") {
            break;
        }
    }
    assert_eq!(gone, 3);
}

/// The conditions are as in pkg/controller/deployment/progress.go and sync.go.
#[tokio::test]
async fn a_paused_deployment_has_a_condition_can_be_scaled_and_does_not_roll() {
    let fixture = Fixture::start().await;
    fixture.post(DEPLOYMENTS, with(deployment("nginx:1"), "/spec", "paused", json!(true))).await;
    let web = fixture.until(WEB, |_, web| web["status"]["observedGeneration"] == 1).await;
    let paused = "Progressing Unknown DeploymentPaused";
    assert_eq!(conditions(&web), [paused, "Available False MinimumReplicasUnavailable"]);
    assert_eq!(images(&fixture).await, Vec::<Value>::new());

    fixture.merge(WEB, json!({"spec": {"paused": false}})).await;
    let web = fixture.until(WEB, is_complete).await;
    assert!(conditions(&web).contains(&"Progressing True NewReplicaSetAvailable".to_owned()), "{web}");

    fixture.merge(WEB, json!({"spec": {"paused": true, "replicas": 4}})).await;
    fixture.merge(WEB, image("nginx:2")).await;
    let has_four = |_: u16, web: &Value| {
        web["status"]["observedGeneration"] == web["metadata"]["generation"]
            && web["status"]["availableReplicas"] == 4
    };
    let web = fixture.until(WEB, has_four).await;
    assert!(conditions(&web).contains(&paused.to_owned()), "{web}");
    assert_eq!(web["status"].get("updatedReplicas"), None);
    assert_eq!(images(&fixture).await, ["nginx:1", "nginx:1", "nginx:1", "nginx:1"]);
}

/// `HasProgressDeadline` in pkg/controller/deployment/util.
#[tokio::test]
async fn without_a_progress_deadline_no_progress_is_reported() {
    let fixture = Fixture::start().await;
    let endless = json!(i32::MAX);
    fixture.post(DEPLOYMENTS, with(deployment("nginx"), "/spec", "progressDeadlineSeconds", endless)).await;
    let web = fixture.until(WEB, is_complete).await;
    assert_eq!(conditions(&web), ["Available True MinimumReplicasAvailable"]);
    fixture.merge(WEB, json!({"spec": {"progressDeadlineSeconds": 600}})).await;
    let has_condition =
        |_: u16, web: &Value| conditions(web).contains(&"Progressing True NewReplicaSetAvailable".to_owned());
    fixture.until(WEB, has_condition).await;
    fixture.merge(WEB, json!({"spec": {"progressDeadlineSeconds": i32::MAX}})).await;
    fixture.until(WEB, |_, web| conditions(web) == ["Available True MinimumReplicasAvailable"]).await;
}

#[tokio::test]
async fn a_relabelled_pod_is_released_and_replaced() {
    let fixture = Fixture::start().await;
    fixture.post(DEPLOYMENTS, deployment("nginx")).await;
    fixture.until(WEB, is_complete).await;
    let (_, pods) = fixture.get(PODS).await;
    let name = pods["items"][0]["metadata"]["name"].as_str().expect("a name").to_owned();
    fixture.merge(&format!("{PODS}/{name}"), json!({"metadata": {"labels": {"app": "aside"}}})).await;
    let aside = fixture
        .until(&format!("{PODS}/{name}"), |_, pod| pod["metadata"].get("ownerReferences").is_none())
        .await;
    assert_eq!(aside["metadata"]["labels"]["app"], "aside");
    let four = |_: u16, pods: &Value| pods["items"].as_array().is_some_and(|pods| pods.len() == 4);
    fixture.until(PODS, four).await;
    fixture.until(WEB, is_complete).await;
}

/// The increment of the revision panicked, which ended all controllers.
#[tokio::test]
async fn an_overflowing_revision_does_not_end_the_controllers() {
    let fixture = Fixture::start().await;
    fixture.post(DEPLOYMENTS, deployment("nginx:1")).await;
    let web = fixture.until(WEB, is_complete).await;
    let (_, sets) = fixture.get("/apis/apps/v1/namespaces/default/replicasets").await;
    let set = sets["items"][0]["metadata"]["name"].as_str().expect("a ReplicaSet").to_owned();
    let last = json!({"deployment.kubernetes.io/revision": i64::MAX.to_string()});
    let path = format!("/apis/apps/v1/namespaces/default/replicasets/{set}");
    assert_eq!(fixture.merge(&path, json!({"metadata": {"annotations": last}})).await.0, 200);
    fixture.merge(WEB, image("nginx:2")).await;
    let is_next = |_: u16, next: &Value| {
        is_complete(200, next) && next["metadata"]["generation"] != web["metadata"]["generation"]
    };
    fixture.until(WEB, is_next).await;
}

/// `isCompleteDeployment` in pkg/controller/deployment/progress.go.
#[tokio::test]
async fn a_deployment_that_is_complete_stays_so_while_it_is_scaled() {
    let fixture = Fixture::start().await;
    fixture.post(DEPLOYMENTS, deployment("nginx")).await;
    fixture.until(WEB, is_complete).await;
    let mut watch = fixture.watch(&format!("{DEPLOYMENTS}?watch=1&resourceVersion=0")).await;
    fixture.merge(WEB, json!({"spec": {"replicas": 5}})).await;
    let has_five = |_: u16, web: &Value| web["status"]["availableReplicas"] == 5;
    fixture.until(WEB, has_five).await;
    loop {
        let web = watch.line().await.expect("news")["object"].take();
        assert!(conditions(&web).contains(&"Progressing True NewReplicaSetAvailable".to_owned()), "{web}");
        if has_five(200, &web) {
            break;
        }
    }
}

/// A Deployment of 100,000 replicas created 10,000 Pods, 500 at a time, before other Deployments had their turn.
#[tokio::test]
async fn a_deployment_of_too_many_replicas_reports_the_limit_and_delays_no_other() {
    let fixture = Fixture::start().await;
    let mut large = with(deployment("nginx"), "/spec", "replicas", json!(100_000));
    large["metadata"]["name"] = "large".into();
    for pointer in ["/spec/selector/matchLabels", "/spec/template/metadata/labels"] {
        *large.pointer_mut(pointer).expect("labels") = json!({"app": "large"});
    }
    fixture.post(DEPLOYMENTS, large).await;
    let large = format!("{DEPLOYMENTS}/large");
    fixture
        .until(&large, |_, large| large["status"]["replicas"].as_u64().is_some_and(|count| count > 0))
        .await;
    fixture.post(DEPLOYMENTS, deployment("nginx")).await;
    fixture.until(WEB, is_complete).await;
    let pods = fixture.get(PODS).await.1["items"].as_array().map_or(0, Vec::len);
    assert!(pods < 500, "{pods} Pods were made before three others were");
    let failure = "ReplicaFailure True FailedCreate".to_owned();
    let large = fixture.until(&large, |_, large| conditions(large).contains(&failure)).await;
    assert!(large.to_string().contains("at most 1000 Pods of a ReplicaSet run here"), "{large}");
    // With fewer replicas, the failure disappears.
    fixture.merge(&format!("{DEPLOYMENTS}/large"), json!({"spec": {"replicas": 5}})).await;
    let is_small =
        |_: u16, large: &Value| large["status"]["replicas"] == 5 && !conditions(large).contains(&failure);
    fixture.until(&format!("{DEPLOYMENTS}/large"), is_small).await;
}

/// They had only the annotations of the controller, so `kubectl rollout history` showed no CHANGE-CAUSE.
#[tokio::test]
async fn a_replica_set_keeps_the_annotations_of_its_deployment() {
    const CAUSE: &str = "kubernetes.io/change-cause";
    let fixture = Fixture::start().await;
    let annotated = |cause: &str| json!({"metadata": {"annotations": {CAUSE: cause}}});
    fixture.post(DEPLOYMENTS, deployment("nginx:1")).await;
    let last_applied =
        json!({"metadata": {"annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}"}}});
    fixture.merge(WEB, last_applied).await;
    fixture.merge(WEB, annotated("first")).await;
    fixture.until(WEB, is_complete).await;
    for (image_name, cause) in [("nginx:2", "second"), ("nginx:1", "third")] {
        fixture.merge(WEB, image(image_name)).await;
        fixture.merge(WEB, annotated(cause)).await;
        fixture.until(WEB, is_complete).await;
    }
    let (_, sets) = fixture.get("/apis/apps/v1/namespaces/default/replicasets").await;
    let mut annotations: Vec<Value> = sets["items"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|set| set["metadata"]["annotations"].clone())
        .collect();
    annotations.sort_by_key(|all| all["deployment.kubernetes.io/revision"].to_string());
    let sizes = json!({"deployment.kubernetes.io/desired-replicas": "3", "deployment.kubernetes.io/max-replicas": "4"});
    let with = |more: Value| {
        let mut all = sizes.clone();
        all.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        all
    };
    let old = json!({"deployment.kubernetes.io/revision": "2", CAUSE: "second"});
    let new = json!({"deployment.kubernetes.io/revision": "3", "deployment.kubernetes.io/revision-history": "1", CAUSE: "third"});
    assert_eq!(annotations, [with(old), with(new)]);
}

/// The ReplicaSet did not get the `minReadySeconds` of its Deployment, so that the Pods were available at once.
#[tokio::test(start_paused = true)]
async fn the_pods_of_a_deployment_are_available_after_min_ready_seconds() {
    let fixture = Fixture::start().await;
    fixture.post(DEPLOYMENTS, with(deployment("nginx"), "/spec", "minReadySeconds", json!(30))).await;
    let (ready, available) = ("/status/readyReplicas", "/status/availableReplicas");
    let number = |web: &Value, pointer| web.pointer(pointer).and_then(Value::as_u64).unwrap_or(0);
    let web = fixture.until(WEB, |_, web| number(web, ready) == 3).await;
    assert_eq!(number(&web, available), 0);
    sleep(Duration::from_secs(40)).await;
    assert_eq!(number(&fixture.get(WEB).await.1, available), 3);
    // A change also reaches the ReplicaSet.
    fixture.merge(WEB, json!({"spec": {"minReadySeconds": null}})).await;
    let is_gone = |_: u16, sets: &Value| sets["items"][0]["spec"]["minReadySeconds"].is_null();
    fixture.until("/apis/apps/v1/namespaces/default/replicasets", is_gone).await;
}
