//! What the binary does with what is typed and configured wrong, and with signals.

use std::{
    fs::{self, File},
    path::Path,
    process::{Command, Output},
    time::Duration,
};

use listwatch::{apiserver::Fault, operators::mywebserver::MyWebserver, resource::Key};
use serde_json::json;

use crate::{
    apiserver::{Running, client, is_private},
    hands::eventually,
    operator::{Operator, listwatch},
    world::{Kind, Server, on},
};

fn refused(mut command: Command) -> String {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let said = String::from_utf8(stderr).unwrap();
    assert_eq!(status.code(), Some(2), "{command:?}: {said}");
    assert_eq!(String::from_utf8(stdout).unwrap(), "", "{command:?}");
    said
}

#[test]
fn a_wrong_flag_exits_with_2_and_one_line_with_the_remedy() {
    for (args, flag, remedy) in [
        ("run --nope", "--nope", "--help"),
        ("run bogus", "bogus", "mywebserver"),
        ("run --max-concurrent-reconciles 0", "--max-concurrent-reconciles", "a number from 1 to 1024"),
        ("run --health-probe-bind-address nope", "--health-probe-bind-address", "such as :8081"),
        ("run --request-timeout 0s", "--request-timeout", "such as 30s"),
        ("run --request-timeout 1h", "--request-timeout", "must be 5m at most"),
        ("run --request-timeout soon", "'soon' for '--request-timeout <TIME>': is no time", "such as 30s"),
        ("run --request-timeout 30", "'30' for '--request-timeout <TIME>': is no time", "such as 30s"),
        ("run --log-level loud", "--log-level", "error, warn, info, debug, trace"),
        (
            "run --streaming-lists=maybe",
            "--streaming-lists",
            "is neither true nor false, nor yes, no, on, off, 1 or 0",
        ),
        ("run -A -n web", "--all-namespaces", "cannot be used with"),
        ("completion tcsh", "tcsh", "bash, elvish, fish, powershell, zsh"),
        ("apiserver --port abc", "--port", "is not a number from 0 to 65535"),
        ("apiserver --port 70000", "--port", "is not a number from 0 to 65535"),
        ("demo --port=-1", "--port", "is not a number from 0 to 65535"),
        // An empty value at the end. The first two meant all namespaces and nobody else.
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
        let said = refused(command);
        assert!(said.starts_with("listwatch: ") && said.contains(flag), "{args}: {said}");
        assert!(said.contains(remedy), "{args}: {said}");
        assert_eq!(said.lines().count(), 1, "{args}: {said}");
    }
}

#[test]
fn a_wrong_configuration_exits_with_2_and_one_line() {
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
    for (args, variables, cause) in [
        (vec!["-n", "Bad_Name"], no_variables, "--namespace: \"Bad_Name\" is not the name of a namespace"),
        (
            vec![],
            &[("WATCH_NAMESPACE", "a,Bad_Name")],
            "WATCH_NAMESPACE: \"Bad_Name\" is not the name of a namespace",
        ),
        (vec![], no_variables, "this is no pod: name one of them"),
        (vec!["--kubeconfig", &missing], no_variables, "No such file"),
        (vec!["--kubeconfig", &no_yaml], no_variables, "not YAML"),
        (vec!["--kubeconfig", &empty, "--context", "gone"], no_variables, "no context is called \"gone\""),
        (vec![], &[("KUBECONFIG", &*missing)], "does not exist"),
        (vec![], &[("KUBECONFIG", "/nowhere:/at/all")], "names /nowhere and /at/all, which do not exist"),
        (vec![], &[("LISTWATCH_NAMESPACE", "No")], "; for all of them, give none (LISTWATCH_NAMESPACE)\n"),
        (vec!["-nNo"], &[("LISTWATCH_NAMESPACE", "a")], "; for all of them, give none\n"),
        (vec!["--service-account-dir", &account], no_variables, "KUBERNETES_SERVICE_HOST"),
        (vec!["--service-account-dir", &account], &address, "ca.crt"),
        (vec!["--service-account-dir", &account, "--context", "x"], &address, "give --kubeconfig"),
    ] {
        let mut command = listwatch();
        command.arg("run").args(&args).env("HOME", Path::new("/nonexistent")).envs(variables.iter().copied());
        let said = refused(command);
        assert!(said.starts_with("listwatch: ") && said.contains(cause), "{args:?} {variables:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{args:?} {variables:?}: {said}");
    }
}

#[test]
fn the_environment_stands_in_for_a_flag() {
    let mut command = listwatch();
    command.arg("run").env("LISTWATCH_MAX_CONCURRENT_RECONCILES", "many");
    assert!(refused(command).contains("--max-concurrent-reconciles"));
}

#[tokio::test]
async fn a_port_that_is_taken_is_said_and_exits_with_1() {
    on(&[Kind::Embedded], async |world| {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap().to_string();
        let kubeconfig = world.dir.path().join("kubeconfig");
        let Server::Embedded(server) = &world.server else { unreachable!("asked for above") };
        fs::write(&kubeconfig, server.kubeconfig()).unwrap();
        let mut command = listwatch();
        command.args(["run", "--health-probe-bind-address", &address, "--kubeconfig"]).arg(kubeconfig);
        let output = command.output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("--health-probe-bind-address") && said.contains(&address), "{said}");
        assert!(said.contains("; another port, or 0 for nowhere?"), "{said}");
    })
    .await;
}

fn delay(world: &crate::world::World, method: &str, path: &str, delay: Duration) {
    let Server::Embedded(server) = &world.server else { unreachable!("asked for above") };
    server.fault(Fault::Delay(delay).on(method, path).times(1));
}

#[tokio::test]
async fn asked_to_stop_it_finishes_what_is_in_hand_and_takes_no_more() {
    on(&[Kind::Embedded], async |world| {
        world.start_operator(&[]).await;
        delay(world, "POST", "/deployments", Duration::from_secs(1));
        world.create_web("web", json!({"image": "nginx"})).await;
        world.operator().until_logged(&["\"applied\"", "/web\""]).await;
        // One key at a time: this one is not in hand yet.
        world.create_web("later", json!({"image": "nginx"})).await;
        world.stop_operator().await;
        assert_eq!(world.transcript(), ["POST deployments 201", "POST services 201"]);
        assert!(world.find("deployments/mws-later").await.is_none());
    })
    .await;
}

#[tokio::test]
async fn asked_twice_it_stops_at_once() {
    on(&[Kind::Embedded], async |world| {
        world.start_operator(&[]).await;
        delay(world, "POST", "/deployments", Duration::from_secs(60));
        world.create_web("web", json!({"image": "nginx"})).await;
        let operator = world.operator();
        operator.until_logged(&["\"applied\"", "/web\""]).await;
        operator.signal("TERM");
        operator.until_logged(&["asked to stop", "SIGTERM"]).await;
        operator.signal("INT");
        assert_eq!(operator.ended().await.code(), Some(143));
        assert!(operator.log().contains("asked again"));
    })
    .await;
}

/// Longer than the test: what is delayed by it does not happen.
const NEVER: Duration = Duration::from_secs(600);

/// An Event that was being sent was not counted among the lost ones.
#[tokio::test]
async fn an_event_that_cannot_be_written_does_not_hold_up_the_stopping_and_is_said_to_be_lost() {
    on(&[Kind::Embedded], async |world| {
        world.spawn_operator(&[]);
        delay(world, "POST", "/events", NEVER);
        world.create_web("web", json!({"image": "nginx"})).await;
        world.until("mywebservers/web", |web| web["status"]["observedGeneration"] == 1).await;
        world.operator().signal("TERM");
        assert_eq!(world.operator().ended().await.code(), Some(0));
        let lost = ["WARN", "stopped before all Events were written", "\"events\":1"];
        world.operator().until_logged(&lost).await;
    })
    .await;
}

#[tokio::test]
async fn an_api_server_that_hangs_holds_up_neither_probes_nor_stopping() {
    on(&[Kind::Embedded], async |world| {
        // Each of its first connections asks for the version first.
        delay(world, "GET", "/version", NEVER);
        delay(world, "GET", "/version", NEVER);
        world.spawn_operator(&[]);
        world.operator().until_logged(&["answering /livez"]).await;
        assert!(world.operator().probe("/livez").await.starts_with("HTTP/1.1 200"));
        world.operator().signal("TERM");
        assert_eq!(world.operator().ended().await.code(), Some(0));
    })
    .await;
}

#[test]
fn the_demo_shows_a_web_become_ready_be_mended_and_go() {
    let output = listwatch().args(["demo", "--exit"]).output().unwrap();
    let (story, errors) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert_eq!(output.status.code(), Some(0), "{errors}");
    assert_eq!(errors, "");
    for part in [
        "operator  GET /apis/k8sobjects.gsa.com/v2/mywebservers?watch=1&allowWatchBookmarks=true",
        "watch     {\"type\":\"ADDED\",\"object\":{… \"name\":\"web\"",
        "operator  POST /apis/apps/v1/namespaces/default/deployments  201",
        "\"type\":\"Ready\",\"status\":\"True\",\"reason\":\"AllReplicasReady\"",
        "operator  PATCH /api/v1/namespaces/default/services/mws-web  200",
        "watch     {\"type\":\"DELETED\"",
        "The Deployment and the Service of web are gone with it; hello is still served.",
    ] {
        assert!(story.contains(part), "no {part:?} in\n{story}");
    }
}

/// It went on from the end of the tour: after some minutes a number that meant nothing, and no longer fitted its column.
#[tokio::test]
async fn after_the_tour_the_clock_of_the_demo_starts_anew_with_whatever_happens_next() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("story");
    let child = listwatch().arg("demo").stdout(File::create(&path).unwrap()).spawn().unwrap();
    let _demo = Running { child, said: String::new() };
    let told = async |what: &str| {
        eventually(what, async || {
            let story = fs::read_to_string(&path).unwrap();
            // An empty line ends what belongs together.
            (story.contains(what) && story.ends_with("\n\n")).then_some(story)
        })
        .await
    };
    let story = told("Ctrl-C ends it").await;
    let (_, kubeconfig) = story.split_once("export KUBECONFIG='").unwrap();
    let kubeconfig = Path::new(kubeconfig.split('\'').next().unwrap());
    is_private(kubeconfig);
    let user = client(kubeconfig);
    let mut after = String::new();
    for replicas in [5, 6] {
        user.set_scale::<MyWebserver>(&Key::namespaced("default", "hello"), replicas).await.unwrap();
        let ready = format!(r#""replicas":{replicas} … "type":"Ready","status":"True""#);
        after = told(&ready).await.split_off(story.len());
    }
    let clock = |line: &str| line.split(" ms").next().unwrap().trim().parse::<u64>().unwrap();
    let clocks: Vec<u64> = after.lines().filter(|line| line.contains(" ms ")).map(clock).collect();
    // A Pod takes its time to become ready, so that it has come somewhere before.
    assert!(clocks.windows(2).any(|two| two[1] < two[0]), "{after}");
}

#[test]
fn whoever_closes_our_output_ends_us_quietly() {
    let mut child = listwatch().arg("crd").stdout(std::process::Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

/// Printing the error panicked, which made it exit with 101.
#[test]
fn where_nothing_can_be_said_the_exit_code_still_says_it() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let status = listwatch().args(["run", "--nope"]).stderr(writer).status().unwrap();
    assert_eq!(status.code(), Some(2));
}

#[test]
fn an_empty_variable_is_an_unset_one() {
    let mut command = listwatch();
    command.args(["run", "--kubeconfig", "/nonexistent"]);
    for name in ["LOG_LEVEL", "STREAMING_LISTS", "SERVICE_ACCOUNT_DIR", "REQUEST_TIMEOUT", "AS"] {
        command.env(format!("LISTWATCH_{name}"), "");
    }
    assert!(refused(command).contains("/nonexistent"));
}

/// As flags of Go programs are: `=false` undoes what the environment says. `LISTWATCH_STREAMING_LISTS=1` was refused.
#[test]
fn a_switch_may_have_a_value() {
    for args in ["--streaming-lists=true", "--streaming-lists=no", "--streaming-lists mywebserver"] {
        for value in ["1", "no", "True", "off"] {
            let mut command = listwatch();
            command.args(["run", "--kubeconfig", "/nonexistent"]).args(args.split(' '));
            command.env("LISTWATCH_STREAMING_LISTS", value);
            let said = refused(command);
            assert!(said.contains("read kubeconfig /nonexistent"), "{args} {value}: {said}");
        }
    }
}

/// What is typed wins over the environment's other flag. A manifest that set both variables, one of them to `false`, was
/// refused. A namespace with an invalid name shows whether it counts.
#[test]
fn all_namespaces_and_one_exclude_each_other_only_where_both_are_given_in_the_same_way() {
    let (valid, named) = ("read kubeconfig /nonexistent", "--namespace: \"No\" is not the name");
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
        command.args(["run", "--kubeconfig", "/nonexistent"]).args(args.split_whitespace());
        command.env("LISTWATCH_NAMESPACE", namespace).env("LISTWATCH_ALL_NAMESPACES", all);
        command.env("WATCH_NAMESPACE", watch_namespace);
        let said = refused(command);
        assert!(said.contains(expected), "{args:?} {namespace:?} {all:?} {watch_namespace:?}: {said}");
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
    }
    for (words, completed) in [("'' c", "crd"), ("run --max", "--max-concurrent-reconciles")] {
        let script = format!(
            "source <(listwatch completion bash); COMP_WORDS=(listwatch {words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); \
             _listwatch listwatch \"${{COMP_WORDS[COMP_CWORD]}}\" \"${{COMP_WORDS[COMP_CWORD-1]}}\"; echo \"${{COMPREPLY[@]}}\""
        );
        let path = Path::new(env!("CARGO_BIN_EXE_listwatch")).parent().unwrap();
        let path = format!("{}:/usr/bin:/bin", path.display());
        let output =
            Command::new("bash").env_clear().env("PATH", path).args(["-c", &script]).output().unwrap();
        let (said, errors) =
            (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
        assert!(said.split_whitespace().any(|word| word == completed), "{words}: {said}{errors}");
    }
}

#[tokio::test]
async fn a_namespace_that_does_not_exist_is_named_to_who_may_know() {
    on(&[Kind::Embedded, Kind::Real], async |world| {
        let missing = format!("{}-typo", world.namespace);
        let names = format!("{},{missing}", world.namespace);
        // The operator's account may read its own namespace alone, so it does not know of the other one.
        world.may_be_forbidden.set(true);
        world.spawn_operator(&["--namespace", &missing]);
        let refused = ["\"answered\"", &format!("\"/api/v1/namespaces/{missing}\",\"code\":403")];
        world.operator().until_logged(&refused).await;
        let log = world.operator().log();
        assert!(!log.contains("there is no such namespace"), "{log}");
        let admin = tempfile::tempdir().unwrap();
        for (name, text) in
            [("token", world.admin_token()), ("ca.crt", &world.ca_pem()), ("namespace", "default")]
        {
            fs::write(admin.path().join(name), text).unwrap();
        }
        let operator = Operator::start(&world.url(), admin.path(), &["--namespace", &names]);
        operator.until_logged(&["WARN", "there is no such namespace", &missing]).await;
        operator.until_ready().await;
        assert_eq!(operator.log().matches("there is no such namespace").count(), 1);
    })
    .await;
}

#[tokio::test]
async fn more_than_a_hundred_namespaces_are_warned_about() {
    on(&[Kind::Embedded], async |world| {
        world.may_be_forbidden.set(true);
        for (others, warns) in [(99, false), (100, true)] {
            let names: Vec<_> = (0..others).map(|number| format!("other-{number}")).collect();
            world.spawn_operator(&["--namespace", &names.join(",")]);
            world.operator().until_logged(&["\"started\""]).await;
            let warning = "three watches for each namespace";
            let is_warned =
                world.operator().log().lines().any(|line| line.contains("WARN") && line.contains(warning));
            assert_eq!(is_warned, warns, "{}", others + 1);
        }
    })
    .await;
}

#[test]
fn a_level_is_no_count() {
    let mut command = listwatch();
    command.arg("run").env("LISTWATCH_VERBOSE", "debug");
    let said = refused(command);
    assert!(said.contains("is not 1 for debug or 2 for trace; --log-level takes levels by name"), "{said}");
    assert!(said.contains("(LISTWATCH_VERBOSE); see listwatch run --help"), "{said}");
}
