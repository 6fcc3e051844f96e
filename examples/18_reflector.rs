//! 18. `reflector`: the loop of lesson 5, repaired rule by rule. It loses nothing at a clean end, a cut and a 410.
//!
//! ```sh
//! URL=http://127.0.0.1:8001/api/v1/namespaces/default/configmaps
//! VERSION=$(curl -s $URL | jq -r .metadata.resourceVersion)
//! curl -s -H 'accept: application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1' "$URL?limit=1" | jq -c .metadata
//! curl -sN "$URL?watch=1&allowWatchBookmarks=true&resourceVersion=$VERSION&timeoutSeconds=4"
//! ```
//!
//! Predict: Which of the requests list all objects, and why?
//! Run: cargo run --example course 18
//! Notice: The first list, and one after the 410.
//! Why: After the cut, a check comes first; after the clean end, the next watch opens without a list or check. `diff -y -W 230 examples/naive.rs
//! examples/reflector.rs` shows the repairs, each with the number of its lesson. What `src/watch.rs` does beyond that is
//! at the top of `reflector.rs`.
//! Break it: cargo run --example course -- 18 --fault unavailable,path=watch=1
//! Source: `request` in src/watch/machine.rs; `end` in src/watch/machine.rs; `watch` in src/watch.rs; `follow` in src/watch.rs
//! Embedded server: Only here do the end, the cut and the 410 come on request. On another server, they come in minutes or hours,
//! so the lesson shows only that nothing is lost without them.

use serde_json::json;

use crate::reflector::Reflector;
use crate::stage::{Outcome, Stage, ensure, say};

pub(crate) async fn run(stage: &Stage) -> Outcome {
    let (mut local, mut has_faults) = (Reflector::default(), false);
    let a = stage.create("a", json!({})).await?;
    stage.create_each(["b", "c"]).await?;
    stage.create_child("d", &a).await?;
    local.reflect(stage, "d").await?;
    stage.step().await?;
    for (end, gone) in [("end-watches", "b"), ("cut-watches", "c"), ("expire-watches", "d")] {
        has_faults = stage.fault(&format!("{end},lines=1,times=1")).await?;
        stage.patch("a", json!({"data": {"colour": end}})).await?;
        stage.delete(gone).await?;
        stage.create(end, json!({})).await?;
        local.reflect(stage, end).await?;
        ensure!(local.store["a"]["colour"] == end && !local.store.contains_key(gone), "{end} lost a change");
        say!("  the store has {:?}", local.store.keys());
        stage.step().await?;
    }
    let after_faults = ["list", "watch", "watch", "watch", "check", "watch", "watch", "list"];
    let expected = if has_faults { &after_faults[..] } else { &["list", "watch", "watch", "watch"] };
    ensure!(*stage.asked.borrow() == expected, "the requests were {:?}", stage.asked);
    Ok(())
}
