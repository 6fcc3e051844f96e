//! Accepts the connections of a server on loopback.

use std::{convert::Infallible, time::Duration};

use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::sleep,
};

/// How long to wait if a connection cannot be accepted. Usually no file descriptor is free.
const PAUSE: Duration = Duration::from_millis(100);

/// Serves each connection in a task, and at most `max` at a time: further ones wait. Runs until dropped.
pub(super) async fn accept<F: Future<Output = ()> + Send + 'static>(
    listener: &TcpListener,
    connections: &mut JoinSet<()>,
    max: usize,
    serve: impl Fn(TcpStream) -> F,
) -> Infallible {
    loop {
        tokio::select! {
            Some(_) = connections.join_next() => {}
            accepted = listener.accept(), if connections.len() < max => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(serve(stream));
                }
                Err(_) => sleep(PAUSE).await,
            },
        }
    }
}
