//! Bindings: a POST to `pods/NAME/binding` assigns a Pod to a node. Schedulers do so.
//!
//! ```text
//! POST …/pods/web-0/binding   {"metadata": {"name": "web-0"}, "target": {"kind": "Node", "name": "node-1"}}
//! ```
//!
//! The rules are as in kube-apiserver (pkg/registry/core/pod/storage/storage.go).

use serde_json::{Value, json};

use crate::{
    kinds::{
        Kind, conditions::set_pod_condition, field_checks::text, metadata::is_terminating, pods::is_gated,
    },
    status::{StatusError, aggregate},
    storage::{Place, Storage},
    verbs::{
        store::store,
        write::{check_namespace, check_version},
    },
};

/// Assigns a Pod to the node of a Binding.
pub(crate) fn bind(
    storage: &mut Storage,
    kind: &Kind,
    place: &Place,
    binding: &Value,
    dry_run: bool,
) -> Result<(), StatusError> {
    let (name, node) = (place.name(), text(&binding["target"]["name"]));
    if text(&binding["metadata"]["name"]) != name {
        return Err(StatusError::bad_request("name in URL does not match name in Binding object"));
    }
    check_namespace(binding, place.namespace())?;
    let mut errors = Vec::new();
    let of = text(&binding["target"]["kind"]);
    if !["", "Node"].contains(&of) {
        errors
            .push(format!("target.kind: Unsupported value: {of:?}: supported values: \"Node\", \"<empty>\""));
    }
    errors.extend(node.is_empty().then(|| "target.name: Required value".to_owned()));
    aggregate(errors).map_err(StatusError::internal)?;
    let pod = storage.get(place).ok_or_else(|| StatusError::not_found(kind, name))?.clone();
    check_version(kind, place, binding, &pod)?;
    if let Some(why) = refusal(name, &pod) {
        let message = format!("Operation cannot be fulfilled on pods/binding {name:?}: {why}");
        let details = json!({"name": name, "kind": "pods/binding"});
        return Err(StatusError::new(409, "Conflict", message, Some(details)));
    }
    if !dry_run {
        let bound = bound(&pod, binding, &storage.clock.time());
        store(storage, kind, place, bound);
    }
    Ok(())
}

/// Why a Pod cannot be assigned to a node.
fn refusal(name: &str, pod: &Value) -> Option<String> {
    let node = text(&pod["spec"]["nodeName"]);
    if is_terminating(pod) {
        return Some(format!("pod {name} is being deleted, cannot be assigned to a host"));
    }
    if !node.is_empty() {
        return Some(format!("pod {name} is already assigned to node {node:?}"));
    }
    is_gated(&pod["spec"]).then(|| format!("pod {name} has non-empty .spec.schedulingGates"))
}

/// The Pod on its node, with the labels and annotations of the Binding.
fn bound(pod: &Value, binding: &Value, now: &str) -> Value {
    let mut pod = pod.clone();
    pod["spec"]["nodeName"] = binding["target"]["name"].clone();
    for field in ["annotations", "labels"] {
        for (key, value) in binding["metadata"][field].as_object().into_iter().flatten() {
            pod["metadata"][field][key] = value.clone();
        }
    }
    pod["status"].as_object_mut().map(|status| status.remove("nominatedNodeName"));
    set_pod_condition(&mut pod, "PodScheduled", "True", None, now);
    pod
}
