//! A write of a child: what it does, and the texts that name it in Events, in the log and in back-offs. Of the last write of each child, we
//! remember the desired state, and the fields that admission changed.
//!
//! If a child differs from the same desired state, another client has changed the child. If the desired state is another one, the operator
//! itself wants the change. After a restart, nothing is remembered.
//!
//! A mutating webhook or policy may change a field that we own, for example to pull all images from a mirror. Then the answer to our write
//! has another value than the write. Such a field alone causes no further write, until the spec of the owner changes or this process
//! restarts; `outcome.rs` shows it in the condition `Mutated`. The webhook cannot be named: `managedFields` has our name, because the API
//! server notes the manager before it calls admission.

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hasher},
    sync::Mutex,
};

use serde::Serialize;
use serde_json::Value;
use smol_str::SmolStr;

use crate::{
    locked,
    resource::{Key, ObjectMeta, Resource, Uid, diff::Difference},
};

/// A write of a child, with its kind, name and fields: `Deployment mws-web at /spec/replicas`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    /// The child did not exist.
    Created(String),
    /// The child differed: the operator wants another state than before, or it has just started and does not know why.
    Updated(String),
    /// Another writer had changed or deleted the child since this process saw it as desired.
    Restored(String),
    /// The operator no longer wanted the child, and deleted it by itself: [`Reconcile::discard`](super::Reconcile::discard) is not reported.
    Deleted(String),
}

/// What this process remembers of its last writes, by the owner's uid and the key of the child. One map, because a map for each owner has
/// room for four children, and most have one.
#[derive(Default)]
pub(super) struct LastWrites {
    known: Mutex<BTreeMap<(Uid, Key), LastWrite>>,
}

/// The last write of a child.
#[derive(Clone, Default)]
pub(super) struct LastWrite {
    /// The hash of the desired state that the child had last. If it is the present one, another client has changed or deleted the child
    /// since. Otherwise the desired state is new, or this process has not seen the child as desired yet.
    pub(super) desired: Option<u64>,
    /// The resourceVersion that the child had then.
    version: SmolStr,
    /// The owner's generation when admission changed the fields.
    generation: i64,
    /// The fields in which the answer differs from the write.
    mutations: Vec<Difference>,
}

impl LastWrite {
    /// Whether this version of the child was in this desired state, whole. Then it still is, and need not be compared.
    pub(super) fn has(&self, desired: u64, child: &impl Resource) -> bool {
        self.desired == Some(desired)
            && self.version == child.metadata().resource_version
            && self.mutations.is_empty()
    }
}

impl LastWrites {
    /// The last write of a child.
    pub(super) fn of(&self, owner: &ObjectMeta, child: &Key) -> LastWrite {
        locked(&self.known).get(&(owner.uid.clone(), child.clone())).cloned().unwrap_or_default()
    }

    /// The child is as desired now. `desired`: the [`hash`] of that state.
    pub(super) fn kept<O: Resource>(&self, owner: &O, desired: u64, child: &impl Resource) {
        let version = child.metadata().resource_version.clone();
        self.with(owner, &child.key(), |known| (known.desired, known.version) = (Some(desired), version));
    }

    /// The differences that were not made by admission, as far as known. Forgets the fields that no longer differ.
    pub(super) fn not_by_admission<O: Resource>(
        &self,
        owner: &O,
        child: &Key,
        differences: Vec<Difference>,
    ) -> Vec<Difference> {
        self.with(owner, child, |known| {
            if known.generation != owner.metadata().generation {
                return differences;
            }
            known.mutations.retain(|field| differences.contains(field));
            differences.into_iter().filter(|field| !known.mutations.contains(field)).collect()
        })
    }

    /// Remembers the differences between a write and its answer.
    pub(super) fn learn<O: Resource>(&self, owner: &O, child: &Key, fields: Vec<Difference>) {
        let generation = owner.metadata().generation;
        self.with(owner, child, |known| (known.generation, known.mutations) = (generation, fields));
    }

    /// Forgets a child that is deleted.
    pub(super) fn forget<O: Resource>(&self, owner: &O, child: &Key) {
        locked(&self.known).remove(&(owner.metadata().uid.clone(), child.clone()));
    }

    /// Forgets the children of a deleted owner.
    pub(super) fn forget_all(&self, owner: &Uid) {
        let mut known = locked(&self.known);
        let first = (owner.clone(), Key::cluster(""));
        let children: Vec<_> = known
            .range(first..)
            .map(|(child, _)| child.clone())
            .take_while(|child| child.0 == *owner)
            .collect();
        for child in children {
            known.remove(&child);
        }
    }

    /// The fields that admission changed, as texts for the status.
    pub(super) fn mutations<O: Resource>(&self, owner: &O, child: &Key) -> Vec<String> {
        let (all, owner) = (locked(&self.known), owner.metadata());
        let known = all.get(&(owner.uid.clone(), child.clone()));
        let known = known.filter(|known| known.generation == owner.generation);
        known.iter().flat_map(|known| &known.mutations).map(ToString::to_string).collect()
    }

    fn with<O: Resource, T>(&self, owner: &O, child: &Key, use_it: impl FnOnce(&mut LastWrite) -> T) -> T {
        let child = (owner.metadata().uid.clone(), child.clone());
        use_it(locked(&self.known).entry(child).or_default())
    }
}

/// The hash of a desired state.
pub(super) fn hash(desired: &impl Serialize) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(&serde_json::to_vec(desired).unwrap_or_default());
    hasher.finish()
}

/// `Deployment mws-web`
pub(super) fn name<K: Resource>(child: &Key) -> String {
    format!("{} {}", K::KIND, child.name)
}

/// `Deployment mws-web at /spec/replicas`
pub(super) fn change<'a, K: Resource>(child: &Key, paths: impl IntoIterator<Item = &'a str>) -> String {
    format!("{} at {}", name::<K>(child), paths.into_iter().collect::<Vec<_>>().join(" "))
}

/// The text that identifies a write of a child. It has the generation of the owner, so that a new spec is never delayed.
pub(super) fn id(owner: &ObjectMeta, child: &Key, what: &str) -> String {
    format!("{} at generation {}: {child}: {what}", owner.uid, owner.generation)
}

/// The field of an operation of a JSON patch.
pub(super) fn path(operation: &Value) -> &str {
    operation["path"].as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::{
        diff,
        kinds::{Service, ServiceSpec},
    };

    #[test]
    fn a_mutation_is_known_for_one_generation_and_while_the_field_has_that_value() {
        let owner = |generation| {
            let metadata = ObjectMeta { uid: "u1".into(), generation, ..ObjectMeta::default() };
            Service { metadata, ..Service::default() }
        };
        let of_type = |r#type: &str| {
            let spec = ServiceSpec { r#type: r#type.into(), ..ServiceSpec::default() };
            Service { spec, ..Service::default() }
        };
        let differs = |is: &str| diff::between(&of_type(is), &of_type("ClusterIP"), &[]);
        let (one, other) = (differs("NodePort"), differs("LoadBalancer"));
        let mutations = LastWrites::default();
        let (a, b) = (Key::cluster("a"), Key::cluster("b"));
        assert_eq!(mutations.not_by_admission(&owner(1), &a, one.clone()), one.clone());
        mutations.learn(&owner(1), &a, one.clone());
        assert_eq!(mutations.not_by_admission(&owner(1), &a, one.clone()), []);
        assert_eq!(mutations.mutations(&owner(1), &a), ["/spec/type: \"ClusterIP\" became \"NodePort\""]);
        // Another child with the same owner was also forgotten, and so deleted and created without end.
        assert_eq!(mutations.not_by_admission(&owner(1), &b, vec![]), []);
        assert_eq!(mutations.not_by_admission(&owner(1), &a, one.clone()), []);
        // A new spec is written.
        assert_eq!(mutations.not_by_admission(&owner(2), &a, one.clone()), one.clone());
        assert_eq!(mutations.mutations(&owner(2), &a), Vec::<String>::new());
        // Somebody else's value is drift.
        assert_eq!(mutations.not_by_admission(&owner(1), &a, other.clone()), other.clone());
        assert_eq!(mutations.mutations(&owner(1), &a), Vec::<String>::new());
        // It has come to be as we want.
        mutations.learn(&owner(1), &a, one.clone());
        assert_eq!(mutations.not_by_admission(&owner(1), &a, vec![]), []);
        assert_eq!(mutations.not_by_admission(&owner(1), &a, one.clone()), one.clone());
        // The answer to the next write is as we want.
        mutations.learn(&owner(1), &a, one.clone());
        mutations.learn(&owner(1), &a, vec![]);
        assert_eq!(mutations.mutations(&owner(1), &a), Vec::<String>::new());
    }

    #[test]
    fn the_children_of_a_deleted_owner_are_forgotten_and_no_others() {
        let owner = |uid: &str| Service {
            metadata: ObjectMeta { uid: uid.into(), ..ObjectMeta::default() },
            ..Service::default()
        };
        let child = |namespace: Option<&str>| {
            let metadata = ObjectMeta {
                name: "a".into(),
                namespace: namespace.map(Into::into),
                ..ObjectMeta::default()
            };
            Service { metadata, ..Service::default() }
        };
        let (writes, children) = (LastWrites::default(), [None, Some(""), Some("b"), Some("c")].map(child));
        let known = |uid: &str| {
            children
                .iter()
                .filter(|child| writes.of(&owner(uid).metadata, &child.key()).desired == Some(1))
                .count()
        };
        for (uid, child) in
            ["u1", "u2", "u3"].iter().flat_map(|uid| children.iter().map(move |child| (uid, child)))
        {
            writes.kept(&owner(uid), 1, child);
        }
        writes.forget_all(&"u2".into());
        assert_eq!(["u1", "u2", "u3"].map(known), [4, 0, 4]);
    }
}
