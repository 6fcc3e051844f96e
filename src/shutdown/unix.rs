//! The signals of Unix.

use std::{fs, future};

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::ShutdownError;

/// The signals that ask a process to stop.
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    /// The terminal was closed. `None`: `nohup` started this process, so a hangup must not stop it.
    hangup: Option<Signal>,
}

impl Signals {
    /// Listens from now on. A listener keeps a signal from ending the process.
    pub fn listen() -> Result<Signals, ShutdownError> {
        let listen = |kind| signal(kind).map_err(ShutdownError::Signals);
        Ok(Signals {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            hangup: if ignores_hangup() { None } else { Some(listen(SignalKind::hangup())?) },
        })
    }

    /// Waits for a signal. Returns its name, and the exit code that a shell reports for it.
    pub async fn next(&mut self) -> (&'static str, u8) {
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
