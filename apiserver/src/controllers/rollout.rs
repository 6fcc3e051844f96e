//! Deployments and ReplicaSets: a template becomes Pods, a new template replaces them step by step.
//!
//! The arithmetic, the reasons and the messages are those of kube-controller-manager (pkg/controller/deployment), so that
//! `kubectl rollout status` and an operator's own status logic meet what they will meet in a cluster.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};

use super::{
    super::{
        clock::Clock,
        delete::Deletion,
        selector::Labels,
        storage::{Place, Storage},
        write::{LETTERS, Part, is_terminating, random_letters},
    },
    Controllers, change, delete, make, owners, tell, uid, warn,
};

const REVISION: &str = "deployment.kubernetes.io/revision";
const HASH: &str = "pod-template-hash";
const REPLICA_FAILURE: &str = "ReplicaFailure";

/// Pods that one look at a ReplicaSet makes or deletes, before all other objects have their turn.
const PODS_AT_ONCE: usize = 10;

/// Most Pods of one ReplicaSet, and of all together. They are in memory, with their Events some 60 kB each, and `replicas` may
/// be two thousand millions.
const PODS_OF_SET_MAX: usize = 1000;
const PODS_MAX: usize = 10_000;

/// When a ReplicaSet for which there was no room is looked at again.
const ROOM_PAUSE: Duration = Duration::from_secs(10);

fn count(object: &Value, pointer: &str) -> i64 {
    object.pointer(pointer).and_then(Value::as_i64).unwrap_or(0)
}

fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

/// The objects of one collection that an object controls.
fn controlled(storage: &Storage, owner: &Value, collection: &str) -> Vec<(Place, Arc<Value>)> {
    let mut found = Vec::new();
    for place in storage.dependents(uid(owner)) {
        if place.collection != collection {
            continue;
        }
        let Some(object) = storage.get(&place).cloned() else { continue };
        let ours = owners(&object).any(|one| one["uid"] == uid(owner) && one["controller"] == true);
        if ours {
            found.push((place, object));
        }
    }
    found
}

/// Takes over what the selector matches and nobody controls: what `--cascade=orphan` left behind has the names that we
/// would give. And lets go of what it does not match any more: so people take a Pod aside to look at it.
fn claim(storage: &mut Storage, owner: &Value, collection: &str) {
    let selector = Labels::from_object(&owner["spec"]["selector"]);
    let Some(all) = storage.collection(collection) else { return };
    let is_orphan = |object: &Value| {
        object["metadata"]["namespace"] == owner["metadata"]["namespace"]
            && selector.matches(&object["metadata"]["labels"])
            && !is_terminating(object)
            && !owners(object).any(|one| one["controller"] == true)
    };
    let orphans = all.objects.iter().filter(|(_, object)| is_orphan(object));
    let orphans: Vec<Place> =
        orphans.map(|(key, _)| Place { collection: collection.to_owned(), key: key.clone() }).collect();
    let mut strangers = controlled(storage, owner, collection);
    strangers.retain(|(_, object)| !selector.matches(&object["metadata"]["labels"]));
    for orphan in orphans {
        change(storage, &orphan, Part::Main, |object| {
            let mut references: Vec<Value> = owners(object).cloned().collect();
            references.extend(owner_reference(owner).as_array().into_iter().flatten().cloned());
            object["metadata"]["ownerReferences"] = references.into();
        });
    }
    for (stranger, _) in strangers {
        change(storage, &stranger, Part::Main, |object| {
            let kept: Vec<Value> = owners(object).filter(|one| one["uid"] != uid(owner)).cloned().collect();
            object["metadata"]["ownerReferences"] = kept.into();
        });
    }
}

fn owner_reference(owner: &Value) -> Value {
    json!([{"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"], "controller": true, "blockOwnerDeletion": true}])
}

/// One step of a Deployment.
pub(super) fn deployment(
    controllers: &mut Controllers,
    storage: &mut Storage,
    place: &Place,
    deployment: &Value,
) {
    if is_terminating(deployment) {
        return;
    }
    claim(storage, deployment, "replicasets.apps");
    tell_paused(storage, place, deployment);
    let mut old = controlled(storage, deployment, "replicasets.apps");
    let new = old.iter().position(|(_, set)| same_template(deployment, set)).map(|at| old.remove(at));
    if let Some((new_place, new_set)) = &new {
        take_revision(storage, place, new_place, new_set, &old);
    }
    match &new {
        _ if is_paused(deployment) => scale_the_only_one(storage, deployment, new.as_ref(), &old),
        None => return make_set(storage, place, deployment, &old),
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

/// Within which time a rollout must get on. `None`: no condition `Progressing` is kept (`HasProgressDeadline`).
fn progress_deadline(deployment: &Value) -> Option<Duration> {
    let secs = u64::try_from(count(deployment, "/spec/progressDeadlineSeconds")).unwrap_or(600);
    (secs != u64::from(i32::MAX.unsigned_abs())).then(|| Duration::from_secs(secs))
}

/// While it is paused, and when it is not any more, a Deployment says so where it tells its progress.
fn tell_paused(storage: &mut Storage, place: &Place, deployment: &Value) {
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

/// A Deployment that is paused can be scaled as long as only one ReplicaSet has Pods.
fn scale_the_only_one(
    storage: &mut Storage,
    deployment: &Value,
    new: Option<&(Place, Arc<Value>)>,
    old: &[(Place, Arc<Value>)],
) {
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

/// The template of a ReplicaSet is that of its Deployment with the hash added.
fn same_template(deployment: &Value, set: &Value) -> bool {
    let mut template = set["spec"]["template"].clone();
    if let Some(labels) = template["metadata"]["labels"].as_object_mut() {
        labels.remove(HASH);
    }
    template == deployment["spec"]["template"]
}

/// A hash of the template, in letters that make no words. (Not the real one's: that hashes Go structs.)
fn template_hash(template: &Value) -> String {
    // FNV-1a, as there.
    let mut hash: u32 = 2_166_136_261;
    for byte in template.to_string().bytes() {
        hash = (hash ^ u32::from(byte)).wrapping_mul(16_777_619);
    }
    let digits = hash.to_string();
    digits.bytes().map(|digit| char::from(LETTERS[usize::from(digit) % LETTERS.len()])).collect()
}

fn revision(object: &Value) -> i64 {
    object["metadata"]["annotations"][REVISION].as_str().and_then(|text| text.parse().ok()).unwrap_or(0)
}

fn make_set(storage: &mut Storage, place: &Place, deployment: &Value, sets: &[(Place, Arc<Value>)]) {
    let spec = &deployment["spec"];
    let hash = template_hash(&spec["template"]);
    let set_name = format!("{}-{hash}", name(deployment));
    let mut template = spec["template"].clone();
    template["metadata"]["labels"][HASH] = hash.as_str().into();
    let mut selector = spec["selector"].clone();
    selector["matchLabels"][HASH] = hash.as_str().into();
    let next = sets.iter().map(|(_, set)| revision(set)).max().unwrap_or(0).saturating_add(1);
    // The first ReplicaSet gets all replicas at once; a later one starts with what the surge allows.
    let running: i64 = sets.iter().map(|(_, set)| count(set, "/spec/replicas")).sum();
    let replicas = match spec["strategy"]["type"].as_str() {
        Some("Recreate") if running > 0 => 0,
        _ => (count(deployment, "/spec/replicas") + surge(deployment) - running)
            .clamp(0, count(deployment, "/spec/replicas")),
    };
    let set = json!({
        "metadata": {"name": set_name, "labels": template["metadata"]["labels"],
            "annotations": sizes(deployment, json!({REVISION: next.to_string()})), "ownerReferences": owner_reference(deployment)},
        "spec": {"replicas": replicas, "selector": selector, "template": template},
    });
    if make(storage, "apps", "replicasets", place.namespace(), set).is_none() {
        return;
    }
    if replicas > 0 {
        tell_scaled(storage, deployment, &set_name, 0, replicas);
    }
    let now = storage.clock.time();
    change(storage, place, Part::Status, |deployment| {
        deployment["metadata"]["annotations"][REVISION] = next.to_string().into();
        if progress_deadline(deployment).is_some() {
            let message = format!("Created new replica set {set_name:?}");
            set_condition(deployment, "Progressing", "True", "NewReplicaSetCreated", &message, &now);
        }
    });
}

/// A ReplicaSet notes how large its Deployment wanted to be when it was last scaled.
fn sizes(deployment: &Value, mut annotations: Value) -> Value {
    let replicas = count(deployment, "/spec/replicas");
    let max = replicas + surge(deployment);
    annotations["deployment.kubernetes.io/desired-replicas"] = replicas.to_string().into();
    annotations["deployment.kubernetes.io/max-replicas"] = max.to_string().into();
    annotations
}

/// A template that comes back (`kubectl rollout undo`) takes the newest revision.
fn take_revision(
    storage: &mut Storage,
    place: &Place,
    new_place: &Place,
    new_set: &Value,
    old: &[(Place, Arc<Value>)],
) {
    let newest = old.iter().map(|(_, set)| revision(set)).max().unwrap_or(0);
    let wanted = if revision(new_set) > newest { revision(new_set) } else { newest.saturating_add(1) };
    let wanted = wanted.to_string();
    if new_set["metadata"]["annotations"][REVISION] != wanted {
        change(storage, new_place, Part::Main, |set| {
            set["metadata"]["annotations"][REVISION] = wanted.as_str().into();
        });
    }
    change(storage, place, Part::Status, |deployment| {
        deployment["metadata"]["annotations"][REVISION] = wanted.as_str().into();
    });
}

/// `25%` or a number of the replicas.
fn share(value: &Value, replicas: i64, round_up: bool) -> i64 {
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
    // If neither may be, nothing could ever move.
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
    tell_scaled(storage, deployment, name(set), before, replicas);
}

fn tell_scaled(storage: &mut Storage, deployment: &Value, set: &str, from: i64, to: i64) {
    let direction = if to > from { "up" } else { "down" };
    let message = format!("Scaled {direction} replica set {set} from {from} to {to}");
    tell(storage, deployment, "deployment-controller", "ScalingReplicaSet", &message);
}

/// All old Pods go before the first new one comes.
fn recreate(
    storage: &mut Storage,
    deployment: &Value,
    new: &(Place, Arc<Value>),
    old: &[(Place, Arc<Value>)],
) {
    for (place, set) in old {
        scale(storage, deployment, place, set, 0);
    }
    let pods_left = old.iter().any(|(_, set)| !controlled(storage, set, "pods").is_empty());
    if !pods_left {
        scale(storage, deployment, &new.0, &new.1, count(deployment, "/spec/replicas"));
    }
}

/// New Pods come as far as the surge allows, old ones go as far as enough are available.
fn roll(storage: &mut Storage, deployment: &Value, new: &(Place, Arc<Value>), old: &[(Place, Arc<Value>)]) {
    let wanted = count(deployment, "/spec/replicas");
    let (has, available) = (count(&new.1, "/spec/replicas"), count(&new.1, "/status/availableReplicas"));
    let old_total: i64 = old.iter().map(|(_, set)| count(set, "/spec/replicas")).sum();
    let next = if has > wanted {
        wanted
    } else {
        let room = (wanted + surge(deployment) - has - old_total).max(0);
        has + room.min(wanted - has)
    };
    if next != has {
        scale(storage, deployment, &new.0, &new.1, next);
        return;
    }
    if old_total == 0 {
        return;
    }
    let available_min = wanted - max_unavailable(deployment);
    let mut may_go = (old_total + has) - available_min - (has - available).max(0);
    // Old Pods that do not work anyway go first, then working ones as long as enough are left.
    for pass in [Pass::Unhealthy, Pass::Healthy] {
        let old_available: i64 = old.iter().map(|(_, set)| count(set, "/status/availableReplicas")).sum();
        if pass == Pass::Healthy {
            may_go = may_go.min(old_available + available - available_min);
        }
        for (place, _) in old {
            let Some(set) = storage.get(place).cloned() else { continue };
            let replicas = count(&set, "/spec/replicas");
            let unhealthy = (replicas - count(&set, "/status/availableReplicas")).max(0);
            let go = match pass {
                Pass::Unhealthy => unhealthy.min(may_go),
                Pass::Healthy => replicas.min(may_go),
            };
            if go > 0 {
                scale(storage, deployment, place, &set, replicas - go);
                may_go -= go;
            }
        }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Pass {
    Unhealthy,
    Healthy,
}

/// Old ReplicaSets are kept for `kubectl rollout undo`, but not all of them, once a rollout is complete.
fn clean_up(storage: &mut Storage, deployment: &Value, old: &[(Place, Arc<Value>)]) {
    let wanted = count(deployment, "/spec/replicas");
    let counts = ["/status/updatedReplicas", "/status/replicas", "/status/availableReplicas"];
    let is_complete = deployment["status"]["observedGeneration"] == deployment["metadata"]["generation"]
        && counts.iter().all(|pointer| count(deployment, pointer) == wanted);
    if !is_complete {
        return;
    }
    let limit = usize::try_from(count(deployment, "/spec/revisionHistoryLimit")).unwrap_or(0);
    let mut by_age: Vec<&(Place, Arc<Value>)> = old.iter().collect();
    by_age.sort_by_key(|(_, set)| revision(set));
    let is_idle = |set: &Value| count(set, "/spec/replicas") == 0 && count(set, "/status/replicas") == 0;
    for (place, set) in by_age.into_iter().take(old.len().saturating_sub(limit)) {
        if is_idle(set) {
            delete(storage, place, &Deletion::default());
        }
    }
}

/// The Pods of a Deployment, over all its ReplicaSets.
struct Totals {
    wanted: i64,
    /// What the ReplicaSets are to have.
    sets: i64,
    replicas: i64,
    updated: i64,
    ready: i64,
    available: i64,
    terminating: i64,
}

impl Totals {
    fn of(deployment: &Value, sets: &[(Place, Arc<Value>)], new_set: Option<&Value>) -> Totals {
        let sum = |pointer: &str| sets.iter().map(|(_, set)| count(set, pointer)).sum();
        Totals {
            wanted: count(deployment, "/spec/replicas"),
            sets: sum("/spec/replicas"),
            replicas: sum("/status/replicas"),
            updated: new_set.map_or(0, |set| count(set, "/status/replicas")),
            ready: sum("/status/readyReplicas"),
            available: sum("/status/availableReplicas"),
            terminating: sum("/status/terminatingReplicas"),
        }
    }

    fn write(&self, status: &mut Value) {
        for (field, number) in [
            ("replicas", self.replicas),
            ("updatedReplicas", self.updated),
            ("readyReplicas", self.ready),
            ("availableReplicas", self.available),
            ("unavailableReplicas", (self.sets - self.available).max(0)),
        ] {
            set_count(status, field, number);
        }
        status["terminatingReplicas"] = self.terminating.into();
    }

    fn are_complete(&self) -> bool {
        [self.updated, self.replicas, self.available].iter().all(|&count| count == self.wanted)
    }

    /// Whether more is new, or less is old, than when the status was written.
    fn are_ahead_of(&self, status: &Value) -> bool {
        self.updated > count(status, "/updatedReplicas")
            || self.replicas - self.updated < count(status, "/replicas") - count(status, "/updatedReplicas")
            || self.ready > count(status, "/readyReplicas")
            || self.available > count(status, "/availableReplicas")
    }
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
    let totals = Totals::of(deployment, &sets, new_set);
    let clock = storage.clock;
    let mut course = Course::Settled;
    change(storage, place, Part::Status, |deployment| {
        let before = deployment["status"].clone();
        totals.write(&mut deployment["status"]);
        deployment["status"]["observedGeneration"] = deployment["metadata"]["generation"].clone();
        let (is, reason, message) = match totals.available >= totals.wanted - max_unavailable(deployment) {
            true => ("True", "MinimumReplicasAvailable", "Deployment has minimum availability."),
            false => {
                ("False", "MinimumReplicasUnavailable", "Deployment does not have minimum availability.")
            }
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
                course = tell_progress(deployment, &before, &totals, name(new_set), deadline, &clock);
            }
            (Some(_), None) => {}
        }
    });
    match course {
        Course::Settled => {}
        Course::UnderWay { left } => controllers.look_again(place, left + Duration::from_secs(1)),
    }
}

/// Whether a rollout may still miss its deadline.
enum Course {
    Settled,
    UnderWay { left: Duration },
}

/// The condition `Progressing`, which `kubectl rollout status` reads.
fn tell_progress(
    deployment: &mut Value,
    before: &Value,
    totals: &Totals,
    set_name: &str,
    deadline: Duration,
    clock: &Clock,
) -> Course {
    let last = condition(deployment, "Progressing").cloned();
    let reason = last.as_ref().and_then(|last| last["reason"].as_str()).unwrap_or_default();
    let stalled = last.as_ref().and_then(|last| clock.since(&last["lastUpdateTime"])).unwrap_or_default();
    // Complete stays complete, also while it is scaled.
    if reason == "NewReplicaSetAvailable" && totals.replicas == totals.updated {
        return Course::Settled;
    }
    let (status, reason, what, course) = if totals.are_complete() {
        ("True", "NewReplicaSetAvailable", "has successfully progressed", Course::Settled)
    } else if totals.are_ahead_of(before) || last.is_none() {
        ("True", "ReplicaSetUpdated", "is progressing", Course::UnderWay { left: deadline })
    } else if reason == "NewReplicaSetAvailable" || reason == "ProgressDeadlineExceeded" {
        // It was complete before, or has failed already: no clock runs.
        return Course::Settled;
    } else if stalled >= deadline {
        ("False", "ProgressDeadlineExceeded", "has timed out progressing", Course::Settled)
    } else {
        return Course::UnderWay { left: deadline - stalled };
    };
    let message = format!("ReplicaSet {set_name:?} {what}.");
    set_condition(deployment, "Progressing", status, reason, &message, &clock.time());
    course
}

/// Go leaves out a count of zero.
fn set_count(status: &mut Value, field: &str, number: i64) {
    if number != 0 {
        status[field] = number.into();
    } else if let Some(status) = status.as_object_mut() {
        status.remove(field);
    }
}

fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    object["status"]["conditions"].as_array()?.iter().find(|condition| condition["type"] == kind)
}

fn remove_condition(object: &mut Value, kind: &str) {
    let Some(status) = object["status"].as_object_mut() else { return };
    let Some(conditions) = status.get_mut("conditions").and_then(Value::as_array_mut) else { return };
    conditions.retain(|condition| condition["type"] != kind);
    // Go leaves out a list of none.
    if conditions.is_empty() {
        status.remove("conditions");
    }
}

/// A condition of a Deployment also says when it was last touched.
fn set_condition(deployment: &mut Value, kind: &str, status: &str, reason: &str, message: &str, now: &str) {
    let old = condition(deployment, kind).cloned();
    if let Some(old) = &old
        && old["status"] == status
        && old["reason"] == reason
        && kind == "Available"
    {
        return;
    }
    // Complete stays complete: nothing is touched until a new rollout begins.
    if old.as_ref().is_some_and(|old| old["reason"] == reason && old["message"] == message)
        && reason != "ReplicaSetUpdated"
    {
        return;
    }
    super::set_condition(deployment, kind, status, reason, message, now);
    let Some(conditions) = deployment["status"]["conditions"].as_array_mut() else { return };
    // The real one takes the old condition out and appends the new one.
    if let Some(at) = conditions.iter().position(|condition| condition["type"] == kind) {
        let mut condition = conditions.remove(at);
        condition["lastUpdateTime"] = now.into();
        conditions.push(condition);
    }
}

/// As many Pods as asked for, and a status that counts them.
pub(super) fn replica_set(controllers: &mut Controllers, storage: &mut Storage, place: &Place, set: &Value) {
    if !is_terminating(set) {
        claim(storage, set, "pods");
    }
    let mut living = controlled(storage, set, "pods");
    living.retain(|(_, pod)| !is_terminating(pod));
    let mut failure = None;
    if !is_terminating(set) {
        let wanted = usize::try_from(count(set, "/spec/replicas")).unwrap_or(0);
        let room = PODS_MAX.saturating_sub(storage.collection("pods").map_or(0, |pods| pods.objects.len()));
        let missing = wanted.saturating_sub(living.len());
        let room_here = room.min(PODS_OF_SET_MAX.saturating_sub(living.len()));
        if wanted > PODS_OF_SET_MAX {
            failure = Some(format!("at most {PODS_OF_SET_MAX} Pods of a ReplicaSet run here"));
        } else if missing > room {
            failure = Some(format!("at most {PODS_MAX} Pods of ReplicaSets run here"));
            controllers.look_again(place, ROOM_PAUSE);
        }
        // What is made marks the set for another look.
        for _ in 0..missing.min(room_here).min(PODS_AT_ONCE) {
            make_pod(storage, place, set);
        }
        // Pods that are not ready go first.
        let mut surplus: Vec<&(Place, Arc<Value>)> = living.iter().collect();
        surplus.sort_by_key(|(_, pod)| is_ready(pod));
        for (pod_place, pod) in
            surplus.into_iter().take(living.len().saturating_sub(wanted).min(PODS_AT_ONCE))
        {
            delete(storage, pod_place, &Deletion::default());
            let message = format!("Deleted pod: {}", name(pod));
            tell(storage, set, "replicaset-controller", "SuccessfulDelete", &message);
        }
    }
    // Counted when this is done: what goes here is heard of again when it is gone.
    let pods = controlled(storage, set, "pods").into_iter().map(|(_, pod)| pod);
    let (going, living): (Vec<_>, Vec<_>) = pods.partition(|pod| is_terminating(pod));
    let min_ready = Duration::from_secs(u64::try_from(count(set, "/spec/minReadySeconds")).unwrap_or(0));
    let clock = storage.clock;
    let ready: Vec<&Arc<Value>> = living.iter().filter(|pod| is_ready(pod)).collect();
    let left = |pod: &&Arc<Value>| {
        let since = condition(pod, "Ready").and_then(|ready| clock.since(&ready["lastTransitionTime"]));
        min_ready.saturating_sub(since.unwrap_or_default())
    };
    let waiting: Vec<Duration> = ready.iter().map(left).filter(|left| !left.is_zero()).collect();
    if let Some(least) = waiting.iter().min() {
        controllers.look_again(place, *least);
    }
    let (ready, available) = (ready.len(), ready.len() - waiting.len());
    let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
    if let Some(why) = failure.as_ref().filter(|_| condition(set, REPLICA_FAILURE).is_none()) {
        warn(storage, set, "replicaset-controller", "FailedCreate", &format!("Error creating: {why}"));
    }
    change(storage, place, Part::Status, |set| {
        match &failure {
            Some(why) if condition(set, REPLICA_FAILURE).is_none() => {
                super::set_condition(set, REPLICA_FAILURE, "True", "FailedCreate", why, &clock.time());
            }
            Some(_) => {}
            None => remove_condition(set, REPLICA_FAILURE),
        }
        let generation = set["metadata"]["generation"].clone();
        let status = &mut set["status"];
        status["replicas"] = living.len().into();
        status["observedGeneration"] = generation;
        status["terminatingReplicas"] = going.len().into();
        set_count(status, "fullyLabeledReplicas", number(living.len()));
        set_count(status, "readyReplicas", number(ready));
        set_count(status, "availableReplicas", number(available));
    });
}

fn is_ready(pod: &Value) -> bool {
    condition(pod, "Ready").is_some_and(|ready| ready["status"] == "True")
}

fn make_pod(storage: &mut Storage, place: &Place, set: &Value) {
    let template = &set["spec"]["template"];
    let base = format!("{}-", name(set));
    let mut metadata = json!({"name": format!("{base}{}", random_letters()), "generateName": base,
        "ownerReferences": owner_reference(set)});
    for field in ["labels", "annotations"] {
        if !template["metadata"][field].is_null() {
            metadata[field] = template["metadata"][field].clone();
        }
    }
    let pod = json!({"metadata": metadata, "spec": template["spec"]});
    if let Some(pod) = make(storage, "", "pods", place.namespace(), pod) {
        let message = format!("Created pod: {}", name(&pod));
        tell(storage, set, "replicaset-controller", "SuccessfulCreate", &message);
    }
}
