//! Tests the desired children and the status of a MyWebserver, which are pure functions.

use std::sync::Arc;

use listwatch::{
    advanced::{self, Outcomes, Unreadable},
    children::{Child, Refusal, Reported, Stage, Trouble, Workload},
    client::{Config, Error},
    resource::{Status as Refused, StatusCause, StatusDetails, conditions, diff, kinds::Pod},
};
use serde_json::{Value, json};

use super::*;

const NOW: &str = "2026-11-21T12:00:00Z";
const EARLIER: &str = "2026-11-21T11:00:00Z";

fn web(replicas: i32) -> MyWebserver {
    let web = json!({
        "metadata": {"name": "web", "namespace": "default", "uid": "u1", "resourceVersion": "7", "generation": 3},
        "spec": {"image": "nginx", "replicas": replicas},
    });
    serde_json::from_value(web).expect("a MyWebserver")
}

/// A Deployment of generation 2, with this status.
fn deployment(status: Value) -> Child<Deployment> {
    deployment_of(&web(2), status)
}

fn deployment_of(web: &MyWebserver, status: Value) -> Child<Deployment> {
    let mut deployment = desired(web).deployment;
    deployment.metadata.generation = 2;
    deployment.status = serde_json::from_value(status).expect("a Deployment's status");
    Child::Kept(Arc::new(deployment))
}

fn service() -> Child<Service> {
    Child::Kept(Arc::new(desired(&web(2)).service))
}

fn refused(code: u16, reason: &str, message: &str) -> Error {
    let status = Refused { code, reason: reason.into(), message: message.into(), ..Refused::default() };
    Error::refused("create", "deployments.apps/default/mws-web", status)
}

/// The status of a MyWebserver with these children.
fn status_of(
    web: &MyWebserver,
    deployment: &Child<Deployment>,
    service: &Child<Service>,
    pods: Option<&Trouble>,
    now: &str,
) -> MyWebserverStatus {
    let mut outcomes = Outcomes::default();
    outcomes.add::<MyWebserver, _>(deployment);
    outcomes.add::<MyWebserver, _>(service);
    let state = advanced::state(deployment, Some(web.spec.replicas), pods, Next::OnChange);
    let mut status = MyWebserverStatus::of(deployment.live(), &Labels::default());
    let conditions = outcomes.conditions(web, state, now);
    MyWebserver::observe(&mut status, web.metadata.generation, conditions);
    status
}

/// All conditions, one per line: `Ready=False RolloutInProgress`.
fn reported(web: &MyWebserver, deployment: &Child<Deployment>, service: &Child<Service>) -> Vec<String> {
    let status = status_of(web, deployment, service, None, NOW);
    assert_eq!(status.observed_generation, web.metadata.generation);
    status.conditions.iter().map(|one| format!("{}={} {}", one.r#type, one.status, one.reason)).collect()
}

#[test]
fn children_are_named_owned_labelled_and_selected_by_instance() {
    let children = desired(&web(2));
    let deployment = serde_json::to_value(&children.deployment).expect("JSON");
    assert_eq!(
        deployment,
        json!({
            "metadata": {
                "name": "mws-web", "namespace": "default",
                "labels": {
                    "app.kubernetes.io/name": "mywebserver", "app.kubernetes.io/instance": "web",
                    "app.kubernetes.io/component": "webserver",
                    "app.kubernetes.io/managed-by": "mywebserver-operator",
                },
                "ownerReferences": [{
                    "apiVersion": "k8sobjects.gsa.com/v2", "kind": "MyWebserver", "name": "web", "uid": "u1",
                    "controller": true, "blockOwnerDeletion": true,
                }],
            },
            "spec": {
                "replicas": 2,
                "selector": {"matchLabels": {
                    "app.kubernetes.io/name": "mywebserver", "app.kubernetes.io/instance": "web",
                    "app.kubernetes.io/managed-by": "mywebserver-operator",
                }},
                "template": {
                    "metadata": {"labels": {
                        "app.kubernetes.io/name": "mywebserver", "app.kubernetes.io/instance": "web",
                        "app.kubernetes.io/component": "webserver",
                        "app.kubernetes.io/managed-by": "mywebserver-operator",
                    }},
                    "spec": {
                        "automountServiceAccountToken": false,
                        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
                        "containers": [{
                            "name": "web", "image": "nginx",
                            "ports": [{"name": "mywebserver", "containerPort": 80, "protocol": "TCP"}],
                            "readinessProbe": {"tcpSocket": {"port": "mywebserver"}},
                            "securityContext": {"allowPrivilegeEscalation": false},
                        }],
                    },
                },
            },
        })
    );
    let service = serde_json::to_value(&children.service).expect("JSON");
    assert_eq!(service["metadata"], deployment["metadata"]);
    assert_eq!(
        service["spec"],
        json!({
            "type": "ClusterIP",
            "selector": {
                "app.kubernetes.io/name": "mywebserver", "app.kubernetes.io/instance": "web",
                "app.kubernetes.io/managed-by": "mywebserver-operator",
            },
            "ports": [{"name": "http", "port": 80, "targetPort": "mywebserver", "protocol": "TCP"}],
        })
    );
}

#[test]
fn two_webs_of_one_namespace_share_no_pods() {
    let other = MyWebserver { metadata: ObjectMeta { name: "other".into(), ..web(1).metadata }, ..web(1) };
    assert_ne!(desired(&web(1)).service.spec.selector, desired(&other).service.spec.selector);
}

#[test]
fn a_new_port_changes_one_list_of_each_child() {
    let (before, mut after) = (web(2), web(2));
    after.spec.port = 8080;
    let (before, after) = (desired(&before), desired(&after));
    let paths = |differences: Vec<diff::Difference>| -> Vec<String> {
        differences.into_iter().map(|difference| difference.path).collect()
    };
    let deployment = paths(diff::between(&before.deployment, &after.deployment, &[]));
    assert_eq!(deployment, ["/spec/template/spec/containers/0/ports"]);
    assert_eq!(paths(diff::between(&before.service, &after.service, &[])), ["/spec/ports"]);
}

#[test]
fn before_the_deployment_controller_has_looked_nothing_is_ready() {
    let unseen = deployment(json!({}));
    assert_eq!(
        reported(&web(2), &unseen, &service()),
        [
            "Ready=False RolloutInProgress",
            "Available=False MinimumReplicasUnavailable",
            "Progressing=True ReplicaSetUpdated"
        ]
    );
}

#[test]
fn the_status_of_an_older_generation_is_not_believed() {
    let old = deployment(json!({
        "observedGeneration": 1, "replicas": 2, "updatedReplicas": 2, "readyReplicas": 2, "availableReplicas": 2,
        "conditions": [
            {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"},
            {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate"},
        ],
    }));
    let status = status_of(&web(2), &old, &service(), None, NOW);
    assert_eq!(status.conditions[0].reason, "RolloutInProgress");
    assert_eq!(
        status.conditions[0].message,
        "the Deployment controller has not observed the latest generation yet"
    );
    assert_eq!(status.conditions.len(), 3, "an old deadline does not stall: {:?}", status.conditions);
    assert_eq!(status.conditions[2].reason, "ReplicaSetUpdated");
}

#[test]
fn ready_means_all_replicas_are_of_the_new_template_and_available() {
    let ready = |wanted, replicas, updated, available| {
        let status = json!({
            "observedGeneration": 2, "replicas": replicas, "updatedReplicas": updated,
            "readyReplicas": available, "availableReplicas": available,
        });
        reported(&web(wanted), &deployment_of(&web(wanted), status), &service()).swap_remove(0)
    };
    assert_eq!(ready(2, 2, 2, 2), "Ready=True AllReplicasReady");
    for (replicas, updated, available) in [(3, 2, 2), (2, 1, 2), (2, 2, 1), (1, 1, 1), (0, 0, 0)] {
        let is_not = ready(2, replicas, updated, available);
        assert_eq!(is_not, "Ready=False RolloutInProgress", "{replicas} {updated} {available}");
    }
    assert_eq!(ready(0, 0, 0, 0), "Ready=True ScaledToZero");
    assert_eq!(ready(0, 1, 0, 1), "Ready=False RolloutInProgress");
}

#[test]
fn only_fewer_replicas_than_desired_stall() {
    let all = json!({"observedGeneration": 2, "replicas": 2, "updatedReplicas": 2, "availableReplicas": 2});
    let reported = |desired| reported(&web(desired), &deployment(all.clone()), &service()).join(" ");
    let fewer = reported(3);
    assert!(fewer.starts_with("Ready=False ChangedByAdmission "), "{fewer}");
    assert!(fewer.contains("Stalled=True ChangedByAdmission"), "{fewer}");
    for enough in [1, 2].map(reported) {
        assert!(!enough.contains("ChangedByAdmission"), "{enough}");
    }
}

#[test]
fn an_image_that_does_not_exist_is_unavailable_at_once_and_stalled_at_the_deadline() {
    let conditions = |progressing: Value| {
        deployment(json!({
            "observedGeneration": 2, "replicas": 2, "updatedReplicas": 2,
            "conditions": [
                {"type": "Available", "status": "False", "reason": "MinimumReplicasUnavailable"},
                progressing,
            ],
        }))
    };
    let going = json!({"type": "Progressing", "status": "True", "reason": "ReplicaSetUpdated"});
    assert_eq!(
        reported(&web(2), &conditions(going), &service()),
        [
            "Ready=False RolloutInProgress",
            "Available=False MinimumReplicasUnavailable",
            "Progressing=True ReplicaSetUpdated"
        ]
    );
    let late = json!({"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"});
    assert_eq!(
        reported(&web(2), &conditions(late), &service()),
        [
            "Ready=False ProgressDeadlineExceeded",
            "Available=False MinimumReplicasUnavailable",
            "Progressing=False ProgressDeadlineExceeded",
            "Stalled=True ProgressDeadlineExceeded",
        ]
    );
}

#[test]
fn pods_that_cannot_be_created_give_the_reason_of_the_deployment_and_a_remedy() {
    for (message, remedy) in [
        ("exceeded quota: few, requested: pods=1", "; raise the quota few, or delete objects"),
        ("admission webhook \"no\" denied the request", "; change the policy, or what it denies"),
        ("no account", ""),
    ] {
        let starved = deployment(json!({
            "observedGeneration": 2,
            "conditions": [{"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": message}],
        }));
        assert_eq!(reported(&web(2), &starved, &service())[0], "Ready=False FailedCreate");
        let status = status_of(&web(2), &starved, &service(), None, NOW);
        assert_eq!(status.conditions[0].message, format!("{message}{remedy}"));
    }
}

/// An old replica counted as an updated one: `1 of 2`.
#[test]
fn old_replicas_that_serve_are_not_counted_as_updated_ones() {
    let rollout =
        json!({"observedGeneration": 2, "replicas": 3, "updatedReplicas": 1, "availableReplicas": 2});
    let status = status_of(&web(2), &deployment(rollout), &service(), None, NOW);
    let message = "0 of 2 replicas are updated and available; 2 old replicas remain";
    assert_eq!(status.conditions[0].message, message);
}

#[test]
fn a_reason_of_pods_is_that_of_ready_and_stalls_only_where_no_retry_helps() {
    let rollout = deployment(json!({"observedGeneration": 2, "replicas": 2, "updatedReplicas": 2}));
    for (reason, stalls) in [("InvalidImageName", true), ("CrashLoopBackOff", false)] {
        let waiting = json!({"name": "web", "state": {"waiting": {"reason": reason, "message": "no"}}});
        let pod = json!({
            "metadata": {"name": "p", "resourceVersion": "1"}, "status": {"containerStatuses": [waiting]},
        });
        let pod: Pod = serde_json::from_value(pod).expect("a Pod");
        let trouble = advanced::trouble(&[pod], &[], std::time::SystemTime::now());
        let status = status_of(&web(2), &rollout, &service(), trouble.as_ref(), NOW);
        let ready = conditions::find(&status.conditions, "Ready").expect("Ready");
        assert_eq!((&*ready.status, &*ready.reason), ("False", reason));
        assert_eq!(ready.message, "0 of 2 replicas are updated and available: container web: no");
        let stalled = conditions::find(&status.conditions, "Stalled")
            .map(|stalled| (&*stalled.reason, &*stalled.message));
        assert_eq!(stalled, stalls.then_some((reason, "container web: no")));
    }
}

/// The Deployment of [`deployment`], paused.
fn paused(status: Value) -> Child<Deployment> {
    let Child::Kept(deployment) = deployment(status) else { panic!("not kept") };
    let mut deployment = Arc::unwrap_or_clone(deployment);
    deployment.spec.paused = true;
    Child::Kept(Arc::new(deployment))
}

/// `Progressing` was True.
#[test]
fn a_paused_deployment_is_reported_and_stalls_while_it_holds_back_a_rollout() {
    let progressing =
        |status: &str, reason: &str| json!([{"type": "Progressing", "status": status, "reason": reason}]);
    let is_paused = progressing("Unknown", "DeploymentPaused");
    let rollout = |replicas, updated, conditions: &Value| {
        paused(json!({
            "observedGeneration": 2, "replicas": replicas, "updatedReplicas": updated,
            "availableReplicas": updated, "conditions": conditions,
        }))
    };
    let [held, complete] = [(2, 0), (2, 2)].map(|(all, new)| rollout(all, new, &is_paused));
    let unavailable = "Available=False MinimumReplicasUnavailable";
    let unknown = "Progressing=Unknown DeploymentPaused";
    assert_eq!(
        reported(&web(2), &held, &service()),
        ["Ready=False DeploymentPaused", unavailable, unknown, "Stalled=True DeploymentPaused"]
    );
    let status = status_of(&web(2), &held, &service(), None, NOW);
    let remedy = "the Deployment is paused: kubectl rollout resume deployment/mws-web";
    assert!(status.conditions[0].message.ends_with(remedy), "{}", status.conditions[0].message);
    assert_eq!(status.conditions[3].message, remedy);
    assert_eq!(
        reported(&web(2), &complete, &service()),
        ["Ready=True AllReplicasReady", unavailable, unknown],
        "the whole spec is rolled out"
    );
    // A paused Deployment can be scaled.
    assert_eq!(
        reported(&web(2), &rollout(1, 1, &is_paused), &service()),
        ["Ready=False DeploymentPaused", unavailable, unknown]
    );
    // Without a deadline, the Deployment controller does not report the pause.
    assert_eq!(reported(&web(2), &rollout(2, 0, &json!([])), &service())[2], unknown);
    // A deadline that passed before the pause stays in the Deployment's status. The present cause is the pause.
    let late = progressing("False", "ProgressDeadlineExceeded");
    assert_eq!(
        reported(&web(2), &rollout(2, 0, &late), &service()),
        [
            "Ready=False DeploymentPaused",
            unavailable,
            "Progressing=False ProgressDeadlineExceeded",
            "Stalled=True DeploymentPaused"
        ]
    );
}

/// The message never changed from "the Deployment controller has not observed …".
#[test]
fn a_deployment_without_a_progress_deadline_does_not_report_its_progress() {
    let ready = json!({"observedGeneration": 2, "replicas": 2, "updatedReplicas": 2, "availableReplicas": 2});
    let reported = reported(&web(2), &deployment(ready), &service());
    assert_eq!(reported[0], "Ready=True AllReplicasReady");
    assert_eq!(reported[2], "Progressing=Unknown ProgressNotReported");
}

#[test]
fn a_replica_set_that_cannot_be_created_gives_the_reason_of_the_deployment() {
    // The Deployment controller has not observed the generation yet.
    let starved = deployment(json!({
        "observedGeneration": 1, "replicas": 2, "updatedReplicas": 2, "availableReplicas": 2,
        "conditions": [{"type": "Progressing", "status": "False", "reason": "ReplicaSetCreateError", "message": "exceeded quota"}],
    }));
    let reported = reported(&web(2), &starved, &service());
    assert_eq!(reported[0], "Ready=False ReplicaSetCreateError");
    assert_eq!(reported[2..], ["Progressing=False ReplicaSetCreateError"]);
}

/// For a reason that the schema rejects, the API server answered the whole status with a 422.
#[test]
fn any_status_of_a_deployment_gives_valid_conditions() {
    let schema = types::definition()["spec"]["versions"][1]["schema"]["openAPIV3Schema"]["properties"]["status"]
        ["properties"]["conditions"]["items"]["properties"]
        .take();
    let pattern =
        regex::Regex::new(schema["reason"]["pattern"].as_str().expect("a pattern")).expect("a regex");
    let reasons =
        ["", "Fine", "a,b:c_D9", "9", "_", "no spaces", "ends:", "ü", "line\n", "x-y", &"R".repeat(1025)];
    for reason in reasons {
        for message in ["", "short", &"ü".repeat(32_768), &"ü".repeat(32_769)] {
            let odd =
                |name: &str| json!({"type": name, "status": "odd", "reason": reason, "message": message});
            let mut conditions = vec![odd("Available"), odd("Progressing"), odd("ReplicaFailure")];
            conditions[0]["status"] = json!("True");
            conditions[2]["status"] = json!("True");
            let child = deployment(json!({"observedGeneration": 2, "conditions": conditions}));
            let status = status_of(&web(2), &child, &service(), None, NOW);
            for condition in &status.conditions {
                let reason = &*condition.reason;
                assert!(pattern.is_match(reason) && (1..=1024).contains(&reason.len()), "{reason:?}");
                assert!(condition.message.chars().count() <= 32_768);
                assert!(["True", "False", "Unknown"].contains(&&*condition.status));
            }
            let is_valid = ["Fine", "a,b:c_D9"].contains(&reason);
            let expected = if is_valid { reason } else { "Unspecified" };
            assert_eq!(status.conditions[1].reason, expected);
        }
    }
}

#[test]
fn a_refused_write_is_reported_and_stalls_where_waiting_does_not_help() {
    let terminating = Refused {
        code: 403,
        details: StatusDetails {
            causes: vec![StatusCause { reason: "NamespaceTerminating".into(), ..StatusCause::default() }],
            ..StatusDetails::default()
        },
        ..Refused::default()
    };
    let terminating = Error::refused("create", "deployments.apps/default/mws-web", terminating);
    let cases = [
        (refused(403, "Forbidden", "User \"x\" cannot create resource"), "Forbidden", true),
        (refused(403, "Forbidden", "exceeded quota: two, requested: 1"), "QuotaExceeded", false),
        (refused(403, "Forbidden", "admission webhook \"no\" denied the request"), "AdmissionDenied", true),
        (
            refused(409, "Conflict", "admission webhook \"no\" denied the request: taken"),
            "AdmissionDenied",
            true,
        ),
        (
            refused(404, "", "admission webhook \"no\" denied the request without explanation"),
            "AdmissionDenied",
            true,
        ),
        (refused(429, "", "admission webhook \"no\" denied the request: busy"), "AdmissionDenied", false),
        (refused(503, "", "admission webhook \"no\" denied the request: busy"), "AdmissionDenied", false),
        (
            refused(
                413,
                "RequestEntityTooLarge",
                "deployments.apps \"mws-web\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: big",
            ),
            "AdmissionDenied",
            true,
        ),
        (
            refused(
                403,
                "Forbidden",
                "deployments.apps \"mws-web\" is forbidden: policy \"p\" denied request: no",
            ),
            "AdmissionDenied",
            true,
        ),
        // The name of the MyWebserver contains `denied`.
        (refused(403, "Forbidden", "User \"x\" cannot patch deployments \"mws-denied\""), "Forbidden", true),
        (
            refused(
                422,
                "Invalid",
                "Deployment.apps \"mws-denied\" is invalid: spec.replicas: Invalid value",
            ),
            "InvalidSpec",
            true,
        ),
        (
            refused(
                500,
                "InternalError",
                "Internal error occurred: failed to allocate a serviceIP: range is full",
            ),
            "InternalError",
            false,
        ),
        (
            refused(500, "InternalError", "failed calling webhook \"w\": timed out"),
            "AdmissionUnavailable",
            false,
        ),
        (terminating, "NamespaceTerminating", false),
        (refused(405, "MethodNotAllowed", "no"), "ReconcileFailed", false),
    ];
    for (error, reason, is_stalled) in cases {
        let reported = reported(&web(2), &Child::Failed { error, live: None }, &service());
        assert_eq!(reported[0], format!("Ready=False {reason}"));
        assert_eq!(reported.contains(&format!("Stalled=True {reason}")), is_stalled, "{reported:?}");
    }
}

/// The first creation of its Service was reported as a correction of drift.
#[test]
fn a_refusal_comes_before_other_trouble_of_either_child() {
    let failed = || Error::new("keep", "it", "another client keeps changing it back");
    let refusal = || refused(403, "Forbidden", "exceeded quota: few");
    let failed_deployment = Child::Failed { error: failed(), live: None };
    let refused_deployment = Child::Failed { error: refusal(), live: None };
    let failed_service = Child::Failed { error: failed(), live: None };
    let refused_service = Child::Failed { error: refusal(), live: None };
    assert_eq!(reported(&web(2), &failed_deployment, &refused_service)[0], "Ready=False QuotaExceeded");
    assert_eq!(reported(&web(2), &refused_deployment, &failed_service)[0], "Ready=False QuotaExceeded");
    assert_eq!(reported(&web(2), &failed_deployment, &failed_service)[0], "Ready=False ReconcileFailed");
}

#[test]
fn a_refused_update_leaves_what_serves_in_the_status() {
    let serving = json!({
        "observedGeneration": 2, "replicas": 2, "updatedReplicas": 2, "readyReplicas": 2, "availableReplicas": 2,
        "conditions": [{"type": "Available", "status": "True", "reason": "MinimumReplicasAvailable"}],
    });
    let Child::Kept(live) = deployment(serving) else { panic!("not kept") };
    let error = refused(403, "Forbidden", "admission webhook \"no\" denied the request");
    let refused = Child::Failed { error, live: Some(live) };
    let status = status_of(&web(2), &refused, &service(), None, NOW);
    assert_eq!((status.replicas, status.ready_replicas, status.available_replicas), (2, 2, 2));
    assert_eq!(
        reported(&web(2), &refused, &service())[..2],
        ["Ready=False AdmissionDenied", "Available=True MinimumReplicasAvailable"]
    );
}

#[test]
fn an_error_that_a_retry_may_solve_is_no_refusal() {
    for code in [401, 404, 408, 409, 429, 500, 503, 504] {
        assert_eq!(Refusal::of(&refused(code, "", "")), None, "{code}");
    }
}

#[tokio::test]
async fn a_server_out_of_reach_refuses_nothing_and_an_answer_that_is_none_does() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    drop(listener);
    let config = Config::new(&format!("http://{address}"), b"", "").expect("a config");
    let error = Client::new(config).expect("a client").version().await.expect_err("nobody");
    assert_eq!(Refusal::of(&error), None, "{error}");
    let error = Error::new("keep", "Deployment mws-web", "another client keeps changing it back");
    assert_eq!(Refusal::of(&error), Some(Refusal::Other));
}

#[test]
fn the_stage_is_that_of_the_last_status() {
    let stage = |observed: i64, reason: &str| {
        let mut web = web(1);
        let ready = json!({"type": "Ready", "status": "False", "reason": reason});
        let status = json!({"observedGeneration": observed, "conditions": [ready]});
        web.status = serde_json::from_value(status).expect("a status");
        Stage::of(&web)
    };
    assert_eq!(stage(-1, "RolloutInProgress"), Stage::New);
    assert_eq!(stage(2, "RolloutInProgress"), Stage::Changed);
    assert_eq!(stage(3, "RolloutInProgress"), Stage::Settled);
}

#[test]
fn pods_are_waited_for_where_there_are_some_of_the_latest_template() {
    let waits = |status: &Value, is_paused: bool| {
        let child = if is_paused { paused(status.clone()) } else { deployment(status.clone()) };
        child.live().expect("a Deployment").rollout().waits_for_pods()
    };
    let status = |observed: i64, replicas: i32, updated: i32, available: i32| {
        json!({
            "observedGeneration": observed, "replicas": replicas, "updatedReplicas": updated,
            "availableReplicas": available,
        })
    };
    assert!(waits(&status(2, 2, 2, 1), false));
    assert!(waits(&status(2, 2, 1, 1), false));
    assert!(waits(&status(2, 2, 2, 1), true), "a pause holds nothing back here");
    assert!(!waits(&status(1, 2, 2, 1), false), "not of the latest template");
    assert!(!waits(&status(2, 2, 2, 2), false), "complete");
    assert!(!waits(&status(2, 2, 1, 1), true), "held back");
    assert!(!waits(&status(2, 1, 0, 1), false), "none yet");
    assert!(waits(&status(2, 0, 0, 0), false), "with the strategy Recreate, earlier ones may not end");
    let mut starved = status(2, 2, 1, 1);
    starved["conditions"] = json!([{"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate"}]);
    assert!(!waits(&starved, false), "no more can be made");
}

#[test]
fn a_taken_name_stalls_whichever_child_has_it() {
    let taken = "Service mws-web exists and does not belong to this MyWebserver".to_owned();
    let ready = json!({"observedGeneration": 2, "replicas": 2, "updatedReplicas": 2, "availableReplicas": 2});
    let reported = reported(&web(2), &deployment(ready), &Child::NotOurs(taken));
    assert_eq!(reported[0], "Ready=False NameConflict");
    assert_eq!(reported[3], "Stalled=True NameConflict");
}

#[test]
fn a_condition_keeps_its_time_until_its_status_changes() {
    let ready = json!({
        "observedGeneration": 2, "replicas": 2, "updatedReplicas": 2, "availableReplicas": 2,
        "conditions": [{"type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable"}],
    });
    let mut web = web(2);
    web.status = status_of(&web, &deployment(json!({})), &service(), None, EARLIER);
    let later = status_of(&web, &deployment(json!({})), &service(), None, NOW);
    assert_eq!(later, web.status, "nothing has changed, so nothing is written");
    let later = status_of(&web, &deployment(ready), &service(), None, NOW);
    let times: Vec<_> = later.conditions.iter().map(|one| one.last_transition_time.as_str()).collect();
    assert_eq!(times, [NOW, EARLIER, EARLIER]);
}

#[test]
fn an_unreadable_object_keeps_what_was_reported_of_its_replicas() {
    let unreadable = json!({
        "metadata": {"name": "web", "uid": "u1", "resourceVersion": "7", "generation": 4},
        "spec": {"port": "eighty"},
        "status": {"replicas": 2},
    });
    let unreadable: Unreadable<MyWebserver> = serde_json::from_value(unreadable).expect("readable enough");
    let status = unreadable.report("invalid type: string \"eighty\"", NOW);
    assert_eq!((status.replicas, status.observed_generation), (2, 4));
    let again = Unreadable { status: status.clone(), ..unreadable };
    assert_eq!(again.report("invalid type: string \"eighty\"", "2027-01-01T00:00:00Z"), status);
}

/// The CRD accepted `nginx:` and `NGINX`, and no Pod ever ran.
#[test]
fn an_image_is_refused_only_where_the_kubelet_could_not_parse_it() {
    let pattern = regex::Regex::new(types::IMAGE_PATTERN).expect("a regex");
    let digest = format!("sha256:{}", "0123456789abcdef".repeat(4));
    for image in [
        "nginx",
        "nginx:1.27-alpine",
        "nginx:V1",
        "nginx:_1",
        &format!("nginx:{}", "t".repeat(128)),
        "library/nginx",
        "a.b_c__d---e/f/g0",
        "docker.io/library/nginx:latest",
        "localhost/web",
        "localhost:5000/web:1",
        "registry.example:5000/team/web",
        "Registry.Example/web",
        "10.0.0.1:5000/web",
        "[2001:db8::1]:5000/team/web:1",
        &format!("nginx@{digest}"),
        &format!("registry.example:5000/web:1@{digest}"),
    ] {
        assert!(pattern.is_match(image), "{image}");
    }
    for image in [
        "",
        " ",
        "a b",
        "nginx ",
        "nginx:",
        "nginx@",
        "nginx/",
        "/nginx",
        "NGINX",
        "library/NGINX",
        "docker.io/NGINX:1",
        "nginx:-1",
        "nginx:1:2",
        ":1",
        "-nginx",
        "nginx-",
        "https://docker.io/nginx",
        "nginx@sha256",
        "nginx@sha256:xyz",
        &format!("@{digest}"),
    ] {
        assert!(!pattern.is_match(image), "{image}");
    }
}

#[test]
fn defaults_are_those_of_the_schema() {
    let web: MyWebserver = serde_json::from_value(json!({
        "metadata": {"name": "web", "resourceVersion": "1"}, "spec": {"image": "nginx"},
    }))
    .expect("a MyWebserver");
    let schema =
        &types::definition()["spec"]["versions"][1]["schema"]["openAPIV3Schema"]["properties"]["spec"];
    assert_eq!(schema["properties"]["port"]["default"], web.spec.port);
    assert_eq!(schema["properties"]["replicas"]["default"], web.spec.replicas);
    assert_eq!(web.status, MyWebserverStatus::default());
}
