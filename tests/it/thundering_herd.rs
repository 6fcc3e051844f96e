//! Tests that watches that end or are refused at the same time do not come back together. One process, paused clock.

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
    advanced::{InProcess, InProcessAnswer},
    client::{Client, Config},
    cluster::Cluster,
    resource::{Scope, kinds::Service},
    store::Store,
    watch::{self, Health, Lists},
};
use listwatch_apiserver::{ApiServer, Fault, Options, Planned};
use tokio::{task::JoinSet, time::Instant};

/// The number of watches.
const WATCHES: usize = 50;

/// A connection to a server in this process, which records the requests that read one resource.
pub struct Gateway {
    pub server: ApiServer,
    /// `/services`
    resource: &'static str,
    arrivals: Mutex<Vec<Instant>>,
    /// How long each list and each check of the resource takes.
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

impl Gateway {
    /// A gateway to a new server without controllers, and an administrator's client.
    pub fn start(resource: &'static str, list_time: Duration) -> (Arc<Gateway>, Client) {
        let options = Options { controllers: false, ..Options::default() };
        let server = ApiServer::in_process(&options, SystemTime::UNIX_EPOCH);
        let token = server.token().to_owned();
        let (arrivals, lists, checks) = Default::default();
        let gateway = Arc::new(Gateway { server, resource, arrivals, list_time, lists, checks });
        let client = gateway.client(&token);
        (gateway, client)
    }

    /// A client with this token.
    pub fn client(self: &Arc<Gateway>, token: &str) -> Client {
        Client::new(Config::in_process(Arc::clone(self) as _, token).unwrap()).unwrap()
    }

    /// The largest number of lists that waited for their answers at the same time.
    pub fn most_lists(&self) -> usize {
        self.lists.most.load(Ordering::Relaxed)
    }

    /// The times of the requests since the last call.
    pub fn arrivals(&self) -> Vec<Instant> {
        mem::take(&mut *self.arrivals.lock().unwrap())
    }
}

impl InProcess for Gateway {
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

/// Fifty watches start at the same time. Each asks for its own `timeoutSeconds`, from 5 to 10 minutes, so on average two of
/// them end within ten seconds. Then all end at once, and the server answers with `Retry-After: 1`: no watch comes back
/// earlier, and they do not come back together. After the n-th refusal a watch waits for that second and for half to all of
/// 1.6 s × 2ⁿ⁻¹: on average six come back within a tenth of a second, and three after the second refusal. (`TIMEOUT_SECS`
/// and `BACKOFF` in src/watch.rs.) Chance does not bring a third of them together.
#[tokio::test(start_paused = true)]
async fn watches_refused_together_retry_at_different_times() {
    fastrand::seed(17);
    let (gateway, client) = Gateway::start("/services", Duration::ZERO);
    let mut watches = JoinSet::new();
    for _ in 0..WATCHES {
        let client = client.clone();
        watches.spawn(async move {
            let (store, health) = (Store::<Service>::default(), Health::new("services".to_owned()));
            watch::watch(client, Scope::default(), Lists::Paged, &store, &health).await;
        });
    }
    // The clock jumps as soon as all watches only wait.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(gateway.arrivals().len(), 2 * WATCHES, "a list and a watch for each");
    tokio::time::sleep(Duration::from_secs(601)).await;
    assert_spread(&gateway.arrivals(), Duration::from_secs(10));

    gateway.server.fault("too-many-requests,retry-after=1".parse::<Planned>().unwrap());
    gateway.server.fault(Fault::EndWatches);
    let ended = Instant::now();
    // At once; after 1.8 to 2.6 s; after 2.6 to 4.2 s more.
    tokio::time::sleep(Duration::from_secs(7)).await;
    let arrivals = gateway.arrivals();
    let rounds: Vec<_> = arrivals.chunks(WATCHES).collect();
    assert_eq!(arrivals.len(), 3 * WATCHES);
    assert!(rounds[0][WATCHES - 1] == ended, "a watch that the server ended is resumed at once");
    assert!(rounds[1][0] - ended >= Duration::from_millis(1800));
    assert!(rounds[2][0] - rounds[1][0] >= Duration::from_millis(2600));
    assert_spread(rounds[1], Duration::from_millis(100));
    assert_spread(rounds[2], Duration::from_millis(100));
}

/// All lists of a process share one connection, which takes a hundred requests at a time, and each list has a deadline of
/// 30 s. The lists of hundreds of namespaces at once missed this deadline, and so did the checks after all watches were
/// cut at once. A watch that waits for its turn must not be reported as stuck.
#[tokio::test(start_paused = true)]
async fn at_most_four_lists_and_sixteen_checks_run_at_a_time() {
    const LIST_TIME: Duration = Duration::from_secs(25);
    for lists in [Lists::Paged, Lists::Streaming] {
        let (gateway, client) = Gateway::start("/services", LIST_TIME);
        let cluster = Cluster::new(client, lists);
        let scope = |number| Scope { namespace: Some(format!("n-{number}")), ..Scope::default() };
        let _services = cluster.watch::<Service>((0..4 * WATCHES).map(scope));
        for round in 0.. {
            let health = cluster.health();
            assert!(!health.iter().any(|watch| watch.is_stuck()), "{lists:?}, round {round}");
            if health.iter().all(|watch| watch.is_synced()) {
                break;
            }
            assert!(round <= WATCHES + 1, "{lists:?}");
            tokio::time::sleep(LIST_TIME).await;
        }
        gateway.server.fault(Fault::CutWatches);
        for _ in 0..4 {
            tokio::time::sleep(LIST_TIME).await;
            assert!(!cluster.health().iter().any(|watch| watch.is_stuck()), "{lists:?}");
        }
        assert_eq!(gateway.most_lists(), 4, "{lists:?}");
        assert_eq!(gateway.checks.most.load(Ordering::Relaxed), 16, "{lists:?}");
    }
}

/// The check of a cut watch waited behind all lists, and so the changes of its namespace were late.
#[tokio::test(start_paused = true)]
async fn hundreds_of_hanging_lists_delay_no_watch_that_was_cut() {
    let (gateway, client) = Gateway::start("/services", Duration::ZERO);
    let cluster = Cluster::new(client, Lists::Paged);
    let scope = |namespace: String| Scope { namespace: Some(namespace), ..Scope::default() };
    let _web = cluster.watch::<Service>([scope("web".to_owned())]);
    tokio::time::sleep(Duration::from_secs(2)).await;
    gateway.server.fault(Fault::Delay(Duration::from_secs(25)).on("GET", "/services?limit=100"));
    let _others = cluster.watch::<Service>((0..4 * WATCHES).map(|number| scope(format!("n-{number}"))));
    tokio::time::sleep(Duration::from_secs(2)).await;
    gateway.server.fault(Fault::CutWatches.on("", "/namespaces/web/services"));
    tokio::time::sleep(Duration::from_secs(2)).await;
    let mut log = gateway.server.requests();
    log.retain(|request| request.path.contains("/web/"));
    let is_watch: Vec<_> = log.iter().map(|request| request.query.contains("watch=1")).collect();
    assert_eq!(is_watch, [false, true, false, true], "a list, a watch, a check, the watch again");
}

/// Checks that no interval of this length contains more than a third of the arrivals.
fn assert_spread(arrivals: &[Instant], length: Duration) {
    let together =
        |from: &Instant| arrivals.iter().filter(|at| (*from..*from + length).contains(*at)).count();
    let most = arrivals.iter().map(together).max().unwrap();
    assert!(most <= WATCHES / 3, "{most} of {} within {length:?}", arrivals.len());
}
