//! Parses a request: its path, query, Accept header and body.
//!
//! ```text
//! GET /apis/demo.example.com/v1/namespaces/default/widgets/w1/status?pretty=true
//!           group            version           namespace  resource name subresource
//! ```

use std::{borrow::Cow, collections::HashSet, fmt, time::Duration};

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, header};
use listwatch_formats::time::parse_duration;
use percent_encoding::percent_decode_str;
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use crate::{
    kinds::Kind,
    schema::{decode::cannot_decode, field_errors::FieldPath, protobuf},
    status::{Cause, StatusError, invalid_json},
};

/// Media types of a body.
const ACCEPTED: [&str; 3] = ["application/json", "application/yaml", PROTOBUF];

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// The WebSocket subprotocol that carries a token: apiserver/pkg/authentication/request/websocket.
const BEARER_PROTOCOL: &str = "base64url.bearer.authorization.k8s.io.";

/// Most duplicate fields that one answer reports.
const DUPLICATES_MAX: usize = 10;

/// A request with its body. It has no Debug, because the headers contain a token and the body may be a Secret.
pub(crate) struct Request {
    /// As in its record.
    pub(crate) id: u64,
    pub(crate) method: Method,
    /// Path and query, not decoded.
    pub(crate) target: String,
    pub(crate) path: String,
    pub(crate) query: Query,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    /// Whether the connection can become a WebSocket. Only HTTP/1.1 allows it.
    pub(crate) can_upgrade: bool,
    /// The user when the request came. Its token can be revoked before the write.
    pub(crate) user: Option<String>,
}

impl Request {
    pub(crate) fn header(&self, name: header::HeaderName) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    pub(crate) fn user_agent(&self) -> &str {
        self.header(header::USER_AGENT)
    }

    /// The media type of the body, without parameters.
    pub(crate) fn content_type(&self) -> &str {
        self.header(header::CONTENT_TYPE).split(';').next().unwrap_or_default().trim()
    }

    /// The token of the client: from the header `Authorization`, or from a WebSocket subprotocol, because browsers
    /// cannot set that header. Empty if the subprotocol is invalid.
    pub(crate) fn bearer_token(&self) -> Option<Cow<'_, str>> {
        if let Some(token) = self.header(header::AUTHORIZATION).strip_prefix("Bearer ") {
            return Some(token.trim().into());
        }
        let mut offered = self.offered_subprotocols().filter(|_| self.wants_websocket());
        let encoded = offered.find_map(|protocol| protocol.strip_prefix(BEARER_PROTOCOL))?;
        let token =
            BASE64_URL_SAFE_NO_PAD.decode(encoded).ok().and_then(|token| String::from_utf8(token).ok());
        // The server accepts one of the other subprotocols, so there must be one.
        Some(token.filter(|_| !self.subprotocols().is_empty()).unwrap_or_default().into())
    }

    /// Whether the client asks for a WebSocket.
    pub(crate) fn wants_websocket(&self) -> bool {
        let upgrades = |value: &HeaderValue| {
            value.to_str().is_ok_and(|value| value.to_ascii_lowercase().contains("upgrade"))
        };
        self.can_upgrade
            && self.header(header::UPGRADE).eq_ignore_ascii_case("websocket")
            && self.headers.get_all(header::CONNECTION).iter().any(upgrades)
    }

    /// The offered WebSocket subprotocols, without a token.
    pub(crate) fn subprotocols(&self) -> Vec<&str> {
        self.offered_subprotocols().filter(|protocol| !protocol.starts_with(BEARER_PROTOCOL)).collect()
    }

    fn offered_subprotocols(&self) -> impl Iterator<Item = &str> {
        let values = self.headers.get_all(header::SEC_WEBSOCKET_PROTOCOL).iter();
        let values = values.filter_map(|value| value.to_str().ok());
        values.flat_map(|value| value.split(',')).map(str::trim).filter(|protocol| !protocol.is_empty())
    }

    /// The header `Impersonate-User`; empty without it.
    pub(crate) fn impersonated_user(&self) -> &str {
        self.header(header::HeaderName::from_static("impersonate-user"))
    }

    /// The groups that a request impersonates with its user.
    pub(crate) fn impersonated_groups(&self) -> Vec<String> {
        let groups = self.headers.get_all(header::HeaderName::from_static("impersonate-group")).iter();
        groups.filter_map(|group| Some(group.to_str().ok()?.to_owned())).collect()
    }

    /// `metadata.name` of a body in JSON or protobuf; empty if it has none.
    pub(crate) fn name_in_body(&self) -> String {
        if self.content_type() == PROTOBUF {
            return protobuf::name(&self.body).unwrap_or_default();
        }
        let body: Value = serde_json::from_slice(&self.body).unwrap_or_default();
        body["metadata"]["name"].as_str().unwrap_or_default().to_owned()
    }

    /// The body of a write. A custom resource must contain its `kind`.
    pub(crate) fn object_of(&self, kind: &Kind) -> Result<Value, StatusError> {
        let object = self.object(&kind.kind, kind.definition())?;
        if !kind.is_custom() || object["kind"].as_str().is_some_and(|kind| !kind.is_empty()) {
            return Ok(object);
        }
        Err(StatusError::bad_request(format!(
            "the object provided is unrecognized (must be of type {}): Object 'Kind' is missing",
            kind.kind
        )))
    }

    /// A body that contains an object, in JSON, YAML or protobuf. The definition has the fields in protobuf; without one, the kind has no
    /// messages.
    pub(crate) fn object(&self, kind: &str, definition: &str) -> Result<Value, StatusError> {
        let refuse = |why: String| {
            // For DeleteOptions, the message of kube-apiserver omits the expected type.
            StatusError::bad_request(match kind {
                "DeleteOptions" => why,
                _ => format!("the object provided is unrecognized (must be of type {kind}): {why}"),
            })
        };
        let no_json = |error: String| refuse(format!("couldn't get version/kind; json parse error: {error}"));
        let value = match self.content_type() {
            // Invalid bytes become U+FFFD, as in kube-apiserver.
            "" | "application/json" => serde_json::from_str(&String::from_utf8_lossy(&self.body))
                .map_err(|error| no_json(invalid_json(&error)))?,
            "application/yaml" => yaml(&self.body).map_err(|why| refuse(format!("yaml: {why}")))?,
            PROTOBUF if !definition.is_empty() => protobuf::decode(&self.body, definition).map_err(refuse)?,
            _ => return Err(StatusError::unsupported_media_type(&ACCEPTED)),
        };
        match value {
            Value::Object(_) => Ok(value),
            Value::Null => Ok(Value::Object(Map::new())),
            other => Err(no_json(cannot_decode(&other, "an object"))),
        }
    }

    /// The duplicate fields in the body, of which the last value counts: by path, in YAML by line, as its library in Go does.
    pub(crate) fn duplicate_fields(&self) -> Vec<String> {
        // Unreadable bodies are refused elsewhere.
        if !self.content_type().ends_with("yaml") {
            let mut found = Vec::new();
            let scan = Scan { path: &FieldPath::Root, found: &mut found, last: usize::MAX };
            let _ = scan.deserialize(&mut serde_json::Deserializer::from_slice(&self.body));
            return found.iter().map(|field| format!("duplicate field {:?}", field.path)).collect();
        }
        if check_depth(&self.body).is_err() {
            return Vec::new();
        }
        let mut lines = Vec::new();
        loop {
            let mut found = Vec::new();
            let scan = Scan { path: &FieldPath::Root, found: &mut found, last: lines.len() };
            let Some(document) = yaml_serde::Deserializer::from_slice(&self.body).next() else {
                return lines;
            };
            let error = scan.deserialize(document).err();
            let line = error.and_then(|error| error.location()).map(|at| at.line());
            match (line, found.get(lines.len())) {
                (Some(line), Some(field)) => {
                    lines.push(format!("line {line}: key {:?} already set in map", field.name))
                }
                _ => return lines,
            }
        }
    }

    pub(crate) fn accept(&self) -> Result<Accept, StatusError> {
        Accept::parse(self.header(header::ACCEPT))
    }

    /// Whether the client accepts plain JSON. If not, errors are indented, as in kube-apiserver.
    pub(crate) fn takes_plain_json(&self) -> bool {
        let accept = self.header(header::ACCEPT);
        accept.is_empty()
            || accept.split(',').any(|clause| {
                !clause.contains("as=")
                    && ["*/*", "application/*", "application/json"]
                        .iter()
                        .any(|one| clause.trim().starts_with(one))
            })
    }

    /// Whether the Accept header contains a text, for discovery.
    pub(crate) fn accepts(&self, text: &str) -> bool {
        self.header(header::ACCEPT).contains(text)
    }

    /// Whether the answer is indented, for people to read.
    pub(crate) fn wants_pretty(&self) -> bool {
        let is_for_people =
            || ["curl", "Wget", "Mozilla/5.0"].iter().any(|agent| self.user_agent().starts_with(agent));
        self.query.flag("pretty").unwrap_or_else(is_for_people)
    }
}

/// Most open brackets in YAML. Each one slows down the parsing of all the text after it: 100,000 of them took minutes. Brackets
/// in texts count as well, because only the parser can tell them apart. No valid object is so deep.
const YAML_OPEN_MAX: usize = 1000;

/// Parses YAML, and so JSON. Reads only the first document.
pub(crate) fn yaml(body: &[u8]) -> Result<Value, String> {
    check_depth(body)?;
    let text = std::str::from_utf8(body).map_err(|error| error.to_string())?;
    listwatch_yaml::read(text).map_err(|error| error.to_string())
}

fn check_depth(yaml: &[u8]) -> Result<(), String> {
    let mut open: usize = 0;
    for byte in yaml {
        match byte {
            b'{' | b'[' => open += 1,
            b'}' | b']' => open = open.saturating_sub(1),
            _ => {}
        }
        if open > YAML_OPEN_MAX {
            return Err(format!("exceeded max depth of {YAML_OPEN_MAX}"));
        }
    }
    Ok(())
}

/// Finds duplicate fields.
struct Scan<'a> {
    path: &'a FieldPath<'a>,
    found: &'a mut Vec<Duplicate>,
    /// The duplicate at which the scan ends, with an error at its value: only errors have the line.
    last: usize,
}

struct Duplicate {
    path: String,
    name: String,
}

/// Refuses any value.
struct Here;

impl<'de> DeserializeSeed<'de> for Here {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, value: D) -> Result<(), D::Error> {
        value.deserialize_any(self)
    }
}

impl Visitor<'_> for Here {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no duplicate")
    }
}

impl<'de> DeserializeSeed<'de> for Scan<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_any(self)
    }
}

macro_rules! no_fields {
    ($($visit:ident: $type:ty),*) => { $(fn $visit<E>(self, _: $type) -> Result<(), E> { Ok(()) })* };
}

impl<'de> Visitor<'de> for Scan<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    no_fields! { visit_bool: bool, visit_i64: i64, visit_u64: u64, visit_f64: f64, visit_str: &str }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let mut index = 0;
        loop {
            let path = &FieldPath::Index(self.path, index);
            if items.next_element_seed(Scan { path, found: self.found, last: self.last })?.is_none() {
                return Ok(());
            }
            index += 1;
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<(), A::Error> {
        let mut seen = HashSet::new();
        while let Some(name) = fields.next_key::<String>()? {
            let path = &FieldPath::Field(self.path, &name);
            if seen.contains(&name) && self.found.len() < DUPLICATES_MAX {
                self.found.push(Duplicate { path: path.to_string(), name: name.clone() });
                if self.found.len() > self.last {
                    return fields.next_value_seed(Here);
                }
            }
            fields.next_value_seed(Scan { path, found: self.found, last: self.last })?;
            seen.insert(name);
        }
        Ok(())
    }
}

/// The query parameters, decoded.
#[derive(Clone, Debug, Default)]
pub(crate) struct Query {
    parameters: Vec<(String, String)>,
    /// The version of a list that may be old, with `resourceVersion=0`, if a fault demands one.
    pub(crate) stale: Option<u64>,
}

impl Query {
    pub(crate) fn parse(text: &str) -> Query {
        Query { parameters: form_urlencoded::parse(text.as_bytes()).into_owned().collect(), stale: None }
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.parameters.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// All values of a parameter that is repeated.
    pub(crate) fn all(&self, name: &str) -> Vec<&str> {
        self.parameters.iter().filter(|(key, _)| key == name).map(|(_, value)| value.as_str()).collect()
    }

    pub(crate) fn text(&self, name: &str) -> &str {
        self.get(name).unwrap_or_default()
    }

    /// Any value but `false` and `0` is true, even `maybe`.
    pub(crate) fn flag(&self, name: &str) -> Option<bool> {
        self.get(name).map(|value| !matches!(value.to_lowercase().as_str(), "false" | "0"))
    }

    pub(crate) fn number(&self, name: &str) -> Result<Option<i64>, StatusError> {
        match self.text(name) {
            "" => Ok(None),
            text => match text.parse() {
                Ok(number) => Ok(Some(number)),
                Err(_) => Err(StatusError::bad_request(format!("invalid number {text:?}"))),
            },
        }
    }

    /// The client's `timeout`, such as `1m30s`. Without one, with zero, or with a negative one, there is no limit.
    pub(crate) fn timeout(&self) -> Result<Option<Duration>, StatusError> {
        match self.text("timeout") {
            "" => Ok(None),
            text => match parse_duration(text.strip_prefix('-').unwrap_or(text)) {
                Some(_) if text.starts_with('-') => Ok(None),
                Some(timeout) => Ok(Some(timeout).filter(|timeout| !timeout.is_zero())),
                None => Err(StatusError::bad_request(format!(
                    "invalid timeout specified in the request URL - invalid duration {text:?}"
                ))),
            },
        }
    }

    pub(crate) fn dry_run(&self, options: &str) -> Result<bool, StatusError> {
        match self.get("dryRun") {
            None => Ok(false),
            Some("All") => Ok(true),
            Some(other) => {
                let cause = Cause::not_supported("dryRun", &serde_json::json!([other]), &["All".to_owned()]);
                Err(StatusError::invalid_options(options, vec![cause]))
            }
        }
    }
}

/// The media type of the answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Accept {
    Json,
    Yaml,
    Table(Meta),
    Metadata(Meta),
    MetadataList(Meta),
}

/// The apiVersion of a Table or a PartialObjectMetadata: `meta.k8s.io/v1`, or `v1beta1`.
pub(crate) type Meta = &'static str;

impl Accept {
    /// The first supported media type, in the order of the client.
    fn parse(text: &str) -> Result<Accept, StatusError> {
        if text.trim().is_empty() {
            return Ok(Accept::Json);
        }
        for clause in text.split(',') {
            let parts: Vec<&str> = clause.split(';').map(str::trim).collect();
            let media = parts[0];
            let parameter =
                |name: &str| parts.iter().find_map(|part| part.strip_prefix(name)?.strip_prefix('='));
            let meta = match (parameter("g"), parameter("v")) {
                (Some("meta.k8s.io"), Some("v1")) => Some("meta.k8s.io/v1"),
                (Some("meta.k8s.io"), Some("v1beta1")) => Some("meta.k8s.io/v1beta1"),
                _ => None,
            };
            return Ok(match (media, parameter("as"), meta) {
                ("application/json" | "*/*" | "application/*", None, _) => Accept::Json,
                ("application/yaml", None, _) => Accept::Yaml,
                ("application/json", Some("Table"), Some(meta)) => Accept::Table(meta),
                ("application/json", Some("PartialObjectMetadata"), Some(meta)) => Accept::Metadata(meta),
                ("application/json", Some("PartialObjectMetadataList"), Some(meta)) => {
                    Accept::MetadataList(meta)
                }
                _ => continue,
            });
        }
        Err(StatusError::no_media_type())
    }
}

/// The parts of a resource path.
#[derive(Clone, Debug, PartialEq, Default)]
pub(crate) struct ResourcePath {
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) namespace: Option<String>,
    pub(crate) plural: String,
    pub(crate) name: Option<String>,
    pub(crate) subresource: Option<String>,
    /// The deprecated `/api/v1/watch/…`, which is not supported.
    pub(crate) old_watch: bool,
}

impl ResourcePath {
    /// `None` for paths that are not resources: discovery, health, unknown paths.
    pub(crate) fn parse(path: &str) -> Option<ResourcePath> {
        // kube-apiserver decodes the path first, so `%2F` also separates parts.
        let path = percent_decode_str(path).decode_utf8_lossy();
        let mut parts = path.strip_prefix('/')?.split('/').map(str::to_owned);
        let group = match parts.next()?.as_str() {
            "api" => String::new(),
            "apis" => parts.next()?,
            _ => return None,
        };
        let version = parts.next()?;
        let mut parts: Vec<String> = parts.filter(|part| !part.is_empty()).collect();
        let old_watch = parts.first().is_some_and(|part| part == "watch");
        if old_watch {
            parts.remove(0);
        }
        let mut namespace = None;
        // `/namespaces/default/pods` names pods; `/namespaces/default` and `…/default/status` name the namespace.
        let about_namespace = matches!(parts.get(2).map(String::as_str), None | Some("status" | "finalize"));
        if parts.first().is_some_and(|part| part == "namespaces") && !about_namespace {
            namespace = Some(parts.remove(1));
            parts.remove(0);
        }
        let mut parts = parts.into_iter();
        let plural = parts.next()?;
        let name = parts.next();
        let subresource: Vec<String> = parts.collect();
        let subresource = (!subresource.is_empty()).then(|| subresource.join("/"));
        Some(ResourcePath { group, version, namespace, plural, name, subresource, old_watch })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_name_namespaces_and_their_objects() {
        let parsed = |path| ResourcePath::parse(path).expect(path);
        let path = parsed("/apis/apps/v1/namespaces/default/deployments/web/scale");
        assert_eq!(path.namespace.as_deref(), Some("default"));
        assert_eq!((path.plural.as_str(), path.subresource.as_deref()), ("deployments", Some("scale")));
        let path = parsed("/api/v1/namespaces/default");
        assert_eq!((path.plural.as_str(), path.name.as_deref()), ("namespaces", Some("default")));
        let path = parsed("/api/v1/namespaces/default/finalize");
        assert_eq!((path.plural.as_str(), path.subresource.as_deref()), ("namespaces", Some("finalize")));
        assert_eq!(ResourcePath::parse("/version"), None);
        assert_eq!(ResourcePath::parse("/apis/apps/v1"), None);
    }

    #[test]
    fn a_timeout_has_numbers_with_units() {
        let timeout = |text: &str| Query::parse(&format!("timeout={text}")).timeout();
        let secs = |text: &str| timeout(text).map(|timeout| timeout.map(|timeout| timeout.as_secs_f64()));
        for (text, wanted) in [
            ("", None),
            ("0", None),
            ("0s", None),
            ("-1s", None),
            ("32s", Some(32.0)),
            ("1m0.5s", Some(60.5)),
            ("1h", Some(3600.0)),
        ] {
            assert_eq!(secs(text).ok(), Some(wanted), "{text}");
        }
        for text in ["x", "-", "5", "5d", "99999999999999999999h"] {
            let error = timeout(text).expect_err(text);
            let why = format!("invalid timeout specified in the request URL - invalid duration {text:?}");
            assert_eq!(error.message(), why);
        }
    }

    /// Parsing it blocked the server for minutes.
    #[test]
    fn yaml_that_is_too_deep_is_refused_before_it_is_parsed() {
        assert_eq!(yaml(b"a: {b: [1]}"), Ok(serde_json::json!({"a": {"b": [1]}})));
        let braces = "[{}],".repeat(YAML_OPEN_MAX);
        assert!(yaml(format!("[{braces}]").as_bytes()).is_ok());
        for deep in ["{a: ", "["] {
            let why = yaml(deep.repeat(100_000).as_bytes()).expect_err("too deep");
            assert_eq!(why, "exceeded max depth of 1000");
        }
        // Nesting without brackets is left to the parser, which refuses it quickly.
        for deep in ["- ", "? ", "a: "] {
            assert!(yaml(deep.repeat(100_000).as_bytes()).is_err());
        }
    }

    fn duplicates(content_type: &'static str, body: String) -> Vec<String> {
        let headers = HeaderMap::from_iter([(header::CONTENT_TYPE, HeaderValue::from_static(content_type))]);
        let query = Query::default();
        let (target, path) = (String::new(), String::new());
        Request {
            id: 0,
            method: Method::PATCH,
            target,
            path,
            query,
            headers,
            body: body.into(),
            can_upgrade: false,
            user: None,
        }
        .duplicate_fields()
    }

    /// The depth was checked in one of the two YAML parsers only.
    #[test]
    fn yaml_that_is_too_deep_is_not_searched_for_duplicates() {
        let yaml = |body: String| duplicates("application/apply-patch+yaml", body);
        let twice = yaml("a: 1\nb: [{c: 1, c: 2}]\na:\n  d: [2]".to_owned());
        assert_eq!(twice, ["line 2: key \"c\" already set in map", "line 4: key \"a\" already set in map"]);
        assert_eq!(yaml("{a: ".repeat(400_000)), [""; 0]);
    }

    /// The path was copied for each item: a terabyte in total.
    #[test]
    fn duplicates_behind_a_vast_name_are_found() {
        let (name, zeros) = ("k".repeat(1_400_000), "0,".repeat(700_000));
        let found = duplicates("application/json", format!(r#"{{"{name}": [{zeros}{{"a": 1, "a": 2}}]}}"#));
        assert!(found == [format!("duplicate field \"{name}[700000].a\"")], "{} others", found.len());
    }
}
