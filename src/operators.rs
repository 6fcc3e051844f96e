//! The operators, by name. Each is one file: its kind, what it wants for an object, and how it keeps it so.

pub mod crd;
pub mod mywebserver;
