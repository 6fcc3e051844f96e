//! Conditions: `status.conditions` of any kind.

use serde_json::{Value, json};

/// Sets a condition. `lastTransitionTime` changes only with the condition's status.
pub(crate) fn set_condition(
    object: &mut Value,
    kind: &str,
    status: &str,
    reason: &str,
    message: &str,
    now: &str,
) {
    let conditions = &mut object["status"]["conditions"];
    if !conditions.is_array() {
        *conditions = json!([]);
    }
    let Some(conditions) = conditions.as_array_mut() else { return };
    let mut new = json!({"type": kind, "status": status, "reason": reason, "message": message,
        "lastTransitionTime": now});
    match conditions.iter_mut().find(|condition| condition["type"] == kind) {
        Some(old) => {
            if old["status"] == status {
                new["lastTransitionTime"] = old["lastTransitionTime"].clone();
            }
            *old = new;
        }
        None => conditions.push(new),
    }
}

pub(crate) fn set_pod_condition(pod: &mut Value, kind: &str, status: &str, reason: Option<&str>, now: &str) {
    set_condition(pod, kind, status, reason.unwrap_or_default(), "", now);
    let conditions = pod["status"]["conditions"].as_array_mut();
    for condition in conditions.into_iter().flatten().filter_map(Value::as_object_mut) {
        condition.retain(|field, value| !matches!(field.as_str(), "reason" | "message") || *value != "");
    }
}
