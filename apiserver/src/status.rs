//! The errors of requests: a `Status` object, with the causes of a 422, or plain text where kube-apiserver sends plain text.
//!
//! ```json
//! {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
//!  "message": "configmaps \"nope\" not found", "reason": "NotFound",
//!  "details": {"name": "nope", "kind": "configmaps"}, "code": 404}
//! ```
//!
//! Programs read the `reason`, people the message. `details.kind` is the plural in most errors, but the Kind for
//! invalid objects, as in kube-apiserver.

use std::{collections::HashSet, fmt};

use serde_json::{Value, json};

/// The error of a refused request.
#[derive(Clone, Debug)]
pub(crate) struct StatusError {
    pub(crate) code: u16,
    pub(crate) body: StatusBody,
}

#[derive(Clone, Debug)]
pub(crate) enum StatusBody {
    Status(Box<Value>),
    /// The plain text of an error, as for unknown paths, which Go's HTTP library answers.
    Text(String),
}

/// One error in an invalid object: a field.Error.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Cause {
    reason: &'static str,
    message: String,
    field: String,
}

impl Cause {
    pub(crate) fn invalid(field: impl Into<String>, value: &Value, text: &str) -> Cause {
        Cause::new("FieldValueInvalid", field, format!("Invalid value: {}: {text}", shown(value)))
    }

    pub(crate) fn wrong_type(field: impl Into<String>, value: &Value, text: &str) -> Cause {
        Cause::new("FieldValueTypeInvalid", field, format!("Invalid value: {value}: {text}"))
    }

    pub(crate) fn required(field: impl Into<String>, text: &str) -> Cause {
        let text = if text.is_empty() { String::new() } else { format!(": {text}") };
        Cause::new("FieldValueRequired", field, format!("Required value{text}"))
    }

    /// A missing value that must be in the object.
    pub(crate) fn not_found(field: impl Into<String>, value: &Value) -> Cause {
        Cause::new("FieldValueNotFound", field, format!("Not found: {}", shown(value)))
    }

    pub(crate) fn forbidden(field: impl Into<String>, text: &str) -> Cause {
        Cause::new("FieldValueForbidden", field, format!("Forbidden: {text}"))
    }

    pub(crate) fn not_supported(field: impl Into<String>, value: &Value, supported: &[String]) -> Cause {
        let supported: Vec<String> = supported.iter().map(|one| format!("{one:?}")).collect();
        let text = format!("Unsupported value: {}: supported values: {}", shown(value), supported.join(", "));
        Cause::new("FieldValueNotSupported", field, text)
    }

    pub(crate) fn duplicate(field: impl Into<String>, value: &Value) -> Cause {
        Cause::new("FieldValueDuplicate", field, format!("Duplicate value: {}", shown(value)))
    }

    pub(crate) fn too_many(field: impl Into<String>, actual: usize, text: &str) -> Cause {
        Cause::new("FieldValueTooMany", field, format!("Too many: {actual}: {text}"))
    }

    pub(crate) fn too_long(field: impl Into<String>, text: &str) -> Cause {
        Cause::new("FieldValueTooLong", field, format!("Too long: {text}"))
    }

    /// The error of a failed CEL rule. It does not contain objects and lists.
    pub(crate) fn rule_failed(field: impl Into<String>, value: &Value, text: &str) -> Cause {
        match value {
            Value::Object(_) | Value::Array(_) => {
                Cause::new("FieldValueInvalid", field, format!("Invalid value: {text}"))
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
                Cause::invalid(field, value, text)
            }
        }
    }

    /// Puts the path of a parent in front of the field.
    pub(crate) fn under(mut self, field: &str) -> Cause {
        let dot = if self.field.is_empty() { "" } else { "." };
        self.message = self.message.replace(": body in body", ":  in body");
        self.field = format!("{field}{dot}{}", self.field);
        self
    }

    /// Whether this error prevents the check of CEL rules.
    pub(crate) fn blocks_rules(&self) -> bool {
        let blocking = [
            "FieldValueNotSupported",
            "FieldValueRequired",
            "FieldValueTooLong",
            "FieldValueTooMany",
            "FieldValueTypeInvalid",
        ];
        blocking.contains(&self.reason)
    }

    pub(crate) fn rules_not_checked() -> Cause {
        let text = "some validation rules were not checked because the object was invalid; correct the existing \
            errors to complete validation";
        Cause::invalid("<nil>", &Value::Null, text)
    }

    /// The size of the text.
    pub(crate) fn bytes(&self) -> usize {
        self.field.len() + self.message.len()
    }

    fn new(reason: &'static str, field: impl Into<String>, message: String) -> Cause {
        Cause { reason, message, field: field.into() }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}

/// Errors show an object as JSON, as in Go.
fn shown(value: &Value) -> String {
    value.to_string()
}

impl StatusError {
    pub(crate) fn new(
        code: u16,
        reason: &str,
        message: impl Into<String>,
        details: Option<Value>,
    ) -> StatusError {
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": message.into(), "code": code,
        });
        // An unclassified error has no reason.
        if !reason.is_empty() {
            status["reason"] = reason.into();
        }
        if let Some(details) = details {
            status["details"] = details;
        }
        StatusError { code, body: StatusBody::Status(Box::new(status)) }
    }

    /// The Status of an ERROR event in a watch.
    pub(crate) fn into_status(self) -> Value {
        match self.body {
            StatusBody::Status(status) => *status,
            StatusBody::Text(text) => json!({"kind": "Status", "apiVersion": "v1", "message": text}),
        }
    }

    /// Adds a cause that has only a reason, which programs read.
    pub(crate) fn with_reason(mut self, reason: &str) -> StatusError {
        if let StatusBody::Status(status) = &mut self.body {
            status["details"]["causes"] = json!([{"reason": reason}]);
        }
        self
    }

    pub(crate) fn message(&self) -> &str {
        match &self.body {
            StatusBody::Status(status) => status["message"].as_str().unwrap_or_default(),
            StatusBody::Text(text) => text,
        }
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> StatusError {
        StatusError::new(400, "BadRequest", message, None)
    }

    pub(crate) fn unauthorized() -> StatusError {
        StatusError::new(401, "Unauthorized", "Unauthorized", None)
    }

    /// The error if no rule allows the request: see [`crate::authorization`].
    pub(crate) fn not_allowed(message: String, details: Value) -> StatusError {
        StatusError::new(403, "Forbidden", message, Some(details))
    }

    /// A resource that does not exist in a built-in group.
    pub(crate) fn no_such_resource() -> StatusError {
        let message = "the server could not find the requested resource";
        StatusError::new(404, "NotFound", message, Some(json!({})))
    }

    /// A resource of kube-apiserver that is not supported here. kubectl shows the message.
    pub(crate) fn not_served(resource: &str) -> StatusError {
        let message = format!("{resource} is not served by the embedded API server of listwatch");
        StatusError::new(404, "NotFound", message, Some(json!({})))
    }

    /// `/api/v1/watch/…`: deprecated since 1.11, not supported here.
    pub(crate) fn no_old_watch() -> StatusError {
        let message = "paths with the prefix /watch are not served by the embedded API server of listwatch; use ?watch=1";
        StatusError::new(404, "NotFound", message, Some(json!({})))
    }

    pub(crate) fn no_such_path() -> StatusError {
        StatusError { code: 404, body: StatusBody::Text("404 page not found\n".to_owned()) }
    }

    pub(crate) fn method_not_allowed() -> StatusError {
        let message = "the server does not allow this method on the requested resource";
        StatusError::new(405, "MethodNotAllowed", message, Some(json!({})))
    }

    pub(crate) fn not_acceptable(message: &str) -> StatusError {
        StatusError::new(406, "NotAcceptable", message, None)
    }

    /// No media type that the client accepts is supported.
    pub(crate) fn no_media_type() -> StatusError {
        StatusError::not_acceptable(
            "only the following media types are accepted: application/json, application/yaml",
        )
    }

    /// The conflict of an apply with fields of other managers. Each conflict is a manager and a path.
    pub(crate) fn apply_conflict(conflicts: &[(String, String)]) -> StatusError {
        let message = match conflicts {
            [(manager, path)] => format!("Apply failed with 1 conflict: conflict with {manager}: {path}"),
            conflicts => {
                let mut lines = Vec::new();
                for (at, (manager, path)) in conflicts.iter().enumerate() {
                    if at == 0 || conflicts[at - 1].0 != *manager {
                        lines.push(format!("conflicts with {manager}:"));
                    }
                    lines.push(format!("- {path}"));
                }
                format!("Apply failed with {} conflicts: {}", conflicts.len(), lines.join("\n"))
            }
        };
        let causes = conflicts.iter().map(|(manager, path)| {
            json!({"reason": "FieldManagerConflict", "message": format!("conflict with {manager}"), "field": path})
        });
        let causes: Vec<Value> = causes.collect();
        StatusError::new(409, "Conflict", message, Some(json!({"causes": causes})))
    }

    pub(crate) fn expired(message: impl Into<String>) -> StatusError {
        StatusError::new(410, "Expired", message, None)
    }

    /// An expired `continue` token. The Status contains a new token, which continues at the present version.
    pub(crate) fn continue_expired(token: String) -> StatusError {
        let message = "The provided continue parameter is too old to display a consistent list result. You can \
            start a new list without the continue parameter, or use the continue token in this response to \
            retrieve the remainder of the results. Continuing with the provided token results in an inconsistent \
            list - objects that were created, modified, or deleted between the time the first chunk was returned \
            and now may show up in the list.";
        let mut error = StatusError::expired(message);
        if let StatusBody::Status(status) = &mut error.body {
            status["metadata"]["continue"] = token.into();
        }
        error
    }

    pub(crate) fn too_large(limit: usize) -> StatusError {
        let message = format!("Request entity too large: limit is {limit}");
        StatusError::new(413, "RequestEntityTooLarge", message, None)
    }

    pub(crate) fn too_large_because(message: String) -> StatusError {
        StatusError::new(413, "RequestEntityTooLarge", message, None)
    }

    pub(crate) fn unsupported_media_type(accepted: &[&str]) -> StatusError {
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: {}",
            accepted.join(", ")
        );
        StatusError::new(415, "UnsupportedMediaType", message, None)
    }

    /// The same for a patch of a built-in kind, for which kube-apiserver has a different message.
    pub(crate) fn unsupported_patch() -> StatusError {
        StatusError::new(415, "UnsupportedMediaType", "415: Unsupported Media Type", Some(json!({})))
    }

    /// Invalid parameters of a list, a watch, a patch or a delete.
    pub(crate) fn invalid_options(options: &str, causes: Vec<Cause>) -> StatusError {
        StatusError::invalid_as("meta.k8s.io", options, "", causes)
    }

    pub(crate) fn invalid_as(group: &str, kind: &str, name: &str, causes: Vec<Cause>) -> StatusError {
        let mut texts: Vec<String> = causes.iter().map(Cause::to_string).collect();
        // Duplicate causes are listed twice, but appear once in the message.
        let mut seen = HashSet::new();
        texts.retain(|text| seen.insert(text.clone()));
        let text = if let [one] = &texts[..] { one.clone() } else { format!("[{}]", texts.join(", ")) };
        let message = format!("{} \"{name}\" is invalid: {text}", qualified(kind, group));
        let mut details = details(name, group, kind);
        let causes = causes
            .into_iter()
            .map(|cause| json!({"reason": cause.reason, "message": cause.message, "field": cause.field}));
        details["causes"] = causes.collect();
        StatusError::new(422, "Invalid", message, Some(details))
    }

    /// A JSON patch with a failed test or a missing path. kube-apiserver gives no further details.
    pub(crate) fn patch_rejected() -> StatusError {
        let message = "the server rejected our request due to an error in our request";
        StatusError::new(422, "Invalid", message, Some(json!({})))
    }

    /// A patched object that cannot be decoded. kube-apiserver names neither kind nor object.
    pub(crate) fn bad_patch(shown: &str, why: &str) -> StatusError {
        let cause = Cause::invalid("patch", &shown.into(), why);
        StatusError::invalid_as("", "", "", vec![cause])
    }

    pub(crate) fn internal(message: impl Into<String>) -> StatusError {
        StatusError::new(500, "", message, None)
    }

    /// An internal error, such as an exhausted range of addresses.
    pub(crate) fn went_wrong(why: &str) -> StatusError {
        let details = json!({"causes": [{"message": why}]});
        StatusError::new(500, "InternalError", format!("Internal error occurred: {why}"), Some(details))
    }

    /// A negative `timeoutSeconds`: the deadline has passed at once.
    pub(crate) fn deadline_exceeded() -> StatusError {
        StatusError::new(500, "InternalError", "context deadline exceeded", None)
    }

    /// A future version was not reached within three seconds.
    pub(crate) fn version_too_large(asked: u64, current: u64) -> StatusError {
        let message = format!("Timeout: Too large resource version: {asked}, current: {current}");
        let details = json!({
            "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
            "retryAfterSeconds": 1,
        });
        StatusError::new(504, "Timeout", message, Some(details))
    }

    /// The client's `timeout` has passed. A filter of kube-apiserver sends this Status without `kind` and `apiVersion`.
    pub(crate) fn out_of_time() -> StatusError {
        let text = "Timeout: request did not complete within the allotted timeout";
        let status = json!({"metadata": {}, "status": "Failure", "message": text, "reason": "Timeout", "details": {}, "code": 504});
        StatusError { code: 504, body: StatusBody::Text(status.to_string()) }
    }

    pub(crate) fn retry_after_secs(&self) -> Option<u64> {
        match &self.body {
            StatusBody::Status(status) => status["details"]["retryAfterSeconds"].as_u64(),
            StatusBody::Text(_) => None,
        }
    }
}

pub(crate) fn invalid_json(error: &serde_json::Error) -> String {
    format!("invalid JSON: {error}")
}

/// The `details` of a Status. Go omits empty fields.
pub(crate) fn details(name: &str, group: &str, kind: &str) -> Value {
    let fields = [("name", name), ("group", group), ("kind", kind)];
    fields.into_iter().filter(|(_, text)| !text.is_empty()).collect()
}

/// A kind or a resource with its group: `Widget.demo.example.com`, `deployments.apps`; without one in the core group.
pub(crate) fn qualified(name: &str, group: &str) -> String {
    if group.is_empty() { name.to_owned() } else { format!("{name}.{group}") }
}

/// Several errors as one: `Aggregate.Error` of apimachinery.
pub(crate) fn aggregate(mut errors: Vec<String>) -> Result<(), String> {
    match errors.len() {
        0 => Ok(()),
        1 => Err(errors.remove(0)),
        _ => Err(format!("[{}]", errors.join(", "))),
    }
}
