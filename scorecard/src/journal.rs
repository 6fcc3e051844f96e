//! What happened in the last run of a check: the requests, the writes, and the operator's log.

use std::{cell::RefCell, collections::BTreeSet};

use listwatch_apiserver::{EventRecord, RequestRecord, WriteRecord};

use super::process::Program;

tokio::task_local! {
    /// The last run that ended in a check. Checks return from many places, so a run notes this when it is dropped.
    static LAST: RefCell<Option<Journal>>;
    /// What the operator asked for in all runs that have ended.
    static ASKED: RefCell<BTreeSet<Asked>>;
}

/// A request, without what does not matter for its permission.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Asked {
    pub(super) method: String,
    pub(super) path: String,
    /// The name in a field selector, which `resourceNames` of a Role may allow alone. Empty: none.
    pub(super) selected: String,
    pub(super) is_watch: bool,
    /// For a PATCH: a server-side apply without an object.
    pub(super) has_created: bool,
}

impl Asked {
    pub(super) fn of(request: &RequestRecord) -> Asked {
        Asked {
            method: request.method.clone(),
            path: request.path.clone(),
            selected: selected(&request.query),
            is_watch: ["watch=1", "watch=true"].iter().any(|flag| request.query.contains(flag)),
            has_created: request.status == 201,
        }
    }
}

/// `a` in `watch=1&fieldSelector=metadata.name%3Da`.
fn selected(query: &str) -> String {
    let selector = query.split('&').find_map(|pair| pair.strip_prefix("fieldSelector=metadata.name"));
    let name = selector.and_then(|rest| ["%3D", "%3d", "="].iter().find_map(|sign| rest.strip_prefix(sign)));
    name.unwrap_or_default().to_owned()
}

/// The record of a run.
#[derive(Clone, Debug)]
pub struct Journal {
    /// The answered requests of all clients.
    pub requests: Vec<RequestRecord>,
    /// The writes that changed an object.
    pub writes: Vec<WriteRecord>,
    /// What the watches sent. Only [`observe`](crate::observe) records it.
    pub events: Vec<EventRecord>,
    /// What the operator's processes wrote, one after the other.
    pub log: String,
}

impl Journal {
    /// See [`RequestRecord::line`].
    #[must_use]
    pub fn requests_jsonl(&self) -> String {
        self.requests.iter().map(RequestRecord::line).collect()
    }

    /// See [`WriteRecord::line`].
    #[must_use]
    pub fn writes_jsonl(&self) -> String {
        self.writes.iter().map(WriteRecord::line).collect()
    }

    /// See [`EventRecord::line`].
    #[must_use]
    pub fn events_jsonl(&self) -> String {
        self.events.iter().map(EventRecord::line).collect()
    }
}

/// Runs a check, and returns the record of its last run.
pub(super) async fn recorded<T>(check: impl Future<Output = T>) -> (T, Option<Journal>) {
    let both = async { (check.await, LAST.with(RefCell::take)) };
    LAST.scope(RefCell::default(), both).await
}

/// Keeps the record of a run that ends, and what the operator asked for in it.
pub(super) fn ended(journal: Journal) {
    let is_judged = |request: &&RequestRecord| Program::of_user(&request.user) == Some(Program::Judged);
    let own = journal.requests.iter().filter(is_judged);
    // Outside of a check, nobody asks for it.
    let _ = ASKED.try_with(|all| all.borrow_mut().extend(own.map(Asked::of)));
    note(journal);
}

/// Makes a record that of the check.
pub(super) fn note(journal: Journal) {
    let _ = LAST.try_with(|last| last.replace(Some(journal)));
}

/// Runs all checks, and keeps what the operator asks for.
pub(super) async fn with_asked<T>(checks: impl Future<Output = T>) -> T {
    ASKED.scope(RefCell::default(), checks).await
}

/// What the operator asked for in all runs that have ended.
pub(super) fn asked() -> BTreeSet<Asked> {
    ASKED.try_with(|all| all.borrow().clone()).unwrap_or_default()
}
