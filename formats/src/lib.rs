//! Parses text formats of Kubernetes, by the rules of its Go code. Nothing in this crate does I/O.
//!
//! ```text
//! selector  app=web,tier in (a,b),!old
//! quantity  128Mi, 0.5, 1e3
//! schedule  */15 9-17 * * mon-fri
//! time      2026-11-21T07:14:34+01:00, 1h30m
//! names     of objects, labels and their values
//! ```

pub mod names;
pub mod quantity;
pub mod schedule;
pub mod selector;
pub mod time;
