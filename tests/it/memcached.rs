//! Tests the operator of Memcached, on both servers and with the permissions of its ClusterRole. No Deployment controller runs, so
//! each write of the operator is known.

use listwatch::watch::Lists;
use listwatch_control_plane::{eventually, saw};
use listwatch_operators::BuiltIn;
use serde_json::{Value, json};

use crate::{
    client::condition,
    fixture::{Fixture, Kind},
    in_process::{self, Running},
    manifests,
};

fn start(fixture: &Fixture) -> Running {
    Running::start(fixture, BuiltIn::Memcached)
}

async fn on_both(script: impl AsyncFn(&Fixture) + Copy + Send + 'static) {
    on_each_of(&[Kind::InProcess, Kind::RealHttp1], script).await;
}

async fn on_each_of(kinds: &[Kind], script: impl AsyncFn(&Fixture) + Copy + Send + 'static) {
    in_process::on(BuiltIn::Memcached, kinds, script).await;
}

fn cache(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "cache.example.com/v1alpha1", "kind": "Memcached", "metadata": {"name": name}, "spec": spec})
}

/// Waits until the status describes the newest spec.
async fn until_reported(fixture: &Fixture) -> Value {
    let is_reported =
        |cache: &Value| cache["status"]["observedGeneration"] == cache["metadata"]["generation"];
    fixture.until("memcacheds/cache", is_reported).await
}

/// Waits until the operator has written these lines, and checks that it has written nothing else.
async fn wrote(fixture: &Fixture, expected: &[&str]) {
    eventually(&format!("{expected:?}"), async || (fixture.written().len() >= expected.len()).then_some(()))
        .await;
    assert_eq!(fixture.transcript().await, expected);
}

const CREATED: [&str; 3] = ["POST deployments 201", "POST services 201", "PATCH memcacheds/cache/status 200"];

#[tokio::test]
async fn a_memcached_gets_a_deployment_and_a_headless_service_that_stay_as_wanted() {
    on_both(async |fixture| {
        let _running = start(fixture);
        fixture.create("memcacheds", &cache("cache", json!({"size": 3}))).await;
        let reported = until_reported(fixture).await;
        wrote(fixture, &CREATED).await;
        assert_eq!(condition(&reported, "Ready").unwrap()["reason"], "RolloutInProgress");
        let service = fixture.get("services/cache").await["spec"].clone();
        assert_eq!(service["clusterIP"], "None");
        // A name would mean the first container with a port of that name, such as a sidecar's.
        assert_eq!(service["ports"][0]["targetPort"], 11211);
        let container = |deployment: &Value| deployment["spec"]["template"]["spec"]["containers"][0].clone();
        let deployment = fixture.get("deployments/cache").await;
        assert_eq!(deployment["spec"]["replicas"], 3);
        assert_eq!(container(&deployment)["image"], "memcached:1.6");
        assert_eq!(container(&deployment)["command"], json!(["memcached", "-m", "64"]));
        let port = &container(&deployment)["ports"][0];
        assert_eq!((&port["containerPort"], &port["name"]), (&json!(11211), &json!("memcached")));
        for probe in ["livenessProbe", "readinessProbe"] {
            assert_eq!(container(&deployment)[probe]["tcpSocket"], json!({"port": "memcached"}), "{probe}");
        }

        // Scaled by the subresource.
        fixture.patch("memcacheds/cache/scale", json!({"spec": {"replicas": 5}})).await;
        wrote(fixture, &["PATCH deployments/cache 200", "PATCH memcacheds/cache/status 200"]).await;
        assert_eq!(fixture.get("deployments/cache").await["spec"]["replicas"], 5);

        // More memory, in a larger unit.
        fixture.patch("memcacheds/cache", json!({"spec": {"memoryMb": 882}})).await;
        wrote(fixture, &["PATCH deployments/cache 200", "PATCH memcacheds/cache/status 200"]).await;
        let deployment = fixture.get("deployments/cache").await;
        assert_eq!(container(&deployment)["resources"]["limits"]["memory"], "1Gi");

        // Drift. Fields of other writers stay.
        let edited = json!({"spec": {"replicas": 1, "minReadySeconds": 7}});
        fixture.patch("deployments/cache", edited).await;
        wrote(fixture, &["PATCH deployments/cache 200"]).await;
        let deployment = fixture.get("deployments/cache").await;
        assert_eq!(
            (&deployment["spec"]["replicas"], &deployment["spec"]["minReadySeconds"]),
            (&json!(5), &json!(7))
        );
        // A container without any of its fields comes back as it was. The patch replaced fields that were not there.
        let wanted = container(&deployment);
        let containers = json!([{"name": "memcached", "image": "other"}]);
        let edited = json!({"spec": {"template": {"spec": {"containers": containers}}}});
        fixture.patch("deployments/cache", edited).await;
        wrote(fixture, &["PATCH deployments/cache 200"]).await;
        let restored = container(&fixture.get("deployments/cache").await);
        for field in
            ["image", "command", "ports", "livenessProbe", "readinessProbe", "resources", "securityContext"]
        {
            assert_eq!(restored[field], wanted[field], "{field}");
        }
        fixture.patch("services/cache", json!({"spec": {"ports": [{"port": 11211, "targetPort": 1}]}})).await;
        wrote(fixture, &["PATCH services/cache 200"]).await;
        // Families of addresses that the cluster has not are valid without a selector alone.
        for families in [json!({"ipFamilyPolicy": "RequireDualStack"}), json!({"ipFamilies": ["IPv6"]})] {
            let mut edited = json!({ "spec": families });
            edited["spec"]["selector"] = json!(null);
            fixture.patch("services/cache", edited).await;
            wrote(fixture, &["PATCH services/cache 422", "PATCH services/cache 200"]).await;
            let spec = fixture.get("services/cache").await["spec"].take();
            assert_eq!(
                (&spec["selector"]["app.kubernetes.io/instance"], &spec["ipFamilies"]),
                (&json!("cache"), &json!(["IPv4"]))
            );
        }
        fixture.delete("services/cache").await;
        wrote(fixture, &["POST services 201"]).await;

        // For a HorizontalPodAutoscaler.
        fixture.patch("deployments/cache/status", json!({"status": {"replicas": 2}})).await;
        wrote(fixture, &["PATCH memcacheds/cache/status 200"]).await;
        let status = fixture.get("memcacheds/cache/scale").await["status"].take();
        let selector = "app.kubernetes.io/instance=cache,app.kubernetes.io/managed-by=memcached-operator,app.kubernetes.io/name=memcached";
        assert_eq!(status, json!({"replicas": 2, "selector": selector}));

        fixture.delete("memcacheds/cache").await;
        fixture.until_gone("deployments/cache").await;
        fixture.until_gone("services/cache").await;
    })
    .await;
}

#[tokio::test]
async fn the_nodes_are_the_ready_pods_and_are_written_only_when_they_change() {
    on_both(async |fixture| {
        let pod = async |name: &str, instance: &str| {
            let labels = json!({
                "app.kubernetes.io/instance": instance, "app.kubernetes.io/managed-by": "memcached-operator",
            });
            let spec = json!({"containers": [{"name": "memcached", "image": "memcached:1.6"}]});
            let metadata = json!({"name": name, "labels": labels});
            fixture.create("pods", &json!({"metadata": metadata, "spec": spec})).await;
        };
        let ready = async |name: &str, status: &str| {
            let conditions = json!([{"type": "Ready", "status": status}]);
            fixture
                .patch(&format!("pods/{name}/status"), json!({"status": {"conditions": conditions}}))
                .await;
        };
        let nodes = async |expected: &[&str]| {
            fixture.until("memcacheds/cache", |cache| cache["status"]["nodes"] == json!(expected)).await;
        };
        let status = "PATCH memcacheds/cache/status 200";
        let _running = start(fixture);
        fixture.create("memcacheds", &cache("cache", json!({"size": 3}))).await;
        wrote(fixture, &CREATED).await;
        for name in ["b", "a", "pending"] {
            pod(name, "cache").await;
        }
        pod("other", "other").await;
        ready("other", "True").await;
        ready("b", "True").await;
        nodes(&["b"]).await;
        ready("a", "True").await;
        nodes(&["a", "b"]).await;
        ready("b", "False").await;
        nodes(&["a"]).await;
        fixture.delete_with("pods/a", json!({"gracePeriodSeconds": 0})).await;
        nodes(&[]).await;
        wrote(fixture, &[status; 4]).await;
    })
    .await;
}

/// For each point at which a kill can interrupt the writes of a new object and of a change: the next start writes the rest.
#[tokio::test]
async fn an_operator_that_was_killed_between_two_writes_writes_the_rest() {
    on_both(async |fixture| {
        let running = start(fixture);
        let created = fixture.create("memcacheds", &cache("cache", json!({"size": 3}))).await;
        wrote(fixture, &CREATED).await;
        drop(running);
        let is_unreported = json!({"status": null});
        let [deployment, service, status] = CREATED;
        let written: [(&[&str], &[&str]); 4] = [
            (&["deployments/cache", "services/cache"], &[deployment, service, status]),
            (&["services/cache"], &[service, status]),
            (&["deployments/cache"], &[deployment, status]),
            (&[], &[status]),
        ];
        for (missing, rest) in written {
            for child in missing {
                fixture.delete(child).await;
            }
            fixture.patch("memcacheds/cache/status", is_unreported.clone()).await;
            let running = start(fixture);
            wrote(fixture, rest).await;
            drop(running);
        }
        // The Deployment has the new size, and the status does not.
        fixture.patch("memcacheds/cache", json!({"spec": {"size": 4}})).await;
        fixture.patch("deployments/cache", json!({"spec": {"replicas": 4}})).await;
        let running = start(fixture);
        wrote(fixture, &[status]).await;
        drop(running);

        // Nothing is left to write but the answer to a change that comes after the start.
        let running = start(fixture);
        fixture.patch("memcacheds/cache", json!({"spec": {"size": 5}})).await;
        wrote(fixture, &["PATCH deployments/cache 200", status]).await;
        drop(running);

        // The address of a Service never changes.
        let metadata = fixture.get("services/cache").await["metadata"].take();
        let (labels, owners) = (&metadata["labels"], &metadata["ownerReferences"]);
        let metadata = json!({"name": "cache", "labels": labels, "ownerReferences": owners});
        fixture.delete("services/cache").await;
        fixture.create("services", &json!({"metadata": metadata, "spec": {"ports": [{"port": 1}]}})).await;
        let running = start(fixture);
        fixture.until("services/cache", |service| service["spec"]["clusterIP"] == "None").await;
        drop(running);
        assert!(fixture.transcript().await.contains(&"DELETE services/cache 200".to_owned()));
        for child in ["deployments", "services"] {
            let children = fixture.get(child).await;
            let owned =
                |child: &&Value| child["metadata"]["ownerReferences"][0]["uid"] == created["metadata"]["uid"];
            assert_eq!(children["items"].as_array().unwrap().iter().filter(owned).count(), 1, "{child}");
        }
    })
    .await;
}

#[tokio::test]
async fn the_schema_refuses_a_size_out_of_range_and_a_name_that_no_service_can_have() {
    on_both(async |fixture| {
        let path = fixture.path("memcacheds");
        for (name, spec, field) in [
            ("cache", json!({"size": -1}), "spec.size"),
            ("cache", json!({"size": 101}), "spec.size"),
            ("cache", json!({}), "spec.size"),
            ("cache", json!({"size": 1, "memoryMb": 8}), "spec.memoryMb"),
            ("1-cache", json!({"size": 1}), "metadata.name"),
        ] {
            let error = fixture.try_create(&path, &cache(name, spec)).await.unwrap_err();
            assert_eq!(error.code(), Some(422), "{error}");
            assert!(error.to_string().contains(field), "{error}");
        }
    })
    .await;
}

#[tokio::test]
async fn the_manifests_allow_exactly_the_requests_of_the_operator() {
    on_each_of(&[Kind::RealHttp1], async |fixture| {
        if fixture.lists == Lists::Streaming {
            return;
        }
        // Children that cannot be corrected, only replaced.
        let created = fixture.create("memcacheds", &cache("cache", json!({"size": 3}))).await;
        let labels = json!({"app.kubernetes.io/managed-by": "memcached-operator"});
        let owner = json!({
            "apiVersion": "cache.example.com/v1alpha1", "kind": "Memcached", "name": "cache",
            "uid": created["metadata"]["uid"], "controller": true,
        });
        let metadata = json!({"name": "cache", "labels": labels, "ownerReferences": [owner]});
        let ports = json!([{"port": 1}]);
        fixture.create("services", &json!({"metadata": metadata, "spec": {"ports": ports}})).await;
        let containers = json!([{"name": "other", "image": "other"}]);
        let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": containers}});
        let spec = json!({"selector": {"matchLabels": {"a": "b"}}, "template": template});
        fixture.create("deployments", &json!({"metadata": metadata, "spec": spec})).await;
        let running = start(fixture);
        fixture.until("services/cache", |service| service["spec"]["clusterIP"] == "None").await;
        fixture.until("deployments/cache", |deployment| deployment["spec"]["replicas"] == 3).await;
        let has_labels = |child: &Value| {
            child["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "memcached-operator"
        };
        for child in ["deployments/cache", "services/cache"] {
            let unlabelled = json!({"metadata": {"labels": {"app.kubernetes.io/managed-by": null}}});
            fixture.patch(child, unlabelled).await;
            fixture.until(child, has_labels).await;
        }
        until_reported(fixture).await;
        drop(running);
        let mut allowed = manifests::allowed(&manifests::role("memcached"));
        // Never requested, but checked by an admission plugin: see the file.
        assert!(allowed.remove("update memcacheds/finalizers.cache.example.com"));
        // Only after a conflict, and for a repeated Event.
        let rare = ["get memcacheds.cache.example.com", "patch events.events.k8s.io"].map(str::to_owned);
        rare.iter().for_each(|request| assert!(allowed.remove(request), "{request}"));
        eventually("the audit log to have the allowed requests, and no others", async || {
            let mut used = manifests::used(fixture.control_plane(), &fixture.operator_user());
            used.retain(|request| !rare.contains(request));
            saw("used", format!("{used:?}"));
            (used == allowed).then_some(())
        })
        .await;
    })
    .await;
}
