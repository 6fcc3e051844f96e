//! 21. What a watch costs the server: one write is sent to each watch that wants it, and nothing to the others.
//!
//! ```sh
//! URL='http://127.0.0.1:8001/api/v1/namespaces/default/configmaps?watch=1&resourceVersion=0&timeoutSeconds=1'
//! COUNT='{"lines": length, "bytes": (map(tojson | length) | add // 0)}'
//! curl -sN "$URL" | jq -cs "$COUNT"
//! curl -sN "$URL&labelSelector=tier%3Dnone" | jq -cs "$COUNT"
//! curl -sN -H 'accept: application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1' "$URL" | jq -cs "$COUNT"
//! ```
//!
//! Predict: 15 watches are open: 5 of all ConfigMaps, 5 with a label that none has, 5 for metadata. One ConfigMap of 20 kB changes. How many bytes are sent?
//! Run: cargo run --example course 21
//! Notice: Some 100 kB: five times the object, five times its metadata, and nothing with the selector.
//! Why: kube-apiserver watches etcd once for each kind. It finds the watches that are about the namespace or the name of a change, compares the
//! object with their selectors, and sends it where it matches, encoded once for each form. So a watch costs nothing while nothing happens, and a
//! write costs what its watchers make of it. The expensive part is the list before a watch, or the initial events at its beginning: when clients
//! ask for too many of these at the same time, the server refuses some with 429. docs/watch.md, section 17, has measured numbers.
//! Break it: cargo run --example course -- 21 --fault too-many-requests,path=watch=1,retry-after=9
//! Source: `watch_request` in src/client/list.rs; `accept` in src/client.rs
//! Embedded server: No difference in bytes. It does not refuse with 429 by itself.

use listwatch::client::Request;
use serde_json::json;

use crate::stage::{Outcome, Stage, accept, ensure, version};

pub(crate) async fn run(stage: &Stage) -> Outcome {
    stage.create("large", json!({})).await?;
    stage.fill("large", 20_000).await?;
    let from = version(&stage.list("").await?).to_owned();
    let path = format!("{}?watch=1&resourceVersion={from}&timeoutSeconds=10", stage.configmaps);
    let whole = stage.open_each(5, &Request::get(&*path)).await?;
    let other = stage.open_each(5, &Request::get(format!("{path}&labelSelector=tier%3Dnone"))).await?;
    let metadata = stage.open_each(5, &accept(&path, "PartialObjectMetadata")).await?;
    stage.patch("large", json!({"data": {"colour": "blue"}})).await?;
    let mut sent = Vec::new();
    for (what, watches) in [("whole", whole), ("another label", other), ("metadata", metadata)] {
        sent.push(watches.bytes(what).await?);
    }
    ensure!(sent[0] > 100_000 && sent[1] == 0 && sent[2] < 10_000, "the watches have sent {sent:?} bytes");
    Ok(())
}
