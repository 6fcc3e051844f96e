//! The watch protocol: keeps a [`Store`] up to date. Lists once, then watches, and lists again after a 410.
//!
//! ```text
//! GET /apis/apps/v1/deployments?limit=100                                      the objects, as of version 1207
//! GET /apis/apps/v1/deployments?watch=1&resourceVersion=1207&allowWatchBookmarks=true&timeoutSeconds=412
//!     {"type":"MODIFIED","object":{… "resourceVersion":"1208" …}}              the changes after version 1207
//! ```
//!
//! [`watch`] sends the requests, in one loop. [`Machine`] decides which request comes next, and does no I/O, so its rules
//! are tested without a server:
//! - Resume from the resourceVersion of the list, or of the last event or BOOKMARK after the list. Never resume from the
//!   version of a listed object: it may be older than the list. Nor from that of an initial event: these come in no order.
//! - The server ends every watch after a few minutes. That is not a failure: if a line came, resume at once, without a new list.
//! - A watch that ends within a second without progress is a failure, even if the server closed it cleanly. Otherwise we
//!   would send requests without a pause. Progress is a line that changes our version, or completes a streaming list.
//! - 410 Expired means that the server no longer has the history since our version. List again, not older than our
//!   version (`resourceVersionMatch=NotOlderThan`).
//! - While we were disconnected, the server may have been restored from a backup. So after a watch that broke, was silent or
//!   sent no line, list with `limit=1`: the resourceVersion of that list is the present version of the server. If it is older
//!   than ours, list everything again, and overwrite the Store.
//! - An object that is missing from a new list was deleted in the meantime, and is reported as deleted.
//!
//! See <https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes>.

pub mod decode;
mod health;
mod machine;
#[cfg(test)]
mod tests;

use std::{pin::pin, time::Duration};

use smol_str::SmolStr;
use tokio::time::Instant;
use tracing::{debug, trace};

use crate::{
    backoff::Backoff,
    client::{Body, Client, Collection, Error, Liveness, PageBody, Turn},
    resource::{ObjectMeta, Resource, Scope, Status},
    store::Store,
};
use decode::{Lines, WatchEvent};
pub use health::Health;
use machine::{End, State};
pub use machine::{EndReason, Lists, Machine, NextRequest, Pause};

/// A watch that ends this soon, without progress, is a failure.
pub(crate) const VERY_SHORT: Duration = Duration::from_secs(1);
/// The `timeoutSeconds` of a watch: random, 5 to 10 minutes, as in client-go. So, after a restart of one API server, the
/// watches spread over all API servers again.
const TIMEOUT_SECS: std::ops::RangeInclusive<u32> = 300..=600;
/// The `timeoutSeconds` of a watch on a connection without PING, as with HTTP/1.1. A proxy may keep such a connection
/// open although the server is dead. The client then drops the watch [`TIMEOUT_GRACE`] after this timeout: after 105 s
/// at most.
const TIMEOUT_SECS_NOT_PINGED: std::ops::RangeInclusive<u32> = 60..=75;
/// A watch that has not ended this long after its `timeoutSeconds` counts as dead.
const TIMEOUT_GRACE: Duration = Duration::from_secs(30);
/// Longest silence after a BOOKMARK. The server sends one about once a minute. The limit applies only after the first
/// BOOKMARK of a watch: not every server sends BOOKMARKs, and in half of the quiet watches that we measured, the first
/// one came after two minutes.
const BOOKMARK_SILENCE: Duration = Duration::from_secs(130);
/// Longest silence before a streaming list is complete. A server that ignores `sendInitialEvents` never completes it.
const INITIAL_EVENTS_SILENCE: Duration = Duration::from_secs(30);
/// Time after which a list page, a check or the opening of a watch counts as stuck in the health report: two attempts, because
/// a request is sent again after a 401, each of the largest `--request-timeout` (5 minutes) and a credential plugin (1 minute).
const LIST_LIMIT: Duration = Duration::from_secs(720);
/// How many bytes of an unreadable line an error shows.
const GARBLED_BYTES_SHOWN: usize = 80;
/// The pauses after failed requests. As in client-go, the first pause is 0.8 to 1.6 s.
pub(crate) const BACKOFF: Backoff =
    Backoff { first: Duration::from_millis(1600), cap: Duration::from_secs(60) };

impl Machine {
    /// Handles a line of a watch: the only place that turns ADDED, MODIFIED and DELETED into changes of the Store.
    ///
    /// Returns how the watch ends, if this line ends it.
    pub fn line<K: Resource>(&mut self, event: WatchEvent<K>, store: &Store<K>) -> Option<EndReason> {
        self.lines += 1;
        match event {
            // Initial events come in no order, so the watch cannot resume from their versions.
            WatchEvent::Added(object) if self.is_streaming() => store.listed("", [object]),
            // A server that ignores `sendInitialEvents` sends changes, and never the BOOKMARK that ends the list.
            WatchEvent::Modified(_) | WatchEvent::Deleted(_) if self.is_streaming() => {
                return Some(EndReason::Unsupported);
            }
            WatchEvent::Added(object) | WatchEvent::Modified(object) => store.applied(object),
            WatchEvent::Deleted(object) => store.deleted(object),
            WatchEvent::Bookmark { version, ends_initial_events } => match self.state {
                State::Streaming { .. } if ends_initial_events => self.list_is_complete(&version, store),
                State::Streaming { .. } => return Some(EndReason::Unsupported),
                State::Listing { .. } | State::Following | State::Checking => {
                    store.bookmark(&version);
                    // Only a server that has sent one periodic BOOKMARK is expected to send more.
                    self.expects_bookmarks = !ends_initial_events;
                }
            },
            WatchEvent::Error(status) => return Some(EndReason::from(&status)),
            WatchEvent::Unknown(_) => {}
        }
        self.has_progressed = store.version() != self.from;
        None
    }

    /// How long the open watch may be silent.
    #[must_use]
    pub fn silence_limit(&self, timeout_secs: u32) -> Duration {
        let its_end = Duration::from_secs(timeout_secs.into()) + TIMEOUT_GRACE;
        match self.state {
            State::Streaming { .. } => INITIAL_EVENTS_SILENCE,
            State::Listing { .. } | State::Following | State::Checking => {
                if self.expects_bookmarks {
                    BOOKMARK_SILENCE.min(its_end)
                } else {
                    its_end
                }
            }
        }
    }
}

/// Watches `scope` and keeps `store` up to date. Runs until dropped.
pub async fn watch<K: Resource>(
    client: Client,
    scope: Scope,
    lists: Lists,
    store: &Store<K>,
    health: &Health,
) {
    watch_if_valid(client, Collection::of::<K>(&scope), lists, store, health).await;
}

/// [`watch`] for a collection of any kind. If the scope is invalid, reports that, and waits for ever.
pub(crate) async fn watch_if_valid(
    client: Client,
    collection: Result<Collection, Error>,
    lists: Lists,
    store: &dyn AnyStore,
    health: &Health,
) {
    match collection {
        Ok(collection) => watch_of(client, collection, lists, store, health).await,
        Err(error) => {
            health.ill(error.to_string(), false);
            // A restart does not repair an invalid name, so `/livez` must not fail.
            health.after_others();
            std::future::pending().await
        }
    }
}

/// [`watch`] for a valid collection.
pub(crate) async fn watch_of(
    client: Client,
    collection: Collection,
    lists: Lists,
    store: &dyn AnyStore,
    health: &Health,
) {
    let mut machine = Machine::new(lists);
    let mut random = fastrand::Rng::new();
    if lists == Lists::Streaming {
        // The timeout of the first watch depends on the HTTP version, which only an answer shows. If none comes, the watch fails, too,
        // and reports the reason.
        health.within(LIST_LIMIT);
        let _ = client.version().await;
    }
    loop {
        if machine.is_at_start_of_list() {
            store.list_begins();
        }
        let timeout_secs = match client.liveness() {
            Liveness::Pinged => random.u32(TIMEOUT_SECS),
            Liveness::NotPinged => random.u32(TIMEOUT_SECS_NOT_PINGED),
        };
        let version = store.version();
        let request = machine.request(&version, timeout_secs);
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
            NextRequest::List(page) => {
                // This permit is held until the page is in the Store.
                let _turn = turn;
                let page = client.page_of(&collection, &page).await;
                let watches_fail = machine.has_not_opened;
                match page.and_then(|page| store.page(&mut machine, page, &collection)) {
                    Ok(None) => {
                        if !watches_fail {
                            health.well();
                        }
                        continue;
                    }
                    Ok(Some(how)) => {
                        End { how, problem: "a page of a list repeats its own continue token".to_owned() }
                    }
                    Err(error) => End::failed(&error, &collection),
                }
            }
            NextRequest::Check => {
                let _turn = turn;
                match client.latest_version(&collection).await {
                    Ok(version) => {
                        store.checked(&mut machine, &version);
                        continue;
                    }
                    Err(error) => End::failed(&error, &collection),
                }
            }
            NextRequest::Watch(from) => match client.watch_of(&collection, &from).await {
                Ok(body) => follow(body, turn, &mut machine, timeout_secs, store, health, &collection).await,
                Err(error) => {
                    drop(turn);
                    End::failed(&error, &collection)
                }
            },
        };
        let pause = machine.end(end.how, started.elapsed());
        debug!(resource = collection.resource, scope = collection.scope.to_string(), ?end.how, end.problem, ?pause, "request ended");
        if let Pause::Backoff { failures, at_least } = pause {
            let pause = BACKOFF.pause(failures, at_least, &mut random);
            if end.is_news(failures) {
                let is_forbidden = matches!(end.how, EndReason::Refused { code: 403, .. });
                if health.ill(end.problem, is_forbidden) {
                    store.forbidden();
                }
            }
            health.within(pause);
            tokio::time::sleep(pause).await;
        }
    }
}

/// Reads a watch to its end. Drops `turn` when a streaming list is complete.
async fn follow(
    mut body: Body,
    mut turn: Option<Turn<'_>>,
    machine: &mut Machine,
    timeout_secs: u32,
    store: &dyn AnyStore,
    health: &Health,
    collection: &Collection,
) -> End {
    let mut lines = Lines::default();
    loop {
        let limit = machine.silence_limit(timeout_secs);
        health.within(limit);
        let mut chunk = pin!(body.chunk());
        let chunk = match tokio::time::timeout(VERY_SHORT, &mut chunk).await {
            Ok(chunk) => Ok(chunk),
            Err(_) => {
                // An open and quiet watch is healthy: changes may be rare.
                health.well();
                tokio::time::timeout(limit, chunk).await
            }
        };
        let chunk = match chunk {
            Ok(Ok(Some(chunk))) => chunk,
            Ok(Ok(None)) => {
                return End { how: EndReason::Clean, problem: "the server closed the watch".to_owned() };
            }
            Ok(Err(error)) => return End { how: EndReason::Cut, problem: error.to_string() },
            Err(_) => {
                return End {
                    how: EndReason::Silent,
                    problem: format!("the server sent nothing for {} s", limit.as_secs()),
                };
            }
        };
        trace!(resource = collection.resource, bytes = chunk.len(), "chunk");
        lines.push(&chunk);
        if let Err(end) = read_lines(&mut lines, machine, store, collection) {
            return end;
        }
        if !machine.is_streaming() {
            drop(turn.take());
        }
        if machine.is_streaming() || machine.has_progressed() {
            health.well();
        }
    }
}

/// Handles all complete lines.
fn read_lines(
    lines: &mut Lines,
    machine: &mut Machine,
    store: &dyn AnyStore,
    collection: &Collection,
) -> Result<(), End> {
    loop {
        let line = match lines.next_line() {
            Ok(Some(line)) => line,
            Ok(None) => return Ok(()),
            Err(decode::LineTooLong) => {
                let problem = format!("a line of more than {} bytes", decode::LINE_BYTES_MAX);
                return Err(End { how: EndReason::LineTooLong, problem });
            }
        };
        match store.line(machine, line, collection) {
            Ok(None) => {}
            Ok(Some(end)) => return Err(end),
            Err(error) => {
                let start = String::from_utf8_lossy(&line[..line.len().min(GARBLED_BYTES_SHOWN)]);
                let problem = format!("a line that is not a watch event: {error}: {start:?}…");
                return Err(End { how: EndReason::Garbled, problem });
            }
        }
    }
}

/// A [`Store`] of any kind, with the decoder of its objects: the only part of a watch that depends on the kind. The rest is
/// compiled once, and not for each kind.
pub(crate) trait AnyStore: Send + Sync {
    /// [`Store::version`].
    fn version(&self) -> SmolStr;
    /// [`Store::list_begins`].
    fn list_begins(&self);
    /// [`Store::forbidden`].
    fn forbidden(&self);
    /// [`Machine::checked`].
    fn checked(&self, machine: &mut Machine, version: &str);
    /// Decodes a page of a list for [`Machine::page`].
    fn page(
        &self,
        machine: &mut Machine,
        page: PageBody,
        collection: &Collection,
    ) -> Result<Option<EndReason>, Error>;
    /// Decodes a line of a watch for [`Machine::line`].
    fn line(
        &self,
        machine: &mut Machine,
        line: &[u8],
        collection: &Collection,
    ) -> Result<Option<End>, serde_json::Error>;
}

impl<K: Resource> AnyStore for Store<K> {
    fn version(&self) -> SmolStr {
        self.version()
    }

    fn list_begins(&self) {
        self.list_begins();
    }

    fn forbidden(&self) {
        self.forbidden();
    }

    fn checked(&self, machine: &mut Machine, version: &str) {
        machine.checked(version, self);
    }

    fn page(
        &self,
        machine: &mut Machine,
        page: PageBody,
        collection: &Collection,
    ) -> Result<Option<EndReason>, Error> {
        let page = page.decoded()?;
        log_page(collection, &page.version, page.items.len());
        Ok(machine.page(page, self))
    }

    fn line(
        &self,
        machine: &mut Machine,
        line: &[u8],
        collection: &Collection,
    ) -> Result<Option<End>, serde_json::Error> {
        let event = WatchEvent::<K>::from_json(line)?;
        let (object, version, status) = match &event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) | WatchEvent::Deleted(object) => {
                (Some(object.metadata()), Some(&object.metadata().resource_version), None)
            }
            WatchEvent::Bookmark { version, .. } => (None, Some(version), None),
            WatchEvent::Error(status) => (None, None, Some(status)),
            WatchEvent::Unknown(_) => (None, None, None),
        };
        log_line(collection, event.type_name(), object, version, status, line.len());
        let problem = status.map(|status| status.message.clone()).unwrap_or_default();
        Ok(machine.line(event, self).map(|how| End { how, problem }))
    }
}

fn log_page(collection: &Collection, version: &str, objects: usize) {
    let Collection { resource, scope, .. } = collection;
    debug!(resource, scope = scope.to_string(), resource_version = %version, objects, "page");
}

/// Logs a line of a watch, without the object, which may contain secrets.
fn log_line(
    collection: &Collection,
    type_name: &str,
    object: Option<&ObjectMeta>,
    version: Option<&SmolStr>,
    status: Option<&Status>,
    bytes: usize,
) {
    debug!(
        resource = collection.resource,
        "type" = type_name,
        key = object.map(|object| display(object.key())),
        resource_version = version.map(display),
        code = status.map(|status| status.code),
        details = status.map(|status| &*status.message),
        bytes,
        "event"
    );
}
