//! Tests what happens to the children of a deleted MyWebserver, with a garbage collector and without.

use http::Method;
use listwatch_apiserver::Fault;
use listwatch_control_plane::eventually;
use serde_json::{Value, json};

use crate::{
    client::UserClient,
    fixture::{Fixture, Kind, Record, on},
    manifests,
    refused::with_crd,
};

const WITH_COLLECTOR: [Kind; 2] = [Kind::EmbeddedWithControllers, Kind::Real];

async fn with_web(fixture: &Fixture) {
    fixture.start_operator(&[]).await;
    fixture.create_settled_web("web", json!({"image": "nginx"})).await;
    fixture.get("deployments/mws-web").await;
    fixture.get("services/mws-web").await;
}

/// The objects created since the last call.
async fn created(fixture: &Fixture) -> Vec<String> {
    fixture.transcript().await.into_iter().filter(|line| line.starts_with("POST")).collect()
}

#[tokio::test]
async fn without_a_garbage_collector_the_operator_deletes_the_children() {
    on(&[Kind::Embedded], async |fixture| {
        with_web(fixture).await;
        fixture.delete("mywebservers/web").await;
        fixture.wrote("DELETE deployments/mws-web 200\nDELETE services/mws-web 200").await;
        assert!(fixture.find("deployments/mws-web").await.is_none());
        assert!(fixture.find("services/mws-web").await.is_none());
    })
    .await;
}

#[tokio::test]
async fn background_and_foreground_deletion_remove_the_children_for_good() {
    on(&WITH_COLLECTOR, async |fixture| {
        for policy in ["Background", "Foreground"] {
            if policy == "Background" {
                with_web(fixture).await;
            } else {
                fixture.create_settled_web("web", json!({"image": "nginx"})).await;
            }
            fixture.delete_with("mywebservers/web", json!({"propagationPolicy": policy})).await;
            for what in ["mywebservers/web", "deployments/mws-web", "services/mws-web"] {
                fixture.until_gone(what).await;
            }
            fixture.settle().await;
            assert_eq!(created(fixture).await, [""; 0], "{policy}");
            assert!(fixture.find("deployments/mws-web").await.is_none());
        }
    })
    .await;
}

/// Each child that was deleted with the namespace was created again, and refused, several times: 76 creates for 20 objects.
#[tokio::test]
async fn a_namespace_that_is_deleted_gets_few_creates_and_a_new_one_of_its_name_all() {
    on(&WITH_COLLECTOR, async |fixture| {
        fixture.may_be_forbidden.set(true);
        let there = UserClient { namespace: format!("{}-gone", fixture.namespace), ..fixture.user.clone() };
        let namespace =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": there.namespace}});
        let path = format!("/api/v1/namespaces/{}", there.namespace);
        fixture.allow_everywhere(&manifests::cluster_role()["rules"]).await;
        fixture.install(&namespace).await;
        fixture.start_operator(&["--namespace", &there.namespace, "--max-concurrent-reconciles", "8"]).await;
        let webs: Vec<_> = (0..20).map(|number| format!("web-{number}")).collect();
        for web in &webs {
            there.create_web(web, json!({"image": "nginx"})).await;
        }
        for web in &webs {
            let is_reported = |web: &Value| web["status"]["observedGeneration"] == 1;
            there.until(&format!("mywebservers/{web}"), is_reported).await;
        }
        there.send(Method::DELETE, &path, "application/json", &json!(null)).await.unwrap();
        eventually("the namespace to be gone", async || {
            there.raw(&path).await.err().filter(listwatch::client::Error::is_not_found)
        })
        .await;
        // Events of what was done before come when they may.
        let refused = |record: &&Record| {
            record.method == "POST" && record.status == 403 && !record.path.ends_with("/events")
        };
        let refused = fixture.records().await.iter().filter(refused).count();
        // As many as are under way before the first answer: both children of eight objects.
        assert!(refused <= 16, "{refused}");

        fixture.install(&namespace).await;
        there.create_web("web-0", json!({"image": "nginx"})).await;
        there.until("deployments/mws-web-0", |_| true).await;
    })
    .await;
}

/// While the watch of MyWebservers was broken, the watch of Deployments reported that the garbage collector had deleted
/// a child. The operator created the child again for the deleted owner, the collector deleted it, and so on: eighty
/// requests a second.
#[tokio::test]
async fn for_an_owner_whose_deletion_was_missed_no_child_is_created() {
    on(&[Kind::EmbeddedWithControllers], async |fixture| {
        with_web(fixture).await;
        let server = fixture.embedded();
        // A list and a watch. Seconds pass until the watch is repeated.
        let unavailable = Fault::Answer { status: 503, body: String::new(), retry_after_secs: None };
        server.fault(unavailable.on("GET", "mywebservers?").times(2));
        server.fault(Fault::EndWatches);
        fixture.delete("mywebservers/web").await;
        fixture.settle().await;
        assert_eq!(created(fixture).await, [""; 0]);
    })
    .await;
}

#[tokio::test]
async fn orphaned_children_stay() {
    on(&WITH_COLLECTOR, async |fixture| {
        with_web(fixture).await;
        fixture.delete_with("mywebservers/web", json!({"propagationPolicy": "Orphan"})).await;
        fixture.until_gone("mywebservers/web").await;
        fixture.settle().await;
        for child in ["deployments/mws-web", "services/mws-web"] {
            let child = fixture.get(child).await;
            assert!(child["metadata"]["deletionTimestamp"].is_null());
            assert!(child["metadata"]["ownerReferences"].as_array().is_none_or(Vec::is_empty), "{child}");
        }
        let written = fixture.transcript().await;
        assert!(written.iter().all(|line| line.contains("/status ") || line.ends_with("409")), "{written:?}");
    })
    .await;
}

/// With foreground deletion, each child that we created again would have to be deleted again, without end.
#[tokio::test]
async fn a_terminating_object_gets_no_child() {
    on(&[Kind::Embedded, Kind::Real], async |fixture| {
        with_web(fixture).await;
        fixture.patch("mywebservers/web", json!({"metadata": {"finalizers": ["example.com/wait"]}})).await;
        fixture.delete("mywebservers/web").await;
        // Whether or not the watch has reported the deletion of the web.
        fixture.delete("services/mws-web").await;
        fixture.wrote("").await;
        fixture.patch("deployments/mws-web", json!({"spec": {"replicas": 9}})).await;
        fixture.wrote("").await;
        assert!(fixture.find("services/mws-web").await.is_none());
        fixture.patch("mywebservers/web", json!({"metadata": {"finalizers": null}})).await;
        fixture.until_gone("mywebservers/web").await;
        fixture.until_gone("deployments/mws-web").await;
    })
    .await;
}

#[tokio::test]
async fn an_owner_that_is_created_again_gets_its_own_children() {
    on(&[Kind::Embedded, Kind::EmbeddedWithControllers, Kind::Real], async |fixture| {
        with_web(fixture).await;
        fixture.delete("mywebservers/web").await;
        let web = fixture.create_web("web", json!({"image": "nginx:2"})).await;
        until_children_belong_to(fixture, &web["metadata"]["uid"]).await;
    })
    .await;
}

/// Waits until the new web has its children.
async fn replace_web_while_the_operator_is_stopped(fixture: &Fixture) {
    with_web(fixture).await;
    fixture.stop_operator().await;
    fixture.delete("mywebservers/web").await;
    let web = fixture.create_web("web", json!({"image": "nginx:2"})).await;
    fixture.spawn_operator(&[]);
    until_children_belong_to(fixture, &web["metadata"]["uid"]).await;
}

/// While the operator was stopped, one MyWebserver was replaced by another of the same name, and no garbage collector
/// deleted its children.
#[tokio::test]
async fn children_of_a_predecessor_are_replaced() {
    on(&[Kind::Embedded], async |fixture| {
        replace_web_while_the_operator_is_stopped(fixture).await;
        fixture.settle().await;
        let mut written = fixture.transcript().await;
        written.retain(|line| !line.contains("/status "));
        let expected = [
            "DELETE deployments/mws-web 200",
            "DELETE services/mws-web 200",
            "POST deployments 201",
            "POST services 201",
        ];
        written.sort();
        assert_eq!(written, expected);
        // The children are reported as created, not as restored.
        assert!(!fixture.operator().log().contains("created again"));
    })
    .await;
}

/// If the children of a predecessor could not be deleted, the new object was never reconciled.
#[tokio::test]
async fn a_predecessors_child_that_cannot_be_deleted_is_a_condition_of_the_successor() {
    on(&[Kind::EmbeddedBare, Kind::RealBare], async |fixture| {
        fixture.may_be_forbidden.set(true);
        with_crd(fixture, &manifests::crd()).await;
        with_web(fixture).await;
        fixture.allow_all_but("delete", "deployments").await;
        fixture.delete("mywebservers/web").await;
        // The other child is deleted nevertheless.
        fixture.until_gone("services/mws-web").await;
        fixture.get("deployments/mws-web").await;
        let web = fixture.create_web("web", json!({"image": "nginx:2"})).await;
        let message = fixture.until_condition("web", "Stalled", "True", "Forbidden").await;
        assert!(message.contains("cannot delete resource"), "{message}");
        assert_eq!(fixture.get("mywebservers/web").await["status"]["observedGeneration"], 1);
        // The other child of the successor does not wait, either.
        let uid = &web["metadata"]["uid"];
        fixture
            .until("services/mws-web", |child| child["metadata"]["ownerReferences"][0]["uid"] == *uid)
            .await;
        fixture.allow().await;
        until_children_belong_to(fixture, uid).await;
    })
    .await;
}

/// The same with a garbage collector, which may be at work when the operator starts again.
#[tokio::test]
async fn an_owner_replaced_while_the_operator_was_stopped_gets_its_own_children() {
    on(&WITH_COLLECTOR, async |fixture| {
        replace_web_while_the_operator_is_stopped(fixture).await;
        let created = created(fixture).await;
        assert_eq!(created.iter().filter(|line| line.ends_with(" 201")).count(), 2, "{created:?}");
    })
    .await;
}

/// A finalizer delays the deletion, so that the operator starts in the middle of it.
#[tokio::test]
async fn foreground_deletion_goes_on_while_the_operator_restarts() {
    on(&WITH_COLLECTOR, async |fixture| {
        with_web(fixture).await;
        let finalizer = json!({"metadata": {"finalizers": ["example.com/wait"]}});
        fixture.patch("deployments/mws-web", finalizer).await;
        fixture.settle().await;
        fixture.stop_operator().await;
        fixture.transcript().await;
        fixture.delete_with("mywebservers/web", json!({"propagationPolicy": "Foreground"})).await;
        fixture.until_gone("services/mws-web").await;
        fixture.start_operator(&[]).await;
        assert!(!fixture.get("mywebservers/web").await["metadata"]["deletionTimestamp"].is_null());
        fixture.patch("deployments/mws-web", json!({"metadata": {"finalizers": null}})).await;
        for what in ["deployments/mws-web", "mywebservers/web"] {
            fixture.until_gone(what).await;
        }
        fixture.settle().await;
        let written = fixture.transcript().await;
        // The operator may find the Deployment without its owner before the collector does.
        assert!(written.iter().all(|line| line.starts_with("DELETE deployments/mws-web")), "{written:?}");
        assert!(fixture.find("services/mws-web").await.is_none());
    })
    .await;
}

#[tokio::test]
async fn orphaned_children_survive_a_restart_of_the_operator() {
    on(&WITH_COLLECTOR, async |fixture| {
        with_web(fixture).await;
        fixture.stop_operator().await;
        let children = ["deployments/mws-web", "services/mws-web"];
        let mut uids = Vec::new();
        for child in children {
            uids.push(fixture.get(child).await["metadata"]["uid"].clone());
        }
        fixture.delete_with("mywebservers/web", json!({"propagationPolicy": "Orphan"})).await;
        fixture.start_operator(&[]).await;
        fixture.until_gone("mywebservers/web").await;
        fixture.settle().await;
        for (child, uid) in children.into_iter().zip(uids) {
            let child = fixture.get(child).await;
            assert_eq!(child["metadata"]["uid"], uid);
            assert!(child["metadata"]["deletionTimestamp"].is_null());
        }
    })
    .await;
}

async fn until_children_belong_to(fixture: &Fixture, uid: &serde_json::Value) {
    for child in ["deployments/mws-web", "services/mws-web"] {
        eventually(&format!("{child} to belong to the new owner"), async || {
            let child = fixture.find(child).await?;
            (child["metadata"]["ownerReferences"][0]["uid"] == *uid
                && child["metadata"]["deletionTimestamp"].is_null())
            .then_some(())
        })
        .await;
    }
    fixture.settle().await;
    let deployment = fixture.get("deployments/mws-web").await;
    assert_eq!(deployment["spec"]["template"]["spec"]["containers"][0]["image"], "nginx:2");
}
