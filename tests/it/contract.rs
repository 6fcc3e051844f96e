//! The contract: what goes over the wire, request by request, on our API server as on the real one.
//!
//! `contract/*.http` are stories of requests and answers, to be read; they are the documentation of the wire. Each runs
//! on the embedded server and, with `KUBEBUILDER_ASSETS`, on the real one, and both are held to the answers that stand
//! there:
//!
//! ```text
//! ### An object that is not there
//! # What people should know about it.
//! GET /api/v1/namespaces/reads/configmaps/nope
//!
//! HTTP/2 404
//! content-type: application/json
//! {"kind": "Status", …, "reason": "NotFound", …}
//! ```
//!
//! With `UPDATE_EXPECT=1` the answers are written anew, as the real server gives them; never as ours does. Where ours
//! is known to differ stands in [`DIFFERENCES`]; an entry that is no longer true fails.
//!
//! A story has a namespace of its name, and `widgets.demo.example.com` from `contract/prelude.http`. Before a request
//! may stand, each as `# @…`:
//!
//! - `name x`: later requests use what it answered, as in `{{x.metadata.resourceVersion}}`.
//! - `lines n`: of a watch, read this many events and close it.
//! - `until text`: ask again until the head or the body, written without spaces, has this text.
//! - `only names`: of an answer that is longer than one wants to know, the fields, or the elements of its lists, of
//!   these names.
//! - `managedFields`: show them. They are long, and left out elsewhere.
//!
//! `# @controllers` before the first request: somebody collects garbage and empties namespaces, as on the real one.
//!
//! What differs from run to run has a name instead: `v1 < v2` are the versions of the story's objects, `v2+` is the
//! version of a list or a bookmark, which is that of `v2` or later; uids, times, addresses and tokens in `<…>`.

mod differences;
mod normal;

use std::{collections::BTreeMap, env, fmt::Write as _, fs, path::PathBuf, sync::Arc};

use http::Method;
use listwatch::apiserver::{ApiServer, Options};
use reqwest::{Certificate, header};
use serde_json::{Deserializer, Value, json};
use similar::TextDiff;
use tokio::{
    sync::OnceCell,
    task::{JoinSet, LocalSet},
};

use crate::{
    hands::eventually,
    plane::{PATIENCE, Plane},
    world::has_real,
};
pub use differences::FIELDS;
use differences::{DIFFERENCES, Difference};

macro_rules! stories {
    ($($name:ident)*) => {
        $(#[tokio::test]
        async fn $name() {
            check(stringify!($name)).await;
        })*

        const STORIES: &[&str] = &[$(stringify!($name)),*];
    };
}

stories! {
    applying
    collecting
    configmaps
    crds
    creating
    definitions
    deleting
    discovery
    events
    forbidden
    forms
    kinds
    namespaces
    nodes
    paging
    patching
    pods
    reading
    scaling
    schemas
    services
    undecodable
    updating
    watching
    workloads
}

/// The story that comes before each other.
const PRELUDE: &str = "prelude";

#[test]
fn every_story_is_told_and_every_difference_belongs_to_one() {
    let mut files: Vec<String> = fs::read_dir(file("").parent().unwrap())
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().to_str()?.strip_suffix(".http").map(str::to_owned))
        .filter(|name| name != PRELUDE)
        .collect();
    files.sort();
    let mut told = STORIES.to_vec();
    told.sort_unstable();
    assert_eq!(files, told);
    for difference in DIFFERENCES {
        let Difference { story, request, reason, .. } = difference;
        assert!(told.contains(story) && !reason.is_empty(), "{story}: {request}");
    }
}

fn file(story: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/it/contract/{story}.http"))
}

/// A request, as it stands in the file, and the answer to it.
#[derive(Clone)]
struct Step {
    /// From `###` to the last line of the body.
    text: String,
    title: String,
    name: Option<String>,
    lines: Option<usize>,
    until: Option<String>,
    only: Vec<String>,
    shows_managed_fields: bool,
    method: Method,
    path: String,
    headers: Vec<(String, String)>,
    body: String,
    expected: String,
}

impl Step {
    fn parse(text: &str) -> Step {
        let (request, expected) = match text.find("\nHTTP/2 ") {
            Some(at) => (text[..at].trim_end(), text[at..].trim()),
            None => (text.trim_end(), ""),
        };
        let mut lines = request.lines();
        let title = lines.next().unwrap().trim_start_matches('#').trim().to_owned();
        let mut step = Step {
            text: request.to_owned(),
            title,
            name: None,
            lines: None,
            until: None,
            only: Vec::new(),
            shows_managed_fields: false,
            method: Method::GET,
            path: String::new(),
            headers: Vec::new(),
            body: String::new(),
            expected: expected.to_owned(),
        };
        let line = loop {
            let line = lines.next().unwrap_or_else(|| panic!("{}: no request", step.title));
            let Some(comment) = line.strip_prefix('#') else { break line };
            let Some(directive) = comment.trim().strip_prefix('@') else { continue };
            match directive.split_once(' ').unwrap_or((directive, "")) {
                ("name", name) => step.name = Some(name.to_owned()),
                ("lines", count) => step.lines = Some(count.parse().unwrap()),
                ("until", text) => step.until = Some(text.to_owned()),
                ("only", names) => step.only = names.split(' ').map(str::to_owned).collect(),
                ("managedFields", "") => step.shows_managed_fields = true,
                _ => panic!("{}: unknown @{directive}", step.title),
            }
        };
        let (method, path) = line.split_once(' ').unwrap_or_else(|| panic!("{}: {line:?}", step.title));
        step.method = method.parse().unwrap();
        step.path = path.to_owned();
        for line in lines.by_ref().take_while(|line| !line.is_empty()) {
            let (name, value) = line.split_once(':').unwrap_or_else(|| panic!("{}: {line:?}", step.title));
            step.headers.push((name.to_lowercase(), value.trim().to_owned()));
        }
        step.body = lines.collect::<Vec<_>>().join("\n");
        step
    }
}

/// What stands before the first request, and the requests.
fn parse(text: &str) -> (String, Vec<Step>) {
    let mut parts = text.split("\n### ");
    let preamble = parts.next().unwrap_or_default().trim_end().to_owned();
    (preamble, parts.map(|part| Step::parse(&format!("### {part}"))).collect())
}

/// What came back: the head's lines, and the documents of the body. What is no JSON is a text.
#[derive(Clone, Debug, Default, PartialEq)]
struct Answer {
    head: Vec<String>,
    body: Vec<Value>,
}

/// The headers that a client acts upon.
const HEADERS: [&str; 4] = ["content-type", "retry-after", "warning", "allow"];

impl Answer {
    /// Of `HTTP/2 200`, headers, and a body.
    fn parse(text: &str) -> Answer {
        let is_head = |line: &str| HEADERS.iter().any(|name| line.starts_with(&format!("{name}: ")));
        let mut head = Vec::new();
        let mut rest = text;
        while let Some((line, after)) = rest.split_once('\n').or((!rest.is_empty()).then_some((rest, "")))
            && (head.is_empty() || is_head(line))
        {
            head.push(line.to_owned());
            rest = after;
        }
        Answer { head, body: documents(rest) }
    }

    fn text(&self) -> String {
        let mut text = self.head.join("\n");
        for document in &self.body {
            let document = match document {
                Value::String(text) => text.clone(),
                json => normal::pretty(json, 0),
            };
            let _ = write!(text, "\n{document}");
        }
        text
    }
}

fn documents(text: &str) -> Vec<Value> {
    let documents: Result<Vec<Value>, _> = Deserializer::from_str(text).into_iter().collect();
    documents.unwrap_or_else(|_| vec![Value::String(text.trim_end().to_owned())])
}

/// A server, and how to reach it.
struct Wire {
    http: reqwest::Client,
    url: String,
    token: String,
    _embedded: Option<ApiServer>,
}

impl Wire {
    fn new(url: String, ca_pem: &str, token: &str, embedded: Option<ApiServer>) -> Arc<Wire> {
        // A second call fails, and does not matter.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let ca = Certificate::from_pem(ca_pem.as_bytes()).unwrap();
        let builder = reqwest::Client::builder().tls_certs_only([ca]).user_agent("contract/1");
        let http = builder.build().unwrap();
        Arc::new(Wire { http, url, token: token.to_owned(), _embedded: embedded })
    }

    /// Our own, with the prelude told. It knows Jane, who may do nothing.
    async fn embedded(story: &str) -> Arc<Wire> {
        let controllers = fs::read_to_string(file(story)).unwrap().contains("\n# @controllers\n");
        let server = ApiServer::start(Options { controllers, ..Options::default() }).await.unwrap();
        server.add_token("jane", "jane");
        server.limit("jane", Vec::new());
        let (url, ca_pem, token) = (server.url(), server.ca_pem().to_owned(), server.token().to_owned());
        let wire = Wire::new(url, &ca_pem, &token, Some(server));
        wire.tell(PRELUDE).await;
        wire
    }

    /// The one that all tests share, with the prelude told.
    async fn real() -> Arc<Wire> {
        static TOLD: OnceCell<()> = OnceCell::const_new();
        let plane = Plane::shared().await;
        let wire = Wire::new(plane.url(), &plane.ca_pem(), "admin", None);
        TOLD.get_or_init(async || drop(wire.tell(PRELUDE).await)).await;
        wire
    }

    /// Sends all requests of a story, and returns the answers, made comparable.
    async fn tell(self: &Arc<Self>, story: &str) -> Vec<Answer> {
        if story != PRELUDE {
            self.make_namespace(story).await;
        }
        let (_, steps) = parse(&fs::read_to_string(file(story)).unwrap());
        let mut known = Known::default();
        let mut answers = Vec::new();
        let mut rest = &steps[..];
        while !rest.is_empty() {
            // Reads do not disturb each other, so they need not wait for each other either.
            let is_read = |step: &&Step| {
                step.method == Method::GET && step.until.is_none() && filled(&step.path, &known).is_some()
            };
            let (now, later) = rest.split_at(rest.iter().take_while(is_read).count().max(1));
            for (step, answer) in now.iter().zip(self.ask(now, &known).await) {
                if let (Some(name), Some(document)) = (&step.name, answer.body.first()) {
                    known.insert(name.clone(), document.clone());
                }
                answers.push(answer);
            }
            rest = later;
        }
        for (step, answer) in steps.iter().zip(&mut answers) {
            if !step.shows_managed_fields {
                answer.body.iter_mut().for_each(normal::hide_managed_fields);
            }
            if !step.only.is_empty() {
                answer.body.iter_mut().for_each(|document| normal::keep_only(document, &step.only));
            }
        }
        normal::normalise(&mut answers);
        answers
    }

    async fn make_namespace(&self, name: &str) {
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        let request = self.http.post(format!("{}/api/v1/namespaces", self.url)).bearer_auth(&self.token);
        let request = request.header(header::CONTENT_TYPE, "application/json").body(namespace.to_string());
        assert_eq!(request.send().await.unwrap().status(), 201, "{name}");
    }

    /// Sends requests, all at once, and returns the answers in the order of the requests.
    async fn ask(self: &Arc<Self>, steps: &[Step], known: &Known) -> Vec<Answer> {
        let (local, mut asked) = (LocalSet::new(), JoinSet::new());
        for (index, step) in steps.iter().cloned().enumerate() {
            let (wire, known) = (Arc::clone(self), known.clone());
            let ask = async move { (index, wire.take(&step, &known).await) };
            asked.spawn_local_on(ask, &local);
        }
        let mut answered = local.run_until(asked.join_all()).await;
        answered.sort_by_key(|(index, _)| *index);
        answered.into_iter().map(|(_, answer)| answer).collect()
    }

    /// Sends a request until its answer is the one that it waits for.
    async fn take(&self, step: &Step, known: &Known) -> Answer {
        let what = format!("the answer to {:?}", step.title);
        eventually(&what, async || {
            let sent = tokio::time::timeout(PATIENCE, self.send(step, known)).await;
            let answer = sent.unwrap_or_else(|_| panic!("{}: no answer", step.title));
            let text: String =
                answer.head.iter().cloned().chain(answer.body.iter().map(Value::to_string)).collect();
            // A kind that was made or changed just now. It does not always come.
            let is_early = text.contains("storage is (re)initializing");
            let is_awaited = step.until.as_ref().is_none_or(|until| text.contains(until));
            (is_awaited && !is_early).then_some(answer)
        })
        .await
    }

    async fn send(&self, step: &Step, known: &Known) -> Answer {
        let filled =
            |text: &str| filled(text, known).unwrap_or_else(|| panic!("{}: no such name", step.title));
        let url = format!("{}{}", self.url, filled(&step.path));
        let mut request = self.http.request(step.method.clone(), url);
        let has = |name: &str| step.headers.iter().any(|(of, _)| of == name);
        if !has("authorization") {
            request = request.bearer_auth(&self.token);
        }
        if !step.body.is_empty() {
            request = request.body(filled(&step.body));
            if !has("content-type") {
                request = request.header(header::CONTENT_TYPE, "application/json");
            }
        }
        // One without a value is not sent, nor is its default.
        for (name, value) in step.headers.iter().filter(|(_, value)| !value.is_empty()) {
            request = request.header(name, filled(value));
        }
        let mut answer = match request.send().await {
            Ok(answer) => answer,
            Err(error) => return Answer { head: vec![format!("no answer: {error:?}")], body: Vec::new() },
        };
        let mut head = vec![format!("HTTP/2 {}", answer.status().as_u16())];
        for name in HEADERS {
            let values = answer.headers().get_all(name).iter();
            head.extend(values.map(|value| format!("{name}: {}", value.to_str().unwrap())));
        }
        let mut body = Vec::new();
        let is_read = |body: &[u8]| {
            step.lines.is_some_and(|lines| body.iter().filter(|byte| **byte == b'\n').count() >= lines)
        };
        while !is_read(&body)
            && let Some(chunk) = answer.chunk().await.unwrap()
        {
            body.extend_from_slice(&chunk);
        }
        if step.lines.is_some() {
            // What came behind the last whole line.
            body.truncate(body.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1));
        }
        let mut body = documents(&String::from_utf8_lossy(&body));
        body.truncate(step.lines.unwrap_or(usize::MAX));
        Answer { head, body }
    }
}

/// The answers that have a name.
type Known = BTreeMap<String, Value>;

/// With `{{name.path.of.a.value}}` replaced by what an earlier request was answered, if it was.
fn filled(text: &str, known: &Known) -> Option<String> {
    let mut filled = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("{{") {
        let (path, after) = after.split_once("}}").unwrap();
        let (name, path) = path.split_once('.').unwrap();
        let document = known.get(name)?;
        let pointer = format!("/{}", path.replace('.', "/"));
        let value = document.pointer(&pointer).unwrap_or(&Value::Null);
        filled.push_str(before);
        match value {
            Value::String(text) => filled.push_str(text),
            other => filled.push_str(&other.to_string()),
        }
        rest = after;
    }
    Some(filled + rest)
}

/// Tells a story on both servers. Theirs may be written into it; ours is only compared.
async fn check(story: &str) {
    if has_real() {
        let answers = Wire::real().await.tell(story).await;
        if env::var_os("UPDATE_EXPECT").is_some() {
            write(story, &answers);
        }
        compare("the real server", story, answers, &[]);
    }
    let differences: Vec<_> = DIFFERENCES.iter().filter(|difference| difference.story == story).collect();
    compare("the embedded server", story, Wire::embedded(story).await.tell(story).await, &differences);
}

fn write(story: &str, answers: &[Answer]) {
    let (preamble, steps) = parse(&fs::read_to_string(file(story)).unwrap());
    let mut text = preamble + "\n";
    for (step, answer) in steps.iter().zip(answers) {
        let _ = write!(text, "\n{}\n\n{}\n", step.text, answer.text());
    }
    fs::write(file(story), text).unwrap();
}

/// Panics with what differs, and with the differences that are known but are none.
fn compare(server: &str, story: &str, mut actual: Vec<Answer>, differences: &[&Difference]) {
    let (_, steps) = parse(&fs::read_to_string(file(story)).unwrap());
    let mut expected: Vec<_> = steps.iter().map(|step| Answer::parse(&step.expected)).collect();
    let mut hit = vec![false; differences.len()];
    for ((step, expected), actual) in steps.iter().zip(&mut expected).zip(&mut actual) {
        for (difference, hit) in differences.iter().zip(&mut hit) {
            if [step.title.as_str(), "*"].contains(&difference.request) {
                *hit |= difference.remove(expected, actual);
            }
        }
    }
    normal::normalise(&mut expected);
    normal::normalise(&mut actual);
    let mut differs = String::new();
    for ((step, expected), actual) in steps.iter().zip(expected).zip(actual) {
        if expected != actual {
            let (expected, actual) = (expected.text(), actual.text());
            let diff = TextDiff::from_lines(&expected, &actual).unified_diff().to_string();
            let _ = write!(differs, "\n{}\n{diff}", step.text);
        }
    }
    for (difference, hit) in differences.iter().zip(hit) {
        if !hit {
            let Difference { request, at, .. } = difference;
            let _ = write!(differs, "\n{request}: {at:?} is a known difference, but does not differ\n");
        }
    }
    assert!(
        differs.is_empty(),
        "{story}: what {server} does (+) and what stands in the file (-):\n{differs}"
    );
}
