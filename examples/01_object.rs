//! 1. Discovery, and one object: the server itself says which resources it has, and at which paths.
//!
//! ```sh
//! API=http://127.0.0.1:8001
//! curl -s $API/apis | jq -c '[.groups[].preferredVersion.groupVersion]'
//! curl -s $API/api/v1 | jq -c '.resources[] | select(.name == "namespaces" or .name == "configmaps")'
//! curl -s $API/api/v1/namespaces/default
//! ```
//!
//! Predict: A client knows only that it wants ConfigMaps. Which words of the path /api/v1/namespaces/default/configmaps/web can it learn from the server?
//! Run: cargo run --example course 1
//! Notice: `v1` and `configmaps`, and, because `namespaced` is true, that `namespaces/…` comes between them.
//! Why: These answers are called discovery. /apis has the API groups and their versions, without the oldest group, whose paths
//! begin with /api. The path of a version, /api/v1 or /apis/apps/v1, has its resources: name, kind, scope and verbs. By them, `kubectl get
//! cm` finds its path, also for the kinds of CRDs. Where the verbs include list and watch, the other lessons apply. An object,
//! here the namespace, has a name, a uid, which is never used again, and a resourceVersion, which is new after each change.
//! Break it: cargo run --example course -- 1 --fault html,path=/api/v1
//! Source: `collection_path` in src/resource.rs; `kinds` in study/src/discovery.rs
//! Embedded server: It has fewer groups and resources.

use serde_json::{Value, json};

use crate::stage::{Outcome, Stage, ensure, say, shorten, text};

pub(crate) async fn run(stage: &Stage) -> Outcome {
    let groups = stage.get("/apis").await?;
    let groups = groups["groups"].as_array().into_iter().flatten();
    say!("  {}\n", groups.map(|group| group["preferredVersion"]["groupVersion"].clone()).collect::<Value>());

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
