//! Explains recorded exchanges, one sentence for each thing worth noticing, by the decoder, the [`Machine`] and the [`Store`]
//! of the operator. Nothing in this file does I/O.
//!
//! ```text
//! 410 (too old resource version): … → list again
//! avoids mistake 7: expect 410 in one form only (docs/watch.md, section 7; test: an_expired_version_in_any_form_… in tests/it/watch_edge_cases.rs)
//! next: GET /api/v1/pods?limit=100&resourceVersion=1207&resourceVersionMatch=NotOlderThan
//! ```
//!
//! The mistakes are numbered in docs/reliability.md. The first sentence that avoids a mistake is followed by a line that names it,
//! the section of docs/watch.md with the rule, and a test that shows what the operator does instead.

use std::{
    collections::{BTreeSet, HashMap},
    fmt, mem,
    sync::{Arc, Mutex},
    time::Duration,
};

use changes::By;
use error_status::event_error;
pub(crate) use error_status::grant;
use mistakes::{MISTAKES, Mistake};

use super::{
    object::Object,
    place::Place,
    record::{AnswerEnd, AnswerHead, Entry, Sent, What},
    table::as_metadata,
};
use crate::{
    client::{CHECK_BYTES_MAX, Collection, REQUEST_TIMEOUT, Request},
    locked,
    resource::{Accept, Key, ObjectMeta, Scope, list::List},
    store::{Change, Listening, Store},
    watch::{self, AnyStore, Effect, EndReason, Lists, Machine, NextRequest, Pause, decode::WatchEvent},
};

mod changes;
mod mistakes;
mod error_status;

/// The `timeoutSeconds` of a watch that is only predicted.
const TIMEOUT_SECS: u32 = 300;

/// The latest end of a watch without `timeoutSeconds`: twice kube-apiserver's `--min-request-timeout`, 30 minutes by default.
const SERVER_TIMEOUT_SECS: u32 = 3600;

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
    EmptyEnd,
    VeryShort,
    Cut,
    NoVersion,
    HalfLine,
    Silent,
    Expired,
    TooNew,
    NoStreamingLists,
    Unauthorized,
    Forbidden,
    NoPermission,
    NoResource,
    NoObject,
    TooManyRequests,
    Unavailable,
    NotTheServer,
    Refused,
    Failed,
    Unreachable,
    NoAnswer,
    Late,
    TooLarge,
    Garbled,
    RepeatedToken,
    NoList,
    Checked,
    WentBack,
    Next,
}

impl Rule {
    /// The mistake that the rule avoids, if it is listed in docs/reliability.md.
    fn mistake(self) -> Option<&'static Mistake> {
        MISTAKES.iter().find(|mistake| mistake.rules.contains(&self))
    }
}

/// One sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sentence {
    rule: Rule,
    text: String,
    /// The mistake that the rule avoids, if no sentence before is about it.
    pub(crate) mistake: Option<&'static Mistake>,
}

impl fmt::Display for Sentence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

type OwnerOf = fn(&ObjectMeta) -> Option<(&'static str, Key)>;

/// Explains the exchanges of any number of collections.
pub(crate) struct Explainer {
    /// By path and selectors.
    collections: HashMap<String, Followed>,
    exchanges: HashMap<u64, OpenExchange>,
    /// The sentences about the present entry.
    sentences: Vec<Sentence>,
    /// The tests of the mistakes that sentences were about.
    tests: BTreeSet<&'static str>,
    /// How long the client waits for an answer.
    pub(crate) request_timeout: Duration,
    /// The kind and key of an owner that an object does not name in its ownerReferences.
    pub(crate) marked_owner: OwnerOf,
    /// Whether changed fields and the messages of errors are shown already, beside the sentences.
    is_brief: bool,
    /// Whether each sentence names its resource, because several collections are followed at once.
    pub(crate) names_resources: bool,
    /// The end of each request that was refused with 401, by path and query.
    unauthorized: HashMap<String, f64>,
}

/// A collection that is listed and watched.
struct Followed {
    collection: Collection,
    machine: Machine,
    store: Store<Object>,
    /// The changes of the Store that have not been explained yet.
    changes: Arc<Mutex<Vec<Change<Object>>>>,
    _listening: Listening,
    /// A request that was refused with 401. The client sends it once more if it has new credentials.
    unauthorized: Option<Unauthorized>,
    /// The keys that all changes so far lead to.
    reconciled: BTreeSet<String>,
}

/// A request that was refused with 401.
struct Unauthorized {
    target: String,
    lasted: Duration,
    ended: f64,
}

/// An exchange that has not ended.
struct OpenExchange {
    /// The key of its collection; `None`: it is neither a list nor a watch.
    collection: Option<String>,
    method: String,
    target: String,
    /// The parameter `resourceVersion`.
    version: String,
    asked: Asked,
    /// Whether the same request was refused with 401 just before.
    is_again: bool,
    began: f64,
    heard: f64,
    head: Option<AnswerHead>,
    /// Of a list, or an error.
    body: String,
    timeout_secs: u32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Asked {
    /// Something that goes into no Store.
    Other,
    /// A GET or a write of one object.
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
        let reconciled = BTreeSet::new();
        Followed { collection, machine, store, changes, _listening, unauthorized: None, reconciled }
    }

    /// Whether the present watch began without a version, and no BOOKMARK has come. Its events may be initial ones, in no
    /// order, so no watch can resume from their versions.
    fn is_unversioned(&self) -> bool {
        !self.machine.is_listing() && !self.machine.is_streaming() && self.store.version().is_empty()
    }

    fn by_list(&self) -> By {
        if self.store.is_synced() { By::List } else { By::FirstList }
    }

    fn has_selector(&self) -> bool {
        !self.collection.scope.labels.is_empty() || !self.collection.fields.is_empty()
    }

    /// Ends a request. Returns a text about the pause after it, if there is one.
    fn failed(&mut self, how: EndReason, lasted: Duration) -> String {
        let Pause::Backoff { failures, at_least } = self.machine.end(how, lasted) else {
            return String::new();
        };
        let longest = watch::BACKOFF.longest(failures);
        let [from, to] = [longest / 2, longest].map(|pause| (at_least + pause).as_secs_f64());
        let text = format!("; failure {failures} in a row, so a pause of {from:.1} to {to:.1} s");
        match at_least.as_secs() {
            0 => text,
            secs => format!("{text}, {secs} s of it for Retry-After"),
        }
    }

    /// The path and query of the request that the operator would send next. The `timeoutSeconds` are random.
    fn next_target(&mut self) -> String {
        if self.is_unversioned() {
            self.machine = Machine::new(Lists::Paged);
        }
        let version = self.store.version();
        let request = match self.machine.request(&version, TIMEOUT_SECS) {
            NextRequest::List(page) => self.collection.list_request(&page),
            NextRequest::Watch(from) => self.collection.watch_request(&from),
            NextRequest::Check => self.collection.check_request(),
        };
        let timeout = |secs: &str| format!("timeoutSeconds={secs}");
        let target = request.target().replace(&timeout(&TIMEOUT_SECS.to_string()), &timeout("…"));
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
            tests: BTreeSet::new(),
            request_timeout: REQUEST_TIMEOUT,
            marked_owner: |_| None,
            is_brief: false,
            names_resources: false,
            unauthorized: HashMap::new(),
        }
    }
}

impl Explainer {
    /// An explainer for events that are shown with their changed fields, and errors with their messages.
    pub(crate) fn brief() -> Explainer {
        Explainer { is_brief: true, ..Explainer::default() }
    }

    /// The sentences about the next entry.
    pub(crate) fn explain(&mut self, entry: &Entry) -> Vec<Sentence> {
        let entry = &*as_metadata(entry);
        let resource = self.resource(entry.exchange);
        match &entry.what {
            What::Request(sent) => self.request(entry, sent),
            What::Head(head) => self.head(entry, head),
            What::Line(line) => self.line(entry, &line.text()),
            What::Rest(rest) => self.rest(entry, &rest.text()),
            What::End(end) => self.end(entry, *end),
        }
        if let Some(resource) = resource.filter(|_| self.names_resources) {
            let unnamed = self.sentences.iter_mut().filter(|sentence| !sentence.text.contains(&resource));
            unnamed.for_each(|sentence| sentence.text.insert_str(0, &format!("{resource}: ")));
        }
        mem::take(&mut self.sentences)
    }

    /// The resource of the collection that an exchange is about.
    fn resource(&self, exchange: u64) -> Option<String> {
        let key = self.exchanges.get(&exchange)?.collection.as_ref()?;
        Some(self.collections.get(key)?.collection.resource.clone())
    }

    /// The objects of each Store, the request that would come next, and the keys that would have been reconciled.
    pub(crate) fn summary(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        let mut all: Vec<_> = self.collections.iter_mut().collect();
        all.sort_by_key(|(path_and_selectors, _)| *path_and_selectors);
        for (_, followed) in all {
            let keys: Vec<_> = followed.store.keys().iter().map(ToString::to_string).collect();
            let (resource, version) = (followed.collection.resource.clone(), followed.store.version());
            // No version of an initial event is one to resume from.
            let version =
                if version.is_empty() { String::new() } else { format!(", up to version {version}") };
            let keys = if keys.is_empty() { String::new() } else { format!(": {}", keys.join(" ")) };
            let count = objects(followed.store.len());
            lines.push(format!("{resource}: the store holds {count}{version}{keys}"));
            lines.push(format!("{resource}: the next request is GET {}", followed.next_target()));
            let keys: Vec<_> = followed.reconciled.iter().map(String::as_str).collect();
            let keys = if keys.is_empty() { "nothing".to_owned() } else { keys.join(", ") };
            lines.push(format!("{resource}: would have reconciled {keys}"));
        }
        lines
    }

    fn say(&mut self, rule: Rule, text: impl Into<String>) {
        let mistake = rule.mistake().filter(|mistake| self.tests.insert(mistake.test));
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
            install: "",
            scope: Scope { namespace: None, labels: value("labelSelector").to_owned() },
            fields: value("fieldSelector").to_owned(),
            accept: if is_metadata { Accept::MetadataOnly } else { Accept::Whole },
        };
        let mut exchange = OpenExchange {
            collection: None,
            method: sent.method.clone(),
            target: sent.path.clone(),
            version: value("resourceVersion").to_owned(),
            asked: Asked::Other,
            is_again: self.unauthorized.remove(&sent.path).is_some_and(|ended| is_soon(entry.time - ended)),
            began: entry.time,
            heard: entry.time,
            head: None,
            body: String::new(),
            timeout_secs: match value("timeoutSeconds").parse() {
                Ok(0) | Err(_) => SERVER_TIMEOUT_SECS,
                Ok(secs) => secs,
            },
        };
        // Such a list of the operator goes into no Store: [`Cluster::list_live`](crate::cluster::Cluster::list_live).
        let is_live = !is_watch && value("resourceVersion") == "1" && !value("labelSelector").is_empty();
        // A Table whose rows have no metadata.
        let is_left_out = is_live || sent.accept.contains("as=Table");
        exchange.asked = match Place::of(path) {
            None => Asked::Other,
            Some(_) if is_left_out => Asked::Other,
            Some(_) if sent.method != "GET" => Asked::Object,
            Some(_) if is_watch => Asked::Watch,
            Some(Place { name: None, .. }) => Asked::List,
            Some(_) => Asked::Object,
        };
        if matches!(exchange.asked, Asked::List | Asked::Watch) {
            self.after_unauthorized(path, &sent.path, entry.time);
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
                self.list_begins(&key, collection, &exchange.version, value("continue"), limit);
            }
            exchange.collection = checked.or(Some(key));
        }
        self.exchanges.insert(entry.exchange, exchange);
    }

    /// The client has returned an error to its caller, so it repeats no request: sentences about those that were refused with 401.
    pub(crate) fn given_up(&mut self) -> Vec<Sentence> {
        self.unauthorized.clear();
        let all = self.collections.iter_mut();
        let refused = all.filter_map(|(key, followed)| Some((key.clone(), followed.unauthorized.take()?)));
        let refused = refused.collect();
        self.no_new_credentials(refused);
        mem::take(&mut self.sentences)
    }

    /// Unless the client repeats a request that was refused with 401, and at once, that request has failed.
    fn after_unauthorized(&mut self, path: &str, target: &str, now: f64) {
        let of_path = self.collections.iter_mut().filter(|(_, one)| one.collection.path == path);
        let refused =
            of_path.filter_map(|(key, followed)| Some((key.clone(), followed.unauthorized.take()?)));
        let is_again = |refused: &Unauthorized| refused.target == target && is_soon(now - refused.ended);
        let refused = refused.filter(|(_, refused)| !is_again(refused)).collect();
        self.no_new_credentials(refused);
    }

    fn no_new_credentials(&mut self, refused: Vec<(String, Unauthorized)>) {
        for (key, Unauthorized { lasted, .. }) in refused {
            let Some(followed) = self.collections.get_mut(&key) else { continue };
            let pause = followed.failed(EndReason::Refused { code: 401, retry_after: None }, lasted);
            self.say(Rule::Unauthorized, format!("there were no valid new credentials → back off{pause}"));
            self.next(&key);
        }
    }

    /// The key of the collection whose version a request checks, if any.
    fn checked(&mut self, path: &str) -> Option<String> {
        let followed = self.collections.iter_mut().filter(|(_, followed)| {
            let machine = &followed.machine;
            let is_listing = machine.is_listing() || machine.is_streaming() || followed.is_unversioned();
            followed.collection.path == path && !is_listing
        });
        let (key, followed) = followed.max_by_key(|(_, followed)| followed.machine.is_checking())?;
        if !followed.machine.is_checking() {
            // The client gave up waiting for an answer.
            followed.machine.end(EndReason::Unreachable, Duration::ZERO);
        }
        followed.machine.request(&followed.store.version(), TIMEOUT_SECS);
        Some(key.clone())
    }

    /// Adopts a watch that the machine did not ask for, as of a user with curl.
    fn watch_begins(&mut self, key: &str, collection: Collection, version: &str, is_streaming: bool) {
        // From any version: the existing objects first, as without a version.
        let version = if version == "0" { "" } else { version };
        let new =
            || if is_streaming { Machine::new(Lists::Streaming) } else { Machine::resumed(Lists::Paged) };
        let followed =
            self.collections.entry(key.to_owned()).or_insert_with(|| Followed::new(collection, new()));
        let expected = followed.store.version();
        let is_expected = match followed.machine.request(&expected, TIMEOUT_SECS) {
            NextRequest::Watch(from) => from.version == version,
            NextRequest::List(_) | NextRequest::Check => false,
        };
        if followed.machine.is_streaming() != is_streaming || !is_expected {
            followed.machine = new();
        }
        if is_streaming {
            followed.store.list_begins();
        } else {
            followed.store.bookmark(&version.into());
        }
        followed.machine.request(&followed.store.version(), TIMEOUT_SECS);
    }

    /// Adopts a list that the machine did not ask for.
    fn list_begins(
        &mut self,
        key: &str,
        collection: Collection,
        version: &str,
        continue_token: &str,
        limit: u32,
    ) {
        let is_known = self.collections.contains_key(key);
        let new = || match version {
            "" | "0" => Machine::new(Lists::Paged),
            _ => Machine::relists(Lists::Paged),
        };
        let followed =
            self.collections.entry(key.to_owned()).or_insert_with(|| Followed::new(collection, new()));
        let is_expected = match followed.machine.request("1", TIMEOUT_SECS) {
            // Only the first page asks for a version.
            NextRequest::List(page) => {
                !continue_token.is_empty() || page.version.is_none() == matches!(version, "" | "0")
            }
            NextRequest::Watch(_) | NextRequest::Check => false,
        };
        if !is_expected {
            followed.machine = new();
        }
        // After a page that is too large, the client asks for half as many objects.
        while let NextRequest::List(page) = followed.machine.request("", TIMEOUT_SECS)
            && is_known
            && limit > 0
            && page.limit > limit
        {
            followed.machine.end(EndReason::TooLarge, Duration::ZERO);
        }
        if continue_token.is_empty() {
            followed.store.list_begins();
        }
    }

    fn head(&mut self, entry: &Entry, head: &AnswerHead) {
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
        let (was_unversioned, by_list) = (followed.is_unversioned(), followed.by_list());
        let Followed { machine, store, .. } = followed;
        let (mut unlisted, mut status, mut type_name) = (None, None, String::new());
        let effect = store.line(line.as_bytes(), &mut |head| {
            head.type_name().clone_into(&mut type_name);
            match head {
                WatchEvent::Modified(object) | WatchEvent::Deleted(object) => {
                    let is_unlisted = !store.is_synced() && store.find(&object.key()).is_none();
                    unlisted = is_unlisted.then(|| (*object).clone());
                }
                WatchEvent::Error(error) => status = Some(error.clone()),
                WatchEvent::Added(_) | WatchEvent::Bookmark { .. } | WatchEvent::Unknown(_) => {}
            }
            machine.line(head)
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
    fn rest(&mut self, entry: &Entry, rest: &str) {
        let Some(exchange) = self.exchanges.get_mut(&entry.exchange) else { return };
        exchange.heard = entry.time;
        if exchange.asked == Asked::Watch && exchange.head.as_ref().is_none_or(|head| head.status == 200) {
            let text = "the last line has no end: it is dropped, and the next watch sends that event again";
            return self.say(Rule::HalfLine, text);
        }
        exchange.body += rest;
    }

    fn end(&mut self, entry: &Entry, end: AnswerEnd) {
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
    fn ends(&mut self, exchange: u64, rule: Rule, mut text: String, how: EndReason, lasted: Duration) {
        let Some(OpenExchange { collection: Some(key), .. }) = self.exchanges.remove(&exchange) else {
            return self.say(rule, text);
        };
        if let Some(followed) = self.collections.get_mut(&key) {
            text += &followed.failed(how, lasted);
        }
        self.say(rule, text);
        self.next(&key);
    }

    fn next(&mut self, key: &str) {
        if let Some(followed) = self.collections.get_mut(key) {
            let next = followed.next_target();
            self.say(Rule::Next, format!("next: GET {next}"));
        }
    }
}

fn objects(count: usize) -> String {
    if count == 1 { "1 object".to_owned() } else { format!("{count} objects") }
}

/// Whether the client repeats a request after so many seconds without a pause.
fn is_soon(after: f64) -> bool {
    seconds(after) < watch::BACKOFF.longest(1) / 2
}

fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}

#[cfg(test)]
mod tests;
