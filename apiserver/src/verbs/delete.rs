//! Delete: removes an object at once, or marks it if finalizers, a grace period or dependents hold it.
//!
//! ```text
//! DELETE …/widgets/w1   {"propagationPolicy": "Foreground", "preconditions": {"uid": "00e4f4f5-…"}}
//! ```
//!
//! A held object gets a `deletionTimestamp`. The write that removes its last finalizer deletes it; see `write.rs`.

use std::{sync::Arc, time::Duration};

use serde_json::Value;

use crate::{
    admission::{Admission, matching::Write},
    kinds::{
        Kind,
        metadata::{finalizers, holds_nothing, is_terminating},
    },
    status::StatusError,
    storage::{Place, Storage},
    verbs::{
        served_kinds,
        store::{CRD_FINALIZER, finish_crd, remove, store},
    },
};

/// `propagationPolicy`: how the dependents are deleted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Propagation {
    Background,
    Foreground,
    Orphan,
}

/// `DeleteOptions`.
#[derive(Debug, Default)]
pub(crate) struct Deletion {
    /// `None`: by the object's finalizers, or else in the background.
    pub(crate) propagation: Option<Propagation>,
    /// The deprecated `orphanDependents: false`: a delete that does not finish at once answers 202.
    pub(crate) is_old_cascade: bool,
    pub(crate) uid: Option<String>,
    pub(crate) resource_version: Option<String>,
    pub(crate) grace_secs: Option<u64>,
    pub(crate) dry_run: bool,
}

/// The effect of a delete.
pub(crate) enum Deleted {
    /// The object is gone. Contains its last state.
    Gone(Arc<Value>),
    /// The object is terminating, held by finalizers or a grace period.
    Terminating(Arc<Value>),
}

/// Default grace period of a Pod.
const POD_GRACE_SECS: u64 = 30;

/// Namespaces that cannot be deleted.
const IMMORTAL: [&str; 3] = ["default", "kube-system", "kube-public"];

/// Deletes an object, unless a webhook refuses that.
pub(crate) fn admit_and_delete(
    storage: &mut Storage,
    kind: &Kind,
    place: &Place,
    deletion: &Deletion,
    admission: Option<&mut Admission>,
) -> Result<Deleted, StatusError> {
    admit(storage, kind, place, deletion, admission)?;
    delete(storage, kind, place, deletion)
}

/// Asks the webhooks about a delete.
pub(crate) fn admit(
    storage: &Storage,
    kind: &Kind,
    place: &Place,
    deletion: &Deletion,
    admission: Option<&mut Admission>,
) -> Result<(), StatusError> {
    let Some(before) = storage.get(place) else { return Ok(()) };
    check_preconditions(kind, place.name(), before, deletion)?;
    let before = kind.view(before)?;
    let Some(admission) = admission else { return Ok(()) };
    admission.mutate(storage, kind, &mut Value::Null, &before)?;
    admission.validate(storage, Write { kind, object: &Value::Null, before: &before })
}

/// Deletes an object, or marks it for deletion.
pub(crate) fn delete(
    storage: &mut Storage,
    kind: &Kind,
    place: &Place,
    deletion: &Deletion,
) -> Result<Deleted, StatusError> {
    let name = place.name();
    if kind.built_in() == "Namespace" && IMMORTAL.contains(&name) {
        return Err(StatusError::forbidden(kind, name, "this namespace may not be deleted"));
    }
    let Some(before) = storage.get(place).cloned() else { return Err(StatusError::not_found(kind, name)) };
    check_preconditions(kind, name, &before, deletion)?;

    let mut after = (*before).clone();
    let grace = grace(kind, &before, deletion);
    let shorter = before["metadata"]["deletionGracePeriodSeconds"].as_u64().is_some_and(|was| grace < was);
    let begins = !is_terminating(&before) || shorter;
    // For these two kinds, a second delete does not change the propagation policy.
    if begins || !["Namespace", "Pod"].contains(&kind.built_in()) {
        hold(kind, &mut after, deletion.propagation);
    }
    if begins {
        mark(storage, kind, &mut after, grace);
    } else if kind.built_in() == "CustomResourceDefinition" {
        after["metadata"]["deletionGracePeriodSeconds"] = 0.into();
    }
    if holds_nothing(kind, &after) {
        // A Pod is returned with its deletionTimestamp, like any object with graceful deletion.
        let mut gone = if kind.built_in() == "Pod" { after } else { (*before).clone() };
        if !deletion.dry_run {
            remove(storage, kind, place);
            gone["metadata"]["resourceVersion"] = storage.revision().to_string().into();
        }
        return Ok(Deleted::Gone(Arc::new(gone)));
    }
    if deletion.dry_run || after == *before {
        return Ok(Deleted::Terminating(Arc::new(after)));
    }
    let after = store(storage, kind, place, after);
    if begins && kind.built_in() == "CustomResourceDefinition" {
        delete_instances(storage, kind, place, &after);
    }
    Ok(Deleted::Terminating(after))
}

/// Warns that a delete of Jobs orphans their Pods.
pub(crate) fn warning(kind: &Kind, deletion: &Deletion) -> Option<String> {
    let text = "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove \
        them or set propagationPolicy=Orphan to suppress this warning";
    (kind.built_in() == "Job" && deletion.propagation.is_none()).then(|| text.to_owned())
}

/// Sets the finalizers for a propagation policy, and the finalizer of a CRD.
fn hold(kind: &Kind, object: &mut Value, propagation: Option<Propagation>) {
    // The first delete of a CRD ignores the policy, and adds a finalizer: its custom resources are deleted first.
    let begins_crd = kind.built_in() == "CustomResourceDefinition" && !is_terminating(object);
    let mut list = finalizers(object);
    if let Some(propagation) = propagation.filter(|_| !begins_crd) {
        list.retain(|one| !["foregroundDeletion", "orphan"].contains(one));
        match propagation {
            Propagation::Background => {}
            Propagation::Foreground => list.push("foregroundDeletion"),
            Propagation::Orphan => list.push("orphan"),
        }
    }
    // A delete of these kinds orphans the Pods, unless it says otherwise.
    let is_decided =
        propagation.is_some() || list.contains(&"foregroundDeletion") || list.contains(&"orphan");
    if ["Job", "ReplicationController"].contains(&kind.built_in()) && !is_decided {
        list.push("orphan");
    }
    if begins_crd && !list.contains(&CRD_FINALIZER) {
        list.push(CRD_FINALIZER);
    }
    let list: Vec<Value> = list.into_iter().map(Value::from).collect();
    if list.is_empty() {
        object["metadata"].as_object_mut().map(|metadata| metadata.remove("finalizers"));
    } else {
        object["metadata"]["finalizers"] = list.into();
    }
}

/// The grace period in seconds. It is 0 for unscheduled Pods: only a kubelet can confirm that the containers stopped.
fn grace(kind: &Kind, object: &Value, deletion: &Deletion) -> u64 {
    if kind.built_in() != "Pod" || !object["spec"]["nodeName"].is_string() {
        return 0;
    }
    let own = grace_secs(&object["spec"]["terminationGracePeriodSeconds"]);
    deletion.grace_secs.or(own).unwrap_or(POD_GRACE_SECS)
}

/// Sets the deletionTimestamp and the grace period.
fn mark(storage: &Storage, kind: &Kind, object: &mut Value, grace: u64) {
    let was_terminating = is_terminating(object);
    let metadata = &mut object["metadata"];
    metadata["deletionTimestamp"] = storage.clock.time_in(Duration::from_secs(grace)).into();
    match kind.built_in() {
        "Namespace" => object["status"]["phase"] = "Terminating".into(),
        "CustomResourceDefinition" => return served_kinds::mark_terminating(object, &storage.clock.time()),
        _ => metadata["deletionGracePeriodSeconds"] = grace.into(),
    }
    if kind.has_generation() && !was_terminating {
        let generation = object["metadata"]["generation"].as_u64().unwrap_or(0);
        object["metadata"]["generation"] = (generation + 1).into();
    }
}

/// A grace period. A negative one counts as one second: apiserver/pkg/registry/rest/delete.go.
pub(crate) fn grace_secs(value: &Value) -> Option<u64> {
    value.as_i64().map(|secs| u64::try_from(secs).unwrap_or(1))
}

fn check_preconditions(
    kind: &Kind,
    name: &str,
    before: &Value,
    deletion: &Deletion,
) -> Result<(), StatusError> {
    for (precondition, label, field, cause) in [
        (&deletion.uid, "UID", "uid", "deleted and then recreated"),
        (&deletion.resource_version, "ResourceVersion", "resourceVersion", "modified"),
    ] {
        let actual = before["metadata"][field].as_str().unwrap_or_default();
        if let Some(wanted) = precondition.as_ref().filter(|wanted| *wanted != actual) {
            let text = format!(
                "the {label} in the precondition ({wanted}) does not match the {label} in record ({actual}). The object \
                might have been {cause}"
            );
            return Err(StatusError::precondition(kind, name, &text));
        }
    }
    Ok(())
}

fn delete_instances(storage: &mut Storage, kind: &Kind, place: &Place, crd: &Value) {
    let mut deleting = crd.clone();
    served_kinds::mark_deleting(&mut deleting, &storage.clock.time());
    store(storage, kind, place, deleting);
    let kinds = storage.kinds.collections();
    for instance in storage.places(place.name()) {
        if let Some(kind) = kinds.get(&instance.collection) {
            // Ignore errors: the object may be terminating already.
            let _ = delete(storage, kind, &instance, &Deletion::default());
        }
    }
    finish_crd(storage, place.name());
}
