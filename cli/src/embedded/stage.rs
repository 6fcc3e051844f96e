//! `--demo` of `listwatch get` and `listwatch watch`: an API server in this process, with an operator at work, and changes.

use std::time::Duration;

use clap::Args;
use http::Method;
use serde_json::{Value, json};

use listwatch::{
    client::{Client, Config, Error, Request},
    cluster::Cluster,
    resource::Resource,
    runtime::Setup,
    watch::Lists,
};
use listwatch_apiserver::{ApiServer, Options as ServerOptions};
use listwatch_operators::mywebserver::{self, MyWebserver};
use tokio::task::JoinSet;

use super::apiserver::{self, credentials::CredentialFiles};
use crate::failure::Failure;

/// How often something is changed: slow enough to read, fast enough to wait for.
const PERIOD: Duration = Duration::from_millis(700);
/// How long the simulated kubelet takes to start a Pod.
const POD_START: Duration = Duration::from_millis(200);

#[derive(Args, Clone, Debug)]
pub(in super::super) struct DemoFlag {
    /// Use an API server in this process, with an operator at work
    #[arg(long, conflicts_with_all = ["kubeconfig", "context", "cluster", "user", "service_account_dir"])]
    demo: bool,
}

impl DemoFlag {
    pub(in super::super) async fn stage(&self) -> Result<Option<DemoServer>, Failure> {
        if self.demo { DemoServer::start().await.map(Some) } else { Ok(None) }
    }
}

/// An API server with an operator, and a user who changes objects.
pub(in super::super) struct DemoServer {
    server: ApiServer,
    /// The curl commands read them while the server runs.
    credentials: CredentialFiles,
    tasks: JoinSet<()>,
}

impl DemoServer {
    async fn start() -> Result<DemoServer, Failure> {
        let server =
            apiserver::start(ServerOptions { pod_start: POD_START, ..ServerOptions::default() }).await?;
        let credentials = CredentialFiles::write(&server, &std::env::temp_dir())?;
        let mut stage = DemoServer { server, credentials, tasks: JoinSet::new() };
        let client = Client::new(stage.config()?)?;
        let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        post(&client, path, &mywebserver::types::definition()).await?;
        let cluster = Cluster::new(client.clone(), Lists::Paged);
        let (events, write_events) = mywebserver::events(client.clone(), "demo".to_owned());
        let controller = mywebserver::controller(Setup { cluster, events, namespaces: Vec::new() });
        stage.tasks.spawn(async move {
            tokio::join!(controller.run(std::future::pending()), write_events);
        });
        create(&client, "web").await?;
        stage.tasks.spawn(change(client));
        Ok(stage)
    }

    pub(in super::super) fn config(&self) -> Result<Config, Failure> {
        Ok(self.credentials.config("")?)
    }

    pub(in super::super) async fn stop(mut self) {
        self.tasks.shutdown().await;
        self.server.stop().await;
    }
}

async fn create(client: &Client, name: &str) -> Result<(), Error> {
    let object = json!({
        "apiVersion": MyWebserver::api_version(), "kind": MyWebserver::KIND,
        "metadata": {"name": name}, "spec": {"image": "nginx", "port": 80, "replicas": 1},
    });
    post(client, &MyWebserver::collection_path(Some("default")), &object).await
}

async fn post(client: &Client, path: &str, object: &Value) -> Result<(), Error> {
    client.send(Request::post(path, object)).await.map(drop)
}

/// Scales `web`, and creates and deletes `blog`, again and again. Ends with the server.
async fn change(client: Client) {
    let collection = MyWebserver::collection_path(Some("default"));
    for round in 0_u32.. {
        tokio::time::sleep(PERIOD).await;
        let result = match round % 4 {
            1 => create(&client, "blog").await,
            3 => {
                let delete = Request::get(format!("{collection}/blog")).sends(
                    Method::DELETE,
                    "application/json",
                    vec![],
                );
                client.send(delete).await.map(drop)
            }
            _ => {
                let patch = json!({"spec": {"replicas": 1 + round % 3}}).to_string().into_bytes();
                let request = Request::get(format!("{collection}/web"));
                client
                    .send(request.sends(Method::PATCH, "application/merge-patch+json", patch))
                    .await
                    .map(drop)
            }
        };
        if result.is_err() {
            return;
        }
    }
}
