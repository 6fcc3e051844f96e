//! What `kubectl describe` shows of what was done.

use std::time::{Duration, Instant};

use listwatch::{
    apiserver::{ApiServer, Fault, Options},
    client::{Client, Config, Request},
    cluster::{EventType, Events},
    resource::{Key, kinds::Service},
};
use serde_json::{Value, json};

use crate::{
    hands::{Hands, eventually},
    manifests,
    world::{Kind, World, on, on_each},
};

/// Waits for an Event on the web with this reason and note, and so many repetitions of it.
async fn told(world: &World, reason: &str, note: &str, count: u64) -> Value {
    eventually(&format!("the Event {reason}: {note}"), async || {
        let events = world.get("events").await["items"].as_array().unwrap().clone();
        events.into_iter().find(|event| {
            event["regarding"]["name"] == "web"
                && event["reason"] == reason
                && event["note"].as_str().unwrap().contains(note)
                && event["series"]["count"].as_u64().unwrap_or(1) == count
        })
    })
    .await
}

#[tokio::test]
async fn each_thing_that_is_done_is_told_with_its_own_words_and_repetitions_are_counted() {
    on_each(async |world| {
        let web = world.create_web("web", json!({"image": "nginx"})).await;
        let event = told(world, "Created", "created Deployment mws-web, Service mws-web", 1).await;
        assert_eq!(event["type"], "Normal");
        assert!(event["series"].is_null(), "{event}");
        assert_eq!(event["regarding"]["uid"], web["metadata"]["uid"]);
        assert_eq!(event["reportingController"], "k8sobjects.gsa.com/mywebserver-operator");
        world.settle().await;

        world.patch("mywebservers/web", json!({"spec": {"image": "nginx:2"}})).await;
        told(world, "Updated", "containers/0/image", 1).await;
        world.settle().await;
        world.patch("mywebservers/web", json!({"spec": {"replicas": 2}})).await;
        told(world, "Updated", "/spec/replicas", 1).await;
        world.settle().await;

        for count in 1..=2 {
            world.patch("deployments/mws-web", json!({"spec": {"replicas": 7}})).await;
            told(world, "DriftCorrected", "restored Deployment mws-web at /spec/replicas", count).await;
            world.settle().await;
        }
        world.delete("services/mws-web").await;
        told(world, "DriftCorrected", "restored Service mws-web", 1).await;
    })
    .await;
}

/// The API server deletes an Event an hour after its last write. The PATCH of its series was then lost with a 404.
#[tokio::test]
async fn a_repetition_of_an_event_that_has_expired_is_written_as_a_new_event() {
    on_each(async |world| {
        world.create_web("web", json!({"image": "nginx"})).await;
        let note = "restored Deployment mws-web at /spec/replicas";
        for count in 1..=2 {
            world.settle().await;
            world.patch("deployments/mws-web", json!({"spec": {"replicas": 7}})).await;
            let event = told(world, "DriftCorrected", note, count).await;
            world.delete(&format!("events/{}", event["metadata"]["name"].as_str().unwrap())).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_taken_name_is_a_warning() {
    on_each(async |world| {
        let foreign = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "mws-web"}, "spec": {"ports": [{"port": 1}]}});
        world.create("services", &foreign).await;
        world.create_web("web", json!({"image": "nginx"})).await;
        assert_eq!(told(world, "NameConflict", "Service mws-web", 1).await["type"], "Warning");
        // Once, however often it is looked at. Events are written in their order.
        world.patch("mywebservers/web", json!({"metadata": {"annotations": {"touched": "once"}}})).await;
        world.settle().await;
        world.delete("services/mws-web").await;
        world.patch("mywebservers/web", json!({"metadata": {"annotations": {"touched": "twice"}}})).await;
        told(world, "Created", "created Service mws-web", 1).await;
        told(world, "NameConflict", "Service mws-web", 1).await;
    })
    .await;
}

/// A recorder of Events about a Service, the task that writes them, and everything around them.
struct Recorder {
    server: ApiServer,
    hands: Hands,
    client: Client,
    service: Service,
    events: Events,
}

impl Recorder {
    async fn start() -> (Recorder, impl Future<Output = ()>) {
        let server = ApiServer::start(Options { controllers: false, ..Options::default() }).await.unwrap();
        let client = || {
            let config = Config::new(&server.url(), server.ca_pem().as_bytes(), server.token()).unwrap();
            Client::new(config).unwrap()
        };
        let hands = Hands::new(client());
        let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": {"ports": [{"port": 1}]}});
        hands.create("services", &service).await;
        let client = client();
        let service = client.get(&Key::namespaced("default", "web")).await.unwrap();
        let (events, write) = Events::new(client.clone(), "example.com/test", "test".to_owned());
        (Recorder { server, hands, client, service, events }, write)
    }

    fn record(&self, note: impl ToString) {
        self.events.record(&self.service, EventType::Normal, "Tested", note.to_string());
    }

    async fn until_written(&self, count: usize) {
        eventually("the Events to be written", async || {
            let events = self.hands.get("events").await;
            (events["items"].as_array()?.len() == count).then_some(())
        })
        .await;
    }
}

/// 256 could wait, and what came beyond it was lost.
#[tokio::test]
async fn a_burst_loses_no_event() {
    const EVENTS: usize = 300;
    let (recorder, write) = Recorder::start().await;
    for number in 0..EVENTS {
        recorder.record(number);
    }
    tokio::select! {
        () = write => {}
        () = recorder.until_written(EVENTS) => {}
    }
}

#[tokio::test]
async fn an_event_lets_other_requests_go_first_but_not_for_ever() {
    async fn check(request_takes: Duration, expected: &[&str]) {
        let (recorder, write) = Recorder::start().await;
        let begun = recorder.server.requests().len();
        recorder.server.fault(Fault::Delay(request_takes).on("GET", "/configmaps").times(1));
        let request = recorder.client.send(Request::get("/api/v1/namespaces/default/configmaps"));
        let record = async {
            // The request is on its way by now.
            recorder.record("note");
            recorder.until_written(1).await;
        };
        tokio::select! {
            biased;
            _ = async { drop(request.await); std::future::pending::<()>().await } => {}
            () = record => {}
            () = write => {}
        }
        let mut log = recorder.server.requests().split_off(begun);
        log.retain(|request| request.path.ends_with("/configmaps") || request.method == "POST");
        let methods: Vec<_> = log.iter().map(|request| request.method.as_str()).collect();
        assert_eq!(methods, expected);
    }
    check(Duration::from_millis(300), &["GET", "POST"]).await;
    check(Duration::from_secs(600), &["POST"]).await;
}

/// It was dropped where the API server answered that it cannot write now. Where no answer comes, it may have been written:
/// then an Event of the same name is refused.
#[tokio::test]
async fn an_event_that_the_api_server_cannot_take_now_is_sent_again_and_written_once() {
    const ASKED: Duration = Duration::from_secs(6);
    let no = |status, retry_after_secs| Fault::Answer { status, body: "{}".to_owned(), retry_after_secs };
    let check = async |fault: Fault, at_least: Duration| {
        let (recorder, write) = Recorder::start().await;
        let (what, begun) = (format!("{fault:?}"), Instant::now());
        recorder.server.fault(fault.on("POST", "/events").times(1));
        recorder.record("note");
        recorder.record("note");
        let series = async {
            eventually(&format!("both to be one Event after {what}"), async || {
                let events = recorder.hands.get("events").await;
                let events = events["items"].as_array()?;
                (events.len() == 1 && events[0]["series"]["count"] == 2).then_some(())
            })
            .await;
        };
        tokio::select! {
            () = write => {}
            () = series => {}
        }
        assert!(begun.elapsed() >= at_least, "{what}");
    };
    tokio::join!(
        check(Fault::LoseAnswer, Duration::ZERO),
        check(no(500, None), Duration::ZERO),
        check(no(503, None), Duration::ZERO),
        // Longer than the client itself waits.
        check(no(429, Some(ASKED.as_secs())), ASKED),
    );
}

#[tokio::test]
async fn an_event_that_a_webhook_denies_or_does_not_answer_is_not_sent_again() {
    let (webhook, message) = ("freeze.example.com".to_owned(), "no".to_owned());
    let message_of_none = r#"Internal error occurred: failed calling webhook "x": connection refused"#;
    let no_answer =
        json!({"kind": "Status", "code": 500, "reason": "InternalError", "message": message_of_none});
    for fault in [
        Fault::Deny { webhook, message, code: 500 },
        Fault::Answer { status: 500, body: no_answer.to_string(), retry_after_secs: None },
    ] {
        let (recorder, write) = Recorder::start().await;
        let begun = recorder.server.requests().len();
        recorder.server.fault(fault.on("POST", "/events").times(1));
        recorder.record("denied");
        recorder.record("taken");
        tokio::select! {
            () = write => {}
            () = recorder.until_written(1) => {}
        }
        let mut log = recorder.server.requests().split_off(begun);
        log.retain(|request| request.method == "POST");
        assert_eq!(log.iter().map(|request| request.status).collect::<Vec<_>>(), [500, 201]);
    }
}

/// It was logged at debug.
#[tokio::test]
async fn events_that_may_not_be_written_are_a_warning() {
    on(&[Kind::Embedded, Kind::Real], async |world| {
        world.may_be_forbidden.set(true);
        let mut rules = manifests::cluster_role()["rules"].take();
        rules.as_array_mut().unwrap().retain(|rule| rule["resources"] != json!(["events"]));
        world.allow_only(&rules).await;
        world.start_operator(&[]).await;
        world
            .operator()
            .until_logged(&["WARN", "event not written", "\"lost\":1", "cannot create resource"])
            .await;
    })
    .await;
}
