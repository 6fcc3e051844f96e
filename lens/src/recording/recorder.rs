//! Records what passes through the proxy: requests, the events of watches, and what writes changed, as far as it is seen.
//!
//! Nobody tells the proxy who wrote what. An answer to a write has the new state of its object, and so has an event; the changed fields are those
//! that differ from the last state that passed. An event with a version that no answer had is the write of another client: the `managedFields` of its
//! object name it.

use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::SystemTime,
};

use http::{
    HeaderMap,
    header::{ACCEPT, CONTENT_ENCODING, CONTENT_TYPE, HeaderName, USER_AGENT},
    request::Parts,
};
use listwatch_apiserver::{REQUESTS_MAX, RequestRecord};
use serde_json::Value;

use super::{Effect, Event, Recording, Request, Write, field, objects::Objects, request, text, version};

/// Most writes.
pub(crate) const WRITES_MAX: usize = 10_000;

/// Most bytes of the objects of all writes, and of the last states of objects, as JSON. In memory, an object takes about ten times as much as its
/// text; most writes share their object with the last state.
const OBJECTS_BYTES_MAX: usize = 16 * 1024 * 1024;

/// How many of the latest requests and writes are searched for the other half of a write: its answer, or its event.
const RECENT: usize = 1000;

/// Records the requests of one user, whose clients have the names in their User-Agent.
#[derive(Debug)]
pub(crate) struct Recorder {
    user: String,
    record: Mutex<Record>,
}

#[derive(Debug, Default)]
struct Record {
    /// Not connected. The requests are in the order of their ids; without an answer yet, they have the status 0.
    recording: Recording,
    /// Most requests, and most events.
    entries_max: usize,
    last_id: u64,
    /// The bytes of the object of each write.
    write_bytes: Vec<usize>,
    /// By object: `deployments.apps/default/web`.
    states: HashMap<String, State>,
    states_bytes: usize,
    hashes: RandomState,
}

/// The last state of an object that passed.
#[derive(Debug)]
struct State {
    version: u64,
    /// Without managedFields, and with hashes for the values of a Secret.
    value: Arc<Value>,
    bytes: usize,
    seen: SystemTime,
    /// Its write is not recorded.
    is_read: bool,
}

/// A request, and its answer on the way to the client.
#[derive(Debug)]
pub(crate) struct Exchange {
    recorder: Arc<Recorder>,
    id: u64,
    /// Whether the client asks for a part of each object, such as its metadata.
    is_partial: bool,
    content: Content,
    objects: Objects,
}

/// What is in the body of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    /// There is no answer yet.
    Awaited,
    /// Until the first BOOKMARK, ADDED is the event of an object that existed before.
    InitialEvents,
    Events,
    /// The object after a write, or a refusal.
    Written,
    /// Objects that nobody wrote.
    Read,
    /// Nothing that is recorded.
    Other,
}

impl Recorder {
    pub(crate) fn new(user: String) -> Recorder {
        let recording = Recording { started: Some(SystemTime::now()), ..Recording::default() };
        let record = Record { recording, entries_max: REQUESTS_MAX, ..Record::default() };
        Recorder { user, record: Mutex::new(record) }
    }

    /// A request came. It is in the recording when it is answered.
    pub(crate) fn received(self: &Arc<Recorder>, head: &Parts, connection: u64) -> Exchange {
        let header = |name: HeaderName| {
            let value = head.headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()));
            value.unwrap_or_default().into_owned()
        };
        let mut record = self.record();
        record.last_id += 1;
        let (id, now) = (record.last_id, SystemTime::now());
        let line = RequestRecord {
            id,
            connection,
            method: head.method.to_string(),
            path: head.uri.path().to_owned(),
            name: String::new(),
            query: head.uri.query().unwrap_or_default().to_owned(),
            user_agent: header(USER_AGENT),
            baggage: header(HeaderName::from_static("baggage")),
            user: self.user.clone(),
            status: 0,
            received: now,
            time: now,
            version: 0,
            list_version: String::new(),
        };
        let line = serde_json::from_str(&line.line()).expect("a line of JSON");
        let mut request = request(&line).expect("the line of a request");
        if let Some(agent) = line["userAgent"].as_str().filter(|agent| !agent.is_empty()) {
            (request.user, request.client) = (agent.to_owned(), agent.to_owned());
        }
        record.recording.requests.push(request);
        if record.recording.requests.len() > record.entries_max {
            record.recording.forgotten.requests += forget_oldest(&mut record.recording.requests);
        }
        drop(record);
        Exchange {
            recorder: Arc::clone(self),
            id,
            is_partial: header(ACCEPT).contains("as="),
            content: Content::Awaited,
            objects: Objects::at_depths(0..=0),
        }
    }

    /// What was recorded so far. What came since the last call is new.
    pub(crate) fn recording(&self) -> Recording {
        let mut record = self.record();
        let states = record.states.iter();
        let states = states.map(|(object, state)| (object.clone(), Arc::clone(&state.value))).collect();
        let kept = &mut record.recording;
        let unanswered = kept.requests.iter().filter(|request| request.status == 0 && request.writes());
        let since = unanswered.map(|request| request.received).min();
        // An event can come before the answer to its write.
        let is_settled = |write: &&Write| write.request > 0 || since.is_none_or(|since| write.time < since);
        let mut recording = Recording {
            requests: kept.requests.iter().filter(|request| request.status > 0).cloned().collect(),
            writes: kept.writes.iter().filter(is_settled).cloned().collect(),
            events: kept.events.clone(),
            states,
            started: kept.started,
            forgotten: kept.forgotten,
            ..Recording::default()
        };
        kept.set_new(false);
        for write in &mut kept.writes {
            write.is_new = !is_settled(&&*write);
        }
        drop(record);
        recording.connect();
        recording
    }

    /// The same, if anything came since the last call.
    pub(crate) fn news(&self) -> Option<Recording> {
        let record = self.record();
        let Recording { requests, writes, events, .. } = &record.recording;
        let has_news = requests.iter().any(|request| request.is_new && request.status > 0)
            || writes.iter().any(|write| write.is_new)
            || events.iter().any(|event| event.is_new);
        drop(record);
        has_news.then(|| self.recording())
    }

    fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Content {
    fn of(request: &Request, is_partial: bool, headers: &HeaderMap) -> Content {
        let media_type = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        let is_json = media_type.starts_with("application/json") && !headers.contains_key(CONTENT_ENCODING);
        match &*request.method {
            _ if !is_json || request.resource.is_empty() => Content::Other,
            "GET" if request.status != 200 => Content::Other,
            "GET" if request.is_watch() => {
                let query = request.target.split_once('?').map_or("", |(_, query)| query);
                let from = query.split('&').find_map(|pair| pair.strip_prefix("resourceVersion="));
                let is_initial =
                    matches!(from, None | Some("" | "0")) || request.has_query("sendInitialEvents");
                if is_initial { Content::InitialEvents } else { Content::Events }
            }
            _ if is_partial && !request.is_list() => Content::Other,
            "GET" if ["", "status"].contains(&&*request.subresource) => Content::Read,
            "POST" | "PUT" | "PATCH" | "DELETE" => Content::Written,
            _ => Content::Other,
        }
    }
}

impl Exchange {
    /// The head of the answer came.
    pub(crate) fn answered(&mut self, status: u16, headers: &HeaderMap) {
        let mut record = self.recorder.record();
        let Some(request) = record.request(self.id) else { return };
        (request.status, request.answered) = (status, SystemTime::now());
        self.content = Content::of(request, self.is_partial, headers);
        // The version of a list is in its body.
        request.is_new = self.content != Content::Read;
        if self.content == Content::Read && request.is_list() {
            // Of parts of objects, the version of the list is enough.
            self.objects = Objects::at_depths(if self.is_partial { 1..=1 } else { 1..=2 });
        }
    }

    /// A piece of the body came.
    pub(crate) fn read(&mut self, piece: &[u8]) {
        if [Content::Awaited, Content::Other].contains(&self.content) {
            return;
        }
        let mut found = Vec::new();
        self.objects.read(piece, |text| {
            found.extend(serde_json::from_slice::<Value>(text).map(|value| (value, text.len())));
        });
        for (value, bytes) in found {
            let mut record = self.recorder.record();
            match self.content {
                Content::InitialEvents | Content::Events => {
                    if value["type"] == "BOOKMARK" {
                        self.content = Content::Events;
                    }
                    record.event(self, value, bytes);
                }
                Content::Written => record.written(self.id, value, bytes),
                Content::Read => record.read(self.id, value, bytes),
                Content::Awaited | Content::Other => {}
            }
        }
    }

    /// The server ended the answer.
    pub(crate) fn ended(mut self) {
        self.close("END");
    }

    fn close(&mut self, event: &str) {
        let mut record = self.recorder.record();
        match mem::replace(&mut self.content, Content::Other) {
            Content::InitialEvents | Content::Events => {
                record.sent(self.id, event, String::new(), 0);
                record.mark_new(self.id);
            }
            Content::Read => record.mark_new(self.id),
            // The client did not wait for the answer.
            Content::Awaited => record.recording.requests.retain(|request| request.id != self.id),
            Content::Written | Content::Other => {}
        }
    }
}

/// The client or a broken connection closed it, if it has not ended.
impl Drop for Exchange {
    fn drop(&mut self) {
        self.close("CLOSED");
    }
}

impl Record {
    fn request(&mut self, id: u64) -> Option<&mut Request> {
        let requests = &mut self.recording.requests;
        let at = requests.binary_search_by_key(&id, |request| request.id).ok()?;
        Some(&mut requests[at])
    }

    /// The page gets the request again.
    fn mark_new(&mut self, id: u64) {
        if let Some(request) = self.request(id) {
            request.is_new = true;
        }
    }

    /// A watch sent a line.
    fn event(&mut self, exchange: &Exchange, mut line: Value, bytes: usize) {
        let Some(watch) = self.request(exchange.id) else { return };
        let (event, value) = (text(&line["type"]), line["object"].take());
        let (object, manager) = (named(watch, &value), last_manager(&value));
        let mut write = Write {
            request: 0,
            client: String::new(),
            time: SystemTime::now(),
            event,
            object,
            ..Write::of(watch, value)
        };
        self.sent(exchange.id, &write.event, write.object.clone(), write.version);
        let is_change = ["ADDED", "MODIFIED", "DELETED"].contains(&&*write.event) && !write.object.is_empty();
        // A version that is known came before: by another watch, or in the answer to its write.
        let is_news = self.states.get(&write.object).is_none_or(|known| {
            known.version < write.version || known.version == write.version && known.is_read
        });
        if exchange.is_partial || !is_change || !is_news {
            return;
        }
        let is_old = exchange.content == Content::InitialEvents && write.event == "ADDED";
        self.learn(&mut write, bytes, is_old);
        write.client = writer(&write, &manager);
        let mut recent = self.recording.requests.iter().rev().take(RECENT);
        let own = recent.find(|request| {
            let is_own = match &*write.event {
                // A request to delete an object is answered before the object is gone, or after.
                "DELETED" => request.method == "DELETE",
                _ => request.subresource == "scale" && request.version == write.version,
            };
            is_own && request.object() == write.object
        });
        write.request = own.filter(|request| request.status < 300).map_or(0, |request| request.id);
        if !is_old {
            self.keep(write, bytes);
        }
    }

    /// A write was answered.
    fn written(&mut self, id: u64, answer: Value, bytes: usize) {
        let Some(request) = self.request(id) else { return };
        if request.subresource == "scale" && request.status < 300 {
            // A Scale has the version of its object, whose new state is in the event.
            request.version = version(&answer["metadata"]["resourceVersion"]);
            let (object, version) = (request.object(), request.version);
            let mut recent = self.recording.writes.iter_mut().rev().take(RECENT);
            let event = recent.find(|known| known.version == version && known.object == object);
            if let Some(event) = event.filter(|event| event.request == 0) {
                (event.request, event.is_new) = (id, true);
            }
            return;
        }
        let Some(version) = request.written(&answer) else {
            // The refusal of a create names its object.
            if request.name.is_empty() {
                request.name = text(&answer["details"]["name"]);
            }
            return;
        };
        let mut write = Write::of(request, answer);
        let (received, updates) = (request.received, request.updates());
        let mut recent = self.recording.writes.iter_mut().rev().take(RECENT);
        let recorded = recent.find(|known| known.version == version && known.object == write.object);
        let is_known = self
            .states
            .get(&write.object)
            .is_some_and(|known| known.version == version && known.seen < received);
        match recorded {
            // The event of this write came before its answer.
            Some(event) if event.request == 0 && event.time >= received => {
                (event.request, event.is_new) = (id, true);
            }
            None if !is_known => {
                self.learn(&mut write, bytes, false);
                self.keep(write, bytes);
            }
            Some(_) | None => {
                if let Some(request) = self.request(id).filter(|_| updates) {
                    request.effect = Effect::Nothing;
                }
            }
        }
    }

    /// An object was read, or the metadata of a list.
    fn read(&mut self, id: u64, value: Value, bytes: usize) {
        let Some(request) = self.request(id) else { return };
        let object = named(request, &value);
        if object.is_empty() {
            request.list_version = request.list_version.max(version(&value["resourceVersion"]));
            return;
        }
        let mut read = Write { event: String::new(), object, ..Write::of(request, value) };
        self.learn(&mut read, bytes, true);
    }

    /// Compares a state of an object with the last one, and keeps it if it is newer.
    fn learn(&mut self, write: &mut Write, bytes: usize, is_read: bool) {
        let value = Arc::make_mut(&mut write.value);
        if let Some(fields) = value.as_object_mut() {
            // The items of a list lack them.
            fields.retain(|field, _| !["apiVersion", "kind"].contains(&&**field));
        }
        if write.resource == "secrets" {
            hide_values(value, &self.hashes);
        }
        let known = self.states.get(&write.object);
        let is_newer = known.is_none_or(|known| known.version < write.version);
        if let Some(known) = known.filter(|_| is_newer && write.event == "MODIFIED") {
            write.compare(&known.value);
        }
        if let Some(metadata) = Arc::make_mut(&mut write.value)["metadata"].as_object_mut() {
            metadata.remove("managedFields");
        }
        let (version, value, seen) = (write.version, Arc::clone(&write.value), SystemTime::now());
        match self.states.get_mut(&write.object) {
            Some(known) if !is_newer => known.is_read &= is_read,
            _ => {
                let state = State { version, value, bytes, seen, is_read };
                let former = self.states.insert(write.object.clone(), state);
                self.states_bytes += bytes;
                self.states_bytes -= former.map_or(0, |former| former.bytes);
            }
        }
        if self.states_bytes > OBJECTS_BYTES_MAX {
            self.forget_states();
        }
    }

    /// Forgets the half of the states that was written first.
    fn forget_states(&mut self) {
        let mut versions: Vec<u64> = self.states.values().map(|state| state.version).collect();
        versions.sort_unstable();
        let middle = versions[versions.len() / 2];
        self.states.retain(|_, state| state.version > middle);
        self.states_bytes = self.states.values().map(|state| state.bytes).sum();
    }

    fn keep(&mut self, write: Write, bytes: usize) {
        self.recording.writes.push(write);
        self.write_bytes.push(bytes);
        if self.write_bytes.len() > WRITES_MAX || self.write_bytes.iter().sum::<usize>() > OBJECTS_BYTES_MAX {
            self.recording.forgotten.writes += forget_oldest(&mut self.recording.writes);
            forget_oldest(&mut self.write_bytes);
        }
    }

    fn sent(&mut self, watch: u64, event: &str, object: String, version: u64) {
        let (time, event) = (SystemTime::now(), event.to_owned());
        let unique_micros = self.recording.next_micros(time);
        self.recording.events.push(Event {
            watch,
            time,
            event,
            object,
            version,
            content: String::new(),
            unique_micros,
            is_new: true,
        });
        if self.recording.events.len() > self.entries_max {
            self.recording.forgotten.events += forget_oldest(&mut self.recording.events);
        }
    }
}

/// Forgets a tenth. Returns how many these are.
fn forget_oldest<T>(entries: &mut Vec<T>) -> usize {
    entries.drain(..entries.len().div_ceil(10)).len()
}

/// `deployments.apps/default/web`, of an object in the answer to a request. Empty if it has no name.
fn named(request: &Request, value: &Value) -> String {
    // kubectl asks for a Table, whose only row has the object.
    let object = if value["rows"].is_array() { &value["rows"][0]["object"] } else { value };
    let [namespace, name] = ["namespace", "name"].map(|field| text(&object["metadata"][field]));
    if name.is_empty() { name } else { super::object(&request.resource, &namespace, &name) }
}

/// The field manager with the latest time.
fn last_manager(object: &Value) -> String {
    let managers = object["metadata"]["managedFields"].as_array().into_iter().flatten();
    text(&managers.max_by_key(|entry| entry["time"].as_str()).unwrap_or(&Value::Null)["manager"])
}

/// Who wrote the state in an event, as far as the object shows it: an owner of a changed field, or else the last manager, unless it does not own a
/// field that is there. Empty: a component of Kubernetes.
fn writer(write: &Write, last_manager: &str) -> String {
    let owner = write.managers.iter().find(|owner| !owner.is_empty());
    let last_manager =
        if write.changed.iter().any(|path| field(&write.value, path).is_some()) { "" } else { last_manager };
    match owner.map_or(last_manager, String::as_str) {
        component if component.starts_with("kube-") || component == "kubelet" => String::new(),
        // A deletion leaves no entry.
        manager if !manager.is_empty() && write.event != "DELETED" => manager.to_owned(),
        _ => "another client".to_owned(),
    }
}

/// Puts a hash, with a key of this process, in place of each value of a Secret: it shows that a value changed, and nothing of the value.
fn hide_values(secret: &mut Value, hashes: &RandomState) {
    // An annotation can have the object that was last applied.
    for path in ["/data", "/stringData", "/metadata/annotations"] {
        let values = secret.pointer_mut(path).and_then(Value::as_object_mut).into_iter().flatten();
        for (_, value) in values {
            *value = hashes.hash_one(value.to_string()).into();
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap names its line")]
mod tests {
    use http::HeaderValue;
    use serde_json::json;

    use super::*;

    fn answered(recorder: &Arc<Recorder>, method: &str, target: &str) -> Exchange {
        answered_as(recorder, method, target, "application/json")
    }

    fn answered_as(recorder: &Arc<Recorder>, method: &str, target: &str, accept: &str) -> Exchange {
        let request = http::Request::builder().method(method).uri(target).header(ACCEPT, accept);
        let (head, ()) = request.body(()).unwrap().into_parts();
        let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static("application/json"))]);
        let mut exchange = recorder.received(&head, 1);
        exchange.answered(200, &headers);
        exchange
    }

    #[test]
    fn the_oldest_requests_are_forgotten_and_counted() {
        let recorder = Arc::new(Recorder::new("jane".to_owned()));
        recorder.record().entries_max = 3;
        for _ in 0..5 {
            answered(&recorder, "GET", "/version");
        }
        let recording = recorder.recording();
        let ids: Vec<u64> = recording.requests.iter().map(|request| request.id).collect();
        assert_eq!((ids, recording.forgotten.requests), (vec![3, 4, 5], 2));
    }

    /// An answer and an event of one write come on two streams, in any order.
    #[test]
    fn a_write_is_one_whichever_of_its_answer_and_its_event_comes_first() {
        const MAP: &str = "/api/v1/namespaces/b/configmaps/a";
        let state = |version: u64| json!({"metadata": {"name": "a", "namespace": "b", "resourceVersion": version.to_string()}, "data": {"v": version}});
        let event = |version| json!({"type": "MODIFIED", "object": state(version)}).to_string();
        let recorder = Arc::new(Recorder::new("jane".to_owned()));
        let mut watch = answered(&recorder, "GET", "/api/v1/configmaps?watch=1&resourceVersion=1");
        watch.read(event(2).as_bytes());
        for version in [3, 4] {
            let mut write = answered(&recorder, "PATCH", MAP);
            let (answer, event) = (state(version).to_string(), event(version));
            if version == 3 {
                write.read(answer.as_bytes());
                watch.read(event.as_bytes());
            } else {
                watch.read(event.as_bytes());
                write.read(answer.as_bytes());
            }
        }
        answered(&recorder, "PATCH", MAP).read(state(4).to_string().as_bytes());
        let recording = recorder.recording();
        let writes = recording.writes.iter();
        let writes: Vec<_> =
            writes.map(|write| (write.version, &*write.client, write.changed.len())).collect();
        assert_eq!(writes, [(2, "another client", 0), (3, "jane", 1), (4, "jane", 1)]);
        assert_eq!(recording.requests.last().unwrap().effect, Effect::Nothing);
    }

    /// The answer is a Scale with the version of its object. The server does not say who owns the replicas of a custom resource: the latest manager
    /// had not written them.
    #[test]
    fn a_scale_is_a_write_of_its_client() {
        let event = |version: u64| {
            let manager =
                json!({"manager": "pages", "time": "2026-01-01T00:00:00Z", "fieldsV1": {"f:status": {}}});
            let metadata = json!({"name": "a", "namespace": "b", "resourceVersion": version.to_string(), "managedFields": [manager]});
            json!({"type": "MODIFIED", "object": {"metadata": metadata, "spec": {"replicas": version}}})
                .to_string()
        };
        let recorder = Arc::new(Recorder::new("jane".to_owned()));
        let mut watch = answered(&recorder, "GET", "/apis/example.com/v1/pages?watch=1&resourceVersion=1");
        watch.read(event(2).as_bytes());
        for version in [3, 4] {
            let mut scale = answered(&recorder, "PATCH", "/apis/example.com/v1/namespaces/b/pages/a/scale");
            let answer = json!({"kind": "Scale", "metadata": {"name": "a", "namespace": "b", "resourceVersion": version.to_string()}});
            if version == 3 {
                scale.read(answer.to_string().as_bytes());
                watch.read(event(version).as_bytes());
            } else {
                watch.read(event(version).as_bytes());
                scale.read(answer.to_string().as_bytes());
            }
        }
        watch.read(event(5).as_bytes());
        let recording = recorder.recording();
        let writes: Vec<_> = recording.writes.iter().map(|write| (write.version, &*write.client)).collect();
        assert_eq!(writes, [(2, "pages"), (3, "jane"), (4, "jane"), (5, "another client")]);
    }

    #[test]
    fn a_table_has_the_names_and_versions_of_its_objects() {
        const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
        let table = r#"{"kind":"Table","metadata":{"resourceVersion":"7"},"columnDefinitions":[{"name":"Name"}],
            "rows":[{"cells":["a"],"object":{"metadata":{"name":"a","namespace":"b","resourceVersion":"7"}}}]}"#;
        let recorder = Arc::new(Recorder::new("jane".to_owned()));
        answered_as(&recorder, "GET", "/api/v1/configmaps", TABLE).read(table.as_bytes());
        let mut watch = answered_as(&recorder, "GET", "/api/v1/configmaps?watch=1", TABLE);
        watch.read(format!(r#"{{"type":"MODIFIED","object":{table}}}"#).as_bytes());
        let recording = recorder.recording();
        let (list, event) = (&recording.requests[0], &recording.events[0]);
        assert_eq!((list.list_version, &*event.object, event.version), (7, "configmaps/b/a", 7));
        assert_eq!((recording.writes.len(), recording.states.len()), (0, 0));
    }

    /// A page that is open gets each entry once.
    #[test]
    fn the_event_of_a_write_waits_for_its_answer() {
        let recorder = Arc::new(Recorder::new("jane".to_owned()));
        let mut watch = answered(&recorder, "GET", "/api/v1/configmaps?watch=1&resourceVersion=1");
        let request = http::Request::put("/api/v1/namespaces/b/configmaps/a").body(()).unwrap();
        let write = recorder.received(&request.into_parts().0, 1);
        let event = json!({"type": "MODIFIED", "object": {"metadata": {"name": "a", "namespace": "b", "resourceVersion": "2"}}});
        watch.read(event.to_string().as_bytes());
        let new = || recorder.recording().writes.iter().filter(|write| write.is_new).count();
        assert_eq!(new(), 0);
        // The client is gone.
        drop(write);
        assert_eq!([new(), new()], [1, 0]);
    }
}
