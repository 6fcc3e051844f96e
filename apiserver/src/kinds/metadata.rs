//! The ObjectMeta of all kinds: its validation (names, labels, annotations, finalizers, owner references), and whether an object is
//! being deleted.
//!
//! The rules and messages are as in apimachinery/pkg/api/validation and pkg/util/validation.

use serde_json::Value;

use crate::{
    kinds::{Kind, field_checks::each},
    names::{causes, labels_errors, qualified_name_errors},
    status::Cause,
};

/// Most bytes of all annotations of an object: apimachinery/pkg/api/validation/objectmeta.go.
const ANNOTATION_BYTES_MAX: usize = 256 * 1024;

/// The finalizers that need no domain in their name.
const STANDARD_FINALIZERS: [&str; 3] = ["kubernetes", "orphan", "foregroundDeletion"];

/// The finalizers for the garbage collector: of them, an object can have one.
const DEPENDENTS_FINALIZERS: [&str; 2] = ["orphan", "foregroundDeletion"];

/// The validation errors of an object's metadata.
pub(crate) fn errors(kind: &Kind, object: &Value) -> Vec<Cause> {
    let metadata = &object["metadata"];
    let mut all = Vec::new();
    let base = metadata["generateName"].as_str().unwrap_or_default();
    if !base.is_empty() {
        // `generateName` may end with a dash, because a random suffix follows. Like `maskTrailingDash`, this does not look at
        // the character before the dash: the error for the generated name has it.
        let mut masked = base.strip_suffix('-').unwrap_or_default().chars();
        let name = masked.next_back().map_or(base.to_owned(), |_| format!("{}a", masked.as_str()));
        all.extend(causes("metadata.generateName", base, kind.name_errors(&name)));
    }
    match metadata["name"].as_str().unwrap_or_default() {
        "" => all.push(Cause::required("metadata.name", "name or generateName is required")),
        name => all.extend(causes("metadata.name", name, kind.name_errors(name))),
    }
    all.extend(labels_errors("metadata.labels", &metadata["labels"]));
    all.extend(annotations_errors(&metadata["annotations"]));
    all.extend(owners_errors(&metadata["ownerReferences"]));
    let finalizers = finalizers(object);
    if DEPENDENTS_FINALIZERS.iter().all(|one| finalizers.contains(one)) {
        let [orphan, delete] = DEPENDENTS_FINALIZERS;
        let text = format!("finalizer {orphan} and {delete} cannot be both set");
        all.push(Cause::invalid("metadata.finalizers", &metadata["finalizers"], &text));
    }
    for (index, name) in finalizers.into_iter().enumerate() {
        all.extend(causes("metadata.finalizers", name, qualified_name_errors(name)));
        if kind.has_qualified_finalizers() && !name.contains('/') && !STANDARD_FINALIZERS.contains(&name) {
            let text = "name is neither a standard finalizer name nor is it fully qualified";
            all.push(Cause::invalid(format!("metadata.finalizers[{index}]"), &name.into(), text));
        }
    }
    all
}

/// The warnings about the finalizers of a custom resource, sent as Warning headers.
pub(crate) fn warnings(object: &Value) -> Vec<String> {
    let plain = finalizers(object)
        .into_iter()
        .filter(|name| !name.contains('/') && !STANDARD_FINALIZERS.contains(name));
    let text =
        "prefer a domain-qualified finalizer name to avoid accidental conflicts with other finalizer writers";
    plain.map(|name| format!("metadata.finalizers: {name:?}: {text}")).collect()
}

/// Whether an object is being deleted.
pub(crate) fn is_terminating(object: &Value) -> bool {
    !object["metadata"]["deletionTimestamp"].is_null()
}

pub(crate) fn finalizers(object: &Value) -> Vec<&str> {
    object["metadata"]["finalizers"].as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

/// Whether a terminating object can be removed: it has no finalizer and no grace period left.
pub(crate) fn holds_nothing(kind: &Kind, object: &Value) -> bool {
    let spec_finalizers = kind.built_in() == "Namespace"
        && object["spec"]["finalizers"].as_array().is_some_and(|finalizers| !finalizers.is_empty());
    let grace = object["metadata"]["deletionGracePeriodSeconds"].as_u64().unwrap_or(0);
    finalizers(object).is_empty() && !spec_finalizers && grace == 0
}

fn annotations_errors(annotations: &Value) -> Vec<Cause> {
    let (field, mut all, mut bytes) = ("metadata.annotations", Vec::new(), 0);
    for (key, value) in annotations.as_object().into_iter().flatten() {
        // Unlike the prefix of a label, the prefix of an annotation may have capitals.
        all.extend(causes(field, key, qualified_name_errors(&key.to_lowercase())));
        bytes += key.len() + value.as_str().map_or(0, str::len);
    }
    if bytes > ANNOTATION_BYTES_MAX {
        all.push(Cause::too_long(field, &format!("may not be more than {ANNOTATION_BYTES_MAX} bytes")));
    }
    all
}

fn owners_errors(references: &Value) -> Vec<Cause> {
    let (field, mut all) = ("metadata.ownerReferences", Vec::new());
    let mut controllers = Vec::new();
    for owner in each(references) {
        let text = |field: &str| owner[field].as_str().unwrap_or_default();
        let api_version = text("apiVersion");
        if api_version.is_empty() || api_version.matches('/').count() > 1 {
            let value = api_version.into();
            all.push(Cause::invalid(format!("{field}.apiVersion"), &value, "version must not be empty"));
        }
        for name in ["kind", "name", "uid"] {
            if text(name).is_empty() {
                all.push(Cause::invalid(format!("{field}.{name}"), &"".into(), "must not be empty"));
            }
        }
        // Events expire within the hour.
        if api_version == "v1" && text("kind") == "Event" {
            let text = "/v1, Kind=Event is disallowed from being an owner";
            all.push(Cause::invalid(field, owner, text));
        }
        if owner["controller"] == true {
            controllers.push(format!("{}/{}", text("kind"), text("name")));
        }
    }
    if let [first, second, ..] = &controllers[..] {
        let text = format!(
            "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {second}"
        );
        all.push(Cause::invalid(field, references, &text));
    }
    all
}
