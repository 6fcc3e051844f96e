//! Serves the kinds of a CustomResourceDefinition, and ends them, after a write or a delete of it.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::{
    kinds::{
        Kind, Kinds, Source, conditions::set_condition, conversion::bundle_error, crd::is_established,
        custom_resources, field_checks::text,
    },
    status::qualified,
    storage::{Place, Storage},
    verbs::put_status::put_status,
};

/// Serves the kinds of a CRD that was just written, and sets the conditions in its status.
pub(crate) fn written(storage: &mut Storage, place: &Place, before: Option<&Value>) {
    let Some(crd) = storage.get(place).cloned() else {
        return removed(storage, before.unwrap_or(&Value::Null));
    };
    if before.is_some_and(|before| before["spec"] == crd["spec"]) {
        return;
    }
    serve(storage, place, &crd, before.is_some());
}

/// Serves the kinds of a CRD, unless another kind has one of its names.
fn serve(storage: &mut Storage, place: &Place, crd: &Value, is_known: bool) {
    let (group, plural) = names(crd);
    let conflicts = conflicts(&storage.kinds, crd);
    if !conflicts.is_empty() || has_no_bundle(crd) {
        storage.kinds.replace_custom(group, plural, Vec::new());
        return establish(storage, place, crd, &conflicts);
    }
    let kinds = custom_resources::kinds(crd);
    let collection = qualified(plural, group);
    let custom = kinds.iter().find_map(|kind| match &kind.source {
        Source::Custom(custom) => Some(custom),
        Source::BuiltIn(_) => None,
    });
    storage.add_collection(&collection);
    // Watches end and the history is dropped, because kube-apiserver recreates the watch cache.
    storage.forget_history_of(&collection);
    if is_known && let Some(custom) = custom {
        storage.rewrite(&collection, |object| custom.refresh(object));
    }
    storage.kinds.replace_custom(group, plural, kinds);
    establish(storage, place, crd, &[]);
}

/// Whether a new CRD waits for a `caBundle` that can be read.
fn has_no_bundle(crd: &Value) -> bool {
    !is_established(crd) && bundle_error(crd).is_some()
}

/// The names that another kind of the group has: field, reason and message. The condition shows the last one.
fn conflicts(kinds: &Kinds, crd: &Value) -> Vec<(&'static str, &'static str, String)> {
    let (group, plural) = names(crd);
    let others: Vec<&Arc<Kind>> = kinds.in_group(group).filter(|kind| kind.plural != plural).collect();
    let names = &crd["spec"]["names"];
    let is_resource = |name: &str| {
        let has = |kind: &&Arc<Kind>| {
            kind.plural == name || kind.singular == name || kind.short_names.iter().any(|short| short == name)
        };
        others.iter().any(has)
    };
    let is_kind = |name: &str| others.iter().any(|kind| kind.kind == name || kind.list_kind == name);
    let mut conflicts = Vec::new();
    for (field, reason) in [
        ("plural", "PluralConflict"),
        ("singular", "SingularConflict"),
        ("kind", "KindConflict"),
        ("listKind", "ListKindConflict"),
    ] {
        let name = names[field].as_str().unwrap_or_default();
        let is_taken = if field.ends_with("ind") { is_kind(name) } else { is_resource(name) };
        if is_taken {
            conflicts.push((field, reason, format!("{name:?} is already in use")));
        }
    }
    conflicts
}

/// Serves PodMetrics and NodeMetrics, which come from a metrics server in a cluster. Here, they are what a client has written.
pub(crate) fn serve_metrics(storage: &mut Storage) {
    let text = json!({"type": "string"});
    let usage = json!({"type": "object", "additionalProperties": {"x-kubernetes-int-or-string": true}});
    let container = json!({"type": "object", "properties": {"name": text, "usage": usage}});
    for (plural, kind, scope, field, measured) in [
        ("pods", "PodMetrics", "Namespaced", "containers", json!({"type": "array", "items": container})),
        ("nodes", "NodeMetrics", "Cluster", "usage", usage),
    ] {
        let properties =
            json!({"timestamp": {"type": "string", "format": "date-time"}, "window": text, field: measured});
        let version = json!({"name": "v1beta1", "served": true, "storage": true,
            "schema": {"openAPIV3Schema": {"type": "object", "properties": properties}}});
        let crd = json!({"spec": {"group": "metrics.k8s.io", "scope": scope, "versions": [version],
            "names": {"plural": plural, "singular": "", "kind": kind, "listKind": format!("{kind}List")}}});
        storage.add_collection(&qualified(plural, "metrics.k8s.io"));
        storage.kinds.replace_custom("metrics.k8s.io", plural, custom_resources::kinds(&crd));
    }
}

fn names(crd: &Value) -> (&str, &str) {
    (text(&crd["spec"]["group"]), text(&crd["spec"]["names"]["plural"]))
}

/// The conditions that `kubectl wait --for=condition=Established crd/…` waits for.
fn establish(storage: &mut Storage, place: &Place, crd: &Value, conflicts: &[(&str, &str, String)]) {
    let mut crd = crd.clone();
    let now = storage.clock.time();
    let mut accepted = crd["spec"]["names"].clone();
    for (field, ..) in conflicts {
        accepted[*field] = if *field == "kind" || *field == "plural" { "".into() } else { Value::Null };
    }
    if let Some(accepted) = accepted.as_object_mut() {
        accepted.retain(|_, name| !name.is_null());
    }
    crd["status"]["acceptedNames"] = accepted;
    let conditions = match conflicts.last() {
        Some((_, reason, message)) => [
            ("NamesAccepted", "False", *reason, message.as_str()),
            ("Established", "False", "NotAccepted", "not all names are accepted"),
        ],
        None if has_no_bundle(&crd) => [
            ("NamesAccepted", "True", "NoConflicts", "no conflicts found"),
            ("Established", "False", "InvalidCABundle", "The conversion webhook CABundle is invalid"),
        ],
        None => [
            ("NamesAccepted", "True", "NoConflicts", "no conflicts found"),
            ("Established", "True", "InitialNamesAccepted", "the initial names have been accepted"),
        ],
    };
    for (kind, status, reason, message) in conditions {
        set_condition(&mut crd, kind, status, reason, message, &now);
    }
    if storage.get(place).is_some_and(|stored| **stored != crd) {
        let kind = storage.kinds.built_in("apiextensions.k8s.io", "customresourcedefinitions");
        put_status(storage, &kind, place, crd);
    }
}

/// Sets the condition of a CRD whose custom resources will be deleted.
pub(crate) fn mark_terminating(crd: &mut Value, now: &str) {
    let message = "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon";
    set_condition(crd, "Terminating", "True", "InstanceDeletionPending", message, now);
}

/// Sets the condition of a CRD whose custom resources are being deleted.
pub(crate) fn mark_deleting(crd: &mut Value, now: &str) {
    let message = "CustomResource deletion is in progress";
    set_condition(crd, "Terminating", "True", "InstanceDeletionInProgress", message, now);
}

/// Sets the condition of a CRD whose custom resources are gone.
pub(crate) fn mark_deleted(crd: &mut Value, now: &str) {
    let message = "removed all instances";
    set_condition(crd, "Terminating", "False", "InstanceDeletionCompleted", message, now);
}

fn removed(storage: &mut Storage, crd: &Value) {
    let (group, plural) = names(crd);
    storage.kinds.replace_custom(group, plural, Vec::new());
    storage.wake_watches(&qualified(plural, group));
    // Other CRDs may have waited for these names.
    let definitions = "customresourcedefinitions.apiextensions.k8s.io";
    let all = storage.collection(definitions).into_iter().flat_map(|all| all.objects.iter());
    let waits = |crd: &Value| crd["spec"]["group"] == *group && !is_established(crd);
    let waiting: Vec<(String, Arc<Value>)> =
        all.filter(|(_, crd)| waits(crd)).map(|(name, crd)| (name.clone(), Arc::clone(crd))).collect();
    for (name, crd) in waiting {
        serve(storage, &Place::new(definitions, None, &name), &crd, true);
    }
}
