//! Checks the types of the expressions of a ValidatingAdmissionPolicy against the kinds that it names, and writes warnings to its status:
//! pkg/controller/validatingadmissionpolicystatus of Kubernetes.
//!
//! ```text
//! apps/v1, Kind=Deployment: ERROR: <input>:1:22: found no matching overload for '_>_' applied to '(int, string)'
//! ```

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use serde_json::{Value, json};

use crate::{
    controllers::change,
    kinds::{
        Kind, Part,
        field_checks::{each, text},
    },
    schema::{expressions::type_errors, openapi::OBJECT_META},
    storage::{Place, Storage},
};

pub(super) const POLICIES: &str = "validatingadmissionpolicies.admissionregistration.k8s.io";

/// Most kinds that a rule of a policy is checked against: apiserver/pkg/admission/plugin/policy/validating/typechecking.go.
const KINDS_MAX: usize = 10;

pub(super) fn policy(storage: &mut Storage, place: &Place, policy: &Value) {
    let generation = policy["metadata"]["generation"].clone();
    let (spec, status) = (&policy["spec"], &policy["status"]);
    if generation.as_i64() <= status["observedGeneration"].as_i64() {
        return;
    }
    let param = &spec["paramKind"];
    let is_param =
        |kind: &&Arc<Kind>| param["kind"] == kind.kind && param["apiVersion"] == kind.api_version();
    let params = all_kinds(storage).find(is_param).map(|kind| schema(kind));
    let kinds = kinds(storage, spec);
    let schemas: Vec<Value> = kinds.iter().map(|kind| schema(kind)).collect();
    let validations = each(&spec["validations"]).enumerate();
    let (fields, expressions): (Vec<String>, Vec<&str>) = validations
        .flat_map(|(index, validation)| {
            let field = |field: &str| format!("spec.validations[{index}].{field}");
            ["expression", "messageExpression"].map(|name| (field(name), text(&validation[name])))
        })
        .filter(|(_, expression)| !expression.is_empty())
        .unzip();
    let errors = type_errors(&expressions, &spec["variables"], &schemas, params.as_ref());
    let mut warnings = Vec::new();
    for (index, field) in fields.iter().enumerate() {
        let of_kind = kinds.iter().zip(&errors).filter_map(|(kind, errors)| {
            let why = errors[index].as_ref()?;
            Some(format!("{}/{}, Kind={}: {why}\n", kind.group, kind.version, kind.kind))
        });
        let found: Vec<String> = of_kind.collect();
        if !found.is_empty() {
            warnings.push(json!({"fieldRef": field, "warning": found.join("\n")}));
        }
    }
    change(storage, place, Part::Status, |policy| {
        let checked = if warnings.is_empty() { json!({}) } else { json!({"expressionWarnings": warnings}) };
        policy["status"]["observedGeneration"] = generation;
        policy["status"]["typeChecking"] = checked;
    });
}

fn all_kinds(storage: &Storage) -> impl Iterator<Item = &Arc<Kind>> {
    storage.kinds.groups().iter().flat_map(|group| storage.kinds.in_group(group))
}

/// The kinds that the rules of a policy name without a wildcard, by group, version and kind. A rule that names [`KINDS_MAX`] kinds is
/// the last one.
fn kinds(storage: &Storage, spec: &Value) -> Vec<Arc<Kind>> {
    let mut found = BTreeMap::new();
    for rule in each(&spec["matchConstraints"]["resourceRules"]) {
        let names = |field: &str| -> BTreeSet<&str> { each(&rule[field]).map(text).collect() };
        let [groups, versions, resources] = ["apiGroups", "apiVersions", "resources"].map(names);
        if [&groups, &versions].iter().any(|names| names.iter().any(|name| name.contains('*'))) {
            continue;
        }
        let mut named = Vec::new();
        for kind in all_kinds(storage) {
            if versions.contains(&*kind.version) && resources.contains(&*kind.plural) {
                // Without a group, kube-controller-manager takes the resources of all groups.
                let of = BTreeSet::from(["", &*kind.group]);
                named.extend(of.intersection(&groups).map(|group| (*group, kind)));
            }
        }
        named.sort_by_key(|(group, kind)| (*group, &kind.version, &kind.plural));
        named.truncate(KINDS_MAX);
        let count = named.len();
        found.extend(named.into_iter().map(|(_, kind)| {
            ((kind.group.clone(), kind.version.clone(), kind.kind.clone()), Arc::clone(kind))
        }));
        if count == KINDS_MAX {
            break;
        }
    }
    found.into_values().collect()
}

/// The schema of a kind, with the fields that all objects have.
fn schema(kind: &Kind) -> Value {
    let mut schema = kind.schema().clone();
    schema["type"] = "object".into();
    let text = json!({"type": "string"});
    schema["properties"]["apiVersion"] = text.clone();
    schema["properties"]["kind"] = text;
    schema["properties"]["metadata"] = json!({"$ref": format!("#/components/schemas/{OBJECT_META}")});
    schema
}
