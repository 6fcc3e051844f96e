//! Objects that outlive their owner, such as claims, and Secrets with the passwords of the data in them. They have no controller,
//! so nobody corrects them: an object that exists is as desired, whoever made it.

use std::sync::Arc;

use serde::Serialize;

use super::{
    keep::is_wanted,
    outcome::{Child, Stage, Step},
    write::{self, Write},
};
use crate::{
    cluster::Cluster,
    resource::{Key, Meta, Resource},
};

/// Creates an object, unless one of this name exists: `seen`, from a `Watch<Meta<K>>`, or one that only the API server has, for
/// example because it has no label for that watch. Only its metadata is read.
pub(super) async fn created<O: Resource, K: Resource + Serialize>(
    cluster: &Cluster,
    seen: Option<Arc<Meta<K>>>,
    owner: &O,
    key: &Key,
    stage: Stage,
    desired: impl FnOnce() -> K,
) -> Step<Meta<K>> {
    if let Some(live) = seen {
        return Ok((Child::Kept(live), None));
    }
    // A watch may miss it: another writer gives it no label of ours, and our own label can be removed.
    match cluster.get_live::<Meta<K>>(key).await {
        Ok(live) => return Ok((Child::Kept(live), None)),
        Err(error) if error.is_not_found() => {}
        Err(error) => return Err(error.into()),
    }
    if stage != Stage::New && !is_wanted(cluster, owner).await? {
        return Ok((Child::OwnerGone, None));
    }
    Ok(match cluster.create_for(owner.metadata(), &desired()).await? {
        None => (Child::OwnerGone, None),
        Some(created) => {
            (Child::Kept(Arc::new(Meta::of(&*created))), Some(Write::Created(write::name::<K>(key))))
        }
    })
}
