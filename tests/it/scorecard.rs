//! `listwatch scorecard`: what it prints, and that it leaves no process. Its checks are tested in `scorecard/tests/it`.

use std::{
    env, fs, iter,
    path::Path,
    process::{Command, Output, Stdio},
    thread,
    time::Duration,
};

use serde_json::Value;

const CRD: &str = "manifests/memcached/crd";
const SAMPLE: &str = "manifests/memcached/samples";

fn scorecard(args: &[&str], command: &[&str]) -> Command {
    let mut scorecard = Command::new(env!("CARGO_BIN_EXE_listwatch"));
    scorecard.current_dir(crate::ROOT);
    scorecard.args(["scorecard", "--crd", CRD, "--sample", SAMPLE]).args(args).arg("--").args(command);
    scorecard
}

/// Without COMMAND, an invalid sample is a finding; with it, the operator cannot be judged. Of an invalid CRD, the code was 2 in both cases.
#[test]
fn an_invalid_file_is_a_failure_or_with_a_command_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let file = dir.path().join(name);
        fs::write(&file, text).unwrap();
        file.to_str().unwrap().to_owned()
    };
    let samples = ["a", "b"].map(|name| {
        format!("---\n{{apiVersion: cache.example.com/v1, kind: Memcached, metadata: {{name: {name}}}, spec: {{size: x}}}}\n")
    });
    let sample = file("a.yaml", &samples.concat());
    let crd = file(
        "b.yaml",
        "{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: b}}",
    );
    for (flag, file) in [("--sample", &sample), ("--crd", &crd)] {
        for (command, code) in [(&[][..], 1), (&["true"], 2)] {
            let output = run(&[flag, file], command);
            assert_eq!(output.status.code(), Some(code), "{output:?}");
            let stdout = String::from_utf8(output.stdout).unwrap();
            assert!(stdout.contains("FAIL  sample-valid "), "{stdout}");
            // Not only the first difference.
            assert_eq!(
                stdout.contains("\n        and Memcached b when created is "),
                flag == "--sample",
                "{stdout}"
            );
        }
    }
}

/// A CRD without a sample is a warning.
#[test]
fn a_warning_fails_only_if_asked() {
    let dir = tempfile::tempdir().unwrap();
    let crd = dir.path().join("crd.yaml");
    let schema =
        "{type: object, description: A page., properties: {spec: {type: object, description: A text.}}}";
    let version = format!("{{name: v1, served: true, storage: true, schema: {{openAPIV3Schema: {schema}}}}}");
    let names = "{plural: pages, singular: page, kind: Page, listKind: PageList}";
    let spec = format!("{{group: example.org, scope: Namespaced, names: {names}, versions: [{version}]}}");
    let kind = "apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition";
    fs::write(&crd, format!("{{{kind}, metadata: {{name: pages.example.org}}, spec: {spec}}}")).unwrap();
    let crd = crd.to_str().unwrap();
    for (args, code, error) in [
        (&["--crd", crd, "--only", "sample-valid"][..], 0, ""),
        (
            &["--crd", crd, "--only", "sample-valid", "--fail-on", "warn"],
            1,
            "0 of 1 checks failed, and 1 warned",
        ),
        (&["--only", "sample-valid", "--fail-on", "warn"], 0, ""),
    ] {
        let output = run(args, &[]);
        let text = String::from_utf8(output.stderr.clone()).unwrap();
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        assert!(text.contains(error), "{text}");
    }
}

fn run(args: &[&str], command: &[&str]) -> Output {
    scorecard(args, command).output().unwrap()
}

#[test]
fn an_operator_of_ours_converges_is_quiet_and_takes_over() {
    let ports = ["health-probe", "metrics", "debug"].map(|of| format!("--{of}-bind-address=0"));
    let mut memcached = vec![env!("CARGO_BIN_EXE_listwatch"), "run", "memcached"];
    memcached.extend(ports.iter().map(String::as_str));
    // The path of the program may have spaces.
    let (dir, paths) = (Path::new(memcached[0]).parent().unwrap(), env::var_os("PATH").unwrap());
    let paths = env::join_paths(iter::once(dir.to_owned()).chain(env::split_paths(&paths))).unwrap();
    let previous = format!("listwatch {}", memcached[1..].join(" "));
    let only = ["converges", "quiet", "upgrade"].map(|check| ["--only", check]).concat();
    let args = [&only[..], &["--previous", &previous, "--output", "json"]].concat();
    let output = scorecard(&args, &memcached).env("PATH", paths).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let results = report["checks"].as_array().unwrap().iter().map(|check| &check["result"]);
    assert_eq!(results.collect::<Vec<_>>(), ["pass", "pass", "pass"], "{report}");
}

#[test]
fn the_faults_of_a_check_are_listed_as_only_takes_them() {
    let ports = ["health-probe", "metrics", "debug"].map(|of| format!("--{of}-bind-address=0"));
    let mut memcached = vec![env!("CARGO_BIN_EXE_listwatch"), "run", "memcached"];
    memcached.extend(ports.iter().map(String::as_str));
    let faults = |args: &[&str]| {
        let output = run(args, &memcached);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let text = faults(&["--list-faults", "comes-back"]);
    assert!(!text.is_empty() && text.lines().all(|line| line.starts_with(".spec.")), "{text}");
    let text = faults(&["--list-faults", "two-operators", "--and", &memcached.join(" ")]);
    assert!(text.contains("after/create/deployments.apps/default/cache#1\n"), "{text}");
}

#[test]
fn what_cannot_be_judged_is_one_line_and_code_2() {
    for (args, command, error) in [
        (&[][..], "no-such-program", "COMMAND no-such-program: No such file or directory (os error 2)"),
        (&[], "false", "COMMAND ended before its first request: exit status: 1: it wrote no log"),
        (&["--settle", "0"], "true", "invalid value '0' for '--settle <TIME>': must be longer than nothing"),
        (&["--list-faults", "quiet"], "true", "--list-faults quiet: only these have faults to choose from: "),
        (&["--jobs", "0"], "true", "invalid value '0' for '--jobs <N>': 0 is not in 1..=64"),
        (
            &["--sample", "nowhere.yaml"],
            "true",
            "--sample nowhere.yaml: No such file or directory (os error 2)",
        ),
        (
            &["--crd", SAMPLE],
            "true",
            "--sample: Memcached \"cache\": memcacheds.cache.example.com \"cache\" already exists",
        ),
    ] {
        let output = run(args, &[command]);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), text.lines().count()), (Some(2), 1), "{text}");
        assert!(text.starts_with("listwatch: ") && text.contains(error), "{text}");
    }
}

/// Only a failure kept them.
#[test]
fn a_warning_keeps_its_files() {
    let ports = ["health-probe", "metrics", "debug"].map(|of| format!("--{of}-bind-address=0"));
    let mut memcached = vec![env!("CARGO_BIN_EXE_listwatch"), "run", "memcached"];
    memcached.extend(ports.iter().map(String::as_str));
    let dir = tempfile::tempdir().unwrap();
    // The operator settles without Events.
    let shipped = Path::new(crate::ROOT).join("manifests/memcached/operator/role.yaml");
    let role = fs::read_to_string(shipped).unwrap().replace("resources: [events]", "resources: [others]");
    let (file, out) = (dir.path().join("role.yaml"), dir.path().join("out"));
    fs::write(&file, role).unwrap();
    let [rbac, dir] = [&file, &out].map(|path| path.to_str().unwrap());
    let output = run(&["--only", "shipped-role", "--rbac", rbac, "--output-dir", dir], &memcached);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let files = out.join("shipped-role");
    assert!(
        text.starts_with("warn  shipped-role ") && text.contains(&format!("files: {}", files.display())),
        "{text}"
    );
    let requests = fs::read_to_string(files.join("requests.jsonl")).unwrap();
    assert!(requests.lines().any(|line| line.contains("/events") && line.contains("403")), "{requests}");
    for file in ["writes.jsonl", "operator.log"] {
        assert_ne!(fs::metadata(files.join(file)).unwrap().len(), 0, "{file}");
    }
}

/// Those of a failure stayed, and looked as if they were of this run.
#[test]
fn files_of_an_earlier_run_are_removed_and_no_others() {
    let dir = tempfile::tempdir().unwrap();
    for file in ["quiet/writes.jsonl", "converges/writes.jsonl", "converges/notes.txt", "mine/writes.jsonl"] {
        let file = dir.path().join(file);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, "").unwrap();
    }
    let output = run(&["--only", "sample-valid", "--output-dir", dir.path().to_str().unwrap()], &[]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let exists = |file: &str| dir.path().join(file).exists();
    assert!(!exists("quiet") && !exists("converges/writes.jsonl"));
    assert!(exists("converges/notes.txt") && exists("mine/writes.jsonl"));
}

/// SIGKILL leaves the directories of the runs. The next scorecard removes them, but not the directories of one that still runs.
#[test]
fn directories_of_a_killed_run_are_removed() {
    let dir = tempfile::tempdir().unwrap();
    let [left, locked, other] = ["scorecard-left", "scorecard-locked", "other"].map(|name| {
        let path = dir.path().join(format!("listwatch-{name}"));
        fs::create_dir(&path).unwrap();
        path
    });
    fs::write(left.join("lock"), "").unwrap();
    fs::write(other.join("lock"), "").unwrap();
    let lock = fs::File::create(locked.join("lock")).unwrap();
    lock.lock().unwrap();
    let output = scorecard(&["--only", "crd-schema"], &[]).env("TMPDIR", dir.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!([left.exists(), locked.exists(), other.exists()], [false, true, true]);
}

#[test]
fn a_signal_leaves_no_process() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("pid");
    let script = format!("echo $$ > {0}.new; mv {0}.new {0}; sleep 1000", file.display());
    let mut command = scorecard(&[], &["sh", "-c", &script]);
    let child = command.env("TMPDIR", dir.path()).stderr(Stdio::piped()).spawn().unwrap();
    while !file.exists() {
        thread::sleep(Duration::from_millis(10));
    }
    let kill = |args: &[&str]| Command::new("kill").args(args).stderr(Stdio::null()).status().unwrap();
    assert!(kill(&["-s", "INT", &child.id().to_string()]).success());
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), &*text), (Some(2), "listwatch: interrupted: the operator is killed\n"));
    let group = format!("-{}", fs::read_to_string(&file).unwrap().trim());
    // The killed processes may still be zombies for a moment.
    while kill(&["-0", "--", &group]).success() {
        thread::sleep(Duration::from_millis(10));
    }
    let mut left: Vec<_> =
        fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    // Two operators run at once, and one may be killed before its `mv`.
    left.retain(|name| name != "pid" && name != "pid.new");
    assert!(left.is_empty(), "{left:?}");
}
