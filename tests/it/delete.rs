//! A MyWebserver goes, and what becomes of its children, with a garbage collector and without.

use listwatch::apiserver::Fault;
use serde_json::json;

use crate::{
    hands::eventually,
    manifests,
    refused::with_crd,
    world::{Kind, Server, World, on},
};

const WITH_COLLECTOR: [Kind; 2] = [Kind::EmbeddedWithControllers, Kind::Real];

async fn with_web(world: &World) {
    world.start_operator(&[]).await;
    world.create_web("web", json!({"image": "nginx"})).await;
    world.settle().await;
    world.get("deployments/mws-web").await;
    world.get("services/mws-web").await;
    world.transcript();
}

/// What was created since the last time.
fn created(world: &World) -> Vec<String> {
    world.transcript().into_iter().filter(|line| line.starts_with("POST")).collect()
}

#[tokio::test]
async fn without_a_collector_we_delete_the_children_ourselves() {
    on(&[Kind::Embedded], async |world| {
        with_web(world).await;
        world.delete("mywebservers/web").await;
        world.wrote("DELETE deployments/mws-web 200\nDELETE services/mws-web 200").await;
        assert!(world.find("deployments/mws-web").await.is_none());
        assert!(world.find("services/mws-web").await.is_none());
    })
    .await;
}

#[tokio::test]
async fn deleted_in_the_background_or_the_foreground_the_children_go_and_stay_away() {
    on(&WITH_COLLECTOR, async |world| {
        for how in ["Background", "Foreground"] {
            if how == "Background" {
                with_web(world).await;
            } else {
                world.create_web("web", json!({"image": "nginx"})).await;
                world.settle().await;
                world.transcript();
            }
            world.delete_how("mywebservers/web", json!({"propagationPolicy": how})).await;
            for what in ["mywebservers/web", "deployments/mws-web", "services/mws-web"] {
                world.until_gone(what).await;
            }
            world.settle().await;
            assert_eq!(created(world), [""; 0], "{how}");
            assert!(world.find("deployments/mws-web").await.is_none());
        }
    })
    .await;
}

/// While the watch of MyWebservers was broken, the one of Deployments told that the collector had taken a child. We made it
/// anew for the owner that was gone, the collector took it, and so on: eighty requests a second.
#[tokio::test]
async fn for_an_owner_that_is_gone_unheard_nothing_is_made_anew() {
    on(&[Kind::EmbeddedWithControllers], async |world| {
        with_web(world).await;
        let Server::Embedded(server) = &world.server else { panic!("no real server") };
        // Lists and watches; seconds go by until the second is repeated.
        let unavailable = Fault::Answer { status: 503, body: String::new(), retry_after_secs: None };
        server.fault(unavailable.on("GET", "mywebservers?").times(2));
        server.fault(Fault::EndWatches);
        world.delete("mywebservers/web").await;
        world.settle().await;
        assert_eq!(created(world), [""; 0]);
    })
    .await;
}

#[tokio::test]
async fn orphaned_children_stay() {
    on(&WITH_COLLECTOR, async |world| {
        with_web(world).await;
        world.delete_how("mywebservers/web", json!({"propagationPolicy": "Orphan"})).await;
        world.until_gone("mywebservers/web").await;
        world.settle().await;
        for child in ["deployments/mws-web", "services/mws-web"] {
            let child = world.get(child).await;
            assert!(child["metadata"]["deletionTimestamp"].is_null());
            assert!(child["metadata"]["ownerReferences"].as_array().is_none_or(Vec::is_empty), "{child}");
        }
        let written = world.transcript();
        assert!(written.iter().all(|line| line.contains("/status ") || line.ends_with("409")), "{written:?}");
    })
    .await;
}

/// With foreground deletion each child that we made anew would have to be deleted again, for ever.
#[tokio::test]
async fn an_object_that_is_going_gets_no_child() {
    on(&[Kind::Embedded, Kind::Real], async |world| {
        with_web(world).await;
        world.patch("mywebservers/web", json!({"metadata": {"finalizers": ["example.com/wait"]}})).await;
        world.delete("mywebservers/web").await;
        world.patch("deployments/mws-web", json!({"spec": {"replicas": 9}})).await;
        world.delete("services/mws-web").await;
        world.wrote("").await;
        assert!(world.find("services/mws-web").await.is_none());
        world.patch("mywebservers/web", json!({"metadata": {"finalizers": null}})).await;
        world.until_gone("mywebservers/web").await;
        world.until_gone("deployments/mws-web").await;
    })
    .await;
}

#[tokio::test]
async fn an_owner_that_is_made_anew_under_its_name_gets_children_of_its_own() {
    on(&[Kind::Embedded, Kind::EmbeddedWithControllers, Kind::Real], async |world| {
        with_web(world).await;
        world.delete("mywebservers/web").await;
        let web = world.create_web("web", json!({"image": "nginx:2"})).await;
        has_children(world, &web["metadata"]["uid"]).await;
    })
    .await;
}

/// While the operator was away, one MyWebserver was replaced by another of its name, and nobody collected its children.
#[tokio::test]
async fn children_of_a_predecessor_are_replaced() {
    on(&[Kind::Embedded], async |world| {
        with_web(world).await;
        world.stop_operator().await;
        world.delete("mywebservers/web").await;
        let web = world.create_web("web", json!({"image": "nginx:2"})).await;
        world.spawn_operator(&[]);
        has_children(world, &web["metadata"]["uid"]).await;
        world.settle().await;
        let mut written = world.transcript();
        written.retain(|line| !line.contains("/status "));
        let expected = [
            "DELETE deployments/mws-web 200",
            "DELETE services/mws-web 200",
            "POST deployments 201",
            "POST services 201",
        ];
        written.sort();
        assert_eq!(written, expected);
        // They are new, and not restored.
        assert!(!world.operator().log().contains("made anew"));
    })
    .await;
}

/// What a predecessor left could not be deleted, and the new object was not even looked at.
#[tokio::test]
async fn a_predecessors_child_that_cannot_be_deleted_is_a_condition_of_the_successor() {
    on(&[Kind::EmbeddedBare, Kind::RealBare], async |world| {
        world.may_be_forbidden.set(true);
        with_crd(world, &manifests::crd()).await;
        with_web(world).await;
        world.allow_all_but("delete", "deployments").await;
        world.delete("mywebservers/web").await;
        // The other child is deleted all the same.
        world.until_gone("services/mws-web").await;
        world.get("deployments/mws-web").await;
        let web = world.create_web("web", json!({"image": "nginx:2"})).await;
        let said = world.until_condition("web", "Stalled", "True", "Forbidden").await;
        assert!(said["message"].as_str().unwrap().contains("cannot delete resource"), "{said}");
        assert_eq!(world.get("mywebservers/web").await["status"]["observedGeneration"], 1);
        // Nor does the other child of the successor wait.
        let uid = &web["metadata"]["uid"];
        world.until("services/mws-web", |child| child["metadata"]["ownerReferences"][0]["uid"] == *uid).await;
        world.allow().await;
        has_children(world, uid).await;
    })
    .await;
}

/// The same with a collector, which may be at work when the operator comes back.
#[tokio::test]
async fn an_owner_replaced_while_the_operator_was_away_gets_children_of_its_own() {
    on(&WITH_COLLECTOR, async |world| {
        with_web(world).await;
        world.stop_operator().await;
        world.delete("mywebservers/web").await;
        let web = world.create_web("web", json!({"image": "nginx:2"})).await;
        world.spawn_operator(&[]);
        has_children(world, &web["metadata"]["uid"]).await;
        let created = created(world);
        assert_eq!(created.iter().filter(|line| line.ends_with(" 201")).count(), 2, "{created:?}");
    })
    .await;
}

/// Held by a finalizer, so that the operator starts in the middle of it.
#[tokio::test]
async fn foreground_deletion_goes_on_while_the_operator_restarts() {
    on(&WITH_COLLECTOR, async |world| {
        with_web(world).await;
        let held = json!({"metadata": {"finalizers": ["example.com/wait"]}});
        world.patch("deployments/mws-web", held).await;
        world.settle().await;
        world.stop_operator().await;
        world.transcript();
        world.delete_how("mywebservers/web", json!({"propagationPolicy": "Foreground"})).await;
        world.until_gone("services/mws-web").await;
        world.start_operator(&[]).await;
        assert!(!world.get("mywebservers/web").await["metadata"]["deletionTimestamp"].is_null());
        world.patch("deployments/mws-web", json!({"metadata": {"finalizers": null}})).await;
        for what in ["deployments/mws-web", "mywebservers/web"] {
            world.until_gone(what).await;
        }
        world.settle().await;
        let written = world.transcript();
        // It may find the Deployment without its owner before the collector does.
        assert!(written.iter().all(|line| line.starts_with("DELETE deployments/mws-web")), "{written:?}");
        assert!(world.find("services/mws-web").await.is_none());
    })
    .await;
}

#[tokio::test]
async fn orphans_stay_also_where_the_operator_restarts_meanwhile() {
    on(&WITH_COLLECTOR, async |world| {
        with_web(world).await;
        world.stop_operator().await;
        let children = ["deployments/mws-web", "services/mws-web"];
        let mut uids = Vec::new();
        for child in children {
            uids.push(world.get(child).await["metadata"]["uid"].clone());
        }
        world.delete_how("mywebservers/web", json!({"propagationPolicy": "Orphan"})).await;
        world.start_operator(&[]).await;
        world.until_gone("mywebservers/web").await;
        world.settle().await;
        for (child, uid) in children.into_iter().zip(uids) {
            let child = world.get(child).await;
            assert_eq!(child["metadata"]["uid"], uid);
            assert!(child["metadata"]["deletionTimestamp"].is_null());
        }
    })
    .await;
}

async fn has_children(world: &World, uid: &serde_json::Value) {
    for child in ["deployments/mws-web", "services/mws-web"] {
        eventually(&format!("{child} to belong to the new owner"), async || {
            let child = world.find(child).await?;
            (child["metadata"]["ownerReferences"][0]["uid"] == *uid
                && child["metadata"]["deletionTimestamp"].is_null())
            .then_some(())
        })
        .await;
    }
    world.settle().await;
    let deployment = world.get("deployments/mws-web").await;
    assert_eq!(deployment["spec"]["template"]["spec"]["containers"][0]["image"], "nginx:2");
}
