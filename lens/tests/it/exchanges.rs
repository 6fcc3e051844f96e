//! The recording of one client, as `listwatch watch --record` writes it.

use std::time::SystemTime;

use listwatch_lens::{Recording, Report, document, page};
use serde_json::{Value, json};

use super::browser::{ENTER, in_browser};

/// An operator lists, watches, and writes twice after an event. The second write changes nothing. The last request has no answer.
const LINES: &str = r#"{"listwatchRecording":1,"server":"https://127.0.0.1:6443"}
{"time":0.1,"exchange":3,"request":{"method":"GET","path":"/api/v1/namespaces/a/configmaps?limit=100"}}
{"time":0.2,"exchange":3,"head":{"status":200,"version":"HTTP/2.0","headers":{}}}
{"time":0.2,"exchange":3,"rest":{"kind":"ConfigMapList","metadata":{"resourceVersion":"7"},"items":[]}}
{"time":0.2,"exchange":3,"end":"clean"}
{"time":0.3,"exchange":4,"request":{"method":"GET","path":"/api/v1/namespaces/a/configmaps?watch=1&resourceVersion=7&allowWatchBookmarks=true&timeoutSeconds=300"}}
{"time":0.4,"exchange":4,"head":{"status":200,"version":"HTTP/2.0","headers":{}}}
{"time":1.5,"exchange":4,"line":{"type":"ADDED","object":{"metadata":{"name":"web","namespace":"a","resourceVersion":"8"}}}}
{"time":1.6,"exchange":5,"request":{"method":"PATCH","path":"/apis/apps/v1/namespaces/a/deployments/web?fieldManager=b","body":"{}"}}
{"time":1.7,"exchange":5,"head":{"status":201,"version":"HTTP/2.0","headers":{}}}
{"time":1.7,"exchange":5,"rest":{"kind":"Deployment","metadata":{"name":"web","namespace":"a","resourceVersion":"9"}}}
{"time":1.7,"exchange":5,"end":"clean"}
{"time":1.8,"exchange":6,"request":{"method":"PATCH","path":"/apis/apps/v1/namespaces/a/deployments/web?fieldManager=b","body":"{}"}}
{"time":1.9,"exchange":6,"head":{"status":200,"version":"HTTP/2.0","headers":{}}}
{"time":1.9,"exchange":6,"rest":{"kind":"Deployment","metadata":{"name":"web","namespace":"a","resourceVersion":"9"}}}
{"time":2,"exchange":4,"line":{"type":"ERROR","object":{"kind":"Status","code":410}}}
{"time":2.1,"exchange":4,"rest":"{\"type\":"}
{"time":2.1,"exchange":4,"end":"lost"}
{"time":2.2,"exchange":7,"request":{"method":"GET","path":"/api/v1/namespaces/a/configmaps?limit=100"}}
"#;

/// A part of the recording of the first lesson of the course, with another short name.
const LESSON: &str = r#"{"listwatchRecording":1,"server":"https://127.0.0.1:6443"}
{"time":0.331,"exchange":6,"request":{"method":"GET","path":"/api/v1","user":"lesson"}}
{"time":0.333,"exchange":6,"head":{"status":200,"version":"HTTP/2.0","headers":{}}}
{"time":0.333,"exchange":6,"rest":{"groupVersion":"v1","kind":"APIResourceList","resources":[{"kind":"ConfigMap","name":"configmaps","namespaced":true,"shortNames":["<b>cm</b>"]}]}}
{"time":0.333,"exchange":6,"end":"clean"}
"#;

fn read(text: &str) -> Result<Recording, String> {
    Recording::read(&[("a.jsonl".to_owned(), text.to_owned())]).map_err(|error| error.to_string())
}

#[tokio::test]
async fn it_shows_requests_events_and_writes_with_their_causes() {
    let recording = read(LINES).unwrap();
    let report = Report::of(&recording);
    let document = document(&recording, &report, recording.start());
    let entries = document["entries"].as_array().unwrap().iter();
    let shown = entries.map(|entry| {
        let what = if entry["kind"] == "event" { &entry["event"] } else { &entry["verb"] };
        json!([entry["t"], what, entry["object"], entry["took"], entry["version"]])
    });
    let expected = json!([
        [0.1, "list", "configmaps/a", 0.1, "7"],
        [0.3, "watch", "configmaps/a", 1.8, null],
        [1.5, "ADDED", "configmaps/a/web", null, "8"],
        [1.6, "patch", "deployments.apps/a/web", 0.1, "9"],
        [1.8, "patch", "deployments.apps/a/web", 0.1, null],
        [2.0, "ERROR", "", null, "0"],
        [2.1, "CLOSED", "", null, "0"],
    ]);
    assert_eq!(shown.collect::<Value>(), expected);
    let text = report.text();
    let writes = "  patch deployments.apps/a/web\n      perhaps ADDED of configmaps/a/web, which no ownerReference connects with the written object, or a timer; 100 ms after it\n";
    assert!(text.starts_with("no findings\n") && text.contains(writes), "{text}");
    assert!(text.contains("  patch deployments.apps/a/web: nothing changed\n"), "{text}");
    // One client, and no date.
    assert_eq!(document["report"]["clients"], json!(["listwatch"]));
    assert_eq!(recording.start(), SystemTime::UNIX_EPOCH);
    in_browser(async move |browser| {
        browser.open(&page::html(&document), (1280, 800)).await;
        let state = browser.get("document.querySelector('#state').textContent").await;
        assert_eq!(state, "7 requests and events in 2.1 s.");
        // The watch begins at the version of the list, and its end says what it means.
        browser.click("#tab-entries").await;
        let results = "[...document.querySelectorAll('#entries [role=gridcell]:nth-child(5)')].map((cell) => cell.textContent)";
        browser.until(&format!("{results}.length === 7")).await;
        let results = browser.get(results).await;
        assert_eq!(results[0], "200, version 7");
        assert_eq!(results[1], "200, from version 7");
        assert_eq!(results[6], "the client has closed the watch, or the connection broke");
    })
    .await;
}

/// The page showed the request and its status alone, and the text nothing.
#[tokio::test]
async fn a_lesson_that_only_reads_shows_its_requests_and_their_answers() {
    let recording = read(LESSON).unwrap();
    let report = Report::of(&recording);
    let text = report.text();
    assert_eq!(text, "no findings\n\nrequests\n  +0.331 s  lesson: get /api/v1: 200\n");
    let document = document(&recording, &report, recording.start());
    in_browser(async move |browser| {
        browser.open(&page::html(&document), (1280, 800)).await;
        browser.until("document.querySelector('#entries [role=gridcell]')").await;
        browser.click("#entries [role=gridcell]").await;
        let content = browser.until("document.querySelector('#detail pre')?.textContent").await;
        let content = content.as_str().unwrap();
        assert!(content.contains("      \"namespaced\": true,\n"), "{content}");
        // As text.
        assert!(content.contains("\"<b>cm</b>\""), "{content}");
    })
    .await;
}

#[test]
fn the_content_of_answers_and_events_is_cut() {
    let long = "é".repeat(3000);
    let text = LINES.replace("\"items\":[]", &format!("\"items\":[\"{long}\"]"));
    let recording = read(&text).unwrap();
    let document = document(&recording, &Report::of(&recording), recording.start());
    let content = |at: usize| document["entries"][at]["content"].as_str().unwrap_or_default();
    assert!(content(0).starts_with("{\"kind\":\"ConfigMapList\"") && content(0).ends_with("é…"));
    assert_eq!(content(0).chars().count(), 2001);
    assert_eq!(content(2), r#"{"metadata":{"name":"web","namespace":"a","resourceVersion":"8"}}"#);
}

/// A client that only looks does no harm without bookmarks, and a short watch ends before the first one.
#[test]
fn only_a_client_that_writes_is_told_what_its_watches_lack() {
    let bare = LINES.replace("&allowWatchBookmarks=true&timeoutSeconds=300", "");
    let short = LINES.replace("&allowWatchBookmarks=true&timeoutSeconds=300", "&timeoutSeconds=10");
    let looks = bare.lines().filter(|line| !line.contains("exchange\":5") && !line.contains("exchange\":6"));
    let looks = looks.collect::<Vec<_>>().join("\n");
    for (text, rules) in [(&looks, &[][..]), (&short, &[]), (&bare, &["watch-options"; 2])] {
        let found = Report::of(&read(text).unwrap()).findings;
        assert_eq!(found.iter().map(|finding| finding.rule).collect::<Vec<_>>(), rules);
    }
}

/// A client that has no watch may write for any reason.
#[test]
fn a_reason_says_since_when_an_event_is_the_only_one_or_missing() {
    let lines = LINES.replace("/apis/apps/v1/namespaces/a/deployments/", "/api/v1/namespaces/a/configmaps/");
    let without = |part: &str| {
        let lines: Vec<&str> = lines.lines().filter(|line| !line.contains(part)).collect();
        lines.join("\n")
    };
    let unknown = "not known: this client has no watch";
    for (text, reasons) in [
        (
            lines.clone(),
            [
                "ADDED of configmaps/a/web: the only event before this write",
                "likely a timer, or the start of the client: no event came since the cause of the client's last write to this object",
            ],
        ),
        (
            without("ADDED"),
            [
                "likely a timer, or the start of the client: no event came before this write",
                "likely a timer, or the start of the client: no event came since the client's last write to this object",
            ],
        ),
        (without("exchange\":4"), [unknown; 2]),
    ] {
        let report = Report::of(&read(&text).unwrap()).json();
        let found = [0, 1].map(|at| report["writes"][at]["reason"].clone());
        assert_eq!(found, reasons);
    }
}

/// A process that was killed leaves half a line.
#[test]
fn half_a_last_line_is_left_out_and_any_other_is_named() {
    assert_eq!(read(&LINES[..LINES.len() - 9]).unwrap().start(), SystemTime::UNIX_EPOCH);
    let error = read(&LINES.replace(r#""head":{"status":201"#, r#""hat":{"status":201"#)).unwrap_err();
    assert!(error.starts_with("a.jsonl: line 10 is not an entry of a recording: "), "{error}");
    let error = read(&LINES.replace(r#"Recording":1"#, r#"Recording":2"#)).unwrap_err();
    assert!(error.starts_with("a.jsonl: is a recording of format 2"), "{error}");
}

#[tokio::test]
async fn a_recording_is_played_as_it_came_and_a_key_stops_and_continues_it() {
    let recording = read(LINES).unwrap();
    let html = page::html(&document(&recording, &Report::of(&recording), recording.start()));
    in_browser(async move |browser| {
        browser.open(&html, (1280, 800)).await;
        // The time is that of the test.
        browser.get("window.setTimeout = (act, pause, next) => { window.tick = () => { act(next); return pause; }; return 1; }").await;
        let shows = async |button: &str, entry: &str, rows: usize| {
            let row = "document.querySelectorAll('#entries [role=gridcell]:first-child').length";
            let has = |id: &str, text: &str| format!("document.querySelector('{id}').textContent.includes({})", json!(text));
            browser.until(&format!("{} && {} && {row} === {rows}", has("#play", button), has("#detail", entry))).await;
        };
        browser.tab_to("#play").await;
        browser.press(ENTER).await;
        shows("Pause", "list configmaps/a", 1).await;
        assert_eq!(browser.get("tick()").await.as_f64().map(f64::round), Some(200.0));
        shows("Pause", "watch configmaps/a", 2).await;
        browser.press(ENTER).await;
        shows("Play", "watch configmaps/a", 7).await;
        browser.press(ENTER).await;
        shows("Pause", r#""name": "web""#, 3).await;
        for _ in 3..7 {
            browser.get("tick()").await;
        }
        shows("Play", "CLOSED", 7).await;
    })
    .await;
}
