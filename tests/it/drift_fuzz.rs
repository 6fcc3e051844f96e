//! Tests random edits of the children of all operators: our fields are restored, and all others keep their values.
//!
//! ```text
//! cargo test --test it drift_fuzz                          some seeds, others each time, or from LISTWATCH_FIRST_SEED on
//! LISTWATCH_SEEDS=0..2000 cargo test --test it drift_fuzz  thousands of edits
//! LISTWATCH_SEED=7 cargo test --test it drift_fuzz         one seed, and its edits as commands
//! ```
//!
//! A seed chooses an operator, an object of it, and the edits of its children in some rounds. Many seeds share one namespace
//! and one process with all operators. In each round, each seed draws an edit that the server accepts. When the operators have
//! nothing left to do, the promises are checked.

mod edits;
mod promises;
mod servers;

use std::{
    collections::{BTreeSet, HashMap},
    env,
    io::{self, Write},
    mem,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use fastrand::Rng;
use http::Method;
use listwatch::{client::Error, watch::Lists};
use listwatch_control_plane::PATIENCE;
use listwatch_operators::BuiltIn;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::{
    client::UserClient,
    fixture::{Fixture, Kind, on},
    in_process::{self, namespace_of_copies},
};
use edits::{Draw, Edit, How, Schemas};
use promises::{ChildKind, Kept, without_counters};

/// Seeds of each fixture: a few hundred edits in the four of them, in less than a minute on a machine with two CPUs.
const SEEDS: u64 = 20;
/// Objects at a time.
const SEEDS_AT_ONCE: usize = 40;
/// Rounds for each seed. Fewer than the corrections of one field after which the next one must wait.
const ROUNDS: usize = 3;
/// Most edits that are drawn until the server accepts one that changes something.
const ATTEMPTS_MAX: usize = 20;
/// Broken promises after which no more seeds are tried.
const BROKEN_MAX: usize = 20;
/// With fewer edits than this, as with a single seed, the share of accepted edits is not checked.
const EDITS_MIN: usize = 100;

/// The operators, with the resources of their objects. Each has every fourth seed.
const OPERATORS: [(BuiltIn, &str); 4] = [
    (BuiltIn::Mywebserver, "mywebservers"),
    (BuiltIn::Memcached, "memcacheds"),
    (BuiltIn::Database, "databases"),
    (BuiltIn::Copyrator, "copyrators"),
];

/// Broken promises in all fixtures. They are reported when they are found: a fixture that panics would show its whole
/// log.
static BROKEN: AtomicUsize = AtomicUsize::new(0);
/// Edits in all fixtures that changed something, by `How`.
static ACCEPTED: [AtomicUsize; 4] = [const { AtomicUsize::new(0) }; 4];
/// Edits in all fixtures that were refused.
static REFUSED: AtomicUsize = AtomicUsize::new(0);

/// Does not use `eprintln`, because the test harness hides its output when a test succeeds.
fn print(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// The seeds from the environment, if any.
fn seeds() -> Option<Range<u64>> {
    let number = |text: &str| text.parse::<u64>().unwrap_or_else(|_| panic!("{text:?} is not a seed"));
    if let Ok(seed) = env::var("LISTWATCH_SEED") {
        return Some(number(&seed)..number(&seed) + 1);
    }
    let text = env::var("LISTWATCH_SEEDS").ok()?;
    let (from, to) = text.split_once("..").expect("LISTWATCH_SEEDS is FROM..TO");
    Some(number(from)..number(to))
}

/// The seeds of a fixture: after `LISTWATCH_FIRST_SEED`, so that a run can be repeated, or others each time.
fn fresh_seeds(fixture: &Fixture) -> Range<u64> {
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let first = env::var("LISTWATCH_FIRST_SEED").map_or_else(|_| now(), |text| text.parse().unwrap());
    let before = [fixture.is_embedded(), fixture.lists == Lists::Streaming].map(u64::from);
    let first = first + SEEDS * (2 * before[0] + before[1]);
    first..first + SEEDS
}

#[tokio::test]
async fn after_random_edits_our_fields_are_restored_and_other_fields_stay() {
    on(&[Kind::Embedded, Kind::Real], async |fixture| {
        let seeds = seeds().unwrap_or_else(|| fresh_seeds(fixture));
        let began = Instant::now();
        let _operators = in_process::start_all(fixture).await;
        let schemas = Arc::new(schemas(fixture).await);
        for chunk in seeds.clone().collect::<Vec<_>>().chunks(SEEDS_AT_ONCE) {
            if BROKEN.load(Relaxed) < BROKEN_MAX {
                run_seeds(fixture, &schemas, chunk).await;
            }
        }
        let (Range { start, end }, secs) = (seeds, began.elapsed().as_secs());
        print(&format!("drift_fuzz, {}: LISTWATCH_SEEDS={start}..{end} in {secs} s", fixture.name));
    })
    .await;
    assert_eq!(BROKEN.load(Relaxed), 0, "promises are broken; see above");
    let (accepted, refused) = (ACCEPTED.each_ref().map(|count| count.load(Relaxed)), REFUSED.load(Relaxed));
    print(&format!("drift_fuzz: {refused} refused edits; accepted edits by kind of patch: {accepted:?}"));
    let sum: usize = accepted.iter().sum();
    if sum + refused >= EDITS_MIN {
        assert!(sum >= refused && !accepted.contains(&0), "too few edits were accepted");
    }
}

/// The OpenAPI documents of the kinds of our children.
async fn schemas(user: &UserClient) -> Schemas {
    let mut documents = Vec::new();
    for path in ["api/v1", "apis/apps/v1", "apis/batch/v1", "apis/policy/v1"] {
        documents
            .push(serde_json::from_str(&user.raw(&format!("/openapi/v3/{path}")).await.unwrap()).unwrap());
    }
    Schemas::of(&documents)
}

/// One seed: an object, its children, and the edits of this round.
struct Subject {
    seed: u64,
    operator: BuiltIn,
    /// `mywebservers/seed-1`
    name: String,
    /// References to objects of the namespace of the children.
    owners: Vec<Value>,
    children: Vec<Child>,
    commands: Vec<String>,
    /// One line for each broken promise.
    broken: Vec<String>,
}

/// A child.
struct Child {
    kind: ChildKind,
    path: String,
    /// The path in a transcript: `deployments/mws-web`.
    line: String,
    /// The fields that we own, and their values.
    wanted: Value,
    /// As the last edit left it.
    edited: Value,
    /// Edits since the last count of writes.
    edits: usize,
}

/// All objects of the collections of these paths, by path.
async fn list(user: &UserClient, paths: impl Iterator<Item = &String>) -> HashMap<String, Value> {
    let collections: BTreeSet<&str> = paths.map(|path| path.rsplit_once('/').unwrap().0).collect();
    let mut all = HashMap::new();
    for collection in collections {
        let mut list: Value = serde_json::from_str(&user.raw(collection).await.unwrap()).unwrap();
        for item in list["items"].as_array_mut().unwrap() {
            let name = item["metadata"]["name"].as_str().unwrap();
            all.insert(format!("{collection}/{name}"), item.take());
        }
    }
    all
}

/// Runs these seeds side by side.
async fn run_seeds(fixture: &Fixture, schemas: &Arc<Schemas>, seeds: &[u64]) {
    let copies = UserClient { namespace: namespace_of_copies(fixture), ..fixture.user.clone() };
    let mut owners = Vec::new();
    for user in [&fixture.user, &copies] {
        let owner = user.create("configmaps", &json!({"metadata": {"generateName": "owner-"}})).await;
        let metadata = &owner["metadata"];
        let owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": metadata["name"], "uid": metadata["uid"]});
        let mut controller = owner.clone();
        controller["controller"] = true.into();
        owners.push(vec![owner, controller]);
    }
    let mut all = for_each(fixture, seeds.to_vec(), move |user, seed| {
        let owners = owners.clone();
        async move { Subject::create(&user, seed, owners).await }
    })
    .await;
    fixture.settle().await;
    until_kept(fixture, &mut all).await;
    fixture.transcript().await;

    for round in 1..=ROUNDS {
        let schemas = Arc::clone(schemas);
        all = for_each(fixture, all, move |user, mut subject: Subject| {
            let schemas = Arc::clone(&schemas);
            async move {
                subject.edit(&user, &schemas, round).await;
                subject
            }
        })
        .await;
        fixture.settle().await;
        until_kept(fixture, &mut all).await;
        check_write_counts(fixture, &mut all).await;

        all = for_each(fixture, all, Subject::restore_owner).await;
        until_kept(fixture, &mut all).await;
        all = for_each(fixture, all, Subject::roll_out).await;
        until_kept(fixture, &mut all).await;
        fixture.settle().await;
        fixture.transcript().await;
        // Nothing was edited since, so the operator writes nothing.
        fixture.settle().await;
        check_write_counts(fixture, &mut all).await;
    }
    for_each(fixture, all, async |user: UserClient, subject: Subject| user.delete(&subject.name).await).await;
    fixture.settle().await;
}

/// Runs a script for each item at the same time.
async fn for_each<T, R, F>(
    user: &UserClient,
    all: Vec<T>,
    mut script: impl FnMut(UserClient, T) -> F,
) -> Vec<R>
where
    R: Send + 'static,
    F: Future<Output = R> + Send + 'static,
{
    let mut tasks = JoinSet::new();
    for item in all {
        tasks.spawn(script(user.clone(), item));
    }
    tasks.join_all().await
}

/// The operator of a seed, the resource of its objects, and one of them.
fn draw_object(seed: u64, namespace_of_copies: &str) -> (BuiltIn, &'static str, Value) {
    let mut random = Rng::with_seed(seed);
    let (operator, resource) = OPERATORS[usize::try_from(seed % 4).unwrap()];
    let name = format!("seed-{seed}");
    let mut object = operator.definitions()[0]["spec"].take();
    let version = object["versions"].as_array().unwrap().last().unwrap();
    let version = format!("{}/{}", object["group"].as_str().unwrap(), version["name"].as_str().unwrap());
    object = json!({"apiVersion": version, "kind": object["names"]["kind"], "metadata": {"name": name}});
    match operator {
        BuiltIn::Mywebserver => {
            let port = random.choice([80, 8080, 65535]);
            object["spec"] = json!({"image": "nginx", "port": port, "replicas": random.u8(0..4)});
        }
        BuiltIn::Memcached => {
            object["spec"] = json!({"size": random.u8(0..4), "memoryMb": random.choice([16, 64, 882])});
        }
        BuiltIn::Database => {
            object["spec"] = json!({"size": random.u8(1..4), "version": "15"});
            if random.bool() {
                object["spec"]["backup"] = json!({"schedule": "0 3 * * *"});
            }
        }
        BuiltIn::Copyrator => {
            object["ruleType"] = random.choice(["configmap", "secret"]).into();
            object["selector"] = json!({"seed": name});
            object["targetNamespaces"] = json!({"include": [namespace_of_copies]});
        }
    }
    (operator, resource, object)
}

impl Subject {
    /// `owners`: for children in the namespace of the object, and for copies.
    async fn create(user: &UserClient, seed: u64, mut owners: Vec<Vec<Value>>) -> Subject {
        let (operator, resource, object) = draw_object(seed, &namespace_of_copies(user));
        let object = user.create(resource, &object).await;
        if operator == BuiltIn::Copyrator {
            let (resource, source) = promises::source(&object);
            user.create(resource, &source).await;
        }
        let children = promises::wanted(operator, &object).into_iter().map(|(kind, wanted)| {
            let [name, namespace] =
                ["name", "namespace"].map(|field| wanted["metadata"][field].as_str().unwrap());
            let name = format!("{}/{name}", kind[2]);
            let path = UserClient { namespace: namespace.to_owned(), ..user.clone() }.path(&name);
            let line = if namespace == user.namespace { name } else { path.clone() };
            Child { kind, path, line, wanted, edited: Value::Null, edits: 0 }
        });
        Subject {
            seed,
            operator,
            name: format!("{resource}/seed-{seed}"),
            owners: owners.swap_remove(usize::from(operator == BuiltIn::Copyrator)),
            children: children.collect(),
            commands: Vec::new(),
            broken: Vec::new(),
        }
    }

    /// Usually one edit, sometimes two, of one child or of two.
    async fn edit(&mut self, user: &UserClient, schemas: &Schemas, round: usize) {
        self.commands.clear();
        let random = Rng::with_seed(self.seed ^ (round as u64) << 48);
        let mut draw = Draw { schemas, random, owners: self.owners.clone() };
        if let Some(mut owner) = self.children[0].wanted["metadata"]["ownerReferences"].get(0).cloned() {
            owner["blockOwnerDeletion"] = false.into();
            draw.owners.push(owner.clone());
            owner["controller"] = false.into();
            draw.owners.push(owner);
        }
        for _ in 0..draw.random.usize(2..=5) / 2 {
            for _ in 0..ATTEMPTS_MAX {
                let index = draw.random.usize(0..self.children.len());
                let Child { kind, edited, wanted, .. } = &self.children[index];
                let edit = draw.edit(*kind, edited, wanted);
                if self.send(user, index, &edit).await {
                    break;
                }
            }
        }
    }

    /// Whether the edit was accepted, and has changed something.
    async fn send(&mut self, user: &UserClient, index: usize, edit: &Edit) -> bool {
        let child = &mut self.children[index];
        let mut sent = edit.clone();
        if edit.how == How::Apply {
            // Otherwise it would create the child that the operator has just deleted, to create it again.
            sent.body["metadata"]["uid"] = child.edited["metadata"]["uid"].clone();
        }
        let after = match send(user, &child.path, &sent).await {
            Ok(after) => after,
            Err(error) => {
                assert!(error.code().is_some(), "{error}");
                REFUSED.fetch_add(1, Relaxed);
                return false;
            }
        };
        let has_changed = without_counters(&after) != without_counters(&child.edited);
        child.edited = after;
        if has_changed {
            let command = edit.command(&child.path);
            if env::var_os("LISTWATCH_SEED").is_some() {
                print(&command);
            }
            ACCEPTED[edit.how as usize].fetch_add(1, Relaxed);
            child.edits += 1;
            self.commands.push(command);
        }
        has_changed
    }

    /// Makes the object the owner of its children again, and lets deleted children go.
    async fn restore_owner(user: UserClient, mut subject: Subject) -> Subject {
        let owner = user.get(&subject.name).await;
        for child in &mut subject.children {
            let mut metadata = json!({});
            if !child.edited["metadata"]["deletionTimestamp"].is_null() {
                metadata = json!({"finalizers": null});
            } else if !child.is_ours(&owner, &child.edited) {
                for field in ["annotations", "labels", "ownerReferences"] {
                    if let Some(wanted) = child.wanted["metadata"].get(field) {
                        metadata[field] = wanted.clone();
                    }
                }
            } else {
                continue;
            }
            let patch = json!({"metadata": metadata});
            let content_type = "application/merge-patch+json";
            child.edited = user.send(Method::PATCH, &child.path, content_type, &patch).await.unwrap();
        }
        subject
    }

    /// Does the work of the Deployment or StatefulSet controller in one step.
    async fn roll_out(user: UserClient, mut subject: Subject) -> Subject {
        let child = &mut subject.children[0];
        if !["Deployment", "StatefulSet"].contains(&child.kind[0]) {
            return subject;
        }
        let replicas = &child.edited["spec"]["replicas"];
        let mut status = json!({
            "observedGeneration": child.edited["metadata"]["generation"],
            "replicas": replicas, "updatedReplicas": replicas, "readyReplicas": replicas, "availableReplicas": replicas,
        });
        if child.kind[0] == "Deployment" {
            status["conditions"] = json!([
                {"type": "Available", "status": "True", "reason": "MinimumReplicasAvailable", "message": "ok"},
                {"type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable", "message": "ok"},
            ]);
        }
        child.edited = user.patch(&format!("{}/status", child.line), json!({"status": status})).await;
        subject
    }
}

/// Sends an edit of the object at this path.
async fn send(user: &UserClient, path: &str, edit: &Edit) -> Result<Value, Error> {
    let path = format!("{path}?{}", edit.query());
    user.send(Method::PATCH, &path, edit.content_type(), &edit.body).await
}

/// Waits until all promises are kept. The operator may have to wait itself: after a refused write, for up to a minute between the
/// corrections of a copy, and for a child that it cannot see, because its label was removed.
async fn until_kept(fixture: &Fixture, subjects: &mut Vec<Subject>) {
    let began = Instant::now();
    let owners: Vec<String> = subjects.iter().map(|subject| fixture.path(&subject.name)).collect();
    loop {
        let children = subjects.iter().flat_map(|subject| &subject.children).map(|child| &child.path);
        let live = list(fixture, owners.iter().chain(children)).await;
        let written = fixture.written();
        for (subject, owner) in subjects.iter_mut().zip(&owners) {
            subject.broken = Kept { subject, owner: &live[owner], live: &live, written: &written }.problems();
            if subject.broken.is_empty() {
                for child in &mut subject.children {
                    child.edited.clone_from(&live[&child.path]);
                }
            }
        }
        if began.elapsed() > PATIENCE || subjects.iter().all(|subject| subject.broken.is_empty()) {
            return report_broken(fixture, subjects);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Checks the number of writes since the last transcript. Usually one write restores a child; a conflict costs a second
/// one. The edits delete no child, so the operator must not try to create any, unless it has deleted one. Only a
/// copy that has lost its marks and then its label is read after an attempt to create it.
async fn check_write_counts(fixture: &Fixture, subjects: &mut Vec<Subject>) {
    let transcript = fixture.transcript().await;
    let deleted = transcript.iter().filter(|line| line.starts_with("DELETE ")).count();
    let copies = format!("POST /api/v1/namespaces/{}/", namespace_of_copies(fixture));
    let is_taken = |line: &str| line.starts_with(&copies) && line.ends_with(" 409");
    let is_create =
        |line: &&String| line.starts_with("POST ") && !line.contains("?dryRun=All ") && !is_taken(line);
    let created: Vec<_> = transcript.iter().filter(is_create).collect();
    assert!(created.len() <= deleted, "{}: {created:?}", fixture.name);
    for subject in subjects.iter_mut() {
        let mut limits = Vec::new();
        let mut edits = 0;
        for child in &mut subject.children {
            limits.push((format!(" {} ", child.line), 2 * child.edits));
            edits += mem::take(&mut child.edits);
        }
        limits.push((format!(" {}/status ", subject.name), if edits == 0 { 0 } else { 2 * edits + 1 }));
        for (what, most) in limits {
            let writes: Vec<_> = transcript.iter().filter(|line| line.contains(&what)).cloned().collect();
            if writes.len() > most {
                subject.broken.push(format!(
                    "{} writes after {edits} edits: {}",
                    writes.len(),
                    writes.join(", ")
                ));
            }
        }
    }
    report_broken(fixture, subjects);
}

/// Reports the broken promises, and how to reproduce them. Their objects get no more edits.
fn report_broken(fixture: &Fixture, subjects: &mut Vec<Subject>) {
    subjects.retain(|subject| {
        let Subject { seed, commands, broken, .. } = subject;
        for problem in broken {
            print(&format!("seed {seed}, {}: {}: {problem}", fixture.name, commands.join("; ")));
            print(&format!("  LISTWATCH_SEED={seed} cargo test --locked --test it drift_fuzz"));
        }
        BROKEN.fetch_add(broken.len(), Relaxed);
        broken.is_empty()
    });
}
