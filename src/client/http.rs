//! Requests and answers: sends a request to the API server, and returns the whole answer or a stream.
//!
//! ```text
//! call  ─► once, with a deadline; again after a temporary failure (retry.rs)  ─► the whole answer
//! open  ─► once, with a deadline for the head of the answer                   ─► a stream without a deadline
//! forward ─► once, without a deadline, for another program                    ─► any answer, also a refusal, as a stream
//! all   ─► once more after a 401, with the credential read again (auth.rs)
//! ```
//!
//! The connections themselves are in [`connections`](super::connections).

#[cfg(test)]
mod tests;

use std::{
    fmt,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use http::Version;
use reqwest::{
    RequestBuilder, Response,
    header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, USER_AGENT},
};
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};
use tracing::{debug, warn};
use url::Url;

use super::{
    auth::{Credential, Credentials, Login},
    config::Config,
    connections::{Connection, Connections},
    error::{Cause, Error},
    error_answer::refusal,
    list::Permits,
    no_answer::Where,
    request::{Answer, Head, Request, url},
    retry,
    tap::{Exchange, Step},
    tls::install_crypto,
    warnings::Warnings,
};
use crate::{causes, metrics::Metrics, traces::RequestSpan};

/// Largest error answer that is read. A 422 can quote an object, which etcd limits to 1.5 MiB.
const REFUSAL_BYTES_MAX: usize = 4 * 1024 * 1024;

/// How much longer a watch waits for its head if it has an open connection of its own. Some proxies hold the head back until the
/// first line, and the first line of a quiet watch is a BOOKMARK after two minutes. With other streams, the server may have too
/// many of them: see [`Connection::stream_was_late`].
const FIRST_LINE_MAX: Duration = Duration::from_secs(130);

/// The user agent, by which administrators find our requests in the audit log.
const AGENT: &str = concat!("listwatch/", env!("CARGO_PKG_VERSION"));

/// The body of a watch or another stream, in pieces. Dropping it ends the stream.
pub struct Body {
    reply: Reply,
    connection: Arc<Connection>,
    /// For errors.
    pub(super) object: String,
}

/// An answer whose head has come.
struct Reply {
    response: Response,
    exchange: Exchange,
}

/// A call that waits for its answer. Dropped: not counted any more.
struct Waiting<'a>(&'a watch::Sender<usize>);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|calls| *calls -= 1);
    }
}

/// Whether PINGs detect a dead connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Liveness {
    /// HTTP/2: a PING every 30 s, which the server must answer.
    Pinged,
    /// HTTP/1.1: only TCP keepalive, which a proxy may answer for a dead server.
    NotPinged,
}

/// Sends requests to one API server.
pub(super) struct Transport {
    pub(super) config: Config,
    /// The URL to which paths are appended.
    base: Url,
    /// For errors.
    at: Where,
    pub(super) credentials: Credentials,
    pub(super) connections: Connections,
    warnings: Warnings,
    /// The number of calls that wait for their answers: Kubernetes Events are written only while there is none.
    pub(super) calls: watch::Sender<usize>,
    /// Whether the last answer came over HTTP/2.
    speaks_http2: AtomicBool,
    pub(super) permits: Permits,
    pub(super) metrics: Arc<Metrics>,
    /// For the metrics: `10.96.0.1:6443`.
    host: String,
}

impl Transport {
    /// Reads certificates, and does not connect.
    pub(super) fn new(mut config: Config) -> Result<Transport, Cause> {
        install_crypto();
        let login = std::mem::replace(&mut config.login, Login::Nothing);
        let mut base = config.server.clone();
        if let Some(name) = &config.tls.server_name {
            // The resolver in [`tls`](super::tls) resolves this name to the address of the server.
            base.set_host(Some(name))
                .map_err(|_| Cause::Other(format!("tls-server-name {name}: not a host name")))?;
        }
        let connections = Connections::new(&config).map_err(Cause::Other)?;
        Ok(Transport {
            base,
            at: Where::of(&config),
            credentials: Credentials::new(login),
            connections,
            warnings: Warnings::default(),
            calls: watch::Sender::default(),
            speaks_http2: AtomicBool::new(false),
            permits: Permits::default(),
            metrics: Arc::default(),
            host: config.server.authority().to_owned(),
            config,
        })
    }

    /// How a dead connection is detected, by the HTTP version of the last answer.
    pub(super) fn liveness(&self) -> Liveness {
        if self.speaks_http2.load(Ordering::Relaxed) { Liveness::Pinged } else { Liveness::NotPinged }
    }

    /// Sends a request and reads the whole answer, of at most `bytes_max`. Sends the request again if that is safe and
    /// the deadline allows it.
    pub(super) async fn call(&self, request: &Request, bytes_max: usize) -> Result<Answer, Cause> {
        let begun = Instant::now();
        let mut retries = 0;
        loop {
            let left = self.config.request_timeout.saturating_sub(begun.elapsed());
            let cause = match self.call_once(request, bytes_max, left).await {
                Ok(answer) => return Ok(answer),
                Err(cause) => cause,
            };
            let Some(pause) = retry::pause(&request.method, &cause, retries) else { return Err(cause) };
            if begun.elapsed() + pause >= self.config.request_timeout {
                return Err(cause);
            }
            debug!(method = %request.method, path = request.target(), %cause, ?pause, "sending again");
            sleep(pause).await;
            retries += 1;
        }
    }

    /// Sends a request and reads the whole answer, of at most `bytes_max`. Sends the request again only after a 401:
    /// for callers with a backoff of their own.
    pub(super) async fn call_once(
        &self,
        request: &Request,
        bytes_max: usize,
        deadline: Duration,
    ) -> Result<Answer, Cause> {
        self.calls.send_modify(|calls| *calls += 1);
        let _waiting = Waiting(&self.calls);
        let attempt = |credential| async move {
            let connection = self.connections.for_call(&self.config, &credential);
            let mut reply = self.exchange(&connection, request, &credential).await?;
            let Head { status, headers } = Head::of(&reply.response);
            match read(&mut reply, bytes_max).await.map_err(|error| connection.failed(&error))? {
                Some(body) => Ok(Answer { status, headers, body }),
                None => {
                    let cause = format!("{} answered with more than {bytes_max} bytes", request.path);
                    Err(Cause::TooLarge(cause))
                }
            }
        };
        self.authorized(|credential| self.in_time(request, deadline, attempt(credential))).await
    }

    /// Opens a stream: returns when the head of the answer has come. Sends the request again only after a 401.
    pub(super) async fn open(&self, request: &Request) -> Result<(Head, Body), Cause> {
        let attempt = |credential| async move {
            let connection = self.connections.for_stream(&self.config, &credential);
            let connection = connection.map_err(Cause::Other)?;
            let reply = {
                let mut exchange = pin!(self.exchange(&connection, request, &credential));
                let reply = self.in_time(request, self.config.request_timeout, exchange.as_mut()).await;
                let is_alone = connection.is_open() && connection.streams() == 1;
                match reply {
                    Err(Cause::Late(_)) if request.is_watch() && is_alone => {
                        self.in_time(request, FIRST_LINE_MAX, exchange).await
                    }
                    reply => reply,
                }
            };
            if let Err(Cause::Late(_)) = &reply {
                connection.stream_was_late();
            }
            let reply = reply?;
            Ok((Head::of(&reply.response), Body { reply, connection, object: request.path.clone() }))
        };
        self.authorized(attempt).await
    }

    /// Waits for one attempt at a request, for as long as `deadline`.
    async fn in_time<T>(
        &self,
        request: &Request,
        deadline: Duration,
        attempt: impl Future<Output = Result<T, Cause>>,
    ) -> Result<T, Cause> {
        timeout(deadline, attempt).await.unwrap_or_else(|_| {
            debug!(method = %request.method, path = request.target(), "no answer in time");
            let deadline = humantime::format_duration(deadline.max(self.config.request_timeout));
            Err(Cause::Late(format!("{}: no answer within {deadline}", self.at.address)))
        })
    }

    /// Makes one attempt at a request, and another one after a 401 if the credential can be read again.
    async fn authorized<T, A: Future<Output = Result<T, Cause>>>(
        &self,
        attempt: impl Fn(Credential) -> A,
    ) -> Result<T, Cause> {
        let mut was_renewed = false;
        loop {
            let credential = self.credentials.current().await.map_err(Cause::Other)?;
            // Boxed: otherwise the future of each caller would be 2 kB larger, and a reconcile awaits several side by side.
            let cause = match Box::pin(attempt(credential.clone())).await {
                Ok(answer) => return Ok(answer),
                Err(cause) => cause,
            };
            if was_renewed || cause.status().is_none_or(|status| status.code != 401) {
                return Err(cause);
            }
            if self.credentials.renew(&credential).await.map_err(Cause::Other)?.is_none() {
                return Err(cause);
            }
            was_renewed = true;
        }
    }

    /// Sends the request of another program, and returns the head of any answer, however late. Sends it again only after a 401.
    pub(super) async fn forward(&self, request: &Request) -> Result<(Head, Body), Cause> {
        let attempt = async |credential: &Credential| {
            let connection = self.connections.for_stream(&self.config, credential).map_err(Cause::Other)?;
            let reply = self.any_answer(&connection, request, credential).await?;
            Ok((Head::of(&reply.response), Body { reply, connection, object: request.path.clone() }))
        };
        let credential = self.credentials.current().await.map_err(Cause::Other)?;
        let answer = attempt(&credential).await?;
        if answer.0.status != 401 {
            return Ok(answer);
        }
        match self.credentials.renew(&credential).await {
            Ok(Some(renewed)) => attempt(&renewed).await,
            Ok(None) | Err(_) => Ok(answer),
        }
    }

    /// Sends a request, and returns the head of a 2xx answer.
    async fn exchange(
        &self,
        connection: &Connection,
        request: &Request,
        credential: &Credential,
    ) -> Result<Reply, Cause> {
        let reply = self.any_answer(connection, request, credential).await?;
        if reply.response.status().is_success() { Ok(reply) } else { Err(self.refused(reply).await) }
    }

    /// Sends a request, and returns the head of any answer. Sends `GET /version` first if the connection is not open.
    async fn any_answer(
        &self,
        connection: &Connection,
        request: &Request,
        credential: &Credential,
    ) -> Result<Reply, Cause> {
        let span = RequestSpan::begin(&request.method, || url(&self.base, request));
        let mut exchange = Exchange::begin(self.config.tap.as_ref(), request, span);
        let mut counted = self.metrics.request(&request.method, &self.host);
        if !connection.is_open() {
            let probe = self.build(connection, &Request::get("/version"), credential);
            connection.open(probe).await.inspect_err(|_| {
                exchange.ends(Step::Lost);
                self.connections.doubt_certificates();
            })?;
        }
        let started = Instant::now();
        let builder = self.build(connection, request, credential).headers(exchange.span.headers());
        let builder = builder.headers(causes::headers());
        let sent = connection.send(builder).await;
        counted.code = sent.as_ref().ok().map(|response| response.status().as_u16());
        let response = sent.inspect_err(|cause| {
            debug!(method = %request.method, path = request.target(), %cause, "no answer");
            exchange.ends(Step::Lost);
            self.connections.doubt_certificates();
        })?;
        connection.works();
        self.speaks_http2.store(response.version() == Version::HTTP_2, Ordering::Relaxed);
        let (code, elapsed) = (response.status(), started.elapsed());
        debug!(method = %request.method, path = request.target(), code = code.as_u16(), ?elapsed, "answered");
        for warning in self.warnings.new_in(response.headers()) {
            warn!(warning, "the API server warns");
        }
        exchange.step(Step::Head {
            status: code.as_u16(),
            version: response.version(),
            headers: response.headers(),
        });
        Ok(Reply { response, exchange })
    }

    async fn refused(&self, mut reply: Reply) -> Cause {
        let (code, headers) = (reply.response.status(), reply.response.headers().clone());
        // A body that cannot be read counts as empty: the status code alone is enough for an error.
        let body = read(&mut reply, REFUSAL_BYTES_MAX).await.ok().flatten().unwrap_or_default();
        let mut cause = refusal(code, &headers, &body, self.config.now());
        if let Cause::Refused { status, .. } = &mut cause
            && status.code == 401
            && matches!(status.message.as_str(), "" | "Unauthorized")
        {
            // The server gives no details of a 401, on purpose. We can name the user and the server.
            let (address, user) = (&self.at.address, &self.config.user);
            status.message = format!(
                "{address} does not accept {user}: are the credentials expired, or another cluster's?"
            );
        }
        cause
    }

    fn build(&self, connection: &Connection, request: &Request, credential: &Credential) -> RequestBuilder {
        let mut builder = connection
            .http
            .request(request.method.clone(), url(&self.base, request))
            .header(USER_AGENT, AGENT)
            .header(ACCEPT, request.accept.as_ref());
        if !request.body.is_empty() {
            builder = builder.header(CONTENT_TYPE, request.content_type.as_ref()).body(request.body.clone());
        }
        // These replace what is there.
        builder = builder.headers(request.headers.clone()).headers(self.config.impersonate.clone());
        if let Some(authorization) = &credential.authorization {
            builder = builder.header(AUTHORIZATION, authorization);
        }
        builder
    }
}

impl Body {
    /// The next piece of the stream, cut anywhere. `None`: the server ended the stream. `Err`: the connection broke.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, Error> {
        let chunk = self.reply.chunk().await;
        chunk.map_err(|error| self.connection.failed(&error).about("watch", self.object.clone()))
    }
}

impl Reply {
    async fn chunk(&mut self) -> Result<Option<Bytes>, reqwest::Error> {
        let chunk = self.response.chunk().await;
        match &chunk {
            Ok(Some(chunk)) => self.exchange.step(Step::Chunk(chunk)),
            Ok(None) => self.exchange.ends(Step::End),
            Err(_) => self.exchange.ends(Step::Lost),
        }
        chunk
    }
}

/// Reads a body of at most `max` bytes; `None` if it is larger. Most bodies come in one piece, which is not copied.
async fn read(reply: &mut Reply, max: usize) -> Result<Option<Bytes>, reqwest::Error> {
    let Some(first) = reply.chunk().await? else { return Ok(Some(Bytes::new())) };
    let Some(second) = reply.chunk().await? else {
        return Ok((first.len() <= max).then_some(first));
    };
    let mut body = BytesMut::from(first);
    let mut next = Some(second);
    while let Some(chunk) = next {
        if body.len() + chunk.len() > max {
            return Ok(None);
        }
        body.extend_from_slice(&chunk);
        next = reply.chunk().await?;
    }
    Ok(Some(body.freeze()))
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Body").field("object", &self.object).finish_non_exhaustive()
    }
}
