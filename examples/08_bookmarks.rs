//! 8. Bookmarks: a newer version to resume from, while your objects do not change and others do.
//!
//! ```sh
//! URL=http://127.0.0.1:8001/api/v1/namespaces/default/configmaps
//! curl -sN "$URL?watch=1&fieldSelector=metadata.name%3Dquiet&allowWatchBookmarks=true&timeoutSeconds=5" &
//! while kill -0 $! 2>/dev/null; do
//!   curl -s -o /dev/null -H 'content-type: application/json' -d '{"metadata": {"name": "listwatch-course"}}' $URL
//!   curl -s -o /dev/null -X DELETE $URL/listwatch-course
//!   sleep 0.2
//! done
//! ```
//!
//! Predict: This watch is about `quiet` only, and only other objects change. From where does it resume after its end?
//! Run: cargo run --example course 8
//! Notice: From the version of the last BOOKMARK, which is newer than `quiet`.
//! Why: A BOOKMARK is not an object: it has only a version. Without one, a watch resumes from an old version, which may have expired
//! (lesson 9), and this watch, which began without a version, cannot resume at all. The server sends one after the initial objects, also
//! without sendInitialEvents (lesson 12), and, once something was written, about every minute and two seconds before the end
//! of timeoutSeconds. Do not rely on any of them.
//! Break it: cargo run --example course -- 8 --fault no-bookmarks
//! Source: `bookmark` in src/store.rs; `silence_limit` in src/watch/machine.rs
//! Embedded server: No difference.

use std::cmp::Ordering;

use listwatch::resource::compare_versions;
use serde_json::json;

use crate::stage::{Outcome, Stage, ensure, version};

pub(crate) async fn run(stage: &Stage) -> Outcome {
    let quiet = stage.create("quiet", json!({})).await?;
    let query = "&fieldSelector=metadata.name%3Dquiet&allowWatchBookmarks=true&timeoutSeconds=5";
    let mut events = stage.watch(query).await?;
    let first = events.take(1).await?;
    stage.create_each(["busy-1", "busy-2"]).await?;
    let seen = events.take(usize::MAX).await?;
    ensure!(
        first == ["ADDED quiet"] && !seen.is_empty() && seen.iter().all(|event| event == "BOOKMARK"),
        "the quiet watch has sent {first:?} and {seen:?}"
    );
    let is_newer = compare_versions(&events.version, version(&quiet)) == Some(Ordering::Greater);
    ensure!(is_newer, "the BOOKMARK has version {}", events.version);

    stage.patch("quiet", json!({"data": {"colour": "blue"}})).await?;
    let mut events = stage.watch(&format!("{query}&resourceVersion={}", events.version)).await?;
    let seen = events.take_change().await?;
    ensure!(seen == ["MODIFIED quiet"], "the resumed watch has sent {seen:?}");
    Ok(())
}
