//! The rights of Pods: ServiceAccount, Role and RoleBinding.

use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use super::{LocalObjectReference, kinds, parts};
use crate::resource::{
    ObjectMeta,
    diff::{Merge, MergeRule},
};

kinds! {
    /// `v1` ServiceAccount: who a Pod is for the API server.
    /// See <https://kubernetes.io/docs/reference/kubernetes-api/authentication-resources/service-account-v1/>.
    ServiceAccount {
        /// The Secrets for private registries, for its Pods.
        image_pull_secrets: Vec<LocalObjectReference>,
        /// Whether its Pods get credentials for the API server. The default is true.
        automount_service_account_token: Option<bool>,
    }

    /// `rbac.authorization.k8s.io/v1` Role: rights in a namespace.
    /// See <https://kubernetes.io/docs/reference/kubernetes-api/authorization-resources/role-v1/>.
    Role {
        /// The rights.
        rules: Vec<PolicyRule>,
    }

    /// `rbac.authorization.k8s.io/v1` RoleBinding: who has the rights of a Role.
    /// See <https://kubernetes.io/docs/reference/kubernetes-api/authorization-resources/role-binding-v1/>.
    RoleBinding {
        /// The Role. Immutable.
        role_ref: RoleRef,
        /// Who has its rights.
        subjects: Vec<Subject>,
    }
}

crate::kind!(ServiceAccount, "", "v1", "serviceaccounts");

crate::kind!(Role, "rbac.authorization.k8s.io", "v1", "roles", {
    const MERGE: &'static [MergeRule] = &[("/rules", Merge::Owned)];
});

crate::kind!(RoleBinding, "rbac.authorization.k8s.io", "v1", "rolebindings", {
    const MERGE: &'static [MergeRule] =
        &[("/subjects", Merge::Owned), ("/subjects/*/apiGroup", Merge::Defaulted)];

    fn is_immutable(&self, path: &str) -> bool {
        path.starts_with("/roleRef")
    }
});

parts! {
    /// Some rights.
    PolicyRule {
        /// The API groups; the core group is empty.
        api_groups: Vec<SmolStr>,
        /// `pods`, `pods/status`
        resources: Vec<SmolStr>,
        /// The names of single objects. Empty: all.
        resource_names: Vec<SmolStr>,
        /// `get`, `list`, `watch`, `create`, `patch`, `delete`, …
        verbs: Vec<SmolStr>,
    }

    /// The Role of a [`RoleBinding`].
    RoleRef {
        /// `rbac.authorization.k8s.io`, which the API server sets.
        api_group: SmolStr,
        /// `Role` or `ClusterRole`.
        kind: SmolStr,
        /// Its name.
        name: SmolStr,
    }

    /// Who has the rights of a [`RoleBinding`].
    Subject {
        /// `ServiceAccount`, `User` or `Group`.
        kind: SmolStr,
        /// Its name.
        name: SmolStr,
        /// The namespace of a ServiceAccount.
        namespace: SmolStr,
        /// The API server sets it.
        api_group: SmolStr,
    }
}
