//! 9. 410 Expired, in three forms: in a watch, as the answer to a list, and for a continue token. List again.
//!
//! ```sh
//! URL=http://127.0.0.1:8001/api/v1/namespaces/default/events
//! curl -s -o /dev/null -d expire-history http://127.0.0.1:8001/listwatch/faults
//! curl -sN "$URL?watch=1&resourceVersion=1&timeoutSeconds=1"
//! curl -s "$URL?resourceVersion=1&resourceVersionMatch=Exact"
//! curl -s "$URL?limit=1&continue=eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6MSwic3RhcnQiOiJhXHUwMDAwIn0"
//! ```
//!
//! Predict: The server no longer has version 1. What is the HTTP status of a watch from there? And of a list?
//! Run: cargo run --example course 9
//! Notice: The status is 200 for the watch, which sends the 410 as an ERROR in its only line, and 410 for the lists.
//! Why: A client must handle all forms: list the same collection again (the most recent state, or with NotOlderThan, which the
//! server's cache can answer), and watch from the version of that list. Never use the token that the refusal offers: the
//! rest would be from another version. Old servers send the reason Gone.
//! Break it: cargo run --example course -- 9 --fault end-watches,lines=0
//! Source: `list_after_expiry` in src/watch/machine.rs; `is_expired` in src/resource.rs
//! Embedded server: Its history expires on request, by the first curl. Others compact etcd every five minutes and have
//! no watch cache for Events, so version 1 is gone ten minutes after their first start.

use listwatch::client::Request;
use serde_json::json;

use crate::stage::{EXPIRED_TOKEN, Outcome, Stage, ensure, version};

pub(crate) async fn run(stage: &Stage) -> Outcome {
    stage.fault("expire-history").await?;
    let path = &*format!("{}/events", stage.namespace);
    let watch = async |version: &str| {
        stage.open(Request::get(format!("{path}?watch=1&resourceVersion={version}&timeoutSeconds=1"))).await
    };
    let mut events = watch("1").await?;
    let event = events.next().await?.unwrap_or_default();
    ensure!(event["object"]["code"] == 410, "no ERROR with 410: has the server run for ten minutes?");
    ensure!(events.next().await?.is_none(), "the watch goes on after the ERROR");
    let queries =
        ["resourceVersion=1&resourceVersionMatch=Exact", &format!("limit=1&continue={EXPIRED_TOKEN}")];
    for query in queries {
        let error =
            stage.refused(&format!("{path}?{query}"), "410: has the server run for ten minutes?").await?;
        ensure!(error.is_expired(), "the error is no 410: {error}");
    }
    let list = stage.get(path).await?;
    let about = json!({"namespace": stage.namespace.split('/').next_back()});
    stage.create_in(path, &json!({"metadata": {"name": "a"}, "involvedObject": about})).await?;
    let seen = watch(version(&list)).await?.take(1).await?;
    ensure!(seen == ["ADDED a"], "the watch after the list has sent {seen:?}");
    Ok(())
}
