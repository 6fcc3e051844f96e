//! What is no finding, although it looks like one.

use listwatch_lens::{Recording, Report};
use serde_json::{Value, json};

/// The names of the findings about the client `pages` in a record with these lines. Each has its second, which is also its id and its version.
fn found(lines: &[Value]) -> Vec<&'static str> {
    let text = lines.iter().map(|line| format!("{line}\n")).collect::<String>();
    let mut recording = Recording::read(&[("a".to_owned(), text)]).unwrap();
    recording.runs_until = Some(humantime::parse_rfc3339("2026-01-01T00:01:00Z").unwrap());
    Report::of(&recording).findings.into_iter().map(|finding| finding.rule).collect()
}

fn time(second: u32) -> String {
    format!("2026-01-01T00:00:{second:02}Z")
}

fn request(second: u32, user: &str, method: &str, query: &str) -> Value {
    let name = if method == "GET" { "" } else { "a" };
    json!({"id": second, "received": time(second), "time": time(second), "user": user, "method": method,
        "target": format!("/apis/example.com/v1/namespaces/default/pages/{name}?{query}"), "resource": "pages.example.com",
        "namespace": "default", "name": name, "subresource": "", "status": 200, "resourceVersion": second.to_string(),
        "listVersion": second.to_string()})
}

fn write(second: u32, changed: &str, metadata: Value) -> Value {
    let mut object = json!({"metadata": metadata});
    object["metadata"]["name"] = "a".into();
    object["metadata"]["namespace"] = "default".into();
    object["metadata"]["resourceVersion"] = second.to_string().into();
    let event = if changed.is_empty() { "ADDED" } else { "MODIFIED" };
    json!({"type": event, "resource": "pages.example.com", "object": object, "changed": [changed], "request": second, "time": time(second)})
}

const WATCH: &str = "watch=1&resourceVersion=1&allowWatchBookmarks=true&timeoutSeconds=300";

#[test]
fn only_an_update_without_a_label_of_another_client_takes_it_away() {
    let case = |setter: &str, key: &str, method: &str, is_known: bool| {
        let (path, labels) = (format!(".metadata.labels.{key}"), json!({"labels": {key: "1"}}));
        let set = if is_known { path.as_str() } else { ".spec" };
        found(&[
            request(1, setter, "PATCH", ""),
            write(1, set, labels),
            request(2, "pages", method, ""),
            write(2, &path, json!({})),
        ])
    };
    assert_eq!(case("jane", "team", "PUT", true), ["takes-away"]);
    assert_eq!(case("jane", "example.org/team", "PUT", true), ["takes-away"]);
    assert!(case("pages", "team", "PUT", true).is_empty(), "its own");
    assert!(case("jane", "team", "PATCH", true).is_empty(), "a patch that names it");
    assert!(case("jane", "pages.example.com/restart", "PUT", true).is_empty(), "its domain: an order");
    assert!(case("jane", "team", "PUT", false).is_empty(), "who set it is not known");
}

#[test]
fn a_finalizer_may_stay_while_its_client_works_or_is_gone() {
    let finalizers = || json!({"finalizers": ["example.com/page"]});
    let mut deleted = finalizers();
    deleted["deletionTimestamp"] = time(3).into();
    let told = |event: &str, second: u32| json!({"watch": 1, "time": time(second), "event": event, "object": "default/a", "resourceVersion": "3"});
    let lines = |setter: &str| {
        vec![
            request(1, "pages", "GET", WATCH),
            request(2, setter, "PATCH", ""),
            write(2, ".metadata.finalizers", finalizers()),
            request(3, "jane", "DELETE", ""),
            write(3, ".metadata.deletionTimestamp", deleted.clone()),
            told("MODIFIED", 3),
        ]
    };
    let with = |more: &[Value]| found(&[&lines("pages"), more].concat());
    assert_eq!(with(&[]), ["keeps-its-finalizer"]);
    assert_eq!(with(&[request(29, "pages", "PATCH", "")]), ["keeps-its-finalizer"]);
    assert!(with(&[request(31, "pages", "PATCH", "")]).is_empty(), "less than 30 s ago");
    assert!(with(&[told("CLOSED", 4)]).is_empty(), "it has ended");
    assert!(found(&lines("jane")).is_empty(), "another client's");
}

#[test]
fn a_list_that_begins_a_watch_is_not_one_too_many() {
    let lines = |has_watches: bool| {
        let mut lines = vec![request(1, "pages", "GET", WATCH)];
        for second in (2..30).step_by(2) {
            let selector = format!("labelSelector=of={second}");
            lines.push(request(second, "pages", "GET", &selector));
            let watch = WATCH.replace("Version=1", &format!("Version={second}"));
            if has_watches {
                lines.push(request(second + 1, "pages", "GET", &format!("{selector}&{watch}")));
            }
        }
        found(&lines)
    };
    assert_eq!(lines(false), ["lists-again"]);
    assert!(lines(true).is_empty());
}
