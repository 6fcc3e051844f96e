//! Whether a Pod fits on the one node: the filters of kube-scheduler for cordons, taints, and node selectors and affinity, with their words.
//!
//! ```text
//! 0/1 nodes are available: 1 node(s) had untolerated taint(s). no new claims to deallocate, preemption: …
//! ```
//!
//! Resources, ports and other Pods always fit.

use serde_json::{Value, json};

use crate::{kinds::field_checks::each, selector::Labels};

/// What kube-scheduler adds if no other Pod could make room.
const NO_PREEMPTION: &str = "no new claims to deallocate, preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling.";

/// Why a Pod does not fit on a node, as the message of its condition.
pub(crate) fn misfit(node: Option<&Value>, pod: &Value) -> Option<String> {
    let Some(node) = node else { return Some("no nodes available to schedule pods".to_owned()) };
    let cordon = json!({"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"});
    let is_hard = |taint: &&Value| taint["effect"] != "PreferNoSchedule";
    let reason = if node["spec"]["unschedulable"] == true && !tolerates(pod, &cordon) {
        "node(s) were unschedulable"
    } else if each(&node["spec"]["taints"]).filter(is_hard).any(|taint| !tolerates(pod, taint)) {
        "node(s) had untolerated taint(s)"
    } else if !selects(pod, node) {
        "node(s) didn't match Pod's node affinity/selector"
    } else {
        return None;
    };
    Some(format!("0/1 nodes are available: 1 {reason}. {NO_PREEMPTION}"))
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
            Labels::from_object(&json!({"matchExpressions": term[field]})).matches(values)
        };
        // A term without requirements selects nothing.
        (term["matchExpressions"].is_array() || term["matchFields"].is_array())
            && matches("matchExpressions", labels)
            && matches("matchFields", &fields)
    };
    Labels::from_object(&json!({"matchLabels": pod["spec"]["nodeSelector"]})).matches(labels)
        && (required.is_null() || each(&required["nodeSelectorTerms"]).any(is_chosen))
}
