//! A request, taken apart: what it is about, what it asks for, who asks.
//!
//! ```text
//! GET /apis/demo.example.com/v1/namespaces/default/widgets/w1/status?pretty=true
//!           group            version           namespace  resource name subresource
//! ```

use std::{collections::HashSet, fmt, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, Method, header};
use serde::{
    Deserialize,
    de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Map, Value};

use super::{
    kinds::Kind,
    refusal::{Cause, Refusal, json_error},
    told,
};

/// What a body can be.
const ACCEPTED: [&str; 2] = ["application/json", "application/yaml"];

/// Most duplicate fields that are told of in one answer. Who has more knows enough.
const DUPLICATES_MAX: usize = 10;

/// What a handler gets to see. It has no Debug, as the headers have a token and the body may be a Secret.
pub(super) struct Request {
    pub(super) method: Method,
    /// Path and query, as they were sent.
    pub(super) target: String,
    pub(super) path: String,
    pub(super) query: Query,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

impl Request {
    fn header(&self, name: header::HeaderName) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    pub(super) fn user_agent(&self) -> &str {
        self.header(header::USER_AGENT)
    }

    /// The media type of the body, without parameters.
    pub(super) fn content_type(&self) -> &str {
        self.header(header::CONTENT_TYPE).split(';').next().unwrap_or_default().trim()
    }

    pub(super) fn bearer_token(&self) -> Option<&str> {
        self.header(header::AUTHORIZATION).strip_prefix("Bearer ").map(str::trim)
    }

    /// The body of a write of an object. That of a custom resource says what it is.
    pub(super) fn object_of(&self, kind: &Kind) -> Result<Value, Refusal> {
        let object = self.object(&kind.kind)?;
        if !kind.is_custom() || object["kind"].as_str().is_some_and(|kind| !kind.is_empty()) {
            return Ok(object);
        }
        let (kind, whole) = (&kind.kind, String::from_utf8_lossy(&self.body));
        Err(Refusal::bad_request(format!(
            "the object provided is unrecognized (must be of type {kind}): Object 'Kind' is missing in '{whole}' ({})",
            summary(&self.body)
        )))
    }

    /// A body that is an object, in JSON or YAML.
    pub(super) fn object(&self, kind: &str) -> Result<Value, Refusal> {
        let refuse = |why: String| {
            // Only here the real one does not say which type it wants.
            let wants = format!("the object provided is unrecognized (must be of type {kind}): ");
            Refusal::bad_request(if kind == "DeleteOptions" { why } else { format!("{wants}{why}") })
        };
        let no_json = |error: String| {
            let body = summary(&self.body);
            refuse(format!("couldn't get version/kind; json parse error: {error} ({body})"))
        };
        let value = match self.content_type() {
            // Bytes that are no text are replaced, as Go does.
            "" | "application/json" => serde_json::from_str(&String::from_utf8_lossy(&self.body))
                .map_err(|error| no_json(json_error(&error, &self.body)))?,
            "application/yaml" => {
                let body = summary(&self.body);
                yaml(&self.body).map_err(|why| refuse(format!("yaml: {why} ({body})")))?
            }
            // The real one also takes protobuf here. This one does not, and does not list it.
            "application/vnd.kubernetes.protobuf" => return Err(Refusal::no_protobuf(&ACCEPTED)),
            _ => return Err(Refusal::unsupported_media_type(&ACCEPTED)),
        };
        let what = match value {
            Value::Object(_) => return Ok(value),
            Value::Null => return Ok(Value::Object(Map::new())),
            Value::Array(_) => "array",
            Value::String(_) => "string",
            Value::Number(_) => "number",
            Value::Bool(_) => "bool",
        };
        Err(no_json(format!(
            "json: cannot unmarshal {what} into Go value of type struct {{ APIVersion string \
             \"json:\\\"apiVersion,omitempty\\\"\"; Kind string \"json:\\\"kind,omitempty\\\"\" }}"
        )))
    }

    /// The fields that stand twice in an object of the body, by their paths: `spec.size`. The last one counts.
    pub(super) fn duplicate_fields(&self) -> Vec<String> {
        let mut found = Vec::new();
        let scan = Scan { path: &told::Path::Root, found: &mut found };
        // What cannot be read is refused elsewhere.
        if self.content_type().ends_with("yaml") {
            if let Ok(Some(first)) = first_document(&self.body) {
                let _ = scan.deserialize(first);
            }
        } else {
            let _ = scan.deserialize(&mut serde_json::Deserializer::from_slice(&self.body));
        }
        found
    }

    pub(super) fn accept(&self) -> Result<Accept, Refusal> {
        Accept::parse(self.header(header::ACCEPT))
    }

    /// An error comes indented unless the client said that it takes plain JSON: the real one falls back to a default.
    pub(super) fn takes_plain_json(&self) -> bool {
        let accept = self.header(header::ACCEPT);
        accept.is_empty()
            || accept.split(',').any(|clause| {
                !clause.contains("as=")
                    && ["*/*", "application/*", "application/json"]
                        .iter()
                        .any(|one| clause.trim().starts_with(one))
            })
    }

    /// What discovery looks for in Accept.
    pub(super) fn accepts(&self, text: &str) -> bool {
        self.header(header::ACCEPT).contains(text)
    }

    /// Whether a person reads the answer.
    pub(super) fn wants_pretty(&self) -> bool {
        match self.query.get("pretty") {
            Some(pretty) => pretty.is_empty() || !matches!(pretty.to_lowercase().as_str(), "false" | "0"),
            None => ["curl", "Wget", "Mozilla/5.0"].iter().any(|agent| self.user_agent().starts_with(agent)),
        }
    }
}

/// Most brackets of YAML that are open at a time. Each costs its parser time for all that comes behind it, so 100,000 of
/// them took minutes. Those in texts are counted as well, as only the parser could tell; no object is that deep.
const YAML_OPEN_MAX: usize = 1000;

/// What YAML, and with it JSON, says. Of several documents the first.
pub(super) fn yaml(body: &[u8]) -> Result<Value, String> {
    let Some(first) = first_document(body)? else { return Ok(Value::Null) };
    Value::deserialize(first).map_err(|error| as_go_says(&error.to_string()))
}

/// The first document of YAML that is not too deep to be parsed.
fn first_document(body: &[u8]) -> Result<Option<yaml_serde::Deserializer<'_>>, String> {
    let mut open: usize = 0;
    for byte in body {
        match byte {
            b'{' | b'[' => open += 1,
            b'}' | b']' => open = open.saturating_sub(1),
            _ => {}
        }
        if open > YAML_OPEN_MAX {
            return Err(format!("exceeded max depth of {YAML_OPEN_MAX}"));
        }
    }
    Ok(yaml_serde::Deserializer::from_slice(body).next())
}

/// Why something is no YAML. Both libraries descend from libyaml; that of Go says less of where: `parser.fail` in its
/// decode.go.
///
/// ```text
/// ours:  did not find expected key at line 3 column 2, while parsing a block mapping at line 2 column 1
/// Go's:  line 1: did not find expected key
/// ```
fn as_go_says(error: &str) -> String {
    let line_in = |text: &str| -> Option<u64> {
        let (line, _) = text.split_once(" at line ")?.1.split_once(' ')?;
        line.parse().ok().filter(|line| *line > 1)
    };
    let (problem, context) = error.split_once(", while ").unwrap_or((error, ""));
    let line = line_in(context).or(line_in(problem));
    let problem = problem.split(" at line ").next().unwrap_or_default();
    let problem = problem.split(" at position ").next().unwrap_or_default();
    // Lines are counted from zero, but not where a token is wrong.
    let is_grammar = problem.starts_with("did not find");
    line.map_or(problem.to_owned(), |line| format!("line {}: {problem}", line - u64::from(is_grammar)))
}

/// How much of a body that cannot be read is shown: apiserver/pkg/endpoints/handlers/rest.go, summarizeData.
const SUMMARY_BYTES_MAX: usize = 30;

/// What might be JSON is shown as it is, all else in hexadecimal.
fn summary(body: &[u8]) -> String {
    let shown = body.get(..SUMMARY_BYTES_MAX).unwrap_or(body);
    let text = match body.first() {
        None => "<empty>".to_owned(),
        Some(b'{') => String::from_utf8_lossy(shown).into_owned(),
        Some(_) => shown.iter().map(|byte| format!("{byte:02x}")).collect(),
    };
    if body.len() > shown.len() { format!("{text} ...") } else { text }
}

/// Looks for fields that stand twice.
struct Scan<'a> {
    path: &'a told::Path<'a>,
    found: &'a mut Vec<String>,
}

impl<'de> DeserializeSeed<'de> for Scan<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Scan<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let mut index = 0;
        loop {
            let path = &told::Path::Index(self.path, index);
            if items.next_element_seed(Scan { path, found: self.found })?.is_none() {
                return Ok(());
            }
            index += 1;
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<(), A::Error> {
        let mut seen = HashSet::new();
        while let Some(name) = fields.next_key::<String>()? {
            let path = &told::Path::Field(self.path, &name);
            if seen.contains(&name) && self.found.len() < DUPLICATES_MAX {
                self.found.push(path.to_string());
            }
            fields.next_value_seed(Scan { path, found: self.found })?;
            seen.insert(name);
        }
        Ok(())
    }
}

/// The parameters behind the `?`, decoded.
#[derive(Clone, Debug, Default)]
pub(super) struct Query(Vec<(String, String)>);

impl Query {
    pub(super) fn parse(text: &str) -> Query {
        Query(url::form_urlencoded::parse(text.as_bytes()).into_owned().collect())
    }

    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    pub(super) fn text(&self, name: &str) -> &str {
        self.get(name).unwrap_or_default()
    }

    /// Every value but `false` and `0` is true, even `maybe`.
    pub(super) fn flag(&self, name: &str) -> Option<bool> {
        self.get(name).map(|value| !matches!(value.to_lowercase().as_str(), "false" | "0"))
    }

    pub(super) fn number(&self, name: &str) -> Result<Option<i64>, Refusal> {
        match self.text(name) {
            "" => Ok(None),
            text => text.parse().map(Some).map_err(|_| {
                Refusal::bad_request(format!("strconv.ParseInt: parsing {text:?}: invalid syntax"))
            }),
        }
    }

    /// How long the client waits for an answer, in Go's way: `1m30s`. Nothing, or zero, is as long as it takes.
    pub(super) fn timeout(&self) -> Result<Option<Duration>, Refusal> {
        let text = self.text("timeout");
        let timeout = go_duration(text).map_err(|why| {
            Refusal::bad_request(format!(
                "invalid timeout specified in the request URL - time: {why} {text:?}"
            ))
        })?;
        Ok(Some(timeout).filter(|timeout| !timeout.is_zero()))
    }

    pub(super) fn dry_run(&self, options: &str) -> Result<bool, Refusal> {
        match self.get("dryRun") {
            None => Ok(false),
            Some("All") => Ok(true),
            Some(other) => {
                let cause = Cause::not_supported("dryRun", &serde_json::json!([other]), &["All".to_owned()]);
                Err(Refusal::invalid_options(options, vec![cause]))
            }
        }
    }
}

/// `time.ParseDuration`, and its words where it cannot. Nothing is as good as zero.
fn go_duration(text: &str) -> Result<Duration, String> {
    let (mut rest, mut sum) = (text, Duration::ZERO);
    if rest == "0" {
        return Ok(sum);
    }
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, behind) = rest.split_at(end);
        let number: f64 = number.parse().map_err(|_| "invalid duration")?;
        let end = behind.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(behind.len());
        let (unit, behind) = behind.split_at(end);
        let seconds = match unit {
            "ns" => 1e-9,
            "us" | "µs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            "" => return Err("missing unit in duration".to_owned()),
            unknown => return Err(format!("unknown unit {unknown:?} in duration")),
        };
        let part = Duration::try_from_secs_f64(number * seconds).map_err(|_| "invalid duration")?;
        sum = sum.checked_add(part).ok_or("invalid duration")?;
        rest = behind;
    }
    Ok(sum)
}

/// The form in which the answer is wanted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Accept {
    Json,
    Yaml,
    Table,
    Metadata,
    MetadataList,
}

impl Accept {
    /// The first form in the list that we have, as the client put them in its order.
    fn parse(text: &str) -> Result<Accept, Refusal> {
        if text.trim().is_empty() {
            return Ok(Accept::Json);
        }
        for clause in text.split(',') {
            let mut parts = clause.split(';').map(str::trim);
            let media = parts.next().unwrap_or_default();
            let parts: Vec<&str> = parts.collect();
            let parameter =
                |name: &str| parts.iter().find_map(|part| part.strip_prefix(name)?.strip_prefix('='));
            match (media, parameter("as")) {
                ("application/json" | "*/*" | "application/*", None) => return Ok(Accept::Json),
                ("application/yaml", None) => return Ok(Accept::Yaml),
                ("application/json", Some(form)) if parameter("g") == Some("meta.k8s.io") => {
                    match (form, parameter("v")) {
                        ("Table", Some("v1")) => return Ok(Accept::Table),
                        ("PartialObjectMetadata", Some("v1")) => return Ok(Accept::Metadata),
                        ("PartialObjectMetadataList", Some("v1")) => return Ok(Accept::MetadataList),
                        _ => {}
                    }
                }
                _ => {}
            }
        }
        Err(Refusal::not_acceptable(
            "only the following media types are accepted: application/json, application/yaml",
        ))
    }
}

/// The parts of a resource path.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Path {
    pub(super) group: String,
    pub(super) version: String,
    pub(super) namespace: Option<String>,
    pub(super) plural: String,
    pub(super) name: Option<String>,
    pub(super) subresource: Option<String>,
    /// The old form, `/api/v1/watch/…`, which this server does not speak.
    pub(super) old_watch: bool,
}

impl Path {
    /// `None` for a path that is no resource's: discovery, health, nonsense.
    pub(super) fn parse(path: &str) -> Option<Path> {
        // Go's router sees the path decoded, so an escaped slash is one.
        let path = percent_decode(path);
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
        // /namespaces/default/pods is about pods; /namespaces/default and …/default/status are about the namespace.
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
        Some(Path { group, version, namespace, plural, name, subresource, old_watch })
    }
}

fn percent_decode(part: &str) -> String {
    // Plus, ampersand and equals sign are themselves in a path, unlike in a query.
    let pair = format!("x={}", part.replace('+', "%2B").replace('&', "%26").replace('=', "%3D"));
    url::form_urlencoded::parse(pair.as_bytes())
        .next()
        .map(|(_, value)| value.into_owned())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn paths_name_namespaces_and_what_is_in_them() {
        let parsed = |path| Path::parse(path).expect(path);
        let path = parsed("/apis/apps/v1/namespaces/default/deployments/web/scale");
        assert_eq!(path.namespace.as_deref(), Some("default"));
        assert_eq!((path.plural.as_str(), path.subresource.as_deref()), ("deployments", Some("scale")));
        let path = parsed("/api/v1/namespaces/default");
        assert_eq!((path.plural.as_str(), path.name.as_deref()), ("namespaces", Some("default")));
        let path = parsed("/api/v1/namespaces/default/finalize");
        assert_eq!((path.plural.as_str(), path.subresource.as_deref()), ("namespaces", Some("finalize")));
        assert_eq!(Path::parse("/version"), None);
        assert_eq!(Path::parse("/apis/apps/v1"), None);
    }

    #[test]
    fn a_timeout_is_read_as_go_reads_it() {
        let timeout = |text: &str| Query::parse(&format!("timeout={text}")).timeout();
        let secs = |text: &str| timeout(text).map(|timeout| timeout.map(|timeout| timeout.as_secs_f64()));
        for (text, wanted) in [
            ("", None),
            ("0", None),
            ("0s", None),
            ("32s", Some(32.0)),
            ("1m0.5s", Some(60.5)),
            ("1h", Some(3600.0)),
        ] {
            assert_eq!(secs(text).ok(), Some(wanted), "{text}");
        }
        for (text, why) in [
            ("x", r#"invalid duration "x""#),
            ("-1s", r#"invalid duration "-1s""#),
            ("5", r#"missing unit in duration "5""#),
            ("5d", r#"unknown unit "d" in duration "5d""#),
            ("99999999999999999999h", r#"invalid duration "99999999999999999999h""#),
        ] {
            let refusal = timeout(text).expect_err(text);
            assert_eq!(
                refusal.message(),
                format!("invalid timeout specified in the request URL - time: {why}")
            );
        }
    }

    /// The server did nothing else for minutes.
    #[test]
    fn yaml_that_is_too_deep_is_refused_before_it_is_parsed() {
        assert_eq!(yaml(b"a: {b: [1]}"), Ok(serde_json::json!({"a": {"b": [1]}})));
        let braces = "[{}],".repeat(YAML_OPEN_MAX);
        assert!(yaml(format!("[{braces}]").as_bytes()).is_ok());
        for deep in ["{a: ", "["] {
            let why = yaml(deep.repeat(100_000).as_bytes()).expect_err("too deep");
            assert_eq!(why, "exceeded max depth of 1000");
        }
        // What is deep without brackets is found by the parser, which takes no long time for it.
        for deep in ["- ", "? ", "a: "] {
            assert!(yaml(deep.repeat(100_000).as_bytes()).is_err());
        }
    }

    fn duplicates(content_type: &'static str, body: String) -> Vec<String> {
        let headers = HeaderMap::from_iter([(header::CONTENT_TYPE, HeaderValue::from_static(content_type))]);
        let query = Query::default();
        let (target, path) = (String::new(), String::new());
        Request { method: Method::PATCH, target, path, query, headers, body: body.into() }.duplicate_fields()
    }

    /// The guard stood before the other parser only.
    #[test]
    fn duplicates_are_not_looked_for_in_yaml_that_is_too_deep() {
        let yaml = |body: String| duplicates("application/apply-patch+yaml", body);
        assert_eq!(yaml("a: 1\nb: [{c: 1, c: 2}]\na: 2".to_owned()), ["b[0].c", "a"]);
        assert_eq!(yaml("{a: ".repeat(400_000)), [""; 0]);
    }

    /// The path was copied for each item: a terabyte.
    #[test]
    fn duplicates_behind_a_vast_name_are_found() {
        let (name, zeros) = ("k".repeat(1_400_000), "0,".repeat(700_000));
        let found = duplicates("application/json", format!(r#"{{"{name}": [{zeros}{{"a": 1, "a": 2}}]}}"#));
        assert!(found == [format!("{name}[700000].a")], "{} others", found.len());
    }
}
