//! 19. Odd answers: what a proxy, a broken server or another version may send, and what a client does then.
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
//! Why: None of them may count as a complete, empty list, which would delete every object. "back off" means: after a pause, the same request or a check.
//! Break it: cargo run --example course -- 19 --fault internal-error,path=limit=3
//! Source: `from_json` in src/watch/decode.rs; `from_json` in src/resource/list.rs; `end` in src/watch/machine.rs
//! Embedded server: It sends none of these, as no API server should: another server, in this process, does.

use crate::stage::{CUT, OK, Outcome, SILENT, Stage, ensure, say, version};
const MODIFIED: &str = r#"{"type":"MODIFIED","object":{"metadata":{"name":"a","resourceVersion":"7"}}}"#;

pub(crate) async fn run(stage: &Stage) -> Outcome {
    let (another, large) = (stage.another().await?, "x".repeat(10 << 20));
    let list = stage.get(&format!("{}?limit=3", stage.configmaps)).await?;
    say!(r#"  {{"kind":{},"items":{}}}"#, list["kind"], list["items"].as_array().map_or(0, Vec::len));
    let watch = &*format!("watch=1&resourceVersion={}", version(&list));
    let stream = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
    for (target, head, body, expected) in [
        (watch, OK, r#"{"type":"FANCY","object":{}}"#, "go on"),
        ("limit=1", OK, &large, "list again"),
        (watch, OK, r#"{"type":"ERROR","object":{"code":500,"message":"etcd is gone"}}"#, "list again"),
        (watch, OK, "<html>", "list again"),
        (watch, "502 Bad Gateway\r\nContent-Type: text/html", "<html>", "back off"),
        (watch, OK, "", "back off"),
        (stream, OK, MODIFIED, "list again"),
        (stream, OK, "", "list again"),
        ("watch=1", CUT, MODIFIED, "watch again"),
        ("limit=3", CUT, r#"{"metadata":{"resourceVersion":"7"},"items":["#, "back off"),
        ("limit=3", OK, r#"{"metadata":{"resourceVersion":"7","continue":"t"},"items":[]}"#, "go on"),
        ("continue=t", OK, r#"{"metadata":{"resourceVersion":"7","continue":"t"},"items":[]}"#, "list again"),
        ("limit=3", OK, r#"{"metadata":{}}"#, "list again"),
        ("limit=3", OK, &large, "list again"),
        ("limit=3", "", "", "back off"),
        ("/apis", "", "", "back off"),
        ("limit=3", SILENT, "", "back off"),
    ] {
        ensure!(another.ask(target, head, body).await? == expected, "expected {expected}");
        stage.step().await?;
    }
    Ok(())
}
