//! Evictions: a POST to `pods/NAME/eviction` deletes a Pod, unless its PodDisruptionBudget forbids that. `kubectl drain` does so.
//!
//! ```text
//! POST …/pods/web-0/eviction   {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "web-0"}}
//! 429 Cannot evict pod as it would violate the pod's disruption budget.
//! ```
//!
//! The rules are as in kube-apiserver (pkg/registry/core/pod/storage/eviction.go).

use serde_json::{Value, json};

use super::{change, disruption, rollout::is_ready};
use crate::{
    kinds::{Kind, Part, conditions::set_condition, metadata::is_terminating},
    status::StatusError,
    storage::{Place, Storage},
    verbs::delete::{self, Deletion},
};

/// Deletes a Pod if its budget has room, which this takes.
pub(crate) fn evict(
    storage: &mut Storage,
    kind: &Kind,
    place: &Place,
    eviction: &Value,
    deletion: &Deletion,
) -> Result<(), StatusError> {
    if eviction["metadata"]["name"] != *place.name() {
        return Err(StatusError::bad_request("name in URL does not match name in Eviction object"));
    }
    let pod = storage.get(place).ok_or_else(|| StatusError::not_found(kind, place.name()))?.clone();
    let is_disrupted = is_terminating(&pod)
        || matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed" | "Pending"));
    let budgets = if is_disrupted { Vec::new() } else { disruption::budgets_of(storage, &pod) };
    if budgets.len() > 1 {
        let text = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
        return Err(StatusError::new(500, "", text, None));
    }
    if let Some((place, budget)) =
        budgets.first().and_then(|place| Some((place, storage.get(place)?.clone())))
        && !spares_budget(&budget, &pod)
    {
        take(storage, place, &budget, deletion)?;
    }
    if !deletion.dry_run {
        let now = storage.clock.time();
        change(storage, place, Part::Status, |pod| {
            let message = "Eviction API: evicting";
            set_condition(pod, "DisruptionTarget", "True", "EvictionByEvictionAPI", message, &now);
        });
    }
    delete::delete(storage, kind, place, deletion).map(|_| ())
}

/// Whether a Pod that is not ready may go, because it does not count as healthy.
fn spares_budget(budget: &Value, pod: &Value) -> bool {
    let count = |field: &str| budget["status"][field].as_i64().unwrap_or_default();
    let is_met = count("desiredHealthy") > 0 && count("currentHealthy") >= count("desiredHealthy");
    !is_ready(pod) && (budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow" || is_met)
}

/// Lowers the disruptions that a budget allows, until its controller counts the Pods again.
fn take(
    storage: &mut Storage,
    place: &Place,
    budget: &Value,
    deletion: &Deletion,
) -> Result<(), StatusError> {
    let (name, status) = (place.name(), &budget["status"]);
    let count = |field: &str| status[field].as_i64().unwrap_or_default();
    let refused = |message: String, retry_after_secs: u64| {
        let mut details = json!({"causes": [{"reason": "DisruptionBudget", "message": message}]});
        if retry_after_secs > 0 {
            details["retryAfterSeconds"] = retry_after_secs.into();
        }
        let text = "Cannot evict pod as it would violate the pod's disruption budget.";
        Err(StatusError::new(429, "TooManyRequests", text, Some(details)))
    };
    if count("observedGeneration") < budget["metadata"]["generation"].as_i64().unwrap_or_default() {
        return refused(format!("The disruption budget {name} is still being processed by the server."), 10);
    }
    let (allowed, healthy, desired) =
        (count("disruptionsAllowed"), count("currentHealthy"), count("desiredHealthy"));
    if allowed == 0 {
        let message = if healthy <= desired {
            format!("The disruption budget {name} needs {desired} healthy pods and has {healthy} currently")
        } else {
            format!("The disruption budget {name} does not allow evicting pods currently")
        };
        return refused(message, 0);
    }
    if !deletion.dry_run {
        change(storage, place, Part::Status, |budget| {
            budget["status"]["disruptionsAllowed"] = (allowed - 1).into();
        });
    }
    Ok(())
}
