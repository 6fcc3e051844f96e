//! What the page shows, as JSON: each request, event and write of a recording, and its report. The answers and the objects of events
//! are in it only if it comes from `--record`, which leaves out secrets.
//!
//! ```text
//! {"start":"2026-01-02T03:04:05.678901Z","forgotten":0,"entries":[
//!   {"n":30,"t":0.277,"kind":"request","id":10,"connection":2,"client":"operator-1 (pages)","verb":"patch","resource":"pages.example.com","object":"pages.example.com/default/a",
//!    "subresource":"status","target":"/apis/…","status":200,"took":0.004,"version":"69","changed":[{"path":".status.checks","manager":"pages"}]},
//!   {"n":5367970734678917,"t":0.283,"kind":"event","watch":6,"event":"MODIFIED","object":"pages.example.com/default/a","version":"69"},
//!   {"n":211,"t":0.29,"kind":"write","event":"MODIFIED","object":"deployments.apps/default/a","version":"70","changed":[…]}],
//!  "report":{…}}
//! ```

use std::{collections::HashMap, time::SystemTime};

use serde_json::{Value, json};

use super::{
    recording::{Effect, Event, Forgotten, Recording, Request, Write, between},
    report::Report,
};

/// The document of the page, of a recording that is read at once. Times are in seconds since `start`, such as [`Recording::start`].
#[must_use]
pub fn document(recording: &Recording, report: &Report, start: SystemTime) -> Value {
    let Forgotten { requests, events, writes, .. } = recording.forgotten;
    json!({"start": humantime::format_rfc3339_micros(start).to_string(), "forgotten": requests + events + writes,
        "entries": entries(recording, start), "report": report.json()})
}

/// The requests, the events, and the writes that are not those of a request, by time, as far as they are new: all of a recording that is read at once.
/// The `n` of each is the same in every recording of a run. That of a watch which has ended replaces the one before.
pub(crate) fn entries(recording: &Recording, start: SystemTime) -> Vec<Value> {
    let ends = recording.events.iter().filter(|event| event.ends_watch());
    let ends: HashMap<u64, SystemTime> = ends.map(|end| (end.watch, end.time)).collect();
    let mut entries = Vec::new();
    for request in recording.requests.iter().filter(|request| request.is_new) {
        let write = match request.effect {
            Effect::Changed(at) => Some(&recording.writes[at]),
            Effect::Nothing | Effect::Unknown => None,
        };
        let end = if request.is_watch() && request.status == 200 {
            ends.get(&request.id).copied()
        } else {
            Some(request.answered)
        };
        entries.push((request.received, of_request(request, write, end)));
    }
    let events = recording.events.iter().filter(|event| event.is_new);
    entries.extend(events.map(|event| (event.time, of_event(event))));
    let first_id = recording.first_id();
    for (at, write) in recording.writes.iter().enumerate().filter(|(_, write)| write.is_new) {
        let is_of_request = match recording.request(write.request) {
            Some(request) => request.effect == Effect::Changed(at),
            // It is not answered yet.
            None => write.request >= first_id,
        };
        if !is_of_request {
            entries.push((write.time, of_write(write)));
        }
    }
    entries.sort_by_key(|(time, _)| *time);
    let with_time = entries.into_iter().map(|(time, mut entry)| {
        entry["t"] = seconds(start, time).into();
        entry
    });
    with_time.collect()
}

/// An open watch has no `end`.
fn of_request(request: &Request, write: Option<&Write>, end: Option<SystemTime>) -> Value {
    // The name of a create with `generateName` is in the answer.
    let object = write.map_or_else(|| request.object(), |write| write.object.clone());
    let version = write.map_or(request.list_version, |write| write.version);
    let mut entry = json!({"n": request.number(), "kind": "request", "id": request.id, "client": request.client, "verb": request.verb(),
        "resource": request.resource, "object": object, "subresource": request.subresource, "target": request.target,
        "status": request.status, "took": end.map(|end| between(request.received, end).as_secs_f64()),
        "version": (version > 0).then(|| version.to_string()), "changed": write.map(changed)});
    if request.connection > 0 {
        entry["connection"] = request.connection.into();
    }
    if !request.content.is_empty() {
        entry["content"] = (&*request.content).into();
    }
    entry
}

fn of_event(event: &Event) -> Value {
    let mut entry = json!({"n": event.number(), "kind": "event", "watch": event.watch, "event": event.event,
        "object": event.object, "version": event.version.to_string()});
    if !event.meaning().is_empty() {
        entry["meaning"] = event.meaning().into();
    }
    if !event.content.is_empty() {
        entry["content"] = (&*event.content).into();
    }
    entry
}

fn of_write(write: &Write) -> Value {
    json!({"n": write.number(), "kind": "write", "client": write.client, "event": write.event, "object": write.object,
        "version": write.version.to_string(), "changed": changed(write)})
}

fn changed(write: &Write) -> Vec<Value> {
    let managers = write.managers.iter().map(|name| Some(name).filter(|name| !name.is_empty()));
    let managers = managers.chain(std::iter::repeat(None));
    write
        .changed
        .iter()
        .zip(managers)
        .map(|(path, manager)| json!({"path": path, "manager": manager}))
        .collect()
}

/// Negative before `start`.
fn seconds(start: SystemTime, time: SystemTime) -> f64 {
    time.duration_since(start)
        .map_or_else(|early| -early.duration().as_secs_f64(), |after| after.as_secs_f64())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap names its line")]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn an_entry_keeps_its_number_when_the_record_forgets_and_when_it_grows() {
        let request = |id: u64, second: u64| {
            format!(
                "{{\"id\":{id},\"received\":\"2026-01-02T03:04:0{second}Z\",\"time\":\"2026-01-02T03:04:0{second}.5Z\",\"method\":\"GET\",\"target\":\"/version\",\"status\":200}}\n"
            )
        };
        let event = |watch: u64, second: u64| {
            format!(
                "{{\"watch\":{watch},\"time\":\"2026-01-02T03:04:0{second}Z\",\"event\":\"ADDED\",\"object\":\"default/a\",\"resourceVersion\":\"7\"}}\n"
            )
        };
        let of = |text: String| {
            let recording = Recording::read(&[(String::new(), text)]).unwrap();
            let start = humantime::parse_rfc3339("2026-01-02T03:04:00Z").unwrap();
            entries(&recording, start)
        };
        let before = of(request(1, 1) + &request(2, 3) + &event(2, 4) + &event(2, 4));
        let after = of(request(2, 3) + &event(2, 4) + &event(2, 4) + &request(3, 2) + &event(2, 5));
        let numbers: HashSet<u64> = before.iter().map(|entry| entry["n"].as_u64().unwrap()).collect();
        assert_eq!(numbers.len(), 4);
        assert_eq!(
            before.iter().map(|entry| entry["t"].as_f64().unwrap()).collect::<Vec<_>>(),
            [1.0, 3.0, 4.0, 4.0]
        );
        for entry in &before[1..] {
            assert!(after.contains(entry), "{entry} is not in {after:?}");
        }
    }
}
