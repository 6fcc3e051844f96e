//! 2. A list: it has a resourceVersion of its own, and each item has another one.
//!
//! ```sh
//! curl -s 'http://127.0.0.1:8001/api/v1/namespaces/default/configmaps' | jq -c '.metadata, .items[].metadata.resourceVersion'
//! ```
//!
//! Predict: `b` is created after `a`, and deleted. Does the list have the version of `a`, the version of `b`, or another one?
//! Run: cargo run --example course 2
//! Notice: Another one, newer than both.
//! Why: The list is the state after all changes up to its version, also after the deletion of `b`. An item has the version of its own
//! last change. To watch from here, send the version of the list. Lesson 20 has lists as of other versions. (A controller puts
//! kube-root-ca.crt into every namespace.)
//! Break it: cargo run --example course -- 2 --fault internal-error,method=GET,path=/configmaps
//! Source: `from_json` in src/resource/list.rs; `compare_versions` in src/resource.rs
//! Embedded server: No difference.

use std::cmp::Ordering;

use listwatch::resource::compare_versions;
use serde_json::json;

use crate::stage::{Outcome, Stage, ensure, say, shorten, version};

pub(crate) async fn run(stage: &Stage) -> Outcome {
    stage.create("a", json!({})).await?;
    let b = stage.create("b", json!({})).await?;
    stage.delete("b").await?;

    let list = stage.get(&stage.configmaps).await?;
    say!("  {}: {}", list["kind"], list["metadata"]);
    for item in list["items"].as_array().into_iter().flatten() {
        say!("    {}", shorten(item));
    }
    say!("  `b` had version {}", version(&b));
    ensure!(
        compare_versions(version(&list), version(&b)) == Some(Ordering::Greater),
        "the list's version {} is not newer than `b`'s, {}",
        version(&list),
        version(&b)
    );
    Ok(())
}
