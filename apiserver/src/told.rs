//! What is wrong with an object: where, in whose words, and how much of it is told.
//!
//! ```text
//! spec.ports[0].name: Invalid value: "integer": spec.ports[0].name in body must be of type string: "integer"
//! ```
//!
//! A schema's errors come from the crate `jsonschema`, and are told in the words of kube-openapi. Each has its path in it, and
//! so an object with long keys can be wrong in more text than there is memory for: hence the limits.

use std::{fmt, ops::ControlFlow};

use jsonschema::{ValidationError, Validator, error::ValidationErrorKind};
use serde_json::{Map, Value};

use super::refusal::Cause;

/// Where a value is. Text is made of it when something is told, and not before: with a key of a megabyte it would be a
/// megabyte for each item.
#[derive(Clone, Copy)]
pub(super) enum Path<'a> {
    Root,
    /// `spec.size`
    Field(&'a Path<'a>, &'a str),
    /// `labels[app]`
    Key(&'a Path<'a>, &'a str),
    /// `ports[0]`
    Index(&'a Path<'a>, usize),
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Path::Root => Ok(()),
            Path::Field(Path::Root, name) => write!(f, "{name}"),
            Path::Field(parent, name) => write!(f, "{parent}.{name}"),
            Path::Key(parent, name) => write!(f, "{parent}[{name}]"),
            Path::Index(parent, index) => write!(f, "{parent}[{index}]"),
        }
    }
}

/// What is told to be wrong with one object.
pub(super) struct Told<'a> {
    pub(super) causes: &'a mut Vec<Cause>,
    /// Of ours. There may be others.
    number: usize,
    bytes: usize,
}

impl<'a> Told<'a> {
    pub(super) fn new(causes: &'a mut Vec<Cause>) -> Told<'a> {
        Told { causes, number: 0, bytes: 0 }
    }

    /// Breaks when that was enough.
    pub(super) fn tell(&mut self, cause: Cause) -> ControlFlow<()> {
        self.number += 1;
        self.bytes += cause.bytes();
        self.causes.push(cause);
        if self.number >= CAUSES_MAX || self.bytes >= TOLD_BYTES_MAX {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }
}

/// What is told to be wrong with one object. The real server was seen to take 14 seconds for so many, and to time out over
/// four times as many.
pub(super) const CAUSES_MAX: usize = 5_000;

/// Text of all that is told of one object, but for the last of it. Each cause has its path twice, and the answer each cause.
pub(super) const TOLD_BYTES_MAX: usize = 1024 * 1024;

/// Most that the errors of `jsonschema` may take together. Of an object whose errors could take more, the first is told: one
/// with a quarter of a million values, or with a long key around many.
const ERRORS_BYTES_MAX: usize = 64 * 1024 * 1024;

/// One error, without its text.
const ERROR_BYTES: usize = 250;

/// An index or the like in a path.
const STEP_BYTES: usize = 8;

/// What `jsonschema` makes when an object is wrong: all errors there are, before we see the first, each with its path and
/// some text of the schema.
#[derive(Debug)]
pub(super) struct Errors {
    /// Of one value, at most.
    number: usize,
    /// Of the longest text in the schema.
    bytes: usize,
    /// Those of each alternative are made too, even where the first error is asked for alone.
    has_alternatives: bool,
}

impl Errors {
    pub(super) fn of(standard: &Value) -> Errors {
        let mut errors = Errors { number: 0, bytes: 0, has_alternatives: false };
        errors.number = errors.look_at(standard);
        errors
    }

    /// Tells what `validator` finds, as far as that is not too much. What was wrong `before` may stay so.
    pub(super) fn tell(
        &self,
        validator: &Validator,
        object: &Value,
        before: Option<&Value>,
        told: &mut Told<'_>,
    ) -> ControlFlow<()> {
        if validator.is_valid(object) {
            return ControlFlow::Continue(());
        }
        if self.bytes_max(object) <= ERRORS_BYTES_MAX {
            let is_new = |error: &ValidationError<'_>| {
                !before.is_some_and(|before| is_unchanged(error.instance_path().as_str(), object, before))
            };
            let errors = validator.iter_errors(object).filter(is_new);
            return errors.map(|error| as_cause(&error)).try_for_each(|cause| told.tell(cause));
        }
        if self.has_alternatives {
            let text = "in body is too large for what is wrong with it to be told";
            return told.tell(Cause::wrong_type("", &json_type(object).into(), text));
        }
        validator
            .validate(object)
            .err()
            .map_or(ControlFlow::Continue(()), |error| told.tell(as_cause(&error)))
    }

    /// How many schemas look at the same value, at most.
    fn look_at(&mut self, schema: &Value) -> usize {
        let (mut number, mut below) = (1, 0);
        for (word, value) in schema.as_object().into_iter().flatten() {
            self.has_alternatives |= word == "anyOf" || word == "oneOf";
            match word.as_str() {
                "properties" => {
                    let each = value.as_object().into_iter().flatten();
                    below = each.map(|(_, schema)| self.look_at(schema)).fold(below, usize::max);
                }
                "items" | "additionalProperties" => below = below.max(self.look_at(value)),
                "not" => number += self.look_at(value),
                "allOf" | "anyOf" | "oneOf" => {
                    let each = value.as_array().into_iter().flatten();
                    number += each.map(|schema| self.look_at(schema)).sum::<usize>();
                }
                // The library shares the options of an enum.
                "enum" => {}
                _ => self.bytes = self.bytes.max(longest_text(value)),
            }
        }
        number.max(number - 1 + below)
    }

    /// What the errors take if all is wrong.
    fn bytes_max(&self, object: &Value) -> usize {
        self.number.saturating_mul(text_bytes(object, ERROR_BYTES + self.bytes))
    }
}

/// Whether the value at a JSON pointer, or one around it, is as it was before. The items of a list that has changed count as
/// new. See apiextensions-apiserver, pkg/apiserver/validation/ratcheting.go.
fn is_unchanged(pointer: &str, object: &Value, before: &Value) -> bool {
    let (mut is, mut was) = (object, before);
    for step in pointer.split('/').skip(1) {
        let name = step.replace("~1", "/").replace("~0", "~");
        let (Some(inner), Some(inner_before)) = (is.get(&name), was.get(&name)) else { return false };
        (is, was) = (inner, inner_before);
        if is == was {
            return true;
        }
    }
    false
}

fn longest_text(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(longest_text).max().unwrap_or(0),
        Value::Object(_) | Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    }
}

/// Of a text for each value of an object, if one takes so much here.
fn text_bytes(value: &Value, here: usize) -> usize {
    here + match value {
        Value::Array(items) => items.iter().map(|item| text_bytes(item, here + STEP_BYTES)).sum(),
        Value::Object(map) => map.iter().map(|(name, value)| text_bytes(value, here + 1 + name.len())).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0_usize,
    }
}

/// One error of `jsonschema` in the words of kube-openapi.
fn as_cause(error: &ValidationError<'_>) -> Cause {
    let field = field_path(error.instance_path().as_str());
    let value = error.instance();
    let says = |text: String| format!("{} in body {text}", if field.is_empty() { "body" } else { &field });
    let invalid = |text: String| Cause::invalid(field.clone(), value, &says(text));
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
            Cause::wrong_type(field.clone(), &is.into(), &says(format!("must be of type {wanted}: {is:?}")))
        }
        ValidationErrorKind::Format { format } => {
            let text = says(format!("must be of type {format}: {value}"));
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
        ValidationErrorKind::Pattern { pattern } => invalid(format!("should match '{pattern}'")),
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
        // The library's enum is open, and its keywords beyond OpenAPI v3 were filtered out above.
        _ => Cause::invalid(field.clone(), value, &error.to_string()),
    }
}

pub(super) fn json_type(value: &Value) -> &'static str {
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

/// `/spec/ports/0/name` as `spec.ports[0].name`.
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

    /// Half a gigabyte was answered to three megabytes, and to 35 kilobytes with a long key in them.
    #[test]
    fn not_everything_that_is_wrong_is_told() {
        let told = |schema: Value, object: Value| {
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
            let (number, bytes) = told(schema, json!({"l": vec![item; count]}));
            assert!(number == CAUSES_MAX && bytes < TOLD_BYTES_MAX, "{number} {bytes}");
        }
        let long = "k".repeat(10_000);
        for (schema, item) in [(integers(), json!("")), (set(), json!("")), (rules(), json!(1))] {
            let (number, bytes) = told(schema, json!({&long: vec![item; CAUSES_MAX]}));
            assert!(number > 10 && bytes < TOLD_BYTES_MAX + 100_000, "{number} {bytes}");
        }
        // These would take gigabytes before the first is told.
        let longer = "k".repeat(1_000_000);
        for schema in [integers(), json!({"type": "array", "items": {"anyOf": [{"type": "integer"}]}})] {
            assert_eq!(told(schema, json!({&longer: vec![""; CAUSES_MAX]})).0, 1);
        }
        let required = json!({"type": "array", "items": {"type": "object", "required": [longer]}});
        assert_eq!(told(required, json!({"l": vec![json!({}); CAUSES_MAX]})).0, 1);
    }
}
