//! Tests requests that the API server refuses, from us or from users: conditions, Events and the log report the
//! refusal, and the operator recovers from it.

use std::cell::Cell;

use http::Method;
use listwatch::client::Error;
use listwatch_apiserver::{Fault, Planned};
use listwatch_control_plane::{eventually, mutating_policies};
use listwatch_operators::BuiltIn;
use serde_json::{Value, json};

use crate::{
    client::{condition, web},
    fixture::{Fixture, Kind, Server, on, on_each},
    in_process::{self, Running},
    manifests,
    webhook::Webhook,
};

const NEW: &str = "POST deployments 201\nPOST services 201\nPATCH mywebservers/web/status 200";

#[tokio::test]
async fn without_permission_to_list_readyz_names_the_verb_and_the_resource() {
    on(&[Kind::Embedded, Kind::Real], async |fixture| {
        fixture.may_be_forbidden.set(true);
        fixture.forbid().await;
        fixture.spawn_operator(&[]);
        for resource in ["mywebservers", "deployments", "services"] {
            let needs = format!("grant the verbs list and watch on the resource {resource} of API group");
            fixture.operator().until_unready(&[&needs, "403 Forbidden"]).await;
            fixture.operator().until_logged(&[&needs, "WARN"]).await;
        }
        fixture.allow().await;
        fixture.operator().until_ready().await;
        // Also on a quiet stream, `/readyz` stops reporting a problem as soon as the operator can see that it is
        // solved.
        eventually("/readyz to forget the problem", async || {
            (!fixture.operator().probe("/readyz").await.contains("403 Forbidden")).then_some(())
        })
        .await;
        fixture.create_web("web", json!({"image": "nginx"})).await;
        fixture.until("services/mws-web", |_| true).await;
    })
    .await;
}

#[tokio::test]
async fn revoked_permissions_are_logged_and_their_return_is_noticed() {
    on_each(async |fixture| {
        fixture.may_be_forbidden.set(true);
        fixture.forbid().await;
        fixture.create_web("web", json!({"image": "nginx"})).await;
        // Reports the first problem to solve, and not that the status could not be written either.
        let first = ["reconcile failed", "mws-web: 403 Forbidden", "cannot create resource", "deployments"];
        fixture.operator().until_logged(&first).await;
        fixture.allow().await;
        fixture.until("deployments/mws-web", |_| true).await;
        fixture.until("services/mws-web", |_| true).await;
        // Status writes may be permitted again before creates are, so that an earlier status says Forbidden.
        fixture.until_condition("web", "Ready", "False", "RolloutInProgress").await;
    })
    .await;
}

#[tokio::test]
async fn a_single_missing_permission_is_a_condition() {
    on_each(async |fixture| {
        fixture.may_be_forbidden.set(true);
        fixture.allow_all_but("create", "services").await;
        fixture.create_web("web", json!({"image": "nginx"})).await;
        let message = fixture.until_condition("web", "Stalled", "True", "Forbidden").await;
        assert!(message.contains("cannot create resource") && message.contains("services"), "{message}");
        fixture.get("deployments/mws-web").await;
        fixture.allow().await;
        fixture.until("services/mws-web", |_| true).await;
        fixture.until_condition("web", "Ready", "False", "RolloutInProgress").await;
    })
    .await;
}

#[tokio::test]
async fn a_full_quota_is_a_condition_and_the_write_is_retried() {
    on_each(async |fixture| {
        fixture.may_be_forbidden.set(true);
        fill_quota(fixture).await;
        let remedy = "; raise the quota few, or delete objects";
        check_refusal(fixture, "QuotaExceeded", "exceeded quota: few", remedy).await;
        raise_quota(fixture).await;
        check_created_after_refusal(fixture).await;
    })
    .await;
}

/// A Deployment that had never been created was treated as deleted by a user.
#[tokio::test]
async fn a_child_refused_by_a_quota_before_a_restart_is_reported_as_created() {
    on_each(async |fixture| {
        fixture.may_be_forbidden.set(true);
        fill_quota(fixture).await;
        fixture.create_web("web", json!({"image": "nginx"})).await;
        fixture.until_condition("web", "Ready", "False", "QuotaExceeded").await;
        fixture.stop_operator().await;
        raise_quota(fixture).await;
        fixture.spawn_operator(&[]);
        check_created_after_refusal(fixture).await;
    })
    .await;
}

/// A quota without room for another Deployment.
async fn fill_quota(fixture: &Fixture) {
    if let Server::Embedded(server) = &fixture.server {
        server.fault(Fault::Quota("few".to_owned()).on("POST", "/deployments"));
        return;
    }
    let hard = json!({"count/deployments.apps": "1"});
    fixture.create("resourcequotas", &json!({"metadata": {"name": "few"}, "spec": {"hard": hard}})).await;
    let is_full = |quota: &Value| quota["status"]["used"]["count/deployments.apps"] == "1";
    fixture.until("resourcequotas/few", is_full).await;
}

async fn raise_quota(fixture: &Fixture) {
    if let Server::Embedded(server) = &fixture.server {
        server.end_faults();
        return;
    }
    let more = json!({"spec": {"hard": {"count/deployments.apps": "9"}}});
    fixture.patch("resourcequotas/few", more).await;
}

/// For example, the range of Service addresses is full. The write was retried without end, and the object had no
/// status.
#[tokio::test]
async fn an_internal_error_of_the_server_is_a_condition() {
    on(&[Kind::Embedded], async |fixture| {
        let server = fixture.embedded();
        fixture.start_operator(&[]).await;
        server.fault("internal-error,method=POST,path=/deployments".parse::<Planned>().unwrap());
        check_refusal(fixture, "InternalError", "a fault on demand", "").await;
        let attempts = Cell::new(0);
        eventually("two further attempts", async || {
            let is_attempt = |line: &&String| line.starts_with("POST deployments 5");
            attempts.set(attempts.get() + fixture.transcript().await.iter().filter(is_attempt).count());
            (attempts.get() >= 2).then_some(())
        })
        .await;
        server.end_faults();
        check_created_after_refusal(fixture).await;
        let events = fixture.get("events").await["items"].take();
        let failures = events.as_array().unwrap().iter().filter(|event| event["reason"] == "Failed");
        let series: Vec<_> = failures.map(|event| &event["series"]).collect();
        assert_eq!(series, [&Value::Null], "one Event for all attempts");
    })
    .await;
}

/// Such an error goes away with a retry, and does not concern the object.
#[tokio::test]
async fn a_server_that_is_overloaded_is_no_condition() {
    on(&[Kind::Embedded], async |fixture| {
        let server = fixture.embedded();
        fixture.start_operator(&[]).await;
        let unavailable = Fault::Answer { status: 503, body: String::new(), retry_after_secs: None };
        server.fault(unavailable.on("POST", "/deployments").times(2));
        fixture.create_web("web", json!({"image": "nginx"})).await;
        fixture.until("deployments/mws-web", |_| true).await;
        fixture.settle().await;
        let written = fixture.transcript().await;
        let statuses = written.iter().filter(|line| line.starts_with("PATCH mywebservers/web/status"));
        assert_eq!(statuses.count(), 1, "{written:?}");
    })
    .await;
}

/// The log reported the status before it was written.
#[tokio::test]
async fn the_log_reports_ready_after_the_status_does() {
    on_each(async |fixture| {
        fixture.may_be_forbidden.set(true);
        fixture.create_settled_web("web", json!({"image": "nginx"})).await;
        fixture.allow_all_but("patch", "mywebservers/status").await;
        roll_out(fixture, 1).await;
        fixture.operator().until_logged(&["reconcile failed", "/web\"", "cannot patch resource"]).await;
        let ready = "AllReplicasReady: 1 of 1 replicas are available";
        assert!(!fixture.operator().log().contains(ready));
        fixture.allow().await;
        fixture.until_condition("web", "Ready", "True", "AllReplicasReady").await;
        fixture.operator().until_logged(&[ready]).await;
    })
    .await;
}

#[tokio::test]
async fn a_write_denied_by_admission_is_a_condition_and_is_retried() {
    on_each(async |fixture| {
        fixture.may_be_forbidden.set(true);
        if let Server::Embedded(server) = &fixture.server {
            let (webhook, message) = ("freeze.example.com".to_owned(), "frozen, ask Jane".to_owned());
            server.fault(Fault::Deny { webhook, message, code: 403 }.on("POST", "/deployments"));
        } else {
            let denial = json!([{"expression": "false", "message": "frozen, ask Jane"}]);
            install_policy(fixture, "validating", json!({"validations": denial}), |probe| probe.is_err())
                .await;
        }
        let remedy = "; change the policy, or what it denies";
        check_refusal(fixture, "AdmissionDenied", "frozen, ask Jane", remedy).await;
        fixture.until_condition("web", "Stalled", "True", "AdmissionDenied").await;
        if let Server::Embedded(server) = &fixture.server {
            server.end_faults();
        } else {
            remove_policy(fixture, "validating").await;
        }
        check_created_after_refusal(fixture).await;
    })
    .await;
}

/// A webhook chooses the status code of its denial. The denial was treated as a conflict or an overloaded server, and
/// never became a condition.
#[tokio::test]
async fn a_webhook_denial_with_any_status_code_is_a_condition() {
    on_each(async |fixture| {
        fixture.may_be_forbidden.set(true);
        let webhook = Webhook::start("", "the change freeze lasts until Monday").await;
        if !fixture.is_embedded() {
            register_webhook(fixture, &webhook).await;
        }
        for (code, is_stalled) in [(409, true), (404, true), (429, false), (500, false), (503, false)] {
            webhook.deny_with(code);
            if let Server::Embedded(server) = &fixture.server {
                server.end_faults();
                let (webhook, message) =
                    ("freeze.example.com".to_owned(), "the change freeze lasts until Monday".to_owned());
                server.fault(Fault::Deny { webhook, message, code }.on("POST", "/deployments"));
            }
            let name = format!("web-{code}");
            fixture.create_web(&name, json!({"image": "nginx"})).await;
            let message = fixture.until_condition(&name, "Ready", "False", "AdmissionDenied").await;
            let denial = "\"freeze.example.com\" denied the request: the change freeze lasts until Monday";
            assert!(message.contains(denial), "{message}");
            let web = fixture.get(&format!("mywebservers/{name}")).await;
            assert_eq!(condition(&web, "Stalled").is_some(), is_stalled, "{web}");
            let warned = ["WARN", "reconcile failed", &format!("/{name}\""), "the change freeze lasts"];
            fixture.operator().until_logged(&warned).await;
        }
        if let Server::Embedded(server) = &fixture.server {
            server.end_faults();
        } else {
            remove_webhook(fixture).await;
        }
        fixture.until("deployments/mws-web-409", |_| true).await;
    })
    .await;
}

/// The denial of a webhook named a field of the Pod template, and was treated as the API server's own validation: the
/// template was reset to our fields, and the user's sidecar was lost.
#[tokio::test]
async fn an_update_denied_by_a_webhook_is_retried_and_keeps_the_template() {
    on_each(async |fixture| {
        fixture.create_settled_web("web", json!({"image": "nginx"})).await;
        // With the same image as the probe of `until_enforced`.
        let sidecar = json!({"name": "sidecar", "image": "probe"});
        let add = json!([{"op": "add", "path": "/spec/template/spec/containers/-", "value": sidecar}]);
        fixture.edit("deployments/mws-web", add).await;
        let webhook = Webhook::start("\"image\":\"probe\"", "no probes").await;
        webhook.deny_with(422);
        if let Server::Embedded(server) = &fixture.server {
            let mut status = webhook.status();
            status["message"] =
                json!("admission webhook \"freeze.example.com\" denied the request: no probes");
            let denial = Fault::Answer { status: 422, body: status.to_string(), retry_after_secs: None };
            server.fault(denial.on("PATCH", "/deployments/mws-web").times(1));
        } else {
            register_webhook(fixture, &webhook).await;
        }
        fixture.patch("mywebservers/web", json!({"spec": {"image": "nginx:2"}})).await;
        fixture.until("events", |events| events.to_string().contains("AdmissionDenied: ")).await;
        if !fixture.is_embedded() {
            remove_webhook(fixture).await;
        }
        let containers = |deployment: &Value| deployment["spec"]["template"]["spec"]["containers"].clone();
        let is_updated = |deployment: &Value| containers(deployment)[0]["image"] == "nginx:2";
        let deployment = fixture.until("deployments/mws-web", is_updated).await;
        assert_eq!(containers(&deployment)[1]["name"], "sidecar");
        // A write that was first refused and then allowed is not drift.
        let is_update = |events: &Value| events.to_string().contains("changed Deployment mws-web at");
        let events = fixture.until("events", is_update).await;
        assert!(!events.to_string().contains("restored Deployment mws-web"), "{events}");
    })
    .await;
}

/// Registers the webhook for each write of a Deployment in this namespace.
async fn register_webhook(fixture: &Fixture, webhook: &Webhook) {
    let deployments = json!({
        "apiGroups": ["apps"], "apiVersions": ["v1"], "resources": ["deployments"],
        "operations": ["CREATE", "UPDATE"],
    });
    let configuration = json!({
        "metadata": {"name": fixture.namespace},
        "webhooks": [{
            "name": "freeze.example.com", "clientConfig": webhook.client_config, "rules": [deployments],
            "admissionReviewVersions": ["v1"], "sideEffects": "None", "failurePolicy": "Fail",
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": fixture.namespace}},
        }],
    });
    fixture.try_create(WEBHOOKS, &configuration).await.unwrap();
    until_enforced(fixture, |probe| probe.is_err()).await;
}

async fn remove_webhook(fixture: &Fixture) {
    let path = format!("{WEBHOOKS}/{}", fixture.namespace);
    fixture.send(http::Method::DELETE, &path, "application/json", &Value::Null).await.unwrap();
}

/// The Deployment of a MyWebserver is refused: condition, Event and log report the refusal, the write is retried but
/// not too often, and the Service is created nevertheless.
async fn check_refusal(fixture: &Fixture, reason: &str, text: &str, remedy: &str) {
    fixture.create_web("web", json!({"image": "nginx"})).await;
    let message = fixture.until_condition("web", "Ready", "False", reason).await;
    assert!(message.contains(text) && message.ends_with(remedy), "{message}");
    let event = format!("{reason}: ");
    fixture.until("events", |events| events.to_string().contains(&event)).await;
    fixture.get("services/mws-web").await;
    fixture.operator().until_logged(&["reconcile failed again", text]).await;
    let attempts = |written: &[String]| {
        let starts = ["POST deployments 4", "POST deployments 5"];
        written.iter().filter(|line| starts.iter().any(|start| line.starts_with(start))).count()
    };
    eventually("another attempt", async || (attempts(&fixture.written()) >= 2).then_some(())).await;
    let written = fixture.transcript().await;
    let count = |start: &str| written.iter().filter(|line| line.starts_with(start)).count();
    assert!((2..=8).contains(&attempts(&written)), "{written:?}");
    assert_eq!((count("POST services"), count("PATCH")), (1, 1), "{written:?}");
}

/// The Deployment is reported as created, not as restored, because it did not exist before.
async fn check_created_after_refusal(fixture: &Fixture) {
    fixture.until("deployments/mws-web", |_| true).await;
    fixture.until_condition("web", "Ready", "False", "RolloutInProgress").await;
    let created = |events: &Value| events.to_string().contains("created Deployment mws-web");
    let events = fixture.until("events", created).await;
    assert!(!events.to_string().contains("restored Deployment mws-web"), "{events}");
    let log = fixture.operator().log();
    assert!(!log.lines().any(|line| line.contains("created again") && line.contains("mws-web")), "{log}");
}

const WEBHOOKS: &str = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";

/// Installs a `mutating` or `validating` admission policy for each write of a Deployment in this namespace, and waits
/// until the answer to a user's write shows the policy.
async fn install_policy(
    fixture: &Fixture,
    kind: &str,
    mut spec: Value,
    is_in_force: impl Fn(&Result<Value, Error>) -> bool,
) {
    let name = &fixture.namespace;
    spec["failurePolicy"] = json!("Fail");
    spec["matchConstraints"] = json!({"resourceRules": [{
        "apiGroups": ["apps"], "apiVersions": ["v1"], "resources": ["deployments"],
        "operations": ["CREATE", "UPDATE"],
    }]});
    let here = json!({"matchLabels": {"kubernetes.io/metadata.name": name}});
    let mut binding = json!({"policyName": name, "matchResources": {"namespaceSelector": here}});
    if kind == "validating" {
        binding["validationActions"] = json!(["Deny"]);
    }
    for (resource, spec) in [("policies", spec), ("policybindings", binding)] {
        let object = json!({"metadata": {"name": name}, "spec": spec});
        fixture.try_create(&policy_path(kind, resource), &object).await.unwrap();
    }
    until_enforced(fixture, is_in_force).await;
}

/// The collection of `mutating` or `validating` admission `policies` or `policybindings`.
fn policy_path(kind: &str, resource: &str) -> String {
    let version = if kind == "mutating" { mutating_policies() } else { "v1" };
    format!("/apis/admissionregistration.k8s.io/{version}/{kind}admission{resource}")
}

/// Waits until the answer to a user's write shows that a policy or webhook is in force, or no longer in force.
async fn until_enforced(fixture: &Fixture, is_in_force: impl Fn(&Result<Value, Error>) -> bool) {
    eventually("the policy to be in force", async || {
        let probe = json!({
            "metadata": {"name": "probe"},
            "spec": {
                "replicas": 3, "selector": {"matchLabels": {"app": "probe"}},
                "template": {
                    "metadata": {"labels": {"app": "probe"}},
                    "spec": {"containers": [{"name": "probe", "image": "probe"}]},
                },
            },
        });
        let path = fixture.path("deployments") + "?dryRun=All";
        is_in_force(&fixture.try_create(&path, &probe).await).then_some(())
    })
    .await;
}

async fn remove_policy(fixture: &Fixture, kind: &str) {
    for resource in ["policybindings", "policies"] {
        let path = format!("{}/{}", policy_path(kind, resource), fixture.namespace);
        fixture.send(http::Method::DELETE, &path, "application/json", &Value::Null).await.unwrap();
    }
}

/// Installs an admission policy that changes Deployments by this expression, and waits until it changes a probe.
async fn install_mutation(fixture: &Fixture, expression: &str, is_changed: impl Fn(&Value) -> bool) {
    let mutations =
        json!([{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}}]);
    let spec = json!({"reinvocationPolicy": "Never", "mutations": mutations});
    install_policy(fixture, "mutating", spec, |probe| is_changed(&probe.as_ref().unwrap()["spec"])).await;
}

/// The status that the Deployment controller writes when this many Pods run.
async fn roll_out(fixture: &Fixture, replicas: i64) {
    let generation = fixture.get("deployments/mws-web").await["metadata"]["generation"].clone();
    let status = json!({
        "observedGeneration": generation, "replicas": replicas, "updatedReplicas": replicas,
        "readyReplicas": replicas, "availableReplicas": replicas,
    });
    fixture.patch("deployments/mws-web/status", json!({ "status": status })).await;
}

/// A policy replaces the registry of all images. The Pods served, but the reason stayed `ReconcileFailed`.
#[tokio::test]
async fn a_policy_that_changes_our_image_is_reported_and_accepted_and_ready_follows_the_pods() {
    on(&[Kind::Real], async |fixture| {
        fixture.start_operator(&[]).await;
        let mirror = r#"Object{spec: Object.spec{template: Object.spec.template{spec: Object.spec.template.spec{
            containers: object.spec.template.spec.containers.map(c, Object.spec.template.spec.containers{
                name: c.name,
                image: c.image.startsWith("mirror.example/") ? c.image : "mirror.example/" + c.image
            })}}}}"#;
        let image = "/template/spec/containers/0/image";
        install_mutation(fixture, mirror, |spec| spec.pointer(image) == Some(&json!("mirror.example/probe"))).await;
        let image = async |image: &str| {
            let is_so = |deployment: &Value| deployment["spec"]["template"]["spec"]["containers"][0]["image"] == image;
            fixture.until("deployments/mws-web", is_so).await;
        };
        let one_write = "PATCH deployments/mws-web 200";
        let status = "PATCH mywebservers/web/status 200";

        fixture.create_web("web", json!({"image": "nginx", "replicas": 2})).await;
        fixture.wrote(NEW).await;
        image("mirror.example/nginx").await;
        let message = fixture.until_condition("web", "Mutated", "True", "ChangedByAdmission").await;
        let change = "Deployment mws-web at /spec/template/spec/containers/0/image: \"nginx\" became \"mirror.example/nginx\"";
        assert!(message.ends_with(change), "{message}");
        fixture.until("events", |events| events.to_string().contains("became")).await;
        roll_out(fixture, 2).await;
        fixture.wrote(status).await;
        fixture.until_condition("web", "Ready", "True", "AllReplicasReady").await;
        assert!(condition(&fixture.get("mywebservers/web").await, "Stalled").is_none());

        // Drift is repaired, in other fields and in this one.
        fixture.patch("deployments/mws-web", json!({"spec": {"replicas": 1}})).await;
        fixture.until("deployments/mws-web", |deployment| deployment["spec"]["replicas"] == 2).await;
        fixture.edit("deployments/mws-web", json!([
            {"op": "replace", "path": "/spec/template/spec/containers/0/image", "value": "other"},
        ])).await;
        image("mirror.example/nginx").await;
        fixture.settle().await;
        roll_out(fixture, 2).await;
        fixture.until_condition("web", "Ready", "True", "AllReplicasReady").await;
        fixture.settle().await;
        let written = fixture.transcript().await;
        assert_eq!(written.iter().filter(|line| *line == one_write).count(), 2, "{written:?}");

        // Once for each generation and once for each start of the operator, and no more.
        fixture.patch("mywebservers/web", json!({"spec": {"image": "nginx:2"}})).await;
        fixture.wrote(&format!("{one_write}\n{status}")).await;
        image("mirror.example/nginx:2").await;
        fixture.wrote("").await;
        fixture.stop_operator().await;
        fixture.spawn_operator(&[]);
        fixture.until_reconciled("web").await;
        fixture.wrote(one_write).await;
        fixture.wrote("").await;
        let log = fixture.operator().log();
        let is_drift = |line: &str| line.contains("drift corrected") && line.contains("/web\"");
        assert!(!log.lines().any(is_drift), "only admission has changed it");

        remove_policy(fixture, "mutating").await;
        until_enforced(fixture, |probe| !probe.as_ref().unwrap().to_string().contains("mirror")).await;
        fixture.stop_operator().await;
        fixture.spawn_operator(&[]);
        image("nginx:2").await;
        fixture.wrote(&format!("{one_write}\n{status}")).await;
        assert!(condition(&fixture.get("mywebservers/web").await, "Mutated").is_none());
    })
    .await;
}

/// An admission policy allows fewer replicas than the MyWebserver asks for.
#[tokio::test]
async fn a_policy_that_lowers_the_replicas_makes_the_web_unready() {
    on(&[Kind::Real], async |fixture| {
        fixture.start_operator(&[]).await;
        let one = "Object{spec: Object.spec{replicas: 1}}";
        install_mutation(fixture, one, |spec| spec["replicas"] == 1).await;
        fixture.create_web("web", json!({"image": "nginx", "replicas": 3})).await;
        fixture.wrote(NEW).await;
        roll_out(fixture, 1).await;
        let message = fixture.until_condition("web", "Ready", "False", "ChangedByAdmission").await;
        assert!(message.contains("changes the Deployment's replicas to 1"), "{message}");
        fixture.until_condition("web", "Stalled", "True", "ChangedByAdmission").await;
        let log = fixture.operator().log();
        let is_drift = |line: &str| line.contains("drift corrected") && line.contains("/web\"");
        assert!(!log.lines().any(is_drift), "only admission has changed it");
        // The allowed number is enough if the MyWebserver asks for that number.
        fixture.patch("mywebservers/web", json!({"spec": {"replicas": 1}})).await;
        fixture.until_condition("web", "Ready", "True", "AllReplicasReady").await;

        remove_policy(fixture, "mutating").await;
        until_enforced(fixture, |probe| probe.as_ref().unwrap()["spec"]["replicas"] == 3).await;
        fixture.patch("mywebservers/web", json!({"spec": {"replicas": 3}})).await;
        fixture.until("deployments/mws-web", |deployment| deployment["spec"]["replicas"] == 3).await;
        fixture.until_condition("web", "Ready", "False", "RolloutInProgress").await;
    })
    .await;
}

/// A selector is immutable: the Deployment was deleted at each start of the operator, and after each change of the spec.
#[tokio::test]
async fn a_policy_that_changes_our_selector_does_not_replace_the_deployment() {
    on(&[Kind::Real], async |fixture| {
        fixture.start_operator(&[]).await;
        let label = |path: &str| format!(r#"JSONPatch{{op: "add", path: "{path}/team", value: "a"}}"#);
        let (selector, template) = (label("/spec/selector/matchLabels"), label("/spec/template/metadata/labels"));
        let mutations = json!([{"patchType": "JSONPatch", "jsonPatch": {"expression": format!("[{selector}, {template}]")}}]);
        let is_create = json!([{"name": "create", "expression": "request.operation == 'CREATE'"}]);
        let spec = json!({"reinvocationPolicy": "Never", "mutations": mutations, "matchConditions": is_create});
        let has_team = |spec: &Value| spec["selector"]["matchLabels"]["team"] == "a";
        install_policy(fixture, "mutating", spec, |probe| has_team(&probe.as_ref().unwrap()["spec"])).await;
        fixture.create_web("web", json!({"image": "nginx"})).await;
        fixture.wrote(NEW).await;
        let message = fixture.until_condition("web", "Mutated", "True", "ChangedByAdmission").await;
        assert!(message.contains("/spec/selector/matchLabels/team"), "{message}");
        let uid = fixture.get("deployments/mws-web").await["metadata"]["uid"].clone();

        fixture.stop_operator().await;
        fixture.start_operator(&[]).await;
        fixture.patch("mywebservers/web", json!({"spec": {"replicas": 2}})).await;
        fixture.until("deployments/mws-web", |deployment| deployment["spec"]["replicas"] == 2).await;
        fixture.settle().await;
        let records = fixture.records().await;
        let count = |method: &str, part: &str| {
            records.iter().filter(|record| record.method == method && record.path.contains(part)).count()
        };
        assert_eq!(count("POST", "/deployments?dryRun=All"), 2, "at the start, and for the new spec");
        assert_eq!(count("DELETE", "/deployments/"), 0);
        let deployment = fixture.get("deployments/mws-web").await;
        assert_eq!((&deployment["metadata"]["uid"], &deployment["spec"]["replicas"]), (&uid, &json!(2)));
        remove_policy(fixture, "mutating").await;
    })
    .await;
}

/// Our watches select the children by their label.
#[tokio::test]
async fn a_policy_that_changes_our_label_is_reported_and_retried_slowly() {
    on(&[Kind::Real], async |fixture| {
        fixture.start_operator(&[]).await;
        let patch = r#"[JSONPatch{op: "add", path: "/metadata/labels", value: {"app.kubernetes.io/managed-by": "policy"}}]"#;
        let mutations = json!([{"patchType": "JSONPatch", "jsonPatch": {"expression": patch}}]);
        let spec = json!({"reinvocationPolicy": "Never", "mutations": mutations});
        let is_labelled = |probe: &Result<Value, Error>| {
            probe.as_ref().unwrap()["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "policy"
        };
        install_policy(fixture, "mutating", spec, is_labelled).await;
        fixture.create_web("web", json!({"image": "nginx"})).await;
        let message = fixture.until_condition("web", "Ready", "False", "ReconcileFailed").await;
                assert!(message.contains("something in the API server undoes our change of \"/metadata/labels"), "{message}");
        // Each retry comes after a longer pause.
        fixture.operator().until_logged(&["reconcile failed again", "undoes our change"]).await;
        let written = fixture.transcript().await;
        let count = |what: &str| written.iter().filter(|line| line.contains(what)).count();
        assert!(count("deployments") <= 16, "no pause: {written:?}");
        assert!(count("/status") <= 2, "{written:?}");
        remove_policy(fixture, "mutating").await;
        fixture.until("deployments/mws-web", |deployment| {
            deployment["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "mywebserver-operator"
        }).await;
        fixture.until_condition("web", "Ready", "False", "RolloutInProgress").await;
    })
    .await;
}

#[tokio::test]
async fn in_a_terminating_namespace_nothing_is_created() {
    on(&[Kind::EmbeddedWithControllers, Kind::Real], async |fixture| {
        // The deletion of the namespace also removes the operator's permissions.
        fixture.may_be_forbidden.set(true);
        fixture.start_operator(&[]).await;
        fixture.create_web("web", json!({"image": "nginx"})).await;
        // A finalizer keeps the namespace terminating, so that the operator has time to make mistakes.
        fixture
            .create("configmaps", &json!({"metadata": {"name": "last", "finalizers": ["example.com/wait"]}}))
            .await;
        fixture.settle().await;
        fixture.transcript().await;
        let path = format!("/api/v1/namespaces/{}", fixture.namespace);
        fixture.send(http::Method::DELETE, &path, "application/json", &Value::Null).await.unwrap();
        for what in ["mywebservers/web", "deployments/mws-web", "services/mws-web"] {
            fixture.until_gone(what).await;
        }
        fixture.patch("configmaps/last", json!({"metadata": {"finalizers": null}})).await;
        eventually("the namespace to be deleted", async || fixture.raw(&path).await.err()).await;
        let written = fixture.transcript().await;
        assert!(!written.iter().any(|line| line.starts_with("POST") && line.ends_with("201")), "{written:?}");
        assert!(fixture.operator().probe("/livez").await.starts_with("HTTP/1.1 200"));
    })
    .await;
}

#[tokio::test]
async fn without_the_crd_readyz_names_the_command_and_recovers() {
    on(&[Kind::EmbeddedBare, Kind::RealBare], async |fixture| {
        with_permissions(fixture).await;
        fixture.spawn_operator(&[]);
        let remedy = "install the CustomResourceDefinition mywebservers.k8sobjects.gsa.com: \
                      listwatch crd mywebserver | kubectl apply -f -";
        fixture.operator().until_unready(&["watch mywebservers", remedy]).await;
        fixture.operator().until_logged(&[remedy, "WARN"]).await;
        fixture.install(&manifests::crd()).await;
        fixture.operator().until_ready().await;
        fixture.create_web("web", json!({"image": "nginx"})).await;
        // The server logs an answer a moment after sending it.
        let status = |record: &crate::fixture::Record| record.path.contains("mywebservers/web/status");
        eventually("the status to be written", async || {
            fixture.records().await.iter().any(status).then_some(())
        })
        .await;
        assert_eq!(fixture.transcript().await, NEW.lines().collect::<Vec<_>>());
    })
    .await;
}

/// `/readyz` answered 200, with `[+]` and the error in one line.
#[tokio::test]
async fn a_deleted_crd_makes_the_operator_unready_until_it_is_installed_again() {
    on(&[Kind::EmbeddedBare, Kind::RealBare], async |fixture| {
        with_crd(fixture, &manifests::crd()).await;
        fixture.spawn_operator(&[]);
        fixture.operator().until_ready().await;
        let crd = manifests::CRD_PATH;
        fixture.send(http::Method::DELETE, crd, "application/json", &Value::Null).await.unwrap();
        let in_namespace = format!("watch mywebservers in namespace {}:", fixture.namespace);
        let failure = format!("[-] {in_namespace} ");
        let remedy = "install the CustomResourceDefinition mywebservers.k8sobjects.gsa.com: \
                      listwatch crd mywebserver | kubectl apply -f -";
        fixture.operator().until_unready(&[&failure, remedy, "[+] watch services", "\nnot ready\n"]).await;
        eventually("the CRD to be gone", async || fixture.raw(crd).await.err()).await;
        fixture.install(&manifests::crd()).await;
        fixture.operator().until_ready().await;
        fixture.create_web("web", json!({"image": "nginx"})).await;
        fixture.until("services/mws-web", |_| true).await;
    })
    .await;
}

/// An older version of the CRD, which allows any number or string as the port.
pub fn older_crd() -> Value {
    changed_crd(|fields| fields["port"] = json!({"x-kubernetes-int-or-string": true}))
}

/// The CRD with other schemas of the fields of the spec.
fn changed_crd(change: impl Fn(&mut Value)) -> Value {
    let mut crd = manifests::crd();
    for version in crd["spec"]["versions"].as_array_mut().unwrap() {
        change(&mut version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]);
    }
    crd
}

/// Replaces an older CRD with the current one.
async fn upgrade_crd(fixture: &Fixture) {
    let patch = json!({"spec": {"versions": manifests::crd()["spec"]["versions"]}});
    let merge = "application/merge-patch+json";
    fixture.send(http::Method::PATCH, manifests::CRD_PATH, merge, &patch).await.unwrap();
}

#[tokio::test]
async fn more_than_1000_replicas_are_refused_and_an_older_object_keeps_its_replicas() {
    on(&[Kind::EmbeddedBare, Kind::RealBare], async |fixture| {
        let older = changed_crd(|fields| {
            let maximum = fields["replicas"].as_object_mut().unwrap().remove("maximum");
            assert_eq!(maximum, Some(json!(1000)));
        });
        with_crd(fixture, &older).await;
        fixture.create_web("old", json!({"image": "nginx", "replicas": 100_000})).await;
        upgrade_crd(fixture).await;
        let webs = fixture.path("mywebservers");
        // A new schema is enforced some moments after its write.
        let error = eventually("the new schema to be enforced", async || {
            let web = web("new", json!({"image": "nginx", "replicas": 1001}));
            fixture.try_create(&format!("{webs}?dryRun=All"), &web).await.err()
        })
        .await;
        assert!(error.to_string().contains("less than or equal to 1000"), "{error}");
        fixture.create_web("new", json!({"image": "nginx", "replicas": 1000})).await;
        let scale = json!({"spec": {"replicas": 1001}});
        for path in
            [webs.replace("/v2/", "/v1/") + "/new", format!("{webs}/new"), format!("{webs}/new/scale")]
        {
            let refused =
                fixture.send(http::Method::PATCH, &path, "application/merge-patch+json", &scale).await;
            let error = refused.unwrap_err();
            assert_eq!(error.code(), Some(422), "{path}: {error}");
        }

        fixture.start_operator(&[]).await;
        fixture.until_condition("old", "Ready", "False", "RolloutInProgress").await;
        fixture.patch("mywebservers/old", json!({"spec": {"image": "nginx:2"}})).await;
        fixture.until("mywebservers/old", |old| old["status"]["observedGeneration"] == 2).await;
        let deployment = fixture.get("deployments/mws-old").await;
        assert_eq!(deployment["spec"]["replicas"], 100_000);
        assert_eq!(deployment["spec"]["template"]["spec"]["containers"][0]["image"], "nginx:2");
    })
    .await;
}

/// Installs this CRD, and creates the namespace and the operator's permissions.
pub async fn with_crd(fixture: &Fixture, crd: &Value) {
    fixture.install(crd).await;
    with_permissions(fixture).await;
}

/// Creates the namespace and the operator's permissions. The embedded server has no ClusterRoles.
async fn with_permissions(fixture: &Fixture) {
    if !fixture.is_embedded() {
        fixture.install(&manifests::cluster_role()).await;
    }
    fixture.create_namespace().await;
}

#[tokio::test]
async fn each_operator_reports_an_object_that_does_not_decode() {
    for (operator, path, field) in
        [(BuiltIn::Database, "databases", "maxLagSeconds"), (BuiltIn::Memcached, "memcacheds", "memoryMb")]
    {
        in_process::on(operator, &[Kind::InProcess], async move |fixture: &Fixture| {
            let mut definition = operator.definitions()[0].clone();
            let schema = &mut definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
            schema["properties"]["spec"]["properties"][field] =
                json!({"x-kubernetes-preserve-unknown-fields": true});
            let text = |value: &Value| value.as_str().unwrap().to_owned();
            let (spec, name) = (&definition["spec"], text(&definition["metadata"]["name"]));
            let api_version = format!("{}/{}", text(&spec["group"]), text(&spec["versions"][0]["name"]));
            let crd = format!("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}");
            fixture.send(Method::PATCH, &crd, "application/merge-patch+json", &definition).await.unwrap();
            let mut object = json!({
                "apiVersion": api_version, "kind": spec["names"]["kind"],
                "metadata": {"name": "first"}, "spec": {"size": 2, "version": "15"},
            });
            object["spec"][field] = "two".into();
            fixture.create(path, &object).await;
            let _running = Running::start(fixture, operator);
            let is_reported = |object: &Value| {
                condition(object, "Stalled").is_some_and(|stalled| stalled["reason"] == "InvalidSpec")
            };
            fixture.until(&format!("{path}/first"), is_reported).await;
        })
        .await;
    }
}

#[tokio::test]
async fn an_object_that_does_not_decode_is_reported_and_keeps_its_children() {
    on(&[Kind::EmbeddedBare, Kind::RealBare], async |fixture| {
        with_crd(fixture, &older_crd()).await;
        let eighty = json!({"image": "nginx", "port": "eighty"});
        fixture.create_web("first", eighty.clone()).await;
        fixture.start_operator(&[]).await;
        let message = fixture.until_condition("first", "Stalled", "True", "InvalidSpec").await;
        assert!(message.contains("eighty"), "{message}");
        fixture.until_condition("first", "Ready", "False", "InvalidSpec").await;
        assert!(fixture.find("deployments/mws-first").await.is_none());

        // The children of an object that was readable stay as they are.
        fixture.create_settled_web("web", json!({"image": "nginx", "port": 80})).await;
        fixture.patch("mywebservers/web", json!({"spec": {"port": "eighty", "image": "other"}})).await;
        fixture.wrote("PATCH mywebservers/web/status 200").await;
        let deployment = fixture.get("deployments/mws-web").await;
        assert_eq!(deployment["spec"]["template"]["spec"]["containers"][0]["image"], "nginx");
        fixture.get("services/mws-web").await;
        assert!(condition(&fixture.get("mywebservers/web").await, "Stalled").unwrap()["message"].as_str().unwrap().contains("eighty"));

        // When the object is readable again, it is reconciled.
        fixture.patch("mywebservers/web", json!({"spec": {"port": 81}})).await;
        fixture.wrote("PATCH deployments/mws-web 200\nPATCH services/mws-web 200\nPATCH mywebservers/web/status 200").await;
        fixture.until_condition("web", "Ready", "False", "RolloutInProgress").await;

        // After an upgrade of the CRD and of the operator, the first object still exists.
        upgrade_crd(fixture).await;
        fixture.stop_operator().await;
        fixture.spawn_operator(&[]);
        fixture.until_reconciled("web").await;
        fixture.operator().until_logged(&["is unreadable", "/first"]).await;
        fixture.wrote("").await;
        fixture.operator().until_ready().await;
    })
    .await;
}

#[tokio::test]
async fn the_schema_refuses_specs_that_cannot_become_children() {
    on(&[Kind::Embedded, Kind::Real], async |fixture| {
        let good = json!({"image": "nginx", "port": 80, "replicas": 1});
        let with = |field: &str, value: Value| {
            let mut spec = good.clone();
            spec[field] = value;
            spec
        };
        let long = "a".repeat(60);
        for (name, spec, field) in [
            // Its Service would be called `mws-…`, but the name of a Service has at most 63 characters and no dot.
            (&*long, good.clone(), "metadata.name"),
            ("a.b", good.clone(), "metadata.name"),
            ("web", json!({"port": 80}), "spec.image"),
            ("web", with("image", json!("")), "spec.image"),
            ("web", with("image", json!("a b")), "spec.image"),
            ("web", with("image", json!(7)), "spec.image"),
            // The kubelet cannot parse these.
            ("web", with("image", json!("nginx:")), "spec.image"),
            ("web", with("image", json!("NGINX")), "spec.image"),
            ("web", with("port", json!(0)), "spec.port"),
            ("web", with("port", json!(65536)), "spec.port"),
            ("web", with("port", json!("eighty")), "spec.port"),
            ("web", with("replicas", json!(-1)), "spec.replicas"),
            ("web", with("replicas", json!(1.5)), "spec.replicas"),
        ] {
            let error = fixture
                .try_create(&fixture.path("mywebservers"), &web(name, spec.clone()))
                .await
                .unwrap_err();
            assert_eq!(error.code(), Some(422), "{name} {spec}: {error}");
            assert!(error.to_string().contains(field), "{name} {spec}: {error}");
        }
        let longest = &long[1..];
        fixture.start_operator(&[]).await;
        fixture.create_web(longest, good).await;
        fixture.wrote(&NEW.replace("/web/", &format!("/{longest}/"))).await;
        fixture.get(&format!("services/mws-{longest}")).await;
    })
    .await;
}

/// An older CRD accepted images that the kubelet cannot parse.
#[tokio::test]
async fn an_image_that_only_an_older_crd_accepted_keeps_working() {
    on(&[Kind::EmbeddedBare, Kind::RealBare], async |fixture| {
        let older = changed_crd(|fields| fields["image"]["pattern"] = json!(r"^\S+$"));
        with_crd(fixture, &older).await;
        fixture.create_web("web", json!({"image": "nginx:"})).await;
        upgrade_crd(fixture).await;
        let webs = fixture.path("mywebservers") + "?dryRun=All";
        eventually("the new schema to be enforced", async || {
            fixture.try_create(&webs, &web("other", json!({"image": "nginx:"}))).await.err()
        })
        .await;
        fixture.start_operator(&[]).await;
        fixture.until_condition("web", "Ready", "False", "RolloutInProgress").await;
        let deployment = fixture.get("deployments/mws-web").await;
        assert_eq!(deployment["spec"]["template"]["spec"]["containers"][0]["image"], "nginx:");
        fixture.patch("mywebservers/web", json!({"spec": {"replicas": 2}})).await;
        fixture.wrote("PATCH deployments/mws-web 200\nPATCH mywebservers/web/status 200").await;
    })
    .await;
}

#[tokio::test]
async fn defaults_are_filled_in() {
    on_each(async |fixture| {
        let web = fixture.create_web("web", json!({"image": "nginx"})).await;
        assert_eq!((&web["spec"]["port"], &web["spec"]["replicas"]), (&json!(80), &json!(1)));
        // So that clients that wait for `observedGeneration` can distinguish a new object from a reconciled one.
        assert_eq!(web["status"]["observedGeneration"], -1);
    })
    .await;
}
