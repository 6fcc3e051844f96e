//! 6. A clean end: the server ends every watch. That is not a failure. Watch again, from the version of the last event, or of the list.
//!
//! ```sh
//! URL=http://127.0.0.1:8001/api/v1/namespaces/default/configmaps
//! VERSION=$(curl -s $URL | jq -r .metadata.resourceVersion)
//! curl -sN -w 'HTTP %{http_code} after %{time_total} s\n' "$URL?watch=1&resourceVersion=$VERSION&timeoutSeconds=1"
//! ```
//!
//! Predict: `a` changes while no watch is open. Does the next watch send the change? Is a list needed before it?
//! Run: cargo run --example course 6
//! Notice: The next watch sends the change, without a list before it.
//! Why: It starts at the version of the last event. The answer ends without an error, and no line announces the end. Without
//! timeoutSeconds, the server chooses 30 to 60 minutes. If the watch sent no line, first ask
//! for the version of the server (lesson 10).
//! Break it: cargo run --example course -- 6 --fault cut-watches,lines=1
//! Source: `end` in src/watch/machine.rs
//! Embedded server: No difference.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::stage::{Outcome, Stage, ensure, version};

pub(crate) async fn run(stage: &Stage) -> Outcome {
    let list = stage.list("").await?;
    stage.create("a", json!({})).await?;
    let begun = Instant::now();
    let mut events = stage.watch(&format!("&resourceVersion={}&timeoutSeconds=1", version(&list))).await?;
    let seen = events.take(usize::MAX).await?;
    ensure!(seen == ["ADDED a"], "the first watch has sent {seen:?}");
    ensure!(begun.elapsed() >= Duration::from_millis(900), "the first watch has ended before its time");

    stage.patch("a", json!({"data": {"colour": "blue"}})).await?;
    let mut events = stage.watch(&format!("&resourceVersion={}&timeoutSeconds=1", events.version)).await?;
    let seen = events.take(usize::MAX).await?;
    ensure!(seen == ["MODIFIED a"], "the second watch has sent {seen:?}");
    Ok(())
}
