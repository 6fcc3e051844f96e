//! CustomResourceDefinitions: from an object in the storage to kinds that are served.
//!
//! ```yaml
//! spec: {group: demo.example.com, scope: Namespaced, names: {plural: widgets, kind: Widget},
//!        versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {…}}, subresources: {status: {}}}]}
//! ```
//!
//! Conversion is `None` only: all versions share one stored object, of which each version shows the fields that it knows.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{
    apply::{self, Manager},
    clock::Clock,
    kinds::{Kind, Rules, ScalePaths, group_version, resource_name},
    refusal::Cause,
    schema::Schema,
    storage::{Place, Storage},
};

/// What is special about a kind that a CRD defines.
#[derive(Debug)]
pub(super) struct Custom {
    /// Name of the CRD.
    pub(super) definition: String,
    pub(super) schema: Arc<Schema>,
    storage_schema: Arc<Schema>,
    storage_api_version: String,
    pub(super) columns: Vec<Column>,
}

/// One of `additionalPrinterColumns`.
#[derive(Clone, Debug)]
pub(super) struct Column {
    pub(super) name: String,
    pub(super) kind: String,
    pub(super) format: String,
    pub(super) description: String,
    pub(super) priority: i64,
    path: String,
}

impl Custom {
    pub(super) fn cells(&self, object: &Value, clock: &Clock) -> Vec<Value> {
        let mut cells = vec![object["metadata"]["name"].clone()];
        for column in &self.columns {
            let value = at_path(object, &column.path).cloned().unwrap_or_default();
            // A date is sent as an age, which kubectl prints as it is.
            let is_date = column.kind == "date" && !value.is_null();
            cells.push(if is_date { clock.age(&value).into() } else { value });
        }
        cells
    }

    /// The form in which an object is stored: that of the storage version.
    pub(super) fn to_storage(&self, object: &mut Value) {
        if object["apiVersion"] != self.storage_api_version {
            object["apiVersion"] = self.storage_api_version.as_str().into();
            self.refresh(object);
        }
    }

    /// What the real server does to each object that it reads from etcd.
    fn refresh(&self, object: &mut Value) {
        self.storage_schema.prune(object);
        self.storage_schema.set_defaults(object);
    }
}

/// A simple JSON path: `.status.conditions[?(@.type=="Ready")].status`, `.spec.ports[0].port`, `.metadata.labels.a\.b`.
/// Filters compare for equality; that is all that printer columns use.
fn at_path<'a>(object: &'a Value, path: &str) -> Option<&'a Value> {
    let mut value = object;
    let mut rest = path.trim_start_matches('$');
    while !rest.is_empty() {
        if let Some(inside) = rest.strip_prefix('[') {
            let (inside, after) = inside.split_once(']')?;
            rest = after;
            if let Some(filter) = inside.strip_prefix("?(@.").and_then(|text| text.strip_suffix(')')) {
                let (field, wanted) = filter.split_once("==")?;
                let wanted = wanted.trim().trim_matches(['"', '\'']);
                let same = |value: &Value| match value.as_str() {
                    Some(text) => text == wanted,
                    None => value.to_string().as_str() == wanted,
                };
                let found = value.as_array()?.iter().find(|item| same(&item[field.trim()]));
                value = found?;
            } else if let Ok(index) = inside.parse::<usize>() {
                value = value.get(index)?;
            } else {
                value = value.get(inside.trim_matches(['"', '\'']))?;
            }
            continue;
        }
        rest = rest.strip_prefix('.').unwrap_or(rest);
        let mut name = String::new();
        let mut end = rest.len();
        let mut escaped = false;
        for (at, c) in rest.char_indices() {
            match c {
                '\\' if !escaped => escaped = true,
                '.' | '[' if !escaped => {
                    end = at;
                    break;
                }
                c => {
                    name.push(c);
                    escaped = false;
                }
            }
        }
        rest = &rest[end..];
        value = value.get(&name)?;
    }
    Some(value)
}

/// `.spec.replicas` as the JSON pointer `/spec/replicas`.
fn pointer(path: &Value) -> String {
    path.as_str().unwrap_or_default().replace('.', "/")
}

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
        crd["status"] =
            json!({"acceptedNames": {"kind": "", "plural": ""}, "conditions": [], "storedVersions": []});
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
    let mut causes = Vec::new();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (group, plural) = (text(&spec["group"]), text(&spec["names"]["plural"]));
    let name = format!("{plural}.{group}");
    if crd["metadata"]["name"] != name {
        let text = "must be spec.names.plural+\".\"+spec.group";
        causes.push(Cause::invalid("metadata.name", &crd["metadata"]["name"], text));
    }
    for (field, value) in [
        ("spec.group", &spec["group"]),
        ("spec.scope", &spec["scope"]),
        ("spec.names.plural", &spec["names"]["plural"]),
        ("spec.names.kind", &spec["names"]["kind"]),
    ] {
        if text(value).is_empty() {
            causes.push(Cause::required(field, ""));
        }
    }
    if !matches!(text(&spec["scope"]).as_str(), "" | "Namespaced" | "Cluster") {
        let scopes = ["Cluster".to_owned(), "Namespaced".to_owned()];
        causes.push(Cause::not_supported("spec.scope", &spec["scope"], &scopes));
    }
    if spec["conversion"]["strategy"] != "None" {
        let text = "the embedded API server of listwatch converts with strategy None only";
        causes.push(Cause::invalid("spec.conversion.strategy", &spec["conversion"]["strategy"], text));
    }
    if versions(crd).filter(|version| version["storage"] == true).count() != 1 {
        let text = "must have exactly one version marked as storage version";
        causes.push(Cause::invalid("spec.versions", &spec["versions"], text));
    }
    for (index, version) in versions(crd).enumerate() {
        let field = format!("spec.versions[{index}].schema.openAPIV3Schema");
        let schema = &version["schema"]["openAPIV3Schema"];
        if !schema.is_object() {
            causes.push(Cause::required(field, "schemas are required"));
            continue;
        }
        if schema["type"] != "object" {
            causes.push(Cause::required(format!("{field}.type"), "must not be empty at the root"));
        }
        if let Err(why) = Schema::compile(schema) {
            causes.push(Cause::invalid(field, &Value::Null, &why));
        }
    }
    if let Some(before) = before {
        for field in ["group", "scope"] {
            if before["spec"][field] != spec[field] {
                causes.push(Cause::invalid(format!("spec.{field}"), &spec[field], "field is immutable"));
            }
        }
    }
    causes
}

fn versions(crd: &Value) -> impl Iterator<Item = &Value> {
    crd["spec"]["versions"].as_array().into_iter().flatten()
}

/// The kinds that a valid CRD serves, one for each version.
fn kinds(crd: &Value) -> Vec<Kind> {
    let (spec, names) = (&crd["spec"], &crd["spec"]["names"]);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let list = |value: &Value| -> Vec<String> { value.as_array().into_iter().flatten().map(text).collect() };
    let compiled =
        |version: &Value| Schema::compile(&version["schema"]["openAPIV3Schema"]).ok().map(Arc::new);
    let Some(storage) = versions(crd).find(|version| version["storage"] == true) else { return Vec::new() };
    let Some(storage_schema) = compiled(storage) else { return Vec::new() };
    let storage_api_version = group_version(&text(&spec["group"]), &text(&storage["name"]));
    let mut kinds = Vec::new();
    for version in versions(crd).filter(|version| version["served"] == true) {
        let Some(schema) = compiled(version) else { continue };
        let scale = &version["subresources"]["scale"];
        let selectable = version["selectableFields"].as_array().into_iter().flatten();
        let custom = Custom {
            definition: text(&crd["metadata"]["name"]),
            schema,
            storage_schema: Arc::clone(&storage_schema),
            storage_api_version: storage_api_version.clone(),
            columns: columns(version),
        };
        kinds.push(Kind {
            group: text(&spec["group"]),
            version: text(&version["name"]),
            plural: text(&names["plural"]),
            singular: text(&names["singular"]),
            kind: text(&names["kind"]),
            list_kind: text(&names["listKind"]),
            short_names: list(&names["shortNames"]),
            categories: list(&names["categories"]),
            namespaced: spec["scope"] == "Namespaced",
            has_status: version["subresources"]["status"].is_object(),
            scale: scale.is_object().then(|| ScalePaths {
                spec: pointer(&scale["specReplicasPath"]),
                status: pointer(&scale["statusReplicasPath"]),
                selector: scale["labelSelectorPath"]
                    .is_string()
                    .then(|| pointer(&scale["labelSelectorPath"])),
            }),
            fields: selectable
                .map(|field| text(&field["jsonPath"]).trim_start_matches('.').to_owned())
                .collect(),
            rules: Rules::Custom(Box::new(custom)),
        });
    }
    kinds
}

fn columns(version: &Value) -> Vec<Column> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut columns = Vec::new();
    for column in version["additionalPrinterColumns"].as_array().into_iter().flatten() {
        let path = text(&column["jsonPath"]);
        let description = match column["description"].as_str() {
            Some(description) => description.to_owned(),
            None => format!("Custom resource definition column (in JSONPath format): {path}"),
        };
        columns.push(Column {
            name: text(&column["name"]),
            kind: text(&column["type"]),
            format: text(&column["format"]),
            description,
            priority: column["priority"].as_i64().unwrap_or(0),
            path,
        });
    }
    if columns.is_empty() {
        columns.push(Column {
            name: "Age".to_owned(),
            kind: "date".to_owned(),
            format: String::new(),
            description:
                "CreationTimestamp is a timestamp representing the server time when this object was created."
                    .to_owned(),
            priority: 0,
            path: ".metadata.creationTimestamp".to_owned(),
        });
    }
    columns
}

/// Serve what a CRD that was just written says, and note so in its status.
pub(super) fn written(storage: &mut Storage, place: &Place, before: Option<&Value>) {
    let Some(crd) = storage.get(place).cloned() else {
        return removed(storage, before.unwrap_or(&Value::Null));
    };
    if before.is_some_and(|before| before["spec"] == crd["spec"]) {
        return;
    }
    let (group, plural) = names(&crd);
    let kinds = kinds(&crd);
    let collection = resource_name(&plural, &group);
    let refresh = kinds.iter().find_map(|kind| match &kind.rules {
        Rules::Custom(custom) => {
            Some((Arc::clone(&custom.storage_schema), custom.storage_api_version.clone()))
        }
        Rules::BuiltIn(_) => None,
    });
    storage.add_collection(&collection);
    // Watches end and the past is forgotten: the real server makes its watch cache anew.
    storage.forget_history_of(&collection);
    if before.is_some()
        && let Some((schema, api_version)) = refresh
    {
        storage.rewrite(&collection, |object| {
            object["apiVersion"] = api_version.as_str().into();
            schema.prune(object);
            schema.set_defaults(object);
        });
    }
    storage.kinds.replace_custom(&group, &plural, kinds);
    establish(storage, place, &crd);
}

fn names(crd: &Value) -> (String, String) {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    (text(&crd["spec"]["group"]), text(&crd["spec"]["names"]["plural"]))
}

/// The conditions that `kubectl wait --for=condition=Established crd/…` waits for.
fn establish(storage: &mut Storage, place: &Place, crd: &Value) {
    let mut crd = crd.clone();
    let now = storage.clock.time();
    let names = crd["spec"]["names"].clone();
    crd["status"]["acceptedNames"] = names;
    let mut conditions: Vec<Value> = crd["status"]["conditions"].as_array().cloned().unwrap_or_default();
    for (kind, reason, message) in [
        ("NamesAccepted", "NoConflicts", "no conflicts found"),
        ("Established", "InitialNamesAccepted", "the initial names have been accepted"),
    ] {
        if !conditions.iter().any(|condition| condition["type"] == kind) {
            conditions.push(json!({"type": kind, "status": "True", "lastTransitionTime": now,
                "reason": reason, "message": message}));
        }
    }
    crd["status"]["conditions"] = conditions.into();
    let Some(stored) = storage.get(place).cloned().filter(|stored| **stored != crd) else { return };
    let kind = storage.kinds.built_in("apiextensions.k8s.io", "customresourcedefinitions");
    let server = Manager { name: "kube-apiserver".to_owned(), applies: false, subresource: "status" };
    apply::track(&kind, Some(&stored), &mut crd, Value::Null, &server, &now);
    storage.put(place, crd);
}

/// The condition of a CRD whose instances are being deleted.
pub(super) fn mark_terminating(crd: &mut Value, now: &str) {
    let condition = json!({"type": "Terminating", "status": "True", "reason": "InstanceDeletionPending",
        "message": "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon",
        "lastTransitionTime": now});
    if let Some(conditions) = crd["status"]["conditions"].as_array_mut() {
        conditions.push(condition);
    }
}

fn removed(storage: &mut Storage, crd: &Value) {
    let (group, plural) = names(crd);
    storage.kinds.replace_custom(&group, &plural, Vec::new());
    storage.close_collection(&resource_name(&plural, &group));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printer_columns_find_their_value() {
        let object = json!({
            "metadata": {"labels": {"a.b/c": "label"}},
            "spec": {"ports": [{"port": 80}]},
            "status": {"conditions": [{"type": "Stalled", "status": "False"}, {"type": "Ready", "status": "True"}]},
        });
        let at = |path| at_path(&object, path).cloned();
        assert_eq!(at(".spec.ports[0].port"), Some(json!(80)));
        assert_eq!(at(r#".status.conditions[?(@.type=="Ready")].status"#), Some(json!("True")));
        assert_eq!(at(r".metadata.labels.a\.b/c"), Some(json!("label")));
        assert_eq!(at(".status.phase"), None);
    }
}
