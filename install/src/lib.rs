//! Renders what is installed for an operator of `listwatch`, as text. Nothing in this crate does I/O.

pub mod rbac;
pub mod manifests;
