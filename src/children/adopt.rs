//! Adopts a child that has lost its owner, if a user asks for it by an annotation. A backup may be restored without
//! ownerReferences, as Velero does, and its owners have other uids.
//!
//! ```text
//! kubectl -n default annotate deployments/mws-web k8sobjects.gsa.com/adopt=true     # the owner's group
//! ```
//!
//! Without the annotation, nothing is adopted: a user may have removed the ownerReference, to keep the child after its owner is
//! deleted. The annotation is removed with the adoption, so a child that is released later is not adopted again. A kind
//! that leaves out its annotations cannot be adopted.

use serde_json::{Value, json};

use super::write;
use crate::resource::{ObjectMeta, OwnerReference, Resource};

/// The annotation of a child that an `O` may adopt. Its value is `true`.
fn annotation<O: Resource>() -> String {
    format!("{}/adopt", O::GROUP)
}

/// Whether an object that is not ours may be the child: it has the labels of the child and no controller.
pub(super) fn is_like<K: Resource>(desired: &K, live: &K) -> bool {
    let (labels, metadata) = (&desired.metadata().labels, live.metadata());
    metadata.controller().is_none()
        && !metadata.is_terminating()
        && !labels.is_empty()
        && labels.iter().all(|(key, value)| metadata.labels.get(key) == Some(value))
}

/// Whether a user asks for the adoption.
pub(super) fn is_asked<O: Resource>(live: &ObjectMeta) -> bool {
    live.annotations.get(&annotation::<O>()) == Some("true")
}

/// Makes an object with the annotation a child.
pub(super) fn operations<O: Resource>(owner: &O, live: &ObjectMeta) -> Vec<Value> {
    let reference = OwnerReference::controlled_by(owner);
    let owners = "/metadata/ownerReferences";
    let adopt = if live.owner_references.is_empty() {
        json!({"op": "add", "path": owners, "value": [reference]})
    } else {
        json!({"op": "add", "path": format!("{owners}/-"), "value": reference})
    };
    let annotation = format!("/metadata/annotations/{}", annotation::<O>().replace('/', "~1"));
    vec![adopt, json!({"op": "remove", "path": annotation})]
}

/// How a user asks for it.
pub(super) fn hint<O: Resource, K: Resource>(live: &ObjectMeta) -> String {
    let namespace = live.namespace.as_ref().map(|name| format!("-n {name} ")).unwrap_or_default();
    format!(
        "{} exists and has the labels of this {}, but no owner, as after the restore of a backup; \
         adopt it: kubectl {namespace}annotate {}/{} {}=true; or delete it",
        write::name::<K>(&live.key()),
        O::KIND,
        K::PLURAL,
        live.name,
        annotation::<O>()
    )
}
