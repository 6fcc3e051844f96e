//! Manifests: YAML and JSON files of objects, and what creates them, in an order in which they can be.

use std::{
    collections::{BTreeMap, HashMap},
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
};

use listwatch::client::{Client, Error, Request};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use serde_json::Value;

use crate::{failure::Failure, terminal::note};

/// Largest file: a hundred objects of the largest size that an API server takes.
const FILE_BYTES_MAX: u64 = 300 * 1024 * 1024;

/// Characters that need no escape in a path. The slash is for `apps/v1`.
const IN_PATH: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'/');

/// An object, and where it was read.
pub(super) struct Manifest {
    object: Value,
    /// `DIR/web.yaml, document 2`
    from: String,
}

impl From<Manifest> for Value {
    fn from(manifest: Manifest) -> Value {
        manifest.object
    }
}

impl Manifest {
    fn text(&self, pointer: &str) -> &str {
        self.object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
    }

    /// Kinds that other objects depend on come first.
    fn rank(&self) -> usize {
        const FIRST: [&str; 2] = ["CustomResourceDefinition", "Namespace"];
        FIRST.iter().position(|kind| *kind == self.text("/kind")).unwrap_or(FIRST.len())
    }

    fn wrong(&self, error: impl std::fmt::Display) -> Failure {
        let (kind, name) = (self.text("/kind"), self.text("/metadata/name"));
        Failure::Usage(format!("{} ({kind} {name:?}): {error}", self.from))
    }
}

/// Which files of a directory are read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Depth {
    /// Those that its kustomization lists as resources. Without one, those in it, as `kubectl apply -f` does.
    One,
    /// Those in it and below, as `kubectl apply -R -f` does.
    All,
}

/// Reads files, and the files of directories in the order of their names.
pub(super) fn read(flag: &str, paths: &[PathBuf], depth: Depth) -> Result<Vec<Manifest>, Failure> {
    let mut manifests = Vec::new();
    for path in paths {
        let before = manifests.len();
        let mut files = Vec::new();
        find_files(flag, path, depth, &mut files)?;
        for file in files {
            read_file(flag, &file, path.is_dir(), &mut manifests)?;
        }
        if manifests.len() == before {
            let hint = match depth {
                Depth::One if path.is_dir() => {
                    " (.yaml, .yml and .json in it are read, but not those in directories below it)"
                }
                Depth::One | Depth::All => "",
            };
            return Err(Failure::Usage(format!("{flag} {}: holds no objects{hint}", path.display())));
        }
    }
    manifests.sort_by_key(Manifest::rank);
    Ok(manifests)
}

fn unreadable(flag: &str, path: &Path, error: &io::Error) -> Failure {
    Failure::Usage(format!("{flag} {}: {error}", path.display()))
}

fn find_files(flag: &str, path: &Path, depth: Depth, files: &mut Vec<PathBuf>) -> Result<(), Failure> {
    let is_kustomization = |path: &Path| path.file_stem().is_some_and(|stem| stem == "kustomization");
    if !path.is_dir() {
        files.push(path.to_owned());
        return Ok(());
    }
    let mut entries = Vec::new();
    for entry in fs::read_dir(path).map_err(|error| unreadable(flag, path, &error))? {
        entries.push(entry.map_err(|error| unreadable(flag, path, &error))?.path());
    }
    entries.sort();
    let kustomization = entries.iter().find(|entry| is_kustomization(entry) && entry.is_file());
    if let (Depth::One, Some(file)) = (depth, kustomization) {
        return find_resources(flag, path, file, files);
    }
    for entry in entries {
        let is_manifest = entry.extension().is_some_and(|end| end == "yaml" || end == "yml" || end == "json");
        if entry.is_dir() && depth == Depth::All {
            find_files(flag, &entry, depth, files)?;
        } else if is_manifest && entry.is_file() && !is_kustomization(&entry) {
            files.push(entry);
        }
    }
    Ok(())
}

/// The files and directories that a kustomization lists. What else it says is not done, and noted.
fn find_resources(flag: &str, dir: &Path, file: &Path, files: &mut Vec<PathBuf>) -> Result<(), Failure> {
    let text = fs::read_to_string(file).map_err(|error| unreadable(flag, file, &error))?;
    let kustomization: BTreeMap<String, Value> = yaml_serde::from_str(&text)
        .map_err(|error| Failure::Usage(format!("{}: not a kustomization: {error}", file.display())))?;
    let mut ignored = Vec::new();
    for (field, value) in kustomization {
        match &*field {
            "apiVersion" | "kind" | "metadata" | "configurations" => {}
            "resources" | "bases" => {
                for resource in value.as_array().into_iter().flatten().filter_map(Value::as_str) {
                    find_files(flag, &dir.join(resource), Depth::One, files)?;
                }
            }
            _ => ignored.push(field),
        }
    }
    if !ignored.is_empty() {
        note(&format!("{}: only resources are read, not {}", file.display(), ignored.join(", ")));
    }
    Ok(())
}

/// What is not an object is an error, but only noted if nobody named the file.
fn read_file(flag: &str, path: &Path, is_found: bool, manifests: &mut Vec<Manifest>) -> Result<(), Failure> {
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text));
    if read.map_err(|error| unreadable(flag, path, &error))? as u64 > FILE_BYTES_MAX {
        return Err(Failure::Usage(format!("{}: larger than {FILE_BYTES_MAX} bytes", path.display())));
    }
    for (index, object) in listwatch_yaml::documents(&text).enumerate() {
        let from = format!("{}, document {}", path.display(), index + 1);
        let object = object.map_err(|error| Failure::Usage(format!("{from}: not YAML: {error}")))?;
        match take(object, from, manifests) {
            Err(Failure::Usage(problem)) if is_found => note(&format!("skipped {problem}")),
            taken => taken?,
        }
    }
    Ok(())
}

/// A document is an object, a List of them, or empty.
fn take(mut object: Value, from: String, manifests: &mut Vec<Manifest>) -> Result<(), Failure> {
    if object.is_null() {
        return Ok(());
    }
    if object["kind"] == "List" && object["apiVersion"] == "v1" {
        let Value::Array(items) = object["items"].take() else { return Ok(()) };
        for (index, item) in items.into_iter().enumerate() {
            take(item, format!("{from}, item {}", index + 1), manifests)?;
        }
        return Ok(());
    }
    for field in ["apiVersion", "kind"] {
        if object[field].as_str().is_none_or(str::is_empty) {
            return Err(Failure::Usage(format!(
                "{from}: has no {field}, so it is not an object of Kubernetes"
            )));
        }
    }
    manifests.push(Manifest { object, from });
    Ok(())
}

/// A resource, as discovery describes it.
#[derive(Deserialize)]
struct Served {
    name: String,
    kind: String,
    namespaced: bool,
}

#[derive(Deserialize)]
struct ServedList {
    resources: Vec<Served>,
}

/// Creates them, one after the other.
pub(super) async fn create(client: &Client, manifests: Vec<Manifest>) -> Result<(), Failure> {
    // By apiVersion. A CRD among the manifests comes before what it is asked for.
    let mut served = HashMap::new();
    for manifest in manifests {
        let (version, kind) = (manifest.text("/apiVersion"), manifest.text("/kind"));
        if !served.contains_key(version) {
            let found = discover(client, version).await.map_err(|error| manifest.wrong(error))?;
            served.insert(version.to_owned(), found);
        }
        let mut found = served[version].iter();
        let Some(resource) = found.find(|one| one.kind == kind && !one.name.contains('/')) else {
            // Nobody defines a kind of Kubernetes' own groups.
            let group = version.split('/').next().unwrap_or_default();
            let is_own = !group.contains('.') || group.ends_with(".k8s.io");
            let hint = if is_own {
                "apiserver/README.md has those that are"
            } else {
                "is its CRD among the manifests?"
            };
            return Err(manifest.wrong(format!("{kind} in {version} is not served here; {hint}")));
        };
        let mut path = prefix(version);
        if resource.namespaced {
            let namespace = match manifest.text("/metadata/namespace") {
                "" => "default",
                namespace => namespace,
            };
            path = format!("{path}/namespaces/{}", utf8_percent_encode(namespace, IN_PATH));
        }
        // A misspelt field is an error that says where, not a warning that does not.
        let path = format!("{path}/{}?fieldValidation=Strict", resource.name);
        let created = client.send(Request::post(path, &manifest.object)).await;
        // The author of the file needs the reason of the server, not our request.
        created.map_err(|error| match error.status() {
            Some(status) => manifest.wrong(&status.message),
            None => manifest.wrong(error),
        })?;
    }
    Ok(())
}

async fn discover(client: &Client, version: &str) -> Result<Vec<Served>, Error> {
    let path = prefix(version);
    let answer = match client.send(Request::get(path.as_str())).await {
        Err(error) if error.code() == Some(404) => return Ok(Vec::new()),
        answer => answer?,
    };
    let list: ServedList =
        serde_json::from_slice(&answer.body).map_err(|error| Error::new("read", &path, error))?;
    Ok(list.resources)
}

/// `/api/v1`, `/apis/apps/v1`.
fn prefix(version: &str) -> String {
    let path = utf8_percent_encode(version, IN_PATH);
    if version.contains('/') { format!("/apis/{path}") } else { format!("/api/{path}") }
}
