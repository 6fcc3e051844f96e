//! Copies that the API server refuses, and the others.

use super::*;

/// The copy for namespace `a` is refused, and that for `b` is created. After `admit`, both are there.
async fn a_refusal_stops_no_other_copy(
    fixture: &CopyratorFixture,
    reason: &str,
    remedy: &str,
    admit: impl AsyncFn(&UserClient),
) {
    let _operator = fixture.start_copying(json!({})).await;
    let status = fixture.until_ready("main-rule", "CopiesFailed").await;
    assert_eq!(status["failures"][0]["reason"], reason, "{status}");
    let message = status["failures"][0]["message"].as_str().unwrap();
    assert!(message.ends_with(remedy), "{message}");
    let note = format!("{}/settings: {reason}: {message}", fixture.namespace("a"));
    fixture.until_event("Warning", "CopyFailed", &note).await;
    fixture.until_settings_in(&["b"]).await;
    match &fixture.server {
        Some(server) => server.end_faults(),
        None => admit(&fixture.in_namespace("a")).await,
    }
    fixture.until_settings_in(&["a", "b"]).await;
    fixture.until_ready("main-rule", "Synced").await;
}

#[tokio::test]
async fn a_full_namespace_stops_no_other_one() {
    on_both(async |fixture| {
        let full = fixture.in_namespace("a");
        if let Some(server) = &fixture.server {
            server.fault(Fault::Quota("full".to_owned()).on("POST", &full.path("configmaps")));
        } else {
            let quota = json!({"metadata": {"name": "full"}, "spec": {"hard": {"count/configmaps": "0"}}});
            full.create("resourcequotas", &quota).await;
            full.until("resourcequotas/full", |quota| quota["status"]["hard"].is_object()).await;
        }
        let admit = async |full: &UserClient| full.delete("resourcequotas/full").await;
        let remedy = "; raise the quota full, or delete objects";
        a_refusal_stops_no_other_copy(fixture, "QuotaExceeded", remedy, admit).await;
    })
    .await;
}

#[tokio::test]
async fn a_policy_that_denies_a_copy_stops_no_other_one() {
    on_both(async |fixture| {
        let admission = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolic";
        let denied = fixture.in_namespace("a");
        if let Some(server) = &fixture.server {
            let (webhook, message) = ("policy".to_owned(), "no copies".to_owned());
            server.fault(Fault::Deny { webhook, message, code: 422 }.on("POST", &denied.path("configmaps")));
        } else {
            let name = &denied.namespace;
            let metadata = json!({"name": name});
            let rule = json!({"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]});
            let spec = json!({"matchConstraints": {"resourceRules": [rule]}, "validations": [{"expression": "false"}]});
            let policy = json!({"metadata": metadata, "spec": spec});
            fixture.user.try_create(&format!("{admission}ies"), &policy).await.unwrap();
            let namespace = json!({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}});
            let spec = json!({"policyName": name, "validationActions": ["Deny"], "matchResources": namespace});
            let binding = json!({"metadata": metadata, "spec": spec});
            fixture.user.try_create(&format!("{admission}ybindings"), &binding).await.unwrap();
            let path = denied.path("configmaps?dryRun=All");
            let probe = json!({"metadata": {"name": "probe"}});
            eventually("the policy to deny", async || denied.try_create(&path, &probe).await.err()).await;
        }
        let admit = async |denied: &UserClient| {
            let path = format!("{admission}ybindings/{}", denied.namespace);
            fixture.send(Method::DELETE, &path, &json!(null)).await;
        };
        let remedy = "; change the policy, or what it denies";
        a_refusal_stops_no_other_copy(fixture, "AdmissionDenied", remedy, admit).await;
    })
    .await;
}

/// A real server answers so only under load.
#[tokio::test]
async fn after_a_429_a_copy_waits_as_long_as_the_server_asks_and_the_others_go_on() {
    let fixture = CopyratorFixture::embedded().await;
    let server = fixture.server.as_ref().unwrap();
    let body = "Too many requests, please try again later.\n".to_owned();
    let busy = Fault::Answer { status: 429, body, retry_after_secs: Some(1) };
    server.fault(busy.on("POST", &fixture.in_namespace("a").path("configmaps")));
    let _operator = fixture.start_copying(json!({})).await;
    fixture.until_settings_in(&["b"]).await;
    server.end_faults();
    fixture.until_settings_in(&["a", "b"]).await;
    let requests = fixture.wire.0.lock().unwrap();
    let sent = |namespace: &str| {
        let path = fixture.in_namespace(namespace).path("configmaps");
        let is_it = |(_, request): &&(Instant, String)| request.starts_with(&format!("POST {path}"));
        requests.iter().filter(is_it).map(|(time, _)| *time).collect::<Vec<_>>()
    };
    let (waiting, other) = (sent("a"), sent("b"));
    assert!(waiting.len() > 1 && other[0] < waiting[1], "{waiting:?} {other:?}");
    let is_patient = |times: &[Instant]| times[1] - times[0] >= Duration::from_secs(1);
    assert!(waiting.windows(2).all(is_patient), "{waiting:?}");
}
