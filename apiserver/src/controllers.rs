//! What happens in a cluster without being asked: garbage is collected, namespaces are emptied, Deployments are rolled
//! out, Pods run.
//!
//! One task does it all. It reads the journal of the storage, marks what a change is about (the object, its owners, its
//! dependents, its namespace) and looks at each of those once more. Like real controllers it only compares what is with
//! what should be, so a look too many does nothing.

mod garbage;
mod kubelet;
mod rollout;

pub(super) use kubelet::HEARTBEAT;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    Server,
    delete::Deletion,
    kinds::Kind,
    storage::{Change, Place, Storage},
    write::{self, Part, is_terminating},
};

/// Namespaces that every cluster has.
const NAMESPACES: [&str; 4] = ["default", "kube-node-lease", "kube-public", "kube-system"];

/// Each namespace has the certificate of the server in here.
const ROOT_CA: &str = "kube-root-ca.crt";

/// What a new cluster holds.
pub(super) fn bootstrap(storage: &mut Storage, ca_pem: &str) {
    for name in NAMESPACES {
        make(storage, "", "namespaces", None, json!({"metadata": {"name": name}}));
        furnish(storage, name, ca_pem);
    }
    kubelet::register(storage);
}

/// Runs until aborted.
pub(super) async fn run(server: Arc<Server>, ca_pem: String) {
    let mut controllers = Controllers {
        dirty: Dirty::default(),
        later: BTreeSet::new(),
        due: BTreeMap::new(),
        started: HashMap::new(),
        pod_start: server.pod_start,
        heartbeat: server.heartbeat,
        ca_pem,
    };
    let mut written = server.storage().written();
    controllers.look_again(&kubelet::node(), server.heartbeat);
    loop {
        controllers.mark_changes(&mut server.storage());
        while let Some(place) = controllers.dirty.next() {
            {
                let mut storage = server.storage();
                controllers.look_at(&mut storage, &place);
                controllers.mark_changes(&mut storage);
            }
            // Requests come first.
            tokio::task::yield_now().await;
        }
        let wake = controllers.later.first().map(|(at, _)| *at);
        tokio::select! {
            // One order of events is one history. Time comes first, or many writes would put it off.
            biased;
            () = sleep_until(wake) => controllers.mark_due(),
            changed = written.changed() => {
                if changed.is_err() {
                    return;
                }
            }
        }
    }
}

async fn sleep_until(wake: Option<Instant>) {
    match wake {
        Some(wake) => tokio::time::sleep_until(wake).await,
        None => std::future::pending().await,
    }
}

/// What is still to be looked at.
struct Controllers {
    dirty: Dirty,
    later: BTreeSet<(Instant, Place)>,
    /// The one time in `later` at which a place is looked at.
    due: BTreeMap<Place, Instant>,
    /// When the kubelet first saw a Pod that it is to look at again, by uid.
    started: HashMap<String, Instant>,
    pod_start: Duration,
    heartbeat: Duration,
    ca_pem: String,
}

/// Places to look at, each once, first come first served: an object with much to do has its next turn after all others.
#[derive(Default)]
struct Dirty {
    queue: VecDeque<Place>,
    known: HashSet<Place>,
}

impl Dirty {
    fn insert(&mut self, place: Place) {
        if self.known.insert(place.clone()) {
            self.queue.push_back(place);
        }
    }

    fn extend(&mut self, places: impl IntoIterator<Item = Place>) {
        places.into_iter().for_each(|place| self.insert(place));
    }

    fn next(&mut self) -> Option<Place> {
        let place = self.queue.pop_front()?;
        self.known.remove(&place);
        Some(place)
    }
}

impl Controllers {
    fn mark_changes(&mut self, storage: &mut Storage) {
        for (collection, change) in storage.take_journal() {
            self.mark(storage, &collection, &change);
        }
    }

    fn mark_due(&mut self) {
        let now = Instant::now();
        while self.later.first().is_some_and(|(at, _)| *at <= now) {
            let Some((_, place)) = self.later.pop_first() else { return };
            self.due.remove(&place);
            self.dirty.insert(place);
        }
    }

    /// The first of several times is enough: whoever looks then says when to look again.
    fn look_again(&mut self, place: &Place, after: Duration) {
        let at = Instant::now() + after;
        match self.due.get(place) {
            Some(sooner) if *sooner <= at => return,
            Some(later) => self.later.remove(&(*later, place.clone())),
            None => false,
        };
        self.later.insert((at, place.clone()));
        self.due.insert(place.clone(), at);
    }

    /// Everything that a change may matter to.
    fn mark(&mut self, storage: &Storage, collection: &str, change: &Change) {
        let place = Place { collection: collection.to_owned(), key: change.key.clone() };
        for object in [&change.before, &change.after].into_iter().flatten() {
            for owner in owners(object) {
                self.dirty.extend(owner_place(storage, &place, owner));
            }
        }
        let leaves = change.after.as_ref().is_none_or(|after| is_terminating(after));
        if let (true, Some(object)) = (leaves, &change.before) {
            self.dirty.extend(storage.dependents(uid(object)));
        }
        if let (None, Some(namespace)) = (&change.after, place.namespace()) {
            self.dirty.insert(Place::new("namespaces", None, namespace));
        }
        self.dirty.insert(place);
    }

    fn look_at(&mut self, storage: &mut Storage, place: &Place) {
        garbage::collect(storage, place);
        let Some(object) = storage.get(place).cloned() else { return };
        match place.collection.as_str() {
            "namespaces" => self.namespace(storage, place, &object),
            "deployments.apps" => rollout::deployment(self, storage, place, &object),
            "replicasets.apps" => rollout::replica_set(self, storage, place, &object),
            "pods" => kubelet::pod(self, storage, place, &object),
            "nodes" if *place == kubelet::node() => kubelet::heartbeat(self, storage),
            _ => {}
        }
    }

    /// A live namespace has its furniture; one that is to go is emptied first.
    fn namespace(&self, storage: &mut Storage, place: &Place, namespace: &Value) {
        if !is_terminating(namespace) {
            return furnish(storage, place.name(), &self.ca_pem);
        }
        let mut content = Vec::new();
        for collection in storage.kinds.collections().into_keys() {
            let objects = storage.collection(&collection).map(|collection| collection.objects.keys());
            let keys = objects
                .into_iter()
                .flatten()
                .map(|key| Place { collection: collection.clone(), key: key.clone() });
            content.extend(keys.filter(|content| content.namespace() == Some(place.name())));
        }
        for content in &content {
            delete(storage, content, &Deletion::default());
        }
        let left: Vec<_> =
            content.iter().filter_map(|place| Some((place, storage.get(place)?.clone()))).collect();
        if left.is_empty() {
            change(storage, place, Part::Finalize, |namespace| namespace["spec"]["finalizers"] = json!([]));
            return;
        }
        let now = storage.clock.time();
        change(storage, place, Part::Status, |namespace| {
            for (kind, status, reason, message) in remaining(&left) {
                set_condition(namespace, kind, status, reason, &message, &now);
            }
        });
    }
}

/// What a namespace that is going says of what is left in it. In the words of kube-controller-manager
/// (pkg/controller/namespace/deletion/status_condition_utils.go).
fn remaining(left: &[(&Place, Arc<Value>)]) -> [(&'static str, &'static str, &'static str, String); 5] {
    let mut resources = BTreeMap::<String, usize>::new();
    let mut held = BTreeMap::<String, usize>::new();
    for (place, object) in left {
        // `configmaps.`, of no group, and `deployments.apps`.
        let dot = if place.collection.contains('.') { "" } else { "." };
        *resources.entry(format!("{}{dot}", place.collection)).or_default() += 1;
        for finalizer in write::finalizers(object) {
            *held.entry(finalizer.to_owned()).or_default() += 1;
        }
    }
    let listed = |counts: &BTreeMap<String, usize>, verb: &str| {
        let each = counts.iter().map(|(what, count)| format!("{what} {verb} {count} resource instances"));
        each.collect::<Vec<_>>().join(", ")
    };
    let finalizers = match held.is_empty() {
        true => ("False", "ContentHasNoFinalizers", "All content-preserving finalizers finished".to_owned()),
        false => {
            let message =
                format!("Some content in the namespace has finalizers remaining: {}", listed(&held, "in"));
            ("True", "SomeFinalizersRemain", message)
        }
    };
    let fine = |kind, reason, message: &str| (kind, "False", reason, message.to_owned());
    [
        fine(
            "NamespaceDeletionDiscoveryFailure",
            "ResourcesDiscovered",
            "All resources successfully discovered",
        ),
        fine(
            "NamespaceDeletionGroupVersionParsingFailure",
            "ParsedGroupVersions",
            "All legacy kube types successfully parsed",
        ),
        fine(
            "NamespaceDeletionContentFailure",
            "ContentDeleted",
            "All content successfully deleted, may be waiting on finalization",
        ),
        (
            "NamespaceContentRemaining",
            "True",
            "SomeResourcesRemain",
            format!("Some resources are remaining: {}", listed(&resources, "has")),
        ),
        ("NamespaceFinalizersRemaining", finalizers.0, finalizers.1, finalizers.2),
    ]
}

/// What every namespace has: an account for its Pods, and the certificate of the server.
fn furnish(storage: &mut Storage, namespace: &str, ca_pem: &str) {
    let account = Place::new("serviceaccounts", Some(namespace), "default");
    if storage.get(&account).is_none() {
        make(storage, "", "serviceaccounts", Some(namespace), json!({"metadata": {"name": "default"}}));
    }
    let ca = Place::new("configmaps", Some(namespace), ROOT_CA);
    if storage.get(&ca).is_none() {
        let object = json!({"metadata": {"name": ROOT_CA}, "data": {"ca.crt": ca_pem}});
        make(storage, "", "configmaps", Some(namespace), object);
    }
}

fn uid(object: &Value) -> &str {
    object["metadata"]["uid"].as_str().unwrap_or_default()
}

fn owners(object: &Value) -> impl Iterator<Item = &Value> {
    object["metadata"]["ownerReferences"].as_array().into_iter().flatten()
}

/// Where an owner would be: in the namespace of its dependent, or in none. `None` for a kind that nobody serves.
fn owner_place(storage: &Storage, dependent: &Place, owner: &Value) -> Option<Place> {
    let text = |field: &str| owner[field].as_str().unwrap_or_default();
    let kind = storage.kinds.by_kind(text("apiVersion"), text("kind"))?;
    let namespace = if kind.namespaced { Some(dependent.namespace()?) } else { None };
    Some(Place::new(kind.stored_in(), namespace, text("name")))
}

/// Create an object. What is refused (the namespace is going away, the name is taken) is tried again when something changes.
fn make(
    storage: &mut Storage,
    group: &str,
    plural: &str,
    namespace: Option<&str>,
    object: Value,
) -> Option<Arc<Value>> {
    let kind = storage.kinds.built_in(group, plural);
    match write::create(storage, &kind, namespace, object, &mut write::Options::default()) {
        Ok(object) => Some(object),
        Err(refusal) => {
            tracing::debug!(kind = kind.kind, why = refusal.message(), "a controller could not create");
            None
        }
    }
}

fn kind_at(storage: &Storage, place: &Place) -> Option<Arc<Kind>> {
    storage.kinds.of_collection(&place.collection).cloned()
}

/// Change an object, if the change makes a difference.
fn change(storage: &mut Storage, place: &Place, part: Part, edit: impl FnOnce(&mut Value)) {
    let (Some(kind), Some(object)) = (kind_at(storage, place), storage.get(place)) else { return };
    let mut object = kind.view(object).into_owned();
    edit(&mut object);
    if let Err(refusal) = write::update(storage, &kind, place, object, part, &mut write::Options::default()) {
        tracing::debug!(%place, why = refusal.message(), "a controller could not update");
    }
}

fn delete(storage: &mut Storage, place: &Place, deletion: &Deletion) {
    let Some(kind) = kind_at(storage, place) else { return };
    if let Err(refusal) = super::delete::delete(storage, &kind, place, deletion) {
        tracing::debug!(%place, why = refusal.message(), "a controller could not delete");
    }
}

/// Set a condition; its transition time moves only with its status.
pub(super) fn set_condition(
    object: &mut Value,
    kind: &str,
    status: &str,
    reason: &str,
    message: &str,
    now: &str,
) {
    let conditions = &mut object["status"]["conditions"];
    if !conditions.is_array() {
        *conditions = json!([]);
    }
    let Some(conditions) = conditions.as_array_mut() else { return };
    let mut new = json!({"type": kind, "status": status, "reason": reason, "message": message,
        "lastTransitionTime": now});
    match conditions.iter_mut().find(|condition| condition["type"] == kind) {
        Some(old) => {
            if old["status"] == status {
                new["lastTransitionTime"] = old["lastTransitionTime"].clone();
            }
            *old = new;
        }
        None => conditions.push(new),
    }
}

/// Tell what was done, as an Event on the object.
fn tell(storage: &mut Storage, about: &Value, component: &str, reason: &str, message: &str) {
    write_event(storage, about, component, "Normal", reason, message);
}

/// The same of something that went wrong.
fn warn(storage: &mut Storage, about: &Value, component: &str, reason: &str, message: &str) {
    write_event(storage, about, component, "Warning", reason, message);
}

fn write_event(
    storage: &mut Storage,
    about: &Value,
    component: &str,
    kind: &str,
    reason: &str,
    message: &str,
) {
    let metadata = &about["metadata"];
    let namespace = metadata["namespace"].as_str().unwrap_or("default").to_owned();
    let name = metadata["name"].as_str().unwrap_or_default();
    let now = storage.clock.time();
    let event = json!({
        "metadata": {"name": format!("{name}.{:x}{:04x}", storage.clock.nanos(), fastrand::u16(..))},
        "involvedObject": {"kind": about["kind"], "apiVersion": about["apiVersion"], "name": name,
            "namespace": namespace, "uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]},
        "reason": reason, "message": message, "type": kind, "count": 1, "source": {"component": component},
        "reportingComponent": component, "firstTimestamp": now, "lastTimestamp": now,
    });
    make(storage, "", "events", Some(&namespace), event);
}
