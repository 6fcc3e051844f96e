//! A watch, as the server sees it: an answer that does not end.
//!
//! ```text
//! GET …/widgets?watch=1&resourceVersion=10&allowWatchBookmarks=true
//! {"type":"MODIFIED","object":{… "resourceVersion":"11" …}}
//! {"type":"BOOKMARK","object":{"apiVersion":"demo.example.com/v1","kind":"Widget","metadata":{"resourceVersion":"14"}}}
//! ```
//!
//! Each watch remembers one number, the version up to which it has told everything, and reads on from there in the
//! history of its collection when its client can take more. A client that reads too slowly finds that the history
//! has moved on; its watch ends, cleanly and without a word, as with the real one.

use std::{borrow::Cow, collections::VecDeque, num::NonZeroUsize, sync::Arc, time::Duration};

use bytes::Bytes;
use serde_json::Value;
use tokio::{sync::broadcast, time::Instant};

use super::{
    Server, encode,
    faults::{self, Course, Cut, Ending, StreamingLists},
    form::{Columns, Form},
    kinds::Kind,
    read::{Filter, Version, invalid_options},
    refusal::{Cause, Refusal},
    request::Query,
    storage::{Change, Collection},
};

/// Between two bookmarks: apiserver/pkg/storage/cacher, `defaultBookmarkFrequency`.
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);

/// A last bookmark comes this long before the end.
const BOOKMARK_BEFORE_END: Duration = Duration::from_secs(2);

/// A watch without `timeoutSeconds` ends after this to twice this: `--min-request-timeout`.
const TIMEOUT_SECS_MIN: u64 = 1800;

/// How long a request waits for a version from the future: apiserver/pkg/storage/cacher, `blockTimeout`.
pub(super) const FUTURE_WAIT: Duration = Duration::from_secs(3);

/// Lines that are encoded ahead of a client that reads them: enough to be quick, few enough to be small.
const LINES_AT_ONCE: usize = 64;

/// What a watch that is cut sends last.
const HALF_A_LINE: &[u8] = br#"{"type":"MODIFIED","object":{"apiVersion":"v1","ki"#;

/// What was asked for, checked.
#[derive(Debug)]
pub(super) struct Options {
    filter: Filter,
    version: Version,
    /// `sendInitialEvents`, or what older parameters mean by it.
    initial: Initial,
    bookmarks: bool,
    timeout: Timeout,
    course: Arc<Course>,
}

/// How a watch begins.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Initial {
    /// With the state of the world as ADDED events, then a bookmark that says so.
    State,
    /// With what comes after the version that was named.
    Changes,
    /// With what comes from now on.
    Now,
}

#[derive(Clone, Copy, Debug)]
enum Timeout {
    After(Duration),
    /// `timeoutSeconds` was negative.
    Passed,
}

impl Options {
    pub(super) fn parse(
        query: &Query,
        kind: &Kind,
        namespace: Option<&str>,
        course: Arc<Course>,
    ) -> Result<Options, Refusal> {
        let filter = Filter::parse(query, kind, namespace)?;
        let (mut send, mut matching) = (query.flag("sendInitialEvents"), query.text("resourceVersionMatch"));
        match (course.streaming_lists(), send) {
            (StreamingLists::Served, _) | (StreamingLists::Refused, None) => {}
            (StreamingLists::Refused, Some(_)) => {
                let text =
                    "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled";
                return Err(invalid_options(vec![Cause::forbidden("sendInitialEvents", text)]));
            }
            (StreamingLists::Ignored, _) => (send, matching) = (None, ""),
        }
        check_match(send, matching)?;
        let version = Version::parse(query.text("resourceVersion")).map_err(Refusal::internal)?;
        let initial = match (send, version) {
            (Some(true), _) | (None, Version::Unset | Version::Any) => Initial::State,
            (None | Some(false), Version::Number(_)) => Initial::Changes,
            (Some(false), Version::Unset | Version::Any) => Initial::Now,
        };
        // What there is comes as of a streaming list, which has no pages.
        if initial == Initial::State && !query.text("continue").is_empty() {
            let text = "resourceVersionMatch is forbidden when continue is provided";
            return Err(invalid_options(vec![Cause::forbidden("resourceVersionMatch", text)]));
        }
        let timeout = match query.number("timeoutSeconds")? {
            None | Some(0) => {
                let secs = TIMEOUT_SECS_MIN + fastrand::u64(..TIMEOUT_SECS_MIN);
                Timeout::After(Duration::from_secs(secs))
            }
            Some(secs) => match u64::try_from(secs) {
                Ok(secs) => Timeout::After(Duration::from_secs(secs)),
                Err(_) => Timeout::Passed,
            },
        };
        let bookmarks = query.flag("allowWatchBookmarks").unwrap_or(false) && course.has_bookmarks();
        Ok(Options { filter, version, initial, bookmarks, timeout, course })
    }
}

fn check_match(send: Option<bool>, matching: &str) -> Result<(), Refusal> {
    let name = "resourceVersionMatch";
    let mut causes = Vec::new();
    match send {
        None if matching.is_empty() => {}
        None => {
            let text = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided";
            causes.push(Cause::forbidden(name, text));
        }
        Some(_) if matching == "NotOlderThan" => {}
        Some(_) => {
            let text = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
            causes.push(Cause::forbidden(name, text));
            if !matching.is_empty() {
                causes.push(Cause::not_supported(name, &matching.into(), &["NotOlderThan".to_owned()]));
            }
        }
    }
    if causes.is_empty() { Ok(()) } else { Err(invalid_options(causes)) }
}

/// One open watch.
pub(super) struct Watch {
    server: Arc<Server>,
    kind: Arc<Kind>,
    filter: Filter,
    form: Form,
    /// Everything up to here was told.
    told: u64,
    /// Where the watch started: no ordinary bookmark says this or less.
    start: u64,
    /// What exists and was not told yet. Encoded only when the client can take more: it may never read.
    state: VecDeque<Arc<Value>>,
    lines: VecDeque<Bytes>,
    changed: broadcast::Receiver<()>,
    /// What goes wrong on demand.
    course: Arc<Course>,
    /// Lines sent so far.
    sent: u64,
    deadline: Instant,
    bookmark_at: Option<Instant>,
    /// What the next table says of its columns.
    columns: Columns,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    /// Waits for a version from the future before the initial state can be told.
    Waiting {
        version: u64,
        until: Instant,
        bookmarks: bool,
    },
    /// Tells what is in `state`, then a bookmark that ends it, if bookmarks are wanted.
    Telling {
        bookmarks: bool,
    },
    Following,
    /// Whatever is in `lines`, then the end.
    Ending,
    /// Half a line was sent, and the rest will not come.
    Cutting,
}

impl Watch {
    pub(super) fn open(
        server: &Arc<Server>,
        kind: &Arc<Kind>,
        options: Options,
        form: Form,
    ) -> Result<Watch, Refusal> {
        let storage = server.storage();
        let Some(collection) = storage.collection(&kind.stored_in()) else {
            return Err(Refusal::no_such_path());
        };
        let (now, revision) = (Instant::now(), storage.revision());
        // A time that nobody can count to has passed as well, as Go's clock wraps around.
        let deadline = match options.timeout {
            Timeout::After(timeout) => now.checked_add(timeout),
            Timeout::Passed => None,
        };
        let has_passed = deadline.is_none();
        let deadline = deadline.unwrap_or(now);
        // Only who has streaming lists ends the state of the world with a bookmark.
        let marks_state = options.bookmarks && options.course.streaming_lists() == StreamingLists::Served;
        let mut watch = Watch {
            server: Arc::clone(server),
            kind: Arc::clone(kind),
            filter: options.filter,
            form,
            told: revision,
            start: 0,
            state: VecDeque::new(),
            lines: VecDeque::new(),
            changed: collection.subscribe(),
            course: options.course,
            sent: 0,
            deadline,
            bookmark_at: options.bookmarks.then(|| next_bookmark(now, deadline)),
            columns: Columns::Named,
            phase: Phase::Following,
        };
        if has_passed {
            watch.fail(Refusal::deadline_exceeded());
            return Ok(watch);
        }
        match (options.initial, options.version) {
            (Initial::State, Version::Number(version)) if version > revision => {
                let until = now + FUTURE_WAIT;
                watch.phase = Phase::Waiting { version, until, bookmarks: marks_state };
            }
            (Initial::State, _) => watch.tell_state(collection, revision, marks_state),
            (Initial::Now, _) => watch.start = revision,
            (Initial::Changes, version) => {
                // A version from the future is no error: the watch is silent until the server gets there.
                watch.told = version.at_least();
                watch.start = watch.told;
                if watch.told < collection.floor {
                    watch.too_old(collection.floor);
                }
            }
        }
        Ok(watch)
    }

    /// The next piece of the answer; `None` is a clean end, an error cuts the connection.
    pub(super) async fn next(&mut self) -> Option<Result<Bytes, Cut>> {
        loop {
            let now = self.course.now();
            if now.is_stalled {
                self.course.changed().await;
                continue;
            }
            let due = self.course.ends_after().filter(|(lines, _)| self.sent >= *lines);
            if let Some(ending) = now.ending.or(due.map(|(_, ending)| ending)) {
                self.end(ending);
            }
            if let Some(line) = self.lines.pop_front() {
                self.sent += 1;
                return Some(Ok(line));
            }
            match self.phase {
                Phase::Waiting { .. } | Phase::Telling { .. } | Phase::Following => {}
                Phase::Ending => return None,
                Phase::Cutting => {
                    // Let the half line leave first.
                    tokio::task::yield_now().await;
                    return Some(Err(Cut));
                }
            }
            self.read_on();
            if !self.lines.is_empty() || self.phase == Phase::Ending {
                continue;
            }
            let wake = self.wake_at();
            tokio::select! {
                // One order of events is one history. Time comes first, or a busy collection would put off the end.
                biased;
                () = tokio::time::sleep_until(wake) => self.on_time(),
                // Or so many that it is told only of the last: it is one look either way.
                _ = self.changed.recv() => {}
                () = self.course.changed() => {}
            }
        }
    }

    pub(super) fn chunk_bytes(&self) -> Option<NonZeroUsize> {
        self.course.chunk_bytes()
    }

    /// A fault on demand. What was not sent yet is not sent any more.
    fn end(&mut self, ending: Ending) {
        if matches!(self.phase, Phase::Ending | Phase::Cutting) {
            return;
        }
        self.lines.clear();
        self.state.clear();
        self.phase = Phase::Ending;
        let too_old = format!("too old resource version: {} ({})", self.told, self.told + 1);
        match ending {
            Ending::Clean => {}
            Ending::MidLine => {
                self.lines.push_back(Bytes::from_static(HALF_A_LINE));
                self.phase = Phase::Cutting;
            }
            Ending::Expired => self.fail(Refusal::expired(too_old)),
            Ending::Gone => self.fail(faults::gone(too_old)),
        }
    }

    fn wake_at(&self) -> Instant {
        let mut wake = self.deadline;
        if let Some(at) = self.bookmark_at {
            wake = wake.min(at);
        }
        if let Phase::Waiting { until, .. } = self.phase {
            wake = wake.min(until);
        }
        wake
    }

    /// Turn new changes into lines.
    fn read_on(&mut self) {
        let server = Arc::clone(&self.server);
        let storage = server.storage();
        let collection = storage.collection(&self.kind.stored_in());
        let current = storage.kinds.get(&self.kind.group, &self.kind.version, &self.kind.plural);
        // A changed or deleted CRD ends the watches on its objects, but not before the last events were sent.
        let outdated = current.is_none_or(|current| !Arc::ptr_eq(current, &self.kind));
        let Some(collection) = collection else {
            self.phase = Phase::Ending;
            return;
        };
        match self.phase {
            Phase::Ending | Phase::Cutting => {}
            Phase::Waiting { version, bookmarks, .. } => {
                if storage.revision() >= version {
                    self.tell_state(collection, storage.revision(), bookmarks);
                }
            }
            Phase::Telling { bookmarks } => self.tell_on(bookmarks),
            Phase::Following => {
                let Some(changes) = collection.after(self.told) else {
                    self.phase = Phase::Ending;
                    return;
                };
                let mut changes = changes.peekable();
                if self.course.is_dropped_if_slow() && changes.peek().is_some() {
                    self.phase = Phase::Ending;
                    return;
                }
                // What is not selected makes no line, and must not keep those waiting that come after it.
                while self.lines.len() < LINES_AT_ONCE {
                    let Some(change) = changes.next() else {
                        self.told = self.told.max(storage.revision());
                        break;
                    };
                    self.told = change.revision;
                    self.tell(change);
                }
            }
        }
        if outdated && self.lines.is_empty() {
            self.phase = Phase::Ending;
        }
    }

    fn on_time(&mut self) {
        let now = Instant::now();
        if let Phase::Waiting { version, until, .. } = self.phase
            && now >= until
        {
            let current = self.server.storage().revision();
            self.fail(Refusal::version_too_large(version, current));
            return;
        }
        if self.bookmark_at.is_some_and(|at| now >= at) {
            let last = self.deadline.saturating_duration_since(now) <= BOOKMARK_BEFORE_END;
            self.bookmark_at = if last { None } else { Some(next_bookmark(now, self.deadline)) };
            self.read_on();
            if self.phase == Phase::Following && self.told > self.start {
                let bookmark = self.form.bookmark(&self.kind, self.told, false, self.columns);
                self.push("BOOKMARK", &bookmark);
            }
        }
        if now >= self.deadline {
            self.phase = Phase::Ending;
        }
    }

    /// The state of the world in the order of its keys, then the bookmark that ends it.
    fn tell_state(&mut self, collection: &Collection, revision: u64, bookmarks: bool) {
        self.told = revision;
        self.start = revision;
        let selected =
            collection.objects.iter().filter(|(key, object)| self.filter.matches(&self.kind, key, object));
        self.state = selected.map(|(_, object)| Arc::clone(object)).collect();
        self.phase = Phase::Telling { bookmarks };
        self.tell_on(bookmarks);
    }

    fn tell_on(&mut self, bookmarks: bool) {
        for _ in 0..LINES_AT_ONCE {
            let Some(object) = self.state.pop_front() else { break };
            self.push_object("ADDED", &object);
        }
        if !self.state.is_empty() {
            return;
        }
        if bookmarks {
            let bookmark = self.form.bookmark(&self.kind, self.told, true, self.columns);
            self.push("BOOKMARK", &bookmark);
        }
        self.phase = Phase::Following;
    }

    /// What a change is to this watch depends on what its selector said before and says now.
    fn tell(&mut self, change: &Change) {
        let selected = |object: &Option<Arc<Value>>| {
            object.clone().filter(|object| self.filter.matches(&self.kind, &change.key, object))
        };
        match (selected(&change.before), selected(&change.after)) {
            (None, None) => {}
            (None, Some(after)) => self.push_after("ADDED", change, &after),
            (Some(_), Some(after)) => self.push_after("MODIFIED", change, &after),
            // Deleted, or out of sight: the object as it was last seen, with the version of what took it away.
            (Some(before), None) => {
                let mut last = Value::clone(&before);
                last["metadata"]["resourceVersion"] = change.revision.to_string().into();
                self.push_object("DELETED", &last);
            }
        }
    }

    fn push_after(&mut self, event: &str, change: &Change, after: &Value) {
        let kind = Arc::clone(&self.kind);
        match self.form.event(&kind, kind.view(after), self.columns) {
            Cow::Borrowed(after) => self.push_json(event, change.json(after)),
            Cow::Owned(object) => self.push(event, &object),
        }
    }

    fn push_object(&mut self, event: &str, object: &Value) {
        let kind = Arc::clone(&self.kind);
        let object = self.form.event(&kind, kind.view(object), self.columns);
        self.push(event, &object);
    }

    fn push(&mut self, event: &str, object: &Value) {
        self.push_json(event, &encode::json(object));
    }

    fn push_json(&mut self, event: &str, object: &str) {
        self.columns = Columns::Known;
        self.lines.push_back(encode::event(event, object));
    }

    fn too_old(&mut self, floor: u64) {
        self.fail(Refusal::expired(format!("too old resource version: {} ({floor})", self.told)));
    }

    fn fail(&mut self, refusal: Refusal) {
        self.push("ERROR", &refusal.into_status());
        self.phase = Phase::Ending;
    }
}

/// A minute from now, or in time before the end. A watch of two seconds or less has no room for one.
fn next_bookmark(now: Instant, deadline: Instant) -> Instant {
    let last = deadline - BOOKMARK_BEFORE_END.min(deadline - now);
    if last <= now { deadline + BOOKMARK_EVERY } else { last.min(now + BOOKMARK_EVERY) }
}
