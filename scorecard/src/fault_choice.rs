//! The faults of a check that a run tries: all with `--all`, else as many as the check has time for, chosen by the seed.

use super::{
    report::{Outcome, Verdict},
    settings::{Extent, Scorecard},
};

/// Faults that a report names among those that were not tried. `--list-faults` prints all.
const NAMES_MAX: usize = 6;

/// The faults of a check to try.
pub(super) struct FaultChoice<T> {
    pub(super) tried: Vec<T>,
    /// The number of faults that the check has.
    count: usize,
    /// The names of the others. Empty if `--only` names the faults to try.
    left: Vec<String>,
}

impl<T> FaultChoice<T> {
    /// The faults that `--only` names, or without one, all with [`Extent::Faults`], else at most `max`.
    pub(super) fn of(
        scorecard: &Scorecard,
        check: &str,
        max: usize,
        all: Vec<T>,
        name: impl Fn(&T) -> &str,
    ) -> FaultChoice<T> {
        let (count, named) = (all.len(), scorecard.named_faults(check));
        let (mut tried, mut left) = (all, Vec::new());
        if !named.is_empty() {
            tried.retain(|fault| named.contains(&name(fault)));
            return FaultChoice { tried, count, left };
        }
        let mut random = fastrand::Rng::with_seed(scorecard.seed);
        while tried.len() > max && scorecard.extent != Extent::Faults {
            let fault = tried.remove(random.usize(..tried.len()));
            left.push(name(&fault).to_owned());
        }
        FaultChoice { tried, count, left }
    }

    /// `6 of 12 changes`, or `6 changes` if these are all.
    pub(super) fn text(&self, what: &str) -> String {
        match self.tried.len() {
            tried if tried == self.count => format!("{tried} {what}"),
            tried => format!("{tried} of {} {what}", self.count),
        }
    }

    /// A result that names the faults that were not tried. A failure ends the check, so it says nothing of the others.
    pub(super) fn complete(&self, mut verdict: Verdict) -> Verdict {
        let is_end = matches!(verdict.result, Outcome::Fail | Outcome::Skip);
        if !is_end && !self.left.is_empty() {
            let mut names: Vec<&str> = self.left.iter().take(NAMES_MAX).map(String::as_str).collect();
            let more = self.left.len().checked_sub(NAMES_MAX).filter(|more| *more > 0);
            let more = more.map(|more| format!("{more} more"));
            names.extend(more.as_deref());
            verdict.reason = format!("{}; not tried: {}", verdict.reason, names.join(", "));
        }
        verdict
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(seed: u64, extent: Extent, only: &[&str]) -> Scorecard {
        let only = only.iter().map(|only| (*only).to_owned()).collect();
        Scorecard { seed, extent, only, ..Scorecard::new(Vec::new(), Vec::new(), Vec::new()) }
    }

    fn choice(scorecard: &Scorecard, max: usize) -> FaultChoice<String> {
        let all = (1..=9).map(|number| format!("f{number}")).collect();
        FaultChoice::of(scorecard, "check", max, all, |name| name)
    }

    #[test]
    fn each_fault_is_tried_with_some_seed_and_the_report_names_the_others() {
        let mut tried: Vec<String> =
            (0..50).flat_map(|seed| choice(&settings(seed, Extent::Checks, &[]), 2).tried).collect();
        tried.sort();
        tried.dedup();
        assert_eq!(tried.len(), 9);
        let some = choice(&settings(1, Extent::Checks, &[]), 7);
        assert_eq!(some.text("changes"), "7 of 9 changes");
        let [one, other] = &some.left[..] else { panic!("{:?}", some.left) };
        let reason = some.complete(Verdict::pass("good")).reason;
        assert_eq!(reason, format!("good; not tried: {one}, {other}"));
        assert_eq!(some.complete(Verdict::fail("bad")).reason, "bad");
        let few = choice(&settings(1, Extent::Checks, &[]), 1);
        let reason = few.complete(Verdict::pass("good")).reason;
        assert!(reason.ends_with(", 2 more") && reason.split(", ").count() == 7, "{reason}");
    }

    #[test]
    fn with_all_or_by_name_nothing_is_left_out() {
        let all = choice(&settings(1, Extent::Faults, &[]), 2);
        assert_eq!(all.text("changes"), "9 changes");
        assert_eq!(all.complete(Verdict::pass("good")).reason, "good");
        let named = choice(&settings(1, Extent::Checks, &["check:f7", "other:f1"]), 2);
        assert_eq!(named.tried, ["f7"]);
        assert_eq!(named.complete(Verdict::pass("good")).reason, "good");
    }
}
