//! What `manifests/` installs: it is what the code needs, and no more.

use std::{collections::BTreeSet, fs, path::Path};

use http::Method;
use listwatch::client::Request;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    hands::eventually,
    operator::listwatch,
    refused::with_older_crd,
    world::{Kind, on},
};

/// All documents of a file under `manifests/`.
pub fn read(file: &str) -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests").join(file);
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    yaml_serde::Deserializer::from_str(&text).map(|document| Value::deserialize(document).unwrap()).collect()
}

/// The CustomResourceDefinition.
pub fn crd() -> Value {
    read("crd/mywebservers.yaml").remove(0)
}

/// What the operator may do, and its ServiceAccount, after the Namespace in which that is.
pub fn rbac() -> Vec<Value> {
    let mut objects = read("operator/namespace.yaml");
    objects.extend(read("operator/rbac.yaml"));
    objects
}

/// What the operator may do.
pub fn cluster_role() -> Value {
    rbac().into_iter().find(|object| object["kind"] == "ClusterRole").unwrap()
}

#[test]
fn the_crd_is_what_the_binary_prints() {
    let printed = listwatch().arg("crd").output().unwrap();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests/crd/mywebservers.yaml");
    assert!(printed.status.success());
    assert_eq!(
        String::from_utf8_lossy(&printed.stdout),
        fs::read_to_string(file).unwrap(),
        "stale: cargo run -- crd > manifests/crd/mywebservers.yaml"
    );
}

#[tokio::test]
async fn the_crd_and_the_samples_are_taken_without_a_warning() {
    on(&[Kind::Embedded, Kind::Real], async |world| {
        let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/mywebservers.k8sobjects.gsa.com";
        let version = |text: String| {
            serde_json::from_str::<Value>(&text).unwrap()["metadata"]["resourceVersion"].take()
        };
        let mut crd = crd();
        crd["metadata"]["resourceVersion"] = version(world.raw(path).await.unwrap());
        let webs = world.path("mywebservers");
        let [v1, v2] =
            ["v1", "v2"].map(|version| read(&format!("samples/mywebserver-{version}.yaml")).remove(0));
        for (method, path, object) in [
            (Method::PUT, path.to_owned(), crd),
            (Method::POST, webs.replace("/v2/", "/v1/"), v1),
            (Method::POST, webs, v2),
        ] {
            let path = format!("{path}?dryRun=All&fieldValidation=Strict");
            let request =
                Request::get(&*path).sends(method, "application/json", object.to_string().into_bytes());
            let answer = world.client.send(request).await.unwrap();
            assert_eq!(answer.headers.get("warning"), None, "{path}");
        }
    })
    .await;
}

/// One life with everything in it, on a server where nobody else collects garbage. What its audit log says was used is
/// what the ClusterRole allows: no more, or a leaked token could do harm; no less, or something would not work.
#[tokio::test]
async fn the_cluster_role_allows_exactly_what_is_used() {
    // A streaming list is a watch: it has no use for the verb `list`.
    on(&[Kind::RealPaged], async |world| {
        with_older_crd(world).await;
        // Named by somebody else, and given up for us.
        world
            .create("services", &json!({"metadata": {"name": "mws-web"}, "spec": {"ports": [{"port": 7}]}}))
            .await;
        world.start_operator(&[]).await;
        world.create_web("web", json!({"image": "nginx"})).await;
        world.until_condition("web", "Stalled", "True", "NameConflict").await;
        world.delete("services/mws-web").await;
        // Not ready for a while, so that its Pods are asked for.
        let generation = world.get("deployments/mws-web").await["metadata"]["generation"].clone();
        let status = json!({"observedGeneration": generation, "replicas": 1, "updatedReplicas": 1});
        world.patch("deployments/mws-web/status", json!({ "status": status })).await;
        let is_look = |record: &crate::world::Record| record.path.contains("/pods?");
        eventually("the Pods to be asked for", async || world.records().iter().any(is_look).then_some(()))
            .await;
        // A change for each of the writes: an update, a drift, a lost label.
        world.patch("mywebservers/web", json!({"spec": {"replicas": 2, "port": 81}})).await;
        world.settle().await;
        let unlabelled = json!({"metadata": {"labels": {"app.kubernetes.io/managed-by": null}}});
        world.patch("deployments/mws-web", unlabelled).await;
        world.settle().await;
        world.patch("services/mws-web", json!({"spec": {"type": "NodePort"}})).await;
        // Not readable, so that it must be asked for.
        world.create_web("eighty", json!({"image": "nginx", "port": "eighty"})).await;
        world.until_condition("eighty", "Stalled", "True", "InvalidSpec").await;
        world.settle().await;
        world.delete("mywebservers/web").await;
        for child in ["deployments/mws-web", "services/mws-web"] {
            world.until_gone(child).await;
        }
        world.settle().await;

        let role = cluster_role();
        let mut allowed = BTreeSet::new();
        for rule in role["rules"].as_array().unwrap() {
            let texts =
                |field: &str| rule[field].as_array().unwrap().iter().map(|text| text.as_str().unwrap());
            for group in texts("apiGroups") {
                for resource in texts("resources") {
                    allowed.extend(texts("verbs").map(|verb| format!("{verb} {resource}.{group}")));
                }
            }
        }
        // Never called, but asked about by an admission plugin: see the file.
        assert!(allowed.remove("update mywebservers/finalizers.k8sobjects.gsa.com"));
        // A watch is in the audit log when it has ended.
        world.stop_operator().await;
        eventually("the three watches to be logged", async || {
            let watches = world.records().into_iter().filter(|record| record.path.contains("watch=1"));
            (watches.count() >= 3).then_some(())
        })
        .await;
        let mut used = BTreeSet::new();
        for event in world.plane().audit(&mut 0, &world.user()) {
            let object = &event["objectRef"];
            let Some(resource) = object["resource"].as_str() else { continue };
            let subresource =
                object["subresource"].as_str().map(|name| format!("/{name}")).unwrap_or_default();
            let (verb, group) =
                (event["verb"].as_str().unwrap(), object["apiGroup"].as_str().unwrap_or_default());
            used.insert(format!("{verb} {resource}{subresource}.{group}"));
        }
        assert_eq!(used, allowed);
    })
    .await;
}
