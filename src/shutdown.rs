//! Signals: the first SIGTERM, SIGINT or SIGHUP (on Windows Ctrl-C, Ctrl-Break or a closed console) asks the work to stop, the
//! second one drops it. `controller.rs` waits for the running reconciles.

#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

use std::io;

use tokio::{runtime, sync::watch};
use tracing::{info, warn};

#[cfg(unix)]
pub use self::unix::Signals;
#[cfg(windows)]
pub use self::windows::ConsoleEvents as Signals;

/// Why the work did not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum ShutdownError {
    /// The event loop cannot start.
    #[error("start: {0}")]
    Start(io::Error),
    /// This process cannot listen for signals.
    #[error("listen for signals: {0}")]
    Signals(io::Error),
    /// A second signal came, and the work was dropped.
    #[error("stopped at once, by a second signal")]
    AtOnce,
}

/// The request to stop. Clones share it.
#[derive(Clone, Debug)]
pub struct Stop {
    receiver: watch::Receiver<()>,
}

impl Stop {
    /// A request to stop. Dropping the sender makes it.
    pub(crate) fn channel() -> (watch::Sender<()>, Stop) {
        let (sender, receiver) = watch::channel(());
        (sender, Stop { receiver })
    }

    /// Waits for the request to stop.
    pub async fn requested(mut self) {
        // An error means that the sender is gone, which is another reason to stop.
        let _ = self.receiver.changed().await;
    }
}

/// Runs `work` to its end on this thread, and asks it to stop at the first signal. Drops it at the second. One
/// thread, because operators mostly wait, and more threads need more memory.
pub fn run<F: Future>(work: impl FnOnce(Stop) -> F) -> Result<F::Output, ShutdownError> {
    let runtime =
        runtime::Builder::new_current_thread().enable_all().build().map_err(ShutdownError::Start)?;
    let output = runtime.block_on(until_signal(work));
    // Does not wait for the system's lookup of a host name, which no signal ends. It may take half a minute.
    runtime.shutdown_background();
    output
}

async fn until_signal<F: Future>(work: impl FnOnce(Stop) -> F) -> Result<F::Output, ShutdownError> {
    let mut signals = Signals::listen()?;
    let (sender, stop) = Stop::channel();
    let work = work(stop);
    let signals = async {
        let (name, _) = signals.next().await;
        info!(signal = name, "asked to stop");
        drop(sender);
        let (name, _) = signals.next().await;
        warn!(signal = name, "asked again; stopping at once");
    };
    tokio::select! {
        output = work => Ok(output),
        () = signals => Err(ShutdownError::AtOnce),
    }
}
