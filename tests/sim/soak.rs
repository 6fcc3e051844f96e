//! Hours of watching in which nothing happens but what always happens: watches end, bookmarks come, lists are made anew.

use std::{sync::Arc, time::Duration};

use fastrand::Rng;
use listwatch::{
    apiserver::{Fault, Options},
    watch::Lists,
};
use serde_json::json;
use tokio::{runtime::Runtime, task::JoinSet, time::sleep};

use crate::{
    Watchdog,
    history::{self, keep},
    network::Network,
};

/// Until every buffer has the size that it needs, and the server's versions have four digits.
const WARM_UP_HOURS: u32 = 4;
const HOURS: u32 = 8;

/// Allocations and bytes, on both sides together, that may be more at the end than at the start: where a timer or a buffer
/// stands by chance. Seen are 3 and 1.8 KB after 8, 16 and 24 hours alike; one for each request, of which there are
/// hundreds, would be far more.
const COUNT_NOISE: i64 = 8;
const BYTES_NOISE: i64 = 4096;

/// Longest that it may take, in real time. It takes some seconds.
const SOAK_LIMIT: Duration = Duration::from_secs(300);

/// What grows where something leaks.
#[derive(Debug, PartialEq)]
struct Use {
    tasks: usize,
    streams: usize,
}

fn in_use(runtime: &Runtime, network: &Network) -> Use {
    Use { tasks: runtime.metrics().num_alive_tasks(), streams: network.in_flight() }
}

/// Each quarter, all watches end; each hour, they are cut, and what they had heard is forgotten, so that they list again.
async fn hours(network: &Network, count: u32) {
    for _ in 0..count {
        for _ in 0..3 {
            sleep(Duration::from_secs(900)).await;
            network.server.fault(Fault::EndWatches);
        }
        sleep(Duration::from_secs(900)).await;
        network.server.fault(Fault::ExpireHistory);
        network.server.fault(Fault::CutWatches);
    }
    // Until the watches are open again, whatever they had to back off.
    sleep(Duration::from_secs(120)).await;
    network.forget();
}

fn soak(lists: Lists) {
    let _watchdog = Watchdog::new(SOAK_LIMIT, format!("the soak, {lists:?} lists"));
    fastrand::seed(1);
    let runtime = history::runtime();
    let (network, mut tasks) = runtime.block_on(async {
        let options = Options { history: 10, ..Options::default() };
        let network = Network::new(history::server(&options), Rng::with_seed(1));
        history::install(&network, &crate::crd()).await;
        for name in ["a", "b", "c"] {
            let web = json!({"apiVersion": "k8sobjects.gsa.com/v2", "kind": "MyWebserver",
                "metadata": {"name": name}, "spec": {"image": "nginx"}});
            let path = "/apis/k8sobjects.gsa.com/v2/namespaces/default/mywebservers";
            assert_eq!(history::post(&network, path, &web).await, 201);
        }
        let mut tasks = JoinSet::new();
        tasks.spawn(keep(Arc::clone(&network), lists, 4, Rng::with_seed(2), Arc::default()));
        hours(&network, WARM_UP_HOURS).await;
        (network, tasks)
    });
    let before = in_use(&runtime, &network);
    assert_eq!(before.streams, 3);
    let writes = network.writes();
    let memory = allocation_counter::measure(|| runtime.block_on(hours(&network, HOURS)));
    assert_eq!(in_use(&runtime, &network), before);
    assert_eq!(network.writes(), writes);
    let is_noise = memory.count_current.abs() <= COUNT_NOISE && memory.bytes_current.abs() <= BYTES_NOISE;
    assert!(is_noise, "{memory:?}");
    runtime.block_on(tasks.shutdown());
}

#[test]
fn hours_of_watching_leave_nothing_behind() {
    soak(Lists::Paged);
    soak(Lists::Streaming);
}
