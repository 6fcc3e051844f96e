//! The end of a command: why it failed, and a signal that stops it.

use std::io;

use crate::{
    client::Error,
    shutdown::{self, ShutdownError, Stop},
};

/// Why a command failed.
pub(super) enum Failure {
    /// The command line or the configuration is invalid.
    Usage(String),
    /// An error that may pass.
    Runtime(String),
    /// The reader of standard output has closed it.
    ClosedPipe,
    /// A second signal.
    AtOnce,
}

impl Failure {
    /// The message of a usage or runtime error.
    pub(super) fn message(&self) -> &str {
        match self {
            Failure::Usage(message) | Failure::Runtime(message) => message,
            Failure::ClosedPipe | Failure::AtOnce => "",
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Runtime(error.to_string())
    }
}

/// An error of writing to standard output.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Failure::ClosedPipe,
            _ => Failure::Runtime(format!("write to standard output: {error}")),
        }
    }
}

impl From<ShutdownError> for Failure {
    fn from(error: ShutdownError) -> Failure {
        match error {
            ShutdownError::AtOnce => Failure::AtOnce,
            ShutdownError::Start(_) | ShutdownError::Signals(_) => Failure::Runtime(error.to_string()),
        }
    }
}

/// Runs `work` to its end. A signal asks it to stop.
pub(super) fn until_signal<F: Future<Output = Result<(), Failure>>>(
    work: impl FnOnce(Stop) -> F,
) -> Result<(), Failure> {
    shutdown::run(work)?
}
