//! Renders what is installed for an operator of `listwatch`, as text. Only the bundle reads and writes files.

pub mod rbac;
#[cfg(feature = "schema")]
pub mod crd;
pub mod manifests;
#[cfg(feature = "bundle")]
pub mod bundle;
