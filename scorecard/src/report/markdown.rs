//! The report as Markdown, for the comment of a pull request.

use std::fmt::Write;

use super::{CheckResult, Outcome, Report};

impl Report {
    /// The report as a table. `replay` is the command that runs a check again.
    #[must_use]
    pub fn markdown(&self, replay: impl Fn(&CheckResult) -> String) -> String {
        let failed = self.failed().count();
        let mut text =
            format!("### listwatch scorecard: {failed} of {} checks failed\n\n", self.checks.len());
        text.push_str("| result | check | |\n|---|---|---|\n");
        for check in &self.checks {
            let result = match check.verdict.result {
                Outcome::Pass => "pass",
                Outcome::Fail => "**FAIL**",
                Outcome::Warn => "warn",
                Outcome::Skip => "skip",
            };
            let _ = writeln!(text, "| {result} | `{}` | {} |", check.name, cell(&check.verdict.reason));
        }
        let found = |check: &&CheckResult| matches!(check.verdict.result, Outcome::Fail | Outcome::Warn);
        for check in self.checks.iter().filter(found) {
            let (name, summary) = (check.name, crate::summary(check.name));
            let _ = writeln!(text, "\n<details><summary><code>{name}</code> {summary}</summary>\n\n```text");
            for fact in &check.verdict.evidence {
                let _ = writeln!(text, "{}", fact.to_string().replace("```", "'''"));
            }
            let _ = writeln!(text, "replay: {}\n```\n\n</details>", replay(check));
        }
        text
    }
}

/// A text in a table: without HTML, links and mentions.
fn cell(text: &str) -> String {
    let mut cell = String::new();
    for c in text.chars() {
        match c {
            '\n' | '\r' => cell.push(' '),
            '<' => cell.push_str("&lt;"),
            '|' | '\\' | '`' | '*' | '_' | '[' | ']' | '~' => cell.extend(['\\', c]),
            '@' => cell.push_str("&#64;"),
            c => cell.push(c),
        }
    }
    cell
}
