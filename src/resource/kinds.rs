//! The built-in kinds, with the fields that people use. Each type also has `rest`: its other fields, as JSON.
//!
//! A field that has its default value is left out, and an operator owns what it sets ([`super::diff`]). So `None`, an empty text and
//! an empty list mean "not mine": the API server sets its default there, or another writer a value.
//!
//! ```
//! # use listwatch::resource::kinds::{Container, EnvVar, PodSpec, Volume, ConfigMapVolumeSource};
//! let pod = PodSpec {
//!     containers: vec![Container {
//!         name: "web".into(),
//!         env: vec![EnvVar { name: "LANG".into(), value: "C".into(), ..EnvVar::default() }],
//!         ..Container::default()
//!     }],
//!     volumes: vec![Volume {
//!         name: "page".into(),
//!         config_map: Some(Box::new(ConfigMapVolumeSource { name: "page".into(), ..ConfigMapVolumeSource::default() })),
//!         ..Volume::default()
//!     }],
//!     rest: [("hostUsers".to_owned(), false.into())].into_iter().collect(),
//!     ..PodSpec::default()
//! };
//! ```
//!
//! For a kind that is not here, see [`any_kind!`](crate::any_kind).

mod access;
mod config;
mod container;
mod json;
mod lease;
mod network;
mod pod;
mod scaling;
mod storage;
mod volume;
mod workload;

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};
use smol_str::SmolStr;

use super::{Annotations, LabelSelector, Labels, ObjectMeta, annotations::without_annotations};
pub use access::{PolicyRule, Role, RoleBinding, RoleRef, ServiceAccount, Subject};
pub use config::{ConfigMap, Secret};
pub use container::*;
pub use json::Json;
pub use lease::*;
pub use network::*;
pub use pod::*;
pub use scaling::*;
pub use storage::*;
pub use volume::*;
pub use workload::*;

/// The fields of an object that its type does not name.
pub type Rest = Json;

/// Declares kinds. All fields but `metadata` may be absent. After a `;`, the status, which is only read.
macro_rules! kinds {
    ($(
        $(#[$meta:meta])*
        $kind:ident {
            $($(#[$attribute:meta])* $field:ident: $type:ty,)*
            $(; $(#[$status_attribute:meta])* $status:ident: $status_type:ty,)?
        }
    )*) => {$(
        $(#[$meta])*
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(rename_all = "camelCase")]
        pub struct $kind {
            /// Name, labels, annotations, owners, versions.
            pub metadata: ObjectMeta,
            $(
                $(#[$attribute])*
                #[serde(default, deserialize_with = "super::field", skip_serializing_if = "super::is_default")]
                pub $field: $type,
            )*
            $(
                $(#[$status_attribute])*
                #[serde(default, deserialize_with = "super::field", skip_serializing)]
                pub $status: $status_type,
            )?
        }
    )*};
}

/// Declares the types of parts of objects. All fields may be absent.
macro_rules! parts {
    ($($(#[$meta:meta])* $part:ident { $($(#[$attribute:meta])* $field:ident: $type:ty,)* })*) => {$(
        $(#[$meta])*
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        pub struct $part {
            $(
                $(#[$attribute])*
                #[serde(deserialize_with = "super::field", skip_serializing_if = "super::is_default")]
                pub $field: $type,
            )*
            /// All other fields.
            #[serde(flatten)]
            pub rest: super::Rest,
        }

        impl super::Shrink for $part {}
    )*};
}

/// Declares the types of what controllers report. They are only read.
macro_rules! statuses {
    ($($(#[$meta:meta])* $status:ident { $($(#[$attribute:meta])* $field:ident: $type:ty,)* })*) => {$(
        $(#[$meta])*
        #[derive(Clone, Debug, Default, PartialEq, Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        pub struct $status {
            $($(#[$attribute])* #[serde(deserialize_with = "super::field")] pub $field: $type,)*
        }

        impl super::Shrink for $status {}
    )*};
}

use {kinds, parts, statuses};

/// Decodes `null` as the default: the API server writes it for some lists without items.
///
/// # Errors
///
/// If the value is neither `null` nor a `T`.
pub fn or_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// A type of the fields here.
trait Shrink: Default {
    /// Gives back the room for more items.
    fn shrink(&mut self) {}
}

impl<T> Shrink for Vec<T> {
    fn shrink(&mut self) {
        self.shrink_to_fit();
    }
}

macro_rules! shrunk {
    ($($type:ty),*) => {$(impl Shrink for $type {})*};
}

shrunk!(bool, i32, i64, u16, String, SmolStr, IntOrString, Json, Labels, Annotations, LabelSelector);

impl<T> Shrink for Option<T> {}

impl<K, V> Shrink for BTreeMap<K, V> {}

/// [`or_default`], with no more memory than the items of a list need: while it is decoded, a list of one has room for four.
fn field<'de, D: Deserializer<'de>, T: Shrink + Deserialize<'de>>(deserializer: D) -> Result<T, D::Error> {
    let mut field: T = or_default(deserializer)?;
    field.shrink();
    Ok(field)
}

fn is_default<T: Default + PartialEq>(field: &T) -> bool {
    *field == T::default()
}

/// A number or a text, `IntOrString`: a port by number or name, a count of Pods or `25%`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum IntOrString {
    /// A number.
    Number(i64),
    /// A name, or a percentage.
    Name(SmolStr),
}

impl Default for IntOrString {
    fn default() -> IntOrString {
        IntOrString::Number(0)
    }
}

impl From<i32> for IntOrString {
    fn from(number: i32) -> IntOrString {
        IntOrString::Number(number.into())
    }
}

impl From<&str> for IntOrString {
    fn from(name: &str) -> IntOrString {
        IntOrString::Name(name.into())
    }
}

/// `v1` Namespace.
/// See <https://kubernetes.io/docs/reference/kubernetes-api/cluster-resources/namespace-v1/>.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Namespace {
    /// Name, labels, versions.
    #[serde(deserialize_with = "without_annotations")]
    pub metadata: ObjectMeta,
    /// The state that the API server reports.
    #[serde(default, skip_serializing)]
    pub status: NamespaceStatus,
}

crate::kind!(Namespace, "", "v1", "namespaces");

/// The state of a [`Namespace`].
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct NamespaceStatus {
    /// `Active`, or `Terminating`: it accepts no new objects.
    pub phase: SmolStr,
}
