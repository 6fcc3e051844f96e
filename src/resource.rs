//! The shape of Kubernetes objects: kind, key, metadata, conditions.
//!
//! Every object on the wire has these fields:
//!
//! ```json
//! {"apiVersion": "apps/v1", "kind": "Deployment",
//!  "metadata": {"name": "web", "namespace": "default", "uid": "00e4f4f5-…", "resourceVersion": "1205", "generation": 1},
//!  "spec": {…}, "status": {…}}
//! ```
//!
//! Other writers own fields of the same objects. So an object is never written back as a whole: the differences are patched
//! ([`diff`]). Nothing in this file does I/O.

pub mod conditions;
pub mod diff;
pub mod kinds;
mod annotations;
mod labels;
pub mod list;
mod selector;
mod timestamp;
mod uid;

use std::{cmp::Ordering, fmt, marker::PhantomData};

use serde::{
    Deserialize, Serialize,
    de::{self, DeserializeOwned},
};
use serde_json::Value;
use smol_str::SmolStr;

pub(crate) use annotations::paused;
pub use annotations::{Annotations, only_paused, without_annotations};
use diff::MergeRule;
pub use labels::Labels;
pub use selector::{InvalidSelector, LabelSelector, LabelSelectorOperator, LabelSelectorRequirement};
pub use timestamp::Timestamp;
pub use uid::Uid;

/// A kind of object: its path in the API and its Rust type.
pub trait Resource: DeserializeOwned + Send + Sync + 'static {
    /// API group, empty for the core group.
    const GROUP: &'static str;
    /// The version of the group in which objects are read and written.
    const VERSION: &'static str;
    /// The name of the collection in a URL.
    const PLURAL: &'static str;
    /// The name in `kind:`.
    const KIND: &'static str;
    /// The fields that are merged in a special way, by path. Of all other fields, an operator owns the ones that it sets: see
    /// [`diff`].
    const MERGE: &'static [MergeRule] = &[];
    /// The command that installs the CRD of this kind, for the error if it is missing. Empty: not known.
    const INSTALL: &'static str = "";
    /// The media type of requests. [`Meta`] has metadata alone.
    const ACCEPT: Accept = Accept::Whole;
    /// Whether the type has little beside the metadata, whatever came over the wire: a Store counts the bytes of the metadata alone.
    const IS_PART: bool = matches!(Self::ACCEPT, Accept::MetadataOnly);

    /// Name, labels, owners, versions.
    fn metadata(&self) -> &ObjectMeta;

    /// Whether the field at this JSON pointer can never change. To change it, the object is deleted and created again.
    fn is_immutable(&self, path: &str) -> bool {
        let _ = path;
        false
    }

    /// Namespace and name.
    fn key(&self) -> Key {
        self.metadata().key()
    }

    /// `apps/v1`, or `v1` for the core group.
    fn api_version() -> String {
        match Self::GROUP {
            "" => Self::VERSION.to_owned(),
            group => format!("{group}/{}", Self::VERSION),
        }
    }

    /// `/apis/apps/v1/namespaces/default/deployments`; without a namespace, the collection across all of them.
    fn collection_path(namespace: Option<&str>) -> String {
        let root = if Self::GROUP.is_empty() { "/api/" } else { "/apis/" };
        let (api, plural) = (Self::api_version(), Self::PLURAL);
        match namespace {
            Some(namespace) => format!("{root}{api}/namespaces/{namespace}/{plural}"),
            None => format!("{root}{api}/{plural}"),
        }
    }
}

/// Declares a kind by the type of its objects, with group, version and plural: `kind!(Page, "example.com", "v1", "pages")`.
/// The type has the name that is in `kind:`, and a field `metadata` of the type [`ObjectMeta`]. A block after the plural has
/// what differs from the defaults of [`Resource`]: `kind!(Page, "example.com", "v1", "pages", { const MERGE: … })`.
///
/// `kind!(MyPod: Pod)` declares a type with only some fields of a kind, so that a watch of many objects takes little memory.
/// It may be generic over the kind: `kind!(Meta<K: Resource>: K)`.
#[macro_export]
macro_rules! kind {
    ($kind:ident, $group:literal, $version:literal, $plural:literal $(, { $($more:tt)* })?) => {
        impl $crate::resource::Resource for $kind {
            const GROUP: &'static str = $group;
            const VERSION: &'static str = $version;
            const PLURAL: &'static str = $plural;
            const KIND: &'static str = stringify!($kind);

            fn metadata(&self) -> &$crate::resource::ObjectMeta {
                &self.metadata
            }

            $($($more)*)?
        }
    };
    ($part:ident $(<$object:ident: $bound:path>)?: $kind:ty $(, { $($more:tt)* })?) => {
        impl $(<$object: $bound>)? $crate::resource::Resource for $part $(<$object>)? {
            const GROUP: &'static str = <$kind as $crate::resource::Resource>::GROUP;
            const VERSION: &'static str = <$kind as $crate::resource::Resource>::VERSION;
            const PLURAL: &'static str = <$kind as $crate::resource::Resource>::PLURAL;
            const KIND: &'static str = <$kind as $crate::resource::Resource>::KIND;
            const MERGE: &'static [$crate::resource::diff::MergeRule] = <$kind as $crate::resource::Resource>::MERGE;
            const INSTALL: &'static str = <$kind as $crate::resource::Resource>::INSTALL;
            const IS_PART: bool = true;

            fn metadata(&self) -> &$crate::resource::ObjectMeta {
                &self.metadata
            }

            $($($more)*)?
        }
    };
}

/// Decodes JSON. One UTF-8 check of the whole text is faster than one of each string, and with it, each type has one decoder.
pub(crate) fn from_json<'a, T: Deserialize<'a>>(json: &'a [u8]) -> Result<T, serde_json::Error> {
    serde_json::from_str(str::from_utf8(json).map_err(de::Error::custom)?)
}

/// Removes the fields that are `null`: such a field counts as absent, and the API server drops it.
pub(crate) fn remove_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, value| !value.is_null());
            fields.values_mut().for_each(remove_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(remove_nulls),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Sets to `null` in a merge patch what it lacks: otherwise, the patch would leave it.
pub(crate) fn remove_missing(before: &Value, patch: &mut Value) {
    let (Value::Object(before), Value::Object(patch)) = (before, patch) else { return };
    for (field, before) in before {
        match patch.get_mut(field) {
            Some(after) => remove_missing(before, after),
            None => drop(patch.insert(field.clone(), Value::Null)),
        }
    }
}

/// How much of an object to ask the API server for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accept {
    /// `application/json`: everything.
    Whole,
    /// `application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1`: apiVersion, kind and metadata.
    MetadataOnly,
}

/// Names one object of a kind.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// `None` for a kind that has no namespaces.
    pub namespace: Option<SmolStr>,
    /// `metadata.name`.
    pub name: SmolStr,
}

impl Key {
    /// The object `name` in `namespace`.
    #[must_use]
    pub fn namespaced(namespace: &str, name: &str) -> Key {
        Key { namespace: Some(namespace.into()), name: name.into() }
    }

    /// The object `name` of a kind without namespaces.
    #[must_use]
    pub fn cluster(name: &str) -> Key {
        Key { namespace: None, name: name.into() }
    }

    /// Parses `namespace/name`, as [`Display`](fmt::Display) writes the key of an object in a namespace.
    #[must_use]
    pub fn parse(text: &str) -> Option<Key> {
        let (namespace, name) = text.split_once('/')?;
        Some(Key::namespaced(namespace, name))
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(f, "{namespace}/{}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

/// The objects of one list or watch: of one namespace or of all, with selectors.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Scope {
    /// `None`: all namespaces.
    pub namespace: Option<String>,
    /// A label selector as in a URL, `app=web,tier in (a,b)`. Empty: everything.
    pub labels: String,
    /// A field selector, `type=kubernetes.io/tls`. Empty: everything.
    pub fields: String,
}

impl Scope {
    /// One object.
    #[must_use]
    pub fn one(key: &Key) -> Scope {
        let namespace = key.namespace.as_ref().map(ToString::to_string);
        Scope { namespace, fields: format!("metadata.name={}", key.name), ..Scope::default() }
    }

    /// One scope for each namespace, or one for all namespaces if none is named, with a label selector as in
    /// [`Scope::labels`].
    #[must_use]
    pub fn each(namespaces: &[String], labels: &str) -> Vec<Scope> {
        let scope = |namespace| Scope { namespace, labels: labels.to_owned(), ..Scope::default() };
        match namespaces {
            [] => vec![scope(None)],
            some => some.iter().map(|namespace| scope(Some(namespace.clone()))).collect(),
        }
    }

    /// Whether it has a selector.
    pub fn is_filtered(&self) -> bool {
        !self.labels.is_empty() || !self.fields.is_empty()
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(f, "namespace {namespace}")?,
            None => f.write_str("all namespaces")?,
        }
        if !self.labels.is_empty() {
            write!(f, ", labels {}", self.labels)?;
        }
        if self.fields.is_empty() { Ok(()) } else { write!(f, ", fields {}", self.fields) }
    }
}

/// The metadata that we read. See <https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/object-meta/>.
///
/// `managedFields`, most of an object's bytes, are skipped while reading. A kind that does not use the annotations leaves them out:
/// see [`without_annotations`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectMeta {
    /// Unique in its namespace and kind, while it exists.
    pub name: SmolStr,
    /// `None` for kinds without namespaces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<SmolStr>,
    /// Unique for ever: a recreated object of the same name has another one.
    #[serde(default, skip_serializing_if = "Uid::is_empty")]
    pub uid: Uid,
    /// Changes at every write. Opaque but for [`compare_versions`].
    #[serde(skip_serializing_if = "SmolStr::is_empty")]
    pub resource_version: SmolStr,
    /// Counts the changes of what is asked for (`spec`), not of what is reported (`status`).
    #[serde(default, skip_serializing_if = "is_zero")]
    pub generation: i64,
    /// When the API server created the object. `None` for an object that is not created yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub creation_timestamp: Option<Timestamp>,
    /// Set: the object is being deleted, and is there only until its finalizers are done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletion_timestamp: Option<Timestamp>,
    /// Labels, which selectors look at.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
    /// Notes for people and tools.
    #[serde(default, deserialize_with = "kinds::or_default", skip_serializing_if = "Annotations::is_empty")]
    pub annotations: Annotations,
    /// The owners of this object; the garbage collector deletes the object after them. Not kept in place, because copies
    /// have none, and there are many of them.
    #[serde(default, skip_serializing_if = "is_empty")]
    pub owner_references: Box<[OwnerReference]>,
    /// The object is deleted when this list is empty: each entry stands for a cleanup.
    #[serde(default, skip_serializing_if = "is_empty")]
    pub finalizers: Box<[SmolStr]>,
}

/// The label with the name of the operator that manages an object:
/// <https://kubernetes.io/docs/concepts/overview/working-with-objects/common-labels/>.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// The label with the name of the object to which another one belongs, from the same page.
pub const INSTANCE: &str = "app.kubernetes.io/instance";

/// The object that the label [`INSTANCE`] names, in the same namespace: for objects that have no owner, or another one, as a Pod has a
/// ReplicaSet.
pub fn instance_of<K: Resource>(object: &K) -> Option<Key> {
    let ObjectMeta { namespace, labels, .. } = object.metadata();
    Some(Key { namespace: namespace.clone(), name: labels.get(INSTANCE)?.into() })
}

impl ObjectMeta {
    /// The metadata of a child: in the namespace of its owner, and controlled by it.
    #[must_use]
    pub fn of_child<O: Resource>(owner: &O, name: &str, labels: Labels) -> ObjectMeta {
        ObjectMeta {
            name: name.into(),
            namespace: owner.metadata().namespace.clone(),
            labels,
            owner_references: [OwnerReference::controlled_by(owner)].into(),
            ..ObjectMeta::default()
        }
    }

    /// Namespace and name.
    #[must_use]
    pub fn key(&self) -> Key {
        Key { namespace: self.namespace.clone(), name: self.name.clone() }
    }

    /// Whether a user has paused the operator of this object, by the annotation `GROUP/paused: "true"`, with the group of the kind.
    #[must_use]
    pub(crate) fn is_paused<K: Resource>(&self) -> bool {
        self.annotations.get(&paused::<K>()) == Some("true")
    }

    /// Notes in the annotation `GROUP/owned-fields` that this child owns the fields at these paths, with the group of its owner: its operator
    /// sets them now, and perhaps not later. So each is removed when it is no longer desired, and a field that was never desired stays as
    /// another writer has set it. A path is a JSON pointer, with `*` for each item of a list.
    pub fn also_owning<O: Resource>(&mut self, paths: impl IntoIterator<Item = String>) {
        let name = owned_fields::<O>();
        let known = self.annotations.get(&name).map(str::to_owned);
        let paths = known.into_iter().chain(paths).collect::<Vec<_>>().join(" ");
        if !paths.is_empty() {
            let others = self.annotations.iter().filter(|(other, _)| *other != name);
            self.annotations = others.chain([(&*name, &*paths)]).collect();
        }
    }

    /// Deleted, and waiting for its finalizers.
    #[must_use]
    pub fn is_terminating(&self) -> bool {
        self.deletion_timestamp.is_some()
    }

    /// The one owner that manages this object (`controller: true`), if any.
    #[must_use]
    pub fn controller(&self) -> Option<&OwnerReference> {
        self.owner_references.iter().find(|owner| owner.controller)
    }

    /// Whether this object is a child of the owner with this metadata. An object of the same name with another uid is another owner.
    #[must_use]
    pub fn is_controlled_by(&self, owner: &ObjectMeta) -> bool {
        self.controller().is_some_and(|by| by.uid == owner.uid)
    }
}

/// The annotation of [`ObjectMeta::also_owning`].
pub(crate) fn owned_fields<O: Resource>() -> String {
    format!("{}/owned-fields", O::GROUP)
}

fn is_zero(number: &i64) -> bool {
    *number == 0
}

fn is_empty<T>(list: &[T]) -> bool {
    list.is_empty()
}

/// One entry of `metadata.ownerReferences`. The owner lives in the same namespace or in none.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OwnerReference {
    /// Group and version in which the owner was seen.
    pub api_version: SmolStr,
    /// Kind of the owner.
    pub kind: SmolStr,
    /// Name of the owner.
    pub name: SmolStr,
    /// The owner itself: a later object of the same name is not the owner.
    pub uid: Uid,
    /// Whether this owner manages the object. At most one does.
    #[serde(default)]
    pub controller: bool,
    /// Whether the owner, deleted in the foreground, waits for this object.
    #[serde(default)]
    pub block_owner_deletion: bool,
}

impl OwnerReference {
    /// The reference by which `owner` manages a child.
    #[must_use]
    pub fn controlled_by<K: Resource>(owner: &K) -> OwnerReference {
        let metadata = owner.metadata();
        OwnerReference {
            api_version: K::api_version().into(),
            kind: K::KIND.into(),
            name: metadata.name.clone(),
            uid: metadata.uid.clone(),
            controller: true,
            block_owner_deletion: true,
        }
    }

    /// Whether the owner is of kind `K`, in whatever version it was written.
    #[must_use]
    pub fn is_a<K: Resource>(&self) -> bool {
        let group = self.api_version.rsplit_once('/').map_or("", |(group, _version)| group);
        group == K::GROUP && self.kind == K::KIND
    }
}

/// One line of `status.conditions`, as in `metav1.Condition`.
/// See <https://github.com/kubernetes/community/blob/master/contributors/devel/sig-architecture/api-conventions.md#typical-status-properties>.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Condition {
    /// The name of the condition, an adjective: `Ready`.
    pub r#type: SmolStr,
    /// `True`, `False` or `Unknown`.
    pub status: SmolStr,
    /// Why, for programs: one CamelCase word.
    pub reason: SmolStr,
    /// Why, for people.
    pub message: SmolStr,
    /// When `status` last changed, RFC 3339 in whole seconds.
    pub last_transition_time: SmolStr,
    /// The `metadata.generation` to which the condition applies.
    #[serde(skip_serializing_if = "is_zero")]
    pub observed_generation: i64,
}

/// An object of any kind of which only the metadata is asked for and kept, without annotations, which may be large.
#[derive(Debug, Deserialize)]
#[serde(bound = "")]
pub struct Meta<K> {
    /// The metadata of a `K`.
    #[serde(deserialize_with = "without_annotations")]
    pub metadata: ObjectMeta,
    #[serde(skip)]
    kind: PhantomData<fn() -> K>,
}

impl<K: Resource> Meta<K> {
    /// The metadata of an object.
    pub fn of(object: &K) -> Meta<K> {
        object.metadata().clone().into()
    }
}

impl<K> From<ObjectMeta> for Meta<K> {
    fn from(metadata: ObjectMeta) -> Meta<K> {
        Meta { metadata, kind: PhantomData }
    }
}

kind!(Meta<K: Resource>: K, { const ACCEPT: Accept = Accept::MetadataOnly; });

/// `kind: Status`: how the API server says no, in an error's body and in a watch's `ERROR` event.
/// See <https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/status/>.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Status {
    /// HTTP status code.
    pub code: u16,
    /// One word for programs: `AlreadyExists`, `Conflict`, `Expired`, … Absent in unclassified errors.
    pub reason: String,
    /// For people.
    pub message: String,
    /// The object that the Status is about.
    pub details: StatusDetails,
}

/// The part of a [`Status`] that programs look at.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StatusDetails {
    /// The object's name; absent where the whole kind is unknown.
    pub name: String,
    /// The resource (`deployments`) or the kind, depending on the error.
    pub kind: String,
    /// Each thing that is wrong.
    pub causes: Vec<StatusCause>,
    /// When to try again, 0 where the server does not say.
    pub retry_after_seconds: u64,
}

/// One thing that is wrong, in [`StatusDetails`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StatusCause {
    /// One word for programs.
    pub reason: String,
    /// For people.
    pub message: String,
    /// Path of the field.
    pub field: String,
}

impl Status {
    /// The server no longer has the history since the requested version. Servers before 1.18 send the reason `Gone`.
    #[must_use]
    pub fn is_expired(&self) -> bool {
        self.code == 410 || self.reason == "Expired" || self.reason == "Gone"
    }

    /// The requested version is newer than the server's.
    #[must_use]
    pub fn is_too_new(&self) -> bool {
        self.has_cause("ResourceVersionTooLarge")
    }

    /// Whether one of the causes has this reason.
    #[must_use]
    pub(crate) fn has_cause(&self, reason: &str) -> bool {
        self.details.causes.iter().any(|cause| cause.reason == reason)
    }
}

/// Orders two resourceVersions of the same resource, or says that they cannot be ordered.
///
/// They are decimal numbers of any length without leading zeros
/// ([KEP-5504](https://github.com/kubernetes/enhancements/issues/5504)): the longer is the newer, of equal length the
/// larger. Anything else (`""`, `"0"`, `"007"`, `"abc"`) is only equal or different.
#[must_use]
pub fn compare_versions(one: &str, other: &str) -> Option<Ordering> {
    let is_number =
        |text: &str| !text.is_empty() && !text.starts_with('0') && text.bytes().all(|b| b.is_ascii_digit());
    if !is_number(one) || !is_number(other) {
        return None;
    }
    Some(one.len().cmp(&other.len()).then_with(|| one.cmp(other)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_ordered_as_numbers_of_any_length() {
        let order = |one, other| compare_versions(one, other);
        assert_eq!(order("9", "10"), Some(Ordering::Less));
        assert_eq!(order("10", "9"), Some(Ordering::Greater));
        assert_eq!(order("170141183460469231731687303715884105728", "9"), Some(Ordering::Greater));
        assert_eq!(order("12", "12"), Some(Ordering::Equal));
        for odd in ["", "0", "007", "abc", "1.5", "-3", "１"] {
            assert_eq!(order(odd, "5"), None, "{odd}");
            assert_eq!(order("5", odd), None, "{odd}");
        }
    }

    #[test]
    fn paths_follow_group_namespace_and_name() {
        use kinds::{Deployment, Service};
        assert_eq!(<Deployment>::collection_path(None), "/apis/apps/v1/deployments");
        assert_eq!(<Deployment>::collection_path(Some("a")), "/apis/apps/v1/namespaces/a/deployments");
        assert_eq!(Service::collection_path(Some("a")), "/api/v1/namespaces/a/services");
    }
}
