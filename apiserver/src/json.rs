//! Encodes JSON as kube-apiserver does: the order of fields, the escaped characters, whole floats, the line end.

use bytes::Bytes;
use serde_json::Value;

/// One line of JSON. kube-apiserver escapes `<`, `>`, `&` and two line separators of Unicode, so that JSON can be embedded in HTML.
/// A text full of them becomes six times as long.
pub(crate) fn line(value: &Value) -> Bytes {
    let mut line = json(value);
    line.push('\n');
    line.into()
}

/// As [`line()`], without the line end.
pub(crate) fn json(value: &Value) -> String {
    escape(in_order(value))
}

/// A line of a watch, with an object that is already JSON.
pub(crate) fn event(kind: &str, object: &str) -> Bytes {
    format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n").into()
}

/// Fields of Go structs, in the order in which Go encodes them. All other fields follow by name. Custom resources are
/// maps in Go, so all their fields are sorted.
const STRUCT_ORDER: [&str; 8] =
    ["kind", "apiVersion", "metadata", "status", "message", "reason", "details", "code"];

fn in_order(value: &Value) -> String {
    let Some(map) = value.as_object() else { return value.to_string() };
    let group = value["apiVersion"]
        .as_str()
        .and_then(|version| version.split_once('/'))
        .map_or("", |(group, _)| group);
    let custom = group.contains('.') && !group.ends_with(".k8s.io");
    if custom {
        return value.to_string();
    }
    // Only in a Status do the fields after `metadata` have a fixed order.
    let order = if value["kind"] == "Status" { &STRUCT_ORDER[..] } else { &STRUCT_ORDER[..3] };
    let first = order.iter().filter_map(|&name| map.get_key_value(name));
    let rest = map.iter().filter(|(name, _)| !order.contains(&name.as_str()));
    let fields: Vec<String> =
        first.chain(rest).map(|(name, value)| format!("{}:{value}", Value::from(name.as_str()))).collect();
    format!("{{{}}}", fields.join(","))
}

/// Indented JSON.
pub(crate) fn pretty(value: &Value) -> Bytes {
    escape(format!("{value:#}")).into()
}

fn escape(json: String) -> String {
    // 0xe2 is the first byte of both separators. Most objects contain none of these bytes.
    if memchr::memchr3(b'<', b'>', b'&', json.as_bytes()).is_none()
        && memchr::memchr(0xe2, json.as_bytes()).is_none()
    {
        return json;
    }
    let mut escaped = String::with_capacity(json.len() + 1);
    for c in json.chars() {
        match c {
            '<' => escaped.push_str("\\u003c"),
            '>' => escaped.push_str("\\u003e"),
            '&' => escaped.push_str("\\u0026"),
            '\u{2028}' => escaped.push_str("\\u2028"),
            '\u{2029}' => escaped.push_str("\\u2029"),
            c => escaped.push(c),
        }
    }
    escaped
}

/// Writes whole floats without a decimal point, as Go does: `80` for `80.0`. Beyond 2^53, floats are not exact and stay unchanged.
pub(crate) fn make_whole(value: &mut Value) {
    match value {
        Value::Object(map) => map.values_mut().for_each(make_whole),
        Value::Array(list) => list.iter_mut().for_each(make_whole),
        Value::Number(number) => {
            const EXACT_MAX: f64 = (1_u64 << 53) as f64;
            let float = number.as_f64().filter(|float| number.is_f64() && float.fract() == 0.0);
            if let Some(float) = float.filter(|float| float.abs() <= EXACT_MAX) {
                *value = (float as i64).into();
            }
        }
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}

/// The approximate size of a value as JSON, in bytes, and its nesting depth: a scalar has 0.
pub(crate) fn size_and_depth(value: &Value) -> (usize, usize) {
    let (bytes, depth) = match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => return (8, 0),
        Value::String(text) => return (text.len() + 2, 0),
        Value::Array(list) => list
            .iter()
            .map(size_and_depth)
            .fold((2, 0), |all, (bytes, depth)| (all.0 + bytes + 1, all.1.max(depth))),
        Value::Object(map) => map.iter().fold((2, 0), |all, (key, value)| {
            let (bytes, depth) = size_and_depth(value);
            (all.0 + key.len() + bytes + 4, all.1.max(depth))
        }),
    };
    (bytes, depth + 1)
}
