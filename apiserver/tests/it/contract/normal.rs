//! Makes the answers of two runs comparable: values that differ between runs are replaced with names, and terms of Go
//! are dropped from messages.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::LazyLock,
};

use regex::{Captures, Regex};
use serde_json::{Map, Value};

use super::Answer;
use crate::go_terms::without_go_terms;

/// Longest line of JSON in a story. Longer values are broken into several lines.
const COLUMNS_MAX: usize = 118;

/// Formats JSON for readers: sorted keys, and one line if it fits.
pub fn pretty(value: &Value, indent: usize) -> String {
    let line = one_line(value);
    if line.len() + indent <= COLUMNS_MAX {
        return line;
    }
    let (open, close, parts): (_, _, Vec<String>) = match value {
        Value::Object(map) => {
            let part = |(key, value)| format!("{key:?}: {}", pretty(value, indent + 2));
            ('{', '}', map.iter().map(part).collect())
        }
        Value::Array(list) => ('[', ']', list.iter().map(|value| pretty(value, indent + 2)).collect()),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => return line,
    };
    let pad = " ".repeat(indent);
    let parts: Vec<_> = parts.into_iter().map(|part| format!("{pad}  {part}")).collect();
    format!("{open}\n{}\n{pad}{close}", parts.join(",\n"))
}

fn one_line(value: &Value) -> String {
    match value {
        Value::Object(map) => {
            let part = |(key, value)| format!("{key:?}: {}", one_line(value));
            let parts: Vec<_> = map.iter().map(part).collect();
            format!("{{{}}}", parts.join(", "))
        }
        Value::Array(list) => format!("[{}]", list.iter().map(one_line).collect::<Vec<_>>().join(", ")),
        other => other.to_string(),
    }
}

/// The letters that a server appends to a `generateName`. A Pod of a StatefulSet has a number instead.
const RANDOM_LETTERS: usize = 5;

/// Removes the fields with these names, wherever they are.
pub fn hide(value: &mut Value, names: &[&str]) {
    match value {
        Value::Object(map) => {
            map.retain(|name, _| !names.contains(&name.as_str()));
            map.values_mut().for_each(|value| hide(value, names));
        }
        Value::Array(list) => list.iter_mut().for_each(|value| hide(value, names)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Keeps the fields of a document with these names. If it has a list of named elements, keeps those with these names.
pub fn keep_only(document: &mut Value, names: &[String]) {
    let is_named = |name: &str| names.iter().any(|known| known == name);
    let Value::Object(map) = document else { return };
    let lists = map.values_mut().filter_map(Value::as_array_mut);
    let named: Vec<_> = lists.filter(|list| list.iter().any(|one| one.get("name").is_some())).collect();
    if named.is_empty() {
        map.retain(|key, _| is_named(key));
        return;
    }
    for list in named {
        list.retain(|one| one["name"].as_str().is_some_and(is_named));
    }
}

/// The number of a version, or of its name such as `v2+`.
fn number(version: &str) -> Option<u64> {
    version.trim_start_matches('v').trim_end_matches('+').parse().ok()
}

/// The values in the answers of a story that differ in the next run.
#[derive(Default)]
struct Names {
    /// Versions of objects, not of lists.
    versions: BTreeSet<u64>,
    /// In order of appearance.
    uids: Vec<String>,
    /// Each generated name, with its `generateName` and `<random>`.
    generated: BTreeMap<String, String>,
}

/// Replaces values that differ between runs. After parts of the answers were removed, a second call renumbers them.
pub fn normalise(answers: &mut [Answer]) {
    let mut names = Names::default();
    for document in answers.iter().flat_map(|answer| &answer.body) {
        names.learn(document);
    }
    for answer in answers {
        for line in &mut answer.head {
            *line = names.text(line);
        }
        let warnings = answer.head.iter_mut().filter(|line| line.starts_with("warning: "));
        let mut sorted: Vec<String> = warnings.map(std::mem::take).collect();
        sorted.sort_unstable();
        answer.head.retain(|line| !line.is_empty());
        answer.head.append(&mut sorted);
        for document in &mut answer.body {
            names.replace("", document);
        }
    }
}

/// Whether `metadata.resourceVersion` is the version of a collection.
fn is_collection(object: &Map<String, Value>) -> bool {
    let kind = object.get("kind").and_then(Value::as_str).unwrap_or_default();
    // A bookmark has a version, and neither name nor uid.
    let metadata = |key: &str| object.get("metadata").and_then(|metadata| metadata.get(key)).is_some();
    kind.ends_with("List") || kind == "Table" || (metadata("resourceVersion") && !metadata("name"))
}

/// kube-apiserver lists unknown fields in the order of the body, and the errors of an apply in any order; the embedded server
/// sorts unknown fields by name.
fn sort_errors(message: &mut String) {
    for (before, separator) in [("strict decoding error: ", ", "), ("errors:\n", "\n")] {
        let Some((what, errors)) = message.split_once(before) else { continue };
        let mut errors: Vec<&str> = errors.split(separator).collect();
        errors.sort_unstable();
        *message = format!("{what}{before}{}", errors.join(separator));
    }
}

/// API groups that validate fields in a fixed order. CRDs, their schemas and custom resources are validated in any
/// order, and some of their fields twice.
const IN_ORDER: [&str; 6] = ["", "apps", "batch", "coordination.k8s.io", "events.k8s.io", "policy"];

/// Fields that are maps in Go, and therefore validated in any order.
const MAPS: [&str; 8] =
    ["data", "binaryData", "labels", "annotations", "nodeSelector", "matchLabels", "limits", "requests"];

fn is_in_a_map(cause: &Value) -> bool {
    let field = cause["field"].as_str().unwrap_or_default();
    let map = field.split_once('[').map_or(field, |(map, _)| map);
    MAPS.iter().any(|name| map.ends_with(name) || field.contains(&format!(".{name}[")))
}

fn sort_causes(status: &mut Map<String, Value>) {
    let Some(details) = status.get_mut("details") else { return };
    let in_maps =
        details["causes"].as_array().into_iter().flatten().filter(|cause| is_in_a_map(cause)).count();
    if IN_ORDER.contains(&details["group"].as_str().unwrap_or_default()) && in_maps < 2 {
        return;
    }
    let Some(causes) = details.get_mut("causes").and_then(Value::as_array_mut) else { return };
    causes.sort_by_key(Value::to_string);
    causes.dedup();
    if let Some(Value::String(message)) = status.get_mut("message")
        && let Some((what, _)) = message.split_once(" is invalid: [")
    {
        *message = format!("{what} is invalid: [<causes>]");
    }
}

impl Names {
    fn learn(&mut self, value: &Value) {
        match value {
            Value::Object(map) => {
                let metadata = map.get("metadata").unwrap_or(&Value::Null);
                if !is_collection(map) {
                    self.versions.extend(metadata["resourceVersion"].as_str().and_then(number));
                }
                if let (Some(prefix), Some(name)) =
                    (metadata["generateName"].as_str(), metadata["name"].as_str())
                    && name.strip_prefix(prefix).is_some_and(|random| random.len() == RANDOM_LETTERS)
                {
                    self.generated.insert(name.to_owned(), format!("{prefix}<random>"));
                }
                map.values().for_each(|value| self.learn(value));
            }
            Value::Array(list) => list.iter().for_each(|value| self.learn(value)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }

    fn replace(&mut self, key: &str, value: &mut Value) {
        match value {
            Value::Object(map) => {
                sort_causes(map);
                if let Some(Value::String(message)) = map.get_mut("message") {
                    sort_errors(message);
                    *message = without_go_terms(message);
                }
                let is_collection = is_collection(map);
                if let Some(Value::String(version)) =
                    map.get_mut("metadata").and_then(|metadata| metadata.get_mut("resourceVersion"))
                {
                    *version = self.version(version, is_collection);
                }
                for (key, value) in map {
                    self.replace(key, value);
                }
            }
            Value::Array(list) => list.iter_mut().for_each(|value| self.replace(key, value)),
            Value::String(text) => {
                let replacement = match key {
                    "resourceVersion" => None,
                    "continue" if !text.is_empty() => Some("<token>"),
                    "clusterIP" | "clusterIPs" if text != "None" && !text.is_empty() => Some("<ip>"),
                    "cells" if AGE.is_match(text) => Some("<age>"),
                    "cells" if IP.is_match(text) => Some("<ip>"),
                    _ => None,
                };
                *text = replacement.map_or_else(|| self.text(text), str::to_owned);
            }
            Value::Number(_) if matches!(key, "nodePort" | "healthCheckNodePort") => *value = "<port>".into(),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    /// `v2` for an object, or `v2+` for a collection of that version or later.
    fn version(&self, text: &str, is_collection: bool) -> String {
        let Some(number) = number(text) else { return text.to_owned() };
        let rank = self.versions.range(..=number).count();
        let plus = if is_collection { "+" } else { "" };
        format!("v{rank}{plus}")
    }

    fn text(&mut self, text: &str) -> String {
        let text = TIME.replace_all(text, "<time>");
        let mut text = UID
            .replace_all(&text, |uid: &Captures| {
                let known = self.uids.iter().position(|known| *known == uid[0]);
                let index = known.unwrap_or_else(|| {
                    self.uids.push(uid[0].to_owned());
                    self.uids.len() - 1
                });
                format!("<uid {}>", index + 1)
            })
            .into_owned();
        for (name, generated) in &self.generated {
            text = text.replace(name, generated);
        }
        text = LOCAL_PORT.replace_all(&text, "https://127.0.0.1:<port>").into_owned();
        text = VOLUME.replace_all(&text, "kube-api-access-<random>").into_owned();
        text = OBJECT.replace_all(&text, "<object>").into_owned();
        if text.to_lowercase().replace(' ', "").contains("resourceversion") {
            text = NUMBER.replace_all(&text, "<version>").into_owned();
        }
        text
    }
}

/// Times before 2000 come from requests, so they are compared.
static TIME: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"[2-9]\d{3}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)").unwrap());
static UID: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|<uid \d+>").unwrap()
});
/// The port of a webhook, but not one below 10000, on which nothing listens.
static LOCAL_PORT: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"https://127\.0\.0\.1:\d{5}").unwrap());
/// The volume with the token of a ServiceAccount.
static VOLUME: LazyLock<Regex> = LazyLock::new(|| Regex::new("kube-api-access-[a-z0-9]{5}$").unwrap());
static IP: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"^10\.\d+\.\d+\.\d+$").unwrap());
static AGE: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"^\d+(s|m|h|d)(\d+s)?$").unwrap());
/// A whole object in a message. It is not compared.
static OBJECT: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r#"\{.*managedFields.*\}|\{\\"apiVersion.*\}"#).unwrap());
/// A version, which is never 0.
static NUMBER: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"\b[1-9]\d*\b").unwrap());
