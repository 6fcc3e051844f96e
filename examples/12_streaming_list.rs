//! 12. A streaming list: a watch that begins with every object, and marks the end of them with a BOOKMARK.
//!
//! ```sh
//! STREAM='watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true'
//! curl -sN "http://127.0.0.1:8001/api/v1/namespaces/default/configmaps?$STREAM&timeoutSeconds=1"
//! ```
//!
//! Predict: In lesson 3, existing objects looked like new ones. What separates them here?
//! Run: cargo run --example course 12
//! Notice: A BOOKMARK with the annotation `k8s.io/initial-events-end`.
//! Why: Its version is the version of the list; the events before it are in no order. The server does not build the list in memory.
//! Not every server has the feature. 1.19 to 1.31 and 1.33: 422 by default. Before 1.19: ignored. Then list in pages.
//! A watch without a version also gets this BOOKMARK (lesson 8), if it asks for bookmarks.
//! Break it: cargo run --example course -- 12 --fault ignore-streaming-lists
//! Source: `line` in src/watch/machine.rs; `end` in src/watch/machine.rs
//! Embedded server: It refuses on request. Elsewhere, a wrong parameter, no resourceVersionMatch, is refused with 422.

use listwatch::client::Error;
use serde_json::json;

use crate::stage::{Outcome, Stage, ensure, name, say, version};

pub(crate) async fn run(stage: &Stage) -> Outcome {
    let without_match = "&sendInitialEvents=true&allowWatchBookmarks=true&timeoutSeconds=60";
    let mut query = format!("{without_match}&resourceVersionMatch=NotOlderThan");
    stage.create("a", json!({})).await?;
    if let Ok(mut events) = stage.watch(&query).await {
        let mut names = Vec::new();
        while let Some(event) = events.next().await? {
            if event["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"] == "true" {
                break;
            }
            names.push(name(&event["object"]).to_owned());
        }
        ensure!(names.iter().any(|name| name == "a"), "the list has {names:?}");
        stage.create("b", json!({})).await?;
        let seen = events.take_change().await?;
        ensure!(seen == ["ADDED b"], "no end marker, or more initial events after it: {seen:?}");
        if !stage.fault("no-streaming-lists").await? {
            without_match.clone_into(&mut query);
        }
    }
    let error = stage.watch(&query).await.err().ok_or("the streaming list was not refused")?;
    ensure!(error.downcast_ref().is_some_and(Error::is_invalid), "the error is no 422: {error}");
    say!("  {}", error.to_string().split_once(": ").unwrap_or_default().1);
    let list = stage.get(&format!("{}?limit=500", stage.configmaps)).await?;
    say!("  listed in pages, version {}", version(&list));
    Ok(())
}
