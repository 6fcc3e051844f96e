//! Each line of `kubectl.txt` is a value in YAML, `⏎` for a line end, and how kubectl reads it. With `KUBEBUILDER_ASSETS`,
//! kubectl is asked.

#![allow(clippy::unwrap_used, reason = "a failed unwrap names its line")]

use std::{
    env,
    io::Write,
    path::Path,
    process::{Command, Stdio},
};

use serde_json::Value;

/// The object that a value is in, and the value.
fn rows() -> Vec<(String, Option<Value>)> {
    let mut rows = Vec::new();
    for line in include_str!("kubectl.txt").lines() {
        let (yaml, json) = line.split_once(" → ").unwrap();
        let yaml = yaml.replace('⏎', "\n");
        let object =
            format!("apiVersion: example.com/v1\nkind: Value\nmetadata: {{name: v}}\nvalue: {yaml}\n");
        rows.push((object, (json != "error").then(|| serde_json::from_str(json).unwrap())));
    }
    rows
}

/// Numbers are compared as floats, because Go has read those above 2^63 as such.
fn is_same(found: &Value, wanted: &Value) -> bool {
    found == wanted || found.as_f64().is_some_and(|found| wanted.as_f64() == Some(found))
}

#[test]
fn values_are_read_as_kubectl_reads_them() {
    for (object, wanted) in rows() {
        let found = listwatch_yaml::read(&object).ok().map(|mut object| object["value"].take());
        let is_as_wanted = match (&found, &wanted) {
            (Some(found), Some(wanted)) => is_same(found, wanted),
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        };
        assert!(is_as_wanted, "{object}read as {found:?}, not {wanted:?}");
    }
}

#[test]
fn a_document_may_be_empty() {
    for (text, count) in [("", 1), ("# A note.\n", 1), ("---\n---\n", 2), ("a: 1\n---\n", 2)] {
        let read: Result<Vec<Value>, _> = listwatch_yaml::documents(text).collect();
        let read = read.unwrap_or_else(|error| panic!("{text:?}: {error}"));
        assert_eq!((read.len(), read.last()), (count, Some(&Value::Null)), "{text:?}");
    }
}

/// Changes nothing: the objects have the label.
fn kubectl(assets: &Path, objects: &str) -> Option<Vec<Value>> {
    let mut command = Command::new(assets.join("kubectl"));
    command.args(["label", "--local", "--filename=-", "--output=json", "a=b"]).stderr(Stdio::null());
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(objects.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let objects = serde_json::Deserializer::from_slice(&output.stdout).into_iter();
    output.status.success().then(|| objects.map(Result::unwrap).collect())
}

#[test]
fn the_table_is_what_kubectl_reads() {
    let Some(assets) = env::var_os("KUBEBUILDER_ASSETS") else { return };
    let assets = Path::new(&assets);
    let (valid, invalid): (Vec<_>, Vec<_>) = rows().into_iter().partition(|(_, wanted)| wanted.is_some());
    let objects: Vec<&str> = valid.iter().map(|(object, _)| &**object).collect();
    let read = kubectl(assets, &objects.join("---\n")).unwrap();
    assert_eq!(read.len(), valid.len());
    for (read, (object, wanted)) in read.iter().zip(&valid) {
        let wanted = wanted.as_ref().unwrap();
        assert!(is_same(&read["value"], wanted), "{object}read as {}, not {wanted}", read["value"]);
    }
    for (object, _) in invalid {
        assert_eq!(kubectl(assets, &object), None, "{object}");
    }
}
