//! What a Store keeps of the objects of a watch. Everybody who may create objects in a namespace chooses their number, their labels
//! and their content, and one process serves all namespaces. So a Store keeps only what the operator reads.
//!
//! ```text
//!   Everything    all objects as they are: for a program that shows them
//!   Small         an object with more than 4 KiB of labels, ownerReferences and finalizers, or 64 KiB of annotations: without content
//!   Reconciled    nothing of other shards; else the same, and an object whose other fields, without its status, take more than 256 KiB: without content
//!   ChildrenOf    the same, and an object of another kind of owner or another shard, or a large one for which a Budget has no bytes left: without content
//!   Within        as Small, and an object for which a Budget has no bytes left, or that nobody needs: without content
//! ```
//!
//! An object without its content is a [`Broken`], with its metadata and the reason. It counts as present.

use std::{
    collections::HashMap,
    io,
    sync::{Arc, Mutex},
};

use serde::Serialize;
use serde_json::value::RawValue;
use smol_str::SmolStr;

use crate::{
    locked,
    resource::{
        Annotations, Labels, ObjectMeta, OwnerReference, Resource,
        list::{Broken, BrokenCause, Found},
    },
    shard::Shard,
};

/// Most bytes of labels, ownerReferences and finalizers of one object. Those of a Deployment have some 500.
pub(crate) const METADATA_BYTES_MAX: usize = 4 * 1024;
/// Most bytes of the annotations that are kept of one object. The API server allows 256 KiB.
pub(crate) const ANNOTATIONS_BYTES_MAX: usize = 64 * 1024;
/// Largest child that is decoded, by [`weight`]. The StatefulSet of a Database has some 40 KiB.
pub(crate) const CHILD_WEIGHT_MAX: usize = 128 * 1024;
/// The weight of a child that counts in no Budget: only the number of such children is limited, by the API server.
const CHILD_WEIGHT_FREE: usize = 8 * 1024;
/// The weight of the other children in one namespace, without [`CHILD_WEIGHT_FREE`] of each. Anybody may create children of an owner that
/// exists.
const CHILDREN_WEIGHT_MAX: usize = 8 * 1024 * 1024;
/// Largest page of a list that is decoded in one piece, by [`weight`]. The objects of a larger one are decoded one by one. A page of
/// 100 Deployments has 1.4 MiB.
const PAGE_WEIGHT_MAX: usize = 2 * 1024 * 1024;
/// Most memory for the fields of an object that an operator reconciles, by [`weight_of_fields`]. A rule that copies to 1,000 namespaces
/// by name has half of it.
const FIELDS_WEIGHT_MAX: usize = 256 * 1024;
/// Bytes for each field or item, in addition to its text: a map of strings takes that much for each of its entries.
const ENTRY_BYTES: usize = 64;
/// Bytes for each map and each list, in addition to their entries: the schema may allow any JSON in a field, and in a
/// [`serde_json::Value`], a map has room for eleven entries, and a list for four.
const MAP_BYTES: usize = 640;
const LIST_BYTES: usize = 128;

/// What a Store keeps.
pub enum Kept<K> {
    /// All objects as they are.
    Everything,
    /// Objects with more than 4 KiB of labels, ownerReferences and finalizers, or 64 KiB of annotations, without content.
    Small,
    /// Only the objects of a shard; and without the content of objects whose other fields, without the status, take more than 256 KiB: for the objects that an
    /// operator reconciles.
    Reconciled(Shard),
    /// As `Small`, and of other objects than children of this kind of owner in this shard no content, nor of large children for which the budget has no bytes
    /// left.
    ChildrenOf {
        /// The API group of the controller that an object names.
        group: &'static str,
        /// Its kind.
        kind: &'static str,
        /// Its shard.
        shard: Shard,
        /// Shared by the Stores of all kinds of children.
        budget: Arc<Budget>,
        /// The bytes that an object takes.
        weigh: fn(&K) -> usize,
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
            Kept::Reconciled(shard) => Kept::Reconciled(*shard),
            Kept::ChildrenOf { group, kind, shard, budget, weigh } => {
                let budget = Arc::clone(budget);
                Kept::ChildrenOf { group, kind, shard: *shard, budget, weigh: *weigh }
            }
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
            Kept::Reconciled(shard) => format!("reconciled {shard}"),
            Kept::ChildrenOf { group, kind, shard, .. } => format!("{group}/{kind} {shard}"),
            Kept::Within { budget, .. } => format!("within {:p}", Arc::as_ptr(budget)),
        }
    }

    /// Whether the Store has an object at all.
    pub(super) fn has(&self, metadata: &ObjectMeta) -> bool {
        match self {
            Kept::Reconciled(shard) => shard.has(&metadata.uid),
            Kept::Everything | Kept::Small | Kept::ChildrenOf { .. } | Kept::Within { .. } => true,
        }
    }

    /// Whether [`Kept::refuses`] must see each object of this page.
    pub(crate) fn sees_each_object(&self, page: &[u8]) -> bool {
        matches!(self, Kept::Reconciled(_)) || weight(page) > PAGE_WEIGHT_MAX
    }

    /// Why an object of this JSON, or of this line of a watch, is not decoded, if so.
    pub(crate) fn refuses(&self, json: &[u8]) -> Option<String> {
        match self {
            Kept::Reconciled(_) if weight_of_fields(json) > FIELDS_WEIGHT_MAX => Some(format!(
                "the object is too large: its fields take more than {} KiB",
                FIELDS_WEIGHT_MAX / 1024
            )),
            Kept::ChildrenOf { .. } if weight(json) > CHILD_WEIGHT_MAX => {
                Some(format!("the object is larger than {} KiB", CHILD_WEIGHT_MAX / 1024))
            }
            Kept::Everything
            | Kept::Small
            | Kept::Reconciled(_)
            | Kept::ChildrenOf { .. }
            | Kept::Within { .. } => None,
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
            (Kept::ChildrenOf { group, kind, .. }, _)
                if !is_of(found.metadata().controller(), group, kind) =>
            {
                without(&found, format!("its controller is not a {kind}"), BrokenCause::Unwanted)
            }
            // Its metadata show to whom the name belongs.
            (Kept::ChildrenOf { shard, .. }, _)
                if !found.metadata().controller().is_some_and(|owner| shard.has(&owner.uid)) =>
            {
                without(&found, "its controller is in another shard".to_owned(), BrokenCause::Unwanted)
            }
            (Kept::ChildrenOf { budget, weigh, .. }, Found::Readable(object)) => {
                let bytes = weigh(object).saturating_sub(CHILD_WEIGHT_FREE);
                budget.limit(found, bytes, had)
            }
            (Kept::Within { budget, weigh }, Found::Readable(object)) => match weigh(object) {
                Some(bytes) => budget.limit(found, bytes, had),
                None => without(&found, "nobody needs it".to_owned(), BrokenCause::Unwanted),
            },
            (
                Kept::Everything
                | Kept::Small
                | Kept::Reconciled(_)
                | Kept::ChildrenOf { .. }
                | Kept::Within { .. },
                _,
            ) => (found, None),
        }
    }
}

/// About the memory of an object or a list with this JSON: small fields and items take more than text.
fn weight(json: &[u8]) -> usize {
    json.len() + ENTRY_BYTES * memchr::memchr_iter(b',', json).count()
}

/// About the memory of any value with this JSON.
fn weight_of_value(json: &[u8]) -> usize {
    let (mut weight, mut is_text, mut is_escaped) = (json.len(), false, false);
    for byte in json {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'"' => is_text = !is_text,
            b',' if !is_text => weight += ENTRY_BYTES,
            b'[' if !is_text => weight += LIST_BYTES,
            b'{' if !is_text => weight += MAP_BYTES,
            _ => {}
        }
    }
    weight
}

/// About the memory of the fields of an object, without its metadata and status, whose JSON this is, or the line of a watch with it; or 0
/// if that is little in any case.
fn weight_of_fields(json: &[u8]) -> usize {
    if weight_of_value(json) <= FIELDS_WEIGHT_MAX {
        return 0;
    }
    // The decoder reports JSON that is none.
    let fields: HashMap<String, &RawValue> = serde_json::from_slice(json).unwrap_or_default();
    if let (Some(object), None) = (fields.get("object"), fields.get("metadata")) {
        return weight_of_fields(object.get().as_bytes());
    }
    let chosen = fields.iter().filter(|(field, _)| !matches!(&***field, "metadata" | "status"));
    chosen.map(|(_, value)| weight_of_value(value.get().as_bytes())).sum()
}

/// The [`weight`] of a child as it is kept.
pub(crate) fn weight_of<K: Serialize>(child: &K) -> usize {
    /// Weighs what is written to it.
    struct Scale(usize);
    impl io::Write for Scale {
        fn write(&mut self, json: &[u8]) -> io::Result<usize> {
            self.0 += weight(json);
            Ok(json.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut scale = Scale(0);
    match serde_json::to_writer(&mut scale, child) {
        Ok(()) => scale.0,
        Err(_) => usize::MAX,
    }
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
    (metadata.annotations.bytes() > ANNOTATIONS_BYTES_MAX).then(|| {
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

/// The bytes that objects of several Stores may take together, and those of one namespace, so that nobody who may create objects in one
/// namespace can take the room of all others.
pub struct Budget {
    /// For the message: `the objects to copy`.
    what: &'static str,
    bytes_max: usize,
    of_namespace_max: usize,
    used: Mutex<HashMap<SmolStr, usize>>,
}

/// The bytes of one object, until dropped.
pub(super) struct Share {
    budget: Arc<Budget>,
    namespace: SmolStr,
    bytes: usize,
}

impl Budget {
    /// That many bytes for `what`, such as `the objects to copy`; those of one namespace may take half of them.
    #[must_use]
    pub fn new(what: &'static str, bytes_max: usize) -> Arc<Budget> {
        Arc::new(Budget { what, bytes_max, of_namespace_max: bytes_max / 2, used: Mutex::default() })
    }

    /// For the children of all owners.
    pub(crate) fn of_children() -> Arc<Budget> {
        let (bytes_max, of_namespace_max) = (usize::MAX, CHILDREN_WEIGHT_MAX);
        Arc::new(Budget { what: "large children", bytes_max, of_namespace_max, used: Mutex::default() })
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
        let what = self.what;
        if of_namespace + bytes > self.of_namespace_max + had {
            let limit = mib(self.of_namespace_max);
            return Some(format!("{what} from namespace {namespace} take more than {limit} MiB"));
        }
        (all + bytes > self.bytes_max.saturating_add(had))
            .then(|| format!("{what} take more than {} MiB", mib(self.bytes_max)))
    }

    /// The object, without content if there is no room for it.
    fn limit<K: Resource>(
        self: &Arc<Budget>,
        found: Found<K>,
        bytes: usize,
        had: Option<&Share>,
    ) -> (Found<K>, Option<Share>) {
        let namespace = found.metadata().namespace.clone().unwrap_or_default();
        match self.share(namespace, bytes, had.map_or(0, |had| had.bytes)) {
            Ok(share) => (found, Some(share)),
            Err(error) => {
                let (metadata, cause) = (essential(found.metadata()), BrokenCause::NoRoom(bytes));
                (Found::Broken(Arc::new(Broken { metadata, error, cause })), None)
            }
        }
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

    fn children_of_databases(shard: Shard) -> Kept<ConfigMap> {
        let (group, kind, budget) = ("app.example.com", "Database", Budget::of_children());
        Kept::ChildrenOf { group, kind, shard, budget, weigh: weight_of }
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
        let kept = children_of_databases(Shard::default());
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
    fn an_object_that_is_reconciled_has_a_limit_for_its_fields_whatever_they_are() {
        let refuses = |spec: &str, status: &str| {
            let object = format!(
                r#"{{"metadata":{{"annotations":{{"a":"{status}"}}}},"spec":{spec},"status":"{status}"}}"#
            );
            let line = format!(r#"{{"type":"ADDED","object":{object}}}"#);
            let [object, line] = [object, line].map(|json| {
                Kept::<ConfigMap>::Reconciled(Shard::default()).refuses(json.as_bytes()).is_some()
            });
            assert_eq!(object, line, "{spec}");
            object
        };
        let (text, large) = ("x".repeat(250_000), "x".repeat(300_000));
        let maps = |count: usize| format!("{}0{}", r#"{"a":"#.repeat(count), "}".repeat(count));
        let items = |count: usize| format!("[{}0]", "0,".repeat(count));
        assert!(!refuses(&format!(r#""{text}""#), &large));
        assert!(refuses(&format!(r#""{large}""#), ""));
        assert!(!refuses(&maps(300), &large) && !refuses(&items(3_000), &large));
        assert!(refuses(&maps(500), "") && refuses(&items(5_000), ""));
        let lists = |count: usize| format!("{}0{}", "[".repeat(count), "]".repeat(count));
        assert!(
            !refuses(&lists(100), &large) && refuses(&format!("[{}]", vec![lists(100); 25].join(",")), "")
        );
        // In a text, they are characters.
        assert!(!refuses(&format!("{:?}", r#"{[,"#.repeat(50_000)), ""));
        assert!(Kept::<ConfigMap>::Small.refuses(large.as_bytes()).is_none());
    }

    #[test]
    fn metadata_of_more_than_four_kilobytes_lose_all_but_the_controller() {
        let labels: serde_json::Map<_, _> =
            (0..100).map(|number| (format!("l{number}"), json!("x".repeat(63)))).collect();
        let mut owners = vec![owner("v1", "Node"); 50];
        owners.iter_mut().for_each(|owner| owner["controller"] = json!(false));
        owners.push(owner("app.example.com/v1", "Database"));
        let finalizers: Vec<_> = (0..200).map(|number| format!("example.com/{number}")).collect();
        // Their text has a third of the limit.
        let small: serde_json::Map<_, _> =
            (0..4000).map(|number| (format!("a{number}"), json!(""))).collect();
        for fields in [
            json!({"labels": labels}),
            json!({"ownerReferences": owners}),
            json!({"finalizers": finalizers}),
            json!({"annotations": {"a": "x".repeat(ANNOTATIONS_BYTES_MAX)}}),
            json!({"annotations": small}),
        ] {
            let limited = Kept::Small.limit(found(fields.clone(), ""), None);
            assert!(problem(&limited).is_some_and(|problem| problem.contains("have more than")), "{fields}");
            let metadata = limited.0.metadata();
            assert!(excess(metadata).is_none() && metadata.annotations.is_empty());
            assert_eq!(metadata.controller().is_some(), !fields["ownerReferences"].is_null());
            assert!(problem(&Kept::Everything.limit(found(fields, ""), None)).is_none());
        }
    }

    /// Anybody may create any number of children of an owner that exists.
    #[test]
    fn large_children_of_one_namespace_take_some_megabytes_and_small_ones_are_all_kept() {
        let kept = children_of_databases(Shard::default());
        let child = |bytes: usize| {
            let owners = json!([owner("app.example.com/v1", "Database")]);
            kept.limit(found(json!({"ownerReferences": owners}), &"x".repeat(bytes)), None)
        };
        let small: Vec<_> = (0..10_000).map(|_| child(1000)).collect();
        assert!(small.iter().all(|limited| problem(limited).is_none()));
        let large: Vec<_> = (0..1000).map(|_| child(60_000)).collect();
        let kept = large.iter().filter(|limited| problem(limited).is_none()).count();
        assert!((100..200).contains(&kept), "{kept}");
        assert!(problem(&large[999]).is_some_and(|problem| problem.contains("from namespace n")));
    }

    #[test]
    fn one_namespace_takes_half_of_a_budget_until_its_objects_are_gone() {
        let budget = Budget::new("the objects", 100);
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
