//! The JSON patch of a defaulting webhook: what the operator has changed in the typed object, against the object that came.
//!
//! The type may not have all fields of the object, and may have defaults for fields that the object lacks. So only the fields that differ
//! between the typed object before and after are patched. See RFC 6902. Nothing in this file does I/O.

use serde_json::{Map, Value, json};

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
        let path = format!("{path}/{}", field.replace('~', "~0").replace('/', "~1"));
        let [raw, before] = [raw, before].map(|object| object.get(field).unwrap_or(&Value::Null));
        differ(&path, raw, before, after, operations);
    }
    for field in before.keys().filter(|field| raw.contains_key(*field) && !after.contains_key(*field)) {
        let field = field.replace('~', "~0").replace('/', "~1");
        operations.push(json!({"op": "remove", "path": format!("{path}/{field}")}));
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
            // The type may not have all fields of an item. An item that did not change keeps them wherever it stands now,; one that
            // changed keeps them in its place.
            let keeps_places = before.len() == after.len();
            let item = |(index, item): (usize, &Value)| match before.iter().position(|before| before == item)
            {
                Some(place) => raw.get(place).unwrap_or(item).clone(),
                None if keeps_places => changed(raw.get(index).unwrap_or(&Value::Null), &before[index], item),
                None => item.clone(),
            };
            after.iter().enumerate().map(item).collect()
        }
        _ => after.clone(),
    }
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
        // A list that is only a default of the type.
        assert_eq!(
            patched(json!({}), before, json!({"list": [{"name": "a"}]})).0,
            json!({"list": [{"name": "a"}]})
        );
    }
}
