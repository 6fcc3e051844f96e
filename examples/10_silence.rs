//! 10. Silence: a watch from a future version, as after a restored backup, and a watch on a dead connection.
//!
//! ```sh
//! URL=http://127.0.0.1:8001/api/v1/namespaces/default/configmaps
//! curl -sN "$URL?watch=1&resourceVersion=999999999999&timeoutSeconds=1"
//! curl -s -H 'accept: application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1' "$URL?limit=1" | jq -c .metadata
//! curl -s "$URL?resourceVersion=999999999999&resourceVersionMatch=NotOlderThan"
//! ```
//!
//! Predict: The server was restored from a backup, and its versions are older than yours. What does your watch get?
//! Run: cargo run --example course 10
//! Notice: Nothing, not even an error, while a list with NotOlderThan is refused with 504.
//! Why: So before you resume, list one object: if the version of that list is older than yours, list everything. A dead
//! connection is also silent: wait only a little longer than timeoutSeconds, or send PINGs.
//! Break it: cargo run --example course -- 10 --fault expire-watches,lines=0
//! Source: `checked` in src/watch/machine.rs; `silence_limit` in src/watch/machine.rs
//! Embedded server: Only here can the lesson restore a backup and stall a watch. Elsewhere, it makes up a version.

use std::{cmp::Ordering::Less, time::Duration};

use listwatch::resource::compare_versions;
use tokio::time::timeout;

use crate::stage::{Outcome, Stage, ensure, say, version};

pub(crate) async fn run(stage: &Stage) -> Outcome {
    let mut ours = format!("9{}", version(&stage.list("").await?));
    if stage.fault("backup").await? {
        stage.create_each(["lost"]).await?;
        ours = stage.change("lost", 50).await?;
        stage.fault("restore").await?;
    }
    let mut events = stage.watch(&format!("&resourceVersion={ours}&timeoutSeconds=2")).await?;
    stage.create_each(["a"]).await?;
    let seen = events.take(usize::MAX).await?;
    ensure!(seen.is_empty(), "the watch from the future has sent {seen:?}");
    let check = stage.check().await?;
    ensure!(compare_versions(version(&check), &ours) == Some(Less), "the server is not older");
    say!("  the server is at {}, older than {ours}: list again\n", version(&check));
    let list = format!("{}?resourceVersion={ours}&resourceVersionMatch=NotOlderThan", stage.configmaps);
    ensure!(stage.refused(&list, "504").await?.is_too_new(), "the list has another error");
    if stage.fault("stall-watches").await? {
        let mut events = stage.watch("&timeoutSeconds=1").await?;
        stage.create_each(["b"]).await?;
        let is_silent = timeout(Duration::from_secs(2), events.next()).await.is_err();
        ensure!(is_silent, "the stalled watch has sent something");
        say!("  nothing for 2 s, neither `b` nor the end after timeoutSeconds=1: watch again");
    }
    Ok(())
}
