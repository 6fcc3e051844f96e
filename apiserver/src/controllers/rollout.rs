//! Deployments: rolls out new templates of Pods step by step, in ReplicaSets.
//!
//! The calculations, reasons and messages are as in kube-controller-manager (pkg/controller/deployment). So
//! operators, and `kubectl rollout status`, see the same values as in a cluster.

use std::{sync::Arc, time::Duration};

use listwatch_formats::selector::Selector;
use serde_json::{Value, json};

use super::{Controllers, change, delete, owners, record, record_warning, release, try_make, uid};
use crate::{
    apply::managed_fields::LAST_APPLIED,
    clock::Clock,
    kinds::{Part, conditions, field_checks::text, metadata::is_terminating},
    names::{LETTERS, random_letters},
    status::StatusError,
    storage::{Place, Storage},
    verbs::delete::Deletion,
};

const REVISION: &str = "deployment.kubernetes.io/revision";
/// The earlier revisions of a ReplicaSet whose template was used again.
const REVISION_HISTORY: &str = "deployment.kubernetes.io/revision-history";
const DESIRED_REPLICAS: &str = "deployment.kubernetes.io/desired-replicas";
const MAX_REPLICAS: &str = "deployment.kubernetes.io/max-replicas";

/// The annotations of a Deployment that its ReplicaSet does not get: `annotationsToSkip` in deployment_util.go.
const NOT_COPIED: [&str; 6] = [
    LAST_APPLIED,
    REVISION,
    REVISION_HISTORY,
    DESIRED_REPLICAS,
    MAX_REPLICAS,
    "deprecated.deployment.rollback.to",
];

/// Longest [`REVISION_HISTORY`], in bytes; a longer one loses its oldest revisions: `maxRevHistoryLengthInChars`.
const HISTORY_BYTES_MAX: usize = 2000;

const HASH: &str = "pod-template-hash";
pub(super) const REPLICA_FAILURE: &str = "ReplicaFailure";

/// Pods that one reconcile of a ReplicaSet creates or deletes, before it is the turn of other objects.
pub(super) const PODS_AT_ONCE: usize = 10;

/// Most Pods of one ReplicaSet, and of all together. A Pod with its Events takes some 60 kB of memory, and `replicas`
/// may be two thousand million.
pub(super) const PODS_OF_SET_MAX: usize = 1000;
pub(super) const PODS_MAX: usize = 10_000;

/// How many more Pods there may be.
pub(super) fn room(storage: &Storage) -> usize {
    PODS_MAX.saturating_sub(storage.collection("pods").map_or(0, |pods| pods.objects.len()))
}

/// The pause after a Pod that was refused. kube-controller-manager waits longer each time.
pub(super) const RETRY_PAUSE: Duration = Duration::from_secs(10);

/// An object and its place.
pub(super) type Stored = (Place, Arc<Value>);

pub(super) fn count(object: &Value, pointer: &str) -> i64 {
    object.pointer(pointer).and_then(Value::as_i64).unwrap_or(0)
}

/// The sum of a number over ReplicaSets.
fn sum(sets: &[Stored], pointer: &str) -> i64 {
    sets.iter().map(|(_, set)| count(set, pointer)).sum()
}

pub(super) fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

/// The objects of one collection that an object controls.
pub(super) fn controlled(storage: &Storage, owner: &Value, collection: &str) -> Vec<Stored> {
    let mut found = Vec::new();
    for place in storage.dependents(uid(owner)) {
        if place.collection != collection {
            continue;
        }
        let Some(object) = storage.get(&place).cloned() else { continue };
        if owners(&object).any(|one| one["uid"] == uid(owner) && one["controller"] == true) {
            found.push((place, object));
        }
    }
    found
}

/// Adopts matching objects without a controller, because orphans of `--cascade=orphan` occupy the names of new objects.
/// Releases objects that no longer match, because users relabel a Pod to isolate it.
pub(super) fn claim(
    storage: &mut Storage,
    owner: &Value,
    collection: &str,
    is_member: impl Fn(&Value) -> bool,
) {
    let selector = &owner["spec"]["selector"];
    // The selector of a ReplicationController has only labels.
    let selector = match owner["kind"] == "ReplicationController" {
        true => Selector::from_object(&json!({"matchLabels": selector})),
        false => Selector::from_object(selector),
    };
    let Some(all) = storage.collection(collection) else { return };
    let is_orphan = |object: &Value| {
        selector.matches(&object["metadata"]["labels"])
            && is_member(object)
            && !is_terminating(object)
            && !owners(object).any(|one| one["controller"] == true)
    };
    let namespace = text(&owner["metadata"]["namespace"]);
    let orphans = all.in_namespace(namespace).filter(|(_, object)| is_orphan(object));
    let orphans: Vec<Place> =
        orphans.map(|(key, _)| Place { collection: collection.to_owned(), key: key.clone() }).collect();
    let mut strangers = controlled(storage, owner, collection);
    strangers.retain(|(_, object)| !selector.matches(&object["metadata"]["labels"]) || !is_member(object));
    for orphan in orphans {
        change(storage, &orphan, Part::Main, |object| {
            let references = owners(object).cloned().chain([owner_reference(owner)]).collect();
            object["metadata"]["ownerReferences"] = references;
        });
    }
    for (stranger, _) in strangers {
        release(storage, &stranger, owner);
    }
}

pub(super) fn owner_reference(owner: &Value) -> Value {
    json!({"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"], "controller": true, "blockOwnerDeletion": true})
}

/// Reconciles a Deployment.
pub(crate) fn deployment(
    controllers: &mut Controllers,
    storage: &mut Storage,
    place: &Place,
    deployment: &Value,
) {
    if is_terminating(deployment) {
        return;
    }
    claim(storage, deployment, "replicasets.apps", |_| true);
    set_paused(storage, place, deployment);
    let mut old = controlled(storage, deployment, "replicasets.apps");
    let new = old.iter().position(|(_, set)| same_template(deployment, set)).map(|at| old.remove(at));
    if let Some(new) = &new {
        sync_set(storage, place, deployment, new, &old);
    }
    match &new {
        _ if is_paused(deployment) => scale_paused(storage, deployment, new.as_ref(), &old),
        None => return make_set(controllers, storage, place, deployment, &old),
        Some(new) => {
            match deployment["spec"]["strategy"]["type"].as_str() {
                Some("Recreate") => recreate(storage, deployment, new, &old),
                Some(_) | None => roll(storage, deployment, new, &old),
            }
            clean_up(storage, deployment, &old);
        }
    }
    write_status(controllers, storage, place, deployment, new.map(|(place, _)| place));
}

fn is_paused(deployment: &Value) -> bool {
    deployment["spec"]["paused"] == true
}

/// The time in which a rollout must progress. `None`: there is no condition `Progressing` (`HasProgressDeadline`).
fn progress_deadline(deployment: &Value) -> Option<Duration> {
    let secs = u64::try_from(count(deployment, "/spec/progressDeadlineSeconds")).unwrap_or(600);
    (secs != u64::from(i32::MAX.unsigned_abs())).then(|| Duration::from_secs(secs))
}

/// Sets the condition `Progressing` when a Deployment is paused or resumed.
fn set_paused(storage: &mut Storage, place: &Place, deployment: &Value) {
    if progress_deadline(deployment).is_none() {
        return;
    }
    let progress = condition(deployment, "Progressing");
    let reason = progress.and_then(|progress| progress["reason"].as_str()).unwrap_or_default();
    let (reason, message) = match (is_paused(deployment), reason) {
        (true, "ProgressDeadlineExceeded" | "DeploymentPaused") => return,
        (true, _) => ("DeploymentPaused", "Deployment is paused"),
        (false, "DeploymentPaused") => ("DeploymentResumed", "Deployment is resumed"),
        (false, _) => return,
    };
    let now = storage.clock.time();
    change(storage, place, Part::Status, |deployment| {
        set_condition(deployment, "Progressing", "Unknown", reason, message, &now);
    });
}

/// Scales a paused Deployment. This works only while at most one ReplicaSet has Pods.
fn scale_paused(storage: &mut Storage, deployment: &Value, new: Option<&Stored>, old: &[Stored]) {
    let active: Vec<_> = old.iter().chain(new).filter(|(_, set)| count(set, "/spec/replicas") > 0).collect();
    let only = match active[..] {
        [] => new.or_else(|| old.iter().max_by_key(|(_, set)| revision(set))),
        [one] => Some(one),
        [..] => None,
    };
    if let Some((place, set)) = only {
        scale(storage, deployment, place, set, count(deployment, "/spec/replicas"));
    }
}

/// Compares the template of a ReplicaSet, without the hash label, with the Deployment's.
fn same_template(deployment: &Value, set: &Value) -> bool {
    let mut template = set["spec"]["template"].clone();
    if let Some(labels) = template["metadata"]["labels"].as_object_mut() {
        labels.remove(HASH);
    }
    template == deployment["spec"]["template"]
}

/// A hash of the template, in letters that form no words. Kubernetes hashes Go structs, so its hashes differ.
fn template_hash(template: &Value) -> String {
    // FNV-1a, as in Kubernetes.
    let mut hash: u32 = 2_166_136_261;
    for byte in template.to_string().bytes() {
        hash = (hash ^ u32::from(byte)).wrapping_mul(16_777_619);
    }
    letters(hash)
}

/// `SafeEncodeString`: the digits of a hash as letters that form no words.
pub(super) fn letters(hash: u32) -> String {
    let digits = hash.to_string();
    digits.bytes().map(|digit| char::from(LETTERS[usize::from(digit) % LETTERS.len()])).collect()
}

fn revision(object: &Value) -> i64 {
    object["metadata"]["annotations"][REVISION].as_str().and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// One more than the highest revision of the ReplicaSets.
fn next_revision(sets: &[Stored]) -> i64 {
    sets.iter().map(|(_, set)| revision(set)).max().unwrap_or(0).saturating_add(1)
}

fn make_set(
    controllers: &mut Controllers,
    storage: &mut Storage,
    place: &Place,
    deployment: &Value,
    sets: &[Stored],
) {
    let spec = &deployment["spec"];
    let hash = template_hash(&spec["template"]);
    let set_name = format!("{}-{hash}", name(deployment));
    let mut template = spec["template"].clone();
    template["metadata"]["labels"][HASH] = hash.as_str().into();
    let mut selector = spec["selector"].clone();
    selector["matchLabels"][HASH] = hash.as_str().into();
    let next = next_revision(sets).to_string();
    // The first ReplicaSet gets all replicas at once; a later one starts with as many as maxSurge allows.
    let (wanted, running) = (count(deployment, "/spec/replicas"), sum(sets, "/spec/replicas"));
    let replicas = match spec["strategy"]["type"].as_str() {
        Some("Recreate") if running > 0 => 0,
        _ => (wanted + surge(deployment) - running).clamp(0, wanted),
    };
    let mut annotations = sizes(deployment, json!({REVISION: next}));
    copy_annotations(deployment, &mut annotations);
    let set = json!({
        "metadata": {"name": set_name, "labels": template["metadata"]["labels"], "annotations": annotations,
            "ownerReferences": [owner_reference(deployment)]},
        "spec": {"replicas": replicas, "minReadySeconds": spec["minReadySeconds"], "selector": selector, "template": template},
    });
    if let Err(error) = try_make(storage, "apps", "replicasets", place.namespace(), set) {
        controllers.requeue(place, RETRY_PAUSE);
        return report_failure(storage, place, deployment, &set_name, &error);
    }
    if replicas > 0 {
        record_scaling(storage, deployment, &set_name, 0, replicas);
    }
    let now = storage.clock.time();
    change(storage, place, Part::Status, |deployment| {
        deployment["metadata"]["annotations"][REVISION] = next.into();
        if progress_deadline(deployment).is_some() {
            let message = format!("Created new replica set {set_name:?}");
            set_condition(deployment, "Progressing", "True", "NewReplicaSetCreated", &message, &now);
        }
    });
}

/// Says why a Deployment has no new ReplicaSet.
fn report_failure(storage: &mut Storage, place: &Place, deployment: &Value, set: &str, error: &StatusError) {
    let (reason, now) = ("ReplicaSetCreateError", storage.clock.time());
    // The next attempt of a failure that is known is silent.
    let message = format!("Failed to create new replica set {set:?}: {}", error.message());
    if error.is_namespace_terminating()
        || condition(deployment, "Progressing").is_some_and(|one| one["message"] == message)
    {
        return;
    }
    record_warning(storage, deployment, "deployment-controller", reason, &message);
    change(storage, place, Part::Status, |deployment| {
        if progress_deadline(deployment).is_some() {
            set_condition(deployment, "Progressing", "False", reason, &message, &now);
        }
    });
}

/// Records the size of the Deployment in the annotations of a ReplicaSet when it is scaled.
fn sizes(deployment: &Value, mut annotations: Value) -> Value {
    let replicas = count(deployment, "/spec/replicas");
    let max = replicas + surge(deployment);
    annotations[DESIRED_REPLICAS] = replicas.to_string().into();
    annotations[MAX_REPLICAS] = max.to_string().into();
    annotations
}

/// Gives the current ReplicaSet the `minReadySeconds` and annotations of its Deployment, such as `kubernetes.io/change-cause`,
/// and the newest revision. If it had a revision, its template was used again (`kubectl rollout undo`), and the history keeps that one.
fn sync_set(
    storage: &mut Storage,
    place: &Place,
    deployment: &Value,
    (new_place, new_set): &Stored,
    old: &[Stored],
) {
    let wanted = revision(new_set).max(next_revision(old)).to_string();
    change(storage, new_place, Part::Main, |set| {
        set["spec"]["minReadySeconds"] = deployment["spec"]["minReadySeconds"].clone();
        let annotations = &mut set["metadata"]["annotations"];
        copy_annotations(deployment, annotations);
        if annotations[REVISION] == wanted {
            return;
        }
        if let Some(before) = annotations[REVISION].as_str() {
            annotations[REVISION_HISTORY] = history(&annotations[REVISION_HISTORY], before).into();
        }
        annotations[REVISION] = wanted.as_str().into();
    });
    change(storage, place, Part::Status, |deployment| {
        deployment["metadata"]["annotations"][REVISION] = wanted.as_str().into();
    });
}

/// Adds the annotations of a Deployment to its ReplicaSet. None is ever removed.
fn copy_annotations(deployment: &Value, annotations: &mut Value) {
    let all = deployment["metadata"]["annotations"].as_object().into_iter().flatten();
    for (name, value) in all.filter(|(name, _)| !NOT_COPIED.contains(&name.as_str())) {
        annotations[name] = value.clone();
    }
}

/// The history with one more revision.
fn history(before: &Value, revision: &str) -> String {
    let before = before.as_str().unwrap_or_default();
    let mut history = if before.is_empty() { revision.to_owned() } else { format!("{before},{revision}") };
    while history.len() > HISTORY_BYTES_MAX
        && let Some((_, newer)) = history.split_once(',')
    {
        history = newer.to_owned();
    }
    history
}

/// An absolute number, or a percentage of the replicas such as `25%`.
pub(super) fn share(value: &Value, replicas: i64, round_up: bool) -> i64 {
    if let Some(number) = value.as_i64() {
        return number;
    }
    let percent = value.as_str().and_then(|text| text.trim_end_matches('%').parse::<i64>().ok()).unwrap_or(0);
    let rest = if round_up { 99 } else { 0 };
    (replicas.saturating_mul(percent).saturating_add(rest) / 100).min(i32::MAX.into())
}

fn surge(deployment: &Value) -> i64 {
    let rolling = &deployment["spec"]["strategy"]["rollingUpdate"];
    share(&rolling["maxSurge"], count(deployment, "/spec/replicas"), true)
}

fn max_unavailable(deployment: &Value) -> i64 {
    if deployment["spec"]["strategy"]["type"] != "RollingUpdate" {
        return 0;
    }
    let replicas = count(deployment, "/spec/replicas");
    let rolling = &deployment["spec"]["strategy"]["rollingUpdate"];
    let unavailable = share(&rolling["maxUnavailable"], replicas, false);
    // If maxSurge and maxUnavailable were both zero, the rollout could not progress.
    let unavailable = if unavailable == 0 && surge(deployment) == 0 { 1 } else { unavailable };
    unavailable.min(replicas)
}

fn scale(storage: &mut Storage, deployment: &Value, place: &Place, set: &Value, replicas: i64) {
    let before = count(set, "/spec/replicas");
    if before == replicas {
        return;
    }
    change(storage, place, Part::Main, |set| {
        set["spec"]["replicas"] = replicas.into();
        let annotations = set["metadata"]["annotations"].take();
        set["metadata"]["annotations"] = sizes(deployment, annotations);
    });
    record_scaling(storage, deployment, name(set), before, replicas);
}

fn record_scaling(storage: &mut Storage, deployment: &Value, set: &str, from: i64, to: i64) {
    let direction = if to > from { "up" } else { "down" };
    let message = format!("Scaled {direction} replica set {set} from {from} to {to}");
    record(storage, deployment, "deployment-controller", "ScalingReplicaSet", &message);
}

/// The strategy Recreate: deletes all old Pods before it creates new ones.
fn recreate(storage: &mut Storage, deployment: &Value, new: &Stored, old: &[Stored]) {
    for (place, set) in old {
        scale(storage, deployment, place, set, 0);
    }
    let pods_left = old.iter().any(|(_, set)| !controlled(storage, set, "pods").is_empty());
    if !pods_left {
        scale(storage, deployment, &new.0, &new.1, count(deployment, "/spec/replicas"));
    }
}

/// The strategy RollingUpdate: adds new Pods up to maxSurge, and removes old ones while enough are available.
fn roll(storage: &mut Storage, deployment: &Value, new: &Stored, old: &[Stored]) {
    let wanted = count(deployment, "/spec/replicas");
    let (has, available) = (count(&new.1, "/spec/replicas"), count(&new.1, "/status/availableReplicas"));
    let old_total = sum(old, "/spec/replicas");
    let room = (wanted + surge(deployment) - has - old_total).max(0);
    let next = wanted.min(has + room);
    if next != has {
        scale(storage, deployment, &new.0, &new.1, next);
        return;
    }
    if old_total == 0 {
        return;
    }
    let available_min = wanted - max_unavailable(deployment);
    let may_go = (old_total + has) - available_min - (has - available).max(0);
    // Removes unhealthy old Pods first, then healthy ones while enough are available.
    let unhealthy =
        |set: &Value| (count(set, "/spec/replicas") - count(set, "/status/availableReplicas")).max(0);
    let may_go = shrink(storage, deployment, old, may_go, unhealthy);
    let may_go = may_go.min(sum(old, "/status/availableReplicas") + available - available_min);
    shrink(storage, deployment, old, may_go, |set| count(set, "/spec/replicas"));
}

/// Removes at most `may_go` Pods of old ReplicaSets, `removable` of each. Returns how many more may go.
fn shrink(
    storage: &mut Storage,
    deployment: &Value,
    old: &[Stored],
    mut may_go: i64,
    removable: impl Fn(&Value) -> i64,
) -> i64 {
    for (place, _) in old {
        let Some(set) = storage.get(place).cloned() else { continue };
        let go = removable(&set).min(may_go);
        if go > 0 {
            scale(storage, deployment, place, &set, count(&set, "/spec/replicas") - go);
            may_go -= go;
        }
    }
    may_go
}

/// Deletes the oldest ReplicaSets beyond `revisionHistoryLimit` when a rollout is complete.
fn clean_up(storage: &mut Storage, deployment: &Value, old: &[Stored]) {
    if !is_complete(deployment) {
        return;
    }
    let limit = usize::try_from(count(deployment, "/spec/revisionHistoryLimit")).unwrap_or(0);
    let mut by_age: Vec<&Stored> = old.iter().collect();
    by_age.sort_by_key(|(_, set)| revision(set));
    for (place, set) in by_age.into_iter().take(old.len().saturating_sub(limit)) {
        if count(set, "/spec/replicas") == 0 && count(set, "/status/replicas") == 0 {
            delete(storage, place, &Deletion::default());
        }
    }
}

/// Whether all Pods are new and available, by the status.
fn is_complete(deployment: &Value) -> bool {
    let counts = ["/status/updatedReplicas", "/status/replicas", "/status/availableReplicas"];
    deployment["status"]["observedGeneration"] == deployment["metadata"]["generation"]
        && counts.iter().all(|pointer| count(deployment, pointer) == count(deployment, "/spec/replicas"))
}

/// Counts the Pods of all ReplicaSets of a Deployment, for its status.
fn count_pods(status: &mut Value, sets: &[Stored], new_set: Option<&Value>) {
    let available = sum(sets, "/status/availableReplicas");
    for (field, number) in [
        ("replicas", sum(sets, "/status/replicas")),
        ("updatedReplicas", new_set.map_or(0, |set| count(set, "/status/replicas"))),
        ("readyReplicas", sum(sets, "/status/readyReplicas")),
        ("availableReplicas", available),
        ("unavailableReplicas", (sum(sets, "/spec/replicas") - available).max(0)),
    ] {
        set_count(status, field, number);
    }
    status["terminatingReplicas"] = sum(sets, "/status/terminatingReplicas").into();
}

/// Whether a status has more new Pods or fewer old Pods than the one before it.
fn is_ahead(status: &Value, before: &Value) -> bool {
    let is_more = |pointer| count(status, pointer) > count(before, pointer);
    let old = |status: &Value| count(status, "/replicas") - count(status, "/updatedReplicas");
    ["/updatedReplicas", "/readyReplicas", "/availableReplicas"].into_iter().any(is_more)
        || old(status) < old(before)
}

fn write_status(
    controllers: &mut Controllers,
    storage: &mut Storage,
    place: &Place,
    deployment: &Value,
    new_place: Option<Place>,
) {
    let sets = controlled(storage, deployment, "replicasets.apps");
    let new_set = sets.iter().find(|(place, _)| Some(place) == new_place.as_ref()).map(|(_, set)| &**set);
    let clock = storage.clock;
    let mut left = None;
    change(storage, place, Part::Status, |deployment| {
        let before = deployment["status"].clone();
        count_pods(&mut deployment["status"], &sets, new_set);
        deployment["status"]["observedGeneration"] = deployment["metadata"]["generation"].clone();
        let available_min = count(deployment, "/spec/replicas") - max_unavailable(deployment);
        let (is, reason, message) = if count(deployment, "/status/availableReplicas") >= available_min {
            ("True", "MinimumReplicasAvailable", "Deployment has minimum availability.")
        } else {
            ("False", "MinimumReplicasUnavailable", "Deployment does not have minimum availability.")
        };
        set_condition(deployment, "Available", is, reason, message, &clock.time());
        if is_paused(deployment) {
            return;
        }
        match sets.iter().find_map(|(_, set)| condition(set, REPLICA_FAILURE)) {
            Some(failure) => {
                let text = |field: &str| failure[field].as_str().unwrap_or_default();
                let (reason, message) = (text("reason"), text("message"));
                set_condition(deployment, REPLICA_FAILURE, "True", reason, message, &clock.time());
            }
            None => remove_condition(deployment, REPLICA_FAILURE),
        }
        match (progress_deadline(deployment), new_set) {
            (None, _) => remove_condition(deployment, "Progressing"),
            (Some(deadline), Some(new_set)) => {
                left = set_progress(deployment, &before, name(new_set), deadline, &clock);
            }
            (Some(_), None) => {}
        }
    });
    if let Some(left) = left {
        controllers.requeue(place, left + Duration::from_secs(1));
    }
}

/// Sets the condition `Progressing`, which `kubectl rollout status` reads. Returns the time until the deadline, if the
/// rollout is still running.
fn set_progress(
    deployment: &mut Value,
    before: &Value,
    set_name: &str,
    deadline: Duration,
    clock: &Clock,
) -> Option<Duration> {
    let last = condition(deployment, "Progressing").cloned();
    let reason = last.as_ref().and_then(|last| last["reason"].as_str()).unwrap_or_default();
    let stalled = last.as_ref().and_then(|last| clock.since(&last["lastUpdateTime"])).unwrap_or_default();
    let status = &deployment["status"];
    // A complete rollout stays complete, even while the Deployment is scaled.
    if reason == "NewReplicaSetAvailable" && count(status, "/replicas") == count(status, "/updatedReplicas") {
        return None;
    }
    let (status, reason, what, left) = if is_complete(deployment) {
        ("True", "NewReplicaSetAvailable", "has successfully progressed", None)
    } else if is_ahead(status, before) || last.is_none() {
        ("True", "ReplicaSetUpdated", "is progressing", Some(deadline))
    } else if reason == "NewReplicaSetAvailable" || reason == "ProgressDeadlineExceeded" {
        // The rollout was complete or has failed, so no deadline applies.
        return None;
    } else if stalled >= deadline {
        ("False", "ProgressDeadlineExceeded", "has timed out progressing", None)
    } else {
        return Some(deadline - stalled);
    };
    let message = format!("ReplicaSet {set_name:?} {what}.");
    set_condition(deployment, "Progressing", status, reason, &message, &clock.time());
    left
}

/// Go omits a zero.
pub(super) fn set_count(status: &mut Value, field: &str, number: impl Into<Value>) {
    let number = number.into();
    if number != 0 {
        status[field] = number;
    } else if let Some(status) = status.as_object_mut() {
        status.remove(field);
    }
}

pub(super) fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    object["status"]["conditions"].as_array()?.iter().find(|condition| condition["type"] == kind)
}

pub(super) fn remove_condition(object: &mut Value, kind: &str) {
    let Some(status) = object["status"].as_object_mut() else { return };
    let Some(conditions) = status.get_mut("conditions").and_then(Value::as_array_mut) else { return };
    conditions.retain(|condition| condition["type"] != kind);
    // Go omits an empty list.
    if conditions.is_empty() {
        status.remove("conditions");
    }
}

/// Sets a condition of a Deployment, with its `lastUpdateTime`.
fn set_condition(deployment: &mut Value, kind: &str, status: &str, reason: &str, message: &str, now: &str) {
    // An unchanged condition is left alone, so a complete rollout stays complete until a new one begins.
    let is_unchanged = |old: &Value| old["reason"] == reason && old["message"] == message;
    if reason != "ReplicaSetUpdated" && condition(deployment, kind).is_some_and(is_unchanged) {
        return;
    }
    conditions::set_condition(deployment, kind, status, reason, message, now);
    let Some(conditions) = deployment["status"]["conditions"].as_array_mut() else { return };
    // As in Kubernetes, the changed condition moves to the end of the list.
    if let Some(at) = conditions.iter().position(|condition| condition["type"] == kind) {
        let mut condition = conditions.remove(at);
        condition["lastUpdateTime"] = now.into();
        conditions.push(condition);
    }
}

/// The time until a Pod is available, by `minReadySeconds` of its owner. `None` if it is not ready.
pub(super) fn until_available(owner: &Value, pod: &Value, clock: &Clock) -> Option<Duration> {
    let ready = condition(pod, "Ready").filter(|ready| ready["status"] == "True")?;
    let least = Duration::from_secs(u64::try_from(count(owner, "/spec/minReadySeconds")).unwrap_or(0));
    Some(least.saturating_sub(clock.since(&ready["lastTransitionTime"]).unwrap_or_default()))
}

pub(super) fn is_ready(pod: &Value) -> bool {
    condition(pod, "Ready").is_some_and(|ready| ready["status"] == "True")
}

/// A Pod from a template, with a random name: `GetPodFromTemplate`.
pub(super) fn pod_of(owner: &Value, template: &Value) -> Value {
    let base = format!("{}-", name(owner));
    let mut metadata = json!({"name": format!("{base}{}", random_letters()), "generateName": base,
        "ownerReferences": [owner_reference(owner)]});
    for field in ["labels", "annotations", "finalizers"] {
        if !template["metadata"][field].is_null() {
            metadata[field] = template["metadata"][field].clone();
        }
    }
    json!({"metadata": metadata, "spec": template["spec"]})
}

/// Creates a Pod of a workload. An Event on the workload says so, or why it failed: `RealPodControl`.
pub(super) fn make_pod(
    storage: &mut Storage,
    owner: &Value,
    component: &str,
    pod: Value,
) -> Result<Arc<Value>, StatusError> {
    let made = try_make(storage, "", "pods", owner["metadata"]["namespace"].as_str(), pod);
    match &made {
        Ok(pod) => {
            record(storage, owner, component, "SuccessfulCreate", &format!("Created pod: {}", name(pod)));
        }
        Err(error) => {
            let message = format!("Error creating: {}", error.message());
            record_warning(storage, owner, component, "FailedCreate", &message);
        }
    }
    made
}
