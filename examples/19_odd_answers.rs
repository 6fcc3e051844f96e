//! 19. Odd answers: what a proxy, a broken server or another version may send, and what a client makes of it.
//!
//! ```sh
//! URL=http://127.0.0.1:8001/api/v1/namespaces/default/configmaps
//! curl -s -o /dev/null -d html,status=200,path=limit=3,times=1 http://127.0.0.1:8001/listwatch/faults
//! curl -s "$URL?limit=3"
//! curl -s "$URL?limit=3" | jq -c '{kind, items: .items | length}'
//! ```
//!
//! Predict: Most of these answers have the status 200. After which of them can the same watch go on?
//! Run: cargo run --example course 19
//! Notice: Only after an event of an unknown type.
//! Why: All others end the list or the watch; none counts as a complete, empty list, which would delete every object.
//! Break it: cargo run --example course -- 19 --fault internal-error,path=limit=3
//! Source: `from_json` in src/watch/decode.rs; `from_json` in src/resource/list.rs; `end` in src/watch/machine.rs
//! Embedded server: It sends none of these, as no API server should: another server, in this process, does.

use crate::stage::{OK, Outcome, SILENT, Stage, ensure, say, version};

const CUT: &str = "200 OK\r\nContent-Length: 999";
const MODIFIED: &str = r#"{"type":"MODIFIED","object":{"metadata":{"name":"a","resourceVersion":"7"}}}"#;

pub(crate) async fn run(stage: &Stage) -> Outcome {
    let (another, large) = (stage.another().await?, "x".repeat(10 << 20));
    let list = stage.get(&format!("{}?limit=3", stage.configmaps)).await?;
    say!(r#"  {{"kind":{},"items":{}}}"#, list["kind"], list["items"].as_array().map_or(0, Vec::len));
    let watch = &*format!("watch=1&resourceVersion={}", version(&list));
    let stream = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
    for (target, head, body, expected) in [
        (watch, OK, r#"{"type":"FANCY","object":{}}"#, "an event to pass over"),
        ("limit=1", OK, &large, "no list"),
        (watch, OK, r#"{"type":"ERROR","object":{"code":500,"message":"etcd is gone"}}"#, "an error"),
        (watch, OK, "<html>", "no event"),
        (watch, "502 Bad Gateway\r\nContent-Type: text/html", "<html>", "an error"),
        (watch, OK, "", "no event"),
        (stream, OK, MODIFIED, "an event"),
        (stream, OK, "", "no event"),
        ("watch=1", CUT, MODIFIED, "an error"),
        ("limit=3", CUT, r#"{"metadata":{"resourceVersion":"7"},"items":["#, "an error"),
        ("limit=3", OK, r#"{"metadata":{"resourceVersion":"7","continue":"t"},"items":[]}"#, "a list"),
        ("limit=3", OK, r#"{"metadata":{}}"#, "no list"),
        ("limit=3", OK, &large, "no list"),
        ("limit=3", "", "", "an error"),
        ("/apis", "", "", "an error"),
        ("limit=3", SILENT, "", "an error"),
    ] {
        ensure!(another.ask(target, head, body).await? == expected, "expected {expected}");
    }
    Ok(())
}
