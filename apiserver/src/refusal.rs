//! How the API server says no: a `Status` object, or a line of plain text where the real one sends no Status.
//!
//! ```json
//! {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
//!  "message": "configmaps \"nope\" not found", "reason": "NotFound",
//!  "details": {"name": "nope", "kind": "configmaps"}, "code": 404}
//! ```
//!
//! The `reason` is the machine's word, the message is for people. `details.kind` is the plural for most refusals
//! but the Kind for invalid objects: so does the real one.

use std::fmt;

use serde_json::{Map, Value, json};

use super::kinds::Kind;

/// A request that was not done, and why.
#[derive(Clone, Debug)]
pub(super) struct Refusal {
    pub(super) code: u16,
    pub(super) body: RefusalBody,
}

#[derive(Clone, Debug)]
pub(super) enum RefusalBody {
    Status(Box<Value>),
    /// Paths that lead nowhere are answered by Go's own HTTP library, in plain text.
    Text(String),
}

/// One of the reasons why an object is invalid.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Cause {
    reason: &'static str,
    message: String,
    field: String,
}

impl Cause {
    pub(super) fn invalid(field: impl Into<String>, value: &Value, text: &str) -> Cause {
        Cause::new("FieldValueInvalid", field, format!("Invalid value: {}: {text}", shown(value)))
    }

    pub(super) fn wrong_type(field: impl Into<String>, value: &Value, text: &str) -> Cause {
        Cause::new("FieldValueTypeInvalid", field, format!("Invalid value: {value}: {text}"))
    }

    pub(super) fn required(field: impl Into<String>, text: &str) -> Cause {
        let text = if text.is_empty() { String::new() } else { format!(": {text}") };
        Cause::new("FieldValueRequired", field, format!("Required value{text}"))
    }

    /// Something that the object itself should have.
    pub(super) fn not_found(field: impl Into<String>, value: &Value) -> Cause {
        Cause::new("FieldValueNotFound", field, format!("Not found: {}", shown(value)))
    }

    pub(super) fn forbidden(field: impl Into<String>, text: &str) -> Cause {
        Cause::new("FieldValueForbidden", field, format!("Forbidden: {text}"))
    }

    pub(super) fn not_supported(field: impl Into<String>, value: &Value, supported: &[String]) -> Cause {
        let supported: Vec<String> = supported.iter().map(|one| format!("{one:?}")).collect();
        let text = format!("Unsupported value: {}: supported values: {}", shown(value), supported.join(", "));
        Cause::new("FieldValueNotSupported", field, text)
    }

    pub(super) fn duplicate(field: impl Into<String>, value: &Value) -> Cause {
        Cause::new("FieldValueDuplicate", field, format!("Duplicate value: {}", shown(value)))
    }

    pub(super) fn too_many(field: impl Into<String>, actual: usize, text: &str) -> Cause {
        Cause::new("FieldValueTooMany", field, format!("Too many: {actual}: {text}"))
    }

    pub(super) fn too_long(field: impl Into<String>, text: &str) -> Cause {
        Cause::new("FieldValueTooLong", field, format!("Too long: {text}"))
    }

    /// A failed CEL rule. Objects and lists are not shown.
    pub(super) fn rule_failed(field: impl Into<String>, value: &Value, text: &str) -> Cause {
        match value {
            Value::Object(_) | Value::Array(_) => {
                Cause::new("FieldValueInvalid", field, format!("Invalid value: {text}"))
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
                Cause::invalid(field, value, text)
            }
        }
    }

    /// The same of what is inside something else.
    pub(super) fn under(mut self, field: &str) -> Cause {
        let dot = if self.field.is_empty() { "" } else { "." };
        self.message = self.message.replace(": body in body", ":  in body");
        self.field = format!("{field}{dot}{}", self.field);
        self
    }

    /// Whether an object is so wrong that no rule is tried on it.
    pub(super) fn blocks_rules(&self) -> bool {
        let blocking = [
            "FieldValueNotSupported",
            "FieldValueRequired",
            "FieldValueTooLong",
            "FieldValueTooMany",
            "FieldValueTypeInvalid",
        ];
        blocking.contains(&self.reason)
    }

    pub(super) fn rules_not_checked() -> Cause {
        let text = "some validation rules were not checked because the object was invalid; correct the existing \
            errors to complete validation";
        Cause::invalid("<nil>", &Value::Null, text)
    }

    /// Of its text.
    pub(super) fn bytes(&self) -> usize {
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

/// Go prints an object in an error as JSON, and so do we.
fn shown(value: &Value) -> String {
    value.to_string()
}

impl Refusal {
    pub(super) fn status(
        code: u16,
        reason: &str,
        message: impl Into<String>,
        details: Option<Value>,
    ) -> Refusal {
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": message.into(), "code": code,
        });
        // An error that the server cannot classify has no reason at all.
        if !reason.is_empty() {
            status["reason"] = reason.into();
        }
        if let Some(details) = details {
            status["details"] = details;
        }
        Refusal { code, body: RefusalBody::Status(Box::new(status)) }
    }

    /// The Status that a watch carries inside its ERROR event.
    pub(super) fn into_status(self) -> Value {
        match self.body {
            RefusalBody::Status(status) => *status,
            RefusalBody::Text(text) => json!({"kind": "Status", "apiVersion": "v1", "message": text}),
        }
    }

    pub(super) fn message(&self) -> &str {
        match &self.body {
            RefusalBody::Status(status) => status["message"].as_str().unwrap_or_default(),
            RefusalBody::Text(text) => text,
        }
    }

    pub(super) fn bad_request(message: impl Into<String>) -> Refusal {
        Refusal::status(400, "BadRequest", message, None)
    }

    pub(super) fn unauthorized() -> Refusal {
        Refusal::status(401, "Unauthorized", "Unauthorized", None)
    }

    pub(super) fn forbidden(kind: &Kind, name: &str, why: &str) -> Refusal {
        let message = format!("{} \"{name}\" is forbidden: {why}", kind.resource());
        Refusal::status(403, "Forbidden", message, Some(details(kind, name, &kind.plural)))
    }

    /// No rule allows it: see [`super::permissions`].
    pub(super) fn not_allowed(message: String, details: Value) -> Refusal {
        Refusal::status(403, "Forbidden", message, Some(details))
    }

    /// The namespace goes away, so nothing new may come into it.
    pub(super) fn namespace_terminating(kind: &Kind, name: &str, namespace: &str) -> Refusal {
        let why =
            format!("unable to create new content in namespace {namespace} because it is being terminated");
        let mut details = details(kind, name, &kind.plural);
        details["causes"] = json!([{
            "reason": "NamespaceTerminating",
            "message": format!("namespace {namespace} is being terminated"),
            "field": "metadata.namespace",
        }]);
        let message = format!("{} \"{name}\" is forbidden: {why}", kind.resource());
        Refusal::status(403, "Forbidden", message, Some(details))
    }

    pub(super) fn not_found(kind: &Kind, name: &str) -> Refusal {
        let message = format!("{} \"{name}\" not found", kind.resource());
        Refusal::status(404, "NotFound", message, Some(details(kind, name, &kind.plural)))
    }

    /// A resource that a built-in group does not have.
    pub(super) fn no_such_resource() -> Refusal {
        let message = "the server could not find the requested resource";
        Refusal::status(404, "NotFound", message, Some(json!({})))
    }

    /// What the real one has and this one has not. kubectl shows the message to whoever wonders.
    pub(super) fn not_served(resource: &str) -> Refusal {
        let message = format!("{resource} is not served by the embedded API server of listwatch");
        Refusal::status(404, "NotFound", message, Some(json!({})))
    }

    /// `/api/v1/watch/…` is deprecated since 1.11, and not served here.
    pub(super) fn no_old_watch() -> Refusal {
        let message = "paths with the prefix /watch are not served by the embedded API server of listwatch; use ?watch=1";
        Refusal::status(404, "NotFound", message, Some(json!({})))
    }

    pub(super) fn no_such_path() -> Refusal {
        Refusal { code: 404, body: RefusalBody::Text("404 page not found\n".to_owned()) }
    }

    pub(super) fn method_not_allowed() -> Refusal {
        let message = "the server does not allow this method on the requested resource";
        Refusal::status(405, "MethodNotAllowed", message, Some(json!({})))
    }

    /// How the server of custom resources says the same.
    pub(super) fn verb_not_supported(kind: &Kind, verb: &str) -> Refusal {
        let message = format!("{verb} is not supported on resources of kind \"{}\"", kind.resource());
        Refusal::status(405, "MethodNotAllowed", message, Some(details(kind, "", &kind.plural)))
    }

    pub(super) fn not_acceptable(message: &str) -> Refusal {
        Refusal::status(406, "NotAcceptable", message, None)
    }

    pub(super) fn already_exists(kind: &Kind, name: &str) -> Refusal {
        let message = format!("{} \"{name}\" already exists", kind.resource());
        Refusal::status(409, "AlreadyExists", message, Some(details(kind, name, &kind.plural)))
    }

    pub(super) fn conflict(kind: &Kind, name: &str) -> Refusal {
        let why =
            "the object has been modified; please apply your changes to the latest version and try again";
        Refusal::cannot_fulfil(kind, name, why)
    }

    /// What others own of an object that is applied: who, and the path.
    pub(super) fn apply_conflict(conflicts: &[(String, String)]) -> Refusal {
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
        Refusal::status(409, "Conflict", message, Some(json!({"causes": causes})))
    }

    pub(super) fn cannot_fulfil(kind: &Kind, name: &str, why: &str) -> Refusal {
        let message = format!("Operation cannot be fulfilled on {} \"{name}\": {why}", kind.resource());
        Refusal::status(409, "Conflict", message, Some(details(kind, name, &kind.plural)))
    }

    /// A precondition of a delete: here, and only here, the message names the Kind.
    pub(super) fn precondition(kind: &Kind, name: &str, why: &str) -> Refusal {
        let what = qualified(&kind.kind, &kind.group);
        let message = format!("Operation cannot be fulfilled on {what} \"{name}\": {why}");
        Refusal::status(409, "Conflict", message, Some(details(kind, name, &kind.kind)))
    }

    pub(super) fn expired(message: impl Into<String>) -> Refusal {
        Refusal::status(410, "Expired", message, None)
    }

    /// A page token that is too old, with one that goes on in the present.
    pub(super) fn continue_expired(token: String) -> Refusal {
        let message = "The provided continue parameter is too old to display a consistent list result. You can \
            start a new list without the continue parameter, or use the continue token in this response to \
            retrieve the remainder of the results. Continuing with the provided token results in an inconsistent \
            list - objects that were created, modified, or deleted between the time the first chunk was returned \
            and now may show up in the list.";
        let mut refusal = Refusal::expired(message);
        if let RefusalBody::Status(status) = &mut refusal.body {
            status["metadata"]["continue"] = token.into();
        }
        refusal
    }

    pub(super) fn too_large(limit: usize) -> Refusal {
        let message = format!("Request entity too large: limit is {limit}");
        Refusal::status(413, "RequestEntityTooLarge", message, None)
    }

    pub(super) fn too_large_because(message: String) -> Refusal {
        Refusal::status(413, "RequestEntityTooLarge", message, None)
    }

    pub(super) fn unsupported_media_type(accepted: &[&str]) -> Refusal {
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: {}",
            accepted.join(", ")
        );
        Refusal::status(415, "UnsupportedMediaType", message, None)
    }

    /// The same for a patch of a built-in kind, which the real one refuses elsewhere.
    pub(super) fn unsupported_patch() -> Refusal {
        Refusal::status(415, "UnsupportedMediaType", "415: Unsupported Media Type", Some(json!({})))
    }

    /// kubectl sends protobuf where it has no file, and shows this message.
    pub(super) fn no_protobuf(accepted: &[&str]) -> Refusal {
        let mut refusal = Refusal::unsupported_media_type(accepted);
        if let RefusalBody::Status(status) = &mut refusal.body {
            let message = status["message"].as_str().unwrap_or_default();
            let instead = "; the embedded API server of listwatch does not speak protobuf: add --dry-run=client -o yaml to the \
                command, and pipe what it prints into kubectl create -f -";
            status["message"] = format!("{message}{instead}").into();
        }
        refusal
    }

    pub(super) fn invalid(kind: &Kind, name: &str, causes: Vec<Cause>) -> Refusal {
        // Both views of an Event are checked as the core kind.
        let group = if kind.built_in() == "Event" { "" } else { &kind.group };
        Refusal::invalid_as(group, &kind.kind, name, causes)
    }

    /// A custom resource of another kind is refused in the name of that kind.
    pub(super) fn wrong_kind(kind: &Kind, theirs: &str, name: &str) -> Refusal {
        let cause = Cause::invalid("kind", &theirs.into(), &format!("must be {}", kind.kind));
        Refusal::invalid_as(&kind.group, theirs, name, vec![cause])
    }

    /// An update without a version: the real one names the resource, not the Kind.
    pub(super) fn version_required(kind: &Kind, name: &str) -> Refusal {
        let cause = Cause::invalid("metadata.resourceVersion", &json!(0), "must be specified for an update");
        Refusal::invalid_as(&kind.group, &kind.plural, name, vec![cause])
    }

    /// Wrong parameters of a list, a watch, a patch or a delete.
    pub(super) fn invalid_options(options: &str, causes: Vec<Cause>) -> Refusal {
        Refusal::invalid_as("meta.k8s.io", options, "", causes)
    }

    pub(super) fn invalid_as(group: &str, kind: &str, name: &str, causes: Vec<Cause>) -> Refusal {
        let mut texts: Vec<String> = causes.iter().map(Cause::to_string).collect();
        // What is found twice is a cause twice, but said once.
        texts.dedup();
        let text = if let [one] = &texts[..] { one.clone() } else { format!("[{}]", texts.join(", ")) };
        let message = format!("{} \"{name}\" is invalid: {text}", qualified(kind, group));
        let mut details = Map::new();
        for (key, value) in [("name", name), ("group", group), ("kind", kind)] {
            if !value.is_empty() {
                details.insert(key.to_owned(), value.into());
            }
        }
        let causes = causes
            .into_iter()
            .map(|cause| json!({"reason": cause.reason, "message": cause.message, "field": cause.field}));
        details.insert("causes".to_owned(), causes.collect());
        Refusal::status(422, "Invalid", message, Some(details.into()))
    }

    /// A JSON patch whose test failed or whose path is missing. The real one says no more than this.
    pub(super) fn patch_rejected() -> Refusal {
        let message = "the server rejected our request due to an error in our request";
        Refusal::status(422, "Invalid", message, Some(json!({})))
    }

    /// What a patch made cannot be read. The real one names neither kind nor object.
    pub(super) fn bad_patch(shown: &str, why: &str) -> Refusal {
        let cause = Cause::invalid("patch", &shown.into(), why);
        Refusal::invalid_as("", "", "", vec![cause])
    }

    pub(super) fn internal(message: impl Into<String>) -> Refusal {
        Refusal::status(500, "", message, None)
    }

    /// Nobody is to blame: the address range is full, for example.
    pub(super) fn went_wrong(why: &str) -> Refusal {
        let details = json!({"causes": [{"message": why}]});
        Refusal::status(500, "InternalError", format!("Internal error occurred: {why}"), Some(details))
    }

    /// `timeoutSeconds` below zero: over before it began.
    pub(super) fn deadline_exceeded() -> Refusal {
        Refusal::status(500, "InternalError", "context deadline exceeded", None)
    }

    /// Whoever asks for a version from the future is told so after three seconds of waiting for it.
    pub(super) fn version_too_large(asked: u64, current: u64) -> Refusal {
        let message = format!("Timeout: Too large resource version: {asked}, current: {current}");
        let details = json!({
            "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
            "retryAfterSeconds": 1,
        });
        Refusal::status(504, "Timeout", message, Some(details))
    }

    /// The client has no more time. A filter before all else says it, without a type.
    pub(super) fn out_of_time() -> Refusal {
        let text = "Timeout: request did not complete within the allotted timeout";
        let status = json!({"metadata": {}, "status": "Failure", "message": text, "reason": "Timeout", "details": {}, "code": 504});
        Refusal { code: 504, body: RefusalBody::Text(status.to_string()) }
    }

    pub(super) fn retry_after_secs(&self) -> Option<u64> {
        match &self.body {
            RefusalBody::Status(status) => status["details"]["retryAfterSeconds"].as_u64(),
            RefusalBody::Text(_) => None,
        }
    }
}

/// Why something is no JSON, as Go says it.
pub(super) fn json_error(error: &serde_json::Error, body: &[u8]) -> String {
    if error.is_eof() {
        return "unexpected end of JSON input".to_owned();
    }
    let text = error.to_string();
    let places = [
        ("key must be a string", "looking for beginning of object key string"),
        ("expected `:`", "after object key"),
        ("expected `,` or `}`", "after object key:value pair"),
        ("expected `,` or `]`", "after array element"),
        ("trailing characters", "after top-level value"),
        ("expected value", "looking for beginning of value"),
        ("expected ident", "looking for beginning of value"),
    ];
    let Some((_, place)) = places.iter().find(|(ours, _)| text.starts_with(ours)) else { return text };
    let line = body.split(|byte| *byte == b'\n').nth(error.line().saturating_sub(1)).unwrap_or_default();
    let found = line.get(error.column().saturating_sub(1)).map_or(' ', |byte| char::from(*byte));
    format!("invalid character '{found}' {place}")
}

/// `Widget.demo.example.com`; a core kind is its bare name.
fn qualified(kind: &str, group: &str) -> String {
    if group.is_empty() { kind.to_owned() } else { format!("{kind}.{group}") }
}

pub(super) fn details(kind: &Kind, name: &str, kind_name: &str) -> Value {
    let mut details = json!({"kind": kind_name});
    if !name.is_empty() {
        details["name"] = name.into();
    }
    if !kind.group.is_empty() {
        details["group"] = kind.group.as_str().into();
    }
    details
}
