//! The server side of a watch: reads the history of a collection and streams it as watch events, or sends a 410 if the history
//! begins after the requested version.
//!
//! ```text
//! GET …/widgets?watch=1&resourceVersion=10&allowWatchBookmarks=true
//! {"type":"MODIFIED","object":{… "resourceVersion":"11" …}}
//! {"type":"BOOKMARK","object":{"apiVersion":"demo.example.com/v1","kind":"Widget","metadata":{"resourceVersion":"14"}}}
//! ```
//!
//! A watch remembers the version up to which it has sent all changes. When the client can take more, the watch reads
//! the next changes from the history of its collection. If the client is so slow that the history has dropped them,
//! the watch ends without an ERROR event, as in kube-apiserver.

use std::{borrow::Cow, collections::VecDeque, num::NonZeroUsize, sync::Arc, time::Duration};

use bytes::Bytes;
use serde_json::Value;
use tokio::{sync::broadcast, time::Instant};

use crate::{
    conversions,
    faults::{self, Course, Cut, Effect, Ending, StreamingLists},
    json,
    kinds::{Kind, conversion},
    request::Query,
    state::Server,
    status::{Cause, StatusError},
    storage::{Change, Collection},
    verbs::{
        read::{Filter, Version, invalid_options},
        table::{Columns, Representation},
    },
};

/// Interval of the bookmarks: apiserver/pkg/storage/cacher, `defaultBookmarkFrequency`.
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);

/// The last bookmark is sent this long before the watch ends.
const BOOKMARK_BEFORE_END: Duration = Duration::from_secs(2);

/// A watch without `timeoutSeconds` ends after a random time from this to twice this: `--min-request-timeout`.
const TIMEOUT_SECS_MIN: u64 = 1800;

/// How long a request waits for a future version: apiserver/pkg/storage/cacher, `blockTimeout`.
pub(crate) const FUTURE_WAIT: Duration = Duration::from_secs(3);

/// Most lines that are encoded ahead: enough to be fast, few enough to save memory.
const LINES_AT_ONCE: usize = 64;

/// The last bytes of a watch that a fault cuts while it has nothing to send.
const HALF_A_LINE: &[u8] = br#"{"type":"MODIFIED","object":{"apiVersion":"v1","ki"#;

/// The only `resourceVersionMatch` of a watch.
const NOT_OLDER_THAN: &str = "NotOlderThan";

/// The options of a watch, checked.
#[derive(Debug)]
pub(crate) struct WatchOptions {
    filter: Filter,
    version: Version,
    /// Follows from `sendInitialEvents` and `resourceVersion`.
    initial: Initial,
    bookmarks: bool,
    timeout: Duration,
    course: Arc<Course>,
}

/// The first events of a watch.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Initial {
    /// The current objects as ADDED events, then, if bookmarks are allowed, a BOOKMARK with the annotation
    /// `k8s.io/initial-events-end`.
    State,
    /// The changes after the requested version.
    Changes,
    /// The changes from now on.
    Now,
}

impl WatchOptions {
    pub(crate) fn parse(
        query: &Query,
        kind: &Kind,
        namespace: Option<&str>,
        course: Arc<Course>,
    ) -> Result<WatchOptions, StatusError> {
        let filter = Filter::parse(query, kind, namespace)?;
        let (mut send, mut matching) = (query.flag("sendInitialEvents"), query.text("resourceVersionMatch"));
        let version = query.text("resourceVersion");
        match (course.streaming_lists(), send) {
            // The default: apimachinery/pkg/apis/meta/internalversion/defaults.go.
            (StreamingLists::Served, None) if matching.is_empty() && ["", "0"].contains(&version) => {
                (send, matching) = (Some(true), NOT_OLDER_THAN);
            }
            (StreamingLists::Served, _) | (StreamingLists::Refused, None) => {}
            (StreamingLists::Refused, Some(_)) => {
                let text =
                    "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled";
                return Err(invalid_options(vec![Cause::forbidden("sendInitialEvents", text)]));
            }
            (StreamingLists::Ignored, _) => (send, matching) = (None, ""),
        }
        check_match(send, matching, query.text("continue"))?;
        let version = Version::parse(version).map_err(StatusError::internal)?;
        let initial = match (send, version) {
            (Some(true), _) | (None, Version::Unset | Version::Any) => Initial::State,
            (None | Some(false), Version::Number(_)) => Initial::Changes,
            (Some(false), Version::Unset | Version::Any) => Initial::Now,
        };
        let timeout = match query.number("timeoutSeconds")? {
            None | Some(0) => Duration::from_secs(TIMEOUT_SECS_MIN + fastrand::u64(..TIMEOUT_SECS_MIN)),
            // A negative timeout expires at once, like a timeout that overflows: see [`Watch::open`].
            Some(secs) => u64::try_from(secs).map_or(Duration::MAX, Duration::from_secs),
        };
        let bookmarks = query.flag("allowWatchBookmarks").unwrap_or(false) && course.has_bookmarks();
        Ok(WatchOptions { filter, version, initial, bookmarks, timeout, course })
    }
}

/// Checks the rules for resourceVersionMatch in a watch. Each broken rule is a cause of the error.
fn check_match(send: Option<bool>, matching: &str, continue_token: &str) -> Result<(), StatusError> {
    let name = "resourceVersionMatch";
    let forbidden = |text| Cause::forbidden(name, text);
    let has_match = !matching.is_empty();
    let mut causes = Vec::new();
    if send.is_some() && matching != NOT_OLDER_THAN {
        causes.push(forbidden("sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"));
    }
    if has_match && send.is_none() {
        let text = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided";
        causes.push(forbidden(text));
    }
    if has_match && matching != NOT_OLDER_THAN {
        causes.push(Cause::not_supported(name, &matching.into(), &[NOT_OLDER_THAN.to_owned()]));
    }
    if has_match && !continue_token.is_empty() {
        causes.push(forbidden("resourceVersionMatch is forbidden when continue is provided"));
    }
    if causes.is_empty() { Ok(()) } else { Err(invalid_options(causes)) }
}

/// One open watch.
pub(crate) struct Watch {
    server: Arc<Server>,
    /// The id of its request.
    pub(crate) request: u64,
    kind: Arc<Kind>,
    filter: Filter,
    form: Representation,
    /// All changes up to this version were sent, or are in `lines`.
    version: u64,
    /// The version of the server when the watch started. Periodic bookmarks are sent only for later versions.
    start: u64,
    /// Objects still to be sent as initial events. They are encoded a few at a time, because a client may never read.
    state: VecDeque<Arc<Value>>,
    lines: VecDeque<Bytes>,
    changed: broadcast::Receiver<()>,
    /// The planned faults for this watch.
    course: Arc<Course>,
    lines_sent: u64,
    deadline: Instant,
    bookmark_at: Option<Instant>,
    /// Whether the next table contains its column definitions.
    columns: Columns,
    phase: Phase,
    /// The version of the newest change that it may send, as a fault wants it.
    newest: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    /// Waits until the server reaches a future version, before the initial events.
    Waiting {
        version: u64,
        until: Instant,
        bookmarks: bool,
    },
    /// Sends the initial events in `state`, then their bookmark if bookmarks are requested.
    Initial {
        bookmarks: bool,
    },
    Following,
    /// Sends the rest of `lines`, then ends.
    Ending,
    /// Sends half a line, then breaks the connection.
    Cutting,
}

impl Watch {
    pub(crate) fn open(
        server: &Arc<Server>,
        kind: &Arc<Kind>,
        options: WatchOptions,
        form: Representation,
    ) -> Result<Watch, StatusError> {
        let storage = server.storage();
        let Some(collection) = storage.collection(&kind.stored_in()) else {
            return Err(StatusError::no_such_path());
        };
        let (now, revision) = (Instant::now(), storage.revision());
        // A timeout that overflows expires at once, because the time arithmetic of Go wraps around.
        let end = now.checked_add(options.timeout);
        let deadline = end.unwrap_or(now);
        // A server without streaming lists does not send the bookmark after the initial events.
        let marks_state = options.bookmarks && options.course.streaming_lists() == StreamingLists::Served;
        let bookmark_at =
            if options.bookmarks { next_bookmark(now, deadline, &options.course) } else { None };
        let mut watch = Watch {
            server: Arc::clone(server),
            request: 0,
            kind: Arc::clone(kind),
            filter: options.filter,
            form,
            version: revision,
            start: 0,
            state: VecDeque::new(),
            lines: VecDeque::new(),
            changed: collection.subscribe(),
            course: options.course,
            lines_sent: 0,
            deadline,
            bookmark_at,
            columns: Columns::Named,
            phase: Phase::Following,
            newest: u64::MAX,
        };
        if end.is_none() {
            watch.fail(StatusError::deadline_exceeded());
            return Ok(watch);
        }
        match (options.initial, options.version) {
            (Initial::State, Version::Number(version)) if version > revision => {
                let until = now + FUTURE_WAIT;
                watch.phase = Phase::Waiting { version, until, bookmarks: marks_state };
            }
            (Initial::State, _) => watch.start_initial(collection, revision, marks_state),
            (Initial::Now, _) => watch.start = revision,
            (Initial::Changes, version) => {
                // A future version is not an error: the watch sends nothing until the server reaches that version.
                watch.version = version.at_least();
                watch.start = watch.version.max(revision);
                if watch.version < collection.floor {
                    watch.fail(StatusError::expired(watch.too_old(collection.floor)));
                }
            }
        }
        // `next` asks for them again.
        drop(conversion::take_missing());
        Ok(watch)
    }

    /// The next chunk of the response. `None` ends the response cleanly; an error breaks the connection.
    pub(crate) async fn next(&mut self) -> Option<Result<Bytes, Cut>> {
        loop {
            match self.course.effect() {
                Some(Effect::Stall) => {
                    self.course.changed().await;
                    continue;
                }
                Some(Effect::End(ending)) => self.end(ending),
                None => {
                    if let Some((lines, ending)) = self.course.ends_after()
                        && self.lines_sent >= lines
                    {
                        self.end(ending);
                    }
                }
            }
            if let Some(line) = self.lines.pop_front() {
                self.lines_sent += 1;
                self.server.record_line(self.request, &line);
                return Some(Ok(line));
            }
            match self.phase {
                Phase::Waiting { .. } | Phase::Initial { .. } | Phase::Following => {}
                Phase::Ending => return None,
                Phase::Cutting => {
                    // Lets the connection send the half line first.
                    tokio::task::yield_now().await;
                    return Some(Err(Cut));
                }
            }
            self.read_on();
            if conversions::learn(&self.server).await || !self.lines.is_empty() || self.phase == Phase::Ending
            {
                continue;
            }
            let wake = self.wake_at();
            tokio::select! {
                // `biased` makes the order deterministic. The timer is first, so that a busy collection cannot delay
                // the end.
                biased;
                () = tokio::time::sleep_until(wake) => self.on_time(),
                // `Lagged` is not a failure: one read handles any number of notifications.
                _ = self.changed.recv() => self.be_late().await,
                () = self.course.changed() => {}
            }
        }
    }

    /// With a fault, waits before the changes so far are sent. Later ones then wait in turn.
    async fn be_late(&mut self) {
        if let Some(late) = self.course.late() {
            self.newest = self.server.storage().revision();
            let _ = tokio::time::timeout(late, self.course.changed()).await;
        }
    }

    pub(crate) fn chunk_bytes(&self) -> Option<NonZeroUsize> {
        self.course.chunk_bytes()
    }

    /// Ends the watch because of a fault. Drops the lines that are not sent yet.
    fn end(&mut self, ending: Ending) {
        if matches!(self.phase, Phase::Ending | Phase::Cutting) {
            return;
        }
        if ending == Ending::MidLine && self.lines.is_empty() {
            self.read_on();
        }
        let next = self.lines.pop_front();
        self.lines.clear();
        self.state.clear();
        self.phase = Phase::Ending;
        // As after a compaction of etcd: apiserver/pkg/storage/etcd3, `interpretWatchError`.
        let too_old = "The resourceVersion for the provided watch is too old.".to_owned();
        match ending {
            Ending::Clean => {}
            Ending::MidLine => {
                let half = next.map(|line| line.slice(..line.len() / 2));
                self.lines.push_back(half.unwrap_or(Bytes::from_static(HALF_A_LINE)));
                self.phase = Phase::Cutting;
            }
            Ending::Expired => self.fail(StatusError::expired(too_old)),
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

    /// Encodes the next initial events or changes as lines.
    fn read_on(&mut self) {
        let server = Arc::clone(&self.server);
        let storage = server.storage();
        let Some(collection) = storage.collection(&self.kind.stored_in()) else {
            self.phase = Phase::Ending;
            return;
        };
        let current = storage.kinds.get(&self.kind.group, &self.kind.version, &self.kind.plural);
        // A changed or deleted CRD ends the watches of its objects, after their last events are sent.
        let outdated = current.is_none_or(|current| !Arc::ptr_eq(current, &self.kind));
        match self.phase {
            Phase::Ending | Phase::Cutting => {}
            Phase::Waiting { version, .. } if storage.revision() < version => {}
            Phase::Waiting { bookmarks, .. } => {
                self.start_initial(collection, storage.revision(), bookmarks);
            }
            Phase::Initial { bookmarks } => self.push_initial(bookmarks),
            Phase::Following => {
                let Some(changes) = collection.after(self.version) else {
                    self.phase = Phase::Ending;
                    return;
                };
                let mut changes = changes.peekable();
                if self.course.is_dropped_if_slow() && changes.peek().is_some() {
                    self.phase = Phase::Ending;
                    return;
                }
                // Only selected changes count towards the limit, so other changes cannot delay them.
                while self.lines.len() < LINES_AT_ONCE {
                    let Some(change) = changes.next().filter(|change| change.revision <= self.newest) else {
                        self.version = self.version.max(storage.revision().min(self.newest));
                        break;
                    };
                    if !self.push_change(change) {
                        break;
                    }
                    self.version = change.revision;
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
            self.fail(StatusError::version_too_large(version, current));
            return;
        }
        if self.bookmark_at.is_some_and(|at| now >= at) {
            self.bookmark_at = next_bookmark(now, self.deadline, &self.course);
            self.read_on();
            // With the fault `bookmarks`, an idle server also sends them.
            let is_due = self.version > self.start || self.course.bookmarks_every().is_some();
            if self.phase == Phase::Following && is_due {
                let bookmark = self.form.bookmark(&self.kind, self.version, false, self.columns);
                self.push("BOOKMARK", &bookmark);
            }
        }
        if now >= self.deadline {
            self.phase = Phase::Ending;
        }
    }

    /// Starts the initial events: the current objects in the order of their keys, then the bookmark if requested.
    fn start_initial(&mut self, collection: &Collection, revision: u64, bookmarks: bool) {
        self.version = revision;
        self.start = revision;
        let selected =
            collection.objects.iter().filter(|(key, object)| self.filter.matches(&self.kind, key, object));
        self.state = selected.map(|(_, object)| Arc::clone(object)).collect();
        if conversion::is_missing() {
            self.phase = Phase::Waiting { version: revision, until: Instant::now() + FUTURE_WAIT, bookmarks };
            return;
        }
        self.phase = Phase::Initial { bookmarks };
        self.push_initial(bookmarks);
    }

    fn push_initial(&mut self, bookmarks: bool) {
        for _ in 0..LINES_AT_ONCE {
            let Some(object) = self.state.pop_front() else { break };
            if !self.push_object("ADDED", &object) {
                self.state.push_front(object);
                return;
            }
        }
        if !self.state.is_empty() {
            return;
        }
        if bookmarks {
            let bookmark = self.form.bookmark(&self.kind, self.version, true, self.columns);
            self.push("BOOKMARK", &bookmark);
        }
        self.phase = Phase::Following;
    }

    /// Adds the event for a change. Its type depends on whether the selector matches the object before and after the
    /// change. False if its object cannot be converted yet.
    fn push_change(&mut self, change: &Change) -> bool {
        let selected = |object: &Option<Arc<Value>>| {
            object.clone().filter(|object| self.filter.matches(&self.kind, &change.key, object))
        };
        let states = (selected(&change.before), selected(&change.after));
        if conversion::is_missing() {
            return false;
        }
        match states {
            (None, None) => true,
            (None, Some(after)) => self.push_after("ADDED", change, &after),
            (Some(_), Some(after)) => self.push_after("MODIFIED", change, &after),
            // Deleted, or no longer selected: send the last selected state, with the version of this change.
            (Some(before), None) => {
                let mut last = Value::clone(&before);
                last["metadata"]["resourceVersion"] = change.revision.to_string().into();
                self.push_object("DELETED", &last)
            }
        }
    }

    fn push_after(&mut self, event: &str, change: &Change, after: &Value) -> bool {
        let kind = Arc::clone(&self.kind);
        let Some(view) = self.viewed(&kind, after) else { return false };
        match self.form.event(&kind, view, self.columns) {
            Cow::Borrowed(after) => self.push_json(event, change.json(after)),
            Cow::Owned(object) => self.push(event, &object),
        }
        true
    }

    fn push_object(&mut self, event: &str, object: &Value) -> bool {
        let kind = Arc::clone(&self.kind);
        let Some(view) = self.viewed(&kind, object) else { return false };
        let object = self.form.event(&kind, view, self.columns);
        self.push(event, &object);
        true
    }

    /// The object in the version of the watch. `None` if its conversion is not known yet, or has failed, which ends the watch.
    fn viewed<'o>(&mut self, kind: &Kind, object: &'o Value) -> Option<Cow<'o, Value>> {
        match kind.view(object) {
            Ok(view) => Some(view),
            Err(_) if conversion::is_missing() => None,
            Err(error) => {
                self.fail(error);
                None
            }
        }
    }

    fn push(&mut self, event: &str, object: &Value) {
        self.push_json(event, &json::json(object));
    }

    fn push_json(&mut self, event: &str, object: &str) {
        self.columns = Columns::Known;
        self.lines.push_back(json::event(event, object));
    }

    fn too_old(&self, floor: u64) -> String {
        format!("too old resource version: {} ({floor})", self.version)
    }

    fn fail(&mut self, error: StatusError) {
        self.push("ERROR", &error.into_status());
        self.phase = Phase::Ending;
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let is_done = matches!(self.phase, Phase::Ending | Phase::Cutting) && self.lines.is_empty();
        let end = if is_done { "END" } else { "CLOSED" };
        self.server.record_event(self.request, end, String::new(), 0);
    }
}

/// The time of the next bookmark: in a minute, unless a fault says otherwise, but at the latest two seconds before the
/// end. `None` with two seconds or less left.
fn next_bookmark(now: Instant, deadline: Instant, course: &Course) -> Option<Instant> {
    let left = deadline.saturating_duration_since(now).checked_sub(BOOKMARK_BEFORE_END)?;
    let every = course.bookmarks_every().unwrap_or(BOOKMARK_EVERY);
    (!left.is_zero()).then(|| now + every.min(left))
}
