//! Faults of watches that are WebSockets. The wire without faults is in apiserver/contract/websockets.http.

use futures_util::{SinkExt, StreamExt};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{Message, protocol::Role},
};

use super::*;
use crate::Planned;

pub(super) struct Socket(pub(super) WebSocketStream<TlsStream<TcpStream>>);

impl Socket {
    async fn watch(fixture: &Fixture) -> Socket {
        Socket::open(fixture, &format!("{SECRETS}?watch=1")).await
    }

    pub(super) async fn open(fixture: &Fixture, target: &str) -> Socket {
        let mut stream = fixture.connect().await;
        let head = request_head(fixture, target);
        stream.write_all(head.as_bytes()).await.expect("a connection");
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            answer.push(stream.read_u8().await.expect("a head"));
        }
        assert!(answer.starts_with(b"HTTP/1.1 101 "), "{}", String::from_utf8_lossy(&answer));
        Socket(WebSocketStream::from_raw_socket(stream, Role::Client, None).await)
    }

    /// `ADDED a`, `ERROR 410`, `pong`, `close 1000`, or `CUT`.
    async fn next(&mut self) -> String {
        match self.0.next().await {
            Some(Ok(Message::Text(text))) => {
                let event: Value = serde_json::from_str(&text).expect("one event");
                let object = &event["object"];
                let what =
                    if object["code"].is_null() { &object["metadata"]["name"] } else { &object["code"] };
                format!("{} {what}", event["type"]).replace('"', "")
            }
            Some(Ok(Message::Pong(_))) => "pong".to_owned(),
            Some(Ok(Message::Close(Some(close)))) => format!("close {}", close.code),
            Some(Err(_)) => "CUT".to_owned(),
            other => panic!("{other:?}"),
        }
    }
}

/// A watch accepts any protocol.
fn request_head(fixture: &Fixture, target: &str) -> String {
    let token = fixture.server.token();
    format!(
        "GET {target} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\
         sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\norigin: https://x\r\n\
         sec-websocket-protocol: v5.channel.k8s.io\r\n\r\n"
    )
}

async fn with_two_secrets() -> Fixture {
    let fixture = Fixture::with(quiet()).await;
    for name in ["a", "b"] {
        fixture.post(SECRETS, config_map(name, json!({}))).await;
    }
    fixture
}

#[tokio::test]
async fn a_websocket_watch_ends_in_every_way() {
    for (fault, end) in [
        ("end-watches", &["close 1000"][..]),
        ("cut-watches", &["CUT"]),
        ("expire-watches", &["ERROR 410", "close 1000"]),
        ("restart", &["CUT"]),
    ] {
        let fixture = with_two_secrets().await;
        let mut open = Socket::watch(&fixture).await;
        assert_eq!([open.next().await, open.next().await], ["ADDED a", "ADDED b"]);
        fixture.server.fault(fault.parse::<Planned>().expect(fault));
        for end in end {
            assert_eq!(open.next().await, *end, "{fault}");
        }
    }
}

#[tokio::test]
async fn a_cut_websocket_watch_ends_within_its_next_event() {
    let fixture = with_two_secrets().await;
    fixture.server.fault(Planned::from(Fault::CutWatches).after_lines(1));
    let mut socket = Socket::watch(&fixture).await;
    assert_eq!([socket.next().await, socket.next().await], ["ADDED a", "CUT"]);
}

#[tokio::test]
async fn a_stalled_websocket_watch_still_answers_pings() {
    let fixture = with_two_secrets().await;
    fixture.server.fault(Fault::StallWatches);
    let mut socket = Socket::watch(&fixture).await;
    socket.0.send(Message::Ping("x".into())).await.expect("a connection");
    assert_eq!(socket.next().await, "pong");
    fixture.server.end_faults();
    assert_eq!(socket.next().await, "ADDED a");
}

#[tokio::test]
async fn a_websocket_watch_can_come_in_fragments_of_one_byte() {
    let fixture = with_two_secrets().await;
    fixture
        .merge(
            &format!("{SECRETS}/a"),
            json!({"metadata": {"labels": {"a": "b"}, "annotations": {"text": "日本"}}}),
        )
        .await;
    fixture.server.fault(Fault::ChunkBytes(1));
    let mut socket = Socket::watch(&fixture).await;
    assert_eq!([socket.next().await, socket.next().await], ["ADDED a", "ADDED b"]);
}

/// The tunnels of kubectl are not served, so that clients see at once why they fail.
#[tokio::test]
async fn an_upgrade_of_another_request_is_refused() {
    let fixture = Fixture::with(quiet()).await;
    for (subresource, status) in [("exec", "404 Not "), ("attach", "405 Meth"), ("portforward", "405 Meth")] {
        let mut stream = fixture.connect().await;
        let head = request_head(&fixture, &format!("/api/v1/namespaces/default/pods/web/{subresource}"));
        stream.write_all(head.as_bytes()).await.expect("a connection");
        let mut answer = vec![0; 17];
        stream.read_exact(&mut answer).await.expect("a head");
        assert_eq!(String::from_utf8_lossy(&answer), format!("HTTP/1.1 {status}"));
    }
}
