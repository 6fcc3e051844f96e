//! Objects that outlive their owner, such as claims, and Secrets with the passwords of the data in them. They have no controller,
//! so nobody corrects them: an object that exists is as desired, whoever made it.

use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;

use super::{Child, Stage, Write, create::is_wanted, describe, path};
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
) -> (Child<Meta<K>>, Option<Write>) {
    if let Some(live) = seen {
        return (Child::Kept(live), None);
    }
    // A watch may miss it: another writer gives it no label of ours, and our own label can be removed.
    match cluster.get_live::<Meta<K>>(key).await {
        Ok(live) => return (Child::Kept(live), None),
        Err(error) if error.is_not_found() => {}
        Err(error) => return Child::failed(error, None),
    }
    if stage != Stage::New {
        match is_wanted(cluster, owner).await {
            Ok(true) => {}
            Ok(false) => return (Child::OwnerGone, None),
            Err(error) => return Child::failed(error, None),
        }
    }
    match cluster.create_for(owner.metadata(), &desired()).await {
        Ok(None) => (Child::OwnerGone, None),
        Ok(Some(created)) => {
            let write = Write::Created(format!("{} {}", K::KIND, key.name));
            (Child::Kept(Arc::new(Meta::of(&*created))), Some(write))
        }
        Err(error) => Child::failed(error, None),
    }
}

/// Changes some fields of an object, if there are any operations.
pub(super) async fn patched<K: Resource>(
    cluster: &Cluster,
    live: Arc<K>,
    operations: Vec<Value>,
) -> (Child<K>, Option<Write>) {
    if operations.is_empty() {
        return (Child::Kept(live), None);
    }
    let change = describe(&*live, operations.iter().map(path));
    match cluster.patch(&*live, operations).await {
        Ok(patched) => (Child::Kept(patched), Some(Write::Updated(change))),
        Err(error) => Child::failed(error, Some(live)),
    }
}
