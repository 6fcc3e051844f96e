//! Requests that once stopped the process, blocked the server or ended its controllers.

use std::collections::BTreeSet;

use super::*;

const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const PODS: &str = "/api/v1/namespaces/default/pods";

/// A CustomResourceDefinition of one version.
fn crd(name: &str, kind: &str, schema: Value) -> Value {
    let (plural, group) = name.split_once('.').expect("a name with a group");
    json!({"metadata": {"name": name}, "spec": {
        "group": group, "scope": "Namespaced", "names": {"plural": plural, "kind": kind},
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}]}})
}

/// The task of the controllers panicked. From then on, no Deployment was rolled out and no object collected.
#[tokio::test]
async fn a_pod_with_thousands_of_years_to_stop_stops() {
    let fixture = Fixture::start().await;
    for (name, secs) in [("one", 300_000_000_000_i64), ("two", i64::MAX)] {
        let mut object = deployment("nginx:1");
        object["metadata"]["name"] = name.into();
        object["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = secs.into();
        assert_eq!(fixture.post(DEPLOYMENTS, object).await.0, 201);
        let item = format!("{DEPLOYMENTS}/{name}");
        fixture.until(&item, |_, object| object["status"]["availableReplicas"] == 3).await;
        fixture.merge(&item, json!({"spec": {"replicas": 0}})).await;
        fixture.until(PODS, |_, pods| pods["items"] == json!([])).await;
    }
}

/// The time of the deadline did not fit, which ended all controllers.
#[tokio::test]
async fn a_job_with_a_vast_deadline_runs() {
    let fixture = Fixture::start().await;
    let container = json!({"name": "a", "image": "a"});
    let job = json!({"metadata": {"name": "vast"}, "spec": {"activeDeadlineSeconds": i64::MAX,
        "template": {"spec": {"restartPolicy": "Never", "containers": [container]}}}});
    let jobs = "/apis/batch/v1/namespaces/default/jobs";
    assert_eq!(fixture.post(jobs, job).await.0, 201);
    fixture.until(&format!("{jobs}/vast"), |_, job| job["status"]["active"] == 1).await;
}

/// A product overflowed, which ended all controllers.
#[tokio::test]
async fn a_vast_surge_does_not_end_the_controllers() {
    let fixture = Fixture::start().await;
    let mut object = deployment("nginx:1");
    object["metadata"]["name"] = "vast".into();
    object["spec"]["strategy"] = json!({"type": "RollingUpdate",
        "rollingUpdate": {"maxSurge": format!("{}%", i64::MAX), "maxUnavailable": "100%"}});
    // Only an update of the Pods uses `maxSurge`.
    assert_eq!(fixture.post(DEPLOYMENTS, object).await.0, 201);
    let item = format!("{DEPLOYMENTS}/vast");
    for image in ["nginx:1", "nginx:2"] {
        fixture
            .merge(
                &item,
                json!({"spec": {"template": {"spec": {"containers": [{"name": "web", "image": image}]}}}}),
            )
            .await;
        fixture
            .until(&item, |_, object| {
                object["status"]["updatedReplicas"] == 3 && object["status"]["replicas"] == 3
            })
            .await;
    }
    assert_eq!(fixture.post(DEPLOYMENTS, deployment("nginx:1")).await.0, 201);
    fixture
        .until(&format!("{DEPLOYMENTS}/web"), |_, object| object["status"]["availableReplicas"] == 3)
        .await;
}

/// The server created Pods until the memory was full, and answered no requests meanwhile.
#[tokio::test]
async fn two_thousand_million_replicas_leave_time_for_requests() {
    let fixture = Fixture::start().await;
    let mut object = deployment("nginx:1");
    object["spec"]["replicas"] = i32::MAX.into();
    assert_eq!(fixture.post(DEPLOYMENTS, object).await.0, 201);
    fixture.until(PODS, |_, pods| pods["items"].as_array().is_some_and(|pods| !pods.is_empty())).await;
    assert_eq!(fixture.delete(&format!("{DEPLOYMENTS}/web")).await.0, 200);
}

/// The deadline overflowed, and the connection broke.
#[tokio::test]
async fn a_watch_with_an_overflowing_timeout_ends_at_once() {
    let fixture = Fixture::with(quiet()).await;
    let path = format!("{CONFIG_MAPS}?watch=1&timeoutSeconds={}", i64::MAX);
    let mut watch = fixture.watch(&path).await;
    assert_eq!(watch.next().await, "ERROR 500 \"context deadline exceeded\"");
    assert_eq!(watch.next().await, "end");
}

/// Each object waited for the deletion of the others. (On kube-apiserver, an object that owns itself is stuck as well.)
#[tokio::test]
async fn a_circle_of_owners_can_be_deleted_in_the_foreground() {
    let fixture = Fixture::start().await;
    for names in [&["a", "b"][..], &["c", "d", "e"]] {
        let mut uids = Vec::new();
        for name in names {
            uids.push(
                fixture.post(CONFIG_MAPS, config_map(name, json!({}))).await.1["metadata"]["uid"].clone(),
            );
        }
        for (at, name) in names.iter().enumerate() {
            let next = (at + 1) % names.len();
            let owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": names[next], "uid": uids[next],
                "blockOwnerDeletion": true});
            let patch = json!({"metadata": {"ownerReferences": [owner]}});
            assert_eq!(fixture.merge(&format!("{CONFIG_MAPS}/{name}"), patch).await.0, 200);
        }
        let (status, _) =
            fixture.delete(&format!("{CONFIG_MAPS}/{}?propagationPolicy=Foreground", names[0])).await;
        assert_eq!(status, 200);
        for name in names {
            fixture.until(&format!("{CONFIG_MAPS}/{name}"), |status, _| status == 404).await;
        }
    }
}

/// The server looked for the replicas inside of a string, which broke the connection.
#[tokio::test]
async fn a_scale_path_into_a_text_is_refused() {
    let fixture = Fixture::with(quiet()).await;
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let mut crd = crd("things.demo.example.com", "Thing", schema);
    crd["spec"]["versions"][0]["subresources"] =
        json!({"scale": {"specReplicasPath": ".spec.a.b", "statusReplicasPath": ".status.b"}});
    let (status, body) = fixture.post(CRDS, crd).await;
    assert_eq!(status, 201, "{body}");
    let things = "/apis/demo.example.com/v1/namespaces/default/things";
    let thing = |spec: Value| json!({"apiVersion": "demo.example.com/v1", "kind": "Thing", "metadata": {"name": "a"}, "spec": spec});
    let (status, body) = fixture.post(things, thing(json!({"a": "str"}))).await;
    assert_eq!(status, 422, "{body}");
    let message =
        "Thing.demo.example.com \"a\" is invalid: .spec.a.b: Invalid value: 0: .spec.a.b is not an object";
    assert_eq!(body["message"], message);
    assert_eq!(fixture.post(things, thing(json!({}))).await.0, 201);
    let (status, body) = fixture.merge(&format!("{things}/a/scale"), json!({"spec": {"replicas": 3}})).await;
    assert_eq!((status, &body["spec"]["replicas"]), (200, &json!(3)));
}

/// Up to a thousand free node ports were skipped, and later Services got none.
#[tokio::test]
async fn all_node_ports_are_allocated_before_the_range_is_exhausted() {
    let fixture = Fixture::with(quiet()).await;
    let mut given = BTreeSet::new();
    for (name, count) in [("a", 1000), ("b", 1000), ("c", 768)] {
        let ports: Vec<Value> =
            (1..=count).map(|port| json!({"name": format!("p{port}"), "port": port})).collect();
        let service = json!({"metadata": {"name": name}, "spec": {"type": "NodePort", "ports": ports}});
        let (status, body) = fixture.post("/api/v1/namespaces/default/services", service).await;
        assert_eq!(status, 201, "{body}");
        let ports = body["spec"]["ports"].as_array().into_iter().flatten();
        given.extend(ports.filter_map(|port| port["nodePort"].as_u64()));
    }
    assert_eq!((given.len(), given.first(), given.last()), (2768, Some(&30_000), Some(&32_767)));
}

/// Each item was compared with all others, which blocked all other requests for minutes.
#[tokio::test]
async fn too_long_lists_are_refused() {
    let fixture = Fixture::with(quiet()).await;
    let mut map = config_map("held", json!({}));
    let finalizers =
        |count: usize| (0..count).map(|number| json!(format!("a.b/{number}"))).collect::<Vec<_>>();
    map["metadata"]["finalizers"] = finalizers(1000).into();
    assert_eq!(fixture.post(CONFIG_MAPS, map.clone()).await.0, 201);
    assert_eq!(fixture.delete(&format!("{CONFIG_MAPS}/held")).await.0, 200);
    map["metadata"]["finalizers"] = finalizers(1001).into();
    let refused = fixture.post(CONFIG_MAPS, map).await;
    assert_eq!(refused.0, 400);
    assert_eq!(
        refused.1["message"],
        "ConfigMap in version \"v1\" cannot be handled as a ConfigMap: metadata.finalizers has 1001 items, 1000 at most \
        are taken here"
    );
    let ports: Vec<Value> =
        (0..60_000).map(|port| json!({"name": format!("p{port}"), "port": port})).collect();
    let service =
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}, "spec": {"ports": ports}});
    let services = "/api/v1/namespaces/default/services";
    assert_eq!(fixture.post(services, service.clone()).await.0, 400);
    let applied = format!("{services}/s?fieldManager=me");
    assert_eq!(fixture.call(Method::PATCH, &applied, "application/apply-patch+yaml", service).await.0, 400);
    let ports = vec![json!({}); 100];
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": vec![json!({"ports": ports}); 1000]}});
    let refused = fixture.post(PODS, pod).await;
    assert_eq!(refused.0, 400);
    assert_eq!(
        refused.1["message"],
        "Pod in version \"v1\" cannot be handled as a Pod: its lists have more than 20000 items, which are not taken here"
    );
}

/// Code for built-in Nodes, Services and Namespaces ran for custom kinds of that name. A string as spec made it panic.
#[tokio::test]
async fn a_custom_kind_with_the_name_of_a_built_in_one_has_none_of_its_rules() {
    let fixture = Fixture::start().await;
    let kinds =
        ["Namespace", "Node", "Service", "Pod", "Event", "Lease", "Deployment", "ReplicaSet", "Secret"];
    for kind in kinds.into_iter().chain(["CustomResourceDefinition"]) {
        let (plural, group) = (format!("{}s", kind.to_lowercase()), "alike.example.com");
        let anything = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        let (status, answer) = fixture.post(CRDS, crd(&format!("{plural}.{group}"), kind, anything)).await;
        assert_eq!(status, 201, "{answer}");
        let path = format!("/apis/{group}/v1/namespaces/default/{plural}");
        fixture.until(&path, |status, _| status == 200).await;
        let mut object =
            json!({"apiVersion": format!("{group}/v1"), "kind": kind, "metadata": {"name": "default"}});
        object["spec"] = json!({});
        let (status, made) = fixture.post(&path, object).await;
        assert_eq!((status, &made["spec"], &made["status"]), (201, &json!({}), &Value::Null), "{kind}");
        for change in [json!({"spec": "x", "status": "x"}), json!({"spec": {"a": 1}}), json!({"spec": null})]
        {
            let (status, changed) = fixture.merge(&format!("{path}/default"), change.clone()).await;
            assert_eq!(
                (status, changed.get("spec").unwrap_or(&Value::Null)),
                (200, &change["spec"]),
                "{kind}"
            );
        }
        assert_eq!(fixture.delete(&format!("{path}/default")).await.0, 200, "{kind}");
        assert_eq!(fixture.get(&format!("{path}/default")).await.0, 404, "{kind}");
        assert_eq!(fixture.merge(&format!("{path}/default/finalize"), json!({})).await.0, 404, "{kind}");
    }
}

/// The depth of YAML was checked only after another parser had read it, which took minutes.
#[tokio::test]
async fn a_too_deep_applied_object_is_refused() {
    let fixture = Fixture::with(quiet()).await;
    let request = fixture.request(Method::PATCH, &format!("{CONFIG_MAPS}/a?fieldManager=me"));
    let request = request.header(header::CONTENT_TYPE, "application/apply-patch+yaml");
    let answer = request.body("{a: ".repeat(400_000)).send().await.expect("an answer");
    assert_eq!(answer.status(), 400);
    let text = answer.text().await.expect("a body");
    assert!(text.contains("error decoding YAML: yaml: exceeded max depth of 1000"), "{text}");
}

/// Items with the same name were merged into the first, with all their ports: half a minute for a hundredth of these.
#[tokio::test]
async fn a_patch_with_longer_lists_than_an_object_has_is_refused_before_it_is_merged() {
    let fixture = Fixture::with(quiet()).await;
    assert_eq!(fixture.post(DEPLOYMENTS, deployment("nginx:1")).await.0, 201);
    let ports: Vec<Value> = (0..40_000).map(|port| json!({"containerPort": port})).collect();
    let twin = json!({"name": "new", "ports": [{"containerPort": 1}]});
    for containers in [vec![json!({"name": "new", "ports": ports}), twin.clone()], vec![twin; 25_000]] {
        let patch = json!({"spec": {"template": {"spec": {"containers": containers}}}});
        let item = format!("{DEPLOYMENTS}/web");
        let strategic = "application/strategic-merge-patch+json";
        let (status, answer) = fixture.call(Method::PATCH, &item, strategic, patch).await;
        let text = answer["message"].as_str().unwrap_or_default();
        assert!(status == 400 && text.ends_with("1000 at most are taken here"), "{answer}");
    }
}
