//! Tests `listwatch apiserver` with clients that do not read: they must not harm other clients.

use std::{fs, path::Path, sync::Arc};

use http::Method;
use listwatch::client::Request;
use listwatch_control_plane::PATIENCE;
use serde_json::json;
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
    apiserver::{Running, client, private_dir},
    operator::listwatch,
};

/// `listwatch apiserver`, in a process of its own, so that its memory can be measured.
struct ServerProcess {
    running: Running,
    dir: TempDir,
}

impl ServerProcess {
    fn start() -> ServerProcess {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("kubeconfig");
        let running = Running::start(listwatch().args(["apiserver", "--kubeconfig-out"]).arg(&path));
        ServerProcess { running, dir }
    }

    /// A file in the directory beside the kubeconfig.
    fn read(&self, name: &str) -> String {
        fs::read_to_string(private_dir(self.dir.path()).join(name)).unwrap()
    }

    async fn connect(&self) -> TlsStream<TcpStream> {
        let ca = self.read("ca.crt").into_bytes();
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(&ca).unwrap()).unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let (_, address) = self.running.stdout.split_once("export API=https://").unwrap();
        let stream = TcpStream::connect(address.lines().next().unwrap()).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap()
    }

    /// The memory of the process.
    fn resident_bytes(&self) -> u64 {
        let status = Path::new("/proc").join(self.running.child.id().to_string()).join("status");
        let status = fs::read_to_string(status).unwrap();
        let kibibytes = status.split_once("VmRSS:").unwrap().1.split_whitespace().next().unwrap();
        kibibytes.parse::<u64>().unwrap() * 1024
    }
}

/// How much memory clients that do not read may cost. The history has 200 changes of 100 kB, each once or twice. A copy
/// for each of the 19 watches would take 380 MB.
const GROWTH_BYTES_MAX: u64 = 150_000_000;

/// A hundred clients never send the rest of their request. Further clients request large answers, or watches, and never
/// read.
#[tokio::test]
async fn clients_that_never_read_do_not_harm_other_clients() {
    let server = ServerProcess::start();
    let client = client(&server.dir.path().join("kubeconfig"));
    let path = "/api/v1/namespaces/default/configmaps";
    let create = async |name: String| {
        let object = json!({"metadata": {"name": name}, "data": {"text": "x".repeat(20_000)}});
        client.send(Request::post(path, &object)).await.unwrap();
    };
    for number in 0..20 {
        create(format!("before-{number}")).await;
    }
    let before = server.resident_bytes();
    let token = server.read("token");
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
    // Each request takes milliseconds; the machine may be busy.
    assert!(begun.elapsed() < PATIENCE, "{:?}", begun.elapsed());
    // A client that reads at last gets the whole answer.
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
