//! Whether a Pod fits on the one node: the filters of kube-scheduler for cordons, taints, node selectors and affinity, and resources, with
//! their words.
//!
//! ```text
//! 0/1 nodes are available: 1 node(s) had untolerated taint(s). no new claims to deallocate, preemption: …
//! ```
//!
//! Ports, devices such as `nvidia.com/gpu`, and affinity to other Pods always fit. No Pod is preempted.

use listwatch_formats::{quantity::quantity, selector::Selector};
use serde_json::{Value, json};

use crate::{
    kinds::{
        field_checks::each,
        pods::{
            has_ended,
            resources::{Bound, of_pod},
        },
    },
    storage::{Place, Storage},
};

/// Why a Pod does not fit on a node, as the message of its condition.
pub(crate) fn misfit(storage: &Storage, node: &Place, pod: &Value) -> Option<String> {
    let Some(node) = storage.get(node) else { return Some("no nodes available to schedule pods".to_owned()) };
    let cordon = json!({"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"});
    let is_hard = |taint: &&Value| taint["effect"] != "PreferNoSchedule";
    let mut no_preemption = "Preemption is not helpful for scheduling";
    let reasons = if node["spec"]["unschedulable"] == true && !tolerates(pod, &cordon) {
        "1 node(s) were unschedulable".to_owned()
    } else if each(&node["spec"]["taints"]).filter(is_hard).any(|taint| !tolerates(pod, taint)) {
        "1 node(s) had untolerated taint(s)".to_owned()
    } else if !selects(pod, node) {
        "1 node(s) didn't match Pod's node affinity/selector".to_owned()
    } else {
        let lacks = lacks(storage, node, pod);
        if lacks.iter().all(|lack| !lack.always) {
            no_preemption = "No preemption victims found for incoming pod";
        }
        lacks.into_iter().map(|lack| format!("1 {}", lack.reason)).collect::<Vec<_>>().join(", ")
    };
    (!reasons.is_empty()).then(|| {
        format!(
            "0/1 nodes are available: {reasons}. no new claims to deallocate, preemption: 0/1 nodes are available: 1 {no_preemption}."
        )
    })
}

/// A resource of which a node has too little.
struct Lack {
    reason: String,
    /// Whether the node is too small even without other Pods.
    always: bool,
}

/// The resources that count.
const RESOURCES: [&str; 3] = ["cpu", "ephemeral-storage", "memory"];

fn lacks(storage: &Storage, node: &Value, pod: &Value) -> Vec<Lack> {
    let allocatable = &node["status"]["allocatable"];
    let all = storage.collection("pods").map(|pods| &pods.objects);
    let on_node = || {
        let all = all.into_iter().flat_map(|pods| pods.values());
        all.filter(|pod| pod["spec"]["nodeName"] == node["metadata"]["name"] && !has_ended(pod))
    };
    let mut lacks = Vec::new();
    for resource in RESOURCES {
        let (wanted, size) = (requested(pod, resource), milli(&allocatable[resource]));
        // A node that does not report a resource has enough of it.
        if wanted == 0 || allocatable[resource].is_null() {
            continue;
        }
        let used: i64 = on_node().map(|pod| requested(pod, resource)).sum();
        if wanted > size - used {
            lacks.push(Lack { reason: format!("Insufficient {resource}"), always: wanted > size });
        }
    }
    let places = milli(&allocatable["pods"]) / 1000;
    // Counting takes long.
    let may_be_full = all.is_some_and(|pods| pods.len() as i64 > places);
    if may_be_full && !allocatable["pods"].is_null() && on_node().count() as i64 >= places {
        lacks.push(Lack { reason: "Too many pods".to_owned(), always: false });
    }
    lacks
}

/// A thousand times a quantity, so that its sums are exact.
pub(super) fn milli(value: &Value) -> i64 {
    (quantity(value).unwrap_or_default() * 1000.0).ceil() as i64
}

/// How much of a resource a Pod requests, in thousandths.
fn requested(pod: &Value, resource: &str) -> i64 {
    let requested = of_pod(&pod["spec"], Bound::Requests, resource);
    requested.map_or(0, |amount| amount.milli().ceil() as i64)
}

fn tolerates(pod: &Value, taint: &Value) -> bool {
    each(&pod["spec"]["tolerations"]).any(|one| {
        let text = |field: &str| one[field].as_str().unwrap_or_default();
        let is_equal = text("value") == taint["value"].as_str().unwrap_or_default();
        ["", taint["effect"].as_str().unwrap_or_default()].contains(&text("effect"))
            && (one["key"] == taint["key"] || text("key").is_empty())
            && (text("operator") == "Exists" || is_equal)
    })
}

fn selects(pod: &Value, node: &Value) -> bool {
    let labels = &node["metadata"]["labels"];
    let required = &pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    let is_chosen = |term: &Value| {
        let fields = json!({"metadata.name": node["metadata"]["name"]});
        let matches = |field: &str, values: &Value| {
            Selector::from_object(&json!({"matchExpressions": term[field]})).matches(values)
        };
        // A term without requirements selects nothing.
        (term["matchExpressions"].is_array() || term["matchFields"].is_array())
            && matches("matchExpressions", labels)
            && matches("matchFields", &fields)
    };
    Selector::from_object(&json!({"matchLabels": pod["spec"]["nodeSelector"]})).matches(labels)
        && (required.is_null() || each(&required["nodeSelectorTerms"]).any(is_chosen))
}
