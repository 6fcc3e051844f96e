//! Signals: the first SIGTERM, SIGINT or SIGHUP asks the work to stop, the second one drops it. `controller.rs` waits for the
//! running reconciles.

use std::{fs, future, io};

use tokio::{
    runtime,
    signal::unix::{Signal, SignalKind, signal},
    sync::watch,
};
use tracing::{info, warn};

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

/// The signals that ask a process to stop.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    /// The terminal was closed. `None`: `nohup` started this process, so a hangup must not stop it.
    hangup: Option<Signal>,
}

impl Signals {
    /// Listens from now on. A listener keeps a signal from ending the process.
    pub(crate) fn listen() -> Result<Signals, ShutdownError> {
        let listen = |kind| signal(kind).map_err(ShutdownError::Signals);
        Ok(Signals {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            hangup: if ignores_hangup() { None } else { Some(listen(SignalKind::hangup())?) },
        })
    }

    /// Waits for a signal. Returns its name, and the exit code that a shell reports for it.
    pub(crate) async fn next(&mut self) -> (&'static str, u8) {
        tokio::select! {
            _ = self.terminate.recv() => ("SIGTERM", 143),
            _ = self.interrupt.recv() => ("SIGINT", 130),
            () = hung_up(&mut self.hangup) => ("SIGHUP", 129),
        }
    }
}

async fn hung_up(hangup: &mut Option<Signal>) {
    match hangup {
        Some(hangup) => drop(hangup.recv().await),
        None => future::pending().await,
    }
}

/// Whether this process ignores SIGHUP: the first bit of a mask in hexadecimal. See proc_pid_status(5).
fn ignores_hangup() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap_or_default();
    u64::from_str_radix(mask.trim(), 16).is_ok_and(|mask| mask & 1 == 1)
}
