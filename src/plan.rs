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
    fs,
    io::{self, Read},
    path::Path,
    sync::{Arc, Mutex},
};

#[doc(inline)]
pub use listwatch_install::plan::{Plan, PlannedWrite};
use serde_json::Value;

use crate::{
    client::{Client, DryRun},
    locked,
    resource::Resource,
};

/// Largest file that is read.
const FILE_BYTES_MAX: u64 = 32 * 1024 * 1024;

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
        writes.retain(PlannedWrite::is_shown);
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
