//! SIGTERM: stop taking work, finish what is in hand. A second signal: stop at once.

use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::watch,
};
use tracing::{info, warn};

/// A second signal came: the work was dropped where it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtOnce;

/// Tells when to stop. Clones tell alike.
#[derive(Clone, Debug)]
pub struct Stop {
    receiver: watch::Receiver<()>,
}

impl Stop {
    /// Waits until it is time to stop.
    pub async fn requested(mut self) {
        // An error says that nobody is left who could ask: then it is time, too.
        let _ = self.receiver.changed().await;
    }
}

/// Runs `work` to its end, and asks it to stop at the first SIGTERM or SIGINT. Drops it at the second.
///
/// The outer error: this process cannot listen for signals.
pub async fn until_signal<F: Future>(
    work: impl FnOnce(Stop) -> F,
) -> std::io::Result<Result<F::Output, AtOnce>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let (sender, receiver) = watch::channel(());
    let work = work(Stop { receiver });
    let signals = async {
        let name = first(&mut terminate, &mut interrupt).await;
        info!(signal = name, "asked to stop");
        // Nobody listens: the work is about to end anyway.
        let _ = sender.send(());
        let name = first(&mut terminate, &mut interrupt).await;
        warn!(signal = name, "asked again; stopping at once");
    };
    tokio::select! {
        output = work => Ok(Ok(output)),
        () = signals => Ok(Err(AtOnce)),
    }
}

async fn first(terminate: &mut Signal, interrupt: &mut Signal) -> &'static str {
    tokio::select! {
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
    }
}
