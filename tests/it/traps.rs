//! Traps of watching that only show in a whole operator: what it asks for when a watch goes wrong, and what it writes.
//! The ones that a pure machine can fall into are in `src/watch/tests.rs`; docs/reliability.md has them all.

use listwatch::apiserver::{ApiServer, Fault, Planned};
use serde_json::json;

use crate::{
    hands::eventually,
    world::{Kind, Server, World, on},
};

fn embedded(world: &World) -> &ApiServer {
    let Server::Embedded(server) = &world.server else { unreachable!("asked for above") };
    server
}

fn plan(text: &str) -> Planned {
    text.parse().unwrap()
}

/// How often the operator has asked for a whole list of MyWebservers, and for a watch of them. One object is no list: it
/// asks how far the server has come.
fn lists_and_watches(world: &World) -> (usize, usize) {
    let asked = world.records();
    let asked =
        asked.iter().filter(|record| record.method == "GET" && record.path.contains("/mywebservers?"));
    let is_list = |path: &str| {
        !path.contains("continue=")
            && !path.ends_with("limit=1")
            && (!path.contains("watch=1") || path.contains("sendInitialEvents=true"))
    };
    let (lists, watches): (Vec<_>, Vec<_>) = asked.partition(|record| is_list(&record.path));
    (lists.len(), watches.len())
}

/// A 410 is an ERROR event of a stream as a rule; an aggregated server or a proxy may send it as the status of the
/// answer, and old servers called it Gone.
#[tokio::test]
async fn an_expired_version_in_any_of_its_forms_costs_one_list_and_loses_nothing() {
    async fn check(faults: &'static [&'static str]) {
        on(&[Kind::Embedded], async move |world| {
            world.start_operator(&[]).await;
            let (lists, _) = lists_and_watches(world);
            for fault in faults {
                embedded(world).fault(plan(fault));
            }
            world.create_web("web", json!({"image": "nginx"})).await;
            world.until("services/mws-web", |_| true).await;
            world.settle().await;
            assert_eq!(lists_and_watches(world).0, lists + 1, "{faults:?}");
            let wrote = world.transcript();
            assert_eq!(wrote[..2], ["POST deployments 201", "POST services 201"], "{faults:?}");
        })
        .await;
    }
    tokio::join!(
        check(&["expire-watches"]),
        check(&["gone-watches"]),
        check(&["expired,path=mywebservers?watch=1,times=1", "end-watches"]),
        check(&["gone,path=mywebservers?watch=1,times=1", "end-watches"]),
    );
}

#[tokio::test]
async fn ten_watches_that_end_as_they_do_cost_no_list() {
    on(&[Kind::Embedded], async |world| {
        world.start_operator(&[]).await;
        let (lists, watches) = lists_and_watches(world);
        for replicas in 2..12 {
            world.create_web("web", json!({"image": "nginx", "replicas": replicas})).await;
            world.until("services/mws-web", |_| true).await;
            world.delete("mywebservers/web").await;
            world.until_gone("services/mws-web").await;
            embedded(world).fault(Fault::EndWatches);
        }
        eventually("the tenth watch", async || (lists_and_watches(world).1 >= watches + 10).then_some(()))
            .await;
        assert_eq!(lists_and_watches(world).0, lists);
    })
    .await;
}

/// What the watches have not told yet is known from the answers to the writes.
#[tokio::test]
async fn while_the_watches_of_children_lag_no_child_is_made_twice() {
    on(&[Kind::Embedded], async |world| {
        world.start_operator(&[]).await;
        let server = embedded(world);
        server.fault(Fault::StallWatches.on("", "/deployments"));
        server.fault(Fault::StallWatches.on("", "/services"));
        world.create_web("web", json!({"image": "nginx"})).await;
        world.until("services/mws-web", |_| true).await;
        for port in [81, 82, 83] {
            world.patch("mywebservers/web", json!({"spec": {"port": port}})).await;
            world.until("services/mws-web", |service| service["spec"]["ports"][0]["port"] == port).await;
        }
        server.end_faults();
        world.settle().await;
        let wrote = world.transcript();
        let count = |start: &str| wrote.iter().filter(|line| line.starts_with(start)).count();
        assert_eq!(count("POST"), 2, "{wrote:#?}");
        assert_eq!(count("PATCH deployments/mws-web 200"), 3, "{wrote:#?}");
        assert_eq!(count("PATCH services/mws-web 200"), 3, "{wrote:#?}");
    })
    .await;
}

/// The check that comes before a watch is answered, and that was taken for the watch being well: twice in the log for each
/// attempt.
#[tokio::test]
async fn a_watch_that_is_refused_while_lists_are_not_is_said_once() {
    on(&[Kind::Embedded], async |world| {
        world.start_operator(&[]).await;
        let server = embedded(world);
        server.fault(plan("internal-error,path=/services?watch=1,times=4"));
        server.fault(Fault::EndWatches.on("", "/services"));
        let said = |what: &str| {
            let log = world.operator().log();
            log.lines().filter(|line| line.contains(what) && line.contains("services in")).count()
        };
        eventually("the watch to be well again", async || (said("watching again") > 0).then_some(())).await;
        assert_eq!((said("cannot watch"), said("watching again")), (1, 1));
    })
    .await;
}

/// The answer to our own DELETE was that there is no such child, and the Store went on having it: its successor waited for
/// as long as no watch told.
#[tokio::test]
async fn a_child_that_somebody_else_deleted_unseen_does_not_hold_up_its_successor() {
    on(&[Kind::Embedded], async |world| {
        world.start_operator(&[]).await;
        world.create_web("web", json!({"image": "nginx"})).await;
        world.settle().await;
        embedded(world).fault(Fault::StallWatches.on("", "/services"));
        world.delete("services/mws-web").await;
        world.delete("mywebservers/web").await;
        world.until_gone("deployments/mws-web").await;
        let uid = world.create_web("web", json!({"image": "nginx"})).await["metadata"]["uid"].clone();
        world
            .until("services/mws-web", |service| service["metadata"]["ownerReferences"][0]["uid"] == uid)
            .await;
    })
    .await;
}

/// In kube-rs all watches of a controller share one backoff: while a list of children is refused, the main kind is looked
/// at every few seconds.
#[tokio::test]
async fn a_watch_of_children_that_is_refused_slows_neither_the_main_kind_nor_hammers_the_server() {
    on(&[Kind::Embedded], async |world| {
        world.may_be_forbidden.set(true);
        world.start_operator(&[]).await;
        let server = embedded(world);
        let refusals = |world: &World| world.records().iter().filter(|record| record.status == 403).count();
        let body = json!({"kind": "Status", "message": "no", "reason": "Forbidden", "code": 403}).to_string();
        server.fault(Fault::Answer { status: 403, body, retry_after_secs: None }.on("GET", "/services?"));
        server.fault(Fault::EndWatches.on("", "/services"));
        eventually("the watch to be refused", async || (refusals(world) > 0).then_some(())).await;
        for number in 0..50 {
            let name = format!("web-{number}");
            world.create_web(&name, json!({"image": "nginx"})).await;
            world.until(&format!("services/mws-{name}"), |_| true).await;
        }
        // The pauses are 0.8 s at least and double: fifty webs leave room for a few attempts.
        assert!(refusals(world) <= 8, "{} attempts", refusals(world));
    })
    .await;
}
