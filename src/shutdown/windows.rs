//! The console events of Windows.

use tokio::signal::windows::{CtrlBreak, CtrlC, CtrlClose, ctrl_break, ctrl_c, ctrl_close};

use super::ShutdownError;

/// The events that ask a process to stop.
pub struct ConsoleEvents {
    interrupt: CtrlC,
    /// The only event that a process can send to a group of others.
    stop: CtrlBreak,
    /// The console was closed. Windows ends the process after five seconds.
    close: CtrlClose,
}

impl ConsoleEvents {
    /// Listens from now on. A listener keeps an event from ending the process.
    pub fn listen() -> Result<ConsoleEvents, ShutdownError> {
        Ok(ConsoleEvents {
            interrupt: ctrl_c().map_err(ShutdownError::Signals)?,
            stop: ctrl_break().map_err(ShutdownError::Signals)?,
            close: ctrl_close().map_err(ShutdownError::Signals)?,
        })
    }

    /// Waits for an event. Returns its name, and the exit code of a process that it stopped, as elsewhere.
    pub async fn next(&mut self) -> (&'static str, u8) {
        tokio::select! {
            _ = self.interrupt.recv() => ("Ctrl-C", 130),
            _ = self.stop.recv() => ("Ctrl-Break", 143),
            _ = self.close.recv() => ("close", 129),
        }
    }
}
