//! Faults on demand: what a test asks the server to do wrong, and what the real one does now and then.

use std::{fmt, time::Duration};

use super::request::Request;

/// Something that goes wrong. See [`ApiServer::fault`](super::ApiServer::fault).
#[derive(Clone, Debug)]
pub enum Fault {
    /// All open watches end cleanly, as they do after their `timeoutSeconds`.
    EndWatches,
    /// All open watches are cut in the middle of a line, as by a crash or a proxy.
    CutWatches,
    /// Open watches, and those opened from now on, send nothing more: a half-open connection.
    StallWatches,
    /// Watches go on.
    ResumeWatches,
    /// The history is forgotten: the next resume, and the next page of a list, is answered with 410.
    ExpireHistory,
    /// All connections are closed and the history is forgotten; what is stored stays.
    Restart,
    /// The next requests that match are answered with this instead.
    Answer {
        /// `GET`, or empty for any method.
        method: String,
        /// A part of the path and query, or empty for any.
        path: String,
        /// How many requests.
        times: usize,
        /// The HTTP status.
        status: u16,
        /// The body, sent as JSON if it starts with a brace.
        body: String,
        /// The header `Retry-After`.
        retry_after_secs: Option<u64>,
    },
    /// The next requests that match are answered only after a while.
    Delay {
        /// `GET`, or empty for any method.
        method: String,
        /// A part of the path and query, or empty for any.
        path: String,
        /// How many requests.
        times: usize,
        /// How long.
        delay: Duration,
    },
    /// Watch streams are sent in pieces of this many bytes. 0: as they come.
    ChunkBytes(usize),
}

/// An answer or a delay that waits for its request.
#[derive(Debug)]
pub(super) struct Planned {
    method: String,
    path: String,
    times: usize,
    pub(super) effect: Effect,
}

#[derive(Clone, Debug)]
pub(super) enum Effect {
    Answer { status: u16, body: String, retry_after_secs: Option<u64> },
    Delay(Duration),
}

impl Planned {
    pub(super) fn new(method: String, path: String, times: usize, effect: Effect) -> Planned {
        Planned { method, path, times, effect }
    }

    /// Whether some request is still to meet it.
    pub(super) fn is_left(&self) -> bool {
        self.times > 0
    }

    /// Whether this one is for the request; then it is used up by one.
    pub(super) fn meets(&mut self, request: &Request, path_and_query: &str) -> bool {
        let meets = self.times > 0
            && (self.method.is_empty() || self.method == request.method.as_str())
            && path_and_query.contains(&self.path);
        if meets {
            self.times -= 1;
        }
        meets
    }
}

/// What open watches are told.
#[derive(Clone, Copy, Debug)]
pub(super) enum Interruption {
    End,
    Cut,
    /// Look again whether to go on.
    Resume,
}

/// Interruptions that a watch may have missed while nobody read it; then it knows the last ones.
pub(super) const INTERRUPTIONS_MAX: usize = 16;

/// The stream breaks off here.
#[derive(Debug)]
pub struct Cut;

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("cut on demand")
    }
}

impl std::error::Error for Cut {}
