//! StatefulSets: ordered Pods with stable names, each with its own claims.
//!
//! ```text
//! StatefulSet web   Pods web-0, web-1   claims data-web-0, data-web-1   ControllerRevision web-7c5b6fd8d9
//! ```
//!
//! The order of all steps, the names, reasons and messages are as in kube-controller-manager
//! (pkg/controller/statefulset). A ControllerRevision keeps each template, so that a rollout with a partition can still
//! create Pods of the old one.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use serde_json::{Value, json};

use super::{
    Controllers, change, delete, make, owners, record, record_warning,
    rollout::{
        PODS_AT_ONCE, PODS_OF_SET_MAX, RETRY_PAUSE, Stored, claim, controlled, count, is_ready, letters,
        name, owner_reference, pod_of, room, set_count, until_available,
    },
    try_make, uid,
};
use crate::{
    json::json,
    kinds::{Part, metadata::is_terminating},
    storage::{Place, Storage},
    verbs::delete::Deletion,
};

const REVISIONS: &str = "controllerrevisions.apps";
const CONTROLLER: &str = "statefulset-controller";
const CLAIMS: &str = "persistentvolumeclaims";
const POD_NAME: &str = "statefulset.kubernetes.io/pod-name";
const POD_INDEX: &str = "apps.kubernetes.io/pod-index";
pub(super) const REVISION_HASH: &str = "controller-revision-hash";

/// The pause before a Pod is created whose claim is being deleted.
const CLAIM_PAUSE: Duration = Duration::from_secs(1);

/// The revisions of a StatefulSet: of the Pods before a rollout, and of those after it.
pub(super) struct Revisions {
    current: Arc<Value>,
    pub(super) update: Arc<Value>,
}

/// The Pods of a StatefulSet by ordinal.
type Pods = BTreeMap<i64, Stored>;

/// Reconciles a StatefulSet.
pub(crate) fn stateful_set(controllers: &mut Controllers, storage: &mut Storage, place: &Place, set: &Value) {
    if is_terminating(set) {
        return;
    }
    claim(storage, set, "pods", |pod| ordinal(set, pod).is_some());
    claim(storage, set, REVISIONS, |_| true);
    let Some(revisions) = revisions(storage, place, set) else { return };
    settle(controllers, storage, place, set, &revisions);
    let pods = pods(storage, set);
    let clock = storage.clock;
    let left = pods.values().filter_map(|(_, pod)| until_available(set, pod, &clock));
    if let Some(least) = left.filter(|left| !left.is_zero()).min() {
        controllers.requeue(place, least);
    }
    write_status(storage, place, &pods, &revisions);
    truncate_history(storage, set, &pods, &revisions);
}

fn is_parallel(set: &Value) -> bool {
    set["spec"]["podManagementPolicy"] == "Parallel"
}

/// The ordinal in the name of a Pod: 2 in `web-2`. `None` if it is not a name of a Pod of this StatefulSet.
fn ordinal(set: &Value, pod: &Value) -> Option<i64> {
    let digits = name(pod).strip_prefix(name(set))?.strip_prefix('-')?;
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
}

fn pods(storage: &Storage, set: &Value) -> Pods {
    let pods = controlled(storage, set, "pods").into_iter();
    pods.filter_map(|pod| Some((ordinal(set, &pod.1)?, pod))).collect()
}

/// The template as it is stored in a revision: a strategic merge patch that replaces it.
fn patch(set: &Value) -> Value {
    let mut template = set["spec"]["template"].clone();
    template["$patch"] = "replace".into();
    json!({"spec": {"template": template}})
}

/// `HashControllerRevision`: FNV-1 of the patch and of the number of collisions, in letters that form no words.
fn hash(patch: &Value) -> String {
    let mut hash: u32 = 2_166_136_261;
    for byte in json(patch).bytes().chain(*b"0") {
        hash = hash.wrapping_mul(16_777_619) ^ u32::from(byte);
    }
    letters(hash)
}

/// Finds the two revisions, and creates one for a new template. The revision of a template that is used again becomes
/// the newest.
pub(super) fn revisions(storage: &mut Storage, place: &Place, set: &Value) -> Option<Revisions> {
    let mut all = controlled(storage, set, REVISIONS);
    all.sort_by_key(|(_, revision)| count(revision, "/revision"));
    let patch = patch(set);
    let next = all.last().map_or(0, |(_, newest)| count(newest, "/revision")) + 1;
    let update = match all.iter().rposition(|(_, revision)| revision["data"] == patch) {
        Some(at) if at + 1 == all.len() => Arc::clone(&all[at].1),
        Some(at) => {
            change(storage, &all[at].0, Part::Main, |revision| revision["revision"] = next.into());
            storage.get(&all[at].0).cloned()?
        }
        None => {
            let hash = hash(&patch);
            let mut labels = set["spec"]["template"]["metadata"]["labels"].clone();
            let key =
                if set["kind"] == "DaemonSet" { REVISION_HASH } else { "controller.kubernetes.io/hash" };
            labels[key] = hash.as_str().into();
            let metadata = json!({"name": format!("{}-{hash}", name(set)), "labels": labels,
                "annotations": set["metadata"]["annotations"], "ownerReferences": [owner_reference(set)]});
            let revision = json!({"metadata": metadata, "data": patch, "revision": next});
            make(storage, "apps", "controllerrevisions", place.namespace(), revision)?
        }
    };
    let current = all.iter().find(|(_, revision)| set["status"]["currentRevision"] == name(revision));
    let current = current.map_or(&update, |(_, current)| current);
    Some(Revisions { current: Arc::clone(current), update })
}

pub(super) fn revision_of(pod: &Value) -> &Value {
    &pod["metadata"]["labels"][REVISION_HASH]
}

/// Whether a Pod is running, and has been ready for `minReadySeconds`.
fn is_available(storage: &Storage, set: &Value, pod: &Value) -> bool {
    pod["status"]["phase"] == "Running"
        && until_available(set, pod, &storage.clock).is_some_and(|left| left.is_zero())
}

/// Takes the next steps: first the Pods that must be there, then those that must go, then the rollout. Unless Pods are
/// managed in parallel, each step waits until all Pods before it are available.
fn settle(
    controllers: &mut Controllers,
    storage: &mut Storage,
    place: &Place,
    set: &Value,
    revisions: &Revisions,
) {
    let pods = pods(storage, set);
    let start = count(set, "/spec/ordinals/start");
    let most = i64::try_from(PODS_OF_SET_MAX).unwrap_or(i64::MAX);
    let wanted = start..start.saturating_add(count(set, "/spec/replicas").min(most));
    let parallel = is_parallel(set);
    let is_unavailable =
        |storage: &Storage, pod: &Value| is_terminating(pod) || !is_available(storage, set, pod);
    let mut made = 0;
    for ordinal in wanted.clone() {
        let Some((pod_place, pod)) = pods.get(&ordinal) else {
            make_pod(controllers, storage, place, set, revisions, ordinal);
            made += 1;
            if !parallel || made == PODS_AT_ONCE {
                return;
            }
            continue;
        };
        if pod["status"]["phase"] == "Failed" || pod["status"]["phase"] == "Succeeded" {
            if !is_terminating(pod) {
                delete_pod(storage, set, pod_place, pod);
            }
            if !parallel {
                return;
            }
            continue;
        }
        if pod["status"]["phase"] == "Pending" {
            let _ = make_claims(storage, set, ordinal);
        }
        if !parallel && is_unavailable(storage, pod) {
            return;
        }
        own_claims(storage, set, pod, ordinal, Fate::Kept);
        if pod["metadata"]["labels"][POD_NAME] != name(pod) {
            change(storage, pod_place, Part::Main, |pod| identify(pod, ordinal));
        }
    }
    let first_unavailable = wanted
        .clone()
        .chain(pods.keys().copied().filter(|ordinal| !wanted.contains(ordinal)))
        .find(|ordinal| pods.get(ordinal).is_none_or(|(_, pod)| is_unavailable(storage, pod)));
    for (ordinal, (_, pod)) in pods.iter().filter(|(ordinal, _)| !wanted.contains(ordinal)) {
        own_claims(storage, set, pod, *ordinal, Fate::ScaledDown);
    }
    for (ordinal, (pod_place, pod)) in pods.iter().rev().filter(|(ordinal, _)| !wanted.contains(ordinal)) {
        let blocks =
            is_terminating(pod) || (is_unavailable(storage, pod) && first_unavailable != Some(*ordinal));
        if !parallel && blocks {
            return;
        }
        if !is_terminating(pod) {
            delete_pod(storage, set, pod_place, pod);
            if !parallel {
                return;
            }
        }
    }
    if set["spec"]["updateStrategy"]["type"] == "OnDelete" {
        return;
    }
    let partition = count(set, "/spec/updateStrategy/rollingUpdate/partition");
    for ordinal in (start.saturating_add(partition)..wanted.end).rev() {
        let Some((pod_place, pod)) = pods.get(&ordinal) else { return };
        if *revision_of(pod) != name(&revisions.update) && !is_terminating(pod) {
            return delete_pod(storage, set, pod_place, pod);
        }
        if is_unavailable(storage, pod) {
            return;
        }
    }
}

fn delete_pod(storage: &mut Storage, set: &Value, place: &Place, pod: &Value) {
    delete(storage, place, &Deletion::default());
    let message = format!("Delete Pod {} in StatefulSet {} successful", name(pod), name(set));
    record(storage, set, CONTROLLER, "SuccessfulDelete", &message);
}

/// Creates a Pod with its claims, of the current revision if the rollout does not reach its ordinal.
fn make_pod(
    controllers: &mut Controllers,
    storage: &mut Storage,
    place: &Place,
    set: &Value,
    revisions: &Revisions,
    ordinal: i64,
) {
    if room(storage) == 0 {
        return controllers.requeue(place, RETRY_PAUSE);
    }
    let pod_name = format!("{}-{ordinal}", name(set));
    if claims(set, ordinal).any(|(_, claim)| is_leaving(storage, place, set, &claim, &pod_name)) {
        return controllers.requeue(place, CLAIM_PAUSE);
    }
    let what = format!("Pod {pod_name} in StatefulSet {}", name(set));
    if let Err(why) = make_claims(storage, set, ordinal) {
        record_failure(storage, set, &what, &why);
        return controllers.requeue(place, RETRY_PAUSE);
    }
    let rolling = &set["spec"]["updateStrategy"]["rollingUpdate"];
    let kept = match rolling["partition"].as_i64() {
        Some(partition) => partition,
        None if set["spec"]["updateStrategy"]["type"] == "RollingUpdate" => {
            count(set, "/status/currentReplicas")
        }
        None => 0,
    };
    let is_kept = ordinal < count(set, "/spec/ordinals/start").saturating_add(kept);
    let revision = if is_kept { &revisions.current } else { &revisions.update };
    let mut template = revision["data"]["spec"]["template"].clone();
    if let Some(template) = template.as_object_mut() {
        template.remove("$patch");
    }
    let mut pod = pod_of(set, &template);
    pod["metadata"]["name"] = pod_name.as_str().into();
    identify(&mut pod, ordinal);
    pod["metadata"]["labels"][REVISION_HASH] = name(revision).into();
    pod["spec"]["hostname"] = pod_name.as_str().into();
    pod["spec"]["subdomain"] = set["spec"]["serviceName"].clone();
    let mut volumes = Vec::new();
    for (volume, claim) in claims(set, ordinal) {
        volumes.push(json!({"name": volume, "persistentVolumeClaim": {"claimName": name(&claim)}}));
    }
    let own = pod["spec"]["volumes"].as_array().into_iter().flatten();
    let own = own.filter(|volume| !volumes.iter().any(|one| one["name"] == volume["name"])).cloned();
    let all: Vec<Value> = volumes.iter().cloned().chain(own).collect();
    pod["spec"]["volumes"] = all.into();
    match try_make(storage, "", "pods", place.namespace(), pod) {
        Ok(pod) => {
            own_claims(storage, set, &pod, ordinal, Fate::Kept);
            record(storage, set, CONTROLLER, "SuccessfulCreate", &format!("Create {what} successful"));
        }
        Err(error) => {
            controllers.requeue(place, RETRY_PAUSE);
            record_failure(storage, set, &what, error.message());
        }
    }
}

/// Says why a Pod or a claim was not created.
fn record_failure(storage: &mut Storage, set: &Value, what: &str, why: &str) {
    let message = format!("Create {what} failed error: {why}");
    record_warning(storage, set, CONTROLLER, "FailedCreate", &message);
}

/// Sets the labels with the identity of a Pod.
fn identify(pod: &mut Value, ordinal: i64) {
    pod["metadata"]["labels"][POD_NAME] = pod["metadata"]["name"].clone();
    pod["metadata"]["labels"][POD_INDEX] = ordinal.to_string().into();
}

/// The claims of a Pod, each with the name of its volume.
fn claims(set: &Value, ordinal: i64) -> impl Iterator<Item = (&str, Value)> {
    let templates = set["spec"]["volumeClaimTemplates"].as_array().into_iter().flatten();
    templates.map(move |template| {
        let mut metadata = template["metadata"].clone();
        metadata["name"] = format!("{}-{}-{ordinal}", name(template), name(set)).into();
        for (key, value) in set["spec"]["selector"]["matchLabels"].as_object().into_iter().flatten() {
            metadata["labels"][key] = value.clone();
        }
        (name(template), json!({"metadata": metadata, "spec": template["spec"]}))
    })
}

fn claim_place(set: &Value, claim: &Value) -> Place {
    Place::new(CLAIMS, set["metadata"]["namespace"].as_str(), name(claim))
}

/// Whether a claim belongs to an earlier Pod of the same name, or is being deleted.
fn is_leaving(storage: &Storage, place: &Place, set: &Value, claim: &Value, pod_name: &str) -> bool {
    let Some(claim) = storage.get(&claim_place(set, claim)) else { return false };
    let is_deleted = set["spec"]["persistentVolumeClaimRetentionPolicy"]["whenScaled"] == "Delete";
    let pod = Place::new("pods", place.namespace(), pod_name);
    let is_stale = |owner: &Value| owner["kind"] == "Pod" && owner["name"] == pod_name;
    is_terminating(claim) || (is_deleted && storage.get(&pod).is_none() && owners(claim).any(is_stale))
}

/// Creates the missing claims of a Pod. The error is why one of them is still missing.
fn make_claims(storage: &mut Storage, set: &Value, ordinal: i64) -> Result<(), String> {
    let mut made = Ok(());
    for (_, claim) in claims(set, ordinal) {
        let place = claim_place(set, &claim);
        if storage.get(&place).is_some() {
            continue;
        }
        let (set_name, name) = (name(set), place.name());
        match try_make(storage, "", CLAIMS, place.namespace(), claim) {
            Ok(_) => {
                let message =
                    format!("Create Claim {name} Pod {set_name}-{ordinal} in StatefulSet {set_name} success");
                record(storage, set, CONTROLLER, "SuccessfulCreate", &message);
            }
            Err(error) => {
                let what = format!("Claim {name} for Pod {set_name}-{ordinal} in StatefulSet {set_name}");
                record_failure(storage, set, &what, error.message());
                made = Err(format!("failed to create PVC {name}: {}", error.message()));
            }
        }
    }
    made
}

/// Whether the number of replicas includes a Pod.
#[derive(Clone, Copy, PartialEq)]
enum Fate {
    Kept,
    ScaledDown,
}

/// Makes the StatefulSet or the Pod the owner of the Pod's claims, by `persistentVolumeClaimRetentionPolicy`, so that
/// the garbage collector deletes them together.
fn own_claims(storage: &mut Storage, set: &Value, pod: &Value, ordinal: i64, fate: Fate) {
    let policy = &set["spec"]["persistentVolumeClaimRetentionPolicy"];
    let owner = if policy["whenScaled"] == "Delete" && fate == Fate::ScaledDown {
        Some(pod)
    } else {
        Some(set).filter(|_| policy["whenDeleted"] == "Delete")
    };
    let is_of = |one: &Value, owner: &Value| one["kind"] == owner["kind"] && one["name"] == name(owner);
    for (_, claim) in claims(set, ordinal) {
        let place = claim_place(set, &claim);
        let Some(claim) = storage.get(&place).cloned() else { continue };
        let is_stale = |one: &Value| [set, pod].iter().any(|of| is_of(one, of) && one["uid"] != uid(of));
        if owners(&claim).any(is_stale) {
            continue;
        }
        let (ours, others): (Vec<&Value>, Vec<&Value>) =
            owners(&claim).partition(|one| [set, pod].iter().any(|of| is_of(one, of)));
        let is_controlled = others.iter().any(|other| other["controller"] == true);
        let wanted: Vec<Value> = owner.filter(|_| !is_controlled).map(owner_reference).into_iter().collect();
        if ours.into_iter().eq(&wanted) {
            continue;
        }
        let references: Vec<Value> = others.into_iter().cloned().chain(wanted).collect();
        change(storage, &place, Part::Main, |claim| {
            claim["metadata"]["ownerReferences"] = references.into();
        });
    }
}

fn write_status(storage: &mut Storage, place: &Place, pods: &Pods, revisions: &Revisions) {
    let clock = storage.clock;
    let (current, update) = (name(&revisions.current), name(&revisions.update));
    change(storage, place, Part::Status, |set| {
        let all = || pods.values().map(|(_, pod)| pod);
        let is_running = |pod: &&Arc<Value>| pod["status"]["phase"] == "Running";
        let of = |revision: &str| {
            all().filter(|pod| !is_terminating(pod) && *revision_of(pod) == revision).count()
        };
        let ready = all().filter(is_running).filter(|pod| is_ready(pod)).count();
        let available = all().filter(is_running);
        let available =
            available.filter(|pod| until_available(set, pod, &clock).is_some_and(|left| left.is_zero()));
        let available = available.count();
        let wanted = usize::try_from(count(set, "/spec/replicas")).unwrap_or(0);
        let is_complete = set["spec"]["updateStrategy"]["type"] == "RollingUpdate"
            && [of(update), ready, pods.len()] == [wanted; 3];
        let current = if is_complete { update } else { current };
        let generation = set["metadata"]["generation"].clone();
        let status = &mut set["status"];
        status["observedGeneration"] = generation;
        status["replicas"] = pods.len().into();
        status["availableReplicas"] = available.into();
        set_count(status, "readyReplicas", ready);
        set_count(status, "currentReplicas", of(current));
        set_count(status, "updatedReplicas", of(update));
        status["currentRevision"] = current.into();
        status["updateRevision"] = update.into();
        status["collisionCount"] = 0.into();
    });
}

/// Deletes the oldest revisions beyond `revisionHistoryLimit`, but none that a Pod has.
fn truncate_history(storage: &mut Storage, set: &Value, pods: &Pods, revisions: &Revisions) {
    let Ok(limit) = usize::try_from(count(set, "/spec/revisionHistoryLimit")) else { return };
    let mut old = controlled(storage, set, REVISIONS);
    let is_live = |revision: &Value| {
        [&revisions.current, &revisions.update].iter().any(|live| name(live) == name(revision))
            || pods.values().any(|(_, pod)| *revision_of(pod) == name(revision))
    };
    old.retain(|(_, revision)| !is_live(revision));
    old.sort_by_key(|(_, revision)| count(revision, "/revision"));
    for (place, _) in old.iter().take(old.len().saturating_sub(limit)) {
        delete(storage, place, &Deletion::default());
    }
}
