//! Once settled, the operator writes nothing, sends few requests and needs little CPU time, and a change that means nothing costs at most two
//! writes of each object.
//!
//! It would have found konflux-ci/konflux-ci#5874: each status write triggers the next one, 1,350 reconciles a second.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    lab::{Lab, name_of},
    reference::Reference,
    report::Verdict,
    settings::CannotJudge,
};

/// Periods without a write that must follow each other. A busy machine gets as many attempts.
const PERIODS: usize = 3;

/// Writes of one object after a change that means nothing: of it, and of its status.
const WRITES_PER_POKE: usize = 2;

/// How long the load of the settled operator is measured.
const IDLE: Duration = Duration::from_secs(2);

/// Requests in a second that are too many for a settled operator. Its Leases do not count.
const REQUESTS_PER_SEC_MAX: f64 = 10.0;

/// The share of a CPU that is too much for a settled operator.
const CPU_MAX: f64 = 0.2;

pub(crate) async fn check(reference: &Reference<'_>) -> Result<Verdict, CannotJudge> {
    if let Some((object, path)) = reference.loops.first() {
        let fields = reference.loops.iter().filter(|(of, _)| of == object).map(|(_, path)| path.as_str());
        let what = if path.is_empty() {
            "is created and deleted".to_owned()
        } else {
            fields.collect::<Vec<_>>().join(", ")
        };
        return Ok(Verdict::fail(format!("writes {object} for ever: {what}")));
    }
    let mut lab = reference.settled().await?;
    let known = lab.noise.clone();
    if let Some(unrest) = unrest(&mut lab, &known).await? {
        return Ok(Verdict::fail(unrest));
    }
    reference.give_back(lab).await;
    Ok(Verdict::pass("no write once settled"))
}

/// What an operator that has settled does too much of: writes, but for those that are `known`, requests, CPU time.
pub(super) async fn unrest(
    lab: &mut Lab<'_>,
    known: &BTreeSet<(String, String)>,
) -> Result<Option<String>, CannotJudge> {
    if let Some(writes) = writes(lab, known).await? {
        return Ok(Some(writes));
    }
    if let Some(load) = idle_load(lab).await {
        return Ok(Some(load));
    }
    poke(lab).await
}

/// Waits for writes of an operator that has settled. What it writes, or has begun to write for ever since `known`.
pub(super) async fn writes(
    lab: &mut Lab<'_>,
    known: &BTreeSet<(String, String)>,
) -> Result<Option<String>, CannotJudge> {
    let mut written = Vec::new();
    for _ in 0..PERIODS {
        let version = lab.server.version();
        for _ in 0..PERIODS {
            lab.settle_fully().await?;
        }
        written = described(lab, version);
        if written.is_empty() {
            break;
        }
    }
    let first = |first| format!("{} writes after it had settled; the first: {first}", written.len());
    Ok(loops(lab, known).or_else(|| written.first().map(first)))
}

/// What the settled operator does too much of, in each of the periods.
async fn idle_load(lab: &Lab<'_>) -> Option<String> {
    let mut load = None;
    for _ in 0..PERIODS {
        let (started, sent, cpu) = (Instant::now(), lab.sent(), lab.cpu_time());
        let has_slept = lab.wait(IDLE).await;
        let secs = started.elapsed().as_secs_f64();
        let sent = u32::try_from(lab.sent().saturating_sub(sent)).unwrap_or(u32::MAX);
        let cpu = lab.cpu_time().saturating_sub(cpu).as_secs_f64();
        load = if f64::from(sent) > REQUESTS_PER_SEC_MAX * secs {
            Some(format!("{sent} requests in {secs:.1} s after it had settled"))
        } else if cpu > CPU_MAX * secs || cpu > 0.0 && !has_slept {
            // On a busy machine, a loop without a pause gets less time, but is never asleep.
            Some(format!("{cpu:.1} s of CPU time in {secs:.1} s after it had settled"))
        } else {
            return None;
        };
    }
    load
}

/// Changes an annotation that means nothing. What is written too often after it.
pub(super) async fn poke(lab: &mut Lab<'_>) -> Result<Option<String>, CannotJudge> {
    let (version, known) = (lab.server.version(), lab.noise.clone());
    lab.poke().await;
    lab.settle().await?;
    if let Some(loops) = loops(lab, &known) {
        return Ok(Some(loops));
    }
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for write in lab.work_since(version) {
        *counts.entry(name_of(&write)).or_default() += 1;
    }
    let most = counts.into_iter().find(|(_, count)| *count > WRITES_PER_POKE);
    Ok(most.map(|(object, count)| {
        format!("after a new annotation on the custom resource, {count} writes of {object}")
    }))
}

/// What the operator has begun to write for ever.
pub(super) fn loops(lab: &Lab<'_>, known: &BTreeSet<(String, String)>) -> Option<String> {
    let (object, path) = lab.noise.difference(known).next()?;
    Some(format!("writes {object} for ever: {path}"))
}

/// The operator's writes since a version: `update configmaps/default/web .data.time`.
pub(super) fn described(lab: &Lab<'_>, version: u64) -> Vec<String> {
    let writes = lab.work_since(version);
    let text = writes
        .iter()
        .map(|write| format!("{} {} {}", write.verb(), name_of(write), write.changed_paths().join(", ")));
    text.collect()
}
