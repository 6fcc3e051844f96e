//! Hours in a minute: watches end, break and expire again and again, objects come and go. At the end the operator has
//! no more memory, connections, files or threads than when it had just warmed up.

use std::{fs, path::Path};

use listwatch::apiserver::Fault;
use serde_json::json;

use crate::world::{Kind, Server, World, on};

/// As many ends of each of the three watches as in eight hours of a quiet cluster, where the server ends one every five to
/// ten minutes.
const ROUNDS: usize = 64;
/// Before the first count: buffers have their size, every kind of error was met.
const WARM_UP_ROUNDS: usize = 16;
/// What an allocator may keep or give back from one moment to the next. A leak of one Deployment for each round is more.
const RSS_KB_MORE_MAX: i64 = 512;

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
        let (held, rss_kb) = (held(world), rss_kb(world));
        for round in WARM_UP_ROUNDS..WARM_UP_ROUNDS + ROUNDS {
            go_round(world, round).await;
        }
        assert_eq!(self::held(world), held);
        let more = self::rss_kb(world) - rss_kb;
        assert!(more <= RSS_KB_MORE_MAX, "{more} KB more than the {rss_kb} KB after the warm-up");
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
    server.fault(if round.is_multiple_of(2) { Fault::EndWatches } else { Fault::CutWatches });
}

fn held(world: &World) -> Held {
    let process = format!("/proc/{}", world.operator().id());
    let files = fs::read_dir(Path::new(&process).join("fd")).unwrap();
    let targets: Vec<_> = files.map(|file| fs::read_link(file.unwrap().path()).unwrap_or_default()).collect();
    let sockets = targets.iter().filter(|target| target.to_string_lossy().starts_with("socket:")).count();
    let threads = fs::read_dir(Path::new(&process).join("task")).unwrap().count();
    Held { open_files: targets.len(), sockets, threads }
}

fn rss_kb(world: &World) -> i64 {
    let status = fs::read_to_string(format!("/proc/{}/status", world.operator().id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}
