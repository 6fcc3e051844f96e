//! An admission webhook that denies objects. A real API server calls it.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU16, Ordering},
    },
};

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

use crate::tls;

/// A running webhook. Dropped: ended.
pub struct Webhook {
    /// `webhooks[].clientConfig` of a ValidatingWebhookConfiguration.
    pub client_config: Value,
    denial: Denial,
    _tasks: JoinSet<()>,
}

impl Webhook {
    /// Denies each object whose JSON contains `text`, with this explanation.
    pub async fn start(text: &'static str, message: &'static str) -> Webhook {
        let (certificate, tls) = tls::self_signed();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}/", listener.local_addr().unwrap());
        let client_config = json!({"url": url, "caBundle": STANDARD.encode(certificate)});
        let denial = Denial { text, message, code: Arc::new(AtomicU16::new(403)) };
        let mut tasks = JoinSet::new();
        tasks.spawn(serve(listener, tls, denial.clone()));
        Webhook { client_config, denial, _tasks: tasks }
    }

    /// From now on, denies with this HTTP status.
    pub fn deny_with(&self, code: u16) {
        self.denial.code.store(code, Ordering::Relaxed);
    }

    /// The `status` of each denial. The cause is a field of the Pod template.
    pub fn status(&self) -> Value {
        self.denial.status()
    }
}

/// The objects to deny, and the denial.
#[derive(Clone)]
struct Denial {
    text: &'static str,
    message: &'static str,
    code: Arc<AtomicU16>,
}

impl Denial {
    fn status(&self) -> Value {
        let (code, message) = (self.code.load(Ordering::Relaxed), self.message);
        let cause = json!({"message": message, "field": "spec.template.spec.containers"});
        json!({"code": code, "message": message, "details": {"causes": [cause]}})
    }
}

/// Runs until dropped.
async fn serve(listener: TcpListener, tls: TlsAcceptor, denial: Denial) {
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let (tls, denial) = (tls.clone(), denial.clone());
        connections.spawn(async move {
            if let Ok(stream) = tls.accept(stream).await {
                let _ = answer(stream, &denial).await;
            }
        });
    }
}

/// Answers one AdmissionReview, and ends the connection.
async fn answer(stream: TlsStream<TcpStream>, denial: &Denial) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    let mut length = 0;
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await?;
        match line.trim_end().split_once(": ") {
            Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                length = value.parse().unwrap();
            }
            Some(_) => {}
            None if line.trim_end().is_empty() => break,
            None => {}
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    let review: Value = serde_json::from_slice(&body)?;
    let answer = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "response": {
            "uid": review["request"]["uid"],
            "allowed": !review["request"]["object"].to_string().contains(denial.text),
            "status": denial.status(),
        },
    });
    let answer = answer.to_string();
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        answer.len()
    );
    stream.write_all((head + &answer).as_bytes()).await?;
    stream.flush().await?;
    stream.shutdown().await
}
