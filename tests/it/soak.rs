//! Soak test: hours of ended, broken and expired watches in one minute, while objects are created, changed and deleted.
//! At the end, the operator must have no more connections, files, threads or memory than after its warm-up.
//! `tests/sim/soak.rs` counts the allocations inside the process.

use std::{fs, path::Path, rc::Rc, time::Duration};

use listwatch_apiserver::{ApiServer, Fault};
use listwatch_control_plane::{Http, eventually, has_assets, within};
use serde_json::json;
use tokio::time::timeout;

use crate::{
    fixture::{Fixture, Kind, installed_control_plane, on},
    network::{SILENCE_LIMIT, WATCHED, ended},
    outage::in_both,
    proxy::Proxy,
};

/// As many ends of each of the three watches as in eight hours of a quiet cluster, where the server ends one every five to
/// ten minutes.
const ROUNDS: usize = 64;
/// Rounds before the first count: then buffers have their final size, and every kind of error has occurred.
const WARM_UP_ROUNDS: usize = 16;

/// On the real server, all watches are cut in each round, and all versions expire after this many rounds.
const ROUNDS_TO_EXPIRY: usize = 80;
/// More would take long: watches that fail or expire again within a minute back off.
const WARM_UP_EXPIRIES: usize = 2;
const EXPIRIES: usize = 2;
/// Where watches are opened again slowly, it takes more expiries.
const ENDS_MIN: usize = 200;
/// Most growth of the operator's own memory. Measured are 8 to 24 KiB, and 148 KiB if each end of a watch leaks 128
/// bytes.
const MEMORY_NOISE_KIB: u64 = 64;
/// A busy machine now and then adds more than that to one batch. A leak adds it to each.
const BATCHES_MAX: usize = 3;

/// Longest time of a soak: five times the time on two busy CPUs.
const SOAK_LIMIT: Duration = Duration::from_secs(600);

/// Runs the test to its end, or panics after the time limit.
async fn in_time(what: &str, soak: impl Future<Output = ()>) {
    let ended = timeout(SOAK_LIMIT, soak).await;
    assert!(ended.is_ok(), "{what} stalled: not done after {SOAK_LIMIT:?}; see the operator's log below");
}

#[derive(Debug, PartialEq, Eq)]
struct Resources {
    open_files: usize,
    sockets: usize,
    threads: usize,
}

#[tokio::test]
async fn after_hours_of_watching_nothing_has_grown() {
    on(&[Kind::Embedded], async |fixture| {
        fixture.start_operator(&[]).await;
        in_time("the warm-up", async {
            for round in 0..WARM_UP_ROUNDS {
                run_round(fixture, round).await;
            }
        })
        .await;
        let before = resources(fixture);
        in_time("the soak", async {
            for round in WARM_UP_ROUNDS..WARM_UP_ROUNDS + ROUNDS {
                run_round(fixture, round).await;
            }
            until_resources(fixture, &before).await;
        })
        .await;
    })
    .await;
}

/// Ends all watches in one of several ways, and creates and deletes one MyWebserver.
async fn run_round(fixture: &Fixture, round: usize) {
    let server = fixture.embedded();
    fixture.create_web("web", json!({"image": "nginx"})).await;
    fixture.until("services/mws-web", |_| true).await;
    fixture.delete("mywebservers/web").await;
    for child in ["deployments/mws-web", "services/mws-web"] {
        fixture.until_gone(child).await;
    }
    // After an event on each watch: watches that end at once back off, and so do those that expire again and again.
    if round == 0 {
        server.fault(Fault::ExpireHistory);
    }
    let before = WATCHED.map(|resource| opened(server, resource));
    server.fault(if round.is_multiple_of(2) { Fault::EndWatches } else { Fault::CutWatches });
    // Otherwise the next count would depend on which watches are open again.
    eventually("all watches to be open again", async || {
        let now = WATCHED.map(|resource| opened(server, resource));
        (0..3).all(|watch| now[watch] > before[watch]).then_some(())
    })
    .await;
}

/// How often a watch was opened.
fn opened(server: &ApiServer, resource: &str) -> usize {
    let place = format!("/{resource}");
    let requests = server.requests();
    requests
        .iter()
        .filter(|request| request.path.ends_with(&place) && request.query.contains("watch="))
        .count()
}

/// In real time, with a real server. A simulation has neither TLS nor memory that the allocator does not give back.
#[tokio::test]
async fn after_hundreds_of_ended_watches_the_process_has_not_grown() {
    if !has_assets() {
        return;
    }
    let control_plane = Rc::new(installed_control_plane(Http::Any).await);
    let proxy = Proxy::start(&control_plane.url()).await;
    let fixtures = Fixture::paged_and_streaming(&control_plane).await;
    for fixture in &fixtures {
        *fixture.proxy_url.borrow_mut() = Some(proxy.url());
        fixture.start_operator(&[]).await;
        fixture.create_web("web", json!({"image": "nginx"})).await;
        // An API server that has just started has not yet read its RBAC rules.
        fixture.may_be_forbidden.set(true);
    }
    let until_expired = async || {
        // The operators are stopped meanwhile. Otherwise they would back off from a server that does not answer. Its
        // watch cache begins after their last events.
        fixtures.iter().for_each(|fixture| fixture.operator().signal("STOP"));
        control_plane.kill_apiserver();
        control_plane.start_apiserver().await;
        fixtures.iter().for_each(|fixture| fixture.operator().signal("CONT"));
        for round in 0..ROUNDS_TO_EXPIRY {
            in_both(&fixtures, async |fixture| change(fixture, round).await).await;
            proxy.cut();
        }
    };
    in_time("the warm-up", async {
        for _ in 0..WARM_UP_EXPIRIES {
            until_expired().await;
        }
    })
    .await;
    let mut grows = [true; 2];
    for _ in 0..BATCHES_MAX {
        let before =
            fixtures.each_ref().map(|fixture| (resources(fixture), own_memory_kib(fixture), ends(fixture)));
        in_time("the soak", async {
            let has_few =
                |(fixture, (.., before)): (&Fixture, &(_, _, usize))| ends(fixture) < before + ENDS_MIN;
            let mut expiries = 0;
            while expiries < EXPIRIES || fixtures.iter().zip(&before).any(has_few) {
                until_expired().await;
                expiries += 1;
            }
        })
        .await;
        for ((fixture, grows), (before, memory_kib, ended)) in fixtures.iter().zip(&mut grows).zip(before) {
            until_resources(fixture, &before).await;
            let now_kib = own_memory_kib(fixture);
            let ends = ends(fixture) - ended;
            eprintln!(
                "{}: {memory_kib} KiB before {ends} ends of watches, {now_kib} KiB after",
                fixture.name
            );
            *grows &= now_kib > memory_kib + MEMORY_NOISE_KIB;
        }
        if grows == [false; 2] {
            break;
        }
    }
    for (fixture, grows) in fixtures.iter().zip(grows) {
        assert!(
            !grows,
            "{} grew by more than {MEMORY_NOISE_KIB} KiB in each of {BATCHES_MAX} batches",
            fixture.name
        );
        fixture.operator().until_logged(&["request ended", "Expired"]).await;
        fixture.assert_clean();
    }
}

fn ends(fixture: &Fixture) -> usize {
    ended(fixture).iter().sum()
}

/// Causes an event on each of the three watches, and waits until it is handled.
async fn change(fixture: &Fixture, round: usize) {
    let port = if round.is_multiple_of(2) { 81 } else { 80 };
    let web = fixture.patch("mywebservers/web", json!({"spec": {"port": port}})).await;
    within(SILENCE_LIMIT, "the change to be reconciled", async || {
        let now = fixture.get("mywebservers/web").await;
        (now["status"]["observedGeneration"] == web["metadata"]["generation"]).then_some(())
    })
    .await;
}

/// Waits until the connections that were broken last are open again.
async fn until_resources(fixture: &Fixture, before: &Resources) {
    let what = format!("the operator to have {before:?} again");
    eventually(&what, async || (resources(fixture) == *before).then_some(())).await;
}

fn resources(fixture: &Fixture) -> Resources {
    let process = format!("/proc/{}", fixture.operator().id());
    let files = fs::read_dir(Path::new(&process).join("fd")).unwrap();
    let targets: Vec<_> = files.map(|file| fs::read_link(file.unwrap().path()).unwrap_or_default()).collect();
    let sockets = targets.iter().filter(|target| target.to_string_lossy().starts_with("socket:")).count();
    let threads = fs::read_dir(Path::new(&process).join("task")).unwrap().count();
    Resources { open_files: targets.len(), sockets, threads }
}

/// Memory that is not mapped from a file: the heap and the stacks.
fn own_memory_kib(fixture: &Fixture) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", fixture.operator().id())).unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}
