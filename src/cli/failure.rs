//! The end of a command: why it failed, its exit code, and a signal that stops it.

use std::io;

use super::{env, screen};
use crate::{
    client::Error,
    shutdown::{self, ShutdownError, Stop},
};

/// The exit code of an error that may pass.
const EXIT_FAILURE: u8 = 1;

/// The exit code of a usage error: the same command would fail again.
pub(super) const EXIT_USAGE: u8 = 2;

/// The exit code after a second signal: the one that a shell reports for SIGTERM.
const EXIT_AT_ONCE: u8 = 143;

/// Why a command failed.
pub(super) enum Failure {
    /// The command line or the configuration is invalid.
    Usage(String),
    /// An error that may pass.
    Runtime(String),
    /// The reader of standard output has closed it.
    ClosedPipe,
    /// A signal came before the end of the answer. With the exit code for this signal.
    Interrupted(u8),
    /// A second signal.
    AtOnce,
}

impl Failure {
    /// The message of a usage or runtime error.
    pub(super) fn message(&self) -> &str {
        match self {
            Failure::Usage(message) | Failure::Runtime(message) => message,
            Failure::ClosedPipe | Failure::Interrupted(_) | Failure::AtOnce => "",
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

/// Writes the error of a command, and returns the exit code.
pub(super) fn reported(result: Result<(), Failure>) -> u8 {
    let (message, code) = match result {
        Ok(()) | Err(Failure::ClosedPipe) => return 0,
        Err(Failure::AtOnce) => return EXIT_AT_ONCE,
        Err(Failure::Interrupted(code)) => ("interrupted: the answer is incomplete".to_owned(), code),
        Err(Failure::Usage(message)) => (message, EXIT_USAGE),
        Err(Failure::Runtime(message)) => (message, EXIT_FAILURE),
    };
    complain(&format!("{message}{}", env::named_by(&message)));
    code
}

pub(super) fn complain(message: &str) {
    screen::write_error(&format!("listwatch: {message}"), 4);
}
