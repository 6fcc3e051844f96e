//! An operator that is killed when it has settled, and started again, writes nothing but times.
//!
//! It finds rendering that differs from start to start, such as a hash over a map without an order, and rolls out all Pods.

use std::collections::HashMap;

use crate::{
    lab::{Lab, name_of},
    reference::Reference,
    report::Verdict,
    settings::CannotJudge,
    snapshot::normalised_in_order,
};

/// Restarts without a write until it counts as silent. A map of two keys without an order has the same order as before in half of all
/// starts, so all of these miss it in one of 128 cases.
const SILENT: usize = 7;

/// Restarts that write until it counts as a failure: the first may finish what was not settled yet.
const WRITING: usize = 2;

pub(crate) async fn check(reference: &Reference<'_>) -> Result<Verdict, CannotJudge> {
    let mut lab = reference.settled().await?;
    let (mut silent, mut writing, mut restarts) = (0, 0, 0);
    while silent < SILENT {
        lab.kill().await;
        let version = lab.server.version();
        lab.start()?;
        lab.connected().await?;
        match restarts {
            0 => lab.settle_fully().await?,
            _ => drop(lab.settle().await?),
        }
        restarts += 1;
        let written = changes(&lab, version);
        let Some(first) = written.first() else {
            silent += 1;
            continue;
        };
        (silent, writing) = (0, writing + 1);
        if writing == WRITING {
            let count = written.len();
            return Ok(Verdict::fail(format!(
                "{WRITING} of {restarts} restarts write; the last one {count} times, the first: {first}"
            )));
        }
    }
    reference.give_back(lab).await;
    Ok(Verdict::pass(format!("{SILENT} restarts write nothing")))
}

fn changes(lab: &Lab<'_>, version: u64) -> Vec<String> {
    let mut changes = Vec::new();
    for write in lab.work_since(version) {
        if let (Some(before), Some(after)) = (&write.before, &write.after) {
            let names = HashMap::new();
            if normalised_in_order(before, &names, true) == normalised_in_order(after, &names, true) {
                continue;
            }
        }
        let paths = write.changed_paths().join(", ");
        changes.push(format!("{} {} {paths}", write.verb(), name_of(&write)));
    }
    changes
}
