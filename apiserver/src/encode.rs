//! From values to bytes, as Go's encoder writes them, and bodies that are written as they are read.

use std::{
    num::NonZeroUsize,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use hyper::body::{Body, Frame};
use serde_json::Value;

use super::{faults::Cut, serve::OpenWatch, watch::Watch};

/// One line of JSON. Go escapes `<`, `>`, `&` and the two line separators of Unicode, so that JSON can stand in HTML;
/// a long note full of them makes a line six times as long.
pub(super) fn line(value: &Value) -> Bytes {
    let mut line = json(value);
    line.push('\n');
    line.into()
}

/// The same without its end.
pub(super) fn json(value: &Value) -> String {
    escape(in_order(value))
}

/// One line of a watch, of an object that is JSON already.
pub(super) fn event(kind: &str, object: &str) -> Bytes {
    format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n").into()
}

/// The fields of Go's structs in the order in which Go writes them; all others follow by name. Custom resources are maps
/// there, and sorted as a whole.
const STRUCT_ORDER: [&str; 8] =
    ["kind", "apiVersion", "metadata", "status", "message", "reason", "details", "code"];

fn in_order(value: &Value) -> String {
    let Some(map) = value.as_object() else { return value.to_string() };
    let group = value["apiVersion"]
        .as_str()
        .and_then(|version| version.split_once('/'))
        .map_or("", |(group, _)| group);
    let custom = group.contains('.') && !group.ends_with(".k8s.io");
    if custom {
        return value.to_string();
    }
    // Only a Status starts with what is last elsewhere.
    let order = if value["kind"] == "Status" { &STRUCT_ORDER[..] } else { &STRUCT_ORDER[..3] };
    let first = order.iter().filter_map(|&name| map.get_key_value(name));
    let rest = map.iter().filter(|(name, _)| !order.contains(&name.as_str()));
    let fields: Vec<String> =
        first.chain(rest).map(|(name, value)| format!("{}:{value}", Value::from(name.as_str()))).collect();
    format!("{{{}}}", fields.join(","))
}

/// JSON for people.
pub(super) fn pretty(value: &Value) -> Bytes {
    escape(format!("{value:#}")).into()
}

fn escape(json: String) -> String {
    // 0xe2 is the first byte of both separators. Most objects have none of these.
    if memchr::memchr3(b'<', b'>', b'&', json.as_bytes()).is_none()
        && memchr::memchr(0xe2, json.as_bytes()).is_none()
    {
        return json;
    }
    let mut escaped = String::with_capacity(json.len() + 1);
    for c in json.chars() {
        match c {
            '<' => escaped.push_str("\\u003c"),
            '>' => escaped.push_str("\\u003e"),
            '&' => escaped.push_str("\\u0026"),
            '\u{2028}' => escaped.push_str("\\u2028"),
            '\u{2029}' => escaped.push_str("\\u2029"),
            c => escaped.push(c),
        }
    }
    escaped
}

/// The body of an answer.
pub(super) enum AnswerBody {
    Whole(Option<Bytes>),
    Stream(Stream),
}

/// A watch that is being read. It works only when the connection asks for more.
pub(super) struct Stream {
    next: Pin<Box<dyn Future<Output = Step> + Send>>,
    done: bool,
    /// Dropped with the stream: while it is there the connection is not idle, and its end is logged.
    pub(super) open: Option<OpenWatch>,
}

type Step = (Watch, Bytes, Option<Result<Bytes, Cut>>);

impl Stream {
    pub(super) fn new(watch: Watch) -> Stream {
        Stream { next: Box::pin(step(watch, Bytes::new())), done: false, open: None }
    }
}

/// The next piece, of a limited size if that is a fault on demand; what is left over comes first.
async fn step(mut watch: Watch, rest: Bytes) -> Step {
    let line = if rest.is_empty() { watch.next().await } else { Some(Ok(rest)) };
    match (line, watch.chunk_bytes().map(NonZeroUsize::get)) {
        (Some(Ok(mut line)), Some(chunk_bytes)) if line.len() > chunk_bytes => {
            let piece = line.split_to(chunk_bytes);
            (watch, line, Some(Ok(piece)))
        }
        (line, _) => (watch, Bytes::new(), line),
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
                let (watch, rest, piece) = match stream.next.as_mut().poll(context) {
                    Poll::Ready(step) => step,
                    Poll::Pending => return Poll::Pending,
                };
                match piece {
                    Some(Ok(_)) => stream.next = Box::pin(step(watch, rest)),
                    Some(Err(Cut)) | None => stream.done = true,
                }
                Poll::Ready(piece.map(|piece| piece.map(Frame::data)))
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
