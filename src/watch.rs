//! The watch protocol: keeps a [`Store`] up to date. Lists once, then watches, and lists again after a 410.
//!
//! ```text
//! GET /apis/apps/v1/deployments?limit=100                                      the objects, as of version 1207
//! GET /apis/apps/v1/deployments?watch=1&resourceVersion=1207&allowWatchBookmarks=true&timeoutSeconds=412
//!     {"type":"MODIFIED","object":{… "resourceVersion":"1208" …}}              the changes after version 1207
//! ```
//!
//! [`watch`] sends the requests, in one loop, and `follow.rs` reads the open watch. [`Machine`] decides which request comes
//! next, and does no I/O, so its rules are tested without a server:
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
mod follow;
mod health;
mod machine;
#[cfg(test)]
mod tests;

use std::time::Duration;

use tokio::time::Instant;
use tracing::debug;

use crate::{
    backoff::Backoff,
    client::{Client, Collection, Error, Liveness},
    resource::{Resource, Scope},
    store::Store,
};
pub(crate) use follow::AnyStore;
use follow::follow;
pub use health::Health;
use machine::End;
pub use machine::{EndReason, Lists, Machine, NextRequest, Pause};

/// The target of the log lines of this file and of `follow.rs`.
const LOG: &str = module_path!();
/// A watch that ends this soon, without progress, is a failure.
pub(crate) const VERY_SHORT: Duration = Duration::from_secs(1);
/// The `timeoutSeconds` of a watch: random, 5 to 10 minutes, as in client-go. So, after a restart of one API server, the
/// watches spread over all API servers again.
const TIMEOUT_SECS: std::ops::RangeInclusive<u32> = 300..=600;
/// The `timeoutSeconds` of a watch on a connection without PING, as with HTTP/1.1. A proxy may keep such a connection
/// open although the server is dead. So the watch is given up after a silence of this time and
/// [`TIMEOUT_GRACE`](follow::TIMEOUT_GRACE): 105 s at most.
const TIMEOUT_SECS_NOT_PINGED: std::ops::RangeInclusive<u32> = 60..=75;
/// Time after which a list page, a check or the opening of a watch counts as stuck in the health report: two attempts, because
/// a request is sent again after a 401, each of the largest `--request-timeout` (5 minutes) and a credential plugin (1 minute).
const LIST_LIMIT: Duration = Duration::from_secs(720);
/// The pauses after failed requests. As in client-go, the first pause is 0.8 to 1.6 s.
pub(crate) const BACKOFF: Backoff =
    Backoff { first: Duration::from_millis(1600), cap: Duration::from_secs(60) };

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
        Ok(collection) => watch_of(client, collection, Machine::new(lists), store, health).await,
        Err(error) => {
            health.ill(error.to_string(), false);
            // A restart does not repair an invalid name, so `/livez` must not fail.
            health.after_others();
            std::future::pending().await
        }
    }
}

/// [`watch`] for a valid collection, from the first request of this machine on.
pub(crate) async fn watch_of(
    client: Client,
    collection: Collection,
    mut machine: Machine,
    store: &dyn AnyStore,
    health: &Health,
) {
    let mut random = fastrand::Rng::new();
    if machine.is_streaming() {
        // The timeout of the first watch depends on the HTTP version, which only an answer shows. If none comes, the watch also fails,
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
