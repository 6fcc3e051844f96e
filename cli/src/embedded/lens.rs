//! `listwatch lens`: shows what an operator does, and why, without a cluster.

use std::{
    cell::Cell,
    convert::Infallible,
    fs,
    future::pending,
    io::{self, IsTerminal, Write},
    path::PathBuf,
    time::{Duration, SystemTime},
};

use clap::{Args, ValueEnum};
use listwatch::shutdown::Stop;
use listwatch_lens::{Recording, Report, Severity, document, page};
use listwatch_scorecard::{self as scorecard, CannotJudge, Scorecard};
use tracing::Level;

use super::{apiserver::say, scorecard::ObjectFlags};
use crate::{
    connection::parse_time,
    failure::{Failure, until_signal},
    log::Log,
    terminal::note,
};

/// See what an operator in any language does, and why, without a cluster
#[derive(Debug, Args)]
#[command(
    after_help = "Runs COMMAND against an API server in this process, with KUBECONFIG set; {kubeconfig} in its arguments becomes the path. The samples are created when it reads their kind. \
    At its end, after --for, or after Ctrl-C, comes the report: what is wrong, and for each write the event that is its likely cause. With FILE, it reads a recording instead. docs/lens.md describes the findings.\n\n\
    Exit code: 0 if there is no problem, 1 if there is one, 2 if a flag or a file is invalid, or COMMAND cannot be run.\n\n\
    Examples:\n  listwatch lens --crd config/crd --sample config/samples/memcached.yaml -- ./memcached-operator\n  \
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
    mut_arg("crd", |arg| arg.required(false).required_unless_present("file")),
    mut_arg("sample", |arg| arg.required(false).required_unless_present("file"))
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
    /// Recording to read: an audit log of kube-apiserver at the level RequestResponse, or a directory of the scorecard's --output-dir
    #[arg(value_name = "FILE", conflicts_with_all = ["command", "crd", "sample", "duration"])]
    file: Vec<PathBuf>,
    /// The operator, and its arguments
    #[arg(last = true, value_name = "COMMAND", required_unless_present = "file")]
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
    let is_enough = Cell::new(false);
    let enough = async {
        tokio::select! {
            () = stop.requested() => {}
            () = tokio::time::sleep(args.duration.unwrap_or_default()), if args.duration.is_some() => {}
        }
        is_enough.set(true);
        pending::<Infallible>().await
    };
    let (journal, end) = tokio::select! {
        observed = scorecard::observe(settings, |_| is_enough.get()) => observed.map_err(|CannotJudge(why)| Failure::Usage(why))?,
        never = enough => match never {},
    };
    let mut recording = Recording::of(&journal);
    recording.runs_until = end.is_none().then(SystemTime::now);
    Ok((recording, end))
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
