//! Each kind of children has more objects than a page of a list, and those of the operator are at the end. It is restarted, and a field of the custom
//! resource is changed. It must get to the state that an object created with the new spec gets to.
//!
//! It finds an operator that reads the first page alone: it takes its own objects for missing.

use std::collections::BTreeSet;

use http::Method;
use serde_json::json;

use super::fails_without_fault;
use crate::{
    lab::Lab,
    reference::{Reference, Trigger},
    report::{Outcome, Verdict},
    settings::CannotJudge,
    spec_changes::Intent,
    trial::{self, FromNothing},
};

/// More than the 500 that client-go and kubectl ask for.
const OBJECTS: usize = 600;

/// Changes that are tried until one has an effect.
const CHANGES_MAX: usize = 3;

pub(crate) async fn check(reference: &Reference<'_>) -> Result<Verdict, CannotJudge> {
    if !reference.reads_pages() {
        return Ok(Verdict::new(Outcome::Skip, "it asks for no pages: no list has a limit"));
    }
    let mut lab = reference.lab().await?;
    let creates = reference.triggers.iter().filter(|trigger| trigger.is_create());
    let collections: BTreeSet<&str> = creates.map(Trigger::collection).collect();
    let mut kinds = 0;
    for collection in collections {
        kinds += usize::from(fill(&lab, collection).await);
    }
    if kinds == 0 {
        lab.end().await;
        return Ok(Verdict::new(Outcome::Skip, "the operator creates no simple objects"));
    }
    lab.settle_with_samples().await?;
    let mask = trial::mask(reference, &lab);
    for trial in trial::trials(reference, &lab, Intent::Change).await.iter().take(CHANGES_MAX) {
        let expected = trial.create_anew(&mut lab).await?;
        let samples: Vec<_> = lab.custom_samples().cloned().collect();
        if !trial::replace(&mut lab, &samples).await? {
            return Ok(trial::stays());
        }
        lab.settle().await?;
        let FromNothing::State(expected) = expected else { continue };
        if reference.state.differences(&expected, &mask).iter().all(|one| lab.is_of_sample(&one.object)) {
            continue;
        }
        let after = format!("beside {OBJECTS} other objects of each kind, {} after a restart", trial.what());
        let change = async |lab: &mut Lab<'_>| {
            lab.kill().await;
            lab.start()?;
            lab.connected().await?;
            trial.apply(lab).await;
            lab.judge(&expected, &mask, &after).await
        };
        let verdict = change(&mut lab).await?;
        if verdict.result == Outcome::Fail && fails_without_fault(reference, &mut lab, change).await? {
            lab.start()?;
            lab.connected().await?;
            continue;
        }
        lab.end().await;
        return Ok(verdict);
    }
    lab.end().await;
    Ok(Verdict::new(Outcome::Skip, "no change takes effect in the children: see applies-spec-changes"))
}

/// Creates objects whose names come before most others. `false`: they are not of a simple kind.
async fn fill(lab: &Lab<'_>, collection: &str) -> bool {
    let content = match collection.rsplit('/').next() {
        Some("configmaps" | "secrets" | "serviceaccounts") => json!({}),
        Some("services") => json!({"spec": {"ports": [{"port": 4321}], "clusterIP": "None"}}),
        _ => return false,
    };
    for number in 0..OBJECTS {
        let mut object = content.clone();
        object["metadata"] = json!({"name": format!("0-scorecard-{number}")});
        lab.request(Method::POST, collection, object).await;
    }
    true
}
