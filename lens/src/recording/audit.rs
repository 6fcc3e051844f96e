//! An audit log of kube-apiserver: requests, and with the level RequestResponse the objects that they wrote. It has no events.
//!
//! ```text
//! {"kind":"Event","auditID":"3f…","stage":"ResponseComplete","verb":"patch","requestURI":"/apis/…","user":{"username":"system:serviceaccount:a:b"},
//!  "objectRef":{"resource":"pages","apiGroup":"example.com","namespace":"default","name":"a"},"responseStatus":{"code":200},"responseObject":{…},…}
//! ```

use std::{
    collections::{HashMap, HashSet, hash_map::Entry},
    sync::Arc,
};

use serde_json::Value;

use super::{Effect, Event, Recording, Request, Write, client, text, time};

/// Adds what the lines of an audit log say.
pub(super) fn add(recording: &mut Recording, lines: &[Value]) {
    let mut ids = HashMap::new();
    let mut known = HashSet::new();
    let mut writes = Vec::new();
    for line in lines {
        let number = u64::try_from(ids.len()).unwrap_or(u64::MAX) + 1;
        let stage = text(&line["stage"]);
        if !["ResponseStarted", "ResponseComplete"].contains(&&*stage) {
            continue;
        }
        let (is_watch, entry) = (line["verb"] == "watch", ids.entry(text(&line["auditID"])));
        let (is_new, id) = match entry {
            Entry::Occupied(known) => (false, *known.get()),
            Entry::Vacant(new) => (true, *new.insert(number)),
        };
        if stage == "ResponseComplete" && is_watch {
            let Some(time) = time(&line["stageTimestamp"]) else { continue };
            let (event, object) = ("CLOSED".to_owned(), String::new());
            let end = Event {
                watch: id,
                time,
                event,
                object,
                version: 0,
                content: String::new(),
                unique_micros: 0,
                is_new: true,
            };
            recording.events.push(end);
        }
        let Some(mut request) =
            request(line, id).filter(|_| is_new && (is_watch || stage == "ResponseComplete"))
        else {
            continue;
        };
        writes.extend(written(&mut request, &line["responseObject"], &mut known));
        recording.requests.push(request);
    }
    recording.writes.extend(with_changes(writes));
}

fn request(line: &Value, id: u64) -> Option<Request> {
    let (about, user) = (&line["objectRef"], &line["impersonatedUser"]["username"]);
    let user = text(if user.is_null() { &line["user"]["username"] } else { user });
    let (plural, group) = (text(&about["resource"]), text(&about["apiGroup"]));
    let method = match line["verb"].as_str()? {
        "create" => "POST",
        "update" => "PUT",
        "patch" => "PATCH",
        "delete" | "deletecollection" => "DELETE",
        _ => "GET",
    };
    Some(Request {
        id,
        connection: 0,
        received: time(&line["requestReceivedTimestamp"])?,
        answered: time(&line["stageTimestamp"])?,
        client: client(&user, &text(&line["userAgent"])),
        user,
        method: method.to_owned(),
        target: text(&line["requestURI"]),
        resource: if group.is_empty() { plural } else { format!("{plural}.{group}") },
        namespace: text(&about["namespace"]),
        name: text(&about["name"]),
        subresource: text(&about["subresource"]),
        status: line["responseStatus"]["code"].as_u64().and_then(|code| u16::try_from(code).ok())?,
        version: 0,
        list_version: 0,
        woken_by: Vec::new(),
        effect: Effect::Unknown,
        content: String::new(),
        is_new: true,
    })
}

/// What a request wrote, if its answer is an object with a version that is not `known` yet.
pub(super) fn written(
    request: &mut Request,
    answer: &Value,
    known: &mut HashSet<(String, u64)>,
) -> Option<Write> {
    let written = request.written(answer)?;
    if known.insert((request.object(), written)) {
        return Some(Write::of(request, answer.clone()));
    }
    request.effect = Effect::Nothing;
    None
}

/// The writes with the fields that changed since the write before.
pub(super) fn with_changes(mut writes: Vec<Write>) -> Vec<Write> {
    writes.sort_by_key(|write| write.version);
    let mut before: HashMap<String, Arc<Value>> = HashMap::new();
    for write in &mut writes {
        if let Some(before) = before.insert(write.object.clone(), Arc::clone(&write.value)) {
            write.event = "MODIFIED".to_owned();
            write.compare(&before);
        }
    }
    writes
}
