//! When an object is reconciled again: [`Next`] after a success; [`ReconcileError`] after a failure: after a backoff (`queue.rs`
//! computes it), after a given time, or after a change.

use std::{error::Error, fmt, iter, time::Duration};

use crate::client;

/// When to reconcile an object again after a success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// When its key is added to the queue again, usually because the object or a child of it has changed.
    OnChange,
    /// The same, but after this time at the latest.
    After(Duration),
}

impl Next {
    /// The sooner of two.
    #[must_use]
    pub fn or_sooner(self, other: Next) -> Next {
        match (self, other) {
            (Next::After(one), Next::After(another)) => Next::After(one.min(another)),
            (Next::OnChange, next) | (next, Next::OnChange) => next,
        }
    }
}

/// An error of a reconcile. `?` makes it from any error, and the object is tried again with backoff.
///
/// It implements no [`Error`] itself, like `anyhow::Error`: otherwise there could be no conversion from every error.
pub struct ReconcileError {
    source: Box<dyn Error + Send + Sync>,
    retry: Retry,
}

/// When an object is reconciled again after a failure.
#[derive(Clone, Copy, Debug)]
enum Retry {
    /// After this time, or the `Retry-After` of the API server, and a backoff.
    Backoff(Duration),
    /// As after a success.
    At(Next),
    /// Nothing has failed: the reconcile ends here.
    Ended(Next),
}

impl ReconcileError {
    /// An error after which the object is not tried again before this time, for example the `Retry-After` of another server.
    /// If its spec changes, it is tried at once.
    pub fn after(pause: Duration, error: impl Into<Box<dyn Error + Send + Sync>>) -> ReconcileError {
        ReconcileError { source: error.into(), retry: Retry::Backoff(pause) }
    }

    /// An error of a reconcile whose next attempt does not repeat what failed, unless this time is over. The object is tried again then, or
    /// when it or a child of it changes.
    pub(crate) fn recheck(pause: Duration, error: impl Into<Box<dyn Error + Send + Sync>>) -> ReconcileError {
        ReconcileError { source: error.into(), retry: Retry::At(Next::After(pause)) }
    }

    /// An error that no retry can mend: the object is not tried again before it or a child of it changes.
    pub fn terminal(error: impl Into<Box<dyn Error + Send + Sync>>) -> ReconcileError {
        ReconcileError { source: error.into(), retry: Retry::At(Next::OnChange) }
    }

    /// No error: `?` ends a reconcile in which nothing is left to do.
    pub(crate) fn ended(next: Next) -> ReconcileError {
        ReconcileError { source: "the reconcile has ended".into(), retry: Retry::Ended(next) }
    }

    /// When to reconcile again after [`ReconcileError::ended`], or else the error.
    pub(crate) fn early_end(self) -> Result<Next, ReconcileError> {
        match self.retry {
            Retry::Ended(next) => Ok(next),
            Retry::Backoff(_) | Retry::At(_) => Err(self),
        }
    }

    /// The error of the API server or of the connection to it, if that is the cause.
    #[must_use]
    pub fn client(&self) -> Option<&client::Error> {
        self.chain().find_map(|error| error.downcast_ref())
    }

    /// When to reconcile again; an error: after a backoff, which is added to this time.
    pub(crate) fn retry(&self) -> Result<Next, Duration> {
        match self.retry {
            Retry::At(next) | Retry::Ended(next) => Ok(next),
            Retry::Backoff(pause) => {
                Err(pause.max(self.client().and_then(client::Error::retry_after).unwrap_or_default()))
            }
        }
    }

    /// Whether another client has changed or deleted an object in the meantime, so that the next attempt reads it again.
    pub(crate) fn is_outdated(&self) -> bool {
        self.client().is_some_and(|error| error.is_conflict() || error.is_not_found())
    }

    /// The error and its causes.
    fn chain(&self) -> impl Iterator<Item = &(dyn Error + 'static)> {
        let first: &(dyn Error + 'static) = &*self.source;
        iter::successors(Some(first), |&error| error.source())
    }
}

impl<E: Into<Box<dyn Error + Send + Sync>>> From<E> for ReconcileError {
    fn from(error: E) -> ReconcileError {
        ReconcileError { source: error.into(), retry: Retry::Backoff(Duration::ZERO) }
    }
}

impl fmt::Display for ReconcileError {
    /// The error and its causes: `call the registry: connection refused`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.chain().enumerate() {
            write!(f, "{}{error}", if index == 0 { "" } else { ": " })?;
        }
        Ok(())
    }
}

impl fmt::Debug for ReconcileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self} ({:?})", self.retry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("make the backup")]
    struct Wrapped(#[source] client::Error);

    #[test]
    fn an_error_of_the_client_keeps_its_meaning_inside_another() {
        let inner = || client::Error::new("get", "pods/a", "no answer");
        let error = ReconcileError::from(Wrapped(inner()));
        assert!(error.client().is_some());
        assert_eq!(error.to_string(), format!("make the backup: {}", inner()));
        assert_eq!(error.retry(), Err(Duration::ZERO));
        assert!(ReconcileError::from("no disk").client().is_none());
        assert_eq!(ReconcileError::terminal("no disk").retry(), Ok(Next::OnChange));
        let pause = Duration::from_secs(7);
        assert_eq!(ReconcileError::recheck(pause, "taken").retry(), Ok(Next::After(pause)));
        assert_eq!(ReconcileError::after(pause, Wrapped(inner())).retry(), Err(pause));
    }
}
