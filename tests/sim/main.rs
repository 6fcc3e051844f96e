//! Simulation tests: random user actions and faults from a seed, with the real client and one of the operators, the embedded
//! server and a paused clock.
//!
//! ```text
//! cargo test --test sim                                    a hundred seeds
//! LISTWATCH_SEEDS=0..100000 cargo test --test sim          more of them
//! LISTWATCH_SEED=1234 cargo test --test sim -- --nocapture one of them, with its transcript
//! ```

#![allow(clippy::unwrap_used, reason = "a failed unwrap names its line")]
#![allow(unreachable_pub, reason = "no crate uses a test binary")]

mod copies;
mod databases;
mod expect;
mod leaders;
mod scenario;
mod network;
mod soak;

use std::{
    env,
    io::{self, Write},
    ops::Range,
    panic, process,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
        mpsc::{self, RecvTimeoutError, Sender},
    },
    thread,
    time::{Duration, Instant},
};

/// The default seeds. They take some seconds.
const SEEDS: Range<u64> = 0..100;
/// Longest real time of one seed. A seed takes a second, but the machine may be busy.
const SEED_LIMIT: Duration = Duration::from_secs(300);
/// Problems of one seed that are shown, and bytes of each.
const PROBLEMS_MAX: usize = 10;
const PROBLEM_BYTES_MAX: usize = 300;
/// After this many failing seeds, no more are tried.
const FAILURES_MAX: usize = 5;

/// Does not use `eprintln`, because the test harness hides its output when a test succeeds.
fn print(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

fn replay(seed: u64) -> String {
    format!("LISTWATCH_SEED={seed} cargo test --test sim after_random_faults -- --nocapture")
}

/// One line for each broken promise, however often it was broken, and the command that reproduces it.
fn report(seed: u64, problems: &[String]) -> String {
    let mut lines: Vec<(&str, usize)> = Vec::new();
    for problem in problems {
        match lines.iter_mut().find(|(line, _)| line == problem) {
            Some((_, times)) => *times += 1,
            None => lines.push((problem, 1)),
        }
    }
    let mut report = format!("seed {seed}:\n");
    for (line, times) in lines.iter().take(PROBLEMS_MAX) {
        let shown = &line[..line.floor_char_boundary(PROBLEM_BYTES_MAX)];
        let cut = if shown.len() < line.len() { "…" } else { "" };
        let again = if *times > 1 { format!(" ({times} times)") } else { String::new() };
        report += &format!("  {shown}{cut}{again}\n");
    }
    if lines.len() > PROBLEMS_MAX {
        report += &format!("  and {} more\n", lines.len() - PROBLEMS_MAX);
    }
    report + "  " + &replay(seed)
}

/// Ends the process if a task takes too long in real time, and names the task. A timeout on a paused clock cannot do
/// so.
struct Watchdog(Option<Sender<()>>);

impl Watchdog {
    fn new(limit: Duration, what: String) -> Watchdog {
        let (sender, receiver) = mpsc::channel::<()>();
        thread::spawn(move || {
            if receiver.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                print(&format!("stalled: not done after {limit:?}: {what}"));
                process::exit(101);
            }
        });
        Watchdog(Some(sender))
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.0 = None;
    }
}

#[test]
fn a_report_has_one_line_for_each_problem_and_the_command() {
    let problems = ["a", "b", "a"].map(str::to_owned);
    let report = report(7, &problems);
    assert_eq!(report, format!("seed 7:\n  a (2 times)\n  b\n  {}", replay(7)));
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
fn after_random_faults_all_objects_become_as_desired() {
    if let Ok(seed) = env::var("LISTWATCH_SEED") {
        let seed = seed.parse().expect("LISTWATCH_SEED is a number");
        let outcome = scenario::run(seed);
        print(&outcome.transcript.join("\n"));
        assert!(outcome.problems.is_empty(), "{}", report(seed, &outcome.problems));
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
            let _watchdog = Watchdog::new(SEED_LIMIT, format!("seed {seed}; {}", replay(seed)));
            let problems = match panic::catch_unwind(|| scenario::run(seed)) {
                Ok(outcome) => {
                    let mut busiest = busiest.lock().unwrap();
                    *busiest = (outcome.busiest_minute, seed).max(*busiest);
                    outcome.problems
                }
                Err(_) => vec!["the scenario panicked; see above".to_owned()],
            };
            if !problems.is_empty() {
                print(&report(seed, &problems));
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
    print(&format!(
        "{done} seeds, {per_minute:.0} a minute; most requests in a minute: {requests}, by seed {seed}"
    ));
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "seeds that fail: {failures:?}");
}

#[test]
fn a_seed_replays_exactly() {
    for seed in [1, 2, 3] {
        let [first, second] = [scenario::run(seed), scenario::run(seed)];
        for (first, second) in first.transcript.iter().zip(&second.transcript) {
            assert_eq!(first, second, "seed {seed}");
        }
        assert_eq!(first.transcript.len(), second.transcript.len());
    }
}
