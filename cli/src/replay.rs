//! `listwatch replay`: a recording, explained without a server.

use std::{
    collections::{HashMap, HashSet},
    fs,
    io::{self, Read, Write},
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Args;
use listwatch::client::Request;
use listwatch_study::record::{self, Entry, What};

use super::{
    failure::{Failure, exit_when_blocked, until_signal},
    format::{LineFormatter, Output},
    screen::{explain, explainer},
    terminal::note,
};

/// Replay a recording without a server, by the same decoder and state machine as the operator's
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    listwatch watch mws --follow --record mws.jsonl\n  \
    listwatch replay mws.jsonl --explain\n  \
    curl -sN \"$URL?watch=1\" | listwatch replay -\n\n\
    FILE was written by --record, or by curl -N; - is standard input. At its end: what a store would \
    hold, which request would come next, and which keys would have been reconciled.")]
pub(super) struct ReplayArgs {
    /// Recording, or - for standard input
    file: PathBuf,
    /// Explain each step on standard error
    #[arg(long)]
    explain: bool,
    /// Form of the answers
    #[arg(short, long, value_name = "FORM", default_value = "short")]
    output: Output,
    /// How fast: 1 is the speed of the recording, 10 is ten times as fast. Default: at once
    #[arg(long, value_name = "N", value_parser = parse_speed)]
    speed: Option<f64>,
}

fn parse_speed(text: &str) -> Result<f64, &'static str> {
    match text.parse() {
        Ok(speed) if speed > 0.0 && f64::is_finite(speed) => Ok(speed),
        Ok(_) | Err(_) => Err("is not a number above 0, such as 1 or 10"),
    }
}

pub(super) fn main(replay: ReplayArgs) -> Result<(), Failure> {
    exit_when_blocked(|_| Ok(()));
    until_signal(async |stop| {
        tokio::select! {
            result = run(&replay) => result,
            () = stop.requested() => Ok(()),
        }
    })
}

/// Reads a file, or standard input.
fn read(file: &Path) -> io::Result<Vec<u8>> {
    if file.as_os_str() != "-" {
        return fs::read(file);
    }
    let mut bytes = Vec::new();
    io::stdin().read_to_end(&mut bytes)?;
    Ok(bytes)
}

async fn run(replay: &ReplayArgs) -> Result<(), Failure> {
    let is_stdin = replay.file.as_os_str() == "-";
    let name = if is_stdin { "standard input".into() } else { replay.file.to_string_lossy() };
    let wrong = |cause: String| Failure::Usage(format!("{name}: {cause}"));
    let (sender, bytes) = tokio::sync::oneshot::channel();
    let file = replay.file.clone();
    // A thread of its own, which ends with the process: standard input may be open for ever.
    std::thread::spawn(move || sender.send(read(&file)));
    let bytes = bytes.await.map_err(|_| wrong("cannot be read".to_owned()))?;
    let bytes = bytes.map_err(|error| wrong(error.to_string()))?;
    let text = String::from_utf8_lossy(&bytes);
    let recorded = record::parse(&text).map_err(wrong)?;
    if recorded.entries.is_empty() {
        return Err(wrong("is a recording without an exchange".to_owned()));
    }
    let mut explainer = explainer(replay.output);
    let mut lines = LineFormatter::new(replay.output);
    let mut shown = Shown { is_numbered: overlap(&recorded.entries), last: 0, begun: HashMap::new() };
    let mut now = 0.0;
    for entry in &recorded.entries {
        if let Some(speed) = replay.speed {
            let wait = Duration::try_from_secs_f64((entry.time - now) / speed).unwrap_or_default();
            tokio::time::sleep(wait).await;
            now = entry.time;
        }
        let sentences = explainer.explain(entry);
        // Those of a request are about the one before it.
        let is_request = matches!(entry.what, What::Request(_));
        if !is_request {
            shown.show(entry, &mut lines)?;
        }
        if replay.explain && !sentences.is_empty() {
            if !is_request {
                shown.turn_to(entry.exchange);
            }
            sentences.iter().for_each(|sentence| explain(entry.time, sentence));
        }
        if is_request {
            shown.show(entry, &mut lines)?;
        }
    }
    if recorded.is_cut {
        note(&format!("{name} is cut short: its last line has no end, and is left out"));
    }
    for line in explainer.summary() {
        writeln!(io::stdout(), "{line}")?;
    }
    Ok(())
}

/// Whether several exchanges are open at the same time.
fn overlap(entries: &[Entry]) -> bool {
    let mut open = HashSet::new();
    entries.iter().any(|entry| {
        match &entry.what {
            What::Request(_) => drop(open.insert(entry.exchange)),
            What::End(_) => drop(open.remove(&entry.exchange)),
            What::Head(_) | What::Line(_) | What::Rest(_) => {}
        }
        open.len() > 1
    })
}

/// The form in which the screen shows the exchanges.
struct Shown<'a> {
    /// Whether each line about an exchange needs its number.
    is_numbered: bool,
    /// The exchange that the last line was about.
    last: u64,
    begun: HashMap<u64, Begun<'a>>,
}

#[derive(Clone, Copy, Default)]
struct Begun<'a> {
    path: &'a str,
    is_watch: bool,
    is_refused: bool,
}

impl<'a> Shown<'a> {
    fn show(&mut self, entry: &'a Entry, lines: &mut LineFormatter) -> Result<(), Failure> {
        let exchange = entry.exchange;
        let number = if self.is_numbered { format!("{exchange}: ") } else { String::new() };
        match &entry.what {
            What::Request(sent) => {
                let path = sent.path.split('?').next().unwrap_or_default();
                let is_watch = Request::get(&*sent.path).is_watch();
                self.begun.insert(exchange, Begun { path, is_watch, is_refused: false });
                // Of what curl wrote, the path is not known.
                if !path.is_empty() {
                    note(&format!("> {number}{} {}", sent.method, sent.path));
                }
                self.last = exchange;
            }
            What::Head(head) => {
                let begun = self.begun.entry(exchange).or_default();
                begun.is_refused = head.status >= 300;
                // The body of an error is not a stream of events.
                begun.is_watch &= !begun.is_refused;
                note(&format!("< {number}{} {}", head.version, head.status));
                self.last = exchange;
            }
            What::Line(line) | What::Rest(line) => {
                let Begun { is_watch, is_refused, .. } =
                    self.begun.get(&exchange).copied().unwrap_or_default();
                if is_watch && matches!(entry.what, What::Rest(_)) {
                    // Half a line.
                    return Ok(());
                }
                self.turn_to(exchange);
                if is_refused {
                    return lines.write_refusal(entry.time, &line.text());
                }
                lines.write(entry.time, &line.text(), is_watch)?;
            }
            What::End(_) => {}
        }
        Ok(())
    }

    /// Before a line about an exchange: says which one it is, unless the line before was about the same one.
    fn turn_to(&mut self, exchange: u64) {
        if self.is_numbered && std::mem::replace(&mut self.last, exchange) != exchange {
            let path = self.begun.get(&exchange).map_or("", |begun| begun.path);
            note(&format!("< {exchange}: {path}"));
        }
    }
}
