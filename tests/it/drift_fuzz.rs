//! Random edits of the children of MyWebservers: what is ours is restored, all else stays as its author left it.
//!
//! ```text
//! cargo test --test it drift_fuzz                          some seeds, others each time
//! LISTWATCH_SEEDS=0..2000 cargo test --test it drift_fuzz  thousands of edits
//! LISTWATCH_SEED=7 cargo test --test it drift_fuzz         one seed, and its edits as commands
//! ```
//!
//! A seed is a MyWebserver and what is done to its children in some rounds. Many of them live in one namespace, under one
//! operator. In each round an edit that the server accepts is drawn for each; the operator does what it has to do; then
//! each promise is checked.

mod edits;
mod promises;

use std::{
    collections::HashMap,
    env,
    io::{self, Write},
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use fastrand::Rng;
use http::Method;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::{
    hands::Hands,
    world::{Kind, World, on},
};
use edits::{Draw, Edit, Schemas};
use promises::{Kept, without_counters};

/// As many as take a minute on a machine with two CPUs, for both servers and both list modes together.
const SEEDS: u64 = 40;
/// MyWebservers at a time.
const SEEDS_AT_ONCE: usize = 40;
/// Rounds for each seed. Fewer than the corrections of one field that are taken for a fight.
const ROUNDS: usize = 3;
/// How many edits are drawn until one is accepted and changes something.
const ATTEMPTS_MAX: usize = 20;
/// How long the operator may need after it has heard of all edits: it waits where a write was refused.
const PATIENCE: Duration = Duration::from_secs(20);
/// Broken promises after which no more seeds are tried.
const BROKEN_MAX: usize = 20;

/// The children of a MyWebserver: kind, version, resource, and the name that kubectl has for it.
const CHILDREN: [[&str; 4]; 2] =
    [["Deployment", "apps/v1", "deployments", "deployment"], ["Service", "v1", "services", "service"]];

/// Broken promises in all worlds. They are reported as they are found: a world that panicked would show its whole log.
static BROKEN: AtomicUsize = AtomicUsize::new(0);

/// Not with `eprintln`, of which the test harness shows nothing where a test succeeds.
fn say(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

fn seeds() -> Range<u64> {
    if let Ok(text) = env::var("LISTWATCH_SEED") {
        let seed = text.parse().expect("LISTWATCH_SEED is a number");
        return seed..seed + 1;
    }
    if let Ok(text) = env::var("LISTWATCH_SEEDS") {
        let (from, to) = text.split_once("..").expect("LISTWATCH_SEEDS is FROM..TO");
        return from.parse().unwrap()..to.parse().unwrap();
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    now..now + SEEDS
}

#[tokio::test]
async fn whatever_is_edited_ours_is_restored_and_all_else_stays() {
    let Range { start, end } = seeds();
    say(&format!("drift_fuzz: LISTWATCH_SEEDS={start}..{end}"));
    on(&[Kind::Embedded, Kind::Real], async move |world| {
        let began = Instant::now();
        world.start_operator(&[]).await;
        let schemas = Arc::new(schemas(world).await);
        let seeds: Vec<u64> = (start..end).collect();
        let mut counts = [0, 0];
        for seeds in seeds.chunks(SEEDS_AT_ONCE) {
            if BROKEN.load(Ordering::Relaxed) < BROKEN_MAX {
                crowd(world, &schemas, seeds, &mut counts).await;
            }
        }
        let [accepted, refused] = counts;
        let secs = began.elapsed().as_secs();
        say(&format!("drift_fuzz, {}: {accepted} edits and {refused} refused in {secs} s", world.name));
    })
    .await;
    assert_eq!(BROKEN.load(Ordering::Relaxed), 0, "promises are broken; see above");
}

/// What the server says of the kinds of our children.
async fn schemas(world: &World) -> Schemas {
    let mut documents = Vec::new();
    for path in ["/openapi/v3/api/v1", "/openapi/v3/apis/apps/v1"] {
        documents.push(serde_json::from_str(&world.raw(path).await.unwrap()).unwrap());
    }
    Schemas::of(&documents)
}

/// One seed: a MyWebserver, its children as the last edit left them, and what was done in this round.
struct Web {
    seed: u64,
    name: String,
    /// References to other objects of the namespace.
    owners: Vec<Value>,
    children: [Value; 2],
    commands: Vec<String>,
    /// Edits of each child in this round.
    edits: [usize; 2],
    refused: usize,
}

/// What is there.
struct Seen {
    webs: HashMap<String, Value>,
    children: [HashMap<String, Value>; 2],
}

impl Seen {
    async fn now(hands: &Hands) -> Seen {
        let list = async |resource: &str| {
            let text = hands.raw(&hands.path(resource)).await.unwrap();
            let mut list: Value = serde_json::from_str(&text).unwrap();
            let mut all = HashMap::new();
            for item in list["items"].as_array_mut().unwrap() {
                all.insert(item["metadata"]["name"].as_str().unwrap().to_owned(), item.take());
            }
            all
        };
        Seen {
            webs: list("mywebservers").await,
            children: [list(CHILDREN[0][2]).await, list(CHILDREN[1][2]).await],
        }
    }
}

/// Runs these seeds side by side.
async fn crowd(world: &World, schemas: &Arc<Schemas>, seeds: &[u64], counts: &mut [usize; 2]) {
    let owner = world.find("configmaps/owner").await;
    let owner = match owner {
        Some(owner) => owner,
        None => world.create("configmaps", &json!({"metadata": {"name": "owner"}})).await,
    };
    let owner =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"]});
    let mut controller = owner.clone();
    controller["controller"] = true.into();
    let mut webs = each(world, seeds.to_vec(), move |hands, seed| {
        let owners = vec![owner.clone(), controller.clone()];
        async move { Web::create(&hands, seed, owners).await }
    })
    .await;
    world.settle().await;
    until_kept(world, &mut webs, Phase::Children).await;

    for round in 1..=ROUNDS {
        world.transcript();
        let schemas = Arc::clone(schemas);
        webs = each(world, webs, move |hands, mut web: Web| {
            let schemas = Arc::clone(&schemas);
            async move {
                web.edit(&hands, &schemas, round).await;
                web
            }
        })
        .await;
        counts[0] += webs.iter().map(|web| web.edits[0] + web.edits[1]).sum::<usize>();
        counts[1] += webs.iter().map(|web| web.refused).sum::<usize>();
        world.settle().await;
        until_kept(world, &mut webs, Phase::Children).await;
        world.settle().await;
        bounded(world, &mut webs, world.transcript());

        webs = give_back(world, webs).await;
        until_kept(world, &mut webs, Phase::GivenBack).await;
        webs = roll_out(world, webs).await;
        world.settle().await;
        until_kept(world, &mut webs, Phase::RolledOut).await;
        world.settle().await;
        world.transcript();
        world.settle().await;
        quiet(world, &mut webs, &world.transcript());
    }
    each(
        world,
        webs,
        |hands, web: Web| async move { hands.delete(&format!("mywebservers/{}", web.name)).await },
    )
    .await;
    world.settle().await;
}

/// Does this for each of them at a time.
async fn each<T, R, F>(world: &World, all: Vec<T>, mut script: impl FnMut(Hands, T) -> F) -> Vec<R>
where
    R: Send + 'static,
    F: Future<Output = R> + Send + 'static,
{
    let mut tasks = JoinSet::new();
    for one in all {
        tasks.spawn(script(world.hands.clone(), one));
    }
    tasks.join_all().await
}

impl Web {
    async fn create(hands: &Hands, seed: u64, owners: Vec<Value>) -> Web {
        let mut random = Rng::with_seed(seed);
        let name = format!("seed-{seed}");
        let port = random.choice([80, 8080, 65535]);
        let spec = json!({"image": "nginx", "port": port, "replicas": random.u8(0..4)});
        hands.create_web(&name, spec).await;
        Web {
            seed,
            name,
            owners,
            children: [Value::Null, Value::Null],
            commands: Vec::new(),
            edits: [0, 0],
            refused: 0,
        }
    }

    fn child(&self) -> String {
        format!("mws-{}", self.name)
    }

    /// One edit as a rule, and two at times, of one child or of both.
    async fn edit(&mut self, hands: &Hands, schemas: &Schemas, round: usize) {
        self.commands.clear();
        self.edits = [0, 0];
        self.refused = 0;
        let web = hands.get(&format!("mywebservers/{}", self.name)).await;
        let wanted = promises::wanted(&web);
        let mut draw = Draw {
            schemas,
            random: Rng::with_seed(self.seed ^ (round as u64) << 48),
            owners: self.owners.clone(),
        };
        let mut owner = wanted[0]["metadata"]["ownerReferences"][0].clone();
        owner["blockOwnerDeletion"] = false.into();
        draw.owners.push(owner.clone());
        owner["controller"] = false.into();
        draw.owners.push(owner);
        for _ in 0..draw.random.usize(2..=5) / 2 {
            for _ in 0..ATTEMPTS_MAX {
                let index = draw.random.usize(0..2);
                let edit = draw.edit(CHILDREN[index][0], &self.children[index], &wanted[index]);
                if self.send(hands, index, &edit).await {
                    break;
                }
            }
        }
    }

    /// Whether it was accepted, and has changed something.
    async fn send(&mut self, hands: &Hands, index: usize, edit: &Edit) -> bool {
        let [_, api_version, resource, kubectl] = CHILDREN[index];
        let path = format!("{}?{}", hands.path(&format!("{resource}/{}", self.child())), edit.query());
        let mut body = edit.body.clone();
        if edit.is_apply() {
            body["apiVersion"] = api_version.into();
        }
        let command = edit.command(&format!("{kubectl}/{}", self.child()));
        let answer = hands.send(Method::PATCH, &path, edit.content_type(), &body).await;
        match answer {
            Ok(after) => {
                let has_changed = without_counters(&after) != without_counters(&self.children[index]);
                self.children[index] = after;
                if has_changed {
                    if env::var_os("LISTWATCH_SEED").is_some() {
                        say(&command);
                    }
                    self.edits[index] += 1;
                    self.commands.push(command);
                }
                has_changed
            }
            Err(error) if error.code().is_some() => {
                self.refused += 1;
                false
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// One line for each broken promise of a seed, and how to see it again.
fn report(seed: u64, lines: &[String]) {
    for line in lines {
        say(&format!("seed {seed}: {line}"));
    }
    say(&format!("  LISTWATCH_SEED={seed} cargo test --locked --test it drift_fuzz"));
    BROKEN.fetch_add(lines.len(), Ordering::Relaxed);
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    /// After the edits.
    Children,
    /// What lost its owner has it again.
    GivenBack,
    /// The Deployments' status says that they are complete.
    RolledOut,
}

/// Waits until all promises are kept, and reports those that are not in time. Their webs are given up.
async fn until_kept(world: &World, webs: &mut Vec<Web>, phase: Phase) {
    let began = Instant::now();
    loop {
        let seen = Seen::now(&world.hands).await;
        let mut broken = HashMap::new();
        for web in webs.iter_mut() {
            let live = [0, 1].map(|index| seen.children[index].get(&web.child()));
            let kept = Kept { web: &seen.webs[&web.name], edited: &web.children, live };
            let problems = kept.problems(phase == Phase::RolledOut);
            if problems.is_empty() {
                web.children = live.map(|live| live.unwrap().clone());
            } else {
                broken.insert(web.seed, problems);
            }
        }
        if broken.is_empty() {
            return;
        }
        if began.elapsed() > PATIENCE {
            give_up(world, webs, &broken, phase);
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

fn give_up(world: &World, webs: &mut Vec<Web>, broken: &HashMap<u64, Vec<String>>, phase: Phase) {
    for web in webs.iter() {
        let Some(problems) = broken.get(&web.seed) else { continue };
        let commands = web.commands.join("; ");
        let line = |problem: &String| format!("{}, {phase:?}: {commands}: {problem}", world.name);
        report(web.seed, &problems.iter().map(line).collect::<Vec<_>>());
    }
    webs.retain(|web| !broken.contains_key(&web.seed));
}

/// As a rule one write restores a child; a conflict costs another.
fn bounded(world: &World, webs: &mut Vec<Web>, transcript: Vec<String>) {
    let mut broken = HashMap::new();
    for web in webs.iter() {
        let count = |what: &str| {
            let what = format!(" {what} ");
            transcript.iter().filter(|line| line.contains(&what)).count()
        };
        let mut problems = Vec::new();
        for (index, [_, _, resource, _]) in CHILDREN.into_iter().enumerate() {
            let (writes, edits) = (count(&format!("{resource}/{}", web.child())), web.edits[index]);
            if writes > 2 * edits {
                problems.push(format!("{writes} writes of the {resource} after {edits} edits"));
            }
        }
        let (writes, edits) =
            (count(&format!("mywebservers/{}/status", web.name)), web.edits[0] + web.edits[1]);
        if writes > 2 * edits + 1 {
            problems.push(format!("{writes} writes of the status after {edits} edits"));
        }
        if !problems.is_empty() {
            broken.insert(web.seed, problems);
        }
    }
    give_up(world, webs, &broken, Phase::Children);
}

fn quiet(world: &World, webs: &mut Vec<Web>, transcript: &[String]) {
    let mut broken = HashMap::new();
    for web in webs.iter() {
        let lines: Vec<_> = transcript.iter().filter(|line| line.contains(&web.name)).cloned().collect();
        if !lines.is_empty() {
            broken.insert(web.seed, vec![format!("writes without an edit: {}", lines.join(", "))]);
        }
    }
    give_up(world, webs, &broken, Phase::RolledOut);
}

/// Makes us the owner again of what we own no longer.
async fn give_back(world: &World, webs: Vec<Web>) -> Vec<Web> {
    let webs = each(world, webs, |hands, mut web: Web| async move {
        let owner = hands.get(&format!("mywebservers/{}", web.name)).await;
        for (index, wanted) in promises::wanted(&owner).iter().enumerate() {
            if promises::is_ours(&owner, &web.children[index]) {
                continue;
            }
            let metadata = json!({"labels": wanted["metadata"]["labels"], "ownerReferences": wanted["metadata"]["ownerReferences"]});
            let child = format!("{}/{}", CHILDREN[index][2], web.child());
            web.children[index] = hands.patch(&child, json!({"metadata": metadata})).await;
        }
        web
    })
    .await;
    world.settle().await;
    webs
}

/// Does what the Deployment controller does, all at once.
async fn roll_out(world: &World, webs: Vec<Web>) -> Vec<Web> {
    each(world, webs, |hands, mut web: Web| async move {
        let deployment = &web.children[0];
        let replicas = &deployment["spec"]["replicas"];
        let mut status = json!({"observedGeneration": deployment["metadata"]["generation"], "conditions": [
            {"type": "Available", "status": "True", "reason": "MinimumReplicasAvailable", "message": "ok"},
            {"type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable", "message": "ok"},
        ]});
        for field in ["replicas", "updatedReplicas", "readyReplicas", "availableReplicas"] {
            status[field] = replicas.clone();
        }
        web.children[0] =
            hands.patch(&format!("deployments/{}/status", web.child()), json!({"status": status})).await;
        web
    })
    .await
}
