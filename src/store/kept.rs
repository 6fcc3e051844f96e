//! What a Store keeps of the objects of a watch. Everybody who may create objects in a namespace chooses their number, their labels
//! and their content, and one process serves all namespaces. So a Store keeps only what the operator reads.
//!
//! ```text
//!   Everything    all objects as they are: for a program that shows them
//!   Small         an object with more than 4 KiB of labels, ownerReferences and finalizers, or 64 KiB of annotations: without content
//!   ChildrenOf    the same, and an object of another kind of owner, or of more than 64 KiB: without content
//!   Within        as Small, and an object for which a Budget has no bytes left, or that nobody needs: without content
//! ```
//!
//! An object without its content is a [`Broken`], with its metadata and the reason. It counts as present.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use smol_str::SmolStr;

use crate::{
    locked,
    resource::{
        Annotations, Labels, ObjectMeta, OwnerReference, Resource,
        list::{Broken, BrokenCause, Found},
    },
};

/// Most bytes of labels, ownerReferences and finalizers of one object. Those of a Deployment have some 500.
pub(crate) const METADATA_BYTES_MAX: usize = 4 * 1024;
/// Most bytes of the annotations that are kept of one object. The API server allows 256 KiB.
pub(crate) const ANNOTATIONS_BYTES_MAX: usize = 64 * 1024;
/// Largest child that is kept whole, by [`weight`]. The StatefulSet of a Database has some 40 KiB.
pub(crate) const CHILD_WEIGHT_MAX: usize = 64 * 1024;
/// Largest page of a list that is decoded in one piece, by [`weight`]. The objects of a larger one are decoded one by one. A page of
/// 100 Deployments has 1.4 MiB.
pub(crate) const PAGE_WEIGHT_MAX: usize = 2 * 1024 * 1024;
/// Bytes for each field or item, in addition to its text: a map of strings takes that much for each of its entries.
const ENTRY_BYTES: usize = 64;

/// What a Store keeps.
pub enum Kept<K> {
    /// All objects as they are.
    Everything,
    /// Objects with more than 4 KiB of labels, ownerReferences and finalizers, or 64 KiB of annotations, without content.
    Small,
    /// The same, and of other objects than children of this kind of owner, and of those above 64 KiB, no content.
    ChildrenOf {
        /// The API group of the controller that an object names.
        group: &'static str,
        /// Its kind.
        kind: &'static str,
    },
    /// As `Small`, and without the content of objects for which the budget has no bytes left.
    Within {
        /// Shared by all Stores that it limits together.
        budget: Arc<Budget>,
        /// The bytes that an object takes. `None`: nobody needs it.
        weigh: fn(&K) -> Option<usize>,
    },
}

impl<K> Clone for Kept<K> {
    fn clone(&self) -> Kept<K> {
        match self {
            Kept::Everything => Kept::Everything,
            Kept::Small => Kept::Small,
            Kept::ChildrenOf { group, kind } => Kept::ChildrenOf { group, kind },
            Kept::Within { budget, weigh } => Kept::Within { budget: Arc::clone(budget), weigh: *weigh },
        }
    }
}

impl<K: Resource> Kept<K> {
    /// Watches share a Store only if this is equal.
    pub(crate) fn name(&self) -> String {
        match self {
            Kept::Everything => "everything".to_owned(),
            Kept::Small => String::new(),
            Kept::ChildrenOf { group, kind } => format!("{group}/{kind}"),
            Kept::Within { budget, .. } => format!("within {:p}", Arc::as_ptr(budget)),
        }
    }

    /// Why an object of this JSON is not decoded, if so.
    pub(crate) fn refuses(&self, json: &[u8]) -> Option<String> {
        match self {
            Kept::ChildrenOf { .. } if weight(json) > CHILD_WEIGHT_MAX => {
                Some(format!("the object is larger than {} KiB", CHILD_WEIGHT_MAX / 1024))
            }
            Kept::Everything | Kept::Small | Kept::ChildrenOf { .. } | Kept::Within { .. } => None,
        }
    }

    /// The object, with or without its content. `had`: the bytes of the version that it replaces.
    pub(super) fn limit(&self, found: Found<K>, had: Option<&Share>) -> (Found<K>, Option<Share>) {
        let without = |found: &Found<K>, error: String, cause: BrokenCause| {
            let metadata = essential(found.metadata());
            (Found::Broken(Arc::new(Broken { metadata, error, cause })), None)
        };
        if matches!(self, Kept::Everything) {
            return (found, None);
        }
        if let Found::Broken(broken) = &found {
            return without(&found, broken.error.clone(), broken.cause);
        }
        if let Some(excess) = excess(found.metadata()) {
            return without(&found, excess, BrokenCause::TooLarge);
        }
        match (self, &found) {
            (Kept::ChildrenOf { group, kind }, _) if !is_of(found.metadata().controller(), group, kind) => {
                without(&found, format!("its controller is not a {kind}"), BrokenCause::Unwanted)
            }
            (Kept::Within { budget, weigh }, Found::Readable(object)) => {
                let namespace = object.metadata().namespace.clone().unwrap_or_default();
                let Some(bytes) = weigh(object) else {
                    return without(&found, "nobody needs it".to_owned(), BrokenCause::Unwanted);
                };
                match budget.share(namespace, bytes, had.map_or(0, |had| had.bytes)) {
                    Ok(share) => (found, Some(share)),
                    Err(error) => without(&found, error, BrokenCause::NoRoom(bytes)),
                }
            }
            (Kept::Everything | Kept::Small | Kept::ChildrenOf { .. } | Kept::Within { .. }, _) => {
                (found, None)
            }
        }
    }
}

/// About the memory of an object or a list with this JSON: small fields and items take more than text.
pub(crate) fn weight(json: &[u8]) -> usize {
    json.len() + ENTRY_BYTES * memchr::memchr_iter(b',', json).count()
}

fn is_of(controller: Option<&OwnerReference>, group: &str, kind: &str) -> bool {
    let group_of = |api_version: &str| match api_version.rsplit_once('/') {
        Some((of, _version)) => of == group,
        None => group.is_empty(),
    };
    controller.is_some_and(|by| by.kind == kind && group_of(&by.api_version))
}

/// Why the metadata of an object are too large, if they are.
fn excess(metadata: &ObjectMeta) -> Option<String> {
    let owners: usize = metadata.owner_references.iter().map(bytes_of_owner).sum();
    let finalizers: usize = metadata.finalizers.iter().map(|one| size_of::<SmolStr>() + one.len()).sum();
    if metadata.labels.as_selector().len() + owners + finalizers > METADATA_BYTES_MAX {
        let limit = METADATA_BYTES_MAX / 1024;
        return Some(format!(
            "its labels, ownerReferences and finalizers have more than {limit} KiB: remove some of them"
        ));
    }
    let annotations: usize = metadata.annotations.iter().map(|(key, value)| key.len() + value.len()).sum();
    (annotations > ANNOTATIONS_BYTES_MAX).then(|| {
        let limit = ANNOTATIONS_BYTES_MAX / 1024;
        format!("its annotations have more than {limit} KiB: remove some of them")
    })
}

fn bytes_of_owner(owner: &OwnerReference) -> usize {
    size_of::<OwnerReference>() + owner.api_version.len() + owner.kind.len() + owner.name.len()
}

/// The metadata without labels and annotations, and if there are many, with the controller alone of the owners.
fn essential(metadata: &ObjectMeta) -> ObjectMeta {
    let metadata =
        ObjectMeta { labels: Labels::default(), annotations: Annotations::default(), ..metadata.clone() };
    if excess(&metadata).is_none() {
        return metadata;
    }
    let controller = metadata.controller().filter(|owner| bytes_of_owner(owner) <= METADATA_BYTES_MAX);
    let owner_references = controller.cloned().into_iter().collect();
    ObjectMeta { owner_references, finalizers: Box::default(), ..metadata }
}

/// The bytes that objects of several Stores may take together. One namespace may take half of them, so that nobody who may
/// create objects in one namespace can take those of all others.
pub struct Budget {
    bytes_max: usize,
    used: Mutex<HashMap<SmolStr, usize>>,
}

/// The bytes of one object, until dropped.
pub(super) struct Share {
    budget: Arc<Budget>,
    namespace: SmolStr,
    bytes: usize,
}

impl Budget {
    /// That many bytes.
    #[must_use]
    pub fn new(bytes_max: usize) -> Arc<Budget> {
        Arc::new(Budget { bytes_max, used: Mutex::default() })
    }

    /// Whether an object of this many bytes would be kept.
    #[must_use]
    pub fn has_room(&self, namespace: &str, bytes: usize) -> bool {
        self.lacks(&locked(&self.used), namespace, bytes, 0).is_none()
    }

    /// Why there is no room, if so. `had`: the bytes that become free.
    fn lacks(
        &self,
        used: &HashMap<SmolStr, usize>,
        namespace: &str,
        bytes: usize,
        had: usize,
    ) -> Option<String> {
        let of_namespace = used.get(namespace).copied().unwrap_or_default();
        let all: usize = used.values().sum();
        let mib = |bytes: usize| bytes / (1024 * 1024);
        let half = self.bytes_max / 2;
        if of_namespace + bytes > half + had {
            return Some(format!(
                "the objects to copy from namespace {namespace} take more than {} MiB",
                mib(half)
            ));
        }
        (all + bytes > self.bytes_max + had)
            .then(|| format!("the objects to copy take more than {} MiB", mib(self.bytes_max)))
    }

    fn share(self: &Arc<Budget>, namespace: SmolStr, bytes: usize, had: usize) -> Result<Share, String> {
        let mut used = locked(&self.used);
        if let Some(problem) = self.lacks(&used, &namespace, bytes, had) {
            return Err(problem);
        }
        *used.entry(namespace.clone()).or_default() += bytes;
        Ok(Share { budget: Arc::clone(self), namespace, bytes })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut used = locked(&self.budget.used);
        let left = used.get(&self.namespace).copied().unwrap_or_default().saturating_sub(self.bytes);
        if left == 0 {
            used.remove(&self.namespace);
        } else {
            used.insert(self.namespace.clone(), left);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::resource::kinds::ConfigMap;

    fn found(fields: Value, data: &str) -> Found<ConfigMap> {
        let mut metadata = json!({"name": "a", "namespace": "n", "uid": "u", "resourceVersion": "1"});
        metadata.as_object_mut().expect("metadata").extend(fields.as_object().expect("fields").clone());
        Found::from_json(&json!({"metadata": metadata, "data": {"a": data}}).to_string())
            .expect("a ConfigMap")
    }

    fn owner(api_version: &str, kind: &str) -> Value {
        json!({"apiVersion": api_version, "kind": kind, "name": "db", "uid": "u1", "controller": true})
    }

    /// Why the content is not kept.
    fn problem<K: Resource>(limited: &(Found<K>, Option<Share>)) -> Option<&str> {
        match &limited.0 {
            Found::Readable(_) => None,
            Found::Broken(broken) => Some(&broken.error),
        }
    }

    #[test]
    fn only_children_of_the_kind_of_owner_keep_their_content() {
        let kept = Kept::ChildrenOf { group: "app.example.com", kind: "Database" };
        for (owners, is_kept) in [
            (json!([owner("app.example.com/v1", "Database")]), true),
            (json!([owner("app.example.com/v2", "Database")]), true),
            (json!([owner("example.com/v1", "Database")]), false),
            (json!([owner("app.example.com/v1", "Cache")]), false),
            (json!([]), false),
        ] {
            let fields = json!({"ownerReferences": owners, "labels": {"a": "b"}});
            let limited = kept.limit(found(fields, ""), None);
            assert_eq!(problem(&limited).is_none(), is_kept, "{owners}");
            let metadata = limited.0.metadata();
            // For the message of a NameConflict.
            assert_eq!(metadata.controller().is_some(), owners != json!([]));
            assert_eq!(metadata.labels.is_empty(), !is_kept);
        }
    }

    #[test]
    fn metadata_of_more_than_four_kilobytes_lose_all_but_the_controller() {
        let labels: serde_json::Map<_, _> =
            (0..100).map(|number| (format!("l{number}"), json!("x".repeat(63)))).collect();
        let mut owners = vec![owner("v1", "Node"); 50];
        owners.iter_mut().for_each(|owner| owner["controller"] = json!(false));
        owners.push(owner("app.example.com/v1", "Database"));
        let finalizers: Vec<_> = (0..200).map(|number| format!("example.com/{number}")).collect();
        for fields in [
            json!({"labels": labels}),
            json!({"ownerReferences": owners}),
            json!({"finalizers": finalizers}),
            json!({"annotations": {"a": "x".repeat(ANNOTATIONS_BYTES_MAX)}}),
        ] {
            let limited = Kept::Small.limit(found(fields.clone(), ""), None);
            assert!(problem(&limited).is_some_and(|problem| problem.contains("have more than")), "{fields}");
            let metadata = limited.0.metadata();
            assert!(excess(metadata).is_none() && metadata.annotations.is_empty());
            assert_eq!(metadata.controller().is_some(), !fields["ownerReferences"].is_null());
            assert!(problem(&Kept::Everything.limit(found(fields, ""), None)).is_none());
        }
    }

    #[test]
    fn one_namespace_takes_half_of_a_budget_until_its_objects_are_gone() {
        let budget = Budget::new(100);
        let kept = Kept::Within {
            budget: Arc::clone(&budget),
            weigh: |map: &ConfigMap| Some(map.data.values().map(String::len).sum()),
        };
        let of = |namespace: &str, bytes: usize| found(json!({"namespace": namespace}), &"x".repeat(bytes));
        let a = kept.limit(of("a", 40), None);
        assert!(
            problem(&kept.limit(of("a", 11), None)).is_some_and(|problem| problem.contains("namespace a"))
        );
        // A newer version replaces the one before.
        assert!(problem(&kept.limit(of("a", 50), a.1.as_ref())).is_none());
        let (b, c) = (kept.limit(of("b", 50), None), kept.limit(of("c", 20), None));
        assert!(problem(&b).is_none());
        assert!(problem(&c).is_some_and(|problem| problem.contains("take more than")));
        assert!(!budget.has_room("c", 20));
        drop(a);
        assert!(budget.has_room("c", 20));
        drop((b, c));
        assert!(locked(&budget.used).is_empty());
    }
}
