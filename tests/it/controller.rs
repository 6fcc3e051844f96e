//! What holds for every operator: one that panics or hangs over one object still serves the others.

use std::{collections::HashMap, sync::Arc, time::Duration};

use listwatch::{
    apiserver::{ApiServer, Options},
    client::{Client, Config, Error},
    cluster::Cluster,
    controller::{Controller, Next, Operator},
    resource::{Scope, kinds::Service},
    watch::Lists,
};
use serde_json::json;
use tokio::sync::watch;

use crate::hands::Hands;

/// Does what an object's name says, and counts how often.
struct Clumsy {
    calls: watch::Sender<HashMap<String, u32>>,
}

impl Clumsy {
    fn count(&self, call: String) {
        self.calls.send_modify(|calls| *calls.entry(call).or_default() += 1);
    }
}

impl Operator for Clumsy {
    type Kind = Service;

    async fn applied(&self, object: Arc<Service>) -> Result<Next, Error> {
        let name = object.metadata.name.to_string();
        self.count(name.clone());
        match &*name {
            "panics" => panic!("as asked"),
            "hangs" => std::future::pending().await,
            "fails" => Err(Error::new("try", "fails", "as asked")),
            "later" => Ok(Next::After(Duration::from_secs(30))),
            _ => Ok(Next::OnChange),
        }
    }

    async fn deleted(&self, last: Arc<Service>) -> Result<(), Error> {
        self.count(format!("deleted {}", last.metadata.name));
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn an_object_over_which_the_operator_panics_hangs_or_fails_holds_up_no_other() {
    let server = ApiServer::start(Options { controllers: false, ..Options::default() }).await.unwrap();
    let client = || {
        Client::new(Config::new(&server.url(), server.ca_pem().as_bytes(), server.token()).unwrap()).unwrap()
    };
    let hands = Hands::new(client());
    for name in ["panics", "hangs", "fails", "later", "fine"] {
        let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": {"ports": [{"port": 1}]}});
        hands.create("services", &service).await;
    }
    let (calls, mut seen) = watch::channel(HashMap::new());
    let cluster = Cluster::new(client(), Lists::Paged);
    let services =
        cluster.watch::<Service>([Scope { namespace: Some("default".into()), ..Scope::default() }]);
    let operator = Clumsy { calls };
    // Two workers, of which one hangs.
    let controller = Controller::new(&cluster, &services, operator).workers(2);
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(controller.run(async { drop(stopped.await) }));

    // All but the one that is fine come again: after a backoff, after the limit of one reconcile, or as they said.
    let again = |calls: &HashMap<String, u32>| {
        ["panics", "hangs", "fails", "later"]
            .iter()
            .all(|name| calls.get(*name).is_some_and(|count| *count >= 2))
    };
    seen.wait_for(again).await.unwrap();
    assert_eq!(seen.borrow()["fine"], 1);

    hands.delete("services/fine").await;
    seen.wait_for(|calls| calls.contains_key("deleted fine")).await.unwrap();

    // What hangs is given up in time for Kubernetes, which waits 30 s.
    stop.send(()).unwrap();
    let asked = tokio::time::Instant::now();
    running.await.unwrap();
    assert!(asked.elapsed() <= Duration::from_secs(26), "{:?}", asked.elapsed());
}
