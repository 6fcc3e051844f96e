//! The report as JUnit XML, for CI systems: a test suite with a test case for each check.

use std::fmt::Write;

use super::{CheckResult, Outcome, Report};

impl Report {
    /// The report as JUnit XML: a warning is a passed test with output. `replay` is the command that runs a check again.
    #[must_use]
    pub fn junit(&self, replay: impl Fn(&CheckResult) -> String) -> String {
        let count = |result| self.checks.iter().filter(|check| check.verdict.result == result).count();
        let secs: f64 = self.checks.iter().map(|check| check.elapsed.as_secs_f64()).sum();
        let (failed, skipped) = (count(Outcome::Fail), count(Outcome::Skip));
        let counts = format!("tests=\"{}\" failures=\"{failed}\" errors=\"0\"", self.checks.len());
        let mut xml = format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n  \
            <testsuite name=\"listwatch scorecard\" {counts} skipped=\"{skipped}\" time=\"{secs:.3}\">\n"
        );
        for check in &self.checks {
            let reason = escaped(&check.verdict.reason);
            let mut lines: String = check.verdict.evidence.iter().map(|fact| format!("{fact}\n")).collect();
            let _ = write!(lines, "replay: {}", replay(check));
            let lines = escaped(&lines);
            let inner = match check.verdict.result {
                Outcome::Pass => format!("<system-out>{reason}</system-out>"),
                Outcome::Warn => format!("<system-out>warning: {reason}\n{lines}</system-out>"),
                Outcome::Skip => format!("<skipped message=\"{reason}\"/>"),
                Outcome::Fail => format!("<failure message=\"{reason}\" type=\"fail\">{lines}</failure>"),
            };
            let (name, secs) = (escaped(check.name), check.elapsed.as_secs_f64());
            let _ = writeln!(
                xml,
                "    <testcase classname=\"scorecard\" name=\"{name}\" time=\"{secs:.3}\">{inner}</testcase>"
            );
        }
        xml + "  </testsuite>\n</testsuites>\n"
    }
}

/// A text in XML 1.0, which allows no control characters, not even escaped.
fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\n' | '\t' => escaped.push(c),
            '\u{fffe}' | '\u{ffff}' => escaped.push('\u{fffd}'),
            c if c.is_control() => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}
