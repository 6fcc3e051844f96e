//! The last step of a write or a delete: puts an object into the storage, or removes it. A CRD changes the kinds that are served. The
//! last custom resource of a CRD that is being deleted ends the CRD.

use std::sync::Arc;

use serde_json::Value;

use crate::{
    kinds::{
        Kind, Source,
        metadata::{finalizers, is_terminating},
    },
    status::StatusError,
    storage::{Place, Storage},
    verbs::served_kinds,
};

/// Holds a CRD until its last custom resource is gone.
pub(crate) const CRD_FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";

pub(crate) fn store(storage: &mut Storage, kind: &Kind, place: &Place, object: Value) -> Arc<Value> {
    let before = storage.get(place).cloned();
    let stored = storage.put(place, object);
    if kind.built_in() == "CustomResourceDefinition" {
        served_kinds::written(storage, place, before.as_deref());
    }
    stored
}

pub(crate) fn remove(storage: &mut Storage, kind: &Kind, place: &Place) {
    let before = storage.get(place).cloned();
    storage.remove(place);
    if kind.built_in() == "CustomResourceDefinition" {
        served_kinds::written(storage, place, before.as_deref());
    }
    if let Source::Custom(custom) = &kind.source {
        finish_crd(storage, &custom.definition);
    }
}

/// Removes the finalizer of a terminating CRD when its last custom resource is gone. Its own finalizers still hold it.
pub(crate) fn finish_crd(storage: &mut Storage, name: &str) {
    let kind = storage.kinds.built_in("apiextensions.k8s.io", "customresourcedefinitions");
    let place = Place::new(kind.stored_in(), None, name);
    let Some(crd) = storage.get(&place).cloned() else { return };
    let mut list = finalizers(&crd);
    if !is_terminating(&crd) || !storage.places(name).is_empty() || !list.contains(&CRD_FINALIZER) {
        return;
    }
    list.retain(|one| *one != CRD_FINALIZER);
    if list.is_empty() {
        return remove(storage, &kind, &place);
    }
    let mut held = (*crd).clone();
    held["metadata"]["finalizers"] = list.into();
    served_kinds::mark_deleted(&mut held, &storage.clock.time());
    store(storage, &kind, &place, held);
}

/// Converts a custom resource to the stored version, of which the answer to the write is a view.
pub(crate) fn to_storage(kind: &Kind, object: &mut Value) -> Result<(), StatusError> {
    if let Source::Custom(custom) = &kind.source {
        custom.to_storage(object)?;
        kind.view(object)?;
    }
    Ok(())
}
