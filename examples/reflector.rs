//! `reflector`: the loop of `naive.rs`, repaired rule by rule. The numbers are the numbers of the lessons.
//!
//! It still gives up when a request is refused; `src/watch.rs` does not. That loop also has growing pauses, pages, streaming
//! lists, and objects that cannot be decoded.

use std::{cmp::Ordering::Less, collections::BTreeMap, time::Duration};

use listwatch::resource::compare_versions;
use serde_json::Value;
use tokio::time::timeout;

use crate::stage::{Outcome, Stage, name, say, text, version};

#[derive(Default)]
pub(crate) struct Reflector {
    pub(crate) store: BTreeMap<String, Value>,
    from: String, // the store has every change up to this version; empty: a list is needed
}

impl Reflector {
    /// Keeps the store equal to the server, until it has an object of this name.
    pub(crate) async fn reflect(&mut self, stage: &Stage, until: &str) -> Outcome {
        while !self.store.contains_key(until) {
            if self.from.is_empty() {
                // The list replaces the store: what it does not have was deleted (16). Its version is its own (2).
                let list = stage.list("").await?;
                let items = list["items"].as_array().into_iter().flatten();
                let gone = self.store.keys().filter(|key| !items.clone().any(|item| name(item) == *key));
                say!("  not in the list, so deleted: {:?}", gone.collect::<Vec<_>>());
                self.store = items.map(|item| (name(item).to_owned(), item["data"].clone())).collect();
                version(&list).clone_into(&mut self.from);
            } else if !self.follow(stage, until).await? {
                // An end (6) or a cut (7) is not a reason to list, but the server may have been restored from a backup (10).
                let check = stage.check().await?;
                say!("  check: server at {}, store at {}", version(&check), self.from);
                if compare_versions(version(&check), &self.from) == Some(Less) {
                    self.from.clear();
                }
            }
            // A pause, because a watch may end at once, again and again (15).
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    }

    /// Follows one watch. Returns whether no check is needed: after a clean end with a line.
    async fn follow(&mut self, stage: &Stage, until: &str) -> Outcome<bool> {
        let query = format!("&allowWatchBookmarks=true&timeoutSeconds=5&resourceVersion={}", self.from);
        let (mut events, from) = (stage.watch(&query).await?, self.from.clone());
        // Nothing for longer than timeoutSeconds is also a cut (10).
        while !self.store.contains_key(until)
            && let Ok(Ok(event)) = timeout(Duration::from_secs(7), events.next()).await
        {
            let Some(event) = event else { return Ok(self.from != from) };
            let (name, data) = (name(&event["object"]), &event["object"]["data"]);
            match text(&event["type"]) {
                "ADDED" | "MODIFIED" => drop(self.store.insert(name.to_owned(), data.clone())),
                "DELETED" => drop(self.store.remove(name)),
                // A BOOKMARK has only a version (8). An ERROR such as 410 has none, so a list follows (9).
                _ => {}
            }
            events.version.clone_into(&mut self.from);
        }
        Ok(self.store.contains_key(until))
    }
}
