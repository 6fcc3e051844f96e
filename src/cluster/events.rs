//! Writes Events (events.k8s.io/v1): `kubectl describe` shows in them what an operator did to an object.
//!
//! ```json
//! {"apiVersion": "events.k8s.io/v1", "kind": "Event", "type": "Normal", "reason": "Created", "action": "Reconcile",
//!  "regarding": {"kind": "MyWebserver", "name": "web", …}, "note": "created Deployment mws-web", "series": {"count": 4, …}}
//! ```
//!
//! Equal Events become a series: one object whose count is written at the 2nd, 4th, 8th … time. Events never delay a
//! reconcile: they wait, at most [`WAITING_MAX`] of them, and are written one after another while no other request waits
//! for its answer.
//! See <https://kubernetes.io/docs/reference/kubernetes-api/cluster-resources/event-v1/>.

use std::{
    collections::HashMap,
    hash::{BuildHasher, BuildHasherDefault, DefaultHasher},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::SystemTime,
};

use serde_json::json;
use tokio::{
    sync::mpsc,
    task::yield_now,
    time::{Duration, Instant, sleep, timeout},
};
use tracing::{debug, warn};

use crate::{
    backoff::Backoff,
    client::{Client, Error, Patch, Request},
    resource::{Key, Resource, Uid},
};

/// Events that may wait to be written: one for each of ten thousand objects that are created at once. They take 2 MB, and
/// 12 MB where each has a note of the greatest length.
const WAITING_MAX: usize = 10_000;
/// How long one Event lets other requests go first. An operator that is always busy still writes one a second.
const GIVE_WAY_MAX: Duration = Duration::from_secs(1);
/// So many waiting Events no longer let other requests go first, so that none is dropped however long a burst lasts.
const GIVE_WAY_WAITING_MAX: usize = WAITING_MAX / 2;
/// Attempts at one Event while the API server does not answer or cannot write, and the pauses between them: about two
/// minutes, as in client-go, or longer where the API server asks for it.
const TRIES_MAX: u32 = 12;
const BACKOFF: Backoff = Backoff { first: Duration::from_secs(1), cap: Duration::from_secs(15) };
/// How long the same event counts as a repetition: client-go's six minutes.
const SERIES_IDLE: Duration = Duration::from_secs(360);
/// Series that are remembered at a time. Beyond it, the idle ones are forgotten, then all.
const SERIES_MAX: usize = 4096;
/// The API server refuses longer notes. Bytes.
const NOTE_BYTES_MAX: usize = 1024;
/// Most bytes of the object's name at the start of an Event's name, which has 253 bytes at most.
const OBJECT_NAME_MAX: usize = 253 - ".0123456789abcdef".len();

/// The type of an Event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventType {
    /// For information.
    Normal,
    /// A problem that a user should look at.
    Warning,
}

/// Records events in the background. Cheap to clone.
#[derive(Clone)]
pub struct Events {
    client: Client,
    sender: mpsc::Sender<Event>,
    dropped: Arc<AtomicUsize>,
}

struct Event {
    at: SystemTime,
    event_type: EventType,
    reason: &'static str,
    api_version: fn() -> String,
    kind: &'static str,
    key: Key,
    uid: Uid,
    note: Box<str>,
}

impl Events {
    /// The recorder, and the task that writes. The task runs until all recorders are dropped and all Events are written.
    ///
    /// `controller` is the `reportingController`, a qualified name; `instance` the `reportingInstance`, usually the name of
    /// the Pod.
    pub fn new(
        client: Client,
        controller: &'static str,
        instance: String,
    ) -> (Events, impl Future<Output = ()> + Send) {
        let (sender, receiver) = mpsc::channel(WAITING_MAX);
        let random = fastrand::Rng::new();
        let writer = Writer {
            client: client.clone(),
            controller,
            instance,
            waiting: receiver,
            in_hand: 0,
            series: HashMap::new(),
            lost: 0,
            random,
        };
        (Events { client, sender, dropped: Arc::default() }, writer.run())
    }

    /// Records an Event about an object, to be written in the background.
    pub fn record<K: Resource>(&self, object: &K, event_type: EventType, reason: &'static str, note: String) {
        if self.client.only_plans() {
            return;
        }
        let metadata = object.metadata();
        let event = Event {
            at: self.client.now(),
            event_type,
            reason,
            api_version: K::api_version,
            kind: K::KIND,
            key: metadata.key(),
            uid: metadata.uid.clone(),
            note: cut(&note).into(),
        };
        if self.sender.try_send(event).is_err() {
            let dropped = self.dropped.fetch_add(1, Ordering::Relaxed) + 1;
            // In a log line for each, the reason for the flood would be hard to find.
            if dropped.is_power_of_two() {
                warn!(
                    dropped,
                    waiting_max = WAITING_MAX,
                    "too many Events wait to be written; more are dropped"
                );
            }
        }
    }
}

struct Writer {
    client: Client,
    controller: &'static str,
    instance: String,
    waiting: mpsc::Receiver<Event>,
    /// Events that are being written: one at most.
    in_hand: usize,
    series: HashMap<(Uid, u64), Series>,
    /// Events that could not be written.
    lost: usize,
    random: fastrand::Rng,
}

/// An Event that was written, and may be repeated.
struct Series {
    /// The end of its name.
    suffix: u64,
    count: u32,
    last: Instant,
}

impl Drop for Writer {
    fn drop(&mut self) {
        let events = self.waiting.len() + self.in_hand;
        if events > 0 {
            warn!(events, "stopped before all Events were written");
        }
    }
}

impl Writer {
    async fn run(mut self) {
        while let Some(event) = self.waiting.recv().await {
            self.in_hand = 1;
            if self.waiting.len() < GIVE_WAY_WAITING_MAX {
                let _ = timeout(GIVE_WAY_MAX, self.others_go_first()).await;
            }
            if let Err(error) = self.write(&event).await {
                self.lose(&event, &error);
            }
            self.in_hand = 0;
        }
    }

    /// Logs that an Event is lost, at warn for the 1st, 2nd, 4th, 8th …
    fn lose(&mut self, event: &Event, error: &Error) {
        // Nothing can be written about the objects of a namespace that is being deleted, or is gone.
        let is_end_of_namespace = error.is_namespace_terminating() || error.is_not_found();
        self.lost += usize::from(!is_end_of_namespace);
        if is_end_of_namespace || !self.lost.is_power_of_two() {
            debug!(key = %event.key, event.reason, %error, "event not written");
        } else {
            warn!(lost = self.lost, key = %event.key, event.reason, %error, "event not written");
        }
    }

    /// Waits until no request is on its way, nor sent as soon as another is answered.
    async fn others_go_first(&self) {
        while !self.client.is_idle() {
            self.client.idle().await;
            yield_now().await;
        }
    }

    async fn write(&mut self, event: &Event) -> Result<(), Error> {
        // With the note, or one that says something else would pass for a repetition, and be lost.
        let words = BuildHasherDefault::<DefaultHasher>::default().hash_one((
            event.event_type,
            event.reason,
            &event.note,
        ));
        let id = (event.uid.clone(), words);
        let namespace = event.key.namespace.as_deref().unwrap_or("default");
        let collection = format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events");
        let object = &*event.key.name;
        let start = object.get(..OBJECT_NAME_MAX).unwrap_or(object).trim_end_matches(['.', '-']);
        let name = |suffix: u64| format!("{start}.{suffix:016x}");
        let at = humantime::format_rfc3339_micros(event.at).to_string();
        let mut count = 1;
        if let Some(series) = self.series.get_mut(&id).filter(|series| series.last.elapsed() < SERIES_IDLE) {
            series.count += 1;
            series.last = Instant::now();
            if !series.count.is_power_of_two() {
                return Ok(());
            }
            count = series.count;
            let patch = json!({"series": {"count": count, "lastObservedTime": at}});
            let path = format!("{collection}/{}", name(series.suffix));
            match self.send(Request::get(path).patches(&Patch::Merge(patch))).await {
                // The API server keeps an Event for an hour after its last write. Like client-go, create it again.
                Err(error) if error.is_not_found() => {}
                result => return result,
            }
        }
        make_room(&mut self.series);
        let suffix = self.random.u64(..);
        let mut body = json!({
            "apiVersion": "events.k8s.io/v1", "kind": "Event",
            "metadata": {"name": name(suffix), "namespace": namespace},
            "eventTime": at, "type": format!("{:?}", event.event_type),
            "reason": event.reason, "action": "Reconcile", "note": event.note,
            "reportingController": self.controller, "reportingInstance": self.instance,
            "regarding": {
                "apiVersion": (event.api_version)(), "kind": event.kind,
                "namespace": event.key.namespace, "name": event.key.name, "uid": event.uid,
            },
        });
        if count > 1 {
            body["series"] = json!({"count": count, "lastObservedTime": at});
        }
        match self.send(Request::post(collection, &body)).await {
            // An attempt that got no answer had been carried out.
            Err(error) if error.is_already_exists() => {}
            result => result?,
        }
        self.series.insert(id, Series { suffix, count, last: Instant::now() });
        Ok(())
    }

    /// Sends a request, again and again while the API server does not answer, or refuses what it may take later.
    async fn send(&mut self, request: Request) -> Result<(), Error> {
        let mut tries = 1;
        loop {
            let asked = match self.client.send(request.clone()).await {
                Err(error) if may_pass(&error) && tries < TRIES_MAX => {
                    error.retry_after().unwrap_or_default()
                }
                answer => return answer.map(drop),
            };
            sleep(BACKOFF.pause(tries, asked, &mut self.random)).await;
            tries += 1;
        }
    }
}

/// Once too many series are remembered, forgets the idle ones, and all of them if that is not enough.
fn make_room<K>(series: &mut HashMap<K, Series>) {
    if series.len() >= SERIES_MAX {
        series.retain(|_, series| series.last.elapsed() < SERIES_IDLE);
    }
    if series.len() >= SERIES_MAX {
        series.clear();
    }
}

/// Whether the same request may succeed soon. An etcd that elects a leader makes it a 500 without a reason; one with a reason
/// is as a rule a webhook that cannot be called, and what waits for its namespace would hold up all others.
fn may_pass(error: &Error) -> bool {
    let is_busy = error.status().is_some_and(|status| match status.code {
        500 => status.reason.is_empty(),
        429 | 501.. => true,
        _ => false,
    });
    error.is_connection() || error.is_interrupted() || (is_busy && !error.is_denied())
}

/// As much of a note as the API server takes.
fn cut(note: &str) -> &str {
    &note[..note.floor_char_boundary(NOTE_BYTES_MAX)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_too_many_series_are_forgotten_and_the_idle_ones_first() {
        let remember = |all: &mut HashMap<usize, Series>, count| {
            for _ in 0..count {
                all.insert(all.len(), Series { suffix: 0, count: 1, last: Instant::now() });
            }
        };
        let mut all = HashMap::new();
        remember(&mut all, SERIES_MAX - 1);
        tokio::time::advance(SERIES_IDLE).await;
        make_room(&mut all);
        assert_eq!(all.len(), SERIES_MAX - 1);
        remember(&mut all, 1);
        make_room(&mut all);
        assert_eq!(all.len(), 1);
        all.clear();
        remember(&mut all, SERIES_MAX);
        make_room(&mut all);
        assert_eq!(all.len(), 0);
    }
}
