//! An object of any kind, and which of its fields have changed. Nothing in this file does I/O.

use listwatch::resource::{ObjectMeta, Resource};
use serde::{Deserialize, Deserializer, de};
use serde_json::{Map, Value};

/// Most characters of changed fields, where no terminal sets a limit.
pub const CHANGES_CHARS: usize = 200;
/// Most fields of a map that are shown one by one when the map appears or disappears.
const FIELDS_MAX: usize = 3;
/// Most characters of a value that are shown.
const VALUE_CHARS_MAX: usize = 30;

/// An object of any kind, whole.
pub struct Object {
    metadata: ObjectMeta,
    pub value: Value,
}

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Object, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let metadata = ObjectMeta::deserialize(&value["metadata"]).map_err(de::Error::custom)?;
        Ok(Object { metadata, value })
    }
}

impl Resource for Object {
    const GROUP: &'static str = "";
    const VERSION: &'static str = "";
    const PLURAL: &'static str = "objects";
    const KIND: &'static str = "object";

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }
}

/// [`changes_within`], for where no terminal sets a limit.
pub fn changes(before: &Value, after: &Value) -> String {
    changes_within(before, after, CHANGES_CHARS)
}

/// The fields that have changed, the most important ones first: `spec.replicas 1 → 3`. Whole fields in at most so many
/// characters, and how many more there are; at least the end of the path of the first one. Of a Secret, the paths alone.
/// The fields that change at every write are left out.
pub fn changes_within(before: &Value, after: &Value, chars_max: usize) -> String {
    let mut found = Vec::new();
    compare("", before, after, &mut found);
    found.sort_by_key(|(path, ..)| importance(path));
    let (is_secret, count) = (after["kind"] == "Secret", found.len());
    let mut text = String::new();
    for (index, (path, before, after)) in found.into_iter().enumerate() {
        // `Ready` for `status.conditions[Ready].status`.
        let condition =
            path.strip_prefix("status.conditions[").and_then(|rest| rest.strip_suffix("].status"));
        let name = condition.unwrap_or(&path);
        let change = if is_secret {
            name.to_owned()
        } else if path == "status.observedGeneration" && before.is_some_and(|before| *before == -1) {
            // The status of a new object, see docs/conditions.md.
            format!("{name} -1 → {} (-1: not reconciled yet)", short(after))
        } else {
            format!("{name} {} → {}", short(before), short(after))
        };
        let rest = if index + 1 == count { 0 } else { ", 99 more".len() };
        if text.chars().count() + 2 + change.chars().count() + rest > chars_max {
            let left = if index == 0 { count - 1 } else { count - index };
            let more = if left == 0 { String::new() } else { format!(", {left} more") };
            let first = if index == 0 { end_of(name, chars_max.saturating_sub(more.len())) } else { text };
            return first + &more;
        }
        let comma = if text.is_empty() { "" } else { ", " };
        text += &format!("{comma}{change}");
    }
    text
}

/// The end of a path: `…[nginx].image`.
fn end_of(path: &str, chars_max: usize) -> String {
    let count = path.chars().count();
    if count <= chars_max {
        return path.to_owned();
    }
    let end = path.chars().skip(count + 1 - chars_max.clamp(1, count));
    ['…'].into_iter().chain(end).collect()
}

/// The place of a changed field among the others: 0 is the first.
fn importance(path: &str) -> u8 {
    let is_status = path.starts_with("status.");
    match path {
        "metadata.generation" => 5,
        _ if path.ends_with(".message") => 4,
        _ if is_status && path.ends_with("].status") => 1,
        _ if is_status => 3,
        _ if path.starts_with("metadata.") => 2,
        _ => 0,
    }
}

type Differences<'a> = Vec<(String, Option<&'a Value>, Option<&'a Value>)>;

fn compare<'a>(path: &str, before: &'a Value, after: &'a Value, found: &mut Differences<'a>) {
    match (before, after) {
        (Value::Object(before), Value::Object(after)) => {
            compare_fields(path, Some(before), Some(after), found);
        }
        (Value::Array(before), Value::Array(after))
            if before.iter().chain(after).all(|item| key(item).is_some()) =>
        {
            let find = |items: &'a [Value], item: &Value| items.iter().find(|other| key(other) == key(item));
            for item in after {
                let path = format!("{path}[{}]", key(item).unwrap_or_default());
                match find(before, item) {
                    Some(was) => compare(&path, was, item, found),
                    None => found.push((path, None, Some(item))),
                }
            }
            for item in before.iter().filter(|item| find(after, item).is_none()) {
                found.push((format!("{path}[{}]", key(item).unwrap_or_default()), Some(item), None));
            }
        }
        (before, after) if before != after => found.push((path.to_owned(), Some(before), Some(after))),
        _ => {}
    }
}

fn compare_fields<'a>(
    path: &str,
    before: Option<&'a Map<String, Value>>,
    after: Option<&'a Map<String, Value>>,
    found: &mut Differences<'a>,
) {
    let is_new = |name: &&String| before.is_none_or(|before| !before.contains_key(*name));
    let names = before.into_iter().flat_map(Map::keys);
    for name in names.chain(after.into_iter().flat_map(Map::keys).filter(is_new)) {
        let path = match path {
            "" => name.clone(),
            path if name.contains(['.', '/']) => format!("{path}[{name}]"),
            path => format!("{path}.{name}"),
        };
        let is_bookkeeping = name == "lastTransitionTime" || name == "lastUpdateTime";
        // The objects of a list have no kind of their own.
        const LEFT_OUT: [&str; 4] =
            ["metadata.managedFields", "metadata.resourceVersion", "apiVersion", "kind"];
        if is_bookkeeping || LEFT_OUT.contains(&&*path) {
            continue;
        }
        match (before.and_then(|fields| fields.get(name)), after.and_then(|fields| fields.get(name))) {
            (Some(before), Some(after)) => compare(&path, before, after, found),
            (Some(Value::Object(fields)), None) if is_small(fields) => {
                compare_fields(&path, Some(fields), None, found);
            }
            (None, Some(Value::Object(fields))) if is_small(fields) => {
                compare_fields(&path, None, Some(fields), found);
            }
            (before, after) => found.push((path, before, after)),
        }
    }
}

/// Whether the fields of a map, such as labels, are shown instead of the map.
fn is_small(fields: &Map<String, Value>) -> bool {
    (1..=FIELDS_MAX).contains(&fields.len())
        && fields.values().all(|value| !value.is_object() && !value.is_array())
}

/// The name of an item of a list: of a container, a port, a condition.
fn key(item: &Value) -> Option<&str> {
    ["name", "type"].into_iter().find_map(|field| item[field].as_str())
}

fn short(value: Option<&Value>) -> String {
    let Some(value) = value else { return "absent".to_owned() };
    let text = match value {
        Value::Object(_) => "{…}".to_owned(),
        Value::Array(items) => format!("[{} items]", items.len()),
        value => value.to_string(),
    };
    match text.char_indices().nth(VALUE_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn changed_fields_are_named_by_path_and_by_key() {
        let before = json!({"metadata": {"resourceVersion": "1", "managedFields": [{"manager": "a"}], "labels": {"a/b": "x"}}, "spec": {"replicas": 1},
            "status": {"conditions": [{"type": "Ready", "status": "False"}, {"type": "Old"}]}});
        let after = json!({"metadata": {"resourceVersion": "2", "managedFields": [{"manager": "b"}], "labels": {"a/b": "y"}}, "spec": {"replicas": 3},
            "status": {"conditions": [{"type": "Ready", "status": "True"}], "new": [1]}});
        let all = "spec.replicas 1 → 3, Ready \"False\" → \"True\", metadata.labels[a/b] \"x\" → \"y\", \
                   status.conditions[Old] {…} → absent, status.new absent → [1 items]";
        assert_eq!(changes(&before, &after), all);
        assert_eq!(
            changes_within(&before, &after, 60),
            "spec.replicas 1 → 3, Ready \"False\" → \"True\", 3 more"
        );
        assert_eq!(changes_within(&before, &after, 29), "spec.replicas, 4 more");
        assert_eq!(changes_within(&before, &after, 18), "….replicas, 4 more");
        assert_eq!(changes_within(&before, &after, 0), "…, 4 more");
        let one = |image: &str| json!({"spec": {"containers": [{"name": "web", "image": image}]}});
        assert_eq!(changes_within(&one("a"), &one("b"), 22), "…containers[web].image");
        assert_eq!(changes(&before, &before), "");
        let labels = |labels: Value| json!({"metadata": {"labels": labels}});
        let (none, one_label) = (json!({"metadata": {}}), labels(json!({"tier": "web"})));
        assert_eq!(changes(&none, &one_label), "metadata.labels.tier absent → \"web\"");
        assert_eq!(changes(&one_label, &none), "metadata.labels.tier \"web\" → absent");
        let many = labels(json!({"a": "", "b": "", "c": "", "d": ""}));
        for whole in [many, labels(json!({})), labels(json!({"a": {"b": "c"}}))] {
            assert_eq!(changes(&none, &whole), "metadata.labels absent → {…}");
        }
        let observed = |generation: i64| json!({"status": {"observedGeneration": generation}});
        assert_eq!(
            changes(&observed(-1), &observed(1)),
            "status.observedGeneration -1 → 1 (-1: not reconciled yet)"
        );
        let secret = |value: &str| json!({"kind": "Secret", "data": {"password": value}});
        assert_eq!(changes(&secret("a"), &secret("b")), "data.password");
    }
}
