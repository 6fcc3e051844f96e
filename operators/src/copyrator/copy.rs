//! A copy: its content, and the marks by which the operator knows it again.
//!
//! ```yaml
//! metadata:
//!   name: settings                        # the name of the source
//!   namespace: team-a
//!   labels: {flant.com/copy: "true"}      # for the selector of our watch
//!   annotations:
//!     flant.com/rule: default/main-rule   # the rule, and its uid
//!     flant.com/rule-uid: 00e4f4f5-…
//!     flant.com/source: default/settings
//!     flant.com/place: team-a/settings    # where the copy was written to: a copy of the copy is none
//!     flant.com/content: 9f86d081884c…    # a digest of everything that is copied
//! ```
//!
//! Copies have no ownerReferences, because their owner is in another namespace.

use std::{
    collections::{BTreeMap, HashSet},
    sync::{
        Arc, LazyLock, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use listwatch::resource::{
    Accept, Annotations, Key, Labels, ObjectMeta, Resource, Uid,
    kinds::{ConfigMap, Secret},
};
use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize, Serializer};
use smol_str::SmolStr;

use super::{
    locked,
    types::{CopyratorRule, CopyratorSpec, RuleType},
};

/// The label of each copy.
pub const LABEL: &str = "flant.com/copy";
/// Selects all copies.
pub const ALL_COPIES: &str = "flant.com/copy=true";
const RULE: &str = "flant.com/rule";
const RULE_UID: &str = "flant.com/rule-uid";
const PLACE: &str = "flant.com/place";
const SOURCE: &str = "flant.com/source";
const CONTENT: &str = "flant.com/content";
/// The keys of the copied labels and annotations, if there are any: those that the source loses are removed.
const LABELS: &str = "flant.com/labels";
const ANNOTATIONS: &str = "flant.com/annotations";
/// The domain of the label and the annotations of the operator.
const OURS: &str = "flant.com/";
/// The keys that a Secret of these types must have:
/// <https://kubernetes.io/docs/concepts/configuration/secret/#secret-types>.
const REQUIRED_KEYS: [(&str, &[&str]); 4] = [
    ("kubernetes.io/tls", &["tls.crt", "tls.key"]),
    ("kubernetes.io/dockerconfigjson", &[".dockerconfigjson"]),
    ("kubernetes.io/dockercfg", &[".dockercfg"]),
    ("kubernetes.io/ssh-auth", &["ssh-privatekey"]),
];

/// Bytes of the digest that are kept. Two contents with the same one do not come by chance.
const DIGEST_BYTES: usize = 16;
/// Bytes of an entry of a map, without its texts: two `String`s, and the overhead of map and allocator.
const ENTRY_BYTES: usize = 128;
/// Longest value of a mark that is kept: the namespace and name of an object.
const MARK_LENGTH_MAX: usize = 63 + 1 + 253;

/// A kind of which objects can be copied.
pub trait Copyable: Resource + Clone + Default + Serialize {
    /// The `ruleType`.
    const RULE_TYPE: RuleType;

    /// An object with the content of this one: its data, type and `immutable`.
    #[must_use]
    fn with(&self, metadata: ObjectMeta) -> Self;

    /// The same, with the keys that the rule copies, by the names that it gives them.
    #[must_use]
    fn with_keys(&self, metadata: ObjectMeta, spec: &CopyratorSpec) -> Self;

    /// The bytes that it takes in memory, about.
    fn bytes(&self) -> usize;

    /// The type of a Secret.
    fn secret_type(&self) -> &str {
        ""
    }
}

/// The entries that a rule copies, by the names that it gives them. A renamed one replaces another of that name.
fn renamed(entries: &BTreeMap<String, String>, spec: &CopyratorSpec) -> BTreeMap<String, String> {
    let (renamed, others): (Vec<_>, Vec<_>) =
        entries.iter().partition(|(key, _)| spec.rename.contains_key(key.as_str()));
    let copied = others.into_iter().chain(renamed);
    copied.filter_map(|(key, value)| Some((spec.name_of_key(key)?.to_owned(), value.clone()))).collect()
}

/// The bytes of metadata and maps, each entry with two texts and its share of a map.
fn bytes_of(metadata: &ObjectMeta, maps: &[&BTreeMap<String, String>]) -> usize {
    let entries = maps.iter().flat_map(|map| map.iter());
    let entries = entries.map(|(key, value)| ENTRY_BYTES + key.len() + value.len());
    ENTRY_BYTES + metadata.labels.as_selector().len() + metadata.annotations.bytes() + entries.sum::<usize>()
}

impl Copyable for ConfigMap {
    const RULE_TYPE: RuleType = RuleType::Configmap;

    fn with(&self, metadata: ObjectMeta) -> ConfigMap {
        ConfigMap { metadata, ..self.clone() }
    }

    fn with_keys(&self, metadata: ObjectMeta, spec: &CopyratorSpec) -> ConfigMap {
        let (data, binary_data) = (renamed(&self.data, spec), renamed(&self.binary_data, spec));
        ConfigMap { metadata, data, binary_data, ..*self }
    }

    fn bytes(&self) -> usize {
        bytes_of(&self.metadata, &[&self.data, &self.binary_data])
    }
}

impl Copyable for Secret {
    const RULE_TYPE: RuleType = RuleType::Secret;

    fn with(&self, metadata: ObjectMeta) -> Secret {
        Secret { metadata, ..self.clone() }
    }

    fn with_keys(&self, metadata: ObjectMeta, spec: &CopyratorSpec) -> Secret {
        let data = renamed(&self.data, spec);
        let lacks = |keys: &[&str]| keys.iter().any(|key| !data.contains_key(*key));
        let is_opaque = REQUIRED_KEYS.iter().any(|(of, keys)| self.r#type == *of && lacks(keys))
            || self.r#type == "kubernetes.io/basic-auth" && lacks(&["username"]) && lacks(&["password"]);
        let r#type = if is_opaque { "Opaque".into() } else { self.r#type.clone() };
        Secret { metadata, r#type, data, ..*self }
    }

    fn bytes(&self) -> usize {
        bytes_of(&self.metadata, &[&self.data])
    }

    fn secret_type(&self) -> &str {
        &self.r#type
    }
}

/// The source and the rule of copies, from which each copy is made.
pub struct Original<K> {
    source: Arc<K>,
    rule: Key,
    rule_uid: Uid,
    spec: Arc<CopyratorSpec>,
    labels: Labels,
    annotations: Annotations,
    digest: SmolStr,
}

/// The content of a source that a rule copies. Made anew for each use: all rules share the sources in memory, whatever keys they copy.
fn content<K: Copyable>(source: &K, spec: &CopyratorSpec, metadata: ObjectMeta) -> K {
    match spec.copies_all_keys() {
        true => source.with(metadata),
        false => source.with_keys(metadata, spec),
    }
}

impl<K: Copyable> Original<K> {
    /// The copies of `source` get what the rule, which has this spec, copies of it.
    #[must_use]
    pub fn new(rule: &CopyratorRule, spec: &Arc<CopyratorSpec>, source: Arc<K>) -> Original<K> {
        let ObjectMeta { labels, annotations, .. } = source.metadata();
        let labels: Labels = labels.iter().filter(|(key, _)| spec.is_copied_label(key)).collect();
        let annotations: Annotations =
            annotations.iter().filter(|(key, _)| spec.is_copied_annotation(key)).collect();
        let metadata =
            ObjectMeta { labels: labels.clone(), annotations: annotations.clone(), ..ObjectMeta::default() };
        let content = content(&*source, spec, metadata);
        let digest = digest(&SHA256, &serde_json::to_vec(&content).expect("texts are JSON"));
        let digest: SmolStr =
            digest.as_ref()[..DIGEST_BYTES].iter().map(|byte| format!("{byte:02x}")).collect();
        let (rule, rule_uid) = (rule.key(), rule.metadata.uid.clone());
        Original { digest, source, rule, rule_uid, spec: Arc::clone(spec), labels, annotations }
    }

    /// The copy for a namespace.
    #[must_use]
    pub fn copy_for(&self, namespace: &str) -> K {
        let label_keys: Vec<&str> = self.labels.iter().map(|(key, _)| key).collect();
        let annotation_keys: Vec<&str> = self.annotations.iter().map(|(key, _)| key).collect();
        let key = Key::namespaced(namespace, self.name());
        let marks = [
            (RULE, self.rule.to_string()),
            (RULE_UID, self.rule_uid.to_string()),
            (PLACE, key.to_string()),
            (SOURCE, self.source.key().to_string()),
            (LABELS, label_keys.join(",")),
            (ANNOTATIONS, annotation_keys.join(",")),
            (CONTENT, self.digest.to_string()),
        ];
        let marks = marks.iter().filter(|(_, value)| !value.is_empty());
        let metadata = ObjectMeta {
            name: key.name,
            namespace: key.namespace,
            labels: self.labels.iter().chain([(LABEL, "true")]).collect(),
            annotations: self.annotations.iter().chain(marks.map(|(key, value)| (*key, &**value))).collect(),
            ..ObjectMeta::default()
        };
        content(&*self.source, &self.spec, metadata)
    }

    /// The name of the source and of each copy.
    #[must_use]
    pub fn name(&self) -> &SmolStr {
        &self.source.metadata().name
    }

    /// The source and its version, for [`Once`](super::types::Once). Not its digest, from which the data of a Secret might be
    /// guessed.
    #[must_use]
    pub fn version(&self) -> String {
        format!("{}@{}", self.source.key(), self.source.metadata().resource_version)
    }

    /// The bytes of the source.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.source.bytes()
    }

    /// The digest of the content.
    #[must_use]
    pub fn digest(&self) -> &SmolStr {
        &self.digest
    }

    /// Whether the copy with these marks was made from this source by any rule, and has the present content.
    #[must_use]
    pub fn is_up_to_date(&self, mark: &Mark) -> bool {
        self.is_source_of(mark) && mark.digest == self.digest
    }

    /// Whether the copy with these marks was made from this source.
    #[must_use]
    pub fn is_source_of(&self, mark: &Mark) -> bool {
        Some(&mark.source_namespace) == self.source.metadata().namespace.as_ref()
    }
}

/// The marks of a copy, as its annotations have them. All copies of one source and rule share them.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Mark {
    /// The rule for which the copy was made.
    pub rule: Key,
    /// The uid of that rule.
    pub rule_uid: Uid,
    /// The namespace of the source, which has the name of the copy. Empty if somebody has edited it.
    pub source_namespace: SmolStr,
    /// The digest of the content. Empty if somebody has removed it.
    pub digest: SmolStr,
}

impl Mark {
    /// The marks of an object, if it is a copy that was written to this place. An object with a controller is the controller's, whatever
    /// marks it has.
    #[must_use]
    pub fn of(metadata: &ObjectMeta) -> Option<Arc<Mark>> {
        if metadata.controller().is_some() {
            return None;
        }
        let get = |name| metadata.annotations.get(name).unwrap_or_default();
        let is_short = |name| get(name).len() <= MARK_LENGTH_MAX;
        if ![RULE, RULE_UID, CONTENT].into_iter().all(is_short) || get(PLACE) != metadata.key().to_string() {
            return None;
        }
        let (rule, rule_uid) = (Key::parse(get(RULE))?, metadata.annotations.get(RULE_UID)?.into());
        let source = Key::parse(get(SOURCE)).filter(|source| source.name == metadata.name);
        let source = source.filter(|_| is_short(SOURCE));
        let source_namespace = source.and_then(|source| source.namespace).unwrap_or_default();
        Some(Mark { rule, rule_uid, source_namespace, digest: get(CONTENT).into() }.shared())
    }

    /// Whether somebody has removed the source or the digest.
    #[must_use]
    pub fn is_incomplete(&self) -> bool {
        self.source_namespace.is_empty() || self.digest.is_empty()
    }

    /// The marks that an equal copy has already.
    fn shared(self) -> Arc<Mark> {
        static KNOWN: LazyLock<Mutex<HashSet<Arc<Mark>>>> = LazyLock::new(Mutex::default);
        let mut marks = locked(&KNOWN);
        if let Some(known) = marks.get(&self) {
            return Arc::clone(known);
        }
        // Before the set grows, the marks that no copy has any more are dropped.
        if marks.len() == marks.capacity() {
            marks.retain(|mark| Arc::strong_count(mark) > 1);
        }
        let mark = Arc::new(self);
        marks.insert(Arc::clone(&mark));
        mark
    }
}

/// The paths of the labels and annotations of a copy that are ours, also if the source has lost them since.
pub(super) fn owned(ObjectMeta { labels, annotations, .. }: &ObjectMeta) -> Vec<String> {
    let keys = |mark| annotations.get(mark).unwrap_or_default().split(',');
    let labels = keys(LABELS).filter(|key| labels.get(key).is_some()).map(|key| ("labels", key));
    let copied = keys(ANNOTATIONS).filter(|key| annotations.get(key).is_some()).chain([LABELS, ANNOTATIONS]);
    let all = labels.chain(copied.map(|key| ("annotations", key)));
    all.map(|(map, key)| format!("/metadata/{map}/{}", key.replace('/', "~1"))).collect()
}

/// The copy `desired` with the content, the labels and the annotations of `live`, which somebody may have edited.
pub(super) fn with_edits<K: Copyable>(desired: &K, live: &K) -> K {
    let (theirs, ours) = (live.metadata(), desired.metadata());
    let labels = theirs.labels.iter().filter(|(key, _)| *key != LABEL).chain([(LABEL, "true")]).collect();
    let annotations = theirs.annotations.iter().filter(|(key, _)| !key.starts_with(OURS));
    let marks = ours.annotations.iter().filter(|(key, _)| key.starts_with(OURS));
    let annotations = annotations.chain(marks).collect();
    live.with(ObjectMeta { labels, annotations, ..ours.clone() })
}

/// A copy in our watch: its metadata without annotations, because there are many copies, and its marks. To create a copy, it
/// also has a body.
#[derive(Deserialize)]
#[serde(from = "AsDecoded", bound = "")]
pub struct Copied<K> {
    metadata: ObjectMeta,
    /// The marks, if they are readable, and if this is the place to which the copy was written.
    pub mark: Option<Arc<Mark>>,
    /// Whether we have seen the content of this version. A change of the content changes nothing in the metadata but the
    /// version.
    is_verified: AtomicBool,
    body: Option<Box<K>>,
}

#[derive(Deserialize)]
struct AsDecoded {
    metadata: ObjectMeta,
}

impl<K> From<AsDecoded> for Copied<K> {
    fn from(AsDecoded { metadata }: AsDecoded) -> Copied<K> {
        let mark = Mark::of(&metadata);
        let label = metadata.labels.get(LABEL).map(|value| (LABEL, value));
        let metadata = ObjectMeta {
            labels: label.into_iter().collect(),
            annotations: Annotations::default(),
            owner_references: Box::default(),
            ..metadata
        };
        Copied { metadata, mark, is_verified: AtomicBool::new(false), body: None }
    }
}

impl<K: Copyable> Copied<K> {
    /// The metadata of an object that we have read.
    #[must_use]
    pub fn of(object: &K) -> Copied<K> {
        Copied::from(AsDecoded { metadata: object.metadata().clone() })
    }

    /// A copy to create.
    #[must_use]
    pub fn to_create(object: K) -> Copied<K> {
        let metadata = Copied::of(&object);
        Copied { body: Some(Box::new(object)), ..metadata }
    }

    /// We have written or read this version, and it has the content of its digest.
    pub fn verified(&self) {
        self.is_verified.store(true, Ordering::Relaxed);
    }

    /// The content must be read again.
    pub fn doubted(&self) {
        self.is_verified.store(false, Ordering::Relaxed);
    }

    /// Whether [`Copied::verified`] was called.
    #[must_use]
    pub fn is_verified(&self) -> bool {
        self.is_verified.load(Ordering::Relaxed)
    }
}

impl<K: Copyable> Serialize for Copied<K> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.body.serialize(serializer)
    }
}

listwatch::kind!(Copied<K: Copyable>: K, { const ACCEPT: Accept = Accept::MetadataOnly; });
