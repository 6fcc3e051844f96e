//! The operators under test, each a process: a correct one, and the same with a bug.
//!
//! A Page gets a Secret, a ConfigMap and a Service, and with some of the bugs a Deployment. The correct operator `of-two-kinds` also serves Sites, which are
//! cluster-wide: each gets a ConfigMap, and its name is in the ConfigMaps of all Pages, which also have a claim then. As most operators do, it lists and watches the kinds, and reconciles from its caches.

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    io::Write,
    process::exit,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use base64::{Engine, prelude::BASE64_STANDARD};
use reqwest::{Certificate, Method, Response};
use serde_json::{Value, json};
use tokio::{
    sync::Notify,
    time::{sleep, timeout},
};

use crate::webhooks;

const KINDS: [&str; 5] = ["pages", "secrets", "configmaps", "services", "deployments"];

/// The further kinds of the operator `of-two-kinds`.
const MORE_KINDS: [&str; 2] = ["sites", "persistentvolumeclaims"];

const FINALIZER: &str = "example.com/save";

/// The bugs of operators with a finalizer.
const WITH_FINALIZER: [&str; 4] = [
    "saves-before-it-goes",
    "needs-what-it-deletes",
    "deletes-after-its-finalizer",
    "one-for-all-namespaces",
];

/// Operators that only add a field to what another one creates. The second does not see what it was not there for.
const PAINTERS: [&str; 2] = ["paints", "paints-what-is-new"];

/// An image that the simulated kubelet cannot pull.
const BAD_IMAGE: &str = "does-not-exist:scorecard";

/// After more deletions of one child, the operator does not create it again. That is not a bug: otherwise two clients would write
/// without end.
const DELETIONS_MAX: usize = 5;

/// How long a watch may be silent.
const SILENCE: Duration = Duration::from_secs(3);

/// Requests that a reconcile sends before it writes.
const READS: usize = 3;

/// How long a start may take, where a test needs a short time.
pub const START: Duration = Duration::from_secs(1);

/// Longer than nothing may be written until an operator counts as settled.
const LATER: Duration = Duration::from_millis(1500);

/// How often an operator acts by time.
const PERIOD: Duration = Duration::from_millis(150);

const BACKOFF_MIN: Duration = Duration::from_millis(20);
const BACKOFF_MAX: Duration = Duration::from_secs(1);

/// Namespace and name.
type Key = (String, String);

/// The objects of a kind.
type Cache = BTreeMap<Key, Value>;

pub struct Operator {
    bug: String,
    http: reqwest::Client,
    url: String,
    token: String,
    caches: Mutex<BTreeMap<&'static str, Cache>>,
    changed: Notify,
    /// Whether Services must be listed, for an operator that does not watch them.
    is_stale: AtomicBool,
    /// The uids of the Pages that this process has begun, or of what was there when a painter started.
    begun: Mutex<BTreeSet<String>>,
    /// The children that this process has created and not seen yet, with the annotations of their Pages.
    expected: Mutex<BTreeMap<(&'static str, Key), Value>>,
    /// The first uid of each Page.
    first_uids: Mutex<BTreeMap<Key, Value>>,
    /// The specs with which Pages became ready, by their uids.
    done: Mutex<BTreeMap<String, Value>>,
    /// The generation of each Page, by its uid, that this process has worked on last.
    generations: Mutex<BTreeMap<String, u64>>,
    /// How often this process has created each child.
    created: Mutex<BTreeMap<(&'static str, Key), usize>>,
    /// The first text of each Page, by its uid.
    first_texts: Mutex<BTreeMap<String, String>>,
    /// The first two images of each Page, by its uid.
    images: Mutex<BTreeMap<String, Vec<Value>>>,
    /// The first colour that each Page got, by its uid.
    first_colours: Mutex<BTreeMap<String, Value>>,
    /// The ConfigMaps of shards that came with a change.
    added: Mutex<BTreeSet<String>>,
    /// Whether the last answer was a 429.
    is_throttled: AtomicBool,
    /// Chosen at each start: of a map without an order.
    is_reversed: bool,
    /// Whether this process has a bug that only one start in four has.
    is_unlucky: bool,
}

/// Works for longer than a start may take, unless it is one of the first two.
fn start_late(starts: &str) {
    let mut starts = fs::File::options().create(true).append(true).open(starts).unwrap();
    starts.write_all(b"1").unwrap();
    let started = Instant::now();
    while starts.metadata().unwrap().len() > 2 && started.elapsed() < 2 * START {}
}

/// Runs until it is killed.
pub async fn run(bug: String) {
    if let Ok(starts) = env::var("STARTS") {
        start_late(&starts);
    }
    // As a fixed port does, this lock refuses a second process.
    let lock = env::var("LOCK").map(|path| fs::File::create(path).unwrap());
    if lock.is_ok_and(|lock| std::mem::ManuallyDrop::new(lock).try_lock().is_err()) {
        eprintln!("it runs already");
        exit(1);
    }
    if bug == "panics" {
        eprintln!("thread 'reconcile' panicked at src/main.rs:1");
    }
    if bug == "logs-a-traceback" {
        eprintln!("Handler failed, and will try again:\nTraceback (most recent call last):");
    }
    let operator = Arc::new(Operator::new(bug));
    if operator.has("ends-after-a-request") {
        operator.request(Method::GET, "/version", &Value::Null).await;
        exit(3);
    }
    tokio::spawn(webhooks::serve(Arc::clone(&operator)));
    for kind in operator.kinds().filter(|kind| operator.watches(kind)) {
        let operator = Arc::clone(&operator);
        tokio::spawn(async move { operator.follow(kind).await });
    }
    if operator.has("spins") {
        std::thread::spawn(|| {
            loop {
                std::hint::spin_loop();
            }
        });
    }
    if operator.has("polls") {
        let operator = Arc::clone(&operator);
        tokio::spawn(async move { operator.poll().await });
    }
    if operator.has("acts-by-time") {
        let operator = Arc::clone(&operator);
        tokio::spawn(async move { operator.act_by_time().await });
    }
    let mut backoff = BACKOFF_MIN;
    loop {
        if operator.reconcile_all().await {
            backoff = BACKOFF_MIN;
            operator.changed.notified().await;
        } else {
            sleep(backoff).await;
            let is_hot = operator.has("does-not-wait") && operator.is_throttled.load(Relaxed);
            if !is_hot && !operator.has("retries-without-a-pause") {
                backoff = BACKOFF_MAX.min(backoff * 2);
            }
        }
    }
}

/// `/api/v1/namespaces/default/secrets`; of all namespaces without one.
pub fn path(kind: &str, namespace: &str) -> String {
    let group = match kind {
        "pages" | "sites" => "/apis/example.com/v1",
        "deployments" => "/apis/apps/v1",
        "clusterroles" => "/apis/rbac.authorization.k8s.io/v1",
        _ => "/api/v1",
    };
    if namespace.is_empty() {
        format!("{group}/{kind}")
    } else {
        format!("{group}/namespaces/{namespace}/{kind}")
    }
}

/// A client that trusts this certificate authority.
fn client(ca_pem: &[u8]) -> reqwest::Client {
    // A second call fails, which does not matter.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let ca = Certificate::from_pem(ca_pem).unwrap();
    reqwest::Client::builder().tls_certs_only([ca]).user_agent("operator").build().unwrap()
}

pub fn key(object: &Value) -> Key {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
    (text("namespace"), text("name"))
}

impl Operator {
    pub fn new(bug: String) -> Operator {
        let config = fs::read_to_string(env::var("KUBECONFIG").unwrap()).unwrap();
        let after = |key: &str| {
            let rest = config.split_once(key).unwrap().1;
            rest.trim_start_matches([' ', '"']).split(['"', '}', '\n']).next().unwrap().to_owned()
        };
        let ca = BASE64_STANDARD.decode(after("certificate-authority-data:")).unwrap();
        Operator {
            bug,
            http: client(&ca),
            url: after("server:"),
            token: after("token:"),
            caches: Mutex::default(),
            changed: Notify::new(),
            is_stale: AtomicBool::new(true),
            begun: Mutex::default(),
            expected: Mutex::default(),
            first_uids: Mutex::default(),
            done: Mutex::default(),
            created: Mutex::default(),
            generations: Mutex::default(),
            first_texts: Mutex::default(),
            images: Mutex::default(),
            first_colours: Mutex::default(),
            added: Mutex::default(),
            is_throttled: AtomicBool::new(false),
            is_reversed: fastrand::bool(),
            is_unlucky: fastrand::u8(..4) == 0,
        }
    }

    /// The kinds that it reads. Only one bug is about a child without a namespace.
    fn kinds(&self) -> impl Iterator<Item = &'static str> {
        let more = MORE_KINDS.into_iter().filter(|_| self.has("of-two-kinds"));
        let without_namespace = self.has("one-for-all-namespaces").then_some("clusterroles");
        KINDS.into_iter().chain(more).chain(without_namespace)
    }

    fn watches(&self, kind: &str) -> bool {
        kind != "services" || !self.has("does-not-watch-services") && !self.has("lists-services")
    }

    pub fn has(&self, bug: &str) -> bool {
        self.bug == bug
    }

    /// `None`: no answer.
    pub async fn request(&self, method: Method, path: &str, body: &Value) -> Option<Response> {
        let mut request =
            self.http.request(method.clone(), format!("{}{path}", self.url)).bearer_auth(&self.token);
        let content_type = match method {
            Method::PATCH if !body["apiVersion"].is_null() => "application/apply-patch+yaml",
            Method::PATCH => "application/merge-patch+json",
            _ => "application/json",
        };
        if !body.is_null() {
            request = request.header("content-type", content_type).body(body.to_string());
        }
        let answer = request.send().await.ok()?;
        self.is_throttled.store(answer.status() == 429, Relaxed);
        if let Some(secs) = answer.headers().get("retry-after")
            && !self.has("does-not-wait")
        {
            sleep(Duration::from_secs(secs.to_str().unwrap().parse().unwrap())).await;
        }
        Some(answer)
    }

    pub async fn send(&self, method: Method, path: &str, body: Value) -> (u16, Value) {
        let Some(answer) = self.request(method.clone(), path, &body).await else { return (0, Value::Null) };
        let mut status = answer.status().as_u16();
        if status == 500 && self.has("takes-a-500-for-done") {
            status = if method == Method::POST { 201 } else { 200 };
        }
        let text = answer.text().await.unwrap_or_default();
        (status, serde_json::from_str(&text).unwrap_or_default())
    }

    /// Fills the cache of a kind, and keeps it up to date. Runs until dropped.
    async fn follow(&self, kind: &'static str) {
        let mut backoff = BACKOFF_MIN;
        loop {
            if self.has("clears-before-it-lists") {
                self.caches.lock().unwrap().entry(kind).and_modify(Cache::clear);
            }
            let (code, list) = self.list(kind).await;
            if code == 403 && self.has("forbidden-is-for-ever") || code == 503 && self.has("gives-up") {
                return;
            }
            if code != 200 && !self.has("lists-without-a-pause") {
                backoff = BACKOFF_MAX.min(backoff * 2);
            }
            if code == 200 {
                backoff = BACKOFF_MIN;
                if self.on_list(kind, &list) {
                    self.changed.notify_one();
                }
                self.watch(kind, list["metadata"]["resourceVersion"].as_str().unwrap().to_owned()).await;
            }
            sleep(backoff).await;
        }
    }

    /// Reads for ever what nobody asks for.
    async fn poll(&self) {
        loop {
            let (code, _) = self.send(Method::GET, &path("configmaps", ""), Value::Null).await;
            sleep(if code == 200 { BACKOFF_MIN } else { BACKOFF_MAX }).await;
        }
    }

    /// Counts in the status of each Page, as nobody asks for. Runs until dropped.
    async fn act_by_time(&self) {
        for checks in 1.. {
            sleep(PERIOD).await;
            for page in self.cached("pages").into_values().filter(|page| page["status"]["phase"] == "Ready") {
                self.set_status(&page, json!({"checks": checks})).await;
            }
        }
    }

    /// Some operators allow old data, others read pages.
    async fn list(&self, kind: &'static str) -> (u16, Value) {
        let path = path(kind, "");
        if !["reads-pages", "reads-one-page", "first-text-is-for-ever"].contains(&&*self.bug) {
            return self.send(Method::GET, &format!("{path}?resourceVersion=0"), Value::Null).await;
        }
        let (mut items, mut next) = (Vec::new(), String::new());
        loop {
            let (code, mut list) =
                self.send(Method::GET, &format!("{path}?limit=500&continue={next}"), Value::Null).await;
            items.extend(list["items"].as_array().cloned().unwrap_or_default());
            next = list["metadata"]["continue"].as_str().unwrap_or_default().to_owned();
            if code != 200 || next.is_empty() || self.has("reads-one-page") {
                list["items"] = items.into();
                return (code, list);
            }
        }
    }

    /// Watches, and resumes, until the version is too old.
    async fn watch(&self, kind: &'static str, mut version: String) {
        loop {
            let query = format!("{}?watch=1&resourceVersion={version}", path(kind, ""));
            let Some(mut answer) = self.request(Method::GET, &query, &Value::Null).await else {
                sleep(BACKOFF_MIN).await;
                continue;
            };
            if answer.status() != 200 {
                return;
            }
            let mut buffer = Vec::new();
            loop {
                let chunk = match timeout(SILENCE, answer.chunk()).await {
                    Ok(Ok(Some(chunk))) => chunk,
                    Ok(Ok(None)) => break,
                    Ok(Err(_)) if self.has("always-resumes") => break,
                    // The list would repair what the other two bugs leave, if the machine is slow.
                    Err(_)
                        if ["trusts-silence", "does-not-watch-services", "takes-a-500-for-done"]
                            .contains(&&*self.bug) =>
                    {
                        continue;
                    }
                    // The versions of a restored server are smaller, so it does not resume.
                    Ok(Err(_)) | Err(_) => return,
                };
                buffer.extend(chunk);
                while let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
                    let line: Vec<u8> = buffer.drain(..=end).collect();
                    let event: Value = serde_json::from_slice(&line).unwrap();
                    if event["object"]["reason"] == "Gone" && self.has("does-not-know-gone") {
                        std::future::pending::<()>().await;
                    }
                    if event["type"] == "ERROR" {
                        return;
                    }
                    version = event["object"]["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
                    self.on_event(kind, &event);
                }
            }
            sleep(BACKOFF_MIN).await;
        }
    }

    /// Whether the cache is another one now.
    fn on_list(&self, kind: &'static str, list: &Value) -> bool {
        let mut caches = self.caches.lock().unwrap();
        self.is_stale.fetch_or(kind == "pages", Relaxed);
        let before = caches.get(kind).cloned();
        if before.is_none() && self.has("paints-what-is-new") {
            let items = list["items"].as_array().into_iter().flatten();
            let uids = items.map(|item| item["metadata"]["uid"].as_str().unwrap().to_owned());
            self.begun.lock().unwrap().extend(uids);
        }
        let cache = caches.entry(kind).or_default();
        if !self.has("waits-for-deleted") {
            cache.clear();
        }
        for item in list["items"].as_array().into_iter().flatten() {
            if self.has("waits-for-new-pages") && kind == "pages" && item["status"].is_null() {
                continue;
            }
            cache.insert(key(item), item.clone());
        }
        before.as_ref() != Some(&*cache)
    }

    fn on_event(&self, kind: &'static str, event: &Value) {
        if self.has("ends-after-a-deletion") && kind == "configmaps" && event["type"] == "DELETED" {
            // Not before it counts as settled.
            tokio::spawn(async {
                sleep(Duration::from_secs(1)).await;
                exit(2);
            });
            return;
        }
        let mut caches = self.caches.lock().unwrap();
        let cache = caches.entry(kind).or_default();
        let before = match event["type"].as_str() {
            Some("DELETED") => cache.remove(&key(&event["object"])),
            _ => cache.insert(key(&event["object"]), event["object"].clone()),
        };
        // A late event of its own status would show this operator more than it watches.
        let asked = |page: &Value| {
            [&page["metadata"]["generation"], &page["metadata"]["annotations"]].map(Value::clone)
        };
        let is_news = before.as_ref().map(asked) != Some(asked(&event["object"]));
        self.is_stale.fetch_or(kind == "pages" && is_news, Relaxed);
        self.expected.lock().unwrap().remove(&(kind, key(&event["object"])));
        self.changed.notify_one();
    }

    fn cached(&self, kind: &str) -> Cache {
        self.caches.lock().unwrap().get(kind).cloned().unwrap_or_default()
    }

    /// Whether nothing must be tried again.
    async fn reconcile_all(&self) -> bool {
        let lists = self.has("lists-services")
            || self.has("does-not-watch-services") && self.is_stale.swap(false, Relaxed);
        if lists {
            let (code, list) = self.send(Method::GET, &path("services", ""), Value::Null).await;
            if code != 200 {
                self.is_stale.store(true, Relaxed);
                return false;
            }
            self.on_list("services", &list);
        }
        if self.caches.lock().unwrap().len() < self.kinds().count() {
            return true;
        }
        let mut is_done = true;
        if self.has("clears-before-it-lists") {
            self.delete_orphans().await;
        }
        for site in self.cached("sites").into_values() {
            is_done &= self.reconcile_site(&site).await;
        }
        for page in self.cached("pages").into_values() {
            is_done &= self.reconcile(&page).await;
            if !is_done && self.has("stops-at-an-error") {
                return false;
            }
        }
        is_done
    }

    async fn reconcile_site(&self, site: &Value) -> bool {
        let (_, name) = key(site);
        if !site["metadata"]["deletionTimestamp"].is_null() {
            return true;
        }
        let (path, map) = (path("configmaps", "default"), format!("site-{name}"));
        let owner = json!([{"apiVersion": "example.com/v1", "kind": "Site", "name": name, "uid": site["metadata"]["uid"]}]);
        let child = json!({"metadata": {"name": map, "ownerReferences": owner}, "data": {"text": site["spec"]["text"]}});
        match self.cached("configmaps").get(&("default".to_owned(), map.clone())) {
            None => self.send(Method::POST, &path, child).await.0 == 201,
            Some(found) if found["metadata"]["ownerReferences"] != owner || contains(found, &child) => true,
            Some(_) => self.send(Method::PATCH, &format!("{path}/{map}"), child).await.0 == 200,
        }
    }

    /// Deletes the Secrets of another version, as it thinks.
    async fn delete_similar(&self, page: &Value) {
        let (namespace, name) = key(page);
        let prefix = format!("{name}-");
        for (key, _) in self.cached("secrets").into_iter().filter(|(key, _)| key.1.starts_with(&prefix)) {
            self.send(Method::DELETE, &format!("{}/{}", path("secrets", &namespace), key.1), Value::Null)
                .await;
        }
    }

    /// Creates a ConfigMap that all Pages have, in a namespace of its own. Whether it exists.
    async fn keep_elsewhere(&self) -> bool {
        let (namespace, name) = ("kube-public", "pages");
        if self.cached("configmaps").contains_key(&(namespace.to_owned(), name.to_owned())) {
            return true;
        }
        let map = json!({"metadata": {"name": name}});
        [201, 409].contains(&self.send(Method::POST, &path("configmaps", namespace), map).await.0)
    }

    /// Deletes the Page's ConfigMaps of shards that are no longer in the spec.
    async fn delete_shards(&self, page: &Value) -> bool {
        let (namespace, name) = key(page);
        let (prefix, mut is_done) = (format!("{name}-shard-"), true);
        for ((of, map), object) in self.cached("configmaps") {
            let is_own =
                of == namespace && object["metadata"]["ownerReferences"][0]["uid"] == page["metadata"]["uid"];
            let Some(shard) = map.strip_prefix(&prefix).filter(|_| is_own) else { continue };
            let is_wanted = page["spec"]["shards"].as_array().into_iter().flatten().any(|one| one == shard);
            let knows = self.added.lock().unwrap().contains(&map) || !self.has("keeps-the-first-shards");
            if !is_wanted && knows {
                let path = format!("{}/{map}", path("configmaps", &namespace));
                is_done &= self.send(Method::DELETE, &path, Value::Null).await.0 == 200;
            }
        }
        is_done
    }

    /// Creates or repairs a ConfigMap for each shard.
    async fn keep_shards(&self, page: &Value, is_new: bool) -> bool {
        let ((namespace, name), mut is_done) = (key(page), true);
        let (maps, path) = (self.cached("configmaps"), path("configmaps", &namespace));
        let owners = &self.children(page)[1].1["metadata"]["ownerReferences"];
        for shard in page["spec"]["shards"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            let map = format!("{name}-shard-{shard}");
            let child =
                json!({"metadata": {"name": map, "ownerReferences": owners}, "data": {"shard": shard}});
            is_done &= match maps.get(&(namespace.clone(), map.clone())) {
                None => {
                    if !is_new {
                        self.added.lock().unwrap().insert(map);
                    }
                    let (code, answer) = self.send(Method::POST, &path, child).await;
                    let message = answer["message"].as_str().unwrap_or_default();
                    code == 201 || message.contains("is being terminated")
                }
                Some(found) if found["metadata"]["ownerReferences"] != *owners || contains(found, &child) => {
                    true
                }
                Some(_) => self.send(Method::PATCH, &format!("{path}/{map}"), child).await.0 == 200,
            };
        }
        is_done
    }

    /// Deletes the Secrets of Pages that are no longer in the cache.
    async fn delete_orphans(&self) {
        let (pages, begun) = (self.cached("pages"), self.begun.lock().unwrap().clone());
        let is_orphan = |key: &Key, secret: &Value| {
            let owner = secret["metadata"]["ownerReferences"][0]["uid"].as_str();
            !pages.contains_key(key) && owner.is_some_and(|uid| begun.contains(uid))
        };
        let orphans = self.cached("secrets").into_iter().filter(|(key, secret)| is_orphan(key, secret));
        for ((namespace, name), _) in orphans {
            self.send(Method::DELETE, &format!("{}/{name}", path("secrets", &namespace)), Value::Null).await;
        }
    }

    /// Adds a field to the ConfigMap of a Page, which another operator creates.
    async fn paint(&self, page: &Value) -> bool {
        let ((namespace, name), maps) = (key(page), self.cached("configmaps"));
        let Some(map) = maps.get(&key(page)) else { return true };
        let is_known = self.begun.lock().unwrap().contains(map["metadata"]["uid"].as_str().unwrap());
        if map["data"]["paint"] == "red" || is_known {
            return true;
        }
        let path = format!("{}/{name}", path("configmaps", &namespace));
        self.send(Method::PATCH, &path, json!({"data": {"paint": "red"}})).await.0 == 200
    }

    async fn reconcile(&self, page: &Value) -> bool {
        if PAINTERS.contains(&&*self.bug) {
            return self.paint(page).await;
        }
        let (uid, phase) = (page["metadata"]["uid"].as_str().unwrap(), page["status"]["phase"].as_str());
        if !page["metadata"]["deletionTimestamp"].is_null() {
            return self.clean_up(page).await;
        }
        if self.has("skips-generations") && self.is_skipped(page).await {
            return true;
        }
        if self.has("waits-for-an-image") && page["spec"]["image"].is_null() {
            return false;
        }
        let is_same = self.done.lock().unwrap().get(uid) == Some(&page["spec"]);
        if self.has("ready-is-for-ever") && phase == Some("Ready") && is_same {
            return true;
        }
        if self.has("failed-is-for-ever") && phase == Some("Failed") {
            return true;
        }
        if self.has("refuses-texts") && page["spec"]["text"] != "hello" {
            return self.refuse(page).await;
        }
        if WITH_FINALIZER.contains(&&*self.bug) && page["metadata"]["finalizers"].is_null() {
            return self.set_finalizers(page, json!([FINALIZER])).await;
        }
        let is_begun = self.begun.lock().unwrap().contains(uid);
        if self.has("creating-is-somebody-else") && phase == Some("Creating") && !is_begun {
            return true;
        }
        self.begun.lock().unwrap().insert(uid.to_owned());
        if phase.is_none() && !self.set_status(page, json!({"phase": "Creating"})).await {
            return false;
        }
        if self.has("ready-before-the-children") && !self.set_ready(page).await {
            return false;
        }
        if self.has("deletes-similar-names") {
            self.delete_similar(page).await;
        }
        if self.has("reads-and-notes-the-second") {
            for _ in 0..READS {
                self.send(Method::GET, &path("configmaps", ""), Value::Null).await;
            }
        }
        let mut is_done = !self.has("keeps-one-elsewhere") || self.keep_elsewhere().await;
        for (kind, child) in self.children(page) {
            is_done &= self.keep(kind, &child, page).await;
        }
        if self.has("one-for-all-namespaces") {
            is_done &= self.keep_shared(page).await;
        }
        is_done = is_done && self.delete_shards(page).await && self.keep_shards(page, phase.is_none()).await;
        if is_done {
            self.done.lock().unwrap().insert(uid.to_owned(), page["spec"].clone());
        }
        if self.has("failed-is-for-ever") && page["spec"]["image"] == BAD_IMAGE {
            return self.set_status(page, json!({"phase": "Failed"})).await;
        }
        if is_done && !(self.waits_for_its_pods() && self.waits_for_pods(page)) {
            if self.has("is-ready-later") && phase != Some("Ready") {
                sleep(LATER).await;
            }
            is_done = self.set_ready(page).await;
        }
        is_done && self.note_checks(page).await
    }

    /// Writes a number into the status that changes with each reconcile.
    async fn note_checks(&self, page: &Value) -> bool {
        let mut checks = page["status"]["checks"].clone();
        if self.has("notes-the-second") || self.has("reads-and-notes-the-second") {
            checks = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs().into();
        }
        if self.has("counts-for-ever") {
            checks = (checks.as_u64().unwrap_or_default() + 1).into();
        }
        checks == page["status"]["checks"] || self.set_status(page, json!({"checks": checks})).await
    }

    /// Whether the generation of a Page is not the one after the last that this process has seen.
    async fn is_skipped(&self, page: &Value) -> bool {
        // Changes that come meanwhile are one event.
        sleep(Duration::from_millis(20)).await;
        let pages = self.cached("pages");
        let generation = pages.get(&key(page)).and_then(|page| page["metadata"]["generation"].as_u64());
        let mut seen = self.generations.lock().unwrap();
        let seen = seen.entry(page["metadata"]["uid"].to_string()).or_insert_with(|| generation.unwrap_or(1));
        let is_skipped = generation.is_some_and(|generation| generation > *seen + 1);
        if !is_skipped {
            *seen = generation.unwrap_or(*seen);
        }
        is_skipped
    }

    fn waits_for_its_pods(&self) -> bool {
        self.has("waits-for-pods") || self.has("of-two-kinds")
    }

    /// Whether no replica of the Deployment is ready.
    fn waits_for_pods(&self, page: &Value) -> bool {
        let deployments = self.cached("deployments");
        deployments.get(&key(page)).is_none_or(|deployment| deployment["status"]["readyReplicas"].is_null())
    }

    async fn clean_up(&self, page: &Value) -> bool {
        let (namespace, name) = key(page);
        if self.has("deletes-by-name") || self.has("deletes-by-name-at-times") && self.is_unlucky {
            self.send(Method::DELETE, &format!("{}/{name}", path("secrets", &namespace)), Value::Null).await;
        }
        let finalizers = page["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
        if !finalizers.contains(&json!(FINALIZER)) {
            return true;
        }
        let others = json!(finalizers.into_iter().filter(|one| one != FINALIZER).collect::<Vec<_>>());
        if self.has("saves-before-it-goes") {
            let (_, mut saved) = self.children(page)[1].clone();
            saved["metadata"]["name"] = format!("{name}-saved").into();
            let (code, _) = self.send(Method::POST, &path("configmaps", &namespace), saved).await;
            return [201, 409].contains(&code) && self.set_finalizers(page, others).await;
        }
        if self.has("one-for-all-namespaces") {
            return self.delete_shared(page).await && self.set_finalizers(page, others).await;
        }
        if self.has("deletes-after-its-finalizer") {
            return self.set_finalizers(page, others).await && self.delete_secret(page).await;
        }
        self.delete_secret(page).await && self.set_finalizers(page, others).await
    }

    /// Creates or changes the ClusterRole that Pages of the same name in all namespaces have. Whether it is as it should be.
    async fn keep_shared(&self, page: &Value) -> bool {
        let ((namespace, name), path) = (key(page), path("clusterroles", ""));
        let metadata =
            json!({"name": name, "labels": {"app": "pages"}, "annotations": {"namespace": namespace}});
        let wanted = json!({"metadata": metadata, "rules": []});
        let Some(found) = self.cached("clusterroles").remove(&(String::new(), name.clone())) else {
            return self.send(Method::POST, &path, wanted).await.0 == 201;
        };
        if found["metadata"]["labels"]["app"] != "pages" || contains(&found, &wanted) {
            return true;
        }
        // Each write wakes the other one. Without a pause, the server would be flooded.
        sleep(Duration::from_millis(300)).await;
        self.send(Method::PATCH, &format!("{path}/{name}"), wanted).await.0 == 200
    }

    /// Deletes the ClusterRole of [`Operator::keep_shared`]. Whether it is gone.
    async fn delete_shared(&self, page: &Value) -> bool {
        let (_, name) = key(page);
        let found = self.cached("clusterroles").remove(&(String::new(), name.clone()));
        let Some(found) = found.filter(|found| found["metadata"]["labels"]["app"] == "pages") else {
            return true;
        };
        let body = json!({"preconditions": {"uid": found["metadata"]["uid"]}});
        let path = format!("{}/{name}", path("clusterroles", ""));
        [200, 404, 409].contains(&self.send(Method::DELETE, &path, body).await.0)
    }

    /// Deletes the Secret of a Page. Whether it is gone.
    async fn delete_secret(&self, page: &Value) -> bool {
        let (namespace, name) = key(page);
        let is_own = |secret: &Value| {
            let owner = &secret["metadata"]["ownerReferences"][0]["uid"];
            owner.is_null() || *owner == page["metadata"]["uid"]
        };
        let Some(secret) = self.cached("secrets").remove(&key(page)).filter(is_own) else {
            let is_known = self.begun.lock().unwrap().contains(page["metadata"]["uid"].as_str().unwrap());
            return is_known || !self.has("needs-what-it-deletes");
        };
        let body = json!({"preconditions": {"uid": secret["metadata"]["uid"]}});
        let path = format!("{}/{name}", path("secrets", &namespace));
        [200, 404].contains(&self.send(Method::DELETE, &path, body).await.0)
    }

    async fn set_finalizers(&self, page: &Value, finalizers: Value) -> bool {
        let (namespace, name) = key(page);
        let patch = json!({"metadata": {"uid": page["metadata"]["uid"], "finalizers": finalizers}});
        self.send(Method::PATCH, &format!("{}/{name}", path("pages", &namespace)), patch).await.0 == 200
    }

    /// Writes the status of a Page whose children are as they should be, if it has another one.
    async fn set_ready(&self, page: &Value) -> bool {
        let mut observed = page["metadata"]["generation"].as_u64().unwrap();
        if self.has("claims-the-newest-generation") {
            let (_, list) = self.send(Method::GET, &path("pages", &key(page).0), Value::Null).await;
            let newest = list["items"].as_array().into_iter().flatten().find(|one| key(one) == key(page));
            observed = newest.map_or(observed, |newest| newest["metadata"]["generation"].as_u64().unwrap());
        }
        let mut time = page["status"]["conditions"][0]["lastTransitionTime"].clone();
        if time.is_null() {
            time = page["metadata"]["creationTimestamp"].clone();
        }
        if self.has("observes-the-future") {
            observed += 1;
        }
        if self.has("moves-the-time") {
            time = json!(format!("2026-01-01T00:00:{observed:02}Z"));
        }
        let ready = json!({"type": "Ready", "status": "True", "reason": "Done", "message": "", "lastTransitionTime": time,
            "observedGeneration": observed});
        let status = json!({"phase": "Ready", "observedGeneration": observed, "conditions": [ready]});
        contains(&page["status"], &status) || self.set_status(page, status).await
    }

    /// Says in the status that the text is invalid, and leaves the children as they are.
    async fn refuse(&self, page: &Value) -> bool {
        let condition = json!({"type": "InvalidSpec", "status": "True", "reason": "InvalidSpec", "message": "the text is invalid"});
        let status = json!({"conditions": [condition]});
        contains(&page["status"], &status) || self.set_status(page, status).await
    }

    async fn set_status(&self, page: &Value, status: Value) -> bool {
        let (namespace, name) = key(page);
        let path = format!("{}/{name}/status", path("pages", &namespace));
        self.send(Method::PATCH, &path, json!({"status": status})).await.0 == 200
    }

    /// Creates or repairs a child. Whether it is as it should be.
    async fn keep(&self, kind: &'static str, child: &Value, page: &Value) -> bool {
        let (namespace, mut name) = key(page);
        let path = path(kind, &namespace);
        let (mut child, mut cache) = (child.clone(), self.cached(kind));
        if self.has("random-names") && kind == "secrets" {
            let owner = &child["metadata"]["ownerReferences"];
            cache.retain(|_, object| object["metadata"]["ownerReferences"] == *owner);
            let known = cache.pop_first();
            name = known
                .as_ref()
                .map_or_else(|| format!("{name}-{:08x}", fastrand::u32(..)), |((_, name), _)| name.clone());
            child["metadata"]["name"] = name.clone().into();
            cache.extend(known.map(|(_, secret)| (key(page), secret)));
        }
        if self.has("looks-in-any-namespace") {
            cache =
                cache.into_iter().map(|((_, name), object)| ((namespace.clone(), name), object)).collect();
        }
        let Some(found) = cache.get(&key(page)) else {
            return self.create(kind, &child, page).await;
        };
        let has_owner = found["metadata"]["ownerReferences"] == child["metadata"]["ownerReferences"]
            && (child["metadata"]["labels"].is_null()
                || contains(&found["metadata"]["labels"], &child["metadata"]["labels"]));
        let owners = found["metadata"]["ownerReferences"].as_array().map_or(&[][..], Vec::as_slice);
        let is_of_page = owners.iter().any(|owner| owner["kind"] == "Page");
        let is_controlled = owners.iter().any(|owner| owner["controller"] == true);
        let takes = self.has("overwrites")
            || self.has("adopts-the-ownerless") && owners.is_empty()
            || self.has("looks-for-a-controller") && !owners.is_empty() && !is_of_page && !is_controlled;
        if !has_owner && !takes {
            // Of somebody else, or of an earlier Page: then the garbage collector deletes it.
            let sees_no_deletion = self.has("does-not-watch-services") && kind == "services";
            self.is_stale.fetch_or(sees_no_deletion, Relaxed);
            return !sees_no_deletion;
        }
        if self.has("no-other-labels") && !found["metadata"]["labels"].is_null() {
            let patch = json!({"metadata": {"labels": null}});
            return self.send(Method::PATCH, &format!("{path}/{name}"), patch).await.0 == 200;
        }
        let is_of_version_0 = kind == "configmaps" && found["data"]["version"].is_null();
        if is_of_version_0 && self.has("recreates-what-it-upgrades") {
            return self.send(Method::DELETE, &format!("{path}/{name}"), Value::Null).await.0 == 200;
        }
        if is_of_version_0 && self.has("empties-what-it-upgrades") {
            child["data"]["text"] = "".into();
        }
        let is_forgotten =
            self.has("forgets-texts") && kind == "configmaps" && found["data"]["text"].is_null();
        if contains(found, &child) || is_forgotten || self.has("trusts-secrets") && kind == "secrets" {
            return true;
        }
        if self.has("repairs-in-vain") && found["data"]["image"] == "drift" {
            // The server refuses this key.
            child["data"]["not a key"] = "".into();
        }
        if self.has("puts-old-bodies") {
            let mut whole = found.clone();
            whole["metadata"]["resourceVersion"] = Value::Null;
            for field in ["data", "spec"] {
                let fields = child[field].as_object().cloned().unwrap_or_default();
                whole[field].as_object_mut().into_iter().for_each(|old| old.extend(fields.clone()));
            }
            return self.send(Method::PUT, &format!("{path}/{name}"), whole).await.0 == 200;
        }
        self.send(Method::PATCH, &format!("{path}/{name}"), child).await.0 == 200
    }

    async fn create(&self, kind: &'static str, child: &Value, page: &Value) -> bool {
        let path = path(kind, &key(page).0);
        let mut other = child.clone();
        other["metadata"]["name"] = format!("{}-2", key(page).1).into();
        let annotations = page["metadata"]["annotations"].clone();
        let expected = self.expected.lock().unwrap().insert((kind, key(page)), annotations.clone());
        if self.has("creates-another-one")
            && let Some(before) = expected
        {
            return before == annotations || self.send(Method::POST, &path, other).await.0 == 201;
        }
        let created = self.created.lock().unwrap().get(&(kind, key(page))).copied().unwrap_or_default();
        if self.has("backs-off-from-deletions") && created > DELETIONS_MAX {
            return true;
        }
        let (mut child, uid) = (child.clone(), page["metadata"]["uid"].to_string());
        if kind == "configmaps"
            && self.has("forgets-texts")
            && self.first_texts.lock().unwrap().contains_key(&uid)
        {
            child["data"].as_object_mut().map(|data| data.remove("text"));
        }
        let (code, mut answer) = self.send_new(kind, &path, &child).await;
        let name = child["metadata"]["name"].as_str().unwrap();
        while self.has("insists-on-its-labels") && !answer["metadata"]["labels"].is_null() {
            let patch = json!({"metadata": {"labels": null}});
            (_, answer) = self.send(Method::PATCH, &format!("{path}/{name}"), patch).await;
        }
        if code == 201 && self.has("does-not-watch-services") && kind == "services" {
            self.caches.lock().unwrap().entry(kind).or_default().insert(key(page), answer.clone());
        }
        if code == 201 {
            if self.has("forgets-texts") && kind == "configmaps" {
                self.first_texts.lock().unwrap().insert(uid, String::new());
            }
            *self.created.lock().unwrap().entry((kind, key(page))).or_default() += 1;
            if self.has("notes-repairs") && page["status"]["phase"] == "Ready" {
                self.set_status(page, json!({"checks": 1})).await;
            }
        } else {
            self.expected.lock().unwrap().remove(&(kind, key(page)));
        }
        if answer["message"].as_str().is_some_and(|message| message.contains("is being terminated")) {
            return true;
        }
        if code == 0 && self.has(&format!("other-{kind}-after-no-answer")) {
            return self.send(Method::POST, &path, other).await.0 == 201;
        }
        code == 201
    }

    /// Creates a Service by server-side apply, and other kinds by POST.
    async fn send_new(&self, kind: &str, path: &str, child: &Value) -> (u16, Value) {
        if kind != "services" {
            return self.send(Method::POST, path, child.clone()).await;
        }
        let mut applied = child.clone();
        (applied["apiVersion"], applied["kind"]) = (json!("v1"), json!("Service"));
        let path = format!("{path}/{}?fieldManager=pages", child["metadata"]["name"].as_str().unwrap());
        self.send(Method::PATCH, &path, applied).await
    }

    /// Adds what the Page's optional fields ask for, and the operator's version.
    fn add_optional(&self, page: &Value, data: &mut Value) {
        match &*self.bug {
            "is-version-1" => data["version"] = "1".into(),
            "is-version-2" | "recreates-what-it-upgrades" | "empties-what-it-upgrades" => {
                data["version"] = "2".into();
            }
            _ => {}
        }
        let uid = &page["metadata"]["uid"];
        if let Some(title) = page["spec"]["title"].as_str() {
            data["title"] = title.into();
            if self.has("first-title-is-for-ever") {
                let mut titles = self.first_texts.lock().unwrap();
                data["title"] =
                    titles.entry(format!("title of {uid}")).or_insert(title.to_owned()).clone().into();
            }
        }
        if let Some(source) = page["spec"]["source"].as_str() {
            let sources = self.cached("configmaps");
            let found = sources.get(&(key(page).0, source.to_owned()));
            let mut colour = found.map_or(json!(""), |found| found["data"]["colour"].clone());
            if self.has("reads-sources-once") && found.is_some() {
                colour = self.first_colours.lock().unwrap().entry(uid.to_string()).or_insert(colour).clone();
            }
            data["colour"] = colour;
        }
    }

    fn children(&self, page: &Value) -> Vec<(&'static str, Value)> {
        let name = &page["metadata"]["name"];
        let mut uid = page["metadata"]["uid"].clone();
        let first = self.first_uids.lock().unwrap().entry(key(page)).or_insert_with(|| uid.clone()).clone();
        if self.has("remembers-the-first-uid") {
            uid = first;
        }
        let owner = json!([{"apiVersion": "example.com/v1", "kind": "Page", "name": name, "uid": uid}]);
        let metadata = json!({"name": name, "ownerReferences": owner});
        let of_secret = match &*self.bug {
            "no-owner" | "deletes-after-its-finalizer" => json!({"name": name, "labels": {"page": name}}),
            "retains-changed-texts" if page["spec"]["text"] != "hello" => json!({"name": name}),
            _ => metadata.clone(),
        };
        let image = match page["spec"]["image"].as_str() {
            None if self.has("needs-an-image") => panic!("no image"),
            image => image.unwrap_or("web:1"),
        };
        let mut image = json!(image);
        if self.has("changes-images-once") {
            let mut images = self.images.lock().unwrap();
            let images = images.entry(uid.to_string()).or_default();
            if images.len() < 2 && !images.contains(&image) {
                images.push(image);
            }
            image = images[images.len() - 1].clone();
        }
        let mut text = page["spec"]["text"].as_str().unwrap_or_default().to_owned();
        if self.has("first-text-is-for-ever") {
            // Not in memory: a process that is started again would take the text of its first reconcile.
            let own = self.cached("configmaps").remove(&key(page));
            let own = own.filter(|map| map["metadata"]["ownerReferences"] == owner);
            text = own.and_then(|map| map["data"]["text"].as_str().map(str::to_owned)).unwrap_or(text);
        }
        let mut data = json!({"text": text, "image": image});
        self.add_optional(page, &mut data);
        if self.has("copies-annotations") {
            data["annotations"] = page["metadata"]["annotations"].to_string().into();
        }
        if self.has("lists-labelled-pages") {
            let is_labelled = |page: &Value| page["metadata"]["labels"]["site"] == "a";
            let pages = self.cached("pages");
            let labelled = pages.iter().filter(|(_, page)| is_labelled(page)).map(|((_, name), _)| &**name);
            data["pages"] = labelled.collect::<Vec<_>>().join(" ").into();
        }
        if self.has("of-two-kinds") {
            let sites: Vec<String> = self.cached("sites").into_keys().map(|(_, name)| name).collect();
            data["sites"] = sites.join(" ").into();
        }
        if self.has("writes-at-each-start") {
            data["process"] = json!(std::process::id().to_string());
        }
        let mut ports = vec![json!({"name": "web", "port": 80}), json!({"name": "admin", "port": 81})];
        if self.has("renders-without-an-order") && self.is_reversed {
            ports.reverse();
        }
        let mut children = vec![
            ("secrets", json!({"metadata": of_secret, "data": {"password": "c2VjcmV0"}})),
            ("configmaps", json!({"metadata": metadata, "data": data})),
            ("services", json!({"metadata": metadata, "spec": {"selector": {"app": name}, "ports": ports}})),
        ];
        if self.has("waits-for-pods") || self.has("does-not-wait-for-pods") {
            let pod = json!({"metadata": {"labels": {"app": name}}, "spec": {"containers": [{"name": "web", "image": image}]}});
            let spec = json!({"selector": {"matchLabels": {"app": name}}, "template": pod});
            children.push(("deployments", json!({"metadata": metadata, "spec": spec})));
        }
        if self.has("of-two-kinds") {
            let claim =
                json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
            children.push(("persistentvolumeclaims", json!({"metadata": metadata, "spec": claim})));
            let volume = json!({"name": "data", "persistentVolumeClaim": {"claimName": name}});
            let spec = json!({"containers": [{"name": "web", "image": image}], "volumes": [volume]});
            let pod = json!({"metadata": {"labels": {"app": name}}, "spec": spec});
            let spec = json!({"selector": {"matchLabels": {"app": name}}, "template": pod});
            children.push(("deployments", json!({"metadata": metadata, "spec": spec})));
        }
        children
    }
}

/// Whether an object has all fields of another one.
fn contains(object: &Value, wanted: &Value) -> bool {
    match (object, wanted) {
        (Value::Object(object), Value::Object(wanted)) => {
            wanted.iter().all(|(key, wanted)| object.get(key).is_some_and(|value| contains(value, wanted)))
        }
        (Value::Array(list), Value::Array(wanted)) => {
            list.len() == wanted.len()
                && list.iter().zip(wanted).all(|(value, wanted)| contains(value, wanted))
        }
        _ => object == wanted,
    }
}
