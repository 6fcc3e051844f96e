//! The form of the answers on standard output (`-o`): bodies as they came, or lines for people.

use std::{
    collections::HashMap,
    io::{self, IsTerminal, Write},
};

use clap::ValueEnum;
use listwatch::log;
use listwatch_study::{
    object::{CHANGES_CHARS, changes_within},
    wrap::wrap,
};
use listwatch_yaml::{pretty, write};
use serde_json::{Value, json};

use super::{
    failure::Failure,
    terminal::{note, printable, width_of_stdout},
};

/// Fewest characters for the changed fields of an object beside its name.
const CHANGES_CHARS_MIN: usize = 24;

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

/// The lines of bodies in a form for people.
pub(super) struct LineFormatter {
    output: Output,
    /// Whether the rows of a Table begin with the namespaces of their objects. False after objects without a namespace, such as Nodes.
    pub(super) namespaces: bool,
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
        let indented = || pretty(&value) + "\n";
        // `/version` has no objects, nor has a list of resources.
        let has_objects = is_watch || value["metadata"].is_object();
        let text = match self.output {
            Output::Raw => format!("{line}\n"),
            Output::Json => indented(),
            Output::Yaml => "---\n".to_owned() + &write(&value),
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
                self.fit(&(printable(&objects) + if value["items"].is_array() { &*end } else { "" }))
            }
        };
        Ok(io::stdout().write_all(text.as_bytes())?)
    }

    /// Writes the body of an error. If it is not JSON, such as a proxy's page, it goes to standard error.
    pub(super) fn write_refusal(&mut self, time: f64, body: &str) -> Result<(), Failure> {
        // A refusal is not an object with a name.
        if body.starts_with('{') && self.output != Output::Name {
            return self.write(time, body.trim_end(), false);
        }
        note(body.trim_end());
        Ok(())
    }

    /// A body that is not JSON, such as `/metrics` or `/healthz`.
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
        Ok(writeln!(io::stdout(), "{}", printable(line))?)
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
pub(super) fn rest_of(page: &str) -> Option<String> {
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
