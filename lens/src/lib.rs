//! Shows what an operator in any language does, and why: reads a recording of its requests, of the writes and of the events of its watches,
//! and says in plain words what woke it, and what is wrong.
//!
//! ```no_run
//! # use listwatch_lens::{Recording, Report};
//! # use listwatch_scorecard::{self as scorecard, Scorecard};
//! # async fn example(settings: Scorecard) {
//! let (journal, _) = scorecard::observe(&settings, |server| server.request_count() > 1000).await.expect("an operator that starts");
//! print!("{}", Report::of(&Recording::of(&journal)).text());
//! # }
//! ```
//!
//! ```text
//! recording  requests, writes and events: from a journal of the scorecard, its files, or an audit log (recording/audit)
//! why        the events that can have caused each write, the likeliest first
//! findings   the rules: each finds one mistake of a client
//! report     findings and writes, as text and JSON
//! document   what the page shows: all entries, and the report
//! page       its files, and one HTML file with everything in it
//! ```
//!
//! Two kinds of facts are kept apart. What was sent, when, and what it changed is recorded, and certain. That an event is the cause of a write
//! is a conclusion: from what the client was sent since the cause of its last write to the object, and from who owns what.

mod document;
mod findings;
pub mod page;
mod recording;
mod report;
mod why;

pub use self::{
    document::{document, entries},
    findings::{Entry, Finding, Severity},
    recording::{Malformed, Recording},
    report::Report,
};
