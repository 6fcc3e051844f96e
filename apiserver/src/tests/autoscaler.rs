//! HorizontalPodAutoscalers with Pods that run: the story `autoscaling` has none.

use serde_json::{Value, json};

use super::Fixture;

const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
const AUTOSCALERS: &str = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers";
const PODS: &str = "/api/v1/namespaces/default/pods";
const METRICS: &str = "/apis/metrics.k8s.io/v1beta1/namespaces/default/pods";

/// A Deployment of one Pod that requests 100m of CPU, and an autoscaler with a target of 50 %.
async fn start() -> Fixture {
    let fixture = Fixture::start().await;
    let container = json!({"name": "c", "image": "i", "resources": {"requests": {"cpu": "100m"}}});
    let template = json!({"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [container]}});
    let spec = json!({"selector": {"matchLabels": {"app": "web"}}, "template": template});
    fixture.post(DEPLOYMENTS, json!({"metadata": {"name": "web"}, "spec": spec})).await;
    let metric = json!({"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}});
    let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"});
    let spec = json!({"scaleTargetRef": target, "maxReplicas": 5, "metrics": [{"type": "Resource", "resource": metric}],
        "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}}});
    fixture.post(AUTOSCALERS, json!({"metadata": {"name": "web"}, "spec": spec})).await;
    fixture
}

/// Writes the usage of all Pods.
async fn use_cpu(fixture: &Fixture, cpu: &str) {
    let (_, pods) = fixture.get(PODS).await;
    for pod in pods["items"].as_array().into_iter().flatten() {
        let name = pod["metadata"]["name"].as_str().expect("a name");
        fixture.delete(&format!("{METRICS}/{name}")).await;
        let metrics = json!({"apiVersion": "metrics.k8s.io/v1beta1", "kind": "PodMetrics", "metadata": {"name": name},
            "containers": [{"name": "c", "usage": {"cpu": cpu}}]});
        let (status, body) = fixture.post(METRICS, metrics).await;
        assert_eq!(status, 201, "{body}");
    }
}

async fn scaled_to(fixture: &Fixture, replicas: u64) -> Value {
    let is_there = |_: u16, one: &Value| {
        one["status"]["currentReplicas"] == replicas && one["status"]["desiredReplicas"] == replicas
    };
    fixture.until(&format!("{DEPLOYMENTS}/web"), |_, one| one["status"]["readyReplicas"] == replicas).await;
    fixture.until(&format!("{AUTOSCALERS}/web"), is_there).await
}

#[tokio::test]
async fn an_autoscaler_follows_the_metrics_and_then_writes_nothing() {
    let fixture = start().await;
    fixture.until(&format!("{DEPLOYMENTS}/web"), |_, one| one["status"]["readyReplicas"] == 1).await;
    use_cpu(&fixture, "150m").await;
    scaled_to(&fixture, 3).await;
    use_cpu(&fixture, "250m").await;
    let before = scaled_to(&fixture, 5).await;
    // A change of a Pod that has no effect: the controllers have seen it when they have counted the quota.
    let quota = json!({"metadata": {"name": "q"}, "spec": {"hard": {"pods": 9}}});
    fixture.post("/api/v1/namespaces/default/resourcequotas", quota).await;
    fixture
        .until("/api/v1/namespaces/default/resourcequotas/q", |_, q| q["status"]["used"]["pods"] == "5")
        .await;
    let (_, after) = fixture.get(&format!("{AUTOSCALERS}/web")).await;
    assert_eq!(after, before);
    use_cpu(&fixture, "10m").await;
    scaled_to(&fixture, 1).await;
}

/// A sum of usages did not fit into a number, and all controllers ended.
#[tokio::test]
async fn an_absurd_usage_does_not_end_the_controllers() {
    let fixture = start().await;
    fixture.until(&format!("{DEPLOYMENTS}/web"), |_, one| one["status"]["readyReplicas"] == 1).await;
    use_cpu(&fixture, "9P").await;
    scaled_to(&fixture, 5).await;
    use_cpu(&fixture, "9P").await;
    let (_, mut web) = fixture.get(&format!("{DEPLOYMENTS}/web")).await;
    web["metadata"] = json!({"name": "another"});
    web["spec"]["replicas"] = json!(1);
    web["spec"]["selector"] = json!({"matchLabels": {"app": "another"}});
    web["spec"]["template"]["metadata"]["labels"] = json!({"app": "another"});
    assert_eq!(fixture.post(DEPLOYMENTS, web).await.0, 201);
    fixture.until(&format!("{DEPLOYMENTS}/another"), |_, one| one["status"]["readyReplicas"] == 1).await;
}

#[tokio::test]
async fn the_metrics_of_a_pod_go_with_it_and_a_scale_is_its_own_write() {
    let fixture = start().await;
    fixture.until(&format!("{DEPLOYMENTS}/web"), |_, one| one["status"]["readyReplicas"] == 1).await;
    use_cpu(&fixture, "150m").await;
    scaled_to(&fixture, 3).await;
    let (_, web) = fixture.get(&format!("{DEPLOYMENTS}/web")).await;
    let managed = web["metadata"]["managedFields"].as_array().into_iter().flatten();
    let scale = json!({"f:spec": {"f:replicas": {}}});
    let by_scale: Vec<&Value> = managed.filter(|entry| entry["fieldsV1"] == scale).collect();
    assert_eq!(by_scale.len(), 1, "{web}");
    assert_eq!(by_scale[0]["subresource"], "scale");
    fixture.delete(PODS).await;
    fixture.until(METRICS, |_, metrics| metrics["items"] == json!([])).await;
}

/// Its usage did not count, as if it were starting.
#[tokio::test]
async fn a_pod_that_was_ready_counts_when_it_is_no_longer() {
    let fixture = start().await;
    fixture.until(&format!("{DEPLOYMENTS}/web"), |_, one| one["status"]["readyReplicas"] == 1).await;
    let (_, pods) = fixture.get(PODS).await;
    let path = format!("{PODS}/{}/status", pods["items"][0]["metadata"]["name"].as_str().expect("a name"));
    let turned = "2020-01-02T00:00:00Z";
    let ready = json!({"type": "Ready", "status": "False", "lastTransitionTime": turned});
    let status = json!({"startTime": "2020-01-01T00:00:00Z", "conditions": [ready]});
    assert_eq!(fixture.merge(&path, json!({"status": status})).await.0, 200);
    use_cpu(&fixture, "150m").await;
    fixture.until(&format!("{DEPLOYMENTS}/web"), |_, one| one["spec"]["replicas"] == 3).await;
}

#[tokio::test]
async fn two_autoscalers_of_one_target_do_nothing() {
    let fixture = start().await;
    let (_, mut web) = fixture.get(&format!("{AUTOSCALERS}/web")).await;
    web["metadata"] = json!({"name": "other"});
    assert_eq!(fixture.post(AUTOSCALERS, web).await.0, 201);
    let message = "pods by selector app=web are controlled by multiple HPAs: [default/other default/web]";
    let is_ambiguous = |_: u16, one: &Value| {
        let conditions = one["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.iter().any(|one| one["reason"] == "AmbiguousSelector" && one["message"] == message)
    };
    for name in ["other", "web"] {
        fixture.until(&format!("{AUTOSCALERS}/{name}"), is_ambiguous).await;
    }
    fixture.delete(&format!("{AUTOSCALERS}/web")).await;
    fixture.until(&format!("{AUTOSCALERS}/other"), |code, one| !is_ambiguous(code, one)).await;
    use_cpu(&fixture, "150m").await;
    fixture.until(&format!("{DEPLOYMENTS}/web"), |_, one| one["spec"]["replicas"] == 3).await;
}
