//! The format of recordings: requests and answers as JSON Lines, without secrets. Nothing in this file does I/O.
//!
//! ```json
//! {"listwatchRecording":1,"server":"https://127.0.0.1:6443"}
//! {"time":0.001,"exchange":1,"request":{"method":"GET","path":"/api/v1/pods?watch=1&resourceVersion=1207"}}
//! {"time":0.012,"exchange":1,"head":{"status":200,"version":"HTTP/2.0","headers":{"content-type":"application/json"}}}
//! {"time":4.512,"exchange":1,"line":{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"1300"}}}}
//! {"time":9.002,"exchange":1,"end":"clean"}
//! ```
//!
//! A time is in seconds since the recording began. A line that is a JSON object is written as it was received; any other
//! line becomes a JSON string.

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap},
    mem,
};

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use listwatch::{advanced::Step, client::Request};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json, value::RawValue};

use super::place::Place;

/// The format that this version writes, and the newest one that it reads.
const FORMAT: u32 = 1;
/// How a recording begins.
pub const BEGINNING: &str = r#"{"listwatchRecording":"#;
/// The headers of an answer that are recorded and shown. The others are about the connection.
pub const HEADERS: [&str; 8] = [
    "content-type",
    "location",
    "transfer-encoding",
    "retry-after",
    "warning",
    "audit-id",
    "x-kubernetes-pf-flowschema-uid",
    "x-kubernetes-pf-prioritylevel-uid",
];
const REDACTED: &str = "(redacted)";

/// The first line of a recording.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Header {
    pub listwatch_recording: u32,
    #[serde(default)]
    pub server: String,
}

impl Header {
    pub fn new(server: &str) -> Header {
        Header { listwatch_recording: FORMAT, server: server.to_owned() }
    }
}

/// A step of an exchange, and when it was.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "Written")]
pub struct Entry {
    /// Seconds since the recording began.
    pub time: f64,
    pub exchange: u64,
    pub what: What,
}

#[derive(Clone, Debug)]
pub enum What {
    Request(Sent),
    Head(AnswerHead),
    Line(Line),
    /// The bytes after the last line, without an end of a line.
    Rest(Line),
    End(AnswerEnd),
}

/// An entry as it is written: with exactly one of the optional fields. A flattened enum cannot hold a [`RawValue`].
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct Written {
    time: f64,
    exchange: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    request: Option<Sent>,
    #[serde(skip_serializing_if = "Option::is_none")]
    head: Option<AnswerHead>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<Line>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rest: Option<Line>,
    #[serde(skip_serializing_if = "Option::is_none")]
    end: Option<AnswerEnd>,
}

impl TryFrom<Written> for Entry {
    type Error = &'static str;

    fn try_from(written: Written) -> Result<Entry, &'static str> {
        let Written { time, exchange, request, head, line, rest, end } = written;
        let what = (request.map(What::Request))
            .or(head.map(What::Head))
            .or(line.map(What::Line))
            .or(rest.map(What::Rest))
            .or(end.map(What::End));
        let what = what.ok_or("none of request, head, line, rest and end")?;
        Ok(Entry { time, exchange, what })
    }
}

impl From<Entry> for Written {
    fn from(Entry { time, exchange, what }: Entry) -> Written {
        let written = Written { time, exchange, ..Written::default() };
        match what {
            What::Request(sent) => Written { request: Some(sent), ..written },
            What::Head(head) => Written { head: Some(head), ..written },
            What::Line(line) => Written { line: Some(line), ..written },
            What::Rest(rest) => Written { rest: Some(rest), ..written },
            What::End(end) => Written { end: Some(end), ..written },
        }
    }
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Sent {
    pub method: String,
    /// With the query.
    pub path: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub accept: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub body: String,
    /// Who sent it, in a recording of several clients.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub user: String,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AnswerHead {
    pub status: u16,
    pub version: String,
    pub headers: BTreeMap<String, String>,
}

/// A line of an answer, without its end.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Line(Box<RawValue>);

/// How an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AnswerEnd {
    /// The server ended the answer.
    Clean,
    /// The connection broke, or there was none.
    Lost,
    /// The client ended the exchange.
    Dropped,
}

impl Sent {
    fn get(path: String) -> Sent {
        Sent { method: "GET".to_owned(), path, ..Sent::default() }
    }

    fn new(request: &Request) -> Sent {
        let is_plain = request.accept == "application/json";
        Sent {
            method: request.method.to_string(),
            path: request.target(),
            accept: if is_plain { String::new() } else { request.accept.to_string() },
            body: String::from_utf8_lossy(&request.body).into_owned(),
            user: String::new(),
        }
    }
}

impl Line {
    pub(super) fn new(line: &str) -> Line {
        let is_object = line.starts_with('{') && !line.contains('\n');
        let raw = if is_object { RawValue::from_string(line.to_owned()).ok() } else { None };
        // A text is always JSON.
        Line(raw.unwrap_or_else(|| RawValue::from_string(Value::from(line).to_string()).unwrap_or_default()))
    }

    pub fn text(&self) -> Cow<'_, str> {
        let json = self.0.get();
        match serde_json::from_str::<String>(json) {
            Ok(text) => text.into(),
            Err(_) => json.into(),
        }
    }
}

/// Cuts one exchange into entries: pieces of a watch become lines, and pieces of any other body one text.
pub struct Recorder {
    /// The bytes since the last line.
    rest: Vec<u8>,
    /// Whether the answers may hold Secrets or tokens.
    is_secret: bool,
    is_watch: bool,
    is_list: bool,
    is_refused: bool,
}

impl Recorder {
    pub fn of(request: &Request) -> Recorder {
        let (is_secret, is_watch) = (is_secret(&request.path), request.is_watch());
        let is_list = !is_watch
            && !is_version_check(request)
            && Place::of(&request.path).is_some_and(|place| place.name.is_none());
        Recorder { rest: Vec::new(), is_secret, is_watch, is_list, is_refused: false }
    }

    pub fn is_watch(&self) -> bool {
        self.is_watch
    }

    pub fn is_list(&self) -> bool {
        self.is_list
    }

    pub fn is_refused(&self) -> bool {
        self.is_refused
    }

    /// The entries that a step adds to the recording.
    fn step(&mut self, step: Step<'_>) -> Vec<What> {
        match step {
            Step::Request(request) => vec![What::Request(Sent::new(request))],
            Step::Head { status, version, headers } => {
                // The body of an error is not a stream of events.
                self.is_refused = status >= 300;
                self.is_watch &= !self.is_refused;
                let text = |name: &str| {
                    let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
                    values.collect::<Vec<_>>().join(", ")
                };
                let headers = HEADERS.iter().map(|name| ((*name).to_owned(), text(name)));
                let headers = headers.filter(|(_, value)| !value.is_empty()).collect();
                vec![What::Head(AnswerHead { status, version: format!("{version:?}"), headers })]
            }
            Step::Chunk(chunk) => self.chunk(chunk),
            Step::End => self.end(AnswerEnd::Clean),
            Step::Lost => self.end(AnswerEnd::Lost),
            Step::Dropped => self.end(AnswerEnd::Dropped),
        }
    }

    fn chunk(&mut self, chunk: &[u8]) -> Vec<What> {
        if !self.is_watch {
            self.rest.extend_from_slice(chunk);
            return Vec::new();
        }
        let mut lines = Vec::new();
        for piece in chunk.split_inclusive(|byte| *byte == b'\n') {
            self.rest.extend_from_slice(piece);
            if piece.ends_with(b"\n") {
                lines.extend(self.line().map(What::Line));
            }
        }
        lines
    }

    fn end(&mut self, end: AnswerEnd) -> Vec<What> {
        self.line().map(What::Rest).into_iter().chain([What::End(end)]).collect()
    }

    /// The bytes since the last line, as a line. `None`: they are blank.
    fn line(&mut self) -> Option<Line> {
        let bytes = mem::take(&mut self.rest);
        let text = String::from_utf8_lossy(bytes.trim_ascii());
        (!text.is_empty()).then(|| Line::new(&text))
    }

    /// An entry of this exchange without secrets.
    pub fn redacted(&self, what: What) -> What {
        match what {
            What::Line(line) => What::Line(self.redacted_line(line)),
            What::Rest(line) => What::Rest(self.redacted_line(line)),
            What::Request(sent) if !sent.body.is_empty() => {
                let body = self.redacted_text(&sent.body).into_owned();
                What::Request(Sent { body, ..sent })
            }
            What::Request(_) | What::Head(_) | What::End(_) => what,
        }
    }

    /// The request of this exchange without secrets.
    pub fn redacted_request(&self, request: &Request) -> Request {
        match self.redacted(What::Request(Sent::new(request))) {
            What::Request(sent) => Request { body: sent.body.into(), ..request.clone() },
            What::Head(_) | What::Line(_) | What::Rest(_) | What::End(_) => request.clone(),
        }
    }

    fn redacted_line(&self, line: Line) -> Line {
        let redacted = match self.redacted_text(&line.text()) {
            Cow::Borrowed(_) => None,
            Cow::Owned(text) => Some(Line::new(&text)),
        };
        redacted.unwrap_or(line)
    }

    pub fn redacted_text<'a>(&self, json: &'a str) -> Cow<'a, str> {
        if !self.is_secret && !json.contains("\"Secret\"") {
            return json.into();
        }
        let Ok(mut value) = serde_json::from_str::<Value>(json) else { return REDACTED.to_owned().into() };
        redact(&mut value, self.is_secret);
        value.to_string().into()
    }
}

/// The recorders of all exchanges that have not ended.
#[derive(Default)]
pub struct Recorders(HashMap<u64, Recorder>);

impl Recorders {
    /// Gives the recorder of the exchange and the entries of this step to `use_them`.
    pub fn step<E>(
        &mut self,
        exchange: u64,
        step: Step<'_>,
        use_them: impl FnOnce(&Recorder, Vec<What>) -> Result<(), E>,
    ) -> Result<(), E> {
        if let Step::Request(request) = step {
            self.0.insert(exchange, Recorder::of(request));
        }
        // An exchange that began before this observer.
        let Some(recorder) = self.0.get_mut(&exchange) else { return Ok(()) };
        let entries = recorder.step(step);
        let result = use_them(recorder, entries);
        if step.is_last() {
            self.0.remove(&exchange);
        }
        result
    }
}

/// Whether the client asks for the present version of the server: one object, metadata only.
fn is_version_check(request: &Request) -> bool {
    let has = |name: &str, value: &str| request.query.iter().any(|(n, v)| *n == name && v == value);
    let is_first_page = request.query.iter().all(|(name, _)| *name != "continue");
    request.accept.contains("as=PartialObjectMetadata") && has("limit", "1") && is_first_page
}

/// Whether requests or answers may hold Secrets or tokens: `…/secrets`, `…/serviceaccounts/NAME/token`, `…/tokenreviews`.
fn is_secret(path: &str) -> bool {
    let path = path.split('?').next().unwrap_or_default();
    path.split('/').any(|part| ["secrets", "token", "tokenreviews"].contains(&part))
}

/// Replaces the values of each Secret: its data and its annotations.
fn redact(value: &mut Value, is_secret: bool) {
    match value {
        Value::Object(fields) => {
            let is_secret = is_secret || fields.get("kind").is_some_and(|kind| kind == "Secret");
            for (name, value) in fields.iter_mut() {
                match &**name {
                    "data" | "stringData" if is_secret => redact_values(value, name == "data"),
                    // `kubectl apply` and others copy the data there.
                    "annotations" if is_secret => redact_values(value, false),
                    "token" if is_secret => *value = REDACTED.into(),
                    // The cells of a Table, and a JSON patch.
                    "cells" | "value" if is_secret => *value = json!([REDACTED]),
                    _ => redact(value, is_secret),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| redact(item, is_secret)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// The names of the keys stay. The values of `data` stay base64, so that the object decodes.
fn redact_values(value: &mut Value, is_base64: bool) {
    let redacted = || Value::from(if is_base64 { BASE64.encode(REDACTED) } else { REDACTED.to_owned() });
    match value {
        Value::Object(fields) => fields.values_mut().for_each(|value| *value = redacted()),
        other => *other = redacted(),
    }
}

/// The entries of a recording, or of what `curl -N` wrote.
pub struct Recorded {
    pub entries: Vec<Entry>,
    /// Whether the last line has no end, because the process that wrote it was killed. It is left out.
    pub is_cut: bool,
}

/// Reads a recording, or what `curl -N` wrote.
pub fn parse(text: &str) -> Result<Recorded, String> {
    let mut lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()).peekable();
    let Some((_, first)) = lines.peek() else { return Err("is empty".to_owned()) };
    let Ok(header) = serde_json::from_str::<Header>(first) else { return curl_output(text) };
    if header.listwatch_recording > FORMAT {
        let found = header.listwatch_recording;
        return Err(format!(
            "is a recording of format {found}, but this listwatch reads formats up to {FORMAT}: use a newer listwatch"
        ));
    }
    lines.next();
    let mut entries = Vec::new();
    while let Some((index, line)) = lines.next() {
        match serde_json::from_str(line) {
            Ok(entry) => entries.push(entry),
            Err(_) if lines.peek().is_none() && !text.ends_with('\n') => {
                return Ok(Recorded { entries, is_cut: true });
            }
            Err(error) => return Err(format!("line {} is not an entry of a recording: {error}", index + 1)),
        }
    }
    Ok(Recorded { entries, is_cut: false })
}

/// The body of a watch or a list, without times. The request and the way it ended are not known.
fn curl_output(text: &str) -> Result<Recorded, String> {
    let first = serde_json::Deserializer::from_str(text).into_iter::<Value>().next().and_then(Result::ok);
    let first =
        first.ok_or("is neither a recording nor the JSON that curl received, or is cut in its first line")?;
    let is_watch = first["type"].is_string() && first["object"].is_object();
    if is_watch && first["resource"].is_string() {
        return journal(text);
    }
    if first["kind"] == "Status" {
        return Err(format!("is a Status, neither a list nor a watch: {first}"));
    }
    if first["kind"] == "List" {
        return Err("is a List that kubectl composed, without a version: use kubectl get --raw".to_owned());
    }
    if !is_watch && !first["kind"].is_string() {
        return Err("is neither a recording nor an answer of an API server: no `type`, no `kind`".to_owned());
    }
    let path = if is_watch { "?watch=1" } else { "" }.to_owned();
    let sent = Sent::get(path);
    let mut recorder =
        Recorder { rest: Vec::new(), is_secret: false, is_watch, is_list: !is_watch, is_refused: false };
    let body = recorder.chunk(text.as_bytes());
    let is_cut = is_watch && !text.ends_with('\n');
    // curl does not write whether the server ended a watch.
    let end = recorder.end(if is_watch { AnswerEnd::Dropped } else { AnswerEnd::Clean });
    let all = [What::Request(sent)].into_iter().chain(body).chain(end);
    let entries = all.map(|what| Entry { time: 0.0, exchange: 1, what }).collect();
    Ok(Recorded { entries, is_cut })
}

/// The writes of an embedded API server: watch events with their resource and time. Each resource becomes an exchange.
///
/// ```json
/// {"object":{"apiVersion":"apps/v1",…},"resource":"deployments.apps","time":"2026-11-21T07:14:34.250Z","type":"MODIFIED",…}
/// ```
fn journal(text: &str) -> Result<Recorded, String> {
    let (mut entries, mut paths, mut began) = (Vec::new(), Vec::new(), None);
    let mut lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()).peekable();
    while let Some((index, line)) = lines.next() {
        let event: Value = match serde_json::from_str(line) {
            Ok(event) => event,
            Err(_) if lines.peek().is_none() && !text.ends_with('\n') => {
                return Ok(Recorded { entries, is_cut: true });
            }
            Err(error) => return Err(format!("line {} is not a write: {error}", index + 1)),
        };
        let then = event["time"].as_str().and_then(|time| listwatch_formats::time::parse_time(time).ok());
        let since = then.zip(*began.get_or_insert(then));
        let time = since.and_then(|(then, began)| then.duration_since(began).ok()).unwrap_or_default();
        let mut add = |exchange: usize, what| {
            entries.push(Entry { time: time.as_secs_f64(), exchange: exchange as u64 + 1, what });
        };
        let path = collection_path(&event);
        let exchange = paths.iter().position(|one| *one == path).unwrap_or_else(|| {
            add(paths.len(), What::Request(Sent::get(format!("{path}?watch=1"))));
            paths.push(path);
            paths.len() - 1
        });
        add(exchange, What::Line(Line::new(line)));
    }
    Ok(Recorded { entries, is_cut: false })
}

/// `/apis/apps/v1/deployments` for a write of `deployments.apps`.
fn collection_path(event: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (resource, version) = (text(&event["resource"]), text(&event["object"]["apiVersion"]));
    let plural = resource.split('.').next().unwrap_or_default();
    let root = if version.contains('/') { "apis" } else { "api" };
    format!("/{root}/{version}/{plural}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_read_as_it_was_written() {
        let lines = [
            r#"{"time":0.5,"exchange":1,"request":{"method":"GET","path":"/api/v1/pods?watch=1"}}"#,
            r#"{"time":0.5,"exchange":1,"head":{"status":200,"version":"HTTP/2.0","headers":{"content-type":"a"}}}"#,
            r#"{"time":0.5,"exchange":1,"line":{"type":"ADDED","object":{"n":9007199254740993}}}"#,
            r#"{"time":0.5,"exchange":1,"line":"no JSON"}"#,
            r#"{"time":0.5,"exchange":1,"rest":"{\"type\":"}"#,
            r#"{"time":0.5,"exchange":1,"end":"lost"}"#,
        ];
        let text = format!(
            "{}\n{}\n",
            serde_json::to_string(&Header::new("https://h")).expect("JSON"),
            lines.join("\n")
        );
        let entries = parse(&text).expect("a recording").entries;
        let written: Vec<_> =
            entries.iter().map(|entry| serde_json::to_string(entry).expect("JSON")).collect();
        assert_eq!(written, lines);
    }

    #[test]
    fn a_recording_that_is_cut_at_any_byte_keeps_its_whole_lines() {
        let header = r#"{"listwatchRecording":1,"server":"https://h"}"#;
        let entry = r#"{"time":0.5,"exchange":1,"line":{"type":"ADDED","object":{"metadata":{"name":"a"}}}}"#;
        let text = format!("{header}\n{entry}\n{entry}\n");
        for length in header.len()..text.len() {
            let recorded = parse(&text[..length]).expect("a recording");
            let lines = text[..length].matches('\n').count().saturating_sub(1);
            let is_whole = text.as_bytes()[length] == b'\n' || text[..length].ends_with('\n');
            assert_eq!(recorded.is_cut, !is_whole, "{length}");
            let is_last_whole = text.as_bytes()[length] == b'\n' && length > header.len();
            assert_eq!(recorded.entries.len(), lines + usize::from(is_last_whole), "{length}");
        }
        for length in 0..header.len() {
            assert!(parse(&text[..length]).is_err(), "{length}");
        }
    }

    #[test]
    fn the_values_of_a_secret_are_not_recorded() {
        let recorder = Recorder::of(&Request::get("/api/v1/secrets"));
        let redacted = |json: &str| match recorder.redacted(What::Line(Line::new(json))) {
            What::Line(line) => line.text().into_owned(),
            other => panic!("{other:?}"),
        };
        let secret = r#"{"type":"ADDED","object":{"kind":"Secret","metadata":{"name":"x","annotations":
            {"kubectl.kubernetes.io/last-applied-configuration":"s3cret"}},"data":{"password":"s3cret"}}}"#;
        let shown = redacted(&secret.replace('\n', ""));
        assert!(
            !shown.contains("s3cret") && shown.contains("\"password\"") && shown.contains("\"name\":\"x\""),
            "{shown}"
        );
        for json in [r#"{"items":[{"data":{"a":"s3cret"}}]}"#, r#"{"rows":[{"cells":["s3cret"]}]}"#, "s3cret"]
        {
            assert!(!redacted(json).contains("s3cret"), "{json}");
        }
    }
}
