//! Turns an answer that is an error, or that is not the expected JSON, into an [`Error`] of one line.
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
//! Nothing in this file does I/O.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    fmt,
    time::{Duration, SystemTime},
};

use reqwest::{
    StatusCode,
    header::{CONTENT_TYPE, HeaderMap, LOCATION, RETRY_AFTER},
};

use super::error::{Cause, Error};
use crate::resource::Status;

/// Most bytes of a message that are kept. As client-go; a 422 can quote the whole object.
const MESSAGE_BYTES_MAX: usize = 2048;

/// Longest `Retry-After` that is honoured. The API server asks for at most 32 s; a longer time comes from a proxy or a wrong
/// clock.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);

impl Error {
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
}

/// Decodes an error answer. If the body is not JSON with a message, its text becomes the message.
pub(super) fn refusal(code: StatusCode, headers: &HeaderMap, body: &[u8], now: SystemTime) -> Cause {
    // No `kind` is asked for: a request that ran into its deadline gets a Status without one.
    let status = serde_json::from_slice::<Status>(body).ok().filter(|status| !status.message.is_empty());
    let mut status =
        status.unwrap_or_else(|| Status { message: spoken(code, headers, body), ..Status::default() });
    flatten(&mut status);
    status.code = code.as_u16();
    let retry_after = retry_after(headers, now).or_else(|| wait(status.details.retry_after_seconds));
    Cause::Refused { status: Box::new(status), retry_after }
}

/// The message of an answer that is not a Status: of a proxy, or of an overloaded API server.
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
    let words = text.split(|c: char| c.is_whitespace() || c.is_control()).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join(" ")
}

/// At most `max` bytes of `text`, cut between characters.
fn cut(text: &str, max: usize) -> String {
    if text.len() <= max {
        return text.to_owned();
    }
    format!("{}…", &text[..text.floor_char_boundary(max)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::from_json;

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
}
