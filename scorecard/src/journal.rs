//! What happened in the last run of a check: the requests, the writes, and the operator's log.

use std::cell::RefCell;

use listwatch_apiserver::{RequestRecord, WriteRecord};

tokio::task_local! {
    /// The last run that ended in a check. Checks return from many places, so a run notes this when it is dropped.
    static LAST: RefCell<Option<Journal>>;
}

/// The record of a run.
#[derive(Clone, Debug)]
pub struct Journal {
    /// The answered requests of all clients.
    pub requests: Vec<RequestRecord>,
    /// The writes that changed an object.
    pub writes: Vec<WriteRecord>,
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
}

/// Runs a check, and returns the record of its last run.
pub(super) async fn recorded<T>(check: impl Future<Output = T>) -> (T, Option<Journal>) {
    let both = async { (check.await, LAST.with(RefCell::take)) };
    LAST.scope(RefCell::default(), both).await
}

/// Keeps the record of a run that ends.
pub(super) fn note(journal: impl FnOnce() -> Journal) {
    // Outside of a check, nobody asks for it.
    let _ = LAST.try_with(|last| last.replace(Some(journal())));
}
