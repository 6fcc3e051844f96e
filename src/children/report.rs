//! The last step of a reconcile: reports the outcomes of one object's children, by conditions, Events (`cluster/events.rs` writes them) and
//! log lines.
//!
//! ```text
//!   Created, Updated, DriftCorrected     Events of the writes
//!   Ready, Stalled                       conditions: the worst outcome of a child, else the operator's own
//!   Mutated                              condition and Event: admission changes the writes
//!   Failed, NameConflict                 Events, when the condition is written
//! ```

#[cfg(all(test, feature = "testing"))]
mod tests;

use tracing::{info, warn};

use super::{
    Child, LOG, UNSEEN_RECHECK,
    events::Reporter,
    keep::is_wanted,
    pods::{PodsOf, Trouble},
    reconcile::Reconcile,
    refusal::{CHANGED_BY_ADMISSION, NAME_CONFLICT, Refusal},
    rollout_conditions::{self, Rollout, Workload},
    status::{ObservedState, Reported, with_conditions},
};
use crate::{
    cluster::EventType,
    next::{Next, ReconcileError},
    resource::{
        Condition,
        conditions::{self, Verdict},
        remove_missing,
    },
};

impl<O: Reported> Reconcile<O> {
    /// The state of an object whose Pods a Deployment, StatefulSet, DaemonSet or Job runs, with the reason why they do not run, if so.
    /// Does not look for a reason if [`Reconcile::finish`] writes no status now.
    pub async fn rollout<W: Workload>(&self, workload: &Child<W>, desired: &W) -> ObservedState {
        let (kept, desired) = (workload.kept().map(|live| live.rollout()), desired.rollout());
        let waiting = kept.filter(Rollout::waits_for_pods).map(|live| PodsOf {
            generation: live.generation,
            // A live selector that lacks a label of ours also selects Pods of other writers. The API server chooses a Job's selector.
            selector: if desired.selector.is_empty() { live.selector } else { desired.selector }.to_string(),
            containers: live.containers,
            first: None,
            unseen: None,
        });
        let (pods, next) = self.look(waiting).await;
        rollout_conditions::state(workload, desired.asked, pods.as_ref(), next)
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
            reporter.forget_conflict(uid);
        }
        let conditions = outcomes.conditions(&**self, state, &reporter.now());
        O::observe(&mut status, self.metadata().generation, conditions);
        let written = self.write_status(&status).await;
        // Return the error of a child, not a failure to write the status: the cause of the former must be removed first.
        if let Some(error) = outcomes.errors.into_iter().next() {
            let refusal = Refusal::of(&error).unwrap_or(Refusal::Other);
            // The Event would also be refused.
            if !matches!(written, Ok(false)) && refusal != Refusal::NamespaceTerminating {
                let note = format!("{}: {}", refusal.reason(), refusal.message(&error));
                self.event(EventType::Warning, "Failed", note);
            }
            return Err(reporter.refused.failure(uid, error));
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
        let (Reporter { cluster, refused, .. }, metadata) = (&*self.reporter, owner.metadata());
        let writing = cluster.patch_status(owner, patch);
        match refused.unless_refused(metadata, &metadata.key(), "status", writing).await {
            Ok(_) => {}
            Err(error) if error.is_not_found() && is_wanted(cluster, owner).await? => {
                return Err(
                    "the CRD has no status subresource: add `subresources: {status: {}}` to its version"
                        .into(),
                );
            }
            Err(error) => return Err(refused.failure(&metadata.uid, error)),
        }
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
}
