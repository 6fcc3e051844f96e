//! A network that is slow, breaks or swallows what is sent, between the operator and a real kube-apiserver.
//!
//! Each script runs over HTTP/2 and over HTTP/1.1. What must hold: a connection that says nothing is given up within two
//! minutes; what still works goes on meanwhile; afterwards everything is as asked for, and nothing was written twice.

use std::{
    env,
    io::{self, Write},
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::{
    hands::within,
    plane::PATIENCE,
    proxy::{Flow, Proxy},
    world::{Kind, World, on},
};

const SERVERS: [Kind; 2] = [Kind::Real, Kind::RealHttp1];
/// What is watched.
pub const WATCHED: [&str; 3] = ["mywebservers", "deployments", "services"];
/// In which a connection that says nothing is given up.
pub const NOTICED: Duration = Duration::from_secs(120);

/// An operator that has settled and speaks through the proxy. It works on several keys at a time.
async fn through_proxy(world: &World) -> Proxy {
    let proxy = Proxy::start(&world.url()).await;
    *world.detour.borrow_mut() = Some(proxy.url());
    world.start_operator(&["--max-concurrent-reconciles", "8"]).await;
    proxy
}

/// How many requests of each watch have ended.
pub fn ended(world: &World) -> [usize; 3] {
    let log = world.operator().log();
    WATCHED.map(|resource| {
        let what = format!("\"resource\":\"{resource}\"");
        log.lines().filter(|line| line.contains("\"request ended\"") && line.contains(&what)).count()
    })
}

/// Waits until all watches were given up, and tells how long that took.
pub async fn until_noticed(world: &World, before: [usize; 3]) -> Duration {
    let since = Instant::now();
    within(NOTICED, "all watches to be given up", async || {
        let now = ended(world);
        (0..3).all(|watch| now[watch] > before[watch]).then_some(())
    })
    .await;
    since.elapsed()
}

/// Nothing was written but these, and none of them twice. One may be missing: where its connection breaks, the server
/// writes down a 500 or 504 for what it has done all the same.
fn happened_once(world: &World, mut expected: Vec<String>) {
    let written = world.transcript();
    for line in written.iter().filter(|line| line.ends_with(" 200") || line.ends_with(" 201")) {
        let place = expected.iter().position(|known| known == line);
        expected.swap_remove(place.unwrap_or_else(|| panic!("{line}: once too often in {written:?}")));
    }
}

/// Makes webs, breaks a child of each kind, and deletes one.
pub async fn change_much(world: &World) {
    for name in ["new-a", "new-b"] {
        world.create_web(name, json!({"image": "nginx"})).await;
    }
    world.patch("mywebservers/changed", json!({"spec": {"image": "nginx:2"}})).await;
    world.patch("deployments/mws-drifted", json!({"spec": {"replicas": 7}})).await;
    world.delete("services/mws-lost").await;
}

/// Each of these once, and everything as asked for.
pub async fn made_up_for_once(world: &World) {
    // What failed last may be waiting for its next attempt, for up to a minute.
    within(NOTICED, "everything to be as asked for", async || {
        for name in ["new-a", "new-b"] {
            let web = world.find(&format!("mywebservers/{name}")).await?;
            (web["status"]["observedGeneration"] == 1).then_some(())?;
            world.find(&format!("services/mws-{name}")).await?;
        }
        let changed = world.get("mywebservers/changed").await;
        (changed["status"]["observedGeneration"] == 2).then_some(())?;
        let deployment = world.get("deployments/mws-changed").await;
        let image = &deployment["spec"]["template"]["spec"]["containers"][0]["image"];
        (image == "nginx:2").then_some(())?;
        (world.get("deployments/mws-drifted").await["spec"]["replicas"] == 1).then_some(())?;
        world.find("services/mws-lost").await.map(drop)
    })
    .await;
    world.settle().await;
    // Counted by the server itself: made, and for two of them changed by us; one was changed by somebody else too.
    for (name, generation) in [("new-a", 1), ("new-b", 1), ("changed", 2), ("drifted", 3), ("lost", 1)] {
        let deployment = world.get(&format!("deployments/mws-{name}")).await;
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
    happened_once(world, expected.map(str::to_owned).to_vec());
    assert!(world.operator().probe("/livez").await.starts_with("HTTP/1.1 200"));
    world.operator().until_ready().await;
}

async fn with_webs(world: &World) -> Proxy {
    let proxy = through_proxy(world).await;
    make_webs(world).await;
    proxy
}

/// Those that [`change_much`] changes.
pub async fn make_webs(world: &World) {
    for name in ["changed", "drifted", "lost"] {
        world.create_web(name, json!({"image": "nginx"})).await;
        world.until(&format!("mywebservers/{name}"), |web| web["status"]["observedGeneration"] == 1).await;
    }
    world.settle().await;
    world.transcript();
}

#[tokio::test]
async fn on_a_slow_network_and_on_one_that_brings_single_bytes_all_is_as_ever() {
    on(&SERVERS, async |world| {
        let proxy = with_webs(world).await;
        proxy.set(Flow::Delayed(Duration::from_millis(100)), Flow::Delayed(Duration::from_millis(100)));
        let label = |value| json!({"metadata": {"labels": {"app.kubernetes.io/component": value}}});
        world.patch("services/mws-drifted", label("theirs")).await;
        let is_ours =
            |service: &Value| service["metadata"]["labels"]["app.kubernetes.io/component"] == "webserver";
        world.until("services/mws-drifted", is_ours).await;
        world.settle().await;
        assert_eq!(world.transcript(), ["PATCH services/mws-drifted 200"]);

        proxy.set(Flow::ByteByByte, Flow::ByteByByte);
        change_much(world).await;
        made_up_for_once(world).await;
    })
    .await;
}

/// Wherever a connection breaks, be it between a write and its answer.
#[tokio::test]
async fn connections_that_are_cut_again_and_again_lose_nothing_and_nothing_is_written_twice() {
    const WEBS: usize = 12;
    on(&SERVERS, async |world| {
        let proxy = through_proxy(world).await;
        for number in 0..WEBS {
            let before = world.records().len();
            world.create_web(&format!("web-{number}"), json!({"image": "nginx"})).await;
            // As soon as the server has logged anything about it.
            within(NOTICED, "a request", async || (world.records().len() > before).then_some(())).await;
            proxy.cut();
        }
        for number in 0..WEBS {
            let web = format!("mywebservers/web-{number}");
            within(NOTICED, &web, async || {
                (world.find(&web).await?["status"]["observedGeneration"] == 1).then_some(())
            })
            .await;
        }
        world.settle().await;
        let mut expected = Vec::new();
        for number in 0..WEBS {
            let deployment = world.get(&format!("deployments/mws-web-{number}")).await;
            assert_eq!(deployment["metadata"]["generation"], 1);
            world.get(&format!("services/mws-web-{number}")).await;
            expected.extend(["POST deployments 201", "POST services 201"].map(str::to_owned));
            expected.push(format!("PATCH mywebservers/web-{number}/status 200"));
        }
        happened_once(world, expected);
    })
    .await;
}

/// What is sent is swallowed, in both directions or in one, while the sockets stay open: only its silence tells.
///
/// All at once, because each takes as long as it takes to notice.
#[tokio::test]
async fn half_open_connections_are_noticed_within_two_minutes_and_made_up_for() {
    tokio::join!(
        on(&SERVERS, async |world| black_hole(world, Flow::Stalled, Flow::Stalled).await),
        on(&SERVERS, async |world| black_hole(world, Flow::Stalled, Flow::Open).await),
        on(&SERVERS, async |world| black_hole(world, Flow::Open, Flow::Stalled).await),
        on(&SERVERS, packets_dropped),
        on(&SERVERS, async |world| one_stalled(world, 0).await),
        on(&SERVERS, async |world| one_stalled(world, 1).await),
        on(&[Kind::RealHttp1], async |world| one_stalled(world, 2).await),
    );
}

async fn black_hole(world: &World, up: Flow, down: Flow) {
    let proxy = with_webs(world).await;
    let before = ended(world);
    proxy.set(up, down);
    change_much(world).await;
    let took = until_noticed(world, before).await;
    proxy.set(Flow::Open, Flow::Open);
    eprintln!("{}: up {up:?}, down {down:?}: noticed after {took:?}", world.name);
    made_up_for_once(world).await;
}

/// As where a cable is pulled: here TCP itself gives up.
async fn packets_dropped(world: &World) {
    let proxy = with_webs(world).await;
    let before = ended(world);
    let Some(dropped) = proxy.drop_packets() else {
        // What cannot fail there would be no check.
        assert!(env::var_os("CI").is_none(), "nft may not be used, as it must be where CI is set");
        let _ = writeln!(io::stderr(), "nft may not be used: no packet is dropped in this test");
        return;
    };
    change_much(world).await;
    let took = until_noticed(world, before).await;
    drop(dropped);
    eprintln!("{}: packets dropped: noticed after {took:?}", world.name);
    made_up_for_once(world).await;
}

/// One connection says nothing any more: the others go on, and it is replaced.
async fn one_stalled(world: &World, number: usize) {
    let proxy = with_webs(world).await;
    let since = Instant::now();
    assert!(proxy.stall(number), "only {} connections", proxy.open());
    // Each is heard of on another watch.
    world.patch("mywebservers/changed", json!({"spec": {"image": "nginx:2"}})).await;
    world.patch("deployments/mws-drifted", json!({"spec": {"replicas": 7}})).await;
    world.delete("services/mws-lost").await;
    let mended = async || {
        let image = |deployment: &Value| {
            deployment["spec"]["template"]["spec"]["containers"][0]["image"] == "nginx:2"
        };
        let is_told = world.get("mywebservers/changed").await["status"]["observedGeneration"] == 2;
        let changed = is_told && image(&world.get("deployments/mws-changed").await);
        let drifted = world.get("deployments/mws-drifted").await["spec"]["replicas"] == 1;
        let lost = world.find("services/mws-lost").await.is_some();
        [changed, drifted, lost].into_iter().filter(|is_mended| *is_mended).count()
    };
    let mut took = Vec::new();
    // The two that are heard of elsewhere do not wait for the third; over HTTP/2 all share what is stalled.
    for (wanted, limit) in [(1, PATIENCE), (2, PATIENCE), (3, NOTICED)] {
        within(limit, "what was changed to be mended", async || (mended().await >= wanted).then_some(()))
            .await;
        took.push(since.elapsed());
    }
    eprintln!("{}: connection {number} stalled: mended after {took:?}", world.name);
    world.settle().await;
    let expected = [
        "PATCH deployments/mws-changed 200",
        "PATCH deployments/mws-drifted 200",
        "PATCH mywebservers/changed/status 200",
        "POST services 201",
    ];
    happened_once(world, expected.map(str::to_owned).to_vec());
}
