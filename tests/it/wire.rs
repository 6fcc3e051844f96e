//! Bad input on the wire: it is said what came instead, and then the operator goes on.
//!
//! The server here is a script: it answers the first list or watch of MyWebservers with something wrong, and every
//! later one as it should. That the operator has survived shows when it creates a Deployment for the web in them.

use std::{
    fmt::Write as _,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use serde_json::json;
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

use crate::{
    hands::eventually,
    operator::Operator,
    tls,
    world::{Kind, on},
};

/// What goes wrong.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Where {
    List,
    Watch,
}

/// The body with which something goes wrong.
#[derive(Clone)]
struct Wrong {
    at: Where,
    status: &'static str,
    media_type: &'static str,
    body: Vec<u8>,
}

struct Script {
    wrong: Wrong,
    has_gone_wrong: AtomicBool,
    requests: Mutex<Vec<String>>,
}

/// A web, as a watch tells it.
fn added() -> String {
    let web = json!({
        "apiVersion": "k8sobjects.gsa.com/v2", "kind": "MyWebserver",
        "metadata": {
            "name": "web", "namespace": "ns", "resourceVersion": "12", "generation": 1,
            "uid": "00e4f4f5-6e1b-4c3f-9d0a-0123456789ab",
        },
        "spec": {"image": "nginx", "port": 80, "replicas": 1}, "status": {"observedGeneration": -1},
    });
    json!({"type": "ADDED", "object": web}).to_string() + "\n"
}

impl Script {
    /// Answers one request. Every answer ends its connection: so its end is the end of the body.
    async fn answer(&self, mut stream: TlsStream<TcpStream>) -> std::io::Result<()> {
        let mut head = Vec::new();
        while !head.windows(4).any(|end| end == b"\r\n\r\n") {
            if stream.read_buf(&mut head).await? == 0 {
                return Ok(());
            }
        }
        let head = String::from_utf8_lossy(&head).into_owned();
        let line = head.lines().next().unwrap_or_default().to_owned();
        self.requests.lock().unwrap().push(line.clone());
        let is_watch = line.contains("watch=1");
        let at = if is_watch { Where::Watch } else { Where::List };
        let is_wrong = line.contains("/mywebservers?")
            && at == self.wrong.at
            && !self.has_gone_wrong.swap(true, Ordering::Relaxed);
        let Wrong { status, media_type, body, .. } = &self.wrong;
        let (status, media_type, body) = match &*line {
            _ if is_wrong => (*status, *media_type, body.clone()),
            line if line.starts_with("GET /version") => {
                ("200 OK", "application/json", br#"{"gitVersion":"v1"}"#.to_vec())
            }
            _ if is_watch && line.contains("/mywebservers?") => {
                ("200 OK", "application/json", added().into_bytes())
            }
            _ if is_watch => ("200 OK", "application/json", Vec::new()),
            line if line.starts_with("GET ") => {
                let list = json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "10"}, "items": []});
                ("200 OK", "application/json", list.to_string().into_bytes())
            }
            _ => ("500 Internal Server Error", "text/plain", b"not in this script".to_vec()),
        };
        let mut answer = format!("HTTP/1.1 {status}\r\ncontent-type: {media_type}\r\nconnection: close\r\n");
        // A watch has no length. One that is wrong ends when it has been read; another is held open.
        if !is_watch {
            write!(answer, "content-length: {}\r\n", body.len()).unwrap();
        }
        stream.write_all((answer + "\r\n").as_bytes()).await?;
        stream.write_all(&body).await?;
        stream.flush().await?;
        if is_watch && !is_wrong {
            stream.read_u8().await?;
        }
        stream.shutdown().await
    }
}

/// Serves the script. Runs until dropped.
async fn serve(listener: TcpListener, tls: TlsAcceptor, script: Arc<Script>) {
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let (tls, script) = (tls.clone(), Arc::clone(&script));
        connections.spawn(async move {
            // Whatever the operator does with its end of the connection is its affair.
            if let Ok(stream) = tls.accept(stream).await {
                let _ = script.answer(stream).await;
            }
        });
    }
}

/// An operator that meets this survives it, having said all of these.
async fn check(wrong: Wrong, says: &[&str]) {
    let (certificate, tls) = tls::self_signed();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let has_gone_wrong = AtomicBool::new(false);
    let script = Arc::new(Script { wrong, has_gone_wrong, requests: Mutex::default() });
    let mut server = JoinSet::new();
    server.spawn(serve(listener, tls, Arc::clone(&script)));

    let dir = TempDir::new().unwrap();
    for (name, text) in [("token", "secret"), ("ca.crt", &*certificate), ("namespace", "ns")] {
        std::fs::write(dir.path().join(name), text).unwrap();
    }
    let operator = Operator::start(&url, dir.path(), &["--namespace", "ns"]);
    operator.until_logged(says).await;
    eventually("the operator to go on", async || {
        let requests = script.requests.lock().unwrap();
        requests
            .iter()
            .any(|line| line.starts_with("POST /apis/apps/v1/namespaces/ns/deployments"))
            .then_some(())
    })
    .await;
    assert!(operator.probe("/livez").await.starts_with("HTTP/1.1 200"));
    assert!(!operator.log().contains("panicked"));
}

fn watch_of(body: impl Into<Vec<u8>>) -> Wrong {
    Wrong { at: Where::Watch, status: "200 OK", media_type: "application/json", body: body.into() }
}

const LOGIN: &str = "<!doctype html>\n<title>Sign in</title>\n";

#[tokio::test]
async fn an_html_page_instead_of_a_list_is_said_to_be_one() {
    let page = |at, status| Wrong { at, status, media_type: "text/html; charset=utf-8", body: LOGIN.into() };
    tokio::join!(
        check(page(Where::List, "200 OK"), &["cannot watch", "login page", "Sign in"]),
        check(page(Where::List, "502 Bad Gateway"), &["cannot watch", "502 Bad Gateway", "an HTML page"]),
        check(page(Where::Watch, "403 Forbidden"), &["cannot watch", "403 Forbidden", "an HTML page"]),
        check(page(Where::Watch, "200 OK"), &["cannot watch", "no watch event", "doctype"]),
    );
}

#[tokio::test]
async fn a_line_that_is_no_watch_event_is_shown_and_the_operator_lists_again() {
    let no_event = ["cannot watch", "a line that is no watch event"];
    tokio::join!(
        check(watch_of("hello\n"), &no_event),
        check(watch_of("{}\n"), &no_event),
        check(watch_of("[]\n"), &no_event),
        check(watch_of("null\n"), &no_event),
        check(watch_of(b"\xff\xfe\x00\n"), &no_event),
        check(watch_of(r#"{"type":"ADDED","object":{"metadata":7}}"#.to_owned() + "\n"), &no_event),
        // Deeper than anybody should go.
        check(watch_of("[".repeat(100_000) + "\n"), &no_event),
    );
}

#[tokio::test]
async fn a_list_that_is_cut_is_asked_for_again() {
    let list = r#"{"kind":"List","metadata":{"resourceVersion":"9"},"items":[{"meta"#;
    let cut = Wrong { at: Where::List, status: "200 OK", media_type: "application/json", body: list.into() };
    check(cut, &["cannot watch", "does not read as a list"]).await;
}

#[tokio::test]
async fn a_watch_that_is_cut_mid_line_is_resumed() {
    let whole = json!({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "11"}}}).to_string();
    let cut = added();
    let body = whole + "\n" + &cut[..cut.len() / 2];
    check(watch_of(body), &["request ended", "mywebservers"]).await;
}

#[tokio::test]
async fn a_line_without_end_is_given_up() {
    let endless = r#"{"type":"ADDED","object":{"x":""#.to_owned() + &"x".repeat(17 * 1024 * 1024);
    check(watch_of(endless), &["cannot watch", "a line of more than 16777216 bytes"]).await;
}

#[tokio::test]
async fn a_certificate_of_somebody_else_is_named_and_the_right_one_is_noticed() {
    on(&[Kind::Embedded], async |world| {
        let ours = std::fs::read(world.dir.path().join("ca.crt")).unwrap();
        let theirs = tls::self_signed().0;
        std::fs::write(world.dir.path().join("ca.crt"), theirs).unwrap();
        world.spawn_operator(&[]);
        let said =
            "certificate signed by an unknown authority: is certificate authority of the service account";
        world.operator().until_unready(&[said]).await;
        world.operator().until_logged(&["WARN", said]).await;
        std::fs::write(world.dir.path().join("ca.crt"), ours).unwrap();
        world.operator().until_ready().await;
    })
    .await;
}

#[tokio::test]
async fn a_token_that_nobody_knows_is_named_and_the_right_one_is_noticed() {
    on(&[Kind::Embedded, Kind::Real], async |world| {
        std::fs::write(world.dir.path().join("token"), "nobody's").unwrap();
        world.spawn_operator(&[]);
        world.operator().until_unready(&["401 Unauthorized"]).await;
        world.new_token().await;
        world.operator().until_ready().await;
        assert!(!world.operator().log().contains("nobody's"), "a token in the log");
    })
    .await;
}

#[tokio::test]
async fn an_api_server_that_is_not_there_yet_is_waited_for() {
    let port = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let dir = TempDir::new().unwrap();
    let ca = tls::self_signed().0;
    for (name, text) in [("token", "secret"), ("ca.crt", &*ca), ("namespace", "ns")] {
        std::fs::write(dir.path().join(name), text).unwrap();
    }
    let operator = Operator::start(&format!("https://127.0.0.1:{port}"), dir.path(), &[]);
    operator.until_logged(&["the API server cannot be used yet", "connection refused"]).await;
    operator.until_unready(&["mywebservers", "connection refused"]).await;
    // A restart would not help.
    assert!(operator.probe("/livez").await.starts_with("HTTP/1.1 200"));
}
