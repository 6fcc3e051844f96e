//! Leader election: of several processes, one writes. The others keep their Stores up to date, and wait for its Lease.
//!
//! ```text
//! apiVersion: coordination.k8s.io/v1
//! kind: Lease
//! spec:
//!   holderIdentity: web-operator-6d8f-x2x9k_5f0c…   # this process may write
//!   leaseDurationSeconds: 15                        # others wait so long after a change of the Lease that they have seen
//!   renewTime: "2026-11-27T10:00:02.000000Z"        # changes every 2 s; no process compares it with its own clock
//! ```
//!
//! With shards, a process holds two Leases while it writes. Its own Lease, with the name of the shard, keeps it apart from the other
//! processes of the shard. The other Lease has the name that a process without shards uses. All processes with the same number of shards
//! hold it together; it keeps them apart from processes with another number of shards:
//!
//! ```text
//! web-operator.example.com-0-of-3    holderIdentity: web-operator-6d8f-x2x9k_5f0c…
//! web-operator.example.com           holderIdentity: 3-shards
//! ```
//!
//! The record has client-go's format, so that an operator in Go and one of this library exclude each other. See
//! <https://kubernetes.io/docs/concepts/architecture/leases/#leader-election>.
//!
//! - Each write of the Lease names the version that it replaces. If two processes want it, the API server refuses one.
//! - A holder writes until [`LeaderElection::renew_deadline`] after it *sent* the last renewal that succeeded. Others wait for the longer
//!   [`LeaderElection::lease_duration`] after they *saw* it. So it has stopped before they begin, if all clocks run at the same rate.
//! - A request that was sent before the deadline may still reach the API server later, one that was just being sent when the process was
//!   frozen is sent when it wakes up, and the clock of a suspended machine may stand still: a Lease does not fence off its former holder.
//! - A process that lost the Lease becomes a standby again, and does not exit.
//! - A holder that ends gives the Lease back. A standby watches it, and takes over at once.
//! - A Lease that several processes hold together ends only by its time, because one of them does not know about the others. Each writes
//!   until the deadline of its own last renewal, so what holds for one holder holds for all of them. Nobody shortens the duration of
//!   another one.

#[cfg(all(test, feature = "testing"))]
mod tests;

use std::{
    convert::Infallible,
    sync::Arc,
    time::{Duration, SystemTime},
};

use prometheus_client::metrics::gauge::Gauge;
use serde_json::json;
use smol_str::SmolStr;
use tokio::{
    sync::{Mutex, Notify, watch::Sender},
    time::{Instant, sleep, sleep_until, timeout, timeout_at},
};
use tracing::{debug, info, warn};

use crate::{
    client::{Error, Leadership, Part, Patch},
    cluster::{Cluster, Watch},
    rbac::{self, Reach, Verb},
    resource::{
        Key, ObjectMeta, Scope,
        kinds::{Lease, LeaseSpec},
    },
    store::{Kept, Listening},
};

/// A pause is up to so much longer than [`LeaderElection::retry_period`], so that standbys do not all ask at the same time. As client-go's.
const JITTER: f64 = 1.2;
/// How often to try to write at once, if other processes that share the Lease have written it meanwhile.
const ATTEMPTS_MAX: usize = 5;
/// How long to try to give the Lease back. The kubelet kills a Pod 30 s after SIGTERM, of which the reconciles and Events take 27.
const RELEASE_LIMIT: Duration = Duration::from_secs(2);

/// How leaders are elected. The default times are the same as in controller-runtime and other users of client-go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaderElection {
    /// The namespace of the Leases. `None`: the service account's or the context's.
    pub namespace: Option<String>,
    /// The name of the Lease. `None`: the controller's, `web-operator.example.com` for `example.com/web-operator`. Processes that watch
    /// other namespaces need another name, because they must not wait for each other.
    pub name: Option<String>,
    /// How long others wait after the last renewal. In whole seconds.
    pub lease_duration: Duration,
    /// How long a holder may write after its last renewal. Shorter than `lease_duration`.
    pub renew_deadline: Duration,
    /// From one attempt to renew or to take the Lease to the next.
    pub retry_period: Duration,
}

impl Default for LeaderElection {
    fn default() -> LeaderElection {
        LeaderElection {
            namespace: None,
            name: None,
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
        }
    }
}

impl LeaderElection {
    /// What is wrong with the times, if anything.
    pub(crate) fn check(&self) -> Result<(), String> {
        let LeaderElection { lease_duration, renew_deadline, retry_period, .. } = self;
        if lease_duration.subsec_nanos() > 0 || !(1..=i32::MAX as u64).contains(&lease_duration.as_secs()) {
            return Err(format!("a lease duration of {lease_duration:?} is not a number of whole seconds"));
        }
        if renew_deadline >= lease_duration {
            return Err(format!(
                "a renew deadline of {renew_deadline:?} is not shorter than the lease duration, {lease_duration:?}: others could take the Lease while its holder still writes"
            ));
        }
        if retry_period.is_zero()
            || retry_period >= renew_deadline
            || retry_period.mul_f64(JITTER) >= *renew_deadline
        {
            return Err(format!(
                "a retry period of {retry_period:?} is not between zero and the renew deadline, {renew_deadline:?}, divided by {JITTER}"
            ));
        }
        Ok(())
    }
}

/// Who holds a Lease.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Holder {
    /// One process.
    Process,
    /// All processes of so many shards together.
    Shards(u32),
}

/// Competes for one Lease.
pub(crate) struct Elector {
    cluster: Cluster,
    leases: Watch<Lease>,
    _listening: Listening,
    changed: Arc<Notify>,
    key: Key,
    holder: Holder,
    identity: SmolStr,
    settings: LeaderElection,
    /// Until when this process may write.
    deadline: Sender<Option<Instant>>,
    /// Held while a write of the Lease is under way.
    writing: Arc<Mutex<()>>,
    /// The Lease when this process last looked. Decisions and writes are about this version.
    lease: Option<Arc<Lease>>,
    /// The last record, and when it was first seen.
    seen: Option<(LeaseSpec, Instant)>,
    /// Since when there is no Lease, if one was seen.
    gone_since: Option<Instant>,
    random: fastrand::Rng,
    /// 1 while this process holds the Lease.
    status: Gauge,
}

/// Competes for the Lease of a controller, or for the two of a shard. `process` begins the identity, for people: the name of the Pod.
pub(crate) fn electors(
    cluster: &Cluster,
    settings: &LeaderElection,
    controller: &str,
    process: &str,
) -> (Vec<Elector>, Leadership) {
    let name = settings.name.clone().unwrap_or_else(|| match controller.split_once('/') {
        Some((domain, name)) => format!("{name}.{domain}"),
        None => controller.to_owned(),
    });
    let shard = cluster.shard;
    if shard.is_whole() {
        let (elector, leadership) = Elector::new(cluster, settings, &name, Holder::Process, process);
        return (vec![elector], leadership);
    }
    let own = format!("{name}-{}-of-{}", shard.index(), shard.count());
    let (own, of_own) = Elector::new(cluster, settings, &own, Holder::Process, process);
    let (common, of_common) = Elector::new(cluster, settings, &name, Holder::Shards(shard.count()), process);
    (vec![own, common], of_own.and(of_common))
}

impl Elector {
    /// Watches a Lease.
    fn new(
        cluster: &Cluster,
        settings: &LeaderElection,
        name: &str,
        holder: Holder,
        process: &str,
    ) -> (Elector, Leadership) {
        let namespace = settings.namespace.clone().unwrap_or_else(|| cluster.namespace().to_owned());
        let scope = Scope { namespace: Some(namespace.clone()), ..Scope::default() };
        let leases = cluster.watch_keeping([scope], &Kept::everything());
        let reach = settings.namespace.clone().map_or(Reach::OwnNamespace, Reach::Namespace);
        let verbs = [Verb::Get, Verb::List, Verb::Watch, Verb::Create, Verb::Patch];
        let reason = "To elect a leader. The API server cannot limit `create` to one name.";
        cluster.declare(rbac::of::<Lease>(reach, &verbs, reason));
        let (changed, (deadline, leadership)) = (Arc::new(Notify::new()), Leadership::channel());
        let notify = Arc::clone(&changed);
        let mut random = fastrand::Rng::new();
        let status = cluster.metrics().leader(name);
        let identity = match holder {
            Holder::Process => format!("{process}_{:032x}", random.u128(..)),
            Holder::Shards(count) => format!("{count}-shards"),
        };
        let elector = Elector {
            status,
            cluster: cluster.clone(),
            _listening: leases.listen(move |_, _| notify.notify_one()),
            leases,
            changed,
            key: Key::namespaced(&namespace, name),
            holder,
            identity: identity.into(),
            settings: settings.clone(),
            deadline,
            writing: Arc::default(),
            lease: None,
            seen: None,
            gone_since: None,
            random,
        };
        (elector, leadership)
    }

    /// Competes for the Lease until `work` ends, and gives it back, unless other processes also hold it.
    pub(crate) async fn during(mut self, work: impl Future<Output = ()>) {
        let writing = Arc::clone(&self.writing);
        let mut competing = Box::pin(self.compete());
        tokio::select! {
            () = work => {}
            never = &mut competing => match never {},
        }
        let end = Instant::now() + RELEASE_LIMIT;
        // A write that is under way may still be carried out. Its answer says whether the Lease is ours.
        tokio::select! {
            biased;
            _ = writing.lock() => {}
            _ = timeout_at(end, &mut competing) => {}
        }
        drop(competing);
        self.deadline.send_replace(None);
        self.status.set(0);
        self.look();
        if self.holder == Holder::Process && self.is_ours() {
            match timeout_at(end, self.release()).await {
                Ok(Ok(())) => info!(lease = %self.key, "gave the Lease back"),
                Ok(Err(error)) => warn!(lease = %self.key, %error, "cannot give the Lease back; it expires"),
                Err(_) => warn!(lease = %self.key, "cannot give the Lease back; it expires"),
            }
        }
    }

    async fn compete(&mut self) -> Infallible {
        loop {
            self.wait_and_take().await;
            info!(lease = %self.key, identity = %self.identity, "leads: holds the Lease");
            self.status.set(1);
            let cause = self.keep().await;
            self.deadline.send_replace(None);
            self.status.set(0);
            warn!(lease = %self.key, cause, "leads no longer; waits for the Lease again");
        }
    }

    /// Returns when this process holds the Lease.
    async fn wait_and_take(&mut self) {
        let mut problem = String::new();
        let mut holder = SmolStr::default();
        loop {
            self.look();
            match self.others_until() {
                Some(end) => {
                    if let Some((spec, _)) = &self.seen
                        && holder != spec.holder_identity
                    {
                        holder = spec.holder_identity.clone();
                        info!(lease = %self.key, %holder, "waits: another process holds the Lease");
                    }
                    tokio::select! {
                        () = self.changed.notified() => {}
                        () = sleep_until(end) => {}
                    }
                }
                // A version that is not in the Store yet would only be refused.
                None if self.seen.is_none() && !self.leases.is_synced() && problem.is_empty() => {
                    let unsynced = sleep(self.settings.retry_period);
                    tokio::select! {
                        () = self.changed.notified() => {}
                        () = unsynced => problem = "the watch of Leases has not synced".to_owned(),
                    }
                }
                None => match self.hold().await {
                    Ok(true) => return,
                    // Another one was faster: its record is in the Store now.
                    Ok(false) => {}
                    Err(error) => {
                        self.log_problem("cannot take the Lease", &error, &mut problem);
                        sleep(self.settings.retry_period.mul_f64(1.0 + JITTER * self.random.f64())).await;
                    }
                },
            }
        }
    }

    /// Renews the Lease. Returns why this process holds it no longer.
    async fn keep(&mut self) -> String {
        let mut problem = String::new();
        loop {
            let end = *self.deadline.borrow();
            let attempt = async {
                let pause = sleep(self.settings.retry_period);
                tokio::select! {
                    () = pause => {}
                    // At once, if somebody else changes the record.
                    () = self.is_overwritten(), if problem.is_empty() => {}
                }
                self.hold().await
            };
            let Some(end) = end else { return "it was given back".to_owned() };
            match timeout_at(end, attempt).await {
                Ok(Ok(true)) => problem.clear(),
                Ok(Ok(false)) => {
                    let holder = self.seen.as_ref().map(|(spec, _)| spec.holder_identity.clone());
                    return format!("another process holds it: {}", holder.unwrap_or_default());
                }
                Ok(Err(error)) => self.log_problem("cannot renew the Lease", &error, &mut problem),
                Err(_) => {
                    let limit = self.settings.renew_deadline.as_secs_f64();
                    let cause = format!("it could not be renewed within {limit} s");
                    return if problem.is_empty() { cause } else { format!("{cause}: {problem}") };
                }
            }
        }
    }

    /// A warning, unless the last problem was the same.
    fn log_problem(&self, what: &str, error: &Error, last: &mut String) {
        let problem = error.to_string();
        match problem == *last {
            true => debug!(lease = %self.key, problem, "{what}"),
            false => warn!(lease = %self.key, problem, "{what}; trying again"),
        }
        *last = problem;
    }

    /// Waits until the Lease in the Store has another holder, or ends earlier than this process has written.
    async fn is_overwritten(&self) {
        let is_kept = |lease: &Arc<Lease>| {
            lease.spec.holder_identity == self.identity
                && lease.spec.lease_duration_seconds.is_some_and(|seconds| seconds >= self.seconds())
        };
        loop {
            self.changed.notified().await;
            if !self.leases.get(&self.key).as_ref().is_some_and(is_kept) {
                return;
            }
        }
    }

    /// Takes in the record in the Store.
    fn look(&mut self) {
        self.lease = self.leases.get(&self.key);
        let Some(lease) = &self.lease else {
            self.gone_since.get_or_insert_with(Instant::now);
            return;
        };
        self.gone_since = None;
        if self.seen.as_ref().is_none_or(|(seen, _)| *seen != lease.spec) {
            self.seen = Some((lease.spec.clone(), Instant::now()));
        }
    }

    fn is_ours(&self) -> bool {
        self.lease.as_ref().is_some_and(|lease| lease.spec.holder_identity == self.identity)
    }

    /// When the Lease of another process ends, as far as this one has seen. `None`: it is free, ours, or has ended.
    fn others_until(&self) -> Option<Instant> {
        let (spec, since) = self.seen.as_ref()?;
        if spec.holder_identity.is_empty() || spec.holder_identity == self.identity {
            return None;
        }
        let duration = spec.lease_duration_seconds.and_then(|secs| u64::try_from(secs).ok());
        let duration = duration.map_or(self.settings.lease_duration, Duration::from_secs);
        // No `Instant` is later than a time that is too far away: it is as good as never.
        let end = since.checked_add(duration).unwrap_or(*since + Duration::from_secs(u32::MAX.into()));
        // A Lease that was deleted still binds those who have seen it, because its holder may not know yet. A holder that is there renews
        // the Lease within `lease_duration`. So nobody waits longer, even if the deleted Lease has a duration of years.
        let end = self.gone_since.map_or(end, |gone| end.min(gone + self.settings.lease_duration));
        (Instant::now() < end).then_some(end)
    }

    /// Takes or renews the Lease. `false`: another process holds it.
    async fn hold(&mut self) -> Result<bool, Error> {
        let mut attempts = 0;
        loop {
            self.look();
            // Somebody may have given the Lease to another process by hand.
            if self.others_until().is_some() {
                return Ok(false);
            }
            let sent = Instant::now();
            // Half of the deadline, so that there is time for another attempt.
            let limit = self.settings.renew_deadline / 2;
            attempts += 1;
            let writing = Arc::clone(&self.writing);
            let writing = writing.lock().await;
            let written = timeout(limit, self.write()).await;
            drop(writing);
            let Ok(written) = written else {
                let problem = format!("no answer within {limit:?}");
                return Err(Error::new("renew", format!("leases/{}", self.key), problem));
            };
            match written {
                Ok(()) => {
                    self.look();
                    self.deadline.send_replace(Some(sent + self.settings.renew_deadline));
                    return Ok(true);
                }
                // The present record is in the Store now. If it is ours, another process holds the Lease with us, or a write of ours was carried
                // out whose answer was lost.
                Err(error) if is_outdated(&error) => {
                    self.look();
                    if self.others_until().is_none() && (!self.is_ours() || attempts == ATTEMPTS_MAX) {
                        return Err(error);
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn write(&self) -> Result<(), Error> {
        let now = self.now();
        let Some(lease) = &self.lease else {
            let spec = LeaseSpec {
                holder_identity: self.identity.clone(),
                lease_duration_seconds: Some(self.seconds()),
                acquire_time: now.clone(),
                renew_time: now,
                lease_transitions: Some(0),
                ..LeaseSpec::default()
            };
            let Key { namespace, name } = self.key.clone();
            let metadata = ObjectMeta { namespace, name, ..ObjectMeta::default() };
            let created = self.cluster.create(&Lease { metadata, spec }).await;
            if created.as_ref().is_err_and(Error::is_already_exists) {
                self.cluster.get_live::<Lease>(&self.key).await?;
            }
            return created.map(drop);
        };
        let mut spec = json!({
            "holderIdentity": self.identity, "leaseDurationSeconds": self.seconds(), "renewTime": now,
        });
        if lease.spec.holder_identity != self.identity {
            spec["acquireTime"] = spec["renewTime"].clone();
            spec["leaseTransitions"] = lease.spec.lease_transitions.unwrap_or(0).saturating_add(1).into();
        }
        self.replace(lease, spec).await
    }

    async fn release(&mut self) -> Result<(), Error> {
        let mut is_repeated = false;
        loop {
            self.look();
            let Some(lease) = self.lease.as_ref().filter(|_| self.is_ours()) else { return Ok(()) };
            // The API server refuses a duration of 0.
            let spec = json!({"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": self.now()});
            match self.replace(lease, spec).await {
                // A renewal was under way. The present version is in the Store now.
                Err(error) if error.is_conflict() && !is_repeated => is_repeated = true,
                answer => return answer,
            }
        }
    }

    /// Changes the record, if `lease` is still the present version. Otherwise the present one comes into the Store.
    async fn replace(&self, lease: &Lease, spec: serde_json::Value) -> Result<(), Error> {
        let version = &lease.metadata.resource_version;
        let patch = Patch::Merge(json!({"metadata": {"resourceVersion": version}, "spec": spec}));
        let answer = self.cluster.patch_part::<Lease>(&self.key, Part::Object, &patch).await;
        if answer.as_ref().is_err_and(Error::is_not_found) {
            self.cluster.forget::<Lease>(&lease.metadata);
        }
        answer.map(drop)
    }

    /// The duration to write.
    fn seconds(&self) -> i32 {
        let ours = self.settings.lease_duration.as_secs().try_into().unwrap_or(i32::MAX);
        match (self.holder, &self.lease) {
            // Another process may have written, relying on a longer one.
            (Holder::Shards(_), Some(lease)) if self.is_ours() => {
                ours.max(lease.spec.lease_duration_seconds.unwrap_or_default())
            }
            (Holder::Process | Holder::Shards(_), _) => ours,
        }
    }

    /// A `MicroTime`.
    fn now(&self) -> SmolStr {
        let now: SystemTime = self.cluster.now();
        humantime::format_rfc3339_micros(now).to_string().into()
    }
}

/// Whether the Lease is not as it was seen.
fn is_outdated(error: &Error) -> bool {
    error.is_conflict() || error.is_already_exists()
}
