//! The simulated kubelet, and the scheduler for its one node: Pods run as soon as they are made.
//!
//! So that a rollout that gets stuck can be seen, a Pod can be made to fail: an image whose name contains `does-not-exist`
//! cannot be pulled; and the annotation `listwatch/simulate` says `crash` or `unready`.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    super::{
        delete::Deletion,
        storage::{Place, Storage},
        write::{Part, is_terminating},
    },
    Controllers, change, delete, make, set_condition, tell, uid, warn,
};

/// The kubelet renews its Lease this often: `nodeLeaseDurationSeconds` / 4. In a cluster it is what moves the
/// resourceVersion while nothing else happens, and with it the bookmarks.
pub(in super::super) const HEARTBEAT: Duration = Duration::from_secs(10);

const NODE: &str = "node-1";

/// What becomes of a Pod, if it is not to run.
const SIMULATE: &str = "listwatch/simulate";

/// Images with this in their name are in no registry.
const MISSING_IMAGE: &str = "does-not-exist";

pub(super) fn node() -> Place {
    Place::new("nodes", None, NODE)
}

/// The node and its Lease.
pub(super) fn register(storage: &mut Storage) {
    make(
        storage,
        "",
        "nodes",
        None,
        json!({"metadata": {"name": NODE, "labels": {"kubernetes.io/hostname": NODE}}}),
    );
    let now = storage.clock.time();
    change(storage, &node(), Part::Status, |node| {
        node["status"] = json!({
            "capacity": {"cpu": "8", "memory": "16Gi", "pods": "1000"},
            "allocatable": {"cpu": "8", "memory": "16Gi", "pods": "1000"},
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}, {"type": "Hostname", "address": NODE}],
            "nodeInfo": {"kubeletVersion": "v1.36.0-listwatch", "operatingSystem": "linux", "architecture": "amd64"},
        });
        set_condition(node, "Ready", "True", "KubeletReady", "kubelet is posting ready status", &now);
        node["status"]["conditions"][0]["lastHeartbeatTime"] = now.as_str().into();
    });
    // A node lifecycle controller takes away what admission has put on.
    change(storage, &node(), Part::Main, |node| node["spec"] = json!({}));
    let renewed = storage.clock.micro_time();
    let lease = json!({"metadata": {"name": NODE},
        "spec": {"holderIdentity": NODE, "leaseDurationSeconds": 40, "renewTime": renewed}});
    make(storage, "coordination.k8s.io", "leases", Some("kube-node-lease"), lease);
}

/// Say that the node is alive.
pub(super) fn heartbeat(controllers: &mut Controllers, storage: &mut Storage) {
    if controllers.due.contains_key(&node()) {
        return;
    }
    let lease = Place::new("leases.coordination.k8s.io", Some("kube-node-lease"), NODE);
    let now = storage.clock.micro_time();
    change(storage, &lease, Part::Main, |lease| lease["spec"]["renewTime"] = now.into());
    controllers.look_again(&node(), controllers.heartbeat);
}

/// Bring a Pod one step further.
pub(super) fn pod(controllers: &mut Controllers, storage: &mut Storage, place: &Place, pod: &Value) {
    if is_terminating(pod) {
        // Its containers stop at once; a grace period of zero says that they have.
        controllers.started.remove(uid(pod));
        delete(storage, place, &Deletion { grace_secs: Some(0), ..Deletion::default() });
        return;
    }
    if pod["spec"]["nodeName"].is_null() {
        let now = storage.clock.time();
        change(storage, place, Part::Binding, |pod| pod["spec"]["nodeName"] = NODE.into());
        change(storage, place, Part::Status, |pod| {
            set_pod_condition(pod, "PodScheduled", "True", None, &now);
            pod["status"]["startTime"] = now.as_str().into();
        });
        let message = format!("Successfully assigned {} to {NODE}", place.key);
        tell(storage, pod, "default-scheduler", "Scheduled", &message);
        return;
    }
    if pod["status"]["phase"] != "Pending" || pod["status"]["containerStatuses"].is_array() {
        return;
    }
    let started = *controllers.started.entry(uid(pod).to_owned()).or_insert_with(Instant::now);
    let left = controllers.pod_start.saturating_sub(started.elapsed());
    if !left.is_zero() {
        controllers.look_again(place, left);
        return;
    }
    controllers.started.remove(uid(pod));
    start(storage, place);
    for container in pod["spec"]["containers"].as_array().into_iter().flatten() {
        let image = container["image"].as_str().unwrap_or_default();
        if image.contains(MISSING_IMAGE) {
            let message = format!("Failed to pull image {image:?}: {}", not_found(image));
            warn(storage, pod, "kubelet", "Failed", &message);
            warn(storage, pod, "kubelet", "Failed", "Error: ErrImagePull");
        }
    }
}

/// What the registry says of an image that it does not have.
fn not_found(image: &str) -> String {
    format!("failed to pull image {image:?}: {image}: not found")
}

fn start(storage: &mut Storage, place: &Place) {
    let now = storage.clock.time();
    change(storage, place, Part::Status, |pod| {
        let simulate = pod["metadata"]["annotations"][SIMULATE].as_str().unwrap_or_default();
        let mut statuses = Vec::new();
        for container in pod["spec"]["containers"].as_array().into_iter().flatten() {
            statuses.push(container_status(container, simulate, &now));
        }
        let all_ready = statuses.iter().all(|status| status["ready"] == true);
        let (ready, why) = if all_ready { ("True", None) } else { ("False", Some("ContainersNotReady")) };
        // One that crashed has run.
        let has_run = statuses.iter().any(|status| status["started"] == true || status["restartCount"] != 0);
        pod["status"]["phase"] = if has_run { "Running" } else { "Pending" }.into();
        pod["status"]["containerStatuses"] = statuses.into();
        pod["status"]["hostIP"] = "127.0.0.1".into();
        let address = format!("10.244.{}.{}", fastrand::u8(..), fastrand::u8(1..));
        pod["status"]["podIPs"] = json!([{"ip": address}]);
        pod["status"]["podIP"] = address.into();
        set_pod_condition(pod, "Initialized", "True", None, &now);
        set_pod_condition(pod, "Ready", ready, why, &now);
        set_pod_condition(pod, "ContainersReady", ready, why, &now);
    });
}

fn container_status(container: &Value, simulate: &str, now: &str) -> Value {
    let (name, image) = (&container["name"], container["image"].as_str().unwrap_or_default());
    let waits = |reason: &str, message: String| json!({"waiting": {"reason": reason, "message": message}});
    let (mut restarts, mut last_state) = (0, json!({}));
    let state = if image.contains(MISSING_IMAGE) {
        waits("ErrImagePull", not_found(image))
    } else if simulate == "crash" {
        restarts = 1;
        last_state =
            json!({"terminated": {"exitCode": 1, "reason": "Error", "startedAt": now, "finishedAt": now}});
        let name = name.as_str().unwrap_or_default();
        waits("CrashLoopBackOff", format!("back-off 10s restarting failed container={name}"))
    } else {
        json!({"running": {"startedAt": now}})
    };
    let runs = state.get("running").is_some();
    json!({"name": name, "image": image, "imageID": "", "ready": runs && simulate != "unready", "started": runs,
        "restartCount": restarts, "lastState": last_state, "state": state})
}

fn set_pod_condition(pod: &mut Value, kind: &str, status: &str, reason: Option<&str>, now: &str) {
    set_condition(pod, kind, status, reason.unwrap_or_default(), "", now);
    let conditions = pod["status"]["conditions"].as_array_mut();
    for condition in conditions.into_iter().flatten().filter_map(Value::as_object_mut) {
        condition.retain(|field, value| !matches!(field.as_str(), "reason" | "message") || *value != "");
    }
}
