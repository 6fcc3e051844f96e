//! The permissions that an operator needs, from what its controllers watch, keep and write, as a Role or a ClusterRole.
//!
//! ```yaml
//! # To create, correct and delete the children.
//! - apiGroups: [apps]
//!   resources: [deployments]
//!   verbs: [get, list, watch, create, patch, delete]
//! ```
//!
//! See <https://kubernetes.io/docs/reference/access-authn-authz/rbac/>.

use std::{collections::BTreeSet, fmt::Write};

use serde_json::Value;

/// Longest line of a comment.
const LINE_MAX: usize = 120;

/// A verb of a request, in the order in which roles list them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verb {
    /// Reads one object.
    Get,
    /// Reads the objects of a scope.
    List,
    /// Receives their changes.
    Watch,
    /// POST.
    Create,
    /// PUT, which the library never sends.
    Update,
    /// PATCH.
    Patch,
    /// DELETE of one object.
    Delete,
}

impl Verb {
    /// Those for objects that an operator keeps.
    pub const CHILDREN: &[Verb] =
        &[Verb::Get, Verb::List, Verb::Watch, Verb::Create, Verb::Patch, Verb::Delete];

    /// The name in a role.
    fn name(self) -> &'static str {
        match self {
            Verb::Get => "get",
            Verb::List => "list",
            Verb::Watch => "watch",
            Verb::Create => "create",
            Verb::Update => "update",
            Verb::Patch => "patch",
            Verb::Delete => "delete",
        }
    }
}

/// Where a permission applies.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reach {
    /// In all namespaces: in a ClusterRole.
    AllNamespaces,
    /// In one namespace: in a Role there.
    Namespace(String),
    /// In the namespace in which the operator runs: for the Lease of the leader election, and for the certificates of webhooks.
    OwnNamespace,
}

/// What an operator must be allowed to do with one resource, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permission {
    /// Where.
    pub reach: Reach,
    /// The API group, empty for the core group.
    pub group: &'static str,
    /// The plural name, with the subresource: `deployments`, `databases/status`.
    pub resource: String,
    /// The names of the objects. Empty: all objects.
    pub names: Vec<String>,
    /// The version and the kind of the objects. Empty for what an operator writes beside them, such as Events.
    pub kind: [&'static str; 2],
    /// The verbs.
    pub verbs: BTreeSet<Verb>,
    /// One or more sentences for people.
    pub reason: String,
}

impl Permission {
    /// To record Events about the objects of a namespace. Those about objects without a namespace are in `default`.
    #[must_use]
    pub fn of_events(reach: Reach) -> Permission {
        Permission {
            reach,
            group: "events.k8s.io",
            resource: "events".to_owned(),
            names: Vec::new(),
            kind: [""; 2],
            verbs: [Verb::Create, Verb::Patch].into(),
            reason: "To record Events. A repeated Event is a patch of the first one.".to_owned(),
        }
    }

    fn is_about(&self, other: &Permission) -> bool {
        (self.group, &self.resource, &self.names) == (other.group, &other.resource, &other.names)
    }
}

/// Adds a permission, or its verbs to the known one for the same resource in the same place, with the reason for verbs that are new.
pub fn add(permissions: &mut Vec<Permission>, new: Permission) {
    let known = permissions.iter_mut().find(|known| known.reach == new.reach && known.is_about(&new));
    let Some(known) = known else { return permissions.push(new) };
    if !known.verbs.is_superset(&new.verbs) {
        known.verbs.extend(&new.verbs);
        known.reason = format!("{} {}", known.reason, new.reason);
    }
}

/// The roles with exactly these permissions, as YAML, each rule with its reason: a ClusterRole, and for each namespace a Role of this name.
/// The Role for the Lease has no namespace, because only its installation knows it: `kubectl apply --namespace`.
#[must_use]
pub fn roles(name: &str, permissions: &[Permission]) -> String {
    let is_covered = |one: &Permission| {
        let covers = |other: &Permission| {
            other.reach == Reach::AllNamespaces && other.is_about(one) && other.verbs.is_superset(&one.verbs)
        };
        one.reach != Reach::AllNamespaces && permissions.iter().any(covers)
    };
    let needed: Vec<&Permission> = permissions.iter().filter(|one| !is_covered(one)).collect();
    let reaches: BTreeSet<&Reach> = needed.iter().map(|one| &one.reach).collect();
    let roles = reaches.into_iter().map(|reach| {
        let (kind, metadata) = match reach {
            Reach::AllNamespaces => ("ClusterRole", format!("  name: {}\n", quoted(name))),
            Reach::Namespace(namespace) => {
                ("Role", format!("  name: {}\n  namespace: {}\n", quoted(name), quoted(namespace)))
            }
            Reach::OwnNamespace => {
                let mut own = needed.iter().filter(|one| one.reach == *reach);
                let what =
                    if own.all(|one| one.resource == "leases") { "leader-election" } else { "own-namespace" };
                ("Role", format!("  name: {name}-{what}\n"))
            }
        };
        let head =
            format!("apiVersion: rbac.authorization.k8s.io/v1\nkind: {kind}\nmetadata:\n{metadata}rules:\n");
        head + &rules(needed.iter().copied().filter(|one| one.reach == *reach))
    });
    roles.collect::<Vec<_>>().join("---\n")
}

/// A name, in quotes if it would be something else than a text in YAML.
fn quoted(name: &str) -> String {
    listwatch_yaml::write(&name.into()).trim_end().to_owned()
}

/// The same roles as objects, without the reasons.
pub(crate) fn objects(name: &str, permissions: &[Permission]) -> Vec<Value> {
    let roles = roles(name, permissions);
    listwatch_yaml::documents(&roles).filter_map(Result::ok).collect()
}

/// The rules of one role. Resources of one group with the same verbs and the same reason share a rule.
fn rules<'a>(permissions: impl Iterator<Item = &'a Permission>) -> String {
    let mut rules: Vec<(&Permission, Vec<&str>)> = Vec::new();
    for new in permissions {
        let shares = |(one, _): &&mut (&Permission, Vec<&str>)| {
            (one.group, &one.verbs, &one.reason, &one.names)
                == (new.group, &new.verbs, &new.reason, &new.names)
        };
        match rules.iter_mut().find(shares) {
            Some((_, resources)) => resources.push(&new.resource),
            None => rules.push((new, vec![&new.resource])),
        }
    }
    let mut text = String::new();
    for (Permission { group, names, verbs, reason, .. }, resources) in rules {
        let group = if group.is_empty() { "\"\"" } else { group };
        let (resources, verbs) =
            (resources.join(", "), verbs.iter().map(|verb| verb.name()).collect::<Vec<_>>().join(", "));
        text += &comment(reason);
        let names = if names.is_empty() {
            String::new()
        } else {
            format!("  resourceNames: [{}]\n", names.join(", "))
        };
        // A String takes any text.
        let _ =
            write!(text, "- apiGroups: [{group}]\n  resources: [{resources}]\n{names}  verbs: [{verbs}]\n");
    }
    text
}

/// The text as lines of a comment.
fn comment(text: &str) -> String {
    let (mut lines, mut line) = (String::new(), "#".to_owned());
    for word in text.split_whitespace() {
        if line.len() + 1 + word.len() > LINE_MAX {
            lines += &(line + "\n");
            line = "#".to_owned();
        }
        line = format!("{line} {word}");
    }
    lines + &line + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn permission(resource: &str, namespace: Option<&str>, verbs: &[Verb], reason: &str) -> Permission {
        Permission {
            reach: namespace.map_or(Reach::AllNamespaces, |name| Reach::Namespace(name.to_owned())),
            group: if resource == "deployments" { "apps" } else { "" },
            resource: resource.to_owned(),
            names: Vec::new(),
            kind: [""; 2],
            verbs: verbs.iter().copied().collect(),
            reason: reason.to_owned(),
        }
    }

    #[test]
    fn a_resource_has_one_rule_in_each_role_with_all_its_verbs_and_their_reasons() {
        let mut permissions = Vec::new();
        for new in [
            permission("deployments", None, &[Verb::Watch, Verb::List], "To watch."),
            permission("deployments", None, &[Verb::Patch, Verb::List], "To write."),
            permission("deployments", None, &[Verb::List], "To list."),
            permission("deployments", None, &[Verb::Get], "To read."),
            permission("deployments", Some("a"), &[Verb::Delete], "To delete."),
        ] {
            add(&mut permissions, new);
        }
        let expected = "\
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: any
rules:
# To watch. To write. To read.
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list, watch, patch]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: any
  namespace: a
rules:
# To delete.
- apiGroups: [apps]
  resources: [deployments]
  verbs: [delete]
";
        assert_eq!(roles("any", &permissions), expected);
    }

    #[test]
    fn a_role_has_nothing_that_the_cluster_role_has_and_resources_with_the_same_rule_share_it() {
        let all = [Verb::List, Verb::Watch];
        let permissions = [
            permission("services", None, &all, "To watch."),
            permission("configmaps", None, &all, "To watch."),
            permission("configmaps", Some("a"), &[Verb::List], "To list."),
            Permission {
                reach: Reach::OwnNamespace,
                ..permission("services", None, &[Verb::Get], "To read.")
            },
        ];
        let text = roles("any", &permissions);
        assert!(text.contains("- apiGroups: [\"\"]\n  resources: [services, configmaps]\n"), "{text}");
        // The own namespace may be one that the ClusterRole covers, but it does not get the verb there.
        assert!(text.ends_with("  name: any-own-namespace\nrules:\n# To read.\n- apiGroups: [\"\"]\n  resources: [services]\n  verbs: [get]\n"), "{text}");
        assert_eq!(text.matches("rules:").count(), 2, "{text}");
    }

    #[test]
    fn a_long_reason_takes_several_lines() {
        let text = comment(&"word ".repeat(50));
        assert_eq!(text.lines().count(), 3);
        assert!(text.lines().all(|line| line.starts_with("# word") && line.len() <= LINE_MAX), "{text}");
    }
}
