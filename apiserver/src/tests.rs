//! Tests of the server through its API: requests and answers over TLS.

mod autoscaler;
mod containers;
mod faults;
mod limits;
mod rollout;
mod websockets;
mod workloads;

use std::{
    fs::Permissions,
    os::unix::fs::PermissionsExt,
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime},
};

use reqwest::{Method, header};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, ServerName, pem::PemObject},
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::sleep,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use crate::{ApiServer, EventRecord, Fault, Options, WriteRecord};

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
/// No Secrets exist at the start.
const SECRETS: &str = "/api/v1/namespaces/default/secrets";
const WIDGETS: &str = "/apis/demo.example.com/v2/namespaces/default/widgets";
const MERGE: &str = "application/merge-patch+json";

struct Fixture {
    server: ApiServer,
    http: reqwest::Client,
}

impl Fixture {
    async fn start() -> Fixture {
        Fixture::with(Options::default()).await
    }

    async fn with(options: Options) -> Fixture {
        // A second call fails, which is harmless.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let server = ApiServer::start(options).await.expect("a free port");
        let ca = reqwest::Certificate::from_pem(server.ca_pem().as_bytes()).expect("our own CA");
        let http =
            reqwest::Client::builder().tls_certs_only([ca]).user_agent("tests/1").build().expect("a client");
        Fixture { server, http }
    }

    fn request(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        let url = format!("{}{path}", self.server.url());
        self.http.request(method, url).bearer_auth(self.server.token())
    }

    /// A bare connection that speaks HTTP/1.1.
    async fn connect(&self) -> TlsStream<TcpStream> {
        self.connect_as("http/1.1").await
    }

    async fn connect_as(&self, protocol: &str) -> TlsStream<TcpStream> {
        let mut roots = RootCertStore::empty();
        let ca = CertificateDer::from_pem_slice(self.server.ca_pem().as_bytes()).expect("our own CA");
        roots.add(ca).expect("our own CA");
        let mut config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = vec![protocol.into()];
        let name = ServerName::try_from("localhost").expect("a name");
        let stream = TcpStream::connect(("127.0.0.1", self.server.server.port)).await.expect("a connection");
        TlsConnector::from(Arc::new(config)).connect(name, stream).await.expect("a handshake")
    }

    async fn call(&self, method: Method, path: &str, content_type: &str, body: Value) -> (u16, Value) {
        let mut request = self.request(method, path).header(header::CONTENT_TYPE, content_type);
        if !body.is_null() {
            request = request.body(body.to_string());
        }
        let answer = request.send().await.expect("an answer");
        let status = answer.status().as_u16();
        let text = answer.text().await.expect("a body");
        (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
    }

    async fn get(&self, path: &str) -> (u16, Value) {
        self.call(Method::GET, path, "", Value::Null).await
    }

    async fn post(&self, path: &str, body: Value) -> (u16, Value) {
        self.call(Method::POST, path, "application/json", body).await
    }

    async fn merge(&self, path: &str, body: Value) -> (u16, Value) {
        self.call(Method::PATCH, path, MERGE, body).await
    }

    async fn delete(&self, path: &str) -> (u16, Value) {
        self.call(Method::DELETE, path, "application/json", Value::Null).await
    }

    async fn watch(&self, path: &str) -> Lines {
        let answer = self.request(Method::GET, path).send().await.expect("an answer");
        assert_eq!(answer.status(), 200);
        Lines { answer, buffer: Vec::new() }
    }

    /// Repeats a GET until the answer is as wanted.
    async fn until(&self, path: &str, wanted: impl Fn(u16, &Value) -> bool) -> Value {
        for _ in 0..500 {
            let (status, body) = self.get(path).await;
            if wanted(status, &body) {
                return body;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{path} never became as wanted: {:?}", self.get(path).await);
    }

    /// Asks until there is an answer.
    async fn until_some<T>(&self, ask: impl Fn() -> Option<T>) -> T {
        loop {
            if let Some(answer) = ask() {
                return answer;
            }
            sleep(Duration::from_millis(1)).await;
        }
    }

    async fn install_widgets(&self) {
        let schema = json!({"type": "object", "properties": {
            "spec": {"type": "object", "required": ["size"], "properties": {
                "size": {"type": "integer", "minimum": 1, "maximum": 100},
                "color": {"type": "string", "default": "red"}}},
            "status": {"type": "object", "properties": {"phase": {"type": "string"}}}}});
        let old = json!({"type": "object", "properties": {
            "spec": {"type": "object", "properties": {"size": {"type": "integer"}}}}});
        let crd = json!({"metadata": {"name": "widgets.demo.example.com"}, "spec": {
            "group": "demo.example.com", "scope": "Namespaced",
            "names": {"plural": "widgets", "kind": "Widget"},
            "versions": [
                {"name": "v1", "served": true, "storage": false, "schema": {"openAPIV3Schema": old}},
                {"name": "v2", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema},
                    "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.size",
                        "statusReplicasPath": ".status.size"}}}]}});
        let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        let (status, body) = self.post(path, crd).await;
        assert_eq!(status, 201, "{body}");
    }
}

/// The events of a watch, in a short form: `ADDED a 12`.
struct Lines {
    answer: reqwest::Response,
    buffer: Vec<u8>,
}

impl Lines {
    async fn line(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.buffer.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).expect("an event"));
            }
            match self.answer.chunk().await {
                Ok(Some(chunk)) => self.buffer.extend_from_slice(&chunk),
                Ok(None) => return None,
                Err(_) => return Some(json!({"type": "CUT"})),
            }
        }
    }

    async fn next(&mut self) -> String {
        let Some(line) = self.line().await else { return "end".to_owned() };
        let (kind, object) = (line["type"].as_str().unwrap_or_default(), &line["object"]);
        match kind {
            "BOOKMARK" if object["metadata"]["annotations"].is_object() => "BOOKMARK initial".to_owned(),
            "ERROR" => format!("ERROR {} {}", object["code"], object["message"]),
            "BOOKMARK" | "CUT" => kind.to_owned(),
            kind => format!("{kind} {}", object["metadata"]["name"].as_str().unwrap_or_default()),
        }
    }
}

fn config_map(name: &str, labels: Value) -> Value {
    json!({"metadata": {"name": name, "labels": labels}})
}

fn version(object: &Value) -> u64 {
    let version = object["metadata"]["resourceVersion"].as_str().unwrap_or_default();
    version.parse().expect("a version")
}

fn quiet() -> Options {
    Options { controllers: false, ..Options::default() }
}

#[tokio::test]
async fn the_second_version_of_openapi_has_the_definitions_of_all_kinds() {
    let fixture = Fixture::start().await;
    fixture.install_widgets().await;
    let (status, document) = fixture.get("/openapi/v2").await;
    assert_eq!((status, &document["swagger"]), (200, &json!("2.0")));
    let definitions = &document["definitions"];
    assert!(definitions["com.example.demo.v2.Widget"]["properties"]["spec"].is_object());
    assert!(definitions["apps.v1.Deployment"].is_object());
    // Each reference has its definition.
    let text = document.to_string();
    let references: Vec<&str> =
        text.split("\"$ref\":\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    assert!(references.len() > 100, "{references:?}");
    for reference in references {
        let name = reference.strip_prefix("#/definitions/").expect(reference);
        assert!(definitions[name].is_object(), "{reference}");
    }
}

#[tokio::test]
async fn a_request_without_a_token_is_anonymous() {
    let fixture = Fixture::start().await;
    let url = format!("{}{CONFIG_MAPS}", fixture.server.url());
    let answer = fixture.http.get(&url).bearer_auth("nope").send().await.expect("an answer");
    assert_eq!(answer.status(), 401);
    let body: Value = serde_json::from_str(&answer.text().await.expect("a body")).expect("a Status");
    assert_eq!(
        body,
        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": "Unauthorized", "reason": "Unauthorized", "code": 401})
    );
    let answer = fixture.http.get(&url).send().await.expect("an answer");
    assert_eq!(answer.status(), 403, "without any token one is system:anonymous");
    fixture.server.add_token("new", "jane");
    let answer = fixture.http.get(&url).bearer_auth("new").send().await.expect("an answer");
    assert_eq!(answer.status(), 200);
    assert_eq!(fixture.server.requests().last().map(|last| last.user.clone()), Some("jane".to_owned()));
    let made = fixture.server.new_token("joe");
    assert_ne!(made, fixture.server.new_token("joe"));
    assert_eq!([made.len(), fixture.server.token().len()], [43, 43], "256 bits in base64");
    let answer = fixture.http.get(&url).bearer_auth(made).send().await.expect("an answer");
    assert_eq!(answer.status(), 200);
    assert_eq!(fixture.server.requests().last().map(|last| last.user.clone()), Some("joe".to_owned()));
    fixture.server.revoke_token("new");
    assert_eq!(fixture.http.get(&url).bearer_auth("new").send().await.expect("an answer").status(), 401);
    fixture.server.stop().await;
}

#[tokio::test]
async fn a_write_is_recorded_with_its_user_and_its_changes() {
    let fixture = Fixture::start().await;
    let before = fixture.server.version();
    let kubeconfig = fixture.server.kubeconfig_of("jane");
    let token =
        kubeconfig.split("token: \"").nth(1).and_then(|rest| rest.split('"').next()).expect("a token");
    let url = format!("{}{CONFIG_MAPS}", fixture.server.url());
    let create = fixture.http.post(&url).bearer_auth(token).body(config_map("a", json!({})).to_string());
    assert_eq!(create.send().await.expect("an answer").status(), 201);
    fixture.merge(&format!("{CONFIG_MAPS}/a"), json!({"data": {"b": "1"}})).await;
    fixture.merge(&format!("{CONFIG_MAPS}/a"), json!({"data": {"b": "1"}})).await;
    fixture.delete(&format!("{CONFIG_MAPS}/a")).await;
    let writes = fixture.server.writes_since(before);
    let text = |write: &WriteRecord| {
        let WriteRecord { user, method, resource, object, .. } = write;
        format!("{user} {method} {} {resource} {object} {:?}", write.verb(), write.changed_paths())
    };
    let writes: Vec<_> = writes.iter().filter(|write| write.resource == "configmaps").map(text).collect();
    let expected = [
        "jane POST create configmaps default/a []",
        "admin PATCH update configmaps default/a [\".data\"]",
        "admin DELETE delete configmaps default/a []",
    ];
    assert_eq!(writes, expected);
}

/// For tests in other languages than Rust.
#[tokio::test]
async fn administrators_read_the_records_of_requests_and_writes_as_lines_of_json() {
    let fixture = Fixture::with(quiet()).await;
    let before = fixture.server.version();
    assert_eq!(fixture.delete("/listwatch/requests").await, (200, json!("all dropped\n")));
    fixture.post(SECRETS, json!({"metadata": {"name": "a"}, "stringData": {"password": "secret"}})).await;
    fixture.merge(&format!("{SECRETS}/a"), json!({"metadata": {"labels": {"b": "1"}}})).await;
    fixture.get(&format!("{SECRETS}/b?pretty=1")).await;
    fixture.get(SECRETS).await;
    let lines = async |path: &str| -> Vec<Value> {
        let text = fixture.get(path).await.1;
        let lines = text.as_str().expect("text").lines();
        lines.map(|line| serde_json::from_str(line).expect("JSON")).collect()
    };
    let request = |id: u64, method: &str, target: &str, name: &str, status: u16, version: u64| {
        json!({"id": id, "connection": 1, "user": "admin", "userAgent": "tests/1", "method": method, "target": format!("{SECRETS}{target}"),
            "resource": "secrets", "namespace": "default", "name": name, "subresource": null, "status": status,
            "resourceVersion": version.to_string()})
    };
    let mut list = request(5, "GET", "", "", 200, before + 2);
    list["listVersion"] = list["resourceVersion"].clone();
    let expected = [
        request(2, "POST", "", "a", 201, before + 1),
        request(3, "PATCH", "/a", "a", 200, before + 2),
        request(4, "GET", "/b?pretty=1", "b", 404, before + 2),
        list,
    ];
    let (mut requests, mut writes) =
        (lines("/listwatch/requests").await, lines(&format!("/listwatch/writes?since={before}")).await);
    for line in requests.iter_mut().chain(&mut writes) {
        let time = line.as_object_mut().and_then(|line| line.remove("time")).expect("a time");
        humantime::parse_rfc3339(time.as_str().expect("text")).expect("RFC 3339");
        line.as_object_mut().map(|line| line.remove("received"));
    }
    assert_eq!(requests, expected);
    let shown = |write: &Value| {
        format!("{} {} {}", write["type"], write["changed"], write["object"]["metadata"]["name"])
    };
    let shown: Vec<String> = writes.iter().map(shown).collect();
    assert_eq!(shown, [r#""ADDED" [] "a""#, r#""MODIFIED" [".metadata.labels"] "a""#]);
    assert!(writes.iter().all(|write| write["object"]["data"].is_null()), "{writes:?}");
    assert_eq!(writes.iter().map(|write| &write["request"]).collect::<Vec<_>>(), [2, 3]);
    let later = format!("/listwatch/writes?since={}", fixture.server.version());
    assert_eq!(lines(&later).await, Vec::<Value>::new());
    assert_eq!(fixture.get("/listwatch/writes?since=soon").await.0, 400);
    fixture.server.fault(Fault::ExpireHistory);
    let last = fixture.server.version();
    assert_eq!(lines(&format!("/listwatch/writes?since={last}")).await, Vec::<Value>::new());
    let (status, expired) = fixture.get(&format!("/listwatch/writes?since={before}")).await;
    assert_eq!((status, &expired["reason"]), (410, &json!("Expired")));
    assert_eq!(expired["message"], format!("too old resource version: {before} ({last})"));
}

/// By default, nothing is recorded.
#[tokio::test]
async fn the_latest_events_of_watches_are_recorded_with_their_ends() {
    for (events, expected) in [
        (0, vec![]),
        (2, vec!["1 ERROR  0", "1 END  0"]),
        (9, vec!["1 ADDED default/a 2", "1 MODIFIED default/a 3", "1 ERROR  0", "1 END  0"]),
    ] {
        let fixture = Fixture::with(Options { events, ..quiet() }).await;
        let before = fixture.server.version();
        let mut watch = fixture.watch(&format!("{SECRETS}?watch=1&resourceVersion={before}")).await;
        fixture.post(SECRETS, json!({"metadata": {"name": "a"}})).await;
        fixture.merge(&format!("{SECRETS}/a"), json!({"metadata": {"labels": {"b": "1"}}})).await;
        assert_eq!([watch.next().await, watch.next().await], ["ADDED a", "MODIFIED a"]);
        fixture.server.fault(Fault::ExpireWatches);
        while watch.line().await.is_some() {}
        let found = fixture.until_some(|| {
            let found = fixture.server.events();
            (events == 0 || found.iter().any(|event| event.event == "END")).then_some(found)
        });
        let shown = found.await.into_iter().map(|EventRecord { watch, event, object, version, .. }| {
            let version = version.checked_sub(before).map_or(0, |since| since + 1);
            format!("{watch} {event} {object} {version}")
        });
        assert_eq!(shown.collect::<Vec<_>>(), expected);
    }
}

/// The user was looked up again at the write, so a revoked token wrote as the server's controllers.
#[tokio::test]
async fn a_held_write_is_recorded_with_the_user_of_its_token_when_it_came() {
    let fixture = Fixture::with(quiet()).await;
    let before = fixture.server.version();
    let token = fixture.server.new_token("jane");
    fixture.server.fault(Fault::Hold);
    let url = format!("{}{CONFIG_MAPS}", fixture.server.url());
    let create = fixture.http.post(url).bearer_auth(&token).body(config_map("a", json!({})).to_string());
    let release = async {
        fixture.server.held().await;
        fixture.server.revoke_token(&token);
        fixture.server.end_faults();
    };
    let (created, ()) = tokio::join!(create.send(), release);
    assert_eq!(created.expect("an answer").status(), 201);
    let users: Vec<String> =
        fixture.server.writes_since(before).into_iter().map(|write| write.user).collect();
    assert_eq!(users, ["jane"]);
}

/// The backslash of a Windows domain made a kubeconfig that did not parse.
#[tokio::test]
async fn a_kubeconfig_escapes_its_user() {
    let server = ApiServer::in_process(&quiet(), SystemTime::now());
    let kubeconfig = server.kubeconfig_of("CORP\\jane");
    assert!(kubeconfig.contains("user: \"CORP\\\\jane\","), "{kubeconfig}");
    assert!(kubeconfig.contains("- name: \"CORP\\\\jane\"\n"), "{kubeconfig}");
}

/// All paths that began like a health check were healthy, so a probe with a typing error in its path never failed.
#[tokio::test]
async fn only_the_paths_of_health_checks_answer_ok() {
    let fixture = Fixture::with(quiet()).await;
    for path in ["/livez", "/readyz", "/healthz", "/livez/ping", "/readyz/ping", "/healthz/ping"] {
        assert_eq!(fixture.get(path).await, (200, json!("ok")), "{path}");
    }
    for path in ["/livezzz", "/livez/", "/healthz/nope", "/readyz/ping/pong"] {
        assert_eq!(fixture.get(path).await, (404, json!("404 page not found\n")), "{path}");
    }
}

/// Over HTTP/2, the server stopped reading at the limit. Clients saw a broken stream and retried for ever.
#[tokio::test]
async fn a_too_large_body_gets_a_413() {
    let fixture = Fixture::with(quiet()).await;
    let text = "x".repeat(5 * 1024 * 1024);
    let (status, body) =
        fixture.post(CONFIG_MAPS, json!({"metadata": {"name": "a"}, "data": {"k": text}})).await;
    assert_eq!((status, &body["reason"]), (413, &json!("RequestEntityTooLarge")));
    assert_eq!(body["message"], "Request entity too large: limit is 3145728");
}

/// An interrupted body was refused as too large.
#[tokio::test]
async fn a_body_that_is_cut_is_not_too_large() {
    let fixture = Fixture::with(quiet()).await;
    let mut stream = fixture.connect().await;
    let head = format!(
        "POST {CONFIG_MAPS} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\ncontent-length: 100\r\n\r\n{{",
        fixture.server.token()
    );
    stream.write_all(head.as_bytes()).await.expect("a connection");
    stream.shutdown().await.expect("a connection");
    let mut answer = String::new();
    // The kind of end does not matter.
    let _ = stream.read_to_string(&mut answer).await;
    let statuses: Vec<u16> = fixture.server.requests().iter().map(|request| request.status).collect();
    assert_eq!(statuses, [500], "{answer}");
}

/// Idle connections without any request were never closed.
#[tokio::test(start_paused = true)]
async fn a_silent_connection_is_closed() {
    let fixture = Fixture::with(quiet()).await;
    let started = tokio::time::Instant::now();
    let mut silent =
        TcpStream::connect(("127.0.0.1", fixture.server.server.port)).await.expect("a connection");
    assert_eq!(silent.read(&mut [0]).await.unwrap_or_default(), 0);
    assert_eq!(started.elapsed().as_secs(), 10, "no handshake");
    let mut stream = fixture.connect().await;
    let started = tokio::time::Instant::now();
    assert_eq!(stream.read(&mut [0]).await.unwrap_or_default(), 0);
    assert_eq!(started.elapsed().as_secs(), 90, "no request");
}

/// Idle HTTP/2 connections were never closed.
#[tokio::test(start_paused = true)]
async fn an_idle_http2_connection_is_closed() {
    let fixture = Fixture::with(quiet()).await;
    let mut stream = fixture.connect_as("h2").await;
    let started = tokio::time::Instant::now();
    // The preface, and empty SETTINGS.
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.expect("a connection");
    while stream.read(&mut [0; 1024]).await.is_ok_and(|read| read > 0) {}
    assert!((90..=180).contains(&started.elapsed().as_secs()), "{:?}", started.elapsed());
    // A connection with an open watch stays.
    let mut watch = fixture.watch("/api/v1/secrets?watch=1&timeoutSeconds=600").await;
    let started = tokio::time::Instant::now();
    assert_eq!(watch.next().await, "end");
    assert_eq!(started.elapsed().as_secs(), 600);
}

#[tokio::test(start_paused = true)]
async fn a_connection_may_be_idle_between_requests_and_longer_in_a_watch() {
    let fixture = Fixture::with(quiet()).await;
    let mut stream = fixture.connect().await;
    let head = format!("host: x\r\nauthorization: Bearer {}\r\n\r\n", fixture.server.token());
    for _ in 0..3 {
        let request = format!("GET /livez HTTP/1.1\r\n{head}");
        stream.write_all(request.as_bytes()).await.expect("a connection");
        assert_ne!(stream.read(&mut [0; 1024]).await.expect("an answer"), 0);
        tokio::time::sleep(Duration::from_secs(80)).await;
    }
    let request = format!("GET {CONFIG_MAPS}?watch=1&timeoutSeconds=300 HTTP/1.1\r\n{head}");
    stream.write_all(request.as_bytes()).await.expect("a connection");
    let started = tokio::time::Instant::now();
    let mut answer = String::new();
    while !answer.ends_with("0\r\n\r\n") {
        let mut buffer = [0; 4096];
        let read = stream.read(&mut buffer).await.expect("an event");
        assert_ne!(read, 0, "{answer}");
        answer.push_str(&String::from_utf8_lossy(&buffer[..read]));
    }
    assert_eq!(started.elapsed().as_secs(), 300, "{answer}");
}

/// The derived Debug showed the token and all objects.
#[tokio::test]
async fn debug_output_has_no_secrets() {
    let fixture = Fixture::with(quiet()).await;
    let shown = format!("{:?}", fixture.server);
    assert_eq!(shown, format!("ApiServer {{ port: {}, .. }}", fixture.server.server.port));
}

/// Every user of the machine could read the token of the administrator.
#[tokio::test]
async fn a_service_account_is_for_its_owner_only() {
    let fixture = Fixture::with(quiet()).await;
    let above = tempfile::tempdir().expect("a directory");
    let dir = above.path().join("account");
    let mode = |path: &Path| {
        let metadata = std::fs::metadata(path).expect("a file");
        metadata.permissions().mode() & 0o777
    };
    fixture.server.write_service_account(&dir).expect("a new directory");
    assert_eq!(mode(&dir), 0o700);
    let token = dir.join("token");
    std::fs::set_permissions(&token, Permissions::from_mode(0o644)).expect("our own file");
    fixture.server.write_service_account(&dir).expect("the same again");
    for name in ["token", "ca.crt", "namespace"] {
        assert_eq!(mode(&dir.join(name)), 0o600, "{name}");
    }
    assert_eq!(std::fs::read_to_string(token).expect("a token"), fixture.server.token());
}

/// kubectl reported a missing page or resource, as if the Pod or the cluster were broken.
/// As with envtest. A Node without a kubelet would be of no use.
#[tokio::test]
async fn there_is_a_node_with_controllers_only() {
    for (options, nodes) in [(Options::default(), 1), (quiet(), 0)] {
        let (_, list) = Fixture::with(options).await.get("/api/v1/nodes").await;
        assert_eq!(list["items"].as_array().map(Vec::len), Some(nodes));
    }
}

#[tokio::test]
async fn unsupported_resources_are_refused_with_a_message() {
    let fixture = Fixture::with(quiet()).await;
    for (subresource, code, message) in [
        ("attach", 405, "pods/attach is not served: nothing runs in the Pods of"),
        ("portforward", 405, "pods/portforward is not served: nothing runs in the Pods of"),
        ("ephemeralcontainers", 404, "pods/ephemeralcontainers is not served by"),
    ] {
        let path = format!("/api/v1/namespaces/default/pods/web/{subresource}");
        for method in [Method::GET, Method::POST] {
            let (status, body) = fixture.call(method, &path, "", Value::Null).await;
            let text = body["message"].as_str().expect("a message");
            assert!(status == code && text.starts_with(message), "{path}: {body}");
            assert!(text.contains("the embedded API server of listwatch"), "{text}");
        }
    }
}

#[tokio::test]
async fn a_watch_with_a_selector_adds_and_deletes_by_labels() {
    let fixture = Fixture::with(quiet()).await;
    let (_, list) = fixture.get(CONFIG_MAPS).await;
    let path = format!("{CONFIG_MAPS}?watch=1&labelSelector=app%3Da&resourceVersion={}", version(&list));
    let mut watch = fixture.watch(&path).await;
    let item = format!("{CONFIG_MAPS}/x");
    fixture.post(CONFIG_MAPS, config_map("x", json!({"app": "a"}))).await;
    fixture.merge(&item, json!({"data": {"k": "v"}})).await;
    fixture.merge(&item, json!({"data": {"k": "v"}})).await;
    let (_, left) = fixture.merge(&item, json!({"metadata": {"labels": {"app": "b"}}})).await;
    fixture.merge(&item, json!({"data": {"k": "w"}})).await;
    fixture.merge(&item, json!({"metadata": {"labels": {"app": "a"}}})).await;
    fixture.delete(&item).await;
    assert_eq!(watch.next().await, "ADDED x");
    assert_eq!(watch.next().await, "MODIFIED x");
    let gone = watch.line().await.expect("an event");
    assert_eq!(gone["type"], "DELETED");
    assert_eq!(gone["object"]["metadata"]["labels"]["app"], "a");
    assert_eq!(version(&gone["object"]), version(&left));
    assert_eq!(watch.next().await, "ADDED x");
    assert_eq!(watch.next().await, "DELETED x");
}

#[tokio::test]
async fn removing_the_last_finalizer_deletes_the_object() {
    let fixture = Fixture::with(quiet()).await;
    fixture.install_widgets().await;
    let widget = json!({"apiVersion": "demo.example.com/v2", "kind": "Widget",
        "metadata": {"name": "w", "finalizers": ["example.com/f"]}, "spec": {"size": 1}});
    let (status, made) = fixture.post(WIDGETS, widget).await;
    assert_eq!(status, 201, "{made}");
    let mut watch = fixture.watch(&format!("{WIDGETS}?watch=1&resourceVersion={}", version(&made))).await;
    let item = format!("{WIDGETS}/w");
    let (_, going) = fixture.delete(&item).await;
    assert_eq!((going["kind"].as_str(), going["metadata"]["generation"].as_u64()), (Some("Widget"), Some(2)));
    let (_, again) = fixture.delete(&item).await;
    assert_eq!(version(&going), version(&again));
    let (_, gone) = fixture.merge(&item, json!({"metadata": {"finalizers": null}})).await;
    assert_eq!(version(&gone), version(&going));
    assert_eq!(gone["metadata"]["finalizers"], Value::Null);
    assert_eq!(watch.next().await, "MODIFIED w");
    let last = watch.line().await.expect("an event");
    assert_eq!(last["type"], "DELETED");
    assert_eq!(last["object"]["metadata"]["finalizers"], json!(["example.com/f"]));
    assert!(version(&last["object"]) > version(&going));
    assert_eq!(fixture.get(&item).await.0, 404);
}

#[tokio::test]
async fn a_watch_from_before_the_history_gets_an_error_event() {
    let fixture = Fixture::with(Options { history: 2, ..quiet() }).await;
    for name in ["a", "b", "c", "d"] {
        fixture.post(CONFIG_MAPS, config_map(name, json!({}))).await;
    }
    let (_, list) = fixture.get(CONFIG_MAPS).await;
    let floor = version(&list) - 2;
    let path = |version| format!("{CONFIG_MAPS}?watch=1&timeoutSeconds=1&resourceVersion={version}");
    let mut watch = fixture.watch(&path(floor - 1)).await;
    let wanted = format!("ERROR 410 \"too old resource version: {} ({floor})\"", floor - 1);
    assert_eq!([watch.next().await, watch.next().await], [wanted, "end".to_owned()]);
    let mut watch = fixture.watch(&path(floor)).await;
    assert_eq!([watch.next().await, watch.next().await], ["ADDED c", "ADDED d"]);
    let mut quiet = fixture.watch("/api/v1/namespaces/default/secrets?watch=1").await;
    fixture.post(CONFIG_MAPS, config_map("e", json!({}))).await;
    fixture.server.fault(Fault::ExpireHistory);
    let mut watch = fixture.watch(&path(floor)).await;
    assert!(watch.next().await.starts_with("ERROR 410"));
    // A watch that was open all the time goes on.
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}});
    fixture.post("/api/v1/namespaces/default/secrets", secret).await;
    assert_eq!(quiet.next().await, "ADDED s");
}

#[tokio::test]
async fn pages_show_one_version_or_expire() {
    let fixture = Fixture::with(quiet()).await;
    for name in ["a", "b", "c"] {
        fixture.post(CONFIG_MAPS, config_map(name, json!({}))).await;
    }
    let (_, first) = fixture.get(&format!("{CONFIG_MAPS}?limit=2")).await;
    assert_eq!(first["metadata"]["remainingItemCount"], 2);
    let token = first["metadata"]["continue"].as_str().expect("more to come").to_owned();
    fixture.delete(&format!("{CONFIG_MAPS}/c")).await;
    let next = format!("{CONFIG_MAPS}?limit=2&continue={token}");
    let (_, second) = fixture.get(&next).await;
    assert_eq!(second["items"].as_array().map(Vec::len), Some(2));
    assert_eq!(version(&second), version(&first));
    assert_eq!(second["metadata"].get("continue"), None);
    fixture.server.fault(Fault::ExpireHistory);
    let (status, expired) = fixture.get(&next).await;
    assert_eq!((status, expired["reason"].as_str()), (410, Some("Expired")));
    let token = expired["metadata"]["continue"].as_str().expect("a way to go on").to_owned();
    let (status, rest) = fixture.get(&format!("{CONFIG_MAPS}?limit=2&continue={token}")).await;
    assert_eq!((status, rest["items"].as_array().map(Vec::len)), (200, Some(1)));
}

#[tokio::test(start_paused = true)]
async fn a_page_expires_by_its_age() {
    let fixture = Fixture::with(quiet()).await;
    for name in ["a", "b"] {
        fixture.post(CONFIG_MAPS, config_map(name, json!({}))).await;
    }
    let (_, first) = fixture.get(&format!("{CONFIG_MAPS}?limit=1")).await;
    fixture.post(CONFIG_MAPS, config_map("c", json!({}))).await;
    let next = format!(
        "{CONFIG_MAPS}?limit=1&continue={}",
        first["metadata"]["continue"].as_str().expect("a token")
    );
    tokio::time::advance(Duration::from_secs(600)).await;
    assert_eq!(fixture.get(&next).await.0, 410);
    // A watch finds the changes, as in the watch cache of kube-apiserver.
    let watch = format!("{CONFIG_MAPS}?watch=1&resourceVersion={}", version(&first));
    assert_eq!(fixture.watch(&watch).await.next().await, "ADDED c");
}

/// The list got a 410 as soon as etcd had compacted the version. A watch cache that is behind still has it.
#[tokio::test(start_paused = true)]
async fn a_stale_list_is_older_than_the_last_compaction() {
    let fixture = Fixture::with(quiet()).await;
    let (_, old) = fixture.get(CONFIG_MAPS).await;
    fixture.post(CONFIG_MAPS, config_map("a", json!({}))).await;
    tokio::time::advance(Duration::from_secs(600)).await;
    fixture.server.fault(Fault::StaleLists(version(&old)));
    let (status, stale) = fixture.get(&format!("{CONFIG_MAPS}?resourceVersion=0")).await;
    assert_eq!((status, &stale), (200, &old));
}

#[tokio::test(start_paused = true)]
async fn bookmarks_come_every_minute_and_before_the_end() {
    let fixture = Fixture::with(quiet()).await;
    let path = format!("{CONFIG_MAPS}?watch=1&allowWatchBookmarks=true&timeoutSeconds=125");
    let mut watch = fixture.watch(&path).await;
    assert_eq!(watch.next().await, "ADDED kube-root-ca.crt");
    assert_eq!(watch.next().await, "BOOKMARK initial");
    fixture.post(CONFIG_MAPS, config_map("a", json!({}))).await;
    assert_eq!(watch.next().await, "ADDED a");
    let opened = tokio::time::Instant::now();
    let mut seconds = Vec::new();
    while watch.next().await == "BOOKMARK" {
        seconds.push(opened.elapsed().as_secs());
    }
    assert_eq!(seconds, [60, 120, 123]);
}

/// After 64 unselected changes, a watch was silent until the next change. A bookmark then skipped a selected change.
#[tokio::test(start_paused = true)]
async fn unselected_changes_do_not_delay_selected_ones() {
    let fixture = Fixture::with(quiet()).await;
    let now = fixture.get(CONFIG_MAPS).await.1["metadata"]["resourceVersion"].as_str().map(str::to_owned);
    let now = now.expect("a version");
    for number in 0..300 {
        fixture.post(CONFIG_MAPS, config_map(&format!("other-{number}"), json!({}))).await;
    }
    fixture.post(CONFIG_MAPS, config_map("own", json!({"is": "own"}))).await;
    let query = format!("watch=1&resourceVersion={now}&allowWatchBookmarks=true&timeoutSeconds=30");
    let mut watch = fixture.watch(&format!("{CONFIG_MAPS}?labelSelector=is%3Down&{query}")).await;
    assert_eq!(watch.next().await, "ADDED own");
    // Without a change after the opening, there is no bookmark.
    let (_, later) = fixture.post(CONFIG_MAPS, config_map("later", json!({}))).await;
    let bookmark = watch.line().await.expect("a bookmark");
    assert_eq!((&bookmark["type"], version(&bookmark["object"])), (&json!("BOOKMARK"), version(&later)));
    assert_eq!(watch.next().await, "end");

    // A bookmark must not come before the last unread change.
    let mut all = fixture.watch(&format!("{CONFIG_MAPS}?{query}")).await;
    fixture.post(CONFIG_MAPS, config_map("last", json!({}))).await;
    for number in 0..300 {
        assert_eq!(all.next().await, format!("ADDED other-{number}"));
    }
    for line in ["ADDED own", "ADDED later", "ADDED last", "BOOKMARK", "end"] {
        assert_eq!(all.next().await, line);
    }
}

#[tokio::test(start_paused = true)]
async fn a_version_from_the_future_is_awaited_for_three_seconds() {
    let fixture = Fixture::with(quiet()).await;
    let started = tokio::time::Instant::now();
    let (status, body) = fixture.get(&format!("{CONFIG_MAPS}?resourceVersion=100000")).await;
    assert_eq!((status, started.elapsed().as_secs()), (504, 3));
    assert_eq!(body["details"]["causes"][0]["reason"], "ResourceVersionTooLarge");
}

#[tokio::test]
async fn two_versions_show_one_object() {
    let fixture = Fixture::with(quiet()).await;
    fixture.install_widgets().await;
    let widget = json!({"apiVersion": "demo.example.com/v2", "kind": "Widget", "metadata": {"generateName": "w-"},
        "spec": {"size": 3, "bogus": true}, "status": {"phase": "mine"}});
    let (_, made) = fixture.post(WIDGETS, widget).await;
    assert_eq!(made["spec"], json!({"size": 3, "color": "red"}));
    assert_eq!(made["status"], Value::Null);
    let name = made["metadata"]["name"].as_str().expect("a generated name");
    let (_, old) = fixture.get(&format!("{}/{name}", WIDGETS.replace("v2", "v1"))).await;
    assert_eq!((&old["apiVersion"], &old["spec"]), (&json!("demo.example.com/v1"), &json!({"size": 3})));
    let (_, scale) =
        fixture.merge(&format!("{WIDGETS}/{name}/scale"), json!({"spec": {"replicas": 7}})).await;
    assert_eq!(scale["spec"]["replicas"], 7);
    let (_, status) =
        fixture.merge(&format!("{WIDGETS}/{name}/status"), json!({"status": {"phase": "ok"}})).await;
    assert_eq!((&status["metadata"]["generation"], &status["spec"]["size"]), (&json!(2), &json!(7)));
    let stale = json!({"metadata": {"resourceVersion": "1"}, "spec": {"size": 8}});
    assert_eq!(fixture.merge(&format!("{WIDGETS}/{name}"), stale).await.1["reason"], "Conflict");
    let wrong = fixture.merge(&format!("{WIDGETS}/{name}"), json!({"spec": {"size": 1000}})).await;
    assert_eq!(wrong.1["details"]["causes"][0]["field"], "spec.size");
}

fn deployment(image: &str) -> Value {
    json!({"metadata": {"name": "web"}, "spec": {"replicas": 3, "selector": {"matchLabels": {"app": "web"}},
        "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "web", "image": image}]}}}})
}

#[tokio::test]
async fn a_pod_can_be_made_to_crash_and_to_stay_unready() {
    let fixture = Fixture::start().await;
    let path = "/api/v1/namespaces/default/pods";
    for (simulate, state, ready) in
        [("crash", "waiting", "0/1"), ("unready", "running", "0/1"), ("", "running", "1/1")]
    {
        let name = format!("p{simulate}");
        let pod = json!({"metadata": {"name": name, "annotations": {"listwatch/simulate": simulate}},
            "spec": {"containers": [{"name": "c", "image": "nginx"}]}});
        assert_eq!(fixture.post(path, pod).await.0, 201);
        let item = format!("{path}/{name}");
        let pod = fixture.until(&item, |_, pod| pod["status"]["containerStatuses"].is_array()).await;
        assert_eq!(pod["status"]["phase"], "Running", "{simulate}");
        assert!(pod["status"]["containerStatuses"][0]["state"][state].is_object(), "{simulate}: {pod}");
        let table = fixture
            .request(Method::GET, &item)
            .header("accept", "application/json;as=Table;v=v1;g=meta.k8s.io");
        let table: Value =
            serde_json::from_str(&table.send().await.expect("an answer").text().await.expect("a body"))
                .expect("a Table");
        assert_eq!(table["rows"][0]["cells"][1], ready, "{simulate}");
        if simulate == "crash" {
            assert_eq!(table["rows"][0]["cells"][2], "CrashLoopBackOff");
        }
    }
}

/// The messages of kubelet 1.36 and containerd.
#[tokio::test(start_paused = true)]
async fn a_failing_pod_has_the_messages_and_intervals_of_the_kubelet() {
    let fixture = Fixture::start().await;
    let path = "/api/v1/namespaces/default/pods";
    let missing = "rpc error: code = NotFound desc = failed to pull and unpack image \"docker.io/library/does-not-exist:latest\": \
        failed to resolve reference \"docker.io/library/does-not-exist:latest\": docker.io/library/does-not-exist:latest: not found";
    let unparsed = |image: &str, why: &str| {
        format!(
            "Failed to apply default image tag {image:?}: couldn't parse image name {image:?}: invalid reference format{why}"
        )
    };
    let must_be_lower = ": repository name (library/NGINX) must be lowercase";
    for (name, image, simulate, reason, message) in [
        ("colon", "nginx:", "", "InvalidImageName", unparsed("nginx:", "")),
        ("upper", "NGINX", "", "InvalidImageName", unparsed("NGINX", must_be_lower)),
        ("missing", "does-not-exist", "", "ErrImagePull", missing.to_owned()),
        (
            "crash",
            "nginx",
            "crash",
            "CrashLoopBackOff",
            "back-off 10s restarting failed container=web pod=crash_default".to_owned(),
        ),
    ] {
        let pod = json!({"metadata": {"name": name, "annotations": {"listwatch/simulate": simulate}},
            "spec": {"containers": [{"name": "web", "image": image}]}});
        assert_eq!(fixture.post(path, pod).await.0, 201);
        let pod = fixture
            .until(&format!("{path}/{name}"), |_, pod| pod["status"]["containerStatuses"].is_array())
            .await;
        let waiting = &pod["status"]["containerStatuses"][0]["state"]["waiting"];
        assert_eq!(waiting, &json!({"reason": reason, "message": message}));
    }
    let state = |reason: &'static str, message: &'static str| {
        move |_: u16, pod: &Value| {
            let waiting = &pod["status"]["containerStatuses"][0]["state"]["waiting"];
            waiting["reason"] == reason
                && waiting["message"].as_str().is_some_and(|text| text.starts_with(message))
        }
    };
    let missing = format!("{path}/missing");
    let backs_off =
        state("ImagePullBackOff", "Back-off pulling image \"does-not-exist\": ErrImagePull: rpc error: ");
    sleep(Duration::from_secs(6)).await;
    fixture.until(&missing, backs_off).await;
    sleep(Duration::from_secs(10)).await;
    fixture.until(&missing, state("ErrImagePull", "rpc error: ")).await;
    let crash = format!("{path}/crash");
    let is_running = |_: u16, pod: &Value| {
        let status = &pod["status"]["containerStatuses"][0];
        status["state"]["running"].is_object() && status["ready"] == false && status["restartCount"] == 2
    };
    fixture.until(&crash, is_running).await;
    sleep(Duration::from_secs(5)).await;
    fixture.until(&missing, backs_off).await;
    fixture.until(&crash, state("CrashLoopBackOff", "back-off 20s restarting")).await;
    // Hours later, each container is retried every five minutes.
    sleep(Duration::from_secs(7200)).await;
    let version = |pod: &Value| pod["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned();
    let before = version(&fixture.get(&crash).await.1);
    sleep(Duration::from_secs(3600)).await;
    let mut watch = fixture
        .watch(&format!(
            "{path}?watch=1&resourceVersion={before}&fieldSelector=metadata.name=crash&timeoutSeconds=1"
        ))
        .await;
    let mut changes = 0;
    while watch.line().await.is_some() {
        changes += 1;
    }
    assert!((20..=26).contains(&changes), "{changes} changes in an hour");
}

#[tokio::test]
async fn a_deleted_namespace_deletes_its_content_and_waits_for_finalizers() {
    let fixture = Fixture::start().await;
    fixture.post("/api/v1/namespaces", json!({"metadata": {"name": "n"}})).await;
    let inside = "/api/v1/namespaces/n/configmaps";
    let (status, _) =
        fixture.post(inside, json!({"metadata": {"name": "held", "finalizers": ["a.b/c"]}})).await;
    assert_eq!(status, 201);
    let (_, going) = fixture.delete("/api/v1/namespaces/n").await;
    assert_eq!(going["status"]["phase"], "Terminating");
    let (status, late) = fixture.post(inside, json!({"metadata": {"name": "late"}})).await;
    assert_eq!((status, &late["details"]["causes"][0]["reason"]), (403, &json!("NamespaceTerminating")));
    fixture
        .until(&format!("{inside}/held"), |_, held| !held["metadata"]["deletionTimestamp"].is_null())
        .await;
    fixture.merge(&format!("{inside}/held"), json!({"metadata": {"finalizers": null}})).await;
    fixture.until("/api/v1/namespaces/n", |status, _| status == 404).await;
    let (status, gone) = fixture.post(inside, json!({"metadata": {"name": "late"}})).await;
    assert_eq!((status, &gone["details"]["kind"]), (404, &json!("namespaces")));
}

#[tokio::test]
async fn orphans_stay_and_dangling_dependents_are_deleted() {
    let fixture = Fixture::start().await;
    let (_, owner) = fixture.post(CONFIG_MAPS, config_map("owner", json!({}))).await;
    let child = json!({"metadata": {"name": "child", "ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap",
        "name": "owner", "uid": owner["metadata"]["uid"]}]}});
    fixture.post(CONFIG_MAPS, child.clone()).await;
    fixture.delete(&format!("{CONFIG_MAPS}/owner?propagationPolicy=Orphan")).await;
    fixture.until(&format!("{CONFIG_MAPS}/owner"), |status, _| status == 404).await;
    let (status, orphan) = fixture.get(&format!("{CONFIG_MAPS}/child")).await;
    assert_eq!((status, &orphan["metadata"]["ownerReferences"]), (200, &Value::Null));
    fixture.delete(&format!("{CONFIG_MAPS}/child")).await;
    // The owner is gone, so its new dependents are deleted at once.
    fixture.post(CONFIG_MAPS, child).await;
    fixture.until(&format!("{CONFIG_MAPS}/child"), |status, _| status == 404).await;
}

#[tokio::test]
async fn faults_happen_on_demand() {
    let fixture = Fixture::with(quiet()).await;
    let (_, list) = fixture.get(CONFIG_MAPS).await;
    let path = format!("{CONFIG_MAPS}?watch=1&resourceVersion={}", version(&list));
    let mut watch = fixture.watch(&path).await;
    fixture.server.fault(Fault::EndWatches);
    assert_eq!(watch.next().await, "end");
    let mut watch = fixture.watch(&path).await;
    fixture.server.fault(Fault::CutWatches);
    assert_eq!(watch.next().await, "CUT");
    assert!(watch.buffer.starts_with(br#"{"type":"MODIFIED""#), "half a line comes first");
    let error = Fault::Answer { status: 429, body: "no\n".to_owned(), retry_after_secs: Some(1) };
    fixture.server.fault(error.on("GET", "configmaps").times(1));
    assert_eq!(fixture.get(CONFIG_MAPS).await.0, 429);
    assert_eq!(fixture.get(CONFIG_MAPS).await.0, 200);
    // Each counts all requests that match, also those that another one has failed.
    for (status, nth) in [(503, 1), (504, 2), (500, 3)] {
        let error = Fault::Answer { status, body: "no\n".to_owned(), retry_after_secs: None };
        fixture.server.fault(error.on("GET", "configmaps").nth(nth));
    }
    for status in [503, 504, 500, 200] {
        assert_eq!(fixture.get(CONFIG_MAPS).await.0, status);
    }
    fixture.server.fault(Fault::StallWatches);
    let mut watch = fixture.watch(&path).await;
    fixture.post(CONFIG_MAPS, config_map("a", json!({}))).await;
    let silent = tokio::time::timeout(Duration::from_millis(50), watch.next()).await;
    assert!(silent.is_err());
    fixture.server.end_faults();
    assert_eq!(watch.next().await, "ADDED a");
    fixture.server.fault(Fault::Restart);
    assert_eq!(watch.next().await, "CUT");
    let mut watch = fixture.watch(&path).await;
    assert!(watch.next().await.starts_with("ERROR 410"));
}

#[tokio::test]
async fn a_changed_crd_ends_its_watches_and_a_deleted_one_takes_its_objects() {
    let fixture = Fixture::with(quiet()).await;
    fixture.install_widgets().await;
    let widget = json!({"apiVersion": "demo.example.com/v2", "kind": "Widget", "metadata": {"name": "w"},
        "spec": {"size": 3}});
    fixture.post(WIDGETS, widget).await;
    let crd = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.demo.example.com";
    let mut watch = fixture.watch(&format!("{WIDGETS}?watch=1")).await;
    assert_eq!(watch.next().await, "ADDED w");
    fixture.merge(crd, json!({"spec": {"names": {"shortNames": ["wd"]}}})).await;
    assert_eq!(watch.next().await, "end");
    let mut watch = fixture.watch(&format!("{WIDGETS}?watch=1")).await;
    assert_eq!(watch.next().await, "ADDED w");
    fixture.delete(crd).await;
    assert_eq!([watch.next().await, watch.next().await], ["DELETED w", "end"]);
    assert_eq!(fixture.get(WIDGETS).await, (404, json!("404 page not found\n")));
}

#[tokio::test]
async fn a_dropped_server_is_gone_with_its_connections() {
    let fixture = Fixture::start().await;
    let mut watch = fixture.watch(&format!("{CONFIG_MAPS}?watch=1&resourceVersion=1")).await;
    watch.next().await;
    let url = format!("{}/version", fixture.server.url());
    drop(fixture.server);
    while watch.next().await.starts_with("ADDED") {}
    assert!(fixture.http.get(&url).send().await.is_err());
}

#[tokio::test]
async fn writes_are_checked_and_no_ops_make_no_version() {
    let fixture = Fixture::with(quiet()).await;
    let (_, made) = fixture.post(CONFIG_MAPS, config_map("a", json!({"x": "y"}))).await;
    let item = format!("{CONFIG_MAPS}/a");
    let (_, same) = fixture.merge(&item, json!({"metadata": {"labels": {"x": "y"}}})).await;
    assert_eq!(version(&same), version(&made));
    let (_, dry) = fixture.merge(&format!("{item}?dryRun=All"), json!({"data": {"k": "v"}})).await;
    assert_eq!((version(&dry), &dry["data"]["k"]), (version(&made), &json!("v")));
    assert_eq!(fixture.get(&item).await.1["data"], Value::Null);
    assert_eq!(fixture.post(CONFIG_MAPS, config_map("a", json!({}))).await.1["reason"], "AlreadyExists");
    let body = json!({"preconditions": {"uid": "nope"}});
    let refused = fixture.call(Method::DELETE, &item, "application/json", body).await;
    assert_eq!(refused.0, 409);
    let (_, gone) = fixture.delete(&item).await;
    assert_eq!((&gone["status"], &gone["details"]["uid"]), (&json!("Success"), &made["metadata"]["uid"]));
    let writes = fixture.server.requests().into_iter().filter(|request| request.method != "GET").count();
    assert_eq!(writes, 6);
}
