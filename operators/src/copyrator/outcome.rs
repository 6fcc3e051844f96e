//! What becomes of the copies of a rule in one pass: counts, writes, and the failures that the status shows.

use std::time::Duration;

use listwatch::{
    children::Write,
    client::Error,
    controller::Next,
    resource::{Key, ObjectMeta},
};
use tokio::time::Instant;

use super::types::{CopyFailure, Once};

/// The reason of a failure if another object has the name of a copy.
pub(super) const NAME_CONFLICT: &str = "NameConflict";
/// The reason of a failure if there is no room for the content of an object to copy.
pub(super) const SOURCE_TOO_LARGE: &str = "SourceTooLarge";
/// The reason of a failure if another rule or source has precedence.
pub(super) const OLDER_WINS: &str = "OlderWins";
/// The reason of a failure while another client keeps undoing our corrections of a copy.
pub(super) const DISPUTED: &str = "Disputed";
/// The reason of a failure if a deleted object still has the name of a copy.
const TERMINATING: &str = "Terminating";

/// The result of a pass over the copies of both kinds.
#[derive(Default)]
pub(super) struct Pass {
    /// Number of copied objects.
    pub(super) sources: usize,
    /// Their versions.
    pub(super) versions: Vec<String>,
    /// Number of copies that there should be.
    pub(super) wanted: usize,
    /// Number of copies that are up to date according to their digests, and whose content is not about to be verified after a
    /// pause.
    pub(super) copies: usize,
    /// The copies that are not as they should be.
    pub(super) failures: Vec<CopyFailure>,
    /// With `syncPolicy: Once`: the copies that users may delete.
    pub(super) once: Once,
    /// The writes, each with the place of the copy.
    pub(super) writes: Vec<Write>,
    /// Number of steps that are left.
    pub(super) left: usize,
    /// Whether some of them will probably write.
    pub(super) has_writes_left: bool,
    /// When the first pause of a step ends.
    pub(super) retry: Option<Instant>,
    /// Why the pass ended early.
    pub(super) error: Option<Error>,
}

/// The failure of a copy that is not tried before the end of a pause, if it has one, and that end.
pub(super) type Pause = (Option<CopyFailure>, Instant);

impl Pass {
    /// When to reconcile again.
    pub(super) fn next(&self) -> Next {
        match self.retry {
            _ if self.left > 0 => Next::After(Duration::ZERO),
            Some(end) => Next::After(end.saturating_duration_since(Instant::now())),
            None => Next::OnChange,
        }
    }

    /// A copy waits for the end of its pause.
    pub(super) fn pauses(&mut self, (failure, end): Pause) {
        self.failures.extend(failure);
        self.waits_until(end);
    }

    pub(super) fn waits_until(&mut self, end: Instant) {
        self.retry = self.retry.into_iter().chain([end]).min();
    }
}

/// A failure of the copy `key`.
pub(super) fn failure(key: &Key, reason: &str, message: String) -> CopyFailure {
    let namespace = key.namespace.clone().unwrap_or_default();
    CopyFailure { namespace, name: key.name.clone(), reason: reason.into(), message }
}

/// The failure of a copy that is created again after a deleted object of its name is gone.
pub(super) fn terminating(deleted: &ObjectMeta) -> CopyFailure {
    let finalizers = deleted.finalizers.join(", ");
    let message = format!(
        "a deleted object of this name waits for its finalizers: {finalizers}; if nobody handles them, remove them from the object"
    );
    failure(&deleted.key(), TERMINATING, message)
}

/// The failure of a copy that is restored at the end of a pause.
pub(super) fn disputed(key: &Key) -> CopyFailure {
    let message = "another client keeps changing or deleting the copy, so the operator restores it after growing pauses; stop \
                   that client, exclude the namespace, or set syncPolicy to Once";
    failure(key, DISPUTED, message.to_owned())
}
