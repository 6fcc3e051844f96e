//! Why Pods do not run: the condition has the kubelet's reason, at the cost of few requests and writes.

use std::{
    future, iter,
    sync::Arc,
    time::{Duration, SystemTime},
};

use listwatch::{
    apiserver::{ApiServer, Fault, Options},
    client::Client,
    cluster::Cluster,
    operators::mywebserver,
    resource::{Scope, kinds::Service},
    watch::Lists,
};
use serde_json::{Value, json};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};

use crate::{
    crowd::Door,
    hands::{Hands, condition, eventually},
    manifests,
    world::{ACCOUNT, Kind, World, on},
};

/// A MyWebserver and its Pod of the same name, with the Deployment's status as a Deployment controller writes it.
async fn web_with_pod(hands: &Hands, name: &str) {
    hands.create_web(name, json!({"image": "nginx"})).await;
    let path = format!("deployments/mws-{name}");
    let deployment = hands.until(&path, |_| true).await;
    let status =
        json!({"observedGeneration": 1, "replicas": 1, "updatedReplicas": 1, "unavailableReplicas": 1});
    hands.patch(&format!("{path}/status"), json!({"status": status})).await;
    let template = &deployment["spec"]["template"];
    let labels = &template["metadata"]["labels"];
    let pod = json!({"metadata": {"name": name, "labels": labels}, "spec": template["spec"]});
    hands.create("pods", &pod).await;
    hands.until(&format!("mywebservers/{name}"), |web| web["status"]["replicas"] == 1).await;
}

/// The kubelet's report of the Pod's only container.
async fn report(hands: &Hands, pod: &str, mut container: Value) {
    for (field, value) in
        [("name", json!("web")), ("image", json!("nginx")), ("imageID", json!("")), ("ready", json!(false))]
    {
        container[field] = value;
    }
    let restarts = container["restartCount"].take().as_i64().unwrap_or_default();
    container["restartCount"] = restarts.into();
    let status = json!({"phase": "Pending", "containerStatuses": [container]});
    hands.patch(&format!("pods/{pod}/status"), json!({"status": status})).await;
}

fn waiting(reason: &str, message: &str) -> Value {
    json!({"state": {"waiting": {"reason": reason, "message": message}}})
}

fn looks(world: &World) -> usize {
    world.records().iter().filter(|record| record.path.contains("/pods?")).count()
}

/// It ended as `RolloutInProgress`, whatever the kubelet said.
#[tokio::test]
async fn an_image_that_cannot_be_pulled_is_reported_in_the_kubelets_words_with_few_requests() {
    on(&[Kind::EmbeddedWithControllers], async |world| {
        world.spawn_operator(&[]);
        world.create_web("web", json!({"image": "does-not-exist", "replicas": 2})).await;
        let said = world.until_condition("web", "Ready", "False", "ImagePullBackOff").await;
        let message = said["message"].as_str().unwrap();
        let start =
            "0 of 2 replicas are updated and available: container web: failed to pull and unpack image";
        assert!(message.starts_with(start) && message.ends_with("not found"), "{message}");
        assert!(condition(&world.get("mywebservers/web").await, "Stalled").is_none(), "it is tried again");
        world.patch("mywebservers/web", json!({"spec": {"image": "nginx"}})).await;
        world.until_condition("web", "Ready", "True", "AllReplicasReady").await;
        assert!((1..=2).contains(&looks(world)), "{} lists of Pods", looks(world));
        // One that is ready costs none.
        world.create_web("other", json!({"image": "nginx"})).await;
        let before = looks(world);
        world.until_condition("other", "Ready", "True", "AllReplicasReady").await;
        assert_eq!(looks(world), before);
    })
    .await;
}

#[tokio::test]
async fn a_container_that_cannot_be_configured_is_reported_in_the_kubelets_words() {
    on(&[Kind::Embedded, Kind::Real], async |world| {
        world.spawn_operator(&[]);
        web_with_pod(world, "web").await;
        report(world, "web", waiting("CreateContainerConfigError", "secret \"x\" not found")).await;
        let ready = world.until_condition("web", "Ready", "False", "CreateContainerConfigError").await;
        let message = "0 of 1 replicas are updated and available: container web: secret \"x\" not found";
        assert_eq!(ready["message"], message);
    })
    .await;
}

#[tokio::test]
async fn without_the_permission_to_list_pods_all_else_goes_on_and_the_log_says_so_once() {
    on(&[Kind::Embedded, Kind::Real], async |world| {
        world.may_be_forbidden.set(true);
        let mut rules = manifests::cluster_role()["rules"].take();
        rules.as_array_mut().unwrap().retain(|rule| rule["resources"][0] != "pods");
        world.allow_only(&rules).await;
        world.spawn_operator(&[]);
        web_with_pod(world, "web").await;
        report(world, "web", waiting("CreateContainerConfigError", "secret \"x\" not found")).await;
        eventually("a first list of Pods", async || (looks(world) > 0).then_some(())).await;
        // A change of the Deployment is a reason to write the status, and none to ask again.
        for number in [1, 0, 1] {
            let status = json!({"readyReplicas": number});
            world.patch("deployments/mws-web/status", json!({"status": status})).await;
            let ready = world.until("mywebservers/web", |web| web["status"]["readyReplicas"] == number).await;
            let ready = condition(&ready, "Ready").unwrap();
            assert_eq!(ready["reason"], "RolloutInProgress");
            assert_eq!(ready["message"], "0 of 1 replicas are updated and available");
        }
        assert!(looks(world) <= 2, "{} lists of Pods", looks(world));
        eventually("a second list of Pods", async || (looks(world) > 1).then_some(())).await;
        let log = world.operator().log();
        let remedy = "grant the verb list on the resource pods";
        let warnings = log.lines().filter(|line| line.contains("WARN") && line.contains(remedy));
        assert_eq!(warnings.count(), 1);
    })
    .await;
}

/// The operator in this process, on a clock that jumps, before a server without controllers: Deployments and Pods are as
/// the test writes them.
struct Stage {
    door: Arc<Door>,
    hands: Hands,
    client: Client,
    cluster: Cluster,
    operator: JoinSet<()>,
}

impl Stage {
    /// Each list of this resource takes that long.
    async fn start(resource: &'static str, list_time: Duration) -> Stage {
        let options = Options { controllers: false, ..Options::default() };
        let server = ApiServer::in_process(&options, SystemTime::UNIX_EPOCH);
        let tokens = [server.token().to_owned(), server.new_token(ACCOUNT)];
        let door = Door::to(server, resource, list_time);
        let [admin, client] = tokens.map(|token| door.client(&token));
        let hands = Hands::new(admin);
        hands.install(&manifests::crd()).await;
        let cluster = Cluster::new(client.clone(), Lists::Paged);
        let mut stage = Stage { door, hands, client, cluster, operator: JoinSet::new() };
        stage.restart();
        stage
    }

    /// Starts the operator, instead of the one that runs.
    fn restart(&mut self) {
        self.operator = JoinSet::new();
        let (events, write_events) = mywebserver::events(self.client.clone(), "test".to_owned());
        self.cluster = Cluster::new(self.client.clone(), Lists::Paged);
        let controller = mywebserver::controller(&self.cluster, &[], events);
        self.operator.spawn(async {
            tokio::join!(controller.run(future::pending()), write_events);
        });
    }

    /// How often the operator has written the status of a MyWebserver.
    fn status_writes(&self) -> usize {
        let requests = self.door.server.requests();
        let is_write = |path: &str| path.contains("/mywebservers/") && path.ends_with("/status");
        requests.iter().filter(|request| request.user == ACCOUNT && is_write(&request.path)).count()
    }
}

/// While a container crashes and is restarted, it is reported with one message, which is written once. A message that has
/// other words each time is written once for each list of Pods, and in the end there is one list a minute.
#[tokio::test(start_paused = true)]
async fn a_container_that_crashes_for_hours_costs_one_write_and_one_with_new_errors_one_a_minute() {
    const STEP: Duration = Duration::from_secs(7);
    let stage = Stage::start("/pods", Duration::ZERO).await;
    web_with_pod(&stage.hands, "web").await;
    let before = stage.status_writes();
    let exit =
        json!({"terminated": {"exitCode": 1, "reason": "Error", "finishedAt": "1970-01-01T00:00:00Z"}});
    for restarts in 1..200 {
        let pause = format!("back-off {restarts}s restarting failed container=web pod=web_default(1-2-3)");
        let now = humantime::format_rfc3339_seconds(stage.door.server.now()).to_string();
        let back_off = waiting("CrashLoopBackOff", &pause);
        for mut container in
            [json!({"state": {"running": {"startedAt": now}}}), json!({"state": exit}), back_off]
        {
            container["lastState"] = exit.clone();
            container["restartCount"] = restarts.into();
            report(&stage.hands, "web", container).await;
            sleep(STEP).await;
        }
    }
    let web = stage.hands.get("mywebservers/web").await;
    let message = &condition(&web, "Ready").unwrap()["message"];
    assert_eq!(
        message,
        "0 of 1 replicas are updated and available: container web: exited with code 1 (Error)"
    );
    assert_eq!(stage.status_writes() - before, 1);

    stage.door.arrivals();
    let words = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven"];
    let began = Instant::now();
    for word in iter::repeat_n(words, 50).flatten() {
        report(&stage.hands, "web", waiting("CreateContainerError", word)).await;
        sleep(STEP).await;
    }
    let minutes = usize::try_from(began.elapsed().as_secs() / 60).unwrap();
    let looks = stage.door.arrivals().len();
    assert!((minutes - 1..=minutes + 1).contains(&looks), "{looks} lists of Pods in {minutes} minutes");
    let writes = stage.status_writes() - before - 1;
    assert!((2..=looks).contains(&writes), "{writes} writes after {looks} lists");
}

/// The pause was counted from before the request: a list that took longer was asked for again at each event.
#[tokio::test(start_paused = true)]
async fn after_a_slow_list_of_pods_the_pause_is_as_long_as_after_a_fast_one() {
    const LIST_TIME: Duration = Duration::from_secs(8);
    let stage = Stage::start("/pods", LIST_TIME).await;
    web_with_pod(&stage.hands, "web").await;
    for second in 0..300 {
        let status = json!({"readyReplicas": second % 2});
        stage.hands.patch("deployments/mws-web/status", json!({"status": status})).await;
        sleep(Duration::from_secs(1)).await;
    }
    let looks = stage.door.arrivals();
    assert!(looks.len() > 3, "{looks:?}");
    for pair in looks.windows(2) {
        assert!(pair[1] - pair[0] >= LIST_TIME + Duration::from_secs(5), "{:?}", pair[1] - pair[0]);
    }
}

/// A rollout that has just begun is as a rule done in a few seconds.
#[tokio::test(start_paused = true)]
async fn each_rollout_has_five_seconds_before_its_pods_are_looked_at() {
    let stage = Stage::start("/pods", Duration::ZERO).await;
    web_with_pod(&stage.hands, "web").await;
    let deployment = "deployments/mws-web";
    let looks_at_pods = async |observed: u64, available: u64| {
        let status = json!({
            "observedGeneration": observed, "availableReplicas": available, "unavailableReplicas": 1 - available,
        });
        stage.hands.patch(&format!("{deployment}/status"), json!({"status": status})).await;
        stage.door.arrivals();
        let mut looks = Vec::new();
        for pause in [4, 3] {
            sleep(Duration::from_secs(pause)).await;
            looks.push(stage.door.arrivals().len());
        }
        sleep(Duration::from_secs(300)).await;
        looks
    };
    assert_eq!(looks_at_pods(1, 0).await, [0, 1]);
    assert_eq!(looks_at_pods(1, 1).await, [0, 0]);
    assert_eq!(looks_at_pods(1, 0).await, [0, 1], "it was complete in between");
    // Somebody changes a field that is theirs.
    stage.hands.patch(deployment, json!({"spec": {"minReadySeconds": 1}})).await;
    assert_eq!(looks_at_pods(2, 0).await, [0, 1]);
}

/// What was known of Pods must not be lost with the process, nor by a list that fails.
#[tokio::test(start_paused = true)]
async fn a_reason_of_pods_outlives_a_restart_and_a_list_that_fails() {
    let mut stage = Stage::start("/pods", Duration::ZERO).await;
    web_with_pod(&stage.hands, "web").await;
    report(&stage.hands, "web", waiting("CreateContainerError", "no")).await;
    sleep(Duration::from_secs(10)).await;
    let reason = async |stage: &Stage| {
        let web = stage.hands.get("mywebservers/web").await;
        condition(&web, "Ready").unwrap()["reason"].clone()
    };
    assert_eq!(reason(&stage).await, "CreateContainerError");
    let writes = stage.status_writes();
    stage.restart();
    stage.door.arrivals();
    sleep(Duration::from_secs(2)).await;
    assert_eq!(stage.door.arrivals().len(), 1);
    let fails = Fault::Answer { status: 500, body: "{}".to_owned(), retry_after_secs: None };
    stage.door.server.fault(fails.on("GET", "/pods"));
    sleep(Duration::from_secs(120)).await;
    assert!(stage.door.arrivals().len() > 1);
    assert_eq!(reason(&stage).await, "CreateContainerError");
    assert_eq!(stage.status_writes(), writes);
}

/// Each worker read 8 MiB at the same time, and all of them together as much as the memory limit.
#[tokio::test(start_paused = true)]
async fn of_many_lists_of_pods_four_are_asked_for_at_a_time() {
    let stage = Stage::start("/pods", Duration::from_secs(1)).await;
    for number in 0..12 {
        web_with_pod(&stage.hands, &format!("web-{number}")).await;
    }
    sleep(Duration::from_secs(60)).await;
    assert!(stage.door.arrivals().len() >= 24);
    assert_eq!(stage.door.most_listing(), 4);
}

#[tokio::test(start_paused = true)]
async fn where_a_list_of_pods_waits_long_for_its_turn_the_status_is_written_without_it() {
    let stage = Stage::start("/services", Duration::from_secs(25)).await;
    web_with_pod(&stage.hands, "web").await;
    // Four at a time, they take more than six minutes.
    let scope = |number| Scope { namespace: Some(format!("n-{number}")), ..Scope::default() };
    let _services = stage.cluster.watch::<Service>((0..64).map(scope));
    sleep(Duration::from_secs(10)).await;
    stage.hands.patch("deployments/mws-web/status", json!({"status": {"readyReplicas": 1}})).await;
    sleep(Duration::from_secs(15)).await;
    assert_eq!(stage.hands.get("mywebservers/web").await["status"]["readyReplicas"], 1);
}

/// It was asked for again with the same limit, in vain, for ever.
#[tokio::test(start_paused = true)]
async fn of_pods_that_are_too_large_for_one_answer_fewer_are_asked_for() {
    const LARGE_BYTES: usize = 1024 * 1024;
    let stage = Stage::start("/pods", Duration::ZERO).await;
    web_with_pod(&stage.hands, "web").await;
    let pod = stage.hands.get("pods/web").await;
    for number in 0..10 {
        let name = format!("web-{number}");
        let labels = &pod["metadata"]["labels"];
        stage
            .hands
            .create("pods", &json!({"metadata": {"name": name, "labels": labels}, "spec": pod["spec"]}))
            .await;
        report(&stage.hands, &name, waiting("CreateContainerError", &"long ".repeat(LARGE_BYTES / 5))).await;
    }
    sleep(Duration::from_secs(7)).await;
    let web = stage.hands.get("mywebservers/web").await;
    assert_eq!(condition(&web, "Ready").unwrap()["reason"], "CreateContainerError");
    assert_eq!(stage.door.arrivals().len(), 5, "limits of 100, 50, 25, 12 and 6");
}
