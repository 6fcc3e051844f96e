//! Objects that the schema allows are created beside the samples: the smallest one, one without each optional field, and one with a name
//! of 63 characters. The operator may refuse them in words, but must not end, must do something for each, and must still serve the samples.
//!
//! It would have found kairos-io/kairos#4835: without an optional `secretRef`, the whole manager crashes again and again.

use http::Method;
use serde_json::Value;

use super::{
    super::{
        fault_choice::FaultChoice,
        lab::Lab,
        reference::Reference,
        report::{Outcome, Verdict},
        settings::CannotJudge,
        spec_changes::{Intent, smallest},
        trial::{self, Trial},
    },
    failure,
    honest_status::name_of,
};

pub(super) const NAME: &str = "accepts-valid-objects";

/// Most objects without `--all`.
const OBJECTS_MAX: usize = 8;

/// The longest name of a Service, and value of a label.
const NAME_CHARS_MAX: usize = 63;

pub(in super::super) async fn check(reference: &Reference<'_>) -> Result<Verdict, CannotJudge> {
    let children = reference.repaired().await?;
    let mut lab = reference.settled().await?;
    let extras = extras(reference, &lab).await;
    let mut warning = None;
    let choice = FaultChoice::of(reference.scorecard, NAME, OBJECTS_MAX, extras, |extra| &extra.name);
    if choice.tried.is_empty() {
        return Ok(Verdict::new(Outcome::Skip, "the server accepts no other object than the samples"));
    }
    for Extra { name, what, object } in &choice.tried {
        let (before, version) = (lab.incidents().len(), lab.server.version());
        lab.create(object, what).await?;
        // An operator that ends again and again cannot settle.
        let settled = lab.settle().await;
        let incidents = lab.incidents();
        if let Some(incident) = incidents.get(before) {
            let verdict = Verdict::fail(format!("{what}: {incident}"));
            return Ok(Verdict { trigger: Some(name.clone()), ..verdict });
        }
        settled?;
        if let Some(verdict) = gets_nothing(&mut lab, object, version).await? {
            let reason = format!("{what}: {}", verdict.reason);
            let verdict = Verdict { reason, trigger: Some(name.clone()), ..verdict };
            if let Some(failure) = failure(verdict, &mut warning) {
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
    let missing = |lab: &Lab| {
        let mut differences = expected.differences(&lab.snapshot(), &mask);
        differences.retain(|difference| !difference.expected.is_null());
        differences
    };
    let evidence = lab.lasting(missing).await?;
    if !evidence.is_empty() {
        let names: Vec<&str> = choice.tried.iter().map(|extra| extra.what.as_str()).collect();
        return Ok(Verdict::differs(Outcome::Fail, &format!("beside {}", names.join("; ")), evidence));
    }
    lab.end().await;
    let objects = choice.text("objects");
    let pass = || Verdict::pass(format!("{objects}, and the samples are still served"));
    Ok(choice.complete(warning.unwrap_or_else(pass)))
}

/// What is wrong if the operator writes nothing for an object: no child, no status, no Event. A warning if the samples of its kind have no status
/// from the operator: the object may need no child.
async fn gets_nothing(
    lab: &mut Lab<'_>,
    object: &Value,
    version: u64,
) -> Result<Option<Verdict>, CannotJudge> {
    let samples = lab.custom_samples().filter(|sample| sample["kind"] == object["kind"]);
    let samples: Vec<String> = samples.map(|sample| lab.name_of_sample(sample)).collect();
    let writes = lab.work_since(lab.version);
    let is_served = |name: &String| writes.iter().any(|write| name_of(write) == *name);
    let has_children = writes.iter().any(|write| {
        let owners = write.after.as_ref().and_then(|child| child["metadata"]["ownerReferences"].as_array());
        owners.into_iter().flatten().any(|owner| owner["kind"] == object["kind"])
    });
    let result = match (samples.iter().any(is_served), has_children) {
        (true, _) => Outcome::Fail,
        (false, true) => Outcome::Warn,
        (false, false) => return Ok(None),
    };
    let name = object["metadata"]["name"].clone();
    let idle = |lab: &Lab<'_>| match lab.has_acted_for(&name, version) {
        true => Vec::new(),
        false => vec![()],
    };
    let is_idle = !lab.lasting(idle).await?.is_empty();
    Ok(is_idle.then(|| Verdict::new(result, "it gets nothing: no child, no status, no Event")))
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
        let mut add = |fault: String, what: String, name: &str, mut object: Value| {
            let metadata = &mut object["metadata"];
            metadata["name"] = name.into();
            // An object that selects the sample by its labels would also select this one, and rightly have another state.
            metadata["labels"] = Value::Null;
            extras.push(Extra { name: format!("{kind}/{fault}"), what: format!("{kind} {what}"), object });
        };
        let schema = trial::schema(reference.scorecard, sample);
        let least = smallest(&schema, sample);
        add("smallest".to_owned(), "with the required fields alone".to_owned(), "scorecard-smallest", least);
        let long = "a".repeat(NAME_CHARS_MAX);
        add("long-name".to_owned(), "with a name of 63 characters".to_owned(), &long, sample.clone());
        let mut omissions = trial::trials(reference, lab, Intent::Omission).await;
        omissions.retain(|omission| std::ptr::eq(omission.sample, sample));
        for (index, Trial { change, .. }) in omissions.iter().enumerate() {
            let (name, path) = (format!("scorecard-without-{index}"), &change.path);
            add(format!("without{path}"), format!("without {path}"), &name, change.applied(sample));
        }
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
