//! DaemonSets: a Pod on the simulated node, if its labels match the node selector. Other Nodes get no Pods, because no kubelet runs there.

use listwatch_formats::selector::Selector;
use serde_json::{Value, json};

use super::{
    Controllers, change, delete, kubelet, record,
    rollout::{RETRY_PAUSE, claim, controlled, make_pod, name, pod_of, until_available},
    stateful_set::{REVISION_HASH, revision_of, revisions},
};
use crate::{
    kinds::{Part, metadata::is_terminating},
    storage::{Place, Storage},
    verbs::delete::Deletion,
};

/// Reconciles a DaemonSet.
pub(crate) fn daemon_set(controllers: &mut Controllers, storage: &mut Storage, place: &Place, set: &Value) {
    if is_terminating(set) {
        return;
    }
    claim(storage, set, "pods", |_| true);
    claim(storage, set, "controllerrevisions.apps", |_| true);
    let Some(revisions) = revisions(storage, place, set) else { return };
    let hash = &revisions.update["metadata"]["labels"][REVISION_HASH];
    let selector = json!({"matchLabels": set["spec"]["template"]["spec"]["nodeSelector"]});
    let node = storage.get(&kubelet::node()).cloned();
    let is_wanted =
        node.is_some_and(|node| Selector::from_object(&selector).matches(&node["metadata"]["labels"]));
    let pods = controlled(storage, set, "pods");
    let is_old =
        |pod: &Value| revision_of(pod) != hash && set["spec"]["updateStrategy"]["type"] == "RollingUpdate";
    for (pod_place, pod) in pods.iter().filter(|(_, pod)| !is_terminating(pod)) {
        if !is_wanted || is_old(pod) || pod["status"]["phase"] == "Failed" {
            delete(storage, pod_place, &Deletion::default());
            let message = format!("Deleted pod: {}", name(pod));
            record(storage, set, "daemonset-controller", "SuccessfulDelete", &message);
        }
    }
    if is_wanted && controlled(storage, set, "pods").is_empty() {
        let mut pod = pod_of(set, &set["spec"]["template"]);
        pod["metadata"]["labels"][REVISION_HASH] = hash.clone();
        pod["metadata"]["labels"]["pod-template-generation"] =
            set["metadata"]["generation"].to_string().into();
        if make_pod(storage, set, "daemonset-controller", pod).is_err() {
            controllers.requeue(place, RETRY_PAUSE);
        }
    }
    let pods = controlled(storage, set, "pods");
    let left: Vec<_> = pods.iter().filter_map(|(_, pod)| until_available(set, pod, &storage.clock)).collect();
    let available = left.iter().filter(|left| left.is_zero()).count();
    if let Some(least) = left.iter().copied().filter(|left| !left.is_zero()).min() {
        controllers.requeue(place, least);
    }
    let desired = usize::from(is_wanted);
    let updated = pods.iter().filter(|(_, pod)| revision_of(pod) == hash).count();
    change(storage, place, Part::Status, |set| {
        set["status"]["observedGeneration"] = set["metadata"]["generation"].clone();
        for (field, number) in [
            ("currentNumberScheduled", pods.len().min(desired)),
            ("desiredNumberScheduled", desired),
            ("numberReady", left.len()),
            ("updatedNumberScheduled", updated),
            ("numberAvailable", available),
            ("numberUnavailable", desired.saturating_sub(available)),
        ] {
            set["status"][field] = number.into();
        }
    });
}
