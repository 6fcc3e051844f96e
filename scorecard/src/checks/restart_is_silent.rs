//! An operator that is killed when it has settled, and started again, writes nothing but times.
//!
//! It finds rendering that differs from start to start, such as a hash over a map without an order, and rolls out all Pods.

use std::collections::HashMap;

use super::super::{
    lab::Lab, reference::Reference, report::Verdict, settings::CannotJudge, snapshot::normalised,
};

/// Restarts that must all write: the first may finish what was not settled yet.
const RESTARTS: usize = 2;

pub(in super::super) async fn check(reference: &Reference<'_>) -> Result<Verdict, CannotJudge> {
    let mut lab = reference.settled().await?;
    let mut written = Vec::new();
    for _ in 0..RESTARTS {
        lab.kill().await;
        let version = lab.server.version();
        lab.start()?;
        lab.connected().await?;
        lab.settle_fully().await?;
        written = changes(&lab, version);
        if written.is_empty() {
            break;
        }
    }
    if let Some(first) = written.first() {
        let count = written.len();
        return Ok(Verdict::fail(format!("each restart writes {count} times; the first: {first}")));
    }
    reference.give_back(lab).await;
    Ok(Verdict::pass("a restart writes nothing"))
}

fn changes(lab: &Lab<'_>, version: u64) -> Vec<String> {
    let mut changes = Vec::new();
    for write in lab.work_since(version) {
        if let (Some(before), Some(after)) = (&write.before, &write.after) {
            let names = HashMap::new();
            if normalised(before, &names, true) == normalised(after, &names, true) {
                continue;
            }
        }
        let paths = write.changed_paths().join(", ");
        changes.push(format!("{} {}/{} {paths}", write.verb(), write.resource, write.object));
    }
    changes
}
