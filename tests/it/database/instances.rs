//! What the Pods report, and the conditions that follow.

use super::*;

/// A Pod of the Database, with the StatefulSet's template, but without its volumes.
async fn create_pod(fixture: &Fixture, name: &str) {
    let template = fixture.get("statefulsets/db").await["spec"]["template"].take();
    let container = json!({"name": "postgres", "image": template["spec"]["containers"][0]["image"]});
    let metadata = json!({"name": name, "labels": template["metadata"]["labels"]});
    let pod = json!({"metadata": metadata, "spec": {"containers": [container]}});
    fixture.create("pods", &pod).await;
}

#[tokio::test]
async fn an_instance_that_cannot_start_is_a_condition_with_its_own_message() {
    on_both(async |fixture| {
        let _running = start(fixture);
        fixture.create("databases", &database(json!({"size": 1, "version": "15"}))).await;
        wrote(fixture, &CREATED).await;
        create_pod(fixture, "db-0").await;
        let reports = async |status: Value, reason: &str, message: &str| {
            fixture.patch("pods/db-0/status", json!({ "status": status })).await;
            let is_reported = |database: &Value| {
                let ready = condition(database, "Ready").unwrap();
                ready["reason"] == reason && ready["message"].as_str().unwrap().contains(message)
            };
            fixture.until("databases/db", is_reported).await;
        };
        // In the words of the scheduler.
        let unbound = "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims.";
        let scheduled =
            json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": unbound});
        reports(json!({"conditions": [scheduled]}), "Unschedulable", unbound).await;
        // In the words of the script that starts PostgreSQL.
        for message in [
            "The volume of the data is full. Raise spec.storage.",
            "The primary no longer has the WAL that this instance needs. It clones the primary.",
            "The Secret for app has no key password. Add it, and delete this Pod.",
        ] {
            let ended = json!({"terminated": {"exitCode": 1, "reason": "Error", "message": message}});
            let container = json!({
                "name": "postgres", "image": "postgres:15", "imageID": "", "ready": false, "restartCount": 3,
                "state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": ended,
            });
            let scheduled = json!({"type": "PodScheduled", "status": "True"});
            let status = json!({"conditions": [scheduled], "containerStatuses": [container]});
            reports(status, "CrashLoopBackOff", message).await;
        }
        // Of another owner, and so it is not the primary.
        let ready = json!({"type": "Ready", "status": "True"});
        reports(json!({"conditions": [ready], "containerStatuses": null}), "RolloutInProgress", "0 of 1")
            .await;
        let reported = fixture.get("databases/db").await;
        assert_eq!(condition(&reported, "Available").unwrap()["reason"], "PrimaryNotReady");
    })
    .await;
}

/// The reason was the replica's, which only waits for the primary. Nothing said that a corrected template does not reach the primary.
#[tokio::test]
async fn the_trouble_of_the_primary_comes_before_that_of_the_replicas_which_wait_for_it() {
    on_both(async |fixture| {
        let _running = start(fixture);
        fixture.create("databases", &database(json!({"size": 2, "version": "15"}))).await;
        wrote(fixture, &CREATED).await;
        let unschedulable =
            json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no room"});
        let crashed = json!({
            "name": "postgres", "image": "", "imageID": "", "ready": false, "restartCount": 3,
            "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "no primary"}},
        });
        for (name, revision, status) in [
            ("db-0", "earlier", json!({"conditions": [unschedulable]})),
            ("db-1", "latest", json!({"containerStatuses": [crashed]})),
        ] {
            create_pod(fixture, name).await;
            let labels = json!({"controller-revision-hash": revision});
            fixture.patch(&format!("pods/{name}"), json!({"metadata": {"labels": labels}})).await;
            fixture.patch(&format!("pods/{name}/status"), json!({ "status": status })).await;
        }
        let generation = fixture.get("statefulsets/db").await["metadata"]["generation"].take();
        let status = json!({"observedGeneration": generation, "replicas": 2, "updateRevision": "latest"});
        fixture.patch("statefulsets/db/status", json!({ "status": status })).await;
        let reports = async |reason: &str, message: &str| {
            let is_reported = |database: &Value| {
                let ready = condition(database, "Ready").unwrap();
                ready["reason"] == reason && ready["message"] == message
            };
            fixture.until("databases/db", is_reported).await;
        };
        let kept = "db-0 keeps its earlier template until kubectl delete pod db-0";
        let pending = "no node for a Pod: no room";
        reports("Unschedulable", &format!("0 of 2 instances are ready; {kept}: {pending}")).await;
        // So does a single instance, where the feature MaxUnavailableStatefulSet is on, or the strategy is OnDelete.
        fixture.patch("databases/db", json!({"spec": {"size": 1}})).await;
        reports("Unschedulable", &format!("0 of 1 instances are ready; {kept}: {pending}")).await;
        fixture.patch("databases/db", json!({"spec": {"size": 2}})).await;
        reports("Unschedulable", &format!("0 of 2 instances are ready; {kept}: {pending}")).await;
        let labels = json!({"controller-revision-hash": "latest"});
        fixture.patch("pods/db-0", json!({"metadata": {"labels": labels}})).await;
        reports("Unschedulable", &format!("0 of 2 instances are ready: {pending}")).await;
        // A primary that is ready blocks no replica, whatever its template is.
        let labels = json!({"controller-revision-hash": "earlier"});
        fixture.patch("pods/db-0", json!({"metadata": {"labels": labels}})).await;
        let ready = json!({"type": "Ready", "status": "True"});
        fixture.patch("pods/db-0/status", json!({"status": {"conditions": [ready]}})).await;
        reports("CrashLoopBackOff", "0 of 2 instances are ready: container postgres: no primary").await;
    })
    .await;
}

/// With the feature MaxUnavailableStatefulSet, the StatefulSet controller replaces no instance while another one is not ready, even if that
/// one has the earlier template. The reason was `RolloutInProgress` for ever.
#[tokio::test]
async fn an_instance_that_keeps_an_earlier_template_is_a_condition_with_a_way_out() {
    on_both(async |fixture| {
        let _running = start(fixture);
        fixture.create("databases", &database(json!({"size": 2, "version": "15"}))).await;
        wrote(fixture, &CREATED).await;
        let image = json!([{"op": "replace", "path": "/spec/containers/0/image", "value": "postgres:15.99"}]);
        for (name, revision) in [("db-0", "latest"), ("db-1", "earlier")] {
            create_pod(fixture, name).await;
            let labels = json!({"controller-revision-hash": revision});
            fixture.patch(&format!("pods/{name}"), json!({"metadata": {"labels": labels}})).await;
        }
        fixture.edit("pods/db-1", image).await;
        let ready = json!({"type": "Ready", "status": "True"});
        fixture.patch("pods/db-0/status", json!({"status": {"conditions": [ready]}})).await;
        let waiting = async |reason: &str, message: &str| {
            let container = json!({
                "name": "postgres", "image": "", "imageID": "", "ready": false, "restartCount": 0,
                "state": {"waiting": {"reason": reason, "message": message}},
            });
            let status = json!({ "status": {"containerStatuses": [container]} });
            fixture.patch("pods/db-1/status", status).await;
        };
        let generation = fixture.get("statefulsets/db").await["metadata"]["generation"].take();
        let status = json!({
            "observedGeneration": generation, "replicas": 2, "readyReplicas": 1, "updatedReplicas": 1,
            "updateRevision": "latest",
        });
        let reports = async |reason: &str, message: &str| {
            let is_reported = |database: &Value| {
                let ready = condition(database, "Ready").unwrap();
                ready["reason"] == reason && ready["message"] == message
            };
            fixture.until("databases/db", is_reported).await;
        };
        let kept = "db-1 keeps its earlier template until kubectl delete pod db-1";
        waiting("ImagePullBackOff", "not found").await;
        fixture.patch("statefulsets/db/status", json!({ "status": status })).await;
        let message = format!("1 of 2 instances are ready; {kept}: container postgres: not found");
        reports("ImagePullBackOff", &message).await;
        // No status says why this container does not start.
        waiting("ContainerCreating", "").await;
        reports("PodOutdated", &format!("1 of 2 instances are ready: {kept}")).await;
    })
    .await;
}

/// The node is lost, and five minutes later its Pods are deleted. The reason was `RolloutInProgress` from then on.
#[tokio::test]
async fn an_instance_that_does_not_end_is_a_condition_with_its_node() {
    on_both(async |fixture| {
        let _running = start(fixture);
        fixture.create("databases", &database(json!({"size": 1, "version": "15"}))).await;
        wrote(fixture, &CREATED).await;
        let container = json!({"name": "postgres", "image": "postgres:15"});
        let labels = fixture.get("statefulsets/db").await["spec"]["template"]["metadata"]["labels"].take();
        let spec = json!({"nodeName": "node-a", "containers": [container]});
        let pod = json!({"metadata": {"name": "db-0", "labels": labels}, "spec": spec});
        fixture.create("pods", &pod).await;
        // What the node controller writes: the rest of the condition is still the kubelet's.
        let unready = json!({"type": "Ready", "status": "False"});
        fixture.patch("pods/db-0/status", json!({"status": {"conditions": [unready]}})).await;
        fixture.delete_with("pods/db-0", json!({"gracePeriodSeconds": 120})).await;
        let is_reported = |database: &Value| {
            let ready = condition(database, "Ready").unwrap();
            let message = ready["message"].as_str().unwrap();
            ready["reason"] == "NodeNotReady"
                && message.contains("Pod db-0 has not ended on node node-a")
                && message.contains("kubectl delete node node-a")
        };
        fixture.until("databases/db", is_reported).await;
        fixture.delete_with("pods/db-0", json!({"gracePeriodSeconds": 0})).await;
        let is_over =
            |database: &Value| condition(database, "Ready").unwrap()["reason"] == "RolloutInProgress";
        fixture.until("databases/db", is_over).await;
    })
    .await;
}

/// The StatefulSet controller writes only an Event. The reason was `RolloutInProgress` for ever.
#[tokio::test]
async fn pods_that_cannot_be_created_are_a_condition() {
    on_both(async |fixture| {
        let _running = start(fixture);
        fixture.create("databases", &database(json!({"size": 2, "version": "15"}))).await;
        wrote(fixture, &CREATED).await;
        create_pod(fixture, "db-0").await;
        let has = |reason: &'static str, message: &'static str| {
            move |database: &Value| {
                let ready = condition(database, "Ready").unwrap();
                ready["reason"] == reason && ready["message"].as_str().unwrap().contains(message)
            }
        };
        let generation = fixture.get("statefulsets/db").await["metadata"]["generation"].take();
        let status = json!({"observedGeneration": generation, "replicas": 1});
        fixture.patch("statefulsets/db/status", json!({ "status": status })).await;
        let message = "only 1 of 2 Pods exist; the Events of kubectl describe statefulset db say why";
        fixture.until("databases/db", has("PodsNotCreated", message)).await;
        fixture.patch("statefulsets/db/status", json!({"status": {"replicas": 2}})).await;
        fixture.until("databases/db", has("RolloutInProgress", "0 of 2")).await;
    })
    .await;
}
