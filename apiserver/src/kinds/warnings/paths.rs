//! The warnings about files of a volume whose paths overlap.

use std::cell::Cell;

use serde_json::Value;

use super::rules::{COMPARISON, WARNING, spend};
use crate::kinds::field_checks::{each, text};

/// A file of a volume: its path without a slash at the end, and its source.
type File<'v> = (&'v str, String);

/// The warnings about a volume. `work` is the work that is left for the Pod.
pub(super) fn overlaps(volume: &Value, work: &Cell<usize>) -> Vec<String> {
    let mut all = Vec::new();
    let name = text(&volume["name"]);
    let (config_map, secret) = (&volume["configMap"], &volume["secret"]);
    for (what, source) in [
        (format!("ConfigMap {:?}", text(&config_map["name"])), config_map),
        (format!("Secret {:?}", text(&secret["secretName"])), secret),
        ("DownwardAPI".to_owned(), &volume["downwardAPI"]),
    ] {
        let at = format!("volume {name:?} ({what}): overlapping paths:");
        collisions(&mut all, &items(source, ""), &at, work);
    }
    let mut files = Vec::new();
    for source in each(&volume["projected"]["sources"]) {
        if source.as_object().is_none_or(|source| source.is_empty()) {
            all.push(format!("volume {name:?} (Projected) has no sources provided"));
        }
        files.extend(projected(source));
    }
    collisions(&mut all, &files, &format!("volume {name:?} (Projected): overlapping paths:"), work);
    all
}

fn items<'v>(source: &'v Value, what: &str) -> Vec<File<'v>> {
    each(&source["items"]).map(|item| file(&item["path"], what)).collect()
}

fn file<'v>(path: &'v Value, what: &str) -> File<'v> {
    (text(path).trim_end_matches('/'), what.to_owned())
}

/// The files of a source in a projected volume. It has one type. Those of certificates belong to feature gates that are off by default.
fn projected(source: &Value) -> Vec<File<'_>> {
    let named = |what: &str, source: &Value, field: &str| format!("{what} {:?}", text(&source[field]));
    let (config_map, secret) = (&source["configMap"], &source["secret"]);
    let mut files = items(config_map, &named("ConfigMap", config_map, "name"));
    files.extend(items(secret, &named("Secret", secret, "name")));
    files.extend(items(&source["downwardAPI"], "DownwardAPI"));
    let token = &source["serviceAccountToken"]["path"];
    files.extend(token.is_string().then(|| file(token, "ServiceAccountToken")));
    files
}

/// Adds a warning for each two files of which one is at or below the path of the other.
fn collisions(all: &mut Vec<String>, files: &[File<'_>], at: &str, work: &Cell<usize>) {
    let shown = |(path, what): &File<'_>| {
        if what.is_empty() { format!("{path:?}") } else { format!("{path:?} ({what})") }
    };
    let below = |one: &str, other: &str| {
        one.strip_prefix(other).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    for (index, file) in files.iter().enumerate().filter(|(_, (path, _))| !path.is_empty()) {
        for other in files[..index].iter().take_while(|_| spend(work, COMPARISON)) {
            let overlap = below(file.0, other.0) || below(other.0, file.0);
            if overlap && !other.0.is_empty() && spend(work, WARNING) {
                all.push(format!("{at} {} with {}", shown(file), shown(other)));
            }
        }
    }
}
