//! The operator under test, a process: a Page gets a ConfigMap with its text. Each bug is one that people reported.

use std::{collections::BTreeMap, env, fs, sync::Mutex, time::Duration};

use base64::{Engine, prelude::BASE64_STANDARD};
use reqwest::{Certificate, Client, ClientBuilder, Method};
use serde_json::{Value, json};
use tokio::{sync::Notify, time::sleep};

const PAGES: &str = "/apis/example.com/v1/namespaces/default/pages";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// Between two requests of a bug that acts without an event.
const PAUSE: Duration = Duration::from_millis(20);

/// A client of the server in a kubeconfig.
pub struct Api {
    http: Client,
    url: String,
    token: String,
}

impl Api {
    pub fn new(config: &str, agent: &str) -> Api {
        Api::with(config, agent, |client| client)
    }

    pub fn with(config: &str, agent: &str, change: impl FnOnce(ClientBuilder) -> ClientBuilder) -> Api {
        let after = |key: &str| {
            let rest = config.split_once(key).unwrap().1;
            rest.trim_start_matches([' ', '"']).split(['"', '}', '\n']).next().unwrap().to_owned()
        };
        // A second call fails, which does not matter.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let ca = BASE64_STANDARD.decode(after("certificate-authority-data:")).unwrap();
        let ca = Certificate::from_pem(&ca).unwrap();
        let http = change(Client::builder().tls_certs_only([ca]).user_agent(agent)).build().unwrap();
        Api { http, url: after("server:"), token: after("token:") }
    }

    pub async fn open(&self, method: Method, path: &str, body: &Value) -> reqwest::Response {
        let content_type =
            if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
        let request = self.http.request(method, format!("{}{path}", self.url)).bearer_auth(&self.token);
        request.header("content-type", content_type).body(body.to_string()).send().await.unwrap()
    }

    pub async fn send(&self, method: Method, path: &str, body: Value) -> (u16, Value) {
        let answer = self.open(method, path, &body).await;
        (answer.status().as_u16(), serde_json::from_str(&answer.text().await.unwrap()).unwrap_or_default())
    }

    pub async fn get(&self, path: &str) -> Value {
        self.send(Method::GET, path, Value::Null).await.1
    }
}

struct Operator {
    bug: String,
    api: Api,
    /// The objects of a kind, by name.
    caches: Mutex<BTreeMap<&'static str, BTreeMap<String, Value>>>,
    changed: Notify,
}

/// Runs until it is killed.
pub async fn run(bug: String) {
    let config = fs::read_to_string(env::var("KUBECONFIG").unwrap()).unwrap();
    let operator =
        Operator { bug, api: Api::new(&config, "pages"), caches: Mutex::default(), changed: Notify::new() };
    let scaler = Api::new(&config, "scaler");
    let reconcile = async {
        loop {
            operator.changed.notified().await;
            operator.reconcile(&scaler).await;
        }
    };
    tokio::join!(operator.follow(PAGES), operator.follow(MAPS), operator.act(&scaler), reconcile);
}

impl Operator {
    fn has(&self, bug: &str) -> bool {
        self.bug == bug
    }

    /// Keeps the cache of a kind up to date.
    async fn follow(&self, path: &'static str) {
        loop {
            let (code, list) = self.api.send(Method::GET, path, Value::Null).await;
            if code == 200 {
                let items = list["items"].as_array().unwrap().iter();
                let items = items.map(|item| (name(item), item.clone())).collect();
                self.caches.lock().unwrap().insert(path, items);
                self.changed.notify_one();
                let version = list["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
                self.watch(path, version).await;
                if path == MAPS && self.has("opens-a-watch-once") {
                    return;
                }
            }
            sleep(PAUSE).await;
        }
    }

    /// Watches, until the watch ends.
    async fn watch(&self, path: &'static str, version: String) {
        let mut query = format!("{path}?watch=1&resourceVersion={version}");
        if !self.has("knows-no-options") {
            let timeout = if self.has("opens-a-watch-once") { 1 } else { 300 };
            query += &format!("&allowWatchBookmarks=true&timeoutSeconds={timeout}");
        }
        let mut answer = self.api.open(Method::GET, &query, &Value::Null).await;
        let mut buffer = Vec::new();
        while let Ok(Some(chunk)) = answer.chunk().await {
            buffer.extend(chunk);
            while let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = buffer.drain(..=end).collect();
                let event: Value = serde_json::from_slice(&line).unwrap();
                let object = &event["object"];
                let mut caches = self.caches.lock().unwrap();
                let cache = caches.get_mut(path).unwrap();
                match event["type"].as_str() {
                    Some("ERROR") => return,
                    Some("BOOKMARK") => continue,
                    Some("DELETED") => cache.remove(&name(object)),
                    _ => cache.insert(name(object), object.clone()),
                };
                self.changed.notify_one();
            }
        }
    }

    fn cached(&self, path: &str) -> Option<BTreeMap<String, Value>> {
        self.caches.lock().unwrap().get(path).cloned()
    }

    async fn reconcile(&self, scaler: &Api) {
        let (Some(pages), Some(maps)) = (self.cached(PAGES), self.cached(MAPS)) else { return };
        for (name, page) in pages {
            let owner = json!({"apiVersion": "example.com/v1", "kind": "Page", "name": name, "uid": page["metadata"]["uid"]});
            let mut wanted = json!({"metadata": {"name": name, "ownerReferences": [owner]}, "data": {"text": page["spec"]["text"]}});
            if self.has("fights-for-a-field") {
                wanted["data"]["replicas"] = "1".into();
            }
            let path = format!("{MAPS}/{name}");
            match maps.get(&name) {
                None => _ = self.api.send(Method::POST, MAPS, wanted).await,
                Some(map) if map["data"] != wanted["data"] => {
                    _ = self.api.send(Method::PATCH, &path, wanted).await
                }
                Some(_) if self.has("fights-for-a-field") => {
                    scaler.send(Method::PATCH, &path, json!({"data": {"replicas": "3"}})).await;
                }
                Some(map) if self.has("stamps-its-child") => {
                    let times = map["metadata"]["annotations"]["times"]
                        .as_str()
                        .map_or(0, |times| times.parse::<u64>().unwrap());
                    let stamp = json!({"metadata": {"annotations": {"times": (times + 1).to_string()}}});
                    self.api.send(Method::PATCH, &path, stamp).await;
                }
                Some(_) => {}
            }
            let checks = page["status"]["checks"].as_u64().unwrap_or_default()
                + u64::from(self.has("stamps-its-status"));
            let status = json!({"phase": "Ready", "checks": checks});
            if page["status"] != status {
                let path = format!("{PAGES}/{name}/status");
                self.api.send(Method::PATCH, &path, json!({"status": status})).await;
            }
        }
    }

    /// What some do without an event.
    async fn act(&self, scaler: &Api) {
        loop {
            let map = json!({"metadata": {"labels": {"app": "pages"}}});
            let broken = json!({"metadata": {"name": "No Name"}});
            let page = self.cached(PAGES).and_then(|pages| pages.into_values().next());
            let stale = |mut page: Value| {
                page["metadata"]["resourceVersion"] = "1".into();
                page
            };
            match (&*self.bug, page) {
                ("polls", _) => _ = self.api.get(MAPS).await,
                ("reads-the-same", Some(_)) => _ = self.api.get(&format!("{PAGES}/a")).await,
                ("patches-without-a-change", Some(_)) => {
                    self.api.send(Method::PATCH, &format!("{MAPS}/kube-root-ca.crt"), map).await;
                }
                ("has-no-index", Some(_)) => {
                    for number in 0..11 {
                        self.api.get(&format!("{MAPS}?labelSelector=page=a-{number}")).await;
                    }
                }
                ("drops-a-label", Some(_)) => {
                    let path = format!("{MAPS}/kube-root-ca.crt");
                    scaler.send(Method::PATCH, &path, map).await;
                    let update = json!({"metadata": {"name": "kube-root-ca.crt"}});
                    self.api.send(Method::PUT, &path, update).await;
                }
                ("keeps-its-finalizer", Some(page)) if page["metadata"]["finalizers"].is_null() => {
                    let finalizer = json!({"metadata": {"finalizers": ["example.com/page"]}});
                    self.api.send(Method::PATCH, &format!("{PAGES}/a"), finalizer).await;
                    scaler.send(Method::DELETE, &format!("{PAGES}/a"), Value::Null).await;
                }
                ("never-takes-the-answer", Some(page)) => {
                    self.api.send(Method::PUT, &format!("{PAGES}/a"), stale(page)).await;
                }
                ("does-not-wait", Some(_)) => {
                    self.api.send(Method::POST, MAPS, broken).await;
                    continue;
                }
                _ => {}
            }
            sleep(PAUSE).await;
        }
    }
}

fn name(object: &Value) -> String {
    object["metadata"]["name"].as_str().unwrap().to_owned()
}
