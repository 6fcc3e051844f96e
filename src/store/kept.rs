//! What a Store keeps of the objects of a watch. Everybody who may create objects in a namespace chooses their number and their content,
//! and one process serves all namespaces. So a Store keeps the content of an object only within three limits:
//!
//! ```text
//!   the filter    the operator reads objects of this kind of owner, in this shard
//!   the size      one object has at most 256 KiB
//!   the budget    the objects of one namespace have at most 32 MiB, and all have 64 MiB, over all Stores of the process: `--kept-mib`
//! ```
//!
//! Of any other object it keeps the metadata, as a [`Partial`] with the cause: the object counts as present. If the budget has no
//! room, the content is read when the object is reconciled. An object of another shard is not kept at all. Bytes are counted on the JSON that came over the wire ([`weight`]).

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use memchr::{memchr_iter, memmem};
use smol_str::SmolStr;

use crate::{
    locked,
    resource::{
        Annotations, Labels, ObjectMeta, OwnerReference, Resource,
        list::{Found, Partial, PartialCause},
    },
    shard::Shard,
};

/// Most bytes of an object whose content is kept. A rule that copies to 1,000 namespaces by name has half of it, the StatefulSet of a
/// Database a tenth.
const OBJECT_BYTES_MAX: usize = 256 * 1024;
/// Most MiB of the objects whose content is kept: half of the memory limit in `install/base/deployment.yaml`. A MyWebserver with its
/// Deployment and its Service counts as 17 kB, and takes 7 kB.
pub const KEPT_MIB: u32 = 64;
/// About what a field, an item, a map or a list takes in addition to its text.
const ENTRY_BYTES: usize = 64;
/// Most bytes of the ownerReferences and finalizers that are kept of an object without its content.
const OWNERS_BYTES_MAX: usize = 4 * 1024;

/// What a Store keeps.
pub struct Kept<K> {
    /// Watches share a Store only if this is equal.
    name: String,
    filter: Arc<Filter<K>>,
    /// `None`: all objects as they are.
    budget: Option<Arc<Budget>>,
}

/// How much of an object the operator reads.
type Filter<K> = dyn Fn(&Found<K>) -> Portion + Send + Sync;

/// How much of an object the operator reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Portion {
    /// All of it.
    Whole,
    /// The metadata. This is why the rest is not read.
    Metadata(&'static str),
    /// Nothing: the object counts as absent.
    Nothing,
}

impl<K> Clone for Kept<K> {
    fn clone(&self) -> Kept<K> {
        let Kept { name, filter, budget } = self;
        Kept { name: name.clone(), filter: Arc::clone(filter), budget: budget.clone() }
    }
}

impl<K: Resource> Kept<K> {
    /// All objects as they are, without limits: for a program that shows them.
    #[must_use]
    pub(crate) fn everything() -> Kept<K> {
        Kept { name: "everything".to_owned(), filter: Arc::new(|_| Portion::Whole), budget: None }
    }

    /// What `filter` says, as far as a budget has room. Watches share a Store if they have the same `name` and budget.
    #[must_use]
    pub fn within(
        budget: &Arc<Budget>,
        name: &str,
        filter: impl Fn(&Found<K>) -> Portion + Send + Sync + 'static,
    ) -> Kept<K> {
        let name = format!("{name} within {:p}", Arc::as_ptr(budget));
        Kept { name, filter: Arc::new(filter), budget: Some(Arc::clone(budget)) }
    }

    /// The objects that an operator reconciles: all objects of its shard.
    #[must_use]
    pub fn reconciled(budget: &Arc<Budget>, shard: Shard) -> Kept<K> {
        Kept::within(budget, &format!("reconciled {shard}"), move |found| {
            if shard.has(&found.metadata().uid) { Portion::Whole } else { Portion::Nothing }
        })
    }

    /// The objects whose controller ownerReference names an object of kind `O` in the shard. The metadata of others show to whom a name
    /// belongs.
    #[must_use]
    pub(crate) fn children_of<O: Resource>(budget: &Arc<Budget>, shard: Shard) -> Kept<K> {
        let name = format!("children of {}/{} {shard}", O::GROUP, O::KIND);
        Kept::within(budget, &name, move |found| match found.metadata().controller() {
            Some(owner) if !owner.is_a::<O>() => Portion::Metadata("its controller is of another kind"),
            Some(owner) if !shard.has(&owner.uid) => Portion::Metadata("its controller is in another shard"),
            Some(_) => Portion::Whole,
            None => Portion::Metadata("it has no controller"),
        })
    }

    /// Watches share a Store only if this is equal.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The bytes of the object in this JSON, or in this line of a watch; an error if the object is too large to be decoded.
    pub(crate) fn weigh(&self, json: &[u8]) -> Result<usize, String> {
        let Some(budget) = self.budget.as_ref().filter(|_| !K::IS_PART) else { return Ok(0) };
        let bytes = weight(json);
        if bytes > budget.object_max { Err(too_large(budget.object_max)) } else { Ok(bytes) }
    }

    /// The object of this many bytes, with or without its content, and the bytes that it takes of the budget until [`Kept::give_back`].
    /// `None`: it counts as absent.
    pub(super) fn limit(&self, found: Found<K>, bytes: usize) -> Option<(Found<K>, u32)> {
        let Some(budget) = &self.budget else { return Some((found, 0)) };
        let (message, cause) = match (&found, (self.filter)(&found)) {
            (_, Portion::Nothing) => return None,
            (Found::Partial(partial), _) => (partial.message.clone(), partial.cause),
            (Found::Readable(_), Portion::Metadata(reason)) => (reason.to_owned(), PartialCause::Unwanted),
            (Found::Readable(object), Portion::Whole) => {
                let metadata = object.metadata();
                let bytes = if K::IS_PART { bytes_of(metadata) } else { bytes };
                match budget.take(metadata.namespace.as_ref(), bytes) {
                    Ok(bytes) => return Some((found, bytes)),
                    Err(problem) => problem,
                }
            }
        };
        let metadata = essential(found.metadata());
        Some((Found::Partial(Arc::new(Partial { metadata, message, cause })), 0))
    }
}

impl<K> Kept<K> {
    /// An object in this namespace no longer takes these bytes.
    pub(super) fn give_back(&self, namespace: Option<&SmolStr>, bytes: u32) {
        let Some(budget) = self.budget.as_ref().filter(|_| bytes > 0) else { return };
        let (mut used, bytes) = (locked(&budget.used), bytes as usize);
        let namespace = namespace.cloned().unwrap_or_default();
        used.all -= bytes;
        match used.by_namespace.get_mut(&namespace) {
            Some(left) if *left > bytes => *left -= bytes,
            Some(_) | None => drop(used.by_namespace.remove(&namespace)),
        }
    }
}

/// About the memory of the object in this JSON: its text, and some bytes for each field and item. Without its managedFields, which are
/// not decoded.
fn weight(json: &[u8]) -> usize {
    let weight = |json: &[u8]| {
        let entries: usize = b",{[".iter().map(|byte| memchr_iter(*byte, json).count()).sum();
        json.len() + ENTRY_BYTES * entries
    };
    let Some(start) = managed_fields(json) else { return weight(json) };
    // They have no other list.
    let end = memmem::find(&json[start..], b"}]").map_or(json.len(), |end| start + end);
    weight(&json[..start]) + weight(&json[end..])
}

/// Where `managedFields` begin in the metadata of an object. A field of that name elsewhere does not count: somebody may have put it there.
fn managed_fields(json: &[u8]) -> Option<usize> {
    let metadata = memmem::find(json, br#""metadata":{"#)?;
    let start = metadata + memmem::find(&json[metadata..], br#""managedFields":["#)?;
    let (mut depth, mut is_text, mut is_escaped) = (0_u32, false, false);
    for byte in &json[metadata..start] {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'"' => is_text = !is_text,
            b'{' | b'[' if !is_text => depth += 1,
            // The end of the metadata.
            b'}' | b']' if !is_text && depth == 1 => return None,
            b'}' | b']' if !is_text => depth -= 1,
            _ => {}
        }
    }
    (depth == 1).then_some(start)
}

fn too_large(bytes_max: usize) -> String {
    format!("the object is too large: more than {} KiB", bytes_max / 1024)
}

/// About the memory of metadata, in addition to a few short texts.
fn bytes_of(metadata: &ObjectMeta) -> usize {
    let owner = |owner: &OwnerReference| {
        size_of::<OwnerReference>() + owner.api_version.len() + owner.kind.len() + owner.name.len()
    };
    let owners: usize = metadata.owner_references.iter().map(owner).sum();
    let finalizers: usize = metadata.finalizers.iter().map(|one| size_of::<SmolStr>() + one.len()).sum();
    metadata.labels.as_selector().len() + metadata.annotations.bytes() + owners + finalizers
}

/// The metadata without labels and annotations, and if there are many, with the controller alone of the owners.
fn essential(metadata: &ObjectMeta) -> ObjectMeta {
    let (labels, annotations) = (Labels::default(), Annotations::default());
    let metadata = ObjectMeta { labels, annotations, ..metadata.clone() };
    let is_small = |metadata: &ObjectMeta| bytes_of(metadata) <= OWNERS_BYTES_MAX;
    if is_small(&metadata) {
        return metadata;
    }
    let owner_references = metadata.controller().cloned().into_iter().collect();
    let short = ObjectMeta { owner_references, finalizers: Box::default(), ..metadata };
    if is_small(&short) { short } else { ObjectMeta { owner_references: Box::default(), ..short } }
}

/// How many bytes the objects of several Stores may take together, in all and in one namespace. So nobody who may create objects in one
/// namespace can take the room of all others.
pub struct Budget {
    /// For the message: `the objects to copy`.
    what: &'static str,
    all_max: usize,
    namespace_max: usize,
    object_max: usize,
    used: Mutex<Used>,
}

#[derive(Default)]
struct Used {
    all: usize,
    by_namespace: HashMap<SmolStr, usize>,
}

impl Budget {
    /// That many bytes for `what`, such as `the objects to copy`; the objects of one namespace may take half of them, also a single one.
    #[must_use]
    pub fn new(what: &'static str, bytes: usize) -> Arc<Budget> {
        Arc::new(Budget::of(what, bytes, bytes / 2))
    }

    /// For all objects that the operators of a process read.
    #[must_use]
    pub fn of_process(mib: u32) -> Arc<Budget> {
        Arc::new(Budget::of("the objects", (mib as usize).saturating_mul(1024 * 1024), OBJECT_BYTES_MAX))
    }

    fn of(what: &'static str, all_max: usize, object_max: usize) -> Budget {
        Budget { what, all_max, namespace_max: all_max / 2, object_max, used: Mutex::default() }
    }

    /// Whether an object of this many bytes would be kept.
    #[must_use]
    pub fn has_room(&self, namespace: &str, bytes: usize) -> bool {
        self.lack(&locked(&self.used), namespace, bytes).is_none()
    }

    /// Why there is no room, if so.
    fn lack(&self, used: &Used, namespace: &str, bytes: usize) -> Option<String> {
        let of_namespace = used.by_namespace.get(namespace).copied().unwrap_or_default();
        let mib = |bytes: usize| bytes / (1024 * 1024);
        let what = self.what;
        if of_namespace + bytes > self.namespace_max {
            let limit = mib(self.namespace_max);
            return Some(format!("{what} from namespace {namespace} take more than {limit} MiB"));
        }
        (used.all + bytes > self.all_max).then(|| format!("{what} take more than {} MiB", mib(self.all_max)))
    }

    fn take(&self, namespace: Option<&SmolStr>, bytes: usize) -> Result<u32, (String, PartialCause)> {
        let counted = u32::try_from(bytes).ok().filter(|_| bytes <= self.object_max);
        let Some(counted) = counted else {
            return Err((too_large(self.object_max), PartialCause::TooLarge));
        };
        let mut used = locked(&self.used);
        let namespace = namespace.cloned().unwrap_or_default();
        if let Some(problem) = self.lack(&used, &namespace, bytes) {
            return Err((problem, PartialCause::NoRoom(bytes)));
        }
        used.all += bytes;
        *used.by_namespace.entry(namespace).or_default() += bytes;
        Ok(counted)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::resource::{
        Meta,
        kinds::{ConfigMap, Deployment},
    };

    fn found(fields: Value, data: &str) -> Found<ConfigMap> {
        let mut metadata = json!({"name": "a", "namespace": "n", "uid": "u", "resourceVersion": "1"});
        metadata.as_object_mut().expect("metadata").extend(fields.as_object().expect("fields").clone());
        Found::from_json(&json!({"metadata": metadata, "data": {"a": data}}).to_string())
            .expect("a ConfigMap")
    }

    fn owner(api_version: &str, kind: &str) -> Value {
        json!({"apiVersion": api_version, "kind": kind, "name": "web", "uid": "u1", "controller": true})
    }

    fn problem<K>((found, _): &(Found<K>, u32)) -> Option<&str> {
        match found {
            Found::Readable(_) => None,
            Found::Partial(partial) => Some(&partial.message),
        }
    }

    #[test]
    fn only_children_of_the_kind_of_owner_keep_their_content() {
        let kept = Kept::children_of::<Deployment>(&Budget::of_process(KEPT_MIB), Shard::default());
        for (owners, is_kept) in [
            (json!([owner("apps/v1", "Deployment")]), true),
            (json!([owner("apps/v2", "Deployment")]), true),
            (json!([owner("example.com/v1", "Deployment")]), false),
            (json!([owner("apps/v1", "StatefulSet")]), false),
            (json!([]), false),
        ] {
            let fields = json!({"ownerReferences": owners, "labels": {"a": "b"}});
            let limited = kept.limit(found(fields, ""), 0).expect("an object");
            assert_eq!(problem(&limited).is_none(), is_kept, "{owners}");
            let metadata = limited.0.metadata();
            // For the message of a NameConflict.
            assert_eq!(metadata.controller().is_some(), owners != json!([]));
            assert_eq!(metadata.labels.is_empty(), !is_kept);
        }
    }

    #[test]
    fn the_weight_is_the_text_and_64_bytes_for_each_field_item_map_and_list_without_managed_fields() {
        let object = |spec: &str| format!(r#"{{"metadata":{{"name":"\"{{"}},"spec":{spec}}}"#);
        let of = |json: &str| weight(json.as_bytes()) - weight(object("0").as_bytes()) + 1;
        assert_eq!(of(&object(r#"["a","b"]"#)), 9 + 2 * ENTRY_BYTES);
        let managed = r#""managedFields":[{"manager":"a","fieldsV1":{"f:spec":{"k:{\"a\":1}":{}}}}]"#;
        let with = |metadata: &str| object("0").replacen(r#"{"name""#, &format!("{{{metadata},\"name\""), 1);
        assert!(of(&with(managed)) < 200 + ENTRY_BYTES);
        let line = format!(r#"{{"type":"ADDED","object":{}}}"#, with(managed));
        assert!(of(&line) < 250 + ENTRY_BYTES);
        // A field of that name elsewhere counts.
        assert!(of(&object(&format!("{{{managed}}}"))) > 80 + 6 * ENTRY_BYTES);
    }

    #[test]
    fn an_object_that_is_too_large_is_not_decoded() {
        let kept = Kept::<ConfigMap>::reconciled(&Budget::of_process(KEPT_MIB), Shard::default());
        let weigh = |spec: String| kept.weigh(format!(r#"{{"metadata":{{}},"spec":{spec}}}"#).as_bytes());
        assert!(weigh(format!("{:?}", "x".repeat(250_000))).is_ok());
        let maps = |count: usize| format!("{}0{}", r#"{"a":"#.repeat(count), "}".repeat(count));
        for large in [format!("{:?}", "x".repeat(300_000)), maps(4_000), format!("[{}0]", "0,".repeat(4_000))]
        {
            assert_eq!(weigh(large), Err("the object is too large: more than 256 KiB".to_owned()));
        }
        assert!(weigh(maps(3_000)).is_ok());
    }

    #[test]
    fn of_many_owners_and_finalizers_only_the_controller_is_kept() {
        let mut owners = vec![owner("v1", "Node"); 50];
        owners.iter_mut().for_each(|owner| owner["controller"] = json!(false));
        owners.push(owner("apps/v1", "Deployment"));
        let finalizers: Vec<_> = (0..200).map(|number| format!("example.com/{number}")).collect();
        let none = Budget::new("the objects", 0);
        let kept = Kept::within(&none, "", |_| Portion::Whole);
        for fields in [json!({"ownerReferences": owners}), json!({"finalizers": finalizers})] {
            let limited = kept.limit(found(fields.clone(), ""), 1).expect("an object");
            let metadata = limited.0.metadata();
            assert!(bytes_of(metadata) <= OWNERS_BYTES_MAX);
            assert_eq!(metadata.controller().is_some(), !fields["ownerReferences"].is_null());
        }
    }

    /// Only the metadata of such a type are in memory, whatever came over the wire.
    #[test]
    fn of_a_type_with_only_some_fields_the_metadata_count() {
        let budget = Budget::of_process(KEPT_MIB);
        let kept = Kept::<Meta<ConfigMap>>::reconciled(&budget, Shard::default());
        assert_eq!(kept.weigh(&vec![b'x'; OBJECT_BYTES_MAX + 1]), Ok(0));
        let metadata = found(json!({"labels": {"a": "b"}}), "").metadata().clone();
        let limited = kept.limit(Found::Readable(Arc::new(metadata.into())), 0).expect("an object");
        assert_eq!((problem(&limited), locked(&budget.used).all), (None, "a=b".len()));
    }

    #[test]
    fn one_namespace_takes_half_of_a_budget_until_its_objects_are_gone() {
        let budget = Budget::new("the objects", 100);
        let kept = Kept::within(&budget, "", |_| Portion::Whole);
        let of = |namespace: &str, bytes: usize| {
            kept.limit(found(json!({"namespace": namespace}), ""), bytes).expect("an object")
        };
        assert!(problem(&of("a", 40)).is_none());
        assert!(problem(&of("a", 11)).is_some_and(|problem| problem.contains("namespace a")));
        assert!(problem(&of("b", 50)).is_none());
        assert!(problem(&of("c", 20)).is_some_and(|problem| problem.contains("take more than")));
        assert!(!budget.has_room("c", 20));
        kept.give_back(Some(&"a".into()), 40);
        assert!(budget.has_room("c", 20));
        kept.give_back(Some(&"b".into()), 50);
        assert!(locked(&budget.used).by_namespace.is_empty() && locked(&budget.used).all == 0);
    }
}
