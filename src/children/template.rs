//! Resets a Pod template that the API server refuses, because of a field that another writer has set.

use serde::Serialize;
use serde_json::{Value, json};

use super::path;
use crate::{client::Error, resource::StatusCause};

/// Whether the API server refuses the Pod template as invalid. Our own fields are valid, so the reason is a field that another
/// writer has set: with `os: windows`, for example, a seccomp profile is not allowed. A denial by a webhook does not count:
/// a reset may not help there.
pub(super) fn is_about_template(error: &Error) -> bool {
    let is_in_template = |cause: &StatusCause| cause.field.starts_with("spec.template.");
    error.is_invalid()
        && !error.is_denied()
        && error.status().is_some_and(|status| status.details.causes.iter().any(is_in_template))
}

/// The same operations, but the Pod template is replaced by the desired one.
pub(super) fn reset_template<K: Serialize>(operations: &[Value], desired: &K) -> Vec<Value> {
    const TEMPLATE: &str = "/spec/template";
    let template = serde_json::to_value(desired).unwrap_or_default().pointer(TEMPLATE).cloned();
    let others = operations.iter().filter(|operation| !path(operation).starts_with(TEMPLATE)).cloned();
    others.chain([json!({"op": "replace", "path": TEMPLATE, "value": template})]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reset_replaces_the_whole_template_and_nothing_beside_it() {
        let replicas = json!({"op": "replace", "path": "/spec/replicas", "value": 3});
        let os = json!({"op": "remove", "path": "/spec/template/spec/os"});
        let desired = json!({"spec": {"replicas": 3, "template": {"spec": {}}}});
        let template = json!({"op": "replace", "path": "/spec/template", "value": {"spec": {}}});
        assert_eq!(reset_template(&[replicas.clone(), os], &desired), [replicas, template]);
    }
}
