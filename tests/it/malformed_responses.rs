//! Tests malformed and truncated answers of the server: the operator logs what it received, and continues.
//!
//! The server is a script. Its first answer to a list or watch of MyWebservers is malformed, and all later answers are
//! valid. When the operator creates a Deployment for the MyWebserver in them, it has survived.

use std::{
    fmt::Write as _,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use listwatch_control_plane::eventually;
use serde_json::json;
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

use crate::{
    fixture::{Kind, on},
    operator::Operator,
    tls,
};

/// The request whose answer is malformed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Target {
    List,
    Watch,
}

/// The malformed answer.
#[derive(Clone)]
struct Malformed {
    target: Target,
    status: &'static str,
    media_type: &'static str,
    body: Vec<u8>,
}

struct Script {
    malformed: Malformed,
    /// Whether the malformed answer was sent.
    is_sent: AtomicBool,
    requests: Mutex<Vec<String>>,
}

/// A MyWebserver as a watch event.
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
    /// Answers one request. Every answer ends its connection, and so its body needs no length.
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
        let target = if is_watch { Target::Watch } else { Target::List };
        let is_malformed = line.contains("/mywebservers?")
            && target == self.malformed.target
            && !self.is_sent.swap(true, Ordering::Relaxed);
        let Malformed { status, media_type, body, .. } = &self.malformed;
        let (status, media_type, body) = match &*line {
            _ if is_malformed => (*status, *media_type, body.clone()),
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
        // A watch has no length. A malformed watch ends when it has been read; a valid one stays open.
        if !is_watch {
            write!(answer, "content-length: {}\r\n", body.len()).unwrap();
        }
        stream.write_all((answer + "\r\n").as_bytes()).await?;
        stream.write_all(&body).await?;
        stream.flush().await?;
        if is_watch && !is_malformed {
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
            // The operator may close its end of the connection at any time.
            if let Ok(stream) = tls.accept(stream).await {
                let _ = script.answer(stream).await;
            }
        });
    }
}

/// Runs an operator against this answer. It must survive, and log all these texts.
async fn check(malformed: Malformed, logged: &[&str]) {
    let (certificate, tls) = tls::self_signed();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let is_sent = AtomicBool::new(false);
    let script = Arc::new(Script { malformed, is_sent, requests: Mutex::default() });
    let mut server = JoinSet::new();
    server.spawn(serve(listener, tls, Arc::clone(&script)));

    let dir = TempDir::new().unwrap();
    for (name, text) in [("token", "secret"), ("ca.crt", &*certificate), ("namespace", "ns")] {
        std::fs::write(dir.path().join(name), text).unwrap();
    }
    let operator = Operator::start(&url, dir.path(), &["--namespace", "ns"]);
    operator.until_logged(logged).await;
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

fn watch_of(body: impl Into<Vec<u8>>) -> Malformed {
    Malformed { target: Target::Watch, status: "200 OK", media_type: "application/json", body: body.into() }
}

const LOGIN: &str = "<!doctype html>\n<title>Sign in</title>\n";

#[tokio::test]
async fn an_html_page_instead_of_a_list_is_reported_as_one() {
    let page = |target, status| Malformed {
        target,
        status,
        media_type: "text/html; charset=utf-8",
        body: LOGIN.into(),
    };
    tokio::join!(
        check(page(Target::List, "200 OK"), &["cannot watch", "login page", "Sign in"]),
        check(page(Target::List, "502 Bad Gateway"), &["cannot watch", "502 Bad Gateway", "an HTML page"]),
        check(page(Target::Watch, "403 Forbidden"), &["cannot watch", "403 Forbidden", "an HTML page"]),
        check(page(Target::Watch, "200 OK"), &["cannot watch", "not a watch event", "doctype"]),
    );
}

#[tokio::test]
async fn a_line_that_is_no_watch_event_is_logged_and_the_operator_lists_again() {
    let no_event = ["cannot watch", "a line that is not a watch event"];
    tokio::join!(
        check(watch_of("hello\n"), &no_event),
        check(watch_of("{}\n"), &no_event),
        check(watch_of("[]\n"), &no_event),
        check(watch_of("null\n"), &no_event),
        check(watch_of(b"\xff\xfe\x00\n"), &no_event),
        check(watch_of(r#"{"type":"ADDED","object":{"metadata":7}}"#.to_owned() + "\n"), &no_event),
        // Nested deeper than any reader should follow.
        check(watch_of("[".repeat(100_000) + "\n"), &no_event),
    );
}

#[tokio::test]
async fn a_list_that_is_cut_is_repeated() {
    let list = r#"{"kind":"List","metadata":{"resourceVersion":"9"},"items":[{"meta"#;
    let cut = Malformed {
        target: Target::List,
        status: "200 OK",
        media_type: "application/json",
        body: list.into(),
    };
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
async fn a_line_without_end_is_cut_off_at_its_limit() {
    let endless = r#"{"type":"ADDED","object":{"x":""#.to_owned() + &"x".repeat(17 * 1024 * 1024);
    check(watch_of(endless), &["cannot watch", "a line of more than 16777216 bytes"]).await;
}

#[tokio::test]
async fn an_unknown_certificate_authority_is_reported_and_a_corrected_one_is_read() {
    on(&[Kind::Embedded], async |fixture| {
        let valid = std::fs::read(fixture.dir.path().join("ca.crt")).unwrap();
        let unknown = tls::self_signed().0;
        std::fs::write(fixture.dir.path().join("ca.crt"), unknown).unwrap();
        fixture.spawn_operator(&[]);
        let error =
            "certificate signed by an unknown authority: is certificate authority of the service account";
        fixture.operator().until_unready(&[error]).await;
        fixture.operator().until_logged(&["WARN", error]).await;
        std::fs::write(fixture.dir.path().join("ca.crt"), valid).unwrap();
        fixture.operator().until_ready().await;
    })
    .await;
}

#[tokio::test]
async fn an_unknown_token_is_reported_and_a_corrected_one_is_read() {
    on(&[Kind::Embedded, Kind::Real], async |fixture| {
        std::fs::write(fixture.dir.path().join("token"), "unknown-token").unwrap();
        fixture.spawn_operator(&[]);
        fixture.operator().until_unready(&["401 Unauthorized"]).await;
        fixture.new_token().await;
        fixture.operator().until_ready().await;
        assert!(!fixture.operator().log().contains("unknown-token"), "a token in the log");
    })
    .await;
}

#[tokio::test]
async fn the_operator_waits_for_an_unreachable_api_server() {
    let port = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let dir = TempDir::new().unwrap();
    let ca = tls::self_signed().0;
    for (name, text) in [("token", "secret"), ("ca.crt", &*ca), ("namespace", "ns")] {
        std::fs::write(dir.path().join(name), text).unwrap();
    }
    let operator = Operator::start(&format!("https://127.0.0.1:{port}"), dir.path(), &[]);
    operator.until_logged(&["the API server cannot be used yet", "connection refused"]).await;
    operator.until_unready(&["mywebservers", "connection refused"]).await;
    // `/livez` succeeds, because a restart would not help.
    assert!(operator.probe("/livez").await.starts_with("HTTP/1.1 200"));
}
