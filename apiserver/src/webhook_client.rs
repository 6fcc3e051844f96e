//! Calls webhooks, over HTTPS. The errors are as from Go's HTTP client.
//!
//! ```text
//! POST https://127.0.0.1:9443/validate?timeout=10s   {"kind": "AdmissionReview", "request": {"uid": "…", "object": {…}, …}}
//! 200 {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "response": {"uid": "…", "allowed": true}}
//! ```

mod trust;

use std::{error::Error, io, sync::Arc, time::Duration};

use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;
use http::{Request, Uri, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::{
    CertificateError, ClientConfig, RootCertStore,
    pki_types::{CertificateDer, ServerName, pem::PemObject},
};
use serde_json::Value;
use tokio::{net::TcpStream, time::timeout};
use tokio_rustls::TlsConnector;

use crate::{
    kinds::field_checks::text,
    storage::{Place, Storage},
    webhook_client::trust::Trust,
};

/// Largest answer of a webhook, as for a request.
const ANSWER_BYTES_MAX: usize = 3 * 1024 * 1024;

/// The limit of a call without one of its own.
const TIMEOUT_SECS: u64 = 30;

/// Where a webhook listens, and which certificates it may have.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Address {
    url: String,
    /// The host and port to connect to, or why there is none.
    dial: Result<(String, u16), String>,
    server_name: String,
    /// In PEM.
    ca: Vec<u8>,
}

impl Address {
    /// The address of a `clientConfig`. A Service is on 127.0.0.1, at the port of webhooks.
    pub(crate) fn of(storage: &Storage, config: &Value, webhook_port: Option<u16>) -> Address {
        let ca = BASE64_STANDARD.decode(text(&config["caBundle"])).unwrap_or_default();
        let service = &config["service"];
        if service.is_null() {
            let url = text(&config["url"]).to_owned();
            let uri: Uri = url.parse().unwrap_or_default();
            let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
            let dial = Ok((host.clone(), uri.port_u16().unwrap_or(443)));
            return Address { url, dial, server_name: host, ca };
        }
        let (namespace, name) = (text(&service["namespace"]), text(&service["name"]));
        let server_name = format!("{name}.{namespace}.svc");
        let url = format!("https://{server_name}:{}{}", service["port"], text(&service["path"]));
        let dial = match (storage.get(&Place::new("services", Some(namespace), name)), webhook_port) {
            (None, _) => Err(format!("service {name:?} not found")),
            (Some(_), None) => Err(format!("no endpoints available for service {name:?}")),
            (Some(_), Some(port)) => Ok(("127.0.0.1".to_owned(), port)),
        };
        Address { url, dial, server_name, ca }
    }
}

impl Address {
    /// POSTs a review, and returns the review in the answer. The error is as from Go's client.
    pub(crate) async fn post(&self, review: &Value, timeout_secs: Option<u64>) -> Result<Value, String> {
        let limit = Duration::from_secs(timeout_secs.unwrap_or(TIMEOUT_SECS));
        let url = self.url(timeout_secs);
        let posted = |why: String| format!("Post {url:?}: {why}");
        let (status, is_text, body) = match timeout(limit, self.exchange(&url, review.to_string())).await {
            Ok(answer) => answer.map_err(posted)?,
            Err(_) => return Err(posted("context deadline exceeded".to_owned())),
        };
        if !(200..300).contains(&status) {
            let text = if is_text { String::from_utf8_lossy(&body) } else { "unknown".into() };
            return Err(status_text(status, &text));
        }
        serde_json::from_slice(&body)
            .map_err(|error| format!("couldn't get version/kind; json parse error: {error}"))
    }

    /// As Go writes it: with a path without empty steps, and the timeout.
    fn url(&self, timeout_secs: Option<u64>) -> String {
        let (scheme, rest) = self.url.split_once("://").unwrap_or_default();
        let mut steps = rest.split('/');
        let host = steps.next().unwrap_or_default();
        let path: Vec<&str> = steps.filter(|step| !step.is_empty()).collect();
        let timeout = timeout_secs.map(|secs| format!("?timeout={secs}s")).unwrap_or_default();
        format!("{scheme}://{host}/{}{timeout}", path.join("/"))
    }

    /// The status of the answer to a POST, whether it is a text, and its body.
    async fn exchange(&self, url: &str, body: String) -> Result<(u16, bool, Bytes), String> {
        let (host, port) = self.dial.clone()?;
        let dialed = TcpStream::connect((host.as_str(), port)).await;
        let stream =
            dialed.map_err(|error| format!("dial tcp {host}:{port}: {}", go_error("connect", &error)))?;
        let name = ServerName::try_from(self.server_name.clone()).map_err(|error| error.to_string())?;
        let stream = self.tls()?.connect(name, stream).await.map_err(|error| tls_error(&error))?;
        let uri: Uri = url.parse().map_err(|_| "invalid URL".to_owned())?;
        let request = Request::post(uri.path_and_query().map_or("/", |path| path.as_str()))
            .header(header::HOST, uri.authority().map_or("", |authority| authority.as_str()))
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::ACCEPT, "application/json, */*")
            .header(header::USER_AGENT, "kube-apiserver-admission")
            .body(Full::new(Bytes::from(body)))
            .map_err(|error| error.to_string())?;
        let exchange = async {
            let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
            let answer = async {
                let answer = sender.send_request(request).await?;
                let status = answer.status().as_u16();
                let content_type = answer.headers().get(header::CONTENT_TYPE);
                let is_text = content_type.is_some_and(|value| value.as_bytes().starts_with(b"text/"));
                let body = Limited::new(answer.into_body(), ANSWER_BYTES_MAX).collect().await?.to_bytes();
                Ok::<_, Box<dyn Error + Send + Sync>>((status, is_text, body))
            };
            tokio::pin!(answer);
            tokio::select! {
                // The connection runs until the answer is read.
                answer = &mut answer => answer,
                _ = connection => answer.await,
            }
        };
        exchange.await.map_err(|_| "EOF".to_owned())
    }

    fn tls(&self) -> Result<TlsConnector, String> {
        let bundle: Vec<CertificateDer<'_>> = CertificateDer::pem_slice_iter(&self.ca).flatten().collect();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?;
        let config = if bundle.is_empty() {
            config.with_root_certificates(RootCertStore::empty())
        } else {
            let trust = Trust::new(bundle, &provider)?;
            config.dangerous().with_custom_certificate_verifier(Arc::new(trust))
        };
        Ok(TlsConnector::from(Arc::new(config.with_no_client_auth())))
    }
}

/// The error of a status, as in `NewGenericServerResponse` of apimachinery/pkg/api/errors.
fn status_text(status: u16, body: &str) -> String {
    match status {
        400 => "the server rejected our request for an unknown reason".to_owned(),
        401 => "the server has asked for the client to provide credentials".to_owned(),
        403 | 415 => body.to_owned(),
        404 => "the server could not find the requested resource".to_owned(),
        405 => "the server does not allow this method on the requested resource".to_owned(),
        422 => "the server rejected our request due to an error in our request".to_owned(),
        429 => "the server has received too many requests and has asked us to try again later".to_owned(),
        503 => "the server is currently unable to handle the request".to_owned(),
        500.. => format!("an error on the server ({body:?}) has prevented the request from succeeding"),
        _ => {
            format!("the server responded with the status code {status} but did not return more information")
        }
    }
}

fn go_error(during: &str, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => format!("{during}: connection refused"),
        _ => error.to_string(),
    }
}

/// The error of a TLS handshake, in the words of Go's crypto/x509 if it is about the certificate.
fn tls_error(error: &io::Error) -> String {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    let why = match inner {
        Some(rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer)) => {
            "x509: certificate signed by unknown authority".to_owned()
        }
        Some(rustls::Error::InvalidCertificate(CertificateError::Other(why))) => why.to_string(),
        Some(rustls::Error::InvalidCertificate(why)) => format!("x509: {why}"),
        Some(_) | None => return error.to_string(),
    };
    format!("tls: failed to verify certificate: {why}")
}
