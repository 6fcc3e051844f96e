//! A recording of `listwatch watch --record`, and of the other commands with this flag: what one client sent and received. Of the writes of other
//! clients, it has the events alone.
//!
//! ```text
//! {"listwatchRecording":1,"server":"https://127.0.0.1:6443"}
//! {"time":0.001,"exchange":1,"request":{"method":"GET","path":"/api/v1/pods?watch=1&resourceVersion=1207"}}
//! {"time":0.012,"exchange":1,"head":{"status":200,…}}
//! {"time":4.512,"exchange":1,"line":{"type":"MODIFIED","object":{…}}}
//! {"time":9.002,"exchange":1,"end":"clean"}
//! ```

use std::{
    collections::{HashMap, HashSet},
    time::{Duration, SystemTime},
};

use listwatch_study::{
    place::Place,
    record::{AnswerEnd, Entry, Line, Sent, What},
};
use serde_json::Value;

use super::{Effect, Event, Recording, Request, audit, object, text, version};

/// Most characters of an answer, or of the object of an event, that are kept.
const CONTENT_MAX: usize = 2_000;

/// The client of a recording that does not name it.
const CLIENT: &str = "listwatch";

/// Adds the exchanges of a recording. Its times are those since its start, whose date it does not have. A request without an answer is left out.
pub(super) fn add(recording: &mut Recording, entries: Vec<Entry>) {
    recording.started = Some(SystemTime::UNIX_EPOCH);
    let (mut sent, mut answered) = (HashMap::new(), HashMap::new());
    let (mut known, mut writes) = (HashSet::new(), Vec::new());
    for Entry { time, exchange, what } in entries {
        let time = SystemTime::UNIX_EPOCH + Duration::try_from_secs_f64(time).unwrap_or_default();
        if let What::Request(request) = what {
            sent.insert(exchange, (time, request));
            continue;
        }
        if let What::Head(head) = &what {
            let Some(sent) = sent.remove(&exchange) else { continue };
            answered.insert(exchange, recording.requests.len());
            let id = recording.requests.len() as u64 + 1;
            recording.requests.push(request(id, sent, time, head.status));
            continue;
        }
        let Some(request) = answered.get(&exchange).map(|at| &mut recording.requests[*at]) else { continue };
        if let What::Rest(body) = &what {
            request.content = cut(&body.text());
        }
        match what {
            What::Line(line) => recording.events.extend(event(request.id, time, &line)),
            What::End(end) if request.is_watch() && request.status == 200 => {
                let event = if end == AnswerEnd::Clean { "END" } else { "CLOSED" };
                recording.events.push(new_event(request.id, time, event));
            }
            What::Rest(body) if request.writes() => {
                let answer = serde_json::from_str(&body.text()).unwrap_or_default();
                writes.extend(audit::written(request, &answer, &mut known));
            }
            What::Rest(body) if request.is_list() && request.status == 200 => {
                let list: Value = serde_json::from_str(&body.text()).unwrap_or_default();
                request.list_version = version(&list["metadata"]["resourceVersion"]);
            }
            // An object that was read, or half a line of a watch.
            What::Request(_) | What::Head(_) | What::Rest(_) | What::End(_) => {}
        }
    }
    recording.writes.extend(audit::with_changes(writes));
}

fn request(id: u64, (received, sent): (SystemTime, Sent), answered: SystemTime, status: u16) -> Request {
    let path = sent.path.split('?').next().unwrap_or_default();
    let place = Place::of(path).unwrap_or_default();
    let group = place.resource.get(1).filter(|_| place.resource.len() == 4);
    let [namespace, name, subresource] =
        [place.namespace, place.name, place.subresource].map(|part| part.unwrap_or_default().to_owned());
    let user = if sent.user.is_empty() { CLIENT.to_owned() } else { sent.user };
    Request {
        id,
        connection: 0,
        received,
        answered,
        client: user.clone(),
        user,
        method: sent.method,
        resource: group
            .map_or_else(|| place.plural().to_owned(), |group| format!("{}.{group}", place.plural())),
        namespace,
        name,
        subresource,
        target: sent.path.clone(),
        status,
        version: 0,
        list_version: 0,
        woken_by: Vec::new(),
        effect: Effect::Unknown,
        content: String::new(),
        is_new: true,
    }
}

/// `None`: the line is not an event.
fn event(watch: u64, time: SystemTime, line: &Line) -> Option<Event> {
    let line: Value = serde_json::from_str(&line.text()).ok()?;
    let metadata = &line["object"]["metadata"];
    Some(Event {
        object: object("", &text(&metadata["namespace"]), &text(&metadata["name"])),
        version: version(&metadata["resourceVersion"]),
        content: cut(&line["object"].to_string()),
        ..new_event(watch, time, line["type"].as_str()?)
    })
}

fn new_event(watch: u64, time: SystemTime, event: &str) -> Event {
    let event = event.to_owned();
    let (object, content) = (String::new(), String::new());
    Event { watch, time, event, object, version: 0, content, unique_micros: 0, is_new: true }
}

/// The recording is without secrets, so the page may show what is in it.
fn cut(text: &str) -> String {
    match text.char_indices().nth(CONTENT_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
