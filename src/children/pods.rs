//! Finds out why Pods do not run, in the words of Kubernetes: `ImagePullBackOff`, `CrashLoopBackOff`, `Unschedulable`,
//! `NodeNotReady`.
//!
//! ```text
//! GET /api/v1/namespaces/default/pods?labelSelector=…&limit=100&resourceVersion=1&resourceVersionMatch=NotOlderThan
//! ```
//!
//! A Deployment counts its Pods, but does not report why they fail. A watch of Pods would cost memory and a stream for
//! data that is rarely needed. So the Pods are listed, and only for an object that has not been ready for a while.
//! Some states alternate (a pull fails, then backs off; the back-off grows). They are reported with one constant
//! message, so that the status is not rewritten.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, OnceLock},
    time::{Duration, SystemTime},
};

use serde_json::{Value, json};
use smol_str::SmolStr;
use tokio::time::{Instant, timeout};
use tracing::{debug, warn};

use super::status::Reported;
use crate::{
    cluster::Cluster,
    locked,
    resource::{
        Condition, Scope, Uid, conditions,
        kinds::{
            Container, ContainerStateDetails as Details, ContainerStatus, Pod, PodSpec, PodStatus,
            WorkloadCondition as PodCondition,
        },
    },
};

/// Pause before the first look. Most rollouts are complete by then, and cost no request.
const FIRST_PAUSE: Duration = Duration::from_secs(5);
/// Longest pause between looks. A pause is as long as the object has not been ready, up to this limit.
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// Longest wait for a list of Pods, including its turn among the other lists. After it, the status is written without a
/// reason from the Pods, and the worker is free for other objects.
const LOOK_LIMIT: Duration = Duration::from_secs(10);
/// Most Pods that are listed for a Deployment: about a megabyte of JSON. A list is sorted by name, and so by
/// ReplicaSet: with a smaller limit, it would more often contain only old Pods.
const PODS_MAX: u32 = 100;
/// A container that has run for less than this time may still be starting.
const START_TIME: Duration = Duration::from_secs(30);
/// A Pod that has not ended so long after its grace period does not end by itself. At the end of this period the kubelet kills the
/// containers; then it unmounts the volumes, and deletes the Pod.
const END_TIME: Duration = Duration::from_secs(30);
/// After this time the kubelet forgets that a container has crashed.
const CRASH_MEMORY: Duration = Duration::from_secs(600);
/// The reason of the condition `Ready` of a Pod whose node is lost. The kubelet always gives another one. The node controller changes the
/// status of a ready Pod, and no more.
const NODE_LOST: &str = "";
/// Most characters of a message.
const TEXT_LENGTH_MAX: usize = 1000;

/// The Pods that a workload creates, such as a Deployment.
pub struct PodsOf<'a> {
    /// Of the workload. A new generation is a new rollout.
    pub generation: i64,
    /// Selects them, as in the URL of a list. Empty: none of them is looked at.
    pub selector: String,
    /// The containers of the template.
    pub containers: &'a [Container],
    /// The Pod for which the others wait: its trouble comes before theirs, also if it has an earlier template.
    pub first: Option<&'a str>,
    /// A trouble that no status of a Pod shows: for example, that some of them do not exist. Reported only if the look
    /// before also found one: a Pod that is being replaced is missing for a moment.
    pub unseen: Option<Trouble>,
}

/// Why a Pod does not run.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Trouble {
    /// Of several troubles, the one with the lowest rank is reported.
    rank: u8,
    /// For programs.
    pub reason: SmolStr,
    /// For people.
    pub message: String,
}

impl Trouble {
    /// A trouble that this library does not know. It ranks after a failed pull or a crash loop.
    #[must_use]
    pub fn new(reason: &str, message: String) -> Trouble {
        let rank = match reason {
            "InvalidImageName" => 0,
            "ErrImageNeverPull" | "CreateContainerConfigError" => 1,
            "ImagePullBackOff" => 2,
            "CrashLoopBackOff" => 3,
            "Unschedulable" | "SchedulingGated" => 5,
            "ContainersNotReady" | "ReadinessGatesNotReady" | "PodTerminating" => 6,
            _ => 4,
        };
        Trouble { rank, reason: reason.into(), message: message.chars().take(TEXT_LENGTH_MAX).collect() }
    }

    /// The same, reported only if there is no other trouble.
    #[must_use]
    pub fn reported_last(self) -> Trouble {
        Trouble { rank: u8::MAX, ..self }
    }

    /// Whether only a change of the spec helps.
    pub(crate) fn is_final(&self) -> bool {
        self.reason == "InvalidImageName"
    }

    /// Keeps the message of the status if the new one differs only in words with digits: times, ports, names of Pods.
    fn with_known_message(self, before: &[Condition]) -> Trouble {
        let ready = conditions::find(before, "Ready").filter(|ready| ready.reason == self.reason);
        let reported = ready.and_then(|ready| ready.message.split_once(": ")).map(|(_, message)| message);
        match reported.filter(|reported| shape(reported).eq(shape(&self.message))) {
            Some(reported) => Trouble { message: reported.to_owned(), ..self },
            None => self,
        }
    }
}

/// The words of a message, except those with a digit.
fn shape(message: &str) -> impl Iterator<Item = &str> {
    let words = message.split(|c: char| !c.is_alphanumeric());
    words.filter(|word| !word.is_empty() && !word.contains(|c: char| c.is_ascii_digit()))
}

/// The worst trouble of all Pods, if any. If some Pods have the containers of the template, only those Pods count, and those that should
/// have ended or cannot end.
///
/// With few replicas, the Deployment controller keeps the Pods of the previous template until new ones are available.
/// If no Pod has the containers of the template, all Pods count, because admission may change the containers.
pub fn trouble<'a>(
    pods: impl IntoIterator<Item = &'a Pod>,
    wanted: &[Container],
    now: SystemTime,
) -> Option<Trouble> {
    let is_living = |pod: &&Pod| !pod.metadata.is_terminating() && !pod.has_ended();
    let wanted = json!(wanted);
    let is_wanted = |pod: &Pod| has_all(&json!(pod.spec.containers), &wanted);
    let all: Vec<&Pod> = pods.into_iter().collect();
    let living: Vec<&Pod> = all.iter().copied().filter(is_living).collect();
    let are_some_wanted = living.iter().any(|pod| is_wanted(pod));
    let counted = living.into_iter().filter(|pod| !are_some_wanted || is_wanted(pod));
    let unended = all.iter().filter_map(|pod| pod.unended(now));
    counted.filter_map(|pod| pod.trouble(now)).chain(unended).min()
}

/// Whether a Pod has everything that its template has. It may have more: admission adds the volume of the ServiceAccount's token.
fn has_all(pod: &Value, template: &Value) -> bool {
    match (pod, template) {
        (Value::Object(pod), Value::Object(template)) => {
            template.iter().all(|(field, wanted)| pod.get(field).is_some_and(|value| has_all(value, wanted)))
        }
        (Value::Array(pod), Value::Array(template)) => {
            template.iter().all(|wanted| pod.iter().any(|item| has_all(item, wanted)))
        }
        _ => pod == template,
    }
}

impl Pod {
    fn trouble(&self, now: SystemTime) -> Option<Trouble> {
        let PodStatus { conditions, init_container_statuses, container_statuses, .. } = &self.status;
        let scheduled = conditions.iter().find(|condition| condition.r#type == "PodScheduled");
        if let Some(PodCondition { reason, message, .. }) =
            scheduled.filter(|scheduled| scheduled.status == "False")
        {
            return Some(Trouble::new(reason, format!("no node for a Pod: {message}")));
        }
        // Readiness does not count for init containers: an ordinary one is not ready before it has ended, and its
        // status looks like a sidecar's.
        let init = init_container_statuses.iter().filter_map(|container| container.failure(now));
        let main = container_statuses.iter();
        let main = main.filter_map(|container| container.failure(now).or_else(|| container.unready(now)));
        let other = self.unready().and_then(|ready| match &*ready.reason {
            NODE_LOST => {
                Some(Trouble::new("NodeNotReady", format!("node {} does not respond", self.spec.node_name)))
            }
            "ReadinessGatesNotReady" => Some(Trouble::new(&ready.reason, ready.message.to_string())),
            _ => None,
        });
        init.chain(main).chain(other).min()
    }

    /// The condition `Ready`, if it is `False`.
    fn unready(&self) -> Option<&PodCondition> {
        let mut conditions = self.status.conditions.iter();
        conditions.find(|condition| condition.r#type == "Ready" && condition.status == "False")
    }

    /// Why a deleted Pod is still there, although its grace period is over or its node is lost. Five minutes after its node was lost, a Pod
    /// is deleted, and only the kubelet can say that its containers have ended: <https://kubernetes.io/docs/concepts/architecture/nodes/>.
    fn unended(&self, now: SystemTime) -> Option<Trouble> {
        let Pod { metadata, spec: PodSpec { node_name: node, .. }, .. } = self;
        let end: SystemTime = metadata.deletion_timestamp?.into();
        let is_lost = self.unready().is_some_and(|ready| ready.reason == NODE_LOST);
        if now < end + END_TIME && (!is_lost || self.has_ended()) {
            return None;
        }
        let (name, finalizers) = (&metadata.name, metadata.finalizers.join(", "));
        if !finalizers.is_empty() && (self.has_ended() || node.is_empty()) {
            let message = format!("Pod {name} is deleted, but keeps its finalizers: {finalizers}");
            return Some(Trouble::new("PodTerminating", message));
        }
        let reason = if is_lost { "NodeNotReady" } else { "PodTerminating" };
        let message = format!(
            "Pod {name} has not ended on node {node}, and may still run there: repair the node or, if it is off for ever, kubectl \
             delete node {node}"
        );
        Some(Trouble::new(reason, message))
    }

    fn has_ended(&self) -> bool {
        matches!(&*self.status.phase, "Failed" | "Succeeded")
    }
}

impl ContainerStatus {
    fn trouble(&self, reason: &str, text: &str) -> Trouble {
        Trouble::new(reason, format!("container {}: {text}", self.name))
    }

    /// Why the container does not run, or why it ended shortly before its restart.
    fn failure(&self, now: SystemTime) -> Option<Trouble> {
        let last = self.last_state.terminated.as_ref();
        if let Some(Details { reason, message, .. }) = &self.state.waiting {
            return match &**reason {
                "" | "ContainerCreating" | "PodInitializing" => None,
                "ErrImagePull" | "ImagePullBackOff" | "RegistryUnavailable" | "SignatureValidationFailed" => {
                    Some(self.trouble("ImagePullBackOff", pull_error(message)))
                }
                "CrashLoopBackOff" | "RunContainerError" => {
                    Some(self.trouble("CrashLoopBackOff", &last.map_or(message.clone(), exit)))
                }
                other => Some(self.trouble(other, message)),
            };
        }
        let ended = match &self.state.terminated {
            // Except an init container that is done.
            Some(ended) => Some(ended).filter(|ended| ended.exit_code != 0 || !self.ready),
            None => last.filter(|_| !self.ready && self.restart_count > 0 && self.runs(now) < CRASH_MEMORY),
        };
        ended.map(|ended| self.trouble("CrashLoopBackOff", &exit(ended)))
    }

    fn unready(&self, now: SystemTime) -> Option<Trouble> {
        let is_late = self.started && !self.ready && self.runs(now) >= START_TIME;
        let text = "runs, but its readiness probe fails: does it listen on the port?";
        is_late.then(|| self.trouble("ContainersNotReady", text))
    }

    /// How long the container has been running.
    fn runs(&self, now: SystemTime) -> Duration {
        let age = self.state.running.as_ref().and_then(|running| age(running.started_at.as_deref()?, now));
        age.unwrap_or_default()
    }
}

/// The age of a time. `None`: not a time, or the time is in the future.
fn age(time: &str, now: SystemTime) -> Option<Duration> {
    now.duration_since(listwatch_formats::time::parse_time(time).ok()?).ok()
}

/// `exited with code 1 (Error)`, and its termination message.
fn exit(ended: &Details) -> String {
    let Details { exit_code, reason, message, .. } = ended;
    let colon = if message.trim().is_empty() { "" } else { ": " };
    format!("exited with code {exit_code} ({reason}){colon}{}", message.trim())
}

/// The error of a pull, without the prefixes of kubelet and gRPC.
fn pull_error(message: &str) -> &str {
    let backs_off = message.strip_prefix("Back-off pulling image ").and_then(|rest| rest.split_once("\": "));
    let error =
        backs_off.and_then(|(_image, rest)| rest.split_once(": ")).map_or(message, |(_reason, error)| error);
    let grpc = error.strip_prefix("rpc error: code = ").and_then(|rest| rest.split_once(" desc = "));
    grpc.map_or(error, |(_code, error)| error)
}

/// The objects that wait for their Pods.
#[derive(Default)]
pub(crate) struct Looks {
    all: Mutex<HashMap<Uid, Look>>,
    /// Set once the missing permission has been logged.
    warned: OnceLock<()>,
}

#[derive(Clone)]
struct Look {
    /// Of the Deployment or StatefulSet.
    generation: i64,
    since: Instant,
    next: Instant,
    found: Option<Trouble>,
    /// Whether there was a trouble that no status of a Pod shows.
    had_unseen: bool,
}

impl Looks {
    /// Lists the Pods, if the pause is over. Returns why they do not run, if known, and the pause until the next look.
    pub(super) async fn look<O: Reported>(
        &self,
        cluster: &Cluster,
        owner: &O,
        wanted: &PodsOf<'_>,
    ) -> (Option<Trouble>, Duration) {
        let metadata = owner.metadata();
        let mut look = self.known(cluster, owner, wanted.generation);
        let left = look.next.saturating_duration_since(Instant::now());
        if !left.is_zero() {
            return (look.found, left);
        }
        let scope = Scope {
            namespace: metadata.namespace.as_ref().map(ToString::to_string),
            labels: wanted.selector.clone(),
            ..Scope::default()
        };
        let pause = look.since.elapsed().clamp(FIRST_PAUSE, PAUSE_MAX);
        match timeout(LOOK_LIMIT, cluster.list_live::<Pod>(&scope, PODS_MAX)).await {
            Ok(Ok(pods)) => {
                let pods = pods.iter().map(Arc::as_ref);
                let unseen = wanted.unseen.clone().filter(|_| look.had_unseen);
                look.had_unseen = wanted.unseen.is_some();
                let first = pods.clone().filter(|pod| wanted.first == Some(&*pod.metadata.name));
                let found = trouble(first, &[], cluster.now()).or_else(|| {
                    trouble(pods, wanted.containers, cluster.now()).into_iter().chain(unseen).min()
                });
                look.found = found.map(|trouble| trouble.with_known_message(O::observed(owner.status()).1));
            }
            Ok(Err(error)) if error.is_forbidden() => {
                look.found = None;
                let remedy = "cannot say why Pods do not run: grant the verb list on the resource pods";
                self.warned.get_or_init(|| warn!(%error, "{remedy}"));
            }
            Ok(Err(error)) => debug!(key = %owner.key(), %error, "cannot say why Pods do not run"),
            Err(_) => debug!(key = %owner.key(), limit = ?LOOK_LIMIT, "the list of Pods takes too long"),
        }
        look.next = Instant::now() + pause;
        locked(&self.all).insert(metadata.uid.clone(), look.clone());
        (look.found, pause)
    }

    /// Forgets an object that waits for no Pods, or that is deleted.
    pub(super) fn forget(&self, owner: &Uid) {
        locked(&self.all).remove(owner);
    }

    /// The last finding, and the time since which the object has waited. After a restart, the time comes from the
    /// condition `Ready`, so that a reason from the Pods in that condition is not lost.
    fn known<O: Reported>(&self, cluster: &Cluster, owner: &O, generation: i64) -> Look {
        let (metadata, (observed_generation, before)) = (owner.metadata(), O::observed(owner.status()));
        let mut all = locked(&self.all);
        let known = all.get(&metadata.uid);
        if let Some(look) = known.filter(|look| look.generation == generation) {
            return look.clone();
        }
        let is_restart = known.is_none() && observed_generation == metadata.generation;
        // After a change of the spec, which is not a restart, the condition has this reason.
        let is_before = |ready: &&Condition| ready.status == "False" && ready.reason != "RolloutInProgress";
        let ready = conditions::find(before, "Ready").filter(|ready| is_restart && is_before(ready));
        let waited =
            ready.and_then(|ready| age(&ready.last_transition_time, cluster.now())).unwrap_or_default();
        let now = Instant::now();
        let since = now.checked_sub(waited).unwrap_or(now);
        let next = now + FIRST_PAUSE.saturating_sub(waited);
        let look = Look { generation, since, next, found: None, had_unseen: waited >= FIRST_PAUSE };
        all.insert(metadata.uid.clone(), look.clone());
        look
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// A Pod with one container `web`.
    fn pod(mut container: Value) -> Pod {
        container["name"] = json!("web");
        let pod = json!({
            "metadata": {"name": "p", "resourceVersion": "1"},
            "status": {
                "phase": "Pending", "containerStatuses": [container],
                "conditions": [{"type": "PodScheduled", "status": "True"}],
            },
        });
        serde_json::from_value(pod).expect("a Pod")
    }

    fn waiting(reason: &str, message: &str) -> Value {
        json!({"state": {"waiting": {"reason": reason, "message": message}}})
    }

    fn trouble_of(pods: &[Pod]) -> Option<String> {
        let now = listwatch_formats::time::parse_time("2026-11-22T06:40:00Z").expect("a time");
        let trouble = trouble(pods, &[], now)?;
        Some(format!("{}: {}", trouble.reason, trouble.message))
    }

    /// The messages are copied from kubelet 1.36 with containerd.
    #[test]
    fn states_that_alternate_are_reported_with_one_message() {
        let not_found = "rpc error: code = NotFound desc = failed to pull and unpack image \"docker.io/library/x:latest\": not found";
        let back_off = format!("Back-off pulling image \"x\": ErrImagePull: {not_found}");
        let pull = "ImagePullBackOff: container web: failed to pull and unpack image \"docker.io/library/x:latest\": not found";
        for container in [waiting("ErrImagePull", not_found), waiting("ImagePullBackOff", &back_off)] {
            assert_eq!(trouble_of(&[pod(container)]).as_deref(), Some(pull));
        }
        let last = json!({"terminated": {"exitCode": 1, "reason": "Error"}});
        let crash = "CrashLoopBackOff: container web: exited with code 1 (Error)";
        for mut container in [
            waiting("CrashLoopBackOff", "back-off 10s restarting failed container=web pod=p_default(1-2)"),
            waiting("CrashLoopBackOff", "back-off 5m0s restarting failed container=web pod=p_default(1-2)"),
            json!({"state": {"running": {"startedAt": "2026-11-22T06:39:00Z"}}}),
            json!({"state": last.clone()}),
        ] {
            container["restartCount"] = json!(3);
            container["lastState"] = last.clone();
            assert_eq!(trouble_of(&[pod(container)]).as_deref(), Some(crash));
        }
    }

    #[test]
    fn each_reason_is_reported_with_its_message_and_the_worst_first() {
        let unparsed = "Failed to apply default image tag \"nginx:\": couldn't parse image name \"nginx:\": invalid reference format";
        let invalid = pod(waiting("InvalidImageName", unparsed));
        let secret = pod(waiting("CreateContainerConfigError", "secret \"x\" not found"));
        assert_eq!(
            trouble_of(&[secret]).as_deref(),
            Some("CreateContainerConfigError: container web: secret \"x\" not found")
        );
        let pulling = || pod(waiting("ErrImagePull", "no"));
        assert_eq!(
            trouble_of(&[pulling(), invalid]),
            Some(format!("InvalidImageName: container web: {unparsed}"))
        );
        let mut huge = pod(json!({}));
        huge.status.conditions[0].status = "False".into();
        huge.status.conditions[0].reason = "Unschedulable".into();
        huge.status.conditions[0].message = "0/1 nodes are available: 1 Insufficient cpu.".into();
        let unschedulable = "Unschedulable: no node for a Pod: 0/1 nodes are available: 1 Insufficient cpu.";
        assert_eq!(trouble_of(&[huge]).as_deref(), Some(unschedulable));
        for starting in ["", "ContainerCreating", "PodInitializing"] {
            assert_eq!(trouble_of(&[pod(waiting(starting, ""))]), None);
        }
        let runs = |since: &str, is_started: bool| {
            let running = json!({"startedAt": format!("2026-11-22T06:{since}Z")});
            trouble_of(&[pod(json!({"started": is_started, "state": {"running": running}}))])
        };
        assert_eq!(runs("39:31", true), None, "it may be starting");
        assert_eq!(runs("38:00", false), None, "its startup probe has not succeeded");
        assert!(runs("39:30", true).is_some_and(|trouble| trouble.starts_with("ContainersNotReady: ")));
        assert_eq!(trouble_of(&[]), None);
        let unready = |reason: &str, message: &str| {
            let mut pod =
                pod(json!({"ready": true, "state": {"running": {"startedAt": "2026-11-22T06:00:00Z"}}}));
            let ready = json!({"type": "Ready", "status": "False", "reason": reason, "message": message});
            pod.status.conditions.push(serde_json::from_value(ready).expect("a condition"));
            pod.spec.node_name = "node-a".into();
            trouble_of(&[pod])
        };
        assert_eq!(unready("", "").as_deref(), Some("NodeNotReady: node node-a does not respond"));
        let gate = "corresponding condition of pod readiness gate \"example.com/lb\" does not exist.";
        let expected = format!("ReadinessGatesNotReady: {gate}");
        assert_eq!(unready("ReadinessGatesNotReady", gate), Some(expected));
        assert_eq!(unready("ContainersNotReady", ""), None, "the container says why");
    }

    /// With one replica, both Pods stay until the new Pod is available. The old Pod's trouble hid the new
    /// Pod's.
    #[test]
    fn of_pods_of_two_templates_those_of_the_wanted_one_are_reported() {
        let containers = |image: &str| serde_json::from_value(json!([{"name": "web", "image": image}]));
        let of = |image: &str, status: Value| Pod {
            spec: PodSpec { containers: containers(image).expect("containers"), ..PodSpec::default() },
            ..pod(status)
        };
        let template = |image: &str| of(image, json!({})).spec.containers;
        let pods =
            [of("old", waiting("ErrImagePull", "no such image")), of("new", waiting("CreateError", "no"))];
        let reason =
            |image: &str| trouble(&pods, &template(image), SystemTime::now()).expect("trouble").reason;
        assert_eq!(reason("new"), "CreateError");
        assert_eq!(reason("old"), "ImagePullBackOff");
        assert_eq!(reason("what admission changes in each Pod"), "ImagePullBackOff");
        let [old, _] = pods;
        assert_eq!(trouble(&[old, of("new", json!({}))], &template("new"), SystemTime::now()), None);
    }

    #[test]
    fn a_container_that_ran_before_has_crashed_unless_it_is_ready_or_runs_for_long() {
        let last = json!({"terminated": {"exitCode": 1, "reason": "Error"}});
        let crashed = |is_ready: bool, restarts: i32, since: &str| {
            let running = json!({"startedAt": format!("2026-11-22T06:{since}Z")});
            trouble_of(&[pod(json!({
                "ready": is_ready, "restartCount": restarts, "state": {"running": running}, "lastState": last,
            }))])
        };
        assert!(crashed(false, 1, "30:01").is_some_and(|trouble| trouble.starts_with("CrashLoopBackOff: ")));
        assert_eq!(crashed(false, 1, "30:00"), None);
        assert_eq!(crashed(true, 1, "39:00"), None);
        assert_eq!(crashed(false, 0, "39:00"), None);
        let ended = |code: i32, is_ready: bool| {
            let state = json!({"terminated": {"exitCode": code, "reason": "Completed"}});
            trouble_of(&[pod(json!({"ready": is_ready, "state": state}))])
        };
        let expected = "CrashLoopBackOff: container web: exited with code 0 (Completed)";
        assert_eq!(ended(0, false).as_deref(), Some(expected));
        assert_eq!(ended(0, true), None, "an init container that is done");
        assert!(ended(1, true).is_some());
    }

    #[test]
    fn a_pod_that_has_ended_or_is_ending_has_no_trouble() {
        for phase in ["Failed", "Succeeded"] {
            let mut ended = pod(waiting("InvalidImageName", "no"));
            ended.status.phase = phase.into();
            assert_eq!(trouble_of(&[ended]), None, "{phase}");
        }
        let mut going = pod(waiting("InvalidImageName", "no"));
        let time = json!({"name": "p", "resourceVersion": "1", "deletionTimestamp": "2026-11-22T06:39:31Z"});
        going.metadata = serde_json::from_value(time).expect("metadata");
        assert!(going.metadata.is_terminating());
        assert_eq!(trouble_of(&[going]), None);
    }

    /// The reason was `RolloutInProgress` for the grace period of the Pod and 30 seconds, and `NodeNotReady` before and after.
    #[test]
    fn a_pod_that_is_ending_on_a_lost_node_is_reported_at_once() {
        let ending = |phase: &str, ready_reason: &str| {
            let metadata =
                json!({"name": "p", "resourceVersion": "1", "deletionTimestamp": "2026-11-22T06:42:00Z"});
            let ready = json!({"type": "Ready", "status": "False", "reason": ready_reason});
            let pod = json!({
                "metadata": metadata, "spec": {"nodeName": "node-a"}, "status": {"phase": phase, "conditions": [ready]},
            });
            trouble_of(&[serde_json::from_value(pod).expect("a Pod")])
        };
        let way = "NodeNotReady: Pod p has not ended on node node-a, and may still run there: repair the node or, if it is off for \
                   ever, kubectl delete node node-a";
        assert_eq!(ending("Running", "").as_deref(), Some(way));
        assert_eq!(ending("Running", "ContainersNotReady"), None);
        assert_eq!(ending("Failed", ""), None, "the garbage collector of Pods has ended it");
    }

    /// The reason was `RolloutInProgress` five minutes after a node was lost.
    #[test]
    fn a_deleted_pod_that_has_not_ended_after_its_grace_period_is_reported_with_the_way_out() {
        let late = |phase: &str, ready_reason: &str, finalizers: Value| {
            let metadata = json!({
                "name": "p", "resourceVersion": "1", "deletionTimestamp": "2026-11-22T06:39:30Z", "finalizers": finalizers,
            });
            let ready = json!({"type": "Ready", "status": "False", "reason": ready_reason});
            let pod = json!({
                "metadata": metadata, "spec": {"nodeName": "node-a"}, "status": {"phase": phase, "conditions": [ready]},
            });
            trouble_of(&[serde_json::from_value(pod).expect("a Pod")]).expect("trouble")
        };
        let way = "Pod p has not ended on node node-a, and may still run there: repair the node or, if it is off for ever, kubectl \
                   delete node node-a";
        assert_eq!(late("Running", "", json!([])), format!("NodeNotReady: {way}"));
        assert_eq!(late("Running", "ContainersNotReady", json!([])), format!("PodTerminating: {way}"));
        let kept =
            "PodTerminating: Pod p is deleted, but keeps its finalizers: a.example.com/x, b.example.com/y";
        let finalizers = || json!(["a.example.com/x", "b.example.com/y"]);
        assert_eq!(late("Failed", "PodFailed", finalizers()), kept);
        assert_eq!(
            late("Running", "", finalizers()),
            format!("NodeNotReady: {way}"),
            "the Job controller removes its own"
        );
    }

    /// An init container is not `ready` before it has ended.
    #[test]
    fn an_init_container_is_reported_where_it_fails_and_not_while_it_runs() {
        let mut pod = pod(waiting("PodInitializing", ""));
        for (state, expected) in [
            (json!({"running": {"startedAt": "2026-11-22T06:00:00Z"}}), None),
            (
                json!({"terminated": {"exitCode": 2, "reason": "Error", "startedAt": null}}),
                Some("CrashLoopBackOff: container init: exited with code 2 (Error)"),
            ),
            (
                json!({"waiting": {"reason": "ErrImagePull", "message": "no"}}),
                Some("ImagePullBackOff: container init: no"),
            ),
        ] {
            let init = json!({"name": "init", "started": true, "state": state});
            pod.status.init_container_statuses = vec![serde_json::from_value(init).expect("a status")];
            assert_eq!(trouble_of(std::slice::from_ref(&pod)).as_deref(), expected);
        }
    }

    /// After a rollback, the ReplicaSet of the wanted Pods is older than the one whose Pods run.
    #[test]
    fn pods_that_run_hide_no_others() {
        let running =
            pod(json!({"ready": true, "state": {"running": {"startedAt": "2026-11-22T06:39:00Z"}}}));
        let waits = pod(waiting("InvalidImageName", "no"));
        assert_eq!(trouble_of(&[waits, running]).as_deref(), Some("InvalidImageName: container web: no"));
    }

    /// A Pod that is being replaced is missing for a moment.
    #[cfg(feature = "testing")]
    #[tokio::test(start_paused = true)]
    async fn missing_pods_are_reported_if_they_were_missing_at_the_look_before_or_before_a_restart() {
        use crate::{children::Conditions, testing::TestServer, watch::Lists};
        #[derive(serde::Serialize, serde::Deserialize)]
        struct Note {
            metadata: crate::resource::ObjectMeta,
            status: Conditions,
        }
        crate::kind!(Note, "example.com", "v1", "notes");
        crate::reported!(Note, Conditions);

        let cluster = Cluster::new(TestServer::start(&[]).await.client, Lists::Paged);
        let reports = async |looks: &Looks, status: &Value, are_missing: bool| {
            let metadata = json!({"name": "n", "namespace": "default", "uid": "u", "resourceVersion": "1", "generation": 1});
            let note = json!({"metadata": metadata, "status": status});
            let note: Note = serde_json::from_value(note).expect("a Note");
            let unseen = are_missing.then(|| Trouble::new("PodsNotCreated", "none".to_owned()));
            let selector = "app=n".to_owned();
            let wanted = PodsOf { generation: 1, selector, containers: &[], first: None, unseen };
            let (found, pause) = looks.look(&cluster, &note, &wanted).await;
            tokio::time::advance(pause).await;
            found.is_some()
        };
        let looks = Looks::default();
        let begins = json!({});
        assert!(!reports(&looks, &begins, true).await, "there was no look yet");
        for expected in [[false, true, true], [false, true, true]] {
            for is_reported in expected {
                assert_eq!(reports(&looks, &begins, true).await, is_reported);
            }
            assert!(!reports(&looks, &begins, false).await);
        }
        let ready = json!({
            "type": "Ready", "status": "False", "reason": "PodsNotCreated", "message": "none",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        });
        let waited = json!({"observedGeneration": 1, "conditions": [ready]});
        assert!(reports(&Looks::default(), &waited, true).await);
    }

    #[test]
    fn numbers_that_change_are_no_news() {
        let same = |one: &str, other: &str| {
            let message = format!("0 of 1 replicas are updated and available: {one}");
            let ready = json!({"type": "Ready", "reason": "ImagePullBackOff", "message": message});
            let before: Condition = serde_json::from_value(ready).expect("a condition");
            Trouble::new("ImagePullBackOff", other.to_owned()).with_known_message(&[before]).message == one
        };
        assert!(same(
            "dial tcp 10.0.0.1:53: 10.1.2.3:4711: timeout",
            "dial tcp 10.0.0.1:53: 10.1.2.3:4712: timeout"
        ));
        assert!(same("0/1 nodes are available", "0/2 nodes are available"));
        assert!(!same("not found", "connection refused"));
    }
}
