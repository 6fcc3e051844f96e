//! The garbage collector: deletes objects whose owners are gone, and does foreground and orphan deletion.
//!
//! Owners are identified by uid. See <https://kubernetes.io/docs/concepts/architecture/garbage-collection/>.

use serde_json::Value;

use super::{change, delete, owner_place, owners, record_warning_once, release, uid};
use crate::{
    kinds::{
        Part,
        field_checks::text,
        metadata::{finalizers, is_terminating},
    },
    storage::{Place, Storage},
    verbs::delete::{Deletion, Propagation},
};

/// The state of an owner.
#[derive(Clone, Copy, PartialEq)]
enum Owner {
    /// It exists, or its kind is unknown: in doubt, nothing is deleted.
    Solid,
    /// It is gone, or its name belongs to a new object.
    Dangling,
    /// It is in foreground deletion, and waits for its dependents.
    Waiting,
}

/// Processes one object: as an owner that is being deleted, and as a dependent.
pub(crate) fn collect(storage: &mut Storage, place: &Place) {
    let Some(object) = storage.get(place).cloned() else { return };
    if is_terminating(&object) {
        if finalizers(&object).contains(&"orphan") {
            orphan_dependents(storage, place, &object);
        }
        if finalizers(&object).contains(&"foregroundDeletion") {
            delete_dependents(storage, place, &object);
        }
    }
    let Some(object) = storage.get(place).cloned() else { return };
    if is_terminating(&object) {
        return;
    }
    let mut keep = Vec::new();
    let mut states = Vec::new();
    for owner in owners(&object) {
        let state = state(storage, place, owner);
        // An owner that is here is nowhere else. A dependent without a namespace has none to look into.
        if (state == Owner::Dangling || place.namespace().is_none()) && is_elsewhere(storage, owner) {
            report_elsewhere(storage, place, &object, owner);
        }
        if state == Owner::Solid {
            keep.push(owner.clone());
        }
        states.push(state);
    }
    if keep.len() == states.len() {
        return;
    }
    if !keep.is_empty() {
        change(storage, place, Part::Main, |object| object["metadata"]["ownerReferences"] = keep.into());
        return;
    }
    // A dependent of an owner in foreground deletion is also deleted in the foreground.
    let dependents = storage.dependents(uid(&object));
    let foreground = states.contains(&Owner::Waiting) && !dependents.is_empty();
    // Owners in a circle would wait for each other, so this one stops blocking. See attemptToDeleteItem in Kubernetes.
    if foreground && dependents.iter().any(|one| storage.get(one).is_some_and(|dependent| waits(dependent))) {
        change(storage, place, Part::Main, |object| {
            for owner in object["metadata"]["ownerReferences"].as_array_mut().into_iter().flatten() {
                owner["blockOwnerDeletion"] = false.into();
            }
        });
    }
    // Without a finalizer, a Job would orphan its Pods.
    let is_decided = finalizers(&object).iter().any(|one| ["orphan", "foregroundDeletion"].contains(one));
    let propagation = match foreground {
        true => Some(Propagation::Foreground),
        false => (!is_decided).then_some(Propagation::Background),
    };
    let uid = Some(uid(&object).to_owned());
    delete(storage, place, &Deletion { propagation, uid, ..Deletion::default() });
}

fn state(storage: &Storage, place: &Place, owner: &Value) -> Owner {
    let Some(owner_place) = owner_place(storage, place, owner) else { return Owner::Solid };
    match storage.get(&owner_place) {
        Some(found) if owner["uid"] != found["metadata"]["uid"] => Owner::Dangling,
        Some(found) if waits(found) => Owner::Waiting,
        Some(_) => Owner::Solid,
        None => Owner::Dangling,
    }
}

/// Whether an owner is in a namespace that is not its dependent's.
fn is_elsewhere(storage: &Storage, owner: &Value) -> bool {
    let kind = storage.kinds.by_kind(text(&owner["apiVersion"]), text(&owner["kind"]));
    let Some(kind) = kind.filter(|kind| kind.namespaced) else { return false };
    let mut all = storage.collection(&kind.stored_in()).into_iter().flat_map(|all| all.objects.values());
    all.any(|object| object["metadata"]["uid"] == owner["uid"])
}

fn report_elsewhere(storage: &mut Storage, place: &Place, dependent: &Value, owner: &Value) {
    let (namespace, of) = (place.namespace().unwrap_or_default(), |field: &str| text(&owner[field]));
    let message = format!(
        "ownerRef [{}/{}, namespace: {namespace}, name: {}, uid: {}] does not exist in namespace {namespace:?}",
        of("apiVersion"),
        of("kind"),
        of("name"),
        of("uid")
    );
    record_warning_once(
        storage,
        dependent,
        "garbage-collector-controller",
        "OwnerRefInvalidNamespace",
        &message,
    );
}

/// Whether an object is in foreground deletion.
fn waits(object: &Value) -> bool {
    is_terminating(object) && finalizers(object).contains(&"foregroundDeletion")
}

fn drop_finalizer(storage: &mut Storage, place: &Place, name: &str) {
    change(storage, place, Part::Main, |object| {
        if let Some(list) = object["metadata"]["finalizers"].as_array_mut() {
            list.retain(|one| one != name);
        }
    });
}

/// `--cascade=orphan`: removes the owner from its dependents, then its finalizer.
fn orphan_dependents(storage: &mut Storage, place: &Place, owner: &Value) {
    for dependent in storage.dependents(uid(owner)) {
        release(storage, &dependent, owner);
    }
    drop_finalizer(storage, place, "orphan");
}

/// `--cascade=foreground`: deletes the dependents first. The owner waits only for those with `blockOwnerDeletion`.
fn delete_dependents(storage: &mut Storage, place: &Place, owner: &Value) {
    for dependent in storage.dependents(uid(owner)) {
        if storage.get(&dependent).is_some_and(|object| !is_terminating(object)) {
            collect(storage, &dependent);
        }
    }
    let blocks =
        |reference: &Value| reference["uid"] == uid(owner) && reference["blockOwnerDeletion"] == true;
    let is_blocked =
        |dependent: &Place| storage.get(dependent).is_some_and(|object| owners(object).any(blocks));
    if !storage.dependents(uid(owner)).iter().any(is_blocked) {
        drop_finalizer(storage, place, "foregroundDeletion");
    }
}
