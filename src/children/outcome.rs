//! The types that [`Children::keep`](super::Children::keep) takes and returns: the stage of an owner, what became of a child, and of all
//! children together, with the conditions that follow.

use std::{sync::Arc, time::Duration};

use smol_str::format_smolstr;

use super::{
    refusal::{CHANGED_BY_ADMISSION, is_refusal},
    status::{ObservedState, Reported},
    write::Write,
};
use crate::{
    client::Error,
    resource::{Condition, Resource, conditions::Verdict},
};

/// When to reconcile again while an object of another owner has the name of a child, or while a child is being deleted.
/// The label selector may hide these objects from our watches. Less than the minute that `docs/conditions.md` promises.
pub const UNSEEN_RECHECK: Duration = Duration::from_secs(45);

/// Whether the owner's spec was already applied to its children, according to the owner's status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The owner has no status yet. Usually its children do not exist.
    New,
    /// The owner's spec has changed since its status was written.
    Changed,
    /// The status was written for the present spec.
    Settled,
}

impl Stage {
    /// The stage according to the status of an object.
    #[must_use]
    pub fn of<O: Reported>(owner: &O) -> Stage {
        match O::observed(owner.status()).0 {
            ..0 => Stage::New,
            observed if observed != owner.metadata().generation => Stage::Changed,
            _ => Stage::Settled,
        }
    }
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
    /// The owner no longer exists on the API server, or is being deleted, alone or with its namespace: nothing was written.
    OwnerGone,
}

/// The result of a step towards the desired state of a child: the child, and the write, if there was one.
pub(super) type Step<K> = Result<(Child<K>, Option<Write>), Error>;

impl<K> From<Step<K>> for Outcome<K> {
    fn from(step: Step<K>) -> Outcome<K> {
        let (child, write) = step.unwrap_or_else(|error| (Child::Failed { error, live: None }, None));
        Outcome { child, write, mutations: Vec::new() }
    }
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
}

/// The outcomes of all children of one object, without their kinds.
#[derive(Default)]
pub struct Outcomes {
    pub(super) writes: Vec<Write>,
    /// The fields that admission changed.
    pub(super) mutations: Vec<String>,
    /// Why children are not as desired.
    pub(super) troubles: Vec<Verdict>,
    /// A state of a child that does not end unless a user acts.
    dead_end: Option<Verdict>,
    /// The errors of failed children.
    pub(super) errors: Vec<Error>,
    /// The message about an object of another owner.
    pub(super) not_ours: Option<String>,
    pub(super) is_awaited: bool,
    pub(super) is_owner_gone: bool,
    /// Whether there was any child.
    pub(super) has_children: bool,
}

impl Outcomes {
    /// Adds the state of a child of an `O`.
    pub fn add<O: Resource, K: Resource>(&mut self, child: &Child<K>) {
        self.has_children = true;
        self.troubles.extend(child.trouble::<O>());
        self.dead_end = self.dead_end.take().or_else(|| child.dead_end());
        match child {
            Child::Kept(_) => {}
            Child::Awaited(_) => self.is_awaited = true,
            Child::NotOurs(message) => self.not_ours = self.not_ours.take().or_else(|| Some(message.clone())),
            Child::Failed { error, .. } => self.errors.push(error.clone()),
            Child::OwnerGone => self.is_owner_gone = true,
        }
    }

    /// Adds the outcomes of later children.
    pub(super) fn append(&mut self, later: Outcomes) {
        self.writes.extend(later.writes);
        self.mutations.extend(later.mutations);
        self.troubles.extend(later.troubles);
        self.dead_end = self.dead_end.take().or(later.dead_end);
        self.errors.extend(later.errors);
        self.not_ours = self.not_ours.take().or(later.not_ours);
        self.is_awaited |= later.is_awaited;
        self.is_owner_gone |= later.is_owner_gone;
        self.has_children |= later.has_children;
    }

    /// The conditions to write: `Ready`, `Stalled` and `Mutated`, and the others of the operator.
    pub fn conditions<O: Reported>(&self, owner: &O, state: ObservedState, now: &str) -> Vec<Condition> {
        // A refusal comes before other trouble: somebody must act.
        let trouble = self.troubles.iter().min_by_key(|verdict| !is_refusal(&verdict.reason));
        let ready = trouble.cloned().unwrap_or(state.ready);
        let stalled = self.dead_end.clone().or(state.stalled);
        let mutated = (!self.mutations.is_empty()).then(|| {
            let fields = self.mutations.join("; ");
            let message =
                format_smolstr!("an admission webhook or policy changes what the operator writes: {fields}");
            Verdict::yes(CHANGED_BY_ADMISSION, message)
        });
        let all = [("Ready", ready)].into_iter().chain(state.others);
        let all = all.chain(stalled.map(|stalled| ("Stalled", stalled)));
        let all = all.chain(mutated.map(|mutated| ("Mutated", mutated)));
        let (generation, before) = (owner.metadata().generation, O::observed(owner.status()).1);
        all.map(|(name, verdict)| verdict.condition(name, generation, before, now)).collect()
    }
}
