//! The end of a Database: its last backup, and then what becomes of its claims and passwords.
//!
//! The finalizer keeps the Database, and with it the Pods, until the backup has succeeded. Only after that, and only if the deletion
//! policy is `Delete` at that time, its claims and Secrets get an ownerReference, with which the garbage collector deletes them:
//!
//! ```text
//!   dry runs of all that follows    if one is refused, nothing is written
//!   PATCH secrets, claims           if one is refused, all owners are taken back
//!   PATCH databases/db              the controller removes the finalizer
//! ```
//!
//! So a Database that waits owns no data, and a user who removes its finalizer by hand loses none. An operator that is killed between two
//! of these writes leaves owners; at its next start, it goes on or takes them back.

use std::sync::Arc;

use listwatch::{
    children::{Child, ObservedState, Refusal, Stage, UNSEEN_RECHECK},
    client::Error,
    cluster::EventType,
    controller::{Cleanup, Next, Operator, Reconcile, ReconcileError},
    resource::{
        Key, Meta, ObjectMeta, OwnerReference, Resource,
        conditions::{self, Verdict},
        kinds::{ConfigMap, Job, JobStatus, Secret, StatefulSet},
        list::Found,
    },
};
use serde_json::json;
use smol_str::{SmolStr, format_smolstr};

use super::{
    Database, Databases,
    data::{Claim, changes_of_owner, claim, has_labels, is_of_instance},
    desired::{DatabaseChildren, backup_labels},
    pods_of,
    types::DatabaseDeletionPolicy,
};

/// The reason while the backup has failed.
const FAILED: &str = "LastBackupFailed";

/// The reason while the claims would be deleted with the StatefulSet.
const NOT_RETAINED: &str = "ClaimsNotRetained";

/// The backup before the end.
enum LastBackup {
    /// It has succeeded, or backups are off.
    Done,
    /// It can no longer be made, for this reason.
    Impossible(&'static str),
    /// The Database waits for it, or for a user.
    Pending(Next),
}

/// Whether a change is written.
#[derive(Clone, Copy)]
enum Attempt {
    DryRun,
    Write,
}

impl Databases {
    pub(super) async fn end(&self, database: &Reconcile<Database>) -> Result<Cleanup, ReconcileError> {
        let end = self.try_to_end(database).await;
        if !matches!(end, Ok(Cleanup::Done)) {
            self.take_back(database).await?;
        }
        end
    }

    /// Takes the owners of the data back.
    async fn take_back(&self, database: &Database) -> Result<(), Error> {
        if !self.owns_data(database) {
            return Ok(());
        }
        // Not if the Database is gone and its watch is late: the garbage collector deletes the data then, as the policy says.
        let live = self.cluster.get_live::<Meta<Database>>(&database.key()).await?;
        if live.metadata.uid != database.metadata.uid {
            return Ok(());
        }
        self.give_all(database, DatabaseDeletionPolicy::Retain, Attempt::Write).await
    }

    async fn try_to_end(&self, database: &Reconcile<Database>) -> Result<Cleanup, ReconcileError> {
        let policy = match self.last_backup(database).await? {
            // The Pods go on, so they need their data.
            LastBackup::Done if self.is_orphaned(database) => DatabaseDeletionPolicy::Retain,
            LastBackup::Done => database.spec.deletion_policy,
            LastBackup::Impossible(why) => {
                let note = format!("no last backup: {why}; the claims and Secrets stay");
                database.event(EventType::Warning, "NoLastBackup", note);
                DatabaseDeletionPolicy::Retain
            }
            LastBackup::Pending(next) => return Ok(Cleanup::Pending(next)),
        };
        if policy == DatabaseDeletionPolicy::Retain
            && !self.is_orphaned(database)
            && let Some(problem) = self.retain(database).await?
        {
            self.report_failure(database, NOT_RETAINED, problem).await?;
            return Ok(Cleanup::Pending(Next::After(UNSEEN_RECHECK)));
        }
        let given = match policy {
            DatabaseDeletionPolicy::Retain => self.give_all(database, policy, Attempt::Write).await,
            DatabaseDeletionPolicy::Delete => self.own_all(database).await,
        };
        let Err(error) = given else { return Ok(Cleanup::Done) };
        if let Some(refusal) = Refusal::of(&error) {
            let owned = match self.take_back(database).await {
                Ok(()) => String::new(),
                Err(error) => {
                    format!("do not remove the finalizer: the Database still owns data, because {error}; ")
                }
            };
            let problem = format_smolstr!(
                "{owned}{error}. Where the admission plugin OwnerReferencesPermissionEnforcement is on, a new owner needs the verb \
                 delete: grant the operator this verb for claims and Secrets, or set spec.deletionPolicy to Retain"
            );
            self.report_failure(database, refusal.reason(), problem).await?;
        }
        Err(error.into())
    }

    /// Makes the Database the owner of all its data, if each write would be accepted, and also the removal of the finalizer.
    async fn own_all(&self, database: &Database) -> Result<(), Error> {
        self.give_all(database, DatabaseDeletionPolicy::Delete, Attempt::DryRun).await?;
        let mut finalizers = database.metadata.finalizers.iter();
        if let Some(index) = finalizers.position(|finalizer| Some(&**finalizer) == Databases::FINALIZER) {
            let operation = json!({"op": "remove", "path": format!("/metadata/finalizers/{index}")});
            self.cluster.patch_dry_run(database, vec![operation]).await?;
        }
        self.give_all(database, DatabaseDeletionPolicy::Delete, Attempt::Write).await
    }

    /// Makes the data of the instances and the passwords owned as the policy says. The claims come last: they are the greater loss.
    async fn give_all(
        &self,
        database: &Database,
        policy: DatabaseDeletionPolicy,
        attempt: Attempt,
    ) -> Result<(), Error> {
        let mut given = Ok(());
        // If one owner cannot be taken back, the others still are.
        let goes_on = |given: &Result<(), Error>| given.is_ok() || policy == DatabaseDeletionPolicy::Retain;
        for secret in self.own_secrets(database) {
            if goes_on(&given) {
                given = given.and(self.give(database, &*secret, policy, attempt).await);
            }
        }
        for claim in self.instance_claims(database) {
            if goes_on(&given) {
                given = given.and(self.give(database, &*claim, policy, attempt).await);
            }
        }
        given
    }

    /// Whether the deletion leaves the StatefulSet, as with `kubectl delete --cascade=orphan`.
    fn is_orphaned(&self, database: &Database) -> bool {
        database.metadata.finalizers.iter().any(|finalizer| finalizer == "orphan")
            || self
                .sets
                .find(&database.key())
                .is_some_and(|set| !set.metadata().is_controlled_by(&database.metadata))
    }

    /// Lets the StatefulSet retain the claims: a policy or a user may have set `whenDeleted: Delete`. Says why it does not yet, if so.
    async fn retain(&self, database: &Database) -> Result<Option<SmolStr>, ReconcileError> {
        let set = self.live_set(database).await?.filter(|set| !set.metadata.is_terminating());
        let Some(mut set) = set else { return Ok(None) };
        if !retains(&set) {
            let path = "/spec/persistentVolumeClaimRetentionPolicy/whenDeleted";
            let operation = json!({"op": "replace", "path": path, "value": "Retain"});
            set = match self.cluster.patch(&*set, vec![operation]).await {
                Err(error) if Refusal::of(&error).is_some() => return Ok(Some(format_smolstr!("{error}"))),
                patched => patched?,
            };
        }
        if !retains(&set) {
            let problem = "an admission webhook or policy keeps whenDeleted: Delete in the StatefulSet, with which the claims would \
                           be deleted: change the policy, or set spec.deletionPolicy to Delete";
            return Ok(Some(problem.into()));
        }
        for claim in self.owned_by(database, &set) {
            let name = &claim.metadata.name;
            if !is_of_instance(database, &claim.metadata) {
                return Ok(Some(format_smolstr!(
                    "the claim {name} would be deleted with the StatefulSet, which is its owner: remove this owner, or the claim"
                )));
            }
            // The controller may still write what the earlier policy says.
            if set.status.observed_generation < set.metadata.generation {
                return Ok(Some(format_smolstr!(
                    "the claim {name} would be deleted with the StatefulSet, whose controller has not observed whenDeleted: Retain yet"
                )));
            }
            // The controller removes itself only from the claims of Pods that exist.
            let owners = claim.metadata.owner_references.iter().enumerate().rev();
            let ours = owners.filter(|(_, owner)| owner.uid == set.metadata.uid);
            let remove =
                |index| json!({"op": "remove", "path": format!("/metadata/ownerReferences/{index}")});
            let removed = self.cluster.patch(&*claim, ours.map(|(index, _)| remove(index)).collect()).await;
            match removed {
                Err(error) if Refusal::of(&error).is_some() => return Ok(Some(format_smolstr!("{error}"))),
                removed => drop(removed?),
            }
        }
        Ok(None)
    }

    /// Whether claims would be deleted with the StatefulSet, which is deleted with the Database.
    pub(super) fn would_lose_claims(&self, database: &Database) -> bool {
        let is_going = |set: &ObjectMeta| !set.is_terminating() && set.is_controlled_by(&database.metadata);
        match self.sets.find(&database.key()).filter(|set| is_going(set.metadata())) {
            None => false,
            Some(Found::Readable(set)) => !retains(&set) || self.owned_by(database, &set).next().is_some(),
            // Its fields are not known.
            Some(Found::Partial(_)) => true,
        }
    }

    /// The claims that the StatefulSet owns. With `whenDeleted: Delete`, the StatefulSet controller makes it the owner.
    fn owned_by(&self, database: &Database, set: &StatefulSet) -> impl Iterator<Item = Arc<Claim>> {
        let is_owner = |owner: &OwnerReference| owner.uid == set.metadata.uid;
        let claims = self.claims.get(&database.key()).into_iter();
        claims.filter(move |claim| claim.metadata.owner_references.iter().any(is_owner))
    }

    /// Whether the Database is the owner of a password or of the data of an instance.
    fn owns_data(&self, database: &Database) -> bool {
        let is_owned = |metadata: &ObjectMeta| {
            !changes_of_owner(database, metadata, DatabaseDeletionPolicy::Retain).is_empty()
        };
        self.own_secrets(database).any(|secret| is_owned(&secret.metadata))
            || self.instance_claims(database).any(|claim| is_owned(&claim.metadata))
    }

    /// The Secrets with the passwords, except for a user's.
    fn own_secrets(&self, database: &Database) -> impl Iterator<Item = Arc<Meta<Secret>>> {
        let name = &database.metadata.name;
        let names = [name.clone(), format_smolstr!("{name}-replication")].into_iter();
        let secrets = names.filter_map(|name| self.secrets.get(&Key { name, ..database.key() }));
        secrets.filter(|secret| has_labels(database, &secret.metadata))
    }

    async fn give<K: Resource>(
        &self,
        database: &Database,
        object: &K,
        policy: DatabaseDeletionPolicy,
        attempt: Attempt,
    ) -> Result<(), Error> {
        let changes = changes_of_owner(database, object.metadata(), policy);
        match attempt {
            _ if changes.is_empty() => Ok(()),
            Attempt::DryRun => self.cluster.patch_dry_run(object, changes).await,
            Attempt::Write => self.cluster.patch(object, changes).await.map(drop),
        }
    }

    /// Creates the Job of the last backup, if there is none, and reports what became of it.
    async fn last_backup(&self, database: &Reconcile<Database>) -> Result<LastBackup, ReconcileError> {
        if self.lost(database).await?.is_some() {
            return Ok(LastBackup::Impossible("the data of the primary is lost"));
        }
        let (version, _) = self.version(database).await?;
        let DatabaseChildren { backup, scripts, .. } = self.children(database, &version, false);
        let Some(cron_job) = backup else {
            return Ok(LastBackup::Done);
        };
        if database.metadata.finalizers.iter().any(|finalizer| finalizer == "foregroundDeletion") {
            return Ok(LastBackup::Impossible("a deletion in the foreground deletes the Pods first"));
        }
        if self.sets.find(&database.key()).is_none_or(|set| set.metadata().is_terminating()) {
            return Ok(LastBackup::Impossible("there is no StatefulSet"));
        }
        if let Some(problem) = self.foreign_scripts(database, &scripts).await? {
            self.report_failure(database, FAILED, problem).await?;
            return Ok(LastBackup::Pending(Next::After(UNSEEN_RECHECK)));
        }
        let name = format_smolstr!("{}-last-backup", database.metadata.name);
        let job = Job {
            metadata: ObjectMeta::of_child(&**database, &name, backup_labels(database)),
            spec: cron_job.spec.job_template.spec,
            status: JobStatus::default(),
        };
        if self.jobs.find(&job.key()).is_none() {
            // If the Database is gone and its watch is late, the garbage collector deletes the Job, which would be created again.
            let live = self.cluster.get_live::<Meta<Database>>(&database.key()).await?;
            if live.metadata.uid != database.metadata.uid {
                return Err("the Database was created again".into());
            }
        }
        let live = match self.make(database, job).await {
            Ok(live) => live,
            Err(error) if error.is_namespace_terminating() => {
                return Ok(LastBackup::Impossible("the namespace is being deleted"));
            }
            Err(error) => {
                self.report_failure(database, FAILED, format_smolstr!("{error}")).await?;
                return Err(error.into());
            }
        };
        let is_owned = live.metadata.is_controlled_by(&database.metadata);
        let is_ours = is_owned || is_released(database, &live.metadata);
        if is_ours && live.is_complete() {
            return Ok(LastBackup::Done);
        }
        let next = if !is_ours {
            let problem = format_smolstr!("the Job {name} exists, and is not of this Database: delete it");
            self.report_failure(database, FAILED, problem).await?
        } else if live.has_failed() {
            let problem = format_smolstr!(
                "the last backup failed: see the log of the Job {name}. Delete this Job to try again, or remove \
                 spec.backup to delete the Database without a last backup"
            );
            self.report_failure(database, FAILED, problem).await?
        } else {
            self.report_progress(database, &live).await?
        };
        // It may be in no watch of ours, or its events wake no Database.
        Ok(LastBackup::Pending(if is_owned { next } else { Next::After(UNSEEN_RECHECK) }))
    }

    /// Why the Job must not run yet: the scripts in its Pod would be another owner's. Scripts that are missing are created again.
    async fn foreign_scripts(
        &self,
        database: &Database,
        scripts: &ConfigMap,
    ) -> Result<Option<SmolStr>, Error> {
        // With `kubectl delete --cascade=orphan`, they have lost their owner, and so the Store has no labels of theirs.
        let is_ours = |live: &ObjectMeta| {
            live.is_controlled_by(&database.metadata)
                || live.controller().is_none() && has_labels(database, live)
        };
        let live = self.whole(self.config_maps.find(&scripts.key())).await?;
        if live.is_some_and(|live| is_ours(&live.metadata)) {
            return Ok(None);
        }
        Ok(match self.config_maps.keep(database, scripts, Stage::Changed).await.child {
            Child::NotOurs(problem) => Some(problem.into()),
            // The Job waits for them.
            Child::Kept(_) | Child::Awaited(_) | Child::Failed { .. } | Child::OwnerGone => None,
        })
    }

    /// Creates the Job, and its claim, if backups were off until now.
    async fn make(&self, database: &Database, job: Job) -> Result<Arc<Job>, Error> {
        if let Some(live) = self.whole(self.jobs.find(&job.key())).await? {
            return Ok(live);
        }
        let name = format!("{}-backups", database.metadata.name);
        if !self.claims.get(&database.key()).iter().any(|claim| claim.metadata.name == name) {
            let created = self.cluster.create(&claim(database, &name, backup_labels(database))).await;
            created.map(drop).or_else(|error| if error.is_already_exists() { Ok(()) } else { Err(error) })?;
        }
        match self.cluster.create(&job).await {
            // The watch is late, or the Job of another writer has no label of ours.
            Err(error) if error.is_already_exists() => self.cluster.get_live(&job.key()).await,
            made => made,
        }
    }

    /// Reports why the Database does not end until a user acts.
    async fn report_failure(
        &self,
        database: &Reconcile<Database>,
        reason: &'static str,
        problem: SmolStr,
    ) -> Result<Next, ReconcileError> {
        let before = conditions::find(&database.status.conditions, "Ready");
        if before.is_none_or(|before| before.reason != reason) {
            database.event(EventType::Warning, reason, problem.to_string());
        }
        let stalled = Some(Verdict::yes(reason, problem.clone()));
        let ready = Verdict::no(reason, problem);
        let backup = (reason == FAILED).then(|| ready.clone());
        let state = ObservedState { stalled, ..self.waiting(database, ready, backup, Next::OnChange) };
        database.finish(database.status.clone(), state).await
    }

    async fn report_progress(
        &self,
        database: &Reconcile<Database>,
        job: &Job,
    ) -> Result<Next, ReconcileError> {
        let (trouble, next) = database.look(Some(pods_of(job))).await;
        let trouble = trouble.map(|trouble| format!(": {}: {}", trouble.reason, trouble.message));
        let message = format_smolstr!(
            "the Database is deleted after a last backup, by the Job {}{}",
            job.metadata.name,
            trouble.unwrap_or_default()
        );
        let ready = Verdict::no("LastBackupRunning", message.clone());
        let backup = Some(Verdict::unknown("LastBackupRunning", message));
        let state = self.waiting(database, ready, backup, next);
        database.finish(database.status.clone(), state).await
    }

    /// The conditions of a Database that waits for its end, usually for its last backup.
    fn waiting(
        &self,
        database: &Database,
        ready: Verdict,
        backup: Option<Verdict>,
        next: Next,
    ) -> ObservedState {
        let mut others = vec![("Available", self.available(database))];
        others.extend(backup.map(|backup| ("BackupSucceeded", backup)));
        ObservedState { ready, others, stalled: None, next }
    }
}

fn retains(set: &StatefulSet) -> bool {
    set.spec
        .persistent_volume_claim_retention_policy
        .as_ref()
        .is_some_and(|policy| policy.when_deleted == "Retain")
}

/// Whether this is the Job of the last backup, without its owner: a second deletion, with `--cascade=orphan`, takes it away.
fn is_released(database: &Database, job: &ObjectMeta) -> bool {
    job.owner_references.is_empty()
        && has_labels(database, job)
        // That of an earlier Database is older.
        && job.creation_timestamp >= database.metadata.deletion_timestamp
}
