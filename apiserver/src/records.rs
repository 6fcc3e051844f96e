//! The records of requests, writes and events, for tests that ask what a client did, and for the lens.
//!
//! ```text
//! $ kubectl get --raw '/listwatch/writes?since=41'
//! {"changed":[".spec.replicas"],"managers":["kubectl"],"object":{"kind":"Deployment",…},"request":7,"resource":"deployments.apps","time":"2026-11-21T07:14:34.250120Z","type":"MODIFIED","user":"admin"}
//! ```

use std::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
    time::SystemTime,
};

use serde_json::{Value, json};

use crate::{request::ResourcePath, status::qualified};

/// The path at which administrators read the records of requests, and drop them.
pub(crate) const REQUESTS_PATH: &str = "/listwatch/requests";

/// The path at which administrators read the records of writes.
pub(crate) const WRITES_PATH: &str = "/listwatch/writes";

/// The latest records of one sort.
pub(crate) struct Latest<T> {
    records: VecDeque<T>,
    max: usize,
    /// How many were dropped.
    dropped: u64,
}

impl<T: Clone> Latest<T> {
    pub(crate) fn new(max: usize) -> Latest<T> {
        Latest { records: VecDeque::new(), max, dropped: 0 }
    }

    /// Adds one. If there are too many, it drops the oldest.
    pub(crate) fn push(&mut self, record: T) {
        self.records.push_back(record);
        if self.records.len() > self.max {
            self.records.pop_front();
            self.dropped += 1;
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.records.iter()
    }

    pub(crate) fn len(&self) -> usize {
        self.records.len()
    }

    /// Drops all.
    pub(crate) fn clear(&mut self) {
        self.dropped += self.records.len() as u64;
        self.records = VecDeque::new();
    }

    /// Those after a mark, and the mark after them. A mark is how many there were.
    pub(crate) fn since(&self, mark: u64) -> (Vec<T>, u64) {
        let known = usize::try_from(mark.saturating_sub(self.dropped)).unwrap_or(usize::MAX);
        let records = self.records.range(known.min(self.records.len())..);
        (records.cloned().collect(), self.dropped + self.records.len() as u64)
    }
}

/// The record of an answered request, as in an audit log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestRecord {
    /// The first request has 1.
    pub id: u64,
    /// The first connection has 1. 0 within the process.
    pub connection: u64,
    /// `GET`, `POST`, …
    pub method: String,
    /// `/api/v1/namespaces`
    pub path: String,
    /// The name of the object in the body of a create. Empty for other requests.
    pub name: String,
    /// The query after the `?`, not decoded.
    pub query: String,
    /// The client's `User-Agent`.
    pub user_agent: String,
    /// Of the client's [`baggage`](https://www.w3.org/TR/baggage/), the entry `reconcile.causes`: what woke the reconcile that made the request.
    pub baggage: String,
    /// The user, after impersonation. Empty without a known token.
    pub user: String,
    /// The HTTP status of the answer.
    pub status: u16,
    /// When its head was there.
    pub received: SystemTime,
    /// When it was answered.
    pub time: SystemTime,
    /// The server's version then: writes with larger ones came later.
    pub version: u64,
    /// The resourceVersion of the list in the answer: a watch of the same objects can begin there. Empty without a list.
    pub list_version: String,
}

/// A write that changed an object. Writes that were refused, or changed nothing, are only among the [`RequestRecord`]s.
#[derive(Clone, Debug, PartialEq)]
pub struct WriteRecord {
    /// The resourceVersion after the write.
    pub version: u64,
    /// When it was.
    pub time: SystemTime,
    /// The user. Empty for the server's controllers.
    pub user: String,
    /// `POST`, … Empty for the server's controllers.
    pub method: String,
    /// The path of the request. Empty for the server's controllers.
    pub path: String,
    /// The [`RequestRecord::id`] of the request. 0 for the server's controllers.
    pub request: u64,
    /// `deployments.apps`
    pub resource: String,
    /// `default/web`, or `node-1`.
    pub object: String,
    /// `None`: created.
    pub before: Option<Arc<Value>>,
    /// `None`: deleted.
    pub after: Option<Arc<Value>>,
}

/// A line that a watch sent to its client, or its end. Recorded if [`Options::events`](crate::Options::events) asks for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventRecord {
    /// The [`RequestRecord::id`] of the watch.
    pub watch: u64,
    /// When it was handed to the connection.
    pub time: SystemTime,
    /// `ADDED`, …, `BOOKMARK` or `ERROR`; `END` if the server ended the watch, `CLOSED` if its client or a broken connection did.
    pub event: String,
    /// `default/web`, or `node-1`. Empty without an object.
    pub object: String,
    /// The resourceVersion of the object. 0 without an object.
    pub version: u64,
}

impl RequestRecord {
    /// A line of JSON.
    #[must_use]
    pub fn line(&self) -> String {
        let RequestRecord {
            id,
            connection,
            method,
            path,
            query,
            user,
            user_agent,
            baggage,
            status,
            received,
            time,
            version,
            list_version,
            ..
        } = self;
        let target = if query.is_empty() { path.clone() } else { format!("{path}?{query}") };
        let mut line = json!({"id": id, "connection": connection, "received": rfc3339(*received), "time": rfc3339(*time), "user": user,
            "userAgent": user_agent, "method": method, "target": target, "status": status,
            "resourceVersion": version.to_string()});
        if !baggage.is_empty() {
            line["baggage"] = (**baggage).into();
        }
        if !list_version.is_empty() {
            line["listVersion"] = (**list_version).into();
        }
        if let Some(path) = ResourcePath::parse(path) {
            let name = path.name.as_deref().unwrap_or(&self.name);
            line["resource"] = qualified(&path.plural, &path.group).into();
            line["namespace"] = path.namespace.into();
            line["name"] = name.into();
            line["subresource"] = path.subresource.into();
        }
        line.to_string() + "\n"
    }
}

impl EventRecord {
    /// A line of JSON.
    #[must_use]
    pub fn line(&self) -> String {
        let EventRecord { watch, time, event, object, version } = self;
        json!({"watch": watch, "time": rfc3339(*time), "event": event, "object": object,
            "resourceVersion": version.to_string()})
        .to_string()
            + "\n"
    }
}

impl WriteRecord {
    /// A line of JSON: a watch event with the changed paths and the managers of these fields, which `listwatch replay` reads. Without `managedFields` and the
    /// values of Secrets.
    #[must_use]
    pub fn line(&self) -> String {
        let of_event = match self.verb() {
            "create" => "ADDED",
            "delete" => "DELETED",
            _ => "MODIFIED",
        };
        let object = self.after.as_ref().or(self.before.as_ref()).map(|object| self.shown(object));
        let changed = self.changed_paths();
        let managers = self.after.as_ref().map(|after| field_managers(after, &changed));
        json!({"time": rfc3339(self.time), "type": of_event, "object": object, "resource": self.resource,
            "user": self.user, "request": self.request, "changed": changed, "managers": managers})
        .to_string()
            + "\n"
    }

    fn shown(&self, object: &Value) -> Value {
        let mut object = object.clone();
        // As in a watch, also for a deletion.
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        let is_secret = self.resource == "secrets";
        if let Some(fields) = object.as_object_mut().filter(|_| is_secret) {
            fields.remove("data");
        }
        if let Some(metadata) = object["metadata"].as_object_mut() {
            metadata.remove("managedFields");
            // Such as the object that was last applied.
            metadata.retain(|field, _| !is_secret || field != "annotations");
        }
        object
    }

    /// `create`, `update` or `delete`
    #[must_use]
    pub fn verb(&self) -> &'static str {
        match (&self.before, &self.after) {
            (None, _) => "create",
            (Some(_), Some(_)) => "update",
            (Some(_), None) => "delete",
        }
    }

    /// Whether a client deleted the object. That of a claim or a Pod is first an update, which begins its deletion.
    #[must_use]
    pub fn is_deletion(&self) -> bool {
        self.verb() == "delete" || self.method == "DELETE"
    }

    /// The changed fields, without `managedFields` and those that every write changes: `.spec.replicas`, `.spec.ports[0].port`.
    #[must_use]
    pub fn changed_paths(&self) -> Vec<String> {
        match (&self.before, &self.after) {
            (Some(before), Some(after)) => changed_paths(before, after),
            _ => Vec::new(),
        }
    }
}

/// The paths of the fields in which two versions of an object differ, without those that change at every write.
#[must_use]
pub fn changed_paths(before: &Value, after: &Value) -> Vec<String> {
    let mut paths = Vec::new();
    differences(before, after, "", &mut paths);
    let is_of_every_write = |path: &String| {
        let fields = [".metadata.managedFields", ".metadata.resourceVersion", ".metadata.generation"];
        fields.iter().any(|field| path.starts_with(field))
    };
    paths.retain(|path| !is_of_every_write(path));
    paths
}

/// The manager of each field in `paths`, by the `managedFields` of the object: `kubectl`, or `helm, kubectl`. Empty if no manager owns the field.
#[must_use]
pub fn field_managers(object: &Value, paths: &[String]) -> Vec<String> {
    let managed = object["metadata"]["managedFields"].as_array().map_or(&[][..], Vec::as_slice);
    let managers = |path: &String| {
        let owning = managed.iter().filter(|entry| owns(&entry["fieldsV1"], object, path));
        let names: BTreeSet<&str> = owning.filter_map(|entry| entry["manager"].as_str()).collect();
        names.into_iter().collect::<Vec<_>>().join(", ")
    };
    paths.iter().map(managers).collect()
}

/// Whether a `fieldsV1` has the field at a path. `{}` owns everything below it.
fn owns(fields: &Value, value: &Value, path: &str) -> bool {
    let Some(fields) = fields.as_object() else { return false };
    if path.is_empty() || fields.is_empty() {
        return true;
    }
    let in_list = || path.strip_prefix('[').and_then(|path| path.split_once(']'));
    fields.iter().any(|(element, below)| match element.split_once(':') {
        Some(("f", key)) => path
            .strip_prefix('.')
            .and_then(|path| path.strip_prefix(key))
            .filter(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
            .is_some_and(|rest| owns(below, &value[key], rest)),
        Some((prefix, item)) => in_list().is_some_and(|(index, rest)| {
            let at = index.parse::<usize>().unwrap_or(usize::MAX);
            let item: Value = serde_json::from_str(item).unwrap_or_default();
            let is_this = match prefix {
                "k" => {
                    item.as_object().is_some_and(|keys| keys.iter().all(|(key, one)| value[at][key] == *one))
                }
                "v" => value[at] == item,
                _ => item == at,
            };
            is_this && owns(below, &value[at], rest)
        }),
        None => false,
    })
}

/// `2026-11-21T07:14:34.250120Z`. A client answers an event in less than a millisecond.
fn rfc3339(time: SystemTime) -> String {
    humantime::format_rfc3339_micros(time).to_string()
}

/// Adds the paths of the fields in which two values differ.
pub fn differences(before: &Value, after: &Value, at: &str, paths: &mut Vec<String>) {
    match (before, after) {
        (Value::Object(one), Value::Object(other)) => {
            let keys: BTreeSet<&String> = one.keys().chain(other.keys()).collect();
            for key in keys {
                differences(&before[key], &after[key], &format!("{at}.{key}"), paths);
            }
        }
        (Value::Array(one), Value::Array(other)) if one.len() == other.len() => {
            for (index, (before, after)) in one.iter().zip(other).enumerate() {
                differences(before, after, &format!("{at}[{index}]"), paths);
            }
        }
        (before, after) if before != after => paths.push(at.to_owned()),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_records_are_read_on_from_a_mark() {
        let mut latest = Latest::new(3);
        assert_eq!(latest.since(0), (vec![], 0));
        (1..=2).for_each(|record| latest.push(record));
        assert_eq!(latest.since(0), (vec![1, 2], 2));
        assert_eq!(latest.since(2), (vec![], 2));
        (3..=5).for_each(|record| latest.push(record));
        assert_eq!(latest.since(2), (vec![3, 4, 5], 5));
        assert_eq!(latest.since(1), (vec![3, 4, 5], 5), "2 is dropped");
        latest.clear();
        latest.push(6);
        assert_eq!(latest.since(2), (vec![6], 6));
    }

    #[test]
    fn a_field_has_the_managers_that_managed_fields_names() {
        let ports = json!({"k:{\"port\":80,\"protocol\":\"TCP\"}": {".": {}, "f:name": {}}});
        let managed = json!([
            {"manager": "helm", "fieldsV1": {"f:metadata": {"f:labels": {".": {}, "f:a.b/c": {}}}, "f:spec": {"f:ports": ports}}},
            {"manager": "kubectl", "fieldsV1": {"f:metadata": {"f:labels": {"f:a.b/c": {}}}, "f:spec": {"f:list": {}, "f:set": {"v:\"x\"": {}}}}},
        ]);
        let object = json!({"metadata": {"managedFields": managed, "labels": {"a.b/c": "1", "a": "2"}},
            "spec": {"ports": [{"port": 81, "protocol": "TCP"}, {"port": 80, "protocol": "TCP", "name": "web"}], "list": [1], "set": ["y", "x"]}});
        let expected = [
            (".metadata.labels.a.b/c", "helm, kubectl"),
            (".metadata.labels.a", ""),
            (".metadata.labels", "helm, kubectl"),
            (".spec.ports[0].name", ""),
            (".spec.ports[1].name", "helm"),
            (".spec.list[0]", "kubectl"),
            (".spec.set[0]", ""),
            (".spec.set[1]", "kubectl"),
            (".spec.gone", ""),
        ];
        let paths = expected.map(|(path, _)| path.to_owned());
        assert_eq!(field_managers(&object, &paths), expected.map(|(_, managers)| managers));
    }
}
