//! The controllers: garbage collection, namespaces, Secrets of ServiceAccounts, Deployments, ReplicaSets, ReplicationControllers, StatefulSets, DaemonSets, claims and volumes, endpoints of Services,
//! Jobs, CronJobs, PodDisruptionBudgets, ResourceQuotas, HorizontalPodAutoscalers, ValidatingAdmissionPolicies, and a simulated scheduler and kubelet. They write Events about what they do.
//!
//! All controllers run in one task. It reads the journal of the storage. For each change, it queues the object, its
//! owners, its dependents and its namespace, and reconciles each of them. Like the controllers of Kubernetes, they
//! compare the current state with the desired state, so an extra reconcile does no harm.

mod account_secret;
mod autoscaler;
mod daemon_set;
mod disruption;
mod endpoints;
mod eviction;
mod flow_control;
mod garbage;
mod job;
mod kubelet;
mod policy;
mod quota;
mod replica_set;
mod role;
mod rollout;
mod scheduler;
mod stateful_set;
mod volume;

pub(crate) use eviction::evict;
pub(crate) use kubelet::HEARTBEAT;
pub use kubelet::NODE;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque},
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
    time::Duration,
};

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    apply::managed_fields::Manager,
    kinds::{
        Kind, Part,
        conditions::set_condition,
        defaults::PRIORITIES,
        field_checks::text,
        metadata::{finalizers, is_terminating},
        pods::has_ended,
    },
    state::Server,
    status::StatusError,
    storage::{Change, Place, Storage},
    tokens::SigningKey,
    verbs::{
        delete::{Deletion, Propagation},
        served_kinds,
        write::{self, WriteOptions},
    },
};

/// Namespaces that every cluster has.
const NAMESPACES: [&str; 4] = ["default", "kube-node-lease", "kube-public", "kube-system"];

/// The ConfigMap in each namespace with the certificate of the server.
const ROOT_CA: &str = "kube-root-ca.crt";

/// Its description: pkg/controller/certificates/rootcacertpublisher/publisher.go.
const ROOT_CA_DESCRIPTION: &str = "Contains a CA bundle that can be used to verify the kube-apiserver when using internal \
    endpoints such as the internal service IP or kubernetes.default.svc. No other usage is guaranteed across distributions of Kubernetes clusters.";

/// Creates the objects that every cluster has and, with controllers, a Node and the kinds of a metrics server.
pub(crate) fn bootstrap(storage: &mut Storage, ca_pem: &str, with_node: bool) {
    for name in NAMESPACES {
        make(storage, "", "namespaces", None, json!({"metadata": {"name": name}}));
        create_defaults(storage, name, ca_pem);
    }
    let kubernetes = json!({
        "metadata": {"name": "kubernetes", "labels": {"component": "apiserver", "provider": "kubernetes"}},
        "spec": {"clusterIP": "10.96.0.1", "ports": [{"name": "https", "port": 443, "targetPort": 6443}]},
    });
    make(storage, "", "services", Some("default"), kubernetes);
    endpoints::of_api_server(storage);
    role::bootstrap(storage);
    flow_control::bootstrap(storage);
    for (name, value) in PRIORITIES {
        let description = if name.ends_with("node-critical") {
            "Used for system critical pods that must not be moved from their current node."
        } else {
            "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary."
        };
        let class = json!({"metadata": {"name": name}, "value": value, "description": description});
        make(storage, "scheduling.k8s.io", "priorityclasses", None, class);
    }
    if with_node {
        volume::make_class(storage);
        kubelet::register(storage);
        served_kinds::serve_metrics(storage);
    }
}

/// Runs all controllers. Runs until aborted.
pub(crate) async fn run(server: Arc<Server>, ca_pem: String) {
    let mut controllers = Controllers {
        queue: Queue::default(),
        later: BTreeSet::new(),
        due: BTreeMap::new(),
        started: HashMap::new(),
        waiting: HashMap::new(),
        triggers: HashMap::new(),
        recommendations: HashMap::new(),
        rescaled: HashMap::new(),
        scrape: None,
        pod_start: server.pod_start,
        heartbeat: server.heartbeat,
        ca_pem,
        key: Arc::clone(&server.key),
    };
    let mut written = server.storage().written();
    controllers.requeue(&kubelet::node(), server.heartbeat);
    loop {
        controllers.mark_changes(&mut server.storage());
        while let Some(place) = controllers.queue.next() {
            {
                let mut storage = server.storage();
                controllers.reconcile(&mut storage, &place);
                controllers.mark_changes(&mut storage);
            }
            // Requests go first.
            tokio::task::yield_now().await;
        }
        let wake = controllers.later.first().map(|(at, _)| *at);
        tokio::select! {
            // `biased` makes the order deterministic. The timer comes first, so that frequent writes do not delay it.
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

/// The queue of the controllers, and their state.
struct Controllers {
    queue: Queue,
    later: BTreeSet<(Instant, Place)>,
    /// The time at which each place in `later` is due.
    due: BTreeMap<Place, Instant>,
    /// When the kubelet first saw each Pod that is not settled yet, by uid.
    started: HashMap<String, Instant>,
    /// The Pods that wait for each claim to be bound, or for the node to have room.
    waiting: HashMap<Place, BTreeSet<Place>>,
    /// The times that the endpoints of each Service have seen.
    triggers: HashMap<Place, endpoints::Triggers>,
    /// What the metrics of each autoscaler asked for in the last minutes.
    recommendations: HashMap<Place, Vec<autoscaler::Recommendation>>,
    /// When an autoscaler last changed the replicas of its target.
    rescaled: HashMap<Place, Instant>,
    /// The latest changes of PodMetrics.
    scrape: Option<autoscaler::Scrape>,
    pod_start: Duration,
    heartbeat: Duration,
    ca_pem: String,
    key: Arc<SigningKey>,
}

/// A FIFO queue of places to reconcile, without duplicates. An object with much work goes back to the end of the queue.
#[derive(Default)]
struct Queue {
    order: VecDeque<Place>,
    known: HashSet<Place>,
}

impl Queue {
    fn insert(&mut self, place: Place) {
        if self.known.insert(place.clone()) {
            self.order.push_back(place);
        }
    }

    fn extend(&mut self, places: impl IntoIterator<Item = Place>) {
        places.into_iter().for_each(|place| self.insert(place));
    }

    fn next(&mut self) -> Option<Place> {
        let place = self.order.pop_front()?;
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
            self.queue.insert(place);
        }
    }

    /// Queues a place for later. Only the earliest time counts: the reconcile at that time asks for the next one.
    fn requeue(&mut self, place: &Place, after: Duration) {
        // Some deadlines are later than any time.
        let Some(at) = Instant::now().checked_add(after) else { return };
        match self.due.get(place) {
            Some(sooner) if *sooner <= at => return,
            Some(later) => self.later.remove(&(*later, place.clone())),
            None => false,
        };
        self.later.insert((at, place.clone()));
        self.due.insert(place.clone(), at);
    }

    /// Queues everything that a change may affect.
    fn mark(&mut self, storage: &Storage, collection: &str, change: &Change) {
        let place = Place { collection: collection.to_owned(), key: change.key.clone() };
        for object in [&change.before, &change.after].into_iter().flatten() {
            for owner in owners(object) {
                self.queue.extend(owner_place(storage, &place, owner));
            }
        }
        let leaves = change.after.as_ref().is_none_or(|after| is_terminating(after));
        if let (true, Some(object)) = (leaves, &change.before) {
            self.queue.extend(storage.dependents(uid(object)));
        }
        if place.namespace().is_some() && quota::may_count(collection, change) {
            self.queue.extend(quota::quotas_of(storage, &place));
        }
        if collection == autoscaler::METRICS {
            self.scrape = Some(autoscaler::Scrape::after(self.scrape.take()));
        }
        self.queue.extend(autoscaler::affected(storage, &place));
        if collection == role::ROLES {
            self.queue.extend(role::aggregating(storage));
        }
        if collection == "endpoints" {
            self.queue.insert(Place { collection: "services".to_owned(), key: change.key.clone() });
        }
        if collection == "serviceaccounts" {
            self.queue.extend(account_secret::secrets_of(storage, &place));
        }
        if collection == "persistentvolumes" || collection == "storageclasses.storage.k8s.io" {
            self.queue.extend(volume::waiting_claims(storage));
            self.queue.extend(change.after.as_deref().and_then(volume::claim_of));
        }
        if collection == "pods" {
            let pods = [&change.before, &change.after];
            for pod in pods.into_iter().flatten() {
                self.queue.extend(volume::claims_of(pod));
                self.queue.extend(disruption::budgets_of(storage, pod));
                self.queue.extend(endpoints::services_of(storage, pod));
            }
        }
        if collection == "pods" && change.after.as_ref().is_none_or(|pod| has_ended(pod)) {
            self.queue.extend(self.waiting.remove(&kubelet::node()).into_iter().flatten());
        }
        self.queue.extend(self.waiting.remove(&place).into_iter().flatten());
        if let (None, Some(namespace)) = (&change.after, place.namespace()) {
            self.queue.insert(Place::new("namespaces", None, namespace));
        }
        self.queue.insert(place);
    }

    fn reconcile(&mut self, storage: &mut Storage, place: &Place) {
        garbage::collect(storage, place);
        let Some(object) = storage.get(place).cloned() else {
            if place.collection == "services" {
                endpoints::clean_up(self, storage, place);
            }
            if place.collection == "persistentvolumeclaims" {
                volume::release(storage, place);
            }
            if place.collection == "pods" {
                autoscaler::forget_metrics(storage, place);
            }
            self.recommendations.remove(place);
            self.rescaled.remove(place);
            return;
        };
        match place.collection.as_str() {
            "namespaces" => self.namespace(storage, place, &object),
            "deployments.apps" => rollout::deployment(self, storage, place, &object),
            "replicasets.apps" | "replicationcontrollers" => {
                replica_set::replica_set(self, storage, place, &object);
            }
            "statefulsets.apps" => stateful_set::stateful_set(self, storage, place, &object),
            "poddisruptionbudgets.policy" => disruption::budget(storage, place, &object),
            autoscaler::AUTOSCALERS => autoscaler::autoscaler(self, storage, place, &object),
            "daemonsets.apps" => daemon_set::daemon_set(self, storage, place, &object),
            "services" => endpoints::service(self, storage, place, &object),
            "configmaps" if place.name() == ROOT_CA => {
                change(storage, place, Part::Main, |object| set_root_ca(object, &self.ca_pem));
            }
            "resourcequotas" => quota::quota(storage, place, &object),
            policy::POLICIES => policy::policy(storage, place, &object),
            role::ROLES => role::aggregate(storage, place, &object),
            "secrets" => account_secret::secret(self, storage, place, &object),
            "persistentvolumes" => volume::volume(storage, place, &object),
            "jobs.batch" => job::job(self, storage, place, &object),
            "cronjobs.batch" => job::cron_job(self, storage, place, &object),
            "persistentvolumeclaims" => volume::claim(storage, place, &object),
            "pods" => {
                job::release_orphan(storage, place, &object);
                kubelet::pod(self, storage, place, &object);
            }
            "nodes" if *place == kubelet::node() => kubelet::heartbeat(self, storage),
            _ => {}
        }
    }

    /// Creates the default objects of a live namespace; empties a terminating one.
    fn namespace(&self, storage: &mut Storage, place: &Place, namespace: &Value) {
        if !is_terminating(namespace) {
            return create_defaults(storage, place.name(), &self.ca_pem);
        }
        let collections = storage.kinds.collections().into_keys();
        let content: Vec<Place> =
            collections.flat_map(|name| storage.places_in(&name, place.name())).collect();
        // Nothing goes before the Pods that may use it.
        let (pods, others) = content.into_iter().partition(|content| content.collection == "pods");
        let pods = delete_all(storage, pods);
        let left = if pods.is_empty() { delete_all(storage, others) } else { Vec::new() };
        if pods.is_empty() && left.is_empty() {
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

/// Deletes objects, with those that they own. Returns those that are still there.
fn delete_all(storage: &mut Storage, places: Vec<Place>) -> Vec<(Place, Arc<Value>)> {
    let background = Deletion { propagation: Some(Propagation::Background), ..Deletion::default() };
    places.iter().for_each(|place| delete(storage, place, &background));
    let left = places.into_iter().filter_map(|place| Some((storage.get(&place)?.clone(), place)));
    left.map(|(object, place)| (place, object)).collect()
}

/// The conditions of a terminating namespace with this content, with the messages of kube-controller-manager
/// (pkg/controller/namespace/deletion/status_condition_utils.go). It counts nothing while there are Pods.
fn remaining(left: &[(Place, Arc<Value>)]) -> [(&'static str, &'static str, &'static str, String); 5] {
    let mut resources = BTreeMap::<String, usize>::new();
    let mut held = BTreeMap::<String, usize>::new();
    for (place, object) in left {
        // In the message: `configmaps.` for the core group, but `deployments.apps`.
        let dot = if place.collection.contains('.') { "" } else { "." };
        *resources.entry(format!("{}{dot}", place.collection)).or_default() += 1;
        for finalizer in finalizers(object) {
            *held.entry(finalizer.to_owned()).or_default() += 1;
        }
    }
    let listed = |counts: &BTreeMap<String, usize>, verb: &str| {
        let each = counts.iter().map(|(what, count)| format!("{what} {verb} {count} resource instances"));
        each.collect::<Vec<_>>().join(", ")
    };
    let fine = |kind, reason, message: &str| (kind, "False", reason, message.to_owned());
    let content = if resources.is_empty() {
        fine("NamespaceContentRemaining", "ContentRemoved", "All content successfully removed")
    } else {
        let message = format!("Some resources are remaining: {}", listed(&resources, "has"));
        ("NamespaceContentRemaining", "True", "SomeResourcesRemain", message)
    };
    let finalizers = if held.is_empty() {
        let message = "All content-preserving finalizers finished";
        fine("NamespaceFinalizersRemaining", "ContentHasNoFinalizers", message)
    } else {
        let held = listed(&held, "in");
        let message = format!("Some content in the namespace has finalizers remaining: {held}");
        ("NamespaceFinalizersRemaining", "True", "SomeFinalizersRemain", message)
    };
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
        content,
        finalizers,
    ]
}

/// Creates the default objects of a namespace: a ServiceAccount for its Pods, and the certificate of the server.
fn create_defaults(storage: &mut Storage, namespace: &str, ca_pem: &str) {
    let account = Place::new("serviceaccounts", Some(namespace), "default");
    if storage.get(&account).is_none() {
        make(storage, "", "serviceaccounts", Some(namespace), json!({"metadata": {"name": "default"}}));
    }
    let ca = Place::new("configmaps", Some(namespace), ROOT_CA);
    if storage.get(&ca).is_none() {
        let mut object = json!({"metadata": {"name": ROOT_CA}});
        set_root_ca(&mut object, ca_pem);
        make(storage, "", "configmaps", Some(namespace), object);
    }
}

/// Restores the data after a change. Only a description beside the right data may be another.
fn set_root_ca(config_map: &mut Value, ca_pem: &str) {
    let data = json!({"ca.crt": ca_pem});
    if text(&config_map["metadata"]["annotations"]["kubernetes.io/description"]).is_empty()
        || config_map["data"] != data
    {
        config_map["metadata"]["annotations"]["kubernetes.io/description"] = ROOT_CA_DESCRIPTION.into();
        config_map["data"] = data;
    }
}

fn uid(object: &Value) -> &str {
    object["metadata"]["uid"].as_str().unwrap_or_default()
}

/// How a Pod or a claim fails, by its annotation `listwatch/simulate`.
fn simulation(object: &Value) -> &str {
    object["metadata"]["annotations"]["listwatch/simulate"].as_str().unwrap_or_default()
}

fn owners(object: &Value) -> impl Iterator<Item = &Value> {
    object["metadata"]["ownerReferences"].as_array().into_iter().flatten()
}

/// Removes an owner from the ownerReferences of an object.
fn release(storage: &mut Storage, dependent: &Place, owner: &Value) {
    change(storage, dependent, Part::Main, |object| {
        let kept = owners(object).filter(|one| one["uid"] != uid(owner)).cloned().collect();
        object["metadata"]["ownerReferences"] = kept;
    });
}

/// The place of an owner: in the namespace of its dependent, or cluster-scoped. `None` if its kind is not served.
fn owner_place(storage: &Storage, dependent: &Place, owner: &Value) -> Option<Place> {
    let text = |field: &str| owner[field].as_str().unwrap_or_default();
    let kind = storage.kinds.by_kind(text("apiVersion"), text("kind"))?;
    let namespace = if kind.namespaced { Some(dependent.namespace()?) } else { None };
    Some(Place::new(kind.stored_in(), namespace, text("name")))
}

/// Creates an object. A failure (the namespace is terminating, the name is taken) is retried after the next change.
fn make(
    storage: &mut Storage,
    group: &str,
    plural: &str,
    namespace: Option<&str>,
    object: Value,
) -> Option<Arc<Value>> {
    try_make(storage, group, plural, namespace, object).ok()
}

fn try_make(
    storage: &mut Storage,
    group: &str,
    plural: &str,
    namespace: Option<&str>,
    object: Value,
) -> Result<Arc<Value>, StatusError> {
    let kind = storage.kinds.built_in(group, plural);
    let made = write::create(storage, &kind, namespace, object, &mut WriteOptions::default());
    if let Err(error) = &made {
        tracing::debug!(kind = kind.kind, why = error.message(), "a controller could not create");
    }
    made
}

/// The kind in the stored version of an object, so that nothing is converted.
fn stored_kind(storage: &Storage, place: &Place, object: &Value) -> Option<Arc<Kind>> {
    let stored = storage.kinds.by_kind(text(&object["apiVersion"]), text(&object["kind"])).cloned();
    stored.or_else(|| kind_at(storage, place))
}

fn kind_at(storage: &Storage, place: &Place) -> Option<Arc<Kind>> {
    storage.kinds.of_collection(&place.collection).cloned()
}

/// Updates an object. Without a difference, nothing is written. A failure is retried after the next change.
fn change(storage: &mut Storage, place: &Place, part: Part, edit: impl FnOnce(&mut Value)) {
    if let Err(error) = try_change(storage, place, part, edit, Manager::default()) {
        tracing::debug!(%place, why = error.message(), "a controller could not update");
    }
}

fn try_change(
    storage: &mut Storage,
    place: &Place,
    part: Part,
    edit: impl FnOnce(&mut Value),
    manager: Manager,
) -> Result<(), StatusError> {
    let Some(object) = storage.get(place) else { return Ok(()) };
    let Some(kind) = stored_kind(storage, place, object) else { return Ok(()) };
    let mut object = kind.view(object)?.into_owned();
    edit(&mut object);
    let options = &mut WriteOptions { manager, ..WriteOptions::default() };
    write::update(storage, &kind, place, object, part, options)?;
    Ok(())
}

fn delete(storage: &mut Storage, place: &Place, deletion: &Deletion) {
    let Some(kind) = kind_at(storage, place) else { return };
    if let Err(error) = crate::verbs::delete::delete(storage, &kind, place, deletion) {
        tracing::debug!(%place, why = error.message(), "a controller could not delete");
    }
}

/// Records a normal Event on the object.
fn record(storage: &mut Storage, about: &Value, component: &str, reason: &str, message: &str) {
    write_event(storage, about, component, "Normal", reason, message);
}

/// Records a warning Event on the object.
fn record_warning(storage: &mut Storage, about: &Value, component: &str, reason: &str, message: &str) {
    write_event(storage, about, component, "Warning", reason, message);
}

/// As [`record_warning`], but only if there is no such Event.
fn record_warning_once(storage: &mut Storage, about: &Value, component: &str, reason: &str, message: &str) {
    if storage.get(&event_place(about, component, "Warning", reason, message)).is_none() {
        record_warning(storage, about, component, reason, message);
    }
}

/// The same name for the same Event, which is then counted.
fn event_place(about: &Value, component: &str, kind: &str, reason: &str, message: &str) -> Place {
    let metadata = &about["metadata"];
    let mut hasher = DefaultHasher::new();
    (uid(about), component, kind, reason, message).hash(&mut hasher);
    let name = format!("{}.{:016x}", text(&metadata["name"]), hasher.finish());
    Place::new("events", Some(metadata["namespace"].as_str().unwrap_or("default")), &name)
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
    let now = storage.clock.time();
    let known = event_place(about, component, kind, reason, message);
    if storage.get(&known).is_some() {
        return change(storage, &known, Part::Main, |event| {
            event["count"] = (event["count"].as_i64().unwrap_or_default() + 1).into();
            event["lastTimestamp"] = now.into();
        });
    }
    let event = json!({
        "metadata": {"name": known.name()},
        "involvedObject": {"kind": about["kind"], "apiVersion": about["apiVersion"], "name": metadata["name"],
            "namespace": namespace, "uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]},
        "reason": reason, "message": message, "type": kind, "count": 1, "source": {"component": component},
        "reportingComponent": component, "firstTimestamp": now, "lastTimestamp": now,
    });
    make(storage, "", "events", Some(&namespace), event);
}
