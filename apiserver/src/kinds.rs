//! The table of served kinds: one entry for each built-in kind, and one for each served version of a CRD.
//!
//! A kind is found by its path, `/apis/GROUP/VERSION/…/PLURAL`. Built-in kinds and custom resources have the same type,
//! [`Kind`], and differ in their [`Source`].

pub(crate) mod built_in;
pub(crate) mod defaults;
pub(crate) mod printer_columns;
pub(crate) mod stored_columns;
pub(crate) mod events;
pub(crate) mod metadata;
pub(crate) mod conditions;
pub(crate) mod status_errors;
pub(crate) mod field_checks;
pub(crate) mod addresses;
pub(crate) mod by_schema;
pub(crate) mod validation;
pub(crate) mod warnings;
pub(crate) mod limits;
pub(crate) mod pods;
pub(crate) mod stateful_sets;
pub(crate) mod autoscalers;
pub(crate) mod scale_of;
pub(crate) mod roles;
pub(crate) mod webhook_configurations;
pub(crate) mod admission_policies;
pub(crate) mod jobs;
pub(crate) mod cluster_ip;
pub(crate) mod endpoints;
pub(crate) mod crd;
pub(crate) mod conversion;
pub(crate) mod custom_resources;
pub(crate) mod json_path;

use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

use serde_json::Value;

use crate::{
    clock::Clock,
    kinds::{
        built_in::{BUILT_IN, BuiltIn},
        custom_resources::Custom,
    },
    names::{label_errors, path_segment_errors, subdomain_errors},
    schema::{decode, encode, openapi},
    status::{Cause, StatusError, qualified},
};

/// One kind in one version.
#[derive(Debug)]
pub(crate) struct Kind {
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) plural: String,
    pub(crate) singular: String,
    pub(crate) kind: String,
    pub(crate) list_kind: String,
    pub(crate) short_names: Vec<String>,
    pub(crate) categories: Vec<String>,
    pub(crate) namespaced: bool,
    pub(crate) has_status: bool,
    pub(crate) scale: Option<ScalePaths>,
    /// The fields that field selectors support, besides name and namespace: `spec.nodeName`.
    pub(crate) fields: Vec<String>,
    pub(crate) source: Source,
}

/// The fields of the scale subresource, as JSON pointers.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ScalePaths {
    pub(crate) spec: String,
    pub(crate) status: String,
    pub(crate) selector: Option<String>,
}

/// The definition of a kind: a built-in entry, or a CRD.
#[derive(Debug)]
pub(crate) enum Source {
    BuiltIn(&'static BuiltIn),
    Custom(Box<Custom>),
}

/// The part of an object that an update changes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Part {
    /// Everything, except the status if the kind has a status subresource.
    Main,
    /// The status alone.
    Status,
    /// `spec.finalizers` of a Namespace.
    Finalize,
    /// The resources of the containers of a Pod.
    Resize,
}

impl Kind {
    pub(crate) fn of_entry(entry: &'static BuiltIn) -> Kind {
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
            source: Source::BuiltIn(entry),
        }
    }

    /// The name of the resource in messages: `deployments.apps`, or `configmaps` in the core group.
    pub(crate) fn resource(&self) -> String {
        qualified(&self.plural, &self.group)
    }

    /// The collection that stores the objects. All versions of a kind are in one collection, and the Events of both groups.
    pub(crate) fn stored_in(&self) -> String {
        if self.group == "events.k8s.io" { "events".to_owned() } else { self.resource() }
    }

    /// `apps/v1`, or `v1` in the core group.
    pub(crate) fn api_version(&self) -> String {
        group_version(&self.group, &self.version)
    }

    /// Whether objects can be converted to a version.
    pub(crate) fn converts_to(&self, api_version: &str) -> bool {
        match &self.source {
            Source::BuiltIn(_) => true,
            Source::Custom(custom) => custom.schemas.contains_key(api_version),
        }
    }

    pub(crate) fn is_custom(&self) -> bool {
        matches!(self.source, Source::Custom(_))
    }

    /// The name of a built-in kind. Empty for a custom resource, which may have the same name as a built-in kind.
    pub(crate) fn built_in(&self) -> &str {
        if self.is_custom() { "" } else { &self.kind }
    }

    /// The `deprecationWarning`, sent as a Warning header.
    pub(crate) fn deprecation(&self) -> Option<&str> {
        match &self.source {
            Source::BuiltIn(entry) => entry.deprecation,
            Source::Custom(custom) => custom.deprecation.as_deref(),
        }
    }

    /// Whether a POST only asks a question.
    pub(crate) fn is_review(&self) -> bool {
        matches!(self.source, Source::BuiltIn(BuiltIn { is_review: true, .. }))
    }

    /// Whether `metadata.generation` counts the changes of the spec.
    pub(crate) fn has_generation(&self) -> bool {
        match &self.source {
            Source::BuiltIn(entry) => entry.generation,
            Source::Custom(_) => true,
        }
    }

    /// The errors of a name: most names are DNS subdomains.
    pub(crate) fn name_errors(&self, name: &str) -> Vec<String> {
        match &self.source {
            Source::BuiltIn(BuiltIn { group: "rbac.authorization.k8s.io", .. }) => path_segment_errors(name),
            Source::BuiltIn(BuiltIn { kind: "Namespace" | "Service" | "StatefulSet", .. }) => {
                label_errors(name)
            }
            Source::BuiltIn(_) | Source::Custom(_) => subdomain_errors(name),
        }
    }

    /// Whether finalizers must be qualified with a domain.
    pub(crate) fn has_qualified_finalizers(&self) -> bool {
        match &self.source {
            Source::BuiltIn(BuiltIn {
                group: "admissionregistration.k8s.io" | "apiregistration.k8s.io",
                ..
            }) => false,
            Source::BuiltIn(entry) => !matches!(entry.kind, "Lease" | "CustomResourceDefinition"),
            Source::Custom(_) => false,
        }
    }

    /// Whether a PUT must contain a resourceVersion.
    pub(crate) fn needs_version(&self) -> bool {
        match &self.source {
            Source::BuiltIn(entry) => {
                let is_csi =
                    matches!(entry.kind, "CSIDriver" | "CSINode" | "CSIStorageCapacity" | "VolumeAttachment");
                let is_extension = entry.group == "admissionregistration.k8s.io";
                is_csi
                    || is_extension
                    || matches!(
                        entry.kind,
                        "Lease"
                            | "CustomResourceDefinition"
                            | "ServiceAccount"
                            | "PodDisruptionBudget"
                            | "APIService"
                            | "RuntimeClass"
                    )
            }
            Source::Custom(_) => true,
        }
    }

    /// Whether a PUT creates a missing object.
    pub(crate) fn creates_on_put(&self) -> bool {
        let Source::BuiltIn(entry) = &self.source else { return false };
        let creating = ["Lease", "Event", "Service", "Endpoints", "LimitRange", "RuntimeClass"];
        entry.group == "rbac.authorization.k8s.io" || creating.contains(&entry.kind)
    }

    /// Whether a delete answers with the object instead of a Status.
    pub(crate) fn delete_answers_object(&self) -> bool {
        let Source::BuiltIn(entry) = &self.source else { return false };
        let is_storage = matches!(entry.group, "storage.k8s.io" | "resource.k8s.io");
        is_storage && entry.kind != "CSIStorageCapacity"
            || matches!(
                entry.kind,
                "Namespace"
                    | "Pod"
                    | "Service"
                    | "ServiceAccount"
                    | "PersistentVolume"
                    | "PersistentVolumeClaim"
                    | "PodTemplate"
                    | "ResourceQuota"
            )
    }

    /// Validates an object against its old version, and adds the errors to `causes`.
    pub(crate) fn validate(&self, object: &Value, before: Option<&Value>, causes: &mut Vec<Cause>) {
        match &self.source {
            Source::BuiltIn(entry) => {
                causes.extend((entry.validate)(object, before));
                if entry.by_schema {
                    causes.extend(by_schema::errors(object, self.schema()));
                }
                causes.extend(
                    before.into_iter().flat_map(|before| by_schema::changed(entry.fixed, object, before)),
                );
            }
            Source::Custom(custom) => {
                causes.extend(self.scale.as_ref().and_then(|paths| replicas_error(object, &paths.spec)));
                custom.schema.validate(object, before, causes);
            }
        }
    }

    /// Removes the nulls in a custom resource that stand for missing fields: see [`Schema::drop_nulls`].
    pub(crate) fn drop_nulls(&self, object: &mut Value) {
        if let Source::Custom(custom) = &self.source {
            custom.schema.drop_nulls(object);
        }
    }

    /// Sets the defaults of missing fields: in a custom resource, the defaults of the object's own version.
    pub(crate) fn set_defaults(&self, object: &mut Value) {
        match &self.source {
            Source::BuiltIn(entry) => {
                (entry.defaults)(object);
                entry.filled.iter().for_each(|(pointer, default)| by_schema::fill(object, pointer, default));
            }
            Source::Custom(custom) => custom.set_defaults(object),
        }
    }

    /// Checks that field selectors support a field.
    pub(crate) fn check_field(&self, path: &str) -> Result<(), StatusError> {
        let known = path == "metadata.name"
            || (path == "metadata.namespace" && (self.namespaced || !self.is_custom()))
            || self.fields.iter().any(|field| field == path);
        if known {
            return Ok(());
        }
        let message = match self.source {
            Source::BuiltIn(_) if self.fields.is_empty() => {
                format!(
                    "{path:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\""
                )
            }
            Source::BuiltIn(BuiltIn { kind: "Job", .. }) => {
                format!("field label {path:?} not supported for Job")
            }
            Source::BuiltIn(_) | Source::Custom(_) => format!("field label not supported: {path}"),
        };
        Err(StatusError::bad_request(message))
    }

    /// The cells of a table row.
    pub(crate) fn cells(&self, object: &Value, clock: &Clock) -> Vec<Value> {
        match &self.source {
            Source::BuiltIn(entry) => (entry.columns.cells)(object, clock),
            Source::Custom(custom) => custom.cells(object, clock),
        }
    }

    /// Converts a stored object, which can have another version, to this version.
    pub(crate) fn view<'a>(&self, stored: &'a Value) -> Result<Cow<'a, Value>, StatusError> {
        let mut view = Cow::Borrowed(stored);
        if stored["apiVersion"] != self.api_version() {
            self.convert(view.to_mut())?;
        }
        Ok(view)
    }

    /// Converts an object to this version: by the webhook of its CRD, or else only the apiVersion changes. Fields outside this
    /// version's schema are pruned.
    pub(crate) fn convert(&self, object: &mut Value) -> Result<(), StatusError> {
        let api_version = self.api_version();
        if object["apiVersion"] == api_version {
            return Ok(());
        }
        match &self.source {
            Source::BuiltIn(entry) => {
                object["apiVersion"] = api_version.into();
                (entry.convert)(object);
                Ok(())
            }
            Source::Custom(custom) => custom.convert(object, &api_version),
        }
    }

    /// The schema in the CRD, or the OpenAPI definition of a built-in kind. The latter can contain `$ref`s: see
    /// [`openapi::resolved`].
    pub(crate) fn schema(&self) -> &Value {
        match &self.source {
            Source::BuiltIn(_) => openapi::definition(self.definition()),
            Source::Custom(custom) => custom.schema.source(),
        }
    }

    /// The name of the OpenAPI definition; empty for a custom resource.
    pub(crate) fn definition(&self) -> &str {
        match self.source {
            Source::BuiltIn(entry) => entry.definition(),
            Source::Custom(_) => "",
        }
    }

    /// A new object of a built-in kind, as Go encodes it.
    pub(crate) fn new_struct(&self) -> Value {
        encode::new_struct(self.definition())
    }

    /// Checks that the values have the types of their fields. In a custom resource, checks only the metadata: the
    /// schema of the CRD covers the rest.
    pub(crate) fn check_types(&self, object: &Value) -> Result<(), String> {
        match &self.source {
            Source::BuiltIn(_) => decode::check_types(object, self.definition()),
            Source::Custom(custom) => {
                decode::check_types(&object["metadata"], openapi::OBJECT_META)?;
                custom.schema.check_embedded_types(object)
            }
        }
    }

    /// Omits empty fields, as Go's encoder does. In a custom resource, only in the metadata, also of embedded resources: its
    /// schema determines how other nulls are handled.
    pub(crate) fn normalize(&self, object: &mut Value) {
        match &self.source {
            Source::BuiltIn(_) => encode::normalize(object, self.definition()),
            Source::Custom(custom) => {
                encode::normalize(&mut object["metadata"], openapi::OBJECT_META);
                custom.schema.normalize_embedded(object);
            }
        }
    }

    pub(crate) fn undecodable(&self, why: &str) -> StatusError {
        let (kind, version) = (&self.kind, &self.version);
        StatusError::bad_request(format!(
            "{kind} in version {version:?} cannot be handled as a {kind}: {why}"
        ))
    }

    /// The names of the subresources. Those of built-in kinds are sorted.
    pub(crate) fn subresources(&self) -> Vec<&'static str> {
        let mut names = Vec::new();
        names.extend(self.has_status.then_some("status"));
        names.extend(self.scale.as_ref().map(|_| "scale"));
        match self.built_in() {
            "" => return names,
            "CertificateSigningRequest" => names.push("approval"),
            "Namespace" => names.push("finalize"),
            "Pod" => names.extend(["binding", "eviction", "exec", "log", "resize"]),
            "ServiceAccount" => names.push("token"),
            _ => {}
        }
        names.sort_unstable();
        names
    }
}

/// Validates the field of a custom resource that its Scale shows as `spec.replicas`.
fn replicas_error(object: &Value, pointer: &str) -> Option<Cause> {
    let field = pointer.replace('/', ".");
    let is_not = |path: &str, wanted: &str| {
        Some(Cause::invalid(field.clone(), &0.into(), &format!("{path} is not {wanted}")))
    };
    let (mut value, mut path) = (object, String::new());
    for part in pointer.split('/').skip(1) {
        path = format!("{path}.{part}");
        value = match value {
            Value::Object(map) => map.get(part)?,
            Value::Null => return None,
            _ => return is_not(&path, "an object"),
        };
    }
    match value.as_i64() {
        Some(replicas) if replicas < 0 => {
            Some(Cause::invalid(field, value, "should be a non-negative integer"))
        }
        Some(_) => None,
        None => is_not(&path, "an integer"),
    }
}

/// `apps/v1`, `v1`.
pub(crate) fn group_version(group: &str, version: &str) -> String {
    if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") }
}

/// Help for users: all built-in kinds, and for each one what a cluster does with its objects and this server does not.
#[must_use]
pub fn help() -> String {
    let mut lines: Vec<String> = BUILT_IN
        .iter()
        .map(|entry| {
            let resource = format!("{} ({})", entry.kind, group_version(entry.group, entry.version));
            let line = format!("{resource:<65}  {}", entry.lacks);
            format!("{}\n", line.trim_end())
        })
        .collect();
    lines.sort_unstable();
    format!(
        "The kinds that are served, and what this server does not do with their objects:\n\n{}",
        lines.concat()
    )
}

/// All served kinds.
#[derive(Clone, Debug)]
pub(crate) struct Kinds {
    /// In the order of discovery.
    groups: Vec<String>,
    /// By group, version and plural.
    by_path: BTreeMap<(String, String, String), Arc<Kind>>,
}

impl Kinds {
    pub(crate) fn new() -> Kinds {
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

    pub(crate) fn get(&self, group: &str, version: &str, plural: &str) -> Option<&Arc<Kind>> {
        self.by_path.get(&(group.to_owned(), version.to_owned(), plural.to_owned()))
    }

    /// The kind of a built-in entry, which must exist.
    pub(crate) fn built_in(&self, group: &str, plural: &str) -> Arc<Kind> {
        let kind = self.get(group, "v1", plural);
        Arc::clone(kind.expect("only called with the name of a table entry"))
    }

    /// The kind that an ownerReference names: in this version, or else in any served one.
    pub(crate) fn by_kind(&self, api_version: &str, kind: &str) -> Option<&Arc<Kind>> {
        let group = api_version.split_once('/').map_or("", |(group, _)| group);
        let all = || self.by_path.values().filter(|one| one.group == group && one.kind == kind);
        all().find(|one| one.api_version() == api_version).or_else(|| all().next())
    }

    /// Any version of the kind that a collection holds.
    pub(crate) fn of_collection(&self, collection: &str) -> Option<&Arc<Kind>> {
        // The core group sorts first, so the collection `events` has the kind of core Events.
        self.by_path.values().find(|kind| kind.stored_in() == collection)
    }

    /// Replaces all versions of a custom resource.
    pub(crate) fn replace_custom(&mut self, group: &str, plural: &str, versions: Vec<Kind>) {
        self.by_path.retain(|(a_group, _, a_plural), _| a_group != group || a_plural != plural);
        for kind in versions {
            self.insert(kind);
        }
        let by_path = &self.by_path;
        self.groups.retain(|group| by_path.keys().any(|(a_group, _, _)| a_group == group));
    }

    pub(crate) fn groups(&self) -> &[String] {
        &self.groups
    }

    /// The kinds of a group, sorted by version.
    pub(crate) fn in_group<'a>(&'a self, group: &'a str) -> impl Iterator<Item = &'a Arc<Kind>> {
        self.by_path.values().filter(move |kind| kind.group == group)
    }

    /// All collections, each with one version of its kind.
    pub(crate) fn collections(&self) -> BTreeMap<String, Arc<Kind>> {
        let mut collections = BTreeMap::new();
        for kind in self.by_path.values().filter(|kind| !kind.is_review()) {
            collections.entry(kind.stored_in()).or_insert_with(|| Arc::clone(kind));
        }
        collections
    }

    /// The versions of a group, preferred first: v1 before v1beta1, v2 before v1.
    pub(crate) fn versions(&self, group: &str) -> Vec<String> {
        let mut versions: Vec<String> = self.in_group(group).map(|kind| kind.version.clone()).collect();
        versions.sort_by_key(|version| std::cmp::Reverse(version_priority(version)));
        versions.dedup();
        versions
    }
}

/// The order of versions: stable, beta, alpha, then by number. See apimachinery/pkg/version/helpers.go.
pub(crate) fn version_priority(version: &str) -> (u8, u64, u64) {
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
