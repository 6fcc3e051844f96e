//! 11. Pages: a large list in pieces of one version, and a continue token that expires between them.
//!
//! ```sh
//! URL=http://127.0.0.1:8001/api/v1/namespaces/default/configmaps
//! curl -s "$URL?limit=2" | jq -c .metadata
//! NEXT=$(curl -s "$URL?limit=2" | jq -r .metadata.continue)
//! curl -s "$URL?limit=2&continue=$NEXT" | jq -c '.metadata, .items[].metadata.name'
//! ```
//!
//! Predict: After the first page, `e` is deleted and `f` created. Which of them are on the next pages?
//! Run: cargo run --example course 11
//! Notice: `e` is there, and `f` is not.
//! Why: All pages have the version of the first page; a watch from that version sends the deletion of `e`. When the
//! server no longer has that version, it refuses the token with 410: start the list again, and never use the token that the
//! refusal offers. Send no resourceVersion with a token. remainingItemCount counts the later objects, also kube-root-ca.crt.
//! Break it: cargo run --example course -- 11 --fault internal-error,path=continue=
//! Source: `page` in src/watch/machine.rs; `expired` in src/watch/machine.rs
//! Embedded server: Only here does a token expire at once. Elsewhere, the lesson sends one of version 1 (lesson 9).

use serde_json::{Value, json};

use crate::stage::{EXPIRED_TOKEN, Outcome, Stage, ensure, name, say, text, version};

/// Shows a page, and returns the names on it, without kube-root-ca.crt.
fn show(page: &Value) -> Outcome<String> {
    let names: Vec<_> = page["items"].as_array().into_iter().flatten().map(name).collect();
    say!("  {names:?} {}", page["metadata"]);
    Ok(names.into_iter().filter(|name| name.len() == 1).collect())
}

pub(crate) async fn run(stage: &Stage) -> Outcome {
    stage.create_each(["a", "b", "c", "d", "e"]).await?;
    let path = format!("{}?limit=2", stage.configmaps);
    let next = |page: &Value| format!("{path}&continue={}", text(&page["metadata"]["continue"]));
    let first = stage.get(&path).await?;
    let (mut page, mut names) = (first.clone(), show(&first)?);
    stage.delete("e").await?;
    stage.create("f", json!({})).await?;
    while page["metadata"]["continue"].as_str().is_some_and(|token| !token.is_empty()) {
        page = stage.get(&next(&page)).await?;
        names += &show(&page)?;
        ensure!(version(&page) == version(&first), "a page has version {}", version(&page));
    }
    ensure!(names == "abcde", "the pages have {names}");
    let of_version_1 = format!("/api/v1/events?limit=2&continue={EXPIRED_TOKEN}");
    let expired = if stage.fault("expire-history").await? { next(&first) } else { of_version_1 };
    let error = stage.refused(&expired, "410: has the server run for ten minutes?").await?;
    ensure!(error.is_expired(), "the error is no 410");
    Ok(())
}
