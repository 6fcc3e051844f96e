//! The contract: requests and answers on the wire are the same on the embedded API server as on kube-apiserver.
//!
//! Each `.http` file of `apiserver/contract` is a story of requests and answers, written to be read: together they document
//! the wire. The embedded server and, with `KUBEBUILDER_ASSETS`, kube-apiserver must give the answers in the file:
//!
//! ```text
//! ### An object that is not there
//! # A note for the reader.
//! GET /api/v1/namespaces/reads/configmaps/nope
//!
//! HTTP/2 404
//! content-type: application/json
//! {"kind": "Status", …, "reason": "NotFound", …}
//! ```
//!
//! `UPDATE_EXPECT=1` writes kube-apiserver's answers to the files, and never the embedded server's answers. Known
//! differences of the embedded server are listed in `apiserver/contract/differences.txt`; an entry that is no longer true fails.
//!
//! Each story has a namespace of its own name, and `widgets.demo.example.com` from `prelude.http`. Directives stand
//! before a request, each as `# @…`:
//!
//! - `name x`: later requests can use this answer, as in `{{x.metadata.resourceVersion}}`.
//! - `lines n`: read this many events of a watch, and close it.
//! - `websocket`: ask for a WebSocket, with the headers of a handshake. The body has the messages of the client.
//! - `until text`: repeat the request until the head or the body, written without spaces, contains this text.
//! - `only names`: show only the fields of a long answer, or the elements of its lists, with these names.
//! - `hide names`: hide the fields with these names, wherever they are.
//! - `managedFields`: show them. They are long, and hidden elsewhere.
//!
//! `# @controllers` before the first request starts the garbage collector and namespace controller, as in a cluster.
//!
//! `# @workloads` there also starts the controllers of Deployments, StatefulSets, claims, Jobs, PodDisruptionBudgets and policies, on a
//! server of its own. No kubelet runs: the story writes the status of Pods.
//!
//! `# @accounts` there starts the controllers of ServiceAccounts, on a server of its own. New Pods need a ServiceAccount.
//!
//! `# @refusing` there chooses a server of its own that refuses more: its first versions are lost, it has no streaming lists,
//! and the server of the group `gone.example.com` is not there. `# @stop` before one of its requests begins to stop it.
//!
//! `{{webhook.url}}` is a webhook server of the story, with the CA `{{webhook.ca}}`: see `webhook.rs`.
//!
//! Values that differ between runs have names: `v1 < v2` are versions of objects, and `v2+` is the version of a list
//! or a bookmark, `v2` or later. Uids, times, addresses and tokens are written as `<…>`.
//!
//! Messages are compared without what only Go programs have, such as `Go struct field`: see `go_terms.rs`.

mod differences;
mod normal;
mod webhook;
mod websocket;

use std::{collections::BTreeMap, env, fmt::Write as _, fs, path::PathBuf, sync::Arc, time::Duration};

use http::Method;
use listwatch_apiserver::{ApiServer, Fault, Options, Planned};
use listwatch_control_plane::{
    ADMIN_TOKEN, ControlPlane, Http, JANE_TOKEN, PATIENCE, eventually, has_assets, has_only_real,
};
use reqwest::header;
use serde_json::{Deserializer, Value, json};
use similar::TextDiff;
use tokio::{
    sync::OnceCell,
    task::{JoinSet, LocalSet},
};

use crate::fixture;
use differences::{Difference, EDITS};
pub use webhook::Webhook;

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
    accounts
    addresses
    applying
    autoscaling
    bindings
    budgets
    claims
    classes
    collecting
    columns
    configmaps
    converting
    costs
    crds
    creating
    crossing
    defaulting
    definitions
    deleting
    discovery
    endpoints
    events
    failing
    forbidden
    functions
    jobs
    kinds
    limits
    logs
    managers
    measures
    mutating
    mutations
    namespaces
    negotiating
    nodes
    ordinals
    paging
    patching
    patterns
    pods
    policies
    pruning
    quotas
    reading
    refusing
    resizing
    reviews
    rollouts
    rules
    runs
    scaling
    schemas
    services
    standards
    statefulsets
    stored
    typing
    undecodable
    updating
    validating
    versions
    volumes
    warnings
    watching
    websockets
    workloads
}

/// The story that runs before each other story.
const PRELUDE: &str = "prelude";

#[test]
fn every_story_has_a_test_and_every_difference_a_story() {
    let mut files: Vec<String> = fs::read_dir(file("").parent().unwrap())
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().to_str()?.strip_suffix(".http").map(str::to_owned))
        .filter(|name| name != PRELUDE)
        .collect();
    files.sort();
    let mut tested = STORIES.to_vec();
    tested.sort_unstable();
    assert_eq!(files, tested);
    for Difference { story, request, reason, .. } in differences::known() {
        assert!((tested.contains(&story) || story == EDITS) && !reason.is_empty(), "{story}: {request}");
    }
}

/// Whether a story has this directive for all of its requests.
fn asks(story: &str, directive: &str) -> bool {
    fs::read_to_string(file(story)).unwrap().contains(&format!("\n# {directive}\n"))
}

fn file(story: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("contract/{story}.http"))
}

/// A request of a story, and the expected answer.
#[derive(Clone)]
struct Step {
    /// The text in the file, from `###` to the last line of the request's body.
    text: String,
    title: String,
    name: Option<String>,
    lines: Option<usize>,
    until: Option<String>,
    stops: bool,
    websocket: bool,
    only: Vec<String>,
    hidden: Vec<String>,
    shows_managed_fields: bool,
    method: Method,
    path: String,
    headers: Vec<(String, String)>,
    body: String,
    expected: String,
}

impl Step {
    fn parse(text: &str) -> Step {
        let (request, expected) = match text.find("\nHTTP/") {
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
            stops: false,
            websocket: false,
            only: Vec::new(),
            hidden: Vec::new(),
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
                ("stop", "") => step.stops = true,
                ("websocket", "") => step.websocket = true,
                ("until", text) => step.until = Some(text.to_owned()),
                ("only", names) => step.only = names.split(' ').map(str::to_owned).collect(),
                ("hide", names) => step.hidden = names.split(' ').map(str::to_owned).collect(),
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

/// The text before the first request, and the requests.
fn parse(text: &str) -> (String, Vec<Step>) {
    let mut parts = text.split("\n### ");
    let preamble = parts.next().unwrap_or_default().trim_end().to_owned();
    (preamble, parts.map(|part| Step::parse(&format!("### {part}"))).collect())
}

/// An answer: the lines of its head, and the documents of its body. A body that is not JSON is one string.
#[derive(Clone, Debug, Default, PartialEq)]
struct Answer {
    head: Vec<String>,
    body: Vec<Value>,
}

/// The headers that a client acts upon.
const HEADERS: [&str; 8] = [
    "content-type",
    "retry-after",
    "warning",
    "allow",
    "upgrade",
    "sec-websocket-accept",
    "sec-websocket-protocol",
    "sec-websocket-version",
];

impl Answer {
    /// Parses the status line, headers and body of an answer in a story.
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

/// The server under test.
struct Server {
    http: reqwest::Client,
    url: String,
    ca_pem: String,
    token: String,
    embedded: Option<ApiServer>,
    /// Of a server for `@refusing`, `@workloads` or `@accounts`.
    control_plane: Option<ControlPlane>,
    /// Of a story that uses it.
    webhook: OnceCell<Webhook>,
}

impl Server {
    fn new(url: String, ca_pem: &str, token: &str, embedded: Option<ApiServer>) -> Server {
        let http = fixture::http(ca_pem, "contract/1");
        let (ca_pem, token) = (ca_pem.to_owned(), token.to_owned());
        Server { http, url, ca_pem, token, embedded, control_plane: None, webhook: OnceCell::new() }
    }

    /// An embedded server, after the prelude.
    async fn embedded(story: &str) -> Arc<Server> {
        let workloads = asks(story, "@workloads");
        let accounts = asks(story, "@accounts");
        let controllers = workloads || accounts || asks(story, "@controllers");
        let mut options =
            Options { controllers, service_account_admission: accounts, rbac: true, ..Options::default() };
        if workloads {
            // The simulated kubelet starts no Pod during the story.
            options.pod_start = Duration::from_secs(3600);
        }
        let server = ApiServer::start(options).await.unwrap();
        server.add_token(JANE_TOKEN, "jane");
        let (url, ca_pem, token) = (server.url(), server.ca_pem().to_owned(), server.token().to_owned());
        let server = Arc::new(Server::new(url, &ca_pem, &token, Some(server)));
        server.run(PRELUDE).await;
        server.bind_jane().await;
        if let Some(embedded) = server.embedded.as_ref().filter(|_| asks(story, "@refusing")) {
            for fault in ["expire-history", "no-streaming-lists", "bookmarks,every=100ms,path=/leases"] {
                embedded.fault(fault.parse::<Planned>().unwrap());
            }
            let body = "service unavailable\n".to_owned();
            let gone = Fault::Answer { status: 503, body, retry_after_secs: None };
            embedded.fault(gone.on("", "/apis/gone.example.com/"));
        }
        server
    }

    /// A kube-apiserver of its own, for `@refusing`.
    async fn refusing_kube_apiserver() -> Arc<Server> {
        let control_plane = ControlPlane::start(Http::AnyBefore132).await;
        let (url, ca_pem) = (control_plane.url(), control_plane.ca_pem());
        let server =
            Server { control_plane: Some(control_plane), ..Server::new(url, &ca_pem, ADMIN_TOKEN, None) };
        let server = Arc::new(server);
        server.run(PRELUDE).await;
        let spec = json!({
            "group": "gone.example.com", "version": "v1", "groupPriorityMinimum": 1, "versionPriority": 1,
            "service": {"namespace": "default", "name": "gone"}, "insecureSkipTLSVerify": true,
        });
        let object = json!({"metadata": {"name": "v1.gone.example.com"}, "spec": spec});
        server.create("/apis/apiregistration.k8s.io/v1/apiservices", &object).await;
        server.control_plane.as_ref().unwrap().compact().await;
        server
    }

    /// A kube-apiserver of its own, for `@workloads`.
    async fn kube_apiserver_with_workloads() -> Arc<Server> {
        let control_plane = ControlPlane::start(Http::Any).await;
        let (url, ca_pem) = (control_plane.url(), control_plane.ca_pem());
        control_plane.start_controllers(&[
            "validatingadmissionpolicy-status-controller",
            "statefulset-controller",
            "persistentvolume-binder-controller",
            "persistentvolumeclaim-protection-controller",
            "job-controller",
            "cronjob-controller",
            "disruption-controller",
            "deployment-controller",
            "replicaset-controller",
            "replicationcontroller-controller",
            "resourcequota-controller",
            "endpoints-controller",
            "endpointslice-controller",
            "horizontal-pod-autoscaler-controller",
        ]);
        let server = Server::new(url, &ca_pem, ADMIN_TOKEN, None);
        let class = json!({
            "metadata": {"name": "standard", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
            "provisioner": "listwatch/simulated",
        });
        server.create("/apis/storage.k8s.io/v1/storageclasses", &class).await;
        server.create("/api/v1/nodes", &json!({"metadata": {"name": "node-1"}})).await;
        Arc::new(Server { control_plane: Some(control_plane), ..server })
    }

    /// A kube-apiserver of its own, for `@accounts`.
    async fn kube_apiserver_with_service_accounts() -> Arc<Server> {
        let control_plane = ControlPlane::start_with_service_accounts().await;
        let (url, ca_pem) = (control_plane.url(), control_plane.ca_pem());
        let server = Server::new(url, &ca_pem, ADMIN_TOKEN, None);
        Arc::new(Server { control_plane: Some(control_plane), ..server })
    }

    /// The kube-apiserver that all tests share, after the prelude.
    async fn kube_apiserver() -> Arc<Server> {
        static PRELUDE_RUN: OnceCell<()> = OnceCell::const_new();
        let control_plane = fixture::control_plane().await;
        let server = Server::new(control_plane.url(), &control_plane.ca_pem(), ADMIN_TOKEN, None);
        let server = Arc::new(server);
        PRELUDE_RUN
            .get_or_init(async || {
                server.run(PRELUDE).await;
                server.bind_jane().await;
            })
            .await;
        server
    }

    /// Sends all requests of a story, and returns the answers, made comparable.
    async fn run(self: &Arc<Self>, story: &str) -> Vec<Answer> {
        if story != PRELUDE {
            self.create_namespace(story).await;
        }
        let text = fs::read_to_string(file(story)).unwrap();
        let (_, steps) = parse(&text);
        let mut named = NamedAnswers::default();
        let has_webhook = text.contains("{{webhook.");
        if has_webhook {
            let webhook = self.webhook.get_or_init(Webhook::start).await;
            named.insert("webhook".to_owned(), json!({"url": webhook.url, "ca": webhook.ca}));
        }
        let mut answers = Vec::new();
        let mut rest = &steps[..];
        while !rest.is_empty() {
            // Reads do not affect each other, so they are sent at the same time.
            let is_read = |step: &&Step| {
                step.method == Method::GET && step.until.is_none() && filled(&step.path, &named).is_some()
            };
            let (now, later) = rest.split_at(rest.iter().take_while(is_read).count().max(1));
            for (step, answer) in now.iter().zip(self.send_all(now, &named).await) {
                if has_webhook && step.method != Method::GET {
                    self.wait_for_cache(step, &answer).await;
                }
                if let (Some(name), Some(document)) = (&step.name, answer.body.first()) {
                    named.insert(name.clone(), document.clone());
                }
                answers.push(answer);
            }
            rest = later;
        }
        for (step, answer) in steps.iter().zip(&mut answers) {
            let managed_fields = (!step.shows_managed_fields).then_some("managedFields");
            let hidden: Vec<&str> = step.hidden.iter().map(String::as_str).chain(managed_fields).collect();
            answer.body.iter_mut().for_each(|document| normal::hide(document, &hidden));
            answer.body.iter_mut().for_each(sort_managers);
            if !step.only.is_empty() {
                answer.body.iter_mut().for_each(|document| normal::keep_only(document, &step.only));
            }
        }
        normal::normalise(&mut answers);
        answers
    }

    /// Waits until the API server's cache has what a step has written. An update of an older object from the cache asks the webhooks, fails, and
    /// asks them once more.
    async fn wait_for_cache(&self, step: &Step, answer: &Answer) {
        let metadata = answer.body.first().map_or(&Value::Null, |object| &object["metadata"]);
        let (Some(name), Some(version)) = (metadata["name"].as_str(), metadata["resourceVersion"].as_str())
        else {
            return;
        };
        let path = step.path.split('?').next().unwrap_or_default();
        let path = ["/status", "/scale"].iter().find_map(|part| path.strip_suffix(part)).unwrap_or(path);
        let path = if step.method == Method::POST { format!("{path}/{name}") } else { path.to_owned() };
        let request = self.http.get(format!("{}{path}?resourceVersion={version}", self.url));
        // After a delete, the object is not there.
        request.bearer_auth(&self.token).send().await.unwrap();
    }

    async fn bind_jane(&self) {
        let role = json!({"metadata": {"name": "jane"}, "rules": rules_of_jane()});
        self.create("/apis/rbac.authorization.k8s.io/v1/clusterroles", &role).await;
        let group = "rbac.authorization.k8s.io";
        let binding = json!({
            "metadata": {"name": "jane"},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "jane"},
            "subjects": [{"apiGroup": group, "kind": "User", "name": "jane"}],
        });
        self.create("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", &binding).await;
    }

    async fn create_namespace(&self, name: &str) {
        self.create("/api/v1/namespaces", &json!({"metadata": {"name": name}})).await;
    }

    async fn create(&self, path: &str, object: &Value) {
        let request = self.http.post(format!("{}{path}", self.url)).bearer_auth(&self.token);
        let request = request.header(header::CONTENT_TYPE, "application/json").body(object.to_string());
        assert_eq!(request.send().await.unwrap().status(), 201, "{path}: {object}");
    }

    /// Sends requests, all at once, and returns the answers in the order of the requests.
    async fn send_all(self: &Arc<Self>, steps: &[Step], named: &NamedAnswers) -> Vec<Answer> {
        let (local, mut requests) = (LocalSet::new(), JoinSet::new());
        for (index, step) in steps.iter().cloned().enumerate() {
            let (server, named) = (Arc::clone(self), named.clone());
            let request = async move { (index, server.send_until(&step, &named).await) };
            requests.spawn_local_on(request, &local);
        }
        let mut answers = local.run_until(requests.join_all()).await;
        answers.sort_by_key(|(index, _)| *index);
        answers.into_iter().map(|(_, answer)| answer).collect()
    }

    /// Sends a request again until the answer has the text of its `until`.
    async fn send_until(&self, step: &Step, named: &NamedAnswers) -> Answer {
        if step.stops {
            self.stop();
        }
        let what = format!("the answer to {:?}", step.title);
        let answer = eventually(&what, async || {
            let sent = tokio::time::timeout(PATIENCE, self.send(step, named)).await;
            let answer = sent.unwrap_or_else(|_| panic!("{}: no answer", step.title));
            let text: String =
                answer.head.iter().cloned().chain(answer.body.iter().map(Value::to_string)).collect();
            // A CRD that was created or changed just now may give this answer.
            let is_early = text.contains("storage is (re)initializing");
            let is_awaited = step.until.as_ref().is_none_or(|until| text.contains(until));
            (is_awaited && !is_early).then_some(answer)
        });
        tokio::select! {
            answer = answer => answer,
            () = self.hold_back_the_end(), if step.stops => unreachable!("it runs until dropped"),
        }
    }

    /// Always has requests open that take a while, because a kube-apiserver that stops waits for them. Runs until dropped.
    async fn hold_back_the_end(&self) {
        let mut requests = JoinSet::new();
        let mut ticks = tokio::time::interval(Duration::from_millis(200));
        loop {
            ticks.tick().await;
            // Answered with 504 after some seconds.
            let url = format!("{}/api/v1/namespaces?resourceVersion=999999999", self.url);
            requests.spawn(self.http.get(url).bearer_auth(&self.token).send());
        }
    }

    /// Begins to stop the server, if it is a kube-apiserver. The embedded server, which stops at once, answers as one.
    fn stop(&self) {
        if let Some(control_plane) = &self.control_plane {
            return control_plane.signal("kube-apiserver", "TERM");
        }
        let body = "The apiserver is shutting down, please try again later.\n".to_owned();
        self.embedded.as_ref().unwrap().fault(Fault::Answer { status: 429, body, retry_after_secs: Some(5) });
    }

    async fn send(&self, step: &Step, named: &NamedAnswers) -> Answer {
        let filled =
            |text: &str| filled(text, named).unwrap_or_else(|| panic!("{}: unknown name", step.title));
        let path = filled(&step.path);
        let url = if path.starts_with("https://") { path } else { format!("{}{path}", self.url) };
        if step.websocket {
            let bearer = format!("Bearer {}", self.token);
            let mut headers: Vec<(String, String)> = step.headers.clone();
            for (name, value) in websocket::HANDSHAKE.into_iter().chain([("authorization", bearer.as_str())])
            {
                if !headers.iter().any(|(of, _)| of == name) {
                    headers.push((name.to_owned(), value.to_owned()));
                }
            }
            headers.retain(|(_, value)| !value.is_empty());
            return websocket::send(&url, &self.ca_pem, &headers, &step.body, step.lines).await;
        }
        let of_webhook = self.webhook.get().filter(|webhook| url.starts_with(&webhook.url));
        let http = of_webhook.map_or(&self.http, |webhook| &webhook.http);
        let mut request = http.request(step.method.clone(), url);
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
        // A header without a value suppresses the default, and is not sent.
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
            // Drop the incomplete last line.
            body.truncate(body.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1));
        }
        let mut body = documents(&String::from_utf8_lossy(&body));
        body.truncate(step.lines.unwrap_or(usize::MAX));
        Answer { head, body }
    }
}

/// The rules of the user `jane`: no create, and no read.
fn rules_of_jane() -> Value {
    json!([
        {"apiGroups": [""], "resources": ["configmaps", "namespaces"], "verbs": ["patch"]},
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["update"]},
    ])
}

/// The answers of requests with a `name`.
type NamedAnswers = BTreeMap<String, Value>;

/// Replaces each `{{name.path.of.a.value}}` with the value from an earlier answer. `None` if that answer is not there yet.
fn filled(text: &str, named: &NamedAnswers) -> Option<String> {
    let mut filled = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("{{") {
        let (path, after) = after.split_once("}}").unwrap();
        let (name, path) = path.split_once('.').unwrap();
        let document = named.get(name)?;
        let pointer = format!("/{}", path.replace('.', "/"));
        let value = document.pointer(&pointer).unwrap_or(&Value::Null);
        filled.push_str(before);
        match value {
            Value::String(text) => filled.push_str(text),
            json => filled.push_str(&json.to_string()),
        }
        rest = after;
    }
    Some(filled + rest)
}

/// Runs a story on both servers. Only answers of kube-apiserver are written to the file.
async fn check(story: &str) {
    if has_assets() {
        let answers = if asks(story, "@refusing") {
            Server::refusing_kube_apiserver().await.run(story).await
        } else if asks(story, "@workloads") {
            Server::kube_apiserver_with_workloads().await.run(story).await
        } else if asks(story, "@accounts") {
            Server::kube_apiserver_with_service_accounts().await.run(story).await
        } else {
            Server::kube_apiserver().await.run(story).await
        };
        if env::var_os("UPDATE_EXPECT").is_some() {
            write(story, &answers);
        }
        compare("kube-apiserver", story, answers, &[]);
    }
    if has_only_real() {
        return;
    }
    let mut differences = differences::known();
    differences.retain(|difference| difference.story == story);
    compare("the embedded server", story, Server::embedded(story).await.run(story).await, &differences);
}

fn write(story: &str, answers: &[Answer]) {
    let (preamble, steps) = parse(&fs::read_to_string(file(story)).unwrap());
    let mut text = preamble + "\n";
    for (step, answer) in steps.iter().zip(answers) {
        let _ = write!(text, "\n{}\n\n{}\n", step.text, answer.text());
    }
    fs::write(file(story), text).unwrap();
}

/// Panics if answers differ from the file, or if a known difference no longer exists.
fn compare(server: &str, story: &str, mut actual: Vec<Answer>, differences: &[Difference]) {
    let (_, steps) = parse(&fs::read_to_string(file(story)).unwrap());
    let mut expected: Vec<_> = steps.iter().map(|step| Answer::parse(&step.expected)).collect();
    let mut exists = vec![false; differences.len()];
    for ((step, expected), actual) in steps.iter().zip(&mut expected).zip(&mut actual) {
        for (difference, exists) in differences.iter().zip(&mut exists) {
            if [step.title.as_str(), "*"].contains(&difference.request) {
                *exists |= difference.remove(expected, actual);
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
    for (Difference { request, part, .. }, exists) in differences.iter().zip(exists) {
        if !exists {
            let _ = write!(differs, "\n{request}: {part} is a known difference, but does not differ\n");
        }
    }
    assert!(differs.is_empty(), "{story}: answers of {server} (+) and of the file (-):\n{differs}");
}

/// Puts the entries of `managedFields` into the order that they have within a second: by operation and manager. The server sorts by time
/// first, and a second may end between two requests.
fn sort_managers(document: &mut Value) {
    if let Some(entries) = document.pointer_mut("/metadata/managedFields").and_then(Value::as_array_mut) {
        entries.sort_by_key(|entry| ["operation", "manager"].map(|field| entry[field].to_string()));
    }
}
