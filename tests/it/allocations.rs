//! Counts the allocations while one watch event is decoded. They are most of the cost of a busy watch.

use listwatch::{resource::kinds::Deployment, watch::decode::WatchEvent};

/// The event of a rolled-out Deployment of ours, as kube-apiserver 1.36.3 sent it, including managedFields.
const EVENT: &[u8] = include_bytes!("data/deployment_event.json");

/// If there are fewer, write the new number here. If there are more, find out why first.
#[test]
fn one_deployment_event_takes_17_allocations() {
    let mut event = None;
    let used = allocation_counter::measure(|| event = Some(WatchEvent::<Deployment>::from_json(EVENT)));
    let Some(Ok(WatchEvent::Modified(decoded))) = event else { panic!("not read: {event:?}") };
    assert_eq!(decoded.metadata().name, "mws-web");
    assert_eq!(used.count_total, 17);
}
