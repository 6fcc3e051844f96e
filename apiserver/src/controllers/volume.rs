//! PersistentVolumeClaims and PersistentVolumes: a claim is bound to a volume that fits, or to a new one of its StorageClass.
//!
//! The class `standard` is the default, binds at once, and can expand its volumes. Any class provisions here, whatever its
//! provisioner, except for `kubernetes.io/no-provisioner`. A claim with the annotation `listwatch/simulate: pending` is never bound, and
//! its Pods wait.

use std::sync::Arc;

use listwatch_formats::quantity::quantity;
use serde_json::{Value, json};

use super::{change, delete, make, record, record_warning, rollout::name, simulation, uid};
use crate::{
    kinds::{
        Part,
        defaults::CLAIM_FINALIZER,
        field_checks::{each, text},
        metadata::is_terminating,
    },
    storage::{Place, Storage},
    verbs::delete::Deletion,
};

const CLAIMS: &str = "persistentvolumeclaims";
const VOLUMES: &str = "persistentvolumes";
const CONTROLLER: &str = "persistentvolume-controller";

/// Creates the default StorageClass.
pub(crate) fn make_class(storage: &mut Storage) {
    let metadata =
        json!({"name": "standard", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}});
    let class =
        json!({"metadata": metadata, "provisioner": "listwatch/simulated", "allowVolumeExpansion": true});
    make(storage, "storage.k8s.io", "storageclasses", None, class);
}

fn class_of(object: &Value) -> &str {
    text(&object["spec"]["storageClassName"])
}

/// The claims that are not bound.
pub(crate) fn waiting_claims(storage: &Storage) -> Vec<Place> {
    let claims = storage.collection(CLAIMS).into_iter().flat_map(|claims| &claims.objects);
    let waiting = claims.filter(|(_, claim)| claim["status"]["phase"] == "Pending");
    waiting.map(|(key, _)| Place { collection: CLAIMS.to_owned(), key: key.clone() }).collect()
}

/// The claim of a volume, which takes over some of its fields.
pub(crate) fn claim_of(volume: &Value) -> Option<Place> {
    let reference = &volume["spec"]["claimRef"];
    Some(Place::new(CLAIMS, Some(reference["namespace"].as_str()?), reference["name"].as_str()?))
}

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
    let Some(volume) = claim["spec"]["volumeName"].as_str() else {
        release(storage, place);
        if let Some(volume) = fitting(storage, claim).or_else(|| provision(storage, place, claim)) {
            change(storage, place, Part::Main, |claim| {
                for step in ["bind-completed", "bound-by-controller"] {
                    claim["metadata"]["annotations"][format!("pv.kubernetes.io/{step}")] = "yes".into();
                }
                claim["spec"]["volumeName"] = volume.into();
            });
        }
        return;
    };
    let volume_place = Place::new(VOLUMES, None, volume);
    let Some(volume) = storage.get(&volume_place).cloned() else { return };
    if !volume["spec"]["claimRef"].is_null() && !is_for(&volume, claim) {
        return;
    }
    let requested = claim["spec"]["resources"]["requests"]["storage"].clone();
    let is_dynamic = !volume["metadata"]["annotations"]["pv.kubernetes.io/provisioned-by"].is_null();
    let reference = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": place.name(),
        "namespace": place.namespace(), "uid": uid(claim)});
    change(storage, &volume_place, Part::Main, |volume| {
        if volume["spec"]["claimRef"].is_null() {
            volume["metadata"]["annotations"]["pv.kubernetes.io/bound-by-controller"] = "yes".into();
        }
        if volume["spec"]["claimRef"]["uid"] != reference["uid"] {
            volume["spec"]["claimRef"] = reference;
        }
        if is_dynamic {
            volume["spec"]["capacity"]["storage"] = requested;
        }
    });
    set_phase(storage, &volume_place, "Bound");
    // A claim can name its volume itself.
    change(storage, place, Part::Main, |claim| {
        claim["metadata"]["annotations"]["pv.kubernetes.io/bind-completed"] = "yes".into();
    });
    let Some(volume) = storage.get(&volume_place).cloned() else { return };
    change(storage, place, Part::Status, |claim| {
        claim["status"]["phase"] = "Bound".into();
        claim["status"]["accessModes"] = volume["spec"]["accessModes"].clone();
        claim["status"]["capacity"] = volume["spec"]["capacity"].clone();
        claim["status"]["currentVolumeAttributesClassName"] =
            volume["spec"]["volumeAttributesClassName"].clone();
    });
}

/// Whether a volume is bound to a claim, or reserved for it.
fn is_for(volume: &Value, claim: &Value) -> bool {
    let (reference, metadata) = (&volume["spec"]["claimRef"], &claim["metadata"]);
    let is_same = |field: &str| reference[field] == metadata[field];
    is_same("namespace") && is_same("name") && (reference["uid"].is_null() || is_same("uid"))
}

/// The smallest volume that an administrator has created, and that fits a claim.
fn fitting(storage: &Storage, claim: &Value) -> Option<String> {
    let size = |capacity: &Value| quantity(&capacity["storage"]).unwrap_or(0.0);
    let (spec, wanted) = (&claim["spec"], size(&claim["spec"]["resources"]["requests"]));
    let fits = |volume: &&Arc<Value>| {
        let of_volume = &volume["spec"];
        let has_mode = |mode| each(&of_volume["accessModes"]).any(|one| one == mode);
        (of_volume["claimRef"].is_null() && volume["status"]["phase"] == "Available" || is_for(volume, claim))
            && !is_terminating(volume)
            && class_of(volume) == class_of(claim)
            && of_volume["volumeMode"] == spec["volumeMode"]
            && each(&spec["accessModes"]).all(has_mode)
            && size(&of_volume["capacity"]) >= wanted
    };
    let volumes = storage.collection(VOLUMES).into_iter().flat_map(|volumes| volumes.objects.values());
    let smallest = volumes.filter(fits).min_by(|a, b| {
        let [a, b] = [a, b].map(|volume| size(&volume["spec"]["capacity"]));
        a.total_cmp(&b)
    });
    smallest.map(|volume| name(volume).to_owned())
}

/// Creates a volume for a claim, by its class. An Event says why there is none.
fn provision(storage: &mut Storage, place: &Place, claim: &Value) -> Option<String> {
    let class = Place::new("storageclasses.storage.k8s.io", None, class_of(claim));
    let Some(class) = storage.get(&class).cloned() else {
        let (reason, message) = match class.name() {
            "" => {
                let message = "no persistent volumes available for this claim and no storage class is set";
                ("FailedBinding", message.to_owned())
            }
            name => ("ProvisioningFailed", format!("storageclass.storage.k8s.io {name:?} not found")),
        };
        record_warning(storage, claim, CONTROLLER, reason, &message);
        return None;
    };
    let waits = class["volumeBindingMode"] == "WaitForFirstConsumer";
    if class["provisioner"] == "kubernetes.io/no-provisioner" || (waits && !has_pod(storage, place, |_| true))
    {
        return None;
    }
    change(storage, place, Part::Main, |claim| {
        for group in ["volume.beta.kubernetes.io", "volume.kubernetes.io"] {
            claim["metadata"]["annotations"][format!("{group}/storage-provisioner")] =
                class["provisioner"].clone();
        }
    });
    let (spec, volume) = (&claim["spec"], format!("pvc-{}", uid(claim)));
    let annotations = json!({"pv.kubernetes.io/provisioned-by": class["provisioner"]});
    let object = json!({"metadata": {"name": volume, "annotations": annotations}, "spec": {
        "capacity": {"storage": spec["resources"]["requests"]["storage"]}, "accessModes": spec["accessModes"],
        "volumeMode": spec["volumeMode"], "storageClassName": class["metadata"]["name"],
        "persistentVolumeReclaimPolicy": class["reclaimPolicy"],
        "csi": {"driver": class["provisioner"], "volumeHandle": volume},
        "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": place.name(),
            "namespace": place.namespace(), "uid": uid(claim)}}});
    make(storage, "", VOLUMES, None, object)?;
    let message = format!("Successfully provisioned volume {volume}");
    record(storage, claim, CONTROLLER, "ProvisioningSucceeded", &message);
    Some(volume)
}

fn set_phase(storage: &mut Storage, volume: &Place, phase: &str) {
    let now = storage.clock.time();
    change(storage, volume, Part::Status, |volume| {
        if volume["status"]["phase"] != phase {
            volume["status"] = json!({"phase": phase, "lastPhaseTransitionTime": now});
        }
    });
}

/// Reconciles a volume: without a claim it is available. A deleted one goes unless it is bound.
pub(crate) fn volume(storage: &mut Storage, place: &Place, volume: &Value) {
    let is_bound = volume["status"]["phase"] == "Bound";
    if is_terminating(volume) {
        if !is_bound {
            change(storage, place, Part::Main, |volume| volume["metadata"]["finalizers"] = Value::Null);
        }
    } else if volume["spec"]["claimRef"].is_null() && !is_bound {
        set_phase(storage, place, "Available");
    }
}

/// Releases the volume of a claim that is gone, also if there is a new one of its name: deletes it, if the policy is so.
pub(crate) fn release(storage: &mut Storage, claim: &Place) {
    let current = storage.get(claim).map(|claim| claim["metadata"]["uid"].clone()).unwrap_or_default();
    let key = |volume: &Value| {
        let reference = &volume["spec"]["claimRef"];
        format!("{}/{}", text(&reference["namespace"]), text(&reference["name"]))
    };
    let volumes = storage.collection(VOLUMES).into_iter().flat_map(|volumes| volumes.objects.values());
    let of_claim = |volume: &&Arc<Value>| {
        let is_other = volume["spec"]["claimRef"]["uid"] != current;
        key(volume) == claim.key && volume["status"]["phase"] == "Bound" && is_other
    };
    let volumes: Vec<Arc<Value>> = volumes.filter(of_claim).cloned().collect();
    for volume in volumes {
        let place = Place::new(VOLUMES, None, name(&volume));
        set_phase(storage, &place, "Released");
        if volume["spec"]["persistentVolumeReclaimPolicy"] == "Delete" {
            delete(storage, &place, &Deletion::default());
        }
    }
}

/// The names of the claims that are volumes of a Pod.
fn claim_names(pod: &Value) -> impl Iterator<Item = &str> {
    let volumes = pod["spec"]["volumes"].as_array().into_iter().flatten();
    volumes.filter_map(|volume| volume["persistentVolumeClaim"]["claimName"].as_str())
}

/// The places of the claims that are volumes of a Pod.
pub(crate) fn claims_of(pod: &Value) -> impl Iterator<Item = Place> {
    let namespace = pod["metadata"]["namespace"].as_str();
    claim_names(pod).map(move |name| Place::new(CLAIMS, namespace, name))
}

/// Whether a scheduled Pod uses a claim.
fn is_used(storage: &Storage, place: &Place) -> bool {
    has_pod(storage, place, |pod| pod["spec"]["nodeName"].is_string())
}

/// Whether one of these Pods has a claim as a volume.
fn has_pod(storage: &Storage, place: &Place, counts: impl Fn(&Value) -> bool) -> bool {
    let mut pods = storage.collection("pods").into_iter().flat_map(|pods| pods.objects.values());
    pods.any(|pod| {
        counts(pod)
            && pod["metadata"]["namespace"].as_str() == place.namespace()
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
