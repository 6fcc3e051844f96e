//! The same custom resources are created in a second namespace, and later deleted. Both must get to the same state, and the
//! deletion may not touch the first.
//!
//! It would have found rabbitmq/cluster-operator#1864: an object of the same name in another namespace.

use listwatch_apiserver::WriteRecord;

use crate::{
    lab::{Lab, SECOND},
    reference::Reference,
    report::{Outcome, Verdict},
    settings::CannotJudge,
};

pub(crate) async fn check(reference: &Reference<'_>) -> Result<Verdict, CannotJudge> {
    let mut lab = reference.settled().await?;
    let before = lab.server.version();
    if !lab.create_copies().await? {
        reference.give_back(lab).await;
        return Ok(Verdict::new(Outcome::Skip, "there can be no copy in another namespace"));
    }
    let is_second = |write: &WriteRecord| write.object.starts_with(&format!("{SECOND}/"));
    let begun = |lab: &Lab<'_>| match lab.work_since(before).iter().any(is_second) {
        true => Vec::new(),
        false => vec![()],
    };
    let idle = lab.lasting(begun).await?;
    lab.settle().await?;
    if !idle.is_empty() {
        lab.end().await;
        return Ok(Verdict::new(Outcome::Skip, "it writes nothing there: does it serve only one namespace?"));
    }
    let (of_cluster, namespaces) = (lab.children_of_cluster(), lab.sample_namespaces());
    // Elsewhere, it may be one for all namespaces.
    let is_beside_sample =
        |object: &str| object.split('/').nth(1).is_some_and(|namespace| namespaces.contains(namespace));
    let differences = |lab: &Lab<'_>| {
        let mut all = reference.state.differences_in(&lab.snapshot(), &reference.mask, SECOND);
        all.retain(|difference| {
            is_beside_sample(&difference.object) && !of_cluster.contains(&difference.object)
        });
        all
    };
    let differences = lab.lasting(differences).await?;
    if !differences.is_empty() {
        // A value may have the namespace in it, or a hash of it. An object may belong to a cluster-wide sample, which has no copy.
        let are_all_copied = lab.custom_samples().all(|sample| lab.is_namespaced(sample));
        let is_object = are_all_copied && differences.iter().any(|difference| difference.path.is_empty());
        return Ok(Verdict::differs(
            if is_object { Outcome::Fail } else { Outcome::Warn },
            &format!("the same in the namespace {SECOND}"),
            differences,
        ));
    }
    lab.delete_copies().await?;
    let verdict = reference.judge(&mut lab, "deleted in the second namespace").await?;
    reference.give_back(lab).await;
    Ok(verdict)
}
