//! Tests that the condition `Ready` has the kubelet's reason if Pods do not run, with few requests and writes.

use std::{future, iter, sync::Arc, time::Duration};

use listwatch::{
    client::Client,
    cluster::Cluster,
    resource::{Scope, kinds::Service},
    runtime::Setup,
    watch::Lists,
};
use listwatch_apiserver::Fault;
use listwatch_control_plane::eventually;
use listwatch_operators::mywebserver;
use serde_json::{Value, json};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};

use crate::{
    client::{UserClient, condition},
    fixture::{ACCOUNT, Fixture, Kind, on},
    manifests,
    thundering_herd::Gateway,
};

/// A MyWebserver and its Pod of the same name, with the Deployment's status as a Deployment controller writes it.
async fn web_with_pod(user: &UserClient, name: &str) {
    user.create_web(name, json!({"image": "nginx"})).await;
    let path = format!("deployments/mws-{name}");
    let deployment = user.until(&path, |_| true).await;
    let status =
        json!({"observedGeneration": 1, "replicas": 1, "updatedReplicas": 1, "unavailableReplicas": 1});
    user.patch(&format!("{path}/status"), json!({"status": status})).await;
    let template = &deployment["spec"]["template"];
    let labels = &template["metadata"]["labels"];
    let pod = json!({"metadata": {"name": name, "labels": labels}, "spec": template["spec"]});
    user.create("pods", &pod).await;
    user.until(&format!("mywebservers/{name}"), |web| web["status"]["replicas"] == 1).await;
}

/// The kubelet's report of the Pod's only container.
async fn report(user: &UserClient, pod: &str, mut container: Value) {
    for (field, value) in
        [("name", json!("web")), ("image", json!("nginx")), ("imageID", json!("")), ("ready", json!(false))]
    {
        container[field] = value;
    }
    let restarts = container["restartCount"].take().as_i64().unwrap_or_default();
    container["restartCount"] = restarts.into();
    let status = json!({"phase": "Pending", "containerStatuses": [container]});
    user.patch(&format!("pods/{pod}/status"), json!({"status": status})).await;
}

fn waiting(reason: &str, message: &str) -> Value {
    json!({"state": {"waiting": {"reason": reason, "message": message}}})
}

async fn pod_lists(fixture: &Fixture) -> usize {
    fixture.records().await.iter().filter(|record| record.path.contains("/pods?")).count()
}

/// Most lists of Pods for an object that has not been ready for this long: after 5 s, 10 s, 20 s and so on.
fn pod_lists_max(time: Duration) -> usize {
    (time.as_secs() / 5).checked_ilog2().map_or(0, |doublings| 1 + doublings as usize)
}

/// The reason stayed `RolloutInProgress` for every report of the kubelet.
#[tokio::test]
async fn an_image_that_cannot_be_pulled_is_reported_with_the_kubelets_message_and_few_requests() {
    on(&[Kind::EmbeddedWithControllers], async |fixture| {
        fixture.spawn_operator(&[]);
        let begun = Instant::now();
        fixture.create_web("web", json!({"image": "does-not-exist", "replicas": 2})).await;
        let message = fixture.until_condition("web", "Ready", "False", "ImagePullBackOff").await;
        let start =
            "0 of 2 replicas are updated and available: container web: failed to pull and unpack image";
        assert!(message.starts_with(start) && message.ends_with("not found"), "{message}");
        assert!(
            condition(&fixture.get("mywebservers/web").await, "Stalled").is_none(),
            "the kubelet retries"
        );
        fixture.patch("mywebservers/web", json!({"spec": {"image": "nginx"}})).await;
        fixture.until_condition("web", "Ready", "True", "AllReplicasReady").await;
        let lists = pod_lists(fixture).await;
        // Of both generations.
        assert!((1..=2 * pod_lists_max(begun.elapsed())).contains(&lists), "{lists} lists of Pods");
        // A ready object costs no list.
        let begun = Instant::now();
        fixture.create_web("other", json!({"image": "nginx"})).await;
        fixture.until_condition("other", "Ready", "True", "AllReplicasReady").await;
        assert!(pod_lists(fixture).await - lists <= pod_lists_max(begun.elapsed()));
    })
    .await;
}

#[tokio::test]
async fn a_container_that_cannot_be_configured_is_reported_with_the_kubelets_message() {
    on(&[Kind::Embedded, Kind::Real], async |fixture| {
        fixture.spawn_operator(&[]);
        web_with_pod(fixture, "web").await;
        report(fixture, "web", waiting("CreateContainerConfigError", "secret \"x\" not found")).await;
        let message = fixture.until_condition("web", "Ready", "False", "CreateContainerConfigError").await;
        let expected = "0 of 1 replicas are updated and available: container web: secret \"x\" not found";
        assert_eq!(message, expected);
    })
    .await;
}

#[tokio::test]
async fn without_the_permission_to_list_pods_the_operator_warns_once_and_goes_on() {
    on(&[Kind::Embedded, Kind::Real], async |fixture| {
        fixture.may_be_forbidden.set(true);
        let mut rules = manifests::cluster_role()["rules"].take();
        rules.as_array_mut().unwrap().retain(|rule| rule["resources"][0] != "pods");
        fixture.allow_only(&rules).await;
        fixture.spawn_operator(&[]);
        let begun = Instant::now();
        web_with_pod(fixture, "web").await;
        report(fixture, "web", waiting("CreateContainerConfigError", "secret \"x\" not found")).await;
        eventually("a first list of Pods", async || (pod_lists(fixture).await > 0).then_some(())).await;
        // A change of the Deployment updates the status, but triggers no new list.
        for number in [1, 0, 1] {
            let status = json!({"readyReplicas": number});
            fixture.patch("deployments/mws-web/status", json!({"status": status})).await;
            let ready =
                fixture.until("mywebservers/web", |web| web["status"]["readyReplicas"] == number).await;
            let ready = condition(&ready, "Ready").unwrap();
            assert_eq!(ready["reason"], "RolloutInProgress");
            assert_eq!(ready["message"], "0 of 1 replicas are updated and available");
        }
        let lists = pod_lists(fixture).await;
        assert!(lists <= pod_lists_max(begun.elapsed()), "{lists} lists of Pods");
        eventually("a second list of Pods", async || (pod_lists(fixture).await > 1).then_some(())).await;
        let log = fixture.operator().log();
        let remedy = "grant the verb list on the resource pods";
        let warnings = log.lines().filter(|line| line.contains("WARN") && line.contains(remedy));
        assert_eq!(warnings.count(), 1);
    })
    .await;
}

/// The node is lost, and five minutes later its Pods are deleted. With the strategy `Recreate`, the Deployment waits for their end. The
/// reason was `RolloutInProgress` from then on.
#[tokio::test(start_paused = true)]
async fn a_pod_that_does_not_end_is_reported_with_its_node_once_its_grace_period_is_over() {
    let stage = Stage::start("/pods", Duration::ZERO).await;
    web_with_pod(&stage.user, "web").await;
    let pod = stage.user.get("pods/web").await;
    let metadata = json!({"name": "lost", "labels": pod["metadata"]["labels"]});
    let spec = json!({"nodeName": "node-a", "containers": pod["spec"]["containers"]});
    stage.user.create("pods", &json!({ "metadata": metadata, "spec": spec })).await;
    stage.user.delete_with("pods/web", json!({"gracePeriodSeconds": 0})).await;
    stage.user.delete_with("pods/lost", json!({"gracePeriodSeconds": 60})).await;
    let status = json!({"replicas": 0, "updatedReplicas": 0, "unavailableReplicas": 1});
    stage.user.patch("deployments/mws-web/status", json!({ "status": status })).await;
    let ready = async || {
        let web = stage.user.get("mywebservers/web").await;
        let ready = condition(&web, "Ready").unwrap();
        (ready["reason"].as_str().unwrap().to_owned(), ready["message"].as_str().unwrap().to_owned())
    };
    sleep(Duration::from_secs(80)).await;
    assert_eq!(ready().await.0, "RolloutInProgress", "its grace period has just ended");
    sleep(Duration::from_secs(80)).await;
    let (reason, message) = ready().await;
    assert_eq!(reason, "PodTerminating");
    let start = "0 of 1 replicas are updated and available: Pod lost has not ended on node node-a";
    assert!(message.starts_with(start) && message.contains("kubectl delete node node-a"), "{message}");
}

/// The operator in this process, on a paused clock, with a server without controllers: only the test writes Deployments
/// and Pods.
struct Stage {
    gateway: Arc<Gateway>,
    user: UserClient,
    client: Client,
    cluster: Cluster,
    operator: JoinSet<()>,
}

impl Stage {
    /// Delays each list of this resource.
    async fn start(resource: &'static str, list_time: Duration) -> Stage {
        let (gateway, admin) = Gateway::start(resource, list_time);
        let client = gateway.client(&gateway.server.new_token(ACCOUNT));
        let user = UserClient::new(admin);
        user.install(&manifests::crd()).await;
        let cluster = Cluster::new(client.clone(), Lists::Paged);
        let mut stage = Stage { gateway, user, client, cluster, operator: JoinSet::new() };
        stage.restart();
        stage
    }

    /// Starts the operator, and stops the running one.
    fn restart(&mut self) {
        self.operator = JoinSet::new();
        let (events, write_events) = mywebserver::events(self.client.clone(), "test".to_owned());
        self.cluster = Cluster::new(self.client.clone(), Lists::Paged);
        let setup = Setup { cluster: self.cluster.clone(), events, namespaces: Vec::new() };
        let controller = mywebserver::controller(setup);
        self.operator.spawn(async {
            tokio::join!(controller.run(future::pending()), write_events);
        });
    }

    /// How often the operator has written the status of a MyWebserver.
    fn status_writes(&self) -> usize {
        let requests = self.gateway.server.requests();
        let is_write = |path: &str| path.contains("/mywebservers/") && path.ends_with("/status");
        requests.iter().filter(|request| request.user == ACCOUNT && is_write(&request.path)).count()
    }
}

/// While a container crashes and is restarted, one constant message is written once. A message with different words
/// each time is written once for each list of Pods, and in the end there is one list a minute.
#[tokio::test(start_paused = true)]
async fn a_crash_loop_costs_one_status_write_and_changing_errors_one_a_minute() {
    const STEP: Duration = Duration::from_secs(7);
    let stage = Stage::start("/pods", Duration::ZERO).await;
    web_with_pod(&stage.user, "web").await;
    let before = stage.status_writes();
    let exit =
        json!({"terminated": {"exitCode": 1, "reason": "Error", "finishedAt": "1970-01-01T00:00:00Z"}});
    for restarts in 1..200 {
        let pause = format!("back-off {restarts}s restarting failed container=web pod=web_default(1-2-3)");
        let now = humantime::format_rfc3339_seconds(stage.gateway.server.now()).to_string();
        let back_off = waiting("CrashLoopBackOff", &pause);
        for mut container in
            [json!({"state": {"running": {"startedAt": now}}}), json!({"state": exit}), back_off]
        {
            container["lastState"] = exit.clone();
            container["restartCount"] = restarts.into();
            report(&stage.user, "web", container).await;
            sleep(STEP).await;
        }
    }
    let web = stage.user.get("mywebservers/web").await;
    let message = &condition(&web, "Ready").unwrap()["message"];
    assert_eq!(
        message,
        "0 of 1 replicas are updated and available: container web: exited with code 1 (Error)"
    );
    assert_eq!(stage.status_writes() - before, 1);

    stage.gateway.arrivals();
    let words = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven"];
    let began = Instant::now();
    for word in iter::repeat_n(words, 50).flatten() {
        report(&stage.user, "web", waiting("CreateContainerError", word)).await;
        sleep(STEP).await;
    }
    let minutes = usize::try_from(began.elapsed().as_secs() / 60).unwrap();
    let lists = stage.gateway.arrivals().len();
    assert!((minutes - 1..=minutes + 1).contains(&lists), "{lists} lists of Pods in {minutes} minutes");
    let writes = stage.status_writes() - before - 1;
    assert!((2..=lists).contains(&writes), "{writes} writes after {lists} lists");
}

/// The pause was counted from before the request. A list that took longer than the pause was requested again at each
/// event.
#[tokio::test(start_paused = true)]
async fn after_a_slow_list_of_pods_the_pause_is_as_long_as_after_a_fast_one() {
    const LIST_TIME: Duration = Duration::from_secs(8);
    let stage = Stage::start("/pods", LIST_TIME).await;
    web_with_pod(&stage.user, "web").await;
    for second in 0..300 {
        let status = json!({"readyReplicas": second % 2});
        stage.user.patch("deployments/mws-web/status", json!({"status": status})).await;
        sleep(Duration::from_secs(1)).await;
    }
    let lists = stage.gateway.arrivals();
    assert!(lists.len() > 3, "{lists:?}");
    for pair in lists.windows(2) {
        assert!(pair[1] - pair[0] >= LIST_TIME + Duration::from_secs(5), "{:?}", pair[1] - pair[0]);
    }
}

/// A new rollout is usually complete within a few seconds.
#[tokio::test(start_paused = true)]
async fn each_rollout_has_five_seconds_before_its_pods_are_listed() {
    let stage = Stage::start("/pods", Duration::ZERO).await;
    web_with_pod(&stage.user, "web").await;
    let deployment = "deployments/mws-web";
    let pod_lists_after = async |observed: u64, available: u64| {
        let status = json!({
            "observedGeneration": observed, "availableReplicas": available, "unavailableReplicas": 1 - available,
        });
        stage.user.patch(&format!("{deployment}/status"), json!({"status": status})).await;
        stage.gateway.arrivals();
        let mut lists = Vec::new();
        for pause in [4, 3] {
            sleep(Duration::from_secs(pause)).await;
            lists.push(stage.gateway.arrivals().len());
        }
        sleep(Duration::from_secs(300)).await;
        lists
    };
    assert_eq!(pod_lists_after(1, 0).await, [0, 1]);
    assert_eq!(pod_lists_after(1, 1).await, [0, 0]);
    assert_eq!(stage.gateway.arrivals().len(), 0, "the web is ready");
    assert_eq!(pod_lists_after(1, 0).await, [0, 1], "the rollout was complete in between");
    // A user changes a field that we do not own.
    stage.user.patch(deployment, json!({"spec": {"minReadySeconds": 1}})).await;
    assert_eq!(pod_lists_after(2, 0).await, [0, 1]);
}

/// The reason of the Pods must not be lost by a restart of the operator, or by a list that fails.
#[tokio::test(start_paused = true)]
async fn a_reason_of_pods_outlives_a_restart_and_a_list_that_fails() {
    let mut stage = Stage::start("/pods", Duration::ZERO).await;
    web_with_pod(&stage.user, "web").await;
    report(&stage.user, "web", waiting("CreateContainerError", "no")).await;
    sleep(Duration::from_secs(10)).await;
    let reason = async |stage: &Stage| {
        let web = stage.user.get("mywebservers/web").await;
        condition(&web, "Ready").unwrap()["reason"].clone()
    };
    assert_eq!(reason(&stage).await, "CreateContainerError");
    let writes = stage.status_writes();
    stage.restart();
    stage.gateway.arrivals();
    sleep(Duration::from_secs(2)).await;
    assert_eq!(stage.gateway.arrivals().len(), 1);
    let fails = Fault::Answer { status: 500, body: "{}".to_owned(), retry_after_secs: None };
    stage.gateway.server.fault(fails.on("GET", "/pods"));
    sleep(Duration::from_secs(120)).await;
    assert!(stage.gateway.arrivals().len() > 1);
    assert_eq!(reason(&stage).await, "CreateContainerError");
    assert_eq!(stage.status_writes(), writes);
}

/// Each worker read 8 MiB at the same time, and all of them together as much as the memory limit.
#[tokio::test(start_paused = true)]
async fn at_most_four_lists_of_pods_run_at_a_time() {
    let stage = Stage::start("/pods", Duration::from_secs(1)).await;
    for number in 0..12 {
        web_with_pod(&stage.user, &format!("web-{number}")).await;
    }
    sleep(Duration::from_secs(60)).await;
    assert!(stage.gateway.arrivals().len() >= 24);
    assert_eq!(stage.gateway.most_lists(), 4);
}

#[tokio::test(start_paused = true)]
async fn the_status_does_not_wait_for_a_queued_list_of_pods() {
    let stage = Stage::start("/services", Duration::from_secs(25)).await;
    web_with_pod(&stage.user, "web").await;
    // Four at a time, they take more than six minutes.
    let scope = |number| Scope { namespace: Some(format!("n-{number}")), ..Scope::default() };
    let _services = stage.cluster.watch::<Service>((0..64).map(scope));
    sleep(Duration::from_secs(10)).await;
    stage.user.patch("deployments/mws-web/status", json!({"status": {"readyReplicas": 1}})).await;
    sleep(Duration::from_secs(15)).await;
    assert_eq!(stage.user.get("mywebservers/web").await["status"]["readyReplicas"], 1);
}

/// The page was requested again and again with the same limit, and was always too large.
#[tokio::test(start_paused = true)]
async fn a_list_of_large_pods_is_repeated_with_a_smaller_limit() {
    const LARGE_BYTES: usize = 1024 * 1024;
    let stage = Stage::start("/pods", Duration::ZERO).await;
    web_with_pod(&stage.user, "web").await;
    let pod = stage.user.get("pods/web").await;
    for number in 0..10 {
        let name = format!("web-{number}");
        let labels = &pod["metadata"]["labels"];
        stage
            .user
            .create("pods", &json!({"metadata": {"name": name, "labels": labels}, "spec": pod["spec"]}))
            .await;
        report(&stage.user, &name, waiting("CreateContainerError", &"long ".repeat(LARGE_BYTES / 5))).await;
    }
    sleep(Duration::from_secs(7)).await;
    let web = stage.user.get("mywebservers/web").await;
    assert_eq!(condition(&web, "Ready").unwrap()["reason"], "CreateContainerError");
    assert_eq!(stage.gateway.arrivals().len(), 5, "limits of 100, 50, 25, 12 and 6");
}
