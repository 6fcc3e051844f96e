//! The `authorizer` in CEL, which asks what a user may do.
//!
//! ```text
//! authorizer.group('apps').resource('deployments').namespace('default').check('create').allowed()
//! authorizer.serviceAccount('default', 'web').path('/metrics').check('get').reason()
//! ```
//!
//! See <https://kubernetes.io/docs/reference/using-api/cel/#kubernetes-authorizer-library>.

use std::{fmt, sync::Arc};

use cel::{
    DeclarationError, Env, ExecutionError,
    common::{
        types::{CelBool, CelString, Type},
        value::{CowVal, Val},
    },
};
use serde_json::{Value, json};

use crate::{
    names::{label_errors, subdomain_errors},
    schema::cel_library::{Copy, Opaque, OpaqueType, copy, error, function_table, method},
};

/// Answers the `spec` of an access review with its `status`. The user is a ServiceAccount, or the request's user.
pub(crate) type Authorize = dyn Fn(Option<&str>, &Value) -> Value + Send + Sync;

/// Decides for one user.
#[derive(Clone)]
pub(crate) struct Authorizer {
    authorize: Arc<Authorize>,
    account: Option<String>,
}

impl fmt::Debug for Authorizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authorizer").field("account", &self.account).finish_non_exhaustive()
    }
}

impl PartialEq for Authorizer {
    fn eq(&self, other: &Authorizer) -> bool {
        self.account == other.account
    }
}

/// A question to an authorizer: a part of the `spec` of an access review.
#[derive(Clone, Debug, PartialEq)]
struct Question {
    authorizer: Authorizer,
    attributes: Value,
}

#[derive(Clone, Debug, PartialEq)]
struct PathCheck(Question);

#[derive(Clone, Debug, PartialEq)]
struct GroupCheck(Question);

#[derive(Clone, Debug, PartialEq)]
struct ResourceCheck(Question);

#[derive(Clone, Debug, PartialEq)]
struct Decision(Value);

impl OpaqueType for Authorizer {
    const TYPE: &'static Type = &Type::new_unspecified_type("kubernetes.authorization.Authorizer");
}

impl OpaqueType for PathCheck {
    const TYPE: &'static Type = &Type::new_unspecified_type("kubernetes.authorization.PathCheck");
}

impl OpaqueType for GroupCheck {
    const TYPE: &'static Type = &Type::new_unspecified_type("kubernetes.authorization.GroupCheck");
}

impl OpaqueType for ResourceCheck {
    const TYPE: &'static Type = &Type::new_unspecified_type("kubernetes.authorization.ResourceCheck");
}

impl OpaqueType for Decision {
    const TYPE: &'static Type = &Type::new_unspecified_type("kubernetes.authorization.Decision");
}

/// For all types of this file.
pub(super) const COPIES: [Copy; 5] =
    [copy::<Authorizer>, copy::<PathCheck>, copy::<GroupCheck>, copy::<ResourceCheck>, copy::<Decision>];

/// The values of `authorizer` and `authorizer.requestResource`, for this AdmissionRequest.
pub(crate) fn authorizer(authorize: Arc<Authorize>, request: &Value) -> [Box<dyn Val>; 2] {
    let authorizer = Authorizer { authorize, account: None };
    let attributes = json!({
        "group": request["requestResource"]["group"], "resource": request["requestResource"]["resource"],
        "subresource": request["requestSubResource"], "namespace": request["namespace"], "name": request["name"],
    });
    let resource = ResourceCheck(Question { authorizer: authorizer.clone(), attributes });
    [Box::new(Opaque(authorizer)), Box::new(Opaque(resource))]
}

/// Declares the functions of an authorizer.
pub(super) fn declare(env: &mut Env) -> Result<(), DeclarationError> {
    function_table! { env:
        method "serviceAccount"(authorizer: Opaque<Authorizer>, namespace: CelString, name: CelString) -> Opaque
            = authorizer.0.of_account(namespace, name)?;
        method "path"(authorizer: Opaque<Authorizer>, path: CelString) -> Opaque
            = PathCheck(authorizer.0.ask("path", not_empty("path", path)?));
        method "group"(authorizer: Opaque<Authorizer>, group: CelString) -> Opaque
            = GroupCheck(authorizer.0.ask("group", group));
        method "resource"(check: Opaque<GroupCheck>, resource: CelString) -> Opaque
            = ResourceCheck(check.0.0.with("resource", not_empty("resource", resource)?));
        method "subresource"(check: Opaque<ResourceCheck>, name: CelString) -> Opaque
            = ResourceCheck(check.0.0.with("subresource", name));
        method "namespace"(check: Opaque<ResourceCheck>, name: CelString) -> Opaque
            = ResourceCheck(check.0.0.with("namespace", name));
        method "name"(check: Opaque<ResourceCheck>, name: CelString) -> Opaque
            = ResourceCheck(check.0.0.with("name", name));
        // No rule of RBAC depends on a selector.
        method "fieldSelector"(check: Opaque<ResourceCheck>, _selector: CelString) -> Opaque = check.0.clone();
        method "labelSelector"(check: Opaque<ResourceCheck>, _selector: CelString) -> Opaque = check.0.clone();
        method "check"(check: Opaque<PathCheck>, verb: CelString) -> Opaque
            = check.0.0.decide("nonResourceAttributes", verb);
        method "check"(check: Opaque<ResourceCheck>, verb: CelString) -> Opaque
            = check.0.0.decide("resourceAttributes", verb);
        method "allowed"(decision: Opaque<Decision>) -> CelBool = decision.0.0["allowed"] == true;
        method "reason"(decision: Opaque<Decision>) -> CelString
            = decision.0.0["reason"].as_str().unwrap_or_default().to_owned();
        // The authorizer of this server has no errors.
        method "errored"(_decision: Opaque<Decision>) -> CelBool = false;
        method "error"(_decision: Opaque<Decision>) -> CelString = String::new();
    }
    Ok(())
}

fn not_empty<'t>(what: &str, text: &'t str) -> Result<&'t str, ExecutionError> {
    if text.trim().is_empty() { Err(error(format!("{what} must not be empty"))) } else { Ok(text) }
}

impl Authorizer {
    fn of_account(&self, namespace: &str, name: &str) -> Result<Authorizer, ExecutionError> {
        if !subdomain_errors(name).is_empty() {
            return Err(error("Invalid service account name"));
        }
        if !label_errors(namespace).is_empty() {
            return Err(error("Invalid service account namespace"));
        }
        let account = Some(format!("system:serviceaccount:{namespace}:{name}"));
        Ok(Authorizer { authorize: Arc::clone(&self.authorize), account })
    }

    fn ask(&self, field: &str, value: &str) -> Question {
        Question { authorizer: self.clone(), attributes: json!({}) }.with(field, value)
    }
}

impl Question {
    fn with(&self, field: &str, value: &str) -> Question {
        let mut question = self.clone();
        question.attributes[field] = value.into();
        question
    }

    fn decide(&self, field: &str, verb: &str) -> Decision {
        let spec = json!({field: self.with("verb", verb).attributes});
        Decision((self.authorizer.authorize)(self.authorizer.account.as_deref(), &spec))
    }
}
