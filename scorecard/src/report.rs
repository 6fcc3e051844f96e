//! The results of the checks: one line for each on a terminal, JSON, JUnit XML or Markdown.

mod junit;
mod markdown;

use std::{fmt, time::Duration};

use serde_json::{Value, json};

use super::{journal::Journal, snapshot::Mismatch};

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing was found.
    Pass,
    /// A fault of the operator.
    Fail,
    /// Something to look at, which need not be a fault.
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

    /// The result of one of the faults of a check.
    pub(super) fn at(self, fault: &str) -> Verdict {
        Verdict { trigger: Some(fault.to_owned()), ..self }
    }

    /// The differences that lasted after a fault, the first of them in the reason.
    pub(super) fn differs(result: Outcome, after: &str, evidence: Vec<Mismatch>) -> Verdict {
        let first = evidence.first().map(ToString::to_string).unwrap_or_default();
        let more = match evidence.len() {
            0 | 1 => String::new(),
            count => format!(", and {} more", count - 1),
        };
        Verdict { evidence, ..Verdict::new(result, format!("{after}: {first}{more}")) }
    }

    /// The differences that lasted until a change that means nothing: nothing else would have woken the operator.
    pub(super) fn late(after: &str, evidence: Vec<Mismatch>) -> Verdict {
        let mut verdict = Verdict::differs(Outcome::Fail, after, evidence);
        verdict.reason.push_str(" (repaired after another change)");
        verdict
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
    /// What happened in its last run. `None` for a check of files.
    pub journal: Option<Journal>,
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

    /// The checks that warned.
    pub fn warned(&self) -> impl Iterator<Item = &CheckResult> {
        self.checks.iter().filter(|check| check.verdict.result == Outcome::Warn)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let mut failed = Verdict::fail("killed after \"create\": a <b> & c|d is missing\u{1b}[0m");
        failed.evidence.push(Mismatch {
            object: "services/default/web".to_owned(),
            path: String::new(),
            expected: "an object".into(),
            found: Value::Null,
        });
        let verdicts = [
            ("converges", Verdict::pass("settled")),
            ("crash-between-writes", failed),
            ("quiet", Verdict::new(Outcome::Warn, "late")),
            ("bundle-valid", Verdict::new(Outcome::Skip, "no --bundle DIR")),
        ];
        let elapsed = Duration::from_millis(1500);
        let checks = verdicts.map(|(name, verdict)| CheckResult { name, verdict, elapsed, journal: None });
        Report { checks: checks.into(), seed: 1 }
    }

    #[test]
    fn junit_is_xml_that_ci_systems_accept() {
        let xml = report().junit(|check| check.replay(1));
        let expected = "\
<?xml version=\"1.0\" encoding=\"UTF-8\"?>
<testsuites>
  <testsuite name=\"listwatch scorecard\" tests=\"4\" failures=\"1\" errors=\"0\" skipped=\"1\" time=\"6.000\">
    <testcase classname=\"scorecard\" name=\"converges\" time=\"1.500\"><system-out>settled</system-out></testcase>
    <testcase classname=\"scorecard\" name=\"crash-between-writes\" time=\"1.500\"><failure \
message=\"killed after &quot;create&quot;: a &lt;b&gt; &amp; c|d is missing\u{fffd}[0m\" type=\"fail\">services/default/web is missing
replay: --only crash-between-writes --seed 1</failure></testcase>
    <testcase classname=\"scorecard\" name=\"quiet\" time=\"1.500\"><system-out>warning: late
replay: --only quiet --seed 1</system-out></testcase>
    <testcase classname=\"scorecard\" name=\"bundle-valid\" time=\"1.500\"><skipped message=\"no --bundle DIR\"/></testcase>
  </testsuite>
</testsuites>
";
        assert_eq!(xml, expected);
    }

    #[test]
    fn markdown_is_a_table_that_no_text_breaks() {
        let text = report().markdown(|check| check.replay(1));
        let table: Vec<&str> = text.lines().take_while(|line| !line.starts_with("<details>")).collect();
        assert_eq!(
            table,
            [
                "### listwatch scorecard: 1 of 4 checks failed",
                "",
                "| result | check | |",
                "|---|---|---|",
                "| pass | `converges` | settled |",
                "| **FAIL** | `crash-between-writes` | killed after \"create\": a &lt;b> & c\\|d is missing\u{1b}\\[0m |",
                "| warn | `quiet` | late |",
                "| skip | `bundle-valid` | no --bundle DIR |",
                "",
            ]
        );
        assert!(
            text.contains("```text\nservices/default/web is missing\nreplay: --only crash-between-writes"),
            "{text}"
        );
    }
}
