//! Bad input to an API server: what the real one says, ours says too, or something as clear; and clients that do not
//! read harm nobody else.

use std::{fs, path::Path, sync::Arc};

use base64::prelude::{BASE64_STANDARD, Engine as _};
use http::Method;
use listwatch::client::{Client, Error, Request};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{
        ClientConfig, RootCertStore,
        crypto::ring,
        pki_types::{CertificateDer, ServerName, pem::PemObject},
    },
};

use crate::{
    apiserver::{Running, client},
    hands::eventually,
    operator::listwatch,
    plane::PATIENCE,
    world::{Kind, Server, on},
};

const TABLE: &str = include_str!("data/bad_input.txt");

/// `422 Invalid`, and the beginning of the message.
type Answer<'a> = (&'a str, &'a str);

struct Row<'a> {
    what: &'a str,
    request: &'a str,
    media_type: &'a str,
    body: &'a str,
    answer: Answer<'a>,
}

fn cells(line: &str) -> Vec<&str> {
    line.split(" | ").collect()
}

fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'))
}

fn rows() -> impl Iterator<Item = Row<'static>> {
    let (table, _) = TABLE.split_once("known differences").unwrap();
    lines(table).map(|line| match cells(line)[..] {
        [what, request, media_type, body, status, message] => {
            Row { what, request, media_type, body, answer: (status, message) }
        }
        _ => panic!("{line}"),
    })
}

/// What ours says instead, and why.
fn known_difference(what: &str) -> Option<Answer<'static>> {
    let (_, known) = TABLE.split_once("known differences").unwrap();
    lines(known).find_map(|line| match cells(line)[..] {
        [known, status, message, _why] if known == what => Some((status, message)),
        [_, _, _, _] => None,
        _ => panic!("{line}"),
    })
}

/// `<3*x>` is `xxx`.
fn expand(text: &str) -> Vec<u8> {
    let (mut bytes, mut rest) = (Vec::new(), if text == "-" { "" } else { text });
    while let Some((before, after)) = rest.split_once('<') {
        let (inner, after) = after.split_once('>').unwrap();
        bytes.extend_from_slice(before.as_bytes());
        match (inner, inner.split_once('*')) {
            ("nl", _) => bytes.push(b'\n'),
            ("ff", _) => bytes.extend([0xff, 0xfe]),
            (_, Some((times, part))) => bytes.extend(part.repeat(times.parse().unwrap()).bytes()),
            (_, None) => panic!("<{inner}> in {text}"),
        }
        rest = after;
    }
    bytes.extend_from_slice(rest.as_bytes());
    bytes
}

/// Status, reason and message, as the table has them.
async fn ask(client: &Client, namespace: &str, row: &Row<'_>) -> (String, String) {
    let (method, path) = row.request.split_once(' ').unwrap();
    let path = path.replacen("CM", &format!("/api/v1/namespaces/{namespace}/configmaps"), 1);
    let webs = format!("/apis/k8sobjects.gsa.com/v2/namespaces/{namespace}/mywebservers");
    let path = path.replacen("WEB", &webs, 1);
    let media_type = match row.media_type {
        "json" | "-" => "application/json",
        "yaml" => "application/yaml",
        "merge" => "application/merge-patch+json",
        "json-patch" => "application/json-patch+json",
        "strategic" => "application/strategic-merge-patch+json",
        "apply" => "application/apply-patch+yaml",
        "text" => "text/plain",
        other => panic!("{other}"),
    };
    let method = Method::from_bytes(method.as_bytes()).unwrap();
    let request = Request::get(path).sends(method, media_type, expand(row.body));
    match client.send(request).await {
        Ok(answer) => (format!("{} -", answer.status), "-".to_owned()),
        Err(error) => said(&error),
    }
}

fn said(error: &Error) -> (String, String) {
    let Some(status) = error.status() else { return ("no answer".to_owned(), error.to_string()) };
    let reason = if status.reason.is_empty() { "-" } else { &status.reason };
    (format!("{} {reason}", status.code), status.message.to_string())
}

#[tokio::test]
async fn what_is_wrong_is_refused_in_the_words_of_the_real_server() {
    on(&[Kind::Embedded, Kind::Real], async |world| {
        let is_ours = matches!(world.server, Server::Embedded(_));
        world.create("configmaps", &json!({"metadata": {"name": "there"}, "data": {"a": "b"}})).await;
        let mut wrong = Vec::new();
        for row in rows() {
            let known = if is_ours { known_difference(row.what) } else { None };
            let (status, message) = known.unwrap_or(row.answer);
            let (got, text) = ask(&world.client, &world.namespace, &row).await;
            if got != status || !text.starts_with(message) {
                let text: String = text.chars().take(200).collect();
                wrong.push(format!("{}: {status} | {message}\n    but: {got} | {text}", row.what));
            }
            if got.starts_with("20") {
                // Created where it should not have been.
                let path = world.path("configmaps/bad");
                let _ = world
                    .client
                    .send(Request::get(path).sends(Method::DELETE, "application/json", Vec::new()))
                    .await;
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        world.get("configmaps/there").await;
    })
    .await;
}

/// A row that says the same as the real server would hide that it does.
#[test]
fn a_known_difference_is_one() {
    let (_, known) = TABLE.split_once("known differences").unwrap();
    for line in lines(known) {
        let what = cells(line)[0];
        let row = rows().find(|row| row.what == what).unwrap_or_else(|| panic!("{what} is no row"));
        assert_ne!(known_difference(what), Some(row.answer), "{what}");
    }
}

/// It ran for as long as it took, in which nobody else was served; forty chained `map` took all memory.
#[tokio::test]
async fn a_rule_that_costs_too_much_is_refused_in_the_words_of_the_real_server() {
    on(&[Kind::Embedded, Kind::Real], async |world| {
        let group = format!("{}.example.com", world.namespace);
        let much = "self.items.all(a, self.items.all(b, a + b >= 0))".to_owned();
        let large = format!("[self.text]{}[0] == \"\"", ".map(a, a + a)".repeat(40));
        let field = |rule: &str, property: &str, schema: Value| {
            json!({"type": "object", "properties": {property: schema}, "x-kubernetes-validations": [{"rule": rule}]})
        };
        let items = json!({"type": "array", "maxItems": 1000, "items": {"type": "integer"}});
        let text = json!({"type": "string", "maxLength": 100});
        let properties = json!({"much": field(&much, "items", items), "large": field(&large, "text", text)});
        let crd = json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("costs.{group}")},
            "spec": {"group": group, "scope": "Namespaced", "names": {"plural": "costs", "kind": "Cost"}, "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": properties}}}]},
        });
        world.install(&crd).await;
        let path = format!("/apis/{group}/v1/namespaces/{}/costs", world.namespace);
        eventually("the CRD to be served", async || world.raw(&path).await.ok()).await;
        let costs = |parts: Value| {
            let mut object = json!({"apiVersion": format!("{group}/v1"), "kind": "Cost", "metadata": {"name": "a"}});
            object.as_object_mut().unwrap().extend(parts.as_object().unwrap().clone());
            object
        };
        for (part, rule, value) in [
            ("much", &much, json!({"items": vec![1; 1000]})),
            ("large", &large, json!({"text": "x".repeat(100)})),
        ] {
            let error = world.try_create(&path, &costs(json!({part: value}))).await.unwrap_err();
            let cut = format!(
                "Cost.{group} \"a\" is invalid: {part}: Invalid value: \"object\": 'operation cancelled: actual cost limit \
                exceeded': no further validation rules will be run due to call cost exceeds limit for rule: {rule}"
            );
            assert_eq!(said(&error), ("422 Invalid".to_owned(), cut));
        }
        world.try_create(&path, &costs(json!({"much": {"items": vec![1; 100]}}))).await.unwrap();
    })
    .await;
}

/// Each was a header of its own: no client took an answer with a hundred thousand of them.
#[tokio::test]
async fn of_what_is_unknown_as_much_is_told_as_by_the_real_server() {
    on(&[Kind::Embedded, Kind::Real], async |world| {
        let unknown = || (0..300).map(|number| (format!("unknown{number:03}"), json!(1)));
        let mut map = json!({"metadata": {"name": "u"}});
        map.as_object_mut().unwrap().extend(unknown());
        let mut web = json!({"apiVersion": "k8sobjects.gsa.com/v2", "kind": "MyWebserver", "metadata": {"name": "u"},
            "spec": {"image": "nginx"}});
        web["spec"].as_object_mut().unwrap().extend(unknown());
        let mut told = Vec::new();
        for (resource, object) in [("configmaps", map), ("mywebservers", web)] {
            let path = world.path(resource) + "?dryRun=All";
            let body = object.to_string().into_bytes();
            let request = Request::get(path).sends(Method::POST, "application/json", body);
            let (head, _) = world.client.stream(request).await.unwrap();
            told.push((resource, head.headers.get_all("warning").iter().count()));
        }
        // A built-in kind is decoded, a custom resource is pruned; and all warnings have some 4,096 letters at most.
        assert_eq!(told, [("configmaps", 100), ("mywebservers", 133)]);
    })
    .await;
}

/// `listwatch apiserver`, in a process whose memory is its own.
struct Apart {
    running: Running,
    dir: TempDir,
    kubeconfig: String,
}

impl Apart {
    fn start() -> Apart {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("kubeconfig");
        let running = Running::start(listwatch().args(["apiserver", "--kubeconfig-out"]).arg(&path));
        Apart { running, kubeconfig: fs::read_to_string(path).unwrap(), dir }
    }

    /// What the kubeconfig has between these texts.
    fn between(&self, before: &str, after: &str) -> &str {
        self.kubeconfig.split_once(before).unwrap().1.split_once(after).unwrap().0
    }

    async fn connect(&self) -> TlsStream<TcpStream> {
        let ca = BASE64_STANDARD.decode(self.between("certificate-authority-data: ", "}")).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(&ca).unwrap()).unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let stream = TcpStream::connect(self.between("https://", "\"")).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap()
    }

    /// What it has in memory.
    fn resident_bytes(&self) -> u64 {
        let status = Path::new("/proc").join(self.running.child.id().to_string()).join("status");
        let status = fs::read_to_string(status).unwrap();
        let kibibytes = status.split_once("VmRSS:").unwrap().1.split_whitespace().next().unwrap();
        kibibytes.parse::<u64>().unwrap() * 1024
    }
}

/// How much a server may grow by clients that do not read. Its history has 200 changes of 100 kB, each once or twice; kept
/// for each of 19 watches they would be 380 MB.
const GROWTH_BYTES_MAX: u64 = 150_000_000;

/// A hundred that never send the rest of their request, and those that ask for much, or for a watch, and never read.
#[tokio::test]
async fn a_hundred_slow_clients_and_those_that_never_read_harm_nobody() {
    let server = Apart::start();
    let client = client(&server.dir.path().join("kubeconfig"));
    let path = "/api/v1/namespaces/default/configmaps";
    let create = async |name: String| {
        let object = json!({"metadata": {"name": name}, "data": {"text": "x".repeat(20_000)}});
        let request =
            Request::get(path).sends(Method::POST, "application/json", object.to_string().into_bytes());
        client.send(request).await.unwrap();
    };
    for number in 0..20 {
        create(format!("before-{number}")).await;
    }
    let before = server.resident_bytes();
    let token = server.between("token: \"", "\"");
    let head = format!("HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n\r\n");
    let mut clients = Vec::new();
    let list = format!("GET {path} {head}");
    let watch = format!("GET {path}?watch=1 {head}");
    for (request, count) in [("GET /api", 100), (&list, 20), (&watch, 20)] {
        for _ in 0..count {
            let mut stream = server.connect().await;
            stream.write_all(request.as_bytes()).await.unwrap();
            clients.push(stream);
        }
    }
    let begun = tokio::time::Instant::now();
    for number in 0..20 {
        create(format!("after-{number}")).await;
    }
    let all = client.send(Request::get(path)).await.unwrap();
    assert!(all.body.len() > 20_000 * 40);
    // Each of them takes milliseconds; a machine may be busy.
    assert!(begun.elapsed() < PATIENCE, "{:?}", begun.elapsed());
    // Who reads at last gets everything.
    let mut watch = clients.pop().unwrap();
    let (mut text, mut buffer) = (String::new(), vec![0; 1 << 16]);
    while !text.contains("\"name\":\"after-19\"") {
        let read = watch.read(&mut buffer).await.unwrap();
        assert_ne!(read, 0);
        text.push_str(&String::from_utf8_lossy(&buffer[..read]));
    }
    assert_eq!(text.matches("{\"type\":\"ADDED\"").count(), 41);

    for number in 0..200 {
        let text = format!("{number}{}", "x".repeat(100_000));
        let body = json!({"data": {"text": text}}).to_string().into_bytes();
        let request = Request::get(format!("{path}/before-0"));
        client.send(request.sends(Method::PATCH, "application/merge-patch+json", body)).await.unwrap();
    }
    let grown = server.resident_bytes().saturating_sub(before);
    assert!(grown < GROWTH_BYTES_MAX, "{grown} bytes");
}
