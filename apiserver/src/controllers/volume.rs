//! PersistentVolumeClaims: bound at once, as by a storage class that binds immediately and can expand its volumes.
//!
//! There are no PersistentVolumes. A claim with the annotation `listwatch/simulate: pending` is never bound, and its
//! Pods wait.

use serde_json::Value;

use super::{change, record, rollout::name, simulation, uid};
use crate::{
    kinds::{Part, defaults::CLAIM_FINALIZER, metadata::is_terminating},
    storage::{Place, Storage},
};

/// Reconciles a claim: binds it, expands it, or lets it go.
pub(crate) fn claim(storage: &mut Storage, place: &Place, claim: &Value) {
    if is_terminating(claim) {
        if !is_used(storage, place) {
            change(storage, place, Part::Main, |claim| {
                if let Some(finalizers) = claim["metadata"]["finalizers"].as_array_mut() {
                    finalizers.retain(|one| one != CLAIM_FINALIZER);
                }
            });
        }
        return;
    }
    if simulation(claim) == "pending" && claim["status"]["phase"] == "Pending" {
        return;
    }
    if claim["spec"]["volumeName"].is_null() {
        let volume = format!("pvc-{}", uid(claim));
        change(storage, place, Part::Main, |claim| {
            for step in ["bind-completed", "bound-by-controller"] {
                claim["metadata"]["annotations"][format!("pv.kubernetes.io/{step}")] = "yes".into();
            }
            claim["spec"]["volumeName"] = volume.as_str().into();
        });
        let message = format!("Successfully provisioned volume {volume}");
        record(storage, claim, "persistentvolume-controller", "ProvisioningSucceeded", &message);
        return;
    }
    change(storage, place, Part::Status, |claim| {
        claim["status"]["phase"] = "Bound".into();
        claim["status"]["accessModes"] = claim["spec"]["accessModes"].clone();
        claim["status"]["capacity"]["storage"] = claim["spec"]["resources"]["requests"]["storage"].clone();
    });
}

/// The names of the claims that are volumes of a Pod.
fn claim_names(pod: &Value) -> impl Iterator<Item = &str> {
    let volumes = pod["spec"]["volumes"].as_array().into_iter().flatten();
    volumes.filter_map(|volume| volume["persistentVolumeClaim"]["claimName"].as_str())
}

/// The places of the claims that are volumes of a Pod.
pub(crate) fn claims_of(pod: &Value) -> impl Iterator<Item = Place> {
    let namespace = pod["metadata"]["namespace"].as_str();
    claim_names(pod).map(move |name| Place::new("persistentvolumeclaims", namespace, name))
}

/// Whether a scheduled Pod uses a claim.
fn is_used(storage: &Storage, place: &Place) -> bool {
    let pods = storage.collection("pods").into_iter().flat_map(|pods| pods.objects.values());
    let mut scheduled = pods.filter(|pod| pod["spec"]["nodeName"].is_string());
    scheduled.any(|pod| {
        pod["metadata"]["namespace"].as_str() == place.namespace()
            && claim_names(pod).any(|name| name == place.name())
    })
}

/// The first claim of a Pod that is not bound, and the message of the scheduler.
pub(crate) fn unbound(storage: &Storage, pod: &Value) -> Option<(Place, String)> {
    for place in claims_of(pod) {
        let message = match storage.get(&place) {
            None => format!("persistentvolumeclaim {:?} not found", place.name()),
            Some(claim) if is_terminating(claim) => {
                format!("persistentvolumeclaim {:?} is being deleted", name(claim))
            }
            Some(claim) if claim["status"]["phase"] != "Bound" => {
                "pod has unbound immediate PersistentVolumeClaims".to_owned()
            }
            Some(_) => continue,
        };
        return Some((place, message));
    }
    None
}
