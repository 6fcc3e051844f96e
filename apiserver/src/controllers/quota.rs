//! ResourceQuotas: their status, from which admission takes the limits.

use serde_json::{Value, json};

use super::change;
use crate::{
    admission::plugins::used,
    kinds::Part,
    storage::{Place, Storage},
};

const QUOTAS: &str = "resourcequotas";

/// The quotas of the namespace of an object.
pub(crate) fn quotas_of(storage: &Storage, place: &Place) -> Vec<Place> {
    let of_namespace = |quota: &Place| quota.namespace() == place.namespace();
    storage.places(QUOTAS).into_iter().filter(of_namespace).collect()
}

/// Reconciles a quota: counts what its namespace uses. What this server does not count has only a limit.
pub(crate) fn quota(storage: &mut Storage, place: &Place, quota: &Value) {
    let hard = quota["spec"]["hard"].clone();
    let mut counts = json!({});
    for resource in hard.as_object().into_iter().flatten().map(|(resource, _)| resource) {
        if let Some(count) = used(storage, place.namespace().unwrap_or_default(), resource) {
            counts[resource] = count.to_string().into();
        }
    }
    change(storage, place, Part::Status, |quota| {
        quota["status"] = json!({"hard": hard, "used": counts});
    });
}
