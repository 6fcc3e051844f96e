//! Hours in a minute: watches end, break and expire again and again, while objects come, change and go. At the end the
//! operator has no more connections, files, threads or memory than when it had just warmed up. What it holds inside is
//! counted in `tests/sim/soak.rs`.

use std::{fs, path::Path, rc::Rc, time::Duration};

use listwatch::apiserver::{ApiServer, Fault};
use serde_json::json;
use tokio::time::timeout;

use crate::{
    hands::{eventually, within},
    network::{NOTICED, WATCHED, ended},
    outage::in_both,
    plane::{Http, Plane},
    proxy::Proxy,
    world::{Kind, Server, World, has_real, on},
};

/// As many ends of each of the three watches as in eight hours of a quiet cluster, where the server ends one every five to
/// ten minutes.
const ROUNDS: usize = 64;
/// Before the first count: buffers have their size, every kind of error was met.
const WARM_UP_ROUNDS: usize = 16;

/// On the real server all watches are cut in each round, and all versions expire after so many.
const ROUNDS_TO_EXPIRY: usize = 80;
/// More would take long: what fails or expires again within a minute is backed off from.
const WARM_UP_EXPIRIES: usize = 1;
const EXPIRIES: usize = 2;
const ENDS_MIN: usize = 200;
/// What an operator may have more of its own memory at the end. Seen are 8 to 24 KiB, on a busy machine up to 88, and
/// 148 KiB where each end of a watch left 128 bytes behind.
const MEMORY_NOISE_KIB: u64 = 112;

/// Longest that a soak may take: five times what it takes on two busy CPUs.
const SOAK_LIMIT: Duration = Duration::from_secs(600);

/// Runs to the end, or says that it does not come.
async fn in_time(what: &str, soak: impl Future<Output = ()>) {
    let ended = timeout(SOAK_LIMIT, soak).await;
    assert!(ended.is_ok(), "{what} stalled: not done after {SOAK_LIMIT:?}; see the operator's log below");
}

#[derive(Debug, PartialEq, Eq)]
struct Held {
    open_files: usize,
    sockets: usize,
    threads: usize,
}

#[tokio::test]
async fn after_hours_of_watching_nothing_has_grown() {
    on(&[Kind::Embedded], async |world| {
        world.start_operator(&[]).await;
        for round in 0..WARM_UP_ROUNDS {
            go_round(world, round).await;
        }
        let before = held(world);
        in_time("the soak", async {
            for round in WARM_UP_ROUNDS..WARM_UP_ROUNDS + ROUNDS {
                go_round(world, round).await;
            }
            until_held(world, &before).await;
        })
        .await;
    })
    .await;
}

/// One end of all watches, of one kind or another, and one MyWebserver that comes and goes.
async fn go_round(world: &World, round: usize) {
    let Server::Embedded(server) = &world.server else { unreachable!("asked for above") };
    world.create_web("web", json!({"image": "nginx"})).await;
    world.until("services/mws-web", |_| true).await;
    world.delete("mywebservers/web").await;
    for child in ["deployments/mws-web", "services/mws-web"] {
        world.until_gone(child).await;
    }
    // After something was heard on each of them: watches that end at once are backed off from, as are those that expire
    // again and again.
    if round == 0 {
        server.fault(Fault::ExpireHistory);
    }
    let before = WATCHED.map(|resource| opened(server, resource));
    server.fault(if round.is_multiple_of(2) { Fault::EndWatches } else { Fault::CutWatches });
    // Or what is counted next depended on which of them were open again.
    eventually("all watches to be open again", async || {
        let now = WATCHED.map(|resource| opened(server, resource));
        (0..3).all(|watch| now[watch] > before[watch]).then_some(())
    })
    .await;
}

/// How often one was opened.
fn opened(server: &ApiServer, resource: &str) -> usize {
    let place = format!("/{resource}");
    let requests = server.requests();
    requests
        .iter()
        .filter(|request| request.path.ends_with(&place) && request.query.contains("watch="))
        .count()
}

/// Real time, with a real server. In no simulation is there memory that the allocator does not give back, or TLS.
#[tokio::test]
async fn hundreds_of_ends_of_watches_later_the_process_is_as_large_as_before() {
    if !has_real() {
        return;
    }
    let plane = Rc::new(Plane::installed(Http::Any).await);
    let proxy = Proxy::start(&plane.url()).await;
    let worlds = World::both_in(&plane).await;
    for world in &worlds {
        *world.detour.borrow_mut() = Some(proxy.url());
        world.start_operator(&[]).await;
        world.create_web("web", json!({"image": "nginx"})).await;
        // An API server that has just started has not yet read who may do what.
        world.may_be_forbidden.set(true);
    }
    let until_expired = async || {
        // Asleep meanwhile, or they would back off from a server that does not answer. Its cache begins after all that
        // they have heard.
        worlds.iter().for_each(|world| world.operator().signal("STOP"));
        plane.kill_apiserver();
        plane.start_apiserver().await;
        worlds.iter().for_each(|world| world.operator().signal("CONT"));
        for round in 0..ROUNDS_TO_EXPIRY {
            in_both(&worlds, async |world| change(world, round).await).await;
            proxy.cut();
        }
    };
    for _ in 0..WARM_UP_EXPIRIES {
        until_expired().await;
    }
    let before = worlds.each_ref().map(|world| (held(world), own_memory_kib(world), ended(world)));
    in_time("the soak", async {
        for _ in 0..EXPIRIES {
            until_expired().await;
        }
    })
    .await;
    for (world, (before, memory_kib, ends)) in worlds.iter().zip(before) {
        until_held(world, &before).await;
        let now_kib = own_memory_kib(world);
        let ends: usize = ended(world).iter().sum::<usize>() - ends.iter().sum::<usize>();
        eprintln!("{}: {ends} ends of watches, {memory_kib} KiB before, {now_kib} KiB after", world.name);
        assert!(ends >= ENDS_MIN, "{ends}");
        assert!(now_kib <= memory_kib + MEMORY_NOISE_KIB, "{now_kib} KiB, and {memory_kib} KiB before");
        world.operator().until_logged(&["request ended", "Expired"]).await;
        world.ends_well();
    }
}

/// Something that is told on each of the three watches, and done.
async fn change(world: &World, round: usize) {
    let port = if round.is_multiple_of(2) { 81 } else { 80 };
    let web = world.patch("mywebservers/web", json!({"spec": {"port": port}})).await;
    within(NOTICED, "the change to be carried out", async || {
        let now = world.get("mywebservers/web").await;
        (now["status"]["observedGeneration"] == web["metadata"]["generation"]).then_some(())
    })
    .await;
}

/// The connections that were broken last must be there again first.
async fn until_held(world: &World, before: &Held) {
    let what = format!("it to hold {before:?} again");
    eventually(&what, async || (held(world) == *before).then_some(())).await;
}

fn held(world: &World) -> Held {
    let process = format!("/proc/{}", world.operator().id());
    let files = fs::read_dir(Path::new(&process).join("fd")).unwrap();
    let targets: Vec<_> = files.map(|file| fs::read_link(file.unwrap().path()).unwrap_or_default()).collect();
    let sockets = targets.iter().filter(|target| target.to_string_lossy().starts_with("socket:")).count();
    let threads = fs::read_dir(Path::new(&process).join("task")).unwrap().count();
    Held { open_files: targets.len(), sockets, threads }
}

/// What is not read from a file: the heap and the stacks.
fn own_memory_kib(world: &World) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", world.operator().id())).unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}
