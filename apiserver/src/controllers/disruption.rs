//! PodDisruptionBudgets: how many Pods may be disrupted now, which evictions read.
//!
//! The calculation is as in kube-controller-manager (pkg/controller/disruption).

use std::collections::BTreeMap;

use listwatch_formats::selector::Selector;
use serde_json::{Value, json};

use super::{
    change, owner_place, owners,
    rollout::{count, is_ready, share},
};
use crate::{
    kinds::{Part, metadata::is_terminating},
    storage::{Place, Storage},
};

const BUDGETS: &str = "poddisruptionbudgets.policy";

/// The budgets that select a Pod.
pub(crate) fn budgets_of(storage: &Storage, pod: &Value) -> Vec<Place> {
    let budgets = storage.collection(BUDGETS).into_iter().flat_map(|budgets| &budgets.objects);
    let of_pod = budgets.filter(|(_, budget)| selects(budget, pod));
    of_pod.map(|(key, _)| Place { collection: BUDGETS.to_owned(), key: key.clone() }).collect()
}

/// Without a selector, a budget selects nothing.
fn selects(budget: &Value, pod: &Value) -> bool {
    let selector = &budget["spec"]["selector"];
    budget["metadata"]["namespace"] == pod["metadata"]["namespace"]
        && !selector.is_null()
        && Selector::from_object(selector).matches(&pod["metadata"]["labels"])
}

/// Reconciles a PodDisruptionBudget: writes its status.
pub(crate) fn budget(storage: &mut Storage, place: &Place, budget: &Value) {
    let pods = storage.collection("pods").into_iter().flat_map(|pods| &pods.objects);
    let (mut pod_count, mut healthy, mut scales) = (0, 0, BTreeMap::new());
    for (key, pod) in pods.filter(|(_, pod)| selects(budget, pod)) {
        let is_over = pod["status"]["phase"] == "Succeeded" || pod["status"]["phase"] == "Failed";
        pod_count += i64::from(!is_over);
        healthy += i64::from(is_ready(pod) && !is_terminating(pod));
        let place = Place { collection: "pods".to_owned(), key: key.clone() };
        if let Some((uid, scale)) = scale_of(storage, &place, pod) {
            scales.insert(uid, scale);
        }
    }
    let scale: i64 = scales.values().sum();
    let (least, most) = (&budget["spec"]["minAvailable"], &budget["spec"]["maxUnavailable"]);
    let (expected, desired) = match (most.is_null(), least.is_null()) {
        (false, _) => (scale, (scale - share(most, scale, true)).max(0)),
        (true, false) if least.is_i64() => (pod_count, share(least, pod_count, true)),
        (true, false) => (scale, share(least, scale, true)),
        (true, true) => (0, 0),
    };
    let allowed = if expected > 0 { (healthy - desired).max(0) } else { 0 };
    let now = storage.clock.time();
    change(storage, place, Part::Status, |budget| {
        let generation = budget["metadata"]["generation"].clone();
        let (is, reason) =
            if allowed > 0 { ("True", "SufficientPods") } else { ("False", "InsufficientPods") };
        let known = budget["status"]["conditions"].as_array().into_iter().flatten();
        let known = known.into_iter().find(|one| one["type"] == "DisruptionAllowed" && one["status"] == is);
        let since = known.map_or(now.into(), |known| known["lastTransitionTime"].clone());
        let condition = json!({"type": "DisruptionAllowed", "status": is, "reason": reason, "message": "",
            "lastTransitionTime": since, "observedGeneration": generation});
        budget["status"] = json!({"currentHealthy": healthy, "desiredHealthy": desired, "expectedPods": expected,
            "disruptionsAllowed": allowed, "observedGeneration": generation, "conditions": [condition]});
    });
}

/// The controller of a Pod that has a number of replicas: for a ReplicaSet of a Deployment, the Deployment.
fn scale_of(storage: &Storage, place: &Place, pod: &Value) -> Option<(String, i64)> {
    let owner = owners(pod).find(|owner| owner["controller"] == true)?;
    let owner_place = owner_place(storage, place, owner)?;
    let object = storage.get(&owner_place).filter(|object| object["metadata"]["uid"] == owner["uid"])?;
    if let Some(scale) = scale_of(storage, &owner_place, object) {
        return Some(scale);
    }
    let uid = object["metadata"]["uid"].as_str()?.to_owned();
    object["spec"]["replicas"].as_i64().map(|_| (uid, count(object, "/spec/replicas")))
}
