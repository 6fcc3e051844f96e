//! CustomResourceDefinitions: their defaults and their validation. `verbs/served_kinds.rs` serves their kinds.
//!
//! ```yaml
//! spec: {group: demo.example.com, scope: Namespaced, names: {plural: widgets, kind: Widget},
//!        versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {…}}, subresources: {status: {}}}]}
//! ```
//!
//! With conversion `None`, all versions share one stored object, and each version shows the fields in its schema. `conversion.rs` has
//! the conversion by a webhook.
//! The kinds that a CRD defines are in `custom_resources.rs`.

use std::collections::HashSet;

use serde_json::{Value, json};

use crate::{
    kinds::{
        by_schema::fill,
        conversion,
        field_checks::{each, text},
        webhook_configurations::{client_errors, review_versions_errors},
    },
    names::{causes, dns_1035_errors, subdomain_errors},
    schema::{Schema, cel_estimate, formats::unknown_formats, structural},
    status::Cause,
};

/// Sets the defaults of a CRD.
pub(crate) fn set_defaults(crd: &mut Value) {
    let spec = &mut crd["spec"];
    let kind = text(&spec["names"]["kind"]).to_owned();
    if !kind.is_empty() {
        for (field, value) in [("singular", kind.to_lowercase()), ("listKind", format!("{kind}List"))] {
            if spec["names"][field].as_str().is_none_or(str::is_empty) {
                spec["names"][field] = value.into();
            }
        }
    }
    if spec["conversion"].is_null() {
        spec["conversion"] = json!({"strategy": "None"});
    }
    fill(&mut spec["conversion"], "/webhook/clientConfig/service/port", "443");
}

/// Notes the storage version in the status.
pub(crate) fn to_stored(crd: &mut Value) {
    let mut stored = crd["status"]["storedVersions"].as_array().cloned().unwrap_or_default();
    let storage =
        versions(crd).find(|version| version["storage"] == true).map(|version| version["name"].clone());
    stored.extend(storage.filter(|storage| !stored.contains(storage)));
    crd["status"]["storedVersions"] = stored.into();
}

/// The validation errors of a CRD.
pub(crate) fn errors(crd: &Value, before: Option<&Value>) -> Vec<Cause> {
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
        all.extend(causes("spec.group", group, subdomain_errors(group)));
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
    if !matches!(text(&spec["scope"]), "" | "Namespaced" | "Cluster") {
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
        // A Kind in lower case must be a DNS-1035 label.
        if name.ends_with("ind") {
            let errors = dns_1035_errors(&value.to_lowercase()).into_iter();
            let errors =
                errors.map(|error| format!("may have mixed case, but should otherwise match: {error}"));
            all.extend(causes(&field, value, errors.collect()));
        } else {
            all.extend(causes(&field, value, dns_1035_errors(value)));
        }
    }
    for list in ["shortNames", "categories"] {
        for (index, name) in each(&names[list]).enumerate() {
            let name = text(name);
            all.extend(causes(&format!("spec.names.{list}[{index}]"), name, dns_1035_errors(name)));
        }
    }
    if !text(&names["kind"]).is_empty() && names["kind"] == names["listKind"] {
        let text = "kind and listKind may not be the same";
        all.push(Cause::invalid("spec.names.listKind", &names["listKind"], text));
    }
    conversion_errors(&mut all, &spec["conversion"]);
    stored_versions_errors(&mut all, crd);
    let Some(before) = before else { return all };
    if is_established(before)
        && let Some(why) = conversion::bundle_error(crd)
        && conversion::bundle_error(before).is_none()
    {
        let bundle = &spec["conversion"]["webhook"]["clientConfig"]["caBundle"];
        all.push(Cause::invalid("spec.conversion.webhookClientConfig.caBundle", bundle, &why));
    }
    // The Kind of an established CRD is immutable: stored objects have it as `kind`.
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

/// The warnings about unknown formats, of an update only about new ones.
pub(crate) fn warnings(crd: &Value, before: Option<&Value>) -> Vec<String> {
    let unknown = |crd| {
        let mut all = Vec::new();
        versions(crd).for_each(|version| unknown_formats(&mut all, &version["schema"]["openAPIV3Schema"]));
        all
    };
    let known = before.map(unknown).unwrap_or_default();
    let new = unknown(crd).into_iter().filter(|format| !known.contains(format));
    new.map(|format| format!("unrecognized format {format:?}")).collect()
}

fn conversion_errors(all: &mut Vec<Cause>, conversion: &Value) {
    let field = "spec.conversion.strategy";
    let strategy = &conversion["strategy"];
    match text(strategy) {
        "None" => {}
        "" => all.push(Cause::required(field, "")),
        "Webhook" => {}
        _ => {
            let strategies = ["None".to_owned(), "Webhook".to_owned()];
            all.push(Cause::not_supported(field, strategy, &strategies));
        }
    }
    let (config, versions) =
        (&conversion["webhook"]["clientConfig"], &conversion["webhook"]["conversionReviewVersions"]);
    // The errors have the names of v1beta1.
    let (at_config, at_versions) =
        ("spec.conversion.webhookClientConfig", "spec.conversion.conversionReviewVersions");
    if strategy != "Webhook" {
        let why = "should not be set when strategy is not set to Webhook";
        all.extend((!config.is_null()).then(|| Cause::forbidden(at_config, why)));
        all.extend(each(versions).next().map(|_| Cause::forbidden(at_versions, why)));
        return;
    }
    if config.is_null() {
        all.push(Cause::required(at_config, "required when strategy is set to Webhook"));
    } else {
        client_errors(all, config, at_config);
    }
    if each(versions).next().is_none() {
        all.push(Cause::required(at_versions, ""));
    } else {
        review_versions_errors(all, versions, at_versions);
    }
}

fn stored_versions_errors(all: &mut Vec<Cause>, crd: &Value) {
    let (field, list) = ("status.storedVersions", &crd["status"]["storedVersions"]);
    let stored = || each(list);
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
        // v1beta1 had a single `spec.version`. The API server still validates the first version there.
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
            .map(|part| VersionField::of(crd, part));
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
            schema_errors(all, source, &format!("{at}.openAPIV3Schema"));
        }
    }
}

/// A field of each version. As in apiextensions.k8s.io/v1beta1, the API server keeps a field that all versions share
/// at the top of `spec`, and errors name that place.
struct VersionField {
    name: &'static str,
    is_common: bool,
}

impl VersionField {
    fn of(crd: &Value, name: &'static str) -> VersionField {
        let mut parts = versions(crd).map(|version| &version[name]);
        let first = parts.next();
        VersionField { name, is_common: parts.all(|other| Some(other) == first) }
    }

    /// The path of the field in a version. `None` if an earlier version had the shared field.
    fn place(&self, index: usize) -> Option<String> {
        let name = self.name;
        match (self.is_common, index) {
            (true, 0) => Some(format!("spec.{}", if name == "schema" { "validation" } else { name })),
            (true, _) => None,
            (false, index) => Some(format!("spec.versions[{index}].{name}")),
        }
    }
}

fn schema_errors(all: &mut Vec<Cause>, schema: &Value, at: &str) {
    let wrong = all.len();
    structural::errors(all, schema, at);
    if all.len() > wrong {
        return;
    }
    match Schema::compile(schema) {
        Ok(compiled) => {
            cel_estimate::errors(all, &compiled.rules.estimated, at);
            structural::wrong_transition_rules(all, schema, at, None);
            structural::wrong_defaults(all, schema, at);
        }
        Err(errors) => {
            for wrong in errors {
                all.push(Cause::invalid(format!("{at}{}", wrong.at), &wrong.value, &wrong.why));
            }
        }
    }
}

const COLUMN_TYPES: [&str; 5] = ["boolean", "date", "integer", "number", "string"];
const COLUMN_FORMATS: [&str; 8] =
    ["byte", "date", "date-time", "double", "float", "int32", "int64", "password"];

fn columns_errors(all: &mut Vec<Cause>, columns: &Value, at: &str) {
    for (index, column) in each(columns).enumerate() {
        let at = format!("{at}[{index}]");
        let (types, formats) = (COLUMN_TYPES.join(","), COLUMN_FORMATS.join(","));
        if text(&column["name"]).is_empty() {
            all.push(Cause::required(format!("{at}.name"), ""));
        }
        match text(&column["type"]) {
            "" => all.push(Cause::required(format!("{at}.type"), &format!("must be one of {types}"))),
            one if COLUMN_TYPES.contains(&one) => {}
            _ => {
                let text = format!("must be one of {types}");
                all.push(Cause::invalid(format!("{at}.type"), &column["type"], &text));
            }
        }
        let format = text(&column["format"]);
        if !format.is_empty() && !COLUMN_FORMATS.contains(&format) {
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

/// Validates a required JSON path. If `under` is not empty, the path must be below one of these fields.
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

/// Most selectable fields of a version: apiextensions-apiserver, `MaxSelectableFields`.
const SELECTABLE_MAX: usize = 8;

fn selectable_errors(all: &mut Vec<Cause>, version: &Value, at: &str) {
    let fields = || each(&version["selectableFields"]);
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
        let why = match schema.map(|schema| text(&schema["type"])) {
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

pub(crate) fn is_established(crd: &Value) -> bool {
    let mut conditions = each(&crd["status"]["conditions"]);
    conditions.any(|condition| condition["type"] == "Established" && condition["status"] == "True")
}

pub(crate) fn versions(crd: &Value) -> impl Iterator<Item = &Value> {
    each(&crd["spec"]["versions"])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The errors of a CRD with these versions that contain `about`.
    fn errors_about(versions: Vec<Value>, about: &str) -> Vec<String> {
        let names =
            json!({"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"});
        let crd = json!({"metadata": {"name": "things.demo.example.com"},
            "spec": {"group": "demo.example.com", "scope": "Namespaced", "names": names, "versions": versions}});
        let all = errors(&crd, None).into_iter().map(|cause| cause.to_string());
        all.filter(|cause| cause.contains(about)).collect()
    }

    /// The error repeated all versions for each of them: seven gigabytes.
    #[test]
    fn a_duplicate_version_name_is_reported_once() {
        let version = |name: String| json!({"name": name});
        let same = (0..1000).map(|_| version("v1".to_owned())).collect();
        assert_eq!(errors_about(same, "must contain unique version names").len(), 1);
        let others = (0..1000).map(|number| version(format!("v{number}"))).collect();
        assert_eq!(errors_about(others, "must contain unique version names").len(), 0);
    }

    /// Each field of a version was compared with that field of all other versions.
    #[test]
    fn many_versions_are_compared_once() {
        let version = |number: usize| json!({"name": format!("v{number}"), "additionalPrinterColumns": [{}]});
        let mut versions: Vec<Value> = (0..20_000).map(version).collect();
        let missing = |field: &str| format!("{field}.name: Required value");
        let column = "additionalPrinterColumns[0]";
        assert_eq!(errors_about(versions.clone(), ".name: Req"), [missing(&format!("spec.{column}"))]);
        versions[19_999]["additionalPrinterColumns"] = json!([]);
        let all = errors_about(versions, ".name: Req");
        assert_eq!(all.len(), 19_999);
        assert_eq!(all[19_998], missing(&format!("spec.versions[19998].{column}")));
    }
}
