//! Tests of an operator against the embedded API server, in the process of the test and without a cluster.
//!
//! A test makes objects, runs the controller until it is quiet, and compares its writes and the objects with what it
//! expects. With a paused clock, no test waits, and each has the same order of events.
//!
//! ```no_run
//! # use listwatch::{controller::*, resource::kinds::ConfigMap, runtime::Setup};
//! # struct Operator;
//! # impl listwatch::controller::Operator for Operator {
//! #     type Kind = ConfigMap;
//! #     async fn reconcile(&self, _: Reconcile<ConfigMap>) -> Result<Next, ReconcileError> { Ok(Next::OnChange) }
//! # }
//! # fn controller(setup: Setup) -> Controller<Operator> {
//! #     setup.kind_without_status::<ConfigMap>("tests").run_by(Operator)
//! # }
//! use listwatch::testing::TestServer;
//!
//! #[tokio::test(start_paused = true)]
//! async fn nothing_is_written_twice() {
//!     let server = TestServer::start(&[]).await;
//!     server.run(controller).await;
//!     assert_eq!(server.run(controller).await, [""; 0]);
//! }
//! ```

mod crd_fits;
#[cfg(feature = "webhook")]
mod webhooks;

use std::{
    io,
    pin::Pin,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use listwatch_apiserver::{ApiServer, Options};
use serde_json::Value;
use tokio::time::{Instant, sleep, sleep_until};

use crate::{
    client::{
        Client, Config,
        in_process::{InProcess, InProcessAnswer},
    },
    cluster::{Cluster, Events},
    controller::{Controller, Operator},
    locked,
    runtime::Setup,
    watch::Lists,
};

pub use crd_fits::crd_fits;
pub use listwatch_apiserver::{Fault, Rule};
#[cfg(feature = "webhook")]
pub use webhooks::converts_without_loss;
#[cfg(feature = "webhook")]
pub(crate) use webhooks::serve;

/// After this time without a request, a controller is quiet. On a paused clock, no real time passes.
const QUIET: Duration = Duration::from_secs(2);
/// Longest time until a controller is quiet. One that never is would hang its test.
const QUIET_LIMIT: Duration = Duration::from_secs(600);

/// An embedded API server, with its controllers and simulated Pods.
pub struct TestServer {
    /// The server, for faults and rules.
    pub server: Arc<ApiServer>,
    /// A client with all permissions, for the user's part of a test.
    pub client: Client,
}

impl TestServer {
    /// Starts a server with the CustomResourceDefinitions of these texts in YAML.
    ///
    /// # Panics
    ///
    /// If one of them is not YAML, or not a CustomResourceDefinition that the server accepts.
    pub async fn start(definitions: &[&str]) -> TestServer {
        let server = Arc::new(ApiServer::in_process(&Options::default(), SystemTime::now()));
        let client = Link::new(&server).client();
        for definition in definitions.iter().flat_map(|yaml| listwatch_yaml::documents(yaml)) {
            let definition = definition.expect("a manifest in YAML");
            let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
            let create = crate::client::Request::post(path, &definition);
            client.send(create).await.expect("a CustomResourceDefinition");
        }
        TestServer { server, client }
    }

    /// Runs a controller until it has sent no request for two seconds, and returns its writes in order, without Events:
    /// `POST configmaps/motd 201`, `PATCH pages/motd/status 200`. Each call is a start of the operator. An operator that
    /// sends requests elsewhere needs a test without `start_paused`: a paused clock does not wait for a network.
    ///
    /// # Panics
    ///
    /// If the controller is not quiet after ten minutes.
    pub async fn run<O: Operator>(&self, controller: impl FnOnce(Setup) -> Controller<O>) -> Vec<String> {
        let link = Link::new(&self.server);
        let client = link.client();
        let (events, write_events) = Events::new(client.clone(), "example.com/test", "test".to_owned());
        let cluster = Cluster::new(client, Lists::Paged);
        let controller = controller(Setup { cluster, events, namespaces: Vec::new() });
        tokio::select! {
            () = controller.run(std::future::pending()) => {}
            () = async { tokio::join!(write_events, std::future::pending::<()>()); } => {}
            () = link.is_quiet() => {}
            () = sleep(QUIET_LIMIT) => panic!("the controller is not quiet; its writes: {:?}", link.writes()),
        }
        link.writes()
    }
}

/// A connection to the server.
struct Link {
    server: Arc<ApiServer>,
    last_request: Mutex<Instant>,
    writes: Mutex<Vec<String>>,
}

impl Link {
    fn new(server: &Arc<ApiServer>) -> Arc<Link> {
        Arc::new(Link {
            server: Arc::clone(server),
            last_request: Mutex::new(Instant::now()),
            writes: Mutex::default(),
        })
    }

    fn client(self: &Arc<Self>) -> Client {
        let server: Arc<dyn InProcess> = Arc::clone(self) as _;
        let config = Config::in_process(server, self.server.token()).expect("a valid address");
        Client::new(config).expect("a client without certificates")
    }

    async fn is_quiet(&self) {
        let mut quiet_at = *locked(&self.last_request) + QUIET;
        while Instant::now() < quiet_at {
            sleep_until(quiet_at).await;
            quiet_at = *locked(&self.last_request) + QUIET;
        }
    }

    fn writes(&self) -> Vec<String> {
        locked(&self.writes).clone()
    }

    /// Notes a request that is a write.
    fn note(&self, request: &Request<Bytes>, status: StatusCode) {
        let (method, path) = (request.method(), request.uri().path());
        // Without `/api/v1` or `/apis/GROUP/VERSION`.
        let mut place: Vec<&str> =
            path.split('/').skip(if path.starts_with("/api/") { 3 } else { 4 }).collect();
        if let ["namespaces", _, _, ..] = place[..] {
            place.drain(..2);
        }
        if method == Method::GET || place.first() == Some(&"events") {
            return;
        }
        let body: Value = serde_json::from_slice(request.body()).unwrap_or_default();
        let name = body["metadata"]["name"].as_str().filter(|_| method == Method::POST);
        place.extend(name);
        locked(&self.writes).push(format!("{method} {} {}", place.join("/"), status.as_u16()));
    }
}

impl InProcess for Link {
    fn answer(
        &self,
        request: Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = io::Result<InProcessAnswer>> + Send + '_>> {
        Box::pin(async move {
            *locked(&self.last_request) = Instant::now();
            let answer =
                self.server.answer(request.clone().map(Full::new)).await.map_err(io::Error::other)?;
            self.note(&request, answer.status());
            Ok(answer.map(|body| body.map_err(Into::into).boxed_unsync()))
        })
    }

    fn now(&self) -> SystemTime {
        self.server.now()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        client::{Part, Patch},
        cluster::Watch,
        controller::{Next, Reconcile, ReconcileError},
        resource::{
            Key, ObjectMeta,
            kinds::{ConfigMap, Namespace},
        },
    };

    /// Creates a ConfigMap in each namespace, and deletes it after a change.
    struct Welcome {
        cluster: Cluster,
        config_maps: Watch<ConfigMap>,
    }

    impl Operator for Welcome {
        type Kind = Namespace;

        async fn reconcile(&self, namespace: Reconcile<Namespace>) -> Result<Next, ReconcileError> {
            let key = Key::namespaced(&namespace.metadata.name, "welcome");
            let (name, namespace) = (key.name.clone(), key.namespace.clone());
            let metadata = ObjectMeta { name, namespace, ..ObjectMeta::default() };
            match self.config_maps.get(&key) {
                Some(changed) if !changed.data.is_empty() => self.cluster.delete(&*changed).await?,
                Some(_) => {}
                None => drop(self.cluster.create(&ConfigMap { metadata, ..ConfigMap::default() }).await?),
            }
            Ok(Next::OnChange)
        }
    }

    fn controller(setup: Setup) -> Controller<Welcome> {
        let mut namespaces = setup.kind_without_status::<Namespace>("welcome");
        let config_maps = setup.cluster.watch::<ConfigMap>(setup.scopes(""));
        namespaces.watches(&config_maps, |map| map.metadata.namespace.as_deref().map(Key::cluster));
        namespaces.run_by(Welcome { cluster: setup.cluster, config_maps })
    }

    #[tokio::test(start_paused = true)]
    async fn the_writes_of_each_start_are_returned() {
        let server = TestServer::start(&[]).await;
        let created = server.run(controller).await;
        assert_eq!(created, vec!["POST configmaps/welcome 201"; created.len()]);
        assert!(created.len() > 1, "{created:?}");
        assert_eq!(server.run(controller).await, [""; 0]);
        let change = Patch::Merge(serde_json::json!({"data": {"a": "b"}}));
        let key = Key::namespaced("default", "welcome");
        server.client.patch::<ConfigMap>(&key, Part::Object, &change).await.expect("a ConfigMap");
        assert_eq!(
            server.run(controller).await,
            ["DELETE configmaps/welcome 200", "POST configmaps/welcome 201"]
        );
    }

    /// Reads itself each second.
    struct Restless(Cluster);

    impl Operator for Restless {
        type Kind = Namespace;

        async fn reconcile(&self, namespace: Reconcile<Namespace>) -> Result<Next, ReconcileError> {
            self.0.get_live::<Namespace>(&namespace.metadata.key()).await?;
            Ok(Next::After(Duration::from_secs(1)))
        }
    }

    #[tokio::test(start_paused = true)]
    #[should_panic(expected = "the controller is not quiet; its writes: []")]
    async fn a_controller_that_is_never_quiet_fails_the_test() {
        let server = TestServer::start(&[]).await;
        let restless =
            |setup: Setup| setup.kind_without_status::<Namespace>("restless").run_by(Restless(setup.cluster));
        server.run(restless).await;
    }
}
