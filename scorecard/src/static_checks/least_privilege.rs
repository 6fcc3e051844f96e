//! The Roles and ClusterRoles of the operator, and the permissions in the ClusterServiceVersion of a bundle.
//!
//! Judged are the roles that a binding gives to a ServiceAccount. Others are for users. Without a binding, all are judged.

use serde_json::Value;

use super::{Finding, list, text, verdict};
use crate::report::{Outcome, Verdict};

/// Verbs with which a subject can get more permissions than it has.
const ESCALATIONS: [&str; 3] = ["escalate", "bind", "impersonate"];

struct RoleRule<'a> {
    /// `ClusterRole manager rules[0]`
    object: String,
    path: String,
    rule: &'a Value,
    scope: Scope,
}

/// Where a role allows what it allows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    Namespace,
    Cluster,
}

pub(super) fn check(rbac: &[Value], bundle: &[Value]) -> Verdict {
    let mut rules = rules_of_roles(rbac);
    rules.extend(rules_of_bundle(bundle));
    if rules.is_empty() {
        return Verdict::new(Outcome::Skip, "no --rbac PATH with a Role or ClusterRole, and no --bundle DIR");
    }
    let mut findings = Vec::new();
    for rule in &rules {
        judge(rule, &mut findings);
    }
    verdict(findings, format!("{} rules", rules.len()))
}

fn judge(RoleRule { object, path, rule, scope }: &RoleRule, findings: &mut Vec<Finding>) {
    let has = |field: &str, word: &str| list(&rule[field]).any(|value| value == word);
    for field in ["verbs", "resources", "apiGroups", "nonResourceURLs"] {
        if has(field, "*") {
            let path = format!("{path}.{field}");
            findings.push(Finding::fail(object, path, "names instead of *", &rule[field]));
        }
    }
    let is_named = list(&rule["resourceNames"]).next().is_some();
    if *scope == Scope::Cluster && has("apiGroups", "") && has("resources", "secrets") && !is_named {
        let expected = "resourceNames, or a Role, as this gives the Secrets of all namespaces";
        findings.push(Finding::warn(object, format!("{path}.resourceNames"), expected, &Value::Null));
    }
    if ESCALATIONS.iter().any(|verb| has("verbs", verb)) {
        let expected = "no verb with which a subject gets more permissions";
        findings.push(Finding::warn(object, format!("{path}.verbs"), expected, &rule["verbs"]));
    }
}

/// The roles that a binding gives to a ServiceAccount, and where. Without a binding, all.
pub(crate) fn roles_of_accounts(rbac: &[Value]) -> Vec<(&Value, Scope)> {
    let bindings: Vec<&Value> =
        rbac.iter().filter(|object| text(&object["kind"]).ends_with("RoleBinding")).collect();
    let is_for_account =
        |binding: &&&Value| list(&binding["subjects"]).any(|subject| subject["kind"] == "ServiceAccount");
    let mut roles = Vec::new();
    for role in rbac.iter().filter(|object| ["Role", "ClusterRole"].contains(&text(&object["kind"]))) {
        let (kind, name) = (text(&role["kind"]), text(&role["metadata"]["name"]));
        let is_of =
            |binding: &&&Value| binding["roleRef"]["kind"] == kind && binding["roleRef"]["name"] == name;
        let own: Vec<&&Value> = bindings.iter().filter(is_of).filter(is_for_account).collect();
        if own.is_empty() && !bindings.is_empty() {
            continue;
        }
        // A RoleBinding gives the rules of a ClusterRole in one namespace.
        let is_bound_in_namespaces =
            !own.is_empty() && own.iter().all(|binding| binding["kind"] == "RoleBinding");
        let scope = if kind == "Role" || is_bound_in_namespaces { Scope::Namespace } else { Scope::Cluster };
        roles.push((role, scope));
    }
    roles
}

fn rules_of_roles(rbac: &[Value]) -> Vec<RoleRule<'_>> {
    let mut rules = Vec::new();
    for (role, scope) in roles_of_accounts(rbac) {
        for (index, rule) in list(&role["rules"]).enumerate() {
            let object = format!("{} {}", text(&role["kind"]), text(&role["metadata"]["name"]));
            rules.push(RoleRule { object, path: format!(".rules[{index}]"), rule, scope });
        }
    }
    rules
}

fn rules_of_bundle(bundle: &[Value]) -> Vec<RoleRule<'_>> {
    let mut rules = Vec::new();
    for csv in bundle.iter().filter(|object| object["kind"] == "ClusterServiceVersion") {
        // OLM also makes a ClusterRole of `permissions` if the operator is installed for all namespaces.
        let is_for_all = |mode: &Value| mode["type"] == "AllNamespaces" && mode["supported"] == true;
        let widest = if list(&csv["spec"]["installModes"]).any(is_for_all) {
            Scope::Cluster
        } else {
            Scope::Namespace
        };
        for (field, scope) in [("permissions", widest), ("clusterPermissions", Scope::Cluster)] {
            for (of, permission) in list(&csv["spec"]["install"]["spec"][field]).enumerate() {
                for (index, rule) in list(&permission["rules"]).enumerate() {
                    let object = format!("ClusterServiceVersion {}", text(&csv["metadata"]["name"]));
                    let path = format!(".spec.install.spec.{field}[{of}].rules[{index}]");
                    rules.push(RoleRule { object, path, rule, scope });
                }
            }
        }
    }
    rules
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn role(kind: &str, groups: &str, resources: &str, verbs: &str) -> Value {
        json!({"kind": kind, "metadata": {"name": "manager"}, "rules": [
            {"apiGroups": [groups], "resources": [resources], "verbs": [verbs]}]})
    }

    fn binding(kind: &str, subject: &str) -> Value {
        json!({"kind": kind, "roleRef": {"kind": "ClusterRole", "name": "manager"}, "subjects": [{"kind": subject}]})
    }

    #[test]
    fn too_many_permissions_are_found_and_enough_are_not() {
        for (kind, group, resource, verb, result, expected) in [
            ("ClusterRole", "apps", "deployments", "get", Outcome::Pass, "1 rules"),
            ("Role", "", "secrets", "get", Outcome::Pass, "1 rules"),
            (
                "ClusterRole",
                "*",
                "deployments",
                "get",
                Outcome::Fail,
                "manager .rules[0].apiGroups is [\"*\"]",
            ),
            ("Role", "apps", "*", "get", Outcome::Fail, "Role manager .rules[0].resources"),
            ("Role", "apps", "deployments", "*", Outcome::Fail, "Role manager .rules[0].verbs"),
            ("ClusterRole", "", "secrets", "get", Outcome::Warn, ".rules[0].resourceNames"),
            ("Role", "rbac.authorization.k8s.io", "roles", "escalate", Outcome::Warn, ".rules[0].verbs"),
        ] {
            let verdict = check(&[role(kind, group, resource, verb)], &[]);
            assert_eq!(verdict.result, result, "{verdict:?}");
            assert!(verdict.reason.contains(expected), "{}", verdict.reason);
        }
        let csv = json!({"kind": "ClusterServiceVersion", "spec": {"install": {"spec": {"clusterPermissions": [
            {"rules": [{"apiGroups": ["*"], "resources": ["pods"], "verbs": ["get"]}]}]}}}});
        assert_eq!(check(&[], &[csv]).result, Outcome::Fail);
        // The same rule was a warning in a ClusterRole, and none in the bundle that OLM makes it from.
        for (mode, result) in [("AllNamespaces", Outcome::Warn), ("MultiNamespace", Outcome::Pass)] {
            let csv = json!({"kind": "ClusterServiceVersion", "spec": {
                "installModes": [{"type": mode, "supported": true}, {"type": "AllNamespaces", "supported": false}],
                "install": {"spec": {"permissions": [{"rules": role("Role", "", "secrets", "get")["rules"]}]}}}});
            assert_eq!(check(&[], &[csv]).result, result, "{mode}");
        }
        assert_eq!(check(&[], &[]).result, Outcome::Skip);
    }

    #[test]
    fn a_binding_says_for_whom_a_role_is_and_where() {
        let wide = role("ClusterRole", "", "secrets", "get");
        for (binding, result) in [
            (binding("ClusterRoleBinding", "ServiceAccount"), Outcome::Warn),
            (binding("RoleBinding", "ServiceAccount"), Outcome::Pass),
            (binding("ClusterRoleBinding", "Group"), Outcome::Skip),
        ] {
            assert_eq!(check(&[wide.clone(), binding], &[]).result, result);
        }
    }
}
