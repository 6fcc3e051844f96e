//! The requests that the rules of a user allow. The answers to other requests are in `apiserver/contract/forbidden.http`.

use http::StatusCode;
use listwatch_apiserver::{ApiServer, Options, Rule};
use serde_json::{Value, json};

use crate::fixture::http;

/// Sends `GET /path` with the token of a user.
async fn send(server: &ApiServer, token: &str, request: &str) -> (StatusCode, Value) {
    let (method, path) = request.split_once(' ').unwrap();
    let http = http(server.ca_pem(), "tests");
    let request = http.request(method.parse().unwrap(), server.url() + path).bearer_auth(token).body("{}");
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
async fn a_rule_allows_only_its_verbs_resources_names_and_namespace() {
    let server = ApiServer::start(Options::default()).await.unwrap();
    let token = server.new_token("jane");
    let reads = json!({"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list", "get"]});
    let one_secret =
        json!({"apiGroups": ["*"], "resources": ["secrets"], "verbs": ["*"], "resourceNames": ["mine"]});
    let scales = json!({"apiGroups": ["apps"], "resources": ["*/scale"], "verbs": ["get"]});
    let metrics = json!({"nonResourceURLs": ["/metrics", "/debug/*"], "verbs": ["get"]});
    let rules =
        vec![rule(reads, Some("default")), rule(one_secret, None), rule(scales, None), rule(metrics, None)];
    server.set_rules("jane", rules);
    for (request, allowed) in [
        ("GET /api/v1/namespaces/default/configmaps", true),
        ("GET /api/v1/namespaces/default/configmaps/kube-root-ca.crt", true),
        ("GET /api/v1/namespaces/default/configmaps?watch=1", false),
        ("GET /api/v1/namespaces/kube-system/configmaps", false),
        ("GET /api/v1/configmaps", false),
        ("DELETE /api/v1/namespaces/default/secrets/mine", true),
        ("GET /api/v1/namespaces/default/secrets?fieldSelector=metadata.name%3Dmine", true),
        ("GET /api/v1/namespaces/default/secrets", false),
        // The name is in the body, which is read after the authorization.
        ("POST /api/v1/namespaces/default/secrets", false),
        ("GET /apis/apps/v1/namespaces/default/deployments/web/scale", true),
        ("GET /apis/apps/v1/namespaces/default/deployments/web", false),
        ("GET /metrics", true),
        ("GET /metrics/slis", false),
        ("GET /debug/pprof", true),
        ("GET /debug", false),
        // Every user may use discovery.
        ("GET /readyz", true),
        ("GET /version", true),
        ("GET /version/", true),
        ("GET /apis", true),
        ("GET /apis/apps/v1", true),
        ("GET /openapi/v3", true),
    ] {
        let (status, body) = send(&server, &token, request).await;
        assert_eq!(status != StatusCode::FORBIDDEN, allowed, "{request}: {body}");
    }
    // A user without limits has full access.
    let (status, _) = send(&server, &server.new_token("joe"), "GET /api/v1/secrets").await;
    assert_eq!(status, 200);
}

#[tokio::test]
async fn a_user_that_may_impersonate_another_has_the_rules_of_the_other() {
    let server = ApiServer::start(Options::default()).await.unwrap();
    let token = server.new_token("joe");
    let impersonates = json!({"apiGroups": [""], "resources": ["users"], "verbs": ["impersonate"], "resourceNames": ["jane"]});
    let reads = json!({"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"]});
    server.set_rules("joe", vec![rule(impersonates, None)]);
    server.set_rules("jane", vec![rule(reads, None)]);
    let http = http(server.ca_pem(), "tests");
    for (path, other, expected) in [
        ("/api/v1/configmaps", "jane", StatusCode::OK),
        ("/api/v1/secrets", "jane", StatusCode::FORBIDDEN),
        ("/api/v1/configmaps", "admin", StatusCode::FORBIDDEN),
        ("/api/v1/configmaps", "", StatusCode::FORBIDDEN),
    ] {
        let request = http.get(server.url() + path).bearer_auth(&token).header("impersonate-user", other);
        assert_eq!(request.send().await.unwrap().status(), expected, "{path} as {other:?}");
    }
    let users: Vec<_> = server.requests().into_iter().map(|request| request.user).collect();
    assert_eq!(users, ["jane", "jane", "joe", "joe"]);
}
