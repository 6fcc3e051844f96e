//! [`Builder`]: the watches of an operator, and what a change in them causes.
//!
//! ```text
//!   children, owns       objects that we control    ─► their owner
//!   index, watches       objects of others          ─► the keys that a function finds in them
//!   named, watches_each  what an object names       ─► that object
//!   waker                anything else              ─► the keys that it is called with
//! ```

use std::{
    any::{TypeId, type_name},
    future,
    sync::{Arc, Mutex, Once},
};

use serde::Serialize;

use super::{
    Awaited, Cleanup, Controller, NamedBy, Operator, Reconcile, ReconcileError, Shared, Tombstones, WORKERS,
};
use crate::{
    children::{Children, OfOwner, Reporter, Statuses},
    client::Leadership,
    cluster::{Cluster, Index, Watch},
    correction_backoff::CorrectionBackoff,
    queue::{Queue, Urgency},
    rbac::{self, Permission, Reach, Verb},
    resource::{Key, Resource, Scope, kinds::Pod, list::Found},
    store::{Change, Listening},
};

/// The verbs of a watch.
pub(super) const WATCHES: &[Verb] = &[Verb::List, Verb::Watch];
/// Why they are needed.
pub(super) const WHY_WATCHED: &str = "To reconcile an object of the operator when one of these changes.";

/// The objects of one kind, and what else their operator watches. [`Setup::kind`](crate::runtime::Setup::kind) makes it,
/// [`Builder::run_by`] ends it.
pub struct Builder<K> {
    pub(super) shared: Arc<Shared<K>>,
    /// Of the children, and of what belongs to them: the namespaces, and the label of the operator.
    scopes: Vec<Scope>,
    pub(super) listening: Vec<Listening>,
    pub(super) awaited: Vec<Box<Awaited>>,
    pub(super) named: Vec<Box<NamedBy<K>>>,
    children: Vec<Arc<dyn OfOwner>>,
}

impl<K: Resource> Builder<K> {
    /// The lower level, for objects of any scope: without status and Events, and with children in all namespaces.
    #[must_use]
    pub fn new(cluster: &Cluster, objects: &Watch<K>) -> Builder<K> {
        let reporter = Reporter::new(cluster, None);
        Builder::with(cluster, objects, vec![Scope::default()], reporter, None)
    }

    pub(crate) fn with(
        cluster: &Cluster,
        objects: &Watch<K>,
        scopes: Vec<Scope>,
        reporter: Reporter,
        statuses: Option<Statuses<K>>,
    ) -> Builder<K> {
        let shared = Arc::new(Shared {
            cluster: cluster.clone(),
            objects: objects.clone(),
            reporter: Arc::new(reporter),
            statuses,
            synced: Once::new(),
            queue: Queue::new(fastrand::Rng::new()).measured_by(cluster.metrics().queue(K::KIND)),
            tombstones: Tombstones::default(),
            held: Mutex::default(),
        });
        cluster.metrics().observe(&shared);
        let listener = Arc::clone(&shared);
        let listening = objects.listen(move |scope, change| {
            listener.object_changed(scope, change);
            if matches!(change, Change::Synced) {
                listener.report_synced();
            }
        });
        let mut builder = Builder {
            shared,
            scopes,
            listening: vec![listening],
            awaited: Vec::new(),
            named: Vec::new(),
            children: Vec::new(),
        };
        builder.awaits(objects);
        let reason = format!("To read each {}.", K::KIND);
        builder.declares::<K>(objects, &[Verb::Get, Verb::List, Verb::Watch], &reason);
        if builder.shared.statuses.is_some() {
            builder.declares_part("status", &[Verb::Patch], "To report conditions.");
        }
        builder
    }

    /// Declares that the operator sends these requests itself for objects of a kind, in the namespaces of its own objects, and why. What the
    /// builder opens is known, and so are the writes to children and to the status: this is for [`Cluster::get_live`],
    /// [`Cluster::create`] or [`Reconcile::keep_once`]. See
    /// [`Runtime::permissions`](crate::runtime::Runtime::permissions).
    pub fn needs<C: Resource>(&self, verbs: &[Verb], reason: &str) {
        self.declares::<C>(&self.shared.objects, verbs, reason);
    }

    /// Declares that [`Reconcile::rollout`] lists Pods.
    pub fn needs_pods(&self) {
        self.needs::<Pod>(&[Verb::List], "Optional: to report why the Pods of an object do not run.");
    }

    /// [`Builder::needs`], in all namespaces.
    pub fn needs_everywhere<C: Resource>(&self, verbs: &[Verb], reason: &str) {
        self.shared.cluster.declare(rbac::of::<C>(Reach::AllNamespaces, verbs, reason));
    }

    /// Declares requests for objects of a kind in the namespaces of a watch.
    fn declares<C: Resource>(&self, watch: &Watch<impl Resource>, verbs: &[Verb], reason: &str) {
        for reach in rbac::reaches(&watch.namespaces()) {
            self.shared.cluster.declare(rbac::of::<C>(reach, verbs, reason));
        }
    }

    /// Declares requests for a subresource of the own objects.
    fn declares_part(&self, part: &str, verbs: &[Verb], reason: &str) {
        for reach in rbac::reaches(&self.shared.objects.namespaces()) {
            self.shared.cluster.declare(rbac::of_part::<K>(part, reach, verbs, reason));
        }
    }

    /// The watch of the objects.
    #[must_use]
    pub fn objects(&self) -> &Watch<K> {
        &self.shared.objects
    }

    /// The children of one kind: objects with the label of the operator that one of our objects controls. They are watched, kept by
    /// [`Reconcile::keep`], and deleted after their owner. A change of a child reconciles its owner.
    #[must_use]
    pub fn children<C: Resource + Serialize>(&mut self) -> Children<C> {
        let watch = self.shared.cluster.watch_children::<K, C>(self.scopes.clone());
        self.children_in(&watch)
    }

    /// [`Builder::children`] in a watch of your own.
    #[must_use]
    pub fn children_in<C: Resource + Serialize>(&mut self, watch: &Watch<C>) -> Children<C> {
        let children = Children::new(&self.shared.cluster, watch).reported_by(&self.shared.reporter);
        let reason = "Never called. The ownerReferences of the children have blockOwnerDeletion. The admission plugin \
                      OwnerReferencesPermissionEnforcement (enabled in OpenShift) allows that only with this permission.";
        self.declares_part("finalizers", &[Verb::Update], reason);
        self.declares::<C>(watch, Verb::CHILDREN, "To create, correct and delete the children.");
        self.owns(watch);
        self.children.push(children.of_owner());
        children
    }

    /// Objects of another kind with the label of the operator, by the keys of our objects to which they belong. A change of one
    /// reconciles these objects.
    #[must_use]
    pub fn index<C: Resource, I: IntoIterator<Item = Key>>(
        &mut self,
        keys_of: impl Fn(&C) -> I + Clone + Send + Sync + 'static,
    ) -> Index<C, Key> {
        let watch = self.shared.cluster.watch::<C>(self.scopes.clone());
        let index = watch.index(keys_of.clone());
        self.watches(&watch, keys_of);
        index
    }

    /// The same, by their own keys.
    #[must_use]
    pub fn watch<C: Resource, I: IntoIterator<Item = Key>>(
        &mut self,
        keys_of: impl Fn(&C) -> I + Send + Sync + 'static,
    ) -> Watch<C> {
        let watch = self.shared.cluster.watch::<C>(self.scopes.clone());
        self.watches(&watch, keys_of);
        watch
    }

    /// When an object of another kind changes, also reconciles every key that `keys_of` returns for that object.
    /// `keys_of` is called for the object before and after the change, so that a removed label or ownerReference counts.
    pub fn watches<C: Resource, I: IntoIterator<Item = Key>>(
        &mut self,
        watch: &Watch<C>,
        keys_of: impl Fn(&C) -> I + Send + Sync + 'static,
    ) {
        self.declares::<C>(watch, WATCHES, WHY_WATCHED);
        self.hears(watch, move |found| found.readable().map(|object| keys_of(object)).into_iter().flatten());
        self.awaits(watch);
    }

    /// Reconciles the keys of each object before and after a change, also of one without its content.
    fn hears<C: Resource, I: IntoIterator<Item = Key>>(
        &mut self,
        watch: &Watch<C>,
        keys_of: impl Fn(&Found<C>) -> I + Send + Sync + 'static,
    ) {
        let (shared, keys_of) = (Arc::clone(&self.shared), Arc::new(keys_of));
        let listening = watch.listen(move |scope, change| shared.other_changed(scope, change, &*keys_of));
        self.listening.push(listening);
    }

    /// [`Builder::watches`] for objects whose controller ownerReference names one of our objects.
    pub fn owns<C: Resource>(&mut self, watch: &Watch<C>) {
        self.declares::<C>(watch, WATCHES, WHY_WATCHED);
        let shared = Arc::clone(&self.shared);
        self.hears(watch, move |child| shared.owner_of(child.metadata()));
        self.awaits(watch);
    }

    /// Once this watch has synced or fails in every namespace, reconciles every object again after each sync and each 403 of it.
    pub fn wakes_when_listed<C: Resource>(&mut self, watch: &Watch<C>) {
        let (shared, listened) = (Arc::clone(&self.shared), watch.clone());
        self.listening.push(watch.listen(move |_, change| {
            if matches!(change, Change::Synced | Change::Forbidden) && listened.is_synced_or_failing() {
                shared.release(&Scope::default());
                shared.objects.keys().iter().for_each(|key| shared.queue.add(key, Urgency::Backlog));
            }
        }));
    }

    /// Reconciles a key only after this watch has synced for the namespace of the key.
    fn awaits<C: Resource>(&mut self, watch: &Watch<C>) {
        let watch = watch.clone();
        self.awaited.push(Box::new(move |key| watch.readiness_for(key)));
    }

    /// A function that has an object reconciled, for changes outside the cluster: a message, a webhook, a user's
    /// request. For changes without a notification, return [`Next::After`](super::Next::After).
    pub fn waker(&self) -> impl Fn(&Key) + Send + Sync + use<K> {
        let shared = Arc::clone(&self.shared);
        move |key| shared.queue.add(key, Urgency::Change)
    }

    /// The controller.
    ///
    /// # Panics
    ///
    /// If the operator has a method `deleting`, and no [`Operator::FINALIZER`]: the method would never be called.
    pub fn run_by<O: Operator<Kind = K>>(self, operator: O) -> Controller<O> {
        let name = type_name::<O>();
        assert!(
            O::FINALIZER.is_some() || !has_deleting::<O>(),
            "the method `deleting` of {name} would never be called: name its `const FINALIZER`"
        );
        if let Some(finalizer) = O::FINALIZER {
            self.needs::<K>(&[Verb::Patch], &format!("To add and remove the finalizer {finalizer}."));
        }
        if self.shared.reporter.records_events() {
            for reach in rbac::reaches(&self.shared.objects.namespaces()) {
                self.shared.cluster.declare(Permission::of_events(reach));
            }
        }
        let Builder { shared, listening, awaited, named, children, scopes: _ } = self;
        Controller {
            shared,
            operator,
            children,
            _listening: listening,
            awaited,
            named,
            workers: WORKERS,
            leadership: Leadership::always(),
            corrections: CorrectionBackoff::default(),
            large: tokio::sync::Mutex::default(),
        }
    }
}

/// What [`Operator::deleting`] returns by default.
pub(super) type NothingToDelete = future::Ready<Result<Cleanup, ReconcileError>>;

/// Whether the operator has its own [`Operator::deleting`], by the type of the future.
fn has_deleting<O: Operator>() -> bool {
    fn returned<A, B, R: 'static>(_: fn(A, B) -> R) -> TypeId {
        TypeId::of::<R>()
    }
    returned::<&'static O, Reconcile<O::Kind>, _>(O::deleting) != TypeId::of::<NothingToDelete>()
}

#[cfg(all(test, feature = "testing"))]
mod tests {
    use std::time::Duration;

    use listwatch_apiserver::Fault;
    use serde::{Deserialize, Serialize};
    use serde_json::{Value, json};
    use tokio::time::{sleep, timeout};

    use super::*;
    use crate::{
        captured_log::CapturedLog,
        children::Conditions,
        client::{Part, Patch},
        cluster::Events,
        controller::Next,
        resource::{
            Labels, MANAGED_BY, ObjectMeta,
            conditions::{self, Verdict},
            kinds::{ConfigMap, Namespace},
        },
        runtime::Setup,
        testing::TestServer,
        watch::Lists,
    };

    const CRD: &str = "
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: notes.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {kind: Note, plural: notes, singular: note}
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}}
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
";

    #[derive(Serialize, Deserialize)]
    struct Note {
        metadata: ObjectMeta,
        spec: String,
        #[serde(default, skip_serializing)]
        status: Conditions,
    }

    crate::kind!(Note, "example.com", "v1", "notes");
    crate::reported!(Note, Conditions);

    /// Each Note becomes a ConfigMap.
    struct Notes {
        config_maps: Children<ConfigMap>,
        labels: Labels,
    }

    impl Operator for Notes {
        type Kind = Note;

        async fn reconcile(&self, note: Reconcile<Note>) -> Result<Next, ReconcileError> {
            let metadata = ObjectMeta::of_child(&*note, &note.metadata.name, self.labels.clone());
            let data = [("text".to_owned(), note.spec.clone())].into();
            note.keep(&self.config_maps, &ConfigMap { metadata, data, ..ConfigMap::default() }).await;
            note.finish(Conditions::default(), Verdict::yes("Written", "the ConfigMap has the text")).await
        }
    }

    fn controller_with(setup: &Setup, labels: &[(&str, &str)]) -> Controller<Notes> {
        let mut notes = setup.kind::<Note>("notes");
        let operator = Notes { config_maps: notes.children(), labels: labels.iter().copied().collect() };
        notes.run_by(operator)
    }

    async fn run(server: &TestServer) -> Vec<String> {
        server.run(|setup| controller_with(&setup, &[(MANAGED_BY, "notes")])).await
    }

    fn key() -> Key {
        Key::namespaced("default", "a")
    }

    async fn start(crd: &str) -> TestServer {
        let server = TestServer::start(&[crd]).await;
        let metadata =
            ObjectMeta { name: "a".into(), namespace: Some("default".into()), ..ObjectMeta::default() };
        let note = Note { metadata, spec: "hello".to_owned(), status: Conditions::default() };
        server.client.create(&note).await.expect("a Note");
        server
    }

    /// The reason and the message of `Ready`.
    async fn ready(server: &TestServer) -> (String, String) {
        let note: Note = server.client.get(&key()).await.expect("a Note");
        let ready = conditions::find(&note.status.conditions, "Ready").expect("the condition");
        (ready.reason.to_string(), ready.message.to_string())
    }

    #[tokio::test(start_paused = true)]
    async fn a_child_is_created_and_reported_once() {
        let server = start(CRD).await;
        assert_eq!(run(&server).await, ["POST configmaps/a 201", "PATCH notes/a/status 200"]);
        assert_eq!(ready(&server).await.0, "Written");
        assert_eq!(run(&server).await, [""; 0]);
    }

    /// Each create was answered, and the child was in no watch: nothing corrected it.
    #[tokio::test(start_paused = true)]
    async fn a_child_without_the_label_of_its_watch_is_an_error_and_is_not_created() {
        let server = start(CRD).await;
        let writes = server.run(|setup| controller_with(&setup, &[("app", "notes")])).await;
        assert_eq!(writes, ["PATCH notes/a/status 200"]);
        let (reason, message) = ready(&server).await;
        assert_eq!(reason, "ReconcileFailed");
        assert!(
            message.contains("lacks the labels of the watch, app.kubernetes.io/managed-by=notes"),
            "{message}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn an_object_says_if_its_operator_may_not_watch_its_children() {
        let server = start(CRD).await;
        server.server.fault(Fault::Forbidden(Vec::new()).on("GET", "/configmaps"));
        assert_eq!(run(&server).await, ["PATCH notes/a/status 200"]);
        let (reason, message) = ready(&server).await;
        assert_eq!(reason, "WatchFailed");
        assert!(message.contains("grant the verbs list and watch on the resource configmaps"), "{message}");
        server.server.end_faults();
        assert_eq!(run(&server).await, ["POST configmaps/a 201", "PATCH notes/a/status 200"]);
    }

    async fn annotate(server: &TestServer, paused: Value) {
        let edit = Patch::Merge(json!({"metadata": {"annotations": {"example.com/paused": paused}}}));
        server.client.patch::<Note>(&key(), Part::Object, &edit).await.expect("a Note");
    }

    /// The reasons of the Events about the Note.
    async fn events(server: &TestServer) -> Vec<String> {
        let path = "/apis/events.k8s.io/v1/namespaces/default/events";
        let answer = server.client.send(crate::client::Request::get(path)).await.expect("Events");
        let events: Value = serde_json::from_slice(&answer.body).expect("JSON");
        let events = events["items"].as_array().into_iter().flatten();
        events.map(|event| event["reason"].as_str().unwrap_or_default().to_owned()).collect()
    }

    /// What was missing or different after a pause was an Event about another writer.
    #[tokio::test(start_paused = true)]
    async fn a_paused_object_is_left_alone_until_it_goes_on() {
        let server = start(CRD).await;
        annotate(&server, "true".into()).await;
        assert_eq!(run(&server).await, ["PATCH notes/a/status 200"]);
        let (reason, message) = ready(&server).await;
        assert_eq!((&*reason, message.contains("example.com/paused")), ("Paused", true), "{message}");
        assert_eq!(run(&server).await, [""; 0]);
        annotate(&server, Value::Null).await;
        assert_eq!(run(&server).await, ["POST configmaps/a 201", "PATCH notes/a/status 200"]);
        assert_eq!(
            (&*ready(&server).await.0, events(&server).await),
            ("Written", vec!["Created".to_owned()])
        );
    }

    #[tokio::test(start_paused = true)]
    async fn without_the_status_subresource_the_error_says_what_the_crd_lacks() {
        let (log, server) =
            (CapturedLog::start(), start(&CRD.replace("    subresources: {status: {}}\n", "")).await);
        run(&server).await;
        let expected = "the CRD has no status subresource: add `subresources: {status: {}}` to its version";
        assert!(log.text().contains(expected), "{}", log.text());
    }

    #[tokio::test(start_paused = true)]
    async fn a_controller_of_a_watch_that_has_synced_before_logs_its_overview() {
        let (log, server) = (CapturedLog::start(), start(CRD).await);
        let (events, _unsent) = Events::new(server.client.clone(), "example.com/notes", String::new());
        let cluster = Cluster::new(server.client.clone(), Lists::Paged);
        let notes = cluster.watch::<Note>([Scope::default()]);
        while !notes.is_synced_for(&key()) {
            sleep(Duration::from_millis(10)).await;
        }
        let setup = Setup { cluster, events, namespaces: Vec::new() };
        let run = controller_with(&setup, &[]).run(std::future::pending());
        drop(timeout(Duration::from_secs(1), run).await);
        let text = log.text();
        assert_eq!(text.lines().filter(|line| line.contains("Notes at the start")).count(), 1, "{text}");
    }

    /// Fails, or keeps a ConfigMap after its report.
    struct Careless(Option<Children<ConfigMap>>);

    impl Operator for Careless {
        type Kind = Note;

        async fn reconcile(&self, note: Reconcile<Note>) -> Result<Next, ReconcileError> {
            let Some(config_maps) = &self.0 else { return Err("no disk".into()) };
            note.finish(Conditions::default(), Verdict::yes("Written", "not yet")).await?;
            let labels = [(MANAGED_BY, "notes")].into_iter().collect();
            let metadata = ObjectMeta::of_child(&*note, &note.metadata.name, labels);
            note.keep(config_maps, &ConfigMap { metadata, ..ConfigMap::default() }).await;
            Ok(Next::OnChange)
        }
    }

    /// A new object had no status, and an earlier one stayed ready.
    #[tokio::test(start_paused = true)]
    async fn an_error_of_the_operator_is_reported() {
        let server = start(CRD).await;
        let fail = |setup: Setup| setup.kind::<Note>("notes").run_by(Careless(None));
        assert_eq!(server.run(fail).await, ["PATCH notes/a/status 200"]);
        assert_eq!(ready(&server).await, ("OperatorFailed".to_owned(), "no disk".to_owned()));
        assert_eq!(server.run(fail).await, [""; 0]);
    }

    /// It was lost, and nothing was tried again.
    #[tokio::test(start_paused = true)]
    async fn a_child_that_fails_after_the_report_is_an_error() {
        let server = start(CRD).await;
        server.server.fault(Fault::Forbidden(Vec::new()).on("POST", "/configmaps").times(1));
        let keep_late = |setup: Setup| {
            let mut notes = setup.kind::<Note>("notes");
            let operator = Careless(Some(notes.children()));
            notes.run_by(operator)
        };
        let writes = server.run(keep_late).await;
        let created = writes.iter().filter(|write| write.starts_with("POST "));
        assert_eq!(created.collect::<Vec<_>>(), ["POST configmaps/a 403", "POST configmaps/a 201"]);
    }

    struct Forgetful;

    impl Operator for Forgetful {
        type Kind = Namespace;

        async fn reconcile(&self, _: Reconcile<Namespace>) -> Result<Next, ReconcileError> {
            Ok(Next::OnChange)
        }

        async fn deleting(&self, _: Reconcile<Namespace>) -> Result<Cleanup, ReconcileError> {
            Ok(Cleanup::Done)
        }
    }

    #[tokio::test]
    #[should_panic(expected = "would never be called: name its `const FINALIZER`")]
    async fn a_cleanup_without_the_name_of_its_finalizer_is_an_error_at_the_start() {
        let server = TestServer::start(&[]).await;
        server.run(|setup| setup.kind_without_status::<Namespace>("forgetful").run_by(Forgetful)).await;
    }
}
