//! The operator settles, twice in the same state, and without a panic or an owner that does not exist.
//!
//! It would have found banzaicloud/koperator#229: an owner in another namespace, so the garbage collector deleted live objects.

use std::collections::BTreeMap;

use crate::{reference::Reference, report::Verdict};

/// The problems that are shown.
const PROBLEMS_MAX: usize = 5;

pub(crate) fn check(reference: &Reference<'_>) -> Verdict {
    if !reference.problems.is_empty() {
        let (shown, others) = reference.problems.split_at(reference.problems.len().min(PROBLEMS_MAX));
        let more = if others.is_empty() { String::new() } else { format!(", and {} more", others.len()) };
        return Verdict::fail(format!("without a fault, {}{more}", shown.join("; ")));
    }
    let mut writes: BTreeMap<&str, usize> = BTreeMap::new();
    for write in &reference.writes {
        *writes.entry(write).or_default() += 1;
    }
    let writes: Vec<String> = writes.iter().map(|(write, count)| format!("{write} ×{count}")).collect();
    let (secs, count) = (reference.worked.as_secs_f64(), reference.writes.len());
    let mut reason = format!("settled within {secs:.1} s, {count} writes: {}", writes.join(", "));
    // Not a warning: a check may create such objects.
    let unused = reference.unused_flags();
    if !unused.is_empty() {
        reason = format!("{reason}; no object has what these name: {}", unused.join(", "));
    }
    if let Some(why) = &reference.disturbed {
        reason =
            format!("{reason}; one check runs at a time, because two operators disturb each other: {why}");
    }
    Verdict::pass(reason)
}
