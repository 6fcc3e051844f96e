//! What is no finding, although it looks like one.

use listwatch_lens::{Recording, Report, Severity};
use serde_json::{Value, json};

/// The names of the findings about the client `pages` in a record with these lines. Each has its second, which is also its id and its version.
fn found(lines: &[Value]) -> Vec<String> {
    let text = lines.iter().map(|line| format!("{line}\n")).collect::<String>();
    let mut recording = Recording::read(&[("a".to_owned(), text)]).unwrap();
    recording.runs_until = Some(humantime::parse_rfc3339("2026-01-01T00:01:00Z").unwrap());
    let findings = Report::of(&recording).findings.into_iter();
    let names = findings.map(|finding| match finding.severity {
        Severity::Problem => finding.rule.to_owned(),
        Severity::Note => format!("{} (note)", finding.rule),
    });
    names.collect()
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
    let lines = |setter: &str, (field, key): (&str, &str), method: &str| {
        let path = format!(".metadata.{field}.{key}");
        let mut lines = vec![
            request(1, setter, "PATCH", ""),
            write(1, &path, json!({field: {key: "1"}})),
            request(2, "pages", method, ""),
            write(2, &path, json!({})),
        ];
        lines[2]["resource"] = "pages.toolkit.example.com".into();
        lines
    };
    let case = |setter: &str, mark: (&str, &str), method: &str| found(&lines(setter, mark, method));
    let team = ("labels", "team");
    assert_eq!(case("jane", team, "PUT"), ["takes-away"]);
    assert_eq!(case("jane", ("labels", "example.org/team"), "PUT"), ["takes-away"]);
    assert!(case("pages", team, "PUT").is_empty(), "its own");
    assert!(case("jane", team, "PATCH").is_empty(), "a patch that names it");
    assert!(case("jane", ("labels", "pages.example.com/restart"), "PUT").is_empty(), "its domain: an order");

    let mut unknown = lines("jane", team, "PUT");
    unknown[1]["changed"] = json!([".spec"]);
    assert!(found(&unknown).is_empty(), "who set it is not known");

    let restart = ("annotations", "restart");
    assert_eq!(case("jane", restart, "PUT"), ["takes-away (note)"]);
    assert_eq!(case("jane", ("annotations", "example.org/team"), "PUT"), ["takes-away"]);
    let mut replaced = lines("jane", restart, "PUT");
    replaced[3]["changed"] = json!([".metadata.annotations.restart", ".spec.text"]);
    assert_eq!(found(&replaced), ["takes-away"], "it removes more");

    let set_again = [
        request(1, "jane", "PATCH", ""),
        write(1, ".metadata.labels.team", json!({"labels": {"team": "web"}})),
        request(2, "pages", "PATCH", ""),
        write(2, ".metadata.labels.team", json!({"labels": {"team": "api"}})),
        request(3, "pages", "PUT", ""),
        write(3, ".metadata.labels.team", json!({})),
    ];
    assert!(found(&set_again).is_empty(), "it was the last to set it");
}

fn told(second: u32, event: &str) -> Value {
    json!({"watch": 1, "time": time(second), "event": event, "object": "default/a", "resourceVersion": second.to_string()})
}

fn deleted(second: u32, finalizers: &[&str]) -> Value {
    write(
        second,
        ".metadata.deletionTimestamp",
        json!({"uid": "1", "finalizers": finalizers, "deletionTimestamp": time(second)}),
    )
}

const FINALIZER: &str = "example.com/page";

/// A client sets a finalizer, and a watch tells `pages` that the object is being deleted.
fn deletion(setter: &str) -> Vec<Value> {
    vec![
        request(1, "pages", "GET", WATCH),
        request(2, "jane", "POST", ""),
        write(2, "", json!({"uid": "1"})),
        request(3, setter, "PATCH", ""),
        write(3, ".metadata.finalizers", json!({"uid": "1", "finalizers": [FINALIZER]})),
        request(4, "jane", "DELETE", ""),
        deleted(4, &[FINALIZER]),
        told(4, "MODIFIED"),
    ]
}

#[test]
fn a_finalizer_may_stay_while_its_client_works_or_is_gone() {
    let with = |more: &[Value]| found(&[&deletion("pages"), more].concat());
    assert_eq!(with(&[]), ["keeps-its-finalizer (note)"]);
    assert_eq!(with(&[request(29, "pages", "PATCH", "")]), ["keeps-its-finalizer (note)"]);
    assert!(with(&[request(31, "pages", "PATCH", "")]).is_empty(), "less than 30 s ago");
    assert!(with(&[told(5, "CLOSED")]).is_empty(), "it has ended");
    let mut refused = request(6, "pages", "GET", WATCH);
    refused["status"] = 403.into();
    assert_eq!(with(&[told(5, "CLOSED"), refused]), ["forbidden"], "it is told nothing");
    assert!(found(&deletion("jane")).is_empty(), "another client's");

    let child = |second: u32, mut metadata: Value| {
        metadata["ownerReferences"] = json!([{"uid": "1"}]);
        let mut child = write(second, ".spec", metadata);
        child["object"]["metadata"]["name"] = "child".into();
        child
    };
    assert_eq!(with(&[child(5, json!({}))]), ["keeps-its-finalizer (note)"]);
    assert!(with(&[child(40, json!({}))]).is_empty(), "its child changes");
    assert!(with(&[child(5, json!({"deletionTimestamp": time(5)}))]).is_empty(), "it waits for its child");
}

/// A report named the finalizer of a new object that had the name of a deleted one.
#[test]
fn a_finalizer_of_a_new_object_stays() {
    let mut gone = deleted(5, &[]);
    gone["type"] = "DELETED".into();
    let finalizers = json!({"uid": "2", "finalizers": [FINALIZER]});
    let again = [
        request(5, "pages", "PATCH", ""),
        gone,
        request(6, "jane", "POST", ""),
        write(6, "", json!({"uid": "2"})),
        request(7, "pages", "PATCH", ""),
        write(7, ".metadata.finalizers", finalizers),
    ];
    let again = [&deletion("pages"), &again[..]].concat();
    assert!(found(&again).is_empty());
    let end = [request(8, "jane", "DELETE", ""), deleted(8, &[FINALIZER]), told(8, "MODIFIED")];
    assert_eq!(found(&[again, end.to_vec()].concat()), ["keeps-its-finalizer (note)"]);
}

#[test]
fn a_client_owns_only_the_finalizers_that_it_adds() {
    let case = |first: Value, lines: &[Value]| {
        found(&[&[request(1, "pages", "GET", WATCH), first], lines, &[told(4, "MODIFIED")]].concat())
    };
    let created = |finalizer: &str| write(2, "", json!({"finalizers": [finalizer]}));
    let foreground = deleted(4, &["example.org/a", "foregroundDeletion"]);
    let mut foreground = [request(4, "pages", "DELETE", ""), foreground];
    foreground[1]["changed"] = json!([".metadata.deletionTimestamp", ".metadata.finalizers"]);
    assert!(case(created("example.org/a"), &foreground).is_empty(), "the server's");

    let claim = "kubernetes.io/pvc-protection";
    let creates = |finalizer: &str| [request(2, "pages", "POST", ""), deleted(4, &[finalizer])];
    assert!(case(created(claim), &creates(claim)).is_empty(), "an admission plugin's");
    assert_eq!(case(created(FINALIZER), &creates(FINALIZER)), ["keeps-its-finalizer (note)"]);

    let updated = write(2, ".spec", json!({"finalizers": ["example.org/a"]}));
    let adds_and_removes = [
        request(3, "pages", "PATCH", ""),
        write(3, ".metadata.finalizers", json!({"finalizers": ["example.org/a", FINALIZER]})),
        deleted(4, &["example.org/a", FINALIZER]),
        request(5, "pages", "PATCH", ""),
        write(
            5,
            ".metadata.finalizers",
            json!({"finalizers": ["example.org/a"], "deletionTimestamp": time(4)}),
        ),
    ];
    assert!(case(updated, &adds_and_removes).is_empty(), "one of before");
}

/// A child of the Page with the uid `1`.
fn child(second: u32, method: &str, name: &str, text: &str) -> [Value; 2] {
    let mut request = request(second, "pages", method, "");
    request["name"] = name.into();
    let labels = json!({"of": name});
    let owner = json!({"uid": "1", "controller": true});
    let mut write = write(second, "", json!({"uid": name, "labels": labels, "ownerReferences": [owner]}));
    write["object"]["metadata"]["name"] = name.into();
    write["object"]["spec"] = json!({"text": text});
    write["type"] = if method == "POST" { "ADDED" } else { "DELETED" }.into();
    [request, write]
}

#[test]
fn a_child_came_twice_if_its_client_had_not_seen_the_first_and_deletes_one() {
    let event = |second: u32, of: u32| {
        let mut event = told(second, "ADDED");
        event["object"] = format!("default/{of}").into();
        event["resourceVersion"] = of.to_string().into();
        event
    };
    let creates = |seen: u32, text: &str| {
        let watch = [request(1, "pages", "GET", WATCH)];
        let events = [event(seen, 3), event(8, 4)];
        [&watch[..], &child(3, "POST", "3", "hello"), &child(4, "POST", "4", text), &events].concat()
    };
    let with = |more: &[Value]| found(&[&creates(8, "hello"), more].concat());
    let delete = child(10, "DELETE", "4", "hello");
    assert_eq!(with(&delete), ["creates-twice (note)"]);
    assert!(with(&[]).is_empty(), "it may want several");
    assert!(with(&child(30, "DELETE", "4", "hello")).is_empty(), "it had both for long");
    assert!(with(&[delete.clone(), child(11, "DELETE", "3", "hello")].concat()).is_empty(), "it wants none");
    assert!(with(&[delete.clone(), child(11, "POST", "5", "hello")].concat()).is_empty(), "it replaces one");
    assert!(with(&[child(9, "POST", "5", "new"), delete.clone()].concat()).is_empty(), "a rollout");
    let mut changed = [request(9, "jane", "PUT", ""), write(9, ".spec.replicas", json!({"uid": "1"}))];
    assert!(with(&[changed.clone(), delete.clone()].concat()).is_empty(), "it shall have less");
    changed[1]["changed"] = json!([".status.children"]);
    assert_eq!(with(&[changed, delete.clone()].concat()), ["creates-twice (note)"]);

    let found = |seen: u32, text: &str| found(&[&creates(seen, text)[..], &delete].concat());
    assert!(found(8, "bye").is_empty(), "they differ");
    assert!(found(3, "hello").is_empty(), "it had seen the first");
}

#[test]
fn a_list_that_begins_a_watch_is_not_one_too_many() {
    let lines = |has_watches: bool, has_versions: bool| {
        let mut lines = vec![request(1, "pages", "GET", WATCH)];
        for second in (2..30).step_by(2) {
            let selector = format!("labelSelector=of={second}");
            lines.push(request(second, "pages", "GET", &selector));
            let watch = WATCH.replace("Version=1", &format!("Version={second}"));
            if has_watches {
                lines.push(request(second + 1, "pages", "GET", &format!("{selector}&{watch}")));
            }
        }
        // An audit log has none.
        for line in lines.iter_mut().filter(|_| !has_versions) {
            line["listVersion"] = "0".into();
        }
        found(&lines)
    };
    assert_eq!(lines(false, true), ["lists-again (note)"]);
    assert!(lines(true, true).is_empty());
    assert_eq!(lines(false, false), ["lists-again (note)"]);
    assert!(lines(true, false).is_empty());
}

#[test]
fn a_list_does_not_begin_a_watch_because_a_later_one_does() {
    let mut lines = vec![request(1, "pages", "GET", WATCH)];
    lines.extend((2..30).map(|second| request(second, "pages", "GET", "")));
    lines.push(request(30, "pages", "GET", WATCH));
    for line in &mut lines {
        line["listVersion"] = "0".into();
    }
    assert_eq!(found(&lines), ["lists-again"]);
}

/// A server-side apply gets a 409 for a field of another manager.
#[test]
fn a_patch_that_conflicts_has_no_old_version() {
    let case = |method: &str| {
        let mut lines: Vec<Value> = (1..9).map(|second| request(second, "pages", method, "")).collect();
        lines.iter_mut().for_each(|line| line["status"] = 409.into());
        found(&lines)
    };
    assert_eq!(case("PUT"), ["conflicts"]);
    assert!(case("PATCH").is_empty());
}
