//! Objects that outlive their owner, such as claims, and Secrets with the passwords of the data in them. They have no controller,
//! so nobody corrects them: an object that exists is as desired, whoever made it.

use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;

use super::{Child, Outcome, Stage, Write, create::is_wanted, describe, path};
use crate::{
    client::Error,
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
) -> Outcome<Meta<K>> {
    if let Some(live) = seen {
        return kept(live, None);
    }
    // A watch may miss it: another writer gives it no label of ours, and our own label can be removed.
    match cluster.get_live::<Meta<K>>(key).await {
        Ok(live) => return kept(live, None),
        Err(error) if error.is_not_found() => {}
        Err(error) => return failed(error, None),
    }
    if stage != Stage::New {
        match is_wanted(cluster, owner).await {
            Ok(true) => {}
            Ok(false) => return Outcome { child: Child::OwnerGone, write: None, mutations: Vec::new() },
            Err(error) => return failed(error, None),
        }
    }
    match cluster.create(&desired()).await {
        Ok(created) => {
            let write = Write::Created(format!("{} {}", K::KIND, key.name));
            kept(Arc::new(Meta::of(&*created)), Some(write))
        }
        Err(error) => failed(error, None),
    }
}

/// Changes some fields of an object, if there are any operations.
pub(super) async fn patched<K: Resource>(
    cluster: &Cluster,
    live: Arc<K>,
    operations: Vec<Value>,
) -> Outcome<K> {
    if operations.is_empty() {
        return kept(live, None);
    }
    let change = describe(&*live, operations.iter().map(path));
    match cluster.patch(&*live, operations).await {
        Ok(patched) => kept(patched, Some(Write::Updated(change))),
        Err(error) => failed(error, Some(live)),
    }
}

fn kept<K>(live: Arc<K>, write: Option<Write>) -> Outcome<K> {
    Outcome { child: Child::Kept(live), write, mutations: Vec::new() }
}

fn failed<K>(error: Error, live: Option<Arc<K>>) -> Outcome<K> {
    Outcome { child: Child::Failed { error, live }, write: None, mutations: Vec::new() }
}
