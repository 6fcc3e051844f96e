//! Webhooks of a Service are called on 127.0.0.1, at the port in the options. kube-apiserver would need a network of Services.

use listwatch_apiserver::{ApiServer, Options};
use reqwest::header;
use serde_json::{Value, json};

use crate::{contract::Webhook, fixture};

async fn post(server: &ApiServer, path: &str, object: &Value) -> Value {
    let http = fixture::http(server.ca_pem(), "tests/v1");
    let request = http.post(format!("{}{path}", server.url())).bearer_auth(server.token());
    let request = request.header(header::CONTENT_TYPE, "application/json").body(object.to_string());
    serde_json::from_slice(&request.send().await.unwrap().bytes().await.unwrap()).unwrap()
}

/// The message of a create that a webhook of the Service `hook` is asked about.
async fn refused(ca: &str, path: &str, webhook_port: Option<u16>) -> Value {
    let server =
        ApiServer::start(Options { webhook_port, controllers: false, ..Options::default() }).await.unwrap();
    let services = "/api/v1/namespaces/default/services";
    post(&server, services, &json!({"metadata": {"name": "hook"}, "spec": {"ports": [{"port": 443}]}})).await;
    let hook = json!({
        "name": "hook.example.com", "sideEffects": "None", "admissionReviewVersions": ["v1"],
        "clientConfig": {"service": {"namespace": "default", "name": "hook", "path": path}, "caBundle": ca},
        "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["secrets"]}],
    });
    let configurations = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
    let stored = post(&server, configurations, &json!({"metadata": {"name": "h"}, "webhooks": [hook]})).await;
    assert_eq!(stored["kind"], "ValidatingWebhookConfiguration", "{stored}");
    post(&server, "/api/v1/namespaces/default/secrets", &json!({"metadata": {"name": "s"}})).await["message"]
        .take()
}

#[tokio::test]
async fn a_webhook_of_a_service_is_called_at_the_port_of_webhooks() {
    let webhook = Webhook::start().await;
    let port = webhook.url.rsplit(':').next().unwrap().parse().unwrap();
    // A webhook without a script denies.
    let message = "admission webhook \"hook.example.com\" denied the request without explanation";
    assert_eq!(refused(&webhook.ca, "/deny", Some(port)).await, message);
    // As in Go, its own certificate is trusted, which envtest uses.
    assert_eq!(refused(&webhook.certificate, "/deny/", Some(port)).await, message);
    let message = "Internal error occurred: failed calling webhook \"hook.example.com\": failed to call webhook: Post \
        \"https://hook.default.svc:443/deny?timeout=10s\": no endpoints available for service \"hook\"";
    assert_eq!(refused(&webhook.ca, "/deny", None).await, message);
}
