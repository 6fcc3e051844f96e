//! Many watches that are treated alike, in one process and on a clock that jumps: they must not come back together.

use std::{
    io, mem,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use http::Method;
use http_body_util::{BodyExt, Full};
use listwatch::{
    apiserver::{ApiServer, Fault, Options, Planned},
    client::{Client, Config, InProcess, InProcessAnswer},
    cluster::Cluster,
    resource::{Scope, kinds::Service},
    store::Store,
    watch::{self, Health, Lists},
};
use tokio::{task::JoinSet, time::Instant};

/// How many watches at a time.
const CROWD: usize = 50;

/// The way to a server without a network, where the requests that read one resource are noted.
pub struct Door {
    pub server: ApiServer,
    /// `/services`
    resource: &'static str,
    arrivals: Mutex<Vec<Instant>>,
    /// How long each list and each check of the resource waits for its answer.
    list_time: Duration,
    lists: Waiting,
    checks: Waiting,
}

/// How many requests wait for their answers.
#[derive(Default)]
struct Waiting {
    now: AtomicUsize,
    most: AtomicUsize,
}

impl Waiting {
    async fn wait(&self, time: Duration) {
        let now = self.now.fetch_add(1, Ordering::Relaxed) + 1;
        self.most.fetch_max(now, Ordering::Relaxed);
        tokio::time::sleep(time).await;
        self.now.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Door {
    pub fn to(server: ApiServer, resource: &'static str, list_time: Duration) -> Arc<Door> {
        let (arrivals, lists, checks) = Default::default();
        Arc::new(Door { server, resource, arrivals, list_time, lists, checks })
    }

    /// A client with this token.
    pub fn client(self: &Arc<Door>, token: &str) -> Client {
        Client::new(Config::in_process(Arc::clone(self) as _, token).unwrap()).unwrap()
    }

    /// How many lists waited for their answers at most.
    pub fn most_listing(&self) -> usize {
        self.lists.most.load(Ordering::Relaxed)
    }

    /// Since the last time.
    pub fn arrivals(&self) -> Vec<Instant> {
        mem::take(&mut *self.arrivals.lock().unwrap())
    }
}

impl InProcess for Door {
    fn answer(
        &self,
        request: http::Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = io::Result<InProcessAnswer>> + Send + '_>> {
        Box::pin(async {
            if request.method() == Method::GET && request.uri().path().ends_with(self.resource) {
                self.arrivals.lock().unwrap().push(Instant::now());
                let query = request.uri().query().unwrap_or_default();
                if query == "limit=1" {
                    self.checks.wait(self.list_time).await;
                } else if !query.contains("watch=1") || query.contains("sendInitialEvents") {
                    self.lists.wait(self.list_time).await;
                }
            }
            let answer = self.server.answer(request.map(Full::new)).await;
            let answer = answer.map_err(|_| io::Error::from(io::ErrorKind::ConnectionReset))?;
            Ok(answer.map(|body| BodyExt::boxed_unsync(body.map_err(Into::into))))
        })
    }

    fn now(&self) -> SystemTime {
        self.server.now()
    }
}

/// Fifty watches that began together do not end together: each asks for an end of its own, after 5 to 10 minutes, so that ten
/// seconds see two of them on average. Then all are made to end at once, and the server asks everybody to come back in a
/// second: nobody comes earlier, and they do not come together. After the n-th refusal a watch waits for that second and
/// for half to all of 1.6 s × 2ⁿ⁻¹, so that a tenth of a second sees six of them on average, and three after the second
/// one. (`TIMEOUT_SECS` and `BACKOFF` in src/watch.rs.) A third of them is more than chance brings.
#[tokio::test(start_paused = true)]
async fn a_crowd_that_is_refused_together_does_not_come_back_together() {
    fastrand::seed(17);
    let options = Options { controllers: false, ..Options::default() };
    let server = ApiServer::in_process(&options, SystemTime::UNIX_EPOCH);
    let token = server.token().to_owned();
    let door = Door::to(server, "/services", Duration::ZERO);
    let mut crowd = JoinSet::new();
    for _ in 0..CROWD {
        let client = door.client(&token);
        crowd.spawn(async move {
            let (store, health) = (Store::<Service>::default(), Health::new("services".to_owned()));
            watch::watch(client, Scope::default(), Lists::Paged, &store, &health).await;
        });
    }
    // The clock jumps as soon as all of them have nothing to do but to wait.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(door.arrivals().len(), 2 * CROWD, "a list and a watch for each");
    tokio::time::sleep(Duration::from_secs(601)).await;
    spread(&door.arrivals(), Duration::from_secs(10));

    door.server.fault("too-many-requests,retry-after=1".parse::<Planned>().unwrap());
    door.server.fault(Fault::EndWatches);
    let ended = Instant::now();
    // At once; after 1.8 to 2.6 s; after 2.6 to 4.2 s more.
    tokio::time::sleep(Duration::from_secs(7)).await;
    let arrivals = door.arrivals();
    let rounds: Vec<_> = arrivals.chunks(CROWD).collect();
    assert_eq!(arrivals.len(), 3 * CROWD);
    assert!(rounds[0][CROWD - 1] == ended, "what ends well is resumed at once");
    assert!(rounds[1][0] - ended >= Duration::from_millis(1800));
    assert!(rounds[2][0] - rounds[1][0] >= Duration::from_millis(2600));
    spread(rounds[1], Duration::from_millis(100));
    spread(rounds[2], Duration::from_millis(100));
}

/// All lists of a process are asked for on one connection, which takes a hundred requests at a time, and each has a deadline
/// of 30 s: hundreds of namespaces at once missed it. So it is for the checks after all watches were cut at once. Here, too,
/// those that wait for their turn are not stuck.
#[tokio::test(start_paused = true)]
async fn of_hundreds_of_lists_four_are_asked_for_at_a_time_and_of_checks_sixteen() {
    const LIST_TIME: Duration = Duration::from_secs(25);
    for lists in [Lists::Paged, Lists::Streaming] {
        let options = Options { controllers: false, ..Options::default() };
        let server = ApiServer::in_process(&options, SystemTime::UNIX_EPOCH);
        let token = server.token().to_owned();
        let door = Door::to(server, "/services", LIST_TIME);
        let client = door.client(&token);
        let cluster = Cluster::new(client, lists);
        let scope = |number| Scope { namespace: Some(format!("n-{number}")), ..Scope::default() };
        let _services = cluster.watch::<Service>((0..4 * CROWD).map(scope));
        for round in 0.. {
            let health = cluster.health();
            assert!(!health.iter().any(|watch| watch.is_stuck()), "{lists:?}, round {round}");
            if health.iter().all(|watch| watch.is_synced()) {
                break;
            }
            assert!(round <= CROWD + 1, "{lists:?}");
            tokio::time::sleep(LIST_TIME).await;
        }
        door.server.fault(Fault::CutWatches);
        for _ in 0..4 {
            tokio::time::sleep(LIST_TIME).await;
            assert!(!cluster.health().iter().any(|watch| watch.is_stuck()), "{lists:?}");
        }
        assert_eq!(door.most_listing(), 4, "{lists:?}");
        assert_eq!(door.checks.most.load(Ordering::Relaxed), 16, "{lists:?}");
    }
}

/// A check waited behind all of them, and the changes of its namespace with it.
#[tokio::test(start_paused = true)]
async fn hundreds_of_lists_that_hang_hold_up_no_watch_that_was_cut() {
    let options = Options { controllers: false, ..Options::default() };
    let server = ApiServer::in_process(&options, SystemTime::UNIX_EPOCH);
    let token = server.token().to_owned();
    let door = Door::to(server, "/services", Duration::ZERO);
    let client = door.client(&token);
    let cluster = Cluster::new(client, Lists::Paged);
    let scope = |namespace: String| Scope { namespace: Some(namespace), ..Scope::default() };
    let _web = cluster.watch::<Service>([scope("web".to_owned())]);
    tokio::time::sleep(Duration::from_secs(2)).await;
    door.server.fault(Fault::Delay(Duration::from_secs(25)).on("GET", "/services?limit=100"));
    let _others = cluster.watch::<Service>((0..4 * CROWD).map(|number| scope(format!("n-{number}"))));
    tokio::time::sleep(Duration::from_secs(2)).await;
    door.server.fault(Fault::CutWatches.on("", "/namespaces/web/services"));
    tokio::time::sleep(Duration::from_secs(2)).await;
    let mut log = door.server.requests();
    log.retain(|request| request.path.contains("/web/"));
    let is_watch: Vec<_> = log.iter().map(|request| request.query.contains("watch=1")).collect();
    assert_eq!(is_watch, [false, true, false, true], "a list, a watch, a check, the watch again");
}

/// No time of this length sees more than a third of them.
fn spread(arrivals: &[Instant], length: Duration) {
    let together =
        |from: &Instant| arrivals.iter().filter(|at| (*from..*from + length).contains(*at)).count();
    let most = arrivals.iter().map(together).max().unwrap();
    assert!(most <= CROWD / 3, "{most} of {} within {length:?}", arrivals.len());
}
