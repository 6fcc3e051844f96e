//! One reconcile of one object, as an operator gets it.
//!
//! ```text
//!   keep, keep_once, discard     a write or none; the outcome is noted
//!   rollout, look                why the Pods of the object do not run
//!   finish                       Events of the writes, conditions, status
//! ```
//!
//! The outcomes that no call of `finish` has reported are the result of the reconcile: a child that failed makes it an error. They
//! count in the order of the calls, whichever request is answered first.

use std::{
    collections::BTreeMap,
    mem,
    ops::Deref,
    sync::{Arc, Mutex},
    time::Duration,
};

use serde::Serialize;
use serde_json::Value;

use super::{
    Children,
    events::Reporter,
    keep::{self, is_wanted},
    outcome::{Child, Outcome, Outcomes, Stage, Step, UNSEEN_RECHECK},
    refusal::Refusal,
    status::Reported,
    write::{self, Write},
};
use crate::{
    client::Error,
    cluster::EventType,
    locked,
    next::{Next, ReconcileError},
    resource::{Key, Meta, Resource},
};

/// An object to reconcile, and what becomes of its children. It derefs to the object.
pub struct Reconcile<K> {
    pub(super) reporter: Arc<Reporter>,
    object: Arc<K>,
    stage: Stage,
    noted: Arc<Mutex<Noted>>,
}

/// The outcomes of the children.
#[derive(Default)]
struct Noted {
    /// The number of calls.
    calls: usize,
    /// Those that are not in `outcomes` yet, by the number of the call.
    new: BTreeMap<usize, Outcomes>,
    /// Those before the last [`Reconcile::check`].
    outcomes: Outcomes,
    /// Whether the status is written in the next reconcile. `None`: not decided yet.
    is_put_off: Option<bool>,
    /// When to reconcile again, according to the report.
    next: Option<Next>,
}

impl<K> Deref for Reconcile<K> {
    type Target = K;

    fn deref(&self) -> &K {
        &self.object
    }
}

impl<K: Resource> Reconcile<K> {
    pub(crate) fn new(reporter: &Arc<Reporter>, object: &Arc<K>, stage: Stage) -> Reconcile<K> {
        let (reporter, object) = (Arc::clone(reporter), Arc::clone(object));
        Reconcile { reporter, object, stage, noted: Arc::default() }
    }

    /// The same reconcile: the operator has one, and the controller looks at what the operator leaves unreported.
    pub(crate) fn share(&self) -> Reconcile<K> {
        let (reporter, object) = (Arc::clone(&self.reporter), Arc::clone(&self.object));
        Reconcile { reporter, object, stage: self.stage, noted: Arc::clone(&self.noted) }
    }

    /// When to reconcile again at the latest, after a reconcile without an error: the reported time, or sooner for the outcomes that no
    /// report has. A child that failed is an error.
    pub(crate) fn unreported(&self) -> Result<Next, ReconcileError> {
        let mut noted = locked(&self.noted);
        let next = noted.next.unwrap_or(Next::OnChange);
        let Outcomes { errors, not_ours, is_awaited, is_owner_gone, .. } = noted.collect();
        if let Some(error) = most_urgent(errors) {
            return Err(self.reporter.refused.failure(&self.object.metadata().uid, error.clone()));
        }
        if let Some(message) = not_ours {
            return Err(ReconcileError::recheck(UNSEEN_RECHECK, message.clone()));
        }
        Ok(if *is_awaited || *is_owner_gone { next.or_sooner(Next::After(UNSEEN_RECHECK)) } else { next })
    }

    /// The object, to share it.
    #[must_use]
    pub fn object(&self) -> &Arc<K> {
        &self.object
    }

    /// Whether this is for a [`Runtime::plan`](crate::runtime::Runtime::plan): the writes of this reconcile are only tried, so it must not change
    /// anything outside the cluster.
    #[must_use]
    pub fn only_plans(&self) -> bool {
        self.reporter.cluster.client.only_plans()
    }

    /// Brings a child to its desired state: creates it, patches what differs, or writes nothing. It may also be replaced, adopted, or
    /// left to another owner: see [`Child`].
    pub fn keep<C: Resource + Serialize>(
        &self,
        children: &Children<C>,
        desired: &C,
    ) -> impl Future<Output = Child<C>> + Send {
        self.noting(children.keep(&*self.object, desired, self.stage))
    }

    /// Creates an object that outlives its owner, such as a password or a claim, unless one of this name exists: `seen`, from a watch of
    /// metadata, or one that only the API server has. It has no owner, and nobody corrects it: an object that exists is as desired, whoever
    /// made it. Only its metadata is read.
    pub fn keep_once<C: Resource + Serialize>(
        &self,
        seen: Option<Arc<Meta<C>>>,
        key: &Key,
        desired: impl FnOnce() -> C + Send,
    ) -> impl Future<Output = Child<Meta<C>>> + Send {
        self.noting(async move {
            let created = self.created(seen, key, desired);
            let refused = &self.reporter.refused;
            refused.unless_refused(self.metadata(), key, &write::name::<C>(key), created).await.into()
        })
    }

    async fn created<C: Resource + Serialize>(
        &self,
        seen: Option<Arc<Meta<C>>>,
        key: &Key,
        desired: impl FnOnce() -> C + Send,
    ) -> Step<Meta<C>> {
        if let Some(live) = seen {
            return Ok((Child::Kept(live), None));
        }
        let (cluster, owner) = (&self.reporter.cluster, &*self.object);
        // A watch may miss it: another writer gives it no label of ours, and our own label can be removed.
        match cluster.get_live::<Meta<C>>(key).await {
            Ok(live) => return Ok((Child::Kept(live), None)),
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error),
        }
        if self.stage != Stage::New && !is_wanted(cluster, owner).await? {
            return Ok((Child::OwnerGone, None));
        }
        Ok(match cluster.create_for(owner.metadata(), &desired()).await? {
            None => (Child::OwnerGone, None),
            Some(created) => {
                (Child::Kept(Arc::new(Meta::of(&*created))), Some(Write::Created(write::name::<C>(key))))
            }
        })
    }

    /// Changes some fields of an object that outlives its owner, if there are any operations.
    pub fn patch_once<C: Resource>(
        &self,
        live: Arc<C>,
        operations: Vec<Value>,
    ) -> impl Future<Output = Child<C>> + Send {
        self.noting(async move {
            if operations.is_empty() {
                return Ok((Child::Kept(live), None)).into();
            }
            let key = live.key();
            let change = write::change::<C>(&key, operations.iter().map(write::path));
            let patching = self.reporter.cluster.patch(&*live, operations);
            Ok(match self.reporter.refused.unless_refused(self.metadata(), &key, &change, patching).await {
                Ok(patched) => (Child::Kept(patched), Some(Write::Updated(change))),
                Err(error) => (Child::Failed { error, live: Some(live) }, None),
            })
            .into()
        })
    }

    /// Deletes a child that the spec no longer has.
    pub async fn discard<C: Resource + Serialize>(&self, children: &Children<C>, key: &Key) {
        let turn = locked(&self.noted).next_turn();
        let what = format!("delete {}", write::name::<C>(key));
        let discarding = keep::discard(children, &*self.object, key, self.stage);
        let refused = &self.reporter.refused;
        if let Err(error) = refused.unless_refused(self.metadata(), key, &what, discarding).await {
            let mut outcomes = Outcomes::default();
            outcomes.add::<K, C>(&Child::Failed { error, live: None });
            locked(&self.noted).new.insert(turn, outcomes);
        }
    }

    /// Records an Event about the object.
    pub fn event(&self, r#type: EventType, reason: &'static str, note: String) {
        self.reporter.record(&*self.object, r#type, reason, note);
    }

    /// Records the Events of writes that the operator has made by itself, not by [`Reconcile::keep`].
    pub fn wrote(&self, writes: &[Write]) {
        self.reporter.record_writes(&*self.object, writes);
    }

    /// Notes the outcome for a child, in its turn.
    pub(super) fn noting<C: Resource>(
        &self,
        keeping: impl Future<Output = Outcome<C>> + Send,
    ) -> impl Future<Output = Child<C>> + Send {
        let turn = locked(&self.noted).next_turn();
        async move {
            let Outcome { child, write, mutations } = keeping.await;
            let mut outcomes = Outcomes::default();
            outcomes.add::<K, C>(&child);
            outcomes.writes.extend(write);
            outcomes.mutations = mutations;
            locked(&self.noted).new.insert(turn, outcomes);
            child
        }
    }
}

impl Noted {
    fn next_turn(&mut self) -> usize {
        self.calls += 1;
        self.calls
    }

    /// Puts the outcomes together.
    fn collect(&mut self) -> &mut Outcomes {
        for new in mem::take(&mut self.new).into_values() {
            self.outcomes.append(new);
        }
        &mut self.outcomes
    }
}

impl<K: Reported> Reconcile<K> {
    /// Ends the reconcile by `?` if the status is not written now: if the owner is gone; once after a child was created or restored, so
    /// that the children of other objects come first; or if a retry may solve what failed. `rollout`, `look` and `finish` begin with
    /// it. Records the Events of the writes.
    pub fn check(&self) -> Result<(), ReconcileError> {
        let mut noted = locked(&self.noted);
        let outcomes = noted.collect();
        if outcomes.is_owner_gone {
            // Its DELETED event follows. After a restored backup, it may be there again.
            return Err(ReconcileError::ended(Next::After(UNSEEN_RECHECK)));
        }
        let writes = mem::take(&mut outcomes.writes);
        let has_written = !writes.is_empty();
        self.reporter.record_writes(&*self.object, &writes);
        let is_put_off = match noted.is_put_off {
            Some(decided) => decided,
            None => self.puts_off(&noted.outcomes, has_written),
        };
        noted.is_put_off = Some(is_put_off);
        if is_put_off {
            return Err(ReconcileError::ended(Next::After(Duration::ZERO)));
        }
        match most_urgent(&noted.outcomes.errors).filter(|error| Refusal::of(error).is_none()) {
            Some(error) => Err(error.clone().into()),
            None => Ok(()),
        }
    }

    /// Whether the status is written in the next reconcile. After a change of the spec, users wait for `observedGeneration`. The status
    /// is put off only once: if its write fails, the object must back off, even if its children are created again and again.
    fn puts_off(&self, outcomes: &Outcomes, has_written: bool) -> bool {
        let metadata = self.object.metadata();
        let can_wait = match self.stage {
            _ if !outcomes.has_children || metadata.is_terminating() => false,
            // There is only this one.
            _ if self.only_plans() => false,
            Stage::New => true,
            Stage::Changed => false,
            Stage::Settled => has_written,
        };
        let mut unreported = locked(&self.reporter.unreported);
        if !can_wait {
            unreported.remove(&metadata.uid);
            return false;
        }
        outcomes.troubles.is_empty() && unreported.insert(metadata.uid.clone())
    }

    /// The outcomes, which are reported now.
    pub(super) fn reported(&self) -> Outcomes {
        mem::take(&mut locked(&self.noted).outcomes)
    }

    /// Notes when to reconcile again, whatever the operator returns.
    pub(super) fn again(&self, next: Next) -> Next {
        locked(&self.noted).next = Some(next);
        next
    }
}

/// An error that goes away with a retry, or else the first one.
fn most_urgent(errors: &[Error]) -> Option<&Error> {
    errors.iter().find(|error| Refusal::of(error).is_none()).or(errors.first())
}

#[cfg(test)]
mod tests {
    use listwatch_apiserver::{ApiServer, Options};

    use super::*;
    use crate::{
        children::Conditions,
        client::{Client, Config},
        cluster::{Cluster, Events},
        resource::{
            ObjectMeta,
            kinds::{ConfigMap, Service},
        },
        watch::Lists,
    };

    #[tokio::test]
    async fn an_object_is_reconciled_again_when_its_report_says_so_or_while_a_child_goes() {
        let client = Config::new("http://localhost", b"", "").and_then(Client::new).expect("a client");
        let reporter = Arc::new(Reporter::new(&Cluster::new(client, Lists::Paged), None));
        let map = Arc::new(Meta::<ConfigMap>::from(ObjectMeta::default()));
        let reconcile = Reconcile::new(&reporter, &map, Stage::Settled);
        let minute = Next::After(Duration::from_secs(60));
        locked(&reconcile.share().noted).next = Some(minute);
        assert_eq!(reconcile.unreported().expect("no failure"), minute);
        for sooner in [Child::Awaited(None), Child::OwnerGone] {
            let outcome: Outcome<ConfigMap> = Ok((sooner, None)).into();
            reconcile.share().noting(std::future::ready(outcome)).await;
            assert_eq!(reconcile.unreported().expect("no failure"), Next::After(UNSEEN_RECHECK));
        }
    }

    #[derive(serde::Serialize, serde::Deserialize)]
    struct Note {
        metadata: ObjectMeta,
        status: Conditions,
    }

    crate::kind!(Note, "example.com", "v1", "notes");
    crate::reported!(Note, Conditions);

    /// When many Deployments were deleted, each new one waited for the statuses of the objects before.
    #[tokio::test]
    async fn after_a_child_is_created_or_restored_the_status_waits_once_for_other_objects() {
        let server = ApiServer::start(Options { controllers: false, ..Options::default() }).await;
        let server = server.expect("a server");
        let config = Config::new(&server.url(), server.ca_pem().as_bytes(), server.token());
        let client = Client::new(config.expect("a config")).expect("a client");
        let cluster = Cluster::new(client.clone(), Lists::Paged);
        let events = Events::new(client, "example.com/notes", String::new()).0;
        let reporter = Arc::new(Reporter::new(&cluster, Some(events)));
        let note = Arc::new(Note { metadata: ObjectMeta::default(), status: Conditions::default() });
        let waits = async |stage, child, write| {
            let outcome: Outcome<Service> = Outcome { child, write, mutations: Vec::new() };
            let reconcile = Reconcile::new(&reporter, &note, stage);
            reconcile.noting(std::future::ready(outcome)).await;
            reconcile.check().is_err()
        };
        let kept = || Child::Kept(Arc::new(Service::default()));
        let restored = || Some(Write::Restored("Service web".to_owned()));
        for stage in [Stage::New, Stage::Settled] {
            assert!(waits(stage, kept(), restored()).await, "{stage:?}");
            assert!(!waits(stage, kept(), restored()).await, "{stage:?}: if it is created again and again");
            assert!(!waits(Stage::Settled, kept(), None).await);
            assert!(
                !waits(stage, Child::NotOurs("exists".to_owned()), restored()).await,
                "{stage:?}: trouble is reported"
            );
        }
        assert!(!waits(Stage::Changed, kept(), restored()).await, "a user waits for observedGeneration");
    }
}
