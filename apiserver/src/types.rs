//! The fields of built-in kinds, and of everybody's metadata: which there are, and of which type.
//!
//! ```json
//! "ContainerPort": {"properties": {"containerPort": {"format": "int32", "type": "integer"}, …}, "type": "object"}
//! ```
//!
//! They are in `schemas.json`, one definition per line, taken from the OpenAPI document of a real server by the test
//! `tests/it/schemas.rs`. The real server decodes into Go structs, and complains in their words: so do we.
//! It also writes what a Go struct holds: a number that is 0 is left out, unless the field is a pointer. OpenAPI does not
//! have that; `pointers.txt` has the fields, from `types.go` of k8s.io/api and k8s.io/apimachinery 0.36.

use std::{
    collections::{HashMap, HashSet},
    sync::LazyLock,
};

use base64::{DecodeError, Engine, prelude::BASE64_STANDARD};
use serde_json::{Map, Value};

/// What `metadata` is, in whatever object.
pub(super) const OBJECT_META: &str = "ObjectMeta";

static DEFINITIONS: LazyLock<Map<String, Value>> = LazyLock::new(|| {
    let json = include_str!("schemas.json");
    serde_json::from_str(json).expect("a test writes it")
});

/// Of each definition, the fields with a scalar that are written even if it is the zero of its type.
static POINTERS: LazyLock<HashMap<&str, HashSet<&str>>> = LazyLock::new(|| {
    let lines = include_str!("pointers.txt").lines().filter_map(|line| line.split_once(": "));
    lines.map(|(definition, fields)| (definition, fields.split(' ').collect())).collect()
});

/// Where a `$ref` points into.
const DEFINITIONS_AT: &str = "#/components/schemas/";

/// All of them, for OpenAPI.
pub(super) fn definitions() -> &'static Map<String, Value> {
    &DEFINITIONS
}

/// The definition of a type: `PodSpec`.
pub(super) fn definition(name: &str) -> &'static Value {
    DEFINITIONS.get(name).unwrap_or(&Value::Null)
}

/// The name behind a `$ref`. The schemas of CRDs have none: they may not.
fn referred(schema: &Value) -> Option<&str> {
    schema["$ref"].as_str()?.strip_prefix(DEFINITIONS_AT)
}

/// A schema, or the definition that it refers to, which may be another name for one.
pub(super) fn resolved(schema: &Value) -> &Value {
    referred(schema).map_or(schema, |name| resolved(definition(name)))
}

/// Whether Go decodes it by code of its own, which forgets to tell of unknown fields: a schema where `true` or a list may
/// stand as well.
pub(super) fn decodes_itself(schema: &Value) -> bool {
    referred(schema).is_some_and(|name| name.starts_with("JSONSchemaPropsOr"))
}

/// Most items that a list of a built-in kind may have, or one in anybody's metadata. Validation compares each with each:
/// with 100,000 containers nobody else would be served for minutes. Those that people write have some dozens.
const ITEMS_MAX: usize = 1_000;

/// Most items in all lists of an object, of which each may be wrong in several ways. The largest CRDs have some thousands.
const ITEMS_IN_ALL_MAX: usize = 20_000;

/// Whose words say that a type is wrong.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Words {
    /// A body, by encoding/json: a value of the wrong type is passed over and told at the end, but what decodes itself
    /// (times, quantities) fails at once.
    Json,
    /// What a strategic merge patch has made, by apimachinery/pkg/runtime/converter.go: all fails at once.
    Converter,
}

/// Why a value cannot be what it is defined to be. `Err` in the words of Go.
pub(super) fn check_types(value: &Value, name: &str, words: Words) -> Result<(), String> {
    Decoder { words, mismatch: None, items: 0 }.whole(value, name)
}

/// Whether the lists of a patch are as short as those of an object must be: what it does with each grows with the others.
pub(super) fn check_lists(patch: &Value) -> Result<(), String> {
    let mut decoder = Decoder { words: Words::Json, mismatch: None, items: 0 };
    decoder.lists(patch, &Holder { name: "", path: "the patch".to_owned() })
}

struct Decoder {
    words: Words,
    mismatch: Option<String>,
    /// In all lists so far.
    items: usize,
}

/// The Go struct that a value is in, and the names on the way to it, without indices.
struct Holder<'a> {
    name: &'a str,
    path: String,
}

impl Decoder {
    fn whole(&mut self, value: &Value, name: &str) -> Result<(), String> {
        if !value.is_object() && !value.is_null() {
            return Err(format!("json: cannot unmarshal {} into Go value of type v1.{name}", told(value)));
        }
        self.object(value, definition(name), &Holder { name, path: String::new() })?;
        self.mismatch.take().map_or(Ok(()), Err)
    }

    fn mismatch(&mut self, value: &Value, schema: &Value, holder: &Holder) -> Result<(), String> {
        if self.words == Words::Converter {
            return Err(inconvertible(value, schema));
        }
        let go_type = go_type(schema);
        let into = format!("Go struct field {}.{} of type {go_type}", holder.name, holder.path);
        // A number that is of the wrong sort, or too large, is shown.
        let shown =
            if value.is_number() && go_type.starts_with("int") { format!(" {value}") } else { String::new() };
        self.mismatch
            .get_or_insert_with(|| format!("json: cannot unmarshal {}{shown} into {into}", told(value)));
        Ok(())
    }

    fn object(&mut self, value: &Value, schema: &Value, holder: &Holder) -> Result<(), String> {
        for (field, value) in value.as_object().into_iter().flatten() {
            let Some(schema) = schema["properties"].get(field) else { continue };
            let path =
                if holder.path.is_empty() { field.clone() } else { format!("{}.{field}", holder.path) };
            self.value(value, schema, &Holder { name: holder.name, path })?;
        }
        Ok(())
    }

    fn count(&mut self, items: usize, holder: &Holder) -> Result<(), String> {
        self.items += items;
        if items > ITEMS_MAX {
            return Err(format!("{} has {items} items, {ITEMS_MAX} at most are taken here", holder.path));
        }
        if self.items > ITEMS_IN_ALL_MAX {
            return Err(format!(
                "its lists have more than {ITEMS_IN_ALL_MAX} items, which are not taken here"
            ));
        }
        Ok(())
    }

    fn lists(&mut self, value: &Value, holder: &Holder) -> Result<(), String> {
        if let Value::Array(list) = value {
            self.count(list.len(), holder)?;
        }
        let items = value.as_array().into_iter().flatten();
        let mut all = items.chain(value.as_object().into_iter().flat_map(|map| map.values()));
        all.try_for_each(|value| self.lists(value, holder))
    }

    fn value(&mut self, value: &Value, schema: &Value, holder: &Holder) -> Result<(), String> {
        let name = referred(schema);
        let fits = match (name, value) {
            // To Go it is as if it were not there.
            (_, Value::Null) => true,
            (Some("Quantity"), _) => return check_quantity(value),
            (Some("Time"), Value::String(time)) => return check_time(time),
            (Some("MicroTime"), Value::String(time)) => return check_micro_time(time),
            (Some("IntOrString"), Value::String(_)) => true,
            (Some("IntOrString"), Value::Number(number)) => {
                number.as_i64().is_some_and(|number| i32::try_from(number).is_ok())
            }
            (Some("JSON"), _) | (Some("JSONSchemaPropsOrBool"), Value::Bool(_)) => true,
            (Some(name), Value::Object(_)) if resolved(schema)["type"] == "object" => {
                let name = referred(definition(name)).unwrap_or(name);
                let holder = Holder { name, path: holder.path.clone() };
                return self.object(value, resolved(schema), &holder);
            }
            (Some("JSONSchemaPropsOrBool"), _) => return Err("boolean or JSON schema expected".to_owned()),
            (Some("JSONSchemaPropsOrArray" | "JSONSchemaPropsOrStringArray"), _) => true,
            (Some(_), _) => false,
            (None, Value::Object(map)) if schema["type"] == "object" => {
                for value in map.values() {
                    self.value(value, &schema["additionalProperties"], holder)?;
                }
                true
            }
            (None, Value::Array(list)) if schema["type"] == "array" => {
                self.count(list.len(), holder)?;
                for value in list {
                    self.value(value, &schema["items"], holder)?;
                }
                true
            }
            (None, Value::String(text)) if schema["format"] == "byte" => {
                let before = if self.words == Words::Converter { "error decoding from json: " } else { "" };
                return check_base64(text).map_err(|why| format!("{before}{why}"));
            }
            (None, Value::String(_)) => schema["type"] == "string",
            (None, Value::Bool(_)) => schema["type"] == "boolean",
            (None, Value::Number(number)) => match (schema["type"].as_str(), schema["format"].as_str()) {
                (Some("integer"), Some("int32")) => {
                    number.as_i64().is_some_and(|one| i32::try_from(one).is_ok())
                }
                (Some("integer"), _) => number.is_i64(),
                (Some("number"), _) => true,
                (_, _) => false,
            },
            (None, Value::Object(_) | Value::Array(_)) => schema.get("type").is_none(),
        };
        if fits { Ok(()) } else { self.mismatch(value, schema, holder) }
    }
}

/// Why the converter of strategic merge patches cannot take a value: `fromUnstructured`.
fn inconvertible(value: &Value, schema: &Value) -> String {
    let from = match value {
        Value::Null => "nil",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_i64() => "int64",
        Value::Number(_) => "float64",
        Value::String(_) => "string",
        Value::Array(_) => "slice",
        Value::Object(_) => "map",
    };
    let to = go_type(schema);
    match (referred(schema), from, &*to) {
        (Some("IntOrString" | "Time" | "MicroTime"), ..) => {
            format!("json: cannot unmarshal {} into Go value of type {to}", told(value))
        }
        (Some(_), ..) => format!("cannot restore struct from: {from}"),
        (None, _, to) if to.starts_with("map[") => format!("cannot restore map from {from}"),
        (None, _, to) if to.starts_with("[]") => format!("cannot restore slice from {from}"),
        // Go makes a letter of a number, and cuts a fraction off, where one lets it.
        (None, "int64", "string") | (None, "float64", "int32" | "int64") => {
            format!("cannot convert {from} to {to}")
        }
        (None, _, to) => format!("unrecognized type: {to}"),
    }
}

/// A value of a definition as Go writes it that has read it: a field that is null, an empty list, an empty map or a zero is
/// not there, and a null in a list or a map is the zero of its type.
pub(super) fn normalize(value: &mut Value, name: &str) {
    let schema = definition(name);
    match referred(schema) {
        Some(other) => normalize(value, other),
        None => normalize_fields(value, name, schema),
    }
}

fn normalize_value(value: &mut Value, schema: &Value) {
    match referred(schema) {
        Some(name) => normalize(value, name),
        None => normalize_fields(value, "", schema),
    }
}

fn normalize_fields(value: &mut Value, name: &str, schema: &Value) {
    match value {
        Value::Object(map) => {
            for (field, value) in map.iter_mut() {
                if let Some(schema) = schema["properties"].get(field) {
                    normalize_value(value, schema);
                } else {
                    normalize_item(value, &schema["additionalProperties"]);
                }
            }
            let required = schema["required"].as_array();
            let is_required = |field: &str| required.is_some_and(|all| all.iter().any(|one| one == field));
            let is_pointer = |field: &str| POINTERS.get(name).is_some_and(|all| all.contains(field));
            map.retain(|field, value| match schema["properties"].get(field) {
                Some(_) if value.is_null() => false,
                Some(schema) => is_required(field) || is_pointer(field) || !is_empty(value, resolved(schema)),
                None => true,
            });
        }
        Value::Array(items) => items.iter_mut().for_each(|item| normalize_item(item, &schema["items"])),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn normalize_item(value: &mut Value, schema: &Value) {
    if value.is_null() {
        *value = zero(schema);
    }
    normalize_value(value, schema);
}

/// What `omitempty` leaves out, which all fields have but those that are required.
fn is_empty(value: &Value, schema: &Value) -> bool {
    match value {
        Value::Array(items) => items.is_empty() && schema["type"] == "array",
        Value::Object(map) => map.is_empty() && schema.get("additionalProperties").is_some(),
        Value::Bool(is) => !is && schema["type"] == "boolean",
        Value::Number(number) => number.as_f64() == Some(0.0) && schema["type"] == "integer",
        Value::String(text) => text.is_empty() && schema["type"] == "string",
        Value::Null => false,
    }
}

fn zero(schema: &Value) -> Value {
    match (referred(schema), resolved(schema)["type"].as_str()) {
        (Some("Quantity"), _) => "0".into(),
        (_, Some("object")) => Value::Object(Map::new()),
        (_, Some("string")) => "".into(),
        (_, Some("integer")) => 0.into(),
        (_, _) => Value::Null,
    }
}

/// What stands in the JSON.
pub(super) fn told(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// The type of the field in Go. Those of its strings that have a name of their own are not known here.
fn go_type(schema: &Value) -> String {
    match referred(schema) {
        Some("IntOrString") => return "int32".to_owned(),
        Some("Time" | "MicroTime") => return "string".to_owned(),
        Some(name) => return format!("v1.{}", name.rsplit('.').next().unwrap_or_default()),
        None => {}
    }
    match (schema["type"].as_str(), schema["format"].as_str()) {
        (Some("array"), _) => format!("[]{}", go_type(&schema["items"])),
        (Some("object"), _) => format!("map[string]{}", go_type(&schema["additionalProperties"])),
        (Some("string"), Some("byte")) => "[]uint8".to_owned(),
        (Some("boolean"), _) => "bool".to_owned(),
        (Some("integer"), Some(format)) => format.to_owned(),
        (Some("number"), _) => "float64".to_owned(),
        (Some(other), _) => other.to_owned(),
        (None, _) => "interface {}".to_owned(),
    }
}

/// The units of a quantity, and what each stands for.
const UNITS: [(&str, f64); 16] = [
    ("", 1.0),
    ("n", 1e-9),
    ("u", 1e-6),
    ("m", 1e-3),
    ("k", 1e3),
    ("M", 1e6),
    ("G", 1e9),
    ("T", 1e12),
    ("P", 1e15),
    ("E", 1e18),
    ("Ki", 1_024.0),
    ("Mi", 1_048_576.0),
    ("Gi", 1_073_741_824.0),
    ("Ti", 1_099_511_627_776.0),
    ("Pi", 1_125_899_906_842_624.0),
    ("Ei", 1_152_921_504_606_846_976.0),
];

/// `100m`, `1.5Gi`, `1e3`: apimachinery/pkg/api/resource/quantity.go. To compare two, a float is good enough.
pub(super) fn quantity(value: &Value) -> Option<f64> {
    let text = match value {
        Value::Number(number) => return number.as_f64(),
        value => value.as_str()?,
    };
    let is_number = |c: char| c.is_ascii_digit() || matches!(c, '.' | '+' | '-');
    let (number, unit) = text.split_at(text.find(|c| !is_number(c)).unwrap_or(text.len()));
    let factor = match UNITS.iter().find(|(name, _)| *name == unit) {
        Some((_, factor)) => *factor,
        None => 10_f64.powi(unit.strip_prefix(['e', 'E'])?.parse().ok()?),
    };
    Some(number.parse::<f64>().ok()? * factor)
}

fn check_quantity(value: &Value) -> Result<(), String> {
    if quantity(value).is_some() {
        return Ok(());
    }
    Err("quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
        .to_owned())
}

/// RFC 3339, with `Z` or an offset.
fn check_time(time: &str) -> Result<(), String> {
    let offset = time.len().checked_sub(6).and_then(|at| time.split_at_checked(at));
    let utc = match offset {
        Some((time, offset)) if offset.starts_with(['+', '-']) && offset.as_bytes().get(3) == Some(&b':') => {
            format!("{time}Z")
        }
        Some(_) | None => time.to_owned(),
    };
    if humantime::parse_rfc3339(&utc).is_ok() {
        return Ok(());
    }
    Err(format!("parsing time {time:?} as \"2006-01-02T15:04:05Z07:00\": cannot parse {time:?} as \"2006\""))
}

/// metav1.MicroTime is the one format in which Go does not forgive: six digits, no more and no less.
fn check_micro_time(time: &str) -> Result<(), String> {
    let fraction = time.get(19..).unwrap_or_default();
    let digits = fraction.strip_prefix('.').unwrap_or_default();
    if digits.bytes().take_while(u8::is_ascii_digit).count() == 6 {
        return check_time(time);
    }
    let is_time = time.get(..19).is_some_and(|time| check_time(&format!("{time}Z")).is_ok());
    let wrong =
        if is_time { format!("{fraction:?} as \".000000\"") } else { format!("{time:?} as \"2006\"") };
    Err(format!("parsing time {time:?} as \"2006-01-02T15:04:05.000000Z07:00\": cannot parse {wrong}"))
}

fn check_base64(text: &str) -> Result<(), String> {
    let text: String = text.chars().filter(|c| !matches!(c, '\r' | '\n')).collect();
    let at = match BASE64_STANDARD.decode(text) {
        Ok(_) => return Ok(()),
        Err(DecodeError::InvalidByte(at, _) | DecodeError::InvalidLastSymbol(at, _)) => at,
        Err(DecodeError::InvalidLength(_) | DecodeError::InvalidPadding) => 0,
    };
    Err(format!("illegal base64 data at input byte {at}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_reference_leads_somewhere() {
        fn check(schema: &Value) {
            if let Some(name) = referred(schema) {
                assert!(definition(name).is_object(), "{name}");
            }
            match schema {
                Value::Object(map) => map.values().for_each(check),
                Value::Array(list) => list.iter().for_each(check),
                Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
            }
        }
        definitions().values().for_each(check);
        assert!(definitions().len() > 200);
    }

    #[test]
    fn a_null_is_no_field_or_the_zero_of_an_item() {
        let mut pod = json!({
            "metadata": {"labels": {"a": null}, "annotations": {}, "finalizers": [null]},
            "spec": {
                "containers": [{"name": "c", "ports": null, "args": [null, "b"], "env": [null, {"name": "A", "value": null}],
                    "resources": {"limits": {"cpu": null}}}],
                "initContainers": [], "nodeSelector": {}, "volumes": [{"name": "v", "emptyDir": {}}],
                "securityContext": {"supplementalGroups": [null]}, "nobodyKnows": null,
            },
        });
        normalize(&mut pod, "Pod");
        let wanted = json!({
            "metadata": {"labels": {"a": ""}, "finalizers": [""]},
            "spec": {
                "containers": [{"name": "c", "args": ["", "b"], "env": [{}, {"name": "A"}],
                    "resources": {"limits": {"cpu": "0"}}}],
                "volumes": [{"name": "v", "emptyDir": {}}],
                "securityContext": {"supplementalGroups": [0]}, "nobodyKnows": null,
            },
        });
        assert_eq!(pod, wanted);
        // What is required is there even if it is empty.
        let mut pod = json!({"spec": {"containers": []}});
        normalize(&mut pod, "Pod");
        assert_eq!(pod, json!({"spec": {"containers": []}}));
    }

    #[test]
    fn a_zero_is_left_out_unless_the_field_is_a_pointer() {
        let mut spec = json!({"hostIPC": false, "hostname": "", "hostUsers": false, "priority": 0,
            "containers": [{"name": "", "tty": false, "image": "i"}]});
        normalize(&mut spec, "PodSpec");
        let wanted = json!({"hostUsers": false, "priority": 0, "containers": [{"name": "", "image": "i"}]});
        assert_eq!(spec, wanted);
        for (definition, fields) in &*POINTERS {
            for field in fields {
                assert!(
                    !super::definition(definition)["properties"][field].is_null(),
                    "{definition}.{field}"
                );
            }
        }
    }

    #[test]
    fn quantities_and_times_are_as_go_takes_them() {
        for good in ["1", "100m", "1.5Gi", "-3", "+.5", "1e3", "2E-3", "5E"] {
            assert_eq!(check_quantity(&json!(good)), Ok(()), "{good}");
        }
        for bad in ["", "many", "1x", "--1", "1 Gi", "Gi"] {
            assert!(check_quantity(&json!(bad)).is_err(), "{bad}");
        }
        for good in ["2026-11-21T07:00:00Z", "2026-11-21T07:00:00.5Z", "2026-11-21T07:00:00+01:00"] {
            assert_eq!(check_time(good), Ok(()), "{good}");
        }
        for bad in ["", "yesterday", "2026-11-21", "2026-11-21T07:00:00", "2026-13-21T07:00:00Z", "é+01:00"]
        {
            assert!(check_time(bad).is_err(), "{bad}");
        }
        assert!(check_micro_time("2026-11-21T07:00:00.000000Z").is_ok());
        assert!(check_micro_time("2026-11-21T07:00:00.00000Z").is_err());
    }
}
