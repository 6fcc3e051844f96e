//! Counts the connections of the operator while it is idle.

use std::{collections::HashSet, fs, time::Duration};

use serde_json::json;

use crate::fixture::{Fixture, Kind, on};

/// Longer than an idle connection stays in the pool of reqwest by default, 90 s.
const IDLE: Duration = Duration::from_secs(100);
/// So many times, five minutes.
const TIMES: i32 = 3;

/// The connections of the operator that are established.
fn established(fixture: &Fixture) -> usize {
    let process = format!("/proc/{}", fixture.operator().id());
    let files = fs::read_dir(format!("{process}/fd")).unwrap();
    let targets = files.filter_map(|file| fs::read_link(file.unwrap().path()).ok());
    let sockets: HashSet<String> = targets.map(|target| target.to_string_lossy().into_owned()).collect();
    let table = fs::read_to_string(format!("{process}/net/tcp")).unwrap();
    let is_ours = |line: &&str| {
        // State 01 is ESTABLISHED; the tenth column is the inode. See proc_net_tcp.txt of the kernel.
        let columns: Vec<_> = line.split_whitespace().collect();
        columns[3] == "01" && sockets.contains(&format!("socket:[{}]", columns[9]))
    };
    table.lines().skip(1).filter(is_ours).count()
}

/// After 90 s without a request, the pool forgot a connection that PING kept open, and the next request opened another one.
/// With a paused clock: `watches_and_calls_use_one_connection_each_for_hours`.
#[tokio::test]
async fn in_five_idle_minutes_with_some_changes_there_are_two_connections() {
    on(&[Kind::Real], async |fixture| {
        fixture.start_operator(&[]).await;
        fixture.create_web("web", json!({"image": "nginx"})).await;
        fixture.settle().await;
        assert_eq!(established(fixture), 2);
        for replicas in 2..2 + TIMES {
            tokio::time::sleep(IDLE).await;
            fixture.patch("mywebservers/web", json!({"spec": {"replicas": replicas}})).await;
            fixture
                .until("deployments/mws-web", |deployment| deployment["spec"]["replicas"] == replicas)
                .await;
            assert_eq!(established(fixture), 2, "at {replicas} replicas");
        }
    })
    .await;
}
