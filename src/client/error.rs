//! The errors of requests, in one line each: verb, object, cause.
//!
//! ```text
//! patch deployments/default/web: 409 Conflict: the object has been modified
//! get deployments/default/web: https://10.0.0.1:443: connection refused: does an API server run there?
//! ```
//!
//! An [`Error`] has methods such as [`Error::is_conflict`]. `error_answer.rs` makes it from an answer, and `no_answer.rs` if there is
//! none. Nothing in this file does I/O.

use std::{borrow::Cow, error, fmt, time::Duration};

use reqwest::StatusCode;

use crate::resource::Status;

/// Why a request did not succeed: verb, object, cause.
#[derive(Clone)]
pub struct Error(Box<Inner>);

#[derive(Clone)]
struct Inner {
    verb: Cow<'static, str>,
    object: String,
    cause: Cause,
}

/// The cause of an [`Error`], without verb and object.
#[derive(Clone)]
pub(super) enum Cause {
    /// The server answered with an error.
    Refused { status: Box<Status>, retry_after: Option<Duration> },
    /// No connection, or its TLS failed, as when the server rejects our certificate.
    Unreachable(String),
    /// The connection broke during the request: a write may have happened.
    Lost(String),
    /// No answer in time: a write may have happened.
    Late(String),
    /// An answer that cannot be decoded.
    Unreadable(String),
    /// An answer beyond the size limit.
    TooLarge(String),
    /// An error of this process.
    Other(String),
}

impl Cause {
    pub(super) fn about(self, verb: impl Into<Cow<'static, str>>, object: impl Into<String>) -> Error {
        Error(Box::new(Inner { verb: verb.into(), object: object.into(), cause: self }))
    }

    pub(super) fn status(&self) -> Option<&Status> {
        let Cause::Refused { status, .. } = self else { return None };
        Some(status)
    }
}

/// Whether this is the message of a webhook or a policy that denies a request.
pub(crate) fn is_denial(message: &str) -> bool {
    (message.starts_with("admission webhook \"") && message.contains("\" denied the request"))
        || (message.contains("olicy ") && message.contains(" denied request: "))
}

impl Error {
    /// An error that does not come from the server.
    pub fn new(
        verb: impl Into<Cow<'static, str>>,
        object: impl fmt::Display,
        cause: impl fmt::Display,
    ) -> Error {
        Cause::Other(cause.to_string()).about(verb, object.to_string())
    }

    /// The [`Status`] of the answer, if the server answered with an error. Made from the text if the answer was not JSON.
    #[must_use]
    pub fn status(&self) -> Option<&Status> {
        self.0.cause.status()
    }

    /// The HTTP status code, if the server answered with an error.
    #[must_use]
    pub fn code(&self) -> Option<u16> {
        self.status().map(|status| status.code)
    }

    /// How long the server asks us to wait, at most a minute.
    #[must_use]
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        let Cause::Refused { retry_after, .. } = &self.0.cause else { return None };
        *retry_after
    }

    /// A webhook or an admission policy denied the request.
    ///
    /// A webhook chooses the status code itself, and the API server passes it on
    /// (`ToStatusErr` in k8s.io/apiserver/pkg/admission/plugin/webhook/errors): its 409 is not a conflict, and its 404 does not mean absence.
    /// Only the message tells.
    #[must_use]
    pub(crate) fn is_denied(&self) -> bool {
        self.has(|status| is_denial(&status.message))
    }

    /// The object has changed since it was read, or another manager owns the field: read again and decide again.
    #[must_use]
    pub fn is_conflict(&self) -> bool {
        self.code() == Some(409) && !self.is_already_exists() && !self.is_denied()
    }

    /// An object of that name exists.
    #[must_use]
    pub fn is_already_exists(&self) -> bool {
        self.has(|status| status.code == 409 && status.reason == "AlreadyExists") && !self.is_denied()
    }

    /// The object does not exist. For a create, the namespace does not exist.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.has(|status| status.code == 404 && !status.details.name.is_empty()) && !self.is_denied()
    }

    /// The server does not serve this kind: its CRD is not installed.
    #[must_use]
    pub fn is_missing_kind(&self) -> bool {
        self.has(|status| status.code == 404 && status.details.name.is_empty()) && !self.is_denied()
    }

    /// 410 Expired: the server no longer has the requested version or continue token. List again.
    #[must_use]
    pub fn is_expired(&self) -> bool {
        self.has(Status::is_expired)
    }

    /// The requested version is newer than the server's.
    #[must_use]
    pub fn is_too_new(&self) -> bool {
        self.has(Status::is_too_new)
    }

    /// The user lacks the permission. New credentials of the same user would not help.
    #[must_use]
    pub fn is_forbidden(&self) -> bool {
        self.code() == Some(403)
    }

    /// The object or the request is invalid. Sending it again does not help.
    #[must_use]
    pub fn is_invalid(&self) -> bool {
        self.code() == Some(422)
    }

    /// The namespace is being deleted, so nothing can be created in it.
    #[must_use]
    pub fn is_namespace_terminating(&self) -> bool {
        self.has(|status| status.has_cause("NamespaceTerminating"))
    }

    /// A ResourceQuota of the namespace is used up, or was not counted yet. There is no reason word for that, only the messages
    /// of k8s.io/apiserver/pkg/admission/plugin/resourcequota/controller.go.
    #[must_use]
    pub(crate) fn is_quota_exceeded(&self) -> bool {
        let messages = ["exceeded quota", "insufficient quota", "failed quota", "status unknown for quota"];
        self.is_forbidden()
            && self.has(|status| messages.iter().any(|message| status.message.contains(message)))
    }

    /// There was no connection to the server, or its TLS failed.
    #[must_use]
    pub(crate) fn is_connection(&self) -> bool {
        matches!(self.0.cause, Cause::Unreachable(_))
    }

    /// The connection broke or the answer did not come in time. A write may have happened.
    #[must_use]
    pub(crate) fn is_interrupted(&self) -> bool {
        matches!(self.0.cause, Cause::Lost(_) | Cause::Late(_))
    }

    /// The answer did not come in time.
    pub(crate) fn is_late(&self) -> bool {
        matches!(self.0.cause, Cause::Late(_))
    }

    /// The request succeeded, but the answer cannot be decoded.
    #[must_use]
    pub(crate) fn is_unreadable(&self) -> bool {
        matches!(self.0.cause, Cause::Unreadable(_))
    }

    /// The request succeeded, but the answer is beyond the size limit. A smaller page of a list may help.
    #[must_use]
    pub(crate) fn is_too_large(&self) -> bool {
        matches!(self.0.cause, Cause::TooLarge(_))
    }

    fn has(&self, question: impl Fn(&Status) -> bool) -> bool {
        self.status().is_some_and(question)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { verb, object, cause } = &*self.0;
        write!(f, "{verb} {object}: {cause}")
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Error({self})")
    }
}

impl error::Error for Error {}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::Refused { status, .. } => {
                let reason = match StatusCode::from_u16(status.code) {
                    Ok(code) if status.reason.is_empty() => code.canonical_reason().unwrap_or_default(),
                    Ok(_) | Err(_) => &status.reason,
                };
                write!(f, "{} {reason}", status.code)?;
                // A 401 says "Unauthorized" twice and nothing else.
                if status.message.is_empty() || status.message == reason {
                    return Ok(());
                }
                write!(f, ": {}", status.message)
            }
            Cause::Unreachable(text)
            | Cause::Lost(text)
            | Cause::Late(text)
            | Cause::Unreadable(text)
            | Cause::TooLarge(text)
            | Cause::Other(text) => f.write_str(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const WEBHOOK_DENIES: &str = "admission webhook \"a.b\" denied the request: no";

    fn refused(code: u16, body: &str) -> Error {
        Error::answered(code, &BTreeMap::new(), body)
    }

    /// Each error, and all the questions to which it answers yes.
    #[test]
    fn errors_answer_questions() {
        type Question = fn(&Error) -> bool;
        let questions: [(&str, Question); 14] = [
            ("denied", Error::is_denied),
            ("conflict", Error::is_conflict),
            ("already exists", Error::is_already_exists),
            ("not found", Error::is_not_found),
            ("missing kind", Error::is_missing_kind),
            ("expired", Error::is_expired),
            ("too new", Error::is_too_new),
            ("forbidden", Error::is_forbidden),
            ("invalid", Error::is_invalid),
            ("namespace terminating", Error::is_namespace_terminating),
            ("quota exceeded", Error::is_quota_exceeded),
            ("connection", Error::is_connection),
            ("interrupted", Error::is_interrupted),
            ("unreadable", Error::is_unreadable),
        ];
        let answers = |error: &Error| -> Vec<&str> {
            questions.iter().filter(|(_, question)| question(error)).map(|(name, _)| *name).collect()
        };
        let status = |code, more: &str| refused(code, &format!(r#"{{"message":"m",{more}}}"#));
        let with_message = |code, message: &str, more: &str| {
            let message = serde_json::Value::from(message);
            refused(code, &format!(r#"{{"message":{message}{more}}}"#))
        };
        let causes = |reason| format!(r#""details":{{"causes":[{{"reason":"{reason}"}}]}}"#);
        let ours = || "o".to_owned();
        for (error, yes) in [
            (status(409, r#""reason":"AlreadyExists""#), &["already exists"][..]),
            (status(409, r#""reason":"Conflict""#), &["conflict"]),
            (status(500, r#""reason":"AlreadyExists""#), &[]),
            (status(404, r#""details":{"name":"x"}"#), &["not found"]),
            (status(404, r#""details":{}"#), &["missing kind"]),
            (refused(404, "404 page not found"), &["missing kind"]),
            (status(400, r#""details":{"name":"x"}"#), &[]),
            (status(410, r#""reason":"Expired""#), &["expired"]),
            (status(504, &causes("ResourceVersionTooLarge")), &["too new"]),
            (status(403, &causes("NamespaceTerminating")), &["forbidden", "namespace terminating"]),
            (status(403, r#""reason":"Forbidden""#), &["forbidden"]),
            (refused(422, ""), &["invalid"]),
            (refused(401, ""), &[]),
            // A webhook may choose the codes and words of others for its own denial.
            (with_message(409, WEBHOOK_DENIES, r#","reason":"Conflict""#), &["denied"]),
            (with_message(409, WEBHOOK_DENIES, r#","reason":"AlreadyExists""#), &["denied"]),
            (with_message(404, WEBHOOK_DENIES, r#","details":{"name":"x"}"#), &["denied"]),
            (with_message(404, WEBHOOK_DENIES, r#","details":{}"#), &["denied"]),
            (
                with_message(422, "ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no", ""),
                &["denied", "invalid"],
            ),
            (with_message(500, "admission webhook \"a.b\" is not there", ""), &[]),
            (with_message(500, "it said \"no\" denied the request", ""), &[]),
            (with_message(500, "policy 'p' is not there", ""), &[]),
            (with_message(500, "'p' denied request: no", ""), &[]),
            (Cause::Unreachable(ours()).about("get", "x"), &["connection"]),
            (Cause::Lost(ours()).about("get", "x"), &["interrupted"]),
            (Cause::Late(ours()).about("get", "x"), &["interrupted"]),
            (Cause::Unreadable(ours()).about("get", "x"), &["unreadable"]),
            (Error::new("read", "kubeconfig x", "gone"), &[]),
        ] {
            assert_eq!(answers(&error), yes, "{error:?}");
        }
        for message in [
            "exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1",
            "failed quota: q: must specify limits.cpu for: c",
            "status unknown for quota: q, resources: pods",
            "insufficient quota to consume: pods",
        ] {
            let message = format!("pods \"x\" is forbidden: {message}");
            assert_eq!(answers(&with_message(403, &message, "")), ["forbidden", "quota exceeded"]);
            assert_eq!(answers(&with_message(500, &message, "")), [""; 0]);
        }
        let ours = Error::new("read", "kubeconfig x", "gone");
        assert_eq!((ours.code(), format!("{ours:?}").as_str()), (None, "Error(read kubeconfig x: gone)"));
    }

    #[test]
    fn an_error_is_small_and_can_go_anywhere() {
        fn anywhere<T: error::Error + Send + Sync + 'static>() {}
        anywhere::<Error>();
        assert_eq!(size_of::<Error>(), size_of::<usize>());
    }
}
