//! Tests `listwatch get`, `watch` and `replay`: the built binary, on the embedded server and on a real one.

use std::{
    borrow::Cow,
    cell::Cell,
    env,
    fs::{self, File},
    path::Path,
    process::{Output, Stdio},
    time::{Duration, Instant},
};

use http::Method;
use listwatch::{client::Request, watch::Lists};
use listwatch_apiserver::{ApiServer, Fault, Options, Planned};
use listwatch_control_plane::{eventually, saw};
use regex::{Captures, Regex};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpListener,
    process::{Child, Command},
};

use crate::{
    ABSENT,
    apiserver::{Running, client},
    curl::SHELLS,
    fixture::{Fixture, Kind, on},
    operator,
    proxy::Proxy,
};

const BOTH: [Kind; 2] = [Kind::Embedded, Kind::Real];

/// The binary with a service account of its own, whose namespace is that of a fixture.
struct Reader {
    dir: TempDir,
    url: String,
}

/// A command that has ended.
struct Ran {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Reader {
    fn new(fixture: &Fixture, url: &str, token: &str) -> Reader {
        let dir = TempDir::new().unwrap();
        let files = [("token", token), ("ca.crt", &fixture.ca_pem()), ("namespace", &fixture.namespace)];
        for (name, text) in files {
            fs::write(dir.path().join(name), text).unwrap();
        }
        Reader { dir, url: url.to_owned() }
    }

    /// With the token of an administrator.
    fn admin(fixture: &Fixture) -> Reader {
        Reader::new(fixture, &fixture.url(), fixture.admin_token())
    }

    fn command(&self, args: &str) -> Command {
        let mut command = Command::from(operator::listwatch());
        let (host, port) = self.url.strip_prefix("https://").unwrap().rsplit_once(':').unwrap();
        command.args(args.split_whitespace()).arg("--service-account-dir").arg(self.dir.path());
        command.env("KUBERNETES_SERVICE_HOST", host).env("KUBERNETES_SERVICE_PORT", port);
        command.kill_on_drop(true);
        command
    }

    async fn run(&self, args: &str) -> Ran {
        ran(self.command(args)).await
    }

    fn file(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }
}

async fn ran(mut command: Command) -> Ran {
    let Output { status, stdout, stderr } = command.output().await.unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ran { code: status.code(), stdout: text(stdout), stderr: text(stderr) }
}

impl Ran {
    fn succeeded(self) -> String {
        assert_eq!(self.code, Some(0), "{}", self.stderr);
        self.stdout
    }

    /// Checks the exit code, and that there is one line of error.
    #[track_caller]
    fn failed(&self, code: i32, cause: &str) {
        let errors: Vec<_> = self.stderr.lines().filter(|line| line.starts_with("listwatch: ")).collect();
        assert!(self.code == Some(code) && errors.len() == 1, "{:?} {}", self.code, self.stderr);
        assert!(errors[0].contains(cause), "{cause:?} is not in {:?}", errors[0]);
    }
}

/// The sentences of `--explain`, with their times.
fn sentences(stderr: &str) -> Vec<&str> {
    stderr.lines().filter(|line| line.contains("s # ")).collect()
}

#[tokio::test]
async fn get_and_watch_write_bodies_and_events_byte_for_byte() {
    on(&BOTH, async |fixture| {
        let reader = Reader::admin(fixture);
        let listed: Value =
            serde_json::from_str(&fixture.raw(&fixture.path("services")).await.unwrap()).unwrap();
        fixture.create_service("web").await;
        let path = fixture.path("services/web");
        let body = fixture.raw(&path).await.unwrap();
        for target in ["svc/web", "service/web", "services.v1/web", &path] {
            let ran = reader.run(&format!("get {target}")).await;
            assert!(ran.stderr.contains("\n< content-type: application/json\n"), "{}", ran.stderr);
            assert_eq!(ran.succeeded(), body, "{target}");
        }
        let version = listed["metadata"]["resourceVersion"].as_str().unwrap();
        for watch in ["watch svc", &format!("watch {}?watch=true", fixture.path("services"))] {
            let args = format!("{watch} --resource-version={version} --max-events=1");
            let event = format!("{{\"type\":\"ADDED\",\"object\":{}}}\n", body.trim_end());
            assert_eq!(reader.run(&args).await.succeeded(), event, "{args}");
        }
        let object: Value = serde_json::from_str(&body).unwrap();
        let form = async |form: &str| reader.run(&format!("get svc/web -o {form}")).await.succeeded();
        assert_eq!(serde_json::from_str::<Value>(&form("json").await).unwrap(), object);
        assert!(form("yaml").await.starts_with("---\napiVersion: v1\nkind: Service\nmetadata:\n"));
        assert_eq!(form("name").await, "service/web\n");
        let version = object["metadata"]["resourceVersion"].as_str().unwrap();
        assert_eq!(form("short").await, format!("{}/web  {version}\n", fixture.namespace));
        let wide = form("wide").await;
        let [head, row] = wide.lines().collect::<Vec<_>>()[..] else { panic!("{wide}") };
        assert!(
            head.starts_with("NAME   TYPE        CLUSTER-IP") && row.starts_with("web    ClusterIP"),
            "{wide}"
        );
        // Rows of different namespaces looked alike.
        let listed = reader.run("get svc -A -o wide").await.succeeded();
        let begins = |line: &str, words: [&str; 2]| line.split_whitespace().take(2).eq(words);
        assert!(begins(listed.lines().next().unwrap(), ["NAMESPACE", "NAME"]), "{listed}");
        assert!(listed.lines().any(|line| begins(line, [&fixture.namespace, "web"])), "{listed}");
        let nodes = reader.run("get namespaces -A -o wide").await.succeeded();
        assert!(begins(nodes.lines().next().unwrap(), ["NAME", "STATUS"]), "{nodes}");
    })
    .await;
}

/// Whether a request with this path and query has arrived at the server, the last one at the embedded server.
async fn arrived(fixture: &Fixture, target: &str) -> bool {
    if fixture.is_embedded() {
        let last = fixture.embedded().requests().pop().unwrap();
        return format!("{}?{}", last.path, last.query) == target;
    }
    let user = fixture.operator_user();
    eventually(target, async || {
        let requests = fixture.control_plane().audit(&mut 0, &user);
        requests.iter().any(|request| request["requestURI"] == target).then_some(true)
    })
    .await
}

#[tokio::test]
async fn each_option_of_the_protocol_reaches_the_server() {
    on(&BOTH, async |fixture| {
        // The log of the real server has the requests of service accounts.
        fixture.may_be_forbidden.set(true);
        let token = fs::read_to_string(fixture.dir.path().join("token")).unwrap();
        let reader = Reader::new(fixture, &fixture.url(), &token);
        let services = fixture.path("services");
        let other = services.replace(&fixture.namespace, "other");
        for (args, target) in [
            ("get pods -A --limit 5", "/api/v1/pods?limit=5"),
            ("get svc -l a=b", &*format!("{services}?labelSelector=a%3Db")),
            ("get svc --field-selector metadata.name=x", &format!("{services}?fieldSelector=metadata.name%3Dx")),
            ("get svc -n other --continue t", &format!("{other}?continue=t")),
            (
                "get svc --resource-version 1 --resource-version-match NotOlderThan",
                &format!("{services}?resourceVersion=1&resourceVersionMatch=NotOlderThan"),
            ),
            (
                "watch svc --timeout-seconds 1 --allow-watch-bookmarks",
                &format!("{services}?watch=1&timeoutSeconds=1&allowWatchBookmarks=true"),
            ),
            (
                "watch svc --timeout-seconds 1 --send-initial-events",
                &format!(
                    "{services}?watch=1&timeoutSeconds=1&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan"
                ),
            ),
            ("get /api/v1/services?limit=2", "/api/v1/services?limit=2"),
        ] {
            let ran = reader.run(args).await;
            assert!(arrived(fixture, target).await, "{args}: {}", ran.stderr);
            assert!(ran.stderr.contains(&format!("{target}'")), "{args}: {}", ran.stderr);
        }
        for (args, accept) in [("--table", "as=Table"), ("--metadata", "as=PartialObjectMetadataList")] {
            let ran = Reader::admin(fixture).run(&format!("get svc {args}")).await;
            assert!(ran.stderr.contains(accept), "{}", ran.stderr);
            let kind = accept.strip_prefix("as=").unwrap();
            assert!(ran.succeeded().contains(&format!("\"kind\":\"{kind}\"")));
        }
    })
    .await;
}

/// A `listwatch watch --follow` that runs.
struct Followed {
    _child: Child,
    log: String,
    stdout: String,
    opened: usize,
}

impl Followed {
    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    async fn until_logged(&self, text: &str, count: usize) {
        eventually(&format!("{text:?} for the {count}. time"), async || {
            let log = self.log();
            saw("the end of the log", log.lines().rev().take(3).collect::<Vec<_>>().join(" / "));
            (log.matches(text).count() >= count).then_some(())
        })
        .await;
    }

    /// Creates a Service and waits for its event: a watch that ends at once and without an event would be a failure.
    async fn until_event(&self, fixture: &Fixture) {
        let name = format!("s-{}", self.opened);
        fixture.create_service(&name).await;
        self.until_logged(&format!("/{name} is new"), 1).await;
    }

    async fn until_open_again(&mut self) {
        self.opened += 1;
        self.until_logged("the watch is open", self.opened).await;
    }

    /// Compares each announced request with the next one that was sent. Returns how many.
    fn compare(&self) -> usize {
        let url = Regex::new("'https://[^/]+(/[^']*/services[^']*)'$").unwrap();
        let seconds = Regex::new("timeoutSeconds=[0-9]+").unwrap();
        let (mut announced, mut count) = (None, 0);
        let log = self.log();
        for line in log.lines() {
            if let Some((_, next)) = line.split_once("# next: GET ") {
                assert_eq!(announced.replace(next.to_owned()), None, "{log}");
            } else if let Some(sent) = url.captures(line) {
                let Some(next) = announced.take() else { continue };
                assert_eq!(next, seconds.replace(&sent[1], "timeoutSeconds=…"), "{log}");
                count += 1;
            }
        }
        count
    }
}

/// Starts `listwatch watch` with these arguments and `--follow`, which explains each step.
fn follow(reader: &Reader, args: &str) -> Followed {
    let [log, stdout] =
        ["log", "stdout"].map(|end| reader.file(&format!("{}.{end}", args.replace([' ', '/'], "-"))));
    let mut command = reader.command(&format!("watch {args} --follow"));
    command.stdout(File::create(&stdout).unwrap()).stderr(File::create(&log).unwrap());
    Followed { _child: command.spawn().unwrap(), log, stdout, opened: 0 }
}

#[tokio::test]
async fn the_next_request_is_the_announced_one_and_a_replay_explains_the_same() {
    on(&BOTH, async |fixture| {
        let proxy = Proxy::start(&fixture.url()).await;
        let reader = Reader::new(fixture, &proxy.url(), fixture.admin_token());
        let recording = reader.file("recording");
        let streaming = if fixture.lists == Lists::Streaming { "--send-initial-events" } else { "" };
        let mut followed = follow(&reader, &format!("services --record {recording} {streaming}"));
        followed.until_open_again().await;
        followed.until_logged("the list is complete", 1).await;
        followed.until_event(fixture).await;
        proxy.cut();
        followed.until_open_again().await;
        let faults = [
            ("end-watches", ""),
            ("expire-watches", ""),
            ("unauthorized,times=1,path=/services", "401: "),
            ("unavailable,times=1,path=/services", "503: "),
            ("expired,times=1,path=/services", "410 ("),
            ("html,times=1,path=/services", "502, an HTML page"),
        ];
        for (fault, text) in faults.into_iter().filter(|_| fixture.is_embedded()) {
            followed.until_event(fixture).await;
            fixture.embedded().fault(fault.parse::<Planned>().unwrap());
            if !text.is_empty() {
                proxy.cut();
                followed.until_logged(text, 1).await;
            }
            followed.until_open_again().await;
        }
        followed.until_event(fixture).await;
        assert!(followed.compare() >= if fixture.is_embedded() { 12 } else { 2 }, "{}", followed.log());
        let mut replay = Command::from(operator::listwatch());
        replay.args(["replay", &recording, "--explain", "-o", "raw"]);
        let replayed = ran(replay).await;
        let log = followed.log();
        let (replayed_sentences, live) = (sentences(&replayed.stderr), sentences(&log));
        for (replayed, live) in replayed_sentences.iter().zip(&live) {
            assert_eq!(replayed, live);
        }
        assert_eq!(replayed_sentences.len(), live.len());
        let last = format!("s-{}", followed.opened);
        let stdout = replayed.succeeded();
        assert!(stdout.contains("services: the store holds ") && stdout.contains(&last), "{stdout}");
        assert!(stdout.contains("services: the next request is GET /api/v1/namespaces/"), "{stdout}");
    })
    .await;
}

/// The version of the server, which the client asks for on a new connection, was among the events.
#[tokio::test]
async fn a_watch_that_follows_writes_only_lists_and_watches() {
    on(&BOTH, async |fixture| {
        let reader = Reader::admin(fixture);
        for (form, start) in [("name", "service/"), ("raw", r#"{"type":"#)] {
            let mut followed = follow(&reader, &format!("services --send-initial-events -o {form}"));
            followed.until_open_again().await;
            fixture.create_service(form).await;
            followed.until_logged(&format!("/{form} is new"), 1).await;
            let (log, stdout) = (followed.log(), fs::read_to_string(&followed.stdout).unwrap());
            assert!(log.contains("/version'") && !stdout.is_empty(), "{log}");
            assert!(stdout.lines().all(|line| line.starts_with(start)), "{stdout}");
        }
    })
    .await;
}

/// `--follow` refused a version, so a 410 could be seen, but not what comes after it.
#[tokio::test]
async fn a_watch_that_follows_from_an_expired_version_lists_and_goes_on() {
    on(&BOTH, async |fixture| {
        let reader = Reader::admin(fixture);
        if fixture.is_embedded() {
            fixture.embedded().fault(Fault::ExpireHistory);
        }
        let mut followed = follow(&reader, "services --resource-version 1");
        followed.until_open_again().await;
        followed.until_logged("# 410 (", 1).await;
        followed.until_open_again().await;
        followed.until_event(fixture).await;
        // The first request is not announced; the list and the second watch are.
        assert_eq!(followed.compare(), 2, "{}", followed.log());
    })
    .await;
}

/// Half a line was followed by the next answer, and `| jq` ended.
#[tokio::test]
async fn each_line_of_a_watch_that_follows_is_json_after_a_cut_in_mid_line() {
    on(&[Kind::Embedded], async |fixture| {
        let reader = Reader::admin(fixture);
        let mut followed = follow(&reader, "services");
        followed.until_open_again().await;
        followed.until_event(fixture).await;
        // The page of a proxy is no JSON.
        for faults in [&["cut-watches"][..], &["html,times=1,path=/services", "cut-watches"]] {
            for fault in faults {
                fixture.embedded().fault(fault.parse::<Planned>().unwrap());
            }
            followed.until_open_again().await;
            followed.until_event(fixture).await;
        }
        assert!(followed.log().matches("the last line has no end").count() == 2, "{}", followed.log());
        let stdout = fs::read_to_string(&followed.stdout).unwrap();
        let lines: Vec<Value> = stdout
            .lines()
            .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
            .collect();
        let events = lines.iter().filter(|line| line["type"] == "ADDED").count();
        assert_eq!(events, 3, "{stdout}");
        // After each cut, the client asks for the version of the server: the answer was among the lists.
        assert!(!stdout.contains("PartialObjectMetadataList"), "{stdout}");
    })
    .await;
}

/// A page looked like the whole list.
#[tokio::test]
async fn a_short_form_of_a_page_names_the_rest_on_standard_error() {
    on(&BOTH, async |fixture| {
        let reader = Reader::admin(fixture);
        fixture.create_service("a").await;
        fixture.create_service("b").await;
        for form in ["short", "name", "wide"] {
            let page = reader.run(&format!("get svc --limit 1 -o {form}")).await;
            let (_, token) = page.stderr.split_once("# 1 more: --continue ").unwrap();
            let last = reader.run(&format!("get svc --limit 1 -o {form} --continue {token}")).await;
            assert!(!last.stderr.contains("more: --continue"), "{}", last.stderr);
            assert!(last.succeeded().contains('b') && !page.succeeded().contains("/b"), "{form}");
        }
        // With a selector, the server does not count.
        let page = reader.run("get svc -l a!=b --limit 1 -o name").await;
        assert!(page.stderr.contains("# more: --continue "), "{}", page.stderr);
    })
    .await;
}

/// A sentence followed on the same line.
#[tokio::test]
async fn on_a_terminal_a_raw_line_that_is_cut_ends_before_the_next_sentence() {
    let server = Running::start(operator::listwatch().args(["apiserver", "--fault", "cut-watches,lines=1"]));
    let (_, kubeconfig) = server.stdout.split_once("export KUBECONFIG='").unwrap();
    let kubeconfig = kubeconfig.split('\'').next().unwrap();
    let watch = format!("watch ns -o raw --explain --kubeconfig {kubeconfig}");
    let Ran { stdout, .. } = ran(terminal(80, &watch, "1")).await;
    let lines: Vec<_> = stdout.lines().collect();
    let events = |line: &&str| line.starts_with(r#"{"type":"ADDED","object":{"kind":"Namespace","#);
    let half = lines.iter().rposition(events).unwrap_or_else(|| panic!("{stdout}"));
    assert!(
        !lines[half].ends_with('}') && lines[half + 1].contains("s # the last line has no end"),
        "{stdout}"
    );
}

#[tokio::test]
async fn a_recording_contains_no_token_and_no_value_of_a_secret() {
    on(&BOTH, async |fixture| {
        let reader = Reader::admin(fixture);
        let applied =
            json!({"kubectl.kubernetes.io/last-applied-configuration": "{\"data\":\"aHVudGVyMg==\"}"});
        let metadata = json!({"name": "s", "annotations": applied});
        fixture.create("secrets", &json!({"metadata": metadata, "data": {"password": "aHVudGVyMg=="}})).await;
        // As kubectl: NAME TYPE DATA AGE. The cells were redacted on the screen, too.
        for command in ["get secrets -o wide", "get secrets/s --table -o short"] {
            let table = reader.run(command).await.succeeded();
            assert!(table.contains("Opaque") && !table.contains("redacted"), "{table}");
        }
        for (number, args) in
            ["get secrets/s", "get secrets", "get secrets --table", "watch secrets --max-events 1"]
                .iter()
                .enumerate()
        {
            let file = reader.file(&format!("recording-{number}"));
            reader.run(&format!("{args} --record {file}")).await.succeeded();
            let text = fs::read_to_string(&file).unwrap();
            assert!(
                text.contains("last-applied-configuration") && text.contains("/secrets"),
                "{args}: {text}"
            );
            for secret in ["aHVudGVyMg", "hunter2", fixture.admin_token()] {
                assert!(!text.contains(secret), "{args}: {text}");
            }
            let mut replay = Command::from(operator::listwatch());
            replay.args(["replay", &file, "--explain"]);
            // One object does not go into a store.
            let is_held = ran(replay).await.succeeded().contains("secrets: the store holds ");
            assert_eq!(is_held, number > 0, "{args}");
        }
    })
    .await;
}

/// Replays a recording of these entries, one each second: the number of the exchange, the field and its value.
async fn replay(entries: &[(u64, &str, Value)], args: &str) -> Ran {
    let mut text = format!("{HEADER}\n");
    for (time, (exchange, field, value)) in entries.iter().enumerate() {
        let mut entry = json!({"time": time, "exchange": exchange});
        entry[*field] = value.clone();
        text += &format!("{entry}\n");
    }
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("recording");
    fs::write(&file, text).unwrap();
    let mut command = Command::from(operator::listwatch());
    command.arg("replay").arg(file).args(args.split_whitespace());
    ran(command).await
}

fn request(method: &str, path: &str) -> Value {
    json!({"method": method, "path": path})
}

fn head(status: u16, kind: &str) -> Value {
    json!({"status": status, "version": "HTTP/2.0", "headers": {"content-type": kind}})
}

const JSON: &str = "application/json";

fn pod(version: u32) -> Value {
    json!({"kind": "Pod", "metadata": {"namespace": "n", "name": "a", "uid": "1", "resourceVersion": version.to_string()}})
}

/// An operator that creates, patches and deletes a Deployment while its watch is open, and before the watch sends that.
fn operator_entries() -> Vec<(u64, &'static str, Value)> {
    let owner = json!({"apiVersion": "k8sobjects.gsa.com/v2", "kind": "MyWebserver", "name": "web", "uid": "7", "controller": true});
    let deployment = |version: &str, replicas: u32| {
        let metadata = json!({"namespace": "n", "name": "mws-web", "uid": "8", "resourceVersion": version, "ownerReferences": [owner]});
        json!({"kind": "Deployment", "metadata": metadata, "spec": {"replicas": replicas}})
    };
    let list = json!({"metadata": {"resourceVersion": "5"}, "items": []});
    let (all, path) = ("/apis/apps/v1/deployments", "/apis/apps/v1/namespaces/n/deployments");
    let one = format!("{path}/mws-web");
    vec![
        (11, "request", request("GET", &format!("{all}?limit=100"))),
        (11, "head", head(200, JSON)),
        (11, "rest", list),
        (11, "end", json!("clean")),
        (12, "request", request("GET", &format!("{all}?watch=1&resourceVersion=5"))),
        (12, "head", head(200, JSON)),
        (13, "request", request("POST", path)),
        (13, "head", head(201, JSON)),
        (13, "rest", deployment("6", 1)),
        (13, "end", json!("clean")),
        (14, "request", request("PATCH", &one)),
        (14, "head", head(200, JSON)),
        (14, "rest", deployment("7", 2)),
        (14, "end", json!("clean")),
        (12, "line", json!({"type": "ADDED", "object": deployment("6", 1)})),
        (15, "request", request("DELETE", &one)),
        (15, "head", head(200, JSON)),
        (15, "rest", json!({"kind": "Status", "status": "Success"})),
        (15, "end", json!("clean")),
    ]
}

/// It named the child, and not the owner, as the object to reconcile; and the Store had no answer of a write.
#[tokio::test]
async fn a_replay_of_an_operator_knows_its_writes_and_the_owners_of_its_children() {
    let entries = operator_entries();
    let created = replay(&entries[..10], "--explain").await;
    let added =
        "deployments n/mws-web is new → reconcile its owner, MyWebserver web; the store holds 1 object\n";
    assert!(created.stderr.contains(added), "{}", created.stderr);
    // Up to the version of the watch, not of the write.
    let stdout = created.succeeded();
    assert!(
        stdout.contains("deployments: the store holds 1 object, up to version 5: n/mws-web\n"),
        "{stdout}"
    );
    let deleted = replay(&entries, "--explain").await;
    for line in [
        "deployments n/mws-web has changed → reconcile its owner, MyWebserver web: spec.replicas 1 → 2\n",
        "deployments n/mws-web was deleted → reconcile its owner, MyWebserver web; the store holds 0 objects\n",
        // Which answer belongs to which request.
        "> 14: PATCH /apis/apps/v1/namespaces/n/deployments/mws-web\n< 14: HTTP/2.0 200\n",
        "< 12: /apis/apps/v1/deployments\n",
    ] {
        assert!(deleted.stderr.contains(line), "{line}: {}", deleted.stderr);
    }
    assert_eq!(deleted.stderr.matches("is new").count(), 1, "{}", deleted.stderr);
    let mut deleted_before = entries.clone();
    deleted_before[16].2 = head(404, JSON);
    let stdout = replay(&deleted_before, "").await.succeeded();
    assert!(stdout.contains("deployments: the store holds 0 objects, up to version 6\n"), "{stdout}");
    assert!(stdout.contains("deployments: would have reconciled MyWebserver n/web\n"), "{stdout}");
    // The object may only be terminating.
    let mut cut = entries.clone();
    (cut[17].2, cut[18].2) = (json!("{\"kind\": \"Sta"), json!("lost"));
    let stdout = replay(&cut, "").await.succeeded();
    assert!(
        stdout.contains("deployments: the store holds 1 object, up to version 6: n/mws-web\n"),
        "{stdout}"
    );
    let one_at_a_time = replay(&entries[..6], "").await.stderr;
    assert!(one_at_a_time.contains("> GET ") && one_at_a_time.contains("< HTTP/2.0 200"), "{one_at_a_time}");
}

/// It named the copy as the object to reconcile.
#[tokio::test]
async fn a_replay_knows_the_rule_of_a_copy() {
    let marks = json!({"flant.com/rule": "default/main", "flant.com/rule-uid": "7", "flant.com/place": "n/a",
        "flant.com/source": "default/a", "flant.com/content": "…"});
    let copy =
        json!({"namespace": "n", "name": "a", "uid": "8", "resourceVersion": "6", "annotations": marks});
    let watch = "/api/v1/configmaps?watch=1&resourceVersion=5&labelSelector=flant.com%2Fcopy%3Dtrue";
    let entries = [
        (1, "request", request("GET", watch)),
        (1, "head", head(200, JSON)),
        (1, "line", json!({"type": "ADDED", "object": {"metadata": copy}})),
    ];
    let ran = replay(&entries, "--explain").await;
    let is_new = "configmaps n/a is new → reconcile its owner, CopyratorRule default/main; the store holds";
    assert!(ran.stderr.contains(is_new), "{}", ran.stderr);
    let stdout = ran.succeeded();
    assert!(stdout.ends_with("would have reconciled CopyratorRule default/main\n"), "{stdout}");
}

/// It resumed from the version of an initial event.
#[tokio::test]
async fn after_a_watch_without_a_version_a_replay_lists() {
    for (version, end) in [("", "dropped"), ("&resourceVersion=0", "dropped"), ("", "clean"), ("", "lost")] {
        let ran = replay(
            &[
                (1, "request", request("GET", &format!("/api/v1/pods?watch=1{version}"))),
                (1, "head", head(200, JSON)),
                (1, "line", json!({"type": "ADDED", "object": pod(7)})),
                (1, "end", json!(end)),
            ],
            "--explain",
        )
        .await;
        let summary = "pods: the store holds 1 object: n/a\npods: the next request is GET /api/v1/pods?limit=100\n\
             pods: would have reconciled n/a\n";
        let stdout = ran.succeeded();
        assert!(stdout.ends_with(summary), "{version} {end}: {stdout}");
    }
}

/// With `-o yaml`, the page ended the command.
#[tokio::test]
async fn the_page_of_a_proxy_goes_to_standard_error_and_is_explained() {
    for form in ["yaml", "json", "name", "short", "wide"] {
        let ran = replay(
            &[
                (1, "request", request("GET", "/api/v1/pods?limit=100")),
                (1, "head", head(502, "text/html")),
                (1, "rest", json!("<html>\r\nBad Gateway</html>\r\n")),
                (1, "end", json!("clean")),
            ],
            &format!("--explain -o {form}"),
        )
        .await;
        assert!(ran.stderr.contains("\n<html>\nBad Gateway</html>\n"), "{form}: {}", ran.stderr);
        assert!(ran.stderr.contains("# 502, an HTML page and no Status"), "{form}: {}", ran.stderr);
        assert!(ran.succeeded().contains("pods: the next request is GET /api/v1/pods?limit=100\n"));
    }
    on(&[Kind::Embedded], async |fixture| {
        fixture.embedded().fault("html,path=/services".parse::<Planned>().unwrap());
        let ran = Reader::admin(fixture).run("get svc -o yaml").await;
        ran.failed(1, "502 Bad Gateway: an HTML page, not from the API server");
        assert_eq!(ran.stdout, "");
    })
    .await;
}

const HEADER: &str = r#"{"listwatchRecording":1,"server":"https://127.0.0.1:6443"}"#;
const REQUEST: &str =
    r#"{"time":0,"exchange":1,"request":{"method":"GET","path":"/api/v1/pods?watch=1&resourceVersion=6"}}"#;
const EVENT: &str = r#"{"type":"ADDED","object":{"kind":"Pod","metadata":{"name":"a","namespace":"n","uid":"1","resourceVersion":"7"}}}"#;

#[tokio::test]
async fn a_recording_that_is_cut_or_cannot_be_read_is_reported() {
    let dir = TempDir::new().unwrap();
    let replay = async |bytes: &[u8]| {
        let file = dir.path().join("recording");
        fs::write(&file, bytes).unwrap();
        let mut command = Command::from(operator::listwatch());
        ran({
            command.arg("replay").arg(file);
            command
        })
        .await
    };
    for (bytes, cause) in [
        (&b""[..], "is empty"),
        (b"no recording\n", "is neither a recording nor the JSON that curl received"),
        (b"\xff\xfe\x00\n", "is neither a recording"),
        (b"{}\n", "no `type`, no `kind`"),
        (
            br#"{"kind":"Status","code":403,"message":"no"}"#,
            r#"is a Status, neither a list nor a watch: {"code":403,"#,
        ),
        (
            br#"{"apiVersion":"v1","items":[],"kind":"List","metadata":{"resourceVersion":""}}"#,
            "is a List that kubectl composed, without a version: use kubectl get --raw",
        ),
        (br#"{"listwatchRecording":2,"new":1}"#, "format 2, but this listwatch reads formats up to 1"),
        (b"{\"listwatchRecording\":1}\n", "is a recording without an exchange"),
        (b"{\"listwatchRecording\":1}\n{\"time\":1}\n{}\n", "line 2 is not an entry of a recording"),
    ] {
        replay(bytes).await.failed(2, cause);
    }
    let whole = format!("{HEADER}\n{REQUEST}\n{{\"time\":1,\"exchange\":1,\"line\":{EVENT}}}\n");
    assert!(!replay(whole.as_bytes()).await.stderr.contains("cut short"));
    let cut = replay(&whole.as_bytes()[..whole.len() - 9]).await;
    assert!(cut.stderr.contains("is cut short: its last line has no end"), "{}", cut.stderr);
    let stdout = cut.succeeded();
    assert!(stdout.contains("pods: the store holds 0 objects, up to version 6\n"), "{stdout}");
    assert!(stdout.ends_with("pods: would have reconciled nothing\n"), "{stdout}");
}

#[tokio::test]
async fn the_output_of_curl_is_replayed_from_standard_input() {
    let mut command = Command::from(operator::listwatch());
    command.args(["replay", "-", "--explain", "-o", "name"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(format!("{EVENT}\n{EVENT}\n{{\"type\":\"MOD").as_bytes()).await.unwrap();
    drop(stdin);
    let Output { stdout, stderr, .. } = child.wait_with_output().await.unwrap();
    let (stdout, stderr) = (String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap());
    // The request is not known. Without a version, no watch can resume from this one.
    let summary = "objects: the store holds 1 object: n/a\nobjects: the next request is GET …?limit=100\n\
         objects: would have reconciled n/a\n";
    assert!(stdout.ends_with(summary), "{stdout}");
    assert!(
        stderr.contains("the last line has no end") && stderr.contains("standard input is cut short"),
        "{stderr}"
    );
}

/// The directory of recordings, and of what `replay` makes of them.
const REPLAYS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/data/replay");

/// The directory of what `get` and `watch` write.
const OUTPUTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/data/outputs");

/// Compares an output with a file. `UPDATE_EXPECT=1` writes the file.
async fn is_as_in_file(output: &str, file: &str) {
    if env::var_os("UPDATE_EXPECT").is_some() {
        return fs::write(file, output).unwrap();
    }
    let mut diff = Command::new("diff");
    diff.args(["--unified", file, "-"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut diff = diff.spawn().unwrap();
    diff.stdin.take().unwrap().write_all(output.as_bytes()).await.unwrap();
    let Output { status, stdout, .. } = diff.wait_with_output().await.unwrap();
    assert!(status.success(), "{}", String::from_utf8_lossy(&stdout));
}

#[tokio::test]
async fn each_form_of_output_is_as_in_its_file() {
    for (recording, form) in [
        ("changes", "raw"),
        ("changes", "short"),
        ("changes", "json"),
        ("changes", "yaml"),
        ("changes", "name"),
        ("table", "wide"),
        ("table", "name"),
    ] {
        let mut command = Command::from(operator::listwatch());
        command.args(["replay", &format!("{REPLAYS}/{recording}.jsonl"), "-o", form]);
        if form == "short" {
            command.arg("--explain");
        }
        let Ran { code, stdout, stderr } = ran(command).await;
        assert_eq!(code, Some(0), "{stderr}");
        let output = format!("{stdout}\n=== standard error\n{stderr}");
        is_as_in_file(&output, &format!("{REPLAYS}/{recording}.{form}.txt")).await;
    }
}

/// Both outputs of each command, in the order in which it writes them, without what varies: versions, times, uids, the port,
/// the directory.
#[tokio::test]
async fn each_output_of_get_and_watch_is_as_in_its_file() {
    let server = ApiServer::start(Options::default()).await.unwrap();
    let dir = TempDir::new().unwrap();
    server.write_service_account(dir.path()).unwrap();
    let cluster = json!({"server": server.url(), "certificate-authority": "ca.crt"});
    let config = json!({
        "current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": cluster}], "users": [{"name": "u", "user": {"tokenFile": "token"}}],
    });
    let kubeconfig = dir.path().join("kubeconfig");
    fs::write(&kubeconfig, config.to_string()).unwrap();
    let (client, first) = (client(&kubeconfig), Cell::new(0));
    let write = async |method: Method, name: &str, body: Value| {
        let path = format!("/api/v1/namespaces/default/configmaps{name}");
        let kind = if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
        let request = Request::get(path).sends(method, kind, body.to_string().into_bytes());
        serde_json::from_slice::<Value>(&client.send(request).await.unwrap().body).unwrap()
    };
    let create = async |name: &str| {
        let object = json!({"metadata": {"name": name}, "data": {"colour": "red"}});
        write(Method::POST, "", object).await
    };
    let vary = Regex::new(
        r#" *\+\d+\.\d{3}s|127\.0\.0\.1:\d+|(audit-id: |"?uid"?: ?"?)[0-9a-f-]{36}|\d{4}-\d\d-\d\dT[0-9:]+Z|(timeoutSeconds=)\d+"#,
    )
    .unwrap();
    let [age, number] = [r"(?m)\d+s$", r"\b\d+\b"].map(|pattern| Regex::new(pattern).unwrap());
    let compare = async |name: &str, output: String| {
        let output = output.replace("\r\n", "\n").replace(&dir.path().display().to_string(), "DIR");
        let output = vary.replace_all(&output, "$1$2…");
        let output = age.replace_all(&output, "…");
        // The versions since the first one.
        let output = number.replace_all(&output, |found: &Captures| {
            let since = found[0].parse::<u32>().ok().and_then(|number| number.checked_sub(first.get()));
            since.filter(|since| *since < 9).map_or(found[0].to_owned(), |since| format!("v{}", since + 1))
        });
        is_as_in_file(&output, &format!("{OUTPUTS}/{name}.txt")).await;
    };
    let listwatch = |args: &str| {
        let mut both = Command::new("sh");
        both.args([
            "-c",
            &format!("exec \"$0\" {args} --kubeconfig \"$1\" 2>&1"),
            env!("CARGO_BIN_EXE_listwatch"),
        ]);
        both.arg(&kubeconfig).kill_on_drop(true);
        both
    };
    let created = create("a").await;
    let version = created["metadata"]["resourceVersion"].as_str().unwrap();
    first.set(version.parse().unwrap());
    for form in ["raw", "short", "json", "yaml", "name", "wide"] {
        let output = ran(listwatch(&format!("get cm/a -o {form}"))).await.succeeded();
        compare(&format!("get-{form}"), output).await;
    }
    let mut commands = String::new();
    for (request, form) in [("get cm/a", ""), ("get cm -l a=b", "=pod"), ("watch cm", "=proxy")] {
        commands += &ran(listwatch(&format!("{request} --curl{form}"))).await.succeeded();
    }
    compare("curl", commands).await;

    write(Method::PATCH, "/a", json!({"data": {"colour": "blue"}})).await;
    create("b").await;
    write(Method::DELETE, "/b", json!({})).await;
    let watch = format!("watch cm --resource-version {version} --max-events 3");
    compare("watch-explain", ran(listwatch(&format!("{watch} --explain -o short"))).await.succeeded()).await;
    let on_terminal = on_terminal(80, &format!("{watch} --kubeconfig {}", kubeconfig.display()), "1").await;
    compare("watch-short", on_terminal).await;

    let mut follow =
        listwatch("watch cm --follow --max-events 2 -o short").stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(follow.stdout.take().unwrap()).lines();
    let mut followed = String::new();
    let mut until = async |text: &str| {
        while let Some(line) = lines.next_line().await.unwrap() {
            followed += &format!("{line}\n");
            if line.contains(text) {
                break;
            }
        }
    };
    until("# the watch is open").await;
    create("c").await;
    until("/c is new").await;
    server.fault(Fault::CutWatches);
    until("# the watch is open").await;
    create("d").await;
    until("the end").await;
    compare("watch-follow", followed).await;
}

/// What `listwatch apiserver` prints, and what `listwatch demo --exit` prints in every run: without the steps of a rollout, of
/// which a slow machine skips some, and the order in which the operator and the server act.
#[tokio::test]
async fn the_outputs_of_apiserver_and_demo_are_as_in_their_files() {
    let vary = Regex::new(r"https://127\.0\.0\.1:\d+|[^ '=]*/listwatch-\w+").unwrap();
    let server = Running::start(operator::listwatch().arg("apiserver"));
    is_as_in_file(&vary.replace_all(&server.stdout, "…"), &format!("{OUTPUTS}/apiserver.txt")).await;

    let mut command = Command::from(operator::listwatch());
    command.args(["demo", "--exit"]);
    let stdout = ran(command).await.succeeded();
    let passing = Regex::new(
        "/status: |create   events:|MODIFIED .* (Ready=|Progressing=|status|[0-9]+ of )|40[49] [NC]",
    )
    .unwrap();
    let time = Regex::new(r"^ +\d+ ms  ").unwrap();
    let mut shown = String::new();
    for scene in vary.replace_all(&stdout, "…").split("\n\n") {
        let (mut timed, other): (Vec<_>, Vec<_>) = scene.lines().partition(|line| time.is_match(line));
        timed.retain(|line| !passing.is_match(line) && !line.contains("  get  "));
        let mut timed: Vec<_> = timed.into_iter().map(|line| time.replace(line, "       ")).collect();
        timed.sort();
        let lines = other.into_iter().map(Into::into).chain(timed);
        shown += &lines.map(|line: Cow<'_, str>| format!("{line}\n")).collect::<String>();
        shown.push('\n');
    }
    is_as_in_file(&shown, &format!("{OUTPUTS}/demo.txt")).await;
}

/// The README shows some of the lines. Times, versions and the number of objects vary.
#[tokio::test]
async fn the_readme_shows_what_a_client_does_after_a_410() {
    let readme = include_str!("../../README.md");
    let command = "watch mws --demo --resource-version 1 --follow";
    let (_, shown) = readme.split_once(&format!("cargo run -- {command}\n```\n")).unwrap();
    let shown = shown.split("```\n").nth(1).unwrap();
    assert!(shown.contains(" ERROR    410 ") && shown.contains(" the list is complete: "), "{shown}");
    let mut both = Command::new("sh");
    let args = format!("exec \"$0\" {command} -o short --max-events 2 2>&1");
    both.args(["-c", &args, env!("CARGO_BIN_EXE_listwatch")]);
    let printed = ran(both).await.succeeded();
    let vary = Regex::new(r"\+\d+\.\d+s|\b\d+ objects?\b|\b\d\d+\b").unwrap();
    let [shown, printed] = [shown, &printed].map(|text| vary.replace_all(text, "…").into_owned());
    let mut rest = printed.lines().map(str::trim);
    for line in shown.lines().map(str::trim) {
        assert!(rest.any(|printed| printed == line), "no {line:?}, or not in this place, in\n{printed}");
    }
}

/// Times, versions and the names of the server vary.
#[tokio::test]
async fn the_page_shows_a_410_by_its_command() {
    let page = include_str!("../../docs/study.md");
    let command = "watch mws --demo --resource-version 1 --explain";
    assert!(page.contains(&format!("\nlistwatch {command} -o short\n")), "{command}");
    let vary = Regex::new(
        r"\+\d+\.\d+s|\S*/listwatch-\w+|127\.0\.0\.1:\d+|audit-id: [0-9a-f-]+|resource version: 1 \(\d+\)",
    )
    .unwrap();
    let mut both = Command::new("sh");
    both.args(["-c", &format!("exec \"$0\" {command} -o short 2>&1"), env!("CARGO_BIN_EXE_listwatch")]);
    let stdout = ran(both).await.succeeded();
    let (_, shown) = page.split_once("```\n$ curl ").unwrap();
    let shown = format!("$ curl {}", shown.split("```").next().unwrap());
    assert_eq!(vary.replace_all(&stdout, "…"), vary.replace_all(&shown, "…"));
    assert!(
        stdout.contains(" ERROR    410 Expired: ")
            && stdout.contains(" # avoids mistake 7: expect 410 in one form only ("),
        "{stdout}"
    );
}

#[tokio::test]
async fn a_replay_with_a_speed_takes_its_time() {
    let lines =
        [HEADER.to_owned(), REQUEST.to_owned(), format!("{{\"time\":2,\"exchange\":1,\"line\":{EVENT}}}\n")];
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("recording");
    fs::write(&file, lines.join("\n")).unwrap();
    let replay = async |args: &[&str]| {
        let mut command = Command::from(operator::listwatch());
        command.arg("replay").arg(&file).args(args);
        let begun = Instant::now();
        let ran = ran(command).await;
        (ran, begun.elapsed())
    };
    let (at_speed, lasted) = replay(&["--speed", "2"]).await;
    assert!(lasted >= Duration::from_secs(1), "{lasted:?}");
    let (at_once, _) = replay(&[]).await;
    assert_eq!(at_speed.succeeded(), at_once.succeeded());
    for wrong in ["0", "-1", "fast", "inf", "NaN"] {
        let (refused, _) = replay(&[&*format!("--speed={wrong}")]).await;
        refused.failed(2, "is not a number above 0, such as 1 or 10");
    }
}

#[tokio::test]
async fn the_output_goes_through_jq_and_into_head() {
    on(&BOTH, async |fixture| {
        let reader = Reader::admin(fixture);
        fixture.create_service("a").await;
        let version = fixture.create_service("b").await["metadata"]["resourceVersion"].clone();
        fixture.delete("services/b").await;
        let version = version.as_str().unwrap();
        for (args, filter, expected) in [
            ("get svc", "jq -r '.items[].metadata.name'", "a\n"),
            ("get svc --limit 1", "jq -r '.kind, (.items | length)'", "ServiceList\n1\n"),
            ("get svc/a -o json", "jq -r .metadata.name", "a\n"),
            (
                &*format!("watch svc --timeout-seconds 1 --resource-version {version}"),
                "jq -r '.type, .object.metadata.name'",
                "DELETED\nb\n",
            ),
            ("watch svc", "head -1 | jq -r .type", "ADDED\n"),
        ] {
            let listwatch = reader.command(args);
            let mut command = Command::new("bash");
            command.args(["-c", &format!("set -o pipefail; \"$0\" \"$@\" | {filter}")]);
            command.arg(listwatch.as_std().get_program()).args(listwatch.as_std().get_args());
            command.envs(listwatch.as_std().get_envs().filter_map(|(name, value)| Some((name, value?))));
            assert_eq!(ran(command).await.succeeded(), expected, "{args} | {filter}");
        }
    })
    .await;
}

#[tokio::test]
async fn binary_data_is_written_raw_and_not_to_a_terminal() {
    on(&[Kind::Embedded], async |fixture| {
        let reader = Reader::admin(fixture);
        let body = "\u{7f}ELF\u{0}\u{1b}[2J".to_owned();
        fixture.embedded().fault(
            Fault::Answer { status: 200, body: body.clone(), retry_after_secs: None }
                .on("", "/version/binary"),
        );
        assert_eq!(reader.run("get /version/binary").await.succeeded(), body);
        let account = reader.dir.path().display();
        let mut on_terminal =
            terminal(300, &format!("get /version/binary --service-account-dir {account}"), "1");
        for (name, value) in reader.command("").as_std().get_envs() {
            on_terminal.env(name, value.unwrap());
        }
        let ran = ran(on_terminal).await;
        assert_eq!(ran.code, Some(1));
        assert!(
            ran.stdout.contains("with -o raw > FILE") && !ran.stdout.contains('\u{1b}'),
            "{}",
            ran.stdout
        );
        reader.run("get /version/binary -o yaml").await.failed(1, "-o raw writes it as it came");
    })
    .await;
}

/// `-o short` wrote a blank line, and `-o name` a slash.
#[tokio::test]
async fn an_answer_that_is_no_object_is_indented() {
    on(&BOTH, async |fixture| {
        let reader = Reader::admin(fixture);
        for form in ["short", "wide"] {
            let version = reader.run(&format!("get /version -o {form}")).await.succeeded();
            assert!(version.contains("\n  \"gitVersion\": \"v1.36"), "{version}");
        }
    })
    .await;
}

/// The embedded server answered 404.
#[tokio::test]
async fn the_root_lists_the_paths_of_the_server() {
    on(&BOTH, async |fixture| {
        let reader = Reader::admin(fixture);
        let root: Value = serde_json::from_str(&reader.run("get /").await.succeeded()).unwrap();
        let paths: Vec<_> = root["paths"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
        assert!(paths.is_sorted() && root.as_object().unwrap().len() == 1, "{root}");
        for path in [
            "/api",
            "/api/v1",
            "/apis",
            "/apis/apps",
            "/apis/apps/v1",
            "/apis/k8sobjects.gsa.com",
            "/apis/k8sobjects.gsa.com/v2",
            "/healthz",
            "/healthz/ping",
            "/livez",
            "/livez/ping",
            "/openapi/v3",
            "/readyz",
            "/readyz/ping",
            "/version",
        ] {
            assert!(paths.contains(&path), "no {path} in {root}");
        }
        for path in paths.iter().filter(|_| fixture.is_embedded()) {
            assert_eq!(reader.run(&format!("get {path}")).await.code, Some(0), "{path}");
        }
    })
    .await;
}

/// The rows had no types, a BOOKMARK was an empty line, and `--explain` said nothing.
#[tokio::test]
async fn a_watch_of_a_table_shows_the_type_of_each_event_and_explains_it() {
    on(&BOTH, async |fixture| {
        let reader = Reader::admin(fixture);
        let version = fixture.create_service("a").await["metadata"]["resourceVersion"].clone();
        fixture.create_service("longer").await;
        fixture.delete("services/longer").await;
        let initial = "watch svc --allow-watch-bookmarks --max-events 2";
        let changes = format!("watch svc --resource-version {} --max-events 2", version.as_str().unwrap());
        for (args, form, starts, explained) in [
            (initial, "--table -o short", ["EVENT      NAME ", "ADDED      a ", "BOOKMARK   "], "BOOKMARK"),
            (initial, "-o wide", ["EVENT      NAME ", "ADDED      a ", "BOOKMARK   "], "/a is new"),
            (
                &changes,
                "--table -o short",
                ["EVENT      NAME ", "ADDED      longer ", "DELETED    longer "],
                "/longer was deleted",
            ),
            (initial, "--table -o name", ["a", "", ""], "BOOKMARK"),
            (&changes, "-o name", ["service/longer", "service/longer", ""], "/longer was deleted"),
        ] {
            let Ran { code, stdout, stderr } = reader.run(&format!("{args} {form} --explain")).await;
            assert_eq!(code, Some(0), "{stderr}");
            let starts: Vec<_> = starts.into_iter().filter(|start| !start.is_empty()).collect();
            let lines: Vec<_> = stdout.lines().collect();
            assert_eq!(lines.len(), starts.len(), "{stdout}");
            for (line, start) in lines.iter().zip(starts) {
                assert!(line.starts_with(start), "{stdout}");
                // A BOOKMARK has a version.
                assert!(*line != start || form.ends_with("name"), "{stdout}");
            }
            assert!(sentences(&stderr).iter().any(|said| said.contains(explained)), "{stderr}");
        }
    })
    .await;
}

/// The error came without the request and the status.
#[tokio::test]
async fn a_refused_discovery_is_shown_explained_and_recorded() {
    on(&[Kind::Embedded], async |fixture| {
        let reader = Reader::admin(fixture);
        for (fault, status, explained) in [
            ("unauthorized", 401, "the credentials are not valid"),
            ("internal-error", 500, "cannot answer now"),
            ("unavailable", 503, "cannot answer now"),
        ] {
            for command in ["get", "watch"] {
                fixture.embedded().end_faults();
                fixture.embedded().fault(format!("{fault},path=/apis").parse::<Planned>().unwrap());
                let file = reader.file(&format!("{fault}-{command}"));
                let ran = reader.run(&format!("{command} svc --explain --record {file}")).await;
                ran.failed(1, &format!("get /apis: {status} "));
                let [curl, head] = [0, 1].map(|line| ran.stderr.lines().nth(line).unwrap());
                assert!(curl.starts_with("$ curl ") && curl.ends_with("/apis'"), "{}", ran.stderr);
                assert_eq!(head, format!("< HTTP/2.0 {status}"), "{}", ran.stderr);
                assert!(sentences(&ran.stderr)[0].contains(explained), "{}", ran.stderr);
                let recording = fs::read_to_string(file).unwrap();
                assert!(
                    recording.contains("\"path\":\"/apis\"") && !recording.contains("\"/api\""),
                    "{recording}"
                );
            }
        }
    })
    .await;
}

/// The error was about old versions of Kubernetes, and came without the request and the status.
#[tokio::test]
async fn a_page_of_a_proxy_instead_of_a_discovery_is_reported_as_one() {
    on(&[Kind::Embedded], async |fixture| {
        fixture.embedded().fault("html,status=200,path=/api".parse::<Planned>().unwrap());
        for form in ["raw", "yaml"] {
            let ran = Reader::admin(fixture).run(&format!("get svc -o {form}")).await;
            ran.failed(1, "/api answered with text/html, not JSON (is a proxy or a login page in front of");
            let [curl, head] = [0, 1].map(|line| ran.stderr.lines().nth(line).unwrap());
            assert!(curl.starts_with("$ curl ") && curl.ends_with("/api'"), "{}", ran.stderr);
            assert_eq!((head, &*ran.stdout), ("< HTTP/2.0 200", ""), "{}", ran.stderr);
        }
    })
    .await;
}

/// It showed the same command four times, and no sentence.
#[tokio::test]
async fn a_discovery_that_reaches_no_server_is_shown_once_and_explained() {
    on(&[Kind::Embedded], async |fixture| {
        // Nothing listens there any more.
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        drop(listener);
        let reader = Reader::new(fixture, &url, fixture.admin_token());
        for (target, again) in [("svc", 3), ("/api/v1/services", 0)] {
            let ran = reader.run(&format!("get {target} --explain")).await;
            ran.failed(1, "refused");
            let count = |start: &str| ran.stderr.lines().filter(|line| line.starts_with(start)).count();
            let commands = (count("$ curl "), count("# the same request again"));
            assert_eq!(commands, (1, again), "{}", ran.stderr);
            let said = sentences(&ran.stderr);
            let about = said.iter().filter(|said| said.contains("# no answer: the server cannot be reached"));
            assert_eq!(about.count(), again + 1, "{}", ran.stderr);
        }
    })
    .await;
}

/// It came before errors that need no command.
#[tokio::test]
async fn the_programs_that_a_command_needs_are_named_before_it_and_nowhere_else() {
    let server = ApiServer::start(Options::default()).await.unwrap();
    let dir = TempDir::new().unwrap();
    let kubeconfig = dir.path().join("kubeconfig");
    fs::write(&kubeconfig, server.kubeconfig()).unwrap();
    let stderr = async |args: &str| {
        let mut command = Command::from(operator::listwatch());
        command.args(args.split(' ')).arg("--kubeconfig").arg(&kubeconfig);
        ran(command).await.stderr
    };
    let shown = stderr("get cm").await;
    assert!(shown.starts_with("# This needs kubectl, to read the credentials"), "{shown}");
    assert!(shown.lines().nth(1).unwrap().starts_with("$ curl "), "{shown}");
    for args in ["get foo", "watch cm/web", "watch /version"] {
        let shown = stderr(args).await;
        assert!(shown.starts_with("listwatch: ") && shown.lines().count() == 1, "{args}: {shown}");
    }
}

/// From another directory, the command found no file.
#[tokio::test]
async fn a_printed_curl_names_absolute_paths_and_the_programs_that_it_needs() {
    let dir = TempDir::new().unwrap();
    let here = dir.path().display().to_string();
    let login = r#"{apiVersion: client.authentication.k8s.io/v1, command: login, interactiveMode: Never}"#;
    fs::write(
        dir.path().join("kubeconfig"),
        format!(
            "clusters: [{{name: k, cluster: {{server: 'https://h', insecure-skip-tls-verify: true}}}}]\n\
             users: [{{name: data, user: {{token: x}}}}, {{name: file, user: {{tokenFile: token}}}}, {{name: exec, user: {{exec: {login}}}}}]\n"
        ),
    )
    .unwrap();
    fs::write(dir.path().join("other"), "{}").unwrap();
    fs::write(dir.path().join("token"), "x").unwrap();
    let curl = async |args: &str, kubeconfig: &str| {
        let mut command = Command::from(operator::listwatch());
        command.args(["get", "/api", "--curl", "--cluster", "k"]).args(args.split_whitespace());
        command.env("KUBECONFIG", kubeconfig).current_dir(&dir);
        let Ran { code, stdout, stderr } = ran(command).await;
        assert!(code == Some(0) && stdout.starts_with("curl ") && stdout.lines().count() == 1, "{stdout}");
        stderr + &stdout
    };
    let view = format!("$(kubectl config view --raw --kubeconfig={here}/kubeconfig -o jsonpath=");
    let kubectl = "# This needs kubectl, to read the credentials from the kubeconfig\ncurl ";
    for (args, kubeconfig, start, part) in [
        ("--kubeconfig kubeconfig --user data", "", kubectl, &*view),
        ("--user data", "kubeconfig", kubectl, &view),
        (
            "--user data",
            "other:kubeconfig",
            kubectl,
            &format!("$(KUBECONFIG={here}/other:{here}/kubeconfig kubectl config view --raw -o"),
        ),
        ("--kubeconfig kubeconfig --user file", "", "curl ", &format!("$(cat {here}/token)")),
    ] {
        let line = curl(args, kubeconfig).await;
        assert!(line.contains(part) && line.starts_with(start), "{args} {kubeconfig}: {line}");
    }
    let plugin = curl("--user exec", "kubeconfig").await;
    assert!(plugin.starts_with("# This needs kubectl and jq") && plugin.lines().count() == 2, "{plugin}");
    let mut operator = Command::from(operator::listwatch());
    operator.args([
        "run",
        "--cluster",
        "k",
        "--user",
        "exec",
        "--kubeconfig",
        "kubeconfig",
        "--curl",
        "script",
    ]);
    let operator = operator.current_dir(&dir).stderr(Stdio::null()).kill_on_drop(true).spawn().unwrap();
    eventually("a comment about jq in the script", async || {
        let script = fs::read_to_string(dir.path().join("script")).unwrap_or_default();
        script
            .contains("\n: 'This needs kubectl and jq, to run the credential plugin of the kubeconfig'\n")
            .then_some(())
    })
    .await;
    drop(operator);
}

#[tokio::test]
async fn a_watch_of_metadata_has_no_spec() {
    on(&BOTH, async |fixture| {
        let reader = Reader::admin(fixture);
        fixture.create_service("a").await;
        for follow in ["", "--follow"] {
            let args = format!("watch svc --metadata --max-events 1 {follow}");
            if follow.is_empty() {
                let event: Value = serde_json::from_str(&reader.run(&args).await.succeeded()).unwrap();
                let object = &event["object"];
                assert_eq!(
                    (&event["type"], &object["kind"]),
                    (&json!("ADDED"), &json!("PartialObjectMetadata"))
                );
                assert_eq!((&object["metadata"]["name"], &object["spec"]), (&json!("a"), &Value::Null));
                continue;
            }
            let mut command = reader.command(&format!("{args} -o name"));
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
            let child = command.spawn().unwrap();
            let mut lines = BufReader::new(child.stdout.unwrap()).lines();
            assert_eq!(lines.next_line().await.unwrap().unwrap(), "a");
            fixture.create_service("b").await;
            assert_eq!(lines.next_line().await.unwrap().unwrap(), "b");
        }
    })
    .await;
}

/// The reader of a pipe may stop to read and stay, like `less`.
#[tokio::test]
async fn a_signal_ends_a_command_whose_output_nobody_reads() {
    on(&[Kind::Embedded], async |fixture| {
        let reader = Reader::admin(fixture);
        let text = "x".repeat(900_000);
        fixture.create("configmaps", &json!({"metadata": {"name": "large"}, "data": {"text": text}})).await;
        let file = reader.file("recording");
        reader.run(&format!("get cm --record {file}")).await.succeeded();
        let mut replay = Command::from(operator::listwatch());
        replay.args(["replay", "-o", "raw", &file]).kill_on_drop(true);
        // A list that was cut was a success.
        let cut = "listwatch: interrupted: the answer is incomplete\n";
        for (mut command, signal, code, error) in [
            (reader.command("get cm"), "INT", 130, cut),
            (reader.command("get cm"), "TERM", 143, cut),
            (reader.command("watch cm"), "INT", 0, ""),
            (replay, "INT", 0, ""),
        ] {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
            let mut child = command.spawn().unwrap();
            // More than a pipe holds follows the first byte.
            let mut stdout = child.stdout.take().unwrap();
            stdout.read_u8().await.unwrap();
            let kill = format!("kill -{signal} {}", child.id().unwrap());
            assert!(Command::new("sh").args(["-c", &kill]).status().await.unwrap().success());
            assert_eq!(child.wait().await.unwrap().code(), Some(code));
            let mut stderr = String::new();
            child.stderr.take().unwrap().read_to_string(&mut stderr).await.unwrap();
            let errors = stderr.split_inclusive('\n').filter(|line| line.starts_with("listwatch: "));
            assert_eq!(errors.collect::<String>(), error);
        }
    })
    .await;
}

/// The exit code was 0, and nothing was said.
#[tokio::test]
async fn a_signal_before_the_end_of_an_answer_is_an_error_of_get() {
    on(&[Kind::Embedded], async |fixture| {
        let reader = Reader::admin(fixture);
        fixture.embedded().fault("silence,path=/services".parse::<Planned>().unwrap());
        let mut command = reader.command("get svc");
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        assert!(lines.next_line().await.unwrap().unwrap().starts_with("$ curl "));
        let kill = format!("kill -INT {}", child.id().unwrap());
        assert!(Command::new("sh").args(["-c", &kill]).status().await.unwrap().success());
        assert_eq!(child.wait().await.unwrap().code(), Some(130));
        let error = lines.next_line().await.unwrap().unwrap();
        assert_eq!(error, "listwatch: interrupted: the answer is incomplete");
    })
    .await;
}

#[tokio::test]
async fn while_a_demo_runs_its_script_gets_the_same_objects() {
    let dir = TempDir::new().unwrap();
    let script = dir.path().join("script");
    let demo = operator::listwatch().arg("demo").arg("--curl").arg(&script).stdout(Stdio::null()).spawn();
    let _demo = Running { child: demo.unwrap(), stdout: String::new() };
    let text = eventually("a write in the script", async || {
        fs::read_to_string(&script).ok().filter(|text| text.contains("-X PATCH"))
    })
    .await;
    assert!(text.contains("\n: 'The server of listwatch demo ends with the demo.'\n"), "{text}");
    let line = text.lines().find(|line| line.contains("/mywebservers?limit=")).unwrap();
    let mut bash = Command::new("bash");
    bash.args(["-c", line]);
    let list: Value = serde_json::from_str(&ran(bash).await.succeeded()).unwrap();
    assert_eq!(list["kind"], "MyWebserverList", "{line}");
    // One line after the other, as far as the first watch, whose events come at any time.
    let (first, _) = text.split_once("curl -sSN ").unwrap();
    for shell in &*SHELLS {
        let shown = pasted(shell, first.split_once('\n').unwrap().1).await;
        let answers = first.matches("\ncurl ").count();
        // An answer ends before the next prompt.
        assert!(answers > 2 && shown.matches("\n}\r\n").count() == answers, "{shell}: {shown}");
        assert!(!shown.contains(&format!("{shell}: ")), "an error of {shell}: {shown}");
    }
}

/// What an interactive shell writes to its terminal. Each line is typed after a prompt.
async fn pasted(shell: &str, lines: &str) -> String {
    const PROMPT: &str = "READY> ";
    let options = if shell == "zsh" { "-f" } else { "--norc" };
    let mut command = Command::new("script");
    // The shell between unsets `PS1`.
    let interactive = format!("stty cols 999; PS1='{PROMPT}' exec {shell} {options} -i");
    command.args(["--quiet", "--return", "--command", &interactive, "/dev/null"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.kill_on_drop(true).spawn().unwrap();
    let (mut keyboard, mut screen) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let (mut shown, mut read) = (String::new(), 0);
    for line in lines.lines() {
        while !shown[read..].contains(PROMPT) {
            let mut bytes = [0; 4096];
            let count = screen.read(&mut bytes).await.unwrap();
            assert!(count > 0, "{shell} has ended: {shown}");
            shown += &String::from_utf8_lossy(&bytes[..count]);
        }
        read = shown.len();
        keyboard.write_all(format!("{line}\n").as_bytes()).await.unwrap();
    }
    keyboard.write_all(b"exit\n").await.unwrap();
    screen.read_to_string(&mut shown).await.unwrap();
    shown
}

#[tokio::test]
async fn the_curl_of_a_demo_names_the_server_that_ends() {
    let mut command = Command::from(operator::listwatch());
    command.args(["get", "mws", "--demo", "--curl"]);
    // Such a variable was an error.
    for name in ["KUBECONFIG", "CONTEXT", "CLUSTER", "USER", "SERVICE_ACCOUNT_DIR"] {
        command.env(format!("LISTWATCH_{name}"), ABSENT);
    }
    let ran = ran(command).await;
    assert!(ran.stderr.starts_with("# The server of --demo ends with this command."), "{}", ran.stderr);
    let line = ran.succeeded();
    let line = line.trim_end_matches('\n');
    assert!(line.starts_with("curl ") && line.ends_with("/namespaces/default/mywebservers'"), "{line}");
}

#[tokio::test]
async fn bad_input_gives_one_line_of_error_with_the_remedy() {
    on(&[Kind::Embedded], async |fixture| {
        let reader = Reader::admin(fixture);
        fs::write(reader.file("existing"), "").unwrap();
        let record = format!("get svc --record {}", reader.file("existing"));
        let help = async |command: &str| reader.run(&format!("{command} -h")).await.succeeded();
        assert!(help("get").await.contains(" RESOURCE/NAME ") && !help("watch").await.contains("/NAME"));
        for (args, code, cause) in [
            ("get deplo", 2, "there is no resource \"deplo\"; near: deployments.apps"),
            ("get foo --curl", 2, "--curl knows only built-in resources: give a path"),
            ("get /api/v1/pods -n x", 2, "leave out -n and -A"),
            ("get svc --curl --explain", 2, "'--curl[=<FROM>]' cannot be used with '--explain'"),
            ("get svc --curl --record x", 2, "'--curl[=<FROM>]' cannot be used with '--record <FILE>'"),
            ("get ns -n x", 2, "namespaces are in no namespace: leave out -n"),
            (
                "get svc/web -l a=b",
                2,
                "an object has a name: leave out -l, --field-selector, --limit and --continue",
            ),
            ("get svc/web --limit 1", 2, "an object has a name: leave out -l"),
            ("watch svc --limit 1", 2, "unexpected argument '--limit' found"),
            ("get svc/web -A", 2, "give -n NAME rather than -A"),
            ("watch svc/web", 2, "listwatch watch svc --field-selector metadata.name=web"),
            ("watch /version", 2, "a watch is of a collection, such as /api/v1/pods"),
            ("watch /", 2, "a watch is of a collection, such as /api/v1/pods"),
            (
                "watch /api/v1/namespaces/a",
                2,
                "listwatch watch /api/v1/namespaces --field-selector metadata.name=a",
            ),
            (
                "watch /apis/apps/v1/namespaces/a/deployments/b?resourceVersion=1",
                2,
                "listwatch watch /apis/apps/v1/namespaces/a/deployments --field-selector metadata.name=b",
            ),
            ("get /version -o name", 1, "the answer has no objects: -o raw writes it as it came"),
            (
                "get webservers",
                2,
                "there is no resource \"webservers\"; near: mywebservers.k8sobjects.gsa.com",
            ),
            ("watch /api/v1/pods?limit=1 --follow", 2, "-l or --field-selector"),
            ("watch /api/v1/pods?watch=0", 2, "leave `watch` out of it"),
            ("watch svc --follow -o wide", 2, "choose another form"),
            ("watch svc --follow --resource-version 0", 2, "give one, or leave --resource-version out"),
            (&record, 2, "exists; remove it, or choose another file"),
            ("get /healthz -o json", 1, "the answer is not JSON: -o raw"),
            ("get svc/none", 1, "404 NotFound: services \"none\" not found"),
        ] {
            reader.run(args).await.failed(code, cause);
        }
        // The first command left a file behind, and the second one was refused.
        let new = reader.file("new");
        for target in ["deplo", "/api/v1/pods -n x"] {
            reader.run(&format!("get {target} --record {new}")).await.failed(2, "");
            assert!(!Path::new(&new).exists(), "{target}");
        }
        reader.run(&format!("get svc/none --record {new}")).await.failed(1, "404");
        assert!(Path::new(&new).exists());
        fixture.embedded().fault("end-watches,lines=0".parse::<Planned>().unwrap());
        reader.run("watch svc").await.failed(1, "the server ended the watch at once, without an event");
    })
    .await;
}

#[tokio::test]
async fn a_401_names_the_user_and_a_403_names_the_rule_that_would_allow_the_request() {
    on(&BOTH, async |fixture| {
        fixture.may_be_forbidden.set(true);
        let path = fixture.path("secrets").replace("secrets", "configmaps");
        let unknown = Reader::new(fixture, &fixture.url(), "unknown");
        let user = format!("does not accept service account token in {}: ", unknown.dir.path().display());
        unknown.run(&format!("get {path}")).await.failed(1, &user);
        // The operator may not read ConfigMaps.
        let token = fs::read_to_string(fixture.dir.path().join("token")).unwrap();
        let ran = Reader::new(fixture, &fixture.url(), &token).run(&format!("get {path}")).await;
        ran.failed(1, &format!("User \"{}\" cannot list", fixture.operator_user()));
        let rule =
            r#"a Role with {apiGroups: [""], resources: ["configmaps"], verbs: ["list"]} would allow it"#;
        ran.failed(1, rule);
        let reader = Reader::new(fixture, &fixture.url(), &token);
        let followed = follow(&reader, &format!("{path} -o raw"));
        followed.until_logged("403: ", 1).await;
        let stdout = fs::read_to_string(&followed.stdout).unwrap();
        let status: Value = serde_json::from_str(stdout.lines().next().unwrap()).unwrap();
        assert_eq!(status["code"], 403, "{stdout}");
    })
    .await;
}

#[tokio::test]
async fn a_watch_ends_at_once_and_quietly_when_its_reader_or_user_goes() {
    on(&BOTH, async |fixture| {
        fixture.create_service("web").await;
        let reader = Reader::admin(fixture);
        for has_reader in [false, true] {
            let mut command = reader.command("watch svc");
            command.stdout(Stdio::piped()).stderr(Stdio::null());
            let mut child = command.spawn().unwrap();
            let mut stdout = BufReader::new(child.stdout.take().unwrap());
            let mut line = String::new();
            stdout.read_line(&mut line).await.unwrap();
            assert!(line.starts_with("{\"type\":\"ADDED\""), "{line}");
            if has_reader {
                let kill = format!("kill -INT {}", child.id().unwrap());
                assert!(Command::new("sh").args(["-c", &kill]).status().await.unwrap().success());
            } else {
                drop(stdout);
            }
            assert_eq!(child.wait().await.unwrap().code(), Some(0));
        }
    })
    .await;
}

/// What a command writes to a terminal.
async fn on_terminal(columns: usize, args: &str, no_color: &str) -> String {
    ran(terminal(columns, args, no_color)).await.succeeded()
}

/// A command on a terminal.
fn terminal(columns: usize, args: &str, no_color: &str) -> Command {
    let binary = Path::new(env!("CARGO_BIN_EXE_listwatch")).display();
    let mut command = Command::new("script");
    command.args(["--quiet", "--return", "--command"]).env("NO_COLOR", no_color).env("TERM", "xterm");
    command.arg(format!("stty rows 24 cols {columns}; exec {binary} {args}")).arg("/dev/null");
    command
}

#[tokio::test]
async fn on_a_terminal_no_line_is_wider_than_the_terminal() {
    let color = Regex::new("\x1b\\[[0-9]*m").unwrap();
    // A command, on one or more lines, and a header: copied as they are.
    let exchange = Regex::new(r"(?m)^(\$ (.*\\\r?\n)*|< ).*$").unwrap();
    let watch = "watch mws --demo --explain --max-events 7";
    for (columns, args, seen) in [
        (20, "get crds --demo --explain", "\nthe list has version\r\n    "),
        (40, watch, " MODIFIED default/"),
        (40, "watch mws --demo --explain --resource-version 1", " ERROR    410 "),
        (40, "get mws/none --demo --explain", "\nlistwatch: get /apis/k8sobjects.gsa.com/\r\n    "),
        (80, watch, " MODIFIED default/"),
        // Each sentence has a time, too.
        (40, "demo --explain --exit", " ms  # "),
        (40, "get mws --demo --explain -o wide", "…\r\n"),
        (40, "watch mws --demo --explain --max-events 3 -o wide", "…\r\n"),
    ] {
        let Ran { stdout, .. } = ran(terminal(columns, args, "")).await;
        let text = color.replace_all(&stdout, "");
        assert!(text.contains(seen) && text.contains(" # "), "{text}");
        for line in exchange.replace_all(&text, "").lines() {
            assert!(line.chars().count() <= columns, "{columns}: {line:?} in\n{text}");
        }
    }
}

/// The body, the explanation and the error said the same.
#[tokio::test]
async fn on_a_terminal_the_message_of_an_error_is_shown_once() {
    for explain in ["", "--explain"] {
        let Ran { code, stdout, .. } =
            ran(terminal(300, &format!("get mws/none --demo {explain}"), "1")).await;
        assert_eq!((code, stdout.matches("not found").count()), (Some(1), 1), "{stdout}");
        assert_eq!(stdout.contains("# 404: the same request may succeed later"), !explain.is_empty());
    }
}

#[tokio::test]
async fn only_a_terminal_without_no_color_gets_colors() {
    let expired = "watch mws --demo --resource-version 1";
    let [colored, plain] = [on_terminal(80, expired, "").await, on_terminal(80, expired, "1").await];
    assert!(
        colored.contains(" \x1b[31mERROR ") && colored.contains("\x1b[2m< HTTP/2.0 200\x1b[0m"),
        "{colored}"
    );
    assert!(plain.contains(" ERROR ") && !plain.contains('\x1b'), "{plain}");
}

#[tokio::test]
async fn shells_complete_the_names_of_resources() {
    let script = async |shell: &str| {
        let mut command = Command::from(operator::listwatch());
        ran({
            command.args(["completion", shell]);
            command
        })
        .await
        .succeeded()
    };
    for (shell, line) in [
        ("zsh", "(pods services configmaps"),
        ("fish", "using_subcommand get watch\" -f -a \"pods services configmaps"),
    ] {
        let script = script(shell).await;
        assert!(script.contains(line) && script.contains(" svc "), "{shell}");
    }
    let bash = script("bash").await;
    let mut command = Command::new("bash");
    let line = "COMP_WORDS=(listwatch watch dep); COMP_CWORD=2; _listwatch listwatch dep watch; echo ${COMPREPLY[@]}";
    command.args(["-c", &format!("{bash}\n{line}")]).env_clear();
    assert_eq!(ran(command).await.succeeded(), "deployments deploy\n");
}
