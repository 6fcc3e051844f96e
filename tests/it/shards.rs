//! Tests shards: several operators share the objects, and each object has one writer, also while the number of shards changes.

use std::collections::{BTreeMap, BTreeSet};

use listwatch::shard::Shard;
use listwatch_control_plane::{eventually, saw};
use serde_json::{Value, json};

use crate::{
    fixture::{Fixture, Kind, on},
    leader::{Instances, LONGER, Write},
};

/// How many webs are created at a time.
const WEBS: usize = 12;
const LEASE: &str = "mywebserver-operator.k8sobjects.gsa.com";

/// Starts operators: each has a name and a shard.
async fn start(instances: &Instances<'_>, all: &[(&'static str, &str)]) {
    for (name, shard) in all {
        instances.start(name, &[&LONGER[..], &["--shard", shard]].concat()).await;
    }
}

/// The Lease of a shard.
fn own(shard: &str) -> String {
    match shard.split_once('/') {
        Some((_, "1")) | None => LEASE.to_owned(),
        Some((index, count)) => format!("{LEASE}-{index}-of-{count}"),
    }
}

/// Waits until another operator than this one holds the Lease of a shard, and returns its name.
async fn until_led(fixture: &Fixture, shard: &str, not: &str) -> String {
    let lease = format!("leases/{}", own(shard));
    eventually(&format!("a holder of {lease}"), async || {
        let lease = fixture.find(&lease).await?;
        saw("the Lease", &lease["spec"]);
        let (holder, _) = lease["spec"]["holderIdentity"].as_str()?.split_once('_')?;
        (holder != not).then(|| holder.to_owned())
    })
    .await
}

async fn create_webs(instances: &Instances<'_>, prefix: &str) {
    for number in 0..WEBS {
        instances.fixture.create_web(&format!("{prefix}-{number}"), json!({"image": "nginx"})).await;
    }
}

async fn until_reconciled(instances: &Instances<'_>, prefix: &str) {
    for number in 0..WEBS {
        instances.until_reconciled(&format!("{prefix}-{number}")).await;
    }
}

/// The resource and the name of the object that was written.
fn object(write: &Write) -> (&str, &str) {
    let mut segments = write.path.rsplit('/').peekable();
    segments.next_if_eq(&"status");
    let name = segments.next().unwrap();
    (segments.next().unwrap(), name)
}

/// Checks that each object was written only by operators of one shard for each number of shards, and returns the writes that came from
/// another operator than the last one that had written the Lease of its shard, or while operators of another number of shards held the
/// common Lease. `all`: the operators with their shards.
async fn late(instances: &Instances<'_>, all: &[(&'static str, &str)]) -> Vec<Write> {
    let shards: BTreeMap<&str, &str> = all.iter().copied().collect();
    let count = |name: &str| shards[name].rsplit('/').next().unwrap().to_owned();
    let (mut holders, mut late, mut writers) = (BTreeMap::new(), Vec::new(), BTreeSet::new());
    for write in instances.logged() {
        let (resource, name) = object(&write);
        if resource == "leases" {
            holders.insert(name.to_owned(), write.by);
            continue;
        }
        let is_of_number = holders.get(LEASE).is_some_and(|by| count(by) == count(write.by));
        if !is_of_number || holders.get(&own(shards[write.by])) != Some(&write.by) {
            late.push(write.clone());
        }
        if resource != "events" {
            writers.insert((name.strip_prefix("mws-").unwrap_or(name).to_owned(), write.by));
        }
    }
    for (name, by) in &writers {
        let web = instances.fixture.get(&format!("mywebservers/{name}")).await;
        let shard: Shard = shards[by].parse().unwrap();
        assert!(
            shard.has(&web["metadata"]["uid"].as_str().unwrap().into()),
            "{by} of shard {shard} wrote {name}"
        );
    }
    late
}

#[tokio::test]
async fn two_shards_share_the_objects_also_when_their_leaders_are_frozen_and_killed() {
    on(&[Kind::Embedded, Kind::Real], async |fixture| {
        let instances = Instances::new(fixture);
        let all = [("a", "0/2"), ("b", "1/2"), ("c", "0/2"), ("d", "1/2")];
        start(&instances, &all).await;
        create_webs(&instances, "first").await;
        until_reconciled(&instances, "first").await;
        for (signal, shard) in [("STOP", "0/2"), ("KILL", "1/2")] {
            let leader = until_led(fixture, shard, "").await;
            let operator = instances.operator(&leader);
            let prefix = signal.to_lowercase();
            // Something to do when it is frozen, and when it wakes up.
            create_webs(&instances, &prefix).await;
            operator.signal(signal);
            until_led(fixture, shard, &leader).await;
            until_reconciled(&instances, &prefix).await;
            if signal == "STOP" {
                operator.signal("CONT");
                operator.until_logged(&["leads no longer"]).await;
                operator.until_ready().await;
            }
        }
        // What a process was just sending when it was frozen, it sends when it wakes up.
        let late = late(&instances, &all).await;
        assert!(late.len() <= 3, "writes of another than the leader: {late:?}");
    })
    .await;
}

#[tokio::test]
async fn another_number_of_shards_begins_when_the_last_one_has_ended() {
    on(&[Kind::Embedded, Kind::Real], async |fixture| {
        let instances = Instances::new(fixture);
        let all = [("whole", "0/1"), ("a", "0/2"), ("b", "1/2"), ("c", "0/3"), ("d", "1/3"), ("e", "2/3")];
        start(&instances, &all[..1]).await;
        create_webs(&instances, "first").await;
        until_reconciled(&instances, "first").await;
        start(&instances, &all[1..3]).await;
        for name in ["a", "b"] {
            instances
                .operator(name)
                .until_logged(&["waits: another process holds the Lease", "\"whole_"])
                .await;
            instances.operator(name).until_ready().await;
        }
        create_webs(&instances, "second").await;
        instances.operator("whole").signal("TERM");
        until_reconciled(&instances, "second").await;

        start(&instances, &all[3..]).await;
        for name in ["c", "d", "e"] {
            instances
                .operator(name)
                .until_logged(&["waits: another process holds the Lease", "\"2-shards\""])
                .await;
        }
        // One of the two still leads.
        instances.operator("b").signal("KILL");
        instances.operator("a").signal("STOP");
        create_webs(&instances, "third").await;
        until_reconciled(&instances, "third").await;
        instances.operator("a").signal("CONT");
        instances.operator("a").until_logged(&["leads no longer"]).await;
        instances
            .operator("a")
            .until_logged(&["waits: another process holds the Lease", "\"3-shards\""])
            .await;
        create_webs(&instances, "fourth").await;
        until_reconciled(&instances, "fourth").await;
        let late = late(&instances, &all).await;
        assert!(late.len() <= 3, "writes of another than the leader: {late:?}");
    })
    .await;
}

/// The owner and its namesake may be in different shards.
#[tokio::test]
async fn an_object_that_is_deleted_and_created_again_gets_new_children() {
    on(&[Kind::Embedded, Kind::Real], async |fixture| {
        let instances = Instances::new(fixture);
        start(&instances, &[("a", "0/2"), ("b", "1/2")]).await;
        for _ in 0..8 {
            fixture.create_web("web", json!({"image": "nginx"})).await;
            let uid = fixture.get("mywebservers/web").await["metadata"]["uid"].clone();
            let is_ours = |child: &Value| child["metadata"]["ownerReferences"][0]["uid"] == uid;
            fixture.until("deployments/mws-web", is_ours).await;
            fixture.until("services/mws-web", is_ours).await;
            fixture.delete("mywebservers/web").await;
        }
    })
    .await;
}
