//! Tests a network that is slow, breaks or loses data, between the operator and a real kube-apiserver.
//!
//! Each script runs over HTTP/2 and over HTTP/1.1. The operator must give up a silent connection within two minutes,
//! and use its other connections meanwhile. Afterwards all objects must be as desired, and nothing may be written
//! twice.

use std::{
    env,
    io::{self, Write},
    time::{Duration, Instant},
};

use listwatch_control_plane::{PATIENCE, eventually, within};
use serde_json::{Value, json};

use crate::{
    fixture::{Fixture, Kind, on},
    proxy::{Flow, Proxy},
};

const SERVERS: [Kind; 2] = [Kind::Real, Kind::RealHttp1];
/// The watched resources.
pub const WATCHED: [&str; 3] = ["mywebservers", "deployments", "services"];
/// Within this time, the operator gives up a silent connection.
pub const SILENCE_LIMIT: Duration = Duration::from_secs(120);

/// An operator that has settled and speaks through the proxy. It works on several keys at a time.
async fn through_proxy(fixture: &Fixture) -> Proxy {
    let proxy = Proxy::start(&fixture.url()).await;
    *fixture.proxy_url.borrow_mut() = Some(proxy.url());
    fixture.start_operator(&["--max-concurrent-reconciles", "8"]).await;
    proxy
}

/// How many requests of each watch have ended.
pub fn ended(fixture: &Fixture) -> [usize; 3] {
    let log = fixture.operator().log();
    WATCHED.map(|resource| {
        let what = format!("\"resource\":\"{resource}\"");
        log.lines().filter(|line| line.contains("\"request ended\"") && line.contains(&what)).count()
    })
}

/// Waits until all watches were given up, and returns how long that took.
pub async fn until_given_up(fixture: &Fixture, before: [usize; 3]) -> Duration {
    let since = Instant::now();
    within(SILENCE_LIMIT, "all watches to be given up", async || {
        let now = ended(fixture);
        (0..3).all(|watch| now[watch] > before[watch]).then_some(())
    })
    .await;
    since.elapsed()
}

/// Checks that only these writes were made, and none of them twice. One may be missing: if its connection breaks, the
/// server logs a 500 or 504 although it has done the write.
async fn assert_written_once(fixture: &Fixture, mut expected: Vec<String>) {
    let written = fixture.transcript().await;
    for line in written.iter().filter(|line| line.ends_with(" 200") || line.ends_with(" 201")) {
        let place = expected.iter().position(|known| known == line);
        expected.swap_remove(place.unwrap_or_else(|| panic!("{line}: repeated in {written:?}")));
    }
}

/// Creates MyWebservers, changes a child of each kind, and deletes a MyWebserver.
pub async fn change_objects(fixture: &Fixture) {
    for name in ["new-a", "new-b"] {
        fixture.create_web(name, json!({"image": "nginx"})).await;
    }
    fixture.patch("mywebservers/changed", json!({"spec": {"image": "nginx:2"}})).await;
    fixture.patch("deployments/mws-drifted", json!({"spec": {"replicas": 7}})).await;
    fixture.delete("services/mws-lost").await;
}

/// Checks that each of these writes was made once, and that all objects are as desired.
pub async fn check_reconciled_once(fixture: &Fixture) {
    eventually("all objects to be as desired", async || {
        for name in ["new-a", "new-b"] {
            let web = fixture.find(&format!("mywebservers/{name}")).await?;
            (web["status"]["observedGeneration"] == 1).then_some(())?;
            fixture.find(&format!("services/mws-{name}")).await?;
        }
        let changed = fixture.get("mywebservers/changed").await;
        (changed["status"]["observedGeneration"] == 2).then_some(())?;
        let deployment = fixture.get("deployments/mws-changed").await;
        let image = &deployment["spec"]["template"]["spec"]["containers"][0]["image"];
        (image == "nginx:2").then_some(())?;
        (fixture.get("deployments/mws-drifted").await["spec"]["replicas"] == 1).then_some(())?;
        fixture.find("services/mws-lost").await.map(drop)
    })
    .await;
    fixture.settle().await;
    // The server's own count: one create each, and for two of them a change by us; a user also changed one.
    for (name, generation) in [("new-a", 1), ("new-b", 1), ("changed", 2), ("drifted", 3), ("lost", 1)] {
        let deployment = fixture.get(&format!("deployments/mws-{name}")).await;
        assert_eq!(deployment["metadata"]["generation"], generation, "{name}");
    }
    let expected = [
        "PATCH deployments/mws-changed 200",
        "PATCH deployments/mws-drifted 200",
        "PATCH mywebservers/changed/status 200",
        "PATCH mywebservers/new-a/status 200",
        "PATCH mywebservers/new-b/status 200",
        "POST deployments 201",
        "POST deployments 201",
        "POST services 201",
        "POST services 201",
        "POST services 201",
    ];
    assert_written_once(fixture, expected.map(str::to_owned).to_vec()).await;
    assert!(fixture.operator().probe("/livez").await.starts_with("HTTP/1.1 200"));
    fixture.operator().until_ready().await;
}

async fn with_webs(fixture: &Fixture) -> Proxy {
    let proxy = through_proxy(fixture).await;
    create_webs(fixture).await;
    proxy
}

/// The objects that [`change_objects`] changes.
pub async fn create_webs(fixture: &Fixture) {
    for name in ["changed", "drifted", "lost"] {
        fixture.create_web(name, json!({"image": "nginx"})).await;
        fixture.until(&format!("mywebservers/{name}"), |web| web["status"]["observedGeneration"] == 1).await;
    }
    fixture.settle().await;
    fixture.transcript().await;
}

#[tokio::test]
async fn delays_and_single_bytes_change_no_result() {
    on(&SERVERS, async |fixture| {
        let proxy = with_webs(fixture).await;
        proxy.set(Flow::Delayed(Duration::from_millis(100)), Flow::Delayed(Duration::from_millis(100)));
        let label = |value| json!({"metadata": {"labels": {"app.kubernetes.io/component": value}}});
        fixture.patch("services/mws-drifted", label("edited")).await;
        let is_ours =
            |service: &Value| service["metadata"]["labels"]["app.kubernetes.io/component"] == "webserver";
        fixture.until("services/mws-drifted", is_ours).await;
        fixture.settle().await;
        assert_eq!(fixture.transcript().await, ["PATCH services/mws-drifted 200"]);

        proxy.set(Flow::ByteByByte, Flow::ByteByByte);
        change_objects(fixture).await;
        check_reconciled_once(fixture).await;
    })
    .await;
}

/// Connections break at any point, also between a write and its answer.
#[tokio::test]
async fn connections_that_are_cut_repeatedly_cause_no_lost_and_no_repeated_write() {
    const WEBS: usize = 12;
    on(&SERVERS, async |fixture| {
        let proxy = through_proxy(fixture).await;
        for number in 0..WEBS {
            let before = fixture.records().await.len();
            fixture.create_web(&format!("web-{number}"), json!({"image": "nginx"})).await;
            // As soon as the server has logged anything about it.
            eventually("a request", async || (fixture.records().await.len() > before).then_some(())).await;
            proxy.cut();
        }
        for number in 0..WEBS {
            let web = format!("mywebservers/web-{number}");
            eventually(&web, async || {
                (fixture.find(&web).await?["status"]["observedGeneration"] == 1).then_some(())
            })
            .await;
        }
        fixture.settle().await;
        let mut expected = Vec::new();
        for number in 0..WEBS {
            let deployment = fixture.get(&format!("deployments/mws-web-{number}")).await;
            assert_eq!(deployment["metadata"]["generation"], 1);
            fixture.get(&format!("services/mws-web-{number}")).await;
            expected.extend(["POST deployments 201", "POST services 201"].map(str::to_owned));
            expected.push(format!("PATCH mywebservers/web-{number}/status 200"));
        }
        assert_written_once(fixture, expected).await;
    })
    .await;
}

/// Nothing is forwarded, in both directions or in one, and the sockets stay open: only silence shows a dead connection.
///
/// All cases run at the same time, because noticing takes long in each.
#[tokio::test]
async fn half_open_connections_are_replaced_within_two_minutes() {
    tokio::join!(
        on(&SERVERS, async |fixture| black_hole(fixture, Flow::Stalled, Flow::Stalled).await),
        on(&SERVERS, async |fixture| black_hole(fixture, Flow::Stalled, Flow::Open).await),
        on(&SERVERS, async |fixture| black_hole(fixture, Flow::Open, Flow::Stalled).await),
        on(&SERVERS, drop_packets),
        on(&SERVERS, async |fixture| stall_one_connection(fixture, 0).await),
        on(&SERVERS, async |fixture| stall_one_connection(fixture, 1).await),
        on(&[Kind::RealHttp1], async |fixture| stall_one_connection(fixture, 2).await),
    );
}

async fn black_hole(fixture: &Fixture, up: Flow, down: Flow) {
    let proxy = with_webs(fixture).await;
    let before = ended(fixture);
    proxy.set(up, down);
    change_objects(fixture).await;
    let took = until_given_up(fixture, before).await;
    proxy.set(Flow::Open, Flow::Open);
    eprintln!("{}: up {up:?}, down {down:?}: noticed after {took:?}", fixture.name);
    check_reconciled_once(fixture).await;
}

/// As with a pulled cable: here TCP itself gives up.
async fn drop_packets(fixture: &Fixture) {
    let proxy = with_webs(fixture).await;
    let before = ended(fixture);
    let Some(dropped) = proxy.drop_packets() else {
        // In CI, this test must not pass without dropping packets.
        assert!(env::var_os("CI").is_none(), "no permission to use nft, which is required in CI");
        let _ = writeln!(io::stderr(), "no permission to use nft: no packet is dropped in this test");
        return;
    };
    change_objects(fixture).await;
    let took = until_given_up(fixture, before).await;
    drop(dropped);
    eprintln!("{}: packets dropped: noticed after {took:?}", fixture.name);
    check_reconciled_once(fixture).await;
}

/// One connection becomes silent: the other connections continue, and the silent one is replaced.
async fn stall_one_connection(fixture: &Fixture, number: usize) {
    let proxy = with_webs(fixture).await;
    let since = Instant::now();
    assert!(proxy.stall(number), "only {} connections", proxy.open());
    // Each change is an event of another watch.
    fixture.patch("mywebservers/changed", json!({"spec": {"image": "nginx:2"}})).await;
    fixture.patch("deployments/mws-drifted", json!({"spec": {"replicas": 7}})).await;
    fixture.delete("services/mws-lost").await;
    let reconciled = async || {
        let image = |deployment: &Value| {
            deployment["spec"]["template"]["spec"]["containers"][0]["image"] == "nginx:2"
        };
        let is_observed = fixture.get("mywebservers/changed").await["status"]["observedGeneration"] == 2;
        let changed = is_observed && image(&fixture.get("deployments/mws-changed").await);
        let drifted = fixture.get("deployments/mws-drifted").await["spec"]["replicas"] == 1;
        let lost = fixture.find("services/mws-lost").await.is_some();
        [changed, drifted, lost].into_iter().filter(|is_done| *is_done).count()
    };
    let mut took = Vec::new();
    // The changes on the other two watches do not wait for the third. Over HTTP/2, all watches share the stalled
    // connection.
    for (wanted, limit) in [(1, PATIENCE), (2, PATIENCE), (3, SILENCE_LIMIT)] {
        within(limit, "the changes to be reconciled", async || (reconciled().await >= wanted).then_some(()))
            .await;
        took.push(since.elapsed());
    }
    eprintln!("{}: connection {number} stalled: reconciled after {took:?}", fixture.name);
    fixture.settle().await;
    let expected = [
        "PATCH deployments/mws-changed 200",
        "PATCH deployments/mws-drifted 200",
        "PATCH mywebservers/changed/status 200",
        "POST services 201",
    ];
    assert_written_once(fixture, expected.map(str::to_owned).to_vec()).await;
}
