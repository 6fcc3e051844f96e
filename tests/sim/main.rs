//! Random histories of deeds and faults, each from one seed, with the real client and operator against the embedded
//! server, on a clock that jumps.
//!
//! ```text
//! cargo test --test sim                                    a hundred seeds
//! LISTWATCH_SEEDS=0..100000 cargo test --test sim          more of them
//! LISTWATCH_SEED=1234 cargo test --test sim -- --nocapture one of them, and all that happened in it
//! ```

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]
#![allow(unreachable_pub, reason = "nobody reaches into a test binary")]

mod expect;
mod history;
mod network;
mod soak;

use std::{
    env, fs,
    io::{self, Write},
    ops::Range,
    panic,
    path::Path,
    sync::{
        LazyLock, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Instant,
};

use serde_json::Value;

/// As many as take some seconds.
const SEEDS: Range<u64> = 0..100;
/// Failing seeds after which the rest is not tried.
const FAILURES_MAX: usize = 5;

/// The CustomResourceDefinition, as it is installed. Read once, not for each history.
pub fn crd() -> Value {
    static CRD: LazyLock<Value> = LazyLock::new(|| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests/crd/mywebservers.yaml");
        yaml_serde::from_str(&fs::read_to_string(path).unwrap()).unwrap()
    });
    CRD.clone()
}

/// Not with `eprintln`, of which the test harness shows nothing where a test succeeds.
fn say(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

fn seeds() -> Range<u64> {
    let number = |text: &str| text.trim().parse().unwrap_or_else(|_| panic!("{text:?} is not a seed"));
    match env::var("LISTWATCH_SEEDS") {
        Ok(text) => {
            let (from, to) = text.split_once("..").expect("LISTWATCH_SEEDS is FROM..TO");
            number(from)..number(to)
        }
        Err(_) => SEEDS,
    }
}

#[test]
fn whatever_goes_wrong_everything_is_right_soon_after() {
    if let Ok(seed) = env::var("LISTWATCH_SEED") {
        let outcome = history::run(seed.parse().expect("LISTWATCH_SEED is a number"));
        say(&outcome.transcript.join("\n"));
        assert_eq!(outcome.problems, Vec::<String>::new());
        return;
    }
    let seeds = seeds();
    let next = AtomicU64::new(seeds.start);
    let failures = Mutex::new(Vec::new());
    let busiest = Mutex::new((0, 0));
    let began = Instant::now();
    let work = || {
        while failures.lock().unwrap().len() < FAILURES_MAX {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return;
            }
            let problems = match panic::catch_unwind(|| history::run(seed)) {
                Ok(outcome) => {
                    let mut busiest = busiest.lock().unwrap();
                    *busiest = (outcome.busiest_minute, seed).max(*busiest);
                    outcome.problems
                }
                Err(_) => vec!["it panicked, see above".to_owned()],
            };
            if !problems.is_empty() {
                say(&format!(
                    "seed {seed}: {}\n  LISTWATCH_SEED={seed} cargo test --test sim -- --nocapture",
                    problems.join("\n  ")
                ));
                failures.lock().unwrap().push(seed);
            }
        }
    };
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(work);
        }
    });
    let done = next.into_inner().min(seeds.end) - seeds.start;
    let per_minute = done as f64 / began.elapsed().as_secs_f64() * 60.0;
    let (requests, seed) = busiest.into_inner().unwrap();
    say(&format!(
        "{done} seeds, {per_minute:.0} a minute; most requests in a minute: {requests}, by seed {seed}"
    ));
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "seeds that fail: {failures:?}");
}

#[test]
fn a_seed_replays_exactly() {
    for seed in [1, 2, 3] {
        let [first, second] = [history::run(seed), history::run(seed)];
        for (first, second) in first.transcript.iter().zip(&second.transcript) {
            assert_eq!(first, second, "seed {seed}");
        }
        assert_eq!(first.transcript.len(), second.transcript.len());
    }
}
