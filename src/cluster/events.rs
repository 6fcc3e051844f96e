//! Events: what an operator did to an object, where `kubectl describe` shows it.
//!
//! ```json
//! {"apiVersion": "events.k8s.io/v1", "kind": "Event", "type": "Normal", "reason": "Created", "action": "Reconcile",
//!  "regarding": {"kind": "MyWebserver", "name": "web", …}, "note": "created Deployment mws-web", "series": {"count": 4, …}}
//! ```
//!
//! The same again becomes a series: one object whose count is written at the 2nd, 4th, 8th … time. Events are for
//! people and never hold up the work: what cannot be written at once is dropped.
//! See <https://kubernetes.io/docs/reference/kubernetes-api/cluster-resources/event-v1/>.

use std::{
    collections::HashMap,
    hash::{BuildHasher, BuildHasherDefault, DefaultHasher},
    sync::Arc,
};

use http::Method;
use serde_json::{Value, json};
use tokio::{
    sync::mpsc,
    time::{Duration, Instant},
};
use tracing::debug;

use crate::{
    client::{Client, Error, Request},
    resource::{Key, Resource, Uid},
};

/// Events that may wait to be written. An operator that does more than this at once has more important things to do.
const WAITING_MAX: usize = 256;
/// How long the same event counts as a repetition: client-go's six minutes.
const SERIES_IDLE: Duration = Duration::from_secs(360);
/// Series that are remembered at a time. Beyond it, the idle ones are forgotten, then all.
const SERIES_MAX: usize = 4096;
/// The API server refuses longer notes. Bytes.
const NOTE_BYTES_MAX: usize = 1024;

/// Whether something is as it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventType {
    /// It is.
    Normal,
    /// Somebody should look at it.
    Warning,
}

/// Records events in the background. Cheap to clone.
#[derive(Clone)]
pub struct Events {
    sender: mpsc::Sender<Event>,
}

struct Event {
    event_type: EventType,
    reason: &'static str,
    regarding: Arc<Value>,
    key: Key,
    uid: Uid,
    note: String,
}

impl Events {
    /// The recorder, and the task that writes: it runs until all recorders are dropped and what they said is written.
    ///
    /// `controller` is who reports, a qualified name; `instance` is which copy of it, as a rule the Pod's name.
    pub fn new(
        client: Client,
        controller: &'static str,
        instance: String,
    ) -> (Events, impl Future<Output = ()> + Send) {
        let (sender, mut receiver) = mpsc::channel::<Event>(WAITING_MAX);
        let mut writer =
            Writer { client, controller, instance, series: HashMap::new(), random: fastrand::Rng::new() };
        let task = async move {
            while let Some(event) = receiver.recv().await {
                if let Err(error) = writer.write(&event).await {
                    debug!(key = %event.key, event.reason, %error, "event not written");
                }
            }
        };
        (Events { sender }, task)
    }

    /// Says what happened to an object.
    pub fn record<K: Resource>(&self, object: &K, event_type: EventType, reason: &'static str, note: String) {
        let metadata = object.metadata();
        let regarding = Arc::new(json!({
            "apiVersion": K::api_version(), "kind": K::KIND,
            "namespace": metadata.namespace, "name": metadata.name, "uid": metadata.uid,
        }));
        let event =
            Event { event_type, reason, regarding, key: metadata.key(), uid: metadata.uid.clone(), note };
        // Full: dropped, as said above.
        let _ = self.sender.try_send(event);
    }
}

struct Writer {
    client: Client,
    controller: &'static str,
    instance: String,
    series: HashMap<(Uid, EventType, &'static str, u64), Series>,
    random: fastrand::Rng,
}

struct Series {
    path: String,
    count: u32,
    last: Instant,
}

impl Writer {
    async fn write(&mut self, event: &Event) -> Result<(), Error> {
        // With the note, or one that says something else would pass for a repetition, and be lost.
        let note = BuildHasherDefault::<DefaultHasher>::default().hash_one(&event.note);
        let id = (event.uid.clone(), event.event_type, event.reason, note);
        let now = humantime::format_rfc3339_micros(self.client.now()).to_string();
        let mut count = 1;
        if let Some(series) = self.series.get_mut(&id).filter(|series| series.last.elapsed() < SERIES_IDLE) {
            series.count += 1;
            series.last = Instant::now();
            if !series.count.is_power_of_two() {
                return Ok(());
            }
            count = series.count;
            let patch = json!({"series": {"count": count, "lastObservedTime": now}});
            let body = patch.to_string().into_bytes();
            let patch =
                Request::get(&*series.path).sends(Method::PATCH, "application/merge-patch+json", body);
            match self.client.send(patch).await {
                // The API server keeps an Event for an hour after its last write. Like client-go, create it again.
                Err(error) if error.is_not_found() => {}
                answer => return answer.map(drop),
            }
        }
        if self.series.len() >= SERIES_MAX {
            self.series.retain(|_, series| series.last.elapsed() < SERIES_IDLE);
        }
        if self.series.len() >= SERIES_MAX {
            self.series.clear();
        }
        let namespace = event.key.namespace.as_deref().unwrap_or("default");
        let name = format!("{}.{:016x}", event.key.name, self.random.u64(..));
        let collection = format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events");
        let mut body = json!({
            "apiVersion": "events.k8s.io/v1", "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "eventTime": now, "type": format!("{:?}", event.event_type),
            "reason": event.reason, "action": "Reconcile", "note": cut(&event.note),
            "reportingController": self.controller, "reportingInstance": self.instance,
            "regarding": *event.regarding,
        });
        if count > 1 {
            body["series"] = json!({"count": count, "lastObservedTime": now});
        }
        let post =
            Request::get(&*collection).sends(Method::POST, "application/json", body.to_string().into_bytes());
        self.client.send(post).await?;
        let series = Series { path: format!("{collection}/{name}"), count, last: Instant::now() };
        self.series.insert(id, series);
        Ok(())
    }
}

/// As much of a note as the API server takes.
fn cut(note: &str) -> &str {
    &note[..note.floor_char_boundary(NOTE_BYTES_MAX)]
}
