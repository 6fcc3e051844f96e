//! How the request of a watch ended: from an error of the client, or from the Status of an `ERROR` event.

use std::time::Duration;

use super::health;
use crate::{
    client::{Collection, Error},
    resource::Status,
};

/// How a request ended. For each of these, [`Machine`](super::Machine) has a next request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// The server closed the watch, as it does every few minutes.
    Clean,
    /// The connection broke.
    Cut,
    /// Nothing came for longer than [`Machine::silence_limit`](super::Machine::silence_limit).
    Silent,
    /// There was no answer.
    Unreachable,
    /// There was no answer in time.
    Late,
    /// 410 Expired: the server no longer has the history since the requested version.
    Expired,
    /// The requested version is newer than the server's.
    TooNew,
    /// The server refused the request with 422, or its stream is not the requested streaming list.
    Unsupported,
    /// The server answered with an error, or ended an open watch with a 429 in an `ERROR` event.
    Refused {
        /// HTTP status.
        code: u16,
        /// From `Retry-After`.
        retry_after: Option<Duration>,
    },
    /// The server ended an open watch with another `ERROR` event.
    Failed {
        /// From `Retry-After`.
        retry_after: Option<Duration>,
    },
    /// A line or a page could not be decoded, or a page repeated its continue token.
    Garbled,
    /// A page, or the answer to a check, had more bytes than we read.
    TooLarge,
    /// A line was longer than [`LINE_BYTES_MAX`](super::decode::LINE_BYTES_MAX).
    LineTooLong,
}

/// The statuses of refused requests with the same consequence.
pub(super) enum StatusClass {
    /// 429: the server has too much to do.
    Overload,
    /// 403.
    Forbidden,
    /// 401, 404 or 5xx: the same request may succeed later.
    MayPass,
    /// 400, 405, 406 or another status: the same request would fail again.
    Invalid,
}

/// The end of a request, with the problem for [`Health`](super::Health).
pub(crate) struct End {
    pub(super) how: EndReason,
    pub(super) problem: String,
}

impl End {
    pub(super) fn failed(error: &Error, collection: &Collection) -> End {
        End { how: EndReason::of(error), problem: health::problem(error, collection) }
    }

    /// Whether to report the problem after this many failures in a row. A 429 is not reported if it is the first
    /// failure: the API server answers 429 for a few seconds after a CRD was created.
    pub(super) fn is_news(&self, failures: u32) -> bool {
        failures > 1 || !matches!(self.how, EndReason::Refused { code: 429, .. })
    }
}

impl EndReason {
    /// For metrics.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            EndReason::Clean => "Clean",
            EndReason::Cut => "Cut",
            EndReason::Silent => "Silent",
            EndReason::Unreachable => "Unreachable",
            EndReason::Late => "Late",
            EndReason::Expired => "Expired",
            EndReason::TooNew => "TooNew",
            EndReason::Unsupported => "Unsupported",
            EndReason::Refused { .. } => "Refused",
            EndReason::Failed { .. } => "Failed",
            EndReason::Garbled => "Garbled",
            EndReason::TooLarge => "TooLarge",
            EndReason::LineTooLong => "LineTooLong",
        }
    }

    /// How a request ended that failed with this error.
    pub fn of(error: &Error) -> EndReason {
        match error.code() {
            _ if error.is_expired() => EndReason::Expired,
            _ if error.is_too_new() => EndReason::TooNew,
            None if error.is_unreadable() => EndReason::Garbled,
            None if error.is_too_large() => EndReason::TooLarge,
            None if error.is_late() => EndReason::Late,
            Some(422) => EndReason::Unsupported,
            Some(code) => EndReason::Refused { code, retry_after: error.retry_after() },
            None => EndReason::Unreachable,
        }
    }
}

impl From<&Status> for EndReason {
    fn from(status: &Status) -> EndReason {
        if status.is_expired() {
            return EndReason::Expired;
        }
        if status.is_too_new() {
            return EndReason::TooNew;
        }
        // [`Error::retry_after`] returns at most a minute.
        let retry_after = Error::refused("watch", "", status.clone()).retry_after();
        match status.code {
            429 => EndReason::Refused { code: 429, retry_after },
            _ => EndReason::Failed { retry_after },
        }
    }
}

impl StatusClass {
    pub(super) fn of(code: u16) -> StatusClass {
        match code {
            429 => StatusClass::Overload,
            403 => StatusClass::Forbidden,
            401 | 404 | 500.. => StatusClass::MayPass,
            _ => StatusClass::Invalid,
        }
    }
}
