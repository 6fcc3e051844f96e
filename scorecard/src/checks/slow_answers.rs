//! The samples are created while each answer takes 300 ms. Then each takes longer than a second, and an annotation wakes the operator. It must get to
//! the same state, create nothing twice, and be quiet.
//!
//! It finds a loop over a clock: a status with the second of the last reconcile changes with each reconcile that takes a second.

use std::time::Duration;

use listwatch_apiserver::Fault;

use super::quiet;
use crate::{
    lab::Lab,
    reference::Reference,
    report::{Outcome, Verdict},
    settings::CannotJudge,
};

const SLOW: Duration = Duration::from_millis(300);

/// Longer than the second to which many clocks are rounded.
const SLOWER: Duration = Duration::from_millis(1100);

pub(crate) async fn check(reference: &Reference<'_>) -> Result<Verdict, CannotJudge> {
    let mut lab = reference.lab().await?;
    lab.connected().await?;
    let known = lab.noise.clone();
    delay(&mut lab, SLOW);
    lab.create_samples().await?;
    lab.until_work_since(lab.version).await;
    let after = format!("each answer took {} ms", SLOW.as_millis());
    let verdict = reference.judge_counts(&mut lab, &after).await?;
    if let Some(loops) = quiet::loops(&lab, &known) {
        return Ok(Verdict::fail(format!("only while each answer takes {} ms: {loops}", SLOW.as_millis())));
    }
    if verdict.result != Outcome::Pass {
        return Ok(verdict);
    }
    delay(&mut lab, SLOWER);
    if let Some(loops) = quiet::poke(&mut lab).await? {
        return Ok(Verdict::fail(format!("only while each answer takes {} ms: {loops}", SLOWER.as_millis())));
    }
    lab.end().await;
    Ok(Verdict::pass("slow answers lead to the same state, and to no loop"))
}

/// Makes all answers to the operator slow.
fn delay(lab: &mut Lab<'_>, time: Duration) {
    lab.server.end_faults();
    lab.server.fault(Fault::Delay(time).by(&lab.user()));
    lab.delay = time;
}
