//! Two runs without a fault. What they have in common is expected of each run with a fault; what differs is not compared.

use std::{
    collections::BTreeMap,
    slice,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use listwatch_apiserver::{Fault, RequestRecord, Rule, WriteRecord};
use serde_json::Value;
use tokio::{
    sync::{OnceCell, Semaphore},
    time::Instant,
};

use super::{
    journal,
    lab::{ChildKey, Lab, Pace},
    process::Program,
    report::{Outcome, Verdict},
    settings::{CannotJudge, Scorecard},
    snapshot::{Mask, Snapshot, name_of, without_parts},
};

/// A write of the operator at which a fault can happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Trigger {
    /// `create/services/default/web#1`: the same in each run.
    pub(super) name: String,
    /// The program that writes.
    pub(super) program: Program,
    pub(super) method: String,
    pub(super) path: String,
    /// Which of the requests with this method and path in their target.
    pub(super) nth: u64,
    /// The version that it got in the first run without a fault.
    pub(super) version: u64,
}

impl Trigger {
    pub(super) fn is_create(&self) -> bool {
        self.name.starts_with("create/")
    }

    /// The path of the object's collection. A server-side apply creates at the path of the object.
    pub(super) fn collection(&self) -> &str {
        match self.path.rsplit_once('/') {
            Some((collection, _)) if self.method != "POST" => collection,
            _ => &self.path,
        }
    }

    /// `services`
    pub(super) fn plural(&self) -> &str {
        self.collection().rsplit('/').next().unwrap_or_default()
    }
}

/// Of a write that is repeated, only these are triggers.
const OCCURRENCES_MAX: usize = 3;

/// Deletions of the same children that the next check may come after. A correct operator may back off from a client that deletes a child
/// again and again.
const DELETIONS_MAX: usize = 1;

/// Kinds that nobody repairs: they are done, or hold data.
pub(super) const NOT_REPAIRED: [&str; 3] = ["Job", "PersistentVolumeClaim", "Event"];

/// What is expected of a correct operator.
pub(super) struct Reference<'a> {
    pub(super) scorecard: &'a Scorecard,
    programs: Vec<Program>,
    pub(super) state: Snapshot,
    pub(super) mask: Mask,
    /// The creations and deletions of each object: the larger numbers of both runs.
    pub(super) counts: BTreeMap<String, [usize; 2]>,
    pub(super) triggers: Vec<Trigger>,
    /// The first run, with all that its server has stored.
    first: Lab<'a>,
    /// What is wrong even without a fault.
    pub(super) problems: Vec<String>,
    /// Objects and fields that are written for ever.
    pub(super) loops: Vec<(String, String)>,
    /// How long the operator worked after the samples came, and its writes.
    pub(super) worked: Duration,
    pub(super) writes: Vec<String>,
    pace: Pace,
    /// How many runs can be at a time.
    pub(super) jobs: usize,
    /// How two runs at a time disturbed each other, so that only one can be.
    pub(super) disturbed: Option<String>,
    /// As many runs of one check can be at a time, in all checks together.
    pub(super) parallel_runs: Semaphore,
    /// Runs whose operator has settled in this state.
    settled: Mutex<Vec<Lab<'a>>>,
    repaired: OnceCell<Vec<ChildKey>>,
    deleted: OnceCell<Deleted<'a>>,
    previous: OnceCell<Lab<'a>>,
    both: OnceCell<Box<Reference<'a>>>,
}

/// A run whose custom resources are deleted when the operator has settled, and the writes of the operator for that.
pub(super) struct Deleted<'a> {
    pub(super) lab: Lab<'a>,
    pub(super) writes: Vec<Trigger>,
}

struct Run<'a> {
    lab: Lab<'a>,
    state: Snapshot,
    /// The state after a poke. What follows from it is a hash of the custom resource with its annotations, for example.
    poked: Snapshot,
    counts: BTreeMap<String, [usize; 2]>,
    problems: Vec<String>,
    loops: Vec<(String, String)>,
    worked: Duration,
    requests: Vec<RequestRecord>,
    writes: Vec<WriteRecord>,
    pace: Pace,
}

impl<'a> Reference<'a> {
    /// Runs without a fault, of one program or of several together.
    pub(super) async fn of(
        scorecard: &'a Scorecard,
        programs: &[Program],
    ) -> Result<Reference<'a>, CannotJudge> {
        // Samples that are refused are an error before anything is started.
        let mut lab = Lab::new(scorecard).await?;
        lab.create_samples().await?;
        lab.end().await;
        let (first, second, disturbed) = two_runs(scorecard, programs).await?;
        let jobs = if disturbed.is_some() { 1 } else { scorecard.jobs };
        let (mut mask, mut problems) = (Mask::default(), second.problems.clone());
        problems.extend(first.problems.iter().cloned());
        mask.fields.extend(first.loops.iter().chain(&second.loops).cloned());
        mask.random_names = first.state.random_names(&second.state);
        mask.fixed_names = first.state.common_names(&second.state);
        let of_poke = |run: &Run<'_>| run.state.differences(&run.poked, &mask);
        let of_poke = [of_poke(&first), of_poke(&second)].concat();
        let fields = of_poke.into_iter().map(|difference| (difference.object, difference.path));
        mask.fields.extend(fields.filter(|(_, path)| !path.is_empty()));
        for difference in first.state.differences(&second.state, &mask) {
            let collection = difference.object.split('/').next().unwrap_or_default().to_owned();
            if difference.path.is_empty() {
                problems.push(format!("not deterministic: {} is in only one of two runs", difference.object));
                mask.collections.insert(collection);
            } else {
                mask.fields.insert((difference.object, difference.path));
            }
        }
        problems.sort();
        problems.dedup();
        let mut counts = without_random_parts(first.counts, &mask);
        for (object, count) in without_random_parts(second.counts, &mask) {
            let most = counts.entry(object).or_default();
            *most = [most[0].max(count[0]), most[1].max(count[1])];
        }
        let pace = Pace {
            start: first.pace.start.max(second.pace.start),
            pause: first.pace.pause.max(second.pace.pause),
            requests: first.pace.requests.max(second.pace.requests),
        };
        let Run { lab: first, state, loops, worked, requests, writes, .. } = first;
        let triggers = programs.iter().flat_map(|program| triggers(*program, &requests, &writes, &mask));
        let triggers = triggers.collect();
        let writes = writes.iter().map(|write| format!("{} {}", write.verb(), write.resource)).collect();
        Ok(Reference {
            scorecard,
            programs: programs.to_vec(),
            state,
            mask,
            counts,
            triggers,
            first,
            problems,
            loops,
            worked,
            writes,
            pace,
            jobs,
            disturbed,
            parallel_runs: Semaphore::new(jobs),
            settled: Mutex::default(),
            repaired: OnceCell::new(),
            deleted: OnceCell::new(),
            previous: OnceCell::new(),
            both: OnceCell::new(),
        })
    }

    /// An error if `keep` or `ignore` names a kind that the server does not have, after all that the operator has installed.
    pub(super) async fn validate_kinds(&self) -> Result<(), CannotJudge> {
        let Scorecard { keep, ignore, .. } = self.scorecard;
        let kept = keep.iter().map(|kind| ("--keep", kind, &**kind));
        let ignored = ignore.iter().map(|of| ("--ignore", of, of.split(':').next().unwrap_or_default()));
        let kinds = self.first.kinds().await;
        match kept.chain(ignored).find(|(.., kind)| !kinds.contains(*kind)) {
            Some((flag, value, kind)) => {
                Err(CannotJudge(format!("{flag} {value}: the server has no kind {kind}")))
            }
            None => Ok(()),
        }
    }

    /// What `--keep` and `--ignore` have, and no object of the first run.
    pub(super) fn unused_flags(&self) -> Vec<String> {
        self.first.unused_flags()
    }

    /// A new run, in which loops that are known do not count as work.
    pub(super) async fn lab(&self) -> Result<Lab<'a>, CannotJudge> {
        self.lab_with(None).await
    }

    /// As [`Reference::lab`], with an operator that has only these permissions.
    pub(super) async fn lab_with(&self, permissions: Option<Vec<Rule>>) -> Result<Lab<'a>, CannotJudge> {
        let mut lab = Lab::new(self.scorecard).await?;
        lab.programs.clone_from(&self.programs);
        lab.permissions = permissions;
        self.begin(lab).await
    }

    /// A run that begins with the state at a version of the first run without a fault.
    pub(super) async fn at(&self, version: u64) -> Result<Lab<'a>, CannotJudge> {
        let lab = Lab::at(&self.first, version).await?;
        lab.create_missing_samples(&self.first).await?;
        self.begin(lab).await
    }

    /// A run that begins with the state at a version of another run.
    pub(super) async fn at_version_of(&self, other: &Lab<'a>, version: u64) -> Result<Lab<'a>, CannotJudge> {
        self.begin(Lab::at(other, version).await?).await
    }

    /// A run that begins with the state that the previous version has left, with this operator.
    pub(super) async fn after_previous(&self, program: Program) -> Result<Lab<'a>, CannotJudge> {
        let previous = self.previous().await?;
        let mut lab = Lab::at(previous, previous.server.version()).await?;
        lab.programs = vec![program];
        lab.noise.clone_from(&previous.noise);
        self.begin(lab).await
    }

    async fn begin(&self, mut lab: Lab<'a>) -> Result<Lab<'a>, CannotJudge> {
        if self.jobs == 1 {
            // The operator that waits for the next check would be a second one.
            let given_back = self.given_back().pop();
            if let Some(lab) = given_back {
                lab.end().await;
            }
        }
        lab.pace = Some(self.pace);
        lab.noise.extend(self.loops.iter().cloned());
        lab.start()?;
        Ok(lab)
    }

    /// A run up to the settled operator, with the samples: one that was given back, or a new one.
    pub(super) async fn settled(&self) -> Result<Lab<'a>, CannotJudge> {
        let given_back = self.given_back().pop();
        if let Some(lab) = given_back {
            return Ok(lab);
        }
        let mut lab = self.lab().await?;
        lab.settle_with_samples().await?;
        Ok(lab)
    }

    /// The object that a create of the first run made.
    pub(super) fn created(&self, create: &Trigger) -> Value {
        let writes = self.first.server.writes_since(create.version - 1);
        let created = writes.into_iter().find(|write| write.version == create.version);
        created.and_then(|write| write.after).map(|object| Value::clone(&object)).unwrap_or_default()
    }

    /// Whether the operator asks for a page of a list.
    pub(super) fn reads_pages(&self) -> bool {
        let requests = self.first.server.requests();
        requests.iter().any(|request| Lab::is_of_operator(&request.user) && request.query.contains("limit="))
    }

    /// Ends the runs that were kept for further checks.
    pub(super) async fn end_given_back(&self) {
        let given_back = std::mem::take(&mut *self.given_back());
        for lab in given_back {
            lab.end().await;
        }
    }

    fn given_back(&self) -> MutexGuard<'_, Vec<Lab<'a>>> {
        self.settled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a run for the next check, if its operator has settled in the state of the reference.
    pub(super) async fn give_back(&self, mut lab: Lab<'a>) {
        lab.server.end_faults();
        let has_new_loops = lab.noise.len() > self.loops.len();
        let is_worn = has_new_loops || lab.deletions > DELETIONS_MAX;
        if is_worn || !self.state.differences(&lab.snapshot(), &self.mask).is_empty() {
            return lab.end().await;
        }
        lab.forget_incidents();
        // For a warning: the run has not ended, and is of another check then.
        journal::note(lab.journal(lab.version));
        self.given_back().push(lab);
    }

    /// A new run with a fault at a write of the operator, up to the settled operator.
    pub(super) async fn with_fault(&self, trigger: &Trigger, fault: Fault) -> Result<Lab<'a>, CannotJudge> {
        let mut lab = self.lab().await?;
        lab.server.fault(
            fault.on(&trigger.method, &trigger.path).by(&lab.user_of(trigger.program)).nth(trigger.nth),
        );
        lab.settle_with_samples().await?;
        Ok(lab)
    }

    /// A new run up to a write of the operator: it is held, or its answer. `None`: the write did not come.
    pub(super) async fn held_at(
        &self,
        trigger: &Trigger,
        hold: Fault,
    ) -> Result<Option<Lab<'a>>, CannotJudge> {
        let lab = self.with_fault(trigger, hold).await?;
        if lab.is_holding() {
            return Ok(Some(lab));
        }
        lab.end().await;
        Ok(None)
    }

    /// As [`Reference::settled`], with the children that the operator creates again, as they were, after the deletion of each alone.
    pub(super) async fn settled_with_repaired(&self) -> Result<(Lab<'a>, &[ChildKey]), CannotJudge> {
        // Not beside the run: the operator may be one that cannot run twice.
        let repaired = self.repaired().await?;
        Ok((self.settled().await?, repaired))
    }

    async fn repaired(&self) -> Result<&[ChildKey], CannotJudge> {
        let repaired = self.repaired.get_or_try_init(async || {
            let mut lab = self.settled().await?;
            let mut children: Vec<ChildKey> = lab.children().iter().map(ChildKey::of).collect();
            children.retain(|child| {
                !NOT_REPAIRED.contains(&&*child.kind) && !self.scorecard.keep.contains(&child.kind)
            });
            // All together, as each that does not come back costs the patience.
            let wrong = self.not_repaired(&mut lab, &children).await?;
            children.retain(|child| !wrong.contains(child));
            if !wrong.is_empty() {
                lab.end().await;
                lab = self.settled().await?;
            }
            // Then alone: the deletion of another one may have woken the operator.
            let mut repaired = Vec::new();
            for child in children {
                if self.not_repaired(&mut lab, slice::from_ref(&child)).await?.is_empty() {
                    repaired.push(child);
                } else {
                    lab.end().await;
                    lab = self.settled().await?;
                }
            }
            self.give_back(lab).await;
            Ok(repaired)
        });
        repaired.await.map(Vec::as_slice)
    }

    /// Deletes children. Returns those that do not come back as they were, and all if only something else is not as it was.
    async fn not_repaired(
        &self,
        lab: &mut Lab<'a>,
        deleted: &[ChildKey],
    ) -> Result<Vec<ChildKey>, CannotJudge> {
        lab.delete_children(deleted).await;
        lab.settle().await?;
        let wrong = |lab: &Lab<'_>| {
            let (differences, mut wrong) =
                (self.state.differences(&lab.snapshot(), &self.mask), lab.missing(deleted));
            let differs = |child: &&ChildKey| {
                let name = format!("{}/{}", child.resource, child.key);
                differences.iter().any(|difference| difference.object == name)
            };
            wrong.extend(deleted.iter().filter(differs).cloned());
            if wrong.is_empty() && !differences.is_empty() {
                wrong.extend_from_slice(deleted);
            }
            wrong
        };
        lab.lasting(wrong).await
    }

    /// A run whose custom resources are deleted.
    pub(super) async fn deleted(&self) -> Result<&Deleted<'a>, CannotJudge> {
        let deleted = self.deleted.get_or_try_init(async || {
            // Not one that was given back: the history of its server may no longer have all writes.
            let mut lab = self.lab().await?;
            lab.settle_with_samples().await?;
            let settled = lab.server.version();
            lab.delete_samples("Background").await;
            lab.settle().await?;
            lab.lasting(|lab| lab.remaining()).await?;
            let (requests, writes) = (lab.server.requests(), lab.work_since(settled));
            let writes = triggers(Program::Judged, &requests, &writes, &self.mask);
            lab.kill().await;
            Ok(Deleted { lab, writes })
        });
        deleted.await
    }

    /// A run whose samples were served by the previous version of the operator, which was killed when it had settled.
    pub(super) async fn previous(&self) -> Result<&Lab<'a>, CannotJudge> {
        let previous = self.previous.get_or_try_init(async || {
            let mut lab = Lab::new(self.scorecard).await?;
            lab.programs = vec![Program::Previous];
            let mut lab = self.begin(lab).await?;
            lab.settle_with_samples().await?;
            lab.settle_fully().await?;
            if lab.work_since(lab.version).is_empty() && lab.noise.is_empty() {
                return Err(CannotJudge("COMMAND wrote nothing after the samples were created".to_owned()));
            }
            lab.kill().await;
            Ok(lab)
        });
        previous.await.map_err(|CannotJudge(why)| CannotJudge(format!("--previous: {why}")))
    }

    /// The runs without a fault of this operator together with the one of [`Scorecard::and`].
    pub(super) async fn both(&self) -> Result<&Reference<'a>, CannotJudge> {
        let both = self.both.get_or_try_init(async || {
            if self.jobs == 1 {
                // The operator that waits for the next check would be a third one.
                self.end_given_back().await;
            }
            Ok(Box::new(Box::pin(Reference::of(self.scorecard, &[Program::Judged, Program::Other])).await?))
        });
        let both = both.await.map_err(|CannotJudge(why)| CannotJudge(format!("with --and: {why}")))?;
        Ok(both)
    }

    /// Waits until a run has the state of the reference.
    pub(super) async fn judge(&self, lab: &mut Lab<'_>, after: &str) -> Result<Verdict, CannotJudge> {
        lab.judge(&self.state, &self.mask, after).await
    }

    /// As [`Reference::judge`]. Nothing may have been created or deleted more often, either.
    pub(super) async fn judge_counts(&self, lab: &mut Lab<'_>, after: &str) -> Result<Verdict, CannotJudge> {
        let verdict = self.judge(lab, after).await?;
        Ok(match self.surplus(lab).first() {
            Some(surplus) if verdict.result == Outcome::Pass => Verdict::fail(format!("{after}: {surplus}")),
            _ => verdict,
        })
    }

    /// The objects that were created or deleted more often than in the reference.
    fn surplus(&self, lab: &Lab<'_>) -> Vec<String> {
        let mut surplus = Vec::new();
        for (object, [created, deleted]) in &without_random_parts(lab.counts(), &self.mask) {
            let collection = object.split('/').next().unwrap_or_default();
            let [most_created, most_deleted] = self.counts.get(object).copied().unwrap_or_default();
            if self.mask.collections.contains(collection) {
                continue;
            }
            if *created > most_created {
                surplus
                    .push(format!("{object} was created {created} times, without the fault {most_created}"));
            }
            if *deleted > most_deleted {
                surplus
                    .push(format!("{object} was deleted {deleted} times, without the fault {most_deleted}"));
            }
        }
        surplus
    }
}

impl Run<'_> {
    fn has_other_objects(&self, other: &Run<'_>) -> bool {
        let random_names = self.state.random_names(&other.state);
        let mask = Mask { random_names, ..Mask::default() };
        self.state.differences(&other.state, &mask).iter().any(|difference| difference.path.is_empty())
    }
}

/// Two runs without a fault, and how they disturbed each other when they ran at a time, as with a fixed port.
async fn two_runs<'a>(
    scorecard: &'a Scorecard,
    programs: &[Program],
) -> Result<(Run<'a>, Run<'a>, Option<String>), CannotJudge> {
    let run = || Box::pin(run(scorecard, programs));
    let mut disturbed = None;
    if scorecard.jobs > 1 {
        match tokio::join!(run(), run()) {
            (Ok(first), Ok(second))
                if first.problems.is_empty() == second.problems.is_empty()
                    && !first.has_other_objects(&second) =>
            {
                return Ok((first, second, None));
            }
            (Err(CannotJudge(one)), Err(CannotJudge(other))) => return Err(CannotJudge(both(one, &other))),
            (Err(CannotJudge(why)), Ok(_)) | (Ok(_), Err(CannotJudge(why))) => disturbed = Some(why),
            (Ok(_), Ok(_)) => disturbed = Some("they did not get to the same objects".to_owned()),
        }
    }
    let (mut first, mut second) = (run().await?, run().await?);
    if first.has_other_objects(&second) {
        // One of the two may have been cut short on a busy machine.
        first = std::mem::replace(&mut second, run().await?);
    }
    Ok((first, second, disturbed))
}

/// Why two runs at a time could not be judged. They may differ only in times and process ids.
fn both(one: String, other: &str) -> String {
    let without_numbers = |text: &str| text.replace(|c: char| c.is_ascii_digit(), "");
    if without_numbers(&one) == without_numbers(other) {
        one
    } else {
        format!("{one}; of a second run: {other}")
    }
}

async fn run<'a>(scorecard: &'a Scorecard, programs: &[Program]) -> Result<Run<'a>, CannotJudge> {
    let mut lab = Lab::started(scorecard, programs).await?;
    lab.create_samples().await?;
    let started = Instant::now();
    let first = lab.until_work_since(lab.version).await;
    let longest = lab.settle().await?;
    if let (Some(condition), Some(unmet)) = (&scorecard.settled, lab.unmet()) {
        let secs = scorecard.patience.as_secs();
        return Err(CannotJudge(format!("--settled {condition}: {unmet}, {secs} s after the last write")));
    }
    // It was quiet for as long at the end.
    let worked = started.elapsed().saturating_sub(scorecard.settle);
    let writes = lab.work_since(lab.version);
    if writes.is_empty() && lab.noise.is_empty() {
        return Err(CannotJudge(
            "COMMAND wrote nothing after the samples were created: does it watch their namespace?".to_owned(),
        ));
    }
    let mut problems = lab.dead_owners();
    problems.extend(lab.incidents());
    let (state, counts, requests) = (lab.snapshot(), lab.counts(), lab.server.requests());
    let sent = lab.sent();
    lab.poke().await;
    lab.settle().await?;
    let after_poke = u32::try_from(lab.sent() - sent).unwrap_or(u32::MAX);
    let poked = lab.snapshot();
    lab.kill().await;
    Ok(Run {
        state,
        poked,
        counts,
        problems,
        loops: lab.noise.iter().cloned().collect(),
        worked,
        requests,
        writes,
        pace: Pace { start: lab.started_within, pause: first.max(longest), requests: after_poke },
        lab,
    })
}

/// The numbers by names with `*` for random parts.
fn without_random_parts(counts: BTreeMap<String, [usize; 2]>, mask: &Mask) -> BTreeMap<String, [usize; 2]> {
    let (parts, mut sums) = (mask.random_parts(counts.keys()), BTreeMap::<String, [usize; 2]>::new());
    for (object, [created, deleted]) in &counts {
        let sum = sums.entry(without_parts(object, &parts)).or_default();
        *sum = [sum[0] + created, sum[1] + deleted];
    }
    sums
}

/// The writes of a program as triggers, each with its number among the requests that a fault with its method and path counts.
fn triggers(
    program: Program,
    requests: &[RequestRecord],
    writes: &[WriteRecord],
    mask: &Mask,
) -> Vec<Trigger> {
    let is_own = |user: &str| Program::of_user(user) == Some(program);
    let own: Vec<&RequestRecord> = requests.iter().filter(|request| is_own(&request.user)).collect();
    let writes: Vec<&WriteRecord> = writes.iter().filter(|write| is_own(&write.user)).collect();
    let names = writes.iter().map(|write| {
        let object = write.after.as_ref().or(write.before.as_ref());
        object.map(|object| name_of(&write.resource, &write.object, object)).unwrap_or_default()
    });
    let names: Vec<String> = names.collect();
    let parts = mask.random_parts(names.iter());
    let mut triggers: Vec<Trigger> = Vec::new();
    let mut from = 0;
    for (write, name) in writes.into_iter().zip(&names) {
        let is_it = |request: &&RequestRecord| {
            request.method == write.method && request.path == write.path && request.status < 300
        };
        let Some(at) = own[from..].iter().position(is_it) else { continue };
        from += at + 1;
        let object = without_parts(name, &parts);
        if object.contains('*') && write.method != "POST" {
            continue;
        }
        let verb = if write.path.ends_with("/status") { "status" } else { write.verb() };
        let name = format!("{verb}/{object}");
        let before = triggers.iter().filter(|trigger| trigger.name.starts_with(&format!("{name}#"))).count();
        if before == OCCURRENCES_MAX {
            continue;
        }
        let matches = |request: &&&RequestRecord| {
            request.method == write.method
                && format!("{}?{}", request.path, request.query).contains(&write.path)
        };
        let nth = own[..from].iter().filter(matches).count() as u64;
        let (method, path, version) = (write.method.clone(), write.path.clone(), write.version);
        triggers.push(Trigger {
            name: format!("{name}#{}", before + 1),
            program,
            method,
            path,
            nth,
            version,
        });
    }
    triggers
}
