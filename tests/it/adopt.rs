//! Tests the restore of a backup without ownerReferences: the new owners have other uids, and adopt a child only if its annotation
//! asks for that.

use listwatch_control_plane::eventually;
use listwatch_operators::BuiltIn;
use serde_json::{Value, json};

use crate::{
    client::condition,
    fixture::{Fixture, Kind},
    in_process::{self, Running},
};

/// An object and its children, as they come out of a backup: the children have their labels and no owner.
struct Restored {
    operator: BuiltIn,
    api_version: &'static str,
    kind: &'static str,
    object: &'static str,
    /// The children, and the annotation that lets the object adopt them.
    children: &'static [&'static str],
    annotation: &'static str,
}

impl Restored {
    async fn restore(&self, fixture: &Fixture, spec: Value) {
        let (objects, name) = self.object.split_once('/').unwrap();
        let metadata = json!({"name": name});
        let object =
            json!({"apiVersion": self.api_version, "kind": self.kind, "metadata": metadata, "spec": spec});
        let running = Running::start(fixture, self.operator);
        fixture.create(objects, &object).await;
        let is_reported = |object: &Value| condition(object, "Ready").is_some();
        fixture.until(self.object, is_reported).await;
        drop(running);
        fixture.delete(self.object).await;
        if fixture.find(self.object).await.is_some() {
            fixture.patch(self.object, json!({"metadata": {"finalizers": null}})).await;
        }
        fixture.until_gone(self.object).await;
        for child in self.children {
            fixture.patch(child, json!({"metadata": {"ownerReferences": null}})).await;
        }
        fixture.create(objects, &object).await;
        fixture.transcript().await;
    }

    async fn until_in_conflict(&self, fixture: &Fixture) -> String {
        let reason = |object: &Value| condition(object, "Stalled").map(|stalled| stalled["reason"].clone());
        let object = fixture.until(self.object, |object| reason(object) == Some(json!("NameConflict"))).await;
        condition(&object, "Stalled").unwrap()["message"].as_str().unwrap().to_owned()
    }

    async fn annotate(&self, fixture: &Fixture, child: &str) {
        fixture.patch(child, json!({"metadata": {"annotations": {self.annotation: "true"}}})).await;
    }

    /// A change of the object triggers a reconcile: the events of a child without an owner do not.
    async fn wake(&self, fixture: &Fixture, note: &str) {
        fixture.patch(self.object, json!({"metadata": {"annotations": {"note": note}}})).await;
    }

    async fn metadata(&self, fixture: &Fixture) -> Vec<Value> {
        let mut all = Vec::new();
        for child in self.children {
            all.push(fixture.get(child).await["metadata"].take());
        }
        all
    }

    /// The operator adopts all children with one patch each, and deletes nothing.
    async fn check(&self, fixture: &Fixture) {
        let before = self.metadata(fixture).await;
        let _running = Running::start(fixture, self.operator);
        let message = self.until_in_conflict(fixture).await;
        let (namespace, annotation) = (&fixture.namespace, self.annotation);
        let is_named = |child: &&str| {
            message.contains(&format!("adopt it: kubectl -n {namespace} annotate {child} {annotation}=true"))
        };
        assert!(self.children.iter().any(is_named), "{message}");
        let kept = self.metadata(fixture).await;
        assert_eq!(kept, before, "without the annotation, nothing is changed");

        fixture.transcript().await;
        for child in self.children {
            self.annotate(fixture, child).await;
        }
        self.wake(fixture, "adopt").await;
        let object = fixture.until(self.object, |object| condition(object, "Stalled").is_none()).await;
        let mut expected: Vec<_> = self.children.iter().map(|child| format!("PATCH {child} 200")).collect();
        expected.push(format!("PATCH {}/status 200", self.object));
        let are_written = async || {
            let written = fixture.written();
            expected.iter().all(|line| written.contains(line)).then_some(())
        };
        eventually("the adoption of all children", are_written).await;
        let mut written = fixture.transcript().await;
        // Kubernetes' controllers also write to children: then the operator tries again.
        written.retain(|line| !line.ends_with(" 409"));
        expected.sort();
        written.sort();
        assert_eq!(written, expected);
        for (child, before) in self.metadata(fixture).await.iter().zip(before) {
            assert_eq!(child["uid"], before["uid"]);
            assert_eq!(child["ownerReferences"][0]["uid"], object["metadata"]["uid"]);
            // A child that is released later is not adopted again.
            assert_eq!(child["annotations"][self.annotation], Value::Null);
        }
        assert!(fixture.records().await.iter().all(|record| record.method != "DELETE"));
    }
}

const WEB: Restored = Restored {
    operator: BuiltIn::Mywebserver,
    api_version: "k8sobjects.gsa.com/v2",
    kind: "MyWebserver",
    object: "mywebservers/web",
    children: &["deployments/mws-web", "services/mws-web"],
    annotation: "k8sobjects.gsa.com/adopt",
};

async fn on_both(operator: BuiltIn, script: impl AsyncFn(&Fixture) + Copy + Send + 'static) {
    in_process::on(operator, &[Kind::InProcess, Kind::RealHttp1], script).await;
}

#[tokio::test]
async fn restored_children_of_a_web_are_adopted_if_they_are_annotated() {
    on_both(BuiltIn::Mywebserver, async |fixture| {
        WEB.restore(fixture, json!({"image": "nginx"})).await;
        WEB.check(fixture).await;
    })
    .await;
}

#[tokio::test]
async fn an_annotated_object_of_another_owner_or_without_our_labels_is_not_adopted() {
    on_both(BuiltIn::Mywebserver, async |fixture| {
        WEB.restore(fixture, json!({"image": "nginx"})).await;
        let unlabelled = json!({"metadata": {"labels": {"app.kubernetes.io/component": null}}});
        fixture.patch("services/mws-web", unlabelled).await;
        let owner =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "u", "controller": true});
        fixture.patch("deployments/mws-web", json!({"metadata": {"ownerReferences": [owner]}})).await;
        for child in WEB.children {
            WEB.annotate(fixture, child).await;
        }
        let before = WEB.metadata(fixture).await;
        let _running = Running::start(fixture, BuiltIn::Mywebserver);
        let message = WEB.until_in_conflict(fixture).await;
        assert!(!message.contains("annotate"), "{message}");
        assert_eq!(WEB.metadata(fixture).await, before);

        // One with another selector would have to be deleted.
        fixture.delete("deployments/mws-web").await;
        fixture.until_gone("deployments/mws-web").await;
        let labels = &before[0]["labels"];
        let metadata = json!({"name": "mws-web", "labels": labels, "annotations": {WEB.annotation: "true"}});
        let containers = json!([{"name": "other", "image": "other"}]);
        let template = json!({"metadata": {"labels": {"app": "other"}}, "spec": {"containers": containers}});
        let spec = json!({"selector": {"matchLabels": {"app": "other"}}, "template": template});
        fixture.delete("services/mws-web").await;
        let deployment = fixture.create("deployments", &json!({"metadata": metadata, "spec": spec})).await;
        WEB.wake(fixture, "other").await;
        fixture.until("services/mws-web", |_| true).await;
        let is_reported = |web: &Value| {
            let stalled = condition(web, "Stalled").and_then(|stalled| stalled["message"].as_str());
            stalled
                .is_some_and(|text| text.starts_with("Deployment mws-web exists and does not belong to this"))
        };
        fixture.until(WEB.object, is_reported).await;
        assert_eq!(fixture.get("deployments/mws-web").await["metadata"], deployment["metadata"]);
    })
    .await;
}

#[tokio::test]
async fn restored_children_of_a_memcached_are_adopted_if_they_are_annotated() {
    on_both(BuiltIn::Memcached, async |fixture| {
        let restored = Restored {
            operator: BuiltIn::Memcached,
            api_version: "cache.example.com/v1alpha1",
            kind: "Memcached",
            object: "memcacheds/cache",
            children: &["deployments/cache", "services/cache"],
            annotation: "cache.example.com/adopt",
        };
        restored.restore(fixture, json!({"size": 3})).await;
        restored.check(fixture).await;
    })
    .await;
}

/// The claims and Secrets have no owner in any case, and stay as they are.
#[tokio::test]
async fn restored_children_of_a_database_are_adopted_if_they_are_annotated_and_its_data_stays() {
    on_both(BuiltIn::Database, async |fixture| {
        let restored = Restored {
            operator: BuiltIn::Database,
            api_version: "app.example.com/v1",
            kind: "Database",
            object: "databases/db",
            children: &[
                "configmaps/db-scripts",
                "cronjobs/db-backup",
                "poddisruptionbudgets/db",
                "services/db",
                "services/db-ro",
                "statefulsets/db",
            ],
            annotation: "app.example.com/adopt",
        };
        let backup = json!({"schedule": "0 3 * * *"});
        restored.restore(fixture, json!({"size": 2, "version": "15", "backup": backup})).await;
        let data = async || {
            let mut uids = Vec::new();
            for data in ["secrets/db", "secrets/db-replication", "persistentvolumeclaims/db-backups"] {
                uids.push(fixture.get(data).await["metadata"]["uid"].take());
            }
            uids
        };
        let before = data().await;
        restored.check(fixture).await;
        assert_eq!(data().await, before);
    })
    .await;
}
