//! Why a child is not as desired, as reasons of conditions: `Forbidden`, `QuotaExceeded`, `NameConflict` and others.

use smol_str::format_smolstr;

use super::Child;
use crate::{
    client::{Error, is_denial},
    resource::{Resource, conditions::Verdict},
};

/// The reason if another owner's object has the name of a child.
pub(super) const NAME_CONFLICT: &str = "NameConflict";
/// The reason if admission changes our writes.
pub(super) const CHANGED_BY_ADMISSION: &str = "ChangedByAdmission";
/// The reason while a child of a deleted owner of the same name still exists.
const PREDECESSOR_TERMINATING: &str = "PredecessorTerminating";

/// The reason while a child is replaced.
const ROLLOUT_IN_PROGRESS: &str = "RolloutInProgress";

/// Why the API server refuses a child. Retries alone do not help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Our ServiceAccount lacks the permission.
    Forbidden,
    /// A ResourceQuota is used up.
    QuotaExceeded,
    /// A webhook or policy denied the child.
    AdmissionDenied,
    /// A webhook denied the child with the status code of an overloaded or broken server, and may admit it later.
    AdmissionDeniedForNow,
    /// A webhook with `failurePolicy: Fail` does not answer.
    AdmissionUnavailable,
    /// The namespace is being deleted.
    NamespaceTerminating,
    /// The child is invalid.
    InvalidSpec,
    /// The API server reports an internal error. For example, its range of Service addresses is full.
    InternalError,
    /// Any other error that a retry does not solve.
    Other,
}

impl Refusal {
    /// `None`: the error is not a refusal, and goes away with a retry.
    #[must_use]
    pub fn of(error: &Error) -> Option<Refusal> {
        // First, because a webhook chooses the status code and the message of its denial, which may look like any
        // other error.
        if error.is_denied() {
            return match error.code() {
                Some(429 | 500..) => Some(Refusal::AdmissionDeniedForNow),
                None | Some(_) => Some(Refusal::AdmissionDenied),
            };
        }
        if error.is_namespace_terminating() {
            return Some(Refusal::NamespaceTerminating);
        }
        if error.is_quota_exceeded() {
            return Some(Refusal::QuotaExceeded);
        }
        let has_text = |text| error.status().is_some_and(|status| status.message.contains(text));
        let has_reason = |reason| error.status().is_some_and(|status| status.reason == reason);
        match error.code() {
            None if error.is_connection() || error.is_interrupted() => None,
            Some(500) if has_text("failed calling webhook") => Some(Refusal::AdmissionUnavailable),
            // A 500 from an overloaded server, from etcd or from a proxy has no reason.
            Some(500) if has_reason("InternalError") => Some(Refusal::InternalError),
            Some(401 | 404 | 408 | 409 | 429 | 500..) => None,
            Some(403) => Some(Refusal::Forbidden),
            // A field does not decode, such as a quantity. A 400 of a proxy has no reason.
            Some(400) if has_reason("BadRequest") => Some(Refusal::InvalidSpec),
            Some(422) => Some(Refusal::InvalidSpec),
            None | Some(_) => Some(Refusal::Other),
        }
    }

    /// As a condition's reason.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Refusal::Forbidden => "Forbidden",
            Refusal::QuotaExceeded => "QuotaExceeded",
            Refusal::AdmissionDenied | Refusal::AdmissionDeniedForNow => "AdmissionDenied",
            Refusal::AdmissionUnavailable => "AdmissionUnavailable",
            Refusal::NamespaceTerminating => "NamespaceTerminating",
            Refusal::InvalidSpec => "InvalidSpec",
            Refusal::InternalError => "InternalError",
            Refusal::Other => "ReconcileFailed",
        }
    }

    /// As a condition's message: the error, and what a user can do.
    #[must_use]
    pub fn message(self, error: &Error) -> String {
        if self == Refusal::AdmissionDeniedForNow {
            return error.to_string();
        }
        format!("{error}{}", remedy(error.status().map_or("", |status| &status.message)))
    }

    /// Whether a user must act. Otherwise waiting may help.
    fn is_stalled(self) -> bool {
        match self {
            Refusal::Forbidden | Refusal::AdmissionDenied | Refusal::InvalidSpec => true,
            Refusal::QuotaExceeded
            | Refusal::AdmissionDeniedForNow
            | Refusal::AdmissionUnavailable
            | Refusal::NamespaceTerminating
            | Refusal::InternalError
            | Refusal::Other => false,
        }
    }
}

/// The remedy if a quota or a policy refuses a write with this message.
pub(super) fn remedy(message: &str) -> String {
    if is_denial(message) {
        return "; change the policy, or what it denies".to_owned();
    }
    let Some((_, quota)) = message.split_once("exceeded quota: ") else { return String::new() };
    let name = quota.split(',').next().unwrap_or_default();
    format!("; raise the quota {name}, or delete objects")
}

/// Whether the reason of a [`Child::trouble`] means that a child could not be written, or that its name was taken. [`Refusal::Other`] is also
/// the reason if another client keeps reverting our writes.
pub(super) fn is_refusal(reason: &str) -> bool {
    reason != ROLLOUT_IN_PROGRESS && reason != Refusal::Other.reason()
}

impl<K: Resource> Child<K> {
    /// Why the child is not as desired, if so: the child is being deleted, is not ours, or could not be written.
    pub(super) fn trouble<O: Resource>(&self) -> Option<Verdict> {
        match self {
            Child::Kept(_) | Child::OwnerGone => None,
            Child::Awaited(Some(_)) => Some(Verdict::no(
                ROLLOUT_IN_PROGRESS,
                format_smolstr!("the {} is being deleted and will be created again", K::KIND),
            )),
            Child::Awaited(None) => Some(Verdict::no(
                PREDECESSOR_TERMINATING,
                format_smolstr!("the {} of a deleted {} of this name is being deleted", K::KIND, O::KIND),
            )),
            Child::NotOurs(message) => Some(Verdict::no(NAME_CONFLICT, message.as_str())),
            Child::Failed { error, .. } => {
                let refusal = Refusal::of(error).unwrap_or(Refusal::Other);
                Some(Verdict::no(refusal.reason(), refusal.message(error)))
            }
        }
    }

    /// A state that does not end unless a user acts.
    pub(super) fn dead_end(&self) -> Option<Verdict> {
        match self {
            Child::Kept(_) | Child::Awaited(_) | Child::OwnerGone => None,
            Child::NotOurs(message) => Some(Verdict::yes(NAME_CONFLICT, message.as_str())),
            Child::Failed { error, .. } => {
                let refusal = Refusal::of(error).filter(|refusal| refusal.is_stalled())?;
                Some(Verdict::yes(refusal.reason(), refusal.message(error)))
            }
        }
    }
}
