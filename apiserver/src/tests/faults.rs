//! Each fault, as a client sees it. The expected answers were measured on kube-apiserver 1.36. Those of older
//! versions are from their source.

use std::num::NonZeroUsize;

use super::*;
use crate::{Checkpoint, HeldRequest, Planned, fault_help};

fn planned(text: &str) -> Planned {
    text.parse().expect(text)
}

async fn fixture(faults: &[&str]) -> Fixture {
    let fixture = Fixture::with(quiet()).await;
    for text in faults {
        fixture.server.fault(planned(text));
    }
    fixture
}

/// The answer over HTTP/1.1, as far as it comes: the head in lower case, and the body.
async fn answered(fixture: &Fixture, line: &str, body: &str) -> (String, String) {
    let mut stream = fixture.connect().await;
    let token = fixture.server.token();
    let length = body.len();
    let request = format!(
        "{line} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).await.expect("a connection");
    let mut answer = Vec::new();
    // A cut stream is an error here, and some tests expect it.
    let _ = stream.read_to_end(&mut answer).await;
    let answer = String::from_utf8(answer).expect("text");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
    (head.to_lowercase(), body.to_owned())
}

#[tokio::test]
async fn a_request_can_get_an_error_of_kube_apiserver() {
    let status = |code: u16, reason: &str, message: &str| {
        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message,
            "reason": reason, "code": code})
    };
    for (fault, head, body) in [
        ("unauthorized", "401 Unauthorized, application/json", status(401, "Unauthorized", "Unauthorized")),
        (
            "too-many-requests,retry-after=7",
            "429 Too Many Requests, text/plain; charset=utf-8, Retry-After: 7",
            json!("Too many requests, please try again later.\n"),
        ),
        ("initializing", "429 Too Many Requests, application/json, Retry-After: 1", {
            let mut answer = status(429, "TooManyRequests", "storage is (re)initializing");
            answer["details"] = json!({"retryAfterSeconds": 1});
            answer
        }),
        (
            "unavailable",
            "503 Service Unavailable, application/json, Retry-After: 1",
            status(503, "ServiceUnavailable", "apiserver is shutting down"),
        ),
        (
            "internal-error",
            "500 Internal Server Error, application/json",
            status(500, "InternalError", "Internal error occurred: a fault on demand"),
        ),
        (
            "expired",
            "410 Gone, application/json",
            status(410, "Expired", "The resourceVersion for the provided list is too old."),
        ),
        ("gone", "410 Gone, application/json", status(410, "Gone", "too old resource version")),
    ] {
        let fixture = fixture(&[fault]).await;
        let (answered, text) = answered(&fixture, &format!("GET {CONFIG_MAPS}"), "").await;
        let mut parts = head.split(", ");
        let first = parts.next().unwrap_or_default().to_lowercase();
        assert!(answered.starts_with(&format!("http/1.1 {first}")), "{fault}: {answered}");
        for part in parts {
            assert!(answered.contains(&part.to_lowercase()), "{fault}: no {part} in {answered}");
        }
        let answer = serde_json::from_str(&text).unwrap_or(json!(text));
        assert_eq!(answer, body, "{fault}");
    }
}

#[tokio::test]
async fn a_request_that_no_rule_allows_can_be_forbidden() {
    let rules = r#"rules=[{apiGroups: [""], resources: [configmaps], verbs: [get, list, patch]}]"#;
    let fixture =
        fixture(&[&format!("forbidden,user=jane,{rules}"), "forbidden,path=/secrets,user=admin"]).await;
    fixture.server.add_token("jane", "jane");
    let get = async |path: &str, token: &str| {
        let url = format!("{}{path}", fixture.server.url());
        let answer = fixture.http.get(url).bearer_auth(token).send().await.expect("an answer");
        let (status, body) = (answer.status().as_u16(), answer.bytes().await.expect("a body"));
        (status, serde_json::from_slice::<Value>(&body).expect("JSON"))
    };
    let admin = fixture.server.token();
    assert_eq!(get(CONFIG_MAPS, "jane").await.0, 200);
    let (status, body) = get(&format!("{CONFIG_MAPS}?watch=1"), "jane").await;
    let message = "configmaps is forbidden: User \"jane\" cannot watch resource \"configmaps\" in API group \"\" in the namespace \"default\"";
    assert_eq!((status, &body["message"]), (403, &json!(message)));
    assert_eq!((&body["reason"], &body["details"]), (&json!("Forbidden"), &json!({"kind": "configmaps"})));
    let url = format!("{}{CONFIG_MAPS}/new?fieldManager=jane", fixture.server.url());
    let apply = fixture.http.patch(url).header("content-type", "application/apply-patch+yaml");
    let apply = apply.body(r#"{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "new"}}"#);
    let answer = apply.bearer_auth("jane").send().await.expect("an answer");
    assert_eq!(answer.status(), 403, "an apply that creates needs the verb create");
    let (status, body) = get("/apis/apps/v1/deployments", "jane").await;
    let message = "deployments.apps is forbidden: User \"jane\" cannot list resource \"deployments\" in API group \"apps\" at the cluster scope";
    assert_eq!((status, &body["message"]), (403, &json!(message)));
    assert_eq!(get(CONFIG_MAPS, admin).await.0, 200);
    assert_eq!(get(SECRETS, admin).await.0, 403);
    assert_eq!(get("/apis", "jane").await.0, 200, "every user may use discovery");
}

/// The first attempt, which waits for the webhook, used the fault up, and the second one created the object.
#[tokio::test]
async fn a_create_that_webhooks_are_asked_about_is_forbidden_once() {
    let rules = r#"rules=[{apiGroups: ["*"], resources: ["*"], verbs: [patch]}]"#;
    let fixture = fixture(&[]).await;
    let hook = json!({
        "name": "nobody.example.com", "sideEffects": "None", "admissionReviewVersions": ["v1"], "failurePolicy": "Ignore",
        "clientConfig": {"url": "https://127.0.0.1:1"},
        "rules": [{"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["configmaps"]}],
    });
    let hooks = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations";
    let (status, _) = fixture.post(hooks, json!({"metadata": {"name": "nobody"}, "webhooks": [hook]})).await;
    assert_eq!(status, 201);
    fixture.server.fault(planned(&format!("forbidden,times=1,{rules}")));
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "new"}});
    let mut statuses = Vec::new();
    for _ in 0..2 {
        let path = format!("{CONFIG_MAPS}/new?fieldManager=me");
        statuses
            .push(fixture.call(Method::PATCH, &path, "application/apply-patch+yaml", object.clone()).await.0);
    }
    assert_eq!(statuses, [403, 201]);
}

#[tokio::test]
async fn a_request_can_get_an_html_page_as_from_a_proxy() {
    let fixture = fixture(&["html"]).await;
    let (head, body) = answered(&fixture, &format!("GET {CONFIG_MAPS}"), "").await;
    assert!(
        head.starts_with("http/1.1 502 bad gateway") && head.contains("content-type: text/html"),
        "{head}"
    );
    assert!(body.starts_with("<html>") && body.contains("502 Bad Gateway"), "{body}");
}

#[tokio::test]
async fn a_fault_applies_to_matching_requests_as_often_as_planned() {
    let fixture = fixture(&["internal-error,path=/configmaps,method=post,times=2"]).await;
    assert_eq!(fixture.get(CONFIG_MAPS).await.0, 200);
    assert_eq!(fixture.post(SECRETS, config_map("a", json!({}))).await.0, 201);
    let mut statuses = Vec::new();
    for _ in 0..3 {
        statuses.push(fixture.post(CONFIG_MAPS, config_map("a", json!({}))).await.0);
    }
    assert_eq!(statuses, [500, 500, 201]);
}

#[tokio::test]
async fn writes_can_be_denied_by_admission_and_by_a_quota() {
    let fixture =
        fixture(&["deny,webhook=no.example.com,message=not on a Friday, never,method=PATCH", "quota"]).await;
    let (status, body) = fixture.post(CONFIG_MAPS, config_map("a", json!({}))).await;
    let message = "configmaps \"a\" is forbidden: exceeded quota: full, requested: configmaps=1, used: configmaps=1, limited: configmaps=1";
    assert_eq!((status, &body["message"]), (403, &json!(message)));
    assert_eq!(
        (&body["reason"], &body["details"]),
        (&json!("Forbidden"), &json!({"name": "a", "kind": "configmaps"}))
    );
    let (status, body) = fixture.merge(&format!("{CONFIG_MAPS}/a"), json!({})).await;
    let message = "admission webhook \"no.example.com\" denied the request: not on a Friday, never";
    assert_eq!((status, &body["message"], &body["reason"]), (403, &json!(message), &json!("Forbidden")));
    assert_eq!(body.get("details"), None);
    assert_eq!(fixture.get(CONFIG_MAPS).await.0, 200, "admission does not apply to reads");
}

#[tokio::test]
async fn a_write_can_take_effect_and_its_answer_be_lost() {
    let fixture = fixture(&["lose-answer,method=POST,times=1"]).await;
    let lost =
        fixture.request(Method::POST, CONFIG_MAPS).body(config_map("a", json!({})).to_string()).send().await;
    assert!(lost.is_err(), "{lost:?}");
    assert_eq!(fixture.get(&format!("{CONFIG_MAPS}/a")).await.0, 200);
    assert_eq!(answered(&fixture, &format!("GET {CONFIG_MAPS}/a"), "").await.0.get(9..12), Some("200"));
    fixture.server.fault(Fault::LoseAnswer);
    let (head, body) = answered(&fixture, &format!("DELETE {CONFIG_MAPS}/a"), "").await;
    assert_eq!((head, body), (String::new(), String::new()), "over HTTP/1.1 nothing comes at all");
}

#[tokio::test]
async fn a_write_can_be_held_before_its_effect_or_before_its_answer() {
    for (fault, while_held) in [("hold", 404), ("hold-answer", 200)] {
        let fixture = fixture(&[&format!("{fault},path=/configmaps,method=POST,nth=2")]).await;
        assert_eq!(fixture.post(CONFIG_MAPS, config_map("a", json!({}))).await.0, 201, "the first passes");
        let release = async {
            let (_, held) = fixture.get("/listwatch/faults/held").await;
            assert_eq!(held, json!(format!("POST {CONFIG_MAPS}\n")));
            assert_eq!(fixture.get(&format!("{CONFIG_MAPS}/b")).await.0, while_held, "{fault}");
            assert_eq!(fixture.delete("/listwatch/faults/held").await, (200, json!("all released\n")));
        };
        let (second, ()) = tokio::join!(fixture.post(CONFIG_MAPS, config_map("b", json!({}))), release);
        assert_eq!(second.0, 201, "{fault}");
        assert_eq!(
            fixture.post(CONFIG_MAPS, config_map("c", json!({}))).await.0,
            201,
            "only the second is held"
        );
    }
}

/// The page of the lens does so.
#[tokio::test]
async fn held_writes_are_released_one_by_one_or_refused() {
    let fixture = fixture(&["hold,user=operator-*"]).await;
    fixture.server.add_token("operator", "operator-1");
    assert_eq!(fixture.post(CONFIG_MAPS, config_map("free", json!({}))).await.0, 201, "of another user");
    let create = async |name: &str| {
        let request = fixture.http.post(format!("{}{CONFIG_MAPS}", fixture.server.url()));
        let request = request.bearer_auth("operator").body(config_map(name, json!({})).to_string());
        let answer = request.send().await.expect("an answer");
        let status = answer.status().as_u16();
        let answer: Value = serde_json::from_str(&answer.text().await.expect("text")).expect("JSON");
        (status, answer)
    };
    for (refused, status, reason) in [(None, 201, Value::Null), (Some(409), 409, json!("Conflict"))] {
        let name = format!("a-{status}");
        let step = async {
            fixture.server.held().await;
            let held = fixture.server.held_requests();
            let [HeldRequest { id, user, method, target, body }] = &held[..] else { panic!("{held:?}") };
            assert_eq!((&**user, &**method, &**target), ("operator-1", "POST", CONFIG_MAPS));
            assert!(String::from_utf8_lossy(body).contains(&name), "{body:?}");
            assert!(!fixture.server.release(id + 1), "no such request");
            assert!(match refused {
                Some(status) => fixture.server.refuse(*id, status),
                None => fixture.server.release(*id),
            });
            assert!(!fixture.server.release(*id), "it is no longer held");
        };
        let ((answered, answer), ()) = tokio::join!(create(&name), step);
        assert_eq!((answered, &answer["reason"]), (status, &reason), "{answer}");
        let is_stored = fixture.get(&format!("{CONFIG_MAPS}/{name}")).await.0 == 200;
        assert_eq!(is_stored, refused.is_none());
    }
    assert_eq!(fixture.server.planned_faults(), "hold,user=operator-*\n");
}

#[tokio::test]
async fn another_client_can_change_the_object_just_before_an_update() {
    let fixture = fixture(&["meddle,path=/configmaps/a,times=2"]).await;
    let (_, read) = fixture.post(CONFIG_MAPS, config_map("a", json!({}))).await;
    let path = format!("{CONFIG_MAPS}/a");
    let put = async |body: &Value| fixture.call(Method::PUT, &path, "application/json", body.clone()).await;
    let (status, error) = put(&read).await;
    assert_eq!((status, &error["reason"]), (409, &json!("Conflict")));
    let (status, patched) = fixture.merge(&path, json!({"data": {"key": "value"}})).await;
    assert_eq!((status, patched["metadata"]["annotations"].is_object()), (200, true));
    assert_eq!(put(&patched).await.0, 200, "it was changed twice only");
}

/// A PUT of the status has another path than its object.
#[tokio::test]
async fn an_update_of_a_status_can_be_meddled_with_also() {
    let fixture = fixture(&["meddle,path=/status"]).await;
    let pod = json!({"metadata": {"name": "a"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    fixture.post("/api/v1/namespaces/default/pods", pod).await;
    let path = "/api/v1/namespaces/default/pods/a";
    let (_, patched) = fixture.merge(&format!("{path}/status"), json!({"status": {"message": "m"}})).await;
    assert_eq!(patched["status"]["message"], "m");
    assert!(patched["metadata"]["annotations"]["listwatch/meddled"].is_string(), "{patched}");
}

#[tokio::test]
async fn a_held_write_of_a_client_that_disconnects_has_no_effect() {
    let fixture = fixture(&["hold,user=jane"]).await;
    fixture.server.add_token("jane", "jane");
    for protocol in ["http/1.1", "h2"] {
        let ca = reqwest::Certificate::from_pem(fixture.server.ca_pem().as_bytes()).expect("our own CA");
        let builder = reqwest::Client::builder().tls_certs_only([ca]);
        let builder = if protocol == "h2" { builder } else { builder.http1_only() };
        let client = builder.build().expect("a client");
        let url = format!("{}{CONFIG_MAPS}", fixture.server.url());
        let create = client.post(url).bearer_auth("jane").body(config_map("a", json!({})).to_string());
        tokio::select! {
            answer = create.send() => panic!("{answer:?}"),
            held = fixture.server.held() => assert_eq!(held, [format!("POST {CONFIG_MAPS}")]),
        }
        drop(client);
        fixture.server.no_longer_held().await;
        fixture.server.release_held();
        assert_eq!(fixture.get(&format!("{CONFIG_MAPS}/a")).await.0, 404, "{protocol}");
    }
}

#[tokio::test(start_paused = true)]
async fn answers_can_be_slow_or_not_come() {
    let fixture = fixture(&["slow,time=2s,path=/secrets", "silence,path=/configmaps"]).await;
    let started = tokio::time::Instant::now();
    assert_eq!(fixture.get("/api/v1/secrets").await.0, 200);
    assert_eq!(started.elapsed().as_secs(), 2);
    let body = "x".repeat(2 * 1024 * 1024);
    let silent = fixture.request(Method::POST, CONFIG_MAPS).body(body).send();
    let silent = tokio::time::timeout(Duration::from_secs(600), silent).await;
    assert!(silent.is_err(), "{silent:?}");
    assert_eq!(fixture.get("/version").await.0, 200, "the others are served");
}

#[tokio::test(start_paused = true)]
async fn the_second_half_of_a_list_can_come_later() {
    let fixture = fixture(&["slow-lists,time=2s,path=/secrets"]).await;
    for name in ["a", "b"] {
        fixture.post(SECRETS, config_map(name, json!({}))).await;
    }
    let started = tokio::time::Instant::now();
    let (_, list) = fixture.get(SECRETS).await;
    assert_eq!(list["items"].as_array().map(Vec::len), Some(2));
    assert_eq!(started.elapsed().as_secs(), 2);
    assert_eq!(fixture.get(&format!("{SECRETS}/a")).await.0, 200);
    assert_eq!(started.elapsed().as_secs(), 2, "an object is not a list");
    let query = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let mut streaming = fixture.watch(&format!("{SECRETS}?{query}")).await;
    assert_eq!(streaming.next().await, "ADDED a");
    assert_eq!(started.elapsed().as_secs(), 2, "the first event comes at once");
    assert_eq!(streaming.next().await, "ADDED b");
    assert_eq!(started.elapsed().as_secs(), 4);
    let mut resumed = fixture.watch(&format!("{SECRETS}?watch=1&resourceVersion={}", version(&list))).await;
    for name in ["c", "d"] {
        fixture.post(SECRETS, config_map(name, json!({}))).await;
    }
    assert_eq!([resumed.next().await, resumed.next().await], ["ADDED c", "ADDED d"]);
    assert_eq!(started.elapsed().as_secs(), 4, "a watch that resumes is not a list");
}

/// The events of a watch until its end, one per line.
async fn events(fixture: &Fixture, query: &str) -> Vec<String> {
    let mut watch = fixture.watch(&format!("{SECRETS}?watch=1{query}")).await;
    let mut events = Vec::new();
    loop {
        events.push(watch.next().await);
        if events.last().is_some_and(|last| last == "end" || last == "CUT") {
            return events;
        }
    }
}

#[tokio::test]
async fn watches_end_in_every_way() {
    let expired = "ERROR 410 \"The resourceVersion for the provided watch is too old.\"";
    for (fault, end) in [
        ("end-watches", vec!["end"]),
        ("cut-watches", vec!["CUT"]),
        ("expire-watches", vec![expired, "end"]),
        ("gone-watches", vec![expired, "end"]),
    ] {
        let fixture = Fixture::with(quiet()).await;
        for name in ["a", "b"] {
            fixture.post(SECRETS, config_map(name, json!({}))).await;
        }
        // Open watches end at once.
        let mut watch = fixture.watch(&format!("{SECRETS}?watch=1")).await;
        assert_eq!([watch.next().await, watch.next().await], ["ADDED a", "ADDED b"]);
        fixture.server.fault(planned(&format!("{fault},path=/pods")));
        fixture.server.fault(planned(fault));
        for end in &end {
            let next = watch.next().await;
            assert_eq!(next, *end, "{fault}");
        }
        assert_eq!(fixture.server.server.faults.list(), "none planned\n", "{fault} is over");
        // New watches end after some lines.
        for (lines, before) in [(0, vec![]), (1, vec!["ADDED a"])] {
            fixture.server.fault(planned(&format!("{fault},lines={lines},times=1")));
            let events: Vec<_> = events(&fixture, "").await;
            assert_eq!(events.len(), before.len() + end.len(), "{fault}: {events:?}");
            assert_eq!(events[..before.len()], before, "{fault}");
        }
    }
}

/// It was half of a made-up event, so the one that followed the resumed watch was another one.
#[tokio::test]
async fn a_cut_watch_ends_with_half_of_its_next_event() {
    let fixture = fixture(&["cut-watches,lines=1"]).await;
    let (_, list) = fixture.get(SECRETS).await;
    for name in ["a", "b"] {
        fixture.post(SECRETS, config_map(name, json!({}))).await;
    }
    let mut watch = fixture.watch(&format!("{SECRETS}?watch=1&resourceVersion={}", version(&list))).await;
    assert_eq!([watch.next().await, watch.next().await], ["ADDED a", "CUT"]);
    let half = String::from_utf8_lossy(&watch.buffer);
    assert!(half.starts_with(r#"{"type":"ADDED","object":{"kind":"Secret""#), "{half}");
}

#[tokio::test]
async fn an_expired_watch_gets_a_new_or_an_old_status() {
    for (fault, reason) in [("expire-watches", "Expired"), ("gone-watches", "Gone")] {
        let fixture = fixture(&[&format!("{fault},lines=0")]).await;
        let mut watch = fixture.watch(&format!("{SECRETS}?watch=1&resourceVersion=1")).await;
        let line = watch.line().await.expect(fault);
        // It named versions, although the history begins before them.
        let message = "The resourceVersion for the provided watch is too old.";
        let object = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": message, "reason": reason, "code": 410});
        assert_eq!(line, json!({"type": "ERROR", "object": object}));
        assert_eq!(watch.line().await, None);
    }
}

#[tokio::test]
async fn a_watch_dropped_as_too_slow_resumes_without_a_loss() {
    let fixture = fixture(&["drop-slow-watches,times=1"]).await;
    let (_, list) = fixture.get(SECRETS).await;
    let path = format!("{SECRETS}?watch=1&resourceVersion={}", version(&list));
    let mut watch = fixture.watch(&path).await;
    fixture.post(SECRETS, config_map("a", json!({}))).await;
    assert_eq!(watch.next().await, "end", "clean, and without a word");
    assert_eq!(fixture.watch(&path).await.next().await, "ADDED a");
}

#[tokio::test]
async fn a_stalled_watch_goes_on_when_faults_end() {
    let fixture = fixture(&[]).await;
    let path = format!("{CONFIG_MAPS}?watch=1&sendInitialEvents=false&resourceVersionMatch=NotOlderThan");
    let (mut open, mut other) = (fixture.watch(&path).await, fixture.watch("/api/v1/secrets?watch=1").await);
    fixture.server.fault(planned("stall-watches,path=/configmaps"));
    let mut later = fixture.watch(&path).await;
    for path in [CONFIG_MAPS, SECRETS] {
        fixture.post(path, config_map("a", json!({}))).await;
    }
    assert_eq!(other.next().await, "ADDED a");
    for watch in [&mut open, &mut later] {
        assert!(tokio::time::timeout(Duration::from_millis(20), watch.next()).await.is_err());
    }
    fixture.server.end_faults();
    assert_eq!([open.next().await, later.next().await], ["ADDED a", "ADDED a"]);
}

/// The page of the lens holds what a client is sent about a kind, and lets it go.
#[tokio::test]
async fn a_fault_ends_alone_and_lets_go_what_it_stalls_and_holds() {
    let (answers, events) = ("hold-answer,path=/configmaps", "stall-watches,path=/configmaps");
    let fixture = fixture(&["stall-watches,path=/secrets", "hold,path=/secrets"]).await;
    let paths = [CONFIG_MAPS, SECRETS].map(|path| format!("{path}?watch=1"));
    let (mut maps, mut secrets) = (fixture.watch(&paths[0]).await, fixture.watch(&paths[1]).await);
    assert_eq!(maps.next().await, "ADDED kube-root-ca.crt");
    fixture.server.fault(planned(answers));
    fixture.server.fault(planned(events));
    let release = async {
        assert_eq!(fixture.server.held().await, [format!("POST {CONFIG_MAPS}")]);
        assert!(fixture.server.end_fault(answers), "it was planned");
    };
    let (created, ()) = tokio::join!(fixture.post(CONFIG_MAPS, config_map("a", json!({}))), release);
    assert_eq!(created.0, 201);
    assert!(tokio::time::timeout(Duration::from_millis(20), maps.next()).await.is_err(), "it is stalled");
    let release = async {
        assert_eq!(fixture.server.held().await, [format!("POST {SECRETS}")]);
        assert!(fixture.server.end_fault(events) && !fixture.server.end_fault(events), "it was planned once");
        assert_eq!(maps.next().await, "ADDED a");
        assert!(fixture.server.is_holding(), "another fault holds it");
        assert!(fixture.server.end_fault("hold,path=/secrets"), "it was planned");
    };
    let (created, ()) = tokio::join!(fixture.post(SECRETS, config_map("a", json!({}))), release);
    assert_eq!(created.0, 201);
    assert!(tokio::time::timeout(Duration::from_millis(20), secrets.next()).await.is_err(), "it is stalled");
    assert_eq!(fixture.server.planned_faults(), "stall-watches,path=/secrets\n");
}

/// The answer to a list is as old as the list.
#[tokio::test]
async fn the_answer_to_a_list_can_be_held_also() {
    let fixture = fixture(&["hold-answer,path=/configmaps,method=GET"]).await;
    let release = async {
        assert_eq!(fixture.server.held().await, [format!("GET {CONFIG_MAPS}")]);
        assert_eq!(fixture.post(CONFIG_MAPS, config_map("a", json!({}))).await.0, 201);
        fixture.server.release_held();
    };
    let ((status, list), ()) = tokio::join!(fixture.get(CONFIG_MAPS), release);
    assert_eq!((status, list["items"].as_array().map(Vec::len)), (200, Some(1)), "{list}");
}

#[tokio::test(start_paused = true)]
async fn a_late_watch_of_one_user_sends_a_change_after_the_delay() {
    let fixture = fixture(&["late-watches,time=2s,user=jane,path=/secrets"]).await;
    let path = format!("{SECRETS}?watch=1");
    let request = fixture.request(Method::GET, &path).header("impersonate-user", "jane");
    let answer = request.send().await.expect("an answer");
    let (mut janes, mut other) = (Lines { answer, buffer: Vec::new() }, fixture.watch(&path).await);
    let posted = tokio::time::Instant::now();
    fixture.post(SECRETS, config_map("a", json!({}))).await;
    assert_eq!(other.next().await, "ADDED a");
    assert!(posted.elapsed() < Duration::from_secs(2));
    tokio::time::sleep(Duration::from_millis(1900)).await;
    fixture.post(SECRETS, config_map("b", json!({}))).await;
    assert_eq!(janes.next().await, "ADDED a");
    assert!((2000..3000).contains(&posted.elapsed().as_millis()));
    assert_eq!(janes.next().await, "ADDED b");
    assert!(posted.elapsed() >= Duration::from_millis(3900), "{:?}", posted.elapsed());
}

#[tokio::test(start_paused = true)]
async fn bookmarks_can_come_every_second_also_without_changes() {
    let fixture = fixture(&["bookmarks,every=1s,path=/configmaps"]).await;
    let now = version(&fixture.get(CONFIG_MAPS).await.1);
    let path =
        format!("{CONFIG_MAPS}?watch=1&allowWatchBookmarks=true&resourceVersion={now}&timeoutSeconds=5");
    let mut watch = fixture.watch(&path).await;
    let opened = tokio::time::Instant::now();
    let mut seconds = Vec::new();
    while watch.next().await == "BOOKMARK" {
        seconds.push(opened.elapsed().as_secs());
    }
    // As always, the last one comes two seconds before the end.
    assert_eq!(seconds, [1, 2, 3]);
}

#[tokio::test]
async fn bookmarks_and_streaming_lists_can_be_those_of_older_servers() {
    const STREAMING: &str =
        "&allowWatchBookmarks=1&timeoutSeconds=1&sendInitialEvents=1&resourceVersionMatch=NotOlderThan";
    assert_eq!(events(&fixture(&[]).await, STREAMING).await, ["BOOKMARK initial", "end"]);
    assert_eq!(events(&fixture(&["no-bookmarks"]).await, STREAMING).await, ["end"]);
    assert_eq!(events(&fixture(&["ignore-streaming-lists"]).await, STREAMING).await, ["end"]);
    let fixture = fixture(&["no-streaming-lists"]).await;
    let (status, body) = fixture.get(&format!("{SECRETS}?watch=1{STREAMING}")).await;
    assert_eq!((status, &body["reason"]), (422, &json!("Invalid")));
    let text =
        "Forbidden: sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled";
    assert_eq!(
        body["details"]["causes"],
        json!([{"reason": "FieldValueForbidden", "message": text, "field": "sendInitialEvents"}])
    );
    assert_eq!(
        events(&fixture, "&allowWatchBookmarks=1&timeoutSeconds=1").await,
        ["end"],
        "no bookmark either"
    );
}

#[tokio::test]
async fn a_stream_can_come_in_pieces_of_one_byte() {
    let fixture = fixture(&["chunks"]).await;
    fixture.post(SECRETS, config_map("日本", json!({}))).await;
    fixture.post(SECRETS, config_map("a", json!({"x": "y"}))).await;
    let (_, body) = answered(&fixture, &format!("GET {SECRETS}?watch=1&timeoutSeconds=1"), "").await;
    assert!(body.starts_with("1\r\n{\r\n1\r\n\"\r\n1\r\nt\r\n"), "{body}");
    assert!(body.ends_with("1\r\n\n\r\n0\r\n\r\n"), "{body}");
    assert_eq!(fixture.server.server.faults.of_watch("", None).chunk_bytes(), NonZeroUsize::new(1));
}

#[tokio::test]
async fn a_restored_backup_brings_back_old_objects_and_old_versions() {
    let fixture = fixture(&[]).await;
    fixture.install_widgets().await;
    fixture.post(CONFIG_MAPS, config_map("kept", json!({}))).await;
    fixture.post(CONFIG_MAPS, config_map("deleted", json!({}))).await;
    let (_, then) = fixture.get(CONFIG_MAPS).await;
    fixture.server.fault(Fault::Backup);
    fixture.post(CONFIG_MAPS, config_map("lost", json!({}))).await;
    fixture.delete(&format!("{CONFIG_MAPS}/deleted")).await;
    fixture.merge(&format!("{CONFIG_MAPS}/kept"), json!({"metadata": {"labels": {"x": "y"}}})).await;
    let (_, before) = fixture.get(CONFIG_MAPS).await;
    let mut open =
        fixture.watch(&format!("{CONFIG_MAPS}?watch=1&resourceVersion={}", version(&before))).await;
    fixture.server.fault(Fault::Restore);
    assert_eq!(open.next().await, "CUT");
    // The server may still be closing the connection of the client.
    let (_, after) = answered(&fixture, &format!("GET {CONFIG_MAPS}"), "").await;
    let after: Value = serde_json::from_str(&after).expect("a list");
    assert_eq!(after, then);
    assert!(version(&after) < version(&before));
    // A watch from a version after the backup gets no event before the server reaches that version again.
    let mut watch =
        fixture.watch(&format!("{CONFIG_MAPS}?watch=1&resourceVersion={}", version(&before))).await;
    for name in ["one", "two", "three", "four"] {
        fixture.post(CONFIG_MAPS, config_map(name, json!({}))).await;
    }
    assert_eq!(watch.next().await, "ADDED four");
    assert_eq!(fixture.get(WIDGETS).await.0, 200);
    // Without a backup, a restore returns to the start.
    let fixture = self::fixture(&[]).await;
    fixture.install_widgets().await;
    fixture.server.fault(Fault::Restore);
    assert_eq!(answered(&fixture, &format!("GET {WIDGETS}"), "").await.1, "404 page not found\n");
}

#[tokio::test]
async fn a_server_starts_from_the_checkpoint_of_another_one() {
    let fixture = fixture(&[]).await;
    fixture.install_widgets().await;
    fixture
        .post(
            WIDGETS,
            json!({"apiVersion": "demo.example.com/v2", "kind": "Widget", "metadata": {"name": "a"}}),
        )
        .await;
    let old = fixture.server.version();
    fixture.post(CONFIG_MAPS, config_map("later", json!({}))).await;
    let (_, widgets) = fixture.get(WIDGETS).await;
    let (_, then) = fixture.get(CONFIG_MAPS).await;
    let (_, file) = fixture.get("/listwatch/checkpoint").await;
    let other = self::fixture(&[]).await;
    let checkpoint = Checkpoint::from_json(file).unwrap_or_else(|error| panic!("{error}"));
    other.server.restore(&checkpoint);
    let without_version = |mut list: Value| {
        list["metadata"] = Value::Null;
        list
    };
    assert_eq!(
        without_version(other.get(WIDGETS).await.1),
        without_version(widgets),
        "uids and versions as well"
    );
    let (code, added) = other
        .post(
            WIDGETS,
            json!({"apiVersion": "demo.example.com/v2", "kind": "Widget", "metadata": {"name": "b"}}),
        )
        .await;
    assert_eq!(code, 201, "{added}");
    assert!(version(&added) > version(&then), "{added}");
    let earlier = fixture.server.checkpoint_at(old).expect("a history");
    other.server.restore(&earlier);
    let (_, maps) = answered(&other, &format!("GET {CONFIG_MAPS}"), "").await;
    assert!(!maps.contains("\"later\""), "{maps}");
    for (json, error) in [
        (json!([]), "is not a checkpoint: no resourceVersion"),
        (json!({"resourceVersion": 7}), "is not a checkpoint: no objects"),
        (json!({"resourceVersion": 7, "objects": {"pods": {}}}), "is not a checkpoint: pods is not a list"),
        (
            json!({"resourceVersion": 7, "objects": {"pods": [{}]}}),
            "is not a checkpoint: pods without a name",
        ),
    ] {
        assert_eq!(Checkpoint::from_json(json).err().as_deref(), Some(error));
    }
}

/// The server refused its own checkpoint.
#[tokio::test]
async fn a_checkpoint_may_have_objects_of_a_crd_that_serves_no_version() {
    let fixture = fixture(&[]).await;
    fixture.install_widgets().await;
    let widget = json!({"apiVersion": "demo.example.com/v2", "kind": "Widget", "metadata": {"name": "a"}});
    fixture.post(WIDGETS, widget).await;
    let (_, mut file) = fixture.get("/listwatch/checkpoint").await;
    let crd = &mut file["objects"]["customresourcedefinitions.apiextensions.k8s.io"][0];
    let versions = crd["spec"]["versions"].as_array_mut().expect("a list");
    versions.iter_mut().for_each(|version| version["served"] = false.into());
    let checkpoint = Checkpoint::from_json(file.clone()).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(checkpoint.to_json(), file);
}

/// They were taken, and a controller panicked on a Pod whose spec was a text.
#[tokio::test]
async fn a_checkpoint_with_an_invalid_object_is_refused() {
    let pod = |change: Value| {
        let mut pod = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "a", "namespace": "default", "uid": "1", "resourceVersion": "7"},
            "spec": {"containers": [{"name": "a", "image": "a", "imagePullPolicy": "Always",
                "terminationMessagePolicy": "File"}], "restartPolicy": "Always", "dnsPolicy": "Default"},
        });
        json_patch::merge(&mut pod, &change);
        pod
    };
    let read =
        |pods: Value| Checkpoint::from_json(json!({"resourceVersion": 7, "objects": {"pods": pods}})).err();
    assert_eq!(read(json!([pod(json!({}))])), None);
    for (change, error) in [
        (json!({"spec": "a"}), "cannot decode string into spec"),
        (json!({"spec": {"containers": []}}), "Pod \"a\" is invalid: spec.containers: Required value"),
        (json!({"metadata": {"uid": null}}), "has no uid"),
        (json!({"metadata": {"resourceVersion": "8"}}), "its resourceVersion is not a number from 1 to 7"),
        (json!({"kind": "Service"}), "its apiVersion and kind are not of this resource"),
    ] {
        let error = format!("is not a checkpoint: pods/default/a: {error}");
        assert_eq!(read(json!([pod(change)])), Some(error));
    }
    let twice = "is not a checkpoint: pods/default/a is there twice";
    assert_eq!(read(json!([pod(json!({})), pod(json!({}))])).as_deref(), Some(twice));
    let error = "is not a checkpoint: pods/a: has no namespace";
    assert_eq!(read(json!([pod(json!({"metadata": {"namespace": null}}))])).as_deref(), Some(error));
}

#[tokio::test]
async fn an_administrator_plans_lists_and_ends_faults_by_a_path() {
    let fixture = fixture(&["internal-error,path=/listwatch"]).await;
    let path = "/listwatch/faults";
    let post = async |body: &'static str| {
        let answer = fixture.request(Method::POST, path).body(body).send().await.expect("an answer");
        (answer.status().as_u16(), answer.text().await.expect("a body"))
    };
    assert_eq!(post("help\n").await, (200, fault_help()));
    let body = "cut-watches\n\nslow,time=5s,path=/pods,times=3\n";
    assert_eq!(post(body).await, (201, "1 done, 1 planned\n".to_owned()), "no fault meets this path");
    let list = "internal-error,path=/listwatch\nslow,time=5s,path=/pods,times=3  (3 left)\n";
    assert_eq!(fixture.get(path).await, (200, json!(list)));
    assert_eq!(fixture.delete(path).await, (200, json!("all ended\n")));
    assert_eq!(fixture.get(path).await, (200, json!("none planned\n")));
    assert_eq!(post("# both\n backup ; expire-history").await, (201, "2 done\n".to_owned()));
    for (body, error) in [
        ("", "the body names no fault; POST help for a list"),
        ("restart\nnope", "line 2: \\\"nope\\\" is not a fault; there are end-watches,"),
    ] {
        let (status, answer) = post(body).await;
        assert!(status == 400 && answer.contains(error), "{body}: {answer}");
    }
    assert_eq!(fixture.call(Method::PUT, path, "", Value::Null).await.0, 405);
    let other = fixture.server.new_token("jane");
    let url = format!("{}{path}", fixture.server.url());
    for (token, wanted) in [(other.as_str(), 403), ("nope", 401)] {
        let answer =
            fixture.http.post(&url).bearer_auth(token).body("restart").send().await.expect("an answer");
        assert_eq!(answer.status(), wanted);
    }
    assert_eq!(fixture.http.get(&url).send().await.expect("an answer").status(), 403);
}

#[tokio::test]
async fn a_stale_list_is_as_old_as_the_fault_says() {
    let fixture = fixture(&[]).await;
    fixture.post(CONFIG_MAPS, config_map("old", json!({}))).await;
    let version = fixture.server.version();
    fixture.post(CONFIG_MAPS, config_map("new", json!({}))).await;
    fixture.server.fault(planned(&format!("stale-lists,version={version},path=/configmaps")));
    let names = async |query: &str| {
        let (_, list) = fixture.get(&format!("{CONFIG_MAPS}{query}")).await;
        let names = list["items"].as_array().expect("a list").iter().map(|item| &item["metadata"]["name"]);
        let names: Vec<Value> = names.filter(|name| *name != "kube-root-ca.crt").cloned().collect();
        (names, list["metadata"]["resourceVersion"].clone())
    };
    assert_eq!(names("?resourceVersion=0&limit=1").await, (vec![json!("old")], json!(version.to_string())));
    assert_eq!(names("").await.0, ["new", "old"]);
}

#[test]
fn an_invalid_fault_is_refused_with_the_valid_ones() {
    for (text, error) in [
        ("", "\"\" is not a fault; there are end-watches"),
        ("nope", "\"nope\" is not a fault; there are end-watches, cut-watches"),
        ("cut-watch", "\"cut-watch\" is not a fault; a similar one is cut-watches"),
        ("cut-watches,pods", "\"pods\" should be KEY=VALUE"),
        ("cut-watches,method=GET", "cut-watches takes no \"method\", but path, times, user, lines"),
        ("stall-watches,lines=1", "stall-watches takes no \"lines\", but path, times, user"),
        ("restart,times=2", "restart takes no \"times\": it takes nothing"),
        ("too-many-requests,retry-after=soon", "retry-after=soon: must be a number from 0 to 1000000000"),
        (
            "too-many-requests,body=x",
            "too-many-requests takes no \"body\", but retry-after, path, times, method",
        ),
        ("expired,times=0", "times=0: must be a number from 1 to 1000000000"),
        ("bookmarks,every=1ms", "every=1ms: must be 10ms or more"),
        ("forbidden,rules=[{verb: [get]}]", "rules=[{verb: [get]}]: .[0]: unknown field `verb`"),
        ("chunks,bytes=0", "bytes=0: must be a number from 1 to 1000000"),
        ("cut-watches, path=", "path= has no value: give one, or leave path= out"),
        ("slow,time=2", "time=2: is not a time: write a number and a unit, such as 500ms or 2s"),
        ("slow,time=1s,time=2s", "time is given twice"),
        ("quota,method=FETCH", "method=FETCH: quota applies to POST"),
        ("deny,method=get", "method=GET: deny applies to POST, PUT, PATCH, DELETE"),
        ("slow,method=FETCH", "method=FETCH: slow applies to GET, HEAD, POST, PUT, PATCH, DELETE"),
        ("html,status=99", "status=99: must be a number from 200 to 599"),
        ("html,status=99999", "status=99999: must be a number from 200 to 599"),
    ] {
        let message = text.parse::<Planned>().expect_err(text);
        assert!(message.starts_with(error), "{text}: {message}");
    }
}

#[test]
fn every_fault_in_the_help_text_can_be_parsed() {
    let names = fault_help();
    let faults: Vec<&str> = names.lines().filter(|line| line.starts_with("  ")).collect();
    assert_eq!(faults.len(), 35, "{names}");
    for line in faults {
        let text = line.split_whitespace().next().expect("a name");
        assert!(text.parse::<Planned>().is_ok(), "{text}");
    }
    assert!(names.lines().all(|line| line.chars().count() <= 120), "{names}");
    assert_eq!(
        names.lines().filter(|line| line.ends_with(':')).count(),
        4,
        "a heading for each group: {names}"
    );
}

#[tokio::test]
async fn spaces_around_a_key_mean_nothing() {
    let fixture = fixture(&["internal-error , path = /pods"]).await;
    assert_eq!(fixture.get("/api/v1/pods").await.0, 500);
}

/// The restart cut the requesting connection with all others, every other time before the answer was sent.
#[tokio::test]
async fn a_request_for_a_restart_gets_an_answer() {
    let fixture = Fixture::with(quiet()).await;
    for _ in 0..20 {
        // Over HTTP/2, then over HTTP/1.1.
        let answer = fixture.request(Method::POST, "/listwatch/faults").body("restart").send().await;
        assert_eq!(answer.expect("an answer").text().await.expect("a body"), "1 done\n");
        let (head, body) = answered(&fixture, "POST /listwatch/faults", "restart").await;
        assert!(head.starts_with("http/1.1 201") && body == "1 done\n", "{head} {body}");
    }
}
