//! What no kube-apiserver without a node can show: claims that are bound, and Pods that run.

use serde_json::{Value, json};

use super::World;

const SETS: &str = "/apis/apps/v1/namespaces/default/statefulsets";
const PODS: &str = "/api/v1/namespaces/default/pods";
const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims";

fn stateful_set(replicas: u64) -> Value {
    let claim = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
    json!({"metadata": {"name": "db"}, "spec": {
        "replicas": replicas, "selector": {"matchLabels": {"app": "db"}},
        "template": {"metadata": {"labels": {"app": "db"}}, "spec": {"containers": [{"name": "c", "image": "postgres:15"}]}},
        "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": claim}],
    }})
}

fn is_available(replicas: u64) -> impl Fn(u16, &Value) -> bool {
    move |_, set| {
        let status = &set["status"];
        status["availableReplicas"] == replicas && status["replicas"] == replicas
    }
}

#[tokio::test]
async fn a_claim_is_bound_grows_and_outlives_its_stateful_set() {
    let world = World::start().await;
    world.post(SETS, stateful_set(3)).await;
    world.until(&format!("{SETS}/db"), is_available(3)).await;
    let claim = format!("{CLAIMS}/data-db-2");
    let (_, bound) = world.get(&claim).await;
    assert_eq!(bound["status"]["phase"], "Bound");
    assert_eq!(bound["status"]["capacity"]["storage"], "1Gi");
    world.merge(&claim, json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}})).await;
    world.until(&claim, |_, claim| claim["status"]["capacity"]["storage"] == "2Gi").await;
    // A claim that a Pod uses is only marked.
    world.delete(&claim).await;
    let (status, held) = world.get(&claim).await;
    assert_eq!(status, 200);
    assert!(held["metadata"]["deletionTimestamp"].is_string());
    world.delete(&format!("{SETS}/db?propagationPolicy=Foreground")).await;
    world.until(&claim, |status, _| status == 404).await;
    let (_, kept) = world.get(CLAIMS).await;
    assert_eq!(kept["items"].as_array().map(Vec::len), Some(2));
}

#[tokio::test]
async fn a_pod_waits_for_a_claim_that_is_not_bound() {
    let world = World::start().await;
    let mut set = stateful_set(2);
    set["spec"]["volumeClaimTemplates"][0]["metadata"]["annotations"]["listwatch/simulate"] =
        "pending".into();
    world.post(SETS, set).await;
    let is_unschedulable = |_: u16, pod: &Value| pod["status"]["conditions"][0]["reason"] == "Unschedulable";
    let pod = world.until(&format!("{PODS}/db-0"), is_unschedulable).await;
    let message = "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims.";
    assert_eq!(pod["status"]["conditions"][0]["message"], message);
    let bind = json!({"metadata": {"annotations": {"listwatch/simulate": null}}});
    world.merge(&format!("{CLAIMS}/data-db-0"), bind.clone()).await;
    world.until(&format!("{SETS}/db"), |_, set| set["status"]["readyReplicas"] == 1).await;
    world.until(&format!("{PODS}/db-1"), is_unschedulable).await;
    world.merge(&format!("{CLAIMS}/data-db-1"), bind).await;
    world.until(&format!("{SETS}/db"), is_available(2)).await;
}

/// The successor of a Pod waits while the claim of its predecessor is being deleted.
#[tokio::test]
async fn a_claim_that_goes_with_its_pod_is_made_anew() {
    let world = World::start().await;
    let mut set = stateful_set(2);
    set["spec"]["persistentVolumeClaimRetentionPolicy"] = json!({"whenScaled": "Delete"});
    world.post(SETS, set).await;
    let db = format!("{SETS}/db");
    world.until(&db, is_available(2)).await;
    let (_, before) = world.get(&format!("{CLAIMS}/data-db-1")).await;
    world.merge(&db, json!({"spec": {"replicas": 1}})).await;
    world.merge(&db, json!({"spec": {"replicas": 2}})).await;
    world.until(&db, is_available(2)).await;
    world.merge(&db, json!({"spec": {"replicas": 1}})).await;
    world.until(&format!("{CLAIMS}/data-db-1"), |status, _| status == 404).await;
    world.merge(&db, json!({"spec": {"replicas": 2}})).await;
    world.until(&db, is_available(2)).await;
    let (_, after) = world.get(&format!("{CLAIMS}/data-db-1")).await;
    assert_ne!(before["metadata"]["uid"], after["metadata"]["uid"]);
}
