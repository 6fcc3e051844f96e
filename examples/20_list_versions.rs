//! 20. Three lists side by side: with the version unset, `0` and exact. What each promises, and what it costs the server.
//!
//! ```sh
//! URL=http://127.0.0.1:8001/api/v1/namespaces/default/configmaps
//! VERSION=$(curl -s $URL | jq -r .metadata.resourceVersion)
//! NAMES='{version: .metadata.resourceVersion, names: [.items[].metadata.name]}'
//! curl -s $URL | jq -c "$NAMES"
//! curl -s "$URL?resourceVersion=0" | jq -c "$NAMES"
//! curl -s "$URL?resourceVersion=$VERSION&resourceVersionMatch=Exact" | jq -c "$NAMES"
//! curl -s "$URL?resourceVersion=$VERSION&resourceVersionMatch=NotOlderThan" | jq -c "$NAMES"
//! ```
//!
//! Predict: After a list of version V, `b` is created. Which of the lists unset, `0`, exactly V and not older than V must have `b`?
//! Run: cargo run --example course 20
//! Notice: Only the unset one must; the exact one must not, and the others may or may not.
//! Why: Unset is the most recent state: the server asks etcd for its version, and answers from its watch cache once that has it. `0` is
//! whatever the cache has, without a question to etcd, and perhaps older than what you have seen. NotOlderThan waits until the cache has V,
//! so it never goes back in time: for the list after a 410. Exact is the past, from a snapshot of the cache or from etcd, or a 410: a client that
//! took it for the present would delete `b`, as --explain shows. A limit changes two of the lists: with `0`, the server ignores it, and with a
//! bare V, the list becomes exact. See docs/watch.md, sections 1 and 17.
//! Break it: cargo run --example course -- 20 --fault expired,path=Exact
//! Source: `list_page` in src/client/list.rs; `list_after_expiry` in src/watch/machine.rs
//! Embedded server: It has no cache that is behind: `0` is the most recent state.

use serde_json::json;

use crate::stage::{Outcome, Stage, ensure, name, say, version};

pub(crate) async fn run(stage: &Stage) -> Outcome {
    stage.create("a", json!({})).await?;
    let v = version(&stage.list("").await?).to_owned();
    stage.create("b", json!({})).await?;
    for (query, must_have, is_exact) in [
        (String::new(), "ab", false),
        ("?resourceVersion=0".to_owned(), "", false),
        (format!("?resourceVersion={v}&resourceVersionMatch=Exact"), "a", true),
        (format!("?resourceVersion={v}&resourceVersionMatch=NotOlderThan"), "a", false),
        ("?resourceVersion=0&limit=1".to_owned(), "", false),
        (format!("?resourceVersion={v}&limit=1"), "a", true),
    ] {
        say!("");
        let list = stage.list(&query).await?;
        let names: Vec<_> = list["items"].as_array().into_iter().flatten().map(name).collect();
        ensure!(must_have.chars().all(|one| names.contains(&&*one.to_string())), "the list has {names:?}");
        ensure!(!is_exact || version(&list) == v && !names.contains(&"b"), "not the state of {v}: {list}");
        ensure!(!query.contains("=0") || list["metadata"]["continue"].is_null(), "a page: {list}");
    }
    Ok(())
}
