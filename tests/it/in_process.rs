//! Runs an operator in the process of the test, with the permissions of its ClusterRole.

use std::future::pending;

use listwatch::{controller::WORKERS, runtime::Runtime};
use listwatch_control_plane::eventually;
use listwatch_operators::{BuiltIn, Flags, copyrator::Settings};
use serde_json::{Value, json};
use tokio::task::{JoinHandle, spawn_local};

use crate::{
    client::UserClient,
    fixture::{self, Fixture, Kind},
    manifests,
};

/// The operator in this process. Dropped: stops at once, as if it was killed.
pub struct Running(JoinHandle<()>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Running {
    pub fn start(fixture: &Fixture, operator: BuiltIn) -> Running {
        Running::start_with(fixture, &[operator], &Flags::default(), WORKERS)
    }

    /// Starts some operators, with flags and a number of workers for each.
    pub fn start_with(fixture: &Fixture, operators: &[BuiltIn], flags: &Flags, workers: usize) -> Running {
        let client = fixture.operators_client(&fixture.url());
        let runtime = Runtime::new(client).namespaces(vec![fixture.namespace.clone()]).unwrap();
        let runtime = runtime.lists(fixture.lists).workers(workers);
        let runtime = operators.iter().fold(runtime, |runtime, operator| operator.add_to(runtime, flags));
        Running(spawn_local(async move { runtime.run_until(pending()).await.unwrap() }))
    }
}

/// Runs a script on each of these servers, with the CRD of an operator and the permissions of its ClusterRole.
pub async fn on(operator: BuiltIn, kinds: &[Kind], script: impl AsyncFn(&Fixture) + Copy + Send + 'static) {
    fixture::on(kinds, async move |fixture: &Fixture| {
        install(fixture, operator).await;
        fixture.allow_only(&rules(operator)).await;
        script(fixture).await;
    })
    .await;
}

/// Installs the CRD of an operator, unless it is installed.
pub async fn install(fixture: &Fixture, operator: BuiltIn) {
    let definition = &operator.definitions()[0];
    let crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let installed = fixture.try_create(crds, definition).await;
    assert!(installed.as_ref().err().is_none_or(|error| error.is_already_exists()), "{installed:?}");
    let path = fixture.path(definition["spec"]["names"]["plural"].as_str().unwrap());
    eventually("the CRD to be served", async || fixture.raw(&path).await.ok()).await;
}

/// The permissions of an operator.
pub fn rules(operator: BuiltIn) -> Value {
    manifests::role(&format!("{operator:?}").to_lowercase())["rules"].take()
}

/// Starts all operators with each permission that their ClusterRoles can have, and creates the namespace of the copies.
pub async fn start_all(fixture: &Fixture) -> Running {
    let operators = [BuiltIn::Mywebserver, BuiltIn::Memcached, BuiltIn::Database, BuiltIn::Copyrator];
    let mut all_rules = json!([manifests::read("copyrator/secrets/role-patch.yaml")[0][0]["value"]]);
    for operator in operators {
        install(fixture, operator).await;
        all_rules.as_array_mut().unwrap().extend(rules(operator).as_array().unwrap().clone());
    }
    fixture.allow_everywhere(&all_rules).await;
    let metadata = json!({"name": namespace_of_copies(fixture)});
    fixture.install(&json!({"kind": "Namespace", "metadata": metadata})).await;
    let flags = Flags { copyrator: Settings { secrets: true, ..Settings::default() }, ..Flags::default() };
    // One key at a time, in order, as `settle` needs it.
    let operators = Running::start_with(fixture, &operators, &flags, 1);
    fixture.until_settled().await;
    operators
}

/// The namespace that gets the copies.
pub fn namespace_of_copies(user: &UserClient) -> String {
    format!("{}-copies", user.namespace)
}
