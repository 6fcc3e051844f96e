//! Three published bugs that Sieve found in operators, one for each of its patterns, and the same operators with the fix.
//!
//! | pattern | bug |
//! |---|---|
//! | intermediate state | percona/percona-server-mongodb-operator#797: it creates two Secrets if the first one is missing. Killed between the two, it never creates the second |
//! | stale state | datastax/cass-operator#412: it deletes the claims with the name of a deleted cluster. A restart that sees the deletion of an earlier cluster deletes the claims of the new one |
//! | unobserved state | instaclustr/cassandra-operator#398: it deletes the claim of a node while it sees that the Pod has a `deletionTimestamp`. If it misses this moment, the claim stays, and the node cannot join again |

use std::{
    collections::BTreeMap,
    env,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::future::join_all;
use listwatch_scorecard::{self as scorecard, Outcome, Scorecard};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{
    ATTEMPTS, command_of,
    operator::{Operator, key, path},
    settings,
};

/// The bugs, the check that finds each, and what it says.
const BUGS: [(&str, &str, &str); 3] = [
    (
        "percona-server-mongodb-operator-797",
        "crash-between-writes",
        "killed after create/secrets/default/a-ssl#1: secrets/default/a-ssl-internal is missing",
    ),
    (
        "cass-operator-412",
        "time-travel",
        "it deleted persistentvolumeclaims/default/data-a of the new object",
    ),
    ("cassandra-operator-398", "missed-events", "pods/default/a was deleted, and its watch got a 410: "),
];

const KINDS: [&str; 4] = ["pages", "secrets", "persistentvolumeclaims", "pods"];

/// The pause before a reconcile is tried again.
const PAUSE: Duration = Duration::from_millis(50);

/// `BUG` of the process with the fix.
const FIXED: &str = "-fixed";

/// The result of the check, and its words.
async fn checked(bug: &str, name: &str) -> (Outcome, String) {
    let command = command_of("sieve::process", bug);
    let patience = Duration::from_secs(1);
    let scorecard = Scorecard { only: vec![name.to_owned()], patience, seed: 3, ..settings(command) };
    let report = scorecard::run(&scorecard, |_| {}).await.unwrap();
    (report.checks[0].verdict.result, report.checks[0].to_string())
}

/// The check finds the bug, and passes with the fix.
async fn finds((bug, name, words): (&str, &str, &str)) {
    let (mut result, mut text) = checked(bug, name).await;
    // As for the other bugs, on a slow machine.
    for _ in 1..ATTEMPTS {
        if result != Outcome::Fail {
            (result, text) = checked(bug, name).await;
        }
    }
    assert!(result == Outcome::Fail && text.contains(words), "{text}");
    let (result, text) = checked(&format!("{bug}{FIXED}"), name).await;
    assert_eq!(result, Outcome::Pass, "{bug}: {text}");
}

#[tokio::test]
async fn a_bug_of_each_pattern_of_sieve_is_found_by_its_check() {
    join_all(BUGS.map(finds)).await;
}

/// The operators, as a process.
#[tokio::test]
#[ignore = "is started by the other test"]
async fn process() {
    let Ok(bug) = env::var("BUG") else { return };
    let client = Operator::new(String::new());
    let sieve = Arc::new(Sieve {
        bug: bug.trim_end_matches(FIXED).to_owned(),
        is_fixed: bug.ends_with(FIXED),
        client,
        caches: Mutex::default(),
        turn: tokio::sync::Mutex::default(),
        failed: AtomicBool::default(),
    });
    for kind in KINDS {
        let sieve = Arc::clone(&sieve);
        tokio::spawn(async move { sieve.follow(kind).await });
    }
    loop {
        sleep(PAUSE).await;
        if sieve.failed.swap(false, Ordering::Relaxed) {
            sieve.reconcile_all().await;
        }
    }
}

struct Sieve {
    bug: String,
    is_fixed: bool,
    client: Operator,
    caches: Mutex<BTreeMap<&'static str, BTreeMap<String, Value>>>,
    /// One reconcile at a time.
    turn: tokio::sync::Mutex<()>,
    failed: AtomicBool,
}

impl Sieve {
    /// Keeps the cache of a kind up to date, and reconciles after each event. Runs until dropped.
    async fn follow(&self, kind: &'static str) {
        loop {
            let query = format!("{}?resourceVersion=0", path(kind, ""));
            let (code, list) = self.client.send(Method::GET, &query, Value::Null).await;
            if code == 200 {
                let items = list["items"].as_array().cloned().unwrap_or_default();
                let items = items.into_iter().map(|item| (key(&item).1, item)).collect();
                self.caches.lock().unwrap().insert(kind, items);
                self.reconcile_all().await;
                self.watch(kind, list["metadata"]["resourceVersion"].as_str().unwrap()).await;
            }
            sleep(PAUSE).await;
        }
    }

    async fn watch(&self, kind: &'static str, version: &str) {
        let query = format!("{}?watch=1&resourceVersion={version}", path(kind, ""));
        let Some(mut answer) = self.client.request(Method::GET, &query, &Value::Null).await else { return };
        let mut buffer = Vec::new();
        while let Ok(Some(chunk)) = answer.chunk().await {
            buffer.extend(chunk);
            while let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = buffer.drain(..=end).collect();
                let event: Value = serde_json::from_slice(&line).unwrap();
                if event["type"] == "ERROR" {
                    return;
                }
                self.on_event(kind, &event);
                self.reconcile_all().await;
            }
        }
    }

    fn on_event(&self, kind: &'static str, event: &Value) {
        let mut caches = self.caches.lock().unwrap();
        let (cache, object) = (caches.entry(kind).or_default(), &event["object"]);
        if event["type"] == "DELETED" {
            cache.remove(&key(object).1);
        } else {
            cache.insert(key(object).1, object.clone());
        }
    }

    fn cached(&self, kind: &str, name: &str) -> Option<Value> {
        self.caches.lock().unwrap().get(kind)?.get(name).cloned()
    }

    async fn reconcile_all(&self) {
        let _turn = self.turn.lock().await;
        if self.caches.lock().unwrap().len() < KINDS.len() {
            return;
        }
        let pages = self.caches.lock().unwrap()["pages"].clone();
        for page in pages.into_values() {
            let is_done = match &*self.bug {
                "percona-server-mongodb-operator-797" => self.certificates(&page).await,
                "cass-operator-412" => self.cluster(&page).await,
                _ => self.node(&page).await,
            };
            self.failed.fetch_or(!is_done, Ordering::Relaxed);
        }
    }

    /// `reconcileSSL`: the Secret with the certificate, and the internal one.
    async fn certificates(&self, page: &Value) -> bool {
        if is_terminating(page) {
            return true;
        }
        let names = ["ssl", "ssl-internal"].map(|suffix| format!("{}-{suffix}", key(page).1));
        let is_there = |name: &String| self.cached("secrets", name).is_some();
        // The fix looks for both.
        let is_done = if self.is_fixed { names.iter().all(is_there) } else { is_there(&names[0]) };
        if is_done {
            return true;
        }
        let mut is_done = true;
        for name in names {
            let secret = json!({"metadata": owned(page, &name), "data": {"tls.crt": "Y2VydA=="}});
            is_done &= self.create("secrets", secret).await;
        }
        is_done
    }

    /// A cluster with a claim, which the operator deletes before its finalizer goes.
    async fn cluster(&self, page: &Value) -> bool {
        let (namespace, name) = key(page);
        let (claim, uid) = (format!("data-{name}"), &page["metadata"]["uid"]);
        let pages = path("pages", &namespace);
        let finalizers = |names: Value| json!({"metadata": {"uid": uid, "finalizers": names}});
        if !is_terminating(page) {
            if page["metadata"]["finalizers"].is_null() {
                let patch = finalizers(json!(["example.com/claims"]));
                return self.client.send(Method::PATCH, &format!("{pages}/{name}"), patch).await.0 == 200;
            }
            let metadata = json!({"name": claim, "namespace": namespace, "annotations": {"page": uid}});
            return self.cached("persistentvolumeclaims", &claim).is_some()
                || self.create("persistentvolumeclaims", claim_of(metadata)).await;
        }
        let found = self.cached("persistentvolumeclaims", &claim);
        // The fix deletes the claim of this cluster alone. The cache of claims may be ahead of that of Pages.
        let is_deleted = |found: &Value| !self.is_fixed || found["metadata"]["annotations"]["page"] == *uid;
        if let Some(found) = found.filter(is_deleted) {
            let precondition = json!({"preconditions": {"uid": found["metadata"]["uid"]}});
            let body = if self.is_fixed { precondition } else { Value::Null };
            self.delete("persistentvolumeclaims", &namespace, &claim, body).await;
        }
        let others = page["metadata"]["finalizers"].as_array().into_iter().flatten();
        let others: Vec<&Value> = others.filter(|one| *one != "example.com/claims").collect();
        self.client.send(Method::PATCH, &format!("{pages}/{name}"), finalizers(json!(others))).await.0 == 200
    }

    /// A node: a Pod and its claim. With the data of a node that is gone, a new one cannot join.
    async fn node(&self, page: &Value) -> bool {
        if is_terminating(page) {
            return true;
        }
        let (namespace, name) = key(page);
        let claim = format!("data-{name}");
        let found = self.cached("persistentvolumeclaims", &claim);
        let is_kept = found.as_ref().is_some_and(|found| !is_terminating(found));
        match self.cached("pods", &name) {
            Some(pod) if is_terminating(&pod) => {
                !is_kept || self.delete("persistentvolumeclaims", &namespace, &claim, Value::Null).await
            }
            Some(_) => {
                found.is_some() || self.create("persistentvolumeclaims", claim_of(owned(page, &claim))).await
            }
            None if found.is_some() => {
                // Without the fix, only a Pod that is seen in its deletion has a claim to delete.
                !self.is_fixed
                    || !is_kept
                    || self.delete("persistentvolumeclaims", &namespace, &claim, Value::Null).await
            }
            None => {
                let volume = json!({"name": "data", "persistentVolumeClaim": {"claimName": claim}});
                let spec =
                    json!({"containers": [{"name": "c", "image": "cassandra:4"}], "volumes": [volume]});
                self.create("pods", json!({"metadata": owned(page, &name), "spec": spec})).await
            }
        }
    }

    async fn create(&self, kind: &str, object: Value) -> bool {
        let namespace = key(&object).0;
        [201, 409].contains(&self.client.send(Method::POST, &path(kind, &namespace), object).await.0)
    }

    async fn delete(&self, kind: &str, namespace: &str, name: &str, body: Value) -> bool {
        let path = format!("{}/{name}", path(kind, namespace));
        [200, 404, 409].contains(&self.client.send(Method::DELETE, &path, body).await.0)
    }
}

fn is_terminating(object: &Value) -> bool {
    !object["metadata"]["deletionTimestamp"].is_null()
}

/// The metadata of a child.
fn owned(page: &Value, name: &str) -> Value {
    let metadata = &page["metadata"];
    let owner = json!({"apiVersion": "example.com/v1", "kind": "Page", "name": metadata["name"], "uid": metadata["uid"]});
    json!({"name": name, "namespace": metadata["namespace"], "ownerReferences": [owner]})
}

fn claim_of(metadata: Value) -> Value {
    let size = json!({"requests": {"storage": "1Gi"}});
    json!({"metadata": metadata, "spec": {"accessModes": ["ReadWriteOnce"], "resources": size}})
}
