//! The webhooks of the operators under test. They give each image a registry, refuse a Page without an image, and convert Pages between `v1`, with
//! `spec.text`, and `v2`, with `spec.body`.

use std::{env, fs, path::Path, sync::Arc};

use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{Request, Response, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use listwatch_scorecard::Scorecard;
use reqwest::Method;
use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::operator::{Operator, path};

/// The bugs of webhooks.
pub const BUGS: [&str; 8] = [
    "loses-titles",
    "loses-labels",
    "judges-what-goes",
    "validates-deletions",
    "counts-its-calls",
    "counts-dry-runs",
    "reads-its-certificate-once",
    "asks-one-by-one",
];

const REGISTRY: &str = "mirror/";

/// Requests of a webhook that asks one by one. The limit of `webhook-slow` is reached, and not that of `slow-answers`.
const QUESTIONS: usize = 6;

/// Lets the operator of these settings serve its webhooks.
pub fn add(scorecard: &mut Scorecard, bug: &str) {
    let variables = ["WEBHOOK_PORT={webhook-port}", "WEBHOOK_CERT_DIR={webhook-cert-dir}"];
    scorecard.command.splice(1..1, variables.map(str::to_owned));
    if bug == "counts-dry-runs" {
        let rule = json!({"apiGroups": [""], "resources": ["namespaces"], "verbs": ["patch"]});
        scorecard.rbac[0]["rules"].as_array_mut().unwrap().push(rule);
    }
    let spec = &mut scorecard.crds[0]["spec"];
    let service = |path: &str| json!({"service": {"namespace": "system", "name": "webhooks", "path": path}});
    spec["conversion"] = json!({"strategy": "Webhook", "webhook": {"clientConfig": service("/convert"), "conversionReviewVersions": ["v1"]}});
    let mut v2 = spec["versions"][0].clone();
    (v2["name"], v2["storage"]) = (json!("v2"), json!(false));
    let fields = v2["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"].as_object_mut().unwrap();
    let text = fields.remove("text").unwrap();
    fields.insert("body".to_owned(), text);
    spec["versions"].as_array_mut().unwrap().push(v2);
    let configuration = |kind: &str, path: &str, operations: &[&str]| {
        let rule = json!({"operations": operations, "apiGroups": ["example.com"], "apiVersions": ["v1"], "resources": ["pages"]});
        let timeout_secs = if bug == "asks-one-by-one" { 3 } else { 10 };
        let webhook = json!({"name": "pages.example.com", "clientConfig": service(path), "rules": [rule], "sideEffects": "None",
            "admissionReviewVersions": ["v1"], "timeoutSeconds": timeout_secs});
        json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": "pages"}, "webhooks": [webhook]})
    };
    let written = ["CREATE", "UPDATE", "DELETE"];
    let validated = if bug == "validates-deletions" { &written[..] } else { &written[..2] };
    scorecard.webhooks = vec![
        configuration("MutatingWebhookConfiguration", "/mutate", &written[..2]),
        configuration("ValidatingWebhookConfiguration", "/validate", validated),
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "system", "name": "webhooks"}}),
    ];
}

/// Serves them, if the scorecard has named a port. Runs until dropped.
pub async fn serve(operator: Arc<Operator>) {
    let Ok(port) = env::var("WEBHOOK_PORT") else { return };
    let dir = env::var("WEBHOOK_CERT_DIR").unwrap();
    let listener = TcpListener::bind(("127.0.0.1", port.parse().unwrap())).await.unwrap();
    let mut acceptor = acceptor_of(Path::new(&dir)).unwrap();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        // The two files are not replaced at once.
        if let Some(current) =
            acceptor_of(Path::new(&dir)).filter(|_| !operator.has("reads-its-certificate-once"))
        {
            acceptor = current;
        }
        let (acceptor, operator) = (acceptor.clone(), Arc::clone(&operator));
        tokio::spawn(async move {
            let Ok(stream) = acceptor.accept(stream).await else { return };
            let service = service_fn(|request| answer(request, &operator));
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

fn acceptor_of(dir: &Path) -> Option<TlsAcceptor> {
    let [certificate, key] = ["tls.crt", "tls.key"].map(|name| fs::read(dir.join(name)));
    let certificates = CertificateDer::pem_slice_iter(&certificate.ok()?).collect::<Result<_, _>>().ok()?;
    let key = PrivateKeyDer::from_pem_slice(&key.ok()?).ok()?;
    let config = ServerConfig::builder().with_no_client_auth().with_single_cert(certificates, key).ok()?;
    Some(TlsAcceptor::from(Arc::new(config)))
}

async fn answer(
    request: Request<Incoming>,
    operator: &Arc<Operator>,
) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let path = request.uri().path().to_owned();
    let mut review: Value = serde_json::from_slice(&request.into_body().collect().await?.to_bytes()).unwrap();
    let asked = review["request"].take();
    let mut response = match &*path {
        "/mutate" => mutated(operator, &asked),
        "/validate" => validated(operator, &asked).await,
        _ => converted(operator, &asked),
    };
    response["uid"] = asked["uid"].clone();
    let review = json!({"apiVersion": review["apiVersion"], "kind": review["kind"], "response": response});
    Ok(Response::new(Full::new(review.to_string().into())))
}

fn mutated(operator: &Operator, asked: &Value) -> Value {
    let (object, mut patch) = (&asked["object"], Vec::new());
    let image = object["spec"]["image"].as_str().filter(|image| !image.starts_with(REGISTRY));
    if let Some(image) = image {
        patch.push(json!({"op": "replace", "path": "/spec/image", "value": format!("{REGISTRY}{image}")}));
    }
    if operator.has("counts-its-calls") && asked["operation"] == "CREATE" {
        let calls = object["metadata"]["annotations"]["calls"].as_str().unwrap_or_default();
        let calls = json!({"calls": format!("{calls}x")});
        patch.push(json!({"op": "add", "path": "/metadata/annotations", "value": calls}));
    }
    let patch = BASE64_STANDARD.encode(Value::from(patch).to_string());
    json!({"allowed": true, "patchType": "JSONPatch", "patch": patch})
}

async fn validated(operator: &Arc<Operator>, asked: &Value) -> Value {
    if operator.has("asks-one-by-one") {
        for _ in 0..QUESTIONS {
            operator.send(Method::GET, &path("configmaps", ""), Value::Null).await;
        }
    }
    if operator.has("counts-dry-runs") && asked["operation"] == "CREATE" {
        let operator = Arc::clone(operator);
        let count = json!({"metadata": {"annotations": {"pages": asked["uid"]}}});
        tokio::spawn(async move { operator.send(Method::PATCH, "/api/v1/namespaces/default", count).await });
    }
    let (object, message) = (&asked["object"], "a page has an image");
    let is_going = !object["metadata"]["deletionTimestamp"].is_null() && !operator.has("judges-what-goes");
    let is_allowed = object.is_null() || is_going || !object["spec"]["image"].is_null();
    json!({"allowed": is_allowed, "status": {"message": message}})
}

fn converted(operator: &Operator, asked: &Value) -> Value {
    let to_v2 = asked["desiredAPIVersion"] == "example.com/v2";
    let (from, to) = if to_v2 { ("text", "body") } else { ("body", "text") };
    let mut objects = asked["objects"].clone();
    for object in objects.as_array_mut().unwrap() {
        object["apiVersion"] = asked["desiredAPIVersion"].clone();
        if to_v2 && operator.has("loses-labels") {
            object["metadata"].as_object_mut().unwrap().remove("labels");
        }
        let Some(spec) = object["spec"].as_object_mut() else { continue };
        if let Some(text) = spec.remove(from) {
            spec.insert(to.to_owned(), text);
        }
        if to_v2 && operator.has("loses-titles") {
            spec.remove("title");
        }
    }
    json!({"convertedObjects": objects, "result": {"status": "Success"}})
}
