//! Type errors in objects of built-in kinds, and in ObjectMeta of all kinds.
//!
//! ```text
//! cannot decode string into spec.replicas
//! ```
//!
//! kube-apiserver decodes a body into Go structs. The definitions in [`openapi`](crate::schema::openapi) give the types.

use base64::{Engine, prelude::BASE64_STANDARD};
use listwatch_formats::{quantity::quantity, time::parse_time};
use serde_json::{Number, Value};

use crate::schema::openapi::{definition, referred, resolved};

/// Most items of a list in a built-in kind or in ObjectMeta. Validation compares each item with all others: 100,000
/// containers would block all other requests for minutes. Real lists have some dozens of items.
const ITEMS_MAX: usize = 1_000;

/// Most items in all lists of an object, each with several possible errors. The largest CRDs have some thousands.
const ITEMS_IN_ALL_MAX: usize = 20_000;

/// Checks the types of a value against a definition. `Err` names the first field with a value of the wrong type.
pub(crate) fn check_types(value: &Value, name: &str) -> Result<(), String> {
    if !value.is_object() && !value.is_null() {
        return Err(cannot_decode(value, "an object"));
    }
    let mut check = TypeCheck::default();
    check.object(value, definition(name), "")?;
    check.mismatch.map_or(Ok(()), Err)
}

/// Limits the lists of a patch like an object's: the merge compares each item with all others.
pub(crate) fn check_lists(patch: &Value) -> Result<(), String> {
    TypeCheck::default().lists(patch, "the patch")
}

/// Like Go's decoder, skips a value of the wrong type and reports it at the end. Types with their own decoder, such as
/// times and quantities, fail at once. Paths are without indices.
#[derive(Default)]
struct TypeCheck {
    mismatch: Option<String>,
    /// Items in all lists so far.
    items: usize,
}

impl TypeCheck {
    fn object(&mut self, value: &Value, schema: &Value, at: &str) -> Result<(), String> {
        for (field, value) in value.as_object().into_iter().flatten() {
            let Some(schema) = schema["properties"].get(field) else { continue };
            let dot = if at.is_empty() { "" } else { "." };
            self.value(value, schema, &format!("{at}{dot}{field}"))?;
        }
        Ok(())
    }

    fn count(&mut self, items: usize, at: &str) -> Result<(), String> {
        self.items += items;
        if items > ITEMS_MAX {
            return Err(format!("{at} has {items} items, {ITEMS_MAX} at most are taken here"));
        }
        if self.items > ITEMS_IN_ALL_MAX {
            return Err(format!(
                "its lists have more than {ITEMS_IN_ALL_MAX} items, which are not taken here"
            ));
        }
        Ok(())
    }

    fn lists(&mut self, value: &Value, at: &str) -> Result<(), String> {
        if let Value::Array(list) = value {
            self.count(list.len(), at)?;
        }
        let items = value.as_array().into_iter().flatten();
        let mut all = items.chain(value.as_object().into_iter().flat_map(|map| map.values()));
        all.try_for_each(|value| self.lists(value, at))
    }

    fn value(&mut self, value: &Value, schema: &Value, at: &str) -> Result<(), String> {
        let name = referred(schema);
        let is_int32 = |number: &Number| number.as_i64().is_some_and(|one| i32::try_from(one).is_ok());
        let fits = match (name, value) {
            // Go treats null as a missing field.
            (_, Value::Null) => true,
            (Some("Quantity"), _) => return check_quantity(value),
            (Some("Time"), Value::String(time)) => return check_time(time),
            (Some("MicroTime"), Value::String(time)) => return check_micro_time(time),
            (Some("IntOrString"), Value::String(_)) => true,
            (Some("IntOrString"), Value::Number(number)) => is_int32(number),
            (Some("JSON"), _) | (Some("JSONSchemaPropsOrBool"), Value::Bool(_)) => true,
            (Some(_), Value::Object(_)) if resolved(schema)["type"] == "object" => {
                return self.object(value, resolved(schema), at);
            }
            (Some("JSONSchemaPropsOrBool"), _) => return Err("boolean or JSON schema expected".to_owned()),
            (Some("JSONSchemaPropsOrArray" | "JSONSchemaPropsOrStringArray"), _) => true,
            (Some(_), _) => false,
            (None, Value::Object(map)) if schema["type"] == "object" => {
                for value in map.values() {
                    self.value(value, &schema["additionalProperties"], at)?;
                }
                true
            }
            (None, Value::Array(list)) if schema["type"] == "array" => {
                self.count(list.len(), at)?;
                for value in list {
                    self.value(value, &schema["items"], at)?;
                }
                true
            }
            (None, Value::String(text)) if schema["format"] == "byte" => return check_base64(text),
            (None, Value::String(_)) => schema["type"] == "string",
            (None, Value::Bool(_)) => schema["type"] == "boolean",
            (None, Value::Number(number)) => match (schema["type"].as_str(), schema["format"].as_str()) {
                (Some("integer"), Some("int32")) => is_int32(number),
                (Some("integer"), _) => number.is_i64(),
                (Some("number"), _) => true,
                (_, _) => false,
            },
            (None, Value::Object(_) | Value::Array(_)) => schema.get("type").is_none(),
        };
        if !fits {
            self.mismatch.get_or_insert_with(|| cannot_decode(value, at));
        }
        Ok(())
    }
}

/// The error of a value of the wrong type for a field, or for `an object`.
pub(crate) fn cannot_decode(value: &Value, into: &str) -> String {
    format!("cannot decode {} into {into}", json_type(value))
}

/// An operation of a JSON patch, or a merge patch, is a map.
pub(crate) fn must_be_map(value: &Value) -> Result<(), String> {
    match value {
        Value::Object(_) => Ok(()),
        other => Err(cannot_decode(other, "an object")),
    }
}

/// The JSON type of a value, as encoding/json names it.
pub(crate) fn json_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
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
    if parse_time(time).is_ok() {
        return Ok(());
    }
    Err(format!("parsing time {time:?}: not in RFC 3339"))
}

/// Checks a metav1.MicroTime. Only here, Go requires an exact number of digits: six.
fn check_micro_time(time: &str) -> Result<(), String> {
    let fraction = time.get(19..).unwrap_or_default();
    let digits = fraction.strip_prefix('.').unwrap_or_default();
    if digits.bytes().take_while(u8::is_ascii_digit).count() == 6 {
        return check_time(time);
    }
    Err(format!("parsing time {time:?}: not with six decimals"))
}

fn check_base64(text: &str) -> Result<(), String> {
    let text: String = text.chars().filter(|c| !matches!(c, '\r' | '\n')).collect();
    match BASE64_STANDARD.decode(text) {
        Ok(_) => Ok(()),
        Err(_) => Err("illegal base64 data".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_parsed_as_in_go() {
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
