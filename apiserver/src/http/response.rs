//! Answers, and how they become HTTP responses: headers, warnings, and the bodies, streams of watch events included.
//!
//! ```text
//! HTTP/1.1 200 OK
//! Audit-Id: 2a54e3f6-41d0-4fdd-aab7-f32a48c326b6
//! Cache-Control: no-cache, private
//! Content-Type: application/json
//! ```

use std::{
    collections::HashSet,
    num::NonZeroUsize,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{HeaderValue, Response, header};
use hyper::body::{Body, Frame};
use serde_json::Value;
use tokio::time::Instant;

use crate::{
    faults::Cut,
    http::LOG_TARGET,
    json,
    names::uid,
    status::{StatusBody, StatusError},
    verbs::watch::Watch,
};

const JSON: &str = "application/json";
const TEXT: &str = "text/plain; charset=utf-8";
const HTML: &str = "text/html";

/// An answer before it is encoded.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) content: Content,
    pub(crate) warnings: Vec<String>,
    pub(crate) retry_after_secs: Option<u64>,
}

pub(crate) enum Content {
    Json(Value),
    Yaml(Value),
    /// JSON with a content type of its own.
    Typed(Value, &'static str),
    Text(String),
    /// The body of a [`Fault::Answer`](crate::Fault::Answer).
    Raw(String),
    Watch(Box<Watch>),
    /// The log of a container.
    Log(Stream),
    /// The answer to a handshake, which has only the headers of WebSockets.
    WebSocket(Box<Response<AnswerBody>>),
}

impl Answer {
    pub(crate) fn new(status: u16, content: Content) -> Answer {
        Answer { status, content, warnings: Vec::new(), retry_after_secs: None }
    }

    pub(crate) fn json(status: u16, value: Value) -> Answer {
        Answer::new(status, Content::Json(value))
    }

    pub(crate) fn text(status: u16, text: impl Into<String>) -> Answer {
        Answer::new(status, Content::Text(text.into()))
    }

    /// The answer of a [`Fault::Answer`](crate::Fault::Answer).
    pub(crate) fn planned(status: u16, body: String, retry_after_secs: Option<u64>) -> Answer {
        Answer { retry_after_secs, ..Answer::new(status, Content::Raw(body)) }
    }

    pub(crate) fn refused(error: StatusError) -> Answer {
        let retry_after_secs = error.retry_after_secs();
        let content = match error.body {
            StatusBody::Status(status) => Content::Json(*status),
            StatusBody::Text(text) => Content::Text(text),
        };
        Answer { retry_after_secs, ..Answer::new(error.code, content) }
    }

    /// The resourceVersion of the list, or of the Table of one. Empty without a list.
    pub(crate) fn list_version(&self) -> &str {
        let (Content::Json(value) | Content::Typed(value, _)) = &self.content else { return "" };
        let is_list = ["items", "rows"].iter().any(|field| value[field].is_array());
        value["metadata"]["resourceVersion"].as_str().filter(|_| is_list).unwrap_or_default()
    }

    pub(crate) fn into_response(self, pretty: bool) -> Response<AnswerBody> {
        let mut response = Response::new(AnswerBody::Whole(None));
        *response.status_mut() = http::StatusCode::from_u16(self.status).unwrap_or_default();
        let whole = |bytes: Bytes| AnswerBody::Whole(Some(bytes));
        let written = |value: &Value| if pretty { json::pretty(value) } else { json::line(value) };
        let (content_type, body) = match self.content {
            Content::Json(value) => (JSON, whole(written(&value))),
            Content::Yaml(value) => {
                let yaml = yaml_serde::to_string(&value).unwrap_or_default();
                ("application/yaml", whole(yaml.into()))
            }
            Content::Typed(value, content_type) => (content_type, whole(written(&value))),
            Content::Text(text) => (TEXT, whole(text.into())),
            Content::Raw(text) => (media_type(&text), whole(text.into())),
            Content::Watch(watch) => (JSON, AnswerBody::Stream(Stream::new(*watch))),
            Content::Log(log) => ("text/plain", AnswerBody::Stream(log)),
            Content::WebSocket(response) => return *response,
        };
        *response.body_mut() = body;
        let headers = response.headers_mut();
        if self.status != 204 {
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
        }
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
        if let Ok(id) = HeaderValue::from_str(&uid()) {
            headers.insert("audit-id", id);
        }
        if content_type == TEXT {
            headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        }
        if let Some(secs) = self.retry_after_secs {
            headers.insert(header::RETRY_AFTER, secs.into());
        }
        for warning in limited(self.warnings) {
            // Code 299 is "miscellaneous persistent warning"; the dash stands for an unknown agent.
            if let Ok(value) = HeaderValue::from_str(&format!("299 - {warning:?}")) {
                headers.append(header::WARNING, value);
            }
        }
        response
    }
}

/// Most characters of all warnings of an answer. Beyond that, each is cut: apiserver/pkg/endpoints/filters/warning.go.
const WARNINGS_CHARS_MAX: usize = 4096;

/// Most characters of a warning that is cut.
const CUT_WARNING_CHARS: usize = 256;

/// Removes duplicate warnings, and cuts the rest to the size limit of the headers.
fn limited(mut warnings: Vec<String>) -> Vec<String> {
    let mut known = HashSet::new();
    warnings.retain(|warning| known.insert(warning.clone()));
    if warnings.iter().map(|warning| warning.chars().count()).sum::<usize>() <= WARNINGS_CHARS_MAX {
        return warnings;
    }
    let mut chars = 0;
    let mut limited = Vec::new();
    for warning in warnings {
        if chars >= WARNINGS_CHARS_MAX {
            break;
        }
        limited.push(warning.chars().take(CUT_WARNING_CHARS).collect::<String>());
        chars += warning.chars().count().min(CUT_WARNING_CHARS);
    }
    limited
}

/// The media type of a text, guessed from its first byte.
fn media_type(text: &str) -> &'static str {
    match text.as_bytes().first() {
        Some(b'{') => JSON,
        Some(b'<') => HTML,
        Some(_) | None => TEXT,
    }
}

/// The body of an answer.
pub(crate) enum AnswerBody {
    Whole(Option<Bytes>),
    Stream(Stream),
}

/// A stream of chunks, such as an open watch. It does work only when the connection polls it.
pub(crate) struct Stream {
    chunks: Pin<Box<dyn futures_util::Stream<Item = Result<Bytes, Cut>> + Send>>,
    done: bool,
    pub(crate) messages: Messages,
    /// Dropped with the stream. Until then, the connection is not idle. The drop logs the end of the stream.
    pub(crate) open: Option<OpenStream>,
}

/// How the chunks of a stream become the messages of a WebSocket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Messages {
    /// Each line is a text message.
    Lines,
    /// Each chunk is a binary message, whose first byte is the channel.
    Channels,
}

/// An open watch, log or command. Its end is logged.
pub(crate) struct OpenStream {
    pub(crate) path: String,
    pub(crate) user_agent: String,
    pub(crate) started: Instant,
    /// Keeps the connection from being idle.
    pub(crate) _busy: Arc<()>,
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        let OpenStream { path, user_agent, started, .. } = self;
        tracing::debug!(target: LOG_TARGET, path, user_agent, elapsed = ?started.elapsed(), "stream ended");
    }
}

impl Stream {
    /// The events of a watch. A fault can limit the size of a chunk; then `rest` holds the remaining bytes, which come first.
    pub(crate) fn new(watch: Watch) -> Stream {
        let chunks = stream::unfold((watch, Bytes::new()), async |(mut watch, rest)| {
            let line = if rest.is_empty() { watch.next().await? } else { Ok(rest) };
            Some(match (line, watch.chunk_bytes().map(NonZeroUsize::get)) {
                (Ok(mut line), Some(chunk_bytes)) if line.len() > chunk_bytes => {
                    let piece = line.split_to(chunk_bytes);
                    (Ok(piece), (watch, line))
                }
                (line, _) => (line, (watch, Bytes::new())),
            })
        });
        Stream::of(chunks, Messages::Lines)
    }

    pub(crate) fn of(
        chunks: impl futures_util::Stream<Item = Result<Bytes, Cut>> + Send + 'static,
        messages: Messages,
    ) -> Stream {
        Stream { chunks: Box::pin(chunks), done: false, messages, open: None }
    }
}

impl AnswerBody {
    /// The same with a pause after the first half; of a stream, after the first chunk.
    pub(crate) fn paused(self, pause: Duration) -> AnswerBody {
        let stream = match self {
            AnswerBody::Whole(None) => return self,
            AnswerBody::Whole(Some(mut bytes)) => {
                let half = bytes.split_to(bytes.len() / 2);
                Stream::of(stream::iter([Ok(half), Ok(bytes)]), Messages::Lines)
            }
            AnswerBody::Stream(stream) => stream,
        };
        let chunks = stream.chunks.enumerate().then(move |(index, chunk)| async move {
            if index == 1 {
                tokio::time::sleep(pause).await;
            }
            chunk
        });
        AnswerBody::Stream(Stream { chunks: Box::pin(chunks), ..stream })
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        match self.get_mut() {
            AnswerBody::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            AnswerBody::Stream(stream) if stream.done => Poll::Ready(None),
            AnswerBody::Stream(stream) => {
                let chunk = match stream.chunks.as_mut().poll_next(context) {
                    Poll::Ready(chunk) => chunk,
                    Poll::Pending => return Poll::Pending,
                };
                stream.done = !matches!(chunk, Some(Ok(_)));
                Poll::Ready(chunk.map(|chunk| chunk.map(Frame::data)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, AnswerBody::Whole(None))
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        match self {
            AnswerBody::Whole(Some(bytes)) => hyper::body::SizeHint::with_exact(bytes.len() as u64),
            AnswerBody::Whole(None) => hyper::body::SizeHint::with_exact(0),
            AnswerBody::Stream(_) => hyper::body::SizeHint::new(),
        }
    }
}
