//! The writes of children that the API server has refused. The same write is tried again after a pause, longer each time. Nothing else of
//! the owner waits: its other children, other fields of the same child, and the next spec.
//!
//! ```text
//!   PATCH persistentvolumeclaims/data-db-0   403 Forbidden: this StorageClass does not support resize
//!   DELETED services/db                      POST at once; the PATCH is not sent again, and stays the reason of Ready
//!   200 ms … 30 s later                       PATCH persistentvolumeclaims/data-db-0
//! ```

use std::{collections::HashMap, sync::Mutex, time::Duration};

use tokio::time::Instant;

use super::{refusal::Refusal, write};
use crate::{
    backoff::Backoff,
    client::Error,
    locked,
    next::ReconcileError,
    resource::{Key, ObjectMeta, Uid},
};

/// The pause between two attempts at one write. The cap is the longest time until the next attempt after somebody has removed the cause.
const BACKOFF: Backoff = Backoff { first: Duration::from_millis(200), cap: Duration::from_secs(30) };
/// How long after its pause a write may be tried at the latest, so that its next pause is longer. Until then, all workers may be busy.
const LATE_MAX: Duration = Duration::from_secs(120);

/// The refused writes of one operator, by the owner of the child and a text that identifies the write.
#[derive(Default)]
pub(super) struct RefusedWrites {
    by_owner: Mutex<HashMap<Uid, HashMap<String, RefusedWrite>>>,
}

struct RefusedWrite {
    error: Error,
    times: u32,
    /// The end of the pause.
    until: Instant,
}

impl RefusedWrites {
    /// Runs something that ends in the write `what` of a child, unless the API server has refused this write and its pause is not over.
    pub(super) fn unless_refused<T>(
        &self,
        owner: &ObjectMeta,
        child: &Key,
        what: &str,
        writing: impl Future<Output = Result<T, Error>> + Send,
    ) -> impl Future<Output = Result<T, Error>> + Send {
        let write = write::id(owner, child, what);
        // Boxed: a step may have others in it, and each would be as large as all of them.
        let writing = Box::pin(writing);
        async move {
            if let Some(error) = self.pending(&owner.uid, &write) {
                return Err(error);
            }
            let result = writing.await;
            // Any other failure is one of the whole reconcile.
            match &result {
                Err(error) if Refusal::of(error).is_some() => self.refused(&owner.uid, write, error),
                Ok(_) | Err(_) => self.accepted(&owner.uid, &write),
            }
            result
        }
    }

    /// Why a write was refused, if its pause is not over.
    pub(super) fn pending(&self, owner: &Uid, write: &str) -> Option<Error> {
        let by_owner = locked(&self.by_owner);
        let refused = by_owner.get(owner)?.get(write)?;
        (refused.until > Instant::now()).then(|| refused.error.clone())
    }

    /// Begins the pause of a write.
    fn refused(&self, owner: &Uid, write: String, error: &Error) {
        let now = Instant::now();
        let mut by_owner = locked(&self.by_owner);
        let writes = by_owner.entry(owner.clone()).or_default();
        writes.retain(|_, write| write.until + LATE_MAX > now);
        let times = writes.get(&write).map_or(1, |refused| refused.times.saturating_add(1));
        let asked = error.retry_after().unwrap_or_default();
        let until = now + BACKOFF.pause(times, asked, &mut fastrand::Rng::new());
        writes.insert(write, RefusedWrite { error: error.clone(), times, until });
    }

    fn accepted(&self, owner: &Uid, write: &str) {
        let mut by_owner = locked(&self.by_owner);
        if let Some(writes) = by_owner.get_mut(owner) {
            writes.remove(write);
            if writes.is_empty() {
                by_owner.remove(owner);
            }
        }
    }

    /// The time until one of the refused writes may be tried again, if there is any.
    fn pause(&self, owner: &Uid) -> Option<Duration> {
        let (now, by_owner) = (Instant::now(), locked(&self.by_owner));
        let pauses =
            by_owner.get(owner)?.values().filter_map(|write| write.until.checked_duration_since(now));
        pauses.filter(|pause| !pause.is_zero()).min()
    }

    /// The error of a reconcile. If it is the refusal of a write, that write alone waits.
    pub(super) fn failure(&self, owner: &Uid, error: Error) -> ReconcileError {
        match Refusal::of(&error).and_then(|_| self.pause(owner)) {
            Some(pause) => ReconcileError::recheck(pause, error),
            None => error.into(),
        }
    }

    /// Forgets an object that was deleted.
    pub(super) fn forget(&self, owner: &Uid) {
        locked(&self.by_owner).remove(owner);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use tokio::time::advance;

    use super::*;

    fn error(code: u16) -> Error {
        Error::answered(code, &BTreeMap::new(), "{}")
    }

    #[tokio::test(start_paused = true)]
    async fn only_the_same_refused_write_waits_and_longer_each_time() {
        let refused = RefusedWrites::default();
        let (owner, other) = (Uid::from("u1"), Uid::from("u2"));
        // Whether it was sent.
        let tried = async |owner: &Uid, write: &str, answer: Result<(), Error>| {
            let mut is_sent = false;
            let sending = async {
                is_sent = true;
                answer
            };
            let metadata = ObjectMeta { uid: owner.clone(), ..ObjectMeta::default() };
            let result = refused.unless_refused(&metadata, &Key::cluster("a"), write, sending).await;
            assert!(is_sent || result.is_err_and(|error| error.code() == Some(403)));
            is_sent
        };
        for longest in [200, 400, 800] {
            assert!(tried(&owner, "grow", Err(error(403))).await);
            let pause = refused.pause(&owner).expect("a pause");
            let longest = Duration::from_millis(longest);
            assert!(longest / 2 <= pause && pause <= longest, "{pause:?}");
            assert!(!tried(&owner, "grow", Ok(())).await);
            for (owner, write) in [(&owner, "shrink"), (&other, "grow")] {
                assert!(tried(owner, write, Ok(())).await, "{owner} {write}");
            }
            assert_eq!(refused.pause(&other), None);
            advance(pause).await;
        }
        // Nobody waits for a write that is not wanted any more, and it takes no memory.
        assert_eq!(refused.pause(&owner), None);
        advance(LATE_MAX).await;
        tried(&owner, "shrink", Err(error(403))).await;
        assert_eq!(locked(&refused.by_owner)[&owner].len(), 1);
        advance(BACKOFF.cap).await;
        tried(&owner, "shrink", Ok(())).await;
        // A conflict is not a refusal.
        tried(&owner, "grow", Err(error(409))).await;
        assert!(locked(&refused.by_owner).is_empty());
    }
}
