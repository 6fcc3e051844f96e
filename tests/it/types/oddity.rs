//! Oddity of `example.com/v1`, as printed by `listwatch types`.

#![allow(clippy::all, rustdoc::all, reason = "names and comments are from the definition")]

use std::collections::BTreeMap;

use listwatch::resource::ObjectMeta;
use listwatch::resource::kinds::{IntOrString, Rest, or_default};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// An object with all that a schema may have. Its comment is no test:
///
/// let x = y;
///
/// ```text
/// let x: [y](z) = <html>;
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Oddity {
    /// Name, labels, annotations, owners, versions.
    pub metadata: ObjectMeta,
    pub spec: OdditySpec,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<OddityStatus>,
}

listwatch::kind!(Oddity, "example.com", "v1", "oddities");

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OdditySpec {
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub anything: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<i64>,
    /// A very long description in one line that goes on and on until it is much longer than any line of code may be.
    #[serde(rename = "clusterIP")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster_ip: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<i32>,
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub empty: Value,
    #[serde(deserialize_with = "or_default")]
    pub listed: Vec<Vec<i64>>,
    #[serde(deserialize_with = "or_default")]
    pub mapped: BTreeMap<String, OddityMapped>,
    pub nothing: Option<String>,
    pub nulls: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub open: Option<OddityOpen>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub option: Option<OddityOption>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub other: Option<OddityOther>,
    #[serde(rename = "podCIDRs")]
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub pod_cidrs: Vec<String>,
    #[serde(rename = "pod_cidrs")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_cidrs2: Option<String>,
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub policies: Vec<OddityPolicy>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<IntOrString>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub self_: Option<bool>,
    pub r#type: OddityType,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OddityStatus {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OddityMapped {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub r#type: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OddityOpen {
    #[serde(rename = "rest")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rest2: Option<String>,
    /// All other fields.
    #[serde(flatten)]
    pub rest: Rest,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OddityOption {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub r#ref: Option<OddityRef>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OddityOther {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub option: Option<OddityOption>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub r#ref: Option<OddityOtherRef>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OddityPolicy {
    pub mode: OddityPolicyMode,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OddityType {
    #[serde(rename = "")]
    Value,
    A,
    #[serde(rename = "a")]
    A2,
    #[serde(rename = "P-256")]
    P256,
    #[serde(rename = "self")]
    ValueSelf,
    #[serde(rename = "Other")]
    Other2,
    #[serde(rename = "digital signature")]
    DigitalSignature,
    /// A value of another version of the API.
    #[serde(untagged)]
    Other(String),
}

impl Default for OddityType {
    fn default() -> OddityType {
        OddityType::Other(String::new())
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OddityRef {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OddityOtherRef {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OddityPolicyMode {
    On,
    Off,
    /// A value of another version of the API.
    #[serde(untagged)]
    Other(String),
}

impl Default for OddityPolicyMode {
    fn default() -> OddityPolicyMode {
        OddityPolicyMode::Other(String::new())
    }
}
