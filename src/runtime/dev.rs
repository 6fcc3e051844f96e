//! `my-operator --dev`: the operator and an API server for it, in one process, and the writes that the server gets.
//!
//! ```text
//! you             POST /apis/example.com/v1/namespaces/default/pages/example 201
//! page-operator   POST /api/v1/namespaces/default/configmaps/example 201
//! ```
//!
//! The server ends with the process, and with it all objects: each start is a new cluster with the samples. A build without the feature
//! `testing` does not have it.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use listwatch_apiserver::{ApiServer, Options as ServerOptions, RequestRecord};
use serde_json::Value;
use tokio::time::sleep;

use super::{Runtime, RuntimeError};
use crate::{
    client::{Client, Config, Error, Request},
    plan::Objects,
};

/// How long the simulated kubelet takes to start a Pod, so that a rollout can be seen.
const POD_START: Duration = Duration::from_millis(300);
/// How often new requests are shown.
const GLANCE: Duration = Duration::from_millis(100);
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// The files `sample*.yaml` of the working directory.
pub(super) fn samples() -> io::Result<Vec<PathBuf>> {
    let mut samples = Vec::new();
    for entry in fs::read_dir(".")? {
        let name = PathBuf::from(entry?.file_name());
        let is_sample =
            name.to_str().is_some_and(|name| name.starts_with("sample") && name.ends_with(".yaml"));
        samples.extend(is_sample.then_some(name));
    }
    samples.sort();
    Ok(samples)
}

/// Starts a server with the definitions and the objects, and runs the controllers there until `stop`. Writes a kubeconfig.
pub(super) async fn serve(
    name: &str,
    controllers: impl FnOnce(Runtime) -> Runtime,
    objects: &[Objects],
    kubeconfig: &Path,
    stop: impl Future<Output = ()>,
    say: impl Fn(&str),
) -> Result<(), RuntimeError> {
    let wrong = |what: &str, error: &dyn std::fmt::Display| RuntimeError::Config(format!("{what}: {error}"));
    let options = ServerOptions { pod_start: POD_START, ..ServerOptions::default() };
    let server = ApiServer::start(options).await.map_err(|error| wrong("start the API server", &error))?;
    let client = |token: &str| Client::new(Config::new(&server.url(), server.ca_pem().as_bytes(), token)?);
    let user = client(server.token()).map_err(|error| wrong("connect", &error))?;
    let operator = client(&server.new_token(name)).map_err(|error| wrong("connect", &error))?;
    let runtime = controllers(Runtime::new(operator));
    for definition in &runtime.definitions {
        for definition in listwatch_yaml::documents(definition) {
            let definition = definition.map_err(|error| wrong("the definition is not YAML", &error))?;
            create(&user, DEFINITIONS, &definition).await.map_err(|error| wrong("--dev", &error))?;
        }
    }
    let _webhooks = runtime.webhooks.serve_for(&user).await.map_err(|error| wrong("--dev", &error))?;
    server.forget_requests();
    let text = server.kubeconfig();
    let written =
        kubeconfig.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::write(kubeconfig, text));
    written.map_err(|error| wrong(&kubeconfig.display().to_string(), &error))?;
    say(&format!(
        "An API server is listening at {}, in this process. In another terminal:\n\n    export KUBECONFIG='{}'\n",
        server.url(),
        kubeconfig.display()
    ));
    for object in objects.iter().flat_map(Objects::iter) {
        let created = async { create(&user, &collection(&user, object).await?, object).await };
        created.await.map_err(|error| wrong("--dev", &error))?;
    }
    tokio::select! {
        biased;
        ended = runtime.run_until(stop) => ended,
        () = show(&server, name, say) => Ok(()),
    }
}

async fn create(user: &Client, path: &str, object: &Value) -> Result<(), Error> {
    user.send(Request::post(path, object)).await.map(drop)
}

/// The path of the objects beside this one, by the resources of its version. An object without a namespace is for `default`.
async fn collection(user: &Client, object: &Value) -> Result<String, Error> {
    let version = object["apiVersion"].as_str().unwrap_or_default();
    let root = format!("/{}/{version}", if version.contains('/') { "apis" } else { "api" });
    let answer = user.send(Request::get(&*root)).await?;
    let list: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    let mut resources = list["resources"].as_array().into_iter().flatten();
    let is_of = |resource: &&Value| {
        resource["kind"] == object["kind"] && !resource["name"].as_str().unwrap_or_default().contains('/')
    };
    let found = resources.find(is_of).unwrap_or(&Value::Null);
    // Of an unknown kind, the server says so.
    let plural = found["name"].as_str().unwrap_or("unknown");
    let namespace = object["metadata"]["namespace"].as_str().unwrap_or("default");
    let namespace =
        if found["namespaced"] == true { format!("/namespaces/{namespace}") } else { String::new() };
    Ok(format!("{root}{namespace}/{plural}"))
}

/// Shows each write, and each request that fails. Runs until dropped.
async fn show(server: &ApiServer, operator: &str, say: impl Fn(&str)) {
    loop {
        sleep(GLANCE).await;
        let requests = server.requests();
        server.forget_requests();
        let is_shown = |request: &&RequestRecord| {
            (request.method != "GET" || request.status >= 400) && !request.path.ends_with("/events")
        };
        for RequestRecord { method, path, name, status, user, .. } in requests.iter().filter(is_shown) {
            let user = if user == operator { operator } else { "you" };
            let name = if name.is_empty() { String::new() } else { format!("/{name}") };
            say(&format!("{user:width$}   {method} {path}{name} {status}", width = operator.len()));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::sync::mpsc;

    use super::*;
    use crate::{
        controller::{Cleanup, Next, Operator, Reconcile, ReconcileError},
        resource::kinds::ConfigMap,
    };

    /// Writes a finalizer.
    struct Kept;

    impl Operator for Kept {
        type Kind = ConfigMap;
        const FINALIZER: Option<&'static str> = Some("example.com/kept");

        async fn reconcile(&self, _: Reconcile<ConfigMap>) -> Result<Next, ReconcileError> {
            Ok(Next::OnChange)
        }

        async fn deleting(&self, _: Reconcile<ConfigMap>) -> Result<Cleanup, ReconcileError> {
            Ok(Cleanup::Done)
        }
    }

    #[tokio::test]
    async fn the_samples_are_created_and_the_operator_acts_on_them() {
        let dir = tempfile::tempdir().expect("a directory");
        let (sample, kubeconfig) = (dir.path().join("sample.yaml"), dir.path().join("new/kubeconfig"));
        fs::write(&sample, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: card}\n").expect("a file");
        let objects = [Objects::read(&sample).expect("an object")];
        let controllers = |runtime: Runtime| {
            runtime.controller("example.com/kept", |setup| {
                setup.kind_without_status::<ConfigMap>("kept").run_by(Kept)
            })
        };
        let (sender, mut lines) = mpsc::unbounded_channel();
        let say = |line: &str| drop(sender.send(line.to_owned()));
        let expected = [
            "you    POST /api/v1/namespaces/default/configmaps/card 201",
            "kept   PATCH /api/v1/namespaces/default/configmaps/card 200",
        ];
        let seen = async {
            for expected in expected {
                while lines.recv().await.expect("a line") != expected {}
            }
        };
        tokio::select! {
            ended = serve("kept", controllers, &objects, &kubeconfig, pending(), say) => panic!("{ended:?}"),
            () = seen => {}
        }
        assert!(fs::read_to_string(kubeconfig).expect("a kubeconfig").contains("https://127.0.0.1:"));
    }

    #[cfg(feature = "webhook")]
    #[tokio::test]
    async fn the_webhooks_decide_about_the_samples() {
        use crate::webhook::{Decision, Review, Validator, Webhooks};
        struct Texts;
        impl Validator for Texts {
            type Kind = ConfigMap;

            async fn validate(&self, _: &Review<ConfigMap>) -> Decision {
                Decision::allowed().required("data", "there is no text")
            }
        }
        let dir = tempfile::tempdir().expect("a directory");
        let (sample, kubeconfig) = (dir.path().join("sample.yaml"), dir.path().join("kubeconfig"));
        fs::write(&sample, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: card}\n").expect("a file");
        let objects = [Objects::read(&sample).expect("an object")];
        let controllers =
            |runtime: Runtime| runtime.webhooks(Webhooks::new("example.com/texts").validates(|_| Texts));
        let ended = serve("texts", controllers, &objects, &kubeconfig, pending(), |_| ()).await;
        let error = ended.expect_err("a denial").to_string();
        assert!(
            error.contains("ConfigMap \"card\" is invalid: data: Required value: there is no text"),
            "{error}"
        );
    }
}
