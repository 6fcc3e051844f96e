//! How to watch: keep a [`Store`] true to the API server, for ever.
//!
//! ```text
//! GET /apis/apps/v1/deployments?limit=100                                      what exists, as of version 1207
//! GET /apis/apps/v1/deployments?watch=1&resourceVersion=1207&allowWatchBookmarks=true&timeoutSeconds=412
//!     {"type":"MODIFIED","object":{… "resourceVersion":"1208" …}}              what happens after it
//! ```
//!
//! Two halves. [`Machine`] decides: which request comes next, what a line or a page means, what the end of a request
//! means. It does no I/O, so that every rule is a unit test. [`watch`] does what it says, in one loop.
//!
//! The rules, each with the trouble it avoids:
//! - Resume from the version of the list itself, then of each later event and BOOKMARK; never from the highest version
//!   among the listed objects (too old), nor from one sent to describe the initial state (in no order).
//! - The server ends every watch after a few minutes. That is no failure: resume at once, without a new list.
//! - A watch that ends within a second without a line is one, however cleanly it ends, or we would spin.
//! - 410 Expired means that our version has left the server's history: list again, at a state not older than ours.
//! - A server that we have lost sight of may have been restored from a backup since: ask for a list of one object. If the
//!   version of that list is less than ours, list again, and overwrite.
//! - What a list no longer has was deleted while we did not look, and is reported so.
//!
//! See <https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes>.

pub mod decode;
mod health;
#[cfg(test)]
mod tests;

use std::{cmp::Ordering, pin::pin, time::Duration};

use smol_str::SmolStr;
use tokio::time::Instant;
use tracing::{debug, trace};

use crate::{
    backoff::Backoff,
    client::{Body, Client, Error, InTurn, LIST_STREAM_BYTES, Liveness, Page, Turn, WatchFrom, WatchMode},
    resource::{ObjectMeta, Resource, Scope, Status, compare_versions, list::List},
    store::Store,
};
use decode::{Lines, WatchEvent};
pub use health::Health;

/// Most objects per page of a list. One page of Deployments is about 0.5 MB, and three lists come in at once when an operator
/// starts: with client-go's 500, a start with 1,000 objects peaked 2 MB higher.
const PAGE_ITEMS: u32 = 100;
/// An end this soon, with nothing heard, is a failure.
const VERY_SHORT: Duration = Duration::from_secs(1);
/// Watches that were open this long since the last failure prove that server and network are well again. Their times are
/// added: behind a proxy that ends each watch after 50 s, no single one lasts so long.
const HEALTHY: Duration = Duration::from_secs(60);
/// We ask the server to end a watch after 5 to 10 minutes, as client-go does: so watches spread over the API servers
/// again after one of them was restarted.
const TIMEOUT_SECS: std::ops::RangeInclusive<u32> = 300..=600;
/// The same where nothing asks the connection whether it is alive, as with HTTP/1.1: a proxy may hold it open for a server
/// that is long gone, and then only the missing end of the watch tells. With [`TIMEOUT_GRACE`], less than two minutes.
const TIMEOUT_SECS_UNASKED: std::ops::RangeInclusive<u32> = 60..=75;
/// How much later than the server's own end we give a watch up, where nothing else tells that it is dead.
const TIMEOUT_GRACE: Duration = Duration::from_secs(30);
/// The server sends a BOOKMARK about once a minute. Armed only by one that came on this very stream: not every server
/// sends them, and on half of the quiet streams that were measured the first one came after two minutes.
const BOOKMARK_SILENCE: Duration = Duration::from_secs(130);
/// How long a streaming list may be silent before its end: servers that do not know `sendInitialEvents` never send one.
const INITIAL_EVENTS_SILENCE: Duration = Duration::from_secs(30);
/// Longer than any list takes, its retries included: a loop that does not turn for so long is stuck.
const LIST_LIMIT: Duration = Duration::from_secs(600);
/// How much of a line that cannot be read is shown. Bytes.
const GARBLED_BYTES_SHOWN: usize = 80;
/// Between attempts that fail. As in client-go, the first pause is 0.8 to 1.6 s.
const BACKOFF: Backoff = Backoff { first: Duration::from_millis(1600), cap: Duration::from_secs(60) };

/// How to learn what exists before watching.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lists {
    /// `GET …?limit=100`, page by page, then a watch from there.
    #[default]
    Paged,
    /// One request for both (`sendInitialEvents=true`, Kubernetes 1.32 and later). The server holds no list in memory
    /// for it, so it is meant for very large sets.
    Streaming,
}

/// Decides what to ask for, and what the answers mean. Holds no connection and does no I/O.
#[derive(Debug)]
pub struct Machine {
    state: State,
    /// The version up to which we have heard everything. Empty before the first list.
    version: SmolStr,
    lists: Lists,
    /// Failures in a row.
    failures: u32,
    /// How long watches have been open since the last failure.
    open: Duration,
    /// Lines of the present request.
    lines: u64,
    /// A periodic BOOKMARK came on this stream, so that silence means something.
    is_armed: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    /// Learning what exists, page by page. `has_expired`: an earlier attempt expired between its pages.
    Listing { at: Freshness, continue_token: String, limit: u32, has_expired: bool },
    /// Learning what exists from a watch that tells it first.
    Streaming { at: Freshness },
    /// Hearing what happens.
    Following,
    /// Asking whether the server has come as far as we have, before following it again: a server that was restored from
    /// a backup lets us wait in silence for a version that lies ahead of it, and tells nothing of how it came there.
    Checking,
}

/// Which state a list may show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Freshness {
    /// The latest one.
    MostRecent,
    /// Any that is not older than what we know: cheaper for the server, and time does not run backwards.
    NotOlder,
}

/// The request to send next.
#[derive(Debug, PartialEq, Eq)]
pub enum Request<'a> {
    /// Get one page of a list.
    List(Page<'a>),
    /// Ask how far the server has come.
    Check,
    /// Open a watch.
    Watch(WatchFrom<'a>),
}

/// How a request came to its end. None of these is the end of watching.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// The server hung up, as it does every few minutes.
    Clean,
    /// The connection broke.
    Cut,
    /// Nothing was heard for longer than a living server is silent.
    Silent,
    /// There was no answer at all.
    Unreachable,
    /// The version asked for has left the server's history.
    Expired,
    /// The version asked for is newer than anything the server knows.
    TooNew,
    /// The server does not know streaming lists.
    Unsupported,
    /// The server said no.
    Refused {
        /// HTTP status.
        code: u16,
        /// When to come back.
        retry_after: Option<Duration>,
    },
    /// The server ended an open watch, because it cannot tell what comes next.
    Failed {
        /// When to come back.
        retry_after: Option<Duration>,
    },
    /// A line or a page was not what it should be.
    Garbled,
    /// A page had more bytes than are read.
    TooLarge,
    /// A line was longer than [`decode::LINE_BYTES_MAX`].
    TooLong,
}

/// How long to wait before the next request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// Not at all.
    None,
    /// As long as so many failures in a row ask for, and as long as the server asks for.
    Backoff {
        /// In a row, this one included.
        failures: u32,
        /// From `Retry-After`.
        at_least: Duration,
    },
}

impl Request<'_> {
    /// What it waits for, if anything: see [`Client::turn`].
    fn in_turn(&self) -> Option<InTurn> {
        match self {
            Request::List(page) => Some(InTurn::List { bytes_max: page.bytes_max() }),
            Request::Watch(from) if from.mode == WatchMode::InitialEvents => {
                Some(InTurn::List { bytes_max: LIST_STREAM_BYTES })
            }
            Request::Check => Some(InTurn::Check),
            Request::Watch(_) => None,
        }
    }
}

impl Machine {
    /// Knows nothing yet.
    #[must_use]
    pub fn new(lists: Lists) -> Machine {
        let state = State::start(lists, Freshness::MostRecent);
        Machine {
            state,
            version: SmolStr::default(),
            lists,
            failures: 0,
            open: Duration::ZERO,
            lines: 0,
            is_armed: false,
        }
    }

    /// Begins the next request: what to ask for. `timeout_secs` is when the server shall end a watch.
    pub fn request(&mut self, timeout_secs: u32) -> Request<'_> {
        self.lines = 0;
        self.is_armed = false;
        let version = |at| if at == Freshness::NotOlder { &*self.version } else { "" };
        match &self.state {
            State::Listing { at, continue_token, limit, .. } => {
                let version = Some(version(*at)).filter(|version| !version.is_empty());
                Request::List(Page { version, continue_token, limit: *limit })
            }
            State::Streaming { at } => Request::Watch(WatchFrom {
                version: version(*at),
                timeout_secs,
                mode: WatchMode::InitialEvents,
            }),
            State::Following => {
                Request::Watch(WatchFrom { version: &self.version, timeout_secs, mode: WatchMode::Changes })
            }
            State::Checking => Request::Check,
        }
    }

    /// Whether a whole list begins with the next request.
    #[must_use]
    pub fn is_at_start_of_list(&self) -> bool {
        match &self.state {
            State::Listing { continue_token, .. } => continue_token.is_empty(),
            State::Streaming { .. } => true,
            State::Following | State::Checking => false,
        }
    }

    /// How long the present request may be silent.
    #[must_use]
    pub fn silence_limit(&self, timeout_secs: u32) -> Duration {
        let its_end = Duration::from_secs(timeout_secs.into()) + TIMEOUT_GRACE;
        match self.state {
            State::Streaming { .. } => INITIAL_EVENTS_SILENCE,
            State::Listing { .. } | State::Following | State::Checking => {
                if self.is_armed {
                    BOOKMARK_SILENCE.min(its_end)
                } else {
                    its_end
                }
            }
        }
    }

    /// A page of a list has come.
    ///
    /// Returns how the list ends, where the page leads nowhere.
    pub fn page<K: Resource>(&mut self, page: List<K>, store: &Store<K>) -> Option<How> {
        let State::Listing { continue_token, limit, .. } = &mut self.state else { return None };
        // Or a server that says the same for ever would be asked for ever.
        let leads_nowhere = *continue_token == page.continue_token || page.items.is_empty();
        if leads_nowhere && !page.continue_token.is_empty() {
            return Some(How::Garbled);
        }
        *continue_token = page.continue_token;
        *limit = PAGE_ITEMS.min(*limit * 2);
        let is_last = continue_token.is_empty();
        store.listed(&page.version, page.items);
        if is_last {
            self.list_is_complete(page.version, store);
        }
        None
    }

    /// The server has come to this version.
    pub fn checked(&mut self, version: &str) {
        self.state = if compare_versions(version, &self.version) == Some(Ordering::Less) {
            // Restored from a backup. A page says its version before its objects are taken in, so that they are known to
            // overwrite; a streaming list says it only at its end.
            State::start(Lists::Paged, Freshness::MostRecent)
        } else {
            State::Following
        };
    }

    /// A line of a watch has come. The one place where it matters whether it says ADDED, MODIFIED or DELETED.
    ///
    /// Returns how the watch ends, where the line says that it does.
    pub fn line<K: Resource>(&mut self, event: WatchEvent<K>, store: &Store<K>) -> Option<How> {
        self.lines += 1;
        match event {
            // In no order, so their versions mean nothing for resuming.
            WatchEvent::Added(object) if self.is_streaming() => store.listed("", [object]),
            // A server that does not know `sendInitialEvents` tells of changes, and never of the end.
            WatchEvent::Modified(_) | WatchEvent::Deleted(_) if self.is_streaming() => {
                return Some(How::Unsupported);
            }
            WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                self.version = object.metadata().resource_version.clone();
                store.applied(object);
            }
            WatchEvent::Deleted(object) => {
                self.version = object.metadata().resource_version.clone();
                store.deleted(object);
            }
            WatchEvent::Bookmark { version, ends_initial_events } => match self.state {
                State::Streaming { .. } if ends_initial_events => self.list_is_complete(version, store),
                State::Streaming { .. } => return Some(How::Unsupported),
                State::Listing { .. } | State::Following | State::Checking => {
                    store.bookmark(&version);
                    self.version = version;
                    self.is_armed = !ends_initial_events;
                }
            },
            WatchEvent::Error(status) => return Some(How::from(&status)),
            WatchEvent::Unknown(_) => {}
        }
        None
    }

    fn is_streaming(&self) -> bool {
        matches!(self.state, State::Streaming { .. })
    }

    fn list_is_complete<K: Resource>(&mut self, version: SmolStr, store: &Store<K>) {
        store.list_ends(&version);
        self.version = version;
        self.state = State::Following;
    }

    /// A request has ended, other than by a page: what comes next, and how soon.
    pub fn end(&mut self, how: How, lasted: Duration) -> Pause {
        if self.state == State::Following && how.was_open() {
            self.open += lasted;
        }
        if self.open >= HEALTHY {
            self.failures = 0;
        }
        let was_very_short = lasted < VERY_SHORT && self.lines == 0;
        let mut at_least = Duration::ZERO;
        let is_failure = match (&mut self.state, how) {
            (State::Following, How::Clean | How::Cut | How::Silent) => {
                // A clean end after a line has told that the server knows our version.
                if how != How::Clean || self.lines == 0 {
                    self.state = State::Checking;
                }
                was_very_short
            }
            (_, How::Expired) => self.list_after_expiry(),
            // The rest of the list in smaller pages: a few objects may be as large as all others together.
            (State::Listing { limit, .. }, How::TooLarge) if *limit > 1 => {
                *limit /= 2;
                false
            }
            (
                State::Listing { at: Freshness::NotOlder, .. } | State::Streaming { at: Freshness::NotOlder },
                How::TooNew,
            ) => {
                // Restored from a backup: see [`Machine::checked`].
                self.state = State::start(Lists::Paged, Freshness::MostRecent);
                false
            }
            (State::Streaming { .. }, How::Unsupported | How::Clean | How::Silent) => {
                self.lists = Lists::Paged;
                self.list(Freshness::MostRecent);
                false
            }
            // With an etcd that cannot report its progress (before 3.4.31 and 3.5.13), kube-apiserver ends every streaming
            // list so. It may also be a trouble that passes: this list comes in pages, the next as a stream again.
            (State::Streaming { at }, How::Failed { .. }) => {
                self.state = State::start(Lists::Paged, *at);
                false
            }
            // One object has more metadata than a check reads. No failure: a list tells the same.
            (State::Checking, How::TooLarge) => {
                self.list(Freshness::NotOlder);
                false
            }
            // The answer says nothing about the version that we ask for: ask again.
            (State::Following | State::Checking, _) if how.may_pass() => {
                self.state = State::Checking;
                true
            }
            // A list tells what a check would, and is asked for in another form.
            (State::Following | State::Checking, _) => {
                self.list(Freshness::NotOlder);
                true
            }
            // Without the version, which is all that one server may know how to read and another not.
            (
                State::Listing { at: Freshness::NotOlder, .. } | State::Streaming { at: Freshness::NotOlder },
                How::Unsupported | How::Refused { .. },
            ) if !how.may_pass() => {
                self.list(Freshness::MostRecent);
                true
            }
            (State::Listing { at, .. } | State::Streaming { at }, _) => {
                let at = *at;
                self.list(at);
                true
            }
        };
        if let How::Refused { retry_after: Some(asked), .. } | How::Failed { retry_after: Some(asked) } = how
        {
            at_least = asked;
        }
        if !is_failure {
            return Pause::None;
        }
        self.failures = self.failures.saturating_add(1);
        self.open = Duration::ZERO;
        Pause::Backoff { failures: self.failures, at_least }
    }

    /// First from a state not older than ours, then from the latest. A list that expires between its pages is asked for
    /// in pages once more, and if that expires too, in one piece. Returns whether to back off.
    fn list_after_expiry(&mut self) -> bool {
        match &self.state {
            State::Following | State::Checking => {
                self.list(Freshness::NotOlder);
                // Counted although nothing failed: a server that expires each version at once must not be hammered.
                let is_again = self.failures > 0;
                self.failures = self.failures.max(1);
                self.open = Duration::ZERO;
                is_again
            }
            // As a rule the process, or its machine, was suspended for minutes.
            State::Listing { at, continue_token, has_expired, .. } if !continue_token.is_empty() => {
                let limit = if *has_expired { 0 } else { PAGE_ITEMS };
                self.state =
                    State::Listing { at: *at, continue_token: String::new(), limit, has_expired: true };
                false
            }
            State::Listing { at, .. } | State::Streaming { at } => {
                let is_last_resort = *at == Freshness::MostRecent;
                self.list(Freshness::MostRecent);
                is_last_resort
            }
        }
    }

    /// A list that is asked for in pages goes on so, however it fails: it may be that of a restored backup.
    fn list(&mut self, at: Freshness) {
        let lists = if matches!(self.state, State::Listing { .. }) { Lists::Paged } else { self.lists };
        self.state = State::start(lists, at);
    }
}

impl State {
    fn start(lists: Lists, at: Freshness) -> State {
        match lists {
            Lists::Paged => {
                State::Listing { at, continue_token: String::new(), limit: PAGE_ITEMS, has_expired: false }
            }
            Lists::Streaming => State::Streaming { at },
        }
    }
}

impl How {
    /// A watch was open before this.
    fn was_open(self) -> bool {
        match self {
            // The last one may also be the answer to the request, which takes no time.
            How::Clean
            | How::Cut
            | How::Silent
            | How::Failed { .. }
            | How::Garbled
            | How::TooLong
            | How::Expired => true,
            How::Unreachable | How::TooNew | How::Unsupported | How::Refused { .. } | How::TooLarge => false,
        }
    }

    /// The same request may have another answer later.
    fn may_pass(self) -> bool {
        matches!(self, How::Unreachable | How::Refused { code: 401 | 403 | 404 | 429 | 500.., .. })
    }
}

impl From<&Status> for How {
    fn from(status: &Status) -> How {
        if status.is_expired() {
            return How::Expired;
        }
        if status.is_too_new() {
            return How::TooNew;
        }
        // Asked of the error, because it knows the limit of what may be asked for.
        let retry_after = Error::refused("watch", "", status.clone()).retry_after();
        match status.code {
            429 => How::Refused { code: 429, retry_after },
            _ => How::Failed { retry_after },
        }
    }
}

/// Watches `scope` and keeps `store` true. Runs until dropped.
pub async fn watch<K: Resource>(
    client: Client,
    scope: Scope,
    lists: Lists,
    store: &Store<K>,
    health: &Health,
) {
    let mut machine = Machine::new(lists);
    let mut random = fastrand::Rng::new();
    if lists == Lists::Streaming {
        // Here the first watch is the list. How long it may last depends on how a dead connection shows, which any answer
        // tells; where there is none, the watch will say so.
        let _ = client.version().await;
    }
    loop {
        if machine.is_at_start_of_list() {
            store.list_begins();
        }
        let timeout_secs = match client.liveness() {
            Liveness::Asked => random.u32(TIMEOUT_SECS),
            Liveness::Unasked => random.u32(TIMEOUT_SECS_UNASKED),
        };
        let request = machine.request(timeout_secs);
        let turn = match request.in_turn() {
            Some(in_turn) => {
                health.after_others();
                Some(client.turn(in_turn).await)
            }
            None => None,
        };
        let started = Instant::now();
        health.within(LIST_LIMIT);
        let end = match request {
            Request::List(page) => {
                // Until the page is taken in.
                let _turn = turn;
                match client.list_page::<K>(&scope, &page).await {
                    Ok(page) => {
                        health.well();
                        debug!(resource = K::PLURAL, %scope, resource_version = %page.version, objects = page.items.len(), "page");
                        let Some(how) = machine.page(page, store) else { continue };
                        End { how, problem: "a page of a list leads to no other page".to_owned() }
                    }
                    Err(error) => End::refused::<K>(&error),
                }
            }
            Request::Check => {
                let _turn = turn;
                match client.latest_version::<K>(&scope).await {
                    Ok(version) => {
                        machine.checked(&version);
                        continue;
                    }
                    Err(error) => End::refused::<K>(&error),
                }
            }
            Request::Watch(from) => match client.watch::<K>(&scope, &from).await {
                Ok(body) => follow(body, turn, &mut machine, timeout_secs, store, health).await,
                Err(error) => {
                    drop(turn);
                    End::refused::<K>(&error)
                }
            },
        };
        let pause = machine.end(end.how, started.elapsed());
        debug!(resource = K::PLURAL, %scope, ?end.how, end.problem, ?pause, "request ended");
        if let Pause::Backoff { failures, at_least } = pause {
            let pause = BACKOFF.pause(failures, at_least, &mut random);
            if end.is_news(failures) {
                health.ill(end.problem);
            }
            health.within(pause);
            tokio::time::sleep(pause).await;
        }
    }
}

/// Reads a watch to its end. Gives `turn` back when the list with which the watch begins is complete.
async fn follow<K: Resource>(
    mut body: Body,
    mut turn: Option<Turn<'_>>,
    machine: &mut Machine,
    timeout_secs: u32,
    store: &Store<K>,
    health: &Health,
) -> End {
    let mut lines = Lines::default();
    loop {
        let limit = machine.silence_limit(timeout_secs);
        health.within(limit);
        let mut chunk = pin!(body.chunk());
        let chunk = match tokio::time::timeout(VERY_SHORT, &mut chunk).await {
            Ok(chunk) => Ok(chunk),
            Err(_) => {
                // Open and quiet is well too: nothing may happen for a long time.
                health.well();
                tokio::time::timeout(limit, chunk).await
            }
        };
        let chunk = match chunk {
            Ok(Ok(Some(chunk))) => chunk,
            Ok(Ok(None)) => return End { how: How::Clean, problem: "the watch ended at once".to_owned() },
            Ok(Err(error)) => return End { how: How::Cut, problem: error.to_string() },
            Err(_) => {
                return End { how: How::Silent, problem: format!("nothing heard for {} s", limit.as_secs()) };
            }
        };
        trace!(resource = K::PLURAL, bytes = chunk.len(), "chunk");
        lines.push(&chunk);
        if let Err(end) = read_lines(&mut lines, machine, store) {
            return end;
        }
        if !machine.is_streaming() {
            drop(turn.take());
        }
        health.well();
    }
}

/// Takes in all whole lines that have come.
fn read_lines<K: Resource>(lines: &mut Lines, machine: &mut Machine, store: &Store<K>) -> Result<(), End> {
    loop {
        let line = match lines.next_line() {
            Ok(Some(line)) => line,
            Ok(None) => return Ok(()),
            Err(decode::TooLong) => {
                let problem = format!("a line of more than {} bytes", decode::LINE_BYTES_MAX);
                return Err(End { how: How::TooLong, problem });
            }
        };
        let event = WatchEvent::<K>::from_json(line).map_err(|error| {
            let start = String::from_utf8_lossy(&line[..line.len().min(GARBLED_BYTES_SHOWN)]);
            End {
                how: How::Garbled, problem: format!("a line that is no watch event: {error}: {start:?}…")
            }
        })?;
        log(&event, line.len());
        let problem =
            if let WatchEvent::Error(status) = &event { status.message.clone() } else { String::new() };
        if let Some(how) = machine.line(event, store) {
            return Err(End { how, problem });
        }
    }
}

/// One line in the log for each line of a watch. The object itself is not shown: it may hold secrets.
fn log<K: Resource>(event: &WatchEvent<K>, bytes: usize) {
    let (resource, event_type) = (K::PLURAL, event.type_name());
    match event {
        WatchEvent::Added(object) | WatchEvent::Modified(object) | WatchEvent::Deleted(object) => {
            let ObjectMeta { resource_version, .. } = object.metadata();
            debug!(resource, "type" = event_type, key = %object.metadata().key(), %resource_version, bytes, "event");
        }
        WatchEvent::Bookmark { version: resource_version, .. } => {
            debug!(resource, "type" = event_type, %resource_version, bytes, "event");
        }
        WatchEvent::Error(Status { code, message, .. }) => {
            debug!(resource, "type" = event_type, code, message, bytes, "event");
        }
        WatchEvent::Unknown(_) => debug!(resource, "type" = event_type, bytes, "event"),
    }
}

/// A request's end, and what to tell people about it.
struct End {
    how: How,
    problem: String,
}

impl End {
    fn refused<K: Resource>(error: &Error) -> End {
        let how = match error.code() {
            _ if error.is_expired() => How::Expired,
            _ if error.is_too_new() => How::TooNew,
            None if error.is_unreadable() => How::Garbled,
            None if error.is_too_large() => How::TooLarge,
            Some(422) => How::Unsupported,
            Some(code) => How::Refused { code, retry_after: error.retry_after() },
            None => How::Unreachable,
        };
        let (plural, group) = (K::PLURAL, if K::GROUP.is_empty() { "\"\"" } else { K::GROUP });
        let problem = if error.is_forbidden() {
            format!("{error}; grant the verbs list and watch on the resource {plural} of API group {group}")
        } else if error.is_missing_kind() {
            format!(
                "{error}; install the CustomResourceDefinition {plural}.{group}: listwatch crd | kubectl apply -f -"
            )
        } else {
            error.to_string()
        };
        End { how, problem }
    }

    /// Whether people are to hear of it, the last of so many failures in a row. A kind that was installed a moment ago is as
    /// a rule "(re)initializing" at first.
    fn is_news(&self, failures: u32) -> bool {
        failures > 1 || !matches!(self.how, How::Refused { code: 429, .. })
    }
}
