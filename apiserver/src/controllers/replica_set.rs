//! ReplicaSets and ReplicationControllers: as many Pods as wanted.
//!
//! As in kube-controller-manager (pkg/controller/replicaset), where a ReplicationController is a ReplicaSet with another kind.

use std::{sync::Arc, time::Duration};

use serde_json::Value;

use super::{
    Controllers, change, delete, record, record_warning,
    rollout::{
        PODS_AT_ONCE, PODS_MAX, PODS_OF_SET_MAX, REPLICA_FAILURE, RETRY_PAUSE, Stored, claim, condition,
        controlled, count, is_ready, make_pod, name, pod_of, remove_condition, room, set_count,
        until_available,
    },
};
use crate::{
    kinds::{Part, conditions, metadata::is_terminating, pods::has_ended},
    storage::{Place, Storage},
    verbs::delete::Deletion,
};

/// Reconciles a ReplicaSet or a ReplicationController: creates or deletes Pods, and updates the status.
pub(crate) fn replica_set(controllers: &mut Controllers, storage: &mut Storage, place: &Place, set: &Value) {
    let mut failure = None;
    if !is_terminating(set) {
        claim(storage, set, "pods", |_| true);
        let mut living = controlled(storage, set, "pods");
        living.retain(|(_, pod)| !is_terminating(pod) && !has_ended(pod));
        failure = fill(controllers, storage, place, set, living.len());
        delete_surplus(storage, set, living);
    }
    // Counts the Pods last. The end of a terminating Pod queues the owner again.
    let pods = controlled(storage, set, "pods").into_iter().map(|(_, pod)| pod).filter(|pod| !has_ended(pod));
    let (going, living): (Vec<_>, Vec<_>) = pods.partition(|pod| is_terminating(pod));
    let left: Vec<Duration> =
        living.iter().filter_map(|pod| until_available(set, pod, &storage.clock)).collect();
    if let Some(least) = left.iter().filter(|left| !left.is_zero()).min() {
        controllers.requeue(place, *least);
    }
    write_status(storage, place, &living, going.len(), &left, failure);
}

fn component(set: &Value) -> &'static str {
    if set["kind"] == "ReplicationController" { "replication-controller" } else { "replicaset-controller" }
}

/// Creates missing Pods. Returns why some are missing.
fn fill(
    controllers: &mut Controllers,
    storage: &mut Storage,
    place: &Place,
    set: &Value,
    living: usize,
) -> Option<String> {
    let wanted = usize::try_from(count(set, "/spec/replicas")).unwrap_or(0);
    let room = room(storage);
    let missing = wanted.saturating_sub(living);
    let room_here = room.min(PODS_OF_SET_MAX.saturating_sub(living));
    let full = if wanted > PODS_OF_SET_MAX {
        Some(format!("at most {PODS_OF_SET_MAX} Pods of a ReplicaSet run here"))
    } else if missing > room {
        controllers.requeue(place, RETRY_PAUSE);
        Some(format!("at most {PODS_MAX} Pods of ReplicaSets run here"))
    } else {
        None
    };
    if let Some(why) = full.as_ref().filter(|_| condition(set, REPLICA_FAILURE).is_none()) {
        record_warning(storage, set, component(set), "FailedCreate", &format!("Error creating: {why}"));
    }
    // Each new Pod queues the owner again.
    for _ in 0..missing.min(room_here).min(PODS_AT_ONCE) {
        let pod = pod_of(set, &set["spec"]["template"]);
        if let Err(error) = make_pod(storage, set, component(set), pod) {
            controllers.requeue(place, RETRY_PAUSE);
            return (!error.is_namespace_terminating()).then(|| error.message().to_owned());
        }
    }
    full
}

/// Deletes Pods above the number that is wanted: first those that are not ready.
fn delete_surplus(storage: &mut Storage, set: &Value, mut living: Vec<Stored>) {
    living.sort_by_key(|(_, pod)| is_ready(pod));
    let surplus = living.len().saturating_sub(usize::try_from(count(set, "/spec/replicas")).unwrap_or(0));
    for (pod_place, pod) in living.iter().take(surplus.min(PODS_AT_ONCE)) {
        delete(storage, pod_place, &Deletion::default());
        let message = format!("Deleted pod: {}", name(pod));
        record(storage, set, component(set), "SuccessfulDelete", &message);
    }
}

fn write_status(
    storage: &mut Storage,
    place: &Place,
    living: &[Arc<Value>],
    going: usize,
    left: &[Duration],
    failure: Option<String>,
) {
    let now = storage.clock.time();
    change(storage, place, Part::Status, |set| {
        match &failure {
            Some(why) if condition(set, REPLICA_FAILURE).is_none() => {
                conditions::set_condition(set, REPLICA_FAILURE, "True", "FailedCreate", why, &now);
            }
            Some(_) => {}
            None => remove_condition(set, REPLICA_FAILURE),
        }
        let generation = set["metadata"]["generation"].clone();
        let is_replica_set = set["kind"] == "ReplicaSet";
        let status = &mut set["status"];
        status["replicas"] = living.len().into();
        status["observedGeneration"] = generation;
        if is_replica_set {
            status["terminatingReplicas"] = going.into();
        }
        set_count(status, "fullyLabeledReplicas", living.len());
        set_count(status, "readyReplicas", left.len());
        set_count(status, "availableReplicas", left.iter().filter(|left| left.is_zero()).count());
    });
}
