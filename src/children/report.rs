//! Reports the outcomes of an object's children to users: conditions, Events (`cluster/events.rs` writes them) and log lines.
//!
//! ```text
//!   Created, Updated, DriftCorrected     Events of the writes
//!   Ready, Stalled                       conditions: the worst outcome of a child, else the operator's own
//!   Mutated                              condition and Event: admission changes the writes
//!   Failed, NameConflict                 Events, when the condition is written
//! ```

#[cfg(all(test, feature = "testing"))]
mod tests;

use std::{collections::HashSet, sync::Mutex, time::Duration};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;
use smol_str::format_smolstr;
use tracing::{info, warn};

use super::{
    Child, LOG, Stage, UNSEEN_RECHECK, Write,
    create::is_wanted,
    pods::{Looks, PodsOf, Trouble},
    reconcile::Reconcile,
    refusal::{NAME_CONFLICT, Refusal, is_refusal, is_unapplied},
    rollout::{self, Rollout, Workload},
};
use crate::{
    client::Error,
    cluster::{Cluster, EventType, Events, Watch},
    locked,
    next::{Next, ReconcileError},
    resource::{
        Condition, ObjectMeta, Resource, Uid,
        conditions::{self, Verdict},
        list::Broken,
    },
};

/// The reason if admission changes our writes.
pub(super) const CHANGED_BY_ADMISSION: &str = "ChangedByAdmission";
/// From one look at an object with a NameConflict to the next look at any of them, on average: client-go's workqueues try again as
/// often, ten times a second. So 450 objects are looked at every [`UNSEEN_RECHECK`], and 10,000 in 17 minutes.
const CONFLICT_EACH: Duration = Duration::from_millis(100);
/// Most objects that are not ready and that the log names at the start.
const EXAMPLES_MAX: usize = 10;

/// A kind whose status has `observedGeneration` and `conditions`. [`reported!`](crate::reported) implements it.
#[diagnostic::on_unimplemented(
    message = "the library does not know the status of `{Self}`",
    label = "this kind needs a status",
    note = "add a field `status: Conditions`, and `listwatch::reported!({Self}, Conditions);`",
    note = "a kind without conditions needs `Setup::kind_without_status`, and no `finish`"
)]
pub trait Reported: Resource {
    /// The status of the kind.
    type Status: Serialize + DeserializeOwned + Clone + Default + PartialEq + Send + Sync;

    /// The status that was written last, or the default.
    fn status(&self) -> &Self::Status;

    /// `observedGeneration`, which is negative in the default, and `conditions`.
    fn observed(status: &Self::Status) -> (i64, &[Condition]);

    /// Sets both.
    fn observe(status: &mut Self::Status, generation: i64, conditions: Vec<Condition>);
}

/// Implements [`Reported`] for a kind by the type of its field `status`, which has the fields `observed_generation: i64` and
/// `conditions: Vec<Condition>`: `reported!(Page, Conditions)`.
#[macro_export]
macro_rules! reported {
    ($kind:ident, $status:ident) => {
        impl $crate::children::Reported for $kind {
            type Status = $status;

            fn status(&self) -> &$status {
                &self.status
            }

            fn observed(status: &$status) -> (i64, &[$crate::resource::Condition]) {
                (status.observed_generation, &status.conditions)
            }

            fn observe(status: &mut $status, generation: i64, conditions: Vec<$crate::resource::Condition>) {
                (status.observed_generation, status.conditions) = (generation, conditions);
            }
        }
    };
}

/// A status that has nothing else.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct Conditions {
    /// The latest metadata.generation that the operator has observed. -1: none yet.
    pub observed_generation: i64,
    /// Ready, and the other conditions of the kind.
    #[cfg_attr(feature = "schema", schemars(schema_with = "crate::crd::conditions"))]
    pub conditions: Vec<Condition>,
}

impl Default for Conditions {
    fn default() -> Conditions {
        Conditions { observed_generation: -1, conditions: Vec::new() }
    }
}

impl Stage {
    /// The stage according to the status of an object.
    #[must_use]
    pub fn of<O: Reported>(owner: &O) -> Stage {
        let (observed_generation, before) = O::observed(owner.status());
        match observed_generation {
            ..0 => Stage::New,
            observed if observed != owner.metadata().generation => Stage::Changed,
            _ if conditions::find(before, "Ready").is_some_and(|ready| is_unapplied(&ready.reason)) => {
                Stage::Refused
            }
            _ => Stage::Settled,
        }
    }
}

/// What the reports of one operator share.
pub(crate) struct Reporter {
    pub(super) cluster: Cluster,
    /// `None`: no Events are recorded.
    events: Option<Events>,
    pods: Looks,
    /// Objects of which a child was created or restored. Their status is written in the next reconcile.
    pub(super) unreported: Mutex<HashSet<Uid>>,
    /// Objects whose child has the name of an object of another owner.
    conflicting: Mutex<HashSet<Uid>>,
}

/// The outcomes of all children of one object, without their kinds.
#[derive(Default)]
pub(crate) struct Outcomes {
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

/// The operator's own view of an object whose children are all as desired.
#[derive(Debug)]
pub struct ObservedState {
    /// The condition `Ready`.
    pub ready: Verdict,
    /// More conditions, by name.
    pub others: Vec<(&'static str, Verdict)>,
    /// The condition `Stalled`, if the object cannot progress until a user acts.
    pub stalled: Option<Verdict>,
    /// When to reconcile again.
    pub next: Next,
}

impl From<Verdict> for ObservedState {
    fn from(ready: Verdict) -> ObservedState {
        ObservedState { ready, others: Vec::new(), stalled: None, next: Next::OnChange }
    }
}

impl Outcomes {
    /// Adds the state of a child of an `O`.
    pub(crate) fn add<O: Resource, K: Resource>(&mut self, child: &Child<K>) {
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
    pub(crate) fn conditions<O: Reported>(
        &self,
        owner: &O,
        state: ObservedState,
        now: &str,
    ) -> Vec<Condition> {
        // A refusal comes before other trouble: [`Stage::of`] reads this reason later, because a child may be missing after
        // a refusal.
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

impl Reporter {
    pub(crate) fn new(cluster: &Cluster, events: Option<Events>) -> Reporter {
        let (unreported, conflicting) = Default::default();
        Reporter { cluster: cluster.clone(), events, pods: Looks::default(), unreported, conflicting }
    }

    /// Records an Event, if this operator records any.
    pub(super) fn record<O: Resource>(
        &self,
        about: &O,
        r#type: EventType,
        reason: &'static str,
        note: String,
    ) {
        if let Some(events) = &self.events {
            events.record(about, r#type, reason, note);
        }
    }

    /// Forgets an object that was deleted.
    pub(crate) fn forget(&self, owner: &Uid) {
        locked(&self.unreported).remove(owner);
        locked(&self.conflicting).remove(owner);
        self.pods.forget(owner);
    }

    /// Reports an object that does not decode as `InvalidSpec`. The earlier report on its children stays.
    pub(super) async fn unreadable<O: Reported>(&self, broken: &Broken) -> Result<(), Error> {
        self.forget(&broken.metadata.uid);
        let live = self.cluster.get_live::<Unreadable<O>>(&broken.metadata.key()).await?;
        let status = live.report(&broken.error, &self.now());
        if status != live.status {
            self.cluster.patch_status(&*live, &status).await?;
        }
        Ok(())
    }

    /// When to look again at an object whose child has a taken name. No watch need show that the name is free, and the looks at one
    /// object cost several requests.
    fn conflict_pause(&self, owner: &Uid) -> Duration {
        let mut conflicting = locked(&self.conflicting);
        conflicting.insert(owner.clone());
        UNSEEN_RECHECK.max(CONFLICT_EACH * u32::try_from(conflicting.len()).unwrap_or(u32::MAX))
    }

    /// The time in RFC 3339, in whole seconds, for conditions.
    fn now(&self) -> String {
        humantime::format_rfc3339_seconds(self.cluster.now()).to_string()
    }
}

/// Logs the number of objects at the start, and some that are not ready.
pub(super) fn overview<O: Reported>(objects: &Watch<O>) {
    let (mut not_ready, mut examples) = (0, Vec::new());
    let keys = objects.keys();
    for key in &keys {
        let object = objects.get(key);
        let ready = object.as_ref().map(|object| conditions::find(O::observed(object.status()).1, "Ready"));
        let reason = match ready {
            Some(Some(ready)) if ready.status == "True" => continue,
            Some(ready) => ready.map_or("New".into(), |ready| ready.reason.clone()),
            None => Refusal::InvalidSpec.reason().into(),
        };
        not_ready += 1;
        if examples.len() < EXAMPLES_MAX {
            examples.push(format!("{key} {reason}"));
        }
    }
    let examples = (not_ready > 0).then(|| examples.join(", "));
    info!(target: LOG, objects = keys.len(), not_ready, examples, "{}s at the start", O::KIND);
}

/// An object with an unreadable `spec`: it may have been created with an older schema.
#[derive(Debug, Deserialize)]
#[serde(bound = "")]
pub(crate) struct Unreadable<O: Reported> {
    pub(crate) metadata: ObjectMeta,
    #[serde(default)]
    pub(crate) status: O::Status,
}

impl<O: Reported> Resource for Unreadable<O> {
    const GROUP: &'static str = O::GROUP;
    const VERSION: &'static str = O::VERSION;
    const PLURAL: &'static str = O::PLURAL;
    const KIND: &'static str = O::KIND;

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }
}

impl<O: Reported> Unreadable<O> {
    pub(crate) fn report(&self, error: &str, now: &str) -> O::Status {
        let reason = Refusal::InvalidSpec.reason();
        let news = [("Ready", Verdict::no(reason, error)), ("Stalled", Verdict::yes(reason, error))];
        with_conditions::<O>(&self.status, self.metadata.generation, news, now)
    }
}

/// The status with these conditions. The earlier report on the children stays.
fn with_conditions<O: Reported>(
    status: &O::Status,
    generation: i64,
    news: impl IntoIterator<Item = (&'static str, Verdict)>,
    now: &str,
) -> O::Status {
    let before = O::observed(status).1;
    let mut after = before.to_vec();
    for (name, verdict) in news {
        let condition = verdict.condition(name, generation, before, now);
        match after.iter_mut().find(|condition| condition.r#type == name) {
            Some(known) => *known = condition,
            None => after.push(condition),
        }
    }
    let mut status = status.clone();
    O::observe(&mut status, generation, after);
    status
}

impl<O: Reported> Reconcile<O> {
    /// The state of an object whose Pods a Deployment, StatefulSet, DaemonSet or Job runs, with the reason why they do not run, if so.
    /// Does not look for a reason if [`Reconcile::finish`] writes no status now.
    pub async fn rollout<W: Workload>(&self, workload: &Child<W>, desired: &W) -> ObservedState {
        let kept = match workload {
            Child::Kept(live) => Some(live.rollout()),
            Child::Awaited(_) | Child::NotOurs(_) | Child::Failed { .. } | Child::OwnerGone => None,
        };
        let desired = desired.rollout();
        let waiting = kept.filter(Rollout::waits_for_pods).map(|live| PodsOf {
            generation: live.generation,
            // A live selector that lacks a label of ours also selects Pods of other writers. The API server chooses that of a Job.
            selector: if desired.selector.is_empty() { live.selector } else { desired.selector }.to_string(),
            containers: live.containers,
            first: None,
            unseen: None,
        });
        let (pods, next) = self.look(waiting).await;
        rollout::state(workload, desired.asked, pods.as_ref(), next)
    }

    /// Why the Pods do not run for which the object waits, if it waits for any, and when to look again.
    pub async fn look(&self, waiting: Option<PodsOf<'_>>) -> (Option<Trouble>, Next) {
        if self.check().is_err() {
            return (None, Next::OnChange);
        }
        let Reporter { cluster, pods: looks, .. } = &*self.reporter;
        let Some(pods) = waiting.filter(|pods| !pods.selector.is_empty()) else {
            looks.forget(&self.metadata().uid);
            return (None, Next::OnChange);
        };
        let (trouble, pause) = looks.look(cluster, &**self, &pods).await;
        (trouble, Next::After(pause))
    }

    /// Ends the reconcile: records the Events of the writes and failures, and writes the status, if it has changed, with its
    /// `observedGeneration` and `conditions`. `state` is the operator's own view, a [`Verdict`] or an [`ObservedState`]: it counts
    /// if all children are as desired. The object is reconciled again at the returned time, or sooner if the operator says so.
    pub async fn finish(
        &self,
        mut status: O::Status,
        state: impl Into<ObservedState>,
    ) -> Result<Next, ReconcileError> {
        self.check()?;
        let (state, outcomes, reporter) = (state.into(), self.reported(), &*self.reporter);
        let (next, uid) = (state.next, &self.metadata().uid);
        if outcomes.not_ours.is_none() {
            locked(&reporter.conflicting).remove(uid);
        }
        let conditions = outcomes.conditions(&**self, state, &reporter.now());
        O::observe(&mut status, self.metadata().generation, conditions);
        let written = self.write_status(&status).await;
        // Return the error of a child, not a failure to write the status: the cause of the former must be removed first.
        if let Some(error) = outcomes.errors.into_iter().next() {
            if !matches!(written, Ok(false)) {
                let refusal = Refusal::of(&error).unwrap_or(Refusal::Other);
                let note = format!("{}: {}", refusal.reason(), refusal.message(&error));
                self.event(EventType::Warning, "Failed", note);
            }
            return Err(error.into());
        }
        let is_written = written?;
        if let Some(problem) = outcomes.not_ours {
            if is_written {
                self.event(EventType::Warning, NAME_CONFLICT, problem);
            }
            return Ok(self.again(Next::After(reporter.conflict_pause(uid))));
        }
        // Usually a DELETED event follows, but not for a child without our label, which is in no watch of ours.
        Ok(self.again(if outcomes.is_awaited { Next::After(UNSEEN_RECHECK) } else { next }))
    }

    /// Writes why the object is not reconciled.
    pub(super) async fn unreconciled(&self, ready: Verdict) -> Result<(), ReconcileError> {
        let (generation, now) = (self.metadata().generation, self.reporter.now());
        let status = with_conditions::<O>(self.status(), generation, [("Ready", ready)], &now);
        self.write_status(&status).await.map(drop)
    }

    /// Whether the status had changed, and was written.
    async fn write_status(&self, status: &O::Status) -> Result<bool, ReconcileError> {
        let (owner, before): (&O, _) = (self, self.status());
        if status == before {
            return Ok(false);
        }
        let mut patch = serde_json::to_value(status)?;
        remove_missing(&serde_json::to_value(before)?, &mut patch);
        let written = self.reporter.cluster.patch_status(owner, patch).await;
        if written.as_ref().is_err_and(Error::is_not_found)
            && is_wanted(&self.reporter.cluster, owner).await?
        {
            return Err(
                "the CRD has no status subresource: add `subresources: {status: {}}` to its version".into()
            );
        }
        written?;
        let (before, after) = (O::observed(before).1, O::observed(status).1);
        let find = conditions::find;
        let is_ready = |all| find(all, "Ready").is_some_and(|ready| ready.status == "True");
        if let Some(Condition { reason, message, .. }) =
            find(after, "Ready").filter(|_| is_ready(after) != is_ready(before))
        {
            info!(target: LOG, kind = O::KIND, key = %owner.key(), generation = owner.metadata().generation, ready = is_ready(after), "{reason}: {message}");
        }
        let stalled = |all| find(all, "Stalled").filter(|stalled| stalled.status == "True");
        if let Some(Condition { reason, message, .. }) = stalled(after)
            && stalled(before).is_none_or(|before| before.reason != *reason)
        {
            warn!(target: LOG, kind = O::KIND, key = %owner.key(), %reason, details = %message, "stalled: it will not go on without help");
        }
        let mutated = |all| find(all, "Mutated").map(|mutated| &*mutated.message);
        if let Some(message) = mutated(after).filter(|_| mutated(before) != mutated(after)) {
            self.event(EventType::Warning, CHANGED_BY_ADMISSION, message.to_owned());
        }
        Ok(true)
    }

    /// Records one Event for the created children, one for the updated and one for the restored ones.
    pub(super) fn record_writes(&self, writes: &[Write]) {
        let (mut created, mut updated, mut restored) = (Vec::new(), Vec::new(), Vec::new());
        for write in writes {
            match write {
                Write::Created(what) => created.push(&**what),
                Write::Updated(what) => updated.push(&**what),
                Write::Restored(what) => restored.push(&**what),
            }
        }
        if !created.is_empty() {
            info!(target: LOG, kind = O::KIND, key = %self.key(), children = created.join(", "), "created");
        }
        let news = [
            ("Created", "created", created),
            ("Updated", "changed", updated),
            ("DriftCorrected", "restored", restored),
        ];
        for (reason, verb, what) in news {
            if !what.is_empty() {
                let note = format!("{verb} {}", what.join(", "));
                self.event(EventType::Normal, reason, note);
            }
        }
    }
}

/// Sets to `null` in a merge patch what it lacks: otherwise, the patch would leave it.
fn remove_missing(before: &Value, patch: &mut Value) {
    let (Value::Object(before), Value::Object(patch)) = (before, patch) else { return };
    for (field, before) in before {
        match patch.get_mut(field) {
            Some(after) => remove_missing(before, after),
            None => drop(patch.insert(field.clone(), Value::Null)),
        }
    }
}
