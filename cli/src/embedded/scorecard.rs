//! `listwatch scorecard`: finds the bugs of an operator in any language, without a cluster.

use std::{
    cell::Cell,
    convert::Infallible,
    fs,
    io::{self, IsTerminal, Write},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use clap::{Args, ValueEnum, builder::RangedU64ValueParser};
use listwatch_scorecard::{
    self as scorecard, CannotJudge, CheckResult, Extent, Outcome, SampleCondition, Scorecard,
};
use serde_json::Value;
use tracing::Level;

use super::{
    apiserver::say,
    manifests::{self, Depth},
};
use crate::{
    connection::parse_time,
    failure::{Failure, until_signal},
    log::Log,
};

/// Find the bugs of an operator in any language, without a cluster
#[derive(Debug, Args)]
#[command(
    after_help = "Runs COMMAND against API servers in this process, with KUBECONFIG set; {kubeconfig} in its arguments becomes the path. \
    First come the checks of files alone. Then COMMAND runs twice without a fault. In each further check, it must get to the same state in spite of a fault. docs/scorecard.md describes the checks.\n\n\
    Exit code: 0 if nothing failed, 1 if a check failed (with --fail-on warn, or warned), 2 if there is no judgement: a flag or a file is invalid, or COMMAND cannot be run.\n\n\
    Example:\n  listwatch scorecard --crd config/crd --sample config/samples/memcached.yaml -- ./memcached-operator"
)]
pub(in super::super) struct ScorecardArgs {
    #[command(flatten)]
    scorecard: ScorecardFlags,
    #[command(flatten)]
    log: Log,
}

/// What is there for an operator.
#[derive(Debug, Args)]
pub(super) struct ObjectFlags {
    /// File or directory with the CRDs, and other objects that the operator needs at its start; may be repeated
    #[arg(long, value_name = "PATH", required = true)]
    crd: Vec<PathBuf>,
    /// File or directory with the custom resources to create, and the objects that they need; may be repeated
    #[arg(long, value_name = "FILE", required = true)]
    sample: Vec<PathBuf>,
}

impl ObjectFlags {
    /// The settings for an operator.
    pub(super) fn settings(&self, command: &[String]) -> Result<Scorecard, Failure> {
        let (crds, samples) = (objects("--crd", &self.crd)?, objects("--sample", &self.sample)?);
        Ok(Scorecard::new(crds, samples, command.to_vec()))
    }
}

fn objects(flag: &str, paths: &[PathBuf]) -> Result<Vec<Value>, Failure> {
    Ok(manifests::read(flag, paths, Depth::One)?.into_iter().map(Value::from).collect())
}

#[derive(Debug, Args)]
struct ScorecardFlags {
    #[command(flatten)]
    objects: ObjectFlags,
    /// File or directory with the Roles that the operator is shipped with, and their bindings; may be repeated
    #[arg(long, value_name = "PATH")]
    rbac: Vec<PathBuf>,
    /// File or directory with the configurations of the operator's webhooks, which COMMAND serves at {webhook-port}, by default 9443, with tls.crt and
    /// tls.key of {webhook-cert-dir}; may be repeated
    #[arg(long, value_name = "PATH", requires = "command")]
    webhooks: Vec<PathBuf>,
    /// Directory with a bundle for the Operator Lifecycle Manager
    #[arg(long, value_name = "DIR")]
    bundle: Option<PathBuf>,
    /// The operator's previous version, to test the upgrade from it: program and arguments in one text, with spaces between them
    #[arg(long, value_name = "COMMAND", requires = "command")]
    previous: Option<String>,
    /// Another operator for the same samples, to test both together: program and arguments in one text, with spaces between them
    #[arg(long, value_name = "COMMAND", requires = "command")]
    and: Option<String>,
    /// Kind of objects that may stay when the custom resource is deleted, such as PersistentVolumeClaim; may be repeated
    #[arg(long, value_name = "KIND")]
    keep: Vec<String>,
    /// Kind, or field of a kind, that is not compared, and may be written at any time, such as ConfigMap:.data.time; may be repeated
    #[arg(long, value_name = "KIND[:PATH]")]
    ignore: Vec<String>,
    /// Check to run, or one fault of it, as a replay names it; may be repeated. An unknown name lists those that exist
    #[arg(long, value_name = "CHECK[:FAULT]")]
    only: Vec<String>,
    /// Print the faults of a check, one a line, and run no check; an unknown name lists the checks that have any
    #[arg(long, value_name = "CHECK", requires = "command", conflicts_with_all = ["only", "quick", "all"])]
    list_faults: Option<String>,
    /// Run only the checks of files, and the six of the operator that find most
    #[arg(long, conflicts_with_all = ["all", "only"])]
    quick: bool,
    /// Run all checks, with all their faults, such as a crash after each of the writes; also a restored backup and silent watches
    #[arg(long, conflicts_with = "only")]
    all: bool,
    /// How many checks run at a time; only one if the operator cannot run twice, as with a fixed port
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = RangedU64ValueParser::<usize>::new().range(1..=64))]
    jobs: usize,
    /// Chooses the faults of a check that has too many for all
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// How long nothing may be written until the operator counts as settled; give more if it pauses for longer between its writes
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_time)]
    settle: Duration,
    /// What each sample must also have until the operator counts as settled, as for kubectl wait: jsonpath={.status.phase}=Ready, or without
    /// a value, jsonpath={.status.url}, a field that must exist
    #[arg(long, value_name = "CONDITION")]
    settled: Option<SampleCondition>,
    /// How long the operator may take to start, to settle, and to repair a difference
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_time)]
    patience: Duration,
    /// Result of a check from which the exit code is 1
    #[arg(long, value_name = "RESULT", default_value = "fail")]
    fail_on: FailOn,
    /// Directory for what happened in each check that failed or warned: requests.jsonl, writes.jsonl, operator.log
    #[arg(long, value_name = "DIR")]
    output_dir: Option<PathBuf>,
    /// Output: one line for each check as it ends, or one document at the end
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    output: ReportOutput,
    /// The operator, and its arguments. Without it, only the files are checked
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum FailOn {
    Fail,
    /// Warnings as well
    Warn,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ReportOutput {
    Text,
    Json,
    /// XML for CI systems
    Junit,
    /// For a pull request
    Markdown,
}

pub(super) fn main(args: ScorecardArgs) -> Result<(), Failure> {
    let ScorecardArgs { scorecard: args, log } = args;
    log.start(Level::WARN);
    let mut settings = args.objects.settings(&args.command)?;
    settings.rbac = objects("--rbac", &args.rbac)?;
    settings.webhooks = objects("--webhooks", &args.webhooks)?;
    if let Some(dir) = &args.bundle {
        let manifests = dir.join("manifests");
        settings.bundle = objects("--bundle", &[if manifests.is_dir() { manifests } else { dir.clone() }])?;
    }
    let words = |text: &str| -> Vec<String> { text.split_whitespace().map(str::to_owned).collect() };
    settings.previous = args.previous.as_deref().map(words).unwrap_or_default();
    settings.and = args.and.as_deref().map(words).unwrap_or_default();
    settings.keep.clone_from(&args.keep);
    settings.ignore.clone_from(&args.ignore);
    settings.only.clone_from(&args.only);
    (settings.seed, settings.jobs) = (args.seed, args.jobs);
    (settings.settle, settings.patience, settings.start) = (args.settle, args.patience, args.patience);
    settings.settled.clone_from(&args.settled);
    settings.extent = match (args.quick, args.all) {
        (true, _) => Extent::Quick,
        (_, true) => Extent::Faults,
        (false, false) => Extent::Checks,
    };
    if let Some(dir) = &args.output_dir {
        let wrong = |error| Failure::Usage(format!("--output-dir {}: {error}", dir.display()));
        fs::create_dir_all(dir).map_err(wrong)?;
        remove_records(dir);
    }
    until_signal(async |stop| {
        tokio::select! {
            // Dropping it kills the operator and removes its files.
            done = run(&args, &settings) => done,
            () = stop.requested() => Err(Failure::Usage("interrupted: the operator is killed".to_owned())),
        }
    })
}

async fn run(args: &ScorecardFlags, settings: &Scorecard) -> Result<(), Failure> {
    if let Some(check) = &args.list_faults {
        let faults = scorecard::faults(settings, check).await;
        for fault in faults.map_err(|CannotJudge(why)| Failure::Usage(why))? {
            say!("{fault}");
        }
        return Ok(());
    }
    let (progress, mut written) = (ProgressLine::new(settings), Ok(()));
    let checks = scorecard::run(settings, |check| {
        progress.clear();
        progress.done.set(progress.done.get() + 1);
        if written.is_ok() {
            written = record(args, check);
        }
        if args.output == ReportOutput::Text && written.is_ok() {
            written = print(args, check);
        }
    });
    let report = tokio::select! {
        report = checks => report.map_err(|CannotJudge(why)| Failure::Usage(why)),
        never = progress.show() => match never {},
    };
    progress.clear();
    let report = report?;
    match args.output {
        ReportOutput::Text => {}
        ReportOutput::Json => {
            let mut json = report.json(&args.command);
            let values = json["checks"].as_array_mut().into_iter().flatten();
            for (check, value) in report.checks.iter().zip(values) {
                value["replay"] = replay(args, check).into();
            }
            say!("{json:#}");
        }
        ReportOutput::Junit => write!(io::stdout(), "{}", report.junit(|check| replay(args, check)))?,
        ReportOutput::Markdown => write!(io::stdout(), "{}", report.markdown(|check| replay(args, check)))?,
    }
    written?;
    let (failed, warned) = (report.failed().count(), report.warned().count());
    let all = report.checks.len();
    match args.fail_on {
        FailOn::Warn if warned > 0 => {
            Err(Failure::Runtime(format!("{failed} of {all} checks failed, and {warned} warned")))
        }
        FailOn::Fail | FailOn::Warn if failed > 0 => {
            Err(Failure::Runtime(format!("{failed} of {all} checks failed")))
        }
        FailOn::Fail | FailOn::Warn => Ok(()),
    }
}

/// A line on a terminal about the check that runs.
struct ProgressLine {
    names: Vec<&'static str>,
    done: Cell<usize>,
}

impl ProgressLine {
    fn new(settings: &Scorecard) -> ProgressLine {
        ProgressLine { names: scorecard::selected(settings), done: Cell::new(0) }
    }

    /// Runs until dropped.
    async fn show(&self) -> Infallible {
        let started = Instant::now();
        loop {
            if let Some(name) = self.names.get(self.done.get()).filter(|_| io::stderr().is_terminal()) {
                let (number, count) = (self.done.get() + 1, self.names.len());
                let line = format!("{number} of {count}: {name}, {} s", started.elapsed().as_secs());
                let _ = write!(io::stderr(), "\r\x1b[K{line}");
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    fn clear(&self) {
        if io::stderr().is_terminal() {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

/// The files of a check that failed.
const RECORDS: [&str; 3] = ["requests.jsonl", "writes.jsonl", "operator.log"];

/// Removes the files of an earlier run, and its directories if nothing else is in them.
fn remove_records(dir: &Path) {
    for check in scorecard::names() {
        let dir = dir.join(check);
        for file in RECORDS {
            let _ = fs::remove_file(dir.join(file));
        }
        let _ = fs::remove_dir(dir);
    }
}

/// The directory of a check that failed or warned.
fn record_dir(args: &ScorecardFlags, check: &CheckResult) -> Option<PathBuf> {
    let is_found = matches!(check.verdict.result, Outcome::Fail | Outcome::Warn) && check.journal.is_some();
    args.output_dir.as_ref().filter(|_| is_found).map(|dir| dir.join(check.name))
}

/// Writes the files of a check that failed or warned.
fn record(args: &ScorecardFlags, check: &CheckResult) -> Result<(), Failure> {
    let (Some(dir), Some(journal)) = (record_dir(args, check), &check.journal) else { return Ok(()) };
    let wrong = |error: io::Error| Failure::Usage(format!("--output-dir {}: {error}", dir.display()));
    fs::create_dir_all(&dir).map_err(wrong)?;
    let texts = [journal.requests_jsonl(), journal.writes_jsonl(), journal.log.clone()];
    for (name, text) in RECORDS.into_iter().zip(texts) {
        fs::write(dir.join(name), text).map_err(wrong)?;
    }
    Ok(())
}

/// The differences of a check that are shown. With an --output other than text, all are.
const DIFFERENCES_MAX: usize = 5;

fn print(args: &ScorecardFlags, check: &CheckResult) -> Result<(), Failure> {
    say!("{check}");
    // The first is in the reason.
    for difference in check.verdict.evidence.iter().take(DIFFERENCES_MAX).skip(1) {
        say!("        and {difference}");
    }
    if let Some(left) = check.verdict.evidence.len().checked_sub(DIFFERENCES_MAX).filter(|left| *left > 0) {
        say!("        and {left} more");
    }
    if matches!(check.verdict.result, Outcome::Fail | Outcome::Warn) {
        say!("        replay: {}", replay(args, check));
    }
    if let Some(dir) = record_dir(args, check) {
        say!("        files: {}", dir.display());
    }
    Ok(())
}

/// The command that runs a check again, with the fault that failed.
fn replay(args: &ScorecardFlags, check: &CheckResult) -> String {
    let mut words = vec!["listwatch scorecard".to_owned()];
    let paths = |paths: &[PathBuf]| paths.iter().map(|path| path.display().to_string()).collect();
    let flags: [(&str, Vec<String>); 10] = [
        ("--crd", paths(&args.objects.crd)),
        ("--sample", paths(&args.objects.sample)),
        ("--rbac", paths(&args.rbac)),
        ("--webhooks", paths(&args.webhooks)),
        ("--bundle", paths(args.bundle.as_slice())),
        ("--previous", args.previous.iter().cloned().collect()),
        ("--and", args.and.iter().cloned().collect()),
        ("--keep", args.keep.clone()),
        ("--ignore", args.ignore.clone()),
        ("--settled", args.settled.iter().map(ToString::to_string).collect()),
    ];
    for (flag, values) in flags {
        words.extend(values.iter().map(|value| format!("{flag} {}", quoted(value))));
    }
    words.push(format!(
        "--settle {}s --patience {}s",
        args.settle.as_secs_f64(),
        args.patience.as_secs_f64()
    ));
    words.extend(check.replay(args.seed).split(' ').map(quoted));
    if !args.command.is_empty() {
        words.push("--".to_owned());
    }
    words.extend(args.command.iter().map(|word| quoted(word)));
    words.join(" ")
}

/// A word for a shell.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@%+,{}".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}
