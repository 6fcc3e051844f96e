//! Requests for a WebSocket, over HTTP/1.1. The handshake is written by hand, because some stories send a wrong one.

use std::sync::Arc;

use futures_util::{SinkExt, StreamExt};
use reqwest::Url;
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, ServerName, pem::PemObject},
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        Message,
        protocol::{CloseFrame, Role, frame::coding::CloseCode},
    },
};

use super::{Answer, HEADERS, documents};

/// The headers of a complete handshake, with the key of the example in RFC 6455.
pub const HANDSHAKE: [(&str, &str); 5] = [
    ("connection", "Upgrade"),
    ("upgrade", "websocket"),
    ("sec-websocket-version", "13"),
    ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ("origin", "https://127.0.0.1"),
];

async fn connect(url: &Url, ca_pem: &str) -> TlsStream<TcpStream> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(ca_pem.as_bytes()) {
        roots.add(certificate.unwrap()).unwrap();
    }
    let mut config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let stream = TcpStream::connect(("127.0.0.1", url.port().unwrap())).await.unwrap();
    let name = ServerName::try_from("127.0.0.1").unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap()
}

/// Sends a GET, and then each line of `messages`: `ping TEXT`, `text TEXT` or `close`. The body of the answer has the events
/// and the control messages of the server, up to its close message or to this many.
pub async fn send(
    url: &str,
    ca_pem: &str,
    headers: &[(String, String)],
    messages: &str,
    lines: Option<usize>,
) -> Answer {
    let url = Url::parse(url).unwrap();
    let mut stream = connect(&url, ca_pem).await;
    let query = url.query().map(|query| format!("?{query}")).unwrap_or_default();
    let mut request = format!("GET {}{query} HTTP/1.1\r\nhost: 127.0.0.1\r\n", url.path());
    for (name, value) in headers {
        request.push_str(&format!("{name}: {value}\r\n"));
    }
    stream.write_all(format!("{request}\r\n").as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    let head = String::from_utf8(head).unwrap();
    let mut lines_of_head = head.lines();
    let status = lines_of_head.next().unwrap().split(' ').nth(1).unwrap();
    let mut answer = Answer { head: vec![format!("HTTP/1.1 {status}")], body: Vec::new() };
    let headers: Vec<(String, &str)> = lines_of_head
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_lowercase(), value))
        .collect();
    for name in HEADERS {
        let values = headers.iter().filter(|(known, _)| known == name);
        answer.head.extend(values.map(|(name, value)| format!("{name}: {value}")));
    }
    if status == "101" {
        let socket = WebSocketStream::from_raw_socket(stream, Role::Client, None).await;
        answer.body = received(socket, messages, lines.unwrap_or(usize::MAX)).await;
        return answer;
    }
    let mut body = Vec::new();
    match headers.iter().find(|(name, _)| name == "content-length") {
        Some((_, length)) => {
            body.resize(length.parse().unwrap(), 0);
            stream.read_exact(&mut body).await.unwrap();
        }
        None => drop(stream.read_to_end(&mut body).await),
    }
    answer.body = documents(&String::from_utf8(body).unwrap());
    answer
}

async fn received(
    mut socket: WebSocketStream<TlsStream<TcpStream>>,
    messages: &str,
    lines: usize,
) -> Vec<Value> {
    for message in messages.lines() {
        let message = match message.split_once(' ').unwrap_or((message, "")) {
            ("ping", text) => Message::Ping(text.to_owned().into()),
            ("text", text) => Message::Text(text.into()),
            ("close", "") => Message::Close(Some(CloseFrame { code: CloseCode::Normal, reason: "".into() })),
            _ => panic!("{message}: unknown message"),
        };
        socket.send(message).await.unwrap();
    }
    let mut body = Vec::new();
    while body.len() < lines {
        match socket.next().await {
            // Each event is one message of one line.
            Some(Ok(Message::Text(text))) if text.ends_with('\n') => {
                body.push(serde_json::from_str(&text).unwrap())
            }
            Some(Ok(Message::Pong(text))) => body.push(json!({"pong": String::from_utf8_lossy(&text)})),
            Some(Ok(Message::Close(close))) => {
                body.push(json!({"close": close.map(|close| u16::from(close.code))}));
                break;
            }
            other => panic!("{other:?}"),
        }
    }
    body
}
