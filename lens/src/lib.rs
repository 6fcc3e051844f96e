//! Shows what an operator in any language does, and why: reads a recording of its requests, of the writes and of the events of its watches,
//! and says in plain words what woke it, and what is wrong.
//!
//! ```no_run
//! # use std::sync::Arc;
//! # use listwatch_apiserver::ApiServer;
//! # use listwatch_lens::{Recording, Report};
//! # use listwatch_scorecard::{self as scorecard, Scorecard, Then};
//! # async fn example(settings: Scorecard) {
//! let then = |server: &Arc<ApiServer>| if server.request_count() < 1000 { Then::GoOn } else { Then::End };
//! let (journal, _) = scorecard::observe(&settings, then).await.expect("an operator that starts");
//! print!("{}", Report::of(&Recording::of(&journal)).text());
//! # }
//! ```
//!
//! ```text
//! recording  requests, writes and events: from a journal of the scorecard, its files, an audit log (recording/audit), or the proxy (recording/recorder)
//! why        the events that can have caused each write, the likeliest first
//! findings   the rules: each finds one mistake of a client
//! report     findings and writes, as text and JSON
//! document   what the page shows: all entries, and the report
//! page       its files, and one HTML file with everything in it
//! live       the page while the operator runs: a server on loopback (live/access: who may see it; live/news: what it sends; live/controls: stop and step)
//! cluster    a proxy that records what an operator says to a cluster
//! connections accepts them, for the page and for the proxy
//! ```
//!
//! Two kinds of facts are kept apart. What was sent, when, and what it changed is recorded, and certain. That an event is the cause of a write
//! is a conclusion: from what the client was sent since the cause of its last write to the object, and from who owns what.

mod cluster;
mod connections;
mod document;
mod findings;
pub mod page;
mod live;
mod recording;
mod report;
mod why;

pub use self::{
    cluster::Proxy,
    document::document,
    findings::{Entry, Finding, Severity},
    live::{Live, Operator, Restart},
    recording::{Malformed, Recording},
    report::Report,
};
