//! An admission webhook that denies everything, for a real API server: who would call it is the server itself.

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

/// Ends when dropped.
pub struct Webhook {
    /// `webhooks[].clientConfig` of a ValidatingWebhookConfiguration.
    pub client_config: Value,
    code: Arc<AtomicU16>,
    _tasks: JoinSet<()>,
}

impl Webhook {
    /// Denies each request with this explanation.
    pub async fn start(message: &'static str) -> Webhook {
        let (certificate, tls) = tls::self_signed();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}/", listener.local_addr().unwrap());
        let client_config = json!({"url": url, "caBundle": STANDARD.encode(certificate)});
        let code = Arc::new(AtomicU16::new(403));
        let mut tasks = JoinSet::new();
        tasks.spawn(serve(listener, tls, message, Arc::clone(&code)));
        Webhook { client_config, code, _tasks: tasks }
    }

    /// Denies with this HTTP status from now on.
    pub fn deny_with(&self, code: u16) {
        self.code.store(code, Ordering::Relaxed);
    }
}

/// Runs until dropped.
async fn serve(listener: TcpListener, tls: TlsAcceptor, message: &'static str, code: Arc<AtomicU16>) {
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let (tls, code) = (tls.clone(), Arc::clone(&code));
        connections.spawn(async move {
            if let Ok(stream) = tls.accept(stream).await {
                let _ = answer(stream, message, code.load(Ordering::Relaxed)).await;
            }
        });
    }
}

/// Answers one AdmissionReview, and ends the connection.
async fn answer(stream: TlsStream<TcpStream>, message: &str, code: u16) -> io::Result<()> {
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
            "uid": review["request"]["uid"], "allowed": false,
            "status": {"code": code, "message": message},
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
