//! Tests what a controller does when a term of its leadership begins and ends.

use std::future::pending;

use serde_json::json;
use tokio::{sync::Notify, task::JoinHandle, time::Instant};

use super::*;
use crate::{
    captured_log::CapturedLog,
    client::{DeleteOptions, Request},
    locked,
    resource::kinds::ConfigMap,
    testing::TestServer,
    watch::Lists,
};

/// Notes its calls. The reconcile of `slow` waits; the reconcile of `bad` fails.
#[derive(Clone, Default)]
struct Noting {
    calls: Arc<Mutex<Vec<String>>>,
    goes_on: Arc<Notify>,
}

impl Noting {
    fn note(&self, what: &str, map: &ConfigMap) {
        locked(&self.calls).push(format!("{what} {}", map.metadata.name));
    }

    /// The calls of the last ten seconds.
    async fn calls(&self) -> Vec<String> {
        sleep(Duration::from_secs(10)).await;
        let mut calls = std::mem::take(&mut *locked(&self.calls));
        calls.sort();
        calls
    }
}

impl Operator for Noting {
    type Kind = ConfigMap;

    fn serves(&self, map: &ConfigMap) -> bool {
        map.metadata.name != "kube-root-ca.crt"
    }

    async fn reconcile(&self, map: Reconcile<ConfigMap>) -> Result<Next, ReconcileError> {
        self.note("begins", &map);
        match &*map.metadata.name {
            "slow" => self.goes_on.notified().await,
            "bad" => return Err("it is bad".into()),
            _ => {}
        }
        self.note("ends", &map);
        Ok(Next::OnChange)
    }

    async fn deleted(&self, last: Arc<ConfigMap>) -> Result<(), ReconcileError> {
        self.note("cleans up after", &last);
        Ok(())
    }
}

/// A controller, and the term of its leadership.
struct Running {
    server: TestServer,
    operator: Noting,
    deadline: tokio::sync::watch::Sender<Option<Instant>>,
    controller: JoinHandle<()>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.controller.abort();
    }
}

impl Running {
    async fn start() -> Running {
        let (server, operator) = (TestServer::start(&[]).await, Noting::default());
        let (deadline, leadership) = Leadership::channel();
        let cluster = Cluster::new(server.client.clone(), Lists::Paged);
        let scope = Scope { namespace: Some("default".to_owned()), ..Scope::default() };
        let maps = cluster.watch::<ConfigMap>([scope]);
        let controller = Controller::new(&cluster, &maps, operator.clone()).led_by(leadership);
        let controller = tokio::spawn(controller.run(pending()));
        Running { server, operator, deadline, controller }
    }

    fn leads(&self) {
        self.deadline.send_replace(Some(Instant::now() + Duration::from_secs(3600)));
    }

    fn leads_no_longer(&self) {
        self.deadline.send_replace(None);
    }

    async fn create(&self, name: &str) {
        let body = json!({"metadata": {"name": name}}).to_string().into_bytes();
        let request = Request::get("/api/v1/namespaces/default/configmaps");
        let created = self.server.client.send(request.sends(http::Method::POST, "application/json", body));
        created.await.expect("created");
    }

    async fn delete(&self, name: &str) {
        let (key, options) = (Key::namespaced("default", name), DeleteOptions::default());
        self.server.client.delete::<ConfigMap>(&key, &options).await.expect("deleted");
    }
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_term_drops_what_is_in_hand_and_the_next_term_reconciles_all() {
    let running = Running::start().await;
    let operator = &running.operator;
    running.create("a").await;
    running.create("slow").await;
    assert_eq!(operator.calls().await, [""; 0], "it does not lead");
    running.leads();
    assert_eq!(operator.calls().await, ["begins a", "begins slow", "ends a"]);

    running.leads_no_longer();
    assert_eq!(operator.calls().await, [""; 0]);
    operator.goes_on.notify_waiters();
    running.delete("a").await;
    running.create("b").await;
    assert_eq!(operator.calls().await, [""; 0], "it does not lead");
    running.leads();
    // As after a start: nobody saw the deletion.
    assert_eq!(operator.calls().await, ["begins b", "begins slow", "ends b"]);

    // A cleanup that waits for a reconcile is left to the next leader.
    running.delete("slow").await;
    running.leads_no_longer();
    assert_eq!(operator.calls().await, [""; 0]);
    running.leads();
    assert_eq!(operator.calls().await, ["begins b", "ends b"]);
    running.delete("b").await;
    assert_eq!(operator.calls().await, ["cleans up after b"]);
}

/// In the second term it was a debug line only.
#[tokio::test(start_paused = true)]
async fn each_term_warns_of_a_problem_once() {
    let log = CapturedLog::start();
    let running = Running::start().await;
    running.create("bad").await;
    for term in 1..=2 {
        running.leads();
        sleep(Duration::from_secs(300)).await;
        assert_eq!(log.text().matches("reconcile failed").count(), term, "{}", log.text());
        running.leads_no_longer();
        sleep(Duration::from_secs(300)).await;
    }
}
