//! The state machine of a watch: [`Machine`] decides which [`Effect`] a page or a line has, which request comes next (list,
//! check or watch), and after which pause. The version to resume from is in the Store. Nothing in this file does I/O.

use std::{cmp::Ordering, time::Duration};

use smol_str::SmolStr;

use super::{
    VERY_SHORT,
    decode::WatchEvent,
    end::{EndReason, StatusClass},
};
use crate::{
    client::{LIST_STREAM_BYTES, Page, PermitFor, WatchFrom, WatchMode},
    resource::{Resource, compare_versions},
};

/// Most objects per page of a list. A page of 100 Deployments has about 0.5 MB, and the operator of MyWebservers reads three
/// lists at once when it starts. With client-go's 500 objects per page, a start with 1,000 objects peaked 2 MB higher.
const PAGE_ITEMS: u32 = 100;
/// After watches have been open for this long in total, the count of failures starts again at zero. Each single watch
/// may be shorter: some proxies end every watch after 50 s.
const HEALTHY: Duration = Duration::from_secs(60);
/// Most failures that count while the kind is missing (404), so that it is looked for every 6.4 to 12.8 s, about as often as by
/// controller-runtime. Its CRD may come soon, and the answer costs the server little. One request after the CRD may get a 429, which then
/// waits for 26 s at most.
const MISSING_FAILURES_MAX: u32 = 4;
/// A watch that is silent for this much longer than its `timeoutSeconds` counts as dead.
pub(super) const TIMEOUT_GRACE: Duration = Duration::from_secs(30);
/// Longest silence after a BOOKMARK. The server sends one about once a minute. The limit applies only after the first
/// BOOKMARK of a watch: not every server sends BOOKMARKs, and in half of the quiet watches that we measured, the first
/// one came after two minutes.
const BOOKMARK_SILENCE: Duration = Duration::from_secs(130);
/// Longest silence before a streaming list is complete. A server that ignores `sendInitialEvents` never completes it.
const INITIAL_EVENTS_SILENCE: Duration = Duration::from_secs(30);

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

/// Decides from the answers what the Store takes, and which request comes next. Holds no connection, does no I/O, and knows
/// neither the type of the objects nor the [`Store`](crate::store::Store), which has the version from which a watch resumes.
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
    /// Whether a periodic BOOKMARK came in this watch, so that [`BOOKMARK_SILENCE`] applies.
    pub(super) expects_bookmarks: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// A list, page by page.
    Listing(Listing),
    /// A streaming list: a watch that sends every object first.
    Streaming { at: Freshness },
    /// A watch.
    Following,
    /// A check of the server's version before the next watch. A server that was restored from a backup may be at an older
    /// version than ours. It would accept our watch, and send nothing until it reaches our version again.
    Checking,
}

/// The next page of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Listing {
    pub(super) at: Freshness,
    pub(super) continue_token: String,
    pub(super) limit: u32,
    /// Whether an earlier attempt expired between its pages.
    pub(super) has_expired: bool,
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

/// The effect of a line of a watch, or of a page of a list, on the Store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The object is new, or has changed.
    Apply,
    /// The object is gone.
    Remove,
    /// The objects belong to a list that goes on.
    Listed,
    /// The list is complete, as of this version: objects that it did not have are gone.
    Complete(SmolStr),
    /// A watch can resume from this version.
    Bookmark(SmolStr),
    /// Nothing.
    Skip,
    /// The request has ended.
    End(EndReason),
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

/// The state after the end of a request.
enum Then {
    AtOnce(State),
    /// The end is a failure.
    AfterPause(State),
}

impl NextRequest<'_> {
    /// The permit that the request needs, if any: see [`Client::permit`](crate::client::Client::permit).
    pub(super) fn permit(&self) -> Option<PermitFor> {
        match self {
            NextRequest::List(page) => Some(PermitFor::List { bytes_max: page.bytes_max() }),
            NextRequest::Watch(from) if from.mode == WatchMode::InitialEvents => {
                Some(PermitFor::List { bytes_max: LIST_STREAM_BYTES })
            }
            NextRequest::Check => Some(PermitFor::Check),
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
    pub fn relists(lists: Lists) -> Machine {
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
            State::Listing(Listing { at, continue_token, limit, .. }) => {
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
    pub(crate) fn is_at_start_of_list(&self) -> bool {
        match &self.state {
            State::Listing(list) => list.continue_token.is_empty(),
            State::Streaming { .. } => true,
            State::Following | State::Checking => false,
        }
    }

    /// The effect of a page of a list, as of this version: [`Effect::Listed`], [`Effect::Complete`] after the last page, or
    /// [`Effect::End`] if the page repeats the continue token that led to it. A page without objects may lead on.
    pub fn page(&mut self, version: &SmolStr, continue_token: &str) -> Effect {
        let State::Listing(list) = &mut self.state else { return Effect::Skip };
        if continue_token.is_empty() {
            return self.list_is_complete(version);
        }
        // Without this check, a list would never end if the server repeats a continue token.
        if list.continue_token == continue_token {
            return Effect::End(EndReason::Garbled);
        }
        list.continue_token = continue_token.to_owned();
        list.limit = PAGE_ITEMS.min(list.limit * 2);
        Effect::Listed
    }

    /// The effect of a line of a watch. Here, ADDED, MODIFIED and DELETED differ.
    pub fn line<K: Resource>(&mut self, event: &WatchEvent<K>) -> Effect {
        self.lines += 1;
        if self.is_streaming() {
            return self.initial_event(event);
        }
        let (effect, version) = match event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                (Effect::Apply, &object.metadata().resource_version)
            }
            WatchEvent::Deleted(object) => (Effect::Remove, &object.metadata().resource_version),
            WatchEvent::Bookmark { version, ends_initial_events } => {
                // Only a server that has sent one periodic BOOKMARK is expected to send more.
                self.expects_bookmarks = !ends_initial_events;
                (Effect::Bookmark(version.clone()), version)
            }
            WatchEvent::Error(status) => return Effect::End(EndReason::from(status)),
            WatchEvent::Unknown(_) => return Effect::Skip,
        };
        self.has_progressed = *version != self.from;
        effect
    }

    /// The effect of a line of a streaming list. Initial events come in no order, so the watch cannot resume from their versions.
    fn initial_event<K>(&mut self, event: &WatchEvent<K>) -> Effect {
        match event {
            WatchEvent::Added(_) => Effect::Listed,
            WatchEvent::Bookmark { version, ends_initial_events: true } => {
                let effect = self.list_is_complete(version);
                self.has_progressed = !version.is_empty();
                effect
            }
            // A server that ignores `sendInitialEvents` sends changes, and never the BOOKMARK that ends the list.
            WatchEvent::Modified(_)
            | WatchEvent::Deleted(_)
            | WatchEvent::Bookmark { ends_initial_events: false, .. } => Effect::End(EndReason::Unsupported),
            WatchEvent::Error(status) => Effect::End(EndReason::from(status)),
            WatchEvent::Unknown(_) => Effect::Skip,
        }
    }

    fn list_is_complete(&mut self, version: &SmolStr) -> Effect {
        self.state = State::Following;
        self.has_not_opened = false;
        self.from = SmolStr::default();
        Effect::Complete(version.clone())
    }

    /// Handles the answer to a check: the server's present version.
    pub fn checked(&mut self, version: &str) {
        self.state = if compare_versions(version, &self.from) == Some(Ordering::Less) {
            // The server was restored from a backup, so its older objects must overwrite those in the Store. Before it
            // takes older objects, the Store must know the version of the list: a paged list begins with it, a
            // streaming list ends with it.
            State::paged(Freshness::MostRecent)
        } else {
            State::Following
        };
    }

    /// How long the open watch may be silent.
    #[must_use]
    pub fn silence_limit(&self, timeout_secs: u32) -> Duration {
        let its_end = Duration::from_secs(timeout_secs.into()) + TIMEOUT_GRACE;
        match self.state {
            State::Streaming { .. } => INITIAL_EVENTS_SILENCE,
            State::Listing(_) | State::Following | State::Checking => {
                if self.expects_bookmarks {
                    BOOKMARK_SILENCE.min(its_end)
                } else {
                    its_end
                }
            }
        }
    }

    /// Whether the next or present request is a streaming list.
    #[must_use]
    pub fn is_streaming(&self) -> bool {
        matches!(self.state, State::Streaming { .. })
    }

    /// Whether the next or present request is a page of a list.
    #[must_use]
    pub fn is_listing(&self) -> bool {
        matches!(self.state, State::Listing(_))
    }

    /// Whether the next or present request is a check of the server's version.
    #[must_use]
    pub fn is_checking(&self) -> bool {
        self.state == State::Checking
    }

    /// Handles the end of a watch, or of a list or check that failed. Returns how soon the next request follows.
    pub fn end(&mut self, how: EndReason, lasted: Duration) -> Pause {
        let then = match self.state.clone() {
            State::Listing(list) => list.failed(how),
            State::Streaming { at } => self.streaming_list_ended(at, how),
            State::Following => self.watch_ended(how, lasted),
            State::Checking => self.check_failed(how),
        };
        match then {
            Then::AtOnce(state) => {
                self.state = state;
                Pause::None
            }
            Then::AfterPause(state) => {
                self.state = state;
                self.failures = self.failures.saturating_add(1);
                if let EndReason::Refused { code: 404, .. } = how {
                    self.failures = self.failures.min(MISSING_FAILURES_MAX);
                }
                self.open = Duration::ZERO;
                let at_least = if let EndReason::Refused { retry_after: Some(asked), .. }
                | EndReason::Failed { retry_after: Some(asked) } = how
                {
                    asked
                } else {
                    Duration::ZERO
                };
                Pause::Backoff { failures: self.failures, at_least }
            }
        }
    }

    fn watch_ended(&mut self, how: EndReason, lasted: Duration) -> Then {
        match how {
            EndReason::Clean | EndReason::Cut | EndReason::Silent => {
                self.was_open(lasted);
                // No check after a clean end with at least one line: a server that sends a line is not behind our
                // version.
                let is_checked = how != EndReason::Clean || self.lines == 0;
                let next = if is_checked { State::Checking } else { State::Following };
                let was_very_short = lasted < VERY_SHORT && !self.has_progressed;
                if was_very_short { Then::AfterPause(next) } else { Then::AtOnce(next) }
            }
            EndReason::Expired => {
                // A 410 may also answer the request itself. Then `lasted` is short and does not matter.
                self.was_open(lasted);
                self.list_after_expiry()
            }
            EndReason::Failed { .. } | EndReason::Garbled | EndReason::LineTooLong => {
                self.was_open(lasted);
                Then::AfterPause(self.list())
            }
            EndReason::Unreachable | EndReason::Late => self.watch_has_not_opened(),
            EndReason::Refused { code, .. } => match StatusClass::of(code) {
                // Does not depend on the version: check again.
                StatusClass::Overload => Then::AfterPause(State::Checking),
                StatusClass::Forbidden | StatusClass::MayPass => self.watch_has_not_opened(),
                // The same request may fail again, so list instead: a list also has a version.
                StatusClass::Invalid => Then::AfterPause(self.list()),
            },
            EndReason::TooNew | EndReason::Unsupported | EndReason::TooLarge => Then::AfterPause(self.list()),
        }
    }

    fn was_open(&mut self, lasted: Duration) {
        self.has_not_opened = false;
        self.open += lasted;
        if self.open >= HEALTHY {
            self.failures = 0;
        }
    }

    /// Checks the version after the first failure to open a watch, and lists after the second. Between the two, the server has
    /// answered a check: a proxy or a missing permission may prevent watches alone. Without a list now and then, the Store would never
    /// change again.
    fn watch_has_not_opened(&mut self) -> Then {
        let is_again = std::mem::replace(&mut self.has_not_opened, true);
        Then::AfterPause(if is_again { self.list() } else { State::Checking })
    }

    fn check_failed(&mut self, how: EndReason) -> Then {
        match how {
            EndReason::Expired => self.list_after_expiry(),
            // The listed object has more metadata than a check reads. That is not a failure: a list also has the version.
            EndReason::TooLarge => Then::AtOnce(self.list()),
            EndReason::Unreachable | EndReason::Late => Then::AfterPause(State::Checking),
            EndReason::Refused { code, .. } => match StatusClass::of(code) {
                StatusClass::Overload | StatusClass::MayPass => Then::AfterPause(State::Checking),
                // The check has no selector. An authorizer that looks at selectors may refuse the check, and allow the list and the
                // watch. See https://github.com/kubernetes/enhancements/issues/4601.
                StatusClass::Forbidden | StatusClass::Invalid => Then::AfterPause(self.list()),
            },
            EndReason::Clean
            | EndReason::Cut
            | EndReason::Silent
            | EndReason::TooNew
            | EndReason::Unsupported
            | EndReason::Failed { .. }
            | EndReason::Garbled
            | EndReason::LineTooLong => Then::AfterPause(self.list()),
        }
    }

    fn streaming_list_ended(&mut self, at: Freshness, how: EndReason) -> Then {
        let most_recent = State::Streaming { at: Freshness::MostRecent };
        match how {
            EndReason::Unsupported | EndReason::Clean | EndReason::Silent => {
                self.lists = Lists::Paged;
                Then::AtOnce(State::paged(Freshness::MostRecent))
            }
            // With an etcd that cannot report its progress (before 3.4.31 and 3.5.13), kube-apiserver ends every streaming
            // list like this. Other causes may pass, so only this list is paged; the next one is streamed again.
            EndReason::Failed { .. } => Then::AtOnce(State::paged(at)),
            EndReason::Expired => match at {
                Freshness::NotOlder => Then::AtOnce(most_recent),
                Freshness::MostRecent => Then::AfterPause(most_recent),
            },
            // The server was restored from a backup: see [`Machine::checked`].
            EndReason::TooNew => match at {
                Freshness::NotOlder => Then::AtOnce(State::paged(Freshness::MostRecent)),
                Freshness::MostRecent => Then::AfterPause(most_recent),
            },
            EndReason::Refused { code, .. } => match StatusClass::of(code) {
                // The server may be a replacement that cannot read our version.
                StatusClass::Invalid => Then::AfterPause(most_recent),
                StatusClass::Overload | StatusClass::Forbidden | StatusClass::MayPass => {
                    Then::AfterPause(State::Streaming { at })
                }
            },
            EndReason::Cut
            | EndReason::Unreachable
            | EndReason::Late
            | EndReason::Garbled
            | EndReason::TooLarge
            | EndReason::LineTooLong => Then::AfterPause(State::Streaming { at }),
        }
    }

    /// After 410 Expired, lists again, not older than our version. Backs off only if there was a failure before: the server may
    /// expire every version at once.
    fn list_after_expiry(&mut self) -> Then {
        if self.failures > 0 {
            return Then::AfterPause(self.list());
        }
        self.failures = 1;
        self.open = Duration::ZERO;
        Then::AtOnce(self.list())
    }

    /// A list that is not older than our version.
    fn list(&self) -> State {
        State::start(self.lists, Freshness::NotOlder)
    }
}

impl Listing {
    fn failed(self, how: EndReason) -> Then {
        let from_start = State::paged(self.at);
        let most_recent = State::paged(Freshness::MostRecent);
        match how {
            EndReason::Expired => self.expired(),
            // A few objects may be very large.
            EndReason::TooLarge => self.smaller().map_or(Then::AfterPause(from_start), Then::AtOnce),
            // The connection may be slow. Or the server is overloaded, so this is a failure.
            EndReason::Late => Then::AfterPause(self.smaller().unwrap_or(from_start)),
            // The server was restored from a backup: see [`Machine::checked`].
            EndReason::TooNew => match self.at {
                Freshness::NotOlder => Then::AtOnce(most_recent),
                Freshness::MostRecent => Then::AfterPause(most_recent),
            },
            // The server may be a replacement that cannot read our version.
            EndReason::Unsupported => Then::AfterPause(most_recent),
            EndReason::Refused { code, .. } => match StatusClass::of(code) {
                StatusClass::Invalid => Then::AfterPause(most_recent),
                StatusClass::Overload | StatusClass::Forbidden | StatusClass::MayPass => {
                    Then::AfterPause(from_start)
                }
            },
            EndReason::Clean
            | EndReason::Cut
            | EndReason::Silent
            | EndReason::Unreachable
            | EndReason::Failed { .. }
            | EndReason::Garbled
            | EndReason::LineTooLong => Then::AfterPause(from_start),
        }
    }

    /// The same page with half as many objects. Each page that succeeds doubles the limit again.
    fn smaller(self) -> Option<State> {
        (self.limit > 1).then_some(State::Listing(Listing { limit: self.limit / 2, ..self }))
    }

    /// A list that expires between its pages starts again; usually the process or its host was suspended for minutes. After the
    /// second time, it has a single page, because smaller ones would only take longer. If the first page expires, the next list is
    /// the most recent state.
    fn expired(self) -> Then {
        if !self.continue_token.is_empty() {
            let limit = if self.has_expired { 0 } else { PAGE_ITEMS };
            let list = Listing { at: self.at, continue_token: String::new(), limit, has_expired: true };
            return Then::AtOnce(State::Listing(list));
        }
        let most_recent = State::paged(Freshness::MostRecent);
        match self.at {
            Freshness::NotOlder => Then::AtOnce(most_recent),
            Freshness::MostRecent => Then::AfterPause(most_recent),
        }
    }
}

impl State {
    fn start(lists: Lists, at: Freshness) -> State {
        match lists {
            Lists::Paged => State::paged(at),
            Lists::Streaming => State::Streaming { at },
        }
    }

    fn paged(at: Freshness) -> State {
        let limit = PAGE_ITEMS;
        State::Listing(Listing { at, continue_token: String::new(), limit, has_expired: false })
    }
}
