//! Renders what is installed for an operator of `listwatch`, and what it would write, as text. Only the bundle reads and writes files.

pub mod rbac;
#[cfg(feature = "schema")]
pub mod crd;
pub mod manifests;
pub mod plan;
#[cfg(feature = "bundle")]
pub mod bundle;
