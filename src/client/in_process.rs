//! A server in this very process, asked without a connection: for simulations, whose clock stands still while they wait
//! for a timer, and would not wait for a socket.
//!
//! Only what lies below a request differs: credentials, deadlines, repeats, limits and the reading of answers are those
//! of every client.

use std::{
    error::Error,
    io,
    pin::Pin,
    sync::{Mutex, PoisonError},
    task::{Context, Poll},
    time::SystemTime,
};

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::{Body, Frame};

use super::error::Cause;

/// The answer of such a server.
pub type InProcessAnswer = http::Response<UnsyncBoxBody<Bytes, Box<dyn Error + Send + Sync>>>;

/// A server, and the way to it. See [`Config::in_process`](super::Config::in_process).
pub trait InProcess: Send + Sync {
    /// Answers one request. An error is a connection that broke, or with [`io::ErrorKind::ConnectionRefused`] one that
    /// never was; so is an error of the body.
    fn answer(
        &self,
        request: http::Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = io::Result<InProcessAnswer>> + Send + '_>>;

    /// The time of day there, and so for the client too.
    fn now(&self) -> SystemTime;
}

pub(super) async fn send(
    server: &dyn InProcess,
    request: reqwest::RequestBuilder,
) -> Result<reqwest::Response, Cause> {
    let other = |error: &dyn Error| Cause::Other(error.to_string());
    let request = request.build().and_then(http::Request::try_from).map_err(|error| other(&error))?;
    // Ours are whole, never streams.
    let request = request.map(|body| Bytes::copy_from_slice(body.as_bytes().unwrap_or_default()));
    match server.answer(request).await {
        Ok(mut answer) => {
            // As nearly all servers: one that is dead shows by its silence.
            *answer.version_mut() = http::Version::HTTP_2;
            Ok(answer.map(|body| reqwest::Body::wrap(Exclusive(Mutex::new(body)))).into())
        }
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            Err(Cause::Unreachable(error.to_string()))
        }
        Err(error) => Err(Cause::Lost(error.to_string())),
    }
}

/// A body that is `Sync`, as reqwest wants it, because only its owner ever reads it: the lock is never taken.
struct Exclusive<B>(Mutex<B>);

impl<B: Body + Unpin> Body for Exclusive<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let body = self.get_mut().0.get_mut().unwrap_or_else(PoisonError::into_inner);
        Pin::new(body).poll_frame(context)
    }
}
