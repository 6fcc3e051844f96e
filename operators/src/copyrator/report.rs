//! Reports to users: the conditions after a pass, Events and log lines.

use listwatch::{
    children::{ObservedState, Refusal},
    cluster::EventType,
    controller::{Next, Reconcile, ReconcileError},
    resource::{Resource, conditions::Verdict},
};
use smol_str::format_smolstr;
use tracing::warn;

use super::{
    Copyrator,
    copy::LABEL,
    outcome::{NAME_CONFLICT, OLDER_WINS, Pass, SOURCE_TOO_LARGE},
    types::{CopyFailure, CopyratorRule, CopyratorSpec, CopyratorStatus, FAILURES_MAX},
};

/// The target of the lines of this file in the log: the operator.
const LOG: &str = "listwatch_operators::copyrator";
/// The reason of the Event about copies that nobody will delete.
const COPIES_LEFT: &str = "CopiesLeft";
/// The reasons of failures that do not end unless a user acts.
const NEEDS_HELP: [&str; 6] = [
    Refusal::Forbidden.reason(),
    Refusal::AdmissionDenied.reason(),
    Refusal::InvalidSpec.reason(),
    NAME_CONFLICT,
    OLDER_WINS,
    SOURCE_TOO_LARGE,
];

/// The conditions after a pass.
pub(super) fn state_of(rule: &CopyratorRule, spec: &CopyratorSpec, pass: &Pass) -> ObservedState {
    let state = |ready| ObservedState { next: pass.next(), ..ObservedState::from(ready) };
    let counts = format_smolstr!("{} of {} copies are up to date", pass.copies, pass.wanted);
    if let Some(first) = pass.failures.iter().min_by_key(|failure| place(failure)) {
        let message = format_smolstr!("{counts}; {} failed, first {}", pass.failures.len(), sentence(first));
        let stalled = pass.failures.iter().filter(|failure| NEEDS_HELP.contains(&&*failure.reason));
        let stalled = stalled
            .min_by_key(|failure| place(failure))
            .map(|failure| Verdict::yes(failure.reason.clone(), sentence(failure)));
        return ObservedState { stalled, ..state(Verdict::no("CopiesFailed", message)) };
    }
    if pass.has_writes_left || pass.copies < pass.wanted {
        return state(Verdict::no("InProgress", counts));
    }
    if pass.sources == 0 {
        let (selector, namespaces) = (spec.selector.to_string(), spec.source_namespaces(rule).join(", "));
        let message =
            format_smolstr!("nothing to copy: the selector is {selector:?}, the namespace {namespaces}");
        return state(Verdict::yes("NoSources", message));
    }
    state(Verdict::yes("Synced", counts))
}

/// The counts of a pass.
pub(super) fn status_of(pass: &Pass, namespaces: usize) -> CopyratorStatus {
    let count = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
    let mut failures = pass.failures.clone();
    failures.sort_by(|one, other| place(one).cmp(&place(other)));
    failures.truncate(FAILURES_MAX);
    CopyratorStatus {
        sources: count(pass.sources),
        namespaces: count(namespaces),
        copies: count(pass.copies),
        failed: count(pass.failures.len()),
        failures,
        once: pass.once.clone(),
        ..CopyratorStatus::default()
    }
}

fn place(failure: &CopyFailure) -> (&str, &str) {
    (&failure.namespace, &failure.name)
}

fn sentence(CopyFailure { namespace, name, reason, message }: &CopyFailure) -> String {
    format!("{namespace}/{name}: {reason}: {message}")
}

impl Copyrator {
    /// Writes the status, if it has changed.
    pub(super) async fn report(
        &self,
        rule: &Reconcile<CopyratorRule>,
        status: CopyratorStatus,
        state: ObservedState,
    ) -> Result<Next, ReconcileError> {
        if let Some(new) = status.failures.iter().find(|failure| !rule.status.failures.contains(failure)) {
            let problem = sentence(new);
            warn!(target: LOG, key = %rule.key(), failed = status.failed, problem, "copies failed; trying again");
            rule.event(EventType::Warning, "CopyFailed", problem);
        }
        rule.finish(status, state).await
    }

    /// Reports copies that nobody will delete, and how to find them.
    pub(super) fn report_left(&self, rule: &CopyratorRule, cause: &str) {
        let (copies, uid) = (rule.status.copies, &rule.metadata.uid);
        if copies > 0 {
            let key = rule.key();
            let note = format!(
                "{copies} copies of the CopyratorRule {key} stay, because {cause}: they have the label {LABEL} and the annotation flant.com/rule-uid: {uid}"
            );
            warn!(target: LOG, %key, note, "copies stay");
            match self.ending_namespace(rule) {
                // The API server accepts no new Event in it. Events about a namespace are in the namespace `default`.
                Some(namespace) => self.events.record(&*namespace, EventType::Warning, COPIES_LEFT, note),
                None => self.events.record(rule, EventType::Warning, COPIES_LEFT, note),
            }
        }
    }
}

listwatch::reported!(CopyratorRule, CopyratorStatus);

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps end in any order. The status was written at each pass, and each time caused the next one.
    #[test]
    fn the_conditions_do_not_depend_on_the_order_of_the_failures() {
        let rule = serde_json::json!({
            "metadata": {"name": "rule", "namespace": "default", "uid": "u", "resourceVersion": "1"},
            "ruleType": "configmap", "selector": {"copyrator": "true"},
        });
        let rule: CopyratorRule = serde_json::from_value(rule).expect("a rule");
        let spec = rule.spec.clone().expect("the fields of a rule");
        let failure = |name: &str, reason: &str| CopyFailure {
            name: name.into(),
            reason: reason.into(),
            ..CopyFailure::default()
        };
        let failures = [failure("a", NAME_CONFLICT), failure("b", OLDER_WINS)];
        let reasons = |failures: Vec<CopyFailure>| {
            let state = state_of(&rule, &spec, &Pass { failures, ..Pass::default() });
            (state.ready.message, state.stalled.map(|stalled| stalled.reason))
        };
        let [first, second] = failures.clone();
        assert_eq!(reasons(failures.to_vec()), reasons(vec![second, first]));
    }

    #[test]
    fn the_status_has_the_first_ten_failures_in_order_and_their_number() {
        let failure = |number: usize| CopyFailure {
            namespace: format_smolstr!("team-{number:02}"),
            ..CopyFailure::default()
        };
        let pass = Pass { failures: (0..12).rev().map(failure).collect(), ..Pass::default() };
        let status = status_of(&pass, 12);
        assert_eq!((status.failed, status.failures), (12, (0..10).map(failure).collect()));
    }
}
