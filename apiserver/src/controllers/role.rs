//! ClusterRoles: the roles of every cluster, and aggregated roles, whose rules come from other roles.

use listwatch_formats::selector::Selector;
use serde_json::Value;

use super::{change, make};
use crate::{
    kinds::{Part, field_checks::each},
    storage::{Place, Storage},
};

pub(crate) const ROLES: &str = "clusterroles.rbac.authorization.k8s.io";

/// kube-apiserver's roles and bindings for users, without the ones for components of the cluster. One object in each line.
const DEFAULTS: &str = include_str!("default_roles.json");

pub(crate) fn bootstrap(storage: &mut Storage) {
    for line in DEFAULTS.lines() {
        let object: Value = serde_json::from_str(line).expect("a test writes it");
        let plural = if object["kind"] == "ClusterRole" { "clusterroles" } else { "clusterrolebindings" };
        make(storage, "rbac.authorization.k8s.io", plural, None, object);
    }
}

/// The roles with rules of other roles.
pub(crate) fn aggregating(storage: &Storage) -> Vec<Place> {
    let roles = storage.collection(ROLES).into_iter().flat_map(|roles| &roles.objects);
    let aggregating = roles.filter(|(_, role)| !role["aggregationRule"].is_null());
    aggregating.map(|(name, _)| Place::new(ROLES, None, name)).collect()
}

/// Reconciles a ClusterRole: copies the rules of the roles that it selects.
pub(crate) fn aggregate(storage: &mut Storage, place: &Place, role: &Value) {
    let selectors = &role["aggregationRule"]["clusterRoleSelectors"];
    if selectors.is_null() {
        return;
    }
    let mut rules: Vec<Value> = Vec::new();
    for (name, other) in storage.collection(ROLES).into_iter().flat_map(|roles| &roles.objects) {
        let is_selected = |selector| Selector::from_object(selector).matches(&other["metadata"]["labels"]);
        if name != place.name() && each(selectors).any(is_selected) {
            for rule in each(&other["rules"]) {
                if !rules.contains(rule) {
                    rules.push(rule.clone());
                }
            }
        }
    }
    change(storage, place, Part::Main, |role| {
        role["rules"] = if rules.is_empty() { Value::Null } else { rules.into() };
    });
}
