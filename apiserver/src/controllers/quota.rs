//! ResourceQuotas: their status, from which admission takes the limits.

use serde_json::{Value, json};

use super::change;
use crate::{
    admission::quotas::{counted_by, used},
    kinds::Part,
    storage::{Change, Place, Storage},
};

const QUOTAS: &str = "resourcequotas";

/// The quotas of the namespace of an object that count objects of its kind.
pub(crate) fn quotas_of(storage: &Storage, place: &Place) -> Vec<Place> {
    let mut all = storage.places_in(QUOTAS, place.namespace().unwrap_or_default());
    let counts = |quota: &Value| counted_by(quota).any(|(_, collection)| collection == place.collection);
    all.retain(|one| storage.get(one).is_some_and(|quota| counts(quota)));
    all
}

/// Whether a quota may count another amount after a change. Of Pods, not after each report of the kubelet.
pub(crate) fn may_count(collection: &str, change: &Change) -> bool {
    let (Some(before), Some(after)) = (&change.before, &change.after) else { return true };
    match collection {
        "persistentvolumeclaims" | "services" => true,
        "pods" => before["spec"] != after["spec"] || before["status"]["phase"] != after["status"]["phase"],
        _ => false,
    }
}

/// Reconciles a quota: counts what its namespace uses. What another controller counts stays.
pub(crate) fn quota(storage: &mut Storage, place: &Place, quota: &Value) {
    let hard = quota["spec"]["hard"].clone();
    let used = used(storage, quota);
    let mut counts = json!({});
    for resource in hard.as_object().into_iter().flatten().map(|(resource, _)| resource) {
        let count = used.get(resource.as_str()).map(|count| count.to_string().into());
        let count = count.unwrap_or_else(|| quota["status"]["used"][resource].clone());
        if !count.is_null() {
            counts[resource] = count;
        }
    }
    change(storage, place, Part::Status, |quota| {
        quota["status"] = json!({"hard": hard, "used": counts});
    });
}
