//! The garbage collector: objects whose owners are gone go too.
//!
//! An owner is known by its uid. See <https://kubernetes.io/docs/concepts/architecture/garbage-collection/>.

use serde_json::{Value, json};

use super::{
    super::{
        delete::{Deletion, Propagation},
        storage::{Place, Storage},
        write::{Part, is_terminating},
    },
    change, delete, owner_place, owners, uid,
};

/// What became of an owner.
#[derive(Clone, Copy, PartialEq)]
enum Owner {
    /// It is there, or we cannot know: nothing is ever deleted on a guess.
    Solid,
    /// It is gone, or another one has its name.
    Dangling,
    /// It is deleted in the foreground, and waits for its dependents.
    Waiting,
}

/// Look at one object: as an owner that is being deleted, and as a dependent.
pub(super) fn collect(storage: &mut Storage, place: &Place) {
    let Some(object) = storage.get(place).cloned() else { return };
    if is_terminating(&object) {
        if has_finalizer(&object, "orphan") {
            orphan_dependents(storage, place, &object);
        }
        if has_finalizer(&object, "foregroundDeletion") {
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
    // What an owner in the foreground waits for takes its own dependents along in the same way.
    let dependents = storage.dependents(uid(&object));
    let foreground = states.contains(&Owner::Waiting) && !dependents.is_empty();
    // In a circle each would wait for the next one, so one lets go. See attemptToDeleteItem of the real collector.
    if foreground && dependents.iter().any(|one| storage.get(one).is_some_and(|dependent| waits(dependent))) {
        change(storage, place, Part::Main, |object| {
            for owner in object["metadata"]["ownerReferences"].as_array_mut().into_iter().flatten() {
                owner["blockOwnerDeletion"] = false.into();
            }
        });
    }
    let propagation = foreground.then_some(Propagation::Foreground);
    let uid = Some(uid(&object).to_owned());
    delete(storage, place, &Deletion { propagation, uid, ..Deletion::default() });
}

fn state(storage: &Storage, place: &Place, owner: &Value) -> Owner {
    let Some(owner_place) = owner_place(storage, place, owner) else { return Owner::Solid };
    match storage.get(&owner_place) {
        Some(found) if owner["uid"] == found["metadata"]["uid"] => {
            if waits(found) {
                Owner::Waiting
            } else {
                Owner::Solid
            }
        }
        Some(_) | None => Owner::Dangling,
    }
}

/// Whether an object is deleted in the foreground.
fn waits(object: &Value) -> bool {
    is_terminating(object) && has_finalizer(object, "foregroundDeletion")
}

fn has_finalizer(object: &Value, name: &str) -> bool {
    object["metadata"]["finalizers"].as_array().into_iter().flatten().any(|one| one == name)
}

fn drop_finalizer(storage: &mut Storage, place: &Place, name: &str) {
    change(storage, place, Part::Main, |object| {
        if let Some(list) = object["metadata"]["finalizers"].as_array_mut() {
            list.retain(|one| one != name);
        }
    });
}

/// `--cascade=orphan`: the dependents forget their owner, then it may go.
fn orphan_dependents(storage: &mut Storage, place: &Place, owner: &Value) {
    for dependent in storage.dependents(uid(owner)) {
        change(storage, &dependent, Part::Main, |object| {
            let kept: Vec<Value> = owners(object)
                .filter(|reference| reference["uid"] != owner["metadata"]["uid"])
                .cloned()
                .collect();
            object["metadata"]["ownerReferences"] = json!(kept);
        });
    }
    drop_finalizer(storage, place, "orphan");
}

/// `--cascade=foreground`: the dependents go first. Only those that block are waited for.
fn delete_dependents(storage: &mut Storage, place: &Place, owner: &Value) {
    for dependent in storage.dependents(uid(owner)) {
        collect_dependent(storage, &dependent);
    }
    let blocks = |dependent: &Place| {
        storage.get(dependent).is_some_and(|object| {
            owners(object).any(|reference| {
                reference["uid"] == owner["metadata"]["uid"] && reference["blockOwnerDeletion"] == true
            })
        })
    };
    if !storage.dependents(uid(owner)).iter().any(blocks) {
        drop_finalizer(storage, place, "foregroundDeletion");
    }
}

fn collect_dependent(storage: &mut Storage, dependent: &Place) {
    let terminating = storage.get(dependent).is_none_or(|object| is_terminating(object));
    if !terminating {
        collect(storage, dependent);
    }
}
