//! What happened: the requests of all clients, the writes that changed objects, and the events that watches sent.
//!
//! It is read from lines of JSON, as the records of the embedded API server have them, from an [audit] log of kube-apiserver, or from the
//! recorded [exchanges] of one client; or it is made by the [recorder] of a proxy:
//!
//! ```text
//! {"id":7,"method":"PATCH","target":"/api/v1/namespaces/default/configmaps/a","status":200,"user":"operator-1",…}
//! {"type":"MODIFIED","resource":"configmaps","object":{…},"changed":[".data.text"],"request":7,…}
//! {"watch":3,"event":"MODIFIED","object":"default/a","resourceVersion":"41",…}
//! ```

mod audit;
mod exchanges;
mod objects;
mod recorder;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fmt, mem,
    sync::Arc,
    time::{Duration, SystemTime},
};

use listwatch_apiserver::{changed_paths, field_managers};
use listwatch_scorecard::Journal;
use listwatch_study::record;
use percent_encoding::percent_decode_str;
use serde_json::Value;

pub(crate) use recorder::{Exchange, Recorder, WRITES_MAX};

/// A request, and its answer.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) id: u64,
    /// 0 if it is not recorded.
    pub(crate) connection: u64,
    pub(crate) received: SystemTime,
    pub(crate) answered: SystemTime,
    pub(crate) user: String,
    /// `operator-1 (Go-http-client/2.0)`
    pub(crate) client: String,
    pub(crate) method: String,
    /// Path and query.
    pub(crate) target: String,
    /// `deployments.apps`. Empty for other paths, such as `/version`.
    pub(crate) resource: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) subresource: String,
    pub(crate) status: u16,
    /// The server's version at the answer. 0 if unknown.
    version: u64,
    /// The resourceVersion of the list in the answer. 0 without a list, or if it is unknown.
    pub(crate) list_version: u64,
    /// What woke the reconcile of which it is a part, as the client names it: `configmaps/default/a@41`, `retry`. Empty if it does not.
    pub(crate) woken_by: Vec<String>,
    pub(crate) effect: Effect,
    /// The body of the answer, cut. Empty if it is not recorded.
    pub(crate) content: String,
    /// Whether it came with the last [`Recording::append`], or ended since. So are all of a recording that is read at once.
    pub(crate) is_new: bool,
}

/// What became of a request that writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// The index of its write in [`Recording::writes`].
    Changed(usize),
    Nothing,
    Unknown,
}

/// A change of an object.
#[derive(Clone, Debug)]
pub(crate) struct Write {
    pub(crate) version: u64,
    pub(crate) time: SystemTime,
    /// The client, or the field manager of one whose requests are not recorded. Empty for the server's controllers.
    pub(crate) client: String,
    /// The id of the request. 0 if it is not recorded.
    pub(crate) request: u64,
    /// `ADDED`, `MODIFIED` or `DELETED`
    pub(crate) event: String,
    /// `deployments.apps`
    resource: String,
    /// `deployments.apps/default/web`
    pub(crate) object: String,
    pub(crate) value: Arc<Value>,
    pub(crate) changed: Vec<String>,
    /// Who owns each of the changed fields. Empty if it is unknown.
    pub(crate) managers: Vec<String>,
    pub(crate) is_new: bool,
}

/// A line of a watch, or its end.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) watch: u64,
    pub(crate) time: SystemTime,
    /// `ADDED`, … `ERROR`, `END`, `CLOSED`
    pub(crate) event: String,
    /// `deployments.apps/default/web`
    pub(crate) object: String,
    pub(crate) version: u64,
    /// The object, cut. Empty if it is not recorded.
    pub(crate) content: String,
    /// The time in microseconds, or more if an event before it has that number. 0: none yet.
    pub(crate) unique_micros: u64,
    pub(crate) is_new: bool,
}

/// What happened.
#[derive(Clone, Debug, Default)]
pub struct Recording {
    /// In the order in which they came.
    pub(crate) requests: Vec<Request>,
    /// By version.
    pub(crate) writes: Vec<Write>,
    /// By time.
    pub(crate) events: Vec<Event>,
    /// The last states of objects that were only read. By object: `deployments.apps/default/web`.
    pub(crate) states: HashMap<String, Arc<Value>>,
    /// Whether each change of an object is among the writes.
    has_all_writes: bool,
    /// Whether the events are not recorded, and follow from the writes and the watches.
    pub(crate) infers_events: bool,
    /// Until when the operator surely ran, if it is known.
    pub runs_until: Option<SystemTime>,
    /// When it began, if the first requests may be forgotten. The start of the epoch, if the date is not known.
    pub(crate) started: Option<SystemTime>,
    pub(crate) forgotten: Forgotten,
    /// The largest [`Event::unique_micros`].
    last_micros: u64,
    by_id: HashMap<u64, usize>,
    by_version: HashMap<(String, u64), usize>,
}

/// How many of the oldest were forgotten, or left out: too many to keep, or to judge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Forgotten {
    pub(crate) requests: usize,
    pub(crate) events: usize,
    pub(crate) writes: usize,
    /// So many watches are older than the latest requests, and kept for their events.
    pub(crate) watches_kept: usize,
}

/// A line that is not of a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Malformed(pub String);

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Malformed {}

impl Recording {
    /// The record of a run.
    ///
    /// # Panics
    ///
    /// Not: its lines are those that [`Recording::read`] reads.
    #[must_use]
    pub fn of(journal: &Journal) -> Recording {
        let mut recording = Recording::default();
        recording.append(journal);
        recording
    }

    /// Reads on: what a run has recorded since.
    pub(crate) fn append(&mut self, journal: &Journal) {
        let texts = [journal.requests_jsonl(), journal.writes_jsonl(), journal.events_jsonl()];
        let files = texts.map(|text| (String::new(), text));
        self.add(&files).expect("lines of a recording");
        self.has_all_writes = true;
        self.connect();
        let ended = self.events.iter().filter(|event| event.is_new && event.ends_watch());
        for at in ended.filter_map(|end| self.by_id.get(&end.watch)) {
            self.requests[*at].is_new = true;
        }
        for write in &mut self.writes {
            let request = self.by_id.get(&write.request).map(|at| &self.requests[*at]);
            write.is_new |= request.is_some_and(|request| request.is_new);
        }
    }

    /// A copy of the latest part, with all watches, which their events need.
    pub(crate) fn recent(&self, count: usize) -> Recording {
        let begin = |length: usize| length.saturating_sub(count);
        let (old, new) = self.requests.split_at(begin(self.requests.len()));
        let watches: Vec<&Request> = old.iter().filter(|request| request.is_watch()).collect();
        let forgotten = Forgotten {
            requests: self.forgotten.requests + old.len() - watches.len(),
            events: self.forgotten.events + begin(self.events.len()),
            writes: self.forgotten.writes + begin(self.writes.len()),
            watches_kept: watches.len(),
        };
        let mut recent = Recording {
            requests: watches.into_iter().chain(new).cloned().collect(),
            writes: self.writes[begin(self.writes.len())..].to_vec(),
            events: self.events[begin(self.events.len())..].to_vec(),
            states: self.states.clone(),
            has_all_writes: self.has_all_writes,
            started: Some(self.start()),
            forgotten,
            ..Recording::default()
        };
        recent.connect();
        recent
    }

    /// Forgets the oldest, and that the others are new.
    pub(crate) fn forget(&mut self, requests: usize, writes: usize, events: usize) {
        self.forgotten.requests += self.requests.drain(..self.requests.len().saturating_sub(requests)).len();
        self.forgotten.writes += self.writes.drain(..self.writes.len().saturating_sub(writes)).len();
        self.forgotten.events += self.events.drain(..self.events.len().saturating_sub(events)).len();
        self.set_new(false);
    }

    /// Says of all whether it is new.
    pub(crate) fn set_new(&mut self, is_new: bool) {
        self.requests.iter_mut().for_each(|request| request.is_new = is_new);
        self.writes.iter_mut().for_each(|write| write.is_new = is_new);
        self.events.iter_mut().for_each(|event| event.is_new = is_new);
    }

    /// Reads files, each a name and a text: a recording of a client, or lines of a record or of an audit log, in any order.
    ///
    /// # Errors
    ///
    /// If a line is none of these.
    pub fn read(files: &[(String, String)]) -> Result<Recording, Malformed> {
        let mut recording = Recording::default();
        recording.has_all_writes = recording.add(files)?;
        recording.connect();
        // A client records the events that it is sent.
        let is_of_client = recording.started.is_some();
        if !is_of_client && recording.events.iter().all(|event| event.object.is_empty()) {
            recording.infer_events();
        }
        Ok(recording)
    }

    /// Adds the lines of files. Returns whether all writes are among them.
    fn add(&mut self, files: &[(String, String)]) -> Result<bool, Malformed> {
        let mut audited = Vec::new();
        let (recordings, files): (Vec<_>, Vec<_>) =
            files.iter().partition(|(_, text)| text.trim_start().starts_with(record::BEGINNING));
        for (name, text) in &recordings {
            let recorded = record::parse(text).map_err(|why| Malformed(format!("{name}: {why}")))?;
            exchanges::add(self, recorded.entries);
        }
        let lines =
            files.iter().flat_map(|(name, text)| text.lines().enumerate().map(move |line| (name, line)));
        for (name, (index, line)) in lines.filter(|(_, (_, line))| !line.trim().is_empty()) {
            let malformed = |why: &str| Malformed(format!("{name}, line {}: {why}", index + 1));
            let line: Value = serde_json::from_str(line).map_err(|error| malformed(&error.to_string()))?;
            let has = |field: &str| !line[field].is_null();
            let known = if has("auditID") {
                audited.push(line);
                Some(())
            } else if has("target") {
                request(&line).map(|request| self.requests.push(request))
            } else if has("watch") {
                event(&line).map(|event| self.events.push(event))
            } else {
                write(&line).map(|write| self.writes.push(write))
            };
            known.ok_or_else(|| malformed("is not of a recording, and not of an audit log"))?;
        }
        audit::add(self, &audited);
        Ok(audited.is_empty() && recordings.is_empty())
    }

    /// Sorts all, and connects writes and events with their requests.
    fn connect(&mut self) {
        self.requests.sort_by_key(|request| request.received);
        self.writes.sort_by_key(|write| write.version);
        self.by_id = self.requests.iter().enumerate().map(|(index, request)| (request.id, index)).collect();
        self.by_version.clear();
        for request in &mut self.requests {
            // The write may have another index now, or be forgotten.
            if let Effect::Changed(_) = request.effect {
                request.effect = Effect::Unknown;
            }
        }
        let mut first_versions = BTreeMap::new();
        for (index, write) in self.writes.iter_mut().enumerate() {
            first_versions.entry(write.resource.clone()).or_insert(write.version);
            self.by_version.insert((write.object.clone(), write.version), index);
            if let Some(at) = self.by_id.get(&write.request) {
                let request = &mut self.requests[*at];
                write.client.clone_from(&request.client);
                request.effect = Effect::Changed(index);
            }
        }
        for request in self.requests.iter_mut().filter(|_| self.has_all_writes) {
            let is_recorded =
                first_versions.get(&request.resource).is_some_and(|first| *first <= request.version);
            if is_recorded && request.updates() && request.effect == Effect::Unknown {
                request.effect = Effect::Nothing;
            }
        }
        for event in self.events.iter_mut().filter(|event| event.unique_micros == 0) {
            if let Some(at) = self.by_id.get(&event.watch).filter(|_| !event.object.is_empty()) {
                event.object = format!("{}/{}", self.requests[*at].resource, event.object);
            }
        }
        self.number_events();
    }

    /// Without recorded events: each watch sends the writes while it is open.
    fn infer_events(&mut self) {
        self.infers_events = true;
        let ends: HashMap<u64, SystemTime> = self.events.iter().map(|end| (end.watch, end.time)).collect();
        for watch in self.requests.iter().filter(|request| request.is_watch() && request.status == 200) {
            let namespace =
                if watch.namespace.is_empty() { String::new() } else { format!("{}/", watch.namespace) };
            let begin = format!("{}/{namespace}", watch.resource);
            for write in &self.writes {
                let is_open =
                    write.time >= watch.answered && ends.get(&watch.id).is_none_or(|end| write.time < *end);
                if is_open && write.resource == watch.resource && write.object.starts_with(&begin) {
                    let event = write.event.clone();
                    let (object, version) = (write.object.clone(), write.version);
                    self.events.push(Event {
                        watch: watch.id,
                        time: write.time,
                        event,
                        object,
                        version,
                        content: String::new(),
                        unique_micros: 0,
                        is_new: true,
                    });
                }
            }
        }
        self.number_events();
    }

    /// Sorts the events, and gives each its number if it has none.
    fn number_events(&mut self) {
        self.events.sort_by_key(|event| event.time);
        let mut events = mem::take(&mut self.events);
        for event in events.iter_mut().filter(|event| event.unique_micros == 0) {
            event.unique_micros = self.next_micros(event.time);
        }
        self.events = events;
    }

    /// See [`Event::unique_micros`].
    fn next_micros(&mut self, time: SystemTime) -> u64 {
        let micros = between(SystemTime::UNIX_EPOCH, time).as_micros();
        self.last_micros = u64::try_from(micros).unwrap_or(u64::MAX).max(self.last_micros + 1);
        self.last_micros
    }

    /// The clients whose requests are judged: not the administrator of the embedded server, and no component of Kubernetes.
    pub(crate) fn clients(&self) -> Vec<String> {
        let mut known = HashSet::new();
        let judged = self.requests.iter().filter(|request| is_judged(&request.user));
        judged.filter(|request| known.insert(&request.client)).map(|request| request.client.clone()).collect()
    }

    pub(crate) fn request(&self, id: u64) -> Option<&Request> {
        self.by_id.get(&id).map(|at| &self.requests[*at])
    }

    /// The write whose state an event has.
    pub(crate) fn write_of(&self, event: &Event) -> Option<&Write> {
        self.by_version.get(&(event.object.clone(), event.version)).map(|at| &self.writes[*at])
    }

    /// When the first request came.
    #[must_use]
    pub fn start(&self) -> SystemTime {
        let first = self.requests.first().map(|request| request.received);
        self.started.or(first).unwrap_or(SystemTime::UNIX_EPOCH)
    }

    /// The id of the oldest request.
    pub(crate) fn first_id(&self) -> u64 {
        self.requests.iter().map(|request| request.id).min().unwrap_or_default()
    }
}

/// Whether a user's requests can be a mistake of an operator.
fn is_judged(user: &str) -> bool {
    user != "admin" && !is_component(user)
}

/// Whether a user is a part of Kubernetes: a controller of the embedded server, which has no name, or of a cluster.
pub(crate) fn is_component(user: &str) -> bool {
    user.is_empty()
        || user.starts_with("system:") && !user.starts_with("system:serviceaccount:")
        || user.starts_with("system:serviceaccount:kube-system:")
}

// A number names the same entry in each recording of a run: the live page reads the server's record again and again, and the record forgets.
// A JavaScript number holds them: the largest are three times the microseconds since 1970.

impl Write {
    /// The write of a request, whose answer is the object. The changed fields are not known yet.
    fn of(request: &Request, value: Value) -> Write {
        Write {
            version: version(&value["metadata"]["resourceVersion"]),
            // The next request can come before the answer is recorded.
            time: request.received,
            client: request.client.clone(),
            request: request.id,
            event: if request.status == 201 { "ADDED" } else { "MODIFIED" }.to_owned(),
            resource: request.resource.clone(),
            object: request.object(),
            changed: Vec::new(),
            managers: Vec::new(),
            value: Arc::new(value),
            is_new: true,
        }
    }

    /// Takes the fields that changed since an earlier state, and who owns them.
    fn compare(&mut self, before: &Value) {
        self.changed = changed_paths(before, &self.value);
        self.managers = field_managers(&self.value, &self.changed);
    }

    pub(crate) fn number(&self) -> u64 {
        self.version * 3 + 1
    }
}

impl Event {
    /// What an event says that is about no object. Empty: it is about one.
    pub(crate) fn meaning(&self) -> &'static str {
        match &*self.event {
            "BOOKMARK" => "a newer version to resume from; no object has changed",
            "ERROR" => "the server cannot go on with this watch",
            "END" => "the server has ended the watch",
            "CLOSED" => "the client has closed the watch, or the connection broke",
            _ => "",
        }
    }

    pub(crate) fn ends_watch(&self) -> bool {
        ["END", "CLOSED"].contains(&&*self.event)
    }

    pub(crate) fn number(&self) -> u64 {
        self.unique_micros * 3 + 2
    }
}

impl Request {
    pub(crate) fn number(&self) -> u64 {
        self.id * 3
    }

    /// The value of a parameter. Empty if it has none.
    pub(crate) fn query(&self, word: &str) -> Option<&str> {
        let (_, query) = self.target.split_once('?')?;
        query.split('&').find_map(|pair| match pair.strip_prefix(word)? {
            "" => Some(""),
            rest => rest.strip_prefix('='),
        })
    }

    pub(crate) fn has_query(&self, word: &str) -> bool {
        self.query(word).is_some()
    }

    pub(crate) fn is_watch(&self) -> bool {
        ["watch=1", "watch=true"].iter().any(|flag| self.has_query(flag))
    }

    pub(crate) fn is_list(&self) -> bool {
        self.method == "GET" && !self.resource.is_empty() && self.name.is_empty() && !self.is_watch()
    }

    /// Whether it asks for a change of an object: neither a Lease nor an Event, which nobody reconciles.
    pub(crate) fn writes(&self) -> bool {
        let is_record = ["leases.coordination.k8s.io", "events", "events.events.k8s.io"];
        self.method != "GET"
            && !self.resource.is_empty()
            && !is_record.contains(&&*self.resource)
            && !self.resource.contains("reviews.")
            && !self.has_query("dryRun")
    }

    /// Whether it is a PUT or PATCH that was accepted.
    fn updates(&self) -> bool {
        self.writes() && ["PUT", "PATCH"].contains(&&*self.method) && self.status == 200
    }

    /// Takes the name of the written object from the answer. Returns its version; `None`: the answer is not the whole object.
    fn written(&mut self, answer: &Value) -> Option<u64> {
        let metadata = &answer["metadata"];
        let (name, version) = (text(&metadata["name"]), version(&metadata["resourceVersion"]));
        // The answer of another subresource, such as `scale`, is of another kind.
        let has_object = ["", "status"].contains(&&*self.subresource) && !name.is_empty() && version > 0;
        if !self.writes() || self.status >= 300 || !has_object {
            return None;
        }
        self.name = name;
        Some(version)
    }

    /// `apps`, if it is about a resource of a group.
    pub(crate) fn group(&self) -> Option<&str> {
        self.resource.split_once('.').map(|(_, group)| group)
    }

    /// `deployments.apps/default/web`
    pub(crate) fn object(&self) -> String {
        object(&self.resource, &self.namespace, &self.name)
    }

    /// The verb of the API: `get`, `list`, `watch`, …
    pub(crate) fn verb(&self) -> &'static str {
        match &*self.method {
            "GET" if self.is_watch() => "watch",
            // Without a resource, it is discovery, or of the server itself.
            "GET" if self.name.is_empty() && !self.resource.is_empty() => "list",
            "POST" => "create",
            "PUT" => "update",
            "PATCH" => "patch",
            "DELETE" => "delete",
            _ => "get",
        }
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn time(value: &Value) -> Option<SystemTime> {
    humantime::parse_rfc3339(value.as_str()?).ok()
}

fn version(value: &Value) -> u64 {
    value.as_str().and_then(|version| version.parse().ok()).unwrap_or_default()
}

/// `operator-1 (Go-http-client/2.0)`
fn client(user: &str, agent: &str) -> String {
    if agent.is_empty() { user.to_owned() } else { format!("{user} ({agent})") }
}

/// `deployments.apps/default/web`, or `nodes/a`.
fn object(resource: &str, namespace: &str, name: &str) -> String {
    [resource, namespace, name].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("/")
}

fn request(line: &Value) -> Option<Request> {
    Some(Request {
        id: line["id"].as_u64()?,
        connection: line["connection"].as_u64().unwrap_or_default(),
        received: time(&line["received"])?,
        answered: time(&line["time"])?,
        user: text(&line["user"]),
        client: client(&text(&line["user"]), &text(&line["userAgent"])),
        method: text(&line["method"]),
        target: text(&line["target"]),
        resource: text(&line["resource"]),
        namespace: text(&line["namespace"]),
        name: text(&line["name"]),
        subresource: text(&line["subresource"]),
        status: line["status"].as_u64().and_then(|status| u16::try_from(status).ok())?,
        version: version(&line["resourceVersion"]),
        list_version: version(&line["listVersion"]),
        woken_by: woken_by(&text(&line["baggage"])),
        effect: Effect::Unknown,
        content: String::new(),
        is_new: true,
    })
}

/// The causes in a header as our library sends it: `reconcile.causes=configmaps/default/a@41%20retry`.
fn woken_by(baggage: &str) -> Vec<String> {
    let causes = baggage.split(',').find_map(|entry| entry.trim().strip_prefix("reconcile.causes="));
    let causes = percent_decode_str(causes.unwrap_or_default()).decode_utf8_lossy();
    causes.split_whitespace().map(str::to_owned).collect()
}

fn write(line: &Value) -> Option<Write> {
    let (resource, metadata) = (text(&line["resource"]), &line["object"]["metadata"]);
    Some(Write {
        version: version(&metadata["resourceVersion"]),
        time: time(&line["time"])?,
        client: text(&line["user"]),
        request: line["request"].as_u64()?,
        object: object(&resource, &text(&metadata["namespace"]), &text(&metadata["name"])),
        event: text(&line["type"]),
        resource,
        changed: line["changed"].as_array()?.iter().map(text).collect(),
        managers: line["managers"].as_array().into_iter().flatten().map(text).collect(),
        value: Arc::new(line["object"].clone()),
        is_new: true,
    })
}

fn event(line: &Value) -> Option<Event> {
    Some(Event {
        watch: line["watch"].as_u64()?,
        time: time(&line["time"])?,
        event: text(&line["event"]),
        object: text(&line["object"]),
        version: version(&line["resourceVersion"]),
        content: String::new(),
        unique_micros: 0,
        is_new: true,
    })
}

/// The time from one moment to a later one.
pub(crate) fn between(earlier: SystemTime, later: SystemTime) -> Duration {
    later.duration_since(earlier).unwrap_or_default()
}

/// `3.2 ms`
pub(crate) fn milliseconds(time: Duration) -> String {
    let milliseconds = time.as_secs_f64() * 1000.0;
    if milliseconds < 10.0 { format!("{milliseconds:.1} ms") } else { format!("{milliseconds:.0} ms") }
}

/// The value at a path such as `.spec.ports[0].port`. Keys may have dots.
pub(crate) fn field<'a>(value: &'a Value, path: &str) -> Option<&'a Value> {
    if path.is_empty() {
        return Some(value);
    }
    if let Some(rest) = path.strip_prefix('[') {
        let (index, rest) = rest.split_once(']')?;
        return field(value.get(index.parse::<usize>().ok()?)?, rest);
    }
    let path = path.strip_prefix('.')?;
    let fits =
        |key: &str| path.strip_prefix(key).filter(|rest| rest.is_empty() || rest.starts_with(['.', '[']));
    value.as_object()?.iter().find_map(|(key, value)| field(value, fits(key)?))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_path_leads_to_its_value_also_through_keys_with_dots() {
        let object =
            json!({"metadata": {"annotations": {"a.b/c": 1, "a": 2}}, "spec": {"ports": [{"port": 80}]}});
        assert_eq!(field(&object, ".metadata.annotations.a.b/c"), Some(&json!(1)));
        assert_eq!(field(&object, ".metadata.annotations.a"), Some(&json!(2)));
        assert_eq!(field(&object, ".spec.ports[0].port"), Some(&json!(80)));
        assert_eq!(field(&object, ".spec.ports[1].port"), None);
    }
}
