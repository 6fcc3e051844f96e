//! Tests `listwatch get`, `watch` and `replay`: the built binary, on the embedded server and on a real one.

mod discovery;
mod files;
mod follow;
mod replay;
mod terminal;

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
use listwatch_control_plane::{eventually, minor_version, saw};
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

/// The binary with a service account of its own, in the namespace of a fixture.
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
        // A terminal obeyed them.
        let note = "\u{9b}31m\u{202e}";
        fixture.patch("services/web", json!({"metadata": {"annotations": {"note": note}}})).await;
        for text in [form("json").await, form("yaml").await] {
            assert!(!text.contains(['\u{9b}', '\u{202e}']), "{text}");
            let value: Value = yaml_serde::from_str(&text).unwrap();
            assert_eq!(value["metadata"]["annotations"]["note"], note, "{text}");
        }
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
        let url = Regex::new("'https://[^/]+(/[^']*/(?:services|mywebservers)[^']*)'$").unwrap();
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
            assert!(version.contains("\n  \"gitVersion\": \"v1."), "{version}");
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
            // Before 1.34, a streaming list, which `--allow-watch-bookmarks` makes of the first watch, cannot be a Table.
            if args == initial && !fixture.is_embedded() && minor_version() < 34 {
                continue;
            }
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
    let mut command = Command::from(operator::ends_with_test("script"));
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
        reader.run("watch svc").await.failed(1, "the server soon ended the watch, without an event");
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
    let mut command = Command::from(operator::ends_with_test("script"));
    command.args(["--quiet", "--return", "--command"]).env("NO_COLOR", no_color).env("TERM", "xterm");
    command.arg(format!("stty rows 24 cols {columns}; exec {binary} {args}")).arg("/dev/null");
    command
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
