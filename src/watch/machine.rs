//! The state machine of a watch: [`Machine`] decides which request comes next (list, check or watch), and after which pause. The
//! version to resume from is in the Store. `follow.rs` handles the events of an open watch, in [`Machine::line`]. Nothing in this
//! file does I/O.

use std::{cmp::Ordering, time::Duration};

use smol_str::SmolStr;

use super::{VERY_SHORT, health};
use crate::{
    client::{Collection, Error, InTurn, LIST_STREAM_BYTES, Page, WatchFrom, WatchMode},
    resource::{Resource, Status, compare_versions, list::List},
    store::Store,
};

/// Most objects per page of a list. A page of 100 Deployments has about 0.5 MB, and the operator of MyWebservers reads three
/// lists at once when it starts. With client-go's 500 objects per page, a start with 1,000 objects peaked 2 MB higher.
const PAGE_ITEMS: u32 = 100;
/// After watches have been open for this long in total, the count of failures starts again at zero. Each single watch
/// may be shorter: some proxies end every watch after 50 s.
const HEALTHY: Duration = Duration::from_secs(60);

/// How to list the existing objects before the watch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lists {
    /// `GET …?limit=100`, page by page, then a watch from the version of the list.
    #[default]
    Paged,
    /// A watch that begins with the list (`sendInitialEvents=true`; on by default in Kubernetes 1.32 and since 1.34).
    /// The server does not build the list in memory, so this is meant for very many objects.
    Streaming,
}

/// Decides from the answers which request comes next. Holds no connection and does no I/O. The version from which a
/// watch resumes is in the [`Store`].
#[derive(Debug)]
pub struct Machine {
    pub(super) state: State,
    lists: Lists,
    /// Failures in a row.
    failures: u32,
    /// How long watches have been open since the last failure.
    open: Duration,
    /// Whether a watch has failed to open since the last list or open watch. 429 does not count.
    pub(super) has_not_opened: bool,
    /// The number of lines of the present watch.
    pub(super) lines: u64,
    /// The version of the Store when the present request began. Empty after a streaming list.
    pub(super) from: SmolStr,
    /// Whether the lines have changed the version of the Store since then, or completed a streaming list.
    pub(super) has_progressed: bool,
    /// Whether a periodic BOOKMARK came in this watch, so that [`BOOKMARK_SILENCE`](super::follow::BOOKMARK_SILENCE) applies.
    pub(super) expects_bookmarks: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// A list, page by page. `has_expired`: an earlier attempt expired between its pages.
    Listing { at: Freshness, continue_token: String, limit: u32, has_expired: bool },
    /// A streaming list: a watch that sends every object first.
    Streaming { at: Freshness },
    /// A watch.
    Following,
    /// A check of the server's version before the next watch. A server that was restored from a backup may be at an older
    /// version than ours. It would accept our watch, and send nothing until it reaches our version again.
    Checking,
}

/// How recent a list must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Freshness {
    /// The most recent state.
    MostRecent,
    /// Not older than our version. The server can answer from its cache.
    NotOlder,
}

/// The request to send next.
#[derive(Debug, PartialEq, Eq)]
pub enum NextRequest<'a> {
    /// Get one page of a list.
    List(Page<'a>),
    /// Get the server's present version.
    Check,
    /// Open a watch.
    Watch(WatchFrom<'a>),
}

/// How a request ended. For each of these, [`Machine`] has a next request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// The server closed the watch, as it does every few minutes.
    Clean,
    /// The connection broke.
    Cut,
    /// Nothing came for longer than [`Machine::silence_limit`].
    Silent,
    /// There was no answer.
    Unreachable,
    /// There was no answer in time.
    Late,
    /// 410 Expired: the server no longer has the history since the requested version.
    Expired,
    /// The requested version is newer than the server's.
    TooNew,
    /// The server refused the request with 422, or its stream is not the requested streaming list.
    Unsupported,
    /// The server answered with an error, or ended an open watch with a 429 in an `ERROR` event.
    Refused {
        /// HTTP status.
        code: u16,
        /// From `Retry-After`.
        retry_after: Option<Duration>,
    },
    /// The server ended an open watch with another `ERROR` event.
    Failed {
        /// From `Retry-After`.
        retry_after: Option<Duration>,
    },
    /// A line or a page could not be decoded, or a page repeated its continue token.
    Garbled,
    /// A page, or the answer to a check, had more bytes than we read.
    TooLarge,
    /// A line was longer than [`LINE_BYTES_MAX`](super::decode::LINE_BYTES_MAX).
    LineTooLong,
}

/// How long to wait before the next request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// No pause.
    None,
    /// The time that the server asks for, and then an exponential backoff.
    Backoff {
        /// Failures in a row, this one included.
        failures: u32,
        /// From `Retry-After`.
        at_least: Duration,
    },
}

/// The end of a request, with the problem for [`Health`](super::Health).
pub(crate) struct End {
    pub(super) how: EndReason,
    pub(super) problem: String,
}

impl End {
    pub(super) fn failed(error: &Error, collection: &Collection) -> End {
        End { how: EndReason::of(error), problem: health::problem(error, collection) }
    }

    /// Whether to report the problem after this many failures in a row. A 429 is not reported if it is the first
    /// failure: the API server answers 429 for a few seconds after a CRD was created.
    pub(super) fn is_news(&self, failures: u32) -> bool {
        failures > 1 || !matches!(self.how, EndReason::Refused { code: 429, .. })
    }
}

impl NextRequest<'_> {
    /// The turn for which the request must wait, if any: see [`Client::turn`](crate::client::Client::turn).
    pub(super) fn in_turn(&self) -> Option<InTurn> {
        match self {
            NextRequest::List(page) => Some(InTurn::List { bytes_max: page.bytes_max() }),
            NextRequest::Watch(from) if from.mode == WatchMode::InitialEvents => {
                Some(InTurn::List { bytes_max: LIST_STREAM_BYTES })
            }
            NextRequest::Check => Some(InTurn::Check),
            NextRequest::Watch(_) => None,
        }
    }
}

impl Machine {
    /// A machine for a new Store: it begins with a list.
    #[must_use]
    pub fn new(lists: Lists) -> Machine {
        let state = State::start(lists, Freshness::MostRecent);
        Machine {
            state,
            lists,
            failures: 0,
            open: Duration::ZERO,
            has_not_opened: false,
            lines: 0,
            from: SmolStr::default(),
            has_progressed: false,
            expects_bookmarks: false,
        }
    }

    /// A machine for a Store that has a version already: it begins with a list that is not older.
    #[cfg(feature = "cli")]
    pub(crate) fn relists(lists: Lists) -> Machine {
        Machine { state: State::start(lists, Freshness::NotOlder), ..Machine::new(lists) }
    }

    /// A machine for a Store that has a version already: it begins with a watch.
    #[must_use]
    pub fn resumed(lists: Lists) -> Machine {
        Machine { state: State::Following, ..Machine::new(lists) }
    }

    /// Begins the next request. `version` is the version of the Store, and `timeout_secs` is the `timeoutSeconds` of a watch.
    pub fn request<'a>(&'a mut self, version: &'a str, timeout_secs: u32) -> NextRequest<'a> {
        self.lines = 0;
        self.from = version.into();
        self.has_progressed = false;
        self.expects_bookmarks = false;
        let at_version = |at| if at == Freshness::NotOlder { version } else { "" };
        match &self.state {
            State::Listing { at, continue_token, limit, .. } => {
                let version = Some(at_version(*at)).filter(|version| !version.is_empty());
                NextRequest::List(Page { version, continue_token, limit: *limit })
            }
            State::Streaming { at } => NextRequest::Watch(WatchFrom {
                version: at_version(*at),
                timeout_secs,
                mode: WatchMode::InitialEvents,
            }),
            State::Following => {
                NextRequest::Watch(WatchFrom { version, timeout_secs, mode: WatchMode::Changes })
            }
            State::Checking => NextRequest::Check,
        }
    }

    /// Whether the next request is the first one of a list.
    #[must_use]
    pub fn is_at_start_of_list(&self) -> bool {
        match &self.state {
            State::Listing { continue_token, .. } => continue_token.is_empty(),
            State::Streaming { .. } => true,
            State::Following | State::Checking => false,
        }
    }

    /// Handles a page of a list.
    ///
    /// Returns [`EndReason::Garbled`] if the page repeats the continue token that led to it. A page without objects may lead on.
    pub fn page<K: Resource>(&mut self, page: List<K>, store: &Store<K>) -> Option<EndReason> {
        let State::Listing { continue_token, limit, .. } = &mut self.state else { return None };
        // Without this check, a list would never end if the server repeats a continue token.
        if *continue_token == page.continue_token && !page.continue_token.is_empty() {
            return Some(EndReason::Garbled);
        }
        *continue_token = page.continue_token;
        *limit = PAGE_ITEMS.min(*limit * 2);
        let is_last = continue_token.is_empty();
        store.listed(&page.version, page.items);
        if is_last {
            self.list_is_complete(&page.version, store);
        }
        None
    }

    /// Handles the answer to a check: the server's present version.
    pub fn checked<K: Resource>(&mut self, version: &str, store: &Store<K>) {
        self.state = if compare_versions(version, &store.version()) == Some(Ordering::Less) {
            // The server was restored from a backup, so its older objects must overwrite those in the Store. Before it
            // takes older objects, the Store must know the version of the list: a paged list begins with it, a
            // streaming list ends with it.
            State::start(Lists::Paged, Freshness::MostRecent)
        } else {
            State::Following
        };
    }

    /// Whether the next or present request is a streaming list.
    #[must_use]
    pub fn is_streaming(&self) -> bool {
        matches!(self.state, State::Streaming { .. })
    }

    /// Whether the next or present request is a page of a list.
    #[must_use]
    pub fn is_listing(&self) -> bool {
        matches!(self.state, State::Listing { .. })
    }

    /// Whether the next or present request is a check of the server's version.
    #[must_use]
    pub fn is_checking(&self) -> bool {
        self.state == State::Checking
    }

    /// Whether the present watch has sent a line.
    #[must_use]
    pub fn has_lines(&self) -> bool {
        self.lines > 0
    }

    /// Whether the present watch has changed the version of the Store, or has completed a streaming list.
    #[must_use]
    pub fn has_progressed(&self) -> bool {
        self.has_progressed
    }

    pub(super) fn list_is_complete<K: Resource>(&mut self, version: &SmolStr, store: &Store<K>) {
        store.list_ends(version);
        self.state = State::Following;
        self.has_not_opened = false;
        self.from = SmolStr::default();
    }

    /// Handles the end of a watch, or of a list or check that failed. Returns how soon the next request follows.
    pub fn end(&mut self, how: EndReason, lasted: Duration) -> Pause {
        if self.state == State::Following && how.was_open() {
            self.open += lasted;
            self.has_not_opened = false;
        }
        if self.open >= HEALTHY {
            self.failures = 0;
        }
        let was_very_short = lasted < VERY_SHORT && !self.has_progressed;
        let mut at_least = Duration::ZERO;
        let is_failure = match (&mut self.state, how) {
            (State::Following, EndReason::Clean | EndReason::Cut | EndReason::Silent) => {
                // No check after a clean end with at least one line: a server that sends a line is not behind our
                // version.
                if how != EndReason::Clean || self.lines == 0 {
                    self.state = State::Checking;
                }
                was_very_short
            }
            (_, EndReason::Expired) => self.list_after_expiry(),
            // Get a smaller page: a few objects may be very large, or the connection slow. Each page that succeeds doubles the limit
            // again. A server that is late may also be overloaded, so that is a failure.
            (State::Listing { limit, .. }, EndReason::TooLarge | EndReason::Late) if *limit > 1 => {
                *limit /= 2;
                how == EndReason::Late
            }
            (
                State::Listing { at: Freshness::NotOlder, .. } | State::Streaming { at: Freshness::NotOlder },
                EndReason::TooNew,
            ) => {
                // The server was restored from a backup: see [`Machine::checked`].
                self.state = State::start(Lists::Paged, Freshness::MostRecent);
                false
            }
            (State::Streaming { .. }, EndReason::Unsupported | EndReason::Clean | EndReason::Silent) => {
                self.lists = Lists::Paged;
                self.list(Freshness::MostRecent);
                false
            }
            // With an etcd that cannot report its progress (before 3.4.31 and 3.5.13), kube-apiserver ends every streaming
            // list like this. Other causes may pass, so only this list is paged; the next one is streamed again.
            (State::Streaming { at }, EndReason::Failed { .. }) => {
                self.state = State::start(Lists::Paged, *at);
                false
            }
            // The listed object has more metadata than a check reads. That is not a failure: a list also has the version.
            (State::Checking, EndReason::TooLarge) => {
                self.list(Freshness::NotOlder);
                false
            }
            // The check has no selector. An authorizer that looks at selectors may refuse the check, and allow the list and the
            // watch. See https://github.com/kubernetes/enhancements/issues/4601.
            (State::Checking, EndReason::Refused { code: 403, .. }) => {
                self.list(Freshness::NotOlder);
                true
            }
            // Between the two, the server has answered a check: a proxy or a missing permission may prevent watches alone. Without a list
            // now and then, the Store would never change again.
            (State::Following, _) if self.has_not_opened && how.may_pass() && !how.is_overload() => {
                self.list(Freshness::NotOlder);
                true
            }
            // An error that may pass and does not depend on the version: check again.
            (State::Following | State::Checking, _) if how.may_pass() => {
                self.has_not_opened |= self.state == State::Following && !how.is_overload();
                self.state = State::Checking;
                true
            }
            // The same request may fail again, so list instead: a list also has a version.
            (State::Following | State::Checking, _) => {
                self.list(Freshness::NotOlder);
                true
            }
            // List without a version: the server may be a replacement that cannot read our version.
            (
                State::Listing { at: Freshness::NotOlder, .. } | State::Streaming { at: Freshness::NotOlder },
                EndReason::Unsupported | EndReason::Refused { .. },
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
        if let EndReason::Refused { retry_after: Some(asked), .. }
        | EndReason::Failed { retry_after: Some(asked) } = how
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

    /// After 410 Expired, lists again, not older than our version. If that list expires too, lists the most recent
    /// state. A list that expires between its pages starts again; after the second time, it has a single page,
    /// because smaller ones would only take longer. Returns whether to back off.
    fn list_after_expiry(&mut self) -> bool {
        match &self.state {
            State::Following | State::Checking => {
                self.list(Freshness::NotOlder);
                // Back off only if there was a failure before: the server may expire every version at once.
                let is_again = self.failures > 0;
                self.failures = self.failures.max(1);
                self.open = Duration::ZERO;
                is_again
            }
            // Usually the process or its host was suspended for minutes.
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

    /// A paged list stays paged after a failure: it may be the list after a restored backup.
    fn list(&mut self, at: Freshness) {
        let lists = if matches!(self.state, State::Listing { .. }) { Lists::Paged } else { self.lists };
        self.state = State::start(lists, at);
    }
}

impl EndReason {
    /// How a request ended that failed with this error.
    pub(crate) fn of(error: &Error) -> EndReason {
        match error.code() {
            _ if error.is_expired() => EndReason::Expired,
            _ if error.is_too_new() => EndReason::TooNew,
            None if error.is_unreadable() => EndReason::Garbled,
            None if error.is_too_large() => EndReason::TooLarge,
            None if error.is_late() => EndReason::Late,
            Some(422) => EndReason::Unsupported,
            Some(code) => EndReason::Refused { code, retry_after: error.retry_after() },
            None => EndReason::Unreachable,
        }
    }

    /// Whether the ended request may have been an open watch.
    fn was_open(self) -> bool {
        match self {
            EndReason::Clean
            | EndReason::Cut
            | EndReason::Silent
            | EndReason::Failed { .. }
            | EndReason::Garbled
            | EndReason::LineTooLong => true,
            // A 410 may also answer the request itself. Then `lasted` is short and does not matter.
            EndReason::Expired => true,
            EndReason::Unreachable
            | EndReason::Late
            | EndReason::TooNew
            | EndReason::Unsupported
            | EndReason::Refused { .. }
            | EndReason::TooLarge => false,
        }
    }

    /// Whether the server has too much to do.
    fn is_overload(self) -> bool {
        matches!(self, EndReason::Refused { code: 429, .. })
    }

    /// Whether the same request may succeed later.
    fn may_pass(self) -> bool {
        matches!(
            self,
            EndReason::Unreachable
                | EndReason::Late
                | EndReason::Refused { code: 401 | 403 | 404 | 429 | 500.., .. }
        )
    }
}

impl From<&Status> for EndReason {
    fn from(status: &Status) -> EndReason {
        if status.is_expired() {
            return EndReason::Expired;
        }
        if status.is_too_new() {
            return EndReason::TooNew;
        }
        // [`Error::retry_after`] returns at most a minute.
        let retry_after = Error::refused("watch", "", status.clone()).retry_after();
        match status.code {
            429 => EndReason::Refused { code: 429, retry_after },
            _ => EndReason::Failed { retry_after },
        }
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
