//! RBAC: the rules that Roles, ClusterRoles and their bindings give to a user.
//!
//! ```text
//! RoleBinding default/readers: Role default/reader, to User jane   → the rules of the Role, in the namespace `default`
//! ```

use serde::Deserialize;
use serde_json::Value;

use super::{ADMIN, ANONYMOUS, Rule};
use crate::{
    kinds::field_checks::{each, text},
    storage::{Place, Storage},
};

/// The group with full access.
pub(crate) const MASTERS: &str = "system:masters";

/// A user and its groups.
#[derive(Clone, Debug)]
pub(crate) struct Subject {
    pub(crate) name: String,
    pub(crate) groups: Vec<String>,
}

impl Subject {
    /// A user of this server, with the groups that follow from its name.
    pub(crate) fn of(user: Option<&str>) -> Subject {
        let name = user.unwrap_or(ANONYMOUS).to_owned();
        let groups = match name.split(':').collect::<Vec<_>>()[..] {
            ["system", "serviceaccount", namespace, _] => {
                vec!["system:serviceaccounts".to_owned(), format!("system:serviceaccounts:{namespace}")]
            }
            _ if name == ADMIN => vec![MASTERS.to_owned()],
            _ => Vec::new(),
        };
        let last = if user.is_some() { "system:authenticated" } else { "system:unauthenticated" };
        Subject { name, groups: groups.into_iter().chain([last.to_owned()]).collect() }
    }

    /// How a binding names the subject, as kube-apiserver writes it.
    fn is_named_by(&self, subject: &Value, namespace: &str) -> Option<String> {
        let name = text(&subject["name"]);
        match text(&subject["kind"]) {
            "User" if name == self.name => Some(format!("User {name:?}")),
            "Group" if self.groups.iter().any(|group| group == name) => Some(format!("Group {name:?}")),
            "ServiceAccount" => {
                let of_binding = subject["namespace"].as_str().unwrap_or(namespace);
                let is_same = self.name == format!("system:serviceaccount:{of_binding}:{name}");
                is_same.then(|| format!("ServiceAccount {:?}", format!("{name}/{of_binding}")))
            }
            _ => None,
        }
    }
}

/// A rule, and the binding that grants it.
pub(crate) struct Granted {
    pub(crate) rule: Rule,
    pub(crate) by: String,
}

/// The rules that all bindings give to a user: first those of ClusterRoleBindings.
pub(crate) fn granted(storage: &Storage, user: &Subject) -> Vec<Granted> {
    let mut all = Vec::new();
    for collection in ["clusterrolebindings", "rolebindings"] {
        let bindings = storage.collection(&format!("{collection}.rbac.authorization.k8s.io"));
        for (key, binding) in bindings.into_iter().flat_map(|bindings| &bindings.objects) {
            let namespace = binding["metadata"]["namespace"].as_str();
            let of = |subject| user.is_named_by(subject, namespace.unwrap_or_default());
            let Some(subject) = each(&binding["subjects"]).find_map(of) else { continue };
            let (kind, name) = (text(&binding["roleRef"]["kind"]), text(&binding["roleRef"]["name"]));
            let kind_of_binding = text(&binding["kind"]);
            let name_of_binding = match key.split_once('/') {
                Some((namespace, name)) => format!("{name}/{namespace}"),
                None => key.clone(),
            };
            let by = format!(
                "RBAC: allowed by {kind_of_binding} {name_of_binding:?} of {kind} {name:?} to {subject}"
            );
            for mut rule in rules_of(storage, kind, namespace, name) {
                rule.namespace = namespace.map(str::to_owned);
                all.push(Granted { rule, by: by.clone() });
            }
        }
    }
    all
}

fn rules_of(storage: &Storage, kind: &str, namespace: Option<&str>, name: &str) -> Vec<Rule> {
    let place = match kind {
        "Role" => Place::new("roles.rbac.authorization.k8s.io", namespace, name),
        _ => Place::new("clusterroles.rbac.authorization.k8s.io", None, name),
    };
    let rules = storage.get(&place).map_or(&Value::Null, |role| &role["rules"]);
    each(rules).filter_map(|rule| Rule::deserialize(rule).ok()).collect()
}
