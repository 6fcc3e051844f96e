//! Tests the Events of the operator, which `kubectl describe` shows.

use std::time::{Duration, Instant};

use listwatch::{
    client::{Client, Request},
    cluster::{EventType, Events},
    resource::{Key, kinds::Service},
};
use listwatch_apiserver::{ApiServer, Fault};
use listwatch_control_plane::eventually;
use serde_json::{Value, json};

use crate::{
    client::{self, UserClient, admin},
    fixture::{Fixture, Kind, on, on_each},
    manifests,
};

/// Waits for an Event on the web with this reason and note, and so many repetitions of it.
async fn until_event(fixture: &Fixture, reason: &str, note: &str, count: u64) -> Value {
    eventually(&format!("the Event {reason}: {note}"), async || {
        let events = fixture.get("events").await["items"].as_array().unwrap().clone();
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
async fn each_action_has_its_event_and_repetitions_are_counted() {
    on_each(async |fixture| {
        let web = fixture.create_web("web", json!({"image": "nginx"})).await;
        let event = until_event(fixture, "Created", "created Deployment mws-web, Service mws-web", 1).await;
        assert_eq!(event["type"], "Normal");
        assert!(event["series"].is_null(), "{event}");
        assert_eq!(event["regarding"]["uid"], web["metadata"]["uid"]);
        assert_eq!(event["reportingController"], "k8sobjects.gsa.com/mywebserver-operator");
        fixture.settle().await;

        fixture.patch("mywebservers/web", json!({"spec": {"image": "nginx:2"}})).await;
        until_event(fixture, "Updated", "containers/0/image", 1).await;
        fixture.settle().await;
        fixture.patch("mywebservers/web", json!({"spec": {"replicas": 2}})).await;
        until_event(fixture, "Updated", "/spec/replicas", 1).await;
        fixture.settle().await;

        for count in 1..=2 {
            fixture.patch("deployments/mws-web", json!({"spec": {"replicas": 7}})).await;
            until_event(fixture, "DriftCorrected", "restored Deployment mws-web at /spec/replicas", count)
                .await;
            fixture.settle().await;
        }
        fixture.delete("services/mws-web").await;
        until_event(fixture, "DriftCorrected", "restored Service mws-web", 1).await;
    })
    .await;
}

/// The API server deletes an Event an hour after its last write. The PATCH of its series was then lost with a 404.
#[tokio::test]
async fn a_repetition_of_an_event_that_has_expired_is_written_as_a_new_event() {
    on_each(async |fixture| {
        fixture.create_web("web", json!({"image": "nginx"})).await;
        let note = "restored Deployment mws-web at /spec/replicas";
        for count in 1..=2 {
            fixture.settle().await;
            fixture.patch("deployments/mws-web", json!({"spec": {"replicas": 7}})).await;
            let event = until_event(fixture, "DriftCorrected", note, count).await;
            fixture.delete(&format!("events/{}", event["metadata"]["name"].as_str().unwrap())).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_taken_name_is_a_warning() {
    on_each(async |fixture| {
        fixture.create_service("mws-web").await;
        fixture.create_web("web", json!({"image": "nginx"})).await;
        assert_eq!(until_event(fixture, "NameConflict", "Service mws-web", 1).await["type"], "Warning");
        // Once, however often the object is reconciled. Events are written in order.
        fixture.patch("mywebservers/web", json!({"metadata": {"annotations": {"touched": "once"}}})).await;
        fixture.settle().await;
        fixture.delete("services/mws-web").await;
        fixture.patch("mywebservers/web", json!({"metadata": {"annotations": {"touched": "twice"}}})).await;
        until_event(fixture, "Created", "created Service mws-web", 1).await;
        until_event(fixture, "NameConflict", "Service mws-web", 1).await;
    })
    .await;
}

/// A recorder of Events about a Service, the task that writes them, and their server.
struct Recorder {
    server: ApiServer,
    user: UserClient,
    client: Client,
    service: Service,
    events: Events,
}

impl Recorder {
    async fn start() -> (Recorder, impl Future<Output = ()>) {
        let (server, user) = client::server().await;
        user.create_service("web").await;
        let client = admin(&server);
        let service = client.get(&Key::namespaced("default", "web")).await.unwrap();
        let (events, write) = Events::new(client.clone(), "example.com/test", "test".to_owned());
        (Recorder { server, user, client, service, events }, write)
    }

    fn record(&self, note: impl ToString) {
        self.events.record(&self.service, EventType::Normal, "Tested", note.to_string());
    }

    async fn until_written(&self, count: usize) {
        eventually("the Events to be written", async || {
            let events = self.user.get("events").await;
            (events["items"].as_array()?.len() == count).then_some(())
        })
        .await;
    }
}

/// Up to 256 Events could wait, and all further ones were lost.
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
async fn an_event_waits_for_other_requests_but_not_forever() {
    async fn check(request_takes: Duration, expected: &[&str]) {
        let (recorder, write) = Recorder::start().await;
        let begun = recorder.server.requests().len();
        recorder.server.fault(Fault::Delay(request_takes).on("GET", "/configmaps").times(1));
        let request = recorder.client.send(Request::get("/api/v1/namespaces/default/configmaps"));
        let record = async {
            // The request has been sent by now.
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

/// An Event was dropped if the API server answered that it cannot write now. Without an answer, the Event may have been
/// written, and another Event of the same name is refused.
#[tokio::test]
async fn an_event_that_fails_temporarily_is_sent_again_and_written_once() {
    const RETRY_AFTER: Duration = Duration::from_secs(6);
    let answer = |status, retry_after_secs| Fault::Answer { status, body: "{}".to_owned(), retry_after_secs };
    let check = async |fault: Fault, at_least: Duration| {
        let (recorder, write) = Recorder::start().await;
        let (what, begun) = (format!("{fault:?}"), Instant::now());
        recorder.server.fault(fault.on("POST", "/events").times(1));
        recorder.record("note");
        recorder.record("note");
        let series = async {
            eventually(&format!("both to be one Event after {what}"), async || {
                let events = recorder.user.get("events").await;
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
        check(answer(500, None), Duration::ZERO),
        check(answer(503, None), Duration::ZERO),
        // Longer than the client waits.
        check(answer(429, Some(RETRY_AFTER.as_secs())), RETRY_AFTER),
    );
}

/// A PATCH that is refused makes no new Event.
#[tokio::test(start_paused = true)]
async fn an_event_is_given_up_after_twelve_tries_and_a_refused_repetition_at_once() {
    let (recorder, write) = Recorder::start().await;
    let answer = |status| Fault::Answer { status, body: "{}".to_owned(), retry_after_secs: None };
    recorder.server.fault(answer(503).on("POST", "/events").times(12));
    recorder.server.fault(answer(422).on("PATCH", "/events"));
    let begun = recorder.server.requests().len();
    for note in ["given up", "written", "written", "last"] {
        recorder.record(note);
    }
    tokio::select! {
        () = write => {}
        () = recorder.until_written(2) => {}
    }
    let mut log = recorder.server.requests().split_off(begun);
    log.retain(|request| request.path.contains("/events") && request.method != "GET");
    let log: Vec<_> = log.iter().map(|request| (&*request.method, request.status)).collect();
    let expected = [("POST", 201), ("PATCH", 422), ("POST", 201)];
    assert_eq!(log, [&[("POST", 503); 12], &expected[..]].concat());
    let notes = recorder.user.get("events").await;
    let mut notes: Vec<_> = notes["items"].as_array().unwrap().iter().map(|event| &event["note"]).collect();
    notes.sort_by_key(|note| note.as_str());
    assert_eq!(notes, ["last", "written"]);
}

#[tokio::test]
async fn an_event_that_a_webhook_denies_or_does_not_answer_is_not_sent_again() {
    let (webhook, message) = ("freeze.example.com".to_owned(), "no".to_owned());
    let message_without_answer = r#"Internal error occurred: failed calling webhook "x": connection refused"#;
    let no_answer =
        json!({"kind": "Status", "code": 500, "reason": "InternalError", "message": message_without_answer});
    for fault in [
        Fault::Deny { webhook, message, code: 500 },
        Fault::Answer { status: 500, body: no_answer.to_string(), retry_after_secs: None },
    ] {
        let (recorder, write) = Recorder::start().await;
        let begun = recorder.server.requests().len();
        recorder.server.fault(fault.on("POST", "/events").times(1));
        recorder.record("denied");
        recorder.record("accepted");
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
async fn forbidden_events_are_a_warning() {
    on(&[Kind::Embedded, Kind::Real], async |fixture| {
        fixture.may_be_forbidden.set(true);
        let mut rules = manifests::cluster_role()["rules"].take();
        rules.as_array_mut().unwrap().retain(|rule| rule["resources"] != json!(["events"]));
        fixture.allow_only(&rules).await;
        fixture.start_operator(&[]).await;
        fixture
            .operator()
            .until_logged(&["WARN", "event not written", "\"lost\":1", "cannot create resource"])
            .await;
    })
    .await;
}
