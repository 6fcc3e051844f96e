//! Manifests: YAML and JSON files of objects, and what creates them, in an order in which they can be.

use std::{
    collections::HashMap,
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
};

use http::Method;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use serde_json::Value;

use crate::{
    cli::failure::Failure,
    client::{Client, Error, Request},
};

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

/// Reads files, and the files of directories in the order of their names.
pub(super) fn read(paths: &[PathBuf]) -> Result<Vec<Manifest>, Failure> {
    let mut manifests = Vec::new();
    for path in paths {
        let before = manifests.len();
        for file in files(path).map_err(|error| unreadable(path, &error))? {
            read_file(&file, &mut manifests)?;
        }
        if manifests.len() == before {
            let hint = if path.is_dir() {
                " (.yaml, .yml and .json are read, directories below it are not)"
            } else {
                ""
            };
            return Err(Failure::Usage(format!("--manifests {}: holds no objects{hint}", path.display())));
        }
    }
    manifests.sort_by_key(Manifest::rank);
    Ok(manifests)
}

fn unreadable(path: &Path, error: &io::Error) -> Failure {
    Failure::Usage(format!("--manifests {}: {error}", path.display()))
}

/// As `kubectl apply -f DIR` does, but for the kustomization, which is not an object.
fn files(path: &Path) -> io::Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(path)? {
        let file = entry?.path();
        let is_manifest = file.extension().is_some_and(|end| end == "yaml" || end == "yml" || end == "json");
        if is_manifest && file.file_stem().is_some_and(|stem| stem != "kustomization") && file.is_file() {
            files.push(file);
        }
    }
    files.sort();
    Ok(files)
}

fn read_file(path: &Path, manifests: &mut Vec<Manifest>) -> Result<(), Failure> {
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text));
    if read.map_err(|error| unreadable(path, &error))? as u64 > FILE_BYTES_MAX {
        return Err(Failure::Usage(format!("{}: larger than {FILE_BYTES_MAX} bytes", path.display())));
    }
    for (index, document) in yaml_serde::Deserializer::from_str(&text).enumerate() {
        let from = format!("{}, document {}", path.display(), index + 1);
        let object = Value::deserialize(document);
        let object = object.map_err(|error| Failure::Usage(format!("{from}: not YAML: {error}")))?;
        take(object, from, manifests)?;
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
        let request = Request::get(format!("{path}/{}?fieldValidation=Strict", resource.name));
        let body = manifest.object.to_string().into_bytes();
        let created = client.send(request.sends(Method::POST, "application/json", body)).await;
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
