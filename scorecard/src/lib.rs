//! Finds the bugs of an operator in any language: starts it as a process against a server of its own, causes faults at exact points, and
//! compares with runs without a fault.
//!
//! ```no_run
//! # use listwatch_scorecard::{self as scorecard, Scorecard};
//! # async fn example(crds: Vec<serde_json::Value>, samples: Vec<serde_json::Value>) {
//! let command = vec!["target/debug/my-operator".to_owned()];
//! let report = scorecard::run(&Scorecard::new(crds, samples, command), |_| {}).await.expect("an operator that starts");
//! assert_eq!(report.failed().map(ToString::to_string).collect::<Vec<_>>(), Vec::<String>::new());
//! # }
//! ```
//!
//! Nobody writes assertions: what a run without a fault leads to is expected of each run with one.
//!
//! ```text
//! static_checks/ one file for each check of files alone
//! checks/    one file for each check of a running operator
//! trial      samples with other specs
//! fault_choice the faults of a check that a run tries
//! spec_changes what a CRD suggests to change
//! observe    one run without a fault, for others to judge, and a program with a kubeconfig
//! reference  two runs without a fault; runs up to a write
//! lab        a run: server, operator, samples; when it has settled
//! snapshot   the state of a server without what is random, and differences
//! process    the operators' processes
//! journal    what happened in a run
//! report     results
//! sample_condition when a sample is settled
//! settings   what to test, and how
//! ```

mod static_checks;
mod checks;
mod trial;
mod fault_choice;
mod observe;
mod spec_changes;
mod reference;
mod lab;
mod snapshot;
mod process;
mod journal;
mod report;
mod sample_condition;
mod settings;

use std::{pin::pin, time::Instant};

use futures_util::{StreamExt, stream};

pub use self::{
    journal::Journal,
    lab::retries_max,
    observe::{EVENTS_MAX, Then, observe, run_program},
    report::{CheckResult, Outcome, Report, Verdict},
    sample_condition::SampleCondition,
    settings::{CannotJudge, Extent, Scorecard},
    snapshot::Mismatch,
};
use self::{process::Program, reference::Reference};

/// The names of the checks, in the order in which they run.
#[must_use]
pub fn names() -> Vec<&'static str> {
    summaries().map(|(name, _)| name).collect()
}

/// What a check of [`names`] does, in one sentence. Empty: there is no such check.
#[must_use]
pub fn summary(check: &str) -> &'static str {
    summaries().find(|(name, _)| *name == check).map(|(_, summary)| summary).unwrap_or_default()
}

fn summaries() -> impl Iterator<Item = (&'static str, &'static str)> {
    let of_runs = checks::CHECKS.into_iter().map(|(name, summary, ..)| (name, summary));
    static_checks::CHECKS.into_iter().chain(of_runs)
}

/// The names of the checks that [`run`] runs.
#[must_use]
pub fn selected(scorecard: &Scorecard) -> Vec<&'static str> {
    of_files(scorecard).chain(of_runs(scorecard).map(|(name, ..)| name)).collect()
}

/// The checks of files to run.
fn of_files(scorecard: &Scorecard) -> impl Iterator<Item = &'static str> {
    static_checks::CHECKS.into_iter().map(|(name, _)| name).filter(|name| scorecard.has(name, Extent::Quick))
}

/// The checks of the running operator to run.
fn of_runs(scorecard: &Scorecard) -> impl Iterator<Item = checks::NamedCheck> {
    let is_only_files = scorecard.command.is_empty() && scorecard.only.is_empty();
    let checks = checks::CHECKS.into_iter().filter(move |_| !is_only_files);
    checks.filter(|(name, _, extent, _)| scorecard.has(name, *extent))
}

/// The names of the faults of a check, as `--only CHECK:FAULT` has them. They follow from runs of the operator without a fault.
///
/// # Errors
///
/// If the check has no faults to choose from, or the operator cannot be judged.
pub async fn faults(scorecard: &Scorecard, check: &str) -> Result<Vec<String>, CannotJudge> {
    checks::validate_with_faults("--list-faults", check, check)?;
    process::validate_placeholders(&scorecard.command, scorecard)?;
    checks::faults_of(check, &Reference::of(scorecard, &[Program::Judged]).await?).await
}

/// Runs the checks. `done` is called after each.
///
/// Dropping the future kills the operator.
///
/// # Errors
///
/// If the operator cannot be judged: it does not start, does not connect, or writes nothing; or a CRD or a sample is invalid.
/// Without a command, only the checks of files run.
pub async fn run(scorecard: &Scorecard, done: impl FnMut(&CheckResult)) -> Result<Report, CannotJudge> {
    // Large: it has all checks.
    journal::with_asked(Box::pin(run_all(scorecard, done))).await
}

async fn run_all(scorecard: &Scorecard, mut done: impl FnMut(&CheckResult)) -> Result<Report, CannotJudge> {
    checks::validate_only(&scorecard.only, &names())?;
    process::validate_placeholders(&scorecard.command, scorecard)?;
    process::validate_placeholders(&scorecard.previous, scorecard)?;
    process::validate_placeholders(&scorecard.and, scorecard)?;
    lab::webhooks::validate(scorecard)?;
    lab::remove_left_behind();
    let mut report = Report { checks: Vec::new(), seed: scorecard.seed };
    let mut add = |report: &mut Report, check: CheckResult| {
        done(&check);
        report.checks.push(check);
    };
    for name in of_files(scorecard) {
        let started = Instant::now();
        let verdict = static_checks::run(name, scorecard).await?;
        add(&mut report, CheckResult { name, verdict, elapsed: started.elapsed(), journal: None });
    }
    let of_runs: Vec<_> = of_runs(scorecard).collect();
    if of_runs.is_empty() {
        return Ok(report);
    }
    checks::shipped_role::rules(&scorecard.rbac)?;
    scorecard.validate_ignored_paths()?;
    let (reference, without_fault) = journal::recorded(Reference::of(scorecard, &[Program::Judged])).await;
    let reference = reference?;
    reference.validate_kinds().await?;
    checks::validate_faults(&reference).await?;
    let runs = |check: &str| of_runs.iter().any(|(name, ..)| *name == check);
    if !scorecard.previous.is_empty() && runs(checks::upgrade::NAME) {
        reference.previous().await?;
    }
    if !scorecard.and.is_empty() && runs(checks::two_operators::NAME) {
        reference.both().await?;
    }
    let run = async |(name, _, _, run): checks::NamedCheck| {
        let started = Instant::now();
        let (verdict, journal) = journal::recorded(run(&reference)).await;
        let journal = journal.or_else(|| without_fault.clone());
        // Without a fault it could be judged.
        let verdict = verdict.unwrap_or_else(|CannotJudge(why)| Verdict::fail(why));
        CheckResult { name, verdict, elapsed: started.elapsed(), journal }
    };
    let (last, others): (Vec<_>, Vec<_>) =
        of_runs.into_iter().partition(|(name, ..)| *name == checks::shipped_role::NAME);
    let mut others = pin!(stream::iter(others.into_iter().map(&run)).buffered(reference.jobs));
    while let Some(check) = others.next().await {
        add(&mut report, check);
    }
    for check in last {
        add(&mut report, run(check).await);
    }
    Ok(report)
}
