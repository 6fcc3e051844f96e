//! Traps of watching that only show in a whole operator: what it asks for when a watch goes wrong, and what it writes.
//! The ones that a pure machine can fall into are in `src/watch/tests.rs`; docs/reliability.md has them all.

use std::{fs, rc::Rc};

use http::Method;
use listwatch::{
    apiserver::{ApiServer, Fault, Planned, Rule},
    watch::Lists,
};
use serde_json::{Value, json};

use crate::{
    hands::{Hands, eventually, within},
    manifests,
    network::{NOTICED, ended},
    plane::{Http, Plane},
    proxy::{Flow, Proxy},
    refused::with_crd,
    world::{ACCOUNT, Kind, Record, Server, World, has_real, on},
};

fn embedded(world: &World) -> &ApiServer {
    let Server::Embedded(server) = &world.server else { unreachable!("asked for above") };
    server
}

/// Where one watch can be held up and another not: on our own server, and on a real one where each has a connection.
const WITH_LAG: [Kind; 2] = [Kind::Embedded, Kind::RealHttp1];

/// An operator that has settled, and what holds its watches up.
async fn with_lag(world: &World) -> Lag<'_> {
    let proxy = match &world.server {
        Server::Embedded(_) => None,
        Server::Shared(_) | Server::Own(_) => Some(Proxy::start(&world.url()).await),
    };
    *world.detour.borrow_mut() = proxy.as_ref().map(Proxy::url);
    world.start_operator(&[]).await;
    Lag { world, proxy }
}

/// More than anything else that is said here.
const NEWS_BYTES: usize = 100_000;

struct Lag<'a> {
    world: &'a World,
    proxy: Option<Proxy>,
}

impl Lag<'_> {
    /// From now on, what happens to these is not heard of.
    async fn begins(&self, resource: &str) {
        match &self.proxy {
            None => embedded(self.world).fault(Fault::StallWatches.on("", &format!("/{resource}"))),
            Some(proxy) => proxy.stall_what_carries(NEWS_BYTES, self.news(resource)).await,
        }
    }

    /// Their watch ends now.
    async fn ends_watch(&self, resource: &str) {
        match &self.proxy {
            None => embedded(self.world).fault(Fault::EndWatches.on("", &format!("/{resource}"))),
            Some(proxy) => proxy.cut_what_carries(NEWS_BYTES, self.news(resource)).await,
        }
    }

    /// Makes news for one watch, by which its connection is known.
    async fn news(&self, resource: &str) {
        let large = json!({"metadata": {"annotations": {"note": "x".repeat(NEWS_BYTES)}}});
        let name = if resource == "mywebservers" { "barrier" } else { "mws-barrier" };
        self.world.patch(&format!("{resource}/{name}"), large).await;
    }

    /// All of it is heard of now.
    fn ends(&self) {
        match &self.proxy {
            None => embedded(self.world).end_faults(),
            Some(proxy) => proxy.set(Flow::Open, Flow::Open),
        }
    }
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

/// What the watches have not told yet is known from the answers to the writes; and what they tell then is old news.
#[tokio::test]
async fn while_the_watches_of_children_lag_no_child_is_made_twice() {
    on(&WITH_LAG, async |world| {
        let lag = with_lag(world).await;
        lag.begins("deployments").await;
        lag.begins("services").await;
        world.create_web("web", json!({"image": "nginx"})).await;
        world.until("services/mws-web", |_| true).await;
        for port in [81, 82, 83] {
            world.patch("mywebservers/web", json!({"spec": {"port": port}})).await;
            world.until("services/mws-web", |service| service["spec"]["ports"][0]["port"] == port).await;
        }
        lag.ends();
        world.settle().await;
        assert_eq!(world.get("deployments/mws-web").await["metadata"]["generation"], 4);
        assert_eq!(world.get("services/mws-web").await["spec"]["ports"][0]["port"], 83);
        let wrote = world.transcript();
        let count = |start: &str| wrote.iter().filter(|line| line.starts_with(start)).count();
        assert_eq!(count("POST"), 2, "{wrote:#?}");
        assert_eq!(count("PATCH deployments/mws-web 200"), 3, "{wrote:#?}");
        assert_eq!(count("PATCH services/mws-web 200"), 3, "{wrote:#?}");
    })
    .await;
}

/// A backup brought back a Deployment and its owner, of which the operator had not heard yet: by the owner that it knew, the
/// Deployment was a predecessor's, and was deleted although it was well.
#[tokio::test]
async fn a_child_of_an_owner_that_is_not_heard_of_yet_is_not_deleted() {
    on(&WITH_LAG, async |world| {
        let lag = with_lag(world).await;
        world.create_web("web", json!({"image": "nginx"})).await;
        world.settle().await;
        let mut child = world.get("deployments/mws-web").await;
        lag.begins("mywebservers").await;
        world.delete("mywebservers/web").await;
        for child in ["deployments/mws-web", "services/mws-web"] {
            world.delete(child).await;
            world.until_gone(child).await;
        }
        let web = world.create_web("web", json!({"image": "nginx"})).await;
        world.transcript();
        let asked = |record: &&Record| {
            record.method == "GET" && record.path.trim_end_matches('?').ends_with("/mywebservers/web")
        };
        let before = world.records().iter().filter(asked).count();
        let metadata = &mut child["metadata"];
        *metadata = json!({
            "name": "mws-web", "labels": metadata["labels"], "ownerReferences": metadata["ownerReferences"],
        });
        metadata["ownerReferences"][0]["uid"] = web["metadata"]["uid"].clone();
        let child = world.create("deployments", &child).await;
        eventually("the operator to ask who the owner is", async || {
            (world.records().iter().filter(asked).count() > before).then_some(())
        })
        .await;
        lag.ends();
        world.until_condition("web", "Ready", "False", "RolloutInProgress").await;
        world.settle().await;
        assert_eq!(world.get("deployments/mws-web").await["metadata"]["uid"], child["metadata"]["uid"]);
        let wrote = world.transcript();
        assert!(!wrote.iter().any(|line| line.starts_with("DELETE")), "{wrote:?}");
    })
    .await;
}

/// Every update carries the version that it was decided on: what somebody wrote meanwhile, and no watch has told, stays.
#[tokio::test]
async fn a_write_decided_on_an_old_version_is_refused_and_decided_anew() {
    on(&WITH_LAG, async |world| {
        let lag = with_lag(world).await;
        world.create_web("web", json!({"image": "nginx"})).await;
        world.until("services/mws-web", |_| true).await;
        world.settle().await;
        world.transcript();
        lag.begins("deployments").await;
        let note = json!({"metadata": {"annotations": {"note": "an administrator's"}}});
        world.patch("deployments/mws-web", note.clone()).await;
        world.patch("mywebservers/web", json!({"spec": {"port": 81}})).await;
        let port = |object: &Value| object["spec"]["template"]["spec"]["containers"][0]["ports"][0].clone();
        let now = world.until("deployments/mws-web", |object| port(object)["containerPort"] == 81).await;
        assert_eq!(now["metadata"]["annotations"]["note"], note["metadata"]["annotations"]["note"]);
        lag.ends();
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
    on(&WITH_LAG, async |world| {
        world.may_be_forbidden.set(true);
        let lag = with_lag(world).await;
        leave_of_services(world, &["get", "list", "create", "patch", "delete"]).await;
        lag.ends_watch("services").await;
        eventually("the watch to be refused", async || (refusals(world) >= 2).then_some(())).await;
        world.allow().await;
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
    on(&WITH_LAG, async |world| {
        let lag = with_lag(world).await;
        world.create_web("web", json!({"image": "nginx"})).await;
        world.settle().await;
        lag.begins("services").await;
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
    on(&[Kind::Embedded, Kind::Real], async |world| {
        world.may_be_forbidden.set(true);
        let proxy = Proxy::start(&world.url()).await;
        *world.detour.borrow_mut() = Some(proxy.url());
        world.start_operator(&[]).await;
        leave_of_services(world, &["get", "create", "patch", "delete"]).await;
        proxy.cut();
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

/// Leaves the operator only these verbs on Services, and waits until the server knows.
async fn leave_of_services(world: &World, verbs: &[&str]) {
    let mut rules = manifests::cluster_role()["rules"].take();
    for rule in rules.as_array_mut().unwrap() {
        if rule["resources"] == json!(["services"]) {
            rule["verbs"] = json!(verbs);
        }
    }
    world.allow_only(&rules).await;
    let theirs = Hands::new(world.operators_client(&world.url()));
    let probe = world.path("services") + "?watch=1&timeoutSeconds=1&fieldSelector=metadata.name%3Dprobe";
    eventually("the watch to be forbidden", async || {
        theirs.raw(&probe).await.err().filter(|error| error.is_forbidden())
    })
    .await;
}

/// How often the operator was refused to list or watch Services.
fn refusals(world: &World) -> usize {
    let is_refusal = |record: &Record| {
        record.status == 403 && record.path.contains("/services?") && !record.path.contains("fieldSelector")
    };
    world.records().into_iter().filter(is_refusal).count()
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
            let (lists, watches) = lists_and_watches(world);
            let what = "/spec/versions/0/schema/openAPIV3Schema/description";
            let change = json!([{"op": "add", "path": what, "value": format!("Round {round}.")}]);
            world.send(Method::PATCH, PATH, "application/json-patch+json", &change).await.unwrap();
            // Both are recorded at their end, and after an expiry the watch is a streaming list.
            eventually("the watch to end", async || {
                let (more_lists, more_watches) = lists_and_watches(world);
                (more_lists + more_watches > lists + watches).then_some(())
            })
            .await;
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

/// Whoever may create Deployments can make a page of a list larger than what is read of one. It was asked for again at the
/// same size, and no MyWebserver was served until the Deployments had gone.
#[tokio::test]
async fn objects_too_large_for_one_page_are_listed_one_by_one() {
    const VALUE_BYTES: usize = 1_200_000;
    on(&[Kind::Embedded, Kind::Real], async |world| {
        let labels = json!({"app.kubernetes.io/managed-by": "mywebserver-operator"});
        for number in 0..5 {
            let env = json!([{"name": "LARGE", "value": "<".repeat(VALUE_BYTES)}]);
            let template = json!({
                "metadata": {"labels": {"app": "large"}},
                "spec": {"containers": [{"name": "large", "image": "nginx", "env": env}]},
            });
            let spec =
                json!({"replicas": 0, "selector": {"matchLabels": {"app": "large"}}, "template": template});
            let metadata = json!({"name": format!("large-{number}"), "labels": labels});
            world.create("deployments", &json!({"metadata": metadata, "spec": spec})).await;
        }
        world.start_operator(&[]).await;
        world.create_web("web", json!({"image": "nginx"})).await;
        world.wrote("POST deployments 201\nPOST services 201\nPATCH mywebservers/web/status 200").await;
        let status = fs::read_to_string(format!("/proc/{}/status", world.operator().id())).unwrap();
        let peak_kib = status.split_once("VmHWM:").unwrap().1.split_whitespace().next().unwrap();
        let peak_kib: u32 = peak_kib.parse().unwrap();
        eprintln!("{}: peak {peak_kib} KiB", world.name);
        // As in manifests/operator/deployment.yaml.
        assert!(peak_kib < 64 * 1024, "{peak_kib} KiB");
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

/// A kube-apiserver in front of an etcd before 3.4.31 or 3.5.13 ends each streaming list so. It was asked for ever.
#[tokio::test]
async fn a_server_whose_streaming_lists_end_with_an_error_is_asked_for_pages() {
    on(&[Kind::Embedded], async |world| {
        let Server::Embedded(server) = &world.server else { unreachable!("asked for above") };
        let message = "a watch stream was requested by the client but the required storage feature \
                       RequestWatchProgress is disabled";
        let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": message, "reason": "InternalError", "code": 500});
        let body = json!({"type": "ERROR", "object": status}).to_string() + "\n";
        server.fault(
            Fault::Answer { status: 200, body, retry_after_secs: None }.on("GET", "sendInitialEvents=true"),
        );
        world.start_operator(&[]).await;
        world.create_web("web", json!({"image": "nginx"})).await;
        world.wrote("POST deployments 201\nPOST services 201\nPATCH mywebservers/web/status 200").await;
    })
    .await;
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

/// The version of a list is that of the whole server, not of the newest object on it.
#[tokio::test]
async fn the_first_watch_goes_on_from_the_version_of_its_list_and_not_of_its_objects() {
    on(&[Kind::Embedded, Kind::Real], async |world| {
        if streams(world) {
            return;
        }
        world.create_web("web", json!({"image": "nginx"})).await;
        let newer = version(&world.create("configmaps", &json!({"metadata": {"name": "newer"}})).await);
        world.start_operator(&[]).await;
        // A real server tells of a watch when it has ended.
        world.stop_operator().await;
        eventually("the watch to be told of", async || {
            let from = resumed_at(world).first().copied()?;
            assert!(from >= newer, "{from}");
            Some(())
        })
        .await;
    })
    .await;
}

/// After the `timeoutSeconds` that were asked for, over HTTP/1.1 in a minute and a quarter at most.
#[tokio::test]
async fn a_watch_that_the_server_ends_in_time_is_resumed_from_its_last_bookmark() {
    on(&[Kind::RealHttp1], async |world| {
        world.start_operator(&[]).await;
        // What is watched stays as it is, and a list of it has to be of this version: so the watches can be told that they
        // have come as far.
        let newer = version(&world.create("configmaps", &json!({"metadata": {"name": "newer"}})).await);
        world.get("mywebservers").await;
        let (lists, _) = lists_and_watches(world);
        within(NOTICED, "the watch to end", async || (ended(world)[0] > 0).then_some(())).await;
        world.operator().until_logged(&["request ended", "mywebservers", "Clean"]).await;
        world.settle().await;
        world.stop_operator().await;
        eventually("the watch to be resumed", async || {
            resumed_at(world).last().filter(|from| **from >= newer).map(drop)
        })
        .await;
        // A streaming list is told of now, as it has ended.
        assert_eq!(lists_and_watches(world).0, lists + usize::from(streams(world)));
    })
    .await;
}

fn streams(world: &World) -> bool {
    world.lists == Lists::Streaming
}

fn version(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
}

/// The versions from which the operator has followed the MyWebservers.
fn resumed_at(world: &World) -> Vec<u64> {
    let asked = world.records();
    let watches = asked.iter().filter(|record| {
        record.path.contains("/mywebservers?watch=1") && !record.path.contains("sendInitialEvents")
    });
    let from = |record: &Record| {
        let (_, from) = record.path.split_once("resourceVersion=")?;
        from.split('&').next()?.parse().ok()
    };
    watches.map(|record| from(record).expect("a version")).collect()
}
