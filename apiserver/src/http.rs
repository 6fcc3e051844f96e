//! HTTP: from a TLS connection to a handler, and from its answer to the response.

pub(crate) mod server;
pub(crate) mod router;
pub(crate) mod target;
pub(crate) mod admitted;
pub(crate) mod handlers;
mod health;
mod reviews;
mod containers;
mod metrics;
pub(crate) mod options;
pub(crate) mod response;
pub(crate) mod websocket;

/// The target of the log lines about requests: one for each answer, and one for the end of each watch. Their level is
/// debug.
pub const LOG_TARGET: &str = "listwatch_apiserver::requests";
