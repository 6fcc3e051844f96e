//! Tests outages: a real control plane is frozen, killed, stopped, restarted, compacted or restored from a backup.
//!
//! Each test has a control plane of its own with two running operators, one for each way to list. Within two minutes
//! after the outage, the operators must reconcile all changes made meanwhile, and write nothing twice.

use std::{rc::Rc, time::Instant};

use listwatch_control_plane::{ControlPlane, Http, has_assets, within};
use serde_json::{Value, json};

use crate::{
    fixture::{Fixture, Record, installed_control_plane},
    network::{SILENCE_LIMIT, change_objects, check_reconciled_once, create_webs, ended, until_given_up},
    proxy::{Flow, Proxy},
};

/// A control plane, and operators that have settled in it. `None` without `KUBEBUILDER_ASSETS`.
async fn with_operators() -> Option<(Rc<ControlPlane>, [Fixture; 2])> {
    if !has_assets() {
        return None;
    }
    let control_plane = Rc::new(installed_control_plane(Http::Any).await);
    let fixtures = Fixture::paged_and_streaming(&control_plane).await;
    for fixture in &fixtures {
        fixture.start_operator(&["--max-concurrent-reconciles", "8"]).await;
        create_webs(fixture).await;
        // An API server that has just started has not yet read its RBAC rules.
        fixture.may_be_forbidden.set(true);
    }
    Some((control_plane, fixtures))
}

/// Runs this in both fixtures at the same time.
pub async fn in_both(fixtures: &[Fixture; 2], step: impl AsyncFn(&Fixture)) {
    let [paged, streaming] = fixtures;
    tokio::join!(step(paged), step(streaming));
}

fn assert_clean(fixtures: &[Fixture; 2]) {
    for fixture in fixtures {
        fixture.assert_clean();
    }
}

/// Its kernel still accepts connections and acknowledges data.
#[tokio::test]
async fn the_operator_recovers_from_a_frozen_kube_apiserver() {
    let Some((control_plane, fixtures)) = with_operators().await else { return };
    let before = [ended(&fixtures[0]), ended(&fixtures[1])];
    in_both(&fixtures, change_objects).await;
    control_plane.signal("kube-apiserver", "STOP");
    let took = tokio::join!(until_given_up(&fixtures[0], before[0]), until_given_up(&fixtures[1], before[1]));
    eprintln!("kube-apiserver frozen: noticed after {took:?}");
    in_both(&fixtures, async |fixture| {
        fixture.operator().until_logged(&["cannot watch", "no connection"]).await;
        // `/livez` succeeds, because a restart would not help.
        assert!(fixture.operator().probe("/livez").await.starts_with("HTTP/1.1 200"));
    })
    .await;
    control_plane.signal("kube-apiserver", "CONT");
    in_both(&fixtures, check_reconciled_once).await;
    assert_clean(&fixtures);
}

/// As in an upgrade of a control plane: `/readyz` fails, the server answers for a while longer, and ends the watches.
#[tokio::test]
async fn the_operator_recovers_from_a_kube_apiserver_stopped_with_sigterm() {
    let Some((control_plane, fixtures)) = with_operators().await else { return };
    in_both(&fixtures, change_objects).await;
    control_plane.stop_apiserver().await;
    in_both(&fixtures, async |fixture| {
        fixture.operator().until_logged(&["request ended", "Clean", "mywebservers"]).await;
        assert!(fixture.operator().probe("/livez").await.starts_with("HTTP/1.1 200"));
    })
    .await;
    control_plane.start_apiserver().await;
    let since = Instant::now();
    in_both(&fixtures, check_reconciled_once).await;
    eprintln!("kube-apiserver stopped: reconciled {:?} after its return", since.elapsed());
    assert_clean(&fixtures);
}

/// The API server answers reads from its watch cache, but no writes.
#[tokio::test]
async fn while_etcd_is_frozen_or_killed_writes_wait_and_happen_once() {
    let Some((control_plane, fixtures)) = with_operators().await else { return };
    let fails = async |fixture: &Fixture| {
        fixture.operator().until_logged(&["reconcile failed"]).await;
        assert!(fixture.operator().probe("/livez").await.starts_with("HTTP/1.1 200"));
    };
    let signal_operators = |signal| fixtures.iter().for_each(|fixture| fixture.operator().signal(signal));

    // So that the operators get their work when etcd does not answer any more.
    signal_operators("STOP");
    in_both(&fixtures, change_objects).await;
    control_plane.signal("etcd", "STOP");
    signal_operators("CONT");
    in_both(&fixtures, fails).await;
    control_plane.signal("etcd", "CONT");
    in_both(&fixtures, check_reconciled_once).await;

    signal_operators("STOP");
    let drift = json!({"spec": {"replicas": 7}});
    in_both(&fixtures, async |fixture| drop(fixture.patch("deployments/mws-new-a", drift.clone()).await))
        .await;
    control_plane.kill_etcd().await;
    signal_operators("CONT");
    in_both(&fixtures, async |fixture| {
        fixture.operator().until_logged(&["reconcile failed", "/new-a"]).await
    })
    .await;
    control_plane.start_etcd();
    let since = Instant::now();
    in_both(&fixtures, async |fixture| {
        within(SILENCE_LIMIT, "the drift to be corrected", async || {
            let deployment = fixture.raw(&fixture.path("deployments/mws-new-a")).await.ok()?;
            let deployment: Value = serde_json::from_str(&deployment).unwrap();
            (deployment["spec"]["replicas"] == 1).then_some(())
        })
        .await;
        fixture.settle().await;
        assert_eq!(fixture.get("deployments/mws-new-a").await["metadata"]["generation"], 3, "written once");
    })
    .await;
    eprintln!("etcd killed: reconciled {:?} after its return", since.elapsed());
    assert_clean(&fixtures);
}

/// When the operator reconnects, the history since its last event has been compacted everywhere.
#[tokio::test]
async fn changes_compacted_while_the_operator_was_disconnected_are_listed() {
    if !has_assets() {
        return;
    }
    let control_plane = Rc::new(installed_control_plane(Http::Any).await);
    let fixtures = Fixture::paged_and_streaming(&control_plane).await;
    let proxy = Proxy::start(&control_plane.url()).await;
    for fixture in &fixtures {
        *fixture.proxy_url.borrow_mut() = Some(proxy.url());
        fixture.start_operator(&["--max-concurrent-reconciles", "8"]).await;
        create_webs(fixture).await;
        fixture.may_be_forbidden.set(true);
    }
    while_disconnected(&control_plane, &proxy, in_both(&fixtures, change_objects)).await;
    in_both(&fixtures, check_reconciled_once).await;
    in_both(&fixtures, async |fixture| {
        fixture.operator().until_logged(&["request ended", "Expired", "mywebservers"]).await;
    })
    .await;

    // No event reports this deletion. Its children are deleted nevertheless.
    while_disconnected(
        &control_plane,
        &proxy,
        in_both(&fixtures, async |fixture| fixture.delete("mywebservers/changed").await),
    )
    .await;
    in_both(&fixtures, async |fixture| {
        for child in ["deployments/mws-changed", "services/mws-changed"] {
            within(SILENCE_LIMIT, child, async || fixture.find(child).await.is_none().then_some(())).await;
        }
        let is_live_get = |record: &Record| {
            record.method == "GET" && record.path.contains("mywebservers/changed") && record.status == 404
        };
        assert!(
            fixture.records().await.iter().any(is_live_get),
            "the missing object was not confirmed by a GET"
        );
    })
    .await;
    assert_clean(&fixtures);
}

/// Makes changes while the operators are cut off. When they reconnect, the history of these changes has been compacted.
async fn while_disconnected(control_plane: &ControlPlane, proxy: &Proxy, change: impl Future<Output = ()>) {
    proxy.set(Flow::Stalled, Flow::Stalled);
    change.await;
    control_plane.compact().await;
    control_plane.kill_apiserver();
    control_plane.start_apiserver().await;
    proxy.cut();
    proxy.set(Flow::Open, Flow::Open);
}

/// All versions jump back. A watch from the last known version would be silent until the new history reaches that
/// version, and would then continue as if nothing had happened.
#[tokio::test]
async fn a_restored_backup_is_noticed_and_later_objects_are_forgotten() {
    // More writes than a freshly started control plane makes during this test.
    const WRITES: usize = 1000;
    let Some((control_plane, fixtures)) = with_operators().await else { return };
    in_both(&fixtures, async |fixture| drop(fixture.create_web("gone", json!({"image": "nginx"})).await))
        .await;
    in_both(&fixtures, Fixture::settle).await;
    control_plane.kill_apiserver();
    control_plane.kill_etcd().await;
    control_plane.copy_data("etcd", "backup");
    control_plane.start_etcd();
    control_plane.start_apiserver().await;
    in_both(&fixtures, async |fixture| {
        fixture.operator().until_ready().await;
        fixture.settle().await;
        // Changes that the restore undoes.
        fixture.create_web("late", json!({"image": "nginx"})).await;
        fixture.patch("mywebservers/changed", json!({"spec": {"image": "nginx:never"}})).await;
        fixture.delete("mywebservers/gone").await;
        fixture.until_gone("deployments/mws-gone").await;
        fixture.create("configmaps", &json!({"metadata": {"name": "counter"}})).await;
        for number in 0..WRITES / 2 {
            fixture.patch("configmaps/counter", json!({"data": {"number": number.to_string()}})).await;
        }
        fixture.settle().await;
        fixture.get("deployments/mws-late").await;
    })
    .await;

    control_plane.kill_apiserver();
    control_plane.kill_etcd().await;
    control_plane.copy_data("backup", "etcd");
    control_plane.start_etcd();
    control_plane.start_apiserver().await;
    let since = Instant::now();
    in_both(&fixtures, async |fixture| {
        assert!(fixture.find("mywebservers/late").await.is_none(), "the backup was not restored");
        // Each change is an event of another watch, and must be reconciled with the restored objects.
        fixture.patch("mywebservers/changed", json!({"spec": {"port": 81}})).await;
        fixture.patch("deployments/mws-gone", json!({"spec": {"replicas": 7}})).await;
        fixture.delete("services/mws-lost").await;
        within(SILENCE_LIMIT, "the restored state to be kept", async || {
            let web = fixture.get("mywebservers/changed").await;
            (web["status"]["observedGeneration"] == web["metadata"]["generation"]).then_some(())?;
            (fixture.get("services/mws-changed").await["spec"]["ports"][0]["port"] == 81).then_some(())?;
            (fixture.get("deployments/mws-gone").await["spec"]["replicas"] == 1).then_some(())?;
            fixture.find("services/mws-lost").await.map(drop)
        })
        .await;
    })
    .await;
    eprintln!("restored from a backup: reconciled after {:?}", since.elapsed());
    in_both(&fixtures, async |fixture| {
        fixture.settle().await;
        let deployment = fixture.get("deployments/mws-changed").await;
        assert_eq!(deployment["spec"]["template"]["spec"]["containers"][0]["image"], "nginx");
        for child in ["deployments/mws-late", "services/mws-late"] {
            assert!(fixture.find(child).await.is_none(), "{child}");
        }
        fixture.operator().until_ready().await;
    })
    .await;
    assert_clean(&fixtures);
}
