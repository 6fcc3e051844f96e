//! Soak test on a paused clock: hours without changes, in which watches end, bookmarks arrive and lists are repeated.

use std::{sync::Arc, time::Duration};

use fastrand::Rng;
use listwatch::watch::Lists;
use listwatch_apiserver::{Fault, Options};
use serde_json::json;
use tokio::{runtime::Runtime, task::JoinSet, time::sleep};

use crate::{
    Watchdog,
    network::Network,
    scenario::{self, Operator, keep},
};

/// By then, every buffer has its final size, and the server's versions have four digits.
const WARM_UP_HOURS: u32 = 4;
const HOURS: u32 = 8;

/// Most growth in allocations and bytes, of operator and server together: timers and buffers vary by chance. Measured
/// are 2 allocations and 184 bytes, the same for both ways to list. A leak in each of the hundreds of requests would be
/// far larger.
const COUNT_NOISE: i64 = 8;
const BYTES_NOISE: i64 = 4096;

/// Longest real time of the test. It takes some seconds.
const SOAK_LIMIT: Duration = Duration::from_secs(300);

/// Counts that grow if something leaks.
#[derive(Debug, PartialEq)]
struct InUse {
    tasks: usize,
    streams: usize,
}

fn in_use(runtime: &Runtime, network: &Network) -> InUse {
    InUse { tasks: runtime.metrics().num_alive_tasks(), streams: network.in_flight() }
}

/// Every quarter of an hour, all watches end. Every hour, they are cut and their history expires, so that they list
/// again.
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
    // Until the watches are open again after their backoff. The watch after a streaming list has no buffer of that list.
    sleep(Duration::from_secs(120)).await;
    network.server.fault(Fault::EndWatches);
    sleep(Duration::from_secs(120)).await;
    network.forget();
}

fn soak(lists: Lists) {
    let _watchdog = Watchdog::new(SOAK_LIMIT, format!("the soak, {lists:?} lists"));
    fastrand::seed(1);
    let runtime = scenario::runtime();
    let (network, mut tasks) = runtime.block_on(async {
        let options = Options { history: 10, ..Options::default() };
        let network = Network::new(scenario::server(&options), Rng::with_seed(1));
        scenario::install(&network, &Operator::Mywebserver.definition()).await;
        for name in ["a", "b", "c"] {
            let web = json!({"apiVersion": "k8sobjects.gsa.com/v2", "kind": "MyWebserver",
                "metadata": {"name": name}, "spec": {"image": "nginx"}});
            let path = "/apis/k8sobjects.gsa.com/v2/namespaces/default/mywebservers";
            assert_eq!(scenario::post(&network, path, &web).await, 201);
        }
        let mut tasks = JoinSet::new();
        let keep =
            keep(Arc::clone(&network), Operator::Mywebserver, lists, 4, Rng::with_seed(2), Arc::default());
        tasks.spawn(keep);
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
fn hours_of_watching_leave_no_memory_allocated() {
    soak(Lists::Paged);
    soak(Lists::Streaming);
}
