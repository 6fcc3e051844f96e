//! Checks of single fields, for the validation of many kinds, and the messages that kinds share.

use serde_json::Value;

use crate::status::Cause;

pub(crate) const PORT_RANGE: &str = "must be between 1 and 65535, inclusive";
pub(crate) const NOT_NEGATIVE: &str = "must be greater than or equal to 0";
pub(crate) const IMMUTABLE: &str = "field is immutable";

/// The items of a list. A missing list has none.
pub(crate) fn each(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

pub(crate) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

pub(crate) fn is_empty(map: &Value) -> bool {
    map.as_object().is_none_or(serde_json::Map::is_empty)
}

pub(crate) fn is_port(value: &Value) -> bool {
    value.as_i64().is_some_and(|port| (1..=65535).contains(&port))
}

pub(crate) fn not_one_of(all: &mut Vec<Cause>, field: String, value: &Value, supported: &[&str]) {
    if !supported.iter().any(|one| value == one) {
        let supported: Vec<String> = supported.iter().map(|&one| one.to_owned()).collect();
        all.push(Cause::not_supported(field, value, &supported));
    }
}

pub(crate) fn not_negative(all: &mut Vec<Cause>, object: &Value, at: &str, fields: &[&str]) {
    for field in fields {
        if object[field].as_i64().is_some_and(|number| number < 0) {
            all.push(Cause::invalid(format!("{at}.{field}"), &object[field], NOT_NEGATIVE));
        }
    }
}

/// Validates the name of a container port: IANA_SVC_NAME.
pub(crate) fn port_name_errors(name: &str) -> Vec<String> {
    let mut errors = Vec::new();
    let mut wrong = |is_wrong: bool, error: &str| errors.extend(is_wrong.then(|| error.to_owned()));
    wrong(name.len() > 15, "must be no more than 15 characters");
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    wrong(!name.chars().all(plain), "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)");
    wrong(!name.contains(|c: char| c.is_ascii_lowercase()), "must contain at least one letter (a-z)");
    wrong(name.contains("--"), "must not contain consecutive hyphens");
    wrong(name.starts_with('-') || name.ends_with('-'), "must not begin or end with a hyphen");
    errors
}
