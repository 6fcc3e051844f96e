//! Tests edge cases of watching that show only in a whole operator: its requests after a failed watch, and its writes.
//! `src/watch/tests.rs` tests the edge cases of the state machine alone; docs/reliability.md lists them all.

use std::{fs, rc::Rc};

use http::Method;
use listwatch::watch::Lists;
use listwatch_apiserver::{Fault, Planned, Rule};
use listwatch_control_plane::{Http, eventually, has_assets, within};
use serde_json::{Value, json};

use crate::{
    client::UserClient,
    fixture::{ACCOUNT, Fixture, Kind, Record, Server, installed_control_plane, on, on_each},
    manifests,
    network::{SILENCE_LIMIT, ended},
    proxy::{Flow, Proxy},
    refused::with_crd,
};

/// The servers on which a single watch can be delayed: the embedded one, and a real one with a connection for each
/// watch.
const WITH_LAG: [Kind; 2] = [Kind::Embedded, Kind::RealHttp1];

/// Starts an operator whose watches can be delayed.
async fn with_lag(fixture: &Fixture) -> Lag<'_> {
    let proxy = match &fixture.server {
        Server::Embedded(_) => None,
        Server::Shared(_) | Server::Own(_) => Some(Proxy::start(&fixture.url()).await),
    };
    *fixture.proxy_url.borrow_mut() = proxy.as_ref().map(Proxy::url);
    fixture.start_operator(&[]).await;
    Lag { fixture, proxy }
}

/// Larger than all other messages in these tests, and not so large that the operator reads the object again.
const LARGE_BYTES: usize = 60_000;

struct Lag<'a> {
    fixture: &'a Fixture,
    proxy: Option<Proxy>,
}

impl Lag<'_> {
    /// From now on, the watch of this resource delivers no events.
    async fn begin(&self, resource: &str) {
        match &self.proxy {
            None => self.fixture.embedded().fault(Fault::StallWatches.on("", &format!("/{resource}"))),
            Some(proxy) => proxy.stall_connection_of(LARGE_BYTES, self.large_event(resource)).await,
        }
    }

    /// Ends the watch of this resource.
    async fn end_watch(&self, resource: &str) {
        match &self.proxy {
            None => self.fixture.embedded().fault(Fault::EndWatches.on("", &format!("/{resource}"))),
            Some(proxy) => proxy.cut_connection_of(LARGE_BYTES, self.large_event(resource)).await,
        }
    }

    /// Causes a large event for one watch, which identifies the connection of the watch.
    async fn large_event(&self, resource: &str) {
        let large = json!({"metadata": {"annotations": {"note": "x".repeat(LARGE_BYTES)}}});
        let name = if resource == "mywebservers" { "barrier" } else { "mws-barrier" };
        self.fixture.patch(&format!("{resource}/{name}"), large).await;
    }

    /// Delivers all delayed events.
    fn end(&self) {
        match &self.proxy {
            None => self.fixture.embedded().end_faults(),
            Some(proxy) => proxy.set(Flow::Open, Flow::Open),
        }
    }
}

fn plan(text: &str) -> Planned {
    text.parse().unwrap()
}

/// How many whole lists and how many watches of MyWebservers the operator has requested. A list of one object does not
/// count: it only asks for the server's version. A real server logs a watch only after its end.
async fn lists_and_watches(fixture: &Fixture) -> (usize, usize) {
    let records = fixture.records().await;
    let requests =
        records.iter().filter(|record| record.method == "GET" && record.path.contains("/mywebservers?"));
    let is_list = |path: &str| {
        !path.contains("continue=")
            && !path.ends_with("limit=1")
            && (!path.contains("watch=1") || path.contains("sendInitialEvents=true"))
    };
    let (lists, others): (Vec<_>, Vec<_>) = requests.partition(|record| is_list(&record.path));
    let watches = others.iter().filter(|record| record.path.contains("watch=1"));
    (lists.len(), watches.count())
}

/// A 410 is usually an ERROR event of a stream. An aggregated server or a proxy may send it as the status code of the
/// answer, and old servers used the reason Gone.
#[tokio::test]
async fn an_expired_version_in_any_form_costs_one_list_and_loses_no_event() {
    async fn check(faults: &'static [&'static str]) {
        on(&[Kind::Embedded], async move |fixture| {
            fixture.start_operator(&[]).await;
            let (lists, _) = lists_and_watches(fixture).await;
            for fault in faults {
                fixture.embedded().fault(plan(fault));
            }
            fixture.create_web("web", json!({"image": "nginx"})).await;
            fixture.until("services/mws-web", |_| true).await;
            fixture.settle().await;
            assert_eq!(lists_and_watches(fixture).await.0, lists + 1, "{faults:?}");
            let wrote = fixture.transcript().await;
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
async fn ten_watches_that_end_normally_cost_no_list() {
    on(&[Kind::Embedded], async |fixture| {
        fixture.start_operator(&[]).await;
        let (lists, watches) = lists_and_watches(fixture).await;
        for replicas in 2..12 {
            fixture.create_web("web", json!({"image": "nginx", "replicas": replicas})).await;
            fixture.until("services/mws-web", |_| true).await;
            fixture.delete("mywebservers/web").await;
            fixture.until_gone("services/mws-web").await;
            fixture.embedded().fault(Fault::EndWatches);
        }
        eventually("the tenth watch", async || {
            (lists_and_watches(fixture).await.1 >= watches + 10).then_some(())
        })
        .await;
        assert_eq!(lists_and_watches(fixture).await.0, lists);
        // Only watches request bookmarks. A request without `watch=1`, or with `watch=false`, would be answered with a
        // list.
        let records = fixture.records().await;
        let mut watches = records.iter().filter(|record| record.path.contains("allowWatchBookmarks="));
        assert!(watches.all(|watch| watch.path.contains("watch=1")));
    })
    .await;
}

/// The answers to the writes show the state of the children before the watches do. The later events change nothing.
#[tokio::test]
async fn while_the_watches_of_children_lag_no_child_is_created_twice() {
    on(&WITH_LAG, async |fixture| {
        let lag = with_lag(fixture).await;
        lag.begin("deployments").await;
        lag.begin("services").await;
        fixture.create_web("web", json!({"image": "nginx"})).await;
        fixture.until("services/mws-web", |_| true).await;
        for port in [81, 82, 83] {
            fixture.patch("mywebservers/web", json!({"spec": {"port": port}})).await;
            fixture.until("services/mws-web", |service| service["spec"]["ports"][0]["port"] == port).await;
        }
        lag.end();
        fixture.settle().await;
        assert_eq!(fixture.get("deployments/mws-web").await["metadata"]["generation"], 4);
        assert_eq!(fixture.get("services/mws-web").await["spec"]["ports"][0]["port"], 83);
        let wrote = fixture.transcript().await;
        let count = |start: &str| wrote.iter().filter(|line| line.starts_with(start)).count();
        // A busy API server may answer a write with 504.
        let created = wrote.iter().filter(|line| line.starts_with("POST") && line.ends_with(" 201"));
        assert_eq!(created.count(), 2, "{wrote:#?}");
        assert_eq!(count("PATCH deployments/mws-web 200"), 3, "{wrote:#?}");
        assert_eq!(count("PATCH services/mws-web 200"), 3, "{wrote:#?}");
    })
    .await;
}

/// A backup restored a Deployment and its owner, which the operator did not know yet. Compared with the owner that the
/// operator knew, the Deployment belonged to a predecessor. It was deleted although nothing was wrong with it.
#[tokio::test]
async fn a_child_of_an_owner_that_the_watch_has_not_reported_is_not_deleted() {
    on(&WITH_LAG, async |fixture| {
        let lag = with_lag(fixture).await;
        fixture.create_settled_web("web", json!({"image": "nginx"})).await;
        let mut child = fixture.get("deployments/mws-web").await;
        lag.begin("mywebservers").await;
        fixture.delete("mywebservers/web").await;
        for child in ["deployments/mws-web", "services/mws-web"] {
            fixture.delete(child).await;
            fixture.until_gone(child).await;
        }
        let web = fixture.create_web("web", json!({"image": "nginx"})).await;
        fixture.transcript().await;
        let is_get_of_owner = |record: &&Record| {
            record.method == "GET" && record.path.trim_end_matches('?').ends_with("/mywebservers/web")
        };
        let before = fixture.records().await.iter().filter(is_get_of_owner).count();
        let metadata = &mut child["metadata"];
        *metadata = json!({
            "name": "mws-web", "labels": metadata["labels"], "ownerReferences": metadata["ownerReferences"],
        });
        metadata["ownerReferences"][0]["uid"] = web["metadata"]["uid"].clone();
        let child = fixture.create("deployments", &child).await;
        eventually("the operator to GET the owner", async || {
            (fixture.records().await.iter().filter(is_get_of_owner).count() > before).then_some(())
        })
        .await;
        lag.end();
        fixture.until_condition("web", "Ready", "False", "RolloutInProgress").await;
        fixture.settle().await;
        assert_eq!(fixture.get("deployments/mws-web").await["metadata"]["uid"], child["metadata"]["uid"]);
        let wrote = fixture.transcript().await;
        assert!(!wrote.iter().any(|line| line.starts_with("DELETE")), "{wrote:?}");
    })
    .await;
}

/// Every update carries the resourceVersion on which it was decided. So a write of another client stays, even before a
/// watch has reported it.
#[tokio::test]
async fn a_write_based_on_an_old_version_is_refused_and_computed_again() {
    on(&WITH_LAG, async |fixture| {
        let lag = with_lag(fixture).await;
        fixture.create_web("web", json!({"image": "nginx"})).await;
        fixture.until("services/mws-web", |_| true).await;
        fixture.settle().await;
        fixture.transcript().await;
        lag.begin("deployments").await;
        let note = json!({"metadata": {"annotations": {"note": "an administrator's"}}});
        fixture.patch("deployments/mws-web", note.clone()).await;
        fixture.patch("mywebservers/web", json!({"spec": {"port": 81}})).await;
        let port = |object: &Value| object["spec"]["template"]["spec"]["containers"][0]["ports"][0].clone();
        let now = fixture.until("deployments/mws-web", |object| port(object)["containerPort"] == 81).await;
        assert_eq!(now["metadata"]["annotations"]["note"], note["metadata"]["annotations"]["note"]);
        lag.end();
        fixture.settle().await;
        let wrote = fixture.transcript().await;
        let wrote: Vec<_> = wrote.iter().filter(|line| line.contains("deployments/")).collect();
        assert_eq!(wrote, ["PATCH deployments/mws-web 409", "PATCH deployments/mws-web 200"]);
    })
    .await;
}

/// The check before a watch succeeded, and counted as a success of the watch: each attempt had two lines in the log.
#[tokio::test]
async fn a_watch_that_is_refused_while_lists_succeed_is_logged_once() {
    on(&WITH_LAG, async |fixture| {
        fixture.may_be_forbidden.set(true);
        let lag = with_lag(fixture).await;
        allow_on_services(fixture, &["get", "list", "create", "patch", "delete"]).await;
        lag.end_watch("services").await;
        eventually("the watch to be refused", async || (refusals(fixture).await >= 2).then_some(())).await;
        fixture.allow().await;
        let logged = |text: &str| {
            let log = fixture.operator().log();
            log.lines().filter(|line| line.contains(text) && line.contains("services in")).count()
        };
        eventually("the watch to be open again", async || (logged("watching again") > 0).then_some(())).await;
        assert_eq!((logged("cannot watch"), logged("watching again")), (1, 1));
    })
    .await;
}

/// Our DELETE was answered with 404, but the Store still kept the child: its successor waited until a watch reported
/// the deletion.
#[tokio::test]
async fn an_unreported_deletion_of_a_child_does_not_delay_the_new_child() {
    on(&WITH_LAG, async |fixture| {
        let lag = with_lag(fixture).await;
        fixture.create_settled_web("web", json!({"image": "nginx"})).await;
        lag.begin("services").await;
        fixture.delete("services/mws-web").await;
        fixture.delete("mywebservers/web").await;
        fixture.until_gone("deployments/mws-web").await;
        let uid = fixture.create_web("web", json!({"image": "nginx"})).await["metadata"]["uid"].clone();
        fixture
            .until("services/mws-web", |service| service["metadata"]["ownerReferences"][0]["uid"] == uid)
            .await;
    })
    .await;
}

/// In kube-rs, all watches of a controller share one backoff: while a list of children is refused, the main kind is
/// read only every few seconds.
#[tokio::test]
async fn a_refused_watch_of_children_neither_delays_the_main_kind_nor_floods_the_server() {
    on(&[Kind::Embedded, Kind::Real], async |fixture| {
        fixture.may_be_forbidden.set(true);
        let proxy = Proxy::start(&fixture.url()).await;
        *fixture.proxy_url.borrow_mut() = Some(proxy.url());
        fixture.start_operator(&[]).await;
        allow_on_services(fixture, &["get", "create", "patch", "delete"]).await;
        proxy.cut();
        eventually("the watch to be refused", async || (refusals(fixture).await > 0).then_some(())).await;
        for number in 0..50 {
            let name = format!("web-{number}");
            fixture.create_web(&name, json!({"image": "nginx"})).await;
            fixture.until(&format!("services/mws-{name}"), |_| true).await;
        }
        // The pauses are at least 0.8 s, and double each time: while fifty objects are created, there are only a few
        // attempts.
        assert!(refusals(fixture).await <= 8, "{} attempts", refusals(fixture).await);
    })
    .await;
}

/// Leaves the operator only these verbs on Services, and waits until the server enforces this.
async fn allow_on_services(fixture: &Fixture, verbs: &[&str]) {
    let mut rules = manifests::cluster_role()["rules"].take();
    for rule in rules.as_array_mut().unwrap() {
        if rule["resources"] == json!(["services"]) {
            rule["verbs"] = json!(verbs);
        }
    }
    fixture.allow_only(&rules).await;
    let operator = UserClient::new(fixture.operators_client(&fixture.url()));
    let probe = fixture.path("services") + "?watch=1&timeoutSeconds=1&fieldSelector=metadata.name%3Dprobe";
    eventually("the watch to be forbidden", async || {
        operator.raw(&probe).await.err().filter(|error| error.is_forbidden())
    })
    .await;
}

/// How often the server refused the operator a list or a watch of Services.
async fn refusals(fixture: &Fixture) -> usize {
    let is_refusal = |record: &Record| {
        record.status == 403 && record.path.contains("/services?") && !record.path.contains("fieldSelector")
    };
    fixture.records().await.into_iter().filter(is_refusal).count()
}

/// A change of a CRD ends all watches of its objects, cleanly. The real server also drops their history, so at most one
/// list may follow. Each one comes after a longer pause, so the test changes the CRD twice.
#[tokio::test]
async fn each_change_of_the_crd_costs_at_most_one_list_and_loses_no_event() {
    on(&[Kind::EmbeddedBare, Kind::RealBare], async |fixture| {
        with_crd(fixture, &manifests::crd()).await;
        fixture.start_operator(&[]).await;
        fixture.create_web("web", json!({"image": "nginx"})).await;
        fixture.until("services/mws-web", |_| true).await;
        let (lists, _) = lists_and_watches(fixture).await;
        for round in 1..=2 {
            let (lists, watches) = lists_and_watches(fixture).await;
            let what = "/spec/versions/0/schema/openAPIV3Schema/description";
            let change = json!([{"op": "add", "path": what, "value": format!("Round {round}.")}]);
            fixture
                .send(Method::PATCH, manifests::CRD_PATH, "application/json-patch+json", &change)
                .await
                .unwrap();
            // Lists and watches are recorded at their end, and after an expiry the watch is a streaming list.
            eventually("the watch to end", async || {
                let (more_lists, more_watches) = lists_and_watches(fixture).await;
                (more_lists + more_watches > lists + watches).then_some(())
            })
            .await;
            eventually("the CRD to be served", async || {
                fixture.raw(&fixture.path("mywebservers/web")).await.ok()
            })
            .await;
            fixture.patch("mywebservers/web", json!({"spec": {"port": 80 + round}})).await;
            let port = |service: &Value| service["spec"]["ports"][0]["port"] == 80 + round;
            fixture.until("services/mws-web", port).await;
        }
        let more = lists_and_watches(fixture).await.0 - lists;
        assert!(more <= 2, "{more} lists");
    })
    .await;
}

/// etcd refuses objects above 1.5 MiB. The event can be six times as long, because JSON escapes `<` as `\u003c`.
#[tokio::test]
async fn the_largest_object_that_a_server_accepts_can_be_read() {
    const VALUE_BYTES: usize = 1_400_000;
    on_each(async |fixture| {
        fixture.create_web("web", json!({"image": "nginx"})).await;
        fixture.until("services/mws-web", |_| true).await;
        fixture.settle().await;
        fixture.transcript().await;
        // A slow machine may need more than one attempt to connect.
        let connected = fixture.operator().log().len();
        let env = json!([{"name": "LARGE", "value": "<".repeat(VALUE_BYTES)}]);
        let path = "/spec/template/spec/containers/0/env";
        fixture.edit("deployments/mws-web", json!([{"op": "add", "path": path, "value": env}])).await;
        fixture.wrote("").await;
        fixture.patch("deployments/mws-web", json!({"spec": {"replicas": 9}})).await;
        fixture.wrote("PATCH deployments/mws-web 200").await;
        let now = fixture.get("deployments/mws-web").await;
        assert_eq!(now["spec"]["replicas"], 1);
        let value = &now["spec"]["template"]["spec"]["containers"][0]["env"][0]["value"];
        assert_eq!(value.as_str().map(str::len), Some(VALUE_BYTES));
        let log = fixture.operator().log();
        assert!(!log[connected..].contains("cannot watch"), "{log}");
    })
    .await;
}

/// A user with the permission to create Deployments can make a page of a list too large to be read. The operator
/// requested the page again with the same limit, and reconciled no MyWebserver until the Deployments were deleted.
#[tokio::test]
async fn objects_too_large_for_one_page_are_listed_one_by_one() {
    const VALUE_BYTES: usize = 1_200_000;
    on(&[Kind::Embedded, Kind::Real], async |fixture| {
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
            fixture.create("deployments", &json!({"metadata": metadata, "spec": spec})).await;
        }
        fixture.start_operator(&[]).await;
        fixture.create_web("web", json!({"image": "nginx"})).await;
        fixture.wrote("POST deployments 201\nPOST services 201\nPATCH mywebservers/web/status 200").await;
        let status = fs::read_to_string(format!("/proc/{}/status", fixture.operator().id())).unwrap();
        let peak_kib = status.split_once("VmHWM:").unwrap().1.split_whitespace().next().unwrap();
        let peak_kib: u32 = peak_kib.parse().unwrap();
        eprintln!("{}: peak {peak_kib} KiB", fixture.name);
        // As in manifests/base/deployment.yaml.
        assert!(peak_kib < 64 * 1024, "{peak_kib} KiB");
    })
    .await;
}

#[tokio::test]
async fn a_kube_apiserver_without_streaming_lists_is_asked_once_and_then_for_pages() {
    if !has_assets() {
        return;
    }
    let control_plane = Rc::new(installed_control_plane(Http::AnyBefore132).await);
    let [_, fixture] = Fixture::paged_and_streaming(&control_plane).await;
    fixture.start_operator(&[]).await;
    fixture.create_web("web", json!({"image": "nginx"})).await;
    fixture.wrote("POST deployments 201\nPOST services 201\nPATCH mywebservers/web/status 200").await;
    let records = fixture.records().await;
    let of = |what: &str| records.iter().filter(|record| record.path.contains(what)).collect::<Vec<_>>();
    let streaming = of("sendInitialEvents=true");
    assert!(streaming.iter().all(|record| record.status == 422), "{streaming:?}");
    assert_eq!(streaming.len(), 3, "once for each kind: {streaming:?}");
    assert!(of("limit=100").len() >= 3);
    fixture.assert_clean();
}

/// A kube-apiserver with an etcd before 3.4.31 or 3.5.13 ends each streaming list like this. The operator requested
/// streaming lists again and again.
#[tokio::test]
async fn a_server_whose_streaming_lists_end_with_an_error_is_asked_for_pages() {
    on(&[Kind::Embedded], async |fixture| {
        let server = fixture.embedded();
        let message = "a watch stream was requested by the client but the required storage feature \
                       RequestWatchProgress is disabled";
        let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": message, "reason": "InternalError", "code": 500});
        let body = json!({"type": "ERROR", "object": status}).to_string() + "\n";
        server.fault(
            Fault::Answer { status: 200, body, retry_after_secs: None }.on("GET", "sendInitialEvents=true"),
        );
        fixture.start_operator(&[]).await;
        fixture.create_web("web", json!({"image": "nginx"})).await;
        fixture.wrote("POST deployments 201\nPOST services 201\nPATCH mywebservers/web/status 200").await;
    })
    .await;
}

/// Thirty-four namespaces with three watches each: a connection has at most a hundred streams, and other requests also
/// need some.
#[tokio::test]
async fn more_watches_than_one_connection_allows_block_no_call() {
    on(&[Kind::Embedded, Kind::Real], async |fixture| {
        if let Server::Embedded(server) = &fixture.server {
            let rules: Vec<Rule> =
                serde_json::from_value(manifests::cluster_role()["rules"].clone()).unwrap();
            server.set_rules(ACCOUNT, rules);
        } else {
            let everywhere = json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
                "metadata": {"name": fixture.namespace},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": ACCOUNT},
                "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": fixture.namespace}],
            });
            fixture.install(&everywhere).await;
            // The server enforces the new permissions only after a moment.
            fixture.may_be_forbidden.set(true);
        }
        // A namespace that does not exist can be watched.
        let others: Vec<_> = (1..34).map(|number| format!("{}-{number}", fixture.namespace)).collect();
        let args: Vec<_> = others.iter().flat_map(|other| ["--namespace", other]).collect();
        fixture.start_operator(&args).await;
        fixture.operator().until_ready().await;
        fixture.create_web("web", json!({"image": "nginx"})).await;
        fixture.wrote("POST deployments 201\nPOST services 201\nPATCH mywebservers/web/status 200").await;
    })
    .await;
}

/// The version of a list is the version of the whole server, not of the newest object in the list.
#[tokio::test]
async fn the_first_watch_begins_at_the_version_of_the_list_not_of_its_objects() {
    on(&[Kind::Embedded, Kind::Real], async |fixture| {
        if streams(fixture) {
            return;
        }
        fixture.create_web("web", json!({"image": "nginx"})).await;
        let newer = version(&fixture.create("configmaps", &json!({"metadata": {"name": "newer"}})).await);
        fixture.start_operator(&[]).await;
        // A real server logs a watch only after its end.
        fixture.stop_operator().await;
        eventually("the watch to be logged", async || {
            let from = resumed_at(fixture).await.first().copied()?;
            assert!(from >= newer, "{from}");
            Some(())
        })
        .await;
    })
    .await;
}

/// The server ends the watch after its `timeoutSeconds`: over HTTP/1.1, at most a minute and a quarter.
#[tokio::test]
async fn a_watch_that_the_server_ends_is_resumed_from_its_last_bookmark() {
    on(&[Kind::RealHttp1], async |fixture| {
        fixture.start_operator(&[]).await;
        // The watched objects do not change. A list of them must have the version of this ConfigMap, so the server can
        // send the watches a BOOKMARK with this version.
        let newer = version(&fixture.create("configmaps", &json!({"metadata": {"name": "newer"}})).await);
        fixture.get("mywebservers").await;
        let (lists, _) = lists_and_watches(fixture).await;
        within(SILENCE_LIMIT, "the watch to end", async || (ended(fixture)[0] > 0).then_some(())).await;
        fixture.operator().until_logged(&["request ended", "mywebservers", "Clean"]).await;
        fixture.settle().await;
        fixture.stop_operator().await;
        eventually("the watch to be resumed", async || {
            resumed_at(fixture).await.last().filter(|from| **from >= newer).map(drop)
        })
        .await;
        // A streaming list has ended by now, and so is in the log.
        assert_eq!(lists_and_watches(fixture).await.0, lists + usize::from(streams(fixture)));
    })
    .await;
}

fn streams(fixture: &Fixture) -> bool {
    fixture.lists == Lists::Streaming
}

fn version(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
}

/// The versions from which the operator has watched the MyWebservers.
async fn resumed_at(fixture: &Fixture) -> Vec<u64> {
    let records = fixture.records().await;
    let watches = records.iter().filter(|record| {
        record.path.contains("/mywebservers?watch=1") && !record.path.contains("sendInitialEvents")
    });
    let from = |record: &Record| {
        let (_, from) = record.path.split_once("resourceVersion=")?;
        from.split('&').next()?.parse().ok()
    };
    watches.map(|record| from(record).expect("a version")).collect()
}
