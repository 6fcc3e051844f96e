//! ResourceQuotas: their status, from which admission takes the limits.

use serde_json::{Value, json};

use super::change;
use crate::{
    admission::quotas::used,
    kinds::Part,
    storage::{Place, Storage},
};

const QUOTAS: &str = "resourcequotas";

/// The quotas of the namespace of an object.
pub(crate) fn quotas_of(storage: &Storage, place: &Place) -> Vec<Place> {
    let of_namespace = |quota: &Place| quota.namespace() == place.namespace();
    storage.places(QUOTAS).into_iter().filter(of_namespace).collect()
}

/// Reconciles a quota: counts what its namespace uses. What another controller counts stays.
pub(crate) fn quota(storage: &mut Storage, place: &Place, quota: &Value) {
    let hard = quota["spec"]["hard"].clone();
    let mut counts = json!({});
    for resource in hard.as_object().into_iter().flatten().map(|(resource, _)| resource) {
        let count = used(storage, quota, resource).map(|count| count.to_string().into());
        let count = count.unwrap_or_else(|| quota["status"]["used"][resource].clone());
        if !count.is_null() {
            counts[resource] = count;
        }
    }
    change(storage, place, Part::Status, |quota| {
        quota["status"] = json!({"hard": hard, "used": counts});
    });
}
