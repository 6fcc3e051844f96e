//! Parses text formats of Kubernetes, by the rules of its Go code. Nothing in this crate does I/O.
//!
//! ```text
//! schedule  */15 9-17 * * mon-fri
//! time      2026-11-21T07:14:34+01:00, 1h30m
//! ```

pub mod schedule;
pub mod time;
