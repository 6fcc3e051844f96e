//! Stores a status that kube-apiserver itself writes: the conditions of a CRD, and what a quota counts.

use serde_json::Value;

use crate::{
    apply::managed_fields::{self, Manager},
    kinds::Kind,
    storage::{Place, Storage},
};

/// Stores an object whose status has changed. Its writer is the server, and not the client whose request it handles.
pub(crate) fn put_status(storage: &mut Storage, kind: &Kind, place: &Place, mut object: Value) {
    let (before, now) = (storage.get(place).cloned(), storage.clock.time());
    let server = Manager { name: "kube-apiserver".to_owned(), applies: false, subresource: "status" };
    let tracked = managed_fields::track(kind, before.as_deref(), &mut object, Value::Null, &server, &now);
    tracked.expect("no webhook converts built-in kinds");
    let client = storage.writer.take();
    storage.put(place, object);
    storage.writer = client;
}
