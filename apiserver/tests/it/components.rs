//! The components of a cluster on the embedded server, without its own controllers. The test is the kubelet.

use listwatch_apiserver::{ApiServer, Options};
use listwatch_control_plane::{Components, eventually};
use reqwest::{Client, Method, header};
use serde_json::{Value, json};

use crate::fixture;

const COMPONENTS: [&str; 2] = ["kube-controller-manager", "kube-scheduler"];

const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
const PODS: &str = "/api/v1/namespaces/default/pods";

/// Sends a request as the administrator.
async fn send(http: &Client, server: &ApiServer, method: Method, path: &str, body: &Value) -> Value {
    let content_type =
        if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
    let request = http.request(method, format!("{}{path}", server.url())).bearer_auth(server.token());
    let request = request.header(header::CONTENT_TYPE, content_type).body(body.to_string());
    serde_json::from_slice(&request.send().await.unwrap().bytes().await.unwrap()).unwrap()
}

/// kube-scheduler binds Pods with `pods/binding`, which was not served.
#[tokio::test]
async fn kube_controller_manager_and_kube_scheduler_run_a_deployment() {
    if !Components::are_there(&COMPONENTS) {
        return;
    }
    let server = ApiServer::start(Options { controllers: false, ..Options::default() }).await.unwrap();
    let _components = Components::start(&COMPONENTS, &server.kubeconfig());
    let http = fixture::http(server.ca_pem(), "tests/v1");
    let send = async |method, path: &str, body: Value| send(&http, &server, method, path, &body).await;

    let room = json!({"cpu": "4", "memory": "8Gi", "pods": "100"});
    let ready = json!([{"type": "Ready", "status": "True"}]);
    let node = json!({"metadata": {"name": "n"},
        "status": {"allocatable": room, "capacity": room, "conditions": ready}});
    send(Method::POST, "/api/v1/nodes", node).await;
    let template = json!({"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": "nginx"}]}});
    let spec = json!({"replicas": 2, "selector": {"matchLabels": {"app": "web"}}, "template": template});
    send(Method::POST, DEPLOYMENTS, json!({"metadata": {"name": "web"}, "spec": spec})).await;

    let bound = eventually("two Pods on the node", async || {
        let pods = send(Method::GET, PODS, Value::Null).await["items"].take();
        let is_bound = |pod: &&Value| pod["spec"]["nodeName"] == "n";
        let names = pods.as_array()?.iter().filter(is_bound).map(|pod| pod["metadata"]["name"].clone());
        Some(names.collect::<Vec<Value>>()).filter(|names| names.len() == 2)
    });
    for name in bound.await {
        let path = format!("{PODS}/{}/status", name.as_str().unwrap());
        send(Method::PATCH, &path, json!({"status": {"phase": "Running", "conditions": ready}})).await;
    }
    eventually("the Deployment to be ready", async || {
        let deployment = send(Method::GET, &format!("{DEPLOYMENTS}/web"), Value::Null).await;
        (deployment["status"]["readyReplicas"] == 2).then_some(())
    })
    .await;
}
