//! `--record FILE` and `--curl FILE` of `listwatch run` and `listwatch demo`: the requests of the operator, in files.

use std::{
    ffi::OsStr,
    fs::File,
    io::{self, Write},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, OnceLock},
    time::Instant,
};

use clap::Args;
use listwatch::{
    advanced::{Step, Tap},
    client::{Client, Config, CurlFrom},
    locked,
};
use listwatch_study::{
    explain::{Explainer, Sentence},
    record::{Entry, Recorder, Recorders},
};
use tokio::sync::mpsc::UnboundedSender;
use tracing::warn;

use super::{
    connection::client,
    failure::Failure,
    format::Output,
    output_file::{Recording, create, is_special},
    screen,
};

/// The first lines of the script. Its texts are arguments of `:`, because an interactive zsh knows no comments.
const SCRIPT: &str = "#!/usr/bin/env bash\n\
    : 'The requests of the operator, in order, each with the time since its start. Run all of them, or paste them one after the other.'\n\
    : 'Watches run in the background: their events appear between the answers, until the shell ends.'\n\
    : 'Writes are sent again. Where the object of a create still exists, the answer is 409 AlreadyExists.'\n\
    trap 'kill $(jobs -p) 2>/dev/null' EXIT\n";

#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Study")]
pub(super) struct TraceFlags {
    /// Record each request and its answer, without tokens and Secrets, for listwatch replay. If FILE exists, FILE-2 is written
    #[arg(long, value_name = "FILE", env = "LISTWATCH_RECORD")]
    record: Option<PathBuf>,
    /// Write each request as a curl command: a script to step through. If FILE exists, FILE-2 is written
    #[arg(long, value_name = "FILE", env = "LISTWATCH_CURL")]
    curl: Option<PathBuf>,
}

/// A tap that writes to the files.
struct Trace {
    began: Instant,
    files: Mutex<Files>,
    client: OnceLock<Client>,
}

struct Files {
    recorders: Recorders,
    recording: Option<Recording>,
    script: Option<File>,
    explainer: Explainer,
    explain: Option<UnboundedSender<Sentence>>,
}

impl TraceFlags {
    /// A client of this server, whose exchanges are also explained to `explain`. Creates the files, and does not connect.
    /// `comment` is a text of the script about the server.
    pub(super) fn client(
        &self,
        config: Config,
        explain: Option<UnboundedSender<Sentence>>,
        comment: &str,
    ) -> Result<Client, Failure> {
        if self.record.is_none() && self.curl.is_none() && explain.is_none() {
            return client(config);
        }
        let server = config.server().to_owned();
        let recording = self
            .record
            .as_deref()
            .map(|path| Recording::create(&unused("--record", path), &server))
            .transpose()?;
        let script = match &self.curl {
            None => None,
            Some(path) => {
                let mut script = create("--curl", &unused("--curl", path), 0o700)?;
                let written = write!(script, "{SCRIPT}").and_then(|()| remark(&mut script, comment));
                written.map_err(|error| failed("--curl", &error))?;
                Some(script)
            }
        };
        let mut explainer = screen::explainer(Output::Raw);
        explainer.names_resources = true;
        let files =
            Mutex::new(Files { recorders: Recorders::default(), recording, script, explainer, explain });
        let trace = Arc::new(Trace { began: Instant::now(), files, client: OnceLock::new() });
        let client = client(config.with_tap(trace.clone()))?;
        {
            let mut files = locked(&trace.files);
            files.explainer.request_timeout = client.request_timeout();
            if let Some(script) = &mut files.script
                && let Some(needs) = client.curl_needs()
            {
                remark(script, needs).map_err(|error| failed("--curl", &error))?;
            }
        }
        // Set once, before the first request.
        let _ = trace.client.set(client.clone());
        Ok(client)
    }
}

/// The path, or else the first of `run-2.jsonl`, `run-3.jsonl`, … that does not exist: a container that is started again finds
/// the files of its predecessor.
fn unused(flag: &str, path: &Path) -> PathBuf {
    let text = |part: Option<&OsStr>| part.unwrap_or_default().to_string_lossy().into_owned();
    let (stem, extension) = (text(path.file_stem()), text(path.extension()));
    let dot = if extension.is_empty() { "" } else { "." };
    let numbered = (2..).map(|number| path.with_file_name(format!("{stem}-{number}{dot}{extension}")));
    let mut paths = [path.to_owned()].into_iter().chain(numbered);
    let unused = paths.find(|path| !path.exists() || is_special(path)).unwrap_or_else(|| path.to_owned());
    if unused != path {
        warn!(flag, file = %unused.display(), "the named file exists, perhaps of an earlier run, so this run writes another one");
    }
    unused
}

/// Writes a text without an apostrophe for the readers of the script.
fn remark(script: &mut File, text: &str) -> io::Result<()> {
    if text.is_empty() { Ok(()) } else { writeln!(script, ": '{text}'") }
}

fn failed(flag: &str, error: &dyn std::fmt::Display) -> Failure {
    Failure::Runtime(format!("{flag}: {error}"))
}

impl Files {
    fn step(&mut self, time: f64, client: &Client, exchange: u64, step: Step<'_>) -> Result<(), Failure> {
        if let (Step::Request(request), Some(script)) = (step, &mut self.script) {
            let request = Recorder::of(request).redacted_request(request);
            let line = client.curl(&request, CurlFrom::Here);
            // Most answers do not end with a line feed, so a prompt would follow on the same line.
            let end = if request.is_watch() { " &" } else { "; echo" };
            let written = writeln!(script, "\n: {time:+.3}s\n{line}{end}");
            written.map_err(|error| failed("--curl", &error))?;
        }
        if self.recording.is_none() && self.explain.is_none() {
            return Ok(());
        }
        let Files { recorders, recording, explainer, explain, .. } = self;
        recorders.step(exchange, step, |recorder, entries| {
            for what in entries {
                let entry = Entry { time, exchange, what: recorder.redacted(what) };
                if let Some(explain) = explain {
                    // It fails if no receiver is left, so nobody reads the sentences.
                    explainer.explain(&entry).into_iter().for_each(|sentence| drop(explain.send(sentence)));
                }
                if let Some(recording) = recording {
                    recording.write(&entry)?;
                }
            }
            Ok(())
        })
    }
}

impl Tap for Trace {
    fn step(&self, exchange: u64, step: Step<'_>) {
        let Some(client) = self.client.get() else { return };
        let mut files = locked(&self.files);
        if let Err(failure) = files.step(self.began.elapsed().as_secs_f64(), client, exchange, step) {
            // A full disk must not stop the operator.
            (files.recording, files.script) = (None, None);
            warn!(error = failure.message(), "no more requests are recorded");
        }
    }
}
