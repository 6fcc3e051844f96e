//! metadata.managedFields: the owners of each field, and the conflicts of server-side apply.
//!
//! ```text
//! PATCH …/widgets/w?fieldManager=alice   Content-Type: application/apply-patch+yaml
//! "metadata": {"managedFields": [{"manager": "alice", "operation": "Apply", "apiVersion": "demo.example.com/v1",
//!   "time": "2026-11-21T07:14:34Z", "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:size": {}}}}]}
//! ```
//!
//! An update makes its manager the only owner of the fields that it changes. An apply makes its manager an owner of all
//! applied fields. Managers that apply the same value share the ownership. Applying a different value is a conflict, unless
//! forced. An apply removes the fields that its manager applied before but not now, unless another manager owns them.
//!
//! A field set belongs to the version of its entry, so objects are converted to that version, and not pruned. If the version
//! has left the CRD, or lacks a field of the object, an apply fails, and any other write drops all entries.

use std::{borrow::Cow, collections::BTreeMap};

use serde_json::{Value, json};

use crate::{
    apply::{
        field_set::FieldSet,
        typed_value::{Difference, TypeRef},
    },
    kinds::{Kind, Part, Source, conversion::is_missing, defaults},
    status::StatusError,
};

/// The field manager of a write: its name, operation and subresource.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Manager {
    pub(crate) name: String,
    pub(crate) applies: bool,
    pub(crate) subresource: &'static str,
}

/// The manager of the server's own writes, by a controller for example.
impl Default for Manager {
    fn default() -> Manager {
        Manager::named("kube-controller-manager")
    }
}

impl Manager {
    pub(crate) fn named(name: &str) -> Manager {
        Manager { name: name.to_owned(), applies: false, subresource: "" }
    }

    /// Writes of the status and of the resize of a Pod have managedFields entries of their own.
    pub(crate) fn writes(&mut self, part: Part) {
        match part {
            Part::Main | Part::Finalize => {}
            Part::Status => self.subresource = "status",
            Part::Resize => self.subresource = "resize",
        }
    }

    /// kube-apiserver sets no time in an entry for a Scale.
    fn time(&self, now: &str) -> Option<String> {
        (self.subresource != "scale").then(|| now.to_owned())
    }
}

/// Longest name of a manager: apimachinery/pkg/apis/meta/v1/validation/validation.go.
pub(crate) const MANAGER_BYTES_MAX: usize = 128;

/// Maximum number of entries with operation Update. Above this limit, the oldest entries are merged: `DefaultMaxUpdateManagers` in
/// apimachinery/pkg/util/managedfields/internal/fieldmanager.go.
const UPDATERS_MAX: usize = 10;

/// An entry of `managedFields`.
#[derive(Clone, Debug)]
struct Entry {
    manager: String,
    applies: bool,
    api_version: String,
    subresource: String,
    /// `None` until an apply of the manager changes the object, as in kube-apiserver.
    time: Option<String>,
    fields: FieldSet,
}

impl Entry {
    fn from_json(value: &Value) -> Option<Entry> {
        let text = |field: &str| value[field].as_str().unwrap_or_default().to_owned();
        let applies = match value["operation"].as_str()? {
            "Apply" => true,
            "Update" => false,
            _ => return None,
        };
        Some(Entry {
            manager: text("manager"),
            applies,
            api_version: text("apiVersion"),
            subresource: text("subresource"),
            time: value["time"].as_str().map(str::to_owned),
            fields: FieldSet::from_json(&value["fieldsV1"])?,
        })
    }

    fn to_json(&self) -> Value {
        let operation = if self.applies { "Apply" } else { "Update" };
        let mut entry = json!({"manager": self.manager, "operation": operation, "apiVersion": self.api_version,
            "fieldsType": "FieldsV1", "fieldsV1": self.fields.to_json()});
        if let Some(time) = &self.time {
            entry["time"] = time.as_str().into();
        }
        if !self.subresource.is_empty() {
            entry["subresource"] = self.subresource.as_str().into();
        }
        entry
    }

    /// Whether the entry belongs to a manager. For Apply, one entry covers all versions.
    fn is_of(&self, manager: &Manager, api_version: &str) -> bool {
        self.manager == manager.name
            && self.applies == manager.applies
            && self.subresource == manager.subresource
            && (self.applies || self.api_version == api_version)
    }

    /// `"kubectl" with subresource "status" using apps/v1`
    fn shown(&self, api_version: &str) -> String {
        let mut shown = format!("{:?}", self.manager);
        if !self.subresource.is_empty() {
            shown.push_str(&format!(" with subresource {:?}", self.subresource));
        }
        if !self.applies {
            shown.push_str(&format!(" using {api_version}"));
        }
        shown
    }
}

/// All entries of `managedFields`.
#[derive(Clone, Debug, Default)]
struct Managed(Vec<Entry>);

impl Managed {
    /// `None` if an entry is invalid.
    fn from_json(value: &Value) -> Option<Managed> {
        value
            .as_array()
            .into_iter()
            .flatten()
            .map(Entry::from_json)
            .collect::<Option<Vec<Entry>>>()
            .map(Managed)
    }

    /// The entries as JSON, without empty entries, the oldest merged if there are too many, sorted by operation (Apply
    /// first), then by time.
    fn into_json(mut self) -> Value {
        for entry in &mut self.0 {
            strip(&mut entry.fields);
        }
        self.0.retain(|entry| !entry.fields.is_empty());
        self.merge_oldest();
        self.0.sort_by(|a, b| {
            let key = |entry: &Entry| {
                let Entry { manager, api_version, subresource, time, .. } = entry.clone();
                (!entry.applies, time, manager, api_version, subresource)
            };
            key(a).cmp(&key(b))
        });
        self.0.iter().map(Entry::to_json).collect()
    }

    /// Merges the two oldest Update entries into `ancient-changes` until at most [`UPDATERS_MAX`] are left.
    fn merge_oldest(&mut self) {
        loop {
            let mut updaters: Vec<usize> = (0..self.0.len()).filter(|&at| !self.0[at].applies).collect();
            if updaters.len() <= UPDATERS_MAX {
                return;
            }
            updaters.sort_by(|&a, &b| {
                let key = |at: usize| (&self.0[at].time, &self.0[at].manager);
                key(a).cmp(&key(b))
            });
            let newer = self.0[updaters[1]].clone();
            let oldest = &mut self.0[updaters[0]];
            oldest.manager = "ancient-changes".to_owned();
            oldest.subresource = String::new();
            oldest.time = newer.time;
            oldest.fields.add(&newer.fields);
            self.0.remove(updaters[1]);
        }
    }

    /// A version of an entry to which objects cannot be converted, because the version has left the CRD.
    fn lost_version(&self, kind: &Kind) -> Option<&str> {
        self.0.iter().map(|entry| entry.api_version.as_str()).find(|version| !kind.converts_to(version))
    }

    /// The versions of the entries, `first` before all others.
    fn versions(&self, first: &str) -> Vec<String> {
        let mut versions = vec![first.to_owned()];
        for entry in &self.0 {
            if !versions.contains(&entry.api_version) {
                versions.push(entry.api_version.clone());
            }
        }
        versions
    }

    /// The change of an object, in the version of each entry.
    fn changes(&self, kind: &Kind, before: &Value, after: &Value) -> Result<Changes, String> {
        let mut changes = Changes::new();
        for version in self.versions(&kind.api_version()) {
            let before = in_version(kind, before, &version)?;
            let after = in_version(kind, after, &version);
            let after = after.map_err(|why| format!("failed to convert new object: {why}"))?;
            let change = TypeRef::in_version(kind, &version).difference(Some(&before), Some(&after));
            changes.insert(version, change);
        }
        Ok(changes)
    }

    /// If an object has no managers at its first apply, `before-first-apply` becomes the owner of all its fields.
    fn claim_all(&mut self, kind: &Kind, before: &Value, now: &str) {
        let first = Manager { name: "before-first-apply".to_owned(), applies: false, subresource: "" };
        let mut all = TypeRef::of(kind).difference(Some(&blank(kind)), Some(before)).changed;
        if kind.has_status {
            all.cut("f:status");
        }
        strip(&mut all);
        let entry = self.entry(&first, &kind.api_version());
        entry.fields = all;
        entry.time = Some(now.to_owned());
    }

    /// The conflicts of a change: each changed field that another manager owns, with that manager.
    fn conflicts(&self, manager: &Manager, changes: &Changes, excused: &FieldSet) -> Vec<(String, String)> {
        let mut others: Vec<&Entry> =
            self.0.iter().filter(|entry| !entry.is_of(manager, &entry.api_version)).collect();
        others.sort_by_key(|entry| (&entry.manager, !entry.applies, &entry.api_version, &entry.subresource));
        let mut conflicts: Vec<(String, String)> = Vec::new();
        for entry in others {
            let mut held = entry.fields.intersection(&changes[&entry.api_version].changed);
            held.subtract(excused);
            // The conflicts of an apply to a Scale show the version of the Scale for all managers.
            let version = if manager.subresource == "scale" { "autoscaling/v1" } else { &entry.api_version };
            conflicts.extend(held.paths().into_iter().map(|path| (entry.shown(version), path)));
        }
        conflicts
    }

    /// Removes changed fields from the sets of all managers but one.
    fn take_away(&mut self, changes: &Changes, keeps: impl Fn(&Entry) -> bool) {
        for entry in &mut self.0 {
            if !keeps(entry) {
                let Difference { changed, removed } = &changes[&entry.api_version];
                entry.fields.subtract(changed);
                entry.fields.subtract(removed);
            }
        }
    }

    /// The entry of a manager, created if it is missing.
    fn entry(&mut self, manager: &Manager, api_version: &str) -> &mut Entry {
        let at = self.0.iter().position(|entry| entry.is_of(manager, api_version)).unwrap_or_else(|| {
            self.0.push(Entry {
                manager: manager.name.clone(),
                applies: manager.applies,
                api_version: api_version.to_owned(),
                subresource: manager.subresource.to_owned(),
                time: None,
                fields: FieldSet::default(),
            });
            self.0.len() - 1
        });
        &mut self.0[at]
    }
}

/// A change of an object, by version.
type Changes = BTreeMap<String, Difference>;

/// An object in another version of its kind, or why it has no such version. kube-apiserver does not prune it.
fn in_version<'v>(kind: &Kind, object: &'v Value, api_version: &str) -> Result<Cow<'v, Value>, String> {
    if object["apiVersion"].is_null() || object["apiVersion"] == api_version {
        return Ok(Cow::Borrowed(object));
    }
    let mut converted = object.clone();
    let custom = match &kind.source {
        Source::BuiltIn(entry) => {
            entry.convert_to(&mut converted, api_version);
            return Ok(Cow::Owned(converted));
        }
        Source::Custom(custom) => custom,
    };
    custom.convert_whole(&mut converted, api_version).map_err(|error| error.message().to_owned())?;
    let managed = converted["metadata"]["managedFields"].take();
    set(&mut converted, Value::Null);
    if let Some(why) = TypeRef::in_version(kind, api_version).unfit(&converted) {
        return Err(why);
    }
    set(&mut converted, managed);
    Ok(Cow::Owned(converted))
}

/// Removes the fields that never have an owner, such as `kind`, `metadata.name` and `metadata.uid`:
/// internal/stripmeta.go.
fn strip(fields: &mut FieldSet) {
    let mut stripped = FieldSet::default();
    for field in ["apiVersion", "kind", "metadata"] {
        stripped.put(format!("f:{field}"), FieldSet::leaf());
    }
    let mut metadata = FieldSet::default();
    for field in [
        "name",
        "namespace",
        "creationTimestamp",
        "selfLink",
        "uid",
        "generation",
        "managedFields",
        "resourceVersion",
    ] {
        metadata.put(format!("f:{field}"), FieldSet::leaf());
    }
    stripped.put("f:metadata".to_owned(), metadata);
    fields.subtract(&stripped);
}

/// The object that a create is compared with, so that fields which Go always encodes or which the server sets get no
/// owner.
fn blank(kind: &Kind) -> Value {
    if kind.is_custom() {
        return json!({"metadata": {}});
    }
    // The server converts an Event to the core group before it compares it.
    if kind.kind == "Event" {
        return json!({"metadata": {}, "source": {}, "reportingComponent": "", "reportingInstance": "",
            "firstTimestamp": null, "lastTimestamp": null, "eventTime": null});
    }
    let mut blank = kind.new_struct();
    if let Some(fields) = blank.as_object_mut() {
        fields.remove("status");
    }
    match kind.kind.as_str() {
        "Pod" => {
            let spec = &mut blank["spec"];
            for (field, value) in [
                ("serviceAccountName", json!("default")),
                ("serviceAccount", json!("default")),
                ("preemptionPolicy", json!("PreemptLowerPriority")),
                ("priority", json!(0)),
            ] {
                spec[field] = value;
            }
            defaults::tolerate_outages(spec);
        }
        "Service" => {
            blank["spec"]["ipFamilies"] = json!(["IPv4"]);
            blank["spec"]["ipFamilyPolicy"] = "SingleStack".into();
        }
        // Go encodes it always, although OpenAPI does not require it.
        "StatefulSet" => blank["spec"]["serviceName"] = "".into(),
        "Namespace" => blank["spec"]["finalizers"] = json!(["kubernetes"]),
        // A kind without a spec, such as ConfigMap, gets no spec: an apply would warn about the unknown field.
        _ => {}
    }
    blank
}

/// Updates managedFields after a write. `sent` is the managedFields of the request, or, for an apply, the final entries.
pub(crate) fn track(
    kind: &Kind,
    before: Option<&Value>,
    after: &mut Value,
    sent: Value,
    manager: &Manager,
    now: &str,
) -> Result<(), StatusError> {
    if manager.applies {
        set(after, sent);
        return Ok(());
    }
    let was = before.map_or(&Value::Null, |before| &before["metadata"]["managedFields"]);
    let mut managed = base(was, &sent, manager);
    let blank = blank(kind);
    // An object without managers stays so until its first apply.
    let is_managed = !(managed.0.is_empty() && before.is_some()) && managed.lost_version(kind).is_none();
    let changes = match is_managed.then(|| managed.changes(kind, before.unwrap_or(&blank), after)) {
        Some(Ok(changes)) => changes,
        Some(Err(why)) if is_missing() => return Err(StatusError::internal(why)),
        Some(Err(_)) | None => {
            set(after, Value::Null);
            return Ok(());
        }
    };
    let changes: Changes = changes
        .into_iter()
        .map(|(version, change)| {
            let tracked = |mut fields: FieldSet| {
                strip(&mut fields);
                if kind.has_status && manager.subresource != "status" {
                    fields.cut("f:status");
                }
                fields
            };
            (version, Difference { changed: tracked(change.changed), removed: tracked(change.removed) })
        })
        .collect();
    let changed = &changes[&kind.api_version()].changed;
    let is_tracked = manager.subresource != "scale" || tracks_scale(kind, &managed, changed, after);
    managed.take_away(&changes, |_| false);
    if is_tracked && !changed.is_empty() {
        let entry = managed.entry(manager, &kind.api_version());
        entry.fields.add(changed);
        entry.time = manager.time(now);
    }
    set(after, managed.into_json());
    Ok(())
}

/// Whether a write to a Scale makes its manager the owner of the replicas. A Scale has the managers of the replicas, and like
/// any object it gets none by an update if it has none. It omits zero replicas, so these have no owner.
fn tracks_scale(kind: &Kind, managed: &Managed, changed: &FieldSet, after: &Value) -> bool {
    let replicas = kind.scale.as_ref().and_then(|paths| after.pointer(&paths.spec));
    let has_owner = managed.0.iter().any(|entry| !entry.fields.intersection(changed).is_empty());
    has_owner && replicas.is_some_and(|replicas| *replicas != 0)
}

/// The entries before the write, from the request if it has valid ones, else from the object. `[{}]` clears them.
fn base(was: &Value, sent: &Value, manager: &Manager) -> Managed {
    if manager.subresource.is_empty() {
        if *sent == json!([{}]) {
            return Managed::default();
        }
        if let Some(managed) = Managed::from_json(sent).filter(|managed| !managed.0.is_empty()) {
            return managed;
        }
    }
    Managed::from_json(was).unwrap_or_default()
}

fn set(object: &mut Value, managed: Value) {
    let Some(metadata) = object["metadata"].as_object_mut() else { return };
    match managed.as_array().is_some_and(|entries| !entries.is_empty()) {
        true => metadata.insert("managedFields".to_owned(), managed),
        false => metadata.remove("managedFields"),
    };
}

/// Whether two objects are equal, apart from the times in their managedFields.
pub(crate) fn is_same(one: &Value, other: &Value) -> bool {
    fn same_but(one: &Value, other: &Value, field: &str) -> bool {
        let fields = |value: &Value| {
            value.as_object().map_or(0, |map| map.keys().filter(|name| *name != field).count())
        };
        let mut each = one.as_object().into_iter().flatten().filter(|(name, _)| *name != field);
        fields(one) == fields(other) && each.all(|(name, value)| other.get(name) == Some(value))
    }
    let entries =
        |object: &Value| object["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
    let (ones, others) = (entries(one), entries(other));
    same_but(one, other, "metadata")
        && same_but(&one["metadata"], &other["metadata"], "managedFields")
        && ones.len() == others.len()
        && ones.iter().all(|one| others.iter().any(|other| same_but(one, other, "time")))
}

/// Validates an applied object before the merge.
pub(crate) fn check(kind: &Kind, applied: &Value) -> Result<(), StatusError> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (api_version, a_kind) = (text(&applied["apiVersion"]), text(&applied["kind"]));
    let group = if api_version.contains('/') { "" } else { "/" };
    if api_version != kind.api_version() || a_kind != kind.kind {
        return Err(StatusError::bad_request(format!(
            "invalid object type: {group}{api_version}, Kind={a_kind}"
        )));
    }
    if applied["metadata"].get("managedFields").is_some_and(|managed| !managed.is_null()) {
        return Err(StatusError::bad_request("metadata.managedFields must be nil"));
    }
    let Some(why) = TypeRef::of(kind).unfit(applied) else { return Ok(()) };
    let (namespace, name) = (text(&applied["metadata"]["namespace"]), text(&applied["metadata"]["name"]));
    Err(StatusError::internal(format!(
        "failed to create typed patch object ({namespace}/{name}; {group}{api_version}, Kind={a_kind}): {why}"
    )))
}

/// Merges an applied object into the live one. Returns the result with its new managedFields.
pub(crate) fn apply(
    kind: &Kind,
    live: Option<&Value>,
    applied: &Value,
    manager: &Manager,
    force: Force,
    now: &str,
) -> Result<Value, StatusError> {
    let (type_ref, api_version) = (TypeRef::of(kind), kind.api_version());
    let blank = blank(kind);
    let before = live.unwrap_or(&blank);
    let mut managed = Managed::from_json(&before["metadata"]["managedFields"]).unwrap_or_default();
    if let Some(version) = managed.lost_version(kind) {
        let text = format!("request to convert CR to an invalid group/version: {version}");
        return Err(StatusError::internal(text));
    }
    if managed.0.is_empty() && live.is_some() {
        managed.claim_all(kind, before, now);
    }
    let entry = managed.entry(manager, &api_version);
    let last = std::mem::replace(&mut entry.fields, type_ref.fields(applied));
    let last_version = std::mem::replace(&mut entry.api_version, api_version);
    let merged = type_ref.merge(before, applied);
    let pruned = leave_out(kind, &merged, &last, &last_version, &managed);
    let failed = |why: String| StatusError::internal(format!("failed to prune fields: {why}"));
    let mut merged = pruned.map_err(failed)?.into_owned();

    let changes = managed.changes(kind, before, &merged).map_err(StatusError::internal)?;
    let conflicts = managed.conflicts(manager, &changes, &excused(type_ref, manager, before));
    if !conflicts.is_empty() && force == Force::No {
        return Err(StatusError::apply_conflict(&conflicts));
    }
    managed.take_away(&changes, |entry| entry.is_of(manager, &entry.api_version));
    if merged != *before {
        managed.entry(manager, &kind.api_version()).time = manager.time(now);
    }
    if manager.name == KUBECTL && merged["metadata"]["annotations"][LAST_APPLIED].is_string() {
        merged["metadata"]["annotations"][LAST_APPLIED] = format!("{applied}\n").into();
    }
    set(&mut merged, managed.into_json());
    Ok(merged)
}

/// The query parameter `force`: whether an apply with conflicts takes the fields from their owners.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Force {
    Yes,
    No,
}

/// The manager of `kubectl apply --server-side`.
const KUBECTL: &str = "kubectl";
/// The annotation in which client-side `kubectl apply` stores the applied object.
pub(crate) const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// The fields that kubectl applied client-side and that are unchanged since. They do not conflict with kubectl's
/// server-side apply: internal/lastappliedmanager.go.
fn excused(type_ref: TypeRef<'_>, manager: &Manager, before: &Value) -> FieldSet {
    let last = before["metadata"]["annotations"][LAST_APPLIED].as_str();
    let last: Option<Value> = last.and_then(|text| serde_json::from_str(text).ok());
    let Some(last) =
        last.filter(|last| manager.name == KUBECTL && last["apiVersion"] == before["apiVersion"])
    else {
        return FieldSet::default();
    };
    let mut fields = type_ref.fields(&last);
    let since = type_ref.difference(Some(&last), Some(before));
    fields.subtract(&since.changed);
    fields.subtract(&since.removed);
    fields
}

/// The object without the fields that the manager applied last time but not this time, unless another manager owns them. As
/// `prune` in structured-merge-diff's merge/update.go.
fn leave_out<'m>(
    kind: &Kind,
    merged: &'m Value,
    last: &FieldSet,
    last_version: &str,
    managed: &Managed,
) -> Result<Cow<'m, Value>, String> {
    if last.is_empty() {
        return Ok(Cow::Borrowed(merged));
    }
    let convert = |object: &Value, version: &str, what: &str| {
        let converted = in_version(kind, object, version).map(Cow::into_owned);
        converted.map_err(|why| format!("failed to convert {what}: {why}"))
    };
    let all = |version: &str, object: &Value| {
        let type_ref = TypeRef::in_version(kind, version);
        type_ref.with_parents(&type_ref.fields(object))
    };
    let whole = convert(merged, last_version, "merged object to last applied version")?;
    let type_ref = TypeRef::in_version(kind, last_version);
    let last = type_ref.with_parents(last);
    let mut pruned = whole.clone();
    type_ref.remove(&mut pruned, &last);
    // Removing a list or a map removes everything in it, so the fields that still have an owner are added again.
    for version in managed.versions(last_version) {
        let convert = |object: &Value, what: &str| {
            let converted = convert(object, &version, &format!("{what} object at version {version}"));
            converted.map_err(|why| format!("failed add back owned items: {why}"))
        };
        let (mut object, left) = (convert(merged, "merged")?, convert(&pruned, "pruned")?);
        let type_ref = TypeRef::in_version(kind, &version);
        let mut gone = all(&version, &object);
        gone.subtract(&all(&version, &left));
        for entry in managed.0.iter().filter(|entry| entry.api_version == version) {
            gone.subtract(&type_ref.with_parents(&entry.fields));
        }
        type_ref.remove(&mut object, &gone);
        pruned = object;
    }
    // The fields without an owner also stay.
    let left = convert(&pruned, last_version, "pruned object to last applied version")?;
    let mut gone = all(last_version, &whole);
    gone.subtract(&all(last_version, &left));
    let mut pruned = whole;
    type_ref.remove(&mut pruned, &gone.intersection(&last));
    Ok(Cow::Owned(in_version(kind, &pruned, &kind.api_version())?.into_owned()))
}
