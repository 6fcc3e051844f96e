//! One run: a new server, the operators as processes, the samples, and what a user does with them.
//!
//! Nothing here fails because the machine is slow. The operator has settled when nothing was written for [`Scorecard::settle`], or
//! for three times the longest pause so far. This time is counted in ticks, so a busy machine, which delays the ticks, has
//! more of it. A difference must last for [`Scorecard::patience`], in ticks, and through a poke, until it counts.

pub(super) mod webhooks;

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    env,
    fs::{self, File},
    io,
    path::Path,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use http::{Method, Request, header};
use http_body_util::{BodyExt, Full};
use listwatch_apiserver::{ApiServer, Options, RequestRecord, Resource, Rule, WriteRecord};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use self::webhooks::Webhooks;
use super::{
    journal::{self, Journal},
    process::{Process, Program},
    report::{Outcome, Verdict},
    settings::{CannotJudge, Scorecard},
    snapshot::{self, Mask, POKE, Snapshot},
};

/// How often the server is looked at.
pub(super) const TICK: Duration = Duration::from_millis(20);

/// After the runs without a fault, this share of [`Scorecard::settle`] is enough for an operator that sleeps.
const ASLEEP_SHARE: u32 = 3;

/// The longest fault. After more failures, clients wait for longer than anybody wants to.
const FAULT_TICKS_MAX: usize = 100;

/// Changes of one object by the operator without a pause, until it counts as a loop.
const LOOP_WRITES: usize = 100;

/// Changes of one object that are too many for an operator that has not settled in time.
const SLOW_LOOP_WRITES: usize = 5;

/// Writes until the operator has settled that are too many for any operator.
const WRITES_MAX: usize = 3000;

/// A start may take so many times the longest one without a fault.
const SLOWER_START: u32 = 5;

/// A process that does not sleep may take so many times as long: it waits for a CPU, or works.
const BUSY_START: u32 = 10;

/// Requests of one path that a client may send while they fail: 10 with pauses that begin with 5 ms and double.
const RETRIES_MAX: f64 = 15.0;

/// Those that it may send in each second as well, when its pauses no longer grow.
const RETRIES_PER_SEC_MAX: f64 = 2.0;

/// Answers that the operator may wait for until it writes: of a reconcile whose requests are sent one after the other. More are not waited for.
const REQUESTS_MAX: u32 = 30;

/// How often an operator that has ended is started again in a run.
const RESTARTS_MAX: usize = 3;

/// How often an object is created again whose webhook took too long: the machine may be busy, and `webhook-slow` judges that.
const LATE_CALLS_MAX: u32 = 5;

/// What the names of the directories of runs begin with.
const DIR_PREFIX: &str = "listwatch-scorecard-";

/// The file in such a directory that is locked while the run lasts.
const LOCK: &str = "lock";

/// The namespace of samples without one.
const NAMESPACE: &str = "default";

/// A namespace for copies of the samples. It sorts before the others.
pub(super) const SECOND: &str = "a-scorecard";

/// An object that the operator has created.
pub(super) struct Dependent {
    /// `statefulsets.apps`
    pub(super) resource: String,
    /// `default/web`
    pub(super) key: String,
    /// `StatefulSet`
    pub(super) kind: String,
    pub(super) object: Value,
}

/// The name of a [`Dependent`], which is the same in each run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ChildKey {
    /// `statefulsets.apps`
    pub(super) resource: String,
    /// `default/web`
    pub(super) key: String,
    /// `StatefulSet`
    pub(super) kind: String,
}

impl ChildKey {
    pub(super) fn of(child: &Dependent) -> ChildKey {
        ChildKey { resource: child.resource.clone(), key: child.key.clone(), kind: child.kind.clone() }
    }

    /// What the watches of its kind have in their targets.
    pub(super) fn watch_path(&self) -> String {
        format!("/{}?", self.resource.split('.').next().unwrap_or_default())
    }
}

/// What the runs without a fault took, in ticks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// The longest time from the start of a process until it read the kind of a sample.
    pub(super) start: u32,
    /// The longest pause between two writes.
    pub(super) pause: u32,
    /// The requests after an annotation that means nothing.
    pub(super) requests: u32,
}

pub(super) struct Lab<'a> {
    pub(super) server: Arc<ApiServer>,
    scorecard: &'a Scorecard,
    /// See [`remove_left_behind`].
    _lock: File,
    dir: TempDir,
    /// What [`Lab::start`] starts.
    pub(super) programs: Vec<Program>,
    /// At most one of each program.
    processes: Vec<Process>,
    starts: usize,
    /// How often [`Lab::delete_children`] has deleted children of the process.
    pub(super) deletions: usize,
    /// Why processes ended by themselves, and their panics.
    pub(super) incidents: Vec<String>,
    /// `None`: they are not judged, and the operator is asked not to serve them.
    webhooks: Option<Webhooks>,
    /// All that the operator may do. `None`: everything.
    pub(super) permissions: Option<Vec<Rule>>,
    /// What existed before the samples.
    before: HashSet<String>,
    /// The version before the samples.
    pub(super) version: u64,
    /// The writes since then of the run from which this one started.
    earlier: Vec<WriteRecord>,
    /// Objects and their fields that the operator writes for ever. Such writes do not count as work.
    pub(super) noise: BTreeSet<(String, String)>,
    /// How long a fault delays each answer, and so each pause.
    pub(super) delay: Duration,
    /// `None` in the runs without a fault.
    pub(super) pace: Option<Pace>,
    /// How long the process took until it read the kind of a sample, in ticks.
    pub(super) started_within: u32,
}

impl<'a> Lab<'a> {
    /// A server that records so many events of watches.
    async fn empty(scorecard: &'a Scorecard, events: usize) -> Result<Lab<'a>, CannotJudge> {
        let cannot = |what: &str, error: std::io::Error| CannotJudge(format!("{what}: {error}"));
        let options = Options { heartbeat: Duration::from_secs(3600), events, ..Options::default() };
        let server = ApiServer::start(options).await.map_err(|error| cannot("start a server", error))?;
        let dir = TempDir::with_prefix(DIR_PREFIX).map_err(|error| cannot("temporary directory", error))?;
        let lock = locked(dir.path()).map_err(|error| cannot("lock", error))?;
        let has_webhooks = !scorecard.webhooks.is_empty();
        let webhooks =
            has_webhooks.then(|| Webhooks::new(scorecard, dir.path().join("webhooks"))).transpose();
        let webhooks = webhooks.map_err(|error| cannot("certificate", error))?;
        Ok(Lab {
            server: Arc::new(server),
            scorecard,
            _lock: lock,
            dir,
            programs: vec![Program::Judged],
            processes: Vec::new(),
            starts: 0,
            deletions: 0,
            incidents: Vec::new(),
            webhooks,
            permissions: None,
            before: HashSet::new(),
            version: 0,
            earlier: Vec::new(),
            noise: BTreeSet::new(),
            delay: Duration::ZERO,
            pace: None,
            started_within: 0,
        })
    }

    /// A server with the CRDs. Its versions go on a little later in each run, so that an object that has them differs.
    pub(super) async fn new(scorecard: &'a Scorecard) -> Result<Lab<'a>, CannotJudge> {
        let lab = Lab::with_events(scorecard, 0).await?;
        for number in 0..fastrand::u8(1..20) {
            let mark = json!({"metadata": {"name": format!("scorecard-{number}")}});
            let (status, body) =
                lab.request(Method::POST, "/api/v1/namespaces/kube-public/configmaps", mark).await;
            debug_assert_eq!(status, 201, "{body}");
        }
        Ok(lab)
    }

    /// A server with the CRDs alone, which records so many events of watches.
    pub(super) async fn with_events(scorecard: &'a Scorecard, events: usize) -> Result<Lab<'a>, CannotJudge> {
        let lab = Lab::empty(scorecard, events).await?;
        for crd in &scorecard.crds {
            lab.create(&lab.with_conversions(crd), "--crd").await?;
        }
        lab.create_configurations().await?;
        if lab.custom_samples().next().is_none() {
            return Err(CannotJudge("--sample: no object of a kind that --crd defines".to_owned()));
        }
        Ok(lab)
    }

    /// A run whose server has the state of another run at a version. No operator runs yet.
    pub(super) async fn at(other: &Lab<'a>, version: u64) -> Result<Lab<'a>, CannotJudge> {
        let mut lab = Lab::empty(other.scorecard, 0).await?;
        let checkpoint = other.server.checkpoint_at(version);
        let checkpoint =
            checkpoint.ok_or_else(|| CannotJudge("more writes than the history keeps".to_owned()))?;
        lab.server.restore(&checkpoint);
        lab.call_no_webhooks().await;
        (lab.before, lab.version, lab.starts) = (other.before.clone(), other.version, other.starts);
        lab.programs.clone_from(&other.programs);
        lab.earlier = other.server.writes_since(other.version);
        lab.earlier.retain(|write| write.version <= version);
        lab.delete_leases().await;
        Ok(lab)
    }

    /// A run up to the operators that wait for the samples.
    pub(super) async fn started(
        scorecard: &'a Scorecard,
        programs: &[Program],
    ) -> Result<Lab<'a>, CannotJudge> {
        let mut lab = Lab::new(scorecard).await?;
        lab.programs = programs.to_vec();
        lab.start()?;
        lab.connected().await?;
        Ok(lab)
    }

    /// The user of the judged operator that runs now.
    pub(super) fn user(&self) -> String {
        self.user_of(Program::Judged)
    }

    /// The user of the process of a program.
    pub(super) fn user_of(&self, program: Program) -> String {
        let process = self.processes.iter().find(|process| process.program == program);
        process.map(|process| process.user.clone()).unwrap_or_default()
    }

    /// The version at which a custom resource got its `deletionTimestamp`, if it has waited for something.
    pub(super) fn termination_since(&self, version: u64) -> Option<u64> {
        let is_terminating = |object: &Arc<Value>| !object["metadata"]["deletionTimestamp"].is_null();
        let resources: Vec<String> = self.custom_samples().map(|sample| self.collection_of(sample)).collect();
        let writes = self.server.writes_since(version);
        let mut writes = writes.iter().filter(|write| {
            resources.iter().any(|plural| format!("/{}", write.resource).starts_with(&format!("{plural}.")))
        });
        writes.find(|write| write.after.as_ref().is_some_and(is_terminating)).map(|write| write.version)
    }

    /// Whether the operator made a write, in this process or an earlier one of the run.
    pub(super) fn is_operators(write: &WriteRecord) -> bool {
        Lab::is_of_operator(&write.user)
    }

    /// Whether a user is the operator, in this process or an earlier one of the run.
    pub(super) fn is_of_operator(user: &str) -> bool {
        Program::of_user(user).is_some()
    }

    /// Starts the programs that do not run.
    pub(super) fn start(&mut self) -> Result<(), CannotJudge> {
        for program in self.programs.clone() {
            if !self.processes.iter().any(|process| process.program == program) {
                self.start_program(program)?;
            }
        }
        Ok(())
    }

    fn start_program(&mut self, program: Program) -> Result<(), CannotJudge> {
        self.starts += 1;
        self.deletions = 0;
        let user = program.user(self.starts);
        if let Some(permissions) = &self.permissions {
            self.server.set_rules(&user, permissions.clone());
        }
        let kubeconfig = self.dir.path().join(format!("kubeconfig-{}", self.starts));
        let written = fs::write(&kubeconfig, self.server.kubeconfig_of(&user));
        written.map_err(|error| CannotJudge(format!("{}: {error}", kubeconfig.display())))?;
        let log = self.dir.path().join(format!("log-{}", self.starts));
        let (scorecard, webhooks) = (self.scorecard, self.webhooks.as_ref());
        self.processes.push(Process::start(program, self.starts, scorecard, webhooks, &kubeconfig, log)?);
        Ok(())
    }

    /// Kills the operators as a crash does. Their Leases are deleted, so that their successors do not wait for their end.
    pub(super) async fn kill(&mut self) {
        self.kill_some(|_| true).await;
    }

    /// As [`Lab::kill`], for one of several programs.
    pub(super) async fn kill_program(&mut self, program: Program) {
        self.kill_some(|process| process.program == program).await;
    }

    async fn kill_some(&mut self, is_killed: impl Fn(&Process) -> bool) {
        let killed: Vec<Process> = self.processes.extract_if(.., |process| is_killed(process)).collect();
        if killed.is_empty() {
            return;
        }
        for process in killed {
            self.incidents.extend(process.panic());
            process.kill().await;
        }
        self.call_no_webhooks().await;
        self.delete_leases().await;
    }

    /// Deletes the Leases, but for those of the processes that run.
    async fn delete_leases(&self) {
        let mut held = self.server.writes_since(0);
        held.retain(|write| self.processes.iter().any(|process| process.user == write.user));
        for (resource, key, _) in self.server.checkpoint().objects() {
            let is_held = held.iter().any(|write| (&*write.resource, &*write.object) == (resource, key));
            if resource == "leases.coordination.k8s.io" && !key.starts_with("kube-node-lease/") && !is_held {
                self.request(Method::DELETE, &self.path_of_object(resource, key), Value::Null).await;
            }
        }
    }

    /// Ends the run.
    pub(super) async fn end(mut self) {
        self.kill().await;
    }

    fn sample_collections(&self) -> Vec<String> {
        self.custom_samples().map(|sample| self.collection_of(sample)).collect()
    }

    /// Whether a process lists or watches the kind of a sample.
    pub(super) fn reads_samples(&self) -> bool {
        let collections = self.sample_collections();
        let is_of_kind =
            |path: &str| collections.iter().any(|collection| path.ends_with(collection.as_str()));
        self.server.requests().iter().any(|request| {
            let is_own = self.processes.iter().any(|process| process.user == request.user);
            is_own && request.method == "GET" && request.status == 200 && is_of_kind(&request.path)
        })
    }

    /// Waits until each process has sent a request, one of them lists or watches the kind of a sample, and they have done what they do at
    /// their start. The others may need a Lease before they read the samples' kind.
    ///
    /// Only time in which the processes sleep counts fully: on a busy machine, they wait for a CPU. There, a client may also get no
    /// connection in time, or lose it, so a process that could be judged without a fault and ends is started again.
    pub(super) async fn connected(&mut self) -> Result<(), CannotJudge> {
        self.call_conversions().await;
        let usual = self.pace.map_or(0, |pace| pace.start);
        let limit = self.scorecard.start.max(TICK * usual * SLOWER_START);
        let (mut ticks, mut asleep, mut ends) = (0, 0, 0);
        loop {
            let requests = self.server.requests();
            let asks = |process: &Process| requests.iter().any(|request| request.user == process.user);
            if self.is_holding() {
                return Ok(());
            }
            let silent = self.processes.iter().find(|process| !asks(process));
            if silent.is_none() && self.reads_samples() {
                break;
            }
            let name = silent.map(|process| process.program.name());
            if let Some((process, end)) = self.ended() {
                if self.pace.is_some() && ends < RESTARTS_MAX {
                    ends += 1;
                    self.incidents.extend(asks(&process).then(|| format!("it ended: {end}")));
                    self.start_program(process.program)?;
                    continue;
                }
                let what = if asks(&process) {
                    "before it read the samples' kind"
                } else {
                    "before its first request"
                };
                return Err(CannotJudge(format!("{} ended {what}: {end}", process.program.name())));
            }
            if TICK * asleep > limit || TICK * ticks > limit * BUSY_START {
                let secs = limit.as_secs();
                return Err(CannotJudge(match name {
                    None => {
                        let kinds = self.sample_collections().join(", ");
                        format!("COMMAND did not list or watch {kinds} within {secs} s")
                    }
                    Some(name) => format!(
                        "{name} sent no request within {secs} s: does it read KUBECONFIG? {{kubeconfig}} in its arguments becomes \
                         the path"
                    ),
                }));
            }
            sleep(TICK).await;
            ticks += 1;
            asleep += u32::from(self.sleeps());
        }
        self.started_within = ticks;
        self.until_webhooks_serve().await?;
        self.settle().await?;
        Ok(())
    }

    /// A process that has ended by itself, and how.
    pub(super) fn ended(&mut self) -> Option<(Process, String)> {
        let ends = self.processes.iter_mut().map(Process::ended);
        let (at, end) = ends.enumerate().find_map(|(at, end)| Some((at, end?)))?;
        Some((self.processes.remove(at), end))
    }

    /// Starts a process that has ended again, as a kubelet does. False if there is none.
    fn start_ended(&mut self) -> Result<bool, CannotJudge> {
        let Some((process, end)) = self.ended() else { return Ok(false) };
        self.incidents.push(format!("it ended: {end}"));
        if self.incidents.len() > RESTARTS_MAX {
            let (name, times) = (process.program.name(), self.incidents.len());
            return Err(CannotJudge(format!("{name} ended {times} times: {end}")));
        }
        self.start_program(process.program)?;
        Ok(true)
    }

    /// Whether all processes sleep.
    fn sleeps(&self) -> bool {
        self.processes.iter().all(Process::sleeps)
    }

    pub(super) async fn create_samples(&mut self) -> Result<(), CannotJudge> {
        self.create_samples_as(|sample| Some(sample.clone())).await
    }

    /// Waits for the operator, creates the samples, and waits until it has settled.
    pub(super) async fn settle_with_samples(&mut self) -> Result<(), CannotJudge> {
        self.connected().await?;
        self.create_samples().await?;
        self.until_work_since(self.version).await;
        self.settle().await?;
        Ok(())
    }

    /// Creates the samples, changed or left out.
    pub(super) async fn create_samples_as(
        &mut self,
        changed: impl Fn(&Value) -> Option<Value>,
    ) -> Result<(), CannotJudge> {
        let now = self.server.checkpoint();
        let uids = now.objects().filter_map(|(.., object)| object["metadata"]["uid"].as_str());
        self.before = uids.map(str::to_owned).collect();
        self.version = now.version();
        for sample in self.scorecard.samples.iter().filter_map(changed) {
            self.create(&sample, "--sample").await?;
        }
        Ok(())
    }

    /// Creates the samples that do not exist yet, but do in another run.
    pub(super) async fn create_missing_samples(&self, other: &Lab<'_>) -> Result<(), CannotJudge> {
        for sample in self.scorecard.samples.iter().filter(|sample| self.stored(sample).is_none()) {
            self.create(&self.creation(sample, other), "--sample").await?;
        }
        Ok(())
    }

    /// Creates the custom resources after their deletion.
    pub(super) async fn create_samples_again(&self) -> Result<(), CannotJudge> {
        for sample in self.custom_samples() {
            self.create(&self.creation(sample, self), "--sample").await?;
        }
        Ok(())
    }

    /// A sample as it is created: while no process serves the webhooks, as they had changed it before, in this run or another one.
    fn creation(&self, sample: &Value, before: &Lab<'_>) -> Value {
        let asks_no_webhooks = self.webhooks.is_some() && self.processes.is_empty();
        let Some(place) = before.place_of(sample).filter(|_| asks_no_webhooks) else {
            return sample.clone();
        };
        let is_creation = |write: &WriteRecord| {
            write.verb() == "create" && (&write.resource, &write.object) == (&place.0, &place.1)
        };
        let created = before.writes_since(0).into_iter().find(is_creation).and_then(|write| write.after);
        created.map_or(sample.clone(), |created| snapshot::manifest(&created))
    }

    /// Whether a sample is in a namespace, and so has a copy in [`SECOND`].
    pub(super) fn is_namespaced(&self, sample: &Value) -> bool {
        self.server.resource_of(sample).is_some_and(|resource| resource.is_namespaced())
    }

    /// The namespaces of the samples.
    pub(super) fn sample_namespaces(&self) -> HashSet<&'a str> {
        let samples = self.scorecard.samples.iter().filter(|sample| self.is_namespaced(sample));
        samples.map(|sample| sample["metadata"]["namespace"].as_str().unwrap_or(NAMESPACE)).collect()
    }

    /// The children whose owner is a cluster-wide sample.
    pub(super) fn children_of_cluster(&self) -> Vec<String> {
        let samples = self.custom_samples().filter(|sample| !self.is_namespaced(sample));
        let uids: Vec<Value> =
            samples.filter_map(|sample| Some(self.stored(sample)?["metadata"]["uid"].clone())).collect();
        let mut children = self.children();
        children.retain(|child| {
            let mut owners = child.object["metadata"]["ownerReferences"].as_array().into_iter().flatten();
            owners.any(|owner| uids.contains(&owner["uid"]))
        });
        children.into_iter().map(|child| format!("{}/{}", child.resource, child.key)).collect()
    }

    /// Creates copies of the samples in the namespace [`SECOND`]. False if there is none with a namespace, or webhooks refuse them.
    pub(super) async fn create_copies(&self) -> Result<bool, CannotJudge> {
        let namespace = json!({"metadata": {"name": SECOND}});
        self.request(Method::POST, "/api/v1/namespaces", namespace).await;
        let mut has_any = false;
        for sample in &self.scorecard.samples {
            if self.is_namespaced(sample) {
                let mut copy = sample.clone();
                copy["metadata"]["namespace"] = SECOND.into();
                match self.create(&copy, "--sample").await {
                    // It may have to be unique.
                    Err(CannotJudge(why)) if why.contains(webhooks::DENIED) => return Ok(false),
                    Err(why) => return Err(why),
                    Ok(()) => has_any |= self.custom_samples().any(|custom| custom == sample),
                }
            }
        }
        Ok(has_any)
    }

    pub(super) async fn delete_copies(&mut self) -> Result<(), CannotJudge> {
        let mut copies = HashSet::new();
        for sample in self.custom_samples().filter(|sample| self.is_namespaced(sample)) {
            let mut copy = sample.clone();
            copy["metadata"]["namespace"] = SECOND.into();
            self.request(Method::DELETE, &self.path_of_sample(&copy), Value::Null).await;
            copies.insert(self.name_of_sample(&copy));
        }
        self.settle().await?;
        // A clean-up may create an object, which a namespace that is being deleted refuses.
        self.lasting(|lab| {
            lab.left_in_second_namespace().into_iter().filter(|left| copies.contains(left)).collect()
        })
        .await?;
        self.delete_second_namespace().await;
        Ok(())
    }

    /// Creates a copy of each custom resource in the same namespace, under another name and without labels, by which something may select it. Where
    /// its spec names a child, the copy names another one. Returns those that the server accepts.
    pub(super) async fn create_seconds(&self) -> Vec<Value> {
        let mut seconds = Vec::new();
        let children = self.children();
        let names: Vec<&str> =
            children.iter().filter_map(|child| child.object["metadata"]["name"].as_str()).collect();
        for sample in self.custom_samples() {
            let mut second = sample.clone();
            let name = sample["metadata"]["name"].as_str().unwrap_or_default();
            second["metadata"]["name"] = format!("{name}-scorecard").into();
            second["metadata"]["labels"] = Value::Null;
            rename(&mut second["spec"], &names);
            if self.create(&second, "--sample").await.is_ok() {
                seconds.push(second);
            }
        }
        seconds
    }

    /// Deletes what [`Lab::create_seconds`] returned.
    pub(super) async fn delete_seconds(&mut self, seconds: &[Value]) -> Result<(), CannotJudge> {
        for second in seconds {
            self.request(Method::DELETE, &self.path_of_sample(second), Value::Null).await;
        }
        self.settle().await?;
        self.lasting(|lab| seconds.iter().filter_map(|second| lab.stored(second)).collect()).await?;
        Ok(())
    }

    pub(super) async fn delete_second_namespace(&self) {
        self.request(Method::DELETE, &format!("/api/v1/namespaces/{SECOND}"), Value::Null).await;
    }

    /// What still exists in the namespace [`SECOND`], and itself.
    pub(super) fn left_in_second_namespace(&self) -> Vec<String> {
        let now = self.server.checkpoint();
        let inside = format!("{SECOND}/");
        let is_left =
            |resource: &str, key: &str| (resource, key) == ("namespaces", SECOND) || key.starts_with(&inside);
        let left = now.objects().filter(|(resource, key, _)| is_left(resource, key));
        left.map(|(resource, key, _)| format!("{resource}/{key}")).collect()
    }

    /// The paths of the custom resources.
    pub(super) fn sample_paths(&self) -> Vec<String> {
        self.custom_samples().map(|sample| self.path_of_sample(sample)).collect()
    }

    /// What the watches of the kinds of the custom resources have in their targets.
    pub(super) fn sample_watch_paths(&self) -> Vec<String> {
        self.custom_samples().map(|sample| format!("{}?", self.collection_of(sample))).collect()
    }

    /// The samples of the kinds that the CRDs define.
    pub(super) fn custom_samples(&self) -> impl Iterator<Item = &'a Value> {
        let groups: Vec<&str> =
            self.scorecard.crds.iter().filter_map(|crd| crd["spec"]["group"].as_str()).collect();
        self.scorecard.samples.iter().filter(move |sample| {
            let group = sample["apiVersion"].as_str().and_then(|version| version.split('/').next());
            group.is_some_and(|group| groups.contains(&group))
        })
    }

    /// The samples of other kinds, which the custom resources need.
    pub(super) fn other_samples(&self) -> impl Iterator<Item = &'a Value> {
        let custom: Vec<&Value> = self.custom_samples().collect();
        self.scorecard.samples.iter().filter(move |sample| !custom.contains(sample))
    }

    /// Deletes the custom resources, with a `propagationPolicy`.
    pub(super) async fn delete_samples(&self, policy: &str) {
        for sample in self.custom_samples() {
            let body = json!({"propagationPolicy": policy});
            self.request(Method::DELETE, &self.path_of_sample(sample), body).await;
        }
    }

    /// The custom resources, and what the operator created for them, that still exist, except for the kinds in
    /// [`Scorecard::keep`].
    pub(super) fn remaining(&self) -> Vec<String> {
        let mut remaining = self.samples_left();
        for child in self.children() {
            if !self.scorecard.keep.contains(&child.kind) {
                remaining.push(format!("{}/{}", child.resource, child.key));
            }
        }
        remaining
    }

    /// The custom resources that still exist.
    pub(super) fn samples_left(&self) -> Vec<String> {
        let left = self.custom_samples().filter(|sample| self.stored(sample).is_some());
        left.map(|sample| self.name_of_sample(sample)).collect()
    }

    /// Whether an object of a snapshot is a custom resource of the samples.
    pub(super) fn is_of_sample(&self, object: &str) -> bool {
        self.custom_samples().any(|sample| self.name_of_sample(sample) == object)
    }

    /// The custom resource that does not have what [`Scorecard::settled`] asks for, and what it has. Those that are being deleted need
    /// not have it.
    pub(super) fn unmet(&self) -> Option<String> {
        let condition = self.scorecard.settled.as_ref()?;
        self.custom_samples().find_map(|sample| {
            let object = self.stored(sample)?;
            let is_going = !object["metadata"]["deletionTimestamp"].is_null();
            let has = condition.unmet(&object).filter(|_| !is_going)?;
            Some(format!("{} {has}", self.name_of_sample(sample)))
        })
    }

    /// The objects that the operator has created since the samples, and that still exist.
    pub(super) fn children(&self) -> Vec<Dependent> {
        let mut writes = self.work_since(self.version);
        writes.retain(|write| write.verb() == "create");
        let mut children = Vec::new();
        for write in writes {
            let (resource, key) = (write.resource, write.object);
            let (Some(object), Some(created)) = (self.server.object(&resource, &key), &write.after) else {
                continue;
            };
            if object["metadata"]["uid"] == created["metadata"]["uid"] {
                let (kind, object) = (self.kind_of(&resource), Value::clone(&object));
                children.push(Dependent { resource, key, kind, object });
            }
        }
        children
    }

    /// `StatefulSet` for `statefulsets.apps`.
    fn kind_of(&self, resource: &str) -> String {
        self.server.resource(resource).map(|resource| resource.kind().to_owned()).unwrap_or_default()
    }

    fn has_child(&self, child: &ChildKey) -> bool {
        self.server.object(&child.resource, &child.key).is_some()
    }

    /// The children that do not exist.
    pub(super) fn missing(&self, children: &[ChildKey]) -> Vec<ChildKey> {
        children.iter().filter(|child| !self.has_child(child)).cloned().collect()
    }

    /// The uid of the object that has the name of a child now.
    pub(super) fn uid_of(&self, child: &ChildKey) -> Option<String> {
        let object = self.server.object(&child.resource, &child.key)?;
        object["metadata"]["uid"].as_str().map(str::to_owned)
    }

    pub(super) async fn delete_children(&mut self, children: &[ChildKey]) {
        self.deletions += 1;
        for child in children {
            let path = self.path_of_object(&child.resource, &child.key);
            self.request(Method::DELETE, &path, json!({"propagationPolicy": "Background"})).await;
        }
    }

    /// Changes an annotation of each custom resource, which means nothing.
    pub(super) async fn poke(&self) {
        for path in self.sample_paths() {
            self.annotate(&path).await;
        }
    }

    /// Changes an annotation of children, which means nothing.
    pub(super) async fn poke_children(&self, children: &[ChildKey]) {
        for child in children {
            self.annotate(&self.path_of_object(&child.resource, &child.key)).await;
        }
    }

    async fn annotate(&self, path: &str) {
        let patch = json!({"metadata": {"annotations": {POKE: self.server.version().to_string()}}});
        self.request(Method::PATCH, path, patch).await;
    }

    pub(super) async fn create(&self, object: &Value, flag: &str) -> Result<(), CannotJudge> {
        let (kind, name) = (&object["kind"], &object["metadata"]["name"]);
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let what = format!("{flag}: {} {:?}", text(kind), text(name));
        let Some(resource) = self.server.resource_of(object) else {
            let version = text(&object["apiVersion"]);
            return Err(CannotJudge(format!(
                "{what}: the server has no such kind in {version:?}; is its CRD given?"
            )));
        };
        let path = format!("{}?fieldValidation=Strict", path_of(&resource, object, ""));
        let mut again = 0..LATE_CALLS_MAX;
        loop {
            let (status, answer) = self.request(Method::POST, &path, object.clone()).await;
            let why = webhooks::message(&answer);
            if status == 201 {
                return Ok(());
            }
            if !why.contains("context deadline exceeded") || again.next().is_none() {
                return Err(CannotJudge(format!("{what}: {why}")));
            }
        }
    }

    fn collection_of(&self, sample: &Value) -> String {
        let path = self.collection_path(sample);
        path.rfind('/').map(|at| path[at..].to_owned()).unwrap_or_default()
    }

    /// `/apis/example.com/v1/namespaces/default/pages` for an object of the kind.
    pub(super) fn collection_path(&self, object: &Value) -> String {
        self.server.resource_of(object).map(|resource| path_of(&resource, object, "")).unwrap_or_default()
    }

    /// `pages.example.com/default/a`, as in a snapshot.
    pub(super) fn name_of_sample(&self, sample: &Value) -> String {
        let place = self.place_of(sample);
        place.map(|(resource, key)| format!("{resource}/{key}")).unwrap_or_default()
    }

    pub(super) fn path_of_sample(&self, sample: &Value) -> String {
        let name = sample["metadata"]["name"].as_str().unwrap_or_default();
        self.server.resource_of(sample).map(|resource| path_of(&resource, sample, name)).unwrap_or_default()
    }

    /// The name of the resource and the key of an object of a file, as in a [`WriteRecord`].
    fn place_of(&self, object: &Value) -> Option<(String, String)> {
        let (resource, metadata) = (self.server.resource_of(object)?, &object["metadata"]);
        let name = metadata["name"].as_str().unwrap_or_default();
        let namespace = metadata["namespace"].as_str().unwrap_or(NAMESPACE);
        let key = if resource.is_namespaced() { format!("{namespace}/{name}") } else { name.to_owned() };
        Some((resource.name(), key))
    }

    /// An object of a file, as it is now.
    pub(super) fn stored(&self, object: &Value) -> Option<Arc<Value>> {
        let (resource, key) = self.place_of(object)?;
        self.server.object(&resource, &key)
    }

    /// The path of a stored object.
    pub(super) fn path_of_object(&self, resource: &str, key: &str) -> String {
        let (namespace, name) = match key.split_once('/') {
            Some((namespace, name)) => (Some(namespace), name),
            None => (None, key),
        };
        self.server.resource(resource).map(|resource| resource.path(namespace, name)).unwrap_or_default()
    }

    /// All kinds of the server.
    pub(super) async fn kinds(&self) -> HashSet<String> {
        let (_, groups) = self.request(Method::GET, "/apis", Value::Null).await;
        let groups = groups["groups"].as_array().into_iter().flatten();
        let versions = groups.flat_map(|group| group["versions"].as_array().into_iter().flatten());
        let mut paths = vec!["/api/v1".to_owned()];
        paths.extend(versions.filter_map(|one| Some(format!("/apis/{}", one["groupVersion"].as_str()?))));
        let mut kinds = HashSet::new();
        for path in paths {
            let (_, list) = self.request(Method::GET, &path, Value::Null).await;
            let resources = list["resources"].as_array().into_iter().flatten();
            kinds.extend(resources.filter_map(|resource| resource["kind"].as_str().map(str::to_owned)));
        }
        kinds
    }

    /// Sends a request of the administrator.
    pub(super) async fn request(&self, method: Method, path: &str, body: Value) -> (u16, Value) {
        let content_type =
            if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
        let body = if body.is_null() { Bytes::new() } else { Bytes::from(body.to_string()) };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::AUTHORIZATION, format!("Bearer {}", self.server.token()))
            .header(header::CONTENT_TYPE, content_type)
            .body(Full::new(body));
        let Ok(request) = request else { return (0, Value::Null) };
        // Large, and in the futures of all checks.
        let Ok(answer) = Box::pin(self.server.answer(request)).await else { return (0, Value::Null) };
        let status = answer.status().as_u16();
        let body = answer.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
        (status, serde_json::from_slice(&body).unwrap_or_default())
    }

    /// The objects that came after the samples, and the samples.
    pub(super) fn snapshot(&self) -> Snapshot {
        Snapshot::of(&self.server, &self.before, &self.scorecard.ignore)
    }

    /// What `--keep` and `--ignore` have, and no object.
    pub(super) fn unused_flags(&self) -> Vec<String> {
        let (all, Scorecard { keep, ignore, .. }) =
            (Snapshot::of(&self.server, &self.before, &[]), self.scorecard);
        let kept = keep.iter().map(|kind| ("--keep", kind));
        let flags = kept.chain(ignore.iter().map(|ignored| ("--ignore", ignored)));
        let unused = flags.filter(|(_, value)| !all.has(value, |collection| self.kind_of(collection)));
        unused.map(|(flag, value)| format!("{flag} {value}")).collect()
    }

    /// Whether a write is judged: records, locks and what `--ignore` has are not.
    fn is_judged(&self, write: &WriteRecord) -> bool {
        let object = write.after.as_ref().or(write.before.as_ref()).map_or(&Value::Null, |object| object);
        if !snapshot::is_compared(&write.resource, object) {
            return false;
        }
        let ignore = &self.scorecard.ignore;
        ignore.is_empty() || !snapshot::is_ignored(write, &self.kind_of(&write.resource), ignore)
    }

    /// Whether somebody works: known noise is not work.
    fn is_work(&self, write: &WriteRecord) -> bool {
        let object = name_of(write);
        let is_noise = |path: &String| {
            let of_object = self.noise.iter().filter(|(of, _)| *of == object);
            of_object.map(|(_, noise)| noise).any(|noise| noise == path)
        };
        self.is_judged(write) && !written_paths(write).iter().all(is_noise)
    }

    fn writes_since(&self, version: u64) -> Vec<WriteRecord> {
        let earlier = self.earlier.iter().filter(|write| write.version > version);
        earlier.cloned().chain(self.server.writes_since(version)).collect()
    }

    /// A field that two programs have written since a version: `configmaps/default/a .data.text`. An object without a field if both have created
    /// or deleted it.
    pub(super) fn written_by_two(&self, version: u64) -> Option<String> {
        let mut writers: BTreeMap<String, Program> = BTreeMap::new();
        for write in self.writes_since(version).iter().filter(|write| self.is_judged(write)) {
            let Some(program) = Program::of_user(&write.user) else { continue };
            for path in written_paths(write) {
                let field = format!("{} {path}", name_of(write)).trim_end().to_owned();
                if writers.insert(field.clone(), program).is_some_and(|other| other != program) {
                    return Some(field);
                }
            }
        }
        None
    }

    /// The operator's writes that count as work, since a version.
    pub(super) fn work_since(&self, version: u64) -> Vec<WriteRecord> {
        let mut writes = self.writes_since(version);
        writes.retain(|write| Lab::is_operators(write) && self.is_work(write));
        writes
    }

    /// Whether the operator has worked since a version, or has written an Event about the custom resource of this name.
    pub(super) fn has_acted_for(&self, name: &Value, version: u64) -> bool {
        let is_event = |write: &WriteRecord| {
            let about = |object: &Arc<Value>| {
                ["involvedObject", "regarding"].iter().any(|field| object[field]["name"] == *name)
            };
            Lab::is_operators(write) && write.after.as_ref().is_some_and(about)
        };
        !self.work_since(version).is_empty() || self.server.writes_since(version).iter().any(is_event)
    }

    /// Waits until nothing is written any more. Starts a process that has ended again, as a kubelet does. Returns the longest pause
    /// before a write, in ticks.
    ///
    /// After the runs without a fault, a third of [`Scorecard::settle`] is enough if the operator sleeps all the time: it sends no
    /// request, and none of its threads waits for a CPU. So a busy machine makes the wait longer.
    ///
    /// With [`Scorecard::settled`], it also waits until the samples have what this asks for, but not longer than [`Scorecard::patience`] after
    /// the last write: a fault may keep them from it. A pause before they have it does not count as the operator's longest.
    ///
    /// Returns at once when a fault holds a request. What the operator writes for ever is added to [`Lab::noise`], and no longer waited for.
    pub(super) async fn settle(&mut self) -> Result<u32, CannotJudge> {
        let quiet = self.scorecard.settle;
        let asleep = self.pace.map(|_| quiet / ASLEEP_SHARE);
        self.settle_for(quiet, asleep).await
    }

    /// As [`Lab::settle`], for an operator that may wake up: nothing is written for all of [`Scorecard::settle`].
    pub(super) async fn settle_fully(&mut self) -> Result<(), CannotJudge> {
        self.settle_for(self.scorecard.settle, None).await?;
        Ok(())
    }

    async fn settle_for(&mut self, quiet: Duration, asleep: Option<Duration>) -> Result<u32, CannotJudge> {
        let requests = self.pace.map_or(0, |pace| pace.requests.min(REQUESTS_MAX));
        let delayed = self.delay * (requests + 3);
        let from = self.server.version();
        let (started, mut seen, mut requests) = (Instant::now(), from, self.server.request_count());
        let (mut idle, mut sleeping, mut longest) = (0, 0, self.pace.map_or(0, |pace| pace.pause));
        loop {
            if self.is_holding() {
                return Ok(longest);
            }
            let is_met = self.unmet().is_none();
            sleep(TICK).await;
            idle += 1;
            sleeping += 1;
            let version = self.server.version();
            if version != seen {
                let writes = self.server.writes_since(seen);
                seen = version;
                if writes.iter().any(|write| self.is_work(write)) {
                    if is_met {
                        longest = longest.max(idle);
                    }
                    idle = 0;
                }
                let is_late = started.elapsed() > self.scorecard.patience * 2;
                let limit = if is_late { SLOW_LOOP_WRITES } else { LOOP_WRITES };
                // It reads all writes.
                if version.saturating_sub(from) > limit as u64 {
                    self.find_loops(from, limit)?;
                }
            }
            let count = self.server.request_count();
            if idle == 0 || count != requests || asleep.is_none() || !self.sleeps() {
                (sleeping, requests) = (0, count);
            }
            if self.start_ended()? {
                (idle, sleeping) = (0, 0);
            }
            let is_too_late = started.elapsed() > self.scorecard.patience * 10;
            let is_over =
                |ticks: u32, time: Duration| TICK * ticks >= time.max(TICK * longest * 3).max(delayed);
            let is_asleep = asleep.is_some_and(|time| is_over(sleeping, time));
            let is_met = is_met || TICK * idle > self.scorecard.patience;
            if is_too_late || is_met && (is_asleep || is_over(idle, quiet)) {
                return Ok(longest);
            }
        }
    }

    /// Adds the objects that the operator has written more often than the limit to the noise: the fields that changed in the
    /// second half of these writes.
    fn find_loops(&mut self, from: u64, limit: usize) -> Result<(), CannotJudge> {
        let mut writes: BTreeMap<String, Vec<WriteRecord>> = BTreeMap::new();
        let work = self.work_since(from);
        if work.len() > WRITES_MAX {
            let newest = work.last().map(|write| format!("{} {}", write.verb(), name_of(write)));
            let newest = newest.unwrap_or_default();
            return Err(CannotJudge(format!(
                "COMMAND floods the server: {} writes, the last is {newest}",
                work.len()
            )));
        }
        for write in work {
            writes.entry(name_of(&write)).or_default().push(write);
        }
        for (object, writes) in writes.into_iter().filter(|(_, writes)| writes.len() > limit) {
            for write in &writes[writes.len() / 2..] {
                self.noise.extend(written_paths(write).into_iter().map(|path| (object.clone(), path)));
            }
        }
        Ok(())
    }

    /// Waits in ticks: for longer on a busy machine. Whether all processes slept in one of them.
    pub(super) async fn wait(&self, time: Duration) -> bool {
        let (mut waited, mut has_slept) = (Duration::ZERO, false);
        while waited < time {
            sleep(TICK).await;
            waited += TICK;
            has_slept |= self.sleeps();
        }
        has_slept
    }

    /// Waits until something is so, or [`FAULT_TICKS_MAX`] are over. Whether it is.
    pub(super) async fn within_fault(&self, is_so: impl Fn() -> bool) -> bool {
        for _ in 0..FAULT_TICKS_MAX {
            if is_so() {
                return true;
            }
            sleep(TICK).await;
        }
        false
    }

    /// Waits until so many requests of the operator got this status since the call, or [`FAULT_TICKS_MAX`] are over.
    pub(super) async fn until_refused(&self, status: u16, count: usize) {
        let (since, user) = (self.server.request_count(), self.user());
        let refused = |request: &RequestRecord| request.status == status && request.user == user;
        self.within_fault(|| self.requests_since(since).filter(refused).count() >= count).await;
    }

    /// The requests after so many.
    pub(super) fn requests_since(&self, count: usize) -> impl Iterator<Item = RequestRecord> {
        self.server.requests().into_iter().skip(count)
    }

    /// Waits until the state is as expected. A difference must last for [`Scorecard::patience`]; the reason says whether a poke repairs it. A panic or an end on
    /// the way is a warning.
    pub(super) async fn judge(
        &mut self,
        expected: &Snapshot,
        mask: &Mask,
        after: &str,
    ) -> Result<Verdict, CannotJudge> {
        self.settle().await?;
        let differences = |lab: &Lab| expected.differences(&lab.snapshot(), mask);
        let before = self.lasting(differences).await?;
        if before.is_empty() {
            return Ok(match self.incidents().first() {
                Some(incident) => Verdict::new(Outcome::Warn, format!("{after}: {incident}")),
                None => Verdict::pass(format!("{after}: it gets to the same state")),
            });
        }
        self.poke().await;
        self.settle().await?;
        let lasting = self.lasting(differences).await?;
        Ok(match lasting.is_empty() {
            // No user would poke it.
            true => Verdict::late(after, before),
            false => Verdict::differs(Outcome::Fail, after, lasting),
        })
    }

    /// What is wrong with the server's state, or its requests, for longer than [`Scorecard::patience`]. Returns as soon as nothing is.
    pub(super) async fn lasting<T>(&mut self, wrong: impl Fn(&Lab) -> Vec<T>) -> Result<Vec<T>, CannotJudge> {
        let (mut ticks, mut seen, mut found) = (0, None, Vec::new());
        loop {
            let version = self.server.version();
            let now = (version, self.server.request_count());
            if seen.replace(now) != Some(now) {
                found = wrong(self);
            }
            if found.is_empty() || TICK * ticks > self.scorecard.patience {
                return Ok(found);
            }
            sleep(TICK).await;
            ticks += 1;
            let works = self.server.writes_since(version).iter().any(|write| self.is_work(write));
            if self.start_ended()? || works {
                self.settle().await?;
            }
        }
    }

    /// Waits until the operator has written something, or a fault holds a request, but not longer than [`Scorecard::patience`]. On a busy
    /// machine, it may look settled before it has begun. Returns the ticks.
    pub(super) async fn until_work_since(&self, version: u64) -> u32 {
        let mut ticks = 0;
        let is_idle = || self.work_since(version).is_empty() && !self.is_holding();
        while is_idle() && TICK * ticks < self.scorecard.patience {
            sleep(TICK).await;
            ticks += 1;
        }
        ticks
    }

    /// How often the operator has created and deleted each object since the samples.
    pub(super) fn counts(&self) -> BTreeMap<String, [usize; 2]> {
        let mut counts: BTreeMap<String, [usize; 2]> = BTreeMap::new();
        for write in self.work_since(self.version) {
            let Some(object) = write.before.as_ref().or(write.after.as_ref()) else { continue };
            let name = snapshot::name_of(&write.resource, &write.object, object);
            let count = counts.entry(name).or_default();
            match write.verb() {
                "create" => count[0] += 1,
                "delete" => count[1] += 1,
                _ => {}
            }
        }
        counts
    }

    /// The ownerReferences to a uid that no object has.
    pub(super) fn dead_owners(&self) -> Vec<String> {
        let now = self.server.checkpoint();
        let uids: HashSet<&str> =
            now.objects().filter_map(|(.., object)| object["metadata"]["uid"].as_str()).collect();
        let mut dead = Vec::new();
        for (resource, key, object) in now.objects() {
            for owner in object["metadata"]["ownerReferences"].as_array().into_iter().flatten() {
                if owner["uid"].as_str().is_some_and(|uid| !uids.contains(uid)) {
                    dead.push(format!("{resource}/{key} has an owner that does not exist: {owner}"));
                }
            }
        }
        dead
    }

    /// `31 requests of GET /api/v1/pods in 3.0 s`, if the operator sends these, of which each gets the status, without pauses that grow. Since so many
    /// requests, which was at `started`.
    pub(super) fn hot_retry(&self, status: u16, since: usize, started: Instant) -> Option<String> {
        let mut counts: BTreeMap<String, u32> = BTreeMap::new();
        for request in self.requests_since(since) {
            if request.status == status && Lab::is_of_operator(&request.user) {
                let path = format!("{} {} {}", request.method, request.path, request.name);
                *counts.entry(path.trim_end().to_owned()).or_default() += 1;
            }
        }
        let (path, count) = counts.into_iter().max_by_key(|(_, count)| *count)?;
        let secs = started.elapsed().as_secs_f64();
        (f64::from(count) > retries_max(secs))
            .then(|| format!("{count} requests of {path} in {secs:.1} s, which all got a {status}"))
    }

    /// How many requests the operator has sent, but for its Leases.
    pub(super) fn sent(&self) -> usize {
        let requests = self.server.requests();
        let is_own = |path: &str, user: &str| Lab::is_of_operator(user) && !path.contains("/leases");
        requests.iter().filter(|request| is_own(&request.path, &request.user)).count()
    }

    /// The CPU time of the processes. Zero if unknown.
    pub(super) fn cpu_time(&self) -> Duration {
        self.processes.iter().map(Process::cpu_time).sum()
    }

    /// Whether a fault holds a request of the operator.
    pub(super) fn is_holding(&self) -> bool {
        self.server.is_holding()
    }

    /// Whether a fault is still to come.
    pub(super) fn has_faults(&self) -> bool {
        self.server.is_fault_planned()
    }

    /// What happened so far is not the fault of what comes next.
    pub(super) fn forget_incidents(&mut self) {
        self.incidents.clear();
        self.processes.iter_mut().for_each(Process::forget_log);
    }

    /// The operators' panics, and their ends that nobody caused.
    pub(super) fn incidents(&self) -> Vec<String> {
        let panics = self.processes.iter().filter_map(Process::panic);
        self.incidents.iter().cloned().chain(panics).collect()
    }
}

impl Lab<'_> {
    /// The record of the run, with the writes after a version.
    pub(super) fn journal(&self, version: u64) -> Journal {
        let logs = (1..=self.starts).map(|start| self.dir.path().join(format!("log-{start}")));
        let log = logs.map(|log| fs::read(log).unwrap_or_default()).collect::<Vec<_>>().concat();
        Journal {
            requests: self.server.requests(),
            writes: self.writes_since(version),
            events: self.server.events(),
            log: String::from_utf8_lossy(&log).into_owned(),
        }
    }
}

impl Drop for Lab<'_> {
    fn drop(&mut self) {
        journal::ended(self.journal(self.version));
    }
}

/// How many requests of one path, which all fail, a client may send in a time.
#[must_use]
pub fn retries_max(secs: f64) -> f64 {
    RETRIES_MAX + RETRIES_PER_SEC_MAX * secs
}

/// `configmaps/default/web`
pub(super) fn name_of(write: &WriteRecord) -> String {
    format!("{}/{}", write.resource, write.object)
}

/// The changed fields, or an empty path for an object that is created or deleted.
fn written_paths(write: &WriteRecord) -> Vec<String> {
    match write.verb() {
        "update" => write.changed_paths(),
        _ => vec![String::new()],
    }
}

/// The lock of a new directory. It has its name only when it is locked.
fn locked(dir: &Path) -> io::Result<File> {
    let new = dir.join("new");
    let lock = File::create(&new)?;
    lock.lock()?;
    fs::rename(new, dir.join(LOCK))?;
    Ok(lock)
}

/// Removes the directories of runs that nothing could clean up: their process was killed with SIGKILL, so nobody holds the lock.
pub(super) fn remove_left_behind() {
    for entry in fs::read_dir(env::temp_dir()).into_iter().flatten().flatten() {
        let is_run = entry.file_name().to_string_lossy().starts_with(DIR_PREFIX);
        let lock = is_run.then(|| File::open(entry.path().join(LOCK)));
        if lock.is_some_and(|lock| lock.is_ok_and(|lock| lock.try_lock().is_ok())) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Gives each text that is one of the names another one.
fn rename(value: &mut Value, names: &[&str]) {
    match value {
        Value::String(text) if names.contains(&&**text) => *text += "-scorecard",
        Value::Array(items) => items.iter_mut().for_each(|item| rename(item, names)),
        Value::Object(fields) => fields.values_mut().for_each(|field| rename(field, names)),
        Value::String(_) | Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// The path of an object of a file, or of its collection.
fn path_of(resource: &Resource, object: &Value, name: &str) -> String {
    resource.path(Some(object["metadata"]["namespace"].as_str().unwrap_or(NAMESPACE)), name)
}
