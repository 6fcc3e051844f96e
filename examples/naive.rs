//! `naive`: a simple loop that loses changes. Lesson 5 shows what it loses; `reflector.rs` is the same loop, repaired.
//!
//! It watches from the newest item's version, handles ADDED and DELETED, compares versions as texts, and stops when its watch ends.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::stage::{Outcome, Stage, explain_as, name, say, show_explanations, text, version};

/// The colours of the ConfigMaps, by name.
pub(crate) type Store = BTreeMap<String, Value>;

/// Adds the objects, and returns the version of the newest.
pub(crate) async fn list(stage: &Stage, store: &mut Store) -> Outcome<String> {
    // The sentences of --explain are not about this loop.
    explain_as("a good client: ");
    let list = stage.get(&stage.configmaps).await?;
    let items = list["items"].as_array().into_iter().flatten();
    store.extend(items.clone().map(|item| (name(item).to_owned(), item["data"]["colour"].clone())));
    let newest = items.map(version).max().unwrap_or_default();
    say!(r#"  {{"list":"{}","newest":"{newest}"}}"#, version(&list));
    show_explanations()?;
    Ok(newest.to_owned())
}

/// Follows the changes after a version, for a second.
pub(crate) async fn watch(stage: &Stage, newest: &str, store: &mut Store) -> Outcome {
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
