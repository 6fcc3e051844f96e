//! Hours in a minute: watches end, break and expire again and again, objects come and go. At the end the operator has
//! no more connections, files or threads than when it had just warmed up. Its memory is counted in `tests/sim/soak.rs`.

use std::{fs, path::Path};

use listwatch::apiserver::Fault;
use serde_json::json;

use crate::{
    hands::eventually,
    world::{Kind, Server, World, on},
};

/// As many ends of each of the three watches as in eight hours of a quiet cluster, where the server ends one every five to
/// ten minutes.
const ROUNDS: usize = 64;
/// Before the first count: buffers have their size, every kind of error was met.
const WARM_UP_ROUNDS: usize = 16;

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
        for round in WARM_UP_ROUNDS..WARM_UP_ROUNDS + ROUNDS {
            go_round(world, round).await;
        }
        // The last round has just broken its connections.
        let what = format!("it to hold {before:?} again");
        eventually(&what, async || (held(world) == before).then_some(())).await;
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
