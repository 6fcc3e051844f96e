//! What `kubectl describe` shows of what was done.

use serde_json::{Value, json};

use crate::{
    hands::eventually,
    world::{World, on_each},
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
    })
    .await;
}
