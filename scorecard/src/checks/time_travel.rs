//! The custom resources were deleted and created again. The operator is killed, and reads at its start, where it allows old data, the state in
//! the middle of the deletion, as from an API server whose cache is behind. It must not delete what belongs to the new objects.
//!
//! It would have found rabbitmq/cluster-operator#648: the deletionTimestamp of the old cluster, so the new StatefulSet was deleted.

use listwatch_apiserver::{Fault, WriteRecord};

use super::failure;
use crate::{
    lab::{Lab, name_of},
    reference::Reference,
    report::{Outcome, Verdict},
    settings::CannotJudge,
};

/// Restarts at each old state. Some faults depend on the order in which caches are filled. One that shows in a quarter of these rounds is missed
/// by all of them in one of 130 cases.
const ROUNDS: usize = 17;

pub(crate) async fn check(reference: &Reference<'_>) -> Result<Verdict, CannotJudge> {
    let mut lab = reference.settled().await?;
    let lists_old = |lab: &Lab<'_>| {
        let mut requests = lab.server.requests().into_iter();
        requests.any(|request| request.user == lab.user() && request.query.contains("resourceVersion=0"))
    };
    if !lists_old(&lab) {
        // client-go falls back to such a list where streaming lists are refused.
        lab.kill().await;
        lab.server.fault(Fault::NoStreamingLists);
        lab.start()?;
        lab.connected().await?;
        lab.server.end_faults();
    }
    if !lists_old(&lab) {
        reference.give_back(lab).await;
        return Ok(Verdict::new(Outcome::Skip, "it never allows old data: no list with resourceVersion=0"));
    }
    let settled = lab.server.version();
    lab.delete_samples("Foreground").await;
    if let Some(left) = lab.lasting(|lab| lab.samples_left()).await?.first() {
        return Ok(Verdict::new(Outcome::Skip, format!("{left} does not go away: see deletes-cleanly")));
    }
    let deleted = lab.server.version();
    let terminating = lab.termination_since(settled).unwrap_or(deleted);
    lab.create_samples_again().await?;
    if reference.judge(&mut lab, "").await?.result != Outcome::Pass {
        return Ok(Verdict::new(Outcome::Skip, "the samples cannot be created again: see recreated"));
    }
    let mut late = None;
    let moments =
        [(settled, "before the deletion"), (terminating, "during the deletion"), (deleted, "after it")];
    for (version, when) in moments.repeat(ROUNDS) {
        let verdict = restart_at(reference, &mut lab, version, when).await?;
        if let Some(failure) = failure(verdict, &mut late) {
            return Ok(failure);
        }
    }
    reference.give_back(lab).await;
    Ok(late.unwrap_or_else(|| {
        Verdict::pass(format!("{} restarts that see the past do no harm", moments.len() * ROUNDS))
    }))
}

async fn restart_at(
    reference: &Reference<'_>,
    lab: &mut Lab<'_>,
    version: u64,
    when: &str,
) -> Result<Verdict, CannotJudge> {
    lab.kill().await;
    lab.server.fault(Fault::StaleLists(version));
    lab.server.fault(Fault::NoStreamingLists);
    lab.server.fault(Fault::StallWatches);
    let before = lab.server.version();
    lab.start()?;
    lab.connected().await?;
    lab.server.end_faults();
    let after = format!("started with the state {when}");
    let verdict = reference.judge(lab, &after).await?;
    let deletion = lab.work_since(before).into_iter().find(WriteRecord::is_deletion);
    Ok(match deletion {
        Some(write) => Verdict::fail(format!("{after}: it deleted {} of the new object", name_of(&write))),
        None => verdict,
    })
}
