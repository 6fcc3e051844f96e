//! Sentences about an answer while it comes: its head, the events of a watch, and half a line.

use listwatch::watch::{Effect, EndReason, apply_line, decode::WatchEvent};

use super::{
    Asked, Explainer,
    error_status::event_error,
    followed::{By, Followed},
    rule::Rule,
    seconds,
};
use crate::record::{AnswerHead, Entry};

impl Explainer {
    pub(super) fn head(&mut self, entry: &Entry, head: &AnswerHead) {
        let Some(exchange) = self.exchanges.get_mut(&entry.exchange) else { return };
        exchange.heard = entry.time;
        exchange.head = Some(head.clone());
        if exchange.asked != Asked::Watch || head.status != 200 {
            return;
        }
        let Some(followed) = exchange.collection.as_ref().and_then(|key| self.collections.get(key)) else {
            return;
        };
        let (rule, text) = if followed.machine.is_streaming() {
            let text = "the watch is open: it sends every object first, as ADDED, in no order; no watch can resume from \
                        their versions";
            (Rule::InitialEvents, text.to_owned())
        } else if followed.is_unversioned() {
            let end = if exchange.target.contains("allowWatchBookmarks=true") {
                "a BOOKMARK comes after them"
            } else {
                "without allowWatchBookmarks, nothing marks their end"
            };
            let begin = if exchange.version == "0" {
                "from version 0, so from any, it sends the objects in the server's cache first, perhaps old ones"
            } else {
                "without a version, it sends the existing objects first"
            };
            (Rule::InitialEvents, format!("the watch is open: {begin}, as ADDED, in no order; {end}"))
        } else {
            let version = followed.store.version();
            let text = format!(
                "the watch is open: it sends every change after {version}, in order, if the server still has them"
            );
            (Rule::WatchOpened, text)
        };
        self.say(rule, text);
    }

    pub(super) fn line(&mut self, entry: &Entry, line: &str) {
        let Some(exchange) = self.exchanges.get_mut(&entry.exchange) else { return };
        exchange.heard = entry.time;
        let is_error = exchange.head.as_ref().is_some_and(|head| head.status >= 300);
        if exchange.asked != Asked::Watch || is_error {
            exchange.body += line;
            exchange.body.push('\n');
            return;
        }
        let lasted = seconds(entry.time - exchange.began);
        let Some(key) = exchange.collection.clone() else { return };
        let Some(followed) = self.collections.get_mut(&key) else { return };
        let (was_unversioned, by_list) = (followed.is_unversioned(), followed.by_list());
        let Followed { machine, store, .. } = followed;
        let (mut unlisted, mut status, mut type_name) = (None, None, String::new());
        let effect = apply_line(store, line.as_bytes(), |event| {
            event.type_name().clone_into(&mut type_name);
            match event {
                WatchEvent::Modified(object) | WatchEvent::Deleted(object) => {
                    let is_unlisted = !store.is_synced() && store.find(&object.metadata().key()).is_none();
                    unlisted = is_unlisted.then(|| object.metadata().clone());
                }
                WatchEvent::Error(error) => status = Some(error.clone()),
                WatchEvent::Added(_) | WatchEvent::Bookmark { .. } | WatchEvent::Unknown(_) => {}
            }
            machine.line(event)
        });
        if was_unversioned && !matches!(effect, Ok(Effect::Bookmark(_))) {
            store.bookmark(&"".into());
        }
        match effect {
            Ok(Effect::Apply) => {
                let by = if unlisted.is_some() { By::EventBeforeList } else { By::Event };
                self.changed(&key, by);
            }
            Ok(Effect::Remove) => {
                self.changed(&key, By::Event);
                if let Some(metadata) = unlisted {
                    self.deleted_before_list(&key, &metadata);
                }
            }
            Ok(Effect::Listed) => {
                self.changed(&key, by_list);
            }
            Ok(Effect::Complete(version)) => {
                let text = format!(
                    "BOOKMARK {version} with k8s.io/initial-events-end: every existing object has been sent"
                );
                self.say(Rule::InitialEventsEnd, text);
                let removed = self.changed(&key, by_list);
                self.listed(&key, by_list, removed);
            }
            Ok(Effect::Bookmark(version)) => {
                let text = format!(
                    "BOOKMARK {version}: no object; every change up to {version} has been sent, so a watch can resume from there"
                );
                self.say(Rule::Bookmark, text);
            }
            Ok(Effect::Skip) => {
                self.say(Rule::UnknownType, format!("an event of the unknown type {type_name}: passed over"));
            }
            Ok(Effect::End(how)) => {
                let (rule, text) = match &status {
                    Some(status) => event_error(status),
                    None => (
                        Rule::NoStreamingLists,
                        "a change before the end of the initial events: this server ignores sendInitialEvents → list in pages from now on"
                            .to_owned(),
                    ),
                };
                self.ends(entry.exchange, rule, text, how, lasted);
            }
            Err(error) => {
                let text =
                    format!("this line is not a watch event ({error}): nothing after it can be trusted");
                self.ends(entry.exchange, Rule::Garbled, text, EndReason::Garbled, lasted);
            }
        }
    }

    /// Handles the bytes after the last line: of a list, all of it; of a watch, a line that was cut.
    pub(super) fn rest(&mut self, entry: &Entry, rest: &str) {
        let Some(exchange) = self.exchanges.get_mut(&entry.exchange) else { return };
        exchange.heard = entry.time;
        if exchange.asked == Asked::Watch && exchange.head.as_ref().is_none_or(|head| head.status == 200) {
            let text = "the last line has no end: it is dropped, and the next watch sends that event again";
            return self.say(Rule::HalfLine, text);
        }
        exchange.body += rest;
    }
}
