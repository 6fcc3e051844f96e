//! Certificate of `cert-manager.io/v1`, as printed by `listwatch types`.

#![allow(clippy::all, rustdoc::all, reason = "names and comments are from the definition")]

use std::collections::BTreeMap;

use listwatch::resource::ObjectMeta;
use listwatch::resource::kinds::or_default;
use serde::{Deserialize, Serialize};

/// A Certificate resource should be created to ensure an up to date and signed X.509 certificate is stored in the
/// Kubernetes Secret resource named in `spec.secretName`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Certificate {
    /// Name, labels, annotations, owners, versions.
    pub metadata: ObjectMeta,
    /// Specification of the desired state of the Certificate resource.
    #[serde(default)]
    pub spec: CertificateSpec,
    /// Status of the Certificate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<CertificateStatus>,
}

listwatch::kind!(Certificate, "cert-manager.io", "v1", "certificates");

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CertificateSpec {
    /// Requested common name X509 certificate subject attribute.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub common_name: Option<String>,
    /// Requested DNS subject alternative names.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub dns_names: Vec<String>,
    /// Requested duration of the certificate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration: Option<String>,
    /// Requested basic constraints isCA value.
    #[serde(rename = "isCA")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub is_ca: Option<bool>,
    /// Reference to the issuer responsible for issuing the certificate.
    pub issuer_ref: CertificateIssuerRef,
    /// Additional keystore output formats to be stored in the Certificate's Secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keystores: Option<CertificateKeystores>,
    /// Private key options.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub private_key: Option<CertificatePrivateKey>,
    /// Name of the Secret resource that will be automatically created and managed by this Certificate resource.
    pub secret_name: String,
    /// Defines annotations and labels to be copied to the Certificate's Secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret_template: Option<CertificateSecretTemplate>,
    /// Requested set of X509 certificate subject attributes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subject: Option<CertificateSubject>,
    /// Requested key usages and extended key usages.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub usages: Vec<CertificateUsage>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CertificateStatus {
    /// List of status conditions to indicate the status of certificates.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<CertificateCondition>,
    /// The expiration time of the certificate stored in the secret named by this resource in `spec.secretName`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_after: Option<String>,
    /// The current 'revision' of the certificate as issued.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision: Option<i64>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CertificateIssuerRef {
    /// Group of the issuer being referred to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Kind of the issuer being referred to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Name of the issuer being referred to.
    pub name: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CertificateKeystores {
    /// JKS configures options for storing a JKS keystore in the `spec.secretName` Secret resource.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jks: Option<CertificateJks>,
    /// PKCS12 configures options for storing a PKCS12 keystore in the `spec.secretName` Secret resource.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pkcs12: Option<CertificatePkcs12>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CertificatePrivateKey {
    /// Algorithm is the private key algorithm of the corresponding private key for this certificate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub algorithm: Option<CertificatePrivateKeyAlgorithm>,
    /// The private key cryptography standards (PKCS) encoding for this certificate's private key to be encoded in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encoding: Option<CertificatePrivateKeyEncoding>,
    /// RotationPolicy controls how private keys should be regenerated when a re-issuance is being processed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rotation_policy: Option<CertificatePrivateKeyRotationPolicy>,
    /// Size is the key bit size of the corresponding private key for this certificate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<i64>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CertificateSecretTemplate {
    /// Annotations is a key value map to be copied to the target Kubernetes Secret.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Labels is a key value map to be copied to the target Kubernetes Secret.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CertificateSubject {
    /// Countries to be used on the Certificate.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub countries: Vec<String>,
    /// Organizations to be used on the Certificate.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub organizations: Vec<String>,
}

/// KeyUsage specifies valid usage contexts for keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CertificateUsage {
    #[serde(rename = "signing")]
    Signing,
    #[serde(rename = "digital signature")]
    DigitalSignature,
    #[serde(rename = "content commitment")]
    ContentCommitment,
    #[serde(rename = "key encipherment")]
    KeyEncipherment,
    #[serde(rename = "key agreement")]
    KeyAgreement,
    #[serde(rename = "data encipherment")]
    DataEncipherment,
    #[serde(rename = "cert sign")]
    CertSign,
    #[serde(rename = "crl sign")]
    CrlSign,
    #[serde(rename = "encipher only")]
    EncipherOnly,
    #[serde(rename = "decipher only")]
    DecipherOnly,
    #[serde(rename = "any")]
    Any,
    #[serde(rename = "server auth")]
    ServerAuth,
    #[serde(rename = "client auth")]
    ClientAuth,
    #[serde(rename = "code signing")]
    CodeSigning,
    #[serde(rename = "email protection")]
    EmailProtection,
    #[serde(rename = "s/mime")]
    SMime,
    #[serde(rename = "ipsec end system")]
    IpsecEndSystem,
    #[serde(rename = "ipsec tunnel")]
    IpsecTunnel,
    #[serde(rename = "ipsec user")]
    IpsecUser,
    #[serde(rename = "timestamping")]
    Timestamping,
    #[serde(rename = "ocsp signing")]
    OcspSigning,
    #[serde(rename = "microsoft sgc")]
    MicrosoftSgc,
    #[serde(rename = "netscape sgc")]
    NetscapeSgc,
    /// A value of another version of the API.
    #[serde(untagged)]
    Other(String),
}

impl Default for CertificateUsage {
    fn default() -> CertificateUsage {
        CertificateUsage::Other(String::new())
    }
}

/// CertificateCondition contains condition information for a Certificate.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CertificateCondition {
    /// LastTransitionTime is the timestamp corresponding to the last status change of this condition.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<String>,
    /// Message is a human readable description of the details of the last transition, complementing reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// If set, this represents the .metadata.generation that the condition was set based upon.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Reason is a brief machine readable explanation for the condition's last transition.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Status of the condition, one of (`True`, `False`, `Unknown`).
    pub status: CertificateConditionStatus,
    /// Type of the condition, known values are (`Ready`, `Issuing`).
    pub r#type: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CertificateJks {
    /// Alias specifies the alias of the key in the keystore, required by the JKS format.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alias: Option<String>,
    /// Create enables JKS keystore creation for the Certificate.
    pub create: bool,
    /// Password provides a literal password used to encrypt the JKS keystore.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password: Option<String>,
    /// PasswordSecretRef is a reference to a non-empty key in a Secret resource containing the password used to encrypt the JKS
    /// keystore.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password_secret_ref: Option<CertificatePasswordSecretRef>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CertificatePkcs12 {
    /// Create enables PKCS12 keystore creation for the Certificate.
    pub create: bool,
    /// Password provides a literal password used to encrypt the PKCS#12 keystore.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password: Option<String>,
    /// PasswordSecretRef is a reference to a non-empty key in a Secret resource containing the password used to encrypt the
    /// PKCS#12 keystore.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password_secret_ref: Option<CertificatePasswordSecretRef>,
    /// Profile specifies the key and certificate encryption algorithms and the HMAC algorithm used to create the PKCS12
    /// keystore.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<CertificatePkcs12Profile>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CertificatePrivateKeyAlgorithm {
    #[serde(rename = "RSA")]
    Rsa,
    #[serde(rename = "ECDSA")]
    Ecdsa,
    Ed25519,
    /// A value of another version of the API.
    #[serde(untagged)]
    Other(String),
}

impl Default for CertificatePrivateKeyAlgorithm {
    fn default() -> CertificatePrivateKeyAlgorithm {
        CertificatePrivateKeyAlgorithm::Other(String::new())
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CertificatePrivateKeyEncoding {
    #[serde(rename = "PKCS1")]
    Pkcs1,
    #[serde(rename = "PKCS8")]
    Pkcs8,
    /// A value of another version of the API.
    #[serde(untagged)]
    Other(String),
}

impl Default for CertificatePrivateKeyEncoding {
    fn default() -> CertificatePrivateKeyEncoding {
        CertificatePrivateKeyEncoding::Other(String::new())
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CertificatePrivateKeyRotationPolicy {
    Never,
    Always,
    /// A value of another version of the API.
    #[serde(untagged)]
    Other(String),
}

impl Default for CertificatePrivateKeyRotationPolicy {
    fn default() -> CertificatePrivateKeyRotationPolicy {
        CertificatePrivateKeyRotationPolicy::Other(String::new())
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CertificateConditionStatus {
    True,
    False,
    Unknown,
    /// A value of another version of the API.
    #[serde(untagged)]
    Other(String),
}

impl Default for CertificateConditionStatus {
    fn default() -> CertificateConditionStatus {
        CertificateConditionStatus::Other(String::new())
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CertificatePasswordSecretRef {
    /// The key of the entry in the Secret resource's `data` field to be used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Name of the resource being referred to.
    pub name: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CertificatePkcs12Profile {
    #[serde(rename = "LegacyRC2")]
    LegacyRc2,
    #[serde(rename = "LegacyDES")]
    LegacyDes,
    Modern2023,
    Modern2026,
    /// A value of another version of the API.
    #[serde(untagged)]
    Other(String),
}

impl Default for CertificatePkcs12Profile {
    fn default() -> CertificatePkcs12Profile {
        CertificatePkcs12Profile::Other(String::new())
    }
}
