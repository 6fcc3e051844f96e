//! 7. Cut in the middle of a line, and resumed: nothing is lost, and nothing comes twice.
//!
//! ```sh
//! URL=http://127.0.0.1:8001/api/v1/namespaces/default/configmaps
//! WATCH="$URL?watch=1&timeoutSeconds=1&resourceVersion="
//! VERSION=$(curl -s $URL | jq -r .metadata.resourceVersion)
//! curl -s -o /dev/null -H 'content-type: application/json' -d '{"metadata": {"name": "listwatch-course"}}' $URL
//! curl -s -o /dev/null -X DELETE $URL/listwatch-course
//! curl -sN "$WATCH$VERSION" | head -c 100; echo
//! VERSION=$(curl -sN "$WATCH$VERSION" | head -1 | jq -r .object.metadata.resourceVersion)
//! curl -sN "$WATCH$VERSION"
//! ```
//!
//! Predict: The connection breaks after two events and a half. From which version must the next watch begin?
//! Run: cargo run --example course 7
//! Notice: From the version of the last complete line; the change of the half line comes again as a whole.
//! Why: The half line is dropped. The bytes come in pieces that end anywhere, also within a character: so find the line feed before
//! you decode.
//! Break it: cargo run --example course -- 7 --fault gone,path=watch=1
//! Source: `next_line` in src/watch/decode.rs; `follow` in src/watch.rs
//! Embedded server: It cuts the watch on request. No request makes another server do that, so there the lesson drops the connection.

use crate::stage::{Outcome, Stage, ensure, name, version};

pub(crate) async fn run(stage: &Stage) -> Outcome {
    let list = stage.list("").await?;
    let mut from = version(&list).to_owned();
    stage.create_each(["w", "x", "y", "z"]).await?;
    let is_cut = stage.fault("cut-watches,lines=2").await?;
    let mut seen = Vec::new();
    while seen.len() < 4 {
        let mut events = stage.watch(&format!("&resourceVersion={from}&timeoutSeconds=5")).await?;
        while let Ok(Some(event)) = events.next().await {
            seen.push(name(&event["object"]).to_owned());
            events.version.clone_into(&mut from);
            if seen.len() == 4 || (!is_cut && seen.len() == 2) {
                break;
            }
        }
    }
    ensure!(seen == ["w", "x", "y", "z"], "the watches have sent {seen:?}");
    Ok(())
}
