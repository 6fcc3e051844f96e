//! Renders what is installed for an operator of `listwatch`, as text. Only the bundle reads and writes files.

pub mod rbac;
pub mod manifests;
#[cfg(feature = "bundle")]
pub mod bundle;
