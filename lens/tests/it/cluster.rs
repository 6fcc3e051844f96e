//! The proxy before a cluster, which is the embedded API server, and kube-apiserver if there are binaries.

use std::net::SocketAddr;

use listwatch::client::{Client, Config};
use listwatch_apiserver::{ApiServer, Options};
use listwatch_control_plane::{ADMIN_TOKEN, ControlPlane, Http, eventually, has_assets};
use listwatch_lens::{Proxy, Report, document};
use reqwest::{
    Method,
    header::{HOST, HeaderMap, HeaderName, HeaderValue, UPGRADE},
};
use serde_json::{Value, json};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
};

use super::{config, create_page, edit, operator::Api, start_operator};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

enum Server {
    Embedded(ApiServer),
    Real(ControlPlane),
}

/// A cluster, behind a TCP relay that can cut all connections.
struct Cluster {
    server: Server,
    /// The text of a kubeconfig past the relay.
    admin: String,
    address: SocketAddr,
    is_gone: watch::Sender<bool>,
    _relay: JoinSet<()>,
}

impl Cluster {
    async fn all() -> Vec<Cluster> {
        let options = Options { events: 1000, ..Options::default() };
        let mut all = vec![Cluster::of(Server::Embedded(ApiServer::start(options).await.unwrap())).await];
        if has_assets() {
            all.push(Cluster::of(Server::Real(ControlPlane::start(Http::Any).await)).await);
        }
        all
    }

    async fn of(server: Server) -> Cluster {
        let (url, ca_pem, token) = server.access();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, (is_gone, gone)) = (listener.local_addr().unwrap(), watch::channel(false));
        let mut relay = JoinSet::new();
        relay.spawn(relayed(listener, url.trim_start_matches("https://").to_owned(), gone));
        Cluster { admin: config(&url, &ca_pem, &token), server, address, is_gone, _relay: relay }
    }

    fn admin(&self) -> Api {
        Api::new(&self.admin, "kubectl")
    }

    async fn proxy(&self) -> Proxy {
        self.proxy_with(&self.server.access().2).await
    }

    async fn proxy_with(&self, token: &str) -> Proxy {
        let (url, ca_pem) = (format!("https://{}", self.address), self.server.access().1);
        let config = Config::new(&url, ca_pem.as_bytes(), token).unwrap();
        Proxy::start(Client::new(config).unwrap()).await.unwrap()
    }
}

impl Server {
    /// URL, certificate authority, and token.
    fn access(&self) -> (String, String, String) {
        match self {
            Server::Embedded(server) => (server.url(), server.ca_pem().to_owned(), server.token().to_owned()),
            Server::Real(server) => (server.url(), server.ca_pem(), ADMIN_TOKEN.to_owned()),
        }
    }
}

/// Runs until aborted.
async fn relayed(listener: TcpListener, server: String, gone: watch::Receiver<bool>) {
    let mut connections = JoinSet::new();
    while let Ok((mut client, _)) = listener.accept().await {
        let (server, mut gone) = (server.clone(), gone.clone());
        connections.spawn(async move {
            let mut server = TcpStream::connect(server).await.unwrap();
            tokio::select! {
                biased;
                _ = gone.wait_for(|gone| *gone) => {}
                _ = tokio::io::copy_bidirectional(&mut client, &mut server) => {}
            }
        });
    }
}

/// What the report says of the requests through a proxy so far.
fn text(proxy: &Proxy) -> String {
    Report::of(&proxy.recording()).text()
}

/// What the page shows of a proxy so far.
fn entries(proxy: &Proxy) -> Vec<Value> {
    let recording = proxy.recording();
    let mut document = document(&recording, &Report::of(&recording), recording.start());
    serde_json::from_value(document["entries"].take()).unwrap()
}

/// How many events of a type watches got through a proxy.
fn events(proxy: &Proxy, event: &str) -> usize {
    entries(proxy).iter().filter(|entry| entry["event"] == event && entry["kind"] == "event").count()
}

#[tokio::test]
async fn an_operator_is_judged_in_a_cluster_as_without_one() {
    for cluster in Cluster::all().await {
        create_page(&cluster.admin()).await;
        let proxy = cluster.proxy().await;
        let operator = start_operator("stamps-its-status", &proxy.kubeconfig());
        let found =
            eventually("a finding", async || Some(text(&proxy)).filter(|text| text.starts_with("1 finding")))
                .await;
        println!("{found}");
        let finding = "\n1. wakes-itself: pages writes pages.example.com/default/a ";
        assert!(found.contains(finding) && found.contains(": 200, changed .status.checks\n"), "{found}");
        let why = "MODIFIED of pages.example.com/default/a, by the client itself: the only event since the cause of the client's last write to this object; ";
        assert!(found.contains(why), "{found}");
        drop(operator);

        let proxy = cluster.proxy().await;
        let _operator = start_operator("", &proxy.kubeconfig());
        edit(&cluster.admin()).await;
        let text = text(&proxy);
        println!("{text}");
        assert!(text.starts_with("no findings\n"), "{text}");
        let why = "MODIFIED of pages.example.com/default/a, its owner, by kubectl";
        assert!(text.contains("patch configmaps/default/a: .data.text") && text.contains(why), "{text}");
    }
}

#[tokio::test]
async fn only_the_client_of_the_proxy_reaches_the_cluster() {
    let cluster = Cluster::all().await.remove(0);
    let Server::Embedded(server) = &cluster.server else { unreachable!("the first") };
    let proxy = cluster.proxy().await;
    let kubeconfig = proxy.kubeconfig();
    let header = |name: HeaderName, value| HeaderMap::from_iter([(name, HeaderValue::from_static(value))]);
    let other_host =
        Api::with(&kubeconfig, "", |client| client.default_headers(header(HOST, "evil.example")));
    let upgrade = Api::with(&kubeconfig, "", |client| client.default_headers(header(UPGRADE, "websocket")));
    let other_token = Api::new(&kubeconfig.replace("token: \"", "token: \"x"), "");
    for (api, code) in [(other_host, 403), (other_token, 401), (upgrade, 501)] {
        let (answered, status) = api.send(Method::GET, MAPS, Value::Null).await;
        assert_eq!(
            (answered, &status["kind"], &status["code"]),
            (code, &"Status".into(), &code.into()),
            "{status}"
        );
    }
    assert_eq!(server.request_count(), 0);
    assert_eq!(entries(&proxy), Vec::<Value>::new());

    assert_eq!(Api::new(&kubeconfig, "").send(Method::GET, MAPS, Value::Null).await.0, 200);
    assert!(!format!("{proxy:?} {:?}", proxy.recording()).contains(server.token()));
    let stranger = cluster.proxy_with("no-token-of-it").await;
    let (code, status) = Api::new(&stranger.kubeconfig(), "").send(Method::GET, MAPS, Value::Null).await;
    assert_eq!((code, &status["message"]), (401, &"Unauthorized".into()));
}

#[tokio::test]
async fn a_secret_leaves_no_value() {
    for cluster in Cluster::all().await {
        let proxy = cluster.proxy().await;
        let api = Api::new(&proxy.kubeconfig(), "pages");
        let secrets = "/api/v1/namespaces/default/secrets";
        let secret = json!({"metadata": {"name": "a", "annotations": {"last": "hunter2"}}, "stringData": {"password": "hunter2"}});
        assert_eq!(api.send(Method::POST, secrets, secret).await.0, 201);
        let patch =
            json!({"metadata": {"annotations": {"last": "hunter3"}}, "stringData": {"password": "hunter3"}});
        assert_eq!(api.send(Method::PATCH, &format!("{secrets}/a"), patch).await.0, 200);
        assert_eq!(api.send(Method::GET, secrets, Value::Null).await.0, 200);
        let changed = "patch secrets/default/a: .data.password, .metadata.annotations.last\n";
        eventually("the patch", async || text(&proxy).contains(changed).then_some(())).await;
        let recording = format!("{:?}{}", proxy.recording(), Report::of(&proxy.recording()).json());
        // In base64 as well.
        assert!(["hunter", "aHVudGVy"].iter().all(|value| !recording.contains(value)), "{recording}");
    }
}

#[tokio::test]
async fn a_cluster_that_is_gone_is_a_502_until_it_is_back() {
    for cluster in Cluster::all().await {
        let proxy = cluster.proxy().await;
        let api = Api::new(&proxy.kubeconfig(), "pages");
        let mut watch = api.open(Method::GET, &format!("{MAPS}?watch=1"), &Value::Null).await;
        assert_eq!(watch.status(), 200);
        cluster.is_gone.send_replace(true);
        while let Ok(Some(_)) = watch.chunk().await {}
        let (code, status) = api.send(Method::GET, MAPS, Value::Null).await;
        assert_eq!((code, &status["kind"]), (502, &"Status".into()));
        let why = status["message"].as_str().unwrap();
        assert!(why.starts_with("listwatch lens got no answer from the cluster: get /api/v1/"), "{why}");
        cluster.is_gone.send_replace(false);
        assert_eq!(api.send(Method::GET, MAPS, Value::Null).await.0, 200);
        assert_eq!((events(&proxy, "CLOSED"), events(&proxy, "END")), (1, 0));
    }
}

/// The ConfigMaps with a text. Kubernetes makes others at any time.
fn maps(list: &[u8]) -> Vec<Value> {
    let list: Value = serde_json::from_slice(list).unwrap();
    let has_text = |map: &&Value| map["data"]["text"].is_string();
    list["items"].as_array().unwrap().iter().filter(has_text).cloned().collect()
}

#[tokio::test]
async fn an_answer_of_megabytes_waits_for_its_reader_alone() {
    for cluster in Cluster::all().await {
        let (proxy, admin) = (cluster.proxy().await, cluster.admin());
        for name in ["a", "b", "c"] {
            let map = json!({"metadata": {"name": name}, "data": {"text": name.repeat(1_000_000)}});
            assert_eq!(admin.send(Method::POST, MAPS, map).await.0, 201);
        }
        let api = Api::new(&proxy.kubeconfig(), "pages");
        let slow = api.open(Method::GET, MAPS, &Value::Null).await;
        assert_eq!(api.send(Method::GET, "/version", Value::Null).await.0, 200);
        let through = slow.bytes().await.unwrap();
        assert!(through.len() > 3_000_000, "{}", through.len());
        let direct = admin.open(Method::GET, MAPS, &Value::Null).await.bytes().await.unwrap();
        assert!(maps(&through) == maps(&direct) && maps(&through).len() == 3);
        // The state of a listed object is known: this changes nothing.
        let patch = json!({"metadata": {"labels": {"app": null}}});
        assert_eq!(api.send(Method::PATCH, &format!("{MAPS}/a"), patch).await.0, 200);
        eventually("the patch", async || {
            text(&proxy).contains("patch configmaps/default/a: nothing changed").then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn a_hundred_watches_are_open_at_once_and_end_with_their_client() {
    for cluster in Cluster::all().await {
        let (proxy, admin) = (cluster.proxy().await, cluster.admin());
        let api = Api::new(&proxy.kubeconfig(), "pages");
        let mut watches = Vec::new();
        for _ in 0..100 {
            let target = format!("{MAPS}?watch=1&fieldSelector=metadata.name%3Da");
            watches.push(api.open(Method::GET, &target, &Value::Null).await);
        }
        assert_eq!(admin.send(Method::POST, MAPS, json!({"metadata": {"name": "a"}})).await.0, 201);
        for watch in &mut watches {
            let line = watch.chunk().await.unwrap().unwrap();
            assert!(line.starts_with(br#"{"type":"ADDED","object":{"#), "{line:?}");
        }
        assert_eq!((events(&proxy, "ADDED"), events(&proxy, "CLOSED")), (100, 0));
        drop(watches);
        eventually("the ends of the watches", async || (events(&proxy, "CLOSED") == 100).then_some(())).await;
        if let Server::Embedded(server) = &cluster.server {
            let closed = async || server.events().iter().filter(|event| event.event == "CLOSED").count();
            eventually("their ends in the cluster", async || (closed().await == 100).then_some(())).await;
        }
    }
}
