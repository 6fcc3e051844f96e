//! Observes requests and answers as they are on the wire, for `--curl`, `--explain` and `--record`.
//!
//! ```text
//! exchange 7: Request  GET /api/v1/pods?watch=1&resourceVersion=1207
//! exchange 7: Head     200, content-type: application/json
//! exchange 7: Chunk    {"type":"ADDED", …      pieces, cut anywhere
//! exchange 7: End
//! ```

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use http::{HeaderMap, Version};

use super::request::Request;
use crate::traces::RequestSpan;

/// Observes the exchanges of a client. It never sees the `Authorization` header. Set it with
/// [`Config::with_tap`](super::Config::with_tap).
pub trait Tap: Send + Sync {
    /// A step of an exchange. Each attempt at a request is an exchange with a number of its own. The request of the
    /// health of a new connection, `GET /version`, is not reported. Blocks the request, so it must be quick.
    fn step(&self, exchange: u64, step: Step<'_>);
}

/// A step of an exchange.
#[derive(Clone, Copy, Debug)]
pub enum Step<'a> {
    /// The request is about to be sent.
    Request(&'a Request),
    /// The head of the answer has come.
    Head {
        /// HTTP status code.
        status: u16,
        /// HTTP version.
        version: Version,
        /// HTTP headers.
        headers: &'a HeaderMap,
    },
    /// A piece of the body, cut anywhere.
    Chunk(&'a [u8]),
    /// The server ended the answer.
    End,
    /// There was no answer, or the connection broke.
    Lost,
    /// This client gave up the exchange: it did not wait for the end of the answer.
    Dropped,
}

impl Step<'_> {
    /// Whether no more steps of the exchange follow.
    #[must_use]
    pub fn is_last(&self) -> bool {
        matches!(self, Step::End | Step::Lost | Step::Dropped)
    }
}

/// One exchange, for the tap of its client, if it has one, and its span.
pub(super) struct Exchange {
    tap: Option<Arc<dyn Tap>>,
    number: u64,
    pub(super) span: RequestSpan,
}

impl Exchange {
    pub(super) fn begin(tap: Option<&Arc<dyn Tap>>, request: &Request, span: RequestSpan) -> Exchange {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let Some(tap) = tap else { return Exchange { tap: None, number: 0, span } };
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let exchange = Exchange { tap: Some(Arc::clone(tap)), number, span };
        exchange.step(Step::Request(request));
        exchange
    }

    pub(super) fn step(&self, step: Step<'_>) {
        if let Step::Head { status, .. } = step {
            self.span.answered(status);
        }
        if let Some(tap) = &self.tap {
            tap.step(self.number, step);
        }
    }

    /// The last step.
    pub(super) fn ends(&mut self, step: Step<'_>) {
        match step {
            Step::Lost => self.span.lost(),
            Step::Dropped => self.span.dropped(),
            Step::Request(_) | Step::Head { .. } | Step::Chunk(_) | Step::End => {}
        }
        self.span.end();
        if let Some(tap) = self.tap.take() {
            tap.step(self.number, step);
        }
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.ends(Step::Dropped);
    }
}
