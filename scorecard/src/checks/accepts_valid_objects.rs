//! Objects that the schema allows are created beside the samples: the smallest one, one without each optional field, and one with a name
//! of 63 characters. The operator may refuse them in words, but must not end, must do something for each, and must still serve the samples.
//!
//! It would have found kairos-io/kairos#4835: without an optional `secretRef`, the whole manager crashes again and again.

use http::Method;
use serde_json::Value;

use super::failure;
use crate::{
    fault_choice::FaultChoice,
    lab::{Lab, name_of},
    reference::Reference,
    report::{Outcome, Verdict},
    settings::CannotJudge,
    spec_changes::{Intent, smallest},
    trial::{self, Trial},
};

pub(super) const NAME: &str = "accepts-valid-objects";

/// Most objects without `--all`.
const OBJECTS_MAX: usize = 8;

/// The longest name of a Service, and value of a label.
const NAME_CHARS_MAX: usize = 63;

pub(crate) async fn check(reference: &Reference<'_>) -> Result<Verdict, CannotJudge> {
    let (mut lab, children) = reference.settled_with_repaired().await?;
    let extras = extras(reference, &lab).await;
    let mut warning = None;
    let choice = FaultChoice::of(reference.scorecard, NAME, OBJECTS_MAX, extras, |extra| &extra.name);
    if choice.tried.is_empty() {
        return Ok(Verdict::new(Outcome::Skip, "the server accepts no other object than the samples"));
    }
    let mut judgements = Vec::new();
    for sample in trial::first_samples(&lab) {
        let judgement = judgement_of_silence(&mut lab, sample).await?;
        judgements.extend(judgement.map(|judgement| (&sample["kind"], judgement)));
    }
    for Extra { name, what, object } in &choice.tried {
        let (before, version) = (lab.incidents().len(), lab.server.version());
        lab.create(object, what).await?;
        // An operator that ends again and again cannot settle.
        let settled = lab.settle().await;
        let incidents = lab.incidents();
        if let Some(incident) = incidents.get(before) {
            return Ok(Verdict::fail(format!("{what}: {incident}")).at(name));
        }
        settled?;
        let judgement = judgements.iter().find(|(kind, _)| **kind == object["kind"]);
        if let Some((_, result)) = judgement
            && is_silent(&mut lab, object, version).await?
        {
            let verdict =
                Verdict::new(*result, format!("{what}: it gets nothing: no child, no status, no Event"));
            if let Some(failure) = failure(verdict.at(name), &mut warning) {
                return Ok(failure);
            }
        }
    }
    // An object of another kind may rightly change children of the samples: a ServiceMonitor those of a Prometheus.
    let beside = (trial::first_samples(&lab).len() > 1).then(|| lab.snapshot());
    let expected = beside.as_ref().unwrap_or(&reference.state);
    lab.delete_children(children).await;
    let mask = trial::mask(reference, &lab);
    lab.settle().await?;
    let evidence = lab.lasting(|lab| expected.missing(&lab.snapshot(), &mask)).await?;
    if !evidence.is_empty() {
        let names: Vec<&str> = choice.tried.iter().map(|extra| extra.what.as_str()).collect();
        return Ok(Verdict::differs(Outcome::Fail, &format!("beside {}", names.join("; ")), evidence));
    }
    lab.end().await;
    let objects = choice.text("objects");
    let pass = || Verdict::pass(format!("{objects}, and the samples are still served"));
    Ok(choice.complete(warning.unwrap_or_else(pass)))
}

/// How to judge it if the operator writes nothing for an object of a kind: no child, no status, no Event. `None`: it writes nothing even for a copy of the
/// sample, as one that serves a single name. A warning if it writes no status of the copy: another object may need no child.
async fn judgement_of_silence(lab: &mut Lab<'_>, sample: &Value) -> Result<Option<Outcome>, CannotJudge> {
    let (copy, version) = (renamed(sample, "scorecard-copy"), lab.server.version());
    if lab.create(&copy, "a copy").await.is_err() {
        return Ok(None);
    }
    lab.settle().await?;
    if is_silent(lab, &copy, version).await? {
        return Ok(None);
    }
    let name = lab.name_of_sample(&copy);
    let has_status = lab.work_since(version).iter().any(|write| name_of(write) == name);
    Ok(Some(if has_status { Outcome::Fail } else { Outcome::Warn }))
}

/// Whether the operator has written nothing for an object that was created at a version.
async fn is_silent(lab: &mut Lab<'_>, object: &Value, version: u64) -> Result<bool, CannotJudge> {
    let name = &object["metadata"]["name"];
    let idle = |lab: &Lab<'_>| match lab.has_acted_for(name, version) {
        true => Vec::new(),
        false => vec![()],
    };
    Ok(!lab.lasting(idle).await?.is_empty())
}

fn renamed(object: &Value, name: &str) -> Value {
    let mut renamed = object.clone();
    renamed["metadata"]["name"] = name.into();
    // An object that selects the sample by its labels would also select this one, and rightly have another state.
    renamed["metadata"]["labels"] = Value::Null;
    renamed
}

/// An object beside the samples.
struct Extra {
    /// `Page/without.spec.image`
    name: String,
    /// `Page without .spec.image`
    what: String,
    object: Value,
}

/// The faults that `--only` can name.
pub(super) async fn faults(reference: &Reference<'_>) -> Result<Vec<String>, CannotJudge> {
    let lab = reference.settled().await?;
    let names = extras(reference, &lab).await.into_iter().map(|extra| extra.name).collect();
    reference.give_back(lab).await;
    Ok(names)
}

/// The objects that a dry run accepts.
async fn extras<'a>(reference: &Reference<'a>, lab: &Lab<'a>) -> Vec<Extra> {
    let mut extras = Vec::new();
    for sample in trial::first_samples(lab) {
        let kind = sample["kind"].as_str().unwrap_or_default();
        let mut add = |fault: String, what: String, name: &str, object: &Value| {
            let object = renamed(object, name);
            extras.push(Extra { name: format!("{kind}/{fault}"), what: format!("{kind} {what}"), object });
        };
        let schema = trial::schema(reference.scorecard, sample);
        let least = smallest(&schema, sample);
        add("smallest".to_owned(), "with the required fields alone".to_owned(), "scorecard-smallest", &least);
        let long = "a".repeat(NAME_CHARS_MAX);
        add("long-name".to_owned(), "with a name of 63 characters".to_owned(), &long, sample);
    }
    let omissions = trial::trials(reference, lab, Intent::Omission).await;
    for (index, Trial { sample, change, .. }) in omissions.iter().enumerate() {
        let (kind, path) = (sample["kind"].as_str().unwrap_or_default(), &change.path);
        let object = renamed(&change.applied(sample), &format!("scorecard-without-{index}"));
        let (name, what) = (format!("{kind}/without{path}"), format!("{kind} without {path}"));
        extras.push(Extra { name, what, object });
    }
    let mut accepted = Vec::new();
    for extra in extras {
        let dry_run = format!("{}?dryRun=All&fieldValidation=Strict", lab.collection_path(&extra.object));
        let (status, _) = lab.request(Method::POST, &dry_run, extra.object.clone()).await;
        if status == 201 {
            accepted.push(extra);
        }
    }
    accepted
}
