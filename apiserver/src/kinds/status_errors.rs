//! Constructors of a StatusError whose message or `details` name a resource: `configmaps "nope" not found`.
//!
//! Errors without a resource are in [`status`](crate::status), and so is the 422 with its list of causes, `invalid_as`.

use serde_json::json;

use crate::{
    kinds::Kind,
    status::{Cause, StatusBody, StatusError, details, qualified},
};

impl StatusError {
    pub(crate) fn forbidden(kind: &Kind, name: &str, why: &str) -> StatusError {
        let message = format!("{} \"{name}\" is forbidden: {why}", kind.resource());
        StatusError::new(403, "Forbidden", message, Some(details(name, &kind.group, &kind.plural)))
    }

    /// The namespace is being deleted, and no object can be created in it.
    pub(crate) fn namespace_terminating(kind: &Kind, name: &str, namespace: &str) -> StatusError {
        let why =
            format!("unable to create new content in namespace {namespace} because it is being terminated");
        let mut details = details(name, &kind.group, &kind.plural);
        details["causes"] = json!([{
            "reason": "NamespaceTerminating",
            "message": format!("namespace {namespace} is being terminated"),
            "field": "metadata.namespace",
        }]);
        let message = format!("{} \"{name}\" is forbidden: {why}", kind.resource());
        StatusError::new(403, "Forbidden", message, Some(details))
    }

    pub(crate) fn is_namespace_terminating(&self) -> bool {
        let StatusBody::Status(status) = &self.body else { return false };
        status["details"]["causes"][0]["reason"] == "NamespaceTerminating"
    }

    pub(crate) fn not_found(kind: &Kind, name: &str) -> StatusError {
        let message = format!("{} \"{name}\" not found", kind.resource());
        StatusError::new(404, "NotFound", message, Some(details(name, &kind.group, &kind.plural)))
    }

    /// A 405 for custom resources, with the message of apiextensions-apiserver.
    pub(crate) fn verb_not_supported(kind: &Kind, verb: &str) -> StatusError {
        let message = format!("{verb} is not supported on resources of kind \"{}\"", kind.resource());
        StatusError::new(405, "MethodNotAllowed", message, Some(details("", &kind.group, &kind.plural)))
    }

    pub(crate) fn already_exists(kind: &Kind, name: &str) -> StatusError {
        let message = format!("{} \"{name}\" already exists", kind.resource());
        StatusError::new(409, "AlreadyExists", message, Some(details(name, &kind.group, &kind.plural)))
    }

    pub(crate) fn conflict(kind: &Kind, name: &str) -> StatusError {
        let why =
            "the object has been modified; please apply your changes to the latest version and try again";
        StatusError::cannot_fulfil(kind, name, why)
    }

    pub(crate) fn cannot_fulfil(kind: &Kind, name: &str, why: &str) -> StatusError {
        let message = format!("Operation cannot be fulfilled on {} \"{name}\": {why}", kind.resource());
        StatusError::new(409, "Conflict", message, Some(details(name, &kind.group, &kind.plural)))
    }

    /// A failed precondition of a delete. Only this Conflict names the Kind instead of the resource.
    pub(crate) fn precondition(kind: &Kind, name: &str, why: &str) -> StatusError {
        let what = qualified(&kind.kind, &kind.group);
        let message = format!("Operation cannot be fulfilled on {what} \"{name}\": {why}");
        StatusError::new(409, "Conflict", message, Some(details(name, &kind.group, &kind.kind)))
    }

    pub(crate) fn invalid(kind: &Kind, name: &str, causes: Vec<Cause>) -> StatusError {
        // Both versions of an Event are validated as the core kind.
        let group = if kind.built_in() == "Event" { "" } else { &kind.group };
        StatusError::invalid_as(group, &kind.kind, name, causes)
    }

    /// A custom resource with another `kind` than its path. The error names the kind of the body.
    pub(crate) fn wrong_kind(kind: &Kind, theirs: &str, name: &str) -> StatusError {
        let cause = Cause::invalid("kind", &theirs.into(), &format!("must be {}", kind.kind));
        StatusError::invalid_as(&kind.group, theirs, name, vec![cause])
    }

    /// An update without a resourceVersion. Like kube-apiserver, it names the resource instead of the Kind.
    pub(crate) fn version_required(kind: &Kind, name: &str) -> StatusError {
        let cause = Cause::invalid("metadata.resourceVersion", &json!(0), "must be specified for an update");
        StatusError::invalid_as(&kind.group, &kind.plural, name, vec![cause])
    }
}
