//! The names of the operator's children belong to objects of somebody else: one that another controller owns, one with an owner that is not its
//! controller, one without an owner. The operator may not change, adopt or delete them. An adopted object is deleted with the custom resource.
//!
//! It would have found agentgateway/agentgateway#2249: the ServiceAccount of somebody else was overwritten.

use http::Method;
use listwatch_apiserver::WriteRecord;
use serde_json::{Value, json};

use super::worst;
use crate::{
    fault_choice::FaultChoice,
    lab::{Lab, name_of},
    reference::{Reference, Trigger},
    report::{Outcome, Verdict},
    settings::CannotJudge,
};

pub(super) const NAME: &str = "name-taken";

/// Most runs without `--all`.
const RUNS_MAX: usize = 12;

/// Changed fields in a report. A new owner alone has five.
const PATHS_MAX: usize = 3;

/// Who owns the object that has the name of a child: in the name of the fault, in words, and as an ownerReference's `controller`, if there is one.
/// The API server refuses a second controller, but nothing protects the others.
const OWNERS: [(&str, &str, Option<bool>); 3] = [
    ("ownerless", "without an owner", None),
    ("owned", "of another owner", Some(false)),
    ("controlled", "of another controller", Some(true)),
];

/// A run in which the names of all children of one kind are taken: the operator may stop at the first that it cannot have.
struct Taken<'r> {
    /// `configmaps/ownerless`
    name: String,
    creates: Vec<&'r Trigger>,
    whose: &'static str,
    controller: Option<bool>,
}

pub(crate) async fn check(reference: &Reference<'_>) -> Result<Verdict, CannotJudge> {
    let all = all(reference);
    let choice = FaultChoice::of(reference.scorecard, NAME, RUNS_MAX, all, |taken| &taken.name);
    let runs = choice.tried.iter().map(|taken| run(reference, taken));
    let worst = worst(reference, runs).await?;
    let nothing = || Verdict::new(Outcome::Skip, "no child has a name that somebody else can take");
    let worst = worst.unwrap_or_else(nothing);
    let pass = || Verdict::pass(format!("left alone: {}", choice.text("kinds and owners")));
    Ok(choice.complete(if worst.result == Outcome::Pass { pass() } else { worst }))
}

/// The faults that `--only` can name.
pub(super) fn faults(reference: &Reference<'_>) -> Vec<String> {
    all(reference).into_iter().map(|taken| taken.name).collect()
}

fn all<'r>(reference: &'r Reference<'_>) -> Vec<Taken<'r>> {
    let mut creates: Vec<&Trigger> = reference.triggers.iter().filter(|create| create.is_create()).collect();
    creates.retain(|create| create.name.ends_with("#1") && !create.name.contains('*'));
    let mut kinds: Vec<&str> = creates.iter().map(|create| create.plural()).collect();
    kinds.sort_unstable();
    kinds.dedup();
    let mut all = Vec::new();
    for (owner, whose, controller) in OWNERS {
        for kind in &kinds {
            let creates = creates.iter().copied().filter(|create| create.plural() == *kind).collect();
            all.push(Taken { name: format!("{kind}/{owner}"), creates, whose, controller });
        }
    }
    all
}

async fn run(reference: &Reference<'_>, taken: &Taken<'_>) -> Result<Verdict, CannotJudge> {
    let mut lab = reference.lab().await?;
    lab.connected().await?;
    let mut objects = Vec::new();
    for create in &taken.creates {
        objects.extend(take(&lab, create, &reference.created(create), taken.controller).await);
    }
    if objects.is_empty() {
        lab.end().await;
        return Ok(Verdict::new(Outcome::Skip, "the server accepts no such object"));
    }
    let before = lab.server.version();
    lab.create_samples().await?;
    lab.until_work_since(before).await;
    lab.settle_fully().await?;
    let mut writes = lab.server.writes_since(before);
    writes.retain(Lab::is_operators);
    lab.end().await;
    let harm = writes.iter().find_map(|write| {
        let name = name_of(write);
        Some(format!("{name} {} {}", taken.whose, harm(write).filter(|_| objects.contains(&name))?))
    });
    Ok(harm.map_or_else(|| Verdict::pass(&*taken.name), Verdict::fail).at(&taken.name))
}

/// What a write does to an object of somebody else.
fn harm(write: &WriteRecord) -> Option<String> {
    let paths = write.changed_paths();
    if write.is_deletion() {
        return Some("was deleted".to_owned());
    }
    if paths.iter().all(|path| path.starts_with(".metadata.ownerReferences")) {
        let adopted = "was adopted, so it is deleted with the custom resource".to_owned();
        return (!paths.is_empty()).then_some(adopted);
    }
    Some(format!("was overwritten: {}", paths[..paths.len().min(PATHS_MAX)].join(", ")))
}

/// Creates an object under the name of a child, with other content where its kind is known. Returns its name.
async fn take(lab: &Lab<'_>, create: &Trigger, child: &Value, controller: Option<bool>) -> Option<String> {
    let mut object = match create.plural() {
        "configmaps" => json!({"data": {"of": "another owner"}}),
        "secrets" => json!({"stringData": {"of": "another owner"}}),
        "services" => json!({"spec": {"ports": [{"port": 4321}]}}),
        "serviceaccounts" => json!({}),
        _ => child.clone(),
    };
    if let Some(fields) = object.as_object_mut() {
        fields.remove("status");
    }
    // Otherwise an operator that compares before it writes would have nothing to change.
    let containers = object.pointer_mut("/spec/template/spec/containers").and_then(Value::as_array_mut);
    for container in containers.into_iter().flatten() {
        container["image"] = "of-another-owner:1".into();
    }
    let (_, namespace) = lab.request(Method::GET, "/api/v1/namespaces/default", Value::Null).await;
    let owner = |controller: bool| {
        json!([{"apiVersion": "v1", "kind": "Namespace", "name": "default", "uid": namespace["metadata"]["uid"],
            "controller": controller}])
    };
    let name = &child["metadata"]["name"];
    object["metadata"] = json!({"name": name, "ownerReferences": controller.map(owner)});
    let (status, _) = lab.request(Method::POST, create.collection(), object).await;
    (status == 201).then(|| create.name.trim_start_matches("create/").trim_end_matches("#1").to_owned())
}
