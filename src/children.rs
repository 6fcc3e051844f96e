//! Creates, corrects and deletes the children of an object, unless they belong to another owner (NameConflict).
//!
//! [`Reconcile`] is one reconcile of one object: it keeps children, notes the outcomes, and turns them into conditions and Events
//! (`children/report.rs`). [`keep`] has the steps for one child, from top to bottom. [`refusal`] has the reasons of refused writes,
//! [`rollout_conditions`] and [`pods`] say why a workload is not ready. [`by_owner`] deletes the children of a deleted owner.
//!
//! A child is an object whose controller ownerReference has the uid of the owner. If another writer keeps reverting a correction,
//! the corrections pause for a while (`correction_backoff.rs`). If an admission webhook or policy changes a field in our writes, the
//! field keeps that value, and [`Outcome::mutations`] names it ([`write`](mod@write)).

mod adopt;
mod by_owner;
mod from_yaml;
mod keep;
pub(crate) mod outcome;
pub(crate) mod pods;
pub(crate) mod refusal;
mod refused_writes;
mod reconcile;
mod report;
pub(crate) mod status;
mod events;
pub(crate) mod rollout_conditions;
mod reset;
mod unreconciled;
mod write;

use std::sync::Arc;

use serde::Serialize;

use crate::{
    cluster::{Cluster, Watch},
    correction_backoff::CorrectionBackoff,
    resource::{Key, Resource, list::Found},
};
use by_owner::ByOwner;
pub(crate) use by_owner::OfOwner;
pub(crate) use events::Reporter;
pub use from_yaml::from_yaml;
use keep::Keep;
pub use outcome::{Child, Outcome, Stage, UNSEEN_RECHECK};
pub use pods::{PodsOf, Trouble};
pub use reconcile::Reconcile;
pub use refusal::Refusal;
use refused_writes::RefusedWrites;
pub use rollout_conditions::{Rollout, Workload};
pub use status::{Conditions, ObservedState, Reported};
pub(crate) use unreconciled::{FINALIZER_REMOVED, OPERATOR_FAILED, PAUSED, Statuses, WATCH_FAILED};
use write::LastWrites;
pub use write::Write;

/// The target of the lines in the log, also of those that the files of this chapter write.
const LOG: &str = module_path!();

/// The children of one kind, of all objects of an operator.
pub struct Children<K> {
    cluster: Cluster,
    watch: Watch<K>,
    /// The corrections that another writer keeps reverting, and the writes of children whose desired state has changed again.
    corrections: CorrectionBackoff,
    /// The writes that the API server has refused.
    refused: Arc<RefusedWrites>,
    last_writes: Arc<LastWrites>,
    /// The children of each owner.
    by_owner: Arc<ByOwner<K>>,
    /// The path of a label in the selector of new children. The selector of a live child may lack this label.
    new_in_selector: Option<String>,
    /// The paths of the fields that are removed from a child if the desired one does not have them.
    owning: Vec<&'static str>,
}

impl<K: Resource + Serialize> Children<K> {
    /// Manages the children in a watch.
    pub fn new(cluster: &Cluster, watch: &Watch<K>) -> Children<K> {
        let last_writes = Arc::<LastWrites>::default();
        Children {
            cluster: cluster.clone(),
            watch: watch.clone(),
            corrections: CorrectionBackoff::default(),
            refused: Arc::default(),
            by_owner: Arc::new(ByOwner::new(cluster, watch, &last_writes)),
            last_writes,
            new_in_selector: None,
            owning: Vec::new(),
        }
    }

    /// A live Deployment or StatefulSet may lack this label in its selector: an earlier version of the operator has created it. The
    /// selector is immutable, so the child would have to be deleted to get the label.
    #[must_use]
    pub fn selector_may_lack(self, label: &str) -> Children<K> {
        let path = format!("/spec/selector/matchLabels/{}", label.replace('/', "~1"));
        Children { new_in_selector: Some(path), ..self }
    }

    /// The fields at these paths are also ours: if the desired child does not have them, they are removed from the live one. Declare so
    /// each field that the desired child has only sometimes. A path is a JSON pointer, with `*` for each item of a list that the desired
    /// child has: `/spec/template/spec/containers/*/args`. For a field that other writers may set until `desired` does, see
    /// [`ObjectMeta::also_owning`](crate::resource::ObjectMeta::also_owning).
    #[must_use]
    pub fn owning(mut self, owning: &[&'static str]) -> Children<K> {
        self.owning.extend(owning);
        self
    }

    /// Brings one child to its desired state, usually with one write, and without a write if there is no difference. If
    /// the API server refuses that write because of a field of another writer, a second one resets that field.
    ///
    /// [`Reconcile::keep`] calls it, with the stage of the owner, and notes the outcome.
    pub async fn keep<O: Resource>(&self, owner: &O, desired: &K, stage: Stage) -> Outcome<K> {
        self.to_keep(owner, desired, stage).outcome().await
    }

    fn to_keep<'a, O: Resource>(&'a self, owner: &'a O, desired: &'a K, stage: Stage) -> Keep<'a, O, K> {
        let key = desired.key();
        let last = self.last_writes.of(owner.metadata(), &key);
        Keep { children: self, owner, desired, key, hash: write::hash(desired), last, stage }
    }

    /// The reporter says when the refused writes of these children are tried again.
    pub(crate) fn reported_by(self, reporter: &Reporter) -> Children<K> {
        Children { refused: Arc::clone(&reporter.refused), ..self }
    }

    /// These children, for the deletion of their owner.
    pub(crate) fn of_owner(&self) -> Arc<dyn OfOwner> {
        Arc::clone(&self.by_owner) as _
    }

    /// A child, if it exists and is readable. It may have another owner.
    #[must_use]
    pub fn get(&self, key: &Key) -> Option<Arc<K>> {
        self.watch.get(key)
    }

    /// A child, or its metadata, if the rest is unreadable or not kept. It may have another owner.
    #[must_use]
    pub fn find(&self, key: &Key) -> Option<Found<K>> {
        self.watch.find(key)
    }
}
