//! The results of the checks: one line for each on a terminal, or JSON.

use std::{fmt, time::Duration};

use serde_json::{Value, json};

use super::snapshot::Mismatch;

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing was found.
    Pass,
    /// A fault of the operator.
    Fail,
    /// Something to look at: the operator recovers, but late.
    Warn,
    /// It cannot be judged.
    Skip,
}

/// What a check found.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// The result.
    pub result: Outcome,
    /// Why, in one line.
    pub reason: String,
    /// What differs from the runs without a fault.
    pub evidence: Vec<Mismatch>,
    /// For a check with several faults, the one that failed: `create/services/default/web#1`.
    pub trigger: Option<String>,
}

impl Verdict {
    pub(super) fn new(result: Outcome, reason: impl Into<String>) -> Verdict {
        Verdict { result, reason: reason.into(), evidence: Vec::new(), trigger: None }
    }

    pub(super) fn pass(reason: impl Into<String>) -> Verdict {
        Verdict::new(Outcome::Pass, reason)
    }

    pub(super) fn fail(reason: impl Into<String>) -> Verdict {
        Verdict::new(Outcome::Fail, reason)
    }

    /// The differences that lasted after a fault, the first of them in the reason.
    pub(super) fn differs(result: Outcome, after: &str, evidence: Vec<Mismatch>) -> Verdict {
        let first = evidence.first().map(ToString::to_string).unwrap_or_default();
        let more = match evidence.len() {
            0 | 1 => String::new(),
            count => format!(", and {} more", count - 1),
        };
        let late = if result == Outcome::Warn { " (repaired after another change)" } else { "" };
        Verdict { evidence, ..Verdict::new(result, format!("{after}: {first}{more}{late}")) }
    }
}

/// A check that has run.
#[derive(Clone, Debug)]
pub struct CheckResult {
    /// Its name.
    pub name: &'static str,
    /// What it found.
    pub verdict: Verdict,
    /// How long it took.
    pub elapsed: Duration,
}

impl CheckResult {
    /// The flags of `listwatch scorecard` that run this check alone, with the fault that failed.
    #[must_use]
    pub fn replay(&self, seed: u64) -> String {
        let trigger = self.verdict.trigger.as_ref().map(|trigger| format!(":{trigger}")).unwrap_or_default();
        format!("--only {}{trigger} --seed {seed}", self.name)
    }
}

impl fmt::Display for CheckResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let result = match self.verdict.result {
            Outcome::Pass => "pass",
            Outcome::Fail => "FAIL",
            Outcome::Warn => "warn",
            Outcome::Skip => "skip",
        };
        write!(f, "{result}  {:<20}  {}", self.name, self.verdict.reason)
    }
}

/// The results of all checks.
#[derive(Clone, Debug)]
pub struct Report {
    /// The checks, in the order in which they ran.
    pub checks: Vec<CheckResult>,
    /// The seed of the run.
    pub seed: u64,
}

impl Report {
    /// The checks that failed.
    pub fn failed(&self) -> impl Iterator<Item = &CheckResult> {
        self.checks.iter().filter(|check| check.verdict.result == Outcome::Fail)
    }

    /// The report for programs. The values of Secrets are not in it.
    #[must_use]
    pub fn json(&self, command: &[String]) -> Value {
        let checks = self.checks.iter().map(|check| {
            let Verdict { result, reason, evidence, .. } = &check.verdict;
            let evidence: Vec<Value> = evidence
                .iter()
                .map(|difference| {
                    let Mismatch { object, path, expected, found } = difference;
                    json!({"object": object, "path": path, "expected": expected, "found": found})
                })
                .collect();
            json!({"name": check.name, "result": format!("{result:?}").to_lowercase(), "reason": reason,
                "evidence": evidence, "replay": check.replay(self.seed),
                "milliseconds": u64::try_from(check.elapsed.as_millis()).unwrap_or(u64::MAX)})
        });
        json!({"tool": "listwatch scorecard", "version": env!("CARGO_PKG_VERSION"), "command": command,
            "seed": self.seed, "checks": checks.collect::<Vec<_>>()})
    }
}
