//! The kinds of objects that are served: one table entry for each built-in kind, one for each version of a CRD.
//!
//! A kind is found by its place in a path, `/apis/GROUP/VERSION/…/PLURAL`. Everything above this file treats a
//! Deployment and a custom resource alike: they differ in their [`Rules`] and nowhere else.

use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

use serde_json::Value;

use super::{
    builtin::{BUILT_IN, BuiltIn},
    clock::Clock,
    custom::Custom,
    refusal::{Cause, Refusal},
    schema::Nulls,
    types::{self, Words},
};

/// One kind in one version.
#[derive(Debug)]
pub(super) struct Kind {
    pub(super) group: String,
    pub(super) version: String,
    pub(super) plural: String,
    pub(super) singular: String,
    pub(super) kind: String,
    pub(super) list_kind: String,
    pub(super) short_names: Vec<String>,
    pub(super) categories: Vec<String>,
    pub(super) namespaced: bool,
    pub(super) has_status: bool,
    pub(super) scale: Option<ScalePaths>,
    /// What a field selector can name beside name and namespace: `spec.nodeName`.
    pub(super) fields: Vec<String>,
    pub(super) rules: Rules,
}

/// Where the scale subresource finds its numbers, as JSON pointers.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ScalePaths {
    pub(super) spec: String,
    pub(super) status: String,
    pub(super) selector: Option<String>,
}

/// What makes one kind unlike another.
#[derive(Debug)]
pub(super) enum Rules {
    BuiltIn(&'static BuiltIn),
    Custom(Box<Custom>),
}

impl Kind {
    pub(super) fn of_entry(entry: &'static BuiltIn) -> Kind {
        let owned = |list: &[&str]| list.iter().map(|&one| one.to_owned()).collect();
        let scale = entry.scale.then(|| ScalePaths {
            spec: "/spec/replicas".to_owned(),
            status: "/status/replicas".to_owned(),
            selector: None,
        });
        Kind {
            group: entry.group.to_owned(),
            version: entry.version.to_owned(),
            plural: entry.plural.to_owned(),
            singular: entry.kind.to_lowercase(),
            kind: entry.kind.to_owned(),
            list_kind: format!("{}List", entry.kind),
            short_names: owned(entry.short_names),
            categories: owned(entry.categories),
            namespaced: entry.namespaced,
            has_status: entry.status,
            scale,
            fields: owned(entry.fields),
            rules: Rules::BuiltIn(entry),
        }
    }

    /// `deployments.apps`, or `configmaps` in the core group: how messages name a resource.
    pub(super) fn resource(&self) -> String {
        resource_name(&self.plural, &self.group)
    }

    /// The collection that holds the objects. Events are one collection with two views.
    pub(super) fn stored_in(&self) -> String {
        if self.group == "events.k8s.io" { "events".to_owned() } else { self.resource() }
    }

    /// `apps/v1`, or `v1` in the core group.
    pub(super) fn api_version(&self) -> String {
        group_version(&self.group, &self.version)
    }

    pub(super) fn is_custom(&self) -> bool {
        matches!(self.rules, Rules::Custom(_))
    }

    /// The name of a built-in kind. A custom one has none: it may be called as one that is, and has nothing else of it.
    pub(super) fn built_in(&self) -> &str {
        if self.is_custom() { "" } else { &self.kind }
    }

    /// What who uses it is told, if it is on its way out.
    pub(super) fn deprecation(&self) -> Option<&str> {
        match &self.rules {
            Rules::BuiltIn(_) => None,
            Rules::Custom(custom) => custom.deprecation.as_deref(),
        }
    }

    /// Whether `metadata.generation` counts the changes of the spec.
    pub(super) fn has_generation(&self) -> bool {
        match &self.rules {
            Rules::BuiltIn(entry) => entry.generation,
            Rules::Custom(_) => true,
        }
    }

    /// Whether its name is one part of a DNS name.
    pub(super) fn has_label_name(&self) -> bool {
        matches!(&self.rules, Rules::BuiltIn(entry) if matches!(entry.kind, "Namespace" | "Service"))
    }

    /// Whether a finalizer must have a domain.
    pub(super) fn has_qualified_finalizers(&self) -> bool {
        matches!(&self.rules, Rules::BuiltIn(entry) if !matches!(entry.kind, "Lease" | "CustomResourceDefinition"))
    }

    /// Whether a PUT must say which version it replaces.
    pub(super) fn needs_version(&self) -> bool {
        match &self.rules {
            Rules::BuiltIn(entry) => {
                matches!(entry.kind, "Lease" | "CustomResourceDefinition" | "ServiceAccount")
            }
            Rules::Custom(_) => true,
        }
    }

    /// Whether a PUT of an object that is not there makes it.
    pub(super) fn creates_on_put(&self) -> bool {
        matches!(&self.rules, Rules::BuiltIn(entry) if matches!(entry.kind, "Lease" | "Event"))
    }

    /// Whether a delete answers with the object instead of a Status.
    pub(super) fn delete_answers_object(&self) -> bool {
        matches!(&self.rules, Rules::BuiltIn(entry) if matches!(entry.kind, "Pod" | "Service" | "ServiceAccount"))
    }

    /// What is wrong with an object, given what it was before. Added to what is known to be wrong.
    pub(super) fn validate(&self, object: &Value, before: Option<&Value>, causes: &mut Vec<Cause>) {
        match &self.rules {
            Rules::BuiltIn(entry) => causes.extend((entry.validate)(object, before)),
            Rules::Custom(custom) => {
                causes.extend(self.scale.as_ref().and_then(|paths| replicas_error(object, &paths.spec)));
                custom.schema.validate(object, before, causes);
            }
        }
    }

    /// Fill in what the author left out.
    pub(super) fn set_defaults(&self, object: &mut Value, nulls: Nulls) -> Result<(), Refusal> {
        match &self.rules {
            Rules::BuiltIn(entry) => (entry.defaults)(object),
            Rules::Custom(custom) if custom.schema.set_defaults(object, nulls).is_break() => {
                let text = format!("the defaults of a {} would make it larger than is taken here", self.kind);
                return Err(Refusal::too_large_because(text));
            }
            Rules::Custom(_) => {}
        }
        Ok(())
    }

    /// The cells of a table row.
    pub(super) fn cells(&self, object: &Value, clock: &Clock) -> Vec<Value> {
        match &self.rules {
            Rules::BuiltIn(entry) => (entry.cells)(object, clock),
            Rules::Custom(custom) => custom.cells(object, clock),
        }
    }

    /// An object as this version shows it. What is stored can be in another version of the same kind.
    pub(super) fn view<'a>(&self, stored: &'a Value) -> Cow<'a, Value> {
        let mut view = Cow::Borrowed(stored);
        if stored["apiVersion"] != self.api_version() {
            self.convert(view.to_mut());
        }
        view
    }

    /// Conversion strategy `None` of a CRD: the apiVersion changes, and what this version does not know is dropped.
    pub(super) fn convert(&self, object: &mut Value) {
        if object["apiVersion"] == self.api_version() {
            return;
        }
        object["apiVersion"] = self.api_version().into();
        match &self.rules {
            Rules::BuiltIn(entry) => (entry.convert)(object),
            Rules::Custom(custom) => {
                custom.schema.prune(object);
                // Whoever shows it has no one to refuse.
                let _ = custom.schema.set_defaults(object, Nulls::Dropped);
            }
        }
    }

    /// What is known about the fields: what a CRD says, or the definition of a built-in kind. It can have `$ref`s, see
    /// [`types::resolved`].
    pub(super) fn schema(&self) -> &Value {
        match &self.rules {
            Rules::BuiltIn(_) => types::definition(self.definition()),
            Rules::Custom(custom) => custom.schema.source(),
        }
    }

    /// What OpenAPI calls a built-in kind. Two are called Event.
    fn definition(&self) -> &str {
        if self.group == "events.k8s.io" { "events.v1.Event" } else { &self.kind }
    }

    /// Whether all values are of the types that the fields have. Of a custom resource the metadata alone is decoded.
    pub(super) fn check_types(&self, object: &Value, words: Words) -> Result<(), String> {
        match &self.rules {
            Rules::BuiltIn(_) => types::check_types(object, self.definition(), words),
            Rules::Custom(_) => types::check_types(&object["metadata"], types::OBJECT_META, words),
        }
    }

    /// Make an object what it is to Go. A custom resource has rules of its own about nulls, but for its metadata.
    pub(super) fn normalize(&self, object: &mut Value) {
        match &self.rules {
            Rules::BuiltIn(_) => types::normalize(object, self.definition()),
            Rules::Custom(_) => types::normalize(&mut object["metadata"], types::OBJECT_META),
        }
    }

    pub(super) fn undecodable(&self, why: &str) -> Refusal {
        let (kind, version) = (&self.kind, &self.version);
        Refusal::bad_request(format!("{kind} in version {version:?} cannot be handled as a {kind}: {why}"))
    }

    /// The subresources, by name.
    pub(super) fn subresources(&self) -> Vec<&'static str> {
        let mut names = Vec::new();
        if self.has_status {
            names.push("status");
        }
        if self.scale.is_some() {
            names.push("scale");
        }
        if self.built_in() == "Namespace" {
            names.push("finalize");
        }
        names
    }
}

/// What is wrong with the replicas that a Scale of a custom resource would have.
fn replicas_error(object: &Value, pointer: &str) -> Option<Cause> {
    let field = pointer.replace('/', ".");
    let wrong = |path: &str, value: &Value, wanted: &str| {
        let shown = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let text =
            format!("{path} accessor error: {shown} is of the type {}, expected {wanted}", go_type(value));
        Some(Cause::invalid(field.clone(), &0.into(), &text))
    };
    let (mut value, mut path) = (object, String::new());
    for part in pointer.split('/').skip(1) {
        path = format!("{path}.{part}");
        value = match value {
            Value::Object(map) => map.get(part)?,
            Value::Null => return None,
            other => return wrong(&path, other, "map[string]interface{}"),
        };
    }
    match value.as_i64() {
        Some(replicas) if replicas < 0 => {
            Some(Cause::invalid(field, value, "should be a non-negative integer"))
        }
        Some(_) => None,
        None => wrong(&path, value, "int64"),
    }
}

fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_i64() => "int64",
        Value::Number(_) => "float64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}

/// `deployments.apps`, `configmaps`.
pub(super) fn resource_name(plural: &str, group: &str) -> String {
    if group.is_empty() { plural.to_owned() } else { format!("{plural}.{group}") }
}

/// `apps/v1`, `v1`.
pub(super) fn group_version(group: &str, version: &str) -> String {
    if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") }
}

/// All kinds that are served now.
#[derive(Clone, Debug)]
pub(super) struct Kinds {
    /// In the order in which discovery lists the groups.
    groups: Vec<String>,
    /// By group, version and plural.
    by_path: BTreeMap<(String, String, String), Arc<Kind>>,
}

impl Kinds {
    pub(super) fn new() -> Kinds {
        let mut kinds = Kinds { groups: Vec::new(), by_path: BTreeMap::new() };
        for entry in BUILT_IN {
            kinds.insert(Kind::of_entry(entry));
        }
        kinds
    }

    fn insert(&mut self, kind: Kind) {
        if !self.groups.contains(&kind.group) {
            self.groups.push(kind.group.clone());
        }
        let path = (kind.group.clone(), kind.version.clone(), kind.plural.clone());
        self.by_path.insert(path, Arc::new(kind));
    }

    pub(super) fn get(&self, group: &str, version: &str, plural: &str) -> Option<&Arc<Kind>> {
        self.by_path.get(&(group.to_owned(), version.to_owned(), plural.to_owned()))
    }

    /// The kind of a built-in entry, known to be there.
    pub(super) fn built_in(&self, group: &str, plural: &str) -> Arc<Kind> {
        let kind = self.get(group, "v1", plural);
        Arc::clone(kind.expect("only called with the name of a table entry"))
    }

    /// Some served version of a kind that an ownerReference names.
    pub(super) fn by_kind(&self, api_version: &str, kind: &str) -> Option<&Arc<Kind>> {
        let group = api_version.split_once('/').map_or("", |(group, _)| group);
        self.by_path.values().find(|one| one.group == group && one.kind == kind)
    }

    /// Some version of the kind that a collection holds.
    pub(super) fn of_collection(&self, collection: &str) -> Option<&Arc<Kind>> {
        // The core group sorts first, so `events` are core events.
        self.by_path.values().find(|kind| kind.stored_in() == collection)
    }

    /// Replace all versions of a custom resource.
    pub(super) fn replace_custom(&mut self, group: &str, plural: &str, versions: Vec<Kind>) {
        self.by_path.retain(|(a_group, _, a_plural), _| a_group != group || a_plural != plural);
        for kind in versions {
            self.insert(kind);
        }
        let by_path = &self.by_path;
        self.groups.retain(|group| by_path.keys().any(|(a_group, _, _)| a_group == group));
    }

    pub(super) fn groups(&self) -> &[String] {
        &self.groups
    }

    /// The kinds of a group, by version.
    pub(super) fn in_group<'a>(&'a self, group: &'a str) -> impl Iterator<Item = &'a Arc<Kind>> {
        self.by_path.values().filter(move |kind| kind.group == group)
    }

    /// One kind per collection: what a namespace can hold, what the garbage collector looks through.
    pub(super) fn collections(&self) -> BTreeMap<String, Arc<Kind>> {
        let mut collections = BTreeMap::new();
        for kind in self.by_path.values() {
            collections.entry(kind.stored_in()).or_insert_with(|| Arc::clone(kind));
        }
        collections
    }

    /// The versions of a group, preferred first: v1 before v1beta1, v2 before v1.
    pub(super) fn versions(&self, group: &str) -> Vec<String> {
        let mut versions: Vec<String> = self.in_group(group).map(|kind| kind.version.clone()).collect();
        versions.sort_by_key(|version| std::cmp::Reverse(version_priority(version)));
        versions.dedup();
        versions
    }
}

/// Stable before beta before alpha, then by number: apimachinery/pkg/version/helpers.go.
pub(super) fn version_priority(version: &str) -> (u8, u64, u64) {
    let number = |text: &str| text.parse::<u64>().ok();
    let Some(rest) = version.strip_prefix('v') else { return (0, 0, 0) };
    if let Some(major) = number(rest) {
        return (3, major, 0);
    }
    for (level, word) in [(2, "beta"), (1, "alpha")] {
        if let Some((major, minor)) = rest.split_once(word)
            && let (Some(major), Some(minor)) = (number(major), number(minor))
        {
            return (level, major, minor);
        }
    }
    (0, 0, 0)
}
