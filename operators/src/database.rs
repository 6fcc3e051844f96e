//! The operator of `Database`: each one gets PostgreSQL, with a primary and its replicas.
//!
//! ```yaml
//! apiVersion: app.example.com/v1     # becomes   StatefulSet db: Pod db-0 is the primary, db-1 streams from it; claims data-db-0 and data-db-1
//! kind: Database                     #           Services    db (the primary) and db-ro (every instance that is ready)
//! metadata: {name: db}               #           Secrets     db (username, password, uri) and db-replication
//! spec: {size: 2, version: "15.4"}   #           ConfigMap   db-scripts: what runs in the Pods
//! ```
//!
//! The operator never connects to PostgreSQL: each instance clones, streams and follows its passwords with its own [`scripts`]. The
//! operator has no permission to delete a claim or a Secret. These have no owner, so they stay when the Database is deleted, and a
//! new Database of that name uses them. With `deletionPolicy: Delete`, they get an ownerReference in the end ([`deletion`]), and the
//! garbage collector deletes them. `docs/database.md` describes how it works, and its limits.

mod data;
mod deletion;
mod desired;
mod scripts;
pub mod types;

use std::{
    net::IpAddr,
    sync::Arc,
    time::{Duration, SystemTime},
};

use listwatch::{
    children::{Child, Children, ObservedState, PodsOf, Trouble},
    client::Error,
    cluster::{Cluster, Index, Watch},
    controller::{Cleanup, Controller, Next, Operator, Reconcile, ReconcileError},
    rbac::Verb,
    resource::{
        Key, Labels, MANAGED_BY, Meta, ObjectMeta, Resource, conditions::Verdict, instance_of, kinds::*,
        list::Found,
    },
    runtime::Setup,
};
use listwatch_formats::{schedule::Schedule, time::parse_time};
use prometheus_client::metrics::{family::Family, gauge::Gauge};
use smol_str::{SmolStr, ToSmolStr, format_smolstr};

use data::{
    Claim, Instance, backed_up, changes_of_owner, claim, claim_name, growth, has_labels, is_of_instance,
    secret,
};
pub use desired::{CRON_JOB_OWNED, DatabaseChildren, JOB_OWNED, SET_OWNED, desired};
use desired::{backup_labels, labels};
pub use types::{Database, DatabaseSpec, DatabaseStatus};
use types::{DatabaseDeletionPolicy, RestoreSpec, SIZE_MAX};

/// The name of the operator in labels and Events.
const OPERATOR: &str = "database-operator";
/// The `reportingController` of its Events.
pub const CONTROLLER: &str = "app.example.com/database-operator";
/// The reason while an instance keeps an earlier template, and nothing else says why it is not ready.
const OUTDATED: &str = "PodOutdated";
/// The container in which PostgreSQL runs, its port, and the port of the Services.
const CONTAINER: &str = "postgres";
/// The port of PostgreSQL.
const PORT: i32 = 5432;

/// The flags of the Database operator.
#[derive(Clone, Debug, clap::Args)]
pub struct DatabaseFlags {
    /// database: the image of the Pods, without its tag, which is the version of PostgreSQL
    #[arg(long, value_name = "REPOSITORY", env = "DATABASE_IMAGE", default_value = "postgres")]
    pub database_image: String,
    /// database: the addresses from which PostgreSQL accepts connections: the cluster's Pods. Default: all private addresses
    #[arg(long, value_name = "CIDR,…", env = "DATABASE_POD_CIDRS", value_delimiter = ',', default_value = PRIVATE, value_parser = cidr, hide_default_value = true)]
    pub database_pod_cidrs: Vec<String>,
}

/// Private addresses: RFC 1918, RFC 6598, RFC 4193.
const PRIVATE: &str = "10.0.0.0/8,172.16.0.0/12,192.168.0.0/16,100.64.0.0/10,fc00::/7";

fn cidr(text: &str) -> Result<String, &'static str> {
    let parsed = text.split_once('/').and_then(|(address, length)| {
        let bits = if address.parse::<IpAddr>().ok()?.is_ipv4() { 32 } else { 128 };
        Some(length.parse::<u8>().ok()? <= bits)
    });
    parsed.filter(|fits| *fits).map(|_| text.to_owned()).ok_or("no CIDR, such as 10.244.0.0/16")
}

impl Default for DatabaseFlags {
    fn default() -> DatabaseFlags {
        DatabaseFlags {
            database_image: "postgres".to_owned(),
            database_pod_cidrs: PRIVATE.split(',').map(str::to_owned).collect(),
        }
    }
}

/// Creates and corrects the children of each Database.
pub struct Databases {
    cluster: Cluster,
    sets: Children<StatefulSet>,
    services: Children<Service>,
    config_maps: Children<ConfigMap>,
    budgets: Children<PodDisruptionBudget>,
    cron_jobs: Children<CronJob>,
    jobs: Children<Job>,
    /// Of the Secrets, only the metadata: the operator reads no password.
    secrets: Watch<Meta<Secret>>,
    /// The claims, by their Database.
    claims: Index<Claim, Key>,
    pods: Watch<Instance>,
    /// The Pods of backups, by their Database.
    backups: Index<Instance, Key>,
    last_backups: Family<DatabaseLabels, Gauge>,
    backup_sizes: Family<DatabaseLabels, Gauge>,
    flags: DatabaseFlags,
}

type DatabaseLabels = [(&'static str, String); 2];

/// Why the operator may write Secrets.
const PASSWORDS: &str = "To create passwords once, and to give them an owner with deletionPolicy: Delete. The operator asks for the \
                         metadata alone, but RBAC cannot allow only that.";
/// Why the operator may write claims.
const CLAIMS: &str = "To let claims grow, to give them an owner with deletionPolicy: Delete, and to create that of the backups.";

/// The controller of the Database operator.
#[must_use]
pub fn controller(setup: Setup, flags: &DatabaseFlags) -> Controller<Databases> {
    let mut databases = setup.kind::<Database>(OPERATOR);
    let gauge = |name, help| {
        let family = Family::<DatabaseLabels, Gauge>::default();
        setup.cluster.metrics().register(name, help, family.clone());
        family
    };
    let last_backups = gauge(
        "listwatch_database_last_backup_timestamp_seconds",
        "When the last successful backup of a Database ended, since 1970",
    );
    let backup_sizes = gauge(
        "listwatch_database_last_backup_size_bytes",
        "The size of the dump of the last successful backup of a Database",
    );
    let reason = "To report whether the primary is ready, and why Pods do not run.";
    databases.needs::<Instance>(&[Verb::List, Verb::Watch], reason);
    let pods = databases.watch(instance_of);
    let operator = Databases {
        cluster: setup.cluster.clone(),
        sets: databases.children().selector_may_lack(MANAGED_BY).owning(SET_OWNED),
        services: databases.children().owning(CLUSTER_IP_ONLY),
        config_maps: databases.children(),
        budgets: databases.children(),
        cron_jobs: databases.children().owning(CRON_JOB_OWNED),
        jobs: databases.children().owning(JOB_OWNED),
        secrets: databases.watch(instance_of),
        claims: databases.index(instance_of),
        backups: pods.index(backed_up),
        pods,
        last_backups,
        backup_sizes,
        flags: flags.clone(),
    };
    databases.needs::<Secret>(&[Verb::Get, Verb::Create, Verb::Patch], PASSWORDS);
    databases.needs::<PersistentVolumeClaim>(&[Verb::Get, Verb::Create, Verb::Patch], CLAIMS);
    databases.run_by(operator)
}

/// `15` in `15.4`.
fn major(version: &str) -> &str {
    version.split('.').next().unwrap_or_default()
}

/// The version in the image of the Pods: `15.4` in `postgres:15.4`. `None`, if another writer has set an image without a version.
fn version_of(set: &StatefulSet) -> Option<&str> {
    let container = set.spec.template.spec.containers.iter().find(|container| container.name == CONTAINER)?;
    version_of_image(&container.image)
}

/// `15.4` in `postgres:15.4` and in `postgres:15.4@sha256:…`.
fn version_of_image(image: &str) -> Option<&str> {
    let (_, version) = image.split('@').next()?.rsplit_once(':')?;
    version.split('.').all(|number| number.parse::<u16>().is_ok()).then_some(version)
}

/// The claim that the StatefulSet controller creates for the primary.
fn primary_claim(database: &Database) -> Key {
    Key { name: claim_name(database, 0), ..database.key() }
}

/// The Pod of the primary.
fn primary_key(database: &Database) -> Key {
    instance_key(database, 0)
}

/// The Pod of an instance.
fn instance_key(database: &Database, ordinal: i32) -> Key {
    Key { name: format_smolstr!("{}-{ordinal}", database.metadata.name), ..database.key() }
}

/// The children that the report looks at.
struct KeptChildren {
    /// `None`: it waits for the scripts, for a backup to be restored, or for lost data.
    set: Option<Child<StatefulSet>>,
    /// The Job that writes a backup into the claim of a new primary.
    restore: Option<Child<Job>>,
    cron_job: Option<Child<CronJob>>,
}

/// How late a backup may begin: the CronJob controller may just be starting, on another node.
const BACKUP_LATE: Duration = Duration::from_secs(60);

/// Why no backup begins any more, if so, and otherwise when that is to be decided again.
fn backups_ended(cron_job: &CronJob, now: SystemTime) -> Result<Next, Verdict> {
    let CronJobStatus { active, last_schedule_time: begun, last_successful_time: done, .. } =
        &cron_job.status;
    if !active.is_empty() {
        return Ok(Next::OnChange);
    }
    let name = &cron_job.metadata.name;
    let last = match &**done {
        "" => "no backup has succeeded".to_smolstr(),
        done => format_smolstr!("the last successful backup ended at {done}"),
    };
    if cron_job.spec.suspend == Some(true) {
        return Err(Verdict::no(
            "BackupsSuspended",
            format_smolstr!("the CronJob {name} is suspended; {last}"),
        ));
    }
    let parsed = [begun, done].into_iter().filter_map(|time| parse_time(time).ok()).max();
    // A new CronJob knows no earlier backup.
    let since = parsed.or(cron_job.metadata.creation_timestamp.map(SystemTime::from));
    let pause = Schedule::parse(&cron_job.spec.schedule).ok().and_then(|schedule| schedule.longest_pause());
    let (Some(since), Some(pause)) = (since, pause) else {
        return Ok(Next::OnChange);
    };
    match (since + 2 * pause + BACKUP_LATE).duration_since(now) {
        Ok(left) if !left.is_zero() => Ok(Next::After(left)),
        _ => Err(Verdict::no(
            "BackupsOverdue",
            format_smolstr!(
                "no backup began for twice the longest pause of the schedule {}; {last}: see the Events of the CronJob {name}",
                cron_job.spec.schedule
            ),
        )),
    }
}

/// The condition `BackupSucceeded`, and when it is to be looked at again if nothing changes.
fn backup_succeeded(cron_job: &CronJob, now: SystemTime) -> (Verdict, Next) {
    match backups_ended(cron_job, now) {
        Ok(next) => (last_backup_succeeded(&cron_job.status), next),
        Err(ended) => (ended, Next::OnChange),
    }
}

/// That no backup will begin, because there is no day of the schedule.
fn backups_never_begin(database: &Database) -> Option<Verdict> {
    let schedule = &database.spec.backup.as_ref()?.schedule;
    let message = || format_smolstr!("no day fits spec.backup.schedule {schedule}: no backup will begin");
    // The API server accepts `0 0 31 2 *`, and the CronJob controller reports nothing.
    let never_comes = Schedule::parse(schedule).is_ok_and(|schedule| schedule.longest_pause().is_none());
    never_comes.then(|| Verdict::yes("InvalidSpec", message()))
}

/// Whether the last backup succeeded, by the report of the CronJob controller.
fn last_backup_succeeded(status: &CronJobStatus) -> Verdict {
    let CronJobStatus { active, last_schedule_time: begun, last_successful_time: done, .. } = status;
    if !done.is_empty() && done >= begun {
        return Verdict::yes("BackupSucceeded", format_smolstr!("the last backup succeeded at {done}"));
    }
    if begun.is_empty() {
        return Verdict::unknown("NoBackupYet", "the schedule has not begun yet");
    }
    if !active.is_empty() {
        return Verdict::unknown("BackupRunning", format_smolstr!("a backup runs since {begun}"));
    }
    let last = if done.is_empty() { "none has succeeded" } else { "an earlier one succeeded" };
    Verdict::no(
        "BackupFailed",
        format_smolstr!("the backup of {begun} failed; {last}: see the log of its Job"),
    )
}

impl Databases {
    /// The version to run, and why it is not the spec's, if so: the data of one major version cannot be read by another.
    async fn version(&self, database: &Database) -> Result<(SmolStr, Option<Verdict>), Error> {
        let (wanted, known) = (&database.spec.version, &*database.status.version);
        let live = self.live_set(database).await?;
        let image = live.as_deref().and_then(version_of).unwrap_or_default();
        let instances = self.ready_instances(database);
        let of_data = instances.iter().find_map(|instance| version_of_image(instance.image()));
        // What accepts connections runs on the data. Otherwise, anybody may have set the image or the status: two of the three must agree.
        let is_likely = |image: &&str| [wanted, known].into_iter().any(|other| major(other) == major(image));
        let of_data = of_data.or_else(|| Some(image).filter(is_likely)).unwrap_or(known);
        if of_data.is_empty() || major(of_data) == major(wanted) {
            return Ok((wanted.into(), None));
        }
        // The runtime may report another tag of the same image.
        let is_same = |version: &&str| major(version) == major(of_data);
        let running = [image, known].into_iter().find(is_same).unwrap_or(of_data);
        let message = format_smolstr!(
            "version {running} runs, and {wanted} cannot read its data: set spec.version back to {running}. For {wanted}, \
             make a backup, and create another Database with spec.restoreFrom: see \"A new major version\" in docs/database.md"
        );
        Ok((running.into(), Some(Verdict::yes("UnsupportedVersion", message))))
    }

    /// The StatefulSet, if there is one.
    async fn live_set(&self, database: &Database) -> Result<Option<Arc<StatefulSet>>, Error> {
        self.whole(self.sets.find(&database.key())).await
    }

    /// An object in a Store. Reads it if it is so large that the Store has its metadata alone.
    async fn whole<K: Resource>(&self, found: Option<Found<K>>) -> Result<Option<Arc<K>>, Error> {
        match found {
            None => Ok(None),
            Some(Found::Readable(object)) => Ok(Some(object)),
            Some(Found::Partial(partial)) => match self.cluster.get_live(&partial.metadata.key()).await {
                Err(error) if error.is_not_found() => Ok(None),
                read => read.map(Some),
            },
        }
    }

    fn children(&self, database: &Database, version: &str, had_data: bool) -> DatabaseChildren {
        let DatabaseFlags { database_image, database_pod_cidrs } = &self.flags;
        let mut children = desired(database, &format!("{database_image}:{version}"), database_pod_cidrs);
        if had_data {
            children.scripts.data.extend([scripts::had_data()]);
        }
        children
    }

    /// The claims with the data of the instances.
    fn instance_claims(&self, database: &Database) -> impl Iterator<Item = Arc<Claim>> {
        let claims = self.claims.get(&database.key()).into_iter();
        claims.filter(|claim| is_of_instance(database, &claim.metadata))
    }

    /// Keeps all children. `is_lost`: the primary must not begin with an empty claim.
    async fn keep(
        &self,
        database: &Reconcile<Database>,
        children: &DatabaseChildren,
        is_lost: bool,
    ) -> KeptChildren {
        let name = &database.metadata.name;
        let replication = format!("{name}-replication");
        // In the order in which the Event names them.
        let primary = database.keep(&self.services, &children.primary);
        let instances = database.keep(&self.services, &children.instances);
        let scripts = database.keep(&self.config_maps, &children.scripts);
        let (.., kept, ()) = tokio::join!(
            primary,
            instances,
            database.keep(&self.budgets, &children.budget),
            self.keep_secret(database, name, "app"),
            self.keep_secret(database, &replication, "replication"),
            self.keep_pods(database, children, scripts, is_lost),
            self.keep_claims(database),
        );
        kept
    }

    /// Keeps what makes Pods. New Pods wait for the scripts: they would run another owner's scripts, with
    /// the passwords at hand.
    async fn keep_pods(
        &self,
        database: &Reconcile<Database>,
        children: &DatabaseChildren,
        scripts: impl Future<Output = Child<ConfigMap>>,
        is_lost: bool,
    ) -> KeptChildren {
        let waits = matches!(scripts.await, Child::NotOurs(_) | Child::Failed { live: None, .. });
        let is_new = |backup: &&CronJob| self.cron_jobs.find(&backup.key()).is_none();
        let backup = children.backup.as_ref().filter(|backup| !(waits && is_new(backup)));
        let ((restore, set), cron_job) = tokio::join!(
            self.keep_set(database, children, is_lost || waits),
            self.keep_backup(database, backup),
        );
        KeptChildren { set, restore, cron_job }
    }

    /// Makes the claims as large as the Database wants them.
    async fn keep_claims(&self, database: &Reconcile<Database>) {
        let backups = format_smolstr!("{}-backups", database.metadata.name);
        for claim in self.claims.get(&database.key()) {
            if !is_of_instance(database, &claim.metadata) && claim.metadata.name != backups {
                continue;
            }
            let mut changes = changes_of_owner(database, &claim.metadata, DatabaseDeletionPolicy::Retain);
            if changes.is_empty() {
                // Alone: if it is refused, that keeps no owner.
                changes.extend(growth(database, &claim));
            }
            database.patch_once(claim, changes).await;
        }
    }

    /// Creates a claim, if there is none.
    async fn keep_claim(&self, database: &Reconcile<Database>, name: &str, labels: Labels) {
        let key = Key { name: name.into(), ..database.key() };
        let claims = self.claims.get(&database.key());
        let seen = claims.iter().find(|claim| claim.metadata.name == key.name);
        let seen = seen.map(|claim| Arc::new(Meta::from(claim.metadata.clone())));
        database.keep_once(seen, &key, || claim(database, name, labels)).await;
    }

    /// Keeps the CronJob of the backups, and their claim, if there are to be backups; otherwise deletes the CronJob.
    async fn keep_backup(
        &self,
        database: &Reconcile<Database>,
        desired: Option<&CronJob>,
    ) -> Option<Child<CronJob>> {
        let Some(desired) = desired else {
            let key = Key { name: format_smolstr!("{}-backup", database.metadata.name), ..database.key() };
            database.discard(&self.cron_jobs, &key).await;
            return None;
        };
        let name = format!("{}-backups", database.metadata.name);
        let ((), cron_job) = tokio::join!(
            self.keep_claim(database, &name, backup_labels(database)),
            database.keep(&self.cron_jobs, desired),
        );
        Some(cron_job)
    }

    /// Keeps the StatefulSet. Before there is one, keeps the Job that restores a backup, if one is to be restored. `waits`: does not create
    /// a new one.
    async fn keep_set(
        &self,
        database: &Reconcile<Database>,
        children: &DatabaseChildren,
        waits: bool,
    ) -> (Option<Child<Job>>, Option<Child<StatefulSet>>) {
        let is_new = self.sets.find(&database.key()).is_none();
        if is_new && waits {
            return (None, None);
        }
        let restore = match &children.restore {
            Some(job) if is_new && database.status.primary_claim.is_empty() => {
                Some(self.keep_restore(database, job).await)
            }
            Some(_) | None => None,
        };
        if let Some(job) = &restore
            && !job.live().is_some_and(Job::is_complete)
        {
            return (restore, None);
        }
        (restore, Some(database.keep(&self.sets, &children.set).await))
    }

    /// Keeps the Job that restores a backup. It needs the claim of the primary, which the StatefulSet controller would create later.
    async fn keep_restore(&self, database: &Reconcile<Database>, job: &Job) -> Child<Job> {
        let claim = primary_claim(database).name;
        let kept = tokio::join!(
            self.keep_claim(database, &claim, labels(database)),
            database.keep(&self.jobs, job),
        );
        kept.1
    }

    /// Creates a Secret, if there is none.
    async fn keep_secret(&self, database: &Reconcile<Database>, name: &str, role: &str) {
        let key = Key { name: name.into(), ..database.key() };
        let seen = self.secrets.get(&key);
        let kept = database.keep_once(seen, &key, || secret(database, name, role)).await;
        // One of a user has not our labels, and stays as it is.
        if let Some(live) = kept.kept().filter(|live| has_labels(database, &live.metadata)) {
            let changes = changes_of_owner(database, &live.metadata, DatabaseDeletionPolicy::Retain);
            database.patch_once(Arc::clone(live), changes).await;
        }
    }

    /// The Secret of `spec.tls` does not exist. The kubelet then waits for it, and says so in no status of a Pod.
    async fn missing_certificate(&self, database: &Database) -> Option<Trouble> {
        let name: SmolStr = (&database.spec.tls.as_ref()?.secret_name).into();
        let found =
            self.cluster.get_live::<Meta<Secret>>(&Key { name: name.clone(), ..database.key() }).await;
        let message = format!("there is no Secret {name}: create it with tls.crt, tls.key and ca.crt");
        found.is_err_and(|error| error.is_not_found()).then(|| Trouble::new("SecretNotFound", message))
    }

    /// The metadata of the primary's claim, if there is one.
    async fn primary_claim(&self, database: &Database) -> Result<Option<ObjectMeta>, Error> {
        let key = primary_claim(database);
        if let Some(claim) = self.claims.get(&database.key()).iter().find(|claim| claim.key() == key) {
            // A claim whose volume was deleted is lost.
            return Ok((claim.status.phase != "Lost").then(|| claim.metadata.clone()));
        }
        // One of a user may have no label of ours.
        match self.cluster.get_live::<Meta<PersistentVolumeClaim>>(&key).await {
            Ok(claim) => Ok(Some(claim.metadata.clone())),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The metadata of the claim that this Pod of the primary uses.
    async fn claim_of(
        &self,
        database: &Database,
        primary: Option<Arc<Instance>>,
    ) -> Result<Option<ObjectMeta>, Error> {
        let Some(pod) = primary else { return Ok(None) };
        let is_known = !database.status.primary_claim.is_empty();
        // Another claim that is newer than this Pod belongs to the next Pod, and is empty.
        let is_its =
            |claim: &ObjectMeta| !is_known || claim.creation_timestamp <= pod.metadata.creation_timestamp;
        Ok(self.primary_claim(database).await?.filter(is_its))
    }

    /// Why the primary must not begin with an empty claim, if so: another claim had its data, or only replicas have data.
    async fn lost(&self, database: &Database) -> Result<Option<Verdict>, Error> {
        let (key, known) = (primary_claim(database), &database.status.primary_claim);
        let had_data = if known.is_empty() {
            self.sets.find(&database.key()).is_none()
                && self.instance_claims(database).any(|claim| claim.key() != key)
        } else {
            self.primary(database).is_none()
        };
        if !had_data {
            return Ok(None);
        }
        if self
            .primary_claim(database)
            .await?
            .is_some_and(|claim| known.is_empty() || claim.uid.to_smolstr() == *known)
        {
            return Ok(None);
        }
        let way = if known.is_empty() {
            "create it empty to begin anew"
        } else {
            "delete this Database and create it again to begin anew"
        };
        let message = format_smolstr!(
            "the claim {} with the data of the primary is gone: bring it back, make a replica the primary, or {way}: see \
             \"Lost data\" in docs/database.md",
            key.name
        );
        Ok(Some(Verdict::yes("DataLost", message)))
    }

    /// The Pods that accept connections, the primary first. Those of an earlier Database may still run.
    fn ready_instances(&self, database: &Database) -> Vec<Arc<Instance>> {
        let set = self.sets.find(&database.key());
        let Some(set) = set.filter(|set| set.metadata().is_controlled_by(&database.metadata)) else {
            return Vec::new();
        };
        let pods = (0..SIZE_MAX).filter_map(|ordinal| self.pods.get(&instance_key(database, ordinal)));
        pods.filter(|pod| pod.is_ready() && pod.metadata.is_controlled_by(set.metadata())).collect()
    }

    /// The Pod of the primary, if it accepts connections.
    fn primary(&self, database: &Database) -> Option<Arc<Instance>> {
        let (instances, key) = (self.ready_instances(database), primary_key(database));
        instances.into_iter().next().filter(|pod| pod.key() == key)
    }

    /// The way out for an instance that is not ready and has an earlier template. The StatefulSet controller replaces the primary last, and
    /// first waits for the replicas, which wait for the primary. With the feature `MaxUnavailableStatefulSet`, it replaces no instance while
    /// one is not ready; with the strategy `OnDelete`, none at all.
    fn outdated(&self, database: &Database, set: &StatefulSet) -> Option<SmolStr> {
        let is_outdated = |pod: &Arc<Instance>| {
            let revision = pod.metadata.labels.get("controller-revision-hash");
            revision.is_some_and(|revision| revision != set.status.update_revision)
                && !pod.is_ready()
                && !pod.metadata.is_terminating()
        };
        let mut instances = (0..database.spec.size).map(|ordinal| instance_key(database, ordinal));
        let pod = instances.find_map(|key| self.pods.get(&key).filter(is_outdated))?;
        let name = &pod.metadata.name;
        Some(format_smolstr!("{name} keeps its earlier template until kubectl delete pod {name}"))
    }

    /// Measures the last successful backup, if there are to be backups.
    fn measure(&self, database: &Database, status: &DatabaseStatus) {
        let ended = parse_time(&status.last_backup).ok();
        let ended = ended.and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok());
        let ended = ended.and_then(|time| i64::try_from(time.as_secs()).ok());
        let bytes = Some(status.last_backup_bytes).filter(|bytes| *bytes > 0);
        for (family, value) in [(&self.last_backups, ended), (&self.backup_sizes, bytes)] {
            match value.filter(|_| database.spec.backup.is_some()) {
                Some(value) => _ = family.get_or_create(&labels_of(database)).set(value),
                None => _ = family.remove(&labels_of(database)),
            }
        }
    }

    /// The bytes of the latest dump of which a Pod tells.
    fn backup_bytes(&self, database: &Database) -> Option<i64> {
        let pods = self.backups.get(&database.key());
        let (_, bytes) = pods.iter().filter_map(|pod| pod.dump()).max()?;
        Some(bytes)
    }

    /// The condition `Available`.
    fn available(&self, database: &Database) -> Verdict {
        let name = &database.metadata.name;
        match self.primary(database) {
            Some(_) => Verdict::yes("PrimaryReady", format_smolstr!("{name}-0 accepts connections")),
            None => Verdict::no("PrimaryNotReady", format_smolstr!("{name}-0 does not accept connections")),
        }
    }

    /// Why the Pods do not run for which the Database waits, if it waits for any, and when to look again.
    async fn trouble(
        &self,
        database: &Reconcile<Database>,
        children: &DatabaseChildren,
        kept: &KeptChildren,
    ) -> (Option<Trouble>, Next) {
        let (size, primary) = (database.spec.size, primary_key(database).name);
        let waiting = match (&kept.set, &kept.restore) {
            (Some(Child::Kept(live)), _) if !is_complete(live, size) => Some(PodsOf {
                generation: live.metadata.generation,
                // A live selector that lacks a label of ours also selects Pods of other writers.
                selector: children.set.spec.selector.to_string(),
                // All count: each instance has its own data, so no other one takes its place.
                containers: &[],
                first: Some(&primary),
                unseen: missing_pods(live, size).or_else(|| {
                    let way = self.outdated(database, live)?;
                    Some(Trouble::new(OUTDATED, way.to_string()).reported_last())
                }),
            }),
            (None, Some(Child::Kept(job))) => Some(pods_of(job)),
            _ => None,
        };
        let is_waiting = waiting.is_some();
        match database.look(waiting).await {
            (None, next) if is_waiting => (self.missing_certificate(database).await, next),
            looked => looked,
        }
    }

    /// The conditions of a Database whose children are all as desired. Without a StatefulSet, a backup is being restored.
    fn state(
        &self,
        database: &Database,
        set: Option<&Child<StatefulSet>>,
        pods: Option<Trouble>,
    ) -> ObservedState {
        let size = database.spec.size;
        let live = set.and_then(Child::live);
        let ready = live.map_or(0, |set| set.status.ready_replicas);
        let (reason, count) = match (set, &database.spec.restore_from) {
            (None, Some(RestoreSpec { database, .. })) => {
                ("Restoring", format_smolstr!("a backup in the claim {database}-backups is being restored"))
            }
            _ => ("RolloutInProgress", format_smolstr!("{ready} of {size} instances are ready")),
        };
        let is_complete = live.is_some_and(|set| is_complete(set, size));
        let (ready, progressing) = match pods {
            _ if is_complete => (
                Verdict::yes("AllInstancesReady", count),
                Verdict::yes("RolloutComplete", "all instances run the latest spec"),
            ),
            Some(Trouble { reason, message, .. }) => {
                let way = live.and_then(|set| self.outdated(database, set)).filter(|_| reason != OUTDATED);
                let way = way.map(|way| format_smolstr!("; {way}")).unwrap_or_default();
                let message = format_smolstr!("{count}{way}: {message}");
                (Verdict::no(reason.clone(), message.clone()), Verdict::no(reason, message))
            }
            None => (Verdict::no(reason, count.clone()), Verdict::yes(reason, count)),
        };
        ObservedState {
            ready,
            others: vec![("Available", self.available(database)), ("Progressing", progressing)],
            stalled: None,
            next: Next::OnChange,
        }
    }
}

/// The trouble if the StatefulSet controller has not created all Pods: a ResourceQuota or an admission policy may refuse them, and only an
/// Event of the StatefulSet says so.
fn missing_pods(set: &StatefulSet, size: i32) -> Option<Trouble> {
    let (name, StatefulSetStatus { observed_generation, replicas, .. }) = (&set.metadata.name, &set.status);
    let is_so = *observed_generation >= set.metadata.generation && *replicas < size;
    let message = || {
        format!(
            "only {replicas} of {size} Pods exist; the Events of kubectl describe statefulset {name} say why"
        )
    };
    is_so.then(|| Trouble::new("PodsNotCreated", message()))
}

/// Whether all instances have the latest template and are ready, and there are no others.
fn is_complete(set: &StatefulSet, size: i32) -> bool {
    let StatefulSetStatus { observed_generation, replicas, ready_replicas, updated_replicas, .. } =
        &set.status;
    *observed_generation >= set.metadata.generation
        && [replicas, ready_replicas, updated_replicas].into_iter().all(|count| *count == size)
}

impl Operator for Databases {
    type Kind = Database;
    const FINALIZER: Option<&'static str> = Some("app.example.com/database");

    fn needs_finalizer(&self, database: &Database) -> bool {
        database.spec.backup.is_some()
            || database.spec.deletion_policy == DatabaseDeletionPolicy::Delete
            || self.would_lose_claims(database)
    }

    async fn reconcile(&self, database: Reconcile<Database>) -> Result<Next, ReconcileError> {
        let lost = self.lost(&database).await?;
        let (version, unsupported) = self.version(&database).await?;
        let primary = self.primary(&database);
        let had_data = primary.is_some() && database.status.primary_claim.is_empty();
        let children = self.children(&database, &version, had_data);
        let kept = self.keep(&database, &children, lost.is_some()).await;
        database.check()?;
        let (trouble, next) = self.trouble(&database, &children, &kept).await;
        let mut state = ObservedState { next, ..self.state(&database, kept.set.as_ref(), trouble) };
        let never_begin = backups_never_begin(&database);
        if let Some(cron_job) = kept.cron_job.as_ref().and_then(Child::live) {
            let (mut succeeded, recheck) = backup_succeeded(cron_job, self.cluster.now());
            if let Some(Verdict { reason, message, .. }) = &never_begin {
                succeeded = Verdict::no(reason.clone(), message.clone());
            }
            state.others.push(("BackupSucceeded", succeeded));
            state.next = next.or_sooner(recheck);
        }
        if let Some(stalled) = lost.or(unsupported).or(never_begin) {
            state.ready = Verdict::no(stalled.reason.clone(), stalled.message.clone());
            state.stalled = Some(stalled);
        }
        let claim = self.claim_of(&database, primary).await?;
        let bytes = self.backup_bytes(&database).unwrap_or(database.status.last_backup_bytes);
        let status = DatabaseStatus { last_backup_bytes: bytes, ..status(&database, &kept, version, claim) };
        self.measure(&database, &status);
        database.finish(status, state).await
    }

    async fn deleting(&self, database: Reconcile<Database>) -> Result<Cleanup, ReconcileError> {
        self.end(&database).await
    }

    async fn deleted(&self, last: Arc<Database>) -> Result<(), ReconcileError> {
        self.last_backups.remove(&labels_of(&last));
        self.backup_sizes.remove(&labels_of(&last));
        Ok(())
    }
}

/// The labels of the metrics of one Database.
fn labels_of(database: &Database) -> DatabaseLabels {
    let ObjectMeta { namespace, name, .. } = &database.metadata;
    [("namespace", namespace.as_deref().unwrap_or_default().to_owned()), ("name", name.to_string())]
}

/// The status, without its conditions.
fn status(
    database: &Database,
    kept: &KeptChildren,
    version: SmolStr,
    claim: Option<ObjectMeta>,
) -> DatabaseStatus {
    let known = &database.status;
    let set = kept.set.as_ref();
    let is_complete = set.and_then(Child::kept).is_some_and(|set| is_complete(set, database.spec.size));
    // A new CronJob knows no earlier backup.
    let cron_job = kept.cron_job.as_ref().and_then(Child::live);
    let last_backup = cron_job.map(|cron_job| &cron_job.status.last_successful_time);
    DatabaseStatus {
        primary: primary_key(database).name,
        primary_claim: claim.map_or_else(|| known.primary_claim.clone(), |claim| claim.uid.to_smolstr()),
        ready_instances: set.and_then(Child::live).map_or(0, |set| set.status.ready_replicas),
        version: match is_complete {
            true => version,
            // What another writer has set, the schema would take for the version that runs.
            false if major(&known.version) != major(&version) => SmolStr::default(),
            false => known.version.clone(),
        },
        last_backup: last_backup.filter(|time| !time.is_empty()).unwrap_or(&known.last_backup).clone(),
        ..DatabaseStatus::default()
    }
}

/// The Pods of a Job.
fn pods_of(job: &Job) -> PodsOf<'_> {
    PodsOf {
        generation: job.metadata.generation,
        selector: job.metadata.labels.as_selector().to_owned(),
        containers: &job.spec.template.spec.containers,
        first: None,
        unseen: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_of_an_image_is_a_tag_of_numbers() {
        for (image, version) in [
            ("postgres:15", Some("15")),
            ("registry.example.com:5000/library/postgres:15.4", Some("15.4")),
            ("postgres:15.4@sha256:00", Some("15.4")),
            ("postgres@sha256:00", None),
            ("registry.example.com:5000/postgres", None),
            ("postgres:latest", None),
            ("postgres", None),
        ] {
            assert_eq!(version_of_image(image), version, "{image}");
        }
    }

    #[test]
    fn the_addresses_of_pods_are_cidrs() {
        for text in ["10.0.0.0/8", "10.0.0.1/32", "0.0.0.0/0", "fc00::/7", "::1/128"] {
            assert_eq!(cidr(text).as_deref(), Ok(text));
        }
        for text in ["10.0.0.0", "10.0.0.0/33", "fc00::/129", "pods/8", "10.0.0.0/-1", ""] {
            assert!(cidr(text).is_err(), "{text}");
        }
    }
}
