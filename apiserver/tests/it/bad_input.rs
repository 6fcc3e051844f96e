//! Bad input: the embedded API server refuses it as kube-apiserver does, or with an equally clear message.

use reqwest::Method;
use serde_json::json;

use crate::{
    fixture::{Answer, Fixture, Kind, on},
    go_terms::without_go_terms,
};

const TABLE: &str = include_str!("data/bad_input.txt");

/// The status and reason, such as `422 Invalid`, and the beginning of the message.
type Expected<'a> = (&'a str, &'a str);

struct Row<'a> {
    what: &'a str,
    request: &'a str,
    media_type: &'a str,
    body: &'a str,
    answer: Expected<'a>,
}

fn cells(line: &str) -> Vec<&str> {
    line.split(" | ").collect()
}

fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'))
}

fn rows() -> impl Iterator<Item = Row<'static>> {
    lines(TABLE).map(|line| match cells(line)[..] {
        [what, request, media_type, body, status, message] => {
            Row { what, request, media_type, body, answer: (status, message) }
        }
        _ => panic!("{line}"),
    })
}

/// Expands `<3*x>` to `xxx`.
fn expand(text: &str) -> Vec<u8> {
    let (mut bytes, mut rest) = (Vec::new(), if text == "-" { "" } else { text });
    while let Some((before, after)) = rest.split_once('<') {
        let (inner, after) = after.split_once('>').unwrap();
        bytes.extend_from_slice(before.as_bytes());
        match (inner, inner.split_once('*')) {
            ("nl", _) => bytes.push(b'\n'),
            ("ff", _) => bytes.extend([0xff, 0xfe]),
            (_, Some((times, part))) => bytes.extend(part.repeat(times.parse().unwrap()).bytes()),
            (_, None) => panic!("<{inner}> in {text}"),
        }
        rest = after;
    }
    bytes.extend_from_slice(rest.as_bytes());
    bytes
}

/// Sends the request of a row. Returns the status and reason, and the message, in the format of the table.
async fn send(fixture: &Fixture, row: &Row<'_>) -> (String, String) {
    let (method, path) = row.request.split_once(' ').unwrap();
    let path = path.replacen("CM", &fixture.path("configmaps"), 1);
    let path = path.replacen("WEB", &fixture.path("mywebservers"), 1);
    let media_type = match row.media_type {
        "json" | "-" => "application/json",
        "yaml" => "application/yaml",
        "merge" => "application/merge-patch+json",
        "json-patch" => "application/json-patch+json",
        "strategic" => "application/strategic-merge-patch+json",
        "apply" => "application/apply-patch+yaml",
        "text" => "text/plain",
        unknown => panic!("{unknown}"),
    };
    let method = Method::from_bytes(method.as_bytes()).unwrap();
    status_and_message(fixture.send(method, &path, media_type, expand(row.body)).await)
}

fn status_and_message(answer: Answer) -> (String, String) {
    let Answer { status, body, .. } = answer;
    if status < 300 {
        return (format!("{status} -"), "-".to_owned());
    }
    let reason = body["reason"].as_str().unwrap_or("-");
    let message = body["message"].as_str().or(body.as_str()).unwrap_or_default();
    (format!("{status} {reason}"), without_go_terms(message.trim()))
}

#[tokio::test]
async fn bad_input_gets_the_error_of_kube_apiserver() {
    on(&[Kind::Embedded, Kind::Real], async |fixture| {
        fixture.create("configmaps", &json!({"metadata": {"name": "there"}, "data": {"a": "b"}})).await;
        let mut differences = Vec::new();
        for row in rows() {
            let (status, message) = row.answer;
            let (got, text) = send(fixture, &row).await;
            if got != status || !text.starts_with(message) {
                let text: String = text.chars().take(200).collect();
                differences.push(format!("{}: {status} | {message}\n    answered: {got} | {text}", row.what));
            }
            if got.starts_with("20") {
                // The object was created although it should have been refused.
                let path = fixture.path("configmaps/bad");
                fixture.send(Method::DELETE, &path, "application/json", Vec::new()).await;
            }
        }
        assert!(differences.is_empty(), "{}", differences.join("\n"));
        fixture.get("configmaps/there").await;
    })
    .await;
}

/// Such a rule once blocked all other requests until its end. Then its time was limited, and so on a busy machine a rule failed that
/// kube-apiserver accepts.
#[tokio::test]
async fn a_cel_rule_above_the_cost_limit_gets_the_error_of_kube_apiserver() {
    on(&[Kind::Embedded, Kind::Real], async |fixture| {
        let rule = "self.items.all(a, self.items.all(b, a + b >= 0))";
        let group = format!("{}.example.com", fixture.namespace);
        let items = json!({"type": "array", "maxItems": 1000, "items": {"type": "integer"}});
        let spec = json!({"type": "object", "properties": {"items": items}, "x-kubernetes-validations": [{"rule": rule}]});
        let crd = json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("costs.{group}")},
            "spec": {"group": group, "scope": "Namespaced", "names": {"plural": "costs", "kind": "Cost"}, "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}}}]},
        });
        fixture.install(&crd).await;
        let path = format!("/apis/{group}/v1/namespaces/{}/costs", fixture.namespace);
        let cost = |items: usize| {
            json!({"apiVersion": format!("{group}/v1"), "kind": "Cost", "metadata": {"name": "a"},
                "spec": {"items": vec![1; items]}})
        };
        let answer = fixture.try_create(&path, &cost(378)).await;
        let expected = format!(
            "Cost.{group} \"a\" is invalid: spec: Invalid value: \"object\": 'operation cancelled: actual cost limit exceeded': \
            no further validation rules will be run due to call cost exceeds limit for rule: {rule}"
        );
        assert_eq!(status_and_message(answer), ("422 Invalid".to_owned(), expected));
        let cheap = fixture.try_create(&path, &cost(377)).await;
        assert_eq!(cheap.status, 201, "{}", cheap.body);
    })
    .await;
}

/// Each unknown field once had a Warning header of its own, and no client accepts a hundred thousand headers.
#[tokio::test]
async fn warnings_of_unknown_fields_are_limited_as_on_kube_apiserver() {
    on(&[Kind::Embedded, Kind::Real], async |fixture| {
        let unknown = || (0..300).map(|number| (format!("unknown{number:03}"), json!(1)));
        let mut map = json!({"metadata": {"name": "u"}});
        map.as_object_mut().unwrap().extend(unknown());
        let mut web = json!({"apiVersion": "k8sobjects.gsa.com/v2", "kind": "MyWebserver", "metadata": {"name": "u"},
            "spec": {"image": "nginx"}});
        web["spec"].as_object_mut().unwrap().extend(unknown());
        let mut warnings = Vec::new();
        for (resource, object) in [("configmaps", map), ("mywebservers", web)] {
            let path = fixture.path(resource) + "?dryRun=All";
            warnings.push((resource, fixture.try_create(&path, &object).await.warnings.len()));
        }
        // The decoder of built-in kinds stops after 100. All warnings together have at most about 4,096 characters.
        assert_eq!(warnings, [("configmaps", 100), ("mywebservers", 133)]);
    })
    .await;
}
