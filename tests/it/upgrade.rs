//! Tests an upgrade of an operator: with children as the previous version wrote them, it deletes nothing. The previous version
//! selected Pods by `name` and `instance` alone, which each Helm chart also sets. And tests CRDs of another version than the operator.

use listwatch_control_plane::eventually;
use listwatch_operators::BuiltIn;
use serde_json::{Value, json};

use crate::{
    client::condition,
    fixture::{Fixture, Kind, on},
    in_process::{self, Running},
    manifests,
    refused::with_crd,
};

const MANAGED_BY: &str = "app.kubernetes.io/managed-by";

/// An operator, an object of it, and the children that select Pods.
#[derive(Clone, Copy)]
struct Upgrade {
    operator: BuiltIn,
    /// The collection of the object.
    objects: &'static str,
    name: &'static str,
    api_version: &'static str,
    kind: &'static str,
    spec: fn() -> Value,
    /// The Deployment or StatefulSet.
    workload: &'static str,
    /// The other children that select Pods, with the pointer to their selector.
    selecting: &'static [(&'static str, &'static str)],
    /// Whether the status has the selector.
    is_scaled: bool,
}

impl Upgrade {
    /// The lines of the transcript after these patches, in any order.
    async fn patched(&self, fixture: &Fixture, patched: &[&str]) {
        let enough = async || (fixture.written().len() >= patched.len()).then_some(());
        eventually(&format!("patches of {patched:?}"), enough).await;
        let mut expected: Vec<_> = patched.iter().map(|what| format!("PATCH {what} 200")).collect();
        let mut written = fixture.transcript().await;
        expected.sort();
        written.sort();
        assert_eq!(written, expected);
    }

    async fn check(self, fixture: &Fixture) {
        let object = format!("{}/{}", self.objects, self.name);
        let status = format!("{object}/status");
        let start = || Running::start(fixture, self.operator);
        let running = start();
        let (api_version, kind, metadata) = (self.api_version, self.kind, json!({"name": self.name}));
        let new =
            json!({"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": (self.spec)()});
        fixture.create(self.objects, &new).await;
        fixture.until(&object, |object| condition(object, "Ready").is_some()).await;
        drop(running);

        // Another owner's Pod with the labels of a Helm chart is not selected.
        let operator = format!("{:?}-operator", self.operator).to_lowercase();
        let wanted = |selector: &Value| assert_eq!(selector[MANAGED_BY], *operator, "{selector}");
        wanted(&fixture.get(self.workload).await["spec"]["selector"]["matchLabels"]);
        for (child, pointer) in self.selecting {
            wanted(fixture.get(child).await.pointer(pointer).unwrap());
        }

        // The children of the previous version.
        let mut former = fixture.get(self.workload).await;
        former["metadata"] = json!({
            "name": former["metadata"]["name"], "labels": former["metadata"]["labels"],
            "ownerReferences": former["metadata"]["ownerReferences"],
        });
        former["spec"]["selector"]["matchLabels"].as_object_mut().unwrap().remove(MANAGED_BY);
        fixture.delete(self.workload).await;
        fixture.until_gone(self.workload).await;
        let collection = self.workload.split('/').next().unwrap();
        let uid = fixture.create(collection, &former).await["metadata"]["uid"].take();
        for (child, pointer) in self.selecting {
            let path = format!("{pointer}/{}", MANAGED_BY.replace('/', "~1"));
            fixture.edit(child, json!([{"op": "remove", "path": path}])).await;
        }
        if self.is_scaled {
            let selector = former["spec"]["selector"]["matchLabels"].as_object().unwrap().iter();
            let selector: Vec<_> =
                selector.map(|(key, value)| format!("{key}={}", value.as_str().unwrap())).collect();
            fixture.patch(&status, json!({"status": {"selector": selector.join(",")}})).await;
        }
        fixture.transcript().await;

        let running = start();
        let mut patched: Vec<_> = self.selecting.iter().map(|(child, _)| *child).collect();
        patched.extend(self.is_scaled.then_some(&*status));
        self.patched(fixture, &patched).await;
        for (child, pointer) in self.selecting {
            wanted(fixture.get(child).await.pointer(pointer).unwrap());
        }
        // Its fields are corrected as before.
        fixture.patch(self.workload, json!({"spec": {"replicas": 7}})).await;
        self.patched(fixture, &[self.workload]).await;
        drop(running);

        // A restart writes nothing but the answer to a change that comes after it.
        let running = start();
        fixture.patch(self.workload, json!({"spec": {"replicas": 7}})).await;
        self.patched(fixture, &[self.workload]).await;
        let kept = fixture.get(self.workload).await;
        assert_eq!(
            (&kept["metadata"]["uid"], &kept["spec"]["selector"]),
            (&uid, &former["spec"]["selector"])
        );
        // One that is created again has the new selector.
        fixture.delete(self.workload).await;
        let created = fixture.until(self.workload, |workload| workload["metadata"]["uid"] != uid).await;
        wanted(&created["spec"]["selector"]["matchLabels"]);
        drop(running);
    }
}

async fn on_both(operator: BuiltIn, script: impl AsyncFn(&Fixture) + Copy + Send + 'static) {
    in_process::on(operator, &[Kind::InProcess, Kind::RealHttp1], script).await;
}

#[tokio::test]
async fn a_deployment_of_the_previous_version_keeps_its_selector() {
    on_both(BuiltIn::Mywebserver, async |fixture| {
        let upgrade = Upgrade {
            operator: BuiltIn::Mywebserver,
            objects: "mywebservers",
            name: "web",
            api_version: "k8sobjects.gsa.com/v2",
            kind: "MyWebserver",
            spec: || json!({"image": "nginx"}),
            workload: "deployments/mws-web",
            selecting: &[("services/mws-web", "/spec/selector")],
            is_scaled: true,
        };
        upgrade.check(fixture).await;
    })
    .await;
}

#[tokio::test]
async fn a_deployment_of_a_memcached_of_the_previous_version_keeps_its_selector() {
    on_both(BuiltIn::Memcached, async |fixture| {
        let upgrade = Upgrade {
            operator: BuiltIn::Memcached,
            objects: "memcacheds",
            name: "cache",
            api_version: "cache.example.com/v1alpha1",
            kind: "Memcached",
            spec: || json!({"size": 3}),
            workload: "deployments/cache",
            selecting: &[("services/cache", "/spec/selector")],
            is_scaled: true,
        };
        upgrade.check(fixture).await;
    })
    .await;
}

#[tokio::test]
async fn a_stateful_set_of_the_previous_version_keeps_its_selector() {
    on_both(BuiltIn::Database, async |fixture| {
        let upgrade = Upgrade {
            operator: BuiltIn::Database,
            objects: "databases",
            name: "db",
            api_version: "app.example.com/v1",
            kind: "Database",
            spec: || json!({"size": 2, "version": "15"}),
            workload: "statefulsets/db",
            selecting: &[
                ("services/db", "/spec/selector"),
                ("services/db-ro", "/spec/selector"),
                ("poddisruptionbudgets/db", "/spec/selector/matchLabels"),
            ],
            is_scaled: false,
        };
        upgrade.check(fixture).await;
    })
    .await;
}

/// The API server drops a field of the status that its CRD does not have. The operator writes it once more, which changes nothing, and then
/// waits.
#[tokio::test]
async fn with_an_older_crd_no_status_is_written_for_ever() {
    on(&[Kind::EmbeddedBare, Kind::RealBare], async |fixture| {
        let mut older = manifests::crd();
        for version in older["spec"]["versions"].as_array_mut().unwrap() {
            let status = &mut version["schema"]["openAPIV3Schema"]["properties"]["status"];
            status["properties"].as_object_mut().unwrap().remove("selector").unwrap();
        }
        with_crd(fixture, &older).await;
        fixture.start_operator(&[]).await;
        for name in ["web", "later"] {
            fixture.create_web(name, json!({"image": "nginx"})).await;
            let path = format!("mywebservers/{name}");
            let web = fixture.until(&path, |web| web["status"]["observedGeneration"] == 1).await;
            assert_eq!(web["status"]["selector"], Value::Null);
        }
        fixture.settle().await;
        let written = fixture.transcript().await;
        assert!(written.iter().filter(|line| line.contains("/status")).count() <= 4, "{written:?}");
    })
    .await;
}

/// It has another field, and another version, in which the API server stores the objects.
#[tokio::test]
async fn with_a_newer_crd_the_operator_goes_on_and_keeps_new_fields() {
    on(&[Kind::EmbeddedBare, Kind::RealBare], async |fixture| {
        let mut newer = manifests::crd();
        let versions = newer["spec"]["versions"].as_array_mut().unwrap();
        for version in &mut *versions {
            version["storage"] = false.into();
            let spec = &mut version["schema"]["openAPIV3Schema"]["properties"]["spec"];
            spec["properties"]["color"] = json!({"type": "string"});
        }
        let mut v3 = versions.iter().find(|version| version["name"] == "v2").unwrap().clone();
        v3["name"] = "v3".into();
        v3["storage"] = true.into();
        versions.push(v3);
        with_crd(fixture, &newer).await;
        fixture.start_operator(&[]).await;
        fixture.create_web("web", json!({"image": "nginx", "color": "red"})).await;
        fixture.until("mywebservers/web", |web| web["status"]["observedGeneration"] == 1).await;
        fixture.patch("mywebservers/web", json!({"spec": {"replicas": 2}})).await;
        fixture.until("mywebservers/web", |web| web["status"]["observedGeneration"] == 2).await;
        assert_eq!(fixture.get("deployments/mws-web").await["spec"]["replicas"], 2);
        let path = fixture.path("mywebservers").replace("/v2/", "/v3/") + "/web";
        let stored: Value = serde_json::from_str(&fixture.raw(&path).await.unwrap()).unwrap();
        assert_eq!(stored["spec"]["color"], "red");
    })
    .await;
}
