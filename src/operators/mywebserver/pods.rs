//! Why Pods do not run, in the kubelet's and the scheduler's words: `ImagePullBackOff`, `CrashLoopBackOff`, `Unschedulable`.
//!
//! ```text
//! GET /api/v1/namespaces/default/pods?labelSelector=…&limit=100&resourceVersion=1&resourceVersionMatch=NotOlderThan
//! ```
//!
//! A Deployment counts its Pods and does not say what is wrong with them. Watching the Pods would cost memory and a stream for
//! what is rarely asked: so they are asked for, and only those of an object that has not been ready for a while. What flaps
//! from look to look (a pull that fails and backs off in turn, the length of a back-off) is told in one way.

use std::{
    collections::HashMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime},
};

use serde::Deserialize;
use smol_str::SmolStr;
use tokio::time::Instant;
use tracing::{debug, warn};

use super::{MyWebserver, Status};
use crate::{
    cluster::Cluster,
    resource::{ObjectMeta, Resource, Scope, Uid, kinds::Deployment},
};

/// Before the first look. Most rollouts are done by then, and cost no request.
const FIRST_PAUSE: Duration = Duration::from_secs(5);
/// Each pause is as long as it has been so, up to this.
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// Most Pods that are looked at: about a megabyte of JSON.
const PODS_MAX: u32 = 100;
/// A container that runs for so long, and is not ready, is told of; before, it may be starting.
const START_TIME: Duration = Duration::from_secs(30);
/// After this time the kubelet forgets that a container has crashed.
const CRASH_MEMORY: Duration = Duration::from_secs(600);
/// Longest text that is told of a container.
const TEXT_LENGTH_MAX: usize = 1000;

/// `v1` Pod, as far as it says why it does not run.
#[derive(Debug, Deserialize)]
pub struct Pod {
    /// Name, labels, owners, versions.
    pub metadata: ObjectMeta,
    #[serde(default)]
    status: PodStatus,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodStatus {
    phase: SmolStr,
    conditions: Vec<PodCondition>,
    init_container_statuses: Vec<ContainerStatus>,
    container_statuses: Vec<ContainerStatus>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodCondition {
    r#type: SmolStr,
    status: SmolStr,
    reason: SmolStr,
    message: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ContainerStatus {
    name: SmolStr,
    ready: bool,
    restart_count: i32,
    state: ContainerState,
    last_state: ContainerState,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ContainerState {
    waiting: Option<Waiting>,
    running: Option<Running>,
    terminated: Option<Terminated>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Waiting {
    reason: SmolStr,
    message: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Running {
    started_at: SmolStr,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Terminated {
    exit_code: i32,
    reason: SmolStr,
    message: String,
}

impl Resource for Pod {
    const GROUP: &'static str = "";
    const VERSION: &'static str = "v1";
    const PLURAL: &'static str = "pods";
    const KIND: &'static str = "Pod";

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }
}

/// Why a Pod does not run.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Trouble {
    /// Of several, the lowest is told.
    rank: u8,
    /// For programs.
    pub reason: SmolStr,
    /// For people.
    pub message: String,
}

impl Trouble {
    fn new(reason: &str, message: String) -> Trouble {
        let rank = match reason {
            "InvalidImageName" => 0,
            "ErrImageNeverPull" | "CreateContainerConfigError" => 1,
            "ImagePullBackOff" => 2,
            "CrashLoopBackOff" => 3,
            "Unschedulable" | "SchedulingGated" => 5,
            "ContainersNotReady" => 6,
            _ => 4,
        };
        Trouble { rank, reason: reason.into(), message: message.chars().take(TEXT_LENGTH_MAX).collect() }
    }

    /// Whether nothing but another spec helps.
    pub fn is_final(&self) -> bool {
        self.reason == "InvalidImageName"
    }

    /// Its message, or the one that was told before, where they only differ in what always does: times, ports, names of Pods.
    pub fn message_after(&self, before: &Status) -> SmolStr {
        let known = before.condition("Ready").filter(|ready| ready.reason == self.reason);
        let known = known.and_then(|ready| ready.message.split_once(": ")).map(|(_, message)| message);
        known.filter(|known| shape(known).eq(shape(&self.message))).unwrap_or(&self.message).into()
    }
}

/// The words of a message without those that have a digit.
fn shape(message: &str) -> impl Iterator<Item = &str> {
    let words = message.split(|c: char| !c.is_alphanumeric());
    words.filter(|word| !word.is_empty() && !word.contains(|c: char| c.is_ascii_digit()))
}

/// The worst that keeps a Pod from running, if any Pod says so.
///
/// Pods of an older template count too: no time tells which template is wanted, as a Deployment that is changed back uses the
/// ReplicaSet of before, and the Deployment controller removes old Pods that do not run first.
#[must_use]
pub fn trouble(pods: &[Pod], waited: Duration, now: SystemTime) -> Option<Trouble> {
    let living = pods.iter().filter(|pod| {
        !pod.metadata.is_terminating() && !matches!(&*pod.status.phase, "Failed" | "Succeeded")
    });
    living.filter_map(|pod| pod.trouble(waited, now)).min()
}

impl Pod {
    fn scheduled(&self) -> Option<&PodCondition> {
        self.status.conditions.iter().find(|condition| condition.r#type == "PodScheduled")
    }

    fn trouble(&self, waited: Duration, now: SystemTime) -> Option<Trouble> {
        if let Some(scheduled) = self.scheduled().filter(|scheduled| scheduled.status == "False") {
            return Some(Trouble::new(
                &scheduled.reason,
                format!("no node for a Pod: {}", scheduled.message),
            ));
        }
        let containers = self.status.init_container_statuses.iter().chain(&self.status.container_statuses);
        containers.filter_map(|container| container.trouble(waited, now)).min()
    }
}

impl ContainerStatus {
    fn trouble(&self, waited: Duration, now: SystemTime) -> Option<Trouble> {
        let name = &self.name;
        let says = |reason: &str, text: &str| Some(Trouble::new(reason, format!("container {name}: {text}")));
        if let Some(Waiting { reason, message }) = &self.state.waiting {
            return match &**reason {
                "" | "ContainerCreating" | "PodInitializing" => None,
                "ErrImagePull" | "ImagePullBackOff" | "RegistryUnavailable" | "SignatureValidationFailed" => {
                    says("ImagePullBackOff", pull_error(message))
                }
                "CrashLoopBackOff" | "RunContainerError" => match self.last_state.terminated.as_ref() {
                    Some(last) => says("CrashLoopBackOff", &exit(last)),
                    None => says("CrashLoopBackOff", message),
                },
                other => says(other, message),
            };
        }
        if let Some(last) = &self.state.terminated {
            // An init container that is done, or one that is started again in a moment.
            return if last.exit_code == 0 && self.ready {
                None
            } else {
                says("CrashLoopBackOff", &exit(last))
            };
        }
        let running = self.state.running.as_ref().filter(|_| !self.ready)?;
        let is_recent = match humantime::parse_rfc3339(&running.started_at) {
            Ok(started) => now.duration_since(started).is_ok_and(|runs| runs < CRASH_MEMORY),
            Err(_) => false,
        };
        match &self.last_state.terminated {
            Some(last) if is_recent && self.restart_count > 0 => says("CrashLoopBackOff", &exit(last)),
            Some(_) | None if waited >= START_TIME => {
                says("ContainersNotReady", "runs, but its readiness probe fails: does it listen on the port?")
            }
            Some(_) | None => None,
        }
    }
}

/// `exited with code 1 (Error)`, and what the container left to be said.
fn exit(terminated: &Terminated) -> String {
    let Terminated { exit_code, reason, message } = terminated;
    match message.trim() {
        "" => format!("exited with code {exit_code} ({reason})"),
        message => format!("exited with code {exit_code} ({reason}): {message}"),
    }
}

/// What went wrong with a pull. While the kubelet backs off, it says so before.
fn pull_error(message: &str) -> &str {
    let message =
        match message.strip_prefix("Back-off pulling image ").and_then(|rest| rest.split_once("\": ")) {
            Some((_image, error)) => error.split_once(": ").map_or(error, |(_reason, error)| error),
            None => message,
        };
    match message.strip_prefix("rpc error: code = ").and_then(|rest| rest.split_once(" desc = ")) {
        Some((_code, error)) => error,
        None => message,
    }
}

/// Objects that wait for their Pods, and what was found.
#[derive(Default)]
pub struct Looks {
    all: Mutex<HashMap<Uid, Look>>,
    /// That we may not list Pods was logged.
    is_refusal_told: AtomicBool,
}

#[derive(Clone)]
struct Look {
    /// The Deployment's. Another one is another rollout.
    generation: i64,
    since: Instant,
    next: Instant,
    found: Option<Trouble>,
}

impl Looks {
    /// Asks why Pods do not run, if it is time to. Returns what is known, and when to look again.
    pub async fn look(
        &self,
        cluster: &Cluster,
        web: &MyWebserver,
        deployment: &Deployment,
    ) -> (Option<Trouble>, Duration) {
        let mut look = self.known(cluster, web, deployment);
        let now = Instant::now();
        if look.next > now {
            return (look.found, look.next - now);
        }
        let scope = Scope {
            namespace: web.metadata.namespace.as_ref().map(ToString::to_string),
            labels: deployment.spec.selector.match_labels.as_selector().to_owned(),
        };
        let waited = look.since.elapsed();
        match cluster.list_live::<Pod>(&scope, PODS_MAX).await {
            Ok(pods) => look.found = trouble(&pods, waited, cluster.now()),
            Err(error) if error.is_forbidden() => {
                look.found = None;
                if !self.is_refusal_told.swap(true, Ordering::Relaxed) {
                    warn!(%error, "cannot say why Pods do not run: grant the verb list on the resource pods");
                }
            }
            Err(error) => debug!(key = %web.key(), %error, "cannot say why Pods do not run"),
        }
        let pause = waited.clamp(FIRST_PAUSE, PAUSE_MAX);
        look.next = now + pause;
        self.lock().insert(web.metadata.uid.clone(), look.clone());
        (look.found, pause)
    }

    /// It waits for no Pods, or is gone.
    pub fn forget(&self, web: &Uid) {
        self.lock().remove(web);
    }

    /// How long it has been so. After a restart the status tells, so that what it says of Pods is not lost.
    fn known(&self, cluster: &Cluster, web: &MyWebserver, deployment: &Deployment) -> Look {
        let mut all = self.lock();
        let generation = deployment.metadata.generation;
        let known = all.get(&web.metadata.uid);
        if let Some(look) = known.filter(|look| look.generation == generation) {
            return look.clone();
        }
        let was_ready = || web.status.condition("Ready").filter(|ready| ready.status == "False");
        let is_reported = known.is_none() && web.status.observed_generation == web.metadata.generation;
        let since = is_reported.then(was_ready).flatten().and_then(|ready| {
            let since = humantime::parse_rfc3339(&ready.last_transition_time).ok()?;
            cluster.now().duration_since(since).ok()
        });
        let (now, age) = (Instant::now(), since.unwrap_or_default());
        let since = now.checked_sub(age).unwrap_or(now);
        let look = Look { generation, since, next: now + FIRST_PAUSE.saturating_sub(age), found: None };
        all.insert(web.metadata.uid.clone(), look.clone());
        look
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Uid, Look>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
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

    fn told(pods: &[Pod], waited_secs: u64) -> Option<String> {
        let now = humantime::parse_rfc3339("2026-11-22T06:40:00Z").expect("a time");
        let trouble = trouble(pods, Duration::from_secs(waited_secs), now)?;
        Some(format!("{}: {}", trouble.reason, trouble.message))
    }

    /// As kubelet 1.36 and containerd have been seen to say it.
    #[test]
    fn what_flaps_is_told_in_one_way() {
        let not_found = "rpc error: code = NotFound desc = failed to pull and unpack image \"docker.io/library/x:latest\": not found";
        let back_off = format!("Back-off pulling image \"x\": ErrImagePull: {not_found}");
        let pull = "ImagePullBackOff: container web: failed to pull and unpack image \"docker.io/library/x:latest\": not found";
        for container in [waiting("ErrImagePull", not_found), waiting("ImagePullBackOff", &back_off)] {
            assert_eq!(told(&[pod(container)], 5).as_deref(), Some(pull));
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
            assert_eq!(told(&[pod(container)], 5).as_deref(), Some(crash));
        }
    }

    #[test]
    fn each_reason_is_told_with_its_message_and_the_worst_first() {
        let unparsed = "Failed to apply default image tag \"nginx:\": couldn't parse image name \"nginx:\": invalid reference format";
        let invalid = pod(waiting("InvalidImageName", unparsed));
        let secret = pod(waiting("CreateContainerConfigError", "secret \"x\" not found"));
        assert_eq!(
            told(&[secret], 5).as_deref(),
            Some("CreateContainerConfigError: container web: secret \"x\" not found")
        );
        let pulling = || pod(waiting("ErrImagePull", "no"));
        assert_eq!(
            told(&[pulling(), invalid], 5),
            Some(format!("InvalidImageName: container web: {unparsed}"))
        );
        let mut huge = pod(json!({}));
        huge.status.conditions[0].status = "False".into();
        huge.status.conditions[0].reason = "Unschedulable".into();
        huge.status.conditions[0].message = "0/1 nodes are available: 1 Insufficient cpu.".into();
        let unschedulable = "Unschedulable: no node for a Pod: 0/1 nodes are available: 1 Insufficient cpu.";
        assert_eq!(told(&[huge], 5).as_deref(), Some(unschedulable));
        for starting in ["", "ContainerCreating", "PodInitializing"] {
            assert_eq!(told(&[pod(waiting(starting, ""))], 500), None);
        }
        let unready = || pod(json!({"state": {"running": {"startedAt": "2026-11-22T06:38:00Z"}}}));
        assert_eq!(told(&[unready()], 5), None, "it may be starting");
        assert!(told(&[unready()], 30).is_some_and(|told| told.starts_with("ContainersNotReady: ")));
        assert_eq!(told(&[], 5), None);
    }

    /// A Deployment that was changed back: its ReplicaSet of before is older than the one whose Pods run.
    #[test]
    fn pods_that_run_hide_no_others() {
        let running =
            pod(json!({"ready": true, "state": {"running": {"startedAt": "2026-11-22T06:39:00Z"}}}));
        let waits = pod(waiting("InvalidImageName", "no"));
        assert_eq!(told(&[waits, running], 5).as_deref(), Some("InvalidImageName: container web: no"));
    }

    #[test]
    fn numbers_that_change_are_no_news() {
        let same = |one: &str, other: &str| shape(one).eq(shape(other));
        assert!(same(
            "dial tcp 10.0.0.1:53: 10.1.2.3:4711: timeout",
            "dial tcp 10.0.0.1:53: 10.1.2.3:4712: timeout"
        ));
        assert!(same("0/1 nodes are available", "0/2 nodes are available"));
        assert!(!same("not found", "connection refused"));
    }
}
