//! Traps of watching that only show in a whole operator: what it asks for when a watch goes wrong, and what it writes.
//! The ones that a pure machine can fall into are in `src/watch/tests.rs`; docs/reliability.md has them all.

use std::rc::Rc;

use http::Method;
use listwatch::apiserver::{ApiServer, Fault, Planned, Rule};
use serde_json::{Value, json};

use crate::{
    hands::eventually,
    manifests,
    plane::{Http, Plane},
    refused::with_crd,
    world::{ACCOUNT, Kind, Server, World, has_real, on},
};

fn embedded(world: &World) -> &ApiServer {
    let Server::Embedded(server) = &world.server else { unreachable!("asked for above") };
    server
}

fn plan(text: &str) -> Planned {
    text.parse().unwrap()
}

/// How often the operator has asked for a whole list of MyWebservers, and for a watch of them. One object is no list: it
/// asks how far the server has come. A real server tells of a watch when it has ended.
fn lists_and_watches(world: &World) -> (usize, usize) {
    let asked = world.records();
    let asked =
        asked.iter().filter(|record| record.method == "GET" && record.path.contains("/mywebservers?"));
    let is_list = |path: &str| {
        !path.contains("continue=")
            && !path.ends_with("limit=1")
            && (!path.contains("watch=1") || path.contains("sendInitialEvents=true"))
    };
    let (lists, others): (Vec<_>, Vec<_>) = asked.partition(|record| is_list(&record.path));
    let watches = others.iter().filter(|record| record.path.contains("watch=1"));
    (lists.len(), watches.count())
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
        // Nobody but a watch asks for bookmarks; without `watch=1`, or with `watch=false`, it would be answered with a list.
        let asked = world.records();
        let mut watches = asked.iter().filter(|record| record.path.contains("allowWatchBookmarks="));
        assert!(watches.all(|watch| watch.path.contains("watch=1")));
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

/// Every update carries the version that it was decided on: what somebody wrote meanwhile, and no watch has told, stays.
#[tokio::test]
async fn a_write_decided_on_an_old_version_is_refused_and_decided_anew() {
    on(&[Kind::Embedded], async |world| {
        world.start_operator(&[]).await;
        world.create_web("web", json!({"image": "nginx"})).await;
        world.until("services/mws-web", |_| true).await;
        world.settle().await;
        world.transcript();
        embedded(world).fault(Fault::StallWatches.on("", "/deployments"));
        let note = json!({"metadata": {"annotations": {"note": "an administrator's"}}});
        world.patch("deployments/mws-web", note.clone()).await;
        world.patch("mywebservers/web", json!({"spec": {"port": 81}})).await;
        let port = |object: &Value| object["spec"]["template"]["spec"]["containers"][0]["ports"][0].clone();
        let now = world.until("deployments/mws-web", |object| port(object)["containerPort"] == 81).await;
        assert_eq!(now["metadata"]["annotations"]["note"], note["metadata"]["annotations"]["note"]);
        embedded(world).end_faults();
        world.settle().await;
        let wrote = world.transcript();
        let wrote: Vec<_> = wrote.iter().filter(|line| line.contains("deployments/")).collect();
        assert_eq!(wrote, ["PATCH deployments/mws-web 409", "PATCH deployments/mws-web 200"]);
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

/// Whoever changes a CRD ends all watches of its objects, cleanly. The real server forgets their history with that, so that
/// one list may follow, and no more; each comes after a longer pause, so this does it twice.
#[tokio::test]
async fn a_crd_that_is_changed_costs_a_list_each_time_at_most_and_nothing_is_missed() {
    const PATH: &str =
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/mywebservers.k8sobjects.gsa.com";
    on(&[Kind::EmbeddedBare, Kind::RealBare], async |world| {
        with_crd(world, &manifests::crd()).await;
        world.start_operator(&[]).await;
        world.create_web("web", json!({"image": "nginx"})).await;
        world.until("services/mws-web", |_| true).await;
        let (lists, _) = lists_and_watches(world);
        for round in 1..=2 {
            let (_, ended) = lists_and_watches(world);
            let what = "/spec/versions/0/schema/openAPIV3Schema/description";
            let change = json!([{"op": "add", "path": what, "value": format!("Round {round}.")}]);
            world.send(Method::PATCH, PATH, "application/json-patch+json", &change).await.unwrap();
            eventually("the watch to end", async || (lists_and_watches(world).1 > ended).then_some(())).await;
            eventually("the CRD to be served", async || {
                world.raw(&world.path("mywebservers/web")).await.ok()
            })
            .await;
            world.patch("mywebservers/web", json!({"spec": {"port": 80 + round}})).await;
            let port = |service: &Value| service["spec"]["ports"][0]["port"] == 80 + round;
            world.until("services/mws-web", port).await;
        }
        let more = lists_and_watches(world).0 - lists;
        assert!(more <= 2, "{more} lists");
    })
    .await;
}

/// etcd refuses what is larger than 1.5 MiB. As an event it is six times as long: `<` is told as `\u003c`.
#[tokio::test]
async fn the_largest_object_that_a_server_takes_is_read_like_any_other() {
    const VALUE_BYTES: usize = 1_400_000;
    on(&[Kind::Embedded, Kind::Real], async |world| {
        world.start_operator(&[]).await;
        world.create_web("web", json!({"image": "nginx"})).await;
        world.until("services/mws-web", |_| true).await;
        world.settle().await;
        world.transcript();
        let env = json!([{"name": "LARGE", "value": "<".repeat(VALUE_BYTES)}]);
        let path = "/spec/template/spec/containers/0/env";
        world.edit("deployments/mws-web", json!([{"op": "add", "path": path, "value": env}])).await;
        world.wrote("").await;
        world.patch("deployments/mws-web", json!({"spec": {"replicas": 9}})).await;
        world.wrote("PATCH deployments/mws-web 200").await;
        let now = world.get("deployments/mws-web").await;
        assert_eq!(now["spec"]["replicas"], 1);
        let value = &now["spec"]["template"]["spec"]["containers"][0]["env"][0]["value"];
        assert_eq!(value.as_str().map(str::len), Some(VALUE_BYTES));
        let log = world.operator().log();
        assert!(!log.contains("cannot watch"), "{log}");
    })
    .await;
}

#[tokio::test]
async fn a_real_server_without_streaming_lists_is_asked_once_and_then_for_pages() {
    if !has_real() {
        return;
    }
    let plane = Rc::new(Plane::installed(Http::AnyBefore132).await);
    let [_, world] = World::both_in(&plane).await;
    world.start_operator(&[]).await;
    world.create_web("web", json!({"image": "nginx"})).await;
    world.wrote("POST deployments 201\nPOST services 201\nPATCH mywebservers/web/status 200").await;
    let asked = world.records();
    let of = |what: &str| asked.iter().filter(|record| record.path.contains(what)).collect::<Vec<_>>();
    let streaming = of("sendInitialEvents=true");
    assert!(streaming.iter().all(|record| record.status == 422), "{streaming:?}");
    assert_eq!(streaming.len(), 3, "once for each kind: {streaming:?}");
    assert!(of("limit=100").len() >= 3);
    world.ends_well();
}

/// Thirty-four namespaces with three watches each: a connection takes a hundred streams, and calls need some, too.
#[tokio::test]
async fn more_watches_than_a_connection_takes_starve_no_call() {
    on(&[Kind::Embedded, Kind::Real], async |world| {
        if let Server::Embedded(server) = &world.server {
            let rules: Vec<Rule> =
                serde_json::from_value(manifests::cluster_role()["rules"].clone()).unwrap();
            server.limit(ACCOUNT, rules);
        } else {
            let everywhere = json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
                "metadata": {"name": world.namespace},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": ACCOUNT},
                "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": world.namespace}],
            });
            world.install(&everywhere).await;
            // The server has to hear of it first.
            world.may_be_forbidden.set(true);
        }
        // A namespace that does not exist can be watched.
        let others: Vec<_> = (1..34).map(|number| format!("{}-{number}", world.namespace)).collect();
        let args: Vec<_> = others.iter().flat_map(|other| ["--namespace", other]).collect();
        world.start_operator(&args).await;
        world.operator().until_ready().await;
        world.create_web("web", json!({"image": "nginx"})).await;
        world.wrote("POST deployments 201\nPOST services 201\nPATCH mywebservers/web/status 200").await;
    })
    .await;
}
