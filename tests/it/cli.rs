//! Tests how the binary handles wrong flags, wrong configuration and signals.

use std::{
    ffi::OsStr,
    fs::{self, File},
    io::{BufRead, BufReader, Read, Write},
    os::unix::ffi::OsStrExt,
    path::Path,
    process::{Child, Command, Output, Stdio},
    time::Duration,
};

use clap::ValueEnum;
use listwatch_apiserver::Fault;
use listwatch_control_plane::eventually;
use listwatch_operators::BuiltIn;
use serde_json::{Value, json};

use crate::{
    ABSENT,
    apiserver::{Running, client, is_private, printed_curl},
    client::UserClient,
    curl::SHELLS,
    fixture::{Kind, on},
    manifests,
    operator::{Operator, ends_with_test, listwatch},
};

/// Runs a command that must exit with 2, and returns its stderr.
fn refused(mut command: Command) -> String {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let stderr = String::from_utf8(stderr).unwrap();
    assert_eq!(status.code(), Some(2), "{command:?}: {stderr}");
    assert_eq!(String::from_utf8(stdout).unwrap(), "", "{command:?}");
    stderr
}

#[test]
fn an_invalid_flag_exits_with_2_and_one_line_with_the_remedy() {
    for (args, flag, remedy) in [
        ("run --nope", "--nope", "--help"),
        ("run bogus", "bogus", "mywebserver"),
        ("get", "arguments were not provided: <RESOURCE|PATH>", "see listwatch get --help"),
        ("get deploy web", "unexpected argument 'web' found", "; a name follows a slash: RESOURCE/NAME\n"),
        ("get mws --curl pod", "unexpected argument 'pod' found", "; write --curl=pod\n"),
        ("run --max-concurrent-reconciles 0", "--max-concurrent-reconciles", "a number from 1 to 1024"),
        ("run --health-probe-bind-address nope", "--health-probe-bind-address", "such as :8081"),
        ("run --request-timeout 0s", "--request-timeout", "such as 30s"),
        ("run --request-timeout 1h", "--request-timeout", "must be 5m at most"),
        ("run --request-timeout soon", "'soon' for '--request-timeout <TIME>': is not a time", "such as 30s"),
        ("run --request-timeout 30", "'30' for '--request-timeout <TIME>': is not a time", "such as 30s"),
        ("run --log-level loud", "--log-level", "error, warn, info, debug, trace"),
        (
            "run --streaming-lists=maybe",
            "--streaming-lists",
            "is neither true nor false, nor yes, no, on, off, 1 or 0",
        ),
        ("run -A -n web", "--all-namespaces", "cannot be used with"),
        ("run --shard 3/3", "--shard", "is not N/M, the shard N of M shards"),
        ("run --shard 0/0", "--shard", "such as 0/3, 1/3 and 2/3"),
        ("run --shard a/b", "--shard", "is not N/M"),
        ("run --shard=-1/2", "--shard", "is not N/M"),
        ("run --shard 0/65", "--shard", "there are at most 64"),
        ("completion tcsh", "tcsh", "bash, elvish, fish, powershell, zsh"),
        ("apiserver --port abc", "--port", "is not a number from 0 to 65535"),
        ("apiserver --port 70000", "--port", "is not a number from 0 to 65535"),
        ("demo --port=-1", "--port", "is not a number from 0 to 65535"),
        // Empty values at the end. The first two once meant all namespaces and no impersonation.
        ("run -n ", "--namespace", "is not the name of a namespace; for all of them, give none"),
        ("run --as ", "--as", "is empty: give a name, or leave the flag out"),
        ("run --namespace a,", "--namespace", "is not the name of a namespace"),
        ("run --context ", "--context", "is empty: give a name"),
        ("run --log-level info,listwatch", "--log-level", "MODULE=LEVEL"),
        ("run --log-level ", "--log-level", "error, warn, info, debug, trace"),
        ("apiserver --port ", "--port", "is not a number from 0 to 65535"),
        ("run --log-format xml", "--log-format", "text, json"),
        ("run --kubeconfig a --service-account-dir b", "--kubeconfig", "--service-account-dir"),
    ] {
        let mut command = listwatch();
        command.args(args.split(' '));
        let stderr = refused(command);
        assert!(stderr.starts_with("listwatch: ") && stderr.contains(flag), "{args}: {stderr}");
        assert!(stderr.contains(remedy), "{args}: {stderr}");
        assert_eq!(stderr.lines().count(), 1, "{args}: {stderr}");
    }
}

#[test]
fn an_invalid_configuration_exits_with_2_and_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let missing = dir.path().join("missing").display().to_string();
    let no_yaml = file("no-yaml", "not: [yaml");
    let empty = file("empty", "apiVersion: v1\nkind: Config\n");
    let account = dir.path().join("account").display().to_string();
    let address = [("KUBERNETES_SERVICE_HOST", "127.0.0.1"), ("KUBERNETES_SERVICE_PORT", "1")];
    let no_variables: &[(&str, &str)] = &[];
    let two = format!("{ABSENT}:{ABSENT}-2");
    for (args, variables, cause) in [
        (vec!["-n", "Bad_Name"], no_variables, "--namespace: \"Bad_Name\" is not the name of a namespace"),
        (
            vec![],
            &[("WATCH_NAMESPACE", "a,Bad_Name")],
            "WATCH_NAMESPACE: \"Bad_Name\" is not the name of a namespace",
        ),
        (vec![], no_variables, "this is not a pod: name one of them"),
        (vec!["--kubeconfig", &missing], no_variables, "No such file"),
        (vec!["--kubeconfig", &no_yaml], no_variables, "not YAML"),
        (vec!["--kubeconfig", &empty, "--context", "gone"], no_variables, "there is no context \"gone\""),
        (vec![], &[("KUBECONFIG", &*missing)], "does not exist"),
        (vec![], &[("KUBECONFIG", &*two)], &*format!("names {ABSENT} and {ABSENT}-2, which do not exist")),
        (vec![], &[("LISTWATCH_NAMESPACE", "No")], "; for all of them, give none (LISTWATCH_NAMESPACE)\n"),
        (vec!["-nNo"], &[("LISTWATCH_NAMESPACE", "a")], "; for all of them, give none\n"),
        (vec!["--service-account-dir", &account], no_variables, "KUBERNETES_SERVICE_HOST"),
        (vec!["--service-account-dir", &account], &address, "ca.crt"),
        (vec!["--service-account-dir", &account, "--context", "x"], &address, "give --kubeconfig"),
    ] {
        let mut command = listwatch();
        command.arg("run").args(&args).env("HOME", ABSENT).envs(variables.iter().copied());
        let stderr = refused(command);
        assert!(
            stderr.starts_with("listwatch: ") && stderr.contains(cause),
            "{args:?} {variables:?}: {stderr}"
        );
        assert_eq!(stderr.lines().count(), 1, "{args:?} {variables:?}: {stderr}");
    }
}

#[test]
fn an_environment_variable_sets_a_flag() {
    let mut command = listwatch();
    command.arg("run").env("LISTWATCH_MAX_CONCURRENT_RECONCILES", "many");
    assert!(refused(command).contains("--max-concurrent-reconciles"));
}

/// As in curl and kubectl. The test needs no proxy: nothing listens on port 1, and no name ends in `.invalid`.
#[test]
fn only_requests_to_other_machines_go_through_a_proxy_of_the_environment() {
    let dir = tempfile::tempdir().unwrap();
    let kubeconfig = dir.path().join("kubeconfig");
    for (server, proxy) in
        [("http://127.0.0.1:1", "http://proxy.invalid"), ("http://api.invalid", "http://127.0.0.1:1")]
    {
        let cluster = format!("{{name: k, cluster: {{server: '{server}'}}}}");
        let text = "{current-context: c, contexts: [{name: c, context: {cluster: k}}], clusters: [";
        fs::write(&kubeconfig, format!("{text}{cluster}]}}")).unwrap();
        let mut command = listwatch();
        command.args(["get", "namespaces", "--request-timeout", "1s", "--kubeconfig"]).arg(&kubeconfig);
        let stderr = command.env("http_proxy", proxy).output().unwrap().stderr;
        let stderr = String::from_utf8(stderr).unwrap();
        assert!(stderr.contains(": connection refused: "), "{server} {proxy}: {stderr}");
    }
}

/// client-go uses the proxy. The client cannot, and did not say so.
#[test]
fn with_a_tls_server_name_the_log_and_errors_say_that_the_proxy_of_the_environment_is_not_used() {
    let dir = tempfile::tempdir().unwrap();
    let kubeconfig = dir.path().join("kubeconfig");
    let past = "past the proxy of the environment, because of tls-server-name";
    // Nothing to say where no proxy would be used.
    for (server, proxy, said) in [
        ("https://api.invalid", "http://127.0.0.1:1", 2),
        ("https://127.0.0.1:1", "http://127.0.0.1:1", 0),
        ("https://api.invalid", "", 0),
    ] {
        let cluster = format!("{{name: k, cluster: {{server: '{server}', tls-server-name: kubernetes}}}}");
        let text = "{current-context: c, contexts: [{name: c, context: {cluster: k}}], clusters: [";
        fs::write(&kubeconfig, format!("{text}{cluster}]}}")).unwrap();
        let mut command = listwatch();
        command.args(["get", "/version", "--log-level", "warn", "--kubeconfig"]).arg(&kubeconfig);
        let stderr = command.env("HTTPS_PROXY", proxy).output().unwrap().stderr;
        let stderr = String::from_utf8(stderr).unwrap();
        assert_eq!(stderr.matches(past).count(), said, "{server} {proxy}: {stderr}");
    }
}

#[tokio::test]
async fn a_port_in_use_is_reported_and_exits_with_1() {
    on(&[Kind::Embedded], async |fixture| {
        let in_use = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = in_use.local_addr().unwrap().to_string();
        let kubeconfig = fixture.dir.path().join("kubeconfig");
        let server = fixture.embedded();
        fs::write(&kubeconfig, server.kubeconfig()).unwrap();
        let mut command = listwatch();
        command.args(["run", "--health-probe-bind-address", &address, "--kubeconfig"]).arg(kubeconfig);
        let output = command.output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(stderr.contains("--health-probe-bind-address") && stderr.contains(&address), "{stderr}");
        assert!(stderr.contains("; choose another port, or 0 to serve none"), "{stderr}");
    })
    .await;
}

fn delay(fixture: &crate::fixture::Fixture, method: &str, path: &str, delay: Duration) {
    let server = fixture.embedded();
    server.fault(Fault::Delay(delay).on(method, path).times(1));
}

#[tokio::test]
async fn a_stop_finishes_the_current_key_and_takes_no_more() {
    on(&[Kind::Embedded], async |fixture| {
        fixture.start_operator(&[]).await;
        delay(fixture, "POST", "/deployments", Duration::from_secs(1));
        fixture.create_web("web", json!({"image": "nginx"})).await;
        fixture.operator().until_logged(&["\"reconciling\"", "/web\""]).await;
        // The operator handles one key at a time, and has not begun with this one.
        fixture.create_web("later", json!({"image": "nginx"})).await;
        fixture.stop_operator().await;
        assert_eq!(fixture.transcript().await, ["POST deployments 201", "POST services 201"]);
        assert!(fixture.find("deployments/mws-later").await.is_none());
    })
    .await;
}

#[tokio::test]
async fn a_second_signal_stops_at_once() {
    on(&[Kind::Embedded], async |fixture| {
        fixture.start_operator(&[]).await;
        delay(fixture, "POST", "/deployments", Duration::from_secs(60));
        fixture.create_web("web", json!({"image": "nginx"})).await;
        let operator = fixture.operator();
        operator.until_logged(&["\"reconciling\"", "/web\""]).await;
        operator.signal("TERM");
        operator.until_logged(&["asked to stop", "SIGTERM"]).await;
        operator.signal("INT");
        assert_eq!(operator.ended().await.code(), Some(143));
        assert!(operator.log().contains("asked again"));
    })
    .await;
}

/// Longer than the test, so anything with this delay does not happen.
const NEVER: Duration = Duration::from_secs(600);

/// An Event whose request was under way was not counted as lost.
#[tokio::test]
async fn an_unwritten_event_does_not_delay_the_stop_and_is_reported_as_lost() {
    on(&[Kind::Embedded], async |fixture| {
        fixture.spawn_operator(&[]);
        delay(fixture, "POST", "/events", NEVER);
        fixture.create_web("web", json!({"image": "nginx"})).await;
        fixture.until("mywebservers/web", |web| web["status"]["observedGeneration"] == 1).await;
        fixture.operator().signal("TERM");
        assert_eq!(fixture.operator().ended().await.code(), Some(0));
        let lost = ["WARN", "stopped before all Events were written", "\"events\":1"];
        fixture.operator().until_logged(&lost).await;
    })
    .await;
}

#[tokio::test]
async fn a_hanging_api_server_delays_neither_probes_nor_the_stop() {
    on(&[Kind::Embedded], async |fixture| {
        // Each of its first connections sends the request for the version first.
        delay(fixture, "GET", "/version", NEVER);
        delay(fixture, "GET", "/version", NEVER);
        fixture.spawn_operator(&[]);
        fixture.operator().until_logged(&["answering /livez"]).await;
        assert!(fixture.operator().probe("/livez").await.starts_with("HTTP/1.1 200"));
        fixture.operator().signal("TERM");
        assert_eq!(fixture.operator().ended().await.code(), Some(0));
    })
    .await;
}

#[test]
fn the_demo_of_each_operator_shows_what_it_does() {
    let rollout = [
        "operator  watch    mywebservers",
        "kubectl   create   mywebservers/web",
        r#"server    ADDED    web: spec {"image":"nginx","port":80,"replicas":2}"#,
        "operator  create   deployments/mws-web",
        "server    MODIFIED web: spec.replicas 2 → 3",
        "server    MODIFIED web: Ready=True AllReplicasReady",
        "operator  patch    services/mws-web",
        "server    DELETED  web",
        "The children of web are deleted; the children of hello still exist.",
    ];
    let copies = [
        "operator  watch    configmaps",
        "kubectl   create   copyrators/main-rule",
        "kubectl   create   namespaces/team-a",
        "operator  create   configmaps/settings in team-a",
        "operator  patch    configmaps/settings in team-a",
        "operator  delete   configmaps/settings in team-a",
        "server    DELETED  main-rule",
        "The copy is deleted; the ConfigMap in default still exists.",
    ];
    let caches = [
        "operator  create   deployments/cache",
        "server    MODIFIED cache: Ready=True AllReplicasReady",
        "server    MODIFIED cache: spec.size 3 → 2",
        "operator  create   services/cache",
        "The Deployment has two Pods, whose names are in the status.",
    ];
    let databases = [
        "operator  create   statefulsets/db",
        "server    MODIFIED db: spec.size 2 → 3",
        "operator  patch    configmaps/db-scripts",
        "server    MODIFIED db: spec.version \"15.14\" → \"15.15\"",
        "server    MODIFIED db: spec.size 3 → 2",
        "operator  create   cronjobs/db-backup",
        "server    MODIFIED db: BackupSucceeded=True BackupSucceeded",
        "operator  create   jobs/db-last-backup",
        "operator  delete   statefulsets/db",
        "The claims and the Secrets still exist",
    ];
    // Two pages show steps of the first demo. How often the status changes varies.
    let pages = ["README.md", "docs/demo.md"]
        .map(|page| fs::read_to_string(format!("{}/{page}", crate::ROOT)).unwrap());
    let shown = pages.iter().flat_map(|page| {
        page.lines().skip_while(|line| !line.starts_with("$ kubectl")).take_while(|line| *line != "```")
    });
    let shown = shown.map(|line| line.split_once(" ms  ").map_or(line.trim(), |(_time, rest)| rest));
    let shown: Vec<&str> = shown.filter(|line| !line.starts_with("server    MODIFIED")).collect();
    assert!(shown.len() > 10, "{shown:?}");
    let rollout = [&rollout[..], &shown].concat();
    for (operator, parts) in [
        ("mywebserver", &rollout[..]),
        ("copyrator", &copies[..]),
        ("memcached", &caches[..]),
        ("database", &databases[..]),
    ] {
        let output = listwatch().args(["demo", operator, "--exit"]).output().unwrap();
        let (story, errors) =
            (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
        assert_eq!(output.status.code(), Some(0), "{errors}");
        assert_eq!(errors, "");
        for part in parts {
            assert!(story.contains(part), "no {part:?} in\n{story}");
        }
        assert!(!story.contains("Press Enter"), "{story}");
    }
}

/// `listwatch demo --step --exit` on a terminal of its own, which `script` provides.
fn demo_in_steps() -> (Child, impl FnMut(&str) -> String) {
    let mut command = ends_with_test("script");
    // Without `exec`, a shell could stay between and end at Ctrl-C itself.
    let demo = format!("stty rows 24 cols 80; exec {} demo --step --exit", env!("CARGO_BIN_EXE_listwatch"));
    command.args(["--quiet", "--return", "--command", &demo, "/dev/null"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let until = move |end: &str| {
        let mut text = Vec::new();
        while !text.ends_with(end.as_bytes()) {
            let mut byte = [0];
            stdout.read_exact(&mut byte).unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&text)));
            text.extend(byte);
        }
        String::from_utf8(text).unwrap()
    };
    (child, until)
}

#[test]
fn each_step_of_the_demo_is_announced_and_waits_for_enter() {
    let (mut child, mut until) = demo_in_steps();
    let mut keyboard = child.stdin.take().unwrap();
    let parts =
        ["MyWebserver", "curl -K", "lists", "hello", "web", "replicas", "Deployment", "Service", "DELETED"];
    for (index, part) in parts.iter().enumerate() {
        let announced = until(&format!("Step {} of {}. Press Enter. ", index + 1, parts.len()));
        let (_, announced) = announced.rsplit_once("Next: ").unwrap();
        // A command is copied as it is.
        for line in announced.lines().filter(|line| !line.starts_with("    ")) {
            assert!(line.trim_end().chars().count() <= 80, "{line}");
        }
        assert!(announced.contains("Look for: ") && announced.contains(*part), "{part}: {announced}");
        keyboard.write_all(b"\n").unwrap();
    }
    until("the children of hello still exist.");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn ctrl_c_at_a_step_of_the_demo_ends_it() {
    let (mut child, mut until) = demo_in_steps();
    until("Press Enter. ");
    child.stdin.as_ref().unwrap().write_all(b"\x03").unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn without_a_terminal_the_demo_in_steps_is_refused() {
    let mut command = listwatch();
    command.args(["demo", "--step"]).stdin(Stdio::null());
    assert!(
        refused(command).contains("--step waits for the Enter key, but standard input is not a terminal")
    );
}

/// The clock went on from the end of the tour. After some minutes, the number meant nothing and did not fit its column.
#[tokio::test]
async fn after_the_tour_the_clock_restarts_with_each_change() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("story");
    let child = listwatch().arg("demo").stdout(File::create(&path).unwrap()).spawn().unwrap();
    let _demo = Running { child, stdout: String::new() };
    let until_printed = async |text: &str, times: usize| {
        eventually(text, async || {
            let story = fs::read_to_string(&path).unwrap();
            // An empty line ends each section.
            (story.matches(text).count() == times && story.ends_with("\n\n")).then_some(story)
        })
        .await
    };
    let story = until_printed("Ctrl-C stops both", 1).await;
    let (_, kubeconfig) = story.split_once("export KUBECONFIG='").unwrap();
    let kubeconfig = Path::new(kubeconfig.split('\'').next().unwrap());
    is_private(kubeconfig);
    let of_the_tour: Vec<_> = story.lines().filter_map(|line| line.strip_prefix("$ ")).collect();
    let of_the_tour = of_the_tour.iter().skip_while(|line| !line.starts_with("export API=")).take(2);
    let of_the_tour: String = of_the_tour.map(|line| format!("    {line}\n")).collect();
    for (mut curl, has_list) in
        [(printed_curl(&story), true), (printed_curl(&format!("{of_the_tour}\n")), false)]
    {
        let mut child = curl.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let _curl = Running { child, stdout: String::new() };
        if has_list {
            // Indented, as for any curl.
            let list: String = lines.by_ref().take_while(|line| line != "}").collect();
            assert!(list.contains(r#""kind": "NamespaceList""#), "{list}");
        }
        let event = lines.next().unwrap();
        assert!(
            event.starts_with(r#"{"type":"ADDED","object":{"apiVersion":"k8sobjects.gsa.com/v2""#),
            "{event}"
        );
    }
    let user = UserClient::new(client(kubeconfig));
    let mut after = String::new();
    for (replicas, times) in [(5, 2), (6, 3)] {
        user.patch("mywebservers/hello/scale", json!({"spec": {"replicas": replicas}})).await;
        after = until_printed("MODIFIED hello: Ready=True", times).await.split_off(story.len());
    }
    let clock = |line: &str| line.split(" ms").next().unwrap().trim().parse::<u64>().unwrap();
    let clocks: Vec<u64> = after.lines().filter(|line| line.contains(" ms ")).map(clock).collect();
    // Pods take some time to become ready, so the clock advances before the next change resets it.
    assert!(clocks.windows(2).any(|pair| pair[1] < pair[0]), "{after}");
}

#[test]
fn a_closed_stdout_ends_the_process_with_0() {
    let mut child = listwatch().arg("crd").stdout(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

/// Printing the error panicked, and the exit code was 101.
#[test]
fn with_a_closed_stderr_an_invalid_flag_still_exits_with_2() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let status = listwatch().args(["run", "--nope"]).stderr(writer).status().unwrap();
    assert_eq!(status.code(), Some(2));
}

/// Each command panicked, and the exit code was 101.
#[test]
fn an_argument_that_is_not_utf_8_is_a_path_or_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let odd = OsStr::from_bytes(b"odd\xff");
    fs::write(dir.path().join(odd), "{}").unwrap();
    for (args, cause) in [
        (&["replay"][..], "no `type`, no `kind`"),
        (&["run", "--context"], "invalid UTF-8"),
        (&["get"], "invalid UTF-8"),
    ] {
        let mut command = listwatch();
        command.args(args).arg(odd).current_dir(&dir);
        let stderr = refused(command);
        assert!(stderr.contains(cause) && stderr.lines().count() == 1, "{args:?}: {stderr}");
    }
}

/// The first command hung, the second one created `/dev/stdout-2`, and the third one said to remove `/dev/stdout`.
#[test]
fn a_terminal_or_a_pipe_is_no_file_to_write_to() {
    for (args, flag) in [
        ("apiserver --kubeconfig-out /dev/stdout", "--kubeconfig-out"),
        ("demo --record /dev/stdout", "--record"),
        ("demo --curl /dev/null", "--curl"),
        ("get mws --demo --record /dev/stdout", "--record"),
    ] {
        let Output { status, stderr, .. } = listwatch().args(args.split(' ')).output().unwrap();
        let stderr = String::from_utf8(stderr).unwrap();
        assert_eq!(status.code(), Some(2), "{args}: {stderr}");
        let refusal = "is not a regular file; choose another file";
        assert!(stderr.contains(&format!("listwatch: {flag} /dev/")) && stderr.contains(refusal), "{stderr}");
    }
}

#[test]
fn a_shard_needs_leader_election_and_an_operator_that_can_be_divided() {
    let dir = tempfile::tempdir().unwrap();
    let kubeconfig = json!({
        "clusters": [{"name": "a", "cluster": {"server": "http://127.0.0.1:1"}}],
        "contexts": [{"name": "a", "context": {"cluster": "a"}}], "current-context": "a",
    });
    fs::write(dir.path().join("kubeconfig"), kubeconfig.to_string()).unwrap();
    for (args, cause) in [
        ("mywebserver --shard 1/2", "shard 1/2: needs leader election"),
        ("--shard 1/2 --leader-elect", "--shard: copyrator cannot be divided"),
    ] {
        let mut command = listwatch();
        command.args(["run", "--kubeconfig", "kubeconfig"]).args(args.split(' ')).current_dir(&dir);
        let stderr = refused(command);
        assert!(stderr.contains(cause) && stderr.lines().count() == 1, "{args}: {stderr}");
    }
}

#[test]
fn an_empty_variable_counts_as_unset() {
    let mut command = listwatch();
    command.args(["run", "--kubeconfig", ABSENT]);
    for name in ["LOG_LEVEL", "STREAMING_LISTS", "SERVICE_ACCOUNT_DIR", "REQUEST_TIMEOUT", "AS"] {
        command.env(format!("LISTWATCH_{name}"), "");
    }
    assert!(refused(command).contains(ABSENT));
}

/// As with the flags of Go programs, `=false` overrides the environment. `LISTWATCH_STREAMING_LISTS=1` was refused.
#[test]
fn a_switch_may_have_a_value() {
    for args in ["--streaming-lists=true", "--streaming-lists=no", "--streaming-lists mywebserver"] {
        for value in ["1", "no", "True", "off"] {
            let mut command = listwatch();
            command.args(["run", "--kubeconfig", ABSENT]).args(args.split(' '));
            command.env("LISTWATCH_STREAMING_LISTS", value);
            let stderr = refused(command);
            assert!(stderr.contains(&format!("read kubeconfig {ABSENT}")), "{args} {value}: {stderr}");
        }
    }
}

/// A flag on the command line overrides the variable of the opposite flag. A manifest that set both variables, one of
/// them to `false`, was refused. The namespace has an invalid name, so an error shows whether the namespace is used.
#[test]
fn all_namespaces_and_namespace_conflict_only_within_flags_or_within_variables() {
    let (valid, named) = (&*format!("read kubeconfig {ABSENT}"), "--namespace: \"No\" is not the name");
    let refusal = "--all-namespaces cannot be used with --namespace";
    for (args, namespace, all, watch_namespace, expected) in [
        ("-A", "No", "", "No", valid),
        ("-A=yes", "No", "no", "No", valid),
        ("--all-namespaces", "No", "", "No", valid),
        ("--all-namespaces=false", "No", "1", "", named),
        ("-A=off", "No", "1", "", named),
        ("-A=off", "", "1", "No", "WATCH_NAMESPACE: \"No\""),
        ("-nweb", "No", "1", "No", valid),
        ("--namespace web", "No", "1", "No", valid),
        ("-n web --all-namespaces=false", "No", "1", "No", valid),
        ("-n web -A", "", "", "", refusal),
        ("", "web", "false", "No", valid),
        ("", "No", "off", "", named),
        ("", "", "true", "No", valid),
        ("", "web", "true", "", refusal),
    ] {
        let mut command = listwatch();
        command.args(["run", "--kubeconfig", ABSENT]).args(args.split_whitespace());
        command.env("LISTWATCH_NAMESPACE", namespace).env("LISTWATCH_ALL_NAMESPACES", all);
        command.env("WATCH_NAMESPACE", watch_namespace);
        let stderr = refused(command);
        assert!(stderr.contains(expected), "{args:?} {namespace:?} {all:?} {watch_namespace:?}: {stderr}");
    }
}

#[test]
fn version_is_a_command_as_well_as_a_flag() {
    let print = |arg: &str| String::from_utf8(listwatch().arg(arg).output().unwrap().stdout).unwrap();
    assert_eq!(print("version"), format!("listwatch {}\n", env!("CARGO_PKG_VERSION")));
    assert_eq!(print("version"), print("--version"));
}

#[test]
fn a_shell_completes_commands_and_flags() {
    for shell in ["bash", "zsh", "fish"] {
        let Output { status, stdout, .. } = listwatch().args(["completion", shell]).output().unwrap();
        let script = String::from_utf8(stdout).unwrap();
        assert!(status.success() && script.contains("max-concurrent-reconciles"), "{shell}: {script}");
        if SHELLS.contains(&shell) {
            let parsed = Command::new(shell).args(["-n", "-c", &script]).output().unwrap();
            assert!(parsed.status.success(), "{shell}: {}", String::from_utf8_lossy(&parsed.stderr));
        }
    }
    let bash = listwatch().args(["completion", "bash"]).output().unwrap().stdout;
    // It was hidden from the help alone.
    assert!(!String::from_utf8(bash).unwrap().contains("--rule-namespace"));
    for (words, completed) in
        [("'' c", "crd"), ("run --max", "--max-concurrent-reconciles"), ("get --curl p", "pods")]
    {
        let script = format!(
            "source <(listwatch completion bash); COMP_WORDS=(listwatch {words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); \
             _listwatch listwatch \"${{COMP_WORDS[COMP_CWORD]}}\" \"${{COMP_WORDS[COMP_CWORD-1]}}\"; echo \"${{COMPREPLY[@]}}\""
        );
        let path = Path::new(env!("CARGO_BIN_EXE_listwatch")).parent().unwrap();
        let path = format!("{}:/usr/bin:/bin", path.display());
        let output =
            Command::new("bash").env_clear().env("PATH", path).args(["-c", &script]).output().unwrap();
        let (stdout, stderr) =
            (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
        assert!(stdout.split_whitespace().any(|word| word == completed), "{words}: {stdout}{stderr}");
    }
}

/// The first command wrote the request for Pods, without a word.
#[test]
fn curl_with_a_space_before_its_value_says_which_word_is_the_resource() {
    for (args, note) in [
        ("get --demo --curl pod", "# pod is the RESOURCE here."),
        ("get --demo pod --curl", "# The server of --demo"),
        ("get --demo pods --curl=pod", "# The server of --demo"),
    ] {
        let Output { status, stderr, .. } = listwatch().args(args.split(' ')).output().unwrap();
        let stderr = String::from_utf8(stderr).unwrap();
        assert!(status.success() && stderr.starts_with(note), "{args}: {stderr}");
    }
}

/// A container that is started again finds the files of its predecessor, and must not fail.
#[tokio::test]
async fn an_existing_recording_is_kept_and_the_log_names_the_new_file() {
    on(&[Kind::Embedded], async |fixture| {
        let [recording, script] = ["run.jsonl", "run.sh"].map(|name| fixture.dir.path().join(name));
        for path in [&recording, &script] {
            fs::write(path, "of the predecessor").unwrap();
        }
        let [record, curl] = [&recording, &script].map(|path| path.to_str().unwrap());
        fixture.start_operator(&["--record", record, "--curl", curl]).await;
        for (flag, name) in [("--record", "run-2.jsonl"), ("--curl", "run-2.sh")] {
            fixture.operator().until_logged(&["WARN", "exists", flag, name]).await;
        }
        assert_eq!(fs::read_to_string(&recording).unwrap(), "of the predecessor");
        let script = fs::read_to_string(fixture.dir.path().join("run-2.sh")).unwrap();
        assert!(!script.contains("demo"), "{script}");
        fixture.stop_operator().await;
    })
    .await;
}

#[tokio::test]
async fn without_a_name_all_operators_run_and_their_variables_set_their_flags() {
    on(&[Kind::EmbeddedBare, Kind::RealPaged], async |fixture| {
        for operator in BuiltIn::value_variants() {
            fixture.install(&operator.definitions()[0]).await;
        }
        fixture.create_namespace().await;
        fs::write(fixture.dir.path().join("token"), fixture.admin_token()).unwrap();
        for (resource, sample) in [
            ("mywebservers", "mywebserver/samples/mywebserver-v2.yaml"),
            ("memcacheds", "memcached/samples/memcached.yaml"),
            ("databases", "database/samples/database.yaml"),
        ] {
            fixture.create(resource, &manifests::read(sample)[0]).await;
        }
        // Only the second rule has both the name and the namespace of the variables.
        let elsewhere = UserClient::new(fixture.client.clone());
        for (user, name) in [(&elsewhere, "only"), (fixture, "only"), (fixture, "other")] {
            let rule = json!({
                "apiVersion": "flant.com/v1", "kind": "CopyratorRule", "metadata": {"name": name},
                "ruleType": "configmap", "selector": {"a": "b"},
            });
            user.create("copyrators", &rule).await;
        }
        let variables =
            [("MEMCACHED_IMAGE", "a:1"), ("RULE_NAME", "only"), ("NAMESPACE", &*fixture.namespace)];
        let run = |names: &[&str], args: &[&str]| {
            Operator::run(names, &fixture.url(), fixture.dir.path(), args, &variables)
        };
        let image = async |image: &str| {
            let container =
                |child: &Value| child["spec"]["template"]["spec"]["containers"][0]["image"] == image;
            fixture.until("deployments/cache", container).await;
        };
        let operators = run(&[], &[]);
        for served in ["mywebservers/web", "memcacheds/cache", "databases/db", "copyrators/only"] {
            fixture.until(served, |object| object["status"]["observedGeneration"] == 1).await;
        }
        image("a:1").await;
        drop(operators);
        let _operator = run(&["memcached"], &["--memcached-image", "b:2"]);
        image("b:2").await;
        let others = [elsewhere.get("copyrators/only").await, fixture.get("copyrators/other").await];
        assert!(others.iter().all(|rule| rule["metadata"]["finalizers"].is_null()), "{others:?}");
    })
    .await;
}

/// The command installed the CRDs of all operators.
#[tokio::test]
async fn without_their_crds_each_operator_names_its_own_command() {
    on(&[Kind::EmbeddedBare], async |fixture| {
        fixture.create_namespace().await;
        fs::write(fixture.dir.path().join("token"), fixture.admin_token()).unwrap();
        let operators = Operator::run(&[], &fixture.url(), fixture.dir.path(), &[], &[]);
        for operator in BuiltIn::value_variants() {
            let definitions = operator.definitions();
            let crd = definitions[0]["metadata"]["name"].as_str().unwrap();
            let name = operator.to_possible_value().unwrap();
            let command = format!("{crd}: listwatch crd {} | kubectl apply -f -", name.get_name());
            operators.until_unready(&[&command]).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_missing_namespace_is_logged_if_the_operator_may_read_namespaces() {
    on(&[Kind::Embedded, Kind::Real], async |fixture| {
        let missing = format!("{}-typo", fixture.namespace);
        let names = format!("{},{missing}", fixture.namespace);
        // The operator's account may read only its own namespace, so it does not know the other one.
        fixture.may_be_forbidden.set(true);
        fixture.spawn_operator(&["--namespace", &missing]);
        let refused = ["\"answered\"", &format!("\"/api/v1/namespaces/{missing}\",\"code\":403")];
        fixture.operator().until_logged(&refused).await;
        let log = fixture.operator().log();
        assert!(!log.contains("there is no such namespace"), "{log}");
        let admin = tempfile::tempdir().unwrap();
        for (name, text) in
            [("token", fixture.admin_token()), ("ca.crt", &fixture.ca_pem()), ("namespace", "default")]
        {
            fs::write(admin.path().join(name), text).unwrap();
        }
        let operator = Operator::start(&fixture.url(), admin.path(), &["--namespace", &names]);
        operator.until_logged(&["WARN", "there is no such namespace", &missing]).await;
        operator.until_ready().await;
        assert_eq!(operator.log().matches("there is no such namespace").count(), 1);
    })
    .await;
}

#[tokio::test]
async fn more_than_a_hundred_namespaces_give_a_warning() {
    on(&[Kind::Embedded], async |fixture| {
        fixture.may_be_forbidden.set(true);
        for (others, is_expected) in [(99, false), (100, true)] {
            let names: Vec<_> = (0..others).map(|number| format!("other-{number}")).collect();
            fixture.spawn_operator(&["--namespace", &names.join(",")]);
            fixture.operator().until_logged(&["\"started\""]).await;
            let warning = "each namespace has watches of its own";
            let is_warned =
                fixture.operator().log().lines().any(|line| line.contains("WARN") && line.contains(warning));
            assert_eq!(is_warned, is_expected, "{}", others + 1);
        }
    })
    .await;
}

#[test]
fn verbose_refuses_the_name_of_a_level() {
    let mut command = listwatch();
    command.arg("run").env("LISTWATCH_VERBOSE", "debug");
    let stderr = refused(command);
    assert!(
        stderr.contains("is not 1 for debug or 2 for trace; --log-level takes levels by name"),
        "{stderr}"
    );
    assert!(stderr.contains("(LISTWATCH_VERBOSE); see listwatch run --help"), "{stderr}");
}
