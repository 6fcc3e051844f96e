//! Adopts a child that has lost its owner, if a user asks for it by an annotation. A backup may be restored without
//! ownerReferences, as Velero does, and its owners have other uids.
//!
//! ```text
//! kubectl -n default annotate deployments/mws-web k8sobjects.gsa.com/adopt=true     # the group is that of the owner
//! ```
//!
//! Without the annotation, nothing is adopted: a user may have removed the ownerReference, to keep the child after its owner is
//! deleted. The annotation is removed with the adoption, so a child that is released later is not adopted again.

use std::{marker::PhantomData, sync::Arc};

use serde::{Deserialize, Serialize};
use serde_json::json;
use tracing::info;

use super::{Child, Children, LOG, Write, create::is_wanted, describe, path};
use crate::{
    client::Error,
    resource::{Accept, ObjectMeta, OwnerReference, Resource},
};

/// The annotation of a child that an `O` may adopt. Its value is `true`.
pub(super) fn annotation<O: Resource>() -> String {
    format!("{}/adopt", O::GROUP)
}

impl<K: Resource + Serialize> Children<K> {
    /// Whether an object that is not ours may be adopted: it has the labels of the child and no controller, and each field can be
    /// corrected. A child with another immutable field would be deleted.
    pub(super) fn is_adoptable<O: Resource>(&self, desired: &K, live: &K) -> bool {
        let (labels, metadata) = (&desired.metadata().labels, live.metadata());
        metadata.controller().is_none()
            && !metadata.is_terminating()
            && !labels.is_empty()
            && labels.iter().all(|(key, value)| metadata.labels.get(key) == Some(value))
            && !self
                .differences::<O>(live, desired)
                .iter()
                .any(|operation| live.is_immutable(path(operation)))
    }

    /// Adopts an object that has the annotation, and then corrects it. Not if the owner no longer exists on the API server, or is
    /// being deleted: the garbage collector would delete the child.
    pub(super) async fn adopt<O: Resource>(
        &self,
        owner: &O,
        desired: &K,
        live: Arc<K>,
    ) -> (Child<K>, Option<Write>) {
        let not_ours = |live: &K| (Child::NotOurs(self.not_ours::<O>(desired, live)), None);
        if !self.is_adoptable::<O>(desired, &live) {
            return not_ours(&live);
        }
        let adopted = match self.adopted(owner, &live).await {
            Ok(Adoption::Done(adopted)) => adopted,
            Ok(Adoption::NotAsked) => return not_ours(&live),
            Ok(Adoption::OwnerGone) => return (Child::OwnerGone, None),
            Err(error) => return Child::failed(error, None),
        };
        let change = describe(&*adopted, ["/metadata/ownerReferences"].into_iter());
        info!(target: LOG, key = %owner.key(), change, "child adopted");
        let (child, write) = self.correct(owner, desired, adopted).await;
        (child, write.or(Some(Write::Updated(change))))
    }

    async fn adopted<O: Resource>(&self, owner: &O, live: &K) -> Result<Adoption<K>, Error> {
        let annotation = annotation::<O>();
        // Most Stores have no annotations.
        let metadata = &self.cluster.get_live::<Annotated<K>>(&live.key()).await?.metadata;
        if metadata.annotations.get(&annotation) != Some("true") {
            return Ok(Adoption::NotAsked);
        }
        if !is_wanted(&self.cluster, owner).await? {
            return Ok(Adoption::OwnerGone);
        }
        let reference = OwnerReference::controlled_by(owner);
        let owners = "/metadata/ownerReferences";
        let adopt = if live.metadata().owner_references.is_empty() {
            json!({"op": "add", "path": owners, "value": [reference]})
        } else {
            json!({"op": "add", "path": format!("{owners}/-"), "value": reference})
        };
        let annotation = format!("/metadata/annotations/{}", annotation.replace('/', "~1"));
        let remove = json!({"op": "remove", "path": annotation});
        Ok(Adoption::Done(self.cluster.patch(live, vec![adopt, remove]).await?))
    }
}

/// Metadata with the annotations, which [`Meta`](crate::resource::Meta) leaves out.
#[derive(Deserialize)]
#[serde(bound = "")]
struct Annotated<K> {
    metadata: ObjectMeta,
    #[serde(skip)]
    kind: PhantomData<fn() -> K>,
}

impl<K: Resource> Resource for Annotated<K> {
    const GROUP: &'static str = K::GROUP;
    const VERSION: &'static str = K::VERSION;
    const PLURAL: &'static str = K::PLURAL;
    const KIND: &'static str = K::KIND;
    const ACCEPT: Accept = Accept::MetadataOnly;

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }
}

enum Adoption<K> {
    Done(Arc<K>),
    /// The object lacks the annotation.
    NotAsked,
    OwnerGone,
}
