//! 5. `naive`: a simple loop, and what it loses. Other lessons repair its losses.
//!
//! ```sh
//! URL=http://127.0.0.1:8001/api/v1/namespaces/default/configmaps
//! curl -s $URL | jq -c '{list: .metadata.resourceVersion, newest: [.items[].metadata.resourceVersion] | max}'
//! VERSION=$(curl -s $URL | jq -r '[.items[].metadata.resourceVersion] | max')
//! curl -sN "$URL?watch=1&resourceVersion=$VERSION&timeoutSeconds=1"
//! ```
//!
//! Predict: Read `naive.rs`. After its list, `a` changes and `b` comes; after its watch, `c` comes. Which of the three are right in its Store?
//! Run: cargo run --example course 5
//! Notice: Only `b`; each line LOST names a loss.
//! Why: The loop watches from the newest item, and so gets the creation and deletion of `old`, which happened before its list. It ignores MODIFIED
//! and ERROR, and stops after a second. Its list only adds, and its watch from `d` misses the deletion of `c`. For it, "99" is newer than "100".
//! Break it: cargo run --example course -- 5 --fault end-watches,lines=0
//! Source: `line` in src/watch/machine.rs; `end` in src/watch/machine.rs
//! Embedded server: Only here do the versions soon have one digit more, which shows the lost order.

use serde_json::json;

use crate::naive::{Store, list, watch};
use crate::stage::{Outcome, Stage, ensure, say};

pub(crate) async fn run(stage: &Stage) -> Outcome {
    let store = &mut Store::new();
    stage.create_each(["a", "old"]).await?;
    stage.delete("old").await?;
    let newest = list(stage, store).await?;
    stage.create("b", json!({})).await?;
    stage.patch("a", json!({"data": {"colour": "blue"}})).await?;
    watch(stage, &newest, store).await?;
    ensure!(store.contains_key("b") && store["a"] == "red", "expected `b` and a red `a`: {}", json!(store));
    stage.lost(&format!("a change: `a` is blue, and here it is {}", store["a"])).await?;
    stage.create("c", json!({})).await?;
    ensure!(!store.contains_key("c"), "the loop has not ended");
    stage.lost("an object: `c` exists, but not here").await?;
    list(stage, store).await?;
    stage.delete("c").await?;
    stage.create("d", json!({})).await?;
    let newest = list(stage, store).await?;
    watch(stage, &newest, store).await?;
    ensure!(store.contains_key("c"), "the deletion of `c` was noticed");
    stage.lost("a deletion: `c` is gone, but not here").await?;
    if let Some([before, now]) = stage.until_longer_version().await? {
        let newest = list(stage, store).await?;
        ensure!(newest == before, "the loop has found the newest version");
        say!("LOST the order: the newest version is {now}, and the loop watches from {newest}");
    }
    Ok(())
}
