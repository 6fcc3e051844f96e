//! One run without a fault, for others to judge.

use listwatch_apiserver::ApiServer;
use tokio::time::{Instant, sleep};

use super::{
    journal::Journal,
    lab::{Lab, TICK},
    process,
    settings::{CannotJudge, Scorecard},
};

/// Most events of a record. They take 15 MB.
const EVENTS_MAX: usize = 100_000;

/// Runs the operator until `is_enough`, which is asked every 20 ms, or until it ends. The samples are created when it reads their kind.
/// Returns the record, and how the operator ended by itself.
///
/// # Errors
///
/// If a CRD or a sample is invalid, or the operator cannot be started.
pub async fn observe(
    scorecard: &Scorecard,
    mut is_enough: impl FnMut(&ApiServer) -> bool,
) -> Result<(Journal, Option<String>), CannotJudge> {
    process::validate_placeholders(&scorecard.command)?;
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
        if end.is_some() || is_enough(&lab.server) {
            break end;
        }
        sleep(TICK).await;
    };
    let journal = lab.journal(0);
    lab.end().await;
    Ok((journal, end))
}
