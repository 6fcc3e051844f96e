//! The custom resources are deleted, and created again under the same names: without a pause, and while the operator is down.
//!
//! It would have found banzaicloud/koperator#229: an owner of an earlier life, so the garbage collector deletes live objects.

use crate::{
    reference::Reference,
    report::{Outcome, Verdict},
    settings::CannotJudge,
};

pub(crate) async fn check(reference: &Reference<'_>) -> Result<Verdict, CannotJudge> {
    let mut lab = reference.settled().await?;
    lab.delete_samples("Background").await;
    if let Some(left) = lab.lasting(|lab| lab.samples_left()).await?.first() {
        let why = format!("{left} does not go away: see deletes-cleanly");
        return Ok(Verdict::new(Outcome::Skip, why));
    }
    lab.create_samples_again().await?;
    let running = reference.judge(&mut lab, "deleted and created again").await?;
    if running.result == Outcome::Fail {
        return Ok(running);
    }
    lab.kill().await;
    lab.delete_samples("Background").await;
    if !lab.samples_left().is_empty() {
        // Its finalizer waits for the operator.
        lab.end().await;
        return Ok(running);
    }
    lab.create_samples_again().await?;
    lab.start()?;
    lab.connected().await?;
    let down = reference.judge(&mut lab, "deleted and created again while the operator was down").await?;
    if down.result != Outcome::Pass {
        return Ok(down);
    }
    reference.give_back(lab).await;
    Ok(match running.result {
        Outcome::Warn => running,
        Outcome::Pass | Outcome::Fail | Outcome::Skip => {
            Verdict::pass("everything belongs to the new objects")
        }
    })
}
