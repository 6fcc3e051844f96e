//! Delete: at once, or step by step if a finalizer, a grace period or a dependent holds the object.
//!
//! ```text
//! DELETE …/widgets/w1   {"propagationPolicy": "Foreground", "preconditions": {"uid": "00e4f4f5-…"}}
//! ```
//!
//! What is held gets a `deletionTimestamp` and goes with the write that takes the last finalizer away; see `write.rs`.

use std::{sync::Arc, time::Duration};

use serde_json::Value;

use super::{
    crd,
    kinds::Kind,
    refusal::Refusal,
    storage::{Place, Storage},
    write::{finalizers, holds_nothing, is_terminating, remove, store},
};

/// Who deletes the dependents.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Propagation {
    Background,
    Foreground,
    Orphan,
}

/// `DeleteOptions`.
#[derive(Debug, Default)]
pub(super) struct Deletion {
    /// `None`: as finalizers of the object say, or else in the background.
    pub(super) propagation: Option<Propagation>,
    /// Asked for in the old way, `orphanDependents: false`: what is not gone at once is 202.
    pub(super) is_old_cascade: bool,
    pub(super) uid: Option<String>,
    pub(super) resource_version: Option<String>,
    pub(super) grace_secs: Option<u64>,
    pub(super) dry_run: bool,
}

/// What a delete did.
pub(super) enum Deleted {
    /// It is gone; this is what it was.
    Gone(Arc<Value>),
    /// It is on its way out, but something holds it.
    Terminating(Arc<Value>),
}

/// How long a Pod may take to stop, if it does not say.
const POD_GRACE_SECS: u64 = 30;

/// Namespaces that cannot be deleted.
const IMMORTAL: [&str; 3] = ["default", "kube-system", "kube-public"];

/// Delete an object, or begin to.
pub(super) fn delete(
    storage: &mut Storage,
    kind: &Kind,
    place: &Place,
    deletion: &Deletion,
) -> Result<Deleted, Refusal> {
    let name = place.name();
    if kind.built_in() == "Namespace" && IMMORTAL.contains(&name) {
        return Err(Refusal::forbidden(kind, name, "this namespace may not be deleted"));
    }
    let Some(before) = storage.get(place).cloned() else { return Err(Refusal::not_found(kind, name)) };
    check_preconditions(kind, name, &before, deletion)?;

    let mut after = (*before).clone();
    let grace = grace(kind, &before, deletion);
    let shorter = before["metadata"]["deletionGracePeriodSeconds"].as_u64().is_some_and(|was| grace < was);
    let begins = !is_terminating(&before) || shorter;
    // Only of these two a second delete does not ask anew what becomes of the dependents.
    if begins || !["Namespace", "Pod"].contains(&kind.built_in()) {
        hold(kind, &mut after, deletion.propagation);
    }
    if begins {
        mark(storage, kind, &mut after, grace);
    }
    if holds_nothing(kind, &after) {
        // What can be deleted in steps is shown as in the last one.
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
    if kind.built_in() == "CustomResourceDefinition" {
        delete_instances(storage, kind, place, &after);
    }
    Ok(Deleted::Terminating(after))
}

/// Sets the finalizers that a propagation is made of, and that of a CRD.
fn hold(kind: &Kind, object: &mut Value, propagation: Option<Propagation>) {
    let mut list = finalizers(object);
    if let Some(propagation) = propagation {
        list.retain(|one| !["foregroundDeletion", "orphan"].contains(one));
        match propagation {
            Propagation::Background => {}
            Propagation::Foreground => list.push("foregroundDeletion"),
            Propagation::Orphan => list.push("orphan"),
        }
    }
    // A CRD is always held for a moment, so that its instances can go first.
    if kind.built_in() == "CustomResourceDefinition" && !list.contains(&CRD_FINALIZER) {
        list.push(CRD_FINALIZER);
    }
    let list: Vec<Value> = list.into_iter().map(Value::from).collect();
    if list.is_empty() {
        object["metadata"].as_object_mut().map(|metadata| metadata.remove("finalizers"));
    } else {
        object["metadata"]["finalizers"] = list.into();
    }
}

/// How long it may take, in seconds. Only a kubelet can say that the containers of a Pod have stopped.
fn grace(kind: &Kind, object: &Value, deletion: &Deletion) -> u64 {
    if kind.built_in() != "Pod" || !object["spec"]["nodeName"].is_string() {
        return 0;
    }
    let own = grace_secs(&object["spec"]["terminationGracePeriodSeconds"]);
    deletion.grace_secs.or(own).unwrap_or(POD_GRACE_SECS)
}

/// Says that an object is to go, in so many seconds.
fn mark(storage: &Storage, kind: &Kind, object: &mut Value, grace: u64) {
    let was_terminating = is_terminating(object);
    let metadata = &mut object["metadata"];
    metadata["deletionTimestamp"] = storage.clock.time_in(Duration::from_secs(grace)).into();
    match kind.built_in() {
        "Namespace" => object["status"]["phase"] = "Terminating".into(),
        "CustomResourceDefinition" => return crd::mark_terminating(object, &storage.clock.time()),
        _ => metadata["deletionGracePeriodSeconds"] = grace.into(),
    }
    if kind.has_generation() && !was_terminating {
        let generation = object["metadata"]["generation"].as_u64().unwrap_or(0);
        object["metadata"]["generation"] = (generation + 1).into();
    }
}

/// A negative one counts as a second: apiserver/pkg/registry/rest/delete.go.
pub(super) fn grace_secs(value: &Value) -> Option<u64> {
    value.as_i64().map(|secs| u64::try_from(secs).unwrap_or(1))
}

/// Keeps a CRD until its last instance is gone.
const CRD_FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";

fn check_preconditions(kind: &Kind, name: &str, before: &Value, deletion: &Deletion) -> Result<(), Refusal> {
    let metadata = &before["metadata"];
    let real = |field: &str| metadata[field].as_str().unwrap_or_default().to_owned();
    if let Some(uid) = &deletion.uid
        && *uid != real("uid")
    {
        let text = format!(
            "the UID in the precondition ({uid}) does not match the UID in record ({}). The object might have been \
            deleted and then recreated",
            real("uid")
        );
        return Err(Refusal::precondition(kind, name, &text));
    }
    if let Some(version) = &deletion.resource_version
        && *version != real("resourceVersion")
    {
        let text = format!(
            "the ResourceVersion in the precondition ({version}) does not match the ResourceVersion in record ({}). \
            The object might have been modified",
            real("resourceVersion")
        );
        return Err(Refusal::precondition(kind, name, &text));
    }
    Ok(())
}

fn instances_of(storage: &Storage, crd: &Value) -> Vec<Place> {
    let collection = crd["metadata"]["name"].as_str().unwrap_or_default();
    let objects = storage.collection(collection).map(|collection| collection.objects.keys());
    objects
        .into_iter()
        .flatten()
        .map(|key| Place { collection: collection.to_owned(), key: key.clone() })
        .collect()
}

fn has_instances(storage: &Storage, crd: &Value) -> bool {
    !instances_of(storage, crd).is_empty()
}

fn delete_instances(storage: &mut Storage, kind: &Kind, place: &Place, crd: &Value) {
    let mut deleting = crd.clone();
    crd::mark_deleting(&mut deleting, &storage.clock.time());
    store(storage, kind, place, deleting);
    let kinds = storage.kinds.collections();
    for instance in instances_of(storage, crd) {
        if let Some(kind) = kinds.get(&instance.collection) {
            // One that is already going is no failure.
            let _ = delete(storage, kind, &instance, &Deletion::default());
        }
    }
    finish_crd(storage, place.name());
}

/// Let a terminating CRD go when its last instance has gone.
pub(super) fn finish_crd(storage: &mut Storage, name: &str) {
    let kind = storage.kinds.built_in("apiextensions.k8s.io", "customresourcedefinitions");
    let place = Place::new(kind.stored_in(), None, name);
    let Some(crd) = storage.get(&place).cloned() else { return };
    if !is_terminating(&crd) || has_instances(storage, &crd) || finalizers(&crd) != [CRD_FINALIZER] {
        return;
    }
    remove(storage, &kind, &place);
}
