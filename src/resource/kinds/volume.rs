//! The volumes of a Pod.

use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use super::parts;
use crate::resource::diff::{Merge, MergeRule};

/// The merge rules of a [`Volume`]: a volume has one source.
pub(super) const VOLUME: &[MergeRule] = &[
    ("/configMap/defaultMode", Merge::Defaulted),
    ("/secret/defaultMode", Merge::Defaulted),
    ("/downwardAPI/defaultMode", Merge::Defaulted),
    ("/downwardAPI/items/*/fieldRef/apiVersion", Merge::Defaulted),
    ("/downwardAPI/items/*/resourceFieldRef/divisor", Merge::Defaulted),
    ("/emptyDir/sizeLimit", Merge::Quantity),
    ("/projected/defaultMode", Merge::Defaulted),
    ("/projected/sources/*/serviceAccountToken/expirationSeconds", Merge::Defaulted),
    ("/projected/sources/*/downwardAPI/items/*/fieldRef/apiVersion", Merge::Defaulted),
    ("/projected/sources/*/downwardAPI/items/*/resourceFieldRef/divisor", Merge::Defaulted),
    ("/hostPath/type", Merge::Defaulted),
    ("/image/pullPolicy", Merge::Defaulted),
    ("/ephemeral/volumeClaimTemplate/spec/volumeMode", Merge::Defaulted),
];

parts! {
    /// A volume of a Pod, from one source. `rest` has the sources that are not here:
    /// `rest: json!({"hostPath": {"path": "/run/log"}}).into()`.
    /// See <https://kubernetes.io/docs/reference/kubernetes-api/config-and-storage-resources/volume/>.
    Volume {
        /// Unique in the Pod.
        name: SmolStr,
        /// The keys of a ConfigMap.
        config_map: Option<Box<ConfigMapVolumeSource>>,
        /// The keys of a Secret.
        secret: Option<Box<SecretVolumeSource>>,
        /// A claim.
        persistent_volume_claim: Option<Box<ClaimVolumeSource>>,
        /// A directory that is deleted with the Pod.
        empty_dir: Option<Box<EmptyDirVolumeSource>>,
    }

    /// The keys of a ConfigMap as files.
    ConfigMapVolumeSource {
        /// Its name.
        name: SmolStr,
        /// The mode of the files. The API server sets 0644.
        default_mode: Option<i32>,
        /// The keys and their files. Empty: all keys, each a file of its name.
        items: Vec<KeyToPath>,
        /// Whether the Pod starts without it.
        optional: Option<bool>,
    }

    /// The keys of a Secret as files.
    SecretVolumeSource {
        /// Its name.
        secret_name: SmolStr,
        /// The mode of the files. The API server sets 0644.
        default_mode: Option<i32>,
        /// The keys and their files. Empty: all keys, each a file of its name.
        items: Vec<KeyToPath>,
        /// Whether the Pod starts without it.
        optional: Option<bool>,
    }

    /// The file of a key.
    KeyToPath {
        /// The key.
        key: SmolStr,
        /// The file, relative to the volume.
        path: SmolStr,
        /// Its mode.
        mode: Option<i32>,
    }

    /// A volume that is claimed.
    ClaimVolumeSource {
        /// The name of the claim.
        claim_name: SmolStr,
        /// Whether no container can write it.
        read_only: bool,
    }

    /// A directory that is deleted with the Pod.
    EmptyDirVolumeSource {
        /// `Memory`, or empty for the disk of the node.
        medium: SmolStr,
        /// Most data in it.
        size_limit: SmolStr,
    }
}
