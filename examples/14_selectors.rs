//! 14. Selectors: DELETED may mean that a label has changed. And the uid: an object of the same name may be another one.
//!
//! ```sh
//! URL=http://127.0.0.1:8001/api/v1/namespaces/default/configmaps
//! VERSION=$(curl -s $URL | jq -r .metadata.resourceVersion)
//! OBJECT='{"metadata": {"name": "listwatch-course", "labels": {"tier": "web"}}}'
//! curl -s -o /dev/null -H 'content-type: application/json' -d "$OBJECT" $URL
//! curl -s -o /dev/null -X PATCH -H 'content-type: application/merge-patch+json' \
//!   -d '{"metadata": {"labels": {"tier": "db"}}}' $URL/listwatch-course
//! curl -sN "$URL?watch=1&labelSelector=tier%3Dweb&resourceVersion=$VERSION&timeoutSeconds=1"
//! curl -s -o /dev/null -X DELETE $URL/listwatch-course
//! ```
//!
//! Predict: You watch `tier=web`. `a` becomes `db`, changes, and becomes `web` again. Which events come?
//! Run: cargo run --example course 14
//! Notice: DELETED with the old labels, although `a` exists; no event while `a` does not match; then ADDED. So get the
//! object before you clean up after a DELETED. At last, `a` is deleted and created again: only the uid shows that it is
//! another object.
//! Break it: cargo run --example course -- 14 --fault end-watches,lines=2
//! Source: `remove` in src/store.rs; `put` in src/store.rs
//! Embedded server: No difference.

use serde_json::json;

use crate::stage::{Outcome, Stage, ensure, say, version};

pub(crate) async fn run(stage: &Stage) -> Outcome {
    let list = stage.get(&stage.configmaps).await?;
    stage.create("a", json!({"tier": "web"})).await?;
    stage.patch("a", json!({"metadata": {"labels": {"tier": "db"}}})).await?;
    stage.patch("a", json!({"data": {"colour": "blue"}})).await?;
    let before = stage.patch("a", json!({"metadata": {"labels": {"tier": "web"}}})).await?;
    stage.delete("a").await?;
    let after = stage.create("a", json!({"tier": "web"})).await?;

    let query = format!("&labelSelector=tier%3Dweb&resourceVersion={}&timeoutSeconds=1", version(&list));
    let seen = stage.watch(&query).await?.take(usize::MAX).await?;
    ensure!(
        seen == ["ADDED a", "DELETED a", "ADDED a", "DELETED a", "ADDED a"],
        "the watch has sent {seen:?}"
    );
    say!("  uid {} before, {} now", before["metadata"]["uid"], after["metadata"]["uid"]);
    ensure!(before["metadata"]["uid"] != after["metadata"]["uid"], "both objects have the same uid");
    Ok(())
}
