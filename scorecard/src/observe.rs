//! One run without a fault, for others to judge.

use std::{path::Path, pin::pin, sync::Arc};

use listwatch_apiserver::ApiServer;
use tokio::time::{Instant, sleep};

use super::{
    journal::Journal,
    lab::{Lab, TICK},
    process::{self, Process, Program},
    settings::{CannotJudge, Scorecard},
};

/// Most events of watches in a record: [`Options::events`](listwatch_apiserver::Options::events). They take 15 MB.
pub const EVENTS_MAX: usize = 100_000;

/// What becomes of a run that is observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// It goes on.
    GoOn,
    /// The operator is killed, and started again as another user.
    Restart,
    /// It ends.
    End,
}

/// Runs the operator until `then`, which is asked every 20 ms, says so, or until it ends. The samples are created when it reads their kind.
/// Returns the record, and how the operator ended by itself.
///
/// # Errors
///
/// If a CRD or a sample is invalid, or the operator cannot be started.
pub async fn observe(
    scorecard: &Scorecard,
    mut then: impl FnMut(&Arc<ApiServer>) -> Then,
) -> Result<(Journal, Option<String>), CannotJudge> {
    process::validate_placeholders(&scorecard.command, scorecard)?;
    let mut lab = Lab::with_events(scorecard, EVENTS_MAX).await?;
    lab.start()?;
    let (started, mut has_samples) = (Instant::now(), false);
    let end = loop {
        // An operator without the permission never reads them.
        if !has_samples && (lab.reads_samples() || started.elapsed() > scorecard.start) {
            lab.create_samples().await?;
            has_samples = true;
        }
        let end = lab.ended().map(|(_, end)| end);
        if end.is_some() {
            break end;
        }
        match then(&lab.server) {
            Then::GoOn => {}
            Then::Restart => {
                lab.kill().await;
                lab.start()?;
            }
            Then::End => break None,
        }
        sleep(TICK).await;
    };
    let journal = lab.journal(0);
    lab.end().await;
    Ok((journal, end))
}

/// Runs a program with a kubeconfig until it `is_enough`, or until it ends. Returns how it ended by itself.
///
/// # Errors
///
/// If it cannot be started.
pub async fn run_program(
    command: &[String],
    kubeconfig: &Path,
    is_enough: impl Future<Output = ()>,
) -> Result<Option<String>, CannotJudge> {
    let settings = Scorecard::new(Vec::new(), Vec::new(), command.to_vec());
    process::validate_placeholders(command, &settings)?;
    let dir = tempfile::tempdir().map_err(|error| CannotJudge(format!("log: {error}")))?;
    let log = dir.path().join("operator.log");
    let mut process = Process::start(Program::Judged, 1, &settings, None, kubeconfig, log)?;
    let mut is_enough = pin!(is_enough);
    let end = loop {
        if let Some(end) = process.ended() {
            break Some(end);
        }
        tokio::select! {
            () = &mut is_enough => break None,
            () = sleep(TICK) => {}
        }
    };
    process.kill().await;
    Ok(end)
}
