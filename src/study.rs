//! The wire, for people: recordings of requests and answers, and what the protocol makes of them.
//!
//! ```text
//! client/tap.rs       requests, heads and pieces of bodies, as they are on the wire
//! study/record.rs     entries: one JSON line each, without secrets; a recording is a file of them
//! study/explain.rs    entries → sentences, by the decoder, the Machine and the Store of the operator
//! study/table.rs      a Table as the objects of its rows
//! study/discovery.rs  `deploy.apps` → /apis/apps/v1/…/deployments
//! ```
//!
//! `listwatch watch --explain` explains entries as they come, `listwatch replay` those of a file. Nothing in this chapter
//! does I/O.

pub(crate) mod discovery;
pub(crate) mod explain;
pub(crate) mod object;
pub(crate) mod record;
mod table;
