//! Once settled, the operator writes nothing, and a change that means nothing costs at most two writes of each object.
//!
//! It would have found konflux-ci/konflux-ci#5874: each status write triggers the next one, 1,350 reconciles a second.

use std::collections::{BTreeMap, BTreeSet};

use super::super::{lab::Lab, reference::Reference, report::Verdict, settings::CannotJudge};

/// Periods without a write that must follow each other. A busy machine gets as many attempts.
const PERIODS: usize = 3;

/// Writes of one object after a change that means nothing: of it, and of its status.
const WRITES_PER_POKE: usize = 2;

pub(in super::super) async fn check(reference: &Reference<'_>) -> Result<Verdict, CannotJudge> {
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
    if let Some(writes) = writes(&mut lab, &known).await? {
        return Ok(Verdict::fail(writes));
    }
    if let Some(loops) = poke(&mut lab).await? {
        return Ok(Verdict::fail(loops));
    }
    reference.give_back(lab).await;
    Ok(Verdict::pass("no write once settled"))
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
        *counts.entry(format!("{}/{}", write.resource, write.object)).or_default() += 1;
    }
    let most = counts.into_iter().find(|(_, count)| *count > WRITES_PER_POKE);
    Ok(most.map(|(object, count)| {
        format!("after a new annotation on the custom resource, {count} writes of {object}")
    }))
}

/// What the operator has begun to write for ever.
fn loops(lab: &Lab<'_>, known: &BTreeSet<(String, String)>) -> Option<String> {
    let (object, path) = lab.noise.difference(known).next()?;
    Some(format!("writes {object} for ever: {path}"))
}

/// The operator's writes since a version: `update configmaps/default/web .data.time`.
fn described(lab: &Lab<'_>, version: u64) -> Vec<String> {
    let writes = lab.work_since(version);
    let text = writes.iter().map(|write| {
        format!("{} {}/{} {}", write.verb(), write.resource, write.object, write.changed_paths().join(", "))
    });
    text.collect()
}
