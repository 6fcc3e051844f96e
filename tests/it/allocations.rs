//! How often memory is asked for while one event is read: most of what a busy watch costs.

use listwatch::{resource::kinds::Deployment, watch::decode::WatchEvent};

/// As kube-apiserver 1.36.3 sent it of a rolled-out Deployment of ours, managedFields and all.
const EVENT: &[u8] = include_bytes!("data/deployment_event.json");

/// Fewer is better: then write the new number here. More is a question to ask before it is one.
#[test]
fn one_deployment_event_takes_16_allocations() {
    let mut event = None;
    let used = allocation_counter::measure(|| event = Some(WatchEvent::<Deployment>::from_json(EVENT)));
    let Some(Ok(WatchEvent::Modified(decoded))) = event else { panic!("not read: {event:?}") };
    assert_eq!(decoded.metadata().name, "mws-web");
    assert_eq!(used.count_total, 16);
}
