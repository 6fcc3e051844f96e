//! Schema errors (field.ErrorList): the path of each, its message, and the limits of their number and size.
//!
//! ```text
//! spec.ports[0].name: Invalid value: "integer": spec.ports[0].name in body must be of type string: "integer"
//! ```
//!
//! The crate `jsonschema` finds the errors, and they get the messages of kube-openapi. Each contains its path, so the
//! errors of an object with long keys could take more text than there is memory. Hence the limits.

use std::{collections::HashMap, fmt, ops::ControlFlow};

use jsonschema::{ValidationError, error::ValidationErrorKind};
use serde_json::{Map, Value};

use crate::{
    schema::{Schema, items_by_keys, keys},
    status::Cause,
};

/// The path of a value. It becomes text only in an error: a key of a megabyte would add a megabyte for each item.
#[derive(Clone, Copy)]
pub(crate) enum FieldPath<'a> {
    Root,
    /// `spec.size`
    Field(&'a FieldPath<'a>, &'a str),
    /// `labels[app]`
    Key(&'a FieldPath<'a>, &'a str),
    /// `ports[0]`
    Index(&'a FieldPath<'a>, usize),
}

impl fmt::Display for FieldPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FieldPath::Root => Ok(()),
            FieldPath::Field(FieldPath::Root, name) => write!(f, "{name}"),
            FieldPath::Field(parent, name) => write!(f, "{parent}.{name}"),
            FieldPath::Key(parent, name) => write!(f, "{parent}[{name}]"),
            FieldPath::Index(parent, index) => write!(f, "{parent}[{index}]"),
        }
    }
}

/// Collects the errors of one object, up to [`CAUSES_MAX`] and [`CAUSES_BYTES_MAX`].
pub(crate) struct ErrorList<'a> {
    pub(crate) causes: &'a mut Vec<Cause>,
    /// Errors added here. `causes` may have had others before.
    number: usize,
    bytes: usize,
}

impl<'a> ErrorList<'a> {
    pub(crate) fn new(causes: &'a mut Vec<Cause>) -> ErrorList<'a> {
        ErrorList { causes, number: 0, bytes: 0 }
    }

    /// Adds an error. Breaks when a limit is reached.
    pub(crate) fn add(&mut self, cause: Cause) -> ControlFlow<()> {
        self.number += 1;
        self.bytes += cause.bytes();
        self.causes.push(cause);
        if self.number >= CAUSES_MAX || self.bytes >= CAUSES_BYTES_MAX {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }
}

/// Most errors of one object. kube-apiserver took 14 seconds for so many, and timed out with four times as many.
pub(crate) const CAUSES_MAX: usize = 5_000;

/// Most bytes of the errors of one object, but for the last. A Status has each error twice, each with its path twice.
pub(crate) const CAUSES_BYTES_MAX: usize = 1024 * 1024;

/// Reports the errors of an object, within the limits. Values unchanged since `before` are accepted.
pub(crate) fn check(
    schema: &Schema,
    object: &Value,
    before: Option<&Value>,
    errors: &mut ErrorList<'_>,
) -> ControlFlow<()> {
    let mut old_lists = OldLists::default();
    for error in schema.validator.iter_errors(object) {
        let pointer = error.instance_path().as_str();
        if !before.is_some_and(|before| old_lists.has_unchanged(pointer, object, before, &schema.source)) {
            errors.add(as_cause(&error))?;
        }
    }
    ControlFlow::Continue(())
}

/// The lists of type `map` in an old object, each with its items by their keys.
#[derive(Default)]
struct OldLists<'a>(HashMap<*const Value, HashMap<Value, &'a Value>>);

impl<'a> OldLists<'a> {
    /// Whether the value at a JSON pointer, or a parent of it, is unchanged. The items of a changed list count as
    /// changed, unless they have keys. See apiextensions-apiserver, pkg/apiserver/validation/ratcheting.go.
    fn has_unchanged(&mut self, pointer: &str, object: &Value, before: &'a Value, schema: &Value) -> bool {
        let (mut is, mut was, mut schema) = (object, before, schema);
        for step in pointer.split('/').skip(1) {
            let name = step.replace("~1", "/").replace("~0", "~");
            let (inner, inner_before) = if let Value::Array(items) = is {
                let Some(item) = name.parse().ok().and_then(|index: usize| items.get(index)) else {
                    return false;
                };
                let old = self.0.entry(was).or_insert_with(|| items_by_keys(Some(was), schema));
                (Some(item), old.get(&keys(item, schema)).copied())
            } else {
                (is.get(&name), was.get(&name))
            };
            let (Some(inner), Some(inner_before)) = (inner, inner_before) else { return false };
            schema = match (is, &schema["properties"][&name]) {
                (Value::Array(_), _) => &schema["items"],
                (_, Value::Null) => &schema["additionalProperties"],
                (_, property) => property,
            };
            (is, was) = (inner, inner_before);
            if is == was {
                return true;
            }
        }
        false
    }
}

/// Converts an error of `jsonschema` to a cause with the message of kube-openapi.
fn as_cause(error: &ValidationError<'_>) -> Cause {
    let field = field_path(error.instance_path().as_str());
    let value = error.instance();
    let in_body = |text: String| format!("{} in body {text}", if field.is_empty() { "body" } else { &field });
    let invalid = |text: String| Cause::invalid(field.clone(), value, &in_body(text));
    let too_many = |what: &str, limit: u64| {
        let length = value.as_array().map_or(0, Vec::len);
        let length = value.as_object().map_or(length, Map::len);
        let unit = if what.is_empty() { "items" } else { what };
        Cause::too_many(field.clone(), length, &format!("must have at most {limit} {unit}"))
    };
    match error.kind() {
        ValidationErrorKind::Type { kind } => {
            let wanted = match kind {
                jsonschema::error::TypeKind::Single(one) => one.to_string(),
                jsonschema::error::TypeKind::Multiple(set) => {
                    let names: Vec<String> = set.iter().map(|one| one.to_string()).collect();
                    if names.contains(&"string".to_owned()) && names.contains(&"integer".to_owned()) {
                        "integer,string".to_owned()
                    } else {
                        names.into_iter().find(|name| name != "null").unwrap_or_default()
                    }
                }
            };
            let is = json_type(value);
            Cause::wrong_type(
                field.clone(),
                &is.into(),
                &in_body(format!("must be of type {wanted}: {is:?}")),
            )
        }
        ValidationErrorKind::Format { format } => {
            let text = in_body(format!("must be of type {format}: {value}"));
            Cause::wrong_type(field.clone(), value, &text)
        }
        ValidationErrorKind::Required { property } => {
            let name = property.as_str().unwrap_or_default();
            let field = if field.is_empty() { name.to_owned() } else { format!("{field}.{name}") };
            Cause::required(field, "")
        }
        ValidationErrorKind::Enum { options } => {
            let options = options.as_array().into_iter().flatten().filter(|one| !one.is_null());
            let options: Vec<String> =
                options.map(|one| one.as_str().map_or_else(|| one.to_string(), str::to_owned)).collect();
            Cause::not_supported(field.clone(), value, &options)
        }
        ValidationErrorKind::Minimum { limit } => {
            invalid(format!("should be greater than or equal to {limit}"))
        }
        ValidationErrorKind::Maximum { limit } => invalid(format!("should be less than or equal to {limit}")),
        ValidationErrorKind::ExclusiveMinimum { limit } => invalid(format!("should be greater than {limit}")),
        ValidationErrorKind::ExclusiveMaximum { limit } => invalid(format!("should be less than {limit}")),
        ValidationErrorKind::MinLength { limit } => invalid(format!("should be at least {limit} chars long")),
        ValidationErrorKind::MaxLength { limit } => {
            Cause::too_long(field.clone(), &format!("may not be more than {limit} bytes"))
        }
        // A pattern: see `schema.rs`.
        ValidationErrorKind::Custom { message, .. } => invalid(message.clone()),
        ValidationErrorKind::MinItems { limit } => invalid(format!("should have at least {limit} items")),
        ValidationErrorKind::MaxItems { limit } => too_many("", *limit),
        ValidationErrorKind::MinProperties { limit } => {
            invalid(format!("should have at least {limit} properties"))
        }
        ValidationErrorKind::MaxProperties { limit } => too_many("items", *limit),
        ValidationErrorKind::MultipleOf { multiple_of } => {
            invalid(format!("should be a multiple of {multiple_of}"))
        }
        ValidationErrorKind::UniqueItems => invalid("shouldn't contain duplicates".to_owned()),
        ValidationErrorKind::OneOfNotValid { .. } | ValidationErrorKind::OneOfMultipleValid { .. } => {
            invalid("must validate one and only one schema (oneOf)".to_owned())
        }
        ValidationErrorKind::AnyOf { .. } => invalid("must validate at least one schema (anyOf)".to_owned()),
        ValidationErrorKind::Not { .. } => invalid("must not validate the schema (not)".to_owned()),
        // The enum of the library is non-exhaustive. The schema has no keywords beyond OpenAPI v3.
        _ => Cause::invalid(field.clone(), value, &error.to_string()),
    }
}

pub(crate) fn json_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Converts `/spec/ports/0/name` to `spec.ports[0].name`.
fn field_path(pointer: &str) -> String {
    let mut path = String::new();
    for part in pointer.split('/').skip(1) {
        let part = part.replace("~1", "/").replace("~0", "~");
        if part.bytes().all(|byte| byte.is_ascii_digit()) {
            path.push_str(&format!("[{part}]"));
            continue;
        }
        if !path.is_empty() {
            path.push('.');
        }
        path.push_str(&part);
    }
    path
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::schema::Schema;

    /// The answer to three megabytes had half a gigabyte, and so had that to 35 kilobytes with a long key.
    #[test]
    fn the_errors_of_an_object_are_limited() {
        let validated = |schema: Value, object: Value| {
            let source = json!({"type": "object", "additionalProperties": schema});
            let mut causes = Vec::new();
            Schema::compile(&source).expect("a good schema").validate(&object, None, &mut causes);
            (causes.len(), causes.iter().map(Cause::bytes).sum::<usize>())
        };
        let integers = || json!({"type": "array", "items": {"type": "integer"}});
        let set = || json!({"type": "array", "x-kubernetes-list-type": "set"});
        let rules = || json!({"type": "array", "items": {"type": "integer", "x-kubernetes-validations": [{"rule": "false"}]}});
        for (schema, count) in [(integers(), CAUSES_MAX + 1), (set(), 100_000), (rules(), CAUSES_MAX + 1)] {
            let item = if schema == rules() { json!(1) } else { json!("x") };
            let (number, bytes) = validated(schema, json!({"l": vec![item; count]}));
            assert!(number == CAUSES_MAX && bytes < CAUSES_BYTES_MAX, "{number} {bytes}");
        }
        let long = "k".repeat(10_000);
        for (schema, item) in [(integers(), json!("")), (set(), json!("")), (rules(), json!(1))] {
            let (number, bytes) = validated(schema, json!({&long: vec![item; CAUSES_MAX]}));
            assert!(number > 10 && bytes < CAUSES_BYTES_MAX + 100_000, "{number} {bytes}");
        }
    }
}
