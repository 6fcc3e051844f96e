//! A webhook server for a story. Each of its paths is a webhook, which the story scripts and reads:
//!
//! ```text
//! PUT  {{webhook.url}}/deny   {"allowed": false, "status": {"message": "no"}}     what it responds from now on
//! GET  {{webhook.url}}/deny   [{"kind": "AdmissionReview", …}]                    the reviews since then
//! ```
//!
//! A response without a `uid` gets the `uid` of its request. A patch is written as a list. `{"http": 500}` answers with this status and no
//! review, `{"raw": "oops"}` with this text, and `{"hangs": true}` never. `{"converts": true}` converts between `v1`, with `spec.size`, and
//! `v2`, with `spec.length`.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::{ServerConfig, pki_types::PrivateKeyDer};
use serde_json::{Value, json};
use tokio::{net::TcpListener, task::JoinSet};
use tokio_rustls::TlsAcceptor;

use crate::fixture;

/// A running webhook server. Dropping it stops it.
pub struct Webhook {
    pub url: String,
    /// The CA in PEM, in base64.
    pub ca: String,
    /// Its own certificate, likewise.
    pub certificate: String,
    /// A client that trusts the CA.
    pub http: reqwest::Client,
    _tasks: JoinSet<()>,
}

/// What each path responds, and its reviews.
type Scripts = Arc<Mutex<BTreeMap<String, (Value, Vec<Value>)>>>;

impl Webhook {
    pub async fn start() -> Webhook {
        let ([ca_pem, certificate], acceptor) = identity();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(listener, acceptor, Scripts::default()));
        let http = fixture::http(&ca_pem, "contract/1");
        let [ca, certificate] = [ca_pem, certificate].map(|pem| BASE64_STANDARD.encode(pem));
        Webhook { url, ca, certificate, http, _tasks: tasks }
    }
}

/// A new CA, and a certificate for 127.0.0.1 and for the Service `hook`.
fn identity() -> ([String; 2], TlsAcceptor) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let ca = params.self_signed(&key).unwrap();
    let issuer = Issuer::new(params, key);
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["127.0.0.1".to_owned(), "hook.default.svc".to_owned()]).unwrap();
    let certificate = params.signed_by(&key, &issuer).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], PrivateKeyDer::Pkcs8(key.serialize_der().into()))
        .unwrap();
    ([ca.pem(), certificate.pem()], TlsAcceptor::from(Arc::new(config)))
}

/// Runs until dropped.
async fn accept(listener: TcpListener, acceptor: TlsAcceptor, scripts: Scripts) {
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let (acceptor, scripts) = (acceptor.clone(), Arc::clone(&scripts));
        connections.spawn(async move {
            // A client that does not trust the CA ends the handshake.
            let Ok(stream) = acceptor.accept(stream).await else { return };
            let service = service_fn(|request| answer(request, Arc::clone(&scripts)));
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

async fn answer(request: Request<Incoming>, scripts: Scripts) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let body = request.into_body().collect().await?.to_bytes();
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let script = {
        let mut scripts = scripts.lock().unwrap();
        let (script, reviews) = scripts.entry(path).or_default();
        match method {
            Method::PUT => {
                (*script, *reviews) = (body, Vec::new());
                return Ok(written(200, "{}".to_owned()));
            }
            Method::GET => return Ok(written(200, Value::from(reviews.clone()).to_string())),
            _ => reviews.push(body.clone()),
        }
        script.clone()
    };
    if script["hangs"] == true {
        std::future::pending::<()>().await;
    }
    if let Some(status) = script["http"].as_u64() {
        let mut answer = written(u16::try_from(status).unwrap(), "out of order".to_owned());
        answer.headers_mut().insert("content-type", "text/plain".parse().unwrap());
        return Ok(answer);
    }
    if let Some(raw) = script["raw"].as_str() {
        return Ok(written(200, raw.to_owned()));
    }
    Ok(written(200, review(&body, script).to_string()))
}

fn written(status: u16, body: String) -> Response<Full<Bytes>> {
    let answer = Response::builder().status(status).header("content-type", "application/json");
    answer.body(Full::new(body.into())).unwrap()
}

/// The answer to an AdmissionReview or a ConversionReview.
fn review(asked: &Value, mut response: Value) -> Value {
    if response["converts"] == true {
        let objects = asked["request"]["objects"].as_array().unwrap();
        let version = &asked["request"]["desiredAPIVersion"];
        let converted: Vec<Value> = objects.iter().map(|object| converted(object, version)).collect();
        response = json!({"convertedObjects": converted, "result": {"status": "Success"}});
    }
    if response["uid"].is_null() {
        response["uid"] = asked["request"]["uid"].clone();
    }
    if response["patch"].is_array() {
        response["patch"] = BASE64_STANDARD.encode(response["patch"].to_string()).into();
        response["patchType"] = "JSONPatch".into();
    }
    json!({"kind": asked["kind"], "apiVersion": asked["apiVersion"], "response": response})
}

fn converted(object: &Value, version: &Value) -> Value {
    let mut object = object.clone();
    let to_v2 = version.as_str().unwrap().ends_with("/v2");
    let (from, to) = if to_v2 { ("size", "length") } else { ("length", "size") };
    object["apiVersion"] = version.clone();
    object["metadata"]["annotations"]["converted"] = "yes".into();
    if let Some(value) = object["spec"].as_object_mut().and_then(|spec| spec.remove(from)) {
        object["spec"][to] = value;
    }
    object
}
