//! What an operator would write now, as diffs: [`Runtime::plan`](crate::runtime::Runtime::plan).
//!
//! ```text
//!   --- deployments.apps/default/mws-web (now)
//!   +++ deployments.apps/default/mws-web (planned)
//!   @@ -20,3 +20,3 @@
//!    spec:
//!   -  replicas: 5
//!   +  replicas: 3
//! ```
//!
//! Each object is reconciled once, and each write is sent as a dry run, which the API server validates and admits as a real one. So a plan has
//! no writes that follow from others: a status that counts the Pods of a Deployment that is only planned, or the copies of a rule after the
//! first thousand.

use std::{
    fmt, fs,
    io::{self, Read},
    path::Path,
    sync::{Arc, Mutex},
};

use diffy::DiffOptions;
use serde_json::Value;

pub use crate::client::PlannedWrite;
use crate::{
    client::{Client, DryRun, Part, qualified},
    locked,
    resource::Resource,
};

/// Largest file that is read.
const FILE_BYTES_MAX: u64 = 32 * 1024 * 1024;
/// What the API server sets, and what differs with each dry run.
const NOISE: [&str; 5] = ["creationTimestamp", "generation", "managedFields", "resourceVersion", "uid"];

/// The writes of all controllers, in their order. `Display` shows their diffs.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// What would be written.
    pub writes: Vec<PlannedWrite>,
    /// What cannot be planned, and why.
    pub problems: Vec<String>,
}

impl Plan {
    /// As `kubectl diff`: 0 if there is nothing to write, 1 if there is, and 2 if some of it is not known or refused.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match &self.problems[..] {
            _ if self.writes.iter().any(|write| write.refused.is_some()) => 2,
            [] if self.writes.is_empty() => 0,
            [] => 1,
            _ => 2,
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.writes.iter().try_for_each(|write| write.fmt(f))?;
        let count = |is: fn(&&PlannedWrite) -> bool| self.writes.iter().filter(is).count();
        let refused = count(|write| write.refused.is_some());
        let created = count(|write| write.refused.is_none() && write.before.is_none());
        let deleted = count(|write| write.refused.is_none() && write.after.is_none());
        let changed = self.writes.len() - refused - created - deleted;
        write!(f, "{created} to create, {changed} to change, {deleted} to delete")?;
        if refused > 0 {
            write!(f, ", {refused} refused")?;
        }
        writeln!(f)
    }
}

impl PlannedWrite {
    /// The object now and afterwards, with the fields that a reader needs. `None`: there is none.
    fn texts(&self) -> (Option<String>, Option<String>) {
        let part = if self.path.ends_with("/status") { Part::Status } else { Part::Object };
        let [mut before, mut after] =
            [&self.before, &self.after].map(|object| object.as_ref().map(|object| shown(object, part)));
        if self.path.starts_with("/api/v1/") && name_of(&self.path).starts_with("secrets/") {
            mask(before.as_mut(), after.as_mut());
        }
        (before.as_ref().map(yaml), after.as_ref().map(yaml))
    }

    /// Whether the object is deleted and created again.
    fn replaces(&self) -> bool {
        match (&self.before, &self.after) {
            (Some(before), Some(after)) => before["metadata"]["uid"] != after["metadata"]["uid"],
            _ => false,
        }
    }
}

impl fmt::Display for PlannedWrite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = name_of(&self.path);
        if let Some(refused) = &self.refused {
            return writeln!(f, "{name}: refused: {refused}");
        }
        let (before, after) = self.texts();
        let header = |text: &Option<String>, how: &str| match text {
            Some(_) => format!("{name} ({how})"),
            None => "/dev/null".to_owned(),
        };
        let how = if self.replaces() { "planned, deleted and created again" } else { "planned" };
        let (before_name, after_name) = (header(&before, "now"), header(&after, how));
        let mut options = DiffOptions::new();
        options.set_original_filename(before_name).set_modified_filename(after_name);
        write!(f, "{}", options.create_patch(&before.unwrap_or_default(), &after.unwrap_or_default()))
    }
}

/// `deployments.apps/default/web`, and its subresource.
fn name_of(path: &str) -> String {
    let parts: Vec<&str> = path.split('/').skip(2).collect();
    let (group, rest) = match &parts[..] {
        [_, rest @ ..] if path.starts_with("/api/") => ("", rest),
        [group, _, rest @ ..] => (*group, rest),
        _ => ("", &parts[..]),
    };
    match rest {
        ["namespaces", namespace, plural, name @ ..] if !name.is_empty() => {
            format!("{}/{namespace}/{}", qualified(group, plural), name.join("/"))
        }
        [plural, name @ ..] => format!("{}/{}", qualified(group, plural), name.join("/")),
        [] => path.to_owned(),
    }
}

/// The fields that a reader of a plan needs.
fn shown(object: &Value, part: Part) -> Value {
    let mut object = object.clone();
    if let Some(fields) = object.as_object_mut() {
        match part {
            Part::Status => fields.retain(|field, _| field == "status"),
            Part::Object => drop(fields.remove("status")),
        }
    }
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.retain(|field, _| !NOISE.contains(&&**field));
        if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
            // The whole object once more, even with the data of a Secret.
            annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
        }
        let owners = metadata.get_mut("ownerReferences").and_then(Value::as_array_mut);
        let owners = owners.into_iter().flatten().filter_map(Value::as_object_mut);
        owners.for_each(|owner| drop(owner.remove("uid")));
    }
    object
}

/// Hides the values of a Secret, as `kubectl diff` does, but not whether they differ.
fn mask(before: Option<&mut Value>, after: Option<&mut Value>) {
    fn data(object: Option<&mut Value>) -> Option<&mut serde_json::Map<String, Value>> {
        object?.get_mut("data")?.as_object_mut()
    }
    let (mut before, mut after) = (data(before), data(after));
    let both = (&mut before, &mut after);
    if let (Some(before), Some(after)) = both {
        for (key, was) in before.iter_mut() {
            if let Some(is) = after.get_mut(key).filter(|is| *is != was) {
                (*was, *is) = ("*** (before)".into(), "*** (after)".into());
            }
        }
    }
    let all = before.into_iter().chain(after).flat_map(|data| data.values_mut());
    all.filter(|value| !value.as_str().is_some_and(|text| text.starts_with("*** (")))
        .for_each(|value| *value = "***".into());
}

fn yaml(object: &Value) -> String {
    yaml_serde::to_string(object).unwrap_or_default()
}

/// An object to plan, and where it was read.
pub(crate) struct Given {
    pub(crate) object: Value,
    pub(crate) from: String,
}

impl Given {
    fn is_a<K: Resource>(&self) -> bool {
        let group = self.object["apiVersion"].as_str().and_then(|version| version.split_once('/'));
        self.object["kind"] == K::KIND && group.map_or("", |(group, _)| group) == K::GROUP
    }
}

/// What the controllers share while they plan.
pub(crate) struct Planning {
    pub(crate) client: Client,
    pub(crate) dry_run: Arc<DryRun>,
    /// The objects that no controller has taken. `None`: all objects of the cluster are planned.
    given: Mutex<Option<Vec<Given>>>,
    /// The kinds of the controllers.
    kinds: Mutex<Vec<String>>,
    problems: Mutex<Vec<String>>,
}

impl Planning {
    /// A plan by this client.
    pub(crate) fn new(client: &Client, given: Option<Objects>) -> Planning {
        let (client, dry_run) = client.dry_running();
        let given = Mutex::new(given.map(|objects| objects.0));
        let (kinds, problems) = Default::default();
        Planning { client, dry_run, given, kinds, problems }
    }

    /// Whether objects were given, but none of this kind.
    pub(crate) fn leaves_out<K: Resource>(&self) -> bool {
        locked(&self.kinds).push(format!("{} of {}", K::KIND, K::api_version()));
        locked(&self.given).as_ref().is_some_and(|all| !all.iter().any(Given::is_a::<K>))
    }

    /// The given objects of a kind. `None`: the objects of the cluster are planned.
    pub(crate) fn given<K: Resource>(&self) -> Option<Vec<Given>> {
        Some(locked(&self.given).as_mut()?.extract_if(.., |given| given.is_a::<K>()).collect())
    }

    /// Notes what cannot be planned.
    pub(crate) fn note(&self, problem: String) {
        locked(&self.problems).push(problem);
    }

    pub(crate) fn ended(&self) -> Plan {
        for Given { object, from } in locked(&self.given).take().into_iter().flatten() {
            let (kind, version) = (&object["kind"], &object["apiVersion"]);
            let known = locked(&self.kinds).join(", ");
            self.note(format!("{from}: {kind} of {version} is not reconciled here, only {known}"));
        }
        let mut writes = self.dry_run.take();
        writes.retain(|write| write.refused.is_some() || write.texts().0 != write.texts().1);
        Plan { writes, problems: std::mem::take(&mut locked(&self.problems)) }
    }
}

/// The objects of a file, for [`Runtime::plan`](crate::runtime::Runtime::plan).
pub struct Objects(Vec<Given>);

impl Objects {
    /// Reads YAML or JSON: documents, or Lists of them. `-`: from standard input.
    pub fn read(path: &Path) -> Result<Objects, String> {
        let name = path.display();
        let wrong = |error: io::Error| format!("{name}: {error}");
        let mut text = String::new();
        let read = match path.to_str() {
            Some("-") => io::stdin().take(FILE_BYTES_MAX).read_to_string(&mut text),
            _ => fs::File::open(path).and_then(|file| file.take(FILE_BYTES_MAX).read_to_string(&mut text)),
        };
        if read.map_err(wrong)? as u64 == FILE_BYTES_MAX {
            return Err(format!("{name}: larger than {FILE_BYTES_MAX} bytes"));
        }
        let mut objects = Objects(Vec::new());
        for (index, object) in listwatch_yaml::documents(&text).enumerate() {
            let from = format!("{name}, document {}", index + 1);
            let object = object.map_err(|error| format!("{from}: not YAML: {error}"))?;
            objects.add(object, from)?;
        }
        if objects.0.is_empty() { Err(format!("{name}: holds no objects")) } else { Ok(objects) }
    }

    /// Each of them.
    pub fn iter(&self) -> impl Iterator<Item = &Value> {
        self.0.iter().map(|given| &given.object)
    }

    fn add(&mut self, mut object: Value, from: String) -> Result<(), String> {
        match &mut object {
            Value::Null => Ok(()),
            Value::Object(list) if list.get("kind").is_some_and(|kind| kind == "List") => {
                let Some(Value::Array(items)) = list.remove("items") else { return Ok(()) };
                let mut items = items.into_iter().enumerate();
                items.try_for_each(|(index, item)| self.add(item, format!("{from}, item {}", index + 1)))
            }
            Value::Object(object) if !object.get("metadata").is_some_and(Value::is_object) => {
                Err(format!("{from}: has no metadata"))
            }
            Value::Object(_) => {
                self.0.push(Given { object, from });
                Ok(())
            }
            _ => Err(format!("{from}: is not an object")),
        }
    }
}
