//! Three ways to change a part of an object: JSON patch, merge patch, strategic merge patch.
//!
//! ```text
//! PATCH …/deployments/web   Content-Type: application/strategic-merge-patch+json
//! {"spec": {"template": {"spec": {"containers": [{"name": "web", "image": "nginx:2"}]}}}}
//! ```
//!
//! A merge patch would replace the list of containers; the strategic one finds the container by its name. Which list has
//! which key is known in `shape.rs`. The fourth way, server-side apply, is in `apply.rs`.

use serde_json::{Map, Value};

use super::{kinds::Kind, refusal::Refusal};

const JSON_PATCH: &str = "application/json-patch+json";
const MERGE_PATCH: &str = "application/merge-patch+json";
const STRATEGIC_MERGE_PATCH: &str = "application/strategic-merge-patch+json";
pub(super) const APPLY_PATCH: &str = "application/apply-patch+yaml";

/// Most operations in a JSON patch: apiserver/pkg/endpoints/handlers/patch.go.
const OPERATIONS_MAX: usize = 10_000;

/// A patch that was read, not yet applied.
pub(super) enum Patch {
    Json(Vec<json_patch::PatchOperation>),
    Merge(Value),
    Strategic(Value),
}

impl Patch {
    pub(super) fn parse(kind: &Kind, content_type: &str, body: &[u8]) -> Result<Patch, Refusal> {
        let undecodable =
            |error: serde_json::Error| Refusal::bad_request(format!("error decoding patch: {error}"));
        match content_type {
            JSON_PATCH => {
                let value: Value = serde_json::from_slice(body).map_err(undecodable)?;
                if !value.is_array() {
                    let text = "error decoding patch: json: cannot unmarshal object into Go value of type \
                        []handlers.jsonPatchOp";
                    return Err(Refusal::bad_request(text));
                }
                let operations: Vec<json_patch::PatchOperation> =
                    serde_json::from_value(value).map_err(undecodable)?;
                if operations.len() > OPERATIONS_MAX {
                    let text = format!(
                        "The allowed maximum operations in a JSON patch is {OPERATIONS_MAX}, got {}",
                        operations.len()
                    );
                    return Err(Refusal::too_large_patch(text));
                }
                Ok(Patch::Json(operations))
            }
            MERGE_PATCH => Ok(Patch::Merge(serde_json::from_slice(body).map_err(undecodable)?)),
            STRATEGIC_MERGE_PATCH if !kind.is_custom() => {
                Ok(Patch::Strategic(serde_json::from_slice(body).map_err(undecodable)?))
            }
            _ if kind.is_custom() => {
                Err(Refusal::unsupported_media_type(&[JSON_PATCH, MERGE_PATCH, APPLY_PATCH]))
            }
            _ => Err(Refusal::unsupported_media_type(&[
                JSON_PATCH,
                MERGE_PATCH,
                STRATEGIC_MERGE_PATCH,
                APPLY_PATCH,
            ])),
        }
    }

    /// What the object becomes.
    pub(super) fn apply(&self, object: &mut Value) -> Result<(), Refusal> {
        match self {
            Patch::Json(operations) => {
                json_patch::patch(object, operations).map_err(|_| Refusal::patch_rejected())
            }
            Patch::Merge(patch) => {
                json_patch::merge(object, patch);
                Ok(())
            }
            Patch::Strategic(patch) => {
                merge(object, patch.clone(), "");
                Ok(())
            }
        }
    }
}

/// The body of a server-side apply.
pub(super) fn applied(body: &[u8]) -> Result<Value, Refusal> {
    let value: Value = yaml_serde::from_slice(body).map_err(|error| {
        Refusal::bad_request(format!("error decoding YAML: error converting YAML to JSON: yaml: {error}"))
    })?;
    let what = match value {
        Value::Object(_) => return Ok(value),
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
    };
    Err(Refusal::bad_request(format!(
        "error decoding YAML: error unmarshaling JSON: while decoding JSON: json: cannot unmarshal {what} into Go value of \
        type map[string]interface {{}}"
    )))
}

/// The merge keys of lists of objects: `patchMergeKey` in k8s.io/api.
const MERGE_KEYS: &[(&str, &[&str])] = &[
    ("containers", &["name"]),
    ("initContainers", &["name"]),
    ("ephemeralContainers", &["name"]),
    ("volumes", &["name"]),
    ("volumeMounts", &["mountPath"]),
    ("env", &["name"]),
    ("imagePullSecrets", &["name"]),
    ("conditions", &["type"]),
    ("ownerReferences", &["uid"]),
    ("hostAliases", &["ip"]),
    ("topologySpreadConstraints", &["topologyKey"]),
    ("secrets", &["name"]),
    ("addresses", &["type"]),
    // A port of a container is found by containerPort, that of a Service by port.
    ("ports", &["containerPort", "port"]),
];

/// The lists of plain values that are merged as sets.
const SETS: &[&str] = &["finalizers"];

fn merge(value: &mut Value, patch: Value, field: &str) {
    match patch {
        Value::Object(patch) if patch.get("$patch") == Some(&"replace".into()) => {
            let mut patch = patch;
            patch.remove("$patch");
            *value = patch.into();
        }
        Value::Object(patch) => merge_map(value, patch),
        Value::Array(patch) => merge_list(value, patch, field),
        other => *value = other,
    }
}

fn merge_map(value: &mut Value, patch: Map<String, Value>) {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    let Some(map) = value.as_object_mut() else { return };
    // {"$retainKeys": ["type"]}: of a union, the other members go.
    if let Some(Value::Array(keep)) = patch.get("$retainKeys") {
        map.retain(|name, _| keep.iter().any(|one| one == name));
    }
    for (name, patch) in patch {
        if let Some(list) = name.strip_prefix("$deleteFromPrimitiveList/") {
            let gone = patch.as_array().cloned().unwrap_or_default();
            if let Some(Value::Array(list)) = map.get_mut(list) {
                list.retain(|one| !gone.contains(one));
            }
            continue;
        }
        // The order of list items is only cosmetic, and is left as it is.
        if name.starts_with("$setElementOrder/") || name == "$retainKeys" {
            continue;
        }
        if patch.is_null() {
            map.remove(&name);
            continue;
        }
        let deletes = patch.get("$patch") == Some(&"delete".into());
        if deletes {
            map.remove(&name);
            continue;
        }
        let field = name.clone();
        merge(map.entry(name).or_insert(Value::Null), patch, &field);
    }
}

fn merge_list(value: &mut Value, patch: Vec<Value>, field: &str) {
    let Some(list) = value.as_array_mut() else {
        *value = patch.into_iter().filter(|item| item.get("$patch").is_none()).collect();
        return;
    };
    if SETS.contains(&field) {
        for item in patch {
            if !list.contains(&item) {
                list.push(item);
            }
        }
        return;
    }
    if patch.iter().any(|item| item["$patch"] == "replace") {
        *list = patch.into_iter().filter(|item| item.get("$patch").is_none()).collect();
        return;
    }
    let keys = MERGE_KEYS.iter().find(|(name, _)| *name == field).map(|(_, keys)| *keys);
    let key = keys.and_then(|keys| keys.iter().find(|key| patch.iter().all(|item| !item[**key].is_null())));
    let Some(&key) = key else {
        *list = patch;
        return;
    };
    for mut item in patch {
        let place = list.iter().position(|one| one[key] == item[key] && same_protocol(one, &item));
        let deletes = item.get("$patch") == Some(&"delete".into());
        match place {
            Some(place) if deletes => {
                list.remove(place);
            }
            Some(place) => merge(&mut list[place], item, ""),
            None if deletes => {}
            None => {
                if let Some(item) = item.as_object_mut() {
                    item.retain(|name, _| !name.starts_with('$'));
                }
                list.push(item);
            }
        }
    }
}

/// Port 53 TCP and port 53 UDP are two ports.
fn same_protocol(one: &Value, other: &Value) -> bool {
    let (one, other) = (&one["protocol"], &other["protocol"]);
    one.is_null() || other.is_null() || one == other
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_strategic_patch_finds_list_items_by_their_key() {
        let mut object = json!({"spec": {"containers": [
            {"name": "a", "image": "1", "ports": [{"containerPort": 80}]}, {"name": "b", "image": "2"},
        ], "args": ["x"], "old": 1}});
        let patch = json!({"spec": {"$setElementOrder/containers": [{"name": "a"}], "old": null, "args": ["y"],
            "containers": [{"name": "a", "image": "3", "ports": [{"containerPort": 81}]},
                {"name": "b", "$patch": "delete"}, {"name": "c"}]}});
        merge(&mut object, patch, "");
        let wanted = json!({"spec": {"containers": [
            {"name": "a", "image": "3", "ports": [{"containerPort": 80}, {"containerPort": 81}]}, {"name": "c"},
        ], "args": ["y"]}});
        assert_eq!(object, wanted);
    }
}
