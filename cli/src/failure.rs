//! The end of a command: why it failed, its exit code, and a signal that stops it.

use std::{io, process, time::Duration};

use listwatch::{
    client::Error,
    shutdown::{self, ShutdownError, Signals, Stop},
};
use tokio::runtime;

use super::{env, terminal::write_error};

/// The exit code of an error that may pass.
const EXIT_FAILURE: u8 = 1;

/// The exit code of a usage error: the same command would fail again.
pub(super) const EXIT_USAGE: u8 = 2;

/// The exit code after a second signal: the one that a shell reports for SIGTERM.
const EXIT_AT_ONCE: u8 = 143;

/// How long a command may take to end after a signal. Then a write blocks.
const STOP_WAIT: Duration = Duration::from_millis(500);

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

/// Ends the process soon after a signal even if a write to standard output blocks, because its reader has stopped reading.
/// The code of the signal decides about the result.
pub(super) fn exit_when_blocked(result: fn(u8) -> Result<(), Failure>) {
    std::thread::spawn(move || {
        let Ok(runtime) = runtime::Builder::new_current_thread().enable_all().build() else { return };
        runtime.block_on(async {
            let Ok(mut signals) = Signals::listen() else { return };
            let (_, code) = signals.next().await;
            tokio::time::sleep(STOP_WAIT).await;
            process::exit(reported(result(code)).into());
        });
    });
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
    write_error(&format!("listwatch: {message}"), 4);
}
