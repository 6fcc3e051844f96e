//! Resets fields of other writers, if the API server refuses our patch because of them.

use serde::Serialize;
use serde_json::{Value, json};

use super::write::path;
use crate::client::Error;

/// The Pod templates of a Deployment or StatefulSet, and of a CronJob.
const TEMPLATES: [&str; 2] = ["/spec/template", "/spec/jobTemplate/spec/template"];
/// The causes if a field must not be set.
const NOT_ALLOWED: [&str; 2] = ["FieldValueForbidden", "FieldValueInvalid"];
/// `ipFamilies` and `ipFamilyPolicy` of a Service.
const IP_FAMILIES: &str = "/spec/ipFamil";

/// The operations with which a patch of ours is valid that was refused. `None`: it was refused for another reason. A denial by a
/// webhook does not count: a reset may not help there.
pub(super) fn reset<K: Serialize>(error: &Error, operations: &[Value], desired: &K) -> Option<Vec<Value>> {
    if !error.is_invalid() || error.is_denied() {
        return None;
    }
    let causes = &error.status()?.details.causes;
    let fields: Vec<_> = causes.iter().map(|cause| (&*cause.reason, pointer(&cause.field))).collect();
    resets(&fields, operations, &serde_json::to_value(desired).unwrap_or_default())
}

/// `/spec/ipFamilies[1]`
fn pointer(field: &str) -> String {
    format!("/{}", field.replace('.', "/"))
}

/// `fields`: what is wrong, and where.
fn resets(fields: &[(&str, String)], operations: &[Value], desired: &Value) -> Option<Vec<Value>> {
    let is_about = |start: &str| fields.iter().any(|(_, field)| field.starts_with(start));
    // Our fields of the template are valid, so the reason is a field that another writer has set: with `os: windows`, for
    // example, a seccomp profile is not allowed.
    let replaced = |at: &str, value: &Value| {
        let others = operations.iter().filter(|operation| !path(operation).starts_with(at)).cloned();
        Some(others.chain([json!({"op": "replace", "path": at, "value": value})]).collect())
    };
    let template = TEMPLATES.into_iter().find(|template| is_about(&format!("{template}/")));
    if let Some((at, value)) = template.and_then(|at| Some((at, desired.pointer(at)?))) {
        return replaced(at, value);
    }
    // A Service with neither address nor selector may have families of addresses that the cluster has not. With our selector,
    // they are invalid.
    let policy = json!({"op": "add", "path": "/spec/ipFamilyPolicy", "value": "SingleStack"});
    // In place of an empty list, the API server chooses the cluster's family.
    let none = json!({"op": "add", "path": "/spec/ipFamilies", "value": []});
    let first = is_about("/spec/ipFamilies[0]").then_some(none);
    if is_about(IP_FAMILIES) {
        return Some(operations.iter().cloned().chain([policy]).chain(first).collect());
    }
    // A field that is not allowed beside ours, such as `rollingUpdate` beside `type: Recreate`.
    let is_not_ours = |field: &str| !field.contains('[') && desired.pointer(field).is_none();
    let of_others = fields.iter().find(|(reason, field)| NOT_ALLOWED.contains(reason) && is_not_ours(field));
    let (at, _) = of_others?.1.rsplit_once('/')?;
    // Not all of `/spec`.
    replaced(at, desired.pointer(at).filter(|_| at.matches('/').count() > 1)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_of_others_that_is_not_allowed_beside_ours_goes_with_its_parent() {
        let desired = json!({"spec": {"strategy": {"type": "Recreate"}}});
        let operation = json!({"op": "replace", "path": "/spec/strategy/type", "value": "Recreate"});
        let whole = json!({"op": "replace", "path": "/spec/strategy", "value": {"type": "Recreate"}});
        let resets =
            |reason, field| resets(&[(reason, pointer(field))], std::slice::from_ref(&operation), &desired);
        let field = "spec.strategy.rollingUpdate";
        assert_eq!(resets("FieldValueForbidden", field), Some(vec![whole]));
        assert_eq!(resets("FieldValueRequired", field), None);
        assert_eq!(resets("FieldValueInvalid", "spec.strategy.type"), None);
        assert_eq!(resets("FieldValueInvalid", "spec.minReadySeconds"), None);
    }

    #[test]
    fn a_reset_replaces_the_whole_template_or_the_ip_families_and_nothing_beside_it() {
        let replicas = json!({"op": "replace", "path": "/spec/replicas", "value": 3});
        let operations = [replicas.clone(), json!({"op": "remove", "path": "/spec/template/spec/os"})];
        let resets = |field: &str, desired: Value| {
            resets(&[("FieldValueInvalid", pointer(field))], &operations, &desired)
        };
        let desired = json!({"spec": {"replicas": 3, "template": {"spec": {}}}});
        let template = json!({"op": "replace", "path": "/spec/template", "value": {"spec": {}}});
        assert_eq!(resets("spec.template.spec.os", desired.clone()), Some(vec![replicas, template]));
        assert_eq!(resets("spec.template.spec.os", json!({})), None);
        assert_eq!(resets("spec.replicas", desired), None);
        let families = resets("spec.ipFamilies[1]", json!({})).expect("a reset");
        assert_eq!((&families[..2], families.len()), (&operations[..], 3));
        let families = resets("spec.ipFamilies[0]", json!({})).expect("a reset");
        assert_eq!((&families[..2], families.len()), (&operations[..], 4));
    }
}
