//! The text of a plan: what an operator would write now, as diffs.

use std::fmt;

use diffy::DiffOptions;
use serde_json::Value;

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

/// What a write would do with an object. `Debug` does not show the object: it may be a Secret.
#[derive(Clone)]
pub struct PlannedWrite {
    /// The path of the object, with the subresource: `/apis/apps/v1/namespaces/default/deployments/web`.
    pub path: String,
    /// The object now. `None`: there is none.
    pub before: Option<Value>,
    /// The object afterwards. `None`: it is deleted. If an object is deleted only to be created again, the new one.
    pub after: Option<Value>,
    /// Why the API server refuses the write.
    pub refused: Option<String>,
}

impl fmt::Debug for PlannedWrite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PlannedWrite").field("path", &self.path).finish_non_exhaustive()
    }
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
    /// Whether it is refused, or changes what a plan shows.
    #[must_use]
    pub fn is_shown(&self) -> bool {
        let (before, after) = self.texts();
        self.refused.is_some() || before != after
    }

    /// The object now and afterwards, with the fields that a reader needs. `None`: there is none.
    fn texts(&self) -> (Option<String>, Option<String>) {
        let is_status = self.path.ends_with("/status");
        let [mut before, mut after] =
            [&self.before, &self.after].map(|object| object.as_ref().map(|object| shown(object, is_status)));
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
    let qualified =
        |plural: &str| if group.is_empty() { plural.to_owned() } else { format!("{plural}.{group}") };
    match rest {
        ["namespaces", namespace, plural, name @ ..] if !name.is_empty() => {
            format!("{}/{namespace}/{}", qualified(plural), name.join("/"))
        }
        [plural, name @ ..] => format!("{}/{}", qualified(plural), name.join("/")),
        [] => path.to_owned(),
    }
}

/// The fields that a reader of a plan needs.
fn shown(object: &Value, is_status: bool) -> Value {
    let mut object = object.clone();
    if let Some(fields) = object.as_object_mut() {
        fields.retain(|field, _| (field == "status") == is_status);
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
