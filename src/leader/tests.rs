use std::{
    io,
    pin::Pin,
    sync::atomic::{AtomicBool, AtomicI64, Ordering},
};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use listwatch_apiserver::ApiServer;
use tokio::task::JoinHandle;

use super::*;
use crate::{
    client::{
        Client, Config,
        in_process::{InProcess, InProcessAnswer},
    },
    testing::TestServer,
    watch::Lists,
};

const CONTROLLER: &str = "example.com/web-operator";
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases/web-operator.example.com";

/// A connection that can be lost: then requests have no answer. It can be slow: then writes arrive later, also if nobody waits for the answer
/// any more. The clock of the process can be ahead.
struct Losable {
    server: Arc<ApiServer>,
    is_lost: AtomicBool,
    is_slow: AtomicBool,
    arrives: Arc<Notify>,
    ahead_secs: AtomicI64,
}

impl InProcess for Losable {
    fn answer(
        &self,
        request: ::http::Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = io::Result<InProcessAnswer>> + Send + '_>> {
        Box::pin(async move {
            if self.is_lost.load(Ordering::Relaxed) {
                std::future::pending::<()>().await;
            }
            let (server, arrives) = (Arc::clone(&self.server), Arc::clone(&self.arrives));
            let is_slow = request.method() == ::http::Method::PATCH && self.is_slow.load(Ordering::Relaxed);
            let answer = tokio::spawn(async move {
                if is_slow {
                    arrives.notified().await;
                }
                server.answer(request.map(Full::new)).await.map_err(io::Error::other)
            });
            let answer = answer.await??;
            Ok(answer.map(|body| body.map_err(Into::into).boxed_unsync()))
        })
    }

    fn now(&self) -> SystemTime {
        let ahead = self.ahead_secs.load(Ordering::Relaxed);
        let by = Duration::from_secs(ahead.unsigned_abs());
        if ahead < 0 { self.server.now() - by } else { self.server.now() + by }
    }
}

/// A process that competes, until it is dropped, or asked to stop.
struct Competitor {
    leadership: Leadership,
    link: Arc<Losable>,
    stop: Arc<Notify>,
    task: JoinHandle<()>,
}

impl Drop for Competitor {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn process(server: &TestServer, name: &str, settings: &LeaderElection) -> Competitor {
    process_of(server, name, settings, "0/1")
}

fn process_of(server: &TestServer, name: &str, settings: &LeaderElection, shard: &str) -> Competitor {
    let link = Arc::new(Losable {
        server: Arc::clone(&server.server),
        is_lost: AtomicBool::new(false),
        is_slow: AtomicBool::new(false),
        arrives: Arc::default(),
        ahead_secs: AtomicI64::new(0),
    });
    let in_process: Arc<dyn InProcess> = Arc::clone(&link) as _;
    let client = Client::new(Config::in_process(in_process, server.server.token()).expect("a config"));
    let cluster = Cluster::new(client.expect("a client"), Lists::Paged);
    let cluster = cluster.of_shard(shard.parse().expect("a shard"));
    let (electors, leadership) = electors(&cluster, settings, CONTROLLER, name);
    let stop = Arc::new(Notify::new());
    let stopped = Arc::clone(&stop);
    let work: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(async move { stopped.notified().await });
    let task = tokio::spawn(electors.into_iter().fold(work, |work, elector| Box::pin(elector.during(work))));
    Competitor { leadership, link, stop, task }
}

/// `a` leads, `b` waits, and some time has passed.
async fn leader_and_standby(settings_of_b: &LeaderElection) -> (TestServer, Competitor, Competitor) {
    let server = TestServer::start(&[]).await;
    let a = process(&server, "a", &LeaderElection::default());
    a.leadership.changes(false).await;
    let b = process(&server, "b", settings_of_b);
    sleep(Duration::from_secs(100)).await;
    assert!(a.leadership.is_held() && !b.leadership.is_held());
    (server, a, b)
}

async fn spec(server: &TestServer) -> serde_json::Value {
    let lease = server.client.send(crate::client::Request::get(LEASE)).await.expect("a Lease");
    serde_json::from_slice::<serde_json::Value>(&lease.body).expect("JSON")["spec"].take()
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_given_back_is_taken_at_once() {
    let (server, a, b) = leader_and_standby(&LeaderElection::default()).await;
    let before = spec(&server).await;
    assert!(before["holderIdentity"].as_str().is_some_and(|holder| holder.starts_with("a_")), "{before}");
    assert_eq!((&before["leaseDurationSeconds"], &before["leaseTransitions"]), (&15.into(), &0.into()));
    let stopped = Instant::now();
    a.stop.notify_one();
    b.leadership.changes(false).await;
    assert!(!a.leadership.is_held());
    assert!(stopped.elapsed() < Duration::from_secs(1), "{:?}", stopped.elapsed());
    let after = spec(&server).await;
    assert!(after["holderIdentity"].as_str().is_some_and(|holder| holder.starts_with("b_")), "{after}");
    assert_eq!(after["leaseTransitions"], 1);
    assert_ne!(before["acquireTime"], after["acquireTime"]);
}

/// All processes are asked to stop at the same time, as by a Deployment without replicas. The standby has just sent that it takes the Lease.
#[tokio::test(start_paused = true)]
async fn a_lease_that_is_being_taken_is_given_back() {
    let (server, mut a, mut b) = leader_and_standby(&LeaderElection::default()).await;
    b.link.is_slow.store(true, Ordering::Relaxed);
    a.stop.notify_one();
    (&mut a.task).await.expect("an end");
    sleep(Duration::from_millis(10)).await;
    b.link.is_slow.store(false, Ordering::Relaxed);
    b.stop.notify_one();
    sleep(Duration::from_millis(10)).await;
    b.link.arrives.notify_waiters();
    (&mut b.task).await.expect("an end");
    sleep(Duration::from_millis(10)).await;
    assert_eq!(spec(&server).await["holderIdentity"], "");
}

/// The other process waits as long as the Lease says, not as long as it would hold it itself.
#[tokio::test(start_paused = true)]
async fn a_lease_that_is_not_renewed_is_taken_when_it_has_ended() {
    let secs = Duration::from_secs;
    let longer =
        LeaderElection { lease_duration: secs(60), renew_deadline: secs(40), ..LeaderElection::default() };
    for settings in [LeaderElection::default(), longer] {
        let (_server, a, b) = leader_and_standby(&settings).await;
        let killed = Instant::now();
        drop(a);
        b.leadership.changes(false).await;
        assert!((13..16).contains(&killed.elapsed().as_secs()), "{:?}", killed.elapsed());
    }
}

/// No process compares the times in the Lease with its own clock.
#[tokio::test(start_paused = true)]
async fn clocks_that_jump_do_not_move_the_lease() {
    let (server, a, b) = leader_and_standby(&LeaderElection::default()).await;
    for ahead_secs in [3600, -3600, 0] {
        let before = spec(&server).await;
        a.link.ahead_secs.store(ahead_secs, Ordering::Relaxed);
        b.link.ahead_secs.store(-ahead_secs, Ordering::Relaxed);
        sleep(Duration::from_secs(100)).await;
        let after = spec(&server).await;
        assert!(before["renewTime"] != after["renewTime"] && a.leadership.is_held(), "{after}");
        assert!(!b.leadership.is_held());
        assert_eq!(before["leaseTransitions"], after["leaseTransitions"]);
    }
    a.link.ahead_secs.store(3600, Ordering::Relaxed);
    sleep(Duration::from_secs(100)).await;
    let killed = Instant::now();
    drop(a);
    b.leadership.changes(false).await;
    assert!((13..16).contains(&killed.elapsed().as_secs()), "{:?}", killed.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_leader_without_a_connection_stops_before_another_one_begins() {
    let (_server, a, b) = leader_and_standby(&LeaderElection::default()).await;
    a.link.is_lost.store(true, Ordering::Relaxed);
    let lost = Instant::now();
    let ended = async {
        a.leadership.changes(true).await;
        lost.elapsed().as_secs_f64()
    };
    let begun = async {
        b.leadership.changes(false).await;
        lost.elapsed().as_secs_f64()
    };
    let (ended, begun) = tokio::join!(ended, begun);
    assert!((8.0..=10.0).contains(&ended) && (13.0..16.0).contains(&begun), "{ended} {begun}");
    // A standby again, which waits for its turn.
    a.link.is_lost.store(false, Ordering::Relaxed);
    sleep(Duration::from_secs(200)).await;
    assert!(!a.leadership.is_held() && b.leadership.is_held());
    b.stop.notify_one();
    a.leadership.changes(false).await;
}

/// Its holder may not know yet that the Lease is gone, and renews it only after a while.
#[tokio::test(start_paused = true)]
async fn a_deleted_lease_stays_with_its_holder() {
    let (server, a, b) = leader_and_standby(&LeaderElection::default()).await;
    let delete =
        crate::client::Request::get(LEASE).sends(::http::Method::DELETE, "application/json", Vec::new());
    server.client.send(delete).await.expect("deleted");
    for _ in 0..100 {
        sleep(Duration::from_millis(100)).await;
        assert!(a.leadership.is_held() && !b.leadership.is_held());
    }
    assert!(spec(&server).await["holderIdentity"].as_str().is_some_and(|holder| holder.starts_with("a_")));
}

/// Nobody led until a restart: the processes waited for the end of the deleted Lease.
#[tokio::test(start_paused = true)]
async fn a_lease_that_nobody_renews_ends_soon_after_it_is_deleted_however_long_it_would_last() {
    let (server, a, b) = leader_and_standby(&LeaderElection::default()).await;
    let patch = br#"{"spec":{"holderIdentity":"somebody","leaseDurationSeconds":2147483647}}"#.to_vec();
    let lease = || crate::client::Request::get(LEASE);
    let patch = lease().sends(::http::Method::PATCH, "application/merge-patch+json", patch);
    server.client.send(patch).await.expect("patched");
    a.leadership.changes(true).await;
    sleep(Duration::from_secs(1000)).await;
    assert!(!a.leadership.is_held() && !b.leadership.is_held());
    let delete = lease().sends(::http::Method::DELETE, "application/json", Vec::new());
    server.client.send(delete).await.expect("deleted");
    let deleted = Instant::now();
    tokio::select! {
        () = a.leadership.changes(false) => {}
        () = b.leadership.changes(false) => {}
    }
    assert!((15..18).contains(&deleted.elapsed().as_secs()), "{:?}", deleted.elapsed());
}

/// The holder took it back, although the other one wrote already.
#[tokio::test(start_paused = true)]
async fn a_lease_that_is_given_away_by_hand_is_left_to_its_new_holder() {
    let (server, a, b) = leader_and_standby(&LeaderElection::default()).await;
    let patch = br#"{"spec":{"holderIdentity":""}}"#.to_vec();
    let patch = crate::client::Request::get(LEASE).sends(
        ::http::Method::PATCH,
        "application/merge-patch+json",
        patch,
    );
    server.client.send(patch).await.expect("patched");
    b.leadership.changes(false).await;
    a.leadership.changes(true).await;
    sleep(Duration::from_secs(100)).await;
    assert!(!a.leadership.is_held() && b.leadership.is_held());
}

#[tokio::test(start_paused = true)]
async fn a_write_of_a_former_leader_is_not_sent() {
    let (server, a, _b) = leader_and_standby(&LeaderElection::default()).await;
    let client = server.client.led_by(a.leadership.clone());
    let write = async |name: &str| {
        let body = format!(r#"{{"metadata":{{"name":"{name}"}}}}"#).into_bytes();
        let post = crate::client::Request::get("/api/v1/namespaces/default/configmaps");
        client.send(post.sends(::http::Method::POST, "application/json", body)).await
    };
    write("before").await.expect("it leads");
    a.stop.notify_one();
    a.leadership.changes(true).await;
    let error = write("after").await.err().map(|error| error.to_string()).unwrap_or_default();
    assert!(error.ends_with("this process does not lead (any more)"), "{error}");
    let read = crate::client::Request::get("/api/v1/namespaces/default/configmaps");
    let list = client.send(read).await.expect("reads need no Lease");
    let list = String::from_utf8_lossy(&list.body).into_owned();
    assert!(list.contains("before") && !list.contains("after"));
}

#[tokio::test(start_paused = true)]
async fn shards_of_one_number_lead_together_and_those_of_another_number_wait() {
    let server = TestServer::start(&[]).await;
    let start = |name: &str, shard: &str| process_of(&server, name, &LeaderElection::default(), shard);
    let (a, b) = (start("a", "0/2"), start("b", "1/2"));
    a.leadership.changes(false).await;
    b.leadership.changes(false).await;
    let others = [start("standby", "0/2"), start("c", "0/3"), start("d", "2/3"), start("whole", "0/1")];
    let leading = || others.each_ref().map(|other| other.leadership.is_held());
    sleep(Duration::from_secs(100)).await;
    assert!(a.leadership.is_held() && b.leadership.is_held() && leading() == [false; 4], "{:?}", leading());
    assert_eq!(spec(&server).await["holderIdentity"], "2-shards");
    // Its own Lease is given back, and the common one is still held.
    a.stop.notify_one();
    others[0].leadership.changes(false).await;
    sleep(Duration::from_secs(100)).await;
    assert!(b.leadership.is_held() && leading() == [true, false, false, false], "{:?}", leading());
    others[0].stop.notify_one();
    drop(b);
    let ended = Instant::now();
    tokio::select! {
        () = others[1].leadership.changes(false) => others[2].leadership.changes(false).await,
        () = others[3].leadership.changes(false) => {}
    }
    assert!((13..16).contains(&ended.elapsed().as_secs()), "{:?}", ended.elapsed());
    sleep(Duration::from_secs(100)).await;
    assert!(matches!(leading(), [false, true, true, false] | [false, false, false, true]), "{:?}", leading());
}

/// The last renewal of the common Lease had the shorter duration.
#[tokio::test(start_paused = true)]
async fn a_shard_with_shorter_times_does_not_end_the_time_of_another_one() {
    let server = TestServer::start(&[]).await;
    let secs = Duration::from_secs;
    let longer =
        LeaderElection { lease_duration: secs(60), renew_deadline: secs(40), ..LeaderElection::default() };
    let a = process_of(&server, "a", &longer, "0/2");
    let b = process_of(&server, "b", &LeaderElection::default(), "1/2");
    a.leadership.changes(false).await;
    b.leadership.changes(false).await;
    let c = process_of(&server, "c", &LeaderElection::default(), "0/3");
    sleep(secs(100)).await;
    assert_eq!(spec(&server).await["leaseDurationSeconds"], 60);
    a.link.is_lost.store(true, Ordering::Relaxed);
    drop(b);
    let lost = Instant::now();
    let ended = async {
        a.leadership.changes(true).await;
        lost.elapsed().as_secs()
    };
    let begun = async {
        c.leadership.changes(false).await;
        lost.elapsed().as_secs()
    };
    let (ended, begun) = tokio::join!(ended, begun);
    assert!((35..=40).contains(&ended) && (55..=61).contains(&begun), "{ended} {begun}");
}

#[test]
fn times_must_leave_a_holder_enough_to_stop_in() {
    let settings = |lease: f64, deadline: f64, retry: f64| {
        let [lease_duration, renew_deadline, retry_period] =
            [lease, deadline, retry].map(Duration::from_secs_f64);
        LeaderElection { lease_duration, renew_deadline, retry_period, ..LeaderElection::default() }.check()
    };
    assert_eq!(settings(15.0, 10.0, 2.0), Ok(()));
    for (lease, deadline, retry, expected) in [
        (10.5, 8.0, 2.0, "whole seconds"),
        (0.0, 8.0, 2.0, "whole seconds"),
        (10.0, 10.0, 2.0, "is not shorter than the lease duration"),
        (15.0, 10.0, 9.0, "is not between zero and the renew deadline"),
        (15.0, 10.0, 0.0, "is not between zero and the renew deadline"),
    ] {
        let problem = settings(lease, deadline, retry).expect_err("invalid");
        assert!(problem.contains(expected), "{problem}");
    }
}
