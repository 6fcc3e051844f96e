//! What a token without the permission is told: 403, in the words that our diagnosis and everybody's search rely on.

use http::StatusCode;
use listwatch::apiserver::{ApiServer, Options, Rule};
use serde_json::{Value, json};

/// `GET /path`, as a user.
async fn ask(server: &ApiServer, token: &str, request: &str) -> (StatusCode, Value) {
    // A second call fails, and does not matter.
    let _ = tokio_rustls::rustls::crypto::ring::default_provider().install_default();
    let ca = reqwest::Certificate::from_pem(server.ca_pem().as_bytes()).unwrap();
    let http = reqwest::Client::builder().tls_certs_only([ca]).build().unwrap();
    let (method, path) = request.split_once(' ').unwrap();
    let method = method.parse().unwrap();
    let request = http.request(method, server.url() + path).bearer_auth(token).body("{}");
    let answer = request.header("content-type", "application/json").send().await.unwrap();
    let status = answer.status();
    let text = answer.text().await.unwrap();
    (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
}

fn rule(rule: Value, namespace: Option<&str>) -> Rule {
    let mut rule: Rule = serde_json::from_value(rule).unwrap();
    rule.namespace = namespace.map(str::to_owned);
    rule
}

/// The texts are those that a real server with RBAC gave to the same requests.
#[tokio::test]
async fn what_no_rule_allows_is_refused_in_the_words_of_the_real_server() {
    let server = ApiServer::start(Options::default()).await.unwrap();
    let token = server.new_token("jane");
    server.limit("jane", Vec::new());
    for (request, message, details) in [
        (
            "GET /api/v1/namespaces/default/pods",
            r#"pods is forbidden: User "jane" cannot list resource "pods" in API group "" in the namespace "default""#,
            json!({"kind": "pods"}),
        ),
        (
            "GET /api/v1/namespaces/default/pods?fieldSelector=metadata.name%3Dx",
            r#"pods "x" is forbidden: User "jane" cannot list resource "pods" in API group "" in the namespace "default""#,
            json!({"name": "x", "kind": "pods"}),
        ),
        (
            "GET /api/v1/namespaces/default",
            r#"namespaces "default" is forbidden: User "jane" cannot get resource "namespaces" in API group "" in the namespace "default""#,
            json!({"name": "default", "kind": "namespaces"}),
        ),
        (
            "GET /apis/nope.io/v1/things/x",
            r#"things.nope.io "x" is forbidden: User "jane" cannot get resource "things" in API group "nope.io" at the cluster scope"#,
            json!({"name": "x", "group": "nope.io", "kind": "things"}),
        ),
        (
            "PATCH /apis/apps/v1/namespaces/default/deployments/x/scale",
            r#"deployments.apps "x" is forbidden: User "jane" cannot patch resource "deployments/scale" in API group "apps" in the namespace "default""#,
            json!({"name": "x", "group": "apps", "kind": "deployments"}),
        ),
        (
            "POST /api/v1/namespaces",
            r#"namespaces is forbidden: User "jane" cannot create resource "namespaces" in API group "" at the cluster scope"#,
            json!({"kind": "namespaces"}),
        ),
        (
            "GET /api/v1/nodes?watch=1",
            r#"nodes is forbidden: User "jane" cannot watch resource "nodes" in API group "" at the cluster scope"#,
            json!({"kind": "nodes"}),
        ),
        (
            "DELETE /api/v1/namespaces/default/pods",
            r#"pods is forbidden: User "jane" cannot deletecollection resource "pods" in API group "" in the namespace "default""#,
            json!({"kind": "pods"}),
        ),
        ("GET /metrics", r#"forbidden: User "jane" cannot get path "/metrics""#, json!({})),
        ("GET /livez/ping", r#"forbidden: User "jane" cannot get path "/livez/ping""#, json!({})),
    ] {
        let (status, body) = ask(&server, &token, request).await;
        assert_eq!((status.as_u16(), &body["reason"]), (403, &json!("Forbidden")), "{request}");
        assert_eq!((body["message"].as_str().unwrap(), &body["details"]), (message, &details), "{request}");
    }
    for path in ["/readyz", "/version", "/apis", "/apis/apps/v1", "/openapi/v3"] {
        assert_eq!(ask(&server, &token, &format!("GET {path}")).await.0, 200, "{path}");
    }
}

#[tokio::test]
async fn a_rule_allows_what_it_says_and_where_it_says() {
    let server = ApiServer::start(Options::default()).await.unwrap();
    let token = server.new_token("jane");
    let reads = json!({"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list", "get"]});
    let one =
        json!({"apiGroups": ["*"], "resources": ["secrets"], "verbs": ["*"], "resourceNames": ["mine"]});
    let scales = json!({"apiGroups": ["apps"], "resources": ["*/scale"], "verbs": ["get"]});
    let metrics = json!({"nonResourceURLs": ["/metrics"], "verbs": ["get"]});
    let rules = vec![rule(reads, Some("default")), rule(one, None), rule(scales, None), rule(metrics, None)];
    server.limit("jane", rules);
    for (request, allowed) in [
        ("GET /api/v1/namespaces/default/configmaps", true),
        ("GET /api/v1/namespaces/default/configmaps/kube-root-ca.crt", true),
        ("GET /api/v1/namespaces/default/configmaps?watch=1", false),
        ("GET /api/v1/namespaces/kube-system/configmaps", false),
        ("GET /api/v1/configmaps", false),
        ("DELETE /api/v1/namespaces/default/secrets/mine", true),
        ("GET /api/v1/namespaces/default/secrets?fieldSelector=metadata.name%3Dmine", true),
        ("GET /api/v1/namespaces/default/secrets", false),
        // Its name is in the body, which nobody has read yet.
        ("POST /api/v1/namespaces/default/secrets", false),
        ("GET /apis/apps/v1/namespaces/default/deployments/web/scale", true),
        ("GET /apis/apps/v1/namespaces/default/deployments/web", false),
        ("GET /metrics", true),
    ] {
        let (status, body) = ask(&server, &token, request).await;
        assert_eq!(status != StatusCode::FORBIDDEN, allowed, "{request}: {body}");
    }
    // Whom nobody limits may do everything.
    let (status, _) = ask(&server, &server.new_token("joe"), "GET /api/v1/secrets").await;
    assert_eq!(status, 200);
}
