//! Decodes and applies JSON patches, merge patches and strategic merge patches.
//!
//! ```text
//! PATCH …/deployments/web   Content-Type: application/strategic-merge-patch+json
//! {"spec": {"template": {"spec": {"containers": [{"name": "web", "image": "nginx:2"}]}}}}
//! ```
//!
//! A merge patch would replace the list of containers. A strategic merge patch finds the container by its name; the
//! schema of a list says which field is its key. The fourth patch type, server-side apply, is in `apply/`.

use std::collections::{HashMap, HashSet};

use ::json_patch::PatchOperation;
use serde_json::{Map, Value};

use crate::{
    apply::{json_patch, typed_value::TypeRef},
    kinds::Kind,
    request::yaml,
    schema::decode::{self, cannot_decode, must_be_map},
    status::{StatusError, invalid_json},
    verbs::write::unregistered,
};

const JSON_PATCH: &str = "application/json-patch+json";
const MERGE_PATCH: &str = "application/merge-patch+json";
const STRATEGIC_MERGE_PATCH: &str = "application/strategic-merge-patch+json";
pub(crate) const APPLY_PATCH: &str = "application/apply-patch+yaml";

/// Maximum number of operations in a JSON patch: apiserver/pkg/endpoints/handlers/patch.go.
const OPERATIONS_MAX: usize = 10_000;

/// A parsed patch.
pub(crate) enum Patch {
    Json(Vec<PatchOperation>),
    Merge(Value),
    Strategic(Value),
}

impl Patch {
    pub(crate) fn parse(kind: &Kind, content_type: &str, body: &[u8]) -> Result<Patch, StatusError> {
        let undecodable = |why: String| StatusError::bad_request(format!("error decoding patch: {why}"));
        let decoded = || -> Result<Value, StatusError> {
            serde_json::from_slice(body).map_err(|error| undecodable(invalid_json(&error)))
        };
        match content_type {
            JSON_PATCH => {
                let operations = match decoded()? {
                    Value::Null => Vec::new(),
                    Value::Array(operations) => operations,
                    other => return Err(undecodable(cannot_decode(&other, "a list"))),
                };
                operations.iter().try_for_each(must_be_map).map_err(undecodable)?;
                let operations = json_patch::decode(operations).map_err(|_| StatusError::patch_rejected())?;
                if operations.len() > OPERATIONS_MAX {
                    let text = format!(
                        "Request entity too large: The allowed maximum operations in a JSON patch is {OPERATIONS_MAX}, got {}",
                        operations.len()
                    );
                    return Err(StatusError::too_large_because(text));
                }
                Ok(Patch::Json(operations))
            }
            MERGE_PATCH => match decoded()? {
                Value::Null => Err(StatusError::bad_request("Invalid JSON Patch")),
                mut patch => {
                    must_be_map(&patch).map_err(undecodable)?;
                    drop_nulls_in_lists(&mut patch);
                    Ok(Patch::Merge(patch))
                }
            },
            STRATEGIC_MERGE_PATCH if !kind.is_custom() => {
                let patch = decoded()?;
                must_be_map(&patch).map_err(undecodable)?;
                decode::check_lists(&patch).map_err(StatusError::bad_request)?;
                Ok(Patch::Strategic(patch))
            }
            _ if kind.is_custom() => {
                Err(StatusError::unsupported_media_type(&[JSON_PATCH, MERGE_PATCH, APPLY_PATCH]))
            }
            _ => Err(StatusError::unsupported_patch()),
        }
    }

    /// Checks that the patched object can be decoded. After a strategic patch, restores `kind` and `apiVersion`.
    pub(crate) fn check_decodes(&self, kind: &Kind, made: &mut Value) -> Result<(), String> {
        if !made.is_object() {
            return Err("the patch leaves no object".to_owned());
        }
        match self {
            Patch::Json(_) | Patch::Merge(_) => {
                for field in ["apiVersion", "kind"].into_iter().filter(|field| !made[*field].is_null()) {
                    if !made[field].is_string() {
                        let why = cannot_decode(&made[field], field);
                        return Err(format!("couldn't get version/kind; json parse error: {why}"));
                    }
                }
                let (a_kind, api_version) = (made["kind"].as_str(), made["apiVersion"].as_str());
                match (a_kind.unwrap_or_default(), api_version.unwrap_or_default()) {
                    ("", _) => return Err("Object 'Kind' is missing".to_owned()),
                    (a_kind, api_version)
                        if !kind.is_custom()
                            && (a_kind != kind.kind || api_version != kind.api_version()) =>
                    {
                        return Err(unregistered(a_kind, api_version));
                    }
                    _ => {}
                }
                kind.check_types(made)
            }
            Patch::Strategic(_) => {
                kind.check_types(made)?;
                // A strategic patch cannot change `kind` or `apiVersion`.
                made["kind"] = kind.kind.as_str().into();
                made["apiVersion"] = kind.api_version().into();
                Ok(())
            }
        }
    }

    /// The error for a patched object that cannot be decoded. It quotes the object or, for a strategic patch, the patch.
    pub(crate) fn undecodable(&self, made: &Value, why: &str) -> StatusError {
        match self {
            Patch::Json(_) | Patch::Merge(_) => StatusError::bad_patch(&made.to_string(), why),
            Patch::Strategic(patch) => StatusError::bad_patch(&format!("strategic patch {patch}"), why),
        }
    }

    /// Applies the patch to the object.
    pub(crate) fn apply(&self, kind: &Kind, object: &mut Value) -> Result<(), StatusError> {
        match self {
            Patch::Json(operations) => {
                json_patch::apply(operations, object).map_err(|_| StatusError::patch_rejected())
            }
            Patch::Merge(patch) => {
                ::json_patch::merge(object, patch);
                Ok(())
            }
            Patch::Strategic(patch) => strategic_merge(object, patch.clone(), TypeRef::of(kind)),
        }
    }
}

/// Removes the fields that are null from the objects in lists, as the Go library does. RFC 7386 keeps them.
fn drop_nulls_in_lists(patch: &mut Value) {
    match patch {
        Value::Object(map) => map.values_mut().for_each(drop_nulls_in_lists),
        Value::Array(items) => items.iter_mut().for_each(drop_nulls),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(map) => map.retain(|_, value| {
            drop_nulls(value);
            !value.is_null()
        }),
        Value::Array(items) => items.iter_mut().for_each(drop_nulls),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Decodes the body of a server-side apply.
pub(crate) fn decode_applied(body: &[u8]) -> Result<Value, StatusError> {
    let refuse = |why: String| StatusError::bad_request(format!("error decoding YAML: {why}"));
    let value = yaml(body).map_err(|why| refuse(format!("yaml: {why}")))?;
    if value.is_null() {
        return Ok(Value::Object(Map::new()));
    }
    must_be_map(&value).map_err(refuse)?;
    Ok(value)
}

/// Applies a strategic merge patch: merges maps by field, and lists by the key that their schema names, as
/// `StrategicMergePatch` in k8s.io/apimachinery does.
fn strategic_merge(object: &mut Value, patch: Value, type_ref: TypeRef<'_>) -> Result<(), StatusError> {
    match (object, patch) {
        (Value::Object(object), Value::Object(patch)) => merge_map(object, patch, type_ref),
        // Never reached: an object is a map, and `parse` accepts only maps.
        (_, _) => Ok(()),
    }
}

fn merge_map(
    map: &mut Map<String, Value>,
    mut patch: Map<String, Value>,
    type_ref: TypeRef<'_>,
) -> Result<(), StatusError> {
    match patch.remove("$patch") {
        None => {}
        Some(how) if how == "replace" => {
            *map = patch;
            return Ok(());
        }
        Some(how) if how == "delete" => {
            map.clear();
            return Ok(());
        }
        Some(how) => {
            patch.insert("$patch".to_owned(), how);
            return Err(unknown_directive(&patch.into()));
        }
    }
    retain_keys(map, &mut patch)?;
    order_lists(map, &mut patch, type_ref)?;
    for (name, patch) in patch {
        let list = name.strip_prefix("$deleteFromPrimitiveList/");
        let name = list.unwrap_or(&name);
        match (map.get_mut(name), patch) {
            (_, Value::Null) => {
                map.remove(name);
            }
            (Some(Value::Array(live)), Value::Array(gone)) if list.is_some() => {
                let gone = places(&gone, None);
                live.retain(|one| !gone.contains_key(&id(one, None)));
            }
            (_, _) if list.is_some() => {}
            (Some(Value::Object(live)), Value::Object(patch)) if type_ref.is_replaced(name) => {
                *live = patch;
            }
            (Some(Value::Object(live)), Value::Object(patch)) => {
                merge_map(live, patch, type_ref.field(name))?
            }
            (Some(Value::Array(live)), Value::Array(patch)) => {
                merge_list(live, patch, None, type_ref.field(name))?;
            }
            (_, patch) => {
                map.remove(name);
                map.extend(taken(patch).map(|new| (name.to_owned(), new)));
            }
        }
    }
    Ok(())
}

/// The value of a new field: the patch without fields that are null, and without maps that have a `$patch`.
fn taken(patch: Value) -> Option<Value> {
    match patch {
        Value::Object(map) if map.contains_key("$patch") => None,
        Value::Object(map) => {
            let fields = map.into_iter().filter(|(_, value)| !value.is_null());
            Some(fields.filter_map(|(name, value)| Some((name, taken(value)?))).collect())
        }
        Value::Array(items) => Some(items.into_iter().filter_map(taken).collect()),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Some(patch),
    }
}

/// `{"$retainKeys": ["type"]}` names the fields to keep. All others are removed: the other members of a union.
fn retain_keys(map: &mut Map<String, Value>, patch: &mut Map<String, Value>) -> Result<(), StatusError> {
    let Some(keep) = patch.remove("$retainKeys") else { return Ok(()) };
    let keep: Option<HashSet<&str>> =
        keep.as_array().map(|keep| keep.iter().filter_map(Value::as_str).collect());
    let may_be = |keep: &HashSet<&str>, name: &str, value: &Value| {
        value.is_null()
            || ["$setElementOrder/", "$deleteFromPrimitiveList/"].iter().any(|one| name.starts_with(one))
            || keep.contains(name)
    };
    match keep {
        Some(keep) if patch.iter().all(|(name, value)| may_be(&keep, name, value)) => {
            map.retain(|name, _| keep.contains(name.as_str()));
            Ok(())
        }
        Some(_) | None => Err(StatusError::bad_request("invalid patch format of retainKeys")),
    }
}

/// `{"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}]}`: merges the list in this order.
fn order_lists(
    map: &mut Map<String, Value>,
    patch: &mut Map<String, Value>,
    type_ref: TypeRef<'_>,
) -> Result<(), StatusError> {
    let lists = patch.keys().filter_map(|name| name.strip_prefix("$setElementOrder/"));
    for name in lists.map(str::to_owned).collect::<Vec<_>>() {
        let order = patch.remove(&format!("$setElementOrder/{name}"));
        let (Some(Value::Array(order)), false) = (order, patch.get(&name).is_some_and(|new| !new.is_array()))
        else {
            continue;
        };
        let type_ref = type_ref.field(&name);
        let new = match patch.remove(&name) {
            Some(Value::Array(new)) => new,
            Some(_) | None => Vec::new(),
        };
        check_order(&new, &order, type_ref.merge_key())?;
        match map.get_mut(&name) {
            Some(Value::Array(live)) => merge_list(live, new, Some(&order), type_ref)?,
            Some(_) | None if new.is_empty() => {}
            Some(_) | None => {
                let (mut live, new) = (Vec::new(), new.into_iter().filter_map(taken).collect());
                merge_list(&mut live, new, Some(&order), type_ref)?;
                map.insert(name, live.into());
            }
        }
    }
    Ok(())
}

/// Checks that the items of the patch occur in `$setElementOrder`, in the same order.
fn check_order(patch: &[Value], order: &[Value], key: Option<&str>) -> Result<(), StatusError> {
    if order.is_empty() {
        return Ok(());
    }
    let mut wanted = order.iter();
    for item in patch.iter().filter(|item| item.get("$patch").is_none()) {
        has_key(item, key)?;
        let item = id(item, key);
        if !wanted.any(|one| id(one, key) == item) {
            return Err(StatusError::internal("The order in patch list doesn't match $setElementOrder list"));
        }
    }
    Ok(())
}

/// The error for an unknown `$patch` directive, which is neither `replace` nor `delete`.
fn unknown_directive(patch: &Value) -> StatusError {
    let name = patch["$patch"].as_str().unwrap_or("not a string");
    StatusError::internal(format!("unknown patch type: {name}"))
}

/// Merges a list: an item matches by its merge key, or by its value if there is no key. Without `$setElementOrder`, the
/// items are in the order of the patch.
fn merge_list(
    live: &mut Vec<Value>,
    mut patch: Vec<Value>,
    order: Option<&[Value]>,
    type_ref: TypeRef<'_>,
) -> Result<(), StatusError> {
    if !type_ref.is_merged() {
        *live = patch;
        return Ok(());
    }
    let key = type_ref.merge_key();
    let is_map = |item: &Value| item.is_object();
    if live.iter().chain(&patch).any(is_map) && !live.iter().chain(&patch).all(is_map) {
        return Err(StatusError::internal("list element types are not identical"));
    }
    let count = live.len();
    let gone = deleted(&patch, key)?;
    live.retain(|item| !gone.contains(&id(item, key)));
    let replaces = patch.iter().any(|item| item.get("$patch") == Some(&"replace".into()));
    patch.retain(|item| item.get("$patch").is_none());
    if replaces {
        *live = std::mem::take(&mut patch);
    }
    patch.iter().chain(&*live).try_for_each(|item| has_key(item, key))?;
    let wanted = places(order.unwrap_or(&patch), key);
    let mut before = places(live, key);
    let mut here = before.clone();
    for item in patch {
        let id = id(&item, key);
        match (here.get(&id).and_then(|place| live.get_mut(*place)), item) {
            (Some(Value::Object(live)), Value::Object(item)) => merge_map(live, item, type_ref.item())?,
            (Some(_), _) => {}
            // A new item keeps its nulls and directives: kube-apiserver does not process them.
            (None, item) => {
                here.insert(id, live.len());
                live.push(item);
            }
        }
    }
    if order.is_some() {
        // In kube-apiserver, a new item takes the place of a deleted one, and is sorted as if it had been there before.
        here.retain(|_, place| *place < count);
        before = here;
    }
    *live = in_order(std::mem::take(live), &wanted, &before, key);
    Ok(())
}

/// The ids of the items that `{"$patch": "delete", "port": 53}` deletes. All matching items go, before the merge.
fn deleted(patch: &[Value], key: Option<&str>) -> Result<HashSet<String>, StatusError> {
    let mut gone = HashSet::new();
    for item in patch.iter().filter(|_| key.is_some()) {
        match item.get("$patch") {
            None => {}
            Some(how) if how == "replace" => {}
            Some(how) if how == "delete" => {
                has_key(item, key)?;
                gone.insert(id(item, key));
            }
            Some(how) if how == "merge" => {
                return Err(StatusError::internal("merging lists cannot yet be specified in the patch"));
            }
            Some(_) => return Err(unknown_directive(item)),
        }
    }
    Ok(gone)
}

fn has_key(item: &Value, key: Option<&str>) -> Result<(), StatusError> {
    match key {
        Some(key) if item.get(key).is_none() => {
            Err(StatusError::internal(format!("map does not contain declared merge key: {key}")))
        }
        Some(_) | None => Ok(()),
    }
}

/// The identity of an item: the value of its merge key, or the whole item.
fn id(item: &Value, key: Option<&str>) -> String {
    key.map_or(item, |key| &item[key]).to_string()
}

/// The first index of each item, by its id.
type Places = HashMap<String, usize>;

fn places(list: &[Value], key: Option<&str>) -> Places {
    list.iter().enumerate().rev().map(|(at, item)| (id(item, key), at)).collect()
}

/// Sorts a merged list. Items that the order names come in that order. All other items are inserted between them, each
/// before the items that followed it in the old list.
fn in_order(merged: Vec<Value>, order: &Places, before: &Places, key: Option<&str>) -> Vec<Value> {
    let (mut wanted, mut others) = (Vec::new(), Vec::new());
    for item in merged {
        let id = id(&item, key);
        match (order.get(&id), before.get(&id)) {
            (Some(place), before) => wanted.push((place, before, item)),
            (None, before) => others.push((before, item)),
        }
    }
    wanted.sort_by_key(|(place, ..)| *place);
    // With an empty order, new items have no old index: they go to the end.
    others.sort_by_key(|(before, _)| before.copied().unwrap_or(usize::MAX));
    let (mut wanted, mut others) = (wanted.into_iter().peekable(), others.into_iter().peekable());
    let mut sorted = Vec::new();
    loop {
        let other_first = match (others.peek(), wanted.peek()) {
            (None, None) => return sorted,
            (Some((Some(other), _)), Some((_, Some(wanted), _))) => other < wanted,
            (Some(_), Some(_)) => false,
            (other, _) => other.is_some(),
        };
        sorted.extend(match other_first {
            true => others.next().map(|(_, item)| item),
            false => wanted.next().map(|(.., item)| item),
        });
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::kinds::Kinds;

    #[test]
    fn a_strategic_patch_finds_list_items_by_their_key() {
        let mut object = json!({"spec": {"containers": [
            {"name": "a", "image": "1", "ports": [{"containerPort": 80}]}, {"name": "b", "image": "2"},
        ], "args": ["x"], "old": 1}});
        let patch = json!({"spec": {"$setElementOrder/containers": [{"name": "a"}, {"name": "c"}], "old": null, "args": ["y"],
            "containers": [{"name": "a", "image": "3", "ports": [{"containerPort": 81}]},
                {"name": "b", "$patch": "delete"}, {"name": "c"}]}});
        strategic_merge(&mut object, patch, TypeRef::of(&Kinds::new().built_in("", "pods")))
            .expect("a good patch");
        let wanted = json!({"spec": {"containers": [
            {"name": "a", "image": "3", "ports": [{"containerPort": 81}, {"containerPort": 80}]}, {"name": "c"},
        ], "args": ["y"]}});
        assert_eq!(object, wanted);
    }

    /// New items went behind all old ones, and the old ones were never reordered.
    #[test]
    fn a_list_takes_the_order_that_is_given_or_that_of_the_patch() {
        let order = |patch: Value| -> Vec<String> {
            let mut object = json!({"spec": {"containers": [{"name": "a"}, {"name": "b"}, {"name": "c"}]}});
            let pods = Kinds::new().built_in("", "pods");
            strategic_merge(&mut object, json!({"spec": patch}), TypeRef::of(&pods)).expect("a good patch");
            let items = object["spec"]["containers"].as_array().expect("a list").iter();
            items.map(|item| item["name"].as_str().unwrap_or_default().to_owned()).collect()
        };
        let [a, b, c, new] = ["a", "b", "c", "new"].map(|name| json!({"name": name}));
        let gone = json!({"name": "b", "$patch": "delete"});
        for (patch, wanted) in [
            (json!({"containers": [new]}), ["new", "a", "b", "c"].as_slice()),
            (json!({"containers": [c, a]}), &["b", "c", "a"]),
            (json!({"containers": [c, new, b]}), &["a", "c", "new", "b"]),
            (json!({"containers": [new, gone]}), &["new", "a", "c"]),
            (json!({"$setElementOrder/containers": [c, a]}), &["b", "c", "a"]),
            (json!({"$setElementOrder/containers": [new], "containers": [new]}), &["new", "a", "b", "c"]),
            (json!({"$setElementOrder/containers": [new], "containers": [new, gone]}), &["a", "c", "new"]),
            (json!({"$setElementOrder/containers": [], "containers": [new]}), &["a", "b", "c", "new"]),
        ] {
            assert_eq!(order(patch.clone()), wanted, "{patch}");
        }
    }

    fn patched(mut object: Value, operations: Vec<Value>) -> Result<Value, StatusError> {
        let pods = Kinds::new().built_in("", "pods");
        let body = Value::from(operations).to_string();
        Patch::parse(&pods, JSON_PATCH, body.as_bytes())?.apply(&pods, &mut object)?;
        Ok(object)
    }

    /// Twelve such operations overflowed the stack and ended the process.
    #[test]
    fn nested_copies_are_refused_above_the_depth_limit() {
        let copies = |count: usize| {
            let path = |n| format!("/spec{}", "/a".repeat((1_usize << n) + 1));
            let copy = |n| json!({"op": "copy", "from": "/spec/a", "path": path(n)});
            patched(json!({"spec": {"a": {}}}), (0..count).map(copy).collect())
        };
        assert!(copies(6).is_ok());
        for count in [7, 9, 12] {
            assert_eq!(copies(count).map_err(|error| error.code), Err(422), "{count}");
        }
    }

    /// Only the first of several equal items was deleted, and an unknown directive was ignored.
    #[test]
    fn patch_directives_work_as_in_kube_apiserver() {
        let services = Kinds::new().built_in("", "services");
        let patched = |patch: Value| {
            let mut object = json!({"spec": {"ports": [
                {"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}, {"port": 80}]}});
            strategic_merge(&mut object, patch, TypeRef::of(&services))
                .map_err(|error| error.message().to_owned())?;
            Ok::<Value, String>(object["spec"].take())
        };
        let ports = |ports: Value| patched(json!({"spec": {"ports": ports}}));
        let gone = json!({"port": 53, "$patch": "delete"});
        assert_eq!(ports(json!([gone])), Ok(json!({"ports": [{"port": 80}]})));
        let new = json!({"port": 53, "name": "dns"});
        assert_eq!(ports(json!([new, gone])), Ok(json!({"ports": [new, {"port": 80}]})));
        assert_eq!(ports(json!([new, {"$patch": "replace"}])), Ok(json!({"ports": [new]})));
        // In a new field, directives are not checked.
        assert!(patched(json!({"metadata": {"labels": {"$patch": "nope"}}})).is_ok());
        for (patch, why) in [
            (json!({"spec": {"$patch": "nope"}}), "unknown patch type: nope"),
            (json!({"spec": {"$patch": "merge"}}), "unknown patch type: merge"),
            (json!({"$patch": "nope"}), "unknown patch type: nope"),
        ] {
            assert_eq!(patched(patch), Err(why.to_owned()));
        }
        for (item, why) in [
            (json!({"port": 81, "$patch": "nope"}), "unknown patch type: nope"),
            (json!({"port": 80, "$patch": "merge"}), "merging lists cannot yet be specified in the patch"),
            (json!({"$patch": "delete"}), "map does not contain declared merge key: port"),
        ] {
            assert_eq!(ports(json!([item])), Err(why.to_owned()));
        }
    }

    /// Each item was searched for in the whole list, which took minutes.
    #[test]
    fn long_lists_are_merged_as_fast_as_they_are_read() {
        let items = |range: std::ops::Range<usize>| -> Vec<Value> {
            range.map(|n| json!({"name": format!("n{n}")})).collect()
        };
        const COUNT: usize = 20_000;
        let backwards = |range| -> Vec<Value> { items(range).into_iter().rev().collect() };
        let order = backwards(0..2 * COUNT);
        let mut object = json!({"spec": {"containers": items(0..COUNT)}, "metadata": {"finalizers": []}});
        let finalizers: Vec<String> = (0..COUNT).map(|n| format!("a/{n}")).collect();
        let patch = json!({
            "spec": {"$setElementOrder/containers": order, "containers": backwards(COUNT..2 * COUNT)},
            "metadata": {"finalizers": finalizers},
        });
        strategic_merge(&mut object, patch, TypeRef::of(&Kinds::new().built_in("", "pods")))
            .expect("a good patch");
        assert_eq!(object["spec"]["containers"], Value::from(order));
        assert_eq!(object["metadata"]["finalizers"], json!(finalizers));
    }

    /// Each copy of the whole object doubled its size.
    #[test]
    fn the_copies_of_a_patch_are_small_together() {
        let copies = |count| {
            let copy = |n| json!({"op": "copy", "from": "/data", "path": format!("/data/a{n}")});
            let data = json!({"data": {"k": "x".repeat(100_000)}});
            patched(data, (0..count).map(copy).collect())
        };
        assert!(copies(4).is_ok());
        assert_eq!(copies(6).map_err(|error| error.code), Err(422));
    }

    /// The list was formatted once for each item of the order: a terabyte of text.
    #[test]
    fn a_large_item_is_found_at_the_end_of_a_long_order() {
        let vast = Value::from("v".repeat(1_400_000));
        let mut order = vec![Value::from(0); 700_000];
        order.push(vast.clone());
        assert!(check_order(&[vast], &order, None).is_ok());
    }
}
