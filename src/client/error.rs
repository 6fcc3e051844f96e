//! The errors of requests, in one line each: verb, object, cause.
//!
//! ```text
//! patch deployments/default/web: 409 Conflict: the object has been modified
//! get deployments/default/web: https://10.0.0.1:443: connection refused: does an API server run there?
//! ```
//!
//! The API server answers an invalid request with an HTTP status code and, mostly, a `Status` in JSON. Proxies answer with
//! plain text or an HTML page, and so does the API server itself when it is overloaded:
//!
//! ```text
//! HTTP/2 409                                              HTTP/2 429
//! content-type: application/json                          content-type: text/plain; charset=utf-8
//!                                                         retry-after: 1
//! {"kind":"Status","status":"Failure","code":409,
//!  "reason":"AlreadyExists","details":{"name":"web",…}}   Too many requests, please try again later.
//! ```
//!
//! All of them become an [`Error`], with methods such as [`Error::is_conflict`]. Nothing in this file does I/O.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    error, fmt, io,
    time::{Duration, SystemTime},
};

use reqwest::{
    StatusCode,
    header::{CONTENT_TYPE, HeaderMap, LOCATION, RETRY_AFTER},
};
use rustls::CertificateError;
use serde::Deserialize;
use url::Url;

use super::{
    config::Config,
    settings::{ignores_proxy_variables, server_name_excludes_proxy},
};
use crate::resource::Status;

/// Most bytes of a message that are kept. As client-go; a 422 can quote the whole object.
const MESSAGE_BYTES_MAX: usize = 2048;

/// Longest `Retry-After` that is honoured. The API server asks for at most 32 s; a longer time comes from a proxy or a wrong
/// clock.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);

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
        match self {
            Cause::Refused { status, .. } => Some(status),
            Cause::Unreachable(_)
            | Cause::Lost(_)
            | Cause::Late(_)
            | Cause::Unreadable(_)
            | Cause::TooLarge(_)
            | Cause::Other(_) => None,
        }
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

    /// The error in a [`Status`], for example of an `ERROR` event in a watch.
    pub fn refused(
        verb: impl Into<Cow<'static, str>>,
        object: impl fmt::Display,
        mut status: Status,
    ) -> Error {
        flatten(&mut status);
        let retry_after = wait(status.details.retry_after_seconds);
        Cause::Refused { status: Box::new(status), retry_after }.about(verb, object.to_string())
    }

    /// The error of an answer that was recorded.
    #[must_use]
    pub fn answered(code: u16, headers: &BTreeMap<String, String>, body: &str) -> Error {
        let pair = |(name, value): (&String, &String)| Some((name.parse().ok()?, value.parse().ok()?));
        let headers: HeaderMap = headers.iter().filter_map(pair).collect();
        let code = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        refusal(code, &headers, body.as_bytes(), SystemTime::now()).about("", "")
    }

    /// The [`Status`] of the answer, if the server answered with an error. Made from the text if the answer was no JSON.
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
    pub fn retry_after(&self) -> Option<Duration> {
        match &self.0.cause {
            Cause::Refused { retry_after, .. } => *retry_after,
            Cause::Unreachable(_)
            | Cause::Lost(_)
            | Cause::Late(_)
            | Cause::Unreadable(_)
            | Cause::TooLarge(_)
            | Cause::Other(_) => None,
        }
    }

    /// A webhook or an admission policy denied the request.
    ///
    /// A webhook chooses the status code itself, and the API server passes it on
    /// (`ToStatusErr` in k8s.io/apiserver/pkg/admission/plugin/webhook/errors): its 409 is not a conflict, and its 404 does not mean absence.
    /// Only the message tells.
    #[must_use]
    pub fn is_denied(&self) -> bool {
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

    /// The server does not accept the credentials, also after they were read again.
    #[must_use]
    pub fn is_unauthorized(&self) -> bool {
        self.code() == Some(401)
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
    pub fn is_quota_exceeded(&self) -> bool {
        let messages = ["exceeded quota", "insufficient quota", "failed quota", "status unknown for quota"];
        self.is_forbidden()
            && self.has(|status| messages.iter().any(|message| status.message.contains(message)))
    }

    /// There was no connection to the server, or its TLS failed.
    #[must_use]
    pub fn is_connection(&self) -> bool {
        matches!(self.0.cause, Cause::Unreachable(_))
    }

    /// The connection broke or the answer did not come in time. A write may have happened.
    #[must_use]
    pub fn is_interrupted(&self) -> bool {
        matches!(self.0.cause, Cause::Lost(_) | Cause::Late(_))
    }

    /// The answer did not come in time.
    pub(crate) fn is_late(&self) -> bool {
        matches!(self.0.cause, Cause::Late(_))
    }

    /// The request succeeded, but the answer cannot be decoded.
    #[must_use]
    pub fn is_unreadable(&self) -> bool {
        matches!(self.0.cause, Cause::Unreadable(_))
    }

    /// The request succeeded, but the answer is beyond the size limit. A smaller page of a list may help.
    #[must_use]
    pub fn is_too_large(&self) -> bool {
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

/// Decodes an error answer. If the body is no JSON with a message, its text becomes the message.
pub(super) fn refusal(code: StatusCode, headers: &HeaderMap, body: &[u8], now: SystemTime) -> Cause {
    // No `kind` is asked for: a request that ran into its deadline gets a Status without one.
    #[derive(Deserialize)]
    struct Spoken {
        #[serde(rename = "message")]
        _message: String,
    }
    let mut status = match serde_json::from_slice::<Spoken>(body) {
        Ok(_) => serde_json::from_slice::<Status>(body).unwrap_or_default(),
        Err(_) => Status::default(),
    };
    if status.message.is_empty() {
        status.message = spoken(code, headers, body);
    }
    flatten(&mut status);
    status.code = code.as_u16();
    let retry_after = retry_after(headers, now).or_else(|| wait(status.details.retry_after_seconds));
    Cause::Refused { status: Box::new(status), retry_after }
}

/// The message of an answer that is no Status: of a proxy, or of an overloaded API server.
fn spoken(code: StatusCode, headers: &HeaderMap, body: &[u8]) -> String {
    if code.is_redirection() {
        let to = headers.get(LOCATION).and_then(|to| to.to_str().ok()).unwrap_or("nowhere");
        return format!(
            "redirected to {to}; an API server does not do that: is a login proxy in front of it?"
        );
    }
    // Enough for an HTML page to get to its point.
    let text = String::from_utf8_lossy(&body[..body.len().min(4 * MESSAGE_BYTES_MAX)]);
    let text = one_line(&text);
    // The words of Go's HTTP server, hence of kube-apiserver.
    if code == StatusCode::BAD_REQUEST && text.contains("HTTP request to an HTTPS server") {
        return format!("{text} Should the server's address be https:// ?");
    }
    if is_html(headers) { format!("an HTML page, not from the API server: {text}") } else { text }
}

/// The error for an answer that is not the expected JSON.
pub(super) fn not_json(
    path: &str,
    headers: &HeaderMap,
    body: &[u8],
    kind: &str,
    error: &serde_json::Error,
) -> Cause {
    // JSON of another form, or an object that is cut off.
    let is_json = error.is_data() && str::from_utf8(body).is_ok();
    if is_json || body.trim_ascii_start().first() == Some(&b'{') {
        // The error can quote a part of the body.
        let error = cut(&one_line(&error.to_string()), MESSAGE_BYTES_MAX);
        return Cause::Unreadable(format!("{path} does not read as {kind}: {error}"));
    }
    let media_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("something");
    let start = String::from_utf8_lossy(&body[..body.len().min(120)]);
    let start = one_line(&start);
    let hint =
        if is_html(headers) { " (is a proxy or a login page in front of the API server?)" } else { "" };
    match start.as_str() {
        "" => Cause::Unreadable(format!("{path} answered with nothing, not {kind} in JSON")),
        _ if media_type.starts_with("application/json") => {
            Cause::Unreadable(format!("{path} answered with {media_type} that is no JSON: {start}"))
        }
        _ => Cause::Unreadable(format!("{path} answered with {media_type}, not JSON{hint}: {start}")),
    }
}

fn is_html(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|value| value.as_bytes().starts_with(b"text/html"))
}

/// `Retry-After`, which is seconds or a date.
fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds).min(RETRY_AFTER_MAX));
    }
    let date = httpdate::parse_http_date(text).ok()?;
    Some(date.duration_since(now).unwrap_or_default().min(RETRY_AFTER_MAX))
}

fn wait(seconds: u64) -> Option<Duration> {
    (seconds > 0).then(|| Duration::from_secs(seconds).min(RETRY_AFTER_MAX))
}

/// Makes a status fit for a line in a log.
fn flatten(status: &mut Status) {
    status.reason = one_line(&status.reason);
    status.message = cut(&one_line(&status.message), MESSAGE_BYTES_MAX);
}

/// `text` in one line: a line break in it would forge another line in a log, and an escape character speaks to the terminal.
fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for word in text.split(|c: char| c.is_whitespace() || c.is_control()).filter(|word| !word.is_empty()) {
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    line
}

/// At most `max` bytes of `text`, cut between characters.
fn cut(text: &str, max: usize) -> String {
    if text.len() <= max {
        return text.to_owned();
    }
    let end = (0..=max).rev().find(|&end| text.is_char_boundary(end)).unwrap_or_default();
    format!("{}…", &text[..end])
}

/// The server, in words.
#[derive(Clone)]
pub(super) struct Where {
    /// `https://10.0.0.1:443 through the proxy p:3128 (cluster local in /home/…/.kube/config)`.
    pub(super) address: String,
    /// Who accepts connections, as far as we know.
    pub(super) peer: &'static str,
    /// Whose certificates are trusted.
    pub(super) trust: String,
}

impl Where {
    pub(super) fn of(config: &Config) -> Where {
        let address = config.server.as_str().trim_end_matches('/');
        let (way, peer) = match &config.proxy {
            Some(proxy) => (through(proxy), "the proxy"),
            None if server_name_excludes_proxy(config) => {
                let past = " past the proxy of the environment, because of tls-server-name";
                (past.to_owned(), "an API server")
            }
            // Unless NO_PROXY excludes the server.
            None if config.has_proxy_variable && !ignores_proxy_variables(config) => {
                (String::new(), "an API server, or the proxy of the environment,")
            }
            None => (String::new(), "an API server"),
        };
        let trust = match &config.tls.authority {
            Some(pem) => pem.field.clone(),
            None => "what this machine trusts".to_owned(),
        };
        Where { address: format!("{address}{way} ({})", config.origin), peer, trust }
    }
}

/// ` through the proxy HOST:PORT`, without the user and password that the URL may have.
pub(super) fn through(proxy: &Url) -> String {
    let host = proxy.host_str().unwrap_or_default();
    // The URL knows a default for http and https alone; the other schemes are SOCKS.
    let port = proxy.port_or_known_default().unwrap_or(1080);
    format!(" through the proxy {host}:{port}")
}

/// Says why there was no answer, in words for the person who can mend it.
pub(super) fn broken(error: &reqwest::Error, server: &Where) -> Cause {
    let Where { address, peer, trust } = server;
    let unreachable = |why: &str| Cause::Unreachable(format!("{address}: {why}"));
    if let Some(tls) = find::<rustls::Error>(error) {
        return unreachable(&tls_trouble(tls, trust));
    }
    if error.is_dns() {
        return unreachable("the name does not resolve: check the server's address, and DNS");
    }
    // A TLS server answers plain HTTP with an alert, which does not read as HTTP.
    if address.starts_with("http://") && find::<hyper::Error>(error).is_some_and(hyper::Error::is_parse) {
        let why = "the server does not speak plain HTTP: should its address be https:// ?";
        return Cause::Lost(format!("{address}: {why}"));
    }
    let kind = find::<io::Error>(error).map(io::Error::kind);
    let deepest = match kind {
        // The libraries know a dozen ways to say so; one links to its manual.
        Some(io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset) => {
            "the peer closed it".to_owned()
        }
        Some(_) | None => deepest(error),
    };
    if !error.is_connect() {
        return Cause::Lost(format!("{address}: the connection broke: {deepest}"));
    }
    match kind {
        Some(io::ErrorKind::ConnectionRefused) => {
            unreachable(&format!("connection refused: does {peer} run there?"))
        }
        Some(io::ErrorKind::TimedOut) => {
            unreachable("no connection: check the address, the network, firewalls")
        }
        Some(_) | None if error.is_timeout() => {
            unreachable("no connection: check the address, the network, firewalls")
        }
        Some(_) | None => unreachable(&format!("no connection: {deepest}")),
    }
}

fn tls_trouble(error: &rustls::Error, trust: &str) -> String {
    use rustls::Error::{AlertReceived, InvalidCertificate, InvalidMessage};
    match error {
        // An authority that was made anew keeps its name, so then it is the signature that does not fit.
        InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature) => {
            format!(
                "certificate signed by an unknown authority: is {trust} that of this cluster, and up to date?"
            )
        }
        InvalidCertificate(CertificateError::Expired | CertificateError::ExpiredContext { .. }) => {
            "certificate has expired: renew it on the server, or set this machine's clock".to_owned()
        }
        InvalidCertificate(CertificateError::NotValidForName) => {
            "certificate is for another name: use that in server or tls-server-name".to_owned()
        }
        InvalidCertificate(error @ CertificateError::NotValidForNameContext { .. }) => {
            format!("{error}: use one of those in server or tls-server-name")
        }
        InvalidCertificate(error) => format!("certificate not valid: {error}"),
        AlertReceived(alert) => {
            format!("TLS alert {alert:?}: does the server accept our client certificate?")
        }
        InvalidMessage(_) => "the server does not speak TLS: should its address be http:// ?".to_owned(),
        error => format!("TLS: {error}"),
    }
}

/// The first error of type `T` among the causes. [`io::Error`] hides what it wraps from `source()`.
fn find<'e, T: error::Error + 'static>(error: &'e (dyn error::Error + 'static)) -> Option<&'e T> {
    causes(error).find_map(|cause| cause.downcast_ref())
}

fn deepest(error: &(dyn error::Error + 'static)) -> String {
    causes(error).last().map(ToString::to_string).unwrap_or_default()
}

fn causes<'e>(
    error: &'e (dyn error::Error + 'static),
) -> impl Iterator<Item = &'e (dyn error::Error + 'static)> {
    std::iter::successors(Some(error), |error| match error.downcast_ref::<io::Error>() {
        Some(io) if io.get_ref().is_some() => {
            io.get_ref().map(|inner| inner as &(dyn error::Error + 'static))
        }
        Some(_) | None => error.source(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::from_json;

    #[test]
    fn the_deepest_error_is_shown() {
        assert_eq!(deepest(&io::Error::other(io::Error::other("no route"))), "no route");
    }

    const WEBHOOK_DENIES: &str = "admission webhook \"a.b\" denied the request: no";

    fn refused(code: u16, headers: &[(&str, &str)], body: &str) -> Error {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            let name: reqwest::header::HeaderName = name.parse().expect("a header name");
            map.insert(name, value.parse().expect("a header value"));
        }
        let code = StatusCode::from_u16(code).expect("a status code");
        refusal(code, &map, body.as_bytes(), SystemTime::UNIX_EPOCH).about("get", "things/x")
    }

    #[test]
    fn every_form_of_no_becomes_one_line() {
        let long = "é".repeat(MESSAGE_BYTES_MAX);
        let cut = format!("get things/x: 502 Bad Gateway: {}…", "é".repeat(MESSAGE_BYTES_MAX / 2));
        let html = ("content-type", "text/html; charset=utf-8");
        for (code, headers, body, line) in [
            (
                409,
                vec![],
                r#"{"kind":"Status","message":"it exists","reason":"AlreadyExists","code":409}"#,
                "get things/x: 409 AlreadyExists: it exists",
            ),
            (
                403,
                vec![],
                "{\n  \"message\": \"no\",\n  \"code\": 403\n}\n",
                "get things/x: 403 Forbidden: no",
            ),
            (
                504,
                vec![("content-type", "text/plain")],
                r#"{"metadata":{},"status":"Failure","message":"too slow","reason":"Timeout","details":{},"code":504}"#,
                "get things/x: 504 Timeout: too slow",
            ),
            (404, vec![], "404 page not found\n", "get things/x: 404 Not Found: 404 page not found"),
            (
                401,
                vec![],
                r#"{"message":"Unauthorized","reason":"Unauthorized"}"#,
                "get things/x: 401 Unauthorized",
            ),
            (
                400,
                vec![],
                "Client sent an HTTP request to an HTTPS server.\n",
                "get things/x: 400 Bad Request: Client sent an HTTP request to an HTTPS server. Should the server's address be https:// ?",
            ),
            (400, vec![], "what?", "get things/x: 400 Bad Request: what?"),
            (502, vec![], &format!("{}late", " ".repeat(4000)), "get things/x: 502 Bad Gateway: late"),
            (500, vec![], "", "get things/x: 500 Internal Server Error"),
            (500, vec![], "null", "get things/x: 500 Internal Server Error: null"),
            (503, vec![], "{\"a\":", "get things/x: 503 Service Unavailable: {\"a\":"),
            (
                502,
                vec![html],
                "<html>\n <h1>Bad\tGateway</h1>",
                "get things/x: 502 Bad Gateway: an HTML page, not from the API server: <html> <h1>Bad Gateway</h1>",
            ),
            (
                302,
                vec![("location", "https://login.example/")],
                "",
                "get things/x: 302 Found: redirected to https://login.example/; an API server does not do that: is a login proxy in front of it?",
            ),
            (502, vec![], &long, &cut),
        ] {
            assert_eq!(refused(code, &headers, body).to_string(), line);
        }
    }

    /// Only a text was made one line; a message in JSON could write what it liked into logs and terminals.
    #[test]
    fn a_refusal_is_one_line_in_whatever_form() {
        let message = "no\n2026-11-21 INFO all is well\r\n\u{1b}[2J\u{9b}31m \t red";
        let line = "get things/x: 422 Un fit: no 2026-11-21 INFO all is well [2J 31m red";
        let body = serde_json::json!({ "message": message, "reason": "Un\nfit", "code": 422 }).to_string();
        assert_eq!(refused(422, &[], &body).to_string(), line);
        let status: Status = serde_json::from_str(&body).expect("a status");
        assert_eq!(Error::refused("get", "things/x", status).to_string(), line);
        let line = "get things/x: 500 Internal Server Error: no 2026-11-21 INFO all is well [2J 31m red";
        assert_eq!(refused(500, &[], message).to_string(), line);
    }

    #[test]
    fn retry_after_is_seconds_or_a_date_and_has_a_limit() {
        let after =
            |value| refused(429, &[("retry-after", value)], "").retry_after().map(|wait| wait.as_secs());
        assert_eq!(after("7"), Some(7));
        assert_eq!(after("86400"), Some(60));
        assert_eq!(after("Thu, 01 Jan 1970 00:00:09 GMT"), Some(9));
        assert_eq!(after("Fri, 02 Jan 1970 00:00:09 GMT"), Some(60));
        for odd in ["", "-1", "soon", "1.5", "99999999999999999999"] {
            assert_eq!(after(odd), None, "{odd}");
        }
        let spoken = refused(429, &[], r#"{"message":"wait","details":{"retryAfterSeconds":2}}"#);
        assert_eq!(spoken.retry_after(), Some(Duration::from_secs(2)));
        assert_eq!(refused(500, &[], "").retry_after(), None);
    }

    /// Each error, and all the questions to which it answers yes.
    #[test]
    fn errors_answer_questions() {
        type Question = fn(&Error) -> bool;
        let questions: [(&str, Question); 15] = [
            ("denied", Error::is_denied),
            ("conflict", Error::is_conflict),
            ("already exists", Error::is_already_exists),
            ("not found", Error::is_not_found),
            ("missing kind", Error::is_missing_kind),
            ("expired", Error::is_expired),
            ("too new", Error::is_too_new),
            ("forbidden", Error::is_forbidden),
            ("unauthorized", Error::is_unauthorized),
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
        let status = |code, more: &str| refused(code, &[], &format!(r#"{{"message":"m",{more}}}"#));
        let with_message = |code, message: &str, more: &str| {
            let message = serde_json::Value::from(message);
            refused(code, &[], &format!(r#"{{"message":{message}{more}}}"#))
        };
        let causes = |reason| format!(r#""details":{{"causes":[{{"reason":"{reason}"}}]}}"#);
        let ours = || "o".to_owned();
        for (error, yes) in [
            (status(409, r#""reason":"AlreadyExists""#), &["already exists"][..]),
            (status(409, r#""reason":"Conflict""#), &["conflict"]),
            (status(500, r#""reason":"AlreadyExists""#), &[]),
            (status(404, r#""details":{"name":"x"}"#), &["not found"]),
            (status(404, r#""details":{}"#), &["missing kind"]),
            (refused(404, &[], "404 page not found"), &["missing kind"]),
            (status(400, r#""details":{"name":"x"}"#), &[]),
            (status(410, r#""reason":"Expired""#), &["expired"]),
            (status(504, &causes("ResourceVersionTooLarge")), &["too new"]),
            (status(403, &causes("NamespaceTerminating")), &["forbidden", "namespace terminating"]),
            (status(403, r#""reason":"Forbidden""#), &["forbidden"]),
            (refused(422, &[], ""), &["invalid"]),
            (refused(401, &[], ""), &["unauthorized"]),
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
    fn a_page_instead_of_json_is_named() {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, "text/html".parse().expect("a header value"));
        let body = b"<!doctype html>\n<title>Sign in</title>";
        let error = serde_json::from_slice::<()>(body).expect_err("no JSON");
        let cause = not_json("/version", &headers, body, "a version", &error);
        assert_eq!(
            cause.to_string(),
            "/version answered with text/html, not JSON (is a proxy or a login page in front of the API server?): \
             <!doctype html> <title>Sign in</title>"
        );
    }

    /// `null` was called `application/json, not JSON`.
    #[test]
    fn json_of_another_form_is_not_called_no_json() {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, "application/json".parse().expect("a header value"));
        let line = |body: &[u8]| {
            let error = from_json::<Status>(body).expect_err("no status");
            not_json("/x", &headers, body, "a status", &error).to_string()
        };
        assert_eq!(line(b""), "/x answered with nothing, not a status in JSON");
        assert_eq!(line(b"oops"), "/x answered with application/json that is no JSON: oops");
        assert_eq!(line(b"\xff"), "/x answered with application/json that is no JSON: \u{fffd}");
        assert_eq!(
            line(b"null"),
            "/x does not read as a status: invalid type: null, expected struct Status at line 1 column 4"
        );
    }

    #[test]
    fn an_error_is_small_and_can_go_anywhere() {
        fn anywhere<T: error::Error + Send + Sync + 'static>() {}
        anywhere::<Error>();
        assert_eq!(size_of::<Error>(), size_of::<usize>());
    }
}
