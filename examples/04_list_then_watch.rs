//! 4. A list, then a watch from the version of the list: every change after the list comes exactly once.
//!
//! ```sh
//! URL=http://127.0.0.1:8001/api/v1/namespaces/default/configmaps
//! VERSION=$(curl -s $URL | jq -r .metadata.resourceVersion)
//! curl -s -o /dev/null -H 'content-type: application/json' -d '{"metadata": {"name": "listwatch-course"}}' $URL
//! curl -s -o /dev/null -X DELETE $URL/listwatch-course
//! curl -sN "$URL?watch=1&resourceVersion=$VERSION&timeoutSeconds=1"
//! ```
//!
//! Predict: `b` is created, changed and deleted between the list and the watch. What does the watch send?
//! Run: cargo run --example course 4
//! Notice: All three events of `b`, although `b` was gone before the watch began, and nothing about `a`.
//! Why: The watch sends every change after the version of the list. DELETED has a new version, the version of the
//! deletion, and not the last version of the object.
//! Break it: cargo run --example course -- 4 --fault expire-watches,lines=1
//! Source: `watch` in src/watch.rs; `request` in src/watch/machine.rs
//! Embedded server: No difference.

use serde_json::json;

use crate::stage::{Outcome, Stage, ensure, version};

pub(crate) async fn run(stage: &Stage) -> Outcome {
    stage.create("a", json!({})).await?;
    let list = stage.list("").await?;
    stage.create("b", json!({})).await?;
    stage.patch("b", json!({"data": {"colour": "blue"}})).await?;
    stage.delete("b").await?;

    let mut events = stage.watch(&format!("&resourceVersion={}&timeoutSeconds=1", version(&list))).await?;
    let seen = events.take(usize::MAX).await?;
    ensure!(seen == ["ADDED b", "MODIFIED b", "DELETED b"], "the watch has sent {seen:?}");
    Ok(())
}
