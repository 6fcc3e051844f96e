//! A real control plane that is frozen, killed, stopped, restarted, compacted or restored from a backup under running operators.
//!
//! Each test has a plane of its own and two operators in it, one for each way to list. What must hold: what happened
//! meanwhile is made up for, within two minutes, and nothing is written twice.

use std::{rc::Rc, time::Instant};

use serde_json::{Value, json};

use crate::{
    hands::within,
    network::{NOTICED, change_much, ended, made_up_for_once, make_webs, until_noticed},
    plane::{Http, Plane},
    proxy::{Flow, Proxy},
    world::{Record, World, has_real},
};

/// A plane, and operators in it that have settled.
async fn with_operators() -> (Rc<Plane>, [World; 2]) {
    let plane = Rc::new(Plane::installed(Http::Any).await);
    let worlds = World::both_in(&plane).await;
    for world in &worlds {
        world.start_operator(&["--max-concurrent-reconciles", "8"]).await;
        make_webs(world).await;
        // An API server that has just started has not yet read who may do what.
        world.may_be_forbidden.set(true);
    }
    (plane, worlds)
}

/// Does the same in both worlds at once.
pub async fn in_both(worlds: &[World; 2], step: impl AsyncFn(&World)) {
    let [paged, streaming] = worlds;
    tokio::join!(step(paged), step(streaming));
}

fn end_well(worlds: &[World; 2]) {
    for world in worlds {
        world.ends_well();
    }
}

/// Its kernel still takes connections and acknowledges what is sent.
#[tokio::test]
async fn a_kube_apiserver_that_is_frozen_mid_work_is_noticed_and_made_up_for() {
    if !has_real() {
        return;
    }
    let (plane, worlds) = with_operators().await;
    let before = [ended(&worlds[0]), ended(&worlds[1])];
    in_both(&worlds, change_much).await;
    plane.signal("kube-apiserver", "STOP");
    let took = tokio::join!(until_noticed(&worlds[0], before[0]), until_noticed(&worlds[1], before[1]));
    eprintln!("kube-apiserver frozen: noticed after {took:?}");
    in_both(&worlds, async |world| {
        world.operator().until_logged(&["cannot watch", "no connection"]).await;
        // A restart would not help.
        assert!(world.operator().probe("/livez").await.starts_with("HTTP/1.1 200"));
    })
    .await;
    plane.signal("kube-apiserver", "CONT");
    in_both(&worlds, made_up_for_once).await;
    end_well(&worlds);
}

/// As when a control plane is upgraded: it says that it is not ready, serves on for a while, and ends the watches.
#[tokio::test]
async fn a_kube_apiserver_that_is_asked_to_stop_mid_work_ends_its_watches_and_nothing_is_lost() {
    if !has_real() {
        return;
    }
    let (plane, worlds) = with_operators().await;
    in_both(&worlds, change_much).await;
    plane.stop_apiserver().await;
    in_both(&worlds, async |world| {
        world.operator().until_logged(&["request ended", "Clean", "mywebservers"]).await;
        assert!(world.operator().probe("/livez").await.starts_with("HTTP/1.1 200"));
    })
    .await;
    plane.start_apiserver().await;
    let since = Instant::now();
    in_both(&worlds, made_up_for_once).await;
    eprintln!("kube-apiserver stopped: as it should be {:?} after it was back", since.elapsed());
    end_well(&worlds);
}

/// The API server answers reads from its cache, and no write.
#[tokio::test]
async fn while_etcd_is_frozen_or_gone_writes_wait_and_are_made_once() {
    if !has_real() {
        return;
    }
    let (plane, worlds) = with_operators().await;
    let fails = async |world: &World| {
        world.operator().until_logged(&["reconcile failed"]).await;
        assert!(world.operator().probe("/livez").await.starts_with("HTTP/1.1 200"));
    };
    let hold = |signal| worlds.iter().for_each(|world| world.operator().signal(signal));

    // So that what they are to do comes to them when etcd does not answer any more.
    hold("STOP");
    in_both(&worlds, change_much).await;
    plane.signal("etcd", "STOP");
    hold("CONT");
    in_both(&worlds, fails).await;
    plane.signal("etcd", "CONT");
    in_both(&worlds, made_up_for_once).await;

    hold("STOP");
    let drift = json!({"spec": {"replicas": 7}});
    in_both(&worlds, async |world| drop(world.patch("deployments/mws-new-a", drift.clone()).await)).await;
    plane.kill_etcd().await;
    hold("CONT");
    in_both(&worlds, async |world| world.operator().until_logged(&["reconcile failed", "/new-a"]).await)
        .await;
    plane.start_etcd();
    let since = Instant::now();
    in_both(&worlds, async |world| {
        within(NOTICED, "the drift to be corrected", async || {
            let deployment = world.raw(&world.path("deployments/mws-new-a")).await.ok()?;
            let deployment: Value = serde_json::from_str(&deployment).unwrap();
            (deployment["spec"]["replicas"] == 1).then_some(())
        })
        .await;
        world.settle().await;
        assert_eq!(world.get("deployments/mws-new-a").await["metadata"]["generation"], 3, "written once");
    })
    .await;
    eprintln!("etcd killed: as it should be {:?} after it was back", since.elapsed());
    end_well(&worlds);
}

/// What the operator has not heard of has left the history everywhere when it comes back.
#[tokio::test]
async fn what_was_compacted_while_the_operator_was_cut_off_is_listed_again() {
    if !has_real() {
        return;
    }
    let plane = Rc::new(Plane::installed(Http::Any).await);
    let worlds = World::both_in(&plane).await;
    let proxy = Proxy::start(&plane.url()).await;
    for world in &worlds {
        *world.detour.borrow_mut() = Some(proxy.url());
        world.start_operator(&["--max-concurrent-reconciles", "8"]).await;
        make_webs(world).await;
        world.may_be_forbidden.set(true);
    }
    unheard(&plane, &proxy, in_both(&worlds, change_much)).await;
    in_both(&worlds, made_up_for_once).await;
    in_both(&worlds, async |world| {
        world.operator().until_logged(&["request ended", "Expired", "mywebservers"]).await;
    })
    .await;

    // Nobody tells that this one is gone; its children go with it all the same.
    unheard(&plane, &proxy, in_both(&worlds, async |world| world.delete("mywebservers/changed").await)).await;
    in_both(&worlds, async |world| {
        for child in ["deployments/mws-changed", "services/mws-changed"] {
            within(NOTICED, child, async || world.find(child).await.is_none().then_some(())).await;
        }
        let is_asked_for = |record: &Record| {
            record.method == "GET" && record.path.contains("mywebservers/changed") && record.status == 404
        };
        assert!(world.records().iter().any(is_asked_for), "believed at once");
    })
    .await;
    end_well(&worlds);
}

/// Something that is not heard of, and has left the history when the operators come back.
async fn unheard(plane: &Plane, proxy: &Proxy, change: impl Future<Output = ()>) {
    proxy.set(Flow::Stalled, Flow::Stalled);
    change.await;
    plane.compact().await;
    plane.kill_apiserver();
    plane.start_apiserver().await;
    proxy.cut();
    proxy.set(Flow::Open, Flow::Open);
}

/// All versions jump back: a watch from the last one that was heard of would be silent until the new history has come as
/// far, and then go on as if nothing had happened.
#[tokio::test]
async fn a_restored_backup_is_noticed_and_what_the_operator_knew_since_is_forgotten() {
    // More than a freshly started control plane writes in the time of this test.
    const WRITES: usize = 1000;
    if !has_real() {
        return;
    }
    let (plane, worlds) = with_operators().await;
    in_both(&worlds, async |world| drop(world.create_web("gone", json!({"image": "nginx"})).await)).await;
    in_both(&worlds, World::settle).await;
    plane.kill_apiserver();
    plane.kill_etcd().await;
    plane.copy_data("etcd", "backup");
    plane.start_etcd();
    plane.start_apiserver().await;
    in_both(&worlds, async |world| {
        world.operator().until_ready().await;
        world.settle().await;
        // What will not have been.
        world.create_web("late", json!({"image": "nginx"})).await;
        world.patch("mywebservers/changed", json!({"spec": {"image": "nginx:never"}})).await;
        world.delete("mywebservers/gone").await;
        world.until_gone("deployments/mws-gone").await;
        world.create("configmaps", &json!({"metadata": {"name": "counter"}})).await;
        for number in 0..WRITES / 2 {
            world.patch("configmaps/counter", json!({"data": {"number": number.to_string()}})).await;
        }
        world.settle().await;
        world.get("deployments/mws-late").await;
    })
    .await;

    plane.kill_apiserver();
    plane.kill_etcd().await;
    plane.copy_data("backup", "etcd");
    plane.start_etcd();
    plane.start_apiserver().await;
    let since = Instant::now();
    in_both(&worlds, async |world| {
        assert!(world.find("mywebservers/late").await.is_none(), "this is no backup");
        // Each is heard of on another watch, and wanted by what was restored.
        world.patch("mywebservers/changed", json!({"spec": {"port": 81}})).await;
        world.patch("deployments/mws-gone", json!({"spec": {"replicas": 7}})).await;
        world.delete("services/mws-lost").await;
        within(NOTICED, "the restored state to be kept", async || {
            let web = world.get("mywebservers/changed").await;
            (web["status"]["observedGeneration"] == web["metadata"]["generation"]).then_some(())?;
            (world.get("services/mws-changed").await["spec"]["ports"][0]["port"] == 81).then_some(())?;
            (world.get("deployments/mws-gone").await["spec"]["replicas"] == 1).then_some(())?;
            world.find("services/mws-lost").await.map(drop)
        })
        .await;
    })
    .await;
    eprintln!("restored from a backup: as it should be after {:?}", since.elapsed());
    in_both(&worlds, async |world| {
        world.settle().await;
        let deployment = world.get("deployments/mws-changed").await;
        assert_eq!(deployment["spec"]["template"]["spec"]["containers"][0]["image"], "nginx");
        for child in ["deployments/mws-late", "services/mws-late"] {
            assert!(world.find(child).await.is_none(), "{child}");
        }
        world.operator().until_ready().await;
    })
    .await;
    end_well(&worlds);
}
