//! The settings of a connection: windows, PINGs, timeouts and proxy.
//!
//! Measured on kube-apiserver 1.36: with the default windows of the libraries, three watches that nobody reads stop every
//! other answer on their connection; with the windows below, fifty do not.

use std::time::Duration;

use reqwest::{Proxy, redirect::Policy};

use super::{config::Config, tls::Certificates};

/// HTTP/2 window of a stream: the bytes that the server may send before we read them. An unread watch takes these from
/// the window of its connection, and no more.
const STREAM_WINDOW_BYTES: u32 = 256 * 1024;

/// HTTP/2 window of a connection. Larger than the windows of all its streams together (100 × 256 KiB), so that unread
/// streams leave room for the others.
const CONNECTION_WINDOW_BYTES: u32 = 32 * 1024 * 1024;

/// Time without traffic after which a PING is sent, and the time that the server has to answer it. client-go's values: a
/// dead connection is noticed within 45 s.
const KEEP_ALIVE: Duration = Duration::from_secs(30);
const KEEP_ALIVE_ANSWER: Duration = Duration::from_secs(15);

/// Longest wait for TCP and TLS. Twice the time in which TCP repeats a lost SYN three times, and half of the default
/// deadline of a request.
const CONNECT_WAIT: Duration = Duration::from_secs(15);

pub(super) fn reqwest_client(
    config: &Config,
    certificates: &Certificates,
    idle_max: Option<Duration>,
) -> Result<reqwest::Client, String> {
    let mut builder = reqwest::Client::builder()
        .http2_initial_stream_window_size(STREAM_WINDOW_BYTES)
        .http2_initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .http2_keep_alive_interval(KEEP_ALIVE)
        .http2_keep_alive_timeout(KEEP_ALIVE_ANSWER)
        .http2_keep_alive_while_idle(true)
        .tcp_keepalive(KEEP_ALIVE)
        .tcp_keepalive_interval(KEEP_ALIVE_ANSWER)
        .connect_timeout(CONNECT_WAIT)
        .pool_idle_timeout(idle_max)
        .redirect(Policy::none());
    // HTTP/1.1 has no PING. There, the kernel gives up on a peer that acknowledges nothing. A proxy may acknowledge for a
    // dead server; the watch detects that by its own timeout, see [`Liveness::NotPinged`](super::Liveness::NotPinged).
    #[cfg(target_os = "linux")]
    {
        builder = builder.tcp_user_timeout(KEEP_ALIVE + KEEP_ALIVE_ANSWER);
    }
    builder = match &config.proxy {
        Some(proxy) => {
            let proxy = Proxy::all(proxy.clone()).map_err(|_| "proxy-url: not usable".to_owned())?;
            builder.proxy(proxy)
        }
        None if config.ignores_proxy_variables() => builder.no_proxy(),
        None => builder,
    };
    certificates.configure(config, builder)?.build().map_err(|error| {
        let cause = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
        format!("certificates of {}: {cause}", config.origin)
    })
}
