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
    collections::BTreeMap,
    marker::PhantomData,
    sync::atomic::{AtomicBool, Ordering},
};

use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize, Serializer};
use smol_str::{SmolStr, ToSmolStr};

use super::{
    objects::{Content, Kind, Object},
    types::CopyratorRule,
};
use crate::resource::{Accept, Key, Labels, ObjectMeta, Resource, Timestamp, Uid};

/// The label of each copy.
pub const LABEL: &str = "flant.com/copy";
/// Selects all copies.
pub const ALL_COPIES: &str = "flant.com/copy=true";
const RULE: &str = "flant.com/rule";
const RULE_UID: &str = "flant.com/rule-uid";
const SOURCE: &str = "flant.com/source";
const PLACE: &str = "flant.com/place";
const CONTENT: &str = "flant.com/content";
/// The keys of the copied labels, if there are any: those that the source loses are removed.
const LABELS: &str = "flant.com/labels";

/// Bytes of the digest that are kept. Two contents with the same one do not come by chance.
const DIGEST_BYTES: usize = 16;

/// The source and the rule of copies, from which each copy is made.
pub struct Original<K> {
    content: Content,
    source: Key,
    rule: Key,
    rule_uid: Uid,
    labels: Labels,
    digest: SmolStr,
    kind: PhantomData<fn() -> K>,
}

impl<K: Kind> Original<K> {
    /// The copies of `source` get those of its labels that `is_copied` allows.
    #[must_use]
    pub fn new(rule: &CopyratorRule, source: &Object<K>, is_copied: impl Fn(&str) -> bool) -> Original<K> {
        let labels: Labels = source.metadata.labels.iter().filter(|(key, _)| is_copied(key)).collect();
        let mut bytes = serde_json::to_vec(&source.content).expect("texts are JSON");
        bytes.extend_from_slice(labels.as_selector().as_bytes());
        let digest = digest(&SHA256, &bytes);
        Original {
            digest: digest.as_ref()[..DIGEST_BYTES].iter().map(|byte| format!("{byte:02x}")).collect(),
            content: source.content.clone(),
            source: source.key(),
            rule: rule.key(),
            rule_uid: rule.metadata.uid.clone(),
            labels,
            kind: PhantomData,
        }
    }

    /// The copy for a namespace.
    #[must_use]
    pub fn copy_for(&self, namespace: &str) -> Object<K> {
        let label_keys: Vec<&str> = self.labels.iter().map(|(key, _)| key).collect();
        let marks = [
            (RULE, self.rule.to_string()),
            (RULE_UID, self.rule_uid.to_string()),
            (SOURCE, self.source.to_string()),
            (PLACE, format!("{namespace}/{}", self.source.name)),
            (LABELS, label_keys.join(",")),
            (CONTENT, self.digest.to_string()),
        ];
        let metadata = ObjectMeta {
            name: self.source.name.clone(),
            namespace: Some(namespace.into()),
            labels: self.labels.iter().chain([(LABEL, "true")]).collect(),
            ..ObjectMeta::default()
        };
        let marks = marks.into_iter().map(|(key, value)| (SmolStr::new_static(key), value));
        Object::new(metadata, marks.filter(|(_, value)| !value.is_empty()).collect(), self.content.clone())
    }

    /// The source.
    #[must_use]
    pub fn source(&self) -> &Key {
        &self.source
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
        Some(&mark.source_namespace) == self.source.namespace.as_ref()
    }
}

/// The marks of a copy, as its annotations have them.
#[derive(Clone, Debug, PartialEq)]
pub struct Mark {
    /// The rule for which the copy was made.
    pub rule: Key,
    /// The uid of that rule.
    pub rule_uid: Uid,
    /// The namespace of the source, which has the name of the copy.
    pub source_namespace: SmolStr,
    /// The digest of the content.
    pub digest: SmolStr,
}

impl Mark {
    /// The marks of an object, if it is a copy that was written to this place.
    #[must_use]
    pub fn of(key: &Key, annotations: &BTreeMap<SmolStr, String>) -> Option<Mark> {
        let get = |name| annotations.get(name).map(String::as_str);
        let (source_namespace, source_name) = get(SOURCE)?.split_once('/')?;
        let (rule_namespace, rule_name) = get(RULE)?.split_once('/')?;
        let is_in_place = get(PLACE)? == key.to_smolstr() && source_name == key.name;
        is_in_place.then_some(Mark {
            rule: Key::namespaced(rule_namespace, rule_name),
            rule_uid: get(RULE_UID)?.into(),
            source_namespace: source_namespace.into(),
            digest: get(CONTENT)?.into(),
        })
    }
}

/// The keys of the labels that an earlier version of the source had, and the copy still has.
pub(super) fn stale_labels<'a, K>(live: &'a Object<K>, desired: &Object<K>) -> impl Iterator<Item = &'a str> {
    let copied = live.annotations.get(LABELS).map(String::as_str).unwrap_or_default().split(',');
    copied.filter(|key| live.metadata.labels.get(key).is_some() && desired.metadata.labels.get(key).is_none())
}

/// A copy in our watch: its metadata and its marks. To create a copy, it has a body, too.
#[derive(Deserialize)]
#[serde(from = "Wire", bound = "")]
pub struct Copied<K> {
    metadata: ObjectMeta,
    /// The marks, if they are readable, and if this is the place to which the copy was written.
    pub mark: Option<Mark>,
    /// Whether we have seen the content of this version. A change of the content changes nothing in the metadata but the
    /// version.
    is_verified: AtomicBool,
    body: Option<Box<Object<K>>>,
}

#[derive(Deserialize)]
struct Wire {
    metadata: WireMeta,
}

/// Only what is needed, because there are many copies.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireMeta {
    name: SmolStr,
    namespace: Option<SmolStr>,
    #[serde(default)]
    uid: Uid,
    resource_version: SmolStr,
    deletion_timestamp: Option<Timestamp>,
    #[serde(default)]
    labels: Labels,
    #[serde(default)]
    annotations: BTreeMap<SmolStr, String>,
}

impl<K> From<Wire> for Copied<K> {
    fn from(Wire { metadata }: Wire) -> Copied<K> {
        let WireMeta { name, namespace, uid, resource_version, deletion_timestamp, labels, annotations } =
            metadata;
        let metadata = ObjectMeta {
            name,
            namespace,
            uid,
            resource_version,
            deletion_timestamp,
            labels,
            ..ObjectMeta::default()
        };
        let mark = Mark::of(&metadata.key(), &annotations);
        Copied { metadata, mark, is_verified: AtomicBool::new(false), body: None }
    }
}

impl<K> Copied<K> {
    /// The metadata of an object that we have read.
    #[must_use]
    pub fn of(object: &Object<K>) -> Copied<K> {
        let mark = Mark::of(&object.metadata.key(), &object.annotations);
        Copied { metadata: object.metadata.clone(), mark, is_verified: AtomicBool::new(false), body: None }
    }

    /// A copy to create.
    #[must_use]
    pub fn to_create(object: Object<K>) -> Copied<K> {
        let metadata = Copied::of(&object);
        Copied { body: Some(Box::new(object)), ..metadata }
    }

    /// We have written or read this version, and it has the content of its digest.
    pub fn verified(&self) {
        self.is_verified.store(true, Ordering::Relaxed);
    }

    /// Whether [`Copied::verified`] was called.
    #[must_use]
    pub fn is_verified(&self) -> bool {
        self.is_verified.load(Ordering::Relaxed)
    }
}

impl<K> Serialize for Copied<K> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.body.serialize(serializer)
    }
}

impl<K: Kind> Resource for Copied<K> {
    const GROUP: &'static str = "";
    const VERSION: &'static str = "v1";
    const PLURAL: &'static str = K::PLURAL;
    const KIND: &'static str = K::KIND;
    const ACCEPT: Accept = Accept::MetadataOnly;

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }
}
