//! Resets a Pod template that the API server refuses, because of a field that another writer has set.

use serde::Serialize;
use serde_json::{Value, json};

use super::path;
use crate::{client::Error, resource::StatusCause};

/// The Pod templates of a Deployment or StatefulSet, and of a CronJob.
const TEMPLATES: [&str; 2] = ["/spec/template", "/spec/jobTemplate/spec/template"];

/// Whether the API server refuses the Pod template as invalid. Our own fields are valid, so the reason is a field that another
/// writer has set: with `os: windows`, for example, a seccomp profile is not allowed. A denial by a webhook does not count:
/// a reset may not help there.
pub(super) fn is_about_template(error: &Error) -> bool {
    let is_in_template = |cause: &StatusCause| {
        let field = format!("/{}", cause.field.replace('.', "/"));
        TEMPLATES.iter().any(|template| field.starts_with(&format!("{template}/")))
    };
    error.is_invalid()
        && !error.is_denied()
        && error.status().is_some_and(|status| status.details.causes.iter().any(is_in_template))
}

/// The same operations, but the Pod template is replaced by the desired one, if the desired object has one.
pub(super) fn reset_template<K: Serialize>(operations: &[Value], desired: &K) -> Vec<Value> {
    let desired = serde_json::to_value(desired).unwrap_or_default();
    let template = TEMPLATES.into_iter().find_map(|at| Some((at, desired.pointer(at)?)));
    let Some((at, template)) = template else { return operations.to_vec() };
    let others = operations.iter().filter(|operation| !path(operation).starts_with(at)).cloned();
    others.chain([json!({"op": "replace", "path": at, "value": template})]).collect()
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
        let operations = [replicas.clone(), os];
        assert_eq!(reset_template(&operations, &desired), [replicas, template]);
        assert_eq!(reset_template(&operations, &json!({"spec": {"replicas": 3}})), operations);
    }
}
