//! `listwatch lens`: shows what an operator does, and why, without a cluster or with one.

mod cluster;

use std::{
    cell::Cell,
    convert::Infallible,
    fs,
    future::pending,
    io::{self, IsTerminal, Write},
    path::PathBuf,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime},
};

use clap::{Args, ValueEnum};
use listwatch::shutdown::Stop;
use listwatch_apiserver::ApiServer;
use listwatch_lens::{Live, Operator, Recording, Report, Severity, document, page};
use listwatch_scorecard::{self as scorecard, CannotJudge, Scorecard, Then};
use tokio::sync::oneshot;
use tracing::Level;

use super::{apiserver::say, scorecard::ObjectFlags};
use crate::{
    connection::parse_time,
    failure::{Failure, until_signal},
    log::Log,
    terminal::note,
};

/// See what an operator in any language does, and why, without a cluster or with one
#[derive(Debug, Args)]
#[command(
    after_help = "Runs COMMAND against an API server in this process, with KUBECONFIG set; {kubeconfig} in its arguments becomes the path. The samples are created when it reads their kind. \
    Standard error has the address of a page that shows it while it runs, and can stop it at a write. At its end, after --for, or after Ctrl-C, comes the report: what is wrong, and for each write the event that is its likely cause. With FILE, it reads a recording instead. With --cluster, COMMAND works in the cluster of your kubeconfig, and reaches it through a proxy in this process; the page then shows what passes, and stops nothing. docs/lens.md describes the findings.\n\n\
    Exit code: 0 if there is no problem, 1 if there is one, 2 if a flag or a file is invalid, or COMMAND cannot be run.\n\n\
    Examples:\n  listwatch lens --crd config/crd --sample config/samples/memcached.yaml -- ./memcached-operator\n  \
    listwatch lens --cluster --for 1m -- ./memcached-operator\n  \
    listwatch lens /var/log/kubernetes/audit.log"
)]
pub(in super::super) struct LensArgs {
    #[command(flatten)]
    lens: LensFlags,
    #[command(flatten)]
    log: Log,
}

#[derive(Debug, Args)]
#[command(
    mut_arg("crd", |arg| arg.required(false).required_unless_present_any(["file", "cluster"])),
    mut_arg("sample", |arg| arg.required(false).required_unless_present_any(["file", "cluster"]))
)]
struct LensFlags {
    #[command(flatten)]
    objects: ObjectFlags,
    /// How long to look; without it, until Ctrl-C, or until the operator ends
    #[arg(long = "for", value_name = "TIME", value_parser = parse_time)]
    duration: Option<Duration>,
    /// Output: for people, for programs, or a page for browsers: one file that shows each request and event
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    output: LensOutput,
    /// Record what COMMAND says to a cluster, through a proxy on loopback; without COMMAND, name the kubeconfig of the proxy, for an operator that you start
    #[arg(long, conflicts_with_all = ["crd", "sample", "file"])]
    cluster: bool,
    /// kubeconfig of the cluster. Without it: $KUBECONFIG, then the Pod's service account, then ~/.kube/config
    #[arg(long, value_name = "FILE", requires = "cluster")]
    kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig to use instead of its current one
    #[arg(long, value_name = "NAME", requires = "cluster")]
    context: Option<String>,
    /// Recording to read: an audit log of kube-apiserver at the level RequestResponse, a directory of the scorecard's --output-dir, or a file of --record
    #[arg(value_name = "FILE", conflicts_with_all = ["command", "crd", "sample", "duration"])]
    file: Vec<PathBuf>,
    /// The operator, and its arguments
    #[arg(last = true, value_name = "COMMAND", required_unless_present_any = ["file", "cluster"])]
    command: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LensOutput {
    Text,
    Json,
    Html,
}

pub(super) fn main(args: LensArgs) -> Result<(), Failure> {
    let LensArgs { lens: args, log } = args;
    log.start(Level::WARN);
    if !args.file.is_empty() {
        return print(&args, &read(&args.file)?, None);
    }
    if args.cluster {
        return until_signal(async |stop| {
            let (recording, end) = cluster::watched(&args, stop).await?;
            print(&args, &recording, end.as_deref())
        });
    }
    let settings = args.objects.settings(&args.command)?;
    until_signal(async |stop| {
        let (recording, end) = watched(&args, &settings, stop).await?;
        print(&args, &recording, end.as_deref())
    })
}

/// The recording of a run, and how the operator ended by itself.
async fn watched(
    args: &LensFlags,
    settings: &Scorecard,
    stop: Stop,
) -> Result<(Recording, Option<String>), Failure> {
    if args.duration.is_none() && io::stderr().is_terminal() {
        note("Ctrl-C ends the operator, and shows what it did");
    }
    let is_enough = &Cell::new(false);
    let enough = async {
        asked_to_end(args, stop).await;
        is_enough.set(true);
        pending::<Infallible>().await
    };
    let (found, server) = oneshot::channel();
    let (mut found, restarts) = (Some(found), Arc::new(AtomicBool::new(false)));
    let asked = Arc::clone(&restarts);
    let restart = Arc::new(move || restarts.store(true, Ordering::Relaxed));
    let then = move |server: &Arc<ApiServer>| {
        // The page gets it once.
        found.take().map(|found| found.send(Arc::clone(server)));
        match asked.swap(false, Ordering::Relaxed) {
            _ if is_enough.get() => Then::End,
            true => Then::Restart,
            false => Then::GoOn,
        }
    };
    let run = async {
        tokio::select! {
            observed = scorecard::observe(settings, then) => observed,
            never = enough => match never {},
        }
    };
    let why = |run: &Result<(_, Option<String>), _>| match run {
        Ok((_, end)) => why_no_more(end.as_deref()),
        Err(_) => why_no_more(None),
    };
    let operator =
        Operator { user: "operator-*".to_owned(), restart: Some(restart), scorecard: Some(settings.clone()) };
    let show = async |live: Live, end: End| {
        if let Ok(server) = server.await {
            live.run(server, operator, end).await;
        }
    };
    let run = with_page(show, run, why).await?;
    let (journal, end) = run.map_err(|CannotJudge(why)| Failure::Usage(why))?;
    let mut recording = Recording::of(&journal);
    recording.runs_until = end.is_none().then(SystemTime::now);
    Ok((recording, end))
}

/// Waits for Ctrl-C, or for the end of `--for`.
async fn asked_to_end(args: &LensFlags, stop: Stop) {
    tokio::select! {
        () = stop.requested() => {}
        () = tokio::time::sleep(args.duration.unwrap_or_default()), if args.duration.is_some() => {}
    }
}

/// Says to a page why there is no more, from how the operator ended by itself.
fn why_no_more(end: Option<&str>) -> String {
    end.map_or("listwatch was stopped".to_owned(), |end| format!("the operator has ended: {end}"))
}

/// Why there is no more, as soon as that is so.
pub(super) type End = Pin<Box<dyn Future<Output = String>>>;

/// Does some work, and shows a page beside it. At the end of the work, the page says why.
pub(super) async fn with_page<T>(
    show: impl AsyncFnOnce(Live, End),
    work: impl Future<Output = T>,
    why: impl FnOnce(&T) -> String,
) -> Result<T, Failure> {
    let live = Live::bind().await.map_err(|error| Failure::Runtime(format!("the page: {error}")))?;
    note(&format!("the page: {}", live.url()));
    let (ended, end) = oneshot::channel();
    let page = show(live, Box::pin(async { end.await.unwrap_or_default() }));
    let work = async {
        let result = work.await;
        let _ = ended.send(why(&result));
        result
    };
    let ((), result) = tokio::join!(page, work);
    Ok(result)
}

/// Files, and the files of directories whose names end in `.jsonl`.
fn read(paths: &[PathBuf]) -> Result<Recording, Failure> {
    let mut files = Vec::new();
    for path in paths {
        let wrong = |error: io::Error| Failure::Usage(format!("{}: {error}", path.display()));
        if !path.is_dir() {
            files.push((path.display().to_string(), fs::read_to_string(path).map_err(wrong)?));
            continue;
        }
        for entry in fs::read_dir(path).map_err(wrong)? {
            let path = entry.map_err(wrong)?.path();
            if path.extension().is_some_and(|extension| extension == "jsonl") {
                files.push((path.display().to_string(), fs::read_to_string(&path).map_err(wrong)?));
            }
        }
    }
    Recording::read(&files).map_err(|error| Failure::Usage(error.to_string()))
}

fn print(args: &LensFlags, recording: &Recording, end: Option<&str>) -> Result<(), Failure> {
    let report = Report::of(recording);
    match args.output {
        LensOutput::Text => write!(io::stdout(), "{}", report.text())?,
        LensOutput::Json => say!("{:#}", report.json()),
        LensOutput::Html => {
            let document = document(recording, &report, recording.start());
            write!(io::stdout(), "{}", page::html(&document))?;
        }
    }
    if let Some(end) = end {
        note(&format!("COMMAND ended: {end}"));
    }
    let problems = report.findings.iter().filter(|finding| finding.severity == Severity::Problem).count();
    match problems {
        0 => Ok(()),
        1 => Err(Failure::Runtime("1 problem".to_owned())),
        _ => Err(Failure::Runtime(format!("{problems} problems"))),
    }
}
