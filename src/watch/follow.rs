//! Follows an open watch: reads its lines, and puts their events into the Store. Gives the watch up if it is silent for too long.
//! [`AnyStore`] decodes the objects of events and of lists.
//!
//! ```text
//!   Body::chunk ─► Lines ─► WatchEvent ─► Machine::line ─► Store
//! ```

use std::{pin::pin, time::Duration};

use smol_str::SmolStr;
use tracing::{debug, trace};

use super::{
    Health, LOG, VERY_SHORT,
    decode::{LINE_BYTES_MAX, LineTooLong, Lines, WatchEvent},
    machine::{End, EndReason, Machine, State},
};
use crate::{
    client::{Body, Collection, Error, PageBody, Turn},
    resource::{
        ObjectMeta, Resource, Status,
        list::{Found, RawPage},
    },
    store::Store,
};

/// A watch that is silent for this much longer than its `timeoutSeconds` counts as dead.
pub(super) const TIMEOUT_GRACE: Duration = Duration::from_secs(30);
/// Longest silence after a BOOKMARK. The server sends one about once a minute. The limit applies only after the first
/// BOOKMARK of a watch: not every server sends BOOKMARKs, and in half of the quiet watches that we measured, the first
/// one came after two minutes.
pub(super) const BOOKMARK_SILENCE: Duration = Duration::from_secs(130);
/// Longest silence before a streaming list is complete. A server that ignores `sendInitialEvents` never completes it.
const INITIAL_EVENTS_SILENCE: Duration = Duration::from_secs(30);
/// How many bytes of an unreadable line an error shows.
const GARBLED_BYTES_SHOWN: usize = 80;

/// Reads a watch to its end. Drops `turn` when a streaming list is complete.
pub(super) async fn follow(
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
        trace!(target: LOG, resource = collection.resource, bytes = chunk.len(), "chunk");
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
            Err(LineTooLong) => {
                let problem = format!("a line of more than {LINE_BYTES_MAX} bytes");
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

/// A [`Store`] of any kind, with the decoder of its objects. Only what is called through this trait is compiled for each kind.
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
        if !self.kept.sees_each_object(page.bytes()) {
            let page = page.decoded()?;
            log_page(collection, &page.version, page.items.len());
            return Ok(machine.page(page, self));
        }
        // Never more than one object in memory that is not kept.
        let page = page.read(|body| {
            let page = RawPage::from_json(body)?;
            let version = page.version()?;
            for object in page.items() {
                let found = match self.kept.refuses(object.as_bytes()) {
                    Some(problem) => Found::without_content(object, problem),
                    None => Found::from_json(object),
                };
                self.listed(&version, [found?]);
            }
            log_page(collection, &version, page.items().count());
            page.without_items()
        })?;
        Ok(machine.page(page, self))
    }

    fn line(
        &self,
        machine: &mut Machine,
        line: &[u8],
        collection: &Collection,
    ) -> Result<Option<End>, serde_json::Error> {
        let event = match self.kept.refuses(line) {
            Some(problem) => WatchEvent::<K>::without_content(line, &problem)?,
            None => WatchEvent::from_json(line)?,
        };
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
    debug!(target: LOG, resource, scope = scope.to_string(), resource_version = %version, objects, "page");
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
        target: LOG,
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
