//! The checks. To add one, write a file beside the others and its line in [`NAMES`] and [`run`].

mod accepts_valid_objects;
mod api_server_outage;
mod applies_spec_changes;
mod comes_back;
mod converges;
mod two_namespaces;
mod one_bad_object;
mod namespace_deleted;
mod name_taken;
mod foreign_writers;
mod conflicts;
mod crash_between_writes;
mod deletes_cleanly;
mod lagging_watch;
mod lost_answers;
mod missed_events;
mod permission_lost;
mod quiet;
mod recreated;
mod repairs_drift;
mod restart_is_silent;
pub(super) mod shipped_role;
mod time_travel;
mod throttled;
mod watches_come_back;

use std::collections::BTreeMap;

use super::{
    lab::ChildKey,
    reference::Reference,
    report::{Outcome, Verdict},
    settings::CannotJudge,
};

/// The names of the checks that find most.
pub(super) const QUICK: [&str; 6] = [
    "converges",
    "quiet",
    "restart-is-silent",
    "repairs-drift",
    "deletes-cleanly",
    crash_between_writes::NAME,
];

/// In the order in which they run: cheap ones first.
pub(super) const NAMES: [&str; 25] = [
    "converges",
    "quiet",
    "restart-is-silent",
    "repairs-drift",
    "deletes-cleanly",
    crash_between_writes::NAME,
    applies_spec_changes::NAME,
    comes_back::NAME,
    "accepts-valid-objects",
    "lost-answers",
    "recreated",
    "missed-events",
    "lagging-watch",
    "watches-come-back",
    "api-server-outage",
    "permission-lost",
    "throttled",
    "conflicts",
    "foreign-writers",
    "name-taken",
    "namespace-deleted",
    "one-bad-object",
    "two-namespaces",
    "shipped-role",
    "time-travel",
];

pub(super) async fn run(name: &str, reference: &Reference<'_>) -> Result<Verdict, CannotJudge> {
    match name {
        "converges" => Ok(converges::check(reference)),
        "quiet" => quiet::check(reference).await,
        "restart-is-silent" => restart_is_silent::check(reference).await,
        "repairs-drift" => repairs_drift::check(reference).await,
        "deletes-cleanly" => deletes_cleanly::check(reference).await,
        crash_between_writes::NAME => crash_between_writes::check(reference).await,
        applies_spec_changes::NAME => applies_spec_changes::check(reference).await,
        comes_back::NAME => comes_back::check(reference).await,
        "accepts-valid-objects" => accepts_valid_objects::check(reference).await,
        "lost-answers" => lost_answers::check(reference).await,
        "recreated" => recreated::check(reference).await,
        "missed-events" => missed_events::check(reference).await,
        "lagging-watch" => lagging_watch::check(reference).await,
        "watches-come-back" => watches_come_back::check(reference).await,
        "api-server-outage" => api_server_outage::check(reference).await,
        "permission-lost" => permission_lost::check(reference).await,
        "throttled" => throttled::check(reference).await,
        "conflicts" => conflicts::check(reference).await,
        "foreign-writers" => foreign_writers::check(reference).await,
        "name-taken" => name_taken::check(reference).await,
        "namespace-deleted" => namespace_deleted::check(reference).await,
        "one-bad-object" => one_bad_object::check(reference).await,
        "two-namespaces" => two_namespaces::check(reference).await,
        "shipped-role" => shipped_role::check(reference).await,
        "time-travel" => time_travel::check(reference).await,
        _ => Err(CannotJudge(format!("{name:?} is not a check; there are {}", NAMES.join(", ")))),
    }
}

/// Children by what the watches of their kind have in their targets.
fn by_kind(children: &[ChildKey]) -> BTreeMap<String, Vec<ChildKey>> {
    let mut kinds: BTreeMap<String, Vec<ChildKey>> = BTreeMap::new();
    for child in children {
        kinds.entry(child.watch_path()).or_default().push(child.clone());
    }
    kinds
}

fn no_children() -> Verdict {
    Verdict::new(Outcome::Skip, "no deleted child is created again: see repairs-drift")
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
