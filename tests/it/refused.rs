//! What the API server will not have, from us or from our users: it is said where people look, and it passes.

use std::cell::Cell;

use listwatch::{
    apiserver::{Fault, Planned},
    client::Error,
};
use serde_json::{Value, json};

use crate::{
    hands::{condition, eventually, web},
    manifests,
    webhook::Webhook,
    world::{Kind, Server, World, on, on_each},
};

const NEW: &str = "POST deployments 201\nPOST services 201\nPATCH mywebservers/web/status 200";

#[tokio::test]
async fn without_permission_to_list_readyz_names_the_verb_and_the_resource() {
    on(&[Kind::Embedded, Kind::Real], async |world| {
        world.may_be_forbidden.set(true);
        world.forbid().await;
        world.spawn_operator(&[]);
        for resource in ["mywebservers", "deployments", "services"] {
            let needs = format!("grant the verbs list and watch on the resource {resource} of API group");
            world.operator().until_unready(&[&needs, "403 Forbidden"]).await;
            world.operator().until_logged(&[&needs, "WARN"]).await;
        }
        world.allow().await;
        world.operator().until_ready().await;
        // On a quiet stream too, what is mended is not told for longer than it takes to see that it is.
        eventually("/readyz to forget the problem", async || {
            (!world.operator().probe("/readyz").await.contains("403")).then_some(())
        })
        .await;
        world.create_web("web", json!({"image": "nginx"})).await;
        world.until("services/mws-web", |_| true).await;
    })
    .await;
}

#[tokio::test]
async fn permissions_that_are_taken_away_are_named_in_the_log_and_their_return_is_noticed() {
    on(&[Kind::Embedded, Kind::Real], async |world| {
        world.may_be_forbidden.set(true);
        world.start_operator(&[]).await;
        world.forbid().await;
        world.create_web("web", json!({"image": "nginx"})).await;
        // What is to be mended first, not that the status could not be written either.
        let first = ["reconcile failed", "mws-web: 403 Forbidden", "cannot create resource", "deployments"];
        world.operator().until_logged(&first).await;
        world.allow().await;
        world.until("mywebservers/web", |web| web["status"]["observedGeneration"] == 1).await;
        world.get("deployments/mws-web").await;
        world.get("services/mws-web").await;
    })
    .await;
}

#[tokio::test]
async fn a_single_missing_permission_is_a_condition() {
    on(&[Kind::Embedded, Kind::Real], async |world| {
        world.may_be_forbidden.set(true);
        world.start_operator(&[]).await;
        world.allow_all_but("create", "services").await;
        world.create_web("web", json!({"image": "nginx"})).await;
        let said = world.until_condition("web", "Stalled", "True", "Forbidden").await;
        let message = said["message"].as_str().unwrap();
        assert!(message.contains("cannot create resource") && message.contains("services"), "{message}");
        world.get("deployments/mws-web").await;
        world.allow().await;
        world.until("services/mws-web", |_| true).await;
        world.until_condition("web", "Ready", "False", "RolloutInProgress").await;
    })
    .await;
}

#[tokio::test]
async fn a_full_quota_is_a_condition_and_is_tried_again() {
    on(&[Kind::Embedded, Kind::Real], async |world| {
        world.may_be_forbidden.set(true);
        world.start_operator(&[]).await;
        fill_quota(world).await;
        is_refused(world, "QuotaExceeded", "exceeded quota: few").await;
        raise_quota(world).await;
        is_let_pass(world).await;
    })
    .await;
}

/// The operator took the Deployment that was never created for one that somebody had deleted meanwhile.
#[tokio::test]
async fn what_a_full_quota_refused_before_a_restart_is_created_and_not_restored() {
    on(&[Kind::Embedded, Kind::Real], async |world| {
        world.may_be_forbidden.set(true);
        world.start_operator(&[]).await;
        fill_quota(world).await;
        world.create_web("web", json!({"image": "nginx"})).await;
        world.until_condition("web", "Ready", "False", "QuotaExceeded").await;
        world.stop_operator().await;
        raise_quota(world).await;
        world.spawn_operator(&[]);
        is_let_pass(world).await;
    })
    .await;
}

/// A quota without room for another Deployment.
async fn fill_quota(world: &World) {
    if let Server::Embedded(server) = &world.server {
        server.fault(Fault::Quota("few".to_owned()).on("POST", "/deployments"));
        return;
    }
    let hard = json!({"count/deployments.apps": "1"});
    world.create("resourcequotas", &json!({"metadata": {"name": "few"}, "spec": {"hard": hard}})).await;
    let is_full = |quota: &Value| quota["status"]["used"]["count/deployments.apps"] == "1";
    world.until("resourcequotas/few", is_full).await;
}

async fn raise_quota(world: &World) {
    if let Server::Embedded(server) = &world.server {
        server.end_faults();
        return;
    }
    let more = json!({"spec": {"hard": {"count/deployments.apps": "9"}}});
    world.patch("resourcequotas/few", more).await;
}

/// The range of Service addresses is full, say. It was tried again for ever, and the object had no status.
#[tokio::test]
async fn an_internal_error_of_the_server_is_a_condition() {
    on(&[Kind::Embedded], async |world| {
        let Server::Embedded(server) = &world.server else { unreachable!("asked for above") };
        world.start_operator(&[]).await;
        server.fault("internal-error,method=POST,path=/deployments".parse::<Planned>().unwrap());
        is_refused(world, "InternalError", "a fault on demand").await;
        let tries = Cell::new(0);
        eventually("two further tries", async || {
            let is_try = |line: &&String| line.starts_with("POST deployments 5");
            tries.set(tries.get() + world.transcript().iter().filter(is_try).count());
            (tries.get() >= 2).then_some(())
        })
        .await;
        server.end_faults();
        is_let_pass(world).await;
        let events = world.get("events").await["items"].take();
        let told = events.as_array().unwrap().iter().filter(|event| event["reason"] == "Failed");
        let series: Vec<_> = told.map(|event| &event["series"]).collect();
        assert_eq!(series, [&Value::Null], "one Event, however often it is tried");
    })
    .await;
}

/// It goes away by trying again, and says nothing about the object.
#[tokio::test]
async fn a_server_that_is_overloaded_is_no_condition() {
    on(&[Kind::Embedded], async |world| {
        let Server::Embedded(server) = &world.server else { unreachable!("asked for above") };
        world.start_operator(&[]).await;
        let unavailable = Fault::Answer { status: 503, body: String::new(), retry_after_secs: None };
        server.fault(unavailable.on("POST", "/deployments").times(2));
        world.create_web("web", json!({"image": "nginx"})).await;
        world.until("deployments/mws-web", |_| true).await;
        world.settle().await;
        let written = world.transcript();
        let statuses = written.iter().filter(|line| line.starts_with("PATCH mywebservers/web/status"));
        assert_eq!(statuses.count(), 1, "{written:?}");
    })
    .await;
}

/// The log said so before the status was written.
#[tokio::test]
async fn the_log_says_ready_once_the_status_does() {
    on(&[Kind::Embedded, Kind::Real], async |world| {
        world.may_be_forbidden.set(true);
        world.start_operator(&[]).await;
        world.create_web("web", json!({"image": "nginx"})).await;
        world.settle().await;
        world.allow_all_but("patch", "mywebservers/status").await;
        roll_out(world, 1).await;
        world.operator().until_logged(&["reconcile failed", "/web\"", "cannot patch resource"]).await;
        let ready = "AllReplicasReady: 1 of 1 replicas are available";
        assert!(!world.operator().log().contains(ready));
        world.allow().await;
        world.until_condition("web", "Ready", "True", "AllReplicasReady").await;
        world.operator().until_logged(&[ready]).await;
    })
    .await;
}

#[tokio::test]
async fn a_write_that_an_admission_denies_is_a_condition_and_is_tried_again() {
    on(&[Kind::Embedded, Kind::Real], async |world| {
        world.may_be_forbidden.set(true);
        world.start_operator(&[]).await;
        if let Server::Embedded(server) = &world.server {
            let (webhook, message) = ("freeze.example.com".to_owned(), "frozen, ask Jane".to_owned());
            server.fault(Fault::Deny { webhook, message, code: 403 }.on("POST", "/deployments"));
        } else {
            let nobody = json!([{"expression": "false", "message": "frozen, ask Jane"}]);
            put_in_force(world, "validating", json!({"validations": nobody}), |probe| probe.is_err()).await;
        }
        is_refused(world, "AdmissionDenied", "frozen, ask Jane").await;
        world.until_condition("web", "Stalled", "True", "AdmissionDenied").await;
        if let Server::Embedded(server) = &world.server {
            server.end_faults();
        } else {
            remove_policy(world, "validating").await;
        }
        is_let_pass(world).await;
    })
    .await;
}

/// The denial of a webhook carries the webhook's own status code. It was taken for a conflict or an overloaded server, and
/// never became a condition.
#[tokio::test]
async fn a_webhook_that_denies_with_any_status_code_is_a_condition() {
    on(&[Kind::Embedded, Kind::Real], async |world| {
        world.may_be_forbidden.set(true);
        world.start_operator(&[]).await;
        let webhook = Webhook::start("", "the change freeze lasts until Monday").await;
        if !matches!(world.server, Server::Embedded(_)) {
            call(world, &webhook).await;
        }
        for (code, is_stalled) in [(409, true), (404, true), (429, false), (500, false), (503, false)] {
            webhook.deny_with(code);
            if let Server::Embedded(server) = &world.server {
                server.end_faults();
                let (webhook, message) =
                    ("freeze.example.com".to_owned(), "the change freeze lasts until Monday".to_owned());
                server.fault(Fault::Deny { webhook, message, code }.on("POST", "/deployments"));
            }
            let name = format!("web-{code}");
            world.create_web(&name, json!({"image": "nginx"})).await;
            let said = world.until_condition(&name, "Ready", "False", "AdmissionDenied").await;
            let denial = "\"freeze.example.com\" denied the request: the change freeze lasts until Monday";
            assert!(said["message"].as_str().unwrap().contains(denial), "{said}");
            let web = world.get(&format!("mywebservers/{name}")).await;
            assert_eq!(condition(&web, "Stalled").is_some(), is_stalled, "{web}");
            let warned = ["WARN", "reconcile failed", &format!("/{name}\""), "the change freeze lasts"];
            world.operator().until_logged(&warned).await;
        }
        if let Server::Embedded(server) = &world.server {
            server.end_faults();
        } else {
            call_no_more(world).await;
        }
        world.until("deployments/mws-web-409", |_| true).await;
    })
    .await;
}

/// A webhook that named a field of the Pod template was taken for the API server's own validation: the template was reset to
/// our fields, and the user's sidecar was gone.
#[tokio::test]
async fn an_update_that_a_webhook_denies_waits_and_leaves_the_template_as_it_is() {
    on_each(async |world| {
        world.create_web("web", json!({"image": "nginx"})).await;
        world.settle().await;
        // Of the same image as the probe of `until_in_force`.
        let sidecar = json!({"name": "sidecar", "image": "probe"});
        let add = json!([{"op": "add", "path": "/spec/template/spec/containers/-", "value": sidecar}]);
        world.edit("deployments/mws-web", add).await;
        let webhook = Webhook::start("\"image\":\"probe\"", "no probes").await;
        webhook.deny_with(422);
        if let Server::Embedded(server) = &world.server {
            let mut status = webhook.status();
            status["message"] =
                json!("admission webhook \"freeze.example.com\" denied the request: no probes");
            let denial = Fault::Answer { status: 422, body: status.to_string(), retry_after_secs: None };
            server.fault(denial.on("PATCH", "/deployments/mws-web").times(1));
        } else {
            call(world, &webhook).await;
        }
        world.patch("mywebservers/web", json!({"spec": {"image": "nginx:2"}})).await;
        world.until("events", |events| events.to_string().contains("AdmissionDenied: ")).await;
        if !matches!(world.server, Server::Embedded(_)) {
            call_no_more(world).await;
        }
        let containers = |deployment: &Value| deployment["spec"]["template"]["spec"]["containers"].clone();
        let is_updated = |deployment: &Value| containers(deployment)[0]["image"] == "nginx:2";
        let deployment = world.until("deployments/mws-web", is_updated).await;
        assert_eq!(containers(&deployment)[1]["name"], "sidecar");
        // What was refused and then let pass is no drift.
        let is_told = |events: &Value| events.to_string().contains("changed Deployment mws-web at");
        let events = world.until("events", is_told).await;
        assert!(!events.to_string().contains("restored Deployment mws-web"), "{events}");
    })
    .await;
}

/// Has the server ask the webhook about each Deployment that is written here.
async fn call(world: &World, webhook: &Webhook) {
    let deployments = json!({
        "apiGroups": ["apps"], "apiVersions": ["v1"], "resources": ["deployments"],
        "operations": ["CREATE", "UPDATE"],
    });
    let configuration = json!({
        "metadata": {"name": world.namespace},
        "webhooks": [{
            "name": "freeze.example.com", "clientConfig": webhook.client_config, "rules": [deployments],
            "admissionReviewVersions": ["v1"], "sideEffects": "None", "failurePolicy": "Fail",
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": world.namespace}},
        }],
    });
    world.try_create(WEBHOOKS, &configuration).await.unwrap();
    until_in_force(world, |probe| probe.is_err()).await;
}

async fn call_no_more(world: &World) {
    let path = format!("{WEBHOOKS}/{}", world.namespace);
    world.send(http::Method::DELETE, &path, "application/json", &Value::Null).await.unwrap();
}

/// A web whose Deployment is refused: that is said where people look, it is tried again and not too often, and it is no
/// reason to be without a Service.
async fn is_refused(world: &World, reason: &str, text: &str) {
    world.create_web("web", json!({"image": "nginx"})).await;
    let said = world.until_condition("web", "Ready", "False", reason).await;
    assert!(said["message"].as_str().unwrap().contains(text), "{said}");
    let event = format!("{reason}: ");
    world.until("events", |events| events.to_string().contains(&event)).await;
    world.get("services/mws-web").await;
    world.operator().until_logged(&["reconcile failed again", text]).await;
    let written = world.transcript();
    let count = |start: &str| written.iter().filter(|line| line.starts_with(start)).count();
    let tries = count("POST deployments 4") + count("POST deployments 5");
    assert!((2..=8).contains(&tries), "{written:?}");
    assert_eq!((count("POST services"), count("PATCH")), (1, 1), "{written:?}");
}

/// It is made, and not restored, because it was not there before.
async fn is_let_pass(world: &World) {
    world.until("deployments/mws-web", |_| true).await;
    world.until_condition("web", "Ready", "False", "RolloutInProgress").await;
    let created = |events: &Value| events.to_string().contains("created Deployment mws-web");
    let events = world.until("events", created).await;
    assert!(!events.to_string().contains("restored Deployment mws-web"), "{events}");
    let log = world.operator().log();
    assert!(!log.lines().any(|line| line.contains("made anew") && line.contains("mws-web")), "{log}");
}

const ADMISSION: &str = "/apis/admissionregistration.k8s.io/v1";
const WEBHOOKS: &str = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";

/// Has a `mutating` or `validating` policy of the cluster look at each Deployment that is written here, and waits until
/// the answer to somebody else's write shows it.
async fn put_in_force(
    world: &World,
    kind: &str,
    mut spec: Value,
    is_in_force: impl Fn(&Result<Value, Error>) -> bool,
) {
    let name = &world.namespace;
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
        world.try_create(&format!("{ADMISSION}/{kind}admission{resource}"), &object).await.unwrap();
    }
    until_in_force(world, is_in_force).await;
}

/// Waits until the answer to somebody else's write shows a policy or webhook, or its end.
async fn until_in_force(world: &World, is_in_force: impl Fn(&Result<Value, Error>) -> bool) {
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
        let path = world.path("deployments") + "?dryRun=All";
        is_in_force(&world.try_create(&path, &probe).await).then_some(())
    })
    .await;
}

async fn remove_policy(world: &World, kind: &str) {
    for resource in ["policybindings", "policies"] {
        let path = format!("{ADMISSION}/{kind}admission{resource}/{}", world.namespace);
        world.send(http::Method::DELETE, &path, "application/json", &Value::Null).await.unwrap();
    }
}

/// Has a policy of the cluster change Deployments as this expression says, and waits until a probe is changed.
async fn mutate(world: &World, expression: &str, is_changed: impl Fn(&Value) -> bool) {
    let mutations =
        json!([{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}}]);
    let spec = json!({"reinvocationPolicy": "Never", "mutations": mutations});
    put_in_force(world, "mutating", spec, |probe| is_changed(&probe.as_ref().unwrap()["spec"])).await;
}

/// What the Deployment controller says when that many Pods run.
async fn roll_out(world: &World, replicas: i64) {
    let generation = world.get("deployments/mws-web").await["metadata"]["generation"].clone();
    let status = json!({
        "observedGeneration": generation, "replicas": replicas, "updatedReplicas": replicas,
        "readyReplicas": replicas, "availableReplicas": replicas,
    });
    world.patch("deployments/mws-web/status", json!({ "status": status })).await;
}

/// All images come from a mirror. The Pods served, and the condition was `ReconcileFailed` for ever.
#[tokio::test]
async fn a_policy_that_changes_our_image_is_told_and_not_fought_and_ready_follows_the_pods() {
    on(&[Kind::Real], async |world| {
        world.start_operator(&[]).await;
        let mirror = r#"Object{spec: Object.spec{template: Object.spec.template{spec: Object.spec.template.spec{
            containers: object.spec.template.spec.containers.map(c, Object.spec.template.spec.containers{
                name: c.name,
                image: c.image.startsWith("mirror.example/") ? c.image : "mirror.example/" + c.image
            })}}}}"#;
        let image = "/template/spec/containers/0/image";
        mutate(world, mirror, |spec| spec.pointer(image) == Some(&json!("mirror.example/probe"))).await;
        let image = async |image: &str| {
            let is_so = |deployment: &Value| deployment["spec"]["template"]["spec"]["containers"][0]["image"] == image;
            world.until("deployments/mws-web", is_so).await;
        };
        let one_write = "PATCH deployments/mws-web 200";
        let status = "PATCH mywebservers/web/status 200";

        world.create_web("web", json!({"image": "nginx", "replicas": 2})).await;
        world.wrote(NEW).await;
        image("mirror.example/nginx").await;
        let said = world.until_condition("web", "Mutated", "True", "ChangedByAdmission").await;
        let change = "Deployment mws-web at /spec/template/spec/containers/0/image: \"nginx\" became \"mirror.example/nginx\"";
        assert!(said["message"].as_str().unwrap().ends_with(change), "{said}");
        world.until("events", |events| events.to_string().contains("became")).await;
        roll_out(world, 2).await;
        world.wrote(status).await;
        world.until_condition("web", "Ready", "True", "AllReplicasReady").await;
        assert!(condition(&world.get("mywebservers/web").await, "Stalled").is_none());

        // Drift is repaired, be it of another field or of this one.
        world.patch("deployments/mws-web", json!({"spec": {"replicas": 1}})).await;
        world.until("deployments/mws-web", |deployment| deployment["spec"]["replicas"] == 2).await;
        world.edit("deployments/mws-web", json!([
            {"op": "replace", "path": "/spec/template/spec/containers/0/image", "value": "other"},
        ])).await;
        image("mirror.example/nginx").await;
        world.settle().await;
        roll_out(world, 2).await;
        world.until_condition("web", "Ready", "True", "AllReplicasReady").await;
        let written = world.transcript();
        assert_eq!(written.iter().filter(|line| *line == one_write).count(), 2, "{written:?}");

        // Once for each generation, once for each start of the operator, and not again.
        world.patch("mywebservers/web", json!({"spec": {"image": "nginx:2"}})).await;
        world.wrote(&format!("{one_write}\n{status}")).await;
        image("mirror.example/nginx:2").await;
        world.wrote("").await;
        world.stop_operator().await;
        world.spawn_operator(&[]);
        world.until_looked_at("web").await;
        world.wrote(one_write).await;
        world.wrote("").await;
        let log = world.operator().log();
        let is_drift = |line: &str| line.contains("drift corrected") && line.contains("/web\"");
        assert!(!log.lines().any(is_drift), "nobody else has changed it");

        remove_policy(world, "mutating").await;
        until_in_force(world, |probe| !probe.as_ref().unwrap().to_string().contains("mirror")).await;
        world.stop_operator().await;
        world.spawn_operator(&[]);
        image("nginx:2").await;
        world.wrote(&format!("{one_write}\n{status}")).await;
        assert!(condition(&world.get("mywebservers/web").await, "Mutated").is_none());
    })
    .await;
}

/// A policy of the cluster that allows fewer replicas than the MyWebserver asks for.
#[tokio::test]
async fn a_policy_that_allows_fewer_replicas_keeps_the_web_from_being_ready() {
    on(&[Kind::Real], async |world| {
        world.start_operator(&[]).await;
        let one = "Object{spec: Object.spec{replicas: 1}}";
        mutate(world, one, |spec| spec["replicas"] == 1).await;
        world.create_web("web", json!({"image": "nginx", "replicas": 3})).await;
        world.wrote(NEW).await;
        roll_out(world, 1).await;
        let said = world.until_condition("web", "Ready", "False", "ChangedByAdmission").await;
        assert!(
            said["message"].as_str().unwrap().contains("changes the Deployment's replicas to 1"),
            "{said}"
        );
        world.until_condition("web", "Stalled", "True", "ChangedByAdmission").await;
        let log = world.operator().log();
        let is_drift = |line: &str| line.contains("drift corrected") && line.contains("/web\"");
        assert!(!log.lines().any(is_drift), "it was not");
        // As many as are allowed are enough, if they are asked for.
        world.patch("mywebservers/web", json!({"spec": {"replicas": 1}})).await;
        world.until_condition("web", "Ready", "True", "AllReplicasReady").await;

        remove_policy(world, "mutating").await;
        until_in_force(world, |probe| probe.as_ref().unwrap()["spec"]["replicas"] == 3).await;
        world.patch("mywebservers/web", json!({"spec": {"replicas": 3}})).await;
        world.until("deployments/mws-web", |deployment| deployment["spec"]["replicas"] == 3).await;
        world.until_condition("web", "Ready", "False", "RolloutInProgress").await;
    })
    .await;
}

/// By their label we see our children.
#[tokio::test]
async fn a_policy_that_takes_our_label_is_said_and_not_fought() {
    on(&[Kind::Real], async |world| {
        world.start_operator(&[]).await;
        let by = r#"[JSONPatch{op: "add", path: "/metadata/labels", value: {"app.kubernetes.io/managed-by": "somebody"}}]"#;
        let mutations = json!([{"patchType": "JSONPatch", "jsonPatch": {"expression": by}}]);
        let spec = json!({"reinvocationPolicy": "Never", "mutations": mutations});
        let is_labelled = |probe: &Result<Value, Error>| {
            probe.as_ref().unwrap()["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "somebody"
        };
        put_in_force(world, "mutating", spec, is_labelled).await;
        world.create_web("web", json!({"image": "nginx"})).await;
        let said = world.until_condition("web", "Ready", "False", "ReconcileFailed").await;
        let message = said["message"].as_str().unwrap();
        assert!(message.contains("something in the API server undoes our change of \"/metadata/labels"), "{message}");
        // It is tried again later each time.
        world.operator().until_logged(&["reconcile failed again", "undoes our change"]).await;
        let written = world.transcript();
        let count = |what: &str| written.iter().filter(|line| line.contains(what)).count();
        assert!(count("deployments") <= 16, "a fight: {written:?}");
        assert!(count("/status") <= 2, "{written:?}");
        remove_policy(world, "mutating").await;
        world.until("deployments/mws-web", |deployment| {
            deployment["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "mywebserver-operator"
        }).await;
        world.until_condition("web", "Ready", "False", "RolloutInProgress").await;
    })
    .await;
}

#[tokio::test]
async fn in_a_namespace_that_is_being_deleted_nothing_is_made() {
    on(&[Kind::EmbeddedWithControllers, Kind::Real], async |world| {
        // On its way the namespace loses the operator's permissions too.
        world.may_be_forbidden.set(true);
        world.start_operator(&[]).await;
        world.create_web("web", json!({"image": "nginx"})).await;
        // It keeps the namespace from going, so that there is time to do wrong.
        world
            .create("configmaps", &json!({"metadata": {"name": "last", "finalizers": ["example.com/wait"]}}))
            .await;
        world.settle().await;
        world.transcript();
        let path = format!("/api/v1/namespaces/{}", world.namespace);
        world.send(http::Method::DELETE, &path, "application/json", &Value::Null).await.unwrap();
        for what in ["mywebservers/web", "deployments/mws-web", "services/mws-web"] {
            world.until_gone(what).await;
        }
        world.patch("configmaps/last", json!({"metadata": {"finalizers": null}})).await;
        eventually("the namespace to go", async || world.raw(&path).await.err()).await;
        let written = world.transcript();
        assert!(!written.iter().any(|line| line.starts_with("POST") && line.ends_with("201")), "{written:?}");
        assert!(world.operator().probe("/livez").await.starts_with("HTTP/1.1 200"));
    })
    .await;
}

#[tokio::test]
async fn without_the_crd_readyz_says_what_to_install_and_comes_good() {
    on(&[Kind::EmbeddedBare, Kind::RealBare], async |world| {
        for object in manifests::rbac() {
            // The embedded server knows no roles.
            if !matches!(world.server, Server::Embedded(_)) {
                world.install(&object).await;
            }
        }
        world.make_namespace().await;
        world.spawn_operator(&[]);
        let remedy = "install the CustomResourceDefinition mywebservers.k8sobjects.gsa.com: \
                      listwatch crd | kubectl apply -f -";
        world.operator().until_unready(&["watch mywebservers", remedy]).await;
        world.operator().until_logged(&[remedy, "WARN"]).await;
        world.install(&manifests::crd()).await;
        world.operator().until_ready().await;
        world.create_web("web", json!({"image": "nginx"})).await;
        // The server writes down what it has answered a moment after it has.
        let status = |record: &crate::world::Record| record.path.contains("mywebservers/web/status");
        eventually("the status to be written", async || world.records().iter().any(status).then_some(()))
            .await;
        assert_eq!(world.transcript(), NEW.lines().collect::<Vec<_>>());
    })
    .await;
}

/// `/readyz` said `[+]` and the error in one line, and 200.
#[tokio::test]
async fn a_crd_that_is_deleted_under_the_operator_makes_it_unready_until_it_is_back() {
    on(&[Kind::EmbeddedBare, Kind::RealBare], async |world| {
        with_crd(world, &manifests::crd()).await;
        world.spawn_operator(&[]);
        world.operator().until_ready().await;
        let crd = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/mywebservers.k8sobjects.gsa.com";
        world.send(http::Method::DELETE, crd, "application/json", &Value::Null).await.unwrap();
        let in_namespace = format!("watch mywebservers in namespace {}:", world.namespace);
        let said = format!("[-] {in_namespace} ");
        let remedy = "install the CustomResourceDefinition mywebservers.k8sobjects.gsa.com: \
                      listwatch crd | kubectl apply -f -";
        world.operator().until_unready(&[&said, remedy, "[+] watch services", "\nnot ready\n"]).await;
        eventually("the CRD to be gone", async || world.raw(crd).await.err()).await;
        world.install(&manifests::crd()).await;
        world.operator().until_ready().await;
        world.create_web("web", json!({"image": "nginx"})).await;
        world.until("services/mws-web", |_| true).await;
    })
    .await;
}

/// The CRD as it may once have been: any port, be it a number or a text.
pub fn older_crd() -> Value {
    let mut crd = manifests::crd();
    for version in crd["spec"]["versions"].as_array_mut().unwrap() {
        let spec = &mut version["schema"]["openAPIV3Schema"]["properties"]["spec"];
        spec["properties"]["port"] = json!({"x-kubernetes-int-or-string": true});
    }
    crd
}

#[tokio::test]
async fn more_than_1000_replicas_are_refused_and_an_older_object_keeps_what_it_has() {
    on(&[Kind::EmbeddedBare, Kind::RealBare], async |world| {
        let mut older = manifests::crd();
        for version in older["spec"]["versions"].as_array_mut().unwrap() {
            let spec = &mut version["schema"]["openAPIV3Schema"]["properties"]["spec"];
            assert_eq!(
                spec["properties"]["replicas"].as_object_mut().unwrap().remove("maximum"),
                Some(json!(1000))
            );
        }
        with_crd(world, &older).await;
        world.create_web("old", json!({"image": "nginx", "replicas": 100_000})).await;
        let crd = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/mywebservers.k8sobjects.gsa.com";
        let newer = json!({"spec": manifests::crd()["spec"]});
        world.send(http::Method::PATCH, crd, "application/merge-patch+json", &newer).await.unwrap();
        let webs = world.path("mywebservers");
        // The new schema holds some moments after it was taken.
        let error = eventually("the maximum to hold", async || {
            let web = web("new", json!({"image": "nginx", "replicas": 1001}));
            world.try_create(&format!("{webs}?dryRun=All"), &web).await.err()
        })
        .await;
        assert!(error.to_string().contains("1000"), "{error}");
        world.create_web("new", json!({"image": "nginx", "replicas": 1000})).await;
        let scale = json!({"spec": {"replicas": 1001}});
        for path in
            [webs.replace("/v2/", "/v1/") + "/new", format!("{webs}/new"), format!("{webs}/new/scale")]
        {
            let refused =
                world.send(http::Method::PATCH, &path, "application/merge-patch+json", &scale).await;
            assert_eq!(refused.unwrap_err().code(), Some(422), "{path}");
        }

        world.start_operator(&[]).await;
        world.until_condition("old", "Ready", "False", "RolloutInProgress").await;
        world.patch("mywebservers/old", json!({"spec": {"image": "nginx:2"}})).await;
        world.until("mywebservers/old", |old| old["status"]["observedGeneration"] == 2).await;
        let deployment = world.get("deployments/mws-old").await;
        assert_eq!(deployment["spec"]["replicas"], 100_000);
        assert_eq!(deployment["spec"]["template"]["spec"]["containers"][0]["image"], "nginx:2");
    })
    .await;
}

/// A world with the older CRD, and permissions.
pub async fn with_older_crd(world: &World) {
    with_crd(world, &older_crd()).await;
}

/// A world with this CRD, and permissions.
pub async fn with_crd(world: &World, crd: &Value) {
    if !matches!(world.server, Server::Embedded(_)) {
        for object in manifests::rbac() {
            world.install(&object).await;
        }
    }
    world.install(crd).await;
    world.make_namespace().await;
}

#[tokio::test]
async fn an_object_that_does_not_decode_is_told_so_keeps_its_children_and_holds_up_nobody() {
    on(&[Kind::EmbeddedBare, Kind::RealBare], async |world| {
        with_older_crd(world).await;
        let eighty = json!({"image": "nginx", "port": "eighty"});
        world.create_web("first", eighty.clone()).await;
        world.start_operator(&[]).await;
        let said = world.until_condition("first", "Stalled", "True", "InvalidSpec").await;
        assert!(said["message"].as_str().unwrap().contains("eighty"), "{said}");
        world.until_condition("first", "Ready", "False", "InvalidSpec").await;
        assert!(world.find("deployments/mws-first").await.is_none());

        // One that was readable keeps what it has.
        world.create_web("web", json!({"image": "nginx", "port": 80})).await;
        world.settle().await;
        world.transcript();
        world.patch("mywebservers/web", json!({"spec": {"port": "eighty", "image": "other"}})).await;
        world.wrote("PATCH mywebservers/web/status 200").await;
        let deployment = world.get("deployments/mws-web").await;
        assert_eq!(deployment["spec"]["template"]["spec"]["containers"][0]["image"], "nginx");
        world.get("services/mws-web").await;
        assert!(condition(&world.get("mywebservers/web").await, "Stalled").unwrap()["message"].as_str().unwrap().contains("eighty"));

        // And once it can be read again, it is served.
        world.patch("mywebservers/web", json!({"spec": {"port": 81}})).await;
        world.wrote("PATCH deployments/mws-web 200\nPATCH services/mws-web 200\nPATCH mywebservers/web/status 200").await;
        world.until_condition("web", "Ready", "False", "RolloutInProgress").await;

        // After an upgrade of the CRD, and of the operator, the first one is still there.
        let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/mywebservers.k8sobjects.gsa.com";
        let patch = json!({"spec": {"versions": manifests::crd()["spec"]["versions"]}});
        world.send(http::Method::PATCH, path, "application/merge-patch+json", &patch).await.unwrap();
        world.stop_operator().await;
        world.spawn_operator(&[]);
        world.until_looked_at("web").await;
        world.operator().until_logged(&["not readable", "/first"]).await;
        world.wrote("").await;
        world.operator().until_ready().await;
    })
    .await;
}

#[tokio::test]
async fn the_schema_refuses_what_could_not_be_served() {
    on(&[Kind::Embedded, Kind::Real], async |world| {
        let good = json!({"image": "nginx", "port": 80, "replicas": 1});
        let with = |field: &str, value: Value| {
            let mut spec = good.clone();
            spec[field] = value;
            spec
        };
        let long = "a".repeat(60);
        for (name, spec, field) in [
            // Its Service would be called mws-…, and a Service's name has at most 63 characters and no dot.
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
            let error =
                world.try_create(&world.path("mywebservers"), &web(name, spec.clone())).await.unwrap_err();
            assert_eq!(error.code(), Some(422), "{name} {spec}: {error}");
            assert!(error.to_string().contains(field), "{name} {spec}: {error}");
        }
        let longest = &long[1..];
        world.start_operator(&[]).await;
        world.create_web(longest, good).await;
        world.wrote(&NEW.replace("/web/", &format!("/{longest}/"))).await;
        world.get(&format!("services/mws-{longest}")).await;
    })
    .await;
}

/// An older CRD took images that no kubelet can parse.
#[tokio::test]
async fn an_image_that_an_older_crd_took_is_served_on_and_can_stay() {
    on(&[Kind::EmbeddedBare, Kind::RealBare], async |world| {
        let mut older = manifests::crd();
        for version in older["spec"]["versions"].as_array_mut().unwrap() {
            let spec = &mut version["schema"]["openAPIV3Schema"]["properties"]["spec"];
            spec["properties"]["image"]["pattern"] = json!(r"^\S+$");
        }
        with_crd(world, &older).await;
        world.create_web("web", json!({"image": "nginx:"})).await;
        let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/mywebservers.k8sobjects.gsa.com";
        let patch = json!({"spec": {"versions": manifests::crd()["spec"]["versions"]}});
        world.send(http::Method::PATCH, path, "application/merge-patch+json", &patch).await.unwrap();
        let webs = world.path("mywebservers") + "?dryRun=All";
        eventually("the new schema to be in force", async || {
            world.try_create(&webs, &web("other", json!({"image": "nginx:"}))).await.err()
        })
        .await;
        world.start_operator(&[]).await;
        world.until_condition("web", "Ready", "False", "RolloutInProgress").await;
        let deployment = world.get("deployments/mws-web").await;
        assert_eq!(deployment["spec"]["template"]["spec"]["containers"][0]["image"], "nginx:");
        world.patch("mywebservers/web", json!({"spec": {"replicas": 2}})).await;
        world.wrote("PATCH deployments/mws-web 200\nPATCH mywebservers/web/status 200").await;
    })
    .await;
}

#[tokio::test]
async fn defaults_are_filled_in() {
    on_each(async |world| {
        let web = world.create_web("web", json!({"image": "nginx"})).await;
        assert_eq!((&web["spec"]["port"], &web["spec"]["replicas"]), (&json!(80), &json!(1)));
        // So that whoever waits for `observedGeneration` does not take "nobody has looked" for "done".
        assert_eq!(web["status"]["observedGeneration"], -1);
    })
    .await;
}
