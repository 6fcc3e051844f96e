//! 14. Selectors: DELETED may mean that a label has changed. And the uid: an object of the same name may be another one.
//!
//! ```sh
//! URL=http://127.0.0.1:8001/api/v1/namespaces/default/configmaps
//! VERSION=$(curl -s "$URL?labelSelector=tier%3Dweb" | jq -r .metadata.resourceVersion)
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
//! Notice: DELETED with the old labels, although `a` exists; no event while `a` does not match; then ADDED.
//! Why: So get the object before you clean up after a DELETED. The watch of `tier=db` loses `a` as it becomes `web`. Then, while no
//! watch is open, `a` is deleted and created again, and `b` becomes `db`: in the next list, only the uid shows that `a` is another object, and `b` is missing.
//! Break it: cargo run --example course -- 14 --fault end-watches,lines=1
//! Source: `remove` in src/store.rs; `put` in src/store.rs
//! Embedded server: No difference.

use serde_json::{Value, json};

use crate::stage::{Outcome, Stage, ensure, name, say, version};

pub(crate) async fn run(stage: &Stage) -> Outcome {
    let tier = |tier: &str| json!({"metadata": {"labels": {"tier": tier}}});
    stage.create("a", json!({"tier": "web"})).await?;
    stage.create("b", json!({"tier": "web"})).await?;
    let before = stage.list("?labelSelector=tier%3Dweb").await?;
    stage.patch("a", tier("db")).await?;
    let blue = stage.patch("a", json!({"data": {"colour": "blue"}})).await?;
    stage.patch("a", tier("web")).await?;
    let query = format!("&labelSelector=tier%3Dweb&resourceVersion={}&timeoutSeconds=1", version(&before));
    let seen = stage.watch(&query).await?.take(usize::MAX).await?;
    ensure!(seen == ["DELETED a", "ADDED a"], "the watch has sent {seen:?}");
    let query = format!("&labelSelector=tier%3Ddb&resourceVersion={}", version(&blue));
    ensure!(stage.watch(&query).await?.take(1).await? == ["DELETED a"], "`a` has not left `tier=db`");
    stage.delete("a").await?;
    stage.create("a", json!({"tier": "web"})).await?;
    stage.patch("b", tier("db")).await?;
    let after = stage.list("?labelSelector=tier%3Dweb").await?;
    let names = |list: &Value| list["items"].as_array().into_iter().flatten().map(name).collect::<String>();
    ensure!(names(&before) == "ab" && names(&after) == "a", "the lists have {before} and {after}");
    let [before, after] = [before, after].map(|list| list["items"][0]["metadata"]["uid"].clone());
    say!("  uid of `a`: {before} before, {after} now");
    ensure!(before != after, "both objects have the same uid");
    Ok(())
}
