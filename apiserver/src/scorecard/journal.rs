//! What happened in the last run of a check: the requests, the writes, and the operator's log.

use std::cell::RefCell;

use serde_json::{Value, json};

use crate::state::{RequestRecord, WriteRecord};

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
    /// Each request as a line of JSON.
    #[must_use]
    pub fn requests_jsonl(&self) -> String {
        let lines = self.requests.iter().map(|request| {
            let RequestRecord { method, path, query, user, status, .. } = request;
            let target = if query.is_empty() { path.clone() } else { format!("{path}?{query}") };
            json!({"user": user, "method": method, "target": target, "status": status}).to_string() + "\n"
        });
        lines.collect()
    }

    /// Each write as a watch event, in a line that `listwatch replay` reads. Without `managedFields` and the values of Secrets.
    #[must_use]
    pub fn writes_jsonl(&self) -> String {
        let lines = self.writes.iter().map(|write| {
            let of_event = match write.verb() {
                "create" => "ADDED",
                "delete" => "DELETED",
                _ => "MODIFIED",
            };
            let mut object =
                write.after.as_ref().or(write.before.as_ref()).map(|object| Value::clone(object));
            hide(write, object.as_mut());
            json!({"type": of_event, "object": object, "resource": write.resource, "user": write.user,
                "changed": write.changed_paths()})
            .to_string()
                + "\n"
        });
        lines.collect()
    }
}

fn hide(write: &WriteRecord, object: Option<&mut Value>) {
    let Some(object) = object.and_then(Value::as_object_mut) else { return };
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
    }
    if write.resource == "secrets" {
        object.remove("data");
        // Such as the object that was last applied.
        object
            .get_mut("metadata")
            .and_then(Value::as_object_mut)
            .map(|metadata| metadata.remove("annotations"));
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
