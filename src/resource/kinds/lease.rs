//! Leases, by which processes agree who does something.

use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use super::{kinds, parts};
use crate::resource::ObjectMeta;

kinds! {
    /// `coordination.k8s.io/v1` Lease.
    /// See <https://kubernetes.io/docs/reference/kubernetes-api/cluster-resources/lease-v1/>.
    Lease {
        /// Who holds it, and for how long.
        spec: LeaseSpec,
    }
}

crate::kind!(Lease, "coordination.k8s.io", "v1", "leases");

parts! {
    /// Who holds a [`Lease`], and for how long.
    LeaseSpec {
        /// Empty: nobody.
        holder_identity: SmolStr,
        /// How long after a renewal others must wait before they take it.
        lease_duration_seconds: Option<i32>,
        /// When the holder took it, by the holder's clock.
        acquire_time: SmolStr,
        /// When the holder renewed it, by the holder's clock.
        renew_time: SmolStr,
        /// How often it went from one holder to another.
        lease_transitions: Option<i32>,
    }
}
