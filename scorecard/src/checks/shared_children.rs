//! A second custom resource is created beside each of the samples: under the same name in another namespace, and under another name in the same one. While
//! both exist, the operator must be quiet, and neither the second nor its deletion may delete what belongs to the first.
//!
//! It finds two custom resources that fight over a child that both have, such as a ClusterRole whose name does not have their namespace in it.

use super::{quiet, worst};
use crate::{
    lab::{ChildKey, Lab},
    reference::Reference,
    report::{Outcome, Verdict},
    settings::CannotJudge,
    trial,
};

/// Where the second custom resource is.
#[derive(Clone, Copy)]
enum Place {
    OtherNamespace,
    SameNamespace,
}

impl Place {
    fn text(self) -> &'static str {
        match self {
            Place::OtherNamespace => "beside the same in another namespace",
            Place::SameNamespace => "beside a second one in the same namespace",
        }
    }
}

pub(crate) async fn check(reference: &Reference<'_>) -> Result<Verdict, CannotJudge> {
    if !reference.loops.is_empty() {
        return Ok(Verdict::new(Outcome::Skip, "one custom resource alone is written for ever: see quiet"));
    }
    let runs = [Place::OtherNamespace, Place::SameNamespace].into_iter().map(|place| run(reference, place));
    let nothing = || Verdict::new(Outcome::Skip, "the server accepts no second custom resource");
    Ok(worst(reference, runs).await?.unwrap_or_else(nothing))
}

async fn run(reference: &Reference<'_>, place: Place) -> Result<Verdict, CannotJudge> {
    let mut lab = reference.settled().await?;
    let (before, known) = (lab.server.version(), lab.noise.clone());
    let own: Vec<ChildKey> = lab.children().iter().map(ChildKey::of).collect();
    let own: Vec<_> = own.into_iter().map(|child| (lab.uid_of(&child), child)).collect();
    let mut seconds = Vec::new();
    let has_any = match place {
        Place::OtherNamespace => lab.create_copies().await?,
        Place::SameNamespace => {
            seconds = lab.create_seconds().await;
            !seconds.is_empty()
        }
    };
    if !has_any {
        reference.give_back(lab).await;
        return Ok(Verdict::new(Outcome::Skip, "the server accepts no second custom resource"));
    }
    lab.until_work_since(before).await;
    lab.settle().await?;
    let mut fight = quiet::writes(&mut lab, &known).await?;
    if fight.is_none() {
        fight = quiet::poke(&mut lab).await?;
    }
    if let Some(fight) = fight {
        return Ok(Verdict::fail(format!("{}: {fight}", place.text())));
    }
    if let Some(failure) = deleted(&lab, &own, place.text()) {
        return Ok(failure);
    }
    match place {
        Place::OtherNamespace => lab.delete_copies().await?,
        Place::SameNamespace => lab.delete_seconds(&seconds).await?,
    }
    lab.settle().await?;
    let mask = trial::mask(reference, &lab);
    let after = format!("{}, which was deleted", place.text());
    // What stays of the second one is not the first one's.
    let evidence = lab.lasting(|lab| reference.state.missing(&lab.snapshot(), &mask)).await?;
    if !evidence.is_empty() {
        return Ok(Verdict::differs(Outcome::Fail, &after, evidence));
    }
    if let Some(failure) = deleted(&lab, &own, &after) {
        return Ok(failure);
    }
    reference.give_back(lab).await;
    Ok(Verdict::pass("two custom resources do not disturb each other"))
}

/// The failure if one of these objects does not exist any more, or is another one of its name.
fn deleted(lab: &Lab<'_>, own: &[(Option<String>, ChildKey)], when: &str) -> Option<Verdict> {
    let (_, child) = own.iter().find(|(uid, child)| lab.uid_of(child) != *uid)?;
    let name = format!("{}/{}", child.resource, child.key);
    Some(Verdict::fail(format!("{when}: {name} of the first one was deleted")))
}
