//! A request and its answer. Nothing in this file does I/O.

use std::{borrow::Cow, fmt};

use bytes::Bytes;
use http::{HeaderMap, Method};
use reqwest::Response;
use serde_json::Value;
use url::{Url, form_urlencoded::Serializer};

use super::JSON;

/// An HTTP request. With [`Client::send`](super::Client::send), it also reaches resources without a type in this crate.
/// `Debug` does not show the body.
#[derive(Clone)]
pub struct Request {
    /// `GET`, `POST`, …
    pub method: Method,
    /// As in a URL, percent-encoded: `/api/v1/namespaces/default/pods`. May have a query.
    pub path: String,
    /// More query parameters, not yet encoded.
    pub query: Vec<(&'static str, String)>,
    /// The `Accept` header.
    pub accept: Cow<'static, str>,
    /// The media type of the body.
    pub content_type: Cow<'static, str>,
    /// More headers. They replace those above, and `User-Agent`.
    pub headers: HeaderMap,
    /// Empty: no body.
    pub body: Bytes,
}

/// The head of an answer.
#[derive(Clone, Debug)]
pub struct Head {
    /// HTTP status code: 2xx, but for [`Client::forward`](super::Client::forward).
    pub status: u16,
    /// HTTP headers.
    pub headers: HeaderMap,
}

/// A successful answer. `Debug` does not show the body.
#[derive(Clone)]
pub struct Answer {
    /// HTTP status code, 2xx.
    pub status: u16,
    /// HTTP headers.
    pub headers: HeaderMap,
    /// The whole body.
    pub body: Bytes,
}

impl Answer {
    /// The error of an answer to `GET path` that does not read as this kind.
    pub fn unreadable(&self, path: &str, kind: &str, error: &serde_json::Error) -> super::Error {
        super::error_answer::not_json(path, &self.headers, &self.body, kind, error).about("get", path)
    }
}

impl Request {
    /// `GET path`, with `Accept: application/json`.
    #[must_use]
    pub fn get(path: impl Into<String>) -> Request {
        Request {
            method: Method::GET,
            path: path.into(),
            query: Vec::new(),
            accept: JSON.into(),
            content_type: JSON.into(),
            headers: HeaderMap::new(),
            body: Bytes::new(),
        }
    }

    /// `POST path`, with an object in JSON.
    #[must_use]
    pub fn post(path: impl Into<String>, object: &Value) -> Request {
        Request::get(path).sends(Method::POST, JSON, object.to_string().into_bytes())
    }

    /// The same path with another method and a body.
    #[must_use]
    pub fn sends(mut self, method: Method, content_type: &'static str, body: Vec<u8>) -> Request {
        self.method = method;
        self.content_type = content_type.into();
        self.body = body.into();
        self
    }

    /// Whether the answer is a stream of events.
    #[must_use]
    pub fn is_watch(&self) -> bool {
        let target = self.target();
        let (_, query) = target.split_once('?').unwrap_or_default();
        // As in k8s.io/apimachinery, Convert_Slice_string_To_bool.
        let mut values = url::form_urlencoded::parse(query.as_bytes()).filter(|(name, _)| name == "watch");
        values.next().is_some_and(|(_, value)| value != "0" && !value.eq_ignore_ascii_case("false"))
    }

    /// Path and query as sent.
    pub fn target(&self) -> String {
        if self.query.is_empty() {
            return self.path.clone();
        }
        let query = Serializer::new(String::new()).extend_pairs(&self.query).finish();
        let mark = if self.path.contains('?') { '&' } else { '?' };
        format!("{}{mark}{query}", self.path)
    }
}

/// The URL of a request: the parsed URL of the server with another path. Parsing the host again would take three times as
/// long.
pub(super) fn url(base: &Url, request: &Request) -> Url {
    let mut url = base.clone();
    let target = request.target();
    let (path, query) = match target.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (&*target, None),
    };
    url.set_path(&format!("{}{path}", base.path().trim_end_matches('/')));
    url.set_query(query);
    url
}

impl Head {
    pub(super) fn of(response: &Response) -> Head {
        Head { status: response.status().as_u16(), headers: response.headers().clone() }
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} ({} bytes)", self.method, self.path, self.body.len())
    }
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} bytes)", self.status, self.body.len())
    }
}
