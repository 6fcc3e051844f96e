//! CustomResourceDefinitions: how one is completed and checked, and when the kinds that it defines are served.
//!
//! ```yaml
//! spec: {group: demo.example.com, scope: Namespaced, names: {plural: widgets, kind: Widget},
//!        versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {…}}, subresources: {status: {}}}]}
//! ```
//!
//! Conversion is `None` only: all versions share one stored object, of which each version shows the fields that it knows.
//! What one kind of them is: see `custom.rs`.

use std::{collections::HashSet, sync::Arc};

use serde_json::{Value, json};

use super::{
    apply::{self, Manager},
    controllers::set_condition,
    custom::{self, text},
    kinds::{Kind, Kinds, Rules, resource_name},
    metadata::{causes, dns_1035_errors, subdomain_errors},
    refusal::Cause,
    schema::Schema,
    storage::{Place, Storage},
    structural,
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
    let name = &crd["metadata"]["name"];
    if before.is_none() && name.is_string() && *name != format!("{plural}.{group}") {
        let text = "must be spec.names.plural+\".\"+spec.group";
        all.push(Cause::invalid("metadata.name", name, text));
    }
    required(&mut all, "spec.group", &spec["group"]);
    if !group.is_empty() && !group.contains('.') {
        all.push(Cause::invalid("spec.group", &spec["group"], "should be a domain with at least one dot"));
    } else if !group.is_empty() {
        all.extend(causes("spec.group", &group, subdomain_errors(&group)));
    }
    let approval = "api-approved.kubernetes.io";
    if [".k8s.io", ".kubernetes.io"].iter().any(|domain| group.ends_with(domain))
        && text(&crd["metadata"]["annotations"][approval]).is_empty()
    {
        let text = format!(
            "protected groups must have approval annotation {approval:?}, see \
            https://github.com/kubernetes/enhancements/pull/1111"
        );
        all.push(Cause::required(format!("metadata.annotations[{approval}]"), &text));
    }
    required(&mut all, "spec.scope", &spec["scope"]);
    if !matches!(text(&spec["scope"]).as_str(), "" | "Namespaced" | "Cluster") {
        let scopes = ["Cluster".to_owned(), "Namespaced".to_owned()];
        all.push(Cause::not_supported("spec.scope", &spec["scope"], &scopes));
    }
    if spec["preserveUnknownFields"] == true {
        let text = "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead";
        all.push(Cause::invalid("spec.preserveUnknownFields", &true.into(), text));
    }
    versions_errors(&mut all, crd);
    let names = &spec["names"];
    for name in ["plural", "singular", "kind", "listKind"] {
        let (field, value) = (format!("spec.names.{name}"), text(&names[name]));
        required(&mut all, &field, &names[name]);
        if value.is_empty() {
            continue;
        }
        // Kinds are checked as if they were names of resources.
        if name.ends_with("ind") {
            let errors = dns_1035_errors(&value.to_lowercase()).into_iter();
            let errors =
                errors.map(|error| format!("may have mixed case, but should otherwise match: {error}"));
            all.extend(causes(&field, &value, errors.collect()));
        } else {
            all.extend(causes(&field, &value, dns_1035_errors(&value)));
        }
    }
    for list in ["shortNames", "categories"] {
        for (index, name) in names[list].as_array().into_iter().flatten().enumerate() {
            let name = text(name);
            all.extend(causes(&format!("spec.names.{list}[{index}]"), &name, dns_1035_errors(&name)));
        }
    }
    if !text(&names["kind"]).is_empty() && names["kind"] == names["listKind"] {
        let text = "kind and listKind may not be the same";
        all.push(Cause::invalid("spec.names.listKind", &names["listKind"], text));
    }
    conversion_errors(&mut all, &spec["conversion"]["strategy"]);
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

fn conversion_errors(all: &mut Vec<Cause>, strategy: &Value) {
    let field = "spec.conversion.strategy";
    match text(strategy).as_str() {
        "None" => {}
        "" => all.push(Cause::required(field, "")),
        "Webhook" => {
            let text = "the embedded API server of listwatch converts with strategy None only";
            all.push(Cause::invalid(field, strategy, text));
        }
        _ => {
            let strategies = ["None".to_owned(), "Webhook".to_owned()];
            all.push(Cause::not_supported(field, strategy, &strategies));
        }
    }
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
    let unique: HashSet<&str> = names.iter().copied().collect();
    for (index, name) in names.iter().enumerate() {
        all.extend(causes(&format!("spec.versions[{index}].name"), name, dns_1035_errors(name)));
        // The first was the only one, once.
        if index == 0 && !name.is_empty() {
            all.extend(causes("spec.version", name, dns_1035_errors(name)));
        }
    }
    if unique.len() < names.len() {
        let text = "must contain unique version names";
        all.push(Cause::invalid("spec.versions", &crd["spec"]["versions"], text));
    }
    if versions(crd).filter(|version| version["storage"] == true).count() != 1 {
        let text = "must have exactly one version marked as storage version";
        all.push(Cause::invalid("spec.versions", &crd["spec"]["versions"], text));
    }
    let [columns, subresources, selectable, schema] =
        ["additionalPrinterColumns", "subresources", "selectableFields", "schema"]
            .map(|part| Part::of(crd, part));
    let mut left = structural::DEFAULTED_BYTES_MAX;
    for (index, version) in versions(crd).enumerate() {
        if let Some(at) = columns.place(index) {
            columns_errors(all, &version["additionalPrinterColumns"], &at);
        }
        if let Some(at) = subresources.place(index) {
            scale_errors(all, &version["subresources"]["scale"], &at);
        }
        if let Some(at) = selectable.place(index) {
            selectable_errors(all, version, &at);
        }
        if version["deprecationWarning"].is_string() && version["deprecated"] != true {
            let (at, value) = (format!("spec.versions[{index}]"), &version["deprecationWarning"]);
            let text = "can only be set for deprecated versions";
            all.push(Cause::invalid(format!("{at}.deprecationWarning"), value, text));
        }
        let source = &version["schema"]["openAPIV3Schema"];
        if !source.is_object() {
            all.push(Cause::required(format!("spec.versions[{index}].schema.openAPIV3Schema"), ""));
        } else if let Some(at) = schema.place(index) {
            schema_errors(all, source, &format!("{at}.openAPIV3Schema"), &mut left);
        }
    }
}

/// A part of each version. What all versions have in common the real one keeps, and names, as the first versions of CRDs
/// had it.
struct Part {
    name: &'static str,
    is_common: bool,
}

impl Part {
    fn of(crd: &Value, name: &'static str) -> Part {
        let mut parts = versions(crd).map(|version| &version[name]);
        let first = parts.next();
        Part { name, is_common: parts.all(|other| Some(other) == first) }
    }

    /// Where it is in a version. `None` if it was looked at already.
    fn place(&self, index: usize) -> Option<String> {
        let name = self.name;
        match (self.is_common, index) {
            (true, 0) => Some(format!("spec.{}", if name == "schema" { "validation" } else { name })),
            (true, _) => None,
            (false, index) => Some(format!("spec.versions[{index}].{name}")),
        }
    }
}

fn schema_errors(all: &mut Vec<Cause>, schema: &Value, at: &str, left: &mut usize) {
    let wrong = all.len();
    structural::errors(all, schema, at);
    if all.len() > wrong {
        return;
    }
    match Schema::compile(schema) {
        // Broken off or not, what is wrong was told.
        Ok(_) => {
            let _ = structural::wrong_defaults(all, schema, at, left);
        }
        Err(wrong) => all.push(Cause::invalid(format!("{at}{}", wrong.at), &wrong.value, &wrong.why)),
    }
}

const COLUMN_TYPES: [&str; 5] = ["boolean", "date", "integer", "number", "string"];
const COLUMN_FORMATS: [&str; 8] =
    ["byte", "date", "date-time", "double", "float", "int32", "int64", "password"];

fn columns_errors(all: &mut Vec<Cause>, columns: &Value, at: &str) {
    for (index, column) in columns.as_array().into_iter().flatten().enumerate() {
        let at = format!("{at}[{index}]");
        let (types, formats) = (COLUMN_TYPES.join(","), COLUMN_FORMATS.join(","));
        if text(&column["name"]).is_empty() {
            all.push(Cause::required(format!("{at}.name"), ""));
        }
        match text(&column["type"]).as_str() {
            "" => all.push(Cause::required(format!("{at}.type"), &format!("must be one of {types}"))),
            one if COLUMN_TYPES.contains(&one) => {}
            _ => {
                let text = format!("must be one of {types}");
                all.push(Cause::invalid(format!("{at}.type"), &column["type"], &text));
            }
        }
        let format = text(&column["format"]);
        if !format.is_empty() && !COLUMN_FORMATS.contains(&&*format) {
            let text = format!("must be one of {formats}");
            all.push(Cause::invalid(format!("{at}.format"), &column["format"], &text));
        }
        path_errors(all, &column["jsonPath"], &[], &format!("{at}.JSONPath"));
    }
}

fn scale_errors(all: &mut Vec<Cause>, scale: &Value, at: &str) {
    if !scale.is_object() {
        return;
    }
    let path = |name: &str| format!("{at}.scale.{name}");
    path_errors(all, &scale["specReplicasPath"], &[".spec"], &path("specReplicasPath"));
    path_errors(all, &scale["statusReplicasPath"], &[".status"], &path("statusReplicasPath"));
    if !text(&scale["labelSelectorPath"]).is_empty() {
        path_errors(all, &scale["labelSelectorPath"], &[".spec", ".status"], &path("labelSelectorPath"));
    }
}

/// A path that must be there, under one of some others if there are any.
fn path_errors(all: &mut Vec<Cause>, value: &Value, under: &[&str], at: &str) {
    let path = text(value);
    if path.is_empty() {
        all.push(Cause::required(at, ""));
    } else if !path.starts_with('.') {
        all.push(Cause::invalid(at, value, "must be a simple json path starting with ."));
    } else if !under.is_empty() && !under.iter().any(|parent| path.starts_with(&format!("{parent}."))) {
        let either = if under.len() > 1 { "either " } else { "" };
        let text = format!("should be a json path under {either}{}", under.join(" or "));
        all.push(Cause::invalid(at, value, &text));
    }
}

/// Most fields that a selector of custom resources may know: apiextensions-apiserver, `MaxSelectableFields`.
const SELECTABLE_MAX: usize = 8;

fn selectable_errors(all: &mut Vec<Cause>, version: &Value, at: &str) {
    let fields = || version["selectableFields"].as_array().into_iter().flatten();
    if fields().count() > SELECTABLE_MAX {
        let text = format!("must have at most {SELECTABLE_MAX} items");
        all.push(Cause::too_many(at, fields().count(), &text));
    }
    for (index, field) in fields().enumerate() {
        let (at, path) = (format!("{at}[{index}].jsonPath"), text(&field["jsonPath"]));
        let mut schema = Some(&version["schema"]["openAPIV3Schema"]);
        for name in path.split('.').skip(1) {
            schema = schema.and_then(|schema| schema["properties"].get(name));
        }
        let why = match schema.map(|schema| text(&schema["type"])).as_deref() {
            _ if path.is_empty() => {
                all.push(Cause::required(at, ""));
                continue;
            }
            _ if !path.starts_with('.') => format!("is an invalid path: expected [ or . but got: {path}"),
            None => "is an invalid path: does not refer to a valid field".to_owned(),
            Some("string" | "boolean" | "integer") => {
                if fields().take(index).any(|other| other["jsonPath"] == path) {
                    all.push(Cause::duplicate(at, &field["jsonPath"]));
                }
                continue;
            }
            Some(_) => "must point to a field of type string, boolean or integer. Enum string fields and strings with \
                formats are allowed."
                .to_owned(),
        };
        all.push(Cause::invalid(at, &field["jsonPath"], &why));
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

#[cfg(test)]
mod tests {
    use super::*;

    /// What is wrong with a CRD that has these versions, as far as `about` is in it.
    fn told(versions: Vec<Value>, about: &str) -> Vec<String> {
        let names =
            json!({"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"});
        let crd = json!({"metadata": {"name": "things.demo.example.com"},
            "spec": {"group": "demo.example.com", "scope": "Namespaced", "names": names, "versions": versions}});
        let all = errors(&crd, None).into_iter().map(|cause| cause.to_string());
        all.filter(|cause| cause.contains(about)).collect()
    }

    /// All versions were told once for each of them: seven gigabytes.
    #[test]
    fn that_versions_have_the_same_name_is_told_once() {
        let version = |name: String| json!({"name": name});
        let same = (0..1000).map(|_| version("v1".to_owned())).collect();
        assert_eq!(told(same, "must contain unique version names").len(), 1);
        let others = (0..1000).map(|number| version(format!("v{number}"))).collect();
        assert_eq!(told(others, "must contain unique version names").len(), 0);
    }

    /// Each version was compared with all others, for each of its parts.
    #[test]
    fn many_versions_are_compared_once() {
        let version = |number: usize| json!({"name": format!("v{number}"), "additionalPrinterColumns": [{}]});
        let mut versions: Vec<Value> = (0..20_000).map(version).collect();
        let missing = |field: &str| format!("{field}.name: Required value");
        let column = "additionalPrinterColumns[0]";
        assert_eq!(told(versions.clone(), ".name: Req"), [missing(&format!("spec.{column}"))]);
        versions[19_999]["additionalPrinterColumns"] = json!([]);
        let all = told(versions, ".name: Req");
        assert_eq!(all.len(), 19_999);
        assert_eq!(all[19_998], missing(&format!("spec.versions[19998].{column}")));
    }

    /// What has a default was compiled with all that is in it, and so was what is in it.
    #[test]
    fn defaults_inside_of_defaults_are_checked_within_limits() {
        let schema = |depth: usize| {
            let innermost = json!({"type": "object", "description": "d".repeat(1_000_000)});
            (0..depth).fold(innermost, |inner, _| {
                json!({"type": "object", "properties": {"a": inner}, "default": {"apiVersion": "v1", "kind": "Thing"}})
            })
        };
        let version = |name: &str, depth| json!({"name": name, "storage": name == "v1", "schema": {"openAPIV3Schema": schema(depth)}});
        let about = "defaults inside";
        let other = |mut version: Value| {
            version["schema"]["openAPIV3Schema"]["title"] = "other".into();
            version
        };
        assert_eq!(told(vec![version("v1", 8)], about), [""; 0]);
        assert_eq!(told(vec![version("v1", 55)], about).len(), 1);
        assert_eq!(told(vec![version("v1", 5), other(version("v2", 5))], about).len(), 1);
    }
}
