//! Explains recorded exchanges, one sentence for each thing worth noticing, by the decoder, the [`Machine`] and the [`Store`]
//! of the operator. Nothing in this file does I/O.
//!
//! ```text
//! 410 (too old resource version): the server no longer has the changes from there → list again (mistake 7)
//! next: GET /api/v1/pods?limit=100&resourceVersion=1207&resourceVersionMatch=NotOlderThan
//! ```
//!
//! The mistakes are numbered in docs/reliability.md, with the tests that show what the operator does instead.

use std::{
    collections::{BTreeSet, HashMap},
    fmt, mem,
    sync::{Arc, Mutex},
    time::Duration,
};

use mistakes::{MISTAKES, Mistake};

use super::{
    object::{Object, changes},
    record::{End, Entry, Head, Sent, What},
};
use crate::{
    client::{CHECK_BYTES_MAX, Collection, Error, REQUEST_TIMEOUT, Request},
    locked,
    resource::{Accept, ObjectMeta, Scope, Status, list::List},
    store::{Change, DeletionSource, Listening, Store},
    watch::{self, How, Lists, Machine, NextRequest, Pause, decode::WatchEvent},
};

mod mistakes;

/// The `timeoutSeconds` of a watch that is only predicted.
const TIMEOUT_SECS: u32 = 300;

/// The subject of a sentence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Rule {
    Page,
    Listed,
    WatchOpened,
    InitialEvents,
    Added,
    Modified,
    Deleted,
    Deselected,
    Replaced,
    Swept,
    Bookmark,
    InitialEventsEnd,
    UnknownType,
    CleanEnd,
    VeryShort,
    Cut,
    HalfLine,
    Silent,
    Expired,
    TooNew,
    NoStreamingLists,
    Unauthorized,
    Forbidden,
    NotFound,
    TooManyRequests,
    Unavailable,
    Refused,
    Unreachable,
    Late,
    TooLarge,
    Garbled,
    Checked,
    WentBack,
    Next,
}

impl Rule {
    /// The mistake that the rule avoids, if it is listed in docs/reliability.md.
    fn mistake(self) -> Option<&'static Mistake> {
        let number: u8 = match self {
            Rule::Listed => 2,
            Rule::InitialEvents => 3,
            Rule::Bookmark => 5,
            Rule::Expired => 7,
            Rule::Swept => 8,
            Rule::CleanEnd | Rule::VeryShort => 14,
            Rule::HalfLine => 15,
            Rule::Silent => 13,
            Rule::TooManyRequests | Rule::Unavailable => 17,
            Rule::Deselected => 18,
            Rule::Replaced => 20,
            Rule::UnknownType => 21,
            Rule::NoStreamingLists => 24,
            Rule::Unauthorized => 25,
            Rule::WentBack | Rule::TooNew => 30,
            Rule::NotFound => 34,
            Rule::Page
            | Rule::WatchOpened
            | Rule::Added
            | Rule::Modified
            | Rule::Deleted
            | Rule::InitialEventsEnd
            | Rule::Cut
            | Rule::Forbidden
            | Rule::Refused
            | Rule::Unreachable
            | Rule::Late
            | Rule::TooLarge
            | Rule::Garbled
            | Rule::Checked
            | Rule::Next => return None,
        };
        MISTAKES.iter().find(|mistake| mistake.number == number)
    }
}

/// One sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sentence {
    rule: Rule,
    text: String,
    /// The mistake that the rule avoids, in the first sentence that names it.
    pub(crate) mistake: Option<&'static Mistake>,
}

impl fmt::Display for Sentence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)?;
        match self.rule.mistake() {
            Some(Mistake { number, .. }) => write!(f, " (mistake {number})"),
            None => Ok(()),
        }
    }
}

/// Explains the exchanges of any number of collections.
pub(crate) struct Explainer {
    /// By path and selectors.
    collections: HashMap<String, Followed>,
    exchanges: HashMap<u64, Exchange>,
    /// The sentences about the present entry.
    sentences: Vec<Sentence>,
    /// The numbers of the mistakes that a sentence has named.
    mistakes: BTreeSet<u8>,
    /// How long the client waits for an answer.
    pub(crate) request_timeout: Duration,
    /// Whether the changed fields are shown already, beside the sentences.
    is_brief: bool,
}

/// A collection that is listed and watched.
struct Followed {
    collection: Collection,
    machine: Machine,
    store: Store<Object>,
    /// The changes of the Store that have not been explained yet.
    changes: Arc<Mutex<Vec<Change<Object>>>>,
    _listening: Listening,
    /// Whether the watch began without a version, so that its events may be initial ones, in no order.
    is_unversioned: bool,
    /// A request that was refused with 401, and how long it took. The client sends it once more if it has new credentials.
    unauthorized: Option<(String, Duration)>,
}

/// An exchange that has not ended.
struct Exchange {
    /// The key of its collection; `None`: it is no list and no watch.
    collection: Option<String>,
    target: String,
    asked: Asked,
    began: f64,
    heard: f64,
    head: Option<Head>,
    /// Of a list, or an error.
    body: String,
    timeout_secs: u32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Asked {
    /// A write, or a path that is not in the API of objects.
    Other,
    Object,
    List,
    Check,
    Watch,
}

impl Followed {
    fn new(collection: Collection, machine: Machine) -> Followed {
        let store = Store::default();
        let changes = Arc::<Mutex<Vec<_>>>::default();
        let seen = Arc::clone(&changes);
        let _listening = store.listen(move |change| locked(&seen).push(change.clone()));
        Followed {
            collection,
            machine,
            store,
            changes,
            _listening,
            is_unversioned: false,
            unauthorized: None,
        }
    }

    /// The request that the operator would send next.
    fn next(&mut self) -> Request {
        let version = self.store.version();
        match self.machine.request(&version, TIMEOUT_SECS) {
            NextRequest::List(page) => self.collection.list_request(&page),
            NextRequest::Watch(from) => self.collection.watch_request(&from),
            NextRequest::Check => self.collection.check_request(),
        }
    }

    /// The path and query of that request. The `timeoutSeconds` are random.
    fn next_target(&mut self) -> String {
        let timeout = |secs: &str| format!("timeoutSeconds={secs}");
        let target = self.next().target().replace(&timeout(&TIMEOUT_SECS.to_string()), &timeout("…"));
        // Of what curl wrote, the path is not known.
        if target.starts_with('/') { target } else { format!("…{target}") }
    }
}

impl Default for Explainer {
    fn default() -> Explainer {
        Explainer {
            collections: HashMap::new(),
            exchanges: HashMap::new(),
            sentences: Vec::new(),
            mistakes: BTreeSet::new(),
            request_timeout: REQUEST_TIMEOUT,
            is_brief: false,
        }
    }
}

impl Explainer {
    /// An explainer for events that are shown with their changed fields.
    pub(crate) fn brief() -> Explainer {
        Explainer { is_brief: true, ..Explainer::default() }
    }

    /// The sentences about the next entry.
    pub(crate) fn explain(&mut self, entry: &Entry) -> Vec<Sentence> {
        match &entry.what {
            What::Request(sent) => self.request(entry, sent),
            What::Head(head) => self.head(entry, head),
            What::Line(line) => self.line(entry, &line.text()),
            What::Rest(rest) => self.rest(entry, &rest.text()),
            What::End(end) => self.end(entry, *end),
        }
        mem::take(&mut self.sentences)
    }

    /// The objects of each Store, and the request that would come next.
    pub(crate) fn summary(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        let mut all: Vec<_> = self.collections.values_mut().collect();
        all.sort_by(|a, b| a.collection.path.cmp(&b.collection.path));
        for followed in all {
            let keys: Vec<_> = followed.store.keys().iter().map(ToString::to_string).collect();
            let (resource, version) = (followed.collection.resource.clone(), followed.store.version());
            let version =
                if version.is_empty() { String::new() } else { format!(", up to version {version}") };
            let keys = if keys.is_empty() { String::new() } else { format!(": {}", keys.join(" ")) };
            let count = objects(followed.store.len());
            lines.push(format!("{resource}: the store holds {count}{version}{keys}"));
            lines.push(format!("{resource}: the next request is GET {}", followed.next_target()));
        }
        lines
    }

    fn say(&mut self, rule: Rule, text: impl Into<String>) {
        let mistake = rule.mistake().filter(|mistake| self.mistakes.insert(mistake.number));
        self.sentences.push(Sentence { rule, text: text.into(), mistake });
    }

    fn request(&mut self, entry: &Entry, sent: &Sent) {
        let (path, query) = sent.path.split_once('?').unwrap_or((&sent.path, ""));
        let query: HashMap<_, _> = url::form_urlencoded::parse(query.as_bytes()).into_owned().collect();
        let value = |name: &str| query.get(name).map(String::as_str).unwrap_or_default();
        let is_watch = Request::get(&*sent.path).is_watch();
        let is_metadata = sent.accept.contains("as=PartialObjectMetadata");
        let collection = Collection {
            path: path.to_owned(),
            resource: path.rsplit('/').next().filter(|part| !part.is_empty()).unwrap_or("objects").to_owned(),
            scope: Scope { namespace: None, labels: value("labelSelector").to_owned() },
            fields: value("fieldSelector").to_owned(),
            accept: if is_metadata { Accept::MetadataOnly } else { Accept::Whole },
        };
        let mut exchange = Exchange {
            collection: None,
            target: sent.path.clone(),
            asked: Asked::Other,
            began: entry.time,
            heard: entry.time,
            head: None,
            body: String::new(),
            timeout_secs: value("timeoutSeconds").parse().unwrap_or_default(),
        };
        // A Table has rows, not objects.
        if sent.method == "GET" && !sent.accept.contains("as=Table") {
            exchange.asked = match depth(path) {
                0 => Asked::Other,
                _ if is_watch => Asked::Watch,
                1 => Asked::List,
                _ => Asked::Object,
            };
        }
        if matches!(exchange.asked, Asked::List | Asked::Watch) {
            self.after_unauthorized(path, &sent.path);
            let is_check = value("limit") == "1" && is_metadata && value("continue").is_empty();
            let checked = if is_check { self.checked(path) } else { None };
            let key = format!("{path} {} {}", collection.scope.labels, collection.fields);
            if checked.is_some() {
                exchange.asked = Asked::Check;
            } else if is_watch {
                let is_streaming = value("sendInitialEvents") == "true";
                self.watch_begins(&key, collection, value("resourceVersion"), is_streaming);
            } else {
                let limit = value("limit").parse().unwrap_or_default();
                self.list_begins(&key, collection, value("continue"), limit);
            }
            exchange.collection = checked.or(Some(key));
        }
        self.exchanges.insert(entry.exchange, exchange);
    }

    /// Unless the client repeats a request that was refused with 401, that request has failed.
    fn after_unauthorized(&mut self, path: &str, target: &str) {
        for followed in self.collections.values_mut().filter(|followed| followed.collection.path == path) {
            if let Some((refused, lasted)) = followed.unauthorized.take()
                && refused != target
            {
                followed.machine.end(How::Refused { code: 401, retry_after: None }, lasted);
            }
        }
    }

    /// The key of the collection whose version a request checks, if any.
    fn checked(&mut self, path: &str) -> Option<String> {
        let followed = self.collections.iter_mut().filter(|(_, followed)| {
            let machine = &followed.machine;
            followed.collection.path == path && !machine.is_listing() && !machine.is_streaming()
        });
        let (key, followed) = followed.max_by_key(|(_, followed)| followed.machine.is_checking())?;
        if !followed.machine.is_checking() {
            // The client gave up waiting for an answer.
            followed.machine.end(How::Unreachable, Duration::ZERO);
        }
        Some(key.clone())
    }

    /// Adopts a watch that the machine did not ask for, as of a user with curl.
    fn watch_begins(&mut self, key: &str, collection: Collection, version: &str, is_streaming: bool) {
        let lists = if is_streaming { Lists::Streaming } else { Lists::Paged };
        let followed = self.collections.entry(key.to_owned()).or_insert_with(|| {
            let machine = if is_streaming { Machine::new(lists) } else { Machine::resumed(lists) };
            Followed::new(collection.clone(), machine)
        });
        let expected = followed.store.version();
        let is_expected = match followed.machine.request(&expected, TIMEOUT_SECS) {
            NextRequest::Watch(from) => from.version == version || version.is_empty(),
            NextRequest::List(_) | NextRequest::Check => false,
        };
        if followed.machine.is_streaming() != is_streaming || !is_expected {
            followed.machine = if is_streaming { Machine::new(lists) } else { Machine::resumed(lists) };
        }
        followed.is_unversioned = !is_streaming && matches!(version, "" | "0") && !followed.store.is_synced();
        if followed.machine.is_at_start_of_list() {
            followed.store.list_begins();
        } else if !version.is_empty() && expected != *version {
            followed.store.bookmark(&version.into());
        }
        // Resets the count of its lines.
        drop(followed.next());
    }

    fn list_begins(&mut self, key: &str, collection: Collection, continue_token: &str, limit: u32) {
        let is_known = self.collections.contains_key(key);
        let followed = self
            .collections
            .entry(key.to_owned())
            .or_insert_with(|| Followed::new(collection, Machine::new(Lists::Paged)));
        if !followed.machine.is_listing() {
            followed.machine = Machine::new(Lists::Paged);
        }
        // After a page that is too large, the client asks for half as many objects.
        while let NextRequest::List(page) = followed.machine.request("", TIMEOUT_SECS)
            && is_known
            && limit > 0
            && page.limit > limit
        {
            followed.machine.end(How::TooLarge, Duration::ZERO);
        }
        if continue_token.is_empty() {
            followed.store.list_begins();
        }
    }

    fn head(&mut self, entry: &Entry, head: &Head) {
        let Some(exchange) = self.exchanges.get_mut(&entry.exchange) else { return };
        exchange.heard = entry.time;
        exchange.head = Some(head.clone());
        if exchange.asked != Asked::Watch || head.status != 200 {
            return;
        }
        let Some(followed) = exchange.collection.as_ref().and_then(|key| self.collections.get(key)) else {
            return;
        };
        let version = followed.store.version();
        if followed.machine.is_streaming() {
            let text = "the watch is open: it sends every object first, as ADDED, in no order; no watch can resume from \
                        their versions";
            self.say(Rule::InitialEvents, text);
        } else if version.is_empty() || version == "0" {
            let end = if exchange.target.contains("allowWatchBookmarks=true") {
                "a BOOKMARK marks their end"
            } else {
                "without allowWatchBookmarks, nothing marks their end"
            };
            let text = "the watch is open: without a version, it sends the existing objects first, as ADDED, in no order";
            self.say(Rule::WatchOpened, format!("{text}; {end}"));
        } else {
            self.say(
                Rule::WatchOpened,
                format!("the watch is open: it sends every change after {version}, in order"),
            );
        }
    }

    fn line(&mut self, entry: &Entry, line: &str) {
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
        let event = match WatchEvent::<Object>::from_json(line.as_bytes()) {
            Ok(event) => event,
            Err(error) => {
                let text = format!("this line is no watch event ({error}): nothing after it can be trusted");
                return self.ends(entry.exchange, Rule::Garbled, text, How::Garbled, lasted);
            }
        };
        let is_streaming = followed.machine.is_streaming();
        followed.is_unversioned &= !matches!(event, WatchEvent::Bookmark { .. });
        let about = match &event {
            WatchEvent::Bookmark { version, ends_initial_events: false } => Some((
                Rule::Bookmark,
                format!(
                    "BOOKMARK {version}: no object; every change up to {version} has been sent, so a watch can resume from there"
                ),
            )),
            WatchEvent::Bookmark { version, ends_initial_events: true } => Some((
                Rule::InitialEventsEnd,
                format!(
                    "BOOKMARK {version} with k8s.io/initial-events-end: every existing object has been sent"
                ),
            )),
            WatchEvent::Unknown(name) => {
                Some((Rule::UnknownType, format!("an event of the unknown type {name}: passed over")))
            }
            WatchEvent::Added(_)
            | WatchEvent::Modified(_)
            | WatchEvent::Deleted(_)
            | WatchEvent::Error(_) => None,
        };
        let status = if let WatchEvent::Error(status) = &event { Some(status.clone()) } else { None };
        let ended = followed.machine.line(event, &followed.store);
        if let Some((rule, text)) = about {
            self.say(rule, text);
        }
        self.changed(&key, is_streaming);
        if let Some(how) = ended {
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
    }

    /// Handles the bytes after the last line: of a list, all of it; of a watch, a line that was cut.
    fn rest(&mut self, entry: &Entry, rest: &str) {
        let Some(exchange) = self.exchanges.get_mut(&entry.exchange) else { return };
        exchange.heard = entry.time;
        if exchange.asked == Asked::Watch && exchange.head.as_ref().is_none_or(|head| head.status == 200) {
            let text = "the last line has no end: it is dropped, and the next watch sends that event again";
            return self.say(Rule::HalfLine, text);
        }
        exchange.body += rest;
    }

    /// Sentences about what happened in the Store.
    fn changed(&mut self, key: &str, is_streaming: bool) {
        let Some(followed) = self.collections.get(key) else { return };
        let all = mem::take(&mut *locked(&followed.changes));
        let (count, version) = (followed.store.len(), followed.store.version());
        let resource = followed.collection.resource.clone();
        let name = |metadata: &ObjectMeta| format!("{resource} {}", metadata.key());
        let has_selector =
            !followed.collection.scope.labels.is_empty() || !followed.collection.fields.is_empty();
        let or_left = if has_selector { ", or left the selection," } else { "" };
        let replaced: Vec<_> = all
            .iter()
            .filter_map(|change| match change {
                Change::Applied { before: None, after } => Some(after.metadata().key()),
                Change::Applied { .. } | Change::Deleted { .. } | Change::Synced => None,
            })
            .collect();
        for change in all {
            match change {
                // Of a list, only the end has a sentence.
                Change::Applied { before: None, after } if !is_streaming => {
                    let name = name(after.metadata());
                    self.say(Rule::Added, format!("{name} is new → reconcile it; the store holds {}", objects(count)));
                }
                Change::Applied { before: None, .. } => {}
                Change::Applied { before: Some(before), after } => {
                    let value = |found: &crate::resource::list::Found<Object>| {
                        found.readable().map(|object| object.value.clone()).unwrap_or_default()
                    };
                    let changed = changes(&value(&before), &value(&after));
                    let name = name(after.metadata());
                    if self.is_brief || changed.is_empty() {
                        self.say(Rule::Modified, format!("{name} has changed → reconcile it"));
                    } else {
                        self.say(Rule::Modified, format!("{name} has changed → reconcile it: {changed}"));
                    }
                }
                Change::Deleted { last, source: DeletionSource::Inferred } => {
                    let is_replaced = replaced.contains(&last.metadata().key());
                    let name = name(last.metadata());
                    if is_replaced {
                        let text = format!("{name} was deleted, and another object has its name: the uid differs");
                        self.say(Rule::Replaced, text);
                        continue;
                    }
                    self.say(
                        Rule::Swept,
                        format!("{name} is missing from the list: it was deleted{or_left} while no watch was open → reconcile it"),
                    );
                }
                Change::Deleted { last, source: DeletionSource::Event } if has_selector => {
                    let name = name(last.metadata());
                    self.say(
                        Rule::Deselected,
                        format!("{name} has left the selection: DELETED, but it may exist with other labels or fields → GET it"),
                    );
                }
                Change::Deleted { last, source: DeletionSource::Event } => {
                    let name = name(last.metadata());
                    self.say(
                        Rule::Deleted,
                        format!("{name} was deleted, at version {version} → reconcile it; the store holds {}", objects(count)),
                    );
                }
                Change::Synced => self.say(
                    Rule::Listed,
                    format!(
                        "the list is complete: the store holds {} as of {version}, the version of the list, from which a watch continues",
                        objects(count)
                    ),
                ),
            }
        }
    }

    fn end(&mut self, entry: &Entry, end: End) {
        let Some(exchange) = self.exchanges.get(&entry.exchange) else { return };
        let lasted = seconds(entry.time - exchange.began);
        let (asked, status) = (exchange.asked, exchange.head.as_ref().map(|head| head.status));
        if status.is_some_and(|status| status >= 300) && asked != Asked::Other {
            return self.refused(entry, lasted);
        }
        let Some(key) = exchange.collection.clone() else {
            self.exchanges.remove(&entry.exchange);
            return;
        };
        match (asked, end) {
            (_, End::Lost) if status.is_none() => {
                let text = "no answer: the server cannot be reached → back off";
                self.ends(entry.exchange, Rule::Unreachable, text, How::Unreachable, lasted);
            }
            (Asked::Watch, End::Clean) => self.watch_ends_cleanly(entry.exchange, &key, lasted),
            (Asked::Watch, End::Lost) => {
                let Some(followed) = self.collections.get(&key) else { return };
                let text = if followed.machine.is_streaming() || followed.is_unversioned {
                    "the connection broke before a list was complete → list"
                } else {
                    "the connection broke; the lines before it count → check the server's version, then resume"
                };
                self.ends(entry.exchange, Rule::Cut, text, How::Cut, lasted);
            }
            (Asked::Watch, End::Dropped) if status.is_some() => self.watch_is_dropped(entry, &key, lasted),
            (Asked::Watch | Asked::List | Asked::Check, End::Dropped) => self.is_dropped(entry, &key, lasted),
            (Asked::List | Asked::Check, End::Clean) => self.answered(entry.exchange, &key, lasted),
            (Asked::List | Asked::Check, End::Lost) => {
                let text = "the connection broke within the answer → back off";
                self.ends(entry.exchange, Rule::Cut, text, How::Unreachable, lasted);
            }
            (Asked::Object | Asked::Other, _) => {
                self.exchanges.remove(&entry.exchange);
            }
        }
    }

    fn watch_ends_cleanly(&mut self, exchange: u64, key: &str, lasted: Duration) {
        let Some(Exchange { timeout_secs, .. }) = self.exchanges.get(&exchange) else { return };
        let after = match timeout_secs {
            0 => "without timeoutSeconds, after 30 to 60 minutes".to_owned(),
            secs => format!("timeoutSeconds={secs}"),
        };
        let Some(followed) = self.collections.get(key) else { return };
        let version = followed.store.version();
        let from = if version.is_empty() { String::new() } else { format!(" from {version}") };
        let (rule, text) = if followed.machine.is_streaming() {
            let text = "the watch ended before the end of the initial events → list in pages from now on";
            (Rule::NoStreamingLists, text.to_owned())
        } else if followed.is_unversioned && lasted >= watch::VERY_SHORT {
            let text = format!(
                "the server ended the watch ({after}): no failure; but no watch can resume from the versions of initial events → list"
            );
            (Rule::CleanEnd, text)
        } else if followed.machine.has_lines() {
            let text = format!(
                "the server ended the watch ({after}): no failure → resume{from} at once, without a list"
            );
            (Rule::CleanEnd, text)
        } else if lasted < watch::VERY_SHORT {
            let text = "the watch ended within a second, without a line: that is a failure → back off";
            (Rule::VeryShort, text.to_owned())
        } else {
            let text = format!(
                "the server ended the watch ({after}): no failure; no line has come → check the server's version, then resume{from}"
            );
            (Rule::CleanEnd, text)
        };
        self.ends(exchange, rule, text, How::Clean, lasted);
    }

    fn watch_is_dropped(&mut self, entry: &Entry, key: &str, lasted: Duration) {
        let Some(Exchange { heard, timeout_secs, .. }) = self.exchanges.get(&entry.exchange) else { return };
        let silent = seconds(entry.time - heard);
        let Some(Followed { machine, .. }) = self.collections.get(key) else { return };
        if silent < machine.silence_limit(*timeout_secs) {
            self.exchanges.remove(&entry.exchange);
            return;
        }
        let then =
            if machine.is_streaming() { "list in pages from now on" } else { "check the server's version" };
        let text = format!("nothing came for {} s: the connection may be dead → {then}", silent.as_secs());
        self.ends(entry.exchange, Rule::Silent, text, How::Silent, lasted);
    }

    /// The client has given up a request before the head of a watch, or the whole of another answer, had come.
    fn is_dropped(&mut self, entry: &Entry, key: &str, lasted: Duration) {
        let Some(Exchange { body, asked, .. }) = self.exchanges.get(&entry.exchange) else { return };
        let Some(Followed { machine, .. }) = self.collections.get_mut(key) else { return };
        let (bytes_max, then) = match machine.request("", TIMEOUT_SECS) {
            NextRequest::List(page) if page.limit > 1 => (page.bytes_max(), "ask for half as many objects"),
            NextRequest::List(page) => (page.bytes_max(), "back off"),
            NextRequest::Check | NextRequest::Watch(_) => (CHECK_BYTES_MAX, "list"),
        };
        if *asked != Asked::Watch && body.len() > bytes_max {
            let text =
                format!("an answer of more than {} KiB is not read to its end → {then}", bytes_max / 1024);
            return self.ends(entry.exchange, Rule::TooLarge, text, How::TooLarge, lasted);
        }
        // A part of the time has passed before the exchange begins.
        if lasted < self.request_timeout.mul_f64(0.9) {
            self.exchanges.remove(&entry.exchange);
            return;
        }
        let text = format!("no whole answer within {} s → back off", lasted.as_secs_f64().round());
        self.ends(entry.exchange, Rule::Late, text, How::Unreachable, lasted);
    }

    /// A whole answer with status 200.
    fn answered(&mut self, exchange: u64, key: &str, lasted: Duration) {
        let Some(Exchange { body, asked, .. }) = self.exchanges.get(&exchange) else { return };
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
                let text = format!("the answer is no list ({error}): the store stays as it is → back off");
                return self.ends(exchange, Rule::Garbled, text, How::Garbled, lasted);
            }
        };
        if asked == Asked::Check {
            self.exchanges.remove(&exchange);
            let (version, known) = (list.version.clone(), followed.store.version());
            followed.machine.checked(&version, &followed.store);
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
        let (count, more) = (list.items.len(), !list.continue_token.is_empty());
        let was_synced = followed.store.is_synced();
        if let Some(how) = followed.machine.page(list, &followed.store) {
            let text = "the continue token leads to no other page → back off, then list from the start";
            return self.ends(exchange, Rule::Garbled, text, how, lasted);
        }
        self.exchanges.remove(&exchange);
        let more = if more { "; metadata.continue leads to the next page" } else { ", the last one" };
        self.say(Rule::Page, format!("a page of {}{more}", objects(count)));
        self.changed(key, !was_synced);
        self.next(key);
    }

    /// An answer that is an error.
    fn refused(&mut self, entry: &Entry, lasted: Duration) {
        let Some(exchange) = self.exchanges.get(&entry.exchange) else { return };
        let code = exchange.head.as_ref().map(|head| head.status).unwrap_or_default();
        let retry_after = exchange.head.as_ref().and_then(|head| head.headers.get("retry-after").cloned());
        let followed = exchange.collection.as_ref().and_then(|key| self.collections.get_mut(key));
        let mut status: Status = serde_json::from_str(&exchange.body).unwrap_or_default();
        status.code = code;
        let how = How::of(&Error::refused("list", "", status.clone()));
        let message = if status.message.is_empty() { String::new() } else { format!(": {}", status.message) };
        let is_streaming = followed.as_ref().is_some_and(|followed| followed.machine.is_streaming());
        let back_off = if followed.is_some() { " → back off" } else { "" };
        let (rule, text) = match code {
            _ if how == How::Expired || how == How::TooNew => event_error(&status),
            401 => {
                if let Some(followed) = followed {
                    followed.unauthorized = Some((exchange.target.clone(), lasted));
                }
                let text =
                    "the credentials are not valid → read them again, and try once more if they are new";
                self.say(Rule::Unauthorized, format!("401{message}: {text}"));
                self.exchanges.remove(&entry.exchange);
                return;
            }
            403 => {
                let grant = grant(&status.message).map(|grant| format!("; {grant}")).unwrap_or_default();
                (Rule::Forbidden, format!("403{message}{grant}{back_off}"))
            }
            404 if followed.is_some() => {
                let text = "the server has no such resource → back off, as its CRD may come";
                (Rule::NotFound, format!("404{message}: {text}"))
            }
            422 if is_streaming => {
                let text = "this server has no streaming lists → list in pages from now on";
                (Rule::NoStreamingLists, format!("422{message}: {text}"))
            }
            429 => {
                let wait = retry_after.map(|secs| format!(" for at least {secs} s (Retry-After)"));
                let text = format!("429{message}: the server is overloaded{back_off}");
                (Rule::TooManyRequests, text + &wait.filter(|_| !back_off.is_empty()).unwrap_or_default())
            }
            500.. => (Rule::Unavailable, format!("{code}{message}: the fault is the server's{back_off}")),
            _ => (Rule::Refused, format!("{code}{message}: the same request would fail again")),
        };
        self.ends(entry.exchange, rule, text, how, lasted);
    }

    /// The end of an exchange, and what follows from it.
    fn ends(&mut self, exchange: u64, rule: Rule, text: impl Into<String>, how: How, lasted: Duration) {
        self.say(rule, text);
        let Some(Exchange { collection: Some(key), .. }) = self.exchanges.remove(&exchange) else { return };
        if let Some(followed) = self.collections.get_mut(&key) {
            let pause = followed.machine.end(how, lasted);
            if mem::take(&mut followed.is_unversioned) {
                followed.machine = Machine::new(Lists::Paged);
            }
            if let (Pause::Backoff { failures, at_least }, Some(last)) = (pause, self.sentences.last_mut()) {
                let longest = watch::BACKOFF.longest(failures);
                let [from, to] = [longest / 2, longest].map(|pause| (at_least + pause).as_secs_f64());
                last.text += &format!("; failure {failures} in a row, so a pause of {from:.1} to {to:.1} s");
            }
        }
        self.next(&key);
    }

    fn next(&mut self, key: &str) {
        if let Some(followed) = self.collections.get_mut(key) {
            let next = followed.next_target();
            self.say(Rule::Next, format!("next: GET {next}"));
        }
    }
}

/// About a 410 or another error that ends a watch or a list.
fn event_error(status: &Status) -> (Rule, String) {
    let Status { code, message, .. } = status;
    if status.is_expired() {
        let text =
            format!("{code} ({message}): the server no longer has the changes from there → list again");
        return (Rule::Expired, text);
    }
    if status.is_too_new() {
        let text = format!(
            "{code} ({message}): the server has not reached that version, as after a restored backup"
        );
        return (Rule::TooNew, text + " → list");
    }
    (Rule::Unavailable, format!("ERROR {code} ({message}) ends the watch"))
}

/// The rule that would allow a request, from the message of a 403:
/// `… cannot list resource "pods" in API group "" in the namespace "web"`.
pub(crate) fn grant(message: &str) -> Option<String> {
    let (verb, about) = message.split_once(" cannot ")?.1.split_once(' ')?;
    let mut words = about.split('"');
    let (what, name) = (words.next()?.trim(), words.next()?);
    let role = if about.contains(" in the namespace ") { "Role" } else { "ClusterRole" };
    if what == "path" {
        return Some(format!(
            "a {role} with {{nonResourceURLs: [\"{name}\"], verbs: [\"{verb}\"]}} would allow it"
        ));
    }
    let group = words.nth(1)?;
    Some(format!(
        "a {role} with {{apiGroups: [\"{group}\"], resources: [\"{name}\"], verbs: [\"{verb}\"]}} would allow it"
    ))
}

/// How many parts a path has after group, version and namespace: 1 for a collection, 2 for an object, 0 for other paths.
fn depth(path: &str) -> usize {
    let mut parts = path.trim_start_matches('/').split('/').filter(|part| !part.is_empty());
    let root = match parts.next() {
        // curl does not write the path.
        None => return 1,
        Some("api") => 1,
        Some("apis") => 2,
        Some(_) => return 0,
    };
    let parts: Vec<_> = parts.skip(root).collect();
    match &parts[..] {
        ["namespaces", _, rest @ ..] if !rest.is_empty() => rest.len(),
        all => all.len(),
    }
}

fn objects(count: usize) -> String {
    if count == 1 { "1 object".to_owned() } else { format!("{count} objects") }
}

fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}

#[cfg(test)]
mod tests;
