//! A server in this process that gets requests without a connection. For simulations: their paused clock jumps to the
//! next timer, and would not wait for a socket.
//!
//! Everything else is as with any server: credentials, deadlines, retries, limits, and the decoding of answers.

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

/// The answer of an [`InProcess`] server.
pub type InProcessAnswer = http::Response<UnsyncBoxBody<Bytes, Box<dyn Error + Send + Sync>>>;

/// A server in this process. See [`Config::in_process`](super::Config::in_process).
pub trait InProcess: Send + Sync {
    /// Answers one request. An error, also one of the body, is a connection that broke;
    /// [`io::ErrorKind::ConnectionRefused`] is one that could not be opened.
    fn answer(
        &self,
        request: http::Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = io::Result<InProcessAnswer>> + Send + '_>>;

    /// The time of day, for the server and for the client.
    fn now(&self) -> SystemTime;
}

pub(super) async fn send(
    server: &dyn InProcess,
    request: reqwest::RequestBuilder,
) -> Result<reqwest::Response, Cause> {
    let other = |error: &dyn Error| Cause::Other(error.to_string());
    let request = request.build().and_then(http::Request::try_from).map_err(|error| other(&error))?;
    // The body of a request of ours is never a stream.
    let request = request.map(|body| Bytes::copy_from_slice(body.as_bytes().unwrap_or_default()));
    match server.answer(request).await {
        Ok(mut answer) => {
            // Nearly all servers have HTTP/2, whose PING notices a dead connection.
            *answer.version_mut() = http::Version::HTTP_2;
            Ok(answer.map(|body| reqwest::Body::wrap(Exclusive(Mutex::new(body)))).into())
        }
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            Err(Cause::Unreachable(error.to_string()))
        }
        Err(error) => Err(Cause::Lost(error.to_string())),
    }
}

/// Makes a body `Sync`, as reqwest requires. Only its owner reads it, through `get_mut`, so the lock is never taken.
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
