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
mod servers;

use std::{
    collections::HashMap,
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
use listwatch::client::Error;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::{
    hands::Hands,
    plane,
    world::{Kind, World, on},
};
use edits::{Draw, Edit, Schemas};
use promises::{Kept, without_counters};

/// Seeds of each world: a few hundred edits in the four of them, in less than a minute on a machine with two CPUs.
const SEEDS: u64 = 20;
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
/// With fewer edits than this, as of one seed, nothing is said about how many of them a server accepts.
const EDITS_MIN: usize = 100;

/// The children of a MyWebserver: kind, version, and resource.
const CHILDREN: [[&str; 3]; 2] = [["Deployment", "apps/v1", "deployments"], ["Service", "v1", "services"]];

/// Broken promises in all worlds. They are reported as they are found: a world that panicked would show its whole log.
static BROKEN: AtomicUsize = AtomicUsize::new(0);
/// Edits in all worlds that changed something, by `How`.
static ACCEPTED: [AtomicUsize; 4] = [const { AtomicUsize::new(0) }; 4];
/// Edits in all worlds that were refused.
static REFUSED: AtomicUsize = AtomicUsize::new(0);

/// Not with `eprintln`, of which the test harness shows nothing where a test succeeds.
fn say(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// The seeds that are asked for, if any.
fn seeds() -> Option<Range<u64>> {
    let number = |text: &str| text.parse::<u64>().unwrap_or_else(|_| panic!("{text:?} is not a seed"));
    if let Ok(seed) = env::var("LISTWATCH_SEED") {
        return Some(number(&seed)..number(&seed) + 1);
    }
    let text = env::var("LISTWATCH_SEEDS").ok()?;
    let (from, to) = text.split_once("..").expect("LISTWATCH_SEEDS is FROM..TO");
    Some(number(from)..number(to))
}

#[tokio::test]
async fn whatever_is_edited_ours_is_restored_and_all_else_stays() {
    on(&[Kind::Embedded, Kind::Real], async |world| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let first = now + SEEDS * u64::from(plane::unique());
        let seeds = seeds().unwrap_or(first..first + SEEDS);
        let began = Instant::now();
        world.start_operator(&[]).await;
        let schemas = Arc::new(schemas(world).await);
        for some in seeds.clone().collect::<Vec<_>>().chunks(SEEDS_AT_ONCE) {
            if BROKEN.load(Relaxed) < BROKEN_MAX {
                crowd(world, &schemas, some).await;
            }
        }
        let (Range { start, end }, secs) = (seeds, began.elapsed().as_secs());
        say(&format!("drift_fuzz, {}: LISTWATCH_SEEDS={start}..{end} in {secs} s", world.name));
    })
    .await;
    assert_eq!(BROKEN.load(Relaxed), 0, "promises are broken; see above");
    let (accepted, refused) = (ACCEPTED.each_ref().map(|count| count.load(Relaxed)), REFUSED.load(Relaxed));
    say(&format!(
        "drift_fuzz: {refused} edits were refused, these accepted, by how they were sent: {accepted:?}"
    ));
    let sum: usize = accepted.iter().sum();
    if sum + refused >= EDITS_MIN {
        assert!(sum >= refused && !accepted.contains(&0), "too few edits were accepted to show anything");
    }
}

/// What the server says of the kinds of our children.
async fn schemas(hands: &Hands) -> Schemas {
    let mut documents = Vec::new();
    for path in ["/openapi/v3/api/v1", "/openapi/v3/apis/apps/v1"] {
        documents.push(serde_json::from_str(&hands.raw(path).await.unwrap()).unwrap());
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
    /// Edits of each child since writes were counted.
    edits: [usize; 2],
    /// One line for each broken promise.
    broken: Vec<String>,
}

/// Everything of a resource, by name.
async fn list(hands: &Hands, resource: &str) -> HashMap<String, Value> {
    let mut list: Value = serde_json::from_str(&hands.raw(&hands.path(resource)).await.unwrap()).unwrap();
    let items = list["items"].as_array_mut().unwrap().iter_mut();
    items.map(|item| (item["metadata"]["name"].as_str().unwrap().to_owned(), item.take())).collect()
}

/// Runs these seeds side by side.
async fn crowd(world: &World, schemas: &Arc<Schemas>, seeds: &[u64]) {
    let owner = world.create("configmaps", &json!({"metadata": {"generateName": "owner-"}})).await;
    let metadata = &owner["metadata"];
    let owner =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "name": metadata["name"], "uid": metadata["uid"]});
    let mut controller = owner.clone();
    controller["controller"] = true.into();
    let mut webs = each(world, seeds.to_vec(), move |hands, seed| {
        let owners = vec![owner.clone(), controller.clone()];
        async move { Web::create(&hands, seed, owners).await }
    })
    .await;
    world.settle().await;
    until_kept(world, &mut webs).await;
    world.transcript();

    for round in 1..=ROUNDS {
        let schemas = Arc::clone(schemas);
        webs = each(world, webs, move |hands, mut web: Web| {
            let schemas = Arc::clone(&schemas);
            async move {
                web.edit(&hands, &schemas, round).await;
                web
            }
        })
        .await;
        world.settle().await;
        until_kept(world, &mut webs).await;
        bounded(world, &mut webs);

        webs = each(world, webs, Web::give_back).await;
        until_kept(world, &mut webs).await;
        webs = each(world, webs, Web::roll_out).await;
        until_kept(world, &mut webs).await;
        world.settle().await;
        world.transcript();
        // Nothing was edited since, so nothing is written.
        world.settle().await;
        bounded(world, &mut webs);
    }
    let delete = async |hands: Hands, web: Web| hands.delete(&format!("mywebservers/{}", web.name)).await;
    each(world, webs, delete).await;
    world.settle().await;
}

/// Does this for each of them at a time.
async fn each<T, R, F>(hands: &Hands, all: Vec<T>, mut script: impl FnMut(Hands, T) -> F) -> Vec<R>
where
    R: Send + 'static,
    F: Future<Output = R> + Send + 'static,
{
    let mut tasks = JoinSet::new();
    for one in all {
        tasks.spawn(script(hands.clone(), one));
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
            broken: Vec::new(),
        }
    }

    fn child(&self) -> String {
        format!("mws-{}", self.name)
    }

    /// One edit as a rule, and two at times, of one child or of both.
    async fn edit(&mut self, hands: &Hands, schemas: &Schemas, round: usize) {
        self.commands.clear();
        let web = hands.get(&format!("mywebservers/{}", self.name)).await;
        let wanted = promises::wanted(&web);
        let random = Rng::with_seed(self.seed ^ (round as u64) << 48);
        let mut draw = Draw { schemas, random, owners: self.owners.clone() };
        let mut owner = wanted[0]["metadata"]["ownerReferences"][0].clone();
        owner["blockOwnerDeletion"] = false.into();
        draw.owners.push(owner.clone());
        owner["controller"] = false.into();
        draw.owners.push(owner);
        for _ in 0..draw.random.usize(2..=5) / 2 {
            for _ in 0..ATTEMPTS_MAX {
                let index = draw.random.usize(0..2);
                let edit = draw.edit(CHILDREN[index], &self.children[index], &wanted[index]);
                if self.send(hands, index, &edit).await {
                    break;
                }
            }
        }
    }

    /// Whether it was accepted, and has changed something.
    async fn send(&mut self, hands: &Hands, index: usize, edit: &Edit) -> bool {
        let child = format!("{}/{}", CHILDREN[index][2], self.child());
        let after = match send(hands, &child, edit).await {
            Ok(after) => after,
            Err(error) => {
                assert!(error.code().is_some(), "{error}");
                REFUSED.fetch_add(1, Relaxed);
                return false;
            }
        };
        let has_changed = without_counters(&after) != without_counters(&self.children[index]);
        self.children[index] = after;
        if has_changed {
            let command = edit.command(&child);
            if env::var_os("LISTWATCH_SEED").is_some() {
                say(&command);
            }
            ACCEPTED[edit.how as usize].fetch_add(1, Relaxed);
            self.edits[index] += 1;
            self.commands.push(command);
        }
        has_changed
    }

    /// Makes us the owner again of what we own no longer.
    async fn give_back(hands: Hands, mut web: Web) -> Web {
        let owner = hands.get(&format!("mywebservers/{}", web.name)).await;
        for (index, wanted) in promises::wanted(&owner).iter().enumerate() {
            if !promises::is_ours(&owner, &web.children[index]) {
                let wanted = &wanted["metadata"];
                let metadata =
                    json!({"labels": wanted["labels"], "ownerReferences": wanted["ownerReferences"]});
                let child = format!("{}/{}", CHILDREN[index][2], web.child());
                web.children[index] = hands.patch(&child, json!({"metadata": metadata})).await;
            }
        }
        web
    }

    /// Does what the Deployment controller does, all at once.
    async fn roll_out(hands: Hands, mut web: Web) -> Web {
        let deployment = &web.children[0];
        let replicas = &deployment["spec"]["replicas"];
        let status = json!({
            "observedGeneration": deployment["metadata"]["generation"],
            "replicas": replicas, "updatedReplicas": replicas, "readyReplicas": replicas, "availableReplicas": replicas,
            "conditions": [
                {"type": "Available", "status": "True", "reason": "MinimumReplicasAvailable", "message": "ok"},
                {"type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable", "message": "ok"},
            ],
        });
        let path = format!("deployments/{}/status", web.child());
        web.children[0] = hands.patch(&path, json!({"status": status})).await;
        web
    }
}

/// Sends an edit of `deployments/mws-web`.
async fn send(hands: &Hands, child: &str, edit: &Edit) -> Result<Value, Error> {
    let path = hands.path(&format!("{child}?{}", edit.query()));
    hands.send(Method::PATCH, &path, edit.content_type(), &edit.body).await
}

/// Waits until all promises are kept.
async fn until_kept(world: &World, webs: &mut Vec<Web>) {
    let began = Instant::now();
    loop {
        let [owners, deployments, services] = [
            list(world, "mywebservers").await,
            list(world, "deployments").await,
            list(world, "services").await,
        ];
        for web in webs.iter_mut() {
            let live = [&deployments, &services].map(|children| children.get(&web.child()));
            web.broken = Kept { web: &owners[&web.name], edited: &web.children, live }.problems();
            if web.broken.is_empty() {
                web.children = live.map(|live| live.unwrap().clone());
            }
        }
        if began.elapsed() > PATIENCE || webs.iter().all(|web| web.broken.is_empty()) {
            return give_up(world, webs);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Checks the number of writes since the last transcript. As a rule one restores a child; a conflict costs another.
fn bounded(world: &World, webs: &mut Vec<Web>) {
    let transcript = world.transcript();
    for web in webs.iter_mut() {
        let [deployment, service] = mem::take(&mut web.edits);
        let edits = deployment + service;
        for (what, most) in [
            (format!(" deployments/{} ", web.child()), 2 * deployment),
            (format!(" services/{} ", web.child()), 2 * service),
            (format!(" mywebservers/{}/status ", web.name), if edits == 0 { 0 } else { 2 * edits + 1 }),
        ] {
            let writes: Vec<_> = transcript.iter().filter(|line| line.contains(&what)).cloned().collect();
            if writes.len() > most {
                web.broken.push(format!(
                    "{} writes after {edits} edits: {}",
                    writes.len(),
                    writes.join(", ")
                ));
            }
        }
    }
    give_up(world, webs);
}

/// Reports the broken promises, and how to see them again. Nothing more is done to their webs.
fn give_up(world: &World, webs: &mut Vec<Web>) {
    webs.retain(|web| {
        for problem in &web.broken {
            say(&format!("seed {}, {}: {}: {problem}", web.seed, world.name, web.commands.join("; ")));
            say(&format!("  LISTWATCH_SEED={} cargo test --locked --test it drift_fuzz", web.seed));
        }
        BROKEN.fetch_add(web.broken.len(), Relaxed);
        web.broken.is_empty()
    });
}
