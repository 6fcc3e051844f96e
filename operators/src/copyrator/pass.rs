//! One pass over the copies of a rule: a bounded number of steps, some of them at the same time.
//!
//! ```text
//!   plan ─► Create ─► POST, after a failure Check first         409: Check
//!           Check  ─► GET ─► decide ─► PATCH, or DELETE and POST
//!           Delete ─► DELETE
//! ```
//!
//! A step that fails stops no other one. It is tried again after a pause ([`backoff`](super::backoff)).

use std::{collections::HashSet, mem, sync::Arc, time::Duration};

use listwatch::{
    children::{Refusal, UNSEEN_RECHECK, Write},
    client::Error,
    cluster::{Cluster, Index, Watch},
    resource::{Key, ObjectMeta, Resource, Scope, Uid, kinds::Namespace, list::Found},
    store::{Change, Listening},
    traces,
};
use smol_str::SmolStr;
use tokio::{task::JoinSet, time::Instant};

use super::{
    backoff::{CopyBackoffs, Place, Setback},
    copy::{ALL_COPIES, Copied, Copyable, Mark, Original, with_edits},
    outcome::{DISPUTED, NAME_CONFLICT, Pass, failure, terminating},
    plan::{CopyStep, Decision, Maker, View, decide, is_active, plan},
    types::{CopyFailure, CopyratorRule, CopyratorSpec, Once, RuleType, SyncPolicy},
};

/// Most steps in one pass, unless [`PASSES`] ask for more. The rule is reconciled again at once for the rest, after other rules.
const STEPS_MAX: usize = 1000;
/// In about so many passes, all copies are there. Each pass plans all of them, so with a share that does not grow with their
/// number, the CPU time for one copy would.
const PASSES: usize = 10;
/// How long a pass starts new steps: less than the time that a stopping controller waits.
const PASS_LIMIT: Duration = Duration::from_secs(10);
/// Steps at the same time. The API server answers most writes in a few milliseconds, and has other clients.
const PARALLEL: usize = 8;
/// Most bytes of the sources of such steps, unless it is one step: each has its source up to four times, as the copy and in requests.
const PARALLEL_BYTES_MAX: usize = 1024 * 1024;

/// The copies of one kind.
pub(super) struct Copies<K> {
    cluster: Cluster,
    pub(super) watch: Watch<Copied<K>>,
    by_rule: Index<Copied<K>, Uid>,
    backoffs: Arc<CopyBackoffs>,
    _listening: Listening,
}

/// Finds the rule that copies an object.
type CopiedBy = dyn Fn(RuleType, &ObjectMeta) -> Option<Key> + Send + Sync;

/// The rule of a pass, shared by its steps.
pub(super) struct Order {
    pub(super) rule: Arc<CopyratorRule>,
    pub(super) spec: Arc<CopyratorSpec>,
    pub(super) maker: Box<dyn Fn(&Mark) -> Maker + Send + Sync>,
    /// The rule that copies an object, if any.
    pub(super) copied_by: Box<CopiedBy>,
}

/// The result of a step.
enum Done {
    Wrote(Write),
    Kept,
    Conflict(CopyFailure),
}

impl<K: Copyable> Copies<K> {
    /// `is_rule`: whether the rule that is named in a copy exists. Anybody may write the marks of a copy.
    pub(super) fn new(
        cluster: &Cluster,
        is_rule: impl Fn(&Mark) -> bool + Clone + Send + Sync + 'static,
    ) -> Arc<Copies<K>> {
        let watch = cluster.watch([Scope { labels: ALL_COPIES.to_owned(), ..Scope::default() }]);
        let by_rule =
            watch.index(|copied: &Copied<K>| copied.mark.as_ref().map(|mark| mark.rule_uid.clone()));
        let backoffs = Arc::<CopyBackoffs>::default();
        let lost = Arc::clone(&backoffs);
        let listening = watch.listen(move |_, change| {
            let Change::Deleted { last, .. } = change else { return };
            let mark = last.readable().and_then(|copied| copied.mark.as_ref());
            if let Some(mark) = mark.filter(|mark| is_rule(mark)) {
                lost.lost((mark.rule_uid.clone(), last.metadata().key()));
            }
        });
        Arc::new(Copies { cluster: cluster.clone(), watch, by_rule, backoffs, _listening: listening })
    }

    /// Makes the copies of a rule complete, or begins to, and adds the result to the pass.
    pub(super) async fn keep(
        self: &Arc<Self>,
        order: &Arc<Order>,
        sources: Vec<Found<K>>,
        targets: &[SmolStr],
        namespaces: &Watch<Namespace>,
        pass: &mut Pass,
    ) {
        let uid = &order.rule.metadata.uid;
        let namespace = |name: &str| namespaces.get(&Key::cluster(name));
        let uid_of = |name: &SmolStr| namespace(name).map(|namespace| namespace.metadata.uid.clone());
        let before = &order.rule.status.once;
        let copied: HashSet<_> = before.sources.iter().map(String::as_str).collect();
        let copied_to: HashSet<_> = before.namespaces.iter().collect();
        let is_once = order.spec.sync_policy == SyncPolicy::Once && order.spec.rule_type == K::RULE_TYPE;
        let was_created = |original: &Original<K>, namespace: &SmolStr| {
            is_once
                && copied.contains(&*original.version())
                && uid_of(namespace).is_some_and(|uid| copied_to.contains(&uid))
        };
        let ours = self.by_rule.get(uid);
        let steps_max = STEPS_MAX.max(ours.len().max(sources.len() * targets.len()) / PASSES);
        let is_complete = sources.iter().all(|source| source.readable().is_some());
        if !is_complete {
            pass.waits_until(Instant::now() + UNSEEN_RECHECK);
        }
        let mut lost = self.backoffs.all_lost(uid);
        let mut pause = |step: &CopyStep<K>| {
            if let CopyStep::Create(..) = step {
                lost.remove(&step.key());
            }
            self.backoffs.pause(&order.rule, step)
        };
        let view = View {
            targets,
            ours,
            find: &|key| self.watch.get(key),
            was_created: &was_created,
            maker: &order.maker,
            pause: &mut pause,
            steps_max,
            is_active: &|name| namespace(name).is_some_and(|namespace| is_active(&namespace)),
        };
        let steps = plan(&order.rule, &order.spec, sources, view, pass);
        for unwanted in lost {
            self.backoffs.forget(&(uid.clone(), unwanted));
        }
        self.run(order, steps, steps_max, pass).await;
        if is_once {
            pass.once = if pass.left == 0 && pass.copies == pass.wanted && is_complete {
                Once::new(mem::take(&mut pass.versions), targets.iter().filter_map(uid_of).collect())
            } else {
                before.clone()
            };
        }
    }

    /// Runs steps until the pass has its share of them, its time is over, or the API server does not accept requests.
    async fn run(
        self: &Arc<Self>,
        order: &Arc<Order>,
        steps: Vec<CopyStep<K>>,
        steps_max: usize,
        pass: &mut Pass,
    ) {
        let (start, mut running) = (Instant::now(), JoinSet::new());
        let try_lasting = self.backoffs.try_lasting();
        let (mut started, mut bytes) = (0, 0);
        let mut steps = steps.into_iter().peekable();
        loop {
            let may_start = |pass: &Pass| pass.error.is_none() && start.elapsed() < PASS_LIMIT;
            while running.len() < PARALLEL && started < steps_max && may_start(pass) {
                let has_room =
                    |step: &CopyStep<K>| running.is_empty() || bytes + step.bytes() <= PARALLEL_BYTES_MAX;
                let Some(step) = steps.next_if(has_room) else { break };
                started += 1;
                let step_bytes = step.bytes();
                bytes += step_bytes;
                // A verified copy is counted already.
                pass.copies -= usize::from(!step.writes());
                let (copies, order) = (Arc::clone(self), Arc::clone(order));
                running.spawn(traces::part(async move {
                    let (key, wanted) = (step.key(), step.digest());
                    (key, wanted, step_bytes, copies.step(&order, step).await)
                }));
            }
            let Some(ended) = running.join_next().await else { break };
            match ended {
                Ok((key, digest, step_bytes, result)) => {
                    bytes -= step_bytes;
                    self.ended(&order.rule, key, digest, result, try_lasting, pass);
                }
                // The panic of a step is a panic of the reconcile.
                Err(error) => std::panic::resume_unwind(error.into_panic()),
            }
        }
        for step in steps {
            pass.left += 1;
            pass.has_writes_left |= step.writes();
        }
    }

    /// Adds the result of a step to the pass. A copy with a lasting failure is not tried before `try_lasting`.
    fn ended(
        &self,
        rule: &CopyratorRule,
        key: Key,
        digest: SmolStr,
        result: Result<Done, Error>,
        try_lasting: Instant,
        pass: &mut Pass,
    ) {
        let place = (rule.metadata.uid.clone(), key.clone());
        let setback = match result {
            Ok(Done::Wrote(write @ Write::Restored(_))) => {
                pass.writes.push(write);
                Setback::Corrected
            }
            Ok(Done::Wrote(write)) => {
                pass.copies += usize::from(!matches!(write, Write::Deleted(_)));
                pass.writes.push(write);
                return self.backoffs.forget(&place);
            }
            Ok(Done::Kept) => {
                pass.copies += 1;
                return self.backoffs.kept(&place);
            }
            Ok(Done::Conflict(failure)) => Setback::Failed(failure),
            Err(error) if error.is_conflict() => Setback::Outdated,
            Err(error) if error.is_namespace_terminating() || error.is_not_found() => Setback::Gone,
            Err(error) => match Refusal::of(&error) {
                Some(refusal) => Setback::Failed(failure(&key, refusal.reason(), refusal.message(&error))),
                None => {
                    pass.error = Some(error);
                    return;
                }
            },
        };
        let is_corrected = matches!(setback, Setback::Corrected);
        let wanted = (rule.metadata.generation, digest);
        let (failure, end) = self.backoffs.begin(place, wanted, setback, try_lasting);
        pass.copies += usize::from(is_corrected && failure.is_none());
        if failure.as_ref().is_some_and(|failure| failure.reason == DISPUTED)
            && let Some(copied) = self.watch.get(&key)
        {
            // So it is read again at the end of the pause, and is not up to date until then.
            copied.doubted();
        }
        pass.pauses((failure, end));
    }

    async fn step(&self, order: &Order, step: CopyStep<K>) -> Result<Done, Error> {
        let key = step.key();
        let place = (order.rule.metadata.uid.clone(), key.clone());
        match &step {
            CopyStep::Create(original, namespace) if !self.backoffs.has(&place) => {
                self.create(order, original, &place).await
            }
            // A create counts against a ResourceQuota even if it fails, so a GET comes first.
            CopyStep::Create(original, namespace) => match self.check(order, original, namespace).await {
                Err(error) if error.is_not_found() => self.create(order, original, &place).await,
                checked => checked,
            },
            CopyStep::Check(original, namespace) | CopyStep::Verify(original, namespace) => {
                self.check(order, original, namespace).await
            }
            CopyStep::Delete(copied) => {
                self.cluster.delete(&**copied).await.map(|()| Done::Wrote(Write::Deleted(key.to_string())))
            }
        }
    }

    async fn create(&self, order: &Order, original: &Original<K>, place: &Place) -> Result<Done, Error> {
        let namespace = place.1.namespace.as_deref().unwrap_or_default();
        match self.cluster.create(&Copied::to_create(original.copy_for(namespace))).await {
            Ok(created) => {
                self.verified(&created);
                let write = if self.backoffs.is_lost(place) { Write::Restored } else { Write::Created };
                Ok(Done::Wrote(write(place.1.to_string())))
            }
            Err(error) if error.is_already_exists() => self.check(order, original, namespace).await,
            Err(error) => Err(error),
        }
    }

    /// Reads the object that has the name of the copy, and makes it the copy if it may be.
    async fn check(&self, order: &Order, original: &Original<K>, namespace: &str) -> Result<Done, Error> {
        let mut desired = original.copy_for(namespace);
        let key = desired.key();
        let found = self.cluster.get_live::<K>(&key).await?;
        let live = &*found;
        if live.metadata().is_terminating() {
            return Ok(Done::Conflict(terminating(live.metadata())));
        }
        let mark = Mark::of(live.metadata());
        let maker = mark.as_ref().map(|mark| (order.maker)(mark));
        if matches!(maker, Some(Maker::Gone) | None)
            && let Some(rule) = (order.copied_by)(K::RULE_TYPE, live.metadata())
        {
            // As a copy, the object would no longer be a source, and that rule would delete all copies of it.
            let message = format!(
                "the CopyratorRule {rule} copies the object that has this name: rename one of the two, or exclude its namespace"
            );
            return Ok(Done::Conflict(failure(&key, NAME_CONFLICT, message)));
        }
        // The source has not changed since the copy was made, by this rule or another one.
        let may_be_edited = order.spec.sync_policy == SyncPolicy::Once
            && mark.as_ref().is_some_and(|mark| original.is_up_to_date(mark));
        if may_be_edited {
            desired = with_edits(&desired, live);
        }
        let seen = |copied: &Copied<K>| {
            if !may_be_edited {
                self.verified(copied);
            }
        };
        let is_same_source = mark.as_ref().is_some_and(|mark| original.is_source_of(mark));
        let is_edited = |mark: Arc<Mark>| original.is_up_to_date(&mark) || mark.is_incomplete();
        let is_drift = maker == Some(Maker::Us) && mark.is_some_and(is_edited);
        let decision = decide(live, &desired, maker, is_same_source, order.spec.conflict_policy);
        let live = Arc::new(Copied::of(live));
        // It may be larger than its source.
        drop(found);
        match decision {
            Decision::Keep => {
                seen(&live);
                Ok(Done::Kept)
            }
            Decision::Patch(operations) => {
                let patched = self.cluster.patch(&*live, operations).await?;
                seen(&patched);
                let write = if is_drift { Write::Restored } else { Write::Updated };
                Ok(Done::Wrote(write(key.to_string())))
            }
            Decision::Replace(claim) => {
                let ours = if claim.is_empty() { live } else { self.cluster.patch(&*live, claim).await? };
                self.cluster.delete(&*ours).await?;
                let created = self.cluster.create(&Copied::to_create(desired)).await?;
                self.verified(&created);
                Ok(Done::Wrote(Write::Updated(key.to_string())))
            }
            Decision::Conflict(reason, message) => Ok(Done::Conflict(failure(&key, reason, message))),
        }
    }

    /// The content of this version is known. The watch may have put another object of this version into the Store.
    fn verified(&self, seen: &Copied<K>) {
        seen.verified();
        let stored = self.watch.get(&seen.key());
        if let Some(stored) =
            stored.filter(|stored| stored.metadata().resource_version == seen.metadata().resource_version)
        {
            stored.verified();
        }
    }
}

#[cfg(test)]
mod tests {
    use listwatch_apiserver::{ApiServer, Fault, Options};
    use serde_json::{Value, json};
    use smol_str::format_smolstr;

    use super::{super::backoff::LASTING_EACH, *};
    use listwatch::{
        client::{Client, Config},
        resource::kinds::ConfigMap,
        watch::Lists,
    };

    /// An embedded server, and the copies on it.
    struct Fixture {
        server: ApiServer,
        copies: Arc<Copies<ConfigMap>>,
    }

    const COPY: &str = "default/settings";

    impl Fixture {
        async fn start() -> Fixture {
            let server = ApiServer::start(Options { controllers: false, ..Options::default() }).await;
            let server = server.expect("a server");
            let config = Config::new(&server.url(), server.ca_pem().as_bytes(), server.token());
            let client = Client::new(config.expect("a config")).expect("a client");
            let copies = Copies::<ConfigMap>::new(&Cluster::new(client, Lists::Paged), |_| true);
            let (sender, mut synced) = tokio::sync::mpsc::unbounded_channel();
            let _listening = copies.watch.listen(move |_, change| {
                if let Change::Synced = change {
                    sender.send(()).expect("a receiver");
                }
            });
            synced.recv().await.expect("a sender");
            Fixture { server, copies }
        }

        /// A pass for one source, with these metadata of the rule.
        async fn pass(&self, metadata: Value, targets: &[SmolStr]) -> Pass {
            let mut rule = json!({
                "metadata": {"name": "main-rule", "namespace": "sources", "uid": "u", "resourceVersion": "1"},
                "ruleType": "configmap", "selector": {"copyrator": "true"}, "status": {"copies": 0, "failed": 1},
            });
            rule["metadata"]
                .as_object_mut()
                .expect("metadata")
                .extend(metadata.as_object().expect("fields").clone());
            let rule: CopyratorRule = serde_json::from_value(rule).expect("a rule");
            let spec = rule.spec.clone().expect("the fields of a rule");
            let (maker, copied_by) = (Box::new(|_: &Mark| Maker::Us), Box::new(|_, _: &ObjectMeta| None));
            let order = Order { rule: Arc::new(rule), spec: Arc::new(spec), maker, copied_by };
            let metadata = json!({"name": "settings", "namespace": "sources", "resourceVersion": "1"});
            let source: ConfigMap = serde_json::from_value(json!({"metadata": metadata})).expect("a source");
            let namespaces = self.copies.cluster.watch::<Namespace>([Scope::default()]);
            let mut pass = Pass::default();
            self.copies
                .keep(
                    &Arc::new(order),
                    vec![Found::Readable(Arc::new(source))],
                    targets,
                    &namespaces,
                    &mut pass,
                )
                .await;
            pass
        }

        async fn delete(&self) {
            let copy = self.copies.watch.get(&Key::namespaced("default", "settings")).expect("a copy");
            self.copies.cluster.delete(&*copy).await.expect("an answer");
        }
    }

    /// Each of 10,000 taken names was read once a minute, for ever.
    #[tokio::test]
    async fn the_more_names_are_taken_the_less_often_each_is_read() {
        let world = Fixture::start().await;
        let targets: Vec<_> = (0..100).map(|number| format_smolstr!("team-{number}")).collect();
        for target in &targets {
            let metadata = ObjectMeta { name: target.clone(), ..ObjectMeta::default() };
            let namespace = Namespace { metadata, ..Namespace::default() };
            world.copies.cluster.create(&namespace).await.expect("a namespace");
            let (name, namespace) = ("settings".into(), Some(target.clone()));
            let metadata = ObjectMeta { name, namespace, ..ObjectMeta::default() };
            let theirs = ConfigMap { metadata, ..ConfigMap::default() };
            world.copies.cluster.create(&theirs).await.expect("a ConfigMap");
        }
        let (begun, mut pass) = (Instant::now(), Pass::default());
        for generation in 1..3 {
            pass = world.pass(json!({"generation": generation}), &targets).await;
            assert_eq!(pass.failures.len(), targets.len());
        }
        let retry = pass.retry.expect("a pause");
        assert!(retry - begun >= LASTING_EACH * 100, "{:?}", retry - begun);
        let reads = || {
            let requests = world.server.requests();
            let is_read = |path: &str| path.ends_with("/configmaps/settings");
            requests.iter().filter(|request| request.method == "GET" && is_read(&request.path)).count()
        };
        let before = reads();
        pass = world.pass(json!({"generation": 2}), &targets).await;
        assert_eq!((pass.failures.len(), pass.retry, reads()), (100, Some(retry), before));
        // The rule is changed, and nobody waits.
        pass = world.pass(json!({"generation": 3}), &targets).await;
        assert_eq!((pass.failures.len(), reads()), (100, before + 100));
    }

    /// The failure of a source that gave way to an older one counted as a copy that was there before. So the first copy counted
    /// as restored, and the correction of an edit waited. The restored copy was reported as a new one.
    #[tokio::test]
    async fn a_new_copy_is_corrected_at_once_and_a_restored_one_after_a_pause() {
        let world = Fixture::start().await;
        let pass = async |targets: &[SmolStr]| world.pass(json!({}), targets).await;
        let targets = ["default".into()];
        let first = pass(&targets).await;
        assert_eq!((first.writes, first.retry), (vec![Write::Created(COPY.to_owned())], None));
        world.delete().await;
        let second = pass(&targets).await;
        assert_eq!(second.writes, [Write::Restored(COPY.to_owned())]);
        assert!(second.retry.is_some());
        // A deleted copy that is not wanted any more is not restored later, but created.
        world.delete().await;
        pass(&[]).await;
        let last = pass(&targets).await;
        assert_eq!(last.writes, [Write::Created(COPY.to_owned())]);
    }

    /// Otherwise, a client that removes the annotation again and again would be answered each time at once.
    #[tokio::test]
    async fn the_correction_of_a_copy_that_lost_its_digest_is_a_restoration() {
        let world = Fixture::start().await;
        let targets = ["default".into()];
        world.pass(json!({}), &targets).await;
        let copy = world.copies.watch.get(&Key::namespaced("default", "settings")).expect("a copy");
        let edit = json!({"op": "remove", "path": "/metadata/annotations/flant.com~1content"});
        world.copies.cluster.patch(&*copy, vec![edit]).await.expect("a copy");
        let corrected = world.pass(json!({}), &targets).await;
        assert_eq!(corrected.writes, [Write::Restored(COPY.to_owned())]);
        assert!(corrected.retry.is_some());
    }

    /// The deletion of a rule waited for the end of the pause of a copy that was no longer wanted, up to a minute.
    #[tokio::test]
    async fn after_a_failure_a_changed_or_deleted_rule_waits_for_nothing() {
        let world = Fixture::start().await;
        let targets = ["default".into()];
        world.server.fault(Fault::Quota("full".to_owned()).on("POST", "/configmaps"));
        let failed = world.pass(json!({"generation": 1}), &targets).await;
        assert_eq!((failed.failures.len(), failed.retry.is_some()), (1, true));
        let waiting = world.pass(json!({"generation": 1}), &targets).await;
        assert_eq!((waiting.failures.len(), waiting.retry), (1, failed.retry));
        let deleted = json!({"generation": 2, "deletionTimestamp": "2030-01-01T00:00:00Z"});
        let deleting = world.pass(deleted, &[]).await;
        assert_eq!((deleting.left, deleting.retry), (0, None));
        world.server.end_faults();
        let changed = world.pass(json!({"generation": 2}), &targets).await;
        assert_eq!((changed.writes, changed.retry), (vec![Write::Created(COPY.to_owned())], None));
    }

    /// The copies that the pass did not begin are left for the next one. A namespace that does not exist any more is not
    /// reported.
    #[tokio::test]
    async fn a_pass_counts_what_it_has_left() {
        let world = Fixture::start().await;
        let gone = world.pass(json!({}), &["gone".into()]).await;
        assert_eq!((gone.failures.len(), gone.error.is_none(), gone.retry.is_some()), (0, true, true));
        let body = String::new();
        world
            .server
            .fault(Fault::Answer { status: 500, body, retry_after_secs: None }.on("POST", "/configmaps"));
        let targets: Vec<_> = (0..PARALLEL + 2).map(|number| format_smolstr!("team-{number}")).collect();
        let failed = world.pass(json!({}), &targets).await;
        assert!(failed.error.is_some());
        assert_eq!((failed.left, failed.has_writes_left), (2, true));
    }
}
