//! Tests random edits of the children of MyWebservers: our fields are restored, and all others keep their values.
//!
//! ```text
//! cargo test --test it drift_fuzz                          some seeds, others each time
//! LISTWATCH_SEEDS=0..2000 cargo test --test it drift_fuzz  thousands of edits
//! LISTWATCH_SEED=7 cargo test --test it drift_fuzz         one seed, and its edits as commands
//! ```
//!
//! A seed chooses a MyWebserver and the edits of its children in some rounds. Many seeds share one namespace and one
//! operator. In each round, each seed draws an edit that the server accepts. When the operator has nothing left to do,
//! the promises are checked.

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
use listwatch_control_plane::unique;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::{
    client::UserClient,
    fixture::{Fixture, Kind, on},
};
use edits::{Draw, Edit, Schemas};
use promises::{Kept, without_counters};

/// Seeds of each fixture: a few hundred edits in the four of them, in less than a minute on a machine with two CPUs.
const SEEDS: u64 = 20;
/// MyWebservers at a time.
const SEEDS_AT_ONCE: usize = 40;
/// Rounds for each seed. Fewer than the corrections of one field that are taken for a fight.
const ROUNDS: usize = 3;
/// Most edits that are drawn until the server accepts one that changes something.
const ATTEMPTS_MAX: usize = 20;
/// How long the operator may need after it has received all edits: after a refused write, it waits.
const PATIENCE: Duration = Duration::from_secs(60);
/// Broken promises after which no more seeds are tried.
const BROKEN_MAX: usize = 20;
/// With fewer edits than this, as with a single seed, the share of accepted edits is not checked.
const EDITS_MIN: usize = 100;

/// The children of a MyWebserver: kind, version, and resource.
const CHILDREN: [[&str; 3]; 2] = [["Deployment", "apps/v1", "deployments"], ["Service", "v1", "services"]];

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

#[tokio::test]
async fn after_random_edits_our_fields_are_restored_and_other_fields_stay() {
    on(&[Kind::Embedded, Kind::Real], async |fixture| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let first = now + SEEDS * u64::from(unique());
        let seeds = seeds().unwrap_or(first..first + SEEDS);
        let began = Instant::now();
        fixture.start_operator(&[]).await;
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
    for path in ["/openapi/v3/api/v1", "/openapi/v3/apis/apps/v1"] {
        documents.push(serde_json::from_str(&user.raw(path).await.unwrap()).unwrap());
    }
    Schemas::of(&documents)
}

/// One seed: a MyWebserver, its children as the last edit left them, and the edits of this round.
struct Web {
    seed: u64,
    name: String,
    /// References to other objects of the namespace.
    owners: Vec<Value>,
    children: [Value; 2],
    commands: Vec<String>,
    /// Edits of each child since the last count of writes.
    edits: [usize; 2],
    /// One line for each broken promise.
    broken: Vec<String>,
}

/// All objects of a resource, by name.
async fn list(user: &UserClient, resource: &str) -> HashMap<String, Value> {
    let mut list: Value = serde_json::from_str(&user.raw(&user.path(resource)).await.unwrap()).unwrap();
    let items = list["items"].as_array_mut().unwrap().iter_mut();
    items.map(|item| (item["metadata"]["name"].as_str().unwrap().to_owned(), item.take())).collect()
}

/// Runs these seeds side by side.
async fn run_seeds(fixture: &Fixture, schemas: &Arc<Schemas>, seeds: &[u64]) {
    let owner = fixture.create("configmaps", &json!({"metadata": {"generateName": "owner-"}})).await;
    let metadata = &owner["metadata"];
    let owner =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "name": metadata["name"], "uid": metadata["uid"]});
    let mut controller = owner.clone();
    controller["controller"] = true.into();
    let mut webs = for_each(fixture, seeds.to_vec(), move |user, seed| {
        let owners = vec![owner.clone(), controller.clone()];
        async move { Web::create(&user, seed, owners).await }
    })
    .await;
    fixture.settle().await;
    until_kept(fixture, &mut webs).await;
    fixture.transcript();

    for round in 1..=ROUNDS {
        let schemas = Arc::clone(schemas);
        webs = for_each(fixture, webs, move |user, mut web: Web| {
            let schemas = Arc::clone(&schemas);
            async move {
                web.edit(&user, &schemas, round).await;
                web
            }
        })
        .await;
        fixture.settle().await;
        until_kept(fixture, &mut webs).await;
        check_write_counts(fixture, &mut webs);

        webs = for_each(fixture, webs, Web::restore_owner).await;
        until_kept(fixture, &mut webs).await;
        webs = for_each(fixture, webs, Web::roll_out).await;
        until_kept(fixture, &mut webs).await;
        fixture.settle().await;
        fixture.transcript();
        // Nothing was edited since, so the operator writes nothing.
        fixture.settle().await;
        check_write_counts(fixture, &mut webs);
    }
    let delete = async |user: UserClient, web: Web| user.delete(&format!("mywebservers/{}", web.name)).await;
    for_each(fixture, webs, delete).await;
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

impl Web {
    async fn create(user: &UserClient, seed: u64, owners: Vec<Value>) -> Web {
        let mut random = Rng::with_seed(seed);
        let name = format!("seed-{seed}");
        let port = random.choice([80, 8080, 65535]);
        let spec = json!({"image": "nginx", "port": port, "replicas": random.u8(0..4)});
        user.create_web(&name, spec).await;
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

    /// Usually one edit, sometimes two, of one child or of both.
    async fn edit(&mut self, user: &UserClient, schemas: &Schemas, round: usize) {
        self.commands.clear();
        let web = user.get(&format!("mywebservers/{}", self.name)).await;
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
                if self.send(user, index, &edit).await {
                    break;
                }
            }
        }
    }

    /// Whether the edit was accepted, and has changed something.
    async fn send(&mut self, user: &UserClient, index: usize, edit: &Edit) -> bool {
        let child = format!("{}/{}", CHILDREN[index][2], self.child());
        let after = match send(user, &child, edit).await {
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
                print(&command);
            }
            ACCEPTED[edit.how as usize].fetch_add(1, Relaxed);
            self.edits[index] += 1;
            self.commands.push(command);
        }
        has_changed
    }

    /// Makes the MyWebserver the owner of its children again.
    async fn restore_owner(user: UserClient, mut web: Web) -> Web {
        let owner = user.get(&format!("mywebservers/{}", web.name)).await;
        for (index, wanted) in promises::wanted(&owner).iter().enumerate() {
            if !promises::is_ours(&owner, &web.children[index]) {
                let wanted = &wanted["metadata"];
                let metadata =
                    json!({"labels": wanted["labels"], "ownerReferences": wanted["ownerReferences"]});
                let child = format!("{}/{}", CHILDREN[index][2], web.child());
                web.children[index] = user.patch(&child, json!({"metadata": metadata})).await;
            }
        }
        web
    }

    /// Does the work of the Deployment controller in one step.
    async fn roll_out(user: UserClient, mut web: Web) -> Web {
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
        web.children[0] = user.patch(&path, json!({"status": status})).await;
        web
    }
}

/// Sends an edit of `deployments/mws-web`.
async fn send(user: &UserClient, child: &str, edit: &Edit) -> Result<Value, Error> {
    let path = user.path(&format!("{child}?{}", edit.query()));
    user.send(Method::PATCH, &path, edit.content_type(), &edit.body).await
}

/// Waits until all promises are kept.
async fn until_kept(fixture: &Fixture, webs: &mut Vec<Web>) {
    let began = Instant::now();
    loop {
        let [owners, deployments, services] = [
            list(fixture, "mywebservers").await,
            list(fixture, "deployments").await,
            list(fixture, "services").await,
        ];
        let written = fixture.written();
        for web in webs.iter_mut() {
            let live = [&deployments, &services].map(|children| children.get(&web.child()));
            let is_template_reset = written.contains(&format!("PATCH deployments/{} 422", web.child()));
            let (edited, web_now) = (&web.children, &owners[&web.name]);
            web.broken = Kept { web: web_now, edited, live, is_template_reset }.problems();
            if web.broken.is_empty() {
                web.children = live.map(|live| live.unwrap().clone());
            }
        }
        if began.elapsed() > PATIENCE || webs.iter().all(|web| web.broken.is_empty()) {
            return report_broken(fixture, webs);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Checks the number of writes since the last transcript. Usually one write restores a child; a conflict costs a second
/// one. The edits delete no child, so the operator must not try to create any.
fn check_write_counts(fixture: &Fixture, webs: &mut Vec<Web>) {
    let transcript = fixture.transcript();
    let is_create =
        |line: &&String| line.starts_with("POST deployments") || line.starts_with("POST services");
    assert_eq!(transcript.iter().find(is_create), None, "{}", fixture.name);
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
    report_broken(fixture, webs);
}

/// Reports the broken promises, and how to reproduce them. Their MyWebservers get no more edits.
fn report_broken(fixture: &Fixture, webs: &mut Vec<Web>) {
    webs.retain(|web| {
        for problem in &web.broken {
            print(&format!("seed {}, {}: {}: {problem}", web.seed, fixture.name, web.commands.join("; ")));
            print(&format!("  LISTWATCH_SEED={} cargo test --locked --test it drift_fuzz", web.seed));
        }
        BROKEN.fetch_add(web.broken.len(), Relaxed);
        web.broken.is_empty()
    });
}
