//! The output of `get` and `watch`: bodies on standard output; the curl command, the status, the headers and the explanation
//! on standard error; and all of them in a recording.

use std::{
    borrow::Cow,
    collections::HashMap,
    fs::{self, File, OpenOptions},
    io::{self, ErrorKind, IsTerminal, Write},
    mem,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    process,
    sync::{Arc, Mutex, OnceLock},
    time::{Duration, Instant},
};

use clap::ValueEnum;
use http::{HeaderMap, header::CONTENT_TYPE};
use serde_json::{Value, json};
use terminal_size::{Width, terminal_size_of};
use tokio::{runtime, sync::Notify};

use super::{
    failure::{Failure, reported},
    yaml::yaml,
};
use crate::{
    client::{Client, CurlFrom, Request, Step, Tap},
    locked, log, operators,
    shutdown::Signals,
    study::{
        discovery,
        explain::{Explainer, Sentence},
        object::{CHANGES_CHARS, changes_within},
        record::{Entry, Header, Recorders, What},
        wrap::wrap,
    },
};

/// Fewest characters for the changed fields of an object beside its name.
const CHANGES_CHARS_MIN: usize = 24;

/// How long a command may take to end after a signal. Then a write blocks.
const STOP_WAIT: Duration = Duration::from_millis(500);

/// The form of the answers on standard output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Output {
    /// The body, byte for byte
    Raw,
    /// One short line for each object or event
    Short,
    /// Indented JSON
    Json,
    /// YAML
    Yaml,
    /// KIND.GROUP/NAME
    Name,
    /// The columns of kubectl, from a Table, for which get and watch ask the server
    Wide,
}

impl Output {
    /// The form that the user chose; else short lines for people, and the body for programs.
    pub(super) fn or_default(chosen: Option<Output>) -> Output {
        chosen.unwrap_or(if io::stdout().is_terminal() { Output::Short } else { Output::Raw })
    }
}

/// The settings of a screen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Show {
    pub(super) output: Output,
    pub(super) explain: bool,
    /// Whether several answers follow each other. Then a line or a list that is cut is not written.
    pub(super) follow: bool,
    /// Whether the rows of a Table begin with the namespaces of their objects.
    pub(super) namespaces: bool,
    /// Ends after so many events.
    pub(super) events_max: Option<u64>,
}

/// A tap that shows exchanges.
pub(super) struct Screen {
    show: Show,
    state: Mutex<ScreenState>,
    client: OnceLock<Client>,
    /// Why the screen is full: an error of an output, or none after the last event.
    ended: Mutex<Option<Result<(), Failure>>>,
    full: Notify,
}

struct ScreenState {
    began: Instant,
    recorders: Recorders,
    explainer: Explainer,
    recording: Option<Recording>,
    lines: LineFormatter,
    events: u64,
    /// The comment of the first curl command.
    needs: Option<&'static str>,
    /// A request for the resources of the server. It is shown only if it is refused or fails.
    discovery: Option<Request>,
    /// The path of such a request that was shown. The client may send it several times.
    shown_discovery: String,
    /// Whether raw bytes were written after the last end of a line.
    is_mid_line: bool,
}

impl Screen {
    pub(super) fn new(show: Show) -> Arc<Screen> {
        let state = ScreenState {
            began: Instant::now(),
            recorders: Recorders::default(),
            explainer: explainer(show.output),
            recording: None,
            lines: LineFormatter { namespaces: show.namespaces, ..LineFormatter::new(show.output) },
            events: 0,
            needs: None,
            discovery: None,
            shown_discovery: String::new(),
            is_mid_line: false,
        };
        Arc::new(Screen {
            show,
            state: Mutex::new(state),
            client: OnceLock::new(),
            ended: Mutex::default(),
            full: Notify::new(),
        })
    }

    /// Shows and records the exchanges of this client from now on.
    pub(super) fn begin(&self, client: &Client, recording: Option<Recording>) {
        let mut state = locked(&self.state);
        state.began = Instant::now();
        state.recording = recording;
        state.explainer.request_timeout = client.request_timeout();
        state.needs = client.curl_needs();
        // Begun once.
        let _ = self.client.set(client.clone());
    }

    /// Removes a recording without an exchange: the corrected command writes the same file.
    pub(super) fn remove_empty_recording(&self) {
        if let Some(Recording { path, is_empty: true, .. }) = locked(&self.state).recording.take() {
            // At worst, the file stays.
            let _ = fs::remove_file(path);
        }
    }

    /// Waits until nothing more is to be shown.
    pub(super) async fn full(&self) -> Result<(), Failure> {
        self.full.notified().await;
        self.failure()
    }

    /// The error of an output, if there was one.
    pub(super) fn failure(&self) -> Result<(), Failure> {
        locked(&self.ended).take().unwrap_or(Ok(()))
    }

    fn end(&self, result: Result<(), Failure>) {
        locked(&self.ended).get_or_insert(result);
        self.full.notify_one();
    }

    fn show(&self, state: &mut ScreenState, exchange: u64, step: Step<'_>) -> Result<(), Failure> {
        let Some(client) = self.client.get() else { return Ok(()) };
        let time = state.began.elapsed().as_secs_f64();
        if step.is_last() && mem::take(&mut state.is_mid_line) && io::stdout().is_terminal() {
            writeln!(io::stdout())?;
        }
        let ScreenState { recorders, explainer, recording, lines, events, is_mid_line, .. } = state;
        let is_copied = self.show.output == Output::Raw && !self.show.follow;
        recorders.step(exchange, step, |recorder, entries| {
            let is_watch = recorder.is_watch();
            let mut left = self.show.events_max.map_or(u64::MAX, |most| most.saturating_sub(*events));
            if let (Step::Chunk(chunk), true) = (step, is_copied) {
                self.write_raw(events, chunk, is_watch)?;
                *is_mid_line = !chunk.ends_with(b"\n");
            }
            for what in entries {
                let is_event = is_watch && matches!(what, What::Line(_));
                if is_event && left == 0 {
                    break;
                }
                left -= u64::from(is_event);
                if let What::Head(head) = &what {
                    note(&format!("< {} {}", head.version, head.status));
                    head.headers.iter().for_each(|(name, value)| note(&format!("< {name}: {value}")));
                }
                // Of a watch, the rest is half a line. Half a list would join the answer that follows.
                let is_cut = is_watch || self.show.follow && !matches!(step, Step::End);
                let is_half = is_cut && matches!(what, What::Rest(_));
                // The client also asks for the version of the server.
                let is_other = self.show.follow && !is_watch && !recorder.is_list();
                let is_written = !is_copied && !is_half && !is_other;
                if let (What::Line(line) | What::Rest(line), true) = (&what, is_written) {
                    let is_shortened =
                        matches!(self.show.output, Output::Short | Output::Name | Output::Wide);
                    let line = line.text();
                    // The cells of Secrets have no values. Within a text, the quotes would be escaped.
                    let is_table = line.contains(r#""kind":"Table""#);
                    let text = if is_shortened && !is_table {
                        recorder.redacted_text(&line)
                    } else {
                        Cow::Borrowed(&*line)
                    };
                    // The error of the command has the message of a Status.
                    let is_repeated = is_shortened && !self.show.follow && text.starts_with('{');
                    if !recorder.is_refused() {
                        lines.write(time, text.trim_end(), is_watch)?;
                        if is_shortened && !is_watch && !self.show.follow {
                            rest_of(&text).iter().for_each(|rest| note(rest));
                        }
                    } else if !is_repeated {
                        lines.write_refusal(time, &text)?;
                    }
                    self.count(events, is_event);
                }
                let entry = Entry { time, exchange, what: recorder.redacted(what) };
                if self.show.explain {
                    explainer.explain(&entry).iter().for_each(|sentence| explain(time, sentence));
                }
                if let Some(recording) = recording {
                    recording.write(&entry)?;
                }
            }
            Ok::<_, Failure>(())
        })?;
        // After the sentences about the request before it.
        if let Step::Request(request) = step {
            if let Some(needs) = state.needs.take() {
                note(&format!("# {needs}"));
            }
            if request.accept != discovery::ACCEPT {
                note(&format!("$ {}", client.curl(request, CurlFrom::Here)));
            } else if state.shown_discovery == request.path {
                note("# the same request again");
            } else {
                note(&format!("$ {}", client.curl(request, CurlFrom::Here)));
                state.shown_discovery.clone_from(&request.path);
            }
        }
        Ok(())
    }

    /// Writes the bytes as they came, up to the last event.
    fn write_raw(&self, events: &mut u64, chunk: &[u8], is_watch: bool) -> Result<(), Failure> {
        let mut stdout = io::stdout().lock();
        for piece in chunk.split_inclusive(|byte| *byte == b'\n') {
            if self.show.events_max.is_some_and(|most| is_watch && *events >= most) {
                break;
            }
            stdout.write_all(piece)?;
            self.count(events, is_watch && piece.ends_with(b"\n"));
        }
        Ok(stdout.flush()?)
    }

    fn count(&self, events: &mut u64, is_event: bool) {
        *events += u64::from(is_event);
        if is_event && self.show.events_max.is_some_and(|most| *events >= most) {
            self.end(Ok(()));
        }
    }
}

impl Tap for Screen {
    fn step(&self, exchange: u64, step: Step<'_>) {
        let mut state = locked(&self.state);
        let is_full = locked(&self.ended).is_some();
        if is_full {
            return;
        }
        if let Step::Request(request) = step
            && request.accept == discovery::ACCEPT
        {
            state.discovery = Some(request.clone());
            return;
        }
        let is_json = |headers: &HeaderMap| {
            headers.get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"application/json"))
        };
        let is_answered = matches!(step, Step::Head { status: 200, headers, .. } if is_json(headers));
        let asked = state.discovery.take().filter(|_| !is_answered);
        // The error quotes the page of a proxy.
        let is_page = asked.is_some() && matches!(step, Step::Head { status: 200, .. });
        let end = is_page.then_some(Step::Dropped);
        for step in asked.iter().map(Step::Request).chain([step]).chain(end) {
            if let Err(failure) = self.show(&mut state, exchange, step) {
                self.end(Err(failure));
            }
        }
    }
}

/// A line on standard error about an exchange. If standard error is closed, the line is dropped.
pub(super) fn note(text: &str) {
    let text = printable(text);
    let color = log::is_colored(io::stderr().is_terminal());
    let text = if color { format!("\x1b[2m{text}\x1b[0m") } else { text };
    let _ = writeln!(io::stderr(), "{text}");
}

/// An explainer that does not repeat what the output shows.
pub(super) fn explainer(output: Output) -> Explainer {
    let mut explainer = if output == Output::Short { Explainer::brief() } else { Explainer::default() };
    explainer.marked_owner = operators::marked_owner;
    explainer
}

/// Writes a line to standard error, broken between words at the width of a terminal. `eprintln!` would panic if that fails, and
/// so change the exit code.
pub(super) fn write_error(line: &str, indent: usize) {
    let width = terminal_size_of(io::stderr()).map_or(usize::MAX, |(Width(width), _)| width.into());
    let _ = writeln!(io::stderr(), "{}", wrap(&printable(line), width, indent));
}

/// Writes a sentence to standard error.
pub(super) fn explain(time: f64, sentence: &Sentence) {
    write_error(&format!("{time:+9.3}s # {sentence}"), 13);
    if let Some(mistake) = sentence.mistake {
        write_error(&format!("{:11}# {mistake}", ""), 13);
    }
}

/// Ends the process soon after a signal even if a write to standard output blocks, because its reader has stopped reading.
/// The code of the signal decides about the result.
pub(super) fn exit_when_blocked(result: fn(u8) -> Result<(), Failure>) {
    std::thread::spawn(move || {
        let Ok(runtime) = runtime::Builder::new_current_thread().enable_all().build() else { return };
        runtime.block_on(async {
            let Ok(mut signals) = Signals::listen() else { return };
            let (_, code) = signals.next().await;
            tokio::time::sleep(STOP_WAIT).await;
            process::exit(reported(result(code)).into());
        });
    });
}

/// A text without control characters: a server's could change what a terminal shows, or worse.
fn printable(text: &str) -> String {
    let is_harmless = |c: char| !c.is_control() || c == '\n' || c == '\t';
    text.replace("\r\n", "\n").chars().map(|c| if is_harmless(c) { c } else { '\u{fffd}' }).collect()
}

/// The columns of the terminal on standard output, if it is one.
pub(super) fn width_of_stdout() -> Option<usize> {
    terminal_size_of(io::stdout()).map(|(Width(width), _)| width.into())
}

/// A file of entries, readable by its owner alone.
pub(super) struct Recording {
    file: File,
    path: PathBuf,
    /// Whether it has only the header.
    is_empty: bool,
}

impl Recording {
    /// Creates the file. An existing file is not overwritten.
    pub(super) fn create(path: &Path, server: &str) -> Result<Recording, Failure> {
        let file = create("--record", path, 0o600)?;
        let mut recording = Recording { file, path: path.to_owned(), is_empty: true };
        recording.write(&Header::new(server))?;
        Ok(Recording { is_empty: true, ..recording })
    }

    /// Writes an entry, or the header.
    pub(super) fn write(&mut self, line: &impl serde::Serialize) -> Result<(), Failure> {
        let line = serde_json::to_string(line).map_err(|error| Failure::Runtime(error.to_string()))?;
        let line = line + "\n";
        self.is_empty = false;
        self.file
            .write_all(line.as_bytes())
            .map_err(|error| Failure::Runtime(format!("--record {}: {error}", self.path.display())))
    }
}

/// Whether a path is a directory, a terminal, a pipe or the like: anything that no file can replace.
pub(super) fn is_special(path: &Path) -> bool {
    path.metadata().is_ok_and(|found| !found.is_file())
}

/// The refusal of such a path.
pub(super) fn special(flag: &str, path: &Path) -> Failure {
    Failure::Usage(format!("{flag} {}: is not a regular file; choose another file", path.display()))
}

/// Creates a file that a flag names.
pub(super) fn create(flag: &str, path: &Path, mode: u32) -> Result<File, Failure> {
    if is_special(path) {
        return Err(special(flag, path));
    }
    OpenOptions::new().write(true).create_new(true).mode(mode).open(path).map_err(|error| {
        let path = path.display();
        match error.kind() {
            ErrorKind::AlreadyExists => {
                Failure::Usage(format!("{flag} {path}: exists; remove it, or choose another file"))
            }
            _ => Failure::Runtime(format!("{flag} {path}: {error}")),
        }
    })
}

/// The lines of bodies in a form for people.
pub(super) struct LineFormatter {
    output: Output,
    /// As in [`Show`]. False after objects without a namespace, such as Nodes.
    namespaces: bool,
    is_colored: bool,
    /// Of the terminal, if there is one.
    width: Option<usize>,
    /// The last state of each object, by uid.
    objects: HashMap<String, Value>,
    /// The width of each column of a Table.
    widths: Vec<usize>,
}

impl LineFormatter {
    pub(super) fn new(output: Output) -> LineFormatter {
        let is_colored = log::is_colored(io::stdout().is_terminal());
        let width = width_of_stdout();
        let (objects, widths) = (HashMap::new(), Vec::new());
        LineFormatter { output, namespaces: false, is_colored, width, objects, widths }
    }

    /// Writes a line of a body.
    pub(super) fn write(&mut self, time: f64, line: &str, is_watch: bool) -> Result<(), Failure> {
        let Ok(value) = serde_json::from_str::<Value>(line) else {
            return self.write_text(line);
        };
        let indented = || serde_json::to_string_pretty(&value).unwrap_or_default() + "\n";
        // `/version` has no objects, nor has a list of resources.
        let has_objects = is_watch || value["metadata"].is_object();
        let text = match self.output {
            Output::Raw => format!("{line}\n"),
            Output::Json => indented(),
            Output::Yaml => "---\n".to_owned() + &yaml(&value),
            Output::Name if !has_objects => {
                let cause = "the answer has no objects: -o raw writes it as it came";
                return Err(Failure::Runtime(cause.to_owned()));
            }
            Output::Name => each(&value, name),
            Output::Wide | Output::Short if !has_objects => indented(),
            Output::Wide | Output::Short if is_table(&value) => self.table(&value, None),
            Output::Wide | Output::Short if is_table(&value["object"]) => {
                self.table(&value["object"], value["type"].as_str())
            }
            Output::Wide | Output::Short if is_watch => self.event(time, &value),
            Output::Wide | Output::Short => {
                // A watch that follows shows the fields that have changed since the list.
                for object in value["items"].as_array().into_iter().flatten() {
                    // The answer to a check has the metadata only.
                    self.objects.entry(uid(object)).or_insert_with(|| object.clone());
                }
                let version = value["metadata"]["resourceVersion"].as_str().unwrap_or_default();
                let objects = each(&value, |object, _| format!("{}\n", short(object)));
                let end = format!("the list has version {version}\n");
                self.fit(&(objects + if value["items"].is_array() { &*end } else { "" }))
            }
        };
        Ok(io::stdout().write_all(text.as_bytes())?)
    }

    /// Writes the body of an error. A page of a proxy is no JSON; then it goes to standard error.
    pub(super) fn write_refusal(&mut self, time: f64, body: &str) -> Result<(), Failure> {
        // A refusal is not an object with a name.
        if body.starts_with('{') && self.output != Output::Name {
            return self.write(time, body.trim_end(), false);
        }
        note(body.trim_end());
        Ok(())
    }

    /// A body that is no JSON, such as `/metrics` or `/healthz`.
    fn write_text(&self, line: &str) -> Result<(), Failure> {
        if self.output == Output::Raw {
            return Ok(writeln!(io::stdout(), "{line}")?);
        }
        if self.output != Output::Short {
            return Err(Failure::Runtime("the answer is not JSON: -o raw writes it as it came".to_owned()));
        }
        if line.chars().any(|c| c == '\u{fffd}' || (c.is_control() && !matches!(c, '\t' | '\n' | '\r'))) {
            return Err(Failure::Runtime(
                "the answer is binary data: write it to a file, with -o raw > FILE".to_owned(),
            ));
        }
        Ok(writeln!(io::stdout(), "{line}")?)
    }

    /// `+1.204s MODIFIED default/web 1208 spec.replicas 1 → 3`.
    fn event(&mut self, time: f64, event: &Value) -> String {
        let (kind, object) = (event["type"].as_str().unwrap_or("?"), &event["object"]);
        let before = match kind {
            "DELETED" => self.objects.remove(&uid(object)),
            "ADDED" | "MODIFIED" => self.objects.insert(uid(object), object.clone()),
            _ => None,
        };
        let rest = match (kind, before) {
            ("MODIFIED", Some(before)) => {
                let name = short(object);
                let room =
                    self.width.map_or(CHANGES_CHARS, |width| width.saturating_sub(22 + name.chars().count()));
                // In a narrow terminal, on the next line.
                let (separator, room) = match self.width {
                    Some(width) if room < CHANGES_CHARS_MIN => ("\n    ", width.saturating_sub(4)),
                    Some(_) | None => ("  ", room),
                };
                format!("{name}{separator}{}", changes_within(&before, object, room))
            }
            ("BOOKMARK", _) => object["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned(),
            _ => short(object),
        };
        self.fit(&format!("{time:+9.3}s {} {}\n", self.colored(kind, 8), printable(rest.trim_end())))
    }

    /// Lines, each broken at the width of the terminal.
    fn fit(&self, lines: &str) -> String {
        let width = self.width.unwrap_or(usize::MAX);
        lines.lines().map(|line| wrap(line, width, 4) + "\n").collect()
    }

    /// The type of an event, in this many characters.
    fn colored(&self, kind: &str, width: usize) -> String {
        let color = match kind {
            "ADDED" => "32",
            "MODIFIED" => "33",
            "DELETED" | "ERROR" => "31",
            _ => "2",
        };
        let kind = format!("{kind:width$}");
        if self.is_colored { format!("\x1b[{color}m{kind}\x1b[0m") } else { kind }
    }

    /// The rows of a Table, after its columns if they come for the first time. In a watch, each row begins with its event, as
    /// with `kubectl get --watch --output-watch-events`.
    fn table(&mut self, table: &Value, event: Option<&str>) -> String {
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let has_namespace = |row: &Value| row["object"]["metadata"]["namespace"].is_string();
        self.namespaces &= event == Some("BOOKMARK") || list(&table["rows"]).iter().all(has_namespace);
        let table = if self.namespaces { &with_namespaces(table.clone()) } else { table };
        let text = |value: &Value| match value {
            Value::Null => String::new(),
            Value::String(text) => printable(text),
            other => other.to_string(),
        };
        let cells = |row: &Value| list(&row["cells"]).iter().map(text).collect();
        let mut rows: Vec<(_, Vec<String>)> = match event {
            // Its cells are empty.
            Some("BOOKMARK") => vec![(event, vec![text(&table["metadata"]["resourceVersion"])])],
            _ => list(&table["rows"]).iter().map(|row| (event, cells(row))).collect(),
        };
        let columns = list(&table["columnDefinitions"]);
        if self.widths.is_empty() && !columns.is_empty() {
            let names = columns.iter().map(|column| text(&column["name"]).to_uppercase()).collect();
            rows.insert(0, (event.map(|_| "EVENT"), names));
            self.widths = vec![0; columns.len()];
        }
        for (_, row) in rows.iter().filter(|(event, _)| *event != Some("BOOKMARK")) {
            for (width, cell) in self.widths.iter_mut().zip(row) {
                *width = cell.chars().count().max(*width);
            }
        }
        let mut lines = String::new();
        for (event, row) in rows {
            let width = self.width.map(|width| width.saturating_sub(if event.is_some() { 11 } else { 0 }));
            let event = event.map(|event| self.colored(event, 11)).unwrap_or_default();
            let cells = row.iter().zip(&self.widths).map(|(cell, width)| format!("{cell:width$}"));
            let cells = cells.collect::<Vec<_>>().join("   ");
            lines += format!("{event}{}", cut(cells.trim_end(), width)).trim_end();
            lines.push('\n');
        }
        lines
    }
}

/// A Table with one more column, as kubectl shows it.
fn with_namespaces(mut table: Value) -> Value {
    for row in table["rows"].as_array_mut().into_iter().flatten() {
        let namespace = row["object"]["metadata"]["namespace"].clone();
        row["cells"].as_array_mut().into_iter().for_each(|cells| cells.insert(0, namespace.clone()));
    }
    let columns = table["columnDefinitions"].as_array_mut();
    columns.into_iter().for_each(|columns| columns.insert(0, json!({"name": "namespace"})));
    table
}

/// `# 7 more: --continue TOKEN`, for a page that is not the last one.
fn rest_of(page: &str) -> Option<String> {
    let page: Value = serde_json::from_str(page).ok()?;
    let metadata = &page["metadata"];
    let token = metadata["continue"].as_str().filter(|token| !token.is_empty())?;
    // With a selector, the server does not count.
    let count = metadata["remainingItemCount"].as_u64().map_or(String::new(), |count| format!("{count} "));
    Some(format!("# {count}more: --continue {token}"))
}

/// The cells of a row, up to the width of a terminal.
fn cut(cells: &str, width: Option<usize>) -> String {
    match width {
        Some(width) if cells.chars().count() > width => {
            cells.chars().take(width.saturating_sub(1)).chain(['…']).collect()
        }
        Some(_) | None => cells.to_owned(),
    }
}

fn is_table(value: &Value) -> bool {
    value["kind"] == "Table"
}

fn uid(object: &Value) -> String {
    object["metadata"]["uid"].as_str().unwrap_or_default().to_owned()
}

/// Each object of a list or of a Table, or the one object.
fn each(value: &Value, line: impl Fn(&Value, &Value) -> String) -> String {
    let value = if value["object"].is_object() { &value["object"] } else { value };
    match (value["items"].as_array(), value["rows"].as_array()) {
        (Some(items), _) => items.iter().map(|item| line(item, value)).collect(),
        (None, Some(rows)) => rows.iter().map(|row| line(&row["object"], &Value::Null)).collect(),
        (None, None) => line(value, &Value::Null),
    }
}

/// `deployment.apps/web`. The objects of a list have no kind of their own. Of metadata alone, the kind is not known. A
/// BOOKMARK and an error have no name, and no line.
fn name(object: &Value, list: &Value) -> String {
    let text = |field: &str| object[field].as_str().or(list[field].as_str()).unwrap_or_default();
    let Some(name) = object["metadata"]["name"].as_str() else { return String::new() };
    if text("kind").starts_with("PartialObjectMetadata") {
        return format!("{name}\n");
    }
    let kind = text("kind").trim_end_matches("List").to_lowercase();
    let group = text("apiVersion").split_once('/').map_or(String::new(), |(group, _)| format!(".{group}"));
    format!("{kind}{group}/{name}\n")
}

/// `default/web  1208`, or `410 Expired: too old resource version`.
fn short(object: &Value) -> String {
    if object["kind"] == "Status" {
        let text = |field: &str| object[field].as_str().unwrap_or_default();
        return format!("{} {}: {}", object["code"], text("reason"), text("message"));
    }
    let metadata = &object["metadata"];
    let text = |field: &str| metadata[field].as_str().unwrap_or_default();
    let slash = if metadata["namespace"].is_string() { "/" } else { "" };
    format!("{}{slash}{}  {}", text("namespace"), text("name"), text("resourceVersion"))
}
