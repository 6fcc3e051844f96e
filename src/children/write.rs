//! A write of a child: what it does, and the texts that name it in Events, in the log and in back-offs.

use serde_json::Value;

use crate::resource::{Key, ObjectMeta, Resource};

/// A write of a child, with its kind, name and fields: `Deployment mws-web at /spec/replicas`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    /// The child did not exist.
    Created(String),
    /// The child differed: the operator wants another state than before, or it has just started and does not know why.
    Updated(String),
    /// Another writer had changed or deleted the child since this process saw it as desired.
    Restored(String),
    /// The operator no longer wanted the child, and deleted it by itself: [`Reconcile::discard`](super::Reconcile::discard) is not reported.
    Deleted(String),
}

/// `Deployment mws-web`
pub(super) fn name<K: Resource>(child: &Key) -> String {
    format!("{} {}", K::KIND, child.name)
}

/// `Deployment mws-web at /spec/replicas`
pub(super) fn change<'a, K: Resource>(child: &Key, paths: impl IntoIterator<Item = &'a str>) -> String {
    format!("{} at {}", name::<K>(child), paths.into_iter().collect::<Vec<_>>().join(" "))
}

/// The text that identifies a write of a child. It has the generation of the owner, so that a new spec is never delayed.
pub(super) fn id(owner: &ObjectMeta, child: &Key, what: &str) -> String {
    format!("{} at generation {}: {child}: {what}", owner.uid, owner.generation)
}

/// The field of an operation of a JSON patch.
pub(super) fn path(operation: &Value) -> &str {
    operation["path"].as_str().unwrap_or_default()
}
