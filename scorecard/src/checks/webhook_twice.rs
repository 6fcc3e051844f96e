//! Each sample is created in a dry run, and so is the result, as a webhook that is invoked again gets its own output. The second may change nothing,
//! and a dry run may have no effect: the operator writes nothing, and a creation leads to the same state as without it.
//!
//! It finds a webhook that adds to a field at each call, and one that reserves something for an object that never exists.

use listwatch_apiserver::differences;
use serde_json::Value;

use super::{no_webhooks, quiet};
use crate::{
    reference::Reference,
    report::{Outcome, Verdict},
    settings::CannotJudge,
    snapshot::manifest,
};

pub(crate) async fn check(reference: &Reference<'_>) -> Result<Verdict, CannotJudge> {
    if reference.scorecard.webhooks.is_empty() {
        return Ok(no_webhooks());
    }
    let mut lab = reference.lab().await?;
    lab.connected().await?;
    let others: Vec<&Value> = lab.other_samples().collect();
    lab.create_samples_as(|sample| others.contains(&sample).then(|| sample.clone())).await?;
    lab.settle().await?;
    let (version, mut count) = (lab.server.version(), 0);
    for sample in lab.custom_samples() {
        // It may need another one, which does not exist yet, and a webhook may accept some fields only from itself.
        let Ok(once) = lab.dry_run(sample).await else { continue };
        let Ok(twice) = lab.dry_run(&manifest(&once)).await else { continue };
        count += 1;
        let mut fields = Vec::new();
        differences(&manifest(&once), &manifest(&twice), "", &mut fields);
        if let Some(field) = fields.first() {
            let name = lab.name_of_sample(sample);
            return Ok(Verdict::fail(format!("a second call of a webhook changes {name} {field} again")));
        }
    }
    if count == 0 {
        lab.end().await;
        return Ok(Verdict::new(Outcome::Skip, "a dry run creates no sample"));
    }
    lab.settle_fully().await?;
    if let Some(write) = quiet::described(&lab, version).first() {
        return Ok(Verdict::fail(format!("a dry run of a creation has an effect: {write}")));
    }
    lab.create_missing_samples(&lab).await?;
    lab.until_work_since(version).await;
    let verdict = reference.judge(&mut lab, "created after a dry run").await?;
    lab.end().await;
    Ok(match verdict.result {
        Outcome::Pass => Verdict::pass("a second call changes nothing, and a dry run has no effect"),
        Outcome::Fail | Outcome::Warn | Outcome::Skip => verdict,
    })
}
