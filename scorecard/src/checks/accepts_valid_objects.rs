//! Objects that the schema allows are created beside the samples: the smallest one, one without each optional field, and one with a name
//! of 63 characters. The operator may refuse them in words, but must not end, and must still serve the samples.
//!
//! It would have found kairos-io/kairos#4835: without an optional `secretRef`, the whole manager crashes again and again.

use http::Method;
use serde_json::Value;

use super::super::{
    lab::Lab,
    reference::Reference,
    report::{Outcome, Verdict},
    settings::CannotJudge,
    spec_changes::{Intent, smallest},
    trial::{self, Trial},
};

/// Most objects.
const OBJECTS_MAX: usize = 8;

/// The longest name of a Service, and value of a label.
const NAME_CHARS_MAX: usize = 63;

pub(in super::super) async fn check(reference: &Reference<'_>) -> Result<Verdict, CannotJudge> {
    let children = reference.repaired().await?;
    let mut lab = reference.settled().await?;
    let objects = objects(reference, &lab).await;
    if objects.is_empty() {
        return Ok(Verdict::new(Outcome::Skip, "the server accepts no other object than the samples"));
    }
    for (what, object) in &objects {
        let before = lab.incidents().len();
        lab.create(object, what).await?;
        // An operator that ends again and again cannot settle.
        let settled = lab.settle().await;
        let incidents = lab.incidents();
        if let Some(incident) = incidents.get(before) {
            return Ok(Verdict::fail(format!("{what}: {incident}")));
        }
        settled?;
    }
    lab.delete_children(children).await;
    let mask = trial::mask(reference, &lab);
    lab.settle().await?;
    let missing = |lab: &Lab| {
        let mut differences = reference.state.differences(&lab.snapshot(), &mask);
        differences.retain(|difference| !difference.expected.is_null());
        differences
    };
    let evidence = lab.lasting(missing).await?;
    if !evidence.is_empty() {
        let names: Vec<&str> = objects.iter().map(|(what, _)| what.as_str()).collect();
        return Ok(Verdict::differs(Outcome::Fail, &format!("beside {}", names.join("; ")), evidence));
    }
    lab.end().await;
    Ok(Verdict::pass(format!("{} objects, and the samples are still served", objects.len())))
}

/// What is special about each object, and the object.
async fn objects<'a>(reference: &Reference<'a>, lab: &Lab<'a>) -> Vec<(String, Value)> {
    let mut objects = Vec::new();
    for sample in trial::first_samples(lab) {
        let kind = sample["kind"].as_str().unwrap_or_default();
        let mut add = |what: String, name: &str, mut object: Value| {
            let metadata = &mut object["metadata"];
            metadata["name"] = name.into();
            // An object that selects the sample by its labels would also select this one, and rightly have another state.
            metadata["labels"] = Value::Null;
            objects.push((format!("{kind} {what}"), object));
        };
        let schema = trial::schema(reference.scorecard, sample);
        add("with the required fields alone".to_owned(), "scorecard-smallest", smallest(&schema, sample));
        add("with a name of 63 characters".to_owned(), &"a".repeat(NAME_CHARS_MAX), sample.clone());
        let mut omissions = trial::trials(reference, lab, Intent::Omission).await;
        omissions.retain(|omission| std::ptr::eq(omission.sample, sample));
        for (index, Trial { change, .. }) in omissions.iter().enumerate() {
            let name = format!("scorecard-without-{index}");
            add(format!("without {}", change.path), &name, change.applied(sample));
        }
    }
    let mut accepted = Vec::new();
    for (what, object) in objects {
        let path = lab.collection_path(&object);
        let (status, _) = lab
            .request(Method::POST, &format!("{path}?dryRun=All&fieldValidation=Strict"), object.clone())
            .await;
        if status == 201 && accepted.len() < OBJECTS_MAX {
            accepted.push((what, object));
        }
    }
    accepted
}
