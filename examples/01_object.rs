//! 1. Discovery, and one object: discovery has the words of which paths are made.
//!
//! ```sh
//! API=http://127.0.0.1:8001
//! curl -s $API/api/v1 | jq -c '.resources[] | select(.name == "namespaces" or .name == "configmaps")'
//! curl -s $API/api/v1/namespaces/default
//! ```
//!
//! Predict: Which words of the path /api/v1/namespaces/default/configmaps/web come from discovery?
//! Run: cargo run --example course 1
//! Notice: `configmaps`, and, because `namespaced` is true, `namespaces/…`; `v1` is in the path that was asked.
//! Why: The verbs include list and watch. An object, here the namespace, has a name, a uid, which is never used again,
//! and a resourceVersion, which is new after each change.
//! Break it: cargo run --example course -- 1 --fault html,path=/api/v1
//! Source: `collection_path` in src/resource.rs
//! Embedded server: It serves fewer resources.

use serde_json::json;

use crate::stage::{Outcome, Stage, ensure, say, shorten, text};

pub(crate) async fn run(stage: &Stage) -> Outcome {
    let discovery = stage.get("/api/v1").await?;
    let resources = discovery["resources"].as_array().into_iter().flatten();
    let Some(configmaps) = resources.into_iter().find(|resource| resource["name"] == "configmaps") else {
        return Err("discovery has no configmaps".into());
    };
    say!("  {configmaps}\n");
    let has = |verb: &str| configmaps["verbs"].as_array().is_some_and(|verbs| verbs.contains(&json!(verb)));
    ensure!(configmaps["namespaced"] == true, "configmaps are not namespaced");
    ensure!(has("list") && has("watch"), "configmaps cannot be listed and watched");

    let object = stage.get(&stage.namespace).await?;
    say!("  {}", shorten(&object));
    for field in ["uid", "resourceVersion"] {
        say!("  {field} {}", object["metadata"][field]);
        ensure!(!text(&object["metadata"][field]).is_empty(), "the object has no {field}");
    }
    Ok(())
}
