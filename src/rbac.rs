//! The permissions that an operator needs, from what its controllers watch, keep and write, as a Role or a ClusterRole.
//!
//! A [`Builder`](crate::controller::Builder) declares a permission with each watch and each kind of child; what it cannot know, the operator
//! declares itself. See <https://kubernetes.io/docs/reference/access-authn-authz/rbac/>.

#[doc(inline)]
pub use listwatch_install::rbac::{Permission, Reach, Verb, roles};

use crate::resource::Resource;

/// For the objects of a kind.
pub(crate) fn of<K: Resource>(reach: Reach, verbs: &[Verb], reason: &str) -> Permission {
    Permission {
        reach,
        group: K::GROUP,
        resource: K::PLURAL.to_owned(),
        names: Vec::new(),
        kind: [K::VERSION, K::KIND],
        verbs: verbs.iter().copied().collect(),
        reason: reason.to_owned(),
    }
}

/// For a subresource, such as `status`.
pub(crate) fn of_part<K: Resource>(part: &str, reach: Reach, verbs: &[Verb], reason: &str) -> Permission {
    let resource = format!("{}/{part}", K::PLURAL);
    Permission { resource, ..of::<K>(reach, verbs, reason) }
}

/// To ask the API server who asks for the metrics.
pub(crate) fn of_review(group: &'static str, resource: &str) -> Permission {
    Permission {
        reach: Reach::AllNamespaces,
        group,
        resource: resource.to_owned(),
        names: Vec::new(),
        kind: [""; 2],
        verbs: [Verb::Create].into(),
        reason: "To check who asks for the metrics.".to_owned(),
    }
}

/// In these namespaces. Without any, in all.
pub(crate) fn reaches(namespaces: &[String]) -> Vec<Reach> {
    if namespaces.is_empty() {
        return vec![Reach::AllNamespaces];
    }
    namespaces.iter().cloned().map(Reach::Namespace).collect()
}
