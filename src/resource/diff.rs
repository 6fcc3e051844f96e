//! What must be written so that a live object has everything that is wanted.
//!
//! Only what `desired` names is looked at, so fields that others own stay as they are. Two kinds of lists:
//! `containers` and `ownerReferences` are shared with others and matched by `name` or `uid`; every other list is owned
//! whole and replaced whole, because a list that is merged can never lose an item that somebody added
//! (server-side apply leaves such a port in place and then fails on its duplicate name, for ever).

use serde::Serialize;
use serde_json::{Value, json};

use super::Resource;

/// [`json_patch()`] for two objects of a kind.
///
/// What a slim type leaves out is on neither side, and so never differs.
#[must_use]
pub fn between<K: Resource + Serialize>(live: &K, desired: &K) -> Vec<Value> {
    let value =
        |object| serde_json::to_value(object).expect("our types have string keys and no failing impls");
    json_patch(&value(live), &value(desired))
}

/// The operations of a JSON patch ([RFC 6902](https://www.rfc-editor.org/rfc/rfc6902)) that make `live` have all of
/// `desired`. None where it has.
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
            for (field, wanted) in desired {
                let length = path.len();
                path.push('/');
                path.push_str(&field.replace('~', "~0").replace('/', "~1"));
                match (live.get(field), wanted, shared_list_key(field)) {
                    (Some(Value::Array(items)), Value::Array(wanted), Some(key)) => {
                        compare_shared_list(items, wanted, key, path, operations);
                    }
                    (Some(value), _, _) if ONE_OF.contains(&&**field) => {
                        replace_if_different(value, wanted, path, operations);
                    }
                    (Some(value), _, _) => compare(value, wanted, path, operations),
                    (None, _, _) => operations.push(json!({"op": "add", "path": &*path, "value": wanted})),
                }
                path.truncate(length);
            }
        }
        _ => operations.push(json!({"op": "replace", "path": &*path, "value": desired})),
    }
}

fn replace_if_different(live: &Value, desired: &Value, path: &mut String, operations: &mut Vec<Value>) {
    let before = operations.len();
    compare(live, desired, path, operations);
    if operations.len() > before {
        operations.truncate(before);
        operations.push(json!({"op": "replace", "path": &*path, "value": desired}));
    }
}

/// Items that we do not want are somebody else's, and stay.
fn compare_shared_list(
    live: &[Value],
    desired: &[Value],
    key: &str,
    path: &mut String,
    operations: &mut Vec<Value>,
) {
    for wanted in desired {
        let Some(index) = live.iter().position(|item| item[key] == wanted[key]) else {
            operations.push(json!({"op": "add", "path": format!("{path}/-"), "value": wanted}));
            continue;
        };
        let length = path.len();
        path.push_str(&format!("/{index}"));
        compare(&live[index], wanted, path, operations);
        path.truncate(length);
    }
}

/// Fields of which one alternative must be set and no other (`tcpSocket` or `httpGet`; `type: Localhost` and a profile,
/// or another type and none). Whatever differs in them, they are replaced whole: both together are refused.
const ONE_OF: [&str; 2] = ["readinessProbe", "seccompProfile"];

/// The field by which items of a list that is shared with others are told apart.
fn shared_list_key(field: &str) -> Option<&'static str> {
    match field {
        "containers" => Some("name"),
        "ownerReferences" => Some("uid"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(live: Value, desired: Value, expected: Value) {
        assert_eq!(Value::Array(json_patch(&live, &desired)), expected);
    }

    #[test]
    fn what_is_not_wanted_is_left_alone() {
        check(json!({"a": 1, "b": {"c": 2, "d": 3}}), json!({"b": {"c": 2}}), json!([]));
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

    #[test]
    fn a_list_that_we_own_is_replaced_whole() {
        check(
            json!({"ports": [{"port": 80}, {"port": 81}]}),
            json!({"ports": [{"port": 80}]}),
            json!([{"op": "replace", "path": "/ports", "value": [{"port": 80}]}]),
        );
    }

    #[test]
    fn an_alternative_is_replaced_by_the_other() {
        check(
            json!({"readinessProbe": {"httpGet": {"port": 1}, "periodSeconds": 5}}),
            json!({"readinessProbe": {"tcpSocket": {"port": 1}}}),
            json!([{"op": "replace", "path": "/readinessProbe", "value": {"tcpSocket": {"port": 1}}}]),
        );
        check(
            json!({"readinessProbe": {"tcpSocket": {"port": 1}, "periodSeconds": 5}}),
            json!({"readinessProbe": {"tcpSocket": {"port": 1}}}),
            json!([]),
        );
    }

    #[test]
    fn a_container_is_found_by_name_and_others_stay() {
        check(
            json!({"containers": [{"name": "sidecar", "image": "s"}, {"name": "web", "image": "old", "env": []}]}),
            json!({"containers": [{"name": "web", "image": "new"}]}),
            json!([{"op": "replace", "path": "/containers/1/image", "value": "new"}]),
        );
        check(
            json!({"containers": [{"name": "sidecar"}]}),
            json!({"containers": [{"name": "web"}]}),
            json!([{"op": "add", "path": "/containers/-", "value": {"name": "web"}}]),
        );
    }
}
