//! CustomResourceDefinitions: how one is completed and checked, and when the kinds that it defines are served.
//!
//! ```yaml
//! spec: {group: demo.example.com, scope: Namespaced, names: {plural: widgets, kind: Widget},
//!        versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {…}}, subresources: {status: {}}}]}
//! ```
//!
//! Conversion is `None` only: all versions share one stored object, of which each version shows the fields that it knows.
//! What one kind of them is: see `custom.rs`.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{
    apply::{self, Manager},
    controllers::set_condition,
    custom::{self, text},
    kinds::{Kind, Kinds, Rules, resource_name},
    metadata::{causes, dns_1035_errors},
    refusal::Cause,
    schema::Schema,
    storage::{Place, Storage},
    told::CAUSES_MAX,
};

/// What a CRD gets when it is written.
pub(super) fn set_defaults(crd: &mut Value) {
    let spec = &mut crd["spec"];
    if spec["names"]["kind"].is_string() {
        let kind = spec["names"]["kind"].as_str().unwrap_or_default().to_owned();
        for (field, value) in [("singular", kind.to_lowercase()), ("listKind", format!("{kind}List"))] {
            if spec["names"][field].as_str().is_none_or(str::is_empty) {
                spec["names"][field] = value.into();
            }
        }
    }
    if spec["conversion"].is_null() {
        spec["conversion"] = json!({"strategy": "None"});
    }
    if !crd["status"].is_object() {
        crd["status"] = json!({"acceptedNames": {"kind": "", "plural": ""}, "storedVersions": []});
    }
    let mut stored = crd["status"]["storedVersions"].as_array().cloned().unwrap_or_default();
    let storage =
        versions(crd).find(|version| version["storage"] == true).map(|version| version["name"].clone());
    stored.extend(storage.filter(|storage| !stored.contains(storage)));
    crd["status"]["storedVersions"] = stored.into();
}

/// What is wrong with a CRD.
pub(super) fn errors(crd: &Value, before: Option<&Value>) -> Vec<Cause> {
    let spec = &crd["spec"];
    let mut all = Vec::new();
    let required = |all: &mut Vec<Cause>, field: &str, value: &Value| {
        if text(value).is_empty() {
            all.push(Cause::required(field, ""));
        }
    };
    let (group, plural) = (text(&spec["group"]), text(&spec["names"]["plural"]));
    if before.is_none() && crd["metadata"]["name"] != format!("{plural}.{group}") {
        let text = "must be spec.names.plural+\".\"+spec.group";
        all.push(Cause::invalid("metadata.name", &crd["metadata"]["name"], text));
    }
    required(&mut all, "spec.group", &spec["group"]);
    if !group.is_empty() && !group.contains('.') {
        all.push(Cause::invalid("spec.group", &spec["group"], "should be a domain with at least one dot"));
    }
    required(&mut all, "spec.scope", &spec["scope"]);
    if !matches!(text(&spec["scope"]).as_str(), "" | "Namespaced" | "Cluster") {
        let scopes = ["Cluster".to_owned(), "Namespaced".to_owned()];
        all.push(Cause::not_supported("spec.scope", &spec["scope"], &scopes));
    }
    versions_errors(&mut all, crd);
    let names = &spec["names"];
    for name in ["plural", "singular", "kind", "listKind"] {
        let (field, value) = (format!("spec.names.{name}"), text(&names[name]));
        required(&mut all, &field, &names[name]);
        // Kinds are checked as if they were names of resources.
        let checked = if name.ends_with("ind") { value.to_lowercase() } else { value.clone() };
        if !value.is_empty() {
            all.extend(causes(&field, &value, dns_1035_errors(&checked)));
        }
    }
    if spec["conversion"]["strategy"] != "None" {
        let text = "the embedded API server of listwatch converts with strategy None only";
        all.push(Cause::invalid("spec.conversion.strategy", &spec["conversion"]["strategy"], text));
    }
    stored_versions_errors(&mut all, crd);
    let Some(before) = before else { return all };
    // The kind is what its objects say that they are.
    let fixed = if is_established(before) {
        ["group", "scope", "names/kind"].as_slice()
    } else {
        &["group", "scope"]
    };
    for field in fixed {
        let at = |crd: &Value| crd.pointer(&format!("/spec/{field}")).cloned().unwrap_or_default();
        if at(before) != at(crd) {
            let field = format!("spec.{}", field.replace('/', "."));
            all.push(Cause::invalid(field, &at(crd), "field is immutable"));
        }
    }
    all
}

fn stored_versions_errors(all: &mut Vec<Cause>, crd: &Value) {
    let (field, list) = ("status.storedVersions", &crd["status"]["storedVersions"]);
    let stored = || list.as_array().into_iter().flatten();
    if stored().next().is_none() {
        all.push(Cause::invalid(field, &Value::Null, "must have at least one stored version"));
        return;
    }
    let storage = versions(crd).filter(|version| version["storage"] == true).last();
    if let Some(name) =
        storage.map(|version| &version["name"]).filter(|name| !stored().any(|one| one == *name))
    {
        let text = format!("must have the storage version {}", name.as_str().unwrap_or_default());
        all.push(Cause::invalid(field, list, &text));
    }
    for (index, name) in stored().enumerate() {
        if versions(crd).any(|version| version["name"] == *name) {
            continue;
        }
        let one = name.as_str().unwrap_or_default();
        let text = format!(
            "missing from spec.versions; {one} was previously a storage version, and must remain in spec.versions \
            until a storage migration ensures no data remains persisted in {one} and removes {one} from {field}"
        );
        all.push(Cause::invalid(format!("{field}[{index}]"), name, &text));
    }
}

fn versions_errors(all: &mut Vec<Cause>, crd: &Value) {
    let names: Vec<&str> = versions(crd).filter_map(|version| version["name"].as_str()).collect();
    for (index, name) in names.iter().enumerate() {
        all.extend(causes(&format!("spec.versions[{index}].name"), name, dns_1035_errors(name)));
        if names[..index].contains(name) {
            let text = "must contain unique version names";
            all.push(Cause::invalid("spec.versions", &crd["spec"]["versions"], text));
        }
    }
    if versions(crd).filter(|version| version["storage"] == true).count() != 1 {
        let text = "must have exactly one version marked as storage version";
        all.push(Cause::invalid("spec.versions", &crd["spec"]["versions"], text));
    }
    for (index, version) in versions(crd).enumerate() {
        let schema = &version["schema"]["openAPIV3Schema"];
        let own = format!("spec.versions[{index}].schema.openAPIV3Schema");
        if !schema.is_object() {
            all.push(Cause::required(own, ""));
            continue;
        }
        // What all versions have in common, the real one keeps, and names, as the first versions of CRDs had it.
        let is_common = versions(crd).all(|other| other["schema"] == version["schema"]);
        let field = if is_common { "spec.validation.openAPIV3Schema".to_owned() } else { own };
        if is_common && index > 0 {
            continue;
        }
        if schema["type"] != "object" {
            all.push(Cause::required(format!("{field}.type"), "must not be empty at the root"));
        }
        let wrong = all.len();
        not_structural(all, schema, &field);
        if all.len() > wrong {
            continue;
        }
        match Schema::compile(schema) {
            Ok(_) => wrong_defaults(all, schema, &field),
            Err(wrong) => all.push(Cause::invalid(format!("{field}{}", wrong.at), &wrong.value, &wrong.why)),
        }
    }
}

/// Longest path into a schema, which is said with all that is wrong there: with names of a megabyte, memory would not do.
const PATH_BYTES_MAX: usize = 10_000;

/// Every field has a type, every list says of what: or nobody could prune.
/// See <https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#specifying-a-structural-schema>.
fn not_structural(all: &mut Vec<Cause>, schema: &Value, at: &str) {
    if all.len() >= CAUSES_MAX {
        return;
    }
    if at.len() > PATH_BYTES_MAX {
        let shown: String = at.chars().take(100).collect();
        let text = format!("may not be more than {PATH_BYTES_MAX} bytes from here on down");
        return all.push(Cause::too_long(format!("{shown}…"), &text));
    }
    let mut inside = |schema: &Value, at: String, of: &str| {
        let is_free = ["x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields"]
            .iter()
            .any(|word| schema[word] == true);
        if schema["type"].as_str().is_none_or(str::is_empty) && !is_free {
            let text = format!("must not be empty for specified {of}");
            all.push(Cause::required(format!("{at}.type"), &text));
        }
        not_structural(all, schema, &at);
    };
    for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
        inside(schema, format!("{at}.properties[{name}]"), "object fields");
    }
    if schema["additionalProperties"].is_object() {
        inside(&schema["additionalProperties"], format!("{at}.additionalProperties"), "object fields");
    }
    if schema["items"].is_object() {
        inside(&schema["items"], format!("{at}.items"), "array items");
    } else if schema["type"] == "array" {
        all.push(Cause::required(format!("{at}.items"), "must be specified"));
    }
}

/// A default that the schema next to it would refuse.
fn wrong_defaults(all: &mut Vec<Cause>, schema: &Value, at: &str) {
    if all.len() >= CAUSES_MAX {
        return;
    }
    if let (Some(default), Ok(own)) = (schema.get("default"), Schema::compile(schema)) {
        let mut causes = Vec::new();
        own.validate(default, None, &mut causes);
        all.extend(causes.into_iter().map(|cause| cause.under(&format!("{at}.default"))));
    }
    for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
        wrong_defaults(all, schema, &format!("{at}.properties[{name}]"));
    }
    for inside in ["items", "additionalProperties"].into_iter().filter(|inside| schema[inside].is_object()) {
        wrong_defaults(all, &schema[inside], &format!("{at}.{inside}"));
    }
}

fn is_established(crd: &Value) -> bool {
    let mut conditions = crd["status"]["conditions"].as_array().into_iter().flatten();
    conditions.any(|condition| condition["type"] == "Established" && condition["status"] == "True")
}

pub(super) fn versions(crd: &Value) -> impl Iterator<Item = &Value> {
    crd["spec"]["versions"].as_array().into_iter().flatten()
}

/// Serve what a CRD that was just written says, and note so in its status.
pub(super) fn written(storage: &mut Storage, place: &Place, before: Option<&Value>) {
    let Some(crd) = storage.get(place).cloned() else {
        return removed(storage, before.unwrap_or(&Value::Null));
    };
    if before.is_some_and(|before| before["spec"] == crd["spec"]) {
        return;
    }
    serve(storage, place, &crd, before.is_some());
}

/// Serve a CRD if nobody else has its names.
fn serve(storage: &mut Storage, place: &Place, crd: &Value, is_known: bool) {
    let (group, plural) = names(crd);
    let conflicts = conflicts(&storage.kinds, crd);
    if !conflicts.is_empty() {
        storage.kinds.replace_custom(&group, &plural, Vec::new());
        return establish(storage, place, crd, &conflicts);
    }
    let kinds = custom::kinds(crd);
    let collection = resource_name(&plural, &group);
    let custom = kinds.iter().find_map(|kind| match &kind.rules {
        Rules::Custom(custom) => Some(custom),
        Rules::BuiltIn(_) => None,
    });
    storage.add_collection(&collection);
    // Watches end and the past is forgotten: the real server makes its watch cache anew.
    storage.forget_history_of(&collection);
    if is_known && let Some(custom) = custom {
        storage.rewrite(&collection, |object| custom.refresh(object));
    }
    storage.kinds.replace_custom(&group, &plural, kinds);
    establish(storage, place, crd, &[]);
}

/// The names that another kind of the group has, and what the condition calls that. What comes last is told.
fn conflicts(kinds: &Kinds, crd: &Value) -> Vec<(&'static str, String)> {
    let (group, plural) = names(crd);
    let others: Vec<&Arc<Kind>> = kinds.in_group(&group).filter(|kind| kind.plural != plural).collect();
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
            conflicts.push((field, format!("{reason} {name:?} is already in use")));
        }
    }
    conflicts
}

fn names(crd: &Value) -> (String, String) {
    (text(&crd["spec"]["group"]), text(&crd["spec"]["names"]["plural"]))
}

/// The conditions that `kubectl wait --for=condition=Established crd/…` waits for.
fn establish(storage: &mut Storage, place: &Place, crd: &Value, conflicts: &[(&str, String)]) {
    let mut crd = crd.clone();
    let now = storage.clock.time();
    let mut accepted = crd["spec"]["names"].clone();
    for (field, _) in conflicts {
        accepted[*field] = if *field == "kind" || *field == "plural" { "".into() } else { Value::Null };
    }
    if let Some(accepted) = accepted.as_object_mut() {
        accepted.retain(|_, name| !name.is_null());
    }
    crd["status"]["acceptedNames"] = accepted;
    let told = match conflicts.last().and_then(|(_, told)| told.split_once(' ')) {
        Some((reason, message)) => [
            ("NamesAccepted", "False", reason, message),
            ("Established", "False", "NotAccepted", "not all names are accepted"),
        ],
        None => [
            ("NamesAccepted", "True", "NoConflicts", "no conflicts found"),
            ("Established", "True", "InitialNamesAccepted", "the initial names have been accepted"),
        ],
    };
    for (kind, status, reason, message) in told {
        set_condition(&mut crd, kind, status, reason, message, &now);
    }
    let Some(stored) = storage.get(place).cloned().filter(|stored| **stored != crd) else { return };
    let kind = storage.kinds.built_in("apiextensions.k8s.io", "customresourcedefinitions");
    let server = Manager { name: "kube-apiserver".to_owned(), applies: false, subresource: "status" };
    apply::track(&kind, Some(&stored), &mut crd, Value::Null, &server, &now);
    storage.put(place, crd);
}

/// The condition of a CRD whose instances are to be deleted.
pub(super) fn mark_terminating(crd: &mut Value, now: &str) {
    let message = "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon";
    set_condition(crd, "Terminating", "True", "InstanceDeletionPending", message, now);
}

/// The same while they are.
pub(super) fn mark_deleting(crd: &mut Value, now: &str) {
    let message = "CustomResource deletion is in progress";
    set_condition(crd, "Terminating", "True", "InstanceDeletionInProgress", message, now);
}

fn removed(storage: &mut Storage, crd: &Value) {
    let (group, plural) = names(crd);
    storage.kinds.replace_custom(&group, &plural, Vec::new());
    storage.close_collection(&resource_name(&plural, &group));
    // Whoever waited for its names gets them.
    let definitions = "customresourcedefinitions.apiextensions.k8s.io";
    let all = storage.collection(definitions).into_iter().flat_map(|all| all.objects.iter());
    let waits = |crd: &Value| crd["spec"]["group"] == *group && !is_established(crd);
    let waiting: Vec<(String, Arc<Value>)> =
        all.filter(|(_, crd)| waits(crd)).map(|(name, crd)| (name.clone(), Arc::clone(crd))).collect();
    for (name, crd) in waiting {
        serve(storage, &Place::new(definitions, None, &name), &crd, true);
    }
}
