//! The JSON patch of a defaulting webhook: what the operator has changed in the typed object, against the object that came.
//!
//! The type may not have all fields of the object, and may have defaults for fields that the object lacks. So only the fields that differ
//! between the typed object before and after are patched. See RFC 6902. Nothing in this file does I/O.

use serde_json::{Map, Value, json};

use crate::resource::diff::pointer_step;

/// The operations that change `raw` as `before` was changed to `after`.
pub(super) fn patch(raw: &Value, before: &Value, after: &Value) -> Vec<Value> {
    let mut operations = Vec::new();
    differ("", raw, before, after, &mut operations);
    operations
}

fn differ(path: &str, raw: &Value, before: &Value, after: &Value, operations: &mut Vec<Value>) {
    if before == after {
        return;
    }
    let (Value::Object(raw), Value::Object(before), Value::Object(after)) = (raw, before, after) else {
        // `add` replaces a field that is there.
        operations.push(json!({"op": "add", "path": path, "value": changed(raw, before, after)}));
        return;
    };
    for (field, after) in after {
        let path = format!("{path}/{}", pointer_step(field));
        let [raw, before] = [raw, before].map(|object| object.get(field).unwrap_or(&Value::Null));
        differ(&path, raw, before, after, operations);
    }
    for field in before.keys().filter(|field| raw.contains_key(*field) && !after.contains_key(*field)) {
        operations.push(json!({"op": "remove", "path": format!("{path}/{}", pointer_step(field))}));
    }
}

/// The new value of a field: fields that did not change stay as they came, or absent.
fn changed(raw: &Value, before: &Value, after: &Value) -> Value {
    match (before, after) {
        (_, Value::Object(after)) => {
            let mut value = raw.as_object().cloned().unwrap_or_default();
            let nothing = Map::new();
            let before = before.as_object().unwrap_or(&nothing);
            value.retain(|field, _| !before.contains_key(field) || after.contains_key(field));
            for (field, after) in after.iter().filter(|(field, after)| before.get(*field) != Some(after)) {
                let [raw, before] =
                    [raw.get(field), before.get(field)].map(|value| value.unwrap_or(&Value::Null));
                value.insert(field.clone(), changed(raw, before, after));
            }
            value.into()
        }
        (Value::Array(before), Value::Array(after)) => {
            let pairs = pairs(before, after);
            let item = |(item, place): (&Value, Option<usize>)| {
                let came = place.and_then(|place| Some((raw.get(place)?, &before[place])));
                came.map_or_else(|| item.clone(), |(raw, before)| changed(raw, before, item))
            };
            after.iter().zip(pairs).map(item).collect()
        }
        _ => after.clone(),
    }
}

/// Which item of a list each item was before: the type may not have all fields of an item, and it keeps them wherever it stands now.
fn pairs(before: &[Value], after: &[Value]) -> Vec<Option<usize>> {
    let mut pairs = vec![None; after.len()];
    let mut is_free = vec![true; before.len()];
    let name = |item: &Value| item.get("name").cloned();
    // Equal items first, and in their places; then those of a name; then what was changed in its place.
    let is_same: [&dyn Fn(usize, usize) -> bool; 4] = [
        &|old, new| old == new && before[old] == after[new],
        &|old, new| before[old] == after[new],
        &|old, new| name(&before[old]).is_some() && name(&before[old]) == name(&after[new]),
        &|old, new| old == new && (name(&before[old]).is_none() || name(&after[new]).is_none()),
    ];
    for is_same in is_same {
        for (new, pair) in pairs.iter_mut().enumerate().filter(|(_, pair)| pair.is_none()) {
            *pair = (0..before.len()).find(|&old| is_free[old] && is_same(old, new));
            if let Some(old) = *pair {
                is_free[old] = false;
            }
        }
    }
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The object after the patch, and the number of its operations.
    fn patched(raw: Value, before: Value, after: Value) -> (Value, usize) {
        let operations = patch(&raw, &before, &after);
        let mut patched = raw;
        for operation in &operations {
            let path = operation["path"].as_str().expect("a path");
            let (parent, field) = path.rsplit_once('/').expect("a field");
            let field = field.replace("~1", "/").replace("~0", "~");
            let parent =
                patched.pointer_mut(parent).and_then(Value::as_object_mut).expect("an object that is there");
            match operation["op"].as_str() {
                Some("add") => drop(parent.insert(field, operation["value"].clone())),
                Some("remove") => drop(parent.remove(&field).expect("a field that is there")),
                other => panic!("{other:?}"),
            }
        }
        (patched, operations.len())
    }

    #[test]
    fn only_what_the_operator_has_changed_is_patched() {
        // The type has no `other`, and a default for `replicas`, which the object lacks.
        let raw = json!({"spec": {"host": "", "other": 1, "old": true}, "a/b": "c"});
        let before = json!({"spec": {"host": "", "replicas": 1, "old": true}, "a/b": "c", "status": {}});
        assert_eq!(patched(raw.clone(), before.clone(), before.clone()), (raw.clone(), 0));
        let after = json!({"spec": {"host": "web", "replicas": 1}, "a/b": "d", "status": {}});
        assert_eq!(
            patched(raw, before, after),
            (json!({"spec": {"host": "web", "other": 1}, "a/b": "d"}), 3)
        );
    }

    #[test]
    fn a_field_in_an_object_that_is_not_there_is_added_with_that_object_alone() {
        let (before, after) = (
            json!({"spec": {"tls": {"on": false, "days": 1}}}),
            json!({"spec": {"tls": {"on": true, "days": 1}}}),
        );
        assert_eq!(
            patched(json!({"spec": {}}), before.clone(), after.clone()),
            (json!({"spec": {"tls": {"on": true}}}), 1)
        );
        assert_eq!(patched(json!({}), before, after), (json!({"spec": {"tls": {"on": true}}}), 1));
    }

    #[test]
    fn items_of_a_list_keep_the_fields_that_the_type_does_not_know() {
        let raw = json!({"list": [{"name": "a", "x": 1}, {"name": "b", "x": 2}]});
        let before = json!({"list": [{"name": "a"}, {"name": "b"}]});
        for (after, expected) in [
            (
                json!([{"name": "c"}, {"name": "a"}, {"name": "b"}]),
                json!([{"name": "c"}, {"name": "a", "x": 1}, {"name": "b", "x": 2}]),
            ),
            (json!([{"name": "b"}, {"name": "a"}]), json!([{"name": "b", "x": 2}, {"name": "a", "x": 1}])),
            (json!([{"name": "b"}]), json!([{"name": "b", "x": 2}])),
            (
                json!([{"name": "a"}, {"name": "b", "port": 1}]),
                json!([{"name": "a", "x": 1}, {"name": "b", "port": 1, "x": 2}]),
            ),
        ] {
            assert_eq!(
                patched(raw.clone(), before.clone(), json!({"list": after})).0,
                json!({"list": expected})
            );
        }
        // Items that are the same for the type; one that is new beside one that changes; and one in the place of another.
        let ports = json!({"list": [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]});
        let typed = json!({"list": [{"port": 53}, {"port": 53}]});
        let after = json!({"list": [{"port": 53}, {"port": 53}, {"port": 443}]});
        let expected =
            json!([{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}, {"port": 443}]);
        assert_eq!(patched(ports, typed, after).0["list"], expected);
        for (after, expected) in [
            (
                json!([{"name": "new"}, {"name": "a", "port": 1}, {"name": "b"}]),
                json!([{"name": "new"}, {"name": "a", "port": 1, "x": 1}, {"name": "b", "x": 2}]),
            ),
            (json!([{"name": "b"}, {"name": "c"}]), json!([{"name": "b", "x": 2}, {"name": "c"}])),
        ] {
            assert_eq!(patched(raw.clone(), before.clone(), json!({"list": after})).0["list"], expected);
        }
        // A list that is only a default of the type.
        assert_eq!(
            patched(json!({}), before, json!({"list": [{"name": "a"}]})).0,
            json!({"list": [{"name": "a"}]})
        );
    }
}
