//! To whom an object with the name of a child belongs, and whether the owner still wants children.

use crate::{
    client::Error,
    cluster::Cluster,
    resource::{Meta, ObjectMeta, Resource},
};

/// To whom an object with the name of a child belongs.
pub(super) enum Ownership {
    Ours,
    /// An owner with the name of our owner, but another uid.
    Namesake,
    /// Another owner, or none.
    Foreign,
}

impl Ownership {
    /// By the controller ownerReference.
    pub(super) fn of<O: Resource>(live: &ObjectMeta, owner: &O) -> Ownership {
        match live.controller() {
            Some(by) if by.uid == owner.metadata().uid => Ownership::Ours,
            Some(by) if by.is_a::<O>() && by.name == owner.metadata().name => Ownership::Namesake,
            Some(_) | None => Ownership::Foreign,
        }
    }
}

/// Asks the API server whether the object with this uid still exists, and whether its deletion has begun without our knowledge: an
/// operator may create children in its cleanup.
pub(super) async fn is_wanted<O: Resource>(cluster: &Cluster, owner: &O) -> Result<bool, Error> {
    if cluster.is_ending(owner.metadata()) {
        return Ok(false);
    }
    match cluster.get_live::<Meta<O>>(&owner.key()).await {
        Ok(live) => Ok(live.metadata.uid == owner.metadata().uid
            && (owner.metadata().is_terminating() || !live.metadata.is_terminating())),
        Err(error) if error.is_not_found() => Ok(false),
        Err(error) => Err(error),
    }
}
