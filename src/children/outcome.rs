//! What [`Children::keep`](super::Children::keep) needs to know of an owner, and what became of the child.

use std::{sync::Arc, time::Duration};

use crate::client::Error;

/// When to reconcile again while an object of another owner has the name of a child, or while a child is being deleted.
/// The label selector may hide these objects from our watches. Less than the minute that `docs/conditions.md` promises.
pub(crate) const UNSEEN_RECHECK: Duration = Duration::from_secs(45);

/// Whether the owner's spec was already applied to its children, according to the owner's status. Decides whether a
/// difference is drift. `report.rs` has [`Stage::of`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The owner has no status yet. Usually its children do not exist.
    New,
    /// The owner's spec has changed since its status was written.
    Changed,
    /// According to the status, a write of a child was refused, or the object was not reconciled. A child that is missing or differs
    /// now is not necessarily drift.
    Refused,
    /// The spec was applied. A child that is missing or differs was deleted or changed by another writer.
    Settled,
}

/// The result of [`Children::keep`](super::Children::keep).
#[derive(Debug)]
pub struct Outcome<K> {
    /// The child.
    pub child: Child<K>,
    /// The write, if there was one.
    pub write: Option<Write>,
    /// The changes by admission to our last write: `Deployment mws-web at /spec/replicas: 3 became 1`.
    pub mutations: Vec<String>,
}

/// The state of one child after [`Reconcile::keep`](super::Reconcile::keep).
#[derive(Debug)]
pub enum Child<K> {
    /// The child is as desired, except for [`Outcome::mutations`].
    Kept(Arc<K>),
    /// The child is being deleted, and is created again after that. `None`: it belongs to an earlier owner
    /// of the same name.
    Awaited(Option<Arc<K>>),
    /// An object of another owner has the name of the child. The text is the message for the user.
    NotOurs(String),
    /// The child is not as desired: a request failed, or the corrections pause.
    Failed {
        /// Why.
        error: Error,
        /// The present state of the child, if it is known and ours.
        live: Option<Arc<K>>,
    },
    /// The owner no longer exists on the API server, or is being deleted: nothing was written.
    OwnerGone,
}

/// A write of a child, with its kind, name and fields: `Deployment mws-web at /spec/replicas`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    /// The child did not exist.
    Created(String),
    /// The child differed, and the spec of its owner was not applied yet.
    Updated(String),
    /// Another writer had changed or deleted the child.
    Restored(String),
}

impl<K> Child<K> {
    /// The present state of the child, if it is known and ours.
    pub fn live(&self) -> Option<&K> {
        match self {
            Child::Kept(live) => Some(live),
            Child::Awaited(live) | Child::Failed { live, .. } => live.as_deref(),
            Child::NotOurs(_) | Child::OwnerGone => None,
        }
    }

    /// The child, if it is as desired, except for fields that admission changed.
    pub fn kept(&self) -> Option<&Arc<K>> {
        match self {
            Child::Kept(live) => Some(live),
            Child::Awaited(_) | Child::NotOurs(_) | Child::Failed { .. } | Child::OwnerGone => None,
        }
    }

    pub(super) fn failed(error: Error, live: Option<Arc<K>>) -> (Child<K>, Option<Write>) {
        (Child::Failed { error, live }, None)
    }
}
