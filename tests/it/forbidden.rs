//! What a rule allows. What is told to whom none does is in `contract/forbidden.http`.

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
        // Everybody may ask what there is.
        ("GET /readyz", true),
        ("GET /version", true),
        ("GET /apis", true),
        ("GET /apis/apps/v1", true),
        ("GET /openapi/v3", true),
    ] {
        let (status, body) = ask(&server, &token, request).await;
        assert_eq!(status != StatusCode::FORBIDDEN, allowed, "{request}: {body}");
    }
    // Whom nobody limits may do everything.
    let (status, _) = ask(&server, &server.new_token("joe"), "GET /api/v1/secrets").await;
    assert_eq!(status, 200);
}
