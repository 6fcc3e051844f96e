//! Why a client wrote: which of the events that it, or without a watch of its own its user, had been sent since the cause of its last write to the object can be the cause. An event that
//! came after that cause, and before that write, may be news: the client had already read its cache.
//!
//! Likelier are events of the writes of others, then those of the server's controllers, then echoes of its own writes, and last echoes of a
//! status, which most clients ignore; of these, events of the object itself and of its owner, then of its children and siblings; of these, the
//! latest. Events of objects that no ownerReference connects with it count only if there are no others.

use std::{
    cmp::Reverse,
    collections::{BTreeSet, HashMap},
    time::{Duration, SystemTime},
};

use serde_json::Value;

use super::recording::{Effect, Event, Recording, Request, Write, between, is_component};

/// Most events before a write that are looked at.
const EVENTS_MAX: usize = 1000;

/// Most causes of a write that are kept.
const CAUSES_MAX: usize = 20;

/// A request that writes, and its likely causes.
#[derive(Clone, Debug)]
pub(crate) struct Why<'a> {
    pub(crate) request: &'a Request,
    /// `None`: it changed nothing, was refused, or the change is unknown.
    pub(crate) write: Option<&'a Write>,
    pub(crate) object: String,
    /// The likeliest first.
    pub(crate) causes: Vec<Cause<'a>>,
    /// Whether the client names its causes, so that they are certain.
    pub(crate) is_named: bool,
    /// The named causes that are no events of its watches: `a retry after a failure`.
    pub(crate) others: Vec<String>,
    /// How many events the client was sent since then.
    pub(crate) events: usize,
    pub(crate) since: Since,
    /// Whether the last request that writes to the object was refused.
    pub(crate) is_retry: bool,
    /// Whether the client watches anything, or another one of its user.
    pub(crate) has_watch: bool,
}

/// From when on an event is new to a client that writes to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Since {
    /// It has not written to the object before.
    Start,
    /// Its last request that writes to the object, which no event has caused.
    Write,
    /// The cause of that request.
    Cause,
}

/// An event that can be the cause of a write.
#[derive(Clone, Debug)]
pub(crate) struct Cause<'a> {
    pub(crate) event: &'a Event,
    pub(crate) source: Source,
    /// The request of the client that the event shows.
    pub(crate) own: Option<&'a Request>,
    pub(crate) relation: Relation,
    /// From the event to the request.
    pub(crate) took: Duration,
}

/// Who wrote what an event shows. The likelier a cause, the smaller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Source {
    /// Another client, or a write before the recording.
    Other,
    /// A controller of the server.
    Controller,
    /// The client itself.
    Itself,
}

/// What the object of an event is to the object that is written. The likelier a cause, the smaller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Relation {
    Same,
    Owner,
    Child,
    /// Both have the same owner.
    Sibling,
    Unrelated,
}

/// The uid of an object, and those of its owners.
#[derive(Clone, Debug, Default)]
struct Family {
    uid: String,
    owners: BTreeSet<String>,
}

/// The writes of each client, in the order in which they came, and why.
pub(crate) fn writes<'a>(recording: &'a Recording, client: &str) -> Vec<Why<'a>> {
    let read = recording.states.iter().map(|(object, value)| (&**object, value));
    let written = recording.writes.iter().map(|write| (&*write.object, &write.value));
    let families: HashMap<&str, Family> =
        read.chain(written).map(|(object, value)| (object, family(value))).collect();
    let requests = || recording.requests.iter();
    let user = requests().find(|request| request.client == client).map(|request| &request.user);
    let has_own_watch = requests().any(|request| request.client == client && request.is_watch());
    // Some operators watch with one library, and write with another one.
    let watches = |request: &Request| {
        let is_own = if has_own_watch { request.client == client } else { Some(&request.user) == user };
        is_own && request.is_watch()
    };
    let is_own = |event: &&Event| recording.request(event.watch).is_some_and(watches);
    let is_change = |event: &&Event| ["ADDED", "MODIFIED", "DELETED"].contains(&&*event.event);
    let events: Vec<&Event> = recording.events.iter().filter(is_change).filter(is_own).collect();
    let has_watch = requests().any(watches);
    let seen = if requests().any(|request| !request.woken_by.is_empty()) { &*events } else { &[] };
    let seen: HashMap<(&str, u64), &Event> =
        // Of two watches, the first to show it.
        seen.iter().rev().map(|event| ((&*event.object, event.version), *event)).collect();
    // The last request for each object, and from when on an event is new after it.
    let mut last: HashMap<String, (&Request, Since, SystemTime)> = HashMap::new();
    let mut writes = Vec::new();
    for request in requests().filter(|one| one.client == client && one.writes()) {
        let write = match request.effect {
            Effect::Changed(at) => Some(&recording.writes[at]),
            Effect::Nothing | Effect::Unknown => None,
        };
        // The name of a create with `generateName` is in the answer.
        let object = write.map_or_else(|| request.object(), |write| write.object.clone());
        let before = last.get(&object).copied();
        let is_retry = before.is_some_and(|(before, ..)| before.status >= 400);
        let (since, begin) =
            before.map_or((Since::Start, SystemTime::UNIX_EPOCH), |(_, since, begin)| (since, begin));
        let (from, to) = (
            events.partition_point(|event| event.time <= begin),
            events.partition_point(|event| event.time <= request.received),
        );
        let window = &events[from.max(to.saturating_sub(EVENTS_MAX)).min(to)..to];
        // An event of the same moment may be one of this write.
        let earlier =
            window.iter().copied().filter(|event| write.is_none_or(|write| event.version < write.version));
        let mut others = Vec::new();
        let named = request.woken_by.iter().filter_map(|name| {
            let event = name.rsplit_once('@').and_then(|(object, version)| match version {
                "deleted" => {
                    window.iter().rfind(|event| event.event == "DELETED" && event.object == object).copied()
                }
                version => seen.get(&(object, version.parse().ok()?)).copied(),
            });
            if event.is_none() {
                others.push(in_words(name));
            }
            event
        });
        let named: Vec<&Event> = named.collect();
        let is_named = !request.woken_by.is_empty();
        let cause = |event: &'a Event| {
            let own = own_request(recording, event, client);
            // The client had the answer to its own write before the event.
            let known = own.map_or(event.time, |own| own.answered.min(event.time));
            Cause {
                event,
                source: source(recording, event, client),
                own,
                relation: relation(&families, &object, &event.object),
                took: between(if is_named { known } else { event.time }, request.received),
            }
        };
        let causes = match is_named {
            true => sorted(named.into_iter().map(cause).collect()),
            false => ranked(earlier.map(cause).collect()),
        };
        let cause = causes.first().filter(|cause| cause.relation != Relation::Unrelated);
        // An inferred event has the time of its write.
        let next = match cause {
            Some(cause) => (request, Since::Cause, cause.event.time),
            None => (request, Since::Write, request.received - Duration::from_nanos(1)),
        };
        last.insert(object.clone(), next);
        let events = window.len();
        writes.push(Why {
            request,
            write,
            object,
            causes,
            is_named,
            others,
            events,
            since,
            is_retry,
            has_watch,
        });
    }
    writes
}

impl Why<'_> {
    /// Whether a cause is a write of the client that is not like this one: then one event may have caused both. Alike ones are rather a loop.
    pub(crate) fn can_share_cause_with(&self, cause: &Cause<'_>) -> bool {
        let is_alike = |own: &Request| {
            (own.verb(), &own.subresource) == (self.request.verb(), &self.request.subresource)
                && cause.event.object == self.object
        };
        cause.own.is_some_and(|own| !is_alike(own))
    }
}

impl Cause<'_> {
    /// `MODIFIED of configmaps/default/a, its child, by user (curl/8)`
    pub(crate) fn words(&self, recording: &Recording) -> String {
        let relation = match self.relation {
            Relation::Same | Relation::Unrelated => "",
            Relation::Owner => ", its owner",
            Relation::Child => ", its child",
            Relation::Sibling => ", of the same owner",
        };
        let by = match (self.source, recording.write_of(self.event)) {
            (Source::Itself, _) => ", by the client itself".to_owned(),
            (Source::Controller, _) => ", by a controller of the server".to_owned(),
            (Source::Other, Some(write)) => format!(", by {}", write.client),
            (Source::Other, None) => String::new(),
        };
        format!("{} of {}{relation}{by}", self.event.event, self.event.object)
    }
}

/// A named cause that is no event of a watch.
fn in_words(name: &str) -> String {
    match (name, name.rsplit_once('@')) {
        ("retry", _) => "a retry after a failure".to_owned(),
        ("timer", _) => "a timer".to_owned(),
        ("start", _) => "the start of the controller, of its leadership or of a watch".to_owned(),
        (_, Some((object, "deleted"))) => format!("the deletion of {object}"),
        (_, Some((object, version))) => format!("version {version} of {object}, from a list or an answer"),
        ("call", _) => "a call in the client".to_owned(),
        (other, None) => other.to_owned(),
    }
}

fn ranked(causes: Vec<Cause<'_>>) -> Vec<Cause<'_>> {
    let mut causes = sorted(causes);
    if causes.first().is_some_and(|first| first.relation != Relation::Unrelated) {
        causes.retain(|cause| cause.relation != Relation::Unrelated);
    }
    causes.truncate(CAUSES_MAX);
    causes
}

/// The likeliest first.
fn sorted(mut causes: Vec<Cause<'_>>) -> Vec<Cause<'_>> {
    causes.sort_by_key(|cause| {
        let is_unrelated = cause.relation == Relation::Unrelated;
        let is_own_status = cause.own.is_some_and(|own| own.subresource == "status");
        let is_distant = cause.relation > Relation::Owner;
        (is_unrelated, cause.source, is_own_status, is_distant, Reverse(cause.event.time))
    });
    causes
}

fn source(recording: &Recording, event: &Event, client: &str) -> Source {
    let Some(write) = recording.write_of(event) else { return Source::Other };
    match recording.request(write.request) {
        None if write.client.is_empty() => Source::Controller,
        None => Source::Other,
        Some(request) if request.client == client => Source::Itself,
        Some(request) if is_component(&request.user) => Source::Controller,
        Some(_) => Source::Other,
    }
}

fn own_request<'a>(recording: &'a Recording, event: &Event, client: &str) -> Option<&'a Request> {
    let request = recording.request(recording.write_of(event)?.request)?;
    (request.client == client).then_some(request)
}

fn family(object: &Value) -> Family {
    let metadata = &object["metadata"];
    let owners = metadata["ownerReferences"].as_array().into_iter().flatten();
    let owners = owners.filter_map(|owner| owner["uid"].as_str()).map(str::to_owned).collect();
    Family { uid: metadata["uid"].as_str().unwrap_or_default().to_owned(), owners }
}

fn relation(families: &HashMap<&str, Family>, written: &str, seen: &str) -> Relation {
    if written == seen {
        return Relation::Same;
    }
    let (Some(written), Some(seen)) = (families.get(written), families.get(seen)) else {
        return Relation::Unrelated;
    };
    if written.owners.contains(&seen.uid) {
        return Relation::Owner;
    }
    if seen.owners.contains(&written.uid) {
        return Relation::Child;
    }
    if written.owners.intersection(&seen.owners).next().is_some() {
        Relation::Sibling
    } else {
        Relation::Unrelated
    }
}
