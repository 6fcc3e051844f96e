//! The watches get a 410, and of the list that follows, the second half comes two seconds later: of the custom resources, then of the
//! children. Meanwhile, annotations wake the operator, and the children are deleted. It may not take what is still to come for deleted, nor lose
//! what changes meanwhile.
//!
//! It would have found stackabletech/hdfs-operator#774: reconciled while a reset store was being filled, and dropped members of a RoleBinding.

use std::time::Duration;

use listwatch_apiserver::{Fault, WriteRecord};

use super::{by_kind, failure, no_children, with_children};
use crate::{
    lab::{Lab, name_of},
    reference::Reference,
    report::{Outcome, Verdict},
    settings::CannotJudge,
};

/// How much later the second half of a list comes.
const PAUSE: Duration = Duration::from_secs(2);

pub(crate) async fn check(reference: &Reference<'_>) -> Result<Verdict, CannotJudge> {
    let Some((mut lab, children)) = with_children(reference).await? else { return Ok(no_children()) };
    let (mut lists, mut late) = (0, None);
    let of_samples = lab.sample_watch_paths();
    let of_children: Vec<String> = by_kind(children).into_keys().collect();
    for (paths, what) in [(of_samples, "custom resources"), (of_children, "children")] {
        let before = lab.server.version();
        lists += begin_lists(&lab, &paths).await;
        lab.poke().await;
        lab.poke_children(children).await;
        lab.wait(PAUSE / 2).await;
        if let Some(write) = lab.work_since(before).into_iter().find(WriteRecord::is_deletion) {
            let name = name_of(&write);
            return Ok(Verdict::fail(format!(
                "while half of a list of the {what} had come, it deleted {name}"
            )));
        }
        lab.delete_children(children).await;
        lab.wait(PAUSE / 2).await;
        lab.server.end_faults();
        let after = format!("children deleted while half of a list of the {what} had come");
        if let Some(failure) = failure(reference.judge(&mut lab, &after).await?, &mut late) {
            return Ok(failure);
        }
    }
    reference.give_back(lab).await;
    if lists == 0 {
        return Ok(Verdict::new(Outcome::Skip, "the operator did not list again while the fault lasted"));
    }
    Ok(late.unwrap_or_else(|| Verdict::pass("half of a list is not taken for the whole")))
}

/// Ends the watches with these paths, and waits until the first halves of the lists have come. Returns of how many.
async fn begin_lists(lab: &Lab<'_>, paths: &[String]) -> usize {
    let from = lab.server.request_count();
    for path in paths {
        lab.server.fault(Fault::SlowLists(PAUSE).on("", path).by(&lab.user()));
        lab.server.fault(Fault::ExpireWatches.on("", path));
    }
    let listed = || {
        let requests = lab.requests_since(from);
        let targets: Vec<_> = requests.map(|request| format!("{}?{}", request.path, request.query)).collect();
        paths.iter().filter(|path| targets.iter().any(|target| target.contains(*path))).count()
    };
    lab.within_fault(|| listed() == paths.len()).await;
    listed()
}
