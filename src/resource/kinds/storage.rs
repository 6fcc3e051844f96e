//! PersistentVolumeClaim.

use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use super::{ResourceRequirements, kinds, parts, statuses};
use crate::resource::{
    ObjectMeta,
    diff::{Merge, MergeRule},
};

kinds! {
    /// `v1` PersistentVolumeClaim: asks for a volume.
    /// See <https://kubernetes.io/docs/reference/kubernetes-api/config-and-storage-resources/persistent-volume-claim-v1/>.
    PersistentVolumeClaim {
        /// The desired volume. Only its size can change.
        spec: PersistentVolumeClaimSpec,
        ;
        /// The state that the volume controller reports.
        status: PersistentVolumeClaimStatus,
    }
}

crate::kind!(PersistentVolumeClaim, "", "v1", "persistentvolumeclaims", {
    const MERGE: &'static [MergeRule] = &[("/spec/resources/requests/*", Merge::Quantity)];
});

parts! {
    /// The volume that a claim asks for.
    PersistentVolumeClaimSpec {
        /// `ReadWriteOnce`, `ReadOnlyMany`, `ReadWriteMany`, `ReadWriteOncePod`.
        access_modes: Vec<SmolStr>,
        /// Its size: `requests["storage"]`.
        resources: ResourceRequirements,
        /// The StorageClass. `None`: the default one of the cluster; empty: none.
        storage_class_name: Option<SmolStr>,
        /// `Filesystem`, or `Block`.
        volume_mode: SmolStr,
        /// The volume.
        volume_name: SmolStr,
    }
}

statuses! {
    /// The state of a claim.
    PersistentVolumeClaimStatus {
        /// `Pending`, `Bound` or `Lost`.
        phase: SmolStr,
    }
}
