//! 5. `naive`: a simple loop, and what it loses. Each of the lessons 6 to 16 repairs one of its losses.
//!
//! ```sh
//! URL=http://127.0.0.1:8001/api/v1/namespaces
//! curl -s $URL | jq -c '{list: .metadata.resourceVersion, newest: [.items[].metadata.resourceVersion] | max}'
//! VERSION=$(curl -s $URL | jq -r '[.items[].metadata.resourceVersion] | max')
//! curl -sN "$URL?watch=1&resourceVersion=$VERSION&timeoutSeconds=1"
//! ```
//!
//! Predict: While the loop watches, `a` changes and `b` is created. Later `c` is created, and deleted. What does it get right?
//! Run: cargo run --example course 5
//! Notice: Only `b`. The loop ignores MODIFIED. It stops when no event comes, and misses what follows. Its next round
//! adds the objects of a list, but removes none. It ignores the ERROR of an expired version. As a text, "99" is newer
//! than "100".
//! Break it: cargo run --example course -- 5 --fault end-watches,lines=0
//! Source: `line` in src/watch.rs; `end` in src/watch/machine.rs
//! Embedded server: Only here does the history expire at once, and the versions are still small. On another server, the
//! lesson shows neither the lost deletion nor the lost order.

use std::collections::BTreeMap;

use http::Method;
use serde_json::{Value, json};

use crate::stage::{Outcome, Stage, ensure, name, say, text, version};

type Store = BTreeMap<String, Value>;

/// Adds the objects, and returns the version of the newest.
async fn list(stage: &Stage, store: &mut Store) -> Outcome<String> {
    let list = stage.get(&stage.configmaps).await?;
    let items = list["items"].as_array().into_iter().flatten();
    store.extend(items.clone().map(|item| (name(item).to_owned(), item["data"]["colour"].clone())));
    let newest = items.map(version).max().unwrap_or_default();
    say!(r#"  {{"list":"{}","newest":"{newest}"}}"#, version(&list));
    Ok(newest.to_owned())
}

async fn watch(stage: &Stage, newest: &str, store: &mut Store) -> Outcome {
    let mut events = stage.watch(&format!("&resourceVersion={newest}&timeoutSeconds=1")).await?;
    while let Some(event) = events.next().await? {
        let name = name(&event["object"]).to_owned();
        match text(&event["type"]) {
            "ADDED" => drop(store.insert(name, event["object"]["data"]["colour"].clone())),
            "DELETED" => drop(store.remove(&name)),
            _ => {}
        }
    }
    Ok(())
}

pub(crate) async fn run(stage: &Stage) -> Outcome {
    let store = &mut Store::new();
    stage.create("a", json!({})).await?;
    let newest = list(stage, store).await?;
    stage.create("b", json!({})).await?;
    stage.patch("a", json!({"data": {"colour": "blue"}})).await?;
    watch(stage, &newest, store).await?;
    ensure!(store.contains_key("b") && store["a"] == "red", "expected `b` and a red `a`: {store:?}");
    say!("LOST a change: `a` is blue, and here it is {}\n", store["a"]);

    stage.create("c", json!({})).await?;
    ensure!(!store.contains_key("c"), "the loop has not ended");
    say!("LOST an object: `c` exists, but not here\n");

    list(stage, store).await?;
    stage.delete("c").await?;
    if stage.fault("expire-history").await? {
        let newest = list(stage, store).await?;
        watch(stage, &newest, store).await?;
        ensure!(store.contains_key("c"), "the deletion of `c` was noticed");
        say!("LOST a deletion: `c` is gone, but not here\n");

        let (mut before, mut now) =
            (stage.create("d", json!({})).await?, stage.create("e", json!({})).await?);
        say!("PATCH d and e in turn, until the version has one digit more");
        while version(&before).len() == version(&now).len() {
            let path = format!("{}/{}", stage.configmaps, name(&before));
            let next = stage.send(Method::PATCH, &path, &json!({"data": {"after": version(&now)}})).await?;
            (before, now) = (now, next);
        }
        let newest = list(stage, store).await?;
        ensure!(newest == version(&before), "the loop has found the newest version");
        say!("LOST the order: the newest version is {}, and the loop watches from {newest}", version(&now));
    }
    Ok(())
}
