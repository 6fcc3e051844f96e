//! The log of a container, and its commands.

use futures_util::{SinkExt, StreamExt};
use tokio_tungstenite::tungstenite::Message;

use super::{websockets::Socket, *};

const PODS: &str = "/api/v1/namespaces/default/pods";

/// A server without controllers, and a Pod that runs.
async fn with_pod() -> Fixture {
    let ping = "ping=PONG".parse().expect("a rule");
    let fixture = Fixture::with(Options { exec: vec![ping], ..quiet() }).await;
    let spec = json!({"nodeName": "node-1", "containers": [{"name": "c", "image": "redis:8"}]});
    let (status, body) = fixture.post(PODS, json!({"metadata": {"name": "cache"}, "spec": spec})).await;
    assert_eq!(status, 201, "{body}");
    let state = json!({"running": {"startedAt": "2020-01-01T00:00:00Z"}});
    let statuses = json!([{"name": "c", "image": "redis:8", "imageID": "", "ready": true, "restartCount": 0, "state": state}]);
    let status = json!({"status": {"containerStatuses": statuses}});
    let (status, body) = fixture.merge(&format!("{PODS}/cache/status"), status).await;
    assert_eq!(status, 200, "{body}");
    fixture
}

impl Fixture {
    async fn annotate(&self, log: &str) {
        let patch = json!({"metadata": {"annotations": {"listwatch/logs": log}}});
        assert_eq!(self.merge(&format!("{PODS}/cache"), patch).await.0, 200);
    }

    async fn follow(&self, query: &str) -> Log {
        let path = format!("{PODS}/cache/log?follow=true{query}");
        let answer = self.request(Method::GET, &path).send().await.expect("an answer");
        assert_eq!(answer.status(), 200);
        Log(answer)
    }
}

struct Log(reqwest::Response);

impl Log {
    /// The lines that the server sends together. `None`: the end.
    async fn next(&mut self) -> Option<String> {
        let chunk = self.0.chunk().await.expect("a chunk")?;
        Some(String::from_utf8_lossy(&chunk).into_owned())
    }
}

/// New lines have the time at which the container started, so `sinceSeconds` also suppressed these.
#[tokio::test]
async fn a_followed_log_since_a_time_has_the_new_lines() {
    let fixture = with_pod().await;
    fixture.annotate("a").await;
    let mut log = fixture.follow("&sinceSeconds=60").await;
    fixture.annotate("a\nb").await;
    assert_eq!(log.next().await.as_deref(), Some("b\n"));
}

/// Only the first lines counted for the limit.
#[tokio::test]
async fn a_followed_log_ends_at_its_limit_of_bytes() {
    let fixture = with_pod().await;
    fixture.annotate("a").await;
    let mut log = fixture.follow("&limitBytes=4").await;
    assert_eq!(log.next().await.as_deref(), Some("a\n"));
    fixture.annotate("a\nbcd").await;
    assert_eq!(log.0.text().await.expect("the end"), "bc");
}

/// The line about the missing annotation counted as the first one of the annotation, and a shorter text had no new lines.
#[tokio::test]
async fn a_followed_log_has_all_lines_of_a_new_annotation_and_of_a_shorter_one() {
    let fixture = with_pod().await;
    let mut log = fixture.follow("").await;
    assert!(log.next().await.is_some_and(|line| line.starts_with("Nothing runs in this container")));
    for text in ["a\nb", "c"] {
        fixture.annotate(text).await;
        assert_eq!(log.next().await, Some(format!("{text}\n")));
    }
}

async fn exec(fixture: &Fixture, streams: &str) -> Socket {
    Socket::open(fixture, &format!("{PODS}/cache/exec?command=ping{streams}")).await
}

async fn received(socket: &mut Socket) -> Vec<String> {
    let mut received = Vec::new();
    while let Some(message) = socket.0.next().await {
        match message.expect("a message") {
            Message::Binary(bytes) => received.push(String::from_utf8_lossy(&bytes).into_owned()),
            Message::Close(_) => received.push("close".to_owned()),
            other => panic!("{other}"),
        }
    }
    received
}

const END: &str = "\u{3}{\"metadata\":{},\"status\":\"Success\"}";

#[tokio::test]
async fn a_command_prints_only_to_a_requested_stream() {
    let fixture = with_pod().await;
    let mut socket = exec(&fixture, "&stdout=true").await;
    assert_eq!(received(&mut socket).await, ["\u{1}PONG\n", END, "close"]);
    let mut socket = exec(&fixture, "&stderr=true").await;
    assert_eq!(received(&mut socket).await, [END, "close"]);
}

/// The server closed the connection before it had read the input, which reset the connection.
#[tokio::test]
async fn a_command_with_much_input_ends_with_its_output() {
    let fixture = with_pod().await;
    let mut socket = exec(&fixture, "&stdin=true&stdout=true").await;
    // More than the buffers of a TCP connection take.
    for _ in 0..1024 {
        socket.0.send(Message::Binary(vec![0; 16 * 1024].into())).await.expect("a connection");
    }
    assert_eq!(received(&mut socket).await, ["\u{1}PONG\n", END, "close"]);
}
