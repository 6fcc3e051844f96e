//! WebSockets: the handshake on an HTTP/1.1 connection, and the messages that carry the events of a watch, or the channels of a
//! command, afterwards.
//!
//! ```text
//! GET /api/v1/namespaces?watch=1 HTTP/1.1        HTTP/1.1 101 Switching Protocols
//! Connection: Upgrade                            Connection: Upgrade
//! Upgrade: websocket                             Upgrade: websocket
//! Sec-WebSocket-Version: 13                      Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=
//! Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==
//! Origin: https://127.0.0.1:6443                 text    {"type":"ADDED","object":{…}}
//!                                                close   1000
//! ```
//!
//! As in kube-apiserver, each event is one text message. The server answers pings, sends none itself, ignores the
//! messages of the client, and ends each watch with the close code 1000, also after `timeoutSeconds`. Errors before the
//! watch opens are plain HTTP answers. See apiserver/pkg/endpoints/handlers/watch.go, `HandleWS`.

use std::time::Duration;

use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use http::{HeaderValue, Response, StatusCode, Uri, header};
use http_body_util::BodyExt;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use tokio::io::AsyncWriteExt;
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        Message,
        protocol::{
            CloseFrame, Role, WebSocketConfig,
            frame::{
                Frame,
                coding::{CloseCode, Data, OpCode},
            },
        },
    },
};

use crate::{
    faults::Cut,
    http::response::{AnswerBody, Messages, Stream},
    request::Request,
};

/// The only version of the protocol: RFC 6455.
const VERSION: HeaderValue = HeaderValue::from_static("13");

/// Appended to the key of the client, to prove that the server speaks the protocol: RFC 6455, section 1.3.
const GUID: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// The protocols of `pods/exec`. The first byte of a message is its channel. `v5` also lets the client end its input.
const CHANNEL_PROTOCOLS: [&str; 2] = ["v5.channel.k8s.io", "v4.channel.k8s.io"];

/// Buffer for reading from a client, which sends only control frames.
const READ_BUFFER_BYTES: usize = 4 * 1024;

/// Largest message of a client: `DefaultMaxPayloadBytes` of golang.org/x/net/websocket.
const MESSAGE_BYTES_MAX: usize = 32 * 1024 * 1024;

/// How long the close message may take to be sent to a client that does not read, and how long the client may be silent before it
/// closes the connection.
const CLOSE_MAX: Duration = Duration::from_secs(1);

/// The answer to a request for a WebSocket: the handshake with the stream as its body, or a refusal. The checks and their
/// order are as in golang.org/x/net/websocket, which kube-apiserver uses.
pub(crate) fn handshake(request: &Request, stream: Stream) -> Response<AnswerBody> {
    let headers = &request.headers;
    let Some(key) = headers.get(header::SEC_WEBSOCKET_KEY).filter(|key| !key.is_empty()) else {
        return refused(StatusCode::BAD_REQUEST, "mismatch challenge/response");
    };
    if headers.get(header::SEC_WEBSOCKET_VERSION) != Some(&VERSION) {
        let mut response = refused(StatusCode::BAD_REQUEST, "missing or bad WebSocket Version");
        response.headers_mut().insert(header::SEC_WEBSOCKET_VERSION, VERSION);
        return response;
    }
    let protocol = match subprotocol(request, stream.messages) {
        Ok(protocol) => protocol,
        Err(status) => return refused(status, ""),
    };
    let proof = digest(&SHA1_FOR_LEGACY_USE_ONLY, &[key.as_bytes(), GUID.as_bytes()].concat());
    let mut response = Response::new(AnswerBody::Stream(stream));
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    if let Ok(proof) = HeaderValue::from_str(&BASE64_STANDARD.encode(proof)) {
        headers.insert(header::SEC_WEBSOCKET_ACCEPT, proof);
    }
    headers.extend(protocol.map(|protocol| (header::SEC_WEBSOCKET_PROTOCOL, protocol)));
    response
}

fn subprotocol(request: &Request, messages: Messages) -> Result<Option<HeaderValue>, StatusCode> {
    let offered = request.subprotocols();
    let chosen = match messages {
        // Any URL is accepted, also from a client that is not a browser.
        Messages::Lines
            if !request.header(header::ORIGIN).parse().is_ok_and(|origin: Uri| origin.scheme().is_some()) =>
        {
            return Err(StatusCode::FORBIDDEN);
        }
        Messages::Lines => match offered[..] {
            [] => return Ok(None),
            [one] => one,
            [..] => return Err(StatusCode::BAD_REQUEST),
        },
        Messages::Channels => {
            let known = offered.into_iter().find(|offered| CHANNEL_PROTOCOLS.contains(offered));
            known.ok_or(StatusCode::FORBIDDEN)?
        }
    };
    Ok(HeaderValue::from_str(chosen).ok())
}

fn refused(status: StatusCode, text: &'static str) -> Response<AnswerBody> {
    let mut response = Response::new(AnswerBody::Whole(Some(Bytes::from_static(text.as_bytes()))));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

/// Sends the chunks of a stream as messages, until it ends or the client closes the connection. A chunk that ends within a
/// line of a watch becomes a fragment of a message.
pub(crate) async fn serve(upgrade: OnUpgrade, stream: Stream) {
    let connection = match upgrade.await {
        Ok(connection) => TokioIo::new(connection),
        Err(error) => return tracing::debug!(%error, "connection ended before it became a WebSocket"),
    };
    let config = WebSocketConfig::default()
        .read_buffer_size(READ_BUFFER_BYTES)
        .max_frame_size(Some(MESSAGE_BYTES_MAX))
        .max_message_size(Some(MESSAGE_BYTES_MAX));
    let mut socket = WebSocketStream::from_raw_socket(connection, Role::Server, Some(config)).await;
    let (whole, is_line) = match stream.messages {
        Messages::Lines => (Data::Text, true),
        Messages::Channels => (Data::Binary, false),
    };
    let mut data = whole;
    let mut body = AnswerBody::Stream(stream);
    loop {
        let chunk = tokio::select! {
            frame = body.frame() => match frame {
                Some(Ok(frame)) => frame.into_data().unwrap_or_default(),
                Some(Err(Cut)) => return,
                None => break,
            },
            // Reading also sends the answers to pings.
            received = socket.next() => match received {
                Some(Ok(_)) => continue,
                Some(Err(_)) | None => break,
            },
        };
        let is_final = !is_line || chunk.ends_with(b"\n");
        let frame = Frame::message(chunk, OpCode::Data(data), is_final);
        if socket.send(Message::Frame(frame)).await.is_err() {
            return;
        }
        data = if is_final { whole } else { Data::Continue };
    }
    // These fail if the client is gone.
    let normal = CloseFrame { code: CloseCode::Normal, reason: "".into() };
    let _ = tokio::time::timeout(CLOSE_MAX, socket.close(Some(normal))).await;
    // TCP resets a connection that is closed before its input is read, and the client can lose what it has not read yet.
    while let Ok(Some(Ok(_))) = tokio::time::timeout(CLOSE_MAX, socket.next()).await {}
    let _ = tokio::time::timeout(CLOSE_MAX, socket.get_mut().shutdown()).await;
}
