//! Tests `listwatch new`: what it refuses, and that it overwrites nothing. `tests/e2e/new` builds and runs what it writes.

use std::{fs, path::Path, process::Output};

use crate::operator::listwatch;

fn new(dir: &Path, args: &[&str]) -> Output {
    listwatch().current_dir(dir).arg("new").args(args).output().unwrap()
}

#[test]
fn a_crate_has_what_was_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let args = [
        "--group",
        "example.com",
        "--kind",
        "Policy",
        "--child",
        "service,configmap",
        "--git",
        "https://example.com/x",
    ];
    let output = new(dir.path(), &[&["team-policies"], &args[..]].concat());
    assert!(output.status.success(), "{output:?}");
    let read = |file: &str| fs::read_to_string(dir.path().join("team-policies").join(file)).unwrap();
    let main = read("src/main.rs");
    for text in [
        "the objects of the kind Policy become a ConfigMap and a Service.",
        r#"listwatch::kind!(Policy, "example.com", "v1", "policies");"#,
        "services: Children<Service>,",
    ] {
        assert!(main.contains(text), "{text}\n{main}");
    }
    let absent = ["Deployment", "FINALIZER", "//~", "__"];
    assert!(absent.iter().all(|text| !main.contains(text)), "{main}");
    assert!(read("Cargo.toml").contains(r#"listwatch = { git = "https://example.com/x","#));
    assert_eq!(read("sample.yaml").lines().count(), 7);
    assert!(read("README.md").contains("--sample sample.yaml -- target/debug/team-policies\n"));

    // A second time, and in a directory that has only one file of it.
    for _ in 0..2 {
        let again = new(dir.path(), &[&["team-policies"], &args[..]].concat());
        let errors = String::from_utf8(again.stderr).unwrap();
        assert_eq!(errors, "listwatch: team-policies exists: choose another name, or another directory\n");
        assert_eq!(again.status.code(), Some(2));
        fs::remove_file(dir.path().join("team-policies/Cargo.toml")).unwrap_or_default();
    }
}

#[test]
fn a_kind_is_added_to_a_crate() {
    let dir = tempfile::tempdir().unwrap();
    let output = new(dir.path(), &["shop", "--group", "example.com", "--kind", "Shop", "--git", "x"]);
    assert!(output.status.success(), "{output:?}");
    let dir = dir.path().join("shop");
    let main = fs::read_to_string(dir.join("src/main.rs")).unwrap();
    let output = new(&dir, &["--group", "example.org", "--kind", "Shelf", "--child", "service"]);
    let lines = String::from_utf8(output.stdout).unwrap();
    assert!(lines.contains("\n    mod shelf;\n"), "{lines}");
    assert!(lines.contains("\n        let runtime = shelf::add(runtime);\n"), "{lines}");
    let read = |file: &str| fs::read_to_string(dir.join(file)).unwrap();
    let module = read("src/shelf.rs");
    assert!(
        module.contains("pub(crate) fn add(runtime: Runtime) -> Runtime {") && !module.contains("fn main"),
        "{module}"
    );
    assert!(read("src/shelf/tests.rs").contains(r#"include_str!("../../sample-shelf.yaml")"#));
    assert!(read("sample-shelf.yaml").contains("kind: Shelf\n"));
    assert_eq!(read("src/main.rs"), main);
    let output = new(&dir, &["--group", "example.org", "--kind", "ShelfPolicy", "--without-operator"]);
    assert!(output.status.success(), "{output:?}");
    let policy = read("src/shelfpolicy.rs");
    assert!(policy.contains("pub(crate) fn add(") && !policy.contains("Operator"), "{policy}");
    assert!(!dir.join("src/shelfpolicy").exists());
    assert!(read("sample-shelfpolicy.yaml").ends_with("spec:\n  example: text\n"));

    let outside = tempfile::tempdir().unwrap();
    for (dir, args, problem) in [
        (&*dir, &["--kind", "Shelf"][..], "src/shelf.rs exists: choose another kind"),
        (&dir, &["--kind", "Shop"], "src/main.rs has the kind Shop: choose another kind; another version"),
        (&dir, &["--kind", "Main"], "src/main.rs exists: choose another kind"),
        (&dir, &["--kind", "Serde"], "--kind Serde: the module would hide a crate"),
        (&dir, &["--kind", "Rack", "--git", "x"], "NAME"),
        (&dir, &["rack", "--kind", "Rack"], "--git <URL>"),
        (&dir, &["--kind", "Rack", "--without-operator", "--finalizer"], "--without-operator"),
        (outside.path(), &["--kind", "Rack"], "in this directory is no crate with an operator: give a NAME"),
    ] {
        let output = new(dir, &[args, &["--group", "example.org"]].concat());
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(errors.contains(problem) && errors.lines().count() == 1, "{args:?}: {errors}");
        assert_eq!(output.status.code(), Some(2), "{errors}");
    }
    assert_eq!(read("src/shelf.rs"), module);
}

/// In the order of the table: the first in an empty directory, the others in the new crate.
#[test]
fn the_commands_beside_the_operator_sdk_work() {
    let dir = tempfile::tempdir().unwrap();
    let page = include_str!("../../docs/operator-sdk.md");
    let commands: Vec<&str> =
        page.lines().filter_map(|line| line.rsplit_once("| `listwatch ")?.1.split('`').next()).collect();
    assert!(commands.len() >= 3, "{commands:?}");
    for (index, command) in commands.into_iter().enumerate() {
        let dir = if index == 0 { dir.path().to_owned() } else { dir.path().join("memcached-operator") };
        let (command, file) = command.split_once(" > ").unwrap_or((command, ""));
        let output = listwatch().current_dir(&dir).args(command.split(' ')).output().unwrap();
        assert!(output.status.success(), "{command}: {output:?}");
        assert!(file.is_empty() || output.stdout.starts_with(b"//! "), "{command}: {output:?}");
    }
}

/// A name that the crate or its tests import from elsewhere would hide the kind.
#[test]
fn each_type_that_a_crate_imports_is_refused_as_a_kind() {
    let dir = tempfile::tempdir().unwrap();
    let args = [
        "all",
        "--group",
        "example.com",
        "--kind",
        "Shop",
        "--child",
        "configmap,deployment,ingress,cronjob,claim",
    ];
    let output = new(dir.path(), &[&args[..], &["--finalizer", "--git", "x"]].concat());
    assert!(output.status.success(), "{output:?}");
    let word = regex::Regex::new(r"\b[A-Z][a-z][A-Za-z]*\b").unwrap();
    for file in ["src/main.rs", "src/tests.rs"] {
        let text = fs::read_to_string(dir.path().join("all").join(file)).unwrap();
        let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        for line in code.filter(|line| !line.contains('"')) {
            for kind in
                word.find_iter(line).map(|found| found.as_str()).filter(|kind| !kind.starts_with("Shop"))
            {
                // Those behind `::` have a type before them.
                if line.contains(&format!("::{kind}")) || ["Kind", "Merge"].contains(&kind) {
                    continue;
                }
                let output = new(dir.path(), &["x", "--group", "example.com", "--kind", kind, "--git", "x"]);
                assert_eq!(output.status.code(), Some(2), "{file} uses {kind}: {line}");
            }
        }
    }
}

#[test]
fn each_wrong_name_is_refused_with_one_line_and_nothing_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let absent = crate::ABSENT;
    for (name, group, kind, more, problem) in [
        ("Shop", "example.com", "Shop", &[][..], "is not a name of at most 40"),
        ("1shop", "example.com", "Shop", &[], "does not begin with a letter"),
        ("match", "example.com", "Shop", &[], "is a word of Rust, cargo or YAML"),
        ("../shop", "example.com", "Shop", &[], "is not a name of at most 40"),
        ("listwatch", "example.com", "Shop", &[], "is the name of the library"),
        ("shop", "example", "Shop", &[], "is not a domain"),
        ("shop", "Example.com", "Shop", &[], "is not a domain"),
        ("shop", "batch.k8s.io", "Shop", &[], "belongs to Kubernetes"),
        ("shop", "example.com", "shop", &[], "is not a name in CamelCase"),
        ("shop", "example.com", "Deployment", &[], "is the name of a type"),
        ("shop", "example.com", "Client", &[], "is the name of a type"),
        ("shop", "example.com", "Null", &[], "is a word of Rust, cargo or YAML"),
        ("null", "example.com", "Shop", &[], "is a word of Rust, cargo or YAML"),
        ("shop", "example.com", "Shop", &["--version", "1"], "is not a version such as v1"),
        ("shop", "example.com", "Shop", &["--version", "v1gamma1"], "is not a version such as v1"),
        ("shop", "example.com", "Shop", &["--plural", "Shops"], "is not a word in lower case"),
        ("shop", "example.com", "Shop", &["--child", "pod"], "invalid value 'pod' for '--child <KIND>'"),
        ("shop", "example.com", "Shop", &["--git", "a\"b"], "is not a URL"),
        ("shop", "example.com", "Shop", &["--path", absent], "No such file or directory"),
        ("shop", "example.com", "Shop", &["--path", "."], "is not a clone of listwatch"),
    ] {
        let source = if more.iter().any(|flag| ["--git", "--path"].contains(flag)) {
            &[][..]
        } else {
            &["--git", "x"]
        };
        let output = new(dir.path(), &[&[name, "--group", group, "--kind", kind], source, more].concat());
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(
            errors.contains(problem) && errors.lines().count() == 1,
            "{name} {group} {kind} {more:?}: {errors}"
        );
        assert_eq!(output.status.code(), Some(2), "{errors}");
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}
