//! The pauses of the demo on a terminal: before each step, what will happen and what to look for, then a wait for Enter.

use std::{
    io::{self, IsTerminal, Write},
    thread,
};

use tokio::sync::mpsc;

use crate::{embedded::apiserver::say, failure::Failure};

/// The pauses before the steps. Elsewhere there are none.
pub(super) struct Steps {
    enters: Option<mpsc::Receiver<()>>,
    announced: usize,
    total: usize,
}

impl Steps {
    /// No pauses.
    pub(super) fn without_pauses() -> Steps {
        Steps { enters: None, announced: 0, total: 0 }
    }

    /// So many pauses, which end with Enter.
    pub(super) fn with_pauses(total: usize) -> Result<Steps, Failure> {
        if !io::stdin().is_terminal() {
            let error = "--step waits for the Enter key, but standard input is not a terminal; run it in a terminal, or without --step";
            return Err(Failure::Usage(error.to_owned()));
        }
        let (sender, enters) = mpsc::channel(1);
        // Not a task: it would delay the end of the process until the next line. At the end of the input (Ctrl-D), the
        // sender is dropped, and the pauses end.
        thread::spawn(move || {
            let mut line = String::new();
            while io::stdin().read_line(&mut line).is_ok_and(|bytes| bytes > 0)
                && sender.blocking_send(()).is_ok()
            {}
        });
        Ok(Steps { enters: Some(enters), announced: 0, total })
    }

    /// Prints what comes next, and that Enter starts it.
    pub(super) fn announce(&mut self, text: &str) -> Result<(), Failure> {
        if self.enters.is_some() {
            self.announced += 1;
            say!("\n{text}");
            write!(io::stdout(), "Step {} of {}. Press Enter. ", self.announced, self.total)?;
            io::stdout().flush()?;
        }
        Ok(())
    }

    /// Waits for Enter.
    pub(super) async fn enter(&mut self) {
        if let Some(enters) = &mut self.enters {
            enters.recv().await;
        }
    }
}
