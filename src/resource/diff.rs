//! What must be written so that a live object is as it is wanted.
//!
//! Our types name what is ours, and all of that is compared: what `desired` has not is removed from the live object. Of
//! three fields only our items are ours, and others stay: `labels` by key, `containers` by name, `ownerReferences` by
//! uid. Every other list and map is ours whole: a list that is merged can never lose an item that somebody added
//! (server-side apply leaves such a port in place and then fails on its duplicate name, for ever).

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::Resource;

/// [`json_patch()`] for two objects of a kind.
///
/// What a slim type leaves out is on neither side, and so never differs.
#[must_use]
pub fn between<K: Resource + Serialize>(live: &K, desired: &K) -> Vec<Value> {
    let value =
        |object| serde_json::to_value(object).expect("our types have string keys and no failing impls");
    if live.is_like(desired) {
        debug_assert_eq!(json_patch(&value(live), &value(desired)), Vec::<Value>::new());
        return Vec::new();
    }
    json_patch(&value(live), &value(desired))
}

/// The operations of a JSON patch ([RFC 6902](https://www.rfc-editor.org/rfc/rfc6902)) that make `live` like `desired`.
/// None where it is.
#[must_use]
pub fn json_patch(live: &Value, desired: &Value) -> Vec<Value> {
    let mut operations = Vec::new();
    compare(live, desired, &mut String::new(), &mut operations);
    operations
}

fn compare(live: &Value, desired: &Value, path: &mut String, operations: &mut Vec<Value>) {
    match (live, desired) {
        _ if live == desired => {}
        (Value::Object(live), Value::Object(desired)) => {
            set_wanted(live, desired, path, operations);
            remove_unwanted(live, desired, path, operations);
        }
        _ => operations.push(json!({"op": "replace", "path": &*path, "value": desired})),
    }
}

fn set_wanted(
    live: &Map<String, Value>,
    desired: &Map<String, Value>,
    path: &mut String,
    operations: &mut Vec<Value>,
) {
    for (field, wanted) in desired {
        let length = push(path, field);
        match (&**field, live.get(field), wanted) {
            (_, None, _) => operations.push(json!({"op": "add", "path": &*path, "value": wanted})),
            ("labels", Some(Value::Object(labels)), Value::Object(wanted)) => {
                set_wanted(labels, wanted, path, operations);
            }
            ("containers", Some(Value::Array(items)), Value::Array(wanted)) => {
                set_wanted_items(items, wanted, &["name"], path, operations);
            }
            // One owner can be named several times; one of them is the controller.
            ("ownerReferences", Some(Value::Array(items)), Value::Array(wanted)) => {
                set_wanted_items(items, wanted, &["uid", "controller"], path, operations);
            }
            (_, Some(value), _) => compare(value, wanted, path, operations),
        }
        path.truncate(length);
    }
}

/// Items that we do not want are somebody else's, and stay.
fn set_wanted_items(
    live: &[Value],
    desired: &[Value],
    keys: &[&str],
    path: &mut String,
    operations: &mut Vec<Value>,
) {
    for wanted in desired {
        let is_it = |item: &Value| keys.iter().all(|key| item[key] == wanted[key]);
        let Some(index) = live.iter().position(is_it) else {
            operations.push(json!({"op": "add", "path": format!("{path}/-"), "value": wanted}));
            continue;
        };
        let length = push(path, &index.to_string());
        compare(&live[index], wanted, path, operations);
        path.truncate(length);
    }
}

/// The fields of `/metadata` that the API server fills in, and finalizers, which belong to their authors.
pub(crate) const NOT_OURS: [&str; 5] =
    ["uid", "resourceVersion", "generation", "deletionTimestamp", "finalizers"];

fn remove_unwanted(
    live: &Map<String, Value>,
    desired: &Map<String, Value>,
    path: &mut String,
    operations: &mut Vec<Value>,
) {
    for (field, value) in live {
        let is_not_ours = path == "/metadata" && NOT_OURS.contains(&&**field);
        if desired.contains_key(field) || is_not_ours {
            continue;
        }
        let length = push(path, field);
        match value {
            // Not as a whole: it may have fields that our type does not name.
            Value::Object(fields) => remove_unwanted(fields, &Map::new(), path, operations),
            _ => operations.push(json!({"op": "remove", "path": &*path})),
        }
        path.truncate(length);
    }
}

/// Appends a field to a JSON pointer. Returns the length that the pointer had before.
fn push(path: &mut String, field: &str) -> usize {
    let length = path.len();
    path.push('/');
    path.push_str(&field.replace('~', "~0").replace('/', "~1"));
    length
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(live: Value, desired: Value, expected: Value) {
        assert_eq!(Value::Array(json_patch(&live, &desired)), expected);
    }

    #[test]
    fn labels_and_metadata_of_others_are_left_alone() {
        check(
            json!({"metadata": {"uid": "u", "labels": {"ours": "a", "theirs": "b"}, "finalizers": ["x"]}}),
            json!({"metadata": {"labels": {"ours": "a"}}}),
            json!([]),
        );
    }

    #[test]
    fn a_changed_or_missing_field_is_one_operation() {
        check(
            json!({"labels": {"app/x": "other"}, "replicas": 1}),
            json!({"labels": {"app/x": "web", "~": "t"}, "replicas": 1}),
            json!([
                {"op": "replace", "path": "/labels/app~1x", "value": "web"},
                {"op": "add", "path": "/labels/~0", "value": "t"},
            ]),
        );
    }

    /// A Service whose selector had another key selected nothing, and nobody noticed.
    #[test]
    fn what_is_not_wanted_is_removed_field_by_field() {
        check(
            // `generation` is the server's in metadata alone.
            json!({"selector": {"app": "web", "generation": "x"}, "annotations": {"a/b": true}}),
            json!({"selector": {"app": "web"}}),
            json!([
                {"op": "remove", "path": "/selector/generation"},
                {"op": "remove", "path": "/annotations/a~1b"},
            ]),
        );
    }

    #[test]
    fn a_list_that_we_own_is_replaced_whole() {
        check(
            json!({"ports": [{"port": 80}, {"port": 81}]}),
            json!({"ports": [{"port": 80}]}),
            json!([{"op": "replace", "path": "/ports", "value": [{"port": 80}]}]),
        );
    }

    #[test]
    fn a_container_is_found_by_name_and_others_stay() {
        check(
            json!({"containers": [{"name": "sidecar", "image": "s"}, {"name": "web", "image": "old"}]}),
            json!({"containers": [{"name": "web", "image": "new"}]}),
            json!([{"op": "replace", "path": "/containers/1/image", "value": "new"}]),
        );
        check(
            json!({"containers": [{"name": "sidecar"}]}),
            json!({"containers": [{"name": "web"}]}),
            json!([{"op": "add", "path": "/containers/-", "value": {"name": "web"}}]),
        );
    }

    /// Where the first of two references to our owner was made the controller too, each patch was refused.
    #[test]
    fn our_owner_reference_is_the_one_that_is_the_controller() {
        let reference =
            |name: &str, controller: bool| json!({"uid": "u", "controller": controller, "name": name});
        check(
            json!({"ownerReferences": [reference("web", false), reference("wrong", true)]}),
            json!({"ownerReferences": [reference("web", true)]}),
            json!([{"op": "replace", "path": "/ownerReferences/1/name", "value": "web"}]),
        );
    }
}
