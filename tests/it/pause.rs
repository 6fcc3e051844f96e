//! Tests the annotation with which a user pauses an operator for one object.

use serde_json::{Value, json};

use crate::{
    client::{UserClient, condition},
    fixture::{Fixture, Kind, on},
    in_process::{namespace_of_copies, start_all},
};

/// A paused object, and one of its children.
struct Sample {
    resource: &'static str,
    object: Value,
    child: &'static str,
    /// A client in the namespace of the child.
    user: UserClient,
}

fn samples(fixture: &Fixture) -> [Sample; 4] {
    let object = |version: &str, kind: &str, name: &str, spec: Value| {
        let (group, _) = version.split_once('/').unwrap();
        let metadata = json!({"name": name, "annotations": {format!("{group}/paused"): "true"}});
        json!({"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec})
    };
    let mut rule = object("flant.com/v1", "CopyratorRule", "rule", Value::Null);
    rule.as_object_mut().unwrap().remove("spec");
    let copies = UserClient { namespace: namespace_of_copies(fixture), ..fixture.user.clone() };
    rule["ruleType"] = "configmap".into();
    rule["selector"] = json!({"copy": "me"});
    rule["targetNamespaces"] = json!({"include": [copies.namespace]});
    [
        Sample {
            resource: "mywebservers",
            object: object("k8sobjects.gsa.com/v2", "MyWebserver", "web", json!({"image": "nginx"})),
            child: "deployments/mws-web",
            user: fixture.user.clone(),
        },
        Sample {
            resource: "memcacheds",
            object: object("cache.example.com/v1alpha1", "Memcached", "cache", json!({"size": 1})),
            child: "deployments/cache",
            user: fixture.user.clone(),
        },
        Sample {
            resource: "databases",
            object: object("app.example.com/v1", "Database", "db", json!({"size": 1, "version": "15"})),
            child: "services/db",
            user: fixture.user.clone(),
        },
        Sample { resource: "copyrators", object: rule, child: "configmaps/source", user: copies },
    ]
}

impl Sample {
    fn path(&self) -> String {
        format!("{}/{}", self.resource, self.object["metadata"]["name"].as_str().unwrap())
    }

    async fn pause(&self, fixture: &Fixture, value: Value) {
        let annotations = self.object["metadata"]["annotations"].as_object().unwrap();
        let name = annotations.keys().next().unwrap();
        fixture.patch(&self.path(), json!({"metadata": {"annotations": {name: value}}})).await;
    }

    async fn until_paused(&self, fixture: &Fixture) {
        let is_paused = |object: &Value| {
            condition(object, "Ready").is_some_and(|ready| {
                ready["reason"] == "Paused"
                    && ready["status"] == "Unknown"
                    && ready["observedGeneration"] == object["metadata"]["generation"]
            })
        };
        fixture.until(&self.path(), is_paused).await;
    }
}

/// Somebody who repairs or moves the children by hand could only stop the operator for all objects.
#[tokio::test]
async fn each_operator_leaves_a_paused_object_alone_until_its_deletion() {
    on(&[Kind::EmbeddedWithControllers, Kind::Real], async |fixture| {
        let _operators = start_all(fixture).await;
        let samples = samples(fixture);
        let source = json!({"metadata": {"name": "source", "labels": {"copy": "me"}}, "data": {"a": "1"}});
        fixture.create("configmaps", &source).await;
        for sample in &samples {
            fixture.create(sample.resource, &sample.object).await;
            sample.until_paused(fixture).await;
        }
        fixture.settle().await;
        let is_status = |line: &String| line.contains("/status ");
        let written = fixture.transcript().await;
        assert!(written.len() == samples.len() && written.iter().all(is_status), "{written:#?}");

        for sample in &samples {
            sample.pause(fixture, Value::Null).await;
            sample.user.until(sample.child, |_| true).await;
            sample.pause(fixture, "true".into()).await;
            sample.until_paused(fixture).await;
        }
        fixture.settle().await;
        fixture.transcript().await;
        for sample in &samples {
            // The label is in the scope of the watch of the children, so without it, the operator would miss the child.
            let edit = json!({"metadata": {"labels": {"app.kubernetes.io/name": "other", "edited": "true"}}});
            sample.user.patch(sample.child, edit).await;
        }
        fixture.settle().await;
        assert_eq!(fixture.transcript().await, [""; 0]);
        for sample in &samples {
            let labels = &sample.user.get(sample.child).await["metadata"]["labels"];
            assert_eq!(
                (&labels["edited"], &labels["app.kubernetes.io/name"]),
                (&json!("true"), &json!("other"))
            );
            fixture.delete(&sample.path()).await;
            fixture.until_gone(&sample.path()).await;
            sample.user.until_gone(sample.child).await;
        }
    })
    .await;
}
