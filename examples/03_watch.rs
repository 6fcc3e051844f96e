//! 3. A watch without a version: one long answer, with a line of JSON for each object, then for each change.
//!
//! ```sh
//! curl -sN 'http://127.0.0.1:8001/api/v1/namespaces/default/configmaps?watch=1&timeoutSeconds=1'
//! ```
//!
//! Predict: `a` and `b` exist. Which lines come before the line about the change of `a`?
//! Run: cargo run --example course 3
//! Notice: An ADDED for each existing object, kube-root-ca.crt of lesson 2 included if there is one, in no order of versions.
//! Why: These lines look like events of new objects, and no line marks the last of them. As they are in no order, no watch can resume
//! from the version of one of them. Another watch without a version sends all of them again, but no DELETED for an object that is gone.
//! resourceVersion=0 means any version: the same lines, from the cache of the server, so perhaps old ones. With any other version,
//! only later changes come, such as the deletion of `c`, an object that this program has never seen: so list first.
//! Break it: cargo run --example course -- 3 --fault end-watches,lines=2
//! Source: `from_json` in src/watch/decode.rs
//! Embedded server: No difference.

use serde_json::json;

use crate::stage::{Outcome, Stage, ensure, version};

pub(crate) async fn run(stage: &Stage) -> Outcome {
    stage.create("a", json!({})).await?;
    stage.create("b", json!({})).await?;
    let mut events = stage.watch("&timeoutSeconds=30").await?;
    let mut seen = events.take(2).await?;
    stage.patch("a", json!({"data": {"colour": "blue"}})).await?;
    while seen.last().is_none_or(|last| last != "MODIFIED a") {
        let next = events.take(1).await?;
        ensure!(!next.is_empty(), "no change of `a`: {seen:?}");
        seen.extend(next);
    }
    for expected in ["ADDED a", "ADDED b"] {
        ensure!(seen.iter().any(|event| event == expected), "no {expected}");
    }
    let seen = stage.watch("&resourceVersion=0&timeoutSeconds=1").await?.take(usize::MAX).await?;
    ensure!(seen.iter().all(|event| event.starts_with("ADDED ")), "version 0 has sent {seen:?}");
    let c = stage.create("c", json!({})).await?;
    stage.delete("c").await?;
    let seen = stage.watch(&format!("&resourceVersion={}", version(&c))).await?.take(1).await?;
    ensure!(seen == ["DELETED c"], "the watch from the version of `c` has sent {seen:?}");
    Ok(())
}
