//! The trait of a kind that has a status, and the types in it: what the operator has observed, and the conditions.
//!
//! ```yaml
//! status:
//!   observedGeneration: 2
//!   conditions:
//!   - {type: Ready, status: "False", reason: RolloutInProgress, message: 1 of 2 replicas are updated and available}
//! ```

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::refusal::Refusal;
use crate::{
    next::Next,
    resource::{Condition, ObjectMeta, Resource, conditions::Verdict},
};

/// A kind whose status has `observedGeneration` and `conditions`. [`reported!`](crate::reported) implements it.
#[diagnostic::on_unimplemented(
    message = "the library does not know the status of `{Self}`",
    label = "this kind needs a status",
    note = "add a field `status: Conditions`, and `listwatch::reported!({Self}, Conditions);`",
    note = "a kind without conditions needs `Setup::kind_without_status`, and no `finish`"
)]
pub trait Reported: Resource {
    /// The status of the kind.
    type Status: Serialize + DeserializeOwned + Clone + Default + PartialEq + Send + Sync;

    /// The status that was written last, or the default.
    fn status(&self) -> &Self::Status;

    /// `observedGeneration`, which is negative in the default, and `conditions`.
    fn observed(status: &Self::Status) -> (i64, &[Condition]);

    /// Sets both.
    fn observe(status: &mut Self::Status, generation: i64, conditions: Vec<Condition>);
}

/// Implements [`Reported`] for a kind by the type of its field `status`, which has the fields `observed_generation: i64` and
/// `conditions: Vec<Condition>`: `reported!(Page, Conditions)`.
#[macro_export]
macro_rules! reported {
    ($kind:ident, $status:ident) => {
        impl $crate::children::Reported for $kind {
            type Status = $status;

            fn status(&self) -> &$status {
                &self.status
            }

            fn observed(status: &$status) -> (i64, &[$crate::resource::Condition]) {
                (status.observed_generation, &status.conditions)
            }

            fn observe(status: &mut $status, generation: i64, conditions: Vec<$crate::resource::Condition>) {
                (status.observed_generation, status.conditions) = (generation, conditions);
            }
        }
    };
}

/// A status that has nothing else.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct Conditions {
    /// The latest metadata.generation that the operator has observed. -1: none yet.
    pub observed_generation: i64,
    /// Ready, and the other conditions of the kind.
    #[cfg_attr(feature = "schema", schemars(schema_with = "crate::crd::conditions"))]
    pub conditions: Vec<Condition>,
}

impl Default for Conditions {
    fn default() -> Conditions {
        Conditions { observed_generation: -1, conditions: Vec::new() }
    }
}

/// The operator's own view of an object whose children are all as desired.
#[derive(Debug)]
pub struct ObservedState {
    /// The condition `Ready`.
    pub ready: Verdict,
    /// More conditions, by name.
    pub others: Vec<(&'static str, Verdict)>,
    /// The condition `Stalled`, if the object cannot progress until a user acts.
    pub stalled: Option<Verdict>,
    /// When to reconcile again.
    pub next: Next,
}

impl From<Verdict> for ObservedState {
    fn from(ready: Verdict) -> ObservedState {
        ObservedState { ready, others: Vec::new(), stalled: None, next: Next::OnChange }
    }
}

/// An object with an unreadable `spec`: it may have been created with an older schema.
#[derive(Debug, Deserialize)]
#[serde(bound = "")]
pub struct Unreadable<O: Reported> {
    /// Its name, generation and versions.
    pub metadata: ObjectMeta,
    /// The status that the operator wrote before.
    #[serde(default)]
    pub status: O::Status,
}

crate::kind!(Unreadable<O: Reported>: O);

impl<O: Reported> Unreadable<O> {
    /// The status that says why the operator cannot read it.
    pub fn report(&self, error: &str, now: &str) -> O::Status {
        let reason = Refusal::InvalidSpec.reason();
        let news = [("Ready", Verdict::no(reason, error)), ("Stalled", Verdict::yes(reason, error))];
        with_conditions::<O>(&self.status, self.metadata.generation, news, now)
    }
}

/// The status with these conditions. The earlier report on the children stays.
pub(super) fn with_conditions<O: Reported>(
    status: &O::Status,
    generation: i64,
    news: impl IntoIterator<Item = (&'static str, Verdict)>,
    now: &str,
) -> O::Status {
    let before = O::observed(status).1;
    let mut after = before.to_vec();
    for (name, verdict) in news {
        let condition = verdict.condition(name, generation, before, now);
        match after.iter_mut().find(|condition| condition.r#type == name) {
            Some(known) => *known = condition,
            None => after.push(condition),
        }
    }
    let mut status = status.clone();
    O::observe(&mut status, generation, after);
    status
}
