//! Custom resources with another spec: the changes that the server accepts, and a run with such an object.

use std::sync::LazyLock;

use http::Method;
use regex::Regex;
use serde_json::Value;

use super::{
    lab::Lab,
    reference::Reference,
    report::{Outcome, Verdict},
    settings::{CannotJudge, Scorecard},
    snapshot::{Mask, Snapshot},
    spec_changes::{self, Intent, SpecChange},
};

/// What grows and does not shrink, or is done.
const ONE_WAY: [&str; 3] = ["persistentvolumeclaims", "persistentvolumes", "jobs.batch"];

/// A change of a sample.
pub(super) struct Trial<'a> {
    pub(super) sample: &'a Value,
    pub(super) change: SpecChange,
    /// `.spec.size#1`: the same in each run.
    pub(super) name: String,
}

impl Trial<'_> {
    /// `.spec.size changed from 3 to 4`
    pub(super) fn what(&self) -> String {
        let SpecChange { path, from, to, .. } = &self.change;
        format!("{path} changed from {from} to {to}")
    }

    pub(super) async fn apply(&self, lab: &Lab<'_>) {
        lab.request(Method::PATCH, &lab.path_of_sample(self.sample), self.change.patch()).await;
    }

    /// Takes the change back. Where the server refuses that, as of storage that only grows, the samples are created again.
    /// `false`: they do not go away.
    pub(super) async fn revert(&self, lab: &mut Lab<'_>) -> Result<bool, CannotJudge> {
        let path = lab.path_of_sample(self.sample);
        let (status, _) = lab.request(Method::PATCH, &path, self.change.patch_back()).await;
        if status == 200 {
            return Ok(true);
        }
        let samples: Vec<Value> = lab.custom_samples().cloned().collect();
        replace(lab, &samples).await
    }

    /// Deletes all samples, and creates them with this change.
    pub(super) async fn create_anew(&self, lab: &mut Lab<'_>) -> Result<FromNothing, CannotJudge> {
        let changed = self.change.applied(self.sample);
        let samples: Vec<Value> = lab
            .custom_samples()
            .map(|sample| if std::ptr::eq(sample, self.sample) { changed.clone() } else { sample.clone() })
            .collect();
        from_nothing(lab, &samples).await
    }
}

/// What comes of custom resources that have a spec from the beginning.
pub(super) enum FromNothing {
    State(Snapshot),
    /// The operator says why it does not want it.
    Refused,
    /// Those before do not go away.
    Stays,
}

/// Deletes the custom resources, and creates others in their place.
pub(super) async fn from_nothing(lab: &mut Lab<'_>, samples: &[Value]) -> Result<FromNothing, CannotJudge> {
    let since = lab.server.version();
    if !replace(lab, samples).await? {
        return Ok(FromNothing::Stays);
    }
    lab.until_work_since(lab.server.version()).await;
    lab.settle().await?;
    Ok(if refusal(lab, since).is_some() { FromNothing::Refused } else { FromNothing::State(lab.snapshot()) })
}

/// Where [`replace`] is `false`.
pub(super) fn stays() -> Verdict {
    Verdict::new(Outcome::Skip, "more than the kinds of --keep stays when the samples are deleted")
}

/// Deletes the custom resources. `false`: they, or some of their children, do not go away.
pub(super) async fn remove(lab: &mut Lab<'_>) -> Result<bool, CannotJudge> {
    lab.delete_samples("Background").await;
    Ok(lab.lasting(|lab| lab.remaining()).await?.is_empty())
}

/// Deletes the custom resources, and creates others in their place. `false`: as of [`remove`].
pub(super) async fn replace(lab: &mut Lab<'_>, samples: &[Value]) -> Result<bool, CannotJudge> {
    if !remove(lab).await? {
        return Ok(false);
    }
    for sample in samples {
        lab.create(sample, "--sample").await?;
    }
    Ok(true)
}

/// The changes of one intent that a dry run accepts: of all fields that any sample of a kind has. The best of each sample come first.
pub(super) async fn trials<'a>(reference: &Reference<'a>, lab: &Lab<'a>, intent: Intent) -> Vec<Trial<'a>> {
    let mut trials: Vec<(usize, Trial<'a>)> = Vec::new();
    for sample in lab.custom_samples() {
        let path = lab.path_of_sample(sample);
        let (_, stored) = lab.request(Method::GET, &path, Value::Null).await;
        let schema = schema(reference.scorecard, sample);
        let all = spec_changes::changes(&schema, &stored);
        let earlier = trials.len();
        for change in all.into_iter().filter(|change| change.intent == intent) {
            let is_same = |(_, trial): &(usize, Trial)| {
                trial.sample["kind"] == sample["kind"] && trial.change.path == change.path
            };
            let dry_run = format!("{path}?dryRun=All&fieldValidation=Strict");
            if trials[..earlier].iter().any(is_same)
                || lab.request(Method::PATCH, &dry_run, change.patch()).await.0 != 200
            {
                continue;
            }
            let number = trials.iter().filter(|(_, trial)| trial.change.path == change.path);
            let name = format!("{}#{}", change.path, number.count() + 1);
            trials.push((trials.len() - earlier, Trial { sample, change, name }));
        }
    }
    trials.sort_by_key(|(place, _)| *place);
    trials.into_iter().map(|(_, trial)| trial).collect()
}

/// The names of [`trials`].
pub(super) async fn names(reference: &Reference<'_>, intent: Intent) -> Result<Vec<String>, CannotJudge> {
    let lab = reference.settled().await?;
    let names = trials(reference, &lab, intent).await.into_iter().map(|trial| trial.name).collect();
    reference.give_back(lab).await;
    Ok(names)
}

pub(super) fn first_samples<'a>(lab: &Lab<'a>) -> Vec<&'a Value> {
    let mut samples: Vec<&Value> = Vec::new();
    for sample in lab.custom_samples() {
        if !samples.iter().any(|earlier| earlier["kind"] == sample["kind"]) {
            samples.push(sample);
        }
    }
    samples
}

/// The schema of a sample's version.
pub(super) fn schema(scorecard: &Scorecard, sample: &Value) -> Value {
    let mut schemas = scorecard.crds.iter().flat_map(|crd| {
        let versions = crd["spec"]["versions"].as_array().into_iter().flatten();
        versions.map(move |version| (crd, version))
    });
    let is_its = |(crd, version): &(&Value, &Value)| {
        let (group, name) = (crd["spec"]["group"].as_str(), version["name"].as_str());
        let api_version = format!("{}/{}", group.unwrap_or_default(), name.unwrap_or_default());
        crd["spec"]["names"]["kind"] == sample["kind"] && sample["apiVersion"] == api_version
    };
    schemas.find(is_its).map(|(_, version)| version["schema"]["openAPIV3Schema"].clone()).unwrap_or_default()
}

/// The mask of the reference, and what two ways to the same spec need not have in common.
pub(super) fn mask(reference: &Reference<'_>, lab: &Lab<'_>) -> Mask {
    let mut mask = reference.mask.clone();
    mask.collections.extend(ONE_WAY.map(str::to_owned));
    // A status may tell a history.
    mask.fields.extend(lab.custom_samples().map(|sample| (lab.name_of_sample(sample), ".status".to_owned())));
    // The templates of claims are immutable. A larger one takes effect in the claims.
    let sets = lab.children().into_iter().filter(|child| child.kind == "StatefulSet");
    mask.fields.extend(
        sets.map(|set| (format!("{}/{}", set.resource, set.key), ".spec.volumeClaimTemplates".to_owned())),
    );
    mask
}

/// What the operator says against a spec since a version: in an Event, or in a condition.
pub(super) fn refusal(lab: &Lab<'_>, since: u64) -> Option<String> {
    static REFUSAL: LazyLock<Option<Regex>> = LazyLock::new(|| {
        Regex::new("(?i)invalid|unsupported|not ?supported|not ?allowed|not ?enabled|must|cannot|forbidden|immutable|denied")
            .ok()
    });
    let is_refusal = |text: &&str| REFUSAL.as_ref().is_some_and(|refusal| refusal.is_match(text));
    for write in lab.server.writes_since(since).iter().filter(|write| Lab::is_operators(write)) {
        let Some(object) = &write.after else { continue };
        let conditions = object["status"]["conditions"].as_array().into_iter().flatten();
        let is_bad = |condition: &&Value| {
            let bad = ["Degraded", "Stalled", "Failed", "Invalid"];
            let is_negative =
                condition["type"].as_str().is_some_and(|name| bad.iter().any(|bad| name.starts_with(bad)));
            condition["status"] == if is_negative { "True" } else { "False" }
        };
        let is_warning = object["type"] == "Warning";
        let of_event = ["note", "message"].into_iter().filter(|_| is_warning).map(|field| &object[field]);
        let of_conditions =
            conditions.filter(is_bad).flat_map(|condition| [&condition["message"], &condition["reason"]]);
        if let Some(text) = of_event.chain(of_conditions).filter_map(Value::as_str).find(is_refusal) {
            return Some(text.to_owned());
        }
    }
    None
}
