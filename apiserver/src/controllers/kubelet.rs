//! The simulated kubelet, and the binding of Pods to its one node: new Pods are scheduled at once, if they fit (see `scheduler.rs`), and
//! become ready.
//!
//! To show a rollout that gets stuck, a Pod can fail. An image with `does-not-exist` in its name cannot be pulled. An
//! image name that cannot be parsed (`nginx:`) is not pulled at all. The annotation `listwatch/simulate` can be `crash`
//! or `unready`. The Pods of a Job end. Retries have the intervals and messages of the kubelet.

use std::{collections::HashMap, time::Duration};

use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    Controllers, change, delete, make, owners, record, record_warning, scheduler, simulation, uid, volume,
};
use crate::{
    discovery::GIT_VERSION,
    kinds::{
        Part,
        conditions::{set_condition, set_pod_condition},
        field_checks::{each, is_empty, text},
        metadata::is_terminating,
        pods::is_gated,
    },
    storage::{Place, Storage},
    verbs::{bind::bind, delete::Deletion},
};

/// How often the kubelet renews its Lease: `nodeLeaseDurationSeconds` / 4. In an idle cluster, these writes raise the
/// resourceVersion, also in bookmarks.
pub(crate) const HEARTBEAT: Duration = Duration::from_secs(10);

/// The name of the simulated Node.
pub const NODE: &str = "node-1";

/// Images with this in their name do not exist.
const MISSING_IMAGE: &str = "does-not-exist";

pub(crate) fn node() -> Place {
    Place::new("nodes", None, NODE)
}

/// Creates the node and its Lease.
pub(crate) fn register(storage: &mut Storage) {
    // Those that every kubelet sets, as many Pods select them.
    let labels =
        json!({"kubernetes.io/hostname": NODE, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"});
    make(storage, "", "nodes", None, json!({"metadata": {"name": NODE, "labels": labels}}));
    let now = storage.clock.time();
    change(storage, &node(), Part::Status, |node| {
        node["status"] = json!({
            "capacity": {"cpu": "64", "memory": "256Gi", "pods": "10000"},
            "allocatable": {"cpu": "64", "memory": "256Gi", "pods": "10000"},
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}, {"type": "Hostname", "address": NODE}],
            "nodeInfo": {"kubeletVersion": GIT_VERSION, "operatingSystem": "linux", "architecture": "amd64"},
        });
        set_condition(node, "Ready", "True", "KubeletReady", "kubelet is posting ready status", &now);
        node["status"]["conditions"][0]["lastHeartbeatTime"] = now.as_str().into();
    });
    // Removes the taint of admission, as the node lifecycle controller does.
    change(storage, &node(), Part::Main, |node| node["spec"] = json!({}));
    let renewed = storage.clock.micro_time();
    let lease = json!({"metadata": {"name": NODE},
        "spec": {"holderIdentity": NODE, "leaseDurationSeconds": 40, "renewTime": renewed}});
    make(storage, "coordination.k8s.io", "leases", Some("kube-node-lease"), lease);
}

/// Renews the Lease of the node.
pub(crate) fn heartbeat(controllers: &mut Controllers, storage: &mut Storage) {
    if controllers.due.contains_key(&node()) {
        return;
    }
    let lease = Place::new("leases.coordination.k8s.io", Some("kube-node-lease"), NODE);
    let now = storage.clock.micro_time();
    change(storage, &lease, Part::Main, |lease| lease["spec"]["renewTime"] = now.into());
    controllers.requeue(&node(), controllers.heartbeat);
}

/// Reconciles a Pod: schedules, starts or deletes it.
pub(crate) fn pod(controllers: &mut Controllers, storage: &mut Storage, place: &Place, pod: &Value) {
    if is_terminating(pod) {
        // The containers stop at once. A grace period of zero confirms that.
        controllers.started.remove(uid(pod));
        delete(storage, place, &Deletion { grace_secs: Some(0), ..Deletion::default() });
        return;
    }
    if pod["spec"]["nodeName"].is_null() {
        if is_gated(&pod["spec"]) {
            return;
        }
        if let Some((claim, message)) = volume::unbound(storage, pod) {
            controllers.waiting.entry(claim).or_default().insert(place.clone());
            return unschedulable(storage, place, pod, &format!("0/1 nodes are available: {message}."));
        }
        if let Some(message) = scheduler::misfit(storage, &node(), pod) {
            controllers.waiting.entry(node()).or_default().insert(place.clone());
            return unschedulable(storage, place, pod, &message);
        }
        let now = storage.clock.time();
        let kind = storage.kinds.built_in("", "pods");
        let binding = json!({"metadata": {"name": place.name()}, "target": {"name": NODE}});
        if let Err(error) = bind(storage, &kind, place, &binding, false) {
            tracing::debug!(%place, why = error.message(), "the scheduler could not bind");
            return;
        }
        change(storage, place, Part::Status, |pod| pod["status"]["startTime"] = now.as_str().into());
        let message = format!("Successfully assigned {} to {NODE}", place.key);
        record(storage, pod, "default-scheduler", "Scheduled", &message);
        return;
    }
    let is_new = !pod["status"]["containerStatuses"].is_array();
    if !is_new && !controllers.started.contains_key(uid(pod)) {
        return resize(storage, place, pod);
    }
    let seen = *controllers.started.entry(uid(pod).to_owned()).or_insert_with(Instant::now);
    let left = controllers.pod_start.saturating_sub(seen.elapsed());
    if !left.is_zero() {
        controllers.requeue(place, left);
        return;
    }
    let cycle = Cycle::after(seen.elapsed() - controllers.pod_start);
    let fails = start(storage, place, &cycle);
    let is_running = |storage: &Storage| {
        storage.get(place).is_some_and(|pod| {
            let mut statuses = pod["status"]["containerStatuses"].as_array().into_iter().flatten();
            statuses.all(|status| status["state"].get("running").is_some())
        })
    };
    if let Some(code) = exit_code(pod).filter(|_| is_running(storage)) {
        let left = (controllers.pod_start * 2).saturating_sub(seen.elapsed());
        if left.is_zero() {
            end(storage, place, code);
            controllers.started.remove(uid(pod));
        } else {
            controllers.requeue(place, left);
        }
    } else if fails {
        controllers.requeue(place, cycle.left);
    } else {
        controllers.started.remove(uid(pod));
    }
    if is_new {
        let started = storage.get(place).map(|pod| pod["status"].clone()).unwrap_or_default();
        for status in each(&started["initContainerStatuses"]).chain(each(&started["containerStatuses"])) {
            if status["state"]["waiting"]["reason"] == "ErrImagePull" {
                let image = status["image"].as_str().unwrap_or_default();
                let message = format!("Failed to pull image {image:?}: {}", not_found(image));
                record_warning(storage, pod, "kubelet", "Failed", &message);
                record_warning(storage, pod, "kubelet", "Failed", "Error: ErrImagePull");
            }
        }
    }
}

/// Reports why the scheduler does not schedule a Pod.
fn unschedulable(storage: &mut Storage, place: &Place, pod: &Value, message: &str) {
    let known = pod["status"]["conditions"].as_array().into_iter().flatten();
    if known.into_iter().any(|condition| condition["message"] == message) {
        return;
    }
    let now = storage.clock.time();
    change(storage, place, Part::Status, |pod| {
        set_condition(pod, "PodScheduled", "False", "Unschedulable", message, &now);
    });
    record_warning(storage, pod, "default-scheduler", "FailedScheduling", message);
}

/// The exit code of the containers of a Pod that ends. The Pod of a Job succeeds, unless it crashes. A crash ends any Pod
/// whose containers are never restarted.
fn exit_code(pod: &Value) -> Option<u8> {
    let restarts = pod["spec"]["restartPolicy"].as_str().unwrap_or_default();
    let is_of_job = owners(pod).any(|owner| owner["kind"] == "Job" && owner["controller"] == true);
    match simulation(pod) {
        "crash" => (restarts == "Never").then_some(1),
        "unready" => None,
        _ => (is_of_job && restarts != "Always").then_some(0),
    }
}

/// Ends all containers of a Pod.
fn end(storage: &mut Storage, place: &Place, code: u8) {
    let now = storage.clock.time();
    let (phase, why, reason) =
        if code == 0 { ("Succeeded", "PodCompleted", "Completed") } else { ("Failed", "PodFailed", "Error") };
    change(storage, place, Part::Status, |pod| {
        pod["status"]["phase"] = phase.into();
        for status in pod["status"]["containerStatuses"].as_array_mut().into_iter().flatten() {
            terminate(status, code, reason, &now);
        }
        // The kubelet ends the sidecars after the containers.
        for status in pod["status"]["initContainerStatuses"].as_array_mut().into_iter().flatten() {
            if status["state"]["running"].is_object() {
                terminate(status, 0, "Completed", &now);
            }
        }
        set_pod_condition(pod, "Ready", "False", Some(why), &now);
        set_pod_condition(pod, "ContainersReady", "False", Some(why), &now);
    });
}

/// Reports the resources of the containers after a resize.
fn resize(storage: &mut Storage, place: &Place, pod: &Value) {
    let mut resized = Vec::new();
    for (list, of) in [("initContainers", "initContainerStatuses"), ("containers", "containerStatuses")] {
        let containers: HashMap<&str, &Value> =
            each(&pod["spec"][list]).map(|one| (text(&one["name"]), one)).collect();
        for (index, status) in each(&pod["status"][of]).enumerate() {
            let Some(container) = containers.get(text(&status["name"])) else { continue };
            let (wanted, known) = (&container["resources"], &status["resources"]);
            if !known.is_null() && known != wanted && !(wanted.is_null() && is_empty(known)) {
                resized.push((of, index, wanted));
            }
        }
    }
    if !resized.is_empty() {
        change(storage, place, Part::Status, |pod| {
            for (of, index, wanted) in resized {
                pod["status"][of][index]["resources"] =
                    if wanted.is_null() { json!({}) } else { wanted.clone() };
            }
        });
    }
}

/// What a running container has. Without it, kube-apiserver refuses a resize.
fn resources(container: &Value) -> Value {
    if container["resources"].is_null() { json!({}) } else { container["resources"].clone() }
}

/// The state of a container that fails again and again: each try is followed by a longer pause.
struct Cycle {
    /// Failed tries before this one.
    failures: u32,
    is_waiting: bool,
    /// The pause between this try and the next one.
    pause: Duration,
    /// The time until the state changes.
    left: Duration,
}

impl Cycle {
    /// How long a crashing container runs, and how long `ErrImagePull` is shown.
    const TRY: Duration = Duration::from_secs(5);
    /// The first and the longest pause between two tries, as in the kubelet.
    const PAUSE: Duration = Duration::from_secs(10);
    const PAUSE_MAX: Duration = Duration::from_secs(300);

    fn after(mut elapsed: Duration) -> Cycle {
        let (mut failures, mut pause) = (0, Cycle::PAUSE);
        loop {
            for (is_waiting, lasts) in [(false, Cycle::TRY), (true, pause)] {
                if elapsed < lasts {
                    return Cycle { failures, is_waiting, pause, left: lasts - elapsed };
                }
                elapsed -= lasts;
            }
            failures += 1;
            pause = (pause * 2).min(Cycle::PAUSE_MAX);
        }
    }
}

/// containerd's message for an image that the registry does not have.
fn not_found(image: &str) -> String {
    let full = if image.contains(':') { image.to_owned() } else { format!("{image}:latest") };
    let full = if image.contains('/') { full } else { format!("docker.io/library/{full}") };
    format!(
        "rpc error: code = NotFound desc = failed to pull and unpack image {full:?}: failed to resolve reference {full:?}: \
         {full}: not found"
    )
}

/// Why the name of an image cannot be parsed, as in `ParseNormalizedNamed` of github.com/distribution/reference.
fn image_problem(image: &str) -> Option<String> {
    let path = match image.split_once('/') {
        Some((host, path)) if host == "localhost" || host.contains(['.', ':']) || !is_lower(host) => path,
        Some(_) | None => image,
    };
    let (named, digest) = path.split_once('@').map_or((path, None), |(named, digest)| (named, Some(digest)));
    let (name, tag) = named.split_once(':').map_or((named, None), |(name, tag)| (name, Some(tag)));
    if !is_lower(name) {
        let library = if image.contains('/') { "" } else { "library/" };
        return Some(format!(
            "invalid reference format: repository name ({library}{name}) must be lowercase"
        ));
    }
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let is_component = |text: &str| {
        let is_inner = |c: char| is_word(c) || matches!(c, '.' | '-');
        let is_outer = |c: char| c.is_ascii_alphanumeric();
        text.starts_with(is_outer)
            && text.ends_with(is_outer)
            && text.chars().all(is_inner)
            && !text.contains("..")
    };
    let is_tag = |tag: &str| {
        (1..=128).contains(&tag.len())
            && tag.starts_with(is_word)
            && tag.chars().all(|c| is_word(c) || matches!(c, '.' | '-'))
    };
    let is_digest = |digest: &str| {
        let hex = digest.split_once(':').map_or("", |(_, hex)| hex);
        hex.len() >= 32 && hex.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    let is_valid =
        name.split('/').all(is_component) && tag.is_none_or(is_tag) && digest.is_none_or(is_digest);
    (!is_valid).then(|| "invalid reference format".to_owned())
}

fn is_lower(text: &str) -> bool {
    !text.contains(|c: char| c.is_ascii_uppercase())
}

/// Sets the states of the containers. Returns whether one of them will change again.
fn start(storage: &mut Storage, place: &Place, cycle: &Cycle) -> bool {
    let now = storage.clock.time();
    let mut fails = false;
    change(storage, place, Part::Status, |pod| {
        let (incomplete, statuses) = init_statuses(pod, cycle, place, &now);
        fails = !incomplete.is_empty();
        if !statuses.is_empty() {
            pod["status"]["initContainerStatuses"] = statuses.into();
        }
        let simulate = if exit_code(pod).is_some() { "" } else { simulation(pod) };
        let mut statuses = Vec::new();
        for (index, container) in each(&pod["spec"]["containers"]).enumerate() {
            let image = container["image"].as_str().unwrap_or_default();
            let status = if incomplete.is_empty() {
                fails |=
                    image_problem(image).is_none() && (image.contains(MISSING_IMAGE) || simulate == "crash");
                container_status(container, simulate, cycle, place, &now)
            } else {
                waits_for_init(container)
            };
            statuses.push(with_known_times(status, &pod["status"]["containerStatuses"][index]));
        }
        let sidecars = each(&pod["status"]["initContainerStatuses"]);
        let all_ready = sidecars.chain(&statuses).all(|status| status["ready"] == true);
        let (ready, why) = if all_ready { ("True", None) } else { ("False", Some("ContainersNotReady")) };
        // A crashed container has run.
        let has_run = statuses.iter().any(|status| status["started"] == true || status["restartCount"] != 0);
        pod["status"]["phase"] = if has_run { "Running" } else { "Pending" }.into();
        pod["status"]["containerStatuses"] = statuses.into();
        pod["status"]["hostIP"] = "127.0.0.1".into();
        if pod["status"]["podIP"].is_null() {
            let address = format!("10.244.{}.{}", fastrand::u8(..), fastrand::u8(1..));
            pod["status"]["podIPs"] = json!([{"ip": address}]);
            pod["status"]["podIP"] = address.into();
        }
        if incomplete.is_empty() {
            set_pod_condition(pod, "Initialized", "True", None, &now);
        } else {
            let message = format!("containers with incomplete status: [{}]", incomplete.join(" "));
            set_condition(pod, "Initialized", "False", "ContainersNotInitialized", &message, &now);
        }
        set_pod_condition(pod, "Ready", ready, why, &now);
        set_pod_condition(pod, "ContainersReady", ready, why, &now);
    });
    fails
}

/// The states of the init containers, one after the other: each one ends, but a sidecar goes on. The first result names those that have
/// not done so.
fn init_statuses(pod: &Value, cycle: &Cycle, place: &Place, now: &str) -> (Vec<String>, Vec<Value>) {
    let (mut incomplete, mut statuses) = (Vec::new(), Vec::new());
    for (index, container) in each(&pod["spec"]["initContainers"]).enumerate() {
        let mut status = match incomplete.is_empty() {
            true => container_status(container, "", cycle, place, now),
            false => waits_for_init(container),
        };
        if status["state"]["running"].is_null() {
            incomplete.push(container["name"].as_str().unwrap_or_default().to_owned());
        } else if container["restartPolicy"] != "Always" {
            terminate(&mut status, 0, "Completed", now);
            status["ready"] = true.into();
        }
        statuses.push(with_known_times(status, &pod["status"]["initContainerStatuses"][index]));
    }
    (incomplete, statuses)
}

/// A status that says what the known one says keeps the times of that.
fn with_known_times(status: Value, known: &Value) -> Value {
    let is_same = |pointer| status.pointer(pointer) == known.pointer(pointer);
    if is_same("/restartCount") && is_same("/state/waiting/reason") { known.clone() } else { status }
}

fn waits_for_init(container: &Value) -> Value {
    json!({"name": container["name"], "image": container["image"], "imageID": "", "ready": false, "started": false,
        "restartCount": 0, "lastState": {}, "state": {"waiting": {"reason": "PodInitializing"}}})
}

fn terminate(status: &mut Value, code: u8, reason: &str, now: &str) {
    let started = status["state"]["running"]["startedAt"].clone();
    status["ready"] = false.into();
    status["started"] = false.into();
    status["state"] = json!({"terminated": {"exitCode": code, "reason": reason, "startedAt": started,
        "finishedAt": now}});
}

fn container_status(container: &Value, simulate: &str, cycle: &Cycle, place: &Place, now: &str) -> Value {
    let name = container["name"].as_str().unwrap_or_default();
    let image = container["image"].as_str().unwrap_or_default();
    let waits = |reason: &str, message: String| json!({"waiting": {"reason": reason, "message": message}});
    let runs = || json!({"running": {"startedAt": now}});
    let (mut restarts, mut last_state) = (0, json!({}));
    let state = if let Some(problem) = image_problem(image) {
        let message = format!(
            "Failed to apply default image tag {image:?}: couldn't parse image name {image:?}: {problem}"
        );
        waits("InvalidImageName", message)
    } else if image.contains(MISSING_IMAGE) {
        match cycle.is_waiting {
            false => waits("ErrImagePull", not_found(image)),
            true => waits(
                "ImagePullBackOff",
                format!("Back-off pulling image {image:?}: ErrImagePull: {}", not_found(image)),
            ),
        }
    } else if simulate == "crash" {
        // The first crash comes at once.
        restarts = cycle.failures + 1;
        last_state =
            json!({"terminated": {"exitCode": 1, "reason": "Error", "startedAt": now, "finishedAt": now}});
        if cycle.is_waiting || cycle.failures == 0 {
            let (namespace, pod) = (place.namespace().unwrap_or_default(), place.name());
            let pause = format!("{}m{}s", cycle.pause.as_secs() / 60, cycle.pause.as_secs() % 60);
            let pause = pause.trim_start_matches("0m");
            waits(
                "CrashLoopBackOff",
                format!("back-off {pause} restarting failed container={name} pod={pod}_{namespace}"),
            )
        } else {
            runs()
        }
    } else {
        runs()
    };
    let is_running = state.get("running").is_some();
    let is_ready = is_running && !matches!(simulate, "crash" | "unready");
    let mut status = json!({"name": name, "image": image, "imageID": "", "ready": is_ready, "started": is_running,
        "restartCount": restarts, "lastState": last_state, "state": state});
    if is_running {
        status["resources"] = resources(container);
    }
    status
}
