//! The checks. To add one, write a file beside the others and its line in [`CHECKS`].

mod accepts_valid_objects;
mod api_server_outage;
mod applies_spec_changes;
mod comes_back;
mod converges;
mod changes_in_a_row;
mod two_namespaces;
mod shared_children;
mod one_bad_object;
mod namespace_deleted;
mod name_taken;
mod follows_inputs;
mod foreign_writers;
mod conflicts;
mod crash_between_writes;
mod deletes_cleanly;
mod half_list;
mod honest_status;
mod lagging_watch;
mod long_lists;
mod lost_answers;
mod missed_events;
mod mutated_writes;
mod permission_lost;
mod quiet;
mod recreated;
mod refused_writes;
mod repairs_drift;
mod restart_is_silent;
mod restored_backup;
pub(super) mod shipped_role;
mod slow_answers;
mod stalled_watch;
mod time_travel;
mod throttled;
pub(super) mod two_operators;
pub(super) mod upgrade;
mod watches_come_back;
mod webhook_certificate;
mod webhook_conversion;
mod webhook_down;
mod webhook_old_objects;
mod webhook_slow;
mod webhook_twice;

use std::{collections::BTreeMap, pin::pin};

use futures_util::{
    FutureExt, StreamExt,
    future::{LocalBoxFuture, ready},
    stream,
};

use super::{
    journal,
    lab::{ChildKey, Lab},
    reference::Reference,
    report::{Outcome, Verdict},
    settings::{CannotJudge, Extent},
    spec_changes::Intent,
    trial,
};

/// The name of a check, what it does in one sentence, the least extent that has it, and how it runs.
pub(super) type NamedCheck = (&'static str, &'static str, Extent, CheckRun);

type CheckRun = for<'r, 'a> fn(&'r Reference<'a>) -> LocalBoxFuture<'r, Result<Verdict, CannotJudge>>;

/// The checks in the order in which they run: those that find most first.
#[rustfmt::skip]
pub(super) const CHECKS: [NamedCheck; 44] = [
    ("converges", "Two runs without a fault must get to the same objects.", Extent::Quick, |reference| ready(Ok(converges::check(reference))).boxed_local()),
    ("quiet", "Without a fault, the operator must stop writing when it has settled.", Extent::Quick, |reference| quiet::check(reference).boxed_local()),
    ("restart-is-silent", "The settled operator is killed and started again: it must write nothing.", Extent::Quick, |reference| restart_is_silent::check(reference).boxed_local()),
    ("repairs-drift", "Children are deleted and changed: they must come back.", Extent::Quick, |reference| repairs_drift::check(reference).boxed_local()),
    (deletes_cleanly::NAME, "The custom resource is deleted: it and its children must go away.", Extent::Quick, |reference| deletes_cleanly::check(reference).boxed_local()),
    (crash_between_writes::NAME, "The operator is killed after each of its writes: it must still get to the same state.", Extent::Quick, |reference| crash_between_writes::check(reference).boxed_local()),
    // Among the longest, so not at the end.
    ("time-travel", "The operator starts with old data, from before a deletion: it must not act on it.", Extent::Checks, |reference| time_travel::check(reference).boxed_local()),
    (applies_spec_changes::NAME, "Fields of the spec are changed, and changed back: the children must follow.", Extent::Checks, |reference| applies_spec_changes::check(reference).boxed_local()),
    (changes_in_a_row::NAME, "Fields are changed while the operator works: the last spec must win.", Extent::Checks, |reference| changes_in_a_row::check(reference).boxed_local()),
    ("follows-inputs", "Other objects of the samples, such as Secrets, change: the children must follow.", Extent::Checks, |reference| follows_inputs::check(reference).boxed_local()),
    (comes_back::NAME, "Mistakes, such as a missing image, are made and taken back: the state must be as before.", Extent::Checks, |reference| comes_back::check(reference).boxed_local()),
    (honest_status::NAME, "No Pod can start, and fields change: the status may not be Ready too early.", Extent::Checks, |reference| honest_status::check(reference).boxed_local()),
    (accepts_valid_objects::NAME, "Objects that the schema allows are created: the operator must go on.", Extent::Checks, |reference| accepts_valid_objects::check(reference).boxed_local()),
    (lost_answers::NAME, "Creates take effect, but their answers are lost: nothing may exist twice.", Extent::Checks, |reference| lost_answers::check(reference).boxed_local()),
    ("refused-writes", "Each write gets a 500 once: it must be tried again.", Extent::Checks, |reference| refused_writes::check(reference).boxed_local()),
    ("recreated", "The custom resource is deleted, and created again under the same name.", Extent::Checks, |reference| recreated::check(reference).boxed_local()),
    ("missed-events", "Children are deleted in a gap of the watch: they must come back.", Extent::Checks, |reference| missed_events::check(reference).boxed_local()),
    ("half-list", "The second half of a list comes late: the operator may not act on the first half alone.", Extent::Checks, |reference| half_list::check(reference).boxed_local()),
    ("long-lists", "There are 600 more objects: the operator must read all pages of a list.", Extent::Checks, |reference| long_lists::check(reference).boxed_local()),
    (lagging_watch::NAME, "A watch is late while children are created: nothing may be created twice.", Extent::Checks, |reference| lagging_watch::check(reference).boxed_local()),
    ("watches-come-back", "Watches end in all ways: the operator must open them again.", Extent::Checks, |reference| watches_come_back::check(reference).boxed_local()),
    ("api-server-outage", "The API server is away for three seconds: the operator must go on, without too many requests.", Extent::Checks, |reference| api_server_outage::check(reference).boxed_local()),
    ("permission-lost", "A kind is forbidden for a while: the operator must go on afterwards.", Extent::Checks, |reference| permission_lost::check(reference).boxed_local()),
    ("throttled", "Requests get a 429: the operator must wait as long as it says.", Extent::Checks, |reference| throttled::check(reference).boxed_local()),
    ("slow-answers", "Answers are slow: the operator must get to the same state, and be quiet.", Extent::Checks, |reference| slow_answers::check(reference).boxed_local()),
    ("conflicts", "Somebody writes just before an update of the operator: that write must stay.", Extent::Checks, |reference| conflicts::check(reference).boxed_local()),
    ("foreign-writers", "Somebody adds labels, annotations and objects: they must stay.", Extent::Checks, |reference| foreign_writers::check(reference).boxed_local()),
    ("mutated-writes", "A webhook changes what the operator writes: the operator must be quiet.", Extent::Checks, |reference| mutated_writes::check(reference).boxed_local()),
    (name_taken::NAME, "Objects of somebody else have the names of the children: they must stay as they are.", Extent::Checks, |reference| name_taken::check(reference).boxed_local()),
    ("namespace-deleted", "The namespace is deleted: it must go away.", Extent::Checks, |reference| namespace_deleted::check(reference).boxed_local()),
    ("one-bad-object", "All creates for one custom resource are refused: the others must still be served.", Extent::Checks, |reference| one_bad_object::check(reference).boxed_local()),
    ("two-namespaces", "The samples also exist in a second namespace, where they are then deleted.", Extent::Checks, |reference| two_namespaces::check(reference).boxed_local()),
    ("shared-children", "A second custom resource comes and goes: the children of the first must stay.", Extent::Checks, |reference| shared_children::check(reference).boxed_local()),
    (upgrade::NAME, "A new version takes over from the previous one: the state must be that of the new one.", Extent::Checks, |reference| upgrade::check(reference).boxed_local()),
    (two_operators::NAME, "Two operators run together: no field may be written by both.", Extent::Checks, |reference| two_operators::check(reference).boxed_local()),
    ("webhook-conversion", "Objects are converted between versions, and back: nothing may be lost.", Extent::Checks, |reference| webhook_conversion::check(reference).boxed_local()),
    ("webhook-old-objects", "Objects that the webhooks refuse exist already: it must be possible to delete them.", Extent::Checks, |reference| webhook_old_objects::check(reference).boxed_local()),
    ("webhook-down", "The webhooks are down: deletions must be accepted.", Extent::Checks, |reference| webhook_down::check(reference).boxed_local()),
    ("webhook-twice", "Each webhook is called again with its own output: nothing may change.", Extent::Checks, |reference| webhook_twice::check(reference).boxed_local()),
    ("webhook-certificate", "The certificate is replaced: the operator must serve the new one.", Extent::Checks, |reference| webhook_certificate::check(reference).boxed_local()),
    ("webhook-slow", "Answers to the operator are slow: the webhooks must answer in time.", Extent::Checks, |reference| webhook_slow::check(reference).boxed_local()),
    ("restored-backup", "A backup of the API server is restored, so versions go back: the operator must go on.", Extent::Faults, |reference| restored_backup::check(reference).boxed_local()),
    ("stalled-watch", "Open watches are silent for minutes: children that are deleted meanwhile must come back.", Extent::Faults, |reference| stalled_watch::check(reference).boxed_local()),
    // It compares the requests of all checks.
    (shipped_role::NAME, "The operator has only the permissions of its Roles: they must be enough.", Extent::Checks, |reference| shipped_role::check(reference).boxed_local()),
];

type Faults = for<'r, 'a> fn(&'r Reference<'a>) -> LocalBoxFuture<'r, Result<Vec<String>, CannotJudge>>;

/// The checks of whose faults `--only CHECK:FAULT` chooses one, and the names of these faults.
#[rustfmt::skip]
const WITH_FAULTS: [(&str, Faults); 11] = [
    (changes_in_a_row::NAME, |reference| changes_in_a_row::faults(reference).boxed_local()),
    (deletes_cleanly::NAME, |reference| deletes_cleanly::faults(reference).boxed_local()),
    (crash_between_writes::NAME, |reference| ready(Ok(crash_between_writes::faults(reference))).boxed_local()),
    (applies_spec_changes::NAME, |reference| trial::names(reference, Intent::Change).boxed_local()),
    (comes_back::NAME, |reference| trial::names(reference, Intent::Mistake).boxed_local()),
    (honest_status::NAME, |reference| trial::names(reference, Intent::Change).boxed_local()),
    (accepts_valid_objects::NAME, |reference| accepts_valid_objects::faults(reference).boxed_local()),
    (lost_answers::NAME, |reference| ready(Ok(lost_answers::faults(reference))).boxed_local()),
    (lagging_watch::NAME, |reference| ready(Ok(lagging_watch::faults(reference))).boxed_local()),
    (name_taken::NAME, |reference| ready(Ok(name_taken::faults(reference))).boxed_local()),
    (two_operators::NAME, |reference| two_operators::faults(reference).boxed_local()),
];

/// The names of the faults of a check of [`WITH_FAULTS`].
pub(super) async fn faults_of(check: &str, reference: &Reference<'_>) -> Result<Vec<String>, CannotJudge> {
    match WITH_FAULTS.iter().find(|(name, _)| *name == check) {
        Some((_, faults)) => faults(reference).await,
        None => Ok(Vec::new()),
    }
}

/// An error if `--only` names a check that does not exist, or a fault of a check that has none to choose from.
pub(super) fn validate_only(only: &[String], names: &[&str]) -> Result<(), CannotJudge> {
    for only in only {
        let (check, fault) =
            only.split_once(':').map_or((&**only, None), |(check, fault)| (check, Some(fault)));
        if !names.contains(&check) {
            return Err(CannotJudge(format!(
                "--only {only}: is not a check; there are {}",
                names.join(", ")
            )));
        }
        if fault.is_some() {
            validate_with_faults("--only", only, check)?;
        }
    }
    Ok(())
}

/// An error if a check has no faults to choose from.
pub(super) fn validate_with_faults(flag: &str, value: &str, check: &str) -> Result<(), CannotJudge> {
    let names = WITH_FAULTS.map(|(name, _)| name);
    if names.contains(&check) {
        return Ok(());
    }
    let others = names.join(", ");
    Err(CannotJudge(format!("{flag} {value}: only these have faults to choose from: {others}")))
}

/// An error if `--only` names a fault that this operator's runs do not have.
pub(super) async fn validate_faults(reference: &Reference<'_>) -> Result<(), CannotJudge> {
    for only in &reference.scorecard.only {
        let Some((check, fault)) = only.split_once(':') else { continue };
        let faults = faults_of(check, reference).await?;
        if !faults.iter().any(|one| one == fault) {
            let faults = faults.join(", ");
            return Err(CannotJudge(format!("--only {only}: there is no such fault; there are {faults}")));
        }
    }
    Ok(())
}

/// Children by what the watches of their kind have in their targets.
fn by_kind(children: &[ChildKey]) -> BTreeMap<String, Vec<ChildKey>> {
    let mut kinds: BTreeMap<String, Vec<ChildKey>> = BTreeMap::new();
    for child in children {
        kinds.entry(child.watch_path()).or_default().push(child.clone());
    }
    kinds
}

/// A run with the settled operator, and the children that it creates again after their deletion. `None`: there are none.
async fn with_children<'r, 'a>(
    reference: &'r Reference<'a>,
) -> Result<Option<(Lab<'a>, &'r [ChildKey])>, CannotJudge> {
    let (lab, children) = reference.settled_with_repaired().await?;
    if children.is_empty() {
        reference.give_back(lab).await;
        return Ok(None);
    }
    Ok(Some((lab, children)))
}

/// The result of a check of webhooks without any.
fn no_webhooks() -> Verdict {
    Verdict::new(Outcome::Skip, "no --webhooks is given")
}

fn no_children() -> Verdict {
    Verdict::new(Outcome::Skip, "no deleted child comes back as it was, under its name")
}

/// The failure that ends a check. A warning is kept in `late`.
fn failure(verdict: Verdict, late: &mut Option<Verdict>) -> Option<Verdict> {
    match verdict.result {
        Outcome::Fail => return Some(verdict),
        Outcome::Warn => *late = Some(verdict),
        Outcome::Pass | Outcome::Skip => {}
    }
    None
}

/// Whether something fails in a settled run without a fault as well. Kills the operator of the run that failed.
async fn fails_without_fault(
    reference: &Reference<'_>,
    failed: &mut Lab<'_>,
    run: impl AsyncFn(&mut Lab<'_>) -> Result<Verdict, CannotJudge>,
) -> Result<bool, CannotJudge> {
    // Not beside the other run: the operator may be one that cannot run twice.
    failed.kill().await;
    let mut without = reference.settled().await?;
    let verdict = run(&mut without).await?;
    without.end().await;
    Ok(verdict.result == Outcome::Fail)
}

/// Runs a fault, and once more if it fails: a failure that shows only once may have another cause.
async fn judged_twice(run: impl AsyncFn() -> Result<Verdict, CannotJudge>) -> Result<Verdict, CannotJudge> {
    let (verdict, journal) = journal::recorded(run()).await;
    let mut verdict = verdict?;
    if verdict.result == Outcome::Fail && run().await?.result == Outcome::Pass {
        verdict.result = Outcome::Warn;
        verdict.reason.push_str(" (in one of two runs)");
    }
    // Not the journal of the second run.
    journal.into_iter().for_each(journal::note);
    Ok(verdict)
}

/// Runs faults, as many at a time as the operator can run, up to the first failure. Returns this, or else a warning, or a pass, or a skip, if there is
/// any. The record of its run is that of the check.
async fn worst(
    reference: &Reference<'_>,
    runs: impl Iterator<Item = impl Future<Output = Result<Verdict, CannotJudge>>>,
) -> Result<Option<Verdict>, CannotJudge> {
    let severity = |verdict: &Verdict| match verdict.result {
        Outcome::Skip => 0,
        Outcome::Pass => 1,
        Outcome::Warn => 2,
        Outcome::Fail => 3,
    };
    let one = async |run| {
        // Other checks run at the same time.
        let _permit = reference.parallel_runs.acquire().await;
        journal::recorded(run).await
    };
    // Large: each is a run.
    let runs = runs.map(|run| Box::pin(one(run)));
    let mut runs = pin!(stream::iter(runs).buffered(reference.jobs));
    let mut worst: Option<Verdict> = None;
    while let Some((verdict, journal)) = runs.next().await {
        let verdict = verdict?;
        if worst.as_ref().is_some_and(|worst| severity(worst) >= severity(&verdict)) {
            continue;
        }
        let is_failure = verdict.result == Outcome::Fail;
        worst = Some(verdict);
        // Not the journal of another run, which ends later.
        journal.into_iter().for_each(journal::note);
        if is_failure {
            break;
        }
    }
    Ok(worst)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::Journal;

    /// It was that of the second run, in which nothing is wrong.
    #[tokio::test]
    async fn a_failure_of_one_of_two_runs_is_a_warning_with_the_journal_of_the_failure() {
        let runs = Cell::new(0);
        let run = async || {
            runs.set(runs.get() + 1);
            let log = format!("run {}", runs.get());
            journal::note(Journal { requests: Vec::new(), writes: Vec::new(), events: Vec::new(), log });
            Ok(if runs.get() == 1 { Verdict::fail("late") } else { Verdict::pass("good") })
        };
        let (verdict, journal) = journal::recorded(judged_twice(run)).await;
        assert_eq!(verdict.expect("a verdict").result, Outcome::Warn);
        assert_eq!(journal.expect("a journal").log, "run 1");
    }
}
