//! The kinds that are copied, ConfigMap and Secret, and Namespace, with only the fields that we use.

use std::{collections::BTreeMap, marker::PhantomData};

use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Value, json};
use smol_str::SmolStr;

use super::types::RuleType;
use crate::resource::{ObjectMeta, Resource};

/// A kind of which objects can be copied.
pub trait Kind: Send + Sync + 'static {
    /// The `ruleType`.
    const RULE_TYPE: RuleType;
    /// See [`Resource::PLURAL`].
    const PLURAL: &'static str;
    /// See [`Resource::KIND`].
    const KIND: &'static str;
}

/// `v1` ConfigMap.
#[derive(Debug)]
pub enum ConfigMaps {}

impl Kind for ConfigMaps {
    const RULE_TYPE: RuleType = RuleType::Configmap;
    const PLURAL: &'static str = "configmaps";
    const KIND: &'static str = "ConfigMap";
}

/// `v1` Secret.
#[derive(Debug)]
pub enum Secrets {}

impl Kind for Secrets {
    const RULE_TYPE: RuleType = RuleType::Secret;
    const PLURAL: &'static str = "secrets";
    const KIND: &'static str = "Secret";
}

/// A ConfigMap or a Secret. It has no `Debug`, which would show the data of a Secret.
#[derive(Deserialize)]
#[serde(from = "Wire", bound = "")]
pub struct Object<K> {
    pub(super) metadata: ObjectMeta,
    pub(super) annotations: BTreeMap<SmolStr, String>,
    /// The creationTimestamp, RFC 3339 in whole seconds: texts of equal length, in order of time.
    pub(super) created: SmolStr,
    pub(super) content: Content,
    kind: PhantomData<fn() -> K>,
}

/// What a copy has of its source.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Content {
    /// The type of a Secret. Never changes.
    #[serde(skip_serializing_if = "SmolStr::is_empty")]
    pub r#type: SmolStr,
    /// Texts, or the bytes of a Secret in base64.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub data: BTreeMap<String, String>,
    /// Bytes in base64, of a ConfigMap alone.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub binary_data: BTreeMap<String, String>,
    /// Whether the content can never be changed again.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub immutable: bool,
}

#[derive(Deserialize)]
struct Wire {
    metadata: WireMeta,
    #[serde(flatten)]
    content: Content,
}

#[derive(Deserialize)]
struct WireMeta {
    #[serde(default)]
    annotations: BTreeMap<SmolStr, String>,
    #[serde(default, rename = "creationTimestamp")]
    created: SmolStr,
    #[serde(flatten)]
    others: ObjectMeta,
}

impl<K> From<Wire> for Object<K> {
    fn from(Wire { metadata, content }: Wire) -> Object<K> {
        let WireMeta { annotations, created, others } = metadata;
        Object { metadata: others, annotations, created, content, kind: PhantomData }
    }
}

impl<K> Object<K> {
    /// An object to create.
    #[must_use]
    pub fn new(metadata: ObjectMeta, annotations: BTreeMap<SmolStr, String>, content: Content) -> Object<K> {
        Object { metadata, annotations, created: SmolStr::default(), content, kind: PhantomData }
    }

    /// Whether objects like this one are made for their namespace alone, and are never copied.
    #[must_use]
    pub fn is_bound_to_its_namespace(&self) -> bool {
        let types =
            ["kubernetes.io/service-account-token", "bootstrap.kubernetes.io/token", "helm.sh/release.v1"];
        let name = &self.metadata.name;
        // Helm can store its releases in ConfigMaps, too.
        types.contains(&&*self.content.r#type)
            || name == "kube-root-ca.crt"
            || name.starts_with("sh.helm.release.v1.")
    }
}

impl<K: Kind> Resource for Object<K> {
    const GROUP: &'static str = "";
    const VERSION: &'static str = "v1";
    const PLURAL: &'static str = K::PLURAL;
    const KIND: &'static str = K::KIND;

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }
}

impl<K> Serialize for Object<K> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Sent<'a> {
            metadata: Value,
            #[serde(flatten)]
            content: &'a Content,
        }
        let ObjectMeta { name, namespace, labels, .. } = &self.metadata;
        let metadata =
            json!({"name": name, "namespace": namespace, "labels": labels, "annotations": self.annotations});
        Sent { metadata, content: &self.content }.serialize(serializer)
    }
}

/// `v1` Namespace.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Namespace {
    /// Name, labels, versions.
    pub metadata: ObjectMeta,
    /// The state that the API server reports.
    #[serde(default)]
    pub status: NamespaceStatus,
}

/// The state of a [`Namespace`].
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct NamespaceStatus {
    /// `Active`, or `Terminating`: it accepts no new objects.
    pub phase: SmolStr,
}

impl Namespace {
    /// Whether it accepts new objects.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.status.phase != "Terminating" && !self.metadata.is_terminating()
    }
}

impl Resource for Namespace {
    const GROUP: &'static str = "";
    const VERSION: &'static str = "v1";
    const PLURAL: &'static str = "namespaces";
    const KIND: &'static str = "Namespace";

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }
}
