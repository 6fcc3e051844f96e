//! The watch protocol: keeps a [`Store`] up to date. Lists once, then watches, and lists again after a 410.
//!
//! ```text
//! GET /apis/apps/v1/deployments?limit=100                                      the objects, as of version 1207
//! GET /apis/apps/v1/deployments?watch=1&resourceVersion=1207&allowWatchBookmarks=true&timeoutSeconds=412
//!     {"type":"MODIFIED","object":{… "resourceVersion":"1208" …}}              the changes after version 1207
//! ```
//!
//! ```text
//!   Body::chunk ─► Lines ─► WatchEvent ─► Machine::line ─► Effect ─► Store
//! ```
//!
//! [`watch`] sends the requests and reads their answers, in one loop. [`Machine`] decides what the Store takes and which request
//! comes next. It does no I/O, so its rules are tested without a server:
//! - Resume from the resourceVersion of the list, or of the last event or BOOKMARK after the list. Never resume from the
//!   version of a listed object: it may be older than the list. Never resume from an initial event: initial events come in no order.
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
mod end;
mod health;
mod machine;
#[cfg(test)]
mod tests;

use std::{pin::pin, time::Duration};

use tokio::time::Instant;
use tracing::{debug, trace};

use crate::{
    backoff::Backoff,
    client::{Body, Client, Collection, Liveness, PageBody, Permit},
    resource::{
        Resource, Scope,
        list::{Found, RawPage},
    },
    store::Store,
};
use decode::{LINE_BYTES_MAX, LineTooLong, Lines, WatchEvent};
use end::End;
pub use end::EndReason;
pub use health::Health;
pub use machine::{Effect, Lists, Machine, NextRequest, Pause};

/// A watch that ends this soon, without progress, is a failure.
pub const VERY_SHORT: Duration = Duration::from_secs(1);
/// The `timeoutSeconds` of a watch: random, 5 to 10 minutes, as in client-go. So, after a restart of one API server, the
/// watches spread over all API servers again.
const TIMEOUT_SECS: std::ops::RangeInclusive<u32> = 300..=600;
/// The `timeoutSeconds` of a watch on a connection without PING, as with HTTP/1.1. A proxy may keep such a connection
/// open although the server is dead. So the watch is given up after a silence of this time and
/// [`TIMEOUT_GRACE`](machine::TIMEOUT_GRACE): 105 s at most.
const TIMEOUT_SECS_NOT_PINGED: std::ops::RangeInclusive<u32> = 60..=75;
/// Time after which a list page, a check or the opening of a watch counts as stuck in the health report: two attempts, because
/// a request is sent again after a 401, each of the largest `--request-timeout` (5 minutes) and a credential plugin (1 minute).
const LIST_LIMIT: Duration = Duration::from_secs(720);
/// How many bytes of an unreadable line an error shows.
const GARBLED_BYTES_SHOWN: usize = 80;
/// The pauses after failed requests. As in client-go, the first pause is 0.8 to 1.6 s, and the cap 30 s.
pub const BACKOFF: Backoff = Backoff { first: Duration::from_millis(1600), cap: Duration::from_secs(30) };

/// Watches `scope` and keeps `store` up to date. If the scope is invalid, reports that, and waits for ever. Runs until dropped.
pub async fn watch<K: Resource>(
    client: Client,
    scope: Scope,
    lists: Lists,
    store: &Store<K>,
    health: &Health,
) {
    match Collection::of::<K>(&scope) {
        Ok(collection) => watch_collection(client, collection, Machine::new(lists), store, health).await,
        Err(error) => {
            health.failed(error.to_string(), false);
            // A restart does not repair an invalid name, so `/livez` must not fail.
            health.clear_deadline();
            std::future::pending().await
        }
    }
}

/// [`watch`] for any collection, such as one of a single object, from the first request of this machine on.
pub async fn watch_collection<K: Resource>(
    client: Client,
    collection: Collection,
    mut machine: Machine,
    store: &Store<K>,
    health: &Health,
) {
    let mut random = fastrand::Rng::new();
    if machine.is_streaming() {
        // The timeout of the first watch depends on the HTTP version, which only an answer shows. If none comes, the watch also fails,
        // and reports the reason.
        health.set_deadline(LIST_LIMIT);
        let _ = client.version().await;
    }
    loop {
        if machine.is_at_start_of_list() {
            store.list_begins();
            health.list_begins();
        }
        let timeout_secs = match client.liveness() {
            Liveness::Pinged => random.u32(TIMEOUT_SECS),
            Liveness::NotPinged => random.u32(TIMEOUT_SECS_NOT_PINGED),
        };
        let watches_fail = machine.has_not_opened;
        let version = store.version();
        let request = machine.request(&version, timeout_secs);
        let is_list = matches!(request, NextRequest::List(_));
        let permit = match request.permit() {
            Some(needed) => {
                health.clear_deadline();
                Some(client.permit(needed).await)
            }
            None => None,
        };
        let started = Instant::now();
        health.set_deadline(LIST_LIMIT);
        let result = match request {
            NextRequest::List(page) => {
                // This permit is held until the page is in the Store.
                let _permit = permit;
                match client.list_page(&collection, &page).await.inspect(|_| health.heard()) {
                    Ok(page) => read_page(page, &mut machine, store, health, &collection),
                    Err(error) => Err(End::failed(&error, &collection)),
                }
            }
            NextRequest::Check => {
                let _permit = permit;
                let latest = client.latest_version(&collection).await;
                latest
                    .map(|version| machine.checked(&version))
                    .map_err(|error| End::failed(&error, &collection))
            }
            NextRequest::Watch(from) => match client.watch_of(&collection, &from).await {
                Ok(body) => {
                    Err(follow(body, permit, &mut machine, timeout_secs, store, health, &collection).await)
                }
                Err(error) => {
                    drop(permit);
                    Err(End::failed(&error, &collection))
                }
            },
        };
        let Err(end) = result else {
            // A list does not prove that watches open again.
            if is_list && !watches_fail {
                health.succeeded();
            }
            continue;
        };
        health.ended(end.how.name());
        let pause = machine.end(end.how, started.elapsed());
        debug!(resource = collection.resource, scope = collection.scope.to_string(), ?end.how, end.problem, ?pause, "request ended");
        if let Pause::Backoff { failures, at_least } = pause {
            if end.is_news(failures) {
                report(end, store, health);
            }
            let pause = BACKOFF.pause(failures, at_least, &mut random);
            health.set_deadline(pause);
            tokio::time::sleep(pause).await;
        }
    }
}

fn report<K: Resource>(end: End, store: &Store<K>, health: &Health) {
    let is_forbidden = matches!(end.how, EndReason::Refused { code: 403, .. });
    if health.failed(end.problem, is_forbidden) {
        store.forbidden();
    }
}

/// Puts the objects of a page into the Store.
fn read_page<K: Resource>(
    page: PageBody,
    machine: &mut Machine,
    store: &Store<K>,
    health: &Health,
    collection: &Collection,
) -> Result<(), End> {
    let Collection { resource, scope, .. } = collection;
    // One by one: there is never more than one object in memory that is not kept.
    let read = page.read(|body| {
        let page = RawPage::from_json(body)?;
        let version = page.version()?;
        // Also without objects: if this version is older, the server was restored from a backup.
        store.listed(&version, []);
        for object in page.items() {
            let (found, bytes) = match store.kept.weigh(object.as_bytes()) {
                Ok(bytes) => (Found::from_json(object)?, bytes),
                Err(problem) => (Found::without_content(object, problem)?, 0),
            };
            store.listed_of(&version, [(found, bytes)]);
        }
        debug!(resource, scope = scope.to_string(), resource_version = %version, objects = page.items().count(), "page");
        Ok((version, page.continue_token()))
    });
    let (version, continue_token) = read.map_err(|error| End::failed(&error, collection))?;
    match machine.page(&version, &continue_token) {
        Effect::Complete(version) => {
            store.list_ends(&version);
            health.list_ends(store.len());
        }
        Effect::End(how) => {
            let problem = "a page of a list repeats its own continue token".to_owned();
            return Err(End { how, problem });
        }
        Effect::Apply | Effect::Remove | Effect::Listed | Effect::Bookmark(_) | Effect::Skip => {}
    }
    Ok(())
}

/// Reads a watch to its end. Drops `permit` when a streaming list is complete.
async fn follow<K: Resource>(
    mut body: Body,
    mut permit: Option<Permit<'_>>,
    machine: &mut Machine,
    timeout_secs: u32,
    store: &Store<K>,
    health: &Health,
    collection: &Collection,
) -> End {
    let mut lines = Lines::default();
    loop {
        let limit = machine.silence_limit(timeout_secs);
        health.set_deadline(limit);
        let mut chunk = pin!(body.chunk());
        let chunk = match tokio::time::timeout(VERY_SHORT, &mut chunk).await {
            Ok(chunk) => Ok(chunk),
            Err(_) => {
                // An open and quiet watch is healthy: changes may be rare.
                health.succeeded();
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
        health.heard();
        lines.push(&chunk);
        if let Err(end) = read_lines(&mut lines, machine, store, health, collection) {
            return end;
        }
        if !machine.is_streaming() {
            drop(permit.take());
        }
        if machine.is_streaming() || machine.has_progressed {
            health.succeeded();
        }
    }
}

/// Handles all complete lines.
fn read_lines<K: Resource>(
    lines: &mut Lines,
    machine: &mut Machine,
    store: &Store<K>,
    health: &Health,
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
        health.heard_line(line.len());
        let mut problem = String::new();
        let effect = apply_line(store, line, |event| {
            log_line(collection, event, line.len());
            if let WatchEvent::Error(status) = event {
                problem.clone_from(&status.message);
            }
            machine.line(event)
        });
        let effect = effect.map_err(|error| {
            let start = String::from_utf8_lossy(&line[..line.len().min(GARBLED_BYTES_SHOWN)]);
            let problem = format!("a line that is not a watch event: {error}: {start:?}…");
            End { how: EndReason::Garbled, problem }
        })?;
        match effect {
            Effect::End(how) => return Err(End { how, problem }),
            Effect::Complete(_) => health.list_ends(store.len()),
            Effect::Apply | Effect::Remove | Effect::Listed | Effect::Bookmark(_) | Effect::Skip => {}
        }
    }
}

/// Decodes a line of a watch, asks `decide` for its effect on the Store, and has this effect.
///
/// # Errors
/// If the line is not an event.
pub fn apply_line<K: Resource>(
    store: &Store<K>,
    line: &[u8],
    decide: impl FnOnce(&WatchEvent<K>) -> Effect,
) -> Result<Effect, serde_json::Error> {
    let (event, bytes) = match store.kept.weigh(line) {
        Ok(bytes) => (WatchEvent::from_json(line)?, bytes),
        Err(problem) => (WatchEvent::without_content(line, &problem)?, 0),
    };
    let effect = decide(&event);
    match (&effect, event.object()) {
        (Effect::Apply, Some(object)) => store.applied_of(object, bytes),
        (Effect::Remove, Some(object)) => store.deleted(object),
        (Effect::Listed, Some(object)) => store.listed_of("", [(object, bytes)]),
        (Effect::Complete(version), None) => store.list_ends(version),
        (Effect::Bookmark(version), None) => store.bookmark(version),
        // No effect on the Store, or not an effect of such an event.
        (Effect::Apply | Effect::Remove | Effect::Listed | Effect::Skip | Effect::End(_), None)
        | (Effect::Complete(_) | Effect::Bookmark(_) | Effect::Skip | Effect::End(_), Some(_)) => {}
    }
    Ok(effect)
}

/// Logs a line of a watch, without the object, which may contain secrets.
fn log_line<K: Resource>(collection: &Collection, event: &WatchEvent<K>, bytes: usize) {
    let (object, version, status) = match event {
        WatchEvent::Added(object) | WatchEvent::Modified(object) | WatchEvent::Deleted(object) => {
            (Some(object.metadata()), Some(&object.metadata().resource_version), None)
        }
        WatchEvent::Bookmark { version, .. } => (None, Some(version), None),
        WatchEvent::Error(status) => (None, None, Some(status)),
        WatchEvent::Unknown(_) => (None, None, None),
    };
    debug!(
        resource = collection.resource,
        "type" = event.type_name(),
        key = object.map(|object| display(object.key())),
        resource_version = version.map(display),
        code = status.map(|status| status.code),
        details = status.map(|status| &*status.message),
        bytes,
        "event"
    );
}
