//! HTTP: from a TLS connection to a handler, and from its answer to the response.

pub(crate) mod server;
pub(crate) mod router;
pub(crate) mod handlers;
pub(crate) mod options;
pub(crate) mod response;
pub(crate) mod websocket;
