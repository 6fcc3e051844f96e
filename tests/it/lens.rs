//! `listwatch lens`: our operators get no finding, and files are read. Its findings are tested in `lens/tests/it`.

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    process::{Command, Stdio},
};

use listwatch_apiserver::{ApiServer, Options};
use serde_json::{Value, json};

/// What it prints, and its exit code. The last line of standard error says why.
fn lens(args: &[&str]) -> (String, Option<i32>, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_listwatch"))
        .current_dir(crate::ROOT)
        .arg("lens")
        .args(args)
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (text(output.stdout), output.status.code(), text(output.stderr))
}

/// A line of standard error.
const PAGE: &str = "the page: http://127.0.0.1:";

#[test]
fn the_demo_and_the_api_server_have_the_page_if_asked() {
    for (args, has_page) in [
        (&["demo", "--exit", "--lens"][..], true),
        (&["apiserver", "--stop-with-stdin", "--lens"], true),
        (&["apiserver", "--stop-with-stdin"], false),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_listwatch"));
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let (stdin, mut error) = (process.stdin.take(), BufReader::new(process.stderr.take().unwrap()));
        let mut line = String::new();
        if has_page {
            error.read_line(&mut line).unwrap();
        }
        drop(stdin);
        error.read_to_string(&mut line).unwrap();
        let code = process.wait().unwrap().code();
        assert_eq!((code, line.starts_with(PAGE)), (Some(0), has_page), "{args:?}: {line}");
    }
}

#[test]
fn our_operators_get_no_finding() {
    let program = env!("CARGO_BIN_EXE_listwatch");
    for operator in ["copyrator", "database", "memcached", "mywebserver"] {
        let [crd, sample] = ["crd", "samples"].map(|folder| format!("manifests/{operator}/{folder}"));
        let ports = ["health-probe", "metrics", "debug"].map(|of| format!("--{of}-bind-address=0"));
        // On a busy machine, it may not have begun after three seconds.
        let has_written = ["3s", "9s", "27s", "81s"].iter().any(|time| {
            let mut args = vec!["--crd", &crd, "--sample", &sample, "--for", time, "--output", "json"];
            args.extend(["--", program, "run", operator]);
            args.extend(ports.iter().map(String::as_str));
            let (text, code, error) = lens(&args);
            let report: Value = serde_json::from_str(&text).expect(&error);
            assert_eq!((code, &report["findings"]), (Some(0), &json!([])), "{operator}: {report:#}");
            assert!(error.starts_with(PAGE), "{error}");
            let writes = report["writes"].as_array().unwrap();
            let (mut causes, mut others) = (0, 0);
            for write in writes {
                causes += write["causes"].as_array().unwrap().len();
                others += write["others"].as_array().unwrap().len();
                assert_eq!(write["certain"], true, "{operator}: {write}");
            }
            assert!(causes > others || writes.is_empty(), "{operator}: {report:#}");
            !writes.is_empty()
        });
        assert!(has_written, "{operator}");
    }
}

/// In another language than ours.
#[test]
fn the_loop_that_readme_lets_one_try_is_found() {
    let args =
        "--crd examples/lens/crd.yaml --sample examples/lens/page.yaml -- python3 examples/lens/loop.py";
    for page in ["README.md", "docs/lens.md", "examples/lens/loop.py"] {
        let text = fs::read_to_string(format!("{}/{page}", crate::ROOT)).unwrap();
        assert!(text.contains(&format!("cargo run -- lens {args}")), "{page}");
    }
    if Command::new("python3").arg("--version").output().is_err() {
        assert!(std::env::var_os("CI").is_none(), "python3 is not there");
        return;
    }
    // On a busy machine, there may not be ten writes after three seconds.
    let is_found = ["3s", "9s", "27s", "81s"].iter().any(|time| {
        let mut all = vec!["--for", time, "--output", "json"];
        all.extend(args.split(' '));
        let (text, _, error) = lens(&all);
        let report: Value = serde_json::from_str(&text).expect(&error);
        report["findings"].as_array().unwrap().iter().any(|finding| finding["rule"] == "wakes-itself")
    });
    assert!(is_found);
}

/// The 410 of a version that the server no longer has is an event of the watch.
#[test]
fn what_watch_records_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("watch.jsonl");
    let path = file.to_str().unwrap();
    let watch = ["watch", "mws", "--demo", "--resource-version", "1", "--record", path];
    let output = Command::new(env!("CARGO_BIN_EXE_listwatch")).args(watch).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let (html, code, error) = lens(&[path, "--output", "html"]);
    assert_eq!((code, &*error), (Some(0), ""), "{html}");
    for part in [r#""client":"listwatch""#, r#""verb":"watch""#, r#""event":"ERROR""#] {
        assert!(html.contains(part), "no {part} in {html}");
    }
}

#[tokio::test]
async fn in_a_cluster_a_program_is_recorded_through_the_proxy() {
    let server = ApiServer::start(Options::default()).await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let kubeconfig = dir.path().join("kubeconfig");
    fs::write(&kubeconfig, server.kubeconfig()).unwrap();
    let program = env!("CARGO_BIN_EXE_listwatch");
    let mut lens = tokio::process::Command::new(program);
    lens.args(["lens", "--cluster", "--output", "json", "--kubeconfig"]).arg(&kubeconfig);
    lens.args(["--", program, "get", "configmaps"]).env("TMPDIR", dir.path());
    let output = lens.output().await.unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).expect(&error);
    assert_eq!((output.status.code(), &report["findings"]), (Some(0), &json!([])), "{report:#}");
    let client = report["clients"][0].as_str().unwrap();
    assert!(client.starts_with("listwatch/"), "{client}");
    assert!(error.starts_with("recording requests to https://127.0.0.1:"), "{error}");
    let left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["kubeconfig"]);
}

#[test]
fn a_recording_is_read_from_files_and_directories() {
    let dir = tempfile::tempdir().unwrap();
    let line = |id: u32| {
        format!(
            r#"{{"id":{id},"received":"2026-01-01T00:00:00.{id}Z","time":"2026-01-01T00:00:00.{id}Z","user":"jane","userAgent":"","method":"POST","target":"/api/v1/namespaces/a/pods","resource":"pods","namespace":"a","name":"","status":403,"resourceVersion":"1"}}"#
        )
    };
    fs::write(dir.path().join("requests.jsonl"), (1..4).map(|id| line(id) + "\n").collect::<String>())
        .unwrap();
    fs::write(dir.path().join("operator.log"), "not read").unwrap();
    let (text, code, error) = lens(&[dir.path().to_str().unwrap()]);
    assert_eq!((code, &*error), (Some(1), "listwatch: 1 problem\n"), "{text}");
    assert!(
        text.starts_with("1 finding\n\n1. forbidden: jane may not create pods: 403, 3 times in 0.2 s\n"),
        "{text}"
    );
    let (html, code, _) = lens(&[dir.path().to_str().unwrap(), "--output", "html"]);
    assert_eq!(code, Some(1));
    assert!(html.starts_with("<!doctype html>") && html.contains(r#""rule":"forbidden""#), "{html}");
    let log = dir.path().join("operator.log");
    for (path, expected) in
        [("nowhere", "nowhere: No such file or directory"), (log.to_str().unwrap(), "operator.log, line 1: ")]
    {
        let (_, code, error) = lens(&[path]);
        assert_eq!(code, Some(2), "{error}");
        assert!(error.contains(expected), "{error}");
    }
    let (_, code, error) = lens(&["--crd", "manifests/memcached/crd", "--", "true"]);
    assert_eq!(code, Some(2));
    assert!(error.contains("--sample <FILE>"), "{error}");
}
