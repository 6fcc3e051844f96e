//! A webhook by hand: an HTTPS server of this process that denies ConfigMaps, converts pages, and shows what it is asked.

use std::{sync::Arc, time::Duration};

use base64::{Engine, prelude::BASE64_STANDARD};
use listwatch::client::Request;
use rcgen::{CertifiedKey, generate_simple_self_signed};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    sync::mpsc::{UnboundedReceiver, unbounded_channel},
    task::JoinSet,
    time::sleep,
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{ServerConfig, crypto::ring, pki_types::PrivateKeyDer},
};

use crate::stage::{Outcome, Stage, say, text};

const CONFIGURATIONS: &str = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
/// How often to ask whether the API server has seen an object.
const POLL: Duration = Duration::from_millis(100);

/// Dropped: ended.
pub(crate) struct Webhook {
    url: String,
    /// In PEM.
    certificate: String,
    /// Each request, and its answer.
    asked: UnboundedReceiver<[String; 2]>,
    _server: JoinSet<()>,
}

impl Webhook {
    pub(crate) async fn start() -> Outcome<Webhook> {
        let CertifiedKey { cert, signing_key } = generate_simple_self_signed(["127.0.0.1".to_owned()])?;
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(
                vec![cert.der().clone()],
                PrivateKeyDer::Pkcs8(signing_key.serialize_der().into()),
            )?;
        let tls = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("https://{}", listener.local_addr()?);
        let (sender, asked) = unbounded_channel();
        let mut server = JoinSet::new();
        server.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (tls, sender) = (tls.clone(), sender.clone());
                let show = move |exchange| drop(sender.send(exchange));
                connections.spawn(async move { drop(serve(stream, &tls, show).await) });
            }
        });
        Ok(Webhook { url, certificate: cert.pem(), asked, _server: server })
    }

    /// Lets the API server ask about the ConfigMaps of the lesson. `false`: it cannot reach this process.
    pub(crate) async fn validate_config_maps(&mut self, stage: &Stage) -> Outcome<bool> {
        say!(
            "  a POST that is too long to show lets the API server ask {}/validate about ConfigMaps",
            self.url
        );
        let metadata = owned(stage).await?;
        let rule = json!({"apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"], "operations": ["CREATE"]});
        let namespace = json!({"matchLabels": {"kubernetes.io/metadata.name": metadata["name"]}});
        let hook = json!({"name": "validate.configmaps.example.com", "clientConfig": self.call("/validate"), "rules": [rule],
            "namespaceSelector": namespace, "sideEffects": "None", "admissionReviewVersions": ["v1"]});
        let configuration = json!({"metadata": metadata, "webhooks": [hook]});
        stage.send_unshown(Request::post(CONFIGURATIONS, &configuration)).await?;
        let dry_run = format!("{}?dryRun=All", stage.configmaps);
        let object = json!({"metadata": {"name": "dry-run"}});
        loop {
            let tried = stage.send_unshown(Request::post(&dry_run, &object)).await;
            if tried.is_err_and(|error| error.to_string().contains("failed calling webhook")) {
                return Ok(false);
            }
            if self.asked.try_recv().is_ok() {
                return Ok(true);
            }
            sleep(POLL).await;
        }
    }

    /// Defines pages that the API server stores as v2. Returns the path of their versions.
    pub(crate) async fn convert_pages(&self, stage: &Stage) -> Outcome<String> {
        say!(
            "  a POST that is too long to show defines pages, which are stored as v2, and which {}/convert converts",
            self.url
        );
        let mut metadata = owned(stage).await?;
        let version = |name: &str, field: &str, is_stored: bool| {
            let spec = json!({"type": "object", "properties": {field: {"type": "integer"}}});
            let schema = json!({"type": "object", "properties": {"spec": spec}});
            json!({"name": name, "served": true, "storage": is_stored, "schema": {"openAPIV3Schema": schema}})
        };
        let webhook = json!({"clientConfig": self.call("/convert"), "conversionReviewVersions": ["v1"]});
        let group = format!("{}.example.com", text(&metadata["name"]));
        metadata["name"] = format!("pages.{group}").into();
        let definition = json!({"metadata": metadata, "spec": {
            "group": group, "scope": "Namespaced", "names": {"kind": "Page", "plural": "pages"},
            "versions": [version("v1", "size", false), version("v2", "length", true)],
            "conversion": {"strategy": "Webhook", "webhook": webhook},
        }});
        stage.send_unshown(Request::post(DEFINITIONS, &definition)).await?;
        let path = format!("/apis/{group}");
        while stage.send_unshown(Request::get(format!("{path}/v2/pages"))).await.is_err() {
            sleep(POLL).await;
        }
        Ok(path)
    }

    /// Whom the API server calls, and whom it trusts: a `clientConfig`.
    fn call(&self, path: &str) -> Value {
        json!({"url": format!("{}{path}", self.url), "caBundle": BASE64_STANDARD.encode(&self.certificate)})
    }

    /// Shows the next request and its answer.
    pub(crate) async fn show(&mut self) -> Outcome {
        let [request, answer] = self.asked.recv().await.ok_or("the webhook has ended")?;
        for (arrow, text) in [(">", request), ("<", answer)] {
            for line in text.lines() {
                say!("  {arrow} {line}");
            }
        }
        Ok(())
    }
}

/// The metadata of an object of the whole cluster that is named after the namespace of the lesson, and deleted with it.
async fn owned(stage: &Stage) -> Outcome<Value> {
    let namespace = stage.send_unshown(Request::get(&*stage.namespace)).await?;
    let (name, uid) = (&namespace["metadata"]["name"], &namespace["metadata"]["uid"]);
    let owner = json!({"apiVersion": "v1", "kind": "Namespace", "name": name, "uid": uid});
    Ok(json!({"name": name, "ownerReferences": [owner]}))
}

/// Answers the requests of a connection until the API server closes it.
async fn serve(stream: TcpStream, tls: &TlsAcceptor, show: impl Fn([String; 2])) -> Outcome {
    let mut stream = BufReader::new(tls.accept(stream).await?);
    loop {
        let (mut request, mut length) = (String::new(), 0);
        while stream.read_line(&mut request).await? > "\r\n".len() {
            let last = request.lines().last().and_then(|line| line.split_once(": "));
            if let Some((_, value)) = last.filter(|(name, _)| name.eq_ignore_ascii_case("content-length")) {
                length = value.parse()?;
            }
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await?;
        request += &String::from_utf8(body)?;
        let body = answer(serde_json::from_str(request.lines().last().unwrap_or_default())?).to_string();
        let head =
            format!("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}", body.len());
        let answer = format!("{head}\r\n\r\n{body}");
        show([request, answer.clone()]);
        stream.write_all(answer.as_bytes()).await?;
    }
}

/// The answer to a review, of the same kind and with the same uid.
fn answer(mut review: Value) -> Value {
    let request = review["request"].take();
    let response = if review["kind"] == "ConversionReview" {
        let convert = |object: &Value| converted(object.clone(), &request["desiredAPIVersion"]);
        let objects: Value = request["objects"].as_array().into_iter().flatten().map(convert).collect();
        json!({"uid": request["uid"], "convertedObjects": objects, "result": {"status": "Success"}})
    } else {
        let status = json!({"code": 403, "reason": "Forbidden", "message": "no ConfigMap is good"});
        json!({"uid": request["uid"], "allowed": false, "status": status})
    };
    json!({"apiVersion": review["apiVersion"], "kind": review["kind"], "response": response})
}

/// What v1 calls `size` is called `length` in v2.
fn converted(mut page: Value, version: &Value) -> Value {
    let (from, to) = if version.as_str().is_some_and(|version| version.ends_with("/v2")) {
        ("size", "length")
    } else {
        ("length", "size")
    };
    if let Some(value) = page["spec"].as_object_mut().and_then(|spec| spec.remove(from)) {
        page["spec"][to] = value;
    }
    page["apiVersion"] = version.clone();
    page
}
