//! The warnings about files of a volume whose paths overlap.

use serde_json::Value;

use super::rules::COMPARED_MAX;
use crate::kinds::field_checks::{each, text};

/// A file of a volume: its path, and where it comes from.
type File = (String, String);

pub(super) fn overlaps(volume: &Value) -> Vec<String> {
    let mut all = Vec::new();
    let name = text(&volume["name"]);
    let (config_map, secret) = (&volume["configMap"], &volume["secret"]);
    for (what, source) in [
        (format!("ConfigMap {:?}", text(&config_map["name"])), config_map),
        (format!("Secret {:?}", text(&secret["secretName"])), secret),
        ("DownwardAPI".to_owned(), &volume["downwardAPI"]),
    ] {
        all.extend(
            collisions(items(source, ""))
                .map(|text| format!("volume {name:?} ({what}): overlapping paths: {text}")),
        );
    }
    let mut files = Vec::new();
    for source in each(&volume["projected"]["sources"]) {
        if source.as_object().is_none_or(|source| source.is_empty()) {
            all.push(format!("volume {name:?} (Projected) has no sources provided"));
        }
        files.extend(projected(source));
    }
    all.extend(
        collisions(files).map(|text| format!("volume {name:?} (Projected): overlapping paths: {text}")),
    );
    all
}

fn items(source: &Value, what: &str) -> Vec<File> {
    each(&source["items"]).map(|item| (text(&item["path"]).to_owned(), what.to_owned())).collect()
}

/// The files of a source in a projected volume.
fn projected(source: &Value) -> Vec<File> {
    let named = |what: &str, source: &Value, field: &str| format!("{what} {:?}", text(&source[field]));
    let (config_map, secret) = (&source["configMap"], &source["secret"]);
    let mut files = items(config_map, &named("ConfigMap", config_map, "name"));
    files.extend(items(secret, &named("Secret", secret, "name")));
    files.extend(items(&source["downwardAPI"], "DownwardAPI"));
    let token = &source["serviceAccountToken"]["path"];
    files.extend(token.as_str().map(|path| (path.to_owned(), "ServiceAccountToken".to_owned())));
    files
}

/// A text for each two files of which one is at or below the path of the other.
fn collisions(files: Vec<File>) -> impl Iterator<Item = String> {
    let paths: Vec<File> = files
        .into_iter()
        .take(COMPARED_MAX)
        .map(|(path, what)| (path.trim_end_matches('/').to_owned(), what))
        .collect();
    let shown = |(path, what): &File| {
        if what.is_empty() { format!("{path:?}") } else { format!("{path:?} ({what})") }
    };
    let below = |one: &str, other: &str| format!("{one}/").starts_with(&format!("{other}/"));
    let mut all = Vec::new();
    for (index, file) in paths.iter().enumerate() {
        for other in &paths[..index] {
            let overlap = below(&file.0, &other.0) || below(&other.0, &file.0);
            if overlap && !file.0.is_empty() && !other.0.is_empty() {
                all.push(format!("{} with {}", shown(file), shown(other)));
            }
        }
    }
    all.into_iter()
}
