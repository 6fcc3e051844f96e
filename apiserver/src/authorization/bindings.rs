//! RBAC: the rules that Roles, ClusterRoles and their bindings give to a user.
//!
//! ```text
//! RoleBinding default/readers: Role default/reader, to User jane   → the rules of the Role, in the namespace `default`
//! ```

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

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

/// The objects of a collection of Roles or bindings, by its plural.
pub(crate) type Collections<'c> = dyn Fn(&str) -> Option<&'c BTreeMap<String, Arc<Value>>> + 'c;

/// The permissions of all users at one time.
pub(crate) struct Permissions {
    /// The rules that the test has given, by user.
    given: HashMap<String, Vec<Rule>>,
    rbac: bool,
    objects: HashMap<&'static str, BTreeMap<String, Arc<Value>>>,
}

impl Permissions {
    pub(crate) fn new(storage: &Storage, given: HashMap<String, Vec<Rule>>, rbac: bool) -> Permissions {
        let collections = ["clusterrolebindings", "clusterroles", "rolebindings", "roles"];
        let objects =
            collections.map(|plural| (plural, stored(storage, plural).cloned().unwrap_or_default()));
        Permissions { given, rbac, objects: objects.into() }
    }

    /// The `status` of an access review.
    pub(crate) fn review(&self, user: &Subject, spec: &Value) -> Value {
        let given = self.given.get(&user.name).cloned();
        let granted = granted(&|plural| self.objects.get(plural), given, self.rbac, user);
        super::review(granted, spec)
    }
}

/// The objects of a collection of Roles or bindings.
pub(crate) fn stored<'s>(storage: &'s Storage, plural: &str) -> Option<&'s BTreeMap<String, Arc<Value>>> {
    Some(&storage.collection(&format!("{plural}.rbac.authorization.k8s.io"))?.objects)
}

/// The rules of a user, each with the binding that grants it. `None`: the user has full access.
pub(crate) fn granted(
    collections: &Collections<'_>,
    given: Option<Vec<Rule>>,
    rbac: bool,
    user: &Subject,
) -> Option<Vec<Granted>> {
    let is_master = |group: &String| group == MASTERS;
    if given.is_none() && (!rbac || user.groups.iter().any(is_master)) {
        return None;
    }
    let mut user = user.clone();
    user.groups.retain(|group| given.is_none() || !is_master(group));
    let given = given.into_iter().flatten().map(|rule| Granted { rule, by: String::new() });
    Some(given.chain(of_bindings(collections, &user)).collect())
}

/// The rules that all bindings give to a user, ClusterRoleBindings first.
fn of_bindings(collections: &Collections<'_>, user: &Subject) -> Vec<Granted> {
    let mut all = Vec::new();
    for plural in ["clusterrolebindings", "rolebindings"] {
        for (key, binding) in collections(plural).into_iter().flatten() {
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
            for mut rule in rules_of(collections, kind, namespace, name) {
                rule.namespace = namespace.map(str::to_owned);
                all.push(Granted { rule, by: by.clone() });
            }
        }
    }
    all
}

fn rules_of(collections: &Collections<'_>, kind: &str, namespace: Option<&str>, name: &str) -> Vec<Rule> {
    let (plural, namespace) = match kind {
        "Role" => ("roles", namespace),
        _ => ("clusterroles", None),
    };
    let role = collections(plural).and_then(|roles| roles.get(&Place::new("", namespace, name).key));
    let rules = role.map_or(&Value::Null, |role| &role["rules"]);
    each(rules).filter_map(|rule| Rule::deserialize(rule).ok()).collect()
}
