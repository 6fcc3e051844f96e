//! What one request could do to everybody: requests that stopped the process, or the server, or its controllers.

use super::*;

const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
const PODS: &str = "/api/v1/namespaces/default/pods";

/// The task of the controllers panicked, and from then on nothing was ever rolled out or collected.
#[tokio::test]
async fn a_pod_with_thousands_of_years_to_stop_stops() {
    let world = World::start().await;
    for (name, secs) in [("one", 300_000_000_000_i64), ("two", i64::MAX)] {
        let mut object = deployment("nginx:1");
        object["metadata"]["name"] = name.into();
        object["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = secs.into();
        assert_eq!(world.post(DEPLOYMENTS, object).await.0, 201);
        let item = format!("{DEPLOYMENTS}/{name}");
        world.until(&item, |_, object| object["status"]["availableReplicas"] == 3).await;
        world.merge(&item, json!({"spec": {"replicas": 0}})).await;
        world.until(PODS, |_, pods| pods["items"] == json!([])).await;
    }
}

/// The server made Pods until the memory was full, and answered nobody meanwhile.
#[tokio::test]
async fn two_thousand_million_replicas_leave_time_for_others() {
    let world = World::start().await;
    let mut object = deployment("nginx:1");
    object["spec"]["replicas"] = i32::MAX.into();
    assert_eq!(world.post(DEPLOYMENTS, object).await.0, 201);
    world.until(PODS, |_, pods| pods["items"].as_array().is_some_and(|pods| !pods.is_empty())).await;
    assert_eq!(world.delete(&format!("{DEPLOYMENTS}/web")).await.0, 200);
}
