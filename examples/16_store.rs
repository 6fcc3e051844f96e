//! 16. A Store by hand: apply, delete and sweep, with the Store of this library. Each event is applied twice.
//!
//! ```sh
//! URL=http://127.0.0.1:8001/api/v1/namespaces/default/configmaps
//! curl -s $URL | jq -c '.items[].metadata | {name, resourceVersion}'
//! curl -sN "$URL?watch=1&resourceVersion=0&timeoutSeconds=1" | jq -c '.object.metadata | {name, resourceVersion}'
//! ```
//!
//! Predict: `b` is deleted while no watch is open, and you list rather than resume. What removes `b` from the Store?
//! Run: cargo run --example course 16
//! Notice: The next list, which has no `b`: the Store reports that the deletion is `Inferred`.
//! Why: The deletion of `c` came as an event: `Event`. The second time, an event changes nothing. `synced` means that a first list is complete. A controller queues the key of each Change.
//! Break it: cargo run --example course -- 16 --fault end-watches,lines=0
//! Source: `put` in src/store.rs; `sweep` in src/store.rs
//! Embedded server: No difference.

use listwatch::{resource::list::List, watch::decode::WatchEvent};
use serde_json::json;

use crate::stage::{Outcome, Stage, store_with_changes};

pub(crate) async fn run(stage: &Stage) -> Outcome {
    let (store, changes) = store_with_changes();
    let list = async || -> Outcome<String> {
        let list = List::from_json(stage.list("").await?.to_string().as_bytes())?;
        store.list_begins();
        store.listed(&list.version, list.items);
        store.list_ends(&list.version);
        Ok(list.version.into())
    };
    stage.create_each(["a", "b", "c"]).await?;
    let version = list().await?;
    changes.expect(&["applied a", "applied b", "applied c", "synced"])?;
    stage.patch("a", json!({"data": {"colour": "blue"}})).await?;
    stage.delete("c").await?;
    let mut events = stage.watch(&format!("&resourceVersion={version}&timeoutSeconds=1")).await?;
    while let Some(event) = events.next().await? {
        for _twice in 0..2 {
            match WatchEvent::from_json(event.to_string().as_bytes())? {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => store.applied(object),
                WatchEvent::Deleted(object) => store.deleted(object),
                WatchEvent::Bookmark { .. } | WatchEvent::Error(_) | WatchEvent::Unknown(_) => {}
            }
        }
    }
    changes.expect(&["applied a", "deleted c: Event"])?;
    stage.delete("b").await?;
    list().await?;
    changes.expect(&["deleted b: Inferred"])
}
