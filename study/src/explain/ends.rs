//! Sentences about the end of an exchange, and the request that follows.

use std::time::Duration;

use listwatch::{
    advanced::CHECK_BYTES_MAX,
    resource::list::List,
    watch::{self, Effect, EndReason, NextRequest},
};

use super::{
    Asked, Explainer, OpenExchange,
    followed::{Followed, TIMEOUT_SECS},
    objects,
    rule::Rule,
    seconds,
};
use crate::{
    object::Object,
    record::{AnswerEnd, Entry},
};

impl Explainer {
    pub(super) fn end(&mut self, entry: &Entry, end: AnswerEnd) {
        let Some(exchange) = self.exchanges.get(&entry.exchange) else { return };
        let lasted = seconds(entry.time - exchange.began);
        let (asked, status) = (exchange.asked, exchange.head.as_ref().map(|head| head.status));
        let (key, is_write) = (exchange.collection.clone(), exchange.method != "GET");
        if asked == Asked::Object {
            self.remember(entry.exchange);
        }
        if status.is_some_and(|status| status >= 300) && !is_write {
            return self.refused(entry, lasted);
        }
        let Some(key) = key else {
            self.exchanges.remove(&entry.exchange);
            if end == AnswerEnd::Lost && status.is_none() {
                self.say(Rule::NoAnswer, "no answer: the server cannot be reached");
            }
            return;
        };
        match (asked, end) {
            (_, AnswerEnd::Lost) if status.is_none() => {
                let text = "no answer: the server cannot be reached → back off".to_owned();
                self.ends(entry.exchange, Rule::Unreachable, text, EndReason::Unreachable, lasted);
            }
            (Asked::Watch, AnswerEnd::Clean) => self.watch_ends_cleanly(entry.exchange, &key, lasted),
            (Asked::Watch, AnswerEnd::Lost) => {
                let Some(followed) = self.collections.get(&key) else { return };
                let (rule, text) = if followed.machine.is_streaming() || followed.is_unversioned() {
                    let text = "the connection broke, and no watch can resume from the versions of initial events → list";
                    (Rule::NoVersion, text)
                } else {
                    let text = "the connection broke; the lines before it count → check the server's version, then resume";
                    (Rule::Cut, text)
                };
                self.ends(entry.exchange, rule, text.to_owned(), EndReason::Cut, lasted);
            }
            (Asked::Watch, AnswerEnd::Dropped) if status.is_some() => {
                self.watch_is_dropped(entry, &key, lasted)
            }
            (Asked::Watch | Asked::List | Asked::Check, AnswerEnd::Dropped) => {
                self.is_dropped(entry, &key, lasted)
            }
            (Asked::List | Asked::Check, AnswerEnd::Clean) => self.answered(entry.exchange, &key, lasted),
            (Asked::List | Asked::Check, AnswerEnd::Lost) => {
                let text = "the connection broke within the answer → back off".to_owned();
                self.ends(entry.exchange, Rule::Unreachable, text, EndReason::Unreachable, lasted);
            }
            (Asked::Object | Asked::Other, _) => {
                self.exchanges.remove(&entry.exchange);
            }
        }
    }

    /// The server has ended an open watch.
    fn watch_ends_cleanly(&mut self, exchange: u64, key: &str, lasted: Duration) {
        let Some(followed) = self.collections.get_mut(key) else { return };
        let (was_streaming, is_unversioned) = (followed.machine.is_streaming(), followed.is_unversioned());
        let pause = followed.failed(EndReason::Clean, lasted);
        let version = followed.store.version();
        let ended =
            format!("the server ended the watch after {:.1} s, as it may at any time", lasted.as_secs_f64());
        let (rule, text) = if was_streaming {
            let text = "the watch ended before the end of the initial events → list in pages from now on";
            (Rule::NoStreamingLists, text.to_owned())
        } else if !pause.is_empty() {
            let text = "the watch ended within a second, and no line changed the version: that is a failure → back off";
            (Rule::VeryShort, text.to_owned())
        } else if is_unversioned {
            let text = format!("{ended}; no watch can resume from the versions of initial events → list");
            (Rule::NoVersion, text)
        } else if followed.machine.is_checking() {
            let text = format!(
                "{ended}; it sent no line, as after a version from the future → check the server's version, then resume from {version}"
            );
            (Rule::EmptyEnd, text)
        } else {
            (Rule::CleanEnd, format!("{ended} → resume from {version} at once, without a list"))
        };
        self.exchanges.remove(&exchange);
        self.say(rule, text + &pause);
        self.next(key);
    }

    fn watch_is_dropped(&mut self, entry: &Entry, key: &str, lasted: Duration) {
        let Some(OpenExchange { heard, timeout_secs, .. }) = self.exchanges.get(&entry.exchange) else {
            return;
        };
        let silent = seconds(entry.time - heard);
        let Some(Followed { machine, .. }) = self.collections.get(key) else { return };
        // A user may give up earlier than the operator, which waits for half a minute more.
        let end_is_due = Duration::from_secs((*timeout_secs).into()) + watch::VERY_SHORT;
        if silent < machine.silence_limit(*timeout_secs) && lasted < end_is_due {
            self.exchanges.remove(&entry.exchange);
            return;
        }
        let text = format!(
            "nothing came for {} s, though a line or the end of the watch was due: the connection may be dead",
            silent.as_secs()
        );
        self.ends(entry.exchange, Rule::Silent, text, EndReason::Silent, lasted);
    }

    /// The client has given up a request before the head of a watch, or the whole of another answer, had come.
    fn is_dropped(&mut self, entry: &Entry, key: &str, lasted: Duration) {
        let Some(OpenExchange { body, asked, .. }) = self.exchanges.get(&entry.exchange) else { return };
        let Some(Followed { machine, .. }) = self.collections.get_mut(key) else { return };
        let bytes_max = match machine.request("", TIMEOUT_SECS) {
            NextRequest::List(page) => page.bytes_max(),
            NextRequest::Check | NextRequest::Watch(_) => CHECK_BYTES_MAX,
        };
        if *asked != Asked::Watch && body.len() > bytes_max {
            let text = format!("an answer of more than {} KiB is not read to its end", bytes_max / 1024);
            let (rule, text) = if *asked == Asked::Check {
                (Rule::Refused, text + ": the same request would fail again")
            } else {
                (Rule::TooLarge, text)
            };
            return self.ends(entry.exchange, rule, text, EndReason::TooLarge, lasted);
        }
        // A part of the time has passed before the exchange begins.
        if lasted < self.request_timeout.mul_f64(0.9) {
            self.exchanges.remove(&entry.exchange);
            return;
        }
        let text = format!("no whole answer within {} s → back off", lasted.as_secs_f64().round());
        self.ends(entry.exchange, Rule::Late, text, EndReason::Late, lasted);
    }

    /// A whole answer with status 200.
    fn answered(&mut self, exchange: u64, key: &str, lasted: Duration) {
        let Some(OpenExchange { body, asked, .. }) = self.exchanges.get(&exchange) else { return };
        let (list, asked) = (List::<Object>::from_json(body.as_bytes()), *asked);
        let Some(followed) = self.collections.get_mut(key) else { return };
        let list = match list {
            Ok(list) => list,
            // curl wrote one object.
            Err(_) if followed.collection.path.is_empty() => {
                self.collections.remove(key);
                return;
            }
            Err(error) => {
                let text = format!("the answer is not a list ({error}): the store stays as it is → back off");
                return self.ends(exchange, Rule::NoList, text, EndReason::Garbled, lasted);
            }
        };
        if asked == Asked::Check {
            self.exchanges.remove(&exchange);
            let (version, known) = (list.version.clone(), followed.store.version());
            followed.machine.checked(&version);
            let (rule, text) = if followed.machine.is_listing() {
                let text = format!(
                    "the server is at {version}, before our {known}: it was restored from a backup → list everything again"
                );
                (Rule::WentBack, text)
            } else {
                let text =
                    format!("the server is at {version}, not before our {known} → resume from {known}");
                (Rule::Checked, text)
            };
            self.say(rule, text);
            return self.next(key);
        }
        let (count, by) = (list.items.len(), followed.by_list());
        let effect = followed.machine.page(&list.version, &list.continue_token);
        if let Effect::End(how) = effect {
            let text =
                "the page repeats the continue token that led to it → back off, then list from the start"
                    .to_owned();
            return self.ends(exchange, Rule::RepeatedToken, text, how, lasted);
        }
        self.exchanges.remove(&exchange);
        followed.store.listed(&list.version, list.items);
        if let Effect::Complete(version) = &effect {
            followed.store.list_ends(version);
            self.say(Rule::Page, format!("a page of {}, the last one", objects(count)));
            let removed = self.changed(key, by);
            self.listed(key, by, removed);
        } else {
            let text = format!("a page of {}; metadata.continue leads to the next page", objects(count));
            self.say(Rule::Page, text);
            self.changed(key, by);
        }
        self.next(key);
    }

    /// The end of an exchange, and what follows from it.
    pub(super) fn ends(
        &mut self,
        exchange: u64,
        rule: Rule,
        mut text: String,
        how: EndReason,
        lasted: Duration,
    ) {
        let Some(OpenExchange { collection: Some(key), .. }) = self.exchanges.remove(&exchange) else {
            return self.say(rule, text);
        };
        if let Some(followed) = self.collections.get_mut(&key) {
            text += &followed.failed(how, lasted);
        }
        self.say(rule, text);
        self.next(&key);
    }
}
