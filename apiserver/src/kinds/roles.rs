//! Validation of Roles, ClusterRoles and their bindings: pkg/apis/rbac/validation.

use serde_json::Value;

use crate::{
    kinds::field_checks::{each, not_one_of, text},
    names::{causes, path_segment_errors, subdomain_errors},
    status::Cause,
};

const GROUP: &str = "rbac.authorization.k8s.io";

pub(crate) fn role(object: &Value, _before: Option<&Value>) -> Vec<Cause> {
    let is_namespaced = object["kind"] == "Role";
    let mut all = Vec::new();
    for (index, rule) in each(&object["rules"]).enumerate() {
        let at = |field: &str| format!("rules[{index}].{field}");
        let is_empty = |field: &str| each(&rule[field]).next().is_none();
        if is_empty("verbs") {
            all.push(Cause::required(at("verbs"), "verbs must contain at least one value"));
        }
        if !is_empty("nonResourceURLs") {
            let mut wrong =
                |text: &str| all.push(Cause::invalid(at("nonResourceURLs"), &rule["nonResourceURLs"], text));
            if is_namespaced {
                wrong("namespaced rules cannot apply to non-resource URLs");
            }
            if !["apiGroups", "resources", "resourceNames"].into_iter().all(is_empty) {
                wrong("rules cannot apply to both regular resources and non-resource URLs");
            }
            continue;
        }
        if is_empty("apiGroups") {
            all.push(Cause::required(at("apiGroups"), "resource rules must supply at least one api group"));
        }
        if is_empty("resources") {
            all.push(Cause::required(at("resources"), "resource rules must supply at least one resource"));
        }
    }
    all
}

pub(crate) fn binding(object: &Value, _before: Option<&Value>) -> Vec<Cause> {
    let (role, mut all) = (&object["roleRef"], Vec::new());
    let kinds: &[&str] =
        if object["kind"] == "RoleBinding" { &["Role", "ClusterRole"] } else { &["ClusterRole"] };
    not_one_of(&mut all, "roleRef.apiGroup".to_owned(), &role["apiGroup"], &[GROUP]);
    not_one_of(&mut all, "roleRef.kind".to_owned(), &text(&role["kind"]).into(), kinds);
    match text(&role["name"]) {
        "" => all.push(Cause::required("roleRef.name", "")),
        name => all.extend(causes("roleRef.name", name, path_segment_errors(name))),
    }
    for (index, subject) in each(&object["subjects"]).enumerate() {
        let at = |field: &str| format!("subjects[{index}].{field}");
        let name = text(&subject["name"]);
        if name.is_empty() {
            all.push(Cause::required(at("name"), ""));
        }
        let group = text(&subject["apiGroup"]).into();
        match text(&subject["kind"]) {
            "ServiceAccount" => {
                if !name.is_empty() {
                    all.extend(causes(&at("name"), name, subdomain_errors(name)));
                }
                not_one_of(&mut all, at("apiGroup"), &group, &[""]);
                if object["kind"] == "ClusterRoleBinding" && text(&subject["namespace"]).is_empty() {
                    all.push(Cause::required(at("namespace"), ""));
                }
            }
            "User" | "Group" => not_one_of(&mut all, at("apiGroup"), &group, &[GROUP]),
            kind => not_one_of(&mut all, at("kind"), &kind.into(), &["ServiceAccount", "User", "Group"]),
        }
    }
    all
}
