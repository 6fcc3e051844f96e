//! What the lens says of operators: of each with a bug, its name comes first, and of correct ones there is nothing to say.
//!
//! The recordings are of real processes: this test program, started again. The variable `BUG` names the bug.

#![allow(clippy::unwrap_used, reason = "a failed unwrap names its line")]
#![allow(unreachable_pub, reason = "no crate uses a test binary")]

mod browser;
mod cluster;
mod exchanges;
mod live;
mod operator;
mod page;
mod rules;

use std::{
    cell::Cell,
    env, fs,
    io::{self, Write as _},
    path::Path,
    process::{Child, Command},
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use base64::{Engine, prelude::BASE64_STANDARD};
use futures_util::{StreamExt, stream};
use listwatch_apiserver::{ApiServer, Rule};
use listwatch_control_plane::{
    ADMIN_TOKEN, ControlPlane, Http, LENS_TOKEN, PATIENCE, eventually, has_assets,
};
use listwatch_lens::{Recording, Report};
use listwatch_scorecard::{self as scorecard, Journal, Scorecard, Then};
use reqwest::Method;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::oneshot;

use operator::Api;

/// The bugs, how the finding of each begins, what its rest contains, and who reported one like it, if anybody.
const BUGS: [(&str, &str, &str); 14] = [
    // gravitational/teleport#34092, water-hole/ansible-operator#72
    ("stamps-its-status", "wakes-itself: operator-1 (pages) writes pages.example.com/default/a ", ""),
    // buildpacks-community/kpack#6
    ("stamps-its-child", "wakes-itself: operator-1 (pages) writes configmaps/default/a ", ""),
    // operator-framework/operator-sdk#3367: an autoscaler, and an operator that sets the replicas
    (
        "fights-for-a-field",
        "undo-each-other: operator-1 (pages) and operator-1 (scaler) undo each other: .data.replicas of configmaps/default/a, ",
        "",
    ),
    // kubevirt/kubevirt#6966
    (
        "drops-a-label",
        "takes-away: operator-1 (pages) updates configmaps/default/",
        " which operator-1 (scaler) had set, ",
    ),
    // kubernetes-client/python#124
    ("opens-a-watch-once", "watch-not-reopened: operator-1 (pages) watches configmaps no longer: ", ""),
    // netbirdio/kubernetes-operator#24
    ("may-not-list", "forbidden: operator-1 (pages) may not ", " configmaps: 403, "),
    (
        "never-takes-the-answer",
        "conflicts: operator-1 (pages) updates pages.example.com/default/a ",
        " of them with its own last write",
    ),
    // openshift/cluster-monitoring-operator#54
    ("polls", "lists-again: operator-1 (pages) lists configmaps/default ", ""),
    (
        "has-no-index",
        "lists-again: operator-1 (pages) lists configmaps/default ",
        " selectors, although its watch of them is open",
    ),
    (
        "keeps-its-finalizer",
        "keeps-its-finalizer: operator-1 (pages) keeps its finalizer example.com/page on pages.example.com/default/a, which is being deleted, ",
        "(note)",
    ),
    (
        "does-not-wait",
        "retries-without-pause: operator-1 (pages) sends POST /api/v1/namespaces/default/configmaps ",
        "",
    ),
    // vshn/espejo#117
    (
        "patches-without-a-change",
        "changes-nothing: operator-1 (pages) patches configmaps/default/kube-root-ca.crt ",
        "",
    ),
    // grafana/grafana-operator#460
    ("reads-the-same", "reads-again: operator-1 (pages) reads pages.example.com/default/a ", ""),
    (
        "knows-no-options",
        "watch-options: operator-1 (pages) watches configmaps, pages.example.com without allowWatchBookmarks",
        "(note)",
    ),
];

/// So many of them have the operators in other languages as well.
const SHARED: usize = 10;

/// Lines of a terminal.
const SCREEN: usize = 24;

/// An operator whose finalizer stays does nothing more, so there is no need to wait for it.
const LATER: Duration = Duration::from_secs(40);

fn crd() -> Value {
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "pages.example.com"}, "spec": {
            "group": "example.com", "scope": "Namespaced", "names": {"plural": "pages", "kind": "Page"},
            "versions": [{"name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": schema}}]}})
}

fn page() -> Value {
    json!({"apiVersion": "example.com/v1", "kind": "Page", "metadata": {"name": "a"}, "spec": {"text": "hello"}})
}

fn settings(bug: &str) -> Scorecard {
    let program = env::current_exe().unwrap().to_string_lossy().into_owned();
    settings_of(&in_rust(&program), bug)
}

/// This test program, as an operator.
fn in_rust(program: &str) -> [&str; 5] {
    [program, "--exact", "operator_process", "--ignored", "--nocapture"]
}

fn settings_of(command: &[&str], bug: &str) -> Scorecard {
    let bug = format!("BUG={bug}");
    let words = [&["env", &bug], command].concat();
    Scorecard::new(vec![crd()], vec![page()], words.into_iter().map(str::to_owned).collect())
}

#[tokio::test]
#[ignore = "it is the process of the operators"]
async fn operator_process() {
    operator::run(env::var("BUG").unwrap()).await;
}

/// What a server has recorded so far of an operator that runs.
fn recorded(server: &ApiServer) -> Recording {
    let (requests, writes, events) = (server.requests(), server.writes_since(0), server.events());
    let mut recording = Recording::of(&Journal { requests, writes, events, log: String::new() });
    recording.runs_until = Some(SystemTime::now());
    recording
}

/// The report on it.
fn report(server: &ApiServer, bug: &str) -> Report {
    let mut recording = recorded(server);
    if bug == "keeps-its-finalizer" {
        recording.runs_until = Some(SystemTime::now() + LATER);
    }
    Report::of(&recording)
}

fn end_if(is_enough: bool) -> Then {
    if is_enough { Then::End } else { Then::GoOn }
}

/// The record of a run that ends when the report names the bug.
async fn record_of(command: &[&str], bug: &str) -> Journal {
    let (_, begin, end) = BUGS.into_iter().find(|(name, ..)| *name == bug).unwrap();
    let (mut asked, mut text, started) = (0, String::new(), Instant::now());
    let (journal, ended) = scorecard::observe(&settings_of(command, bug), |server: &Arc<ApiServer>| {
        if bug == "may-not-list" && asked == 0 {
            let all = || vec!["*".to_owned()];
            let pages = Rule {
                api_groups: vec!["example.com".to_owned()],
                resources: all(),
                verbs: all(),
                ..Rule::default()
            };
            server.set_rules("operator-1", vec![pages]);
        }
        asked += 1;
        if asked % 10 > 0 {
            return Then::GoOn;
        }
        text = report(server, bug).text();
        let is_named = text.lines().take(SCREEN).any(|line| {
            let finding = line.split_once(". ").and_then(|(_, finding)| finding.strip_prefix(begin));
            finding.is_some_and(|rest| rest.contains(end))
        });
        assert!(is_named || started.elapsed() < PATIENCE, "{bug}: {text}");
        end_if(is_named)
    })
    .await
    .unwrap();
    println!("{text}");
    assert_eq!(ended, None, "{}", journal.log);
    journal
}

/// Each bug of an operator, and no finding without one.
async fn each_bug_is_named(command: &[&str], bugs: usize) {
    let only = env::var("BUG").ok();
    let bugs = BUGS[..bugs].iter().filter(|(bug, ..)| only.as_deref().is_none_or(|only| only == *bug));
    // Most of the time, each waits.
    let each = stream::iter(bugs).for_each_concurrent(4, async |(bug, ..)| {
        record_of(command, bug).await;
    });
    tokio::join!(each, is_correct(command));
}

#[tokio::test]
async fn each_bug_is_named_in_the_first_screen() {
    let program = env::current_exe().unwrap().to_string_lossy().into_owned();
    each_bug_is_named(&in_rust(&program), BUGS.len()).await;
}

#[tokio::test]
async fn each_bug_of_an_operator_in_python_is_named_in_the_first_screen() {
    if !has("python3", Command::new("python3").arg("--version").output().is_ok()) {
        return;
    }
    each_bug_is_named(&["python3", concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/operator.py")], SHARED)
        .await;
}

#[tokio::test]
async fn each_bug_of_an_operator_with_controller_runtime_is_named_in_the_first_screen() {
    if let Some(program) = installed("kubebuilder/operator") {
        each_bug_is_named(&[&program], SHARED).await;
    }
}

/// kopf writes its own state into the status and an annotation, and watches with one client and writes with another.
#[tokio::test]
async fn an_operator_with_kopf_gets_no_finding() {
    if let Some(python) = installed("python/bin/python") {
        let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/kopf_operator.py");
        is_correct(&[
            &python,
            "-m",
            "kopf",
            "run",
            "--quiet",
            "--standalone",
            "--namespace=default",
            program,
        ])
        .await;
    }
}

/// `tests/clients/install DIR` installs it; `LISTWATCH_CLIENTS` names the directory.
fn installed(path: &str) -> Option<String> {
    let dir = env::var("LISTWATCH_CLIENTS").ok();
    let program = dir.map(|dir| format!("{dir}/{path}")).filter(|program| Path::new(program).exists());
    has(&format!("{path} in LISTWATCH_CLIENTS"), program.is_some());
    program
}

/// CI has all that the tests need.
fn has(program: &str, is_there: bool) -> bool {
    assert!(is_there || env::var_os("CI").is_none(), "{program} is not there");
    if !is_there {
        let _ = writeln!(io::stderr(), "an operator is not tested: {program} is not there");
    }
    is_there
}

/// The files of the scorecard have no events.
#[tokio::test]
async fn without_events_they_follow_from_the_writes() {
    let program = env::current_exe().unwrap().to_string_lossy().into_owned();
    let journal = record_of(&in_rust(&program), "stamps-its-status").await;
    let files = [journal.requests_jsonl(), journal.writes_jsonl()].map(|text| ("file".to_owned(), text));
    let report = Report::of(&Recording::read(&files).unwrap());
    assert_eq!(report.findings[0].rule, "wakes-itself", "{}", report.text());
    assert!(report.text().contains("The recording has no events"), "{}", report.text());
}

/// As Dask's operator, which watches with kopf, and writes with kr8s. Of another user's watch, it knows nothing.
#[test]
fn a_client_without_a_watch_has_the_events_of_its_user() {
    let request = |id: u32, user: &str, agent: &str, method: &str, target: &str| {
        format!(
            r#"{{"id":{id},"received":"2026-01-01T00:00:0{id}Z","time":"2026-01-01T00:00:0{id}Z","user":"{user}","userAgent":"{agent}","method":"{method}","target":"/api/v1/{target}","resource":"configmaps","namespace":"default","name":"{}","status":200,"resourceVersion":"1"}}"#,
            target.rsplit_once("configmaps/").map_or("", |(_, name)| name)
        )
    };
    let event = r#"{"watch":1,"time":"2026-01-01T00:00:02Z","event":"ADDED","object":"default/a","resourceVersion":"5"}"#;
    let alone = "ADDED of configmaps/default/a: the only event before this write";
    for (user, reason) in [("operator", alone), ("jane", "not known: this client has no watch")] {
        let lines = [
            request(1, "operator", "kopf", "GET", "configmaps?watch=1"),
            event.to_owned(),
            request(3, user, "kr8s", "PATCH", "namespaces/default/configmaps/a"),
        ];
        let report = Report::of(&Recording::read(&[("a".to_owned(), lines.join("\n"))]).unwrap());
        assert_eq!(report.json()["writes"][0]["reason"], reason);
    }
}

/// The header `baggage` of our library. An answer is known before its event.
#[test]
fn causes_that_a_client_names_are_not_concluded() {
    let request = |id: u32, name: &str, baggage: &str| {
        let method = if name.is_empty() { "GET" } else { "PATCH" };
        let target = if name.is_empty() { "/api/v1/configmaps?watch=1" } else { "/" };
        json!({"id": id, "received": format!("2026-01-01T00:00:0{id}Z"), "time": format!("2026-01-01T00:00:0{id}Z"), "user": "pages", "method": method,
            "target": target, "resource": "configmaps", "namespace": "default", "name": name, "status": 200, "baggage": baggage})
    };
    let event = |second: u32, event: &str, name: &str| {
        json!({"watch": 1, "time": format!("2026-01-01T00:00:0{second}Z"), "event": event, "object": format!("default/{name}"),
            "resourceVersion": second.to_string()})
    };
    let named = |causes: &str| format!("a=1,reconcile.causes={causes}");
    let lines = [
        request(1, "", ""),
        event(2, "MODIFIED", "a"),
        event(3, "DELETED", "b"),
        request(4, "x", &named("configmaps/default/b@deleted")),
        request(5, "x", &named("retry%20configmaps/default/c@1")),
        request(6, "x", &named("configmaps/default/a@8")),
        request(7, "x", ""),
        event(8, "MODIFIED", "a"),
    ];
    let lines: Vec<String> = lines.iter().map(Value::to_string).collect();
    let report = Report::of(&Recording::read(&[("a".to_owned(), lines.join("\n"))]).unwrap()).json();
    let writes = report["writes"].as_array().unwrap().iter();
    let shown: Vec<_> = writes
        .map(|write| (write["certain"].as_bool().unwrap(), write["reason"].as_str().unwrap()))
        .collect();
    let others = ["a retry after a failure", "version 1 of configmaps/default/c, from a list or an answer"];
    assert_eq!(report["writes"][1]["others"], json!(others));
    assert_eq!(
        shown,
        [
            (true, "DELETED of configmaps/default/b: named by the client"),
            (true, "a retry after a failure, and 1 more: named by the client"),
            (true, "MODIFIED of configmaps/default/a: named by the client"),
            (
                false,
                "likely a timer, or the start of the client: no event came since the client's last write to this object"
            ),
        ]
    );
}

/// As Sealed Secrets, which creates a Secret and updates it at once: the report named the event of the create as the cause of the update, for
/// certain. As Prometheus Operator, whose writes after a change of its StatefulSet had the event of its last status as their cause, which it ignores.
#[test]
fn one_event_may_cause_several_writes_and_an_own_status_causes_few() {
    let request = |id: u32, method: &str, object: &str, part: &str| {
        let (resource, name) = object.split_once('/').unwrap();
        json!({"id": id, "received": format!("2026-01-01T00:0{id}:00Z"), "time": format!("2026-01-01T00:0{id}:01Z"), "user": "operator",
            "method": method, "target": part, "resource": resource, "namespace": "default", "name": name, "subresource": part,
            "status": 200, "resourceVersion": id.to_string()})
    };
    let write = |id: u32, kind: &str, object: &str| {
        let (resource, name) = object.split_once('/').unwrap();
        let object = json!({"metadata": {"namespace": "default", "name": name, "resourceVersion": id.to_string(), "uid": name,
            "ownerReferences": [{"uid": "a"}]}});
        json!({"type": kind, "resource": resource, "object": object, "changed": [".data"], "request": id,
            "time": format!("2026-01-01T00:0{id}:01Z")})
    };
    let mut lines = vec![request(1, "GET", "maps/", "?watch=1"), request(2, "GET", "pages/", "?watch=1")];
    for (id, method, kind, object, part, watch) in [
        (3, "PATCH", "MODIFIED", "pages/a", "status", 2),
        (4, "POST", "ADDED", "maps/b", "", 1),
        (5, "PUT", "MODIFIED", "maps/b", "", 1),
        (6, "PUT", "MODIFIED", "maps/b", "", 1),
        (7, "POST", "ADDED", "secrets/c", "", 0),
    ] {
        let seen = object.replace("pages/", "default/").replace("maps/", "default/");
        let event = json!({"watch": watch, "time": format!("2026-01-01T00:0{id}:02Z"), "event": kind, "object": seen,
            "resourceVersion": id.to_string()});
        lines.extend([request(id, method, object, part), write(id, kind, object), event]);
    }
    let lines: Vec<String> = lines.iter().map(Value::to_string).collect();
    let report = Report::of(&Recording::read(&[("a".to_owned(), lines.join("\n"))]).unwrap()).json();
    let reasons: Vec<&str> =
        report["writes"].as_array().unwrap().iter().map(|write| write["reason"].as_str().unwrap()).collect();
    assert_eq!(
        reasons,
        [
            "likely a timer, or the start of the client: no event came before this write",
            "likely MODIFIED of pages/default/a, its owner, by the client itself, or the event that caused that write",
            "likely ADDED of maps/default/b, by the client itself, or the event that caused that write",
            "MODIFIED of maps/default/b, by the client itself: the only event since the cause of the client's last write to this object",
            "likely MODIFIED of maps/default/b, of the same owner, by the client itself, or the event that caused that write",
        ]
    );
}

/// A user changes a Page, again and again. There is no finding, and each write has its cause.
async fn is_correct(command: &[&str]) {
    let (found, config) = oneshot::channel();
    let (mut found, done) = (Some(found), Cell::new(false));
    let settings = settings_of(command, "");
    let run = scorecard::observe(&settings, |server: &Arc<ApiServer>| {
        if let Some(found) = found.take() {
            found.send(server.kubeconfig()).unwrap();
        }
        end_if(done.get())
    });
    let user = async {
        edit(&Api::new(&config.await.unwrap(), "kubectl")).await;
        done.set(true);
    };
    let (run, ()) = tokio::join!(run, user);
    let (journal, end) = run.unwrap();
    assert_eq!(end, None, "{}", journal.log);
    let text = Report::of(&Recording::of(&journal)).text();
    println!("{text}");
    assert!(text.starts_with("no findings\n"), "{text}");
    // ConfigMaps that the scorecard creates so that the versions differ were among the causes.
    assert!(!journal.writes_jsonl().contains("scorecard-"));
    let why = "MODIFIED of pages.example.com/default/a, its owner, by admin (kubectl)";
    assert!(text.contains(" configmaps/default/a: .data.text") && text.contains(why), "{text}");
}

async fn edit(api: &Api) {
    let page = "/apis/example.com/v1/namespaces/default/pages/a";
    for text in (0..30).map(|number| number.to_string()) {
        let patch = json!({"spec": {"text": text}});
        eventually("the Page", async || {
            (api.send(Method::PATCH, page, patch.clone()).await.0 == 200).then_some(())
        })
        .await;
        eventually("its ConfigMap", async || {
            let map = api.get("/api/v1/namespaces/default/configmaps/a").await;
            (map["data"]["text"] == text && api.get(page).await["status"]["phase"] == "Ready").then_some(())
        })
        .await;
    }
}

/// The text of a kubeconfig, as far as [`Api`] reads it.
fn config(url: &str, ca_pem: &str, token: &str) -> String {
    let ca = BASE64_STANDARD.encode(ca_pem);
    format!("server: \"{url}\", certificate-authority-data: {ca}}}\ntoken: \"{token}\"}}\n")
}

async fn create_page(admin: &Api) {
    let crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    assert_eq!(admin.send(Method::POST, crds, crd()).await.0, 201);
    eventually("the kind", async || {
        let (code, _) =
            admin.send(Method::POST, "/apis/example.com/v1/namespaces/default/pages", page()).await;
        [201, 409].contains(&code).then_some(())
    })
    .await;
}

/// A process that ends with the test.
struct Killed(Child);

/// The process of an operator, and the directory of its kubeconfig.
fn start_operator(bug: &str, config: &str) -> (Killed, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let kubeconfig = dir.path().join("kubeconfig");
    fs::write(&kubeconfig, config).unwrap();
    let mut operator = Command::new(env::current_exe().unwrap());
    operator.args(["--exact", "operator_process", "--ignored"]).env("BUG", bug).env("KUBECONFIG", kubeconfig);
    (Killed(operator.spawn().unwrap()), dir)
}

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn an_audit_log_of_kube_apiserver_names_the_loop_as_well() {
    if !has_assets() {
        return;
    }
    let control_plane = ControlPlane::start(Http::Any).await;
    let config = |token: &str| config(&control_plane.url(), &control_plane.ca_pem(), token);
    create_page(&Api::new(&config(ADMIN_TOKEN), "kubectl")).await;
    let _operator = start_operator("stamps-its-status", &config(LENS_TOKEN));
    let text = eventually("a finding", async || {
        let files = [("audit.log".to_owned(), control_plane.audit_log())];
        let report = Report::of(&Recording::read(&files).unwrap());
        (!report.findings.is_empty()).then(|| report.text())
    })
    .await;
    println!("{text}");
    assert!(text.contains("1. wakes-itself: lens (pages) writes pages.example.com/default/a "), "{text}");
    assert!(text.contains("MODIFIED of pages.example.com/default/a, by the client itself"), "{text}");
}

#[test]
fn a_line_of_something_else_is_named() {
    for text in ["{}", "[1]", "no JSON", r#"{"target":"/","id":1}"#, r#"{"watch":1}"#] {
        let files = [("a.jsonl".to_owned(), format!("\n{text}\n"))];
        let error = Recording::read(&files).unwrap_err().to_string();
        assert!(error.starts_with("a.jsonl, line 2: "), "{error}");
    }
    assert!(Report::of(&Recording::read(&[]).unwrap()).text().starts_with("no findings"));
}
