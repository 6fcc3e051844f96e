//! 17. One reconcile: a conflict, a patch that changes nothing, the status, and a deletion in the foreground.
//!
//! ```sh
//! URL=http://127.0.0.1:8001/api/v1/namespaces/default/configmaps MERGE='content-type: application/merge-patch+json'
//! curl -s -o /dev/null -H 'content-type: application/json' -d '{"metadata": {"name": "listwatch-course"}}' $URL
//! curl -s -X PATCH -H "$MERGE" -d '{"metadata": {"resourceVersion": "1"}, "data": {"colour": "red"}}' $URL/listwatch-course
//! for _ in 1 2; do curl -s -X PATCH -H "$MERGE" -d '{"data": {"colour": "blue"}}' $URL/listwatch-course; done \
//!   | jq -c '.data + .metadata | {colour, resourceVersion}' | uniq -c
//! curl -s -X DELETE "$URL/listwatch-course?propagationPolicy=Foreground" | jq -c '.metadata | {deletionTimestamp, finalizers}'
//! curl -s -o /dev/null -X PATCH -H "$MERGE" -d '{"metadata": {"finalizers": null}}' $URL/listwatch-course
//! ```
//!
//! Predict: You patch an object that you watch, so it wakes you, and you patch again. What ends that?
//! Run: cargo run --example course 17
//! Notice: A patch to the same value, which makes no version and no event.
//! Why: So an operator that patches only differences comes to rest. After a 409, read and decide again. A PATCH of the status ignores a spec
//! in it. With Foreground, a finalizer holds the owner until the garbage collector has deleted its children and removes it; else the owner hangs.
//! Break it: cargo run --example course -- 17 --fault deny,path=/web,method=PATCH
//! Source: `correct` in src/children/keep.rs; `patch` in src/cluster.rs; `between` in src/resource/diff.rs
//! Embedded server: Its garbage collector is a task, and faster.

use listwatch::client::Error;
use serde_json::json;

use crate::stage::{Outcome, Stage, ensure, merge_patch, say, version};

pub(crate) async fn run(stage: &Stage) -> Outcome {
    let old = stage.create("web", json!({})).await?;
    let blue = json!({"data": {"colour": "blue"}});
    let new = stage.patch("web", blue.clone()).await?;
    let old = json!({"metadata": {"resourceVersion": version(&old)}});
    let error = stage.patch("web", old).await.err().ok_or("no conflict")?;
    say!("  {}", error.to_string().split_once(": ").unwrap_or_default().1);
    ensure!(error.downcast_ref().is_some_and(Error::is_conflict), "the error is no 409");
    let same = stage.patch("web", blue).await?;
    say!("  version {} before, {} after", version(&new), version(&same));
    ensure!(version(&same) == version(&new), "a patch that changes nothing has made a new version");
    let status = stage.create_deployment("web").await?;
    let web = stage.send(merge_patch(&status, &json!({"spec": {"replicas": 9}}))).await?;
    say!("  replicas {}, generation {}", web["spec"]["replicas"], web["metadata"]["generation"]);
    ensure!(web["spec"]["replicas"] == 0 && web["metadata"]["generation"] == 1, "the spec has changed");
    let mut events = stage.watch(&format!("&resourceVersion={}&timeoutSeconds=30", version(&new))).await?;
    stage.create_child("child", &new).await?;
    stage.patch("child", json!({"data": {"colour": "blue"}})).await?;
    stage.delete("web?propagationPolicy=Foreground").await?;
    let seen = events.take(5).await?;
    let expected = "ADDED child, MODIFIED child, MODIFIED web, DELETED child, DELETED web";
    ensure!(seen.join(", ") == expected, "the watch has sent {seen:?}");
    Ok(())
}
